/*
 * gradient_norm.cu - the gradients' norm, with the bits of the CPU's
 *
 * lib/kernels/cpu/gradient_norm.c says which IEEE operations in which order; here the same ones are
 * spread over threads.
 *
 *   sumsq          16 threads take the 16 lanes of a block of OPS_NORM_BLOCK elements, and add them
 *                  as the CPU's tree. They load whole lines together, 16 bytes each, and take their
 *                  lane's elements from shared memory. Bound by memory: each thread has 64 bytes
 *                  under way while it adds those before. A float's square is exact in double, so
 *                  fma is product and sum.
 *   sum_runs       a run is one chain of dependent adds, some 8 cycles each, and a thread block
 *   gradient_norm  takes it: one thread adds what the others bring into shared memory ahead of it.
 *                  Runs are parameters: a 7B model's longest has 32,000 sums (0.2 ms), all of them
 *                  at once, and the norm adds one number a parameter.
 */
#include "cuda/rows.cuh"

/* ---- sums of squares ---------------------------------------------------------------------------
 */

enum { LANES = 16, SUMSQ_THREADS = 256, SUMSQ_BYTES = 64 /* of a thread under way */ };

template <typename T> static __device__ __forceinline__ double add_square(T x, double sum)
{
    double value = (double)to_float(x);

    return fma(value, value, sum);
}

/* What the lanes of a block load at once: 16 bytes of each at a time. */
template <typename T> struct sumsq_chunk {
    enum {
        N_PACKS = SUMSQ_BYTES / 16,
        N_ROUNDS = SUMSQ_BYTES / sizeof(T), /* elements of a lane */
        N_ELEMENTS = N_ROUNDS * LANES,
        ROOM = N_PACKS * LANES + 2, /* so that both blocks of a warp read from banks of their own */
    };
};

template <typename T>
static __device__ __forceinline__ void load_chunk(const T *from, uint4 (&packs)[SUMSQ_BYTES / 16])
{
#pragma unroll
    for (int k = 0; k < SUMSQ_BYTES / 16; k++)
        packs[k] = ((const uint4 *)from)[k * LANES + threadIdx.x % LANES];
}

/* The lane's elements of what the lanes of a block have loaded, in their order, on top of sum. */
template <typename T>
static __device__ __forceinline__ double
add_chunk(uint4 *room, const uint4 (&packs)[SUMSQ_BYTES / 16], double sum)
{
    const T *own = (const T *)room + threadIdx.x % LANES;
    unsigned lanes = 0xffffu << threadIdx.x % 32 / LANES * LANES;

    __syncwarp(lanes); /* what was there has been read */
#pragma unroll
    for (int k = 0; k < sumsq_chunk<T>::N_PACKS; k++)
        room[k * LANES + threadIdx.x % LANES] = packs[k];
    __syncwarp(lanes);
#pragma unroll
    for (int k = 0; k < sumsq_chunk<T>::N_ROUNDS; k++)
        sum = add_square(own[k * LANES], sum);
    return sum;
}

/* The lane's elements of n_chunks > 0 of a block, at a multiple of 16 bytes. */
template <typename T>
static __device__ __forceinline__ double lane_of_chunks(const T *x, int64_t n_chunks)
{
    enum { N_PACKS = sumsq_chunk<T>::N_PACKS };
    __shared__ uint4 shared[SUMSQ_THREADS / LANES][sumsq_chunk<T>::ROOM];
    uint4 *room = shared[threadIdx.x / LANES], now[N_PACKS], next[N_PACKS];
    double sum = 0;

    load_chunk(x, next);
    while (--n_chunks > 0) {
#pragma unroll
        for (int k = 0; k < N_PACKS; k++)
            now[k] = next[k];
        x += sumsq_chunk<T>::N_ELEMENTS;
        load_chunk(x, next);
        sum = add_chunk<T>(room, now, sum);
    }
    return add_chunk<T>(room, next, sum);
}

/* The same of all that is left of a block, for any address. */
template <typename T>
static __device__ __forceinline__ double lane_of_dense(const T *x, int64_t i, int64_t end,
                                                       double sum)
{
#pragma unroll 16
    for (; i < end; i += LANES)
        sum = add_square(x[i], sum);
    return sum;
}

template <typename T>
static __device__ __forceinline__ double lane_of_rows(rows_of<T> x, int64_t cols, int64_t i,
                                                      int64_t end)
{
    int64_t row = i / cols, col = i % cols;
    double sum = 0;

    for (; i < end; i += LANES) {
        sum = add_square(x.row(row)[col], sum);
        for (col += LANES; col >= cols; row++)
            col -= cols;
    }
    return sum;
}

