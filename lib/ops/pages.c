/*
 * pages.c - rows of experts in pages, as many as there are, between forward and backward
 *
 * A rank may get up to ep times as many rows as it sends, mostly gets about as many, and how many
 * is known only on the device. What is kept of them for the backward lies in pages of one pool,
 * of a size that is planned, and not in as much memory as the most rows would take. Which pages a
 * value has is its table, which is kept in its place. As NVIDIA's Megatron-LM (paged stash) has it.
 *
 *     F  %9 = page_out %8, ends, ~pages, ~free        %8 [R x d]; %9 its table
 *     B  %70 = page_in %9, ends, pages, ~free
 */
#include "base/num.h"
#include "ops/family_impl.h"

/* Each rank has its own pages: what lies in them, and where, need not be alike. */
static int page_start_spread(const struct spread_query *q)
{
    return spread_want(q, PAGE_START_FREE, SPREAD_SAME);
}

static const struct op_info page_start = {
    .name = "page_start",
    .n_inputs = 1,
    .inputs = {
        [PAGE_START_FREE] = { "free", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_UPDATED },
    },
    .spread = page_start_spread,
};

/* Free pages are listed, one by one; a table has room for the pages of all rows. */
static int check_pages(const struct op_shape *op, const struct tensor *x,
                       const struct tensor *pages, const struct tensor *free,
                       const struct tensor *table, struct err *err)
{
    int64_t n = ceil_div(tensor_elements(x), pages->cols);

    if (free->cols != 2 + pages->rows)
        return err_set(err, ERR_FAILED, "%s: free is [1 x %lld], wanted [1 x %lld] for %lld pages",
                       op_name(op->kind), (long long)free->cols, (long long)(2 + pages->rows),
                       (long long)pages->rows);
    if (table->cols != n)
        return err_set(err, ERR_FAILED, "%s: table is [1 x %lld], wanted [1 x %lld]",
                       op_name(op->kind), (long long)table->cols, (long long)n);
    return 0;
}

static int page_out_check(const struct op_shape *op, struct err *err)
{
    return check_pages(op, &op->in[PAGE_OUT_X], &op->in[PAGE_OUT_PAGES], &op->in[PAGE_OUT_FREE],
                       &op->out[PAGE_OUT_TABLE], err);
}

static int page_in_check(const struct op_shape *op, struct err *err)
{
    return check_pages(op, &op->out[PAGE_IN_X], &op->in[PAGE_IN_PAGES], &op->in[PAGE_IN_FREE],
                       &op->in[PAGE_IN_TABLE], err);
}

/* A table lies as its rows do, so that they lie so again. */
static int page_out_spread(const struct spread_query *q)
{
    spread_give_all(q, q->in[PAGE_OUT_X]);
    return spread_want(q, PAGE_OUT_PAGES, SPREAD_SAME) || spread_want(q, PAGE_OUT_FREE, SPREAD_SAME)
               ? -1
               : 0;
}

static int page_in_spread(const struct spread_query *q)
{
    spread_give_all(q, q->in[PAGE_IN_TABLE]);
    return spread_want(q, PAGE_IN_PAGES, SPREAD_SAME) || spread_want(q, PAGE_IN_FREE, SPREAD_SAME)
               ? -1
               : 0;
}

/* Of all pages those of the rows, once; of what is listed one number for each. */
static void narrow(struct tensor *pages, struct tensor *free, const struct tensor *x)
{
    int64_t n_pages = ceil_div(tensor_elements(x), pages->cols);

    pages->rows = min_i64(pages->rows, n_pages);
    free->cols = min_i64(free->cols, n_pages);
}

static void page_out_moved(struct op_shape *op)
{
    struct tensor *pages = &op->in[PAGE_OUT_PAGES];

    narrow(pages, &op->in[PAGE_OUT_FREE], &op->in[PAGE_OUT_X]);
    pages->rows = ceil_div(pages->rows, 2); /* they are written, and not read */
}

static void page_in_moved(struct op_shape *op)
{
    narrow(&op->in[PAGE_IN_PAGES], &op->in[PAGE_IN_FREE], &op->out[PAGE_IN_X]);
}

static const struct op_info page_out = {
    .name = "page_out",
    .n_inputs = 4,
    .inputs = {
        [PAGE_OUT_X] = { "x", DIM_R, DIM_D, TYPE_ANY, OPERAND_PLAIN },
        [PAGE_OUT_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN },
        [PAGE_OUT_PAGES] = { "pages", DIM_V, DIM_F, TYPE_ANY, OPERAND_UPDATED },
        [PAGE_OUT_FREE] = { "free", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_UPDATED },
    },
    .n_outputs = 1,
    .outputs = {
        [PAGE_OUT_TABLE] = { "table", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
    },
    .routed_rows = DIM_R,
    .ends_input = 1 + PAGE_OUT_ENDS,
    .check = page_out_check,
    .spread = page_out_spread,
    .moved = page_out_moved,
};

static const struct op_info page_in = {
    .name = "page_in",
    .n_inputs = 4,
    .inputs = {
        [PAGE_IN_TABLE] = { "table", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_PLAIN },
        [PAGE_IN_ENDS] = { "ends", DIM_ONE, DIM_M, TYPE_I32, OPERAND_PLAIN },
        [PAGE_IN_PAGES] = { "pages", DIM_V, DIM_F, TYPE_ANY, OPERAND_PLAIN },
        [PAGE_IN_FREE] = { "free", DIM_ONE, DIM_FREE, TYPE_I32, OPERAND_UPDATED },
    },
    .n_outputs = 1,
    .outputs = {
        [PAGE_IN_X] = { "x", DIM_R, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .routed_rows = DIM_R,
    .ends_input = 1 + PAGE_IN_ENDS,
    .check = page_in_check,
    .spread = page_in_spread,
    .moved = page_in_moved,
};

const struct op_info *const pages_ops[N_OP_KINDS] = {
    [OP_PAGE_START] = &page_start,
    [OP_PAGE_OUT] = &page_out,
    [OP_PAGE_IN] = &page_in,
};
