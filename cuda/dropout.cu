/*
 * dropout.cu - dropout of rows, and its gradient, which is the same function of dy
 *
 * Which elements are dropped is kernels/cpu/dropout_impl.h's pure function of seed, sample, place,
 * position and column: one Philox block gives the words of four neighbouring columns. Work lies as
 * elements.cuh says, at least four columns a thread. Bound by Philox for bf16: ten rounds are some
 * 25 instructions an element, about as long as its four bytes take.
 */
#include "cuda/elements.cuh"
#include "cuda/rng.cuh"

extern "C" {
#include "base/rng.h"
}

#include <math.h>

template <typename T, int PACK, int WIDE> struct dropped {
    enum { N = PACK };
    struct operands {
        float x[N];
    };
    rows_of<T> x, y;
    rows_of<int64_t> sample;
    rows_of<int32_t> number; /* of rows in the micro-batch, or at NULL: from *begin on */
    const int32_t *begin;
    uint64_t key, place;          /* place: times the constant that mixes samples in */
    int64_t n_cols, n_whole_rows; /* whole: of the micro-batch */
    int64_t n_numbers;            /* without them n_whole_rows */
    unsigned seq_len, threshold;
    int by_columns;
    float scale;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_row_floats<T, N, WIDE>(x.row(row) + col, n_cols - col, o->x);
    }

    /* The word's upper 24 bits are the uniform number's: it is p or more where these are. */
    __device__ __forceinline__ float kept(unsigned word, float x) const
    {
        return word >> 8 >= threshold ? x * scale : 0.0f;
    }

    __device__ __forceinline__ uint4 words(uint64_t high, unsigned position, int64_t quad) const
    {
        return cuda_philox(key, (uint64_t)position << 32 | (uint64_t)quad, high);
    }

    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        int64_t from = begin ? *begin : 0, whole = by_columns ? from + col : col;
        int64_t place_row = by_columns ? row : from + row;

        device_check(from >= 0 && place_row < n_numbers);
        if (number.at) {
            place_row = *number.row(place_row);
            device_check(place_row >= 0 && place_row < n_whole_rows);
        }
        unsigned in_batch = (unsigned)place_row, position = in_batch % seq_len;
        uint64_t high = place + (uint64_t)*sample.row(in_batch / seq_len);

        if (whole % 4 == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                uint4 w = words(high, position, (whole + i) / 4);

                o->x[i] = kept(w.x, o->x[i]);
                o->x[i + 1] = kept(w.y, o->x[i + 1]);
                o->x[i + 2] = kept(w.z, o->x[i + 2]);
                o->x[i + 3] = kept(w.w, o->x[i + 3]);
            }
        } else { /* a part that begins within a block of words */
#pragma unroll
            for (int i = 0; i < N; i++) {
                uint4 w = words(high, position, (whole + i) / 4);
                int lane = (int)((whole + i) % 4);

                o->x[i] = kept(lane == 0 ? w.x : lane == 1 ? w.y : lane == 2 ? w.z : w.w, o->x[i]);
            }
        }
        store_row_floats<T, N, WIDE>(y.row(row) + col, n_cols - col, o->x);
    }
};

template <typename T, int N, int WIDE>
static void dropout_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *a = &op->attributes;
    dropped<T, N, WIDE> d = {};

    d.x = cuda_rows<T>(&op->in[DROPOUT_X]);
    d.y = cuda_rows<T>(&op->out[DROPOUT_Y]);
    d.sample = cuda_rows<int64_t>(&op->in[DROPOUT_SAMPLE]);
    d.begin = cuda_rows<int32_t>(&op->in[DROPOUT_OFFSET]).at;
    d.key = a->seed ^ (uint64_t)RNG_DROPOUT << 56;
    d.place = a->rng_site * 0x9E3779B97F4A7C15u;
    d.n_cols = op->in[DROPOUT_X].cols;
    d.n_whole_rows = op->in[DROPOUT_SAMPLE].rows * a->seq_len;
    d.number = cuda_rows<int32_t>(&op->in[DROPOUT_ROW]);
    d.n_numbers = d.number.at ? op->in[DROPOUT_ROW].rows : d.n_whole_rows;
    d.seq_len = (unsigned)a->seq_len;
    d.threshold = (unsigned)ceil((double)(float)a->p * 0x1p24);
    d.by_columns = a->by_columns;
    d.scale = (float)(1.0 / (1.0 - a->p));
    cuda_elements(kernels, call, d, op->in[DROPOUT_X].rows, d.n_cols);
}

static void dropout_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;

    (void)first;
    cuda_with_act(op->out[DROPOUT_Y].dtype, [&](auto zero) {
        typedef decltype(zero) T;

        if (cuda_is_aligned(&op->in[DROPOUT_X], 16) && cuda_is_aligned(&op->out[DROPOUT_Y], 16))
            dropout_launch<T, 16 / sizeof(T), 1>(kernels, call);
        else
            dropout_launch<T, 4, 0>(kernels, call);
    });
}

void cuda_register_dropout(struct kernels_backend *table)
{
    table->entries[OP_DROPOUT].run = dropout_run;
    table->entries[OP_DROPOUT_GRAD].run = dropout_run;
}
