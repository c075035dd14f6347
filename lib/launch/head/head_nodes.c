/*
 * head_nodes.c - daemons: forked here, reached through ssh elsewhere
 */
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/environment_impl.h"
#include "launch/head/head_impl.h"
#include "launch/job_folder_impl.h"
#include "launch/node/daemon.h"

static const double connect_seconds = 60;
static const double goodbye_seconds = 2;

enum { CREDIT_BYTES = 256 << 10, PROGRESS_MS = 250 };

/* ---- a daemon on this machine ---- */

static void run_daemon(int fd)
{
    enum { LINK_FD = STDERR_FILENO + 1 };

    screen_forget();
    setpgid(0, 0); /* the terminal's signals are for the head */
    if (fd != LINK_FD)
        dup2(fd, LINK_FD);
    close_range(LINK_FD + 1, ~0u, 0);
    _exit(launch_daemon(LINK_FD, link_lost_seconds()));
}

static int fork_daemon(struct launch_head *head, struct head_node *node, struct err *err)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return err_set_errno(err, ERR_FAILED, "cannot make a socket pair");
    fflush(NULL);
    screen_before_fork(head->console->screen);
    pid_t pid = fork();
    if (pid)
        screen_after_fork(head->console->screen);
    if (!pid) {
        close(ends[0]);
        run_daemon(ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return err_set_errno(err, ERR_FAILED, "cannot start a process");
    }
    node->daemon = pid;
    link_open(&node->link, ends[0], head->lost_seconds);
    return 0;
}

/*
 * A daemon of this machine that is gone, or has to be: take it, what is left of its ranks (which
 * came to us, see supervise.c) and its folder.
 */
static void clean_up_after(struct launch_head *head, int index)
{
    struct head_node *node = &head->nodes[index];
    double deadline = clock_seconds() + goodbye_seconds;

    if (!node->daemon)
        return;
    kill(node->daemon, SIGKILL);
    while (waitpid(node->daemon, NULL, 0) < 0 && errno == EINTR)
        ;
    node->daemon = 0;
    for (int i = 0; i < node->n_ranks; i++) {
        struct head_rank *rank = &head->ranks[node->first_rank + i];
        siginfo_t info = { 0 };

        /* Only if it is a child of this process now: else the pid may have been reused. */
        if (!rank->running || !rank->pid ||
            waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOHANG | WNOWAIT))
            continue;
        kill(-rank->pid, SIGKILL);
        while (!waitpid(rank->pid, NULL, WNOHANG) && clock_seconds() < deadline)
            usleep(500);
    }
    job_folder_sweep(job_folder_parent());
}

/* ---- opening ---- */

/* Whether a host of the list is this machine, so that it needs no ssh. */
static int is_here(const char *name)
{
    char host[256] = "";

    gethostname(host, sizeof host - 1);
    if (!strcmp(name, "localhost") || !strcmp(name, host))
        return 1;
    host[strcspn(host, ".")] = '\0';
    return !strcmp(name, host);
}

static void add_node(struct launch_head *head, const char *host, int host_index, int n_ranks)
{
    struct head_node *node = &head->nodes[head->n_nodes];

    *node = (struct head_node){ .host = host, .host_index = host_index, .n_ranks = n_ranks };
    node->link.fd = -1;
    if (head->n_nodes)
        node->first_rank = node[-1].first_rank + node[-1].n_ranks;
    for (int i = 0; i < n_ranks; i++)
        head->ranks[node->first_rank + i].node = head->n_nodes;
    head->n_nodes++;
}

/* What is missing, with ssh's words, and which hosts are to be left out from now on. */
static int report_missing(struct launch_head *head, const int *n_ranks_of, char (*reasons)[512],
                          enum host_state *states, struct err *err)
{
    struct str text = { 0 };
    int n_missing = 0;

