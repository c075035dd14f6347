/*
 * death_test.c - every cause of death: its message, its weight, and the job's exit status
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <string.h>
#include <cmocka.h>

#include "launch/death_impl.h"

#define XID "GPU 1 (0000:18:00.0, GPU-5): Xid 79, the GPU has fallen off the bus (hint: drain it)"
#define HINT " (hint: out of memory? see dmesg)"

enum { RESTART = 1, NO_RESTART = 0 };

/* clang-format off */
static const struct {
    struct death death;
    const char *sentence, *notice;
    enum death_weight weight;
    int status;
    bool may_restart;
} causes[] = {
    /* ---- of a rank ---- */
    { { .kind = DEATH_NONE }, NULL, NULL, WEIGHT_NONE, 0, NO_RESTART },
    { { .kind = DEATH_UNSEEN }, "rank 3 on n1 died", "rank 3 on n1 died", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_UNSEEN, .after_sigterm = true, .last_seen = "starting" },
      "rank 3 on n1 died after SIGTERM (last seen: starting)", "rank 3 on n1 died", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_SIGNAL, .signal = SIGSEGV, .has_begun = true },
      "rank 3 on n1 was killed by signal 11 (Segmentation fault)",
      "rank 3 on n1 was killed by signal 11 (Segmentation fault)", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_SIGNAL, .signal = SIGABRT }, "rank 3 on n1 was killed by signal 6 (Aborted)",
      "rank 3 on n1 was killed by signal 6 (Aborted)", WEIGHT_OWN, 134, RESTART },
    { { .kind = DEATH_SIGNAL, .signal = SIGKILL, .last_seen = "in attention layers.9, step 7" },
      "rank 3 on n1 was killed by signal 9 (Killed) (last seen: in attention layers.9, step 7)" HINT,
      "rank 3 on n1 was killed by signal 9 (Killed)", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_SIGNAL, .signal = SIGKILL, .after_sigterm = true },
      "rank 3 on n1 was killed by signal 9 (Killed) after SIGTERM",
      "rank 3 on n1 was killed by signal 9 (Killed)", WEIGHT_OWN, ERR_PEER, RESTART },
    /* A signal that the head forwarded: nothing to save before the first step, and else a
     * failure. */
    { { .kind = DEATH_SIGNAL, .signal = SIGTERM, .was_forwarded = true },
      "rank 3 on n1 was killed by signal 15 (Terminated), which was forwarded to it", NULL,
      WEIGHT_OWN, ERR_REQUEUE, RESTART },
    { { .kind = DEATH_SIGNAL, .signal = SIGTERM, .was_forwarded = true, .has_begun = true },
      "rank 3 on n1 was killed by signal 15 (Terminated), which was forwarded to it", NULL,
      WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_EXIT, .status = 3 }, "rank 3 on n1 exited with status 3",
      "rank 3 on n1 exited with status 3", WEIGHT_OWN, 3, NO_RESTART },
    { { .kind = DEATH_EXIT, .status = 9 }, "rank 3 on n1 exited with status 9",
      "rank 3 on n1 exited with status 9", WEIGHT_OWN, 9, RESTART },
    { { .kind = DEATH_EXIT, .status = ERR_PEER }, "rank 3 on n1 exited with status 5",
      "rank 3 on n1 exited with status 5", WEIGHT_PEER, ERR_PEER, RESTART },
    { { .kind = DEATH_NOT_LEFT }, "rank 3 on n1 exited with status 0 without leaving the job",
      "rank 3 on n1 exited with status 0 without leaving the job", WEIGHT_OWN, ERR_FAILED, RESTART },
    { { .kind = DEATH_NOT_LEFT, .status = ERR_REQUEUE },
      "rank 3 on n1 exited with status 75 without leaving the job", NULL, WEIGHT_OWN, ERR_REQUEUE, RESTART },
    { { .kind = DEATH_ABORT, .status = 3, .text = "data/a.bin: cannot be read" },
      "rank 3 on n1 failed with status 3: data/a.bin: cannot be read", NULL, WEIGHT_OWN, 3, NO_RESTART },
    { { .kind = DEATH_ABORT, .status = ERR_PEER, .text = "rank 1: connection lost" },
      "rank 3 on n1 failed with status 5: rank 1: connection lost", NULL, WEIGHT_PEER, ERR_PEER, RESTART },
    /* MPI_Abort of Open MPI, where a connection breaks. */
    { { .kind = DEATH_ABORT, .status = -1, .text = "a connection broke" },
      "rank 3 on n1 failed with status -1: a connection broke", NULL, WEIGHT_PEER, ERR_PEER, RESTART },
    { { .kind = DEATH_FAILED, .gpu = "" }, "rank 3 on n1 failed", "rank 3 on n1 failed", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_FAILED, .gpu = XID }, "rank 3 on n1 failed: " XID, "rank 3 on n1 failed", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_HANG, .seconds = 30.2 }, "rank 3 on n1 made no progress for 30 s",
      "rank 3 on n1 made no progress for 30 s", WEIGHT_OWN, ERR_PEER, RESTART },

    /* ---- with a GPU that is broken, or whose error was contained ---- */
    { { .kind = DEATH_GPU, .gpu = XID, .gpu_is_broken = true, .last_seen = "starting" },
      "rank 3 on n1 lost its GPU (last seen: starting); " XID, "rank 3 on n1 lost its GPU", WEIGHT_OWN, ERR_DEVICE, NO_RESTART },
    { { .kind = DEATH_GPU, .gpu = XID, .gpu_is_broken = true, .has_other_hosts = true },
      "rank 3 on n1 lost its GPU: " XID, "rank 3 on n1 lost its GPU", WEIGHT_OWN, ERR_DEVICE, RESTART },
    { { .kind = DEATH_GPU_HANG, .gpu = XID, .gpu_is_broken = true },
      "rank 3 on n1 lost its GPU and does not exit: " XID, "rank 3 on n1 lost its GPU", WEIGHT_OWN, ERR_DEVICE, NO_RESTART },
    { { .kind = DEATH_ABORT, .status = ERR_DEVICE, .text = "launch failure", .gpu_is_reusable = true },
      "rank 3 on n1 failed with status 4: launch failure", NULL, WEIGHT_OWN, ERR_DEVICE, RESTART },
    { { .kind = DEATH_NOT_LEFT, .gpu_is_broken = true },
      "rank 3 on n1 exited with status 0 without leaving the job", NULL, WEIGHT_OWN, ERR_FAILED, NO_RESTART },
    { { .kind = DEATH_SIGNAL, .signal = SIGKILL, .gpu = XID, .last_seen = "starting", .gpu_is_broken = true },
      "rank 3 on n1 was killed by signal 9 (Killed) (last seen: starting); " XID HINT, NULL, WEIGHT_OWN, ERR_PEER, NO_RESTART },

    /* ---- of a node, a daemon, a launcher ---- */
    { { .kind = DEATH_NODE, .n_ranks = 1, .first_rank = 4, .text = "its link closed" },
      "node n1 is lost (its link closed), with rank 4", NULL, WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_NODE, .n_ranks = 4, .first_rank = 4, .text = "its link closed", .last_message = "Connection reset" },
      "node n1 is lost (its link closed), with ranks 4 to 7; its last message: Connection reset", NULL, WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_NODE, .n_ranks = 2, .signal = SIGKILL, .text = "its link closed" },
      "node n1 is lost (its daemon was killed by signal 9, Killed), with ranks 0 to 1" HINT, NULL, WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_NODE, .n_ranks = 2, .seconds = 31 },
      "node n1 is lost (no heartbeat from its daemon for 31 s), with ranks 0 to 1", NULL, WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_DAEMON_STOPPED, .pid = 77, .seconds = 2 },
      "the daemon of node n1 (pid 77) has been stopped by a signal for 2 s: its ranks cannot be monitored (hint: kill -CONT 77)",
      NULL, WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_DAEMON_SILENT, .seconds = 12 },
      "no heartbeat from the daemon of node n1 for 12 s: its ranks cannot be monitored", NULL, WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_LAUNCHER, .pid = 77 }, "the launcher of the ranks on n1 (pid 77) is gone",
      "the launcher on n1 is gone", WEIGHT_OWN, ERR_PEER, RESTART },
    { { .kind = DEATH_LAUNCHER, .pid = 77, .after_sigterm = true },
      "the launcher of the ranks on n1 (pid 77) is gone after SIGTERM", "the launcher on n1 is gone", WEIGHT_OWN, ERR_PEER, RESTART },

    /* ---- of the job ---- */
    { { .kind = DEATH_STOP_UNSTARTED, .signal = SIGTERM },
      "stopped by signal 15 (Terminated) before any rank was started", NULL, WEIGHT_OWN, ERR_REQUEUE, RESTART },
    { { .kind = DEATH_STOP_UNSTARTED }, "stopped by a signal before any rank was started", NULL, WEIGHT_OWN, ERR_REQUEUE, RESTART },
    { { .kind = DEATH_STOP_EARLY }, "stopped by a signal before the ranks were started", NULL, WEIGHT_OWN, ERR_REQUEUE, RESTART },
    { { .kind = DEATH_STOP_NOW, .signal = SIGINT, .text = "no results are kept" },
      "interrupted by signal 2 (Interrupt): no results are kept", NULL, WEIGHT_OWN, 130, RESTART },
    { { .kind = DEATH_STOP_TWICE, .signal = SIGINT }, "terminated immediately by a second signal", NULL, WEIGHT_OWN, ERR_PEER, RESTART },
};
/* clang-format on */

