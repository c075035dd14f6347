/*
 * attention_cached.c - attention over a cache of keys and values: prefill, decoding, and texts
 * whose beginnings are there once
 *
 * With segments rows come in any order and number from many texts. A span is a run of rows that
 * continue one segment, or sequence; a tile of work is one kv head of one span, all of whose query
 * heads' rows are packed into blocks of BLOCK, up to WALK_QUERIES at a time, and walk the keys from
 * block to block of positions, wherever those lie (attention_walk_impl.h). Bound by the two
 * products; in decoding, where spans are of one row, by bringing keys and values to fp32. (Two
 * passes over the cache, head by head and row by row, took 1.5 to 6 times as long.)
 */
#include "kernels/cpu/attention_walk_impl.h"

/* Rows row .. row + n - 1 stand at positions position .. of one segment. */
struct query_span {
    int32_t row, n, position, segment;
};

/* A segment as ports.segments has it. */
struct cache_segment {
    int32_t row, first, parent;
};

struct cached {
    const struct op_shape *op;
    const struct tile_code *code;
    struct query_span *spans;
    int n_spans;
    int64_t width;
    int value_dim;
    int group; /* query heads of one kv head */
    float *scratch;
};

/* Pairs of head and row that share a block of queries. */
struct pack {
    int begin, n;
    struct sight sight;
};

static int32_t index_at(const struct cached *c, enum attention_cached_in input, int64_t row)
{
    return *(const int32_t *)cpu_row(&c->op->in[input], row);
}

static struct cache_segment segment_at(const struct cached *c, int32_t number)
{
    const struct tensor *segments = &c->op->in[ATTENTION_CACHED_SEGMENTS];

    CHECK(number >= 0 && number < segments->rows);
    const int32_t *row = cpu_row(segments, number);
    return (struct cache_segment){ row[0], row[1], row[2] };
}

/* Without segments they are sequences. */
static int32_t number_at(const struct cached *c, int64_t row)
{
    return tensor_given(&c->op->in[ATTENTION_CACHED_SEGMENT])
               ? index_at(c, ATTENTION_CACHED_SEGMENT, row)
               : (int32_t)(row / c->op->attributes.seq_len);
}

/* Where a position of a segment lies; *n: how many from there on lie behind it, at most as many as
 * it says. */
static int64_t cache_row(const struct cached *c, int32_t number, int64_t position, int64_t *n)
{
    int64_t cache_len = c->op->attributes.cache_len;

    if (!tensor_given(&c->op->in[ATTENTION_CACHED_SEGMENTS])) {
        CHECK(position + *n <= cache_len);
        return number * cache_len + position;
    }
    struct cache_segment s = segment_at(c, number);
    while (position < s.first) {
        *n = min_i64(*n, s.first - position);
        s = segment_at(c, s.parent);
    }
    int64_t row = s.row + position - s.first;
    CHECK(row >= 0 && row + *n <= c->op->in[ATTENTION_CACHED_KEYS].rows);
    return row;
}

/* ---- writing ---- */

static void write_row(const struct cached *c, int64_t row)
{
    const struct tensor *k = &c->op->in[ATTENTION_CACHED_K], *v = &c->op->in[ATTENTION_CACHED_V];
    int32_t position = index_at(c, ATTENTION_CACHED_POSITION, row);
    size_t element_bytes = dtype_bytes(k->dtype);
    int64_t one = 1;

    if (position < 0)
        return;
    int64_t to = cache_row(c, number_at(c, row), position, &one);
    memcpy(cpu_row(&c->op->in[ATTENTION_CACHED_KEYS], to), cpu_row(k, row),
           (size_t)k->cols * element_bytes);
    memcpy(cpu_row(&c->op->in[ATTENTION_CACHED_VALUES], to), cpu_row(v, row),
           (size_t)v->cols * element_bytes);
}

/* BLOCK rows. */
static void write_tile(void *context, int64_t tile, int thread)
{
    const struct cached *c = context;
    int64_t end = min_i64(c->op->in[ATTENTION_CACHED_Q].rows, (tile + 1) * BLOCK);

    (void)thread;
    for (int64_t row = tile * BLOCK; row < end; row++)
        write_row(c, row);
}

