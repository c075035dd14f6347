/*
 * cluster_file.c - islands, links and software of a file
 */
#include "config/cluster_impl.h"

#include <string.h>

#include "base/num.h"
#include "config/networks_impl.h"
#include "config/quantities_impl.h"

#define FOLDER "configs/clusters/"
#define EXAMPLE FOLDER "dgx-h100.yaml"

enum { N_DEVICES_MAX = 1000000 }; /* as many ranks as a job may have */

#define IN_ISLAND(member) offsetof(struct cluster_island, member)
static const struct quantity_key island_keys[] = {
    { NULL, "nodes", COUNT, IN_ISLAND(n_nodes), false },
    { NULL, "per_node", COUNT, IN_ISLAND(per_node), false },
    { NULL, "fast_domain", COUNT, IN_ISLAND(fast_domain), true },
    { NULL, "nics", COUNT, IN_ISLAND(n_nics), true },
    { NULL, "nic", NIC_RATE, IN_ISLAND(nic), true },
    { NULL, "host_memory", BYTES, IN_ISLAND(host_memory), true },
    { NULL, "cores", COUNT, IN_ISLAND(n_cores), true },
    { NULL, "watts", FACTOR, IN_ISLAND(watts), true },
    { NULL, "price_per_hour", FACTOR, IN_ISLAND(price_per_hour), true },
};
static const struct quantity_keys of_island = { island_keys,
                                                sizeof island_keys / sizeof *island_keys, EXAMPLE };

#define IN_LINKS(member) offsetof(struct cluster, links.member)
static const struct quantity_key link_keys[] = {
    { "fast", "latency", TIME, IN_LINKS(fast_latency), true },
    { "fast", "bus", RATE, IN_LINKS(fast_bus), true },
    { "rail", "latency", TIME, IN_LINKS(rail_latency), true },
    { "rail", "efficiency", SHARE, IN_LINKS(rail_efficiency), true },
    { "spine", "latency", TIME, IN_LINKS(spine_latency), true },
    { "spine", "oversubscription", FACTOR, IN_LINKS(oversubscription), true },
    { "spine", "nodes_per_leaf", COUNT, IN_LINKS(nodes_per_leaf), true },
    { "islands", "latency", TIME, IN_LINKS(islands_latency), true },
    { "islands", "bandwidth", RATE, IN_LINKS(islands_bandwidth), true },
    { "host", "bandwidth", HOST_RATE, IN_LINKS(host_bandwidth), true },
    { "host", "shared_by", COUNT, IN_LINKS(host_shared_by), true },
    { "host", "memory", RATE, IN_LINKS(host_memory), true },
    { "storage", "read", RATE, IN_LINKS(storage_read), true },
    { "storage", "write", RATE, IN_LINKS(storage_write), true },
};
static const struct quantity_keys of_links = { link_keys, sizeof link_keys / sizeof *link_keys,
                                               EXAMPLE };

#define IN_SOFTWARE(member) offsetof(struct cluster, software.member)
static const struct quantity_key software_keys[] = {
    { NULL, "host_op", TIME, IN_SOFTWARE(host_op), true },
    { NULL, "graph_op", TIME, IN_SOFTWARE(graph_op), true },
    { NULL, "nccl_op", TIME, IN_SOFTWARE(nccl_op), true },
    { NULL, "constant", TIME, IN_SOFTWARE(constant), true },
    { NULL, "jitter", SHARE, IN_SOFTWARE(jitter), true },
    { NULL, "unfused_attention", FLAG, IN_SOFTWARE(has_unfused_attention), true },
    { "overlap", "fast", SHARE, IN_SOFTWARE(overlap_fast), true },
    { "overlap", "nic", SHARE, IN_SOFTWARE(overlap_nic), true },
};
static const struct quantity_keys of_software = { software_keys,
                                                  sizeof software_keys / sizeof *software_keys,
                                                  EXAMPLE };

#define IN_CALIBRATION(format) offsetof(struct cluster, calibration) + (format) * sizeof(double)
static const struct quantity_key calibration_keys[] = {
    { NULL, "fp32", FACTOR, IN_CALIBRATION(FORMAT_F32), true },
    { NULL, "tf32", FACTOR, IN_CALIBRATION(FORMAT_TF32), true },
    { NULL, "fp16", FACTOR, IN_CALIBRATION(FORMAT_F16), true },
    { NULL, "bf16", FACTOR, IN_CALIBRATION(FORMAT_BF16), true },
    { NULL, "fp8", FACTOR, IN_CALIBRATION(FORMAT_F8), true },
    { NULL, "fp4", FACTOR, IN_CALIBRATION(FORMAT_F4), true },
};
static const struct quantity_keys of_calibration = {
    calibration_keys, sizeof calibration_keys / sizeof *calibration_keys, EXAMPLE
};

