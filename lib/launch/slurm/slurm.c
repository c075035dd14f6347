/*
 * slurm.c - srun as a child
 *
 * srun is a child also if nothing is to be restarted: its exit status alone does not show which
 * task ended first (srun_messages.c). A request to stop:
 *
 *     1. SIGTERM would make srun kill the step at once, so the first one is forwarded as SIGUSR1,
 *        which srun sends to the ranks and which requests the same from them: save and leave. The
 *        terminal sends Ctrl-C to srun itself, which forwards it.
 *     2. An srun that has just been started would be killed by SIGUSR1: it is sent once /proc shows
 *        that srun handles or blocks it.
 *     3. An srun whose tasks are not started yet drops it: it is sent again every second until a
 *        task has ended. Ranks count repeated signals as one request (stop.h).
 */
#include "launch/slurm/slurm.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "launch/command.h"
#include "launch/death_impl.h"
#include "launch/environment_impl.h"
#include "launch/head/screen_impl.h"
#include "launch/proc_impl.h"
#include "launch/slurm/slurm_impl.h"
#include "launch/stop.h"

enum { N_LOOKS = 3 };

static const double answer_seconds = 10;
/*
 * From the first death to the end of all: ranks that see it say so and leave by themselves. srun -K
 * would end them, but with a SIGTERM, which asks ranks to save, and a SIGKILL that comes only after
 * KillWait, 30 s by default; nothing can hasten it once it is under way.
 */
static const double grace_seconds = 1;
static const double look_seconds = 0.02;
static const double repeat_seconds = 1;
static const double deaf_seconds = 10; /* not srun itself but a wrapper, perhaps */

static const struct context_view real_view = { .get = context_from_environment };

int slurm_ranks(int n_spares)
{
    struct slurm_allocation allocation;
    struct arena arena = { 0 };
    struct str said = { 0 };
    struct err err;
    int n = 0;

    if (slurm_allocation_read(&allocation, &real_view, &arena, &err) == 0) {
        const char *job = getenv("SLURM_JOB_ID");
        char *ask[] = {
            "scontrol", "show", "job", "-o", arena_strdup(&arena, job ? job : ""), NULL
        };

        if (!allocation.n_tasks && !allocation.n_gpus &&
            command_capture(ask, answer_seconds, &said) == 0)
            allocation.n_gpus = slurm_count_gpus(str_text(&said));
        n = allocation.n_tasks  ? allocation.n_tasks
            : allocation.n_gpus ? allocation.n_gpus
                                : allocation.n_nodes;
        int n_nodes = slurm_list_count(context_get(&real_view, SLURM_NODES_VARIABLE));

        n_nodes = n_nodes ? min_int(n_nodes, allocation.n_nodes) : allocation.n_nodes;
        n = (int)((int64_t)n * max_int(1, n_nodes - n_spares) / allocation.n_nodes);
    }
    str_release(&said);
    arena_release(&arena);
    return n;
}

/* ---- what the cluster has ---- */

static int refuse_without_srun(struct err *err)
{
    const char *image = getenv("APPTAINER_CONTAINER");

    return err_set(err, ERR_FAILED,
                   "in a Slurm allocation srun starts the ranks, but `srun --version` does not "
                   "work here (hint: in a container without Slurm, let srun start the container "
                   "once per rank: srun --mpi=pmix apptainer exec %s lmtrain ...; or give --hosts "
                   "with the allocation's nodes; unset SLURM_JOB_ID to run on this machine alone)",
                   image && *image ? image : "IMAGE");
}

static int check_srun(int *major, struct err *err)
{
    static char *const version[] = { "srun", "--version", NULL };
    static char *const plugins[] = { "srun", "--mpi=list", NULL };
    struct str said = { 0 };
    int result = 0;

    if (command_capture(version, answer_seconds, &said) != 0)
        result = refuse_without_srun(err);
    else
        *major = slurm_major(str_text(&said));
    str_clear(&said);
    if (!result && command_capture(plugins, answer_seconds, &said) == 0 &&
        !context_lists_pmix(str_text(&said)))
        result = err_set(
            err, ERR_CONFIG,
            "this cluster's Slurm lacks the PMIx plugin, which ranks need to find each other: srun "
            "--mpi=list does not list pmix (hint: --hosts with the "
            "allocation's nodes, Open MPI's mpirun, or ask the administrator for the plugin)");
    str_release(&said);
    return result;
}

