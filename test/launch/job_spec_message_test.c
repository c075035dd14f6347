/*
 * job_spec_message_test.c - a job as bytes and back, what is none, and which variables travel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "launch/job_spec_message_impl.h"

static struct job_node nodes[] = { { "a", 0, 3 }, { "b.example", 3, 2 } };
static char *argv[] = { "lmtrain", "pretrain", "job with blanks.yaml", "", NULL };
static char *variables[] = { "UCX_TLS=tcp", "LMTRAIN_X=", NULL };

static struct job_spec example(void)
{
    return (struct job_spec){ .nspace = "lmtrain-1",
                              .cwd = "/a/folder",
                              .attempt = 2,
                              .n_ranks = 5,
                              .n_nodes = 2,
                              .node = 1,
                              .nodes = nodes,
                              .argv = argv,
                              .variables = variables,
                              .has_screen = 1,
                              .progress_ms = 250,
                              .beat_ms = 500,
                              .credit_bytes = 1 << 18 };
}

static void test_there_and_back(void **state)
{
    struct arena arena = { 0 };
    struct str bytes = { 0 };
    struct job_spec spec = example(), found;
    struct err err;

    (void)state;
    job_spec_encode(&spec, &bytes);
    assert_int_equal(job_spec_decode(&found, bytes.data, bytes.length, &arena, &err), 0);
    assert_string_equal(found.nspace, "lmtrain-1");
    assert_string_equal(found.cwd, "/a/folder");
    assert_int_equal(found.attempt, 2);
    assert_int_equal(found.n_ranks, 5);
    assert_int_equal(found.node, 1);
    assert_int_equal(found.has_screen, 1);
    assert_int_equal(found.progress_ms, 250);
    assert_int_equal(found.beat_ms, 500);
    assert_int_equal(found.credit_bytes, 1 << 18);
    assert_int_equal(found.n_nodes, 2);
    assert_string_equal(found.nodes[1].name, "b.example");
    assert_int_equal(found.nodes[1].first_rank, 3);
    assert_int_equal(found.nodes[1].n_ranks, 2);
    for (int i = 0; argv[i]; i++)
        assert_string_equal(found.argv[i], argv[i]);
    assert_null(found.argv[4]);
    assert_string_equal(found.variables[1], "LMTRAIN_X=");
    assert_null(found.variables[2]);

    /* Shorter, longer, and each byte changed: nothing reads beyond its end (ASan looks on). */
    for (size_t n = 0; n < bytes.length; n++) {
        char *copy = malloc(n + 1);

        memcpy(copy, bytes.data, n);
        assert_int_equal(job_spec_decode(&found, copy, n, &arena, &err), -1);
        free(copy);
    }
    for (size_t i = 0; i < bytes.length; i++)
        for (int change = 1; change < 256; change += 3) {
            bytes.data[i] = (char)(bytes.data[i] ^ change);
            job_spec_decode(&found, bytes.data, bytes.length, &arena, &err);
            bytes.data[i] = (char)(bytes.data[i] ^ change);
        }
    str_add_char(&bytes, 0);
    assert_int_equal(job_spec_decode(&found, bytes.data, bytes.length, &arena, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    str_release(&bytes);
    arena_release(&arena);
}

static void check_refused(struct job_spec spec)
{
    struct arena arena = { 0 };
    struct str bytes = { 0 };
    struct job_spec found;
    struct err err;

    job_spec_encode(&spec, &bytes);
    assert_int_equal(job_spec_decode(&found, bytes.data, bytes.length, &arena, &err), -1);
    str_release(&bytes);
    arena_release(&arena);
}

static void test_nonsense(void **state)
{
    static char *nothing[] = { NULL };
    static char *nameless[] = { "=x", NULL };
    static char *no_value[] = { "x", NULL };
    static struct job_node empty[] = { { "a", 0, 5 }, { "b", 5, 0 } };
    static struct job_node odd[] = { { "a,b", 0, 3 }, { "c", 3, 2 } };
    struct job_spec spec;

    (void)state;
    spec = example(); /* more than the nodes have */
    spec.n_ranks = 6;
    check_refused(spec);
    spec = example();
    spec.n_ranks = 4;
    check_refused(spec);
    spec = example();
    spec.node = 2;
    check_refused(spec);
    spec = example();
    spec.argv = nothing;
    check_refused(spec);
    spec = example();
    spec.variables = nameless;
    check_refused(spec);
    spec = example();
    spec.variables = no_value;
    check_refused(spec);
    spec = example();
    spec.nodes = empty;
    check_refused(spec);
    spec = example();
    spec.nodes = odd;
    check_refused(spec);
    spec = example();
    spec.cwd = "relative";
    check_refused(spec);
    spec = example();
    spec.nspace = "";
    check_refused(spec);
}

static void test_variables(void **state)
{
    static char *environment[] = { "HOME=/root",
                                   "LMTRAIN_FAULT=rank1:start",
                                   "UCX_TLS=tcp",
                                   "OMPI_MCA_btl_tcp_if_include=eth0",
                                   "LMTRAIN_API_KEY=1",
                                   "NCCL_TOKEN=1",
                                   "PMIX_RANK=0",
                                   "MINE=1",
                                   "MY_SECRET=1",
                                   "OTHER=1",
                                   "TZ=UTC",
                                   "TZDIR=/x",
                                   "LMTRAIN_EXPORT=MINE,MY_SECRET",
                                   "=odd",
                                   "odd",
                                   NULL };
    static const char *const travel[] = { "LMTRAIN_FAULT=rank1:start",
                                          "UCX_TLS=tcp",
                                          "OMPI_MCA_btl_tcp_if_include=eth0",
                                          "MINE=1",
                                          "MY_SECRET=1",
                                          "TZ=UTC",
                                          "LMTRAIN_EXPORT=MINE,MY_SECRET" };
    struct arena arena = { 0 };
    char *const *found = job_spec_variables(environment, &arena);
    int n = 0;

    (void)state;
    for (; found[n]; n++) {
        assert_true(n < 7);
        assert_string_equal(found[n], travel[n]);
    }
    assert_int_equal(n, 7);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_variables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
