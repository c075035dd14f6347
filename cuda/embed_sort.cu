/*
 * embed_sort.cu - tokens sorted by their row of the table, stably: a radix sort of eight bits a
 * pass
 *
 * A pass is two kernels. In the first each block counts the digits of its tile of tokens. In the
 * second it sums what lies before it of those counts, ranks its tokens by digit with their order
 * kept (a warp takes 256 tokens in a row, 32 at a time; equal digits of a warp are found by votes),
 * and moves them. Integers alone are added, so atomics on shared memory leave no doubt of the
 * result. As many passes as the table's rows have bytes: two to three. For 131072 tokens a pass
 * moves 2 MiB and is bound by latency: some ten microseconds beside the hundreds of the sums.
 */
#include "cuda/embed.cuh"

enum {
    N_THREADS = 256,
    N_WARPS = N_THREADS / 32,
    N_ROUNDS = 8,         /* of a warp */
    TILE = GPU_SORT_TILE, /* N_THREADS * N_ROUNDS */
    DIGIT_BITS = 8,
    N_DIGITS = GPU_SORT_DIGITS, /* 1 << DIGIT_BITS, a thread each */
};

static_assert(TILE == N_THREADS * N_ROUNDS && N_DIGITS == 1 << DIGIT_BITS, "cuts");

struct sort_pass {
    struct table_rows t; /* the first pass' input */
    uint8_t *named;
    const uint32_t *row; /* the others'; NULL in the first */
    const int32_t *token;
    uint32_t *to_row;
    int32_t *to_token;
    uint32_t *counts; /* [tiles x digits] */
    int64_t n_tokens;
    int shift;
};

static __device__ __forceinline__ uint32_t row_at(const struct sort_pass &s, int64_t place)
{
    int32_t row;

    if (s.row)
        return s.row[place];
    row = table_row(s.t, place);
    return row == NO_ROW ? (uint32_t)s.t.n_rows : (uint32_t)row;
}

__global__ void __launch_bounds__(N_THREADS) count_kernel(struct sort_pass s)
{
    __shared__ uint32_t counts[N_DIGITS];
    int64_t begin = (int64_t)blockIdx.x * TILE;

    counts[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N_ROUNDS; i++) {
        int64_t place = begin + i * N_THREADS + threadIdx.x;

        if (place < s.n_tokens) {
            uint32_t row = row_at(s, place);

            atomicAdd(&counts[row >> s.shift & (N_DIGITS - 1)], 1u);
            if (!s.row && row < s.t.n_rows)
                s.named[row] = 1;
        }
    }
    __syncthreads();
    s.counts[(int64_t)blockIdx.x * N_DIGITS + threadIdx.x] = counts[threadIdx.x];
}

/* Where the first token of this tile with the thread's digit goes. */
static __device__ inline uint32_t first_place(const uint32_t *counts, int64_t n_tiles)
{
    __shared__ uint32_t sums[N_DIGITS];
    uint32_t before = 0, all = 0, smaller = 0;
    int digit = (int)threadIdx.x;

#pragma unroll 8
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        uint32_t count = counts[tile * N_DIGITS + digit];

        before += tile < blockIdx.x ? count : 0;
        all += count;
    }
    sums[digit] = all;
    __syncthreads();
    for (int step = 1; step < N_DIGITS; step *= 2) { /* sums up to and with the digit */
        uint32_t other = digit >= step ? sums[digit - step] : 0;

        __syncthreads();
        sums[digit] += other;
        __syncthreads();
    }
    smaller = sums[digit] - all;
    return smaller + before;
}

/* The lanes whose digit is mine. A lane without a token has the digit N_DIGITS. */
static __device__ __forceinline__ unsigned equal_lanes(uint32_t digit)
{
    unsigned equal = 0xffffffffu;

#pragma unroll
    for (int bit = 0; bit <= DIGIT_BITS; bit++) {
        unsigned set = __ballot_sync(0xffffffffu, (int)(digit >> bit & 1));

        equal &= digit >> bit & 1 ? set : ~set;
    }
    return equal;
}

