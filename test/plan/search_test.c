/*
 * search_test.c - the search against estimating every layout, on random small spaces; its bounds;
 * its words for what is not possible
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/search_impl.h"
#include "plan/search_job.h"
#include "support/pairs.h"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct device_spec device;
    struct cluster cluster;
    struct job job;
    struct search_request request;
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

static void read_job(struct fixture *f, const char *text)
{
    struct err err;

    if (job_read_text(&f->job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err))
        fail_msg("%s", err.text);
}

/* Devices with so much memory, `per_node` of them under the fast link. */
static void make_cluster(struct fixture *f, int n_ranks, int per_node, int64_t memory)
{
    struct err err;

    if (device_read(&f->device, "h100-sxm", &f->arena, &err))
        fail_msg("%s", err.text);
    f->device.memory = memory;
    f->device.reserve = 0;
    f->device.fast_domain = per_node;
    cluster_of_device(&f->cluster, &f->device, n_ranks, &f->arena);
}

/* Two islands of a node each; one has devices that are slower and smaller. */
static void make_islands(struct fixture *f, int n_ranks, bool slow_first)
{
    struct cluster_island *islands = arena_array(&f->arena, struct cluster_island, 2);
    struct device_spec *slow = arena_array(&f->arena, struct device_spec, 1);

    f->cluster.islands[0].n_nodes = 1;
    f->cluster.islands[0].per_node = f->cluster.islands[0].n_nics = n_ranks / 2;
    f->cluster.islands[0].fast_domain = n_ranks / 2;
    *slow = f->device;
    slow->name = "slow";
    slow->memory -= slow->memory / 4;
    for (int i = 0; i < N_DEVICE_FORMATS; i++)
        slow->peak[i] /= 3;
    islands[0] = islands[1] = f->cluster.islands[0];
    islands[!slow_first].device = slow;
    f->cluster.islands = islands;
    f->cluster.n_islands = 2;
}

/* ---- random spaces ---- */

struct dice {
    uint64_t state;
};

static int roll(struct dice *dice, int n)
{
    dice->state = dice->state * 6364136223846793005U + 1442695040888963407U;
    return (int)((dice->state >> 33) % (uint64_t)n);
}

/* Spaces from this seed on are of mixtures, on up to eight ranks. */
enum { MIXTURES = 3000 };

static void make_space(struct fixture *f, int seed)
{
    static const char *const kinds[] = { "rope", "learned" };
    static const char experts[] = ", n_experts: 8, n_active_experts: 2, expert_ffn_size: 128";
    static const char *const codecs[] = { "none", "none", "int8", "topk", "none", "powersgd" };
    struct dice dice = { (uint64_t)seed };
    int heads = 1 << (1 + roll(&dice, 3)), n_layers = 2 + roll(&dice, 5);
    int n_ranks = 2 << roll(&dice, seed < MIXTURES ? 3 : 2), tied = roll(&dice, 2);
    char text[600];

    snprintf(text, sizeof text,
             "{model: {vocab_size: %d, hidden_size: %d, n_layers: %d, n_heads: %d, ffn_size: %d, "
             "max_seq_len: 128, position: %s, tied_embeddings: %s%s},"
             " data: {train: a, seq_len: 128}, device: cuda, parallel: {mode: auto, compress: %s},"
             " train: {steps: 10, global_batch: %d, micro_batch: %d, dtype: bf16}}",
             512 << roll(&dice, 4), 32 * heads, n_layers, heads, 128 << roll(&dice, 3),
             kinds[roll(&dice, 2)], tied ? "true" : "false", seed < MIXTURES ? "" : experts,
             codecs[seed % 6], 32 << roll(&dice, 3), 1 << roll(&dice, 2));
    read_job(f, text);
    make_cluster(f, n_ranks, 2 << roll(&dice, 3), (int64_t)(1 + roll(&dice, 40)) << 20);
    f->request = (struct search_request){
        .job = &f->job,
        .kernels = f->kernels,
        .cluster = &f->cluster,
        .n_ranks = n_ranks,
        .keys = ((1U << N_LAYOUT_KEYS) - 1) & ~(unsigned)roll(&dice, 1 << N_LAYOUT_KEYS),
        .schedules = 1U << roll(&dice, PIPELINE_DYNAMIC) | 1U << roll(&dice, PIPELINE_DYNAMIC),
        .memory_share = 1,
        .within = 0.01,
        .n_rows = 2
    };
    if (seed >= MIXTURES)
        f->request.keys |= 1U << LAYOUT_EP;
}

