/*
 * comm_exercise.c - traffic whose every byte is a function of sender, step and place
 */
#include "support/comm_exercise.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "comm/reduce.h"

enum { N_GROUPS = 6, N_RANKS_MAX = 16, N_BYTES_MAX = 40000 };

static void must(int status, const struct err *err)
{
    if (status)
        fprintf(stderr, "comm: %s\n", err->text);
    CHECK(!status);
}

static unsigned char byte_of(int rank, uint64_t step, size_t i)
{
    return (unsigned char)(37u * (unsigned)rank + 11u * (unsigned)step + (unsigned)i * 7u +
                           (unsigned)(i >> 8));
}

static void fill(unsigned char *bytes, int rank, uint64_t step, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = byte_of(rank, step, first + i);
}

static void verify(const unsigned char *bytes, int rank, uint64_t step, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++)
        CHECK(bytes[i] == byte_of(rank, step, first + i));
}

struct comm_group *comm_exercise_world(struct comm *comm, int channel)
{
    int ranks[N_RANKS_MAX];
    struct comm_group *group = NULL;
    struct err err;

    CHECK(comm_world_size(comm) <= N_RANKS_MAX);
    for (int i = 0; i < comm_world_size(comm); i++)
        ranks[i] = i;
    must(comm_group_create(&group, comm, ranks, comm_world_size(comm), channel, &err), &err);
    return group;
}

static void try_all_gather(struct comm_group *group, uint64_t step, size_t n, int in_place)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    unsigned char *receive = malloc(n * (size_t)size + 1), *send = malloc(n + 1);
    unsigned char *from = in_place ? receive + n * (size_t)me : send;
    struct err err;

    fill(from, me, step, 0, n);
    must(comm_all_gather(group, from, receive, n, &err), &err);
    for (int i = 0; i < size; i++)
        verify(receive + n * (size_t)i, i, step, 0, n);
    free(send);
    free(receive);
}

static void try_all_to_all(struct comm_group *group, uint64_t step, size_t n)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    unsigned char *send = malloc(n * (size_t)size + 1), *receive = malloc(n * (size_t)size + 1);
    struct err err;

    fill(send, me, step, 0, n * (size_t)size);
    must(comm_all_to_all(group, send, receive, n, &err), &err);
    for (int i = 0; i < size; i++)
        verify(receive + n * (size_t)i, i, step, n * (size_t)me, n);
    free(send);
    free(receive);
}

static void try_broadcast(struct comm_group *group, uint64_t step, size_t n, int root)
{
    unsigned char *buffer = malloc(n + 1);
    struct err err;

    fill(buffer, comm_group_rank(group), step, 0, n);
    must(comm_broadcast(group, buffer, n, root, &err), &err);
    verify(buffer, root, step, 0, n);
    free(buffer);
}

/* Along the ring: even ranks send first, so that blocking sends pass. */
static void try_send(struct comm_group *group, uint64_t step, size_t n)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    unsigned char *send = malloc(n + 1), *receive = malloc(n + 1);
    struct err err;

    fill(send, me, step, 0, n);
    if (me % 2 == 0 && me + 1 < size)
        must(comm_send(group, send, n, me + 1, &err), &err);
    if (me > 0) {
        must(comm_receive(group, receive, n, me - 1, &err), &err);
        verify(receive, me - 1, step, 0, n);
    }
    if (me % 2 == 1 && me + 1 < size)
        must(comm_send(group, send, n, me + 1, &err), &err);
    free(send);
    free(receive);
}

/* All at once around the ring, one rank further and one back. */
static void try_send_receive(struct comm_group *group, uint64_t step, size_t n)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    int next = (me + 1) % size, previous = (me + size - 1) % size;
    unsigned char *send = malloc(n + 1), *receive = malloc(n + 1);
    struct err err;

    fill(send, me, step, 0, n);
    for (int back = 0; back < 2 && size > 1; back++) {
        int from = back ? next : previous;

        must(comm_send_receive(group, send, back ? previous : next, receive, from, n, &err), &err);
        verify(receive, from, step, 0, n);
    }
    free(send);
    free(receive);
}

static void finish_all(struct comm_request *requests, int n)
{
    int n_left = n;
    struct err err;

    for (char done[8] = { 0 }; n_left;)
        for (int i = 0; i < n; i++) {
            if (done[i])
                continue;
            int progress = comm_test(&requests[i], &err);
            must(progress < 0 ? -1 : 0, &err);
            done[i] = progress == COMM_DONE;
            n_left -= done[i];
        }
}

