/*
 * check_overlap.c - whether collectives of tensor parallelism can be hidden in the way a job says
 */
#include "config/read_impl.h"

/* Two slices of whole sequences on each rank, where it has some of the rows. */
void reader_check_overlap(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct yaml_node *node = reader_given(r, "parallel.overlap");
    int unit = job->parallel.sequence_parallel ? job->parallel.tp : 1;

    if (job->parallel.overlap_slices && job->parallel.overlap != JOB_OVERLAP_SLICES)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.overlap_slices"),
                        "parallel.overlap_slices is for overlap: slices, and overlap is %s",
                        choice_word(overlap_choices, (int)job->parallel.overlap));
    if (job->parallel.tp == 1 && node && job->parallel.overlap != JOB_OVERLAP_NONE)
        job_note(r->job, r->arena, "parallel.overlap has no effect: tp is 1");
    if (job->parallel.overlap != JOB_OVERLAP_HALVES || job->parallel.tp == 1)
        return;
    if (job->model.attention_dropout > 0 || (job->samples.train && job->data.packing))
        job_note(r->job, r->arena,
                 "parallel.overlap: halves leave attention whole: %s; what is around it is cut",
                 job->model.attention_dropout > 0 ? "dropout draws by its sequences' numbers"
                                                  : "packed samples say which rows see which");
    if (job->parallel.cp > 1)
        diagnostics_add(&r->mistakes, node,
                        "parallel.overlap: halves are of whole sequences, and cp %d cuts them "
                        "(hint: slices, or auto)",
                        job->parallel.cp);
    else if (!job->parallel.micro_batches_auto &&
             (job->train.micro_batch % unit || job->train.micro_batch / unit < 2))
        diagnostics_add(&r->mistakes, node,
                        "parallel.overlap: halves need 2 sequences of a micro-batch%s, and "
                        "micro_batch is %d (hint: micro_batch: %d, or overlap: slices or auto)",
                        unit > 1 ? " on each tensor-parallel rank" : "", job->train.micro_batch,
                        2 * unit);
}
