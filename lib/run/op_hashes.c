/*
 * op_hashes.c - hashes of what ops read and wrote
 *
 * A tensor is hashed in tiles of a fixed size, on the pool where it lies in host memory, and its
 * hash is that of its tiles' hashes: threads do not matter. Of what an op reads only that is hashed
 * which a collective has written: all else is another op's output, or a cell that ranks hold alike
 * or, sums of gradients, each for itself.
 *
 * Rows of experts are a bound, and behind the last one that there is lies whatever was there
 * before, as in rows that were not sent: it is not hashed. How many there are is known once they
 * are ordered.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/num.h"
#include "run/run_impl.h"

#define TILE_BYTES ((size_t)256 << 10)

struct op_hashing {
    struct op_hashes *micro_batch, *update; /* NULL: not now */
    enum mesh_axis axis;
    char *is_given; /* by value: that, or the base of it, is written by a collective */
    int *order;     /* by value: the places or ends that say how many of its rows there are, or 0 */
    int64_t *n_rows; /* by places and ends: so many */
    char *is_sent;   /* by value: rows of tokens, of which those with a place alone were sent */
    uint64_t *tiles;
    int64_t capacity;
    unsigned char fetched[TILE_BYTES];
};

struct hash_tiles {
    const unsigned char *data;
    size_t row_bytes, stride_bytes,
        n_bytes; /* n_bytes: where rows lie one behind the other, or 0 */
    int64_t rows, rows_per_tile, n_tiles;
    const char *is_there; /* by row; NULL: all are */
    uint64_t *hashes;
};

static bool lies_dense(const struct tensor *t)
{
    return t->rows <= 1 || t->stride == t->cols;
}

/* is_there: or NULL. */
static struct hash_tiles tiles_of(const struct tensor *t, const char *is_there)
{
    size_t row_bytes = (size_t)t->cols * dtype_bytes(t->dtype);
    struct hash_tiles tiling = { .data = t->data,
                                 .row_bytes = row_bytes,
                                 .stride_bytes = (size_t)t->stride * dtype_bytes(t->dtype),
                                 .rows = t->rows,
                                 .is_there = is_there };

    if (lies_dense(t) && !is_there) {
        tiling.n_bytes = row_bytes * (size_t)t->rows;
        tiling.n_tiles = ceil_div((int64_t)tiling.n_bytes, (int64_t)TILE_BYTES);
        return tiling;
    }
    tiling.rows_per_tile = max_i64(1, (int64_t)(TILE_BYTES / tiling.stride_bytes));
    tiling.n_tiles = ceil_div(t->rows, tiling.rows_per_tile);
    return tiling;
}

/* Where a tile begins, and how many bytes it has from its first to its last. */
static size_t tile_span(const struct hash_tiles *t, int64_t tile, size_t *begin)
{
    if (t->n_bytes) {
        *begin = (size_t)tile * TILE_BYTES;
        return t->n_bytes - *begin < TILE_BYTES ? t->n_bytes - *begin : TILE_BYTES;
    }
    int64_t first = tile * t->rows_per_tile, n = min_i64(t->rows_per_tile, t->rows - first);
    *begin = (size_t)first * t->stride_bytes;
    return (size_t)(n - 1) * t->stride_bytes + t->row_bytes;
}

/* data: the tile's. */
static uint64_t hash_bytes(const struct hash_tiles *t, int64_t tile, const unsigned char *data,
                           size_t n_bytes)
{
    int64_t row = tile * t->rows_per_tile;
    uint64_t hash = 0;

    if (t->n_bytes)
        return XXH3_64bits(data, n_bytes);
    for (size_t at = 0; at + t->row_bytes <= n_bytes; at += t->stride_bytes, row++)
        if (!t->is_there || t->is_there[row])
            hash = XXH3_64bits_withSeed(data + at, t->row_bytes, hash);
    return hash;
}

static void hash_tile(void *context, int64_t tile, int thread)
{
    struct hash_tiles *t = context;
    size_t begin, n_bytes = tile_span(t, tile, &begin);

    (void)thread;
    t->hashes[tile] = hash_bytes(t, tile, t->data + begin, n_bytes);
}

