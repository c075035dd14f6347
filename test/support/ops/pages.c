/*
 * pages.c - facts of pages
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/op_case.h"
#include "support/ops/op_family.h"

enum { N_FREE, N_LOST, FIRST_FREE };

static int32_t *number(const struct tensor *t, int64_t i)
{
    return (int32_t *)t->data + i;
}

static void page_start(const struct op_shape *op)
{
    const struct tensor *free = &op->in[PAGE_START_FREE];
    int32_t n = (int32_t)free->cols - FIRST_FREE;

    *number(free, N_FREE) = n;
    *number(free, N_LOST) = 0;
    for (int32_t i = 0; i < n; i++)
        *number(free, FIRST_FREE + i) = n - 1 - i;
}

static void page_start_kernels(void)
{
    for (int n = 1; n < 2000; n = 3 * n + 1) {
        struct op_case *c = op_case_create(OP_PAGE_START, &(struct op_attributes){ 0 });

        op_case_input(c, PAGE_START_FREE, 1, FIRST_FREE + n, DTYPE_I32, 0);
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

/* The element of the pool that the i-th of the rows is in. */
static double *paged(const struct tensor *pages, const struct tensor *table, int64_t i)
{
    return at(pages, *number(table, i / pages->cols), i % pages->cols);
}

static void page_out(const struct op_shape *op)
{
    const struct tensor *x = &op->in[PAGE_OUT_X], *pages = &op->in[PAGE_OUT_PAGES];
    const struct tensor *free = &op->in[PAGE_OUT_FREE], *table = &op->out[PAGE_OUT_TABLE];
    int64_t n = *number(&op->in[PAGE_OUT_ENDS], op->in[PAGE_OUT_ENDS].cols - 1) * x->cols;
    int32_t n_pages = (int32_t)ceil_div(n, pages->cols), *n_free = number(free, N_FREE);

    if (n_pages > *n_free) {
        ++*number(free, N_LOST);
        *number(table, 0) = -1;
        return;
    }
    for (int32_t i = 0; i < n_pages; i++)
        *number(table, i) = *number(free, FIRST_FREE + --*n_free);
    for (int64_t i = 0; i < n; i++)
        *paged(pages, table, i) = IN(PAGE_OUT_X, i / x->cols, i % x->cols);
}

static void page_in(const struct op_shape *op)
{
    const struct tensor *x = &op->out[PAGE_IN_X], *pages = &op->in[PAGE_IN_PAGES];
    const struct tensor *free = &op->in[PAGE_IN_FREE], *table = &op->in[PAGE_IN_TABLE];
    int64_t n = *number(&op->in[PAGE_IN_ENDS], op->in[PAGE_IN_ENDS].cols - 1) * x->cols;
    int32_t n_pages = (int32_t)ceil_div(n, pages->cols), *n_free = number(free, N_FREE);
    bool is_lost = n && *number(table, 0) < 0;

    for (int64_t i = 0; i < n; i++)
        OUT(PAGE_IN_X, i / x->cols, i % x->cols) = is_lost ? NAN : *paged(pages, table, i);
    for (int32_t i = n_pages - 1; i >= 0 && !is_lost && op->attributes.frees; i--)
        *number(free, FIRST_FREE + (*n_free)++) = *number(table, i);
}

/* Rows there are, of how many, columns, a page, all pages, and those that are free. */
static const struct paging_case {
    int rows, all_rows, cols, page, n_pages, n_free;
} cases[] = {
    { 5, 12, 8, 32, 7, 7 },       { 0, 12, 8, 32, 7, 3 },         { 12, 12, 8, 32, 3, 3 },
    { 12, 12, 8, 32, 3, 2 },      { 1, 9, 33, 64, 9, 1 },         { 70, 100, 48, 256, 40, 14 },
    { 70, 100, 48, 256, 40, 13 }, { 300, 999, 5, 1, 5000, 4000 }, { 9, 300, 7, 4096, 2, 1 },
};

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

/* Free pages are every third one, the last first. */
static void fill_free(const struct tensor *free, const struct paging_case *p)
{
    *number(free, N_FREE) = p->n_free;
    *number(free, N_LOST) = 4;
    for (int i = 0; i < p->n_pages; i++)
        *number(free, FIRST_FREE + i) =
            (p->n_pages - 1 - i) * (p->n_pages % 3 ? 3 : 1) % p->n_pages;
}

static void fill_ends(const struct tensor *ends, const struct paging_case *p)
{
    *number(ends, 0) = p->rows / 3;
    *number(ends, 1) = p->rows;
}

