/*
 * pattern.c - from a program to states, and matching by them
 *
 * A state is the list of threads that a backtracking machine would try, best first, each at the
 * instruction that it has yet to look at. With the next code point's class known, the list is run
 * up to the instructions that take a code point: one that matches ends the list, for all behind it
 * are worse. Code points that all sets of the pattern treat alike are one class; the end of the
 * text is the last class.
 */
#include "tokenizer/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/pattern_impl.h"

enum { STATES_MAX = 2048, CLASSES_MAX = 128 };
#define MATCHES 0x8000u /* in a builder's next */

struct pattern_state {
    int16_t *threads;
    int n;
};

struct pattern_builder {
    struct pattern_program program;
    uint64_t signatures[CLASSES_MAX]; /* a bit a set: whether the class is in it */
    int n_classes;                    /* without the end of the text */
    uint8_t *classes;                 /* [UNICODE_CODES] */
    uint8_t *edges;                   /* [UNICODE_CODES + 1]: whether a set begins or ends here */
    struct pattern_state states[STATES_MAX];
    int n_states;
    uint16_t *next; /* [STATES_MAX][n_classes + 1] */
    struct arena arena;
    const char *text;
    struct err *err;
};

/* ---- classes ---- */

static bool is_member(const struct pattern_set *set, uint32_t code, uint32_t category)
{
    int found = set->categories >> category & 1;

    for (int i = 0; i < set->n_ranges && !found; i++)
        found = code >= set->ranges[i][0] && code <= set->ranges[i][1];
    return found != set->negated;
}

static int class_of(struct pattern_builder *b, uint32_t code, uint32_t category)
{
    uint64_t signature = 0;
    int class = 0;

    for (int i = 0; i < b->program.n_sets; i++)
        signature |= (uint64_t)is_member(&b->program.sets[i], code, category) << i;
    while (class < b->n_classes && b->signatures[class] != signature)
        class ++;
    if (class == CLASSES_MAX - 1)
        return err_set(b->err, ERR_DATA, "pattern '%s' has more than %d kinds of characters",
                       b->text, CLASSES_MAX - 2);
    if (class == b->n_classes)
        b->signatures[b->n_classes++] = signature;
    return class;
}

static int find_classes(struct pattern_builder *b)
{
    int run = 0, class = 0;

    for (int i = 0; i < b->program.n_sets; i++) {
        const struct pattern_set *set = &b->program.sets[i];

        for (int k = 0; k < set->n_ranges; k++)
            b->edges[set->ranges[k][0]] = b->edges[set->ranges[k][1] + 1] = 1;
    }
    for (uint32_t code = 0; code < UNICODE_CODES; code++) {
        int starts = run < unicode_n_category_runs && unicode_category_runs[run] >> 8 == code;

        run += starts;
        if (starts || b->edges[code]) {
            class = class_of(b, code, unicode_category_runs[run - 1] & 255);
            if (class < 0)
                return -1;
        }
        b->classes[code] = (uint8_t) class;
    }
    return 0;
}

/* ---- states ---- */

/* Threads while a list is run. */
struct pattern_run {
    int stack[2 * PATTERN_INSTRUCTIONS_MAX];
    uint8_t seen[PATTERN_INSTRUCTIONS_MAX];      /* in this list */
    uint8_t seen_next[PATTERN_INSTRUCTIONS_MAX]; /* in the next one */
    int16_t next[PATTERN_INSTRUCTIONS_MAX];
    int n_next, matched;
};

/* Run one thread, and those it becomes, up to what takes a code point. */
static void run_thread(struct pattern_builder *b, struct pattern_run *run, int thread, int class)
{
    int n = 0;
    bool is_end = class == b->n_classes;

    run->stack[n++] = thread;
    while (n > 0 && !run->matched) {
        int at = run->stack[--n];
        const struct pattern_instruction *item = &b->program.items[at];
        int fits = item->set >= 0 && !is_end && (b->signatures[class] >> item->set & 1);

        if (run->seen[at])
            continue;
        run->seen[at] = 1;
        if (item->op == PATTERN_SPLIT)
            run->stack[n++] = item->y;
        if (item->op == PATTERN_SPLIT || item->op == PATTERN_JUMP)
            run->stack[n++] = item->x;
        else if (item->op == PATTERN_LOOK && (is_end ? item->at_end : fits))
            run->stack[n++] = at + 1;
        else if (item->op == PATTERN_MATCH)
            run->matched = 1;
        else if (item->op == PATTERN_SET && fits && !run->seen_next[at + 1]) {
            run->seen_next[at + 1] = 1;
            run->next[run->n_next++] = (int16_t)(at + 1);
        }
    }
}

/* The state of these threads, made if there is none yet, or -1. */
static int find_state(struct pattern_builder *b, const int16_t *threads, int n)
{
    for (int i = 0; i < b->n_states; i++)
        if (b->states[i].n == n &&
            memcmp(b->states[i].threads, threads, (size_t)n * sizeof *threads) == 0)
            return i;
    if (b->n_states == STATES_MAX)
        return err_set(b->err, ERR_DATA, "pattern '%s' needs more than %d states", b->text,
                       STATES_MAX);
    struct pattern_state *state = &b->states[b->n_states];
    state->threads = arena_array(&b->arena, int16_t, n + 1);
    memcpy(state->threads, threads, (size_t)n * sizeof *threads);
    state->n = n;
    return b->n_states++;
}

