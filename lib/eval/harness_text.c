/*
 * harness_text.c - texts that a model writes, and the answers in them
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "eval/encode.h"
#include "eval/harness_impl.h"
#include "serve/generate.h"

#define BATCH_ITEMS 16
#define ENDS_MAX 8

struct writing {
    struct harness_run *run;
    const struct task_part *part;
    struct generator *generator;
    int32_t ends[ENDS_MAX];
    struct generate_options options;
};

/* A prompt that waits. */
struct prompt {
    int64_t item;
    struct token_list tokens;
};

/* ---- what ends a text ---- */

static void add_end(struct writing *w, int64_t id)
{
    if (id < 0 || id >= tokenizer_vocab_size(w->run->h->tokenizer) || w->options.n_ends == ENDS_MAX)
        return;
    for (int i = 0; i < w->options.n_ends; i++)
        if (w->ends[i] == id)
            return;
    w->ends[w->options.n_ends++] = (int32_t)id;
}

static void add_configured_end(void *context, int64_t id)
{
    add_end(context, id);
}

/* ---- a part ---- */

static int by_length(const void *a, const void *b)
{
    const struct prompt *x = a, *y = b;

    if (x->tokens.n != y->tokens.n)
        return x->tokens.n < y->tokens.n ? 1 : -1;
    return x->item < y->item ? -1 : 1;
}

/* Prompts that are too long lose their beginning. */
static int encode_prompts(struct writing *w, struct prompt *prompts, int64_t n, struct err *err)
{
    const struct harness_run *run = w->run;
    int most = run->h->served->job.model.max_seq_len - w->options.max_new_tokens;

    if (most < 1)
        return err_set(err, ERR_CONFIG, "%s asks for %d new tokens, the model has %d positions",
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
static void read_answer(const struct writing *w, const struct generate_text *t, struct str *out)
{
    const char *stops[GENERATE_STOPS_MAX + 1] = { NULL };

    for (int i = 0; i < w->options.n_stops; i++)
        stops[i] = w->options.stops[i];
    tokenizer_decode_plain(w->run->h->tokenizer, t->tokens.ids + t->n_prompt,
                           t->tokens.n - t->n_prompt, out);
    answer_cut(out, stops);
}

static int run_batch(struct writing *w, struct prompt *prompts, int n, struct err *err)
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
        struct str answer = { 0 };

        w->run->h->n_asked += texts[i].tokens.n;
        if (!status) {
            read_answer(w, &texts[i], &answer);
            status = harness_judge(w->run, prompts[i].item, &answer, err);
        }
        str_release(&answer);
        generate_text_release(&texts[i]);
    }
    harness_show(w->run, 0);
    return status;
}

static int run_prompts(struct writing *w, struct prompt *prompts, int64_t n, struct err *err)
{
    struct harness *h = w->run->h;
    int64_t batch = w->options.n_beams > 1 ? 1 : BATCH_ITEMS;

    if (harness_find_ends(h->served->folder, add_configured_end, w, err) < 0 ||
        encode_prompts(w, prompts, n, err) < 0 ||
        generator_create(&w->generator, h->served, h->kernels, h->tokenizer, &w->options, err) < 0)
        return -1;
    int status = 0;
    for (int64_t i = 0; i < n && !status; i += batch)
        status = run_batch(w, prompts + i, (int)(n - i < batch ? n - i : batch), err);
    h->n_tokens += generator_n_fed(w->generator);
    generator_destroy(w->generator);
    return status;
}

/* What one generator can do: the parts' ways ask for the same. */
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
    struct writing w = { .run = run,
                         .options = { .repetition_penalty = 1,
                                      .max_new_tokens = max_int(1, way->max_new_tokens),
                                      .n_beams = way->n_beams,
                                      .length_penalty = way->length_penalty,
                                      .stops = way->stops.items,
                                      .n_stops = min_int(way->stops.n, GENERATE_STOPS_MAX) } };
    struct prompt *prompts = calloc((size_t)run->items->n + 1, sizeof *prompts);
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
