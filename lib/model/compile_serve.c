/*
 * compile_serve.c - programs without a backward: evaluation, generation, scores of given tokens
 */
#include <stdbool.h>
#include <string.h>

#include "layout/axes.h"
#include "model/compile_impl.h"

void compile_action(struct program *p, enum entry_kind kind, int function)
{
    struct entry *entry = &p->entries[kind];

    entry->actions = arena_array(&p->arena, struct action, 1);
    entry->actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .function = (int16_t)function };
}

/* Scalars summed over the ranks of an axis. */
static int sum_over(struct program *p, int function, enum mesh_axis axis, int value,
                    const char *name)
{
    int sum = program_cell(p, ROLE_SCALAR, name, 1, p->values[value].cols, DTYPE_F64);

    memcpy(p->values[sum].spread, p->values[value].spread, sizeof p->values[sum].spread);
    program_emit(p, function,
                 &(struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                               .attributes.axis = axis,
                               .in = { [ALL_REDUCE_SCALAR_X] = value },
                               .out = { [ALL_REDUCE_SCALAR_Y] = sum },
                               .phase = PHASE_U,
                               .stream = stream_of_sums(axis),
                               .layer = -1 });
    return sum;
}

static const char *name_of_sum(struct program *p, enum mesh_axis axis, const char *name)
{
    if (axis == axes_shard(&p->mesh, PARAMETER_EXPERT))
        return name;
    return arena_printf(&p->arena, "%s_all_%s", name, axis_places(axis));
}

/* Sums over the axes of tokens, one after the other, and of stages count each rank's summand
 * once. */
int compile_sum(struct program *p, int function, int value, const char *name)
{
    struct axis_list tokens = axes_of(&p->mesh, SPLITS_TOKENS, PARAMETER_DENSE);
    struct axis_list stages = axes_of(&p->mesh, SPLITS_LAYERS, PARAMETER_DENSE);

    for (int i = 0; i < tokens.n; i++)
        value = sum_over(p, function, tokens.axes[i], value, name_of_sum(p, tokens.axes[i], name));
    for (int i = 0; i < stages.n; i++)
        value = sum_over(p, function, stages.axes[i], value, name_of_sum(p, stages.axes[i], name));
    return value;
}

/* The forward of evaluation, on the same inputs (the largest size), and the sum of its loss over
 * ranks. */
void compile_evaluation(struct compiling *c)
{
    struct program *p = c->program;
    int dropout = c->builder.dropout;

    c->builder.dropout = 0;
    model_declare_evaluation(&c->builder);
    compile_forwards(c, MODEL_EVALUATE, "evaluate");
    c->builder.dropout = dropout;
    for (int i = 0; i < c->n_chunks; i++) {
        if (c->builder.has_ring)
            ring(p, c->functions[i].forward, -1);
        fuse(p, c->functions[i].forward);
    }
    schedule_forward(p, ENTRY_EVALUATE, c->functions, c->n_chunks);
    p->ports.eval_total = p->ports.eval_loss;
    if (axes_size(&p->mesh, SPLITS_TOKENS, PARAMETER_DENSE) == 1 &&
        axes_size(&p->mesh, SPLITS_LAYERS, PARAMETER_DENSE) == 1)
        return;
    int end = program_function(p, "evaluate end", 0);
    p->ports.eval_total = compile_sum(p, end, p->ports.eval_loss, "eval_total");
    compile_action(p, ENTRY_EVALUATE_END, end);
}

/* ---- a trained model alone ---- */

/* Extents of the inputs, and of what depends on positions. */
struct serving_shape {
    int n_sequences, seq_len;
    int longest;   /* positions of a sequence: rows of the rope table */
    int cache_len; /* 0: no cache */
};

/* The options of stages_plan: those of a training with one micro-batch. */
static struct compile_train stages_of(const struct compile_serving *s,
                                      const struct serving_shape *shape)
{
    return (struct compile_train){ .model = s->model,
                                   .mesh = s->mesh.size[axes_tensor()] ? s->mesh
                                                                       : mesh_data_parallel(1),
                                   .micro_batch = shape->n_sequences,
                                   .seq_len = shape->seq_len,
                                   .longest = shape->longest,
                                   .n_micro_batches = 1,
                                   .pipeline = { .kind = PIPELINE_1F1B, .rank = s->pp_rank },
                                   .scratch = s->scratch,
                                   .scratch_context = s->scratch_context };
}