static int has_smt(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/smt/active", "re");
    int active = file && fgetc(file) == '1';

    if (file)
        fclose(file);
    return active;
}

/* ---- one srun ---- */

struct srun_process {
    sigset_t blocked, old_mask;
    int signal_fd;
    struct screen *screen;
    bool asked_to_stop; /* by whatever signal */
    int n_stop_signals; /* SIGTERM, SIGINT, SIGHUP to us */
    double stop_at;     /* when the last that counted came */
    pid_t srun;         /* 0: none */
    double started_at;
    double pass_at; /* when srun is to be sent SIGUSR1; 0: never */
    int n_blocked;  /* so many looks in a row it has blocked it */
    int errors;     /* srun's stderr */
    struct srun_messages messages;
    double bad_since; /* when the first task ended badly; 0: none has */
};

static int block_signals(struct srun_process *run, struct err *err)
{
    static const int signals[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1 };

    sigemptyset(&run->blocked);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&run->blocked, signals[i]);
    if (stop_hangup_is_ignored())
        sigdelset(&run->blocked, SIGHUP);
    signal(SIGCHLD, SIG_DFL); /* ignored, waitpid would never find srun */
    run->signal_fd = signalfd(-1, &run->blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signal_fd < 0)
        return err_set_errno(err, ERR_FAILED, "signalfd");
    /* Blocked as well: a reader of our output that is gone must not kill us before the ranks. */
    sigaddset(&run->blocked, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &run->blocked, &run->old_mask);
    return 0;
}

static void release_signals(struct srun_process *run)
{
    struct signalfd_siginfo info;

    while (read(run->signal_fd, &info, sizeof info) > 0)
        ;
    close(run->signal_fd);
    pthread_sigmask(SIG_SETMASK, &run->old_mask, NULL);
}

static void run_child(const struct srun_process *run, pid_t parent, int errors, int report,
                      char *const *argv, char *const *environment)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* which ends the step at once */
    if (getppid() != parent)
        _exit(127);
    dup2(errors, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &run->old_mask, NULL);
    execvpe(argv[0], argv, environment);
    int number = errno;
    if (write(report, &number, sizeof number) < 0)
        _exit(126);
    _exit(127);
}

/* Returns once srun is executed, so that signals come to it and not to a copy of us. */
static int start(struct srun_process *run, char *const *argv, char *const *environment,
                 struct err *err)
{
    pid_t parent = getpid();
    int errors[2], reports[2], number = 0;

    if (pipe2(errors, O_CLOEXEC))
        return err_set_errno(err, ERR_FAILED, "pipe");
    if (pipe2(reports, O_CLOEXEC)) {
        close(errors[0]);
        close(errors[1]);
        return err_set_errno(err, ERR_FAILED, "pipe");
    }
    pid_t pid = fork();
    if (!pid)
        run_child(run, parent, errors[1], reports[1], argv, environment);
    number = pid < 0 ? errno : 0;
    close(errors[1]);
    close(reports[1]);
    while (pid > 0 && read(reports[0], &number, sizeof number) < 0 && errno == EINTR)
        ;
    close(reports[0]);
    if (number) {
        close(errors[0]);
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        errno = number;
        return err_set_errno(err, ERR_FAILED, "cannot start srun");
    }
    run->srun = pid;
    run->errors = errors[0];
    run->started_at = clock_seconds();
    run->pass_at = 0;
    run->n_blocked = 0;
    run->bad_since = 0;
    return 0;
}

