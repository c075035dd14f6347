/*
 * harness_choice.c - which of some continuations is the likeliest
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "eval/encode.h"
#include "eval/harness_impl.h"
#include "serve/score.h"

/* Between two lines of progress that last, journal and score: what an interruption loses. Where
 * items share their shots, those are computed once more in each. */
#define CHUNK_ITEMS 256
#define CHUNK_TOKENS 8192

/* An item to be scored, as tokens. */
struct asked {
    int64_t item;
    int32_t *tokens; /* heap: the context, then the continuations */
    int n_context;
    int *n_continuation; /* heap [n_choices] */
};

struct asking {
    struct harness_run *run;
    struct asked *asked;
    int64_t n;
    int longest; /* tokens of a text */
};

/* ---- tokens ---- */

static int add_choice(struct harness_run *run, const struct item *item, int choice,
                      size_t context_bytes, int n_context, struct token_list *tokens,
                      struct err *err)
{
    const char *text = item->choices[choice];
    struct str whole = { 0 };
    int status;

    if (run->task->parts[item->part].way.last_token) {
        struct token_list last = { 0 };

        status =
            tokenizer_encode_cached(run->h->tokenizer, run->cache, text, strlen(text), &last, err);
        if (!status && !last.n)
            status = err_set(err, ERR_DATA, "choice '%s' has no tokens", text);
        if (!status)
            status = token_list_add(tokens, last.ids[last.n - 1], err);
        token_list_release(&last);
        return status;
    }
    str_add_bytes(&whole, item->context, context_bytes ? strlen(item->context) : 0);
    str_add(&whole, text);
    status = encode_continuation(run->h->tokenizer, run->cache, str_text(&whole), whole.length,
                                 n_context, context_bytes > 0, tokens, err);
    str_release(&whole);
    return status;
}

static int encode_item(struct asking *a, int64_t index, struct err *err)
{
    struct harness_run *run = a->run;
    const struct item *item = &run->items->items[index];
    struct asked *asked = &a->asked[a->n];
    struct token_list tokens = { 0 };
    size_t context_bytes = 0;

    asked->item = index;
    asked->n_continuation = calloc((size_t)item->n_choices, sizeof(int));
    if (!asked->n_continuation)
        return err_set(err, ERR_DEVICE, "out of host memory");
    a->n++;
    int status = run->task->parts[item->part].way.last_token /* scored after the whole context */
                     ? encode_prompt(run->h->tokenizer, run->cache, item->context, item->is_framed,
                                     &tokens, err)
                     : encode_context(run->h->tokenizer, run->cache, item->context, &context_bytes,
                                      &tokens, err);
    asked->n_context = (int)tokens.n;
    for (int i = 0; i < item->n_choices && !status; i++) {
        int64_t before = tokens.n;

        status = add_choice(run, item, i, context_bytes, asked->n_context, &tokens, err);
        asked->n_continuation[i] = (int)(tokens.n - before);
        a->longest = max_int(a->longest, asked->n_context + asked->n_continuation[i]);
    }
    asked->tokens = tokens.ids;
    return status;
}

static int encode_all(struct asking *a, struct err *err)
{
    struct harness_run *run = a->run;

    a->asked = calloc((size_t)run->items->n + 1, sizeof *a->asked);
    if (!a->asked)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int64_t i = 0; i < run->items->n; i++) {
        if (run->results[i].is_done ||
            run->task->parts[run->items->items[i].part].way.kind != TASK_CHOICE)
            continue;
        replica_beat(harness_replica(run), "reading items");
        if (encode_item(a, i, err) < 0)
            return -1;
    }
    return 0;
}

static void release(struct asking *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        free(a->asked[i].tokens);
        free(a->asked[i].n_continuation);
    }
    free(a->asked);
}

/* ---- answers ---- */

