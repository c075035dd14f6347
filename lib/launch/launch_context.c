/*
 * launch_context.c - reading the environment that launchers leave
 *
 * What is a rank has PMIX_NAMESPACE and PMIX_RANK. Slurm's namespaces are slurm.pmix.JOB.STEP, and
 * one that is not of this job and step has leaked from where sbatch or salloc were called. A Slurm
 * step has SLURM_STEP_ID, a small number; the steps that are a batch script, an interactive shell
 * or whatever came in by ssh have numbers from 0xfffffff0 on, or none.
 */
#include "launch/launch_context_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "launch/command.h"
#include "launch/environment_impl.h"
#include "launch/proc_impl.h"

enum { N_ANCESTORS_MAX = 64 };

static const char slurm_namespace[] = "slurm.pmix.";
static const char stepd_title[] = "slurmstepd: [";
static const int64_t special_steps = 0xfffffff0;
static const double list_seconds = 10;

const char *context_get(const struct context_view *view, const char *name)
{
    const char *value = view->get(view->context, name);

    return value && *value ? value : NULL;
}

static int64_t get_number(const struct context_view *view, const char *name, int64_t otherwise)
{
    const char *text = context_get(view, name);
    int64_t number;

    return text && !str_to_i64(text, &number) ? number : otherwise;
}

static const char *get_job(const struct context_view *view)
{
    const char *job = context_get(view, "SLURM_JOB_ID");

    return job ? job : context_get(view, "SLURM_JOBID");
}

/* The step that we are in, or -1: none, or one of the special ones. */
static int64_t get_step(const struct context_view *view)
{
    int64_t step = get_number(view, "SLURM_STEP_ID", -1);

    if (view->stepd) {
        const char *point = strrchr(view->stepd, '.');
        char digits[24];
        int64_t number;

        if (!point)
            return step;
        snprintf(digits, sizeof digits, "%.*s", (int)strcspn(point + 1, "]"), point + 1);
        step = str_to_i64(digits, &number) ? -1 : number; /* batch, extern, interactive */
    }
    return step < 0 || step >= special_steps ? -1 : step;
}

static int64_t get_n_tasks(const struct context_view *view)
{
    return get_number(view, "SLURM_STEP_NUM_TASKS", get_number(view, "SLURM_NTASKS", 1));
}

/* Whether PMIx's variables are those of this very step. */
static int is_of_step(const struct context_view *view, const char *nspace, int64_t step)
{
    const char *job = get_job(view);
    char expected[256];

    if (!job || step < 0)
        return 0;
    snprintf(expected, sizeof expected, "%s%s.%lld", slurm_namespace, job, (long long)step);
    return !strcmp(nspace, expected);
}

/*
 * A process of a launcher that speaks PMI-1 or PMI-2 (Hydra of MPICH and Intel MPI, MVAPICH's
 * mpirun_rsh), or of an Open MPI without PMIx: the variable that says of how many, else one that
 * says which; NULL: of none.
 */
static const char *foreign_variable(const struct context_view *view)
{
    static const char *const sizes[] = { "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
                                         "MPIRUN_NPROCS", "MPI_LOCALNRANKS" };
    static const char *const ranks[] = { "PMI_RANK", "MV2_COMM_WORLD_RANK", "MPI_LOCALRANKID" };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (get_number(view, sizes[i], -1) >= 0)
            return sizes[i];
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if (get_number(view, ranks[i], -1) >= 0)
            return ranks[i];
    return NULL;
}

/* One that does not say of how many may be one of several. */
static bool is_one_of_several(const struct context_view *view, const char *variable)
{
    bool is_rank = str_ends_with(variable, "RANK") || str_ends_with(variable, "RANKID");

    return is_rank || get_number(view, variable, 1) > 1;
}

enum context_verdict context_decide(const struct context_view *view)
{
    const char *nspace = context_get(view, "PMIX_NAMESPACE"), *foreign = foreign_variable(view);
    int64_t step = get_step(view);

