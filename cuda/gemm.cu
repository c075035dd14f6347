/*
 * gemm.cu - see gemm.cuh
 *
 * cuBLASLt's matrices are column-major, ours row-major, so each of ours is to it its own transpose:
 * c' = b' a', and b is its first operand. Nothing is transposed in memory.
 *
 * The workspace is ours, from the call's scratch, and its size a function of the shape: the 32 MiB
 * that NVIDIA recommends for Hopper are for sums split over blocks, which are refused here; what is
 * left (tensor maps, counters of tiles) is small.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gemm_impl.cuh"

enum { ALIGNMENT_MOST = 16 };

/* ---- preparing ---- */

/* Greatest power of two up to 16 that the address is a multiple of: kernels want no more. */
static uint32_t alignment_of(const void *address)
{
    uint32_t alignment = ALIGNMENT_MOST;

    while ((uintptr_t)address % alignment)
        alignment /= 2;
    return alignment;
}

static const char *const scale_names[4][4] = {
    { "", "", "", "" },
    { "", " scaled", "", "" },
    { "", "", " scaled lines-lines", " scaled lines-squares" },
    { "", "", " scaled squares-lines", " scaled squares-squares" },
};

/* All that the library's choice may depend on. */
static void write_key(char key[KEY_BYTES], const struct gemm_library *lt,
                      const struct cuda_gemm_shape *s, const struct cuda_gemm_operands *o)
{
    char runs[64] = "";

    if (gemm_n_runs(s) > 1)
        snprintf(runs, sizeof runs, " runs %lld at %lld %lld", (long long)s->n_runs,
                 (long long)s->run_lda, (long long)s->run_ldc);
    snprintf(
        key, KEY_BYTES, "%c%c %lldx%lldx%lld %s %s ld %lld %lld %lld align %u %u %u %u%s%s%s%s %s",
        s->a_transposed ? 't' : 'n', s->b_transposed ? 't' : 'n', (long long)s->m, (long long)s->n,
        (long long)s->k, dtype_name(s->in), dtype_name(s->out), (long long)s->lda,
        (long long)s->ldb, (long long)s->ldc, alignment_of(o->a), alignment_of(o->b),
        alignment_of(o->c), alignment_of(o->bias), runs, s->biased ? " biased" : "",
        s->a_is_e5m2 ? " e5m2" : "", scale_names[s->a_scales][s->b_scales], lt->stamp);
}

static struct gpu_product sizes_of(const struct cuda_gemm_shape *s)
{
    return gpu_product{ gemm_n_runs(s) * s->m, s->n, s->in, s->out, s->biased };
}

size_t gemm_workspace_bytes(const struct cuda_gemm_shape *s)
{
    const struct gpu_product sizes = sizes_of(s);

    return gpu_product_workspace_bytes(&sizes);
}

/* The bias, rounded to out. */
static size_t bias_bytes(const struct cuda_gemm_shape *s)
{
    const struct gpu_product sizes = sizes_of(s);

    return gpu_product_bias_bytes(&sizes);
}

int gemm_is_apart(const struct cuda_gemm_shape *s)
{
    const struct gpu_product sizes = sizes_of(s);

    return gpu_product_is_apart(&sizes);
}

static enum dtype product_dtype(const struct cuda_gemm_shape *s)
{
    return gemm_is_apart(s) ? DTYPE_F32 : s->out;
}

static int64_t product_ld(const struct cuda_gemm_shape *s)
{
    return gemm_is_apart(s) ? round_up(s->n, GPU_APART_MULTIPLE) : s->ldc;
}

static cudaDataType type_of(enum dtype dtype)
{
    CHECK(dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_U8);
    if (dtype == DTYPE_U8)
        return CUDA_R_8F_E4M3;
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* rows, cols and ld: as stored, row-major. */
static cublasStatus_t make_layout(const struct gemm_library *lt, cublasLtMatrixLayout_t *layout,
                                  cudaDataType type, int64_t rows, int64_t cols, int64_t ld)
{
    return lt->layout_create(layout, type, (uint64_t)cols, (uint64_t)rows,
                             rows == 1 ? max_i64(ld, cols) : ld);
}

/* As many of the matrix as there are runs, the next a stride behind. */
static cublasStatus_t set_runs(const struct gemm_library *lt, cublasLtMatrixLayout_t layout,
                               const struct cuda_gemm_shape *s, int64_t stride)
{
    int32_t n = (int32_t)gemm_n_runs(s);
    cublasStatus_t status =
        lt->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return lt->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                          sizeof stride);
}

