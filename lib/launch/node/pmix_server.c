/*
 * pmix_server.c - the calls that make this process a PMIx server, and its upcalls
 *
 * What is registered is what PMIx clients and Open MPI need: node map, rank map, job and universe
 * size; the library derives the rest. The namespace is unique per launch because Open MPI names its
 * shared memory by it, and secret because it authenticates ranks (pmix_gate_impl.h).
 *
 * PMIx_server_finalize is not called: a half-open connection can block it, and at that point all
 * ranks have ended and the process is about to exit.
 */
#include "launch/node/pmix_server_impl.h"

#include <pmix.h>
#include <pmix_server.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "launch/node/pmix_gate_impl.h"
#include "launch/node/pmix_listener_impl.h"

static const double first_message_seconds = 5;

/* A fence or a card request that the head has not answered. */
struct pending_call {
    struct pending_call *next;
    uint32_t id;
    pmix_modex_cbfunc_t done;
    void *context;
};

struct launch_server {
    int n_ranks, first_rank, n_local;
    int wake_fd;
    struct pmix_gate *gate;
    pmix_nspace_t nspace;
    pthread_mutex_t lock; /* for all below */
    bool a_rank_died;
    uint32_t last_id;
    struct pending_call *pending;
    struct launch_event *first, **last;
    _Atomic int finalized[]; /* by local rank */
};

/* The fence's upcall is given no object of ours; PMIx has one server per process anyway. */
static struct launch_server *_Atomic the_server;

static int pmix_failed(struct err *err, const char *call, pmix_status_t status)
{
    return err_set(err, ERR_FAILED, "%s: %s", call, PMIx_Error_string(status));
}

/* ---- the queue ---- */

void launch_event_destroy(struct launch_event *event)
{
    if (!event)
        return;
    free(event->text);
    free(event->data);
    free(event);
}

/* A copy of event with its own text and data, at the queue's end. */
static void push(struct launch_server *server, const struct launch_event *event)
{
    struct launch_event *made = malloc(sizeof *made);

    CHECK(made);
    *made = *event;
    made->next = NULL;
    made->text = strdup(event->text ? event->text : "");
    made->data = malloc(event->n_bytes + 1);
    CHECK(made->text);
    CHECK(made->data);
    if (event->n_bytes)
        memcpy(made->data, event->data, event->n_bytes);
    pthread_mutex_lock(&server->lock);
    *server->last = made;
    server->last = &made->next;
    pthread_mutex_unlock(&server->lock);
    eventfd_write(server->wake_fd, 1);
}

int launch_server_fd(const struct launch_server *server)
{
    return server->wake_fd;
}

struct launch_event *launch_server_next(struct launch_server *server)
{
    eventfd_t count;

    eventfd_read(server->wake_fd, &count);
    pthread_mutex_lock(&server->lock);
    struct launch_event *event = server->first;
    if (event) {
        server->first = event->next;
        if (!server->first)
            server->last = &server->first;
    }
    pthread_mutex_unlock(&server->lock);
    return event;
}

/* Keep a call of PMIx until the head answers it; returns its id, 0 if a rank has died. */
static uint32_t note_pending(struct launch_server *server, pmix_modex_cbfunc_t done, void *context)
{
    struct pending_call *made = malloc(sizeof *made);
    uint32_t id = 0;

    CHECK(made);
    pthread_mutex_lock(&server->lock);
    if (!server->a_rank_died) {
        id = ++server->last_id ? server->last_id : ++server->last_id;
        *made = (struct pending_call){ server->pending, id, done, context };
        server->pending = made;
    }
    pthread_mutex_unlock(&server->lock);
    if (!id)
        free(made);
    return id;
}

static pmix_status_t status_of(enum launch_outcome outcome)
{
    switch (outcome) {
    case OUTCOME_DONE:
        return PMIX_SUCCESS;
    case OUTCOME_TIMEOUT:
        return PMIX_ERR_TIMEOUT;
    case OUTCOME_NOT_FOUND:
        return PMIX_ERR_NOT_FOUND;
    default:
        return PMIX_ERR_PROC_ABORTED;
    }
}

