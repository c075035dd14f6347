/*
 * collective_sequence.c - sequences of which each rank of an axis has a part
 *
 * Each kind moves one dense piece a pair of ranks, or a rank: rows of all sequences, one sequence
 * after the other. Before and behind the move, rows and columns are copied between the pieces and
 * the operands. A side that is dense and has its pieces one behind the other, as one sequence
 * without zigzag has, is moved as it lies.
 */
#include "run/collective_impl.h"

/* The side with whole sequences, and the pieces that it consists of. */
struct sequence_parts {
    int size;                /* ranks */
    int64_t sequences, rows; /* of one piece: rows of each of its sequences */
    int64_t cols;
    int64_t n_elements; /* of a piece */
    size_t n_bytes, element_bytes;
    bool is_zigzag;
    bool is_direct; /* the whole side is moved as it lies */
};

static struct sequence_parts pieces_of(enum op_kind kind, const struct op_attributes *a, int size,
                                       const struct tensor *whole)
{
    int64_t rows = a->seq_len, sequences = whole->rows / (rows * size);
    int64_t n_elements = whole->rows / size * whole->cols;
    size_t element_bytes = dtype_bytes(whole->dtype);
    bool is_zigzag = a->zigzag && (kind == OP_GATHER_SEQUENCE || kind == OP_SCATTER_SEQUENCE);

    return (struct sequence_parts){ .size = size,
                                    .sequences = sequences,
                                    .rows = rows,
                                    .cols = whole->cols,
                                    .n_elements = n_elements,
                                    .n_bytes = (size_t)n_elements * element_bytes,
                                    .element_bytes = element_bytes,
                                    .is_zigzag = is_zigzag,
                                    .is_direct = sequences == 1 && !is_zigzag &&
                                                 whole->stride == whole->cols };
}

static unsigned char *piece_at(const struct sequence_parts *p, void *pieces, int rank)
{
    return (unsigned char *)pieces + (size_t)rank * p->n_bytes;
}

/* Rows of several sequences: the first rows of each. */
struct band {
    unsigned char *data;
    int64_t stride; /* elements from row to row */
    int64_t step;   /* rows from sequence to sequence */
};

static struct band band_of(const struct tensor *t, int64_t row, int64_t col, int64_t step)
{
    int64_t at = row * t->stride + col;

    return (struct band){ (unsigned char *)t->data + (size_t)at * dtype_bytes(t->dtype), t->stride,
                          step };
}

/* [rows x cols] of each sequence; where sequences lie as rows do, or rows are dense, in one go. */
static void copy_band(const struct collective *c, const struct sequence_parts *p, struct band to,
                      struct band from, int64_t rows, int64_t cols)
{
    struct kernels_columns columns = { to.data, to.stride, from.data,       from.stride,
                                       rows,    cols,      p->element_bytes };

    if (to.step == rows && from.step == rows) {
        columns.rows = p->sequences * rows;
    } else if (to.stride == cols && from.stride == cols) {
        columns.to_stride = to.step * cols;
        columns.from_stride = from.step * cols;
        columns.rows = p->sequences;
        columns.cols = rows * cols;
    } else {
        for (int64_t s = 1; s < p->sequences; s++) {
            collective_copy_columns(c, columns);
            columns.to =
                (unsigned char *)columns.to + (size_t)(to.step * to.stride) * p->element_bytes;
            columns.from = (const unsigned char *)columns.from +
                           (size_t)(from.step * from.stride) * p->element_bytes;
        }
    }
    collective_copy_columns(c, columns);
}

/* A rank's rows of whole sequences, between them and its piece: all, or of each zigzag chunk. */
static void copy_rows(const struct collective *c, const struct sequence_parts *p,
                      const struct tensor *whole, int rank, unsigned char *piece, bool to_piece)
{
    int n_chunks = p->is_zigzag ? 2 : 1;
    int64_t rows = p->rows / n_chunks;

    for (int i = 0; i < n_chunks; i++) {
        int chunk = i ? 2 * p->size - 1 - rank : rank;
        struct band far = band_of(whole, chunk * rows, 0, p->size * p->rows);
        struct band near = { piece + (size_t)(i * rows * p->cols) * p->element_bytes, p->cols,
                             p->rows };

        if (to_piece)
            copy_band(c, p, near, far, rows, p->cols);
        else
            copy_band(c, p, far, near, rows, p->cols);
    }
}

/* All pieces. Returns where they lie: in `whole` itself, or copied to `pieces`. */
static unsigned char *pack_rows(const struct collective *c, const struct sequence_parts *p,
                                const struct tensor *whole, unsigned char *pieces)
{
    if (p->is_direct)
        return whole->data;
    for (int rank = 0; rank < p->size; rank++)
        copy_rows(c, p, whole, rank, piece_at(p, pieces, rank), true);
    return pieces;
}

