/*
 * slurm_test.c - allocations, the srun that follows from them, and what srun says
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "launch/slurm_impl.h"

/* An environment as getenv sees it: strings, ended by NULL. */
static const char *from_strings(const void *context, const char *name)
{
    size_t length = strlen(name);

    for (const char *const *entry = context; *entry; entry++)
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=')
            return *entry + length + 1;
    return NULL;
}

static int read_allocation(struct slurm_allocation *allocation, const char *const *environment,
                           struct arena *arena, struct err *err)
{
    struct where_view view = { from_strings, environment, NULL };

    return slurm_allocation_read(allocation, &view, arena, err);
}

static char *join(char **strings)
{
    static char line[2048];
    size_t n = 0;

    for (int i = 0; strings[i]; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%s", i ? " " : "", strings[i]);
    return line;
}

/* ---- allocations and command lines ---- */

#define START "srun --mpi=pmix --kill-on-bad-exit=0 --disable-status --export=ALL --input=none "
#define END " --overlap -- /bin/lmtrain pretrain job.yaml"

static const struct {
    const char *environment[8];
    int n_ranks, has_smt;
    const char *command; /* or, without START, what the error says */
} cases[] = {
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=4(x2)", "SLURM_NTASKS=4" },
      4,
      0,
      START "--nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --cpus-per-task=2" END },
    /* Whole nodes, cores of two threads: even shares. */
    { { "SLURM_JOB_NUM_NODES=3", "SLURM_JOB_CPUS_PER_NODE=64(x3)" },
      18,
      1,
      START
      "--nodes=3 --ntasks=18 --ntasks-per-node=6 --distribution=block --cpus-per-task=10" END },
    { { "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_CPUS_PER_NODE=1" },
      1,
      1,
      START "--nodes=1 --ntasks=1 --ntasks-per-node=1 --distribution=block --cpus-per-task=1" END },
    /* Said by the user. */
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=64(x2)", "SLURM_CPUS_PER_TASK=3" },
      4,
      1,
      START "--nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --cpus-per-task=3" END },
    /* Fewer ranks than nodes. */
    { { "SLURM_JOB_NUM_NODES=4", "SLURM_JOB_CPUS_PER_NODE=8(x4)", "SLURM_NTASKS=4" },
      2,
      0,
      START "--nodes=2 --ntasks=2 --ntasks-per-node=1 --distribution=block --cpus-per-task=8" END },
    /* Parts of nodes: three tasks here, one there. */
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=3,1", "SLURM_NTASKS=4" },
      4,
      0,
      START "--nodes=2 --ntasks=4 --distribution=block --cpus-per-task=1" END },
    { { "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_CPUS_PER_NODE=8", "SLURM_NTASKS=2" },
      3,
      0,
      "3 ranks are wanted, this Slurm allocation is for 2 tasks" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8(x2)", "SLURM_NTASKS_PER_NODE=2" },
      5,
      0,
      "5 ranks are wanted, this Slurm allocation is for 4 tasks" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8,4" },
      13,
      0,
      "13 ranks are wanted, this Slurm allocation has room for 12" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8,4", "SLURM_CPUS_PER_TASK=3" },
      4,
      0,
      "4 ranks are wanted, this Slurm allocation has room for 3" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8" }, 1, 0, "is not for" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8(x3)" }, 1, 0, "is not for" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=8(x2" }, 1, 0, "is not for" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=a(x2)" }, 1, 0, "is not for" },
    { { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=1(x999999999999)" }, 1, 0, "is not for" },
    { { "SLURM_JOB_NUM_NODES=2" }, 1, 0, "do not say of which nodes" },
};

static void an_allocation_becomes_a_command(void **state)
{
    static char *const command[] = { "lmtrain", "pretrain", "job.yaml", NULL };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = { 0 };
        struct slurm_allocation allocation;
        struct slurm_step step;
        struct err err;
        const char *got;

        if (read_allocation(&allocation, cases[i].environment, &arena, &err) ||
            slurm_fit(&step, &allocation, cases[i].n_ranks, cases[i].has_smt, &err))
            got = err.text;
        else
            got = join(slurm_argv(&step, 22, NULL, "/bin/lmtrain", command, &arena));
        if (!strncmp(cases[i].command, "srun ", 5))
            assert_string_equal(got, cases[i].command);
        else if (!strstr(got, cases[i].command))
            fail_msg("case %zu: %s", i, got);
        arena_release(&arena);
    }
}

