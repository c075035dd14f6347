/*
 * attention_cudnn.cu - attention and its gradient by cuDNN 9, where it can
 *
 * A plan is made at the first question about a shape and kept until the backend goes; calls of equal shapes share it. A call has its own numbers and, for
 * each set of addresses that it was run with, a variant pack: running only looks the pack up and
 * executes the plan. The first run at some addresses makes it, which allocates host memory alone.
 *
 * cuDNN keeps one number a head and row as [sequence, head, row]; lse is [row, head]. They are
 * exchanged in tiles of 32 x 32 through shared memory, a few microseconds beside the attention:
 * layouts other than cuDNN's own are accepted by some of its engines, but nobody uses them.
 *
 * The deterministic gradient keeps dS, two bytes a query and key and head: gigabytes. So that its
 * workspace stays below 1 GiB a call is done in pieces, one after the other, by one plan for a
 * piece: some of the sequences or, of one sequence, some of the key-value heads with the heads that
 * read them. Where the smallest piece wants more it gets it, up to a sixteenth of the GPU's memory
 * (4 GiB of 80 GB: sequences of 16384): how much is free does not count, as layouts differ in that
 * and must not in bits. LMTRAIN_CUDNN_WORKSPACE_MIB sets both limits.
 *
 * $LMTRAIN_ATTENTION: "own" never asks cuDNN; "cudnn" makes it an error where it cannot do a call;
 * else the own kernels do what cuDNN cannot: fp32, documents, ALiBi, dropout, odd head sizes, and
 * what even in the smallest pieces has a larger workspace.
 */
#include "cuda/attention.cuh"
#include "cuda/attention_graph.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "base/log.h"
}

enum {
    VERSION_MIN = 91002, /* 9.10.0 and .1 have known faults; older ones other patterns */
    VERSION_ODD = 91501, /* from here on gradients take rows that are no multiple of 128 */
    HEAD_DIM_MAX = 256,
    HEAD_DIM_MAX_GRAD = 128,
    TILE = 32,
    N_THREADS = 256,
};

enum choice { CHOICE_AUTO, CHOICE_OWN, CHOICE_CUDNN };

struct shape_plan {
    struct shape_plan *next;
    struct attention_shape shape; /* a call's */
    struct attention_shape piece; /* the plan's */
    int batch_pieces, head_pieces;
    struct attention_graph graph;
    struct cudnn_plan plan;
    int usable;
    int has_run; /* so that its code is loaded */
    struct err why_not;
};

/* On the device. */
struct memory_block {
    struct memory_block *next; /* smaller */
    void *memory;
    size_t n_bytes;
    int n_calls; /* prepared, that use it */
};

/* Of an instance of the backend: what cuda->attention points to. */
struct attention_library {
    struct cudnn_api api;
    void *handle;
    size_t version;
    enum choice choice;
    struct err why_not;                      /* no handle */
    size_t workspace_wanted, workspace_most; /* limits: of a piece, of the smallest piece */
    struct shape_plan *plans;
    struct memory_block *blocks;
};

/* ---- the library -------------------------------------------------------------------------------
 */

static enum choice choice_of_environment()
{
    const char *choice = getenv("LMTRAIN_ATTENTION");

    if (choice && !strcmp(choice, "own"))
        return CHOICE_OWN;
    return choice && !strcmp(choice, "cudnn") ? CHOICE_CUDNN : CHOICE_AUTO;
}

static void set_limits(struct attention_library *library, size_t gpu_bytes)
{
    const char *text = getenv("LMTRAIN_CUDNN_WORKSPACE_MIB");

    library->workspace_wanted = GPU_ATTENTION_WANTED_BYTES;
    library->workspace_most = gpu_attention_most_bytes(gpu_bytes);
    if (text)
        library->workspace_wanted = library->workspace_most =
            (size_t)max_i64(0, strtol(text, NULL, 10)) << 20;
}

