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
#include "cuda/gemm.cuh"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/library.cuh"

extern "C" {
#include "base/str.h"
}

enum { KEY_BYTES = 256, N_CANDIDATES = 16, ALIGNMENT_MOST = 16, WORKSPACE_ALIGNMENT = 256 };
enum { WORKSPACE_LEAST = 64 << 10, WORKSPACE_MOST = 32 << 20 };

enum bias_way { BIAS_NONE, BIAS_IN_EPILOGUE, BIAS_ADDED, N_BIAS_WAYS };

static const char *const bias_names[N_BIAS_WAYS] = { "plain", "bias", "bias-after" };

/* What is taken for all products that are alike; key: see write_key. */
struct choice {
    struct choice *next; /* in order of keys */
    char key[KEY_BYTES];
    enum bias_way bias;
    cublasLtMatmulAlgo_t algo;
    struct cuda_gemm *gemm; /* NULL: loaded, and not prepared yet */
};

struct cuda_gemm {
    struct cuda_gemm_shape shape;
    enum bias_way bias;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, c; /* ours, so a is the library's B */
    cublasLtMatmulAlgo_t algo;
};

/* cuda_kernels.gemm. Its functions are the library's. */
struct gemm_library {
    cublasLtHandle_t handle; /* NULL until the first product */
    size_t version;
    struct choice *choices;

    decltype(&cublasLtGetVersion) get_version;
    decltype(&cublasLtGetStatusName) status_name;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulDescCreate) matmul_create;
    decltype(&cublasLtMatmulDescDestroy) matmul_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) matmul_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulAlgoCheck) check;
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get;
    decltype(&cublasLtMatmul) multiply;
};

static struct gemm_library *library_of(struct cuda_kernels *cuda)
{
    return (struct gemm_library *)cuda->gemm;
}

/* ---- the library ---- */

static int find_functions(struct gemm_library *lt, void *handle)
{
    return CUDA_SYMBOL(handle, lt->get_version, cublasLtGetVersion) &&
           CUDA_SYMBOL(handle, lt->status_name, cublasLtGetStatusName) &&
           CUDA_SYMBOL(handle, lt->create, cublasLtCreate) &&
           CUDA_SYMBOL(handle, lt->destroy, cublasLtDestroy) &&
           CUDA_SYMBOL(handle, lt->layout_create, cublasLtMatrixLayoutCreate) &&
           CUDA_SYMBOL(handle, lt->layout_destroy, cublasLtMatrixLayoutDestroy) &&
           CUDA_SYMBOL(handle, lt->matmul_create, cublasLtMatmulDescCreate) &&
           CUDA_SYMBOL(handle, lt->matmul_destroy, cublasLtMatmulDescDestroy) &&
           CUDA_SYMBOL(handle, lt->matmul_set, cublasLtMatmulDescSetAttribute) &&
           CUDA_SYMBOL(handle, lt->preference_create, cublasLtMatmulPreferenceCreate) &&
           CUDA_SYMBOL(handle, lt->preference_destroy, cublasLtMatmulPreferenceDestroy) &&
           CUDA_SYMBOL(handle, lt->preference_set, cublasLtMatmulPreferenceSetAttribute) &&
           CUDA_SYMBOL(handle, lt->heuristic, cublasLtMatmulAlgoGetHeuristic) &&
           CUDA_SYMBOL(handle, lt->check, cublasLtMatmulAlgoCheck) &&
           CUDA_SYMBOL(handle, lt->config_get, cublasLtMatmulAlgoConfigGetAttribute) &&
           CUDA_SYMBOL(handle, lt->multiply, cublasLtMatmul);
}

static int open_library(struct cuda_kernels *cuda, struct err *err)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12" };
    struct gemm_library *lt;
    struct err older;
    void *handle;

    if (cuda->gemm)
        return 0;
    if (cuda_library_open(&handle, names[0], err) && cuda_library_open(&handle, names[1], &older))
        return err_add(err, "matrix products need cuBLASLt");
    lt = (struct gemm_library *)calloc(1, sizeof *lt);
    if (!lt)
        return err_set(err, ERR_DEVICE, "out of host memory");
    if (!find_functions(lt, handle)) {
        free(lt);
        return err_set(err, ERR_DEVICE, "cuBLASLt lacks functions that lmtrain calls");
    }
    lt->version = lt->get_version();
    cuda->gemm = lt;
    return 0;
}

static int open_handle(struct cuda_kernels *cuda, struct err *err)
{
    struct gemm_library *lt = library_of(cuda);
    cublasStatus_t status = lt->handle ? CUBLAS_STATUS_SUCCESS : lt->create(&lt->handle);

    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    lt->handle = NULL;
    return err_set(err, ERR_DEVICE, "cublasLtCreate: %s", lt->status_name(status));
}

