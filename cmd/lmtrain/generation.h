/*
 * generation.h - what the files of `lmtrain generate` share
 *
 * generate.c has the options and opens what they name, generate_prompts.c makes tokens of prompts
 * and prints what comes of them, generate_chat.c talks.
 */
#ifndef CMD_GENERATION_H
#define CMD_GENERATION_H

#include <stdbool.h>

#include "base/options.h"
#include "serve/generate.h"
#include "serving.h"
#include "template/chat.h"

#define GENERATE_ENDS_MAX 32

struct generate_request {
    const char *model, *ensemble, *adapter, *prompt, *prompts, *tokenizer, *system, *template,
        *early_stopping;
    const char *weights;
    struct option_list stops;
    bool chat;
    bool json, print_prompt;
    int threads, batch;
    double temperature; /* < 0: not given */
    int64_t seed;
    struct generate_options options; /* -1 in what is not given */
};

struct generation {
    const struct generate_request *q;
    struct serving *serving;
    struct generate_options options;
    struct served served;
    struct tokenizer *tokenizer;
    const char *folder;             /* the tokenizer's, with what lies beside it */
    struct chat_template *template; /* NULL without --chat */
    struct generator *generator;    /* NULL under --print-prompt, and where ranks do the work */
    int32_t ends[GENERATE_ENDS_MAX];
    const char *stops[GENERATE_STOPS_MAX];
    bool has_model;
    double typing_s; /* of an interactive chat: not of the model */
};

/* Tokens of a prompt as the model expects it: behind its bos, or as a conversation. out is added
 * to. rendered: gets the text, or NULL. */
int generate_encode(struct generation *g, const char *prompt, struct token_list *out,
                    struct str *rendered, struct err *err);
int generate_encode_messages(struct generation *g, const struct chat_message *messages, int n,
                             struct token_list *out, struct str *rendered, struct err *err);

/* Write a piece of generated text to stdout, at once and as UTF-8. */
void generate_write(const char *bytes, size_t n_bytes);

/* Whether the prompts can be read and make sense. */
int generate_try(struct generation *g, struct err *err);

/* --prompt, --prompts, and --chat alone. */
int generate_one(struct generation *g, struct err *err);
int generate_file(struct generation *g, struct err *err);
int generate_talk(struct generation *g, struct err *err);

#endif
