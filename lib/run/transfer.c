/*
 * transfer.c - values from the host's memory to the device and back
 *
 * On the host both are copies. To a GPU things go through pinned memory, so that neither side waits
 * for the other: a half is filled while the other's contents are on their way, in the compute
 * queue, so in the order of what is run. What comes back is waited for. To the file both write and
 * read at once: no copy is under way between entries.
 */
#include <string.h>
#include <time.h>

#include "base/num.h"
#include "run/run_impl.h"

#define PIECE_BYTES ((size_t)4 << 20)

int transfer_create(struct run *run, struct err *err)
{
    struct device *device = run->device;
    const struct device_ops *ops = device->ops;
    struct pinned_staging *t = &run->transfer;
    void *memory[3] = { NULL };

    if (device_is_host(device))
        return 0;
    int status = ops->event_create(device, 1, &run->begin, err);
    if (!status)
        status = ops->event_create(device, 1, &run->end, err);
    for (int i = 0; i < 2 && !status; i++)
        status = ops->event_create(device, 0, &t->events[i], err);
    for (int i = 0; i < 3 && !status; i++)
        status = ops->allocate_pinned(device, PIECE_BYTES, &memory[i], err);
    t->up[0] = memory[0];
    t->up[1] = memory[1];
    t->down = memory[2];
    return status;
}

void transfer_release(struct run *run)
{
    struct device *device = run->device;
    const struct device_ops *ops = device->ops;
    struct pinned_staging *t = &run->transfer;

    if (device_is_host(device))
        return;
    ops->event_destroy(device, run->begin);
    ops->event_destroy(device, run->end);
    for (int i = 0; i < 2; i++) {
        ops->event_destroy(device, t->events[i]);
        ops->release_pinned(device, t->up[i]);
    }
    ops->release_pinned(device, t->down);
}

struct device *run_device(const struct run *run)
{
    return run->device;
}

/* The other half, once its contents have gone: the device may be a step behind. */
static void turn_halves(struct run *run)
{
    const struct timespec pause = { 0, 20000 };
    struct pinned_staging *t = &run->transfer;

    run->device->ops->event_record(run->device, DEVICE_COMPUTE, t->events[t->half]);
    t->is_recorded[t->half] = true;
    t->half = !t->half;
    t->used = 0;
    while (t->is_recorded[t->half] &&
           !run->device->ops->event_done(run->device, t->events[t->half]))
        nanosleep(&pause, NULL);
}

int transfer_check(const struct run *run, struct err *err)
{
    if (run->put_error.code == ERR_NONE)
        return 0;
    *err = run->put_error;
    return -1;
}

/* A failure is returned by the next call that can. */
static void put_in_file(struct run *run, void *address, const void *data, size_t n_bytes)
{
    if (run->put_error.code == ERR_NONE)
        file_tier_write(&run->memory.file, address, data, n_bytes, &run->put_error);
}

void run_put_at(struct run *run, void *address, const void *data, size_t n_bytes)
{
    struct pinned_staging *t = &run->transfer;
    const unsigned char *from = data;
    unsigned char *to = address;

    if (file_tier_has(address)) {
        put_in_file(run, address, data, n_bytes);
        return;
    }
    if (device_is_host(run->device)) {
        memcpy(address, data, n_bytes);
        return;
    }
    while (n_bytes) {
        if (t->used == PIECE_BYTES)
            turn_halves(run);
        size_t n = n_bytes < PIECE_BYTES - t->used ? n_bytes : PIECE_BYTES - t->used;
        unsigned char *piece = t->up[t->half] + t->used;
        memcpy(piece, from, n);
        run->device->ops->copy(run->device, DEVICE_COMPUTE, to, piece, n);
        from += n;
        to += n;
        n_bytes -= n;
        /* Copies begin at lines of the host's memory. */
        t->used = t->used + n < PIECE_BYTES ? (t->used + n + 63) / 64 * 64 : PIECE_BYTES;
    }
}

static int wait_for_device(struct run *run, struct err *err)
{
    static const char text[PROGRESS_TEXT_BYTES] = "completion of the GPU's work";

    progress_publish(run->progress, text, 0);
    return run->device->ops->wait(run->device, DEVICE_COMPUTE, err);
}

int run_get_at(struct run *run, void *data, const void *address, size_t n_bytes, struct err *err)
{
    const unsigned char *from = address;
    unsigned char *to = data;

    if (transfer_check(run, err) < 0)
        return -1;
    if (file_tier_has(address))
        return run_read_file(run, data, address, n_bytes, err);
    if (device_is_host(run->device)) {
        memcpy(data, address, n_bytes);
        return 0;
    }
    while (n_bytes) {
        size_t n = n_bytes < PIECE_BYTES ? n_bytes : PIECE_BYTES;

        run->device->ops->copy(run->device, DEVICE_COMPUTE, run->transfer.down, from, n);
        if (wait_for_device(run, err) < 0)
            return -1;
        memcpy(to, run->transfer.down, n);
        from += n;
        to += n;
        n_bytes -= n;
    }
    return 0;
}

int run_read_file(const struct run *run, void *data, const void *address, size_t n_bytes,
                  struct err *err)
{
    return file_tier_read(&run->memory.file, data, address, n_bytes, err);
}

void run_clear_at(struct run *run, void *address, size_t n_bytes)
{
    static const unsigned char zeros[64 << 10];

    if (!file_tier_has(address)) {
        run->device->ops->fill(run->device, DEVICE_COMPUTE, address, 0, n_bytes);
        return;
    }
    for (size_t at = 0; at < n_bytes; at += sizeof zeros)
        put_in_file(run, (unsigned char *)address + at, zeros,
                    min_size(n_bytes - at, sizeof zeros));
}

void run_put(struct run *run, int value, int micro_batch, size_t offset, const void *data,
             size_t n_bytes)
{
    run_put_at(run, (unsigned char *)run_data(run, value, micro_batch) + offset, data, n_bytes);
}

int run_get(struct run *run, int value, int micro_batch, size_t offset, void *data, size_t n_bytes,
            struct err *err)
{
    return run_get_at(run, data, (unsigned char *)run_data(run, value, micro_batch) + offset,
                      n_bytes, err);
}

int run_get_all(struct run *run, const struct run_piece *pieces, int n, struct err *err)
{
    bool is_host = device_is_host(run->device);
    unsigned char *at = run->transfer.down;

    for (int i = 0; i < n; i++) {
        if (!pieces[i].value)
            continue;
        const void *data = run_data(run, pieces[i].value, 0);
        run->device->ops->copy(run->device, DEVICE_COMPUTE, is_host ? pieces[i].data : at, data,
                               pieces[i].n_bytes);
        at += is_host ? 0 : pieces[i].n_bytes;
        CHECK(is_host || at <= run->transfer.down + PIECE_BYTES);
    }
    if (is_host)
        return 0;
    if (wait_for_device(run, err) < 0)
        return -1;
    at = run->transfer.down;
    for (int i = 0; i < n; i++) {
        if (!pieces[i].value)
            continue;
        memcpy(pieces[i].data, at, pieces[i].n_bytes);
        at += pieces[i].n_bytes;
    }
    return 0;
}
