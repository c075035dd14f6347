/*
 * harness_text.c - texts that a model writes, and the answers in them
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "eval/encode.h"
#include "eval/harness_impl.h"
#include "serve/generate.h"
#include "serve/generation_config.h"

#define BATCH_ITEMS 16
#define ENDS_MAX 8

struct text_generation {
    struct harness_run *run;
    const struct task_part *part;
    struct generator *generator;
    int32_t ends[ENDS_MAX];
    struct generate_options options;
};

/* A prompt that waits. */
struct waiting_prompt {
    int64_t item;
    struct token_list tokens;
};

/* ---- what ends a text ---- */

static void add_end(struct text_generation *w, int64_t id)
{
    if (id < 0 || id >= tokenizer_vocab_size(w->run->h->tokenizer) || w->options.n_ends == ENDS_MAX)
        return;
    for (int i = 0; i < w->options.n_ends; i++)
        if (w->ends[i] == id)
            return;
    w->ends[w->options.n_ends++] = (int32_t)id;
}

/* ---- a part ---- */

static int by_length(const void *a, const void *b)
{
    const struct waiting_prompt *x = a, *y = b;

    if (x->tokens.n != y->tokens.n)
        return x->tokens.n < y->tokens.n ? 1 : -1;
    return x->item < y->item ? -1 : 1;
}

/* Prompts that are too long lose their beginning. */
static int encode_prompts(struct text_generation *w, struct waiting_prompt *prompts, int64_t n,
                          struct err *err)
{
    const struct harness_run *run = w->run;
    int most = run->h->served->job.model.max_seq_len - w->options.max_new_tokens;

    if (most < 1)
        return err_set(err, ERR_CONFIG, "%s needs %d new tokens, but the model has %d positions",
                       run->task->name, w->options.max_new_tokens,
                       run->h->served->job.model.max_seq_len);
    for (int64_t i = 0; i < n; i++) {
        struct token_list *t = &prompts[i].tokens;
        const struct item *item = &run->items->items[prompts[i].item];

        if (encode_prompt(run->h->tokenizer, run->cache, item->context, item->is_framed, t, err) <
            0)
            return -1;
        if (t->n > most) {
            memmove(t->ids, t->ids + (t->n - most), sizeof *t->ids * (size_t)most);
            t->n = most;
        }
    }
    qsort(prompts, (size_t)n, sizeof *prompts, by_length);
    return 0;
}

/* What was written, without special tokens, cut where a stop text begins: as the references do. */
static void read_answer(const struct text_generation *w, const struct generate_text *t,
                        struct str *out)
{
    const char *stops[GENERATE_STOPS_MAX + 1] = { NULL };

    for (int i = 0; i < w->options.n_stops; i++)
        stops[i] = w->options.stops[i];
    tokenizer_decode_plain(w->run->h->tokenizer, t->tokens.ids + t->n_prompt,
                           t->tokens.n - t->n_prompt, out);
    answer_cut(out, stops);
}

/* ---- what came of a round, by all replicas ---- */

/* In front of the text's bytes. */
struct text_record {
    int64_t item, n_tokens;
    uint64_t n_bytes;
};

static void add_record(const struct text_generation *w, struct str *out, int64_t item,
                       const struct generate_text *text)
{
    struct str answer = { 0 };

    read_answer(w, text, &answer);
    struct text_record record = { item, text->tokens.n, answer.length };
    str_add_bytes(out, &record, sizeof record);
    str_add_bytes(out, str_text(&answer), answer.length);
    str_release(&answer);
}

/* Whoever judges does, the others know that they are done. */
static int keep_round(struct harness_run *run, const struct str *own, struct err *err)
{
    struct str all = { 0 }, text = { 0 };
    int status = replica_collect(harness_replica(run), own, &all, err);

    for (size_t at = 0; at < all.length && !status;) {
        struct text_record record;

        memcpy(&record, all.data + at, sizeof record);
        at += sizeof record;
        run->h->n_asked += record.n_tokens;
        run->results[record.item].is_done = true;
        str_clear(&text);
        str_add_bytes(&text, all.data + at, record.n_bytes);
        at += record.n_bytes;
        replica_beat(harness_replica(run), "judging generated answers");
        if (harness_judges(run))
            status = harness_judge(run, record.item, &text, err);
    }
    str_release(&all);
    str_release(&text);
    harness_show(run, 0);
    return status;
}

/* ---- rounds of batches ---- */

static int run_batch(struct text_generation *w, struct waiting_prompt *prompts, int n,
                     struct str *out, struct err *err)
{
    struct generate_text texts[BATCH_ITEMS];

