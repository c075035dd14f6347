/*
 * stash_share.c - the chunks of a pipeline rank share slots
 *
 * Interleaved chunks (Narayanan et al. 2021, section 2.2) hold the most micro-batches at different
 * times, so slots of one chunk alone would be empty while another chunk's are full. Chunks of equal
 * layers hold equal values: these have equal offsets in slots that all chunks share, and each pair
 * of chunk and micro-batch gets a slot for its life. The slot that was freed last is used first.
 * What follows then depends on no slot's number, and a schedule that repeats itself repeats its use
 * of slots but for their names (replay_rounds.c). A new slot is taken only if none is free, so
 * there are as many as live at one time.
 *
 * A *frame* is what one chunk holds of a micro-batch in such a slot: its largest stash, and others
 * of nearly the same life (a boundary, which is received a little before the forward). It has one
 * life, from the first touch of any of them to the last, and therefore one slot: a function is
 * bound to no more sets of slots than there are slots, times those of what is not in the frame.
 * Values of a frame that have no offset in the slot (inputs, what the head alone keeps) are
 * elsewhere, in as many slots.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/stash_impl.h"

enum { NONE = -1, NEARLY = 1 /* slots by which the stashes of a frame may differ */ };

struct slot_frame {
    char *has;                /* by stash, before sharing */
    struct stash_life *lives; /* by micro-batch */
    int *slots;               /* likewise */
    int shared, apart;        /* stashes after sharing: in shared slots, and of the other values */
};

struct sharing {
    struct dividing *d;
    struct program *program;
    const struct stash_lives *lives;
    struct slot_frame **frames; /* by chunk; NULL where it has none */
    int n_chunks, n_frames;
    const struct slot_frame *reference; /* its values define the layout of a slot */
    int n_slots;

    struct stash *stashes; /* after sharing */
    int n_stashes;
    int *stash;          /* by value, then */
    size_t *place_bytes; /* likewise */
};

/* ---- frames ---- */

static bool has_function(const struct dividing *d, int stash, int function)
{
    return d->of_stash[stash].functions[function / 64] >> function % 64 & 1;
}

static bool is_of_step(const struct dividing *d, int stash)
{
    for (int e = 0; e < N_ENTRIES; e++)
        for (int m = 0; e != ENTRY_STEP && m < d->lives[e].n_micro_batches; m++)
            if (life_of(&d->lives[e], stash, m)->first)
                return false;
    return true;
}

/* The chunk of all functions that touch the stash; NONE if they have several chunks, or run in
 * other entries. Stashes in host memory keep slots of their own, since host memory is not
 * scarce. */
static int chunk_of(const struct sharing *s, int stash)
{
    const struct program *p = s->program;
    int chunk = NONE;

    for (int f = 0; f < p->n_functions; f++) {
        if (!has_function(s->d, stash, f))
            continue;
        if (chunk != NONE && p->functions[f].chunk != chunk)
            return NONE;
        chunk = p->functions[f].chunk;
    }
    return is_of_step(s->d, stash) && s->d->of_stash[stash].space == SPACE_DEVICE ? chunk : NONE;
}

static size_t bytes_of(const struct stash *stash)
{
    return (size_t)stash->n_slots * stash->slot_bytes;
}

/* Whether all functions that touch a touch b. */
static bool is_within(const struct dividing *d, int a, int b)
{
    for (int i = 0; i < d->n_words; i++)
        if (d->of_stash[a].functions[i] & ~d->of_stash[b].functions[i])
            return false;
    return true;
}

static int belong_together(const struct dividing *d, int a, int b)
{
    int more = d->program->stashes[a].n_slots - d->program->stashes[b].n_slots;

    return -NEARLY <= more && more <= NEARLY && (is_within(d, a, b) || is_within(d, b, a));
}

/* Add the stash, and the lifetimes of its micro-batches, to the frame. */
static void join_frame(const struct sharing *s, struct slot_frame *frame, int stash)
{
    frame->has[stash] = 1;
    for (int m = 0; m < s->lives->n_micro_batches; m++) {
        const struct stash_life *life = life_of(s->lives, stash, m);
        struct stash_life *whole = &frame->lives[m];

        if (!life->first)
            continue;
        whole->first = whole->first ? min_int(whole->first, life->first) : life->first;
        whole->last = max_int(whole->last, life->last);
    }
}

