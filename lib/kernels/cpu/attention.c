/*
 * attention.c - causal attention in tiles (Dao et al. 2022, algorithm 1; Milakov & Gimelshein 2018
 * for the running maximum)
 *
 * A tile of work is one block of BLOCK queries of up to HEADS_A_TILE heads that read the same kv
 * head, and walks the key blocks that it sees, up to its own. Keys and values are brought to fp32 (keys
 * transposed) once for all these heads. Bound by the two products; scores exist for one block pair
 * at a time.
 */
#include "kernels/cpu/attention_impl.h"

#define HEADS_A_TILE 4

enum { SAMPLE = 1, BEGIN, START };                 /* inputs of those numbers */
enum { POSITION = 1, KEYS, VALUES, CACHED_BEGIN }; /* of attention_cached */

struct attention {
    const struct op_shape *op;
    const struct tile_code *code;
    float *scratch;
    size_t thread_floats;
    int64_t width;
    int group;        /* query heads of one kv head */
    int n_head_tiles; /* in all */
    int n_blocks;     /* of a sequence */
    /* Where keys and values are: those of one sequence follow each other. */
    const struct tensor *keys, *values;
    int64_t key_col, value_col, n_keys; /* of the first kv head; rows of a sequence */
    int is_cached;
};

struct attention_scratch {
    float *keys, *values; /* [width x BLOCK], [BLOCK x width] */
    float *scores;        /* [BLOCK x BLOCK] */
    float *tile;          /* keys before they are transposed */
    float *q[HEADS_A_TILE], *out[HEADS_A_TILE];
    float *max[HEADS_A_TILE], *sum[HEADS_A_TILE];
};

static size_t attention_thread_floats(int64_t width)
{
    return (size_t)((3 + 2 * HEADS_A_TILE) * BLOCK * width + BLOCK * BLOCK +
                    2 * HEADS_A_TILE * BLOCK);
}

static void carve(struct attention_scratch *s, const struct attention *a, int thread)
{
    float *next = a->scratch + (size_t)thread * a->thread_floats;
    int64_t tile = BLOCK * a->width;

    s->keys = next;
    s->values = next + tile;
    s->tile = next + 2 * tile;
    s->scores = next + 3 * tile;
    next += 3 * tile + BLOCK * BLOCK;
    for (int i = 0; i < HEADS_A_TILE; i++) {
        s->q[i] = next;
        s->out[i] = next + tile;
        s->max[i] = next + 2 * tile;
        s->sum[i] = s->max[i] + BLOCK;
        next = s->sum[i] + BLOCK;
    }
}

/* A head of the tile. */
struct tile_head {
    struct mask mask;
    float slope;
};

/* Whether row r's own key is the block's r-th, if it has one. */
CPU_INLINE int is_diagonal(const struct sight *sight, int64_t n_rows, int64_t key)
{
    for (int64_t r = 0; r < n_rows; r++)
        if (sight->own[r] >= 0 && sight->own[r] != key + r)
            return 0;
    return 1;
}

