/*
 * bpe.c - merging by a linked list of symbols and a heap of candidates
 *
 * Nearly all words are short: of those the best pair is found by looking at all of them, in arrays
 * that fit in a few lines of memory (three times as fast as a heap at ten symbols). For the long
 * ones the heap holds every pair of neighbours that has a merge, least rank first and leftmost
 * among equals. A pair that has changed since it was put in is recognised when it comes out, by
 * what it would join to. So a word of n bytes takes n log n in all cases; searching the least rank
 * again for each merge would take a minute for a megabyte without a space.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "tokenizer/bpe/bpe_impl.h"
#include "tokenizer/unicode/unicode.h"

/* A character that is in no token: no merge has it. */
#define ID_UNKNOWN INT32_MAX

struct bpe_symbol {
    int32_t id;             /* -1: joined to the one before */
    int32_t previous, next; /* -1: none */
    uint32_t start;         /* in the word, of characters */
};

struct bpe_candidate {
    int32_t rank, at, id;
};

/* ---- merging ---- */

void bpe_scratch_release(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->candidates);
    free(scratch->parts);
    *scratch = (struct bpe_scratch){ 0 };
}

static int scratch_reserve(struct bpe_scratch *scratch, size_t n)
{
    size_t capacity = scratch->capacity ? scratch->capacity : 256;

    if (n <= scratch->capacity)
        return 0;
    while (capacity < n)
        capacity *= 2;
    free(scratch->symbols);
    free(scratch->candidates);
    scratch->capacity = 0;
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    /* At first a candidate a pair; then each merge takes out one and puts in two at most. */
    scratch->candidates = malloc(2 * capacity * sizeof *scratch->candidates);
    if (!scratch->symbols || !scratch->candidates)
        return -1;
    scratch->capacity = capacity;
    return 0;
}

/* All parts unknown, at the start of a text. */
static int reset_parts(const struct bpe *bpe, struct bpe_scratch *scratch)
{
    size_t n = 2 * (size_t)bpe->n_unused;

    if (!scratch->parts)
        scratch->parts = malloc((n + (size_t)bpe->n_parts_max + 1) * sizeof *scratch->parts);
    if (!scratch->parts)
        return -1;
    memset(scratch->parts, 0xff, n * sizeof *scratch->parts);
    return 0;
}

struct heap {
    struct bpe_candidate *items;
    size_t n;
    int32_t *parts; /* of scratch */
};

