/*
 * search_memory.c - bytes of a layout's ranks: by the costs of layers, then of compiled programs
 *
 * What a rank needs is nearly linear in its layers and micro-batches, but for slots that chunks
 * share, buckets that are padded, and scratch that ops use in turn. So the linear sum says which
 * ranks are the largest, and these are compiled before a layout is taken for one of the best.
 */
#include "base/num.h"
#include "plan/fit.h"
#include "plan/islands.h"
#include "plan/programs.h"
#include "plan/search_impl.h"
#include "program/passes.h"

size_t search_available(const struct search *search, const struct mesh *mesh, int rank)
{
    const struct search_request *r = search->request;

    if (search->are_alike)
        return search->available;
    return plan_limit_bytes(r->job, islands_smallest(r->cluster, mesh_stage_ranks(mesh, rank)),
                            r->memory_share);
}

size_t search_scale_bytes(const struct search *search, const struct mesh *mesh, int rank,
                          size_t n_bytes)
{
    size_t available = search_available(search, mesh, rank);

    if (available == search->available)
        return n_bytes;
    return (size_t)((double)n_bytes * (double)search->available /
                    (double)(available ? available : 1));
}

/* Chunks of equal values share slots (program/stash_share.c), so the rank's peak counts; what is
 * sent is kept, too. */
size_t search_bytes_of_rank(const struct pipeline *pipeline, const struct layer_cost *stages,
                            int64_t boundary_bytes, int rank)
{
    struct pipeline_slots peak = pipeline_peak(pipeline, rank);
    int64_t n = 0, slot = 0, handed = 0;

    for (int chunk = 0; chunk < pipeline->spec.n_chunks; chunk++) {
        const struct layer_cost *s = &stages[pipeline_stage_of(&pipeline->spec, rank, chunk)];

        n += s->weight_bytes + s->gradient_bytes + s->state_bytes;
        slot = max_i64(slot, s->slot_bytes + boundary_bytes);
        handed = max_i64(handed, s->handed_bytes);
    }
    return (size_t)(n + peak.f_to_w * slot + peak.i_to_w * handed);
}

void search_note_largest(struct largest_ranks *largest, int rank, size_t n_bytes)
{
    int at = largest->n;

    while (at > 0 && n_bytes > largest->bytes[at - 1])
        at--;
    if (at == N_LARGEST)
        return;
    largest->n = min_int(largest->n + 1, N_LARGEST);
    for (int i = largest->n - 1; i > at; i--) {
        largest->ranks[i] = largest->ranks[i - 1];
        largest->bytes[i] = largest->bytes[i - 1];
    }
    largest->ranks[at] = rank;
    largest->bytes[at] = n_bytes;
}

/* More micro-batches for each pipeline rank take no more memory, but longer to compile. */
enum { N_MEASURED_ROUNDS = 8 };

/* The largest ranks by sums, and both ends, which sums may underrate. */
static int list_measured(const struct layout_candidate *c, int ranks[N_LARGEST + 2])
{
    int ends[] = { 0, c->layout.pp - 1 }, n = 0;

    for (int i = 0; i < c->largest.n; i++)
        ranks[n++] = c->largest.ranks[i];
    for (int i = 0; i < 2; i++) {
        bool is_new = true;

        for (int k = 0; k < n && is_new; k++)
            is_new = ranks[k] != ends[i];
        if (is_new)
            ranks[n++] = ends[i];
    }
    return n;
}

int search_short_job(const struct search *search, const struct layout_candidate *c, struct job *job,
                     struct arena *arena, struct err *err)
{
    const struct layout *l = &c->layout;

    *job = *search->request->job;
    layout_apply(job, l);
    /* Counts of replicas add up to the whole batch, and what copies take is of all of it. */
    if (!l->counts.n && job->memory.offload == OFFLOAD_NONE)
        job->train.global_batch =
            min_int(job->train.global_batch, N_MEASURED_ROUNDS * l->pp * l->micro_batch * l->dp);
    job->rates = search->request->cluster;
    return job_resolve(job, layout_n_ranks(l), arena, err);
}

int search_measure_bytes(const struct search *search, struct layout_candidate *c, struct err *err)
{
    const struct search_request *r = search->request;
    const struct mesh mesh = search_mesh(search, &c->layout);
    struct arena arena = { 0 };
    int ranks[N_LARGEST + 2], n_ranks = list_measured(c, ranks);
    size_t most = 0;
    struct job job;

    int status = search_short_job(search, c, &job, &arena, err);
    /* A run gathers fewer ahead where that is too much. */
    if (!status && job.parallel.prefetch < 0)
        job.parallel.prefetch = 0;
    for (int i = 0; i < n_ranks && !status && most <= search->available; i++) {
        struct programs_request request = {
            .job = &job, .kernels = r->kernels, .pp_rank = ranks[i], .unverified = true
        };
        struct program program;

        status = programs_compile(&program, &request, err);
        size_t n = status ? 0
                          : search_scale_bytes(search, &mesh, request.pp_rank,
                                               plan_needed_bytes(&program, r->kernels));
        most = n > most ? n : most;
        program_release(&program);
    }
    c->is_measured = !status;
    c->estimate_bytes = status ? c->estimate_bytes : most;
    arena_release(&arena);
    return status;
}