/* Record requests to stop, and forward those that srun must get at once. */
static void take_signals(struct srun_process *run)
{
    struct signalfd_siginfo info;

    while (read(run->signal_fd, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        double now = clock_seconds();

        if (number == SIGCHLD)
            continue;
        run->asked_to_stop = true;
        if (number != SIGUSR1) {
            if (run->n_stop_signals && now - run->stop_at < STOP_ONE_REQUEST_SECONDS)
                continue;
            run->stop_at = now;
            run->n_stop_signals++;
        }
        /* From the terminal: srun has it as well. */
        if (!run->srun || info.ssi_code == SI_KERNEL)
            continue;
        if (number == SIGUSR1 || run->n_stop_signals == 1)
            run->pass_at = now;
        else
            kill(run->srun, SIGTERM);
    }
}

/* The signals of one line of /proc/PID/status. */
static int has_signal(const char *text, const char *line, int number)
{
    const char *found = strstr(text, line);

    return found && strtoull(found + strlen(line), NULL, 16) >> (number - 1) & 1;
}

/*
 * Whether srun has come so far that SIGUSR1 does not kill it: it has a handler, or blocks it for a
 * thread that waits for it. A process that is about to fork blocks all signals for a moment, too,
 * hence N_LOOKS in a row.
 */
static int is_listening(struct srun_process *run)
{
    char text[4096];

    if (clock_seconds() >= run->started_at + deaf_seconds ||
        proc_read(run->srun, "status", text, sizeof text))
        return 1;
    run->n_blocked = has_signal(text, "\nSigBlk:", SIGUSR1) ? run->n_blocked + 1 : 0;
    return has_signal(text, "\nSigCgt:", SIGUSR1) || run->n_blocked >= N_LOOKS;
}

/* Pass a request to stop on when it is time; seconds until the next look, 1e9: none. */
static double pass_stop_on(struct srun_process *run)
{
    double now = clock_seconds();

    if (run->pass_at <= 0 || run->messages.first_status)
        return 1e9;
    if (now >= run->pass_at) {
        bool listens = is_listening(run);

        if (listens)
            kill(run->srun, SIGUSR1);
        run->pass_at = now + (listens ? repeat_seconds : look_seconds);
    }
    return run->pass_at - now;
}

static void pass_errors_on(struct srun_process *run)
{
    char bytes[4096];
    ssize_t n = read(run->errors, bytes, sizeof bytes);

    if (n <= 0) {
        if (n < 0 && errno == EINTR)
            return;
        close(run->errors);
        run->errors = -1;
        return;
    }
    srun_messages_read(&run->messages, bytes, (size_t)n);
    screen_put(run->screen, STDERR_FILENO, bytes, (size_t)n);
}

/* Seconds until the ranks are to be ended by us; ends them when it is time. 1e9: not wanted. */
static double end_the_bad(struct srun_process *run)
{
    int status = run->messages.first_status;

    if (!status || status == ERR_REQUEUE || run->bad_since < 0)
        return 1e9;
    if (run->bad_since == 0)
        run->bad_since = clock_seconds();
    double left = run->bad_since + grace_seconds - clock_seconds();
    if (left > 0)
        return left;
    kill(run->srun, SIGTERM); /* "forcing job termination": SIGKILL on all nodes */
    run->bad_since = -1;
    return 1e9;
}

/* To its end; returns how it ended, as wait() says it. */
static int follow(struct srun_process *run)
{
    int status = 0;

    while (run->srun || run->errors >= 0) {
        double left = 0;

        if (run->srun)
            left = fmin(pass_stop_on(run), end_the_bad(run));
        /* While the screen is full, ranks that print block as well. */
        int errors = run->srun && screen_is_full(run->screen) ? -1 : run->errors;
        struct pollfd polls[] = { { .fd = errors, .events = POLLIN },
                                  { .fd = run->signal_fd, .events = POLLIN },
                                  { .fd = screen_fd(run->screen), .events = POLLIN } };
        /*
         * The last messages of srun are in the pipe; other processes that hold it open are not
         * awaited.
         */
        int n = poll(polls, 3, left >= 1e6 ? -1 : (int)(left * 1000) + (left > 0));

        screen_rest(run->screen);
        take_signals(run);
        if (n > 0 && polls[0].revents)
            pass_errors_on(run);
        else if (!run->srun)
            break;
        if (run->srun && waitpid(run->srun, &status, WNOHANG) == run->srun)
            run->srun = 0;
    }
    if (run->errors >= 0)
        close(run->errors);
    return status;
}

/* ---- the job ---- */

struct slurm_job {
    const struct supervise_options *options;
    struct arena arena;
    struct slurm_nodes nodes;
    int major;
    char binary[4096];
    struct srun_process run;
    int n_ranks;
    char *const *command;
};

static int prepare(struct slurm_job *job, struct err *err)
{
    ssize_t n = readlink("/proc/self/exe", job->binary, sizeof job->binary - 1);

    if (n < 0)
        return err_set_errno(err, ERR_FAILED, "/proc/self/exe");
    job->binary[n] = '\0';
    return check_srun(&job->major, err) || slurm_nodes_open(&job->nodes, job->options, err) ? -1
                                                                                            : 0;
}

/* The number of the attempt, as ranks see it: Slurm's requeues and our restarts together. */
static int attempt_number(int n_restarts)
{
    return n_restarts + environment_count(SLURM_REQUEUES_VARIABLE);
}

/* Report that the job was stopped; returns its exit status. */
static int report_stop(enum death_kind kind)
{
    struct death death = { .kind = kind };
    char text[128];

    log_error("%s", death_sentence(&death, text, sizeof text));
    return death_judge(&death).status;
}

static int run_once(struct slurm_job *job, const struct slurm_allocation *allocation,
                    int n_restarts, struct err *err)
{
    struct slurm_step step;

    if (slurm_fit(&step, allocation, job->n_ranks, has_smt(), err))
        return -1;
    struct slurm_command command = { .major = job->major,
                                     .excluded = str_text(&job->nodes.excluded),
                                     .srun_args = job->options->srun_args,
                                     .n_srun_args = job->options->n_srun_args,
                                     .binary = job->binary,
                                     .words = job->command };
    char **argv = slurm_argv(&step, &command, &job->arena);
    char **environment = slurm_environment(environ, attempt_number(n_restarts), &job->arena);
    struct str line = { 0 };

    for (int i = 0; argv[i]; i++)
        str_printf(&line, "%s%s", i ? " " : "", argv[i]);
    log_info("%s", str_text(&line));
    str_release(&line);

    str_release(&job->run.messages.lost);
    job->run.messages = (struct srun_messages){ 0 };
    if (start(&job->run, argv, environment, err))
        return -1;
    int status = follow(&job->run);
    if (job->run.asked_to_stop && slurm_was_too_early(status, &job->run.messages)) {
        return report_stop(DEATH_STOP_EARLY);
    }
    return slurm_status(status, &job->run.messages);
}

/*
 * Choose the nodes and ranks of an attempt: fills *left. Returns 0, or -1 with err: there is no
 * way.
 */
static int choose_ranks(struct slurm_job *job, int attempt, struct slurm_allocation *left,
                        struct err *err)
{
    const struct supervise_options *options = job->options;
    int n_possible =
        slurm_nodes_choose(&job->nodes, attempt, str_text(&job->run.messages.lost), left, err);

    if (n_possible < 1)
        return -1;
    if (options->again && (attempt || n_possible < options->n_ranks)) {
        job->n_ranks = options->again(options->context, attempt, n_possible, &job->command, err);
        return job->n_ranks ? 0 : -1;
    }
    if (n_possible < options->n_ranks)
        return err_set(err, ERR_PEER, "only %d of %d ranks would have a node", n_possible,
                       options->n_ranks);
    return 0;
}

/* Whether a job that ended with this status is run again. */
static int may_restart(const struct slurm_job *job, int status, int n_restarts)
{
    return death_may_restart(status) && n_restarts < job->options->n_restarts &&
           !job->run.asked_to_stop;
}

/* Run the job, unless it is to stop: then nothing is lost, and the next start resumes. */
static int run_unless_stopped(struct slurm_job *job, const struct slurm_allocation *allocation,
                              int n_restarts, struct err *err)
{
    take_signals(&job->run);
    if (!job->run.asked_to_stop)
        return run_once(job, allocation, n_restarts, err);
    return report_stop(DEATH_STOP_UNSTARTED);
}

static int run_to_the_end(struct slurm_job *job, struct err *err)
{
    struct slurm_allocation left;
    int n_restarts = 0;

    if (choose_ranks(job, 0, &left, err))
        return -1;
    int status = run_unless_stopped(job, &left, n_restarts, err);

    while (status >= 0 && may_restart(job, status, n_restarts)) {
        struct err reason;

        n_restarts++;
        if (choose_ranks(job, n_restarts, &left, &reason)) {
            log_error("not restarted: %s", reason.text);
            return status;
        }
        log_warn("restarting (%d of %d) with %d rank%s", n_restarts, job->options->n_restarts,
                 job->n_ranks, str_s(job->n_ranks));
        status = run_unless_stopped(job, &left, n_restarts, err);
    }
    return status;
}

int slurm_run(const struct supervise_options *options, struct err *err)
{
    struct slurm_job job = { .options = options,
                             .n_ranks = options->n_ranks,
                             .command = options->argv };
    int status;

    CHECK(options->n_ranks > 0);
    if (block_signals(&job.run, err))
        return -1;
    status = screen_open(&job.run.screen, err);
    if (!status)
        status = prepare(&job, err);
    if (!status)
        status = run_to_the_end(&job, err);
    screen_close(job.run.screen, job.run.signal_fd);
    release_signals(&job.run);
    str_release(&job.run.messages.lost);
    slurm_nodes_close(&job.nodes);
    arena_release(&job.arena);
    return status;
}
