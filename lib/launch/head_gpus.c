/*
 * head_gpus.c - ranks that lose their GPU, and what that means for the job
 *
 * The driver's error number (Xid) comes in the rank's slot, from its node. Most such ranks end by
 * themselves, with an error of CUDA's that says little: the number says what happened and whether
 * the GPU can be used again. One that hangs in the driver instead is taken for dead after a while; one that
 * goes on all the same (some errors of NVLink are overcome) is left alone.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "launch/head_impl.h"
#include "launch/rank_gpu_impl.h"

static int is_of_list(const struct head_node *node)
{
    return node->host_index >= 0;
}

/* A broken GPU makes its host unfit; where that is the only machine, nothing can be begun again. */
static void judge_restart(struct head *head, const struct head_rank *rank)
{
    struct head_node *node = &head->nodes[rank->node];

    if (rank_gpu_is_broken(&rank->slot)) {
        node->is_unfit = 1;
        head->cause.is_verdict = !is_of_list(node);
    } else if (rank_gpu_is_reusable(&rank->slot)) {
        head->cause.is_verdict = 0;
    }
}

void head_blame_gpu(struct head *head)
{
    const struct head_rank *rank = &head->ranks[head->cause.rank];
    size_t length = strlen(head->cause.text);
    char words[512];

    if (!*rank_gpu_death(&rank->slot, words, sizeof words))
        return;
    snprintf(head->cause.text + length, sizeof head->cause.text - length, "; %s", words);
    judge_restart(head, rank);
}

/* First seen: people hear of it at once. */
static void note(const struct head *head, int rank)
{
    const struct head_rank *mine = &head->ranks[rank];
    char words[512];

    log_warn("rank %d on %s: %s", rank, head->nodes[mine->node].host,
             rank_gpu_death(&mine->slot, words, sizeof words));
}

void head_watch_gpus(struct head *head, double now)
{
    for (int rank = 0; rank < head->n_ranks && head->phase == RUNNING; rank++) {
        struct head_rank *mine = &head->ranks[rank];

        if (!mine->running || !rank_gpu_is_broken(&mine->slot))
            continue;
        uint64_t beat = atomic_load(&mine->slot.beat);

        if (mine->gpu_broken_since <= 0)
            note(head, rank);
        if (mine->gpu_broken_since <= 0 || beat != mine->gpu_beat)
            mine->gpu_broken_since = now;
        else if (now >= mine->gpu_broken_since + RANK_GPU_GRACE_SECONDS)
            head_set_cause(head, WEIGHT_OWN, rank, ERR_DEVICE, "lost its GPU and does not end");
        mine->gpu_beat = beat;
    }
}

double head_gpus_due(const struct head *head)
{
    double due = 1e300;

    for (int rank = 0; rank < head->n_ranks; rank++)
        if (head->ranks[rank].running && head->ranks[rank].gpu_broken_since > 0)
            due = fmin(due, head->ranks[rank].gpu_broken_since + RANK_GPU_GRACE_SECONDS);
    return due;
}

void head_find_broken_gpu(struct head *head)
{
    for (int rank = 0; rank < head->n_ranks; rank++)
        if (head->ranks[rank].running && rank_gpu_is_broken(&head->ranks[rank].slot)) {
            head_set_cause(head, WEIGHT_OWN, rank, ERR_DEVICE, "lost its GPU");
            return;
        }
}
