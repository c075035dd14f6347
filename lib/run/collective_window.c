/*
 * collective_window.c - of sequences of which each rank has two chunks, what a window sees
 *
 * Rank r of q has chunks r and 2 q - 1 - r of a sequence, so that rank r - 1 has the chunk before
 * its first, and rank r + 1 the one before its second; the last rank has that one itself. What
 * moves is tails, the last window - 1 rows of chunks: those of all ranks' first chunks to the next
 * rank, those of their second chunks to the one before, and gradients back. Both ways wrap, and
 * what has gone around is not read.
 */
#include "run/collective_impl.h"

/* Rows of a sequence's part, in chunks, and of what its windows see, in spans. */
struct window_parts {
    int rank, size;
    int64_t sequences, chunk, tail, span;
    int64_t begin[2]; /* of the rank's chunks: where in their spans */
    size_t element_bytes, row_bytes;
    size_t tail_bytes; /* of all sequences: a message */
    int64_t tail_elements;
};

static struct window_parts parts_of(const struct op_attributes *a, const struct tensor *part,
                                    int rank, int size)
{
    int64_t chunk = a->seq_len / 2, sequences = part->rows / a->seq_len;
    int64_t tail_elements = sequences * (a->window - 1) * part->cols;
    struct window_parts p = { .rank = rank,
                              .size = size,
                              .sequences = sequences,
                              .chunk = chunk,
                              .tail = a->window - 1,
                              .span = ops_window_rows(chunk, a->window),
                              .element_bytes = dtype_bytes(part->dtype),
                              .tail_elements = tail_elements };

    p.row_bytes = (size_t)part->cols * p.element_bytes;
    p.tail_bytes = (size_t)tail_elements * p.element_bytes;
    for (int i = 0; i < 2; i++) {
        int number = i ? 2 * size - 1 - rank : rank;

        p.begin[i] = number * chunk - ops_window_begin(chunk, a->window, number);
    }
    return p;
}

/* Neighbouring rows of every sequence. */
struct sequence_rows {
    unsigned char *data;
    int64_t stride, step; /* elements from row to row, from sequence to sequence */
};

static struct sequence_rows rows_of(const struct window_parts *p, const struct tensor *t,
                                    int64_t row)
{
    return (struct sequence_rows){ (unsigned char *)t->data +
                                       (size_t)(row * t->stride) * p->element_bytes,
                                   t->stride, t->rows / p->sequences * t->stride };
}

static struct sequence_rows rows_of_tail(const struct window_parts *p, unsigned char *tail)
{
    int64_t cols = (int64_t)(p->row_bytes / p->element_bytes);

    return (struct sequence_rows){ tail, cols, p->tail * cols };
}

/* Row `row` of the rank's i-th chunk, and of its span. */
static struct sequence_rows in_chunk(const struct window_parts *p, const struct tensor *part, int i,
                                     int64_t row)
{
    return rows_of(p, part, i * p->chunk + row);
}

static struct sequence_rows in_span(const struct window_parts *p, const struct tensor *seen, int i,
                                    int64_t row)
{
    return rows_of(p, seen, i * p->span + row);
}

static void copy_rows(const struct collective *c, const struct window_parts *p,
                      struct sequence_rows to, struct sequence_rows from, int64_t n)
{
    if (n > 0)
        collective_copy_columns(
            c, (struct kernels_columns){ to.data, to.stride, from.data, from.stride, n, c->in.cols,
                                         p->element_bytes, (int)p->sequences, to.step, from.step });
}

/* Whether another chunk lies before the rank's i-th, behind it; whether that is its own. */
static bool has_before(const struct window_parts *p, int i)
{
    return i || p->rank > 0;
}

static bool has_behind(const struct window_parts *p, int i)
{
    return !i || p->rank > 0;
}

static bool is_own(const struct window_parts *p)
{
    return p->rank == p->size - 1;
}

/* ---- what windows see ---- */

/* The i-th chunk's span: zeros, the tail before it, the chunk, zeros. */
static void fill_span(const struct collective *c, const struct window_parts *p, int i,
                      unsigned char *tail, unsigned char *zero)
{
    int64_t begin = p->begin[i], end = begin + p->chunk;
    int64_t first = has_before(p, i) ? begin - p->tail : begin;
    struct sequence_rows before =
        i && is_own(p) ? in_chunk(p, &c->in, 0, p->chunk - p->tail) : rows_of_tail(p, tail);

    copy_rows(c, p, in_span(p, &c->out, i, 0), (struct sequence_rows){ zero, 0, 0 }, first);
    copy_rows(c, p, in_span(p, &c->out, i, first), before, begin - first);
    copy_rows(c, p, in_span(p, &c->out, i, begin), in_chunk(p, &c->in, i, 0), p->chunk);
    copy_rows(c, p, in_span(p, &c->out, i, end), (struct sequence_rows){ zero, 0, 0 },
              p->span - end);
}

