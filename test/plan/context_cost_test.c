/*
 * context_cost_test.c - context parallelism as it is planned: bytes that compiled programs send
 * against formulas, work that adds up whatever the cut, what is searched and suggested
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "config/job_layout.h"
#include "kernels/gpu_sizes.h"
#include "plan/context_cost.h"
#include "plan/price_impl.h"
#include "plan/search_job.h"
#include "plan/suggest.h"
#include "program/passes.h"

enum { HEADS = 16, KV_HEADS = 4, HEAD_DIM = 32, SEQ_LEN = 768, MICRO_BATCH = 2 };

#define JOB(model, parallel) \
    "{model: {vocab_size: 1024, hidden_size: 512, n_layers: 3, n_heads: 16, n_kv_heads: 4," \
    " ffn_size: 1024, max_seq_len: 1048576" model "}, data: {train: a, seq_len: 768}," \
    " device: cuda, train: {steps: 100, global_batch: 4, micro_batch: 2, dtype: bf16}," \
    " parallel: {" parallel "}}"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct job job;
    struct plan plan;
};

static void open_fixture(struct fixture *f)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (kernels_gpu_sizes_create(&f->kernels, &err))
        fail_msg("%s", err.text);
}

static void close_fixture(struct fixture *f)
{
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

static void read_job(struct fixture *f, const char *text, const char *set)
{
    struct err err;

    if (job_read_text(&f->job, text, strlen(text), "job.yaml", &set, set ? 1 : 0, &f->arena, &err))
        fail_msg("%s", err.text);
}

/* One replica of the job; close it with plan_close. */
static void open_plan(struct fixture *f, const char *text, const char *set)
{
    struct err err;

    read_job(f, text, set);
    int n = f->job.parallel.tp * f->job.parallel.cp * f->job.parallel.pp;
    if (job_resolve(&f->job, n, &f->arena, &err) < 0 ||
        plan_open_with(&f->plan, &f->job, f->kernels, &err))
        fail_msg("%s: %s", set, err.text);
}

static void equal(double a, double b)
{
    if (fabs(a - b) > 1e-6 * fmax(fabs(a), fabs(b)))
        fail_msg("%.9g is not %.9g", a, b);
}

/* ---- bytes ---- */

struct sent {
    double forward, backward, again;
};

/*
 * Of a layer and a micro-batch, nothing recomputed: of u ranks each sends (u - 1) / u of its rows,
 * queries, keys, values and outputs, kv heads once for each rank that has them; of q ranks each
 * sends its keys and values q - 1 times, again in the backward, and as often its parts of the
 * gradients.
 */
static struct sent formula_of(int tp, int u, int q)
{
    const double b = 2, rows = (double)MICRO_BATCH * SEQ_LEN / (u * q), heads = HEADS / tp;
    const double kv = KV_HEADS / tp, kv_of_rank = fmax(1, kv / u);
    double exchanged = (1 - 1.0 / u) * rows * (2 * heads + 2 * kv_of_rank * u) * HEAD_DIM * b;
    double pair = (double)MICRO_BATCH * SEQ_LEN / q;
    double gathered = (q - 1) * pair * 2 * kv_of_rank * HEAD_DIM * b;

    return (struct sent){ exchanged + gathered, exchanged + 2 * gathered,
                          q > 1 ? q * pair * 2 * kv_of_rank * HEAD_DIM * b : 0 };
}

static void test_bytes_are_those_of_the_formulas(void **state)
{
    static const struct {
        int tp, u, q;
        const char *parallel;
    } rows[] = {
        { 1, 2, 1, "parallel={cp: 2, cp_kind: ulysses}" },
        { 1, 4, 1, "parallel={cp: 4}" },
        { 1, 8, 1, "parallel={cp: 8, cp_kind: ulysses}" },
        { 1, 1, 2, "parallel={cp: 2, cp_kind: gather}" },
        { 1, 1, 3, "parallel={cp: 3, cp_kind: gather}" },
        { 1, 1, 8, "parallel={cp: 8, cp_kind: gather}" },
        { 2, 2, 1, "parallel={tp: 2, cp: 2, cp_kind: ulysses}" },
        { 2, 4, 1, "parallel={tp: 2, cp: 4, cp_kind: ulysses}" },
        { 2, 1, 4, "parallel={tp: 2, cp: 4}" },
        { 1, 2, 2, "parallel={cp: 4, cp_kind: {ulysses: 2, gather: 2}}" },
        { 2, 2, 3, "parallel={tp: 2, cp: 6, cp_kind: {ulysses: 2, gather: 3}}" },
        { 1, 2, 2, "parallel={pp: 3, cp: 4, cp_kind: {ulysses: 2, gather: 2}}" },
    };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sent sent = formula_of(rows[i].tp, rows[i].u, rows[i].q);

        open_plan(&f, JOB("", ""), rows[i].parallel);
        struct context_cost cost = context_cost_of(&f.plan);
        int n_layers = f.job.parallel.pp > 1 ? 1 : 3;
        equal(cost.bytes.forward, sent.forward);
        equal(cost.bytes.backward, sent.backward);
        equal(cost.bytes.gathered_again, sent.again);
        assert_int_equal(cost.rows, SEQ_LEN / (rows[i].u * rows[i].q));
        assert_int_equal(cost.n_under_way > 0, rows[i].q > 1);
        assert_true(cost.n_under_way <= f.job.parallel.pp);
        equal(cost.saved_bytes, sent.again * n_layers * cost.n_under_way);
        plan_close(&f.plan);
    }
    close_fixture(&f);
}

