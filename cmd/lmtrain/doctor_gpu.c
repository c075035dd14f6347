/*
 * doctor_gpu.c - GPUs: their driver, how they are, what our kernels make of them
 *
 * Most is read from the driver's NVML (device/nvml.h). With a broken GPU a call of it may never
 * return, so it runs in a thread that is abandoned then. Without NVML CUDA's driver names the
 * devices.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/str.h"
#include "base/thread.h"
#include "device/device.h"
#include "device/nvml.h"
#include "device/pci.h"
#include "doctor_impl.h"
#include "kernels/kernels.h"
#include "train/vendor_memory.h"

enum { N_GPUS_MAX = 64, NVML_SECONDS = 20 };

/* What NVML says of all GPUs. Not freed where the thread that fills it is left behind. */
struct survey {
    int status; /* of nvml_open */
    struct err err;
    char driver[96];
    int cuda, n;
    struct gpu {
        int status; /* of nvml_gpu */
        struct err err;
        struct nvml_gpu is;
        struct nvml_state now;
        struct nvml_health health;
    } gpus[N_GPUS_MAX];
};

static void *make_survey(void *argument)
{
    struct survey *survey = argument;
    struct nvml *nvml;

    survey->status = nvml_open(&nvml, &survey->err);
    if (survey->status < 0)
        return NULL;
    snprintf(survey->driver, sizeof survey->driver, "%s", nvml_driver_version(nvml));
    survey->cuda = nvml_cuda_version(nvml);
    survey->n = nvml_n_gpus(nvml) < N_GPUS_MAX ? nvml_n_gpus(nvml) : N_GPUS_MAX;
    for (int i = 0; i < survey->n; i++) {
        struct gpu *gpu = &survey->gpus[i];

        gpu->status = nvml_gpu(nvml, i, &gpu->is, &gpu->err);
        nvml_state(nvml, i, &gpu->now);
        nvml_health(nvml, i, &gpu->health);
    }
    nvml_close(nvml);
    return NULL;
}

/* NULL if NVML does not answer, which is reported. */
static struct survey *ask_nvml(struct doctor *doctor)
{
    struct survey *survey = calloc(1, sizeof *survey);
    struct timespec until;
    pthread_t thread;

    CHECK(survey);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += NVML_SECONDS;
    CHECK(!thread_start(&thread, NULL, make_survey, survey));
    if (!pthread_timedjoin_np(thread, NULL, &until))
        return survey;
    pthread_detach(thread);
    doctor_add(doctor, DOCTOR_PROBLEM, "gpu driver",
               "a GPU is broken: dmesg names it (Xid); drain this machine and reset or reboot it",
               "the driver does not respond within %d s", NVML_SECONDS);
    return NULL;
}

/* ---- a GPU ---- */

/* ", 1755 of 1980 MHz"; less where less is known. */
static void add_pair(struct str *text, const char *before, int now, int most, const char *unit)
{
    if (now >= 0 && most >= 0)
        str_printf(text, ", %s%d of %d %s", before, now, most, unit);
    else if (now >= 0)
        str_printf(text, ", %s%d %s", before, now, unit);
}

static void describe(const struct gpu *gpu, int index, struct str *text)
{
    char used[32], all[32];
    int node = pci_numa_node(PCI_SYSFS, gpu->is.pci);

    str_printf(text, "%d: %s, %s", index, gpu->is.name, gpu->is.pci);
    if (gpu->is.memory_bytes >= 0 && gpu->now.memory_used_bytes >= 0)
        str_printf(text, ", %s of %s used",
                   str_bytes(used, sizeof used, (uint64_t)gpu->now.memory_used_bytes),
                   str_bytes(all, sizeof all, (uint64_t)gpu->is.memory_bytes));
    add_pair(text, "", gpu->now.sm_mhz, gpu->is.sm_mhz_max, "MHz");
    add_pair(text, "memory ", gpu->now.memory_mhz, gpu->is.memory_mhz_max, "MHz");
    add_pair(text, "", gpu->now.power_watts, gpu->is.power_limit_watts, "W");
    if (gpu->now.temperature_celsius >= 0)
        str_printf(text, ", %d degrees Celsius", gpu->now.temperature_celsius);
    if (node >= 0)
        str_printf(text, ", NUMA node %d", node);
}

static void check_clocks(struct doctor *doctor, const struct gpu *gpu, int index)
{
    char words[256];
    int throttle = gpu->now.throttle < 0 ? 0 : gpu->now.throttle & ~NVML_IDLE;
    const char *advice =
        throttle & (NVML_THERMAL_SLOWDOWN | NVML_HARDWARE_THERMAL)
            ? "thermal limit: check fans, air flow and room temperature"
        : throttle & NVML_POWER_BRAKE
            ? "power brake of the machine's power supply: check the power supply"
        : throttle & NVML_HARDWARE_SLOWDOWN
            ? "thermal limit or power brake: nvidia-smi -q -d PERFORMANCE shows which"
        : throttle & NVML_POWER_CAP          ? "power limit reached: nvidia-smi -pl sets it"
        : throttle & NVML_APPLICATION_CLOCKS ? "nvidia-smi -rac resets the application clocks"
                                             : "nvidia-smi -q -d PERFORMANCE shows more";

    if (throttle)
        doctor_add(doctor, DOCTOR_WARNING, "gpu clocks", advice, "%d: throttled by %s", index,
                   nvml_throttle_words(throttle, words, sizeof words));
}

