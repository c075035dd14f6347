/*
 * generate.c - texts continued by a model
 */
#include "serve/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "serve/decode.h"

#define LENGTH_LEAST 64 /* positions */
#define PIECE_STEP 16   /* rows that cost hardly more than one: weights are read once for all */
#define PIECE_MAX 128

struct generator {
    struct served *served;
    struct kernels *kernels;
    const struct tokenizer *tokenizer;
    const struct generate_options *o;
    struct decoder *decoder;
    int n_sequences, length;  /* the decoder's */
    struct token_list fed;    /* what its first sequence has */
    int32_t *order, *scratch; /* [vocab_size] */
    float *logits;            /* [vocab_size]: penalised */
    int64_t n_generated, n_fed;
};

/* What is known of a text while it grows. */
struct growing {
    struct generate_text *text;
    size_t n_shown;
    bool is_done;
};

int generator_create(struct generator **out, struct served *served, struct kernels *kernels,
                     const struct tokenizer *tokenizer, const struct generate_options *options,
                     struct err *err)
{
    struct generator *g = calloc(1, sizeof *g);
    size_t vocab = (size_t)served->job.model.vocab_size;

    CHECK(options->n_stops <= GENERATE_STOPS_MAX);
    CHECK(options->n_beams >= 1);
    CHECK(options->n_beams <= GENERATE_BATCH_MAX);
    if (g) {
        *g = (struct generator){ .served = served,
                                 .kernels = kernels,
                                 .tokenizer = tokenizer,
                                 .o = options,
                                 .order = calloc(vocab, sizeof *g->order),
                                 .scratch = calloc(vocab, sizeof *g->scratch),
                                 .logits = calloc(vocab, sizeof *g->logits) };
    }
    if (!g || !g->order || !g->scratch || !g->logits) {
        generator_destroy(g);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    *out = g;
    return 0;
}

void generator_destroy(struct generator *g)
{
    if (!g)
        return;
    decoder_destroy(g->decoder);
    token_list_release(&g->fed);
    free(g->order);
    free(g->scratch);
    free(g->logits);
    free(g);
}

void generate_text_release(struct generate_text *text)
{
    token_list_release(&text->tokens);
    str_release(&text->text);
}

size_t generator_bytes(const struct generator *g)
{
    return g->decoder ? decoder_bytes(g->decoder) : 0;
}

size_t generator_cache_bytes(const struct generator *g)
{
    return g->decoder ? decoder_cache_bytes(g->decoder) : 0;
}

int64_t generator_n_generated(const struct generator *g)
{
    return g->n_generated;
}

int64_t generator_n_fed(const struct generator *g)
{
    return g->n_fed;
}

/* ---- room ---- */

/* Positions that the model knows: a table's rows, or no limit but memory. */
static int check_length(const struct generator *g, int64_t length, struct err *err)
{
    const struct model_spec *spec = &g->served->job.model;

    if (spec->position == POSITION_LEARNED && length > spec->max_seq_len)
        return err_set(err, ERR_CONFIG,
                       "prompt and --max-new-tokens need %lld positions, but the model has %d",
                       (long long)length, spec->max_seq_len);
    if (length > INT32_MAX / 2)
        return err_set(err, ERR_CONFIG, "a text of %lld tokens", (long long)length);
    return 0;
}

/*
 * A decoder for n sequences of so many positions: the one at hand where it is large enough. A
 * conversation's grows by doubling, so that it is placed again but a few times.
 */
static int make_room(struct generator *g, int n, int length, int longest, struct err *err)
{
    int piece = min_int(PIECE_MAX, (int)round_up(longest, PIECE_STEP));
    const struct model_spec *spec = &g->served->job.model;
    int room = max_int(length, LENGTH_LEAST);

    if (g->decoder && n <= g->n_sequences && length <= g->length)
        return 0;
    if (g->decoder && n <= g->n_sequences)
        room = max_int(room, 2 * g->length);
    if (spec->position == POSITION_LEARNED)
        room = max_int(length, min_int(room, spec->max_seq_len));
    decoder_destroy(g->decoder);
    g->decoder = NULL;
    g->fed.n = 0;
    g->n_sequences = max_int(n, 1);
    g->length = room;
    return decoder_create_pieces(&g->decoder, g->served, g->kernels, n, room, piece, err);
}

/* ---- the end of a text ---- */

static bool is_end(const struct generator *g, int32_t id)
{
    for (int i = 0; i < g->o->n_ends; i++)
        if (g->o->ends[i] == id)
            return true;
    return false;
}

/* Where the first stop text begins in what was written, or -1. from: bytes that were seen
 * before. */
static int64_t find_stop(const struct generator *g, const struct str *text, size_t from)
{
    int64_t first = -1;

    for (int i = 0; i < g->o->n_stops; i++) {
        size_t n = strlen(g->o->stops[i]), back = from > n ? from - n : 0;
        const char *found =
            text->length ? memmem(text->data + back, text->length - back, g->o->stops[i], n) : NULL;

        if (found && (first < 0 || found - text->data < first))
            first = found - text->data;
    }
    return first;
}

/* How many bytes at the end of text may be the beginning of a stop text. */
static size_t held_back(const struct generator *g, const struct str *text)
{
    size_t most = 0;

    for (int i = 0; i < g->o->n_stops; i++) {
        size_t n = strlen(g->o->stops[i]);

        for (size_t k = n > text->length ? text->length : n; k > most; k--)
            if (!memcmp(text->data + text->length - k, g->o->stops[i], k))
                most = k;
    }
    return most;
}

/* Add a token's bytes to its text; 1 if that ends it. */
static int grow(struct generator *g, struct growing *w, int32_t id)
{
    struct str *text = &w->text->text;
    size_t before = text->length;

    tokenizer_decode(g->tokenizer, &id, 1, text);
    int64_t stop = find_stop(g, text, before);
    if (stop < 0)
        return 0;
    text->length = (size_t)stop;
    text->data[stop] = 0;
    w->text->finish = GENERATE_STOP;
    return 1;
}

static void show_certain(struct generator *g, struct growing *w, generate_show_fn show,
                         void *context)
{
    struct str *text = &w->text->text;
    size_t n = text->length;

    if (!w->is_done) {
        n -= held_back(g, text);
        n = tokenizer_whole_length(str_text(text), n);
    }
    if (n > w->n_shown && replica_is_first(g->served->replica) &&
        show(context, text->data + w->n_shown, n - w->n_shown) && !g->served->replica) {
        w->is_done = true;
        w->text->finish = GENERATE_LEFT;
    }
    if (n > w->n_shown)
        w->n_shown = n;
}

/* ---- one token after the other ---- */

static int32_t draw(struct generator *g, int sequence, const struct generate_text *text)
{
    const float *logits = decoder_logits(g->decoder, sequence);
    int n = min_int(g->served->job.model.vocab_size, tokenizer_vocab_size(g->tokenizer));

    if (g->o->repetition_penalty != 1) {
        memcpy(g->logits, logits, sizeof *logits * (size_t)n);
        sample_penalize(g->logits, n, g->o->repetition_penalty, text->tokens.ids, text->tokens.n,
                        g->scratch);
        logits = g->logits;
    }
    return sample_token(&g->o->sampler, logits, n, text->name, text->tokens.n, g->order);
}

/* Draw the next token of each text that goes on; returns how many do, or -1. */
static int draw_all(struct generator *g, struct growing *growing, int n, struct err *err)
{
    int32_t drawn[GENERATE_BATCH_MAX] = { 0 };
    int n_going_on = 0;

    for (int i = 0; i < n && replica_tells(g->served->replica); i++)
        if (!growing[i].is_done)
            drawn[i] = draw(g, i, growing[i].text);
    if (replica_tell(g->served->replica, drawn, sizeof *drawn * (size_t)n, err) < 0)
        return -1;
    for (int i = 0; i < n; i++) {
        struct growing *w = &growing[i];
        int32_t id = drawn[i];

        if (w->is_done)
            continue;
        g->n_generated++;
        if (is_end(g, id)) {
            w->text->finish = GENERATE_END;
            w->is_done = true;
            continue;
        }
        if (token_list_add(&w->text->tokens, id, err) < 0)
            return -1;
        w->is_done = grow(g, w, id);
        if (w->text->tokens.n - w->text->n_prompt >= g->o->max_new_tokens)
            w->is_done = true;
        n_going_on += !w->is_done;
    }
    return n_going_on;
}

static int feed(struct generator *g, const int32_t *const *tokens, const int *counts, int n,
                struct err *err)
{
    for (int i = 0; i < n; i++)
        g->n_fed += counts[i];
    return decoder_feed(g->decoder, tokens, counts, err);
}

/* The first tokens of a text that the first sequence has already; at least one is to be fed. */
static int reuse(struct generator *g, const struct generate_text *text)
{
    int64_t same = 0, least = text->tokens.n - 1 < g->fed.n ? text->tokens.n - 1 : g->fed.n;

    while (same < least && g->fed.ids[same] == text->tokens.ids[same])
        same++;
    decoder_truncate(g->decoder, 0, (int)same);
    return (int)same;
}

static int run_side_by_side(struct generator *g, struct generate_text *texts, int n,
                            generate_show_fn show, void *context, struct err *err)
{
    const int32_t *tokens[GENERATE_BATCH_MAX] = { NULL };
    int counts[GENERATE_BATCH_MAX] = { 0 };
    struct growing growing[GENERATE_BATCH_MAX];
    int going_on;

    if (n > 1 || g->n_sequences > 1)
        decoder_reset(g->decoder);
    for (int i = 0; i < n; i++) {
        int same = n == 1 && g->n_sequences == 1 ? reuse(g, &texts[i]) : 0;

        growing[i] = (struct growing){ .text = &texts[i] };
        tokens[i] = texts[i].tokens.ids + same;
        counts[i] = (int)texts[i].tokens.n - same;
    }
    do {
        if (feed(g, tokens, counts, g->n_sequences, err) < 0)
            return -1;
        going_on = draw_all(g, growing, n, err);
        if (going_on < 0)
            return -1;
        if (show) {
            show_certain(g, &growing[0], show, context);
            going_on = !growing[0].is_done;
        }
        for (int i = 0; i < n; i++) {
            counts[i] = growing[i].is_done ? 0 : 1;
            tokens[i] = texts[i].tokens.ids + texts[i].tokens.n - 1;
        }
    } while (going_on);
    return 0;
}

/* What the first sequence has, for the next call. */
static int note_fed(struct generator *g, const struct generate_text *text, struct err *err)
{
    int n = decoder_length(g->decoder, 0);

    g->fed.n = 0;
    for (int i = 0; i < n; i++)
        if (token_list_add(&g->fed, text->tokens.ids[i], err) < 0)
            return -1;
    return 0;
}

/* ---- beams ---- */

static int beam_stops(void *context, const int32_t *tokens, int n)
{
    struct generator *g = context;
    struct str text = { 0 };

    if (!g->o->n_stops)
        return 0;
    tokenizer_decode(g->tokenizer, tokens, n, &text);
    int is = find_stop(g, &text, 0) >= 0;
    str_release(&text);
    return is;
}

/* The best beam of the leader's search, broadcast to all ranks of the replica. */
static int take_best(struct generator *g, const struct beam_search *search,
                     struct generate_text *text, struct err *err)
{
    int n = 0, status = 0;
    const int32_t *best = search ? beam_best(search, &n, &text->score) : NULL;
    int32_t *told = calloc((size_t)g->o->max_new_tokens, sizeof *told);
    struct growing w = { .text = text };

