/*
 * tuning_test.c - adapters as parameters, and what is trained
 */
#include "config_fixture.h"

#include <math.h>

#include "base/str.h"

static void read_model(struct job *job, const char *keys, struct arena *arena)
{
    must_read(job, arena_printf(arena, "{data: {train: a}, %s}", keys), arena);
}

static struct parameter_spec must_find(const struct job *job, int layer, enum lora_module module,
                                       enum lora_matrix matrix)
{
    struct parameter_spec q = { 0 };

    assert_true(tuning_adapter(job->tuning, &job->model, layer, module, matrix, &q));
    assert_int_equal(q.role, PARAMETER_ADAPTER);
    assert_true(tuning_trains(job->tuning, &q));
    return q;
}

static void names_round_trip(void **state)
{
    static const char *const others[] = { "layers.0.qkv.weight",      "layers.0.q.lora_c",
                                          "layers.0.q.lora_a.weight", "layers.x.q.lora_a",
                                          "layers.0.nope.lora_a",     "q.lora_a" };
    char name[PARAMETER_NAME_MAX];
    enum lora_module module;
    enum lora_matrix matrix;
    int layer;

    (void)state;
    for (int i = 0; i < N_LORA_MODULES * N_LORA_MATRICES; i++) {
        lora_name(name, i, (enum lora_module)(i / N_LORA_MATRICES),
                  (enum lora_matrix)(i % N_LORA_MATRICES));
        assert_true(tuning_is_adapter(name));
        assert_true(lora_parse_name(name, &layer, &module, &matrix));
        assert_int_equal(layer, i);
        assert_int_equal(module, i / N_LORA_MATRICES);
        assert_int_equal(matrix, i % N_LORA_MATRICES);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(lora_parse_name(others[i], &layer, &module, &matrix));
}

/* llama-tiny: hidden 64, 4 heads of 16 with 2 kv heads, feed-forward 176. */
static void shapes_follow_the_pieces(void **state)
{
    struct arena arena = { 0 };
    struct job job;

    (void)state;
    read_model(&job, "model: llama-tiny, train: {steps: 1}, lora: {rank: 3}", &arena);
    struct parameter_spec a = must_find(&job, 1, LORA_K, LORA_A);
    struct parameter_spec b = must_find(&job, 1, LORA_K, LORA_B);
    assert_string_equal(a.name, "layers.1.k.lora_a");
    assert_int_equal(a.rows, 3);
    assert_int_equal(a.cols, 64);
    assert_int_equal(a.divided, SPREAD_SAME);
    assert_int_equal(a.init, INIT_UNIFORM);
    assert_true(a.init_std == 1 / sqrt(64.0));
    assert_string_equal(b.name, "layers.1.k.lora_b");
    assert_int_equal(b.rows, 32);
    assert_int_equal(b.cols, 3);
    assert_int_equal(b.n_pieces, 1);
    assert_int_equal(b.divided, SPREAD_ROWS);
    assert_int_equal(b.init, INIT_ZEROS);
    /* Of what is divided by its inputs A is, too. */
    assert_int_equal(must_find(&job, 0, LORA_DOWN, LORA_A).divided, SPREAD_COLS);
    assert_int_equal(must_find(&job, 0, LORA_DOWN, LORA_B).divided, SPREAD_SAME);
    assert_false(tuning_adapter(job.tuning, &job.model, 0, LORA_QKV, LORA_A, &a));
    assert_false(tuning_adapter(NULL, &job.model, 0, LORA_Q, LORA_A, &a));
    arena_release(&arena);
}

/* Of each expert a pair, one below the other; names of matrices mean experts' where there are no
 * others, and `all` does not include them. */
static void experts_have_their_own(void **state)
{
    static const char *const texts[] = { "w2", "[experts.gate, experts.down]", "all" };
    struct arena arena = { 0 };
    struct job job;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct parameter_spec a, b;

        read_model(&job,
                   arena_printf(&arena,
                                "model: mixtral-tiny, train: {steps: 1}, lora: {rank: 3, targets: "
                                "%s}",
                                texts[i]),
                   &arena);
        int m = job.model.n_experts, f = job.model.expert_ffn_size;
        if (i == 2) {
            assert_false(tuning_adapter(job.tuning, &job.model, 0, LORA_EXPERTS_DOWN, LORA_A, &a));
            assert_false(tuning_adapter(job.tuning, &job.model, 0, LORA_DOWN, LORA_A, &a));
            continue;
        }
        a = must_find(&job, 1, LORA_EXPERTS_DOWN, LORA_A);
        b = must_find(&job, 1, LORA_EXPERTS_DOWN, LORA_B);
        assert_string_equal(a.name, "layers.1.experts.down.lora_a");
        assert_int_equal(a.kind, PARAMETER_EXPERT);
        assert_int_equal(a.rows, 3 * m);
        assert_int_equal(a.cols, f);
        assert_int_equal(b.rows, m * job.model.hidden_size);
        assert_int_equal(b.n_repeats, m);
        assert_int_equal(a.divided, SPREAD_COLS);
        assert_int_equal(b.divided, SPREAD_SAME);
        if (!i)
            continue;
        b = must_find(&job, 1, LORA_EXPERTS_GATE, LORA_B);
        assert_int_equal(b.rows, m * f);
        assert_int_equal(b.pieces[0], f);
        assert_int_equal(b.n_pieces, 1);
        assert_int_equal(b.divided, SPREAD_ROWS);
        assert_false(tuning_adapter(job.tuning, &job.model, 0, LORA_EXPERTS_UP, LORA_A, &a));
    }
    arena_release(&arena);
}

