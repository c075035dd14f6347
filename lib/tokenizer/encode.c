/*
 * encode.c - text to ids
 *
 * Text is cut at added tokens, the rest normalized and split into pieces, whose words
 * encode_words.c makes ids of.
 */
#include <string.h>

#include "tokenizer/encode_impl.h"
#include "tokenizer/unicode/nfc.h"
#include "tokenizer/unicode/unicode.h"

static int encode_split(struct encoder *e, int step, const char *text, size_t n_bytes);

/* What a split gives: a stretch that is a match or lies between matches. */
struct split_stretch {
    size_t start, end;
    bool is_match;
};

static bool has_read_too_much(const struct encoder *e)
{
    return e->budget.n_vain > budget_vain_max(&e->budget);
}

/* The stretch that begins at `at`; *next is the match behind it if it was found on the way. */
static struct split_stretch next_stretch(struct encoder *e, const struct split_step *step,
                                         const char *text, size_t n_bytes, size_t at,
                                         size_t *n_known)
{
    size_t start = at, length = *n_known;

    *n_known = 0;
    while (length == 0 && (at = pattern_skip(&step->pattern, text, n_bytes, at)) < n_bytes) {
        length = pattern_match(&step->pattern, text + at, n_bytes - at, &e->budget.n_vain);
        if (length == 0) {
            if (has_read_too_much(e))
                break;
            size_t n;

            unicode_decode((const unsigned char *)text + at, &n);
            at += n;
        }
    }
    if (at == start)
        return (struct split_stretch){ at, at + length, !step->inverted };
    *n_known = length;
    return (struct split_stretch){ start, at, step->inverted };
}

/* Whether a stretch goes on with the one before it. */
static int joins(enum split_behavior behavior, struct split_stretch before,
                 struct split_stretch stretch, bool follows_match)
{
    switch (behavior) {
    case SPLIT_MERGED_WITH_PREVIOUS:
        return stretch.is_match && !follows_match;
    case SPLIT_MERGED_WITH_NEXT:
        return before.is_match && !stretch.is_match;
    case SPLIT_CONTIGUOUS:
        return before.is_match == stretch.is_match;
    default:
        return 0;
    }
}

/* The common last step, whose pattern matches all: match after match. How far that went. */
static int64_t encode_matches(struct encoder *e, const struct split_step *split, const char *text,
                              size_t n_bytes)
{
    size_t at = 0;

    while (at < n_bytes) {
        size_t length = pattern_match(&split->pattern, text + at, n_bytes - at, &e->budget.n_vain);

        if (length == 0)
            break;
        if (has_read_too_much(e))
            return tokenizer_refuse_pattern(e->tokenizer, &split->pattern, &e->budget, e->err);
        if (encoder_add_piece(e, text + at, length) < 0)
            return -1;
        at += length;
    }
    return (int64_t)at;
}

static int encode_split(struct encoder *e, int step, const char *text, size_t n_bytes)
{
    if (step > 0 && step == e->tokenizer->mark_step)
        e->end = e->plain_end;
    if (step > 0 && step == e->tokenizer->mark_step &&
        !(n_bytes >= 3 && memcmp(text, BPE_SPACE, 3) == 0)) {
        str_clear(
            &e->marked); /* pieces with marks are encoded at once, so the last one is not used */
        str_add(&e->marked, BPE_SPACE);
        str_add_bytes(&e->marked, text, n_bytes);
        text = e->marked.data;
        n_bytes = e->marked.length;
        e->end = text + n_bytes;
    }
    if (step == e->tokenizer->n_splits)
        return encoder_add_piece(e, text, n_bytes);
    const struct split_step *split = &e->tokenizer->splits[step];
    if (step + 1 == e->tokenizer->n_splits && split->behavior == SPLIT_ISOLATED &&
        step + 1 != e->tokenizer->mark_step) {
        int64_t done = encode_matches(e, split, text, n_bytes);

        if (done < 0)
            return -1;
        text += done;
        n_bytes -= (size_t)done;
    }
    struct split_stretch pending = { 0, 0, 0 };
    size_t n_known = 0;
    bool follows_match = false;

    for (size_t at = 0; at < n_bytes;) {
        struct split_stretch stretch = next_stretch(e, split, text, n_bytes, at, &n_known);

        if (has_read_too_much(e))
            return tokenizer_refuse_pattern(e->tokenizer, &split->pattern, &e->budget, e->err);
        at = stretch.end;
        if (split->behavior == SPLIT_REMOVED && stretch.is_match)
            continue;
        if (pending.end > 0 && joins(split->behavior, pending, stretch, follows_match)) {
            pending.end = stretch.end;
            pending.is_match = stretch.is_match && pending.is_match;
        } else {
            if (pending.end > pending.start &&
                encode_split(e, step + 1, text + pending.start, pending.end - pending.start) < 0)
                return -1;
            pending = stretch;
        }
        follows_match = stretch.is_match;
    }
    if (pending.end > pending.start)
        return encode_split(e, step + 1, text + pending.start, pending.end - pending.start);
    return 0;
}

