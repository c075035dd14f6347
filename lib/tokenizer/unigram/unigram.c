/*
 * unigram.c - Viterbi segmentation over a trie in a double array
 *
 * The best segmentation of a text is found from left to right: step i holds the greatest score of
 * any sequence of pieces that covers the first i bytes, and where its last piece starts. From each
 * reachable position a walk down the trie finds all pieces that start there, and each piece offers
 * its end position a score. A search ends at the first position that all segmentations pass, mostly
 * the end of a word; the segmentation is then read from there backwards.
 *
 * The trie is a double array (Aoe 1989): the child of a node by a byte is at base + byte, if the
 * parent stored there is the node. It is built once, in the order of a walk over the sorted pieces.
 * Free slots are in a list: an only child takes the first one; for several children a few bases
 * are tried from where the last group was put, and then the group goes to the end of the array.
 */
#include "tokenizer/unigram/unigram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tokenizer/unicode/unicode.h"

#define UNKNOWN_PENALTY 10.0f
#define NO_PARENT UINT32_MAX

struct unigram_node {
    uint32_t base, parent; /* parent NO_PARENT: free, base is then the free one behind it */
    int32_t piece;         /* that ends here, -1: none; of a free one: the free one before it */
};

/* No child is before this place, so that bases are above 0. Place 0 is the root's, and the ends
 * of the list of free places. */
#define CHILDREN_FROM 256
#define TRIES_MAX 256

/* ---- the trie ---- */

/* A node whose children have no slots yet: those of pieces [first, end), equal up to depth. */
struct unplaced_node {
    uint32_t node;
    int first, end;
    size_t depth;
};

struct trie {
    const struct unigram_piece **order; /* sorted */
    const struct unigram_piece *pieces;
    struct unigram_node *nodes;  /* heap */
    size_t n, capacity;          /* n: up to the last that is taken */
    uint32_t first, last;        /* free places; 0: none */
    uint32_t cursor;             /* a free place where several children may find room; 0: none */
    struct unplaced_node *stack; /* heap */
    size_t n_stack, stack_capacity;
};

