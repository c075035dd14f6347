/*
 * levels.c - all numbers of layers that are recomputed in full and selectively
 */
#include "plan/levels.h"

#include "base/num.h"

enum recompute_level level_of_layer(const struct level_counts *counts, int place)
{
    if (place < counts->n_full)
        return LEVEL_FULL;
    return place < counts->n_full + counts->n_selective ? LEVEL_SELECTIVE : LEVEL_NONE;
}

static int64_t chunk_ns(const struct level_chunk *chunk, const struct level_counts *counts)
{
    int64_t ns = 0;

    for (int i = 0; i < chunk->n_layers; i++)
        ns += chunk->layers[i].ns[level_of_layer(counts, i)];
    return ns;
}

/* Chunks whose slots are equal share them, so the largest counts for all. */
int64_t levels_bytes(const struct level_problem *p, const struct level_counts *counts)
{
    int64_t slot = 0, handed = 0;

    for (int c = 0; c < p->n_chunks; c++) {
        const struct level_chunk *chunk = &p->chunks[c];
        int64_t of_slot = chunk->slot_bytes, of_handed = 0;

        for (int i = 0; i < chunk->n_layers; i++) {
            enum recompute_level level = level_of_layer(counts, i);

            of_slot += chunk->layers[i].slot_bytes[level];
            of_handed += chunk->layers[i].handed_bytes[level];
        }
        slot = max_i64(slot, of_slot);
        handed = max_i64(handed, of_handed);
    }
    return p->n_slots * slot + p->n_handed * handed;
}

bool levels_choose(struct level_counts *counts, const struct level_problem *p)
{
    int64_t best = INT64_MAX;
    int most = 0;

    for (int c = 0; c < p->n_chunks; c++)
        most = max_int(most, p->chunks[c].n_layers);
    *counts = (struct level_counts){ .n_full = most };
    /* From little recomputation on, so that of equal times the simplest is taken. */
    for (int n_full = 0; n_full <= most; n_full++)
        for (int n_selective = 0; n_full + n_selective <= most; n_selective++) {
            struct level_counts tried = { n_full, n_selective };
            int64_t ns = 0;

            if (levels_bytes(p, &tried) > p->available)
                continue;
            for (int c = 0; c < p->n_chunks; c++)
                ns += chunk_ns(&p->chunks[c], &tried);
            if (ns < best) {
                best = ns;
                *counts = tried;
            }
        }
    return best < INT64_MAX;
}
