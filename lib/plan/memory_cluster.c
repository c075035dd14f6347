/*
 * memory_cluster.c - the rates by which copies are timed where no cluster is given
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "plan/memory_fit.h"
#include "plan/price_table.h"

/*
 * Of one core, assumed and not measured: about half of what `lmtrain bench cluster` measured on one
 * core of an AMD EPYC with AVX-512 for scripts/bench/memory (0.105 TFLOP/s in fp32, 0.213 in bf16,
 * copies of 7.2 GB/s), as most cores have less. Their ratio to the link's rate says what leaves and
 * where copies are posted; `cluster:` replaces them by a measurement.
 */
#define CORE_FLOPS 60e9
#define CORE_BANDWIDTH 6e9
#define TABLES_BYTES_MAX ((size_t)64 << 20)
#define MEMORY_LINK 6e9 /* bytes/s between two blocks of a CPU's memory */

static struct device_spec cpu_device(const struct job *job, const struct kernels *kernels)
{
    int n_threads = kernels->pool ? pool_n_threads(kernels->pool) : 1;
    struct device_spec device = {
        .name = "cpu",
        .is_cpu = true,
        .memory = INT64_MAX / 2,
        .hbm = CORE_BANDWIDTH * n_threads,
        .fast_bus = MEMORY_LINK,
        .fast_link = MEMORY_LINK,
        .fast_latency = 20000,
        .fast_domain = 1,
        .nic = MEMORY_LINK,
        .host_link = job->memory.link_rate > 0 ? job->memory.link_rate : MEMORY_LINK,
    };

    for (int f = 0; f < N_DEVICE_FORMATS; f++) {
        device.peak[f] = CORE_FLOPS * n_threads;
        device.kernel_reach[f] = device.step_reach[f] = 1;
    }
    return device;
}

/* "NVIDIA H200, 132 multiprocessors, ..." has the name of configs/devices in it. */
static const char *gpu_name(const struct kernels *kernels)
{
    static const char *const names[][2] = { { "H200", "h200" },        { "GB200", "gb200" },
                                            { "GB300", "gb300" },      { "B200", "b200" },
                                            { "A100", "a100-sxm-80" }, { "H100", "h100-sxm" } };
    const char *description = kernels->device ? kernels->device->description : NULL;

    for (size_t i = 0; description && i < sizeof names / sizeof *names; i++)
        if (strstr(description, names[i][0]))
            return names[i][1];
    return "h100-sxm";
}

/* A table that cannot be read is done without. */
static int read_with_table(struct cluster *cluster, const char *name, struct arena *arena)
{
    struct price_table *table = arena_array(arena, struct price_table, 1);
    struct err ignored;

    if (cluster_read(cluster, name, arena, &ignored))
        return -1;
    if (cluster->tables && !price_table_read(table, cluster->tables, arena, &ignored))
        cluster->table = table;
    return 0;
}

bool memory_known_cluster(struct cluster *cluster, const struct job *job, struct arena *arena)
{
    const char *name = job->searched.cluster ? job->searched.cluster : job->cluster;

    if (job->rates)
        *cluster = *job->rates;
    return job->rates || (name && !read_with_table(cluster, name, arena));
}

int memory_cluster(struct cluster *cluster, const struct job *job, const struct kernels *kernels,
                   struct arena *arena, struct err *err)
{
    struct device_spec *device = arena_array(arena, struct device_spec, 1);
    bool is_known = job->rates != NULL;
    if (is_known)
        *cluster = *job->rates;
    else if (job->searched.cluster)
        is_known = !read_with_table(cluster, job->searched.cluster, arena);
    if (is_known && cluster_is_cpu(cluster) && job->memory.link_rate > 0)
        cluster->links.host_bandwidth = job->memory.link_rate;
    if (is_known)
        return 0;
    if (!kernels_are_gpu(kernels))
        *device = cpu_device(job, kernels);
    else if (device_read(device, gpu_name(kernels), arena, err) < 0)
        return -1;
    cluster_of_device(cluster, device, max_int(1, job->world_size), arena);
    return 0;
}

static void add_file(const char *path, struct str *out)
{
    struct err ignored;
    char *text;
    size_t n;

    if (!path || file_read(path, TABLES_BYTES_MAX, ERR_CONFIG, &text, &n, &ignored) < 0)
        return;
    str_printf(out, "%s\n", text);
    free(text);
}

void memory_cluster_text(const struct job *job, struct str *out)
{
    struct arena arena = { 0 };
    struct cluster cluster;

    if (memory_known_cluster(&cluster, job, &arena)) {
        str_printf(out, "%s\n", cluster.name);
        add_file(cluster.name, out);
        add_file(cluster.tables, out);
    } else {
        str_add(out, "no cluster can be read\n");
    }
    arena_release(&arena);
}
