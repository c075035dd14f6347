/*
 * hosts_test.c - lists of hosts with every mistake, and the dealing of ranks
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/str.h"
#include "launch/remote/hosts.h"
#include "support/temporary.h"

static char folder[256];
static char path[300];

static int make_folder(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(path, sizeof path, "%s/hosts", folder);
    return 0;
}

static int remove_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

/* "a:4 b user@c:1", or the error's text. */
static const char *read_as_text(const char *text)
{
    static char line[2048];
    struct arena arena = { 0 };
    struct host_list list;
    struct err err;
    struct str out = { 0 };

    if (hosts_read(&list, text, &arena, &err)) {
        assert_int_equal(err.code, ERR_CONFIG);
        str_add(&out, err.text);
    } else {
        for (int i = 0; i < list.n_hosts; i++) {
            str_printf(&out, i ? " %s" : "%s", list.hosts[i].name);
            if (list.hosts[i].n_slots)
                str_printf(&out, ":%d", list.hosts[i].n_slots);
        }
    }
    snprintf(line, sizeof line, "%s", str_text(&out));
    str_release(&out);
    arena_release(&arena);
    return line;
}

static const char *read_file_as_text(const char *text)
{
    struct err err;

    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    return read_as_text(path);
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void test_lists(void **state)
{
    (void)state;
    assert_string_equal(read_as_text("a"), "a");
    assert_string_equal(read_as_text("a,b:4,user@c"), "a b:4 user@c");
    assert_string_equal(read_as_text(" a , b "), "a b");
    assert_string_equal(read_as_text("127.0.0.1:2,node-1.example_x.org"),
                        "127.0.0.1:2 node-1.example_x.org");
    assert_string_equal(read_as_text("[fd00::1]:4,me@[fe80::2%eth0]"), "fd00::1:4 me@fe80::2%eth0");
    /* A node that stands there n times gets n ranks, then also the others one each. */
    assert_string_equal(read_as_text("a,b,a,a"), "a:3 b:1");
}

static void test_files(void **state)
{
    (void)state;
    assert_string_equal(read_file_as_text("a\nb\n"), "a b");
    assert_string_equal(
        read_file_as_text("# all\n\n  a:2 # half\r\nb slots=3\tmax_slots=9\n\t\nme@c"),
        "a:2 b:3 me@c");
    assert_string_equal(read_file_as_text("n1\nn1\nn2\nn2\n"), "n1:2 n2:2");
}

static void test_mistakes_in_lists(void **state)
{
    static const struct {
        const char *text, *part;
    } mistakes[] = {
        { "", "--hosts: '' has no host name" },
        { "a,,b", "--hosts: '' has no host name" },
        { "a,", "--hosts: '' has no host name" },
        { "a:", "--hosts: host a: '' ranks, not a number in 1..1000000" },
        { "a:0", "host a: '0' ranks" },
        { "a:-1", "host a: '-1' ranks" },
        { "a:4x", "host a: '4x' ranks" },
        { "a:99999999999999999999", "not a number in 1..1000000" },
        { "-oProxyCommand=x", "'-oProxyCommand=x' begins with a dash" },
        { "me@-x", "'me@-x' begins with a dash" },
        { "@a", "'@a' has no host name" },
        { "me@", "'me@' has no host name" },
        { "a b", "host 'a b' contains ' '" },
        { "$(reboot)", "contains '$'" },
        { "a;b", "contains ';'" },
        { "a\n", "contains '?'" },
        { "fd00::1", "'fd00::1' has several colons (hint: an IPv6 address goes into brackets" },
        { "[fd00::1", "(hint: [ADDRESS]:RANKS)" },
        { "fd00::1]", "(hint: [ADDRESS]:RANKS)" },
        { "[fd00::1]4", "(hint: [ADDRESS]:RANKS)" },
        { "x[fd00::1]", "(hint: [ADDRESS]:RANKS)" },
        { "a:2,a", "--hosts: host a is listed twice (hint: list it once, with HOST:RANKS)" },
        { "a,a:2", "host a is listed twice" },
        { "/nowhere/hosts", "/nowhere/hosts" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        assert_says(read_as_text(mistakes[i].text), mistakes[i].part);
}

static void test_mistakes_in_files(void **state)
{
    static const struct {
        const char *text, *part;
    } mistakes[] = {
        { "", ": has no hosts" },
        { "# a\n\n", ": has no hosts" },
        { "a\nb:0\n", ":2: host b: '0' ranks" },
        { "a\n\nb slots=x\n", ":3: host b: 'x' ranks" },
        { "a gpus=4\n", ":1: 'gpus=4' after host a (hint: slots=N)" },
        { "a b\n", ":1: 'b' after host a" },
        { "a:2 slots=2\n", ":1: host a has two numbers of ranks" },
        { "a\nb\nb slots=2\n", ":3: host b is listed twice, first in line 2" },
        { "a,b\n", ":1: host 'a,b' contains ','" },
        { "a\n-x\n", ":2: host '-x' begins with a dash" },
    };
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *text = read_file_as_text(mistakes[i].text);

        assert_memory_equal(text, path, strlen(path));
        assert_says(text, mistakes[i].part);
    }
    assert_int_equal(file_write(path, "a\0b\n", 4, &err), 0);
    assert_says(read_as_text(path), "a zero byte");
    assert_says(read_as_text(folder), folder);
}

static void test_too_many(void **state)
{
    struct str text = { 0 };

    (void)state;
    for (int i = 0; i <= HOSTS_MAX; i++)
        str_printf(&text, "host%d\n", i);
    assert_says(read_file_as_text(str_text(&text)), ":4097: more than 4096 hosts");
    str_clear(&text);
    for (int i = 0; i < 400; i++)
        str_add_char(&text, 'x');
    assert_says(read_as_text(str_text(&text)), "a host name of 400 bytes");
    str_release(&text);
}

/* "2 2 1", or the error's text. */
static const char *deal(const char *hosts, int n_ranks)
{
    static char line[2048];
    struct arena arena = { 0 };
    struct host_list list;
    struct err err;
    int n_ranks_of[16], sum = 0;

    assert_int_equal(hosts_read(&list, hosts, &arena, &err), 0);
    if (hosts_deal(&list, n_ranks, n_ranks_of, &err)) {
        assert_int_equal(err.code, ERR_CONFIG);
        snprintf(line, sizeof line, "%s", err.text);
    } else {
        size_t n = 0;

        for (int i = 0; i < list.n_hosts; i++) {
            n += (size_t)snprintf(line + n, sizeof line - n, i ? " %d" : "%d", n_ranks_of[i]);
            sum += n_ranks_of[i];
        }
        assert_int_equal(sum, n_ranks);
    }
    arena_release(&arena);
    return line;
}

static void test_dealing(void **state)
{
    (void)state;
    assert_string_equal(deal("a,b", 4), "2 2");
    assert_string_equal(deal("a,b,c", 8), "3 3 2");
    assert_string_equal(deal("a,b,c", 2), "1 1 0");
    assert_string_equal(deal("a:2,b:2", 4), "2 2");
    assert_string_equal(deal("a:4,b:2", 5), "4 1");
    assert_string_equal(deal("a:4,b:2", 3), "3 0");
    /* Those without a number share what the others leave. */
    assert_string_equal(deal("a,b:3,c", 8), "3 3 2");
    assert_string_equal(deal("a,b:3", 2), "0 2");
    assert_says(deal("a:2,b:1", 4), "4 ranks, but 2 hosts with room for 3 (hint: fewer ranks");
    assert_says(deal("a:2", 3), "3 ranks, but 1 host with room for 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_mistakes_in_lists),
        cmocka_unit_test(test_mistakes_in_files),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_dealing),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
