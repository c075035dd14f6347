/*
 * attention_cudnn.cu - attention and its gradient by cuDNN 9, where it can
 *
 * Plans are by shape (attention_library.cu). A call has its own numbers and, for each set of
 * addresses that it was run with, a variant pack: running only looks the pack up and executes the
 * plan. The first run at some addresses makes it, which allocates host memory alone.
 *
 * cuDNN keeps one number a head and row as [sequence, head, row]; lse is [row, head]. They are
 * exchanged in tiles of 32 x 32 through shared memory, a few microseconds beside the attention:
 * layouts other than cuDNN's own are accepted by some of its engines, but nobody uses them.
 *
 * $LMTRAIN_ATTENTION: "own" never asks cuDNN; "cudnn" makes it an error where it cannot do a call;
 * else the own kernels do what cuDNN cannot: fp32, documents, ALiBi, dropout, odd head sizes, and
 * what even in the smallest pieces has a larger workspace.
 */
#include "cuda/attention_library.cuh"

#include <math.h>
#include <stdlib.h>

enum { N_SLOTS = 32, TILE = 32, N_THREADS = 256 };

/* Variant packs of a set of addresses: n_pieces of them. */
struct address_set {
    const void *q, *k, *v, *out, *dout, *dq, *dk, *dv;
};

struct cudnn_attention {
    struct attention_library *library;
    struct shape_plan *plan;
    struct memory_block *block; /* of at least memory_bytes */
    char *memory;
    float scale, fill, window, one;
    int n_pieces, n_slots, next_slot;
    struct address_set slots[N_SLOTS];
    void *packs[]; /* [N_SLOTS][n_pieces] */
};

static int execute(struct cudnn_attention *c, const struct kernel_call *call, struct err *err);

/* Operands one behind the other at memory; returns their bytes. */
static size_t lay_out(struct op_shape *op, char *memory)
{
    size_t at = 0;

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        struct tensor *t = k < OPS_MAX_INPUTS ? &op->in[k] : &op->out[k - OPS_MAX_INPUTS];

        if (!tensor_given(t))
            continue;
        t->data = memory + at;
        at += align_up((size_t)(t->rows * t->stride) * dtype_bytes(t->dtype), ATTENTION_ALIGNMENT);
    }
    return at;
}

/*
 * Once on operands in memory that is given back: the plan's code is loaded then, which it is not to
 * be once queues wait for peers (cuda_load). Nothing where memory for it cannot be had.
 */
static int run_once(struct cuda_kernels *cuda, const struct kernel_call *call,
                    struct cudnn_attention *c, struct err *err)
{
    struct device *device = &cuda->device->base;
    struct kernel_call trial = *call;
    struct err ignored;
    void *memory;

    if (device->ops->allocate(device, lay_out(&trial.op, NULL), &memory, &ignored) < 0)
        return 0;
    lay_out(&trial.op, (char *)memory);
    int status = execute(c, &trial, err) ? -1 : device->ops->wait(device, DEVICE_COMPUTE, err);
    device->ops->release(device, memory);
    c->plan->has_run = true;
    return status;
}

int cudnn_attention_prepare(struct cuda_kernels *cuda, const struct kernel_call *call,
                            struct cudnn_attention **attention, struct err *err)
{
    struct err why_not = {};
    struct shape_plan *p = attention_plan_of(cuda, &call->op, &why_not);
    struct attention_library *library = (struct attention_library *)cuda->attention;
    struct cudnn_attention *c;
    int n_pieces;

