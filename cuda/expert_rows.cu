/*
 * expert_rows.cu - rows that go to the ranks that have their experts, and back: lists, and copies
 *
 * All choices are here, so all is computed from them. send_rows: for each rank a block lists the
 * tokens whose rows it is sent, another those whose rows come from it, 256 tokens at a time, placed
 * by how many of them are before. return_rows: for each rank a block counts its rows of each expert
 * here; one block makes sums of that. Then rows are copied: a block a row, or several, 16 bytes a
 * thread where rows are such multiples. How many there are is known on the device alone: blocks
 * beyond have nothing to do. Bound by memory; the lists are some microseconds, most of it latency.
 */
#include "cuda/cuda.cuh"

enum { N_THREADS = 256, WARPS = N_THREADS / 32, BLOCKS_A_PIECE = 256 };

static const char name[] = "rows of experts";

static cudaStream_t queue_of(struct kernels *kernels, int queue)
{
    return cuda_stream_of(cuda_of(kernels)->device, queue);
}

static __device__ __forceinline__ int own_experts(const kernels_rows &p)
{
    return p.n_experts / p.n_ranks;
}

/* -1: it was dropped. */
static __device__ __forceinline__ int chosen_expert(const kernels_rows &p, int64_t choice)
{
    int expert = p.choices[choice];

    device_check(expert >= -1 && expert < p.n_experts);
    return expert;
}

/* The rank that has it, or -1. */
static __device__ __forceinline__ int rank_of(const kernels_rows &p, int expert)
{
    return expert < 0 ? -1 : expert / own_experts(p);
}

/* ---- to experts ---- */

/* Some of the rank's experts at hand, and none before them. */
static __device__ __forceinline__ bool chooses(const kernels_rows &p, int64_t token, int rank)
{
    int n_own = own_experts(p), lowest = n_own;

    for (int64_t i = 0; i < p.n_chosen; i++) {
        int expert = chosen_expert(p, token * p.n_chosen + i);

        if (rank_of(p, expert) == rank)
            lowest = min(lowest, expert - rank * n_own);
    }
    return lowest >= p.first && lowest < p.end;
}

/* Block b: own tokens that go to rank b; from n_ranks on, tokens of rank b - n_ranks that come. */
static __global__ void __launch_bounds__(N_THREADS) list_tokens_kernel(kernels_rows p)
{
    __shared__ int sums[WARPS];
    int b = (int)blockIdx.x, comes = b >= p.n_ranks, other = b % p.n_ranks;
    int from = comes ? other : p.rank, to = comes ? p.rank : other;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = 0;
    int32_t *list = p.lists + b * p.n_tokens;

    for (int64_t begin = 0; begin < p.n_tokens; begin += N_THREADS) {
        int64_t token = begin + threadIdx.x;
        bool goes = token < p.n_tokens && chooses(p, from * p.n_tokens + token, to);
        unsigned lanes = __ballot_sync(0xffffffffu, goes);
        int before = n;

        if (!lane)
            sums[warp] = __popc(lanes);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? sums[w] : 0;
            n += sums[w];
        }
        if (goes)
            list[before + __popc(lanes & ((1u << lane) - 1))] = (int32_t)token;
        __syncthreads();
    }
    if (!threadIdx.x)
        p.counts[b] = n;
}

/* By a block. Sizes are counted in V. */
template <typename V>
static __device__ __forceinline__ void copy_row(V *to, const V *from, int64_t length)
{
    for (int64_t at = threadIdx.x; at < length; at += N_THREADS)
        to[at] = from[at];
}

template <typename V>
static __device__ __forceinline__ V *row_of(const void *rows, int64_t row, int64_t length)
{
    return (V *)rows + row * length;
}

template <typename V>
static __device__ __forceinline__ V *piece_of(const kernels_rows &p, const void *pieces, int rank,
                                              int64_t length)
{
    return row_of<V>(pieces, (rank - (rank > p.rank)) * p.piece_rows, length);
}

/* The j-th row to rank blockIdx.y, or to its place. */
template <typename V>
__global__ void __launch_bounds__(N_THREADS) pack_sent_kernel(kernels_rows p, int64_t length)
{
    int rank = (int)blockIdx.y, is_own = rank == p.rank;
    const int32_t *list = p.lists + rank * p.n_tokens;

    for (int64_t j = blockIdx.x; j < p.counts[rank]; j += gridDim.x) {
        V *to = is_own ? row_of<V>(p.out, rank * p.n_tokens + list[j], length)
                       : piece_of<V>(p, p.sent, rank, length) + j * length;

        copy_row(to, row_of<V>(p.in, list[j], length), length);
    }
}

