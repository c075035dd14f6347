/*
 * reduce.c - the fixed tree of sums, one cache block at a time
 *
 * Every term is read once: for each block of elements the tree is walked like a binary counter. A
 * stack holds the sums of aligned power-of-two runs of terms, largest first; a new term is merged
 * with the top while both cover equally many, and what remains in the end is merged from the right.
 * That is the tree of the header: the largest power of two below n first, its rest likewise.
 * Of seven terms:
 *
 *   term   stack after it
 *   0      0
 *   1      01
 *   2      01 2
 *   3      0123
 *   4      0123 4
 *   5      0123 45
 *   6      0123 45 6    end: 45 + 6, then 0123 + 456
 *
 * Vectors are spelled out, since gcc -O2 leaves loops of unknown length scalar. Each element's sum
 * is the same sequence of adds whatever its width, so vectors change no bit.
 */
#include "comm/reduce.h"

#include <string.h>

#include "base/num.h"

enum {
    BLOCK_BYTES = 4096, /* of fp32 or fp64 sums: a few of them fit the L1 beside the terms */
    DEPTH = 32,         /* bits of n_terms, which is an int */
};

typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double f64x4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef uint32_t u32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t u16x8 __attribute__((vector_size(16), aligned(2), may_alias));

/* The sums now on the stack; data is a term itself or this place's own room. */
struct tree {
    int n;
    int level[DEPTH]; /* covers 2^level terms */
    const void *data[DEPTH];
    unsigned char *room; /* DEPTH blocks */
};

static void add_f32(float *out, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        *(f32x8 *)(out + i) = *(const f32x8 *)(a + i) + *(const f32x8 *)(b + i);
    for (; i < n; i++)
        out[i] = a[i] + b[i];
}

static void add_f64(double *out, const double *a, const double *b, int64_t n)
{
    int64_t i = 0;

    for (; i + 4 <= n; i += 4)
        *(f64x4 *)(out + i) = *(const f64x4 *)(a + i) + *(const f64x4 *)(b + i);
    for (; i < n; i++)
        out[i] = a[i] + b[i];
}

static void *room_at(const struct tree *tree, int place)
{
    return tree->room + (size_t)place * BLOCK_BYTES;
}

/* Replace the two topmost sums by their sum. */
static void merge(struct tree *tree, enum dtype dtype, int64_t n)
{
    int left = tree->n - 2;
    void *sum = room_at(tree, left);

    if (dtype == DTYPE_F64)
        add_f64(sum, tree->data[left], tree->data[left + 1], n);
    else
        add_f32(sum, tree->data[left], tree->data[left + 1], n);
    tree->data[left] = sum;
    tree->level[left]++;
    tree->n--;
}

static void widen(float *out, const uint16_t *in, int64_t n)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        *(u32x8 *)(out + i) = __builtin_convertvector(*(const u16x8 *)(in + i), u32x8) << 16;
    for (; i < n; i++)
        out[i] = bf16_to_float(in[i]);
}

/* bf16_from_float, eight at a time: the same bits, NaN included. */
static void narrow(uint16_t *out, const float *in, int64_t n)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        u32x8 bits = *(const u32x8 *)(in + i);
        u32x8 is_nan = (u32x8)((bits & 0x7fffffffu) > 0x7f800000u);
        u32x8 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
        u32x8 quiet = bits >> 16 | 0x40;

        *(u16x8 *)(out + i) =
            __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), u16x8);
    }
    for (; i < n; i++)
        out[i] = bf16_from_float(in[i]);
}

/* Where mask is set a's bits, else b's. */
#define CHOOSE(mask, a, b) (((a) & (u32x8)(mask)) | ((b) & ~(u32x8)(mask)))

/* fp16_to_float and fp16_from_float, likewise. */
static void widen_fp16(float *out, const uint16_t *in, int64_t n)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        u32x8 x = __builtin_convertvector(*(const u16x8 *)(in + i), u32x8);
        u32x8 magnitude = x & 0x7fffu, bits = (magnitude << 13) + 0x38000000u;
        u32x8 small = (u32x8)(__builtin_convertvector((i32x8)magnitude, f32x8) * 0x1p-24f);

        bits = CHOOSE((magnitude < 0x400u), small, bits);
        bits = CHOOSE((magnitude >= 0x7c00u), 0x7f800000u | magnitude << 13, bits);
        bits |= (u32x8)(magnitude > 0x7c00u) & 0x400000u;
        *(u32x8 *)(out + i) = bits | (x & 0x8000u) << 16;
    }
    for (; i < n; i++)
        out[i] = fp16_to_float(in[i]);
}

