/*
 * json_value.h - a row of data as a tree: what JSON can say
 *
 * Trees live in an arena and are read-only once made. Texts are as the file has them: whether they
 * are UTF-8 is asked by who uses them, and they may hold zero bytes (n_bytes counts).
 */
#ifndef DATA_ROWS_JSON_VALUE_H
#define DATA_ROWS_JSON_VALUE_H

#include <stddef.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/json_reader.h"
#include "base/str.h"

#define JSON_VALUE_DEPTH_MAX 64
#define JSON_VALUE_COUNT_MAX 1000000 /* of one tree */

struct json_value {
    enum json_kind kind;
    const char *text; /* of a text; of a number or bool as it was spelled; a 0 byte is behind it */
    size_t n_bytes;
    const char *key; /* in an object, else NULL */
    size_t n_key;
    int n;                    /* list, object: how many are in it */
    struct json_value *first; /* list, object */
    struct json_value *next;  /* behind this one in its list or object */
};

/*
 * The tree of a JSON text, whole and strict: lone surrogates, raw control characters, numbers that
 * are none, keys that come twice and what follows the value are errors. No recursion. Returns 0, or
 * -1 and ERR_DATA with what is wrong at which byte.
 */
int json_value_parse(struct json_value **value, const char *json, size_t n_bytes,
                     struct arena *arena, struct err *err);

/* What an object has under a key, or NULL: also if it is not an object, or what it has is null. */
const struct json_value *json_value_get(const struct json_value *object, const char *key);

/* "a text", "a list", ... for messages; NULL is "missing". */
const char *json_value_kind_name(const struct json_value *value);

/* Append as JSON, without white space. */
void json_value_print(const struct json_value *value, struct str *out);

/* Append text as a JSON string; bytes that are no UTF-8 stay as they are. */
void json_value_print_text(const char *text, size_t n_bytes, struct str *out);
/* The same for readers of JSON, which refuse other bytes: each part that is not valid UTF-8
 * becomes U+FFFD. */
void json_value_print_utf8(const char *text, size_t n_bytes, struct str *out);

#endif
