/*
 * cores.c - exchange of CPU masks within a node, and division of the cores in them
 */
#include "launch/cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/num.h"
#include "launch/cores_impl.h"
#include "progress/progress_page.h"

enum { MASK_BYTES = 2048, FENCE_SECONDS = 3600, GET_SECONDS = 60 };

#define MASK_KEY "lmtrain.cores"

/* A core, or a hyperthread of one, that may be used. */
struct unit {
    hwloc_bitmap_t threads;
    int node; /* index among the NUMA nodes, -1: in none */
};

struct units {
    int n;
    struct unit *units; /* NUMA node by NUMA node */
};

/* Its links are itself, the folder above, and a folder a thread. */
static int is_only_thread(void)
{
    struct stat tasks;

    return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
}

/*
 * hwloc's plugins look for displays and PCI devices, with the libraries of X11 for that; only cores
 * are asked for. Which are loaded is said by the environment alone, which no other thread may be
 * reading meanwhile, and MPI, which uses hwloc later, must find it unchanged.
 */
static int init_without_plugins(hwloc_topology_t *topology)
{
    bool is_ours = !getenv("HWLOC_PLUGINS_PATH") && is_only_thread();

    if (is_ours)
        setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1);
    int status = hwloc_topology_init(topology);
    if (is_ours)
        unsetenv("HWLOC_PLUGINS_PATH");
    return status;
}

/* Load what of this machine matters here; to be destroyed by the caller. */
static int cores_topology(hwloc_topology_t *topology, struct err *err)
{
    if (init_without_plugins(topology))
        return err_set(err, ERR_FAILED, "hwloc cannot be initialised");
    /* Caches and devices take time to find and decide nothing here. */
    hwloc_topology_set_all_types_filter(*topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(*topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_type_filter(*topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(*topology)) {
        hwloc_topology_destroy(*topology);
        return err_set(err, ERR_FAILED, "hwloc cannot load this machine's topology");
    }
    return 0;
}

/* ---- what there is ---- */

static int node_of(hwloc_topology_t topology, hwloc_const_cpuset_t threads)
{
    int n_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);

    for (int i = 0; i < n_nodes; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);

        if (node->cpuset && hwloc_bitmap_intersects(node->cpuset, threads))
            return i;
    }
    return -1;
}

static void add_unit(struct units *list, hwloc_topology_t topology, hwloc_const_cpuset_t threads,
                     hwloc_const_cpuset_t allowed)
{
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();

    CHECK(mine);
    hwloc_bitmap_and(mine, threads, allowed);
    if (hwloc_bitmap_iszero(mine)) {
        hwloc_bitmap_free(mine);
        return;
    }
    struct unit unit = { mine, node_of(topology, mine) };
    int at = list->n++;

    /* Behind all of its node and of those before it. */
    for (; at > 0 && (unsigned)list->units[at - 1].node > (unsigned)unit.node; at--)
        list->units[at] = list->units[at - 1];
    list->units[at] = unit;
}

/* All objects of a type with allowed threads; empty if the machine does not tell of such. */
static struct units list_units(hwloc_topology_t topology, hwloc_obj_type_t type,
                               hwloc_const_cpuset_t allowed)
{
    int n = hwloc_get_nbobjs_by_type(topology, type);
    struct units list = { .units = calloc((size_t)max_int(n, 1), sizeof(struct unit)) };

    CHECK(list.units);
    for (int i = 0; i < n; i++)
        add_unit(&list, topology, hwloc_get_obj_by_type(topology, type, (unsigned)i)->cpuset,
                 allowed);
    return list;
}

static void free_units(struct units *list)
{
    for (int i = 0; i < list->n; i++)
        hwloc_bitmap_free(list->units[i].threads);
    free(list->units);
    *list = (struct units){ 0 };
}

/* ---- dealing ---- */

struct range {
    int begin, end;
};

static struct range even_share(int begin, int end, int index, int n)
{
    int64_t size = end - begin;

    return (struct range){ begin + (int)(index * size / n), begin + (int)((index + 1) * size / n) };
}

/* The units from begin on that lie in one node. */
static int node_end(const struct units *list, int begin)
{
    int end = begin;

    while (end < list->n && list->units[end].node == list->units[begin].node)
        end++;
    return end;
}

