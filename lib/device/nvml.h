/*
 * nvml.h - what the driver's management library (NVML) says of this machine's GPUs
 *
 * libnvidia-ml.so.1 comes with NVIDIA's driver and is opened at run time, so builds without CUDA
 * ask it, too. $LMTRAIN_NVML names another file of it. Indices are NVML's, which counts by PCI
 * address; CUDA may count otherwise (CUDA_VISIBLE_DEVICES), so a GPU's name between modules is its
 * PCI address as sysfs writes it, "0000:17:00.0".
 *
 * What a GPU or a driver does not say is NVML_UNKNOWN. All calls may be made from any thread. A
 * broken GPU may keep a call from returning: a loop that must not block uses a gpu_watch instead.
 */
#ifndef DEVICE_NVML_H
#define DEVICE_NVML_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { NVML_UNKNOWN = -1, NVML_PCI_BYTES = 32 };

/* Why clocks are below what they could be: bits of nvml_state.throttle (nvmlClocksEventReasons). */
enum nvml_throttle {
    NVML_IDLE = 0x1,
    NVML_APPLICATION_CLOCKS = 0x2,
    NVML_POWER_CAP = 0x4,
    NVML_HARDWARE_SLOWDOWN = 0x8, /* temperature, power brake or supply; others may say which */
    NVML_SYNC_BOOST = 0x10,
    NVML_THERMAL_SLOWDOWN = 0x20,
    NVML_HARDWARE_THERMAL = 0x40,
    NVML_POWER_BRAKE = 0x80,
    NVML_DISPLAY_CLOCKS = 0x100,
    /* A healthy GPU that is neither idle nor at its power limit has none of these. */
    NVML_SLOWDOWNS =
        NVML_HARDWARE_SLOWDOWN | NVML_THERMAL_SLOWDOWN | NVML_HARDWARE_THERMAL | NVML_POWER_BRAKE
};

struct nvml;

/* What stays. */
struct nvml_gpu {
    char name[96], uuid[96];
    char pci[NVML_PCI_BYTES];
    int64_t memory_bytes;
    int sm_mhz_max, memory_mhz_max, power_limit_watts;
};

/* What changes from second to second. */
struct nvml_state {
    int is_lost; /* NVML says that the GPU does not answer any more; all else is unknown then */
    int64_t memory_used_bytes;
    int sm_mhz, memory_mhz, utilization_percent, power_watts, temperature_celsius;
    int throttle; /* enum nvml_throttle */
};

/* What tells of damage; counts since the driver was loaded. */
struct nvml_health {
    int64_t ecc_corrected, ecc_uncorrected;
    int n_remapped_rows, is_remap_pending, has_remap_failed;
    int n_links, n_links_down;
    int64_t link_errors; /* NVLink: replays, recoveries and failed checksums */
};

/* Returns 0, or -1 and ERR_DEVICE: there is no such library, or it finds no driver. */
int nvml_open(struct nvml **nvml, struct err *err);
void nvml_close(struct nvml *nvml);

const char *nvml_driver_version(const struct nvml *nvml); /* "580.65.06"; lives as long as nvml */
int nvml_cuda_version(const struct nvml *nvml);           /* 13000 is CUDA 13.0; or unknown */

int nvml_n_gpus(const struct nvml *nvml);

/* Returns 0, or -1 and ERR_DEVICE: this GPU does not answer; or ERR_FAILED: it is not for this
 * process. */
int nvml_gpu(struct nvml *nvml, int index, struct nvml_gpu *gpu, struct err *err);
void nvml_state(struct nvml *nvml, int index, struct nvml_state *state);
void nvml_health(struct nvml *nvml, int index, struct nvml_health *health);

/*
 * Wait at most timeout_ms for an Xid (xid.h) of any GPU; a double-bit ECC error is Xid 48. Returns
 * 1 with *index and *xid, 0 if none came, -1 if the driver tells of none. By one thread alone.
 */
int nvml_wait_xid(struct nvml *nvml, int timeout_ms, int *index, int *xid);

/* "power cap, thermal slowdown", "" if there is no reason. Returns buffer. */
const char *nvml_throttle_words(int throttle, char *buffer, size_t size);

/* The oldest driver that runs programs of this CUDA version: 13000 gives 580. */
int nvml_driver_needed(int cuda_version);

#endif
