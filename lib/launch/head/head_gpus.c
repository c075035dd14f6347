/*
 * head_gpus.c - ranks that lose their GPU, and what that means for the job
 *
 * A rank's slot has the driver's error number (Xid), written by its node's daemon. Most ranks that
 * lose their GPU exit by themselves with an unspecific CUDA error: the Xid says what happened and
 * whether the GPU can be used again. A rank that hangs in the driver instead is terminated after
 * RANK_GPU_GRACE_SECONDS; one that makes progress (NVLink recovers from some errors) is left alone.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "launch/head/head_impl.h"
#include "launch/watch/rank_gpu_impl.h"

/* The user is warned at once. */
static void tell(struct launch_head *head, int rank)
{
    struct head_rank *mine = &head->ranks[rank];
    char words[512];

    if (mine->gpu_is_told)
        return;
    mine->gpu_is_told = true;
    log_warn("rank %d on %s: %s", rank, head->nodes[mine->node].host,
             rank_gpu_death(&mine->slot, words, sizeof words));
}

/*
 * Whether some rank is stopped by a signal (one without its GPU could do nothing else, either), or
 * its daemon shows nothing of it.
 */
static int some_cannot_move(const struct launch_head *head, double now)
{
    for (int rank = 0; rank < head->n_ranks; rank++) {
        const struct head_rank *mine = &head->ranks[rank];
        bool is_stopped = head->watched[rank].stopped && !rank_gpu_is_broken(&mine->slot);

        if (mine->running && (is_stopped || head_is_blind(head, &head->nodes[mine->node], now)))
            return 1;
    }
    return 0;
}

/*
 * Ranks that wait for the one without GPU make no progress either, so the job hangs only if no rank
 * does. While a rank is stopped by a signal, or its daemon is, that cannot be decided.
 */
static int is_still(struct launch_head *head, double now)
{
    uint64_t beats = 0;

    for (int rank = 0; rank < head->n_ranks; rank++)
        beats += atomic_load(&head->ranks[rank].slot.beat);
    if (head->still_since <= 0 || beats != head->beats || some_cannot_move(head, now))
        head->still_since = now;
    head->beats = beats;
    return now >= head->still_since + RANK_GPU_GRACE_SECONDS;
}

/* Warn of running ranks whose GPU is broken; returns the first, -1: none. */
static int tell_broken(struct launch_head *head)
{
    int first = -1;

    for (int rank = 0; rank < head->n_ranks; rank++)
        if (head->ranks[rank].running && rank_gpu_is_broken(&head->ranks[rank].slot)) {
            tell(head, rank);
            first = first < 0 ? rank : first;
        }
    return first;
}

void head_watch_gpus(struct launch_head *head, double now)
{
    int broken = head->phase == RUNNING ? tell_broken(head) : -1;

    if (broken < 0)
        head->still_since = 0;
    else if (is_still(head, now))
        head_set_cause(head, &(struct death){ .kind = DEATH_GPU_HANG, .rank = broken });
}

void head_find_broken_gpu(struct launch_head *head)
{
    if (head->cause.rank >= 0 && rank_gpu_is_broken(&head->ranks[head->cause.rank].slot))
        return; /* it has been blamed */
    for (int rank = 0; rank < head->n_ranks; rank++)
        if (rank_gpu_is_broken(&head->ranks[rank].slot))
            head_set_cause(head, &(struct death){ .kind = DEATH_GPU, .rank = rank });
}
