/*
 * node.c - folder, server, ranks and their pipes
 */
#include "launch/node/node_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "launch/environment_impl.h"
#include "launch/fd_impl.h"
#include "launch/job_folder_impl.h"
#include "launch/node/pmix_gate_impl.h"
#include "launch/node/shm_space.h"

static int make_folder(struct local_node *node, struct err *err)
{
    const char *parent = job_folder_parent();
    char path[sizeof node->folder + 16];

    job_folder_sweep(parent);
    if (shm_space_check_for(parent, node->n_ranks, node->environment, err))
        return -1;
    if (job_folder_create(parent, node->folder, sizeof node->folder, err)) {
        node->folder[0] = '\0';
        return -1;
    }
    snprintf(path, sizeof path, "%s/progress", node->folder);
    return progress_page_create(&node->page, path, node->n_ranks, err);
}

/* What Open MPI needs to run under us, where the progress page is, and which attempt this is. */
static void add_variables(struct local_node *node)
{
    char path[sizeof node->folder + 16], attempt[16];
    char ***environment = &node->environment;

    snprintf(path, sizeof path, "%s/progress", node->folder);
    snprintf(attempt, sizeof attempt, "%d", node->spec->attempt);
    environment_set(environment, PROGRESS_VARIABLE, path);
    environment_set(environment, ATTEMPT_VARIABLE, attempt);
    environment_set(environment, "OMPI_MCA_schizo", "ompi");
    environment_set(environment, "OMPI_MCA_btl_vader_backing_directory", node->folder);
    /* Its session folder, which it would leave behind in /tmp. */
    environment_set(environment, "OMPI_MCA_orte_tmpdir_base", node->folder);
    environment_set_default(environment, "OMPI_MCA_pml", "ob1");
    environment_set_default(environment, "OMPI_MCA_btl",
                            node->spec->n_nodes > 1 ? "self,vader,tcp" : "self,vader");
    /* A rank that polls by sched_yield keeps ranks of other scheduling groups off its core for a
     * minute (Linux 6.18); comm's own waits sleep, so that polls of MPI are few. */
    environment_set_default(environment, "OMPI_MCA_mpi_yield_when_idle", "0");
}

/* Ours, which may be that of another host's ssh daemon, with what the head has sent along. */
static char **make_environment(const struct job_spec *spec)
{
    char **environment = environment_copy(environ);

    for (int i = 0; spec->variables[i]; i++) {
        const char *variable = spec->variables[i];
        const char *equals = strchr(variable, '=');
        char *name = strndup(variable, (size_t)(equals - variable));

        CHECK(name);
        environment_set(&environment, name, equals + 1);
        free(name);
    }
    return environment;
}

/*
 * Each rank has two pipes and two connections, to the gate and on to PMIx, which has both ends in
 * this process; others may wait at the gate; it itself opens some tens of files.
 */
static int check_files(int n_ranks, struct err *err)
{
    int n_for_ranks = 5 * n_ranks + GATE_WAITING_MAX;
    int n_allowed = fd_allow(n_for_ranks), n_needed = n_for_ranks + 48;

    if (n_allowed >= n_needed)
        return 0;
    return err_set(err, ERR_FAILED,
                   "the limit of open files is %d, but %d ranks on a machine need %d (hint: "
                   "ulimit -n %d)",
                   n_allowed, n_ranks, n_needed, n_needed);
}

int node_open(struct local_node *node, const struct job_spec *spec, struct err *err)
{
    const struct job_node *mine = &spec->nodes[spec->node];

    *node = (struct local_node){ .spec = spec, .n_ranks = mine->n_ranks };
    node->first_rank = mine->first_rank;
    node->ranks = calloc((size_t)node->n_ranks, sizeof *node->ranks);
    CHECK(node->ranks);
    for (int i = 0; i < node->n_ranks; i++)
        node->ranks[i].fds[0] = node->ranks[i].fds[1] = -1;
    if (chdir(spec->cwd))
        return err_set_errno(err, ERR_CONFIG,
                             "cannot change to folder %s (hint: the job's folder must exist on all "
                             "hosts under the same path)",
                             spec->cwd);
    node->environment = make_environment(spec);
    if (check_files(node->n_ranks, err) || make_folder(node, err))
        return -1;
    add_variables(node);
    return launch_server_start(&node->server, node->folder, spec, err);
}

