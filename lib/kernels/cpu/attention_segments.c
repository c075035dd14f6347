/*
 * attention_segments.c - attention over a cache that holds beginnings of texts once
 *
 * Rows come in any order and number from many texts. A span is a run of them that continue one
 * segment; a tile of work is one kv head of one span, all of whose query heads' rows are packed
 * into blocks of BLOCK, up to PACKS_A_TILE at a time, and walk the keys from block to block of
 * positions, wherever those lie. Bound by the two products; of short spans by bringing keys and
 * values to fp32.
 *
 * A row's sums go by blocks of positions alone: its bits do not depend on its neighbours.
 */
#include "kernels/cpu/attention_impl.h"

enum input { QKV, POSITION, KEYS, VALUES, BEGIN, SEGMENT, SEGMENTS };

#define PACKS_A_TILE 4

/* Rows row .. row + n - 1 stand at positions position .. of one segment. */
struct span {
    int32_t row, n, position, segment;
};

/* A segment as ports.segments has it. */
struct segment {
    int32_t row, first, parent;
};

struct cached {
    const struct op_shape *op;
    const struct tile_code *code;
    struct span *spans;
    int n_spans;
    int64_t width;
    int group; /* query heads of one kv head */
    float *scratch;
    size_t thread_floats;
};

struct scratch {
    float *keys, *values; /* [width x BLOCK], [BLOCK x width] */
    float *tile;          /* keys before they are transposed */
    float *scores;        /* [BLOCK x BLOCK] */
    struct pack {
        float *q, *out;   /* [BLOCK x width] */
        float *max, *sum; /* [BLOCK] */
        int begin, n;     /* pairs of head and row */
        struct sight sight;
    } packs[PACKS_A_TILE];
};

static size_t thread_floats(int64_t width)
{
    return (size_t)((3 + 2 * PACKS_A_TILE) * BLOCK * width + BLOCK * BLOCK +
                    2 * PACKS_A_TILE * BLOCK);
}

static void carve(struct scratch *s, const struct cached *c, int thread)
{
    float *next = c->scratch + (size_t)thread * c->thread_floats;
    int64_t tile = BLOCK * c->width;

    s->keys = next;
    s->values = next + tile;
    s->tile = next + 2 * tile;
    s->scores = next + 3 * tile;
    next += 3 * tile + BLOCK * BLOCK;
    for (int i = 0; i < PACKS_A_TILE; i++) {
        s->packs[i] = (struct pack){ .q = next, .out = next + tile, .max = next + 2 * tile };
        s->packs[i].sum = s->packs[i].max + BLOCK;
        next = s->packs[i].sum + BLOCK;
    }
}

static int32_t index_at(const struct cached *c, enum input input, int64_t row)
{
    return *(const int32_t *)cpu_row(&c->op->in[input], row);
}

static struct segment segment_at(const struct cached *c, int32_t number)
{
    const struct tensor *segments = &c->op->in[SEGMENTS];

    CHECK(number >= 0 && number < segments->rows);
    const int32_t *row = cpu_row(segments, number);
    return (struct segment){ row[0], row[1], row[2] };
}

/* Without segments they are sequences. */
static int32_t number_at(const struct cached *c, int64_t row)
{
    return tensor_given(&c->op->in[SEGMENT]) ? index_at(c, SEGMENT, row)
                                             : (int32_t)(row / c->op->attributes.seq_len);
}

/* Where a position of a segment lies; *n: how many from there on lie behind it, at most as many as
 * it says. */
static int64_t cache_row(const struct cached *c, int32_t number, int64_t position, int64_t *n)
{
    int64_t cache_len = c->op->attributes.cache_len;

    if (!tensor_given(&c->op->in[SEGMENTS])) {
        CHECK(position + *n <= cache_len);
        return number * cache_len + position;
    }
    struct segment s = segment_at(c, number);
    while (position < s.first) {
        *n = min_i64(*n, s.first - position);
        s = segment_at(c, s.parent);
    }
    int64_t row = s.row + position - s.first;
    CHECK(row >= 0 && row + *n <= c->op->in[KEYS].rows);
    return row;
}

/* ---- writing ---- */

