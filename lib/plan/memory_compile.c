/*
 * memory_compile.c - a pipeline rank's choice as its program, with what goes to the file
 */
#include <string.h>

#include "base/num.h"
#include "plan/memory_fit_impl.h"
#include "plan/programs.h"

int64_t memory_device_limit(const struct memory_fit_request *request, int pp_rank)
{
    if (request->job->memory.device_bytes)
        return request->job->memory.device_bytes;
    return request->rank_bytes ? request->rank_bytes[pp_rank] : request->device_bytes;
}

int64_t memory_host_limit(const struct memory_fit_request *request)
{
    return request->job->memory.host_bytes ? request->job->memory.host_bytes : request->host_bytes;
}

int memory_compile_rank(struct fitting_rank *r, struct program *program, struct err *err)
{
    struct programs_request request = { .job = &r->f->job,
                                        .kernels = r->f->request->kernels,
                                        .pp_rank = r->pp_rank,
                                        .unverified = true };
    struct memory_fit_rank *of = &r->f->ranks[r->pp_rank];

    of->n_compiled++;
    if (programs_compile(program, &request, err) < 0)
        return -1;
    of->device_bytes = (int64_t)program_space_bytes(program, SPACE_DEVICE);
    of->host_bytes = (int64_t)program_space_bytes(program, SPACE_HOST);
    of->file_bytes = (int64_t)program_space_bytes(program, SPACE_FILE);
    return 0;
}

void memory_note_cells(struct fitting_rank *r)
{
    struct memory_fit_rank *of = &r->f->ranks[r->pp_rank];
    struct rank_offload *offload = &r->f->offload[r->pp_rank];

    offload->files_activations = false;
    for (int kind = 0; kind < N_AWAY_KINDS; kind++) {
        offload->cells[kind] = (struct away_bytes){ .bytes = r->away[kind] };
        of->away_bytes[kind] = (int64_t)r->away[kind];
        of->cell_bytes[kind] = 0;
        for (int i = 0; i < r->cells[kind].n; i++)
            of->cell_bytes[kind] += (int64_t)r->cells[kind].bytes[i];
    }
}

/* Whether the choice is the one that was compiled last. Other ranks' layers stay as they are. */
static bool is_compiled(const struct fitting_rank *r)
{
    const struct fitting *f = r->f;

    return f->last.rank == 1 + r->pp_rank &&
           !memcmp(&f->last.asked, &f->offload[r->pp_rank], sizeof f->last.asked) &&
           !memcmp(f->last.set_of_layer, f->set_of_layer, (size_t)f->job.model.n_layers);
}

static int measure(struct fitting_rank *r, struct err *err)
{
    struct program program = { 0 };
    int status = memory_compile_rank(r, &program, err);

    program_release(&program);
    return status;
}

/* So many bytes more go to the file: states first, which are used once a step. Returns whether
 * anything is left to go. */
static bool file_more(struct rank_offload *offload, int64_t n_bytes)
{
    static const enum away_kind order[] = { AWAY_STATES, AWAY_GRADIENTS, AWAY_WEIGHTS };
    bool filed_all = offload->files_activations;

    for (size_t i = 0; i < sizeof order / sizeof *order && n_bytes > 0; i++) {
        struct away_bytes *cells = &offload->cells[order[i]];
        int64_t n = min_i64(n_bytes, (int64_t)(cells->bytes - cells->filed_bytes));

        cells->filed_bytes += (size_t)n;
        n_bytes -= n;
    }
    offload->files_activations |= n_bytes > 0;
    /* None is left that the host could update. */
    offload->updates_on_host &=
        offload->cells[AWAY_STATES].filed_bytes < offload->cells[AWAY_STATES].bytes;
    return !filed_all;
}

int memory_compile_choice(struct fitting_rank *r, struct err *err)
{
    struct fitting *f = r->f;
    struct rank_offload *offload = &f->offload[r->pp_rank];
    const struct memory_fit_rank *of = &f->ranks[r->pp_rank];
    int64_t limit = f->job.memory.file ? memory_host_limit(f->request) : 0;

    memory_note_cells(r);
    if (is_compiled(r)) {
        *offload = f->last.offload;
        return 0;
    }
    f->last.asked = *offload;
    int status = measure(r, err);
    while (!status && limit && of->host_bytes > limit && file_more(offload, of->host_bytes - limit))
        status = measure(r, err);
    f->last.rank = status ? 0 : 1 + r->pp_rank;
    f->last.offload = *offload;
    memcpy(f->last.set_of_layer, f->set_of_layer, (size_t)f->job.model.n_layers);
    return status;
}
