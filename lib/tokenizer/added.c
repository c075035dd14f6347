/*
 * added.c - search by first byte, then by narrowing
 *
 * memchr finds the places to look at where all begin alike, as they mostly do ('<'); there the
 * sorted list is narrowed byte by byte, for some tokenizers have a thousand of them.
 */
#include "tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *x, const void *y)
{
    const struct added_token *a = x, *b = y;
    size_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int order = memcmp(a->text, b->text, n);

    return order != 0 ? order : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

void added_init(struct added_tokens *added, struct added_token *items, int n)
{
    int i = 0;

    if (n > 0)
        qsort(items, (size_t)n, sizeof *items, compare);
    added->items = items;
    added->n = n;
    for (int byte = 0; byte <= 256; byte++) {
        while (i < n && (unsigned char)items[i].text[0] < byte)
            i++;
        added->start[byte] = i;
    }
}

/* The first item of first..end-1, all longer than depth and alike before it, whose byte there is
 * at least byte; or end. */
static int lower_bound(const struct added_token *items, int first, int end, size_t depth, int byte)
{
    while (first < end) {
        int middle = first + (end - first) / 2;

        if ((unsigned char)items[middle].text[depth] < byte)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

const struct added_token *added_match(const struct added_tokens *added, const char *text,
                                      size_t n_bytes)
{
    const struct added_token *items = added->items, *found = NULL;
    int byte = (unsigned char)text[0], first = added->start[byte], end = added->start[byte + 1];

    for (size_t depth = 1; first < end; depth++) {
        if (items[first].n_bytes == depth) {
            found = &items[first];
            while (first < end && items[first].n_bytes == depth)
                first++;
        }
        if (depth == n_bytes)
            break;
        byte = (unsigned char)text[depth];
        first = lower_bound(items, first, end, depth, byte);
        end = lower_bound(items, first, end, depth, byte + 1);
    }
    return found;
}

const struct added_token *added_find(const struct added_tokens *added, const char *text,
                                     size_t n_bytes, size_t *at)
{
    if (added->n == 0)
        return NULL;
    int one_first = added->items[0].text[0] == added->items[added->n - 1].text[0];
    for (size_t i = 0; i < n_bytes; i++) {
        if (one_first) {
            const char *next = memchr(text + i, added->items[0].text[0], n_bytes - i);

            if (!next)
                return NULL;
            i = (size_t)(next - text);
        }
        int first = (unsigned char)text[i];
        if (added->start[first] == added->start[first + 1])
            continue;
        const struct added_token *token = added_match(added, text + i, n_bytes - i);
        if (token) {
            *at = i;
            return token;
        }
    }
    return NULL;
}
