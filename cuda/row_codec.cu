/*
 * row_codec.cu - rows of activations in fewer bytes, and back; what attention each key receives
 *
 * Codes have the bits of lib/kernels/cpu/row_codec.c, which says which IEEE operations in which
 * order. One thread block chooses a part's rows; then a block has a row. Scores: a block has a key,
 * its threads the queries that see it. Bound by memory; by loads of queries.
 */
#include "cuda/attention.cuh"
#include "cuda/rows.cuh"

extern "C" {
#include "ops/row_codec.h"
}

enum { LANES = 32, ROW_THREADS = 128, CHOICE_THREADS = 1024, KEY_THREADS = 128, WAITING_MAX = 24 };

static __constant__ float row_breaks[ROW_BREAKS] = { ROW_BREAK_VALUES };

static __device__ __forceinline__ uint32_t size_bits(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

static __device__ float row_break(float s)
{
    float at = s - 1 < ROW_BREAKS - 1 ? s - 1 : ROW_BREAKS - 1;
    int i = at > 0 ? (int)at : 0;
    float low = row_breaks[i], high = row_breaks[i + 1 < ROW_BREAKS ? i + 1 : i];

    return low + (at > 0 ? at - (float)i : 0) * (high - low);
}

/* ---- which rows travel in full ---- */

/* Of rows [n], by whether they travel in full: their places among those, or among the others. */
static __device__ void place_rows(const uint8_t *is_full, int64_t n, int32_t *place)
{
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        int32_t before = 0;

        for (int64_t k = 0; k < i; k++)
            before += is_full[k] == is_full[i];
        place[i] = is_full[i] ? before : -1 - before;
    }
}

static __global__ void __launch_bounds__(CHOICE_THREADS)
    choose_kernel(rows_of<float> scores, row_codes c, uint8_t *codes, int64_t row_bytes,
                  uint8_t *is_full, int32_t *place)
{
    int64_t first = blockIdx.x * c.n_rows;
    int32_t *full = (int32_t *)(codes + blockIdx.x * row_bytes);

    for (int64_t i = threadIdx.x; i < c.n_rows; i += CHOICE_THREADS) {
        uint32_t own = size_bits(*scores.row(first + i));
        int64_t above = 0;

        for (int64_t k = 0; k < c.n_rows; k++) {
            uint32_t other = size_bits(*scores.row(first + k));

            above += other > own || (other == own && k < i);
        }
        is_full[first + i] = above < c.n_full;
    }
    __syncthreads();
    place_rows(is_full + first, c.n_rows, place + first);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < c.n_rows; i += CHOICE_THREADS)
        if (place[first + i] >= 0)
            full[place[first + i]] = (int32_t)i;
}

/* The places again, where the codes have arrived. */
static __global__ void __launch_bounds__(CHOICE_THREADS)
    place_kernel(row_codes c, const uint8_t *codes, int64_t row_bytes, uint8_t *is_full,
                 int32_t *place)
{
    int64_t first = blockIdx.x * c.n_rows;
    const int32_t *full = (const int32_t *)(codes + blockIdx.x * row_bytes);

    for (int64_t i = threadIdx.x; i < c.n_rows; i += CHOICE_THREADS)
        is_full[first + i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < c.n_full; i += CHOICE_THREADS)
        is_full[first + full[i]] = 1;
    __syncthreads();
    place_rows(is_full + first, c.n_rows, place + first);
}

/* ---- rows ---- */

struct row_grid {
    float t, inner, outer;
    int n_levels;
};

static __device__ __forceinline__ row_grid grid_of(const float *scales, int bits)
{
    int n = row_code_levels(bits);
    row_grid g = { scales[0], scales[0] / (float)n, (scales[1] - scales[0]) / (float)n, n };

    return g;
}

/* t and max, by the block's first LANES threads. */
template <typename T> static __device__ void row_scales(const T *x, int64_t n, float *scales)
{
    __shared__ double squares[LANES];
    __shared__ uint32_t most[LANES];
    unsigned lane = threadIdx.x;

    if (lane < LANES) {
        squares[lane] = 0;
        most[lane] = 0;
        for (int64_t i = lane; i < n; i += LANES) {
            float v = to_float(x[i]);

            most[lane] = max(most[lane], size_bits(v));
            squares[lane] += (double)v * (double)v;
        }
    }
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            squares[lane] += squares[lane + half];
            most[lane] = max(most[lane], most[lane + half]);
        }
    }
    if (lane == 0) {
        float rms = (float)sqrt(squares[0] / (double)n);
        float largest =
            most[0] >= 0x7f800000u ? __uint_as_float(0x7fc00000u) : __uint_as_float(most[0]);

        scales[0] = most[0] ? largest * row_break(largest / rms) : 0;
        scales[1] = largest;
    }
    __syncthreads();
}