void cuda_gemm_describe(struct cuda_kernels *cuda, char *text, size_t size)
{
    struct err err;

    if (open_library(cuda, &err))
        snprintf(text, size, "none");
    else
        snprintf(text, size, "%zu", library_of(cuda)->version);
}

static void destroy_gemm(const struct gemm_library *lt, struct cuda_gemm *gemm)
{
    if (!gemm)
        return;
    if (gemm->matmul)
        lt->matmul_destroy(gemm->matmul);
    for (cublasLtMatrixLayout_t layout : { gemm->a, gemm->b, gemm->c })
        if (layout)
            lt->layout_destroy(layout);
    free(gemm);
}

void cuda_gemm_destroy(struct cuda_kernels *cuda)
{
    struct gemm_library *lt = library_of(cuda);

    if (!lt)
        return;
    for (struct choice *c = lt->choices, *next; c; c = next) {
        next = c->next;
        destroy_gemm(lt, c->gemm);
        free(c);
    }
    if (lt->handle)
        lt->destroy(lt->handle);
    free(lt);
    cuda->gemm = NULL;
}

/* ---- choices ---- */

/* Greatest power of two up to 16 that the address is a multiple of: kernels want no more. */
static uint32_t alignment_of(const void *address)
{
    uint32_t alignment = ALIGNMENT_MOST;

    while ((uintptr_t)address % alignment)
        alignment /= 2;
    return alignment;
}

/* All that the library's choice may depend on. */
static void write_key(char key[KEY_BYTES], const struct gemm_library *lt,
                      const struct cuda_gemm_shape *s, const struct cuda_gemm_operands *o)
{
    snprintf(key, KEY_BYTES,
             "%c%c %lldx%lldx%lld %s %s ld %lld %lld %lld align %u %u %u %u%s cublaslt %zu",
             s->a_transposed ? 't' : 'n', s->b_transposed ? 't' : 'n', (long long)s->m,
             (long long)s->n, (long long)s->k, dtype_name(s->in), dtype_name(s->out),
             (long long)s->lda, (long long)s->ldb, (long long)s->ldc, alignment_of(o->a),
             alignment_of(o->b), alignment_of(o->c), alignment_of(o->bias),
             s->biased ? " biased" : "", lt->version);
}

/* Where the key's choice is, or is to be put. */
static struct choice **find_choice(struct gemm_library *lt, const char *key)
{
    struct choice **at = &lt->choices;

    while (*at && strcmp((*at)->key, key) < 0)
        at = &(*at)->next;
    return at;
}

static int is_choice(const struct choice *choice, const char *key)
{
    return choice && !strcmp(choice->key, key);
}

static struct choice *add_choice(struct choice **at, const char *key)
{
    struct choice *choice = (struct choice *)calloc(1, sizeof *choice);

    if (!choice)
        return NULL;
    snprintf(choice->key, sizeof choice->key, "%s", key);
    choice->next = *at;
    *at = choice;
    return choice;
}

void cuda_gemm_choices_print(struct kernels *kernels, struct str *text)
{
    struct gemm_library *lt = library_of(cuda_of(kernels));

    for (const struct choice *c = lt ? lt->choices : NULL; c; c = c->next) {
        str_printf(text, "product %s: %s ", c->key, bias_names[c->bias]);
        for (size_t i = 0; i < sizeof c->algo; i++)
            str_printf(text, "%02x", ((const unsigned char *)&c->algo)[i]);
        str_add_char(text, '\n');
    }
}

