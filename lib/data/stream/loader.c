/*
 * loader.c - the ring of micro-batches, and the sizes of a loader
 */
#include "data/stream/loader.h"

#include "base/num.h"
#include "data/stream/loader_impl.h"

void loader_prefetch(struct loader *loader)
{
    struct loader_slot *slot;

    while (loader->n_submitted < loader->n_batches && (slot = ordered_pool_next(loader->pool))) {
        slot->number = loader->n_submitted++;
        ordered_pool_submit(loader->pool);
    }
}

int loader_next(struct loader *loader, struct micro_batch *out, struct err *err)
{
    const struct loader_slot *slot;

    CHECK(loader->n_taken < loader->n_batches);
    if (!loader->failed) {
        loader_prefetch(loader);
        slot = ordered_pool_take(loader->pool);
        loader->failed = slot->failed;
        loader->err = slot->err;
    }
    if (loader->failed) { /* and so does each further call */
        *err = loader->err;
        return -1;
    }
    loader->n_taken++;
    *out = loader_cut_batch(slot);
    return 0;
}

void loader_rewind(struct loader *loader)
{
    CHECK(loader->options.held_out);
    ordered_pool_discard(loader->pool);
    loader->n_submitted = loader->n_taken = 0;
    loader->failed = false;
    loader_prefetch(loader);
}

int64_t loader_step_tokens(struct loader *loader, int64_t step)
{
    int64_t global_batch = loader->options.global_batch, n = 0;

    if (!loader->options.samples)
        return sampler_count_targets(&loader->sampler, step * global_batch, global_batch);
    for (int64_t k = step * global_batch; k < (step + 1) * global_batch; k++)
        n += packs_set_find(&loader->samples, &loader->asked.cursor, k).learned;
    return n;
}

int64_t loader_step_read(struct loader *loader, int64_t step)
{
    int64_t global_batch = loader->options.global_batch, n = 0;

    if (!loader->options.samples)
        return loader_step_tokens(loader, step);
    for (int64_t k = step * global_batch; k < (step + 1) * global_batch; k++)
        n += packs_set_find(&loader->samples, &loader->asked.cursor, k).length;
    return n;
}

int loader_length(struct loader *loader, int64_t step, int micro_batch)
{
    CHECK(micro_batch >= 0);
    CHECK(micro_batch < loader->n_micro_batches);
    if (!loader->options.samples)
        return loader->options.seq_len;
    loader_deal_step(loader, &loader->asked, step);
    return loader->asked.lengths[micro_batch];
}

int64_t loader_n_steps(const struct loader *loader)
{
    return loader->n_steps;
}

int64_t loader_n_samples(const struct loader *loader)
{
    return loader->options.samples ? loader->samples.n_sequences : loader->sampler.n_samples;
}

int64_t loader_n_tokens(const struct loader *loader)
{
    return loader->options.samples ? loader->samples.n_tokens : loader->sampler.n_tokens;
}

struct loader_usage loader_usage(struct loader *loader)
{
    const struct packs_set *samples = &loader->samples;
    const struct loader_options *o = &loader->options;
    struct loader_usage usage = { .n_samples = samples->n_samples,
                                  .n_sequences = loader_n_samples(loader),
                                  .n_tokens = loader_n_tokens(loader),
                                  .n_learned = samples->n_learned };

    if (!o->samples)
        return usage;
    int64_t n_steps = ceil_div(usage.n_sequences, o->global_batch);
    for (int64_t step = 0; step < n_steps; step++)
        for (int m = 0; m < loader->n_micro_batches; m++) {
            int64_t n = loader->begins[m + 1] - loader->begins[m];

            usage.n_rows += n * o->dp_size * loader_length(loader, step, m);
        }
    /* The last step goes on into the next epoch, or is filled up: only its share counts. */
    usage.n_rows = (int64_t)((double)usage.n_rows * (double)usage.n_sequences /
                             (double)(n_steps * o->global_batch));
    return usage;
}

uint64_t loader_fingerprint(const struct loader *loader)
{
    return loader->fingerprint;
}
