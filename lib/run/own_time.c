/*
 * own_time.c - what a step takes this rank without waiting for others
 *
 * On the host this thread does the work, so a wait is between two looks at the clock, and what is
 * neither that nor time on a core is idle. On a GPU the compute queue does it: events stand around
 * what the queue, or this thread before it goes on, waits for; their times are read when the step
 * is long over.
 */
#include <time.h>

#include "base/clock.h"
#include "run/run_impl.h"

/* Waits of a step beyond which it is not measured; what two events next to each other take. */
enum { N_WAITS_MAX = 2048 };
#define NO_WAIT_SECONDS 5e-6

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_on_host(const struct run *run)
{
    return device_is_host(run->device);
}

static int create_events(struct run *run, struct err *err)
{
    struct own_time *own = &run->own;
    int n = 2 + 2 * N_WAITS_MAX;

    if (own->events || is_on_host(run))
        return 0;
    own->events = arena_array(&run->arena, struct device_event *, n);
    for (; own->n_events < n; own->n_events++)
        if (run->device->ops->event_create(run->device, 1, &own->events[own->n_events], err) < 0)
            return -1;
    return 0;
}

int run_set_measured(struct run *run, bool is_measured, struct err *err)
{
    if (is_measured && create_events(run, err) < 0)
        return -1;
    run->own.is_on = is_measured;
    return 0;
}

void own_time_release(struct run *run)
{
    for (int i = 0; i < run->own.n_events; i++)
        run->device->ops->event_destroy(run->device, run->own.events[i]);
    run->own.n_events = 0;
}

/* Of the last step, from its events. */
static void tell(struct run *run)
{
    struct own_time *own = &run->own;
    const struct device_ops *ops = run->device->ops;

    if (!own->is_untold)
        return;
    own->is_untold = false;
    if (own->is_full)
        return;
    double seconds = ops->seconds(run->device, own->events[0], own->events[1]);
    for (int i = 2; i < own->n_used; i += 2) {
        double waited = ops->seconds(run->device, own->events[i], own->events[i + 1]);

        seconds -= waited > NO_WAIT_SECONDS ? waited : 0;
    }
    own->total.n_steps++;
    own->total.seconds += seconds > 0 ? seconds : 0;
}

struct run_own_time run_take_own_time(struct run *run)
{
    tell(run);
    struct run_own_time total = run->own.total;

    run->own.total = (struct run_own_time){ 0 };
    return total;
}

static void record(struct run *run, int event)
{
    run->device->ops->event_record(run->device, DEVICE_COMPUTE, run->own.events[event]);
}

void own_time_begin(struct run *run, enum entry_kind entry)
{
    struct own_time *own = &run->own;

    if (!own->is_on || !entry_is_step(entry) || entry == ENTRY_RERUN)
        return;
    own->is_within = true;
    own->waited = own->waited_cpu = 0;
    if (is_on_host(run)) {
        own->begin = clock_seconds();
        own->begin_cpu = cpu_seconds();
        return;
    }
    tell(run); /* of the step before, whose events are used again */
    own->n_used = 2;
    own->is_full = false;
    record(run, 0);
}

void own_time_end(struct run *run)
{
    struct own_time *own = &run->own;

    if (!own->is_within)
        return;
    own->is_within = false;
    if (!is_on_host(run)) {
        record(run, 1);
        own->is_untold = true;
        return;
    }
    double seconds = clock_seconds() - own->begin - own->waited;
    double idle = seconds - (cpu_seconds() - own->begin_cpu - own->waited_cpu);

    own->total.n_steps++;
    own->total.seconds += seconds > 0 ? seconds : 0;
    own->total.idle_seconds += idle > 0 ? idle : 0;
}

void own_time_leave(struct run *run)
{
    struct own_time *own = &run->own;

    if (!own->is_within)
        return;
    if (is_on_host(run)) {
        own->wait_begin = clock_seconds();
        own->wait_begin_cpu = cpu_seconds();
        return;
    }
    own->is_full |= own->n_used + 2 > own->n_events;
    if (!own->is_full)
        record(run, own->n_used);
}

void own_time_return(struct run *run)
{
    struct own_time *own = &run->own;

    if (!own->is_within)
        return;
    if (is_on_host(run)) {
        own->waited += clock_seconds() - own->wait_begin;
        own->waited_cpu += cpu_seconds() - own->wait_begin_cpu;
    } else if (!own->is_full) {
        record(run, own->n_used + 1);
        own->n_used += 2;
    }
}
