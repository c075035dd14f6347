/*
 * cudnn.cc - a stand-in for cuDNN's backend API, which runs graphs by plain loops
 *
 * It takes any graph of the operations that it has, one after the other, with every tensor in
 * memory: so sizes, strides, ids, masks, the order of operations and the life of descriptors are
 * tested, but not whether cuDNN's engines know the pattern (test/cuda/cudnn_plans.cu asks them).
 *
 * It is strict where cuDNN may be: attributes must have their type, descriptors be finalized once
 * and before use, and destroyed before the last handle, a pack name each tensor in memory once,
 * aligned to 16. Of an engine's recommendations the first is not deterministic (its plan cannot be
 * run) and the second has no plan. The workspace is large for small tests' sake, and written over,
 * all of it. Work is done when the stream comes to it, by numbers that were read when it was given.
 *
 * Ranks may be threads of one process: each has handles and descriptors of its own, and the list of
 * those that live is everybody's.
 */
#include "cuda/emulate/cudnn.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda/cudnn.cuh"

namespace
{

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };

thread_local char last_error[256];
std::mutex *live_lock = new std::mutex(); /* guards live() and n_handles */
int n_handles;

typedef std::lock_guard<std::mutex> hold;

int refuse(int status, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    return status;
}

struct attribute {
    int type;
    int64_t n;
    std::vector<char> bytes;
};

/* ---- what a plan runs --------------------------------------------------------------------------
 */

struct tensor_info {
    int64_t uid, dims[4], strides[4];
    int data_type;
    bool is_virtual, by_value;

    int64_t elements() const
    {
        return dims[0] * dims[1] * dims[2] * dims[3];
    }
};

struct operation {
    int kind, mode, axis;
    tensor_info x, b, condition, y;
    bool has_b, has_condition;
};

struct descriptor {
    int type;
    bool finalized;
    std::map<int, attribute> attributes;
    std::shared_ptr<std::vector<operation>> operations; /* operation graphs, plans */
    bool is_loaded;                                     /* plans */
};

struct handle {
    cudaStream_t stream;
};

std::set<void *> &live()
{
    static std::set<void *> all;

    return all;
}

descriptor *known(void *d)
{
    hold held(*live_lock);

    return live().count(d) ? (descriptor *)d : NULL;
}

size_t bytes_of_type(int type)
{
    switch (type) {
    case DNN_TYPE_BOOLEAN:
    case DNN_TYPE_CHAR:
        return 1;
    case DNN_TYPE_HANDLE:
    case DNN_TYPE_INT64:
    case DNN_TYPE_VOID_PTR:
    case DNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

template <typename T> T value_of(const descriptor *d, int name, int64_t i = 0)
{
    auto found = d->attributes.find(name);
    T value = T();

    if (found != d->attributes.end() && i < found->second.n)
        memcpy(&value, found->second.bytes.data() + i * (int64_t)sizeof value, sizeof value);
    return value;
}

/* Descriptors are made of the attributes that they must have, with their types. */
struct rule {
    int descriptor, attribute, type;
    bool needed;
};

const rule rules[] = {
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, true },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, true },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, true },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, true },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, true },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, false },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, false },
    { DNN_BACKEND_POINTWISE_DESCRIPTOR, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, true },
    { DNN_BACKEND_POINTWISE_DESCRIPTOR, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, true },
    { DNN_BACKEND_POINTWISE_DESCRIPTOR, DNN_ATTR_POINTWISE_AXIS, DNN_TYPE_INT64, false },
    { DNN_BACKEND_MATMUL_DESCRIPTOR, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, true },
    { DNN_BACKEND_REDUCTION_DESCRIPTOR, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, true },
    { DNN_BACKEND_REDUCTION_DESCRIPTOR, DNN_ATTR_REDUCTION_OPERATOR,
      DNN_TYPE_REDUCTION_OPERATOR_TYPE, true },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_XDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_BDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, false },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_TDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, false },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_YDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_ADESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_BDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_CDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_DESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DNN_ATTR_OPERATION_REDUCTION_DESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DNN_ATTR_OPERATION_REDUCTION_XDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DNN_ATTR_OPERATION_REDUCTION_YDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, DNN_ATTR_OPERATION_RESHAPE_XDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, DNN_ATTR_OPERATION_RESHAPE_YDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, DNN_ATTR_OPERATIONGRAPH_OPS,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE,
      true },
    { DNN_BACKEND_ENGINEHEUR_DESCRIPTOR, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_ENGINEHEUR_DESCRIPTOR, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, true },
    { DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, DNN_ATTR_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE,
      true },
    { DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
      DNN_TYPE_BACKEND_DESCRIPTOR, true },
    { DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, true },
    { DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR,
      true },
    { DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR,
      true },
};

