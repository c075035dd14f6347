/*
 * collective_test.c - each collective over threads as ranks, to the bit
 *
 * Ranks' inputs are numbers of many magnitudes, so that every order of adding rounds differently;
 * sums are held against the tree as design.md defines it. Scratch is exactly as large as is asked
 * for, with a guard behind it.
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

#define N_RANKS_MAX 8
#define N_GUARD 64

struct play {
    struct op_shape shape;
    int size;
    int adds;     /* to what is there */
    int in_place; /* out is in's memory */
    unsigned char *in[N_RANKS_MAX], *out[N_RANKS_MAX], *before[N_RANKS_MAX];
    size_t in_bytes, out_bytes;
    struct comm_hub *hub;
};

struct player {
    struct play *play;
    int rank;
};

#define N_NUMBERS 36001

static double numbers[N_RANKS_MAX][N_NUMBERS];

static int fill_numbers(void **state)
{
    (void)state;
    for (int r = 0; r < N_RANKS_MAX; r++)
        for (int i = 0; i < N_NUMBERS; i++) {
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

static double get(enum dtype dtype, const void *values, int64_t i)
{
    if (dtype == DTYPE_F64)
        return ((const double *)values)[i];
    if (dtype == DTYPE_F32)
        return ((const float *)values)[i];
    return bf16_to_float(((const uint16_t *)values)[i]);
}

/* The sum of n numbers, rounded to fp32 at each add but for fp64. */
static double tree(enum dtype dtype, const double *x, int n)
{
    int left = 1;

    if (n == 1)
        return x[0];
    while (2 * left < n)
        left *= 2;
    double sum = tree(dtype, x, left) + tree(dtype, x + left, n - left);
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

static void *play_rank(void *argument)
{
    struct player *me = argument;
    struct play *play = me->play;
    size_t scratch_bytes = collective_scratch_bytes(&play->shape, play->size, 0);
    unsigned char *scratch = malloc(scratch_bytes + N_GUARD);
    int ranks[N_RANKS_MAX];
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
    c.base.first = !play->adds;
    c.in.data = play->in[me->rank];
    c.out.data = play->out[me->rank];
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
    free(scratch);
    return NULL;
}

static size_t bytes_of(const struct tensor *t)
{
    return (size_t)(t->rows * t->stride) * dtype_bytes(t->dtype);
}

/* Afterwards play has what each rank was given, in `before`, and got, in `out`. */
static void play(struct play *play)
{
    struct player players[N_RANKS_MAX];
    pthread_t threads[N_RANKS_MAX];
    struct tensor *in = &play->shape.in[0], *out = &play->shape.out[0];
    struct err err;

    if (op_check(&play->shape, &err) < 0)
        fail_msg("%s", err.text);
    play->in_bytes = bytes_of(in);
    play->out_bytes = bytes_of(out);
    assert_int_equal(comm_hub_create(&play->hub, play->size, &err), 0);
    for (int r = 0; r < play->size; r++) {
        play->in[r] = test_malloc(play->in_bytes);
        play->before[r] = test_malloc(play->in_bytes);
        play->out[r] = play->in_place ? play->in[r] : test_calloc(1, play->out_bytes);
        for (int64_t i = 0; i < in->rows * in->stride; i++)
            put(in->dtype, play->in[r], i, numbers[r][i]);
        memcpy(play->before[r], play->in[r], play->in_bytes);
        players[r] = (struct player){ play, r };
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, &players[r]), 0);
    }
    for (int r = 0; r < play->size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(play->hub);
}

static void release(struct play *play)
{
    for (int r = 0; r < play->size; r++) {
        if (!play->in_place)
            test_free(play->out[r]);
        test_free(play->before[r]);
        test_free(play->in[r]);
    }
}

/* Element i of rank r's output. */
static void expect(const struct play *play, int r, int64_t i, double wanted)
{
    unsigned char bytes[8];
    enum dtype dtype = play->shape.out[0].dtype;
    size_t n = dtype_bytes(dtype);

    put(dtype, bytes, 0, wanted);
    if (memcmp(bytes, play->out[r] + (size_t)i * n, n) != 0)
        fail_msg("%s of %s over %d ranks: rank %d has %.9g at %lld, wanted %.9g",
                 op_info(play->shape.kind)->name, dtype_name(dtype), play->size, r,
                 get(dtype, play->out[r], i), (long long)i, wanted);
}

/* The tree sum over ranks [first, first + n) of their inputs' element i. */
static double sum_at(const struct play *play, int first, int n, int64_t i)
{
    double x[N_RANKS_MAX];

    for (int r = 0; r < n; r++)
        x[r] = get(play->shape.in[0].dtype, play->before[first + r], i);
    return tree(play->shape.in[0].dtype, x, n);
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
static const int sizes[] = { 1, 2, 3, 4, 5, 8 };
#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

/* ---- tests ---- */

static void all_gather_of_rows(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            int size = sizes[s];
            struct play p =
                make(OP_ALL_GATHER, size, dense(3, 7, dtypes[d]), dense(3 * size, 7, dtypes[d]));

            play(&p);
            for (int r = 0; r < size; r++)
                for (int k = 0; k < size; k++)
                    assert_memory_equal(p.out[r] + (size_t)k * p.in_bytes, p.before[k], p.in_bytes);
            release(&p);
        }
}

static void reduce_scatter_of_rows(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            int size = sizes[s];
            struct play p = make(OP_REDUCE_SCATTER, size, dense(3 * size, 500, dtypes[d]),
                                 dense(3, 500, dtypes[d]));

            play(&p);
            for (int r = 0; r < size; r++)
                for (int i = 0; i < 3 * 500; i++)
                    expect(&p, r, i, sum_at(&p, 0, size, r * 3 * 500 + i));
            release(&p);
        }
}

/* A sum is complete before it is added. */
static void reduce_scatter_that_adds(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++) {
        int size = sizes[s];
        struct play p =
            make(OP_REDUCE_SCATTER, size, dense(1, 90 * size, DTYPE_F32), dense(1, 90, DTYPE_F32));

        p.adds = 1;
        play(&p);
        for (int r = 0; r < size; r++)
            for (int i = 0; i < 90; i++)
                expect(&p, r, i, (double)((float)i + (float)sum_at(&p, 0, size, r * 90 + i)));
        release(&p);
    }
}

