/*
 * gemm_measure.cu - which of the algorithms that cuBLASLt offers for a product is the fastest here
 *
 * Its heuristic knows a GPU by name, and is off by some percent for many shapes. Candidates run on
 * numbers of all mantissas (on zeros a GPU draws less power, and its order of algorithms is
 * another) in memory that is given back: products are measured before a run takes its own.
 */
#include <float.h>
#include <stdlib.h>

#include "cuda/gemm_impl.cuh"

extern "C" {
#include "base/log.h"
}

enum { N_THREADS = 256, ALIGNMENT = 256 };
enum { N_QUICK = 2, N_FINAL = 6, N_FINALISTS = 4 };

/* Below so many multiply-adds, a few microseconds of a GPU, launches decide and not algorithms. */
#define LEAST_WORK ((int64_t)1 << 30)

/* A candidate must be faster by this than one that the library prefers. */
#define MARGIN 0.99

/* A product in memory of its own. */
struct trial {
    struct cuda_kernels *cuda;
    const struct cuda_gemm *gemm;
    int target; /* of multiprocessors; 0: all */
    char *memory;
    void *a, *b, *a_scales, *b_scales, *c, *with_target, *bias, *workspace, *differ;
    size_t c_bytes;
    cudaEvent_t begin, end;
};

int gemm_is_measured(const struct cuda_kernels *cuda, const struct cuda_gemm_shape *s)
{
    const char *wish = getenv("LMTRAIN_CUBLASLT_CHOICE");

    if (!cuda->base.is_early || (wish && !strcmp(wish, "first")))
        return 0;
    return (wish && !strcmp(wish, "measured")) ||
           gemm_n_runs(s) * s->m * s->n >= ceil_div(LEAST_WORK, s->k);
}

/* Of two bf16 in [0.5, 1), or one fp32 about there; of four e4m3 in [1, 2). */
#define WIDE_ONES 0x3f003f00u
#define WIDE_MASK 0x807f807fu
#define E4M3_ONES 0x38383838u
#define E4M3_MASK 0x87878787u

__global__ void fill_kernel(uint32_t *words, int64_t n, uint32_t ones, uint32_t mask)
{
    int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x;
    uint32_t state = (uint32_t)i * 2654435761u;

    state ^= state >> 15;
    state *= 0x2c1b3c6du;
    if (i < n)
        words[i] = ones | (state & mask);
}

/* A part of a block, at an address that is a multiple of no more than what the operand's is. */
static void *part(char *memory, size_t *at, size_t n_bytes, const void *like)
{
    uintptr_t alignment = (uintptr_t)like & (~(uintptr_t)like + 1);
    char *begin = memory + *at + (like && alignment < 16 ? alignment : 0);

    *at += align_up(n_bytes + 16, ALIGNMENT);
    return begin;
}

/* As many as there may be. */
static size_t scale_bytes(int64_t lines, int64_t k)
{
    return (size_t)(lines * round_up(ceil_div(k, OPS_FP8_BLOCK), 4)) * sizeof(float);
}

static size_t lay_out(struct trial *t, const struct cuda_gemm_operands *o)
{
    const struct cuda_gemm_shape *s = &t->gemm->shape;
    int64_t a_rows = s->a_transposed ? s->k : s->m, b_rows = s->b_transposed ? s->n : s->k;
    size_t at = 0, size = dtype_bytes(s->in), workspace = gemm_workspace_bytes(s);
    int64_t before_a = (gemm_n_runs(s) - 1) * s->run_lda; /* the last run */
    int64_t before_c = (gemm_n_runs(s) - 1) * s->run_ldc;

    t->a = part(t->memory, &at, (size_t)(before_a + a_rows * s->lda) * size, o->a);
    t->b = part(t->memory, &at, (size_t)(b_rows * s->ldb) * size, o->b);
    t->a_scales = part(t->memory, &at, scale_bytes(s->m, s->k), NULL);
    t->b_scales = part(t->memory, &at, scale_bytes(s->n, s->k), NULL);
    t->c_bytes = (size_t)(before_c + s->m * max_i64(s->ldc, s->n + 4)) * sizeof(float);
    t->c = part(t->memory, &at, t->c_bytes, gemm_is_apart(s) ? NULL : o->c);
    t->with_target =
        t->target ? part(t->memory, &at, t->c_bytes, gemm_is_apart(s) ? NULL : o->c) : NULL;
    t->differ = part(t->memory, &at, sizeof(int), NULL);
    t->bias =
        part(t->memory, &at, (size_t)s->n * sizeof(float), s->out == DTYPE_F32 ? o->bias : NULL);
    t->workspace = part(t->memory, &at, workspace, NULL);
    return at;
}