const rule *rule_of(int descriptor, int attribute)
{
    for (const rule &r : rules)
        if (r.descriptor == descriptor && r.attribute == attribute)
            return &r;
    return NULL;
}

/* ---- operations --------------------------------------------------------------------------------
 */

bool tensor_of(const descriptor *d, int name, tensor_info *t)
{
    const descriptor *tensor = known(value_of<void *>(d, name));

    if (!tensor || tensor->type != DNN_BACKEND_TENSOR_DESCRIPTOR || !tensor->finalized)
        return false;
    t->uid = value_of<int64_t>(tensor, DNN_ATTR_TENSOR_UNIQUE_ID);
    t->data_type = value_of<int>(tensor, DNN_ATTR_TENSOR_DATA_TYPE);
    t->is_virtual = value_of<char>(tensor, DNN_ATTR_TENSOR_IS_VIRTUAL);
    t->by_value = value_of<char>(tensor, DNN_ATTR_TENSOR_IS_BY_VALUE);
    for (int i = 0; i < 4; i++) {
        t->dims[i] = value_of<int64_t>(tensor, DNN_ATTR_TENSOR_DIMENSIONS, i);
        t->strides[i] = value_of<int64_t>(tensor, DNN_ATTR_TENSOR_STRIDES, i);
    }
    return true;
}

bool divides(const tensor_info &small, const tensor_info &large)
{
    for (int i = 0; i < 4; i++)
        if (large.dims[i] % small.dims[i])
            return false;
    return true;
}

bool like(const tensor_info &a, const tensor_info &b)
{
    return !memcmp(a.dims, b.dims, sizeof a.dims);
}

bool multiplies(const operation &o)
{
    const int64_t *a = o.x.dims, *b = o.b.dims, *c = o.y.dims;

    return a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 && a[2] == c[2] &&
           a[3] == b[2] && b[3] == c[3];
}

bool transposes(const operation &o)
{
    static const int swapped[4] = { 0, 1, 3, 2 };

    for (int i = 0; i < 4; i++)
        if (o.x.dims[i] != o.y.dims[swapped[i]] || o.x.strides[i] != o.y.strides[swapped[i]])
            return false;
    return true;
}

bool same(const tensor_info &a, const tensor_info &b)
{
    return like(a, b) && !memcmp(a.strides, b.strides, sizeof a.strides) &&
           a.data_type == b.data_type && a.is_virtual == b.is_virtual && a.by_value == b.by_value;
}