/* The same as one call of all, from either neighbour, beside what is sent and received. */
static void try_rotate(struct comm_group *group, uint64_t step, size_t n)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    unsigned char *send = malloc(n + 1), *receive = malloc(n + 1);
    struct comm_request request;
    struct err err;

    fill(send, me, step, 0, n);
    for (int peer = -1; peer <= 1; peer += 2) {
        struct comm_call call = { COMM_ROTATE, send, receive, n, peer };

        memset(receive, 0xff, n + 1);
        must(comm_start(&request, group, &call, &err), &err);
        finish_all(&request, 1);
        verify(receive, (me + peer + size) % size, step, 0, n);
        CHECK(receive[n] == 0xff);
        verify(send, me, step, 0, n);
    }
    free(send);
    free(receive);
}

/* So many bytes from one rank to another: some of the n, often none. */
static size_t part_bytes(uint64_t step, int from, int to, size_t n)
{
    unsigned draw = rng_at(31, RNG_TEST, step, (uint64_t)(from * N_RANKS_MAX + to)).word[0];

    return draw % 3 ? draw % (n + 1) : draw % 2 * n;
}

static void try_exchange(struct comm_group *group, uint64_t step, size_t n)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    size_t room = (n + 1) * (size_t)size;
    unsigned char *send = malloc(room), *receive = malloc(room);
    struct comm_part parts[N_RANKS_MAX];
    struct comm_call call = { COMM_EXCHANGE, parts, NULL, n, 0 };
    struct comm_request request;
    struct err err;

    fill(send, me, step, 0, room);
    memset(receive, 0xff, room);
    for (int i = 0; i < size; i++)
        parts[i] = (struct comm_part){ send + (n + 1) * (size_t)i, part_bytes(step, me, i, n),
                                       receive + (n + 1) * (size_t)i, part_bytes(step, i, me, n) };
    must(comm_start(&request, group, &call, &err), &err);
    finish_all(&request, 1);
    for (int i = 0; i < size; i++) {
        size_t n_bytes = i == me ? 0 : parts[i].receive_bytes;
        const unsigned char *received = parts[i].receive;

        verify(received, i, step, (n + 1) * (size_t)me, n_bytes);
        for (size_t at = n_bytes; at <= n; at++)
            CHECK(received[at] == 0xff);
    }
    free(send);
    free(receive);
}

static void try_agree(struct comm_group *group)
{
    int me = comm_group_rank(group), size = comm_group_size(group);
    int64_t largest = -100 + me, smallest = 1000 - me;
    struct err err = { .code = ERR_NONE };

    must(comm_agree(group, COMM_MAX, &largest, &err), &err);
    CHECK(largest == -100 + size - 1);
    must(comm_agree(group, COMM_MIN, &smallest, &err), &err);
    CHECK(smallest == 1000 - (size - 1));
    must(comm_agree_equal(group, "job", 0xfeed, &err), &err);
    if (size > 1) {
        CHECK(comm_agree_equal(group, "job.yaml", me == size - 1 ? 2 : 1, &err) == -1);
        CHECK(err.code == ERR_CONFIG);
        CHECK(strstr(err.text, "job.yaml"));
        CHECK(strstr(err.text, "0000000000000002 on rank"));
    }
}

void comm_exercise_calls(struct comm *comm, size_t limit_bytes)
{
    struct comm_group *world = comm_exercise_world(comm, 3);
    size_t sizes[] = {
        0, 1, 7, limit_bytes - 1, limit_bytes, limit_bytes + 1, 3 * limit_bytes + 5
    };
    struct err err;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        try_all_gather(world, i, sizes[i], 0);
        try_all_gather(world, i, sizes[i], 1);
        try_all_to_all(world, i, sizes[i]);
        for (int root = 0; root < comm_group_size(world); root++)
            try_broadcast(world, i, sizes[i], root);
        try_send(world, i, sizes[i]);
        try_send_receive(world, i, sizes[i]);
        try_rotate(world, i, sizes[i]);
        try_exchange(world, i, sizes[i]);
    }
    must(comm_barrier(world, &err), &err);
    try_agree(world);
}

/* A random ordered subset of the world, equal on all ranks; gives its size. */
static int draw_ranks(uint64_t seed, uint64_t which, int world_size, int *ranks)
{
    int size = 1 + (int)(rng_at(seed, RNG_TEST, which, 999).word[0] % (unsigned)world_size);

    for (int i = 0; i < world_size; i++) {
        int j = (int)(rng_at(seed, RNG_TEST, which, (uint64_t)i).word[0] % (unsigned)(i + 1));

        ranks[i] = ranks[j];
        ranks[j] = i;
    }
    return size;
}