enum { N_CAUSES = sizeof causes / sizeof *causes };

static void test_causes(void **state)
{
    bool is_seen[DEATH_KINDS] = { false };

    (void)state;
    for (size_t i = 0; i < N_CAUSES; i++) {
        struct death death = causes[i].death;
        char text[1600];

        is_seen[death.kind] = true;
        death.rank = 3;
        death.host = "n1";
        struct death_verdict verdict = death_judge(&death);
        if (causes[i].sentence)
            assert_string_equal(death_sentence(&death, text, sizeof text), causes[i].sentence);
        if (causes[i].notice)
            assert_string_equal(death_notice(&death, text, sizeof text), causes[i].notice);
        if (verdict.weight != causes[i].weight || verdict.status != causes[i].status ||
            verdict.may_restart != causes[i].may_restart)
            fail_msg("cause %zu: weight %d, status %d, restart %d", i, (int)verdict.weight,
                     verdict.status, verdict.may_restart);
    }
    for (int kind = 0; kind < DEATH_KINDS; kind++)
        if (!is_seen[kind])
            fail_msg("kind %d has no example", kind);
}

/* Texts are cut, and end. */
static void test_short_buffers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CAUSES; i++)
        for (size_t size = 1; size < 40; size++) {
            struct death death = causes[i].death;
            char text[40];

            memset(text, 'x', sizeof text);
            death.host = "n1";
            assert_true(strlen(death_sentence(&death, text, size)) < size);
            assert_true(strlen(death_notice(&death, text, size)) < size);
        }
}

