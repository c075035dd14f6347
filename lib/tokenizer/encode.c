/*
 * encode.c - text to ids
 *
 * Text is cut at added tokens, the rest normalized and cut into words, and each word made ids by
 * merging. Words repeat: a direct-mapped cache of short ones, a line of memory each, answers nearly
 * all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

#define CACHE_SLOTS ((size_t)1 << 16)
#define CACHE_WORD_BYTES 30
#define CACHE_IDS 8

struct cached_word {
    int32_t ids[CACHE_IDS];
    char word[CACHE_WORD_BYTES];
    uint8_t n_bytes; /* 0: free */
    uint8_t n_ids;
};

_Static_assert(sizeof(struct cached_word) == 64, "one line of memory a word");

struct tokenizer_cache {
    struct cached_word words[CACHE_SLOTS];
};

/* A word that waits for its line of the cache to come from memory. */
struct waiting_word {
    const char *word;
    size_t n_bytes;
    struct cached_word *slot; /* NULL: not to be cached */
};

enum { WAITING_MAX = 16 };

/* One call's state. */
struct encoder {
    const struct tokenizer *tokenizer;
    struct tokenizer_cache *cache;
    struct bpe_scratch scratch;
    struct unigram_scratch way;
    struct str normalized, marked;
    struct waiting_word waiting[WAITING_MAX];
    int n_waiting;
    int after_unknown; /* the id before is of what is unknown, in the same piece of text */
    struct token_list *out;
    struct err *err;
};

static int append(struct encoder *e, const int32_t *ids, size_t n)
{
    return token_list_append(e->out, ids, n, e->err);
}

/* ---- the cache ---- */

static uint64_t load(const char *from, size_t n)
{
    uint64_t value = 0;

    memcpy(&value, from, n);
    return value;
}

/* The first and the last bytes of a word, up to eight each, which overlap if it is shorter. */
static void word_ends(const char *word, size_t n, uint64_t *first, uint64_t *last)
{
    if (n >= 8) {
        *first = load(word, 8);
        *last = load(word + n - 8, 8);
    } else if (n >= 4) {
        *first = load(word, 4);
        *last = load(word + n - 4, 4);
    } else {
        *first = (unsigned char)word[0];
        *last = (uint64_t)(unsigned char)word[n / 2] << 8 | (unsigned char)word[n - 1];
    }
}

/* Of 1..CACHE_WORD_BYTES bytes; no library's hash is as fast for so few. */
static size_t cache_slot(const char *word, size_t n)
{
    uint64_t first, last;

    word_ends(word, n, &first, &last);
    uint64_t hash = (first ^ n) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ last) * 0xD6E8FEB86659FD93u;
    if (n > 16)
        hash = (hash ^ hash >> 32 ^ load(word + 8, 8) ^ load(word + n - 16, 8) << 1) *
               0xA0761D6478BD642Fu;
    return (hash ^ hash >> 29) % CACHE_SLOTS;
}

static int is_same_word(const char *a, const char *b, size_t n)
{
    uint64_t a_first, a_last, b_first, b_last;

    word_ends(a, n, &a_first, &a_last);
    word_ends(b, n, &b_first, &b_last);
    return a_first == b_first && a_last == b_last && (n <= 16 || memcmp(a + 8, b + 8, n - 16) == 0);
}

/* ---- words ---- */

/* The ids of a word, but for an unknown one right behind another if such are to be one. */
static int append_word(struct encoder *e, const int32_t *ids, size_t n)
{
    const struct bpe *bpe = &e->tokenizer->bpe;

    if (n == 0)
        return 0;
    int skips = e->after_unknown && bpe->fuse_unknown && ids[0] == bpe->unknown;
    e->after_unknown = ids[n - 1] == bpe->unknown;
    return append(e, ids + skips, n - (size_t)skips);
}

/* The same from a slot of the cache: all of its ids are copied, which is faster than to count. */
static int append_cached(struct encoder *e, const struct cached_word *slot)
{
    struct token_list *out = e->out;

    if (out->capacity - out->n < CACHE_IDS || !e->tokenizer->bpe.is_byte_level)
        return append_word(e, slot->ids, slot->n_ids);
    memcpy(out->ids + out->n, slot->ids, sizeof slot->ids);
    out->n += slot->n_ids;
    return 0;
}