/* A GPU's, tile by tile; a row may be longer than what is fetched at once. */
static int hash_fetched(struct run *run, struct hash_tiles *t, struct err *err)
{
    for (int64_t i = 0; i < t->n_tiles; i++) {
        size_t begin, n_bytes = tile_span(t, i, &begin);
        unsigned char *room = n_bytes <= TILE_BYTES ? run->hashing->fetched : malloc(n_bytes);

        CHECK(room);
        int status = run_get_at(run, room, t->data + begin, n_bytes, err);
        if (!status)
            t->hashes[i] = hash_bytes(t, i, room, n_bytes);
        if (room != run->hashing->fetched)
            free(room);
        if (status < 0)
            return -1;
    }
    return 0;
}

static int hash_tensor(struct run *run, int id, const struct tensor *tensor, const char *is_there,
                       uint64_t *hash, struct err *err)
{
    struct op_hashing *h = run->hashing;
    struct hash_tiles t = tiles_of(tensor, is_there);

    if (t.n_tiles > h->capacity) {
        h->capacity = t.n_tiles;
        h->tiles = realloc(h->tiles, (size_t)h->capacity * sizeof *h->tiles);
        CHECK(h->tiles);
    }
    t.hashes = h->tiles;
    if (device_is_host(run->device))
        pool_run(run->options.kernels->pool, t.n_tiles, hash_tile, &t);
    else if (run->program->values[id].space == SPACE_HOST)
        for (int64_t i = 0; i < t.n_tiles; i++)
            hash_tile(&t, i, 0);
    else if (hash_fetched(run, &t, err) < 0)
        return -1;
    *hash = XXH3_64bits_withSeed(h->tiles, (size_t)t.n_tiles * sizeof *h->tiles, *hash);
    return 0;
}

/* ---- rows that are there ---- */

/* Where an op has such rows, so has its result of as many. */
static void list_rows(const struct op *op, struct op_hashing *h)
{
    const struct op_info *info = op_info(op->kind);

    if (op->kind == OP_DISPATCH)
        h->order[op->out[DISPATCH_Y]] = op->in[DISPATCH_PLACE];
    if (op->kind == OP_SEND_ROWS)
        h->is_sent[op->out[SEND_ROWS_Y]] = 1;
    if (op->kind == OP_DISPATCH || op_is_collective(op->kind))
        return;
    for (int k = 0; k < info->n_inputs; k++)
        for (int i = 0; i < info->n_outputs && h->order[op->in[k]]; i++)
            if (op->out[i] && info->outputs[i].rows == info->inputs[k].rows)
                h->order[op->out[i]] = h->order[op->in[k]];
}

/* Its ends say how many. */
static int note_rows(struct run *run, const struct resolved_op *op, const struct op *source,
                     struct err *err)
{
    const struct tensor *ends = &op->call.op.out[EXPERT_ORDER_ENDS];
    int32_t n;

    if (source->kind != OP_EXPERT_ORDER)
        return 0;
    if (run_get_at(run, &n, (const int32_t *)ends->data + ends->cols - 1, sizeof n, err) < 0)
        return -1;
    run->hashing->n_rows[source->out[EXPERT_ORDER_PLACE]] = n;
    return 0;
}

/* What is there of an operand that has such rows. */
static struct tensor rows_there(const struct run *run, int id, const struct tensor *tensor)
{
    const struct op_hashing *h = run->hashing;
    struct tensor t = *tensor;

    if (h && h->order[id])
        t.rows = min_i64(t.rows, h->n_rows[h->order[id]]);
    return t;
}

/* Rows that were sent are those of tokens with some place here. */
static int hash_sent(struct run *run, const struct tensor *x, const struct tensor *place, int id,
                     uint64_t *hash, struct err *err)
{
    size_t n_bytes = (size_t)(place->rows * place->stride) * sizeof(int32_t);
    int32_t *places = malloc(n_bytes);
    char *is_there = calloc((size_t)x->rows, 1);

    CHECK(places && is_there && place->rows == x->rows);
    int status = run_get_at(run, places, place->data, n_bytes, err);
    for (int64_t row = 0; !status && row < place->rows; row++)
        for (int64_t i = 0; i < place->cols; i++)
            is_there[row] |= places[row * place->stride + i] >= 0;
    if (!status)
        status = hash_tensor(run, id, x, is_there, hash, err);
    free(places);
    free(is_there);
    return status;
}

