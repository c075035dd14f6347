/*
 * collective_test.c - collectives of values in a device's memory: the bits of those in the host's
 *
 * Ranks are threads, each with an emulated GPU of its own. Every kind is done on the host by
 * comm_thread, which test/run/collective_test.c holds against the tree written down; then staged,
 * and enqueued with NCCL, under every order in which queues may run (LMTRAIN_EMULATE_STREAMS).
 * Inputs are written on the compute queue just before, and read and overwritten there just after:
 * an event that is missed shows as wrong bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/pause.h"
#include "ops/op_info.h"
#include "run/collective.h"
#include "support/gpu_ranks.h"

enum { N_RUNS = 3, N_GUARD = 64 };
struct play {
    struct op_shape shape;
    struct gpu_ranks ranks;
    bool adds;         /* to what is there */
    bool leaves_event; /* breaks: the queue does not wait for the compute queue's event */
    size_t in_bytes, out_bytes;
    unsigned char *out[N_GPU_WAYS][GPU_RANKS_MAX]; /* of all runs, one behind the other */
};

/* A slice's rows lie among all ranks' rows. */
static size_t extent(const struct play *play, const struct tensor *t)
{
    int64_t all = play->shape.attributes.part_rows * play->ranks.size;
    bool is_all = t->rows > play->shape.in[0].rows || t->rows > play->shape.out[0].rows;

    return (size_t)((all && is_all ? all : t->rows) * t->stride) * dtype_bytes(t->dtype);
}

/* ---- threads may not use cmocka: they CHECK ---- */

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

    if (!play->leaves_event)
        device->ops->event_wait(device, c->base.queue, c->base.given);
    CHECK(c->base.mover->enqueue(&c->base, &err) == 0);
    device->ops->event_record(device, c->base.queue, c->base.done);
    device->ops->event_wait(device, DEVICE_COMPUTE, c->base.done);
}

static void run_once(const struct play *play, struct collective *c)
{
    if (c->base.device)
        c->base.device->ops->event_record(c->base.device, DEVICE_COMPUTE, c->base.given);
    if (play->ranks.way >= ENQUEUED)
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
        double x =
            ldexp((double)rng_normal(block.word[0], block.word[1]), (int)(block.word[2] % 20));
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
    void *in, *out, *scratch, *host_tables;
    unsigned char *staging[3];
    size_t scratch_bytes;
};

static struct operands make_operands(const struct play *play, const struct gpu_rank *p, int rank)
{
    struct operands o = { .scratch_bytes = collective_scratch_bytes(&play->shape, play->ranks.size,
                                                                    play->ranks.way == FAST) };

    o.from = gpu_rank_allocate_pinned(p, play->in_bytes * N_RUNS);
    o.to = gpu_rank_allocate_pinned(p, play->out_bytes * N_RUNS);
    o.junk = gpu_rank_allocate_pinned(p, play->in_bytes);
    memset(o.junk, 0xff, play->in_bytes);
    for (int run = 0; run < N_RUNS; run++)
        fill(play->shape.in[0].dtype, o.from + (size_t)run * play->in_bytes, play->in_bytes, rank,
             run);
    o.in = gpu_rank_allocate(p, play->in_bytes);
    o.out = gpu_rank_allocate(p, play->out_bytes);
    o.scratch = gpu_rank_allocate(p, o.scratch_bytes + N_GUARD);
    o.host_tables =
        gpu_rank_allocate_pinned(p, collective_host_bytes(&play->shape, play->ranks.size) + 1);
    p->device->ops->fill(p->device, DEVICE_COMPUTE, o.scratch, 0xff, o.scratch_bytes + N_GUARD);
    if (play->ranks.way == STAGED) {
        o.staging[0] = gpu_rank_allocate_pinned(p, play->in_bytes);
        o.staging[1] = gpu_rank_allocate_pinned(p, play->out_bytes);
        o.staging[2] = gpu_rank_allocate_pinned(p, o.scratch_bytes + 1);
    }
    return o;
}

