/*
 * compile_impl.h - a program while it is compiled: what stages.c, boundary.c, compile.c and
 * compile_serve.c share
 */
#ifndef MODEL_COMPILE_IMPL_H
#define MODEL_COMPILE_IMPL_H

#include "model/compile.h"
#include "model/model.h"

enum { COMPILE_MAX_VARIANTS = 2 };

struct compiling {
    const struct compile_train *options;
    struct program *program;
    struct model_builder builder;
    struct pipeline_spec spec;
    struct pipeline pipeline;
    int n_chunks, n_stages;
    const int *first_layer; /* [n_stages + 1] */
    struct model_chunk *chunks;
    int n_sizes, *sizes, *size_of;     /* of micro-batches: sequences, increasing; by micro-batch */
    int n_variants;                    /* 2: functions of ENTRY_RERUN, too (pages.c) */
    struct chunk_functions *of_sizes;  /* [n_variants][n_sizes][n_chunks] */
    struct chunk_functions *functions; /* of the current size */
    bool is_rerun;                     /* these are ENTRY_RERUN's */
    int *boundary, *value;             /* by chunk: input and output of its forward */
    int *gradient, *gradient_in;       /* by chunk: gradients of its output and of its input */
    int first_trained;  /* stage: those before it have no trainable parameter, and no backward */
    int has_zero3;      /* weights are gathered by zero3_gather_weights, not once a step */
    int update, gather; /* functions; gather is -1 if weights are not gathered once a step */
    int round;          /* by fp8_weights: what rounds weights, and then gathers; -1 */
};

/* ---- stages.c ---- */

/* The rank's pipeline, stages, chunks and sizes of micro-batches. Returns 0, or -1. */
int stages_plan(struct compiling *c, struct err *err);

/* seq_len of the job's longest program. */
int stages_longest(const struct compile_train *options);

/* This rank's chunk with the stage `step` (1, -1) after this chunk's; -1: another rank has it. */
int stages_neighbour(const struct compiling *c, int chunk, int step);

/* Set tied_peer of a head that is tied to an embedding on another rank of the pipeline. */
void stages_tie(struct compiling *c);

/* Sets c->first_trained. */
void stages_find_trained(struct compiling *c);

/* List the parameters that each rank of the pipeline contributes to the gradient norm, in the
 * program's arena. */
void stages_norm_parts(struct compiling *c, struct update_options *update);

/* ---- boundary.c ---- */

/* A function of a chunk: "forward 0"; "forward 0, 2 sequences" if micro-batches have several
 * sizes. */
int compile_function(const struct compiling *c, const char *name, int chunk);

/* A value for the residual stream, or its gradient, between two stages. */
int boundary_stream(const struct compiling *c);

/* The output of a forward, or its gradient, between this chunk's stage and a neighbour on another
 * rank: from the previous stage, to the next; from the next stage, to the previous. */
enum boundary_transfer {
    RECEIVE_FORWARD,
    SEND_FORWARD,
    RECEIVE_BACKWARD,
    SEND_BACKWARD,
    N_BOUNDARY_TRANSFERS
};

/* Emit a function of one such transfer of value. Returns the function. */
int boundary_transfer(struct compiling *c, int chunk, enum boundary_transfer transfer, int value);

/* The forwards of all chunks, with their receives and sends. */
void compile_forwards(struct compiling *c, enum model_end end, const char *name);

/* ---- compile_serve.c ---- */

/* The entry runs one function, once. */
void compile_action(struct program *p, enum entry_kind kind, int function);

/* Emit the sum of a scalar over the axes of tokens and stages, in fp64. Returns the sum's cell. */
int compile_sum(struct program *p, int function, int value, const char *name);

/* The forward of evaluation, on the same inputs (the largest size), and the sum of its loss over
 * ranks. */
void compile_evaluation(struct compiling *c);

/* ---- backward.c ---- */

/* The backwards of all chunks, from the last to the first, with receives and sends of gradients. */
void compile_backwards(struct compiling *c);

/* Whether some rank may keep rows of experts in pages. */
bool compile_has_pages(const struct compile_train *options);

/* The name of pass i of a chunk's backward; NULL after the last. */
const char *compile_backward_pass(int i);

/* ---- compile.c ---- */

/* Whether ranks of tp have whole experts. */
bool compile_has_whole_experts(const struct compile_train *options);

/* Call the options' watch, if there is one. */
void compile_after(const struct compiling *c, const char *pass);

/* The last passes: in-place ops, scratch, addresses; then verify. Returns 0, or -1. */
int compile_finish(struct compiling *c, struct err *err);

#endif
