/*
 * gemm_library.cu - cuBLASLt itself: opened at run time; and the choices of algorithms, as text
 *
 * A line is "product KEY: BIAS ALGORITHM": the key is all that the library's choice may depend on,
 * its own version and the GPU at the end; the algorithm is the library's 64 bytes, which mean
 * nothing to another version, nor to another GPU.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gemm_impl.cuh"
#include "cuda/library.cuh"

extern "C" {
#include "base/str.h"
}

static const char *const bias_names[N_BIAS_WAYS] = { "plain", "bias", "bias-after" };

/* ---- the library ---- */

static int find_functions(struct gemm_library *lt, void *handle)
{
    return CUDA_SYMBOL(handle, lt->get_version, cublasLtGetVersion) &&
           CUDA_SYMBOL(handle, lt->status_name, cublasLtGetStatusName) &&
           CUDA_SYMBOL(handle, lt->create, cublasLtCreate) &&
           CUDA_SYMBOL(handle, lt->destroy, cublasLtDestroy) &&
           CUDA_SYMBOL(handle, lt->layout_create, cublasLtMatrixLayoutCreate) &&
           CUDA_SYMBOL(handle, lt->layout_destroy, cublasLtMatrixLayoutDestroy) &&
           CUDA_SYMBOL(handle, lt->layout_set, cublasLtMatrixLayoutSetAttribute) &&
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

/* One of its files, down to a handle: a library that is newer than the driver is found, and
 * fails. */
static int open_file(struct gemm_library *lt, const char *file, struct err *err)
{
    void *handle;

    if (cuda_library_open(&handle, file, err) < 0)
        return -1;
    if (!find_functions(lt, handle))
        return err_set(err, ERR_DEVICE, "%s lacks functions that lmtrain calls", file);
    cublasStatus_t status = lt->create(&lt->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return err_set(err, ERR_DEVICE, "%s: cublasLtCreate: %s", file, lt->status_name(status));
    lt->version = lt->get_version();
    return 0;
}

int gemm_library_open(struct cuda_kernels *cuda, struct err *err)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12" };
    struct err older;

    if (cuda->gemm)
        return 0;
    struct gemm_library *lt = (struct gemm_library *)calloc(1, sizeof *lt);
    if (!lt)
        return err_set(err, ERR_DEVICE, "out of host memory");
    if (open_file(lt, names[0], err) && open_file(lt, names[1], &older)) {
        free(lt);
        return err_add(err, "matrix products need cuBLASLt");
    }
    const struct cudaDeviceProp *p = &cuda->device->properties;
    snprintf(lt->stamp, sizeof lt->stamp, "cublaslt %zu sm_%d%d %d", lt->version, p->major,
             p->minor, p->multiProcessorCount);
    cuda->gemm = lt;
    return 0;
}

void cuda_gemm_describe(struct cuda_kernels *cuda, char *text, size_t size)
{
    struct err err;

    if (gemm_library_open(cuda, &err))
        snprintf(text, size, "none");
    else
        snprintf(text, size, "%zu", gemm_library_of(cuda)->version);
}

void gemm_destroy(const struct gemm_library *lt, struct cuda_gemm *gemm)
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

static void forget_choices(struct gemm_library *lt)
{
    for (struct choice *c = lt->choices, *next; c; c = next) {
        next = c->next;
        gemm_destroy(lt, c->gemm);
        free(c);
    }
    lt->choices = NULL;
}

void cuda_gemm_choices_forget(struct kernels *kernels)
{
    if (gemm_library_of(cuda_of(kernels)))
        forget_choices(gemm_library_of(cuda_of(kernels)));
}

void cuda_gemm_destroy(struct cuda_kernels *cuda)
{
    struct gemm_library *lt = gemm_library_of(cuda);

    if (!lt)
        return;
    forget_choices(lt);
    if (lt->handle)
        lt->destroy(lt->handle);
    free(lt);
    cuda->gemm = NULL;
}

/* ---- choices ---- */

/* Where the key's choice is, or is to be put. */
static struct choice **place_of(struct gemm_library *lt, const char *key)
{
    struct choice **at = &lt->choices;

    while (*at && strcmp((*at)->key, key) < 0)
        at = &(*at)->next;
    return at;
}

struct choice *gemm_find_choice(struct gemm_library *lt, const char *key)
{
    struct choice *choice = *place_of(lt, key);

    return choice && !strcmp(choice->key, key) ? choice : NULL;
}

struct choice *gemm_add_choice(struct gemm_library *lt, const char *key)
{
    struct choice **at = place_of(lt, key);
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
    struct gemm_library *lt = gemm_library_of(cuda_of(kernels));

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
    struct choice *choice;
    const char *stamp;
    int way = 0;

    if (sscanf(line, "%255[^:]: %15s %129s", key, bias, hex) != 3 || read_algo(&algo, hex))
        return err_set(err, ERR_FAILED, "'product %.60s...' is not a valid choice of a product",
                       line);
    while (way < N_BIAS_WAYS && strcmp(bias_names[way], bias) != 0)
        way++;
    stamp = strstr(key, "cublaslt ");
    if (way == N_BIAS_WAYS || !stamp)
        return err_set(err, ERR_FAILED, "'product %.60s...' is not a valid choice of a product",
                       line);
    if (strcmp(stamp, lt->stamp) != 0)
        return err_set(err, ERR_DEVICE,
                       "product %s was chosen for %s, here is %s (hint: the same version on the "
                       "same kind of GPU has the same algorithms)",
                       key, stamp, lt->stamp);
    choice = gemm_find_choice(lt, key);
    if (choice && choice->gemm && memcmp(&choice->algo, &algo, sizeof algo) != 0)
        return err_set(err, ERR_FAILED, "product %s is prepared already, with another algorithm",
                       key);
    choice = choice ? choice : gemm_add_choice(lt, key);
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
            if (gemm_library_open(cuda, err) ||
                load_line(gemm_library_of(cuda), line + sizeof word - 1, err))
                return -1;
        }
        text += length + (text[length] == '\n');
    }
    return 0;
}