static void random_call(struct comm_group *group, uint64_t step, struct rng_block draw)
{
    /* Mostly short: order is what is tried here. */
    size_t n = draw.word[3] % (draw.word[3] % 8 ? 200 : N_BYTES_MAX);
    struct err err;

    switch (draw.word[1] % 8) {
    case 0:
        try_all_gather(group, step, n, draw.word[2] % 2 == 0);
        break;
    case 1:
        try_all_to_all(group, step, n);
        break;
    case 2:
        try_broadcast(group, step, n, (int)(draw.word[2] % (unsigned)comm_group_size(group)));
        break;
    case 3:
        try_send(group, step, n);
        try_send_receive(group, step, n);
        break;
    case 4:
        try_rotate(group, step, n);
        break;
    case 5:
        try_agree(group);
        break;
    case 6:
        try_exchange(group, step, n);
        break;
    default:
        must(comm_barrier(group, &err), &err);
    }
}

void comm_exercise_random(struct comm *comm, uint64_t seed, int n_steps)
{
    struct comm_group *groups[N_GROUPS] = { NULL };
    int world_size = comm_world_size(comm);
    struct err err;

    for (int g = 0; g < N_GROUPS; g++) {
        int ranks[N_RANKS_MAX] = { 0 };
        int size = draw_ranks(seed, (uint64_t)g / 2, world_size, ranks); /* pairs of equal groups */

        for (int i = 0; i < size; i++)
            if (ranks[i] == comm_world_rank(comm))
                must(comm_group_create(&groups[g], comm, ranks, size, g % 4, &err), &err);
    }
    for (int step = 0; step < n_steps; step++) {
        struct rng_block draw = rng_at(seed, RNG_TEST, 1000, (uint64_t)step);
        struct comm_group *group = groups[draw.word[0] % N_GROUPS];

        if (group)
            random_call(group, (uint64_t)step, draw);
    }
}

/* Element i of rank's part: fractions that round differently in every order of adding. */
static struct comm_call pair_call(enum comm_kind kind, unsigned char *buffer, size_t n, int peer)
{
    return (struct comm_call){ kind, buffer, buffer, n, peer };
}

void comm_exercise_overlap(struct comm *comm, size_t n_bytes)
{
    struct comm_group *ring = comm_exercise_world(comm, 11);
    struct comm_group *gathers[2] = { comm_exercise_world(comm, 12),
                                      comm_exercise_world(comm, 13) };
    int me = comm_group_rank(ring), size = comm_group_size(ring);
    int next = (me + 1) % size, before = (me + size - 1) % size;
    size_t n = n_bytes, all = n * (size_t)size;
    unsigned char *buffers = malloc(8 * n + 2 * all), *received = buffers + 8 * n;
    struct comm_request requests[7];
    struct comm_call calls[7];
    struct err err;

    CHECK(buffers);
    if (size < 3) {
        free(buffers);
        return;
    }
    for (int i = 0; i < 7; i++)
        fill(buffers + (size_t)i * n, me, (uint64_t)i, 0, n);
    /* Receives last: who counts on sends being buffered hangs. */
    calls[0] = pair_call(COMM_SEND, buffers, n, next);
    calls[1] = pair_call(COMM_SEND, buffers + n, n, before);
    calls[2] = pair_call(COMM_RECEIVE, buffers + 2 * n, n, before);
    calls[3] = pair_call(COMM_RECEIVE, buffers + 3 * n, n, next);
    for (int i = 0; i < 2; i++)
        calls[4 + i] = (struct comm_call){ COMM_ALL_GATHER, buffers + (size_t)(4 + i) * n,
                                           received + (size_t)i * all, n, 0 };
    calls[6] = (struct comm_call){ COMM_ROTATE, buffers + 6 * n, buffers + 7 * n, n, 1 };
    for (int i = 0; i < 6; i++) {
        int k = i >= 4 && me % 2 ? 9 - i : i;

        must(comm_start(&requests[k], k < 4 ? ring : gathers[k - 4], &calls[k], &err), &err);
    }
    must(comm_start(&requests[6], ring, &calls[6], &err), &err);
    finish_all(requests, 7);
    verify(buffers + 7 * n, next, 6, 0, n);
    verify(buffers + 2 * n, before, 0, 0, n);
    verify(buffers + 3 * n, next, 1, 0, n);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < size; i++)
            verify(received + (size_t)k * all + (size_t)i * n, i, (uint64_t)(4 + k), 0, n);
    free(buffers);
}

static float term_of(int rank, int64_t i)
{
    return rng_normal(rng_at(5, RNG_TEST, (uint64_t)rank, (uint64_t)i).word[0],
                      rng_at(5, RNG_TEST, (uint64_t)rank, (uint64_t)i).word[1]);
}

static double tree_f64(int first, int n, int64_t i)
{
    int left = 1;

    if (n == 1)
        return (double)term_of(first, i) / 3;
    while (2 * left < n)
        left *= 2;
    return tree_f64(first, left, i) + tree_f64(first + left, n - left, i);
}

