/*
 * collective_sequence.c - sequences of which each rank of an axis has a part
 *
 * Each kind moves one dense piece a pair of ranks, or a rank: rows of all sequences, one sequence
 * after the other. Before and behind the move, rows and columns are copied between the pieces and
 * the operands. A side that is dense and has its pieces one behind the other, as one sequence
 * without zigzag has, is moved as it lies. What rotates is a part as it is, rows of whatever.
 */
#include "base/num.h"
#include "run/collective_impl.h"

/* The side with whole sequences, and the pieces that it consists of. */
struct sequence_parts {
    int size;                /* ranks */
    int64_t sequences, rows; /* of one piece: rows of each of its sequences */
    int64_t cols;
    int64_t n_elements; /* of a piece */
    size_t n_bytes, element_bytes;
    bool is_zigzag;
    bool is_direct;           /* the whole side is moved as it lies */
    int64_t first, part_rows; /* a slice of the rank's part; part_rows 0: all of it */
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
                                    .is_direct = sequences == 1 && !is_zigzag && !a->part_rows &&
                                                 whole->stride == whole->cols,
                                    .first = a->first,
                                    .part_rows = a->part_rows };
}

/* Of a slice: whole has the rows of all slices. */
static struct sequence_parts pieces_of_part(const struct collective *c, const struct tensor *whole,
                                            const struct tensor *part)
{
    struct sequence_parts p = pieces_of(c->kind, &c->attributes, comm_group_size(c->group), whole);

    p.n_elements = part->rows * p.cols;
    p.n_bytes = (size_t)p.n_elements * p.element_bytes;
    return p;
}

static unsigned char *piece_at(const struct sequence_parts *p, void *pieces, int rank)
{
    return (unsigned char *)pieces + (size_t)rank * p->n_bytes;
}

/* Rows of several sequences, the first rows of each; and the like of other ranks. Counted in
 * elements but for step. */
struct band {
    unsigned char *data;
    int64_t stride; /* from row to row */
    int64_t step;   /* rows from sequence to sequence */
    int64_t apart;  /* from rank to rank */
};

static struct band band_of(const struct tensor *t, int64_t row, int64_t col, int64_t step)
{
    int64_t at = row * t->stride + col;

    return (struct band){ (unsigned char *)t->data + (size_t)at * dtype_bytes(t->dtype), t->stride,
                          step, 0 };
}

/* From a column of the pieces on, one rank's rows of them `apart` from those of the next. */
static struct band band_of_pieces(const struct sequence_parts *p, unsigned char *pieces,
                                  int64_t col, int64_t apart)
{
    return (struct band){ pieces + (size_t)col * p->element_bytes, p->cols, p->rows, apart };
}

/* [rows x cols] of each sequence, for n ranks; where sequences lie as rows do, or rows are dense,
 * in one go. */
static void copy_bands(const struct collective *c, const struct sequence_parts *p,
                       const struct band *to, const struct band *from, int64_t rows, int64_t cols,
                       int n)
{
    struct kernels_columns columns = { to->data,  to->stride, from->data,       from->stride,
                                       rows,      cols,       p->element_bytes, n,
                                       to->apart, from->apart };
    bool is_dense = to->stride == cols && from->stride == cols;
    int64_t n_copies = 1;

    if (to->step == rows && from->step == rows) {
        columns.rows = p->sequences * rows;
    } else if (is_dense) {
        columns.to_stride = to->step * cols;
        columns.from_stride = from->step * cols;
        columns.rows = p->sequences;
        columns.cols = rows * cols;
    } else {
        n_copies = p->sequences;
    }
    for (int64_t s = 0; s < n_copies; s++) {
        columns.to = to->data + (size_t)(s * to->step * to->stride) * p->element_bytes;
        columns.from = from->data + (size_t)(s * from->step * from->stride) * p->element_bytes;
        collective_copy_columns(c, columns);
    }
}

/*
 * All ranks' rows of whole sequences, between them and the pieces: all, or of each zigzag chunk.
 * Ranks' second chunks lie in the reverse order of ranks.
 */
static void copy_rows(const struct collective *c, const struct sequence_parts *p,
                      const struct tensor *whole, unsigned char *pieces, bool to_pieces)
{
    int n_chunks = p->is_zigzag ? 2 : 1;
    int64_t rows = p->rows / n_chunks;

    for (int i = 0; i < n_chunks; i++) {
        struct band far = band_of(whole, i ? (2 * p->size - 1) * rows : 0, 0, p->size * p->rows);
        struct band near = band_of_pieces(p, pieces, i * rows * p->cols, p->n_elements);

        far.apart = (i ? -rows : rows) * whole->stride;
        if (to_pieces)
            copy_bands(c, p, &near, &far, rows, p->cols, p->size);
        else
            copy_bands(c, p, &far, &near, rows, p->cols, p->size);
    }
}

