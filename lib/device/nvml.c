/*
 * nvml.c - the few functions of NVML that are asked, by their documented signatures
 *
 * Names end in the version of the interface (_v2) whose arguments are declared here: the library
 * keeps old ones for programs like this. All but the first few may be absent from a library.
 */
#include "device/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_NO_PERMISSION = 4, ERROR_TIMEOUT = 10, ERROR_GPU_IS_LOST = 15 };
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, TEMPERATURE_GPU = 0 };
enum { ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0 };
enum { N_LINKS_MAX = 36, N_LINK_COUNTERS = 4 }; /* replay, recovery, CRC of flow and of data */

#define EVENT_DOUBLE_BIT_ECC 2ull
#define EVENT_XID 8ull

enum { XID_DOUBLE_BIT_ECC = 48 };

typedef struct nvml_handle *handle_t;
typedef unsigned long long count_t;

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct memory_info {
    count_t total, free, used;
};

struct utilization {
    unsigned gpu, memory;
};

struct event {
    handle_t device;
    count_t type, data;
    unsigned gpu_instance, compute_instance;
};

_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct event) == 32, "nvmlEventData_t");

struct calls {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int error);
    int (*driver_version)(char *text, unsigned size);
    int (*cuda_version)(int *version);
    int (*count)(unsigned *n);
    int (*handle)(unsigned index, handle_t *device);
    int (*name)(handle_t device, char *text, unsigned size);
    int (*uuid)(handle_t device, char *text, unsigned size);
    int (*pci)(handle_t device, struct pci_info *info);
    int (*memory)(handle_t device, struct memory_info *memory);
    int (*clock)(handle_t device, int type, unsigned *mhz);
    int (*max_clock)(handle_t device, int type, unsigned *mhz);
    int (*power)(handle_t device, unsigned *milliwatts);
    int (*power_limit)(handle_t device, unsigned *milliwatts);
    int (*temperature)(handle_t device, int sensor, unsigned *celsius);
    int (*utilization)(handle_t device, struct utilization *utilization);
    int (*clocks_event_reasons)(handle_t device, count_t *reasons);
    int (*clocks_throttle_reasons)(handle_t device, count_t *reasons); /* its name until R535 */
    int (*ecc_errors)(handle_t device, int type, int counter, count_t *n);
    int (*remapped_rows)(handle_t device, unsigned *corrected, unsigned *uncorrected,
                         unsigned *is_pending, unsigned *has_failed);
    int (*link_state)(handle_t device, unsigned link, int *is_active);
    int (*link_errors)(handle_t device, unsigned link, int counter, count_t *n);
    int (*event_set_create)(void **set);
    int (*event_set_free)(void *set);
    int (*register_events)(handle_t device, count_t types, void *set);
    int (*event_wait)(void *set, struct event *event, unsigned timeout_ms);
};

static const struct symbol {
    const char *name;
    size_t offset;
    int is_needed;
} symbols[] = {
    { "nvmlInit_v2", offsetof(struct calls, init), 1 },
    { "nvmlShutdown", offsetof(struct calls, shutdown), 1 },
    { "nvmlErrorString", offsetof(struct calls, error_string), 1 },
    { "nvmlSystemGetDriverVersion", offsetof(struct calls, driver_version), 1 },
    { "nvmlSystemGetCudaDriverVersion_v2", offsetof(struct calls, cuda_version), 0 },
    { "nvmlDeviceGetCount_v2", offsetof(struct calls, count), 1 },
    { "nvmlDeviceGetHandleByIndex_v2", offsetof(struct calls, handle), 1 },
    { "nvmlDeviceGetName", offsetof(struct calls, name), 1 },
    { "nvmlDeviceGetUUID", offsetof(struct calls, uuid), 1 },
    { "nvmlDeviceGetPciInfo_v3", offsetof(struct calls, pci), 1 },
    { "nvmlDeviceGetMemoryInfo", offsetof(struct calls, memory), 1 },
    { "nvmlDeviceGetClockInfo", offsetof(struct calls, clock), 0 },
    { "nvmlDeviceGetMaxClockInfo", offsetof(struct calls, max_clock), 0 },
    { "nvmlDeviceGetPowerUsage", offsetof(struct calls, power), 0 },
    { "nvmlDeviceGetEnforcedPowerLimit", offsetof(struct calls, power_limit), 0 },
    { "nvmlDeviceGetTemperature", offsetof(struct calls, temperature), 0 },
    { "nvmlDeviceGetUtilizationRates", offsetof(struct calls, utilization), 0 },
    { "nvmlDeviceGetCurrentClocksEventReasons", offsetof(struct calls, clocks_event_reasons), 0 },
    { "nvmlDeviceGetCurrentClocksThrottleReasons", offsetof(struct calls, clocks_throttle_reasons),
      0 },
    { "nvmlDeviceGetTotalEccErrors", offsetof(struct calls, ecc_errors), 0 },
    { "nvmlDeviceGetRemappedRows", offsetof(struct calls, remapped_rows), 0 },
    { "nvmlDeviceGetNvLinkState", offsetof(struct calls, link_state), 0 },
    { "nvmlDeviceGetNvLinkErrorCounter", offsetof(struct calls, link_errors), 0 },
    { "nvmlEventSetCreate", offsetof(struct calls, event_set_create), 0 },
    { "nvmlEventSetFree", offsetof(struct calls, event_set_free), 0 },
    { "nvmlDeviceRegisterEvents", offsetof(struct calls, register_events), 0 },
    { "nvmlEventSetWait_v2", offsetof(struct calls, event_wait), 0 },
};

