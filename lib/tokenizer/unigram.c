/*
 * unigram.c - Viterbi along a trie
 */
#include "tokenizer/unigram.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "tokenizer/unicode.h"

#define UNKNOWN_PENALTY 10.0f
#define NODE_FREE UINT32_MAX

struct unigram_node {
    uint32_t key;   /* parent << 8 | byte */
    uint32_t child; /* number of this node */
    int32_t piece;  /* that ends here, -1: none */
};

static size_t slot_of(const struct unigram *u, uint32_t key)
{
    size_t slot = (key * 0x9E3779B97F4A7C15u >> 20) & u->mask;

    while (u->nodes[slot].key != key && u->nodes[slot].key != NODE_FREE)
        slot = (slot + 1) & u->mask;
    return slot;
}

void unigram_init(struct unigram *u, struct arena *arena, const struct unigram_piece *pieces, int n)
{
    size_t n_bytes = 0, size = 64;
    uint32_t n_nodes = 0;

    for (int i = 0; i < n; i++)
        n_bytes += pieces[i].n_bytes;
    CHECK(n_bytes < (1u << 24) - 1);
    while (size < 2 * n_bytes)
        size *= 2;
    *u = (struct unigram){
        .mask = size - 1, .pieces = pieces, .least_score = INFINITY, .greatest_score = FLT_MIN
    };
    u->nodes = arena_array(arena, struct unigram_node, size);
    memset(u->nodes, 0xff, size * sizeof *u->nodes);
    for (int i = 0; i < n; i++) {
        uint32_t node = 0;

        for (size_t at = 0; at < pieces[i].n_bytes; at++) {
            uint32_t key = node << 8 | (unsigned char)pieces[i].text[at];
            size_t slot = slot_of(u, key);

            if (u->nodes[slot].key == NODE_FREE)
                u->nodes[slot] = (struct unigram_node){ key, ++n_nodes, -1 };
            node = u->nodes[slot].child;
            if (at + 1 == pieces[i].n_bytes)
                u->nodes[slot].piece = i;
        }
        if (!pieces[i].is_user_defined) {
            u->least_score = fminf(u->least_score, pieces[i].score);
            u->greatest_score = fmaxf(u->greatest_score, pieces[i].score);
        }
    }
}

static void offer(struct unigram_step *step, size_t start, int32_t id, float score)
{
    if (step->start != SIZE_MAX && !(score > step->score))
        return;
    *step = (struct unigram_step){ start, id, score };
}

/* All pieces that start at a place; whether one of them is its first character. */
static int offer_pieces(const struct unigram *u, const unsigned char *text, size_t n_bytes,
                        size_t start, size_t n_character, struct unigram_step *steps)
{
    float before = steps[start].score;
    uint32_t node = 0;
    int has_character = 0;

    for (size_t at = start; at < n_bytes; at++) {
        const struct unigram_node *item = &u->nodes[slot_of(u, node << 8 | text[at])];

        if (item->key == NODE_FREE)
            break;
        node = item->child;
        if (item->piece < 0)
            continue;
        const struct unigram_piece *piece = &u->pieces[item->piece];
        size_t length = at + 1 - start;
        float score = piece->is_user_defined
                          ? (float)((double)((float)length * u->greatest_score) - 0.1)
                          : piece->score;
        offer(&steps[at + 1], start, piece->id, score + before);
        has_character |= length == n_character;
    }
    return has_character;
}

void unigram_encode(const struct unigram *u, const char *text, size_t n_bytes,
                    struct unigram_step *steps)
{
    const unsigned char *bytes = (const unsigned char *)text;
    float unknown = u->least_score - UNKNOWN_PENALTY;
    size_t length;

    for (size_t i = 0; i <= n_bytes; i++)
        steps[i] = (struct unigram_step){ SIZE_MAX, -1, 0 };
    for (size_t at = 0; at < n_bytes; at += length) {
        unicode_decode(bytes + at, &length);
        if (!offer_pieces(u, bytes, n_bytes, at, length, steps))
            offer(&steps[at + length], at, -1, unknown + steps[at].score);
    }
}
