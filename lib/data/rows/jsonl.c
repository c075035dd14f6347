/*
 * jsonl.c - reading JSON by hand, forwards only
 */
#include "data/rows/jsonl.h"

#include <string.h>

#include "data/rows/jsonl_impl.h"

#define COLUMNS_SHOWN 8 /* of a row, in messages */

int jsonl_wrong(struct jsonl_reader *r, const char *what)
{
    return err_set(r->err, ERR_DATA, "%s at byte %zu", what, r->at);
}

/* The byte at hand, or -1 at the end. */
static int peek(const struct jsonl_reader *r)
{
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

static void skip_space(struct jsonl_reader *r)
{
    while (r->at < r->n && memchr(" \t\r\n", r->text[r->at], 4))
        r->at++;
}

/* Skip space, then take this character if it is next. */
int jsonl_take(struct jsonl_reader *r, char c)
{
    skip_space(r);
    if (peek(r) != (unsigned char)c)
        return 0;
    r->at++;
    return 1;
}

int jsonl_at_end(struct jsonl_reader *r)
{
    skip_space(r);
    return r->at == r->n;
}

/* Four hex digits; -1 if they are none. */
static int read_hex(struct jsonl_reader *r)
{
    int value = 0;

    if (r->n - r->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)r->text[r->at + (size_t)i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    r->at += 4;
    return value;
}

static void add_utf8(struct str *out, uint32_t code)
{
    char bytes[4];
    size_t n = 0;

    if (code < 0x80) {
        bytes[n++] = (char)code;
    } else if (code < 0x800) {
        bytes[n++] = (char)(0xc0 | code >> 6);
    } else if (code < 0x10000) {
        bytes[n++] = (char)(0xe0 | code >> 12);
        bytes[n++] = (char)(0x80 | (code >> 6 & 0x3f));
    } else {
        bytes[n++] = (char)(0xf0 | code >> 18);
        bytes[n++] = (char)(0x80 | (code >> 12 & 0x3f));
        bytes[n++] = (char)(0x80 | (code >> 6 & 0x3f));
    }
    if (code >= 0x80)
        bytes[n++] = (char)(0x80 | (code & 0x3f));
    str_add_bytes(out, bytes, n);
}

/* After "\u": one code point, of two surrogates if need be. */
static int read_unicode(struct jsonl_reader *r, struct str *out)
{
    int code = read_hex(r);

    if (code >= 0xd800 && code < 0xdc00) {
        if (r->n - r->at < 2 || memcmp(r->text + r->at, "\\u", 2) != 0)
            return jsonl_wrong(r, "an unpaired surrogate");
        r->at += 2;
        int low = read_hex(r);
        if (low < 0xdc00 || low > 0xdfff)
            return jsonl_wrong(r, "an unpaired surrogate");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return jsonl_wrong(r, "an unpaired surrogate");
    }
    if (code < 0)
        return jsonl_wrong(r, "\\u without four hex digits");
    if (out)
        add_utf8(out, (uint32_t)code);
    return 0;
}

static int read_escape(struct jsonl_reader *r, struct str *out)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;

    if (c == 'u') {
        r->at++;
        return read_unicode(r, out);
    }
    if (!letter)
        return jsonl_wrong(r, "unknown escape");
    r->at++;
    if (out)
        str_add_char(out, meanings[letter - letters]);
    return 0;
}

/* A string whose opening quote was taken, appended to out unless that is NULL. */
int jsonl_read_string(struct jsonl_reader *r, struct str *out)
{
    for (;;) {
        size_t start = r->at;
        int c;

        while ((c = peek(r)) >= 0x20 && c != '"' && c != '\\')
            r->at++;
        if (out)
            str_add_bytes(out, r->text + start, r->at - start);
        if (c < 0)
            return jsonl_wrong(r, "a string does not end");
        if (c < 0x20)
            return jsonl_wrong(r, "a control character in a string");
        r->at++;
        if (c == '"')
            return 0;
        if (read_escape(r, out) < 0)
            return -1;
    }
}

/* true, false, null or a number. */
int jsonl_skip_plain(struct jsonl_reader *r)
{
    static const char *const words[] = { "true", "false", "null" };
    size_t start = r->at;

    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);

        if (r->n - r->at >= length && memcmp(r->text + r->at, words[i], length) == 0) {
            r->at += length;
            return 0;
        }
    }
    /* Of numbers only the letters are checked: their values are not used. */
    while (r->at < r->n && r->text[r->at] && strchr("+-.0123456789eE", r->text[r->at]))
        r->at++;
    return r->at > start ? 0 : jsonl_wrong(r, "not a JSON value");
}

