/*
 * charsmap.c - prefix by prefix
 *
 * The double array comes from a file: every step in it is checked against its size.
 */
#include "tokenizer/unigram/charsmap.h"

#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode/unicode.h"

/* A broken table may lead in circles, along all of the text. */
#define KEY_BYTES_MAX ((size_t)4096)

/* What a prefix of the text becomes, and how long the prefix is. */
struct prefix {
    const char *text;
    size_t n_text, n_bytes;
};

/* The value of the longest key that text begins with, or of the shortest, and its length in *n_key;
 * -1: none. */
static int64_t find_key(const struct charsmap *map, const unsigned char *text, size_t n_bytes,
                        bool is_shortest, size_t *n_key)
{
    size_t at = 0;
    int64_t value = -1;
    uint32_t unit = map->units[0];

    for (size_t i = 0; i < n_bytes && i < KEY_BYTES_MAX; i++) {
        at ^= (unit >> 10) << ((unit & 0x200) >> 6);
        at ^= text[i];
        if (at >= map->n_units)
            break;
        unit = map->units[at];
        if ((unit & 0x800000ffu) != text[i])
            break;
        size_t leaf = at ^ (unit >> 10) << ((unit & 0x200) >> 6);
        if ((unit >> 8 & 1) && leaf < map->n_units) {
            value = map->units[leaf] & 0x7fffffff;
            *n_key = i + 1;
            if (is_shortest)
                break;
        }
    }
    return value;
}

static struct prefix next_prefix(const struct charsmap *map, const char *text, size_t n_bytes)
{
    const struct added_token *whole =
        map->whole->n > 0 ? added_match(map->whole, text, n_bytes) : NULL;
    size_t n = 0;

    if (whole)
        return (struct prefix){ text, whole->n_bytes, whole->n_bytes };
    if (map->units) {
        int64_t value = find_key(map, (const unsigned char *)text, n_bytes, false, &n);

        if (value >= 0 && (size_t)value < map->n_texts)
            return (struct prefix){ map->texts + value, strlen(map->texts + value), n };
    }
    unicode_decode((const unsigned char *)text, &n);
    return (struct prefix){ text, n, n };
}

/* Whether the double array has a key that begins with a then b. */
static bool has_child(const struct charsmap *map, unsigned char a, unsigned char b)
{
    size_t at = 0;
    uint32_t unit = map->units[0];

    for (int i = 0; i < 2; i++) {
        unsigned char byte = i == 0 ? a : b;

        at ^= (unit >> 10) << ((unit & 0x200) >> 6);
        at ^= byte;
        if (at >= map->n_units)
            return false;
        unit = map->units[at];
        if ((unit & 0x800000ffu) != byte)
            return false;
    }
    return true;
}

void charsmap_index(struct charsmap *map)
{
    for (int c = 0; c < 128; c++) {
        unsigned char byte = (unsigned char)c;
        size_t n_key;

        map->plain[c] = map->whole->start[c] == map->whole->start[c + 1];
        if (!map->units)
            continue;
        if (find_key(map, &byte, 1, false, &n_key) >= 0)
            map->plain[c] = 0;
        for (int next = 0; next < 128 && map->plain[c]; next++)
            map->plain[c] = !has_child(map, byte, (unsigned char)next);
    }
}

/*
 * Append the plain characters that text begins with, without the spaces that go; *after_space is
 * read and set. How many bytes of text that was.
 */
static size_t add_plain(const struct charsmap *map, const char *text, size_t n_bytes,
                        int *after_space, struct str *out)
{
    char buffer[512];
    size_t n = 0, at = 0, end = n_bytes < sizeof buffer ? n_bytes : sizeof buffer;
    int after = *after_space;

    for (; at < end; at++) {
        unsigned char byte = (unsigned char)text[at];

        if (byte >= 0x80 || !map->plain[byte] ||
            (at + 1 < n_bytes && (unsigned char)text[at + 1] >= 0x80))
            break;
        buffer[n] = text[at];
        n += byte != ' ' || !after;
        after = byte == ' ' && map->remove_extra_whitespaces;
    }
    str_add_bytes(out, buffer, n);
    *after_space = after;
    return at;
}

/* Without replacements and with spaces left alone nothing changes. */
static bool is_plain(const struct charsmap *map)
{
    return !map->units && !map->remove_extra_whitespaces;
}

static int add_prefixes(const struct charsmap *map, const char *text, size_t n_bytes,
                        int after_space, size_t n_max, struct str *out)
{
    while (n_bytes > 0 && out->length <= n_max) {
        size_t n_plain = add_plain(map, text, n_bytes, &after_space, out);

        text += n_plain;
        n_bytes -= n_plain;
        if (n_plain > 0)
            continue;
        struct prefix p = next_prefix(map, text, n_bytes);
        text += p.n_bytes;
        n_bytes -= p.n_bytes;
        while (after_space && p.n_text > 0 && *p.text == ' ') {
            p.text++;
            p.n_text--;
        }
        if (p.n_text > 0) {
            str_add_bytes(out, p.text, p.n_text);
            after_space = p.text[p.n_text - 1] == ' ';
        }
        if (!map->remove_extra_whitespaces)
            after_space = 0;
    }
    return out->length <= n_max ? 0 : -1;
}

