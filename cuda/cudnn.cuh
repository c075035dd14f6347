/*
 * cudnn.cuh - graphs of cuDNN 9's backend API: tensors, operations, the plan that runs them
 *
 * What is needed of cuDNN is declared here, so that neither its headers nor itself need be there
 * where lmtrain is built: its numbers are part of its binary interface (test/cuda/cudnn_plans.cu
 * compares them with its headers, and asks it for plans without a GPU).
 *
 * A graph is built in one go: the first failure is kept, and what comes after does nothing. Then
 * cudnn_graph_plan asks for engines, in the order in which cuDNN recommends them, and takes the
 * first deterministic one that can be had. That depends on shapes, the device's properties and
 * cuDNN's version alone, never on a measurement.
 */
#ifndef CUDA_CUDNN_CUH
#define CUDA_CUDNN_CUH

#include "cuda/cuda.cuh"

/* name, number: cuDNN's own with CUDNN_ for DNN_. */
#define CUDNN_NUMBERS(X) \
    X(STATUS_SUCCESS, 0) \
    X(DATA_FLOAT, 0) \
    X(DATA_HALF, 2) \
    X(DATA_INT32, 4) \
    X(DATA_BFLOAT16, 9) \
    X(DATA_BOOLEAN, 11) \
    X(REDUCE_TENSOR_ADD, 0) \
    X(REDUCE_TENSOR_MAX, 3) \
    X(POINTWISE_ADD, 0) \
    X(POINTWISE_MUL, 1) \
    X(POINTWISE_DIV, 6) \
    X(POINTWISE_SUB, 9) \
    X(POINTWISE_EXP, 13) \
    X(POINTWISE_LOG, 15) \
    X(POINTWISE_CMP_GT, 302) \
    X(POINTWISE_CMP_GE, 303) \
    X(POINTWISE_GEN_INDEX, 501) \
    X(POINTWISE_BINARY_SELECT, 601) \
    X(TYPE_HANDLE, 0) \
    X(TYPE_DATA_TYPE, 1) \
    X(TYPE_BOOLEAN, 2) \
    X(TYPE_INT64, 3) \
    X(TYPE_VOID_PTR, 6) \
    X(TYPE_HEUR_MODE, 8) \
    X(TYPE_KNOB_TYPE, 9) \
    X(TYPE_NUMERICAL_NOTE, 11) \
    X(TYPE_POINTWISE_MODE, 14) \
    X(TYPE_BACKEND_DESCRIPTOR, 15) \
    X(TYPE_REDUCTION_OPERATOR_TYPE, 18) \
    X(TYPE_INT32, 23) \
    X(TYPE_CHAR, 24) \
    X(HEUR_MODE_FALLBACK, 2) \
    X(HEUR_MODE_A, 3) \
    X(NUMERICAL_NOTE_NONDETERMINISTIC, 4) \
    X(NUMERICAL_NOTE_TYPE_COUNT, 10) \
    X(BACKEND_POINTWISE_DESCRIPTOR, 0) \
    X(BACKEND_ENGINE_DESCRIPTOR, 2) \
    X(BACKEND_ENGINECFG_DESCRIPTOR, 3) \
    X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4) \
    X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5) \
    X(BACKEND_KNOB_CHOICE_DESCRIPTOR, 7) \
    X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13) \
    X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15) \
    X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16) \
    X(BACKEND_TENSOR_DESCRIPTOR, 17) \
    X(BACKEND_MATMUL_DESCRIPTOR, 18) \
    X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19) \
    X(BACKEND_REDUCTION_DESCRIPTOR, 21) \
    X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22) \
    X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31) \
    X(BACKEND_DEVICEPROP_DESCRIPTOR, 38) \
    X(ATTR_POINTWISE_MODE, 0) \
    X(ATTR_POINTWISE_MATH_PREC, 1) \
    X(ATTR_POINTWISE_AXIS, 9) \
    X(ATTR_ENGINEHEUR_MODE, 200) \
    X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201) \
    X(ATTR_ENGINEHEUR_RESULTS, 202) \
    X(ATTR_ENGINEHEUR_DEVICEPROP, 204) \
    X(ATTR_ENGINECFG_ENGINE, 300) \
    X(ATTR_ENGINECFG_KNOB_CHOICES, 302) \
    X(ATTR_EXECUTION_PLAN_HANDLE, 400) \
    X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401) \
    X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402) \
    X(ATTR_EXECUTION_PLAN_DEVICEPROP, 407) \
    X(ATTR_KNOB_CHOICE_KNOB_TYPE, 600) \
    X(ATTR_KNOB_CHOICE_KNOB_VALUE, 601) \
    X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750) \
    X(ATTR_OPERATION_POINTWISE_XDESC, 751) \
    X(ATTR_OPERATION_POINTWISE_BDESC, 752) \
    X(ATTR_OPERATION_POINTWISE_YDESC, 753) \
    X(ATTR_OPERATION_POINTWISE_TDESC, 758) \
    X(ATTR_OPERATIONGRAPH_HANDLE, 800) \
    X(ATTR_OPERATIONGRAPH_OPS, 801) \
    X(ATTR_TENSOR_BYTE_ALIGNMENT, 900) \
    X(ATTR_TENSOR_DATA_TYPE, 901) \
    X(ATTR_TENSOR_DIMENSIONS, 902) \
    X(ATTR_TENSOR_STRIDES, 903) \
    X(ATTR_TENSOR_UNIQUE_ID, 906) \
    X(ATTR_TENSOR_IS_VIRTUAL, 907) \
    X(ATTR_TENSOR_IS_BY_VALUE, 908) \
    X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000) \
    X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001) \
    X(ATTR_VARIANT_PACK_WORKSPACE, 1003) \
    X(ATTR_ENGINE_GLOBAL_INDEX, 1301) \
    X(ATTR_ENGINE_NUMERICAL_NOTE, 1303) \
    X(ATTR_MATMUL_COMP_TYPE, 1500) \
    X(ATTR_OPERATION_MATMUL_ADESC, 1520) \
    X(ATTR_OPERATION_MATMUL_BDESC, 1521) \
    X(ATTR_OPERATION_MATMUL_CDESC, 1522) \
    X(ATTR_OPERATION_MATMUL_DESC, 1523) \
    X(ATTR_REDUCTION_OPERATOR, 1600) \
    X(ATTR_REDUCTION_COMP_TYPE, 1601) \
    X(ATTR_OPERATION_REDUCTION_XDESC, 1610) \
    X(ATTR_OPERATION_REDUCTION_YDESC, 1611) \
    X(ATTR_OPERATION_REDUCTION_DESC, 1612) \
    X(ATTR_OPERATION_RESHAPE_XDESC, 2200) \
    X(ATTR_OPERATION_RESHAPE_YDESC, 2201) \
    X(ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)

