/*
 * supervise.c - one job from start to end
 *
 * One loop waits for everything: children and signals through a signalfd, the PMIx library's thread
 * through an eventfd, the ranks' pipes, and the clock. The first rank that fails is the cause and
 * is told at once; from then on the others are ended (SIGTERM, SIGKILL 0.3 s later, by process
 * group) and their deaths only counted. A rank that ends with ERR_PEER saw somebody else die, so
 * the loop gives that somebody a moment to be found.
 */
#include "launch/supervise.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/environment_impl.h"
#include "launch/hang_impl.h"
#include "launch/job_folder_impl.h"
#include "launch/output_impl.h"
#include "launch/pmix_server_impl.h"
#include "launch/rank_process_impl.h"

static const double kill_after_seconds = 0.3;
static const double peer_grace_seconds = 0.25;
static const double look_seconds = 0.25;

/* How much a failure tells: less is replaced by more as long as nobody has been ended by us. */
enum weight { WEIGHT_NONE, WEIGHT_PEER, WEIGHT_OWN };

struct cause {
    enum weight weight;
    int rank;   /* -1: none in particular */
    int status; /* the job's exit status */
    double at;
    char text[1400];
};

struct job {
    const struct supervise_options *options;
    char folder[512];
    int signal_fd;
    sigset_t old_mask;
    struct launch_server *server;
    struct output *output;
    union progress_place *page;
    struct rank_process *processes;
    struct hang_rank *watched; /* the processes, as hang sees them */
    struct hang_watch hang;
    struct pollfd *polls;
    int n_running;
    int hang_reported;
    int n_stop_signals; /* SIGTERM, SIGINT, SIGHUP */
    int passed_signal;  /* the last one passed on, 0 if none */
    int some_requeue;   /* a rank ended in order with ERR_REQUEUE */
    struct cause cause;
    enum { RUNNING, ENDING, KILLED } phase;
    double ending_since;
};

/* ---- start ------------------------------------------------------------------------------------
 */

static int block_signals(struct job *job, struct err *err)
{
    static const int signals[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP };
    sigset_t mask;

    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&mask, signals[i]);
    job->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signal_fd < 0)
        return err_set_errno(err, ERR_FAILED, "signalfd");
    /* Blocked as well: a reader of our output that is gone must not kill us before the ranks. */
    sigaddset(&mask, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &mask, &job->old_mask);
    return 0;
}

static int make_folder(struct job *job, struct err *err)
{
    const char *parent = job_folder_parent();
    char path[sizeof job->folder + 16];

    job_folder_sweep(parent);
    if (job_folder_create(parent, job->folder, sizeof job->folder, err)) {
        job->folder[0] = '\0';
        return -1;
    }
    snprintf(path, sizeof path, "%s/progress", job->folder);
    return progress_page_create(&job->page, path, job->options->n_ranks, err);
}

