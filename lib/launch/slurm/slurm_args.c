/*
 * slurm_args.c - further arguments of srun, and those that contradict ours
 *
 * srun's plugins have options of their own (--container-image), so what is not known is passed on.
 * srun takes the first word that is no option for the command: a value has to be in the same word
 * as its option, as srun's manual also writes it.
 */
#include <string.h>

#include "base/str.h"
#include "launch/slurm/slurm_impl.h"

struct refused_option {
    const char *name;
    char letter; /* 0: it has no short form */
    const char *hint;
};

static const char use_ranks[] = "--ranks N, or ranks in the job";
static const char use_allocation[] = "sbatch or salloc divide the allocation";
static const char use_excluded[] =
    "OUTPUT/excluded_hosts leaves out nodes; launch.spares keeps some";
static const char use_logs[] = "each rank has its log in OUTPUT/log";

static const struct refused_option refused[] = {
    { "ntasks", 'n', use_ranks },
    { "ntasks-per-node", 0, use_allocation },
    { "tasks-per-node", 0, use_allocation },
    { "ntasks-per-core", 0, use_allocation },
    { "ntasks-per-socket", 0, use_allocation },
    { "ntasks-per-gpu", 0, use_allocation },
    { "nodes", 'N', use_allocation },
    { "cpus-per-task", 'c', use_allocation },
    { "distribution", 'm', "parallel.order in the job orders the ranks" },
    { "nodelist", 'w', use_excluded },
    { "nodefile", 'F', use_excluded },
    { "exclude", 'x', use_excluded },
    { "relative", 'r', use_excluded },
    { "jobid", 0, "run lmtrain in the allocation that it is to use" },
    { "mpi", 0, "ranks need --mpi=pmix" },
    { "kill-on-bad-exit", 'K', "lmtrain itself ends the ranks when one dies" },
    { "export", 0, "all variables are exported: set them before lmtrain" },
    { "export-file", 0, "all variables are exported: set them before lmtrain" },
    { "input", 'i', "ranks read no standard input" },
    { "output", 'o', use_logs },
    { "error", 'e', use_logs },
    { "label", 'l', use_logs },
    { "pty", 0, use_logs },
    { "disable-status", 'X', "it is set" },
    { "multi-prog", 0, "all ranks are the same command" },
    { "help", 'h', "srun --help" },
    { "usage", 0, "srun --usage" },
    { "version", 'V', "srun --version" },
};

enum { N_REFUSED = (int)(sizeof refused / sizeof *refused) };

/* Options of one letter that take no value: another letter may follow. */
static const char flags[] = "EHhIKkOQqsuVvXZl";

static const struct refused_option *find_letters(const char *letters)
{
    for (; *letters; letters++) {
        for (int i = 0; i < N_REFUSED; i++)
            if (refused[i].letter == *letters)
                return &refused[i];
        if (!strchr(flags, *letters))
            return NULL;
    }
    return NULL;
}

/* srun also takes the beginning of a name. */
static const struct refused_option *find_name(const char *name)
{
    size_t length = strcspn(name, "=");

    for (int i = 0; i < N_REFUSED; i++)
        if (length > 1 && !strncmp(refused[i].name, name, length))
            return &refused[i];
    return NULL;
}

int slurm_check_args(const char *const *args, int n, const char *where, struct err *err)
{
    for (int i = 0; i < n; i++) {
        const char *arg = args[i];
        const struct refused_option *found;

        if (arg[0] != '-' || !arg[1] || !strcmp(arg, "--"))
            return err_set(err, ERR_CONFIG,
                           "%s: launch.srun_args: '%s' is no option (hint: an option and its value "
                           "are one item: \"--container-image=FILE\")",
                           where, arg);
        found = arg[1] == '-' ? find_name(arg + 2) : find_letters(arg + 1);
        if (found)
            return err_set(
                err, ERR_CONFIG,
                "%s: launch.srun_args: %s contradicts what lmtrain tells srun (hint: %s)", where,
                arg, found->hint);
    }
    return 0;
}