/* Operands lie before their scales. */
static void fill_codes(const struct trial *t)
{
    int64_t n_words = ((char *)t->a_scales - (char *)t->a) / (int64_t)sizeof(uint32_t);

    cuda_launch_on(t->cuda->device, t->cuda->stream, "fill",
                   cuda_shape_of(ceil_div(n_words, N_THREADS), N_THREADS), fill_kernel,
                   (uint32_t *)t->a, n_words, E4M3_ONES, E4M3_MASK);
}

static int fill_trial(struct trial *t, const struct cuda_gemm_operands *o)
{
    size_t n_bytes = lay_out(t, o);
    int64_t n_words = (int64_t)(n_bytes / sizeof(uint32_t));

    if (cudaMalloc((void **)&t->memory, n_bytes) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    lay_out(t, o);
    cuda_load(t->cuda->device, "fill", fill_kernel);
    cuda_launch_on(t->cuda->device, t->cuda->stream, "fill",
                   cuda_shape_of(ceil_div(n_words, N_THREADS), N_THREADS), fill_kernel,
                   (uint32_t *)t->memory, n_words, WIDE_ONES, WIDE_MASK);
    if (t->gemm->shape.in == DTYPE_U8)
        fill_codes(t);
    return cudaEventCreateWithFlags(&t->begin, cudaEventDefault) == cudaSuccess &&
                   cudaEventCreateWithFlags(&t->end, cudaEventDefault) == cudaSuccess
               ? 0
               : -1;
}

/* Returns 0, or -1; closed in either case. */
static int open_trial(struct trial *t, struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
                      const struct cuda_gemm_operands *o, int target)
{
    const struct gemm_library *lt = gemm_library_of(cuda);

    *t = {};
    t->cuda = cuda;
    t->gemm = gemm;
    t->target = target;
    if (fill_trial(t, o) < 0)
        return -1;
    if (gemm->shape.in == DTYPE_U8 &&
        gemm_set_scales(lt, gemm, (const float *)t->a_scales, (const float *)t->b_scales) !=
            CUBLAS_STATUS_SUCCESS)
        return -1;
    if (gemm->bias != BIAS_IN_EPILOGUE)
        return 0;
    return lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &t->bias,
                          sizeof t->bias) == CUBLAS_STATUS_SUCCESS
               ? 0
               : -1;
}

static void close_trial(struct trial *t)
{
    cudaStreamSynchronize(t->cuda->stream);
    if (t->begin)
        cudaEventDestroy(t->begin);
    if (t->end)
        cudaEventDestroy(t->end);
    if (t->memory)
        cudaFree(t->memory);
}

static cublasStatus_t multiply_into(struct trial *t, const cublasLtMatmulAlgo_t *algo, int target,
                                    void *c)
{
    const struct gemm_library *lt = gemm_library_of(t->cuda);
    const struct cuda_gemm *g = t->gemm;
    const float one = 1, zero = 0;
    cublasStatus_t status = gemm_set_target(lt, g, target);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->multiply(lt->handle, g->matmul, &one, t->b, g->b, t->a, g->a, &zero, c, g->c,
                              c, g->c, algo, t->workspace, gemm_workspace_bytes(&g->shape),
                              t->cuda->stream);
    gemm_set_target(lt, g, 0);
    return status;
}

static cublasStatus_t multiply(struct trial *t, const cublasLtMatmulAlgo_t *algo)
{
    return multiply_into(t, algo, t->target, t->c);
}

/* 16 bits at a time: what c is aligned to at least. */
__global__ void compare_kernel(const uint16_t *a, const uint16_t *b, int64_t n, int *differ)
{
    int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x;

    if (i < n && a[i] != b[i])
        *differ = 1;
}

/* Whether the library has the algorithm with the target, in the workspace that there is. */
static int has_target(struct trial *t, const cublasLtMatmulAlgo_t *algo)
{
    const struct gemm_library *lt = gemm_library_of(t->cuda);
    const struct cuda_gemm *g = t->gemm;
    cublasLtMatmulHeuristicResult_t result = {};
    cublasStatus_t status = gemm_set_target(lt, g, t->target);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->check(lt->handle, g->matmul, g->b, g->a, g->c, g->c, algo, &result);
    gemm_set_target(lt, g, 0);
    return status == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= gemm_workspace_bytes(&g->shape);
}