static int open_library(struct attention_library *library, struct cuda_kernels *cuda,
                        struct err *err)
{
    struct cudnn_api *api = &library->api;

    if (cudnn_api_open(api, err))
        return -1;
    library->version = api->get_version();
    if (library->version < VERSION_MIN)
        return err_set(err, ERR_DEVICE, "cudnn: its version is %zu, wanted at least %d",
                       library->version, VERSION_MIN);
    if (cudnn_check(api, api->create(&library->handle), "handle", err))
        return -1;
    if (cudnn_check(api, api->set_stream(library->handle, cuda->stream), "stream", err)) {
        api->destroy(library->handle);
        library->handle = NULL;
        return -1;
    }
    return 0;
}

/* Opened at the first call. NULL: there is no memory. */
static struct attention_library *library_of(struct cuda_kernels *cuda)
{
    struct attention_library *library = (struct attention_library *)cuda->attention;

    if (library)
        return library;
    library = (struct attention_library *)calloc(1, sizeof *library);
    if (!library)
        return NULL;
    library->choice = choice_of_environment();
    set_limits(library, cuda->device->properties.totalGlobalMem);
    if (library->choice == CHOICE_OWN)
        err_set(&library->why_not, ERR_DEVICE, "LMTRAIN_ATTENTION is own");
    else if (open_library(library, cuda, &library->why_not))
        log_info("attention is done by lmtrain's own kernels: %s", library->why_not.text);
    cuda->attention = library;
    return library;
}

void cudnn_attention_close(struct cuda_kernels *cuda)
{
    struct attention_library *library = (struct attention_library *)cuda->attention;

    if (!library)
        return;
    while (library->plans) {
        struct shape_plan *plan = library->plans;

        library->plans = plan->next;
        cudnn_graph_release(&plan->graph.graph);
        free(plan);
    }
    while (library->blocks) {
        struct memory_block *block = library->blocks;

        library->blocks = block->next;
        cuda->device->base.ops->release(&cuda->device->base, block->memory);
        free(block);
    }
    if (library->handle)
        library->api.destroy(library->handle);
    free(library);
    cuda->attention = NULL;
}

void cudnn_attention_describe(struct cuda_kernels *cuda, char *text, size_t n_bytes)
{
    struct attention_library *library = library_of(cuda);

    if (library && library->handle)
        snprintf(text, n_bytes, "attention cudnn %zu workspace %zu", library->version,
                 library->workspace_most >> 20);
    else
        snprintf(text, n_bytes, "attention own");
}

/* ---- shapes ------------------------------------------------------------------------------------
 */

/* An op's operands by their role. */
struct attention_operands {
    const struct tensor *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv, *first, *last;
};

static struct attention_operands operands_of(const struct op_shape *op)
{
    static const struct tensor none = {};

    const struct tensor *in = op->in, *out = op->out;

    if (op->kind == OP_ATTENTION_GRAD)
        return { &in[ATTENTION_GRAD_Q],     &in[ATTENTION_GRAD_K],   &in[ATTENTION_GRAD_V],
                 &in[ATTENTION_GRAD_OUT],   &in[ATTENTION_GRAD_LSE], &in[ATTENTION_GRAD_DOUT],
                 &out[ATTENTION_GRAD_DQ],   &out[ATTENTION_GRAD_DK], &out[ATTENTION_GRAD_DV],
                 &in[ATTENTION_GRAD_FIRST], &in[ATTENTION_GRAD_LAST] };
    return { &in[ATTENTION_Q],
             &in[ATTENTION_K],
             &in[ATTENTION_V],
             &out[ATTENTION_OUT],
             &out[ATTENTION_LSE],
             &none,
             &none,
             &none,
             &none,
             &in[ATTENTION_FIRST],
             &in[ATTENTION_LAST] };
}

/* Rows that start and end where 16 bytes do, and elements that an int counts. */
static int fits(const struct tensor *t)
{
    return t->rows == 0 ||
           (t->stride % 8 == 0 && (uintptr_t)t->data % 16 == 0 && t->rows * t->stride <= INT32_MAX);
}

