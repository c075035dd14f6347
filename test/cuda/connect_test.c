/*
 * connect_test.c - the NCCL communicators of groups: who is in them, in which order, and how many
 * times ranks find each other for it
 *
 * Ranks are threads, each with an emulated GPU of its own, whose host side is threads' or sockets.
 * Emulated NCCL says what it makes in a file (cuda/emulate/nccl.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "comm/comm.h"
#include "device/device.h"
#include "support/tcp_ranks.h"
#include "support/temporary.h"

enum { N_RANKS = 6, N_QUEUES = 5, NEIGHBOURS = COMM_TO_NEXT | COMM_TO_PREVIOUS };

/* Groups that are connected together. */
struct round {
    int n_groups;
    struct {
        unsigned uses;
        int size, ranks[N_RANKS];
    } groups[2];
};

static const struct round rounds[] = {
    /* odd numbers of ranks, which are in no order of the world's */
    { 2,
      { { COMM_TOGETHER | NEIGHBOURS, 3, { 4, 0, 2 } },
        { COMM_TOGETHER | NEIGHBOURS, 3, { 5, 3, 1 } } } },
    { 1, { { COMM_TOGETHER | NEIGHBOURS, 6, { 5, 4, 3, 2, 1, 0 } } } },
    /* ranks in none, and groups with uses of their own */
    { 2, { { COMM_TOGETHER, 2, { 3, 2 } }, { COMM_TO_NEXT, 3, { 0, 5, 4 } } } },
    { 1, { { COMM_TO_PREVIOUS, 2, { 1, 4 } } } },
};

/* ---- ranks; threads may not use cmocka: they CHECK ---- */

static struct comm_hub *hub; /* NULL: sockets */

/* One rank's place: a comm, all its ranks, a device with memory of N_QUEUES * N_RANKS numbers. */
struct place {
    struct comm *comm;
    struct comm_group *all;
    struct device *device;
    int32_t *host, *there;
};

static struct comm_group *make_group(const struct place *p, const int *ranks, int n, int channel)
{
    struct comm_group *group;
    struct err err;

    CHECK(comm_group_create(&group, p->comm, ranks, n, channel, &err) == 0);
    return group;
}

static struct place open_place(int rank)
{
    static const int ranks[N_RANKS] = { 0, 1, 2, 3, 4, 5 };
    size_t n_bytes = N_QUEUES * N_RANKS * sizeof(int32_t);
    struct place p = { 0 };
    void *memory[2];
    struct err err;

    if (hub)
        CHECK(comm_thread_create(&p.comm, hub, rank, &err) == 0);
    else
        CHECK(comm_tcp_create(&p.comm, tcp_table_join(rank, N_RANKS), &err) == 0);
    CHECK(device_cuda_open(&p.device, 0, &err) == 0);
    CHECK(comm_nccl_create(&p.comm, p.comm, p.device, &err) == 0);
    for (int i = 0; i < N_QUEUES; i++)
        CHECK(p.device->ops->open_queue(p.device, DEVICE_TRAFFIC + i, &err) == 0);
    CHECK(p.device->ops->allocate_pinned(p.device, n_bytes, &memory[0], &err) == 0);
    CHECK(p.device->ops->allocate(p.device, n_bytes, &memory[1], &err) == 0);
    p.host = memory[0];
    p.there = memory[1];
    p.all = make_group(&p, ranks, N_RANKS, 99);
    return p;
}

static void close_place(struct place *p)
{
    struct err err;

    CHECK(comm_check(p->comm, &err) == 0);
    CHECK(comm_barrier(p->all, &err) == 0);
    comm_destroy(p->comm);
    p->device->ops->release(p->device, p->there);
    p->device->ops->release_pinned(p->device, p->host);
    device_destroy(p->device);
}

static void wait_all(const struct place *p)
{
    struct err err;

    for (int i = 0; i < N_QUEUES; i++)
        CHECK(p->device->ops->wait(p->device, DEVICE_TRAFFIC + i, &err) == 0);
}

static void copy(const struct place *p, void *to, const void *from)
{
    size_t n_bytes = N_QUEUES * N_RANKS * sizeof(int32_t);
    struct err err;

    p->device->ops->copy(p->device, DEVICE_COMPUTE, to, from, n_bytes);
    CHECK(p->device->ops->wait(p->device, DEVICE_COMPUTE, &err) == 0);
}

/* Row 0 is gathered into, row 1 is this rank's number, rows 2 and 3 are received. */
static void enqueue(const struct place *p, struct comm_group *group, enum comm_kind kind, int row,
                    int step)
{
    int n = comm_group_size(group), peer = (comm_group_rank(group) + step + n) % n;
    int queue = DEVICE_TRAFFIC + (kind == COMM_SEND ? 2 + (step > 0) : 0) + (row == 3);
    struct comm_call call = { kind, p->there + N_RANKS, p->there + row * N_RANKS, sizeof(int32_t),
                              peer };
    struct err err;

    CHECK(comm_enqueue(group, &call, queue, &err) == 0);
}

