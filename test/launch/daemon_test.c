/*
 * daemon_test.c - one daemon, with the test for a head: what it says, and that it ends as it must
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "launch/job_folder_impl.h"
#include "launch/job_spec_message_impl.h"
#include "launch/launch.h"
#include "launch/node/daemon.h"
#include "launch/proc_impl.h"
#include "launch/remote/link_impl.h"
#include "progress/progress.h"

static const double deadline_seconds = 30;

struct rig {
    pid_t daemon;
    struct link link;
    pid_t pids[2]; /* the ranks' */
};

static void rig_open(struct rig *rig)
{
    int ends[2];

    *rig = (struct rig){ 0 };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fflush(NULL);
    rig->daemon = fork();
    assert_true(rig->daemon >= 0);
    if (!rig->daemon) {
        close(ends[0]);
        _exit(launch_daemon(ends[1], 10));
    }
    close(ends[1]);
    link_open(&rig->link, ends[0], 10);
}

/* The next message of two kinds; others before are passed over. Fails the test at the deadline. */
static struct message await_either(struct rig *rig, enum message_kind kind, enum message_kind other)
{
    double deadline = clock_seconds() + deadline_seconds;
    struct message message;
    struct err err;

    while (clock_seconds() < deadline) {
        int found = link_next(&rig->link, &message, &err);

        assert_true(found >= 0);
        if (found && (message.kind == kind || message.kind == other))
            return message;
        if (found)
            continue;
        struct pollfd ready = link_poll(&rig->link);
        poll(&ready, 1, 100);
        link_flush(&rig->link);
        if (link_receive(&rig->link, &err))
            fail_msg("%s", err.text);
    }
    fail_msg("no message %d", (int)kind);
    return message;
}

static struct message await(struct rig *rig, enum message_kind kind)
{
    return await_either(rig, kind, kind);
}

/* Two ranks of this test that play a scenario; both started. */
static void start_ranks(struct rig *rig, const char *scenario, uint32_t credit_bytes)
{
    struct job_node node = { "here", 0, 2 };
    char *argv[] = { "rank", (char *)(uintptr_t)scenario, NULL };
    char *variables[] = { "DAEMON_TEST=told", NULL };
    char nspace[64];
    struct str bytes = { 0 };
    struct job_spec spec = { .nspace = nspace,
                             .cwd = "/",
                             .attempt = 3,
                             .n_ranks = 2,
                             .n_nodes = 1,
                             .nodes = &node,
                             .argv = argv,
                             .variables = variables,
                             .progress_ms = 20,
                             .credit_bytes = credit_bytes };

    snprintf(nspace, sizeof nspace, "daemon-test-%d", (int)rig->daemon);
    struct message hello = await(rig, MESSAGE_HELLO);
    assert_int_equal(hello.hello.protocol, MESSAGE_PROTOCOL);
    assert_int_equal(hello.hello.slot_bytes, sizeof(struct progress_slot));
    assert_true(strlen(hello.hello.host) > 0);
    job_spec_encode(&spec, &bytes);
    link_send(&rig->link, &(struct message){ .kind = MESSAGE_START,
                                             .start.spec = { bytes.data, bytes.length } });
    str_release(&bytes);
    for (int i = 0; i < 2; i++) {
        struct message message = await(rig, MESSAGE_STARTED);

        assert_int_equal(message.started.rank, i);
        rig->pids[i] = message.started.pid;
    }
}

static int is_gone(pid_t pid)
{
    struct proc_stat stat;

    return proc_stat(pid, &stat) || proc_is_dead(&stat);
}

/* The daemon has ended with this status, its ranks with it. */
static void rig_check_end(struct rig *rig, int status)
{
    double deadline = clock_seconds() + deadline_seconds;
    int wait_status = -1;

    while (waitpid(rig->daemon, &wait_status, WNOHANG) == 0) {
        assert_true(clock_seconds() < deadline);
        usleep(1000);
    }
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), status);
    for (int i = 0; i < 2; i++)
        if (rig->pids[i])
            assert_true(is_gone(rig->pids[i]));
    link_close(&rig->link);
}

static void check_good_end(const struct message_ended *ended)
{
    struct progress_slot slot;

    assert_true(WIFEXITED(ended->wait_status));
    assert_int_equal(WEXITSTATUS(ended->wait_status), 0);
    assert_true(ended->in_order);
    memcpy(&slot, ended->slot, sizeof slot);
    assert_string_equal(slot.text, "printing");
}

static void test_a_job(void **state)
{
    struct rig rig;
    int n_told = 0;

    (void)state;
    rig_open(&rig);
    start_ranks(&rig, "print", 1 << 20);
    /* One may be at its end before the other has printed. */
    for (int n_ended = 0; n_ended < 2;) {
        struct message message = await_either(&rig, MESSAGE_OUTPUT, MESSAGE_ENDED);

        if (message.kind == MESSAGE_OUTPUT) {
            assert_false(message.output.is_stderr);
            assert_memory_equal(message.output.bytes.data, "told 3\n", 7);
            n_told++;
        } else {
            check_good_end(&message.ended);
            n_ended++;
        }
    }
    assert_int_equal(n_told, 2);
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_GOODBYE });
    rig_check_end(&rig, 0);
}