struct nvml {
    void *library;
    struct calls calls;
    char driver[96];
    int cuda, n_gpus;
    handle_t *handles; /* NULL: that GPU cannot be asked, for this reason: */
    int *errors;
    void *events; /* NULL: not asked for yet, or it has none: */
    int has_no_events;
};

/* A call that the library may lack: an error then. */
#define ASK(nvml, call, ...) ((nvml)->calls.call ? (nvml)->calls.call(__VA_ARGS__) : -1)

/* ---- the library ---- */

static int load(struct nvml *nvml, struct err *err)
{
    const char *file = getenv("LMTRAIN_NVML");

    file = file && *file ? file : "libnvidia-ml.so.1";
    nvml->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library)
        return err_set(err, ERR_DEVICE, "%s cannot be opened: %s", file, dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(nvml->library, symbols[i].name);

        if (!address && symbols[i].is_needed)
            return err_set(err, ERR_DEVICE, "%s has no %s", file, symbols[i].name);
        memcpy((char *)&nvml->calls + symbols[i].offset, &address, sizeof address);
    }
    return 0;
}

static int find_gpus(struct nvml *nvml, struct err *err)
{
    unsigned n = 0;
    int error = nvml->calls.count(&n);

    if (error)
        return err_set(err, ERR_DEVICE, "NVML cannot count the GPUs: %s",
                       nvml->calls.error_string(error));
    nvml->handles = calloc((size_t)n + 1, sizeof(handle_t));
    nvml->errors = calloc((size_t)n + 1, sizeof(int));
    CHECK(nvml->handles);
    CHECK(nvml->errors);
    nvml->n_gpus = (int)n;
    for (unsigned i = 0; i < n; i++) {
        nvml->errors[i] = nvml->calls.handle(i, &nvml->handles[i]);
        if (nvml->errors[i])
            nvml->handles[i] = NULL;
    }
    return 0;
}

int nvml_open(struct nvml **nvml, struct err *err)
{
    struct nvml *made = calloc(1, sizeof *made);
    int error = 0;

    CHECK(made);
    if (load(made, err) < 0)
        goto fail;
    error = made->calls.init();
    if (error) {
        err_set(err, ERR_DEVICE, "NVML cannot be initialised: %s", made->calls.error_string(error));
        goto fail;
    }
    if (made->calls.driver_version(made->driver, sizeof made->driver))
        snprintf(made->driver, sizeof made->driver, "?");
    if (ASK(made, cuda_version, &made->cuda))
        made->cuda = NVML_UNKNOWN;
    if (find_gpus(made, err) < 0) {
        made->calls.shutdown();
        goto fail;
    }
    *nvml = made;
    return 0;
fail:
    if (made->library)
        dlclose(made->library);
    free(made);
    return -1;
}

void nvml_close(struct nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->events)
        nvml->calls.event_set_free(nvml->events);
    nvml->calls.shutdown();
    dlclose(nvml->library);
    free(nvml->handles);
    free(nvml->errors);
    free(nvml);
}

const char *nvml_driver_version(const struct nvml *nvml)
{
    return nvml->driver;
}

int nvml_cuda_version(const struct nvml *nvml)
{
    return nvml->cuda;
}

