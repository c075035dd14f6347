/*
 * added.c - search by first byte
 *
 * There are seldom more than a few hundred, nearly all starting with '<': memchr finds the places
 * to look at, and a plain comparison decides. An automaton would be faster only on text full of
 * '<'.
 */
#include "tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *x, const void *y)
{
    const struct added_token *a = x, *b = y;
    unsigned char first_a = (unsigned char)a->text[0], first_b = (unsigned char)b->text[0];

    if (first_a != first_b)
        return first_a < first_b ? -1 : 1;
    if (a->n_bytes != b->n_bytes)
        return a->n_bytes > b->n_bytes ? -1 : 1;
    return memcmp(a->text, b->text, a->n_bytes);
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

const struct added_token *added_match(const struct added_tokens *added, const char *text,
                                      size_t n_bytes)
{
    int byte = (unsigned char)text[0];

    for (int i = added->start[byte]; i < added->start[byte + 1]; i++) {
        const struct added_token *token = &added->items[i];

        if (token->n_bytes <= n_bytes && memcmp(token->text, text, token->n_bytes) == 0)
            return token;
    }
    return NULL;
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
        const struct added_token *token = added_match(added, text + i, n_bytes - i);
        if (token) {
            *at = i;
            return token;
        }
    }
    return NULL;
}