/*
 * Each rank within one node: the next rank goes where a rank then has most. Returns 0 if a rank
 * would get fewer units than if they were divided across nodes; else 1 and the share.
 */
static int share_of_node(const struct units *list, int index, int n_ranks, struct range *share)
{
    int *n_of = calloc((size_t)list->n, sizeof *n_of); /* ranks, by where the node begins */
    int fewest = list->n;

    CHECK(n_of);
    for (int rank = 0; rank < n_ranks; rank++) {
        int best = 0;
        double most = 0;

        for (int begin = 0; begin < list->n; begin = node_end(list, begin)) {
            double each = (double)(node_end(list, begin) - begin) / (n_of[begin] + 1);

            if (each > most) {
                most = each;
                best = begin;
            }
        }
        n_of[best]++;
    }
    int before = 0;
    for (int begin = 0; begin < list->n; begin = node_end(list, begin)) {
        int end = node_end(list, begin), n = n_of[begin];

        if (n)
            fewest = min_int(fewest, (end - begin) / n);
        if (index >= before && index < before + n)
            *share = even_share(begin, end, index - before, n);
        before += n;
    }
    free(n_of);
    return fewest >= list->n / n_ranks;
}

/* Where in the list the units of a node (the system's number) begin; -1: it has none. */
static int node_begin(hwloc_topology_t topology, const struct units *list, int os_index)
{
    for (int begin = 0; begin < list->n; begin = node_end(list, begin)) {
        int node = list->units[begin].node;

        if (node >= 0 &&
            (int)hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)node)->os_index ==
                os_index)
            return begin;
    }
    return -1;
}

/* Each rank at its GPU. Returns 0 if that is not possible for all of them; else 1 and the share. */
static int share_near_gpu(hwloc_topology_t topology, const struct units *list, const int *gpu_nodes,
                          int index, int n_ranks, struct range *share)
{
    for (int rank = 0; rank < n_ranks; rank++) {
        int begin = node_begin(topology, list, gpu_nodes[rank]), n = 0, before = 0;

        for (int other = 0; other < n_ranks; other++) {
            n += gpu_nodes[other] == gpu_nodes[rank];
            before += gpu_nodes[other] == gpu_nodes[rank] && other < rank;
        }
        if (begin < 0 || node_end(list, begin) - begin < n)
            return 0;
        if (rank == index)
            *share = even_share(begin, node_end(list, begin), before, n);
    }
    return 1;
}

static int count_nodes(const struct units *list)
{
    int n = 0;

    for (int begin = 0; begin < list->n; begin = node_end(list, begin))
        n++;
    return n;
}

static void take_share(hwloc_topology_t topology, const struct units *list, struct range share,
                       struct rank_cores *cores)
{
    int node = list->units[share.begin].node;

    for (int i = share.begin; i < share.end && cores->n_cores < RANK_CORES_MAX; i++) {
        const struct unit *unit = &list->units[i];

        cores->cores[cores->n_cores++] = hwloc_bitmap_first(unit->threads);
        for (int at = hwloc_bitmap_first(unit->threads); at >= 0 && cores->n_all < RANK_CORES_MAX;
             at = hwloc_bitmap_next(unit->threads, at))
            cores->all[cores->n_all++] = at;
        if (unit->node != node)
            node = -1;
    }
    if (node >= 0)
        node = (int)hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)node)->os_index;
    cores->numa_node = node;
}

void cores_deal(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, int index, int n_ranks,
                const int *gpu_nodes, struct rank_cores *cores)
{
    struct units list = list_units(topology, HWLOC_OBJ_CORE, allowed);
    struct range share;

    CHECK(index >= 0);
    CHECK(index < n_ranks);
    *cores = (struct rank_cores){ .numa_node = -1 };
    if (list.n < n_ranks) {
        free_units(&list);
        list = list_units(topology, HWLOC_OBJ_PU, allowed);
    }
    if (!list.n) { /* nothing that the machine tells of: any core, then */
        int first = hwloc_bitmap_first(allowed);

        cores->n_cores = cores->n_all = 1;
        cores->cores[0] = cores->all[0] = max_int(first, 0);
        free_units(&list);
        return;
    }
    if (list.n < n_ranks) {
        cores->is_shared = true;
        share = (struct range){ index % list.n, index % list.n + 1 };
    } else if (gpu_nodes && share_near_gpu(topology, &list, gpu_nodes, index, n_ranks, &share)) {
        /* each at its GPU */
    } else if (n_ranks < count_nodes(&list) || !share_of_node(&list, index, n_ranks, &share)) {
        share = even_share(0, list.n, index, n_ranks);
    }
    take_share(topology, &list, share, cores);
    free_units(&list);
}

