/*
 * stash_share_test.c - slots that chunks share: as many as their schedule holds, and verify's word
 * that no two that live meet in one
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "base/num.h"
#include "layout/pipeline.h"
#include "program/order.h"
#include "program/passes.h"

enum { CHUNKS_MAX = 4, MICRO_BATCHES_MAX = 40, SLOT_BYTES = 2 * 16 * 8 * 4 };

/* A pipeline rank without its neighbours: each chunk keeps x and y from its forward to its
 * backward, in which z dies. */
struct rank {
    struct program program;
    struct pipeline pipeline;
    struct arena arena;
    int forward[CHUNKS_MAX], backward[CHUNKS_MAX], x[CHUNKS_MAX], y[CHUNKS_MAX];
};

static void add(struct rank *r, int function, int a, int b, int y)
{
    program_emit(&r->program, function,
                 &(struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y }, .layer = -1 });
}

/* extra_of: a chunk that keeps one more value, which has no place where the others have theirs. */
static void add_chunk(struct rank *r, int chunk, int extra_of)
{
    struct program *p = &r->program;
    int constant = program_cell(p, ROLE_CONSTANT, "constant", 16, 8, DTYPE_F32);
    int z = program_value(p, 16, 8, DTYPE_F32);

    r->forward[chunk] = program_function(p, "forward", chunk);
    r->backward[chunk] = program_function(p, "backward", chunk);
    r->x[chunk] = program_value(p, 16, 8, DTYPE_F32);
    r->y[chunk] = program_value(p, 16, 8, DTYPE_F32);
    add(r, r->forward[chunk], constant, constant, r->x[chunk]);
    add(r, r->forward[chunk], r->x[chunk], constant, r->y[chunk]);
    add(r, r->backward[chunk], r->x[chunk], r->y[chunk], z);
    if (chunk == extra_of) {
        int small = program_cell(p, ROLE_CONSTANT, "small", 1, 8, DTYPE_F32);
        int extra = program_value(p, 1, 8, DTYPE_F32);

        add(r, r->forward[chunk], small, small, extra);
        add(r, r->backward[chunk], extra, extra, program_value(p, 1, 8, DTYPE_F32));
    }
}

static void rank_open(struct rank *r, const struct pipeline_spec *spec, int rank, int extra_of)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct entry *e = &r->program.entries[ENTRY_STEP];
    struct err err;

    memset(r, 0, sizeof *r);
    program_init(&r->program, &mesh);
    if (pipeline_build(&r->pipeline, spec, &r->arena, &err))
        fail_msg("%s", err.text);
    for (int chunk = 0; chunk < spec->n_chunks; chunk++)
        add_chunk(r, chunk, extra_of);
    const struct pipeline_list *list = &r->pipeline.ranks[rank];
    e->actions = arena_array(&r->arena, struct action, list->n_steps);
    for (int i = 0; i < list->n_steps; i++) {
        const struct pipeline_step *step = &list->steps[i];
        int function = step->kind == STEP_F ? r->forward[step->chunk] : r->backward[step->chunk];

        e->actions[e->n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                      .function = (int16_t)function,
                                                      .micro_batch = step->micro_batch };
    }
    place(&r->program);
    if (verify(&r->program, &err) < 0)
        fail_msg("%d ranks of %d chunks, %d micro-batches, rank %d: %s", spec->n_ranks,
                 spec->n_chunks, spec->n_micro_batches, rank, err.text);
}

static void rank_close(struct rank *r)
{
    program_release(&r->program);
    arena_release(&r->arena);
}

static const struct stash *stash_of(const struct rank *r, int id)
{
    return &r->program.stashes[r->program.values[id].stash];
}

/* What the stash takes if each chunk has slots of its own. */
static size_t bytes_apart(const struct rank *r, int rank)
{
    size_t n_bytes = 0;

    for (int chunk = 0; chunk < r->pipeline.spec.n_chunks; chunk++)
        n_bytes += SLOT_BYTES * (size_t)pipeline_slots(&r->pipeline, rank, chunk).f_to_w;
    return n_bytes;
}

/* No more is held than the schedule has alive, though chunks have their most at different times. */
static void as_many_slots_as_live_at_one_time(void **state)
{
    int n_shared = 0;

    (void)state;
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (int n_chunks = 1; n_chunks <= CHUNKS_MAX; n_chunks++)
            for (int n = 1; n <= MICRO_BATCHES_MAX; n += 1 + n / 8)
                for (int rank = 0; rank < n_ranks; rank++) {
                    struct pipeline_spec spec = {
                        PIPELINE_INTERLEAVED, n_ranks, n_chunks, n, 0, NULL
                    };
                    struct rank r;

                    rank_open(&r, &spec, rank, -1);
                    size_t n_alive = (size_t)pipeline_peak(&r.pipeline, rank).f_to_w;
                    assert_int_equal(r.program.segment_bytes[SEGMENT_STASH], SLOT_BYTES * n_alive);
                    n_shared += SLOT_BYTES * n_alive < bytes_apart(&r, rank);
                    rank_close(&r);
                }
    assert_true(n_shared > 50);
}

