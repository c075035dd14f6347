/*
 * cudnn.cu - see cudnn.cuh
 *
 * Host code alone. Every object of the backend API is a descriptor: created, given attributes,
 * finalized, which is where cuDNN checks it. A graph keeps all that it made until it is released:
 * a plan needs some of them, and they are small.
 */
#include "cuda/cudnn.cuh"

#include <stdio.h>

#include "cuda/library.cuh"
#ifdef LMTRAIN_EMULATE
#include "cuda/emulate/cudnn.h"
#endif

int cudnn_api_open(struct cudnn_api *api, struct err *err)
{
    void *library = NULL;

    if (cuda_library_open(&library, "libcudnn.so.9", err))
        return -1;
    if (!CUDA_SYMBOL(library, api->get_version, cudnnGetVersion) ||
        !CUDA_SYMBOL(library, api->get_error_string, cudnnGetErrorString) ||
        !CUDA_SYMBOL(library, api->get_last_error_string, cudnnGetLastErrorString) ||
        !CUDA_SYMBOL(library, api->create, cudnnCreate) ||
        !CUDA_SYMBOL(library, api->destroy, cudnnDestroy) ||
        !CUDA_SYMBOL(library, api->set_stream, cudnnSetStream) ||
        !CUDA_SYMBOL(library, api->create_descriptor, cudnnBackendCreateDescriptor) ||
        !CUDA_SYMBOL(library, api->destroy_descriptor, cudnnBackendDestroyDescriptor) ||
        !CUDA_SYMBOL(library, api->finalize, cudnnBackendFinalize) ||
        !CUDA_SYMBOL(library, api->set_attribute, cudnnBackendSetAttribute) ||
        !CUDA_SYMBOL(library, api->get_attribute, cudnnBackendGetAttribute) ||
        !CUDA_SYMBOL(library, api->execute, cudnnBackendExecute))
        return err_set(err, ERR_DEVICE, "libcudnn.so.9 lacks functions of the backend API");
    return 0;
}

/* Statuses from here on (internal errors, memory, execution) may be one rank's alone; those below
 * (bad parameters, not supported) are the same on all. */
enum { FIRST_PASSING = 4000 };

int cudnn_check(const struct cudnn_api *api, int status, const char *what, struct err *err)
{
    char why[512] = "";

    if (status == DNN_STATUS_SUCCESS)
        return 0;
    api->get_last_error_string(why, sizeof why);
    return err_set(err, status >= FIRST_PASSING ? ERR_DEVICE : ERR_FAILED, "cudnn: %s: %s%s%s",
                   what, api->get_error_string(status), *why ? ": " : "", why);
}

/* ---- descriptors -------------------------------------------------------------------------------
 */

void cudnn_graph_init(struct cudnn_graph *graph, const struct cudnn_api *api, void *handle,
                      void *device)
{
    memset(graph, 0, sizeof *graph);
    graph->api = api;
    graph->handle = handle;
    graph->device = device;
}

void cudnn_graph_release(struct cudnn_graph *graph)
{
    for (int i = graph->n_descriptors - 1; i >= 0; i--)
        graph->api->destroy_descriptor(graph->descriptors[i]);
    graph->n_descriptors = 0;
}

static void check(struct cudnn_graph *graph, int status, const char *what)
{
    if (!graph->failed)
        graph->failed = cudnn_check(graph->api, status, what, &graph->err) != 0;
}

static void *create(struct cudnn_graph *graph, int type, const char *what)
{
    void *descriptor = NULL;

    if (graph->failed)
        return NULL;
    CHECK(graph->n_descriptors < CUDNN_MAX_DESCRIPTORS);
    check(graph, graph->api->create_descriptor(type, &descriptor), what);
    if (graph->failed)
        return NULL;
    graph->descriptors[graph->n_descriptors++] = descriptor;
    return descriptor;
}

/* Destroy what was made since there were n of them. */
static void forget(struct cudnn_graph *graph, int n)
{
    while (graph->n_descriptors > n)
        graph->api->destroy_descriptor(graph->descriptors[--graph->n_descriptors]);
}

static void set(struct cudnn_graph *graph, void *descriptor, int name, int type, int64_t n,
                const void *values, const char *what)
{
    if (!graph->failed)
        check(graph, graph->api->set_attribute(descriptor, name, type, n, values), what);
}