void launch_server_settle(struct launch_server *server, uint32_t id, enum launch_outcome outcome,
                          const void *data, size_t n_bytes)
{
    pthread_mutex_lock(&server->lock);
    struct pending_call **at = &server->pending;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct pending_call *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&server->lock);
    if (!found)
        return;
    /* The library reads it on its own thread and then calls free. */
    char *copy = n_bytes ? malloc(n_bytes) : NULL;
    if (n_bytes) {
        CHECK(copy);
        memcpy(copy, data, n_bytes);
    }
    found->done(status_of(outcome), copy, n_bytes, found->context, free, copy);
    free(found);
}

void launch_server_rank_died(struct launch_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->a_rank_died = true;
    struct pending_call *pending = server->pending;
    server->pending = NULL;
    pthread_mutex_unlock(&server->lock);
    while (pending) {
        struct pending_call *next = pending->next;

        pending->done(PMIX_ERR_PROC_ABORTED, NULL, 0, pending->context, NULL, NULL);
        free(pending);
        pending = next;
    }
}

/* ---- upcalls, on the library's thread ---- */

/* Our server, if proc is a rank of this node; *local its place here. */
static struct launch_server *server_of(const pmix_proc_t *proc, int *local)
{
    struct launch_server *server = atomic_load(&the_server);

    if (!server || strncmp(proc->nspace, server->nspace, PMIX_MAX_NSLEN) ||
        proc->rank < (pmix_rank_t)server->first_rank ||
        proc->rank - (pmix_rank_t)server->first_rank >= (pmix_rank_t)server->n_local)
        return NULL;
    *local = (int)proc->rank - server->first_rank;
    return server;
}

static pmix_status_t on_connected(const pmix_proc_t *proc, void *object, pmix_info_t info[],
                                  size_t n_info, pmix_op_cbfunc_t done, void *context)
{
    int local;

    (void)object;
    (void)info;
    (void)n_info;
    if (!server_of(proc, &local))
        return PMIX_ERR_NOT_FOUND;
    if (done)
        done(PMIX_SUCCESS, context);
    return PMIX_SUCCESS;
}

static pmix_status_t on_finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t done,
                                  void *context)
{
    int local;
    struct launch_server *server = server_of(proc, &local);

    (void)object;
    if (server)
        atomic_store(&server->finalized[local], 1);
    if (done)
        done(PMIX_SUCCESS, context);
    return PMIX_SUCCESS;
}

static pmix_status_t on_abort(const pmix_proc_t *proc, void *object, int status, const char text[],
                              pmix_proc_t procs[], size_t n_procs, pmix_op_cbfunc_t done,
                              void *context)
{
    char words[1024];
    int local;
    struct launch_server *server = server_of(proc, &local);

    (void)object;
    (void)procs;
    (void)n_procs;
    snprintf(words, sizeof words, "%s", text ? text : "");
    if (server)
        push(server,
             &(struct launch_event){
                 .kind = EVENT_ABORT, .rank = (int)proc->rank, .number = status, .text = words });
    if (done)
        done(PMIX_SUCCESS, context);
    return PMIX_SUCCESS;
}