static cublasStatus_t make_layouts(const struct gemm_library *lt, struct cuda_gemm *gemm)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    int64_t a_rows = s->a_transposed ? s->k : s->m, a_cols = s->a_transposed ? s->m : s->k;
    int64_t b_rows = s->b_transposed ? s->n : s->k, b_cols = s->b_transposed ? s->k : s->n;
    cudaDataType a = s->a_is_e5m2 ? CUDA_R_8F_E5M2 : type_of(s->in);
    cublasStatus_t status = make_layout(lt, &gemm->a, a, a_rows, a_cols, s->lda);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &gemm->b, type_of(s->in), b_rows, b_cols, s->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &gemm->c, type_of(product_dtype(s)), s->m, s->n, product_ld(s));
    if (gemm_n_runs(s) == 1 || status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = set_runs(lt, gemm->a, s, s->run_lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_runs(lt, gemm->b, s, 0);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_runs(lt, gemm->c, s, s->run_ldc);
    return status;
}

/* Of one factor each the library has had products longer than modes, whose default that is. */
static cublasStatus_t set_modes(const struct gemm_library *lt, const struct cuda_gemm *gemm)
{
    static const int32_t modes[] = { 0, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                     CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                     CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F };
    int32_t a = modes[gemm->shape.a_scales], b = modes[gemm->shape.b_scales];
    cublasStatus_t status;

    if (gemm->shape.a_scales == GEMM_SCALES_ONE)
        return CUBLAS_STATUS_SUCCESS;
    status = lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &b, sizeof b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &a, sizeof a);
    return status;
}

static cublasStatus_t make_matmul(const struct gemm_library *lt, struct cuda_gemm *gemm)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    cublasOperation_t a = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = lt->matmul_create(&gemm->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &b, sizeof b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_TRANSB, &a, sizeof a);
    return status == CUBLAS_STATUS_SUCCESS && s->in == DTYPE_U8 ? set_modes(lt, gemm) : status;
}

cublasStatus_t gemm_set_scales(const struct gemm_library *lt, const struct cuda_gemm *gemm,
                               const float *a, const float *b)
{
    cublasStatus_t status =
        lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a);
}

static cublasStatus_t set_bias(const struct gemm_library *lt, cublasLtMatmulDesc_t matmul,
                               const void *bias)
{
    return lt->matmul_set(matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

cublasStatus_t gemm_set_target(const struct gemm_library *lt, const struct cuda_gemm *gemm,
                               int target)
{
    int32_t n_multiprocessors = target;

    return lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &n_multiprocessors,
                          sizeof n_multiprocessors);
}

/* 0 where nothing is beside the product. */
static int target_of(const struct cuda_kernels *cuda, const struct cuda_gemm_operands *o)
{
    int n = cuda->device->properties.multiProcessorCount;

    return o->beside ? max_int(n - o->beside, n / 2) : 0;
}

/* -1: it was not tried. */
static int holds(const struct cuda_gemm *gemm, int target)
{
    for (int i = 0; i < gemm->n_targets; i++)
        if (gemm->targets[i].n_multiprocessors == target)
            return gemm->targets[i].holds;
    return -1;
}

/* Whether it holds, once. Of more targets than there is room for the others are not used. */
static void try_target(struct cuda_kernels *cuda, struct cuda_gemm *gemm,
                       const struct cuda_gemm_operands *o)
{
    int target = target_of(cuda, o);

    if (!target || holds(gemm, target) >= 0 || gemm->n_targets == GEMM_TARGETS)
        return;
    gemm->targets[gemm->n_targets].n_multiprocessors = target;
    gemm->targets[gemm->n_targets++].holds = gemm_holds(cuda, gemm, o, target);
}

/* bias: any address of the alignment that the bias will have. */
static cublasStatus_t set_epilogue(const struct gemm_library *lt, const struct cuda_gemm *gemm,
                                   const void *bias)
{
    cublasLtEpilogue_t epilogue =
        gemm->bias == BIAS_IN_EPILOGUE ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    int32_t type = (int32_t)type_of(gemm->shape.out);
    cublasStatus_t status =
        lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);

    if (gemm->bias != BIAS_IN_EPILOGUE)
        return status;
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            lt->matmul_set(gemm->matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_bias(lt, gemm->matmul, bias);
    return status;
}

/* Whether a sum over k is one block's, in one go. */
static int is_whole(const struct gemm_library *lt, const cublasLtMatmulAlgo_t *algo)
{
    uint32_t parts = 0, scheme = 0;

    return lt->config_get(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, NULL) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->config_get(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                          NULL) == CUBLAS_STATUS_SUCCESS &&
           (int32_t)parts <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static cublasStatus_t set_preference(const struct gemm_library *lt, cublasLtMatmulPreference_t p,
                                     const struct cuda_gemm_shape *s,
                                     const struct cuda_gemm_operands *o)
{
    uint64_t workspace = gemm_workspace_bytes(s);
    uint32_t c_alignment = alignment_of(gemm_is_apart(s) ? NULL : o->c);
    uint32_t mask = CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t bytes;
    } alignments[] = {
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(o->b) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(o->a) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c_alignment },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c_alignment },
    };
    cublasStatus_t status = lt->preference_set(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace);

    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            lt->preference_set(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    for (auto &a : alignments)
        if (status == CUBLAS_STATUS_SUCCESS)
            status = lt->preference_set(p, a.attribute, &a.bytes, sizeof a.bytes);
    return status;
}