/* Where a stretch of text stands: behind an added token, at the start, or within a text whose ids
 * are there already. What tokenizers put in front of text they don't put within it. */
enum start { START_SECTION, START_TEXT, START_WITHIN };

/* Spaces become marks, and one more is put in front. */
static void mark_spaces(struct encoder *e, const char *text, size_t n_bytes, enum start start)
{
    const struct tokenizer *t = e->tokenizer;
    bool is_marked = text[0] == ' ' || (n_bytes >= 3 && memcmp(text, BPE_SPACE, 3) == 0);

    const char *mark = t->keeps_spaces ? " " : BPE_SPACE;

    str_clear(&e->marked);
    if (!is_marked && ((t->prepend == PREPEND_ALWAYS && start != START_WITHIN) ||
                       (t->prepend == PREPEND_FIRST && start == START_TEXT)))
        str_add(&e->marked, mark);
    if (t->keeps_spaces) {
        str_add_bytes(&e->marked, text, n_bytes);
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        if (text[i] == ' ')
            str_add(&e->marked, BPE_SPACE);
        else
            str_add_char(&e->marked, text[i]);
}

/* Text without added tokens, normalized. */
static int encode_plain(struct encoder *e, const char *text, size_t n_bytes, enum start start)
{
    if (n_bytes == 0)
        return 0;
    if (e->tokenizer->add_prefix_space && text[0] != ' ' && start != START_WITHIN) {
        str_clear(&e->marked);
        str_add_char(&e->marked, ' ');
        str_add_bytes(&e->marked, text, n_bytes);
        text = e->marked.data;
        n_bytes++;
    } else if (e->tokenizer->marks_spaces) {
        mark_spaces(e, text, n_bytes, start);
        text = e->marked.data;
        n_bytes = e->marked.length;
    }
    e->end = e->plain_end = text + n_bytes;
    return encode_split(e, 0, text, n_bytes) < 0 ? -1 : encoder_flush(e);
}

static int encode_pass(struct encoder *e, int pass, const char *text, size_t n_bytes,
                       enum start within);

/* What lies between the added tokens of a pass goes to the next. */
static int encode_between(struct encoder *e, int pass, const char *text, size_t n_bytes,
                          enum start start)
{
    const struct tokenizer *t = e->tokenizer;

    if (pass == 1)
        return encode_plain(e, text, n_bytes, start);
    bool is_normal = t->n_normal == 0 || (t->n_normal == 1 && t->normal[0].kind == NORMAL_NFC &&
                                          nfc_length(text, n_bytes) == n_bytes);
    if (is_normal)
        return encode_pass(e, 1, text, n_bytes, start);
    str_clear(&e->normalized);
    if (tokenizer_normalize(t, text, n_bytes, start == START_WITHIN, &e->budget, &e->normalized,
                            e->err) < 0)
        return -1;
    return encode_pass(e, 1, str_text(&e->normalized), e->normalized.length, start);
}

/* What \w matches, as Rust's regex has it. */
static bool is_word(uint32_t code)
{
    uint32_t category = unicode_run_value(unicode_category_runs, unicode_n_category_runs, code);

    return (category >= UNICODE_LU && category <= UNICODE_NL) || category == UNICODE_PC ||
           code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
           (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
           (code >= 0x1f170 && code <= 0x1f189);
}

/* The code point that ends at text + end. */
static uint32_t code_before(const char *text, size_t end, size_t *n)
{
    size_t at = end - 1;

    while (((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return unicode_decode((const unsigned char *)text + at, n);
}

static bool is_within_word(const char *text, size_t n_bytes, size_t start, size_t end)
{
    size_t n;

    return (start > 0 && is_word(code_before(text, start, &n))) ||
           (end < n_bytes && is_word(unicode_decode((const unsigned char *)text + end, &n)));
}

/* Widen a match over the white space beside it, to the left not before least. */
static void take_space(const struct added_token *token, const char *text, size_t n_bytes,
                       size_t least, size_t *start, size_t *end)
{
    size_t n;

    while (token->takes_left && *start > least && unicode_is_space(code_before(text, *start, &n)))
        *start -= n;
    while (token->takes_right && *end < n_bytes &&
           unicode_is_space(unicode_decode((const unsigned char *)text + *end, &n)))
        *end += n;
}

/* What lies between the added tokens of a pass, or before or behind them; in the first pass a
 * section. */
static int encode_stretch(struct encoder *e, int pass, const char *text, size_t begin, size_t end,
                          enum start within)
{
    int64_t first = e->out->n;

    if (begin == end)
        return 0;
    if (encode_between(e, pass, text + begin, end - begin, begin == 0 ? within : START_SECTION) < 0)
        return -1;
    return pass > 0 ? 0
                    : token_sections_add(e->sections, begin, end, first, e->out->n - first, e->err);
}

static int add_token(struct encoder *e, int pass, int32_t id, size_t begin, size_t end)
{
    if (token_list_append(e->out, &id, 1, e->err) < 0)
        return -1;
    return pass > 0 ? 0 : token_sections_add(e->sections, begin, end, e->out->n - 1, 1, e->err);
}

/* Cut at the added tokens of one pass. */
static int encode_pass(struct encoder *e, int pass, const char *text, size_t n_bytes,
                       enum start within)
{
    const struct added_tokens *tokens = &e->tokenizer->passes[pass];
    const struct added_token *token;
    size_t from = 0, done = 0, at;

    while ((token = added_find(tokens, text + from, n_bytes - from, &at)) != NULL) {
        size_t start = from + at, end = start + token->n_bytes;

        from = end;
        if (token->single_word && is_within_word(text, n_bytes, start, end))
            continue;
        take_space(token, text, n_bytes, done, &start, &end);
        if (encode_stretch(e, pass, text, done, start, within) < 0 ||
            add_token(e, pass, token->id, start, end) < 0)
            return -1;
        done = end;
    }
    return encode_stretch(e, pass, text, done, n_bytes, within);
}

static int encode(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                  const char *text, size_t n_bytes, enum start start, struct token_list *out,
                  struct token_sections *sections, struct err *err)
{
    struct encoder e = { .tokenizer = tokenizer,
                         .cache = cache,
                         .out = out,
                         .sections = sections,
                         .err = err,
                         .budget = { .n_text = n_bytes } };
    size_t valid = tokenizer_utf8_end(text, n_bytes);
    int64_t n_before = out->n;

    if (valid < n_bytes)
        return err_set(err, ERR_DATA, "byte %zu (0x%02x) is not valid UTF-8", valid,
                       (unsigned)(unsigned char)text[valid]);
    int rc = encode_pass(&e, 0, text, n_bytes, start);
    if (rc < 0)
        out->n = n_before;
    bpe_scratch_release(&e.scratch);
    unigram_scratch_release(&e.way);
    str_release(&e.normalized);
    str_release(&e.marked);
    str_release(&e.spelled);
    return rc;
}

int tokenizer_encode_cached(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                            const char *text, size_t n_bytes, struct token_list *out,
                            struct err *err)
{
    return encode(tokenizer, cache, text, n_bytes, START_TEXT, out, NULL, err);
}

int tokenizer_encode_sections(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                              const char *text, size_t n_bytes, struct token_list *out,
                              struct token_sections *sections, struct err *err)
{
    sections->n = 0;
    return encode(tokenizer, cache, text, n_bytes, START_TEXT, out, sections, err);
}

int tokenizer_encode_more(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                          const char *text, size_t n_bytes, struct token_list *out, struct err *err)
{
    enum start start = START_TEXT;

    if (out->n > 0)
        start = tokenizer->added_by_id[out->ids[out->n - 1]] ? START_SECTION : START_WITHIN;
    return encode(tokenizer, cache, text, n_bytes, start, out, NULL, err);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                     struct token_list *out, struct err *err)
{
    return tokenizer_encode_cached(tokenizer, NULL, text, n_bytes, out, err);
}
