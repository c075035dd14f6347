/*
 * split.c - one pass, one table look-up a code point
 */
#include "tokenizer/split.h"

#include "tokenizer/unicode.h"

/* Bytes from `at` on that are all of one class. */
static size_t run_length(const unsigned char *text, size_t n, size_t at, enum unicode_class class)
{
    size_t start = at, n_bytes;

    while (at < n && unicode_class(unicode_decode(text + at, &n_bytes)) == class)
        at += n_bytes;
    return at - start;
}

/* Length of 's 't 're 've 'm 'll 'd at text, or 0. */
static size_t contraction_length(const unsigned char *text, size_t n)
{
    if (n < 2 || text[0] != '\'')
        return 0;
    switch (text[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return 2;
    case 'r':
    case 'v':
        return n > 2 && text[2] == 'e' ? 3 : 0;
    case 'l':
        return n > 2 && text[2] == 'l' ? 3 : 0;
    default:
        return 0;
    }
}

/*
 * White space leaves its last code point to the word behind it, if there is one and it isn't all
 * that there is: \s+(?!\S) gives back one, and what was given back matches " ?..." there or the
 * last \s+.
 */
static size_t space_length(const unsigned char *text, size_t n)
{
    size_t length = run_length(text, n, 0, UNICODE_SPACE), last = length - 1;

    if (length == n)
        return length;
    while ((text[last] & 0xc0) == 0x80)
        last--;
    return last > 0 ? last : length;
}

size_t split_word(const char *word, size_t n)
{
    const unsigned char *text = (const unsigned char *)word;
    size_t length = contraction_length(text, n), n_bytes;

    if (length > 0)
        return length;
    size_t at = text[0] == ' ' && n > 1;
    enum unicode_class class = unicode_class(unicode_decode(text + at, &n_bytes));
    if (class == UNICODE_SPACE)
        return space_length(text, n);
    return at + run_length(text, n, at, class);
}
