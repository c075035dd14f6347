/*
 * text_template.h - a text with places for values: Jinja, rendered from JSON
 *
 * The language and the bounds are those of chat templates (chat.h); a line break at the end stays.
 */
#ifndef TEMPLATE_TEXT_TEMPLATE_H
#define TEMPLATE_TEXT_TEMPLATE_H

#include "base/err.h"
#include "base/str.h"

struct text_template;

/* name is what errors call it. Returns 0, or -1 and ERR_DATA with the line. */
int text_template_open(struct text_template **t, const char *name, const char *text,
                       struct err *err);
void text_template_close(struct text_template *t);

/*
 * Append the text for the variables of n JSON objects;
 * later ones have the last word. Safe from several threads at once. Returns 0, or -1 and ERR_DATA
 * with out as it was.
 */
int text_template_render(const struct text_template *t, const char *const *objects, int n,
                         struct str *out, struct err *err);

#endif
