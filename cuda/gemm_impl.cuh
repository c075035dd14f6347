/*
 * gemm_impl.cuh - what gemm.cu and gemm_library.cu share: the library's functions, and its choices
 */
#ifndef CUDA_GEMM_IMPL_CUH
#define CUDA_GEMM_IMPL_CUH

#include <cublasLt.h>

#include "cuda/gemm.cuh"

enum { KEY_BYTES = 256, STAMP_BYTES = 64, GEMM_CANDIDATES = 32, GEMM_TARGETS = 8 };

enum bias_way { BIAS_NONE, BIAS_IN_EPILOGUE, BIAS_ADDED, N_BIAS_WAYS };

/* What is taken for all products that are alike; key: see gemm.cu's write_key. */
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
    cublasLtMatmulDesc_t matmul;    /* runs set its bias: by the one thread that uses the kernels */
    cublasLtMatrixLayout_t a, b, c; /* ours, so a is the library's B */
    cublasLtMatmulAlgo_t algo;
    struct {
        int n_multiprocessors, holds;
    } targets[GEMM_TARGETS]; /* that were tried */
    int n_targets;
};

/* cuda_kernels.gemm. Its functions are the library's. */
struct gemm_library {
    cublasLtHandle_t handle;
    size_t version;
    char stamp[STAMP_BYTES]; /* whose algorithms these are: library and GPU; the end of each key */
    struct choice *choices;

    decltype(&cublasLtGetVersion) get_version;
    decltype(&cublasLtGetStatusName) status_name;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
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

static inline struct gemm_library *gemm_library_of(struct cuda_kernels *cuda)
{
    return (struct gemm_library *)cuda->gemm;
}

/* Open the library where it is not yet: the newest that the driver serves. Returns 0, or -1 and
 * ERR_DEVICE. */
int gemm_library_open(struct cuda_kernels *cuda, struct err *err);

static inline int64_t gemm_n_runs(const struct cuda_gemm_shape *shape)
{
    return max_i64(shape->n_runs, 1);
}

/* Of a run's scratch: the library's part; and whether the library's product goes there, in fp32. */
size_t gemm_workspace_bytes(const struct cuda_gemm_shape *shape);
int gemm_is_apart(const struct cuda_gemm_shape *shape);

/* Of a run's matmul, of operands of e4m3. */
cublasStatus_t gemm_set_scales(const struct gemm_library *lt, const struct cuda_gemm *gemm,
                               const float *a, const float *b);

/* Of a run's matmul: 0 for all multiprocessors. */
cublasStatus_t gemm_set_target(const struct gemm_library *lt, const struct cuda_gemm *gemm,
                               int target);

/*
 * Whether algorithms for the product are to be measured now: calls are prepared early, it is not
 * tiny, and $LMTRAIN_CUBLASLT_CHOICE does not say `first` (`measured`: tiny ones too). Then the
 * index of the fastest of n > 0, at most GEMM_CANDIDATES; 0 where memory for it cannot be had. With
 * a target: the fastest of those that it leaves as they are (gemm_holds), if there is one.
 */
int gemm_is_measured(const struct cuda_kernels *cuda, const struct cuda_gemm_shape *shape);
int gemm_measure(struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
                 const struct cuda_gemm_operands *operands, const cublasLtMatmulAlgo_t *algos,
                 int n, int target);

/* Whether gemm's algorithm is one with the target, too, and gives the same bits; 0 also where
 * memory to try that cannot be had. */
int gemm_holds(struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
               const struct cuda_gemm_operands *operands, int target);

/* One product that nobody asks the time of: it loads the library's code, which is not to be loaded
 * once queues wait for peers (cuda_load). Nothing where memory for it cannot be had. */
void gemm_try(struct cuda_kernels *cuda, const struct cuda_gemm *gemm,
              const struct cuda_gemm_operands *operands);

void gemm_destroy(const struct gemm_library *lt, struct cuda_gemm *gemm);

/* The key's choice, or NULL; and a new one of a key that has none, NULL without memory. */
struct choice *gemm_find_choice(struct gemm_library *lt, const char *key);
struct choice *gemm_add_choice(struct gemm_library *lt, const char *key);

#endif
