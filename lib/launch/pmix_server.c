/*
 * pmix_server.c - the calls that make this process a PMIx server, and its upcalls
 *
 * What is registered is what PMIx clients and Open MPI need on one node: node map, rank map, job
 * and universe size; the library derives the rest. The namespace is unique per launch because Open
 * MPI names its shared memory by it.
 *
 * Stopping is bounded: a stranger's half-open connection can make the library's own end wait for
 * ever, and by then all ranks are gone and the process is about to leave.
 */
#include "launch/pmix_server_impl.h"

#include <pmix.h>
#include <pmix_server.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct rank_state {
    _Atomic int connected, finalized, aborted; /* aborted: its call is queued or was taken */
    struct launch_abort_call call;             /* written once, before aborted is set */
    int call_taken;                            /* the main loop's */
};

struct launch_server {
    int n_ranks;
    int wake_fd;
    pmix_nspace_t nspace;
    _Atomic int somebody_died;
    struct rank_state ranks[];
};

/* The fence's upcall is given no object of ours; PMIx has one server per process anyway. */
static struct launch_server *_Atomic the_server;

static int pmix_failed(struct err *err, const char *call, pmix_status_t status)
{
    return err_set(err, ERR_FAILED, "%s: %s", call, PMIx_Error_string(status));
}

static struct rank_state *state_of(const pmix_proc_t *proc)
{
    struct launch_server *server = atomic_load(&the_server);

    if (!server || proc->rank >= (pmix_rank_t)server->n_ranks ||
        strncmp(proc->nspace, server->nspace, PMIX_MAX_NSLEN))
        return NULL;
    return &server->ranks[proc->rank];
}

static pmix_status_t on_connected(const pmix_proc_t *proc, void *object, pmix_info_t info[],
                                  size_t n_info, pmix_op_cbfunc_t done, void *context)
{
    struct rank_state *state = state_of(proc);

    (void)object;
    (void)info;
    (void)n_info;
    if (!state)
        return PMIX_ERR_NOT_FOUND;
    atomic_store(&state->connected, 1);
    if (done)
        done(PMIX_SUCCESS, context);
    return PMIX_SUCCESS;
}

static pmix_status_t on_finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t done,
                                  void *context)
{
    struct rank_state *state = state_of(proc);

    (void)object;
    if (state)
        atomic_store(&state->finalized, 1);
    if (done)
        done(PMIX_SUCCESS, context);
    return PMIX_SUCCESS;
}

static pmix_status_t on_abort(const pmix_proc_t *proc, void *object, int status, const char text[],
                              pmix_proc_t procs[], size_t n_procs, pmix_op_cbfunc_t done,
                              void *context)
{
    struct rank_state *state = state_of(proc);
    struct launch_server *server = atomic_load(&the_server);

    (void)object;
    (void)procs;
    (void)n_procs;
    if (state && !atomic_load(&state->aborted)) {
        state->call.rank = (int)proc->rank;
        state->call.status = status;
        snprintf(state->call.text, sizeof state->call.text, "%s", text ? text : "");
        atomic_store(&state->aborted, 1);
        eventfd_write(server->wake_fd, 1);
    }
    if (done)
        done(PMIX_SUCCESS, context);
    return PMIX_SUCCESS;
}

/*
 * On one node the library settles fences itself while all live. Asked after a death it must be told
 * no, or the survivors believe that all came.
 */
static pmix_status_t on_fence(const pmix_proc_t procs[], size_t n_procs, const pmix_info_t info[],
                              size_t n_info, char *data, size_t n_bytes, pmix_modex_cbfunc_t done,
                              void *context)
{
    struct launch_server *server = atomic_load(&the_server);
    int refuse = !server || atomic_load(&server->somebody_died);

    (void)procs;
    (void)n_procs;
    (void)info;
    (void)n_info;
    if (!done)
        return PMIX_SUCCESS;
    if (refuse)
        done(PMIX_ERR_PROC_ABORTED, NULL, 0, context, NULL, NULL);
    else
        done(PMIX_SUCCESS, data, n_bytes, context, NULL, NULL);
    return PMIX_SUCCESS;
}

static pmix_server_module_t module = {
    .client_finalized = on_finalized,
    .abort = on_abort,
    .fence_nb = on_fence,
    .client_connected2 = on_connected,
};

static pmix_status_t init_library(const char *folder)
{
    pmix_info_t info[2];

    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TMPDIR, folder, PMIX_STRING);
    PMIX_INFO_LOAD(&info[1], PMIX_SYSTEM_TMPDIR, folder, PMIX_STRING);
    pmix_status_t status = PMIx_server_init(&module, info, 2);
    PMIX_INFO_DESTRUCT(&info[0]);
    PMIX_INFO_DESTRUCT(&info[1]);
    return status;
}

