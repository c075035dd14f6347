/*
 * cudnn_plans.cu - which plans cuDNN has for lmtrain's attention, asked without a GPU
 *
 * cuDNN makes plans for a device that is described by its properties: so that the graphs of
 * attention_graph.cu are checked, engines are chosen and kernels made on a machine that has none.
 * `make cudnn-plans` runs it, with driver.c in the driver's place. It prints a line a shape, with
 * workspace, engine and kernel, and fails where a shape that must have a plan has none; numbers of
 * cudnn.cuh are compared with cuDNN's headers, where these are, when it is compiled.
 *
 * What a plan computes it cannot say: that is for a GPU (attention_cudnn_test).
 */
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#endif

#include <dlfcn.h>
#include <stdio.h>

#include "cuda/attention_graph.cuh"

#ifdef CUDNN_GRAPH_H_
#define IS_THE_SAME(name, number) static_assert((int)CUDNN_##name == (number), #name);
CUDNN_NUMBERS(IS_THE_SAME)
#endif

struct described {
    const char *name, *json;
};

/* Devices as cuDNN would describe them itself, from the CUDA runtime's properties. */
#define DEVICE(name, version, n_sms, l2, shared, optin, memory) \
    { \
        name, "{\"cudaDeviceId\":0,\"deviceName\":\"" name "\",\"deviceVer\":" version \
              ",\"driverVer\":13000,\"maxGridSize\":[2147483647,65535,65535]," \
              "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536," \
              "\"multiProcessorCount\":" n_sms ",\"smClockRateKHz\":1755000," \
              "\"memClockRateKHz\":2619000,\"l2CacheSize\":" l2 ",\"warpSize\":32," \
              "\"maxSharedMemoryPerBlock\":" shared ",\"maxSharedMemoryPerBlockOptin\":" optin \
              ",\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536," \
              "\"pciDeviceId\":0,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024," \
              "\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1," \
              "\"totalGlobalMem\":" memory "}" \
    }

static const struct described devices[] = {
    DEVICE("sm_90", "900", "132", "52428800", "49152", "232448", "85029158912"),
    DEVICE("sm_80", "800", "108", "41943040", "49152", "166912", "85029158912"),
};

struct row {
    int n_heads, n_kv_heads, head_dim, seq_len, window;
    int64_t batch;
    int gap; /* between rows of operands */
    int has_forward, has_backward;
};

/* Shapes of training, then odd ones. */
static const struct row rows[] = {
    { 12, 12, 64, 1024, 0, 8, 0, 1, 1 },    { 16, 16, 64, 4096, 0, 2, 0, 1, 1 },
    { 9, 3, 64, 2048, 0, 4, 0, 1, 1 },      { 16, 16, 128, 4096, 0, 1, 0, 1, 1 },
    { 32, 8, 128, 4096, 0, 2, 0, 1, 1 },    { 32, 8, 128, 8192, 0, 1, 0, 1, 1 },
    { 32, 8, 128, 8192, 4096, 1, 0, 1, 1 }, { 64, 8, 128, 4096, 0, 1, 0, 1, 1 },
    { 32, 32, 80, 2048, 0, 2, 0, 1, 1 },    { 32, 32, 96, 2048, 0, 2, 0, 1, 1 },
    { 8, 1, 128, 131072, 0, 1, 0, 1, 0 },   { 16, 8, 256, 4096, 0, 1, 0, 1, 0 },
    { 6, 2, 24, 70, 0, 2, 64, 1, 1 },       { 35, 5, 8, 40, 1, 2, 8, 1, 1 },
    { 4, 1, 64, 1000, 9, 3, 8, 1, 1 },      { 1, 1, 8, 2, 0, 1, 0, 1, 1 },
};

static struct attention_shape shape_of(const struct row *r, int grad, int data_type)
{
    struct attention_shape s;