static void unpack_rows(const struct collective *c, const struct sequence_parts *p,
                        const struct tensor *whole, unsigned char *pieces)
{
    for (int rank = 0; !p->is_direct && rank < p->size; rank++)
        copy_rows(c, p, whole, rank, piece_at(p, pieces, rank), false);
}

/* ---- heads for rows ---- */

/* Columns of one rank's heads: in the rows that have all heads, and in those of its own. */
struct exchanged_columns {
    int n; /* kinds of heads: q, or q, k, v */
    struct {
        int64_t all, own, cols;
    } of[3];
};

static struct exchanged_columns columns_of(const struct op_attributes *a, int size, int rank)
{
    int64_t h = a->n_heads, g = a->n_kv_heads, e = a->head_dim, q = h / size;
    int64_t kv = g < size ? 1 : g / size, first = rank * g / size;

    return (struct exchanged_columns){ .n = g ? 3 : 1,
                                       .of = { { rank * q * e, 0, q * e },
                                               { (h + first) * e, q * e, kv * e },
                                               { (h + g + first) * e, (q + kv) * e, kv * e } } };
}

static int step_rows_to_heads(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    struct sequence_parts p = pieces_of(c->kind, &c->attributes, size, &c->out);
    unsigned char *sent = c->scratch, *received = sent + (size_t)size * p.n_bytes;
    struct band to, from;

    if (step > 0) {
        unpack_rows(c, &p, &c->out, received);
        return 0;
    }
    for (int rank = 0; rank < size; rank++) {
        struct exchanged_columns heads = columns_of(&c->attributes, size, rank);

        for (int i = 0; i < heads.n; i++) {
            from = band_of(&c->in, 0, heads.of[i].all, p.rows);
            to =
                (struct band){ piece_at(&p, sent, rank) + (size_t)heads.of[i].own * p.element_bytes,
                               p.cols, p.rows };
            copy_band(c, &p, to, from, p.rows, heads.of[i].cols);
        }
    }
    *call = (struct comm_call){ COMM_ALL_TO_ALL, sent, p.is_direct ? c->out.data : received,
                                p.n_bytes, 0 };
    return 1;
}

/* Ranks to which the same kv head goes. */
static int sharers_of(const struct op_attributes *a, int size)
{
    return a->n_kv_heads && a->n_kv_heads < size ? size / a->n_kv_heads : 1;
}

/*
 * Of kv heads that ranks share, k and v stand behind the piece's rows of q, so that they are dense
 * and may be summed: where in a piece, with rows of how many columns.
 */
static struct band heads_in(const struct sequence_parts *p, unsigned char *piece, int64_t q_cols,
                            int64_t own)
{
    int64_t rows = p->sequences * p->rows, kv_cols = p->cols - q_cols;
    int64_t at = own < q_cols ? own : rows * q_cols + own - q_cols;

    return (struct band){ piece + (size_t)at * p->element_bytes, own < q_cols ? q_cols : kv_cols,
                          p->rows };
}

/* Every rank's rows, q apart from k and v. */
static void pack_apart(const struct collective *c, const struct sequence_parts *p, int64_t q_cols,
                       unsigned char *pieces)
{
    for (int rank = 0; rank < p->size; rank++) {
        unsigned char *piece = piece_at(p, pieces, rank);

        for (int i = 0; i < 2; i++) {
            int64_t at = i ? q_cols : 0, cols = i ? p->cols - q_cols : q_cols;

            copy_band(c, p, heads_in(p, piece, q_cols, at),
                      band_of(&c->in, rank * p->rows, at, p->size * p->rows), p->rows, cols);
        }
    }
}

/* Each head's sum replaces what the first of its ranks sent. */
static void sum_shared(const struct collective *c, const struct sequence_parts *p, int64_t q_cols,
                       unsigned char *pieces)
{
    int n_sharers = sharers_of(&c->attributes, p->size);
    int64_t rows = p->sequences * p->rows;

    for (int rank = 0; rank < p->size; rank += n_sharers) {
        void *terms = heads_in(p, piece_at(p, pieces, rank), q_cols, q_cols).data;
        struct kernels_sum sum = {
            c->out.dtype, terms, terms, n_sharers, p->n_elements, rows * (p->cols - q_cols), 0
        };

        collective_sum(c, &sum, NULL);
    }
}

/* From what rank sent; k and v of a shared head from its first rank alone. */
static void put_heads(const struct collective *c, const struct sequence_parts *p, int rank,
                      bool is_apart, unsigned char *piece)
{
    struct exchanged_columns heads = columns_of(&c->attributes, p->size, rank);
    int n = rank % sharers_of(&c->attributes, p->size) ? 1 : heads.n;
    struct band from;

    for (int i = 0; i < n; i++) {
        int64_t own = heads.of[i].own;

        if (is_apart)
            from = heads_in(p, piece, heads.of[0].cols, own);
        else
            from = (struct band){ piece + (size_t)own * p->element_bytes, p->cols, p->rows };
        copy_band(c, p, band_of(&c->out, 0, heads.of[i].all, p->rows), from, p->rows,
                  heads.of[i].cols);
    }
}

