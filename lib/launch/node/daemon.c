/*
 * daemon.c - the loop between the link and the ranks
 *
 * One loop waits for the link, children (by a signalfd), the PMIx library's thread (by an eventfd),
 * the ranks' pipes, and the clock. Output is sent as far as the head has given credit; a rank that
 * prints faster blocks in its pipe. The messages of a rank that ends have an order, on which the
 * head relies:
 *
 *     1. OUTPUT with all that its pipes hold, whatever the credit;
 *     2. ABORT, if it called launch_abort;
 *     3. ENDED, with its wait status and its last slot.
 */
#include "launch/node/daemon.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/node/node_impl.h"
#include "launch/remote/link_impl.h"
#include "launch/watch/rank_gpu_impl.h"
#include "progress/status_file.h"

static const double kill_after_seconds = 0.3;
static const double gpu_seconds = 1; /* between looks at the ranks' GPUs */

enum { OUTPUT_BYTES = 16 << 10, N_READS_MAX = 64 };

struct daemon {
    struct link link;
    int signal_fd;
    struct arena arena;
    struct str spec_bytes;
    struct job_spec spec;
    bool has_job;
    struct local_node node;
    struct pollfd *polls;
    int64_t credit_bytes;
    double next_progress, next_gpus;
    struct gpu_watch *gpus; /* NULL: no rank has one, so far */
    bool has_death;         /* a rank has ended without launch_leave */
    enum { RUNNING, ENDING, KILLED } phase;
    double ending_since;
    bool is_over; /* goodbye, or the link is gone: leave once no rank is left */
    int status;
};

static void send_message(struct daemon *daemon, const struct message *message)
{
    link_send(&daemon->link, message);
}

/* ---- the ranks' ends ---- */

static void end_ranks(struct daemon *daemon)
{
    if (daemon->phase != RUNNING)
        return;
    daemon->phase = ENDING;
    daemon->ending_since = clock_seconds();
    if (!daemon->has_job)
        return;
    if (daemon->node.server)
        launch_server_rank_died(daemon->node.server);
    node_mark_over(&daemon->node);
    node_signal(&daemon->node, SIGTERM, TO_GROUPS);
    node_signal(&daemon->node, SIGCONT, TO_GROUPS); /* so that a stopped rank handles it */
}

static void kill_ranks(struct daemon *daemon)
{
    daemon->phase = KILLED;
    if (daemon->has_job)
        node_signal(&daemon->node, SIGKILL, TO_GROUPS);
}

static void leave(struct daemon *daemon, int status)
{
    daemon->is_over = true;
    daemon->status = status;
    end_ranks(daemon);
}

/* ---- from the ranks ---- */

enum output_limit { UP_TO_CREDIT, ALL_OUTPUT };

/* Send what a rank has printed: all that is there, or as much as the head has given credit for. */
static void pass_output(struct daemon *daemon, int index, enum output_limit limit)
{
    char bytes[OUTPUT_BYTES];

    for (int i = 0; i < N_READS_MAX && (limit == ALL_OUTPUT || daemon->credit_bytes > 0); i++) {
        bool is_stderr = false;
        size_t n = node_read(&daemon->node, index, bytes, sizeof bytes, &is_stderr);

        if (!n)
            return;
        daemon->credit_bytes -= (int64_t)n;
        send_message(daemon, &(struct message){ .kind = MESSAGE_OUTPUT,
                                                .output = { .rank = daemon->node.first_rank + index,
                                                            .is_stderr = is_stderr,
                                                            .bytes = { bytes, n } } });
    }
}

/* A copy of the rank's slot: the rank continues to write, so its text may be torn. */
static struct progress_slot copy_slot(const struct daemon *daemon, int index)
{
    struct progress_slot slot;

    memcpy(&slot, &daemon->node.page[index].slot, sizeof slot);
    return slot;
}

static void send_progress(struct daemon *daemon, int index, bool is_stopped)
{
    struct progress_slot slot = copy_slot(daemon, index);

    send_message(daemon, &(struct message){ .kind = MESSAGE_PROGRESS,
                                            .progress = { .rank = daemon->node.first_rank + index,
                                                          .is_stopped = is_stopped,
                                                          .slot = &slot } });
}

/*
 * Why a rank ended may be its GPU's. The first to end so is the cause: only for it is it worth
 * waiting.
 */
static void look_at_death(struct daemon *daemon, int index)
{
    struct progress_slot *slot = &daemon->node.page[index].slot;

    if (daemon->has_death || daemon->phase != RUNNING)
        rank_gpu_look(slot, &daemon->gpus);
    else
        rank_gpu_look_at_death(slot, &daemon->gpus);
    daemon->has_death = true;
}

