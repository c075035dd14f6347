/*
 * logits.c - from the last hidden state to logits, losses and their gradient
 */
#include "model/logits_impl.h"

#include <string.h>

#include "base/num.h"

/* The smallest row length by which the head's rows are divided, as in
 * torch.nn.functional.normalize. */
#define HEAD_ROW_MIN 1e-12

/* The matrix of logits: the head's weight, or the weight with rows normalised to length 1. */
struct logits_head {
    int weight, rows, lengths; /* rows is weight, and lengths 0, where nothing is normalised */
};

static struct logits_head head_of(const struct emitter *e)
{
    struct logits_head h = { .weight = weight_of(e, parameters_head(e->b->spec).module) };

    h.rows = h.weight;
    if (!e->b->spec->normalized_head)
        return h;
    h.rows = value(e, h.weight, cols_of(e, h.weight), dtype_of(e, h.weight));
    h.lengths = value(e, h.weight, 1, DTYPE_F32);
    emit(e,
         (struct op){ .kind = OP_NORMALIZE_ROWS,
                      .attributes.eps = HEAD_ROW_MIN,
                      .in = { [NORMALIZE_ROWS_W] = h.weight },
                      .out = { [NORMALIZE_ROWS_Y] = h.rows, [NORMALIZE_ROWS_NORM] = h.lengths } });
    return h;
}

int logits_rows(const struct emitter *e)
{
    return head_of(e).rows;
}

/* The value that the head's gradient is accumulated in: the parameter's accumulator, or a value
 * from which that is computed. */
static int rows_gradient(const struct emitter *e, const struct logits_head *h, int dw)
{
    return h->lengths && dw ? value(e, h->weight, cols_of(e, h->weight), DTYPE_F32) : dw;
}

static void emit_head_gradient(const struct emitter *e, const struct logits_head *h, int drows,
                               int dw)
{
    if (drows != dw)
        emit(e, (struct op){ .kind = OP_NORMALIZE_ROWS_GRAD,
                             .attributes.eps = HEAD_ROW_MIN,
                             .in = { [NORMALIZE_ROWS_GRAD_DY] = drows,
                                     [NORMALIZE_ROWS_GRAD_W] = h->weight,
                                     [NORMALIZE_ROWS_GRAD_NORM] = h->lengths },
                             .out = { [NORMALIZE_ROWS_GRAD_DW] = dw } });
}

/*
 * Tokens whose logits exist at a time. Each chunk adds to the whole gradient of the head, so it
 * needs enough tokens to amortise that and the packing of weights; on a CPU the logits of a chunk
 * should fit into caches, on a GPU they may be many more.
 */
static int head_chunk(const struct emitter *e)
{
    int64_t logits = e->b->head_logits ? e->b->head_logits : MODEL_HEAD_LOGITS;
    int64_t vocabulary = ceil_div(e->b->spec->vocab_size, e->tp);
    int64_t most = e->b->head_logits ? e->rows : 1024, chunk = logits / vocabulary / 64 * 64;

    return (int)min_i64(e->rows, max_i64(MODEL_HEAD_TOKENS, min_i64(most, chunk)));
}

/* ---- vocabulary-parallel head and loss ---- */

/* One piece of the rows, and the values of its loss. */
struct head_piece {
    int x, target, weight;
    int dx, dw;        /* 0 if only the loss is computed; dw is 0 also if the head is frozen */
    int loss, squares; /* squares: 0 without z-loss */
    enum first_mode first;
};

/*
 * The logits of the rank's part of the vocabulary; their softmax statistics, gathered over ranks;
 * the gradients of the logits, and from these the rank's summand of x's gradient and its rows of
 * the weight's.
 */
static void emit_head_piece(const struct emitter *e, const struct head_piece *h)
{
    struct program *p = e->b->program;
    struct op_attributes attributes = { .vocab_size = e->b->spec->vocab_size };
    struct op_attributes losses = { .vocab_size = attributes.vocab_size,
                                    .z = h->squares ? e->b->z_loss : 0 };
    int logits = value(e, h->x, p->values[h->weight].rows, DTYPE_F32);
    int stats = value(e, h->x, OPS_N_STATS, DTYPE_F32);
    int all = program_value(p, e->tp * p->values[h->x].rows, OPS_N_STATS, DTYPE_F32);
    int dlogits = h->dx ? value(e, h->x, p->values[h->weight].rows, e->b->dtype) : 0;

    emit(e, (struct op){ .kind = OP_LINEAR,
                         .in = { [LINEAR_X] = h->x, [LINEAR_W] = h->weight },
                         .out = { [LINEAR_Y] = logits } });
    emit(e, (struct op){ .kind = OP_LOGIT_STATS,
                         .attributes = attributes,
                         .in = { [LOGIT_STATS_LOGITS] = logits,
                                 [LOGIT_STATS_TARGET] = h->target,
                                 [LOGIT_STATS_OFFSET] = e->b->parts.vocabulary },
                         .out = { [LOGIT_STATS_STATS] = stats } });
    emit_tp(e, OP_ALL_GATHER, stats, all);
    emit(e, (struct op){ .kind = OP_CROSS_ENTROPY,
                         .attributes = losses,
                         .in = { [CROSS_ENTROPY_LOGITS] = logits,
                                 [CROSS_ENTROPY_STATS] = all,
                                 [CROSS_ENTROPY_TARGET] = h->target,
                                 [CROSS_ENTROPY_SCALE] = p->ports.loss_scale,
                                 [CROSS_ENTROPY_OFFSET] = e->b->parts.vocabulary },
                         .out = { [CROSS_ENTROPY_DLOGITS] = dlogits,
                                  [CROSS_ENTROPY_LOSS] = h->loss,
                                  [CROSS_ENTROPY_SQUARES] = h->squares },
                         .first = h->first });
    if (!h->dx)
        return;
    emit(e, (struct op){ .kind = OP_LINEAR_DX,
                         .in = { [LINEAR_DX_DY] = dlogits, [LINEAR_DX_W] = h->weight },
                         .out = { [LINEAR_DX_DX] = h->dx } });
    if (h->dw)
        emit(e, (struct op){ .kind = OP_LINEAR_DW,
                             .in = { [LINEAR_DW_DY] = dlogits, [LINEAR_DW_X] = h->x },
                             .out = { [LINEAR_DW_DW] = h->dw },
                             .first = h->first });
}

