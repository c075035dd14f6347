/*
 * loader.c - a thread that keeps a ring of micro-batches filled
 *
 * Micro-batches are numbered from first_step on without a gap; batch b lies in slot b % N_SLOTS.
 * The thread fills slot `made` while made < taken + N_SLOTS - 1: the slot that was handed out last
 * stays as it is until the next call. A rewind counts up `generation`; what the thread was filling
 * then is thrown away. All memory is allocated by loader_open.
 */
#include "data/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/num.h"
#include "data/indexed.h"
#include "data/sampler.h"

#define N_SLOTS 8

struct slot {
    int32_t *tokens, *targets;
    int64_t *samples;
    int failed;
    struct err err;
};

struct loader {
    struct loader_options options; /* its datasets pointer is not kept */
    struct indexed *files;
    int n_files;               /* opened so far */
    struct sampler sampler;    /* the thread's, once it runs; its sizes never change */
    int rows, n_micro_batches; /* of a micro-batch, at most; per step, on this rank */
    int *begins;               /* [n_micro_batches + 1]: sequences before each in a step */
    int64_t n_batches;         /* in all */
    uint64_t fingerprint;

    struct slot slots[N_SLOTS];
    int32_t *positions;
    int32_t *window; /* the thread's: seq_len + 1 tokens */

    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    int64_t made, taken; /* batches, under the lock */
    int64_t generation;
    int stopping;
};

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
    if (o->micro_batch < 1 || o->global_batch < 1 ||
        o->global_batch % ((int64_t)o->micro_batch * o->dp_size) != 0)
        return err_set(err, ERR_CONFIG,
                       "global_batch %d is no multiple of micro_batch %d times dp_size %d",
                       o->global_batch, o->micro_batch, o->dp_size);
    return check_rows(o, err);
}

/* Files, then the sampler over them. */
static int open_data(struct loader *loader, const struct loader_options *o, struct err *err)
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
        if (indexed_open(&loader->files[i], o->datasets[i].path, err) < 0)
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

static uint64_t compute_fingerprint(const struct loader *loader)
{
    const struct sampler *sampler = &loader->sampler;
    XXH64_hash_t hash = 0;
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

static int allocate_slots(struct loader *loader, struct err *err)
{
    size_t rows = (size_t)loader->rows, n_samples = (size_t)loader->options.micro_batch;
    int failed = 0;

    loader->positions = calloc(rows, sizeof *loader->positions);
    loader->window = calloc((size_t)loader->options.seq_len + 1, sizeof *loader->window);
    for (int i = 0; i < N_SLOTS; i++) {
        struct slot *slot = &loader->slots[i];

        slot->tokens = calloc(rows, sizeof *slot->tokens);
        slot->targets = calloc(rows, sizeof *slot->targets);
        slot->samples = calloc(n_samples, sizeof *slot->samples);
        failed |= !slot->tokens || !slot->targets || !slot->samples;
    }
    if (failed || !loader->positions || !loader->window)
        return err_set(err, ERR_DEVICE, "out of host memory for %d micro-batches of %d rows",
                       N_SLOTS, loader->rows);
    for (int row = 0; row < loader->rows; row++)
        loader->positions[row] = row % loader->options.seq_len;
    return 0;
}

/* Where each micro-batch begins on one rank. */
static int find_begins(struct loader *loader, struct err *err)
{
    const struct loader_options *o = &loader->options;
    int n = o->n_sizes ? o->n_sizes : o->global_batch / (o->micro_batch * o->dp_size);

    loader->n_micro_batches = n;
    loader->begins = calloc((size_t)n + 1, sizeof *loader->begins);
    if (!loader->begins)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int m = 0; m < n; m++)
        loader->begins[m + 1] = loader->begins[m] + (o->n_sizes ? o->sizes[m] : o->micro_batch);
    loader->options.sizes = NULL;
    return 0;
}

static int size_of(const struct loader *loader, int64_t b)
{
    int64_t m = b % loader->n_micro_batches;

    return loader->begins[m + 1] - loader->begins[m];
}

/* The number of sample i of this rank's batch b. */
static int64_t sample_number(const struct loader *loader, int64_t b, int i)
{
    const struct loader_options *o = &loader->options;
    int64_t step = o->first_step + b / loader->n_micro_batches, m = b % loader->n_micro_batches;

    return step * o->global_batch + (int64_t)loader->begins[m] * o->dp_size +
           (int64_t)o->dp_rank * size_of(loader, b) + i;
}

static int fill_sample(struct loader *loader, struct slot *slot, int i, int64_t k)
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