/* Returns how many spans there are; rows that are no tokens are of none, and their output is 0. */
static int find_spans(struct cached *c)
{
    int n = 0;

    for (int64_t row = 0; row < c->op->in[ATTENTION_CACHED_Q].rows; row++) {
        int32_t position = index_at(c, ATTENTION_CACHED_POSITION, row), segment = number_at(c, row);
        struct query_span *last = n ? &c->spans[n - 1] : NULL;

        if (position < 0)
            memset(cpu_row(&c->op->out[ATTENTION_CACHED_OUT], row), 0,
                   (size_t)c->op->out[ATTENTION_CACHED_OUT].cols *
                       dtype_bytes(c->op->out[ATTENTION_CACHED_OUT].dtype));
        else if (last && last->segment == segment && last->row + last->n == row &&
                 last->position + last->n == position && last->n < BLOCK)
            last->n++;
        else
            c->spans[n++] = (struct query_span){ (int32_t)row, 1, position, segment };
    }
    return n;
}

/* ---- attending ---- */

/* Keys, or values, of positions key .. key + n - 1; zero up to BLOCK. */
CPU_INLINE void load_cached(const struct cached *c, enum attention_cached_in input, float *tile,
                            int32_t segment, int64_t key, int64_t n, int kv_head)
{
    int width = input == ATTENTION_CACHED_KEYS ? c->op->attributes.head_dim : c->value_dim;
    struct head_columns piece = { .tensor = &c->op->in[input],
                                  .col = (int64_t)kv_head * width,
                                  .n_cols = width };

    memset(tile + n * c->width, 0, (size_t)((BLOCK - n) * c->width) * sizeof *tile);
    for (int64_t r = 0; r < n; r += piece.n_rows) {
        piece.n_rows = n - r;
        piece.row = cache_row(c, segment, key + r, &piece.n_rows);
        load_rows(tile + r * c->width, c->width, &piece, 1.0f);
    }
}

/* Pair i of a pack and those behind it that are of the same head, which it returns: rows of q, or
 * out. */
static inline int pairs_at(const struct cached *c, const struct tensor *tensor,
                           const struct query_span *span, int kv_head, const struct pack *p, int i,
                           struct head_columns *piece)
{
    int pair = p->begin + i, row = pair % span->n, head = kv_head * c->group + pair / span->n;
    int64_t width = tensor->cols / c->op->attributes.n_heads;

    *piece = (struct head_columns){ .tensor = tensor,
                                    .row = span->row + row,
                                    .col = head * width,
                                    .n_rows = min_int(p->n - i, span->n - row),
                                    .n_cols = width };
    return head;
}

CPU_INLINE void load_pack(const struct cached *c, const struct key_walk *w, struct query_block *b,
                          struct pack *p, const struct query_span *span, int kv_head)
{
    const struct op_attributes *at = &c->op->attributes;
    struct head_columns piece;

    query_block_begin(b, w, p->n, at->alibi);
    sight_init(&p->sight);
    b->sight = &p->sight;
    for (int i = 0; i < p->n; i += (int)piece.n_rows) {
        int head = pairs_at(c, &c->op->in[ATTENTION_CACHED_Q], span, kv_head, p, i, &piece);
        float slope = slope_of(c->op, ATTENTION_CACHED_HEAD_OFFSET, head);

        load_rows(b->q + i * c->width, c->width, &piece, (float)at->scale);
        for (int r = 0; r < piece.n_rows; r++) {
            sight_add(&p->sight, at, i + r, 0, span->position + piece.row - span->row + r);
            b->slope[i + r] = slope;
        }
    }
    memset(b->q + p->n * c->width, 0, (size_t)((BLOCK - p->n) * c->width) * sizeof *b->q);
}

CPU_INLINE void store_pack(const struct cached *c, const struct query_block *b,
                           const struct pack *p, const struct query_span *span, int kv_head)
{
    struct head_columns piece;

    query_block_divide(b, c->width);
    for (int i = 0; i < p->n; i += (int)piece.n_rows) {
        pairs_at(c, &c->op->out[ATTENTION_CACHED_OUT], span, kv_head, p, i, &piece);
        store_tile(&piece, b->out + i * c->width, c->width, 1.0f);
    }
}

