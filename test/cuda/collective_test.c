/*
 * collective_test.c - collectives of values in a device's memory: the bits of those in the host's
 *
 * Ranks are threads, each with an emulated GPU of its own. Every kind is done on the host by
 * comm_thread, which test/run/collective_test.c holds against the tree written down; then staged,
 * and enqueued with NCCL, under every order in which queues may run (LMTRAIN_EMULATE_STREAMS).
 * Inputs are written on the compute queue just before, and read and overwritten there just after:
 * a mark that is missed shows as wrong bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/pause.h"
#include "ops/op_info.h"
#include "run/collective.h"

enum { N_RANKS_MAX = 8, N_RUNS = 3, QUEUE = DEVICE_TRAFFIC + 3, N_GUARD = 64 };
/* fast: enqueued, and NCCL adds. */
enum way { ON_HOST, STAGED, ENQUEUED, FAST, N_WAYS };
static const char *const way_names[] = { "on the host", "staged", "enqueued", "fast" };

struct play {
    struct op_shape shape;
    int size;
    int adds;        /* to what is there */
    int leaves_mark; /* breaks: the queue does not wait for the compute queue's mark */
    enum way way;
    struct comm_hub *hub;
    size_t in_bytes, out_bytes;
    unsigned char *out[N_WAYS][N_RANKS_MAX]; /* of all runs, one behind the other */
};

struct player {
    struct play *play;
    int rank;
};

/* One rank's place: a comm, a group, a device with its kernels. */
struct place {
    struct comm *comm;
    struct comm_group *group;
    struct device *device;
    struct kernels *kernels;
};

static size_t extent(const struct tensor *t)
{
    return (size_t)(t->rows * t->stride) * dtype_bytes(t->dtype);
}

/* ---- threads may not use cmocka: they CHECK ---- */

static void *allocate(const struct place *p, size_t n_bytes)
{
    struct err err;
    void *memory;

    CHECK(p->device->ops->allocate(p->device, n_bytes, &memory, &err) == 0);
    return memory;
}

static void *allocate_pinned(const struct place *p, size_t n_bytes)
{
    struct err err;
    void *memory;

    CHECK(p->device->ops->allocate_pinned(p->device, n_bytes, &memory, &err) == 0);
    return memory;
}

static void copy(const struct place *p, void *to, const void *from, size_t n_bytes)
{
    p->device->ops->copy(p->device, DEVICE_COMPUTE, to, from, n_bytes);
}

static struct place open_place(const struct play *play, int rank)
{
    struct place p = { .device = device_host() };
    int ranks[N_RANKS_MAX];
    struct err err;

    for (int r = 0; r < play->size; r++)
        ranks[r] = r;
    CHECK(comm_thread_create(&p.comm, play->hub, rank, &err) == 0);
    if (play->way != ON_HOST) {
        CHECK(device_cuda_open(&p.device, 0, &err) == 0);
        for (int i = QUEUE; i < QUEUE + 8; i++)
            CHECK(p.device->ops->open_queue(p.device, i, &err) == 0);
        CHECK(kernels_cuda_create(&p.kernels, p.device, &err) == 0);
    }
    if (play->way >= ENQUEUED)
        CHECK(comm_nccl_create(&p.comm, p.comm, p.device, &err) == 0);
    CHECK(comm_group_create(&p.group, p.comm, ranks, play->size, 0, &err) == 0);
    unsigned sums = play->way == FAST ? COMM_SUMS : 0;
    if (play->way >= ENQUEUED)
        CHECK(comm_connect(p.group, p.group, COMM_TOGETHER | COMM_TO_NEXT | COMM_TO_PREVIOUS | sums,
                           &err) == 0);
    return p;
}

static void close_place(struct place *p)
{
    struct err err;

    CHECK(comm_barrier(p->group, &err) == 0);
    comm_destroy(p->comm);
    kernels_destroy(p->kernels);
    device_destroy(p->device);
}

static void run_on_worker(struct collective *c)
{
    struct comm_pause pause;
    struct err err;
    int progress;

    comm_pause_begin(&pause);
    while ((progress = stream_op_run(&c->base, &err)) > COMM_DONE)
        comm_pause(&pause, progress);
    CHECK(progress == COMM_DONE);
}

