/*
 * cluster.c - device files, and clusters of one device
 */
#include "config/cluster.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/num.h"
#include "base/yaml.h"
#include "config/cluster_impl.h"
#include "config/networks_impl.h"
#include "config/quantities_impl.h"

#define FOLDER "configs/devices/"

/* Of the line of a NIC, where neither the file nor the network's name says it: InfiniBand. */
#define RAIL_EFFICIENCY 0.75

const char *device_format_name(enum device_format format)
{
    static const char *const names[N_DEVICE_FORMATS] = { "fp32", "tf32", "fp16",
                                                         "bf16", "fp8",  "fp4" };

    return names[format];
}

/* ---- keys ---- */

#define AT(member) offsetof(struct device_spec, member)
static const struct quantity_key keys[] = {
    { NULL, "memory", BYTES, AT(memory), false },
    { NULL, "cpu", FLAG, AT(is_cpu), true },
    { NULL, "planning_only", FLAG, AT(is_planning_only), true },
    { NULL, "reserve", BYTES, AT(reserve), true },
    { NULL, "sms", COUNT, AT(n_sms), true },
    { NULL, "hbm", RATE, AT(hbm), false },
    { NULL, "nic", NIC_RATE, AT(nic), true },
    { NULL, "launch", TIME, AT(launch), true },
    { NULL, "host_link", HOST_RATE, AT(host_link), true },
    { "attention_reach", "forward", SHARE, AT(attention), true },
    { "attention_reach", "backward", SHARE, AT(attention_grad), true },
    { "fast", "bus", RATE, AT(fast_bus), false },
    { "fast", "link", RATE, AT(fast_link), false },
    { "fast", "latency", TIME, AT(fast_latency), false },
    { "fast", "domain", COUNT, AT(fast_domain), false },
    { "fast", "over_nodes", FLAG, AT(fast_over_nodes), true },
    { "fast", "nvls", FLAG, AT(has_nvls), true },
};
static const struct quantity_keys device_keys = { keys, sizeof keys / sizeof *keys,
                                                  FOLDER "h100-sxm.yaml" };

static const struct {
    const char *name;
    enum quantity quantity;
    size_t offset;
} by_format[] = {
    { "peak", FLOP_RATE, AT(peak) },
    { "kernel_reach", SHARE, AT(kernel_reach) },
    { "step_reach", SHARE, AT(step_reach) },
};
enum { N_BY_FORMAT = sizeof by_format / sizeof *by_format };

static int take_format(struct device_spec *device, int which, const struct yaml_node *node,
                       struct err *err)
{
    for (int f = 0; f < N_DEVICE_FORMATS; f++)
        if (!strcmp(device_format_name((enum device_format)f), node->key)) {
            struct quantity_key key = { NULL, node->key, by_format[which].quantity,
                                        by_format[which].offset + (size_t)f * sizeof(double),
                                        false };

            return quantity_take(device, &key, node, err);
        }
    return quantity_refuse_key(&device_keys, node, err);
}

static int take_sources(struct device_spec *device, const struct yaml_node *list,
                        struct arena *arena)
{
    const char **sources;
    int n = 0;

    for (const struct yaml_node *item = list->first; item; item = item->next)
        n++;
    device->sources = sources = arena_array(arena, const char *, max_int(1, n));
    for (const struct yaml_node *item = list->first; item; item = item->next)
        sources[device->n_sources++] = item->text;
    return 0;
}

static int take_node(struct device_spec *device, const struct yaml_node *node, struct arena *arena,
                     struct err *err)
{
    if (!strcmp(node->key, "sources") && node->kind == YAML_LIST)
        return take_sources(device, node, arena);
    if (node->kind == YAML_SCALAR && !strcmp(node->key, "nic"))
        device->nic_efficiency = network_efficiency(node->text);
    if (node->kind != YAML_MAP)
        return quantity_take_key(device, &device_keys, NULL, node, err);
    for (const struct yaml_node *pair = node->first; pair; pair = pair->next) {
        int which = 0;

        while (which < N_BY_FORMAT && strcmp(by_format[which].name, node->key) != 0)
            which++;
        if (which < N_BY_FORMAT ? take_format(device, which, pair, err)
                                : quantity_take_key(device, &device_keys, node->key, pair, err))
            return -1;
    }
    return 0;
}

