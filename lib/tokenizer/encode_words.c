/*
 * encode_words.c - pieces of text to ids, word by word
 *
 * Words repeat: a direct-mapped cache of short ones, a line of memory each, answers nearly all of
 * them. Of bytes a piece is a word. Of characters it is cut where no token has the two bytes side
 * by side, above all before spaces: no merge and no way of a unigram model crosses that. What a
 * unigram model makes of a word hangs on the sum of scores before it only by rounding; a slot says
 * up to which sum its ids are beyond doubt.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tokenizer/encode_impl.h"
#include "tokenizer/unicode/unicode.h"

#define CACHE_SLOTS ((size_t)1 << 16)

_Static_assert(sizeof(struct cached_word) == 64, "one line of memory a word");

/* Of a huge page: words are all over the cache. */
#define CACHE_ALIGNMENT ((size_t)2 << 20)
#define CACHE_BYTES (CACHE_SLOTS * sizeof(struct cached_word))

struct tokenizer_cache {
    void *memory; /* words, and what aligns them */
    struct cached_word *words;
};

/* ---- keys ---- */

/*
 * A key's bytes at from on, of which there are n, up to 16, and zeros behind; end: of what may be
 * read. There is no branch on n, since the lengths of words cannot be predicted.
 */
static word_half half_key(const char *from, size_t n, const char *end)
{
    static const uint8_t ones_then_zeros[32] = { 255, 255, 255, 255, 255, 255, 255, 255,
                                                 255, 255, 255, 255, 255, 255, 255, 255 };
    word_half half = { 0 }, mask;

    if (end - from < (ptrdiff_t)sizeof half) {
        memcpy(&half, from, n);
        return half;
    }
    memcpy(&half, from, sizeof half);
    memcpy(&mask, ones_then_zeros + 16 - n, sizeof mask);
    return half & mask;
}

static size_t hash_key(word_half first, word_half second, size_t n)
{
    uint64_t hash = (first[0] ^ n) * 0x9E3779B97F4A7C15u + first[1] * 0xD6E8FEB86659FD93u;

    if (n > sizeof first)
        hash += second[0] * 0xA0761D6478BD642Fu + second[1] * 0xE7037ED1A0B428DBu;
    return ((hash ^ hash >> 32) * 0x8EBC6AF09C88C6E3u >> 32) % CACHE_SLOTS;
}

static inline bool is_word(const struct cached_word *slot, const struct waiting_word *w)
{
    word_half differs = slot->halves[0] ^ w->key;

    if ((differs[0] | differs[1]) != 0 || slot->n_bytes != w->n_bytes)
        return false;
    return w->n_bytes <= sizeof differs ||
           memcmp(slot->word + sizeof differs, w->word + sizeof differs,
                  w->n_bytes - sizeof differs) == 0;
}

/* ---- ids of words ---- */

static int append(struct encoder *e, const int32_t *ids, size_t n)
{
    return token_list_append(e->out, ids, n, e->err);
}

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

/* The same from a slot of the cache, which has no unknown one: all of its ids are copied, which is
 * faster than to count. */
static int append_cached(struct encoder *e, const struct cached_word *slot)
{
    struct token_list *out = e->out;

    if (e->tokenizer->is_unigram)
        unigram_add(&e->tokenizer->unigram, &e->way, slot->ids, slot->n_ids);
    e->after_unknown = 0;
    if (out->capacity - out->n < CACHE_IDS)
        return append(e, slot->ids, slot->n_ids);
    memcpy(out->ids + out->n, slot->ids, sizeof slot->ids);
    out->n += slot->n_ids;
    return 0;
}

static inline bool is_in_slot(const struct encoder *e, const struct cached_word *slot,
                              const struct waiting_word *w)
{
    return is_word(slot, w) && (!e->tokenizer->is_unigram ||
                                unigram_is_within(&e->tokenizer->unigram, &e->way, slot->reach));
}

/* The line beside it, which mostly is fetched with it. New words come there; one that is found
 * there changes places with the first, so that the frequent ones are found at once and stay. */
static struct cached_word *other_slot(struct encoder *e, struct cached_word *slot)
{
    return &e->cache->words[(size_t)(slot - e->cache->words) ^ 1];
}

/* Where it was put, or NULL. */
static struct cached_word *keep(struct encoder *e, const struct waiting_word *w, const int32_t *ids,
                                size_t n_ids)
{
    struct cached_word *slot = w->slot->n_bytes > 0 ? other_slot(e, w->slot) : w->slot;

    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] == e->tokenizer->bpe.unknown)
            return NULL;
    *slot = (struct cached_word){ .n_bytes = (uint8_t)w->n_bytes, .n_ids = (uint8_t)n_ids };
    memcpy(slot->ids, ids, n_ids * sizeof *ids);
    memcpy(slot->word, w->word, w->n_bytes);
    return slot;
}