static void narrow_fp16(uint16_t *out, const float *in, int64_t n)
{
    int64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        u32x8 x = *(const u32x8 *)(in + i), magnitude = x & 0x7fffffffu;
        u32x8 small = (u32x8)((f32x8)magnitude + 0.5f) - 0x3f000000u;
        u32x8 half = (magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
        u32x8 nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);

        half = CHOOSE((magnitude < 0x38800000u), small, half);
        half = CHOOSE((magnitude >= 0x477ff000u), (u32x8){ 0 } + 0x7c00u, half);
        half = CHOOSE((magnitude > 0x7f800000u), nan, half);
        *(u16x8 *)(out + i) = __builtin_convertvector((x >> 16 & 0x8000u) | half, u16x8);
    }
    for (; i < n; i++)
        out[i] = fp16_from_float(in[i]);
}

static void push(struct tree *tree, enum dtype dtype, const void *term, int64_t n)
{
    int place = tree->n++;

    tree->level[place] = 0;
    tree->data[place] = term;
    if (dtype == DTYPE_BF16 || dtype == DTYPE_F16) {
        (dtype == DTYPE_BF16 ? widen : widen_fp16)(room_at(tree, place), term, n);
        tree->data[place] = room_at(tree, place);
    }
}

struct tree_sum {
    enum dtype from, to; /* of the terms, of the sum */
    int n_terms;
    size_t stride_bytes;
};

/* One block. out may be the first of the terms. */
static void reduce_block(struct tree *tree, const struct tree_sum *sum, void *out,
                         const unsigned char *terms, int64_t n)
{
    tree->n = 0;
    for (int term = 0; term < sum->n_terms; term++) {
        push(tree, sum->from, terms + (size_t)term * sum->stride_bytes, n);
        while (tree->n > 1 && tree->level[tree->n - 1] == tree->level[tree->n - 2])
            merge(tree, sum->from, n);
    }
    while (tree->n > 1)
        merge(tree, sum->from, n);
    if (sum->to == DTYPE_BF16)
        narrow(out, tree->data[0], n);
    else if (sum->to == DTYPE_F16)
        narrow_fp16(out, tree->data[0], n);
    else
        memmove(out, tree->data[0], (size_t)n * dtype_bytes(sum->to));
}

static void reduce_blocks(const struct tree_sum *sum, void *out, void *terms, int64_t n)
{
    _Alignas(64) unsigned char room[DEPTH * BLOCK_BYTES];
    struct tree tree = { .room = room };
    int64_t block = sum->from == DTYPE_F64 ? BLOCK_BYTES / 8 : BLOCK_BYTES / 4;

    for (int64_t start = 0; start < n; start += block)
        reduce_block(&tree, sum, (unsigned char *)out + (size_t)start * dtype_bytes(sum->to),
                     (const unsigned char *)terms + (size_t)start * dtype_bytes(sum->from),
                     min_i64(block, n - start));
}

void reduce_tree(enum dtype dtype, void *out, void *terms, int n_terms, int64_t stride, int64_t n)
{
    struct tree_sum sum = { dtype, dtype, n_terms, (size_t)stride * dtype_bytes(dtype) };

    CHECK(dtype == DTYPE_F32 || dtype == DTYPE_F64 || dtype == DTYPE_BF16 || dtype == DTYPE_F16);
    CHECK(n_terms > 0);
    CHECK(n_terms == 1 || stride >= n);
    if (n_terms == 1) {
        if (n > 0 && out != terms)
            memmove(out, terms, (size_t)n * dtype_bytes(dtype));
        return;
    }
    reduce_blocks(&sum, out, terms, n);
}

void reduce_tree_as(enum dtype from, enum dtype to, void *out, void *terms, int n_terms,
                    int64_t stride, int64_t n)
{
    struct tree_sum sum = { from, to, n_terms, (size_t)stride * dtype_bytes(from) };

    CHECK(from == DTYPE_F32 || to == DTYPE_F32);
    CHECK(dtype_bytes(from) <= 4);
    CHECK(dtype_bytes(to) <= 4);
    CHECK(n_terms > 0);
    CHECK(n_terms == 1 || stride >= n);
    reduce_blocks(&sum, out, terms, n);
}

int reduce_scatter(struct comm_group *group, enum dtype dtype, const void *full, void *shard,
                   void *scratch, int64_t n, struct err *err)
{
    if (comm_all_to_all(group, full, scratch, (size_t)n * dtype_bytes(dtype), err))
        return -1;
    reduce_tree(dtype, shard, scratch, comm_group_size(group), n, n);
    return 0;
}
