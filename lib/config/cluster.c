/*
 * cluster.c - device files, and clusters of one device
 */
#include "config/cluster.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "base/str.h"
#include "base/yaml.h"
#include "config/embedded.h"

#define FOLDER "configs/devices/"

const char *device_format_name(enum device_format format)
{
    static const char *const names[N_DEVICE_FORMATS] = { "fp32", "tf32", "fp16",
                                                         "bf16", "fp8",  "fp4" };

    return names[format];
}

/* ---- quantities: a number and a unit ---- */

enum quantity { COUNT, SHARE, FLAG, BYTES, RATE, FLOP_RATE, TIME, N_QUANTITIES };

struct quantity_unit {
    const char *name;
    double factor;
};

static const struct quantity_unit units[N_QUANTITIES][8] = {
    [COUNT] = { { "", 1 } },
    [SHARE] = { { "", 1 } },
    [FLAG] = { { "", 1 } },
    [BYTES] = { { "GB", 1e9 }, { "MB", 1e6 }, { "GiB", 0x1p30 }, { "MiB", 0x1p20 } },
    [RATE] = { { "TB/s", 1e12 }, { "GB/s", 1e9 }, { "MB/s", 1e6 } },
    [FLOP_RATE] = { { "PFLOP/s", 1e15 }, { "TFLOP/s", 1e12 }, { "GFLOP/s", 1e9 } },
    [TIME] = { { "us", 1e3 }, { "ns", 1 }, { "ms", 1e6 } },
};
static const char *const examples[N_QUANTITIES] = {
    [COUNT] = "132",
    [SHARE] = "0.68",
    [FLAG] = "true",
    [BYTES] = "80 GB",
    [RATE] = "3.35 TB/s",
    [TIME] = "12 us",
    [FLOP_RATE] = "989 TFLOP/s",
};

static double most_of(enum quantity quantity)
{
    return quantity == SHARE ? 1 : quantity == COUNT ? 1e6 : 1e18;
}

/* The number, or -1: it is none of this kind, or not above 0. */
static double parse_quantity(const char *text, enum quantity quantity)
{
    char *end;

    if (quantity == FLAG)
        return !strcmp(text, "true") ? 1 : !strcmp(text, "false") ? 0 : -1;
    double number = strtod(text, &end);
    if (end == text || !isfinite(number) || number <= 0)
        return -1;
    while (*end == ' ')
        end++;
    for (const struct quantity_unit *u = units[quantity]; u < units[quantity] + 8 && u->name; u++)
        if (!strcmp(end, u->name) && number * u->factor <= most_of(quantity))
            return number * u->factor;
    return -1;
}

/* ---- keys ---- */

struct device_key {
    const char *group, *name; /* group NULL: at the top */
    enum quantity quantity;
    size_t offset;
    bool is_optional;
};

#define AT(member) offsetof(struct device_spec, member)
static const struct device_key keys[] = {
    { NULL, "memory", BYTES, AT(memory), false },
    { NULL, "reserve", BYTES, AT(reserve), true },
    { NULL, "sms", COUNT, AT(n_sms), false },
    { NULL, "hbm", RATE, AT(hbm), false },
    { NULL, "nic", RATE, AT(nic), false },
    { NULL, "launch", TIME, AT(launch), false },
    { NULL, "host_link", RATE, AT(host_link), false },
    { "fast", "bus", RATE, AT(fast_bus), false },
    { "fast", "link", RATE, AT(fast_link), false },
    { "fast", "latency", TIME, AT(fast_latency), false },
    { "fast", "domain", COUNT, AT(fast_domain), false },
    { "fast", "nvls", FLAG, AT(has_nvls), true },
};
enum { N_KEYS = sizeof keys / sizeof *keys };

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

static void store(struct device_spec *device, const struct device_key *key, double number)
{
    void *at = (char *)device + key->offset;

    switch (key->quantity) {
    case FLAG:
        *(bool *)at = number > 0;
        break;
    case COUNT:
        *(int *)at = (int)number;
        break;
    case BYTES:
    case TIME:
        *(int64_t *)at = llround(number);
        break;
    default:
        *(double *)at = number;
    }
}

static int take_quantity(struct device_spec *device, const struct device_key *key,
                         const struct yaml_node *node, struct err *err)
{
    double number = node->kind == YAML_SCALAR ? parse_quantity(node->text, key->quantity) : -1;

    if (number < 0)
        return err_set(err, ERR_CONFIG, "%s:%d:%d: %s is not a value such as %s", node->source,
                       node->line, node->column, node->key, examples[key->quantity]);
    store(device, key, number);
    return 0;
}

static int refuse_key(const struct yaml_node *node, struct err *err)
{
    return err_set(err, ERR_CONFIG, "%s:%d:%d: unknown key %.64s (see " FOLDER "h100-sxm.yaml)",
                   node->source, node->key_line, node->key_column, node->key);
}

/* Keys of a group, or of the top, that hold one value. */
static int take_key(struct device_spec *device, const char *group, const struct yaml_node *node,
                    struct err *err)
{
    for (int i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].name, node->key) &&
            (group ? keys[i].group && !strcmp(keys[i].group, group) : !keys[i].group))
            return take_quantity(device, &keys[i], node, err);
    return refuse_key(node, err);
}

