/*
 * recompute_early_test.c - what moves before the gradient's first reader, and what that hides
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/simulate.h"
#include "support/tiny_model.h"

enum { RANKS_MAX = 4, LAYERS = 3 };

/* A pipeline whose ranks have three layers each. */
struct fleet {
    int pp;
    struct program stages[RANKS_MAX];
    const struct program *list[RANKS_MAX];
    struct simulated_op **ops[RANKS_MAX];
    const struct simulated_op *const *by_rank[RANKS_MAX];
    struct arena arena;
};

static void fleet_open(struct fleet *f, const char *model, const struct compile_train *way, int pp)
{
    struct model_spec spec = tiny_spec(model);
    struct compile_train options = *way;
    int layers[RANKS_MAX] = { LAYERS, LAYERS, LAYERS, LAYERS };
    struct err err;

    *f = (struct fleet){ .pp = pp };
    spec.n_layers = LAYERS * pp;
    options.model = &spec;
    options.mesh.size[AXIS_PP] = pp;
    options.pipeline.stage_layers = layers;
    for (int rank = 0; rank < pp; rank++) {
        struct program *p = &f->stages[rank];

        options.pipeline.rank = rank;
        if (compile_train(p, &options, &err) < 0)
            fail_msg("%s", err.text);
        f->list[rank] = p;
        f->ops[rank] = arena_array(&f->arena, struct simulated_op *, p->n_functions);
        for (int i = 0; i < p->n_functions; i++)
            f->ops[rank][i] =
                arena_array(&f->arena, struct simulated_op, max_int(1, p->functions[i].n_ops));
        f->by_rank[rank] = (const struct simulated_op *const *)f->ops[rank];
    }
}

static void fleet_close(struct fleet *f)
{
    for (int rank = 0; rank < f->pp; rank++)
        program_release(&f->stages[rank]);
    arena_release(&f->arena);
}

static struct compile_train way_of(const struct model_spec *spec, enum pipeline_kind kind,
                                   enum recompute_kind recompute, int n_early)
{
    struct compile_train options = tiny_compile(spec, 1);

    options.pipeline.kind = kind;
    options.recompute = recompute;
    options.early_layers = n_early;
    return options;
}

static const struct function *find(const struct program *p, const char *name)
{
    for (int i = 0; i < p->n_functions; i++)
        if (!strcmp(p->functions[i].name, name))
            return &p->functions[i];
    fail_msg("no function is named %s", name);
    return NULL;
}

/* How many ops of phase R stand before the first of another phase, and whether all of the last
 * n layers do. */
static int count_first(const struct function *f, int first_layer)
{
    int n = 0;

    while (n < f->n_ops && f->ops[n].phase == PHASE_R)
        n++;
    for (int i = n; i < f->n_ops; i++)
        if (f->ops[i].phase == PHASE_R)
            assert_true(f->ops[i].layer < first_layer);
    return n;
}

/* Of three layers none, one, two or all; the last stage waits for no gradient. */
static void test_moves(void **state)
{
    static const enum recompute_kind kinds[] = { RECOMPUTE_KIND_FULL, RECOMPUTE_KIND_SELECTIVE };
    static const char *const models[] = { "llama", "gpt2" };

    (void)state;
    for (int k = 0; k < 4; k++) {
        int before = 0, of_last = 0;

        for (int n = 0; n <= LAYERS + 1; n++) {
            struct model_spec spec = tiny_spec(models[k / 2]);
            struct compile_train way = way_of(&spec, PIPELINE_1F1B, kinds[k % 2], n);
            struct fleet f;

            fleet_open(&f, models[k / 2], &way, 2);
            int early = count_first(find(&f.stages[0], "backward 0"),
                                    n ? LAYERS - min_int(n, LAYERS) : LAYERS);
            if (n && n <= LAYERS)
                assert_true(early > before);
            else
                assert_int_equal(early, before);
            int at_last = count_first(find(&f.stages[1], "backward 0"), 2 * LAYERS);
            assert_int_equal(at_last, n ? of_last : at_last);
            of_last = at_last;
            before = early;
            fleet_close(&f);
        }
    }
}