/* Values of equal places have one user; and functions are bound to no more than the slots. */
static void users_and_variants(void **state)
{
    struct pipeline_spec spec = { PIPELINE_INTERLEAVED, 4, 4, 32, 0, NULL };
    struct arena arena = { 0 };
    struct order order;
    struct rank r;

    (void)state;
    rank_open(&r, &spec, 0, -1);
    int n_slots = stash_of(&r, r.x[0])->n_slots;
    for (int chunk = 0; chunk < 4; chunk++) {
        assert_int_equal(r.program.values[r.x[chunk]].place_bytes,
                         r.program.values[r.x[0]].place_bytes);
        for (int i = 0; i < 2; i++)
            r.program.functions[i ? r.backward[chunk] : r.forward[chunk]].ops[0].stream = STREAM_TP;
    }
    order_open(&order, &r.program, &arena);
    for (int chunk = 0; chunk < 4; chunk++) {
        struct order_variants v = order_variants(&order, r.backward[chunk]);

        assert_true(v.n <= n_slots);
        for (int m = 0; m < 32; m++) {
            int first = order_variant_first(&v, order_variant(&v, m));
            int slot = program_slot(&r.program, r.x[chunk], m);

            assert_true(first <= m);
            assert_int_equal(program_slot(&r.program, r.x[chunk], first), slot);
            assert_int_equal(order_user(&order, r.x[chunk], m),
                             order_user(&order, r.x[0], 0) + slot -
                                 program_slot(&r.program, r.x[0], 0));
        }
    }
    rank_close(&r);
    arena_release(&arena);
}

/* What only one chunk has lies apart, in as many slots, by the same table. */
static void what_others_lack_lies_apart(void **state)
{
    struct pipeline_spec spec = { PIPELINE_INTERLEAVED, 4, 4, 32, 0, NULL };
    struct rank r;

    (void)state;
    rank_open(&r, &spec, 0, 3);
    const struct stash *shared = stash_of(&r, r.x[3]), *apart = NULL;
    for (int i = 0; i < r.program.n_stashes; i++)
        if (r.program.stashes[i].slots == shared->slots && &r.program.stashes[i] != shared)
            apart = &r.program.stashes[i];
    assert_non_null(apart);
    assert_int_equal(shared->shared, 1);
    assert_int_equal(apart->shared, 0);
    assert_int_equal(apart->n_slots, shared->n_slots);
    assert_int_equal(stash_of(&r, r.x[0])->begin_bytes, shared->begin_bytes);
    rank_close(&r);
}

static int *table_of(struct rank *r, int chunk)
{
    struct stash *stash = &r->program.stashes[r->program.values[r->x[chunk]].stash];
    int *table = arena_array(&r->arena, int, MICRO_BATCHES_MAX);

    memcpy(table, stash->slots, sizeof *table * 32);
    stash->slots = table;
    return table;
}

/* A micro-batch in the slot of one that lives, in the same chunk or in another, is found. */
static void slots_that_are_taken_are_found(void **state)
{
    struct pipeline_spec spec = { PIPELINE_INTERLEAVED, 2, 3, 32, 0, NULL };
    int n_found = 0;

    (void)state;
    for (int chunk = 0; chunk < 3; chunk++)
        for (int m = 0; m < 32; m++) {
            struct rank r;
            struct err err;

            rank_open(&r, &spec, 0, -1);
            int *table = table_of(&r, chunk), slot = table[m], n_taken = 0;
            for (int other = 0; other < stash_of(&r, r.x[chunk])->n_slots; other++) {
                table[m] = other;
                if (verify(&r.program, &err) < 0) {
                    assert_non_null(strstr(err.text, "slot was reused too early"));
                    assert_int_not_equal(other, slot);
                    n_taken++;
                }
            }
            n_found += n_taken;
            assert_true(n_taken >= 1 || stash_of(&r, r.x[chunk])->n_slots < 3);
            rank_close(&r);
        }
    assert_true(n_found > 100);
}

/* Values that overlap without being at one place have two users: that is refused. */
static void places_that_differ_are_found(void **state)
{
    struct pipeline_spec spec = { PIPELINE_INTERLEAVED, 2, 3, 32, 0, NULL };
    struct err err;
    struct rank r;

    (void)state;
    rank_open(&r, &spec, 0, -1);
    struct program *p = &r.program;
    p->values[r.y[1]].place_bytes -= 16;
    assert_int_equal(verify(p, &err), -1);
    assert_non_null(strstr(err.text, "overlap in memory"));
    p->values[r.y[1]].place_bytes += 16;
    struct stash *stash = &p->stashes[p->values[r.x[2]].stash];
    stash->begin_bytes += 64;
    assert_int_equal(verify(p, &err), -1);
    assert_non_null(strstr(err.text, "shares slots that lie elsewhere"));
    rank_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_slots_as_live_at_one_time),
        cmocka_unit_test(users_and_variants),
        cmocka_unit_test(what_others_lack_lies_apart),
        cmocka_unit_test(slots_that_are_taken_are_found),
        cmocka_unit_test(places_that_differ_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