/* Nothing if id is 0. */
static int hash_operand(struct run *run, int id, const struct tensor *tensor, uint64_t *hash,
                        struct err *err)
{
    if (!id)
        return 0;
    struct tensor t = rows_there(run, id, tensor);
    return t.rows ? hash_tensor(run, id, &t, NULL, hash, err) : 0;
}

/* ---- which ops, and which of their operands ---- */

static void mark_given(const struct program *p, char *is_given)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            for (int k = 0; k < OPS_MAX_OUTPUTS && op_is_collective(op->kind); k++)
                is_given[program_whole(p, op->out[k])] = 1;
        }
    is_given[0] = 0;
}

static void open_hashing(struct run *run)
{
    int n = run->program->n_values;

    for (int i = 0; i < run->options.n_shorter; i++)
        n = max_int(n, run->options.shorter[i].n_values);
    run->hashing = calloc(1, sizeof *run->hashing);
    CHECK(run->hashing);
    run->hashing->is_given = calloc((size_t)n, 1);
    CHECK(run->hashing->is_given);
    run->hashing->is_sent = calloc((size_t)n, 1);
    run->hashing->order = calloc((size_t)n, sizeof *run->hashing->order);
    run->hashing->n_rows = calloc((size_t)n, sizeof *run->hashing->n_rows);
    CHECK(run->hashing->is_sent && run->hashing->order && run->hashing->n_rows);
    /* Programs of other lengths have the same values. */
    mark_given(run->program, run->hashing->is_given);
    for (int f = 0; f < run->program->n_functions; f++)
        for (int i = 0; i < run->program->functions[f].n_ops; i++)
            list_rows(&run->program->functions[f].ops[i], run->hashing);
}

void op_hashes_close(struct run *run)
{
    if (!run->hashing)
        return;
    free(run->hashing->is_given);
    free(run->hashing->is_sent);
    free(run->hashing->order);
    free(run->hashing->n_rows);
    free(run->hashing->tiles);
    free(run->hashing);
    run->hashing = NULL;
}

void run_hash_ops(struct run *run, struct op_hashes *micro_batch, struct op_hashes *update,
                  enum mesh_axis axis)
{
    if (!run->hashing)
        open_hashing(run);
    run->hashing->micro_batch = micro_batch;
    run->hashing->update = update;
    run->hashing->axis = axis;
}

struct op_hashes *op_hashes_of(const struct run *run, const struct action *action)
{
    if (!run->hashing || action->micro_batch > 0)
        return NULL;
    return action->micro_batch == 0 ? run->hashing->micro_batch : run->hashing->update;
}

static bool is_of_update(const struct run *run)
{
    return run->hashes == run->hashing->update;
}

/* Whether ranks of the axis have the same. */
static bool is_alike(const struct run *run, int id)
{
    return run->program->values[id].spread[run->hashing->axis] == SPREAD_SAME;
}

/* "~": written, though it is an input. */
static bool is_updated(enum op_kind kind, int k)
{
    return op_info(kind)->inputs[k].flags & OPERAND_UPDATED;
}

static bool is_recorded(const struct run *run, const struct op *op)
{
    if (!is_of_update(run))
        return true;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && !is_alike(run, op->out[k]))
            return false;
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && is_updated(op->kind, k) && !is_alike(run, op->in[k]))
            return false;
    return true;
}