static void write_row(const struct cached *c, int64_t row)
{
    const struct op_attributes *at = &c->op->attributes;
    int32_t position = index_at(c, POSITION, row);
    size_t element = dtype_bytes(c->op->in[QKV].dtype);
    size_t bytes = (size_t)at->n_kv_heads * (size_t)at->head_dim * element;
    int64_t one = 1;

    if (position < 0)
        return;
    int64_t to = cache_row(c, number_at(c, row), position, &one);
    const char *key = (const char *)cpu_row(&c->op->in[QKV], row) +
                      (size_t)at->n_heads * (size_t)at->head_dim * element;
    memcpy(cpu_row(&c->op->in[KEYS], to), key, bytes);
    memcpy(cpu_row(&c->op->in[VALUES], to), key + bytes, bytes);
}

/* Returns how many spans there are; rows that are no tokens are of none, and their output is 0. */
static int find_spans(struct cached *c)
{
    int n = 0;

    for (int64_t row = 0; row < c->op->in[QKV].rows; row++) {
        int32_t position = index_at(c, POSITION, row), segment = number_at(c, row);
        struct span *last = n ? &c->spans[n - 1] : NULL;

        if (position < 0)
            memset(cpu_row(&c->op->out[0], row), 0,
                   (size_t)c->op->out[0].cols * dtype_bytes(c->op->out[0].dtype));
        else if (last && last->segment == segment && last->row + last->n == row &&
                 last->position + last->n == position && last->n < BLOCK)
            last->n++;
        else
            c->spans[n++] = (struct span){ (int32_t)row, 1, position, segment };
    }
    return n;
}

/* ---- attending ---- */

/* Keys, or values, of positions key .. key + n - 1; zero up to BLOCK. */
CPU_INLINE void load_cached(const struct cached *c, enum input input, float *tile, int32_t segment,
                            int64_t key, int64_t n, int kv_head)
{
    const struct op_attributes *at = &c->op->attributes;
    struct piece piece = { .tensor = &c->op->in[input],
                           .col = (int64_t)kv_head * at->head_dim,
                           .n_cols = at->head_dim };

    memset(tile + n * c->width, 0, (size_t)((BLOCK - n) * c->width) * sizeof *tile);
    for (int64_t r = 0; r < n; r += piece.n_rows) {
        piece.n_rows = n - r;
        piece.row = cache_row(c, segment, key + r, &piece.n_rows);
        load_rows(tile + r * c->width, c->width, &piece, 1.0f);
    }
}

/* Which query a pair is: its row of the span, and its head. */
static inline int pair_row(const struct span *span, int pair)
{
    return pair % span->n;
}

static inline int pair_head(const struct cached *c, const struct span *span, int kv_head, int pair)
{
    return kv_head * c->group + pair / span->n;
}

CPU_INLINE void load_pack(const struct cached *c, struct pack *p, const struct span *span,
                          int kv_head)
{
    const struct op_attributes *at = &c->op->attributes;

    sight_init(&p->sight);
    for (int i = 0; i < p->n; i++) {
        int head = pair_head(c, span, kv_head, p->begin + i);
        struct piece piece = { .tensor = &c->op->in[QKV],
                               .row = span->row + pair_row(span, p->begin + i),
                               .col = (int64_t)head * at->head_dim,
                               .n_rows = 1,
                               .n_cols = at->head_dim };

        load_rows(p->q + i * c->width, c->width, &piece, (float)at->scale);
        sight_add(&p->sight, at, i, 0, span->position + pair_row(span, p->begin + i));
        p->max[i] = -INFINITY;
        p->sum[i] = 0;
    }
    memset(p->q + p->n * c->width, 0, (size_t)((BLOCK - p->n) * c->width) * sizeof *p->q);
    memset(p->out, 0, (size_t)(BLOCK * c->width) * sizeof *p->out);
}