/* Of what the library offers and we can take: the first, or the fastest where that is measured. */
static cublasStatus_t ask_heuristic(struct cuda_kernels *cuda, struct cuda_gemm *gemm,
                                    const struct cuda_gemm_operands *o,
                                    cublasLtMatmulPreference_t preference)
{
    const struct gemm_library *lt = gemm_library_of(cuda);
    cublasLtMatmulHeuristicResult_t results[GEMM_CANDIDATES];
    cublasLtMatmulAlgo_t fitting[GEMM_CANDIDATES];
    int n = 0, n_fitting = 0;
    cublasStatus_t status = lt->heuristic(lt->handle, gemm->matmul, gemm->b, gemm->a, gemm->c,
                                          gemm->c, preference, GEMM_CANDIDATES, results, &n);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && is_whole(lt, &results[i].algo) &&
            results[i].workspaceSize <= gemm_workspace_bytes(&gemm->shape))
            fitting[n_fitting++] = results[i].algo;
    if (!n_fitting)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    int best = gemm_is_measured(cuda, &gemm->shape)
                   ? gemm_measure(cuda, gemm, o, fitting, n_fitting, target_of(cuda, o))
                   : 0;
    gemm->algo = fitting[best];
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t choose(struct cuda_kernels *cuda, struct cuda_gemm *gemm,
                             const struct cuda_gemm_operands *o, const void *bias)
{
    const struct gemm_library *lt = gemm_library_of(cuda);
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = lt->preference_create(&preference);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = set_preference(lt, preference, &gemm->shape, o);
    for (int way = gemm->shape.biased ? BIAS_IN_EPILOGUE : BIAS_NONE;
         status == CUBLAS_STATUS_SUCCESS; way++) {
        gemm->bias = (enum bias_way)way;
        status = set_epilogue(lt, gemm, bias);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = ask_heuristic(cuda, gemm, o, preference);
        if (status == CUBLAS_STATUS_SUCCESS || way != BIAS_IN_EPILOGUE)
            break;
        status = CUBLAS_STATUS_SUCCESS;
    }
    lt->preference_destroy(preference);
    return status;
}

