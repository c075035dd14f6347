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

    if (shape->kind == OP_ALL_GATHER || shape->kind == OP_SEND || shape->kind == OP_RECEIVE)
        return 0;
    /* Every rank's part, and one more for a sum that is added to what is there. */
    return ((size_t)size + 1) * n_bytes;
}

/* The first thing it moves. */
static struct comm_call call_of(const struct collective *c)
{
    size_t in_bytes = (size_t)tensor_elements(&c->in) * dtype_bytes(c->in.dtype);
    size_t out_bytes = (size_t)tensor_elements(&c->out) * dtype_bytes(c->out.dtype);

    switch (c->kind) {
    case OP_ALL_GATHER:
        return (struct comm_call){ COMM_ALL_GATHER, c->in.data, c->out.data, in_bytes, 0 };
    case OP_REDUCE_SCATTER:
        return (struct comm_call){ COMM_ALL_TO_ALL, c->in.data, c->scratch, out_bytes, 0 };
    case OP_ALL_REDUCE_SCALAR:
        return (struct comm_call){ COMM_ALL_GATHER, c->in.data, c->scratch, in_bytes, 0 };
    case OP_SEND:
        return (struct comm_call){ COMM_SEND, c->in.data, NULL, in_bytes, c->peer };
    case OP_RECEIVE:
        return (struct comm_call){ COMM_RECEIVE, NULL, c->out.data, out_bytes, c->peer };
    default:
        CHECK(!"a collective");
    }
}

/* shard += the tree sum of all ranks' parts, complete before its one add. */
static void sum_parts(const struct collective *c)
{
    int64_t n = tensor_elements(&c->out);
    int size = comm_group_size(c->group);
    float *shard = c->out.data, *sum = (float *)c->scratch + (int64_t)size * n;

    reduce_tree(DTYPE_F32, c->first ? shard : sum, c->scratch, size, n, n);
    for (int64_t i = 0; i < n && !c->first; i++)
        shard[i] += sum[i];
}

/* What is computed once all has been moved. */
static void finish(const struct collective *c)
{
    int64_t n = tensor_elements(&c->in);

    if (c->kind == OP_REDUCE_SCATTER)
        sum_parts(c);
    else if (c->kind == OP_ALL_REDUCE_SCALAR)
        reduce_tree(DTYPE_F64, c->out.data, c->scratch, comm_group_size(c->group), n, n);
}

int collective_run(void *argument, struct err *err)
{
    struct collective *c = argument;

    if (!c->begun) {
        struct comm_call call = call_of(c);

        for (int i = 0; i < c->n_after; i++)
            if (!worker_done(c->worker, c->after[i]))
                return COMM_WAITING;
        if (comm_start(&c->request, c->group, &call, err))
            return -1;
        c->begun = 1;
        c->began_at = clock_seconds();
    }
    int progress = comm_test(&c->request, err);
    if (progress != COMM_DONE)
        return progress;
    c->begun = 0;
    finish(c);
    c->seconds += clock_seconds() - c->began_at;
    return COMM_DONE;
}