static void check_guard(const struct gpu_rank *p, const struct operands *o)
{
    unsigned char guard[N_GUARD];
    struct err err;

    gpu_rank_copy(p, guard, (unsigned char *)o->scratch + o->scratch_bytes, N_GUARD);
    CHECK(p->device->ops->wait(p->device, DEVICE_COMPUTE, &err) == 0);
    for (int i = 0; i < N_GUARD; i++)
        CHECK(guard[i] == 0xff);
}

static void drop_operands(const struct gpu_rank *p, struct operands *o)
{
    p->device->ops->release(p->device, o->in);
    p->device->ops->release(p->device, o->out);
    p->device->ops->release(p->device, o->scratch);
    p->device->ops->release_pinned(p->device, o->from);
    p->device->ops->release_pinned(p->device, o->to);
    p->device->ops->release_pinned(p->device, o->junk);
    p->device->ops->release_pinned(p->device, o->host_tables);
    for (int i = 0; i < 3; i++)
        if (o->staging[i])
            p->device->ops->release_pinned(p->device, o->staging[i]);
}

static struct collective make_collective(const struct play *play, const struct gpu_rank *p,
                                         const struct operands *o, int rank)
{
    struct collective c = collective_of(&play->shape, p->group, o->scratch);
    struct err err;

    c.base.first = !play->adds;
    c.base.device = p->kernels ? p->device : NULL;
    c.base.queue = GPU_RANK_QUEUE;
    c.is_fast = play->ranks.way == FAST;
    c.kernels = p->kernels;
    /* Each sends to the next: who comes first in the ring begins with that, the others receive. */
    if (c.kind == OP_SEND)
        c.peer = (rank + 1) % play->ranks.size;
    c.in.data = o->in;
    c.out.data = o->out;
    if (play->ranks.way == STAGED) {
        c.device_in = c.in;
        c.device_out = c.out;
        c.in.data = o->staging[0];
        c.out.data = o->staging[1];
        c.scratch = o->staging[2];
    } else if (p->kernels && collective_host_bytes(&play->shape, play->ranks.size)) {
        c.host_tables = o->host_tables;
    }
    if (p->kernels) {
        CHECK(p->device->ops->event_create(p->device, 0, &c.base.given, &err) == 0);
        CHECK(p->device->ops->event_create(p->device, 0, &c.base.done, &err) == 0);
    }
    return c;
}

static void *play_rank(void *argument)
{
    struct gpu_rank_of *me = argument;
    struct play *play = me->context;
    struct gpu_rank p = gpu_rank_open(&play->ranks, me->rank);
    struct operands o = make_operands(play, &p, me->rank);
    struct collective c = make_collective(play, &p, &o, me->rank);
    struct err err;

    for (int run = 0; run < N_RUNS; run++) {
        gpu_rank_copy(&p, o.in, o.from + (size_t)run * play->in_bytes, play->in_bytes);
        if (run == 0 || !play->adds)
            p.device->ops->fill(p.device, DEVICE_COMPUTE, o.out, 0x3c, play->out_bytes);
        run_once(play, &c);
        gpu_rank_copy(&p, o.to + (size_t)run * play->out_bytes, o.out, play->out_bytes);
        gpu_rank_copy(&p, o.in, o.junk, play->in_bytes);
    }
    CHECK(p.device->ops->wait(p.device, DEVICE_COMPUTE, &err) == 0);
    memcpy(play->out[play->ranks.way][me->rank], o.to, play->out_bytes * N_RUNS);
    check_guard(&p, &o);
    if (c.base.given) {
        p.device->ops->event_destroy(p.device, c.base.given);
        p.device->ops->event_destroy(p.device, c.base.done);
    }
    CHECK(comm_barrier(p.group, &err) == 0);
    drop_operands(&p, &o);
    gpu_rank_close(&p);
    return NULL;
}

/* ---- and the tests may ---- */