/* A loaded choice is taken as it is, if the library agrees that it can be. */
static cublasStatus_t take(const struct gemm_library *lt, struct cuda_gemm *gemm,
                           const struct choice *choice, const void *bias)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasStatus_t status;

    gemm->bias = choice->bias;
    gemm->algo = choice->algo;
    if ((gemm->bias != BIAS_NONE) != (gemm->shape.biased != 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    status = set_epilogue(lt, gemm, bias);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->check(lt->handle, gemm->matmul, gemm->b, gemm->a, gemm->c, gemm->c,
                           &gemm->algo, &result);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return is_whole(lt, &gemm->algo) && result.workspaceSize <= gemm_workspace_bytes(&gemm->shape)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* loaded: NULL where the library chooses. */
static int make_gemm(struct cuda_kernels *cuda, const char *key, const struct choice *loaded,
                     const struct cuda_gemm_shape *shape, const struct cuda_gemm_operands *o,
                     struct cuda_gemm **made, struct err *err)
{
    const struct gemm_library *lt = gemm_library_of(cuda);
    struct cuda_gemm *gemm = (struct cuda_gemm *)calloc(1, sizeof *gemm);
    /* The rounded bias is at the scratch's begin. */
    uint32_t alignment = alignment_of(shape->out == DTYPE_F32 ? o->bias : NULL);
    const void *bias = (const void *)(uintptr_t)alignment;
    cublasStatus_t status;

    if (!gemm)
        return err_set(err, ERR_DEVICE, "out of host memory");
    gemm->shape = *shape;
    status = make_layouts(lt, gemm);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_matmul(lt, gemm);
    if (status == CUBLAS_STATUS_SUCCESS && shape->in == DTYPE_U8)
        status = gemm_set_scales(lt, gemm, o->a_scales, o->b_scales);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = loaded ? take(lt, gemm, loaded, bias) : choose(cuda, gemm, o, bias);
    if (status == CUBLAS_STATUS_SUCCESS) {
        *made = gemm;
        return 0;
    }
    gemm_destroy(lt, gemm);
    return err_set(err, ERR_DEVICE, "product %s: %s: %s%s", key,
                   loaded ? "the stored choice cannot be used" : "cuBLASLt has no algorithm",
                   lt->status_name(status),
                   loaded ? " (hint: empty kernels.txt in the run folder to select all again)"
                          : "");
}

int cuda_gemm_prepare(struct kernels *kernels, const struct cuda_gemm_shape *shape,
                      const struct cuda_gemm_operands *operands, const struct cuda_gemm **gemm,
                      struct err *err)
{
    struct cuda_kernels *cuda = cuda_of(kernels);
    struct gemm_library *lt;
    struct choice *choice;
    struct cuda_gemm *made = NULL;
    char key[KEY_BYTES];

    CHECK(!shape->biased || !gemm_is_apart(shape));
    CHECK(gemm_n_runs(shape) == 1 || !gemm_is_apart(shape));
    CHECK(gemm_n_runs(shape) == 1 || (!shape->a_transposed && shape->in != DTYPE_U8));
    if (gemm_library_open(cuda, err))
        return -1;
    lt = gemm_library_of(cuda);
    write_key(key, lt, shape, operands);
    choice = gemm_find_choice(lt, key);
    if (!choice || !choice->gemm) {
        if (make_gemm(cuda, key, choice, shape, operands, &made, err))
            return -1;
        if (kernels->is_early && (choice || !gemm_is_measured(cuda, shape)))
            gemm_try(cuda, made, operands);
        choice = choice ? choice : gemm_add_choice(lt, key);
        if (!choice) {
            gemm_destroy(lt, made);
            return err_set(err, ERR_DEVICE, "out of host memory");
        }
        choice->gemm = made;
        choice->bias = made->bias;
        choice->algo = made->algo;
    }
    if (kernels->is_early)
        try_target(cuda, choice->gemm, operands);
    *gemm = choice->gemm;
    return 0;
}

/* ---- running ---- */

enum { N_THREADS = 256 };

template <typename T> __global__ void round_bias_kernel(T *to, const float *bias, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x;

    if (i < n)
        to[i] = from_float<T>(bias[i]);
}

/* One element a thread: this is for odd shapes alone. */
template <typename T>
__global__ void add_bias_kernel(rows_of<T> c, const float *bias, int64_t n, int64_t n_blocks)
{
    int64_t row = blockIdx.x / n_blocks;
    int64_t col = blockIdx.x % n_blocks * N_THREADS + threadIdx.x;

    if (col < n)
        c.row(row)[col] = from_float<T>(to_float(c.row(row)[col]) + bias[col]);
}

/* From the product apart; likewise. */
template <typename T>
__global__ void add_product_kernel(rows_of<T> c, rows_of<const float> product, int64_t n,
                                   int64_t n_blocks, int add)
{
    int64_t row = blockIdx.x / n_blocks;
    int64_t col = blockIdx.x % n_blocks * N_THREADS + threadIdx.x;

    if (col < n)
        c.row(row)[col] =
            from_float<T>((add ? to_float(c.row(row)[col]) : 0.0f) + product.row(row)[col]);
}

static void add_product(struct cuda_kernels *cuda, const char *name, const struct cuda_gemm *gemm,
                        const struct cuda_gemm_operands *o, const float *apart)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    int64_t n_blocks = ceil_div(s->n, N_THREADS);

    cuda_with_act(s->out, [&](auto zero) {
        typedef decltype(zero) T;
        rows_of<T> c = { (T *)o->c, s->ldc };
        rows_of<const float> product = { apart, product_ld(s) };

        cuda_launch_on(cuda->device, cuda->stream, name, cuda_shape_of(s->m * n_blocks, N_THREADS),
                       add_product_kernel<T>, c, product, s->n, n_blocks, o->add);
    });
}

static void add_bias(struct cuda_kernels *cuda, const char *name, const struct cuda_gemm *gemm,
                     const struct cuda_gemm_operands *o)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    int64_t n_blocks = ceil_div(s->n, N_THREADS);

    cuda_with_act(s->out, [&](auto zero) {
        typedef decltype(zero) T;

        for (int64_t run = 0; run < gemm_n_runs(s); run++) {
            rows_of<T> c = { (T *)o->c + run * s->run_ldc, s->ldc };

            cuda_launch_on(cuda->device, cuda->stream, name,
                           cuda_shape_of(s->m * n_blocks, N_THREADS), add_bias_kernel<T>, c,
                           o->bias, s->n, n_blocks);
        }
    });
}

