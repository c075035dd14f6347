/*
 * attention_grad.c - the backward of attention (Dao et al. 2022, algorithm 4)
 *
 * A tile of work is one kv head of one sequence. It keeps fp32 copies of its keys and values, and
 * the gradients of both, in its thread's scratch, and walks its query heads, their query blocks and
 * the key blocks that each sees, in this order, so every sum has one order and no other thread adds
 * to it. Probabilities are recomputed from lse. Bound by five products a block pair.
 *
 * Of a part of the keys dq begins with the sum of the part before, and is stored unscaled.
 */
#include "kernels/cpu/attention_impl.h"

struct attention_grad {
    const struct op_shape *op;
    const struct tensor *in; /* dout and what follows it */
    bool is_part;
    int ranges; /* number of the op's input `first` */
    const struct tile_code *code;
    float *scratch;
    size_t thread_floats;
    int64_t width;
    int value_dim;
    int64_t key_len, n_blocks; /* of a sequence's keys */
};

struct grad_scratch {
    float *keys, *keys_t, *values_t; /* n_blocks tiles each; _t are [width x BLOCK] */
    float *dkeys, *dvalues;
    float *q, *dout, *dq; /* one tile each */
    float *p, *dp;        /* [BLOCK x BLOCK] */
    float lse[BLOCK], delta[BLOCK];
    struct sight sight; /* of the query block at hand */
    float slope;        /* of its head */
};

static size_t grad_thread_floats(int64_t width, int64_t n_blocks)
{
    return (size_t)((5 * n_blocks + 3) * BLOCK * width + 2 * BLOCK * BLOCK);
}

static void carve_grad(struct grad_scratch *s, const struct attention_grad *a, int thread)
{
    float *next = a->scratch + (size_t)thread * a->thread_floats;
    int64_t tile = BLOCK * a->width, all = tile * a->n_blocks;

    s->keys = next;
    s->keys_t = next + all;
    s->values_t = next + 2 * all;
    s->dkeys = next + 3 * all;
    s->dvalues = next + 4 * all;
    next += 5 * all;
    s->q = next;
    s->dout = next + tile;
    s->dq = next + 2 * tile;
    s->p = next + 3 * tile;
    s->dp = s->p + BLOCK * BLOCK;
}

/* Scores in p and dout v' in dp become probabilities (with dropout: those kept) and ds. */
CPU_INLINE void grad_row(struct grad_scratch *s, int64_t r, const struct mask *mask, int64_t key)
{
    int64_t query = s->sight.own[r], n_valid = query - key + 1;
    float *p = s->p + r * BLOCK, *dp = s->dp + r * BLOCK;
    float lse = s->lse[r], delta = s->delta[r];
    float kept[BLOCK];

    for (int j = 0; j < BLOCK; j++) {
        float e = vec_exp(p[j] - lse);

        p[j] = j < n_valid ? e : 0.0f;
    }
    if (mask->series.p > 0) {
        mask_row(kept, mask, query, key);
        for (int j = 0; j < BLOCK; j++) {
            dp[j] = j < n_valid ? p[j] * (dp[j] * kept[j] - delta) : 0.0f;
            p[j] *= kept[j];
        }
    } else {
        for (int j = 0; j < BLOCK; j++)
            dp[j] = j < n_valid ? p[j] * (dp[j] - delta) : 0.0f;
    }
}

/* Whether no row sees a key beyond the one that has its number in the block. */
CPU_INLINE bool is_lower(const struct sight *s, int64_t n_queries, int64_t key)
{
    for (int64_t r = 0; r < n_queries; r++)
        if (s->own[r] > key + r)
            return false;
    return true;
}

CPU_INLINE void grad_block(const struct attention_grad *a, struct grad_scratch *s,
                           const struct mask *mask, int64_t n_queries, int64_t key)
{
    int64_t width = a->width, at = key * width; /* of the key block's tile */
    struct tile_product scores = { .c = s->p,
                                   .c_stride = BLOCK,
                                   .a = s->q,
                                   .a_row = width,
                                   .a_col = 1,
                                   .b = s->keys_t + at,
                                   .b_stride = BLOCK,
                                   .n = BLOCK,
                                   .k = width };
    struct tile_product dscores, dvalues, dkeys, dq;
    int diagonal = is_lower(&s->sight, n_queries, key);
    bool is_plain = key >= s->sight.most && !(s->slope > 0);

    scores.part = diagonal ? PART_C_LOWER : PART_ALL;
    dscores = scores;
    dscores.c = s->dp;
    dscores.a = s->dout;
    dscores.b = s->values_t + at;
    tile_product(a->code, &scores);
    tile_product(a->code, &dscores);
    for (int64_t r = 0; r < n_queries && !is_plain; r++)
        score_row(s->p + r * BLOCK, s->slope, &s->sight, r, key);
    for (int64_t r = 0; r < n_queries; r++)
        grad_row(s, r, mask, key);
    for (int64_t r = n_queries; r < BLOCK; r++) {
        memset(s->p + r * BLOCK, 0, BLOCK * sizeof(float));
        memset(s->dp + r * BLOCK, 0, BLOCK * sizeof(float));
    }
    dvalues = (struct tile_product){ .c = s->dvalues + at,
                                     .c_stride = width,
                                     .a = s->p,
                                     .a_row = 1,
                                     .a_col = BLOCK,
                                     .b = s->dout,
                                     .b_stride = width,
                                     .n = width,
                                     .k = BLOCK,
                                     .add = 1,
                                     .part = diagonal ? PART_A_UPPER : PART_ALL };
    dkeys = dvalues;
    dkeys.c = s->dkeys + at;
    dkeys.a = s->dp;
    dkeys.b = s->q;
    dq = (struct tile_product){ .c = s->dq,
                                .c_stride = width,
                                .a = s->dp,
                                .a_row = BLOCK,
                                .a_col = 1,
                                .b = s->keys + at,
                                .b_stride = width,
                                .n = width,
                                .k = BLOCK,
                                .add = 1,
                                .part = diagonal ? PART_A_LOWER : PART_ALL };
    tile_product(a->code, &dvalues);
    tile_product(a->code, &dkeys);
    tile_product(a->code, &dq);
}

