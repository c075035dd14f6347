/*
 * What context parallelism promises of attention: a rank with a part of the queries, in two chunks
 * of the sequence from either end, or of the heads, or both, has the bits that all queries and all
 * heads together have; also if it has no keys but those that its windows see.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "layout/context.h"
#include "support/op_case.h"
#include "support/test_device.h"

struct form {
    int n_heads, n_kv_heads, head_dim, sequences, chunk;
};

struct view {
    int window, document;
    bool alibi;
    double p;
};

/* Chunks o and 2 q - 1 - o of 2 q, all rows where q is 1; heads part i of u. */
struct rank {
    int o, q, i, u;
    bool sees_windows; /* its keys are those of gather_window */
};

/* Operands of a kind, as sets of inputs or outputs by bit. */
struct operands {
    unsigned q_rows; /* inputs by query; of the whole sequence are the others, but sample */
    unsigned q_cols, kv_cols, h_cols; /* inputs' columns are of query heads; kv heads; one a head */
    unsigned out_q, out_kv, out_h;
    int sample;
};

static const struct operands forward = {
    .q_rows = 1u << ATTENTION_Q | 1u << ATTENTION_FIRST,
    .q_cols = 1u << ATTENTION_Q,
    .kv_cols = 1u << ATTENTION_K | 1u << ATTENTION_V,
    .out_q = 1u << ATTENTION_OUT,
    .out_h = 1u << ATTENTION_LSE,
    .sample = ATTENTION_SAMPLE,
};

static const struct operands backward = {
    .q_rows = 1u << ATTENTION_GRAD_DOUT | 1u << ATTENTION_GRAD_Q | 1u << ATTENTION_GRAD_OUT |
              1u << ATTENTION_GRAD_LSE | 1u << ATTENTION_GRAD_FIRST,
    .q_cols = 1u << ATTENTION_GRAD_DOUT | 1u << ATTENTION_GRAD_Q | 1u << ATTENTION_GRAD_OUT,
    .kv_cols = 1u << ATTENTION_GRAD_K | 1u << ATTENTION_GRAD_V,
    .h_cols = 1u << ATTENTION_GRAD_LSE,
    .out_q = 1u << ATTENTION_GRAD_DQ,
    .out_kv = 1u << ATTENTION_GRAD_DK | 1u << ATTENTION_GRAD_DV,
    .sample = ATTENTION_GRAD_SAMPLE,
};

static const struct operands *operands_of(enum op_kind kind)
{
    return kind == OP_ATTENTION_GRAD ? &backward : &forward;
}

/* One rank's rows and columns of the whole's. */
struct slice {
    const struct form *form;
    struct rank rank;
    int seq_len, n_rows; /* of a sequence: of all, of the rank */
    int head, n_heads;   /* the first, how many */
    int kv_head, n_kv_heads;
};

static struct slice slice_of(const struct form *f, struct rank r)
{
    int seq_len = 2 * r.q * f->chunk;

    return (struct slice){ .form = f,
                           .rank = r,
                           .seq_len = seq_len,
                           .n_rows = seq_len / r.q,
                           .head = r.i * f->n_heads / r.u,
                           .n_heads = f->n_heads / r.u,
                           .kv_head = r.i * f->n_kv_heads / r.u,
                           .n_kv_heads = max_int(1, f->n_kv_heads / r.u) };
}

/* The place in the sequence of its i-th row. */
static int row_of(const struct slice *s, int i)
{
    int far = 2 * s->rank.q - 1 - s->rank.o, chunk = s->form->chunk;

    return i < chunk ? s->rank.o * chunk + i : far * chunk + i - chunk;
}

/* Elements of the rank: rows by query or all; columns from `col` on. */
static void take(const struct slice *s, const struct tensor *to, const struct tensor *whole,
                 bool by_query, int64_t col)
{
    for (int64_t row = 0; row < to->rows; row++) {
        int64_t from = row;

        if (by_query)
            from = row / s->n_rows * s->seq_len + row_of(s, (int)(row % s->n_rows));
        for (int64_t i = 0; i < to->cols; i++)
            tensor_set(to, row, i, tensor_get(whole, from, col + i));
    }
}

