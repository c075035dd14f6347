/*
 * tp_layers.c - see tp_layers.h
 */
#include "support/tp_layers.h"

#include <string.h>

static int weight(struct tp_layers *t, const char *name, int layer, int64_t rows, int64_t cols,
                  enum spread spread)
{
    struct program *p = &t->program;
    int id = program_cell(p, ROLE_WEIGHT, arena_printf(&p->arena, "layers.%d.%s", layer, name),
                          rows, cols, DTYPE_F32);

    p->values[id].spread[AXIS_TP] = spread;
    return id;
}

static int emit(struct tp_layers *t, enum op_kind kind, int layer, int a, int b, int64_t rows,
                int64_t cols)
{
    int y = program_value(&t->program, rows, cols, DTYPE_F32);
    struct op op = { .kind = kind, .in = { a, b }, .out = { y }, .layer = layer };

    if (op_is_collective(kind)) {
        op.attributes.axis = AXIS_TP;
        op.stream = STREAM_TP;
    }
    program_emit(&t->program, t->function, &op);
    return y;
}

static int build_layer(struct tp_layers *t, int layer, int x)
{
    int64_t rows = t->tokens / t->tp_size, part = t->f / t->tp_size;

    t->w1[layer] = weight(t, "w1", layer, part, t->d, SPREAD_ROWS);
    t->w2[layer] = weight(t, "w2", layer, t->d, part, SPREAD_COLS);
    t->gathered[layer] = emit(t, OP_ALL_GATHER, layer, x, 0, t->tokens, t->d);
    int h = emit(t, OP_LINEAR, layer, t->gathered[layer], t->w1[layer], t->tokens, part);
    t->partial[layer] = emit(t, OP_LINEAR, layer, h, t->w2[layer], t->tokens, t->d);
    int y = emit(t, OP_REDUCE_SCATTER, layer, t->partial[layer], 0, rows, t->d);
    return t->residual ? emit(t, OP_ADD, layer, x, y, rows, t->d) : y;
}

void tp_layers_build(struct tp_layers *t, int n_layers, int tp_size, int residual, int64_t tokens,
                     int64_t d, int64_t f)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program *p = &t->program;

    CHECK(n_layers <= TP_LAYERS_MAX);
    CHECK(tokens % tp_size == 0);
    CHECK(f % tp_size == 0);
    *t = (struct tp_layers){ .n_layers = n_layers,
                             .tp_size = tp_size,
                             .residual = residual,
                             .tokens = tokens,
                             .d = d,
                             .f = f };
    mesh.size[AXIS_TP] = tp_size;
    program_init(p, &mesh);
    t->function = program_function(p, "forward 0", 0);
    t->x = program_cell(p, ROLE_SCALAR, "x", tokens / tp_size, d, DTYPE_F32);
    p->values[t->x].spread[AXIS_TP] = SPREAD_ROWS;
    int x = t->x;
    for (int layer = 0; layer < n_layers; layer++)
        x = build_layer(t, layer, x);
    t->out = program_cell(p, ROLE_SCALAR, "out", tokens / tp_size, d, DTYPE_F32);
    program_emit(p, t->function,
                 &(struct op){ .kind = OP_ADD, .in = { x, x }, .out = { t->out }, .layer = -1 });

    struct entry *step = &p->entries[ENTRY_STEP];
    step->actions = arena_array(&p->arena, struct action, 1);
    step->actions[step->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .function = (int16_t)t->function, .first = 1 };
}
