/*
 * doctor_machine.c - the CPU and what our kernels make of it, memory
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "device/pool.h"
#include "doctor_impl.h"
#include "kernels/kernels.h"
#include "launch/cores.h"

enum { PROC_BYTES_MAX = 1 << 24, N_CORES_MAX = 4096 };

/* A small file of the kernel's as text in the arena, or "" . */
static const char *read_text(struct doctor *doctor, const char *path)
{
    struct err err = { 0 };
    char *data = NULL;
    size_t n_bytes = 0;

    if (file_read(path, PROC_BYTES_MAX, ERR_FAILED, &data, &n_bytes, &err) != 0)
        return "";
    const char *text = arena_strndup(doctor->arena, data, n_bytes);
    free(data);
    return text;
}

/* The rest of the first line that starts with key, behind its colon; NULL if there is none. */
static const char *line_of(struct doctor *doctor, const char *text, const char *key)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");

        if (str_starts_with(text, key)) {
            const char *colon = memchr(text, ':', length);
            if (colon != NULL) {
                colon += 1 + strspn(colon + 1, " \t");
                return arena_strndup(doctor->arena, colon, (size_t)(text + length - colon));
            }
        }
        text += length;
        text += *text == '\n';
    }
    return NULL;
}

static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = words; (at = strstr(at, word)) != NULL; at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

static int n_cores_allowed(void)
{
    int n = 1;
    cpu_set_t *set = CPU_ALLOC(N_CORES_MAX);
    size_t n_bytes = CPU_ALLOC_SIZE(N_CORES_MAX);

    if (set != NULL && sched_getaffinity(0, n_bytes, set) == 0)
        n = CPU_COUNT_S(n_bytes, set);
    if (set != NULL)
        CPU_FREE(set);
    return n;
}

static void probe_cores(struct doctor *doctor, const char *cpuinfo)
{
    const char *model = line_of(doctor, cpuinfo, "model name");
    const char *quota = read_text(doctor, "/sys/fs/cgroup/cpu.max");
    int allowed = n_cores_allowed();
    char *end = NULL, layout[128];
    long long limit = strtoll(quota, &end, 10);
    long long period = end == quota ? 0 : strtoll(end, NULL, 10);

    doctor_add(doctor, DOCTOR_OK, "cpu", NULL, "%s", model == NULL ? "unknown" : model);
    if (limit > 0 && period > 0 && limit < period * allowed)
        doctor_add(doctor, DOCTOR_WARNING, "cores",
                   "raise the container's CPU limit, or start no more threads than it grants",
                   "%d may be used, but a quota grants %.1f", allowed,
                   (double)limit / (double)period);
    else
        doctor_add(doctor, DOCTOR_OK, "cores", NULL, "%d of %ld may be used: %s", allowed,
                   sysconf(_SC_NPROCESSORS_ONLN), launch_cores_describe(layout, sizeof layout));
}

static void probe_isa(struct doctor *doctor, const char *cpuinfo)
{
    static const char *const wanted[] = { "avx2",        "fma",      "f16c",    "avx512f",
                                          "avx512_bf16", "amx_bf16", "amx_tile" };
    const char *flags = line_of(doctor, cpuinfo, "flags");
    struct str found = { 0 };

    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (flags != NULL && has_word(flags, wanted[i]))
            str_printf(&found, "%s%s", found.length == 0 ? "" : " ", wanted[i]);
    doctor_add(doctor, DOCTOR_OK, "instructions", NULL, "%s",
               found.length == 0 ? "none of the vector sets we know" : str_text(&found));
    str_release(&found);
}

/* What training would really use: the backend is created, queried and destroyed. */
static void probe_kernels(struct doctor *doctor)
{
    struct err err = { 0 };
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;
    const char *note = NULL;

    if (pool_create(&pool, 1, NULL, &err) != 0 ||
        kernels_cpu_create(&kernels, pool, &note, &err) != 0) {
        doctor_add(doctor, DOCTOR_PROBLEM, "kernels", "see the message", "%s", err.text);
    } else {
        doctor_add(doctor, DOCTOR_OK, "kernels", NULL, "%s", kernels_identity(kernels));
        if (note != NULL && note[0] != '\0')
            doctor_add(doctor, DOCTOR_NOTE, "bf16", NULL, "%s", note);
        kernels_destroy(kernels);
    }
    pool_destroy(pool);
}

static void probe_memory(struct doctor *doctor)
{
    const char *meminfo = read_text(doctor, "/proc/meminfo");
    const char *total = line_of(doctor, meminfo, "MemTotal");
    const char *available = line_of(doctor, meminfo, "MemAvailable");
    const char *limit = read_text(doctor, "/sys/fs/cgroup/memory.max");
    uint64_t n_total = total == NULL ? 0 : strtoull(total, NULL, 10) * 1024;
    uint64_t n_available = available == NULL ? 0 : strtoull(available, NULL, 10) * 1024;
    uint64_t n_limit = strtoull(limit, NULL, 10);
    char all[32], free_now[32], granted[32];

    str_bytes(all, sizeof all, n_total);
    str_bytes(free_now, sizeof free_now, n_available);
    if (n_available == 0)
        doctor_add(doctor, DOCTOR_NOTE, "memory", NULL, "cannot be told");
    else if (n_available < (512u << 20))
        doctor_add(doctor, DOCTOR_WARNING, "memory",
                   "the quickstart's model needs 512 MiB: end something else", "%s free of %s",
                   free_now, all);
    else
        doctor_add(doctor, DOCTOR_OK, "memory", NULL, "%s free of %s", free_now, all);
    if (n_limit > 0 && n_limit < n_total)
        doctor_add(doctor, DOCTOR_NOTE, "memory limit", NULL, "this container gets %s",
                   str_bytes(granted, sizeof granted, n_limit));
}

void doctor_probe_machine(struct doctor *doctor)
{
    const char *cpuinfo = read_text(doctor, "/proc/cpuinfo");

    doctor->part = "machine";
    probe_cores(doctor, cpuinfo);
    probe_isa(doctor, cpuinfo);
    probe_kernels(doctor);
    probe_memory(doctor);
    doctor_probe_gpus(doctor);
}