static int comes_before(struct bpe_candidate a, struct bpe_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(struct heap *heap, struct bpe_candidate item)
{
    size_t i = heap->n++;

    while (i > 0 && comes_before(item, heap->items[(i - 1) / 2])) {
        heap->items[i] = heap->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->items[i] = item;
}

static struct bpe_candidate heap_pop(struct heap *heap)
{
    struct bpe_candidate top = heap->items[0], item = heap->items[--heap->n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < heap->n) {
        if (child + 1 < heap->n && comes_before(heap->items[child + 1], heap->items[child]))
            child++;
        if (!comes_before(heap->items[child], item))
            break;
        heap->items[i] = heap->items[child];
        i = child;
    }
    heap->items[i] = item;
    return top;
}

/* Put the pair that starts at a symbol on the heap, if there is a merge for it. */
static void push_pair(const struct bpe *bpe, const struct bpe_symbol *symbols, struct heap *heap,
                      int32_t at)
{
    int32_t next = at >= 0 ? symbols[at].next : -1;

    if (next < 0)
        return;
    const struct bpe_merge *merge = find_merge(bpe, symbols[at].id, symbols[next].id);
    if (!merge)
        return;
    heap_push(heap, (struct bpe_candidate){ merge->rank, at, merge->id });
    if (bpe->n_unused > 0 && bpe->unused[merge->id] >= 0) {
        int32_t *parts = heap->parts + 2 * bpe->unused[merge->id];

        parts[0] = symbols[at].id;
        parts[1] = symbols[next].id;
    }
}

/* Whether the pair is still the one that was put on the heap. */
static bool is_current(const struct bpe *bpe, const struct bpe_symbol *symbols,
                       struct bpe_candidate candidate)
{
    const struct bpe_symbol *left = &symbols[candidate.at];

    if (left->id < 0 || left->next < 0)
        return false;
    const struct bpe_merge *merge = find_merge(bpe, left->id, symbols[left->next].id);
    return merge && merge->id == candidate.id;
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t n)
{
    struct bpe_symbol *symbols = scratch->symbols;
    struct heap heap = { scratch->candidates, 0, scratch->parts };

    for (int32_t i = 0; i + 1 < n; i++)
        push_pair(bpe, symbols, &heap, i);
    while (heap.n > 0) {
        struct bpe_candidate best = heap_pop(&heap);

        if (!is_current(bpe, symbols, best))
            continue;
        struct bpe_symbol *left = &symbols[best.at], *right = &symbols[left->next];
        left->id = best.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            symbols[left->next].previous = best.at;
        push_pair(bpe, symbols, &heap, left->previous);
        push_pair(bpe, symbols, &heap, best.at);
    }
}

/* ---- short words ---- */

enum { SHORT_SYMBOLS = 64 };
#define NO_MERGE INT32_MAX

typedef int32_t four_ints __attribute__((vector_size(16)));

/* A symbol stays where it was; one that is joined to the one before is passed over. */
struct short_word {
    /* Rank of a symbol with the next one << 6 | place, so that the least is the best and leftmost;
     * NO_MERGE, behind the end too. */
    four_ints keys[SHORT_SYMBOLS / 4];
    int32_t ids[SHORT_SYMBOLS], joined[SHORT_SYMBOLS];    /* joined: what it and the next become */
    uint8_t previous[SHORT_SYMBOLS], next[SHORT_SYMBOLS]; /* next of the last: n */
    int n;
};

static void set_pair(struct short_word *w, int at, int32_t rank, int32_t id)
{
    w->keys[at / 4][at % 4] = rank << 6 | at;
    w->joined[at] = id;
}

static void rank_pair(const struct bpe *bpe, struct short_word *w, int at)
{
    const struct bpe_merge *merge =
        w->next[at] < w->n ? find_merge(bpe, w->ids[at], w->ids[w->next[at]]) : NULL;

    w->keys[at / 4][at % 4] = NO_MERGE;
    if (merge)
        set_pair(w, at, merge->rank, merge->id);
}

static int32_t least_key(const struct short_word *w)
{
    four_ints least = w->keys[0];

    for (int i = 1; i < (w->n + 3) / 4; i++) {
        four_ints less = w->keys[i] < least;

        least = (w->keys[i] & less) | (least & ~less);
    }
    int32_t a = least[0] < least[1] ? least[0] : least[1];
    int32_t b = least[2] < least[3] ? least[2] : least[3];
    return a < b ? a : b;
}

static void merge_short(const struct bpe *bpe, struct short_word *w)
{
    for (;;) {
        int32_t best = least_key(w);

        if (best == NO_MERGE)
            return;
        int at = best & (SHORT_SYMBOLS - 1), right = w->next[at];
        w->ids[at] = w->joined[at];
        w->next[at] = w->next[right];
        w->keys[right / 4][right % 4] = NO_MERGE;
        if (w->next[at] < w->n)
            w->previous[w->next[at]] = (uint8_t)at;
        rank_pair(bpe, w, at);
        if (at > 0)
            rank_pair(bpe, w, w->previous[at]);
    }
}

static void link_short(struct short_word *w, int n)
{
    w->n = n;
    w->keys[(n - 1) / 4] = (four_ints){ NO_MERGE, NO_MERGE, NO_MERGE, NO_MERGE };
    for (int i = 0; i < n; i++) {
        w->previous[i] = (uint8_t)(i - 1);
        w->next[i] = (uint8_t)(i + 1);
    }
}

/* Merge; the symbols that are left are linked as merge_all leaves them. */
static void merge_short_symbols(const struct bpe *bpe, struct bpe_symbol *symbols, int n)
{
    struct short_word w;

    link_short(&w, n);
    for (int i = 0; i < n; i++)
        w.ids[i] = symbols[i].id;
    for (int i = 0; i < n; i++)
        rank_pair(bpe, &w, i);
    merge_short(bpe, &w);
    for (int i = 0; i < n; i = w.next[i]) {
        symbols[i].id = w.ids[i];
        symbols[i].next = w.next[i] < n ? w.next[i] : -1;
    }
}

/* The ids of a word of n bytes; how many. */
static size_t merge_short_bytes(const struct bpe *bpe, const char *word, int n, int32_t *ids)
{
    const int32_t *byte_ids = bpe->is_byte_level ? bpe->byte_ids : bpe->ascii_ids;
    const unsigned char *bytes = (const unsigned char *)word;
    struct short_word w;
    size_t count = 0;

    link_short(&w, n);
    for (int i = 0; i < n; i++)
        w.ids[i] = byte_ids[bytes[i]];
    for (int i = 0; i + 1 < n; i++) {
        struct bpe_byte_pair pair = bpe->byte_pairs[bytes[i] << 8 | bytes[i + 1]];

        w.keys[i / 4][i % 4] = NO_MERGE;
        if (pair.id >= 0)
            set_pair(&w, i, pair.rank, pair.id);
    }
    merge_short(bpe, &w);
    for (int i = 0; i < n; i = w.next[i])
        ids[count++] = w.ids[i];
    return count;
}

/* ---- whole words ---- */

static uint32_t hash_word(const char *word, size_t n)
{
    return (uint32_t)XXH3_64bits(word, n);
}

/* Of bytes: the id of a word that is known to be one token, or -1. */
static int32_t find_word(const struct bpe *bpe, const char *word, size_t n)
{
    if (n > bpe->word_bytes_max)
        return -1;
    uint32_t hash = hash_word(word, n);
    for (size_t slot = hash & bpe->word_mask;; slot = (slot + 1) & bpe->word_mask) {
        struct bpe_word item = bpe->words[slot];

        if (item.id < 0)
            return -1;
        if (item.hash == hash && bpe->tokens[item.id].n_bytes == n &&
            memcmp(bpe->tokens[item.id].bytes, word, n) == 0)
            return item.id;
    }
}

static void add_word(struct bpe *bpe, int32_t id)
{
    const struct bpe_token *token = &bpe->tokens[id];
    uint32_t hash = hash_word(token->bytes, token->n_bytes);
    size_t slot = hash & bpe->word_mask;

    while (bpe->words[slot].id >= 0)
        slot = (slot + 1) & bpe->word_mask;
    bpe->words[slot] = (struct bpe_word){ hash, id };
    if (token->n_bytes > bpe->word_bytes_max)
        bpe->word_bytes_max = token->n_bytes;
}

/* Whether a token's spelling stands for bytes, as that of an added token may not. */
static bool is_of_bytes(const struct bpe_token *token)
{
    return token->spelling && token->n_bytes > 0 && token->bytes != token->spelling;
}

int bpe_derive_merges(struct bpe *bpe)
{
    struct bpe_scratch scratch = { 0 };
    size_t n_ids;
    int rc = 0;

    bpe_init_merges(bpe, bpe->n_ids);
    for (int32_t id = 0; id < bpe->n_ids && rc == 0; id++) {
        const struct bpe_token *token = &bpe->tokens[id];

        if (!is_of_bytes(token) || token->n_bytes < 2)
            continue;
        const int32_t *ids = bpe_encode(bpe, &scratch, token->bytes, token->n_bytes, &n_ids);
        if (!ids)
            rc = -1;
        else if (n_ids == 2)
            bpe_add_merge(bpe, ids[0], ids[1], id, id);
    }
    bpe_scratch_release(&scratch);
    return rc;
}

static void index_byte_pairs(struct bpe *bpe)
{
    bpe->byte_pairs = arena_array(bpe->arena, struct bpe_byte_pair, 256 * 256);
    memset(bpe->byte_pairs, 0xff, 256 * 256 * sizeof *bpe->byte_pairs);
    for (size_t slot = 0; slot <= bpe->merge_mask; slot++) {
        struct bpe_merge merge = bpe->merges[slot];
        const struct bpe_token *left, *right;

        if (merge.pair == PAIR_FREE)
            continue;
        left = &bpe->tokens[merge.pair >> 32];
        right = &bpe->tokens[merge.pair & UINT32_MAX];
        if (is_of_bytes(left) && is_of_bytes(right) && left->n_bytes == 1 && right->n_bytes == 1)
            bpe->byte_pairs[(unsigned char)*left->bytes << 8 | (unsigned char)*right->bytes] =
                (struct bpe_byte_pair){ merge.rank, merge.id };
    }
}

static bool is_visible(const struct bpe *bpe, int32_t id)
{
    return id >= 0 && id < bpe->n_visible;
}

void bpe_index_ascii(struct bpe *bpe, bool has_spaces)
{
    int32_t mark = bpe_find(bpe, BPE_SPACE, sizeof BPE_SPACE - 1);

    if (has_spaces && bpe->whole.n == 0 && bpe->n_unused == 0 && is_visible(bpe, mark)) {
        bpe->takes_spaces = true;
        bpe->ascii_ids[' '] = mark;
    }
    bpe->byte_pairs = arena_array(bpe->arena, struct bpe_byte_pair, 256 * 256);
    memset(bpe->byte_pairs, 0xff, 256 * 256 * sizeof *bpe->byte_pairs);
    for (int a = 0; a < 128; a++)
        for (int b = 0; b < 128; b++)
            if (is_visible(bpe, bpe->ascii_ids[a]) && is_visible(bpe, bpe->ascii_ids[b])) {
                const struct bpe_merge *merge =
                    find_merge(bpe, bpe->ascii_ids[a], bpe->ascii_ids[b]);

                if (merge)
                    bpe->byte_pairs[a << 8 | b] = (struct bpe_byte_pair){ merge->rank, merge->id };
            }
}

int bpe_index_words(struct bpe *bpe)
{
    struct bpe_scratch scratch = { 0 };
    size_t n_slots = table_size(bpe->n_ids), n_ids;
    int rc = 0;

    index_byte_pairs(bpe);
    struct bpe_word *words = arena_array(bpe->arena, struct bpe_word, n_slots);
    memset(words, 0xff, n_slots * sizeof *words);
    bpe->word_mask = n_slots - 1;
    for (int32_t id = 0; id < bpe->n_ids && rc == 0; id++) {
        const struct bpe_token *token = &bpe->tokens[id];
        const int32_t *ids = &id;

        if (!is_of_bytes(token))
            continue;
        n_ids = 1;
        if (!bpe->ignore_merges)
            ids = bpe_encode(bpe, &scratch, token->bytes, token->n_bytes, &n_ids);
        if (!ids) {
            rc = -1;
        } else if (n_ids == 1 && *ids == id) {
            bpe->words = words;
            add_word(bpe, id);
            bpe->words = NULL; /* not to be looked at before all are in */
        }
    }
    bpe->words = words;
    bpe_scratch_release(&scratch);
    return rc;
}

static int32_t start_bytes(const struct bpe *bpe, struct bpe_symbol *symbols, const char *word,
                           int32_t n)
{
    int32_t count = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)word[i]];

        if (id < 0)
            continue;
        symbols[count] = (struct bpe_symbol){ id, count - 1, count + 1, 0 };
        count++;
    }
    return count;
}

