/*
 * head_status.c - what the head knows of all ranks, for `lmtrain watch`: status/ranks.json
 *
 * Twice a second, for jobs of many ranks less often. The folder is made by rank 0
 * (status_file.h); a job without a run folder has no status.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "launch/head/head_impl.h"
#include "launch/watch/rank_gpu_impl.h"
#include "progress/status_file.h"

/* So many ranks are described in a second: some 200 bytes each. */
#define RANKS_PER_SECOND 512.0
#define CLOSE_SECONDS 0.2

struct head_status {
    struct status_file *file;
    double next;
    uint64_t *beats;  /* of each rank, as they were when it was heard last */
    double *heard_at; /* when they had changed */
};

void head_open_status(struct launch_head *head)
{
    if (!head->options->output)
        return;
    struct head_status *status = arena_array(&head->arena, struct head_status, 1);
    const char *path =
        arena_printf(&head->arena, "%s/" STATUS_FOLDER "/ranks.json", head->options->output);

    *status = (struct head_status){ 0 };
    status->beats = arena_array(&head->arena, uint64_t, head->n_ranks);
    status->heard_at = arena_array(&head->arena, double, head->n_ranks);
    for (int rank = 0; rank < head->n_ranks; rank++) {
        status->beats[rank] = 0;
        status->heard_at[rank] = clock_seconds();
    }
    status->file = status_file_open(path, NULL, NULL);
    head->status = status;
}

static void add_rank(const struct launch_head *head, int rank, double now, struct str *out)
{
    const struct head_rank *mine = &head->ranks[rank];
    struct head_status *status = head->status;
    uint64_t beat = atomic_load(&mine->slot.beat);
    char gpu[512];

    if (beat != status->beats[rank])
        status->heard_at[rank] = now;
    status->beats[rank] = beat;
    str_add(out, rank ? "," : "");
    status_add_rank(out,
                    &(struct status_rank){ .rank = rank,
                                           .host = head->nodes[mine->node].host,
                                           .state = mine->running    ? "running"
                                                    : mine->in_order ? "left"
                                                                     : "ended",
                                           .heard_s = now - status->heard_at[rank],
                                           .gpu = rank_gpu_describe(&mine->slot, gpu, sizeof gpu),
                                           .slot = &mine->slot });
}

static void put(const struct launch_head *head, double now)
{
    struct str out = { 0 };

    str_printf(&out, ",\"attempt\":%d,\"ranks\":[", head->attempt);
    for (int rank = 0; rank < head->n_ranks; rank++)
        add_rank(head, rank, now, &out);
    str_add(&out, "]");
    status_file_put(head->status->file, str_text(&out));
    str_release(&out);
    head->status->next = now + fmax(STATUS_SECONDS, head->n_ranks / RANKS_PER_SECOND);
}

double head_put_status(struct launch_head *head, double now)
{
    if (!head->status)
        return 1e300;
    if (now >= head->status->next)
        put(head, now);
    return head->status->next;
}

void head_close_status(struct launch_head *head)
{
    if (!head->status)
        return;
    put(head, clock_seconds());
    status_file_close(head->status->file, CLOSE_SECONDS);
    head->status = NULL;
}