static int compare_pieces(const void *x, const void *y)
{
    const struct unigram_piece *a = *(const struct unigram_piece *const *)x;
    const struct unigram_piece *b = *(const struct unigram_piece *const *)y;
    int order = memcmp(a->text, b->text, a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes);

    return order != 0 ? order : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

static int reserve_nodes(struct trie *trie, size_t n)
{
    size_t capacity = trie->capacity ? trie->capacity : 4096;

    if (n <= trie->capacity)
        return 0;
    while (capacity < n)
        capacity *= 2;
    struct unigram_node *grown = realloc(trie->nodes, capacity * sizeof *grown);
    if (!grown)
        return -1;
    trie->nodes = grown;
    for (size_t i = trie->capacity; i < capacity; i++) {
        grown[i] = (struct unigram_node){ 0, NO_PARENT, (int32_t)trie->last };
        if (i < CHILDREN_FROM)
            continue;
        if (trie->last)
            grown[trie->last].base = (uint32_t)i;
        else
            trie->first = (uint32_t)i;
        trie->last = (uint32_t)i;
    }
    trie->capacity = capacity;
    return 0;
}

static void take(struct trie *trie, size_t at, uint32_t parent)
{
    struct unigram_node *node = &trie->nodes[at];
    uint32_t next = node->base, previous = (uint32_t)node->piece;

    if (at >= CHILDREN_FROM) {
        *(previous ? &trie->nodes[previous].base : &trie->first) = next;
        if (next)
            trie->nodes[next].piece = (int32_t)previous;
        else
            trie->last = previous;
        if (trie->cursor == at)
            trie->cursor = next;
    }
    *node = (struct unigram_node){ 0, parent, -1 };
    trie->n = at >= trie->n ? at + 1 : trie->n;
}

/* A base at which the places of all n bytes (in order) are free; 0 if there is no memory. */
static size_t find_base(struct trie *trie, const unsigned char *bytes, int n)
{
    if (reserve_nodes(trie, trie->n + 1024) < 0)
        return 0;
    if (n == 1)
        return trie->first - bytes[0];
    uint32_t at = trie->cursor ? trie->cursor : trie->first;
    for (int n_tried = 0; at && n_tried < TRIES_MAX; n_tried++, at = trie->nodes[at].base) {
        size_t base = at - bytes[0];
        int i = 1;

        if (reserve_nodes(trie, at + 512) < 0)
            return 0;
        while (i < n && trie->nodes[base + bytes[i]].parent == NO_PARENT)
            i++;
        if (i == n) {
            /* Where many tries were in vain, later ones would be too. */
            if (n_tried > TRIES_MAX / 8)
                trie->cursor = at;
            return base;
        }
    }
    size_t end = trie->n > CHILDREN_FROM ? trie->n : CHILDREN_FROM;
    trie->cursor = (uint32_t)end;
    return end - bytes[0];
}

static int push(struct trie *trie, struct unplaced_node item)
{
    if (trie->n_stack == trie->stack_capacity) {
        size_t capacity = trie->stack_capacity ? 2 * trie->stack_capacity : 256;
        struct unplaced_node *grown = realloc(trie->stack, capacity * sizeof *grown);

        if (!grown)
            return -1;
        trie->stack = grown;
        trie->stack_capacity = capacity;
    }
    trie->stack[trie->n_stack++] = item;
    return 0;
}

/* Give the children of a node their places. */
static int add_children(struct trie *trie, struct unplaced_node item)
{
    struct unigram_node *node = &trie->nodes[item.node];
    unsigned char bytes[256];
    int starts[257], n = 0;

    if (trie->order[item.first]->n_bytes == item.depth)
        node->piece = (int32_t)(trie->order[item.first++] - trie->pieces);
    if (item.first == item.end)
        return 0;
    for (int i = item.first; i < item.end; i++) {
        unsigned char byte = (unsigned char)trie->order[i]->text[item.depth];

        if (n == 0 || bytes[n - 1] != byte) {
            bytes[n] = byte;
            starts[n++] = i;
        }
    }
    starts[n] = item.end;
    size_t base = find_base(trie, bytes, n);
    if (base == 0)
        return -1;
    trie->nodes[item.node].base = (uint32_t)base;
    for (int i = 0; i < n; i++) {
        size_t child = base + bytes[i];

        take(trie, child, item.node);
        if (push(trie, (struct unplaced_node){ (uint32_t)child, starts[i], starts[i + 1],
                                               item.depth + 1 }) < 0)
            return -1;
    }
    return 0;
}

static int build_trie(struct trie *trie, int n)
{
    if (!trie->order || reserve_nodes(trie, 512) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        trie->order[i] = &trie->pieces[i];
    if (n > 0)
        qsort(trie->order, (size_t)n, sizeof *trie->order, compare_pieces);
    take(trie, 0, 0);
    if (n > 0 && push(trie, (struct unplaced_node){ 0, 0, n, 0 }) < 0)
        return -1;
    while (trie->n_stack > 0)
        if (add_children(trie, trie->stack[--trie->n_stack]) < 0)
            return -1;
    return reserve_nodes(trie, trie->n + 256);
}

/* ---- scores ---- */

/*
 * Such a symbol is to win over pieces that overlap it. SentencePiece up to 0.2.0 gave it -0.1 where
 * no score is above 0; this is what 0.2.3 does, measured by the score at which a longer piece wins.
 */
static double user_defined_score(size_t n_bytes)
{
    return (double)(0.1f * (float)(n_bytes - 1));
}

static void set_scores(struct unigram *u, struct arena *arena, const struct unigram_piece *pieces,
                       int n)
{
    double *scores = arena_array(arena, double, n);
    int32_t n_ids = 0;
    int32_t *ids = arena_array(arena, int32_t, n);
    double least = INFINITY;

    for (int i = 0; i < n; i++)
        if (!pieces[i].is_user_defined)
            least = fmin(least, pieces[i].score);
    for (int i = 0; i < n; i++) {
        scores[i] =
            pieces[i].is_user_defined ? user_defined_score(pieces[i].n_bytes) : pieces[i].score;
        ids[i] = pieces[i].id;
        n_ids = ids[i] >= n_ids ? ids[i] + 1 : n_ids;
        u->has_positive |= scores[i] > 0;
    }
    double *id_scores = arena_array(arena, double, n_ids);
    for (int i = 0; i < n; i++)
        id_scores[ids[i]] = scores[i];
    u->id_scores = id_scores;
    u->scores = scores;
    u->ids = ids;
    u->unknown = u->keeps_floats ? (double)((float)least - UNKNOWN_PENALTY)
                                 : least - (double)UNKNOWN_PENALTY;
}

int unigram_init(struct unigram *u, struct arena *arena, const struct unigram_piece *pieces, int n,
                 bool keeps_floats)
{
    struct trie trie = { .pieces = pieces };
    size_t n_bytes = 0;

    for (int i = 0; i < n; i++)
        n_bytes += pieces[i].n_bytes;
    CHECK(n_bytes < UNIGRAM_BYTES_MAX);
    *u = (struct unigram){ .keeps_floats = keeps_floats };
    trie.order = calloc((size_t)n + 1, sizeof *trie.order);
    int rc = build_trie(&trie, n);
    if (rc == 0) {
        struct unigram_node *nodes = arena_array(arena, struct unigram_node, trie.n + 256);

        memcpy(nodes, trie.nodes, (trie.n + 256) * sizeof *nodes);
        u->nodes = nodes;
        set_scores(u, arena, pieces, n);
    }
    free(trie.order);
    free(trie.nodes);
    free(trie.stack);
    return rc;
}

/* ---- the best segmentation ---- */

void unigram_scratch_release(struct unigram_scratch *scratch)
{
    free(scratch->steps);
    *scratch = (struct unigram_scratch){ 0 };
}

/* Room for steps[0 .. n - 1]. */
static int reserve_steps(struct unigram_scratch *scratch, size_t n)
{
    size_t capacity = scratch->capacity ? scratch->capacity : 256;

    if (n <= scratch->capacity)
        return 0;
    while (capacity < n)
        capacity *= 2;
    struct unigram_step *grown = realloc(scratch->steps, capacity * sizeof *grown);
    if (!grown)
        return -1;
    scratch->steps = grown;
    scratch->capacity = capacity;
    return 0;
}

/* Extend the steps in use, [0 .. reach], to end; no segmentation reaches the new ones yet. */
static int extend(struct unigram_scratch *scratch, size_t *reach, size_t end)
{
    if (end <= *reach)
        return 0;
    if (reserve_steps(scratch, end + 1) < 0)
        return -1;
    for (size_t i = *reach + 1; i <= end; i++)
        scratch->steps[i] = (struct unigram_step){ 0, -INFINITY, UINT32_MAX, 0, -1 };
    *reach = end;
    return 0;
}

/*
 * A segmentation of the bytes up to step with this score, whose last piece id begins at start. Of
 * equal scores the first stays; `second` is the best score of those that lost.
 */
static void offer(const struct unigram *u, struct unigram_step *step, size_t start, int32_t id,
                  double score)
{
    if (u->keeps_floats)
        score = (double)(float)score;
    if (step->start != UINT32_MAX) {
        if (!(score > step->score)) {
            step->second = score > step->second ? score : step->second;
            return;
        }
        step->second = step->score;
    }
    step->score = score;
    step->start = (uint32_t)start;
    step->id = id;
}

/*
 * Make scores relative to that of position `at`. In float, a sum that grows along the text loses
 * the low bits that decide between pieces; SentencePiece subtracts at the same threshold.
 */
static void rebase_scores(struct unigram_scratch *scratch, size_t at, size_t reach)
{
    double base = scratch->steps[at].score;

    for (size_t i = at; i <= reach; i++) {
        scratch->steps[i].score = (double)(float)(scratch->steps[i].score - base);
        scratch->steps[i].second -= base;
    }
}

/*
 * Offer all pieces that start at a position, and its first character as unknown if that is no
 * piece.
 */
static int offer_pieces(const struct unigram *u, struct unigram_scratch *scratch,
                        const unsigned char *text, size_t n_bytes, size_t start, size_t *reach)
{
    double before = scratch->steps[start].score;
    uint32_t node = 0;
    bool has_character = false;
    size_t length, end;

    unicode_decode(text + start, &length);
    for (size_t at = start; at < n_bytes; at++) {
        uint32_t child = u->nodes[node].base + text[at];

        if (u->nodes[child].parent != node || child == 0)
            break;
        node = child;
        if (u->nodes[node].piece < 0)
            continue;
        end = at + 1;
        if (extend(scratch, reach, end) < 0)
            return -1;
        offer(u, &scratch->steps[end], start, u->nodes[node].piece,
              u->scores[u->nodes[node].piece] + before);
        has_character |= end - start == length;
    }
    if (has_character)
        return 0;
    end = start + length;
    if (extend(scratch, reach, end) < 0)
        return -1;
    double score = u->unknown + before;
    offer(u, &scratch->steps[end], start, -1, u->keeps_floats ? (double)(float)score : score);
    return 0;
}

const struct unigram_step *unigram_encode(const struct unigram *u, struct unigram_scratch *scratch,
                                          const char *text, size_t n_bytes, size_t *n_done,
                                          size_t *n_steps)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0, reach = 0, length;

    if (reserve_steps(scratch, 1) < 0)
        return NULL;
    scratch->steps[0].score = scratch->least = scratch->score;
    do {
        scratch->least = fmin(scratch->least, scratch->steps[at].score);
        if (u->keeps_floats && scratch->steps[at].score < UNIGRAM_SUM_LEAST)
            rebase_scores(scratch, at, reach);
        if (offer_pieces(u, scratch, bytes, n_bytes, at, &reach) < 0)
            return NULL;
        unicode_decode(bytes + at, &length);
        at += length;
    } while (at < reach);
    scratch->score = scratch->steps[at].score;
    scratch->gap = INFINITY;
    *n_done = at;
    /* Backwards along the path, each step is moved after those that are still to be visited. */
    size_t last = at, place = at + 1;
    while (last > 0) {
        struct unigram_step step = scratch->steps[last];

        step.end = (uint32_t)last;
        step.id = step.id < 0 ? -1 : u->ids[step.id];
        last = step.start;
        scratch->gap = fmin(scratch->gap, step.score - step.second);
        scratch->steps[--place] = step;
    }
    *n_steps = at + 1 - place;
    return scratch->steps + place;
}

/*
 * A sum of n scores, none above 0, is off by at most n roundings of a part of its own size, and a
 * character is one score at most. So the best path stays the best where it leads by more than the
 * errors of two such sums, where the lead was measured and where it is used. SentencePiece must not
 * restart on the way either, which positions outside the best path can cause.
 */
float unigram_reach(const struct unigram *u, const struct unigram_scratch *scratch, size_t n_bytes)
{
    double part = u->keeps_floats ? 0x1p-24 : 0x1p-53;
    double reach = scratch->gap / (2.1 * (double)(n_bytes + 1) * part) + 2 * scratch->score;

    if (u->has_positive)
        return 0;
    if (u->keeps_floats)
        reach = fmin(reach, scratch->least - UNIGRAM_SUM_LEAST - 1);
    return reach > 0 ? (float)fmin(reach, 1e30) : 0;
}

void unigram_add(const struct unigram *u, struct unigram_scratch *scratch, const int32_t *ids,
                 size_t n)
{
    double score = scratch->score;

    if (u->keeps_floats && score < UNIGRAM_SUM_LEAST)
        score = 0;
    for (size_t i = 0; i < n; i++) {
        score += u->id_scores[ids[i]];
        score = u->keeps_floats ? (double)(float)score : score;
    }
    scratch->score = score;
}
