/*
 * environment.c - a process's environment as a value
 */
#include "launch/environment_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static size_t count_strings(char *const *strings)
{
    size_t n = 0;

    while (strings[n])
        n++;
    return n;
}

char **environment_copy(char *const *environment)
{
    size_t n = count_strings(environment);
    char **copy = calloc(n + 1, sizeof *copy);

    CHECK(copy);
    for (size_t i = 0; i < n; i++) {
        copy[i] = strdup(environment[i]);
        CHECK(copy[i]);
    }
    return copy;
}

void environment_free(char **environment)
{
    for (char **entry = environment; entry && *entry; entry++)
        free(*entry);
    free(environment);
}

void environment_set(char ***environment, const char *name, const char *value, int force)
{
    size_t n = count_strings(*environment), length = strlen(name), i = 0;
    char *entry;
    int printed = asprintf(&entry, "%s=%s", name, value);

    CHECK(printed >= 0);
    while (i < n && (strncmp((*environment)[i], name, length) || (*environment)[i][length] != '='))
        i++;
    if (i < n) {
        if (!force) {
            free(entry);
            return;
        }
        free((*environment)[i]);
    } else {
        *environment = realloc(*environment, (n + 2) * sizeof **environment);
        CHECK(*environment);
        (*environment)[n + 1] = NULL;
    }
    (*environment)[i] = entry;
}
