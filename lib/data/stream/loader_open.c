/*
 * loader_open.c - a loader from its options: checks, files, memory, the thread
 */
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/num.h"
#include "data/stream/loader_impl.h"

static int check_rows(const struct loader_options *o, struct err *err)
{
    if ((int64_t)o->micro_batch * o->seq_len > INT32_MAX / 4)
        return err_set(err, ERR_CONFIG, "micro_batch %d of seq_len %d has more than %d rows",
                       o->micro_batch, o->seq_len, INT32_MAX / 4);
    return 0;
}

static int check_options(const struct loader_options *o, struct err *err)
{
    int64_t sum = 0;

    CHECK(o->vocab_size > 0);
    CHECK(o->seq_len > 0);
    CHECK(o->dp_rank >= 0);
    CHECK(o->dp_rank < o->dp_size);
    CHECK(o->first_step >= 0);
    for (int i = 0; i < o->n_sizes; i++) {
        CHECK(o->sizes[i] >= 1);
        CHECK(o->sizes[i] <= o->micro_batch);
        sum += o->sizes[i];
    }
    if (o->n_sizes && sum * o->dp_size != o->global_batch)
        return err_set(err, ERR_CONFIG,
                       "global_batch %d is not the sum %lld of micro-batches times dp_size %d",
                       o->global_batch, (long long)sum, o->dp_size);
    if (o->n_sizes)
        return check_rows(o, err);
    for (int r = 0; o->counts && r < o->dp_size; r++) {
        CHECK(o->counts[r] >= 1);
        sum += o->counts[r];
    }
    if (o->counts && sum * o->micro_batch != o->global_batch)
        return err_set(err, ERR_CONFIG,
                       "global_batch %d is not the sum %lld of all ranks' micro-batches times "
                       "micro_batch %d",
                       o->global_batch, (long long)sum, o->micro_batch);
    if (o->counts)
        return check_rows(o, err);
    if (o->micro_batch < 1 || o->global_batch < 1 ||
        o->global_batch % ((int64_t)o->micro_batch * o->dp_size) != 0)
        return err_set(err, ERR_CONFIG,
                       "global_batch %d is not a multiple of micro_batch %d times dp_size %d",
                       o->global_batch, o->micro_batch, o->dp_size);
    return check_rows(o, err);
}

static int open_samples(struct loader *loader, const struct loader_options *o, struct err *err)
{
    struct packs_options options = { .prefix = o->samples,
                                     .vocab_size = o->vocab_size,
                                     .seq_len = o->seq_len,
                                     .packing = o->packing,
                                     .held_out = o->held_out,
                                     .split = o->split,
                                     .seed = o->seed };

    CHECK(!o->packing || o->n_lengths == 0);
    CHECK(o->n_lengths == 0 || o->lengths[o->n_lengths - 1] == o->seq_len);
    loader->lengths = calloc((size_t)max_int(o->n_lengths, 1), sizeof *loader->lengths);
    if (!loader->lengths)
        return err_set(err, ERR_DEVICE, "out of host memory");
    loader->lengths[0] = o->seq_len;
    for (int i = 0; i < o->n_lengths; i++) {
        CHECK(o->lengths[i] > (i > 0 ? o->lengths[i - 1] : 0));
        loader->lengths[i] = o->lengths[i];
    }
    loader->options.lengths = NULL;
    loader->options.n_lengths = max_int(o->n_lengths, 1);
    double *weights = calloc((size_t)max_int(o->n_datasets, 1), sizeof *weights);
    if (!weights)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int i = 0; i < o->n_datasets; i++)
        weights[i] = o->datasets[i].weight;
    int rc = packs_set_open(&loader->samples, &options, weights,
                            o->blends_samples ? o->n_datasets : 0, err);
    free(weights);
    loader->filled.cursor = loader->asked.cursor = loader->samples.blend;
    return rc;
}

