/*
 * parameters_test.c - the inventory against shapes by hand and against closed formulas
 *
 * test/model/declare_test.c holds it against what programs declare.
 */
#include "config_fixture.h"

#include <math.h>

#include "base/str.h"
#include "config/embedded.h"
#include "config/parameters.h"

/* Calls check for each of configs/models. */
static void each_model(void (*check)(const struct model_spec *spec))
{
    const char *folder = "configs/models/";
    int n = 0;

    for (int i = 0; i < n_embedded_files; i++) {
        struct model_spec spec;
        char name[64];

        if (!str_starts_with(embedded_files[i].path, folder))
            continue;
        snprintf(name, sizeof name, "%s", embedded_files[i].path + strlen(folder));
        *strrchr(name, '.') = '\0';
        read_named_model(&spec, name);
        check(&spec);
        n++;
    }
    assert_true(n >= 40);
}

static struct parameter_spec must_find(const struct model_spec *spec, enum module_id module,
                                       enum module_part part, int layer)
{
    struct parameter_spec found = { 0 };

    assert_true(parameters_find(spec, parameters_id(spec, module, part, layer), &found));
    return found;
}

/* ---- closed formulas ---- */

static int64_t widths_of_ffn(const struct model_spec *s, int64_t n_experts)
{
    int64_t products = s->activation == ACTIVATION_SWIGLU ? 3 : 2;
    int64_t n_expert_layers = model_spec_n_expert_layers(s, s->n_layers);

    return (s->n_layers - n_expert_layers) * products * s->ffn_size +
           n_expert_layers * (s->n_experts + n_experts * products * s->expert_ffn_size +
                              products * s->shared_ffn_size + (s->shared_gate ? 1 : 0));
}

static int64_t linears(const struct model_spec *s, int64_t n_experts)
{
    int64_t heads = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;

    return s->hidden_size * (s->n_layers * (2 * heads + 2 * kv) + widths_of_ffn(s, n_experts));
}

static int64_t biases_of_layer(const struct model_spec *s)
{
    int64_t n = s->bias ? s->ffn_size * (s->activation == ACTIVATION_SWIGLU ? 2 : 1) : 0;

    n += s->bias ? s->hidden_size : 0;
    if (model_spec_has_qkv_bias(s))
        n += (int64_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    return n + (model_spec_has_output_bias(s) ? s->hidden_size : 0);
}

static int64_t all_parameters(const struct model_spec *s)
{
    int64_t norm = (int64_t)s->hidden_size * (s->norm == NORM_LAYER && s->bias ? 2 : 1);
    int64_t layer = 2 * norm + biases_of_layer(s) + (s->qk_norm ? 2 * s->head_dim : 0);
    int64_t rows = (int64_t)s->vocab_size * (s->tied_embeddings ? 1 : 2);

    rows += s->position == POSITION_LEARNED ? s->max_seq_len : 0;
    int64_t balances =
        s->router_bias ? (int64_t)model_spec_n_expert_layers(s, s->n_layers) * s->n_experts : 0;
    return linears(s, s->n_experts) + balances + s->n_layers * layer +
           norm * (s->embedding_norm ? 2 : 1) + rows * s->hidden_size;
}

static void check_counts(const struct model_spec *spec)
{
    assert_int_equal(model_spec_n_parameters(spec), all_parameters(spec));
    assert_int_equal(model_spec_n_matmul_parameters(spec),
                     linears(spec, spec->n_active_experts) +
                         (int64_t)spec->vocab_size * spec->hidden_size);
}

static void sums_are_the_closed_formulas(void **state)
{
    (void)state;
    each_model(check_counts);
}

/* ---- what is listed ---- */

static void check_parameter(const struct model_spec *spec, const struct parameter_spec *q)
{
    struct parameter_spec found;
    int64_t rows = 0;

    assert_true(parameters_find(spec, q->id, &found));
    assert_memory_equal(&found, q, sizeof found);
    for (int i = 0; i < q->n_pieces; i++)
        rows += q->pieces[i] * q->n_repeats;
    assert_int_equal(rows, q->rows);
    assert_int_equal(parameters_piece_begin(q, q->n_repeats, 0), q->rows);
    assert_true(q->n_dims == 2 || q->cols == 1);
    assert_int_equal(q->role == PARAMETER_BIAS || q->role == PARAMETER_BALANCE,
                     str_ends_with(q->name, ".bias"));
    assert_int_equal(q->kind == PARAMETER_EXPERT, strstr(q->name, ".experts.") != NULL);
    assert_int_equal(q->n_dims == 2, q->init == INIT_NORMAL);
    assert_int_equal(q->init == INIT_NORMAL, q->init_std > 0);
    assert_true(parameters_index(q->id) < parameters_n_indices(spec));
}

static void check_list(const struct model_spec *spec)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    int last = -1;

    for (int layer = LAYER_BEFORE; layer <= spec->n_layers; layer++) {
        int n = parameters_of_layer(spec, layer, list);

        assert_true(n > 0);
        for (int i = 0; i < n; i++) {
            check_parameter(spec, &list[i]);
            assert_int_equal(list[i].id.layer, layer);
            assert_true(parameters_index(list[i].id) > last);
            last = parameters_index(list[i].id);
        }
    }
}

static void every_module_has_a_row(void **state)
{
    (void)state;
    for (int module = 0; module < N_MODULES; module++)
        if (!parameters_module_name((enum module_id)module))
            fail_msg("module %d of parameters.h has no row in parameters.c (behind %s)", module,
                     module ? parameters_module_name((enum module_id)(module - 1)) : "no other");
}

static void lists_are_of_what_is_found(void **state)
{
    (void)state;
    each_model(check_list);
}