void cores_count_alike(char *const *masks, const int *of_masks, int n, int own, int *index,
                       int *n_alike, int *numbers)
{
    *index = *n_alike = 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(masks[i], masks[own])) {
            *index += i < own;
            numbers[(*n_alike)++] = of_masks[i];
        }
}

/* What of the machine is as near to a node as can be without leaving its socket. */
static hwloc_obj_t around_node(hwloc_topology_t topology, int os_index)
{
    hwloc_obj_t node = NULL;

    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
        if ((int)node->os_index == os_index) {
            hwloc_obj_t socket = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, node);

            return socket ? socket : node;
        }
    return NULL;
}

int cores_are_far(hwloc_topology_t topology, const struct rank_cores *cores, int gpu_node)
{
    hwloc_obj_t near = gpu_node < 0 ? NULL : around_node(topology, gpu_node);

    for (int i = 0; near && i < cores->n_all; i++)
        if (hwloc_bitmap_isset(near->cpuset, (unsigned)cores->all[i]))
            return 0;
    return near != NULL;
}

/* ---- this machine ---- */

static hwloc_bitmap_t own_mask(hwloc_topology_t topology)
{
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();

    CHECK(mask);
    if (hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_THREAD) || hwloc_bitmap_iszero(mask))
        hwloc_bitmap_copy(mask, hwloc_topology_get_allowed_cpuset(topology));
    return mask;
}

/* What ranks of a node exchange: "1 0-3,8-11", the NUMA node of the GPU and the mask. */
struct neighbours {
    char **masks; /* by local rank */
    int *gpu_nodes;
    int own; /* which of them we are, -1: none */
};

/*
 * Exchange masks with the ranks of this node, in the order of world ranks. The fence has a long
 * timeout: the monitoring of hangs reports ranks that do not reach it.
 */
static int exchange(const struct launch_rank *rank, const char *mask, int gpu_node,
                    struct neighbours *all, struct err *err)
{
    int *peers = calloc((size_t)rank->local_size, sizeof *peers);
    char text[MASK_BYTES + 16];
    int status;

    CHECK(peers);
    snprintf(text, sizeof text, "%d %s", gpu_node, mask);
    status = launch_put(MASK_KEY, text, strlen(text) + 1, err);
    if (!status)
        status = launch_fence(FENCE_SECONDS, err);
    if (!status)
        status = launch_local_peers(peers, rank->local_size, err);
    for (int i = 0; i < rank->local_size && !status; i++) {
        size_t n_bytes = sizeof text - 1;
        char *rest = NULL;

        memset(text, 0, sizeof text);
        status = launch_get(MASK_KEY, peers[i], text, &n_bytes, GET_SECONDS, err);
        all->gpu_nodes[i] = (int)strtol(text, &rest, 10);
        all->masks[i] = strdup(rest);
        CHECK(all->masks[i]);
        if (peers[i] == rank->world_rank)
            all->own = i;
    }
    free(peers);
    return status;
}

/*
 * Which share of how many is ours, and whose GPUs are where; gpu_nodes has room for all local
 * ranks.
 */
struct dealing {
    int index, n_ranks;
    int *gpu_nodes;
};

/* Our own supervisor starts all with one mask. */
static int find_share(const struct launch_rank *rank, hwloc_const_cpuset_t allowed,
                      struct dealing *dealing, struct err *err)
{
    char mask[MASK_BYTES];
    int n = rank->local_size, status = 0;
    struct neighbours all = { .own = -1 };

    dealing->index = rank->local_rank;
    dealing->n_ranks = n;
    /* A rank that is alone on its node comes to the fence as well. */
    if (!rank->under_pmix || rank->world_size == 1 || getenv(PROGRESS_VARIABLE))
        return 0;
    all.masks = calloc((size_t)n, sizeof *all.masks);
    all.gpu_nodes = calloc((size_t)n, sizeof *all.gpu_nodes);
    CHECK(all.masks);
    CHECK(all.gpu_nodes);
    hwloc_bitmap_list_snprintf(mask, sizeof mask, allowed);
    status = exchange(rank, mask, dealing->gpu_nodes[rank->local_rank], &all, err);
    if (!status && all.own >= 0)
        cores_count_alike(all.masks, all.gpu_nodes, n, all.own, &dealing->index, &dealing->n_ranks,
                          dealing->gpu_nodes);
    for (int i = 0; i < n; i++)
        free(all.masks[i]);
    free(all.masks);
    free(all.gpu_nodes);
    return status;
}