/* As the executor does it. */
static void run_on_queue(const struct play *play, struct collective *c)
{
    struct device *device = c->base.device;
    struct err err;

    if (!play->leaves_mark)
        device->ops->wait_mark(device, c->base.queue, c->base.given);
    CHECK(c->base.mover->enqueue(&c->base, &err) == 0);
    device->ops->mark(device, c->base.queue, c->base.done);
    device->ops->wait_mark(device, DEVICE_COMPUTE, c->base.done);
}

static void run_once(const struct play *play, struct collective *c)
{
    if (c->base.device)
        c->base.device->ops->mark(c->base.device, DEVICE_COMPUTE, c->base.given);
    if (play->way >= ENQUEUED)
        run_on_queue(play, c);
    else
        run_on_worker(c);
}

/* Numbers of many magnitudes, so that every order of adding rounds differently. */
static void fill(enum dtype dtype, unsigned char *values, size_t n_bytes, int rank, int run)
{
    size_t size = dtype_bytes(dtype);

    for (size_t i = 0; i < n_bytes / size; i++) {
        struct rng_block block = rng_at(23, RNG_TEST, (uint64_t)(rank * N_RUNS + run), i);
        float normal = rng_normal(block.word[0], block.word[1]);
        double x = ldexp((double)normal, (int)(block.word[2] % 20));
        float narrow = (float)x;
        uint16_t bf16 = bf16_from_float(narrow);

        memcpy(values + i * size,
               dtype == DTYPE_F64   ? (void *)&x
               : dtype == DTYPE_F32 ? (void *)&narrow
                                    : (void *)&bf16,
               size);
    }
}

/* Operands of one rank: the host's, pinned, and where they lie for the collective. */
struct operands {
    unsigned char *from, *to, *junk; /* N_RUNS of each in, out; what in is overwritten with */
    void *in, *out, *scratch;
    unsigned char *staging[3];
    size_t scratch_bytes;
};

static struct operands make_operands(const struct play *play, const struct place *p, int rank)
{
    struct operands o = { .scratch_bytes = collective_scratch_bytes(&play->shape, play->size,
                                                                    play->way == FAST) };

    o.from = allocate_pinned(p, play->in_bytes * N_RUNS);
    o.to = allocate_pinned(p, play->out_bytes * N_RUNS);
    o.junk = allocate_pinned(p, play->in_bytes);
    memset(o.junk, 0xff, play->in_bytes);
    for (int run = 0; run < N_RUNS; run++)
        fill(play->shape.in[0].dtype, o.from + (size_t)run * play->in_bytes, play->in_bytes, rank,
             run);
    o.in = allocate(p, play->in_bytes);
    o.out = allocate(p, play->out_bytes);
    o.scratch = allocate(p, o.scratch_bytes + N_GUARD);
    p->device->ops->fill(p->device, DEVICE_COMPUTE, o.scratch, 0xff, o.scratch_bytes + N_GUARD);
    if (play->way == STAGED) {
        o.staging[0] = allocate_pinned(p, play->in_bytes);
        o.staging[1] = allocate_pinned(p, play->out_bytes);
        o.staging[2] = allocate_pinned(p, o.scratch_bytes + 1);
    }
    return o;
}

static void check_guard(const struct place *p, const struct operands *o)
{
    unsigned char guard[N_GUARD];
    struct err err;

    copy(p, guard, (unsigned char *)o->scratch + o->scratch_bytes, N_GUARD);
    CHECK(p->device->ops->wait(p->device, DEVICE_COMPUTE, &err) == 0);
    for (int i = 0; i < N_GUARD; i++)
        CHECK(guard[i] == 0xff);
}

static void drop_operands(const struct place *p, struct operands *o)
{
    p->device->ops->release(p->device, o->in);
    p->device->ops->release(p->device, o->out);
    p->device->ops->release(p->device, o->scratch);
    p->device->ops->release_pinned(p->device, o->from);
    p->device->ops->release_pinned(p->device, o->to);
    p->device->ops->release_pinned(p->device, o->junk);
    for (int i = 0; i < 3; i++)
        if (o->staging[i])
            p->device->ops->release_pinned(p->device, o->staging[i]);
}

