/*
 * codec.h - gradients in fewer bytes, on their way between ranks
 *
 * What a codec loses of a sum's summand is added to the next step's (error feedback: Seide et al.
 * 2014; Karimireddy et al. 2019), so that over many steps nothing is lost.
 *
 *   int8   blocks of OPS_CODE_BLOCK elements: scale = max |x| / 127, code = x / scale to nearest,
 *          halves to even; stands for code * scale
 *   fp8    likewise: scale = max |x| / 448, code is x / scale as e4m3 (Micikevicius et al. 2022)
 *   topk   of each parameter (a rank's part) the ceil(ratio n) elements of largest |x|, of equal ones
 *          the first, in fp32 with their numbers (Strom 2015; Lin et al. 2018); a NaN is the
 *          largest of all
 *
 * A row of codes has the scales of its blocks, in fp32, then a byte of each element; the last block
 * may be shorter. A block of zeros, or whose scale is too small, is coded as zeros. The scale of a
 * block with an infinity or a NaN is NaN, and so is all that it stands for: the gradient's norm
 * tells. Zeros are left of it: of what lies between parameters the next step finds what is left.
 */
#ifndef OPS_CODEC_H
#define OPS_CODEC_H

#include <stdint.h>

enum codec { CODEC_NONE, CODEC_INT8, CODEC_FP8, CODEC_TOP_K };

/* What a job chooses. */
struct codec_choice {
    enum codec codec;
    double ratio;  /* top-k: of elements that are sent */
    int64_t start; /* updates before the first that is compressed; less than OPS_UPDATES_MAX */
};

/* Elements that top-k sends of n > 0. */
static inline int64_t ops_top_k(double ratio, int64_t n)
{
    int64_t k = (int64_t)(ratio * (double)n);

    k += (double)k < ratio * (double)n;
    return k < 1 ? 1 : k > n ? n : k;
}

#define OPS_CODE_BLOCK 256
#define OPS_INT8_MAX 127.0f
#define OPS_E4M3_MAX 448.0f

static inline int64_t ops_code_blocks(int64_t n)
{
    return (n + OPS_CODE_BLOCK - 1) / OPS_CODE_BLOCK;
}

/* Sums of squares are of tiles of so many blocks of a part. */
#define OPS_CODE_TILE_BLOCKS 16

static inline int64_t ops_code_tiles(int64_t n)
{
    return (ops_code_blocks(n) + OPS_CODE_TILE_BLOCKS - 1) / OPS_CODE_TILE_BLOCKS;
}

/* Bytes of the row of codes of n elements: a multiple of 4. */
static inline int64_t ops_code_bytes(int64_t n)
{
    return ops_code_blocks(n) * (int64_t)sizeof(float) + (n + 3) / 4 * 4;
}

#endif