/* Whether each byte of a word is a visible token, which byte_pairs then knows. */
static bool is_of_pairs(const struct bpe *bpe, const char *word, size_t n_bytes)
{
    if (!bpe->byte_pairs || n_bytes > SHORT_SYMBOLS || bpe->n_unused > 0 || bpe->whole.n > 0)
        return false;
    if (bpe->is_byte_level) {
        for (size_t i = 0; bpe->lacks_bytes && i < n_bytes; i++)
            if (bpe->byte_ids[(unsigned char)word[i]] < 0)
                return false;
        return true;
    }
    for (size_t i = 0; i < n_bytes; i++)
        if ((unsigned char)word[i] >= 0x80 ||
            !is_visible(bpe, bpe->ascii_ids[(unsigned char)word[i]]))
            return false;
    return true;
}

static int32_t start_characters(const struct bpe *bpe, struct bpe_symbol *symbols, const char *word,
                                size_t n_bytes)
{
    int32_t n = 0;
    size_t length;

    for (size_t at = 0; at < n_bytes; at += length, n++) {
        const struct added_token *whole =
            bpe->whole.n > 0 ? added_match(&bpe->whole, word + at, n_bytes - at) : NULL;
        int32_t id;

        if (whole) {
            id = whole->id;
            length = whole->n_bytes;
        } else if ((unsigned char)word[at] < 0x80) {
            id = bpe->ascii_ids[(unsigned char)word[at]];
            length = 1;
        } else {
            unicode_decode((const unsigned char *)word + at, &length);
            id = bpe_find(bpe, word + at, length);
        }
        symbols[n] = (struct bpe_symbol){ id < 0 ? ID_UNKNOWN : id, n - 1, n + 1, (uint32_t)at };
    }
    return n;
}