static struct collective make_collective(const struct play *play, const struct place *p,
                                         const struct operands *o, int rank)
{
    struct collective c = collective_of(&play->shape, p->group, o->scratch);
    struct err err;

    c.base.first = !play->adds;
    c.base.device = p->kernels ? p->device : NULL;
    c.base.queue = QUEUE;
    c.is_fast = play->way == FAST;
    c.kernels = p->kernels;

    /* Each sends to the next: who comes first in the ring begins with that, the others receive. */
    if (c.kind == OP_SEND)
        c.peer = (rank + 1) % play->size;
    c.in.data = o->in;
    c.out.data = o->out;
    if (play->way == STAGED) {
        c.device_in = c.in;
        c.device_out = c.out;
        c.in.data = o->staging[0];
        c.out.data = o->staging[1];
        c.scratch = o->staging[2];
    }
    if (p->kernels) {
        CHECK(p->device->ops->mark_create(p->device, 0, &c.base.given, &err) == 0);
        CHECK(p->device->ops->mark_create(p->device, 0, &c.base.done, &err) == 0);
    }
    return c;
}

static void *play_rank(void *argument)
{
    struct player *me = argument;
    struct play *play = me->play;
    struct place p = open_place(play, me->rank);
    struct operands o = make_operands(play, &p, me->rank);
    struct collective c = make_collective(play, &p, &o, me->rank);
    struct err err;

    for (int run = 0; run < N_RUNS; run++) {
        copy(&p, o.in, o.from + (size_t)run * play->in_bytes, play->in_bytes);
        if (run == 0 || !play->adds)
            p.device->ops->fill(p.device, DEVICE_COMPUTE, o.out, 0x3c, play->out_bytes);
        run_once(play, &c);
        copy(&p, o.to + (size_t)run * play->out_bytes, o.out, play->out_bytes);
        copy(&p, o.in, o.junk, play->in_bytes);
    }
    CHECK(p.device->ops->wait(p.device, DEVICE_COMPUTE, &err) == 0);
    memcpy(play->out[play->way][me->rank], o.to, play->out_bytes * N_RUNS);
    check_guard(&p, &o);
    if (c.base.given) {
        p.device->ops->mark_destroy(p.device, c.base.given);
        p.device->ops->mark_destroy(p.device, c.base.done);
    }
    CHECK(comm_barrier(p.group, &err) == 0);
    drop_operands(&p, &o);
    close_place(&p);
    return NULL;
}

/* ---- and the tests may ---- */

static void begin(struct play *play)
{
    struct err err;

    if (op_check(&play->shape, &err) < 0)
        fail_msg("%s", err.text);
    play->in_bytes = extent(&play->shape.in[0]);
    play->out_bytes = extent(&play->shape.out[0]);
    for (int w = 0; w < N_WAYS; w++)
        for (int r = 0; r < play->size; r++)
            play->out[w][r] = test_malloc(play->out_bytes * N_RUNS);
}

static void end(struct play *play)
{
    for (int w = 0; w < N_WAYS; w++)
        for (int r = 0; r < play->size; r++)
            test_free(play->out[w][r]);
}

static void play_way(struct play *play, enum way way)
{
    struct player players[N_RANKS_MAX];
    pthread_t threads[N_RANKS_MAX];
    struct err err;

    play->way = way;
    assert_int_equal(comm_hub_create(&play->hub, play->size, &err), 0);
    for (int r = 0; r < play->size; r++) {
        players[r] = (struct player){ play, r };
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, &players[r]), 0);
    }
    for (int r = 0; r < play->size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(play->hub);
}

static int is_equal(const struct play *play, enum way way)
{
    for (int r = 0; r < play->size; r++)
        if (memcmp(play->out[ON_HOST][r], play->out[way][r], play->out_bytes * N_RUNS) != 0)
            return 0;
    return 1;
}

static const char *const orders[] = { "eager", "lazy", "1", "2" };
#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static void set_order(const char *order)
{
    setenv("LMTRAIN_EMULATE_STREAMS", order, 1);
}

static void check(struct play play)
{
    begin(&play);
    play_way(&play, ON_HOST);
    for (int i = 0; i < COUNT(orders); i++)
        for (enum way way = STAGED; way <= ENQUEUED; way++) {
            set_order(orders[i]);
            play_way(&play, way);
            if (!is_equal(&play, way))
                fail_msg("%s of %s over %d ranks differs, %s, streams %s",
                         op_info(play.shape.kind)->name, dtype_name(play.shape.in[0].dtype),
                         play.size, way_names[way], orders[i]);
        }
    end(&play);
}

