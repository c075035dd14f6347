/*
 * gpu_sizes.h - the memory that the CUDA kernels want beside their operands
 *
 * Plain C and pure, so that a build without CUDA plans for GPUs, too. How the kernels cut their
 * work is here where scratch follows from it; cuda/ has the rest.
 */
#ifndef KERNELS_GPU_SIZES_H
#define KERNELS_GPU_SIZES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/num.h"
#include "ops/ops.h"

/* Scratch of an op, aligned to 64; 0 for most. */
size_t gpu_scratch_bytes(const struct op_shape *op);

/*
 * An estimate of what vendors' libraries take of the device's memory for the op, in one block for
 * all ops: cuDNN's workspace of attention, most of it the gradient's dS of two bytes a score, cut
 * as cuda/attention_cudnn.cu does on a GPU of gpu_bytes. 0 for other ops, and where lmtrain's own
 * kernels do it.
 */
size_t gpu_library_bytes(const struct op_shape *op, size_t gpu_bytes);

/*
 * What cuDNN's workspace of a piece of a call is to be at most; and of the smallest piece, on a GPU
 * of gpu_bytes: a sixteenth of them, down to a power of two, as a GPU's memory is never quite what
 * its name says.
 */
#define GPU_ATTENTION_WANTED_BYTES ((size_t)1 << 30)
static inline size_t gpu_attention_most_bytes(size_t gpu_bytes)
{
    size_t most = GPU_ATTENTION_WANTED_BYTES;

    while (2 * most <= gpu_bytes / 16)
        most *= 2;
    return most;
}

/* Of a process, whatever it runs: the context, modules, graphs. About 0.8 GiB. */
#define GPU_CONTEXT_BYTES ((size_t)820 << 20)

/* ---- products ---- */

struct gpu_product {
    int64_t m, n;
    enum dtype in, out; /* in U8: e4m3 */
    int biased;
};

enum { GPU_PRODUCT_ALIGNMENT = 256, GPU_APART_MULTIPLE = 4, GPU_FP8_LINES_MULTIPLE = 8 };

/* Whether the library's product goes to scratch, in fp32, since it has none of these dtypes. */
static inline int gpu_product_is_apart(const struct gpu_product *p)
{
    return p->out != DTYPE_F32 && p->out != p->in && p->in != DTYPE_U8;
}

size_t gpu_product_bias_bytes(const struct gpu_product *product); /* rounded to out */
size_t gpu_product_workspace_bytes(const struct gpu_product *product);
size_t gpu_product_scratch_bytes(const struct gpu_product *product); /* all of it */

/* What newton_schulz has in scratch, as offsets: a matrix as [small x large], A, B, a product in
 * fp32, sums of squares, what the norm is made into, and the products' own. */
struct gpu_newton_schulz {
    int64_t small, large;
    size_t x, a, b, product, sums, norm, library, n_bytes;
};
struct gpu_newton_schulz gpu_newton_schulz_sizes(const struct op_shape *op);

/*
 * An operand of a product of e4m3 as the library wants it, in scratch: lines (rows of the one, of
 * the other columns of the result) that lie along k, which is padded with zeros to whole blocks.
 * Where each line has scales, lines are a multiple of 8, the last ones maybe of zeros. Rows of
 * codes that are so are read where they are.
 */
struct gpu_fp8_operand {
    int64_t lines, k;                          /* padded */
    bool is_transposed;                        /* lines are the tensor's columns */
    bool is_square;                            /* blocks of 128 lines have a scale, not each line */
    bool is_there;                             /* codes need no copy: code_bytes is 0 */
    size_t code_bytes, scale_bytes, all_bytes; /* all: and what tiles have found, if there is one
                                                  scale */
};
struct gpu_fp8_operand gpu_fp8_operand_of(const struct op_shape *op, int input);

/* Bytes of the product's result where it has more rows than the op, and lies in scratch; 0. */
size_t gpu_fp8_padded_bytes(const struct op_shape *op);

/*
 * Likewise of a product of experts, whose rows lie in slots of 128 there: an expert has
 * whole ones, the rest of its last is zeros. An operand of rows has all slots as lines, or (of
 * gradients of weights) as k; weights have lines of one expert after the other.
 */
struct gpu_experts_operand {
    int64_t lines, k; /* of weights: of an expert */
    int64_t n_scales; /* likewise; with the recipe `tensor`, of each expert: 1 */
    int64_t n_tiles;  /* of 128 x 128; likewise. All slots' of rows */
    bool is_weight, is_transposed;
    size_t code_bytes, scale_bytes, all_bytes; /* of all experts; the last with what tiles find */
};
struct gpu_experts_operand gpu_experts_operand_of(const struct op_shape *op, int operand);

/* Slots of so many rows of n_experts in all. */
static inline int64_t gpu_expert_slots(int64_t n_rows, int64_t n_experts)
{
    return n_rows / OPS_FP8_BLOCK + n_experts;
}

/* ---- cuts ---- */

enum {
    GPU_COLUMN_ROWS_MIN = 64, /* of a block */
    GPU_COLUMN_BLOCKS_MAX = 128,
    GPU_NORM_BLOCKS = 528,
    GPU_NORM_ROWS_MIN = 4, /* of a block; a multiple of those at a time */
    GPU_CHOICES_A_BLOCK = 4096,
    GPU_TOKENS_A_SUM = 256,
    GPU_NORMALIZER_BYTES = 16,
    GPU_SORT_TILE = 2048,
    GPU_SORT_DIGITS = 256,
    GPU_LOGITS_MULTIPLE = 32, /* fp32 elements: rows begin at a line of memory */
    GPU_PAIRS = 64,           /* of a query and a head, in a tile over the cache */
    GPU_CHUNK = 512,          /* positions of the cache, where there are not too many */
    GPU_CHUNKS_MAX = 32,
    GPU_FEW_BLOCKS = 512, /* fewer than these, and each chunk gets a block */
};

static inline int64_t gpu_column_block_rows(int64_t n_rows)
{
    return max_i64(GPU_COLUMN_ROWS_MIN, ceil_div(n_rows, GPU_COLUMN_BLOCKS_MAX));
}

static inline int64_t gpu_norm_block_rows(int64_t n_rows)
{
    int64_t rows = max_i64(GPU_NORM_ROWS_MIN, ceil_div(n_rows, GPU_NORM_BLOCKS));

    return round_up(rows, GPU_NORM_ROWS_MIN);
}

static inline int64_t gpu_head_norm_block_rows(int64_t n_rows)
{
    return ceil_div(n_rows, GPU_NORM_BLOCKS);
}

static inline int gpu_choices_blocks(const struct tensor *experts)
{
    return (int)ceil_div(tensor_elements(experts), GPU_CHOICES_A_BLOCK);
}

/* Tokens that have one balance: all, or those of a sequence. */
static inline int64_t gpu_router_unit(const struct op_attributes *attributes, int64_t n_tokens)
{
    return attributes->by_sequence ? attributes->seq_len : n_tokens;
}

/* Positions of a chunk of the cache, and how many chunks get a block of their own: 1 where one
 * block walks all of them. */
int gpu_cached_chunk(const struct op_attributes *attributes);
int gpu_cached_chunks(const struct op_shape *op);

#endif
