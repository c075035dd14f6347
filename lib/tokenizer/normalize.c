/*
 * normalize.c - the normalizing steps, and what must be UTF-8
 */
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode/nfc.h"
#include "tokenizer/unicode/unicode.h"

/* One call. Steps stop once out has more than n_max bytes, which the caller sees. */
struct normalizing {
    const struct tokenizer *tokenizer;
    struct tokenizer_budget *budget;
    bool is_within;
    struct err *err;
};

static void replace(const struct normal_step *step, const struct str *text, size_t n_max,
                    struct str *out)
{
    const char *from = str_text(text), *end = from + text->length, *found;

    while (from < end && out->length <= n_max &&
           (found = memmem(from, (size_t)(end - from), step->a, step->n_a))) {
        str_add_bytes(out, from, (size_t)(found - from));
        if (step->n_b <= n_max)
            str_add_bytes(out, step->b, step->n_b);
        else
            str_add_bytes(out, step->b, n_max + 1);
        from = found + step->n_a;
    }
    str_add_bytes(out, from, (size_t)(end - from));
}

static void replace_pattern(const struct normal_step *step, const char *text, size_t n_bytes,
                            size_t n_max, struct normalizing *p, struct str *out)
{
    size_t n;

    for (size_t at = 0; at < n_bytes && out->length <= n_max; at += n) {
        n = pattern_match(step->pattern, text + at, n_bytes - at, &p->budget->n_vain);
        if (p->budget->n_vain > budget_vain_max(p->budget))
            return;
        if (n > 0) {
            str_add_bytes(out, step->b, step->n_b);
            continue;
        }
        unicode_decode((const unsigned char *)text + at, &n);
        str_add_bytes(out, text + at, n);
    }
}

static void strip(const struct normal_step *step, bool is_within, const char *text, size_t n_bytes,
                  struct str *out)
{
    size_t first = 0, last = 0, n;

    for (size_t at = 0; at < n_bytes; at += n) {
        bool is_space = unicode_is_space(unicode_decode((const unsigned char *)text + at, &n));

        if (is_space && at == first)
            first = at + n;
        last = is_space ? last : at + n;
    }
    first = step->n_a && !is_within ? first : 0;
    last = step->n_b ? last : n_bytes;
    if (first < last)
        str_add_bytes(out, text + first, last - first);
}

int tokenizer_refuse_pattern(const struct tokenizer *tokenizer, const struct pattern *pattern,
                             const struct tokenizer_budget *budget, struct err *err)
{
    return err_set(
        err, ERR_DATA,
        "%s: pattern '%.200s' takes more than %zu steps for a text of %zu bytes (hint: a "
        "repetition that often reads far and then fails, as (a+)+b on many a's)",
        tokenizer->name, pattern->text, budget_vain_max(budget), budget->n_text);
}

static int refuse_size(const struct normalizing *p)
{
    return err_set(p->err, ERR_DATA,
                   "%s: the normalizer makes more than %zu bytes of a text of %zu (hint: its "
                   "replacements are longer than what they replace)",
                   p->tokenizer->name, budget_written_max(p->budget), p->budget->n_text);
}

/* One step, of text in place. */
static int normalize_step(struct normalizing *p, const struct normal_step *step, struct str *text)
{
    struct str out = { 0 };
    size_t max = budget_written_max(p->budget);
    size_t left = max > p->budget->n_written ? max - p->budget->n_written : 0;

    CHECK(step->kind != NORMAL_CHARSMAP);
    if (step->kind == NORMAL_REPLACE) {
        replace(step, text, left, &out);
    } else if (step->kind == NORMAL_NFC) {
        nfc_append(&out, str_text(text), text->length);
    } else if (step->kind == NORMAL_CLUSTERS) {
        charsmap_apply_clusters(&p->tokenizer->charsmap, str_text(text), text->length, left, &out);
    } else if (step->kind == NORMAL_PATTERN) {
        replace_pattern(step, str_text(text), text->length, left, p, &out);
    } else if (step->kind == NORMAL_STRIP) {
        strip(step, p->is_within, str_text(text), text->length, &out);
    } else {
        if (text->length > 0 && !p->is_within)
            str_add_bytes(&out, step->a, step->n_a);
        str_add_bytes(&out, str_text(text), text->length);
    }
    str_release(text);
    *text = out;
    p->budget->n_written += out.length;
    if (p->budget->n_vain > budget_vain_max(p->budget))
        return tokenizer_refuse_pattern(p->tokenizer, step->pattern, p->budget, p->err);
    return out.length > left ? refuse_size(p) : 0;
}

int tokenizer_normalize(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                        bool is_within, struct tokenizer_budget *budget, struct str *out,
                        struct err *err)
{
    struct normalizing p = { tokenizer, budget, is_within, err };
    struct str now = { 0 };
    int rc = 0;

    if (tokenizer->n_normal == 1 && tokenizer->normal[0].kind == NORMAL_CHARSMAP) {
        struct charsmap map = tokenizer->charsmap;
        size_t start = out->length, max = budget_written_max(budget);

        map.is_within = is_within;
        if (budget->n_written > max ||
            charsmap_apply(&map, text, n_bytes, start + max - budget->n_written, out) < 0)
            return refuse_size(&p);
        budget->n_written += out->length - start;
        return 0;
    }
    str_add_bytes(&now, text, n_bytes);
    for (int i = 0; i < tokenizer->n_normal && rc == 0; i++)
        rc = normalize_step(&p, &tokenizer->normal[i], &now);
    if (rc == 0)
        str_add_bytes(out, str_text(&now), now.length);
    str_release(&now);
    return rc;
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
