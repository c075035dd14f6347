/*
 * host_pool_test.c - which hosts each attempt of a job uses
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
#include "launch/excluded.h"
#include "launch/host_pool_impl.h"
#include "support/temporary.h"

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    return temporary_folder(folder, sizeof folder);
}

static int remove_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

/* ---- a pool as text ---- */

struct rig {
    struct supervise_options options;
    struct arena arena;
    struct host_list list;
    struct host_pool pool;
};

static void open_rig(struct rig *rig, const char *hosts, int n_ranks, int n_spares)
{
    struct err err;
    char path[300];

    snprintf(path, sizeof path, "%s/excluded_hosts", folder);
    unlink(path);
    *rig =
        (struct rig){ .options = { .n_ranks = n_ranks, .n_spares = n_spares, .output = folder } };
    assert_int_equal(hosts_read(&rig->list, hosts, &rig->arena, &err), 0);
    rig->options.hosts = &rig->list;
    assert_int_equal(host_pool_open(&rig->pool, &rig->options, &rig->list, "--hosts", &err), 0);
}

static void close_rig(struct rig *rig)
{
    host_pool_close(&rig->pool);
    arena_release(&rig->arena);
}

/* Choose, and check: "ab-d 6" are the hosts in use and the ranks that they have room for. */
static void check(struct rig *rig, int attempt, const char *expected)
{
    struct err err = { 0 };
    char found[64];
    int n = 0, n_possible = host_pool_choose(&rig->pool, attempt, &err);

    for (int i = 0; i < rig->pool.list.n_hosts; i++)
        found[n++] = rig->pool.states[i] == HOST_USED ? *rig->pool.list.hosts[i].name : '-';
    snprintf(found + n, sizeof found - (size_t)n, " %d", n_possible);
    assert_string_equal(found, expected);
}

/* The attempt has found these hosts to be so. */
static void find(struct rig *rig, const char *names, enum host_state state, int out_until)
{
    for (; *names; names++)
        rig->pool.states[host_pool_find(&rig->pool, (char[]){ *names, '\0' })] = state;
    host_pool_note(&rig->pool, out_until);
}

/* ---- the tests ---- */

static void test_lost_and_back(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, "a,b,c,d", 8, 0);
    check(&rig, 0, "abcd 8");
    find(&rig, "cd", HOST_LOST, 1); /* a step was completed: they are tried at once */
    check(&rig, 1, "abcd 8");
    find(&rig, "cd", HOST_LOST, 2); /* and cannot be reached */
    check(&rig, 1, "ab-- 4");
    assert_false(host_pool_is_whole(&rig.pool));
    check(&rig, 2, "abcd 8");
    assert_true(host_pool_is_whole(&rig.pool));
    find(&rig, "a", HOST_LOST, 4); /* no step was completed: not in the next attempt */
    check(&rig, 3, "-bcd 6");
    check(&rig, 4, "abcd 8");
    close_rig(&rig);
}

/* As in the picture of host_pool_impl.h: who was lost is the last to be used again. */
static void test_spares(void **state)
{
    struct rig rig;

    (void)state;
    open_rig(&rig, "a:2,b:2,c:2,d:2", 6, 1);
    check(&rig, 0, "abc- 6");
    find(&rig, "c", HOST_LOST, 2);
    check(&rig, 1, "ab-d 6");
    assert_true(host_pool_is_whole(&rig.pool));
    check(&rig, 2, "ab-d 6");
    find(&rig, "ab", HOST_LOST, 5);
    check(&rig, 3, "--cd 4");
    close_rig(&rig);
}

/* A host that is not listed any more is replaced, too, as one that is lost. */
static void test_spares_of_a_shorter_list(void **state)
{
    struct rig rig;
    struct host_list list;
    struct err err;

    (void)state;
    open_rig(&rig, "a:2,b:2,c:2,d:2", 6, 1);
    check(&rig, 0, "abc- 6");
    assert_int_equal(hosts_read(&list, "a:2,b:2,d:2", &rig.arena, &err), 0);
    host_pool_list(&rig.pool, &list);
    check(&rig, 1, "abd 6");
    assert_int_equal(hosts_read(&list, "a:2,b:2,d:2,e:2,f:2", &rig.arena, &err), 0);
    host_pool_list(&rig.pool, &list);
    check(&rig, 2, "abde- 8");
    close_rig(&rig);
}

