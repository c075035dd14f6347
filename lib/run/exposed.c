/*
 * exposed.c - what the compute thread has waited for: communication that nothing hides; and what
 * its ops took
 */
#include <stdio.h>
#include <stdlib.h>

#include "run/run_impl.h"

static int longer(const void *a, const void *b)
{
    double x = ((const struct run_exposed *)a)->seconds;
    double y = ((const struct run_exposed *)b)->seconds;

    return (x < y) - (x > y);
}

void run_sort_exposed(struct run_exposed *list, int n)
{
    qsort(list, (size_t)n, sizeof *list, longer);
}

const char *run_exposed_text(const struct run_exposed *e, char *text, size_t size)
{
    bool has_axis = op_is_collective(e->kind);

    snprintf(text, size, "%s%s%s", op_name(e->kind), has_axis ? " " : "",
             has_axis ? axis_name(e->axis) : "");
    return text;
}

int run_list_exposed(const struct run *run, struct run_exposed *list, int capacity)
{
    int n = 0;

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        for (int axis = 0; axis < N_GROUP_AXES && n < capacity; axis++)
            if (run->exposed[kind][axis] > 0)
                list[n++] = (struct run_exposed){ (enum op_kind)kind, (enum mesh_axis)axis,
                                                  run->exposed[kind][axis] };
    run_sort_exposed(list, n);
    return n;
}

/* The first step touches memory for the first time. An odd stride meets steps that are logged,
 * evaluated or saved as often as others. */
#define TIMED_FIRST 1
#define TIMED_STRIDE 7

void run_choose_timed(struct run *run)
{
    run->is_step_timed =
        device_is_host(run->device) && run->n_stepped % TIMED_STRIDE == TIMED_FIRST;
    run->op_times.n_steps += run->is_step_timed;
    run->n_stepped++;
}

struct run_op_times run_take_op_times(struct run *run)
{
    struct run_op_times times = run->op_times;

    run->op_times = (struct run_op_times){ 0 };
    return times;
}