__global__ void __launch_bounds__(N_THREADS) scatter_kernel(struct sort_pass s)
{
    __shared__ uint32_t seen[N_WARPS][N_DIGITS + 1]; /* first counts, then first places */
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t begin = (int64_t)blockIdx.x * TILE + warp * (32 * N_ROUNDS) + lane;
    uint32_t row[N_ROUNDS], rank[N_ROUNDS], digit[N_ROUNDS], place;

    for (int i = lane; i <= N_DIGITS; i += 32)
        seen[warp][i] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N_ROUNDS; i++) {
        int here = begin + i * 32 < s.n_tokens;
        unsigned equal;

        row[i] = here ? row_at(s, begin + i * 32) : 0;
        digit[i] = here ? row[i] >> s.shift & (N_DIGITS - 1) : (uint32_t)N_DIGITS;
        equal = equal_lanes(digit[i]);
        rank[i] = seen[warp][digit[i]] + (uint32_t)__popc(equal & ((1u << lane) - 1));
        __syncwarp();
        if (__ffs((int)equal) == lane + 1)
            seen[warp][digit[i]] += (uint32_t)__popc(equal);
        __syncwarp();
    }
    place = first_place(s.counts, gridDim.x); /* and a meeting of all warps */
    for (int w = 0; w < N_WARPS; w++) {
        uint32_t count = seen[w][threadIdx.x];

        seen[w][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N_ROUNDS; i++)
        if (begin + i * 32 < s.n_tokens) {
            uint32_t to = seen[warp][digit[i]] + rank[i];

            s.to_row[to] = row[i];
            s.to_token[to] = s.token ? s.token[begin + i * 32] : (int32_t)(begin + i * 32);
        }
}

/* ---- on the host ---- */

struct sort_scratch {
    uint32_t *rows[2], *counts;
    int32_t *tokens[2];
    uint8_t *named;
    size_t n_bytes;
};

static void *take(struct sort_scratch *scratch, void *base, size_t n_bytes)
{
    void *part = (char *)base + scratch->n_bytes;

    scratch->n_bytes += align_up(n_bytes, 64);
    return part;
}

static struct sort_scratch scratch_of(void *base, int64_t n_tokens, int64_t n_rows)
{
    struct sort_scratch s = {};

    for (int i = 0; i < 2; i++) {
        s.rows[i] = (uint32_t *)take(&s, base, (size_t)n_tokens * sizeof(uint32_t));
        s.tokens[i] = (int32_t *)take(&s, base, (size_t)n_tokens * sizeof(int32_t));
    }
    s.counts =
        (uint32_t *)take(&s, base, (size_t)ceil_div(n_tokens, TILE) * N_DIGITS * sizeof(uint32_t));
    s.named = (uint8_t *)take(&s, base, (size_t)n_rows);
    return s;
}

struct sorted_tokens cuda_sort_tokens(struct kernels *kernels, const struct kernel_call *call,
                                      struct table_rows t, int64_t n_tokens, void *scratch)
{
    struct sort_scratch at = scratch_of(scratch, n_tokens, t.n_rows);
    struct cuda_shape shape = cuda_shape_of(ceil_div(n_tokens, TILE), N_THREADS);
    struct sort_pass s = { t, at.named, NULL, NULL, NULL, NULL, at.counts, n_tokens, 0 };

    if (!cuda_of(kernels)->device->is_loading)
        cuda_check(cuda_of(kernels)->device, "embed_dw",
                   cudaMemsetAsync(at.named, 0, (size_t)t.n_rows, cuda_of(kernels)->stream));
    for (int pass = 0; !pass || t.n_rows >> s.shift; pass++, s.shift += DIGIT_BITS) {
        s.to_row = at.rows[pass % 2];
        s.to_token = at.tokens[pass % 2];
        cuda_launch(kernels, call, shape, count_kernel, s);
        cuda_launch(kernels, call, shape, scatter_kernel, s);
        s.row = s.to_row;
        s.token = s.to_token;
    }
    return (struct sorted_tokens){ s.row, s.token, at.named };
}
