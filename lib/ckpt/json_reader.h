/*
 * json_reader.h - JSON from outside, read front to back
 *
 * A pull parser: the caller asks for what its format has at this place, and gets it or a problem.
 * So nesting is the caller's own and there is no recursion; only json_skip walks unknown values,
 * with a depth limit. Integers are exact (no doubles), text is checked as UTF-8, and nothing is
 * allocated but strings, which are shorter than their source. After the first problem every call
 * gives nothing, so that it may be asked for once at the end.
 *
 *     json_open(&reader, '{');
 *     while (json_next(&reader, '}')) {
 *         const char *key = json_key(&reader);
 *         …
 *     }
 */
#ifndef CKPT_JSON_READER_H
#define CKPT_JSON_READER_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

#define JSON_DEPTH_MAX 64

struct json_reader {
    const char *begin, *next, *end;
    struct arena *arena; /* strings go here */
    const char *problem; /* the first; NULL while all is well */
    size_t problem_at;   /* byte */
    int fresh;           /* a bracket was just opened */
};

/* text stays the caller's and must outlive the reader. */
void json_reader_init(struct json_reader *reader, const char *text, size_t n_bytes,
                      struct arena *arena);

/* Note a problem at the present place, unless there is one already. */
void json_fail(struct json_reader *reader, const char *problem);

/* The bracket '{' or '['. */
void json_open(struct json_reader *reader, char bracket);

/* Whether another item comes before the closing bracket, which is else eaten; 0 after a problem. */
int json_next(struct json_reader *reader, char close);

/* "key": inside an object; "" after a problem, never NULL. No text holds a 0 byte. */
const char *json_key(struct json_reader *reader);
const char *json_string(struct json_reader *reader);

/* An integer 0..max without sign, fraction or exponent; 0 after a problem. */
int64_t json_count(struct json_reader *reader, int64_t max);

/* Any value, at most JSON_DEPTH_MAX deep, checked for being JSON. Returns where it begins. */
const char *json_skip(struct json_reader *reader);

/* Nothing but space may follow. Returns 0, or -1 if there was a problem anywhere. */
int json_end(struct json_reader *reader);

/* Add text as a JSON string with its quotes. */
void json_add_string(struct str *out, const char *text);

#endif
