/*
 * loader_fill.c - the sequences of a micro-batch
 */
#include <stdlib.h>

#include "base/num.h"
#include "data/stream/loader_impl.h"

static int size_of(const struct loader *loader, int64_t b)
{
    int64_t m = b % loader->n_micro_batches;

    return loader->begins[m + 1] - loader->begins[m];
}

/* The place of sample i of this rank's batch b in the step's batch. */
static int64_t place_of(const struct loader *loader, int64_t b, int i)
{
    const struct loader_options *o = &loader->options;
    int64_t m = b % loader->n_micro_batches;

    if (loader->turns)
        return (int64_t)loader->turns[m] * o->micro_batch + i;
    return (int64_t)loader->begins[m] * o->dp_size + (int64_t)o->dp_rank * size_of(loader, b) + i;
}

static int64_t step_of(const struct loader *loader, int64_t b)
{
    return loader->options.first_step + b / loader->n_micro_batches;
}

/* ---- samples ---- */

static int by_length(const void *x, const void *y)
{
    const struct dealt_sequence *a = x, *b = y;

    if (a->from.length != b->from.length)
        return a->from.length > b->from.length ? -1 : 1;
    return a->k < b->k ? -1 : a->k > b->k;
}

/* The length to which a micro-batch with `needed` tokens in its longest sequence is padded. */
static int padded(const struct loader *loader, int needed)
{
    int i = 0;

    while (loader->lengths[i] < needed)
        i++;
    return loader->lengths[i];
}

/*
 * With several lengths the longest sequences come first, so that the sequences of a micro-batch are
 * neighbours in length over all ranks of dp.
 */
void loader_deal_step(const struct loader *loader, struct step_deal *deal, int64_t step)
{
    const struct loader_options *o = &loader->options;

    if (deal->step == step)
        return;
    deal->step = step;
    for (int i = 0; i < o->global_batch; i++) {
        struct dealt_sequence *place = &deal->places[i];

        place->k = step * o->global_batch + i;
        place->from = packs_set_find(&loader->samples, &deal->cursor, place->k);
    }
    if (o->n_lengths > 1)
        qsort(deal->places, (size_t)o->global_batch, sizeof *deal->places, by_length);
    for (int m = 0; m < loader->n_micro_batches; m++) {
        int needed = 0, n = (loader->begins[m + 1] - loader->begins[m]) * o->dp_size;

        for (int i = 0; i < n; i++)
            needed = max_int(needed, deal->places[loader->begins[m] * o->dp_size + i].from.length);
        deal->lengths[m] = padded(loader, needed);
    }
    for (int m = 0; m < loader->n_micro_batches && o->even_steps; m++)
        deal->lengths[m] = deal->lengths[0]; /* they are sorted */
}

static int fill_sequence(struct loader *loader, struct loader_slot *slot, int i, int64_t place)
{
    const struct dealt_sequence *dealt = &loader->filled.places[place];
    size_t start = (size_t)i * (size_t)slot->seq_len;
    struct packs_rows rows = { .tokens = slot->tokens + start,
                               .targets = slot->targets + start,
                               .positions = slot->positions + start,
                               .starts = slot->starts ? slot->starts + start : NULL,
                               .n_rows = slot->seq_len };

    slot->samples[i] = dealt->from.sequence < 0 ? -1 : dealt->k;
    return packs_fill(&loader->samples.packs[dealt->from.file], dealt->from.sequence, &rows,
                      &slot->err);
}

static void fill_from_samples(struct loader *loader, struct loader_slot *slot, int n_sequences)
{
    int64_t b = slot->number;

    loader_deal_step(loader, &loader->filled, step_of(loader, b));
    slot->seq_len = loader->filled.lengths[b % loader->n_micro_batches];
    for (int i = 0; i < n_sequences && !slot->failed; i++)
        slot->failed = fill_sequence(loader, slot, i, place_of(loader, b, i)) < 0;
}

/* ---- tokens ---- */

static int fill_sample(struct loader *loader, struct loader_slot *slot, int i, int64_t k)
{
    int seq_len = loader->options.seq_len;
    int32_t *tokens = slot->tokens + (size_t)i * (size_t)seq_len;
    int32_t *targets = slot->targets + (size_t)i * (size_t)seq_len;
    struct sample_place place = { 0 };

    slot->samples[i] = -1;
    if (!loader->options.held_out || k < loader->sampler.n_samples) {
        slot->samples[i] = k;
        place = sampler_find(&loader->sampler, k);
        if (indexed_read(loader->sampler.datasets[place.dataset].tokens, place.first,
                         place.n_targets + 1, loader->options.vocab_size, loader->window,
                         &slot->err) < 0)
            return -1;
    }
    for (int row = 0; row < seq_len; row++) {
        tokens[row] = row < place.n_targets ? loader->window[row] : 0;
        targets[row] = row < place.n_targets ? loader->window[row + 1] : LABEL_IGNORED;
    }
    return 0;
}

static void fill_from_tokens(struct loader *loader, struct loader_slot *slot, int n_sequences)
{
    int64_t b = slot->number, first = step_of(loader, b) * loader->options.global_batch;

    for (int i = 0; i < n_sequences && !slot->failed; i++)
        slot->failed = fill_sample(loader, slot, i, first + place_of(loader, b, i)) < 0;
}

void loader_fill(struct loader *loader, struct loader_slot *slot)
{
    int n_sequences = size_of(loader, slot->number);

    slot->failed = false;
    if (loader->options.samples)
        fill_from_samples(loader, slot, n_sequences);
    else
        fill_from_tokens(loader, slot, n_sequences);
    if (!slot->failed)
        loader_cut_fill(loader, slot, n_sequences);
}