/* A rank that prints without end waits in its pipe; with more room more comes. */
static void test_flow(void **state)
{
    enum { CREDIT = 100000, SLACK = 16 << 10 };
    size_t n_bytes = 0;
    struct rig rig;
    struct message message;
    struct err err;

    (void)state;
    rig_open(&rig);
    start_ranks(&rig, "flood", CREDIT);
    for (int round = 1; round <= 3; round++) {
        while (n_bytes < (size_t)CREDIT * (size_t)round)
            n_bytes += await(&rig, MESSAGE_OUTPUT).output.bytes.n_bytes;
        usleep(50000);
        assert_int_equal(link_receive(&rig.link, &err), 0);
        while (link_next(&rig.link, &message, &err) > 0)
            n_bytes += message.kind == MESSAGE_OUTPUT ? message.output.bytes.n_bytes : 0;
        assert_true(n_bytes <= (size_t)CREDIT * (size_t)round + SLACK);
        link_send(&rig.link, &(struct message){ .kind = MESSAGE_CREDIT, .credit.n_bytes = CREDIT });
    }
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_GOODBYE });
    rig_check_end(&rig, 0);
}

/* Ranks that ignore SIGTERM: told to end, or left by the head, they go all the same. */
static void test_end(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig);
    start_ranks(&rig, "stubborn", 1 << 20);
    await(&rig, MESSAGE_OUTPUT);
    await(&rig, MESSAGE_OUTPUT);
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_END });
    for (int i = 0; i < 2; i++) {
        int status = await(&rig, MESSAGE_ENDED).ended.wait_status;

        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_GOODBYE });
    rig_check_end(&rig, 0);

    rig_open(&rig);
    start_ranks(&rig, "stubborn", 1 << 20);
    await(&rig, MESSAGE_OUTPUT);
    await(&rig, MESSAGE_OUTPUT);
    link_close(&rig.link);
    rig_check_end(&rig, ERR_PEER);
}

/* What cannot be is passed over; what is no message ends the link, and with it all. */
static void test_hostile(void **state)
{
    static const struct message hostile[] = {
        { .kind = MESSAGE_CARD_QUERY, .card_query = { .rank = -2, .node = -1, .id = 12345 } },
        { .kind = MESSAGE_CARD_QUERY, .card_query = { .rank = 2, .node = 9, .id = 12345 } },
        { .kind = MESSAGE_FENCE_END, .fence_end = { .id = 12345, .outcome = OUTCOME_DEAD } },
        { .kind = MESSAGE_CARD, .card = { .id = 12345 } },
        { .kind = MESSAGE_SIGNAL, .signal = { .signal = -7, .to_groups = true } },
        { .kind = MESSAGE_SIGNAL, .signal = { .signal = 1 << 20 } },
        { .kind = MESSAGE_HELLO },
        { .kind = MESSAGE_FENCE, .fence = { .id = 1, .members = "*" } },
        { .kind = MESSAGE_STARTED, .started = { .rank = -1 } },
    };
    const size_t n_hostile = sizeof hostile / sizeof *hostile;
    struct rig rig;

    (void)state;
    rig_open(&rig);
    start_ranks(&rig, "stubborn", 1 << 20);
    await(&rig, MESSAGE_OUTPUT);
    await(&rig, MESSAGE_OUTPUT);
    for (size_t i = 0; i < n_hostile; i++)
        link_send(&rig.link, &hostile[i]);
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_SIGNAL, .signal.signal = SIGUSR1 });
    assert_false(await(&rig, MESSAGE_OUTPUT).output.is_stderr); /* it lives */
    assert_int_equal(write(rig.link.fd, "\xff\xff\xff\xff", 4), 4);
    rig_check_end(&rig, ERR_PEER);

    /* Before there is a job, too; and a spec that is none. */
    rig_open(&rig);
    await(&rig, MESSAGE_HELLO);
    for (size_t i = 0; i < n_hostile; i++)
        link_send(&rig.link, &hostile[i]);
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_END });
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_START, .start.spec = { "x", 1 } });
    assert_int_equal(await(&rig, MESSAGE_FAILED).failed.code, ERR_PEER);
    link_send(&rig.link, &(struct message){ .kind = MESSAGE_GOODBYE });
    rig_check_end(&rig, 0);
}

/* ---- the ranks ---- */

static void on_signal(int number)
{
    if (number == SIGUSR1 && write(1, "usr1\n", 5) < 0)
        _exit(9);
}

static int play(const char *scenario)
{
    struct launch_rank rank;
    struct err err;

    if (launch_join(&rank, &err))
        return 1;
    progress_publish(progress_join(rank.local_rank), "printing", 0);
    if (!strcmp(scenario, "flood")) {
        for (;;)
            puts("the quick brown fox");
    }
    if (!strcmp(scenario, "stubborn")) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGUSR1, on_signal);
        if (write(1, "here\n", 5) < 0)
            return 1;
        for (;;)
            pause();
    }
    printf("%s %s\n", getenv("DAEMON_TEST"), getenv("LMTRAIN_ATTEMPT"));
    fflush(stdout);
    launch_leave();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job),
        cmocka_unit_test(test_flow),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_hostile),
    };

    if (argc > 1 && launch_is_rank())
        return play(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
