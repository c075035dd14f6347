/*
 * normalize.c - the normalizing steps, and what must be UTF-8
 */
#include <string.h>

#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

static void replace(const struct normal_step *step, struct str *text)
{
    struct str out = { 0 };
    const char *from = str_text(text), *end = from + text->length, *found;

    while (from < end && (found = memmem(from, (size_t)(end - from), step->a, step->n_a))) {
        str_add_bytes(&out, from, (size_t)(found - from));
        str_add_bytes(&out, step->b, step->n_b);
        from = found + step->n_a;
    }
    str_add_bytes(&out, from, (size_t)(end - from));
    str_release(text);
    *text = out;
}

static void replace_pattern(const struct normal_step *step, const char *text, size_t n_bytes,
                            struct str *out)
{
    size_t n;

    for (size_t at = 0; at < n_bytes; at += n) {
        n = pattern_match(step->pattern, text + at, n_bytes - at);
        if (n > 0) {
            str_add_bytes(out, step->b, step->n_b);
            continue;
        }
        unicode_decode((const unsigned char *)text + at, &n);
        str_add_bytes(out, text + at, n);
    }
}

static void strip(const struct normal_step *step, int is_within, const char *text, size_t n_bytes,
                  struct str *out)
{
    size_t first = 0, last = 0, n;

    for (size_t at = 0; at < n_bytes; at += n) {
        int is_space = unicode_is_space(unicode_decode((const unsigned char *)text + at, &n));

        if (is_space && at == first)
            first = at + n;
        last = is_space ? last : at + n;
    }
    first = step->n_a && !is_within ? first : 0;
    last = step->n_b ? last : n_bytes;
    if (first < last)
        str_add_bytes(out, text + first, last - first);
}

/* One step, of text in place. */
static void normalize_step(const struct tokenizer *t, const struct normal_step *step, int is_within,
                           struct str *text)
{
    struct str out = { 0 };

    CHECK(step->kind != NORMAL_CHARSMAP);
    if (step->kind == NORMAL_REPLACE) {
        replace(step, text);
        return;
    }
    if (step->kind == NORMAL_NFC) {
        nfc_append(&out, str_text(text), text->length);
    } else if (step->kind == NORMAL_CLUSTERS) {
        charsmap_apply_clusters(&t->charsmap, str_text(text), text->length, &out);
    } else if (step->kind == NORMAL_PATTERN) {
        replace_pattern(step, str_text(text), text->length, &out);
    } else if (step->kind == NORMAL_STRIP) {
        strip(step, is_within, str_text(text), text->length, &out);
    } else {
        if (text->length > 0 && !is_within)
            str_add_bytes(&out, step->a, step->n_a);
        str_add_bytes(&out, str_text(text), text->length);
    }
    str_release(text);
    *text = out;
}

void tokenizer_normalize(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                         int is_within, struct str *out)
{
    struct str now = { 0 };

    if (tokenizer->n_normal == 1 && tokenizer->normal[0].kind == NORMAL_CHARSMAP) {
        struct charsmap map = tokenizer->charsmap;

        map.is_within = is_within;
        charsmap_apply(&map, text, n_bytes, out);
        return;
    }
    str_add_bytes(&now, text, n_bytes);
    for (int i = 0; i < tokenizer->n_normal; i++)
        normalize_step(tokenizer, &tokenizer->normal[i], is_within, &now);
    str_add_bytes(out, str_text(&now), now.length);
    str_release(&now);
}

size_t tokenizer_utf8_end(const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;

    while (at < n_bytes) {
        uint64_t eight;

        if (n_bytes - at >= sizeof eight) { /* nearly all text is ASCII */
            memcpy(&eight, bytes + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        int length = bytes[at] < 0x80 ? 1 : str_utf8_length(bytes + at, n_bytes - at);

        if (length == 0)
            break;
        at += (size_t)length;
    }
    return at;
}
