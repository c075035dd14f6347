/*
 * pipeline_zero_bubble.c - ZB-H1, ZB-H2 and ZB-V
 *
 * Qi et al. 2023, Zero Bubble Pipeline Parallelism: the handcrafted schedules ZB-H1 and ZB-H2, and
 * ZB-V, in which a rank has one chunk on the way forth and one on the way back. Only I is on the
 * path from rank to rank: W may run any time later and fills the bubble, at the price of keeping
 * its inputs. The schedules assume F = I = W.
 */
#include "base/num.h"
#include "layout/pipeline_impl.h"

/* W's, each put off until `delay` further I's are written. */
static void write_due(struct list_writer *writer, int delay)
{
    if (n_written(writer, STEP_I, 0) - n_written(writer, STEP_W, 0) > delay)
        write_step(writer, STEP_W, 0);
}

void write_zb_h1(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    int warmup = min_int(spec->n_ranks - 1 - rank, spec->n_micro_batches);

    write_steps(writer, STEP_F, 0, warmup);
    for (int m = 0; m < spec->n_micro_batches; m++) {
        if (n_written(writer, STEP_F, 0) < spec->n_micro_batches)
            write_step(writer, STEP_F, 0);
        write_step(writer, STEP_I, 0);
        write_due(writer, rank);
    }
    write_steps(writer, STEP_W, 0, spec->n_micro_batches - n_written(writer, STEP_W, 0));
}

void write_zb_h2(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    int warmup = min_int(2 * (spec->n_ranks - rank) - 1, spec->n_micro_batches);

    write_steps(writer, STEP_F, 0, warmup);
    for (int m = 0; m < spec->n_micro_batches; m++) {
        write_step(writer, STEP_I, 0);
        write_due(writer, 2 * rank);
        if (n_written(writer, STEP_F, 0) < spec->n_micro_batches)
            write_step(writer, STEP_F, 0);
    }
    write_steps(writer, STEP_W, 0, spec->n_micro_batches - n_written(writer, STEP_W, 0));
}

static void write_f_i_w(struct list_writer *writer, int chunk)
{
    write_step(writer, STEP_F, chunk);
    write_step(writer, STEP_I, chunk);
    write_step(writer, STEP_W, chunk);
}

/*
 * Warm-up: 2p-1-r F's of chunk 0 and r of chunk 1, which is 2p-1 on every rank. Then (F, I, W) of
 * chunk 1 until its backward has come round the V to chunk 0, then of both in turn; at last the I's
 * that others wait for as early as they can be, with W's between and behind them. With fewer than
 * 2p-1 micro-batches the phases keep their lengths and the writer leaves out what is not there.
 */
void write_zb_v(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    int p = spec->n_ranks, n = spec->n_micro_batches;

    write_steps(writer, STEP_F, 0, 2 * (p - rank) - 1);
    for (int k = 0; k < rank; k++) {
        write_step(writer, STEP_F, 1);
        write_step(writer, STEP_F, 0);
    }
    for (int k = 0; k < p - rank; k++)
        write_f_i_w(writer, 1);
    while (n_written(writer, STEP_F, 1) < n) {
        if (n_written(writer, STEP_F, 0) < n)
            write_step(writer, STEP_F, 0);
        write_step(writer, STEP_I, 0);
        write_step(writer, STEP_W, 0);
        write_f_i_w(writer, 1);
    }
    for (int k = 0; k < rank; k++) {
        write_step(writer, STEP_I, 0);
        write_step(writer, STEP_I, 1);
    }
    for (int k = 0; k < p - rank; k++) {
        write_step(writer, STEP_I, 0);
        write_step(writer, STEP_W, 0);
    }
    write_steps(writer, STEP_W, 1, n - n_written(writer, STEP_W, 1));
    write_steps(writer, STEP_W, 0, n - n_written(writer, STEP_W, 0));
}
