/*
 * experts_adversarial_test.c - the law of divided experts where routing is as uneven as it may be
 *
 * The bias of a sigmoid's router only chooses, and no gradient changes it: a test sets it before
 * the first step, and so says which experts all tokens go to. What ep may not change, and what runs
 * of one ep agree on, holds there too; and an expert without rows in a whole step is updated.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "layout/axes.h"
#include "support/law_rig.h"
#include "train/trainer.h"

enum { N_EXPERTS_MAX = 12 };

/* All that the hooks of ranks read: set while there are none. */
static struct plot {
    const char *what;
    int n_experts, n_chosen, seq_len;
    int first, last; /* the experts that are preferred, or avoided */
    float bias;      /* of each of them */
} plot;

static int has_end(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && !strcmp(text + n - m, end);
}

/* From the first step on, or from a later one. */
static void set_bias(struct trainer *trainer)
{
    const struct program *p = trainer_program(trainer);
    float bias[N_EXPERTS_MAX] = { 0 };

    for (int e = plot.first; e <= plot.last; e++)
        bias[e] = plot.bias;
    for (int i = 0; i < p->n_parameters; i++)
        if (has_end(p->parameters[i].name, ".router.bias"))
            run_put(trainer_run(trainer), p->parameters[i].weight, 0, 0, bias,
                    (size_t)plot.n_experts * sizeof *bias);
}

static void set_bias_first(struct trainer *trainer, const struct mesh_place *place, int step)
{
    (void)place;
    if (step == 0)
        set_bias(trainer);
}

/* ---- ep and no ep, and zero ---- */

static const struct plot plots[] = {
    { "all to the first expert", 12, 1, 20, 0, 0, 10 },
    { "all to the last expert", 12, 1, 20, 11, 11, 10 },
    { "all to one rank", 12, 3, 20, 3, 5, 10 },
    { "no row for an expert", 12, 2, 20, 5, 5, -10 },
    { "no row for a rank", 12, 4, 20, 6, 11, -10 },
    { "every expert", 4, 4, 20, 0, 0, 0 },
    { "one token", 12, 2, 1, 0, 0, 0 },
    { "one token of one expert", 4, 1, 1, 2, 2, 10 },
};

#define N_PLOTS (int)(sizeof plots / sizeof *plots)

static struct law_outcome run_plot(int ep, int zero, const char *dtype, const char *recompute)
{
    struct law_case c = law_base("routed", dtype);
    char tuning[320];

    snprintf(tuning, sizeof tuning,
             "model.router_groups=1|model.router_groups_kept=1|model.n_experts=%d|"
             "model.n_active_experts=%d|data.seq_len=%d|parallel.ep=%d",
             plot.n_experts, plot.n_chosen, plot.seq_len, ep);
    c.n_ranks = 4;
    c.tuning = tuning;
    c.zero = zero;
    c.recompute = recompute;
    c.poison = 1;
    c.before_step = set_bias_first;
    return law_run(&c);
}

static void check_plot(int ep, const char *dtype, const struct law_outcome *without)
{
    struct law_outcome with = run_plot(ep, 0, dtype, "none"), sharded;
    double tolerance = strcmp(dtype, "fp32") ? 3e-2 : 1e-4;
    char what[120];

    snprintf(what, sizeof what, "%s, %s, ep %d", plot.what, dtype, ep);
    if (with.loss[0] != without->loss[0])
        fail_msg("%s: %a, without %a", what, with.loss[0], without->loss[0]);
    for (int step = 0; step < LAW_STEPS; step++)
        if (!(fabs(with.loss[step] - without->loss[step]) < tolerance))
            fail_msg("%s: step %d: %g, without %g", what, step + 1, with.loss[step],
                     without->loss[step]);
    sharded = run_plot(ep, 1, dtype, "full");
    law_must_equal(what, &with, &sharded);
}

static void routing_as_uneven_as_it_may_be(void **state)
{
    (void)state;
    for (int i = 0; i < N_PLOTS; i++) {
        const char *dtype = i % 2 ? "bf16" : "fp32";

        if (law_left_out())
            continue;
        plot = plots[i];
        struct law_outcome without = run_plot(1, 0, dtype, "none");
        for (int ep = 2; ep <= 4; ep *= 2)
            check_plot(ep, dtype, &without);
    }
}

/* ---- an expert without rows for a step ---- */

enum { AVOIDED_FROM = 1, MOMENT1 = 0, MOMENT2, MASTER, N_KEPT }; /* the second step; its states */

/* A rank's states of the avoided expert: some elements, and the bias. */
struct kept {
    float of[N_KEPT][2], bias[2];
    int n_seen; /* elements of it that the rank has states of */
};