static int is_in_slot(const struct cached_word *slot, const struct waiting_word *w)
{
    return slot->n_bytes == w->n_bytes && is_same_word(slot->word, w->word, w->n_bytes);
}

/* A line beside it, which is fetched with it: a word goes there when another takes its place. */
static struct cached_word *other_slot(struct encoder *e, struct cached_word *slot)
{
    return &e->cache->words[(size_t)(slot - e->cache->words) ^ 1];
}

static int merge_word(struct encoder *e, const char *word, size_t n_bytes, struct cached_word *slot)
{
    size_t n_ids;

    if (n_bytes > BPE_WORD_BYTES_MAX)
        return err_set(e->err, ERR_DATA, "a word of %zu bytes, at most %zu are supported", n_bytes,
                       BPE_WORD_BYTES_MAX);
    const int32_t *ids = bpe_encode(&e->tokenizer->bpe, &e->scratch, word, n_bytes, &n_ids);
    if (!ids)
        return err_set(e->err, ERR_DEVICE, "out of host memory for a word of %zu bytes", n_bytes);
    if (slot && n_ids <= CACHE_IDS) {
        if (slot->n_bytes > 0)
            *other_slot(e, slot) = *slot;
        memcpy(slot->ids, ids, n_ids * sizeof *ids);
        memcpy(slot->word, word, n_bytes);
        slot->n_bytes = (uint8_t)n_bytes;
        slot->n_ids = (uint8_t)n_ids;
    }
    return append_word(e, ids, n_ids);
}

/* Encode the words that wait. */
static int flush(struct encoder *e)
{
    const struct bpe *bpe = &e->tokenizer->bpe;
    int rc = 0;

    for (int i = 0; i < e->n_waiting && rc == 0; i++) {
        const struct waiting_word *w = &e->waiting[i];

        if (w->n_bytes == 1 && bpe->is_byte_level)
            rc = append(e, &bpe->byte_ids[(unsigned char)w->word[0]],
                        bpe->byte_ids[(unsigned char)w->word[0]] >= 0);
        else if (w->slot && is_in_slot(w->slot, w))
            rc = append_cached(e, w->slot);
        else if (w->slot && is_in_slot(other_slot(e, w->slot), w))
            rc = append_cached(e, other_slot(e, w->slot));
        else
            rc = merge_word(e, w->word, w->n_bytes, w->slot);
    }
    e->n_waiting = 0;
    return rc;
}

/* A word is put off until its text is about to go: meanwhile its line is on its way. */
static int encode_word(struct encoder *e, const char *word, size_t n_bytes)
{
    struct cached_word *slot = NULL;

    if (e->cache && n_bytes > 1 && n_bytes <= CACHE_WORD_BYTES) {
        slot = &e->cache->words[cache_slot(word, n_bytes)];
        __builtin_prefetch(slot);
    }
    e->waiting[e->n_waiting++] = (struct waiting_word){ word, n_bytes, slot };
    return e->n_waiting == WAITING_MAX ? flush(e) : 0;
}

static int is_mark(const unsigned char *bytes)
{
    return bytes[0] == 0xe2 && bytes[1] == 0x96 && bytes[2] == 0x81;
}

/* Length of the first word of a piece: up to where no token goes on, above all before a mark. */
static size_t marked_word(const struct tokenizer *t, const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;

    for (size_t at = 1; at < n_bytes; at++) {
        unsigned char before = bytes[at - 1], byte = bytes[at];

        if ((byte & 0xc0) == 0x80)
            continue; /* within a character */
        if (!(t->joins[before][byte >> 3] >> (byte & 7) & 1))
            return at;
        if (byte == 0xe2 && !t->joins_space[before] && n_bytes - at >= 3 && is_mark(bytes + at) &&
            !(at >= 3 && is_mark(bytes + at - 3)))
            return at;
    }
    return n_bytes;
}

