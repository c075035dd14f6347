/*
 * copies.c - what copies between spaces go through: the lanes of their streams
 */
#include "program/passes.h"
#include "run/run_impl.h"

static struct copy_lane *lane_of(struct run *run, enum stream stream)
{
    CHECK(stream == STREAM_COPY_OUT || stream == STREAM_COPY_IN);
    return &run->lanes[stream - STREAM_COPY_OUT];
}

size_t run_file_buffer_bytes(const struct program *program)
{
    return program_space_bytes(program, SPACE_FILE) ? N_COPY_LANES * FILE_LANE_BYTES : 0;
}

bool run_has_file(const struct run *run)
{
    return run->memory.file.n_bytes > 0;
}

/* A queue of a GPU does not wait for a disk: where there is a file, all copies take turns with
 * those to and from it. */
bool copies_are_posted(const struct run *run)
{
    return !run->enqueues || program_space_bytes(run->program, SPACE_FILE);
}

/* It copies beside what is computed, not in turns with it on one core. */
static int settle(void *argument, struct err *err)
{
    const struct run *run = argument;
    const struct pool *pool = run->options.pool ? run->options.pool : run->options.kernels->pool;

    if (pool)
        pool_spread(pool);
    return device_use(run->device, err);
}

int copies_start_worker(struct run *run, struct err *err)
{
    return worker_create(&run->worker, -1, err) < 0 ||
                   worker_call(run->worker, settle, run, err) < 0
               ? -1
               : 0;
}

int copies_create(struct run *run, struct err *err)
{
    for (int i = 0; i < N_COPY_LANES && run_has_file(run); i++)
        if (file_lane_open(&run->lanes[i].file, &run->memory.file, run->device, err) < 0)
            return -1;
    return 0;
}

void copies_release(struct run *run)
{
    for (int i = 0; i < N_COPY_LANES; i++)
        file_lane_close(&run->lanes[i].file);
}

/* By the link, and to the file by the slower of it and the disk. */
static double rate_of(const struct run *run, bool is_of_file)
{
    double link = run->options.link_bytes_per_s, file = run->options.file_bytes_per_s;

    if (!device_is_host(run->device))
        return 0;
    return is_of_file && file > 0 && (link <= 0 || file < link) ? file : link;
}

void copies_resolve(struct run *run, const struct op *op, struct resolved_op *out)
{
    const struct tensor *x = &out->call.op.in[0], *y = &out->call.op.out[0];
    struct copy_lane *lane = lane_of(run, op->stream);
    bool is_of_file = file_tier_has(x->data) || file_tier_has(y->data);
    size_t n_bytes = collective_extent(x);

    if (is_of_file)
        out->file_copy = file_copy_of(y->data, x->data, n_bytes, &lane->file, out->text);
    else
        out->copy = copy_of(y->data, x->data, n_bytes);
    out->copy.throttle = &lane->throttle;
    out->copy.bytes_per_s = rate_of(run, is_of_file);
}