    memset(&s, 0, sizeof s);
    s.grad = grad;
    s.data_type = data_type;
    s.n_heads = r->n_heads;
    s.n_kv_heads = r->n_kv_heads;
    s.head_dim = r->head_dim;
    s.seq_len = r->seq_len;
    s.window = r->window;
    s.batch = r->batch;
    /* Columns of one product. */
    s.q_stride = s.k_stride = s.v_stride =
        (int64_t)(r->n_heads + 2 * r->n_kv_heads) * r->head_dim + r->gap;
    s.out_stride = (int64_t)r->n_heads * r->head_dim + r->gap;
    s.dout_stride = s.out_stride;
    s.dq_stride = s.dk_stride = s.dv_stride = s.q_stride;
    return s;
}

static const char *last_kernel()
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const char *(*name)(void) =
        driver ? (const char *(*)(void))dlsym(driver, "stand_in_last_kernel") : NULL;

    return name ? name() : "";
}

/* Pointers are only written down in a variant pack. */
static int can_pack(const struct cudnn_api *api, const struct attention_graph *a, struct err *err)
{
    static char memory[256];
    void *pointers[ATTENTION_MAX_OPERANDS], *pack;

    for (int i = 0; i < a->n_operands; i++)
        pointers[i] = memory;
    pack = cudnn_variant_pack(api, a->uids, pointers, a->n_operands, memory, err);
    return pack && api->destroy_descriptor(pack) == DNN_STATUS_SUCCESS;
}

/* Print the shape's line; returns whether it has a plan. */
static int report(const struct cudnn_api *api, void *device, const char *name,
                  const struct attention_shape *s)
{
    static struct attention_graph a;
    struct cudnn_plan plan = {};
    struct err err = {};
    int is_planned;

    cudnn_graph_init(&a.graph, api, NULL, device);
    attention_graph_build(&a, s);
    is_planned = !cudnn_graph_plan(&a.graph, &plan, &err) && can_pack(api, &a, &err);
    printf("%s %s %s h %2d/%-2d e %3d s %6d b %lld window %4d: ", name, s->grad ? "bwd" : "fwd",
           s->data_type == DNN_DATA_HALF ? "fp16" : "bf16", s->n_heads, s->n_kv_heads, s->head_dim,
           s->seq_len, (long long)s->batch, s->window);
    if (is_planned)
        printf("%9.2f MiB  %s  %s\n", (double)plan.workspace_bytes / (1 << 20), plan.engine,
               last_kernel());
    else
        printf("no plan: %s\n", err.text);
    cudnn_graph_release(&a.graph);
    return is_planned;
}

static int describe(const struct cudnn_api *api, const char *json, void **device, struct err *err)
{
    return cudnn_check(api, api->create_descriptor(DNN_BACKEND_DEVICEPROP_DESCRIPTOR, device),
                       "device", err) ||
           cudnn_check(api,
                       api->set_attribute(*device, DNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                          DNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json),
                       "device", err) ||
           cudnn_check(api, api->finalize(*device), "device", err);
}

int main()
{
    struct cudnn_api api;
    struct err err = {};
    int n_missing = 0;

    if (cudnn_api_open(&api, &err)) {
        printf("skipped: %s\n", err.text);
        return 0;
    }
    printf("cuDNN %zu\n", api.get_version());
    for (const struct described &d : devices) {
        void *device = NULL;

        if (describe(&api, d.json, &device, &err)) {
            printf("%s\n", err.text);
            return 1;
        }
        for (int grad = 0; grad < 2; grad++)
            for (const struct row &r : rows)
                for (int half = 0; half < (&r == rows ? 2 : 1); half++) {
                    int type = half ? DNN_DATA_HALF : DNN_DATA_BFLOAT16;
                    struct attention_shape s = shape_of(&r, grad, type);

                    if (!report(&api, device, d.name, &s))
                        n_missing += grad ? r.has_backward : r.has_forward;
                }
        api.destroy_descriptor(device);
    }
    if (n_missing)
        printf("%d plans are missing\n", n_missing);
    return n_missing != 0;
}
