/*
 * evaluate.c - the mean loss over the held-out data, and how all ranks leave it early
 *
 * An agreement of all ranks costs a round trip, and a batch may take a millisecond or a minute. So
 * the ranks do not agree after each batch but some times a second: each agreement also finds how
 * long a batch takes on the slowest rank, from which all derive the same batch for the next one.
 */
#include <math.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/num.h"
#include "train/trainer_impl.h"
#include "weights/inputs.h"

#define LEAVE_SECONDS 0.25

static int load_held_out(void *context, int micro_batch, struct err *err)
{
    struct trainer *t = context;
    struct micro_batch batch;

    if (loader_next(t->held_out, &batch, err) < 0)
        return -1;
    int chosen = trainer_choose_held_out(t, micro_batch);
    inputs_of_batch(t->run, chosen ? &t->shorter[chosen - 1] : &t->program, &batch, micro_batch);
    return 0;
}

/* Learned targets of the held-out batches 0 .. n - 1, over all ranks. */
static int64_t held_out_tokens(const struct trainer *t, int64_t n)
{
    int64_t tokens = 0;

    for (int64_t i = 0; i < n; i++)
        tokens += loader_step_tokens(t->held_out, i);
    return tokens;
}

int64_t trainer_n_held_out_batches(const struct trainer *t, int64_t max_batches)
{
    int64_t per_batch =
        t->job->train.global_batch / (t->job->train.micro_batch * t->job->parallel.dp);
    int64_t n = t->held_out ? t->n_held_out_batches : 0;

    return max_batches ? min_i64(n, max_batches * per_batch) : n;
}

/* When ranks agree on leaving: after the same batches on all of them. */
struct leaving {
    const struct trainer_evaluation *hooks;
    int64_t next;   /* ranks agree after this number of batches */
    int64_t before; /* those of the last one */
    double begin;   /* when that was */
};

/*
 * One agreement finds out both: whether a rank has to leave, and how long a batch takes on the
 * slowest, from which all see alike when the next agreement is due. 1 to leave.
 */
static int agree_to_leave(struct trainer *t, struct leaving *l, int64_t done, struct err *err)
{
    const double period_us = LEAVE_SECONDS * 1e6;
    double now, total;

    if (!l->hooks || !l->hooks->must_leave || done < l->next)
        return 0;
    /* On a GPU, entries are only enqueued: the time of a batch needs their completion. */
    if (run_get(t->run, t->program.ports.eval_total, 0, 0, &total, sizeof total, err) < 0)
        return -1;
    now = clock_seconds();
    double batch_us = (now - l->begin) * 1e6 / (double)(done - l->before);
    int64_t value = l->hooks->must_leave(l->hooks->context)
                        ? INT64_MAX
                        : (int64_t)fmin(fmax(batch_us, 1), period_us);
    if (trainer_agree(t, &value, err) < 0)
        return -1;
    l->begin = now;
    l->before = done;
    l->next = done + max_i64(1, (int64_t)(period_us / (double)value));
    return value == INT64_MAX;
}

/* 1 if it was left. */
static int run_held_out(struct trainer *t, int64_t n, const struct trainer_evaluation *hooks,
                        struct err *err)
{
    struct run_hooks load = { .context = t,
                              .load = load_held_out,
                              .choose = trainer_choose_held_out };
    struct leaving leaving = { .hooks = hooks, .next = 1, .begin = clock_seconds() };

    loader_rewind(t->held_out);
    for (int64_t i = 0; i < n; i++) {
        t->held_out_batch = i;
        if (run_entry(t->run, ENTRY_EVALUATE, i == 0, &load, err) < 0)
            return -1;
        if (hooks && hooks->on_batch)
            hooks->on_batch(hooks->context, i + 1, n);
        fault_at("evaluate", t->step);
        int left = i + 1 < n ? agree_to_leave(t, &leaving, i + 1, err) : 0;
        if (left)
            return left;
    }
    return 0;
}

int trainer_evaluate(struct trainer *t, int64_t max_batches, const struct trainer_evaluation *hooks,
                     double *loss, int64_t *tokens, struct err *err)
{
    int64_t n = trainer_n_held_out_batches(t, max_batches);
    double total = 0;

    *tokens = 0;
    *loss = 0;
    if (!t->held_out)
        return 0;
    int status = trainer_gather_weights(t, err);
    if (!status)
        status = run_held_out(t, n, hooks, err);
    if (!status &&
        (run_entry(t->run, ENTRY_EVALUATE_END, 1, NULL, err) < 0 ||
         run_get(t->run, t->program.ports.eval_total, 0, 0, &total, sizeof total, err) < 0))
        status = -1;
    progress_phase(t->options.progress, "between steps");
    if (status)
        return status;
    *tokens = held_out_tokens(t, n);
    if (*tokens)
        *loss = total / (double)*tokens;
    return 0;
}
