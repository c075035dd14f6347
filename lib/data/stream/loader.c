/*
 * loader.c - a thread that keeps a ring of micro-batches filled
 *
 * Micro-batches are numbered from first_step on without a gap; batch b lies in slot b % N_SLOTS.
 * The thread fills slot `made` while made < taken + N_SLOTS - 1: the slot that was handed out last
 * stays as it is until the next call. A rewind counts up `generation`; what the thread was filling
 * then is thrown away. All memory is allocated by loader_open.
 */
#include "data/stream/loader.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/num.h"
#include "data/instruct/packs.h"
#include "data/stream/indexed.h"
#include "data/stream/sampler.h"

#define N_SLOTS 8

struct slot {
    int32_t *tokens, *targets, *positions, *starts;
    int64_t *samples;
    int seq_len;
    int failed;
    struct err err;
};

/* Which sequence each place of a step's batch gets, and how long its micro-batches are. */
struct deal {
    int64_t step; /* -1: none yet */
    struct dealt {
        int64_t k, sequence; /* -1: behind the end */
        int32_t length;
    } * places;   /* [global_batch] */
    int *lengths; /* [n_micro_batches] */
};

struct loader {
    struct loader_options options; /* its datasets pointer is not kept */
    struct packs packs;            /* of samples; else all zero */
    int *lengths;                  /* of samples: [n_lengths] */
    struct deal dealt, asked;      /* the thread's, and the caller's */
    struct indexed *files;
    int n_files;               /* opened so far */
    struct sampler sampler;    /* the thread's, once it runs; its sizes never change */
    int rows, n_micro_batches; /* of a micro-batch, at most; per step, on this rank */
    int *begins;               /* [n_micro_batches + 1]: sequences before each in a step */
    int64_t n_steps;           /* of the run, or of one evaluation */
    int64_t n_batches;         /* in all */
    uint64_t fingerprint;

    struct slot slots[N_SLOTS];
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
    return packs_open(&loader->packs, &options, err);
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

static uint64_t fingerprint_of_samples(const struct loader *loader)
{
    const struct loader_options *o = &loader->options;
    XXH64_hash_t hash = XXH64(loader->lengths, sizeof(int) * (size_t)o->n_lengths, 0);
    struct {
        uint64_t key, seed;
        double split;
        int64_t seq_len, held_out, packing, even_steps;
    } head = { loader->packs.key, o->seed,    o->split,     o->seq_len,
               o->held_out,       o->packing, o->even_steps };

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

static int allocate_slots(struct loader *loader, struct err *err)
{
    size_t rows = (size_t)loader->rows, n_samples = (size_t)loader->options.micro_batch;
    int failed = 0;

    loader->window = calloc((size_t)loader->options.seq_len + 1, sizeof *loader->window);
    for (int i = 0; i < N_SLOTS; i++) {
        struct slot *slot = &loader->slots[i];

        slot->tokens = calloc(rows, sizeof *slot->tokens);
        slot->targets = calloc(rows, sizeof *slot->targets);
        slot->positions = calloc(rows, sizeof *slot->positions);
        slot->starts = loader->options.packing ? calloc(rows, sizeof *slot->starts) : NULL;
        slot->samples = calloc(n_samples, sizeof *slot->samples);
        slot->seq_len = loader->options.seq_len;
        failed |= !slot->tokens || !slot->targets || !slot->positions || !slot->samples;
        failed |= loader->options.packing && !slot->starts;
        for (int row = 0; row < loader->rows && !failed; row++)
            slot->positions[row] = row % loader->options.seq_len;
    }
    if (failed || !loader->window)
        return err_set(err, ERR_DEVICE, "out of host memory for %d micro-batches of %d rows",
                       N_SLOTS, loader->rows);
    return 0;
}

static int allocate_deal(struct loader *loader, struct deal *deal, struct err *err)
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

/* The place of sample i of this rank's batch b in the step's batch. */
static int64_t place_of(const struct loader *loader, int64_t b, int i)
{
    const struct loader_options *o = &loader->options;
    int64_t m = b % loader->n_micro_batches;

    return (int64_t)loader->begins[m] * o->dp_size + (int64_t)o->dp_rank * size_of(loader, b) + i;
}

static int64_t step_of(const struct loader *loader, int64_t b)
{
    return loader->options.first_step + b / loader->n_micro_batches;
}

/* ---- samples ---- */

static int is_longer(const void *x, const void *y)
{
    const struct dealt *a = x, *b = y;

    if (a->length != b->length)
        return a->length > b->length ? -1 : 1;
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
 * Who gets what in a step. With several lengths the longest sequences come first; over all ranks
 * of dp, each micro-batch is so of neighbours in length.
 */
static void deal_step(const struct loader *loader, struct deal *deal, int64_t step)
{
    const struct loader_options *o = &loader->options;

    if (deal->step == step)
        return;
    deal->step = step;
    for (int i = 0; i < o->global_batch; i++) {
        struct dealt *place = &deal->places[i];

        place->k = step * o->global_batch + i;
        place->sequence = packs_find(&loader->packs, place->k);
        place->length = place->sequence < 0 ? 0 : loader->packs.lengths[place->sequence];
    }
    if (o->n_lengths > 1)
        qsort(deal->places, (size_t)o->global_batch, sizeof *deal->places, is_longer);
    for (int m = 0; m < loader->n_micro_batches; m++) {
        int needed = 0, n = (loader->begins[m + 1] - loader->begins[m]) * o->dp_size;

        for (int i = 0; i < n; i++)
            needed = max_int(needed, deal->places[loader->begins[m] * o->dp_size + i].length);
        deal->lengths[m] = padded(loader, needed);
    }
    for (int m = 0; m < loader->n_micro_batches && o->even_steps; m++)
        deal->lengths[m] = deal->lengths[0]; /* they are sorted */
}

static int fill_sequence(struct loader *loader, struct slot *slot, int i, int64_t place)
{
    const struct dealt *dealt = &loader->dealt.places[place];
    size_t start = (size_t)i * (size_t)slot->seq_len;
    struct packs_rows rows = { .tokens = slot->tokens + start,
                               .targets = slot->targets + start,
                               .positions = slot->positions + start,
                               .starts = slot->starts ? slot->starts + start : NULL,
                               .n_rows = slot->seq_len };

    slot->samples[i] = dealt->sequence < 0 ? -1 : dealt->k;
    return packs_fill(&loader->packs, dealt->sequence, &rows, &slot->err);
}

static void fill_slot_of_samples(struct loader *loader, struct slot *slot, int64_t b)
{
    deal_step(loader, &loader->dealt, step_of(loader, b));
    slot->seq_len = loader->dealt.lengths[b % loader->n_micro_batches];
    slot->failed = 0;
    for (int i = 0; i < size_of(loader, b) && !slot->failed; i++)
        slot->failed = fill_sequence(loader, slot, i, place_of(loader, b, i)) < 0;
}

/* ---- tokens ---- */

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
    int64_t first = step_of(loader, b) * loader->options.global_batch;

    if (loader->options.samples) {
        fill_slot_of_samples(loader, slot, b);
        return;
    }
    slot->failed = 0;
    for (int i = 0; i < size_of(loader, b) && !slot->failed; i++)
        slot->failed = fill_sample(loader, slot, i, first + place_of(loader, b, i)) < 0;
}

/* ---- the ring ---- */

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
        return err_set(err, ERR_DEVICE, "cannot start the data loading thread");
    loader->has_thread = 1;
    return 0;
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
    if ((options->samples ? open_samples : open_tokens)(loader, options, err) < 0)
        goto fail;
    loader->fingerprint = compute_fingerprint(loader);
    loader->n_steps = count_steps(loader, options);
    loader->n_batches = max_i64(loader->n_steps - options->first_step, 0) * loader->n_micro_batches;
    if (allocate_slots(loader, err) < 0)
        goto fail;
    if (allocate_deal(loader, &loader->dealt, err) < 0 ||
        allocate_deal(loader, &loader->asked, err) < 0)
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
        free(loader->slots[i].positions);
        free(loader->slots[i].starts);
        free(loader->slots[i].samples);
    }
    free(loader->dealt.places);
    free(loader->dealt.lengths);
    free(loader->asked.places);
    free(loader->asked.lengths);
    free(loader->lengths);
    packs_close(&loader->packs);
    free(loader->begins);
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
                                 .positions = slot->positions,
                                 .samples = slot->samples,
                                 .starts = slot->starts,
                                 .seq_len = slot->seq_len };
    return 0;
}

