/*
 * cudnn_run.cc - see the header
 */
#include "cuda/emulate/cudnn_run.h"

#include <math.h>

#include "cuda/cudnn.cuh"

namespace
{

double read_element(const void *data, int data_type, int64_t at)
{
    uint32_t bits;
    float value;

    switch (data_type) {
    case DNN_DATA_BFLOAT16:
        bits = (uint32_t)((const uint16_t *)data)[at] << 16;
        memcpy(&value, &bits, sizeof value);
        return value;
    case DNN_DATA_HALF:
        return (double)((const _Float16 *)data)[at];
    default:
        return ((const float *)data)[at];
    }
}

float rounded(int data_type, float value)
{
    if (data_type == DNN_DATA_BFLOAT16)
        return to_float(from_float<bf16>(value));
    return data_type == DNN_DATA_HALF ? to_float(from_float<fp16>(value)) : value;
}

void write_element(void *data, int data_type, int64_t at, float value)
{
    if (data_type == DNN_DATA_BFLOAT16)
        ((bf16 *)data)[at] = from_float<bf16>(value);
    else if (data_type == DNN_DATA_HALF)
        ((fp16 *)data)[at] = from_float<fp16>(value);
    else
        ((float *)data)[at] = value;
}

/* f(number of the element in row-major order, its place by strides, its four indices) */
template <typename F> void each(const tensor_info &t, F f)
{
    int64_t i[4], at = 0;

    for (i[0] = 0; i[0] < t.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < t.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < t.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < t.dims[3]; i[3]++, at++)
                    f(at,
                      i[0] * t.strides[0] + i[1] * t.strides[1] + i[2] * t.strides[2] +
                          i[3] * t.strides[3],
                      i);
}

/* Where the element that stands for index i is in a tensor with fewer, or grouped, ones. */
int64_t place_in(const tensor_info &small, const tensor_info &large, const int64_t i[4])
{
    int64_t at = 0;

    for (int k = 0; k < 4; k++)
        at = at * small.dims[k] + i[k] / (large.dims[k] / small.dims[k]);
    return at;
}

float pointwise(int mode, float x, float b, bool condition)
{
    switch (mode) {
    case DNN_POINTWISE_ADD:
        return x + b;
    case DNN_POINTWISE_SUB:
        return x - b;
    case DNN_POINTWISE_MUL:
        return x * b;
    case DNN_POINTWISE_DIV:
        return x / b;
    case DNN_POINTWISE_EXP:
        return expf(x);
    case DNN_POINTWISE_LOG:
        return logf(x);
    case DNN_POINTWISE_CMP_GT:
        return x > b;
    case DNN_POINTWISE_CMP_GE:
        return x >= b;
    case DNN_POINTWISE_BINARY_SELECT:
        return condition ? x : b;
    default:
        return NAN;
    }
}

struct runner {
    std::map<int64_t, dense> &values;
    std::map<int64_t, void *> &memory;

    const dense &read(const tensor_info &t)
    {
        dense &value = values[t.uid];

        if (!value.empty())
            return value;
        value.resize((size_t)t.elements());
        each(t, [&](int64_t at, int64_t place, const int64_t *) {
            value[(size_t)at] = (float)read_element(memory.at(t.uid), t.data_type, place);
        });
        return value;
    }

    void write(const tensor_info &t, dense value)
    {
        each(t, [&](int64_t at, int64_t place, const int64_t *) {
            if (t.is_virtual)
                value[(size_t)at] = rounded(t.data_type, value[(size_t)at]);
            else
                write_element(memory.at(t.uid), t.data_type, place, value[(size_t)at]);
        });
        values[t.uid] = std::move(value);
    }

    void do_pointwise(const operation &o)
    {
        dense y((size_t)o.y.elements());

        each(o.y, [&](int64_t at, int64_t, const int64_t *i) {
            if (o.mode == DNN_POINTWISE_GEN_INDEX)
                y[(size_t)at] = (float)i[o.axis];
            else
                y[(size_t)at] = pointwise(o.mode, read(o.x)[(size_t)at],
                                          o.has_b ? read(o.b)[(size_t)place_in(o.b, o.x, i)] : 0,
                                          o.has_condition && read(o.condition)[(size_t)at] != 0);
        });
        write(o.y, std::move(y));
    }

    void do_matmul(const operation &o)
    {
        const dense &a = read(o.x), &b = read(o.b);
        dense c((size_t)o.y.elements());
        int64_t k = o.x.dims[3], n = o.b.dims[3], group = o.x.dims[1] / o.b.dims[1];

        each(o.y, [&](int64_t at, int64_t, const int64_t *i) {
            const float *row = &a[(size_t)(((i[0] * o.x.dims[1] + i[1]) * o.x.dims[2] + i[2]) * k)];
            const float *col = &b[(size_t)((i[0] * o.b.dims[1] + i[1] / group) * k * n + i[3])];
            double sum = 0;

            for (int64_t j = 0; j < k; j++)
                sum += (double)row[j] * col[j * n];
            c[(size_t)at] = (float)sum;
        });
        write(o.y, std::move(c));
    }

    void do_reduction(const operation &o)
    {
        const dense &x = read(o.x);
        bool max = o.mode == DNN_REDUCE_TENSOR_MAX;
        std::vector<double> y((size_t)o.y.elements(), max ? -INFINITY : 0);

        each(o.x, [&](int64_t at, int64_t, const int64_t *i) {
            double &sum = y[(size_t)place_in(o.y, o.x, i)];

            sum = max ? std::max(sum, (double)x[(size_t)at]) : sum + x[(size_t)at];
        });
        write(o.y, dense(y.begin(), y.end()));
    }

    void do_reshape(const operation &o)
    {
        const dense &x = read(o.x);
        dense y((size_t)o.y.elements());
        const int64_t *n = o.x.dims;

        each(o.y, [&](int64_t at, int64_t, const int64_t *i) {
            y[(size_t)at] = x[(size_t)(((i[0] * n[1] + i[1]) * n[2] + i[3]) * n[3] + i[2])];
        });
        write(o.y, std::move(y));
    }
};

} /* namespace */

void emulate_run_graph(graph_run *run, const std::vector<operation> &operations)
{
    runner r = { run->values, run->memory };

    for (const operation &o : operations)
        switch (o.kind) {
        case DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            r.do_pointwise(o);
            break;
        case DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            r.do_matmul(o);
            break;
        case DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            r.do_reduction(o);
            break;
        default:
            r.do_reshape(o);
        }
}