static void set_descriptor(struct cudnn_graph *graph, void *descriptor, int name, void *value,
                           const char *what)
{
    set(graph, descriptor, name, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

/* Enums of the API are int. */
static void set_enum(struct cudnn_graph *graph, void *descriptor, int name, int type, int value,
                     const char *what)
{
    set(graph, descriptor, name, type, 1, &value, what);
}

static void finalize(struct cudnn_graph *graph, void *descriptor, const char *what)
{
    if (!graph->failed)
        check(graph, graph->api->finalize(descriptor), what);
}

/* ---- tensors -----------------------------------------------------------------------------------
 */

struct cudnn_dims cudnn_packed(struct cudnn_dims dims)
{
    const int64_t *n = dims.at;

    return { { n[1] * n[2] * n[3], n[2] * n[3], n[3], 1 } };
}

cudnn_tensor cudnn_add_tensor(struct cudnn_graph *graph, enum cudnn_place place, int data_type,
                              struct cudnn_dims dims, struct cudnn_dims strides)
{
    void *tensor = create(graph, DNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    int64_t alignment = 16, uid = graph->n_tensors + 1;
    bool yes = true;

    if (!tensor)
        return 0;
    CHECK(uid <= CUDNN_MAX_TENSORS);
    set_enum(graph, tensor, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, data_type,
             "tensor's data type");
    set(graph, tensor, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, dims.at, "tensor's sizes");
    set(graph, tensor, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, strides.at, "tensor's strides");
    set(graph, tensor, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &uid, "tensor's id");
    set(graph, tensor, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &alignment,
        "tensor's alignment");
    if (place != CUDNN_IN_MEMORY)
        set(graph, tensor,
            place == CUDNN_VIRTUAL ? DNN_ATTR_TENSOR_IS_VIRTUAL : DNN_ATTR_TENSOR_IS_BY_VALUE,
            DNN_TYPE_BOOLEAN, 1, &yes, "tensor's place");
    finalize(graph, tensor, "tensor");
    graph->n_tensors = uid;
    graph->tensors[uid] = tensor;
    graph->dims[uid] = dims;
    graph->strides[uid] = strides;
    return graph->failed ? 0 : uid;
}

cudnn_tensor cudnn_add_virtual(struct cudnn_graph *graph, struct cudnn_dims dims)
{
    return cudnn_add_tensor(graph, CUDNN_VIRTUAL, DNN_DATA_FLOAT, dims, cudnn_packed(dims));
}

cudnn_tensor cudnn_add_float(struct cudnn_graph *graph)
{
    struct cudnn_dims one = { { 1, 1, 1, 1 } };

    return cudnn_add_tensor(graph, CUDNN_BY_VALUE, DNN_DATA_FLOAT, one, one);
}

/* ---- operations --------------------------------------------------------------------------------
 */

static void add_operation(struct cudnn_graph *graph, void *operation, const char *what)
{
    finalize(graph, operation, what);
    if (graph->failed)
        return;
    CHECK(graph->n_operations < CUDNN_MAX_OPERATIONS);
    graph->operations[graph->n_operations++] = operation;
}

void cudnn_add_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *p)
{
    const char *what = "pointwise";
    void *mode = create(graph, DNN_BACKEND_POINTWISE_DESCRIPTOR, what), *operation;
    int64_t axis = p->axis;

    set_enum(graph, mode, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, p->mode, what);
    set_enum(graph, mode, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, p->data_type, what);
    if (p->mode == DNN_POINTWISE_GEN_INDEX)
        set(graph, mode, DNN_ATTR_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &axis, what);
    finalize(graph, mode, what);
    operation = create(graph, DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode, what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_POINTWISE_XDESC, graph->tensors[p->x],
                   what);
    if (p->b)
        set_descriptor(graph, operation, DNN_ATTR_OPERATION_POINTWISE_BDESC, graph->tensors[p->b],
                       what);
    if (p->condition)
        set_descriptor(graph, operation, DNN_ATTR_OPERATION_POINTWISE_TDESC,
                       graph->tensors[p->condition], what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_POINTWISE_YDESC, graph->tensors[p->y],
                   what);
    add_operation(graph, operation, what);
}

cudnn_tensor cudnn_pointwise_of(struct cudnn_graph *graph, int mode, cudnn_tensor x, cudnn_tensor b)
{
    struct cudnn_pointwise p = {};

    p.mode = mode;
    p.data_type = DNN_DATA_FLOAT;
    p.x = x;
    p.b = b;
    p.y = cudnn_add_virtual(graph, graph->dims[x]);
    cudnn_add_pointwise(graph, &p);
    return p.y;
}

void cudnn_add_matmul(struct cudnn_graph *graph, cudnn_tensor a, cudnn_tensor b, cudnn_tensor c)
{
    const char *what = "matmul";
    void *matmul = create(graph, DNN_BACKEND_MATMUL_DESCRIPTOR, what), *operation;

    set_enum(graph, matmul, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT, what);
    finalize(graph, matmul, what);
    operation = create(graph, DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_MATMUL_ADESC, graph->tensors[a], what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_MATMUL_BDESC, graph->tensors[b], what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_MATMUL_CDESC, graph->tensors[c], what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_MATMUL_DESC, matmul, what);
    add_operation(graph, operation, what);
}

void cudnn_add_reduction(struct cudnn_graph *graph, int mode, cudnn_tensor x, cudnn_tensor y)
{
    const char *what = "reduction";
    void *reduction = create(graph, DNN_BACKEND_REDUCTION_DESCRIPTOR, what), *operation;

    set_enum(graph, reduction, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT,
             what);
    set_enum(graph, reduction, DNN_ATTR_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR_TYPE, mode,
             what);
    finalize(graph, reduction, what);
    operation = create(graph, DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_REDUCTION_DESC, reduction, what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_REDUCTION_XDESC, graph->tensors[x], what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_REDUCTION_YDESC, graph->tensors[y], what);
    add_operation(graph, operation, what);
}

void cudnn_add_reshape(struct cudnn_graph *graph, cudnn_tensor x, cudnn_tensor y)
{
    const char *what = "reshape";
    void *operation = create(graph, DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);

    set_descriptor(graph, operation, DNN_ATTR_OPERATION_RESHAPE_XDESC, graph->tensors[x], what);
    set_descriptor(graph, operation, DNN_ATTR_OPERATION_RESHAPE_YDESC, graph->tensors[y], what);
    add_operation(graph, operation, what);
}

/* ---- the plan ----------------------------------------------------------------------------------
 */

enum { N_CONFIGS = 16, N_KNOBS = 64 };

static void *operation_graph(struct cudnn_graph *graph)
{
    const char *what = "operation graph";
    void *operations = create(graph, DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);

    set(graph, operations, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR,
        graph->n_operations, graph->operations, what);
    if (graph->handle)
        set(graph, operations, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &graph->handle,
            what);
    finalize(graph, operations, what);
    return operations;
}

/* What cuDNN recommends in this mode, the best first; returns how many. */
static int recommended(struct cudnn_graph *graph, void *operations, int mode,
                       void *configs[N_CONFIGS])
{
    const char *what = "heuristics";
    void *heuristics = create(graph, DNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    int64_t n = 0;

    set_descriptor(graph, heuristics, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations, what);
    set_enum(graph, heuristics, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, mode, what);
    if (graph->device)
        set_descriptor(graph, heuristics, DNN_ATTR_ENGINEHEUR_DEVICEPROP, graph->device, what);
    finalize(graph, heuristics, what);
    for (int i = 0; i < N_CONFIGS; i++)
        configs[i] = create(graph, DNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    if (!graph->failed)
        check(graph,
              graph->api->get_attribute(heuristics, DNN_ATTR_ENGINEHEUR_RESULTS,
                                        DNN_TYPE_BACKEND_DESCRIPTOR, N_CONFIGS, &n, configs),
              what);
    return graph->failed ? 0 : (int)min_i64(n, N_CONFIGS);
}

/* Whether its sums have one order; and where an engine's number goes. */
static int is_deterministic(struct cudnn_graph *graph, void *config, int64_t *number)
{
    void *engine = create(graph, DNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
    int notes[DNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;

    if (graph->failed ||
        graph->api->get_attribute(config, DNN_ATTR_ENGINECFG_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                  &n, &engine) ||
        graph->api->get_attribute(engine, DNN_ATTR_ENGINE_GLOBAL_INDEX, DNN_TYPE_INT64, 1, &n,
                                  number) ||
        graph->api->get_attribute(engine, DNN_ATTR_ENGINE_NUMERICAL_NOTE, DNN_TYPE_NUMERICAL_NOTE,
                                  DNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes))
        return 0;
    for (int i = 0; i < n && i < DNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (notes[i] == DNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return 0;
    return 1;
}

/* "engine 5 knobs 24=31 14=2" */
static void describe(struct cudnn_graph *graph, void *config, int64_t number, char *text,
                     size_t n_bytes)
{
    void *knobs[N_KNOBS];
    int64_t n = 0;
    int length = snprintf(text, n_bytes, "engine %lld knobs", (long long)number);

    for (int i = 0; i < N_KNOBS; i++)
        knobs[i] = create(graph, DNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob");
    if (graph->failed || graph->api->get_attribute(config, DNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                   DNN_TYPE_BACKEND_DESCRIPTOR, N_KNOBS, &n, knobs))
        return;
    for (int i = 0; i < n && i < N_KNOBS; i++) {
        int64_t one = 0, value = 0;
        int type = 0;

        graph->api->get_attribute(knobs[i], DNN_ATTR_KNOB_CHOICE_KNOB_TYPE, DNN_TYPE_KNOB_TYPE, 1,
                                  &one, &type);
        graph->api->get_attribute(knobs[i], DNN_ATTR_KNOB_CHOICE_KNOB_VALUE, DNN_TYPE_INT64, 1,
                                  &one, &value);
        if (length < (int)n_bytes)
            length += snprintf(text + length, n_bytes - (size_t)length, " %d=%lld", type,
                               (long long)value);
    }
}

/* Try for a plan by this configuration: 1, or 0 and the graph's failure is why not. */
static int plan_by(struct cudnn_graph *graph, void *config, struct cudnn_plan *plan)
{
    const char *what = "plan";
    void *descriptor = create(graph, DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what);
    int64_t n = 0, workspace = 0;

    if (graph->handle)
        set(graph, descriptor, DNN_ATTR_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &graph->handle,
            what);
    set_descriptor(graph, descriptor, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, what);
    if (graph->device)
        set_descriptor(graph, descriptor, DNN_ATTR_EXECUTION_PLAN_DEVICEPROP, graph->device, what);
    finalize(graph, descriptor, what);
    if (!graph->failed)
        check(graph,
              graph->api->get_attribute(descriptor, DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        DNN_TYPE_INT64, 1, &n, &workspace),
              what);
    plan->descriptor = descriptor;
    plan->workspace_bytes = (size_t)workspace;
    return !graph->failed;
}

/* The same of one mode's recommendations. */
static int plan_of_mode(struct cudnn_graph *graph, void *operations, int mode,
                        struct cudnn_plan *plan)
{
    void *configs[N_CONFIGS];
    int n = recommended(graph, operations, mode, configs);

    for (int i = 0; i < n; i++) {
        int n_descriptors = graph->n_descriptors;
        int64_t number = -1;

        graph->failed = 0;
        if (is_deterministic(graph, configs[i], &number) && plan_by(graph, configs[i], plan)) {
            describe(graph, configs[i], number, plan->engine, sizeof plan->engine);
            return 1;
        }
        forget(graph, n_descriptors);
    }
    return 0;
}

int cudnn_graph_plan(struct cudnn_graph *graph, struct cudnn_plan *plan, struct err *err)
{
    static const int modes[] = { DNN_HEUR_MODE_A, DNN_HEUR_MODE_FALLBACK };
    void *operations = operation_graph(graph);

    if (graph->failed) {
        *err = graph->err;
        return -1;
    }
    for (int mode : modes) {
        int n_descriptors = graph->n_descriptors;

        graph->failed = 0;
        if (plan_of_mode(graph, operations, mode, plan))
            return 0;
        forget(graph, n_descriptors);
    }
    if (graph->failed)
        *err = graph->err;
    else
        err_set(err, ERR_DEVICE, "cudnn: there is no deterministic engine for this graph");
    return -1;
}

void *cudnn_variant_pack(const struct cudnn_api *api, const int64_t *uids, void *const *pointers,
                         int n, void *workspace, struct err *err)
{
    const char *what = "variant pack";
    void *pack = NULL;

    if (cudnn_check(api, api->create_descriptor(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), what,
                    err))
        return NULL;
    if (cudnn_check(
            api,
            api->set_attribute(pack, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, n, uids),
            what, err) ||
        cudnn_check(api,
                    api->set_attribute(pack, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR,
                                       n, pointers),
                    what, err) ||
        cudnn_check(api,
                    api->set_attribute(pack, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1,
                                       &workspace),
                    what, err) ||
        cudnn_check(api, api->finalize(pack), what, err)) {
        api->destroy_descriptor(pack);
        return NULL;
    }
    return pack;
}
