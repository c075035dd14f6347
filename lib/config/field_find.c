/*
 * field_find.c - a field by its key
 */
#include <string.h>

#include "config/fields_impl.h"

const struct field *field_find(const char *key)
{
    for (int i = 0; i < n_job_fields; i++)
        if (!strcmp(job_fields[i].key, key))
            return &job_fields[i];
    return NULL;
}

int field_is_group(const char *group)
{
    size_t length = strlen(group);

    for (int i = 0; i < n_job_fields; i++)
        if (!strncmp(job_fields[i].key, group, length) && job_fields[i].key[length] == '.')
            return 1;
    return 0;
}
