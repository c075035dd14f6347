/*
 * slurm_nodes.c - which nodes of the allocation an attempt uses
 *
 * The environment shows the allocation as it was when it was made; `scontrol show job` as it is. It
 * loses a node that failed (salloc --no-kill), and gets some by a job that was submitted with
 * --dependency=expand. A step may use all of them, whatever its environment says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "launch/command.h"
#include "launch/slurm/slurm_impl.h"

static const double answer_seconds = 10;

static const struct context_view real_view = { .get = context_from_environment };

/* The names in Slurm's list ("n[1-2]"), or an empty list if Slurm does not tell. */
static struct host_list expand_names(const char *node_list, struct arena *arena)
{
    char *ask[] = { "scontrol", "show", "hostnames", arena_strdup(arena, node_list), NULL };
    struct str said = { 0 };
    struct host *hosts = NULL;
    char *rest = NULL;
    int n = 0, capacity = 0;

    if (*node_list && command_capture(ask, answer_seconds, &said) == 0 && said.length)
        for (char *name = strtok_r(said.data, "\n", &rest); name;
             name = strtok_r(NULL, "\n", &rest)) {
            hosts = arena_grow(arena, hosts, sizeof *hosts, &capacity, n + 1);
            hosts[n++].name = arena_strdup(arena, name);
        }
    str_release(&said);
    return (struct host_list){ .n_hosts = n, .hosts = hosts };
}

/* Nodes whose names Slurm does not tell: they can be counted, not left out. */
static struct host_list number_nodes(int n, struct arena *arena)
{
    struct host *hosts = arena_array(arena, struct host, n);

    for (int i = 0; i < n; i++)
        hosts[i].name = arena_printf(arena, "node %d", i);
    return (struct host_list){ .n_hosts = n, .hosts = hosts };
}

int slurm_node_names(struct host_list *list, struct arena *arena, struct err *err)
{
    const char *node_list = context_get(&real_view, "SLURM_JOB_NODELIST");

    *list = expand_names(node_list ? node_list : "", arena);
    if (list->n_hosts)
        return 0;
    return err_set(err, ERR_FAILED,
                   "Slurm does not name the nodes of this allocation: `scontrol show hostnames %s` "
                   "fails (hint: --hosts with their names)",
                   node_list ? node_list : "$SLURM_JOB_NODELIST");
}

/* ---- a share of the nodes ---- */

/* Leave the nodes of the share in the list, others in nodes->outside. is_out[n_hosts] as before. */
static bool *keep_share(struct slurm_nodes *nodes, struct host_list *list)
{
    struct host *hosts = arena_array(&nodes->arena, struct host, list->n_hosts);
    bool *is_out = arena_array(&nodes->arena, bool, list->n_hosts);
    struct str outside = { 0 };
    int n = 0;

    for (int i = 0; i < list->n_hosts; i++) {
        is_out[i] = !slurm_list_has(nodes->share, list->hosts[i].name);
        if (!is_out[i])
            hosts[n++] = list->hosts[i];
        else
            str_printf(&outside, outside.length ? ",%s" : "%s", list->hosts[i].name);
    }
    nodes->outside = arena_strdup(&nodes->arena, str_text(&outside));
    str_release(&outside);
    list->hosts = hosts;
    list->n_hosts = n;
    return is_out;
}

static int take_share(struct slurm_nodes *nodes, struct host_list *list, struct err *err)
{
    bool *is_out = nodes->node_list ? keep_share(nodes, list) : NULL;

    if (!is_out || !list->n_hosts)
        return err_set(err, ERR_CONFIG,
                       SLURM_NODES_VARIABLE " is %s, but the allocation has no such nodes: %s",
                       nodes->share, nodes->node_list ? nodes->node_list : "they have no names");
    nodes->allocation = slurm_allocation_share(&nodes->allocation, is_out, &nodes->arena);
    return 0;
}

/* ---- the list ---- */

int slurm_nodes_open(struct slurm_nodes *nodes, const struct supervise_options *options,
                     struct err *err)
{
    const char *node_list = context_get(&real_view, "SLURM_JOB_NODELIST");
    struct arena *arena = &nodes->arena;
    struct host_list list;

    if (slurm_allocation_read(&nodes->allocation, &real_view, arena, err))
        return -1;
    list = expand_names(node_list ? node_list : "", arena);
    if (list.n_hosts == nodes->allocation.n_nodes)
        nodes->node_list = node_list;
    else
        list = number_nodes(nodes->allocation.n_nodes, arena);
    nodes->share = context_get(&real_view, SLURM_NODES_VARIABLE);
    nodes->outside = "";
    if (nodes->share && take_share(nodes, &list, err) < 0)
        return -1;
    return host_pool_open(&nodes->pool, options, &list, "the allocation", err);
}

