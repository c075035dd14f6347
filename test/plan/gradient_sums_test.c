/*
 * gradient_sums_test.c - what a step waits for sums of gradients: the simulation against Fold3D's
 * formula, on programs of breadth-first pipelines
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/gradient_sums.h"
#include "support/tiny_model.h"

enum { CHUNKS_MAX = 4, N_STAGES = 2 };

/* Two data-parallel ranks of two stages of several chunks, a bucket each; nothing takes time but
 * the first backward op of each micro-batch and the sums of a chunk. */
struct fleet {
    int n_chunks, n_micro_batches;
    struct program programs[N_STAGES];
    const struct program *list[N_STAGES];
    struct simulated_op **functions[N_STAGES];
    const struct simulated_op *const *by_rank[N_STAGES];
    struct arena arena;
};

static void open_stage(struct fleet *f, int stage, struct compile_train *options)
{
    struct program *p = &f->programs[stage];
    struct err err;

    options->pipeline.rank = stage;
    if (compile_train(p, options, &err) < 0)
        fail_msg("%s", err.text);
    f->functions[stage] = arena_array(&f->arena, struct simulated_op *, p->n_functions);
    for (int i = 0; i < p->n_functions; i++)
        f->functions[stage][i] =
            arena_array(&f->arena, struct simulated_op, max_int(1, p->functions[i].n_ops));
    f->list[stage] = p;
    f->by_rank[stage] = (const struct simulated_op *const *)f->functions[stage];
}

static void fleet_open(struct fleet *f, int n_chunks, int n_micro_batches)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    *f = (struct fleet){ .n_chunks = n_chunks, .n_micro_batches = n_micro_batches };
    spec.n_layers = N_STAGES * n_chunks;
    options.mesh.size[AXIS_PP] = N_STAGES;
    options.n_micro_batches = n_micro_batches;
    options.pipeline.kind = PIPELINE_BREADTH_FIRST;
    options.pipeline.n_chunks = n_chunks;
    options.gradients.zero = 1;
    options.gradients.bucket_bytes = (size_t)1 << 30;
    for (int stage = 0; stage < N_STAGES; stage++)
        open_stage(f, stage, &options);
}

static void fleet_close(struct fleet *f)
{
    for (int stage = 0; stage < N_STAGES; stage++)
        program_release(&f->programs[stage]);
    arena_release(&f->arena);
}

/* Each backward of the chunk takes backward_ns, and its buckets' sums sum_ns in all. */
static void price_chunk(struct fleet *f, int stage, int chunk, int64_t backward_ns, int64_t sum_ns)
{
    int n_sums = 0;

    for (int i = 0; i < f->programs[stage].n_functions; i++) {
        const struct function *function = &f->programs[stage].functions[i];
        struct simulated_op *ops = f->functions[stage][i];

        if (function->chunk != chunk || strncmp(function->name, "backward", 8) != 0)
            continue;
        ops[0] = (struct simulated_op){ .ns = backward_ns, .class = TIME_PRODUCTS };
        for (int k = 0; k < function->n_ops; k++)
            if (function->ops[k].stream == STREAM_DP_REDUCE)
                ops[k] =
                    (struct simulated_op){ .ns = n_sums++ ? 0 : sum_ns, .class = TIME_GRADIENTS };
    }
    assert_true(n_sums > 0);
}

static void run(struct gradient_sums found[N_STAGES], struct fleet *f)
{
    struct mesh mesh = mesh_pipeline(N_STAGES);
    struct simulate_watch watch = gradient_sums_watch(f->list, N_STAGES, &f->arena);
    struct simulate_request request = { .programs = f->list,
                                        .mesh = &mesh,
                                        .entry = ENTRY_STEP,
                                        .ops = f->by_rank,
                                        .in_full = true,
                                        .watch = &watch };
    struct simulated_step step;
    struct err err;

    if (simulate(&step, &request, &f->arena, &err) < 0)
        fail_msg("%s", err.text);
    for (int stage = 0; stage < N_STAGES; stage++) {
        found[stage] = gradient_sums_of(&watch, stage);
        assert_int_equal(found[stage].all_exposed, step.ranks[stage].of[TIME_GRADIENTS]);
        assert_int_equal(found[stage].n_chunks, f->n_chunks);
    }
}

/* One sum after the other, each when its chunk is done: what is left at the end. */
static int64_t queued(int64_t backward, const int64_t *sums, int n)
{
    int64_t done = 0, end = 0;

    for (int chunk = n - 1; chunk >= 0; chunk--) {
        done += backward;
        end = max_i64(end, done) + sums[chunk];
    }
    return end - done;
}

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)n);
}

/* What the ranks wait for where sums take least to most hundredths of the backwards of a chunk. */
static void check_drawn(struct fleet *f, uint64_t *seed, int least, int most)
{
    int64_t backward = 100 * (1 + draw(seed, 1000)), all = backward * f->n_micro_batches;
    int64_t sums[N_STAGES][CHUNKS_MAX];
    struct gradient_sums found[N_STAGES];

    for (int s = 0; s < N_STAGES; s++)
        for (int c = 0; c < f->n_chunks; c++) {
            sums[s][c] = all / 100 * (least + draw(seed, most - least + 1));
            price_chunk(f, s, c, backward, sums[s][c]);
        }
    run(found, f);
    for (int s = 0; s < N_STAGES; s++) {
        int64_t formula = gradient_sums_formula(&found[s]);

        for (int c = 0; c < f->n_chunks; c++) {
            assert_int_equal(found[s].sums[c], sums[s][c]);
            assert_int_equal(found[s].backwards[c], all);
        }
        assert_int_equal(found[s].all_exposed, queued(all, sums[s], f->n_chunks));
        if (most <= 100)
            assert_int_equal(found[s].all_exposed, sums[s][0]);
        if (most <= 100 || least >= 100)
            assert_int_equal(found[s].all_exposed, formula);
        else
            assert_true(found[s].all_exposed <= formula);
    }
}

/* Short sums hide behind the backwards of the chunk before but for chunk 0's; long ones exceed
 * them; and between the two the formula is the most that there is to wait for. */
static void test_formula(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (int n_chunks = 1; n_chunks <= CHUNKS_MAX; n_chunks++)
        for (int n_micro_batches = N_STAGES; n_micro_batches <= 4; n_micro_batches++) {
            struct fleet f;

            fleet_open(&f, n_chunks, n_micro_batches);
            for (int i = 0; i < 10; i++) {
                check_drawn(&f, &seed, 0, 100);
                check_drawn(&f, &seed, 100, 300);
                check_drawn(&f, &seed, 0, 300);
            }
            fleet_close(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_formula) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
