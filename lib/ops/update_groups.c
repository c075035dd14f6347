/*
 * update_groups.c - see the header
 */
#include "ops/update_groups.h"

#include <fnmatch.h>

int update_groups_find(const struct update_groups *groups, const char *name)
{
    for (int i = 0; i < groups->n; i++)
        if (fnmatch(groups->list[i].match, name, 0) == 0)
            return i;
    return -1;
}
