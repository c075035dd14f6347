/*
 * tiny_model.h - the two families at a size that a reader can follow, up to any pass
 */
#ifndef SUPPORT_TINY_MODEL_H
#define SUPPORT_TINY_MODEL_H

#include "model/compile.h"
#include "model/model.h"

/* One of configs/models. Fails the test if it cannot be read. */
struct model_spec real_spec(const char *name);

/* Two layers; "llama": untied, grouped KV heads; "gpt2": tied, biases, dropout everywhere;
 * "mixture": a llama with experts in its second layer. */
struct model_spec tiny_spec(const char *name);

struct tiny {
    struct model_spec spec;
    struct program program;
    int forward, backward, last, update; /* functions; last: after tiny_shard */
    struct chunk_functions chunk;        /* the same */
    int gather;                          /* after tiny_zero */
    struct gradient_seed seed;
};

/* Declared and with its forward, 2 sequences of 8 tokens, gpt2 in fp32 and the others in bf16. */
void tiny_forward(struct tiny *tiny, const char *name, int dp_size);

/* The forward, differentiated. */
void tiny_differentiate(struct tiny *tiny, const char *name, int dp_size);

/* ... fused, and then recomputed. */
void tiny_recompute(struct tiny *tiny, const char *name, int dp_size, enum recompute_kind kind);
void tiny_recompute_levels(struct tiny *tiny, const char *name,
                           const struct recompute_levels *levels);

/* The set of these kinds: "rmsnorm add". */
struct bitset op_kinds(const char *names);

/* The same by a list of kinds. */
void tiny_recompute_list(struct tiny *tiny, const char *name, const char *ops);

/* ... without recomputation, buckets of 8 KiB reduced early or late. */
void tiny_shard(struct tiny *tiny, const char *name, int dp_size, int early);

/* The same under zero 1, with the weights gathered by function tiny->gather. */
void tiny_zero(struct tiny *tiny, const char *name, int dp_size, int early);

void tiny_release(struct tiny *tiny);

/* schedule_step where there is one stage of one chunk. */
void schedule_alone(struct program *program, const struct chunk_functions *chunk, int gather,
                    int update, int n_micro_batches);

/* compile_train's options for the same; spec outlives them. */
struct compile_train tiny_compile(const struct model_spec *spec, int dp_size);

#endif