static int find(struct fixture *f, struct search_result *result)
{
    struct err err;
    int status = search_layouts(result, &f->request, &f->arena, &err);

    if (status && err.code != ERR_CONFIG)
        fail_msg("%s", err.text);
    return status;
}

static void check_equal_rows(const struct search_row *a, const struct search_row *b)
{
    assert_int_equal(layout_compare(&a->layout, &b->layout), 0);
    assert_true(a->bound_ns == b->bound_ns && a->estimate_ns == b->estimate_ns && a->ns == b->ns);
    assert_true(a->bytes == b->bytes && a->estimate_bytes == b->estimate_bytes);
}

/* The seeds of a test: so many from `first` on, then some mixtures. */
static int seed_of(int i, int first, int n)
{
    return i < n ? first + i : MIXTURES + i - n;
}

static void test_search_finds_what_estimating_every_layout_finds(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    const int n_few = 15; /* slow; what is found is compared without it */
#else
    const int n_few = 60;
#endif
    int n_found = 0, n_bounded = 0, n_divided = 0, n_spaces = pairs_whole() ? 200 : n_few;

    (void)state;
    for (int i = 0; i < n_spaces + 6; i++) {
        int seed = seed_of(i, 0, n_spaces);
        struct search_result quick, full;
        struct fixture f;

        open_fixture(&f);
        make_space(&f, seed);
        int status = find(&f, &quick);
        f.request.in_full = true;
        assert_int_equal(find(&f, &full), status);
        if (!status) {
            assert_int_equal(quick.n_layouts, full.n_layouts);
            assert_int_equal(quick.n_rows, full.n_rows);
            for (int row = 0; row < quick.n_rows; row++) {
                check_equal_rows(&quick.rows[row], &full.rows[row]);
                n_divided += quick.rows[row].layout.ep > 1;
            }
            assert_int_equal(full.n_bounded, 0);
            assert_int_equal(quick.n_misfits + quick.n_bounded + quick.n_estimated,
                             quick.n_layouts);
            n_found += quick.n_rows > 0;
            n_bounded += quick.n_bounded > 0;
        }
        close_fixture(&f);
    }
    assert_true(n_found > n_spaces / 4 && n_bounded > n_spaces / 8);
    assert_true(n_divided > 0);
}

/* What rows of a search with two islands are. */
struct uneven_found {
    int n_rows, n_ordered, n_counted, n_counted_pipelines;
    int64_t best_ns;
};

static struct uneven_found find_uneven(int seed, bool slow_first)
{
    struct uneven_found found = { .best_ns = INT64_MAX };
    struct search_result result;
    struct fixture f;

    open_fixture(&f);
    make_space(&f, seed);
    f.job.parallel.compress = CODEC_NONE;
    f.device.memory += (int64_t)seed << 20;
    f.request.keys = (1U << N_LAYOUT_KEYS) - 1;
    f.request.n_rows = 4;
    if (seed % 3) {
        f.request.keys &= ~(1U << LAYOUT_PP | 1U << LAYOUT_TP | 1U << LAYOUT_ZERO);
        f.job.parallel.pp = seed % 3;
    }
    if (seed % 6 == 5) {
        f.request.keys &= ~(1U << LAYOUT_ORDER);
        f.job.parallel.order = ORDER_PIPELINES;
    }
    make_islands(&f, f.request.n_ranks, slow_first);
    if (!find(&f, &result))
        found.n_rows = result.n_rows;
    for (int i = 0; i < found.n_rows; i++) {
        const struct layout *l = &result.rows[i].layout;

        found.n_ordered += l->order != ORDER_STAGES;
        found.n_counted += l->counts.n > 0;
        found.n_counted_pipelines += l->counts.n > 0 && l->pp > 1;
        found.best_ns = result.rows[i].ns < found.best_ns ? result.rows[i].ns : found.best_ns;
    }
    close_fixture(&f);
    return found;
}

/* Which island is first changes no time: both orders are tried. */
static void test_islands_in_another_order_are_as_fast(void **state)
{
    struct uneven_found all = { 0 };
    int n_found = 0, n_seeds = pairs_whole() ? 30 : 15;

    (void)state;
    for (int seed = 0; seed < n_seeds; seed++) {
        struct uneven_found a = find_uneven(seed, false), b = find_uneven(seed, true);

        assert_int_equal(a.n_rows, b.n_rows);
        assert_true(a.best_ns == b.best_ns);
        n_found += a.n_rows > 0;
        all.n_ordered += a.n_ordered + b.n_ordered;
        all.n_counted += a.n_counted + b.n_counted;
        all.n_counted_pipelines += a.n_counted_pipelines + b.n_counted_pipelines;
    }
    assert_true(n_found > n_seeds / 2 && all.n_ordered > n_seeds / 3);
    assert_true(all.n_counted > n_seeds / 3 && all.n_counted_pipelines > 0);
}