/* Take the spaces from the end, and what would be one of them: a mark. */
static void strip_end(const struct charsmap *map, size_t start, struct str *out)
{
    static const char mark[] = BPE_SPACE;
    size_t n_mark = sizeof mark - 1, n;

    do {
        const char *end = out->data + out->length;

        n = 0;
        if (out->length > start && end[-1] == ' ')
            n = 1;
        else if (map->escape_whitespaces && out->length >= start + n_mark &&
                 memcmp(end - n_mark, mark, n_mark) == 0)
            n = n_mark;
        out->length -= n;
    } while (n > 0);
    out->data[out->length] = 0;
}

int charsmap_apply(const struct charsmap *map, const char *text, size_t n_bytes, size_t n_max,
                   struct str *out)
{
    int after_space = map->remove_extra_whitespaces && !map->is_within;
    size_t start = out->length;

    while (after_space && n_bytes > 0) {
        struct prefix p = next_prefix(map, text, n_bytes);

        if (p.n_text != 1 || *p.text != ' ')
            break;
        text += p.n_bytes;
        n_bytes -= p.n_bytes;
    }
    if (n_bytes == 0)
        return 0;
    if (map->add_dummy_prefix && !map->dummy_is_suffix && !map->is_within)
        str_add_char(out, ' ');
    if (is_plain(map))
        str_add_bytes(out, text, n_bytes);
    else if (add_prefixes(map, text, n_bytes, after_space, n_max, out) < 0)
        return -1;
    if (map->remove_extra_whitespaces)
        strip_end(map, start, out);
    if (map->add_dummy_prefix && map->dummy_is_suffix)
        str_add_char(out, ' ');
    return 0;
}

/* ---- HF's ---- */

enum { CLUSTER_BYTES = 6 }; /* longer ones are taken character by character */

static uint32_t cluster_kind(uint32_t code)
{
    if (code < 0x80)
        return code < 0x20 || code == 0x7f ? CLUSTER_CONTROLS : CLUSTER_OTHER;
    return unicode_run_value(unicode_cluster_runs, unicode_n_cluster_runs, code);
}

/* Length of the first cluster of text; of a long one it need not be all. */
static size_t cluster_length(const unsigned char *text, size_t n_bytes)
{
    size_t at, length;
    uint32_t kind = cluster_kind(unicode_decode(text, &at));

    if (text[0] == '\r' && n_bytes > 1 && text[1] == '\n')
        return 2;
    if (kind == CLUSTER_CONTROLS)
        return at;
    while (at < n_bytes && at < 4 * CLUSTER_BYTES) {
        uint32_t next = cluster_kind(unicode_decode(text + at, &length));

        if (next == CLUSTER_CONTROLS || (next != CLUSTER_ATTACHES && kind != CLUSTER_PREPENDS))
            break;
        at += length;
        kind = next;
    }
    return at;
}

/* Append what n bytes become by their shortest prefix; 0 if none is a key. */
static int replace_cluster(const struct charsmap *map, const unsigned char *text, size_t n,
                           struct str *out)
{
    size_t n_key;
    int64_t value = find_key(map, text, n, true, &n_key);

    if (value < 0 || (size_t)value >= map->n_texts)
        return 0;
    str_add(out, map->texts + value);
    return 1;
}

int charsmap_apply_clusters(const struct charsmap *map, const char *text, size_t n_bytes,
                            size_t n_max, struct str *out)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t length;

    for (size_t at = 0, end; at < n_bytes && out->length <= n_max; at = end) {
        end = at + cluster_length(bytes + at, n_bytes - at);
        if (end - at < CLUSTER_BYTES && replace_cluster(map, bytes + at, end - at, out))
            continue;
        for (; at < end; at += length) {
            unicode_decode(bytes + at, &length);
            if (!replace_cluster(map, bytes + at, length, out))
                str_add_bytes(out, text + at, length);
        }
    }
    return out->length <= n_max ? 0 : -1;
}

/* ---- reading ---- */

int charsmap_read(struct charsmap *map, struct arena *arena, const void *data, size_t n_bytes)
{
    const char *bytes = data;
    uint32_t n_units;

    if (n_bytes < 8)
        return -1;
    memcpy(&n_units, bytes, sizeof n_units);
    if (n_units < 4 || n_units % 4 != 0 || n_units >= n_bytes - 4 || bytes[n_bytes - 1] != 0)
        return -1;
    size_t n_texts = n_bytes - 4 - n_units;
    uint32_t *units = arena_array(arena, uint32_t, n_units / 4);
    char *texts = arena_alloc(arena, n_texts);
    memcpy(units, bytes + 4, n_units);
    memcpy(texts, bytes + 4 + n_units, n_texts);
    for (size_t at = 0; at < n_texts; at += strlen(texts + at) + 1)
        if (tokenizer_utf8_end(texts + at, strlen(texts + at)) < strlen(texts + at))
            return -1;
    map->units = units;
    map->n_units = n_units / 4;
    map->texts = texts;
    map->n_texts = n_texts;
    return 0;
}