static void check_memory(struct doctor *doctor, const struct nvml_health *health, int index)
{
    if (health->has_remap_failed)
        doctor_add(doctor, DOCTOR_PROBLEM, "gpu memory",
                   "have the GPU replaced: no spare rows are left",
                   "%d: a bad row of memory could not be remapped", index);
    else if (health->is_remap_pending)
        doctor_add(doctor, DOCTOR_WARNING, "gpu memory",
                   "reset the GPU (nvidia-smi -r) or reboot before a long run",
                   "%d: a bad row of memory is remapped at the next reset only", index);
    if (health->ecc_uncorrected > 0)
        doctor_add(doctor, DOCTOR_WARNING, "gpu memory",
                   "reset the GPU (nvidia-smi -r); have it replaced if the errors return",
                   "%d: %lld uncorrectable ECC errors since the driver was loaded", index,
                   (long long)health->ecc_uncorrected);
}

static void check_links(struct doctor *doctor, const struct nvml_health *health, int index)
{
    /* On PCIe cards without a bridge that is as it should be. */
    if (health->n_links_down && health->n_links_down == health->n_links)
        doctor_add(doctor, DOCTOR_NOTE, "nvlink", NULL, "%d: none of its %d links is up", index,
                   health->n_links);
    else if (health->n_links_down)
        doctor_add(doctor, DOCTOR_WARNING, "nvlink",
                   "is nvidia-fabricmanager running? nvidia-smi nvlink -s shows the links",
                   "%d: %d of %d links are down", index, health->n_links_down, health->n_links);
    if (health->link_errors > 0)
        doctor_add(doctor, DOCTOR_WARNING, "nvlink",
                   "nvidia-smi nvlink -e shows which; if they grow, have the machine looked at",
                   "%d: %lld errors since the driver was loaded", index,
                   (long long)health->link_errors);
}

static void report_gpu(struct doctor *doctor, const struct gpu *gpu, int index)
{
    struct str text = { 0 };

    if (gpu->status < 0 && gpu->err.code == ERR_FAILED) {
        doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL, "%d: not visible to this process", index);
        return;
    }
    if (gpu->status < 0 || gpu->now.is_lost) {
        doctor_add(doctor, DOCTOR_PROBLEM, "gpu",
                   "drain this machine and reboot it; dmesg names the error (Xid)",
                   "%d: %s%sthe driver cannot reach it", index, gpu->status < 0 ? "" : gpu->is.pci,
                   gpu->status < 0 ? "" : ": ");
        return;
    }
    describe(gpu, index, &text);
    doctor_add(doctor, DOCTOR_OK, "gpu", NULL, "%s", str_text(&text));
    str_release(&text);
    check_clocks(doctor, gpu, index);
    check_memory(doctor, &gpu->health, index);
    check_links(doctor, &gpu->health, index);
}

/* ---- the driver ---- */

/* cuda: the driver's, as 12080 for 12.8; below 1: not known. Returns 0 if this build's CUDA
 * cannot run on it. */
static int report_driver(struct doctor *doctor, const char *driver, int cuda, int n_gpus)
{
    int ours = device_cuda_version();

    if (cuda <= 0) {
        doctor_add(doctor, DOCTOR_NOTE, "gpu driver", NULL,
                   "%s%sCUDA version of the driver unknown, %d device%s", driver,
                   *driver ? ", " : "", n_gpus, str_s(n_gpus));
        return 1;
    }
    if (!ours || cuda / 1000 >= ours / 1000) {
        doctor_add(doctor, DOCTOR_OK, "gpu driver", NULL, "%s%sCUDA %d.%d, %d device%s", driver,
                   *driver ? ", " : "", cuda / 1000, cuda % 1000 / 10, n_gpus, str_s(n_gpus));
        return 1;
    }
    doctor_add(doctor, DOCTOR_PROBLEM, "gpu driver",
               arena_printf(doctor->arena,
                            "install driver %d or newer, or build lmtrain with CUDA %d",
                            nvml_driver_needed(ours), cuda / 1000),
               "%s%sis for CUDA %d.%d and this lmtrain is built with CUDA %d.%d", driver,
               *driver ? " " : "", cuda / 1000, cuda % 1000 / 10, ours / 1000, ours % 1000 / 10);
    return 0;
}

/* CUDA's driver, as much of it as is needed to name the devices; no header of it, and it may be
 * absent. Returns 0 if it cannot be used. */
