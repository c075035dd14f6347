/*
 * hub.c - names on the Hugging Face hub
 */
#include "base/hub.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

#define NAME_MAX_BYTES 150 /* of the hub's: 96 of each part at most, far fewer in practice */

bool hub_is_name(const char *path)
{
    const char *slash = strchr(path, '/');

    return slash && slash > path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' &&
           strlen(path) <= NAME_MAX_BYTES &&
           strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789-_./") == strlen(path) &&
           !file_exists(path);
}

const char *hub_hint(char *buffer, size_t size, const char *path, enum hub_kind kind)
{
    if (!hub_is_name(path)) {
        snprintf(buffer, size, "%s", "");
        return buffer;
    }
    snprintf(buffer, size,
             " (hint: if it is a name on the Hugging Face hub: hf download %s%s --local-dir %s, "
             "then give that folder)",
             path, kind == HUB_DATASET ? " --repo-type dataset" : "", strchr(path, '/') + 1);
    return buffer;
}