static void old_slurms_know_no_overlap(void **state)
{
    static char *const command[] = { "lmtrain", NULL };
    struct slurm_step step = { 2, 1, 2, 1 };
    struct arena arena = { 0 };

    (void)state;
    char *line = join(slurm_argv(&step, 20, "n2,n3", "/bin/lmtrain", command, &arena));
    assert_null(strstr(line, "--overlap"));
    assert_non_null(strstr(line, " --exclude=n2,n3 -- /bin/lmtrain"));
    arena_release(&arena);
    assert_int_equal(slurm_major("slurm-wlm 22.05.8"), 22);
    assert_int_equal(slurm_major("slurm 20.11.9\n"), 20);
    assert_int_equal(slurm_major(""), 0);
}

/* Every count that fits is dealt out so that no node gets more tasks than it has CPUs. */
static void shares_fit_their_nodes(void **state)
{
    (void)state;
    for (int n_nodes = 1; n_nodes <= 4; n_nodes++)
        for (int cpus = 1; cpus <= 9; cpus++)
            for (int n_ranks = 1; n_ranks <= n_nodes * cpus; n_ranks++) {
                int all[] = { cpus, cpus, cpus, cpus };
                struct slurm_allocation allocation = { .n_nodes = n_nodes, .n_cpus = all };
                struct slurm_step step;
                struct err err;

                assert_int_equal(slurm_fit(&step, &allocation, n_ranks, n_ranks % 2, &err), 0);
                assert_in_range(step.n_nodes, 1, n_nodes);
                assert_true(step.n_ranks_per_node * step.n_nodes >= n_ranks);
                assert_in_range(step.n_cpus_per_rank, 1, cpus);
                assert_true(step.n_cpus_per_rank * step.n_ranks_per_node <= cpus);
            }
}

static void gpus_are_counted(void **state)
{
    static const struct {
        const char *variable;
        int n_gpus;
    } kinds[] = {
        { "SLURM_GPUS=8", 8 },          { "SLURM_GPUS=a100:8", 8 },
        { "SLURM_GPUS_PER_NODE=4", 8 }, { "SLURM_GPUS_PER_NODE=a100:1,v100:2", 6 },
        { "SLURM_GPUS_ON_NODE=2", 4 },  { "SLURM_JOB_GPUS=0,1,3", 6 },
        { "SLURM_GPUS=none", 0 },       { "SLURM_JOB_GPUS=", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *environment[] = { "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_CPUS_PER_NODE=4(x2)",
                                      kinds[i].variable, NULL };
        struct arena arena = { 0 };
        struct slurm_allocation allocation;
        struct err err;

        assert_int_equal(read_allocation(&allocation, environment, &arena, &err), 0);
        assert_int_equal(allocation.n_gpus, kinds[i].n_gpus);
        arena_release(&arena);
    }
    assert_int_equal(slurm_count_gpus("JobId=1 A=b TRES=cpu=8,node=2,gres/gpu=6 X=gres/gpu=9"), 6);
    assert_int_equal(slurm_count_gpus("JobId=1 A=b TRES=cpu=8,node=2 X=gres/gpu=9"), 0);
    assert_int_equal(slurm_count_gpus("JobId=1"), 0);
}

static void a_lost_node_takes_its_cpus(void **state)
{
    int cpus[] = { 4, 8, 2 }, is_gone[] = { 0, 1, 0 };
    struct slurm_allocation allocation = {
        .n_nodes = 3, .n_cpus = cpus, .n_tasks = 6, .n_gpus = 12
    };
    struct arena arena = { 0 };

    (void)state;
    struct slurm_allocation left = slurm_allocation_without(&allocation, is_gone, &arena);
    assert_int_equal(left.n_nodes, 2);
    assert_int_equal(left.n_cpus[0], 4);
    assert_int_equal(left.n_cpus[1], 2);
    assert_int_equal(left.n_tasks, 0);
    assert_int_equal(left.n_gpus, 8);
    arena_release(&arena);
}

static void contradictions_are_kept_from_srun(void **state)
{
    static char *environment[] = {
        "HOME=/root",        "SLURM_JOB_ID=4",      "SLURM_NTASKS=4",
        "SLURM_NTASKSX=1",   "SLURM_CPU_BIND=none", "PMIX_RANK=1",
        "PMIX_MCA_gds=hash", "SLURM_STEP_ID=0",     "LMTRAIN_ATTEMPT=9",
        "OMPI_MCA_btl=tcp",  "SLURM_CONF=/x",       "OMPI_COMM_WORLD_RANK=2",
        "NOVALUE",           "SLURM_MPI_TYPE=pmi2", NULL,
    };
    struct arena arena = { 0 };

    (void)state;
    assert_string_equal(join(slurm_environment(environment, 3, &arena)),
                        "HOME=/root SLURM_JOB_ID=4 SLURM_NTASKSX=1 PMIX_MCA_gds=hash "
                        "OMPI_MCA_btl=tcp SLURM_CONF=/x NOVALUE LMTRAIN_ATTEMPT=3");
    arena_release(&arena);
}

/* ---- what srun says ---- */

static const struct {
    const char *text;
    int srun, status; /* what it ends with, and what that means */
    const char *lost;
} stories[] = {
    { "", 0, 0, "" },
    { "", 137, ERR_PEER, "" },
    { "", 134, 134, "" },
    { "", 3, 3, "" },
    { "srun: error: n1: tasks 0-3: Exited with exit code 75\n", 75, ERR_REQUEUE, "" },
    { "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 3\n", 137,
      ERR_PEER, "" },
    { "srun: error: n2: task 1: Exited with exit code 3\nsrun: error: n1: task 0: Killed\n", 137, 3,
      "" },
    { "srun: error: n2: task 1: Aborted (core dumped)\nsrun: error: n1: task 0: Killed\n", 137, 134,
      "" },
    { "srun: error: n2: task 1: Segmentation fault\n", 139, ERR_PEER, "" },
    { "srun: error: n2: task 1: Exited with exit code 75\nsrun: error: n1: task 0: Killed\n", 137,
      ERR_PEER, "" },
    /* One aborted with 4; the others were killed for it. */
    { "srun: error: n1: task 0: Killed\nsrun: error: n2: task 1: Exited with exit code 4\n", 4, 4,
      "" },
    { "srun: error: Node failure on n2\nsrun: error: n2: task 1: Killed\n", 137, ERR_PEER, "n2" },
    { "srun: error: Task launch for StepId=5.0 failed on node n2: Communication connection "
      "failure\nsrun: error: Task launch for StepId=5.0 failed on node n3: x\n",
      1, ERR_PEER, "n2,n3" },
    { "srun: error: Unable to create step for job 5: More processors requested\n", 1, 1, "" },
    { "lmtrain: error: n2: task 1: Killed\nsrun: error: a word: task 1: Killed\n", 1, 1, "" },
    { "srun: error: n2: task 1: Exited with exit code 2", 143, ERR_PEER, "" }, /* no whole line */
};

static void the_first_death_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof stories / sizeof *stories; i++)
        for (size_t piece = 1; piece <= 64; piece *= 4) {
            struct slurm_story story = { 0 };
            size_t length = strlen(stories[i].text);

            for (size_t at = 0; at < length; at += piece)
                slurm_story_read(&story, stories[i].text + at,
                                 length - at < piece ? length - at : piece);
            int status = slurm_status(stories[i].srun << 8, &story);
            if (status != stories[i].status)
                fail_msg("story %zu: %d, not %d", i, status, stories[i].status);
            assert_string_equal(str_text(&story.lost), stories[i].lost);
            str_release(&story.lost);
        }
    struct slurm_story none = { 0 };
    assert_int_equal(slurm_status(9, &none), ERR_PEER); /* srun itself was killed */
}

