/*
 * head.c - one attempt from start to end
 *
 * One loop waits for signals (by a signalfd), messages of daemons, and the clock. The first rank
 * that fails is the cause and is reported at once. From then on the daemons terminate the other
 * ranks, and their deaths are only counted:
 *
 *     1. Rank 2 dies. Its peers see a broken connection and may end first, with ERR_PEER.
 *     2. ENDED of rank 1 with ERR_PEER: a cause of weight WEIGHT_PEER. The loop waits up to 0.25 s
 *        for a cause of its own weight.
 *     3. ENDED of rank 2, killed by a signal: WEIGHT_OWN replaces it and is reported.
 *     4. END to all daemons: SIGTERM to the process groups of their ranks, SIGKILL 0.3 s later.
 *     5. Once all ranks have ended, or 2.3 s after 4, GOODBYE to all daemons; then their links
 *        close.
 *
 * A node is lost when its link breaks (TCP's user timeout detects a dead machine or a cut cable),
 * or when its daemon is silent for three times as long. If the head itself was stopped by a signal,
 * the time between two turns of the loop shows it, and these clocks are restarted.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "launch/head/head_impl.h"
#include "launch/stop.h"
#include "launch/watch/rank_gpu_impl.h"

static const double kill_after_seconds = 0.3;
static const double abandon_after_seconds = 2.3; /* daemons that do not follow END */
static const double peer_grace_seconds = 0.25;
static const double look_seconds = 0.25;
static const double hello_seconds = 60;
static const double silence_worth_telling = 2;

/* ---- causes ---- */

/* What the head knows of a rank that has died: where it was, what it did, and how its GPU is. */
static void add_rank(const struct launch_head *head, struct death *death, char *seen,
                     size_t seen_size, char *gpu, size_t gpu_size)
{
    const struct head_rank *rank = &head->ranks[death->rank];
    const struct head_node *node = &head->nodes[rank->node];

    death->host = node->host;
    death->last_seen = progress_describe(&rank->slot, seen, seen_size);
    death->gpu = rank_gpu_death(&rank->slot, gpu, gpu_size);
    death->gpu_is_broken = rank_gpu_is_broken(&rank->slot);
    death->gpu_is_reusable = rank_gpu_is_reusable(&rank->slot);
    death->has_other_hosts = node->host_index >= 0;
    death->was_forwarded = death->kind == DEATH_SIGNAL && death->signal == head->console->passed;
    death->has_begun = rank->first_step >= 0;
}

void head_set_cause(struct launch_head *head, const struct death *death)
{
    char seen[PROGRESS_TEXT_BYTES + 128], gpu[512];
    struct death known = *death;
    struct head_cause *cause = &head->cause;

    if (death_is_of_rank(death))
        add_rank(head, &known, seen, sizeof seen, gpu, sizeof gpu);
    struct death_verdict verdict = death_judge(&known);
    if (cause->verdict.weight >= verdict.weight || head->phase != RUNNING)
        return;
    *cause = (struct head_cause){ .verdict = verdict, .rank = -1, .at = clock_seconds() };
    if (death_is_of_rank(death)) {
        cause->rank = death->rank;
        head->nodes[head->ranks[death->rank].node].is_unfit |= known.gpu_is_broken;
    }
    death_sentence(&known, cause->text, sizeof cause->text);
}

void head_judge(struct launch_head *head, int rank)
{
    const struct head_rank *mine = &head->ranks[rank];
    struct death death = death_of_rank(mine->wait_status, mine->in_order);

    if (!(mine->in_order && WIFEXITED(mine->wait_status))) {
        head->a_rank_died = true;
        head_fail_fences(head);
    }
    if (mine->has_aborted ||
        (head->cause.rank == rank && head->cause.verdict.weight != WEIGHT_NONE))
        return; /* judged by its own report, or because it made no progress */
    head->some_requeue |= death.kind == DEATH_NONE && death.status == ERR_REQUEUE;
    death.rank = rank;
    head_set_cause(head, &death);
}

