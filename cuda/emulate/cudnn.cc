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
#include "cuda/emulate/cudnn_run.h"

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
int collect(const descriptor *plan, const descriptor *pack, graph_run *r)
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
    auto r = std::make_shared<graph_run>();
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
        graph_run once = *r;

        memset(workspace, 0xff, workspace_bytes(*operations));
        emulate_run_graph(&once, *operations);
    });
    return SUCCESS;
}