static void page_out_kernels(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 3; i++) {
        const struct paging_case *p = &cases[i / 3];
        struct op_case *c = op_case_create(OP_PAGE_OUT, &(struct op_attributes){ 0 });

        c->dense = true;
        c->leaves = true;
        op_case_input(c, PAGE_OUT_X, p->all_rows, p->cols, dtypes[i % 3], 1);
        op_case_input(c, PAGE_OUT_ENDS, 1, 2, DTYPE_I32, 0);
        op_case_input(c, PAGE_OUT_PAGES, p->n_pages, p->page, dtypes[i % 3], 1);
        op_case_input(c, PAGE_OUT_FREE, 1, FIRST_FREE + p->n_pages, DTYPE_I32, 0);
        op_case_output(c, PAGE_OUT_TABLE, 1, ceil_div(p->all_rows * p->cols, p->page), DTYPE_I32);
        fill_ends(&c->op.in[PAGE_OUT_ENDS], p);
        fill_free(&c->op.in[PAGE_OUT_FREE], p);
        op_case_check(c, 0);
        op_case_destroy(c);
    }
}

/* Rows that are in the pages behind those that are free; or that found none. */
static void page_in_case(const struct paging_case *p, enum dtype dtype, int frees)
{
    struct op_case *c = op_case_create(OP_PAGE_IN, &(struct op_attributes){ .frees = frees });
    int64_t n = ceil_div(p->all_rows * p->cols, p->page),
            used = ceil_div(p->rows * p->cols, p->page);
    struct paging_case rest = *p;
    bool is_lost = used > p->n_free;

    c->dense = true;
    c->leaves = true;
    rest.n_free = p->n_pages - (int)used;
    op_case_input(c, PAGE_IN_TABLE, 1, n, DTYPE_I32, 0);
    op_case_input(c, PAGE_IN_ENDS, 1, 2, DTYPE_I32, 0);
    op_case_input(c, PAGE_IN_PAGES, p->n_pages, p->page, dtype, 1);
    op_case_input(c, PAGE_IN_FREE, 1, FIRST_FREE + p->n_pages, DTYPE_I32, 0);
    op_case_output(c, PAGE_IN_X, p->all_rows, p->cols, dtype);
    fill_ends(&c->op.in[PAGE_IN_ENDS], p);
    fill_free(&c->op.in[PAGE_IN_FREE], &rest);
    for (int64_t i = 0; i < used; i++)
        *number(&c->op.in[PAGE_IN_TABLE], i) =
            is_lost ? -1 : *number(&c->op.in[PAGE_IN_FREE], FIRST_FREE + rest.n_free + i);
    if (is_lost) {
        op_case_run(c, 2, RUN_FIRST);
        for (int64_t i = 0; i < p->rows * p->cols; i++)
            assert_true(isnan(tensor_get(&c->op.out[PAGE_IN_X], i / p->cols, i % p->cols)));
    } else {
        op_case_check(c, 0);
    }
    op_case_destroy(c);
}

static void page_in_kernels(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 6; i++)
        page_in_case(&cases[i / 6], dtypes[i % 3], i / 3 % 2);
}

const struct op_facts pages_facts[N_OP_KINDS] = {
    [OP_PAGE_START] = {
        .example = "page_start 1x*9 i32 :",
        .spreads = "s >",
        .reference = page_start,
        .kernels = page_start_kernels,
    },
    [OP_PAGE_OUT] = {
        .example = "page_out 12x8 bf16, 1x*5 i32, 7x*32 bf16, 1x9 i32 : 1x3 i32",
        .spreads = "ssss > s; srss > s; scss > s; spss > s; rsss > r; rrss > r; rcss > r; rpss > r; "
                   "csss > c; crss > c; ccss > c; cpss > c; psss > p; prss > p; pcss > p; ppss > p",
        .reference = page_out,
        .kernels = page_out_kernels,
    },
    [OP_PAGE_IN] = {
        .example = "page_in 1x3 i32, 1x*5 i32, 7x*32 bf16, 1x9 i32 : 12x8 bf16",
        .spreads = "ssss > s; srss > s; scss > s; spss > s; rsss > r; rrss > r; rcss > r; rpss > r; "
                   "csss > c; crss > c; ccss > c; cpss > c; psss > p; prss > p; pcss > p; ppss > p",
        .reference = page_in,
        .kernels = page_in_kernels,
    },
};