/* Where the epilogue reads it. */
static const void *place_bias(struct cuda_kernels *cuda, const char *name,
                              const struct cuda_gemm *gemm, const float *bias, void *rounded)
{
    const struct cuda_gemm_shape *s = &gemm->shape;

    if (s->out == DTYPE_F32)
        return bias;
    cuda_with_act(s->out, [&](auto zero) {
        typedef decltype(zero) T;

        cuda_launch_on(cuda->device, cuda->stream, name,
                       cuda_shape_of(ceil_div(s->n, N_THREADS), N_THREADS), round_bias_kernel<T>,
                       (T *)rounded, bias, s->n);
    });
    return rounded;
}

static void check_status(struct cuda_kernels *cuda, const char *name, cublasStatus_t status)
{
    struct err *failure = &cuda->device->failure;

    if (status != CUBLAS_STATUS_SUCCESS && !failure->code)
        err_set(failure, ERR_DEVICE, "%s: %s: cublasLtMatmul: %s", cuda->device->description, name,
                gemm_library_of(cuda)->status_name(status));
}

void cuda_gemm_run(struct kernels *kernels, const char *name, const struct cuda_gemm *gemm,
                   const struct cuda_gemm_operands *o, void *scratch)
{
    struct cuda_kernels *cuda = cuda_of(kernels);
    const struct gemm_library *lt = gemm_library_of(cuda);
    const struct cuda_gemm_shape *s = &gemm->shape;
    char *base = (char *)align_up((size_t)(uintptr_t)scratch, GPU_PRODUCT_ALIGNMENT);
    char *workspace = base + bias_bytes(s), *apart = workspace + gemm_workspace_bytes(s);
    void *c = gemm_is_apart(s) ? apart : o->c;
    int target = target_of(cuda, o);
    const float alpha = 1, beta = o->add && !gemm_is_apart(s) ? 1 : 0;

    if (gemm->bias == BIAS_IN_EPILOGUE)
        check_status(cuda, name,
                     set_bias(lt, gemm->matmul, place_bias(cuda, name, gemm, o->bias, base)));
    if (s->in == DTYPE_U8)
        check_status(cuda, name, gemm_set_scales(lt, gemm, o->a_scales, o->b_scales));
    check_status(cuda, name, gemm_set_target(lt, gemm, holds(gemm, target) == 1 ? target : 0));
    if (!cuda->device->is_loading)
        check_status(cuda, name,
                     lt->multiply(lt->handle, gemm->matmul, &alpha, o->b, gemm->b, o->a, gemm->a,
                                  &beta, c, gemm->c, c, gemm->c, &gemm->algo, workspace,
                                  gemm_workspace_bytes(s), cuda->stream));
    if (gemm->bias == BIAS_ADDED)
        add_bias(cuda, name, gemm, o);
    if (gemm_is_apart(s))
        add_product(cuda, name, gemm, o, (const float *)apart);
}