/* Where the file does not say it: the links of a node's board do not leave it. */
static int usual_domain(const struct cluster_island *island)
{
    const struct device_spec *device = island->device;

    return device->fast_over_nodes ? device->fast_domain
                                   : min_int(device->fast_domain, island->per_node);
}

static int take_island(struct cluster_island *island, const struct yaml_node *map,
                       struct arena *arena, struct err *err)
{
    const struct yaml_node *name = yaml_get(map, "device");
    struct device_spec *device = arena_array(arena, struct device_spec, 1);

    if (!name || name->kind == YAML_LIST)
        return err_set(err, ERR_CONFIG, "%s:%d:%d: an island has no device (hint: h100-sxm)",
                       map->source, map->line, map->column);
    for (const struct yaml_node *node = map->first; node; node = node->next)
        if (node != name && quantity_take_key(island, &of_island, NULL, node, err))
            return -1;
    device->name = "its device";
    if (quantity_check(&of_island, map, err) ||
        (name->kind == YAML_MAP ? device_take(device, name, arena, err)
                                : device_read(device, name->text, arena, err)))
        return -1;
    if (device->is_cpu && name->kind == YAML_MAP)
        device->name = "cpu";
    island->device = device;
    island->fast_domain = island->fast_domain ? island->fast_domain : usual_domain(island);
    island->n_nics = island->n_nics ? island->n_nics : island->per_node;
    if (island->nic > 0) {
        island->nic_efficiency = network_efficiency(yaml_get(map, "nic")->text);
    } else {
        island->nic = device->nic;
        island->nic_efficiency = device->nic_efficiency;
    }
    return 0;
}

static int take_islands(struct cluster *cluster, const struct yaml_node *list, struct arena *arena,
                        struct err *err)
{
    int64_t n_devices = 0;
    int n = 0;

    for (const struct yaml_node *item = list->first; item; item = item->next)
        n++;
    if (list->kind != YAML_LIST || !n)
        return err_set(err, ERR_CONFIG,
                       "%s:%d:%d: islands is not a list of islands (see " EXAMPLE ")", list->source,
                       list->line, list->column);
    cluster->islands = arena_array(arena, struct cluster_island, n);
    for (const struct yaml_node *item = list->first; item; item = item->next) {
        struct cluster_island *island = &cluster->islands[cluster->n_islands++];

        if (take_island(island, item, arena, err))
            return -1;
        n_devices += (int64_t)island->n_nodes * island->per_node;
        if (n_devices > N_DEVICES_MAX)
            return err_set(err, ERR_CONFIG,
                           "%s:%d:%d: islands have %lld devices and more, at most %d are possible",
                           item->source, item->line, item->column, (long long)n_devices,
                           N_DEVICES_MAX);
    }
    return 0;
}

/* A path that is relative is so to the cluster's file. */
static const char *beside(const char *file, const char *path, struct arena *arena)
{
    const char *slash = strrchr(file, '/');

    if (*path == '/' || !slash)
        return arena_strdup(arena, path);
    return arena_printf(arena, "%.*s/%s", (int)(slash - file), file, path);
}

static int take_node(struct cluster *cluster, const struct yaml_node *node, struct arena *arena,
                     struct err *err)
{
    if (!strcmp(node->key, "islands"))
        return take_islands(cluster, node, arena, err);
    if (!strcmp(node->key, "links") && node->kind == YAML_MAP)
        return quantity_take_map(cluster, &of_links, node, err);
    if (!strcmp(node->key, "software") && node->kind == YAML_MAP)
        return quantity_take_map(cluster, &of_software, node, err);
    if (!strcmp(node->key, "tables") && node->kind == YAML_SCALAR) {
        cluster->tables = beside(cluster->name, node->text, arena);
        return 0;
    }
    if (!strcmp(node->key, "name") && node->kind == YAML_SCALAR) {
        cluster->title = arena_strdup(arena, node->text);
        return 0;
    }
    if (!strcmp(node->key, "calibration") && node->kind == YAML_MAP)
        return quantity_take_map(cluster, &of_calibration, node, err);
    return quantity_refuse_key(&of_island, node, err);
}

int cluster_read(struct cluster *cluster, const char *name, struct arena *arena, struct err *err)
{
    const struct yaml_node *root = quantity_read_file(FOLDER, "cluster", name, arena, err);

    *cluster = (struct cluster){ .name = arena_strndup(arena, name, strlen(name)) };
    cluster_set_defaults(cluster);
    if (!root)
        return -1;
    for (const struct yaml_node *node = root->first; node; node = node->next)
        if (take_node(cluster, node, arena, err))
            return -1;
    if (!cluster->n_islands)
        return err_set(err, ERR_CONFIG, "%s: key islands is missing (see " EXAMPLE ")",
                       root->source);
    cluster_settle(cluster);
    return 0;
}
