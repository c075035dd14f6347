/*
 * search_share.c - micro-batches of data-parallel ranks on devices of several kinds
 *
 * A data-parallel rank has a pipeline of its own: its slowest stage sets the pace, and the first
 * micro-batch takes its time through the others, too.
 */
#include "base/num.h"
#include "plan/search_impl.h"
#include "plan/share.h"

/* Of a replica whose stages take so long. The ramp through a rank's chunks is a chunk's. */
static struct share_pace pace_of(const struct pipeline_spec *spec, const struct layer_cost *stages)
{
    int64_t slowest = 1, sum = 0;

    for (int rank = 0; rank < spec->n_ranks; rank++) {
        int64_t ns = 0;

        for (int chunk = 0; chunk < spec->n_chunks; chunk++) {
            const struct layer_cost *c = &stages[pipeline_stage_of(spec, rank, chunk)];

            ns += c->f + c->i + c->w;
        }
        slowest = max_i64(slowest, ns);
        sum += ns;
    }
    return (struct share_pace){ max_i64(0, sum - slowest) / spec->n_chunks, slowest };
}

static struct share_pace *list_paces(struct search *search, const struct layout *l,
                                     const struct pipeline_spec *spec, struct arena *arena)
{
    struct share_pace *paces = arena_array(arena, struct share_pace, l->dp);

    for (int i = 0; i < l->dp; i++) {
        if (i && search_is_like(search, l, i, i - 1)) {
            paces[i] = paces[i - 1];
            continue;
        }
        struct layer_cost *stages = search_base_stages(search, l, spec, i, arena);
        if (!stages)
            return NULL;
        paces[i] = pace_of(spec, stages);
    }
    return paces;
}

const int *search_share(struct search *search, const struct layout_candidate *candidate)
{
    const struct layout *l = &candidate->layout;
    struct pipeline_spec spec = search_spec(candidate);
    struct arena scratch = { 0 };
    const struct share_pace *paces = list_paces(search, l, &spec, &scratch);
    int64_t n_all = (int64_t)candidate->n_micro_batches * l->dp;
    int *counts = arena_array(search->arena, int, l->dp);
    bool differ = false;

    if (paces && share_micro_batches(counts, paces, l->dp, n_all) >= 0)
        for (int i = 1; i < l->dp; i++)
            differ |= counts[i] != counts[0];
    arena_release(&scratch);
    return differ ? counts : NULL;
}