/* 0, and *o, or a refusal. */
int operation_of(const descriptor *d, operation *o)
{
    const descriptor *mode = NULL;
    bool ok = true;

    *o = operation();
    o->kind = d->type;
    switch (d->type) {
    case DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        mode = known(value_of<void *>(d, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
        ok = mode && mode->finalized && tensor_of(d, DNN_ATTR_OPERATION_POINTWISE_XDESC, &o->x) &&
             tensor_of(d, DNN_ATTR_OPERATION_POINTWISE_YDESC, &o->y);
        if (!ok)
            break;
        o->mode = value_of<int>(mode, DNN_ATTR_POINTWISE_MODE);
        o->axis = (int)value_of<int64_t>(mode, DNN_ATTR_POINTWISE_AXIS);
        o->has_b = tensor_of(d, DNN_ATTR_OPERATION_POINTWISE_BDESC, &o->b);
        o->has_condition = tensor_of(d, DNN_ATTR_OPERATION_POINTWISE_TDESC, &o->condition);
        ok = like(o->x, o->y) && (!o->has_b || divides(o->b, o->x)) &&
             (!o->has_condition || like(o->condition, o->x));
        break;
    case DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        mode = known(value_of<void *>(d, DNN_ATTR_OPERATION_MATMUL_DESC));
        ok = mode && mode->finalized && tensor_of(d, DNN_ATTR_OPERATION_MATMUL_ADESC, &o->x) &&
             tensor_of(d, DNN_ATTR_OPERATION_MATMUL_BDESC, &o->b) &&
             tensor_of(d, DNN_ATTR_OPERATION_MATMUL_CDESC, &o->y) && multiplies(*o);
        break;
    case DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        mode = known(value_of<void *>(d, DNN_ATTR_OPERATION_REDUCTION_DESC));
        ok = mode && mode->finalized && tensor_of(d, DNN_ATTR_OPERATION_REDUCTION_XDESC, &o->x) &&
             tensor_of(d, DNN_ATTR_OPERATION_REDUCTION_YDESC, &o->y) && divides(o->y, o->x);
        if (ok)
            o->mode = value_of<int>(mode, DNN_ATTR_REDUCTION_OPERATOR);
        break;
    case DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        ok = tensor_of(d, DNN_ATTR_OPERATION_RESHAPE_XDESC, &o->x) &&
             tensor_of(d, DNN_ATTR_OPERATION_RESHAPE_YDESC, &o->y) && transposes(*o);
        break;
    default:
        ok = false;
    }
    return ok ? SUCCESS : refuse(BAD_PARAM, "operation %d is not well formed", d->type);
}

/* Virtual tensors are written before they are read; ids belong to one tensor; one writer each. */
int check_graph(const std::vector<operation> &operations)
{
    std::map<int64_t, tensor_info> seen;
    std::set<int64_t> written;

    for (const operation &o : operations) {
        const tensor_info *read[] = { &o.x, o.b.uid ? &o.b : NULL,
                                      o.condition.uid ? &o.condition : NULL };

        for (const tensor_info *t : read) {
            if (t && t->is_virtual && !written.count(t->uid))
                return refuse(BAD_PARAM, "tensor %lld is read before it is written",
                              (long long)t->uid);
            if (t && seen.count(t->uid) && !same(seen[t->uid], *t))
                return refuse(BAD_PARAM, "two tensors have the id %lld", (long long)t->uid);
            if (t)
                seen[t->uid] = *t;
        }
        if (o.y.by_value || !written.insert(o.y.uid).second)
            return refuse(BAD_PARAM, "tensor %lld cannot be written", (long long)o.y.uid);
        seen[o.y.uid] = o.y;
    }
    return SUCCESS;
}

int make_graph(descriptor *d)
{
    const attribute &list = d->attributes[DNN_ATTR_OPERATIONGRAPH_OPS];

    d->operations = std::make_shared<std::vector<operation>>();
    for (int64_t i = 0; i < list.n; i++) {
        const descriptor *one = known(value_of<void *>(d, DNN_ATTR_OPERATIONGRAPH_OPS, i));
        operation o;

        if (!one || !one->finalized || operation_of(one, &o))
            return refuse(BAD_PARAM, "operation %lld of the graph", (long long)i);
        d->operations->push_back(o);
    }
    return check_graph(*d->operations);
}

/* ---- running -----------------------------------------------------------------------------------
 */

typedef std::vector<float> dense;

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

struct run {
    std::map<int64_t, dense> values;
    std::map<int64_t, void *> memory;

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

void run_graph(run *r, const std::vector<operation> &operations)
{
    for (const operation &o : operations)
        switch (o.kind) {
        case DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            r->do_pointwise(o);
            break;
        case DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            r->do_matmul(o);
            break;
        case DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            r->do_reduction(o);
            break;
        default:
            r->do_reshape(o);
        }
}

/* 64 bytes an element of the largest tensor that is not stored. */
size_t workspace_bytes(const std::vector<operation> &operations)
{
    int64_t n = 0;

    for (const operation &o : operations)
        n = std::max(n, o.y.is_virtual ? o.y.elements() : 0);
    return 1000 + 64 * (size_t)n;
}

/* ---- plans -------------------------------------------------------------------------------------
 */

enum { ENGINE_ANY_ORDER = 1, ENGINE_WITHOUT_PLAN, ENGINE_GOOD, N_ENGINES = 3 };

void set_int64(descriptor *d, int name, int64_t value)
{
    const char *bytes = (const char *)&value;

    d->attributes[name] = { DNN_TYPE_INT64, 1, std::vector<char>(bytes, bytes + sizeof value) };
}

int make_plan(descriptor *d)
{
    const descriptor *config = known(value_of<void *>(d, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));

    if (!config || config->type != DNN_BACKEND_ENGINECFG_DESCRIPTOR || !config->finalized)
        return refuse(BAD_PARAM, "a plan wants a configuration");
    if (value_of<int64_t>(config, DNN_ATTR_ENGINE_GLOBAL_INDEX) == ENGINE_WITHOUT_PLAN)
        return refuse(NOT_SUPPORTED, "this engine never has a plan");
    d->operations = config->operations;
    set_int64(d, DNN_ATTR_ENGINE_GLOBAL_INDEX,
              value_of<int64_t>(config, DNN_ATTR_ENGINE_GLOBAL_INDEX));
    return SUCCESS;
}

/* The heuristics' results go into configurations that the caller made. */
int give_configs(const descriptor *d, int64_t n_wanted, int64_t *n, void **configs)
{
    const descriptor *graph = known(value_of<void *>(d, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));

    if (!graph || !graph->finalized)
        return refuse(BAD_PARAM, "heuristics want a graph");
    *n = std::min(n_wanted, (int64_t)N_ENGINES);
    for (int64_t i = 0; i < *n; i++) {
        descriptor *config = known(configs[i]);

        if (!config || config->type != DNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return refuse(BAD_PARAM, "a result's descriptor is not a configuration");
        config->finalized = true;
        config->operations = graph->operations;
        set_int64(config, DNN_ATTR_ENGINE_GLOBAL_INDEX, ENGINE_ANY_ORDER + i);
    }
    return SUCCESS;
}

/* Numbers are read now, the rest when the stream comes to it. */
int collect(const descriptor *plan, const descriptor *pack, run *r)
{
    const attribute &uids = pack->attributes.at(DNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    std::set<int64_t> wanted;

    for (int64_t i = 0; i < uids.n; i++) {
        int64_t uid = value_of<int64_t>(pack, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i);
        void *at = value_of<void *>(pack, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);

        if (!at || !r->memory.insert({ uid, at }).second)
            return refuse(BAD_PARAM, "tensor %lld is nowhere, or twice", (long long)uid);
    }
    for (const operation &o : *plan->operations)
        for (const tensor_info *t : { &o.x, &o.b, &o.condition, &o.y }) {
            if (!t->uid || t->is_virtual)
                continue;
            wanted.insert(t->uid);
            if (!r->memory.count(t->uid))
                return refuse(BAD_PARAM, "tensor %lld is missing", (long long)t->uid);
            if (t->by_value)
                r->values[t->uid] = { *(const float *)r->memory[t->uid] };
            else if ((uintptr_t)r->memory[t->uid] % 16)
                return refuse(BAD_PARAM, "tensor %lld is not aligned", (long long)t->uid);
        }
    return wanted.size() == r->memory.size() ? SUCCESS
                                             : refuse(BAD_PARAM, "a pack of too many tensors");
}

} /* namespace */

/* ---- the functions -----------------------------------------------------------------------------
 */

size_t cudnnGetVersion(void)
{
    return 91900;
}

const char *cudnnGetErrorString(int status)
{
    return status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
}

void cudnnGetLastErrorString(char *text, size_t n_bytes)
{
    snprintf(text, n_bytes, "%s", last_error);
}

int cudnnCreate(void **made)
{
    hold held(*live_lock);

    *made = new handle();
    n_handles++;
    return SUCCESS;
}

/* With the last one all descriptors must be gone: who forgets some is told here. */
int cudnnDestroy(void *made)
{
    hold held(*live_lock);

    delete (handle *)made;
    CHECK(--n_handles || live().empty());
    return SUCCESS;
}

int cudnnSetStream(void *made, cudaStream_t stream)
{
    ((handle *)made)->stream = stream;
    return SUCCESS;
}

int cudnnBackendCreateDescriptor(int type, void **made)
{
    hold held(*live_lock);

    *made = new descriptor{ type, false, {}, {}, false };
    live().insert(*made);
    return SUCCESS;
}

int cudnnBackendDestroyDescriptor(void *d)
{
    hold held(*live_lock);

    if (!live().erase(d))
        return refuse(BAD_PARAM, "no descriptor, or destroyed before");
    delete (descriptor *)d;
    return SUCCESS;
}

int cudnnBackendSetAttribute(void *at, int name, int type, int64_t n, const void *values)
{
    descriptor *d = known(at);
    const rule *r = d ? rule_of(d->type, name) : NULL;

    if (!d || d->finalized)
        return refuse(BAD_PARAM, "no descriptor, or finalized before");
    if (!r || r->type != type || n < 1)
        return refuse(BAD_PARAM, "attribute %d of descriptor %d with type %d", name, d->type, type);
    d->attributes[name] = { type, n,
                            std::vector<char>((const char *)values,
                                              (const char *)values +
                                                  (size_t)n * bytes_of_type(type)) };
    return SUCCESS;
}

int cudnnBackendFinalize(void *at)
{
    descriptor *d = known(at);
    operation o;
    int status = SUCCESS;

    if (!d || d->finalized)
        return refuse(BAD_PARAM, "no descriptor, or finalized before");
    for (const rule &r : rules)
        if (r.descriptor == d->type && r.needed && !d->attributes.count(r.attribute))
            return refuse(BAD_PARAM, "attribute %d of descriptor %d is missing", r.attribute,
                          d->type);
    if (d->type == DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        status = make_graph(d);
    else if (d->type == DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        status = make_plan(d);
    else if (d->type == DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
             d->type == DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
             d->type == DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
             d->type == DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
        status = operation_of(d, &o);
    d->finalized = status == SUCCESS;
    return status;
}

int cudnnBackendGetAttribute(void *at, int name, int, int64_t n_wanted, int64_t *n, void *values)
{
    descriptor *d = known(at);

    if (!d)
        return refuse(BAD_PARAM, "no descriptor");
    *n = 1;
    switch (name) {
    case DNN_ATTR_ENGINEHEUR_RESULTS:
        return give_configs(d, n_wanted, n, (void **)values);
    case DNN_ATTR_ENGINECFG_ENGINE:
        known(*(void **)values)->attributes = d->attributes;
        return SUCCESS;
    case DNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)values = value_of<int64_t>(d, name);
        return SUCCESS;
    case DNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *(int *)values = DNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *n = value_of<int64_t>(d, DNN_ATTR_ENGINE_GLOBAL_INDEX) == ENGINE_ANY_ORDER;
        return SUCCESS;
    case DNN_ATTR_ENGINECFG_KNOB_CHOICES:
        *n = 0;
        return SUCCESS;
    case DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = (int64_t)workspace_bytes(*d->operations);
        return SUCCESS;
    default:
        return refuse(BAD_PARAM, "attribute %d is not emulated", name);
    }
}

int cudnnBackendExecute(void *made, void *plan_at, void *pack_at)
{
    descriptor *plan = known(plan_at), *pack = known(pack_at);
    auto r = std::make_shared<run>();
    void *workspace;
    int status;

    if (!plan || !plan->finalized || !pack || !pack->finalized)
        return refuse(BAD_PARAM, "a plan and a pack are wanted");
    if (value_of<int64_t>(plan, DNN_ATTR_ENGINE_GLOBAL_INDEX) == ENGINE_ANY_ORDER)
        return refuse(NOT_SUPPORTED, "this engine has no order: it is not to be taken");
    workspace = value_of<void *>(pack, DNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (!workspace || (uintptr_t)workspace % 128)
        return refuse(BAD_PARAM, "the workspace is missing, or not aligned");
    status = collect(plan, pack, r.get());
    if (status)
        return status;
    if (!plan->is_loaded && !emulate_may_load())
        return refuse(NOT_SUPPORTED,
                      "the plan's code is not loaded, and a stream waits for a peer");
    plan->is_loaded = true;
    emulate_enqueue(((handle *)made)->stream, [r, workspace, operations = plan->operations] {
        run once = *r;

        memset(workspace, 0xff, workspace_bytes(*operations));
        run_graph(&once, *operations);
    });
    return SUCCESS;
}
