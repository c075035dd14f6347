/*
 * dispatch.cu - rows to their experts and back: expert_order, dispatch, combine, expert_swiglu
 *
 * The order is a counting sort of T s small integers in three kernels: each block counts its 4096
 * choices; for each expert the blocks' counts become sums of those before; each block places its
 * choices. There a warp has 512 that follow one another and takes 32 at a time: lanes that chose
 * the same expert find each other (match), and their rank is how many of them are below. Choices of
 * experts that other ranks have are passed over, and have no row. Some ten microseconds for half a million, most of it launches and latency.
 *
 * All else is bound by memory. dispatch and combine: 16 bytes of a token's row a thread where rows
 * are aligned, read once and written s times, or the other way round. expert_swiglu: 16 bytes of y
 * a thread. Its gradient: a row a warp, so that the sum for the weight needs no barrier.
 */
#include "cuda/choices.cuh"
#include "cuda/packs.cuh"

#include <stdio.h>

enum { N_THREADS = 256, SEGMENTS = 32, WARPS = CHOICES_THREADS / 32 };

/* ---- the order ---------------------------------------------------------------------------------
 */

/*
 * Of 32 experts a block: the counts of blocks become sums of those before (exclusive), totals the
 * sums of all. Thread (x, y): expert x, the y-th 32nd of the blocks.
 */
static __global__ void __launch_bounds__(32 * SEGMENTS)
    order_columns_kernel(int *counts, int *totals, int n_blocks, int m)
{
    __shared__ int sums[SEGMENTS][32];
    int x = (int)threadIdx.x, y = (int)threadIdx.y, e = (int)blockIdx.x * 32 + x;
    int length = (n_blocks + SEGMENTS - 1) / SEGMENTS;
    int begin = min(y * length, n_blocks), end = e < m ? min(begin + length, n_blocks) : begin;
    int sum = 0, before = 0;

#pragma unroll 4
    for (int b = begin; b < end; b++)
        sum += counts[(int64_t)b * m + e];
    sums[y][x] = sum;
    __syncthreads();
    for (int i = 0; i < y; i++)
        before += sums[i][x];
    if (y == SEGMENTS - 1 && e < m)
        totals[e] = before + sum;
    for (int b = begin; b < end; b++) {
        int count = counts[(int64_t)b * m + e];

        counts[(int64_t)b * m + e] = before;
        before += count;
    }
}

/* begins[e] = the sum of totals before e. scratch: an int a thread. By all threads. */
static __device__ void begin_experts(int *begins, const int *totals, int m, int *scratch)
{
    int thread = (int)threadIdx.x, length = (m + CHOICES_THREADS - 1) / CHOICES_THREADS;
    int begin = min(thread * length, m), end = min(begin + length, m), sum = 0;

    for (int e = begin; e < end; e++)
        sum += totals[e];
    scratch[thread] = sum;
    __syncthreads();
    for (int by = 1; by < CHOICES_THREADS; by *= 2) {
        int below = thread >= by ? scratch[thread - by] : 0;

        __syncthreads();
        scratch[thread] += below;
        __syncthreads();
    }
    sum = thread ? scratch[thread - 1] : 0;
    for (int e = begin; e < end; e++) {
        begins[e] = sum;
        sum += totals[e];
    }
}

struct placing {
    struct choices choices;
    const int *counts, *totals; /* of the columns kernel */
    int32_t *place, *ends;
    int64_t stride; /* of place */
    int n_warps;    /* that place: each needs m ints */
};

/*
 * rows[warp][e]: what the warp's first choice of e gets. From how often each warp has it, from the
 * blocks before and the experts before.
 */
template <bool PART>
static __device__ void begin_warps(const placing &p, int *rows, const int *begins, int first)
{
    int m = p.choices.m, per_warp = CHOICES_A_BLOCK / p.n_warps;
    unsigned begin = blockIdx.x * CHOICES_A_BLOCK;

    for (int i = (int)threadIdx.x; i < p.n_warps * m; i += CHOICES_THREADS)
        rows[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < CHOICES_A_BLOCK; i += CHOICES_THREADS)
        if (begin + i < p.choices.n_choices) {
            int e = choice_at<PART>(p.choices, begin + i, first);

            if (!PART || e >= 0)
                atomicAdd(&rows[(int)i / per_warp * m + e], 1);
        }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < m; e += CHOICES_THREADS) {
        int row = begins[e] + p.counts[(int64_t)blockIdx.x * m + e];

        for (int w = 0; w < p.n_warps; w++) {
            int count = rows[w * m + e];

            rows[w * m + e] = row;
            row += count;
        }
    }
    __syncthreads();
}