/* The word as tokens spell it: with marks for spaces. */
static void spell(struct encoder *e, const char **word, size_t *n_bytes)
{
    const char *text = *word, *end = text + *n_bytes, *space;

    if (!e->tokenizer->keeps_spaces || !(space = memchr(text, ' ', *n_bytes)))
        return;
    str_clear(&e->spelled);
    for (; space; space = memchr(text, ' ', (size_t)(end - text))) {
        str_add_bytes(&e->spelled, text, (size_t)(space - text));
        str_add_bytes(&e->spelled, BPE_SPACE, sizeof BPE_SPACE - 1);
        text = space + 1;
    }
    str_add_bytes(&e->spelled, text, (size_t)(end - text));
    *word = e->spelled.data;
    *n_bytes = e->spelled.length;
}

static int merge_word(struct encoder *e, const struct waiting_word *w)
{
    const char *word = w->word;
    size_t n_bytes = w->n_bytes, n_ids;

    if (!e->tokenizer->bpe.takes_spaces)
        spell(e, &word, &n_bytes);
    if (n_bytes > BPE_WORD_BYTES_MAX)
        return err_set(e->err, ERR_DATA, "a word of %zu bytes, at most %zu are supported", n_bytes,
                       BPE_WORD_BYTES_MAX);
    const int32_t *ids = bpe_encode(&e->tokenizer->bpe, &e->scratch, word, n_bytes, &n_ids);
    if (!ids)
        return err_set(e->err, ERR_DEVICE, "out of host memory for a word of %zu bytes", n_bytes);
    if (w->slot && n_ids <= CACHE_IDS)
        keep(e, w, ids, n_ids);
    return append_word(e, ids, n_ids);
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

/* A word from where the sum is. */
static int append_way(struct encoder *e, const char *text, size_t n_bytes)
{
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

/* Put a word into the cache, by its best way from a sum of 0: in *slot, NULL if it can't be
 * there. */
static int keep_way(struct encoder *e, const struct waiting_word *w, const char *text,
                    size_t n_bytes, struct cached_word **slot)
{
    const struct unigram *u = &e->tokenizer->unigram;
    double sum = e->way.score;
    float reach = INFINITY;
    int32_t ids[CACHE_IDS - 1];
    size_t n_ids = 0, n_done, n;

    *slot = NULL;
    e->way.score = 0;
    for (; n_bytes > 0; text += n_done, n_bytes -= n_done) {
        const struct unigram_step *steps = unigram_encode(u, &e->way, text, n_bytes, &n_done, &n);

        if (!steps)
            return err_set(e->err, ERR_DEVICE, "out of host memory for a text of %zu bytes",
                           n_bytes);
        for (size_t i = 0; i < n && n_ids <= CACHE_IDS - 1; i++) {
            if (steps[i].id < 0 || n_ids == CACHE_IDS - 1)
                n_ids = CACHE_IDS; /* too many, or unknown ones */
            else
                ids[n_ids++] = steps[i].id;
        }
        reach = fminf(reach, unigram_reach(u, &e->way, w->n_bytes));
    }
    e->way.score = sum;
    if (n_ids <= CACHE_IDS - 1 && reach > 0)
        *slot = keep(e, w, ids, n_ids);
    if (*slot)
        (*slot)->reach = reach;
    return 0;
}

static int find_way(struct encoder *e, const struct waiting_word *w)
{
    const char *word = w->word;
    size_t n_bytes = w->n_bytes;
    struct cached_word *slot;

    spell(e, &word, &n_bytes);
    if (n_bytes > BPE_WORD_BYTES_MAX)
        return err_set(e->err, ERR_DATA, "a text of %zu bytes, a unigram model takes up to %zu",
                       n_bytes, BPE_WORD_BYTES_MAX);
    if (w->slot && !is_word(w->slot, w) && !is_word(other_slot(e, w->slot), w)) {
        if (keep_way(e, w, word, n_bytes, &slot) < 0)
            return -1;
        if (slot && is_in_slot(e, slot, w))
            return append_cached(e, slot);
    }
    return append_way(e, word, n_bytes);
}

static int add_waiting(struct encoder *e, const struct waiting_word *w)
{
    const struct tokenizer *t = e->tokenizer;

    if (!w->slot)
        return t->is_unigram ? find_way(e, w) : merge_word(e, w);
    if (is_in_slot(e, w->slot, w))
        return append_cached(e, w->slot);
    struct cached_word *other = other_slot(e, w->slot);
    if (!is_in_slot(e, other, w))
        return t->is_unigram ? find_way(e, w) : merge_word(e, w);
    struct cached_word first = *w->slot;
    *w->slot = *other;
    *other = first;
    return append_cached(e, w->slot);
}

int encoder_flush(struct encoder *e)
{
    const struct tokenizer *t = e->tokenizer;
    int rc = 0;

    for (int i = 0; i < e->n_waiting && rc == 0; i++) {
        const struct waiting_word *w = &e->waiting[i];

        if (w->n_bytes == 1 && t->bpe.is_byte_level)
            rc = append(e, &t->bpe.byte_ids[(unsigned char)w->word[0]],
                        t->bpe.byte_ids[(unsigned char)w->word[0]] >= 0);
        else
            rc = add_waiting(e, w);
    }
    e->n_waiting = 0;
    return rc;
}

/* ---- words of pieces ---- */

/* A word is put off until its text is about to go: meanwhile its line is on its way. */
static int add_word(struct encoder *e, const char *word, size_t n_bytes)
{
    struct waiting_word *w = &e->waiting[e->n_waiting++];
    word_half second = { 0 };

    w->word = word;
    w->n_bytes = n_bytes;
    w->slot = NULL;
    if (e->cache && n_bytes <= CACHE_WORD_BYTES) {
        w->key = half_key(word, n_bytes < 16 ? n_bytes : 16, e->end);
        if (n_bytes > 16)
            second = half_key(word + 16, n_bytes - 16, e->end);
        w->slot = &e->cache->words[hash_key(w->key, second, n_bytes)];
        __builtin_prefetch(w->slot);
    }
    return e->n_waiting == WAITING_MAX ? encoder_flush(e) : 0;
}

static bool is_mark(const unsigned char *bytes)
{
    return bytes[0] == 0xe2 && bytes[1] == 0x96 && bytes[2] == 0x81;
}

static int joins(const struct tokenizer *t, unsigned char a, unsigned char b)
{
    return t->joins[a][b >> 3] >> (b & 7) & 1;
}

/* Length of the first word of a piece in which spaces are marks already, which begin with a byte
 * that other characters share. */
static size_t marked_word(const struct tokenizer *t, const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;

    for (size_t at = 1; at < n_bytes; at++) {
        unsigned char before = bytes[at - 1], byte = bytes[at];

        if (!joins(t, before, byte))
            return at;
        if (byte == 0xe2 && !t->joins_space[before] && n_bytes - at >= 3 && is_mark(bytes + at) &&
            !(at >= 3 && is_mark(bytes + at - 3)))
            return at;
    }
    return n_bytes;
}

/* Words of text whose spaces are kept: cuts are sought for 64 bytes at once, again without a
 * branch. */
static int add_words(struct encoder *e, const char *text, size_t n_bytes)
{
    const struct tokenizer *t = e->tokenizer;
    const unsigned char *bytes = (const unsigned char *)text;
    size_t start = 0;

    for (size_t at = 1; at < n_bytes; at += 64) {
        size_t n = n_bytes - at < 64 ? n_bytes - at : 64;
        uint64_t cuts = 0;

        for (size_t i = 0; i < n; i++)
            cuts |= (uint64_t)!joins(t, bytes[at + i - 1], bytes[at + i]) << i;
        for (; cuts != 0; cuts &= cuts - 1) {
            size_t end = at + (size_t)__builtin_ctzll(cuts);

            if (add_word(e, text + start, end - start) < 0)
                return -1;
            start = end;
        }
    }
    return add_word(e, text + start, n_bytes - start);
}

int encoder_add_piece(struct encoder *e, const char *text, size_t n_bytes)
{
    const struct tokenizer *t = e->tokenizer;

    e->after_unknown = 0;
    e->way.score = 0;
    if (t->bpe.is_byte_level)
        return add_word(e, text, n_bytes);
    int32_t whole = t->bpe.ignore_merges && n_bytes <= t->token_bytes_max
                        ? bpe_find(&t->bpe, text, n_bytes)
                        : -1;
    if (whole >= 0)
        return append(e, &whole, 1);
    /* With ignore_merges a word is looked up whole, so it must not be cut. bpe_set_unused says
     * why not with such tokens. */
    bool is_one = t->bpe.ignore_merges || t->bpe.n_unused > 0;
    if (t->keeps_spaces && !is_one) {
        if (add_words(e, text, n_bytes) < 0)
            return -1;
        n_bytes = 0;
    }
    while (n_bytes > 0) {
        size_t length = is_one ? n_bytes : marked_word(t, text, n_bytes);

        if (add_word(e, text, length) < 0)
            return -1;
        text += length;
        n_bytes -= length;
    }
    return encoder_flush(e); /* unknown words are distinguished by piece */
}

/* ---- the cache ---- */

struct tokenizer_cache *tokenizer_cache_create(void)
{
    struct tokenizer_cache *cache = malloc(sizeof *cache);
    /* Zeros that cost nothing before they are used. */
    char *memory = calloc(1, CACHE_BYTES + CACHE_ALIGNMENT);

    if (!cache || !memory) {
        free(cache);
        free(memory);
        return NULL;
    }
    char *words = memory + (CACHE_ALIGNMENT - (uintptr_t)memory % CACHE_ALIGNMENT);
    madvise(words, CACHE_BYTES, MADV_HUGEPAGE);
    *cache = (struct tokenizer_cache){ memory, (struct cached_word *)(void *)words };
    return cache;
}

void tokenizer_cache_destroy(struct tokenizer_cache *cache)
{
    if (cache)
        free(cache->memory);
    free(cache);
}
