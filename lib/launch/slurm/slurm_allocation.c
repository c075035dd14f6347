/*
 * slurm_allocation.c - the arithmetic of an allocation, and the command line that follows from it
 *
 * Each rank gets an equal share of its node's CPUs by --cpus-per-task. Where Slurm binds tasks,
 * that is their mask; where it doesn't, all ranks of a node have its whole mask and divide it among
 * themselves (cores.h). So --cpu-bind is left to the cluster: srun complains of it where no task
 * plugin can bind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"
#include "launch/environment_impl.h"
#include "launch/slurm/slurm_impl.h"

enum { N_NODES_MAX = 1 << 20 };

static int get_count(const struct context_view *view, const char *name)
{
    const char *text = context_get(view, name);
    int64_t n;

    return text && !str_to_i64(text, &n) && n > 0 && n <= INT32_MAX ? (int)n : 0;
}

/* Variables can say anything: counts stop at the largest int. */
static int as_int(int64_t n)
{
    return n < 0 ? 0 : n > INT32_MAX ? INT32_MAX : (int)n;
}

/* "4", "a100:4", "a100:2,v100:2": the sum. */
static int get_gpus(const struct context_view *view, const char *name)
{
    const char *text = context_get(view, name);
    int n = 0;

    while (text && *text) {
        size_t length = strcspn(text, ",");
        const char *number = text;

        for (const char *c = text; c < text + length; c++)
            if (*c == ':')
                number = c + 1;
        n = as_int((int64_t)n + as_int(strtol(number, NULL, 10)));
        text += length + (text[length] == ',');
    }
    return n;
}

int slurm_list_count(const char *list)
{
    int n = list ? 1 : 0;

    for (; list && *list; list++)
        n += *list == ',';
    return n;
}

bool slurm_list_has(const char *names, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = names; at && *at; at += *at == ',') {
        size_t n = strcspn(at, ",");

        if (n == length && !memcmp(at, name, n))
            return true;
        at += n;
    }
    return false;
}

static int count_all_gpus(const struct context_view *view, int n_nodes)
{
    static const char *const per_node[] = { "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE" };
    int n = get_gpus(view, "SLURM_GPUS");

    for (size_t i = 0; i < sizeof per_node / sizeof *per_node && !n; i++)
        n = as_int((int64_t)get_gpus(view, per_node[i]) * n_nodes);
    return n ? n : as_int((int64_t)slurm_list_count(context_get(view, "SLURM_JOB_GPUS")) * n_nodes);
}

int slurm_count_gpus(const char *job_text)
{
    static const char key[] = "gres/gpu=";
    const char *tres = strstr(job_text, " TRES=");
    const char *end = tres ? tres + strcspn(tres + 1, " \n") + 1 : NULL;
    const char *found = tres ? strstr(tres, key) : NULL;

    return found && found < end ? as_int(strtol(found + strlen(key), NULL, 10)) : 0;
}

const char *slurm_job_nodes(const char *job_text, int *n_cpus, struct arena *arena)
{
    static const char list[] = " NodeList=", cpus[] = " NumCPUs=";
    const char *nodes = strstr(job_text, list), *number = strstr(job_text, cpus);

    *n_cpus = number ? as_int(strtol(number + strlen(cpus), NULL, 10)) : 0;
    if (!nodes)
        return NULL;
    nodes += strlen(list);
    size_t length = strcspn(nodes, " \n");
    return !length || *nodes == '(' ? NULL : arena_strndup(arena, nodes, length);
}

/* "72(x2),36" -> 72 72 36. Returns how many there are, or -1. */
static int expand_counts(const char *text, int *counts, int capacity)
{
    int n = 0;

    while (*text) {
        char *end;
        long value = strtol(text, &end, 10), times = 1;

        if (end == text || value < 0 || value > INT32_MAX)
            return -1;
        if (!strncmp(end, "(x", 2)) {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')')
                return -1;
        }
        if (times < 1 || times > capacity - n || (*end && *end != ','))
            return -1;
        while (times--)
            counts[n++] = (int)value;
        text = end + (*end == ',');
    }
    return n;
}

int slurm_allocation_read(struct slurm_allocation *allocation, const struct context_view *view,
                          struct arena *arena, struct err *err)
{
    const char *cpus = context_get(view, "SLURM_JOB_CPUS_PER_NODE");
    struct slurm_allocation found = { .n_nodes = get_count(view, "SLURM_JOB_NUM_NODES") };

