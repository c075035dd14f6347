/*
 * reduce.cu - what collectives compute around their moves: the fixed tree of sums, copies of
 * columns
 *
 * The tree is comm/reduce.h's: split at the largest power of two below n, so the bits are those of
 * the CPU. A thread sums 16 bytes' worth of elements over all terms, where addresses and strides
 * allow, else one element. Terms come in aligned groups of eight, which are subtrees: a group's
 * loads are all in flight before its adds, and groups' sums meet like a binary counter's digits,
 * in registers. Bound by memory: each term is read once, the sum written once.
 */
#include "cuda/cuda.cuh"

enum { N_THREADS = 256, GROUP = 8, LEVELS = 8 }; /* so fewer than GROUP << LEVELS terms */

template <typename T> struct sum_of {
    typedef float type;
};
template <> struct sum_of<double> {
    typedef double type;
};

static __device__ __forceinline__ float widened(float x)
{
    return x;
}
static __device__ __forceinline__ double widened(double x)
{
    return x;
}
static __device__ __forceinline__ float widened(bf16 x)
{
    return to_float(x);
}
static __device__ __forceinline__ float widened(fp16 x)
{
    return to_float(x);
}

template <typename T> static __device__ __forceinline__ T narrowed(float x)
{
    return from_float<T>(x);
}
template <typename T> static __device__ __forceinline__ T narrowed(double x)
{
    return x;
}

/* sum = the tree of R terms, at most GROUP. */
template <int R, typename T, typename A, int N>
static __device__ __forceinline__ void sum_group(A (&sum)[N], const T *terms, int64_t stride)
{
    if constexpr (R == 1) {
        packed<T, N> term = *(const packed<T, N> *)terms;

        for (int i = 0; i < N; i++)
            sum[i] = widened(term.at[i]);
    } else {
        constexpr int left = R > 4 ? 4 : R > 2 ? 2 : 1;
        A right[N];

        sum_group<left>(sum, terms, stride);
        sum_group<R - left>(right, terms + left * stride, stride);
        for (int i = 0; i < N; i++)
            sum[i] += right[i];
    }
}

template <typename T, typename A, int N>
static __device__ __forceinline__ void sum_rest(A (&sum)[N], const T *terms, int n, int64_t stride)
{
    switch (n) {
    case 1:
        return sum_group<1>(sum, terms, stride);
    case 2:
        return sum_group<2>(sum, terms, stride);
    case 3:
        return sum_group<3>(sum, terms, stride);
    case 4:
        return sum_group<4>(sum, terms, stride);
    case 5:
        return sum_group<5>(sum, terms, stride);
    case 6:
        return sum_group<6>(sum, terms, stride);
    case 7:
        return sum_group<7>(sum, terms, stride);
    default:
        return sum_group<8>(sum, terms, stride);
    }
}

/* The same of more than a group: sums of 2^level groups wait in stack[level] for their
 * neighbour. */
template <typename T, typename A, int N>
static __device__ __forceinline__ void sum_groups(A (&sum)[N], const T *terms, int n,
                                                  int64_t stride)
{
    A stack[LEVELS][N];
    int n_groups = n / GROUP, rest = n % GROUP;
    bool any = rest > 0;

    for (int g = 0; g < n_groups; g++) {
        bool carries = true;

        sum_group<GROUP>(sum, terms + (int64_t)g * GROUP * stride, stride);
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            bool is_taken = g >> level & 1;

            for (int i = 0; i < N; i++) {
                if (carries && is_taken)
                    sum[i] = stack[level][i] + sum[i];
                else if (carries)
                    stack[level][i] = sum[i];
            }
            carries = carries && is_taken;
        }
    }
    if (any)
        sum_rest(sum, terms + (int64_t)n_groups * GROUP * stride, rest, stride);
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
        bool is_taken = n_groups >> level & 1;

        for (int i = 0; i < N; i++)
            if (is_taken)
                sum[i] = any ? stack[level][i] + sum[i] : stack[level][i];
        any = any || is_taken;
    }
}

template <typename T, int N, bool MANY>
__global__ void sum_kernel(T *out, const T *terms, int n_terms, int64_t stride, int64_t n, int adds)
{
    typedef typename sum_of<T>::type A;
    int64_t at = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) * N;
    A sum[N] = {};

    if (at >= n)
        return;
    if constexpr (MANY)
        sum_groups(sum, terms + at, n_terms, stride);
    else
        sum_rest(sum, terms + at, n_terms, stride);
    packed<T, N> *to = (packed<T, N> *)(out + at), result;
    if (adds)
        result = *to;
    for (int i = 0; i < N; i++)
        result.at[i] =
            narrowed<T>(adds ? widened(result.at[i]) + widened(narrowed<T>(sum[i])) : sum[i]);
    *to = result;
}

/* ---- launching ---- */

static cudaStream_t queue_of(struct kernels *kernels, int queue)
{
    return cuda_stream_of(cuda_of(kernels)->device, queue);
}

static void check_order(const struct kernels_sum *s)
{
    CHECK(s->n_terms > 0);
    CHECK(s->n_terms < GROUP << LEVELS);
    CHECK(s->n_terms == 1 || s->stride >= s->n);
    CHECK(!s->adds || s->dtype == DTYPE_F32 || s->dtype == DTYPE_BF16);
}