/* Whether the target leaves the algorithm all bits of a product. */
static int is_steady(struct trial *t, const cublasLtMatmulAlgo_t *algo)
{
    cudaStream_t stream = t->cuda->stream;
    int64_t n = (int64_t)(t->c_bytes / sizeof(uint16_t));
    int differ = 1;

    cuda_load(t->cuda->device, "compare", compare_kernel);
    if (!has_target(t, algo) || cudaMemsetAsync(t->c, 0, t->c_bytes, stream) != cudaSuccess ||
        cudaMemsetAsync(t->with_target, 0, t->c_bytes, stream) != cudaSuccess ||
        cudaMemsetAsync(t->differ, 0, sizeof differ, stream) != cudaSuccess ||
        multiply_into(t, algo, 0, t->c) != CUBLAS_STATUS_SUCCESS ||
        multiply_into(t, algo, t->target, t->with_target) != CUBLAS_STATUS_SUCCESS)
        return 0;
    cuda_launch_on(t->cuda->device, stream, "compare",
                   cuda_shape_of(ceil_div(n, N_THREADS), N_THREADS), compare_kernel,
                   (const uint16_t *)t->c, (const uint16_t *)t->with_target, n, (int *)t->differ);
    return cudaMemcpyAsync(&differ, t->differ, sizeof differ, cudaMemcpyDefault, stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess && !differ;
}

/* Of one product, n of them in a row, after one; DBL_MAX if it fails. */
static double seconds_of(struct trial *t, const cublasLtMatmulAlgo_t *algo, int n)
{
    float ms = 0;
    int failed = multiply(t, algo) != CUBLAS_STATUS_SUCCESS;

    cudaEventRecord(t->begin, t->cuda->stream);
    for (int i = 0; i < n; i++)
        failed |= multiply(t, algo) != CUBLAS_STATUS_SUCCESS;
    cudaEventRecord(t->end, t->cuda->stream);
    if (failed || cudaStreamSynchronize(t->cuda->stream) != cudaSuccess ||
        cudaEventElapsedTime(&ms, t->begin, t->end) != cudaSuccess)
        return DBL_MAX;
    return ms * 1e-3 / n;
}

/* The next after those before it in time: all quick ones first, of which few are measured again. */
static int fastest(const double *seconds, const char *is_out, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (!is_out[i] && (best < 0 || seconds[i] < seconds[best] * MARGIN))
            best = i;
    return best;
}

static int run_trial(struct trial *t, const cublasLtMatmulAlgo_t *algos, int n, double seconds[])
{
    double quick[GEMM_CANDIDATES] = { 0 };
    char is_final[GEMM_CANDIDATES] = { 0 }, is_out[GEMM_CANDIDATES] = { 0 };

    for (int i = 0; i < n; i++) {
        quick[i] = seconds_of(t, &algos[i], N_QUICK);
        seconds[i] = DBL_MAX;
    }
    for (int k = 0; k < N_FINALISTS && k < n; k++) {
        int i = fastest(quick, is_final, n);

        is_final[i] = 1;
        if (quick[i] < DBL_MAX && (!t->target || is_steady(t, &algos[i])))
            seconds[i] = seconds_of(t, &algos[i], N_FINAL);
    }
    if (!is_final[0] && quick[0] < DBL_MAX && (!t->target || is_steady(t, &algos[0])))
        seconds[0] = seconds_of(t, &algos[0], N_FINAL);
    return fastest(seconds, is_out, n);
}

int gemm_measure(struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
                 const struct cuda_gemm_operands *operands, const cublasLtMatmulAlgo_t *algos,
                 int n, int target)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    struct trial t;
    double seconds[GEMM_CANDIDATES] = { 0 },
           flops = 2.0 * (double)(gemm_n_runs(s) * s->m) * (double)s->n * (double)s->k;
    int best = 0;

    if (open_trial(&t, cuda, gemm, operands, target) == 0) {
        best = run_trial(&t, algos, n, seconds);
        if (target && seconds[best] == DBL_MAX) {
            t.target = 0; /* none is steady: the product will have none */
            best = run_trial(&t, algos, n, seconds);
        }
        log_debug("product %lldx%lldx%lld: algorithm %d of %d, %.0f GFLOP/s (the first: %.0f)",
                  (long long)s->m, (long long)s->n, (long long)s->k, best + 1, n,
                  flops / seconds[best] * 1e-9, flops / seconds[0] * 1e-9);
    }
    close_trial(&t);
    return best;
}

void gemm_try(struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
              const struct cuda_gemm_operands *operands)
{
    struct trial t;

    if (open_trial(&t, cuda, gemm, operands, 0) == 0)
        multiply(&t, &gemm->algo);
    close_trial(&t);
}

int gemm_holds(struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
               const struct cuda_gemm_operands *operands, int target)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    struct trial t;
    int holds = open_trial(&t, cuda, gemm, operands, target) == 0 && is_steady(&t, &gemm->algo);

    close_trial(&t);
    if (!holds)
        log_debug("product %lldx%lldx%lld beside collectives: it keeps all multiprocessors, as its "
                  "algorithm has no target of %d, or other bits with it",
                  (long long)s->m, (long long)s->n, (long long)s->k, target);
    return holds;
}