static __device__ __forceinline__ unsigned code_of(float x, const row_grid &g)
{
    uint32_t size = size_bits(x);
    bool is_outer = size > __float_as_uint(g.t);
    float step = is_outer ? g.outer : g.inner, per = step > 0 ? 1.0f / step : 0;
    int level = (int)((__uint_as_float(size) - (is_outer ? g.t : 0)) * per);

    level = level < g.n_levels - 1 ? level : g.n_levels - 1;
    return (unsigned)(level + (is_outer ? g.n_levels : 0)) +
           (__float_as_uint(x) >> 31) * 2 * (unsigned)g.n_levels;
}

static __device__ __forceinline__ float value_of(unsigned code, const row_grid &g)
{
    bool is_outer = code & (unsigned)g.n_levels;
    float level = (float)(int)(code & (unsigned)(g.n_levels - 1)) + 0.5f;
    float size = (is_outer ? g.t : 0) + level * (is_outer ? g.outer : g.inner);

    return code & 2 * (unsigned)g.n_levels ? -size : size;
}

template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    encode_rows_kernel(rows_of<T> x, row_codes c, uint8_t *codes, int64_t row_bytes,
                       const int32_t *places)
{
    const T *row = x.row(blockIdx.x);
    uint8_t *to = codes + blockIdx.x / c.n_rows * row_bytes;
    int32_t place = places[blockIdx.x];
    __shared__ float scales[2];

    if (place >= 0) {
        T *full = (T *)(to + row_codes_full_at(&c, place));

        for (int64_t i = threadIdx.x; i < c.cols; i += ROW_THREADS)
            full[i] = row[i];
        return;
    }
    to += row_codes_small_at(&c, -1 - place);
    row_scales(row, c.cols, scales);
    if (threadIdx.x < 2)
        ((float *)to)[threadIdx.x] = scales[threadIdx.x];
    to += 2 * sizeof(float);
    row_grid g = grid_of(scales, c.bits);
    bool is_nan = scales[1] != scales[1];
    int n_a_byte = 8 / c.bits;

    for (int64_t i = threadIdx.x; i < c.cols / n_a_byte; i += ROW_THREADS) {
        unsigned code = code_of(to_float(row[i * n_a_byte]), g);

        if (n_a_byte == 2)
            code |= code_of(to_float(row[2 * i + 1]), g) << 4;
        to[i] = (uint8_t)(is_nan ? 0 : code);
    }
}

/* Element `col` of the row that has this place. */
template <typename T>
static __device__ __forceinline__ float decoded(const uint8_t *codes, const row_codes &c,
                                                int32_t place, int64_t col)
{
    if (place >= 0)
        return to_float(((const T *)(codes + row_codes_full_at(&c, place)))[col]);
    const float *scales = (const float *)(codes + row_codes_small_at(&c, -1 - place));
    const uint8_t *at = (const uint8_t *)(scales + 2);

    return value_of(c.bits == 8 ? at[col] : at[col / 2] >> (col % 2 * 4) & 0xfu,
                    grid_of(scales, c.bits));
}

template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    decode_rows_kernel(const uint8_t *codes, int64_t row_bytes, int64_t n_parts, bool is_joined,
                       row_codes c, const int32_t *places, rows_of<T> y)
{
    int64_t row = blockIdx.x, of_part = row % c.n_rows, first = is_joined ? row / c.n_rows : 0;
    int64_t n_summands = is_joined ? 1 : n_parts;

    for (int64_t col = threadIdx.x; col < c.cols; col += ROW_THREADS) {
        float waiting[WAITING_MAX];
        int n_waiting = 0;

        for (int64_t i = 0; i < n_summands; i++) {
            waiting[n_waiting++] = decoded<T>(codes + (first + i) * row_bytes, c,
                                              places[(first + i) * c.n_rows + of_part], col);
            for (int64_t k = i + 1; k % 2 == 0; k /= 2, n_waiting--)
                waiting[n_waiting - 2] += waiting[n_waiting - 1];
        }
        for (; n_waiting > 1; n_waiting--)
            waiting[n_waiting - 2] += waiting[n_waiting - 1];
        y.row(row)[col] = from_float<T>(waiting[0]);
    }
}

static row_codes codes_for(const struct op_shape *op, const struct tensor *x, int64_t n_parts)
{
    return ops_row_codes(op->attributes.ratio, op->attributes.bits, x->rows / n_parts, x->cols,
                         dtype_bytes(x->dtype));
}