/* Rows of a slice that lie side by side in each rank's part, up to the end of a chunk. */
struct slice_run {
    int64_t at, n_rows; /* in the slice */
    int64_t row, apart; /* of the whole side: the first rank's, and from rank to rank */
};

/* From run->at on. As above, second chunks lie in the reverse order. */
static bool next_run(const struct sequence_parts *p, struct slice_run *run)
{
    int64_t chunk = p->is_zigzag ? p->rows / 2 : p->rows, n = p->n_elements / p->cols;

    run->at += run->n_rows;
    if (run->at >= n)
        return false;
    int64_t in_sequence = (p->first + run->at) % p->rows, in_chunk = in_sequence % chunk;
    int64_t row = (p->first + run->at) / p->rows * p->rows * p->size + in_chunk;
    bool is_second = in_sequence >= chunk;

    run->n_rows = min_i64(n - run->at, chunk - in_chunk);
    run->row = row + (is_second ? (2 * p->size - 1) * chunk : 0);
    run->apart = is_second ? -chunk : chunk;
    return true;
}

/* All ranks' rows of the slice. */
static void copy_slice(const struct collective *c, const struct sequence_parts *p,
                       const struct tensor *whole, unsigned char *pieces, bool to_pieces)
{
    struct sequence_parts one = *p;

    one.sequences = 1;
    for (struct slice_run run = { 0 }; next_run(p, &run);) {
        struct band far = band_of(whole, run.row, 0, run.n_rows);
        struct band near = band_of_pieces(p, pieces, run.at * p->cols, p->n_elements);

        far.apart = run.apart * whole->stride;
        near.step = run.n_rows;
        if (to_pieces)
            copy_bands(c, &one, &near, &far, run.n_rows, p->cols, p->size);
        else
            copy_bands(c, &one, &far, &near, run.n_rows, p->cols, p->size);
    }
}

static void copy_pieces(const struct collective *c, const struct sequence_parts *p,
                        const struct tensor *whole, unsigned char *pieces, bool to_pieces)
{
    if (p->part_rows)
        copy_slice(c, p, whole, pieces, to_pieces);
    else
        copy_rows(c, p, whole, pieces, to_pieces);
}

/* All pieces. Returns where they lie: in `whole` itself, or copied to `pieces`. */
static unsigned char *pack_rows(const struct collective *c, const struct sequence_parts *p,
                                const struct tensor *whole, unsigned char *pieces)
{
    if (p->is_direct)
        return whole->data;
    copy_pieces(c, p, whole, pieces, true);
    return pieces;
}

static void unpack_rows(const struct collective *c, const struct sequence_parts *p,
                        const struct tensor *whole, unsigned char *pieces)
{
    if (!p->is_direct)
        copy_pieces(c, p, whole, pieces, false);
}

/* ---- heads for rows ---- */

/*
 * Columns of heads: those of q, of k, of v. Where ranks share kv heads, a group of ranks has one;
 * else all of them are a group.
 */
struct exchanged_columns {
    int n;         /* kinds of heads: q, or q, k, v */
    int n_sharers; /* ranks that have the same kv head */
    int64_t q;     /* columns of q of one rank */
    struct {
        int64_t all; /* in the rows that have all heads: the first rank's */
        int64_t own; /* in those of a rank's own heads */
        int64_t cols;
    } of[3];
};

static struct exchanged_columns columns_of(const struct op_attributes *a, int size)
{
    int64_t h = a->n_heads, g = a->n_kv_heads, e = a->head_dim, q = h / size * e;
    bool is_shared = g && g < size;
    int64_t kv = is_shared ? e : g / size * e;

    return (struct exchanged_columns){
        .n = g ? 3 : 1,
        .n_sharers = is_shared ? (int)(size / g) : 1,
        .q = q,
        .of = { { 0, 0, q }, { h * e, q, kv }, { (h + g) * e, q + kv, kv } }
    };
}

/* A kind of heads, from the rank's rows to what each rank is sent. */
static void send_heads(const struct collective *c, const struct sequence_parts *p,
                       const struct exchanged_columns *heads, int kind, unsigned char *pieces)
{
    int64_t cols = heads->of[kind].cols;
    int n = kind ? heads->n_sharers : 1, n_groups = n > 1 ? p->size / n : 1;

    for (int i = 0; i < n_groups; i++) {
        struct band from = band_of(&c->in, 0, heads->of[kind].all + i * cols, p->rows);
        struct band to =
            band_of_pieces(p, piece_at(p, pieces, i * n), heads->of[kind].own, p->n_elements);

        from.apart = n > 1 ? 0 : cols;
        copy_bands(c, p, &to, &from, p->rows, cols, p->size / n_groups);
    }
}

