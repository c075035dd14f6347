/*
 * compress_rows.c - activations and their gradients travel between tensor-parallel ranks in fewer
 * bytes
 *
 * AccTFM (Zeng et al. 2022): the tokens that attention looks at most travel in full, the others
 * quantised (ops/row_codec.h). Behind the attention of a layer each rank adds up what its heads'
 * queries give each key; the ranks' sums are the tokens' scores, by which rows of the next layer
 * travel, in the forward and in the backward. Rows of a chunk's first layer, and around the layers,
 * travel as they are.
 *
 *     F  %70 = attention_received %q, %k, %lse               [T x 1] partial
 *     F  %71 = reduce_scatter %70  over tp                   scores of the rank's rows
 *     F  %72 = all_gather %71  over tp                       of all rows
 *
 *     F  %80 = encode_rows %x, %72                           F  %y = reduce_scatter %x  over tp
 *     F  %81 = exchange_codes %80  over tp                   <-
 *     F  %y = decode_rows %81
 *
 *     F  %84 = encode_rows %x, %71                           F  %y = all_gather %x  over tp
 *     F  %85 = gather_codes %84  over tp                     <-
 *     F  %y = decode_rows %85  joined
 */
#include "layout/axes.h"
#include "ops/row_codec.h"
#include "program/passes.h"

/* A layer's scores, as values; 0: none. */
struct row_scores {
    int own, all;
};

struct row_compression {
    struct program *program;
    const struct row_codec_choice *choice;
    struct row_scores *scores; /* by layer */
    int n_layers;
    int n_ranks;
};

static struct op op_like(const struct op *op, enum op_kind kind)
{
    return (struct op){ .kind = kind, .phase = op->phase, .layer = op->layer };
}

static struct op over_ranks(const struct op *op, enum op_kind kind, int in, int out)
{
    struct op o = op_like(op, kind);

    o.attributes.axis = axes_tensor();
    o.stream = stream_of_axis(axes_tensor());
    o.in[OPS_FIRST] = in;
    o.out[OPS_FIRST] = out;
    return o;
}

/* Whether the chunk has the next layer, whose rows travel by this one's scores. */
static bool has_next_layer(const struct function *f, int layer)
{
    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].layer == layer + 1)
            return true;
    return false;
}

/* Behind the attention ops[at]. */
static void add_scores(struct row_compression *r, int function, int at)
{
    struct program *p = r->program;
    struct op attention = p->functions[function].ops[at];
    int64_t rows = p->values[attention.in[ATTENTION_Q]].rows;
    struct row_scores *s = &r->scores[attention.layer];
    int sums = program_value(p, rows, 1, DTYPE_F32);

    s->own = program_value(p, rows / r->n_ranks, 1, DTYPE_F32);
    s->all = program_value(p, rows, 1, DTYPE_F32);
    struct op op = op_like(&attention, OP_ATTENTION_RECEIVED);
    op.attributes = attention.attributes;
    op.attributes.p = 0;
    op.in[ATTENTION_RECEIVED_Q] = attention.in[ATTENTION_Q];
    op.in[ATTENTION_RECEIVED_K] = attention.in[ATTENTION_K];
    op.in[ATTENTION_RECEIVED_LSE] = attention.out[ATTENTION_LSE];
    op.in[ATTENTION_RECEIVED_HEAD_OFFSET] = attention.in[ATTENTION_HEAD_OFFSET];
    op.in[ATTENTION_RECEIVED_FIRST] = attention.in[ATTENTION_FIRST];
    op.in[ATTENTION_RECEIVED_LAST] = attention.in[ATTENTION_LAST];
    op.out[ATTENTION_RECEIVED_SCORES] = sums;
    program_insert(p, function, at + 1, &op);
    op = over_ranks(&attention, OP_REDUCE_SCATTER, sums, s->own);
    program_insert(p, function, at + 2, &op);
    op = over_ranks(&attention, OP_ALL_GATHER, s->own, s->all);
    program_insert(p, function, at + 3, &op);
}