static void begin(struct play *play)
{
    struct err err;

    if (op_check(&play->shape, &err) < 0)
        fail_msg("%s", err.text);
    play->in_bytes = extent(play, &play->shape.in[0]);
    play->out_bytes = extent(play, &play->shape.out[0]);
    for (int w = 0; w < N_GPU_WAYS; w++)
        for (int r = 0; r < play->ranks.size; r++)
            play->out[w][r] = test_malloc(play->out_bytes * N_RUNS);
}

static void end(struct play *play)
{
    for (int w = 0; w < N_GPU_WAYS; w++)
        for (int r = 0; r < play->ranks.size; r++)
            test_free(play->out[w][r]);
}

static void play_way(struct play *play, enum gpu_way way)
{
    play->ranks.way = way;
    gpu_ranks_run(&play->ranks, play_rank, play);
}

static bool is_equal(const struct play *play, enum gpu_way way)
{
    for (int r = 0; r < play->ranks.size; r++)
        if (memcmp(play->out[ON_HOST][r], play->out[way][r], play->out_bytes * N_RUNS) != 0)
            return false;
    return true;
}

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static void check(struct play play)
{
    begin(&play);
    play_way(&play, ON_HOST);
    for (int i = 0; i < GPU_N_ORDERS; i++)
        for (enum gpu_way way = STAGED; way <= ENQUEUED; way++) {
            gpu_set_order(i);
            play_way(&play, way);
            if (!is_equal(&play, way))
                fail_msg("%s of %s over %d ranks differs, %s, streams %s",
                         op_info(play.shape.kind)->name, dtype_name(play.shape.in[0].dtype),
                         play.ranks.size, gpu_way_names[way], gpu_orders[i]);
        }
    end(&play);
}

static struct tensor dense(int64_t rows, int64_t cols, enum dtype dtype)
{
    return (struct tensor){ NULL, rows, cols, cols, dtype };
}

static struct play make(enum op_kind kind, int size, struct tensor in, struct tensor out)
{
    struct play p = { .shape = { .kind = kind, .attributes = { .axis = AXIS_TP } },
                      .ranks.size = size };

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

/* h and g heads of 8 columns; padding: between rows; cut: rows that are not of the slice. */
static void check_exchange(int size, int h, int g, enum dtype dtype, int padding, int cut)
{
    enum { E = 8, ROWS = 3 };
    int all = (1 + padding % 2) * ROWS, kv = g && g < size ? 1 : g / size;
    struct tensor x = dense(all - cut, (h + 2 * g) * E, dtype);
    struct tensor y = dense(size * (all - cut), (h / size + 2 * kv) * E, dtype);

    x.stride += padding;
    y.stride += padding;
    for (int b = 0; b < 2; b++) {
        struct play p = make(b ? OP_HEADS_TO_ROWS : OP_ROWS_TO_HEADS, size, b ? y : x, b ? x : y);

        p.shape.attributes.n_heads = h;
        p.shape.attributes.n_kv_heads = g;
        p.shape.attributes.head_dim = E;
        p.shape.attributes.seq_len = ROWS;
        p.shape.attributes.part_rows = cut ? all : 0;
        p.shape.attributes.first = cut;
        check(p);
    }
}

static void rows_and_heads(void **state)
{
    static const struct {
        int size, h, g;
    } cases[] = { { 2, 4, 2 }, { 2, 4, 1 }, { 3, 6, 1 }, { 4, 8, 2 }, { 4, 4, 0 } };

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        check_exchange(cases[i].size, cases[i].h, cases[i].g, dtypes[i % 2], 8, 0);
        check_exchange(cases[i].size, cases[i].h, cases[i].g, dtypes[(i + 1) % 2], 3, 2);
    }
}

/* padding: of the part and of the whole; cut: rows of the part that are not of the slice. */
static void check_sequence(int size, int zigzag, enum dtype dtype, const int padding[2], int cut)
{
    enum { ROWS = 6, N = 8 };
    int sequences = zigzag ? 1 + padding[0] % 2 : 1 + padding[1] % 2, all = sequences * ROWS;
    struct tensor part = dense(all - cut, N, dtype), whole = dense(size * (all - cut), N, dtype);

    part.stride += padding[0];
    whole.stride += padding[1];
    for (int back = 0; back < 2; back++) {
        struct play p = make(back ? OP_SCATTER_SEQUENCE : OP_GATHER_SEQUENCE, size,
                             back ? whole : part, back ? part : whole);

        p.shape.attributes.seq_len = ROWS;
        p.shape.attributes.zigzag = zigzag;
        p.shape.attributes.part_rows = cut ? all : 0;
        p.shape.attributes.first = cut / 2;
        check(p);
    }
}