static void test_excluded(void **state)
{
    struct rig rig;
    struct err err;
    char path[300];

    (void)state;
    open_rig(&rig, "a,b,c", 2, 1);
    assert_int_equal(excluded_add(folder, "a", "wrong bits", &err), 0);
    check(&rig, 0, "-bc 2");
    assert_int_equal(excluded_add(folder, "c", "slow", &err), 0);
    check(&rig, 1, "-b- 1");
    assert_int_equal(excluded_add(folder, "b", "slow", &err), 0);
    assert_int_equal(host_pool_choose(&rig.pool, 2, &err), 0);
    assert_int_equal(err.code, ERR_PEER);
    assert_non_null(strstr(err.text, "no host is left: a (excluded), b (excluded), c (excluded)"));
    snprintf(path, sizeof path, "%s/excluded_hosts", folder);
    assert_non_null(strstr(err.text, path));
    unlink(path);
    check(&rig, 3, "ab- 2");

    /* A broken GPU is a reason, which people can remove. */
    find(&rig, "a", HOST_UNFIT, 5);
    check(&rig, 4, "-bc 2");
    check(&rig, 9, "-bc 2");
    unlink(path);
    check(&rig, 10, "ab- 2");
    close_rig(&rig);
}

static void test_another_list(void **state)
{
    struct rig rig;
    struct host_list list;
    struct err err;

    (void)state;
    open_rig(&rig, "a,b", 2, 0);
    check(&rig, 0, "ab 2");
    find(&rig, "b", HOST_LOST, 2);
    assert_int_equal(hosts_read(&list, "c,b,a:3,d:4", &rig.arena, &err), 0);
    host_pool_list(&rig.pool, &list);
    check(&rig, 1, "c-ad 8");
    assert_int_equal(hosts_read(&list, "b", &rig.arena, &err), 0);
    host_pool_list(&rig.pool, &list);
    check(&rig, 2, "b 1");
    close_rig(&rig);
}

static void test_too_many_spares(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    open_rig(&rig, "a,b", 2, 1);
    close_rig(&rig);
    rig.options.n_spares = 2;
    assert_int_equal(hosts_read(&rig.list, "a,b", &rig.arena, &err), 0);
    assert_int_equal(host_pool_open(&rig.pool, &rig.options, &rig.list, "--hosts", &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "launch.spares is 2, but --hosts has 2 hosts"));
    close_rig(&rig);
}

/* One machine: all ranks or none. */
static void test_machine(void **state)
{
    struct rig rig = { .options = { .n_ranks = 4, .n_spares = 3, .output = folder } };
    struct host here = { .name = "here" };
    struct host_list list = { .n_hosts = 1, .hosts = &here };
    struct err err;
    char path[300];

    (void)state;
    snprintf(path, sizeof path, "%s/excluded_hosts", folder);
    unlink(path);
    assert_int_equal(host_pool_open(&rig.pool, &rig.options, &list, NULL, &err), 0);
    assert_int_equal(host_pool_choose(&rig.pool, 0, &err), 4);
    assert_int_equal(excluded_add(folder, "here", "wrong bits", &err), 0);
    assert_int_equal(host_pool_choose(&rig.pool, 1, &err), 0);
    assert_non_null(strstr(err.text, "no host is left: here (excluded)"));
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_and_back),
        cmocka_unit_test(test_spares),
        cmocka_unit_test(test_spares_of_a_shorter_list),
        cmocka_unit_test(test_excluded),
        cmocka_unit_test(test_another_list),
        cmocka_unit_test(test_too_many_spares),
        cmocka_unit_test(test_machine),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
