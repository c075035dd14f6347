/*
 * suggest.c - planning the alternatives of a job that does not fit
 *
 * In the order of what they cost: sharding optimizer states changes neither bits nor speed much,
 * recomputation costs a third of the FLOPs, gradients of bf16, split masters and a smaller
 * micro-batch change the numerics. What memory_fit.h chooses changes no bit, but takes seconds to
 * find.
 */
#include "plan/suggest.h"

#include <string.h>

#include "base/num.h"
#include "config/job_layout.h"
#include "plan/changes.h"
#include "plan/fit.h"
#include "plan/memory_fit.h"
#include "plan/programs.h"

enum { N_TIMES_MAX = 64, N_TP_MAX = 8 };

struct fit {
    const struct job *job;
    struct kernels *kernels;
    size_t available;
    struct suggestions *found;
    struct arena *arena;
};

/* What job takes a rank, of the pipeline's the largest, or SIZE_MAX if it cannot be compiled.
 * is_enough: or the first that is more than that. */
static size_t plan_bytes(const struct job *job, struct kernels *kernels, size_t is_enough)
{
    size_t most = 0;

    for (int pp_rank = 0; pp_rank < job->parallel.pp && most <= is_enough; pp_rank++) {
        struct program program;
        struct err err;
        struct programs_request request = { .job = job, .kernels = kernels, .pp_rank = pp_rank };
        int failed = programs_compile(&program, &request, &err) < 0;
        size_t n_bytes = failed ? SIZE_MAX : plan_needed_bytes(&program, kernels);

        program_release(&program);
        most = n_bytes > most ? n_bytes : most;
    }
    return most;
}

static void add(struct fit *fit, const char *change, size_t n_bytes, size_t host_bytes)
{
    struct suggestions *found = fit->found;

    if (found->n == SUGGEST_MAX)
        return;
    found->found[found->n].change = change;
    found->found[found->n].host_bytes = host_bytes;
    found->found[found->n++].bytes = n_bytes;
}

/* Plan the job; returns true, and adds it to the suggestions, if it fits. */
static bool try_job(struct fit *fit, const struct job *job)
{
    struct err err;
    struct str text = { 0 };

    if (job_check_built(job, &err) < 0)
        return false;
    size_t n_bytes = plan_bytes(job, fit->kernels, SIZE_MAX);
    changes_describe(fit->job, job, &text);
    const char *change = arena_strdup(fit->arena, str_text(&text));
    if (n_bytes < fit->found->smallest_bytes) {
        fit->found->smallest = change;
        fit->found->smallest_bytes = n_bytes;
    }
    if (n_bytes <= fit->available)
        add(fit, change, n_bytes, 0);
    str_release(&text);
    return n_bytes <= fit->available;
}

/* The largest smaller micro-batch that fits, with whatever else job has changed. */
static bool try_micro_batches(struct fit *fit, struct job job)
{
    int per_rank = job.train.micro_batch * job.n_micro_batches;

    if (job.parallel.micro_batches.n)
        return false;
    for (int micro = job.train.micro_batch / 2; micro >= 1; micro /= 2) {
        if (per_rank % micro != 0)
            continue;
        job.train.micro_batch = micro;
        job.n_micro_batches = per_rank / micro;
        if (try_job(fit, &job))
            return true;
    }
    return false;
}

/* Whether a micro-batch cannot be less, but for a part of its sequence. */
static bool is_one_long_sequence(const struct job *job)
{
    return job->train.micro_batch == 1 && !job->parallel.micro_batches.n &&
           job->data.seq_len >= PLAN_LONG_SEQUENCE;
}

/* The least ranks among which sequences are divided so that it fits, of those that have sequences
 * of their own. */
static void try_parts(struct fit *fit)
{
    struct job changed = *fit->job;
    struct err err;

    if (!is_one_long_sequence(fit->job))
        return;
    changed.parallel.dp_given = 1;
    for (int n = 2; fit->job->parallel.dp % n == 0; n *= 2) {
        changed.parallel.cp = fit->job->parallel.cp * n;
        changed.parallel.dp = fit->job->parallel.dp / n;
        struct job resolved = changed;
        if (layout_divides_sequences(&changed) &&
            !job_resolve(&resolved, fit->job->world_size, fit->arena, &err) &&
            try_job(fit, &resolved))
            return;
    }
}

/* More tensor-parallel ranks in place of parts of sequences, within a node: of the model each rank
 * has less, of sequences as much. */