/* Elements [from, from + n), which N divides. */
template <typename T, int N>
static void launch_sum(struct kernels *kernels, int queue, const struct kernels_sum *s,
                       int64_t from, int64_t n)
{
    struct cuda_shape shape = cuda_shape_of(ceil_div(n, N_THREADS * N), N_THREADS);
    T *out = (T *)s->out + from;
    const T *terms = (const T *)s->terms + from;

    if (n && s->n_terms > GROUP)
        cuda_launch_on(cuda_of(kernels)->device, queue_of(kernels, queue), "a sum over ranks",
                       shape, sum_kernel<T, N, true>, out, terms, s->n_terms, s->stride, n,
                       s->adds);
    else if (n)
        cuda_launch_on(cuda_of(kernels)->device, queue_of(kernels, queue), "a sum over ranks",
                       shape, sum_kernel<T, N, false>, out, terms, s->n_terms, s->stride, n,
                       s->adds);
}

template <typename T>
static void sum_as(struct kernels *kernels, int queue, const struct kernels_sum *s)
{
    constexpr int wide = 16 / sizeof(T);
    uintptr_t odd = (uintptr_t)s->out | (uintptr_t)s->terms;
    int is_wide = odd % 16 == 0 && (s->n_terms == 1 || s->stride % wide == 0);
    int64_t n_wide = is_wide ? s->n / wide * wide : 0;

    launch_sum<T, wide>(kernels, queue, s, 0, n_wide);
    launch_sum<T, 1>(kernels, queue, s, n_wide, s->n - n_wide);
}

static void sum_run(struct kernels *kernels, int queue, const struct kernels_sum *s)
{
    check_order(s);
    if (s->dtype == DTYPE_F64) {
        sum_as<double>(kernels, queue, s);
        return;
    }
    cuda_with_act(s->dtype, [&](auto zero) { sum_as<decltype(zero)>(kernels, queue, s); });
}

/* ---- columns ---- */

/* A thread copies one V of a row. Strides, steps and cols are counted in V. */
template <typename V>
__global__ void copy_columns_kernel(V *to, int64_t to_stride, const V *from, int64_t from_stride,
                                    int64_t rows, int64_t cols, int64_t to_step, int64_t from_step)
{
    int64_t at = (int64_t)blockIdx.x * N_THREADS + threadIdx.x, block = blockIdx.y;
    int64_t row = at / cols, col = at % cols;

    if (row < rows)
        to[block * to_step + row * to_stride + col] =
            from[block * from_step + row * from_stride + col];
}

template <typename V>
static int copy_as(struct kernels *kernels, int queue, const struct kernels_columns *c)
{
    const int64_t size = (int64_t)c->element_bytes, width = (int64_t)sizeof(V);
    int64_t to_bytes = c->to_stride * size, from_bytes = c->from_stride * size;
    int64_t to_step = c->to_step * size, from_step = c->from_step * size;
    uintptr_t odd = (uintptr_t)c->to | (uintptr_t)c->from | (uintptr_t)(c->cols * size);

    if (c->rows > 1)
        odd |= (uintptr_t)(to_bytes | from_bytes);
    if (c->n_blocks > 1)
        odd |= (uintptr_t)(to_step | from_step);
    if (odd % sizeof(V))
        return 0;
    int64_t cols = c->cols * size / width;
    struct cuda_shape shape = cuda_shape_of(ceil_div(c->rows * cols, N_THREADS), N_THREADS);
    shape.grid.y = c->n_blocks ? (unsigned)c->n_blocks : 1;
    cuda_launch_on(cuda_of(kernels)->device, queue_of(kernels, queue), "a copy of columns", shape,
                   copy_columns_kernel<V>, (V *)c->to, to_bytes / width, (const V *)c->from,
                   from_bytes / width, c->rows, cols, to_step / width, from_step / width);
    return 1;
}

static void copy_columns_run(struct kernels *kernels, int queue, const struct kernels_columns *c)
{
    if (!c->rows || !c->cols)
        return;
    if (!copy_as<uint4>(kernels, queue, c) && !copy_as<uint64_t>(kernels, queue, c) &&
        !copy_as<uint32_t>(kernels, queue, c) && !copy_as<uint16_t>(kernels, queue, c))
        copy_as<uint8_t>(kernels, queue, c);
}

/* Every dtype, one element or many at once, few terms or many; columns by the widths of copies. */
static void load(struct kernels *kernels, int queue)
{
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };

    cuda_of(kernels)->device->is_loading = 1;
    for (enum dtype dtype : dtypes)
        for (int n_terms : { 1, GROUP + 1 }) {
            const struct kernels_sum sum = { dtype, NULL, NULL, n_terms, 32, 17, 0 };

            sum_run(kernels, queue, &sum);
        }
    for (size_t width = 1; width <= 16; width *= 2) {
        const int64_t n = (int64_t)width;
        const struct kernels_columns columns = { NULL, n, NULL, n, 2, n, 1, 0, 0, 0 };

        copy_columns_run(kernels, queue, &columns);
    }
    cuda_load_rows(kernels, queue);
    cuda_of(kernels)->device->is_loading = 0;
}

const struct kernels_traffic *cuda_traffic(void)
{
    static const struct kernels_traffic traffic = { sum_run, copy_columns_run, cuda_pack_rows,
                                                    cuda_unpack_rows, load };

    return &traffic;
}
