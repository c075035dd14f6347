/*
 * check_overlap.c - whether collectives of layers can be hidden in the way a job says
 */
#include "config/read_impl.h"

/* Whether rows that cp exchanges are cut: heads for rows, what fastseq gathers, and keys and values
 * of whole sequences, gathered from rows of all heads. */
static bool cuts_context(const struct job *job)
{
    struct context_cut cut = job_context_cut(job);

    return job->parallel.cp > 1 && (cut.ulysses > 1 || job->parallel.cp_kind != CP_RING);
}

bool job_has_overlap(const struct job *job)
{
    return job->parallel.tp > 1 || cuts_context(job) || job->parallel.ep > 1;
}

/* What stays whole beside what is cut. */
static void note_whole(struct job_reader *r)
{
    const struct job *job = r->job;
    struct context_cut cut = job_context_cut(job);

    if (job->parallel.cp == 1 || cut.keys == 1)
        return;
    if (job->parallel.cp_kind == CP_RING)
        job_note(r->job, r->arena,
                 "parallel.overlap leaves a ring's steps whole: they travel while attention "
                 "computes the one before");
    else if (cut.ulysses > 1)
        job_note(r->job, r->arena,
                 "parallel.overlap cuts exchanges of heads, and leaves the gathers of keys behind "
                 "them whole");
}

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
    if (node && job->parallel.overlap != JOB_OVERLAP_NONE) {
        if (!job_has_overlap(job))
            job_note(r->job, r->arena,
                     "parallel.overlap has no effect: tp and ep are 1, and cp exchanges nothing "
                     "that is cut");
        note_whole(r);
    }
    if (job->parallel.overlap != JOB_OVERLAP_HALVES ||
        (job->parallel.tp == 1 && !cuts_context(job)))
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