int nvml_n_gpus(const struct nvml *nvml)
{
    return nvml->n_gpus;
}

/* ---- one GPU ---- */

static handle_t handle_of(const struct nvml *nvml, int index)
{
    CHECK(index >= 0);
    CHECK(index < nvml->n_gpus);
    return nvml->handles[index];
}

/* What an answer is to us; by address, as the call that fills it in is the other argument. */
static int told(int error, const unsigned *value)
{
    return error ? NVML_UNKNOWN : (int)*value;
}

static int watts(int error, const unsigned *milliwatts)
{
    return error ? NVML_UNKNOWN : (int)((*milliwatts + 500) / 1000);
}

/* NVML writes eight digits of the domain and capitals, sysfs four and none. */
static void write_pci(char text[NVML_PCI_BYTES], const struct pci_info *info)
{
    snprintf(text, NVML_PCI_BYTES, "%04x:%02x:%02x.0", info->domain, info->bus & 0xff,
             info->device & 0x1f);
}

int nvml_gpu(struct nvml *nvml, int index, struct nvml_gpu *gpu, struct err *err)
{
    const struct calls *calls = &nvml->calls;
    handle_t device = handle_of(nvml, index);
    struct memory_info memory;
    struct pci_info pci;
    unsigned value = 0;
    int error = device ? calls->pci(device, &pci) : nvml->errors[index];

    if (error)
        return err_set(err, error == ERROR_NO_PERMISSION ? ERR_FAILED : ERR_DEVICE,
                       "GPU %d cannot be queried: %s", index, calls->error_string(error));
    memset(gpu, 0, sizeof *gpu);
    write_pci(gpu->pci, &pci);
    if (calls->name(device, gpu->name, sizeof gpu->name))
        snprintf(gpu->name, sizeof gpu->name, "?");
    if (calls->uuid(device, gpu->uuid, sizeof gpu->uuid))
        snprintf(gpu->uuid, sizeof gpu->uuid, "?");
    gpu->memory_bytes = calls->memory(device, &memory) ? NVML_UNKNOWN : (int64_t)memory.total;
    gpu->sm_mhz_max = told(ASK(nvml, max_clock, device, CLOCK_SM, &value), &value);
    gpu->memory_mhz_max = told(ASK(nvml, max_clock, device, CLOCK_MEMORY, &value), &value);
    gpu->power_limit_watts = watts(ASK(nvml, power_limit, device, &value), &value);
    return 0;
}

static int ask_throttle(struct nvml *nvml, handle_t device)
{
    count_t reasons = 0;
    int error = ASK(nvml, clocks_event_reasons, device, &reasons);

    if (error)
        error = ASK(nvml, clocks_throttle_reasons, device, &reasons);
    return error ? NVML_UNKNOWN : (int)(reasons & 0x7fffffff);
}

void nvml_state(struct nvml *nvml, int index, struct nvml_state *state)
{
    const struct calls *calls = &nvml->calls;
    handle_t device = handle_of(nvml, index);
    struct utilization use = { 0 };
    struct memory_info memory;
    unsigned value = 0;
    int error = device ? calls->memory(device, &memory) : nvml->errors[index];

    *state = (struct nvml_state){ error == ERROR_GPU_IS_LOST, -1, -1, -1, -1, -1, -1, -1 };
    if (!device || state->is_lost)
        return;
    if (!error)
        state->memory_used_bytes = (int64_t)memory.used;
    state->sm_mhz = told(ASK(nvml, clock, device, CLOCK_SM, &value), &value);
    state->memory_mhz = told(ASK(nvml, clock, device, CLOCK_MEMORY, &value), &value);
    state->utilization_percent = told(ASK(nvml, utilization, device, &use), &use.gpu);
    state->power_watts = watts(ASK(nvml, power, device, &value), &value);
    state->temperature_celsius =
        told(ASK(nvml, temperature, device, TEMPERATURE_GPU, &value), &value);
    state->throttle = ask_throttle(nvml, device);
}

static int64_t ecc_errors(struct nvml *nvml, handle_t device, int type)
{
    count_t n = 0;

    return ASK(nvml, ecc_errors, device, type, ECC_VOLATILE, &n) ? NVML_UNKNOWN : (int64_t)n;
}