static struct kept kept[8];
static int n_ranks_seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static float read_float(struct trainer *trainer, int cell, int64_t at)
{
    float x = NAN;
    struct err err;

    if (run_get(trainer_run(trainer), cell, 0, (size_t)at * sizeof x, &x, sizeof x, &err))
        return NAN;
    return x;
}

/* Of the first matrix of experts: an element of the avoided one that the rank has states of, or -1.
 */
static int64_t find_element(const struct program *p, int parameter, const struct mesh_place *place)
{
    const struct parameter *q = &p->parameters[parameter];
    struct parameter_part part = program_parameter_part(p, parameter, place);
    int n_own = plot.n_experts / p->mesh.size[axes_experts()];
    int64_t elements = q->rows * q->cols / n_own;
    int64_t begin = (plot.first - place->of[axes_experts()] * n_own) * elements;
    int64_t at = begin > part.begin ? begin : part.begin;

    if (begin < 0 || begin >= q->rows * q->cols || at >= part.end || at >= begin + elements)
        return -1;
    return at;
}

/* before: index of what is read. */
static void keep_states(struct trainer *trainer, const struct mesh_place *place, struct kept *k,
                        int before)
{
    const struct program *p = trainer_program(trainer);

    for (int i = 0; i < p->n_parameters; i++) {
        int64_t at = -1;

        if (has_end(p->parameters[i].name, "layers.2.router.bias"))
            k->bias[before] = read_float(trainer, p->parameters[i].weight, plot.first);
        if (has_end(p->parameters[i].name, "layers.2.experts.gate_up.weight"))
            at = find_element(p, i, place);
        if (at < 0)
            continue;
        struct parameter_part part = program_parameter_part(p, i, place);
        at += part.offset - part.begin;
        k->of[MOMENT1][before] = read_float(trainer, part.moment1, at);
        k->of[MOMENT2][before] = read_float(trainer, part.moment2, at);
        k->of[MASTER][before] = read_float(trainer, part.master, at);
        k->n_seen++;
    }
}

static void watch_avoided(struct trainer *trainer, const struct mesh_place *place, int step)
{
    const struct mesh *mesh = &trainer_program(trainer)->mesh;
    struct kept *k = &kept[mesh_rank_at(mesh, place)];

    if (step == AVOIDED_FROM)
        set_bias(trainer);
    if (step == AVOIDED_FROM || step == AVOIDED_FROM + 1)
        keep_states(trainer, place, k, step - AVOIDED_FROM);
    pthread_mutex_lock(&lock);
    n_ranks_seen += step == LAW_STEPS;
    pthread_mutex_unlock(&lock);
}

static void check_kept(const struct kept *k)
{
    assert_true(k->bias[0] == -10.0f);
    assert_true(k->bias[1] == -10.0f + 0.01f); /* too few tokens, as ever */
    if (!k->n_seen)
        return;
    assert_int_equal(k->n_seen, 2);
    assert_true(k->of[MOMENT1][0] != 0);
    assert_true(k->of[MOMENT1][1] == 0.5f * k->of[MOMENT1][0]);
    assert_true(k->of[MOMENT2][1] == 0.75f * k->of[MOMENT2][0]);
    assert_true(k->of[MASTER][1] != k->of[MASTER][0]);
}

static void an_expert_without_rows_is_updated(void **state)
{
    (void)state;
    plot = (struct plot){ "none", 12, 2, 20, 5, 5, -10 };
    for (int ep = 1; ep <= 4; ep *= 2)
        for (int zero = 0; zero < 2; zero++) {
            struct law_case c = law_base("routed", zero ? "bf16" : "fp32");
            char tuning[320];
            int n_seen = 0;

            snprintf(tuning, sizeof tuning,
                     "model.router_groups=1|model.router_groups_kept=1|model.n_experts=12|"
                     "optimizer.beta1=0.5|optimizer.beta2=0.75|parallel.ep=%d",
                     ep);
            memset(kept, 0, sizeof kept);
            n_ranks_seen = 0;
            c.n_ranks = 4;
            c.tuning = tuning;
            c.zero = zero;
            c.before_step = watch_avoided;
            law_run(&c);
            assert_int_equal(n_ranks_seen, c.n_ranks);
            for (int rank = 0; rank < c.n_ranks; rank++) {
                check_kept(&kept[rank]);
                n_seen += kept[rank].n_seen > 0;
            }
            /* Of ranks with equal experts ZeRO leaves it to one, or to two that share its rows. */
            assert_true(zero ? n_seen >= 1 : n_seen == 4 / ep);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routing_as_uneven_as_it_may_be),
        cmocka_unit_test(an_expert_without_rows_is_updated),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