static int compare_ranks(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/* "*" if all ranks of the job take part, else "0,3" in rising order; NULL if others do. Heap. */
static char *name_members(const struct launch_server *server, const pmix_proc_t procs[],
                          size_t n_procs)
{
    int *ranks = calloc(n_procs + 1, sizeof *ranks);
    struct str text = { 0 };
    int is_all = n_procs == (size_t)server->n_ranks, is_ours = 1;

    CHECK(ranks);
    for (size_t i = 0; i < n_procs && is_ours; i++) {
        is_ours = !strncmp(procs[i].nspace, server->nspace, PMIX_MAX_NSLEN);
        if (procs[i].rank == PMIX_RANK_WILDCARD)
            is_all = 1;
        else
            is_ours = is_ours && procs[i].rank < (pmix_rank_t)server->n_ranks;
        ranks[i] = (int)procs[i].rank;
    }
    if (is_ours && is_all) {
        str_add(&text, "*");
    } else if (is_ours) {
        qsort(ranks, n_procs, sizeof *ranks, compare_ranks);
        for (size_t i = 0; i < n_procs; i++)
            str_printf(&text, i ? ",%d" : "%d", ranks[i]);
    }
    free(ranks);
    return text.data;
}

/* The seconds that the callers gave, 0 if none: once all of a node are here it is our business. */
static int timeout_of(const pmix_info_t info[], size_t n_info)
{
    for (size_t i = 0; i < n_info; i++)
        if (!strncmp(info[i].key, PMIX_TIMEOUT, PMIX_MAX_KEYLEN) && info[i].value.type == PMIX_INT)
            return info[i].value.data.integer > 0 ? info[i].value.data.integer : 0;
    return 0;
}

/*
 * All ranks of this node are at a fence in which other nodes take part as well; head_fences.c has
 * the order of messages. The library completes fences within one node itself while all ranks live.
 * After a death it calls this for them, too, and gets an error, since else the survivors would
 * believe that all ranks had come. data is ours to free.
 */
static pmix_status_t on_fence(const pmix_proc_t procs[], size_t n_procs, const pmix_info_t info[],
                              size_t n_info, char *data, size_t n_bytes, pmix_modex_cbfunc_t done,
                              void *context)
{
    struct launch_server *server = atomic_load(&the_server);
    char *members = server ? name_members(server, procs, n_procs) : NULL;
    uint32_t id = members && done ? note_pending(server, done, context) : 0;

    if (id)
        push(server, &(struct launch_event){ .kind = EVENT_FENCE,
                                             .id = id,
                                             .number = timeout_of(info, n_info),
                                             .text = members,
                                             .data = data,
                                             .n_bytes = n_bytes });
    else if (done)
        done(PMIX_ERR_PROC_ABORTED, NULL, 0, context, NULL, NULL);
    free(members);
    free(data);
    return PMIX_SUCCESS;
}

static pmix_status_t on_modex(const pmix_proc_t *proc, const pmix_info_t info[], size_t n_info,
                              pmix_modex_cbfunc_t done, void *context)
{
    struct launch_server *server = atomic_load(&the_server);

    (void)info;
    (void)n_info;
    if (!server || strncmp(proc->nspace, server->nspace, PMIX_MAX_NSLEN) ||
        proc->rank >= (pmix_rank_t)server->n_ranks)
        return PMIX_ERR_NOT_FOUND;
    uint32_t id = note_pending(server, done, context);
    if (!id)
        return PMIX_ERR_PROC_ABORTED;
    push(server,
         &(struct launch_event){ .kind = EVENT_CARD_REQUEST, .id = id, .rank = (int)proc->rank });
    return PMIX_SUCCESS;
}

static pmix_server_module_t module = {
    .client_finalized = on_finalized,
    .abort = on_abort,
    .fence_nb = on_fence,
    .direct_modex = on_modex,
    .client_connected2 = on_connected,
};

/* ---- card requests of other nodes ---- */

struct card_request {
    int node;
    uint32_t id;
};

static void on_card(pmix_status_t status, char *data, size_t n_bytes, void *context)
{
    struct card_request *request = context;
    struct launch_server *server = atomic_load(&the_server);

    push(server, &(struct launch_event){ .kind = EVENT_CARD,
                                         .node = request->node,
                                         .id = request->id,
                                         .number = status == PMIX_SUCCESS ? OUTCOME_DONE
                                                                          : OUTCOME_NOT_FOUND,
                                         .data = data,
                                         .n_bytes = status == PMIX_SUCCESS && data ? n_bytes : 0 });
    free(request);
}

void launch_server_query_card(struct launch_server *server, int rank, int node, uint32_t id)
{
    struct card_request *request = malloc(sizeof *request);
    pmix_proc_t proc;

    CHECK(request);
    *request = (struct card_request){ node, id };
    PMIX_LOAD_PROCID(&proc, server->nspace, (pmix_rank_t)rank);
    pmix_status_t status = PMIx_server_dmodex_request(&proc, on_card, request);
    if (status != PMIX_SUCCESS)
        on_card(status, NULL, 0, request);
}

/* ---- start ---- */

/* On the gate's thread. */
static void on_report(void *context, const char *text)
{
    char words[512];

    snprintf(words, sizeof words, "%s", text);
    push(context, &(struct launch_event){ .kind = EVENT_REPORT, .text = words });
}

/* The library, listening where only our gate connects to. */
static int init_library(struct launch_server *server, const char *folder, const char *host,
                        struct err *err)
{
    struct pmix_gate_options options = { .nspace = server->nspace,
                                         .first_rank = server->first_rank,
                                         .n_ranks = server->n_local,
                                         .uid = getuid(),
                                         .first_message_seconds = first_message_seconds,
                                         .report = on_report,
                                         .context = server };
    struct tcp_listeners before;
    char path[64];
    pmix_info_t info[3];

    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TMPDIR, folder, PMIX_STRING);
    PMIX_INFO_LOAD(&info[1], PMIX_SYSTEM_TMPDIR, folder, PMIX_STRING);
    PMIX_INFO_LOAD(&info[2], PMIX_HOSTNAME, host, PMIX_STRING);
    tcp_listeners_find(&before);
    pmix_status_t status = PMIx_server_init(&module, info, 3);
    for (int i = 0; i < 3; i++)
        PMIX_INFO_DESTRUCT(&info[i]);
    if (status != PMIX_SUCCESS)
        return pmix_failed(err, "PMIx_server_init", status);
    options.backend = path;
    if (pmix_listener_replace(&before, folder, &options.listener, path, sizeof path, err))
        return -1;
    return pmix_gate_start(&server->gate, &options, err);
}

