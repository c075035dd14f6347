/*
 * islands.c - ranks fill islands one after the other
 */
#include "plan/islands.h"

#include <string.h>

#include "base/num.h"
#include "plan/fit.h"
#include "plan/price_impl.h"

static int64_t devices_of(const struct cluster_island *island)
{
    return (int64_t)island->n_nodes * island->per_node;
}

int64_t islands_count(const struct cluster *cluster, int island, int first, int n)
{
    int64_t begin = 0;

    for (int i = 0; i < island; i++)
        begin += devices_of(&cluster->islands[i]);
    int64_t end = begin + devices_of(&cluster->islands[island]);
    /* Ranks beyond the last are taken to be on it. */
    if (island + 1 == cluster->n_islands)
        end = INT64_MAX;
    return max_i64(0, min_i64(end, (int64_t)first + n) - max_i64(begin, first));
}

static bool has_any(const struct cluster *cluster, int island, struct mesh_ranks ranks)
{
    for (int i = 0; i < ranks.n_runs; i++)
        if (islands_count(cluster, island, ranks.first + i * ranks.stride, ranks.n))
            return true;
    return false;
}

bool islands_are_alike(const struct cluster *cluster)
{
    for (int i = 1; i < cluster->n_islands; i++)
        if (strcmp(cluster->islands[i].device->name, cluster->islands[0].device->name) != 0)
            return false;
    return true;
}

static double peak_of(const struct cluster *cluster, int island, enum dtype dtype, double *reach)
{
    struct prices prices = { .cluster = cluster, .island = island };

    return price_peak(&prices, price_format(dtype), reach);
}

int islands_slowest(const struct cluster *cluster, struct mesh_ranks ranks, enum dtype dtype)
{
    double least = 0;
    int slowest = 0;

    for (int i = 0; i < cluster->n_islands; i++) {
        double reach, peak = peak_of(cluster, i, dtype, &reach);

        if (!has_any(cluster, i, ranks) || (least > 0 && peak * reach >= least))
            continue;
        least = peak * reach;
        slowest = i;
    }
    return slowest;
}

const struct device_spec *islands_smallest(const struct cluster *cluster, struct mesh_ranks ranks)
{
    const struct device_spec *smallest = NULL;

    for (int i = 0; i < cluster->n_islands; i++) {
        const struct device_spec *device = cluster->islands[i].device;

        if (has_any(cluster, i, ranks) &&
            (!smallest || plan_available_bytes(device, 0) < plan_available_bytes(smallest, 0)))
            smallest = device;
    }
    return smallest ? smallest : cluster->islands[0].device;
}

double islands_peak(const struct cluster *cluster, int n, enum dtype dtype)
{
    double sum = 0, reach;

    for (int i = 0; i < cluster->n_islands; i++)
        sum += (double)islands_count(cluster, i, 0, n) * peak_of(cluster, i, dtype, &reach);
    return sum;
}

void islands_name(const struct cluster *cluster, int n, struct str *out)
{
    bool are_alike = islands_are_alike(cluster);
    int n_named = 0;

    for (int i = 0; i < (are_alike ? 1 : cluster->n_islands); i++) {
        int64_t on = islands_count(cluster, i, 0, n);

        if (are_alike)
            str_add(out, cluster->islands[i].device->name);
        else if (on)
            str_printf(out, "%s%lld %s", n_named++ ? " and " : "", (long long)on,
                       cluster->islands[i].device->name);
    }
}

struct cluster islands_view(const struct cluster *cluster, int island, int n_devices,
                            struct arena *arena)
{
    struct cluster view = *cluster;
    struct cluster_island *only = arena_array(arena, struct cluster_island, 1);

    *only = cluster->islands[island];
    only->n_nodes = max_int(only->n_nodes, (n_devices + only->per_node - 1) / only->per_node);
    view.islands = only;
    view.n_islands = 1;
    return view;
}
