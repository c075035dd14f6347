/*
 * preflight_test.c - who is slow, who is wrong, who cannot be told; and the check on this machine
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "train/preflight_impl.h"

enum { N = 5 };

struct fixture {
    struct preflight_rank ranks[N];
    struct preflight p;
    struct arena arena;
};

/* Five equal ranks, each on a host of its own. */
static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    f->p = (struct preflight){ .n_ranks = N, .ranks = f->ranks };
    for (int i = 0; i < N; i++) {
        f->ranks[i] = (struct preflight_rank){ .device = "cpu",
                                               .kernels = 7,
                                               .kind = 9,
                                               .local_size = 1,
                                               .n_threads = 1,
                                               .node = i,
                                               .n_repetitions = 10,
                                               .hash = 42 };
        snprintf(f->ranks[i].host, sizeof f->ranks[i].host, "host%d", i);
        for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
            f->ranks[i].speed[what] = 100e9;
    }
}

/* The findings in words, in an order that the judge gives. */
static const char *judged(struct fixture *f, enum preflight_fault worst)
{
    struct str text = { 0 };

    preflight_judge(&f->p, 0.85, &f->arena);
    assert_int_equal(f->p.worst, worst);
    for (int i = 0; i < f->p.n_findings; i++)
        str_printf(&text, "%s\n", f->p.findings[i].text);
    const char *copy = arena_strdup(&f->arena, str_text(&text));
    str_release(&text);
    return copy;
}

static void equal_ranks_are_fit(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    f.ranks[1].speed[PREFLIGHT_PRODUCT] = 86e9;
    f.ranks[2].speed[PREFLIGHT_LINK] = 44e9;
    f.ranks[3].speed[PREFLIGHT_DISK_WRITE] = 27e9;
    f.ranks[4].speed[PREFLIGHT_NODE] = 0; /* not measured */
    assert_string_equal(judged(&f, PREFLIGHT_OK), "");
    arena_release(&f.arena);
}

