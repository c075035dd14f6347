/*
 * arena_test.c - whatever the sizes and however much in all, memory is zeroed, aligned, one's own
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

enum { N_PIECES = 400 };

static int is_zero(const unsigned char *bytes, size_t n)
{
    return n == 0 || (bytes[0] == 0 && !memcmp(bytes, bytes + 1, n - 1));
}

/* Small ones and large ones by turns, up to `largest`; each is filled, and found so in the end. */
static void fill(struct arena *arena, size_t largest)
{
    static unsigned char *pieces[N_PIECES];
    static size_t sizes[N_PIECES];
    size_t total = 0;

    for (int i = 0; i < N_PIECES; i++) {
        sizes[i] = i % 7 == 0 ? largest / (size_t)(1 + i % 5) : (size_t)i * 13;
        pieces[i] = arena_alloc(arena, sizes[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        assert_true(is_zero(pieces[i], sizes[i]));
        memset(pieces[i], i % 255 + 1, sizes[i]);
        total += sizes[i];
    }
    assert_true(arena->used_bytes >= total);
    for (int i = 0; i < N_PIECES; i++)
        for (size_t k = 0; k < sizes[i]; k += 61)
            assert_int_equal(pieces[i][k], i % 255 + 1);
}

/* From a few KB to more than a huge page at a time; what was given back comes zeroed again. */
static void memory_of_any_size(void **state)
{
    static const size_t largest[] = { 100, 10000, 300000, 3000000 };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof largest / sizeof *largest; i++) {
        fill(&arena, largest[i]);
        if (i != 1) /* and once on top of what there is */
            arena_release(&arena);
        assert_true(i == 1 || arena.used_bytes == 0);
    }
}

static void grown_arrays_keep_their_items(void **state)
{
    struct arena arena = { 0 };
    int *items = NULL, capacity = 0;

    (void)state;
    for (int n = 0; n < 300000; n++) {
        items = arena_grow(&arena, items, sizeof *items, &capacity, n + 1);
        items[n] = n;
    }
    for (int n = 0; n < 300000; n++)
        assert_int_equal(items[n], n);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_any_size),
        cmocka_unit_test(grown_arrays_keep_their_items),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