static int step_heads_to_rows(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    struct sequence_parts p = pieces_of(c->kind, &c->attributes, size, &c->in);
    int64_t q_cols = c->attributes.n_heads / size * c->attributes.head_dim;
    bool is_apart = sharers_of(&c->attributes, size) > 1;
    unsigned char *received = c->scratch, *sent = received + (size_t)size * p.n_bytes;

    if (step == 0) {
        if (is_apart)
            pack_apart(c, &p, q_cols, sent);
        else
            sent = pack_rows(c, &p, &c->in, sent);
        *call = (struct comm_call){ COMM_ALL_TO_ALL, sent, received, p.n_bytes, 0 };
        return 1;
    }
    if (is_apart)
        sum_shared(c, &p, q_cols, received);
    for (int rank = 0; rank < size; rank++)
        put_heads(c, &p, rank, is_apart, piece_at(&p, received, rank));
    return 0;
}

/* ---- whole sequences ---- */

static bool is_dense(const struct tensor *t)
{
    return t->rows == 1 || t->stride == t->cols;
}

/* Between the rank's part and a piece, which is dense. */
static struct kernels_columns part_columns(const struct tensor *part, void *piece, bool to_piece)
{
    struct kernels_columns columns = { .rows = part->rows,
                                       .cols = part->cols,
                                       .element_bytes = dtype_bytes(part->dtype) };

    columns.to = to_piece ? piece : part->data;
    columns.to_stride = to_piece ? part->cols : part->stride;
    columns.from = to_piece ? part->data : piece;
    columns.from_stride = to_piece ? part->stride : part->cols;
    return columns;
}

static int step_gather_sequence(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    struct sequence_parts p = pieces_of(c->kind, &c->attributes, size, &c->out);
    unsigned char *pieces = p.is_direct ? c->out.data : c->scratch;
    unsigned char *own = piece_at(&p, pieces, comm_group_rank(c->group));

    if (step > 0) {
        unpack_rows(c, &p, &c->out, pieces);
        return 0;
    }
    if (is_dense(&c->in))
        own = c->in.data;
    else
        collective_copy_columns(c, part_columns(&c->in, own, true));
    *call = (struct comm_call){ COMM_ALL_GATHER, own, pieces, p.n_bytes, 0 };
    return 1;
}

static int step_scatter_sequence(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    struct sequence_parts p = pieces_of(c->kind, &c->attributes, size, &c->in);
    unsigned char *received = c->scratch, *sent = received + (size_t)size * p.n_bytes;
    struct kernels_sum sum = {
        c->out.dtype, received, received, size, p.n_elements, p.n_elements, 0
    };

    if (step == 0) {
        sent = pack_rows(c, &p, &c->in, sent);
        *call = (struct comm_call){ COMM_ALL_TO_ALL, sent, received, p.n_bytes, 0 };
        return 1;
    }
    if (is_dense(&c->out))
        sum.out = c->out.data;
    collective_sum(c, &sum, NULL);
    if (!is_dense(&c->out))
        collective_copy_columns(c, part_columns(&c->out, received, false));
    return 0;
}

int collective_step_sequence(const struct collective *c, int step, struct comm_call *call)
{
    switch (c->kind) {
    case OP_ROWS_TO_HEADS:
        return step_rows_to_heads(c, step, call);
    case OP_HEADS_TO_ROWS:
        return step_heads_to_rows(c, step, call);
    case OP_GATHER_SEQUENCE:
        return step_gather_sequence(c, step, call);
    default:
        return step_scatter_sequence(c, step, call);
    }
}

static struct sequence_parts parts_of_shape(const struct op_shape *shape, int size)
{
    bool is_made = shape->kind == OP_ROWS_TO_HEADS || shape->kind == OP_GATHER_SEQUENCE;
    const struct tensor *whole = is_made ? &shape->out[OPS_FIRST] : &shape->in[OPS_FIRST];
    struct sequence_parts p = pieces_of(shape->kind, &shape->attributes, size, whole);

    if (shape->kind == OP_HEADS_TO_ROWS && sharers_of(&shape->attributes, size) > 1)
        p.is_direct = false;
    return p;
}

/* Whatever is not moved from or to an operand, as it lies. */
size_t collective_sequence_scratch_bytes(const struct op_shape *shape, int size)
{
    struct sequence_parts p = parts_of_shape(shape, size);
    int n = (shape->kind != OP_GATHER_SEQUENCE) + !p.is_direct;

    return (size_t)(n * size) * p.n_bytes;
}

size_t collective_sequence_copied_bytes(const struct op_shape *shape, int size)
{
    struct sequence_parts p = parts_of_shape(shape, size);
    int n = (shape->kind == OP_ROWS_TO_HEADS || shape->kind == OP_HEADS_TO_ROWS) + !p.is_direct;

    return (size_t)(n * size) * p.n_bytes;
}