static struct tensor dense(int64_t rows, int64_t cols, enum dtype dtype)
{
    return (struct tensor){ NULL, rows, cols, cols, dtype };
}

static struct play make(enum op_kind kind, int size, struct tensor in, struct tensor out)
{
    struct play p = { .shape = { .kind = kind, .attributes = { .axis = AXIS_TP } }, .size = size };

    p.shape.in[0] = in;
    p.shape.out[0] = out;
    return p;
}

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F64 };
static const int sizes[] = { 2, 3, 4, 8 };

static void all_gather(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        check(make(OP_ALL_GATHER, sizes[s], dense(3, 7, DTYPE_BF16),
                   dense(3 * sizes[s], 7, DTYPE_BF16)));
}

static void reduce_scatter(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++)
            check(make(OP_REDUCE_SCATTER, sizes[s], dense(3 * sizes[s], 75, dtypes[d]),
                       dense(3, 75, dtypes[d])));
}

static void reduce_scatter_that_adds(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++) {
        struct play p = make(OP_REDUCE_SCATTER, sizes[s], dense(1, 90 * sizes[s], DTYPE_F32),
                             dense(1, 90, DTYPE_F32));

        p.adds = 1;
        check(p);
    }
}

/* Summed by all, and by parts that divide and do not. */
static void all_reduce(void **state)
{
    static const int64_t cols[] = { 51, 36000, 36001 };

    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int i = 0; i < COUNT(cols); i++) {
            enum dtype dtype = dtypes[(s + i) % COUNT(dtypes)];

            check(
                make(OP_ALL_REDUCE, sizes[s], dense(1, cols[i], dtype), dense(1, cols[i], dtype)));
        }
}

static void all_reduce_of_scalars(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        check(make(OP_ALL_REDUCE_SCALAR, sizes[s], dense(1, 5, DTYPE_F64), dense(1, 5, DTYPE_F64)));
}

enum { TOKENS = 5, HEADS = 3, HEAD_DIM = 16, Q = HEADS * HEAD_DIM };

/* padding: columns between rows, of both operands; they stay as they are. */
static struct play make_heads(enum op_kind kind, int size, int group, enum dtype dtype, int padding)
{
    int64_t w = HEAD_DIM / group;
    struct tensor part = { NULL, TOKENS, Q + 2 * w, Q + 2 * w + padding, dtype };
    struct tensor whole = { NULL, TOKENS, Q + 2 * HEAD_DIM, Q + 2 * HEAD_DIM + padding, dtype };
    int gathers = kind == OP_GATHER_HEADS;
    struct play p = make(kind, size, gathers ? part : whole, gathers ? whole : part);

    p.shape.attributes.n_heads = HEADS;
    p.shape.attributes.n_kv_heads = 1;
    p.shape.attributes.head_dim = HEAD_DIM;
    p.shape.attributes.group = group;
    return p;
}

static void heads(void **state)
{
    static const struct {
        int size, group;
    } shared[] = { { 2, 2 }, { 4, 2 }, { 4, 4 }, { 8, 4 } };
    static const int paddings[] = { 0, 3, 8 };

    (void)state;
    for (int i = 0; i < COUNT(shared); i++)
        for (int k = 0; k < COUNT(paddings); k++) {
            check(make_heads(OP_GATHER_HEADS, shared[i].size, shared[i].group, dtypes[i % 2],
                             paddings[k]));
            check(make_heads(OP_GATHER_HEADS_GRAD, shared[i].size, shared[i].group, dtypes[i % 2],
                             paddings[k]));
        }
}

/* ---- neighbours ---- */

enum { N_ELEMENTS = 1000 };

/* A rank sends to its next and previous, and receives from both, each on a queue of its own. */
struct exchange {
    enum op_kind kind;
    int step; /* to or from which neighbour */
};
static const struct exchange exchanges[] = {
    { OP_SEND, 1 }, { OP_SEND, -1 }, { OP_RECEIVE, -1 }, { OP_RECEIVE, 1 }
};

static float ring_number(int from, int to_next, int run, int i)
{
    return (float)(from * 100000 + to_next * 50000 + run * 1000 + i);
}

