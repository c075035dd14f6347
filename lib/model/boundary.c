/*
 * boundary.c - the forwards of a rank's chunks, and the transfers between stages: the residual
 * stream, and its gradient
 */
#include "layout/axes.h"
#include "model/compile_impl.h"

/* "forward 0"; "forward 0, 2 sequences" if micro-batches have several sizes. */
int compile_function(const struct compiling *c, const char *name, int chunk)
{
    struct arena *arena = &c->program->arena;
    char *text = arena_printf(arena, "%s %d", name, chunk);
    int n = c->builder.n_sequences;

    if (c->n_sizes > 1)
        text = arena_printf(arena, "%s, %d sequence%s", text, n, n == 1 ? "" : "s");
    return program_function(c->program, text, chunk);
}

/* The stream to or from the rank of another stage; *peer is that rank's direction on the axis. */
static enum stream stream_of(const struct compiling *c, int from, int to, int forward, int sends,
                             int *peer)
{
    static const enum stream streams[2][2][2] = {
        { { STREAM_B_FROM_PREVIOUS, STREAM_B_FROM_NEXT },
          { STREAM_B_TO_PREVIOUS, STREAM_B_TO_NEXT } },
        { { STREAM_F_FROM_PREVIOUS, STREAM_F_FROM_NEXT },
          { STREAM_F_TO_PREVIOUS, STREAM_F_TO_NEXT } },
    };
    int own = pipeline_rank_of(&c->spec, from), other = pipeline_rank_of(&c->spec, to);
    /* A loop continues on the next rank, a V returns on the same ranks. */
    int is_next = c->spec.kind == PIPELINE_ZB_V ? other > own : to > from;

    *peer = is_next ? 1 : -1;
    return streams[forward][sends][is_next];
}

/* A function of one transfer between this chunk's stage and the stage `step` after it. */
int boundary_transfer(struct compiling *c, int chunk, int step, int forward, int sends, int value)
{
    static const char *const words[2][2] = { { "receive backward", "send backward" },
                                             { "receive forward", "send forward" } };
    int stage = c->chunks[chunk].stage;
    struct op op = { .kind = sends ? OP_SEND : OP_RECEIVE,
                     .attributes.axis = axes_stages(),
                     .phase = forward ? PHASE_F : PHASE_B,
                     .layer = -1 };
    int function = compile_function(c, words[forward][sends], chunk);

    op.stream = stream_of(c, stage, stage + step, forward, sends, &op.attributes.peer);
    *(sends ? &op.in[SEND_X] : &op.out[RECEIVE_Y]) = value;
    program_emit(c->program, function, &op);
    return function;
}

/* A value for the residual stream, or its gradient, between two stages. */
int boundary_stream(const struct compiling *c)
{
    struct program *p = c->program;
    int64_t rows = (int64_t)c->builder.n_sequences * c->builder.seq_len;
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

        *f = (struct chunk_functions){ -1, -1, -1, -1, -1, -1, -1, -1 };
        c->boundary[i] = 0;
        if (c->chunks[i].stage && before < 0) {
            c->boundary[i] = boundary_stream(c);
            f->receive_forward = boundary_transfer(c, i, -1, 1, 0, c->boundary[i]);
        } else if (c->chunks[i].stage) {
            c->boundary[i] = c->value[before];
        }
        f->forward = compile_function(c, name, i);
        struct model_part part =
            model_forward(&c->builder, f->forward, &c->chunks[i], end, c->boundary[i]);
        c->value[i] = part.value;
        c->gradient[i] = part.gradient;
        if (!is_last && stages_neighbour(c, i, 1) < 0)
            f->send_forward = boundary_transfer(c, i, 1, 1, 1, part.value);
    }
}