template <typename V>
__global__ void __launch_bounds__(N_THREADS) unpack_received_kernel(kernels_rows p, int64_t length)
{
    int rank = (int)blockIdx.y;
    const int32_t *list = p.lists + (p.n_ranks + rank) * p.n_tokens;

    for (int64_t j = blockIdx.x; rank != p.rank && j < p.counts[p.n_ranks + rank]; j += gridDim.x)
        copy_row(row_of<V>(p.out, rank * p.n_tokens + list[j], length),
                 piece_of<V>(p, p.received, rank, length) + j * length, length);
}

/* ---- and back ---- */

/* Of rank blockIdx.x, how many rows each expert here has; of the own rank, each rank's experts,
 * too: those at hand, those before them, and all. Shared: n_own + 3 n_ranks ints. */
static __global__ void __launch_bounds__(N_THREADS) count_rows_kernel(kernels_rows p)
{
    CUDA_SHARED(int, shared);
    int rank = (int)blockIdx.x, n_own = own_experts(p), n = p.n_ranks, *ranks = shared + n_own;
    int32_t *lengths = p.lists + (p.n_ranks + rank) * n_own;

    for (int i = (int)threadIdx.x; i < n_own + 3 * n; i += N_THREADS)
        shared[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.n_tokens * p.n_chosen; i += N_THREADS) {
        int expert = chosen_expert(p, rank * p.n_tokens * p.n_chosen + i), to = rank_of(p, expert);

        if (to < 0)
            continue;
        expert -= to * n_own;
        if (to == p.rank)
            atomicAdd(&shared[expert], 1);
        if (expert < p.end)
            atomicAdd(&ranks[to + (expert < p.first ? n : 0)], 1);
        atomicAdd(&ranks[2 * n + to], 1);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < n_own; e += N_THREADS)
        lengths[e] = shared[e];
    if (!threadIdx.x)
        p.counts[rank] = ranks[p.rank];
    for (int r = (int)threadIdx.x; rank == p.rank && r < n; r += N_THREADS) {
        int at = ranks[n + r];

        for (int before = 0; before < r; before++)
            at += ranks[2 * n + before];
        p.counts[n + r] = ranks[r];
        p.counts[2 * n + r] = at;
    }
}

/* The sum of the block's threads before this one; n: scratch, an int a thread. */
static __device__ int sum_before(int own, int *sums)
{
    int thread = (int)threadIdx.x;

    sums[thread] = own;
    __syncthreads();
    for (int by = 1; by < N_THREADS; by *= 2) {
        int below = thread >= by ? sums[thread - by] : 0;

        __syncthreads();
        sums[thread] += below;
        __syncthreads();
    }
    return thread ? sums[thread - 1] : 0;
}

/* One block: begins by expert, then rank; places within each rank. */
static __global__ void __launch_bounds__(N_THREADS) list_segments_kernel(kernels_rows p)
{
    __shared__ int sums[N_THREADS];
    int n_own = own_experts(p), n = n_own * p.n_ranks, each = (n + N_THREADS - 1) / N_THREADS;
    int first = min((int)threadIdx.x * each, n), end = min(first + each, n), sum = 0;
    int32_t *begins = p.lists, *lengths = begins + n, *places = lengths + n;

    for (int i = first; i < end; i++)
        sum += lengths[i % p.n_ranks * n_own + i / p.n_ranks];
    sum = sum_before(sum, sums);
    for (int i = first; i < end; i++) {
        int at = i % p.n_ranks * n_own + i / p.n_ranks;

        begins[at] = sum;
        sum += lengths[at];
    }
    if (!threadIdx.x && end == n)
        device_check(sum <= p.in_rows);
    for (int r = (int)threadIdx.x; r < p.n_ranks; r += N_THREADS) {
        int at = r == p.rank ? p.counts[2 * p.n_ranks + r] : 0;

        for (int e = p.first; e < p.end; e++) {
            places[r * n_own + e] = at;
            at += lengths[r * n_own + e];
        }
    }
}

