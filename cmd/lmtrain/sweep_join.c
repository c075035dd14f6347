/*
 * sweep_join.c - one of several processes, on one machine or many, that take trials of a sweep
 *
 * They share nothing but the sweep's folder. What one does to the history is a turn: it locks
 * OUTPUT/turn, reads the history, has the judge as that leaves it, appends what became of its trial
 * with the decisions that follow, takes its next task, and unlocks. So the lines of all are in one
 * order, in which each start and each decision is what the rules make of the lines before it: the
 * history is that of a single process, and replays like one.
 *
 * A trial under way is leased: its process in the sweep holds a lock on OUTPUT/log/trial-NNN.lease.
 * A trial that has started, has no result, and whose lease is free is of a process that is gone:
 *
 *   1. A    turn: leases trial 3, appends `start 3`; trains it
 *   2. B    turn: trial 3 is leased; appends `start 4`, trains that
 *   3. A    is killed: its locks go with it, its trial saves and ends (trial.h)
 *   4. B    turn: appends the value of 4, finds the lease of 3 free, appends `take_over 3`
 *   5. B    waits until the folder of trial 3 is free, resumes it from its newest checkpoint
 *
 * Rules that compare trials must be asynchronous: a synchronous decision waits for all trials of a
 * rung, and a process that waits for others would hold its share of the machine meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "sweep_run.h"

struct joint_sweep {
    struct sweep_session session;
    const char *job_file;
    struct arena turn; /* what is of the turn at hand, or the last one */
    int turn_fd, lease_fd;
};

/* ---- locks ---- */

static int open_lock(const char *path, int operation, struct err *err)
{
    int fd = file_open_write(path, O_RDWR, err);

    if (fd < 0)
        return -1;
    while (flock(fd, operation) < 0) {
        if (errno == EINTR)
            continue;
        if (errno == EWOULDBLOCK)
            err_set(err, ERR_CONFIG, "%s is locked by another process", path);
        else
            err_set_errno(err, ERR_FAILED, "%s cannot be locked", path);
        close(fd);
        return -1;
    }
    return fd;
}