static void take_abort(struct daemon *daemon, const struct launch_event *event)
{
    int index = event->rank - daemon->node.first_rank;

    pass_output(daemon, index, ALL_OUTPUT);
    look_at_death(daemon, index);
    struct progress_slot slot = copy_slot(daemon, index);
    send_message(daemon, &(struct message){ .kind = MESSAGE_ABORT,
                                            .abort = { .rank = event->rank,
                                                       .status = event->number,
                                                       .reason = event->text,
                                                       .slot = &slot } });
}

/* Send an event that needs nothing added; false if it is too long for a frame. */
static bool forward_event(struct daemon *daemon, const struct launch_event *event)
{
    struct message_bytes data = { event->data, event->n_bytes };
    struct message message = { 0 };

    if (event->n_bytes >= LINK_FRAME_MAX - MESSAGE_TEXT_MAX - 64)
        return false;
    switch (event->kind) {
    case EVENT_FENCE:
        message.kind = MESSAGE_FENCE;
        message.fence = (struct message_fence){
            .id = event->id, .seconds = event->number, .members = event->text, .data = data
        };
        break;
    case EVENT_CARD_REQUEST:
        message.kind = MESSAGE_CARD_REQUEST;
        message.card_request =
            (struct message_card_request){ .id = event->id, .rank = event->rank };
        break;
    case EVENT_CARD:
        message.kind = MESSAGE_CARD_REPLY;
        message.card_reply =
            (struct message_card_reply){ .node = event->node,
                                         .id = event->id,
                                         .outcome = (enum launch_outcome)event->number,
                                         .data = data };
        break;
    case EVENT_REPORT:
        message.kind = MESSAGE_REPORT;
        message.report.line = event->text;
        break;
    case EVENT_ABORT:
        return true;
    }
    send_message(daemon, &message);
    return true;
}

static void take_event(struct daemon *daemon, const struct launch_event *event)
{
    if (event->kind == EVENT_ABORT)
        take_abort(daemon, event);
    else if (!forward_event(daemon, event))
        launch_server_settle(daemon->node.server, event->id, OUTCOME_NOT_FOUND, NULL, 0);
}

static void take_events(struct daemon *daemon)
{
    struct launch_event *event;

    while ((event = launch_server_next(daemon->node.server))) {
        take_event(daemon, event);
        launch_event_destroy(event);
    }
}

static void reap(struct daemon *daemon)
{
    struct local_node *node = &daemon->node;

    for (int i = 0; i < node->n_ranks; i++) {
        struct rank_process *process = &node->ranks[i].process;

        if (!rank_process_reap(process))
            continue;
        node->n_running--;
        pass_output(daemon, i, ALL_OUTPUT);
        take_events(daemon); /* its calls of PMIx that came in the meantime */
        bool in_order = launch_server_finalized(node->server, node->first_rank + i);
        if (!in_order)
            look_at_death(daemon, i);
        struct progress_slot slot = copy_slot(daemon, i);
        send_message(daemon, &(struct message){ .kind = MESSAGE_ENDED,
                                                .ended = { .rank = node->first_rank + i,
                                                           .wait_status = process->wait_status,
                                                           .in_order = in_order,
                                                           .slot = &slot } });
    }
}

/* Send slots that have changed, and whether a rank without progress is stopped by a signal. */
static void tell_progress(struct daemon *daemon, double now)
{
    struct local_node *node = &daemon->node;

    daemon->next_progress = now + 1e-3 * daemon->spec.progress_ms;
    for (int i = 0; i < node->n_ranks; i++) {
        struct node_rank *rank = &node->ranks[i];
        uint64_t beat = atomic_load(&node->page[i].slot.beat);
        bool moved = beat != rank->told_beat;

        if (!rank->process.running)
            continue;
        bool stopped = !moved && rank_process_state(&rank->process) == 'T';
        if (!moved && stopped == rank->told_stopped)
            continue;
        rank->told_beat = beat;
        rank->told_stopped = stopped;
        send_progress(daemon, i, stopped);
    }
}

/*
 * Update the ranks' GPUs in their slots. A slot with a new Xid is sent at once; else the GPU's
 * state goes with the rank's next beat, or once after a second without progress, so that the report
 * of a hang has it.
 */