/* cols: 0 where rows lie one after the other. WIDE: they do, from a multiple of 16 bytes on. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(SUMSQ_THREADS)
    sumsq_kernel(rows_of<T> x, int64_t cols, int64_t n, double *sums, int64_t n_blocks)
{
    enum { CHUNK = sumsq_chunk<T>::N_ELEMENTS };
    int64_t thread = (int64_t)blockIdx.x * SUMSQ_THREADS + threadIdx.x;
    int64_t block = thread / LANES, lane = thread % LANES, begin = block * OPS_NORM_BLOCK;
    int64_t end = begin + OPS_NORM_BLOCK < n ? begin + OPS_NORM_BLOCK : n;
    double sum = 0;

    if (WIDE && begin + CHUNK <= end) {
        sum = lane_of_chunks(x.at + begin, (end - begin) / CHUNK);
        begin = end - (end - begin) % CHUNK;
    }
    if (begin + lane < end)
        sum = cols ? lane_of_rows(x, cols, begin + lane, end)
                   : lane_of_dense(x.at, begin + lane, end, sum);
    for (unsigned half = LANES / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, half, LANES);
    if (lane == 0 && block < n_blocks)
        sums[block] = sum;
}

static void sumsq_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *x = &call->op.in[SUMSQ_X], *sums = &call->op.out[SUMSQ_SUMS];
    struct cuda_shape shape =
        cuda_shape_of(ceil_div(sums->cols * LANES, SUMSQ_THREADS), SUMSQ_THREADS);

    (void)first;
    cuda_with_act(x->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        int wide = cuda_is_dense(x) && (uintptr_t)x->data % 16 == 0;

        cuda_launch(kernels, call, shape, wide ? sumsq_kernel<T, 1> : sumsq_kernel<T, 0>,
                    cuda_rows<T>(x), cuda_is_dense(x) ? 0 : x->cols, tensor_elements(x),
                    (double *)sums->data, sums->cols);
    });
}

/* ---- sums one after the other ------------------------------------------------------------------
 */

enum { CHAIN_THREADS = 256, CHAIN_ADDER = 32 };
static constexpr int64_t CHAIN_CHUNK = 2048;

/* The threads behind the first warp bring x[order[i]] of [begin, end), or x[i]. */
static __device__ __forceinline__ void bring(double *into, const double *x, const int32_t *order,
                                             int64_t begin, int64_t end)
{
    int64_t n = end - begin < CHAIN_CHUNK ? end - begin : CHAIN_CHUNK;

#pragma unroll 4
    for (int64_t i = (int64_t)threadIdx.x - CHAIN_ADDER; i < n; i += CHAIN_THREADS - CHAIN_ADDER)
        into[i] = order ? x[order[begin + i]] : x[begin + i];
}

/*
 * Elements [begin, end) of x, or those that order names there, one after the other: thread 0's
 * result. All threads of the thread block come here.
 */
static __device__ double chain_sum(const double *x, const int32_t *order, int64_t begin,
                                   int64_t end)
{
    __shared__ double chunk[2][CHAIN_CHUNK];
    double sum = 0;
    int now = 0;

    if (threadIdx.x >= CHAIN_ADDER)
        bring(chunk[0], x, order, begin, end);
    for (; begin < end; begin += CHAIN_CHUNK, now = !now) {
        __syncthreads();
        if (threadIdx.x >= CHAIN_ADDER) {
            bring(chunk[!now], x, order, begin + CHAIN_CHUNK, end);
        } else if (threadIdx.x == 0) {
            int n = (int)(end - begin < CHAIN_CHUNK ? end - begin : CHAIN_CHUNK);

#pragma unroll 64 /* the first loads of a turn are waited for */
            for (int i = 0; i < n; i++)
                sum += chunk[now][i];
        }
    }
    return sum;
}

__global__ void sum_runs_kernel(const double *x, const int32_t *ends, const int32_t *order,
                                double *y)
{
    int64_t run = blockIdx.x;
    double sum = chain_sum(x, order, run ? ends[run - 1] : 0, ends[run]);

    if (threadIdx.x == 0)
        y[run] = sum;
}

static void sum_runs_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(op->out[SUM_RUNS_Y].cols, CHAIN_THREADS),
                sum_runs_kernel, (const double *)op->in[SUM_RUNS_X].data,
                (const int32_t *)op->in[SUM_RUNS_ENDS].data,
                (const int32_t *)op->in[SUM_RUNS_ORDER].data, (double *)op->out[SUM_RUNS_Y].data);
}

/* scale: NULL, or where the factor is that all gradients have too much. */
__global__ void gradient_norm_kernel(const double *sums, const int32_t *order, int64_t n,
                                     const float *scale, double clip, double *norm, float *factor,
                                     int32_t *skip)
{
    double sum = chain_sum(sums, order, 0, n);

    if (threadIdx.x == 0) {
        float by = scale ? *scale : 1.0f;
        double root = sqrt(sum) / (double)by;

        *norm = root;
        *factor = (clip > 0 && root > clip ? (float)(clip / root) : 1.0f) / by;
        *skip = !isfinite(root);
    }
}

static void gradient_norm_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *order = &op->in[GRADIENT_NORM_ORDER];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(1, CHAIN_THREADS), gradient_norm_kernel,
                (const double *)op->in[GRADIENT_NORM_SUMS].data, (const int32_t *)order->data,
                tensor_given(order) ? order->cols : op->in[GRADIENT_NORM_SUMS].cols,
                cuda_rows<float>(&op->in[GRADIENT_NORM_SCALE]).at, op->attributes.clip,
                (double *)op->out[GRADIENT_NORM_NORM].data,
                (float *)op->out[GRADIENT_NORM_CLIP_FACTOR].data,
                (int32_t *)op->out[GRADIENT_NORM_SKIP_UPDATE].data);
}

void cuda_register_gradient_norm(struct kernels_backend *table)
{
    table->entries[OP_SUMSQ].run = sumsq_run;
    table->entries[OP_SUM_RUNS].run = sum_runs_run;
    table->entries[OP_GRADIENT_NORM].run = gradient_norm_run;
}
