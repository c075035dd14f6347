/*
 * collective_play.c - see the header
 */
#include "support/collective_play.h"

#include <setjmp.h>
#include <stdarg.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/pause.h"
#include "ops/op_info.h"
#include "run/collective.h"

#define N_GUARD 64

/* A rank of it. */
struct collective_player {
    struct collective_play *play;
    int rank;
};

static double numbers[PLAY_RANKS_MAX][PLAY_N_NUMBERS];

int play_fill_numbers(void **state)
{
    (void)state;
    for (int r = 0; r < PLAY_RANKS_MAX; r++)
        for (int i = 0; i < PLAY_N_NUMBERS; i++) {
            struct rng_block block = rng_at(23, RNG_TEST, (uint64_t)r, (uint64_t)i);

            numbers[r][i] =
                ldexp((double)rng_normal(block.word[0], block.word[1]), (int)(block.word[2] % 20));
        }
    return 0;
}

static void put(enum dtype dtype, void *values, int64_t i, double x)
{
    if (dtype == DTYPE_F64)
        ((double *)values)[i] = x;
    else if (dtype == DTYPE_F32)
        ((float *)values)[i] = (float)x;
    else
        ((uint16_t *)values)[i] = bf16_from_float((float)x);
}

double play_get(enum dtype dtype, const void *values, int64_t i)
{
    if (dtype == DTYPE_F64)
        return ((const double *)values)[i];
    if (dtype == DTYPE_F32)
        return ((const float *)values)[i];
    return bf16_to_float(((const uint16_t *)values)[i]);
}

double play_tree(enum dtype dtype, const double *x, int n)
{
    int left = 1;

    if (n == 1)
        return x[0];
    while (2 * left < n)
        left *= 2;
    double sum = play_tree(dtype, x, left) + play_tree(dtype, x + left, n - left);
    return dtype == DTYPE_F64 ? sum : (double)(float)sum;
}

/* ---- the ranks ---- */

/* Threads may not use cmocka: they CHECK. */
static void run_collective(struct collective *c)
{
    struct comm_pause pause;
    struct err err;
    int progress;

    comm_pause_begin(&pause);
    while ((progress = stream_op_run(&c->base, &err)) > COMM_DONE)
        comm_pause(&pause, progress);
    CHECK(progress == COMM_DONE);
}

/* ---- staged ---- */

/* A device on the host that counts what is copied. */
struct play_device {
    struct device device;
    size_t n_copied;
};

static void count_copy(struct device *device, int queue, void *to, const void *from, size_t n_bytes)
{
    (void)queue;
    memcpy(to, from, n_bytes);
    ((struct play_device *)device)->n_copied += n_bytes;
}

static void ignore_event(struct device *device, int queue, struct device_event *event)
{
    (void)device, (void)queue, (void)event;
}

static int is_always_done(struct device *device, struct device_event *event)
{
    (void)device, (void)event;
    return 1;
}

static void *poisoned(const struct tensor *t)
{
    size_t n_bytes = collective_extent(t);
    void *memory = malloc(n_bytes + 1);

    CHECK(memory);
    return memset(memory, 0xff, n_bytes);
}

static void stage(struct collective *c, struct play_device *device)
{
    static const struct device_ops ops = { .copy = count_copy,
                                           .event_record = ignore_event,
                                           .event_done = is_always_done };

    *device = (struct play_device){ .device.ops = &ops };
    c->base.device = &device->device;
    c->device_in = c->in;
    c->device_out = c->out;
    c->in.data = poisoned(&c->in);
    c->out.data = poisoned(&c->out);
}

static void unstage(struct collective *c)
{
    free(c->in.data);
    free(c->out.data);
}

static size_t scratch_bytes_of(const struct collective_play *play)
{
    return play->n_on_node
               ? collective_nodes_scratch_bytes(&play->shape, play->size, play->n_on_node)
               : collective_scratch_bytes(&play->shape, play->size, 0);
}

static void open_nodes(const struct collective_play *play, struct comm *comm, int rank,
                       struct collective_nodes *nodes)
{
    int n = play->n_on_node, ranks[PLAY_RANKS_MAX];
    struct err err;

    for (int i = 0; i < n; i++)
        ranks[i] = rank / n * n + i;
    CHECK(comm_group_create(&nodes->node, comm, ranks, n, 1, &err) == 0);
    for (int i = 0; i < play->size / n; i++)
        ranks[i] = rank % n + i * n;
    CHECK(comm_group_create(&nodes->across, comm, ranks, play->size / n, 2, &err) == 0);
}