/* wait statuses: a signal in the low byte, an exit status above it. */
static void test_wait_statuses(void **state)
{
    static const struct {
        int wait_status;
        bool in_order;
        enum death_kind kind;
        int signal, status;
        bool is_consequence; /* unless it is the cause itself */
    } cases[] = {
        { 0, true, DEATH_NONE, 0, 0, false },
        { ERR_REQUEUE << 8, true, DEATH_NONE, 0, ERR_REQUEUE, false },
        { 0, false, DEATH_NOT_LEFT, 0, 0, true },
        { ERR_REQUEUE << 8, false, DEATH_NOT_LEFT, 0, ERR_REQUEUE, true },
        { 3 << 8, true, DEATH_EXIT, 0, 3, true },
        { 3 << 8, false, DEATH_EXIT, 0, 3, true },
        { SIGKILL, false, DEATH_SIGNAL, SIGKILL, 0, true },
        { SIGTERM, true, DEATH_SIGNAL, SIGTERM, 0, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct death death = death_of_rank(cases[i].wait_status, cases[i].in_order);

        assert_int_equal(death.kind, cases[i].kind);
        assert_int_equal(death.signal, cases[i].signal);
        assert_int_equal(death.status, cases[i].status);
        assert_int_equal(death_is_consequence(false, cases[i].wait_status, cases[i].in_order),
                         cases[i].is_consequence);
    }
    assert_true(death_is_consequence(true, 0, true)); /* it has not ended at all */
}

static void test_restarts(void **state)
{
    static const int final[] = { -1, 0, ERR_FAILED, ERR_CONFIG, ERR_DATA, ERR_DEVICE, ERR_REQUEUE };
    static const int may[] = { ERR_PEER, 9, DEATH_ABORTED_STATUS };

    (void)state;
    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        assert_false(death_may_restart(final[i]));
    for (size_t i = 0; i < sizeof may / sizeof *may; i++)
        assert_true(death_may_restart(may[i]));
}

/* srun's own status, what it reported of the first bad task, whether it lost nodes (slurm_test.c
 * has its lines). */
static void test_srun(void **state)
{
    (void)state;
    assert_int_equal(death_status_of_srun_task("Exited with exit code 3"), 3);
    assert_int_equal(death_status_of_srun_task("Exited with exit code 300"), ERR_PEER);
    assert_int_equal(death_status_of_srun_task("Aborted (core dumped)"), 134);
    assert_int_equal(death_status_of_srun_task("Killed"), ERR_PEER);

    assert_int_equal(death_status_of_srun(0, 0, false), 0);
    assert_int_equal(death_status_of_srun(3 << 8, 0, false), 3);
    assert_int_equal(death_status_of_srun(1 << 8, 0, true), ERR_PEER);
    assert_int_equal(death_status_of_srun(ERR_REQUEUE << 8, 0, true), ERR_REQUEUE);
    assert_int_equal(death_status_of_srun(137 << 8, 3, false), 3);
    assert_int_equal(death_status_of_srun(137 << 8, 134, false), 134);
    assert_int_equal(death_status_of_srun(134 << 8, 0, false), 134);
    assert_int_equal(death_status_of_srun(143 << 8, ERR_PEER, false), ERR_PEER);
    assert_int_equal(death_status_of_srun(SIGKILL, 0, false), ERR_PEER); /* srun itself */
}

static void test_counts(void **state)
{
    char text[128];

    (void)state;
    assert_string_equal(death_consequences(1, NULL, text, sizeof text),
                        "1 other rank terminated as a result");
    assert_string_equal(death_consequences(3, "n1", text, sizeof text),
                        "3 other ranks of n1 terminated as a result");
    assert_string_equal(death_silent_node("b", 12.3, text, sizeof text),
                        "; no heartbeat from node b for 12 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_causes),        cmocka_unit_test(test_short_buffers),
        cmocka_unit_test(test_wait_statuses), cmocka_unit_test(test_restarts),
        cmocka_unit_test(test_srun),          cmocka_unit_test(test_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