/* What stands for bytes that are in no token. */
static size_t put_unknown(const struct bpe *bpe, const char *bytes, size_t n_bytes, int32_t *ids,
                          int after_unknown)
{
    if (bpe->byte_ids[0] >= 0) {
        for (size_t i = 0; i < n_bytes; i++)
            ids[i] = bpe->byte_ids[(unsigned char)bytes[i]];
        return n_bytes;
    }
    if (bpe->unknown < 0 || (after_unknown && bpe->fuse_unknown))
        return 0;
    ids[0] = bpe->unknown;
    return 1;
}

/* What a token that is unused was merged of. */
static size_t put_parts(const struct bpe *bpe, int32_t *parts, int32_t id, int32_t *ids,
                        int *after_unknown)
{
    int32_t *waiting = parts + 2 * bpe->n_unused;
    size_t count = 0;
    int n = 0;

    waiting[n++] = id;
    while (n >
           0) { /* parts are shorter than the whole, so that these are never more than its bytes */
        int32_t part = waiting[--n], at = bpe->unused[part];
        bool is_unknown = part >= bpe->n_visible || at >= 0; /* an unused character has no parts */

        if (at >= 0 && parts[2 * at] >= 0) {
            waiting[n++] = parts[2 * at + 1];
            waiting[n++] = parts[2 * at];
            continue;
        }
        if (is_unknown)
            count += put_unknown(bpe, bpe->tokens[part].spelling, bpe->tokens[part].n_spelling,
                                 ids + count, *after_unknown);
        else
            ids[count++] = part;
        *after_unknown = is_unknown;
    }
    return count;
}