enum cudnn_number {
#define CUDNN_NUMBER(name, number) DNN_##name = number,
    CUDNN_NUMBERS(CUDNN_NUMBER)
#undef CUDNN_NUMBER
};

/* The library's functions, with its enums as int and its opaque pointers as void *. */
struct cudnn_api {
    size_t (*get_version)(void);
    const char *(*get_error_string)(int status);
    void (*get_last_error_string)(char *text, size_t n_bytes);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*create_descriptor)(int type, void **descriptor);
    int (*destroy_descriptor)(void *descriptor);
    int (*finalize)(void *descriptor);
    int (*set_attribute)(void *descriptor, int name, int type, int64_t n, const void *values);
    int (*get_attribute)(void *descriptor, int name, int type, int64_t n_wanted, int64_t *n,
                         void *values);
    int (*execute)(void *handle, void *plan, void *variant_pack);
};

/*
 * Open libcudnn.so.9 and find its functions. Returns 0, or -1 and ERR_DEVICE. The library is not
 * asked for a handle: cudnn_api_create does, which needs a GPU.
 */
int cudnn_api_open(struct cudnn_api *api, struct err *err);

/* 0, or -1 with "what: status: cuDNN's own words": ERR_FAILED where every rank is told the same,
 * ERR_DEVICE where it may be one alone. */