/* Files, then the sampler over them. */
static int open_tokens(struct loader *loader, const struct loader_options *o, struct err *err)
{
    int rc = -1;
    double *weights = calloc((size_t)max_int(o->n_datasets, 1), sizeof *weights);
    const struct indexed **files = calloc((size_t)max_int(o->n_datasets, 1), sizeof *files);

    loader->files = calloc((size_t)max_int(o->n_datasets, 1), sizeof *loader->files);
    if (!weights || !files || !loader->files) {
        err_set(err, ERR_DEVICE, "out of host memory");
        goto out;
    }
    for (int i = 0; i < o->n_datasets; i++) {
        if (indexed_open_tokens(&loader->files[i], o->datasets[i].path, err) < 0)
            goto out;
        loader->n_files = i + 1;
        files[i] = &loader->files[i];
        weights[i] = o->datasets[i].weight;
    }
    struct sampler_options options = { .datasets = files,
                                       .weights = weights,
                                       .n_datasets = o->n_datasets,
                                       .seq_len = o->seq_len,
                                       .held_out = o->held_out,
                                       .split = o->split,
                                       .seed = o->seed };
    rc = sampler_init(&loader->sampler, &options, err);
out:
    free(weights);
    free(files);
    return rc;
}

static uint64_t fingerprint_of_samples(const struct loader *loader)
{
    const struct loader_options *o = &loader->options;
    XXH64_hash_t hash = XXH64(loader->lengths, sizeof(int) * (size_t)o->n_lengths, 0);
    struct {
        uint64_t key, seed;
        double split;
        int64_t seq_len, held_out, packing, even_steps;
    } head = { packs_set_key(&loader->samples),
               o->seed,
               o->split,
               o->seq_len,
               o->held_out,
               o->packing,
               o->even_steps };

    return XXH64(&head, sizeof head, hash);
}

static uint64_t compute_fingerprint(const struct loader *loader)
{
    const struct sampler *sampler = &loader->sampler;
    XXH64_hash_t hash = 0;
    if (loader->options.samples)
        return fingerprint_of_samples(loader);
    struct {
        uint64_t seed;
        double split;
        int64_t seq_len, held_out, n_datasets;
    } head = { sampler->seed, sampler->split, sampler->seq_len, sampler->held_out,
               sampler->n_datasets };

    hash = XXH64(&head, sizeof head, hash);
    for (int i = 0; i < sampler->n_datasets; i++) {
        uint64_t words[2] = { sampler->datasets[i].key, (uint64_t)sampler->blend.weight[i] };

        hash = XXH64(words, sizeof words, hash);
    }
    return hash;
}

/* ---- memory ---- */

static int start_slot(void *job, void *context, struct err *err)
{
    struct loader_slot *slot = job;
    const struct loader *loader = context;
    const struct loader_options *o = &loader->options;
    size_t rows = (size_t)loader->rows;

    slot->tokens = calloc(rows, sizeof *slot->tokens);
    slot->targets = calloc(rows, sizeof *slot->targets);
    slot->positions = calloc(rows, sizeof *slot->positions);
    slot->starts = o->packing ? calloc(rows, sizeof *slot->starts) : NULL;
    slot->samples = calloc((size_t)o->micro_batch, sizeof *slot->samples);
    slot->seq_len = o->seq_len;
    if (!slot->tokens || !slot->targets || !slot->positions || !slot->samples ||
        (o->packing && !slot->starts))
        return err_set(err, ERR_DEVICE, "out of host memory for %d micro-batches of %d rows",
                       N_SLOTS, loader->rows);
    if (loader_cut_start(loader, slot) < 0)
        return err_set(err, ERR_DEVICE, "out of host memory for a rank's rows of micro-batches");
    for (int row = 0; row < loader->rows; row++)
        slot->positions[row] = row % o->seq_len;
    return 0;
}

static void release_slot(void *job)
{
    struct loader_slot *slot = job;

    free(slot->tokens);
    free(slot->targets);
    free(slot->positions);
    free(slot->starts);
    free(slot->samples);
    free(slot->cut.memory);
}

static int allocate_deal(struct loader *loader, struct step_deal *deal, struct err *err)
{
    deal->step = -1;
    if (!loader->options.samples)
        return 0;
    deal->places = calloc((size_t)loader->options.global_batch, sizeof *deal->places);
    deal->lengths = calloc((size_t)loader->n_micro_batches, sizeof *deal->lengths);
    if (!deal->places || !deal->lengths)
        return err_set(err, ERR_DEVICE, "out of host memory");
    return 0;
}

/* Which of the step's micro-batches each of this rank's is: all first ones of the ranks, then the
 * second ones of those that have one, .... */
static int find_turns(struct loader *loader, struct err *err)
{
    const struct loader_options *o = &loader->options;

    loader->turns = calloc((size_t)loader->n_micro_batches, sizeof *loader->turns);
    if (!loader->turns)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int m = 0; m < loader->n_micro_batches; m++)
        for (int r = 0; r < o->dp_size; r++)
            loader->turns[m] += min_int(o->counts[r], m) + (r < o->dp_rank && o->counts[r] > m);
    loader->options.counts = NULL;
    return 0;
}

