/*
 * json_reader.c - a pull parser for JSON
 *
 * Most bytes of a file are inside of strings. A string is therefore scanned eight bytes at a time
 * for the few that mean something, and copied, if at all, after that.
 */
#include "base/json_reader.h"

#include <string.h>

#include "base/err.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "skip_plain takes the lowest byte first");

void json_reader_init(struct json_reader *reader, const char *text, size_t n_bytes,
                      struct arena *arena)
{
    *reader =
        (struct json_reader){ .begin = text, .next = text, .end = text + n_bytes, .arena = arena };
}

void json_fail(struct json_reader *reader, const char *problem)
{
    if (reader->problem)
        return;
    reader->problem = problem;
    reader->problem_at = (size_t)(reader->next - reader->begin);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Characters that numbers are written with. */
static bool is_numeric(char c)
{
    return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* The next byte that is not white space; 0 at the end or after a problem. */
static char next_char(struct json_reader *reader)
{
    if (reader->problem)
        return '\0';
    while (reader->next < reader->end && is_space(*reader->next))
        reader->next++;
    return reader->next < reader->end ? *reader->next : '\0';
}

static bool eat(struct json_reader *reader, char expected)
{
    if (next_char(reader) != expected)
        return false;
    reader->next++;
    return true;
}

enum json_kind json_peek(struct json_reader *reader)
{
    char c = next_char(reader);

    switch (c) {
    case '"':
        return JSON_STRING;
    case '{':
        return JSON_OBJECT;
    case '[':
        return JSON_ARRAY;
    case 'n':
        return JSON_NULL;
    case 't':
    case 'f':
        return JSON_BOOL;
    default:
        return is_digit(c) || c == '-' ? JSON_NUMBER : JSON_NONE;
    }
}

void json_open(struct json_reader *reader, char bracket)
{
    if (!eat(reader, bracket))
        json_fail(reader, bracket == '{' ? "an object is expected" : "an array is expected");
    reader->at_first = true;
}

int json_next(struct json_reader *reader, char close)
{
    bool at_first = reader->at_first;

    reader->at_first = false;
    if (eat(reader, close))
        return 0;
    if (!at_first && !eat(reader, ','))
        json_fail(reader, close == '}' ? "',' or '}' is expected" : "',' or ']' is expected");
    return !reader->problem;
}

/* ---- strings ---- */

/* In each byte's highest bit: whether it is below 0x20, a quote or a backslash. Exact in the
 * lowest byte that has it; those above may have it wrongly, by a borrow. */
static uint64_t find_special(uint64_t word)
{
    const uint64_t ones = 0x0101010101010101, high = 0x8080808080808080;
    uint64_t quote = word ^ (ones * '"'), backslash = word ^ (ones * '\\');

    return (((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) |
            ((backslash - ones) & ~backslash)) &
           high;
}

/* The first byte that is a quote, a backslash, below 0x20 or, unless any_bytes, not ASCII; or
 * end. */
static const char *skip_plain(const char *at, const char *end, bool any_bytes)
{
    const uint64_t not_ascii = any_bytes ? 0 : 0x8080808080808080;

    for (; end - at >= 8; at += 8) {
        uint64_t word;

        memcpy(&word, at, sizeof word);
        uint64_t found = find_special(word) | (word & not_ascii);
        if (found)
            return at + __builtin_ctzll(found) / 8;
    }
    for (; at < end; at++) {
        unsigned char c = (unsigned char)*at;

        if (c < 0x20 || c == '"' || c == '\\' || (c >= 0x80 && !any_bytes))
            break;
    }
    return at;
}

/* The value of a hex digit, plus 1; 0 for other bytes. */
static const uint8_t hex_values[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

/* Four hex digits; -1 if there are less. Text of Chinese may have nothing but such escapes. */
static int32_t read_hex4(const char *at, const char *end)
{
    const unsigned char *digits = (const unsigned char *)at;

    if (end - at < 4)
        return -1;
    int a = hex_values[digits[0]], b = hex_values[digits[1]];
    int c = hex_values[digits[2]], d = hex_values[digits[3]];
    if (!a || !b || !c || !d)
        return -1;
    return (a - 1) << 12 | (b - 1) << 8 | (c - 1) << 4 | (d - 1);
}

static bool is_surrogate(int32_t code)
{
    return code >= 0xd800 && code < 0xe000;
}

/* Pass \uXXXX, two of them if they are a pair of surrogates. */
static bool skip_unicode(struct json_reader *reader)
{
    const char *at = reader->next, *end = reader->end;
    int32_t code = read_hex4(at + 2, end);

    if (code < 0) {
        json_fail(reader, "\\u without four hex digits");
        return false;
    }
    reader->next += 6;
    if (!is_surrogate(code))
        return true;
    int32_t low = end - at >= 8 && at[6] == '\\' && at[7] == 'u' ? read_hex4(at + 8, end) : -1;
    if (code >= 0xdc00 || low < 0xdc00 || low >= 0xe000) {
        json_fail(reader, "an unpaired surrogate");
        return false;
    }
    reader->next += 6;
    return true;
}

static bool skip_escape(struct json_reader *reader)
{
    switch (reader->end - reader->next > 1 ? reader->next[1] : '\0') {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        reader->next += 2;
        return true;
    case 'u':
        return skip_unicode(reader);
    default:
        json_fail(reader, "unknown escape in a string");
        return false;
    }
}

/* Pass what stopped skip_plain within a string. */
static bool skip_special(struct json_reader *reader, bool *has_escapes)
{
    const unsigned char *at = (const unsigned char *)reader->next;

    if (reader->next == reader->end) {
        json_fail(reader, "a string does not end");
        return false;
    }
    if (*at == '\\') {
        *has_escapes = true;
        do {
            if (!skip_escape(reader))
                return false;
        } while (reader->next < reader->end && *reader->next == '\\');
        return true;
    }
    if (*at < 0x20) {
        json_fail(reader, "a control character in a string");
        return false;
    }
    int length = str_utf8_length(at, (size_t)(reader->end - reader->next));
    if (!length)
        json_fail(reader, "broken UTF-8 in a string");
    reader->next += length;
    return length > 0;
}

struct json_span json_string_span(struct json_reader *reader)
{
    struct json_span span = { "", 0, false };
    bool has_escapes = false;

    if (!eat(reader, '"')) {
        json_fail(reader, "a string is expected");
        return span;
    }
    const char *start = reader->next;
    for (;;) {
        reader->next = skip_plain(reader->next, reader->end, reader->any_bytes);
        if (reader->next < reader->end && *reader->next == '"')
            break;
        if (!skip_special(reader, &has_escapes))
            return span;
    }
    span = (struct json_span){ start, (size_t)(reader->next - start), has_escapes };
    reader->next++;
    return span;
}

struct json_span json_key_span(struct json_reader *reader)
{
    struct json_span key = json_string_span(reader);

    if (!eat(reader, ':'))
        json_fail(reader, "':' is expected");
    return reader->problem ? (struct json_span){ "", 0, false } : key;
}

static const char *copy_string(struct json_reader *reader, struct json_span span)
{
    if (reader->problem)
        return "";
    char *text = arena_alloc(reader->arena, span.n_bytes + 1);
    size_t length = json_decode(span, text);
    if (!memchr(text, '\0', length))
        return text;
    json_fail(reader, "\\u0000 in a string that cannot have it");
    return "";
}

const char *json_string(struct json_reader *reader)
{
    return copy_string(reader, json_string_span(reader));
}

const char *json_key(struct json_reader *reader)
{
    return copy_string(reader, json_key_span(reader));
}

static size_t put_utf8(char *out, int32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = 0;
    if (c < 0x800) {
        out[n++] = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        out[n++] = (char)(0xe0 | c >> 12);
        out[n++] = (char)(0x80 | (c >> 6 & 63));
    } else {
        out[n++] = (char)(0xf0 | c >> 18);
        out[n++] = (char)(0x80 | (c >> 12 & 63));
        out[n++] = (char)(0x80 | (c >> 6 & 63));
    }
    out[n++] = (char)(0x80 | (c & 63));
    return n;
}

/* The escape at *at, which was checked, into out, which has 4 bytes. Returns how many it takes. */
static size_t decode_escape(const char **at, char *out)
{
    static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
    char c = (*at)[1];

    if (c != 'u') {
        const char *name = strchr(names, c);

        *out = name ? values[name - names] : c;
        *at += 2;
        return 1;
    }
    int32_t code = read_hex4(*at + 2, *at + 6);
    *at += 6;
    if (is_surrogate(code)) {
        code = 0x10000 + ((code - 0xd800) << 10) + (read_hex4(*at + 2, *at + 6) - 0xdc00);
        *at += 6;
    }
    return put_utf8(out, code);
}

size_t json_decode(struct json_span span, char *out)
{
    const char *at = span.text, *end = at + span.n_bytes;
    size_t used = 0;

    while (span.has_escapes && at < end) {
        if (*at == '\\') {
            used += decode_escape(&at, out + used);
            continue;
        }
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        size_t n = (size_t)((escape ? escape : end) - at);
        memcpy(out + used, at, n);
        used += n;
        at += n;
    }
    memcpy(out + used, at, (size_t)(end - at));
    return used + (size_t)(end - at);
}

void json_add_decoded(struct str *out, struct json_span span)
{
    size_t length = out->length;

    str_add_bytes(out, span.text, span.n_bytes);
    if (!span.has_escapes)
        return;
    out->length = length + json_decode(span, out->data + length); /* which is shorter */
    out->data[out->length] = '\0';
}

bool json_span_is(struct json_span span, const char *text, size_t n_bytes)
{
    const char *at = span.text, *end = at + span.n_bytes;
    char piece[4];

    if (!span.has_escapes)
        return span.n_bytes == n_bytes && !memcmp(at, text, n_bytes);
    while (at < end) {
        size_t n = 1;

        if (*at == '\\')
            n = decode_escape(&at, piece);
        else
            piece[0] = *at++;
        if (n > n_bytes || memcmp(piece, text, n) != 0)
            return false;
        text += n;
        n_bytes -= n;
    }
    return n_bytes == 0;
}

/* ---- other values ---- */

int64_t json_count(struct json_reader *reader, int64_t max)
{
    int64_t value = 0;

    if (!is_digit(next_char(reader))) {
        json_fail(reader, "a whole number is expected");
        return 0;
    }
    bool leading_zero = *reader->next == '0';
    for (int n = 0; reader->next < reader->end && is_digit(*reader->next); n++, reader->next++) {
        if ((n > 0 && leading_zero) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *reader->next - '0', &value) || value > max) {
            json_fail(reader, "a number is out of range");
            return 0;
        }
    }
    if (reader->next < reader->end && is_numeric(*reader->next)) {
        json_fail(reader, "a whole number is expected");
        return 0;
    }
    return value;
}

/* Behind the digits at `at`; NULL if there are none, or `at` is NULL. */
static const char *skip_digits(const char *at, const char *end)
{
    const char *start = at;

    while (at && at < end && is_digit(*at))
        at++;
    return at == start ? NULL : at;
}

/* -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?: behind it, or NULL. */
static const char *skip_number(const char *at, const char *end)
{
    at += at < end && *at == '-';
    at = at < end && *at == '0' ? at + 1 : skip_digits(at, end);
    if (at && at < end && *at == '.')
        at = skip_digits(at + 1, end);
    if (at && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at = skip_digits(at + (at < end && (*at == '+' || *at == '-')), end);
    }
    return at && at < end && is_numeric(*at) ? NULL : at;
}

/* Behind true, false or null; NULL if it is none of them. */
static const char *skip_word(const char *at, const char *end)
{
    static const char *const words[] = { "true", "false", "null" };

    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);

        if ((size_t)(end - at) >= length && !memcmp(at, words[i], length))
            return at + length;
    }
    return NULL;
}

struct json_span json_scalar(struct json_reader *reader)
{
    char first = next_char(reader);
    const char *start = reader->next;
    bool is_number = is_numeric(first) && first != 'e' && first != 'E';
    const char *end = NULL;

    if (first)
        end = (is_number ? skip_number : skip_word)(start, reader->end);
    if (!end) {
        json_fail(reader, is_number ? "an invalid number" : "a value is expected");
        return (struct json_span){ "", 0, false };
    }
    reader->next = end;
    return (struct json_span){ start, (size_t)(end - start), false };
}

const char *json_skip(struct json_reader *reader)
{
    char closes[JSON_DEPTH_MAX];
    int depth = 0;

    next_char(reader);
    const char *start = reader->next;
    do {
        char first = next_char(reader);

        if (first == '{' || first == '[') {
            if (depth == JSON_DEPTH_MAX) {
                json_fail(reader, "values are nested too deep");
                break;
            }
            json_open(reader, first);
            closes[depth++] = first == '{' ? '}' : ']';
        } else if (first == '"') {
            json_string_span(reader);
        } else {
            json_scalar(reader);
        }
        /* Close what ends here; another item then follows in the innermost container, if any. */
        while (depth > 0 && !json_next(reader, closes[depth - 1]) && !reader->problem)
            depth--;
        if (depth > 0 && closes[depth - 1] == '}')
            json_key_span(reader);
    } while (depth > 0 && !reader->problem);
    return start;
}

int json_end(struct json_reader *reader)
{
    next_char(reader);
    if (!reader->problem && reader->next != reader->end)
        json_fail(reader, "unexpected characters after the value");
    return reader->problem ? -1 : 0;
}

/* ---- without a reader ---- */

/* Behind the string whose opening quote is at `at`; NULL if it does not end. */
static const char *find_string_end(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\' && at + 1 < end)
            at++;
        else if (*at == '"')
            return at + 1;
    }
    return NULL;
}

const char *json_find_end(const char *at, const char *end)
{
    int64_t depth = 0;

    while (at && at < end) {
        char c = *at;

        if (c == '"') {
            at = find_string_end(at, end);
            continue;
        }
        at++;
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            return at;
    }
    return NULL;
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