static int64_t least_estimate(const struct search_result *result, int n_ranks)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < result->n_rows; i++) {
        assert_true(layout_n_ranks(&result->rows[i].layout) <= n_ranks);
        if (result->rows[i].estimate_ns < least)
            least = result->rows[i].estimate_ns;
    }
    return least;
}

/* As good as the best of all searches that have to use so many devices. */
static void test_devices_may_be_idle(void **state)
{
    int n_idle = 0, n_found = 0;

    (void)state;
    for (int seed = 2000; seed < 2014; seed++) {
        struct search_result idle, result;
        int64_t best = INT64_MAX;
        struct fixture f;

        open_fixture(&f);
        make_space(&f, seed);
        f.request.n_ranks -= seed % 3;
        f.request.keys = (1U << N_LAYOUT_KEYS) - 1;
        f.request.n_rows = 8;
        f.device.memory += (int64_t)seed << 14;
        if (seed % 2 && f.request.n_ranks > 1)
            make_islands(&f, f.request.n_ranks + f.request.n_ranks % 2, seed % 4 == 1);
        int n_ranks = f.request.n_ranks;
        f.request.may_idle = true;
        if (!n_ranks || find(&f, &idle)) {
            close_fixture(&f);
            continue;
        }
        int64_t least = least_estimate(&idle, n_ranks);
        f.request.may_idle = false;
        for (int n = 1; n <= n_ranks; n++) {
            f.request.n_ranks = n;
            if (find(&f, &result) || !result.n_rows)
                continue;
            int64_t of_n = least_estimate(&result, n);
            best = of_n < best ? of_n : best;
        }
        assert_true(least == best);
        n_found += idle.n_rows > 0;
        n_idle += idle.n_rows > 0 && layout_n_ranks(&idle.rows[0].layout) < n_ranks;
        close_fixture(&f);
    }
    assert_true(n_found > 5 && n_idle > 1);
}

static void test_a_bound_is_never_above_the_estimate(void **state)
{
    int n_estimated = 0, n_uneven = 0, n_divided = 0;

    (void)state;
    for (int k = 0; k < 40 + 6; k++) {
        int seed = seed_of(k, 1000, 40);
        struct candidates all = { 0 };
        struct fixture f;

        open_fixture(&f);
        make_space(&f, seed);
        if (seed % 2)
            make_islands(&f, f.request.n_ranks, seed % 4 == 1);
        struct search search = { .request = &f.request,
                                 .arena = &f.arena,
                                 .costs = { .job = &f.job,
                                            .kernels = f.kernels,
                                            .cluster = &f.cluster,
                                            .arena = &f.arena },
                                 .are_alike = seed % 2 == 0,
                                 .available = (size_t)f.device.memory,
                                 .cuts =
                                     arena_array(&f.arena, const int *, f.job.model.n_layers + 1) };
        search_list(&search, &all);
        for (int i = 0; i < all.n; i++)
            if (search_bound(&search, &all.items[i]) && search_estimate(&search, &all.items[i])) {
                const struct layout_candidate *c = &all.items[i];

                assert_true(c->bound_ns > 0 && c->bound_ns <= c->estimate_ns);
                assert_true(c->bound_bytes > 0 && c->bound_bytes <= c->estimate_bytes);
                n_estimated++;
                n_divided += c->layout.ep > 1;
                n_uneven += c->layout.stages.n > 0 || c->layout.counts.n > 0;
            }
        search_release_fronts(&search);
        close_fixture(&f);
    }
    assert_true(n_estimated > 500 && n_divided > 20);
    assert_true(n_uneven > 50);
}

/* The first rank keeps at least as many micro-batches of its first chunk as bounds assume. */
static void test_slots_that_bounds_assume(void **state)
{
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        for (int p = 2; p <= 8; p++)
            for (int v = 1; v <= 4; v++)
                for (int m = 1; m <= 16; m++) {
                    struct pipeline_spec spec = { .kind = (enum pipeline_kind)kind,
                                                  .n_ranks = p,
                                                  .n_chunks = v,
                                                  .n_micro_batches = m };
                    struct pipeline pipeline;

                    if (pipeline_build(&pipeline, &spec, &arena, &err))
                        continue;
                    assert_true(pipeline_slots(&pipeline, 0, 0).f_to_w >= (p < m ? p : m));
                }
    arena_release(&arena);
}