template <bool PART>
static __device__ void place_choices(const placing &p, int *rows, unsigned begin, int n, int first)
{
    const struct choices &c = p.choices;
    int lane = (int)threadIdx.x % 32;

    for (int i = lane; i < n + lane; i += 32) { /* n is a multiple of 32: lanes stay together */
        unsigned at = begin + (unsigned)i;
        int given = at < c.n_choices;
        int e = given ? choice_at<PART>(c, at, first) : c.m;
        int own = PART ? given && e >= 0 : given;
        unsigned same = __match_any_sync(0xffffffffu, (unsigned)e);
        int rank = __popc(same & ((1u << lane) - 1));
        int row = own ? rows[e] + rank : PART ? -1 : 0;

        __syncwarp();
        if (own && !rank)
            rows[e] += __popc(same);
        __syncwarp();
        if (given)
            p.place[at / c.n * p.stride + at % c.n] = row;
    }
}

/* Shared: CHOICES_THREADS + m + n_warps m ints. */
template <bool PART>
__global__ void __launch_bounds__(CHOICES_THREADS) order_place_kernel(struct placing p)
{
    CUDA_SHARED(int, shared);
    int m = p.choices.m, warp = (int)threadIdx.x / 32, per_warp = CHOICES_A_BLOCK / p.n_warps;
    int *begins = shared + CHOICES_THREADS, *rows = begins + m;
    int first = first_expert<PART>(p.choices);

    begin_experts(begins, p.totals, m, shared);
    __syncthreads();
    if (!blockIdx.x)
        for (int e = (int)threadIdx.x; e < m; e += CHOICES_THREADS)
            p.ends[e] = begins[e] + p.totals[e];
    begin_warps<PART>(p, rows, begins, first);
    if (warp < p.n_warps)
        place_choices<PART>(p, rows + warp * m,
                            blockIdx.x * CHOICES_A_BLOCK + (unsigned)(warp * per_warp), per_warp,
                            first);
}

static size_t order_shared(int64_t m, int n_warps)
{
    return (size_t)(CHOICES_THREADS + m * (1 + n_warps)) * sizeof(int);
}

static int expert_order_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    return cuda_want_shared(kernels, call, order_shared(call->op.out[EXPERT_ORDER_ENDS].cols, 1),
                            err);
}

static struct choices part_of_choices(const struct op_shape *op)
{
    struct choices c = choices_of(&op->in[EXPERT_ORDER_EXPERT], op->out[EXPERT_ORDER_ENDS].cols);

    if (tensor_given(&op->in[EXPERT_ORDER_BEGIN])) {
        c.begin = (const int32_t *)op->in[EXPERT_ORDER_BEGIN].data;
        c.n_experts = op->attributes.n_experts;
    }
    return c;
}

static void expert_order_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *experts = &call->op.in[EXPERT_ORDER_EXPERT],
                        *place = &call->op.out[EXPERT_ORDER_PLACE];
    int m = (int)call->op.out[EXPERT_ORDER_ENDS].cols, n_blocks = gpu_choices_blocks(experts);
    int *totals = (int *)call->scratch, *counts = totals + m;
    int n_warps = order_shared(m, WARPS) <= CUDA_SHARED_BYTES ? WARPS : 1;
    struct choices c = part_of_choices(&call->op);
    struct placing p = { c,
                         counts,
                         totals,
                         (int32_t *)place->data,
                         (int32_t *)call->op.out[EXPERT_ORDER_ENDS].data,
                         place->stride,
                         n_warps };
    struct cuda_shape columns = { dim3((unsigned)ceil_div(m, 32)), dim3(32, SEGMENTS), 0 };

    (void)first;
    choices_count(kernels, call, c, counts);
    cuda_launch(kernels, call, columns, order_columns_kernel, counts, totals, n_blocks, m);
    cuda_launch(kernels, call, cuda_shape_of(n_blocks, CHOICES_THREADS, order_shared(m, n_warps)),
                c.begin ? order_place_kernel<true> : order_place_kernel<false>, p);
}

/* ---- by rows -----------------------------------------------------------------------------------
 *
 * A block has blockDim.y rows (tokens or choices), and blockDim.x packs of each.
 */

static struct cuda_shape shape_of(int64_t n_rows, int64_t n_packs)
{
    unsigned x = 32;

    while (x < n_packs && x < N_THREADS)
        x *= 2;
    struct cuda_shape shape = { dim3((unsigned)ceil_div(n_rows, N_THREADS / x),
                                     (unsigned)ceil_div(n_packs, x)),
                                dim3(x, N_THREADS / x), 0 };
    return shape;
}

static __device__ __forceinline__ int64_t row_here(void)
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

