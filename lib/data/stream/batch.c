/*
 * batch.c - the ring and its threads
 */
#include "data/stream/batch.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "data/rows/jsonl.h"
#include "data/rows/rows.h"

enum { THREADS_MAX = 256 };

struct batches {
    const struct tokenizer *tokenizer;
    const char *column;
    int end_of_text;

    struct batch **ring;
    uint8_t *is_done; /* [n_ring] */
    int n_ring;
    /* Numbers since the start; a batch's place is its number % n_ring. */
    int64_t n_submitted, n_started, n_taken;
    int is_taken; /* the caller holds batch n_taken */
    int is_over;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    pthread_t threads[THREADS_MAX];
    int n_threads;                 /* 0: the caller does the work */
    struct tokenizer_cache *cache; /* the caller's */
};

/* ---- the work ---- */

/* A document's text: itself, or what a line has under the column. Returns 1, or 0 if a line is
 * blank. */
static int find_text(struct batches *b, struct batch *batch, const struct batch_document *document,
                     struct str *line_text, const char **text, size_t *n_bytes)
{
    *text = str_text(&batch->text) + document->start;
    *n_bytes = document->n_bytes;
    if (!document->is_json)
        return 1;
    if (strspn(*text, " \t\r\n") == *n_bytes)
        return 0;
    str_clear(line_text);
    if (jsonl_text(*text, *n_bytes, b->column, line_text, &batch->err) < 0)
        return -1;
    *text = str_text(line_text);
    *n_bytes = line_text->length;
    return 1;
}

static int add_document(struct batches *b, struct batch *batch, struct tokenizer_cache *cache,
                        const char *text, size_t n_bytes)
{
    int64_t n_before = batch->ids.n;

    if (tokenizer_encode_cached(b->tokenizer, cache, text, n_bytes, &batch->ids, &batch->err) < 0)
        return -1;
    if (batch->ids.n == n_before) { /* SentencePiece makes nothing of white space alone */
        batch->n_empty++;
        return 0;
    }
    if (b->end_of_text >= 0 && token_list_add(&batch->ids, b->end_of_text, &batch->err) < 0)
        return -1;
    batch->ends[batch->n_done++] = batch->ids.n;
    batch->n_text_bytes += (int64_t)n_bytes;
    return 0;
}

static void work(struct batches *b, struct batch *batch, struct tokenizer_cache *cache)
{
    struct str line_text = { 0 };

    for (int i = 0; i < batch->n_documents && !batch->failed; i++) {
        const struct batch_document *document = &batch->documents[i];
        const char *text;
        size_t n_bytes;
        int rc = find_text(b, batch, document, &line_text, &text, &n_bytes);

        if (rc > 0)
            rc = add_document(b, batch, cache, text, n_bytes);
        if (rc >= 0)
            continue;
        batch->failed = 1;
        if (document->line && rows_format_of(document->path) == ROWS_PARQUET)
            err_add(&batch->err, "%s: row %lld", document->path, (long long)document->line);
        else if (document->line)
            err_add(&batch->err, "%s:%lld", document->path, (long long)document->line);
        else
            err_add(&batch->err, "%s", document->path);
    }
    str_release(&line_text);
}

static void *work_main(void *context)
{
    struct batches *b = context;
    struct tokenizer_cache *cache = tokenizer_cache_create();

    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->is_over && b->n_started == b->n_submitted)
            pthread_cond_wait(&b->submitted, &b->lock);
        if (b->is_over)
            break;
        int place = (int)(b->n_started++ % b->n_ring);
        pthread_mutex_unlock(&b->lock);
        work(b, b->ring[place], cache);
        pthread_mutex_lock(&b->lock);
        b->is_done[place] = 1;
        pthread_cond_signal(&b->done);
    }
    pthread_mutex_unlock(&b->lock);
    tokenizer_cache_destroy(cache);
    return NULL;
}

/* ---- the ring ---- */

static int count_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int allocate_ring(struct batches *b)
{
    b->ring = calloc((size_t)b->n_ring, sizeof *b->ring);
    b->is_done = calloc((size_t)b->n_ring, 1);
    if (!b->ring || !b->is_done)
        return -1;
    for (int i = 0; i < b->n_ring; i++)
        if (!(b->ring[i] = calloc(1, sizeof **b->ring)))
            return -1;
    return 0;
}

int batches_create(struct batches **out, const struct tokenizer *tokenizer, const char *column,
                   int end_of_text, int n_threads, struct err *err)
{
    struct batches *b = calloc(1, sizeof *b);
    int n = n_threads > 0 ? n_threads : count_cores();

    n = n < THREADS_MAX ? n : THREADS_MAX;
    if (!b)
        return err_set(err, ERR_DEVICE, "out of host memory");
    b->tokenizer = tokenizer;
    b->column = column;
    b->end_of_text = end_of_text;
    b->n_ring = n > 1 ? 2 * n + 1 : 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->submitted, NULL);
    pthread_cond_init(&b->done, NULL);
    if (allocate_ring(b) < 0) {
        batches_destroy(b);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    /* Fewer threads than asked for only take longer; none at all leaves the work to the caller. */
    while (n > 1 && b->n_threads < n &&
           pthread_create(&b->threads[b->n_threads], NULL, work_main, b) == 0)
        b->n_threads++;
    if (b->n_threads == 0)
        b->cache = tokenizer_cache_create();
    *out = b;
    return 0;
}

void batches_destroy(struct batches *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->is_over = 1;
    pthread_cond_broadcast(&b->submitted);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->n_threads; i++)
        pthread_join(b->threads[i], NULL);
    for (int i = 0; b->ring && i < b->n_ring && b->ring[i]; i++) {
        str_release(&b->ring[i]->text);
        token_list_release(&b->ring[i]->ids);
        free(b->ring[i]);
    }
    pthread_cond_destroy(&b->done);
    pthread_cond_destroy(&b->submitted);
    pthread_mutex_destroy(&b->lock);
    tokenizer_cache_destroy(b->cache);
    free(b->is_done);
    free(b->ring);
    free(b);
}

/* The batch that was taken last is free again. */
static void give_back(struct batches *b)
{
    if (!b->is_taken)
        return;
    int place = (int)(b->n_taken % b->n_ring);
    struct batch *batch = b->ring[place];

    str_clear(&batch->text);
    batch->n_documents = batch->n_done = batch->n_empty = batch->failed = 0;
    batch->n_text_bytes = batch->ids.n = 0;
    batch->err = (struct err){ 0 };
    b->is_taken = 0;
    b->is_done[place] = 0;
    b->n_taken++;
}

struct batch *batches_next(struct batches *b)
{
    give_back(b);
    if (b->n_submitted - b->n_taken == b->n_ring)
        return NULL;
    return b->ring[b->n_submitted % b->n_ring];
}

void batches_submit(struct batches *b)
{
    if (b->n_threads == 0) {
        int place = (int)(b->n_submitted++ % b->n_ring);

        work(b, b->ring[place], b->cache);
        b->is_done[place] = 1;
        return;
    }
    pthread_mutex_lock(&b->lock);
    b->n_submitted++;
    pthread_cond_signal(&b->submitted);
    pthread_mutex_unlock(&b->lock);
}

struct batch *batches_take(struct batches *b)
{
    give_back(b);
    if (b->n_taken == b->n_submitted)
        return NULL;
    int place = (int)(b->n_taken % b->n_ring);
    pthread_mutex_lock(&b->lock);
    while (!b->is_done[place])
        pthread_cond_wait(&b->done, &b->lock);
    pthread_mutex_unlock(&b->lock);
    b->is_taken = 1;
    return b->ring[place];
}
