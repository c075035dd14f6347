/*
 * pages.c - page_start, page_out, page_in: rows into pages of a pool, and back
 *
 * The free pages are a stack, of which all values take and to which they give: the order of ops
 * alone determines who has which. A tile is a page.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "kernels/cpu/cpu_impl.h"

/* Places in `free`. */
enum { N_FREE, N_LOST, FIRST_FREE };

#define NO_PAGES (-1)

struct paging {
    char *rows, *pages;
    const int32_t *table;
    size_t n_bytes, page_bytes; /* of all rows; of a page */
    bool goes_out;
};

/* Elements of the rows that there are. */
static int64_t n_elements(const struct tensor *x, const struct tensor *ends)
{
    return ((const int32_t *)ends->data)[ends->cols - 1] * x->cols;
}

static void page_start_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *t = &call->op.in[PAGE_START_FREE];
    int32_t *free = t->data, n = (int32_t)(t->cols - FIRST_FREE);

    (void)kernels;
    (void)first;
    free[N_FREE] = n;
    free[N_LOST] = 0;
    for (int32_t i = 0; i < n; i++)
        free[FIRST_FREE + i] = n - 1 - i;
}

/* The pages of n elements, from the stack's end; false: there are not so many. */
static bool take_pages(int32_t *free, int32_t *table, int64_t n)
{
    if (n > free[N_FREE]) {
        free[N_LOST]++;
        table[0] = NO_PAGES;
        return false;
    }
    for (int64_t i = 0; i < n; i++)
        table[i] = free[FIRST_FREE + --free[N_FREE]];
    return true;
}

static void give_pages(int32_t *free, const int32_t *table, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--)
        free[FIRST_FREE + free[N_FREE]++] = table[i];
}

static void move_page(void *context, int64_t tile, int thread)
{
    const struct paging *p = context;
    size_t begin = (size_t)tile * p->page_bytes;
    size_t n = begin + p->page_bytes > p->n_bytes ? p->n_bytes - begin : p->page_bytes;
    char *page = p->pages + (size_t)p->table[tile] * p->page_bytes;

    (void)thread;
    if (p->goes_out)
        memcpy(page, p->rows + begin, n);
    else
        memcpy(p->rows + begin, page, n);
}

static struct paging paging_of(const struct tensor *x, const struct tensor *pages,
                               const int32_t *table, int64_t n, bool goes_out)
{
    return (struct paging){ .rows = x->data,
                            .pages = pages->data,
                            .table = table,
                            .n_bytes = (size_t)n * dtype_bytes(x->dtype),
                            .page_bytes = (size_t)pages->cols * dtype_bytes(pages->dtype),
                            .goes_out = goes_out };
}

/* Whatever is made of them is NaN, up to the gradient norm. */
static void lose_rows(const struct tensor *x, int64_t n)
{
    uint32_t *words = x->data;
    uint16_t *halves = x->data, nan = x->dtype == DTYPE_F16 ? 0x7e00 : 0x7fc0;

    for (int64_t i = 0; i < n; i++)
        if (dtype_bytes(x->dtype) == sizeof *words)
            words[i] = 0x7fc00000;
        else
            halves[i] = nan;
}

static void page_out_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *pages = &op->in[PAGE_OUT_PAGES];
    int64_t n = n_elements(&op->in[PAGE_OUT_X], &op->in[PAGE_OUT_ENDS]);
    int64_t n_pages = ceil_div(n, pages->cols);
    int32_t *table = op->out[PAGE_OUT_TABLE].data;
    struct paging p = paging_of(&op->in[PAGE_OUT_X], pages, table, n, true);

    (void)first;
    if (take_pages(op->in[PAGE_OUT_FREE].data, table, n_pages))
        pool_run(kernels->pool, n_pages, move_page, &p);
}

static void page_in_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *pages = &op->in[PAGE_IN_PAGES], *x = &op->out[PAGE_IN_X];
    int64_t n = n_elements(x, &op->in[PAGE_IN_ENDS]), n_pages = ceil_div(n, pages->cols);
    const int32_t *table = op->in[PAGE_IN_TABLE].data;
    struct paging p = paging_of(x, pages, table, n, false);

    (void)first;
    if (!n)
        return;
    if (table[0] == NO_PAGES) {
        lose_rows(x, n);
        return;
    }
    pool_run(kernels->pool, n_pages, move_page, &p);
    if (op->attributes.frees)
        give_pages(op->in[PAGE_IN_FREE].data, table, n_pages);
}

void cpu_register_pages(struct kernels_backend *table)
{
    table->entries[OP_PAGE_START].run = page_start_run;
    table->entries[OP_PAGE_OUT].run = page_out_run;
    table->entries[OP_PAGE_IN].run = page_in_run;
}
