/*
 * attention_library.cu - cuDNN as it is opened for attention: its plans by shape, and the memory of
 * calls
 *
 * A plan is made at the first question about a shape and kept until the backend goes; calls of
 * equal shapes share it.
 *
 * The deterministic gradient keeps dS, two bytes a query and key and head: gigabytes. So that its
 * workspace stays below 1 GiB a call is done in pieces, one after the other, by one plan for a
 * piece: some of the sequences or, of one sequence, some of the key-value heads with the heads that
 * read them. Where the smallest piece wants more it gets it, up to a sixteenth of the GPU's memory
 * (4 GiB of 80 GB: sequences of 16384): how much is free does not count, as layouts differ in that
 * and must not in bits. LMTRAIN_CUDNN_WORKSPACE_MIB sets both limits.
 */
#include "cuda/attention_library.cuh"

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
};

/* ---- the library -------------------------------------------------------------------------------
 */

static enum attention_choice choice_of_environment()
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

struct attention_library *attention_library_of(struct cuda_kernels *cuda)
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
    struct attention_library *library = attention_library_of(cuda);

    if (library && library->handle)
        snprintf(text, n_bytes, "attention cudnn %zu workspace %zu", library->version,
                 library->workspace_most >> 20);
    else
        snprintf(text, n_bytes, "attention own");
}

/* ---- shapes ------------------------------------------------------------------------------------
 */

struct attention_operands attention_operands_of(const struct op_shape *op)
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
static bool fits(const struct tensor *t)
{
    return t->rows == 0 ||
           (t->stride % 8 == 0 && (uintptr_t)t->data % 16 == 0 && t->rows * t->stride <= INT32_MAX);
}

/* NULL if the library may be asked, else why it is not. */
static const char *unfit(const struct cuda_kernels *cuda, const struct attention_library *library,
                         const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    struct attention_operands o = attention_operands_of(op);
    bool grad = op->kind == OP_ATTENTION_GRAD;
    int most = grad ? HEAD_DIM_MAX_GRAD : HEAD_DIM_MAX;
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
    struct attention_operands o = attention_operands_of(op);

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
static bool can_cut(const struct attention_shape *s, int64_t batch_pieces, int head_pieces)
{
    int64_t n_rows = (int64_t)s->n_heads / head_pieces * s->seq_len;

    return s->batch % batch_pieces == 0 && s->n_kv_heads % head_pieces == 0 &&
           (batch_pieces * head_pieces == 1 || s->batch / batch_pieces * n_rows % 4 == 0);
}

/* Cut into at least n pieces, as few as can be; returns false if that cannot be. */
static bool cut(struct shape_plan *p, int64_t n)
{
    const struct attention_shape *s = &p->shape;

    for (p->batch_pieces = 1; p->batch_pieces <= s->batch; p->batch_pieces++)
        if (p->batch_pieces >= n && can_cut(s, p->batch_pieces, 1)) {
            p->head_pieces = 1;
            return true;
        }
    p->batch_pieces = (int)s->batch;
    for (p->head_pieces = 1; p->head_pieces <= s->n_kv_heads; p->head_pieces++)
        if (s->batch * p->head_pieces >= n && can_cut(s, s->batch, p->head_pieces))
            return true;
    return false;
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
 * The fewest pieces, at least n, whose workspace is within the limit. Returns false where there are
 * none such; else p is usable, or p->why_not says why not.
 */
static bool find_pieces(struct attention_library *library, struct shape_plan *p, size_t limit,
                        int64_t n)
{
    while (cut(p, n)) {
        if (plan_piece(library, p))
            return true;
        p->usable = p->plan.workspace_bytes <= limit;
        if (p->usable)
            return true;
        cudnn_graph_release(&p->graph.graph);
        n = p->batch_pieces * (int64_t)p->head_pieces;
        n = limit ? n * ceil_div((int64_t)p->plan.workspace_bytes, (int64_t)limit) : INT64_MAX;
    }
    return false;
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

struct shape_plan *attention_plan_of(struct cuda_kernels *cuda, const struct op_shape *op,
                                     struct err *err)
{
    struct attention_library *library = attention_library_of(cuda);
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
 * cuDNN's log sums of exp, the sums of dout out, its workspace: each aligned to 256. It is one
 * block for all calls, which run one after the other, and the vendor's, not of any plan: what cuDNN
 * wants is known only where there is a GPU.
 */

size_t attention_row_bytes(const struct attention_shape *s)
{
    size_t n_bytes = (size_t)s->batch * (size_t)s->n_heads * (size_t)s->seq_len * sizeof(float);

    return align_up(n_bytes, ATTENTION_ALIGNMENT);
}

size_t attention_memory_bytes(const struct shape_plan *p)
{
    return (p->shape.grad ? 2 : 1) * attention_row_bytes(&p->shape) + p->plan.workspace_bytes;
}

struct memory_block *attention_make_room(struct attention_library *library,
                                         struct cuda_kernels *cuda, size_t n_bytes, struct err *err)
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
