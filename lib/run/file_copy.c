/*
 * file_copy.c - pieces through buffers
 *
 * Each piece goes through three stages, all pieces in their order:
 *
 *   to the file     begun: near side -> buffer   staged: buffer -> file        ended
 *   from the file   begun: file -> buffer        staged: buffer -> near side   ended
 *
 * and piece i has buffer i modulo their number. On the CPU the near side's copy is made in the
 * turn; on a GPU it is enqueued, and its event says when it was made.
 */
#include "run/file_copy.h"

#include <string.h>

#include "base/num.h"
#include "comm/comm.h"

#define ALIGNMENT FILE_TIER_ALIGNMENT

int file_lane_open(struct file_lane *lane, struct file_tier *tier, struct device *device,
                   struct err *err)
{
    void *memory;

    *lane = (struct file_lane){ .tier = tier, .device = device };
    if (device->ops->allocate_pinned(device, FILE_LANE_BYTES + ALIGNMENT, &memory, err) < 0)
        return err_add(err, "buffers of the file");
    lane->memory = memory;
    unsigned char *at = lane->memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    for (int i = 0; i < FILE_LANE_BUFFERS; i++) {
        lane->buffers[i].data = at + (size_t)i * FILE_LANE_PIECE_BYTES;
        if (!device_is_host(device) &&
            device->ops->event_create(device, 0, &lane->buffers[i].event, err) < 0)
            return -1;
    }
    if (tier->sums)
        lane->hash = XXH3_createState();
    return file_queue_create(&lane->queue, err);
}

void file_lane_close(struct file_lane *lane)
{
    file_queue_destroy(lane->queue);
    for (int i = 0; i < FILE_LANE_BUFFERS; i++)
        if (lane->buffers[i].event)
            lane->device->ops->event_destroy(lane->device, lane->buffers[i].event);
    if (lane->memory)
        lane->device->ops->release_pinned(lane->device, lane->memory);
    if (lane->hash)
        XXH3_freeState(lane->hash);
    *lane = (struct file_lane){ 0 };
}

/* ---- pieces ---- */

static bool is_out(const struct file_copy *c)
{
    return file_tier_has(c->copy.to);
}

static struct file_buffer *buffer_at(const struct file_copy *c, size_t offset)
{
    return &c->lane->buffers[offset / FILE_LANE_PIECE_BYTES % FILE_LANE_BUFFERS];
}

static size_t piece_at(const struct file_copy *c, size_t offset)
{
    return min_size(c->copy.n_bytes - offset, FILE_LANE_PIECE_BYTES);
}

/* Between the near side and the piece's buffer. */
static void copy_near(struct file_copy *c, size_t offset)
{
    struct file_buffer *b = buffer_at(c, offset);
    struct device *device = c->copy.base.device;
    size_t n = piece_at(c, offset);

    if (!device && is_out(c))
        memcpy(b->data, c->copy.from + offset, n);
    else if (!device)
        memcpy(c->copy.to + offset, b->data, n);
    if (!device)
        return;
    int queue = c->copy.base.queue;
    if (is_out(c))
        device->ops->copy(device, queue, b->data, c->copy.from + offset, n);
    else
        device->ops->copy(device, queue, c->copy.to + offset, b->data, n);
    device->ops->event_record(device, queue, b->event);
}

static bool is_near_done(const struct file_copy *c, size_t offset)
{
    struct device *device = c->copy.base.device;

    return !device || device->ops->event_done(device, buffer_at(c, offset)->event);
}

/* Between the piece's buffer and the file. A read goes on to the next aligned byte: more of the
 * file is there, and a disk reads it at once. */
static void give_far(struct file_copy *c, size_t offset)
{
    struct file_buffer *b = buffer_at(c, offset);
    struct file_tier *tier = c->lane->tier;
    size_t at = file_tier_offset(is_out(c) ? c->copy.to : c->copy.from) + offset;
    size_t n = piece_at(c, offset);

    if (!is_out(c))
        n = min_size(align_up(n, ALIGNMENT), tier->n_bytes - at);
    b->request.is_write = is_out(c);
    b->request.data = b->data;
    b->request.offset = at;
    b->request.n_bytes = n;
    b->request.fd = file_tier_fd(tier, b->data, at, n);
    file_queue_give(c->lane->queue, &b->request);
}