static int build_states(struct pattern_builder *b)
{
    static const int16_t start[1] = { 0 };
    int stride = b->n_classes + 1;

    find_state(b, start, 0);
    find_state(b, start, 1);
    for (int s = 0; s < b->n_states; s++)
        for (int class = 0; class < stride; class ++) {
            struct pattern_run run = { .n_next = 0 };

            for (int i = 0; i < b->states[s].n && !run.matched; i++)
                run_thread(b, &run, b->states[s].threads[i], class);
            int next = find_state(b, run.next, run.n_next);
            if (next < 0)
                return -1;
            if (run.matched && s == 1)
                return err_set(b->err, ERR_DATA, "pattern '%s' matches the empty text", b->text);
            b->next[s * stride + class] = (uint16_t)((unsigned)next | (run.matched ? MATCHES : 0));
        }
    return 0;
}

/* ---- the result ---- */

/* Blocks of 256 classes, each kept once. */
static void pack_classes(struct pattern *pattern, const uint8_t *classes, struct arena *arena)
{
    static const int n_blocks = UNICODE_N_BLOCKS;
    uint8_t *index = arena_array(arena, uint8_t, n_blocks);
    int *first = arena_array(arena, int, n_blocks), n = 0;

    for (int i = 0; i < n_blocks; i++) {
        int k = 0;

        while (k < n && memcmp(classes + 256 * first[k], classes + 256 * i, 256) != 0)
            k++;
        /* There are fewer than 200 kinds of blocks in all of Unicode, and ranges may cut some. */
        if (k == n) {
            CHECK(n < 256);
            first[n++] = i;
        }
        index[i] = (uint8_t)k;
    }
    uint8_t(*blocks)[256] = arena_alloc_array(arena, 256, (size_t)n);
    for (int k = 0; k < n; k++)
        memcpy(blocks[k], classes + 256 * first[k], 256);
    pattern->index = index;
    pattern->blocks = (const uint8_t(*)[256])blocks;
    memcpy(pattern->ascii, classes, 128);
}

/* Numbers of states become places in the table, which saves a product per code point. */
static void pack_states(const struct pattern_builder *b, struct pattern *pattern,
                        struct arena *arena)
{
    size_t stride = (size_t)b->n_classes + 1, n = (size_t)b->n_states * stride;
    uint32_t *next = arena_array(arena, uint32_t, n);

    for (size_t i = 0; i < n; i++)
        next[i] = (uint32_t)(b->next[i] & (MATCHES - 1)) * (uint32_t)stride |
                  (b->next[i] & MATCHES ? PATTERN_MATCHES : 0);
    pattern->next = next;
    pattern->n_states = b->n_states;
    pattern->n_classes = (int)stride;
}

/* By the first byte of a code point that the start state goes on with. */
static void find_starts(struct pattern *pattern, const uint8_t *classes)
{
    const uint32_t *start = pattern->next + pattern->n_classes;
    char bytes[4];

    for (uint32_t code = 0; code < UNICODE_CODES; code++) {
        /* Within 64 code points the first byte is the same. */
        if (code >= 0x80 && code % 64 != 0 && classes[code] == classes[code - 1])
            continue;
        unicode_encode(bytes, code);
        pattern->starts[(unsigned char)bytes[0]] |= start[classes[code]] != 0;
    }
}

static int build(struct pattern_builder *b, struct pattern *pattern, struct arena *arena)
{
    if (pattern_parse(&b->program, b->text, b->err) < 0)
        return -1;
    b->classes = arena_array(&b->arena, uint8_t, UNICODE_CODES);
    b->edges = arena_array(&b->arena, uint8_t, UNICODE_CODES + 1);
    if (find_classes(b) < 0)
        return -1;
    size_t stride = (size_t)b->n_classes + 1;
    b->next = arena_array(&b->arena, uint16_t, STATES_MAX * stride);
    if (build_states(b) < 0)
        return -1;
    *pattern = (struct pattern){ .text = arena_strdup(arena, b->text) };
    pack_states(b, pattern, arena);
    pack_classes(pattern, b->classes, arena);
    find_starts(pattern, b->classes);
    return 0;
}

int pattern_compile(struct pattern *pattern, const char *text, struct arena *arena, struct err *err)
{
    struct pattern_builder *b = calloc(1, sizeof *b);

    if (!b)
        return err_set(err, ERR_DEVICE, "out of host memory");
    b->text = text;
    b->err = err;
    int rc = build(b, pattern, arena);
    arena_release(&b->arena);
    free(b);
    return rc;
}

size_t pattern_match(const struct pattern *pattern, const char *text, size_t n_bytes,
                     size_t *n_vain)
{
    const unsigned char *bytes = (const unsigned char *)text;
    const uint32_t *next = pattern->next;
    size_t at = 0, matched = 0;
    uint32_t state = (uint32_t)pattern->n_classes;

    while (at < n_bytes) {
        size_t length = 1;
        uint8_t class;

        if (bytes[at] < 0x80) {
            class = pattern->ascii[bytes[at]];
        } else {
            uint32_t code = unicode_decode(bytes + at, &length);

            class = pattern->blocks[pattern->index[code >> 8]][code & 255];
        }
        state = next[state + class];
        if (state & PATTERN_MATCHES) {
            matched = at;
            state &= ~PATTERN_MATCHES;
        }
        if (state == 0) {
            *n_vain += at - matched;
            return matched;
        }
        at += length;
    }
    if (next[state + (uint32_t)pattern->n_classes - 1] & PATTERN_MATCHES)
        matched = n_bytes;
    *n_vain += n_bytes - matched;
    return matched;
}