static void enqueue_exchange(const struct place *p, int rank, int size, int k, void *memory)
{
    const struct exchange *e = &exchanges[k];
    struct comm_call call = { e->kind == OP_SEND ? COMM_SEND : COMM_RECEIVE, memory, memory,
                              N_ELEMENTS * sizeof(float), (rank + e->step + size) % size };
    struct err err;

    CHECK(comm_enqueue(p->group, &call, DEVICE_TRAFFIC + 5 + k, &err) == 0);
}

static void *ring_rank(void *argument)
{
    struct player *me = argument;
    const struct play *play = me->play;
    struct place p = open_place(play, me->rank);
    size_t n_bytes = N_ELEMENTS * sizeof(float);
    float *host = allocate_pinned(&p, 4 * n_bytes);
    struct device_mark *marks[5];
    char *there = allocate(&p, 4 * n_bytes);
    struct err err;

    for (int k = 0; k < 5; k++)
        CHECK(p.device->ops->mark_create(p.device, 0, &marks[k], &err) == 0);
    for (int run = 0; run < N_RUNS; run++) {
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < N_ELEMENTS; i++)
                host[k * N_ELEMENTS + i] = ring_number(me->rank, k == 0, run, i);
        copy(&p, there, host, 2 * n_bytes);
        p.device->ops->mark(p.device, DEVICE_COMPUTE, marks[4]);
        for (int k = 0; k < 4; k++) {
            p.device->ops->wait_mark(p.device, DEVICE_TRAFFIC + 5 + k, marks[4]);
            enqueue_exchange(&p, me->rank, play->size, k, there + (size_t)k * n_bytes);
            p.device->ops->mark(p.device, DEVICE_TRAFFIC + 5 + k, marks[k]);
            p.device->ops->wait_mark(p.device, DEVICE_COMPUTE, marks[k]);
        }
        copy(&p, host, there, 4 * n_bytes);
        CHECK(p.device->ops->wait(p.device, DEVICE_COMPUTE, &err) == 0);
        for (int k = 2; k < 4; k++)
            for (int i = 0; i < N_ELEMENTS; i++)
                CHECK(host[k * N_ELEMENTS + i] ==
                      ring_number((me->rank + exchanges[k].step + play->size) % play->size, k == 2,
                                  run, i));
    }
    CHECK(comm_check(p.comm, &err) == 0);
    for (int k = 0; k < 5; k++)
        p.device->ops->mark_destroy(p.device, marks[k]);
    p.device->ops->release(p.device, there);
    p.device->ops->release_pinned(p.device, host);
    close_place(&p);
    return NULL;
}