/* The maps as PMIx packs them, from "a,b" and "0,1;2,3". */
static pmix_status_t make_maps(const struct job_spec *spec, char **node_map, char **rank_map)
{
    struct str hosts = { 0 }, ranks = { 0 };

    for (int i = 0; i < spec->n_nodes; i++) {
        const struct job_node *node = &spec->nodes[i];

        str_printf(&hosts, i ? ",%s" : "%s", node->name);
        if (i)
            str_add(&ranks, ";");
        for (int k = 0; k < node->n_ranks; k++)
            str_printf(&ranks, k ? ",%d" : "%d", node->first_rank + k);
    }
    pmix_status_t status = PMIx_generate_regex(str_text(&hosts), node_map);
    if (status == PMIX_SUCCESS)
        status = PMIx_generate_ppn(str_text(&ranks), rank_map);
    str_release(&hosts);
    str_release(&ranks);
    return status;
}

static int register_job(struct launch_server *server, const struct job_spec *spec, struct err *err)
{
    char *node_map = NULL, *rank_map = NULL;
    uint32_t size = (uint32_t)server->n_ranks;
    pmix_info_t info[4];
    pmix_status_t status = make_maps(spec, &node_map, &rank_map);

    if (status != PMIX_SUCCESS) {
        free(node_map);
        return pmix_failed(err, "PMIx_generate_regex", status);
    }
    PMIX_INFO_LOAD(&info[0], PMIX_NODE_MAP, node_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[1], PMIX_PROC_MAP, rank_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[2], PMIX_JOB_SIZE, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[3], PMIX_UNIV_SIZE, &size, PMIX_UINT32);
    status = PMIx_server_register_nspace(server->nspace, server->n_local, info, 4, NULL, NULL);
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
    for (int i = 0; i < server->n_local; i++) {
        pmix_proc_t proc;

        PMIX_LOAD_PROCID(&proc, server->nspace, (pmix_rank_t)(server->first_rank + i));
        status = PMIx_server_register_client(&proc, getuid(), getgid(), server, NULL, NULL);
        if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
            return pmix_failed(err, "PMIx_server_register_client", status);
    }
    return 0;
}

int launch_server_start(struct launch_server **server, const char *folder,
                        const struct job_spec *spec, struct err *err)
{
    const struct job_node *node = &spec->nodes[spec->node];
    size_t n_local = (size_t)node->n_ranks;

    if (atomic_load(&the_server))
        return err_set(err, ERR_FAILED, "this process has been a PMIx server before");
    struct launch_server *made = calloc(1, sizeof *made + sizeof made->finalized[0] * n_local);
    CHECK(made);
    made->n_ranks = spec->n_ranks;
    made->first_rank = node->first_rank;
    made->n_local = node->n_ranks;
    made->last = &made->first;
    pthread_mutex_init(&made->lock, NULL);
    snprintf(made->nspace, sizeof made->nspace, "%s", spec->nspace);
    made->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made->wake_fd < 0) {
        free(made);
        return err_set_errno(err, ERR_FAILED, "eventfd");
    }
    atomic_store(&the_server, made); /* for good: upcalls may come as long as the process lives */
    if (init_library(made, folder, node->name, err) || register_job(made, spec, err) ||
        register_ranks(made, err))
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

int launch_server_finalized(const struct launch_server *server, int rank)
{
    return atomic_load(&server->finalized[rank - server->first_rank]);
}