/* ---- work ---- */

static struct plan_flops flops_of(struct fixture *f, const char *text, const char *set)
{
    open_plan(f, text, set);
    struct plan_flops flops = plan_count_flops(&f->plan);
    plan_close(&f->plan);
    return flops;
}

/* Sums of gradients over more ranks are all that is more; who has the rows changes no model. */
static void test_work_adds_up(void **state)
{
    static const char *const texts[] = { JOB("", ""), JOB(", window: 100", "") };
    static const char *const cuts[] = {
        "parallel={cp: 2, cp_kind: ulysses}",
        "parallel={cp: 2, cp_kind: gather}",
        "parallel={cp: 8, cp_kind: gather}",
        "parallel={tp: 2, cp: 4}",
        "parallel={cp: 4, cp_kind: {ulysses: 2, gather: 2}}",
    };
    struct fixture f;

    (void)state;
    open_fixture(&f);
    for (int t = 0; t < 2; t++) {
        struct plan_flops one = flops_of(&f, texts[t], NULL);

        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            struct plan_flops cut = flops_of(&f, texts[t], cuts[i]);

            if (fabs(cut.executed / one.executed - 1) > 0.01)
                fail_msg("%s: %.6g FLOPs, without %.6g", cuts[i], cut.executed, one.executed);
            equal(cut.model, one.model);
            equal(cut.megatron, one.megatron);
        }
    }
    close_fixture(&f);
}

/* Causal work is even; with a window the ends of a sequence have less, as its rows say. */
static void test_balance(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f);
    open_plan(&f, JOB("", "cp: 8, cp_kind: gather"), NULL);
    equal(context_cost_of(&f.plan).balance, 1);
    plan_close(&f.plan);
    open_plan(&f, JOB(", window: 100", "cp: 8, cp_kind: ulysses"), NULL);
    equal(context_cost_of(&f.plan).balance, 1);
    plan_close(&f.plan);
    open_plan(&f, JOB(", window: 100", "cp: 2, cp_kind: gather"), NULL);
    equal(context_cost_of(&f.plan).balance,
          context_balance((struct context_cut){ 1, 2 }, 768, 100));
    assert_true(context_cost_of(&f.plan).balance > 1.01);
    plan_close(&f.plan);
    close_fixture(&f);
}

/* ---- prices ---- */

static struct tensor bf16(int64_t rows, int64_t cols)
{
    return (struct tensor){ .rows = rows, .cols = cols, .stride = cols, .dtype = DTYPE_BF16 };
}

static struct op_shape attention(int64_t queries, int64_t keys, int window)
{
    struct op_shape op = { .kind = OP_ATTENTION,
                           .attributes = { .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_dim = 128,
                                           .seq_len = (int)queries,
                                           .window = window } };

    op.in[ATTENTION_Q] = op.out[ATTENTION_OUT] = bf16(queries, 4096);
    op.in[ATTENTION_K] = op.in[ATTENTION_V] = bf16(keys, 1024);
    return op;
}

/* An eighth of the queries against all keys takes an eighth of the time, whatever the software; or
 * what the rank with most takes. */