/* NULL if the library may be asked, else why it is not. */
static const char *unfit(const struct cuda_kernels *cuda, const struct attention_library *library,
                         const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    struct attention_operands o = operands_of(op);
    int grad = op->kind == OP_ATTENTION_GRAD, most = grad ? HEAD_DIM_MAX_GRAD : HEAD_DIM_MAX;
    int value_dim = attention_value_dim(op);

    if (o.q->dtype != DTYPE_BF16 && o.q->dtype != DTYPE_F16)
        return "activations of two bytes are wanted";
    if (a->p > 0 || a->alibi || tensor_given(o.first) || tensor_given(o.last))
        return "it has no dropout, ALiBi and ranges of keys like ours";
    if (a->head_dim % 8 || a->head_dim > most || value_dim % 8 || value_dim > most)
        return "head_dim is not a multiple of 8, or too large";
    if (a->seq_len < 2 || o.q->rows % a->seq_len)
        return "sequences are too short";
    if (grad && a->seq_len % 128 && library->version < VERSION_ODD)
        return "this version's gradient wants a seq_len that is a multiple of 128";
    if (!fits(o.q) || !fits(o.k) || !fits(o.v) || !fits(o.out) || !fits(o.dout) || !fits(o.dq) ||
        !fits(o.dk) || !fits(o.dv))
        return "rows are not aligned to 16 bytes, or there are too many";
    if (cuda->device->properties.major < 8)
        return "the device is older than its kernels";
    return NULL;
}

static void shape_of(struct attention_shape *shape, const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    struct attention_operands o = operands_of(op);

    memset(shape, 0, sizeof *shape);
    shape->grad = op->kind == OP_ATTENTION_GRAD;
    shape->data_type = o.q->dtype == DTYPE_BF16 ? DNN_DATA_BFLOAT16 : DNN_DATA_HALF;
    shape->n_heads = a->n_heads;
    shape->n_kv_heads = a->n_kv_heads;
    shape->head_dim = a->head_dim;
    shape->value_dim = attention_value_dim(op);
    shape->seq_len = a->seq_len;
    shape->window = a->window < a->seq_len ? a->window : 0;
    shape->batch = o.q->rows / a->seq_len;
    shape->q_stride = o.q->stride;
    shape->k_stride = o.k->stride;
    shape->v_stride = o.v->stride;
    shape->out_stride = o.out->stride;
    shape->dout_stride = o.dout->stride;
    shape->dq_stride = o.dq->stride;
    shape->dk_stride = o.dk->stride;
    shape->dv_stride = o.dv->stride;
}

/* Whether pieces are whole, and their numbers in scratch begin at multiples of 16 bytes. */
static int can_cut(const struct attention_shape *s, int64_t batch_pieces, int head_pieces)
{
    int64_t n_rows = (int64_t)s->n_heads / head_pieces * s->seq_len;

    return s->batch % batch_pieces == 0 && s->n_kv_heads % head_pieces == 0 &&
           (batch_pieces * head_pieces == 1 || s->batch / batch_pieces * n_rows % 4 == 0);
}

/* Cut into at least n pieces, as few as can be; returns 0 if that cannot be. */
static int cut(struct shape_plan *p, int64_t n)
{
    const struct attention_shape *s = &p->shape;

    for (p->batch_pieces = 1; p->batch_pieces <= s->batch; p->batch_pieces++)
        if (p->batch_pieces >= n && can_cut(s, p->batch_pieces, 1)) {
            p->head_pieces = 1;
            return 1;
        }
    p->batch_pieces = (int)s->batch;
    for (p->head_pieces = 1; p->head_pieces <= s->n_kv_heads; p->head_pieces++)
        if (s->batch * p->head_pieces >= n && can_cut(s, s->batch, p->head_pieces))
            return 1;
    return 0;
}

