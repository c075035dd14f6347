/*
 * json_reader.h - a pull parser for JSON: all readers of JSON with a format of their own stand on
 * it
 *
 * The caller asks for what its format has at this place and gets it, or a problem. So nesting is
 * the caller's own and there is no recursion; only json_skip walks values that the caller does not
 * know, with a depth limit. JSON is strict: no NaN, no leading zeros, no comma before a closing
 * bracket, no unpaired surrogates. Integers are exact (no doubles), other numbers are checked and
 * returned as text. Strings are spans of the input, decoded where the caller wants them, or
 * terminated copies in an arena; nothing else is allocated. After the first problem every call
 * returns an empty result, so that one check at the end is enough.
 *
 *     json_reader_init(&reader, text, n_bytes, &arena);
 *     json_open(&reader, '{');
 *     while (json_next(&reader, '}')) {
 *         const char *key = json_key(&reader);
 *         ...
 *     }
 *     if (json_end(&reader) < 0)
 *         return err_set(err, ERR_DATA, "%s at byte %zu", reader.problem, reader.problem_at);
 */
#ifndef BASE_JSON_READER_H
#define BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

#define JSON_DEPTH_MAX 256 /* of a value that json_skip walks */

enum json_kind {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
    JSON_NONE, /* no value: the end, a problem, or what is not JSON */
};

struct json_reader {
    const char *begin, *next, *end;
    struct arena *arena; /* of json_key and json_string; may be NULL without them */
    const char *problem; /* the first; NULL if there is none */
    size_t problem_at;   /* byte */
    bool any_bytes;      /* set it to accept strings that are not UTF-8, as they are */
    bool at_first;       /* a bracket was just opened */
};

/* A part of the input: the text of a number, or what is between the quotes of a string. */
struct json_span {
    const char *text;
    size_t n_bytes;
    bool has_escapes;
};

/* text stays the caller's and must outlive the reader and its spans. */
void json_reader_init(struct json_reader *reader, const char *text, size_t n_bytes,
                      struct arena *arena);

/* Note a problem at the present place, unless there is one already. */
void json_fail(struct json_reader *reader, const char *problem);

/* The kind of the value that comes next, by its first character. */
enum json_kind json_peek(struct json_reader *reader);

/* The bracket '{' or '['. */
void json_open(struct json_reader *reader, char bracket);

/* Whether another item comes before the closing bracket, which is passed otherwise; 0 after a
 * problem. */
int json_next(struct json_reader *reader, char close);

/* "key": inside an object, or a string, checked; n_bytes is 0 after a problem, text is never
 * NULL. */
struct json_span json_key_span(struct json_reader *reader);
struct json_span json_string_span(struct json_reader *reader);

/* The same decoded, in the arena; "" after a problem, never NULL. No text may hold a 0 byte. */
const char *json_key(struct json_reader *reader);
const char *json_string(struct json_reader *reader);

/* null, true, false or a number of any size, as it is spelled. */
struct json_span json_scalar(struct json_reader *reader);

/* An integer 0..max without sign, fraction or exponent; 0 after a problem. */
int64_t json_count(struct json_reader *reader, int64_t max);

/* Any value, at most JSON_DEPTH_MAX deep, checked for being JSON. Returns where it begins. */
const char *json_skip(struct json_reader *reader);

/* Nothing but white space may follow. Returns 0, or -1 if there was a problem anywhere. */
int json_end(struct json_reader *reader);

/* Write a string's text into out, which has n_bytes. Returns its length: escapes are never shorter
 * than what they stand for. Nothing terminates it, and it may hold 0 bytes. */
size_t json_decode(struct json_span span, char *out);

/* Append a string's text. */
void json_add_decoded(struct str *out, struct json_span span);

/* Whether a string's text is this one (n bytes). */
bool json_span_is(struct json_span span, const char *text, size_t n_bytes);

/*
 * Behind the object or array that starts at `at`, or NULL if it does not end before `end`. Found by
 * brackets and quotes alone: whether it is valid, and which bracket closes which, is not checked.
 */
const char *json_find_end(const char *at, const char *end);

/* Add text as a JSON string with its quotes. */
void json_add_string(struct str *out, const char *text);

#endif
