/*
 * collective_experts.c - rows that go to the ranks that have their experts, and back
 *
 * All ranks know all choices, so each knows what it sends and gets, and what lies where: no counts
 * are exchanged. send_rows packs the rows for each other rank into a piece, and puts what it
 * receives into its place. return_rows packs each other rank's rows, which lie in as many places as
 * there are experts here; what it receives lies as it is to lie. The rank's own rows are copied.
 *
 *   send_rows of rank 0 of two, tokens 0 .. 3 each, experts 0 and 1 here; rank 0's choices are
 *   (0 2) (0 1) (3 2) (1 0), rank 1's (0 1) (2 3) (3 1) (2 3)
 *     own rows    y[0] = x[0], y[1] = x[1], y[3] = x[3]
 *     to rank 1   x[0] x[2]
 *     received    rank 1's rows 0 and 2, to y[4] and y[6]
 *   return_rows of the same: y has expert 0's rows of tokens 0 1 3 of rank 0 and 0 of rank 1, then
 *   expert 1's of 1 3 and 0 2
 *     own rows    x[0 1 2] = y[0 1 2], x[3 4] = y[4 5]
 *     to rank 1   y[3] y[6] y[7], which are its first three
 *     received    x[5 6] (expert 2) x[7] (expert 3)
 *
 * In scratch: what is moved (parts), counts, lists, pieces. On a queue all but parts and counts are
 * the device's; the host waits for the counts, which NCCL must know.
 */
#include <string.h>

#include "base/num.h"
#include "comm/pause.h"
#include "run/collective_impl.h"

#define ALIGNMENT ((size_t)64)

/* Where things are in scratch. */
struct rows_layout {
    size_t counts, lists, sent, received, end;
};

static size_t piece_bytes(const struct kernels_rows *rows)
{
    return (size_t)rows->piece_rows * rows->row_bytes;
}

static struct rows_layout layout_of(const struct kernels_rows *rows)
{
    size_t n = (size_t)rows->n_ranks, pieces = (n - 1) * piece_bytes(rows);
    struct rows_layout l = { .counts = align_up(n * sizeof(struct comm_part), ALIGNMENT) };

    l.lists = align_up(l.counts + 3 * n * sizeof *rows->counts, ALIGNMENT);
    l.sent =
        align_up(l.lists + (size_t)kernels_rows_list_length(rows) * sizeof *rows->lists, ALIGNMENT);
    l.received = align_up(l.sent + (kernels_rows_are_packed(rows) ? pieces : 0), ALIGNMENT);
    l.end = l.received + (rows->kind == OP_SEND_ROWS ? pieces : 0);
    return l;
}

static struct kernels_rows rows_of(enum op_kind kind, const struct op_attributes *a,
                                   const struct tensor *in, const struct tensor *choices,
                                   const struct tensor *out, int size)
{
    bool is_sent = kind == OP_SEND_ROWS;
    int64_t n_tokens = choices->rows / size, n_own = a->n_experts / size;
    int64_t most = n_tokens * (is_sent ? 1 : min_i64(choices->cols, n_own));

    return (struct kernels_rows){ .kind = kind,
                                  .n_ranks = size,
                                  .n_experts = a->n_experts,
                                  .first = (int)a->first,
                                  .end = a->experts ? (int)a->first + a->experts : (int)n_own,
                                  .choices = choices->data,
                                  .n_tokens = n_tokens,
                                  .n_chosen = choices->cols,
                                  .in = in->data,
                                  .in_rows = in->rows,
                                  .out = out->data,
                                  .row_bytes = (size_t)in->cols * dtype_bytes(in->dtype),
                                  .piece_rows = min_i64(most, in->rows) };
}

static struct kernels_rows rows_of_shape(const struct op_shape *shape, int size)
{
    return rows_of(shape->kind, &shape->attributes, &shape->in[OPS_FIRST],
                   &shape->in[SEND_ROWS_CHOICES], &shape->out[OPS_FIRST], size);
}

static struct kernels_rows rows_of_collective(const struct collective *c)
{
    struct kernels_rows rows =
        rows_of(c->kind, &c->attributes, &c->in, &c->choices, &c->out, comm_group_size(c->group));
    struct rows_layout layout = layout_of(&rows);
    unsigned char *scratch = c->scratch;