void slurm_nodes_close(struct slurm_nodes *nodes)
{
    host_pool_close(&nodes->pool);
    arena_release(&nodes->arena);
    str_release(&nodes->excluded);
}

/* ---- what the allocation is by now ---- */

/* The CPUs of nodes: known ones have what they had, new ones share the rest of n_cpus. */
static struct slurm_allocation allocate(struct slurm_nodes *nodes, const struct host_list *list,
                                        int n_cpus)
{
    struct slurm_allocation found = nodes->allocation;
    int n_new = 0;

    found.n_nodes = list->n_hosts;
    found.n_tasks = 0; /* were requested for the nodes of the beginning */
    found.n_cpus = arena_array(&nodes->arena, int, list->n_hosts);
    for (int i = 0; i < list->n_hosts; i++) {
        int known = host_pool_find(&nodes->pool, list->hosts[i].name);

        found.n_cpus[i] = known >= 0 ? nodes->allocation.n_cpus[known] : 0;
        n_cpus -= found.n_cpus[i];
        n_new += known < 0;
    }
    for (int i = 0; i < list->n_hosts; i++)
        if (!found.n_cpus[i])
            found.n_cpus[i] = max_int(1, n_cpus / max_int(1, n_new));
    return found;
}

static void read_allocation(struct slurm_nodes *nodes)
{
    const char *id = getenv("SLURM_JOB_ID");
    char *ask[] = {
        "scontrol", "show", "job", "-o", arena_strdup(&nodes->arena, id ? id : ""), NULL
    };
    struct str said = { 0 };
    const char *node_list = NULL;
    int n_cpus = 0;

    if (command_capture(ask, answer_seconds, &said) == 0)
        node_list = slurm_job_nodes(str_text(&said), &n_cpus, &nodes->arena);
    str_release(&said);
    if (!node_list || !strcmp(node_list, nodes->node_list))
        return;
    struct host_list list = expand_names(node_list, &nodes->arena);
    if (nodes->share && list.n_hosts)
        keep_share(nodes, &list);
    if (!list.n_hosts)
        return;
    nodes->allocation = allocate(nodes, &list, n_cpus);
    nodes->node_list = node_list;
    host_pool_list(&nodes->pool, &list);
}

/* Nodes that failed, or whose state says that they are gone, are left out of this attempt. */
static void find_gone(struct slurm_nodes *nodes, int attempt, const char *lost)
{
    const struct host_list *list = &nodes->pool.list;
    char *ask[] = { "sinfo", "-N",    "-h", "-n", arena_strdup(&nodes->arena, nodes->node_list),
                    "-o",    "%N %T", NULL };
    bool *is_gone = arena_array(&nodes->arena, bool, list->n_hosts);
    char **names = arena_array(&nodes->arena, char *, list->n_hosts);
    struct str states = { 0 };

    for (int i = 0; i < list->n_hosts; i++)
        names[i] = arena_strdup(&nodes->arena, list->hosts[i].name);
    if (command_capture(ask, answer_seconds, &states) != 0)
        str_clear(&states);
    slurm_find_gone(str_text(&states), lost, names, list->n_hosts, is_gone);
    for (int i = 0; i < list->n_hosts; i++)
        nodes->pool.states[i] = is_gone[i] ? HOST_LOST : HOST_OUT;
    host_pool_note(&nodes->pool, attempt + 1);
    str_release(&states);
}

int slurm_nodes_choose(struct slurm_nodes *nodes, int attempt, const char *lost,
                       struct slurm_allocation *left, struct err *err)
{
    struct host_pool *pool = &nodes->pool;

    if (attempt && nodes->node_list) {
        read_allocation(nodes);
        find_gone(nodes, attempt, lost);
    }
    int n_possible = host_pool_choose(pool, attempt, err), n_out = 0;
    bool *is_out = arena_array(&nodes->arena, bool, pool->list.n_hosts);

    str_clear(&nodes->excluded);
    str_add(&nodes->excluded, nodes->outside);
    for (int i = 0; i < pool->list.n_hosts; i++) {
        is_out[i] = pool->states[i] != HOST_USED;
        if (is_out[i] && nodes->node_list)
            str_printf(&nodes->excluded, nodes->excluded.length ? ",%s" : "%s",
                       pool->list.hosts[i].name);
        n_out += is_out[i];
    }
    *left = n_out ? slurm_allocation_without(&nodes->allocation, is_out, &nodes->arena)
                  : nodes->allocation;
    return n_possible;
}