static void encode_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *x = &op->in[ENCODE_ROWS_X], *codes = &op->out[ENCODE_ROWS_CODES];
    row_codes c = codes_for(op, x, codes->rows);
    int32_t *places = (int32_t *)call->scratch;
    uint8_t *is_full = (uint8_t *)(places + x->rows);

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(codes->rows, CHOICE_THREADS), choose_kernel,
                cuda_rows<float>(&op->in[ENCODE_ROWS_SCORES]), c, (uint8_t *)codes->data,
                codes->stride, is_full, places);
    cuda_with_act(x->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        cuda_launch(kernels, call, cuda_shape_of(x->rows, ROW_THREADS), encode_rows_kernel<T>,
                    cuda_rows<T>(x), c, (uint8_t *)codes->data, codes->stride,
                    (const int32_t *)places);
    });
}

static void decode_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *codes = &op->in[DECODE_ROWS_CODES], *y = &op->out[DECODE_ROWS_Y];
    bool is_joined = op->attributes.joined;
    row_codes c = codes_for(op, y, is_joined ? codes->rows : 1);
    int32_t *places = (int32_t *)call->scratch;
    uint8_t *is_full = (uint8_t *)(places + codes->rows * c.n_rows);

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(codes->rows, CHOICE_THREADS), place_kernel, c,
                (const uint8_t *)codes->data, codes->stride, is_full, places);
    cuda_with_act(y->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        cuda_launch(kernels, call, cuda_shape_of(y->rows, ROW_THREADS), decode_rows_kernel<T>,
                    (const uint8_t *)codes->data, codes->stride, codes->rows, is_joined, c,
                    (const int32_t *)places, cuda_rows<T>(y));
    });
}

/* ---- scores ---- */

template <typename T>
static __global__ void __launch_bounds__(KEY_THREADS)
    received_kernel(attention_args a, rows_of<T> q, rows_of<T> k, rows_of<float> lse,
                    rows_of<float> scores)
{
    int64_t sequence = blockIdx.x / a.seq_len, begin = sequence * a.seq_len;
    int key = (int)(blockIdx.x % a.seq_len);
    __shared__ float sums[KEY_THREADS];
    float sum = 0;

    for (int head = 0; head < a.n_heads; head++) {
        const T *keys = k.row(begin + key) + head / a.group * a.head_dim;
        float slope = attention_slope(a, head);

        for (int query = (int)threadIdx.x; query < a.seq_len; query += KEY_THREADS) {
            int own = attention_last_of(a, sequence, query);

            if (key > own || key < attention_first_of(a, sequence, query))
                continue;
            const T *queries = q.row(begin + query) + head * a.head_dim;
            float dot = 0;
            for (int i = 0; i < a.head_dim; i++)
                dot = fmaf(to_float(queries[i]) * a.scale, to_float(keys[i]), dot);
            sum += exp2f(dot * LOG2_E + slope * (float)(key - own) -
                         lse.row(begin + query)[head] * LOG2_E);
        }
    }
    sums[threadIdx.x] = sum;
    for (unsigned half = KEY_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *scores.row(begin + key) = sums[0];
}

static void received_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *at = &op->attributes;
    const struct tensor *q = &op->in[ATTENTION_RECEIVED_Q];
    struct attention_args a = {};

    (void)first;
    a.n_heads = at->n_heads;
    a.group = at->n_heads / at->n_kv_heads;
    a.head_dim = at->head_dim;
    a.seq_len = a.key_len = at->seq_len;
    a.window = at->window;
    a.alibi = at->alibi;
    a.scale = (float)at->scale;
    a.begin = (const int32_t *)op->in[ATTENTION_RECEIVED_HEAD_OFFSET].data;
    a.first = (const int32_t *)op->in[ATTENTION_RECEIVED_FIRST].data;
    a.first_stride = op->in[ATTENTION_RECEIVED_FIRST].stride;
    a.last = (const int32_t *)op->in[ATTENTION_RECEIVED_LAST].data;
    a.last_stride = op->in[ATTENTION_RECEIVED_LAST].stride;
    cuda_with_act(q->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        cuda_launch(kernels, call, cuda_shape_of(q->rows, KEY_THREADS), received_kernel<T>, a,
                    cuda_rows<T>(q), cuda_rows<T>(&op->in[ATTENTION_RECEIVED_K]),
                    cuda_rows<float>(&op->in[ATTENTION_RECEIVED_LSE]),
                    cuda_rows<float>(&op->out[ATTENTION_RECEIVED_SCORES]));
    });
}

void cuda_register_row_codec(struct kernels_backend *table)
{
    table->entries[OP_ENCODE_ROWS].run = encode_rows_run;
    table->entries[OP_DECODE_ROWS].run = decode_rows_run;
    table->entries[OP_ATTENTION_RECEIVED].run = received_run;
}
