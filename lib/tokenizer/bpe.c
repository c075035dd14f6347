/*
 * bpe.c - merging by a linked list of symbols and a heap of candidates
 *
 * The heap holds every pair of neighbours that has a merge, least rank first and leftmost among
 * equals. A pair that has changed since it was put in is recognised when it comes out, by what it
 * would join to. So a word of n bytes takes n log n, whatever it looks like; searching the least
 * rank anew for each merge would take a minute for a megabyte without a space.
 */
#include "tokenizer/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "tokenizer/unicode.h"

#define PAIR_FREE UINT64_MAX

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

/* ---- tables ---- */

static size_t table_size(int n)
{
    size_t size = 16;

    while (size < (size_t)n * 2)
        size *= 2;
    return size;
}

void bpe_init(struct bpe *bpe, struct arena *arena, int is_byte_level, int n_tokens, int n_ids)
{
    size_t n_spellings = table_size(n_tokens);

    *bpe = (struct bpe){ .arena = arena,
                         .n_ids = n_ids,
                         .n_visible = n_ids,
                         .spelling_mask = n_spellings - 1,
                         .is_byte_level = is_byte_level,
                         .unknown = -1 };
    memset(bpe->byte_ids, 0xff, sizeof bpe->byte_ids);
    memset(bpe->ascii_ids, 0xff, sizeof bpe->ascii_ids);
    bpe->tokens = arena_array(arena, struct bpe_token, n_ids);
    bpe->by_spelling = arena_array(arena, int32_t, n_spellings);
    memset(bpe->by_spelling, 0xff, n_spellings * sizeof *bpe->by_spelling);
}

void bpe_init_merges(struct bpe *bpe, int n_merges)
{
    size_t n_pairs = table_size(n_merges);

    bpe->merge_mask = n_pairs - 1;
    bpe->merges = arena_array(bpe->arena, struct bpe_merge, n_pairs);
    memset(bpe->merges, 0xff, n_pairs * sizeof *bpe->merges);
}

/* Where the spelling is, or the free place where it would be. */
static size_t spelling_slot(const struct bpe *bpe, const char *spelling, size_t n)
{
    size_t slot = XXH3_64bits(spelling, n) & bpe->spelling_mask;

    for (;; slot = (slot + 1) & bpe->spelling_mask) {
        int32_t id = bpe->by_spelling[slot];

        if (id < 0 ||
            (bpe->tokens[id].n_spelling == n && memcmp(bpe->tokens[id].spelling, spelling, n) == 0))
            return slot;
    }
}

int32_t bpe_find(const struct bpe *bpe, const char *spelling, size_t n_bytes)
{
    return bpe->by_spelling[spelling_slot(bpe, spelling, n_bytes)];
}

/*
 * The byte that a character spells, or -1. Printable Latin-1 spells itself; U+0100..U+0143 spell
 * the bytes that it leaves, in order: 0..32, 127..160 and 173.
 */
static int byte_spelled(uint32_t code)
{
    if ((code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xff && code != 0xad))
        return (int)code;
    if (code < 0x100 || code > 0x143)
        return -1;
    int i = (int)code - 0x100;
    return i <= 32 ? i : i <= 66 ? i - 33 + 127 : 173;
}

/* The bytes that a spelling stands for; one with a character that spells none stands for itself. */
static void unspell(struct bpe *bpe, struct bpe_token *token)
{
    const unsigned char *spelling = (const unsigned char *)token->spelling;
    char *bytes = arena_alloc(bpe->arena, token->n_spelling);
    uint32_t n_bytes = 0;
    size_t length;

    for (size_t at = 0; at < token->n_spelling; at += length) {
        int byte = byte_spelled(unicode_decode(spelling + at, &length));

        if (byte < 0) {
            token->bytes = token->spelling;
            token->n_bytes = token->n_spelling;
            return;
        }
        bytes[n_bytes++] = (char)byte;
    }
    token->bytes = bytes;
    token->n_bytes = n_bytes;
}

/* SentencePiece's spelling: "▁" is a space. */
static void unmark(struct bpe *bpe, struct bpe_token *token)
{
    char *bytes = arena_alloc(bpe->arena, token->n_spelling + 1);
    uint32_t n = 0;

    for (uint32_t at = 0; at < token->n_spelling; n++)
        if (token->n_spelling - at >= 3 && memcmp(token->spelling + at, BPE_SPACE, 3) == 0) {
            bytes[n] = ' ';
            at += 3;
        } else {
            bytes[n] = token->spelling[at++];
        }
    token->bytes = bytes;
    token->n_bytes = n;
}

int bpe_add_token(struct bpe *bpe, int32_t id, const char *spelling, size_t n_bytes)
{
    CHECK(id >= 0);
    CHECK(id < bpe->n_ids);
    CHECK(n_bytes < UINT32_MAX);
    struct bpe_token *token = &bpe->tokens[id];
    size_t slot = spelling_slot(bpe, spelling, n_bytes);

    if (token->spelling || bpe->by_spelling[slot] >= 0)
        return -1;
    token->spelling = arena_strndup(bpe->arena, spelling, n_bytes);
    token->n_spelling = (uint32_t)n_bytes;
    if (bpe->is_byte_level)
        unspell(bpe, token);
    else
        unmark(bpe, token);
    bpe->by_spelling[slot] = id;
    return 0;
}