static int check_whole(const struct device_spec *device, const struct yaml_node *root,
                       struct err *err)
{
    if (quantity_check(&device_keys, root, err))
        return -1;
    for (int f = 0; f < N_DEVICE_FORMATS; f++)
        if (device->peak[f] > 0 && !(device->kernel_reach[f] > 0 && device->step_reach[f] > 0))
            return err_set(err, ERR_CONFIG,
                           "%s: peak has %s, which kernel_reach or step_reach lacks (hint: 0.7)",
                           root->source, device_format_name((enum device_format)f));
    if (!device->is_cpu &&
        !(device->n_sms && device->nic > 0 && device->launch && device->host_link > 0))
        return err_set(
            err, ERR_CONFIG,
            "%s: sms, nic, launch and host_link are of every device but a CPU (see " FOLDER
            "h100-sxm.yaml; hint: cpu: true)",
            root->source);
    if (!(device->peak[FORMAT_F32] > 0))
        return err_set(err, ERR_CONFIG, "%s: peak.fp32 is missing (hint: 67 TFLOP/s)",
                       root->source);
    return 0;
}

int device_take(struct device_spec *device, const struct yaml_node *root, struct arena *arena,
                struct err *err)
{
    if (root->kind != YAML_MAP)
        return err_set(err, ERR_CONFIG, "%s: not a map (see " FOLDER "h100-sxm.yaml)",
                       root->source);
    for (const struct yaml_node *node = root->first; node; node = node->next)
        if (take_node(device, node, arena, err))
            return -1;
    return check_whole(device, root, err);
}

int device_read(struct device_spec *device, const char *name, struct arena *arena, struct err *err)
{
    const struct yaml_node *root = quantity_read_file(FOLDER, "device", name, arena, err);

    *device = (struct device_spec){ .name = arena_strndup(arena, name, strlen(name)) };
    return root ? device_take(device, root, arena, err) : -1;
}

/* ---- clusters ---- */

bool cluster_is_cpu(const struct cluster *cluster)
{
    return cluster->islands[0].device->is_cpu;
}

void cluster_set_defaults(struct cluster *cluster)
{
    cluster->links.rail_latency = 5000;
    cluster->links.spine_latency = 2000;
    cluster->links.oversubscription = 1;
    cluster->links.host_shared_by = 1;
    cluster->links.host_memory = 40e9; /* eight ranks on two sockets of eight channels of DDR5 */
    cluster->software.host_op = 5000;
    cluster->software.graph_op = 500;
    cluster->software.nccl_op = 10000;
    cluster->software.constant = 30 * 1000 * 1000;
    cluster->software.jitter = 0.004;
    cluster->software.overlap_fast = 0.12;
    cluster->software.overlap_nic = 0.03;
    for (int f = 0; f < N_DEVICE_FORMATS; f++)
        cluster->calibration[f] = 1;
}

void cluster_settle(struct cluster *cluster)
{
    for (int i = 0; i < cluster->n_islands; i++) {
        struct cluster_island *island = &cluster->islands[i];

        if (cluster->links.rail_efficiency > 0)
            island->nic_efficiency = cluster->links.rail_efficiency;
        else if (!(island->nic_efficiency > 0))
            island->nic_efficiency = RAIL_EFFICIENCY;
    }
}

const struct device_spec *cluster_planning_only(const struct cluster *cluster)
{
    for (int i = 0; i < cluster->n_islands; i++)
        if (cluster->islands[i].device->is_planning_only)
            return cluster->islands[i].device;
    return NULL;
}

void cluster_of_device(struct cluster *cluster, const struct device_spec *device, int n_devices,
                       struct arena *arena)
{
    int per_node = min_int(n_devices, device->fast_domain);

    *cluster = (struct cluster){ .name = device->name, .n_islands = 1 };
    cluster->islands = arena_array(arena, struct cluster_island, 1);
    cluster->islands[0] = (struct cluster_island){ .n_nodes = (n_devices + per_node - 1) / per_node,
                                                   .per_node = per_node,
                                                   .fast_domain = device->fast_domain,
                                                   .n_nics = per_node,
                                                   .nic = device->nic,
                                                   .nic_efficiency = device->nic_efficiency,
                                                   .device = device };
    cluster_set_defaults(cluster);
    cluster_settle(cluster);
}

int cluster_n_devices(const struct cluster *cluster)
{
    int n = 0;

    for (int i = 0; i < cluster->n_islands; i++)
        n += cluster->islands[i].n_nodes * cluster->islands[i].per_node;
    return n;
}