static void ask_links(struct nvml *nvml, handle_t device, struct nvml_health *health)
{
    for (unsigned link = 0; link < N_LINKS_MAX; link++) {
        int is_active = 0;

        if (ASK(nvml, link_state, device, link, &is_active))
            continue; /* there is no such link */
        health->n_links++;
        health->n_links_down += !is_active;
        for (int counter = 0; counter < N_LINK_COUNTERS && is_active; counter++) {
            count_t n = 0;

            if (!ASK(nvml, link_errors, device, link, counter, &n))
                health->link_errors += (int64_t)n;
        }
    }
}

void nvml_health(struct nvml *nvml, int index, struct nvml_health *health)
{
    handle_t device = handle_of(nvml, index);
    unsigned corrected = 0, uncorrected = 0, is_pending = 0, has_failed = 0;

    *health = (struct nvml_health){ .ecc_corrected = NVML_UNKNOWN,
                                    .ecc_uncorrected = NVML_UNKNOWN,
                                    .n_remapped_rows = NVML_UNKNOWN };
    if (!device)
        return;
    health->ecc_corrected = ecc_errors(nvml, device, ECC_CORRECTED);
    health->ecc_uncorrected = ecc_errors(nvml, device, ECC_UNCORRECTED);
    if (!ASK(nvml, remapped_rows, device, &corrected, &uncorrected, &is_pending, &has_failed)) {
        health->n_remapped_rows = (int)(corrected + uncorrected);
        health->is_remap_pending = is_pending != 0;
        health->has_remap_failed = has_failed != 0;
    }
    ask_links(nvml, device, health);
}

/* ---- events ---- */

static int open_events(struct nvml *nvml)
{
    const struct calls *calls = &nvml->calls;
    int n = 0;

    if (nvml->events || nvml->has_no_events)
        return nvml->events ? 0 : -1;
    nvml->has_no_events = 1;
    if (!calls->event_set_free || !calls->register_events || !calls->event_wait ||
        ASK(nvml, event_set_create, &nvml->events))
        return -1;
    /* Without ECC memory only Xids can be registered for. */
    for (int i = 0; i < nvml->n_gpus; i++)
        if (nvml->handles[i])
            n += !calls->register_events(nvml->handles[i], EVENT_XID | EVENT_DOUBLE_BIT_ECC,
                                         nvml->events) ||
                 !calls->register_events(nvml->handles[i], EVENT_XID, nvml->events);
    if (n)
        return 0;
    calls->event_set_free(nvml->events);
    nvml->events = NULL;
    return -1;
}

int nvml_wait_xid(struct nvml *nvml, int timeout_ms, int *index, int *xid)
{
    struct event event = { 0 };

    if (open_events(nvml) < 0)
        return -1;
    int error = nvml->calls.event_wait(nvml->events, &event, (unsigned)timeout_ms);

    if (error)
        return error == ERROR_TIMEOUT ? 0 : -1;
    for (*index = 0; *index < nvml->n_gpus; ++*index)
        if (nvml->handles[*index] == event.device)
            break;
    *xid = event.type == EVENT_DOUBLE_BIT_ECC ? XID_DOUBLE_BIT_ECC : (int)event.data;
    return *index < nvml->n_gpus;
}

/* ---- words ---- */

const char *nvml_throttle_words(int throttle, char *buffer, size_t size)
{
    static const struct {
        int bit;
        const char *words;
    } reasons[] = {
        { NVML_IDLE, "idle" },
        { NVML_APPLICATION_CLOCKS, "application clocks are set" },
        { NVML_POWER_CAP, "power cap" },
        { NVML_HARDWARE_SLOWDOWN, "hardware slowdown" },
        { NVML_SYNC_BOOST, "sync boost" },
        { NVML_THERMAL_SLOWDOWN, "thermal slowdown" },
        { NVML_HARDWARE_THERMAL, "thermal slowdown by hardware" },
        { NVML_POWER_BRAKE, "power brake" },
        { NVML_DISPLAY_CLOCKS, "display clocks are set" },
    };

    buffer[0] = '\0';
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons && throttle > 0; i++) {
        size_t used = strlen(buffer);

        if (throttle & reasons[i].bit)
            snprintf(buffer + used, size - used, "%s%s", used ? ", " : "", reasons[i].words);
    }
    return buffer;
}

/* NVIDIA's table of minor version compatibility: any driver of a CUDA's major version runs it. */
int nvml_driver_needed(int cuda_version)
{
    int major = cuda_version / 1000;

    return major >= 13 ? 580 : major == 12 ? 525 : 450;
}