/* The daemon of this machine has just closed its link: the signal that killed it, or 0. */
static int daemon_death(const struct head_node *node)
{
    double deadline = clock_seconds() + 0.1;
    siginfo_t info = { 0 };

    while (node->daemon && !info.si_pid && clock_seconds() < deadline) {
        if (waitid(P_PID, (id_t)node->daemon, &info, WEXITED | WNOHANG | WNOWAIT))
            break;
        usleep(1000);
    }
    return info.si_pid && info.si_code != CLD_EXITED ? info.si_status : 0;
}

void head_lose_node(struct launch_head *head, int index, const char *why)
{
    struct head_node *node = &head->nodes[index];
    char text[1500], last[256];
    struct death death = { .kind = DEATH_NODE,
                           .host = node->host,
                           .first_rank = node->first_rank,
                           .n_ranks = node->n_ranks,
                           .signal = daemon_death(node),
                           .text = why };

    if (node->is_lost)
        return;
    node->is_lost = true;
    death.seconds = clock_seconds() - node->link.heard_at;
    link_close(&node->link);
    for (int i = 0; i < node->n_ranks; i++)
        head->n_running -= head->ranks[node->first_rank + i].running;
    head->a_rank_died = true;
    head_fail_fences(head);
    if (head->host_links && node->host_index >= 0 && !node->daemon)
        death.last_message = hosts_link_words(&head->host_links[node->host_index], last);
    if (!head->is_started)
        err_set(&head->start_err, ERR_FAILED, "%s", death_sentence(&death, text, sizeof text));
    else
        head_set_cause(head, &death);
}

/* ---- the end ---- */

static void kill_ranks(struct launch_head *head)
{
    if (head->phase == RUNNING)
        head->ending_since = clock_seconds();
    head->phase = KILLED;
    head_send_all(head, &(struct message){ .kind = MESSAGE_KILL });
}

static void end_ranks(struct launch_head *head)
{
    if (head->phase != RUNNING)
        return;
    head->phase = ENDING;
    head->ending_since = clock_seconds();
    output_quiet(head->output);
    head_fail_fences(head);
    head_send_all(head, &(struct message){ .kind = MESSAGE_END });
}

/* Ranks saw another one die, but no death is known: perhaps a node has become silent. */
static void add_silent_nodes(struct launch_head *head, double now)
{
    struct head_cause *cause = &head->cause;

    for (int i = 0; i < head->n_nodes; i++) {
        const struct head_node *node = &head->nodes[i];
        double silent = now - node->link.heard_at;
        size_t length = strlen(cause->text);

        if (!node->daemon && !node->is_lost &&
            silent > silence_worth_telling + head->lost_seconds / 4)
            death_silent_node(node->host, silent, cause->text + length,
                              sizeof cause->text - length);
    }
}

/* For the run's record. */
static void note_trouble(const struct launch_head *head, struct head_trouble *trouble,
                         const char *text)
{
    *trouble = (struct head_trouble){ .at = (double)time(NULL), .step = -1 };
    for (int rank = 0; rank < head->n_ranks; rank++)
        if (head->ranks[rank].first_step >= 0)
            trouble->step = max_i64(trouble->step, atomic_load(&head->ranks[rank].slot.step));
    snprintf(trouble->text, sizeof trouble->text, "%s", text);
}

/* Report the cause, with the last lines of its rank, and terminate the others. */
static void conclude(struct launch_head *head)
{
    struct str tail = { 0 };

    if (head->phase != RUNNING || head->cause.verdict.weight == WEIGHT_NONE)
        return;
    if (head->cause.verdict.weight == WEIGHT_PEER)
        head_find_broken_gpu(head);
    if (head->cause.verdict.weight == WEIGHT_PEER)
        add_silent_nodes(head, clock_seconds());
    if (head->cause.rank >= 0)
        output_tail(head->output, head->cause.rank, &tail);
    while (tail.length && tail.data[tail.length - 1] == '\n')
        tail.data[--tail.length] = '\0';
    if (tail.length)
        log_error("%s; its last lines:\n%s", head->cause.text, tail.data);
    else
        log_error("%s", head->cause.text);
    str_release(&tail);
    if (!head->console->asked_to_stop)
        note_trouble(head, &head->died, head->cause.text);
    end_ranks(head);
}