/* The scores by which the collective's rows travel; NULL: as they are. */
static const struct row_scores *scores_for(const struct row_compression *r, const struct op *op)
{
    const struct program *p = r->program;
    const struct value *in = &p->values[op->in[OPS_FIRST]], *out = &p->values[op->out[OPS_FIRST]];
    bool gathers = op->kind == OP_ALL_GATHER;
    const struct value *whole = gathers ? out : in;

    if ((!gathers && op->kind != OP_REDUCE_SCATTER) || op->attributes.axis != axes_tensor())
        return NULL;
    if (op->layer < 1 || op->layer > r->n_layers || !r->scores[op->layer - 1].all)
        return NULL;
    if (whole->rows != p->values[r->scores[op->layer - 1].all].rows || whole->cols % 8 ||
        in->cols != out->cols)
        return NULL;
    return &r->scores[op->layer - 1];
}

/* ops[at] becomes three. */
static void compress_collective(const struct row_compression *r, int function, int at,
                                const struct row_scores *scores)
{
    struct program *p = r->program;
    struct op collective = p->functions[function].ops[at];
    bool gathers = collective.kind == OP_ALL_GATHER;
    struct value x = p->values[collective.in[OPS_FIRST]];
    int n_parts = gathers ? 1 : r->n_ranks;
    struct row_codes layout = ops_row_codes(r->choice->ratio, r->choice->bits, x.rows / n_parts,
                                            x.cols, dtype_bytes(x.dtype));
    int64_t n_bytes = row_codes_bytes(&layout);
    int codes = program_value(p, n_parts, n_bytes, DTYPE_U8);
    int moved = program_value(p, r->n_ranks, n_bytes, DTYPE_U8);
    struct op op = op_like(&collective, OP_ENCODE_ROWS);

    op.attributes.ratio = r->choice->ratio;
    op.attributes.bits = r->choice->bits;
    op.in[ENCODE_ROWS_X] = collective.in[OPS_FIRST];
    op.in[ENCODE_ROWS_SCORES] = gathers ? scores->own : scores->all;
    op.out[ENCODE_ROWS_CODES] = codes;
    program_insert(p, function, at, &op);
    op = over_ranks(&collective, gathers ? OP_GATHER_CODES : OP_EXCHANGE_CODES, codes, moved);
    program_insert(p, function, at + 1, &op);
    op = op_like(&collective, OP_DECODE_ROWS);
    op.attributes.ratio = r->choice->ratio;
    op.attributes.bits = r->choice->bits;
    op.attributes.joined = gathers;
    op.in[DECODE_ROWS_CODES] = moved;
    op.out[DECODE_ROWS_Y] = collective.out[OPS_FIRST];
    op.first = collective.first;
    p->functions[function].ops[at + 2] = op;
}

static void compress_function(const struct row_compression *r, int function)
{
    for (int i = 0; i < r->program->functions[function].n_ops; i++) {
        const struct row_scores *s = scores_for(r, &r->program->functions[function].ops[i]);

        if (s) {
            compress_collective(r, function, i, s);
            i += 2;
        }
    }
}

void compress_rows(struct program *p, const struct chunk_functions *f,
                   const struct row_codec_choice *choice, int n_layers)
{
    struct arena arena = { 0 };
    struct row_compression r = { .program = p,
                                 .choice = choice,
                                 .scores = arena_array(&arena, struct row_scores, n_layers + 1),
                                 .n_layers = n_layers,
                                 .n_ranks = mesh_size(&p->mesh, axes_tensor()) };

    for (int i = 0; i < p->functions[f->forward].n_ops; i++) {
        const struct op *op = &p->functions[f->forward].ops[i];

        if (op->kind == OP_ATTENTION && has_next_layer(&p->functions[f->forward], op->layer)) {
            add_scores(&r, f->forward, i);
            i += 3;
        }
    }
    compress_function(&r, f->forward);
    compress_function(&r, f->backward);
    if (f->weight != f->backward)
        compress_function(&r, f->weight);
    arena_release(&arena);
}
