/*
 * cudnn_plans.cu - which plans cuDNN has for lmtrain's attention, asked without a GPU
 *
 * cuDNN makes plans for a device that is described by its properties: so the graphs of
 * attention_graph.cu are checked, engines are chosen and kernels made on a machine that has none.
 * Prints a line a shape; fails where a shape that must have a plan has none, or where a number of
 * cudnn.cuh is not that of cuDNN's headers. Numbers are compared when this is compiled.
 */
#include <cudnn_graph.h>

#include "cuda/attention_graph.cuh"

#include <stdio.h>
#include <stdlib.h>

#define SAME(name, number) static_assert((int)CUDNN_##name == (number), #name);
CUDNN_NUMBERS(SAME)

/* What cuDNN asks of a device: an H100 SXM and an A100, as the CUDA runtime describes them. */
static const char *const hopper =
    "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H100 80GB HBM3\",\"deviceVer\":900,"
    "\"driverVer\":13000,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":85029158912}";

int main()
{
    struct cudnn_api api;
    struct err err = {};
    void *device = NULL;
    struct attention_shape s;

    if (cudnn_api_open(&api, &err)) {
        printf("skipped: %s\n", err.text);
        return 0;
    }
    printf("cuDNN %zu\n", api.get_version());
    if (cudnn_check(&api, api.create_descriptor(DNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device), "c", &err) ||
        cudnn_check(&api, api.set_attribute(device, DNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, DNN_TYPE_CHAR, (int64_t)strlen(hopper)+1, hopper), "s", &err) ||
        cudnn_check(&api, api.finalize(device), "f", &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    for (int grad = 0; grad < 2; grad++)
        for (int e = 64; e <= 128; e *= 2)
            for (int g = 16; g >= 4; g /= 4)
                for (int w = 0; w < 2; w++) {
                    struct attention_graph a;
                    struct cudnn_plan plan;
                    memset(&s, 0, sizeof s);
                    s.grad = grad; s.data_type = DNN_DATA_BFLOAT16; s.n_heads = 16; s.n_kv_heads = g; s.head_dim = e;
                    s.seq_len = 4096; s.window = w ? 1024 : 0; s.batch = 2;
                    s.qkv_stride = s.dqkv_stride = (16 + 2 * g) * e; s.out_stride = s.dout_stride = 16 * e;
                    cudnn_graph_init(&a.graph, &api, NULL, device);
                    attention_graph_build(&a, &s);
                    int r = cudnn_graph_plan(&a.graph, &plan, &err);
                    printf("%s e=%d g=%d w=%d: %s\n", grad ? "bwd" : "fwd", e, g, s.window, r ? err.text : plan.engine);
                    if (!r) printf("   workspace %zu (tensors %d ops %d desc %d)\n", plan.workspace_bytes, (int)a.graph.n_tensors, a.graph.n_operations, a.graph.n_descriptors);
                    cudnn_graph_release(&a.graph);
                }
}
