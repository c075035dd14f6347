/*
 * conversation.h - a row of instruction data to the messages that it stands for
 *
 * What each format's columns are is said in conversation_formats.c, one function a format;
 * `columns` says what they are called where they are called otherwise. Here only meaning is dealt
 * with: text, roles and their order. Nothing is guessed: a row that doesn't say a whole
 * conversation, ending with an answer, is an error that names what is wrong.
 */
#ifndef DATA_INSTRUCT_CONVERSATION_H
#define DATA_INSTRUCT_CONVERSATION_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "data/instruct/instruct.h"
#include "data/rows/json_value.h"
#include "template/chat.h"

struct conversation {
    struct chat_message *messages; /* in the arena */
    int n;
    const char *tools; /* JSON, or NULL */
    const char *text;  /* of a row of plain text, else NULL: then n is 0 */
    size_t n_text;
};

/* The part of instruct_options that says what rows look like. */
struct conversation_options {
    enum instruct_format format;
    const struct instruct_column *columns;
    int n_columns;
    const char *system; /* put in front where a row has none; NULL: nothing is */
};

/* What row (an object) says. It borrows from row, and lives in the arena. 0, or -1 and ERR_DATA. */
int conversation_read(const struct conversation_options *options, const struct json_value *row,
                      struct arena *arena, struct conversation *out, struct err *err);

/* Whether field is one that `columns` may name: "instruction", "user_tag", ...; and all, with
 * NULL behind the last. */
bool conversation_is_field(const char *field);
extern const char *const conversation_fields[];

#endif