    rows.rank = comm_group_rank(c->group);
    rows.counts = (int32_t *)(void *)(scratch + layout.counts);
    rows.lists = (int32_t *)(void *)(scratch + layout.lists);
    rows.sent = kernels_rows_are_packed(&rows) ? scratch + layout.sent : NULL;
    rows.received = c->kind == OP_SEND_ROWS ? scratch + layout.received : NULL;
    return rows;
}

static unsigned char *row_at(const struct kernels_rows *rows, const void *in, int64_t row)
{
    return (unsigned char *)(uintptr_t)in + (size_t)row * rows->row_bytes;
}

static unsigned char *piece_of(const struct kernels_rows *rows, const void *pieces, int rank)
{
    return row_at(rows, pieces, kernels_rows_piece(rows, rank) * rows->piece_rows);
}

static void copy_rows(const struct kernels_rows *rows, void *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)n * rows->row_bytes);
}

/* ---- in host memory ---- */

/* The rank that has the token's i-th choice; -1: it was dropped. */
static int chosen_rank(const struct kernels_rows *rows, int rank, int64_t token, int64_t i)
{
    int32_t e = rows->choices[(rank * rows->n_tokens + token) * rows->n_chosen + i];

    CHECK(e >= -1 && e < rows->n_experts);
    return e < 0 ? -1 : e / kernels_rows_own_experts(rows);
}

/* The token's experts of a rank: whether it has some of those at hand, and none before them. */
static bool goes_now(const struct kernels_rows *rows, int rank, int64_t token, int to)
{
    const int32_t *chosen = rows->choices + (rank * rows->n_tokens + token) * rows->n_chosen;
    int n_own = kernels_rows_own_experts(rows), lowest = n_own;

    for (int64_t i = 0; i < rows->n_chosen; i++)
        if (chosen_rank(rows, rank, token, i) == to)
            lowest = min_int(lowest, chosen[i] - to * n_own);
    return lowest >= rows->first && lowest < rows->end;
}

/* Append the token, once. */
static void list_token(const struct kernels_rows *rows, int list, int64_t token)
{
    int32_t *at = rows->lists + list * rows->n_tokens, *n = &rows->counts[list];

    if (!*n || at[*n - 1] != token)
        at[(*n)++] = (int32_t)token;
}

static void list_tokens(const struct kernels_rows *rows)
{
    memset(rows->counts, 0, 3 * (size_t)rows->n_ranks * sizeof *rows->counts);
    for (int r = 0; r < rows->n_ranks; r++)
        for (int64_t t = 0; t < rows->n_tokens; t++)
            for (int64_t i = 0; i < rows->n_chosen; i++) {
                int to = chosen_rank(rows, r, t, i);

                if (to < 0 || (r != rows->rank && to != rows->rank) || !goes_now(rows, r, t, to))
                    continue;
                if (r == rows->rank)
                    list_token(rows, to, t);
                if (to == rows->rank)
                    list_token(rows, rows->n_ranks + r, t);
            }
}

static void pack_sent(const struct kernels_rows *rows)
{
    list_tokens(rows);
    for (int r = 0; r < rows->n_ranks; r++) {
        const int32_t *list = rows->lists + r * rows->n_tokens;

        for (int32_t j = 0; j < rows->counts[r]; j++)
            copy_rows(rows,
                      r == rows->rank ? row_at(rows, rows->out, r * rows->n_tokens + list[j])
                                      : row_at(rows, piece_of(rows, rows->sent, r), j),
                      row_at(rows, rows->in, list[j]), 1);
    }
}

static void unpack_received(const struct kernels_rows *rows)
{
    for (int r = 0; r < rows->n_ranks; r++) {
        const int32_t *list = rows->lists + (rows->n_ranks + r) * rows->n_tokens;

        for (int32_t j = 0; j < rows->counts[rows->n_ranks + r] && r != rows->rank; j++)
            copy_rows(rows, row_at(rows, rows->out, r * rows->n_tokens + list[j]),
                      row_at(rows, piece_of(rows, rows->received, r), j), 1);
    }
}

