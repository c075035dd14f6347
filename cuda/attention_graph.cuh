/*
 * attention_graph.cuh - attention and its gradient as graphs of cuDNN's operations
 *
 * cuDNN recognises them by their pattern, and runs each as one flash-attention kernel (and a few
 * small ones beside it): nothing of [queries x keys] is stored. So operations, their order and
 * their virtual tensors' shapes are what its engines look for, and no more is free than is said
 * here. Batch and row are a token's sequence and place in it; heads are columns of one row.
 */
#ifndef CUDA_ATTENTION_GRAPH_CUH
#define CUDA_ATTENTION_GRAPH_CUH

#include "cuda/cudnn.cuh"

/* Equal shapes have equal bytes: it is compared with memcmp, so begin with all of it zero. */
struct attention_shape {
    int grad;      /* attention_grad */
    int data_type; /* DNN_DATA_BFLOAT16 or DNN_DATA_HALF */
    int n_heads, n_kv_heads, head_dim;
    int seq_len, window;
    int unused;
    int64_t batch; /* sequences */
    /* Of rows, in elements; grad: also of dout and dqkv. */
    int64_t qkv_stride, out_stride, dout_stride, dqkv_stride;
};

enum attention_role {
    /* Memory of the call. */
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_DOUT,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    /* Scratch, [batch, head, row] fp32: the log of sums of exp; grad: the rows' sums of dout out. */
    ATTENTION_STATS,
    ATTENTION_SUMS,
    /* Numbers. */
    ATTENTION_SCALE,
    ATTENTION_FILL,   /* of scores that are not seen: minus infinity */
    ATTENTION_WINDOW, /* keys that a query sees */
    ATTENTION_ONE,
};

enum { ATTENTION_MAX_OPERANDS = 16 };

struct attention_graph {
    struct cudnn_graph graph;
    int n_operands;
    int64_t uids[ATTENTION_MAX_OPERANDS];
    enum attention_role roles[ATTENTION_MAX_OPERANDS];
};

/* Add the shape's operations to a graph that was initialised. graph.failed, graph.err: as cudnn.cuh
 * says. */
void attention_graph_build(struct attention_graph *graph, const struct attention_shape *shape);

#endif