    if (!found.n_nodes)
        found.n_nodes = get_count(view, "SLURM_NNODES");
    if (!found.n_nodes || found.n_nodes > N_NODES_MAX || !cpus)
        return err_set(err, ERR_FAILED,
                       "this looks like a Slurm allocation, but SLURM_JOB_NUM_NODES and "
                       "SLURM_JOB_CPUS_PER_NODE are not set or invalid (hint: unset "
                       "SLURM_JOB_ID to run on this machine alone)");
    found.n_cpus = arena_array(arena, int, found.n_nodes);
    if (expand_counts(cpus, found.n_cpus, found.n_nodes) != found.n_nodes)
        return err_set(err, ERR_FAILED,
                       "SLURM_JOB_CPUS_PER_NODE is %s, which does not match SLURM_JOB_NUM_NODES %d",
                       cpus, found.n_nodes);
    found.n_tasks = get_count(view, "SLURM_NTASKS");
    found.n_tasks_per_node = get_count(view, "SLURM_NTASKS_PER_NODE");
    if (!found.n_tasks)
        found.n_tasks = as_int((int64_t)found.n_tasks_per_node * found.n_nodes);
    found.n_cpus_per_task = get_count(view, "SLURM_CPUS_PER_TASK");
    found.n_gpus = count_all_gpus(view, found.n_nodes);
    *allocation = found;
    return 0;
}

struct slurm_allocation slurm_allocation_without(const struct slurm_allocation *allocation,
                                                 const bool *is_gone, struct arena *arena)
{
    struct slurm_allocation left = *allocation;

    left.n_nodes = 0;
    left.n_cpus = arena_array(arena, int, allocation->n_nodes);
    for (int node = 0; node < allocation->n_nodes; node++)
        if (!is_gone[node])
            left.n_cpus[left.n_nodes++] = allocation->n_cpus[node];
    left.n_tasks = 0; /* were asked for on all of them */
    left.n_gpus = allocation->n_gpus / allocation->n_nodes * left.n_nodes;
    return left;
}

struct slurm_allocation slurm_allocation_share(const struct slurm_allocation *allocation,
                                               const bool *is_out, struct arena *arena)
{
    struct slurm_allocation share = slurm_allocation_without(allocation, is_out, arena);

    share.n_tasks = as_int((int64_t)allocation->n_tasks * share.n_nodes / allocation->n_nodes);
    return share;
}

/* ---- fitting ---- */

/* Tasks that the CPUs have room for. */
static int count_room(const struct slurm_allocation *a)
{
    int64_t n = 0;

    for (int node = 0; node < a->n_nodes; node++)
        n += a->n_cpus[node] / max_int(1, a->n_cpus_per_task);
    return n > INT32_MAX ? INT32_MAX : (int)n;
}

static int fewest_cpus(const struct slurm_allocation *a)
{
    int n = a->n_nodes ? a->n_cpus[0] : 0;

    for (int node = 1; node < a->n_nodes; node++)
        n = min_int(n, a->n_cpus[node]);
    return n;
}

int slurm_fit(struct slurm_step *step, const struct slurm_allocation *allocation, int n_ranks,
              bool has_smt, struct err *err)
{
    int room = count_room(allocation), n_nodes = min_int(allocation->n_nodes, n_ranks);

    if (allocation->n_tasks && n_ranks > allocation->n_tasks)
        return err_set(err, ERR_CONFIG,
                       "%d ranks are requested, but this Slurm allocation has %d task%s (hint: "
                       "--ntasks=%d for sbatch or salloc, or ranks: auto in the job)",
                       n_ranks, allocation->n_tasks, allocation->n_tasks == 1 ? "" : "s", n_ranks);
    if (n_ranks > room)
        return err_set(
            err, ERR_CONFIG,
            "%d ranks are requested, but this Slurm allocation has room for %d: %d node%s with %d "
            "CPU%s or more each, %d per rank (hint: --ntasks=%d for sbatch or "
            "salloc)",
            n_ranks, room, allocation->n_nodes, allocation->n_nodes == 1 ? "" : "s",
            fewest_cpus(allocation), fewest_cpus(allocation) == 1 ? "" : "s",
            max_int(1, allocation->n_cpus_per_task), n_ranks);

    struct slurm_step fitted = { .n_ranks = n_ranks, .n_nodes = n_nodes };
    int per_node = (n_ranks + n_nodes - 1) / n_nodes;

    fitted.n_cpus_per_rank = fewest_cpus(allocation) / per_node;
    if (fitted.n_cpus_per_rank < max_int(1, allocation->n_cpus_per_task)) {
        /* Nodes of different sizes, or parts of them: only Slurm's own way of dealing fits. */
        fitted.n_cpus_per_rank = max_int(1, allocation->n_cpus_per_task);
        fitted.n_nodes = allocation->n_nodes;
    } else {
        fitted.n_ranks_per_node = per_node;
        if (has_smt && fitted.n_cpus_per_rank > 1)
            fitted.n_cpus_per_rank -= fitted.n_cpus_per_rank % 2;
        if (allocation->n_cpus_per_task)
            fitted.n_cpus_per_rank = allocation->n_cpus_per_task;
    }
    *step = fitted;
    return 0;
}