    if (!p && library && library->choice == CHOICE_CUDNN)
        return err_set(err, ERR_DEVICE, "%s: LMTRAIN_ATTENTION is cudnn, but %s",
                       op_info(call->op.kind)->name, why_not.text);
    /* One rank alone must not go another way than its peers: bits would differ. */
    if (!p && library && library->handle && why_not.code == ERR_DEVICE)
        return err_set(err, ERR_DEVICE, "%s: %s (hint: LMTRAIN_ATTENTION=own does without cuDNN)",
                       op_info(call->op.kind)->name, why_not.text);
    if (!p)
        return 0;
    n_pieces = p->batch_pieces * p->head_pieces;
    c = (struct cudnn_attention *)calloc(1, sizeof *c +
                                                (size_t)(N_SLOTS * n_pieces) * sizeof *c->packs);
    if (!c)
        return err_set(err, ERR_DEVICE, "out of host memory");
    c->block = attention_make_room(library, cuda, attention_memory_bytes(p), err);
    if (!c->block) {
        free(c);
        return -1;
    }
    c->memory = (char *)c->block->memory;
    c->library = library;
    c->plan = p;
    c->n_pieces = n_pieces;
    c->scale = (float)call->op.attributes.scale;
    c->fill = -HUGE_VALF;
    c->window = (float)p->shape.window;
    c->one = 1.0f;
    if (cuda->base.is_early && !p->has_run && run_once(cuda, call, c, err) < 0) {
        cudnn_attention_release(c);
        return -1;
    }
    *attention = c;
    return 1;
}

static void forget_slot(struct cudnn_attention *c, int slot)
{
    void **packs = c->packs + (int64_t)slot * c->n_pieces;

    for (int piece = 0; piece < c->n_pieces; piece++) {
        if (packs[piece])
            c->library->api.destroy_descriptor(packs[piece]);
        packs[piece] = NULL;
    }
}

void cudnn_attention_release(struct cudnn_attention *attention)
{
    if (!attention)
        return;
    for (int slot = 0; slot < N_SLOTS; slot++)
        forget_slot(attention, slot);
    attention->block->n_calls--;
    free(attention);
}

/* A head's elements, of two bytes, from a row on. */
static void *head_of(const struct tensor *t, int columns, int64_t row, int64_t head)
{
    return (uint16_t *)t->data + row * t->stride + head * columns;
}

/* Where a piece's operand is. */
static void *pointer_of(struct cudnn_attention *c, const struct kernel_call *call, int piece,
                        enum attention_role role)
{
    const struct shape_plan *p = c->plan;
    const struct attention_shape *s = &p->shape;
    struct attention_operands o = attention_operands_of(&call->op);
    int64_t row = piece / p->head_pieces * p->piece.batch * s->seq_len;
    int64_t head = (int64_t)(piece % p->head_pieces) * p->piece.n_heads;
    int64_t kv_head = (int64_t)(piece % p->head_pieces) * p->piece.n_kv_heads;
    /* Pieces have all heads, or one sequence. */
    size_t number = (size_t)(row * s->n_heads + head * s->seq_len) * sizeof(float);
    int columns = attention_head_columns(s, role);

    switch (role) {
    case GRAPH_Q:
        return head_of(o.q, columns, row, head);
    case GRAPH_K:
        return head_of(o.k, columns, row, kv_head);
    case GRAPH_V:
        return head_of(o.v, columns, row, kv_head);
    case GRAPH_OUT:
        return head_of(o.out, columns, row, head);
    case GRAPH_DOUT:
        return head_of(o.dout, columns, row, head);
    case GRAPH_DQ:
        return head_of(o.dq, columns, row, head);
    case GRAPH_DK:
        return head_of(o.dk, columns, row, kv_head);
    case GRAPH_DV:
        return head_of(o.dv, columns, row, kv_head);
    case GRAPH_STATS:
        return c->memory + number;
    case GRAPH_SUMS:
        return c->memory + attention_row_bytes(s) + number;
    case GRAPH_SCALE:
        return &c->scale;
    case GRAPH_FILL:
        return &c->fill;
    case GRAPH_WINDOW:
        return &c->window;
    case GRAPH_ONE:
        return &c->one;
    }
    CHECK(!"a role");
}

static int make_packs(struct cudnn_attention *c, const struct kernel_call *call, int slot,
                      struct err *err)
{
    const struct attention_graph *graph = &c->plan->graph;
    void *pointers[ATTENTION_MAX_OPERANDS];

    for (int piece = 0; piece < c->n_pieces; piece++) {
        void **pack = &c->packs[(int64_t)slot * c->n_pieces + piece];

        for (int i = 0; i < graph->n_operands; i++)
            pointers[i] = pointer_of(c, call, piece, graph->roles[i]);
        *pack = cudnn_variant_pack(
            &c->library->api, graph->uids, pointers, graph->n_operands,
            c->memory + attention_memory_bytes(c->plan) - c->plan->plan.workspace_bytes, err);
        if (!*pack)
            return -1;
    }
    return 0;
}