static void try_tensor(struct fit *fit)
{
    const struct job *job = fit->job;
    struct err err;

    for (int n = 2; job->parallel.cp % n == 0 && job->parallel.tp * n <= N_TP_MAX; n *= 2) {
        struct job changed = *job;

        changed.parallel.cp /= n;
        changed.parallel.tp *= n;
        if (!job->parallel.cp_sizes.ulysses &&
            !job_check_tp(&job->model, changed.parallel.tp, "tp", &err) &&
            layout_divides_sequences(&changed) &&
            !job_resolve(&changed, job->world_size, fit->arena, &err) && try_job(fit, &changed))
            return;
    }
}

static void shard_all(struct job *job)
{
    job->parallel.zero = 3;
    job->parallel.gradient_sum = job_gradient_sum(job, 3);
}

static bool can_halve_gradients(const struct job *job)
{
    return job->train.dtype == DTYPE_BF16 && job->train.gradient_dtype == DTYPE_F32;
}

static bool can_split_masters(const struct job *job)
{
    return job->train.dtype == DTYPE_BF16 && job->optimizer.states == DTYPE_F32 &&
           job->optimizer.masters == MASTERS_WHOLE;
}

/* One at a time. */
static void try_changes(struct fit *fit)
{
    struct job changed = *fit->job;

    if (changed.parallel.dp > 1 && changed.parallel.zero == 0) {
        changed.parallel.zero = 1;
        try_job(fit, &changed);
        changed = *fit->job;
    }
    if (changed.recompute != RECOMPUTE_FULL) {
        changed.recompute = RECOMPUTE_FULL;
        try_job(fit, &changed);
        changed = *fit->job;
    }
    if (changed.parallel.dp > 1 && changed.parallel.zero < 3) {
        shard_all(&changed);
        try_job(fit, &changed);
        changed = *fit->job;
    }
    if (can_halve_gradients(&changed)) {
        changed.train.gradient_dtype = DTYPE_BF16;
        try_job(fit, &changed);
        changed = *fit->job;
    }
    if (can_split_masters(&changed)) {
        changed.optimizer.masters = MASTERS_SPLIT;
        changed.optimizer.weight_rounding = WEIGHT_ROUNDING_HALF_AWAY;
        try_job(fit, &changed);
    }
    try_micro_batches(fit, *fit->job);
    try_parts(fit);
    try_tensor(fit);
}

/* One more at a time, until it fits. */
static void try_together(struct fit *fit)
{
    struct job changed = *fit->job;

    changed.recompute = RECOMPUTE_FULL;
    changed.parallel.zero = max_int(changed.parallel.dp > 1, changed.parallel.zero);
    if (try_job(fit, &changed) || try_micro_batches(fit, changed))
        return;
    if (changed.parallel.dp > 1 && changed.parallel.zero < 3) {
        shard_all(&changed);
        if (try_job(fit, &changed) || try_micro_batches(fit, changed))
            return;
    }
    if (can_halve_gradients(&changed)) {
        changed.train.gradient_dtype = DTYPE_BF16;
        if (!try_job(fit, &changed))
            try_micro_batches(fit, changed);
    }
}

/* ---- more ranks ---- */

static bool try_ranks(struct fit *fit, struct job job, int n_ranks)
{
    struct str text = { 0 };
    struct err err;

    if (job_resolve(&job, n_ranks, fit->arena, &err))
        return false;
    size_t n_bytes = plan_bytes(&job, fit->kernels, fit->available);
    if (n_bytes <= fit->available) {
        changes_describe(fit->job, &job, &text);
        add(fit, arena_strdup(fit->arena, str_text(&text)), n_bytes, 0);
    }
    str_release(&text);
    return n_bytes <= fit->available;
}

/* So many times the ranks: shards of states, else more of tp, within a node, or more stages, or
 * parts of long sequences. */
static bool try_times(struct fit *fit, const struct job *job, int times)
{
    int n_ranks = job->world_size * times;
    struct job changed = *job;

    changed.parallel.dp = job->parallel.dp * times;
    changed.parallel.dp_given = 1;
    if (job->parallel.zero && try_ranks(fit, changed, n_ranks))
        return true;
    for (int tp = min_int(times, N_TP_MAX / job->parallel.tp); tp >= 1; tp /= 2) {
        changed = *job;
        changed.parallel.dp_given = 1;
        changed.parallel.tp *= tp;
        changed.parallel.pp *= times / tp;
        if (try_ranks(fit, changed, n_ranks))
            return true;
    }
    changed = *job;
    changed.parallel.dp_given = 1;
    changed.parallel.cp *= times;
    return is_one_long_sequence(job) && layout_divides_sequences(&changed) &&
           try_ranks(fit, changed, n_ranks);
}

/* ---- what is chosen ---- */

