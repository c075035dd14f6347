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
    int n_heads, n_kv_heads, head_dim, value_dim;
    int seq_len, window;
    int64_t batch; /* sequences */
    /* Of rows, in elements; grad: also of dout and of the gradients of q, k and v. */
    int64_t q_stride, k_stride, v_stride, out_stride;
    int64_t dout_stride, dq_stride, dk_stride, dv_stride;
};

enum attention_role {
    /* Memory of the call. */
    GRAPH_Q,
    GRAPH_K,
    GRAPH_V,
    GRAPH_OUT,
    GRAPH_DOUT,
    GRAPH_DQ,
    GRAPH_DK,
    GRAPH_DV,
    /* Scratch, [batch, head, row] fp32: the log of sums of exp; grad: the rows' sums of dout
     * out. */
    GRAPH_STATS,
    GRAPH_SUMS,
    /* Numbers. */
    GRAPH_SCALE,
    GRAPH_FILL,   /* of scores that are not seen: minus infinity */
    GRAPH_WINDOW, /* keys that a query sees */
    GRAPH_ONE,
};

enum { ATTENTION_MAX_OPERANDS = 16 };

struct attention_graph {
    struct cudnn_graph graph;
    int n_operands;
    int64_t uids[ATTENTION_MAX_OPERANDS];
    enum attention_role roles[ATTENTION_MAX_OPERANDS];
};

/* Columns of a head of an operand in memory: those of values or of keys. */
static inline int attention_head_columns(const struct attention_shape *s, enum attention_role role)
{
    return role == GRAPH_V || role == GRAPH_OUT || role == GRAPH_DOUT || role == GRAPH_DV
               ? s->value_dim
               : s->head_dim;
}

/* Add the shape's operations to a graph that was initialised. graph.failed, graph.err: as cudnn.cuh
 * says. */
void attention_graph_build(struct attention_graph *graph, const struct attention_shape *shape);

#endif