    for (int i = 0; i < head->options->hosts->n_hosts; i++) {
        if (!n_ranks_of[i] || head->host_links[i].fd >= 0)
            continue;
        states[i] = HOST_LOST;
        if (n_missing++ < 4)
            str_printf(&text, "%s%s", text.length ? "; " : "", reasons[i]);
    }
    if (n_missing > 4)
        str_printf(&text, "; and %d more", n_missing - 4);
    err_set(err, ERR_FAILED, "%s", str_text(&text));
    str_release(&text);
    return -1;
}

static int connect_hosts(struct launch_head *head, const int *n_ranks_of, enum host_state *states,
                         struct err *err)
{
    const struct host_list *hosts = head->options->hosts;
    int n_wanted = 0, status = 0;
    int *n_far = arena_array(&head->arena, int, hosts->n_hosts);
    char(*reasons)[512] = calloc((size_t)hosts->n_hosts, sizeof *reasons);

    CHECK(reasons);
    for (int k = 0; k < head->n_nodes; k++)
        if (!head->nodes[k].daemon) {
            n_far[head->nodes[k].host_index] = n_ranks_of[head->nodes[k].host_index];
            n_wanted++;
        }
    if (n_wanted) {
        head->host_links = arena_array(&head->arena, struct host_link, hosts->n_hosts);
        int n = hosts_connect(hosts, n_far, connect_seconds, head->host_links, reasons, err);
        if (n < 0)
            status = -1;
        else if (n < n_wanted)
            status = report_missing(head, n_far, reasons, states, err);
    }
    for (int k = 0; k < head->n_nodes && n_wanted && !status; k++)
        if (!head->nodes[k].daemon) {
            struct host_link *link = &head->host_links[head->nodes[k].host_index];

            link_open(&head->nodes[k].link, link->fd, head->lost_seconds);
            link->fd = -1;
        }
    free(reasons);
    return status;
}

/* The daemons of this machine first: what is forked later would hold the other links open. */
static int open_hosts(struct launch_head *head, enum host_state *states, struct err *err)
{
    const struct host_list *hosts = head->options->hosts;
    struct host_list left = { 0 };
    struct host *list = arena_array(&head->arena, struct host, hosts->n_hosts);
    int *dealt = arena_array(&head->arena, int, hosts->n_hosts);
    int *n_ranks_of = arena_array(&head->arena, int, hosts->n_hosts);

    for (int i = 0; i < hosts->n_hosts; i++)
        if (states[i] == HOST_USED)
            list[left.n_hosts++] = hosts->hosts[i];
    left.hosts = list;
    if (hosts_deal(&left, head->n_ranks, dealt, err))
        return -1;
    for (int i = 0, k = 0; i < hosts->n_hosts; i++)
        if (states[i] == HOST_USED)
            n_ranks_of[i] = dealt[k++];
    head->nodes = arena_array(&head->arena, struct head_node, hosts->n_hosts);
    for (int i = 0; i < hosts->n_hosts; i++) {
        if (!n_ranks_of[i])
            continue;
        add_node(head, hosts->hosts[i].name, i, n_ranks_of[i]);
        struct head_node *node = &head->nodes[head->n_nodes - 1];
        if (is_here(node->host) && fork_daemon(head, node, err))
            return -1;
    }
    return connect_hosts(head, n_ranks_of, states, err);
}

int head_open_nodes(struct launch_head *head, enum host_state *states, struct err *err)
{
    static char host[256] = "localhost";

    if (head->options->hosts)
        return open_hosts(head, states, err);
    gethostname(host, sizeof host - 1);
    head->nodes = arena_new(&head->arena, struct head_node);
    add_node(head, host, -1, head->n_ranks);
    return fork_daemon(head, &head->nodes[0], err);
}

enum { SECRET_BYTES = 16, NSPACE_BYTES = 128 };

/* A name that is unique to this launch and cannot be guessed: the ranks' secret. */
static void make_nspace(char nspace[NSPACE_BYTES])
{
    unsigned char secret[SECRET_BYTES];
    char hex[2 * SECRET_BYTES + 1];

    CHECK(getentropy(secret, sizeof secret) == 0);
    sodium_bin2hex(hex, sizeof hex, secret, sizeof secret);
    snprintf(nspace, NSPACE_BYTES, "lmtrain-%d-%s", (int)getpid(), hex);
}