/* The variant packs for where the call's operands lie; NULL and *err on failure. */
static void *const *packs_of(struct cudnn_attention *c, const struct kernel_call *call,
                             struct err *err)
{
    struct attention_operands o = attention_operands_of(&call->op);
    struct address_set wanted = { o.q->data,    o.k->data,  o.v->data,  o.out->data,
                                  o.dout->data, o.dq->data, o.dk->data, o.dv->data };
    int slot = c->next_slot;

    for (int i = 0; i < c->n_slots; i++)
        if (!memcmp(&c->slots[i], &wanted, sizeof wanted))
            return c->packs + (int64_t)i * c->n_pieces;
    forget_slot(c, slot);
    memset(&c->slots[slot], 0, sizeof c->slots[slot]);
    if (make_packs(c, call, slot, err))
        return NULL;
    c->slots[slot] = wanted;
    c->n_slots = max_int(c->n_slots, slot + 1);
    c->next_slot = (slot + 1) % N_SLOTS;
    return c->packs + (int64_t)slot * c->n_pieces;
}

/* A block: TILE rows of one sequence, TILE heads. */
template <bool TO_STATS>
__global__ void exchange_kernel(float *stats, rows_of<float> lse, int n_heads, int seq_len,
                                int n_tiles)
{
    __shared__ float tile[TILE][TILE + 1];
    int64_t sequence = blockIdx.x / n_tiles;
    int row = (int)(blockIdx.x % n_tiles) * TILE, head = (int)blockIdx.y * TILE;
    int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    float *plane = stats + sequence * n_heads * seq_len;

    for (int i = y; i < TILE; i += N_THREADS / TILE) {
        if (TO_STATS && row + i < seq_len && head + x < n_heads)
            tile[i][x] = lse.row(sequence * seq_len + row + i)[head + x];
        if (!TO_STATS && head + i < n_heads && row + x < seq_len)
            tile[x][i] = plane[(int64_t)(head + i) * seq_len + row + x];
    }
    __syncthreads();
    for (int i = y; i < TILE; i += N_THREADS / TILE) {
        if (!TO_STATS && row + i < seq_len && head + x < n_heads)
            lse.row(sequence * seq_len + row + i)[head + x] = tile[i][x];
        if (TO_STATS && head + i < n_heads && row + x < seq_len)
            plane[(int64_t)(head + i) * seq_len + row + x] = tile[x][i];
    }
}

template <bool TO_STATS>
static void exchange(struct cuda_kernels *cuda, const struct kernel_call *call,
                     const struct cudnn_attention *c)
{
    const struct attention_shape *s = &c->plan->shape;
    struct attention_operands o = attention_operands_of(&call->op);
    int64_t n_tiles = ceil_div(s->seq_len, TILE);
    struct cuda_shape shape = { dim3((unsigned)(s->batch * n_tiles),
                                     (unsigned)ceil_div(s->n_heads, TILE)),
                                dim3(N_THREADS), 0 };

    cuda_launch(&cuda->base, call, shape, exchange_kernel<TO_STATS>, (float *)c->memory,
                cuda_rows<float>(o.lse), s->n_heads, s->seq_len, (int)n_tiles);
}

static int execute(struct cudnn_attention *c, const struct kernel_call *call, struct err *err)
{
    struct attention_library *library = c->library;
    void *const *packs = packs_of(c, call, err);
    int failed = !packs;

    for (int piece = 0; piece < c->n_pieces && !failed; piece++)
        failed = cudnn_check(
            &library->api,
            library->api.execute(library->handle, c->plan->plan.descriptor, packs[piece]),
            op_info(call->op.kind)->name, err);
    return failed;
}

void cudnn_attention_run(struct cuda_kernels *cuda, const struct kernel_call *call,
                         struct cudnn_attention *attention)
{
    bool is_grad = attention->plan->shape.grad;
    struct err err = {};

    if (is_grad)
        exchange<true>(cuda, call, attention);
    if (!cuda->device->is_loading && execute(attention, call, &err) && !cuda->device->failure.code)
        cuda->device->failure = err;
    if (!is_grad)
        exchange<false>(cuda, call, attention);
}