/* Up to WALK_QUERIES blocks of a span's pairs, from `begin` on, over all keys that it sees. */
CPU_INLINE void attend_pairs(const struct cached *c, struct key_walk *w,
                             const struct query_span *span, int kv_head, int begin)
{
    const struct op_attributes *at = &c->op->attributes;
    int n_pairs = span->n * c->group, n_packs = 0;
    int64_t first = at->window ? max_i64(0, span->position - (int64_t)at->window + 1) : 0;
    int64_t end = span->position + span->n;
    struct pack packs[WALK_QUERIES];

    for (; begin < n_pairs && n_packs < WALK_QUERIES; begin += BLOCK, n_packs++) {
        packs[n_packs].begin = begin;
        packs[n_packs].n = min_int(BLOCK, n_pairs - begin);
        load_pack(c, w, &w->blocks[n_packs], &packs[n_packs], span, kv_head);
    }
    for (int64_t key = first / BLOCK * BLOCK; key < end; key += BLOCK) {
        int64_t n = min_i64(BLOCK, end - key);

        load_cached(c, ATTENTION_CACHED_KEYS, w->tile, span->segment, key, n, kv_head);
        tile_transpose(w->code, w->keys, w->tile, w->width);
        load_cached(c, ATTENTION_CACHED_VALUES, w->values, span->segment, key, n, kv_head);
        for (int i = 0; i < n_packs; i++)
            query_block_attend(&w->blocks[i], w, key, NULL);
    }
    for (int i = 0; i < n_packs; i++)
        store_pack(c, &w->blocks[i], &packs[i], span, kv_head);
}

CPU_INLINE void cached_tile_body(void *context, int64_t tile, int thread)
{
    const struct cached *c = context;
    int n_kv_heads = c->op->attributes.n_kv_heads;
    /* Late spans of a text have the most keys: they go first. */
    const struct query_span *span = &c->spans[c->n_spans - 1 - tile / n_kv_heads];
    struct key_walk w;

    walk_init(&w, c->code, c->width, c->scratch + (size_t)thread * walk_floats(c->width));
    for (int begin = 0; begin < span->n * c->group; begin += WALK_QUERIES * BLOCK)
        attend_pairs(c, &w, span, (int)(tile % n_kv_heads), begin);
}

CPU_VARIANTS(cached_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

static size_t span_bytes(const struct op_shape *op)
{
    return (size_t)round_up(op->in[ATTENTION_CACHED_Q].rows * (int64_t)sizeof(struct query_span),
                            64);
}

static size_t cached_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    return span_bytes(op) + walk_floats(tile_width(op, &op->in[ATTENTION_CACHED_V])) *
                                sizeof(float) * (size_t)pool_n_threads(kernels->pool);
}

static void cached_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_attributes *at = &call->op.attributes;
    struct cached c = { .op = &call->op,
                        .code = attention_tile_code(cpu_of(kernels),
                                                    call->op.in[ATTENTION_CACHED_Q].dtype),
                        .spans = call->scratch,
                        .width = tile_width(&call->op, &call->op.in[ATTENTION_CACHED_V]),
                        .value_dim = ops_value_dim(&call->op, &call->op.in[ATTENTION_CACHED_V]),
                        .group = at->n_heads / at->n_kv_heads,
                        .scratch = (float *)((char *)call->scratch + span_bytes(&call->op)) };

    (void)first;
    pool_run(kernels->pool, ceil_div(call->op.in[ATTENTION_CACHED_Q].rows, BLOCK), write_tile, &c);
    c.n_spans = find_spans(&c);
    pool_run(kernels->pool, (int64_t)c.n_spans * at->n_kv_heads, cached_tile[cpu_of(kernels)->isa],
             &c);
}

void cpu_register_attention_cached(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION_CACHED] =
        (struct kernel_entry){ .run = cached_run, .scratch_bytes = cached_scratch_bytes };
}
