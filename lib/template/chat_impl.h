/*
 * chat_impl.h - what opens a template and what renders it share
 *
 * A chat_template is not changed by rendering: that has an arena of its own.
 */
#ifndef TEMPLATE_CHAT_IMPL_H
#define TEMPLATE_CHAT_IMPL_H

#include <stdbool.h>

#include "template/chat.h"
#include "template/jinja_impl.h"

struct chat_template {
    struct jinja jinja;
    struct arena arena;          /* of variables and their values */
    struct jinja_dict variables; /* bos_token, tools, ... */
    const char *end_of_turn;
    /* it is known to write one for add_generation_prompt behind a user's message */
    bool has_prompt;
};

#define ROLE_ASSISTANT "assistant"

/* chat_template_render; blocks, unless NULL, gets a part for the text of each {% generation %}
 * block, in the order of their ends, which may lie beyond the text, be empty or lie upon each
 * other. */
int chat_render(const struct chat_template *t, const struct chat_message *messages, int n,
                int add_generation_prompt, struct str *out, struct chat_parts *blocks,
                struct err *err);

/* Append a part. Returns 0, or -1 and ERR_DEVICE. */
int chat_parts_add(struct chat_parts *parts, size_t begin, size_t end, bool is_answer, int message,
                   struct err *err);

/* Set has_prompt by asking the template. */
void chat_find_prompt(struct chat_template *t);

/* A built-in template's text, or NULL. */
const char *chat_builtin(const char *name);

/* What follows an answer, found by asking the template. */
void chat_find_end_of_turn(struct chat_template *t);

#endif
