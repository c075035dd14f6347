/*
 * quantities.c - see the header
 */
#include "config/quantities_impl.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/str.h"
#include "config/embedded.h"
#include "config/networks_impl.h"

struct quantity_unit {
    const char *name;
    double factor;
};

static const struct quantity_unit units[N_QUANTITIES][8] = {
    [COUNT] = { { "", 1 } },
    [SHARE] = { { "", 1 } },
    [FACTOR] = { { "", 1 } },
    [FLAG] = { { "", 1 } },
    [BYTES] = { { "TB", 1e12 },
                { "GB", 1e9 },
                { "MB", 1e6 },
                { "kB", 1e3 },
                { "TiB", 0x1p40 },
                { "GiB", 0x1p30 },
                { "MiB", 0x1p20 },
                { "KiB", 0x1p10 } },
    [RATE] = { { "TB/s", 1e12 }, { "GB/s", 1e9 }, { "MB/s", 1e6 }, { "kB/s", 1e3 }, { "B/s", 1 } },
    [NIC_RATE] = { { "TB/s", 1e12 }, { "GB/s", 1e9 }, { "MB/s", 1e6 } },
    [HOST_RATE] = { { "TB/s", 1e12 }, { "GB/s", 1e9 }, { "MB/s", 1e6 } },
    [FLOP_RATE] = { { "PFLOP/s", 1e15 }, { "TFLOP/s", 1e12 }, { "GFLOP/s", 1e9 } },
    [TIME] = { { "us", 1e3 }, { "ns", 1 }, { "ms", 1e6 } },
};
static const char *const examples[N_QUANTITIES] = {
    [COUNT] = "132",        [SHARE] = "0.68",
    [FACTOR] = "1.5",       [FLAG] = "true",
    [BYTES] = "80 GB",      [RATE] = "3.35 TB/s",
    [NIC_RATE] = "50 GB/s", [HOST_RATE] = "55 GB/s",
    [TIME] = "12 us",       [FLOP_RATE] = "989 TFLOP/s",
};

static double most_of(enum quantity quantity)
{
    return quantity == SHARE ? 1 : quantity == COUNT ? 1e6 : 1e18;
}

double quantity_parse(const char *text, enum quantity quantity)
{
    char *end;

    if (quantity == FLAG)
        return !strcmp(text, "true") ? 1 : !strcmp(text, "false") ? 0 : -1;
    double named = quantity == NIC_RATE    ? network_rate(LINK_NIC, text)
                   : quantity == HOST_RATE ? network_rate(LINK_HOST, text)
                                           : 0;
    if (named > 0)
        return named;
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

/* A number that is so many units, in as few digits as read back to it; or the nearest. Numbers that
 * people write have 15 digits at most, and are found with as many. */
static double count_units(double number, double factor, char text[40])
{
    double n = 0;

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, number / factor);
        n = strtod(text, NULL);
        if (n * factor == number)
            break;
    }
    return n;
}

void quantity_print(double number, enum quantity quantity, struct str *out)
{
    const struct quantity_unit *best = NULL;
    char text[40];

    for (const struct quantity_unit *u = units[quantity]; u < units[quantity] + 8 && u->name; u++) {
        double n = count_units(number, u->factor, text);

        if (n * u->factor == number && n >= 1 && (quantity != BYTES || n == floor(n)) &&
            (!best || u->factor > best->factor))
            best = u;
    }
    if (!best) {
        str_printf(out, "%.0f", number);
        return;
    }
    count_units(number, best->factor, text);
    str_printf(out, "%s %s", text, best->name);
}

void quantity_list_units(enum quantity quantity, const char *between, struct str *out)
{
    for (const struct quantity_unit *u = units[quantity]; u < units[quantity] + 8 && u->name; u++)
        str_printf(out, "%s%s", u == units[quantity] ? "" : between, u->name);
}

bool quantity_suggest(const char *text, enum quantity quantity, struct str *out)
{
    char *end;
    double number = strtod(text, &end);
    int n_digits = (int)(end - text);

    end += strspn(end, " ");
    size_t length = strlen(end);
    if (!(number > 0) || !length)
        return false;
    for (const struct quantity_unit *u = units[quantity]; u < units[quantity] + 8 && u->name; u++)
        /* "Gb/s" may be bits. */
        if (quantity == BYTES ? !strncasecmp(end, u->name, length)
                              : !strncmp(end, u->name, length)) {
            str_printf(out, "%.*s %s", n_digits, text, u->name);
            return true;
        }
    return false;
}

