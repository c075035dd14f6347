/*
 * attention.c - attention to ranges of keys, in tiles: over all keys at once, or over parts of them
 *
 * A tile of work is one block of BLOCK queries of up to WALK_QUERIES heads that read the same kv
 * head, and walks the key blocks that it sees (attention_walk_impl.h). Bound by the two products.
 * Of a part of the keys the walk begins where the state says that the one before has ended: blocks
 * of keys are the same ones, and so are bits, where a part begins at a multiple of BLOCK.
 */
#include "kernels/cpu/attention_walk_impl.h"

struct attention {
    const struct op_shape *op;
    const struct tensor *in; /* q and what follows it */
    bool is_part;            /* from state to state */
    int ranges;              /* number of the op's input `first` */
    const struct tile_code *code;
    float *scratch;
    int64_t width;
    int value_dim;
    int group;        /* query heads of one kv head */
    int n_head_tiles; /* in all */
    int n_blocks;     /* of a sequence's queries */
    int key_len;      /* of a sequence */
};

/* A head's columns of the rows of a state, besides outputs. */
struct state_columns {
    int64_t max, sum;
};

static inline struct state_columns state_columns_of(const struct attention *a, int head)
{
    int n_heads = a->op->attributes.n_heads;
    int64_t max = (int64_t)n_heads * a->value_dim + head;

    return (struct state_columns){ max, max + n_heads };
}

/* Its outputs. q: the queries, of whatever head. */
static inline struct head_columns state_out(const struct attention *a, const struct tensor *state,
                                            int head, const struct head_columns *q)
{
    return (struct head_columns){ .tensor = state,
                                  .row = q->row,
                                  .col = (int64_t)head * a->value_dim,
                                  .n_rows = q->n_rows,
                                  .n_cols = a->value_dim };
}

/* Go on from the state, where there is one. */
CPU_INLINE void load_state(const struct attention *a, struct query_block *b, int head,
                           const struct head_columns *q)
{
    const struct tensor *state = &a->op->in[ATTENTION_PART_STATE];
    struct head_columns out = state_out(a, state, head, q);
    struct state_columns at = state_columns_of(a, head);

    if (!a->is_part || !tensor_given(state))
        return;
    load_rows(b->out, a->width, &out, 1.0f);
    for (int64_t r = 0; r < q->n_rows; r++) {
        b->max[r] = float_row(state, q->row + r)[at.max];
        b->sum[r] = float_row(state, q->row + r)[at.sum];
    }
}

/* Rows that see no key of the part are copied, as sums of zeros may turn the sign of a zero. */
CPU_INLINE void store_state(const struct attention *a, const struct query_block *b, int head,
                            const struct head_columns *q)
{
    const struct tensor *state = &a->op->in[ATTENTION_PART_STATE];
    struct head_columns out = state_out(a, &a->op->out[ATTENTION_PART_NEXT], head, q);
    struct state_columns at = state_columns_of(a, head);
    size_t n_bytes = (size_t)a->value_dim * sizeof(float);

    for (int64_t r = 0; r < q->n_rows; r++) {
        float *to = float_row_mut(out.tensor, out.row + r);
        bool is_kept = b->sight->own[r] < 0 && tensor_given(state);

        memmove(to + out.col,
                is_kept ? float_row(state, out.row + r) + out.col : b->out + r * a->width, n_bytes);
        to[at.max] = b->max[r];
        to[at.sum] = b->sum[r];
    }
}

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
    struct head_columns piece = { .tensor = &a->in[ATTENTION_K],
                                  .row = row,
                                  .n_rows = n_rows,
                                  .col = (int64_t)kv_head * at->head_dim,
                                  .n_cols = at->head_dim };

    load_tile(w->tile, w->width, &piece, 1.0f);
    tile_transpose(w->code, w->keys, w->tile, w->width);
    piece.tensor = &a->in[ATTENTION_V];
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
    struct head_columns q = { .tensor = &a->in[ATTENTION_Q],
                              .row = sequence * at->seq_len + query,
                              .n_rows = min_i64(BLOCK, at->seq_len - query),
                              .n_cols = at->head_dim };
    struct key_walk w;
    struct mask masks[WALK_QUERIES];
    struct sight sight;

    walk_init(&w, a->code, a->width, a->scratch + (size_t)thread * walk_floats(a->width));
    sight_of(&sight, a->op, a->ranges, sequence, query);
    CHECK(sight.last < a->key_len);
    for (int h = 0; h < n_heads; h++) {
        struct query_block *b = &w.blocks[h];
        float slope = slope_of(a->op, ATTENTION_HEAD_OFFSET, head + h);

        q.col = (int64_t)(head + h) * at->head_dim;
        load_tile(b->q, a->width, &q, (float)at->scale);
        query_block_begin(b, &w, q.n_rows, at->alibi);
        load_state(a, b, head + h, &q);
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
        if (a->is_part)
            store_state(a, &w.blocks[h], head + h, &q);
        else
            finish_head(a, &w.blocks[h], head + h, &q);
}

CPU_VARIANTS(attention_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

/* q and what follows it. */
static const struct tensor *queries_of(const struct op_shape *op)
{
    _Static_assert(ATTENTION_PART_V - ATTENTION_PART_Q == ATTENTION_V, "in one order");
    return op->kind == OP_ATTENTION_PART ? &op->in[ATTENTION_PART_Q] : &op->in[ATTENTION_Q];
}

static size_t attention_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    return walk_floats(tile_width(op, &queries_of(op)[ATTENTION_V])) * sizeof(float) *
           (size_t)pool_n_threads(kernels->pool);
}

static void attention_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_attributes *at = &call->op.attributes;
    const struct tensor *in = queries_of(&call->op);
    bool is_part = call->op.kind == OP_ATTENTION_PART;
    struct attention a = { .op = &call->op,
                           .in = in,
                           .is_part = is_part,
                           .ranges = is_part ? (int)ATTENTION_PART_FIRST : (int)ATTENTION_FIRST,
                           .code = attention_tile_code(cpu_of(kernels), in[ATTENTION_Q].dtype),
                           .scratch = call->scratch,
                           .width = tile_width(&call->op, &in[ATTENTION_V]),
                           .value_dim = ops_value_dim(&call->op, &in[ATTENTION_V]),
                           .group = at->n_heads / at->n_kv_heads,
                           .n_blocks = (int)ceil_div(at->seq_len, BLOCK),
                           .key_len = ops_key_len(&call->op, &in[ATTENTION_Q], &in[ATTENTION_K]) };

    (void)first;
    a.n_head_tiles = at->n_kv_heads * (int)ceil_div(a.group, WALK_QUERIES);
    pool_run(kernels->pool, in[ATTENTION_Q].rows / at->seq_len * a.n_blocks * a.n_head_tiles,
             attention_tile[cpu_of(kernels)->isa], &a);
}

void cpu_register_attention(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION] = table->entries[OP_ATTENTION_PART] =
        (struct kernel_entry){ .run = attention_run, .scratch_bytes = attention_scratch_bytes };
    cpu_register_attention_grad(table);
    cpu_register_attention_cached(table);
    cpu_register_attention_end(table);
}
