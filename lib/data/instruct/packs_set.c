/*
 * packs_set.c - opening files of samples, and whose turn it is
 */
#include "data/instruct/packs_set.h"

#include <stdlib.h>
#include <xxhash.h>

#include "base/num.h"
#include "base/str.h"

static int open_file(struct packs_set *set, const struct packs_options *options, int i, bool only,
                     struct err *err)
{
    struct packs_options own = *options;
    struct str prefix = { 0 };

    str_printf(&prefix, only ? "%s" : "%s-%d", options->prefix, i);
    own.prefix = str_text(&prefix);
    own.dataset = i;
    int rc = packs_open(&set->packs[i], &own, err);
    str_release(&prefix);
    if (rc < 0)
        return -1;
    set->n++;
    set->n_sequences += set->packs[i].n_sequences;
    set->n_samples += set->packs[i].n_samples;
    set->n_tokens += set->packs[i].n_tokens;
    set->n_learned += set->packs[i].n_learned;
    return 0;
}

int packs_set_open(struct packs_set *out, const struct packs_options *options,
                   const double *weights, int n, struct err *err)
{
    struct packs_set set = { .held_out = options->held_out };
    const double one = 1;
    int n_files = max_int(n, 1), rc;

    if (blend_init(&set.blend, n ? weights : &one, n_files, err) < 0)
        return -1;
    set.packs = calloc((size_t)n_files, sizeof *set.packs);
    rc = set.packs ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
    for (int i = 0; i < n_files && rc == 0; i++)
        rc = open_file(&set, options, i, n == 0, err);
    if (rc < 0)
        packs_set_close(&set);
    else
        *out = set;
    return rc;
}

void packs_set_close(struct packs_set *set)
{
    for (int i = 0; i < set->n; i++)
        packs_close(&set->packs[i]);
    free(set->packs);
    *set = (struct packs_set){ 0 };
}

struct packs_place packs_set_find(const struct packs_set *set, struct blend *cursor, int64_t k)
{
    struct packs_place place = { .sequence = -1 };

    CHECK(k >= 0);
    if (set->held_out) {
        for (; place.file < set->n && k >= set->packs[place.file].n_sequences; place.file++)
            k -= set->packs[place.file].n_sequences;
        if (place.file == set->n)
            return (struct packs_place){ .sequence = -1 };
    } else {
        blend_seek(cursor, k);
        place.file = blend_next(cursor, &k);
    }
    const struct packs *packs = &set->packs[place.file];
    place.sequence = packs_find(packs, k);
    place.length = packs->lengths[place.sequence];
    place.learned = packs->learned[place.sequence];
    return place;
}

uint64_t packs_set_key(const struct packs_set *set)
{
    XXH64_hash_t hash = 0;

    if (set->n == 1)
        return set->packs[0].key;
    for (int i = 0; i < set->n; i++) {
        uint64_t words[2] = { set->packs[i].key, (uint64_t)set->blend.weight[i] };

        hash = XXH64(words, sizeof words, hash);
    }
    return hash;
}
