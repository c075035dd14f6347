/*
 * watcher_status.c - the ranks of a node under srun and mpirun, for `lmtrain watch`:
 * status/ranks-HOST.json
 */
#include <stdio.h>

#include "launch/watch/watcher_process_impl.h"
#include "progress/status_file.h"

/* The state of a rank that is not there any more, or of one that is. */
static const char *state_of(const struct hang_rank *rank)
{
    if (rank->running)
        return "running";
    return atomic_load(&rank->slot->end) == PROGRESS_LEFT ? "left" : "ended";
}

static bool has_file(struct watcher *w)
{
    char path[4096];

    if (w->status || !w->start->options.status_folder || w->phase != WATCHING)
        return w->status != NULL;
    snprintf(path, sizeof path, "%s/ranks-%s.json", w->start->options.status_folder, w->host);
    w->status = status_file_open(path, NULL, NULL);
    return w->status != NULL;
}

static void add_rank(struct watcher *w, int i, double now, struct str *out)
{
    const struct progress_slot *slot = w->ranks[i].slot;
    uint64_t beat = atomic_load(&slot->beat);
    char gpu[512];

    if (beat != w->heard_beats[i])
        w->heard_at[i] = now;
    w->heard_beats[i] = beat;
    status_look_at_memory(&w->page->places[i].slot, w->ranks[i].running ? w->ranks[i].pid : 0);
    status_add_rank(out, &(struct status_rank){ .rank = w->ranks[i].world_rank,
                                                .state = state_of(&w->ranks[i]),
                                                .heard_s = now - w->heard_at[i],
                                                .gpu = rank_gpu_describe(slot, gpu, sizeof gpu),
                                                .slot = slot });
}

/* The rank that follows this one in the world; ranks are in the order in which they came. -1: the
 * last one. */
static int next_rank(const struct watcher *w, int rank)
{
    int next = -1;

    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].world_rank > rank &&
            (next < 0 || w->ranks[i].world_rank < w->ranks[next].world_rank))
            next = i;
    return next;
}

void watcher_put_status(struct watcher *w, double now)
{
    struct str out = { 0 };

    if (!has_file(w))
        return;
    str_add(&out, ",\"host\":\"");
    str_add_utf8(&out, w->host, strlen(w->host));
    str_add(&out, "\",\"ranks\":[");
    int first = next_rank(w, -1);
    for (int i = first; i >= 0; i = next_rank(w, w->ranks[i].world_rank)) {
        str_add(&out, i == first ? "" : ",");
        add_rank(w, i, now, &out);
    }
    str_add(&out, "]");
    status_file_put(w->status, str_text(&out));
    str_release(&out);
}