int64_t loader_step_tokens(const struct loader *loader, int64_t step)
{
    int64_t global_batch = loader->options.global_batch, n = 0;

    if (!loader->options.samples)
        return sampler_count_targets(&loader->sampler, step * global_batch, global_batch);
    for (int64_t k = step * global_batch; k < (step + 1) * global_batch; k++) {
        int64_t sequence = packs_find(&loader->packs, k);

        n += sequence < 0 ? 0 : loader->packs.learned[sequence];
    }
    return n;
}

int64_t loader_step_read(const struct loader *loader, int64_t step)
{
    int64_t global_batch = loader->options.global_batch, n = 0;

    if (!loader->options.samples)
        return loader_step_tokens(loader, step);
    for (int64_t k = step * global_batch; k < (step + 1) * global_batch; k++) {
        int64_t sequence = packs_find(&loader->packs, k);

        n += sequence < 0 ? 0 : loader->packs.lengths[sequence];
    }
    return n;
}

int loader_length(struct loader *loader, int64_t step, int micro_batch)
{
    CHECK(micro_batch >= 0);
    CHECK(micro_batch < loader->n_micro_batches);
    if (!loader->options.samples)
        return loader->options.seq_len;
    deal_step(loader, &loader->asked, step);
    return loader->asked.lengths[micro_batch];
}

int64_t loader_n_steps(const struct loader *loader)
{
    return loader->n_steps;
}

int64_t loader_n_samples(const struct loader *loader)
{
    return loader->options.samples ? loader->packs.n_sequences : loader->sampler.n_samples;
}

int64_t loader_n_tokens(const struct loader *loader)
{
    return loader->options.samples ? loader->packs.n_tokens : loader->sampler.n_tokens;
}

struct loader_usage loader_usage(struct loader *loader)
{
    const struct packs *packs = &loader->packs;
    const struct loader_options *o = &loader->options;
    struct loader_usage usage = { .n_samples = packs->n_samples,
                                  .n_sequences = loader_n_samples(loader),
                                  .n_tokens = loader_n_tokens(loader),
                                  .n_learned = packs->n_learned };

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

void loader_rewind(struct loader *loader)
{
    CHECK(loader->options.held_out);
    pthread_mutex_lock(&loader->lock);
    loader->made = loader->taken = 0;
    loader->generation++;
    pthread_cond_signal(&loader->freed);
    pthread_mutex_unlock(&loader->lock);
}
