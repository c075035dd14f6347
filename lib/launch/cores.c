/*
 * cores.c - the affinity mask, divided
 */
#include "launch/cores.h"

#include <sched.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/num.h"

enum { N_CORES_MAX = 1 << 16 };

/* The allowed cores in order, on the heap; at least one. */
static int *allowed_cores(int *n_allowed)
{
    size_t bytes = CPU_ALLOC_SIZE(N_CORES_MAX);
    cpu_set_t *mask = CPU_ALLOC(N_CORES_MAX);
    int *cores = malloc(sizeof *cores * N_CORES_MAX);
    int n = 0;

    CHECK(mask);
    CHECK(cores);
    CPU_ZERO_S(bytes, mask);
    if (!sched_getaffinity(0, bytes, mask))
        for (int core = 0; core < N_CORES_MAX; core++)
            if (CPU_ISSET_S((size_t)core, bytes, mask))
                cores[n++] = core;
    if (!n)
        cores[n++] = 0;
    CPU_FREE(mask);
    *n_allowed = n;
    return cores;
}

int launch_cores(int local_rank, int local_size, int *cores, int capacity)
{
    CHECK(local_rank >= 0);
    CHECK(local_rank < local_size);
    CHECK(capacity > 0);

    int n_allowed;
    int *allowed = allowed_cores(&n_allowed);
    int first = local_rank % n_allowed, end = first + 1;

    if (n_allowed >= local_size) {
        first = (int)((int64_t)local_rank * n_allowed / local_size);
        end = (int)((int64_t)(local_rank + 1) * n_allowed / local_size);
    }

    int n = min_int(end - first, capacity);

    for (int i = 0; i < n; i++)
        cores[i] = allowed[first + i];
    free(allowed);
    return n;
}