CPU_INLINE float dot_rows(const float *x, const float *y, int64_t n)
{
    float lanes[WIDTH_STEP] = { 0 };

    for (int64_t i = 0; i < n; i += WIDTH_STEP)
        for (int l = 0; l < WIDTH_STEP; l++)
            lanes[l] = __builtin_fmaf(x[i + l], y[i + l], lanes[l]);
    for (int half = WIDTH_STEP / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

/* What dq is before the first key. q: the block's columns of queries. */
CPU_INLINE void begin_dq(const struct attention_grad *a, struct grad_scratch *s,
                         const struct head_columns *q)
{
    struct head_columns sum = *q;

    memset(s->dq, 0, (size_t)(BLOCK * a->width) * sizeof(float));
    sum.tensor = &a->op->in[ATTENTION_PART_GRAD_SUM];
    if (a->is_part && tensor_given(sum.tensor))
        load_rows(s->dq, a->width, &sum, 1.0f);
}

/* A part's queries that see none of its keys keep their sums, bit for bit. */
CPU_INLINE void store_dq(const struct attention_grad *a, const struct grad_scratch *s,
                         const struct head_columns *q)
{
    const struct tensor *sum = &a->op->in[ATTENTION_PART_GRAD_SUM];
    struct head_columns dq = *q;

    dq.tensor = &a->op->out[a->is_part ? (int)ATTENTION_PART_GRAD_DQ : (int)ATTENTION_GRAD_DQ];
    if (!a->is_part) {
        store_tile(&dq, s->dq, a->width, (float)a->op->attributes.scale);
        return;
    }
    for (int64_t r = 0; r < q->n_rows; r++) {
        bool is_kept = s->sight.own[r] < 0 && tensor_given(sum);

        memmove(float_row_mut(dq.tensor, q->row + r) + q->col,
                is_kept ? float_row(sum, q->row + r) + q->col : s->dq + r * a->width,
                (size_t)q->n_cols * sizeof(float));
    }
}

/* One block of queries of one head against all its keys. */
CPU_INLINE void grad_queries(const struct attention_grad *a, struct grad_scratch *s,
                             int64_t sequence, int head, int64_t query)
{
    const struct op_attributes *at = &a->op->attributes;
    struct mask mask = mask_of(a->op, ATTENTION_GRAD_SAMPLE, sequence, head);
    struct head_columns piece = { .row = sequence * at->seq_len + query,
                                  .col = (int64_t)head * a->value_dim,
                                  .n_rows = min_i64(BLOCK, at->seq_len - query),
                                  .n_cols = a->value_dim };

    piece.tensor = &a->in[ATTENTION_GRAD_OUT];
    load_tile(s->q, a->width, &piece, 1.0f);
    piece.tensor = &a->in[ATTENTION_GRAD_DOUT];
    load_tile(s->dout, a->width, &piece, 1.0f);
    for (int64_t r = 0; r < piece.n_rows; r++) {
        s->delta[r] = dot_rows(s->q + r * a->width, s->dout + r * a->width, a->width);
        s->lse[r] = float_row(&a->in[ATTENTION_GRAD_LSE], piece.row + r)[head];
    }
    piece.tensor = &a->in[ATTENTION_GRAD_Q];
    piece.col = (int64_t)head * at->head_dim;
    piece.n_cols = at->head_dim;
    load_tile(s->q, a->width, &piece, (float)at->scale);
    begin_dq(a, s, &piece);
    sight_of(&s->sight, a->op, a->ranges, sequence, query);
    CHECK(s->sight.last < a->key_len);
    s->slope = slope_of(a->op, ATTENTION_GRAD_HEAD_OFFSET, head);
    for (int64_t key = s->sight.least; key <= s->sight.last; key += BLOCK)
        grad_block(a, s, &mask, piece.n_rows, key);
    store_dq(a, s, &piece);
}

/* The block of keys, and of values, that begins there. */
static inline void at_keys(struct head_columns *k, struct head_columns *v, int64_t key_len,
                           int64_t sequence, int64_t key)
{
    k->row = v->row = sequence * key_len + key;
    k->n_rows = v->n_rows = min_i64(BLOCK, key_len - key);
}

CPU_INLINE void attention_grad_tile_body(void *context, int64_t tile, int thread)
{
    const struct attention_grad *a = context;
    const struct op_attributes *at = &a->op->attributes;
    int kv_head = (int)(tile % at->n_kv_heads), group = at->n_heads / at->n_kv_heads;
    int64_t sequence = tile / at->n_kv_heads, width = a->width;
    struct head_columns k = { .tensor = &a->in[ATTENTION_GRAD_K],
                              .col = (int64_t)kv_head * at->head_dim,
                              .n_cols = at->head_dim };
    struct head_columns v = { .tensor = &a->in[ATTENTION_GRAD_V],
                              .col = (int64_t)kv_head * a->value_dim,
                              .n_cols = a->value_dim };
    struct grad_scratch s;

    carve_grad(&s, a, thread);
    for (int64_t key = 0; key < a->key_len; key += BLOCK) {
        at_keys(&k, &v, a->key_len, sequence, key);
        load_tile(s.dq, width, &v, 1.0f);
        tile_transpose(a->code, s.values_t + key * width, s.dq, width);
        load_tile(s.keys + key * width, width, &k, 1.0f);
        tile_transpose(a->code, s.keys_t + key * width, s.keys + key * width, width);
    }
    memset(s.dkeys, 0, (size_t)(a->n_blocks * BLOCK * width) * sizeof(float));
    memset(s.dvalues, 0, (size_t)(a->n_blocks * BLOCK * width) * sizeof(float));
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t query = 0; query < at->seq_len; query += BLOCK)
            grad_queries(a, &s, sequence, head, query);
    _Static_assert((int)ATTENTION_PART_GRAD_DK == (int)ATTENTION_GRAD_DK &&
                       (int)ATTENTION_PART_GRAD_DV == (int)ATTENTION_GRAD_DV,
                   "in one order");
    k.tensor = &a->op->out[ATTENTION_GRAD_DK];
    v.tensor = &a->op->out[ATTENTION_GRAD_DV];
    for (int64_t key = 0; key < a->key_len; key += BLOCK) {
        at_keys(&k, &v, a->key_len, sequence, key);
        store_tile(&k, s.dkeys + key * width, width, 1.0f);
        store_tile(&v, s.dvalues + key * width, width, 1.0f);
    }
}

CPU_VARIANTS(attention_grad_tile, (void *context, int64_t tile, int thread),
             (context, tile, thread));

/* dout and what follows it. */
static const struct tensor *gradients_of(const struct op_shape *op)
{
    _Static_assert(ATTENTION_PART_GRAD_LSE - ATTENTION_PART_GRAD_DOUT == ATTENTION_GRAD_LSE,
                   "in one order");
    return op->kind == OP_ATTENTION_PART_GRAD ? &op->in[ATTENTION_PART_GRAD_DOUT]
                                              : &op->in[ATTENTION_GRAD_DOUT];
}

static int key_len_of(const struct op_shape *op)
{
    const struct tensor *in = gradients_of(op);

    return ops_key_len(op, &in[ATTENTION_GRAD_Q], &in[ATTENTION_GRAD_K]);
}

static size_t attention_grad_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    size_t floats = grad_thread_floats(tile_width(op, &gradients_of(op)[ATTENTION_GRAD_V]),
                                       ceil_div(key_len_of(op), BLOCK));

    return floats * sizeof(float) * (size_t)pool_n_threads(kernels->pool);
}