static void test_prices_of_parts_of_queries(void **state)
{
    struct cluster cluster;
    struct prices prices = { .cluster = &cluster };
    struct device_spec device;
    struct fixture f;
    struct err err;

    (void)state;
    open_fixture(&f);
    if (device_read(&device, "h100-sxm", &f.arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&cluster, &device, 8, &f.arena);
    for (int unfused = 0; unfused < 2; unfused++) {
        struct op_shape whole = attention(65536, 65536, 0), part = attention(8192, 65536, 0);

        cluster.software.has_unfused_attention = unfused;
        equal(price_attention(&prices, &whole).ns, 8 * price_attention(&prices, &part).ns);
    }
    cluster.software.has_unfused_attention = false;
    struct op_shape whole = attention(65536, 65536, 8192), part = attention(16384, 65536, 8192);
    double balance = context_balance((struct context_cut){ 1, 4 }, 65536, 8192);
    equal(price_attention(&prices, &whole).ns * balance, 4 * price_attention(&prices, &part).ns);
    assert_true(balance > 1.05);
    close_fixture(&f);
}

/* ---- what is searched ---- */

struct search_case {
    struct search_result result;
    struct cluster cluster;
    struct device_spec device;
    struct err err;
};

/* On devices of so many MiB. */
static int search(struct fixture *f, struct search_case *c, int n_ranks, int64_t mib)
{
    if (device_read(&c->device, "h100-sxm", &f->arena, &c->err))
        fail_msg("%s", c->err.text);
    c->device.memory = mib << 20;
    c->device.reserve = 0;
    cluster_of_device(&c->cluster, &c->device, n_ranks, &f->arena);
    return search_job(&c->result, &f->job, n_ranks, 8, &c->cluster, f->kernels, NULL, &f->arena,
                      &c->err);
}

static void test_a_search_keeps_what_is_given(void **state)
{
    static const char *const given[] = { "cp: 4, cp_kind: gather", "cp: 4" };
    struct search_case c;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < 2; i++)
        for (int mode = 0; mode < 2; mode++) {
            read_job(&f, JOB("", ""),
                     arena_printf(&f.arena, "parallel={mode: %s, %s}", mode ? "auto" : "semi",
                                  given[i]));
            if (search(&f, &c, 8, 65536))
                fail_msg("%s", c.err.text);
            for (int k = 0; k < c.result.n_rows; k++) {
                const struct layout *l = &c.result.rows[k].layout;

                assert_int_equal(l->cp, 4);
                assert_int_equal(l->tp * l->pp * l->dp, 2);
                assert_int_equal(layout_n_ranks(l), 8);
            }
            assert_int_equal(f.job.parallel.cp_kind, i ? CP_AUTO : CP_GATHER);
            assert_int_equal(job_resolve(&f.job, 8, &f.arena, &c.err), 0);
        }
    read_job(&f, JOB("", ""),
             "parallel={mode: semi, cp: 4, cp_kind: {ulysses: 2, gather: 2}, tp: 1}");
    assert_int_equal(search(&f, &c, 8, 65536), 0);
    assert_int_equal(f.job.parallel.cp_sizes.ulysses, 2);
    read_job(&f, JOB("", ""), "parallel={mode: semi, cp: 3}");
    assert_int_equal(search(&f, &c, 8, 65536), -1);
    assert_non_null(strstr(c.err.text, "tp * pp * dp * cp"));
    close_fixture(&f);
}

#define LONG_JOB(parallel) \
    "{model: {vocab_size: 1024, hidden_size: 512, n_layers: 4, n_heads: 16, n_kv_heads: 4," \
    " ffn_size: 1024, max_seq_len: 1048576}, data: {train: a, seq_len: 262144}, device: cuda," \
    " recompute: full, train: {steps: 100, global_batch: 8, micro_batch: 1, dtype: bf16}," \
    " parallel: {" parallel "}}"

/* Where whole sequences do not fit, and nothing is said of cp. */
static void test_long_sequences_are_divided(void **state)
{
    struct search_case c;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    read_job(&f, LONG_JOB("mode: auto"), "recompute=none");
    assert_int_equal(search(&f, &c, 8, 16384), 0);
    assert_int_equal(f.job.parallel.cp, 1);
    read_job(&f, LONG_JOB("mode: semi, tp: 1"), NULL);
    assert_int_equal(search(&f, &c, 8, 2048), 0);
    assert_true(f.job.parallel.cp > 1);
    assert_int_equal(layout_n_ranks(&c.result.rows[0].layout), 8);
    read_job(&f, LONG_JOB("mode: semi, tp: 1, cp: 1"), NULL);
    assert_int_equal(search(&f, &c, 8, 2048), -1);
    read_job(&f, LONG_JOB("mode: semi, tp: 1"), NULL);
    assert_int_equal(search(&f, &c, 8, 100), -1);
    assert_non_null(strstr(c.err.text, ", cp 8, zero "));
    close_fixture(&f);
}

static void test_parts_are_suggested(void **state)
{
    struct suggestions found;
    struct str text = { 0 };
    struct fixture f;
    struct err err;

    (void)state;
    open_fixture(&f);
    read_job(&f, LONG_JOB(""), NULL);
    if (job_resolve(&f.job, 8, &f.arena, &err) < 0 ||
        plan_open_with(&f.plan, &f.job, f.kernels, &err))
        fail_msg("%s", err.text);
    size_t planned = program_memory_bytes(&f.plan.programs[0]);
    suggest_find(&found, &f.job, f.kernels, planned, planned / 2, 0, &f.arena);
    suggest_print(&found, &text);
    assert_non_null(strstr(str_text(&text), "parallel.cp: 4 needs "));
    plan_close(&f.plan);
    str_release(&text);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_those_of_the_formulas),
        cmocka_unit_test(test_work_adds_up),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_prices_of_parts_of_queries),
        cmocka_unit_test(test_a_search_keeps_what_is_given),
        cmocka_unit_test(test_long_sequences_are_divided),
        cmocka_unit_test(test_parts_are_suggested),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
