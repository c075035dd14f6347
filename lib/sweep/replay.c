/*
 * replay.c - the judge as a history leaves it, with every decision made again
 */
#include <stdio.h>

#include "sweep/history.h"

/* Decisions follow from tasks and values: the judge has made them already when they are read. */
struct history_replay {
    const struct history *history;
    struct judge *judge;
    int n_seen; /* decisions of the judge that were in the history */
};

static int differs(const struct history_record *r, const char *why, struct err *err)
{
    return err_set(err, ERR_DATA, "sweep.jsonl: trial %d, rung %d: %s", r->trial, r->rung, why);
}

static int replay_start(struct history_replay *p, const struct history_record *r, struct err *err)
{
    int trial = judge_next(p->judge);
    char why[128];

    if (trial == r->trial && p->judge->trials[trial].rung == r->rung)
        return 0;
    if (trial < 0)
        return differs(r, "it started, but by the rules there was nothing to start", err);
    snprintf(why, sizeof why, "it started, but by the rules trial %d was next, to rung %d", trial,
             p->judge->trials[trial].rung);
    return differs(r, why, err);
}

static int replay_result(struct history_replay *p, const struct history_record *r, struct err *err)
{
    const struct judge_trial *t = &p->judge->trials[r->trial];

    if (t->state != JUDGE_RUNNING || t->rung != r->rung)
        return differs(r, "it has a result, but was not under way there", err);
    if (r->event == HISTORY_FAIL)
        judge_fail(p->judge, r->trial);
    else
        judge_report(p->judge, r->trial, history_judged(&p->history->header, r->value));
    return 0;
}

static int replay_take_over(const struct history_replay *p, const struct history_record *r,
                            struct err *err)
{
    const struct judge_trial *t = &p->judge->trials[r->trial];

    if (t->state == JUDGE_RUNNING && t->rung == r->rung)
        return 0;
    return differs(r, "it was taken over, but was not under way there", err);
}

static int replay_decision(struct history_replay *p, const struct history_record *r,
                           struct err *err)
{
    bool goes_on = r->event == HISTORY_GO_ON;

    if (p->n_seen < p->judge->n_decisions) {
        const struct judge_decision *d = &p->judge->decisions[p->n_seen++];

        if (d->trial == r->trial && d->rung == r->rung && d->goes_on == goes_on)
            return 0;
    }
    return differs(r,
                   goes_on ? "it went on, which by the rules it did not"
                           : "it was stopped, which by the rules it was not",
                   err);
}

static int replay_record(struct history_replay *p, const struct history_record *r, struct err *err)
{
    switch (r->event) {
    case HISTORY_START:
        return replay_start(p, r, err);
    case HISTORY_VALUE:
    case HISTORY_FAIL:
        return replay_result(p, r, err);
    case HISTORY_GO_ON:
    case HISTORY_STOP:
        return replay_decision(p, r, err);
    case HISTORY_TAKE_OVER:
        return replay_take_over(p, r, err);
    case HISTORY_RESUME:
        judge_interrupt(p->judge);
        return 0;
    default:
        return 0;
    }
}

int history_replay(const struct history *j, struct judge *judge, int *n_written,
                   struct arena *arena, struct err *err)
{
    struct judge_rules rules = history_rules(&j->header);
    struct history_replay p = { .history = j, .judge = judge };

    judge_init(judge, &rules, arena);
    for (int i = 0; i < j->n_records; i++)
        if (replay_record(&p, &j->records[i], err) < 0)
            return -1;
    *n_written = p.n_seen;
    return 0;
}
