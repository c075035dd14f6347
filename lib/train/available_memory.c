/*
 * available_memory.c - /proc/meminfo, and the files of the control groups
 */
#include "train/available_memory.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"

/* Where a version keeps what: v1 counts a group's children only under "total_". */
struct names {
    const char *folder, *limit, *used, *inactive, *active;
};

static const struct names v1 = { "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file", "total_active_file" };
static const struct names v2 = { "", "memory.max", "memory.current", "inactive_file",
                                 "active_file" };

/* The number alone in the file, or -1: absent, or "max". */
static int64_t read_number(const char *path)
{
    char text[64];
    int64_t value;
    FILE *file = fopen(path, "re");
    int got = file && fgets(text, sizeof text, file);

    if (file)
        fclose(file);
    if (!got)
        return -1;
    text[strcspn(text, "\n")] = '\0';
    return str_to_i64(text, &value) < 0 ? -1 : value;
}

/* Bytes of files in memory.stat, 0 if it is not listed. */
static int64_t read_cache(const char *path, const struct names *names)
{
    FILE *file = fopen(path, "re");
    char line[256];
    int64_t total = 0, value;

    while (file && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');

        if (!space)
            continue;
        *space = '\0';
        space[1 + strcspn(space + 1, "\n")] = '\0';
        if ((!strcmp(line, names->inactive) || !strcmp(line, names->active)) &&
            str_to_i64(space + 1, &value) == 0)
            total += max_i64(0, value);
    }
    if (file)
        fclose(file);
    return total;
}

static int64_t room_of_group(const char *mount, const char *group, const struct names *names)
{
    char folder[1200], path[1300];

    snprintf(folder, sizeof folder, "%s%s%s", mount, names->folder, group);
    snprintf(path, sizeof path, "%s/%s", folder, names->limit);
    int64_t limit = read_number(path);
    snprintf(path, sizeof path, "%s/%s", folder, names->used);
    int64_t used = read_number(path);
    if (limit < 0 || used < 0)
        return -1;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    return max_i64(0, limit - used + min_i64(used, read_cache(path, names)));
}

static int64_t least(int64_t a, int64_t b)
{
    return a < 0 ? b : b < 0 ? a : min_i64(a, b);
}

/* "4:cpu,memory:/slurm/job_7" has the memory's group of version 1, "0::/job_7" all of version 2. */
static const struct names *which(const char *controllers)
{
    size_t length = strcspn(controllers, ":");

    if (length == 0)
        return &v2;
    for (const char *c = controllers; c < controllers + length; c += strcspn(c, ",:") + 1)
        if (strcspn(c, ",:") == 6 && !strncmp(c, "memory", 6))
            return &v1;
    return NULL;
}

int64_t available_memory_of_groups(const char *groups, const char *mount)
{
    char line[1024];
    FILE *file = fopen(groups, "re");
    int64_t room = -1;

    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':'), *group = colon ? strchr(colon + 1, ':') : NULL;
        const struct names *names = group ? which(colon + 1) : NULL;

        if (!names)
            continue;
        group++;
        group[strcspn(group, "\n")] = '\0';
        /* A limit may be set on every level; in a container only the upper ones may be seen. */
        for (;;) {
            room = least(room, room_of_group(mount, group, names));
            char *slash = strrchr(group, '/');
            if (!slash)
                break;
            *slash = '\0';
        }
    }
    if (file)
        fclose(file);
    return room;
}

int64_t available_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    long kib = -1;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %ld kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return least(kib < 0 ? -1 : (int64_t)kib * 1024,
                 available_memory_of_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
}
