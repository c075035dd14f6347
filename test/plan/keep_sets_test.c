/*
 * keep_sets_test.c - points of a layer against programs that are compiled with them
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/keep_sets.h"
#include "plan/programs.h"

enum { N_LAYERS = 6 };

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct device_spec device;
    struct cluster cluster;
    struct job job;
    struct keep_sets sets;
};

static void open_fixture(struct fixture *f, const char *model, const char *parallel, int n_ranks)
{
    struct err err;
    char text[900];

    *f = (struct fixture){ .arena = { 0 } };
    snprintf(text, sizeof text,
             "{model: {%s, vocab_size: 512, hidden_size: 128, n_layers: %d, n_heads: 8, "
             "n_kv_heads: 8, ffn_size: 384, max_seq_len: 128}, data: {train: a, seq_len: 128}, "
             "device: cuda, parallel: {%s}, train: {steps: 10, global_batch: 16, micro_batch: 2, "
             "dtype: bf16}}",
             model, N_LAYERS, parallel);
    if (kernels_gpu_sizes_create(&f->kernels, &err) ||
        job_read_text(&f->job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err) ||
        job_resolve(&f->job, n_ranks, &f->arena, &err) ||
        device_read(&f->device, "h100-sxm", &f->arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, n_ranks, &f->arena);
    const struct keep_sets_request request = { &f->job, f->kernels, &f->cluster, 0, false };
    if (keep_sets_find(&f->sets, &request, &f->arena, &err))
        fail_msg("%s", err.text);
}

static void close_fixture(struct fixture *f)
{
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

/* ---- against programs ---- */

/* What a program takes of which this layer, or none (-1), has this set. */
struct taken {
    int64_t slot_bytes, scratch_bytes, n_remade;
};

static struct taken compile_with(struct fixture *f, const struct keep_set *set, int layer)
{
    const struct keep_set sets[] = { { .full = false }, *set };
    unsigned char set_of_layer[N_LAYERS] = { 0 };
    struct job job = f->job;
    const struct programs_request request = { .job = &job, .kernels = f->kernels };
    struct program program = { 0 };
    struct taken taken = { 0 };
    struct err err;