static int ask_cuda_driver(struct doctor *doctor, void *driver)
{
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*count_of)(int *) = (int (*)(int *))dlsym(driver, "cuDeviceGetCount");
    int (*name_of)(char *, int, int) = (int (*)(char *, int, int))dlsym(driver, "cuDeviceGetName");
    int (*bytes_of)(size_t *, int) = (int (*)(size_t *, int))dlsym(driver, "cuDeviceTotalMem_v2");
    int (*version_of)(int *) = (int (*)(int *))dlsym(driver, "cuDriverGetVersion");
    int n_devices = 0, version = 0;

    if (!init || !count_of || !name_of || !bytes_of || !version_of || init(0) != 0 ||
        count_of(&n_devices) != 0) {
        doctor_add(doctor, DOCTOR_WARNING, "gpu driver",
                   "reinstall the NVIDIA driver, or reboot after an update",
                   "libcuda.so.1 is there, but does not start");
        return 0;
    }
    version_of(&version);
    bool is_usable = report_driver(doctor, "", version, n_devices);
    for (int device = 0; device < n_devices; device++) {
        char name[128] = "?", bytes[32];
        size_t n_bytes = 0;

        name_of(name, sizeof name, device);
        bytes_of(&n_bytes, device);
        doctor_add(doctor, DOCTOR_OK, "gpu", NULL, "%d: %s, %s", device, name,
                   str_bytes(bytes, sizeof bytes, n_bytes));
    }
    return is_usable;
}

/* ---- what is ours ---- */

static void report_libraries(struct doctor *doctor)
{
    struct device_library library;
    struct err err;

    for (int i = 0; device_cuda_library(i, &library, &err); i++)
        if (library.file)
            doctor_add(doctor, DOCTOR_OK, library.name, NULL, "%s (%s)", library.version,
                       library.file);
        else
            doctor_add(doctor, DOCTOR_WARNING, library.name,
                       "set LMTRAIN_CUDA_LIBRARIES to its folder", "%s", err.text);
}

/* What training would really use. */
static void probe_cuda(struct doctor *doctor)
{
    struct device *device = NULL;
    struct kernels *kernels = NULL;
    struct err err;

    if (!device_cuda_version())
        doctor_add(doctor, DOCTOR_WARNING, "cuda", "make CUDA=1 builds one that uses the GPUs",
                   "this lmtrain was built without CUDA and trains on the CPU");
    else if (device_cuda_open(&device, 0, &err) < 0 ||
             kernels_cuda_create(&kernels, device, &err) < 0)
        doctor_add(doctor, DOCTOR_PROBLEM, "cuda", "see the message", "%s", err.text);
    else
        doctor_add(doctor, DOCTOR_OK, "gpu kernels", NULL, "%s", kernels_identity(kernels));
    kernels_destroy(kernels);
    device_destroy(device);
}

static int n_gpu_nodes(void)
{
    DIR *folder = opendir("/dev");
    int n = 0;

    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        const char *number = entry->d_name + strlen("nvidia");
        if (str_starts_with(entry->d_name, "nvidia") && *number >= '0' && *number <= '9')
            n++;
    }
    if (folder != NULL)
        closedir(folder);
    return n;
}

/* Without NVML. Returns 0 if no GPU can be used. */
static int probe_without_nvml(struct doctor *doctor, const struct err *why)
{
    int n_nodes = n_gpu_nodes();
    bool is_usable = false;
    void *driver = n_nodes ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    if (driver != NULL) {
        is_usable = ask_cuda_driver(doctor, driver);
        doctor_add(doctor, DOCTOR_NOTE, "gpu state", NULL, "not known: %s", why->text);
        dlclose(driver);
    } else if (n_nodes > 0) {
        doctor_add(doctor, DOCTOR_WARNING, "gpu driver", "install the NVIDIA driver's libcuda.so.1",
                   "%d GPU%s in /dev, but no driver library", n_nodes, str_s(n_nodes));
    } else {
        doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL, "none: training runs on the CPU");
    }
    return is_usable;
}

/* What no plan has, as the last run measured it. */
static void report_vendor_memory(struct doctor *doctor)
{
    char name[256], bytes[32];
    size_t vendor;

    if (vendor_memory_recall(&vendor, name, sizeof name))
        doctor_add(doctor, DOCTOR_OK, "gpu vendor memory", NULL,
                   "%s beside what was planned, in the last run (of any job) on %s",
                   str_bytes(bytes, sizeof bytes, vendor), name);
}

void doctor_probe_gpus(struct doctor *doctor)
{
    struct survey *survey = ask_nvml(doctor);
    bool is_usable = false;

    report_vendor_memory(doctor);
    if (!survey)
        return;
    if (survey->status < 0 || !survey->n) {
        if (!survey->n && survey->status == 0)
            err_set(&survey->err, ERR_DEVICE, "NVML finds no GPU");
        is_usable = probe_without_nvml(doctor, &survey->err);
    } else {
        is_usable = report_driver(doctor, survey->driver, survey->cuda, survey->n);
        for (int i = 0; i < survey->n; i++)
            report_gpu(doctor, &survey->gpus[i], i);
    }
    free(survey);
    if (!is_usable)
        return;
    report_libraries(doctor);
    probe_cuda(doctor);
}