/* Rows of keys of a sequence. */
static int n_keys(const struct slice *s, int window)
{
    return s->rank.sees_windows ? 2 * (int)ops_window_rows(s->form->chunk, window) : s->seq_len;
}

/* Elements of keys, or values, that windows see; zero where there is nothing to see. */
static void take_windows(const struct slice *s, const struct tensor *to, const struct tensor *whole,
                         int window, int64_t col)
{
    int64_t chunk = s->form->chunk, span = ops_window_rows(chunk, window);

    for (int64_t row = 0; row < to->rows; row++) {
        int number = row % (2 * span) < span ? s->rank.o : 2 * s->rank.q - 1 - s->rank.o;
        int64_t from = ops_window_begin(chunk, window, number) + row % span;
        bool is_seen =
            from >= max_i64(0, number * chunk - window + 1) && from < (number + 1) * chunk;

        for (int64_t i = 0; i < to->cols; i++)
            tensor_set(to, row, i,
                       is_seen ? tensor_get(whole, row / (2 * span) * s->seq_len + from, col + i)
                               : 0);
    }
}

/* Inputs behind sample: head_offset, first, last. */
static void set_documents(struct op_case *c, const struct form *f, int document, int seq_len)
{
    int first = operands_of(c->op.kind)->sample + 2;
    int64_t rows = (int64_t)f->sequences * seq_len;

    op_case_input(c, first, rows, 1, DTYPE_I32, 0);
    for (int64_t row = 0; row < rows; row++)
        tensor_set(&c->op.in[first], row, 0, (double)(row % seq_len / document * document));
}

static struct op_case *whole_case(enum op_kind kind, const struct form *f, const struct view *v,
                                  int seq_len, enum dtype act)
{
    struct op_attributes a = { .n_heads = f->n_heads,
                               .n_kv_heads = f->n_kv_heads,
                               .head_dim = f->head_dim,
                               .seq_len = seq_len,
                               .scale = 1 / sqrt(f->head_dim),
                               .window = v->window,
                               .alibi = v->alibi ? f->n_heads : 0,
                               .p = v->p,
                               .seed = 9,
                               .rng_site = 3 };
    struct op_case *c = op_case_create(kind, &a);
    int sample = operands_of(kind)->sample;

    op_case_attention(c, (int64_t)f->sequences * seq_len, act);
    if (v->p > 0)
        op_case_input(c, sample, f->sequences, 1, DTYPE_I64, 0);
    for (int i = 0; v->p > 0 && i < f->sequences; i++)
        tensor_set(&c->op.in[sample], i, 0, 7 + i);
    op_case_input(c, sample + 1, 1, 1, DTYPE_I32, 0);
    if (v->document)
        set_documents(c, f, v->document, seq_len);
    return c;
}

/* What the gradient reads of the forward's outputs is what this device's forward leaves. */
static void save(struct op_case *grad, const struct form *f, const struct view *v, int seq_len,
                 enum dtype act)
{
    struct op_case *c = whole_case(OP_ATTENTION, f, v, seq_len, act);

    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++)
        op_case_copy(&c->op.in[i], &grad->op.in[ATTENTION_GRAD_Q + i]);
    op_case_run(c, 3, RUN_FIRST);
    op_case_copy(&grad->op.in[ATTENTION_GRAD_OUT], &c->op.out[ATTENTION_OUT]);
    op_case_copy(&grad->op.in[ATTENTION_GRAD_LSE], &c->op.out[ATTENTION_LSE]);
    op_case_destroy(c);
}

/* First column and number of columns of the rank, of what has n of the whole's heads. */
static int64_t first_col(const struct slice *s, const struct tensor *t, bool is_kv)
{
    return is_kv ? t->cols / s->form->n_kv_heads * s->kv_head
                 : t->cols / s->form->n_heads * s->head;
}

static int64_t n_cols(const struct slice *s, const struct tensor *t, bool is_kv)
{
    return is_kv ? t->cols / s->form->n_kv_heads * s->n_kv_heads
                 : t->cols / s->form->n_heads * s->n_heads;
}