/* Returns 0, or -1 and p->why_not. */
static int plan_piece(struct attention_library *library, struct shape_plan *p)
{
    p->piece = p->shape;
    p->piece.batch /= p->batch_pieces;
    p->piece.n_heads /= p->head_pieces;
    p->piece.n_kv_heads /= p->head_pieces;
    cudnn_graph_init(&p->graph.graph, &library->api, library->handle, NULL);
    attention_graph_build(&p->graph, &p->piece);
    if (cudnn_graph_plan(&p->graph.graph, &p->plan, &p->why_not) == 0)
        return 0;
    cudnn_graph_release(&p->graph.graph);
    return -1;
}

/*
 * The fewest pieces, at least n, whose workspace is within the limit. Returns 0 where there are none
 * such; else p is usable, or p->why_not says why not.
 */
static int find_pieces(struct attention_library *library, struct shape_plan *p, size_t limit,
                       int64_t n)
{
    while (cut(p, n)) {
        if (plan_piece(library, p))
            return 1;
        p->usable = p->plan.workspace_bytes <= limit;
        if (p->usable)
            return 1;
        cudnn_graph_release(&p->graph.graph);
        n = p->batch_pieces * (int64_t)p->head_pieces;
        n = limit ? n * ceil_div((int64_t)p->plan.workspace_bytes, (int64_t)limit) : INT64_MAX;
    }
    return 0;
}

/* Into how many pieces it can be cut. */
static int64_t most_pieces(struct shape_plan *p)
{
    int64_t n = p->shape.batch * p->shape.n_kv_heads;

    while (!cut(p, n))
        n--;
    return n;
}

static void make_plan(struct attention_library *library, struct shape_plan *p)
{
    if (find_pieces(library, p, library->workspace_wanted, 1) ||
        find_pieces(library, p, library->workspace_most, most_pieces(p)))
        return;
    err_set(&p->why_not, ERR_FAILED,
            "cudnn: its workspace is %zu MiB, beyond LMTRAIN_CUDNN_WORKSPACE_MIB's %zu",
            p->plan.workspace_bytes >> 20, library->workspace_most >> 20);
    if (library->choice == CHOICE_AUTO)
        log_warn("attention of %d tokens is done by lmtrain's own kernels, which are slower: %s",
                 p->shape.seq_len, p->why_not.text);
}

static void report_plan(const struct shape_plan *p)
{
    const struct attention_shape *s = &p->shape;

    log_debug("attention%s of %lld sequences of %d, %d heads of %d in %d pieces: %s",
              s->grad ? "_grad" : "", (long long)s->batch, s->seq_len, s->n_heads, s->head_dim,
              p->batch_pieces * p->head_pieces, p->usable ? p->plan.engine : p->why_not.text);
}

/* The plan for the op; NULL and *err if cuDNN is not to do it. */
static struct shape_plan *plan_of(struct cuda_kernels *cuda, const struct op_shape *op,
                                  struct err *err)
{
    struct attention_library *library = library_of(cuda);
    struct attention_shape shape;
    struct shape_plan *p;
    const char *why_not;

    if (!library || !library->handle) {
        if (library)
            *err = library->why_not;
        return NULL;
    }
    why_not = unfit(cuda, library, op);
    if (why_not) {
        err_set(err, ERR_FAILED, "cudnn: %s", why_not);
        return NULL;
    }
    shape_of(&shape, op);
    for (p = library->plans; p; p = p->next)
        if (!memcmp(&p->shape, &shape, sizeof shape))
            break;
    if (!p) {
        p = (struct shape_plan *)calloc(1, sizeof *p);
        if (!p)
            return NULL;
        p->shape = shape;
        p->next = library->plans;
        library->plans = p;
        make_plan(library, p);
        report_plan(p);
    }
    if (!p->usable)
        *err = p->why_not;
    return p->usable ? p : NULL;
}

