/*
 * collective_strided.c - gathers and sums of a slice of each rank's rows (program/slice.c)
 *
 * Of two ranks, and two slices of eight rows, slice 0 of the whole is rows 0, 1 and 4, 5: two rows,
 * each of two such rows, of a tensor with a wider stride. What comm moves is dense, so that it is
 * copied to scratch or from there.
 */
#include "run/collective_impl.h"

bool collective_is_strided(const struct tensor *t)
{
    return t->rows > 1 && t->stride != t->cols;
}

static struct kernels_columns dense_columns(const struct tensor *like)
{
    return (struct kernels_columns){ .to_stride = like->cols,
                                     .from_stride = like->cols,
                                     .rows = like->rows,
                                     .cols = like->cols,
                                     .element_bytes = dtype_bytes(like->dtype) };
}

void *collective_pack(const struct collective *c, void *to)
{
    struct kernels_columns columns = dense_columns(&c->in);

    columns.to = to;
    columns.from = c->in.data;
    columns.from_stride = c->in.stride;
    collective_copy_columns(c, columns);
    return to;
}

int collective_step_gather(const struct collective *c, int step, struct comm_call *call)
{
    bool strided = collective_is_strided(&c->out);
    size_t n_bytes = (size_t)tensor_elements(&c->in) * dtype_bytes(c->in.dtype);

    if (step == 0) {
        *call = (struct comm_call){ COMM_ALL_GATHER, c->in.data, strided ? c->scratch : c->out.data,
                                    n_bytes, 0 };
        return 1;
    }
    if (strided) {
        struct kernels_columns columns = dense_columns(&c->out);

        columns.to = c->out.data;
        columns.to_stride = c->out.stride;
        columns.from = c->scratch;
        collective_copy_columns(c, columns);
    }
    return 0;
}
