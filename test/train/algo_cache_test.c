/*
 * algo_cache_test.c - what ranks whose kernels choose agree on
 *
 * The kernels are a stand-in: a choice is a line "KEY VALUE", and what is loaded replaces what its
 * key had, as cuda/gemm_library.cu's do.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <pthread.h>
#include <string.h>

#include "train/algo_cache.h"
#include "train/trainer_impl.h"

enum { N_RANKS = 2, N_KEYS = 26 };

struct rank {
    struct kernels kernels; /* first: the hooks get its address */
    char values[N_KEYS];    /* by key, 'a' to 'z'; 0: not chosen */
    int refuses;            /* to load anything */
    struct comm_hub *hub;
    int rank, pp, status;
    struct err err;
};

static void print(struct kernels *kernels, struct str *text)
{
    const struct rank *r = (const struct rank *)kernels;

    for (int key = 0; key < N_KEYS; key++)
        if (r->values[key])
            str_printf(text, "%c %c\n", 'a' + key, r->values[key]);
}

static int load(struct kernels *kernels, const char *text, struct err *err)
{
    struct rank *r = (struct rank *)kernels;

    if (r->refuses)
        return err_set(err, ERR_DEVICE, "refused");
    for (; *text; text += 4)
        r->values[text[0] - 'a'] = text[2];
    return 0;
}

static void forget(struct kernels *kernels)
{
    memset(((struct rank *)kernels)->values, 0, N_KEYS);
}

static const struct kernels_backend backend = {
    .name = "stand-in", .choices_print = print, .choices_load = load, .choices_forget = forget
};

static void *live(void *argument)
{
    struct rank *r = argument;
    struct trainer t = { .options.kernels = &r->kernels,
                         .world_rank = r->rank,
                         .world_size = N_RANKS,
                         .program.mesh = mesh_data_parallel(N_RANKS / r->pp) };

    t.program.mesh.size[AXIS_PP] = r->pp;
    r->kernels.backend = &backend;
    CHECK(comm_thread_create(&t.options.comm, r->hub, r->rank, &r->err) == 0);
    CHECK(trainer_join(&t, &r->err) == 0);
    r->status = algo_cache_make(&t, &r->err);
    comm_destroy(t.options.comm);
    return NULL;
}

/* Ranks with these choices, as load has them, make one of them. */
static void make(struct rank *ranks, int pp, const char *const *chosen)
{
    struct comm_hub *hub;
    pthread_t threads[N_RANKS];
    struct err err;

    assert_int_equal(comm_hub_create(&hub, N_RANKS, &err), 0);
    for (int i = 0; i < N_RANKS; i++) {
        int refuses = ranks[i].refuses;

        ranks[i] = (struct rank){ .hub = hub, .rank = i, .pp = pp };
        load(&ranks[i].kernels, chosen[i], &err);
        ranks[i].refuses = refuses;
        assert_int_equal(pthread_create(&threads[i], NULL, live, &ranks[i]), 0);
    }
    for (int i = 0; i < N_RANKS; i++)
        pthread_join(threads[i], NULL);
    comm_hub_destroy(hub);
}

static void must_have(struct rank *ranks, const char *wanted)
{
    for (int i = 0; i < N_RANKS; i++) {
        struct str text = { 0 };

        assert_int_equal(ranks[i].status, 0);
        print(&ranks[i].kernels, &text);
        assert_string_equal(str_text(&text), wanted);
        str_release(&text);
    }
}

/* Of ranks of one stage the first one's, and nothing else. */
static void the_first_rank_chooses(void **state)
{
    struct rank ranks[N_RANKS] = { 0 };

    (void)state;
    make(ranks, 1, (const char *const[]){ "a 1\nc 1\n", "a 2\nb 2\n" });
    must_have(ranks, "a 1\nc 1\n");
}

static void stages_choose_for_what_they_have(void **state)
{
    struct rank ranks[N_RANKS] = { 0 };

    (void)state;
    make(ranks, 2, (const char *const[]){ "a 1\n", "b 2\n" });
    must_have(ranks, "a 1\nb 2\n");
}

static void the_first_stage_goes_first(void **state)
{
    struct rank ranks[N_RANKS] = { 0 };

    (void)state;
    make(ranks, 2, (const char *const[]){ "a 1\nb 1\n", "b 2\nc 2\n" });
    must_have(ranks, "a 1\nb 1\nc 2\n");
}

/* All learn of it, also those who could. */
static void a_rank_that_cannot_take_it(void **state)
{
    (void)state;
    for (int bad = 0; bad < N_RANKS; bad++)
        for (int pp = 1; pp <= N_RANKS; pp++) {
            struct rank ranks[N_RANKS] = { [0].refuses = bad == 0, [1].refuses = bad == 1 };

            make(ranks, pp, (const char *const[]){ "a 1\n", "b 2\n" });
            for (int i = 0; i < N_RANKS; i++) {
                assert_int_equal(ranks[i].status, -1);
                assert_int_equal(ranks[i].err.code, ERR_DEVICE);
                assert_string_equal(ranks[i].err.text,
                                    i == bad ? "refused" : "another rank could not start");
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_rank_chooses),
        cmocka_unit_test(stages_choose_for_what_they_have),
        cmocka_unit_test(the_first_stage_goes_first),
        cmocka_unit_test(a_rank_that_cannot_take_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
