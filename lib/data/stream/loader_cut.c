/*
 * loader_cut.c - of a micro-batch of whole sequences, the rows of this rank
 */
#include "data/stream/loader_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "layout/context.h"

static int check_length(const struct loader_options *o, const char *what, int length,
                        struct err *err)
{
    struct context_cut cut = o->cut;
    int64_t below = context_length_below(cut, length), above = context_length_above(cut, length);
    char lower[32] = "";

    if (context_divides(cut, length))
        return 0;
    if (below > 0)
        snprintf(lower, sizeof lower, "%lld or ", (long long)below);
    return err_set(err, ERR_CONFIG,
                   "%s %d cannot be cut over cp %d (ulysses %d times %d): not a multiple of %lld "
                   "(hint: %s%lld)",
                   what, length, context_size(cut), cut.ulysses, cut.keys,
                   (long long)context_unit(cut), lower, (long long)above);
}

int loader_cut_check(const struct loader_options *o, struct err *err)
{
    CHECK(o->ulysses_rank >= 0);
    CHECK(o->ulysses_rank < o->cut.ulysses);
    CHECK(o->cp_rank >= 0);
    CHECK(o->cp_rank < o->cut.keys);
    int rc = check_length(o, "seq_len", o->seq_len, err);
    for (int i = 0; i < o->n_lengths && rc == 0; i++)
        rc = check_length(o, "a micro-batch's length", o->lengths[i], err);
    return rc;
}

/* ---- memory ---- */

int loader_cut_open(struct loader *loader, struct err *err)
{
    const struct loader_options *o = &loader->options;

    if (context_size(o->cut) == 1)
        return 0;
    /* A pair has at least as many rows as a rank. */
    loader->cut_rows = calloc((size_t)(o->seq_len / o->cut.keys), sizeof *loader->cut_rows);
    return loader->cut_rows ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
}

int loader_cut_start(const struct loader *loader, struct loader_slot *slot)
{
    const struct loader_options *o = &loader->options;
    size_t whole = (size_t)loader->rows, pair = whole / (size_t)o->cut.keys;
    size_t local = whole / (size_t)context_size(o->cut);
    size_t n_ring = o->ring ? 2 * whole : 0;
    struct cut_slot *c = &slot->cut;

    if (context_size(o->cut) == 1)
        return 0;
    c->memory = calloc(4 * local + (o->cut.keys > 1 ? 5 * pair + n_ring : 0), sizeof *c->memory);
    if (!c->memory)
        return -1;
    c->tokens = c->memory;
    c->targets = c->tokens + local;
    c->positions = c->targets + local;
    c->rows = c->positions + local;
    if (o->cut.keys == 1)
        return 0;
    c->attention_positions = c->rows + local;
    c->last = c->attention_positions + pair;
    c->starts = slot->starts ? c->last + pair : NULL;
    c->window_first = o->window > 0 ? c->last + 2 * pair : NULL;
    c->window_last = o->window > 0 ? c->last + 3 * pair : NULL;
    c->ring_first = o->ring ? c->last + 4 * pair : NULL;
    c->ring_last = o->ring ? c->ring_first + whole : NULL;
    return 0;
}

/* ---- in the thread ---- */

static void take(int32_t *out, const int32_t *sequence, const int32_t *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = sequence[rows[i]];
}

static void take_local(struct loader *loader, struct loader_slot *slot, int n_sequences)
{
    const struct loader_options *o = &loader->options;
    int64_t n = slot->seq_len / context_size(o->cut);
    const int32_t *rows = loader->cut_rows;
    const struct cut_slot *c = &slot->cut;

    context_rows(o->cut, slot->seq_len, o->ulysses_rank, o->cp_rank, loader->cut_rows);
    for (int s = 0; s < n_sequences; s++) {
        int64_t from = (int64_t)s * slot->seq_len, at = s * n;

        take(c->tokens + at, slot->tokens + from, rows, n);
        take(c->targets + at, slot->targets + from, rows, n);
        take(c->positions + at, slot->positions + from, rows, n);
        for (int64_t i = 0; i < n; i++)
            c->rows[at + i] = (int32_t)from + rows[i];
    }
}

