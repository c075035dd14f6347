/*
 * status_file.c - the thread that writes a status file, and a rank's slot as JSON
 */
#include "progress/status_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/thread.h"

struct status_file {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *path, *part;
    struct str members; /* under the lock */
    double said_at;
    bool is_over, has_ended;
    status_add_fn add;
    void *context;
};

double status_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the thread ---- */

static struct timespec after(double seconds)
{
    double at = clock_seconds() + seconds;

    return (struct timespec){ .tv_sec = (time_t)at,
                              .tv_nsec = (long)((at - (double)(time_t)at) * 1e9) };
}

/* Without a word where it cannot be: `watch` says how old the file is. */
static void write_file(const struct status_file *file, const struct str *text)
{
    struct err ignored;
    int fd = file_open_write(file->part, O_WRONLY | O_TRUNC, &ignored);

    if (fd < 0)
        return;
    size_t left = file_write_all(fd, text->data, text->length);
    if (close(fd) < 0 || left || rename(file->part, file->path) < 0)
        unlink(file->part);
}

static void *write_on(void *argument)
{
    struct status_file *file = argument;
    struct str text = { 0 };

    pthread_mutex_lock(&file->lock);
    for (bool is_last = false; !is_last;) {
        struct timespec next = after(STATUS_SECONDS);

        is_last = file->is_over;
        str_clear(&text);
        str_printf(&text, "{\"written_at\":%.3f,\"said_at\":%.3f%s", status_now(), file->said_at,
                   str_text(&file->members));
        bool has_text = file->members.length > 0;
        pthread_mutex_unlock(&file->lock);
        if (file->add)
            file->add(file->context, &text);
        str_add(&text, "}\n");
        if (has_text || file->add)
            write_file(file, &text);
        pthread_mutex_lock(&file->lock);
        while (!is_last && !file->is_over &&
               pthread_cond_timedwait(&file->changed, &file->lock, &next) != ETIMEDOUT)
            ;
    }
    str_release(&text);
    file->has_ended = true;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
    return NULL;
}

/* ---- its owner ---- */

static void release(struct status_file *file)
{
    pthread_cond_destroy(&file->changed);
    pthread_mutex_destroy(&file->lock);
    str_release(&file->members);
    free(file->path);
    free(file->part);
    free(file);
}

struct status_file *status_file_open(const char *path, status_add_fn add, void *context)
{
    struct status_file *file = calloc(1, sizeof *file);
    struct str part = { 0 };
    pthread_condattr_t monotonic;

    if (!file)
        return NULL;
    str_printf(&part, "%s.part", path);
    file->path = strdup(path);
    file->part = part.data;
    file->add = add;
    file->context = context;
    CHECK(file->path);
    pthread_mutex_init(&file->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&file->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(NULL, NULL, write_on, file)) {
        release(file);
        return NULL;
    }
    return file;
}

void status_file_put(struct status_file *file, const char *members)
{
    if (!file)
        return;
    pthread_mutex_lock(&file->lock);
    str_clear(&file->members);
    str_add(&file->members, members);
    file->said_at = status_now();
    pthread_mutex_unlock(&file->lock);
}

void status_file_close(struct status_file *file, double seconds)
{
    if (!file)
        return;
    struct timespec until = after(seconds);

    pthread_mutex_lock(&file->lock);
    file->is_over = true;
    pthread_cond_broadcast(&file->changed);
    while (!file->has_ended &&
           pthread_cond_timedwait(&file->changed, &file->lock, &until) != ETIMEDOUT)
        ;
    bool has_ended = file->has_ended;
    pthread_mutex_unlock(&file->lock);
    if (has_ended)
        release(file);
}

/* ---- ranks ---- */

int64_t status_resident_bytes(pid_t pid)
{
    char path[64];
    long long pages = 0;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *statm = fopen(path, "re");
    if (!statm)
        return 0;
    if (fscanf(statm, "%*d %lld", &pages) != 1)
        pages = 0;
    fclose(statm);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

int64_t status_peak_bytes(pid_t pid)
{
    static const char key[] = "VmHWM:";
    char path[64], line[256];
    int64_t kib = 0;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *status = fopen(path, "re");
    if (!status)
        return 0;
    while (!kib && fgets(line, sizeof line, status))
        if (!strncmp(line, key, strlen(key)))
            kib = strtoll(line + strlen(key), NULL, 10);
    fclose(status);
    return kib * 1024;
}

static void raise_peak(struct progress_slot *slot, int64_t n_bytes)
{
    if (n_bytes > atomic_load(&slot->peak_bytes))
        atomic_store(&slot->peak_bytes, n_bytes);
}

void status_look_at_peak(struct progress_slot *slot, pid_t pid)
{
    raise_peak(slot, status_peak_bytes(pid));
}

/* The two are read one after the other: the peak is never below what lies in RAM. */
void status_look_at_memory(struct progress_slot *slot, pid_t pid)
{
    int64_t resident = pid ? status_resident_bytes(pid) : 0;

    atomic_store(&slot->resident_bytes, resident);
    raise_peak(slot, resident);
    if (pid)
        status_look_at_peak(slot, pid);
}

static void add_text(struct str *out, const char *key, const char *text)
{
    if (!text || !*text)
        return;
    str_printf(out, ",\"%s\":", key);
    json_add_string(out, text);
}

/* The text may be torn: what does not print, or is no ASCII, is a question mark. */
static void add_doing(struct str *out, const struct progress_slot *slot)
{
    char text[PROGRESS_TEXT_BYTES + 1];

    memcpy(text, slot->text, PROGRESS_TEXT_BYTES);
    text[PROGRESS_TEXT_BYTES] = '\0';
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    add_text(out, "doing", atomic_load(&slot->beat) ? text : "starting");
}

void status_add_rank(struct str *out, const struct status_rank *r)
{
    const struct progress_slot *slot = r->slot;
    int64_t resident = atomic_load(&slot->resident_bytes), peak = atomic_load(&slot->peak_bytes);
    int micro_batch = atomic_load(&slot->micro_batch), pid = atomic_load(&slot->pid);
    bool is_in_step = atomic_load(&slot->op) >= 0;

    str_printf(out, "{\"rank\":%d", r->rank);
    add_text(out, "host", r->host);
    if (pid > 0)
        str_printf(out, ",\"pid\":%d", pid);
    add_text(out, "state", r->state);
    if (atomic_load(&slot->step) > 0)
        str_printf(out, ",\"step\":%lld", (long long)atomic_load(&slot->step));
    if (is_in_step && micro_batch >= 0)
        str_printf(out, ",\"micro_batch\":%d", micro_batch);
    add_doing(out, slot);
    str_printf(out, ",\"waits\":%s", atomic_load(&slot->waits) ? "true" : "false");
    if (resident > 0)
        str_printf(out, ",\"resident_bytes\":%lld", (long long)resident);
    if (peak > 0)
        str_printf(out, ",\"peak_bytes\":%lld", (long long)peak);
    str_printf(out, ",\"heard_s\":%.1f", r->heard_s);
    add_text(out, "gpu", r->gpu);
    str_add_char(out, '}');
}
