/*
 * boundary.c - the forwards of a rank's chunks, and the transfers between stages: the residual
 * stream, and its gradient
 */
#include <stdbool.h>

#include "layout/axes.h"
#include "model/compile_impl.h"

/* "forward 0"; "forward 0, 2 sequences" if micro-batches have several sizes; those of ENTRY_RERUN
 * say so, too. */
int compile_function(const struct compiling *c, const char *name, int chunk)
{
    struct arena *arena = &c->program->arena;
    char *text = arena_printf(arena, "%s %d", name, chunk);
    int n = c->builder.n_sequences;

    if (c->is_rerun)
        text = arena_printf(arena, "%s, rows of experts recomputed", text);
    if (c->n_sizes > 1)
        text = arena_printf(arena, "%s, %d sequence%s", text, n, n == 1 ? "" : "s");
    return program_function(c->program, text, chunk);
}

/* By transfer: its function's name, the stage at the other end, and its streams from or to the
 * previous and the next rank. */
static const struct {
    const char *name;
    int step;
    enum op_kind op;
    enum phase phase;
    enum stream streams[2];
} transfers[N_BOUNDARY_TRANSFERS] = {
    [RECEIVE_FORWARD] = { "receive forward",
                          -1,
                          OP_RECEIVE,
                          PHASE_F,
                          { STREAM_F_FROM_PREVIOUS, STREAM_F_FROM_NEXT } },
    [SEND_FORWARD] = { "send forward",
                       1,
                       OP_SEND,
                       PHASE_F,
                       { STREAM_F_TO_PREVIOUS, STREAM_F_TO_NEXT } },
    [RECEIVE_BACKWARD] = { "receive backward",
                           1,
                           OP_RECEIVE,
                           PHASE_B,
                           { STREAM_B_FROM_PREVIOUS, STREAM_B_FROM_NEXT } },
    [SEND_BACKWARD] = { "send backward",
                        -1,
                        OP_SEND,
                        PHASE_B,
                        { STREAM_B_TO_PREVIOUS, STREAM_B_TO_NEXT } },
};

/* Whether the rank of another stage is the next one on the axis. A loop continues on the next rank,
 * a V returns on the same ranks. */
static bool is_next_rank(const struct compiling *c, int from, int to)
{
    int own = pipeline_rank_of(&c->spec, from), other = pipeline_rank_of(&c->spec, to);

    return c->spec.kind == PIPELINE_ZB_V ? other > own : to > from;
}

/* A function of one transfer between this chunk's stage and a neighbour. */
int boundary_transfer(struct compiling *c, int chunk, enum boundary_transfer transfer, int value)
{
    int stage = c->chunks[chunk].stage;
    bool is_next = is_next_rank(c, stage, stage + transfers[transfer].step);
    struct op op = { .kind = transfers[transfer].op,
                     .attributes = { .axis = axes_stages(), .peer = is_next ? 1 : -1 },
                     .phase = transfers[transfer].phase,
                     .stream = transfers[transfer].streams[is_next],
                     .layer = -1 };
    int function = compile_function(c, transfers[transfer].name, chunk);

    *(op.kind == OP_SEND ? &op.in[SEND_X] : &op.out[RECEIVE_Y]) = value;
    program_emit(c->program, function, &op);
    return function;
}

/* A value for the residual stream, or its gradient, between two stages. */
int boundary_stream(const struct compiling *c)
{
    struct program *p = c->program;
    int64_t rows = model_rows(&c->builder);
    int tp = c->builder.sequence_parallel ? p->mesh.size[axes_tensor()] : 1;
    int id = program_value(p, rows / tp, c->options->model->hidden_size, c->options->residual);

    program_split_rows(p, id);
    if (tp > 1)
        p->values[id].spread[axes_tensor()] = SPREAD_ROWS;
    return id;
}

/* The forwards of all chunks, with their receives and sends. */
void compile_forwards(struct compiling *c, enum model_end end, const char *name)
{
    for (int i = 0; i < c->n_chunks; i++) {
        struct chunk_functions *f = &c->functions[i];
        int before = stages_neighbour(c, i, -1), is_last = c->chunks[i].stage + 1 == c->n_stages;

        *f = (struct chunk_functions){ -1, -1, -1, -1, -1, -1, -1, -1, 0 };
        c->boundary[i] = 0;
        if (c->chunks[i].stage && before < 0) {
            c->boundary[i] = boundary_stream(c);
            f->receive_forward = boundary_transfer(c, i, RECEIVE_FORWARD, c->boundary[i]);
        } else if (c->chunks[i].stage) {
            c->boundary[i] = c->value[before];
        }
        f->forward = compile_function(c, name, i);
        struct model_part part =
            model_forward(&c->builder, f->forward, &c->chunks[i], end, c->boundary[i]);
        c->value[i] = part.value;
        c->gradient[i] = part.gradient;
        if (!is_last && stages_neighbour(c, i, 1) < 0)
            f->send_forward = boundary_transfer(c, i, SEND_FORWARD, part.value);
    }
}