static __device__ __forceinline__ int64_t pack_here(void)
{
    return (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
}

/* The rows of some of the experts; ends NULL: those of all. */
struct some_rows {
    const int32_t *ends;
    int first, end;
};

static struct some_rows some_rows_of(const struct op_shape *op, const struct tensor *ends)
{
    const struct op_attributes *a = &op->attributes;
    struct some_rows s = { a->experts ? (const int32_t *)ends->data : NULL, (int)a->first,
                           (int)a->first + a->experts };

    return s;
}

static __device__ __forceinline__ bool has_row(const some_rows &s, int row)
{
    return row >= 0 &&
           (!s.ends || (row < s.ends[s.end - 1] && (!s.first || row >= s.ends[s.first - 1])));
}

/* n: of a token. */
template <typename T, int N>
__global__ void __launch_bounds__(N_THREADS)
    dispatch_kernel(rows_of<int32_t> place, rows_of<T> x, rows_of<T> y, int64_t n_tokens, int n,
                    int64_t d, some_rows some)
{
    int64_t token = row_here(), col = pack_here() * N;

    if (token >= n_tokens || col >= d)
        return;
    packed<T, N> pack = *(const packed<T, N> *)(x.row(token) + col);
    const int32_t *places = place.row(token);

#pragma unroll 4
    for (int i = 0; i < n; i++)
        if (has_row(some, places[i]))
            *(packed<T, N> *)(y.row(places[i]) + col) = pack;
}

/* Four rows are under way at a time; they are added in order. */
template <typename T, int N>
__global__ void __launch_bounds__(N_THREADS)
    combine_kernel(rows_of<int32_t> place, rows_of<T> y, rows_of<T> x, int64_t n_tokens, int n,
                   int64_t d, some_rows)
{
    int64_t token = row_here(), col = pack_here() * N;

    if (token >= n_tokens || col >= d)
        return;
    const int32_t *places = place.row(token);
    float sum[N] = {};
    packed<T, N> out;

    for (int i = 0; i < n; i += 4) {
        packed<T, N> packs[4];
        int rows[4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            rows[j] = i + j < n ? places[i + j] : -1;
            if (rows[j] >= 0)
                packs[j] = *(const packed<T, N> *)(y.row(rows[j]) + col);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (rows[j] >= 0)
                for (int k = 0; k < N; k++)
                    sum[k] += to_float(packs[j].at[k]);
    }
    for (int k = 0; k < N; k++)
        out.at[k] = from_float<T>(sum[k]);
    *(packed<T, N> *)(x.row(token) + col) = out;
}

static void move_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *place = &call->op.in[DISPATCH_PLACE], *in = &call->op.in[DISPATCH_X],
                        *out = &call->op.out[DISPATCH_Y];
    int back = call->op.kind == OP_COMBINE;

    (void)first;
    with_packs(in->dtype, cuda_is_aligned(in, 16) && cuda_is_aligned(out, 16),
               [&](auto zero, auto length) {
                   typedef decltype(zero) T;
                   enum { N = decltype(length)::N_ELEMENTS };

                   cuda_launch(kernels, call, shape_of(place->rows, ceil_div(in->cols, N)),
                               back ? combine_kernel<T, N> : dispatch_kernel<T, N>,
                               cuda_rows<int32_t>(place), cuda_rows<T>(in), cuda_rows<T>(out),
                               place->rows, (int)place->cols, in->cols,
                               some_rows_of(&call->op, &call->op.in[DISPATCH_ENDS]));
               });
}

/* ---- the activation ----------------------------------------------------------------------------
 */

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

struct weighted {
    rows_of<float> weight;
    rows_of<int32_t> place;
    int64_t n_choices, f;
    int n; /* of a token */
    struct some_rows some;
};

template <typename T, int N>
__global__ void __launch_bounds__(N_THREADS)
    expert_swiglu_kernel(struct weighted p, rows_of<T> gu, rows_of<T> y)
{
    int64_t choice = row_here(), col = pack_here() * N;

    if (choice >= p.n_choices || col >= p.f)
        return;
    int64_t token = choice / p.n, i = choice % p.n, row = p.place.row(token)[i];

    if (!has_row(p.some, (int)row))
        return;
    float w = p.weight.row(token)[i];
    packed<T, N> gates = *(const packed<T, N> *)(gu.row(row) + col);
    packed<T, N> ups = *(const packed<T, N> *)(gu.row(row) + p.f + col), out;

    for (int k = 0; k < N; k++) {
        float gate = to_float(gates.at[k]);

        out.at[k] = from_float<T>(gate * sigmoid(gate) * to_float(ups.at[k]) * w);
    }
    *(packed<T, N> *)(y.row(row) + col) = out;
}

/* A pack; returns the weight's sum with it added. */
template <typename T, int N>
static __device__ __forceinline__ float swiglu_grad_pack(const T *dy, const T *gu, T *dgu, float w,
                                                         int64_t f, float sum)
{
    packed<T, N> gs = *(const packed<T, N> *)dy, gates = *(const packed<T, N> *)gu;
    packed<T, N> ups = *(const packed<T, N> *)(gu + f), dgates, dups;

    for (int k = 0; k < N; k++) {
        float g = to_float(gs.at[k]), gate = to_float(gates.at[k]), up = to_float(ups.at[k]);
        float s = sigmoid(gate), gw = g * w;

        sum = fmaf(g, gate * s * up, sum);
        dgates.at[k] = from_float<T>(gw * up * s * fmaf(gate, 1.0f - s, 1.0f));
        dups.at[k] = from_float<T>(gw * gate * s);
    }
    *(packed<T, N> *)dgu = dgates;
    *(packed<T, N> *)(dgu + f) = dups;
    return sum;
}

template <typename T, int N>
__global__ void __launch_bounds__(N_THREADS)
    expert_swiglu_grad_kernel(struct weighted p, rows_of<T> dy, rows_of<T> gu, rows_of<T> dgu,
                              rows_of<float> dweight)
{
    int lane = (int)threadIdx.x % 32;
    int64_t choice = (int64_t)blockIdx.x * (N_THREADS / 32) + threadIdx.x / 32;

    if (choice >= p.n_choices)
        return;
    int64_t token = choice / p.n, i = choice % p.n, row = p.place.row(token)[i];
    float w = p.weight.row(token)[i], sum = 0;

    if (!has_row(p.some, (int)row)) {
        if (!lane && row < 0 && !p.some.first)
            dweight.row(token)[i] = 0;
        return;
    }
    for (int64_t col = lane * N; col < p.f; col += 32 * N)
        sum = swiglu_grad_pack<T, N>(dy.row(row) + col, gu.row(row) + col, dgu.row(row) + col, w,
                                     p.f, sum);
    sum = warp_sum(sum);
    if (!lane)
        dweight.row(token)[i] = sum;
}

static struct weighted weighted_of(const struct op_shape *op, const struct tensor *ends, int64_t f)
{
    const struct tensor *place = &op->in[EXPERT_SWIGLU_PLACE];
    struct weighted w = { cuda_rows<float>(&op->in[EXPERT_SWIGLU_WEIGHT]),
                          cuda_rows<int32_t>(place),
                          tensor_elements(place),
                          f,
                          (int)place->cols,
                          some_rows_of(op, ends) };

    return w;
}

static void expert_swiglu_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *gu = &call->op.in[EXPERT_SWIGLU_GU], *y = &call->op.out[EXPERT_SWIGLU_Y];
    struct weighted p = weighted_of(&call->op, &call->op.in[EXPERT_SWIGLU_ENDS], y->cols);

    (void)first;
    with_packs(gu->dtype, cuda_is_aligned(gu, 16) && cuda_is_aligned(y, 16),
               [&](auto zero, auto length) {
                   typedef decltype(zero) T;
                   enum { N = decltype(length)::N_ELEMENTS };

                   cuda_launch(kernels, call, shape_of(p.n_choices, ceil_div(p.f, N)),
                               expert_swiglu_kernel<T, N>, p, cuda_rows<T>(gu), cuda_rows<T>(y));
               });
}