/* GPT-2's: one pair for all of qkv, and an up that has no gate beside it. */
static void packed_and_plain(void **state)
{
    struct arena arena = { 0 };
    struct job job;

    (void)state;
    read_model(&job, "model: gpt2-tiny, train: {steps: 1}, lora: {rank: 2}", &arena);
    struct parameter_spec b = must_find(&job, 0, LORA_QKV, LORA_B);
    assert_int_equal(b.n_pieces, 3);
    assert_int_equal(b.rows, 3 * job.model.hidden_size);
    b = must_find(&job, 0, LORA_UP, LORA_B);
    assert_int_equal(b.id.module, MODULE_UP);
    assert_int_equal(b.rows, job.model.ffn_size);
    assert_false(tuning_adapter(job.tuning, &job.model, 0, LORA_GATE, LORA_A, &b));
    arena_release(&arena);
}

static int trains(const struct job *job, enum module_id module, enum module_part part)
{
    return tuning_trains_id(job->tuning, &job->model, parameters_id(&job->model, module, part, 0));
}

static void what_is_trained_beside_adapters(void **state)
{
    struct arena arena = { 0 };
    struct job job;

    (void)state;
    read_model(
        &job,
        "model: gpt2-tiny, train: {steps: 1}, lora: {rank: 2, targets: c_fc, bias: lora_only, "
        "modules_to_save: [lm_head, ln_f]}",
        &arena);
    assert_true(trains(&job, MODULE_UP, PART_BIAS));
    assert_false(trains(&job, MODULE_UP, PART_WEIGHT));
    assert_false(trains(&job, MODULE_DOWN, PART_BIAS));
    assert_false(trains(&job, MODULE_ATTENTION_NORM, PART_BIAS));
    /* The head is the embedding's table; a saved norm has its bias. */
    assert_true(trains(&job, MODULE_EMBEDDING, PART_WEIGHT));
    assert_true(trains(&job, MODULE_FINAL_NORM, PART_BIAS));
    assert_false(trains(&job, MODULE_HEAD, PART_WEIGHT));
    arena_release(&arena);
}

static void check(const char *keys, const char *refusal)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job job;

    read_model(&job, keys, &arena);
    assert_int_equal(tuning_check(job.tuning, &job.model, &err), refusal ? -1 : 0);
    if (refusal && !strstr(err.text, refusal))
        fail_msg("%s", err.text);
    arena_release(&arena);
}

static void patterns_mean_something(void **state)
{
    (void)state;
    check("model: llama-tiny, train: {steps: 1, only: [layers.1.*]}", NULL);
    check("model: llama-tiny, train: {steps: 1, freeze: [layers.2.*]}",
          "layers.2.*, which matches no parameter (hint: such as embedding.weight, "
          "layers.*.qkv.weight)");
    check("model: llama-tiny, train: {steps: 1, freeze: ['*']}", "leaves no parameter");
    check("model: llama-tiny, train: {steps: 1}, lora: {rank: 1, targets: q}", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(shapes_follow_the_pieces),
        cmocka_unit_test(experts_have_their_own),
        cmocka_unit_test(packed_and_plain),
        cmocka_unit_test(what_is_trained_beside_adapters),
        cmocka_unit_test(patterns_mean_something),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