/* Key block `key` (its first position) for head h of the tile, whose queries start at `query`. */
CPU_INLINE void attend_block(const struct attention *a, struct attention_scratch *s, int h,
                             const struct tile_head *head, const struct sight *sight, int64_t query,
                             int64_t key)
{
    int64_t width = a->width, n_rows = min_i64(BLOCK, a->op->attributes.seq_len - query);
    const struct mask *mask = &head->mask;
    int is_plain = key >= sight->most && key <= sight->fewest && !(head->slope > 0);
    struct product scores = { .c = s->scores,
                              .c_stride = BLOCK,
                              .a = s->q[h],
                              .a_row = width,
                              .a_col = 1,
                              .b = s->keys,
                              .b_stride = BLOCK,
                              .n = BLOCK,
                              .k = width };
    struct product out = { .c = s->out[h],
                           .c_stride = width,
                           .a = s->scores,
                           .a_row = BLOCK,
                           .a_col = 1,
                           .b = s->values,
                           .b_stride = width,
                           .n = width,
                           .k = BLOCK,
                           .add = 1 };

    if (is_diagonal(sight, n_rows, key)) {
        scores.part = PART_C_LOWER;
        out.part = PART_A_LOWER;
    }
    a->code->product(&scores);
    for (int64_t r = 0; r < n_rows; r++) {
        float *row = s->scores + r * BLOCK;

        if (!is_plain && !sees_block(sight, r, key)) {
            memset(row, 0, BLOCK * sizeof *row);
            continue;
        }
        if (!is_plain)
            score_row(row, head->slope, sight, r, key);
        softmax_row(row, sight->own[r] - key + 1, &s->max[h][r], &s->sum[h][r],
                    s->out[h] + r * width, width);
        if (mask->p > 0) {
            float kept[BLOCK];

            mask_row(kept, mask, query + r, key);
            for (int j = 0; j < BLOCK; j++)
                row[j] *= kept[j];
        }
    }
    a->code->product(&out);
}

/* Divide by the sums, store output and log of the sums; 0 where nothing is seen. */
CPU_INLINE void finish_head(const struct attention *a, struct attention_scratch *s, int h, int head,
                            const struct piece *q, const struct sight *sight)
{
    int64_t width = a->width;
    struct piece out = { .tensor = &a->op->out[0],
                         .row = q->row,
                         .col = q->col,
                         .n_rows = q->n_rows,
                         .n_cols = q->n_cols };

    for (int64_t r = 0; r < q->n_rows; r++) {
        float inverse = sight->own[r] < 0 ? 0.0f : 1.0f / s->sum[h][r];

        for (int64_t i = 0; i < width; i++)
            s->out[h][r * width + i] *= inverse;
        if (!a->is_cached)
            float_row_mut(&a->op->out[1], q->row + r)[head] = s->max[h][r] + logf(s->sum[h][r]);
    }
    store_tile(&out, s->out[h], width, 1.0f);
}

CPU_INLINE void load_keys_and_values(const struct attention *a, struct attention_scratch *s,
                                     int64_t row, int64_t n_rows, int kv_head)
{
    int64_t head_dim = a->op->attributes.head_dim;
    struct piece piece = { .tensor = a->keys,
                           .row = row,
                           .n_rows = n_rows,
                           .col = a->key_col + kv_head * head_dim,
                           .n_cols = head_dim };

    load_tile(s->tile, a->width, &piece, 1.0f);
    a->code->transpose(s->keys, s->tile, a->width);
    piece.tensor = a->values;
    piece.col = a->value_col + kv_head * head_dim;
    load_tile(s->values, a->width, &piece, 1.0f);
}

/* Queries over a cache: those that are no tokens see nothing. */
static void sight_of_cached(struct sight *s, const struct op_shape *op, int64_t sequence,
                            int64_t query)
{
    int64_t seq_len = op->attributes.seq_len, n = min_i64(BLOCK, seq_len - query);

    sight_init(s);
    for (int64_t r = 0; r < n; r++)
        sight_add(s, &op->attributes, r, 0,
                  *(const int32_t *)cpu_row(&op->in[POSITION], sequence * seq_len + query + r));
}

