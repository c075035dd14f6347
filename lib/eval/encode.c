/*
 * encode.c - contexts and continuations as tokens
 */
#include "eval/encode.h"

#include <string.h>

#include "base/num.h"
#include "eval/answer.h"

static int begins_with_frame(const struct tokenizer *tokenizer, const int32_t *before, int n,
                             const char *text, size_t n_bytes)
{
    struct str first = { 0 };

    if (n == 0)
        return 0;
    tokenizer_decode(tokenizer, before, 1, &first);
    int is = first.length > 0 && n_bytes >= first.length &&
             !memcmp(text, str_text(&first), first.length);
    str_release(&first);
    return is;
}

static int add_all(struct token_list *out, const int32_t *ids, int n, struct err *err)
{
    for (int i = 0; i < n; i++)
        if (token_list_add(out, ids[i], err) < 0)
            return -1;
    return 0;
}

int encode_text(const struct tokenizer *tokenizer, struct tokenizer_cache *cache, const char *text,
                size_t n_bytes, struct token_list *out, struct err *err)
{
    const int32_t *before, *after;
    int n_before, n_after;

    tokenizer_frame(tokenizer, &before, &n_before, &after, &n_after);
    if (begins_with_frame(tokenizer, before, n_before, text, n_bytes))
        n_before = n_after = 0;
    if (add_all(out, before, n_before, err) < 0 ||
        tokenizer_encode_cached(tokenizer, cache, text, n_bytes, out, err) < 0)
        return -1;
    return add_all(out, after, n_after, err);
}

int encode_prompt(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                  const char *text, bool is_framed, struct token_list *out, struct err *err)
{
    int64_t before = out->n;
    int status = is_framed ? tokenizer_encode_cached(tokenizer, cache, text, strlen(text), out, err)
                           : encode_text(tokenizer, cache, text, strlen(text), out, err);

    if (!status && out->n == before)
        status = token_list_add(out, max_int(0, tokenizer_end_of_text(tokenizer)), err);
    return status;
}

/* len(text.rstrip()): a letter in front keeps the left as it is. */
static size_t length_stripped(const char *text, size_t n_bytes)
{
    unsigned char last = n_bytes ? (unsigned char)text[n_bytes - 1] : 'x';
    struct str copy = { 0 };

    if (last > ' ' && last < 0x80)
        return n_bytes;
    str_add_char(&copy, 'x');
    str_add_bytes(&copy, text, n_bytes);
    answer_strip(&copy);
    size_t length = copy.length - 1;
    str_release(&copy);
    return length;
}

int encode_context(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                   const char *context, size_t *n_bytes, struct token_list *out, struct err *err)
{
    const int32_t *before, *after;
    int n_before, n_after;

    *n_bytes = length_stripped(context, strlen(context));
    if (*n_bytes > 0)
        return encode_text(tokenizer, cache, context, *n_bytes, out, err);
    tokenizer_frame(tokenizer, &before, &n_before, &after, &n_after);
    return token_list_add(
        out, n_before > 0 ? before[0] : max_int(0, tokenizer_end_of_text(tokenizer)), err);
}

int encode_continuation(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                        const char *whole, size_t n_bytes, int64_t n_context, bool has_context,
                        struct token_list *out, struct err *err)
{
    struct token_list all = { 0 };
    int64_t skip = has_context ? n_context : 0;
    int status = has_context ? encode_text(tokenizer, cache, whole, n_bytes, &all, err)
                             : tokenizer_encode_cached(tokenizer, cache, whole, n_bytes, &all, err);

    if (!status && all.n <= skip)
        status = err_set(err, ERR_DATA, "a continuation that adds no tokens");
    if (!status)
        status = add_all(out, all.ids + skip, (int)(all.n - skip), err);
    token_list_release(&all);
    return status;
}