    if (nspace && context_get(view, "PMIX_RANK")) {
        if (!str_starts_with(nspace, slurm_namespace))
            return VERDICT_RANK;
        /*
         * One task that we didn't start: `srun --pty bash` where pmix is the default is a shell,
         * which may start ranks.
         */
        if (is_of_step(view, nspace, step))
            return get_n_tasks(view) > 1 || context_get(view, ATTEMPT_VARIABLE) ? VERDICT_RANK
                                                                                : VERDICT_PLAIN;
        if (!view->stepd)
            step = -1; /* what has leaked with it */
    }
    if (get_job(view) && step >= 0)
        return get_n_tasks(view) > 1 ? VERDICT_STEP : VERDICT_PLAIN;
    if (foreign)
        return is_one_of_several(view, foreign) ? VERDICT_PMI : VERDICT_PLAIN;
    return get_job(view) ? VERDICT_ALLOCATION : VERDICT_PLAIN;
}

int context_lists_pmix(const char *mpi_list)
{
    return strstr(mpi_list, "pmix") != NULL;
}

int context_refuse(const struct context_view *view, enum context_verdict verdict,
                   const char *mpi_list, struct err *err)
{
    if (verdict == VERDICT_PMI) {
        const char *name = foreign_variable(view);

        return err_set(
            err, ERR_CONFIG,
            "%s is %s, but this launcher (Hydra of MPICH or Intel MPI, MVAPICH, PMI-1 or PMI-2) "
            "does "
            "not support PMIx, which ranks need to find each other (hint: Open MPI's mpirun, srun "
            "--mpi=pmix, or lmtrain by itself with --ranks or --hosts)",
            name, context_get(view, name));
    }

    long long n_tasks = get_n_tasks(view);

    if (mpi_list && !context_lists_pmix(mpi_list))
        return err_set(
            err, ERR_CONFIG,
            "this is one of %lld tasks of a Slurm step without PMIx, which ranks need to find each "
            "other, and this cluster's Slurm lacks the plugin: srun --mpi=list does not list pmix "
            "(hint: start lmtrain once, by srun -n 1, with --hosts, or by Open MPI's mpirun; or "
            "ask the administrator for Slurm's pmix plugin)",
            n_tasks);
    return err_set(err, ERR_CONFIG,
                   "this is one of %lld tasks of a Slurm step without PMIx, which ranks need to "
                   "find each other (hint: srun --mpi=pmix lmtrain ..., or only lmtrain ... in the "
                   "batch script, which runs srun itself)",
                   n_tasks);
}

/* ---- the world ---- */

const char *context_from_environment(const void *context, const char *name)
{
    (void)context;
    return getenv(name);
}

/* Fill title with that of the nearest slurmstepd above us; returns title, or NULL. */
static const char *find_stepd(char *title, size_t size)
{
    pid_t pid = getppid();
    struct proc_stat stat;

    for (int i = 0; i < N_ANCESTORS_MAX && pid > 1; i++) {
        if (proc_read(pid, "cmdline", title, size))
            return NULL;
        if (str_starts_with(title, stepd_title))
            return title;
        pid = proc_stat(pid, &stat) ? 0 : stat.parent;
    }
    return NULL;
}

int launch_context(enum launch_context *context, struct err *err)
{
    static char *const list_plugins[] = { "srun", "--mpi=list", NULL };
    char title[256];
    struct context_view view = { .get = context_from_environment,
                                 .stepd = find_stepd(title, sizeof title) };
    enum context_verdict verdict = context_decide(&view);
    struct str said = { 0 };

    switch (verdict) {
    case VERDICT_RANK:
        *context = CONTEXT_RANK;
        return 0;
    case VERDICT_ALLOCATION:
        *context = CONTEXT_ALLOCATION;
        return 0;
    case VERDICT_PLAIN:
        *context = CONTEXT_PLAIN;
        return 0;
    case VERDICT_STEP:
    case VERDICT_PMI:
        break;
    }
    int status = verdict == VERDICT_STEP ? command_capture(list_plugins, list_seconds, &said) : -1;
    context_refuse(&view, verdict, status == 0 ? str_text(&said) : NULL, err);
    str_release(&said);
    return -1;
}