/* Every rank hears the others' numbers where the group's order says. */
static void check_group(const struct place *p, struct comm_group *group, const int *ranks,
                        unsigned uses)
{
    int n = comm_group_size(group), me = comm_group_rank(group);

    memset(p->host, 0xff, N_QUEUES * N_RANKS * sizeof(int32_t));
    p->host[N_RANKS] = comm_world_rank(p->comm);
    copy(p, p->there, p->host);
    if (uses & COMM_TOGETHER)
        enqueue(p, group, COMM_ALL_GATHER, 0, 0);
    wait_all(p);
    if (uses & COMM_TO_NEXT) {
        enqueue(p, group, COMM_SEND, 1, 1);
        enqueue(p, group, COMM_RECEIVE, 2, -1);
    }
    if (uses & COMM_TO_PREVIOUS) {
        enqueue(p, group, COMM_SEND, 1, -1);
        enqueue(p, group, COMM_RECEIVE, 3, 1);
    }
    wait_all(p);
    copy(p, p->host, p->there);
    for (int i = 0; i < n; i++)
        CHECK(!(uses & COMM_TOGETHER) || p->host[i] == ranks[i]);
    CHECK(!(uses & COMM_TO_NEXT) || p->host[2 * N_RANKS] == ranks[(me + n - 1) % n]);
    CHECK(!(uses & COMM_TO_PREVIOUS) || p->host[3 * N_RANKS] == ranks[(me + 1) % n]);
}

/* n_times: connected so often, and disconnected in between. */
static void play_round(const struct place *p, const struct round *round, struct comm_group *all,
                       int channel, int n_times)
{
    struct comm_group *group = NULL;
    const int *ranks = NULL;
    unsigned uses = 0;
    struct err err;

    for (int g = 0; g < round->n_groups; g++)
        for (int i = 0; i < round->groups[g].size; i++)
            if (round->groups[g].ranks[i] == comm_world_rank(p->comm)) {
                ranks = round->groups[g].ranks;
                uses = round->groups[g].uses;
                group = make_group(p, ranks, round->groups[g].size, channel);
            }
    for (int i = 0; i < n_times; i++) {
        if (i && group)
            comm_disconnect(group);
        CHECK(comm_connect(all, group, uses, &err) == 0);
        if (group)
            check_group(p, group, ranks, uses);
    }
}

/* All rounds, and the first twice more from another group of all ranks, as a second run has it. */
static void *play_rank(void *argument)
{
    static const int ranks[N_RANKS] = { 0, 1, 2, 3, 4, 5 };
    int n_rounds = (int)(sizeof rounds / sizeof *rounds);

    struct place p = open_place((int)(intptr_t)argument);
    for (int i = 0; i < n_rounds; i++)
        play_round(&p, &rounds[i], p.all, i, 1);
    play_round(&p, &rounds[0], make_group(&p, ranks, N_RANKS, 100), n_rounds, 2);
    close_place(&p);
    return NULL;
}

/* ---- and the tests may ---- */

static char folder[256], log_path[512];

static int count_lines(const char *begin)
{
    FILE *file = fopen(log_path, "re");
    char line[256];
    int n = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        n += !strncmp(line, begin, strlen(begin));
    fclose(file);
    return n;
}

static void play(int on_sockets)
{
    pthread_t threads[N_RANKS];
    struct err err;

    unlink(log_path);
    hub = NULL;
    tcp_table_begin(N_RANKS);
    if (!on_sockets)
        assert_int_equal(comm_hub_create(&hub, N_RANKS, &err), 0);
    for (int r = 0; r < N_RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, (void *)(intptr_t)r), 0);
    for (int r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(hub);
    tcp_table_end();
    /* Ranks found each other once; all else is split from that. */
    assert_int_equal(count_lines("id"), 1);
    assert_int_equal(count_lines("init "), N_RANKS);
    /* Together 1, and 2 pairs each way, a rank; of two ranks the previous is the next. */
    assert_int_equal(count_lines("split "), 6 * 5 + 6 * 5 + 2 * 1 + 3 * 2 + 2 * 2 + 2 * 6 * 5);
}

static void over_threads(void **state)
{
    static const char *const orders[] = { "lazy", "1", "eager" };

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        setenv("LMTRAIN_EMULATE_STREAMS", orders[i], 1);
        play(0);
    }
}

static void over_sockets(void **state)
{
    (void)state;
    play(1);
}

static int make_folder(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder) < 0)
        return -1;
    snprintf(log_path, sizeof log_path, "%s/made", folder);
    return setenv("LMTRAIN_EMULATE_NCCL_LOG", log_path, 1);
}

static int drop_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_threads),
        cmocka_unit_test(over_sockets),
    };

    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
