/*
 * visible_gpus.c - see the header
 */
#include "device/visible_gpus.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define UUID_PREFIX "GPU-"
#define PART_PREFIX "MIG-"

static bool begins_with(const struct visible_gpu *entry, const char *prefix)
{
    size_t length = strlen(prefix);

    return (size_t)entry->n_bytes >= length && !memcmp(entry->name, prefix, length);
}

/* The entry that begins here, without blanks around it. Returns where the next one does; NULL: it
 * is the last one. */
static const char *take_entry(struct visible_gpu *entry, const char *list)
{
    const char *end = list + strcspn(list, ",");

    *entry = (struct visible_gpu){ .index = -1, .name = list };
    while (entry->name < end && isspace((unsigned char)*entry->name))
        entry->name++;
    entry->n_bytes = (int)(end - entry->name);
    while (entry->n_bytes && isspace((unsigned char)entry->name[entry->n_bytes - 1]))
        entry->n_bytes--;
    return *end ? end + 1 : NULL;
}

/* As strtoul takes it: what follows the digits does not matter. */
static bool find_by_number(struct visible_gpu *entry, int n_gpus)
{
    int index = 0, n = 0;

    while (n < entry->n_bytes && isdigit((unsigned char)entry->name[n]) && index < n_gpus)
        index = 10 * index + (entry->name[n++] - '0');
    entry->index = index;
    return n && index < n_gpus;
}

static bool find_by_uuid(struct visible_gpu *entry, int n_gpus, const char *const *uuids)
{
    int n_found = 0;

    if (!begins_with(entry, UUID_PREFIX) || (size_t)entry->n_bytes == strlen(UUID_PREFIX))
        return false;
    for (int i = 0; uuids && i < n_gpus; i++)
        if (!strncmp(uuids[i], entry->name, (size_t)entry->n_bytes)) {
            entry->index = i;
            n_found++;
        }
    return !uuids || n_found == 1;
}

static bool is_same(const struct visible_gpu *a, const struct visible_gpu *b)
{
    if (a->index >= 0 || b->index >= 0)
        return a->index == b->index;
    return a->n_bytes == b->n_bytes && !memcmp(a->name, b->name, (size_t)a->n_bytes);
}

static bool is_among(const struct visible_gpu *gpus, int n, const struct visible_gpu *entry)
{
    for (int i = 0; i < n; i++)
        if (is_same(&gpus[i], entry))
            return true;
    return false;
}

int visible_gpus_find(struct visible_gpu *gpus, const char *list, int n_gpus,
                      const char *const *uuids)
{
    struct visible_gpu entry;
    int n = 0;

    for (; !list && n < n_gpus; n++)
        gpus[n] = (struct visible_gpu){ .index = n };
    if (!list || !n_gpus)
        return n;
    take_entry(&entry, list);
    if (begins_with(&entry, PART_PREFIX)) {
        gpus[0] = entry;
        return 1;
    }
    bool is_of_uuids = begins_with(&entry, UUID_PREFIX);
    while (list) {
        list = take_entry(&entry, list);
        if (is_of_uuids ? !find_by_uuid(&entry, n_gpus, uuids) : !find_by_number(&entry, n_gpus))
            return n;
        if (is_among(gpus, n, &entry))
            return 0;
        if (n == n_gpus)
            return n;
        gpus[n++] = entry;
    }
    return n;
}
