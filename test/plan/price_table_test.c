/*
 * price_table_test.c - what is found between, beside and beyond measured points; tables as files
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "plan/price_table.h"

static struct tensor fp32(int64_t rows, int64_t cols)
{
    return (struct tensor){ .rows = rows, .cols = cols, .stride = cols, .dtype = DTYPE_F32 };
}

/* y [tokens x n] = x [tokens x k] w' */
static struct op_shape linear(int64_t tokens, int64_t n, int64_t k)
{
    struct op_shape op = { .kind = OP_LINEAR };

    op.in[LINEAR_X] = fp32(tokens, k);
    op.in[LINEAR_W] = fp32(n, k);
    op.out[OPS_FIRST] = fp32(tokens, n);
    return op;
}

static struct op_shape adamw(int64_t rows, int64_t cols)
{
    struct op_shape op = { .kind = OP_ADAMW };

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        op.in[i] = fp32(rows, cols);
    return op;
}

/* In a node, and on two of them. */
static const struct price_span two = { 2, 1 }, far = { 2, 2 };

static double find(const struct price_table *table, struct op_shape op, enum price_source *source)
{
    return price_table_op(table, &op, source);
}

static void add(struct price_table *table, struct op_shape op, double ns)
{
    price_table_add_op(table, &op, ns, ns / 2);
}

static void fill(struct price_table *table, struct arena *arena)
{
    *table = (struct price_table){ .machine = "mine",
                                   .build = "0.1",
                                   .contention = 1.25,
                                   .cpu_contention = 1.5,
                                   .late_ns = 150000,
                                   .beside_ns = 350000,
                                   .arena = arena };
    add(table, linear(256, 64, 32), 1000);
    add(table, linear(256, 64, 32), 3000); /* the mean counts */
    add(table, linear(1024, 64, 32), 8000);
    add(table, adamw(10, 100), 500);
    price_table_add_collective(table, OP_ALL_GATHER, two, 4096, 1000);
    price_table_add_collective(table, OP_ALL_GATHER, two, 16384, 2000);
    price_table_add_collective(table, OP_ALL_GATHER, far, 4096, 9000);
    price_table_add_transfer(table, false, 4096, 700);
    price_table_add_transfer(table, true, 4096, 7000);
}

static void check_exchanges(const struct price_table *t)
{
    const struct price_span four = { 4, 1 }, alone = { 1, 4 };
    enum price_source source;

    assert_true(
        fabs(price_table_collective(t, OP_ALL_GATHER, two, 8192, &source) - 1000 * sqrt(2)) < 1e-6);
    assert_true(price_table_collective(t, OP_ALL_GATHER, four, 8192, &source) < 0);
    assert_true(price_table_collective(t, OP_ALL_REDUCE, two, 8192, &source) < 0);
    /* As many ranks, but on one node, or one on each. */
    assert_true(price_table_collective(t, OP_ALL_GATHER, far, 4096, &source) == 9000);
    assert_int_equal(source, PRICE_MEASURED);
    assert_true(price_table_collective(t, OP_ALL_GATHER, alone, 4096, &source) < 0);
    /* The latency is the least there is, and beyond the largest the rate goes on. */
    assert_true(price_table_collective(t, OP_ALL_GATHER, two, 1, &source) == 1000);
    assert_int_equal(source, PRICE_INTERPOLATED);
    assert_true(price_table_collective(t, OP_ALL_GATHER, two, 65536, &source) == 8000);
    assert_true(price_table_collective(t, OP_ALL_GATHER, two, 1 << 20, &source) < 0);
    assert_true(price_table_transfer(t, false, 4096, &source) == 700);
    assert_true(price_table_transfer(t, true, 8192, &source) == 14000);
}

static void check_filled(const struct price_table *t)
{
    enum price_source source;

    assert_true(find(t, linear(256, 64, 32), &source) == 2000 && source == PRICE_MEASURED);
    /* Twice the tokens: half way in logarithms, both of tokens and of time. */
    assert_true(fabs(find(t, linear(512, 64, 32), &source) - 4000) < 1e-6);
    assert_int_equal(source, PRICE_INTERPOLATED);
    assert_true(find(t, linear(2048, 64, 32), &source) == 16000 && source == PRICE_INTERPOLATED);
    assert_true(find(t, linear(128, 64, 32), &source) == 1000 && source == PRICE_INTERPOLATED);
    /* The time on a core is interpolated alike. */
    struct op_shape twice = linear(512, 64, 32), once = linear(256, 64, 32);
    assert_true(price_table_op_cpu(t, &once) == 1000);
    assert_true(fabs(price_table_op_cpu(t, &twice) - 2000) < 1e-6);
    /* Too far off, or another op. */
    assert_true(find(t, linear(16384, 64, 32), &source) < 0 && source == PRICE_FORMULA);
    assert_true(find(t, linear(256, 64, 33), &source) < 0);
    assert_true(find(t, linear(256, 65, 32), &source) < 0);
    /* The optimizer's price is by elements. */
    assert_true(find(t, adamw(1, 1000), &source) == 500 && source == PRICE_MEASURED);
    assert_true(find(t, adamw(1, 2000), &source) == 1000);
    check_exchanges(t);
}

