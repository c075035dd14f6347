/*
 * preflight_bandwidth.c - what memory and the disk of the output reach
 *
 * The disk is measured by the first rank of each node, which all write at once where the file
 * system is shared.
 */
#include <math.h>

#include "train/bench_impl.h"
#include "train/machine_peak.h"
#include "train/preflight_impl.h"

#define QUICK_FILE_BYTES ((size_t)64 << 20)
#define FULL_FILE_BYTES ((size_t)1 << 30)
#define GPU_COPY_BYTES ((size_t)3 << 30) /* free, for machine_peak_memory */

int preflight_bandwidth(struct preflight_check *check, struct err *err)
{
    struct engine *engine = check->engine;
    double *best = &check->own->speed[PREFLIGHT_MEMORY], speed = 0;

    if ((device_is_host(engine->device) || engine_available_bytes(engine) > GPU_COPY_BYTES) &&
        machine_peak_memory(engine, &speed, err))
        return -1;
    *best = fmax(*best, speed);
    preflight_beat(check);
    return 0;
}

int preflight_disk(struct preflight_check *check, struct err *err)
{
    struct bench_storage storage = {
        .folder = check->request->output,
        .most_bytes = check->request->is_full ? FULL_FILE_BYTES : QUICK_FILE_BYTES,
        .most_seconds = preflight_seconds(check) / 2,
        .is_stopped = preflight_is_stopped,
    };

    (void)err;
    if (check->engine->rank.local_rank)
        return 0;
    bench_storage(&storage, check->arena);
    check->own->speed[PREFLIGHT_DISK_WRITE] = storage.write_bytes_per_second;
    check->own->speed[PREFLIGHT_DISK_READ] = storage.read_bytes_per_second;
    check->own->errors.n_disk = storage.n_wrong;
    preflight_beat(check);
    return 0;
}