static bool is_moved(const struct kernels_rows *rows, int expert)
{
    return expert >= rows->first && expert < rows->end;
}

/* Of a choice of the rank's own tokens: the row comes from that rank. */
static void count_received(const struct kernels_rows *rows, int from, int expert)
{
    int n = rows->n_ranks;

    rows->counts[n + from] += is_moved(rows, expert);
    rows->counts[2 * n + from] += expert < rows->first;
    for (int r = from + 1; r < n; r++)
        rows->counts[2 * n + r]++;
}

/* How many rows of each rank each expert here has. */
static void count_rows(const struct kernels_rows *rows, int32_t *lengths)
{
    int n_own = kernels_rows_own_experts(rows), n = rows->n_ranks;

    memset(rows->counts, 0, 3 * (size_t)n * sizeof *rows->counts);
    memset(lengths, 0, (size_t)(n * n_own) * sizeof *lengths);
    for (int r = 0; r < n; r++)
        for (int64_t t = 0; t < rows->n_tokens; t++)
            for (int64_t i = 0; i < rows->n_chosen; i++) {
                int from = chosen_rank(rows, r, t, i);
                const int32_t *token = rows->choices + (r * rows->n_tokens + t) * rows->n_chosen;

                int expert = token[i] - from * n_own;

                if (r == rows->rank && from >= 0)
                    count_received(rows, from, expert);
                if (from != rows->rank)
                    continue;
                rows->counts[r] += is_moved(rows, expert);
                lengths[r * n_own + expert]++;
            }
}