/* ---- memory ------------------------------------------------------------------------------------
 *
 * cuDNN's log sums of exp, the sums of dout out, its workspace: each aligned to 256. It is one block
 * for all calls, which run one after the other, and the vendor's, not of any plan: what cuDNN wants
 * is known only where there is a GPU.
 */

enum { ALIGNMENT = 256 };

static size_t row_bytes(const struct attention_shape *s)
{
    size_t n_bytes = (size_t)s->batch * (size_t)s->n_heads * (size_t)s->seq_len * sizeof(float);

    return align_up(n_bytes, ALIGNMENT);
}

static size_t memory_bytes(const struct shape_plan *p)
{
    return (p->shape.grad ? 2 : 1) * row_bytes(&p->shape) + p->plan.workspace_bytes;
}

/*
 * A block of at least so many bytes, for a call that is prepared now; NULL and *err on failure. A
 * call that was given a smaller one keeps it; one that no call uses any more makes way. All calls of
 * a program are prepared once before any of them is to stay (kernels_prepare_early): those that do
 * find the largest block there.
 */
static struct memory_block *make_room(struct attention_library *library, struct cuda_kernels *cuda,
                                      size_t n_bytes, struct err *err)
{
    struct device *device = &cuda->device->base;
    struct memory_block *block = library->blocks;

    if (!block || block->n_bytes < n_bytes) {
        if (block && !block->n_calls) {
            library->blocks = block->next;
            device->ops->release(device, block->memory);
            free(block);
        }
        block = (struct memory_block *)calloc(1, sizeof *block);
        if (!block) {
            err_set(err, ERR_DEVICE, "out of host memory");
            return NULL;
        }
        block->n_bytes = n_bytes;
        if (device->ops->allocate(device, n_bytes, &block->memory, err) < 0) {
            free(block);
            err_add(err, "cuDNN's workspace");
            return NULL;
        }
        block->next = library->blocks;
        library->blocks = block;
    }
    block->n_calls++;
    return block;
}

/* ---- a call ------------------------------------------------------------------------------------
 */

enum { N_SLOTS = 32 };

/* Variant packs of a set of addresses: n_pieces of them. */
struct slot {
    const void *q, *k, *v, *out, *dout, *dq, *dk, *dv;
};

struct cudnn_attention {
    struct attention_library *library;
    struct shape_plan *plan;
    struct memory_block *block; /* of at least memory_bytes */
    char *memory;
    float scale, fill, window, one;
    int n_pieces, n_slots, next_slot;
    struct slot slots[N_SLOTS];
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
        at += align_up((size_t)(t->rows * t->stride) * dtype_bytes(t->dtype), ALIGNMENT);
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
    c->plan->has_run = 1;
    return status;
}

int cudnn_attention_prepare(struct cuda_kernels *cuda, const struct kernel_call *call,
                            struct cudnn_attention **attention, struct err *err)
{
    struct err why_not = {};
    struct shape_plan *p = plan_of(cuda, &call->op, &why_not);
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
    c->block = make_room(library, cuda, memory_bytes(p), err);
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
    struct attention_operands o = operands_of(&call->op);
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
        return c->memory + row_bytes(s) + number;
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
            c->memory + memory_bytes(c->plan) - c->plan->plan.workspace_bytes, err);
        if (!*pack)
            return -1;
    }
    return 0;
}

/* The variant packs for where the call's operands lie; NULL and *err on failure. */
static void *const *packs_of(struct cudnn_attention *c, const struct kernel_call *call,
                             struct err *err)
{
    struct attention_operands o = operands_of(&call->op);
    struct slot wanted = { o.q->data,    o.k->data,  o.v->data,  o.out->data,
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
    struct attention_operands o = operands_of(&call->op);
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
    int is_grad = attention->plan->shape.grad;
    struct err err = {};

    if (is_grad)
        exchange<true>(cuda, call, attention);
    if (!cuda->device->is_loading && execute(attention, call, &err) && !cuda->device->failure.code)
        cuda->device->failure = err;
    if (!is_grad)
        exchange<false>(cuda, call, attention);
}