static void test_lookups(void **state)
{
    struct arena arena = { 0 };
    struct price_table table;

    (void)state;
    fill(&table, &arena);
    check_filled(&table);
    arena_release(&arena);
}

/* A weight with as many rows as there are tokens is not over tokens. */
static void test_weights_are_not_tokens(void **state)
{
    struct arena arena = { 0 };
    struct price_table table = { .arena = &arena };
    enum price_source source;

    (void)state;
    add(&table, linear(64, 64, 64), 1000);
    assert_true(find(&table, linear(128, 64, 64), &source) == 2000);
    assert_true(find(&table, linear(128, 128, 64), &source) < 0);
    arena_release(&arena);
}

static void with_file(const char *text, void (*use)(const char *path))
{
    char path[] = "/tmp/price-table-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    use(path);
    unlink(path);
}

static void read_filled(const char *path)
{
    struct arena arena = { 0 };
    struct price_table table;
    struct err err;

    if (price_table_read(&table, path, &arena, &err))
        fail_msg("%s", err.text);
    check_filled(&table);
    assert_string_equal(table.machine, "mine");
    assert_string_equal(table.build, "0.1");
    assert_true(table.contention == 1.25 && table.cpu_contention == 1.5);
    assert_true(table.late_ns == 150000 && table.beside_ns == 350000);
    arena_release(&arena);
}

static void test_a_table_is_read_as_it_was_printed(void **state)
{
    struct arena arena = { 0 };
    struct price_table table;
    struct str text = { 0 };

    (void)state;
    fill(&table, &arena);
    price_table_print(&table, &text);
    with_file(str_text(&text), read_filled);
    str_release(&text);
    arena_release(&arena);
}

/* Of a version that knew neither builds, nor lateness, nor transfers. */
static void read_old(const char *path)
{
    const struct price_span pair = { 2, 1 };
    struct arena arena = { 0 };
    struct price_table table;
    enum price_source source;
    struct err err;

    if (price_table_read(&table, path, &arena, &err))
        fail_msg("%s", err.text);
    assert_null(table.build);
    assert_true(table.late_ns == 0 && table.beside_ns == 0);
    struct op_shape op = linear(256, 64, 32);
    assert_true(price_table_op(&table, &op, &source) == 500);
    assert_true(price_table_op_cpu(&table, &op) < 0);
    assert_true(price_table_collective(&table, OP_ALL_REDUCE, pair, 4096, &source) == 7196);
    assert_true(price_table_transfer(&table, false, 4096, &source) < 0);
    arena_release(&arena);
}

static void test_an_old_table_is_read(void **state)
{
    (void)state;
    with_file(
        "{\"machine\": \"old\", \"contention\": 1.1, \"ops\": "
        "{\"linear fp32[T x 32] fp32[64 x 32] -> fp32[T x 64]\": [[256, 500]]}, \"collectives\": "
        "{\"all_reduce of 2\": [[4096, 7196], [16384, 10391]]}}",
        read_old);
}

static void read_refused(const char *path)
{
    struct arena arena = { 0 };
    struct price_table table;
    struct err err;

    assert_int_equal(price_table_read(&table, path, &arena, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "not a table of prices"));
    arena_release(&arena);
}

static void test_refused_files(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{\"ops\": []}",
        "{\"ops\": {\"a\": [[1]]}}",
        "{\"ops\": {\"a\": [[0, 5]]}}",
        "{\"ops\": {\"a\": [[1, -5]]}}",
        "{\"ops\": {\"a\": [[1, 2, 3, 4]]}}",
        "{\"ops\": {\"a\": [[1, 2, 0]]}}",
        "{\"collectives\": {\"a\": 3}}",
        "{\"transfers\": [[4096, 5]]}",
        "{\"ops\": {\"a\": [[1, 2]",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        with_file(texts[i], read_refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_weights_are_not_tokens),
        cmocka_unit_test(test_a_table_is_read_as_it_was_printed),
        cmocka_unit_test(test_an_old_table_is_read),
        cmocka_unit_test(test_refused_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