static void unlock(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Make the trial this process's. Returns 0, or -1: it is another's, ERR_CONFIG; ERR_FAILED. */
static int lease(struct joint_sweep *j, int trial, struct err *err)
{
    const struct sweep_session *s = &j->session;

    j->lease_fd = open_lock(arena_printf(s->arena, "%s/log/trial-%03d.lease", s->output, trial),
                            LOCK_EX | LOCK_NB, err);
    return j->lease_fd < 0 ? -1 : 0;
}

/* ---- turns ---- */

static int begin_turn(struct joint_sweep *j, struct err *err)
{
    struct sweep_session *s = &j->session;

    arena_release(&j->turn);
    j->turn = (struct arena){ 0 };
    s->arena = &j->turn;
    s->n_waiting = 0;
    j->turn_fd = open_lock(arena_printf(s->arena, "%s/turn", s->output), LOCK_EX, err);
    return j->turn_fd < 0 ? -1 : sweep_open(s, j->job_file, err);
}

static void end_turn(struct joint_sweep *j)
{
    if (j->session.history_fd >= 0)
        close(j->session.history_fd);
    j->session.history_fd = -1;
    unlock(&j->turn_fd);
}

/* A trial whose process is gone, which this one has leased; -1: there is none. */
static int find_orphan(struct joint_sweep *j)
{
    const struct judge *judge = &j->session.judge;
    struct err ignored;

    for (int i = 0; i < judge->rules.n_trials; i++)
        if (judge->trials[i].state == JUDGE_RUNNING && lease(j, i, &ignored) == 0)
            return i;
    return -1;
}

/* Take a trial under way whose process is gone, or start one. Returns 1 with it in the slot, 0 if
 * there is none now, or -1. */
static int take_trial(struct joint_sweep *j, struct err *err)
{
    struct sweep_session *s = &j->session;
    int trial = find_orphan(j);
    struct history_record r = { .event = HISTORY_TAKE_OVER, .trial = trial };

    if (trial < 0) {
        trial = judge_next(&s->judge);
        if (trial < 0)
            return 0;
        r = (struct history_record){ .event = HISTORY_START, .trial = trial };
        if (lease(j, trial, err) < 0)
            return err_add(err, "a trial that has not started");
    }
    r.rung = s->judge.trials[trial].rung;
    if (history_add(s->history_fd, &r, err) < 0 || sweep_write_decisions(s, err) < 0)
        return -1;
    if (r.event == HISTORY_TAKE_OVER)
        log_info("trial %d continues here: the process that ran it is gone", trial);
    s->slots[0].trial = trial;
    s->slots[0].n_tries = 0;
    return 1;
}

/* The next trial that has not come to its rung yet: what others left in its folder counts. */
static int take_task(struct joint_sweep *j, struct err *err)
{
    struct sweep_session *s = &j->session;

    for (;;) {
        struct history_record value;
        int status = take_trial(j, err);

        if (status <= 0)
            return status;
        status = sweep_look(s, s->slots[0].trial, &value, err);
        if (!status)
            return 1;
        if (status < 0 || sweep_take_value(s, &value, err) < 0)
            return -1;
        unlock(&j->lease_fd);
    }
}

/* Of a process that ended, for which its lease is held: its result. One that starts again keeps it.
 * Returns 1 if the slot's trial goes on, 0 if the slot is free, or -1. */
static int take_end(struct joint_sweep *j, int status, struct err *err)
{
    struct sweep_session *s = &j->session;
    struct sweep_slot *slot = &s->slots[0];

    if (sweep_take_end(s, slot, status, err) < 0 ||
        (s->n_waiting && sweep_start_waiting(s, slot, err) < 0))
        return -1;
    if (slot->process)
        return 1;
    unlock(&j->lease_fd);
    return 0;
}

/* A turn: what became of the slot's trial (status; -1: it has none), and the next one. Returns 1 if
 * a trial runs, 0 if none is left for this process, or -1. */
static int turn(struct joint_sweep *j, int ended, struct err *err)
{
    struct sweep_session *s = &j->session;
    int status = begin_turn(j, err);

    if (!status && ended >= 0)
        status = take_end(j, ended, err);
    if (!status && !s->n_stops)
        status = take_task(j, err);
    end_turn(j);
    if (status <= 0 || s->slots[0].process)
        return status;
    if (sweep_await_trial(s, s->slots[0].trial, err) < 0 || sweep_start(s, s->slots, err) < 0)
        return -1;
    return 1;
}

/* ---- all of it ---- */

static int loop(struct joint_sweep *j, struct err *err)
{
    struct sweep_session *s = &j->session;
    int status = turn(j, -1, err), ended;

    while (status > 0) {
        while (!trial_ended(s->slots[0].process, &ended))
            sweep_wait(s);
        status = turn(j, ended, err);
    }
    return status;
}

static int check(const struct sweep_session *s, struct err *err)
{
    const struct job *job = &s->job;

    if (job->sweep.stop != SWEEP_STOP_NONE && !job->sweep.asynchronous)
        return err_set(err, ERR_CONFIG,
                       "--join takes trials without waiting for others, but sweep.stop is %s, "
                       "which decides when all trials are at a rung (hint: --set "
                       "sweep.asynchronous=true)",
                       choice_word(sweep_stop_choices, (int)job->sweep.stop));
    return 0;
}

static int count_running(const struct judge *judge)
{
    int n = 0;

    for (int i = 0; i < judge->rules.n_trials; i++)
        n += judge->trials[i].state == JUDGE_RUNNING;
    return n;
}

/* In a turn of its own, as another process may be at the same point. */
static int end(struct joint_sweep *j, bool json, struct err *err)
{
    struct sweep_session *s = &j->session;

    if (begin_turn(j, err) < 0) {
        end_turn(j);
        return cmd_fail(err);
    }
    int status = 0, n = count_running(&s->judge);
    if (judge_is_over(&s->judge)) {
        status = sweep_finish(s, json, err);
    } else if (s->n_stops) {
        err_set(err, ERR_REQUEUE,
                "this process of the sweep in %s is interrupted: the same command "
                "continues, here or elsewhere",
                s->output);
        status = cmd_fail(err);
    } else {
        log_info("no trial is left for this process; %d run%s elsewhere", n, n == 1 ? "s" : "");
    }
    end_turn(j);
    return status;
}

int sweep_join(const struct sweep_request *q, const char *job_file, struct arena *arena)
{
    struct joint_sweep j = { .session = { .sets = &q->sets,
                                          .history_fd = -1,
                                          .lock = -1,
                                          .is_joint = true,
                                          .arena = arena },
                             .job_file = job_file,
                             .turn_fd = -1,
                             .lease_fd = -1 };
    struct sweep_session *s = &j.session;
    struct err err;

    sweep_block_signals();
    if (sweep_read_job(s, q, job_file, &err) < 0 || check(s, &err) < 0)
        return cmd_fail(&err);
    s->n_slots = 1;
    int status = sweep_prepare(s, q, job_file, &err) < 0 ? -1 : loop(&j, &err);
    status = status < 0 ? cmd_fail(&err) : end(&j, q->json, &err);
    unlock(&j.lease_fd);
    unlock(&s->lock);
    arena_release(&j.turn);
    return status;
}