static int take_format(struct device_spec *device, int which, const struct yaml_node *node,
                       struct err *err)
{
    for (int f = 0; f < N_DEVICE_FORMATS; f++)
        if (!strcmp(device_format_name((enum device_format)f), node->key)) {
            struct device_key key = { NULL, node->key, by_format[which].quantity,
                                      by_format[which].offset + (size_t)f * sizeof(double), false };

            return take_quantity(device, &key, node, err);
        }
    return refuse_key(node, err);
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
    if (node->kind != YAML_MAP)
        return take_key(device, NULL, node, err);
    for (const struct yaml_node *pair = node->first; pair; pair = pair->next) {
        int which = 0;

        while (which < N_BY_FORMAT && strcmp(by_format[which].name, node->key) != 0)
            which++;
        if (which < N_BY_FORMAT ? take_format(device, which, pair, err)
                                : take_key(device, node->key, pair, err))
            return -1;
    }
    return 0;
}

static const struct yaml_node *find(const struct yaml_node *root, const struct device_key *key)
{
    return yaml_get(key->group ? yaml_get(root, key->group) : root, key->name);
}

static int check_whole(const struct device_spec *device, const struct yaml_node *root,
                       struct err *err)
{
    for (int i = 0; i < N_KEYS; i++)
        if (!keys[i].is_optional && !find(root, &keys[i]))
            return err_set(err, ERR_CONFIG, "%s: key %s%s%s is missing (hint: %s)", root->source,
                           keys[i].group ? keys[i].group : "", keys[i].group ? "." : "",
                           keys[i].name, examples[keys[i].quantity]);
    for (int f = 0; f < N_DEVICE_FORMATS; f++)
        if (device->peak[f] > 0 && !(device->kernel_reach[f] > 0 && device->step_reach[f] > 0))
            return err_set(err, ERR_CONFIG,
                           "%s: peak has %s, which kernel_reach or step_reach lacks (hint: 0.7)",
                           root->source, device_format_name((enum device_format)f));
    if (!(device->peak[FORMAT_F32] > 0))
        return err_set(err, ERR_CONFIG, "%s: peak.fp32 is missing (hint: 67 TFLOP/s)",
                       root->source);
    return 0;
}

static int take_device(struct device_spec *device, const struct yaml_node *root,
                       struct arena *arena, struct err *err)
{
    if (root->kind != YAML_MAP)
        return err_set(err, ERR_CONFIG, "%s: not a map (see " FOLDER "h100-sxm.yaml)",
                       root->source);
    for (const struct yaml_node *node = root->first; node; node = node->next)
        if (take_node(device, node, arena, err))
            return -1;
    return check_whole(device, root, err);
}

/* ---- files ---- */

static int refuse_name(const char *name, struct err *err)
{
    struct str names = { 0 };

    for (int i = 0; i < n_embedded_files; i++) {
        const char *path = embedded_files[i].path;

        if (!strncmp(path, FOLDER, strlen(FOLDER)))
            str_printf(&names, "%s%.*s", names.length ? ", " : "",
                       (int)(strlen(path) - strlen(FOLDER) - strlen(".yaml")),
                       path + strlen(FOLDER));
    }
    err_set(err, ERR_CONFIG, "no device is named %.64s (there are %s; or the path of a file)", name,
            str_text(&names));
    str_release(&names);
    return -1;
}

int device_read(struct device_spec *device, const char *name, struct arena *arena, struct err *err)
{
    bool is_path = strchr(name, '/') != NULL;
    const char *path = is_path ? name : arena_printf(arena, FOLDER "%s.yaml", name);
    const struct embedded_file *embedded = embedded_find(path);
    const struct yaml_node *root;

    *device = (struct device_spec){ .name = arena_strndup(arena, name, strlen(name)) };
    if (is_path || file_exists(path))
        root = yaml_read(path, arena, err);
    else if (embedded)
        root = yaml_parse(embedded->text, strlen(embedded->text), path, arena, err);
    else
        return refuse_name(name, err);
    return root ? take_device(device, root, arena, err) : -1;
}

/* ---- clusters ---- */

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
                                                   .device = device };
    cluster->links.rail_latency = 5000;
    cluster->links.rail_efficiency = 0.75;
    cluster->links.spine_latency = 2000;
    cluster->links.oversubscription = 1;
    cluster->links.host_shared_by = 1;
    cluster->software.host_op = 5000;
    cluster->software.graph_op = 500;
    cluster->software.nccl_op = 10000;
    cluster->software.constant = 30 * 1000 * 1000;
    cluster->software.jitter = 0.004;
    cluster->software.overlap_fast = 0.12;
    cluster->software.overlap_nic = 0.03;
}

int cluster_n_devices(const struct cluster *cluster)
{
    int n = 0;

    for (int i = 0; i < cluster->n_islands; i++)
        n += cluster->islands[i].n_nodes * cluster->islands[i].per_node;
    return n;
}
