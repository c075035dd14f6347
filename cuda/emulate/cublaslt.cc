/*
 * cublaslt.cc - see cublasLt.h
 *
 * Algorithms: WIDE wants operands at multiples of 16 bytes (pointers and columns), NARROW at those
 * of their elements; either splits k where the preference lets sums be reduced afterwards. An algo
 * is { MAGIC, kind, parts of k, 0 ... }; no other eight words are one.
 */
#include "cublaslt_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <vector>

enum { WIDE = 1, NARROW = 2, WIDE_BYTES = 16, WORKSPACE_ALIGNMENT = 256 };
static const uint64_t MAGIC = 0x6c6d756c61746564;

struct emulate_cublaslt {
    std::set<std::vector<uint64_t>> loaded; /* see is_loaded */
};

struct emulate_preference {
    uint64_t workspace_bytes;
    uint32_t reduction_mask;
    uint32_t alignment[4]; /* of A, B, C, D */
};

/* ---- descriptors ---- */

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new emulate_cublaslt();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *layout = new emulate_layout{ type, (int64_t)rows, (int64_t)cols, ld, 1, 0 };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmul, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *matmul = new emulate_matmul{ compute, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, NULL, -1, 0, {}, {} };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul)
{
    delete matmul;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *field, size_t wanted_bytes, const void *value, size_t n_bytes)
{
    if (n_bytes != wanted_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t n_bytes)
{
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        return set(&l->n_batches, sizeof l->n_batches, value, n_bytes);
    return set(&l->batch_offset, sizeof l->batch_offset, value, n_bytes);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t m,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t n_bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&m->transposed_a, sizeof m->transposed_a, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&m->transposed_b, sizeof m->transposed_b, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&m->epilogue, sizeof m->epilogue, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&m->bias, sizeof m->bias, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return set(&m->sm_target, sizeof m->sm_target, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&m->bias_type, sizeof m->bias_type, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return set(&m->scales[0], sizeof m->scales[0], value, n_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return set(&m->scales[1], sizeof m->scales[1], value, n_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
        return set(&m->scale_modes[0], sizeof m->scale_modes[0], value, n_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        return set(&m->scale_modes[1], sizeof m->scale_modes[1], value, n_bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new emulate_preference{ 0, 7, { 256, 256, 256, 256 } };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t n_bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace_bytes, sizeof p->workspace_bytes, value, n_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reduction_mask, sizeof p->reduction_mask, value, n_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                   sizeof p->alignment[0], value, n_bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- algorithms ---- */

static int is_aligned(uint64_t address, uint64_t n_bytes)
{
    return address % n_bytes == 0;
}

static cublasStatus_t check_layouts(const matmul_call *p)
{
    const emulate_layout *all[] = { &p->a, &p->b, &p->c, &p->d };
    int64_t ak = p->matmul.transposed_a ? p->a.rows : p->a.cols;
    int64_t am = p->matmul.transposed_a ? p->a.cols : p->a.rows;
    int64_t bk = p->matmul.transposed_b ? p->b.cols : p->b.rows;
    int64_t bn = p->matmul.transposed_b ? p->b.rows : p->b.cols;

    for (const emulate_layout *l : all)
        if (l->rows < 1 || l->cols < 1 || l->ld < l->rows || l->n_batches < 1 ||
            l->n_batches != p->d.n_batches)
            return CUBLAS_STATUS_INVALID_VALUE;
    /* Matrices that are written lie apart. */
    if (p->d.n_batches > 1 && p->d.batch_offset < (p->d.cols - 1) * p->d.ld + p->d.rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (ak != bk || am != p->d.rows || bn != p->d.cols || p->c.rows != p->d.rows ||
        p->c.cols != p->d.cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

/* Hopper has products of operands that lie along k, of 16 bytes whichever way, and scales of one
 * kind, or of vectors with those of squares; with scales of blocks, m is a multiple of 8, and so is
 * n where B's are of vectors (gemm.cuh names the source). */
static cublasStatus_t check_fp8(const matmul_call *p)
{
    const emulate_matmul *m = &p->matmul;
    int a = m->scale_modes[0], b = m->scale_modes[1];
    int vector = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    int square = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

    if (p->d.n_batches > 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((p->b.type != CUDA_R_8F_E4M3 && p->b.type != CUDA_R_8F_E5M2) || bytes_of(p->d.type) == 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!m->transposed_a || m->transposed_b || p->m % 16 || p->k % 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((a || b) && !((a == vector && b == vector) || (a == vector && b == square) ||
                      (a == square && b == vector)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->a.ld % 16 || p->b.ld % 16 || ((a || b) && p->m % 8) || (b == vector && p->n % 8))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_aligned((uintptr_t)m->scales[0], WIDE_BYTES) ||
        !is_aligned((uintptr_t)m->scales[1], WIDE_BYTES))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const matmul_call *p)
{
    const emulate_matmul *m = &p->matmul;

    if (is_fp8(p) && check_fp8(p) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_fp8(p) && (bytes_of(p->a.type) == 1 || bytes_of(p->b.type) == 1 || m->scale_modes[0] ||
                       m->scale_modes[1]))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m->compute != CUBLAS_COMPUTE_32F || (p->a.type != p->b.type && !is_fp8(p)) ||
        p->c.type != p->d.type || (p->d.type != CUDA_R_32F && p->d.type != p->a.type && !is_fp8(p)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m->epilogue != CUBLASLT_EPILOGUE_DEFAULT && m->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_SUCCESS;
    /* A vector is read 16 bytes at a time, or not at all. */
    if ((m->bias_type != -1 && m->bias_type != (int)p->d.type) ||
        !is_aligned((uint64_t)p->d.rows * bytes_of(p->d.type), WIDE_BYTES) ||
        !is_aligned((uintptr_t)m->bias, WIDE_BYTES))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t product_of(matmul_call *p, cublasLtHandle_t handle,
                                 cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                 cublasLtMatrixLayout_t d)
{
    cublasStatus_t status;

    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!matmul || !a || !b || !c || !d)
        return CUBLAS_STATUS_INVALID_VALUE;
    *p = matmul_call{ *matmul, *a, *b, *c, *d, d->rows, d->cols, 0 };
    p->k = matmul->transposed_a ? a->rows : a->cols;
    status = check_layouts(p);
    return status != CUBLAS_STATUS_SUCCESS ? status : check_types(p);
}

static uint64_t alignment_of(const matmul_call *p, const cublasLtMatmulAlgo_t *algo,
                             cudaDataType_t type)
{
    return algo->data[1] == WIDE || is_fp8(p) ? (uint64_t)WIDE_BYTES : bytes_of(type);
}

static size_t workspace_of(const matmul_call *p, const cublasLtMatmulAlgo_t *algo)
{
    return algo->data[2] > 1
               ? algo->data[2] * (size_t)(p->d.n_batches * p->m * p->n) * sizeof(float)
           : algo->data[1] == WIDE ? 1024
                                   : 0;
}

/*
 * $LMTRAIN_EMULATE_TARGET is "ID what": what a target of multiprocessors makes of the algorithm
 * with that id. "bits": k is begun elsewhere; "refused": there is none with a target.
 */
static int target_makes(const matmul_call *p, const cublasLtMatmulAlgo_t *algo, const char *what)
{
    const char *says = getenv("LMTRAIN_EMULATE_TARGET");
    char *end;

    return says && p->matmul.sm_target && strtoull(says, &end, 10) == algo->data[1] &&
           *end == ' ' && !strcmp(end + 1, what);
}

static int lets(const matmul_call *p, const cublasLtMatmulAlgo_t *algo)
{
    const emulate_layout *all[] = { &p->a, &p->b, &p->c, &p->d };

    if (target_makes(p, algo, "refused"))
        return 0;
    if (algo->data[0] != MAGIC || (algo->data[1] != WIDE && algo->data[1] != NARROW) ||
        algo->data[2] < 1 || algo->data[2] > 64)
        return 0;
    for (int i = 3; i < 8; i++)
        if (algo->data[i])
            return 0;
    for (const emulate_layout *l : all)
        if (!is_aligned((uint64_t)l->ld * bytes_of(l->type), alignment_of(p, algo, l->type)) ||
            !is_aligned((uint64_t)l->batch_offset * bytes_of(l->type),
                        alignment_of(p, algo, l->type)))
            return 0;
    return 1;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    matmul_call p;
    cublasStatus_t status = product_of(&p, handle, matmul, a, b, c, d);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!algo || !result || !lets(&p, algo))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = cublasLtMatmulHeuristicResult_t{};
    result->algo = *algo;
    result->workspaceSize = workspace_of(&p, algo);
    result->wavesCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static int is_wanted(const matmul_call *p, const emulate_preference *preference,
                     const cublasLtMatmulAlgo_t *algo)
{
    const emulate_layout *all[] = { &p->a, &p->b, &p->c, &p->d };

    if (!lets(p, algo) || (algo->data[2] > 1 && !preference->reduction_mask) ||
        workspace_of(p, algo) > preference->workspace_bytes)
        return 0;
    for (int i = 0; i < 4; i++)
        if (preference->alignment[i] < alignment_of(p, algo, all[i]->type))
            return 0;
    return 1;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *n_results)
{
    static const cublasLtMatmulAlgo_t all[] = { { { MAGIC, WIDE, 4 } },
                                                { { MAGIC, NARROW, 4 } },
                                                { { MAGIC, WIDE, 1 } },
                                                { { MAGIC, NARROW, 1 } } };
    matmul_call p;
    cublasStatus_t status = product_of(&p, handle, matmul, a, b, c, d);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!preference || !n_results || n_wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *n_results = 0;
    for (const cublasLtMatmulAlgo_t &algo : all)
        if (*n_results < n_wanted && is_wanted(&p, preference, &algo))
            cublasLtMatmulAlgoCheck(handle, matmul, a, b, c, d, &algo, &results[(*n_results)++]);
    return *n_results ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t n_bytes, size_t *n_written)
{
    uint32_t result = attribute == CUBLASLT_ALGO_CONFIG_ID ? (uint32_t)algo->data[1]
                      : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM
                          ? (uint32_t)algo->data[2]
                          : (uint32_t)(algo->data[2] > 1);

    if (n_bytes != sizeof result || algo->data[0] != MAGIC)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &result, sizeof result);
    if (n_written)
        *n_written = sizeof result;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

/* $LMTRAIN_EMULATE_SLOW: the algorithm with that id takes two milliseconds more. */
static int is_slow(const cublasLtMatmulAlgo_t *algo)
{
    const char *id = getenv("LMTRAIN_EMULATE_SLOW");

    return id && strtoull(id, NULL, 10) == algo->data[1];
}

/* A kernel is for an algorithm, types, transpositions and an epilogue. */
static bool is_loaded(cublasLtHandle_t handle, const matmul_call *p,
                      const cublasLtMatmulAlgo_t *algo)
{
    const emulate_matmul *m = &p->matmul;
    const std::vector<uint64_t> kernel = {
        algo->data[1],
        (uint64_t)p->a.type,
        (uint64_t)p->d.type,
        (uint64_t)m->transposed_a,
        (uint64_t)m->transposed_b,
        m->epilogue,
        (uint64_t)m->scale_modes[0],
        (uint64_t)m->scale_modes[1],
        p->d.n_batches > 1,
    };

    if (handle->loaded.count(kernel))
        return true;
    if (!emulate_may_load())
        return false;
    handle->loaded.insert(kernel);
    return true;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const void *memory[] = { a, b, c, d };
    const emulate_layout *layouts[] = { a_layout, b_layout, c_layout, d_layout };
    matmul_call p;
    cublasStatus_t status = product_of(&p, handle, matmul, a_layout, b_layout, c_layout, d_layout);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (p.matmul.sm_target < 0 || p.matmul.sm_target > 4)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!alpha || !beta || !a || !b || !c || !d || !algo || !lets(&p, algo))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (!is_aligned((uintptr_t)memory[i], alignment_of(&p, algo, layouts[i]->type)))
            return CUBLAS_STATUS_INVALID_VALUE;
    if (c == d && (p.c.ld != p.d.ld || p.c.batch_offset != p.d.batch_offset))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_of(&p, algo) > workspace_bytes ||
        (workspace_bytes && !is_aligned((uintptr_t)workspace, WORKSPACE_ALIGNMENT)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.matmul.epilogue == CUBLASLT_EPILOGUE_BIAS && !p.matmul.bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_loaded(handle, &p, algo))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    matmul_operands o = { *(const float *)alpha, *(const float *)beta, a, b, c, d };
    size_t used = workspace_of(&p, algo);
    int slow = is_slow(algo);
    int64_t begin = target_makes(&p, algo, "bits") ? p.k / 2 : 0;

    emulate_enqueue(stream, [=] {
        if (slow)
            usleep(2000);
        if (used) /* what a kernel leaves there */
            memset(workspace, 0xee, used);
        cublaslt_run(p, o, begin);
    });
    return CUBLAS_STATUS_SUCCESS;
}
