/*
 * generate.h - texts continued by a model, several side by side
 *
 * A text ends at an end token, behind a stop text, after max_new_tokens, or when the show callback
 * says so. What is drawn depends on the seed, the text's name and the position, and on nothing
 * else: not on threads, nor on the stages of a pipeline, nor on what is beside it.
 *
 * All ranks of served->replica have a generator each, and make the same calls with the same texts;
 * running is collective over them, and all learn what is generated. show is given on all of them
 * and called on the first rank of all; its result counts where one rank is alone.
 */
#ifndef SERVE_GENERATE_H
#define SERVE_GENERATE_H

#include "serve/beam.h"
#include "serve/sample.h"
#include "serve/served.h"
#include "tokenizer/tokenizer.h"

#define GENERATE_BATCH_MAX 64
#define GENERATE_STOPS_MAX 16

struct generate_options {
    struct sampling sampler;
    double repetition_penalty; /* 1: none; over prompt and answer */
    int max_new_tokens;
    int n_beams; /* 1: none; else beam search, by lot if the temperature is not 0 */
    double length_penalty;
    enum early_stopping early_stopping;
    const int32_t *ends; /* tokens that end a text */
    int n_ends;
    const char *const *stops; /* texts that do; they and what follows are cut off */
    int n_stops;
};

enum generate_finish { GENERATE_LENGTH, GENERATE_END, GENERATE_STOP, GENERATE_LEFT };

struct generate_text {
    struct token_list tokens; /* the prompt (at least one); what was generated comes behind it */
    int64_t n_prompt;         /* set by generate_run */
    uint64_t name;            /* of its draws */
    struct str text;          /* what was generated; may end within a character if cut by length */
    enum generate_finish finish;
    double score; /* of a beam */
};

/*
 * Bytes of the only text that is being generated, as soon as they are certain: whole characters,
 * none that a stop text may begin with. Returning 1 ends the text.
 */
typedef int (*generate_show_fn)(void *context, const char *bytes, size_t n_bytes);

struct generator;

/* served, kernels, tokenizer and options stay the caller's and outlive it; nothing is placed
 * yet. */
int generator_create(struct generator **generator, struct served *served, struct kernels *kernels,
                     const struct tokenizer *tokenizer, const struct generate_options *options,
                     struct err *err);
void generator_destroy(struct generator *generator);

/*
 * Continue n texts (at most GENERATE_BATCH_MAX; beams: one by one). Weights and cache are placed at
 * the first call and again when a call needs more room. Of a single text whatever prompt tokens are
 * the same as those of the last call's, are not computed again: a conversation goes on where it
 * was. show may be NULL, and must be for several. Returns 0, or -1 and ERR_CONFIG (longer than the
 * model's positions) or ERR_DEVICE.
 */
int generator_run(struct generator *generator, struct generate_text *texts, int n,
                  generate_show_fn show, void *context, struct err *err);

/* Bytes placed, and of these the cache of keys and values; tokens drawn and computed so far. */
size_t generator_bytes(const struct generator *generator);
size_t generator_cache_bytes(const struct generator *generator);
int64_t generator_n_generated(const struct generator *generator);
int64_t generator_n_fed(const struct generator *generator);

void generate_text_release(struct generate_text *text);

#endif