/* ---- what a job leaves open ---- */

#define MODEL_8 \
    "model: {vocab_size: 512, hidden_size: 64, n_layers: 8, n_heads: 4, ffn_size: 128, " \
    "max_seq_len: 128}, data: {train: a, seq_len: 128}, device: cuda, "

static void search_8(struct fixture *f, const char *text, struct search_result *result)
{
    struct err err;

    read_job(f, text);
    make_cluster(f, 8, 8, (int64_t)1 << 30);
    if (search_job(result, &f->job, 8, 50, &f->cluster, f->kernels, NULL, &f->arena, &err))
        fail_msg("%s", err.text);
}

static void test_what_is_given_is_not_searched(void **state)
{
    struct search_result result;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    search_8(&f,
             "{" MODEL_8 "train: {steps: 1, global_batch: 32, micro_batch: 1}, recompute: full,"
             " parallel: {mode: semi, tp: 2, zero: 1}}",
             &result);
    assert_true(result.n_rows > 1);
    for (int i = 0; i < result.n_rows; i++) {
        assert_int_equal(result.rows[i].layout.tp, 2);
        assert_int_equal(result.rows[i].layout.zero, 1);
        assert_int_equal(result.rows[i].layout.recompute, RECOMPUTE_FULL);
        assert_int_equal(result.rows[i].layout.micro_batch, 1);
    }
    assert_int_equal(f.job.parallel.tp, 2);
    assert_int_equal(f.job.parallel.mode, PARALLEL_MANUAL);
    close_fixture(&f);
}

/* Where tp ranks have whole experts, layouts that cannot divide them so are left out. */
static void test_whole_experts_are_divided_evenly(void **state)
{
    struct search_result result;
    struct fixture f;
    int n_divided = 0;

    (void)state;
    open_fixture(&f);
    search_8(&f,
             "{model: {vocab_size: 512, hidden_size: 64, n_layers: 4, n_heads: 8, ffn_size: 128, "
             "max_seq_len: 128, n_experts: 6, n_active_experts: 2}, data: {train: a, seq_len: 128},"
             " device: cuda, train: {steps: 1, global_batch: 32, micro_batch: 1}, parallel: auto,"
             " moe: {expert_tp: 1}}",
             &result);
    for (int i = 0; i < result.n_rows; i++) {
        const struct layout *l = &result.rows[i].layout;

        assert_int_equal(6 % (l->tp * l->ep), 0);
        n_divided += l->tp * l->ep > 1;
    }
    assert_true(n_divided > 0);
    close_fixture(&f);
}

/* With the devices' time as objective no layout in more of it is first. */
static void test_the_objective_may_be_the_time_of_devices(void **state)
{
    struct search_result fastest, cheapest;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    make_space(&f, 2001);
    f.request.keys = (1U << N_LAYOUT_KEYS) - 1;
    f.request.n_rows = 8;
    f.request.may_idle = true;
    f.request.within = 0;
    f.device.memory = (int64_t)1 << 30;
    assert_int_equal(find(&f, &fastest), 0);
    f.request.objective = OBJECTIVE_DEVICE_TIME;
    assert_int_equal(find(&f, &cheapest), 0);
    const struct search_row *a = &fastest.rows[0], *b = &cheapest.rows[0];
    assert_true(a->ns <= b->ns);
    assert_true(layout_n_ranks(&b->layout) < layout_n_ranks(&a->layout));
    assert_true(b->ns * layout_n_ranks(&b->layout) < a->ns * layout_n_ranks(&a->layout));
    for (int i = 1; i < cheapest.n_rows; i++)
        assert_true(search_cost(&cheapest.rows[i - 1]) <= search_cost(&cheapest.rows[i]));
    close_fixture(&f);
}