/* A slice's rows, as the rank and the pieces have them: one behind the other. */
static struct sequence_parts as_one_sequence(const struct sequence_parts *p)
{
    struct sequence_parts one = *p;

    if (!p->part_rows)
        return one;
    one.sequences = 1;
    one.rows = p->n_elements / p->cols;
    return one;
}

static int step_rows_to_heads(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    struct sequence_parts p = pieces_of_part(c, &c->out, &c->in), one = as_one_sequence(&p);
    struct exchanged_columns heads = columns_of(&c->attributes, size);
    unsigned char *sent = c->scratch, *received = sent + (size_t)size * p.n_bytes;

    if (step > 0) {
        unpack_rows(c, &p, &c->out, received);
        return 0;
    }
    for (int kind = 0; kind < heads.n; kind++)
        send_heads(c, &one, &heads, kind, sent);
    *call = (struct comm_call){ COMM_ALL_TO_ALL, sent, p.is_direct ? c->out.data : received,
                                p.n_bytes, 0 };
    return 1;
}

/*
 * Of kv heads that ranks share, k and v stand behind the piece's rows of q, so that they are dense
 * and may be summed: a band from column `own` on.
 */
static struct band band_apart(const struct sequence_parts *p, unsigned char *pieces,
                              const struct exchanged_columns *heads, int64_t own)
{
    int64_t rows = p->sequences * p->rows;
    struct band band = band_of_pieces(p, pieces, own, p->n_elements);

    band.stride = heads->q;
    if (own >= heads->q) {
        band.stride = p->cols - heads->q;
        band.data += (size_t)((rows - 1) * heads->q) * p->element_bytes;
    }
    return band;
}

/* Rows of every rank, from row run->at of a slice on or all, q apart from k and v. */
static void pack_run_apart(const struct collective *c, const struct sequence_parts *p,
                           const struct exchanged_columns *heads, const struct slice_run *run,
                           unsigned char *pieces)
{
    for (int i = 0; i < 2; i++) {
        int64_t at = i ? heads->q : 0, cols = i ? p->cols - heads->q : heads->q;
        struct band from = band_of(&c->in, run->row, at, p->size * run->n_rows);
        struct band to = band_apart(p, pieces, heads, at);

        to.data += (size_t)(run->at * to.stride) * p->element_bytes;
        from.apart = run->apart * c->in.stride;
        copy_bands(c, p, &to, &from, run->n_rows, cols, p->size);
    }
}

/* p: of the operands; one: of the pieces. */
static void pack_apart(const struct collective *c, const struct sequence_parts *p,
                       const struct sequence_parts *one, const struct exchanged_columns *heads,
                       unsigned char *pieces)
{
    struct slice_run run = { .n_rows = p->rows, .apart = p->rows };

    if (!p->part_rows) {
        pack_run_apart(c, p, heads, &run, pieces);
        return;
    }
    for (run.n_rows = 0; next_run(p, &run);)
        pack_run_apart(c, one, heads, &run, pieces);
}

/* Each head's sum replaces what the first of its ranks sent. */
static void sum_shared(const struct collective *c, const struct sequence_parts *p,
                       const struct exchanged_columns *heads, unsigned char *pieces)
{
    int64_t n = p->sequences * p->rows * (p->cols - heads->q);

    for (int rank = 0; rank < p->size; rank += heads->n_sharers) {
        void *terms = band_apart(p, piece_at(p, pieces, rank), heads, heads->q).data;

        collective_sum(c,
                       &(struct kernels_sum){ c->out.dtype, terms, terms, heads->n_sharers,
                                              p->n_elements, n, 0 },
                       NULL);
    }
}

/* A kind of heads, from what ranks sent; those of k and v that ranks share, from the first of
 * them. */
static void receive_heads(const struct collective *c, const struct sequence_parts *p,
                          const struct exchanged_columns *heads, int kind, unsigned char *pieces)
{
    int64_t own = heads->of[kind].own, cols = heads->of[kind].cols;
    int n = kind ? heads->n_sharers : 1;
    struct band to = band_of(&c->out, 0, heads->of[kind].all, p->rows);
    struct band from = heads->n_sharers > 1 ? band_apart(p, pieces, heads, own)
                                            : band_of_pieces(p, pieces, own, p->n_elements);

    to.apart = cols;
    from.apart *= n;
    copy_bands(c, p, &to, &from, p->rows, cols, p->size / n);
}