/* Code points: what Python's len counts. */
static int n_characters(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

static int argmax(const double *values, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

static double is_gold(const struct item *item, int choice)
{
    for (int i = 0; i < item->n_golds; i++)
        if (item->golds[i] == choice)
            return 1;
    return 0;
}

static int judge(struct harness_run *run, int64_t index, struct err *err)
{
    const struct item *item = &run->items->items[index];
    const struct task_way *way = &run->task->parts[item->part].way;
    struct item_result *r = &run->results[index];
    double *by_length = calloc((size_t)item->n_choices, sizeof *by_length);

    if (!by_length)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int i = 0; i < item->n_choices; i++)
        by_length[i] =
            r->log_likelihoods[i] / max_int(1, n_characters(item->choices[i] + item->n_skip));
    r->choice = argmax(r->log_likelihoods, item->n_choices);
    for (int m = 0; m < way->metrics.n; m++)
        r->values[m] = is_gold(item, !strcmp(way->metrics.items[m], "acc_norm")
                                         ? argmax(by_length, item->n_choices)
                                         : r->choice);
    free(by_length);
    r->answer = strdup(item->choices[r->choice] + item->n_skip);
    return r->answer ? harness_note(run, index, err) : err_set(err, ERR_DEVICE, "out of memory");
}

static void show(void *context, int64_t done, int64_t total)
{
    struct harness_run *run = context;

    (void)total;
    (void)done;
    harness_show(run, 0);
}

/* The texts of an item, each whole: context and continuation, its beginning cut off if too long. */
static int lay_out(struct asking *a, const struct asked *asked, int max_length,
                   struct score *scores, int32_t **buffer)
{
    int n_choices = a->run->items->items[asked->item].n_choices, n = 0;
    const int32_t *continuation = asked->tokens + asked->n_context;

    for (; n < n_choices; n++) {
        int length = asked->n_context + asked->n_continuation[n];
        int cut = max_int(0, length - (max_length + 1));
        int32_t *text = *buffer;

        memcpy(text, asked->tokens, sizeof *text * (size_t)asked->n_context);
        memcpy(text + asked->n_context, continuation,
               sizeof *text * (size_t)asked->n_continuation[n]);
        *buffer += length;
        continuation += asked->n_continuation[n];
        scores[n] =
            (struct score){ .tokens = text + cut,
                            .n = length - cut,
                            .n_scored = min_int(asked->n_continuation[n], length - cut - 1) };
    }
    return n;
}

/* ---- what came of a round, by all replicas ---- */

/* In front of as many doubles as the item has choices. */
struct choice_record {
    int64_t item, n_fed, n_asked;
};

static void add_records(struct asking *a, const struct asked *asked, int64_t n, int64_t n_fed,
                        const struct score *scores, struct str *out)
{
    for (int64_t i = 0; i < n; i++) {
        int n_choices = a->run->items->items[asked[i].item].n_choices;
        struct choice_record record = { .item = asked[i].item, .n_fed = i ? 0 : n_fed };

        for (int k = 0; k < n_choices; k++)
            record.n_asked += scores[k].n;
        str_add_bytes(out, &record, sizeof record);
        for (int k = 0; k < n_choices; k++)
            str_add_bytes(out, &(scores++)->log_likelihood, sizeof scores->log_likelihood);
    }
}

/* Finish one item: the rank that judges scores it, the others only mark it as done. */
static int keep_record(struct harness_run *run, const struct choice_record *record,
                       const char *scores, struct err *err)
{
    size_t n_bytes = (size_t)run->items->items[record->item].n_choices * sizeof(double);

    run->h->n_tokens += record->n_fed;
    run->h->n_asked += record->n_asked;
    run->results[record->item].is_done = true;
    if (!harness_judges(run))
        return 0;
    double *values = malloc(n_bytes);
    if (!values)
        return err_set(err, ERR_DEVICE, "out of host memory");
    memcpy(values, scores, n_bytes);
    run->results[record->item].log_likelihoods = values;
    return judge(run, record->item, err);
}

static int keep_round(struct harness_run *run, const struct str *own, struct err *err)
{
    struct str all = { 0 };
    int status = replica_collect(harness_replica(run), own, &all, err);

    for (size_t at = 0; at < all.length && !status;) {
        struct choice_record record;

        memcpy(&record, all.data + at, sizeof record);
        at += sizeof record;
        status = keep_record(run, &record, all.data + at, err);
        at += (size_t)run->items->items[record.item].n_choices * sizeof(double);
    }
    str_release(&all);
    harness_show(run, 0);
    return status;
}

/* ---- rounds of chunks ---- */

static int run_chunk(struct asking *a, struct scorer *scorer, int max_length,
                     const struct asked *asked, int64_t n, struct str *out, struct err *err)
{
    size_t n_tokens = 0, n_scores = 0;
    int64_t fed = 0;

    for (int64_t i = 0; i < n; i++) {
        int n_choices = a->run->items->items[asked[i].item].n_choices;

        n_scores += (size_t)n_choices;
        for (int k = 0; k < n_choices; k++)
            n_tokens += (size_t)(asked[i].n_context + asked[i].n_continuation[k]);
    }
    struct score *scores = calloc(n_scores, sizeof *scores);
    int32_t *tokens = calloc(n_tokens, sizeof *tokens), *end = tokens;
    int status = scores && tokens ? 0 : err_set(err, ERR_DEVICE, "out of host memory");
    int64_t at = 0;
    for (int64_t i = 0; i < n && !status; i++)
        at += lay_out(a, &asked[i], max_length, scores + at, &end);
    if (!status)
        status = scorer_run(scorer, scores, at, show, a->run, &fed, err);
    if (!status)
        add_records(a, asked, n, fed, scores, out);
    free(scores);
    free(tokens);
    return status;
}

/* Tokens of an item's context that the one before it doesn't begin with. */
static int64_t n_fresh(const struct asked *before, const struct asked *asked)
{
    int n = min_int(before->n_context, asked->n_context), same = 0;

    while (same < n && before->tokens[same] == asked->tokens[same])
        same++;
    return asked->n_context - same;
}

/* Items from `begin` on that are computed together: of one part, and so few that each replica has
 * something to do. */
static int64_t chunk_length(const struct asking *a, int64_t begin)
{
    int64_t share = ceil_div(a->n, replica_count(harness_replica(a->run))), n = 0;
    int64_t n_tokens = 0;
    int part = a->run->items->items[a->asked[begin].item].part;

    while (begin + n < a->n && n < CHUNK_ITEMS && n_tokens < CHUNK_TOKENS && n < share &&
           a->run->items->items[a->asked[begin + n].item].part == part) {
        n++;
        if (begin + n < a->n)
            n_tokens += n_fresh(&a->asked[begin + n - 1], &a->asked[begin + n]);
    }
    return n;
}

/* A chunk for each replica, from *at on. */
static int run_round(struct asking *a, struct scorer *scorer, int max_length, int64_t *at,
                     struct err *err)
{
    const struct replica *replica = harness_replica(a->run);
    struct str own = { 0 };
    int status = 0;

    for (int r = 0; r < replica_count(replica) && *at < a->n && !status; r++) {
        int64_t n = chunk_length(a, *at);

        if (r == replica_number(replica))
            status = run_chunk(a, scorer, max_length, a->asked + *at, n, &own, err);
        *at += n;
    }
    if (!status)
        status = keep_round(a->run, &own, err);
    str_release(&own);
    return status;
}

int harness_choices(struct harness_run *run, struct err *err)
{
    struct asking a = { .run = run };
    struct scorer *scorer = NULL;
    int max_length = run->h->served->job.model.max_seq_len;
    int status = encode_all(&a, err);

    if (!status && a.n > 0) {
        struct scorer_options options = { .max_positions =
                                              max_int(1, min_int(a.longest - 1, max_length)) };

        status = scorer_create(&scorer, run->h->served, run->h->kernels, &options, err);
    }
    for (int64_t at = 0; at < a.n && !status;)
        status = run_round(&a, scorer, max_length, &at, err);
    scorer_destroy(scorer);
    release(&a);
    return status;
}