int cudnn_check(const struct cudnn_api *api, int status, const char *what, struct err *err);

/* ---- building ----------------------------------------------------------------------------------
 *
 * Tensors have four dimensions: batch, head, row, column.
 */

struct cudnn_dims {
    int64_t at[4];
};

enum cudnn_place {
    CUDNN_IN_MEMORY, /* device memory, told by each run */
    CUDNN_VIRTUAL,   /* never stored */
    CUDNN_BY_VALUE,  /* one number, in host memory, told by each run */
};

/* A graph's tensor: its unique id, which is its number from 1 on. 0: building has failed. */
typedef int64_t cudnn_tensor;

enum { CUDNN_MAX_TENSORS = 64, CUDNN_MAX_OPERATIONS = 40, CUDNN_MAX_DESCRIPTORS = 512 };

struct cudnn_graph {
    const struct cudnn_api *api;
    void *handle; /* for this GPU; or NULL, and */
    void *device; /* a device's properties instead */
    struct err err;
    int failed;
    void *tensors[CUDNN_MAX_TENSORS + 1]; /* by unique id */
    struct cudnn_dims dims[CUDNN_MAX_TENSORS + 1], strides[CUDNN_MAX_TENSORS + 1];
    int64_t n_tensors;
    void *operations[CUDNN_MAX_OPERATIONS];
    int n_operations;
    void *descriptors[CUDNN_MAX_DESCRIPTORS]; /* all that were made, to be destroyed */
    int n_descriptors;
};

/* Empty. One of handle and device is NULL; both are borrowed. */
void cudnn_graph_init(struct cudnn_graph *graph, const struct cudnn_api *api, void *handle,
                      void *device);
/* Also its plan. */
void cudnn_graph_release(struct cudnn_graph *graph);

struct cudnn_dims cudnn_packed(struct cudnn_dims dims);
cudnn_tensor cudnn_add_tensor(struct cudnn_graph *graph, enum cudnn_place place, int data_type,
                              struct cudnn_dims dims, struct cudnn_dims strides);
/* A dense fp32 tensor that is never stored. */
cudnn_tensor cudnn_add_virtual(struct cudnn_graph *graph, struct cudnn_dims dims);
cudnn_tensor cudnn_add_float(struct cudnn_graph *graph); /* by value */

struct cudnn_pointwise {
    int mode, data_type;             /* of the arithmetic */
    int axis;                        /* GEN_INDEX's */
    cudnn_tensor x, b, condition, y; /* 0: not given */
};

void cudnn_add_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *operation);
/* c = a b, in fp32. */
void cudnn_add_matmul(struct cudnn_graph *graph, cudnn_tensor a, cudnn_tensor b, cudnn_tensor c);
/* Over the dimensions of which y has fewer, in fp32. */
void cudnn_add_reduction(struct cudnn_graph *graph, int mode, cudnn_tensor x, cudnn_tensor y);
void cudnn_add_reshape(struct cudnn_graph *graph, cudnn_tensor x, cudnn_tensor y);

/* y = x `mode` b in fp32, as a new virtual tensor like x; b may be 0. */
cudnn_tensor cudnn_pointwise_of(struct cudnn_graph *graph, int mode, cudnn_tensor x,
                                cudnn_tensor b);

/* ---- the plan ---------------------------------------------------------------------------------
 */

struct cudnn_plan {
    void *descriptor; /* the graph's memory */
    size_t workspace_bytes;
    char engine[160]; /* "engine 5 knobs 24=31 14=2": what decides the bits */
};

/* Returns 0, or -1 and ERR_DEVICE where no engine does the graph deterministically. */
int cudnn_graph_plan(struct cudnn_graph *graph, struct cudnn_plan *plan, struct err *err);

/*
 * A variant pack: where n tensors are. Destroyed with api->destroy_descriptor. NULL, and
 * ERR_DEVICE, on failure.
 */
void *cudnn_variant_pack(const struct cudnn_api *api, const int64_t *uids, void *const *pointers,
                         int n, void *workspace, struct err *err);

#endif
