/*
 * run_trace.c - room for records
 */
#include "run/run_trace.h"

#include "base/num.h"
#include "program/order.h"
#include "run/run_impl.h"

void run_trace_open(struct run_trace *trace, const struct program *program, enum entry_kind entry,
                    struct arena *arena)
{
    const struct entry *e = &program->entries[entry];
    int64_t n = 0, n_async = 0;

    for (int i = 0; i < e->n_actions; i++) {
        const struct function *f = &program->functions[e->actions[i].function];

        /* An op may be waited for, and so may each stream at a function's end. */
        n += e->actions[i].kind == ACTION_RUN ? 2 * f->n_ops + N_STREAMS : N_STREAMS;
        for (int k = 0; k < f->n_ops && e->actions[i].kind == ACTION_RUN; k++)
            n_async += order_is_async(&f->ops[k]);
    }
    *trace = (struct run_trace){ .capacity = (int)min_i64(n, INT32_MAX) };
    trace->records = arena_alloc_array(arena, sizeof *trace->records, (size_t)trace->capacity);
    trace->posted_capacity = (int)min_i64(n_async + 1, INT32_MAX);
    trace->posted =
        arena_alloc_array(arena, sizeof(struct resolved_op *), (size_t)trace->posted_capacity);
}

void run_set_trace(struct run *run, struct run_trace *trace)
{
    run->trace = trace;
}

static int64_t in_ns(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

void run_trace_add(struct run *run, int op, enum stream stream, double begin, double end)
{
    struct run_trace *t = run->trace;

    if (t && t->n < t->capacity)
        t->records[t->n++] = (struct run_record){ .action = t->action,
                                                  .op = op,
                                                  .begin_ns = in_ns(begin),
                                                  .end_ns = in_ns(end),
                                                  .stream = (int32_t)stream };
}

void run_trace_wait(struct run *run, const struct resolved_op *op, double begin, double end)
{
    struct run_trace *t = run->trace;

    run_trace_add(run, RUN_RECORD_WAIT, STREAM_COMPUTE, begin, end);
    if (t && t->n)
        t->records[t->n - 1].waited = (int32_t)op->stream;
}

/* Of an op that was posted and is done. */
static void take(struct run_trace *t, struct resolved_op *op)
{
    if (!op->traced)
        return;
    if (t->n < t->capacity)
        t->records[t->n++] = (struct run_record){ .action = op->traced - 1,
                                                  .op = op->traced_index,
                                                  .begin_ns = in_ns(op->stream_op.began_at),
                                                  .end_ns = in_ns(op->stream_op.ended_at),
                                                  .stream = (int32_t)op->stream };
    op->traced = 0;
}

void run_trace_post(struct run *run, struct resolved_op *op, int index)
{
    struct run_trace *t = run->trace;

    if (!t || run->enqueues || t->n_posted == t->posted_capacity)
        return;
    op->traced = t->action + 1;
    op->traced_index = index;
    t->posted[t->n_posted++] = op;
}

void run_trace_done(struct run *run, struct resolved_op *op)
{
    if (run->trace)
        take(run->trace, op);
}

void run_trace_end(struct run *run)
{
    struct run_trace *t = run->trace;

    for (int i = 0; t && i < t->n_posted; i++)
        take(t, t->posted[i]);
    if (t)
        t->n_posted = 0;
}