static void whole_sequences(void **state)
{
    static const int paddings[][2] = { { 0, 0 }, { 3, 0 }, { 8, 5 } };

    (void)state;
    for (int size = 2; size <= 4; size++)
        for (int form = 0; form < 4; form++)
            for (int k = 0; k < COUNT(paddings); k++)
                check_sequence(size, form % 2, dtypes[(size + k) % COUNT(dtypes)], paddings[k],
                               form / 2 * 3);
}

/* Of views, to views, both ways; of two ranks both neighbours are one. */
static void rotate(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int i = 0; i < 4; i++) {
            struct tensor x = { NULL, 5, 7, i & 1 ? 10 : 7, dtypes[s % COUNT(dtypes)] };
            struct tensor y = { NULL, 5, 7, i & 2 ? 9 : 7, x.dtype };
            struct play p = make(OP_ROTATE, sizes[s], x, y);

            p.shape.attributes.peer = (s + i) % 2 ? 1 : -1;
            check(p);
        }
}

/* Of a row and of more, of a part that is wider than its columns and one that is not. */
static void windows_of_sequences(void **state)
{
    enum { CHUNK = 6, N = 8 };

    (void)state;
    for (int size = 2; size <= 4; size++)
        for (int window = 1; window <= CHUNK; window += window == 1 ? 1 : 4) {
            int sequences = size == 3 ? 3 : 1;
            enum dtype dtype = dtypes[(size + window) % COUNT(dtypes)];
            struct tensor part = dense(sequences * 2 * CHUNK, N, dtype);
            struct tensor seen = dense(sequences * 2 * ops_window_rows(CHUNK, window), N, dtype);

            part.stride += size == 4 ? 0 : 3;
            seen.stride += window == 2 ? 5 : 0;
            for (int back = 0; back < 2; back++) {
                struct play p = make(back ? OP_SCATTER_WINDOW : OP_GATHER_WINDOW, size,
                                     back ? seen : part, back ? part : seen);

                p.shape.attributes.seq_len = 2 * CHUNK;
                p.shape.attributes.window = window;
                check(p);
            }
        }
}

/* Without the wait for the compute queue's event some order of the queues must show it. */
static void missing_event(void **state)
{
    struct play p = make(OP_ALL_GATHER, 2, dense(3, 7, DTYPE_F32), dense(6, 7, DTYPE_F32));
    int is_seen = 0;

    (void)state;
    p.leaves_event = 1;
    begin(&p);
    play_way(&p, ON_HOST);
    for (int i = 0; i < GPU_N_ORDERS; i++) {
        gpu_set_order(i);
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

    for (int r = 0; r < play->ranks.size; r++)
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
    double room = (play.shape.out[0].dtype == DTYPE_F32 ? 0x1p-23 : 0x1p-8) * play.ranks.size;

    begin(&play);
    play_way(&play, ON_HOST);
    for (int i = 0; i < GPU_N_ORDERS; i++) {
        gpu_set_order(i);
        play_way(&play, FAST);
        if (!(difference(&play) <= room))
            fail_msg("%s over %d ranks is off by %g, more than %g", op_info(play.shape.kind)->name,
                     play.ranks.size, difference(&play), room);
        assert_true(play.ranks.size == 2 || !is_equal(&play, FAST));
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
        cmocka_unit_test(rows_and_heads),
        cmocka_unit_test(whole_sequences),
        cmocka_unit_test(rotate),
        cmocka_unit_test(windows_of_sequences),
        cmocka_unit_test(missing_event),
        cmocka_unit_test(sums_of_nccl),
        cmocka_unit_test(scratch_of_fast_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