/* Without STRICT the node is preferred, and another one taken when it is full. */
static void bind_memory(hwloc_topology_t topology, int numa_node)
{
    hwloc_bitmap_t nodes;

    if (numa_node < 0 || hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) < 2)
        return;
    nodes = hwloc_bitmap_alloc();
    CHECK(nodes);
    hwloc_bitmap_only(nodes, (unsigned)numa_node);
    if (hwloc_set_membind(topology, nodes, HWLOC_MEMBIND_BIND,
                          HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET))
        log_debug("memory is not bound to NUMA node %d: the system does not allow it", numa_node);
    hwloc_bitmap_free(nodes);
}

/* Who binds ranks to few cores is the launcher, where that is not our own supervisor. */
static void warn_if_far(hwloc_topology_t topology, const struct rank_cores *cores, int gpu_node)
{
    const char *hint = getenv(PROGRESS_VARIABLE)
                           ? "give lmtrain cores of both sockets: taskset, the batch system's "
                             "share, a container's --cpuset-cpus"
                           : "srun --cpu-bind=none, mpirun --bind-to none, and lmtrain binds ranks "
                             "itself";

    if (cores_are_far(topology, cores, gpu_node))
        log_warn("this rank is restricted to cores of another socket than that of its GPU (NUMA "
                 "node %d): transfers to and from the GPU are slower (hint: %s)",
                 gpu_node, hint);
}

int launch_cores(const struct launch_rank *rank, const int *gpu_nodes, struct rank_cores *cores,
                 struct err *err)
{
    hwloc_topology_t topology;
    size_t n = (size_t)rank->local_size;
    int own_node = gpu_nodes ? gpu_nodes[rank->local_rank] : -1;
    struct dealing dealing = { .gpu_nodes = malloc(n * sizeof(int)) };

    CHECK(dealing.gpu_nodes);
    for (size_t i = 0; i < n; i++)
        dealing.gpu_nodes[i] = gpu_nodes ? gpu_nodes[i] : -1;
    if (cores_topology(&topology, err)) {
        free(dealing.gpu_nodes);
        return -1;
    }
    hwloc_bitmap_t allowed = own_mask(topology);
    int status = find_share(rank, allowed, &dealing, err);
    if (!status) {
        cores_deal(topology, allowed, dealing.index, dealing.n_ranks, dealing.gpu_nodes, cores);
        warn_if_far(topology, cores, own_node);
        bind_memory(topology, cores->numa_node);
    }
    free(dealing.gpu_nodes);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return status;
}

int launch_cores_of(int index, int n_ranks, struct rank_cores *cores, struct err *err)
{
    hwloc_topology_t topology;

    if (cores_topology(&topology, err))
        return -1;
    hwloc_bitmap_t allowed = own_mask(topology);
    cores_deal(topology, allowed, index, n_ranks, NULL, cores);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return 0;
}

void launch_cores_spread(const struct rank_cores *cores)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < cores->n_all; i++)
        if (cores->all[i] < CPU_SETSIZE)
            CPU_SET((size_t)cores->all[i], &set);
    if (CPU_COUNT(&set))
        sched_setaffinity(0, sizeof set, &set);
}

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

const char *launch_cores_describe(char *buffer, size_t size)
{
    hwloc_topology_t topology;
    struct err ignored;

    snprintf(buffer, size, "unknown");
    if (cores_topology(&topology, &ignored))
        return buffer;
    hwloc_bitmap_t allowed = own_mask(topology);
    struct units list = list_units(topology, HWLOC_OBJ_CORE, allowed);
    int n_cores = list.n, n_nodes = count_nodes(&list), n_threads = hwloc_bitmap_weight(allowed);

    snprintf(buffer, size, "%d core%s (%d hyperthread%s) in %d NUMA node%s", n_cores,
             plural(n_cores), n_threads, plural(n_threads), n_nodes, plural(n_nodes));
    free_units(&list);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return buffer;
}