/* The loss is computed piece by piece, so that the logits of all rows never exist. */
static void emit_head_pieces(const struct emitter *e, int x, int weight, int dx, int dw)
{
    struct program *p = e->b->program;
    int64_t cols = cols_of(e, x), chunk = head_chunk(e);
    int loss = dx ? p->ports.loss : p->ports.eval_loss;

    for (int64_t row = 0; row < e->rows; row += chunk) {
        int64_t n = min_i64(chunk, e->rows - row);

        emit_head_piece(e, &(struct head_piece){
                               .x = program_view(p, x, row * cols, n, cols, cols),
                               .target = program_view(p, p->ports.targets, row, n, 1, 1),
                               .weight = weight,
                               .dx = dx ? program_view(p, dx, row * cols, n, cols, cols) : 0,
                               .dw = dw,
                               .loss = loss,
                               .squares = dx ? p->ports.squares : 0,
                               .first = row ? FIRST_NEVER : FIRST_MICRO_BATCH,
                           });
    }
}

int logits_train(const struct emitter *e, int x)
{
    struct program *p = e->b->program;
    struct logits_head h = head_of(e);
    int dx = value(e, x, cols_of(e, x), e->b->dtype);
    int dw = program_add_gradient(p, program_parameter_of(p, h.weight));
    int drows = rows_gradient(e, &h, dw);

    if (e->tp > 1) {
        memcpy(p->values[dx].spread, p->values[x].spread, sizeof p->values[dx].spread);
        p->values[dx].spread[axes_tensor()] = SPREAD_PARTIAL;
        emit_head_pieces(e, x, h.rows, dx, drows);
        emit_head_gradient(e, &h, drows, dw);
        /* The sum over tp is emitted here, so that the backward begins with the rank's rows. */
        return leave_tp_region(e, dx);
    }
    emit(e, (struct op){ .kind = OP_HEAD_CROSS_ENTROPY,
                         .attributes = { .chunk = head_chunk(e), .z = e->b->z_loss },
                         .in = { [HEAD_CROSS_ENTROPY_X] = x,
                                 [HEAD_CROSS_ENTROPY_W] = h.rows,
                                 [HEAD_CROSS_ENTROPY_TARGET] = p->ports.targets,
                                 [HEAD_CROSS_ENTROPY_SCALE] = p->ports.loss_scale },
                         .out = { [HEAD_CROSS_ENTROPY_DX] = dx,
                                  [HEAD_CROSS_ENTROPY_DW] = drows,
                                  [HEAD_CROSS_ENTROPY_LOSS] = p->ports.loss,
                                  [HEAD_CROSS_ENTROPY_SQUARES] = p->ports.squares } });
    emit_head_gradient(e, &h, drows, dw);
    return dx;
}

void logits_evaluate(const struct emitter *e, int x)
{
    struct program *p = e->b->program;

    int rows = head_of(e).rows;

    if (e->tp > 1) {
        emit_head_pieces(e, x, rows, 0, 0);
        return;
    }
    emit(e, (struct op){ .kind = OP_HEAD_LOSS,
                         .attributes.chunk = head_chunk(e),
                         .in = { [HEAD_LOSS_X] = x,
                                 [HEAD_LOSS_W] = rows,
                                 [HEAD_LOSS_TARGET] = p->ports.targets },
                         .out = { [HEAD_LOSS_LOSS] = p->ports.eval_loss } });
}

/* Gather each rank's part of the columns, [n x c], one after the other: [tp n x c]. */
static void gather_parts(const struct emitter *e, int own, int all)
{
    struct program *p = e->b->program;
    int64_t n = p->values[own].rows * p->values[own].cols;

    emit_tp(e, OP_ALL_GATHER, program_view(p, own, 0, 1, n, n),
            program_view(p, all, 0, 1, e->tp * n, e->tp * n));
}

void logits_last(const struct emitter *e, int x)
{
    struct program *p = e->b->program;
    int64_t n = e->b->n_sequences;
    int rows = program_value(p, n, cols_of(e, x), e->b->dtype), head = head_of(e).rows;
    int64_t own = p->values[head].rows; /* of the vocabulary */

    if (!p->ports.logits) {
        p->ports.last_rows = program_cell(p, ROLE_SCALAR, "last_rows", n, 1, DTYPE_I32);
        p->ports.logits = program_cell(p, ROLE_SCALAR, "logits", e->tp * n, own, DTYPE_F32);
    }
    emit(e, (struct op){ .kind = OP_SELECT_ROWS,
                         .in = { [SELECT_ROWS_X] = x, [SELECT_ROWS_INDEX] = p->ports.last_rows },
                         .out = { [SELECT_ROWS_Y] = rows } });
    int logits = e->tp > 1 ? program_value(p, n, own, DTYPE_F32) : p->ports.logits;
    emit(e, (struct op){ .kind = OP_LINEAR,
                         .in = { [LINEAR_X] = rows, [LINEAR_W] = head },
                         .out = { [LINEAR_Y] = logits } });
    if (e->tp > 1)
        gather_parts(e, logits, p->ports.logits);
}