/* Without recomputation nothing moves, also where keys and rows are gathered again. */
static void test_moves_no_gathers(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train way = way_of(&spec, PIPELINE_1F1B, RECOMPUTE_KIND_NONE, 1);
    struct fleet f;

    (void)state;
    way.mesh.size[AXIS_TP] = 2;
    way.sequence_parallel = 1;
    fleet_open(&f, "llama", &way, 2);
    assert_int_not_equal(find(&f.stages[0], "backward 0")->ops[0].phase, PHASE_R);
    fleet_close(&f);
}

/* Each pass of a stage takes f, and its backward b, with r to recompute a layer. */
static int64_t step_of(enum pipeline_kind kind, int pp, int m, int n_early, const int64_t costs[3])
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train way = way_of(&spec, kind, RECOMPUTE_KIND_FULL, n_early);
    struct mesh mesh = mesh_pipeline(pp);
    struct simulated_step step;
    struct fleet f;
    struct err err;

    way.n_micro_batches = m;
    fleet_open(&f, "llama", &way, pp);
    for (int rank = 0; rank < pp; rank++) {
        const struct program *p = &f.stages[rank];

        for (int i = 0; i < p->n_functions; i++) {
            const struct function *function = &p->functions[i];
            bool priced[LAYERS * RANKS_MAX] = { false };

            if (!strcmp(function->name, "forward 0"))
                f.ops[rank][i][function->n_ops - 1].ns = costs[0];
            if (strcmp(function->name, "backward 0") != 0)
                continue;
            f.ops[rank][i][function->n_ops - 1].ns = costs[2];
            for (int k = 0; k < function->n_ops; k++) {
                int layer = function->ops[k].layer;

                if (function->ops[k].phase != PHASE_R || layer < 0 || priced[layer])
                    continue;
                priced[layer] = true;
                f.ops[rank][i][k].ns = costs[1];
            }
        }
    }
    struct simulate_request request = {
        .programs = f.list, .mesh = &mesh, .entry = ENTRY_STEP, .ops = f.by_rank
    };
    if (simulate(&step, &request, &f.arena, &err) < 0)
        fail_msg("%s", err.text);
    fleet_close(&f);
    return step.ns;
}

/* Of one micro-batch each stage but the last recomputes this number of layers while it waits, and
 * the last keeps them; of many, in 1f1b, as long as the bubble is, and, as the last one needs less
 * time for each micro-batch, for up to one more forward. */
static void test_hides(void **state)
{
    static const int64_t list[][3] = { /* f, r of a layer, b */
                                       { 100, 30, 170 },
                                       { 50, 30, 170 },
                                       { 200, 30, 90 }
    };

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int pp = 2; pp <= RANKS_MAX; pp++)
            for (int n = 0; n <= LAYERS; n++) {
                int64_t f = list[i][0], r = list[i][1], b = list[i][2], all = LAYERS * r;

                assert_int_equal(step_of(PIPELINE_1F1B, pp, 1, n, list[i]),
                                 pp * (f + b + (LAYERS - n) * r));
                assert_int_equal(step_of(PIPELINE_1F1B, pp, 2 * pp, n, list[i]),
                                 (3 * pp - 1) * (f + all + b) - pp * n * r - min_i64(2 * n * r, f));
            }
}

/* Only where its backward follows its forward at once does the last stage keep layers. */
static void test_last_stage_keeps(void **state)
{
    static const struct {
        enum pipeline_kind kind;
        bool keeps;
    } ways[] = { { PIPELINE_1F1B, true }, { PIPELINE_GPIPE, false }, { PIPELINE_ZB_H1, false } };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct model_spec spec = tiny_spec("llama");
        struct compile_train way = way_of(&spec, ways[i].kind, RECOMPUTE_KIND_FULL, LAYERS);
        int n_recomputed = 0;
        struct fleet f;

        fleet_open(&f, "llama", &way, 2);
        for (int k = 0; k < f.stages[1].n_functions; k++)
            for (int j = 0; j < f.stages[1].functions[k].n_ops; j++)
                n_recomputed += f.stages[1].functions[k].ops[j].phase == PHASE_R &&
                                f.stages[1].functions[k].ops[j].layer >= 0;
        assert_true(ways[i].keeps == !n_recomputed);
        fleet_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_moves_no_gathers),
        cmocka_unit_test(test_hides),
        cmocka_unit_test(test_last_stage_keeps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
