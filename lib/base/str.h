/*
 * str.h - text that grows, and small questions about text
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A growing text on the heap; all zero is empty. data is always terminated once something was
 * added. */
struct str {
    char *data;
    size_t length;
    size_t capacity;
};

void str_release(struct str *str);
void str_clear(struct str *str);
void str_add(struct str *str, const char *text);
void str_add_bytes(struct str *str, const void *bytes, size_t n_bytes);
void str_add_char(struct str *str, char c);
void str_printf(struct str *str, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The text, "" when empty; belongs to str. */
const char *str_text(const struct str *str);

/* 1536 -> "1.5 KiB"; returns buffer. */
const char *str_bytes(char *buffer, size_t size, uint64_t n_bytes);

/* Seconds as "4.2 s", "3:07", "1:02:45", "2d 03:10"; returns buffer. */
const char *str_duration(char *buffer, size_t size, double seconds);

/* 124439808 -> "124,439,808"; returns buffer. */
const char *str_count(char *buffer, size_t size, int64_t n);

/* What makes a noun of n things plural: "s", or "es"; "" if n is 1. */
static inline const char *str_s(int64_t n)
{
    return n == 1 ? "" : "s";
}

static inline const char *str_es(int64_t n)
{
    return n == 1 ? "" : "es";
}

int str_starts_with(const char *text, const char *prefix);
int str_ends_with(const char *text, const char *suffix);

/* Letters to change, drop, add or swap to make a into b (optimal string alignment); a and b up
 * to 63. */
int str_distance(const char *a, const char *b);

/*
 * The name of names[n] nearest to wrong, or NULL if none is near enough to be meant (distance at
 * most a third of the length, or one a prefix of the other).
 */
const char *str_nearest(const char *wrong, const char *const *names, int n);

/*
 * The whole of text as a number. Returns 0, or -1 if text is not entirely one in range; *out is
 * then untouched. i64 takes an optional sign and 1_000_000; f64 what strtod takes, but no hex, inf
 * or nan.
 */
int str_to_i64(const char *text, int64_t *out);
int str_to_f64(const char *text, double *out);

/*
 * Whether a JSON text has the escape \u0000: cJSON ends a string there, so that another text is
 * read. A raw zero byte is not valid JSON.
 */
bool str_has_json_nul(const char *json, size_t n_bytes);

/* Length of a valid UTF-8 sequence at text (n bytes left), or 0 if there is none. */
int str_utf8_length(const unsigned char *text, size_t n);

/* Append bytes as UTF-8: each part that is none becomes one U+FFFD, cut as Unicode recommends
 * and Python and Rust do (a sequence that breaks off is one part). */
void str_add_utf8(struct str *str, const void *bytes, size_t n_bytes);

/*
 * Each byte of text that is not valid UTF-8, or that a terminal would act on (but for newline and
 * tab), becomes a '?'.
 */
void str_make_printable(char *text);

#endif