static float tree_f32(int first, int n, int64_t i, int is_bf16)
{
    int left = 1;

    if (n == 1)
        return is_bf16 ? bf16_to_float(bf16_from_float(term_of(first, i))) : term_of(first, i);
    while (2 * left < n)
        left *= 2;
    return tree_f32(first, left, i, is_bf16) + tree_f32(first + left, n - left, i, is_bf16);
}

static void reduce_once(struct comm_group *world, enum dtype dtype, int64_t n)
{
    int me = comm_group_rank(world), size = comm_group_size(world);
    size_t bytes = (size_t)n * (size_t)size * 8;
    unsigned char *full = malloc(bytes), *scratch = malloc(bytes), *shard = malloc((size_t)n * 8);
    struct err err;

    for (int64_t i = 0; i < n * size; i++) {
        if (dtype == DTYPE_F64)
            ((double *)(void *)full)[i] = (double)term_of(me, i) / 3;
        else if (dtype == DTYPE_F32)
            ((float *)(void *)full)[i] = term_of(me, i);
        else
            ((uint16_t *)(void *)full)[i] = bf16_from_float(term_of(me, i));
    }
    must(reduce_scatter(world, dtype, full, shard, scratch, n, &err), &err);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = me * n + i;

        if (dtype == DTYPE_F64)
            CHECK(((double *)(void *)shard)[i] == tree_f64(0, size, at));
        else if (dtype == DTYPE_F32)
            CHECK(((float *)(void *)shard)[i] == tree_f32(0, size, at, 0));
        else
            CHECK(((uint16_t *)(void *)shard)[i] == bf16_from_float(tree_f32(0, size, at, 1)));
    }
    free(full);
    free(scratch);
    free(shard);
}

void comm_exercise_reduce(struct comm *comm)
{
    struct comm_group *world = comm_exercise_world(comm, 9);

    reduce_once(world, DTYPE_F32, 3001);
    reduce_once(world, DTYPE_F64, 1025);
    reduce_once(world, DTYPE_BF16, 2047);
}

void comm_exercise_all(struct comm *comm, void *context)
{
    (void)context;
    comm_exercise_calls(comm, 1000);
    comm_exercise_overlap(comm, 100000);
    comm_exercise_reduce(comm);
}

void comm_exercise_send_waits(struct comm *comm, void *context)
{
    _Atomic int *received = context;
    struct comm_group *world = comm_exercise_world(comm, 0);
    int word = 42;
    struct err err;

    if (comm_world_rank(comm) == 0) {
        CHECK(!comm_send(world, &word, sizeof word, 1, &err));
        CHECK(atomic_load(received));
    } else {
        usleep(20000);
        atomic_store(received, 1);
        word = 0;
        CHECK(!comm_receive(world, &word, sizeof word, 0, &err));
        CHECK(word == 42);
    }
}

void comm_exercise_must_fail(int status, const struct err *err, const char *words)
{
    if (status != -1 || err->code != ERR_PEER || !strstr(err->text, words))
        fprintf(stderr, "status %d, %s\n", status, status ? err->text : "");
    CHECK(status == -1);
    CHECK(err->code == ERR_PEER);
    CHECK(strstr(err->text, words));
}

void comm_exercise_one_leaves(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0), *pair = NULL, *third = NULL;
    int rank = comm_world_rank(comm), words[3] = { rank };
    struct err err = { .code = ERR_NONE };

    (void)context;
    if (rank < 2)
        CHECK(!comm_group_create(&pair, comm, (int[]){ 1, 0 }, 2, 0, &err));
    if (rank != 1)
        CHECK(!comm_group_create(&third, comm, (int[]){ 0, 2 }, 2, 0, &err));
    if (rank == 2)
        return;
    CHECK(!comm_barrier(pair, &err));
    comm_exercise_must_fail(comm_all_gather(world, &rank, words, sizeof rank, &err), &err,
                            "rank 2 has left");
    comm_exercise_must_fail(comm_barrier(world, &err), &err, "rank 2 has left");
    if (rank == 0) {
        comm_exercise_must_fail(comm_send(third, words, 4, 1, &err), &err, "rank 2 has left");
        comm_exercise_must_fail(comm_receive(third, words, 4, 1, &err), &err, "rank 2 has left");
        comm_exercise_must_fail(comm_group_create(&third, comm, (int[]){ 2, 0 }, 2, 5, &err), &err,
                                "rank 2 has left");
    }
    CHECK(!comm_barrier(pair, &err));
}

void comm_exercise_early_leaver(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    int rank = comm_world_rank(comm), word = 0;
    struct err err;

    (void)context;
    if (rank == 0)
        CHECK(!comm_receive(world, &word, sizeof word, 1, &err));
    if (rank == 1) {
        usleep(20000);
        CHECK(!comm_send(world, &word, sizeof word, 0, &err));
    }
}