static void long_lines_are_cut(void **state)
{
    struct slurm_story story = { 0 };
    char line[4096];

    (void)state;
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    slurm_story_read(&story, line, sizeof line);
    slurm_story_read(&story, "srun: error: n1: task 0: Killed\n", 32);
    assert_int_equal(story.first_status, ERR_PEER);
}

static void nodes_that_are_gone_are_found(void **state)
{
    char *names[] = { "n1", "n10", "n2", "n3", "n4", "n5" };
    int is_gone[6];

    (void)state;
    assert_int_equal(
        slurm_find_gone("n1 mixed*\nn10 down*\nn2 draining\nn2 draining\nn3 allocated\n"
                        "n4 powered_down\n",
                        "n5", names, 6, is_gone),
        3);
    assert_false(is_gone[0]); /* a node that is slow to answer */
    assert_true(is_gone[1]);
    assert_false(is_gone[2]); /* it may finish what it has */
    assert_false(is_gone[3]);
    assert_true(is_gone[4]);
    assert_true(is_gone[5]);
    assert_int_equal(slurm_find_gone("", NULL, names, 6, is_gone), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_becomes_a_command),
        cmocka_unit_test(old_slurms_know_no_overlap),
        cmocka_unit_test(shares_fit_their_nodes),
        cmocka_unit_test(gpus_are_counted),
        cmocka_unit_test(a_lost_node_takes_its_cpus),
        cmocka_unit_test(contradictions_are_kept_from_srun),
        cmocka_unit_test(the_first_death_counts),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(nodes_that_are_gone_are_found),
    };

    return cmocka_run_group_tests_name("slurm", tests, NULL, NULL);
}
