/*
 * attention_received.c - what attention each key receives, for codecs that choose rows by it
 *
 * A tile of work is one block of keys of one sequence. It walks all heads, and of each the blocks
 * of queries that see it, in this order, so every sum has one order and no other thread adds to it.
 * Probabilities follow from lse, as in attention_grad.c. Bound by one product a block pair.
 */
#include "kernels/cpu/attention_impl.h"

struct received {
    const struct op_shape *op;
    const struct tile_code *code;
    float *scratch;
    int64_t width, n_blocks; /* of a sequence's keys */
};

/* [width x BLOCK] keys; [BLOCK x width] keys before, and queries; [BLOCK x BLOCK] */
static size_t received_floats(int64_t width)
{
    return (size_t)(3 * BLOCK * width + BLOCK * BLOCK);
}

struct received_tile {
    float *keys, *rows, *p;
    float sums[BLOCK];
    struct sight sight; /* of the query block at hand */
    int64_t key;        /* the block's first */
};

/* Add the probabilities of one block of queries of a head. */
CPU_INLINE void add_queries(const struct received *a, struct received_tile *t,
                            const struct head_columns *q, int head)
{
    const struct op_shape *op = a->op;
    float slope = slope_of(op, ATTENTION_RECEIVED_HEAD_OFFSET, head);
    struct tile_product scores = { .c = t->p,
                                   .c_stride = BLOCK,
                                   .a = t->rows,
                                   .a_row = a->width,
                                   .a_col = 1,
                                   .b = t->keys,
                                   .b_stride = BLOCK,
                                   .n = BLOCK,
                                   .k = a->width,
                                   .n_rows = q->n_rows };

    load_tile(t->rows, a->width, q, (float)op->attributes.scale);
    tile_product(a->code, &scores);
    for (int64_t r = 0; r < q->n_rows; r++) {
        float *row = t->p + r * BLOCK;
        float lse = float_row(&op->in[ATTENTION_RECEIVED_LSE], q->row + r)[head];
        int64_t n_valid = t->sight.own[r] - t->key + 1;

        if (!sees_block(&t->sight, r, t->key))
            continue;
        score_row(row, slope, &t->sight, r, t->key);
        for (int j = 0; j < BLOCK; j++) {
            float p = vec_exp(row[j] - lse);

            t->sums[j] += j < n_valid ? p : 0.0f;
        }
    }
}

CPU_INLINE void received_tile_body(void *context, int64_t tile, int thread)
{
    const struct received *a = context;
    const struct op_attributes *at = &a->op->attributes;
    int64_t sequence = tile / a->n_blocks, begin = sequence * at->seq_len;
    int group = at->n_heads / at->n_kv_heads;
    struct received_tile t = { .key = tile % a->n_blocks * BLOCK };
    int64_t n_keys = min_i64(BLOCK, at->seq_len - t.key);
    struct tensor *out = (struct tensor *)(uintptr_t)&a->op->out[ATTENTION_RECEIVED_SCORES];

    t.keys = a->scratch + (size_t)thread * received_floats(a->width);
    t.rows = t.keys + BLOCK * a->width;
    t.p = t.rows + 2 * BLOCK * a->width;
    for (int head = 0; head < at->n_heads; head++) {
        struct head_columns k = { .tensor = &a->op->in[ATTENTION_RECEIVED_K],
                                  .row = begin + t.key,
                                  .n_rows = n_keys,
                                  .col = (int64_t)(head / group) * at->head_dim,
                                  .n_cols = at->head_dim };

        if (head % group == 0) {
            load_tile(t.rows, a->width, &k, 1.0f);
            tile_transpose(a->code, t.keys, t.rows, a->width);
        }
        for (int64_t query = 0; query < at->seq_len; query += BLOCK) {
            struct head_columns q = { .tensor = &a->op->in[ATTENTION_RECEIVED_Q],
                                      .row = begin + query,
                                      .n_rows = min_i64(BLOCK, at->seq_len - query),
                                      .col = (int64_t)head * at->head_dim,
                                      .n_cols = at->head_dim };

            sight_of(&t.sight, a->op, ATTENTION_RECEIVED_FIRST, sequence, query);
            if (t.sight.last >= t.key && t.sight.least < t.key + BLOCK)
                add_queries(a, &t, &q, head);
        }
    }
    for (int64_t i = 0; i < n_keys; i++)
        *float_row_mut(out, begin + t.key + i) = t.sums[i];
}

CPU_VARIANTS(received_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

static size_t received_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    return received_floats(round_up(op->attributes.head_dim, WIDTH_STEP)) * sizeof(float) *
           (size_t)pool_n_threads(kernels->pool);
}

static void received_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *q = &op->in[ATTENTION_RECEIVED_Q];
    struct received a = { .op = op,
                          .code = attention_tile_code(cpu_of(kernels), q->dtype),
                          .scratch = call->scratch,
                          .width = round_up(op->attributes.head_dim, WIDTH_STEP),
                          .n_blocks = ceil_div(op->attributes.seq_len, BLOCK) };

    (void)first;
    pool_run(kernels->pool, q->rows / op->attributes.seq_len * a.n_blocks,
             received_tile[cpu_of(kernels)->isa], &a);
}

void cpu_register_attention_received(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION_RECEIVED] =
        (struct kernel_entry){ .run = received_run, .scratch_bytes = received_scratch_bytes };
}