/* The frame of a chunk: its largest stash, and all that belong to it. */
static void find_frame(struct sharing *s, int chunk, const int *chunks)
{
    const struct program *p = s->program;
    struct slot_frame *frame = arena_new(s->d->arena, struct slot_frame);
    int largest = NONE;

    for (int i = 0; i < p->n_stashes; i++)
        if (chunks[i] == chunk && !s->d->of_stash[i].loaded &&
            (largest == NONE || bytes_of(&p->stashes[i]) > bytes_of(&p->stashes[largest])))
            largest = i;
    if (largest == NONE)
        return;
    frame->has = arena_array(s->d->arena, char, p->n_stashes);
    frame->lives = arena_array(s->d->arena, struct stash_life, s->lives->n_micro_batches);
    for (int i = 0; i < p->n_stashes; i++)
        if (chunks[i] == chunk && belong_together(s->d, i, largest))
            join_frame(s, frame, i);
    s->frames[chunk] = frame;
    s->n_frames++;
}

static void find_frames(struct sharing *s)
{
    const struct program *p = s->program;
    int *chunks = arena_array(s->d->arena, int, p->n_stashes);

    for (int i = 0; i < p->n_stashes; i++) {
        chunks[i] = chunk_of(s, i);
        s->n_chunks = max_int(s->n_chunks, chunks[i] + 1);
    }
    s->frames = arena_array(s->d->arena, struct slot_frame *, s->n_chunks);
    for (int chunk = 0; s->n_chunks > 1 && chunk < s->n_chunks; chunk++)
        find_frame(s, chunk, chunks);
}

/* ---- slots ---- */

struct free_slots {
    int *slots, n, capacity;
};

/* Take a slot for the frame if this action begins the micro-batch's lifetime, and free it if it
 * ends it. */
static void take_turn(struct sharing *s, struct slot_frame *frame, int action,
                      struct free_slots *free)
{
    int m = s->program->entries[ENTRY_STEP].actions[action].micro_batch;

    if (frame->lives[m].first == action + 1)
        frame->slots[m] = free->n ? free->slots[--free->n] : s->n_slots++;
    if (frame->lives[m].last != action + 1)
        return;
    free->slots = arena_grow(s->d->arena, free->slots, sizeof(int), &free->capacity, free->n + 1);
    free->slots[free->n++] = frame->slots[m];
}

static void give_slots(struct sharing *s)
{
    const struct entry *e = &s->program->entries[ENTRY_STEP];
    struct free_slots free = { 0 };

    for (int i = 0; i < e->n_actions; i++) {
        const struct action *a = &e->actions[i];
        int of = a->kind == ACTION_RUN ? s->program->functions[a->function].chunk : NONE;

        if (a->micro_batch < 0)
            continue;
        if (of >= 0 && of < s->n_chunks && s->frames[of])
            take_turn(s, s->frames[of], i, &free);
        for (int c = 0; a->kind == ACTION_LOAD && c < s->n_chunks; c++)
            if (s->frames[c])
                take_turn(s, s->frames[c], i, &free);
    }
}

static void find_slots(struct sharing *s)
{
    int n_micro_batches = 0;

    for (int e = 0; e < N_ENTRIES; e++)
        n_micro_batches = max_int(n_micro_batches, s->d->lives[e].n_micro_batches);
    for (int c = 0; c < s->n_chunks; c++)
        if (s->frames[c])
            s->frames[c]->slots = arena_array(&s->program->arena, int, n_micro_batches);
    give_slots(s);
}

/* ---- offsets ---- */

static bool is_of_frame(const struct sharing *s, const struct slot_frame *frame, int id)
{
    return s->d->marked[id] && frame->has[s->program->values[id].stash];
}

static size_t frame_bytes(const struct sharing *s, const struct slot_frame *frame)
{
    size_t n_bytes = 0;

    for (int i = 0; i < s->program->n_stashes; i++)
        if (frame->has[i])
            n_bytes += bytes_of(&s->program->stashes[i]);
    return n_bytes;
}

static void choose_reference(struct sharing *s)
{
    for (int c = 0; c < s->n_chunks; c++)
        if (s->frames[c] &&
            (!s->reference || frame_bytes(s, s->frames[c]) > frame_bytes(s, s->reference)))
            s->reference = s->frames[c];
}

static void put(struct sharing *s, int id, int stash)
{
    struct stash *to = &s->stashes[stash];

    s->stash[id] = stash;
    s->place_bytes[id] = to->slot_bytes;
    to->slot_bytes += placed_bytes(s->program, id);
}

/* List the values of the reference frame in a slot. Returns how many. */
static int lay_out_slot(struct sharing *s, int *list)
{
    int n = 0;

    for (int id = 1; id < s->program->n_values; id++)
        if (is_of_frame(s, s->reference, id) && s->program->values[id].role == ROLE_NONE) {
            put(s, id, s->reference->shared);
            list[n++] = id;
        }
    return n;
}

/* Give each value the offset of a reference value of equal size; taken: those that have been
 * used. */