static void each_figure_has_its_bound(void **state)
{
    static const struct {
        enum preflight_what what;
        double speed;
        const char *text;
    } rows[] = {
        { PREFLIGHT_PRODUCT, 84e9, "the product runs at 84 GFLOP/s, 84 % of the median 100" },
        { PREFLIGHT_MEMORY, 58e9, "memory is copied at 58 GB/s, 58 %" },
        { PREFLIGHT_DISK_WRITE, 24e9, "the disk is written at 24 GB/s" },
        { PREFLIGHT_DISK_READ, 24e9, "the disk is read at 24 GB/s" },
        { PREFLIGHT_NODE, 42e9, "all-reduce in the node runs at 42 GB/s" },
        { PREFLIGHT_LINK, 42e9, "the best link to another node has 42 GB/s" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture f;

        set_up(&f);
        f.ranks[3].speed[rows[i].what] = rows[i].speed;
        const char *text = judged(&f, PREFLIGHT_SLOW);
        assert_non_null(strstr(text, "rank 3 on host3 (cpu): slow: "));
        assert_non_null(strstr(text, rows[i].text));
        assert_int_equal(f.p.n_findings, 1);
        arena_release(&f.arena);
    }
}

static void kinds_do_not_compare(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    f.ranks[4].kind = 10;
    f.ranks[4].speed[PREFLIGHT_PRODUCT] = 10e9;
    assert_string_equal(judged(&f, PREFLIGHT_OK), "");
    arena_release(&f.arena);
}

static void of_two_the_slower_is_slow(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    f.p.n_ranks = 2;
    f.ranks[0].speed[PREFLIGHT_PRODUCT] = 80e9;
    assert_non_null(strstr(judged(&f, PREFLIGHT_SLOW), "rank 0 on host0"));
    arena_release(&f.arena);
}

static void the_majority_decides(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    f.ranks[1].hash = 43;
    const char *text = judged(&f, PREFLIGHT_WRONG);
    assert_non_null(strstr(text, "rank 1 on host1 (cpu): wrong bits: 4 of 5 ranks"));
    assert_int_equal(f.p.n_findings, 1);
    assert_int_equal(preflight_fault_of(&f.p, 1), PREFLIGHT_WRONG);
    assert_int_equal(preflight_fault_of(&f.p, 0), PREFLIGHT_OK);
    f.ranks[1].kernels = 8; /* other kernels have other bits */
    assert_string_equal(judged(&f, PREFLIGHT_OK), "");
    arena_release(&f.arena);
}

static void without_a_majority_all_are_suspect(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    f.p.n_ranks = 2;
    f.ranks[1].hash = 43;
    const char *text = judged(&f, PREFLIGHT_SUSPECT);
    assert_int_equal(f.p.n_findings, 2);
    assert_non_null(strstr(text, "rank 0 on host0 (cpu): its result of a product differs from "
                                 "rank 1's on host1, and no majority decides"));
    f.ranks[1].errors.n_exact = 3; /* known to be wrong by itself: rank 0 is then right */
    f.ranks[1].errors.exact_bits = 0x40;
    text = judged(&f, PREFLIGHT_WRONG);
    assert_int_equal(f.p.n_findings, 1);
    assert_non_null(strstr(text, "rank 1 on host1 (cpu): wrong bits: 3 elements of a product"));
    assert_non_null(strstr(text, "bits 0x40 differ"));
    arena_release(&f.arena);
}

static void wrong_comes_before_slow(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    f.ranks[0].speed[PREFLIGHT_PRODUCT] = 10e9;
    f.ranks[3].errors.n_memory = 2;
    f.ranks[3].errors.memory_at = 0x1000;
    f.ranks[3].errors.memory_bits = 0x8;
    const char *text = judged(&f, PREFLIGHT_WRONG);
    assert_ptr_equal(
        strstr(text, "rank 3 on host3 (cpu): wrong bits: 2 64-bit words of host memory"), text);
    assert_non_null(strstr(text, "at offset 0x1000, where bits 0x0000000000000008 differ"));
    assert_non_null(strstr(text, "rank 0 on host0 (cpu): slow"));
    arena_release(&f.arena);
}

static void a_slow_pair_is_noted(void **state)
{
    static struct preflight_pair pairs[] = { { 0, 1, 100e9, 1e-6 }, { 1, 0, 100e9, 1e-6 },
                                             { 2, 3, 43e9, 1e-6 },  { 3, 2, 42e9, 1e-6 },
                                             { 0, 2, 100e9, 1e-6 }, { 2, 0, 100e9, 1e-6 } };
    struct fixture f;
    struct str text = { 0 };

    (void)state;
    set_up(&f);
    f.p.pairs = pairs;
    f.p.n_pairs = 6;
    assert_string_equal(judged(&f, PREFLIGHT_OK), "");
    preflight_print(&f.p, &text);
    assert_non_null(strstr(str_text(&text), "note: from host3 to host2 42 GB/s, 42 % of the median "
                                            "100 GB/s\n"));
    assert_null(strstr(str_text(&text), "from host2 to host3"));
    str_release(&text);
    arena_release(&f.arena);
}

static void each_pair_meets_once(void **state)
{
    (void)state;
    for (int n = 2; n <= 33; n++) {
        unsigned char met[33][33] = { { 0 } };

        for (int round = 0; round < n - 1 + n % 2; round++)
            for (int node = 0; node < n; node++) {
                int other = preflight_partner(node, round, n);

                if (other < 0) {
                    assert_int_equal(n % 2, 1);
                    continue;
                }
                assert_true(other < n && other != node);
                assert_int_equal(preflight_partner(other, round, n), node);
                assert_int_equal(met[node][other]++, 0);
            }
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                assert_int_equal(met[a][b], a != b);
    }
}

/* ---- this machine ---- */

static void check_here(const char *faults, struct preflight *p, struct arena *arena)
{
    const struct launch_rank alone = { 0, 1, 0, 1, 0 };
    const struct preflight_request request = {
        .min_ratio = 0.85, .seconds = 0.1, .dtype = DTYPE_BF16, .output = "build"
    };
    struct engine engine;
    struct err err;

    assert_int_equal(setenv("LMTRAIN_FAULT", faults, 1), 0);
    if (fault_init(0, 0, &err) < 0 ||
        engine_open(&engine, &alone, &(struct engine_request){ 2, JOB_DEVICE_CPU }, &err) < 0 ||
        preflight_run(p, &request, &engine, arena, &err) < 0)
        fail_msg("%s", err.text);
    engine_close(&engine);
}

static void this_machine_is_fit(void **state)
{
    struct arena arena = { 0 };
    struct preflight p;
    struct str text = { 0 };

    (void)state;
    check_here("", &p, &arena);
    preflight_print(&p, &text);
    if (p.worst != PREFLIGHT_OK)
        fail_msg("%s", str_text(&text));
    assert_true(p.ranks[0].speed[PREFLIGHT_PRODUCT] > 1e8);
    assert_true(p.ranks[0].n_repetitions > 0);
    str_release(&text);
    arena_release(&arena);
}

/* Each in itself: there is no other rank to compare with. */
static void flips_are_found(void **state)
{
    static const char *const rows[][2] = {
        { "rank0:preflight:flip", "elements of a product are not what whole numbers give" },
        { "rank0:preflight:repeat:1:flip", "wrong bits: 1 of " },
        { "rank0:preflight:memory:flip", "wrong bits: 1 64-bit word of host memory" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arena arena = { 0 };
        struct preflight p;

        check_here(rows[i][0], &p, &arena);
        assert_int_equal(p.worst, PREFLIGHT_WRONG);
        if (p.n_findings != 1 || !strstr(p.findings[0].text, rows[i][1]))
            fail_msg("%s: %s", rows[i][0], p.findings[0].text);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_ranks_are_fit),
        cmocka_unit_test(each_figure_has_its_bound),
        cmocka_unit_test(kinds_do_not_compare),
        cmocka_unit_test(of_two_the_slower_is_slow),
        cmocka_unit_test(the_majority_decides),
        cmocka_unit_test(without_a_majority_all_are_suspect),
        cmocka_unit_test(wrong_comes_before_slow),
        cmocka_unit_test(a_slow_pair_is_noted),
        cmocka_unit_test(each_pair_meets_once),
        cmocka_unit_test(this_machine_is_fit),
        cmocka_unit_test(flips_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