static void look_at_gpus(struct daemon *daemon, double now)
{
    struct local_node *node = &daemon->node;

    daemon->next_gpus = now + gpu_seconds;
    for (int i = 0; i < node->n_ranks; i++) {
        struct node_rank *rank = &node->ranks[i];
        struct progress_slot *slot = &node->page[i].slot;
        bool has_new_xid = rank_gpu_look(slot, &daemon->gpus);
        status_look_at_memory(slot, rank->process.running ? rank->process.pid : 0);
        uint64_t beat = atomic_load(&slot->beat);
        bool stands = beat == rank->gpu_beat && beat != rank->told_gpu_beat;

        rank->gpu_beat = beat;
        if (!rank->process.running || !atomic_load(&slot->gpu.n_seen) || !(has_new_xid || stands))
            continue;
        if (stands)
            rank->told_gpu_beat = beat;
        send_progress(daemon, i, rank->told_stopped);
    }
}

/* ---- from the head ---- */

static int start_job(struct daemon *daemon, struct message_bytes spec, struct err *err)
{
    struct local_node *node = &daemon->node;

    if (daemon->has_job)
        return err_set(err, ERR_PEER, "received a second job spec");
    str_add_bytes(&daemon->spec_bytes, spec.data, spec.n_bytes);
    if (job_spec_decode(&daemon->spec, str_text(&daemon->spec_bytes), spec.n_bytes, &daemon->arena,
                        err))
        return -1;
    daemon->has_job = true;
    daemon->credit_bytes = daemon->spec.credit_bytes;
    int status = node_open(node, &daemon->spec, err);
    free(daemon->polls);
    daemon->polls = calloc(2 * (size_t)node->n_ranks + 3, sizeof *daemon->polls);
    CHECK(daemon->polls);
    for (int i = 0; i < node->n_ranks && !status; i++) {
        status = node_start_rank(node, i, err);
        if (!status)
            send_message(daemon,
                         &(struct message){ .kind = MESSAGE_STARTED,
                                            .started = { .rank = node->first_rank + i,
                                                         .pid = node->ranks[i].process.pid } });
    }
    return status;
}

static void take_start(struct daemon *daemon, const struct message_start *start)
{
    struct err err;

    if (!start_job(daemon, start->spec, &err))
        return;
    send_message(daemon,
                 &(struct message){ .kind = MESSAGE_FAILED,
                                    .failed = { .code = (int)err.code, .reason = err.text } });
    kill_ranks(daemon);
}

static void take_signal(const struct local_node *node, const struct message_signal *message)
{
    if (message->signal > 0 && message->signal < SIGRTMIN)
        node_signal(node, message->signal, message->to_groups ? TO_GROUPS : TO_RANKS);
}

static void take_card_query(const struct local_node *node, const struct message_card_query *query)
{
    if (query->rank >= node->first_rank && query->rank - node->first_rank < node->n_ranks)
        launch_server_query_card(node->server, query->rank, query->node, query->id);
}

/* Messages to a running job. */
static void take_job_message(struct daemon *daemon, const struct message *message)
{
    struct local_node *node = &daemon->node;

    switch (message->kind) {
    case MESSAGE_CREDIT:
        daemon->credit_bytes += message->credit.n_bytes;
        break;
    case MESSAGE_SIGNAL:
        take_signal(node, &message->signal);
        break;
    case MESSAGE_FENCE_END:
        launch_server_settle(node->server, message->fence_end.id, message->fence_end.outcome,
                             message->fence_end.data.data, message->fence_end.data.n_bytes);
        break;
    case MESSAGE_CARD:
        launch_server_settle(node->server, message->card.id, message->card.outcome,
                             message->card.data.data, message->card.data.n_bytes);
        break;
    case MESSAGE_CARD_QUERY:
        take_card_query(node, &message->card_query);
        break;
    default:
        break;
    }
}

static void take_message(struct daemon *daemon, const struct message *message)
{
    switch (message->kind) {
    case MESSAGE_START:
        take_start(daemon, &message->start);
        break;
    case MESSAGE_END:
        end_ranks(daemon);
        break;
    case MESSAGE_KILL:
        kill_ranks(daemon);
        break;
    case MESSAGE_GOODBYE:
        leave(daemon, 0);
        break;
    default:
        if (daemon->has_job && daemon->node.server)
            take_job_message(daemon, message);
        break;
    }
}

static void take_messages(struct daemon *daemon)
{
    struct message message;
    struct err err;
    int closed = link_receive(&daemon->link, &err), found;

    while ((found = link_next(&daemon->link, &message, &err)) > 0)
        take_message(daemon, &message);
    if ((closed || found < 0) && !daemon->is_over)
        leave(daemon, ERR_PEER);
    if (closed || found < 0)
        link_close(&daemon->link);
}