static void check_all_reduce(int size, int64_t rows, int64_t cols, enum dtype dtype, int in_place)
{
    struct play p = make(OP_ALL_REDUCE, size, dense(rows, cols, dtype), dense(rows, cols, dtype));

    p.in_place = in_place;
    play(&p);
    for (int64_t i = 0; i < rows * cols; i++) {
        double wanted = sum_at(&p, 0, size, i);

        for (int r = 0; r < size; r++)
            expect(&p, r, i, wanted);
    }
    release(&p);
}

/* Small, and of parts: with and without a rest that does not divide. */
static void all_reduce(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int in_place = 0; in_place < 2; in_place++) {
                check_all_reduce(sizes[s], 1, 1, dtypes[d], in_place);
                check_all_reduce(sizes[s], 3, 17, dtypes[d], in_place);
                check_all_reduce(sizes[s], 1200, 30, dtypes[d], in_place);
                check_all_reduce(sizes[s], 1, N_NUMBERS, dtypes[d], in_place);
            }
}

static void all_reduce_of_scalars(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++) {
        struct play p =
            make(OP_ALL_REDUCE_SCALAR, sizes[s], dense(1, 5, DTYPE_F64), dense(1, 5, DTYPE_F64));

        play(&p);
        for (int r = 0; r < p.size; r++)
            for (int i = 0; i < 5; i++)
                expect(&p, r, i, sum_at(&p, 0, p.size, i));
        release(&p);
    }
}

/* ---- a kv head that several ranks share ---- */

#define TOKENS 5
#define HEADS 3
#define HEAD_DIM 12
#define Q (HEADS * HEAD_DIM)

static const struct {
    int size, group;
} shared[] = { { 2, 2 }, { 3, 3 }, { 4, 2 }, { 4, 4 }, { 8, 2 }, { 8, 4 }, { 6, 3 } };