static void *play_rank(void *argument)
{
    struct collective_player *me = argument;
    struct collective_play *play = me->play;
    size_t scratch_bytes = scratch_bytes_of(play);
    unsigned char *scratch = malloc(scratch_bytes + N_GUARD);
    int ranks[PLAY_RANKS_MAX];
    struct comm *comm;
    struct comm_group *group;
    struct err err;

    CHECK(scratch);
    memset(scratch, 0xff, scratch_bytes + N_GUARD);
    for (int r = 0; r < play->size; r++)
        ranks[r] = r;
    CHECK(comm_thread_create(&comm, play->hub, me->rank, &err) == 0);
    CHECK(comm_group_create(&group, comm, ranks, play->size, 0, &err) == 0);
    struct collective c = collective_of(&play->shape, group, scratch);
    struct play_device device = { 0 };
    if (play->n_on_node)
        open_nodes(play, comm, me->rank, &c.nodes);
    c.base.first = !play->adds;
    c.in.data = play->in[me->rank];
    c.out.data = play->out[me->rank];
    c.choices.data = (void *)(uintptr_t)play->choices;
    if (play->is_staged)
        stage(&c, &device);
    /* Twice: it must be as new when it is done. */
    run_collective(&c);
    memcpy(play->in[me->rank], play->before[me->rank], play->in_bytes);
    if (play->adds)
        for (int64_t i = 0; i < tensor_elements(&c.out); i++)
            put(c.out.dtype, c.out.data, i, (double)i);
    run_collective(&c);
    for (int i = 0; i < N_GUARD; i++)
        CHECK(scratch[scratch_bytes + (size_t)i] == 0xff);
    /* All are through before one leaves. */
    CHECK(comm_barrier(group, &err) == 0);
    comm_destroy(comm);
    play->n_staged[me->rank] = device.n_copied / 2;
    if (play->is_staged)
        unstage(&c);
    free(scratch);
    return NULL;
}

/* Of a slice of parts of sequences, the operand of all ranks' rows lies in all of them. */
static int64_t elements_of(const struct collective_play *play, const struct tensor *t)
{
    const struct op_shape *shape = &play->shape;
    const struct tensor *whole = ops_makes_whole(shape->kind) ? &shape->out[0] : &shape->in[0];
    int64_t part_rows = shape->attributes.part_rows;

    return (part_rows && t == whole ? part_rows * play->size : t->rows) * t->stride;
}

static size_t bytes_of(const struct collective_play *play, const struct tensor *t)
{
    return (size_t)elements_of(play, t) * dtype_bytes(t->dtype);
}

void play_run(struct collective_play *play)
{
    struct collective_player players[PLAY_RANKS_MAX];
    pthread_t threads[PLAY_RANKS_MAX];
    struct tensor *in = &play->shape.in[0], *out = &play->shape.out[0];
    struct err err;

    if (op_check(&play->shape, &err) < 0)
        fail_msg("%s", err.text);
    play->in_bytes = bytes_of(play, in);
    play->out_bytes = bytes_of(play, out);
    assert_int_equal(comm_hub_create(&play->hub, play->size, &err), 0);
    for (int r = 0; r < play->size; r++) {
        play->in[r] = test_malloc(play->in_bytes);
        play->before[r] = test_malloc(play->in_bytes);
        play->out[r] = play->in_place ? play->in[r] : test_malloc(play->out_bytes);
        if (!play->in_place)
            memset(play->out[r], 0xff, play->out_bytes);
        for (int64_t i = 0; i < elements_of(play, in); i++)
            put(in->dtype, play->in[r], i, numbers[r][i]);
        if (play->given[r])
            memcpy(play->in[r], play->given[r], play->in_bytes);
        memcpy(play->before[r], play->in[r], play->in_bytes);
        players[r] = (struct collective_player){ play, r };
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, &players[r]), 0);
    }
    for (int r = 0; r < play->size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(play->hub);
}

void play_release(struct collective_play *play)
{
    for (int r = 0; r < play->size; r++) {
        if (!play->in_place)
            test_free(play->out[r]);
        test_free(play->before[r]);
        test_free(play->in[r]);
    }
}

void play_expect(const struct collective_play *play, int r, int64_t i, double wanted)
{
    unsigned char bytes[8];
    enum dtype dtype = play->shape.out[0].dtype;
    size_t n = dtype_bytes(dtype);

    put(dtype, bytes, 0, wanted);
    if (memcmp(bytes, play->out[r] + (size_t)i * n, n) != 0)
        fail_msg("%s of %s over %d ranks: rank %d has %.9g at %lld, wanted %.9g",
                 op_info(play->shape.kind)->name, dtype_name(dtype), play->size, r,
                 play_get(dtype, play->out[r], i), (long long)i, wanted);
}

double play_sum_at(const struct collective_play *play, int first, int n, int64_t i)
{
    double x[PLAY_RANKS_MAX];

    for (int r = 0; r < n; r++)
        x[r] = play_get(play->shape.in[0].dtype, play->before[first + r], i);
    return play_tree(play->shape.in[0].dtype, x, n);
}

struct tensor play_dense(int64_t rows, int64_t cols, enum dtype dtype)
{
    return (struct tensor){ NULL, rows, cols, cols, dtype };
}

struct collective_play play_make(enum op_kind kind, int size, struct tensor in, struct tensor out)
{
    struct collective_play p = { .shape = { .kind = kind, .attributes = { .axis = AXIS_TP } },
                                 .size = size };

    p.shape.in[0] = in;
    p.shape.out[0] = out;
    return p;
}

void play_expect_gaps(const struct collective_play *play)
{
    const struct tensor *out = &play->shape.out[0];
    size_t n = dtype_bytes(out->dtype);

    for (int r = 0; r < play->size; r++)
        for (int64_t t = 0; t < out->rows; t++)
            for (size_t at = (size_t)out->cols * n; at < (size_t)out->stride * n; at++)
                assert_int_equal(play->out[r][(size_t)(t * out->stride) * n + at], 0xff);
}