/* Positions of a part of the queries are data. */
static void set_last(struct op_case *c, const struct slice *s)
{
    int last = operands_of(c->op.kind)->sample + 3;
    int64_t rows = (int64_t)s->form->sequences * s->n_rows;

    op_case_input(c, last, rows, 1, DTYPE_I32, 0);
    for (int64_t row = 0; row < rows; row++)
        tensor_set(&c->op.in[last], row, 0, row_of(s, (int)(row % s->n_rows)));
}

/* first and last, among the keys of windows. */
static void set_window(struct op_case *c, const struct slice *s)
{
    int first = operands_of(c->op.kind)->sample + 2;
    int64_t rows = (int64_t)s->form->sequences * s->n_rows;
    bool has_documents = tensor_given(&c->op.in[first]);

    if (!has_documents)
        op_case_input(c, first, rows, 1, DTYPE_I32, 0);
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = has_documents ? (int64_t)tensor_get(&c->op.in[first], row, 0) : 0;
        struct context_keys keys =
            context_window_keys((struct context_cut){ 1, s->rank.q }, s->seq_len,
                                c->op.attributes.window, s->rank.o, row % s->n_rows, start);

        tensor_set(&c->op.in[first], row, 0, keys.first);
        tensor_set(&c->op.in[first + 1], row, 0, keys.last);
    }
}

static struct op_case *rank_case(const struct op_case *whole, const struct slice *s)
{
    const struct operands *o = operands_of(whole->op.kind);
    struct op_case *c = op_case_create(whole->op.kind, &whole->op.attributes);
    int window = whole->op.attributes.window;
    int64_t n_kv = (int64_t)s->form->sequences * n_keys(s, window);

    c->op.attributes.seq_len = s->n_rows;
    c->op.attributes.n_heads = s->n_heads;
    c->op.attributes.n_kv_heads = s->n_kv_heads;
    for (int i = 0; i < OPS_MAX_INPUTS; i++) {
        const struct tensor *t = &whole->op.in[i];
        bool by_query = o->q_rows >> i & 1, by_kv = o->kv_cols >> i & 1;
        bool by_head = (o->q_cols | o->h_cols | o->kv_cols) >> i & 1;

        if (!tensor_given(t))
            continue;
        op_case_input(c, i,
                      by_query ? t->rows / s->rank.q
                      : by_kv  ? n_kv
                               : t->rows,
                      by_head ? n_cols(s, t, by_kv) : t->cols, t->dtype, 0);
        if (by_kv && s->rank.sees_windows)
            take_windows(s, &c->op.in[i], t, window, first_col(s, t, by_kv));
        else
            take(s, &c->op.in[i], t, by_query, by_head ? first_col(s, t, by_kv) : 0);
    }
    tensor_set(&c->op.in[o->sample + 1], 0, 0, s->head);
    if (s->rank.q > 1)
        set_last(c, s);
    if (s->rank.sees_windows)
        set_window(c, s);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++) {
        const struct tensor *t = &whole->op.out[i];
        bool is_kv = o->out_kv >> i & 1;

        if (tensor_given(t))
            op_case_output(c, i, is_kv ? n_kv : t->rows / s->rank.q, n_cols(s, t, is_kv), t->dtype);
    }
    return c;
}

/* What all queries of a kv head are summed in has the bits where all of them are here. */
static bool is_summed_elsewhere(const struct slice *s, bool is_kv)
{
    return is_kv && (s->rank.q > 1 || s->rank.u > s->form->n_kv_heads);
}

static void check_rank(const struct op_case *whole, const struct slice *s)
{
    const struct operands *o = operands_of(whole->op.kind);
    struct op_case *c = rank_case(whole, s);

    op_case_run(c, 2, RUN_FIRST);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++) {
        bool is_kv = o->out_kv >> i & 1;
        struct tensor wanted = c->op.out[i];

        if (!tensor_given(&wanted) || is_summed_elsewhere(s, is_kv))
            continue;
        wanted = op_case_keep(&c->op.out[i]);
        take(s, &wanted, &whole->op.out[i], !is_kv, first_col(s, &whole->op.out[i], is_kv));
        op_case_same(&c->op.out[i], &wanted, "of a rank and of all differ");
        free(wanted.data);
    }
    op_case_destroy(c);
}