CPU_INLINE void attention_tile_body(void *context, int64_t tile, int thread)
{
    const struct attention *a = context;
    const struct op_attributes *at = &a->op->attributes;
    int tiles_a_group = (int)ceil_div(a->group, HEADS_A_TILE);
    /* Late blocks have the most keys: they go first. */
    int64_t block = a->n_blocks - 1 - tile / a->n_head_tiles % a->n_blocks;
    int64_t sequence = tile / a->n_head_tiles / a->n_blocks;
    int head_tile = (int)(tile % a->n_head_tiles), kv_head = head_tile / tiles_a_group;
    int head = kv_head * a->group + head_tile % tiles_a_group * HEADS_A_TILE;
    int n_heads = min_int(HEADS_A_TILE, (kv_head + 1) * a->group - head);
    int64_t start = sequence * at->seq_len, query = block * BLOCK;
    struct piece q = { .tensor = &a->op->in[0],
                       .row = start + query,
                       .n_rows = min_i64(BLOCK, at->seq_len - query),
                       .n_cols = at->head_dim };
    struct attention_scratch s;
    struct tile_head heads[HEADS_A_TILE];
    struct sight sight;

    carve(&s, a, thread);
    if (a->is_cached)
        sight_of_cached(&sight, a->op, sequence, query);
    else
        sight_of(&sight, a->op, START, sequence, query);
    for (int h = 0; h < n_heads; h++) {
        q.col = (int64_t)(head + h) * at->head_dim;
        load_tile(s.q[h], a->width, &q, (float)at->scale);
        memset(s.out[h], 0, (size_t)(BLOCK * a->width) * sizeof(float));
        for (int r = 0; r < BLOCK; r++) {
            s.max[h][r] = -INFINITY;
            s.sum[h][r] = 0;
        }
        heads[h].mask =
            a->is_cached ? (struct mask){ 0 } : mask_of(a->op, SAMPLE, sequence, head + h);
        heads[h].slope = slope_of(a->op, a->is_cached ? CACHED_BEGIN : BEGIN, head + h);
    }
    for (int64_t key = sight.least; key <= sight.last; key += BLOCK) {
        load_keys_and_values(a, &s, sequence * a->n_keys + key,
                             min_i64(BLOCK, sight.last + 1 - key), kv_head);
        for (int h = 0; h < n_heads; h++)
            attend_block(a, &s, h, &heads[h], &sight, query, key);
    }
    for (int h = 0; h < n_heads; h++) {
        q.col = (int64_t)(head + h) * at->head_dim;
        finish_head(a, &s, h, head + h, &q, &sight);
    }
}

CPU_VARIANTS(attention_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

size_t attention_tiles_bytes(struct kernels *kernels, const struct op_shape *op)
{
    size_t floats = attention_thread_floats(tile_width(&op->attributes));

    return floats * sizeof(float) * (size_t)pool_n_threads(kernels->pool);
}

/* What is left to say of the tiles, and all of them. */
static void run_tiles(struct kernels *kernels, const struct kernel_call *call, struct attention *a)
{
    const struct op_attributes *at = &call->op.attributes;

    a->op = &call->op;
    a->code = attention_tile_code(cpu_of(kernels), call->op.in[0].dtype);
    a->scratch = call->scratch;
    a->width = tile_width(at);
    a->thread_floats = attention_thread_floats(a->width);
    a->group = at->n_heads / at->n_kv_heads;
    a->n_head_tiles = at->n_kv_heads * (int)ceil_div(a->group, HEADS_A_TILE);
    a->n_blocks = (int)ceil_div(at->seq_len, BLOCK);
    pool_run(kernels->pool, call->op.in[0].rows / at->seq_len * a->n_blocks * a->n_head_tiles,
             attention_tile[cpu_of(kernels)->isa], a);
}

void attention_prefill(struct kernels *kernels, const struct kernel_call *call)
{
    struct attention a = { .keys = &call->op.in[KEYS],
                           .values = &call->op.in[VALUES],
                           .n_keys = call->op.attributes.cache_len,
                           .is_cached = 1 };

    run_tiles(kernels, call, &a);
}

static void attention_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_attributes *at = &call->op.attributes;
    struct attention a = { .keys = &call->op.in[0],
                           .values = &call->op.in[0],
                           .key_col = (int64_t)at->n_heads * at->head_dim,
                           .value_col = (int64_t)(at->n_heads + at->n_kv_heads) * at->head_dim,
                           .n_keys = at->seq_len };

    (void)first;
    run_tiles(kernels, call, &a);
}

void cpu_register_attention(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION] =
        (struct kernel_entry){ .run = attention_run, .scratch_bytes = attention_tiles_bytes };
    cpu_register_attention_grad(table);
    cpu_register_attention_cached(table);
}
