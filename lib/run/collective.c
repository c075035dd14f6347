/*
 * collective.c - gathers, and sums over ranks as moved data plus a fixed tree of adds
 */
#include "run/collective.h"

#include "base/clock.h"
#include "comm/reduce.h"

size_t collective_scratch_bytes(const struct op_shape *shape, int size)
{
    const struct tensor *out = &shape->out[0];
    size_t n_bytes = (size_t)tensor_elements(out) * dtype_bytes(out->dtype);

    if (shape->kind == OP_ALL_GATHER)
        return 0;
    /* Every rank's part, and one more for a sum that is added to what is there. */
    return ((size_t)size + 1) * n_bytes;
}

/* shard += the tree sum of all ranks' parts, complete before its one add. */
static int run_reduce_scatter(struct collective *c, struct err *err)
{
    int64_t n = tensor_elements(&c->out);
    int size = comm_group_size(c->group);
    float *shard = c->out.data, *sum = (float *)c->scratch + (int64_t)size * n;

    if (c->first)
        return reduce_scatter(c->group, DTYPE_F32, c->in.data, shard, c->scratch, n, err);
    if (reduce_scatter(c->group, DTYPE_F32, c->in.data, sum, c->scratch, n, err) < 0)
        return -1;
    for (int64_t i = 0; i < n; i++)
        shard[i] += sum[i];
    return 0;
}

static int run_all_reduce_scalar(struct collective *c, struct err *err)
{
    int64_t n = tensor_elements(&c->in);
    size_t n_bytes = (size_t)n * sizeof(double);

    if (comm_all_gather(c->group, c->in.data, c->scratch, n_bytes, err) < 0)
        return -1;
    reduce_tree(DTYPE_F64, c->out.data, c->scratch, comm_group_size(c->group), n, n);
    return 0;
}

int collective_run(void *argument, struct err *err)
{
    struct collective *c = argument;

    switch (c->kind) {
    case OP_ALL_GATHER:
        return comm_all_gather(c->group, c->in.data, c->out.data,
                               (size_t)tensor_elements(&c->in) * dtype_bytes(c->in.dtype), err);
    case OP_REDUCE_SCATTER:
        return run_reduce_scatter(c, err);
    case OP_ALL_REDUCE_SCALAR:
        return run_all_reduce_scalar(c, err);
    default:
        CHECK(!"a collective");
    }
}

int collective_run_timed(void *argument, struct err *err)
{
    struct collective *c = argument;
    double begin = clock_seconds();
    int status = collective_run(c, err);

    c->seconds += clock_seconds() - begin;
    return status;
}