static int step_gather(const struct collective *c, int step, struct comm_call *call)
{
    struct window_parts p =
        parts_of(&c->attributes, &c->in, comm_group_rank(c->group), comm_group_size(c->group));
    unsigned char *sent = c->scratch, *received = sent + p.tail_bytes;
    unsigned char *zero = received + 2 * p.tail_bytes;

    if (step < 2 && p.tail > 0) {
        copy_rows(c, &p, rows_of_tail(&p, sent), in_chunk(&p, &c->in, step, p.chunk - p.tail),
                  p.tail);
        *call = (struct comm_call){ COMM_ROTATE, sent, received + (size_t)step * p.tail_bytes,
                                    p.tail_bytes, step ? 1 : -1 };
        return 1;
    }
    collective_fill_zero(c, zero, p.row_bytes);
    for (int i = 0; i < 2; i++)
        fill_span(c, &p, i, received + (size_t)i * p.tail_bytes, zero);
    return 0;
}

/* ---- their gradients ---- */

/* The i-th chunk: its rows of its span, of the last of which the next span's are added. terms: of
 * the sum, two tails, of which the second has been received. */
static void sum_chunk(const struct collective *c, const struct window_parts *p, int i,
                      unsigned char *terms)
{
    struct kernels_sum sum = {
        c->out.dtype, terms, terms, 2, p->tail_elements, p->tail_elements, 0
    };
    int64_t n = has_behind(p, i) ? p->tail : 0, end = p->begin[i] + p->chunk;

    copy_rows(c, p, in_chunk(p, &c->out, i, 0), in_span(p, &c->in, i, p->begin[i]), p->chunk - n);
    if (!n)
        return;
    copy_rows(c, p, rows_of_tail(p, terms), in_span(p, &c->in, i, end - n), n);
    if (!i && is_own(p))
        copy_rows(c, p, rows_of_tail(p, terms + p->tail_bytes),
                  in_span(p, &c->in, 1, p->begin[1] - n), n);
    collective_sum(c, &sum, NULL);
    copy_rows(c, p, in_chunk(p, &c->out, i, p->chunk - n), rows_of_tail(p, terms), n);
}

static int step_scatter(const struct collective *c, int step, struct comm_call *call)
{
    struct window_parts p =
        parts_of(&c->attributes, &c->out, comm_group_rank(c->group), comm_group_size(c->group));
    unsigned char *sent = c->scratch, *terms = sent + p.tail_bytes;

    if (step < 2 && p.tail > 0) {
        copy_rows(c, &p, rows_of_tail(&p, sent), in_span(&p, &c->in, step, p.begin[step] - p.tail),
                  p.tail);
        *call =
            (struct comm_call){ COMM_ROTATE, sent, terms + (size_t)(2 * step + 1) * p.tail_bytes,
                                p.tail_bytes, step ? -1 : 1 };
        return 1;
    }
    for (int i = 0; i < 2; i++)
        sum_chunk(c, &p, i, terms + (size_t)(2 * i) * p.tail_bytes);
    return 0;
}

int collective_step_window(const struct collective *c, int step, struct comm_call *call)
{
    return c->kind == OP_GATHER_WINDOW ? step_gather(c, step, call) : step_scatter(c, step, call);
}

static struct window_parts parts_of_shape(const struct op_shape *shape)
{
    bool is_gathered = shape->kind == OP_GATHER_WINDOW;

    return parts_of(&shape->attributes,
                    is_gathered ? &shape->in[OPS_FIRST] : &shape->out[OPS_FIRST], 0, 1);
}

/* A tail to send, and two received and a row of zeros, or two sums of two. */
size_t collective_window_scratch_bytes(const struct op_shape *shape)
{
    struct window_parts p = parts_of_shape(shape);

    return shape->kind == OP_GATHER_WINDOW ? 3 * p.tail_bytes + p.row_bytes : 5 * p.tail_bytes;
}

size_t collective_window_sent_bytes(const struct op_shape *shape)
{
    return 2 * parts_of_shape(shape).tail_bytes;
}

/* All of what is made, and tails before and behind their moves. */
size_t collective_window_copied_bytes(const struct op_shape *shape)
{
    const struct tensor *out = &shape->out[OPS_FIRST];

    return (size_t)tensor_elements(out) * dtype_bytes(out->dtype) +
           2 * collective_window_sent_bytes(shape);
}