/* What travels, with room for LMTRAIN_HOST. */
static char **copy_variables(struct launch_head *head)
{
    char *const *travelling = job_spec_variables(environ, &head->arena);
    int n = 0;

    while (travelling[n])
        n++;
    char **variables = arena_array(&head->arena, char *, n + 2);
    memcpy(variables, travelling, (size_t)n * sizeof *variables);
    return variables;
}

/* A rank learns how its host is called here (excluded.h). */
static void name_host(struct launch_head *head, char **variables, const struct head_node *node)
{
    int last = 0;

    while (variables[last] && !str_starts_with(variables[last], HOST_VARIABLE "="))
        last++;
    variables[last] = arena_printf(&head->arena, HOST_VARIABLE "=%s", node->host);
}

void head_send_specs(struct launch_head *head)
{
    char **variables = copy_variables(head);
    struct job_node *nodes = arena_array(&head->arena, struct job_node, head->n_nodes);
    char *cwd = getcwd(NULL, 0), nspace[NSPACE_BYTES];
    struct str bytes = { 0 };

    make_nspace(nspace);
    for (int i = 0; i < head->n_nodes; i++)
        nodes[i] = (struct job_node){ .name = head->nodes[i].name,
                                      .first_rank = head->nodes[i].first_rank,
                                      .n_ranks = head->nodes[i].n_ranks };
    struct job_spec spec = { .nspace = nspace,
                             .cwd = cwd ? cwd : "/",
                             .attempt = head->attempt,
                             .n_ranks = head->n_ranks,
                             .n_nodes = head->n_nodes,
                             .nodes = nodes,
                             .argv = head->argv,
                             .variables = variables,
                             .progress_ms = PROGRESS_MS,
                             .credit_bytes = CREDIT_BYTES };
    head->is_started = true;
    for (int i = 0; i < head->n_nodes; i++) {
        bool is_local = head->nodes[i].daemon > 0;

        name_host(head, variables, &head->nodes[i]);
        spec.node = i;
        spec.has_screen = is_local && !head->nodes[i].first_rank;
        spec.beat_ms = is_local ? 0 : (int)(head->lost_seconds * 250);
        str_clear(&bytes);
        job_spec_encode(&spec, &bytes);
        link_send(
            &head->nodes[i].link,
            &(struct message){ .kind = MESSAGE_START, .start.spec = { bytes.data, bytes.length } });
    }
    str_release(&bytes);
    free(cwd);
}

void head_send_all(struct launch_head *head, const struct message *message)
{
    for (int i = 0; i < head->n_nodes; i++)
        link_send(&head->nodes[i].link, message);
}

/* ---- closing ---- */

/* Wait until the daemon has closed its side, which it does last. */
static void wait_for_close(struct head_node *node, double deadline)
{
    struct message message;
    struct err err;

    while (node->link.fd >= 0 && clock_seconds() < deadline) {
        struct pollfd ready = link_poll(&node->link);

        poll(&ready, 1, 50);
        link_flush(&node->link);
        int closed = link_receive(&node->link, &err);
        while (link_next(&node->link, &message, &err) > 0)
            ;
        if (closed)
            return;
    }
}

static void wait_for_daemon(struct head_node *node, double deadline)
{
    while (node->daemon && clock_seconds() < deadline) {
        if (waitpid(node->daemon, NULL, WNOHANG) == node->daemon)
            node->daemon = 0;
        else
            usleep(200);
    }
}

void head_close_nodes(struct launch_head *head)
{
    double deadline = clock_seconds() + goodbye_seconds;

    head_send_all(head, &(struct message){ .kind = MESSAGE_GOODBYE });
    for (int i = 0; i < head->n_nodes; i++) {
        struct head_node *node = &head->nodes[i];

        wait_for_close(node, deadline);
        if (!node->is_lost)
            wait_for_daemon(node, deadline);
        clean_up_after(head, i);
        link_close(&node->link);
    }
    if (head->host_links)
        hosts_close(head->host_links, head->options->hosts->n_hosts);
}