static size_t put_ids(const struct bpe *bpe, const struct bpe_symbol *symbols, const char *word,
                      size_t n_bytes, int32_t *parts, int32_t *ids)
{
    size_t count = 0;
    int after_unknown = 0;

    for (int32_t at = 0; at >= 0; at = symbols[at].next) {
        const struct bpe_symbol *symbol = &symbols[at];
        bool is_unknown = symbol->id >= bpe->n_visible;

        if (!is_unknown && bpe->n_unused > 0) {
            count += put_parts(bpe, parts, symbol->id, ids + count, &after_unknown);
            continue;
        }
        if (!is_unknown) {
            ids[count++] = symbol->id;
        } else {
            size_t end = symbol->next >= 0 ? symbols[symbol->next].start : n_bytes;

            count += put_unknown(bpe, word + symbol->start, end - symbol->start, ids + count,
                                 after_unknown);
        }
        after_unknown = is_unknown;
    }
    return count;
}

const int32_t *bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word,
                          size_t n_bytes, size_t *n_ids)
{
    CHECK(n_bytes >= 1);
    CHECK(n_bytes <= BPE_WORD_BYTES_MAX);
    if (scratch_reserve(scratch, n_bytes) < 0 ||
        (bpe->n_unused > 0 && reset_parts(bpe, scratch) < 0))
        return NULL;
    struct bpe_symbol *symbols = scratch->symbols;
    int32_t *ids = (int32_t *)(void *)scratch->candidates; /* done with when the ids are written */
    int32_t whole = bpe->words                                  ? find_word(bpe, word, n_bytes)
                    : bpe->ignore_merges && !bpe->is_byte_level ? bpe_find(bpe, word, n_bytes)
                                                                : -1;

    if (whole >= 0) {
        ids[0] = whole;
        *n_ids = 1;
        return ids;
    }
    if (is_of_pairs(bpe, word, n_bytes)) {
        *n_ids = merge_short_bytes(bpe, word, (int)n_bytes, ids);
        return ids;
    }
    int32_t n = bpe->is_byte_level ? start_bytes(bpe, symbols, word, (int32_t)n_bytes)
                                   : start_characters(bpe, symbols, word, n_bytes);
    if (n == 0) {
        *n_ids = 0;
        return ids;
    }
    symbols[n - 1].next = -1;
    if (n <= SHORT_SYMBOLS && bpe->n_unused == 0)
        merge_short_symbols(bpe, symbols, n);
    else
        merge_all(bpe, scratch, n);
    *n_ids = put_ids(bpe, symbols, word, n_bytes, scratch->parts, ids);
    return ids;
}
