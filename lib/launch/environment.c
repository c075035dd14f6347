/*
 * environment.c - a process's environment as a value
 */
#include "launch/environment_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

int environment_count(const char *name)
{
    const char *text = getenv(name);
    int64_t n;

    return text && !str_to_i64(text, &n) && n > 0 && n < 1000000 ? (int)n : 0;
}

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

/* Where name stands, or where the list ends. */
static size_t find(char *const *environment, const char *name)
{
    size_t length = strlen(name), i = 0;

    while (environment[i] &&
           (strncmp(environment[i], name, length) || environment[i][length] != '='))
        i++;
    return i;
}

const char *environment_get(char *const *environment, const char *name)
{
    const char *entry = environment[find(environment, name)];

    return entry ? entry + strlen(name) + 1 : NULL;
}

void environment_set(char ***environment, const char *name, const char *value)
{
    size_t n = count_strings(*environment), i = find(*environment, name);
    char *entry;
    int printed = asprintf(&entry, "%s=%s", name, value);

    CHECK(printed >= 0);
    if (i < n) {
        free((*environment)[i]);
    } else {
        *environment = realloc(*environment, (n + 2) * sizeof **environment);
        CHECK(*environment);
        (*environment)[n + 1] = NULL;
    }
    (*environment)[i] = entry;
}

void environment_set_default(char ***environment, const char *name, const char *value)
{
    if (!environment_get(*environment, name))
        environment_set(environment, name, value);
}