    memset(texts, 0, sizeof texts);
    for (int i = 0; i < n; i++) {
        texts[i].tokens = prompts[i].tokens;
        texts[i].name = (uint64_t)prompts[i].item;
        prompts[i].tokens = (struct token_list){ 0 };
    }
    int status = generator_run(w->generator, texts, n, NULL, NULL, err);
    for (int i = 0; i < n; i++) {
        if (!status)
            add_record(w, out, prompts[i].item, &texts[i]);
        generate_text_release(&texts[i]);
    }
    return status;
}

/* A batch for each replica, from *at on. */
static int run_round(struct text_generation *w, struct waiting_prompt *prompts, int64_t n,
                     int64_t *at, struct err *err)
{
    const struct replica *replica = harness_replica(w->run);
    int64_t batch = w->options.n_beams > 1 ? 1 : BATCH_ITEMS;
    struct str own = { 0 };
    int status = 0;

    for (int r = 0; r < replica_count(replica) && *at < n && !status; r++, *at += batch)
        if (r == replica_number(replica))
            status = run_batch(w, prompts + *at, (int)min_i64(n - *at, batch), &own, err);
    if (!status)
        status = keep_round(w->run, &own, err);
    str_release(&own);
    return status;
}

/* Tokens that all replicas have fed. */
static int count_fed(struct text_generation *w, struct err *err)
{
    int64_t n_fed = generator_n_fed(w->generator);
    struct str own = { 0 }, all = { 0 };

    str_add_bytes(&own, &n_fed, sizeof n_fed);
    int status = replica_collect(harness_replica(w->run), &own, &all, err);
    for (size_t at = 0; at < all.length; at += sizeof n_fed) {
        memcpy(&n_fed, all.data + at, sizeof n_fed);
        w->run->h->n_tokens += n_fed;
    }
    str_release(&own);
    str_release(&all);
    return status;
}

static int run_prompts(struct text_generation *w, struct waiting_prompt *prompts, int64_t n,
                       struct err *err)
{
    struct harness *h = w->run->h;
    struct generation_config config;

    if (generation_config_read(&config, h->served->folder, err) < 0)
        return -1;
    for (int i = 0; i < config.n_ends; i++)
        add_end(w, config.ends[i]);
    if (encode_prompts(w, prompts, n, err) < 0 ||
        generator_create(&w->generator, h->served, h->kernels, h->tokenizer, &w->options, err) < 0)
        return -1;
    int status = 0;
    for (int64_t at = 0; at < n && !status;)
        status = run_round(w, prompts, n, &at, err);
    if (!status)
        status = count_fed(w, err);
    generator_destroy(w->generator);
    return status;
}

/* Whether one generator can serve both parts: their ways have the same options. */
static int same_way(const struct task_way *a, const struct task_way *b)
{
    int same = a->kind == b->kind && a->max_new_tokens == b->max_new_tokens &&
               a->n_beams == b->n_beams && a->length_penalty == b->length_penalty &&
               a->stops.n == b->stops.n;

    for (int i = 0; i < a->stops.n && same; i++)
        same = !strcmp(a->stops.items[i], b->stops.items[i]);
    return same;
}

static int run_parts_like(struct harness_run *run, const struct task_way *way, struct err *err)
{
    struct text_generation w = { .run = run,
                                 .options = { .repetition_penalty = 1,
                                              .max_new_tokens = max_int(1, way->max_new_tokens),
                                              .n_beams = way->n_beams,
                                              .length_penalty = way->length_penalty,
                                              .stops = way->stops.items,
                                              .n_stops =
                                                  min_int(way->stops.n, GENERATE_STOPS_MAX) } };
    struct waiting_prompt *prompts = calloc((size_t)run->items->n + 1, sizeof *prompts);
    int64_t n = 0;
    int status = 0;

    if (!prompts)
        return err_set(err, ERR_DEVICE, "out of host memory");
    w.options.ends = w.ends;
    w.options.sampler.top_p = 1;
    add_end(&w, tokenizer_end_of_text(run->h->tokenizer));
    for (int64_t i = 0; i < run->items->n; i++)
        if (!run->results[i].is_done &&
            same_way(&run->task->parts[run->items->items[i].part].way, way))
            prompts[n++].item = i;
    if (n > 0)
        status = run_prompts(&w, prompts, n, err);
    for (int64_t i = 0; i < n; i++)
        token_list_release(&prompts[i].tokens);
    free(prompts);
    return status;
}

int harness_texts(struct harness_run *run, struct err *err)
{
    for (int64_t i = 0; i < run->items->n; i++) {
        const struct task_way *way = &run->task->parts[run->items->items[i].part].way;

        if (!run->results[i].is_done && way->kind != TASK_CHOICE &&
            run_parts_like(run, way, err) < 0)
            return -1;
    }
    return 0;
}