/* Our own stdout and stderr, or pipes: read ends into the rank, write ends into fds. */
static int make_pipes(struct local_node *node, int index, int fds[2], struct err *err)
{
    struct node_rank *rank = &node->ranks[index];

    if (node->spec->has_screen && node->first_rank + index == 0) {
        fds[0] = STDOUT_FILENO;
        fds[1] = STDERR_FILENO;
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        int ends[2];

        if (pipe2(ends, O_CLOEXEC))
            return err_set_errno(err, ERR_FAILED, "cannot make a pipe for rank %d",
                                 node->first_rank + index);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        rank->fds[i] = ends[0];
        fds[i] = ends[1];
    }
    return 0;
}

/* The job's command line, whose first word says which rank it is (`ps -ef`). Heap. */
static char **name_rank(const struct local_node *node, int index)
{
    char **argv = environment_copy(node->spec->argv), *name = NULL;

    CHECK(asprintf(&name, "%s[%d]", argv[0], node->first_rank + index) >= 0);
    free(argv[0]);
    argv[0] = name;
    return argv;
}

int node_start_rank(struct local_node *node, int index, struct err *err)
{
    char **environment = environment_copy(node->environment), **argv = name_rank(node, index);
    int fds[2] = { -1, -1 };
    int status =
        launch_server_environment(node->server, node->first_rank + index, &environment, err);

    if (!status)
        status = make_pipes(node, index, fds, err);
    if (!status)
        status = rank_process_start(&node->ranks[index].process, argv, environment, fds, err);
    for (int i = 0; i < 2; i++)
        if (fds[i] != STDOUT_FILENO && fds[i] != STDERR_FILENO)
            fd_close(&fds[i]);
    environment_free(environment);
    environment_free(argv);
    if (!status)
        node->n_running++;
    return status;
}

void node_signal(const struct local_node *node, int signal, enum signal_target target)
{
    for (int i = 0; i < node->n_ranks; i++)
        if (target == TO_GROUPS)
            rank_process_signal_group(&node->ranks[i].process, signal);
        else
            rank_process_signal(&node->ranks[i].process, signal);
}

void node_mark_over(const struct local_node *node)
{
    for (int i = 0; i < node->n_ranks && node->page; i++)
        atomic_store(&node->page[i].slot.is_over, 1);
}

void node_release(struct local_node *node)
{
    struct err ignored;

    node_signal(node, SIGKILL, TO_GROUPS);
    for (int i = 0; i < node->n_ranks; i++) {
        struct node_rank *rank = &node->ranks[i];

        while (rank->process.running && !rank_process_reap(&rank->process))
            usleep(1000);
        fd_close(&rank->fds[0]);
        fd_close(&rank->fds[1]);
    }
    progress_page_close(node->page, node->n_ranks);
    if (node->folder[0])
        file_remove_tree(node->folder, &ignored);
    environment_free(node->environment);
    free(node->ranks);
    *node = (struct local_node){ 0 };
}

size_t node_read(struct local_node *node, int index, char *buffer, size_t size, bool *is_stderr)
{
    struct node_rank *rank = &node->ranks[index];

    for (int i = 0; i < 2; i++) {
        ssize_t n = 0;

        if (rank->fds[i] < 0)
            continue;
        do
            n = read(rank->fds[i], buffer, size);
        while (n < 0 && errno == EINTR);
        if (n > 0) {
            *is_stderr = i == 1;
            return (size_t)n;
        }
        if (n == 0 || errno != EAGAIN)
            fd_close(&rank->fds[i]);
    }
    return 0;
}

int node_poll(const struct local_node *node, struct pollfd *polls)
{
    int n = 0;

    for (int i = 0; i < node->n_ranks; i++)
        for (int k = 0; k < 2; k++)
            if (node->ranks[i].fds[k] >= 0)
                polls[n++] = (struct pollfd){ .fd = node->ranks[i].fds[k], .events = POLLIN };
    return n;
}