static int append_unknown(struct encoder *e, const char *text, size_t n_bytes)
{
    const struct bpe *bpe = &e->tokenizer->bpe;

    if (bpe->byte_ids[0] < 0)
        return append_word(e, &bpe->unknown, 1);
    for (size_t i = 0; i < n_bytes; i++)
        if (append_word(e, &bpe->byte_ids[(unsigned char)text[i]], 1) < 0)
            return -1;
    return 0;
}

static int encode_unigram(struct encoder *e, const char *text, size_t n_bytes)
{
    if (n_bytes > BPE_WORD_BYTES_MAX)
        return err_set(e->err, ERR_DATA, "a text of %zu bytes, a unigram model takes up to %zu",
                       n_bytes, BPE_WORD_BYTES_MAX);
    e->way.score = 0;
    while (n_bytes > 0) {
        size_t n_done, n;
        const struct unigram_step *steps =
            unigram_encode(&e->tokenizer->unigram, &e->way, text, n_bytes, &n_done, &n);

        if (!steps)
            return err_set(e->err, ERR_DEVICE, "out of host memory for a text of %zu bytes",
                           n_bytes);
        for (size_t i = 0; i < n; i++) {
            int rc = steps[i].id >= 0
                         ? append_word(e, &steps[i].id, 1)
                         : append_unknown(e, text + steps[i].start, steps[i].end - steps[i].start);
            if (rc < 0)
                return -1;
        }
        text += n_done;
        n_bytes -= n_done;
    }
    return 0;
}

/* A piece that is split no more. */
static int encode_piece(struct encoder *e, const char *text, size_t n_bytes)
{
    const struct tokenizer *t = e->tokenizer;

    e->after_unknown = 0;
    if (t->bpe.is_byte_level)
        return encode_word(e, text, n_bytes);
    if (t->is_unigram)
        return encode_unigram(e, text, n_bytes);
    int32_t whole = t->bpe.ignore_merges && n_bytes <= t->token_bytes_max
                        ? bpe_find(&t->bpe, text, n_bytes)
                        : -1;
    if (whole >= 0)
        return append(e, &whole, 1);
    while (n_bytes > 0) {
        /* With ignore_merges a word is looked up whole, so it must not be cut. */
        size_t length = t->bpe.ignore_merges ? n_bytes : marked_word(t, text, n_bytes);

        if (encode_word(e, text, length) < 0)
            return -1;
        text += length;
        n_bytes -= length;
    }
    return flush(e); /* what is unknown is told apart by piece */
}

static int encode_split(struct encoder *e, int step, const char *text, size_t n_bytes);

/* What a split gives: a stretch that is a match or lies between matches. */
struct stretch {
    size_t start, end;
    int is_match;
};

/* The stretch that begins at `at`; *next is the match behind it if it was found on the way. */
static struct stretch next_stretch(const struct split_step *step, const char *text, size_t n_bytes,
                                   size_t at, size_t *n_known)
{
    size_t start = at, length = *n_known;

    *n_known = 0;
    while (length == 0 && (at = pattern_skip(&step->pattern, text, n_bytes, at)) < n_bytes) {
        length = pattern_match(&step->pattern, text + at, n_bytes - at);
        if (length == 0) {
            size_t n;

            unicode_decode((const unsigned char *)text + at, &n);
            at += n;
        }
    }
    if (at == start)
        return (struct stretch){ at, at + length, !step->inverted };
    *n_known = length;
    return (struct stretch){ start, at, step->inverted };
}

/* Whether a stretch goes on with the one before it. */
static int joins(enum split_behavior behavior, struct stretch before, struct stretch stretch,
                 int follows_match)
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
        size_t length = pattern_match(&split->pattern, text + at, n_bytes - at);

        if (length == 0)
            break;
        if (encode_piece(e, text + at, length) < 0)
            return -1;
        at += length;
    }
    return (int64_t)at;
}