static int read_algo(cublasLtMatmulAlgo_t *algo, const char *hex)
{
    if (strlen(hex) != 2 * sizeof *algo)
        return -1;
    for (size_t i = 0; i < sizeof *algo; i++) {
        unsigned byte;

        if (strspn(hex + 2 * i, "0123456789abcdef") < 2 || sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return -1;
        ((unsigned char *)algo)[i] = (unsigned char)byte;
    }
    return 0;
}

/* line: "KEY: BIAS HEX", behind its first word. */
static int load_line(struct gemm_library *lt, const char *line, struct err *err)
{
    char key[KEY_BYTES], bias[16], hex[2 * sizeof(cublasLtMatmulAlgo_t) + 2];
    cublasLtMatmulAlgo_t algo;
    struct choice **at, *choice;
    size_t version = 0;
    const char *tail;
    int way = 0;

    if (sscanf(line, "%255[^:]: %15s %129s", key, bias, hex) != 3 || read_algo(&algo, hex))
        return err_set(err, ERR_FAILED, "'product %.60s...' is no choice of a product", line);
    while (way < N_BIAS_WAYS && strcmp(bias_names[way], bias) != 0)
        way++;
    tail = strstr(key, " cublaslt ");
    if (way == N_BIAS_WAYS || !tail || sscanf(tail, " cublaslt %zu", &version) != 1)
        return err_set(err, ERR_FAILED, "'product %.60s...' is no choice of a product", line);
    if (version != lt->version)
        return err_set(err, ERR_DEVICE,
                       "product %s was chosen with cuBLASLt %zu, here is %zu (hint: the same "
                       "version has the same algorithms)",
                       key, version, lt->version);
    at = find_choice(lt, key);
    if (is_choice(*at, key) && (*at)->gemm && memcmp(&(*at)->algo, &algo, sizeof algo) != 0)
        return err_set(err, ERR_FAILED, "product %s is prepared already, with another algorithm",
                       key);
    choice = is_choice(*at, key) ? *at : add_choice(at, key);
    if (!choice)
        return err_set(err, ERR_DEVICE, "out of host memory");
    choice->bias = (enum bias_way)way;
    choice->algo = algo;
    return 0;
}

int cuda_gemm_choices_load(struct kernels *kernels, const char *text, struct err *err)
{
    static const char word[] = "product ";
    struct cuda_kernels *cuda = cuda_of(kernels);

    while (*text) {
        size_t length = strcspn(text, "\n");
        char line[KEY_BYTES + 256];

        if (!strncmp(text, word, sizeof word - 1)) {
            snprintf(line, sizeof line, "%.*s", (int)length, text);
            if (open_library(cuda, err) || load_line(library_of(cuda), line + sizeof word - 1, err))
                return -1;
        }
        text += length + (text[length] == '\n');
    }
    return 0;
}

/* ---- preparing ---- */

static size_t workspace_bytes(const struct cuda_gemm_shape *s)
{
    int64_t wanted = round_up(s->m * s->n * 4, WORKSPACE_ALIGNMENT);

    return (size_t)min_i64(max_i64(wanted, WORKSPACE_LEAST), WORKSPACE_MOST);
}

/* The bias, rounded to out. */
static size_t bias_bytes(const struct cuda_gemm_shape *s)
{
    int is_rounded = s->biased && s->out != DTYPE_F32;

    return is_rounded ? align_up((size_t)s->n * dtype_bytes(s->out), WORKSPACE_ALIGNMENT) : 0;
}

size_t cuda_gemm_scratch_bytes(const struct cuda_gemm_shape *s)
{
    /* Scratch is aligned to 64 only. */
    return bias_bytes(s) + workspace_bytes(s) + WORKSPACE_ALIGNMENT - 64;
}

static cudaDataType type_of(enum dtype dtype)
{
    CHECK(dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16);
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* rows, cols and ld: as stored, row-major. */
static cublasStatus_t make_layout(const struct gemm_library *lt, cublasLtMatrixLayout_t *layout,
                                  enum dtype dtype, int64_t rows, int64_t cols, int64_t ld)
{
    return lt->layout_create(layout, type_of(dtype), (uint64_t)cols, (uint64_t)rows,
                             rows == 1 ? max_i64(ld, cols) : ld);
}

static cublasStatus_t make_layouts(const struct gemm_library *lt, struct cuda_gemm *gemm)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    int64_t a_rows = s->a_transposed ? s->k : s->m, a_cols = s->a_transposed ? s->m : s->k;
    int64_t b_rows = s->b_transposed ? s->n : s->k, b_cols = s->b_transposed ? s->k : s->n;
    cublasStatus_t status = make_layout(lt, &gemm->a, s->in, a_rows, a_cols, s->lda);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &gemm->b, s->in, b_rows, b_cols, s->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(lt, &gemm->c, s->out, s->m, s->n, s->ldc);
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
    return status;
}

static cublasStatus_t set_bias(const struct gemm_library *lt, cublasLtMatmulDesc_t matmul,
                               const void *bias)
{
    return lt->matmul_set(matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
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
    uint64_t workspace = workspace_bytes(s);
    uint32_t mask = CUBLASLT_REDUCTION_SCHEME_NONE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t bytes;
    } alignments[] = {
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(o->b) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(o->a) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(o->c) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(o->c) },
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

/* The first that fits of what the library offers. */
static cublasStatus_t ask_heuristic(const struct gemm_library *lt, struct cuda_gemm *gemm,
                                    cublasLtMatmulPreference_t preference)
{
    cublasLtMatmulHeuristicResult_t results[N_CANDIDATES];
    int n = 0;
    cublasStatus_t status = lt->heuristic(lt->handle, gemm->matmul, gemm->b, gemm->a, gemm->c,
                                          gemm->c, preference, N_CANDIDATES, results, &n);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && is_whole(lt, &results[i].algo) &&
            results[i].workspaceSize <= workspace_bytes(&gemm->shape)) {
            gemm->algo = results[i].algo;
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t choose(const struct gemm_library *lt, struct cuda_gemm *gemm,
                             const struct cuda_gemm_operands *o, const void *bias)
{
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
            status = ask_heuristic(lt, gemm, preference);
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
    return is_whole(lt, &gemm->algo) && result.workspaceSize <= workspace_bytes(&gemm->shape)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* loaded: NULL where the library chooses. */
static int make_gemm(const struct gemm_library *lt, const char *key, const struct choice *loaded,
                     const struct cuda_gemm_shape *shape, const struct cuda_gemm_operands *o,
                     struct cuda_gemm **made, struct err *err)
{
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
    if (status == CUBLAS_STATUS_SUCCESS)
        status = loaded ? take(lt, gemm, loaded, bias) : choose(lt, gemm, o, bias);
    if (status == CUBLAS_STATUS_SUCCESS) {
        *made = gemm;
        return 0;
    }
    destroy_gemm(lt, gemm);
    return err_set(err, ERR_DEVICE, "product %s: %s: %s%s", key,
                   loaded ? "the loaded choice cannot be taken" : "cuBLASLt has no algorithm",
                   lt->status_name(status),
                   loaded ? " (hint: it was made on another GPU, or with another library)" : "");
}

int cuda_gemm_prepare(struct kernels *kernels, const struct cuda_gemm_shape *shape,
                      const struct cuda_gemm_operands *operands, const struct cuda_gemm **gemm,
                      struct err *err)
{
    struct cuda_kernels *cuda = cuda_of(kernels);
    struct gemm_library *lt;
    struct choice **at, *choice;
    struct cuda_gemm *made = NULL;
    char key[KEY_BYTES];

    if (open_library(cuda, err) || open_handle(cuda, err))
        return -1;
    lt = library_of(cuda);
    write_key(key, lt, shape, operands);
    at = find_choice(lt, key);
    choice = is_choice(*at, key) ? *at : NULL;
    if (!choice || !choice->gemm) {
        if (make_gemm(lt, key, choice, shape, operands, &made, err))
            return -1;
        choice = choice ? choice : add_choice(at, key);
        if (!choice) {
            destroy_gemm(lt, made);
            return err_set(err, ERR_DEVICE, "out of host memory");
        }
        choice->gemm = made;
        choice->bias = made->bias;
        choice->algo = made->algo;
    }
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

static void add_bias(struct cuda_kernels *cuda, const char *name, const struct cuda_gemm *gemm,
                     const struct cuda_gemm_operands *o)
{
    const struct cuda_gemm_shape *s = &gemm->shape;
    int64_t n_blocks = ceil_div(s->n, N_THREADS);

    cuda_with_act(s->out, [&](auto zero) {
        typedef decltype(zero) T;
        rows_of<T> c = { (T *)o->c, s->ldc };

        cuda_launch_on(cuda->device, cuda->stream, name, cuda_shape_of(s->m * n_blocks, N_THREADS),
                       add_bias_kernel<T>, c, o->bias, s->n, n_blocks);
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
                library_of(cuda)->status_name(status));
}

void cuda_gemm_run(struct kernels *kernels, const char *name, const struct cuda_gemm *gemm,
                   const struct cuda_gemm_operands *o, void *scratch)
{
    struct cuda_kernels *cuda = cuda_of(kernels);
    const struct gemm_library *lt = library_of(cuda);
    char *base = (char *)align_up((size_t)(uintptr_t)scratch, WORKSPACE_ALIGNMENT);
    const float alpha = 1, beta = o->add ? 1 : 0;

    if (gemm->bias == BIAS_IN_EPILOGUE)
        check_status(cuda, name,
                     set_bias(lt, gemm->matmul, place_bias(cuda, name, gemm, o->bias, base)));
    check_status(cuda, name,
                 lt->multiply(lt->handle, gemm->matmul, &alpha, o->b, gemm->b, o->a, gemm->a, &beta,
                              o->c, gemm->c, o->c, gemm->c, &gemm->algo,
                              base + bias_bytes(&gemm->shape), workspace_bytes(&gemm->shape),
                              cuda->stream));
    if (gemm->bias == BIAS_ADDED)
        add_bias(cuda, name, gemm, o);
}
