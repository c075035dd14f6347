/*
 * pages.cu - page_start, page_out, page_in: rows into pages of a pool, and back
 *
 * As on the CPU (kernels/cpu/pages.c): one block takes pages from the stack of those that are free,
 * or gives them back; then, or before, blocks copy a page after the other, so many of them as there
 * are rows for. No count leaves the device.
 */
#include "cuda.cuh"

enum { THREADS = 256, MOST_BLOCKS = 4096 };

/* Places in `free`. */
enum { N_FREE, N_LOST, FIRST_FREE };

#define NO_PAGES (-1)

struct paging {
    char *rows, *pages;
    const int32_t *ends;
    int64_t n_experts, cols; /* of rows */
    int64_t page;            /* elements */
    size_t element_bytes;
    uint32_t nan; /* two halves, or a word */
};

static __device__ int64_t elements_of(const struct paging &p)
{
    return p.ends[p.n_experts - 1] * p.cols;
}

static __device__ int64_t pages_of(const struct paging &p)
{
    return (elements_of(p) + p.page - 1) / p.page;
}

static __global__ void __launch_bounds__(THREADS) page_start_kernel(int32_t *free, int32_t n)
{
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
        free[FIRST_FREE + i] = n - 1 - i;
    if (threadIdx.x == 0) {
        free[N_FREE] = n;
        free[N_LOST] = 0;
    }
}

/* One block. */
static __global__ void __launch_bounds__(THREADS)
    take_pages_kernel(struct paging p, int32_t *free, int32_t *table)
{
    int64_t n = pages_of(p);
    int32_t n_free = free[N_FREE];

    __syncthreads();
    if (n > n_free) {
        if (threadIdx.x == 0) {
            free[N_LOST]++;
            table[0] = NO_PAGES;
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        table[i] = free[FIRST_FREE + n_free - 1 - i];
    if (threadIdx.x == 0)
        free[N_FREE] = n_free - (int32_t)n;
}

/* One block. */
static __global__ void __launch_bounds__(THREADS)
    give_pages_kernel(struct paging p, int32_t *free, const int32_t *table)
{
    int64_t n = pages_of(p);
    int32_t n_free = free[N_FREE];

    __syncthreads();
    if (n == 0 || table[0] == NO_PAGES)
        return;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        free[FIRST_FREE + n_free + n - 1 - i] = table[i];
    if (threadIdx.x == 0)
        free[N_FREE] = n_free + (int32_t)n;
}

/* n_bytes at both ends of whole 16 bytes, but for the last ones. */
static __device__ void copy_page(char *to, const char *from, int64_t n_bytes)
{
    int64_t n_wide = n_bytes / 16;

    for (int64_t i = threadIdx.x; i < n_wide; i += THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (int64_t i = n_wide * 8 + threadIdx.x; i < n_bytes / 2; i += THREADS)
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
}

/* Whatever is made of them is NaN, up to the gradient norm. */
static __device__ void lose_page(char *to, int64_t n_bytes, uint32_t nan)
{
    for (int64_t i = threadIdx.x; i < n_bytes / 2; i += THREADS)
        ((uint16_t *)to)[i] = (uint16_t)(i % 2 ? nan >> 16 : nan);
}

template <bool GOES_OUT>
static __global__ void __launch_bounds__(THREADS)
    move_pages_kernel(struct paging p, const int32_t *table)
{
    int64_t n_bytes = elements_of(p) * (int64_t)p.element_bytes, n = pages_of(p);
    int64_t page_bytes = p.page * (int64_t)p.element_bytes;
    bool is_lost = n && table[0] == NO_PAGES;

    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        char *rows = p.rows + i * page_bytes;
        int64_t n_here =
            n_bytes - i * page_bytes < page_bytes ? n_bytes - i * page_bytes : page_bytes;

        if (is_lost) {
            if (!GOES_OUT)
                lose_page(rows, n_here, p.nan);
            continue;
        }
        char *page = p.pages + table[i] * page_bytes;
        copy_page(GOES_OUT ? page : rows, GOES_OUT ? rows : page, n_here);
    }
}

static struct paging paging_of(const struct tensor *x, const struct tensor *ends,
                               const struct tensor *pages)
{
    struct paging p = {};

    p.rows = (char *)x->data;
    p.pages = (char *)pages->data;
    p.ends = (const int32_t *)ends->data;
    p.n_experts = ends->cols;
    p.cols = x->cols;
    p.page = pages->cols;
    p.element_bytes = dtype_bytes(x->dtype);
    p.nan = x->dtype == DTYPE_F32 ? 0x7fc00000u : x->dtype == DTYPE_F16 ? 0x7e007e00u : 0x7fc07fc0u;
    return p;
}

static struct cuda_shape blocks_of(const struct tensor *table)
{
    return cuda_shape_of(min_i64(table->cols, MOST_BLOCKS), THREADS);
}

static void page_start_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *free = &call->op.in[PAGE_START_FREE];

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(1, THREADS), page_start_kernel, (int32_t *)free->data,
                free->cols - FIRST_FREE);
}

static void page_out_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *table = &op->out[PAGE_OUT_TABLE];
    struct paging p =
        paging_of(&op->in[PAGE_OUT_X], &op->in[PAGE_OUT_ENDS], &op->in[PAGE_OUT_PAGES]);

    (void)first;
    cuda_launch(kernels, call, cuda_shape_of(1, THREADS), take_pages_kernel, p,
                (int32_t *)op->in[PAGE_OUT_FREE].data, (int32_t *)table->data);
    cuda_launch(kernels, call, blocks_of(table), move_pages_kernel<true>, p,
                (const int32_t *)table->data);
}

static void page_in_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *table = &op->in[PAGE_IN_TABLE];
    struct paging p = paging_of(&op->out[PAGE_IN_X], &op->in[PAGE_IN_ENDS], &op->in[PAGE_IN_PAGES]);

    (void)first;
    cuda_launch(kernels, call, blocks_of(table), move_pages_kernel<false>, p,
                (const int32_t *)table->data);
    if (op->attributes.frees)
        cuda_launch(kernels, call, cuda_shape_of(1, THREADS), give_pages_kernel, p,
                    (int32_t *)op->in[PAGE_IN_FREE].data, (const int32_t *)table->data);
}

void cuda_register_pages(struct kernels_backend *table)
{
    table->entries[OP_PAGE_START].run = page_start_run;
    table->entries[OP_PAGE_OUT].run = page_out_run;
    table->entries[OP_PAGE_IN].run = page_in_run;
}