/* What Open MPI needs to run under us on one node, and where the progress page is. */
static void add_variables(const struct job *job, char ***environment)
{
    char path[sizeof job->folder + 16];

    snprintf(path, sizeof path, "%s/progress", job->folder);
    environment_set(environment, PROGRESS_VARIABLE, path, 1);
    environment_set(environment, "OMPI_MCA_schizo", "ompi", 1);
    environment_set(environment, "OMPI_MCA_btl_vader_backing_directory", job->folder, 1);
    environment_set(environment, "OMPI_MCA_pml", "ob1", 0);
    environment_set(environment, "OMPI_MCA_btl", "self,vader", 0);
    environment_set(environment, "OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

static int start_rank(struct job *job, int rank, char *const *base, struct err *err)
{
    char **environment = environment_copy(base);
    int fds[2];
    int status = launch_server_environment(job->server, rank, &environment, err);

    if (!status)
        status = output_prepare(job->output, rank, fds, err);
    if (!status)
        status =
            rank_process_start(&job->processes[rank], job->options->argv, environment, fds, err);
    output_started(job->output, rank);
    environment_free(environment);
    if (!status)
        job->n_running++;
    return status;
}

static int start_ranks(struct job *job, struct err *err)
{
    char **base = environment_copy(environ);
    int status = 0;

    add_variables(job, &base);
    for (int rank = 0; rank < job->options->n_ranks && !status; rank++)
        status = start_rank(job, rank, base, err);
    environment_free(base);
    return status;
}

/* What hang knows of the processes, as of now. */
static void update_watched(struct job *job)
{
    for (int rank = 0; rank < job->options->n_ranks; rank++) {
        const struct rank_process *process = &job->processes[rank];

        job->watched[rank] = (struct hang_rank){
            .world_rank = rank,
            .pid = process->pid,
            .running = process->running,
            .stopped = rank_process_state(process) == 'T',
            .slot = &job->page[rank].slot,
        };
    }
}

static int start(struct job *job, struct err *err)
{
    int n_ranks = job->options->n_ranks;

    job->processes = calloc((size_t)n_ranks, sizeof *job->processes);
    job->polls = calloc(2 * (size_t)n_ranks + 2, sizeof *job->polls);
    job->watched = calloc((size_t)n_ranks, sizeof *job->watched);
    CHECK(job->processes);
    CHECK(job->watched);
    CHECK(job->polls);
    job->signal_fd = -1;
    if (block_signals(job, err) || make_folder(job, err) ||
        output_create(&job->output, n_ranks, job->options->log_folder, err) ||
        launch_server_start(&job->server, job->folder, n_ranks, err) || start_ranks(job, err))
        return -1;
    update_watched(job);
    hang_watch_init(&job->hang, n_ranks, job->watched, clock_seconds());
    return 0;
}

/* ---- the end ----------------------------------------------------------------------------------
 */

static void signal_groups(struct job *job, int signal)
{
    for (int rank = 0; rank < job->options->n_ranks; rank++)
        rank_process_signal_group(&job->processes[rank], signal);
}

static void kill_ranks(struct job *job)
{
    job->phase = KILLED;
    signal_groups(job, SIGKILL);
}

static void end_ranks(struct job *job)
{
    if (job->phase != RUNNING)
        return;
    job->phase = ENDING;
    job->ending_since = clock_seconds();
    output_quiet(job->output);
    launch_server_rank_died(job->server);
    signal_groups(job, SIGTERM);
    signal_groups(job, SIGCONT); /* so that a stopped one hears it */
}

/* Tell the cause, with the last words of its rank, and end the others. */
static void conclude(struct job *job)
{
    struct str tail = { 0 };

    if (job->phase != RUNNING || job->cause.weight == WEIGHT_NONE)
        return;
    if (job->cause.rank >= 0) {
        output_read(job->output, job->cause.rank);
        output_tail(job->output, job->cause.rank, &tail);
    }
    while (tail.length && tail.data[tail.length - 1] == '\n')
        tail.data[--tail.length] = '\0';
    if (tail.length)
        log_error("%s; its last lines:\n%s", job->cause.text, tail.data);
    else
        log_error("%s", job->cause.text);
    str_release(&tail);
    end_ranks(job);
}

static void set_cause(struct job *job, enum weight weight, int rank, int status, const char *text)
{
    char host[256] = "?", words[PROGRESS_TEXT_BYTES + 96];
    struct cause *cause = &job->cause;

    if (cause->weight >= weight || job->phase != RUNNING)
        return;
    *cause = (struct cause){ .weight = weight, .rank = rank, .status = status };
    cause->at = clock_seconds();
    if (rank < 0) {
        snprintf(cause->text, sizeof cause->text, "%s", text);
        return;
    }
    gethostname(host, sizeof host - 1);
    const struct progress_slot *slot = &job->page[rank].slot;
    snprintf(cause->text, sizeof cause->text, "rank %d on %s %s (last seen: %s)", rank, host, text,
             progress_describe(slot, words, sizeof words));
}

static int status_of_signal(int signal)
{
    return signal == SIGABRT ? 134 : ERR_PEER;
}

/* What a rank's end means. */
static void judge(struct job *job, int rank)
{
    int wait_status = job->processes[rank].wait_status;
    char text[256];

    if (job->cause.rank == rank && job->cause.weight != WEIGHT_NONE)
        return; /* it had called abort, or hung */
    if (WIFSIGNALED(wait_status)) {
        int number = WTERMSIG(wait_status);

        snprintf(text, sizeof text, "was killed by signal %d (%s)%s", number, strsignal(number),
                 number == job->passed_signal ? ", which was passed on to it" : "");
        set_cause(job, WEIGHT_OWN, rank, status_of_signal(number), text);
        return;
    }
    int status = WEXITSTATUS(wait_status);
    int in_order = launch_server_finalized(job->server, rank);

    if (status && status != ERR_REQUEUE) {
        snprintf(text, sizeof text, "exited with status %d", status);
        set_cause(job, status == ERR_PEER ? WEIGHT_PEER : WEIGHT_OWN, rank, status, text);
    } else if (!in_order) {
        snprintf(text, sizeof text, "exited with status %d without leaving the job", status);
        set_cause(job, WEIGHT_OWN, rank, status ? status : ERR_FAILED, text);
    } else if (status == ERR_REQUEUE) {
        job->some_requeue = 1;
    }
}

static void reap(struct job *job)
{
    for (int rank = 0; rank < job->options->n_ranks; rank++)
        if (rank_process_reap(&job->processes[rank])) {
            job->n_running--;
            judge(job, rank);
        }
}

static void take_aborts(struct job *job)
{
    struct launch_abort_call call;
    char text[sizeof call.text + 64];

    while (launch_server_next_abort(job->server, &call)) {
        snprintf(text, sizeof text, "failed with status %d: %s", call.status, call.text);
        set_cause(job, call.status == ERR_PEER ? WEIGHT_PEER : WEIGHT_OWN, call.rank,
                  call.status ? call.status : ERR_FAILED, text);
    }
}

/* ---- signals and hangs ------------------------------------------------------------------------
 */

static void pass_on(struct job *job, int signal)
{
    job->passed_signal = signal;
    for (int rank = 0; rank < job->options->n_ranks; rank++)
        rank_process_signal(&job->processes[rank], signal);
}

static void stop_and_continue(struct job *job)
{
    signal_groups(job, SIGSTOP);
    raise(SIGSTOP);
    signal_groups(job, SIGCONT);
    hang_watch_restart(&job->hang, clock_seconds());
}

static void take_signals(struct job *job)
{
    struct signalfd_siginfo info;

    while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int number = (int)info.ssi_signo;

        if (number == SIGCHLD)
            continue;
        if (number == SIGTSTP) {
            stop_and_continue(job);
        } else if (number == SIGUSR1) {
            pass_on(job, SIGUSR1);
        } else if (++job->n_stop_signals == 1) {
            pass_on(job, number == SIGHUP ? SIGTERM : number);
        } else {
            set_cause(job, WEIGHT_OWN, -1, ERR_PEER, "a second signal asked for the end at once");
            conclude(job);
            kill_ranks(job);
        }
    }
}

static void watch_hangs(struct job *job, double now)
{
    const struct supervise_options *options = job->options;
    int culprit;
    struct str text = { 0 };

    update_watched(job);
    double still = hang_watch_look(&job->hang, now, &culprit);

    if (options->hang_seconds <= 0 || still < options->hang_seconds)
        job->hang_reported = 0;
    else if (!job->hang_reported) {
        hang_watch_report(&job->hang, now, &text);
        log_warn("no progress for %.0f s:\n%.*s", still, text.length ? (int)text.length - 1 : 0,
                 str_text(&text));
        job->hang_reported = 1;
        str_release(&text);
    }
    if (options->hang_abort_seconds > 0 && still >= options->hang_abort_seconds && culprit >= 0) {
        char words[64];

        snprintf(words, sizeof words, "made no progress for %.0f s",
                 now - job->hang.since[culprit]);
        set_cause(job, WEIGHT_OWN, culprit, ERR_PEER, words);
        conclude(job);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------
 */

static int watches_hangs(const struct job *job)
{
    return job->options->hang_seconds > 0 || job->options->hang_abort_seconds > 0;
}

/* Milliseconds until something is due; -1: nothing but events. */
static int timeout_ms(const struct job *job, double now)
{
    double due = 1e9;

    if (job->phase == ENDING)
        due = job->ending_since + kill_after_seconds - now;
    else if (job->cause.weight == WEIGHT_PEER && job->phase == RUNNING)
        due = job->cause.at + peer_grace_seconds - now;
    else if (job->phase == RUNNING && watches_hangs(job))
        due = look_seconds;
    if (due >= 1e9)
        return -1;
    return due <= 0 ? 0 : (int)(due * 1000) + 1;
}

static void wait_for_events(struct job *job)
{
    job->polls[0] = (struct pollfd){ .fd = job->signal_fd, .events = POLLIN };
    job->polls[1] = (struct pollfd){ .fd = launch_server_fd(job->server), .events = POLLIN };
    int n = 2 + output_poll(job->output, job->polls + 2);

    poll(job->polls, (nfds_t)n, timeout_ms(job, clock_seconds()));
}

static void loop(struct job *job)
{
    while (job->n_running) {
        wait_for_events(job);
        take_signals(job);
        /* What they said before how they ended; aborts before the exits that follow them. */
        output_read(job->output, -1);
        take_aborts(job);
        reap(job);

        double now = clock_seconds();
        if (job->cause.weight == WEIGHT_OWN ||
            (job->cause.weight == WEIGHT_PEER &&
             (now >= job->cause.at + peer_grace_seconds || !job->n_running)))
            conclude(job);
        if (job->phase == ENDING && now >= job->ending_since + kill_after_seconds)
            kill_ranks(job);
        if (job->phase == RUNNING && watches_hangs(job))
            watch_hangs(job, now);
    }
}

/* Also after a start that failed half way. */
static void finish(struct job *job)
{
    struct signalfd_siginfo info;
    struct err ignored;

    if (job->n_running) {
        kill_ranks(job);
        for (int rank = 0; rank < job->options->n_ranks; rank++)
            while (job->processes[rank].running && !rank_process_reap(&job->processes[rank]))
                usleep(1000);
    }
    if (job->output)
        output_read(job->output, -1);
    output_destroy(job->output);
    progress_page_close(job->page, job->options->n_ranks);
    if (job->folder[0])
        file_remove_tree(job->folder, &ignored);
    hang_watch_release(&job->hang);
    free(job->processes);
    free(job->watched);
    free(job->polls);
    if (job->signal_fd < 0)
        return;
    while (read(job->signal_fd, &info, sizeof info) > 0)
        ;
    close(job->signal_fd);
    pthread_sigmask(SIG_SETMASK, &job->old_mask, NULL);
}

/* Ranks that neither are the cause nor ended in order. */
static int count_consequences(const struct job *job)
{
    int n = 0;

    for (int rank = 0; rank < job->options->n_ranks; rank++) {
        int status = job->processes[rank].wait_status;
        int in_order = WIFEXITED(status) && launch_server_finalized(job->server, rank) &&
                       (!WEXITSTATUS(status) || WEXITSTATUS(status) == ERR_REQUEUE);

        n += rank != job->cause.rank && !in_order;
    }
    return n;
}

int supervise(const struct supervise_options *options, struct err *err)
{
    struct job job = { .options = options, .cause.rank = -1 };

    CHECK(options->n_ranks > 0);
    if (start(&job, err)) {
        finish(&job);
        return -1;
    }
    loop(&job);

    int n_consequences = count_consequences(&job);
    if (n_consequences)
        log_error("%d other rank%s ended in consequence", n_consequences,
                  n_consequences == 1 ? "" : "s");
    finish(&job);
    if (job.cause.weight != WEIGHT_NONE)
        return job.cause.status;
    return job.some_requeue ? ERR_REQUEUE : 0;
}
