/*
 * declare_test.c - every model's parameters: their names, number, shapes and initial values
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "config/embedded.h"
#include "support/tiny_model.h"

static void declare(struct program *program, const struct model_spec *spec)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct model_builder builder = { .program = program,
                                     .spec = spec,
                                     .dtype = DTYPE_BF16,
                                     .n_sequences = 1,
                                     .seq_len = 16,
                                     .max_positions = 16 };

    struct model_chunk whole = model_whole(spec);

    program_init(program, &mesh);
    model_declare(&builder, &whole, 1);
}

/* The name of configs/models/NAME.yaml, or NULL if path is none. */
static const char *model_name(const char *path, char *buffer, size_t size)
{
    const char *folder = "configs/models/";
    size_t n = strlen(path);

    if (!str_starts_with(path, folder) || !str_ends_with(path, ".yaml"))
        return NULL;
    n -= strlen(folder) + strlen(".yaml");
    assert_true(n < size);
    memcpy(buffer, path + strlen(folder), n);
    buffer[n] = '\0';
    return buffer;
}

static int find(const struct program *p, const char *name)
{
    for (int i = 0; i < p->n_parameters; i++)
        if (!strcmp(p->parameters[i].name, name))
            return i;
    return -1;
}

/* What model.h promises of one model. */
static void check_model(const char *name)
{
    struct model_spec spec = real_spec(name);
    struct program p;
    int64_t n = 0;

    declare(&p, &spec);
    for (int i = 0; i < p.n_parameters; i++) {
        const struct parameter *q = &p.parameters[i];

        n += q->rows * q->cols;
        assert_int_equal(find(&p, q->name), i);
        assert_int_equal(p.values[q->weight].dtype, q->n_dims == 1 ? DTYPE_F32 : DTYPE_BF16);
        assert_string_equal(p.values[q->weight].name, q->name);
        assert_int_equal(str_ends_with(q->name, ".bias"), q->init == INIT_ZEROS);
        assert_int_equal(q->n_dims == 2, q->init == INIT_NORMAL);
        assert_int_equal(program_parameter_of(&p, q->weight), i);
    }
    if (n != model_spec_n_parameters(&spec))
        fail_msg("%s has %lld parameters, its spec %lld", name, (long long)n,
                 (long long)model_spec_n_parameters(&spec));
    assert_int_equal(find(&p, "head.weight") >= 0, !spec.tied_embeddings);
    assert_int_equal(find(&p, "position.weight") >= 0, spec.position == POSITION_LEARNED);
    assert_int_equal(find(&p, "final_norm.bias") >= 0, spec.norm == NORM_LAYER && spec.bias);
    assert_int_equal(p.ports.rope_table > 0, spec.position == POSITION_ROPE);
    program_release(&p);
}

static void every_model(void **state)
{
    int n = 0;
    char name[64];

    (void)state;
    for (int i = 0; i < n_embedded_files; i++)
        if (model_name(embedded_files[i].path, name, sizeof name)) {
            check_model(name);
            n++;
        }
    assert_true(n >= 19);
}