static int hash_read(struct run *run, const struct resolved_op *op, const struct op *source,
                     uint64_t *in, struct err *err)
{
    const struct program *p = run->program;

    *in = 0;
    if (source->kind == OP_AWAIT) /* it reads no contents */
        return 0;
    for (int k = 0; k < OPS_MAX_INPUTS && is_recorded(run, source); k++) {
        int id = source->in[k];

        if (!run->hashing->is_given[program_whole(p, id)] ||
            (is_of_update(run) && !is_alike(run, id)))
            continue;
        if (run->hashing->is_sent[id]) {
            CHECK(source->kind == OP_DISPATCH);
            if (hash_sent(run, &op->call.op.in[k], &op->call.op.in[DISPATCH_PLACE], id, in, err))
                return -1;
        } else if (hash_operand(run, id, &op->call.op.in[k], in, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int hash_written(struct run *run, const struct resolved_op *op, const struct op *source,
                        uint64_t in, struct err *err)
{
    struct op_hashes *h = run->hashes;
    uint64_t out = 0;

    if (!is_recorded(run, source))
        return 0;
    if (note_rows(run, op, source, err) < 0)
        return -1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (hash_operand(run, source->out[k], &op->call.op.out[k], &out, err) < 0)
            return -1;
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (is_updated(source->kind, k) &&
            hash_operand(run, source->in[k], &op->call.op.in[k], &out, err) < 0)
            return -1;
    if (h->n == h->capacity) {
        h->capacity = max_int(256, 2 * h->capacity);
        h->list = realloc(h->list, (size_t)h->capacity * sizeof *h->list);
        CHECK(h->list);
    }
    h->list[h->n++] = (struct op_hash){ in, out, op->text };
    return 0;
}

uint64_t run_hashes_digest(const struct op_hashes *h)
{
    uint64_t digest = (uint64_t)h->n;

    for (int i = 0; i < h->n; i++)
        digest = XXH3_64bits_withSeed(&h->list[i].in, 2 * sizeof(uint64_t), digest);
    return digest;
}

void run_hashes_release(struct op_hashes *h)
{
    free(h->list);
    *h = (struct op_hashes){ 0 };
}

/* Of its first output, or of what it updates. */
static struct tensor written_by(const struct run *run, const struct kernel_call *call,
                                const struct op *source)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (tensor_given(&call->op.out[k]))
            return rows_there(run, source->out[k], &call->op.out[k]);
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (tensor_given(&call->op.in[k]) && is_updated(call->op.kind, k))
            return call->op.in[k];
    CHECK(!"an op that writes something");
}

static int flip(struct run *run, const struct kernel_call *call, const struct op *source,
                struct err *err)
{
    struct tensor t = written_by(run, call, source);
    size_t n_bytes = dtype_bytes(t.dtype);
    unsigned char *at =
        (unsigned char *)t.data + (size_t)(t.rows / 2 * t.stride + t.cols / 2) * n_bytes;
    uint64_t bits = 0;

    if (run_get_at(run, &bits, at, n_bytes, err) < 0)
        return -1;
    bits ^= n_bytes > 2 ? UINT64_C(1) << 20 : UINT64_C(1) << 6;
    run_put_at(run, at, &bits, n_bytes);
    return 0;
}

void run_probe_op(struct run *run, const struct run_probe *probe)
{
    run->probe = probe;
}

/* Whether the op reads the value, or its home. */
static bool reads(const struct program *p, const struct op *op, int value)
{
    int home = p->values[value].home;

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] == value || (home && op->in[k] == home))
            return true;
    return false;
}

/* NULL: the op is none that it is for. */
static const struct run_probe *probe_of(const struct run *run, const struct op *source)
{
    const struct run_probe *probe = run->hashes ? run->probe : NULL;

    if (!probe || !probe->value)
        return probe;
    return source->kind == probe->kind && reads(run->program, source, probe->value) ? probe : NULL;
}

int op_hashes_run(struct run *run, const struct resolved_op *op, const struct op *source, int first,
                  bool flips, struct err *err)
{
    const struct run_probe *probe = probe_of(run, source);
    uint64_t in = 0;

    if (run->hashes && hash_read(run, op, source, &in, err) < 0)
        return -1;
    if (probe && probe->before(probe->context, &op->call.op, op->text, err) < 0)
        return -1;
    kernels_run(run_kernels_of(run, op), &op->call, first);
    if (flips && flip(run, &op->call, source, err) < 0)
        return -1;
    if (probe && probe->after(probe->context, err) < 0)
        return -1;
    return run->hashes ? hash_written(run, op, source, in, err) : 0;
}

/* ---- what a collective reads ---- */

void run_capture_input(struct run *run, struct run_capture *capture)
{
    run->capture = capture;
}

/* Memory of what comes and goes has other values, too, and copies read homes: values are compared,
 * not addresses. */
bool op_hashes_captures(const struct run *run, const struct op *source)
{
    const struct program *p = run->program;
    int value = run->capture ? run->capture->value : 0, in = source->in[OPS_FIRST];

    return value && !run->is_recheck && op_is_collective(source->kind) && in &&
           program_whole(p, in) == program_whole(p, value) &&
           p->values[in].offset == p->values[value].offset;
}

int op_hashes_capture(struct run *run, const struct resolved_op *op, struct err *err)
{
    struct run_capture *c = run->capture;
    const unsigned char *from = op->call.op.in[OPS_FIRST].data;

    c->is_done = 1;
    return run_get_at(run, c->data, from + c->offset, c->n_bytes, err);
}