static void play_ranks(struct play *play, void *(*fn)(void *))
{
    struct player players[N_RANKS_MAX];
    pthread_t threads[N_RANKS_MAX];
    struct err err;

    play->way = ENQUEUED;
    assert_int_equal(comm_hub_create(&play->hub, play->size, &err), 0);
    for (int r = 0; r < play->size; r++) {
        players[r] = (struct player){ play, r };
        assert_int_equal(pthread_create(&threads[r], NULL, fn, &players[r]), 0);
    }
    for (int r = 0; r < play->size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(play->hub);
}

/* No send waits for another's receive that is behind it. Of two ranks next and previous are one. */
static void ring(void **state)
{
    (void)state;
    for (int s = 1; s < COUNT(sizes); s++)
        for (int i = 0; i < COUNT(orders); i++) {
            struct play play = { .size = sizes[s] };

            set_order(orders[i]);
            play_ranks(&play, ring_rank);
        }
}

/* Unequal calls: who comes second is told at once, the first when he asks how it goes. */
static void *unequal_rank(void *argument)
{
    struct player *me = argument;
    struct place p = open_place(me->play, me->rank);
    void *memory = allocate(&p, 64);
    struct comm_call call = { COMM_ALL_GATHER, memory, memory, me->rank ? 16 : 8, 0 };
    struct err err = { .code = ERR_NONE };

    int status = comm_enqueue(p.group, &call, QUEUE, &err);
    CHECK(comm_barrier(p.group, &err) == 0);
    CHECK(comm_check(p.comm, &err) < 0);
    CHECK(err.code == ERR_PEER);
    CHECK(strstr(err.text, "mismatch"));
    /* It was given up: nobody waits for the others any more. */
    CHECK(p.device->ops->wait(p.device, QUEUE, &err) == 0);
    p.device->ops->release(p.device, memory);
    close_place(&p);
    return (void *)(intptr_t)status;
}

static void unequal_calls(void **state)
{
    struct play play = { .size = 2 };

    (void)state;
    play_ranks(&play, unequal_rank);
}

/* Without the wait for the compute queue's mark some order of the queues must show it. */
static void missing_mark(void **state)
{
    struct play p = make(OP_ALL_GATHER, 2, dense(3, 7, DTYPE_F32), dense(6, 7, DTYPE_F32));
    int is_seen = 0;

    (void)state;
    p.leaves_mark = 1;
    begin(&p);
    play_way(&p, ON_HOST);
    for (int i = 0; i < COUNT(orders); i++) {
        set_order(orders[i]);
        play_way(&p, ENQUEUED);
        is_seen |= !is_equal(&p, ENQUEUED);
    }
    assert_true(is_seen);
    end(&p);
}

/* ---- NCCL's own sums ---- */

static double value_of(enum dtype dtype, const unsigned char *values, size_t i)
{
    return dtype == DTYPE_F32 ? ((const float *)(const void *)values)[i]
                              : bf16_to_float(((const uint16_t *)(const void *)values)[i]);
}

/* The largest difference to the fixed order, as a part of the largest sum. */
static double difference(const struct play *play)
{
    enum dtype dtype = play->shape.out[0].dtype;
    size_t n = play->out_bytes * N_RUNS / dtype_bytes(dtype);
    double most = 0, largest = 0;

    for (int r = 0; r < play->size; r++)
        for (size_t i = 0; i < n; i++) {
            double a = value_of(dtype, play->out[ON_HOST][r], i);

            most = fmax(most, fabs(a - value_of(dtype, play->out[FAST][r], i)));
            largest = fmax(largest, fabs(a));
        }
    return most / largest;
}

/* Near the fixed sums, whatever the streams' order; of three and more ranks not the same bits. */
static void check_fast(struct play play)
{
    double room = (play.shape.out[0].dtype == DTYPE_F32 ? 0x1p-23 : 0x1p-8) * play.size;

    begin(&play);
    play_way(&play, ON_HOST);
    for (int i = 0; i < COUNT(orders); i++) {
        set_order(orders[i]);
        play_way(&play, FAST);
        if (!(difference(&play) <= room))
            fail_msg("%s over %d ranks is off by %g, more than %g", op_info(play.shape.kind)->name,
                     play.size, difference(&play), room);
        assert_true(play.size == 2 || !is_equal(&play, FAST));
    }
    end(&play);
}

static void sums_of_nccl(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < 2; d++) {
            struct play p = make(OP_REDUCE_SCATTER, sizes[s], dense(3 * sizes[s], 75, dtypes[d]),
                                 dense(3, 75, dtypes[d]));

            check_fast(p);
            p.adds = 1;
            check_fast(p);
            check_fast(
                make(OP_ALL_REDUCE, sizes[s], dense(7, 53, dtypes[d]), dense(7, 53, dtypes[d])));
        }
}

static void scratch_of_fast_sums(void **state)
{
    struct play p = make(OP_REDUCE_SCATTER, 8, dense(24, 75, DTYPE_BF16), dense(3, 75, DTYPE_BF16));

    (void)state;
    assert_int_equal(collective_scratch_bytes(&p.shape, 8, 0), 8 * 3 * 75 * 2);
    assert_int_equal(collective_scratch_bytes(&p.shape, 8, 1), 3 * 75 * 2);
    p.shape.kind = OP_ALL_REDUCE;
    assert_int_equal(collective_scratch_bytes(&p.shape, 8, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather),
        cmocka_unit_test(reduce_scatter),
        cmocka_unit_test(reduce_scatter_that_adds),
        cmocka_unit_test(all_reduce),
        cmocka_unit_test(all_reduce_of_scalars),
        cmocka_unit_test(heads),
        cmocka_unit_test(missing_mark),
        cmocka_unit_test(ring),
        cmocka_unit_test(unequal_calls),
        cmocka_unit_test(sums_of_nccl),
        cmocka_unit_test(scratch_of_fast_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