static void expert_swiglu_grad_run(struct kernels *kernels, const struct kernel_call *call,
                                   int first)
{
    const struct tensor *dy = &call->op.in[EXPERT_SWIGLU_GRAD_DY],
                        *gu = &call->op.in[EXPERT_SWIGLU_GRAD_GU],
                        *dgu = &call->op.out[EXPERT_SWIGLU_GRAD_DGU];
    struct weighted p = weighted_of(&call->op, &call->op.in[EXPERT_SWIGLU_GRAD_ENDS], dy->cols);
    int wide = cuda_is_aligned(dy, 16) && cuda_is_aligned(gu, 16) && cuda_is_aligned(dgu, 16);

    (void)first;
    with_packs(gu->dtype, wide, [&](auto zero, auto length) {
        typedef decltype(zero) T;
        enum { N = decltype(length)::N_ELEMENTS };

        cuda_launch(kernels, call, cuda_shape_of(ceil_div(p.n_choices, N_THREADS / 32), N_THREADS),
                    expert_swiglu_grad_kernel<T, N>, p, cuda_rows<T>(dy), cuda_rows<T>(gu),
                    cuda_rows<T>(dgu), cuda_rows<float>(&call->op.out[EXPERT_SWIGLU_GRAD_DWEIGHT]));
    });
}

void cuda_register_dispatch(struct kernels_backend *table)
{
    struct kernel_entry *order = &table->entries[OP_EXPERT_ORDER];

    order->run = expert_order_run;
    order->prepare = expert_order_prepare;
    table->entries[OP_DISPATCH].run = move_run;
    table->entries[OP_COMBINE].run = move_run;
    table->entries[OP_EXPERT_SWIGLU].run = expert_swiglu_run;
    table->entries[OP_EXPERT_SWIGLU_GRAD].run = expert_swiglu_grad_run;
}
