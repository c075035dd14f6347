/*
 * batch.c - tokenizing batches
 */
#include "data/stream/batch.h"

#include <string.h>

#include "data/rows/jsonl.h"

struct batch_worker {
    struct batch_options options;
    struct tokenizer_cache *cache;
};

/* ---- in the threads ---- */

/* A document's text: itself, or what a line has under the column. Returns 1, or 0 if a line is
 * blank. */
static int find_text(const struct batch_worker *w, struct batch *batch,
                     const struct batch_document *document, struct str *line_text,
                     const char **text, size_t *n_bytes)
{
    *text = str_text(&batch->text) + document->start;
    *n_bytes = document->n_bytes;
    if (!document->is_json)
        return 1;
    if (strspn(*text, " \t\r\n") == *n_bytes)
        return 0;
    str_clear(line_text);
    if (jsonl_text(*text, *n_bytes, w->options.column, line_text, &batch->err) < 0)
        return -1;
    *text = str_text(line_text);
    *n_bytes = line_text->length;
    return 1;
}

static int add_document(const struct batch_worker *w, struct batch *batch, const char *text,
                        size_t n_bytes)
{
    int64_t n_before = batch->ids.n;

    if (tokenizer_encode_cached(w->options.tokenizer, w->cache, text, n_bytes, &batch->ids,
                                &batch->err) < 0)
        return -1;
    if (batch->ids.n == n_before) { /* SentencePiece makes nothing of white space alone */
        batch->n_empty++;
        return 0;
    }
    if (w->options.end_of_text >= 0 &&
        token_list_add(&batch->ids, w->options.end_of_text, &batch->err) < 0)
        return -1;
    batch->ends[batch->n_done++] = batch->ids.n;
    batch->n_text_bytes += (int64_t)n_bytes;
    return 0;
}

static void tokenize(void *job, void *worker)
{
    struct batch *batch = job;
    const struct batch_worker *w = worker;
    struct str line_text = { 0 };

    for (int i = 0; i < batch->n_documents && !batch->failed; i++) {
        const struct batch_document *document = &batch->documents[i];
        const char *text;
        size_t n_bytes;
        int rc = find_text(w, batch, document, &line_text, &text, &n_bytes);

        if (rc > 0)
            rc = add_document(w, batch, text, n_bytes);
        if (rc >= 0)
            continue;
        batch->failed = true;
        batch->failed_document = i;
    }
    str_release(&line_text);
}

/* ---- the pool ---- */

static int start_worker(void *worker, void *context, struct err *err)
{
    (void)err;
    *(struct batch_worker *)worker =
        (struct batch_worker){ *(const struct batch_options *)context, tokenizer_cache_create() };
    return 0;
}

static void release_worker(void *worker)
{
    tokenizer_cache_destroy(((struct batch_worker *)worker)->cache);
}

static void release_batch(void *job)
{
    struct batch *batch = job;

    str_release(&batch->text);
    token_list_release(&batch->ids);
}

int batch_pool_create(struct ordered_pool **pool, const struct batch_options *options,
                      int n_threads, struct err *err)
{
    struct batch_options copy = *options;
    struct ordered_pool_options o = { .work = tokenize,
                                      .n_threads = n_threads,
                                      .job_bytes = sizeof(struct batch),
                                      .worker_bytes = sizeof(struct batch_worker),
                                      .start_worker = start_worker,
                                      .release_job = release_batch,
                                      .release_worker = release_worker,
                                      .context = &copy };

    return ordered_pool_create(pool, &o, err);
}

void batch_clear(struct batch *batch)
{
    str_clear(&batch->text);
    batch->n_documents = batch->n_done = batch->n_empty = 0;
    batch->n_text_bytes = batch->ids.n = 0;
    batch->failed = false;
    batch->err = (struct err){ 0 };
}