static int32_t sum_of(const int32_t *counts, int n)
{
    int32_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* Where they begin, here and there. */
static void list_segments(const struct kernels_rows *rows)
{
    int n_own = kernels_rows_own_experts(rows), n = rows->n_ranks;
    int32_t *begins = rows->lists, *lengths = begins + n * n_own, *places = lengths + n * n_own;
    int32_t at = 0;

    count_rows(rows, lengths);
    for (int e = 0; e < n_own; e++)
        for (int r = 0; r < n; r++) {
            begins[r * n_own + e] = at;
            at += lengths[r * n_own + e];
        }
    for (int r = 0; r < n; r++) {
        at = r == rows->rank ? rows->counts[2 * n + r] : 0;
        for (int e = rows->first; e < rows->end; e++) {
            places[r * n_own + e] = at;
            at += lengths[r * n_own + e];
        }
    }
}

static void pack_returned(const struct kernels_rows *rows)
{
    int n_own = kernels_rows_own_experts(rows), n = rows->n_ranks;

    list_segments(rows);
    CHECK(sum_of(rows->counts, n) <= rows->in_rows);
    for (int r = 0; r < n; r++) {
        const int32_t *begins = rows->lists + r * n_own, *lengths = begins + n * n_own;
        const int32_t *places = lengths + n * n_own;
        void *to = rows->out;

        if (r != rows->rank && !rows->sent)
            continue;
        if (r != rows->rank)
            to = piece_of(rows, rows->sent, r);
        for (int e = rows->first; e < rows->end; e++)
            copy_rows(rows, row_at(rows, to, places[e]), row_at(rows, rows->in, begins[e]),
                      lengths[e]);
    }
}

/* ---- and on a queue ---- */

static void pack(const struct collective *c, const struct kernels_rows *rows)
{
    if (collective_is_enqueued(c))
        c->kernels->backend->traffic->pack_rows(c->kernels, c->base.queue, rows);
    else if (c->kind == OP_SEND_ROWS)
        pack_sent(rows);
    else
        pack_returned(rows);
}

static void unpack(const struct collective *c, const struct kernels_rows *rows)
{
    if (collective_is_enqueued(c))
        c->kernels->backend->traffic->unpack_rows(c->kernels, c->base.queue, rows);
    else
        unpack_received(rows);
}

/* The counts, once they are known to the host; on failure NULL, and ERR_PEER. */
static const int32_t *read_counts(const struct collective *c, const struct kernels_rows *rows,
                                  struct err *err)
{
    size_t n_bytes = 3 * (size_t)rows->n_ranks * sizeof *rows->counts;
    struct device *device = c->base.device;
    struct comm *comm = comm_of_group(c->group);
    struct comm_pause pause;

    if (!collective_is_enqueued(c))
        return rows->counts;
    int32_t *counts = (int32_t *)(void *)((unsigned char *)c->host_tables + layout_of(rows).counts);
    device->ops->copy(device, c->base.queue, counts, rows->counts, n_bytes);
    device->ops->event_record(device, c->base.queue, c->base.done);
    comm_pause_begin(&pause);
    while (!stream_op_has_passed(&c->base)) {
        if (comm_check(comm, err) < 0)
            return NULL;
        comm_pause(&pause, COMM_WAITING);
    }
    return comm_check(comm, err) < 0 ? NULL : counts;
}

/* What is moved. All of it is known to fit, and so that counts are what they may be. */
static const struct comm_part *parts_of(const struct collective *c, const struct kernels_rows *rows,
                                        const int32_t *counts)
{
    struct comm_part *parts = c->host_tables ? c->host_tables : c->scratch;
    int64_t first_in = 0;

    for (int r = 0; r < rows->n_ranks; r++) {
        int32_t n_sent = counts[r], n_received = counts[rows->n_ranks + r];
        struct comm_part part = { 0 };

        if (r != rows->rank) {
            CHECK(n_sent >= 0 && n_sent <= rows->piece_rows);
            part = (struct comm_part){ rows->sent ? piece_of(rows, rows->sent, r)
                                                  : row_at(rows, rows->in, first_in),
                                       (size_t)n_sent * rows->row_bytes,
                                       rows->received
                                           ? piece_of(rows, rows->received, r)
                                           : row_at(rows, rows->out, counts[2 * rows->n_ranks + r]),
                                       (size_t)n_received * rows->row_bytes };
        }
        parts[r] = part;
        first_in += n_sent;
    }
    return parts;
}

int collective_step_rows(const struct collective *c, int step, struct comm_call *call,
                         struct err *err)
{
    struct kernels_rows rows = rows_of_collective(c);

    if (step > 0) {
        if (c->kind == OP_SEND_ROWS)
            unpack(c, &rows);
        return 0;
    }
    pack(c, &rows);
    const int32_t *counts = read_counts(c, &rows, err);
    if (!counts)
        return -1;
    *call = (struct comm_call){ COMM_EXCHANGE, parts_of(c, &rows, counts), NULL, piece_bytes(&rows),
                                0 };
    return 1;
}

size_t collective_rows_scratch_bytes(const struct op_shape *shape, int size)
{
    struct kernels_rows rows = rows_of_shape(shape, size);

    return layout_of(&rows).end;
}

size_t collective_rows_host_bytes(const struct op_shape *shape, int size)
{
    struct kernels_rows rows = rows_of_shape(shape, size);

    return layout_of(&rows).lists;
}

/* ---- what is expected, where all experts are chosen alike ---- */

/* Rows that a rank sends to another, or keeps. */
static double expected_rows(const struct kernels_rows *rows)
{
    double choices = (double)rows->n_tokens * (double)rows->n_chosen / rows->n_ranks;
    double before = ops_chosen_share(rows->n_experts, rows->first, rows->n_chosen);

    if (rows->kind == OP_RETURN_ROWS)
        return choices * (rows->end - rows->first) / kernels_rows_own_experts(rows);
    return (double)rows->n_tokens *
           (ops_chosen_share(rows->n_experts, rows->end, rows->n_chosen) - before);
}

size_t collective_rows_moved_bytes(const struct op_shape *shape, int size)
{
    struct kernels_rows rows = rows_of_shape(shape, size);

    return (size_t)(expected_rows(&rows) * size) * rows.row_bytes;
}

/* What is packed, its own rows, and what is put into its place. */
size_t collective_rows_copied_bytes(const struct op_shape *shape, int size)
{
    struct kernels_rows rows = rows_of_shape(shape, size);
    int n = 1 + kernels_rows_are_packed(&rows) * (size - 1) +
            (shape->kind == OP_SEND_ROWS) * (size - 1);

    return (size_t)(expected_rows(&rows) * n) * rows.row_bytes;
}