/* "0,1,2": the ranks of our only node. */
static char *list_ranks(int n_ranks)
{
    size_t capacity = 12 * (size_t)n_ranks, used = 0;
    char *text = malloc(capacity);

    CHECK(text);
    for (int rank = 0; rank < n_ranks; rank++)
        used += (size_t)snprintf(text + used, capacity - used, rank ? ",%d" : "%d", rank);
    return text;
}

static int register_job(struct launch_server *server, struct err *err)
{
    char host[256] = "localhost";
    char *node_map = NULL, *rank_map = NULL;
    uint32_t size = (uint32_t)server->n_ranks;
    pmix_info_t info[4];

    gethostname(host, sizeof host - 1);
    char *ranks = list_ranks(server->n_ranks);
    pmix_status_t status = PMIx_generate_regex(host, &node_map);
    if (status == PMIX_SUCCESS)
        status = PMIx_generate_ppn(ranks, &rank_map);
    free(ranks);
    if (status != PMIX_SUCCESS) {
        free(node_map);
        return pmix_failed(err, "PMIx_generate_regex", status);
    }
    PMIX_INFO_LOAD(&info[0], PMIX_NODE_MAP, node_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[1], PMIX_PROC_MAP, rank_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[2], PMIX_JOB_SIZE, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[3], PMIX_UNIV_SIZE, &size, PMIX_UINT32);
    status = PMIx_server_register_nspace(server->nspace, server->n_ranks, info, 4, NULL, NULL);
    for (int i = 0; i < 4; i++)
        PMIX_INFO_DESTRUCT(&info[i]);
    free(node_map);
    free(rank_map);
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
        return pmix_failed(err, "PMIx_server_register_nspace", status);
    return 0;
}

static int register_ranks(struct launch_server *server, struct err *err)
{
    pmix_status_t status = PMIx_server_setup_local_support(server->nspace, NULL, 0, NULL, NULL);

    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
        return pmix_failed(err, "PMIx_server_setup_local_support", status);
    for (int rank = 0; rank < server->n_ranks; rank++) {
        pmix_proc_t proc;

        PMIX_LOAD_PROCID(&proc, server->nspace, (pmix_rank_t)rank);
        status = PMIx_server_register_client(&proc, getuid(), getgid(), server, NULL, NULL);
        if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
            return pmix_failed(err, "PMIx_server_register_client", status);
    }
    return 0;
}

int launch_server_start(struct launch_server **server, const char *folder, int n_ranks,
                        struct err *err)
{
    struct launch_server *made = calloc(1, sizeof *made + sizeof made->ranks[0] * (size_t)n_ranks);
    struct timespec now;

    CHECK(made);
    if (atomic_load(&the_server)) {
        free(made);
        return err_set(err, ERR_FAILED, "this process has been a PMIx server before");
    }
    made->n_ranks = n_ranks;
    made->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made->wake_fd < 0) {
        free(made);
        return err_set_errno(err, ERR_FAILED, "eventfd");
    }
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(made->nspace, sizeof made->nspace, "lmtrain-%d-%lld%09ld", (int)getpid(),
             (long long)now.tv_sec, now.tv_nsec);
    pmix_status_t status = init_library(folder);
    if (status != PMIX_SUCCESS) {
        close(made->wake_fd);
        free(made);
        return pmix_failed(err, "PMIx_server_init", status);
    }
    atomic_store(&the_server, made); /* for good: upcalls may come as long as the process lives */
    if (register_job(made, err) || register_ranks(made, err))
        return -1;
    *server = made;
    return 0;
}

int launch_server_environment(struct launch_server *server, int rank, char ***environment,
                              struct err *err)
{
    pmix_proc_t proc;

    PMIX_LOAD_PROCID(&proc, server->nspace, (pmix_rank_t)rank);
    pmix_status_t status = PMIx_server_setup_fork(&proc, environment);
    return status == PMIX_SUCCESS ? 0 : pmix_failed(err, "PMIx_server_setup_fork", status);
}

int launch_server_fd(const struct launch_server *server)
{
    return server->wake_fd;
}

int launch_server_next_abort(struct launch_server *server, struct launch_abort_call *call)
{
    eventfd_t count;

    eventfd_read(server->wake_fd, &count);
    for (int rank = 0; rank < server->n_ranks; rank++) {
        struct rank_state *state = &server->ranks[rank];

        if (atomic_load(&state->aborted) && !state->call_taken) {
            state->call_taken = 1;
            *call = state->call;
            return 1;
        }
    }
    return 0;
}

int launch_server_connected(const struct launch_server *server, int rank)
{
    return atomic_load(&server->ranks[rank].connected);
}

int launch_server_finalized(const struct launch_server *server, int rank)
{
    return atomic_load(&server->ranks[rank].finalized);
}

void launch_server_rank_died(struct launch_server *server)
{
    atomic_store(&server->somebody_died, 1);
}