/* ---- the loop ---- */

static int has_server(const struct daemon *daemon)
{
    return daemon->has_job && daemon->node.server;
}

/* Milliseconds until something is due; -1: nothing but events. */
static int timeout_ms(const struct daemon *daemon, double now)
{
    double due = 1e9;

    if (daemon->phase == ENDING)
        due = daemon->ending_since + kill_after_seconds - now;
    if (has_server(daemon) && daemon->spec.progress_ms && daemon->phase == RUNNING)
        due = fmin(due, fmin(daemon->next_progress, daemon->next_gpus) - now);
    if (daemon->has_job && daemon->spec.beat_ms && daemon->link.fd >= 0)
        due = fmin(due, daemon->link.sent_at + 1e-3 * daemon->spec.beat_ms - now);
    if (due >= 1e9)
        return -1;
    return due <= 0 ? 0 : (int)(due * 1000) + 1;
}

static void wait_for_events(struct daemon *daemon)
{
    struct pollfd few[3], *polls = daemon->polls ? daemon->polls : few;
    int n = 0;

    polls[n++] = (struct pollfd){ .fd = daemon->signal_fd, .events = POLLIN };
    polls[n++] = link_poll(&daemon->link); /* a closed one is passed over */
    if (has_server(daemon)) {
        polls[n++] =
            (struct pollfd){ .fd = launch_server_fd(daemon->node.server), .events = POLLIN };
        if (daemon->credit_bytes > 0)
            n += node_poll(&daemon->node, polls + n);
    }
    poll(polls, (nfds_t)n, timeout_ms(daemon, clock_seconds()));
}

static void loop(struct daemon *daemon)
{
    struct signalfd_siginfo info;

    while (!daemon->is_over || (daemon->has_job && daemon->node.n_running)) {
        wait_for_events(daemon);
        while (read(daemon->signal_fd, &info, sizeof info) > 0)
            ;
        if (daemon->link.fd >= 0)
            take_messages(daemon);
        double now = clock_seconds();
        if (has_server(daemon)) {
            for (int i = 0; i < daemon->node.n_ranks; i++)
                pass_output(daemon, i, UP_TO_CREDIT);
            take_events(daemon);
            reap(daemon);
            if (daemon->spec.progress_ms && now >= daemon->next_progress &&
                daemon->phase == RUNNING)
                tell_progress(daemon, now);
            if (daemon->spec.progress_ms && now >= daemon->next_gpus && daemon->phase == RUNNING)
                look_at_gpus(daemon, now);
        }
        if (daemon->phase == ENDING && now >= daemon->ending_since + kill_after_seconds)
            kill_ranks(daemon);
        if (daemon->has_job && daemon->spec.beat_ms &&
            now >= daemon->link.sent_at + 1e-3 * daemon->spec.beat_ms)
            send_message(daemon, &(struct message){ .kind = MESSAGE_BEAT });
        link_flush(&daemon->link);
    }
}

/* SIGCHLD is read from the descriptor; signals that ask to stop are for the ranks and the head. */
static void set_up_signals(struct daemon *daemon)
{
    static const int blocked[] = { SIGTERM, SIGINT,  SIGHUP,  SIGUSR1, SIGUSR2,
                                   SIGTSTP, SIGPIPE, SIGALRM, SIGCHLD };
    sigset_t mask, children;

    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++)
        sigaddset(&mask, blocked[i]);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    daemon->signal_fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    CHECK(daemon->signal_fd >= 0);
}

int launch_daemon(int link_fd, double lost_seconds)
{
    struct daemon daemon = { 0 };
    char host[256] = "localhost";

    prctl(PR_SET_NAME, "lmtrain-daemon");
    set_up_signals(&daemon);
    link_open(&daemon.link, link_fd, lost_seconds);
    gethostname(host, sizeof host - 1);
    send_message(&daemon,
                 &(struct message){ .kind = MESSAGE_HELLO,
                                    .hello = { .protocol = MESSAGE_PROTOCOL,
                                               .slot_bytes = (uint32_t)sizeof(struct progress_slot),
                                               .host = host } });
    loop(&daemon);
    gpu_watch_close(daemon.gpus);
    if (daemon.has_job)
        node_release(&daemon.node);
    link_flush(&daemon.link);
    if (daemon.link.fd >= 0)
        shutdown(daemon.link.fd, SHUT_RDWR); /* others may hold copies */
    link_close(&daemon.link);
    close(daemon.signal_fd);
    free(daemon.polls);
    str_release(&daemon.spec_bytes);
    arena_release(&daemon.arena);
    return daemon.status;
}