/* ---- signals and hangs ---- */

/* To all ranks, or to all that they have started. */
static void send_signal(struct launch_head *head, int signal, enum signal_target target)
{
    head_send_all(head, &(struct message){
                            .kind = MESSAGE_SIGNAL,
                            .signal = { .signal = signal, .to_groups = target == TO_GROUPS } });
}

static void pass_on(struct launch_head *head, int signal)
{
    head->console->passed = signal;
    send_signal(head, signal, TO_RANKS);
}

static void restart_clocks(struct launch_head *head, double now)
{
    hang_watch_restart(&head->hang, now);
    head->still_since = 0;
    for (int i = 0; i < head->n_nodes; i++)
        head->nodes[i].link.heard_at = now;
}

static void stop_and_continue(struct launch_head *head)
{
    send_signal(head, SIGSTOP, TO_GROUPS);
    raise(SIGSTOP);
    send_signal(head, SIGCONT, TO_GROUPS);
    restart_clocks(head, clock_seconds());
}

/* No rank is started, so nothing is lost: the next start resumes where this one would have. */
static void stop_before_start(struct launch_head *head, int number)
{
    head_set_cause(head, &(struct death){ .kind = DEATH_STOP_UNSTARTED, .signal = number });
    conclude(head);
}

/* Of ranks that have nothing to save. */
static void stop_at_once(struct launch_head *head, int number)
{
    head_set_cause(head, &(struct death){ .kind = DEATH_STOP_NOW,
                                          .signal = number,
                                          .text = head->options->stop_words });
    conclude(head);
}

/* A signal that asks the job to stop. */
static void take_stop(struct launch_head *head, int number)
{
    struct head_console *console = head->console;
    double now = clock_seconds();

    console->asked_to_stop = true;
    if (!head->is_started) {
        stop_before_start(head, number);
        return;
    }
    if (number == SIGUSR1) {
        pass_on(head, SIGUSR1);
        return;
    }
    if (console->n_stop && now - console->stop_at < STOP_ONE_REQUEST_SECONDS)
        return;
    console->stop_at = now;
    if (head->options->stop_words && !console->n_stop++) {
        stop_at_once(head, number);
        return;
    }
    if (++console->n_stop == 1) {
        pass_on(head, number == SIGHUP ? SIGTERM : number);
        return;
    }
    head_set_cause(head, &(struct death){ .kind = DEATH_STOP_TWICE, .signal = number });
    conclude(head);
    kill_ranks(head);
}

static void take_signals(struct launch_head *head)
{
    struct signalfd_siginfo info;

    while (read(head->console->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGTSTP)
            stop_and_continue(head);
        else if (info.ssi_signo != SIGCHLD)
            take_stop(head, (int)info.ssi_signo);
    }
}

static void update_watched(struct launch_head *head)
{
    for (int rank = 0; rank < head->n_ranks; rank++) {
        const struct head_rank *mine = &head->ranks[rank];

        head->watched[rank].pid = mine->pid;
        head->watched[rank].running = mine->running && mine->pid;
    }
}

static void watch_hangs(struct launch_head *head, double now)
{
    const struct supervise_options *options = head->options;
    struct str text = { 0 };
    int culprit;

    update_watched(head);
    head_watch_daemons(head, now);
    if (head->cause.verdict.weight == WEIGHT_OWN)
        conclude(head);
    double still = hang_watch_look(&head->hang, now, &culprit);

    if (options->hang_seconds <= 0 || still < options->hang_seconds)
        head->hang_reported = false;
    else if (!head->hang_reported) {
        hang_watch_report(&head->hang, now, &text);
        log_warn("no progress for %.0f s:\n%.*s", still, text.length ? (int)text.length - 1 : 0,
                 str_text(&text));
        if (head->hung.at <= 0)
            note_trouble(head, &head->hung, str_text(&text));
        head->hang_reported = true;
        str_release(&text);
    }
    if (head->phase == RUNNING && options->hang_abort_seconds > 0 &&
        still >= options->hang_abort_seconds && culprit >= 0) {
        head_set_cause(head, &(struct death){ .kind = DEATH_HANG,
                                              .rank = culprit,
                                              .seconds = now - head->hang.since[culprit] });
        conclude(head);
    }
}