/* Shapes by hand, of grouped heads and of gates. */
static void shapes(void **state)
{
    static const struct {
        const char *model, *parameter;
        int64_t rows, cols;
    } expected[] = {
        { "llama", "embedding.weight", 96, 32 },
        { "llama", "layers.1.qkv.weight", (4 + 2 * 2) * 8, 32 },
        { "llama", "layers.1.attention_out.weight", 32, 32 },
        { "llama", "layers.1.gate_up.weight", 2 * 48, 32 },
        { "llama", "layers.1.down.weight", 32, 48 },
        { "llama", "layers.0.ffn_norm.weight", 1, 32 },
        { "llama", "head.weight", 96, 32 },
        { "gpt2", "position.weight", 8, 32 },
        { "gpt2", "layers.0.qkv.bias", 1, 3 * 32 },
        { "gpt2", "layers.0.up.weight", 128, 32 },
        { "gpt2", "layers.0.up.bias", 1, 128 },
        { "gpt2", "layers.0.attention_norm.bias", 1, 32 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct model_spec spec = tiny_spec(expected[i].model);
        struct program p;

        declare(&p, &spec);
        int at = find(&p, expected[i].parameter);
        assert_true(at >= 0);
        assert_int_equal(p.parameters[at].rows, expected[i].rows);
        assert_int_equal(p.parameters[at].cols, expected[i].cols);
        program_release(&p);
    }
}

/* GPT-2's: what writes to the residual stream begins smaller, by sqrt(2 n_layers). */
static void initial_deviations(void **state)
{
    struct model_spec spec = real_spec("gpt2");
    struct program p;

    (void)state;
    declare(&p, &spec);
    for (int i = 0; i < p.n_parameters; i++) {
        const struct parameter *q = &p.parameters[i];
        int residual = str_ends_with(q->name, ".attention_out.weight") ||
                       str_ends_with(q->name, ".down.weight");

        if (q->n_dims == 2)
            assert_true(fabs(q->init_std - (residual ? 0.02 / sqrt(24.0) : 0.02)) < 1e-12);
    }
    program_release(&p);
}

/* What a rank of two has along rows or columns: half of each piece, padded. */
static int64_t half(const struct parameter_spec *q)
{
    int64_t n = 0;

    for (int i = 0; i < q->n_pieces; i++)
        n += q->n_repeats * ((q->pieces[i] + 1) / 2);
    return n;
}

static void check_declared(const struct parameter *p, const struct parameter_spec *q)
{
    int64_t rows = q->n_dims == 1 ? 1 : q->rows, cols = q->n_dims == 1 ? q->rows : q->cols;

    assert_string_equal(p->name, q->name);
    assert_int_equal(p->n_dims, q->n_dims);
    assert_int_equal(p->whole_rows, rows);
    assert_int_equal(p->whole_cols, cols);
    assert_int_equal(p->init, q->init);
    assert_true(p->init_std == q->init_std);
    if (q->divided == SPREAD_ROWS)
        assert_int_equal(q->n_dims == 1 ? p->cols : p->rows, half(q));
    assert_int_equal(p->rows * p->cols < rows * cols, q->divided != SPREAD_SAME);
}

/* All parameters in the inventory's order, and by their ids. */
static void check_inventory(const struct model_builder *b)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    int next = 0;

    for (int layer = LAYER_BEFORE; layer <= b->spec->n_layers; layer++)
        for (int i = 0, n = parameters_of_layer(b->spec, layer, list); i < n; i++, next++) {
            assert_int_equal(model_parameter(b, list[i].id), next);
            check_declared(&b->program->parameters[next], &list[i]);
        }
    assert_int_equal(next, b->program->n_parameters);
}

static void what_the_inventory_lists(void **state)
{
    static const char *const names[] = { "llama", "gpt2", "mixture" };
    struct mesh mesh = mesh_data_parallel(1);

    (void)state;
    mesh.size[AXIS_TP] = 2;
    for (int i = 0; i < 3; i++) {
        struct model_spec spec = tiny_spec(names[i]);
        struct model_chunk whole = model_whole(&spec);
        struct program p;
        struct model_builder builder = {
            .program = &p, .spec = &spec, .n_sequences = 1, .seq_len = 16, .max_positions = 16
        };

        program_init(&p, &mesh);
        model_declare(&builder, &whole, 1);
        check_inventory(&builder);
        program_release(&p);
    }
}

/* A stage with the head alone has a copy of what it is tied to, under the same id. */
static void copies_of_tied_embeddings(void **state)
{
    struct model_spec spec = tiny_spec("gpt2");
    struct mesh mesh = mesh_data_parallel(1);
    struct model_chunk last = { 1, 2, 1, 2 };
    struct program p;
    struct model_builder builder = {
        .program = &p, .spec = &spec, .n_sequences = 1, .seq_len = 8, .max_positions = 8
    };

    (void)state;
    program_init(&p, &mesh);
    model_declare(&builder, &last, 1);
    int copy = model_parameter(&builder, parameters_head(&spec));
    assert_int_equal(copy, p.n_parameters - 1);
    assert_true(p.parameters[copy].is_copy);
    assert_string_equal(p.parameters[copy].name, "embedding.weight");
    assert_int_equal(model_parameter(&builder, parameters_id(&spec, MODULE_QKV, PART_WEIGHT, 0)),
                     -1);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model),
        cmocka_unit_test(shapes),
        cmocka_unit_test(initial_deviations),
        cmocka_unit_test(what_the_inventory_lists),
        cmocka_unit_test(copies_of_tied_embeddings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