/* ---- srun ---- */

char **slurm_argv(const struct slurm_step *step, const struct slurm_command *command,
                  struct arena *arena)
{
    int n = 0, n_words = 0;

    while (command->words[n_words])
        n_words++;
    char **argv = arena_array(arena, char *, n_words + command->n_srun_args + 20);

    argv[n++] = arena_strdup(arena, "srun");
    argv[n++] = arena_strdup(arena, "--mpi=pmix");
    argv[n++] = arena_strdup(arena, "--kill-on-bad-exit=0"); /* by slurm.c, which is faster */
    argv[n++] = arena_strdup(arena, "--disable-status");     /* Ctrl-C goes to the ranks */
    argv[n++] = arena_strdup(arena, "--export=ALL");
    argv[n++] = arena_strdup(arena, "--input=none");
    argv[n++] = arena_printf(arena, "--nodes=%d", step->n_nodes);
    argv[n++] = arena_printf(arena, "--ntasks=%d", step->n_ranks);
    if (step->n_ranks_per_node)
        argv[n++] = arena_printf(arena, "--ntasks-per-node=%d", step->n_ranks_per_node);
    /* Ranks that are neighbours are on one node: tp varies fastest (mesh.h). */
    argv[n++] = arena_strdup(arena, "--distribution=block");
    argv[n++] = arena_printf(arena, "--cpus-per-task=%d", step->n_cpus_per_rank);
    /* A step that is still ending, or watches, must not make this one wait. */
    if (command->major >= 21)
        argv[n++] = arena_strdup(arena, "--overlap");
    if (command->excluded && *command->excluded)
        argv[n++] = arena_printf(arena, "--exclude=%s", command->excluded);
    for (int i = 0; i < command->n_srun_args; i++)
        argv[n++] = arena_strdup(arena, command->srun_args[i]);
    argv[n++] = arena_strdup(arena, "--");
    argv[n++] = arena_strdup(arena, command->binary);
    for (int i = 1; i < n_words; i++)
        argv[n++] = command->words[i];
    argv[n] = NULL;
    return argv;
}

/*
 * Whether name (of the given length) is to be kept from srun. The list of nodes is the allocation's
 * as it was at first; without it srun asks for that of now.
 */
static int contradicts(const char *name, size_t length)
{
    static const char *const names[] = {
        ATTEMPT_VARIABLE,
        HOST_VARIABLE,
        "SLURM_CPUS_PER_TASK",
        "SRUN_CPUS_PER_TASK",
        "SLURM_DISTRIBUTION",
        "SLURM_EXCLUSIVE",
        "SLURM_EXACT",
        "SLURM_EXPORT_ENV",
        "SLURM_HINT",
        "SLURM_KILL_BAD_EXIT",
        "SLURM_LABELIO",
        "SLURM_MPI_TYPE",
        "SLURM_NNODES",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_CORE",
        "SLURM_NTASKS_PER_GPU",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_NTASKS_PER_SOCKET",
        "SLURM_NTASKS_PER_TRES",
        "SLURM_OVERCOMMIT",
        "SLURM_OVERLAP",
        "SLURM_SPREAD_JOB",
        "SLURM_TASKS_PER_NODE",
        "SLURM_WHOLE",
        "SLURM_STDOUTMODE",
        "SLURM_STDERRMODE",
        "SLURM_STDINMODE",
        "SLURM_THREADS",
        "SLURM_THREADS_PER_CORE",
        "SLURM_CORE_SPEC",
        "OMPI_MCA_schizo",
        "OMPI_MCA_ess",
    };
    static const char *const prefixes[] = { "PMI_", "SLURM_CPU_BIND", "SLURM_STEP", "SLURM_PMIX",
                                            "OMPI_COMM_WORLD_" };

    /* PMIx's own settings, by hand of the user, stay. */
    if (!strncmp(name, "PMIX_", 5))
        return strncmp(name, "PMIX_MCA_", 9) != 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && !strncmp(name, names[i], length))
            return 1;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
            return 1;
    return 0;
}

char **slurm_environment(char *const *environment, int attempt, struct arena *arena)
{
    int n = 0, kept = 0;

    while (environment[n])
        n++;
    char **copy = arena_array(arena, char *, n + 2);

    for (int i = 0; i < n; i++)
        if (!contradicts(environment[i], strcspn(environment[i], "=")))
            copy[kept++] = environment[i];
    copy[kept++] = arena_printf(arena, ATTEMPT_VARIABLE "=%d", attempt);
    copy[kept] = NULL;
    return copy;
}

int slurm_major(const char *version_text)
{
    const char *digits = strpbrk(version_text, "0123456789");

    return digits ? (int)strtol(digits, NULL, 10) : 0;
}