/* ---- the loop ---- */

static int watches_hangs(const struct launch_head *head)
{
    return head->options->hang_seconds > 0 || head->options->hang_abort_seconds > 0;
}

/* When something is due without an event. */
static double next_due(struct launch_head *head, double now)
{
    double due = fmin(head_check_fences(head, now), head_put_status(head, now));

    if (head->phase != RUNNING)
        due = fmin(due, head->ending_since + (now < head->ending_since + kill_after_seconds
                                                  ? kill_after_seconds
                                                  : abandon_after_seconds));
    else if (head->cause.verdict.weight == WEIGHT_PEER)
        due = fmin(due, head->cause.at + peer_grace_seconds);
    else if (watches_hangs(head) && head->is_started)
        due = fmin(due, now + look_seconds);
    if (head->phase == RUNNING && head->still_since > 0)
        due = fmin(due, now + look_seconds); /* a longer sleep would look like a stop of ours */
    if (!head->is_started)
        due = fmin(due, head->started_at + hello_seconds);
    for (int i = 0; i < head->n_nodes; i++)
        if (!head->nodes[i].daemon && !head->nodes[i].is_lost)
            due = fmin(due, now + head->lost_seconds / 4);
    return due;
}

static void wait_for_events(struct launch_head *head)
{
    double now = clock_seconds(), due = next_due(head, now) - now;
    int timeout_ms = due > 1e6 ? -1 : due <= 0 ? 0 : (int)(due * 1000) + 1;

    head->polls[0] = (struct pollfd){ .fd = head->console->fd, .events = POLLIN };
    head->polls[1] = (struct pollfd){ .fd = screen_fd(head->console->screen), .events = POLLIN };
    for (int i = 0; i < head->n_nodes; i++)
        head->polls[2 + i] = link_poll(&head->nodes[i].link);
    poll(head->polls, (nfds_t)head->n_nodes + 2, timeout_ms);
    screen_rest(head->console->screen);
}

/* Time has passed: what is due now. */
static void take_time(struct launch_head *head, double now)
{
    if (now - head->last_turn > fmin(head->lost_seconds / 2, 2) + head->lost_seconds / 4)
        restart_clocks(head, now);
    head->last_turn = now;
    head_watch_gpus(head, now);
    if (head->cause.verdict.weight == WEIGHT_OWN ||
        (head->cause.verdict.weight == WEIGHT_PEER &&
         (now >= head->cause.at + peer_grace_seconds || !head->n_running)))
        conclude(head);
    if (!head->is_started && now >= head->started_at + hello_seconds &&
        head->start_err.code == ERR_NONE)
        err_set(&head->start_err, ERR_FAILED, "a daemon did not connect within %.0f s",
                hello_seconds);
    head_watch_links(head, now);
    if (head->phase == RUNNING && watches_hangs(head) && head->is_started)
        watch_hangs(head, now);
}

static int is_over(const struct launch_head *head, double now)
{
    if (!head->n_running || head->start_err.code != ERR_NONE)
        return 1;
    if (!head->is_started && head->phase != RUNNING)
        return 1;
    return head->phase != RUNNING && now >= head->ending_since + abandon_after_seconds;
}

static void loop(struct launch_head *head)
{
    double now = clock_seconds();

    for (head->last_turn = now; !is_over(head, now);) {
        wait_for_events(head);
        take_signals(head);
        for (int i = 0; i < head->n_nodes; i++) {
            if (!head->nodes[i].is_lost) {
                link_flush(&head->nodes[i].link);
                head_take_messages(head, i);
            }
        }
        head_send_credit(head);
        now = clock_seconds();
        take_time(head, now);
    }
    conclude(head);
}

/* ---- an attempt ---- */