static void attention_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_attributes *at = &call->op.attributes;
    const struct tensor *in = gradients_of(&call->op);
    bool is_part = call->op.kind == OP_ATTENTION_PART_GRAD;
    struct attention_grad a = {
        .op = &call->op,
        .in = in,
        .is_part = is_part,
        .ranges = is_part ? (int)ATTENTION_PART_GRAD_FIRST : (int)ATTENTION_GRAD_FIRST,
        .code = attention_tile_code(cpu_of(kernels), in[ATTENTION_GRAD_Q].dtype),
        .scratch = call->scratch,
        .width = tile_width(&call->op, &in[ATTENTION_GRAD_V]),
        .value_dim = ops_value_dim(&call->op, &in[ATTENTION_GRAD_V]),
        .key_len = key_len_of(&call->op),
        .n_blocks = ceil_div(key_len_of(&call->op), BLOCK)
    };

    (void)first;
    a.thread_floats = grad_thread_floats(a.width, a.n_blocks);
    pool_run(kernels->pool, in[ATTENTION_GRAD_Q].rows / at->seq_len * at->n_kv_heads,
             attention_grad_tile[cpu_of(kernels)->isa], &a);
}

void cpu_register_attention_grad(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION_GRAD] = table->entries[OP_ATTENTION_PART_GRAD] =
        (struct kernel_entry){ .run = attention_grad_run,
                               .scratch_bytes = attention_grad_scratch_bytes };
}
