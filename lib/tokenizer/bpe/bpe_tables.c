/*
 * bpe_tables.c - tokens by id and by spelling, and merges by pair
 *
 * Most pairs have no merge: a filter of one bit for each hash rejects them, which fits in a near
 * cache as the table of merges does not.
 */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "tokenizer/bpe/bpe_impl.h"
#include "tokenizer/unicode/unicode.h"

void bpe_init(struct bpe *bpe, struct arena *arena, bool is_byte_level, int n_tokens, int n_ids)
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
    bpe->filter_mask = 4 * n_pairs - 1; /* eight bits or more a merge */
    bpe->merge_filter = arena_array(bpe->arena, uint64_t, (4 * n_pairs + 63) / 64);
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

/* The character that spells a byte. */
static uint32_t spelling_of(unsigned char byte)
{
    if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad))
        return byte;
    return byte <= 32 ? 0x100u + byte : byte == 173 ? 0x143u : 0x100u + 33 + byte - 127;
}

int bpe_add_bytes(struct bpe *bpe, int32_t id, const unsigned char *bytes, size_t n_bytes)
{
    char *spelling = arena_alloc(bpe->arena, 2 * n_bytes + 2);
    size_t n = 0;

    for (size_t i = 0; i < n_bytes; i++)
        n += unicode_encode(spelling + n, spelling_of(bytes[i]));
    return bpe_add_token(bpe, id, spelling, n);
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
        if (bpe->byte_ids[byte] < 0) {
            bpe->lacks_bytes = true;
            return byte;
        }
    return -1;
}

void bpe_find_ascii(struct bpe *bpe)
{
    for (int i = 0; i < 128; i++) {
        char c = (char)i;

        bpe->ascii_ids[i] = bpe_find(bpe, &c, 1);
    }
}

void bpe_set_unused(struct bpe *bpe, int32_t id)
{
    if (!bpe->unused) {
        bpe->unused = arena_array(bpe->arena, int32_t, bpe->n_ids);
        memset(bpe->unused, 0xff, (size_t)bpe->n_ids * sizeof *bpe->unused);
    }
    bpe->unused[id] = bpe->n_unused++;
    if ((int)bpe->tokens[id].n_spelling > bpe->n_parts_max)
        bpe->n_parts_max = (int)bpe->tokens[id].n_spelling;
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

void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right), hash = hash_pair(pair);
    size_t bit = hash >> 20 & bpe->filter_mask;

    CHECK(rank >= 0);
    CHECK(rank < BPE_RANKS_MAX);
    *merge_slot(bpe, pair, hash) = (struct bpe_merge){ pair, rank, id };
    bpe->merge_filter[bit / 64] |= 1ull << (bit % 64);
}