/* padding: columns between rows, of both operands. */
static struct play make_heads(enum op_kind kind, int i, enum dtype dtype, int padding)
{
    int64_t w = HEAD_DIM / shared[i].group;
    struct tensor part = { NULL, TOKENS, Q + 2 * w, Q + 2 * w + padding, dtype };
    struct tensor whole = { NULL, TOKENS, Q + 2 * HEAD_DIM, Q + 2 * HEAD_DIM + padding, dtype };
    int gathers = kind == OP_GATHER_HEADS;
    struct play p = make(kind, shared[i].size, gathers ? part : whole, gathers ? whole : part);

    p.shape.attributes.n_heads = HEADS;
    p.shape.attributes.n_kv_heads = 1;
    p.shape.attributes.head_dim = HEAD_DIM;
    p.shape.attributes.group = shared[i].group;
    return p;
}

static void check_gathered(const struct play *p, int r, int group)
{
    const struct tensor *in = &p->shape.in[0], *out = &p->shape.out[0];
    int w = HEAD_DIM / group, first = r / group * group;

    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < Q; c++)
            expect(p, r, t * out->stride + c, get(in->dtype, p->before[r], t * in->stride + c));
        for (int c = 0; c < 2 * HEAD_DIM; c++) {
            int from = first + c % HEAD_DIM / w;
            int64_t at = t * in->stride + Q + c / HEAD_DIM * w + c % w;

            expect(p, r, t * out->stride + Q + c, get(in->dtype, p->before[from], at));
        }
    }
}

static void gather_heads(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(shared); i++)
        for (int padding = 0; padding < 4; padding += 3)
            for (int d = 0; d < 2; d++) {
                struct play p = make_heads(OP_GATHER_HEADS, i, dtypes[d], padding);

                play(&p);
                for (int r = 0; r < p.size; r++)
                    check_gathered(&p, r, shared[i].group);
                release(&p);
            }
}

static void check_scattered(const struct play *p, int r, int group)
{
    const struct tensor *in = &p->shape.in[0], *out = &p->shape.out[0];
    int w = HEAD_DIM / group, first = r / group * group;

    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < Q; c++)
            expect(p, r, t * out->stride + c, get(in->dtype, p->before[r], t * in->stride + c));
        for (int c = 0; c < 2 * w; c++) {
            int64_t at = t * in->stride + Q + c / w * HEAD_DIM + (r - first) * w + c % w;

            expect(p, r, t * out->stride + Q + c, sum_at(p, first, group, at));
        }
    }
}

static void gather_heads_grad(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(shared); i++)
        for (int padding = 0; padding < 4; padding += 3)
            for (int d = 0; d < 2; d++) {
                struct play p = make_heads(OP_GATHER_HEADS_GRAD, i, dtypes[d], padding);

                play(&p);
                for (int r = 0; r < p.size; r++)
                    check_scattered(&p, r, shared[i].group);
                release(&p);
            }
}

/* Gathers and transfers need none; sums of many ranks' large values no more than some of them. */
static void scratch(void **state)
{
    struct play p = make(OP_ALL_GATHER, 4, dense(3, 7, DTYPE_F32), dense(12, 7, DTYPE_F32));
    int64_t n = 1 << 20;

    (void)state;
    assert_int_equal(collective_scratch_bytes(&p.shape, 4, 0), 0);
    p = make(OP_ALL_REDUCE, 4, dense(1, n, DTYPE_BF16), dense(1, n, DTYPE_BF16));
    assert_int_equal(collective_scratch_bytes(&p.shape, 4, 0), 2 * n);
    assert_int_equal(collective_scratch_bytes(&p.shape, 1024, 0), 2 * n);
    p.shape.in[0] = p.shape.out[0] = dense(1, 16, DTYPE_F32);
    assert_int_equal(collective_scratch_bytes(&p.shape, 4, 0), 4 * 16 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather_of_rows),       cmocka_unit_test(reduce_scatter_of_rows),
        cmocka_unit_test(reduce_scatter_that_adds), cmocka_unit_test(all_reduce),
        cmocka_unit_test(all_reduce_of_scalars),    cmocka_unit_test(gather_heads),
        cmocka_unit_test(gather_heads_grad),        cmocka_unit_test(scratch),
    };

    return cmocka_run_group_tests(tests, fill_numbers, NULL);
}