static int start(struct launch_head *head, enum host_state *states, struct err *err)
{
    int n_nodes_max = head->options->hosts ? head->options->hosts->n_hosts : 1;
    double now = clock_seconds();

    head->ranks = calloc((size_t)head->n_ranks, sizeof *head->ranks);
    head->watched = calloc((size_t)head->n_ranks, sizeof *head->watched);
    head->polls = calloc((size_t)n_nodes_max + 2, sizeof *head->polls);
    CHECK(head->ranks);
    CHECK(head->watched);
    CHECK(head->polls);
    for (int rank = 0; rank < head->n_ranks; rank++) {
        head->ranks[rank].running = true;
        head->ranks[rank].first_step = -1;
        atomic_store(&head->ranks[rank].slot.op, -1);
    }
    head->n_running = head->n_ranks;
    hang_watch_init(&head->hang, head->n_ranks, head->watched, now);
    if (output_create(&head->output, head->n_ranks, head->options->log_folder,
                      head->console->screen, err) ||
        head_open_nodes(head, states, err))
        return -1;
    for (int rank = 0; rank < head->n_ranks; rank++) {
        struct head_rank *mine = &head->ranks[rank];

        head->watched[rank] = (struct hang_rank){ .world_rank = rank, .slot = &mine->slot };
        if (head->n_nodes > 1)
            head->watched[rank].host = head->nodes[mine->node].host;
    }
    head_open_status(head);
    head->started_at = clock_seconds();
    return 0;
}

static void finish(struct launch_head *head)
{
    head_fail_fences(head);
    head_close_status(head);
    head_close_nodes(head);
    output_destroy(head->output);
    hang_watch_release(&head->hang);
    free(head->ranks);
    free(head->watched);
    free(head->polls);
    arena_release(&head->arena);
}

/* Ranks that neither are the cause nor ended in order. */
static int count_consequences(const struct launch_head *head)
{
    int n = 0;

    for (int rank = 0; rank < head->n_ranks; rank++) {
        const struct head_rank *mine = &head->ranks[rank];

        n += rank != head->cause.rank &&
             death_is_consequence(mine->running, mine->wait_status, mine->in_order);
    }
    return n;
}

static void tell_consequences(const struct launch_head *head)
{
    int n = count_consequences(head);
    char text[128];

    if (n)
        log_error("%s", death_consequences(n, NULL, text, sizeof text));
}

static void fill_result(const struct launch_head *head, enum host_state *states,
                        struct head_result *result)
{
    *result = (struct head_result){ .best_step = -1, .died = head->died, .hung = head->hung };
    result->status = head->some_requeue ? ERR_REQUEUE : 0;
    if (head->cause.verdict.weight != WEIGHT_NONE) {
        result->status = head->cause.verdict.status;
        result->may_restart = head->cause.verdict.may_restart;
    }
    result->seconds = clock_seconds() - head->started_at;
    for (int rank = 0; rank < head->n_ranks; rank++) {
        const struct head_rank *mine = &head->ranks[rank];
        int64_t step = atomic_load(&mine->slot.step);

        if (mine->first_step < 0)
            continue;
        if (step > result->best_step)
            result->best_step = step;
        result->has_advanced |= step > mine->first_step;
    }
    for (int i = 0; i < head->n_nodes; i++) {
        const struct head_node *node = &head->nodes[i];

        if (node->host_index >= 0 && node->is_unfit)
            states[node->host_index] = HOST_UNFIT;
        else if (node->host_index >= 0 && node->is_lost && !node->daemon)
            states[node->host_index] = HOST_LOST;
    }
}

int head_run(const struct supervise_options *options, struct head_console *console, int attempt,
             int n_ranks, char *const *argv, enum host_state *states, struct head_result *result,
             struct err *err)
{
    struct launch_head head = { .options = options,
                                .console = console,
                                .attempt = attempt,
                                .n_ranks = n_ranks,
                                .argv = argv,
                                .lost_seconds = link_lost_seconds(),
                                .cause.rank = -1 };
    int status = start(&head, states, err);

    if (!status) {
        loop(&head);
        fill_result(&head, states, result);
        if (head.start_err.code != ERR_NONE) {
            *err = head.start_err;
            status = -1;
        } else if (head.is_started) {
            tell_consequences(&head);
        }
    }
    finish(&head);
    return status;
}
