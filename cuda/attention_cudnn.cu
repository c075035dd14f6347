/*
 * attention_cudnn.cu - attention and its gradient by cuDNN 9, where it can
 *
 * A plan is made at the first question about a shape (scratch's size, or a call's preparation) and
 * kept until the backend goes; calls of equal shapes share it. A call has its own numbers and, for
 * each set of addresses that it was run with, a variant pack: running only looks the pack up and
 * executes the plan. The first run at some addresses makes it, which allocates host memory alone.
 *
 * cuDNN keeps one number a head and row as [sequence, head, row]; lse is [row, head]. They are
 * exchanged in tiles of 32 x 32 through shared memory, a few microseconds beside the attention:
 * layouts other than cuDNN's own are accepted by some of its engines, but nobody uses them.
 *
 * $LMTRAIN_ATTENTION: "own" never asks cuDNN; "cudnn" makes it an error where it cannot do a call;
 * else the own kernels do what cuDNN cannot: fp32, documents, ALiBi, dropout, odd head sizes, and
 * gradients whose workspace would be beyond LMTRAIN_CUDNN_WORKSPACE_MIB (1024): the deterministic
 * kernels keep dS, two bytes a query and key and head.
 */
#include "cuda/attention.cuh"
#include "cuda/attention_graph.cuh"

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
    WORKSPACE_MIB = 1024,
    TILE = 32,
    N_THREADS = 256,
};

enum choice { CHOICE_AUTO, CHOICE_OWN, CHOICE_CUDNN };

struct shape_plan {
    struct shape_plan *next;
    struct attention_shape shape;
    struct attention_graph graph;
    struct cudnn_plan plan;
    int usable;
    struct err why_not;
};

/* Of an instance of the backend: what cuda->attention points to. */
struct attention_library {
    struct cudnn_api api;
    void *handle;
    size_t version;
    enum choice choice;
    struct err why_not; /* no handle */
    size_t workspace_bytes_max;
    struct shape_plan *plans;
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

static size_t workspace_max()
{
    const char *text = getenv("LMTRAIN_CUDNN_WORKSPACE_MIB");
    long mib = text ? strtol(text, NULL, 10) : (long)WORKSPACE_MIB;

    return (size_t)(mib > 0 ? mib : 0) << 20;
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
    library->workspace_bytes_max = workspace_max();
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
                 library->workspace_bytes_max >> 20);
    else
        snprintf(text, n_bytes, "attention own");
}

/* ---- shapes ------------------------------------------------------------------------------------
 */

/* An op's operands by their role. */
struct attention_operands {
    const struct tensor *qkv, *out, *lse, *dout, *dqkv, *start;
};

static struct attention_operands operands_of(const struct op_shape *op)
{
    static const struct tensor none = {};

    if (op->kind == OP_ATTENTION_GRAD)
        return { &op->in[1], &op->in[2], &op->in[3], &op->in[0], &op->out[0], &op->in[6] };
    return { &op->in[0], &op->out[0], &op->out[1], &none, &none, &op->in[3] };
}

/* Rows that start and end where 16 bytes do, and elements that an int counts. */
static int fits(const struct tensor *t)
{
    return t->rows == 0 || (t->stride % 8 == 0 && (uintptr_t)t->data % 16 == 0 &&
                            t->rows * t->stride <= INT32_MAX);
}

/* NULL if the library may be asked, else why it is not. */
static const char *unfit(const struct cuda_kernels *cuda, const struct attention_library *library,
                         const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    struct attention_operands o = operands_of(op);
    int grad = op->kind == OP_ATTENTION_GRAD;

    if (o.qkv->dtype != DTYPE_BF16 && o.qkv->dtype != DTYPE_F16)
        return "activations of two bytes are wanted";
    if (a->p > 0 || a->alibi || tensor_given(o.start))
        return "it has no dropout, ALiBi and documents like ours";
    if (a->head_dim % 8 || a->head_dim > (grad ? HEAD_DIM_MAX_GRAD : HEAD_DIM_MAX))
        return "head_dim is no multiple of 8, or too large";
    if (a->seq_len < 2 || o.qkv->rows % a->seq_len)
        return "sequences are too short";
    if (grad && a->seq_len % 128 && library->version < VERSION_ODD)
        return "this version's gradient wants a seq_len that is a multiple of 128";
    if (!fits(o.qkv) || !fits(o.out) || !fits(o.dout) || !fits(o.dqkv))
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
    shape->data_type = o.qkv->dtype == DTYPE_BF16 ? DNN_DATA_BFLOAT16 : DNN_DATA_HALF;
    shape->n_heads = a->n_heads;
    shape->n_kv_heads = a->n_kv_heads;
    shape->head_dim = a->head_dim;
    shape->seq_len = a->seq_len;
    shape->window = a->window < a->seq_len ? a->window : 0;
    shape->batch = o.qkv->rows / a->seq_len;
    shape->qkv_stride = o.qkv->stride;
    shape->out_stride = o.out->stride;
    shape->dout_stride = o.dout->stride;
    shape->dqkv_stride = o.dqkv->stride;
}