/* Rows of an expert and a rank: blockIdx.y. */
template <typename V>
__global__ void __launch_bounds__(N_THREADS) pack_returned_kernel(kernels_rows p, int64_t length)
{
    int n_own = own_experts(p), segment = (int)blockIdx.y, rank = segment / n_own;
    int n = n_own * p.n_ranks, is_own = rank == p.rank;
    int begin = p.lists[segment], place = p.lists[2 * n + segment];

    if ((!is_own && !p.sent) || segment % n_own < p.first || segment % n_own >= p.end)
        return;
    V *to = is_own ? row_of<V>(p.out, 0, length) : piece_of<V>(p, p.sent, rank, length);
    for (int64_t j = blockIdx.x; j < p.lists[n + segment]; j += gridDim.x)
        copy_row(to + (place + j) * length, row_of<V>(p.in, begin + j, length), length);
}

/* ---- launching ---- */

/* Call f(V(), the length of a row in V) with the widest that all rows are multiples of. */
template <typename F> static void with_width(const struct kernels_rows *p, F f)
{
    uintptr_t odd = (uintptr_t)p->in | (uintptr_t)p->out | (uintptr_t)p->sent |
                    (uintptr_t)p->received | (uintptr_t)p->row_bytes;
    int64_t n_bytes = (int64_t)p->row_bytes;

    if (odd % 16 == 0)
        f(uint4(), n_bytes / 16);
    else if (odd % 4 == 0)
        f(uint32_t(), n_bytes / 4);
    else
        f(uint16_t(), n_bytes / 2);
}

static struct cuda_shape copies(const struct kernels_rows *p, int64_t n_rows, int n_pieces)
{
    struct cuda_shape shape = cuda_shape_of(min_i64(n_rows, BLOCKS_A_PIECE), N_THREADS);

    (void)p;
    shape.grid.y = (unsigned)n_pieces;
    return shape;
}

static void pack_sent(struct cuda_device *device, cudaStream_t stream, const struct kernels_rows *p)
{
    cuda_launch_on(device, stream, name, cuda_shape_of(2 * p->n_ranks, N_THREADS),
                   list_tokens_kernel, *p);
    with_width(p, [&](auto zero, int64_t length) {
        cuda_launch_on(device, stream, name, copies(p, p->n_tokens, p->n_ranks),
                       pack_sent_kernel<decltype(zero)>, *p, length);
    });
}

static void pack_returned(struct cuda_device *device, cudaStream_t stream,
                          const struct kernels_rows *p)
{
    int n_own = kernels_rows_own_experts(p);

    cuda_launch_on(
        device, stream, name,
        cuda_shape_of(p->n_ranks, N_THREADS, (size_t)(n_own + 3 * p->n_ranks) * sizeof(int)),
        count_rows_kernel, *p);
    cuda_launch_on(device, stream, name, cuda_shape_of(1, N_THREADS), list_segments_kernel, *p);
    with_width(p, [&](auto zero, int64_t length) {
        cuda_launch_on(device, stream, name, copies(p, p->n_tokens, p->n_ranks * n_own),
                       pack_returned_kernel<decltype(zero)>, *p, length);
    });
}

void cuda_pack_rows(struct kernels *kernels, int queue, const struct kernels_rows *rows)
{
    struct cuda_device *device = cuda_of(kernels)->device;

    if (rows->kind == OP_SEND_ROWS)
        pack_sent(device, queue_of(kernels, queue), rows);
    else
        pack_returned(device, queue_of(kernels, queue), rows);
}

void cuda_unpack_rows(struct kernels *kernels, int queue, const struct kernels_rows *rows)
{
    with_width(rows, [&](auto zero, int64_t length) {
        cuda_launch_on(cuda_of(kernels)->device, queue_of(kernels, queue), name,
                       copies(rows, rows->n_tokens, rows->n_ranks),
                       unpack_received_kernel<decltype(zero)>, *rows, length);
    });
}

/* All kernels, of every width. */
void cuda_load_rows(struct kernels *kernels, int queue)
{
    for (enum op_kind kind : { OP_SEND_ROWS, OP_RETURN_ROWS })
        for (size_t width : { 16, 4, 2 }) {
            struct kernels_rows rows = {};

            rows.kind = kind;
            rows.n_ranks = 1;
            rows.n_experts = rows.end = 2;
            rows.row_bytes = width;
            cuda_pack_rows(kernels, queue, &rows);
            cuda_unpack_rows(kernels, queue, &rows);
        }
}
