/*
 * suggest.c - planning the alternatives of a job that does not fit
 *
 * In the order of what they cost: sharding optimizer states changes neither bits nor speed much,
 * recomputation costs a third of the FLOPs, gradients of bf16 and a smaller micro-batch change the
 * numerics.
 */
#include "plan/suggest.h"

#include "base/num.h"
#include "plan/programs.h"

enum { N_SHOWN = 3 };

struct fit {
    const struct job *job;
    struct kernels *kernels;
    size_t available, smallest;
    int n_found;
    struct str *out, smallest_text;
};

/* What job takes a rank, of the pipeline's the largest, or SIZE_MAX if it cannot be compiled. */
static size_t plan_bytes(const struct job *job, struct kernels *kernels)
{
    size_t most = 0;

    for (int pp_rank = 0; pp_rank < job->parallel.pp; pp_rank++) {
        struct program program;
        struct err err;
        struct programs_request request = { .job = job, .kernels = kernels, .pp_rank = pp_rank };
        int failed = programs_compile(&program, &request, &err) < 0;
        size_t n_bytes = failed ? SIZE_MAX : program_memory_bytes(&program);

        program_release(&program);
        most = n_bytes > most ? n_bytes : most;
    }
    return most;
}

static void describe_change(const struct job *from, const struct job *to, struct str *text)
{
    if (to->parallel.zero != from->parallel.zero)
        str_printf(text, "parallel.zero: %d", to->parallel.zero);
    if (to->recompute != from->recompute)
        str_printf(text, "%srecompute: %s", text->length ? " with " : "",
                   choice_word(recompute_choices, (int)to->recompute));
    if (to->train.gradient_dtype != from->train.gradient_dtype)
        str_printf(text, "%strain.gradient_dtype: %s", text->length ? " with " : "",
                   dtype_name(to->train.gradient_dtype));
    if (to->train.micro_batch != from->train.micro_batch)
        str_printf(text, "%strain.micro_batch: %d", text->length ? " with " : "",
                   to->train.micro_batch);
}

/* Plan the job; returns 1, and adds it to the suggestion, if it fits. */
static int try_job(struct fit *fit, const struct job *job)
{
    struct err err;
    struct str text = { 0 };
    char size[32];

    if (job_check_built(job, &err) < 0)
        return 0;
    size_t n_bytes = plan_bytes(job, fit->kernels);
    describe_change(fit->job, job, &text);
    if (n_bytes < fit->smallest) {
        fit->smallest = n_bytes;
        str_clear(&fit->smallest_text);
        str_add(&fit->smallest_text, str_text(&text));
    }
    int fits = n_bytes <= fit->available;
    if (fits && fit->n_found < N_SHOWN)
        str_printf(fit->out, "%s%s needs %s", fit->n_found ? ", or " : "", str_text(&text),
                   str_bytes(size, sizeof size, n_bytes));
    fit->n_found += fits;
    str_release(&text);
    return fits;
}

/* The largest smaller micro-batch that fits, with whatever else job has changed. */
static int try_micro_batches(struct fit *fit, struct job job)
{
    int per_rank = job.train.micro_batch * job.n_micro_batches;

    if (job.parallel.micro_batches.n)
        return 0;
    for (int micro = job.train.micro_batch / 2; micro >= 1; micro /= 2) {
        if (per_rank % micro != 0)
            continue;
        job.train.micro_batch = micro;
        job.n_micro_batches = per_rank / micro;
        if (try_job(fit, &job))
            return 1;
    }
    return 0;
}

void suggest_changes(const struct job *job, struct kernels *kernels, size_t planned,
                     size_t available, struct str *out)
{
    struct fit fit = {
        .job = job, .kernels = kernels, .available = available, .smallest = planned, .out = out
    };
    struct job changed = *job;
    char size[32];

    if (job->parallel.dp > 1 && job->parallel.zero == 0) {
        changed.parallel.zero = 1;
        try_job(&fit, &changed);
        changed = *job;
    }
    if (job->recompute != RECOMPUTE_FULL) {
        changed.recompute = RECOMPUTE_FULL;
        try_job(&fit, &changed);
    }
    changed = *job;
    int can_halve = job->train.dtype == DTYPE_BF16 && job->train.gradient_dtype == DTYPE_F32;
    if (can_halve) {
        changed.train.gradient_dtype = DTYPE_BF16;
        try_job(&fit, &changed);
        changed = *job;
    }
    try_micro_batches(&fit, *job);
    if (fit.n_found == 0) {
        changed.recompute = RECOMPUTE_FULL;
        changed.parallel.zero = max_int(job->parallel.dp > 1, job->parallel.zero);
        if (!try_job(&fit, &changed))
            try_micro_batches(&fit, changed);
    }
    if (fit.n_found == 0 && job->parallel.dp > 1 && job->parallel.zero < 3) {
        changed.parallel.zero = 3;
        if (!job->parallel.gradient_sum_given)
            changed.parallel.gradient_sum = GRADIENT_SUM_EARLY;
        if (!try_job(&fit, &changed))
            try_micro_batches(&fit, changed);
    }
    if (fit.n_found == 0 && can_halve) {
        changed.train.gradient_dtype = DTYPE_BF16;
        if (!try_job(&fit, &changed))
            try_micro_batches(&fit, changed);
    }
    if (fit.n_found == 0 && fit.smallest < planned)
        str_printf(out, "even %s needs %s: use a smaller model or more memory",
                   str_text(&fit.smallest_text), str_bytes(size, sizeof size, fit.smallest));
    else if (fit.n_found == 0)
        str_add(out, "use a smaller model or more memory");
    str_release(&fit.smallest_text);
}

int suggest_check(const struct job *job, struct kernels *kernels, size_t planned, size_t available,
                  struct err *err)
{
    struct str hint = { 0 };
    char a[32], b[32];

    if (!available || planned <= available)
        return 0;
    suggest_changes(job, kernels, planned, available, &hint);
    err_set(
        err, ERR_DEVICE,
        "the plan needs %s per rank, but %s are free (hint: %s%s; `lmtrain plan` shows the table)",
        str_bytes(a, sizeof a, planned), str_bytes(b, sizeof b, available), str_text(&hint),
        job->parallel.dp * job->parallel.tp * job->parallel.pp > 1 ? "; or fewer ranks on this node"
                                                                   : "");
    str_release(&hint);
    return -1;
}