static void make_plan(struct attention_library *library, struct shape_plan *p)
{
    const struct attention_shape *s = &p->shape;

    cudnn_graph_init(&p->graph.graph, &library->api, library->handle, NULL);
    attention_graph_build(&p->graph, s);
    p->usable = cudnn_graph_plan(&p->graph.graph, &p->plan, &p->why_not) == 0;
    if (p->usable && p->plan.workspace_bytes > library->workspace_bytes_max) {
        p->usable = 0;
        err_set(&p->why_not, ERR_DEVICE,
                "cudnn: its workspace is %zu MiB, beyond LMTRAIN_CUDNN_WORKSPACE_MIB's %zu",
                p->plan.workspace_bytes >> 20, library->workspace_bytes_max >> 20);
    }
    log_debug("attention%s of %lld sequences of %d, %d heads of %d: %s", s->grad ? "_grad" : "",
              (long long)s->batch, s->seq_len, s->n_heads, s->head_dim,
              p->usable ? p->plan.engine : p->why_not.text);
    if (!p->usable)
        cudnn_graph_release(&p->graph.graph);
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
        err_set(err, ERR_DEVICE, "cudnn: %s", why_not);
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
    }
    if (!p->usable)
        *err = p->why_not;
    return p->usable ? p : NULL;
}

/* ---- scratch -----------------------------------------------------------------------------------
 *
 * cuDNN's log sums of exp, the sums of dout out, its workspace: each aligned to 256.
 */

enum { ALIGNMENT = 256 };

static size_t row_bytes(const struct attention_shape *s)
{
    size_t n_bytes = (size_t)s->batch * (size_t)s->n_heads * (size_t)s->seq_len * sizeof(float);

    return align_up(n_bytes, ALIGNMENT);
}

