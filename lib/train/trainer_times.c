/*
 * trainer_times.c - a rank's own time of steps, and faults that make it longer
 */
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "train/trainer_impl.h"

#define SLOWER 0.3 /* of a step's own time */

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int trainer_measure(struct trainer *t, bool is_measured, struct err *err)
{
    t->timing.is_on = is_measured;
    return run_set_measured(t->run, is_measured, err);
}

struct trainer_times trainer_take_times(struct trainer *t)
{
    struct trainer_timing *timing = &t->timing;
    struct run_own_time own = run_take_own_time(t->run);
    bool is_host = device_is_host(run_device(t->run));
    struct trainer_times times = { .n_steps = own.n_steps,
                                   .n_all_steps = timing->n_all_steps,
                                   .exposed = timing->total_exposed };

    if (own.n_steps) {
        double idle = own.idle_seconds - timing->total_idle;

        times.input = timing->total_input;
        times.waiting = is_host && idle > 0 ? idle : 0;
        times.compute = own.seconds - times.input - times.waiting;
        times.compute = times.compute > 0 ? times.compute : 0;
    }
    timing->total_input = timing->total_idle = timing->total_exposed = 0;
    timing->n_all_steps = 0;
    return times;
}

double trainer_gate_seconds(const struct trainer *t)
{
    return t->timing.gate;
}

void trainer_slow(struct trainer *t, enum trainer_slowness what)
{
    t->timing.is_slow[what] = !t->timing.is_slow[what];
}

void trainer_time_step(struct trainer *t)
{
    struct trainer_timing *timing = &t->timing;

    timing->input = timing->input_idle = timing->gate = timing->slowed = 0;
    timing->step_begin = clock_seconds();
    timing->step_waited = run_wait_seconds(t->run);
}

void trainer_time_stepped(struct trainer *t)
{
    struct trainer_timing *timing = &t->timing;
    double waited = run_wait_seconds(t->run) - timing->step_waited;

    timing->own = clock_seconds() - timing->step_begin - timing->gate - timing->slowed - waited;
    timing->n_all_steps++;
    timing->total_exposed += waited;
    if (!timing->is_on)
        return;
    timing->total_input += timing->input;
    timing->total_idle += timing->input_idle;
}

/* This micro-batch's part of what a fault adds to a step. */
static double added_seconds(const struct trainer *t)
{
    return SLOWER * t->timing.own / t->job->n_micro_batches;
}

/* More work on the host; a device has nothing to do meanwhile. */
static int compute_longer(struct trainer *t, struct err *err)
{
    double seconds = added_seconds(t), begin = clock_seconds();

    if (run_device(t->run)->ops->wait(run_device(t->run), DEVICE_COMPUTE, err) < 0)
        return -1;
    while (clock_seconds() - begin < seconds)
        ;
    t->timing.slowed += seconds;
    return 0;
}

static void read_longer(struct trainer *t)
{
    double seconds = added_seconds(t);
    struct timespec pause = { (time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds)) };

    nanosleep(&pause, NULL);
    t->timing.slowed += seconds;
}

int trainer_time_input(struct trainer *t, struct micro_batch *batch, struct err *err)
{
    struct trainer_timing *timing = &t->timing;

    if (timing->is_slow[TRAINER_SLOW_COMPUTE] && compute_longer(t, err) < 0)
        return -1;
    if (!timing->is_on && !timing->is_slow[TRAINER_SLOW_INPUT])
        return loader_next(t->train, batch, err);
    double begin = clock_seconds(), cpu = cpu_seconds();

    if (timing->is_slow[TRAINER_SLOW_INPUT])
        read_longer(t);
    int status = loader_next(t->train, batch, err);
    double seconds = clock_seconds() - begin;
    timing->input += seconds;
    timing->input_idle += seconds - (cpu_seconds() - cpu);
    return status;
}
