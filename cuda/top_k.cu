/*
 * top_k.cu - the largest elements of gradients, and sums of such
 *
 * As on the CPU (lib/kernels/cpu/top_k.c), with its bits but for the sums of squares, which are added
 * in another order. A thread block takes a part of top_k, so that a large embedding is slow beside
 * the others; it takes ELEMENTS neighbours of add_pairs, into which it scatters rank by rank.
 */
#include "cuda/rows.cuh"

enum { THREADS = 256, N_DIGITS = THREADS, WAITING_MAX = 24 };

static __device__ __forceinline__ uint32_t magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

struct top_k_parts {
    float *x;
    const int32_t *parts;
    int32_t *pairs;
    int64_t n_pairs;
    double ratio;
    double *sums; /* of each part: of squares of x, of what is left */
};

/* Elements that are sent of a part: ops_top_k. */
static __device__ int64_t chosen_of(double ratio, int64_t n)
{
    int64_t k = (int64_t)(ratio * (double)n);

    k += (double)k < ratio * (double)n;
    return k < 1 ? 1 : k > n ? n : k;
}

/* The k-th largest of n magnitudes, by all threads; *n_larger: how many are larger. */
static __device__ uint32_t find_threshold(const float *x, int64_t n, int64_t k, int64_t *n_larger)
{
    __shared__ uint32_t counts[N_DIGITS];
    uint32_t found = 0, known = 0;

    *n_larger = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            if ((magnitude(x[i]) & known) == found)
                atomicAdd(&counts[magnitude(x[i]) >> shift & (N_DIGITS - 1)], 1u);
        __syncthreads();
        uint32_t digit = N_DIGITS - 1;
        while (*n_larger + counts[digit] < k)
            *n_larger += counts[digit--];
        found |= digit << shift;
        known |= (uint32_t)(N_DIGITS - 1) << shift;
        __syncthreads();
    }
    return found;
}

/* The sum of the threads before this one, and of all in *all. */
template <typename T> static __device__ T sum_before(T own, T *shared, T *all)
{
    T before = 0;

    shared[threadIdx.x] = own;
    __syncthreads();
    *all = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        before += i < threadIdx.x ? shared[i] : 0;
        *all += shared[i];
    }
    __syncthreads();
    return before;
}

static __global__ void __launch_bounds__(THREADS) top_k_kernel(struct top_k_parts c)
{
    __shared__ int64_t numbers[THREADS];
    __shared__ double squares[THREADS];
    int64_t first = c.parts[2 * blockIdx.x], n = c.parts[2 * blockIdx.x + 1], n_larger, all, at = 0;
    int64_t k = chosen_of(c.ratio, n), begin = n * threadIdx.x / THREADS;
    int64_t end = n * (threadIdx.x + 1) / THREADS, larger = 0, equal = 0;
    float *x = c.x + first;
    double of_x = 0, of_left = 0, sum;

    for (unsigned i = 0; i < blockIdx.x; i++)
        at += chosen_of(c.ratio, c.parts[2 * i + 1]);
    uint32_t threshold = find_threshold(x, n, k, &n_larger);
    for (int64_t i = begin; i < end; i++) {
        larger += magnitude(x[i]) > threshold;
        equal += magnitude(x[i]) == threshold;
    }
    int64_t larger_before = sum_before(larger, numbers, &all);
    int64_t equal_before = sum_before(equal, numbers, &all), most_equal = k - n_larger;
    at += larger_before + (equal_before < most_equal ? equal_before : most_equal);
    for (int64_t i = begin; i < end; i++) {
        float value = x[i];

        of_x += (double)value * (double)value;
        if (magnitude(value) > threshold ||
            (magnitude(value) == threshold && equal_before++ < most_equal)) {
            c.pairs[at] = (int32_t)(first + i);
            c.pairs[c.n_pairs + at++] = (int32_t)__float_as_uint(value);
            x[i] = 0;
        } else {
            of_left += (double)value * (double)value;
        }
    }
    sum_before(of_x, squares, &sum);
    if (threadIdx.x == 0)
        c.sums[2 * blockIdx.x] = sum;
    sum_before(of_left, squares, &sum);
    if (threadIdx.x == 0)
        c.sums[2 * blockIdx.x + 1] = sum;
}

/* Two threads: each adds its own of all parts, in order. */
static __global__ void add_parts_kernel(const double *parts, int64_t n, double *sums)
{
    double all = 0;

    for (int64_t i = 0; i < n; i++)
        all += parts[2 * i + threadIdx.x];
    sums[threadIdx.x] = all;
}

static void top_k_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int64_t n_parts = op->in[TOP_K_PARTS].cols / 2;
    struct top_k_parts c = {};

    (void)first;
    c.x = (float *)op->in[TOP_K_X].data;
    c.parts = (const int32_t *)op->in[TOP_K_PARTS].data;
    c.pairs = (int32_t *)op->out[TOP_K_PAIRS].data;
    c.n_pairs = op->out[TOP_K_PAIRS].cols / 2;
    c.ratio = op->attributes.ratio;
    c.sums = (double *)call->scratch;
    cuda_launch(kernels, call, cuda_shape_of(n_parts, THREADS), top_k_kernel, c);
    cuda_launch(kernels, call, cuda_shape_of(1, 2), add_parts_kernel, (const double *)c.sums,
                n_parts, (double *)op->out[TOP_K_SUMS].data);
}

/* ---- sums ---- */

/* The first of n ascending numbers that is at least `least`. */
static __device__ int64_t first_from(const int32_t *numbers, int64_t n, int64_t least)
{
    int64_t low = 0;

    while (low < n) {
        int64_t middle = low + (n - low) / 2;

        if (numbers[middle] < least)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

static __global__ void __launch_bounds__(THREADS)
    add_pairs_kernel(const int32_t *pairs, int64_t n_rows, int64_t stride, int64_t n_pairs,
                     float *y, int64_t n)
{
    __shared__ float values[THREADS];
    int64_t begin = (int64_t)blockIdx.x * THREADS, end = begin + THREADS;
    float waiting[WAITING_MAX];
    int n_waiting = 0;

    for (int64_t row = 0; row < n_rows; row++) {
        const int32_t *numbers = pairs + row * stride;

        values[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = first_from(numbers, n_pairs, begin) + threadIdx.x;
             i < n_pairs && numbers[i] < end; i += THREADS)
            values[numbers[i] - begin] = __uint_as_float((uint32_t)numbers[n_pairs + i]);
        __syncthreads();
        waiting[n_waiting++] = values[threadIdx.x];
        for (int64_t k = row + 1; k % 2 == 0; k /= 2, n_waiting--)
            waiting[n_waiting - 2] += waiting[n_waiting - 1];
        __syncthreads();
    }
    for (; n_waiting > 1; n_waiting--)
        waiting[n_waiting - 2] += waiting[n_waiting - 1];
    if (begin + threadIdx.x < n)
        y[begin + threadIdx.x] = waiting[0];
}

static void add_pairs_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *pairs = &call->op.in[ADD_PAIRS_PAIRS], *y = &call->op.out[ADD_PAIRS_Y];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(ceil_div(y->cols, THREADS), THREADS), add_pairs_kernel,
                (const int32_t *)pairs->data, pairs->rows, pairs->stride, pairs->cols / 2,
                (float *)y->data, y->cols);
}

void cuda_register_top_k(struct kernels_backend *table)
{
    table->entries[OP_TOP_K].run = top_k_run;
    table->entries[OP_ADD_PAIRS].run = add_pairs_run;
}