/* Where each micro-batch begins on one rank. */
static int find_begins(struct loader *loader, struct err *err)
{
    const struct loader_options *o = &loader->options;
    int n = o->counts    ? o->counts[o->dp_rank]
            : o->n_sizes ? o->n_sizes
                         : o->global_batch / (o->micro_batch * o->dp_size);

    loader->n_micro_batches = n;
    loader->begins = calloc((size_t)n + 1, sizeof *loader->begins);
    if (!loader->begins)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int m = 0; m < n; m++)
        loader->begins[m + 1] = loader->begins[m] + (o->n_sizes ? o->sizes[m] : o->micro_batch);
    loader->options.sizes = NULL;
    return o->counts ? find_turns(loader, err) : 0;
}

/* ---- the thread ---- */

static void fill(void *job, void *worker)
{
    loader_fill(*(struct loader **)worker, job);
}

static int start_worker(void *worker, void *context, struct err *err)
{
    (void)err;
    *(struct loader **)worker = context;
    return 0;
}

static int start_pool(struct loader *loader, struct err *err)
{
    struct ordered_pool_options options = { .work = fill,
                                            .n_threads = 1,
                                            .n_jobs = N_SLOTS,
                                            .background = true,
                                            .job_bytes = sizeof(struct loader_slot),
                                            .worker_bytes = sizeof(struct loader *),
                                            .start_job = start_slot,
                                            .start_worker = start_worker,
                                            .release_job = release_slot,
                                            .context = loader };

    loader->window = calloc((size_t)loader->options.seq_len + 1, sizeof *loader->window);
    if (!loader->window)
        return err_set(err, ERR_DEVICE, "out of host memory");
    return ordered_pool_create(&loader->pool, &options, err);
}

static int64_t count_steps(const struct loader *loader, const struct loader_options *o)
{
    int64_t n = loader_n_samples(loader);

    if (o->held_out)
        return ceil_div(n, o->global_batch);
    if (o->samples && o->n_epochs > 0)
        return max_i64((int64_t)ceil(o->n_epochs * (double)n / o->global_batch), 1);
    return o->n_steps;
}

/* A cut of all 0 is that of one rank. */
static struct loader_options with_cut(const struct loader_options *options)
{
    struct loader_options o = *options;

    o.cut.ulysses = max_int(o.cut.ulysses, 1);
    o.cut.keys = max_int(o.cut.keys, 1);
    return o;
}

int loader_open(struct loader **out, const struct loader_options *given, struct err *err)
{
    struct loader_options copy = with_cut(given);
    const struct loader_options *options = &copy;

    if (check_options(options, err) < 0 || loader_cut_check(options, err) < 0)
        return -1;
    struct loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return err_set(err, ERR_DEVICE, "out of host memory");
    loader->options = *options;
    loader->options.datasets = NULL;
    loader->rows = options->micro_batch * options->seq_len;
    if (find_begins(loader, err) < 0 || loader_cut_open(loader, err) < 0)
        goto fail;
    if ((options->samples ? open_samples : open_tokens)(loader, options, err) < 0)
        goto fail;
    loader->fingerprint = compute_fingerprint(loader);
    loader->n_steps = count_steps(loader, options);
    loader->n_batches = max_i64(loader->n_steps - options->first_step, 0) * loader->n_micro_batches;
    if (allocate_deal(loader, &loader->filled, err) < 0 ||
        allocate_deal(loader, &loader->asked, err) < 0)
        goto fail;
    if (start_pool(loader, err) < 0)
        goto fail;
    loader_prefetch(loader);
    *out = loader;
    return 0;
fail:
    loader_close(loader);
    return -1;
}

void loader_close(struct loader *loader)
{
    if (!loader)
        return;
    ordered_pool_destroy(loader->pool);
    free(loader->filled.places);
    free(loader->filled.lengths);
    free(loader->asked.places);
    free(loader->asked.lengths);
    free(loader->lengths);
    packs_set_close(&loader->samples);
    free(loader->begins);
    free(loader->turns);
    free(loader->window);
    free(loader->cut_rows);
    sampler_release(&loader->sampler);
    for (int i = 0; i < loader->n_files; i++)
        indexed_close(&loader->files[i]);
    free(loader->files);
    free(loader);
}