CPU_INLINE void attend_pack(const struct cached *c, struct scratch *s, struct pack *p,
                            const struct span *span, int kv_head, int64_t key)
{
    int64_t width = c->width;
    struct product scores = { .c = s->scores,
                              .c_stride = BLOCK,
                              .a = p->q,
                              .a_row = width,
                              .a_col = 1,
                              .b = s->keys,
                              .b_stride = BLOCK,
                              .n = BLOCK,
                              .k = width,
                              .n_rows = p->n };
    struct product out = { .c = p->out,
                           .c_stride = width,
                           .a = s->scores,
                           .a_row = BLOCK,
                           .a_col = 1,
                           .b = s->values,
                           .b_stride = width,
                           .n = width,
                           .k = BLOCK,
                           .n_rows = p->n,
                           .add = 1 };

    c->code->product(&scores);
    for (int i = 0; i < p->n; i++) {
        float *row = s->scores + i * BLOCK;
        float slope = slope_of(c->op, BEGIN, pair_head(c, span, kv_head, p->begin + i));

        if (!sees_block(&p->sight, i, key)) {
            memset(row, 0, BLOCK * sizeof *row);
            continue;
        }
        score_row(row, slope, &p->sight, i, key);
        softmax_row(row, p->sight.own[i] - key + 1, &p->max[i], &p->sum[i], p->out + i * width,
                    width);
    }
    c->code->product(&out);
}

CPU_INLINE void store_pack(const struct cached *c, struct pack *p, const struct span *span,
                           int kv_head)
{
    const struct op_attributes *at = &c->op->attributes;

    for (int i = 0; i < p->n; i++) {
        struct piece piece = { .tensor = &c->op->out[0],
                               .row = span->row + pair_row(span, p->begin + i),
                               .col = (int64_t)pair_head(c, span, kv_head, p->begin + i) *
                                      at->head_dim,
                               .n_rows = 1,
                               .n_cols = at->head_dim };

        store_tile(&piece, p->out + i * c->width, c->width, 1.0f / p->sum[i]);
    }
}

CPU_INLINE void segments_tile_body(void *context, int64_t tile, int thread)
{
    const struct cached *c = context;
    const struct op_attributes *at = &c->op->attributes;
    const struct span *span = &c->spans[tile / at->n_kv_heads];
    int kv_head = (int)(tile % at->n_kv_heads), n_pairs = span->n * c->group;
    int64_t first = at->window ? max_i64(0, span->position - (int64_t)at->window + 1) : 0;
    int64_t end = span->position + span->n;
    struct scratch s;

    carve(&s, c, thread);
    for (int begin = 0; begin < n_pairs; begin += PACKS_A_TILE * BLOCK) {
        int n_packs = (int)ceil_div(min_int(n_pairs - begin, PACKS_A_TILE * BLOCK), BLOCK);

        for (int i = 0; i < n_packs; i++) {
            s.packs[i].begin = begin + i * BLOCK;
            s.packs[i].n = min_int(BLOCK, n_pairs - s.packs[i].begin);
            load_pack(c, &s.packs[i], span, kv_head);
        }
        for (int64_t key = first / BLOCK * BLOCK; key < end; key += BLOCK) {
            int64_t n = min_i64(BLOCK, end - key);

            load_cached(c, KEYS, s.tile, span->segment, key, n, kv_head);
            c->code->transpose(s.keys, s.tile, c->width);
            load_cached(c, VALUES, s.values, span->segment, key, n, kv_head);
            for (int i = 0; i < n_packs; i++)
                attend_pack(c, &s, &s.packs[i], span, kv_head, key);
        }
        for (int i = 0; i < n_packs; i++)
            store_pack(c, &s.packs[i], span, kv_head);
    }
}

CPU_VARIANTS(segments_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

static size_t span_bytes(const struct op_shape *op)
{
    return (size_t)round_up(op->in[QKV].rows * (int64_t)sizeof(struct span), 64);
}

size_t attention_segments_scratch(struct kernels *kernels, const struct op_shape *op)
{
    return span_bytes(op) + thread_floats(tile_width(&op->attributes)) * sizeof(float) *
                                (size_t)pool_n_threads(kernels->pool);
}

void attention_segments_run(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_attributes *at = &call->op.attributes;
    struct cached c = { .op = &call->op,
                        .code = attention_tile_code(cpu_of(kernels), call->op.in[QKV].dtype),
                        .spans = call->scratch,
                        .width = tile_width(at),
                        .group = at->n_heads / at->n_kv_heads,
                        .scratch = (float *)((char *)call->scratch + span_bytes(&call->op)),
                        .thread_floats = thread_floats(tile_width(at)) };

    for (int64_t row = 0; row < call->op.in[QKV].rows; row++)
        write_row(&c, row);
    c.n_spans = find_spans(&c);
    pool_run(kernels->pool, (int64_t)c.n_spans * at->n_kv_heads,
             segments_tile[cpu_of(kernels)->isa], &c);
}
