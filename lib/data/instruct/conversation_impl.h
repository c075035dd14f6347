/*
 * conversation_impl.h - what the readers of formats share
 *
 * All that return int: 0, or -1 and ERR_DATA with what is wrong with the row. Texts are borrowed
 * from the row or are in the arena. A field ("instruction") is a column by that name, or by the one
 * that data.columns gives.
 */
#ifndef DATA_INSTRUCT_CONVERSATION_IMPL_H
#define DATA_INSTRUCT_CONVERSATION_IMPL_H

#include <stdbool.h>

#include "data/instruct/conversation.h"

struct conversation_reader {
    const struct conversation_options *options;
    struct arena *arena;
    struct conversation *out;
    int capacity; /* of out->messages */
    struct err *err;
};

/* Set ERR_DATA; returns -1. */
int conversation_refuse(struct conversation_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The name of a field's column. */
const char *conversation_column(const struct conversation_options *o, const char *field);
/* The value of a field, or NULL. */
const struct json_value *conversation_find(const struct conversation_options *o,
                                           const struct json_value *row, const char *field);

/* A text as a C string; NULL and the error if it is not one. what: its name in the message. */
const char *conversation_text(struct conversation_reader *r, const struct json_value *value,
                              const char *what);
/* The text of a field that must exist; NULL and the error if it does not. */
const char *conversation_need_text(struct conversation_reader *r, const struct json_value *row,
                                   const char *field);
/* The text of a field, "" if it does not exist; NULL and the error if it is not a string. */
const char *conversation_optional_text(struct conversation_reader *r, const struct json_value *row,
                                       const char *field);

/* Whether a text is NULL, empty or white space. */
bool conversation_is_blank(const char *text);
/* A copy without white space at both ends. */
const char *conversation_trim(struct conversation_reader *r, const char *text, size_t n);

/* Append a message; system messages only if they are not blank. */
void conversation_add(struct conversation_reader *r, const char *role, const char *content);
void conversation_add_system(struct conversation_reader *r, const char *text);

/* The formats of enum instruct_format. */
int conversation_read_alpaca(struct conversation_reader *r, const struct json_value *row);
int conversation_read_sharegpt(struct conversation_reader *r, const struct json_value *row);
int conversation_read_messages(struct conversation_reader *r, const struct json_value *row);
int conversation_read_belle(struct conversation_reader *r, const struct json_value *row);
int conversation_read_moss(struct conversation_reader *r, const struct json_value *row);
int conversation_read_leetcode(struct conversation_reader *r, const struct json_value *row);
int conversation_read_text(struct conversation_reader *r, const struct json_value *row);

#endif
