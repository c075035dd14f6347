/*
 * attention_library.cuh - what calls of cuDNN's attention need of the library: plans by shape,
 * memory
 *
 * One struct attention_library an instance of the backend; it lives until cudnn_attention_close.
 */
#ifndef CUDA_ATTENTION_LIBRARY_CUH
#define CUDA_ATTENTION_LIBRARY_CUH

#include "cuda/attention.cuh"
#include "cuda/attention_graph.cuh"

enum { ATTENTION_ALIGNMENT = 256 };

enum attention_choice { CHOICE_AUTO, CHOICE_OWN, CHOICE_CUDNN };

struct shape_plan {
    struct shape_plan *next;
    struct attention_shape shape; /* a call's */
    struct attention_shape piece; /* the plan's */
    int batch_pieces, head_pieces;
    struct attention_graph graph;
    struct cudnn_plan plan;
    bool usable;
    bool has_run; /* so that its code is loaded */
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
    enum attention_choice choice;
    struct err why_not;                      /* no handle */
    size_t workspace_wanted, workspace_most; /* limits: of a piece, of the smallest piece */
    struct shape_plan *plans;
    struct memory_block *blocks;
};

/* Opened at the first call. NULL: there is no memory. */
struct attention_library *attention_library_of(struct cuda_kernels *cuda);

/* An op's operands by their role. */
struct attention_operands {
    const struct tensor *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv, *first, *last;
};

struct attention_operands attention_operands_of(const struct op_shape *op);

/* The plan for the op; NULL and *err if cuDNN is not to do it. */
struct shape_plan *attention_plan_of(struct cuda_kernels *cuda, const struct op_shape *op,
                                     struct err *err);

/* Of one number a row and head; of a call in all: those numbers, of a gradient twice, and the
 * workspace. */
size_t attention_row_bytes(const struct attention_shape *s);
size_t attention_memory_bytes(const struct shape_plan *p);

/*
 * A block of at least so many bytes, for a call that is prepared now; NULL and *err on failure. A
 * call that was given a smaller one keeps it; one that no call uses any more makes way. All calls
 * of a program are prepared once before any of them is to stay (kernels_prepare_early): those that
 * do find the largest block there.
 */
struct memory_block *attention_make_room(struct attention_library *library,
                                         struct cuda_kernels *cuda, size_t n_bytes,
                                         struct err *err);

#endif
