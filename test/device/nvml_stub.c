/*
 * nvml_stub.c - a libnvidia-ml.so.1 that plays the GPUs written in the file $NVML_STUB
 *
 * Lines of the file are "key value", read anew at every call, so that a test changes a GPU by
 * rewriting it: "driver 580.65.06", "cuda 13000", "gpus 2"; of GPU i "i.name", "i.uuid", "i.bus" (a
 * number), "i.sm", "i.sm_max", "i.watts", "i.limit", "i.celsius", "i.busy", "i.used_mib",
 * "i.throttle", "i.ecc", "i.remap_pending", "i.remap_failed", "i.links", "i.links_down",
 * "i.link_errors"; "i.lost 1" is a GPU that does not answer, "i.forbidden 1" another job's;
 * "i.slow_ms" is how long its memory takes to tell; "init N" makes nvmlInit fail with N. Every "xid
 * i N" is an event, once a process.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    N_MAX = 8
};
enum { N_LINKS = 18, EVENT_XID = 8, CLOCK_SM = 1 };

typedef struct nvml_handle {
    char unused;
} * handle_t;

static struct nvml_handle gpus[N_MAX];
static int n_xids_told;

static FILE *open_script(void)
{
    const char *path = getenv("NVML_STUB");

    return path ? fopen(path, "re") : NULL;
}

/* The value of a key in value, which is left alone if there is none. Returns 1 if there is. */
static int look_up(const char *key, char *value, size_t size)
{
    FILE *file = open_script();
    size_t length = strlen(key);
    char line[256];
    int found = 0;

    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = '\0';
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    if (file)
        fclose(file);
    return found;
}

static long number(const char *key, long fallback)
{
    char value[256];

    return look_up(key, value, sizeof value) ? strtol(value, NULL, 0) : fallback;
}

static const char *key_of(handle_t device, const char *name)
{
    static _Thread_local char key[64];

    snprintf(key, sizeof key, "%d.%s", (int)(device - gpus), name);
    return key;
}

static int text_of(handle_t device, const char *name, const char *fallback, char *text,
                   unsigned size)
{
    if (number(key_of(device, "lost"), 0))
        return GPU_IS_LOST;
    snprintf(text, size, "%s", fallback);
    look_up(key_of(device, name), text, size);
    return 0;
}

static int number_of(handle_t device, const char *name, unsigned scale, unsigned *value)
{
    long n = number(key_of(device, name), -1);

    if (number(key_of(device, "lost"), 0))
        return GPU_IS_LOST;
    if (n < 0)
        return NOT_SUPPORTED;
    *value = (unsigned)n * scale;
    return 0;
}

int nvmlInit_v2(void)
{
    return (int)number("init", 0);
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int error)
{
    return error == GPU_IS_LOST ? "GPU is lost" : error == 9 ? "Driver Not Loaded" : "error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    snprintf(text, size, "580.65.06");
    look_up("driver", text, size);
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = (int)number("cuda", 13000);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = (unsigned)number("gpus", 1);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *device)
{
    if (index >= N_MAX)
        return INVALID_ARGUMENT;
    *device = &gpus[index];
    return number(key_of(*device, "forbidden"), 0) ? NO_PERMISSION : 0;
}

int nvmlDeviceGetName(handle_t device, char *text, unsigned size)
{
    return text_of(device, "name", "NVIDIA H200", text, size);
}

int nvmlDeviceGetUUID(handle_t device, char *text, unsigned size)
{
    char fallback[64];

    snprintf(fallback, sizeof fallback, "GPU-00000000-0000-0000-0000-%012d", (int)(device - gpus));
    return text_of(device, "uuid", fallback, text, size);
}

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

/* Known from the start: a lost GPU still has its address. */
int nvmlDeviceGetPciInfo_v3(handle_t device, struct pci_info *info)
{
    unsigned bus = (unsigned)number(key_of(device, "bus"), 0x17 + (device - gpus));

    *info = (struct pci_info){ .bus = bus };
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", bus & 0xff);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", bus & 0xff);
    return 0;
}