static void fill_slot(struct loader *loader, struct slot *slot, int64_t b)
{
    slot->failed = 0;
    for (int i = 0; i < size_of(loader, b) && !slot->failed; i++)
        slot->failed = fill_sample(loader, slot, i, sample_number(loader, b, i)) < 0;
}

static void *fill_ring(void *argument)
{
    struct loader *loader = argument;

    pthread_mutex_lock(&loader->lock);
    while (!loader->stopping) {
        if (loader->made >= loader->n_batches || loader->made >= loader->taken + N_SLOTS - 1) {
            pthread_cond_wait(&loader->freed, &loader->lock);
            continue;
        }
        int64_t b = loader->made, generation = loader->generation;
        pthread_mutex_unlock(&loader->lock);
        fill_slot(loader, &loader->slots[b % N_SLOTS], b);
        pthread_mutex_lock(&loader->lock);
        if (generation != loader->generation)
            continue;
        loader->made++;
        pthread_cond_signal(&loader->filled);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* Signals are the main thread's business: this one must never be chosen to take them. */
static int start_thread(struct loader *loader, struct err *err)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&loader->thread, NULL, fill_ring, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return err_set(err, ERR_DEVICE, "no thread can be made to load data");
    loader->has_thread = 1;
    return 0;
}

int loader_open(struct loader **out, const struct loader_options *options, struct err *err)
{
    if (check_options(options, err) < 0)
        return -1;
    struct loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return err_set(err, ERR_DEVICE, "out of host memory");
    loader->options = *options;
    loader->options.datasets = NULL;
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->filled, NULL);
    pthread_cond_init(&loader->freed, NULL);
    loader->rows = options->micro_batch * options->seq_len;
    if (find_begins(loader, err) < 0)
        goto fail;
    if (open_data(loader, options, err) < 0)
        goto fail;
    loader->fingerprint = compute_fingerprint(loader);
    int64_t n_steps = options->n_steps;
    if (options->held_out)
        n_steps = ceil_div(loader->sampler.n_samples, options->global_batch);
    loader->n_batches = max_i64(n_steps - options->first_step, 0) * loader->n_micro_batches;
    if (allocate_slots(loader, err) < 0)
        goto fail;
    if (start_thread(loader, err) < 0)
        goto fail;
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
    if (loader->has_thread) {
        pthread_mutex_lock(&loader->lock);
        loader->stopping = 1;
        pthread_cond_signal(&loader->freed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL);
    }
    for (int i = 0; i < N_SLOTS; i++) {
        free(loader->slots[i].tokens);
        free(loader->slots[i].targets);
        free(loader->slots[i].samples);
    }
    free(loader->begins);
    free(loader->positions);
    free(loader->window);
    sampler_release(&loader->sampler);
    for (int i = 0; i < loader->n_files; i++)
        indexed_close(&loader->files[i]);
    free(loader->files);
    pthread_cond_destroy(&loader->freed);
    pthread_cond_destroy(&loader->filled);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}

int loader_next(struct loader *loader, struct micro_batch *out, struct err *err)
{
    pthread_mutex_lock(&loader->lock);
    CHECK(loader->taken < loader->n_batches);
    while (loader->made == loader->taken)
        pthread_cond_wait(&loader->filled, &loader->lock);
    const struct slot *slot = &loader->slots[loader->taken % N_SLOTS];
    int failed = slot->failed;

    if (failed)
        *err = slot->err; /* and it stays the next one: asking again fails again */
    else
        loader->taken++;
    pthread_cond_signal(&loader->freed);
    pthread_mutex_unlock(&loader->lock);
    if (failed)
        return -1;
    *out = (struct micro_batch){ .tokens = slot->tokens,
                                 .targets = slot->targets,
                                 .positions = loader->positions,
                                 .samples = slot->samples };
    return 0;
}

int64_t loader_step_tokens(const struct loader *loader, int64_t step)
{
    int64_t global_batch = loader->options.global_batch;

    return sampler_count_targets(&loader->sampler, step * global_batch, global_batch);
}

int64_t loader_n_samples(const struct loader *loader)
{
    return loader->sampler.n_samples;
}

int64_t loader_n_tokens(const struct loader *loader)
{
    return loader->sampler.n_tokens;
}

uint64_t loader_fingerprint(const struct loader *loader)
{
    return loader->fingerprint;
}

void loader_rewind(struct loader *loader)
{
    CHECK(loader->options.held_out);
    pthread_mutex_lock(&loader->lock);
    loader->made = loader->taken = 0;
    loader->generation++;
    pthread_cond_signal(&loader->freed);
    pthread_mutex_unlock(&loader->lock);
}
