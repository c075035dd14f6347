/*
 * json_reader.c - a pull parser for JSON
 */
#include "ckpt/json_reader.h"

#include <string.h>

#include "base/err.h"

void json_reader_init(struct json_reader *reader, const char *text, size_t n_bytes,
                      struct arena *arena)
{
    *reader = (struct json_reader){ text, text, text + n_bytes, arena, NULL, 0, 0 };
}

void json_fail(struct json_reader *reader, const char *problem)
{
    if (reader->problem)
        return;
    reader->problem = problem;
    reader->problem_at = (size_t)(reader->next - reader->begin);
}

/* The next byte that is no space; 0 at the end or after a problem. */
static char peek(struct json_reader *reader)
{
    if (reader->problem)
        return '\0';
    while (reader->next < reader->end && *reader->next && strchr(" \t\r\n", *reader->next))
        reader->next++;
    return reader->next < reader->end ? *reader->next : '\0';
}

static int eat(struct json_reader *reader, char wanted)
{
    if (peek(reader) != wanted || reader->next == reader->end)
        return 0;
    reader->next++;
    return 1;
}

void json_open(struct json_reader *reader, char bracket)
{
    if (!eat(reader, bracket))
        json_fail(reader, bracket == '{' ? "an object is expected" : "an array is expected");
    reader->fresh = 1;
}

int json_next(struct json_reader *reader, char close)
{
    int fresh = reader->fresh;

    reader->fresh = 0;
    if (eat(reader, close))
        return 0;
    if (!fresh && !eat(reader, ','))
        json_fail(reader, close == '}' ? "',' or '}' is expected" : "',' or ']' is expected");
    return !reader->problem;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return -1;
}

/* Four hex digits at the present place; -1 if there are none. */
static int32_t scan_hex4(struct json_reader *reader)
{
    int32_t value = 0;

    if (reader->end - reader->next < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(reader->next[i]);

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    reader->next += 4;
    return value;
}

/* What follows "\u", surrogate pairs joined; -1 for what is no character (0 among them). */
static int32_t scan_code_point(struct json_reader *reader)
{
    int32_t high = scan_hex4(reader);

    if (high <= 0 || (high >= 0xdc00 && high < 0xe000))
        return -1;
    if (high < 0xd800 || high >= 0xe000)
        return high;
    if (reader->end - reader->next < 6 || reader->next[0] != '\\' || reader->next[1] != 'u')
        return -1;
    reader->next += 2;
    int32_t low = scan_hex4(reader);
    if (low < 0xdc00 || low >= 0xe000)
        return -1;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static size_t put_utf8(char *out, int32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* One escape, the backslash being eaten, into out (at least 4 bytes); its length, or 0. */
static size_t scan_escape(struct json_reader *reader, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = reader->next < reader->end ? *reader->next : '\0';
    const char *name = c ? strchr(names, c) : NULL;

    if (name) {
        reader->next++;
        out[0] = values[name - names];
        return 1;
    }
    if (c != 'u')
        return 0;
    reader->next++;
    int32_t code_point = scan_code_point(reader);
    return code_point < 0 ? 0 : put_utf8(out, code_point);
}

/*
 * A string from its opening quote to behind the closing one, decoded into out, or only checked
 * where out is NULL. Returns the decoded length; decoding never lengthens.
 */
static size_t scan_string(struct json_reader *reader, char *out)
{
    size_t used = 0;
    char piece[4];

    if (!eat(reader, '"')) {
        json_fail(reader, "a string is expected");
        return 0;
    }
    while (reader->next < reader->end && *reader->next != '"') {
        const unsigned char *at = (const unsigned char *)reader->next;
        size_t n = 0;

        if (*at == '\\') {
            reader->next++;
            n = scan_escape(reader, piece);
        } else if (*at >= 0x20) {
            n = (size_t)str_utf8_length(at, (size_t)(reader->end - reader->next));
            memcpy(piece, at, n);
            reader->next += n;
        }
        if (n == 0) {
            json_fail(reader, "a string holds a bad escape, a control character or broken UTF-8");
            return 0;
        }
        if (out)
            memcpy(out + used, piece, n);
        used += n;
    }
    if (reader->next == reader->end)
        json_fail(reader, "a string does not end");
    else
        reader->next++;
    return used;
}

const char *json_string(struct json_reader *reader)
{
    peek(reader);
    const char *start = reader->next;
    size_t length = scan_string(reader, NULL);

    if (reader->problem)
        return "";
    char *text = arena_alloc(reader->arena, length + 1);
    reader->next = start;
    scan_string(reader, text);
    return text;
}

const char *json_key(struct json_reader *reader)
{
    const char *key = json_string(reader);

    if (!eat(reader, ':'))
        json_fail(reader, "':' is expected");
    return reader->problem ? "" : key;
}

static int at_digit(const struct json_reader *reader)
{
    return reader->next < reader->end && *reader->next >= '0' && *reader->next <= '9';
}

int64_t json_count(struct json_reader *reader, int64_t max)
{
    int64_t value = 0;

    peek(reader);
    if (reader->problem)
        return 0;
    if (!at_digit(reader)) {
        json_fail(reader, "a whole number is expected");
        return 0;
    }
    int leading_zero = *reader->next == '0';
    for (int n = 0; at_digit(reader); n++, reader->next++) {
        if ((n > 0 && leading_zero) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *reader->next - '0', &value) || value > max) {
            json_fail(reader, "a number is out of range");
            return 0;
        }
    }
    if (reader->next < reader->end && *reader->next && strchr(".eE", *reader->next)) {
        json_fail(reader, "a whole number is expected");
        return 0;
    }
    return value;
}

static int skip_digits(struct json_reader *reader)
{
    const char *start = reader->next;

    while (at_digit(reader))
        reader->next++;
    return reader->next > start;
}

static int skip_char(struct json_reader *reader, const char *set)
{
    if (reader->next == reader->end || !*reader->next || !strchr(set, *reader->next))
        return 0;
    reader->next++;
    return 1;
}

static void skip_number(struct json_reader *reader)
{
    skip_char(reader, "-");
    int ok = skip_char(reader, "0") || skip_digits(reader);
    if (ok && skip_char(reader, "."))
        ok = skip_digits(reader);
    if (ok && skip_char(reader, "eE")) {
        skip_char(reader, "+-");
        ok = skip_digits(reader);
    }
    if (!ok || at_digit(reader))
        json_fail(reader, "a value is expected");
}

static void skip_scalar(struct json_reader *reader, char first)
{
    static const char *const words[] = { "true", "false", "null" };

    if (first == '"') {
        scan_string(reader, NULL);
        return;
    }
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);

        if (first == words[i][0] && (size_t)(reader->end - reader->next) >= length &&
            !memcmp(reader->next, words[i], length)) {
            reader->next += length;
            return;
        }
    }
    skip_number(reader);
}