static void store(void *target, const struct quantity_key *key, double number)
{
    void *at = (char *)target + key->offset;

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

static int refuse_value(const struct quantity_key *key, const struct yaml_node *node,
                        struct err *err)
{
    struct str names = { 0 };

    if (key->quantity == NIC_RATE || key->quantity == HOST_RATE) {
        str_add(&names, ", or one of ");
        network_list(key->quantity == NIC_RATE ? LINK_NIC : LINK_HOST, &names);
    }
    err_set(err, ERR_CONFIG, "%s:%d:%d: %s is not a value such as %s%s", node->source, node->line,
            node->column, node->key, examples[key->quantity], str_text(&names));
    str_release(&names);
    return -1;
}

int quantity_take(void *target, const struct quantity_key *key, const struct yaml_node *node,
                  struct err *err)
{
    double number = node->kind == YAML_SCALAR ? quantity_parse(node->text, key->quantity) : -1;

    if (number < 0)
        return refuse_value(key, node, err);
    store(target, key, number);
    return 0;
}

int quantity_refuse_key(const struct quantity_keys *keys, const struct yaml_node *node,
                        struct err *err)
{
    return err_set(err, ERR_CONFIG, "%s:%d:%d: unknown key %.64s (see %s)", node->source,
                   node->key_line, node->key_column, node->key, keys->example);
}

int quantity_take_key(void *target, const struct quantity_keys *keys, const char *group,
                      const struct yaml_node *node, struct err *err)
{
    for (const struct quantity_key *key = keys->keys; key < keys->keys + keys->n; key++)
        if (!strcmp(key->name, node->key) &&
            (group ? key->group && !strcmp(key->group, group) : !key->group))
            return quantity_take(target, key, node, err);
    return quantity_refuse_key(keys, node, err);
}

int quantity_take_map(void *target, const struct quantity_keys *keys, const struct yaml_node *map,
                      struct err *err)
{
    for (const struct yaml_node *node = map->first; node; node = node->next) {
        if (node->kind != YAML_MAP) {
            if (quantity_take_key(target, keys, NULL, node, err))
                return -1;
            continue;
        }
        for (const struct yaml_node *pair = node->first; pair; pair = pair->next)
            if (quantity_take_key(target, keys, node->key, pair, err))
                return -1;
    }
    return 0;
}

int quantity_check(const struct quantity_keys *keys, const struct yaml_node *root, struct err *err)
{
    for (const struct quantity_key *key = keys->keys; key < keys->keys + keys->n; key++)
        if (!key->is_optional &&
            !yaml_get(key->group ? yaml_get(root, key->group) : root, key->name))
            return err_set(err, ERR_CONFIG, "%s:%d:%d: key %s%s%s is missing (hint: %s)",
                           root->source, root->line, root->column, key->group ? key->group : "",
                           key->group ? "." : "", key->name, examples[key->quantity]);
    return 0;
}

/* ---- files ---- */

static void refuse_name(const char *folder, const char *what, const char *name, struct err *err)
{
    struct str names = { 0 };

    for (int i = 0; i < n_embedded_files; i++) {
        const char *path = embedded_files[i].path;

        if (!strncmp(path, folder, strlen(folder)))
            str_printf(&names, "%s%.*s", names.length ? ", " : "",
                       (int)(strlen(path) - strlen(folder) - strlen(".yaml")),
                       path + strlen(folder));
    }
    err_set(err, ERR_CONFIG, "no %s is named %.64s (there are %s; or the path of a file)", what,
            name, str_text(&names));
    str_release(&names);
}

const struct yaml_node *quantity_read_file(const char *folder, const char *what, const char *name,
                                           struct arena *arena, struct err *err)
{
    bool is_path = strchr(name, '/') != NULL;
    const char *path = is_path ? name : arena_printf(arena, "%s%s.yaml", folder, name);
    const struct embedded_file *embedded = embedded_find(path);
    const struct yaml_node *root = NULL;

    if (is_path || file_exists(path))
        root = yaml_read(path, arena, err);
    else if (embedded)
        root = yaml_parse(embedded->text, strlen(embedded->text), path, arena, err);
    else
        refuse_name(folder, what, name, err);
    if (root && root->kind != YAML_MAP) {
        err_set(err, ERR_CONFIG, "%s: not a map of keys of a %s", root->source, what);
        return NULL;
    }
    return root;
}
