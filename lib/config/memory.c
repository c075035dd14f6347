/*
 * memory.c - which keys memory.* must fit together
 */
#include "config/read_impl.h"

static bool may_leave(const struct job *job, enum offload_kind kind)
{
    return job->memory.offload == OFFLOAD_AUTO ||
           (job->memory.offload == OFFLOAD_LIST &&
            bitset_has(&job->memory.offload_kinds, (int)kind));
}

/* What is of no use where nothing leaves the device. */
static void check_unused(struct job_reader *r)
{
    static const char *const keys[] = { "memory.host_bytes", "memory.file" };
    struct job *job = r->job;
    const bool are_set[] = { job->memory.host_bytes > 0, job->memory.file != NULL };

    if (job->memory.offload != OFFLOAD_NONE)
        return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (are_set[i])
            diagnostics_add(&r->mistakes, reader_given(r, keys[i]),
                            "%s is given, but memory.offload is none: nothing leaves the device "
                            "(hint: memory.offload: auto)",
                            keys[i]);
    if (job->memory.link_rate > 0)
        job_note(job, r->arena,
                 "memory.link has no effect with memory.offload none: nothing leaves the device");
}

void reader_check_memory(struct job_reader *r)
{
    const struct job *job = r->job;

    _Static_assert(N_OFFLOAD_KINDS <= BITSET_MAX, "a list may have all kinds");
    check_unused(r);
    if (job->memory.file && *job->memory.file != '/')
        diagnostics_add(&r->mistakes, reader_given(r, "memory.file"),
                        "memory.file is %s, not an absolute path (hint: a folder on a disk of each "
                        "node, such as ${TMPDIR}; null: none)",
                        job->memory.file);
    if (job->memory.file_rate > 0 && !job->memory.file)
        diagnostics_add(&r->mistakes, reader_given(r, "memory.file_link"),
                        "memory.file_link is given, but memory.file is not (hint: memory.file: a "
                        "folder on a disk of each node, such as ${TMPDIR})");
    if (job->memory.update == UPDATE_HOST && !may_leave(job, OFFLOAD_OPTIMIZER))
        diagnostics_add(&r->mistakes, reader_given(r, "memory.update"),
                        "memory.update is host, but memory.offload %s: the optimizer's states stay "
                        "on the device (hint: memory.offload: %s)",
                        job->memory.offload == OFFLOAD_NONE ? "is none" : "has no optimizer",
                        job->memory.offload == OFFLOAD_NONE ? "[optimizer]"
                                                            : "auto, or a list with optimizer");
}
