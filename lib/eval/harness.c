/*
 * harness.c - the order in which the items of a task are evaluated
 */
#include "eval/harness.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "eval/harness_impl.h"
#include "serve/served.h"

const struct replica *harness_replica(const struct harness_run *run)
{
    return run->h->served->replica;
}

int harness_judges(const struct harness_run *run)
{
    return replica_is_first(harness_replica(run));
}

void harness_show(struct harness_run *run, int64_t n_more)
{
    struct harness_progress p = { .done = run->n_done + n_more,
                                  .total = run->items->n,
                                  .n_known = run->n_known,
                                  .seconds = clock_seconds() - run->begin };

    if (!run->h->progress || !harness_judges(run))
        return;
    p.score = run->n_done > 0 ? run->sum / (double)run->n_done : 0;
    run->h->progress(run->h->context, &p);
}

int harness_note(struct harness_run *run, int64_t item, struct err *err)
{
    run->results[item].is_done = true;
    run->n_done++;
    run->sum += run->results[item].values[0];
    return journal_add(run, item, err);
}

int harness_refuse_code(const struct task *task, struct err *err)
{
    return err_set(err, ERR_CONFIG,
                   "task %s runs programs that a model wrote (hint: --allow-code-execution; they "
                   "run in a sandbox)",
                   task->name);
}

static int check_code(const struct harness_run *run, struct err *err)
{
    for (int64_t i = 0; i < run->items->n && harness_judges(run); i++)
        if (run->task->parts[run->items->items[i].part].way.kind == TASK_CODE && !run->h->sandbox)
            return harness_refuse_code(run->task, err);
    return 0;
}

/* What the first rank has found in its journal. */
static int tell_done(struct harness_run *run, struct err *err)
{
    size_t n = (size_t)run->items->n;
    char *done = calloc(n + 1, 1);

    if (!done)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (size_t i = 0; i < n; i++)
        done[i] = (char)run->results[i].is_done;
    int status = replica_tell_all(harness_replica(run), done, n, err);
    for (size_t i = 0; i < n; i++)
        run->results[i].is_done = done[i];
    free(done);
    return status;
}

int harness_run(struct harness *harness, struct task *task, const struct items *items,
                struct item_result *results, struct err *err)
{
    struct harness_run run = { .h = harness,
                               .task = task,
                               .items = items,
                               .results = results,
                               .journal = -1,
                               .begin = clock_seconds() };

    if (check_code(&run, err) < 0 || (harness_judges(&run) && journal_open(&run, err) < 0) ||
        tell_done(&run, err) < 0)
        return -1;
    run.cache = tokenizer_cache_create();
    run.n_known = run.n_done;
    harness->n_resumed += run.n_known;
    int status = harness_choices(&run, err);
    if (!status)
        status = harness_texts(&run, err);
    tokenizer_cache_destroy(run.cache);
    if (run.journal >= 0)
        close(run.journal);
    harness->seconds += clock_seconds() - run.begin;
    return status;
}

void harness_release(struct item_result *results, int64_t n)
{
    for (int64_t i = 0; i < n && results; i++) {
        free(results[i].log_likelihoods);
        free(results[i].text);
        free(results[i].answer);
    }
    free(results);
}