static void put_alike(struct sharing *s, const struct slot_frame *frame, const int *list, int n,
                      char *taken)
{
    memset(taken, 0, (size_t)n);
    for (int id = 1; id < s->program->n_values; id++) {
        size_t n_bytes = program_value_bytes(s->program, id);
        int k = 0;

        if (!is_of_frame(s, frame, id) || s->program->values[id].role != ROLE_NONE)
            continue;
        while (k < n && (taken[k] || program_value_bytes(s->program, list[k]) != n_bytes))
            k++;
        if (k == n)
            continue;
        taken[k] = 1;
        s->stash[id] = frame->shared;
        s->place_bytes[id] = s->place_bytes[list[k]];
    }
    s->stashes[frame->shared].slot_bytes = s->stashes[s->reference->shared].slot_bytes;
}

/* Give values without an offset a stash apart, with as many slots as the frame has, or, if one slot
 * is enough, their previous stash. */
static void put_others(struct sharing *s)
{
    const struct program *p = s->program;

    for (int id = 1; id < p->n_values; id++) {
        int stash = p->values[id].stash;

        if (!s->d->marked[id] || s->stash[id] != NONE)
            continue;
        for (int c = 0; p->stashes[p->values[id].stash].n_slots > 1 && c < s->n_chunks; c++)
            if (s->frames[c] && is_of_frame(s, s->frames[c], id))
                stash = s->frames[c]->apart;
        put(s, id, stash);
    }
}

/* The stashes as they were, and two for each frame, all empty. */
static void open_stashes(struct sharing *s)
{
    const struct program *p = s->program;

    s->n_stashes = p->n_stashes;
    s->stashes = arena_array(&s->program->arena, struct stash, p->n_stashes + 2 * s->n_frames + 1);
    for (int i = 0; i < p->n_stashes; i++)
        s->stashes[i] =
            (struct stash){ .n_slots = p->stashes[i].n_slots, .segment = p->stashes[i].segment };
    for (int c = 0; c < s->n_chunks; c++) {
        struct slot_frame *frame = s->frames[c];

        if (!frame)
            continue;
        frame->shared = s->n_stashes++;
        frame->apart = s->n_stashes++;
        s->stashes[frame->shared] = (struct stash){
            .n_slots = s->n_slots, .slots = frame->slots, .segment = SEGMENT_STASH, .shared = 1
        };
        s->stashes[frame->apart] = (struct stash){ .n_slots = s->n_slots,
                                                   .slots = frame->slots,
                                                   .segment = SEGMENT_STASH };
    }
}

static void place_anew(struct sharing *s)
{
    int *list = arena_array(s->d->arena, int, s->program->n_values);
    char *taken = arena_array(s->d->arena, char, s->program->n_values);

    s->stash = arena_array(s->d->arena, int, s->program->n_values);
    s->place_bytes = arena_array(s->d->arena, size_t, s->program->n_values);
    for (int id = 0; id < s->program->n_values; id++)
        s->stash[id] = NONE;
    open_stashes(s);
    int n = lay_out_slot(s, list);
    for (int c = 0; c < s->n_chunks; c++)
        if (s->frames[c] && s->frames[c] != s->reference)
            put_alike(s, s->frames[c], list, n, taken);
    put_others(s);
}

/* ---- whether sharing takes less memory ---- */

/* Shared slots count once. */
static size_t bytes_of_all(const struct stash *stashes, int n)
{
    size_t n_bytes = 0;
    int n_shared = 0;

    for (int i = 0; i < n; i++) {
        n_bytes += stashes[i].shared && n_shared ? 0 : bytes_of(&stashes[i]);
        n_shared += stashes[i].shared;
    }
    return n_bytes;
}

/* Set the program's stashes to those after sharing, without empty ones. */
static void keep(struct sharing *s)
{
    struct program *p = s->program;
    int *now = arena_array(s->d->arena, int, s->n_stashes), n = 0;

    for (int i = 0; i < s->n_stashes; i++) {
        now[i] = n;
        if (s->stashes[i].slot_bytes)
            s->stashes[n++] = s->stashes[i];
    }
    for (int id = 1; id < p->n_values; id++)
        if (s->d->marked[id]) {
            p->values[id].stash = now[s->stash[id]];
            p->values[id].place_bytes = s->place_bytes[id];
        }
    p->stashes = s->stashes;
    p->n_stashes = n;
}

void share_stashes(struct dividing *d)
{
    struct sharing s = { .d = d, .program = d->program, .lives = &d->lives[ENTRY_STEP] };

    find_frames(&s);
    if (s.n_frames < 2)
        return;
    find_slots(&s);
    choose_reference(&s);
    place_anew(&s);
    if (bytes_of_all(s.stashes, s.n_stashes) <
        bytes_of_all(d->program->stashes, d->program->n_stashes))
        keep(&s);
}