/* All ranks of u times q. */
static void check_ranks(const struct form *f, const struct view *v, int u, int q, bool sees_windows,
                        enum dtype act)
{
    int seq_len = 2 * q * f->chunk;

    for (int kind = OP_ATTENTION; kind <= OP_ATTENTION_GRAD; kind++) {
        struct op_case *whole = whole_case((enum op_kind)kind, f, v, seq_len, act);

        if (kind == OP_ATTENTION_GRAD)
            save(whole, f, v, seq_len, act);
        op_case_run(whole, 3, RUN_FIRST);
        for (int r = 0; r < u * q; r++) {
            struct slice s = slice_of(f, (struct rank){ r / u, q, r % u, u, sees_windows });

            check_rank(whole, &s);
        }
        op_case_destroy(whole);
    }
}

static const struct view views[] = {
    { .window = 0 },
    { .window = 50 },
    { .document = 37, .alibi = true },
    { .window = 90, .document = 110, .alibi = true, .p = 0.2 },
};

enum { N_VIEWS = sizeof views / sizeof *views };

/* Emulated GPUs are. */
static bool is_slow(void)
{
    return test_device_is_cuda();
}

/* Chunks that no tile begins or ends with. */
static void test_zigzag(void **state)
{
    static const struct form forms[] = { { 4, 2, 16, 1, 33 },
                                         { 3, 3, 24, 2, 21 },
                                         { 6, 1, 8, 1, 50 } };
    static const int sizes[] = { 2, 3, 4, 8 };

    (void)state;
    for (int n = 0; n < (is_slow() ? 2 : 4); n++)
        for (int v = 0; v < N_VIEWS; v++)
            for (int i = v % 2; i < 3; i += 2)
                check_ranks(&forms[i], &views[v], 1, sizes[n], false, act_at((n + i + v) % N_ACTS));
}

/* Heads of their own, kv heads that neighbours share, and both kinds at once. */
static void test_heads(void **state)
{
    static const struct {
        struct form form;
        int u, q;
    } cases[] = { { { 8, 4, 16, 1, 40 }, 4, 1 }, { { 8, 2, 16, 1, 40 }, 4, 1 },
                  { { 6, 6, 8, 2, 35 }, 3, 1 },  { { 4, 2, 16, 1, 35 }, 2, 2 },
                  { { 4, 1, 24, 1, 33 }, 2, 3 }, { { 5, 5, 8, 1, 70 }, 5, 1 } };

    (void)state;
    for (int i = 0; i < (is_slow() ? 4 : 6); i++)
        for (int v = 0; v < N_VIEWS; v++)
            check_ranks(&cases[i].form, &views[v], cases[i].u, cases[i].q, false,
                        act_at((i + v) % N_ACTS));
}

/* Of a chunk at most, which are tiles or not, in documents or without. */
static void test_windows(void **state)
{
    static const struct {
        struct form form;
        int window, document, u, q;
    } cases[] = { { { 2, 1, 16, 1, 33 }, 5, 0, 1, 2 },    { { 2, 2, 8, 2, 21 }, 21, 37, 1, 3 },
                  { { 4, 2, 16, 1, 70 }, 65, 110, 1, 2 }, { { 2, 1, 8, 3, 64 }, 64, 0, 1, 2 },
                  { { 4, 2, 8, 1, 40 }, 1, 0, 2, 2 },     { { 2, 2, 16, 1, 33 }, 33, 0, 1, 4 },
                  { { 3, 1, 24, 1, 128 }, 65, 37, 1, 2 } };

    (void)state;
    for (int i = 0; i < (is_slow() ? 5 : 7); i++) {
        struct view view = { .window = cases[i].window, .document = cases[i].document };

        check_ranks(&cases[i].form, &view, cases[i].u, cases[i].q, true, act_at(i % N_ACTS));
    }
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zigzag),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_windows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    setenv("LMTRAIN_ATTENTION", "own", 1); /* a vendor's library takes no ranges of keys */
    return test_device_is_cuda() ? run_all() : test_each_isa(run_all);
}