    if (!told)
        return err_set(err, ERR_DEVICE, "out of host memory");
    if (n > 0)
        memcpy(told, best, sizeof *told * (size_t)n);
    if (replica_tell(g->served->replica, &n, sizeof n, err) < 0 ||
        replica_tell(g->served->replica, &text->score, sizeof text->score, err) < 0 ||
        replica_tell(g->served->replica, told, sizeof *told * (size_t)n, err) < 0)
        status = -1;
    for (int i = 0; i < n && !status; i++) {
        if (is_end(g, told[i])) {
            text->finish = GENERATE_END;
            break;
        }
        status = token_list_add(&text->tokens, told[i], err);
        if (!status && grow(g, &w, told[i]))
            break;
    }
    free(told);
    return status;
}

/* What each beam does next, and whether the search goes on. */
struct beam_turn {
    int goes_on;
    int from[GENERATE_BATCH_MAX];
    int32_t next[GENERATE_BATCH_MAX];
};

/* search: NULL except on the leader. Returns 1, 0 if the search is over, or -1. */
static int take_turn(struct generator *g, struct beam_search *search, const float *const *logits,
                     struct beam_turn *turn, struct err *err)
{
    if (search)
        turn->goes_on = beam_step(search, logits, beam_stops, g, turn->from, turn->next);
    if (replica_tell(g->served->replica, turn, sizeof *turn, err) < 0)
        return -1;
    return turn->goes_on;
}

static int search_beams(struct generator *g, struct generate_text *text, struct beam_search *search,
                        struct err *err)
{
    int n_beams = g->o->n_beams, counts[GENERATE_BATCH_MAX] = { 0 }, status;
    const int32_t *tokens[GENERATE_BATCH_MAX] = { NULL };
    const float *logits[GENERATE_BATCH_MAX];
    struct beam_turn turn = { 0 };

