/*
 * deprecated.c - the table of deprecated keys, and what is said of one
 */
#include "config/deprecated_impl.h"

#include <stddef.h>
#include <string.h>

/* A row: { "train.x", "train.y", "0.4", "0.6" }. None yet. */
const struct deprecated_keys job_deprecated_keys = { NULL, 0 };

const struct deprecated_key *deprecated_find(const struct deprecated_keys *keys, const char *key)
{
    for (int i = 0; i < keys->n; i++)
        if (!strcmp(keys->items[i].old, key))
            return &keys->items[i];
    return NULL;
}

int deprecated_is_group(const struct deprecated_keys *keys, const char *group)
{
    size_t length = strlen(group);

    for (int i = 0; i < keys->n; i++)
        if (!strncmp(keys->items[i].old, group, length) && keys->items[i].old[length] == '.')
            return 1;
    return 0;
}

void deprecated_describe(const struct deprecated_key *key, struct str *out)
{
    str_printf(out, "%s is deprecated since %s, use %s; it will be removed in %s", key->old,
               key->since, key->successor, key->removed_in);
}

void deprecated_manual(const struct deprecated_keys *keys, struct str *out)
{
    if (keys->n)
        str_add(out, ".SS deprecated keys\n");
    for (int i = 0; i < keys->n; i++) {
        const struct deprecated_key *key = &keys->items[i];

        str_printf(out,
                   ".TP\n.B %s\nDeprecated since %s: use\n.BR %s .\nIt will be removed in %s.\n",
                   key->old, key->since, key->successor, key->removed_in);
    }
}