static void take_pair(struct loader *loader, struct loader_slot *slot, int n_sequences)
{
    const struct loader_options *o = &loader->options;
    int64_t n = slot->seq_len / o->cut.keys;
    const int32_t *rows = loader->cut_rows;
    const struct cut_slot *c = &slot->cut;

    context_pair_rows(o->cut, slot->seq_len, o->cp_rank, loader->cut_rows);
    for (int s = 0; s < n_sequences; s++) {
        int64_t from = (int64_t)s * slot->seq_len, at = s * n;

        take(c->attention_positions + at, slot->positions + from, rows, n);
        if (c->starts)
            take(c->starts + at, slot->starts + from, rows, n);
        for (int64_t i = 0; i < n; i++)
            c->last[at + i] = rows[i];
    }
}

static void find_window_keys(const struct loader *loader, struct loader_slot *slot, int n_sequences)
{
    const struct loader_options *o = &loader->options;
    int64_t n = slot->seq_len / o->cut.keys;
    const struct cut_slot *c = &slot->cut;

    for (int64_t i = 0; i < n_sequences * n; i++) {
        struct context_keys keys = context_window_keys(o->cut, slot->seq_len, o->window, o->cp_rank,
                                                       i % n, c->starts ? c->starts[i] : 0);

        c->window_first[i] = keys.first;
        c->window_last[i] = keys.last;
    }
}

/* Keys of the pair of a ring step that the queries see. A query sees neighbouring rows of the
 * sequence, so of a pair, too: of its two chunks the end of one and the begin of the other. */
static void find_ring_keys(const struct loader *loader, struct loader_slot *slot, int n_sequences,
                           int step)
{
    const struct loader_options *o = &loader->options;
    int64_t n = (int64_t)n_sequences * slot->seq_len / o->cut.keys;
    int of = (o->cp_rank - step + o->cut.keys) % o->cut.keys;
    const struct cut_slot *c = &slot->cut;

    for (int64_t i = 0; i < n; i++) {
        int64_t last = c->last[i], first = c->starts ? c->starts[i] : 0;

        if (o->ring_window > 0)
            first = max_i64(first, last - o->ring_window + 1);
        c->ring_first[step * n + i] =
            (int32_t)context_rows_before(o->cut, slot->seq_len, of, first);
        c->ring_last[step * n + i] =
            (int32_t)context_rows_before(o->cut, slot->seq_len, of, last + 1) - 1;
    }
}

void loader_cut_fill(struct loader *loader, struct loader_slot *slot, int n_sequences)
{
    const struct loader_options *o = &loader->options;

    if (context_size(o->cut) == 1)
        return;
    take_local(loader, slot, n_sequences);
    if (o->cut.keys > 1)
        take_pair(loader, slot, n_sequences);
    if (context_has_window(o->cut, slot->seq_len, o->window))
        find_window_keys(loader, slot, n_sequences);
    for (int step = 0; slot->cut.ring_first && step < o->cut.keys; step++)
        find_ring_keys(loader, slot, n_sequences, step);
}

/* ---- for the caller ---- */

struct micro_batch loader_cut_batch(const struct loader_slot *slot)
{
    const struct cut_slot *c = &slot->cut;
    struct micro_batch batch = { .tokens = slot->tokens,
                                 .targets = slot->targets,
                                 .positions = slot->positions,
                                 .rows = c->rows,
                                 .samples = slot->samples,
                                 .attention_positions = slot->positions,
                                 .starts = slot->starts,
                                 .last = c->last,
                                 .window_first = c->window_first,
                                 .window_last = c->window_last,
                                 .ring_first = c->ring_first,
                                 .ring_last = c->ring_last,
                                 .seq_len = slot->seq_len };

    if (c->rows) {
        batch.tokens = c->tokens;
        batch.targets = c->targets;
        batch.positions = c->positions;
    }
    if (c->last) {
        batch.attention_positions = c->attention_positions;
        batch.starts = c->starts;
    }
    return batch;
}