static char *scratch_base(const struct kernel_call *call)
{
    return (char *)(((uintptr_t)call->scratch + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void *workspace_of(const struct shape_plan *p, const struct kernel_call *call)
{
    return scratch_base(call) + (p->shape.grad ? 2 : 1) * row_bytes(&p->shape);
}

size_t cudnn_attention_scratch_bytes(struct cuda_kernels *cuda, const struct op_shape *op)
{
    struct err err = {};
    const struct shape_plan *p = plan_of(cuda, op, &err);

    if (!p)
        return 0;
    return (p->shape.grad ? 2 : 1) * row_bytes(&p->shape) + p->plan.workspace_bytes + ALIGNMENT;
}

/* ---- a call ------------------------------------------------------------------------------------
 */

enum { N_PACKS = 64 };

struct pack {
    void *pointers[ATTENTION_MAX_OPERANDS], *workspace;
    void *descriptor;
};

struct cudnn_attention {
    struct attention_library *library;
    struct shape_plan *plan;
    float scale, fill, window, one;
    int n_packs, next_pack;
    struct pack packs[N_PACKS];
};

int cudnn_attention_prepare(struct cuda_kernels *cuda, const struct kernel_call *call,
                            struct cudnn_attention **attention, struct err *err)
{
    struct err why_not = {};
    struct shape_plan *p = plan_of(cuda, &call->op, &why_not);
    struct attention_library *library = (struct attention_library *)cuda->attention;
    struct cudnn_attention *c;

    if (!p && library && library->choice == CHOICE_CUDNN)
        return err_set(err, ERR_DEVICE, "%s: LMTRAIN_ATTENTION is cudnn, but %s",
                       op_info(call->op.kind)->name, why_not.text);
    if (!p)
        return 0;
    c = (struct cudnn_attention *)calloc(1, sizeof *c);
    if (!c)
        return err_set(err, ERR_DEVICE, "out of host memory");
    c->library = library;
    c->plan = p;
    c->scale = (float)call->op.attributes.scale;
    c->fill = -CUDART_INF_F;
    c->window = (float)p->shape.window;
    c->one = 1.0f;
    *attention = c;
    return 1;
}

void cudnn_attention_release(struct cudnn_attention *attention)
{
    if (!attention)
        return;
    for (int i = 0; i < attention->n_packs; i++)
        attention->library->api.destroy_descriptor(attention->packs[i].descriptor);
    free(attention);
}

/* Column `head` of heads of two bytes an element. */
static void *head_of(const struct tensor *t, const struct attention_shape *s, int head)
{
    return (uint16_t *)t->data + (int64_t)head * s->head_dim;
}

static void *pointer_of(struct cudnn_attention *c, const struct kernel_call *call,
                        enum attention_role role)
{
    const struct attention_shape *s = &c->plan->shape;
    struct attention_operands o = operands_of(&call->op);
    const struct tensor *qkv = role < ATTENTION_OUT ? o.qkv : o.dqkv;

    switch (role) {
    case ATTENTION_Q:
    case ATTENTION_DQ:
        return head_of(qkv, s, 0);
    case ATTENTION_K:
    case ATTENTION_DK:
        return head_of(qkv, s, s->n_heads);
    case ATTENTION_V:
    case ATTENTION_DV:
        return head_of(qkv, s, s->n_heads + s->n_kv_heads);
    case ATTENTION_OUT:
        return o.out->data;
    case ATTENTION_DOUT:
        return o.dout->data;
    case ATTENTION_STATS:
        return scratch_base(call);
    case ATTENTION_SUMS:
        return scratch_base(call) + row_bytes(s);
    case ATTENTION_SCALE:
        return &c->scale;
    case ATTENTION_FILL:
        return &c->fill;
    case ATTENTION_WINDOW:
        return &c->window;
    case ATTENTION_ONE:
        return &c->one;
    }
    CHECK(!"a role");
}

/* The variant pack for where the call's operands lie; NULL and *err on failure. */
static void *pack_of(struct cudnn_attention *c, const struct kernel_call *call, struct err *err)
{
    const struct attention_graph *graph = &c->plan->graph;
    struct pack pack = {};
    int at = c->next_pack;

    pack.workspace = workspace_of(c->plan, call);
    for (int i = 0; i < graph->n_operands; i++)
        pack.pointers[i] = pointer_of(c, call, graph->roles[i]);
    for (int i = 0; i < c->n_packs; i++)
        if (c->packs[i].workspace == pack.workspace &&
            !memcmp(c->packs[i].pointers, pack.pointers, sizeof pack.pointers))
            return c->packs[i].descriptor;
    pack.descriptor = cudnn_variant_pack(&c->library->api, graph->uids, pack.pointers,
                                         graph->n_operands, pack.workspace, err);
    if (!pack.descriptor)
        return NULL;
    if (c->n_packs == N_PACKS)
        c->library->api.destroy_descriptor(c->packs[at].descriptor);
    else
        c->n_packs++;
    c->packs[at] = pack;
    c->next_pack = (at + 1) % N_PACKS;
    return pack.descriptor;
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
                     const struct attention_shape *s)
{
    struct attention_operands o = operands_of(&call->op);
    int64_t n_tiles = ceil_div(s->seq_len, TILE);
    struct cuda_shape shape = { dim3((unsigned)(s->batch * n_tiles),
                                     (unsigned)ceil_div(s->n_heads, TILE)),
                                dim3(N_THREADS), 0 };

    cuda_launch(&cuda->base, call, shape, exchange_kernel<TO_STATS>, (float *)scratch_base(call),
                cuda_rows<float>(o.lse), s->n_heads, s->seq_len, (int)n_tiles);
}

void cudnn_attention_run(struct cuda_kernels *cuda, const struct kernel_call *call,
                         struct cudnn_attention *attention)
{
    struct attention_library *library = attention->library;
    const struct shape_plan *p = attention->plan;
    struct err err = {};
    void *pack = pack_of(attention, call, &err);

    if (p->shape.grad)
        exchange<true>(cuda, call, &p->shape);
    if (!pack || cudnn_check(&library->api,
                             library->api.execute(library->handle, p->plan.descriptor, pack),
                             op_info(call->op.kind)->name, &err)) {
        if (!cuda->device->failure.code)
            cuda->device->failure = err;
        return;
    }
    if (!p->shape.grad)
        exchange<false>(cuda, call, &p->shape);
}
