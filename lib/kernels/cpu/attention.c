/*
 * attention.c - attention to ranges of keys, in tiles
 *
 * A tile of work is one block of BLOCK queries of up to WALK_QUERIES heads that read the same kv
 * head, and walks the key blocks that it sees (attention_walk_impl.h). Bound by the
 * two products.
 */
#include "kernels/cpu/attention_walk_impl.h"

struct attention {
    const struct op_shape *op;
    const struct tile_code *code;
    float *scratch;
    int64_t width;
    int value_dim;
    int group;        /* query heads of one kv head */
    int n_head_tiles; /* in all */
    int n_blocks;     /* of a sequence's queries */
    int key_len;      /* of a sequence */
};

/* Store output and log of the sums. q: the queries, of whatever head. */
CPU_INLINE void finish_head(const struct attention *a, const struct query_block *b, int head,
                            const struct head_columns *q)
{
    struct head_columns out = { .tensor = &a->op->out[ATTENTION_OUT],
                                .row = q->row,
                                .col = (int64_t)head * a->value_dim,
                                .n_rows = q->n_rows,
                                .n_cols = a->value_dim };

    for (int64_t r = 0; r < q->n_rows; r++)
        float_row_mut(&a->op->out[ATTENTION_LSE], q->row + r)[head] =
            b->sum[r] > 0 ? b->max[r] + logf(b->sum[r]) : INFINITY;
    query_block_divide(b, a->width);
    store_tile(&out, b->out, a->width, 1.0f);
}

/* Of the keys, and values, from `row` on. */
CPU_INLINE void load_keys_and_values(const struct attention *a, struct key_walk *w, int64_t row,
                                     int64_t n_rows, int kv_head)
{
    const struct op_attributes *at = &a->op->attributes;
    struct head_columns piece = { .tensor = &a->op->in[ATTENTION_K],
                                  .row = row,
                                  .n_rows = n_rows,
                                  .col = (int64_t)kv_head * at->head_dim,
                                  .n_cols = at->head_dim };

    load_tile(w->tile, w->width, &piece, 1.0f);
    tile_transpose(w->code, w->keys, w->tile, w->width);
    piece.tensor = &a->op->in[ATTENTION_V];
    piece.col = (int64_t)kv_head * a->value_dim;
    piece.n_cols = a->value_dim;
    load_tile(w->values, w->width, &piece, 1.0f);
}

CPU_INLINE void attention_tile_body(void *context, int64_t tile, int thread)
{
    const struct attention *a = context;
    const struct op_attributes *at = &a->op->attributes;
    int tiles_a_group = (int)ceil_div(a->group, WALK_QUERIES);
    /* Late blocks have the most keys: they go first. */
    int64_t block = a->n_blocks - 1 - tile / a->n_head_tiles % a->n_blocks;
    int64_t sequence = tile / a->n_head_tiles / a->n_blocks;
    int head_tile = (int)(tile % a->n_head_tiles), kv_head = head_tile / tiles_a_group;
    int head = kv_head * a->group + head_tile % tiles_a_group * WALK_QUERIES;
    int n_heads = min_int(WALK_QUERIES, (kv_head + 1) * a->group - head);
    int64_t keys_row = sequence * a->key_len, query = block * BLOCK;
    struct head_columns q = { .tensor = &a->op->in[ATTENTION_Q],
                              .row = sequence * at->seq_len + query,
                              .n_rows = min_i64(BLOCK, at->seq_len - query),
                              .n_cols = at->head_dim };
    struct key_walk w;
    struct mask masks[WALK_QUERIES];
    struct sight sight;

    walk_init(&w, a->code, a->width, a->scratch + (size_t)thread * walk_floats(a->width));
    sight_of(&sight, a->op, ATTENTION_FIRST, sequence, query);
    CHECK(sight.last < a->key_len);
    for (int h = 0; h < n_heads; h++) {
        struct query_block *b = &w.blocks[h];
        float slope = slope_of(a->op, ATTENTION_HEAD_OFFSET, head + h);

        q.col = (int64_t)(head + h) * at->head_dim;
        load_tile(b->q, a->width, &q, (float)at->scale);
        query_block_begin(b, &w, q.n_rows, at->alibi);
        b->sight = &sight;
        for (int r = 0; r < BLOCK; r++)
            b->slope[r] = slope;
        masks[h] = mask_of(a->op, ATTENTION_SAMPLE, sequence, head + h);
    }
    for (int64_t key = sight.least; key <= sight.last; key += BLOCK) {
        load_keys_and_values(a, &w, keys_row + key, min_i64(BLOCK, sight.last + 1 - key), kv_head);
        for (int h = 0; h < n_heads; h++)
            query_block_attend(&w.blocks[h], &w, key, &masks[h]);
    }
    for (int h = 0; h < n_heads; h++)
        finish_head(a, &w.blocks[h], head + h, &q);
}

CPU_VARIANTS(attention_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

static size_t attention_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    return walk_floats(tile_width(op, &op->in[ATTENTION_V])) * sizeof(float) *
           (size_t)pool_n_threads(kernels->pool);
}

static void attention_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_attributes *at = &call->op.attributes;
    struct attention a = {
        .op = &call->op,
        .code = attention_tile_code(cpu_of(kernels), call->op.in[ATTENTION_Q].dtype),
        .scratch = call->scratch,
        .width = tile_width(&call->op, &call->op.in[ATTENTION_V]),
        .value_dim = ops_value_dim(&call->op, &call->op.in[ATTENTION_V]),
        .group = at->n_heads / at->n_kv_heads,
        .n_blocks = (int)ceil_div(at->seq_len, BLOCK),
        .key_len = ops_key_len(&call->op, &call->op.in[ATTENTION_Q], &call->op.in[ATTENTION_K])
    };

    (void)first;
    a.n_head_tiles = at->n_kv_heads * (int)ceil_div(a.group, WALK_QUERIES);
    pool_run(kernels->pool,
             call->op.in[ATTENTION_Q].rows / at->seq_len * a.n_blocks * a.n_head_tiles,
             attention_tile[cpu_of(kernels)->isa], &a);
}

void cpu_register_attention(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION] =
        (struct kernel_entry){ .run = attention_run, .scratch_bytes = attention_scratch_bytes };
    cpu_register_attention_grad(table);
    cpu_register_attention_cached(table);
}
