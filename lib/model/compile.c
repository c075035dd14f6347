/*
 * compile.c - the order of the passes
 */
#include "model/compile.h"

#include "model/model.h"

static void one_action(struct program *p, enum entry_kind kind, int function, int load)
{
    struct entry *entry = &p->entries[kind];

    entry->actions = arena_array(&p->arena, struct action, 2);
    if (load)
        entry->actions[entry->n_actions++] = (struct action){ .kind = ACTION_LOAD };
    entry->actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .function = (int16_t)function };
}

/* The evaluation's own forward, on the same inputs, and its sum over ranks. */
static void build_evaluate(struct model_builder *b)
{
    struct program *p = b->program;
    int evaluate = program_function(p, "evaluate 0", 0);
    int dropout = b->dropout;

    b->dropout = 0;
    model_forward(b, evaluate, MODEL_EVALUATE, NULL, NULL);
    b->dropout = dropout;
    fuse(p, evaluate);
    one_action(p, ENTRY_EVALUATE, evaluate, 1);
    p->ports.eval_total = p->ports.eval_loss;
    if (p->mesh.size[AXIS_DP] == 1)
        return;
    int end = program_function(p, "evaluate end", 0);
    p->ports.eval_total = program_cell(p, ROLE_SCALAR, "eval_total", 1, 1, DTYPE_F64);
    program_emit(p, end,
                 &(struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                               .attributes.axis = AXIS_DP,
                               .in = { p->ports.eval_loss },
                               .out = { p->ports.eval_total },
                               .phase = PHASE_U,
                               .stream = STREAM_DP_REDUCE,
                               .layer = -1 });
    one_action(p, ENTRY_EVALUATE_END, end, 0);
}

static int finish(struct program *p, program_scratch_fn scratch, void *context, struct err *err)
{
    if (scratch)
        program_size_scratch(p, scratch, context);
    place(p);
    return verify(p, err);
}

int compile_train(struct program *program, const struct compile_train *options, struct err *err)
{
    struct model_builder b = { .program = program,
                               .spec = options->model,
                               .dtype = options->dtype,
                               .n_sequences = options->micro_batch,
                               .seq_len = options->seq_len,
                               .dropout = 1,
                               .max_positions = options->seq_len,
                               .seed = options->seed };
    struct gradient_seed seed;
    int last, gather = -1;

    program_init(program, &options->mesh);
    model_declare(&b);
    int forward = program_function(program, "forward 0", 0);
    int backward = program_function(program, "backward 0", 0);
    int update = program_function(program, "update", 0);
    model_forward(&b, forward, MODEL_TRAIN, &seed.value, &seed.gradient);
    differentiate(program, forward, backward, &seed, 1);
    if (!options->no_fuse)
        fuse(program, forward);
    recompute(program, forward, backward, options->recompute);
    shard_gradients(program, forward, backward, &last, update, &options->gradients);
    if (options->gradients.zero && options->mesh.size[AXIS_DP] > 1) {
        gather = program_function(program, "gather", 0);
        gather_parameters(program, forward, gather);
        one_action(program, ENTRY_GATHER, gather, 0);
        program->entries[ENTRY_GATHER].actions[0].micro_batch = -1;
    }
    build_update(program, update, &options->update);
    schedule_step(program, gather, forward, backward, last, update, options->n_micro_batches);
    build_evaluate(&b);
    return finish(program, options->scratch, options->scratch_context, err);
}

int compile_evaluate(struct program *program, const struct compile_evaluate *options,
                     struct err *err)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct model_builder b = { .program = program,
                               .spec = options->model,
                               .dtype = options->dtype,
                               .n_sequences = options->micro_batch,
                               .seq_len = options->seq_len,
                               .max_positions = options->seq_len };

    program_init(program, &mesh);
    model_declare(&b);
    build_evaluate(&b);
    return finish(program, options->scratch, options->scratch_context, err);
}

int compile_generate(struct program *program, const struct compile_generate *options,
                     struct err *err)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct model_builder b = { .program = program,
                               .spec = options->model,
                               .dtype = options->dtype,
                               .n_sequences = options->n_sequences,
                               .seq_len = options->prefill_len,
                               .cache_len = options->cache_len,
                               .max_positions = options->cache_len };

    program_init(program, &mesh);
    model_declare(&b);
    int prefill = program_function(program, "prefill", 0);
    model_forward(&b, prefill, MODEL_LOGITS, NULL, NULL);
    fuse(program, prefill);
    one_action(program, ENTRY_PREFILL, prefill, 1);

    /* One row a sequence: the first rows of the same inputs. */
    struct ports whole = program->ports;
    program->ports.tokens = program_view(program, whole.tokens, 0, options->n_sequences, 1, 1);
    program->ports.positions =
        program_view(program, whole.positions, 0, options->n_sequences, 1, 1);
    b.seq_len = 1;
    int decode = program_function(program, "decode", 0);
    model_forward(&b, decode, MODEL_LOGITS, NULL, NULL);
    fuse(program, decode);
    one_action(program, ENTRY_DECODE, decode, 1);
    program->ports.tokens = whole.tokens;
    program->ports.positions = whole.positions;
    return finish(program, options->scratch, options->scratch_context, err);
}