static void skip_key(struct json_reader *reader)
{
    scan_string(reader, NULL);
    if (!eat(reader, ':'))
        json_fail(reader, "':' is expected");
}

const char *json_skip(struct json_reader *reader)
{
    char closes[JSON_DEPTH_MAX];
    int depth = 0;

    peek(reader);
    const char *start = reader->next;
    do {
        char first = peek(reader);

        if ((first == '{' || first == '[') && depth == JSON_DEPTH_MAX) {
            json_fail(reader, "values are nested too deep");
        } else if (first == '{' || first == '[') {
            json_open(reader, first);
            closes[depth++] = first == '{' ? '}' : ']';
        } else {
            skip_scalar(reader, first);
        }
        /* The value is over, or has just begun: close what ends here, then stand at the next value.
         */
        while (depth > 0 && !json_next(reader, closes[depth - 1]) && !reader->problem)
            depth--;
        if (depth > 0 && closes[depth - 1] == '}')
            skip_key(reader);
    } while (depth > 0 && !reader->problem);
    return start;
}

int json_end(struct json_reader *reader)
{
    peek(reader);
    if (!reader->problem && reader->next != reader->end)
        json_fail(reader, "something follows the end");
    return reader->problem ? -1 : 0;
}

void json_add_string(struct str *out, const char *text)
{
    static const char plain[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";

    str_add_char(out, '"');
    for (; *text; text++) {
        const char *escape = strchr(plain, *text);

        if (escape)
            str_printf(out, "\\%c", names[escape - plain]);
        else if ((unsigned char)*text < 0x20)
            str_printf(out, "\\u%04x", (unsigned)*text);
        else
            str_add_char(out, *text);
    }
    str_add_char(out, '"');
}