/* Stages are cut by multiplications: what else a large head takes, the moves see. */
static void test_layers_are_moved_from_a_stage_with_a_large_head(void **state)
{
    const char *text = "{model: bloom-7b1, data: {train: a, seq_len: 2048}, device: cuda, "
                       "train: {steps: 1, global_batch: 64, micro_batch: 1}, recompute: selective, "
                       "parallel: {mode: semi, tp: 2, pp: 8, zero: 0, schedule: 1f1b}}";
    struct search_request request = { .n_ranks = 16, .memory_share = 1, .n_rows = 4 };
    struct search_result cut, moved;
    struct fixture f;
    struct err err;

    (void)state;
    open_fixture(&f);
    read_job(&f, text);
    make_cluster(&f, 16, 8, (int64_t)80 << 30);
    request.job = &f.job;
    request.kernels = f.kernels;
    request.cluster = &f.cluster;
    assert_int_equal(search_layouts(&cut, &request, &f.arena, &err), 0);
    request.may_move = true;
    assert_int_equal(search_layouts(&moved, &request, &f.arena, &err), 0);
    assert_int_equal(cut.rows[0].layout.stages.n, 0);
    assert_int_equal(moved.rows[0].layout.stages.n, 8);
    assert_true(moved.rows[0].ns < cut.rows[0].ns);
    assert_true(moved.rows[0].estimate_ns < cut.rows[0].estimate_ns);
    close_fixture(&f);
}

static void test_data_has_neither_tp_nor_pp(void **state)
{
    struct search_result result;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    search_8(&f,
             "{" MODEL_8 "train: {steps: 1, global_batch: 32, micro_batch: 1},"
             " parallel: {mode: data}}",
             &result);
    for (int i = 0; i < result.n_rows; i++)
        assert_int_equal(result.rows[i].layout.dp, 8);
    close_fixture(&f);
}

static void test_schedules_and_micro_batches_may_be_searched(void **state)
{
    struct search_result result;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    search_8(&f,
             "{" MODEL_8 "train: {steps: 1, global_batch: 32, micro_batch: 1},"
             " parallel: {mode: semi, pp: 4}, search: {schedules: [gpipe], micro_batch: auto}}",
             &result);
    int most = 0;
    for (int i = 0; i < result.n_rows; i++) {
        assert_int_equal(result.rows[i].layout.schedule, PIPELINE_GPIPE);
        most = result.rows[i].layout.micro_batch > most ? result.rows[i].layout.micro_batch : most;
    }
    assert_true(most > 1);
    close_fixture(&f);
}

static void test_equal_layouts_prefer_the_simpler(void **state)
{
    struct search_result result;
    struct fixture f;

    (void)state;
    open_fixture(&f);
    search_8(&f,
             "{" MODEL_8 "train: {steps: 1, global_batch: 32, micro_batch: 1},"
             " parallel: {mode: auto}, search: {within: 1}}",
             &result);
    const struct layout *l = &result.rows[0].layout;
    assert_int_equal((l->tp > 1) + (l->pp > 1) + (l->dp > 1), 1);
    assert_int_equal(l->recompute, RECOMPUTE_AUTO);
    assert_int_equal(result.rows[0].recompute_ns, 0);
    close_fixture(&f);
}

static void test_nothing_fits(void **state)
{
    struct search_result result;
    struct fixture f;
    struct err err;

    (void)state;
    open_fixture(&f);
    read_job(&f,
             "{" MODEL_8 "train: {steps: 1, global_batch: 32, micro_batch: 1}, parallel: auto}");
    make_cluster(&f, 8, 8, 1000);
    assert_int_equal(
        search_job(&result, &f.job, 8, 10, &f.cluster, f.kernels, NULL, &f.arena, &err), -1);
    assert_non_null(strstr(err.text, "layouts of 8 ranks fits h100-sxm: the smallest (tp "));
    read_job(&f, "{" MODEL_8 "train: {steps: 1, global_batch: 7, micro_batch: 7}, parallel: auto}");
    assert_int_equal(
        search_job(&result, &f.job, 64, 10, &f.cluster, f.kernels, NULL, &f.arena, &err), -1);
    assert_non_null(strstr(err.text, "no layout of 64 ranks is possible"));
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_finds_what_estimating_every_layout_finds),
        cmocka_unit_test(test_islands_in_another_order_are_as_fast),
        cmocka_unit_test(test_devices_may_be_idle),
        cmocka_unit_test(test_a_bound_is_never_above_the_estimate),
        cmocka_unit_test(test_slots_that_bounds_assume),
        cmocka_unit_test(test_what_is_given_is_not_searched),
        cmocka_unit_test(test_whole_experts_are_divided_evenly),
        cmocka_unit_test(test_the_objective_may_be_the_time_of_devices),
        cmocka_unit_test(test_layers_are_moved_from_a_stage_with_a_large_head),
        cmocka_unit_test(test_data_has_neither_tp_nor_pp),
        cmocka_unit_test(test_schedules_and_micro_batches_may_be_searched),
        cmocka_unit_test(test_equal_layouts_prefer_the_simpler),
        cmocka_unit_test(test_nothing_fits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
