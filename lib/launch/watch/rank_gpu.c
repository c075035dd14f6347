/*
 * rank_gpu.c - from a look at a GPU to words
 */
#include "launch/watch/rank_gpu_impl.h"

#include <stdio.h>
#include <string.h>

#include "device/xid.h"

/* A driver without an answer for this time is reported; it is polled once a second. */
enum { SILENT_SECONDS = 4 };

/* How long an Xid may come after the error that it causes. */
static const double xid_seconds = 0.25;

void rank_gpu_set(struct progress_slot *slot, const char *pci)
{
    if (!slot || atomic_load(&slot->gpu.is_set))
        return;
    snprintf(slot->gpu.pci, sizeof slot->gpu.pci, "%s", pci);
    atomic_store(&slot->gpu.is_set, 1);
}

/* ---- in the daemon or watcher of the GPU's node ---- */

static void write_sight(struct progress_gpu *gpu, const struct gpu_sight *sight)
{
    snprintf(gpu->uuid, sizeof gpu->uuid, "%.*s", (int)sizeof gpu->uuid - 1, sight->gpu.uuid);
    atomic_store(&gpu->index, sight->index);
    atomic_store(&gpu->is_lost, sight->state.is_lost);
    atomic_store(&gpu->utilization_percent, sight->state.utilization_percent);
    atomic_store(&gpu->sm_mhz, sight->state.sm_mhz);
    atomic_store(&gpu->sm_mhz_max, sight->gpu.sm_mhz_max);
    atomic_store(&gpu->power_watts, sight->state.power_watts);
    atomic_store(&gpu->temperature_celsius, sight->state.temperature_celsius);
    atomic_store(&gpu->throttle, sight->state.throttle);
    atomic_store(&gpu->xid, sight->xid);
    atomic_store(&gpu->age_seconds, (int32_t)sight->age_seconds);
    atomic_fetch_add(&gpu->n_seen, 1);
}

int rank_gpu_look(struct progress_slot *slot, struct gpu_watch **watch)
{
    struct progress_gpu *gpu = &slot->gpu;
    int xid = atomic_load(&gpu->xid);
    struct gpu_sight sight;

    if (!atomic_load(&gpu->is_set))
        return 0;
    if (!*watch)
        *watch = gpu_watch_open(NULL);
    if (gpu_watch_see(*watch, gpu->pci, &sight) < 0)
        return 0;
    write_sight(gpu, &sight);
    return sight.xid != xid;
}

void rank_gpu_look_at_death(struct progress_slot *slot, struct gpu_watch **watch)
{
    if (atomic_load(&slot->gpu.is_set) && *watch)
        gpu_watch_wait_xid(*watch, slot->gpu.pci, xid_seconds);
    rank_gpu_look(slot, watch);
}

/* ---- in any process that has a copy of the slot ---- */

static int xid_of(const struct progress_slot *slot)
{
    return atomic_load(&slot->gpu.n_seen) ? atomic_load(&slot->gpu.xid) : 0;
}

int rank_gpu_is_broken(const struct progress_slot *slot)
{
    return xid_of(slot) && xid_is_broken(xid_of(slot));
}

int rank_gpu_is_reusable(const struct progress_slot *slot)
{
    return xid_of(slot) && xid_kind(xid_of(slot)) == XID_CONTAINED;
}

int rank_gpu_is_troubled(const struct progress_slot *slot)
{
    const struct progress_gpu *gpu = &slot->gpu;
    int throttle = atomic_load(&gpu->throttle);

    return atomic_load(&gpu->n_seen) && (atomic_load(&gpu->xid) || atomic_load(&gpu->is_lost) ||
                                         (throttle > 0 && throttle & NVML_SLOWDOWNS) ||
                                         atomic_load(&gpu->age_seconds) >= SILENT_SECONDS);
}

/* A text of the rank's page, which ends and prints. */
static void copy_text(char *to, const char *from, size_t size)
{
    memcpy(to, from, size);
    to[size - 1] = '\0';
    for (; *to; to++)
        if ((unsigned char)*to <= ' ' || (unsigned char)*to > '~')
            *to = '?';
}

static void add_number(char *buffer, size_t size, const char *before, int number, const char *after)
{
    size_t used = strlen(buffer);

    if (number >= 0)
        snprintf(buffer + used, size - used, "%s%d%s", before, number, after);
}

static void add_text(char *buffer, size_t size, const char *before, const char *text)
{
    size_t used = strlen(buffer);

    if (*text)
        snprintf(buffer + used, size - used, "%s%s", before, text);
}

static void add_xid(const struct progress_slot *slot, char *buffer, size_t size)
{
    int xid = xid_of(slot);

    if (!xid)
        return;
    add_number(buffer, size, ": Xid ", xid, ", ");
    add_text(buffer, size, "", xid_words(xid));
}

/* Clocks, power and heat, as far as they are known. */
static void add_state(const struct progress_gpu *gpu, char *buffer, size_t size)
{
    int busy = atomic_load(&gpu->utilization_percent), mhz = atomic_load(&gpu->sm_mhz);
    int throttle = atomic_load(&gpu->throttle);
    char words[256];

    add_number(buffer, size, " at ", busy, " %");
    add_number(buffer, size, busy >= 0 ? " and " : " at ", mhz, "");
    if (mhz >= 0) {
        add_number(buffer, size, " of ", atomic_load(&gpu->sm_mhz_max), "");
        add_text(buffer, size, " ", "MHz");
    }
    add_number(buffer, size, ", ", atomic_load(&gpu->power_watts), " W");
    add_number(buffer, size, ", ", atomic_load(&gpu->temperature_celsius), " degrees Celsius");
    if (throttle > 0)
        add_text(buffer, size, ": ",
                 nvml_throttle_words(throttle & ~NVML_IDLE, words, sizeof words));
}

const char *rank_gpu_describe(const struct progress_slot *slot, char *buffer, size_t size)
{
    const struct progress_gpu *gpu = &slot->gpu;
    char pci[sizeof gpu->pci];
    int age = atomic_load(&gpu->age_seconds);

    buffer[0] = '\0';
    if (!atomic_load(&gpu->n_seen))
        return buffer;
    copy_text(pci, gpu->pci, sizeof pci);
    snprintf(buffer, size, "GPU %d (%s)", (int)atomic_load(&gpu->index), pci);
    if (!atomic_load(&gpu->is_lost))
        add_state(gpu, buffer, size);
    add_xid(slot, buffer, size);
    if (age >= SILENT_SECONDS)
        add_number(buffer, size, "; the driver has not responded for ", age, " s");
    return buffer;
}

const char *rank_gpu_death(const struct progress_slot *slot, char *buffer, size_t size)
{
    const struct progress_gpu *gpu = &slot->gpu;
    char pci[sizeof gpu->pci], uuid[sizeof gpu->uuid];

    buffer[0] = '\0';
    if (!xid_of(slot))
        return buffer;
    copy_text(pci, gpu->pci, sizeof pci);
    copy_text(uuid, gpu->uuid, sizeof uuid);
    snprintf(buffer, size, "GPU %d (%s, %s)", (int)atomic_load(&gpu->index), pci, uuid);
    add_xid(slot, buffer, size);
    add_text(buffer, size, " (hint: ", xid_advice(xid_of(slot)));
    add_text(buffer, size, "", ")");
    return buffer;
}