    decoder_reset(g->decoder);
    for (int i = 0; i < n_beams; i++) {
        tokens[i] = text->tokens.ids;
        counts[i] = (int)text->tokens.n;
        logits[i] = decoder_logits(g->decoder, i);
    }
    if (feed(g, tokens, counts, g->n_sequences, err) < 0)
        return -1;
    while ((status = take_turn(g, search, logits, &turn, err)) > 0) {
        if (decoder_reorder(g->decoder, turn.from, n_beams, err) < 0)
            return -1;
        for (int i = 0; i < n_beams; i++) {
            tokens[i] = &turn.next[i];
            counts[i] = 1;
        }
        g->n_generated += n_beams;
        if (feed(g, tokens, counts, g->n_sequences, err) < 0)
            return -1;
    }
    return status;
}

static int run_beams(struct generator *g, struct generate_text *text, struct err *err)
{
    struct beam_search *search = NULL;
    struct beam_options options = {
        .n_beams = g->o->n_beams,
        .vocab_size = min_int(g->served->job.model.vocab_size, tokenizer_vocab_size(g->tokenizer)),
        .max_new_tokens = g->o->max_new_tokens,
        .length_penalty = g->o->length_penalty,
        .repetition_penalty = g->o->repetition_penalty,
        .early_stopping = g->o->early_stopping,
        .sampler = g->o->sampler,
        .sequence = text->name,
        .ends = g->o->ends,
        .n_ends = g->o->n_ends,
    };

    if (replica_tells(g->served->replica) &&
        beam_create(&search, &options, text->tokens.ids, (int)text->tokens.n, err) < 0)
        return -1;
    int status = search_beams(g, text, search, err);
    if (!status)
        status = take_best(g, search, text, err);
    beam_destroy(search);
    return status;
}

int generator_run(struct generator *g, struct generate_text *texts, int n, generate_show_fn show,
                  void *context, struct err *err)
{
    int64_t longest = 0;
    int status = 0;

    CHECK(n >= 1);
    CHECK(n <= GENERATE_BATCH_MAX);
    CHECK(!show || n == 1);
    for (int i = 0; i < n; i++) {
        CHECK(texts[i].tokens.n >= 1);
        texts[i].n_prompt = texts[i].tokens.n;
        texts[i].finish = GENERATE_LENGTH;
        str_clear(&texts[i].text);
        longest = max_i64(longest, texts[i].tokens.n);
    }
    if (check_length(g, longest + g->o->max_new_tokens, err) < 0 ||
        make_room(g, g->o->n_beams > 1 ? g->o->n_beams : n, (int)longest + g->o->max_new_tokens,
                  (int)longest, err) < 0)
        return -1;
    if (g->o->n_beams == 1) {
        status = run_side_by_side(g, texts, n, show, context, err);
        return status < 0 ? -1 : note_fed(g, &texts[0], err);
    }
    for (int i = 0; i < n && !status; i++) {
        status = run_beams(g, &texts[i], err);
        if (!status && show && replica_is_first(g->served->replica))
            show(context, str_text(&texts[i].text), texts[i].text.length);
    }
    return status;
}