struct memory_info {
    unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(handle_t device, struct memory_info *memory)
{
    long slow_ms = number(key_of(device, "slow_ms"), 0);

    if (slow_ms > 0)
        usleep((unsigned)slow_ms * 1000);
    if (number(key_of(device, "lost"), 0))
        return GPU_IS_LOST;
    memory->total = 143771ull << 20;
    memory->used = (unsigned long long)number(key_of(device, "used_mib"), 4096) << 20;
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetClockInfo(handle_t device, int type, unsigned *mhz)
{
    return number_of(device, type == CLOCK_SM ? "sm" : "mem", 1, mhz);
}

int nvmlDeviceGetMaxClockInfo(handle_t device, int type, unsigned *mhz)
{
    return number_of(device, type == CLOCK_SM ? "sm_max" : "mem_max", 1, mhz);
}

int nvmlDeviceGetPowerUsage(handle_t device, unsigned *milliwatts)
{
    return number_of(device, "watts", 1000, milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(handle_t device, unsigned *milliwatts)
{
    return number_of(device, "limit", 1000, milliwatts);
}

int nvmlDeviceGetTemperature(handle_t device, int sensor, unsigned *celsius)
{
    return sensor ? INVALID_ARGUMENT : number_of(device, "celsius", 1, celsius);
}

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(handle_t device, struct utilization *use)
{
    use->memory = 0;
    return number_of(device, "busy", 1, &use->gpu);
}

/* Under its name until R535, as an older driver has it: who asks by the newer finds nothing. */
int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t device, unsigned long long *reasons)
{
    unsigned bits = 0;
    int error = number_of(device, "throttle", 1, &bits);

    *reasons = bits;
    return error;
}

int nvmlDeviceGetTotalEccErrors(handle_t device, int type, int counter, unsigned long long *n)
{
    unsigned errors = 0;
    int error = counter ? INVALID_ARGUMENT : number_of(device, "ecc", 1, &errors);

    *n = type ? errors : 0;
    return error;
}

int nvmlDeviceGetRemappedRows(handle_t device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *is_pending, unsigned *has_failed)
{
    *corrected = 0;
    *is_pending = (unsigned)number(key_of(device, "remap_pending"), 0);
    *has_failed = (unsigned)number(key_of(device, "remap_failed"), 0);
    *uncorrected = *is_pending || *has_failed;
    return 0;
}

int nvmlDeviceGetNvLinkState(handle_t device, unsigned link, int *is_active)
{
    long n = number(key_of(device, "links"), 0);

    if ((long)link >= n || link >= N_LINKS)
        return INVALID_ARGUMENT;
    *is_active = (long)link < n - number(key_of(device, "links_down"), 0);
    return 0;
}

/* All of them replays of the first link. */
int nvmlDeviceGetNvLinkErrorCounter(handle_t device, unsigned link, int counter,
                                    unsigned long long *n)
{
    *n = link || counter ? 0 : (unsigned long long)number(key_of(device, "link_errors"), 0);
    return 0;
}

int nvmlEventSetCreate(void **set)
{
    *set = &n_xids_told;
    return 0;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    return 0;
}

int nvmlDeviceRegisterEvents(handle_t device, unsigned long long types, void *set)
{
    (void)device;
    (void)set;
    return types & EVENT_XID ? 0 : NOT_SUPPORTED;
}

struct event {
    handle_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* The next "xid" line that was not told yet. */
static int next_xid(struct event *event)
{
    FILE *file = open_script();
    int n = 0, index = 0, xid = 0, found = 0;
    char line[256];

    while (file && !found && fgets(line, sizeof line, file))
        if (sscanf(line, "xid %d %d", &index, &xid) == 2)
            found = n++ == n_xids_told && index >= 0 && index < N_MAX;
    if (file)
        fclose(file);
    if (!found)
        return 0;
    n_xids_told++;
    *event = (struct event){ &gpus[index], EVENT_XID, (unsigned long long)xid, 0, 0 };
    return 1;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    (void)set;
    for (unsigned waited = 0;; waited += 10) {
        if (next_xid(event))
            return 0;
        if (waited >= timeout_ms)
            return TIMEOUT;
        usleep(10000);
    }
}