static void check_names(const struct model_spec *spec, int layer, const char *expected)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    struct str names = { 0 };
    int n = parameters_of_layer(spec, layer, list);

    for (int i = 0; i < n; i++)
        str_printf(&names, i ? " %s" : "%s", list[i].name);
    assert_string_equal(str_text(&names), expected);
    str_release(&names);
}

static void names_in_order(void **state)
{
    struct model_spec spec;

    (void)state;
    read_named_model(&spec, "gpt2-tiny");
    check_names(&spec, LAYER_BEFORE, "embedding.weight position.weight");
    check_names(&spec, 1,
                "layers.1.attention_norm.weight layers.1.attention_norm.bias layers.1.qkv.weight "
                "layers.1.qkv.bias layers.1.attention_out.weight layers.1.attention_out.bias "
                "layers.1.ffn_norm.weight layers.1.ffn_norm.bias layers.1.up.weight "
                "layers.1.up.bias layers.1.down.weight layers.1.down.bias");
    check_names(&spec, spec.n_layers, "final_norm.weight final_norm.bias");
    read_named_model(&spec, "qwen3-30b-a3b");
    check_names(&spec, LAYER_BEFORE, "embedding.weight");
    check_names(&spec, 0,
                "layers.0.attention_norm.weight layers.0.qkv.weight layers.0.q_norm.weight "
                "layers.0.k_norm.weight layers.0.attention_out.weight layers.0.ffn_norm.weight "
                "layers.0.router.weight layers.0.experts.gate_up.weight "
                "layers.0.experts.down.weight");
    check_names(&spec, spec.n_layers, "final_norm.weight head.weight");
    spec.expert_every = 2;
    check_names(&spec, 0,
                "layers.0.attention_norm.weight layers.0.qkv.weight layers.0.q_norm.weight "
                "layers.0.k_norm.weight layers.0.attention_out.weight layers.0.ffn_norm.weight "
                "layers.0.gate_up.weight layers.0.down.weight");
}

/* 2 layers, hidden 64, 4 heads of 16 with 2 kv heads, feed-forward 176, vocabulary 256. */
static void shapes_by_hand(void **state)
{
    struct model_spec spec;

    (void)state;
    read_named_model(&spec, "llama-tiny");
    struct parameter_spec q = must_find(&spec, MODULE_QKV, PART_WEIGHT, 1);
    assert_int_equal(q.rows, 64 + 32 + 32);
    assert_int_equal(q.cols, 64);
    assert_int_equal(q.n_pieces, 3);
    assert_int_equal(parameters_piece_begin(&q, 0, 2), 64 + 32);
    assert_int_equal(q.divided, SPREAD_ROWS);
    q = must_find(&spec, MODULE_DOWN, PART_WEIGHT, 0);
    assert_int_equal(q.rows, 64);
    assert_int_equal(q.cols, 176);
    assert_int_equal(q.divided, SPREAD_COLS);
    assert_true(q.init_std == spec.init_std / sqrt(2.0 * spec.n_layers));
    assert_false(parameters_find(&spec, parameters_id(&spec, MODULE_QKV, PART_BIAS, 0), &q));
    assert_false(parameters_find(&spec, parameters_id(&spec, MODULE_QKV, PART_WEIGHT, -1), &q));
    assert_false(
        parameters_find(&spec, parameters_id(&spec, MODULE_QKV, PART_WEIGHT, spec.n_layers), &q));
}

/* Of each expert gate and up; biases of what is divided by its outputs are divided, too. */
static void pieces_and_divisions(void **state)
{
    struct model_spec spec;

    (void)state;
    read_named_model(&spec, "mixtral-tiny");
    struct parameter_spec q = must_find(&spec, MODULE_EXPERTS_GATE_UP, PART_WEIGHT, 0);
    assert_int_equal(q.n_repeats, spec.n_experts);
    assert_int_equal(parameters_piece_begin(&q, 2, 1), 5 * spec.expert_ffn_size);
    q = must_find(&spec, MODULE_EXPERTS_DOWN, PART_WEIGHT, 0);
    assert_int_equal(parameters_piece_begin(&q, 3, 0), 3 * spec.hidden_size);
    assert_int_equal(must_find(&spec, MODULE_ROUTER, PART_WEIGHT, 0).divided, SPREAD_SAME);
    read_named_model(&spec, "gpt2");
    assert_int_equal(must_find(&spec, MODULE_QKV, PART_BIAS, 0).divided, SPREAD_ROWS);
    assert_int_equal(must_find(&spec, MODULE_ATTENTION_OUT, PART_BIAS, 0).divided, SPREAD_SAME);
    assert_int_equal(must_find(&spec, MODULE_UP, PART_BIAS, 0).rows, 4 * 768);
}

static void heads(void **state)
{
    struct model_spec spec;
    struct parameter_spec q;

    (void)state;
    read_named_model(&spec, "gpt2");
    assert_true(parameters_find(&spec, parameters_head(&spec), &q));
    assert_string_equal(q.name, "embedding.weight");
    assert_int_equal(q.role, PARAMETER_TABLE);
    read_named_model(&spec, "llama-7b");
    assert_true(parameters_find(&spec, parameters_head(&spec), &q));
    assert_string_equal(q.name, "head.weight");
    assert_int_equal(q.role, PARAMETER_MATRIX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_closed_formulas),
        cmocka_unit_test(lists_are_of_what_is_found),
        cmocka_unit_test(every_module_has_a_row),
        cmocka_unit_test(names_in_order),
        cmocka_unit_test(shapes_by_hand),
        cmocka_unit_test(pieces_and_divisions),
        cmocka_unit_test(heads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
