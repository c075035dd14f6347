/*
 * chat_impl.h - what opens a template and what renders it share
 *
 * A chat_template is not changed by rendering: that has an arena of its own.
 */
#ifndef TEMPLATE_CHAT_IMPL_H
#define TEMPLATE_CHAT_IMPL_H

#include "template/chat.h"
#include "template/jinja_impl.h"

struct chat_template {
    struct jinja jinja;
    struct arena arena;          /* of variables and their values */
    struct jinja_dict variables; /* bos_token, tools, ... */
    const char *end_of_turn;
};

/* A built-in template's text, or NULL. */
const char *chat_builtin(const char *name);

/* What follows an answer, found by asking the template. */
void chat_find_end_of_turn(struct chat_template *t);

#endif