    if (layer >= 0)
        set_of_layer[layer] = 1;
    job.keep_sets = (struct layer_keep_sets){ sets, set_of_layer };
    if (programs_compile(&program, &request, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < program.n_stashes; i++)
        taken.slot_bytes += (int64_t)program.stashes[i].slot_bytes;
    taken.scratch_bytes = (int64_t)program.segment_bytes[SEGMENT_SCRATCH];
    for (int i = 0; i < program.n_functions; i++)
        for (int k = 0; k < program.functions[i].n_ops; k++)
            taken.n_remade += program.functions[i].ops[k].phase == PHASE_R;
    program_release(&program);
    return taken;
}

static void check_front(const struct keep_front *front)
{
    const struct keep_point *points = front->points;

    assert_true(front->n_points >= 3);
    assert_true(points[0].added_ns == 0 && bitset_is_empty(&points[0].set.dropped));
    assert_true(front->forward_ns > 0 && front->backward_ns > front->forward_ns);
    for (int i = 0; i < front->n_points; i++) {
        int64_t n_bytes = 0;

        for (int k = 0; k < points[i].n_parts; k++)
            n_bytes += points[i].parts[k].n_bytes;
        assert_true(n_bytes > 0 && n_bytes <= points[i].slot_bytes);
        for (int j = 0; j < i; j++) {
            assert_true(points[j].added_ns <= points[i].added_ns);
            assert_true(points[j].slot_bytes > points[i].slot_bytes ||
                        points[j].scratch_bytes > points[i].scratch_bytes);
        }
    }
}

/* The slot of a compiled program is smaller by what the point says, in a layer of each kind that is
 * neither first nor last. Returns at how many points the scratch of the program is this layer's. */
static int check_points(struct fixture *f, int layer)
{
    const struct keep_front *front = &f->sets.fronts[f->sets.front_of_layer[layer]];
    const struct taken none = compile_with(f, &front->points[0].set, -1);

    int n_exact = 0;

    check_front(front);
    for (int i = 0; i < front->n_points; i++) {
        const struct keep_point *point = &front->points[i];
        const struct taken taken = compile_with(f, &point->set, layer);

        assert_int_equal(none.slot_bytes - taken.slot_bytes,
                         front->points[0].slot_bytes - point->slot_bytes);
        assert_int_equal(i > 0, taken.n_remade > none.n_remade);
        assert_true(taken.scratch_bytes >= point->scratch_bytes);
        n_exact += taken.scratch_bytes == point->scratch_bytes;
    }
    return n_exact;
}

#define LLAMA "norm: rmsnorm, position: rope, activation: swiglu"
#define GPT2 "norm: layernorm, position: learned, activation: gelu, bias: true, dropout: 0.1"
#define EXPERTS LLAMA ", n_experts: 8, n_active_experts: 2, expert_ffn_size: 64, expert_every: 2"

static void slots_are_those_of_programs(void **state)
{
    static const struct {
        const char *model, *parallel;
        int n_ranks;
    } cases[] = { { LLAMA, "", 1 },        { GPT2, "", 1 },
                  { LLAMA, "tp: 2", 2 },   { GPT2, "tp: 2, sequence_parallel: false", 2 },
                  { LLAMA, "zero: 3", 2 }, { LLAMA, "cp: 2", 2 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;

        open_fixture(&f, cases[i].model, cases[i].parallel, cases[i].n_ranks);
        assert_int_equal(f.sets.n_fronts, 1);
        assert_false(f.sets.fronts[0].is_partial);
        assert_int_equal(f.sets.fronts[0].n_sets, (1 << f.sets.fronts[0].n_kinds) + 1);
        int n_exact = check_points(&f, 2);
        assert_true(n_exact > 0 || cases[i].n_ranks > 1);
        close_fixture(&f);
    }
}

/* Each second layer has experts: two fronts, and each is of its own layers. */
static void kinds_of_layers_have_fronts_of_their_own(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, EXPERTS, "", 1);
    assert_int_equal(f.sets.n_fronts, 2);
    assert_int_equal(f.sets.front_of_layer[1], f.sets.front_of_layer[3]);
    assert_int_not_equal(f.sets.front_of_layer[1], f.sets.front_of_layer[2]);
    assert_true(check_points(&f, 2) > 0);
    assert_true(check_points(&f, 3) > 0);
    close_fixture(&f);
}

/* With what ranks exchange there are more kinds than are tried in full. */
static void many_kinds_are_tried_along_the_hull(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, EXPERTS ", qk_norm: true, dropout: 0.1", "tp: 2", 2);
    const struct keep_front *front = &f.sets.fronts[f.sets.front_of_layer[3]];
    assert_true(front->n_kinds > KEEP_KINDS_MAX);
    assert_true(front->is_partial);
    assert_true(front->n_sets < front->n_kinds * front->n_kinds);
    check_points(&f, 3);
    close_fixture(&f);
}

/* What data parallel, ZeRO and pipelines add is of no layer's values: a search finds a front once
 * for all of them (plan/search_fronts.c). */
static void test_fronts_depend_on_tp_alone(void **state)
{
    struct fixture one, all;

    (void)state;
    open_fixture(&one, "position: rope", "tp: 2", 2);
    open_fixture(&all, "position: rope", "tp: 2, pp: 2, dp: 4, zero: 3", 16);
    const struct keep_front *a = &one.sets.fronts[0], *b = &all.sets.fronts[0];
    assert_int_equal(one.sets.n_fronts, all.sets.n_fronts);
    assert_int_equal(a->n_points, b->n_points);
    assert_true(a->n_points > 3);
    for (int i = 0; i < a->n_points; i++) {
        assert_true(a->points[i].added_ns == b->points[i].added_ns);
        assert_true(a->points[i].slot_bytes == b->points[i].slot_bytes);
        assert_true(a->points[i].scratch_bytes == b->points[i].scratch_bytes);
        assert_true(a->points[i].handed_bytes == b->points[i].handed_bytes);
    }
    close_fixture(&one);
    close_fixture(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_those_of_programs),
        cmocka_unit_test(kinds_of_layers_have_fronts_of_their_own),
        cmocka_unit_test(many_kinds_are_tried_along_the_hull),
        cmocka_unit_test(test_fronts_depend_on_tp_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