/* Adds the job to the suggestions if it fits with the least that memory_fit.h can choose. */
static void try_choice(struct fit *fit, const struct job *job)
{
    const struct memory_fit_request request = { .job = job,
                                                .kernels = fit->kernels,
                                                .device_bytes = (int64_t)fit->available,
                                                .takes_least = true,
                                                .is_quick = true };
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct memory_fit found;
    struct err err;
    int64_t device = 0, host = 0;

    int status = memory_fit(&found, &request, &arena, &err);
    for (int i = 0; i < job->parallel.pp && !status; i++) {
        device = max_i64(device, found.ranks[i].device_bytes);
        host = max_i64(host, found.ranks[i].host_bytes);
    }
    if (!status && device <= (int64_t)fit->available) {
        changes_describe(fit->job, job, &text);
        add(fit, arena_strdup(fit->arena, str_text(&text)), (size_t)device, (size_t)host);
    }
    str_release(&text);
    arena_release(&arena);
}

static bool is_found(const struct fit *fit, const char *change)
{
    int i = 0;

    while (i < fit->found->n && strcmp(fit->found->found[i].change, change) != 0)
        i++;
    return i < fit->found->n;
}

/* Beside memory of the host's own: where that is the device's, what leaves it makes no room.
 * Choosing what is computed again is enough where computing all of it is. */
static void try_choices(struct fit *fit)
{
    struct job changed = *fit->job;

    if (!kernels_are_gpu(fit->kernels) || fit->job->memory.offload != OFFLOAD_NONE)
        return;
    changed.keep_sets = (struct layer_keep_sets){ NULL, NULL };
    changed.offload = NULL;
    changed.recompute = RECOMPUTE_AUTO;
    changed.recompute_ops = (struct bitset){ { 0 } };
    memset(&changed.recompute_layers, 0, sizeof changed.recompute_layers);
    if (fit->job->recompute == RECOMPUTE_AUTO || !is_found(fit, "recompute: full"))
        changed.memory.offload = OFFLOAD_AUTO;
    try_choice(fit, &changed);
}

void suggest_find(struct suggestions *suggestions, const struct job *job, struct kernels *kernels,
                  size_t planned, size_t available, int n_ranks_max, struct arena *arena)
{
    struct fit fit = {
        .job = job, .kernels = kernels, .available = available, .found = suggestions, .arena = arena
    };

    *suggestions = (struct suggestions){ .smallest_bytes = planned };
    try_changes(&fit);
    if (!suggestions->n)
        try_together(&fit);
    struct job with = *job;
    if (!suggestions->n) {
        with.recompute = RECOMPUTE_FULL;
        with.parallel.zero = max_int(1, job->parallel.zero);
    }
    for (int times = 2; times <= N_TIMES_MAX && job->world_size <= n_ranks_max / times; times *= 2)
        if (try_times(&fit, &with, times))
            break;
    try_choices(&fit);
}

/* ---- words ---- */

void suggest_print(const struct suggestions *suggestions, struct str *out)
{
    char size[32];

    for (int i = 0; i < suggestions->n; i++) {
        str_printf(out, "%s%s needs %s", i ? ", or " : "", suggestions->found[i].change,
                   str_bytes(size, sizeof size, suggestions->found[i].bytes));
        if (suggestions->found[i].host_bytes)
            str_printf(out, " and %s of the host's memory",
                       str_bytes(size, sizeof size, suggestions->found[i].host_bytes));
    }
    if (!suggestions->n && suggestions->smallest)
        str_printf(out, "even %s needs %s: use a smaller model or more memory",
                   suggestions->smallest,
                   str_bytes(size, sizeof size, suggestions->smallest_bytes));
    else if (!suggestions->n)
        str_add(out, "use a smaller model or more memory");
}

int suggest_check(const struct job *job, struct kernels *kernels, size_t planned, size_t available,
                  struct err *err)
{
    struct suggestions suggestions;
    struct arena arena = { 0 };
    struct str hint = { 0 };
    char a[32], b[32];

    if (!available || planned <= available)
        return 0;
    suggest_find(&suggestions, job, kernels, planned, available, 0, &arena);
    suggest_print(&suggestions, &hint);
    err_set(
        err, ERR_DEVICE,
        "the plan needs %s per rank, but %s are free (hint: %s%s; `lmtrain plan` shows the table)",
        str_bytes(a, sizeof a, planned), str_bytes(b, sizeof b, available), str_text(&hint),
        job->parallel.dp * job->parallel.tp * job->parallel.pp > 1 ? "; or fewer ranks on this node"
                                                                   : "");
    str_release(&hint);
    arena_release(&arena);
    return -1;
}