/* What may come next inside a container whose closing character is `close`. */
static int skip_key(struct jsonl_reader *r, char close)
{
    if (close == ']')
        return 0;
    if (!jsonl_take(r, '"'))
        return jsonl_wrong(r, "no key");
    if (jsonl_read_string(r, NULL) < 0)
        return -1;
    return jsonl_take(r, ':') ? 0 : jsonl_wrong(r, "no ':' after a key");
}

/* One value of any kind. The stack holds the closing characters of the containers that are open. */
static int skip_value(struct jsonl_reader *r)
{
    char stack[JSONL_DEPTH_MAX];
    int depth = 0;

    do {
        int opened = 0;

        skip_space(r);
        int c = peek(r);
        if (c == '{' || c == '[') {
            if (depth == JSONL_DEPTH_MAX)
                return jsonl_wrong(r, "nested too deep");
            r->at++;
            stack[depth++] = c == '{' ? '}' : ']';
            opened = 1;
        } else if (jsonl_take(r, '"')) {
            if (jsonl_read_string(r, NULL) < 0)
                return -1;
        } else if (jsonl_skip_plain(r) < 0) {
            return -1;
        }
        /* Close what ends here; else a comma (or the start of a container) leads to the next value.
         */
        while (depth > 0 && jsonl_take(r, stack[depth - 1])) {
            depth--;
            opened = 0;
        }
        if (depth == 0)
            break;
        if (!opened && !jsonl_take(r, ','))
            return jsonl_wrong(r, "no ',' between values");
        if (skip_key(r, stack[depth - 1]) < 0)
            return -1;
    } while (depth > 0);
    return 0;
}

/* Key and value; *found becomes 1 if it was the column's. */
static int read_member(struct jsonl_reader *r, const char *column, struct str *key, struct str *out,
                       int *found)
{
    str_clear(key);
    if (!jsonl_take(r, '"'))
        return jsonl_wrong(r, "no key");
    if (jsonl_read_string(r, key) < 0)
        return -1;
    if (!jsonl_take(r, ':'))
        return jsonl_wrong(r, "no ':' after a key");
    if (key->length != strlen(column) || memcmp(str_text(key), column, key->length) != 0)
        return skip_value(r);
    if ((*found)++)
        return err_set(r->err, ERR_DATA, "field '%s' occurs twice", column);
    if (!jsonl_take(r, '"'))
        return err_set(r->err, ERR_DATA, "field '%s' is not a string", column);
    return jsonl_read_string(r, out);
}

/* Of a line that was read whole, without the column: what it has instead. */
static int refuse_columns(const char *line, size_t n_bytes, const char *column, struct err *err)
{
    struct err ignored;
    struct jsonl_reader r = { .text = line, .n = n_bytes, .err = &ignored };
    struct str key = { 0 }, names = { 0 }, value = { 0 };
    int n = 0, found = 0;

    if (jsonl_take(&r, '{') && !jsonl_take(&r, '}'))
        do {
            if (read_member(&r, column, &key, &value, &found) < 0)
                break;
            if (key.length)
                str_make_printable(key.data);
            str_printf(&names, n ? ", %.40s" : "%.40s", str_text(&key));
        } while (++n < COLUMNS_SHOWN && jsonl_take(&r, ','));
    err_set(err, ERR_DATA,
            n ? "there is no field '%s' (hint: it has %s)" : "there is no field '%s'", column,
            str_text(&names));
    str_release(&key);
    str_release(&names);
    str_release(&value);
    return -1;
}

int jsonl_text(const char *line, size_t n_bytes, const char *column, struct str *out,
               struct err *err)
{
    struct jsonl_reader r = { .text = line, .n = n_bytes, .err = err };
    struct str key = { 0 };
    int found = 0, rc = 0;

    if (!jsonl_take(&r, '{'))
        return jsonl_wrong(&r, "no object");
    if (!jsonl_take(&r, '}')) {
        do
            rc = read_member(&r, column, &key, out, &found);
        while (rc == 0 && jsonl_take(&r, ','));
        if (rc == 0 && !jsonl_take(&r, '}'))
            rc = jsonl_wrong(&r, "no ',' or '}' after a value");
    }
    str_release(&key);
    if (rc < 0)
        return -1;
    if (!jsonl_at_end(&r))
        return jsonl_wrong(&r, "unexpected characters after the object");
    if (!found)
        return refuse_columns(line, n_bytes, column, err);
    return 0;
}