/* Sets *c and *stages, which c borrows, and declares the parameters of the rank's stage. */
static int begin_serving(struct compiling *c, struct compile_train *stages, struct program *program,
                         const struct compile_serving *s, const struct serving_shape *shape,
                         struct err *err)
{
    *stages = stages_of(s, shape);
    CHECK(mesh_data_size(&stages->mesh) == 1);
    *c = (struct compiling){ .options = stages,
                             .program = program,
                             .builder = { .program = program,
                                          .spec = s->model,
                                          .dtype = s->dtype,
                                          .n_sequences = shape->n_sequences,
                                          .seq_len = shape->seq_len,
                                          .cache_len = shape->cache_len,
                                          .max_positions = shape->longest,
                                          .tuning = s->tuning } };
    program_init(program, &stages->mesh);
    if (stages_plan(c, err))
        return -1;
    model_declare(&c->builder, c->chunks, c->n_chunks);
    return 0;
}

/* An entry of one forward through all stages. */
static void serve(struct compiling *c, enum entry_kind entry, enum model_end end, const char *name)
{
    compile_forwards(c, end, name);
    for (int i = 0; i < c->n_chunks; i++)
        fuse(c->program, c->functions[i].forward);
    schedule_forward(c->program, entry, c->functions, c->n_chunks);
}

static bool has_head(const struct compiling *c)
{
    return c->chunks[c->n_chunks - 1].stage + 1 == c->n_stages;
}

int compile_evaluate(struct program *program, const struct compile_evaluate *options,
                     struct err *err)
{
    const struct serving_shape shape = { .n_sequences = options->micro_batch,
                                         .seq_len = options->seq_len,
                                         .longest = options->seq_len };
    struct compile_train stages;
    struct compiling c;

    if (begin_serving(&c, &stages, program, &options->serving, &shape, err))
        return -1;
    compile_evaluation(&c);
    return compile_finish(&c, err);
}

int compile_generate(struct program *program, const struct compile_generate *options,
                     struct err *err)
{
    const struct serving_shape shape = { .n_sequences = options->n_sequences,
                                         .seq_len = options->prefill_len,
                                         .longest = options->cache_len,
                                         .cache_len = options->cache_len };
    struct compile_train stages;
    struct compiling c;

    if (begin_serving(&c, &stages, program, &options->serving, &shape, err))
        return -1;
    serve(&c, ENTRY_PREFILL, MODEL_LOGITS, "prefill");

    /* One row a sequence: the first rows of the same inputs. */
    struct ports whole = program->ports;
    program->ports.tokens = program_view(program, whole.tokens, 0, options->n_sequences, 1, 1);
    program->ports.positions =
        program_view(program, whole.positions, 0, options->n_sequences, 1, 1);
    c.builder.seq_len = 1;
    serve(&c, ENTRY_DECODE, MODEL_LOGITS, "decode");
    program->ports.tokens = whole.tokens;
    program->ports.positions = whole.positions;
    return compile_finish(&c, err);
}

int compile_score(struct program *program, const struct compile_score *options, struct err *err)
{
    const struct serving_shape shape = { .n_sequences = 1,
                                         .seq_len = options->n_rows,
                                         .longest = options->max_positions,
                                         .cache_len = options->cache_rows };
    struct compile_train stages;
    struct compiling c;

    if (begin_serving(&c, &stages, program, &options->serving, &shape, err))
        return -1;
    program->ports.segment =
        program_cell(program, ROLE_SCALAR, "segment", options->n_rows, 1, DTYPE_I32);
    program->ports.segments =
        program_cell(program, ROLE_SCALAR, "segments", options->n_segments, 3, DTYPE_I32);
    serve(&c, ENTRY_FEED, MODEL_STREAM, "feed");
    if (has_head(&c)) {
        int score = program_function(program, "score", 0);

        model_score(&c.builder, score, options->n_asked);
        compile_action(program, ENTRY_SCORE, score);
    }
    return compile_finish(&c, err);
}