static int encode_split(struct encoder *e, int step, const char *text, size_t n_bytes)
{
    if (step > 0 && step == e->tokenizer->mark_step &&
        !(n_bytes >= 3 && memcmp(text, BPE_SPACE, 3) == 0)) {
        str_clear(&e->marked); /* pieces with marks are encoded at once: nobody looks at the last */
        str_add(&e->marked, BPE_SPACE);
        str_add_bytes(&e->marked, text, n_bytes);
        text = e->marked.data;
        n_bytes = e->marked.length;
    }
    if (step == e->tokenizer->n_splits)
        return encode_piece(e, text, n_bytes);
    const struct split_step *split = &e->tokenizer->splits[step];
    if (step + 1 == e->tokenizer->n_splits && split->behavior == SPLIT_ISOLATED &&
        step + 1 != e->tokenizer->mark_step) {
        int64_t done = encode_matches(e, split, text, n_bytes);

        if (done < 0)
            return -1;
        text += done;
        n_bytes -= (size_t)done;
    }
    struct stretch pending = { 0, 0, 0 };
    size_t n_known = 0;
    int follows_match = 0;

    for (size_t at = 0; at < n_bytes;) {
        struct stretch stretch = next_stretch(split, text, n_bytes, at, &n_known);

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
    int is_marked = text[0] == ' ' || (n_bytes >= 3 && memcmp(text, BPE_SPACE, 3) == 0);

    str_clear(&e->marked);
    if (!is_marked && ((t->prepend == PREPEND_ALWAYS && start != START_WITHIN) ||
                       (t->prepend == PREPEND_FIRST && start == START_TEXT)))
        str_add(&e->marked, BPE_SPACE);
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
    return encode_split(e, 0, text, n_bytes) < 0 ? -1 : flush(e);
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
    int is_normal = t->n_normal == 0 || (t->n_normal == 1 && t->normal[0].kind == NORMAL_NFC &&
                                         nfc_length(text, n_bytes) == n_bytes);
    if (is_normal)
        return encode_pass(e, 1, text, n_bytes, start);
    str_clear(&e->normalized);
    tokenizer_normalize(t, text, n_bytes, start == START_WITHIN, &e->normalized);
    return encode_pass(e, 1, str_text(&e->normalized), e->normalized.length, start);
}

/* What \w matches, as Rust's regex has it. */
static int is_word(uint32_t code)
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

static int is_within_word(const char *text, size_t n_bytes, size_t start, size_t end)
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
        if (done < start && encode_between(e, pass, text + done, start - done,
                                           done == 0 ? within : START_SECTION) < 0)
            return -1;
        if (append(e, &token->id, 1) < 0)
            return -1;
        done = end;
    }
    return done < n_bytes ? encode_between(e, pass, text + done, n_bytes - done,
                                           done == 0 ? within : START_SECTION)
                          : 0;
}

static int encode(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                  const char *text, size_t n_bytes, enum start start, struct token_list *out,
                  struct err *err)
{
    struct encoder e = { .tokenizer = tokenizer, .cache = cache, .out = out, .err = err };
    size_t valid = tokenizer_utf8_end(text, n_bytes);
    int64_t n_before = out->n;

    if (valid < n_bytes)
        return err_set(err, ERR_DATA, "byte %zu (0x%02x) is no UTF-8", valid,
                       (unsigned)(unsigned char)text[valid]);
    int rc = encode_pass(&e, 0, text, n_bytes, start);
    if (rc < 0)
        out->n = n_before;
    bpe_scratch_release(&e.scratch);
    unigram_scratch_release(&e.way);
    str_release(&e.normalized);
    str_release(&e.marked);
    return rc;
}

int tokenizer_encode_cached(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                            const char *text, size_t n_bytes, struct token_list *out,
                            struct err *err)
{
    return encode(tokenizer, cache, text, n_bytes, START_TEXT, out, err);
}

int tokenizer_encode_more(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                          const char *text, size_t n_bytes, struct token_list *out, struct err *err)
{
    enum start start = START_TEXT;

    if (out->n > 0)
        start = tokenizer->added_by_id[out->ids[out->n - 1]] ? START_SECTION : START_WITHIN;
    return encode(tokenizer, cache, text, n_bytes, start, out, err);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                     struct token_list *out, struct err *err)
{
    return tokenizer_encode_cached(tokenizer, NULL, text, n_bytes, out, err);
}

struct tokenizer_cache *tokenizer_cache_create(void)
{
    return calloc(1, sizeof(struct tokenizer_cache));
}

void tokenizer_cache_destroy(struct tokenizer_cache *cache)
{
    free(cache);
}