static int step_heads_to_rows(const struct collective *c, int step, struct comm_call *call)
{
    int size = comm_group_size(c->group);
    struct sequence_parts p = pieces_of_part(c, &c->in, &c->out), one = as_one_sequence(&p);
    struct exchanged_columns heads = columns_of(&c->attributes, size);
    unsigned char *received = c->scratch, *sent = received + (size_t)size * p.n_bytes;

    if (step == 0) {
        if (heads.n_sharers > 1)
            pack_apart(c, &p, &one, &heads, sent);
        else
            sent = pack_rows(c, &p, &c->in, sent);
        *call = (struct comm_call){ COMM_ALL_TO_ALL, sent, received, p.n_bytes, 0 };
        return 1;
    }
    if (heads.n_sharers > 1)
        sum_shared(c, &one, &heads, received);
    for (int kind = 0; kind < heads.n; kind++)
        receive_heads(c, &one, &heads, kind, received);
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
    struct sequence_parts p = pieces_of_part(c, &c->out, &c->in);
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
    struct sequence_parts p = pieces_of_part(c, &c->in, &c->out);
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

/* Each side that is not dense goes through a piece of scratch: x's, then y's. */
static int step_rotate(const struct collective *c, int step, struct comm_call *call)
{
    size_t n_bytes = (size_t)tensor_elements(&c->in) * dtype_bytes(c->in.dtype);
    unsigned char *sent = c->scratch, *received = sent + (is_dense(&c->in) ? 0 : n_bytes);

    if (step > 0) {
        if (!is_dense(&c->out))
            collective_copy_columns(c, part_columns(&c->out, received, false));
        return 0;
    }
    if (is_dense(&c->in))
        sent = c->in.data;
    else
        collective_copy_columns(c, part_columns(&c->in, sent, true));
    *call = (struct comm_call){ COMM_ROTATE, sent, is_dense(&c->out) ? c->out.data : received,
                                n_bytes, c->attributes.peer };
    return 1;
}

static size_t rotate_scratch_bytes(const struct tensor *x, const struct tensor *y)
{
    size_t n_bytes = (size_t)tensor_elements(x) * dtype_bytes(x->dtype);

    return (size_t)(!is_dense(x) + !is_dense(y)) * n_bytes;
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
    case OP_ROTATE:
        return step_rotate(c, step, call);
    default:
        return step_scatter_sequence(c, step, call);
    }
}

void collective_each_slice_rows(const struct collective *c, collective_rows_fn each, void *context)
{
    bool is_made = ops_makes_whole(c->kind);
    struct sequence_parts p =
        pieces_of_part(c, is_made ? &c->out : &c->in, is_made ? &c->in : &c->out);

    for (struct slice_run run = { 0 }; next_run(&p, &run);)
        for (int rank = 0; rank < p.size; rank++)
            each(context, run.row + rank * run.apart, run.n_rows);
}

static struct sequence_parts parts_of_shape(const struct op_shape *shape, int size)
{
    bool is_made = ops_makes_whole(shape->kind);
    const struct tensor *whole = is_made ? &shape->out[OPS_FIRST] : &shape->in[OPS_FIRST];
    struct sequence_parts p = pieces_of(shape->kind, &shape->attributes, size, whole);

    if (shape->kind == OP_HEADS_TO_ROWS && columns_of(&shape->attributes, size).n_sharers > 1)
        p.is_direct = false;
    return p;
}

/* Whatever is not moved from or to an operand, as it lies. */
size_t collective_sequence_scratch_bytes(const struct op_shape *shape, int size)
{
    if (shape->kind == OP_ROTATE)
        return rotate_scratch_bytes(&shape->in[ROTATE_X], &shape->out[ROTATE_Y]);

    struct sequence_parts p = parts_of_shape(shape, size);
    int n = (shape->kind != OP_GATHER_SEQUENCE) + !p.is_direct;

    return (size_t)(n * size) * p.n_bytes;
}

size_t collective_sequence_copied_bytes(const struct op_shape *shape, int size)
{
    if (shape->kind == OP_ROTATE)
        return rotate_scratch_bytes(&shape->in[ROTATE_X], &shape->out[ROTATE_Y]);

    struct sequence_parts p = parts_of_shape(shape, size);
    int n = (shape->kind == OP_ROWS_TO_HEADS || shape->kind == OP_HEADS_TO_ROWS) + !p.is_direct;

    return (size_t)(n * size) * p.n_bytes;
}
