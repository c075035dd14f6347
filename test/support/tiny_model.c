#include "support/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/job.h"

#define N_SEQUENCES 2
#define SEQ_LEN 8
#define BUCKET_BYTES ((size_t)8 << 10)

struct model_spec real_spec(const char *name)
{
    struct arena arena = { 0 };
    struct job job;
    struct err err;
    char text[128];
    int n = snprintf(text, sizeof text, "{model: %s, data: {train: a}, train: {steps: 1}}", name);

    if (job_read_text(&job, text, (size_t)n, "test", NULL, 0, &arena, &err) < 0)
        fail_msg("%s", err.text);
    struct model_spec spec = job.model;
    arena_release(&arena);
    return spec;
}

struct model_spec tiny_spec(const char *name)
{
    struct model_spec spec = { .vocab_size = 96,
                               .hidden_size = 32,
                               .n_layers = 2,
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 8,
                               .ffn_size = 48,
                               .max_seq_len = SEQ_LEN,
                               .norm = NORM_RMS,
                               .norm_eps = 1e-5,
                               .position = POSITION_ROPE,
                               .rope_theta = 10000,
                               .activation = ACTIVATION_SWIGLU,
                               .init_std = 0.02 };

    if (!strcmp(name, "mixture")) {
        spec.n_experts = 4;
        spec.n_active_experts = 2;
        spec.expert_ffn_size = 24;
        spec.expert_every = 2;
        spec.router_normalize = 1;
        spec.router_scaling = 1;
        spec.router_balance = 0.01;
    }
    if (!strcmp(name, "gpt2") || !strcmp(name, "gpt2-residual-dropout")) {
        spec.n_kv_heads = 4;
        spec.ffn_size = 128;
        spec.norm = NORM_LAYER;
        spec.position = POSITION_LEARNED;
        spec.activation = ACTIVATION_GELU;
        spec.bias = 1;
        spec.tied_embeddings = 1;
        spec.dropout = 0.1;
        spec.embedding_dropout = !strcmp(name, "gpt2");
        spec.attention_dropout = 0.1;
    }
    return spec;
}

static enum dtype dtype_of(const struct model_spec *spec)
{
    return spec->norm == NORM_RMS ? DTYPE_BF16 : DTYPE_F32;
}

void tiny_forward(struct tiny *tiny, const char *name, int dp_size)
{
    struct mesh mesh = mesh_data_parallel(dp_size);

    *tiny = (struct tiny){ .spec = tiny_spec(name) };
    struct model_builder builder = { .program = &tiny->program,
                                     .spec = &tiny->spec,
                                     .dtype = dtype_of(&tiny->spec),
                                     .n_sequences = N_SEQUENCES,
                                     .seq_len = SEQ_LEN,
                                     .dropout = 1,
                                     .global_batch = N_SEQUENCES * dp_size,
                                     .max_positions = SEQ_LEN,
                                     .seed = 1 };
    program_init(&tiny->program, &mesh);
    struct model_chunk whole = model_whole(&tiny->spec);
    model_declare(&builder, &whole, 1);
    model_declare_loss(&builder);
    tiny->forward = program_function(&tiny->program, "forward 0", 0);
    tiny->backward = program_function(&tiny->program, "backward 0", 0);
    tiny->update = program_function(&tiny->program, "update", 0);
    tiny->chunk = (struct chunk_functions){
        tiny->forward, tiny->backward, tiny->backward, tiny->backward, -1, -1, -1, -1, 0,
    };
    struct model_part part = model_forward(&builder, tiny->forward, &whole, MODEL_TRAIN, 0);
    tiny->seed = (struct gradient_seed){ part.value, part.gradient };
}

void tiny_differentiate(struct tiny *tiny, const char *name, int dp_size)
{
    tiny_forward(tiny, name, dp_size);
    differentiate(&tiny->program, tiny->forward, tiny->backward, &tiny->seed, 1, 0);
}

static void recompute_fused(struct tiny *tiny, const char *name, int dp_size,
                            const struct recompute_levels *levels)
{
    tiny_differentiate(tiny, name, dp_size);
    fuse(&tiny->program, tiny->forward);
    fuse_casts(&tiny->program, tiny->backward);
    recompute(&tiny->program, tiny->forward, tiny->backward, levels);
}

void tiny_recompute(struct tiny *tiny, const char *name, int dp_size, enum recompute_kind kind)
{
    recompute_fused(tiny, name, dp_size, &(struct recompute_levels){ .kind = kind });
}

void tiny_recompute_levels(struct tiny *tiny, const char *name,
                           const struct recompute_levels *levels)
{
    recompute_fused(tiny, name, 1, levels);
}

struct bitset op_kinds(const char *names)
{
    struct bitset kinds = { 0 };
    char name[64];
    int n = 0;

    for (; sscanf(names, " %63s%n", name, &n) == 1; names += n) {
        assert_int_not_equal(op_find(name), N_OP_KINDS);
        bitset_add(&kinds, (int)op_find(name));
    }
    return kinds;
}

void tiny_recompute_list(struct tiny *tiny, const char *name, const char *ops)
{
    const struct recompute_levels levels = { .kind = RECOMPUTE_KIND_LIST, .ops = op_kinds(ops) };

    recompute_fused(tiny, name, 1, &levels);
}

void tiny_shard(struct tiny *tiny, const char *name, int dp_size, int early)
{
    struct shard_options options = { .early = early, .bucket_bytes = BUCKET_BYTES };

    tiny_recompute(tiny, name, dp_size, RECOMPUTE_KIND_NONE);
    shard_gradients(&tiny->program, &tiny->chunk, 1, tiny->update, &options);
    tiny->last = tiny->chunk.last;
}

void tiny_zero(struct tiny *tiny, const char *name, int dp_size, int early)
{
    struct shard_options options = { .zero = 1, .early = early, .bucket_bytes = BUCKET_BYTES };

    tiny_recompute(tiny, name, dp_size, RECOMPUTE_KIND_NONE);
    shard_gradients(&tiny->program, &tiny->chunk, 1, tiny->update, &options);
    tiny->last = tiny->chunk.last;
    tiny->gather = program_function(&tiny->program, "gather", 0);
    gather_parameters(&tiny->program, &tiny->chunk, 1, tiny->gather);
}

void schedule_alone(struct program *program, const struct chunk_functions *chunk, int gather,
                    int update, int n_micro_batches)
{
    struct pipeline_spec spec = { PIPELINE_1F1B, 1, 1, n_micro_batches, 0, NULL };
    struct pipeline pipeline;
    struct err err;

    CHECK(pipeline_build(&pipeline, &spec, &program->arena, &err) == 0);
    schedule_step(program, &pipeline, 0, chunk, NULL, gather, update);
}

void tiny_release(struct tiny *tiny)
{
    program_release(&tiny->program);
}

struct compile_train tiny_compile(const struct model_spec *spec, int dp_size)
{
    return (struct compile_train){
        .model = spec,
        .mesh = mesh_data_parallel(dp_size),
        .dtype = dtype_of(spec),
        .micro_batch = N_SEQUENCES,
        .seq_len = SEQ_LEN,
        .n_micro_batches = 3,
        .seed = 1,
        .gradients = { .bucket_bytes = BUCKET_BYTES },
        .update = { .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1 },
    };
}