/* 1, 0 if it is under way, or -1. */
static int is_far_done(const struct file_copy *c, size_t offset, struct err *err)
{
    const struct file_request *r = &buffer_at(c, offset)->request;

    if (!atomic_load_explicit(&r->is_done, memory_order_acquire))
        return 0;
    if (r->error)
        return err_set(err, ERR_DEVICE, "memory.file: cannot %s %s, %zu bytes at %zu: %s",
                       r->is_write ? "write" : "read", c->name, r->n_bytes, r->offset,
                       strerror(r->error));
    return 1;
}

static void add_to_hash(const struct file_copy *c, size_t offset)
{
    if (!c->lane->hash)
        return;
    if (!offset)
        XXH3_64bits_reset(c->lane->hash);
    XXH3_64bits_update(c->lane->hash, buffer_at(c, offset)->data, piece_at(c, offset));
}

/* ---- stages ---- */

static bool begin_piece(struct file_copy *c)
{
    size_t at = c->copy.n_given;
    size_t n = at < c->copy.n_bytes ? piece_at(c, at) : 0;

    if (!n || at - c->n_ended >= FILE_LANE_BYTES || copy_due(&c->copy) < at + n)
        return false;
    if (is_out(c))
        copy_near(c, at);
    else
        give_far(c, at);
    c->copy.n_given += n;
    return true;
}

/* 1, 0 if there is none to be staged yet, or -1. */
static int stage_piece(struct file_copy *c, struct err *err)
{
    size_t at = c->n_staged;

    if (at == c->copy.n_given)
        return 0;
    int done = is_out(c) ? is_near_done(c, at) : is_far_done(c, at, err);
    if (done <= 0)
        return done;
    add_to_hash(c, at);
    if (is_out(c))
        give_far(c, at);
    else
        copy_near(c, at);
    c->n_staged += piece_at(c, at);
    return 1;
}

static int end_piece(struct file_copy *c, struct err *err)
{
    size_t at = c->n_ended;

    if (at == c->n_staged)
        return 0;
    int done = is_out(c) ? is_far_done(c, at, err) : is_near_done(c, at);
    if (done <= 0)
        return done;
    c->n_ended += piece_at(c, at);
    return 1;
}

static int finish(struct file_copy *c, struct err *err)
{
    struct file_tier *tier = c->lane->tier;
    uint64_t hash = c->lane->hash ? XXH3_64bits_digest(c->lane->hash) : 0;

    if (is_out(c))
        file_tier_note(tier, c->copy.to, c->copy.n_bytes, hash);
    else if (!file_tier_is_intact(tier, c->copy.from, c->copy.n_bytes, hash))
        return err_set(err, ERR_DEVICE,
                       "memory.file: %s, %zu bytes at %zu, is not what was written there", c->name,
                       c->copy.n_bytes, file_tier_offset(c->copy.from));
    c->copy.n_given = c->n_staged = c->n_ended = 0;
    copy_end(&c->copy);
    return COMM_DONE;
}

static int turn(struct stream_op *op, struct err *err)
{
    struct file_copy *c = (struct file_copy *)op;

    if (!c->copy.n_given && is_out(c))
        file_tier_forget(c->lane->tier, c->copy.to, c->copy.n_bytes);
    file_queue_look(c->lane->queue);
    int ended = end_piece(c, err), staged = ended < 0 ? 0 : stage_piece(c, err);
    if (ended < 0 || staged < 0)
        return -1;
    bool begun = begin_piece(c);
    if (c->n_ended == c->copy.n_bytes && copy_due(&c->copy) == c->copy.n_bytes)
        return finish(c, err);
    return ended || staged || begun ? COMM_MOVING : COMM_WAITING;
}

struct file_copy file_copy_of(void *to, const void *from, size_t n_bytes, struct file_lane *lane,
                              const char *name)
{
    /* Never enqueued: no queue of a device waits for a disk (traffic.h). */
    static const struct mover mover = { turn, NULL };
    struct file_copy c = { .copy = copy_of(to, from, n_bytes), .lane = lane, .name = name };

    CHECK(file_tier_has(to) != file_tier_has(from));
    c.copy.base.mover = &mover;
    return c;
}
