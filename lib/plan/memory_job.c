/*
 * memory_job.c - whether a job leaves memory to be chosen, and the job with the choice
 */
#include "plan/early_layers.h"
#include "plan/memory_fit.h"
#include "plan/programs.h"

static bool is_chosen(const struct job *job)
{
    return job->memory.offload != OFFLOAD_NONE || job->recompute == RECOMPUTE_AUTO ||
           job->memory.device_bytes > 0;
}

/* Whether buckets are gathered ahead if they fit. */
static bool may_prefetch(const struct job *job)
{
    return job->parallel.prefetch < 0 && job->parallel.zero == 3 && job->parallel.dp > 1 &&
           job->parallel.hold == HOLD_PASS;
}

bool memory_is_chosen(const struct job *job)
{
    return is_chosen(job) || may_prefetch(job) || early_layers_are_open(job);
}

/* Of recompute auto no more than a limit of the device's own is asked for. */
static bool is_only_recomputation(const struct job *job)
{
    return job->memory.offload == OFFLOAD_NONE && !job->memory.device_bytes;
}

enum kept_fits { KEPT_FITS, KEPT_IS_MORE, CELLS_ARE_MORE };

static enum kept_fits judge_kept(const struct program *program, int64_t limit)
{
    size_t bytes = program_space_bytes(program, SPACE_DEVICE);
    size_t passing =
        program->segment_bytes[SEGMENT_STASH] + program->segment_bytes[SEGMENT_SCRATCH];

    if ((int64_t)bytes <= limit)
        return KEPT_FITS;
    return (int64_t)(bytes - passing) <= limit ? KEPT_IS_MORE : CELLS_ARE_MORE;
}

/* Whether the pipeline ranks fit with all that is kept; or what of the first that does not is too
 * much. */
static int find_kept(enum kept_fits *fits, const struct job *kept,
                     const struct memory_fit_request *request, struct err *err)
{
    struct programs_request of = { .job = kept, .kernels = request->kernels, .unverified = true };
    int status = 0;

    *fits = KEPT_FITS;
    for (; of.pp_rank < kept->parallel.pp && *fits == KEPT_FITS && !status; of.pp_rank++) {
        int64_t limit =
            request->rank_bytes ? request->rank_bytes[of.pp_rank] : request->device_bytes;
        struct program program = { 0 };

        if (!limit)
            break;
        status = programs_compile(&program, &of, err);
        if (!status)
            *fits = judge_kept(&program, limit);
        program_release(&program);
    }
    return status;
}

/*
 * Buckets ahead first of all: as many as fit beside all that is kept, none where memory is short by
 * the job. *fits: whether that fits then.
 */
static int fit_prefetch(enum kept_fits *fits, struct job *job, struct job *kept,
                        const struct memory_fit_request *request, struct err *err)
{
    bool may = may_prefetch(job), is_short = is_chosen(job) && !is_only_recomputation(job);
    int n = may && !is_short ? PREFETCH_MOST : 0, status = 0;

    do {
        if (may)
            job->parallel.prefetch = kept->parallel.prefetch = n;
        status = is_short ? 0 : find_kept(fits, kept, request, err);
    } while (!status && !is_short && *fits != KEPT_FITS && n-- > 0);
    return status;
}

/* Where nothing else is chosen. */
static int fit_early(struct job *job, const struct memory_fit_request *request, struct err *err)
{
    struct arena arena = { 0 };
    int64_t *limits = arena_array(&arena, int64_t, job->parallel.pp);
    int n;

    for (int i = 0; i < job->parallel.pp; i++)
        limits[i] = request->rank_bytes ? request->rank_bytes[i] : request->device_bytes;
    int status = early_layers_find(&n, job, request->kernels, limits, err);
    if (!status) {
        job->memory.recompute_early = n;
        job->memory.recompute_early_chosen = true;
    }
    arena_release(&arena);
    return status;
}

int memory_fit_job(struct memory_fit **fit, struct job *job,
                   const struct memory_fit_request *request, struct arena *arena, struct err *err)
{
    struct memory_fit_request asked = *request;
    struct job kept = *job;
    enum kept_fits fits = KEPT_IS_MORE;

    *fit = NULL;
    if (!memory_is_chosen(job))
        return 0;
    if (job->recompute == RECOMPUTE_AUTO && is_only_recomputation(job)) {
        kept.recompute = RECOMPUTE_NONE;
        asked.or_least = true;
    }
    asked.job = job;
    if ((is_chosen(job) || may_prefetch(job)) && fit_prefetch(&fits, job, &kept, request, err) < 0)
        return -1;
    if (early_layers_are_open(job) && fit_early(job, request, err) < 0)
        return -1;
    if (!is_chosen(job))
        return 0;
    if (fits == KEPT_FITS)
        *job = kept;
    if (fits != KEPT_IS_MORE)
        return 0;
    *fit = arena_array(arena, struct memory_fit, 1);
    if (memory_fit(*fit, &asked, arena, err) < 0)
        return -1;
    job->keep_sets = (*fit)->keep_sets;
    job->offload = (*fit)->offload;
    return 0;
}
