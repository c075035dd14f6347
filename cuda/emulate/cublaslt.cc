/*
 * cublaslt.cc - see cublasLt.h
 *
 * Algorithms: WIDE wants operands at multiples of 16 bytes (pointers and columns), NARROW at those
 * of their elements; either splits k where the preference lets sums be reduced afterwards. An algo
 * is { MAGIC, kind, parts of k, 0 ... }; no other eight words are one.
 */
#include "cublasLt.h"

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

struct emulate_layout {
    cudaDataType_t type;
    int64_t rows, cols, ld; /* column-major */
};

struct emulate_matmul {
    cublasComputeType_t compute;
    int transposed_a, transposed_b;
    uint32_t epilogue;
    const void *bias;
    int bias_type; /* -1: D's */
    int sm_target; /* 0: all; at most those that there are */
};

struct emulate_preference {
    uint64_t workspace_bytes;
    uint32_t reduction_mask;
    uint32_t alignment[4]; /* of A, B, C, D */
};

static size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float to_float(const void *from, int64_t at, cudaDataType_t type)
{
    uint16_t half = 0;

    if (type == CUDA_R_32F)
        return ((const float *)from)[at];
    half = ((const uint16_t *)from)[at];
    if (type == CUDA_R_16BF)
        return __uint_as_float((unsigned)half << 16);
    _Float16 x;
    memcpy(&x, &half, sizeof x);
    return (float)x;
}

static void from_float(void *to, int64_t at, cudaDataType_t type, float x)
{
    unsigned bits = __float_as_uint(x);

    if (type == CUDA_R_32F) {
        ((float *)to)[at] = x;
    } else if (type == CUDA_R_16BF) {
        unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;

        if ((bits & 0x7fffffffu) > 0x7f800000u)
            rounded = bits >> 16 | 0x40;
        ((uint16_t *)to)[at] = (uint16_t)rounded;
    } else {
        _Float16 half = (_Float16)x;

        memcpy((uint16_t *)to + at, &half, sizeof half);
    }
}

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
    *layout = new emulate_layout{ type, (int64_t)rows, (int64_t)cols, ld };
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
    *matmul = new emulate_matmul{ compute, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, NULL, -1, 0 };
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

/* What a call is about: A[m x k] B[k x n] -> D[m x n], transposed as the descriptor says. */
struct matmul_call {
    emulate_matmul matmul;
    emulate_layout a, b, c, d;
    int64_t m, n, k;
};

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
        if (l->rows < 1 || l->cols < 1 || l->ld < l->rows)
            return CUBLAS_STATUS_INVALID_VALUE;
    if (ak != bk || am != p->d.rows || bn != p->d.cols || p->c.rows != p->d.rows ||
        p->c.cols != p->d.cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const matmul_call *p)
{
    const emulate_matmul *m = &p->matmul;

    if (m->compute != CUBLAS_COMPUTE_32F || p->a.type != p->b.type || p->c.type != p->d.type ||
        (p->d.type != CUDA_R_32F && p->d.type != p->a.type))
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
    (void)p;
    return algo->data[1] == WIDE ? (uint64_t)WIDE_BYTES : bytes_of(type);
}

static size_t workspace_of(const matmul_call *p, const cublasLtMatmulAlgo_t *algo)
{
    return algo->data[2] > 1       ? algo->data[2] * (size_t)(p->m * p->n) * sizeof(float)
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
        if (!is_aligned((uint64_t)l->ld * bytes_of(l->type), alignment_of(p, algo, l->type)))
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

enum { PANEL = 64, COLUMNS = 4 };

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
    };

    if (handle->loaded.count(kernel))
        return true;
    if (!emulate_may_load())
        return false;
    handle->loaded.insert(kernel);
    return true;
}

/* A column of D's first PANEL rows: four of them at a time, so that a panel's line is read once. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
multiply(float *sums, const float *panel, const float *columns, int64_t k)
{
    float sum[COLUMNS][PANEL] = {};

    for (int64_t i = 0; i < k; i++) {
        const float *line = panel + i * PANEL;

        for (int j = 0; j < COLUMNS; j++) {
            float factor = columns[j * k + i];

            for (int row = 0; row < PANEL; row++)
                sum[j][row] += line[row] * factor;
        }
    }
    memcpy(sums, sum, sizeof sum);
}

static float element(const void *memory, const emulate_layout *l, int transposed, int64_t row,
                     int64_t col)
{
    return to_float(memory, transposed ? col + row * l->ld : row + col * l->ld, l->type);
}

struct operands {
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
};

static void store(const matmul_call *p, const operands *o, int64_t row, int64_t col, float sum)
{
    int64_t at = row + col * p->d.ld;
    float value = o->alpha * sum;

    if (o->beta != 0)
        value += o->beta * to_float(o->c, row + col * p->c.ld, p->c.type);
    if (p->matmul.epilogue == CUBLASLT_EPILOGUE_BIAS)
        value += to_float(p->matmul.bias, row, p->d.type);
    from_float(o->d, at, p->d.type, value);
}

/* begin: of k, where sums begin; they go round. */
static void compute(const matmul_call &p, const operands &o, int64_t begin)
{
    int64_t n_padded = (p.n + COLUMNS - 1) / COLUMNS * COLUMNS;
    std::vector<float> panel((size_t)(PANEL * p.k)), b((size_t)(n_padded * p.k));
    float sums[COLUMNS * PANEL];

    for (int64_t col = 0; col < p.n; col++)
        for (int64_t i = 0; i < p.k; i++)
            b[(size_t)(col * p.k + i)] =
                element(o.b, &p.b, p.matmul.transposed_b, (begin + i) % p.k, col);
    for (int64_t row = 0; row < p.m; row += PANEL) {
        int64_t n_rows = std::min<int64_t>(PANEL, p.m - row);

        for (int64_t i = 0; i < p.k; i++)
            for (int64_t r = 0; r < n_rows; r++)
                panel[(size_t)(i * PANEL + r)] =
                    element(o.a, &p.a, p.matmul.transposed_a, row + r, (begin + i) % p.k);
        for (int64_t col = 0; col < p.n; col += COLUMNS) {
            multiply(sums, panel.data(), &b[(size_t)(col * p.k)], p.k);
            for (int64_t j = 0; j < std::min<int64_t>(COLUMNS, p.n - col); j++)
                for (int64_t r = 0; r < n_rows; r++)
                    store(&p, &o, row + r, col + j, sums[j * PANEL + r]);
        }
    }
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
    if (c == d && p.c.ld != p.d.ld)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_of(&p, algo) > workspace_bytes ||
        (workspace_bytes && !is_aligned((uintptr_t)workspace, WORKSPACE_ALIGNMENT)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.matmul.epilogue == CUBLASLT_EPILOGUE_BIAS && !p.matmul.bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_loaded(handle, &p, algo))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    operands o = { *(const float *)alpha, *(const float *)beta, a, b, c, d };
    size_t used = workspace_of(&p, algo);
    int slow = is_slow(algo);
    int64_t begin = target_makes(&p, algo, "bits") ? p.k / 2 : 0;

    emulate_enqueue(stream, [=] {
        if (slow)
            usleep(2000);
        if (used) /* what a kernel leaves there */
            memset(workspace, 0xee, used);
        compute(p, o, begin);
    });
    return CUBLAS_STATUS_SUCCESS;
}
