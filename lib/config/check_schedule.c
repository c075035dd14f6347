/*
 * check_schedule.c - whether the fields of the learning rate fit together
 */
#include "config/read_impl.h"

static void check_lengths(struct job_reader *r)
{
    const struct job *job = r->job;
    long long steps = job->train.steps, warmup = job->optimizer.warmup_steps;
    long long decay = job->optimizer.schedule == LR_WSD ? job->optimizer.decay_steps : 0;
    long long cycles = job->optimizer.cycles;

    if (!steps)
        return; /* by epochs: compared when they are known */
    if (warmup > steps)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.warmup_steps"),
                        "optimizer.warmup_steps is %lld, more than train.steps %lld", warmup,
                        steps);
    else if (warmup + decay > steps)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.decay_steps"),
                        "optimizer.decay_steps is %lld, more than the %lld steps after warm-up",
                        decay, steps - warmup);
    else if (cycles > 1 && warmup + cycles > steps)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.cycles"),
                        "optimizer.cycles is %lld, more than the %lld steps after warm-up", cycles,
                        steps - warmup);
}

void reader_check_schedule(struct job_reader *r)
{
    const struct job *job = r->job;
    enum lr_schedule_kind schedule = job->optimizer.schedule;
    const char *name = choice_word(lr_schedule_choices, (int)schedule);

    if (job->optimizer.decay_shape != LR_DECAY_LINEAR && schedule != LR_WSD)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.decay_shape"),
                        "optimizer.decay_shape is %s, which schedule %s does not have (hint: "
                        "optimizer.schedule: wsd)",
                        choice_word(lr_decay_shape_choices, (int)job->optimizer.decay_shape), name);
    if (job->optimizer.cycles > 1 && schedule != LR_LINEAR && schedule != LR_COSINE)
        diagnostics_add(&r->mistakes, reader_given(r, "optimizer.cycles"),
                        "optimizer.cycles is %d, and schedule %s has none (hint: "
                        "optimizer.schedule: cosine or linear)",
                        job->optimizer.cycles, name);
    check_lengths(r);
}