int bpe_find_bytes(struct bpe *bpe)
{
    char spelling[8];

    memset(bpe->byte_ids, 0xff, sizeof bpe->byte_ids);
    for (uint32_t code = 0; code <= 0x143; code++)
        if (byte_spelled(code) >= 0)
            bpe->byte_ids[byte_spelled(code)] =
                bpe_find(bpe, spelling, unicode_encode(spelling, code));
    for (int byte = 0; byte < 256; byte++)
        if (bpe->byte_ids[byte] < 0)
            return byte;
    return -1;
}

void bpe_find_ascii(struct bpe *bpe)
{
    for (int i = 0; i < 128; i++) {
        char c = (char)i;

        bpe->ascii_ids[i] = bpe_find(bpe, &c, 1);
    }
}

int bpe_find_fallback(struct bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++) {
        char spelling[8];
        int n = snprintf(spelling, sizeof spelling, "<0x%02X>", (unsigned)byte);
        int32_t id = bpe_find(bpe, spelling, (size_t)n);

        if (id < 0) {
            memset(bpe->byte_ids, 0xff, sizeof bpe->byte_ids);
            return byte;
        }
        char *bytes = arena_alloc(bpe->arena, 1);
        *bytes = (char)byte;
        bpe->tokens[id].bytes = bytes;
        bpe->tokens[id].n_bytes = 1;
        bpe->byte_ids[byte] = id;
    }
    return -1;
}

static struct bpe_merge *merge_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    size_t slot = (hash ^ hash >> 32) & bpe->merge_mask;

    while (bpe->merges[slot].pair != pair && bpe->merges[slot].pair != PAIR_FREE)
        slot = (slot + 1) & bpe->merge_mask;
    return &bpe->merges[slot];
}

void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    *merge_slot(bpe, left, right) = (struct bpe_merge){ pair, rank, id };
}

/* ---- merging ---- */

void bpe_scratch_release(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->candidates);
    *scratch = (struct bpe_scratch){ 0 };
}

static int scratch_reserve(struct bpe_scratch *scratch, size_t n)
{
    size_t capacity = scratch->capacity ? scratch->capacity : 256;

    if (n <= scratch->capacity)
        return 0;
    while (capacity < n)
        capacity *= 2;
    bpe_scratch_release(scratch);
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    /* At first a candidate a pair; then each merge takes out one and puts in two at most. */
    scratch->candidates = malloc(2 * capacity * sizeof *scratch->candidates);
    if (!scratch->symbols || !scratch->candidates)
        return -1;
    scratch->capacity = capacity;
    return 0;
}

struct heap {
    struct bpe_candidate *items;
    size_t n;
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
    const struct bpe_merge *merge = merge_slot(bpe, symbols[at].id, symbols[next].id);
    if (merge->pair != PAIR_FREE)
        heap_push(heap, (struct bpe_candidate){ merge->rank, at, merge->id });
}

/* Whether the pair is still the one that was put on the heap. */
static int is_current(const struct bpe *bpe, const struct bpe_symbol *symbols,
                      struct bpe_candidate candidate)
{
    const struct bpe_symbol *left = &symbols[candidate.at];

    if (left->id < 0 || left->next < 0)
        return 0;
    const struct bpe_merge *merge = merge_slot(bpe, left->id, symbols[left->next].id);
    return merge->pair != PAIR_FREE && merge->id == candidate.id;
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t n)
{
    struct bpe_symbol *symbols = scratch->symbols;
    struct heap heap = { scratch->candidates, 0 };

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

/* The id of a word that is a token as it is, or -1. */
static int32_t find_whole(const struct bpe *bpe, const char *word, size_t n)
{
    char spelling[256];
    size_t n_spelling = 0;

    if (!bpe->is_byte_level)
        return bpe_find(bpe, word, n);
    if (n > sizeof spelling / 2)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const struct bpe_token *byte = &bpe->tokens[bpe->byte_ids[(unsigned char)word[i]]];

        memcpy(spelling + n_spelling, byte->spelling, byte->n_spelling);
        n_spelling += byte->n_spelling;
    }
    return bpe_find(bpe, spelling, n_spelling);
}

static int32_t start_bytes(const struct bpe *bpe, struct bpe_symbol *symbols, const char *word,
                           int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        symbols[i] = (struct bpe_symbol){ bpe->byte_ids[(unsigned char)word[i]], i - 1, i + 1, 0 };
    return n;
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

static size_t put_ids(const struct bpe *bpe, const struct bpe_symbol *symbols, const char *word,
                      size_t n_bytes, int32_t *ids)
{
    size_t count = 0;
    int after_unknown = 0;

    for (int32_t at = 0; at >= 0; at = symbols[at].next) {
        const struct bpe_symbol *symbol = &symbols[at];
        int is_unknown = symbol->id >= bpe->n_visible;

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
    if (scratch_reserve(scratch, n_bytes) < 0)
        return NULL;
    struct bpe_symbol *symbols = scratch->symbols;
    int32_t *ids = (int32_t *)(void *)scratch->candidates; /* done with when the ids are written */
    int32_t whole = bpe->ignore_merges ? find_whole(bpe, word, n_bytes) : -1;

    if (whole >= 0) {
        ids[0] = whole;
        *n_ids = 1;
        return ids;
    }
    int32_t n = bpe->is_byte_level ? start_bytes(bpe, symbols, word, (int32_t)n_bytes)
                                   : start_characters(bpe, symbols, word, n_bytes);
    symbols[n - 1].next = -1;
    merge_all(bpe, scratch, n);
    *n_ids = put_ids(bpe, symbols, word, n_bytes, ids);
    return ids;
}
