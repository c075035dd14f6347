/*
 * answer.c - patterns and cuts
 */
#include "eval/answer.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MATCH_LIMIT 1000000u /* steps of one search */
#define MATCH_HEAP_KIB 65536u

struct answer_pattern {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

int answer_pattern_create(struct answer_pattern **out, const char *text, struct err *err)
{
    struct answer_pattern *p = calloc(1, sizeof *p);
    PCRE2_UCHAR why[128];
    PCRE2_SIZE at = 0;
    int number = 0;

    if (!p)
        return err_set(err, ERR_DEVICE, "out of host memory");
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &number,
                            &at, NULL);
    if (!p->code) {
        pcre2_get_error_message(number, why, sizeof why);
        free(p);
        return err_set(err, ERR_CONFIG, "pattern %s: %s, at byte %zu", text, (const char *)why,
                       (size_t)at);
    }
    p->data = pcre2_match_data_create_from_pattern(p->code, NULL);
    p->limits = pcre2_match_context_create(NULL);
    if (!p->data || !p->limits) {
        answer_pattern_destroy(p);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(p->limits, MATCH_HEAP_KIB);
    *out = p;
    return 0;
}

void answer_pattern_destroy(struct answer_pattern *p)
{
    if (!p)
        return;
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->limits);
    pcre2_code_free(p->code);
    free(p);
}

/* A walk over all matches, as re.finditer goes: behind an empty one the next is not empty there. */
struct match_walk {
    const struct answer_pattern *pattern;
    const char *text;
    size_t n_bytes, at;
    bool was_empty;
};

/* The next match's [begin, end) pairs, of the whole and of each group; NULL at the end. */
static const PCRE2_SIZE *next_match(struct match_walk *w)
{
    if (w->at > w->n_bytes)
        return NULL;
    int n = pcre2_match(w->pattern->code, (PCRE2_SPTR)w->text, w->n_bytes, w->at,
                        w->was_empty ? PCRE2_NOTEMPTY_ATSTART : 0, w->pattern->data,
                        w->pattern->limits);
    if (n <= 0)
        return NULL;
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(w->pattern->data);
    w->was_empty = ends[0] == ends[1];
    w->at = ends[1];
    return ends[0] > ends[1] ? NULL : ends; /* \K behind the end */
}

/* What findall gives of a match; 0 where all groups are empty. */
static int value_of(const struct answer_pattern *p, const PCRE2_SIZE *ends, size_t *begin,
                    size_t *end)
{
    uint32_t n = pcre2_get_ovector_count(p->data);

    for (uint32_t i = n > 1 ? 1 : 0; i < n; i++) {
        if (ends[2 * i] == PCRE2_UNSET || (n > 2 && ends[2 * i] == ends[2 * i + 1]))
            continue;
        *begin = ends[2 * i];
        *end = ends[2 * i + 1];
        return 1;
    }
    *begin = *end = 0;
    return n == 2; /* one group gives a text, be it empty; several a tuple */
}

int answer_pattern_find(const struct answer_pattern *p, const char *text, size_t n_bytes, int which,
                        struct str *out)
{
    int n_matches = 0;

    for (int pass = which < 0 ? 0 : 1; pass < 2; pass++) {
        struct match_walk w = { .pattern = p, .text = text, .n_bytes = n_bytes };
        int wanted = which < 0 ? n_matches + which : which, number = 0;
        const PCRE2_SIZE *ends;
        size_t begin, end;

        while ((ends = next_match(&w))) {
            if (pass == 1 && number++ == wanted) {
                int found = value_of(p, ends, &begin, &end);

                if (found)
                    str_add_bytes(out, text + begin, end - begin);
                return found;
            }
            n_matches += pass == 0;
        }
    }
    return 0;
}

void answer_pattern_remove(const struct answer_pattern *p, struct str *text)
{
    struct str kept = { 0 };
    struct match_walk w = { .pattern = p, .text = str_text(text), .n_bytes = text->length };
    const PCRE2_SIZE *ends;
    size_t at = 0;

    while ((ends = next_match(&w))) {
        str_add_bytes(&kept, w.text + at, ends[0] - at);
        at = ends[1];
    }
    str_add_bytes(&kept, w.text + at, w.n_bytes - at);
    str_release(text);
    *text = kept;
}

int answer_cut(struct str *text, const char *const *stops)
{
    const char *bytes = str_text(text);
    size_t n = text->length;

    for (; *stops; stops++) {
        const char *at = **stops ? memmem(bytes, n, *stops, strlen(*stops)) : NULL;

        if (at)
            n = (size_t)(at - bytes);
    }
    if (n == text->length)
        return 0;
    struct str kept = { 0 };
    str_add_bytes(&kept, bytes, n);
    str_release(text);
    *text = kept;
    return 1;
}

/* Bytes of the white space that text begins with, by str.isspace; 0 if it begins with none. */
static size_t space_length(const char *text, size_t n)
{
    static const char *const wide[] = { "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                        "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                        "\xe2\x81\x9f", "\xe3\x80\x80" };
    unsigned char c = n ? (unsigned char)*text : 'x';

    if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (n >= strlen(wide[i]) && !memcmp(text, wide[i], strlen(wide[i])))
            return strlen(wide[i]);
    /* U+2000 to U+200A */
    return n >= 3 && !memcmp(text, "\xe2\x80", 2) && (unsigned char)text[2] >= 0x80 &&
                   (unsigned char)text[2] <= 0x8a
               ? 3
               : 0;
}

void answer_strip(struct str *text)
{
    const char *bytes = str_text(text);
    size_t begin = 0, end = text->length, length;

    while ((length = space_length(bytes + begin, end - begin)))
        begin += length;
    for (int again = 1; again;) {
        again = 0;
        for (size_t back = 1; back <= 3 && begin + back <= end && !again; back++)
            if (space_length(bytes + end - back, back) == back) {
                end -= back;
                again = 1;
            }
    }
    struct str kept = { 0 };
    str_add_bytes(&kept, bytes + begin, end - begin);
    str_release(text);
    *text = kept;
}
