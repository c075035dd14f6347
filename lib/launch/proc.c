/*
 * proc.c - reading /proc
 */
#include "launch/proc_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_STATE = 3, FIELD_PARENT = 4, FIELD_START = 22, FIELD_STATUS = 52 };

int proc_read(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    size_t n = fread(text, 1, size - 1, file);
    fclose(file);
    text[n] = '\0';
    return 0;
}

int proc_stat(pid_t pid, struct proc_stat *stat)
{
    char text[1024];

    *stat = (struct proc_stat){ 0 };
    if (proc_read(pid, "stat", text, sizeof text))
        return -1;
    /* The name in field 2 may hold blanks and brackets, so count from its end. */
    const char *at = strrchr(text, ')');
    for (int field = FIELD_STATE; at && field <= FIELD_STATUS; field++) {
        at = strchr(at + 1, ' ');
        if (!at)
            break;
        if (field == FIELD_STATE)
            stat->state = at[1];
        else if (field == FIELD_PARENT)
            stat->parent = (pid_t)strtol(at, NULL, 10);
        else if (field == FIELD_START)
            stat->start_ticks = strtoull(at, NULL, 10);
        else if (field == FIELD_STATUS)
            stat->wait_status = (int)strtol(at, NULL, 10);
    }
    return stat->state ? 0 : -1;
}

int proc_is_dead(const struct proc_stat *stat)
{
    return stat->state == 'Z' || stat->state == 'X';
}
