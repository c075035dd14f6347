/*
 * nfc.c - decompose, order, compose, where it is needed
 *
 * Nearly all text is inert: marks and what composes are few. So text is copied up to the first code
 * point that is not inert; a stretch from the inert one before it up to the next inert one is
 * worked on alone, for nothing crosses the start of an inert code point.
 */
#include "tokenizer/unicode/nfc.h"

#include <stdint.h>
#include <stdlib.h>

#include "tokenizer/unicode/unicode.h"

#define HANGUL_S 0xac00u
#define HANGUL_L 0x1100u
#define HANGUL_V 0x1161u
#define HANGUL_T 0x11a7u
enum { N_L = 19, N_V = 21, N_T = 28, N_S = N_L * N_V * N_T };

/* A decomposed code point; index keeps the order of those of one class. */
struct mark {
    uint32_t code, class, index;
};

size_t nfc_length(const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0, inert = 0, length;

    while (at < n_bytes) {
        if (bytes[at] < 0xcc) { /* below U+0300 all are inert */
            inert = at;
            at += bytes[at] < 0x80 ? 1 : 2;
            continue;
        }
        if (!unicode_is_inert(unicode_decode(bytes + at, &length)))
            return inert;
        inert = at;
        at += length;
    }
    return n_bytes;
}

static void put_mark(struct str *marks, uint32_t code)
{
    struct mark mark = { code, unicode_run_value(unicode_class_runs, unicode_n_class_runs, code),
                         (uint32_t)(marks->length / sizeof mark) };

    str_add_bytes(marks, &mark, sizeof mark);
}

static const struct unicode_pair *find_pair(uint32_t code)
{
    int low = 0, high = unicode_n_pairs;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (unicode_pairs[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < unicode_n_pairs && unicode_pairs[low].code == code ? &unicode_pairs[low] : NULL;
}

static void decompose(struct str *marks, uint32_t code)
{
    uint32_t behind[8], s = code - HANGUL_S;
    int n = 0;

    if (s < N_S) {
        put_mark(marks, HANGUL_L + s / (N_V * N_T));
        put_mark(marks, HANGUL_V + s % (N_V * N_T) / N_T);
        if (s % N_T)
            put_mark(marks, HANGUL_T + s % N_T);
        return;
    }
    for (const struct unicode_pair *pair; n < 8 && (pair = find_pair(code)); code = pair->first)
        if (pair->second)
            behind[n++] = pair->second;
    put_mark(marks, code);
    while (n > 0)
        put_mark(marks, behind[--n]);
}

static int compare_marks(const void *x, const void *y)
{
    const struct mark *a = x, *b = y;

    if (a->class != b->class)
        return a->class < b->class ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* Put each run of marks in the order of their classes. */
static void order(struct mark *marks, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        bool is_sorted = true;

        end = i + 1;
        if (marks[i].class == 0)
            continue;
        for (; end < n && marks[end].class != 0; end++)
            is_sorted &= marks[end].class >= marks[end - 1].class;
        if (!is_sorted)
            qsort(marks + i, end - i, sizeof *marks, compare_marks);
    }
}

/* What two become, or 0. */
static uint32_t compose_pair(uint32_t first, uint32_t second)
{
    uint32_t l = first - HANGUL_L, v = second - HANGUL_V, s = first - HANGUL_S;
    uint32_t t = second - HANGUL_T;
    int low = 0, high = unicode_n_composed;

    if (l < N_L && v < N_V)
        return HANGUL_S + (l * N_V + v) * N_T;
    if (s < N_S && s % N_T == 0 && t > 0 && t < N_T)
        return first + t;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct unicode_pair *pair = &unicode_pairs[unicode_composed[middle]];

        if (pair->first == first && pair->second == second)
            return pair->code;
        if (pair->first < first || (pair->first == first && pair->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Compose in place; how many are left. */
static size_t compose(struct mark *marks, size_t n)
{
    size_t starter = SIZE_MAX, count = 0;

    for (size_t i = 0; i < n; i++) {
        struct mark mark = marks[i];
        /* Nothing between the starter and this one blocks it: none, or only lesser classes. */
        bool is_free = starter != SIZE_MAX &&
                       (starter + 1 == count ||
                        (marks[count - 1].class < mark.class && marks[count - 1].class != 0));
        uint32_t code = is_free ? compose_pair(marks[starter].code, mark.code) : 0;

        if (code) {
            marks[starter].code = code;
            continue;
        }
        if (mark.class == 0)
            starter = count;
        marks[count++] = mark;
    }
    return count;
}

/* Work on one stretch; how many bytes of text it has. */
static size_t append_stretch(struct str *out, struct str *marks, const unsigned char *text,
                             size_t n_bytes)
{
    size_t at = 0, length;

    str_clear(marks);
    do {
        decompose(marks, unicode_decode(text + at, &length));
        at += length;
    } while (at < n_bytes && !unicode_is_inert(unicode_decode(text + at, &length)));
    struct mark *items = (struct mark *)(void *)marks->data;
    size_t n = marks->length / sizeof *items;
    order(items, n);
    n = compose(items, n);
    for (size_t i = 0; i < n; i++) {
        char bytes[4];

        str_add_bytes(out, bytes, unicode_encode(bytes, items[i].code));
    }
    return at;
}

void nfc_append(struct str *out, const char *text, size_t n_bytes)
{
    struct str marks = { 0 };

    while (n_bytes > 0) {
        size_t n = nfc_length(text, n_bytes);

        str_add_bytes(out, text, n);
        text += n;
        n_bytes -= n;
        if (n_bytes == 0)
            break;
        n = append_stretch(out, &marks, (const unsigned char *)text, n_bytes);
        text += n;
        n_bytes -= n;
    }
    str_release(&marks);
}
