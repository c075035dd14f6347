/*
 * token_finder.c - which token a byte of a text went into
 *
 * Encoding notes only sections. Within one, its ids are laid over its normalized text again, each
 * over as many bytes as it stands for; what stands for nothing there (a space that was put in
 * front) takes none. Where a token's bytes are not what comes next (what is unknown, or what a
 * split removed), the place where they stand shortly behind counts.
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode/unicode.h"

/* How far behind its place a token is looked for. */
#define WINDOW_BYTES ((size_t)256)

void token_sections_release(struct token_sections *sections)
{
    free(sections->items);
    *sections = (struct token_sections){ 0 };
}

int token_sections_add(struct token_sections *sections, size_t begin, size_t end, int64_t first,
                       int64_t n, struct err *err)
{
    if (!sections)
        return 0;
    if (sections->n == sections->capacity) {
        int64_t capacity = sections->capacity ? 2 * sections->capacity : 16;
        struct token_section *items = realloc(sections->items, sizeof *items * (size_t)capacity);

        if (!items)
            return err_set(err, ERR_DEVICE, "out of host memory");
        sections->items = items;
        sections->capacity = capacity;
    }
    sections->items[sections->n++] = (struct token_section){ begin, end, first, n };
    return 0;
}

void token_finder_init(struct token_finder *finder, const struct tokenizer *tokenizer,
                       const struct token_sections *sections, const char *text, const int32_t *ids)
{
    *finder = (struct token_finder){
        .tokenizer = tokenizer, .sections = sections, .text = text, .ids = ids, .section = -1
    };
}

void token_finder_release(struct token_finder *finder)
{
    str_release(&finder->normal);
    finder->section = -1;
}

/* ---- one token ---- */

static size_t skip_char(const char *text, size_t n_bytes, size_t at)
{
    size_t n;

    if (at >= n_bytes)
        return n_bytes;
    unicode_decode((const unsigned char *)text + at, &n);
    return at + n;
}

static size_t skip_spaces(const char *text, size_t n_bytes, size_t at)
{
    size_t n;

    while (at < n_bytes && unicode_is_space(unicode_decode((const unsigned char *)text + at, &n)))
        at += n;
    return at;
}

/* Where token bytes end that begin at `at`, -1 if others stand there. A space may be a mark; in
 * front it may have been put there, and takes nothing. */
static ptrdiff_t match_bytes(const struct str *text, size_t at, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (at < text->length && text->data[at] == bytes[i])
            at++;
        else if (bytes[i] != ' ')
            return -1;
        else if (text->length - at >= 3 && memcmp(text->data + at, BPE_SPACE, 3) == 0)
            at += 3;
        else if (i > 0)
            return -1;
    }
    return (ptrdiff_t)at;
}

static ptrdiff_t match_added(const struct str *text, size_t at, const struct added_token *token)
{
    size_t start = token->takes_left ? skip_spaces(str_text(text), text->length, at) : at;

    if (text->length - start < token->n_bytes ||
        memcmp(str_text(text) + start, token->text, token->n_bytes) != 0)
        return -1;
    start += token->n_bytes;
    return (ptrdiff_t)(token->takes_right ? skip_spaces(str_text(text), text->length, start)
                                          : start);
}

static bool is_unknown(const struct tokenizer *t, int32_t id)
{
    return !t->added_by_id[id] && (id == t->bpe.unknown || id >= t->bpe.n_ids);
}

/* Where what an id stands for ends, -1 if it does not stand at `at` or is unknown. */
static ptrdiff_t match_id(const struct tokenizer *t, const struct str *text, size_t at, int32_t id)
{
    if (is_unknown(t, id))
        return -1;
    if (t->added_by_id[id])
        return match_added(text, at, t->added_by_id[id]);
    return match_bytes(text, at, t->bpe.tokens[id].bytes, t->bpe.tokens[id].n_bytes);
}

/* A character, or as many as there are before what the next id stands for. */
static size_t end_of_unknown(const struct token_finder *f)
{
    const struct tokenizer *t = f->tokenizer;
    size_t at = skip_char(str_text(&f->normal), f->normal.length, f->at), end = at;

    if (!t->bpe.fuse_unknown)
        return at;
    for (; end < f->normal.length && end - at < WINDOW_BYTES;
         end = skip_char(str_text(&f->normal), f->normal.length, end))
        if (match_id(t, &f->normal, end, f->ids[f->id + 1]) > (ptrdiff_t)end)
            return end;
    return at;
}

/* How far the id reaches that is the next at f->at; it is not the section's last. */
static size_t end_of_next(const struct token_finder *f)
{
    const struct tokenizer *t = f->tokenizer;
    int32_t id = f->ids[f->id];
    ptrdiff_t end = match_id(t, &f->normal, f->at, id);

    if (end >= 0)
        return (size_t)end;
    if (is_unknown(t, id))
        return end_of_unknown(f);
    for (size_t at = f->at; at < f->normal.length && at - f->at < WINDOW_BYTES;) {
        at = skip_char(str_text(&f->normal), f->normal.length, at);
        end = match_id(t, &f->normal, at, id);
        if (end > (ptrdiff_t)at)
            return (size_t)end;
    }
    return f->at;
}

/* ---- sections ---- */

/* What encoding has done already, so that it is within bounds. */
static void normalize(const struct token_finder *f, const char *text, size_t n, struct str *out)
{
    struct tokenizer_budget budget = { .n_text = SIZE_MAX / 128 };
    struct err ignored;

    tokenizer_normalize(f->tokenizer, text, n, false, &budget, out, &ignored);
}

static void open_section(struct token_finder *f, int64_t i)
{
    const struct token_section *s = &f->sections->items[i];
    const char *text = f->text + s->begin;
    size_t n = s->end - s->begin;

    str_clear(&f->normal);
    if (f->tokenizer->n_normal == 0)
        str_add_bytes(&f->normal, text, n);
    else
        normalize(f, text, n, &f->normal);
    f->is_same = f->normal.length == n && memcmp(str_text(&f->normal), text, n) == 0;
    f->section = i;
    f->at = 0;
    f->id = s->first;
}

/* Where byte `at` of the section's text is in the normalized one. */
static size_t normal_place(const struct token_finder *f, const struct token_section *s, size_t at)
{
    struct str before = { 0 };
    size_t length = at;

    if (!f->is_same) {
        normalize(f, f->text + s->begin, at, &before);
        length = before.length;
        str_release(&before);
    }
    return length;
}

static int64_t find_section(const struct token_sections *sections, size_t at)
{
    int64_t low = 0, high = sections->n;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (sections->items[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t token_finder_find(struct token_finder *f, size_t at)
{
    int64_t i = find_section(f->sections, at);

    if (i == f->sections->n)
        return i > 0 ? f->sections->items[i - 1].first + f->sections->items[i - 1].n : 0;
    const struct token_section *s = &f->sections->items[i];
    if (at <= s->begin || s->n <= 1)
        return s->first;
    if (f->section != i)
        open_section(f, i);
    size_t place = normal_place(f, s, at - s->begin), end;
    if (place < f->at) {
        f->at = 0;
        f->id = s->first;
    }
    for (; f->id + 1 < s->first + s->n; f->id++, f->at = end)
        if ((end = end_of_next(f)) > place)
            break;
    return f->id;
}
