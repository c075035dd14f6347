/*
 * pmix_gate_test.c - who gets past the gate, with the test for ranks, strangers and the PMIx server
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "launch/node/pmix_gate_impl.h"
#include "launch/remote/peer_uid_impl.h"
#include "support/pmix_first.h"
#include "support/temporary.h"

#define NSPACE "lmtrain-1-00112233445566778899aabbccddeeff"

static const double deadline_seconds = 60;

enum { NOBODY = 65534, N_GUESSES = 20000 /* 10^5 take 8 s */, REPORTS_BYTES = 4096 };

/* ---- a first message ---- */

static const struct pmix_first good = {
    .nspace = NSPACE, .version = "4.2.2", .rank = 5, .credential_bytes = 8
};

static int judge(const struct pmix_first *first)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    size_t n = pmix_first_make(first, bytes);

    return pmix_gate_judge(bytes, n, NSPACE, 4, 4);
}

static struct pmix_first with(struct pmix_first first, uint32_t rank)
{
    first.rank = rank;
    return first;
}

static void test_judge(void **state)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    size_t n = pmix_first_make(&good, bytes);
    struct pmix_first bad;

    (void)state;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pmix_gate_judge(bytes, i, NSPACE, 4, 4), 0);
    assert_int_equal(pmix_gate_judge(bytes, n, NSPACE, 4, 4), 1);
    assert_int_equal(pmix_gate_judge(bytes, sizeof bytes, NSPACE, 4, 4), 1); /* more follows */
    for (uint32_t rank = 4; rank < 8; rank++)
        assert_int_equal(judge(&(struct pmix_first){ NSPACE, "4.2.2", rank, 8, 0 }), 1);
    bad = with(good, 3);
    assert_int_equal(judge(&bad), -1);
    bad = with(good, 8);
    assert_int_equal(judge(&bad), -1);
    bad = with(good, UINT32_MAX);
    assert_int_equal(judge(&bad), -1);
    for (int i = 0; i < (int)strlen(NSPACE); i++) {
        char guess[] = NSPACE;

        guess[i] ^= 1;
        bad = good;
        bad.nspace = guess;
        assert_int_equal(judge(&bad), -1);
    }
    bad = good;
    bad.nspace = NSPACE "0";
    assert_int_equal(judge(&bad), -1);
    for (bad = good, bad.kind = 1; bad.kind < 10; bad.kind++) /* tools and singletons */
        assert_int_equal(judge(&bad), -1);
    bad = good;
    bad.version = "4";
    assert_int_equal(judge(&bad), -1);
    bad.version = "";
    assert_int_equal(judge(&bad), -1);
    bad = good;
    bad.credential_bytes = UINT32_MAX; /* PMIx would read past the end */
    assert_int_equal(judge(&bad), -1);
    bad.credential_bytes = 400;
    assert_int_equal(judge(&bad), -1);
}

/* Whatever comes: a verdict, and under AddressSanitizer no byte beyond the end is read. */
static void test_judge_anything(void **state)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    size_t n = pmix_first_make(&good, bytes);

    (void)state;
    srandom(18);
    for (int i = 0; i < 20000; i++) {
        size_t n_kept = i % 2 ? n : 16 + (size_t)random() % (n - 15);
        unsigned char *changed = malloc(n_kept);
        uint32_t n_bytes = (uint32_t)n_kept - 16;

        assert_non_null(changed);
        memcpy(changed, bytes, n_kept);
        memcpy(changed + 8, &n_bytes, sizeof n_bytes);
        for (long k = random() % 3; k; k--)
            changed[(size_t)random() % n_kept] = (unsigned char)random();
        int verdict = pmix_gate_judge(changed, n_kept, NSPACE, 4, 4);
        assert_true(verdict >= -1 && verdict <= 1);
        free(changed);
    }
    uint32_t too_many = GATE_MESSAGE_MAX;
    memcpy(bytes + 8, &too_many, sizeof too_many);
    assert_int_equal(pmix_gate_judge(bytes, 16, NSPACE, 4, 4), -1);
}

/* ---- a rig ---- */

struct rig {
    char folder[256];
    int backend; /* the PMIx server's listener */
    int port;
    struct pmix_gate *gate;
    pthread_mutex_t lock;
    int n_reports;
    char reports[REPORTS_BYTES];
};

static void note_report(void *context, const char *text)
{
    struct rig *rig = context;
    size_t length;

    pthread_mutex_lock(&rig->lock);
    length = strlen(rig->reports);
    snprintf(rig->reports + length, sizeof rig->reports - length, "%s\n", text);
    rig->n_reports++;
    pthread_mutex_unlock(&rig->lock);
}

static void rig_open(struct rig *rig, double first_message_seconds)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    struct sockaddr_un backend = { .sun_family = AF_UNIX };
    socklen_t size = sizeof address;
    struct err err;

    *rig = (struct rig){ .lock = PTHREAD_MUTEX_INITIALIZER };
    assert_int_equal(temporary_folder(rig->folder, sizeof rig->folder), 0);
    assert_true(snprintf(backend.sun_path, sizeof backend.sun_path, "%s/backend", rig->folder) <
                (int)sizeof backend.sun_path);
    rig->backend = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(rig->backend, (struct sockaddr *)&backend, sizeof backend), 0);
    assert_int_equal(listen(rig->backend, 64), 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, SOMAXCONN), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    rig->port = ntohs(address.sin_port);
    struct pmix_gate_options options = { .listener = listener,
                                         .backend = backend.sun_path,
                                         .nspace = NSPACE,
                                         .first_rank = 4,
                                         .n_ranks = 4,
                                         .uid = getuid(),
                                         .first_message_seconds = first_message_seconds,
                                         .report = note_report,
                                         .context = rig };
    assert_int_equal(pmix_gate_start(&rig->gate, &options, &err), 0);
}

static void rig_close(struct rig *rig)
{
    struct err err;

    pmix_gate_stop(rig->gate);
    close(rig->backend);
    assert_int_equal(file_remove_tree(rig->folder, &err), 0);
}

static int connect_to(const struct rig *rig)
{
    int fd = pmix_first_connect(rig->port);

    assert_true(fd >= 0);
    return fd;
}

static void send_first(int fd, const struct pmix_first *first)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    size_t n = pmix_first_make(first, bytes);

    send(fd, bytes, n, MSG_NOSIGNAL);
}

static int accept_backend(const struct rig *rig)
{
    struct pollfd ready = { .fd = rig->backend, .events = POLLIN };

    assert_int_equal(poll(&ready, 1, (int)(1000 * deadline_seconds)), 1);
    int fd = accept4(rig->backend, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void assert_backend_untouched(const struct rig *rig)
{
    assert_int_equal(accept(rig->backend, NULL, NULL), -1);
    assert_int_equal(errno, EAGAIN);
}

static void read_all(int fd, void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)bytes + done, n - done);

        assert_true(got > 0);
        done += (size_t)got;
    }
}

/* A rank is passed on, and both ends hear each other. */
static void exchange(const struct rig *rig)
{
    unsigned char sent[PMIX_FIRST_MAX], got[PMIX_FIRST_MAX];
    size_t n = pmix_first_make(&good, sent);
    int rank = connect_to(rig), server;

    send_first(rank, &good);
    server = accept_backend(rig);
    read_all(server, got, n);
    assert_memory_equal(got, sent, n);
    assert_int_equal(write(server, "welcome", 7), 7);
    read_all(rank, got, 7);
    assert_memory_equal(got, "welcome", 7);
    close(server);
    assert_true(pmix_first_is_refused(rank));
    close(rank);
}

static uint64_t await_count(const struct rig *rig, enum gate_count count, uint64_t n)
{
    double deadline = clock_seconds() + deadline_seconds;

    while (pmix_gate_count(rig->gate, count) < n && clock_seconds() < deadline)
        usleep(1000);
    return pmix_gate_count(rig->gate, count);
}

static int was_reported(struct rig *rig, const char *words)
{
    pthread_mutex_lock(&rig->lock);
    int found = strstr(rig->reports, words) != NULL;
    pthread_mutex_unlock(&rig->lock);
    return found;
}

/* ---- ranks ---- */

struct writer {
    int fd;
    size_t n;
};

static void *write_much(void *argument)
{
    const struct writer *writer = argument;
    unsigned char bytes[8192];

    for (size_t done = 0; done < writer->n; done += sizeof bytes) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)((done + i) * 31 >> 3);
        CHECK(send(writer->fd, bytes, sizeof bytes, MSG_NOSIGNAL) == (ssize_t)sizeof bytes);
    }
    shutdown(writer->fd, SHUT_WR);
    return NULL;
}

static void read_much(int fd, size_t n)
{
    unsigned char bytes[4096];
    size_t done = 0;

    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0; done += (size_t)got)
        for (ssize_t i = 0; i < got; i++)
            assert_int_equal(bytes[i], (unsigned char)((done + (size_t)i) * 31 >> 3));
    assert_int_equal(done, n);
}

/* In pieces, then far more than any buffer, both ways, up to the ends. */
static void test_rank(void **state)
{
    unsigned char sent[PMIX_FIRST_MAX], got[PMIX_FIRST_MAX];
    size_t n = pmix_first_make(&good, sent);
    pthread_t threads[2];
    struct rig rig;

    (void)state;
    rig_open(&rig, deadline_seconds);
    int rank = connect_to(&rig);
    assert_int_equal(write(rank, sent, 20), 20);
    usleep(20000);
    assert_backend_untouched(&rig);
    assert_int_equal(write(rank, sent + 20, n - 20), (ssize_t)n - 20);
    int server = accept_backend(&rig);
    read_all(server, got, n);
    assert_memory_equal(got, sent, n);

    struct writer writers[2] = { { rank, 4 << 20 }, { server, 2 << 20 } };
    pthread_create(&threads[0], NULL, write_much, &writers[0]);
    read_much(server, writers[0].n);
    pthread_create(&threads[1], NULL, write_much, &writers[1]);
    read_much(rank, writers[1].n);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    close(rank);
    close(server);
    exchange(&rig);
    assert_int_equal(pmix_gate_count(rig.gate, GATE_ADMITTED), 2);
    assert_int_equal(rig.n_reports, 0);
    rig_close(&rig);
}

/* ---- processes of this user that are no ranks ---- */

static void test_wrong_message(void **state)
{
    struct pmix_first guess = good;
    struct rig rig;
    int fds[10];

    (void)state;
    rig_open(&rig, deadline_seconds);
    guess.nspace = "lmtrain-1-00112233445566778899aabbccddeefe";
    for (int i = 0; i < 10; i++) {
        fds[i] = connect_to(&rig);
        send_first(fds[i], &guess);
    }
    for (int i = 0; i < 10; i++) {
        assert_true(pmix_first_is_refused(fds[i]));
        close(fds[i]);
    }
    assert_int_equal(await_count(&rig, GATE_WRONG, 10), 10);
    assert_backend_untouched(&rig);
    assert_true(
        was_reported(&rig, "closed a connection to the PMIx port without the job's secret"));
    assert_true(was_reported(&rig, "closed 10 connections"));
    assert_int_equal(rig.n_reports, 2);
    exchange(&rig);
    rig_close(&rig);
}

/* Ranks are served while others are silent, or send a byte now and then. */
static void test_silence(void **state)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    struct rig rig;

    (void)state;
    pmix_first_make(&good, bytes);
    rig_open(&rig, deadline_seconds);
    int silent = connect_to(&rig), dripping = connect_to(&rig);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(write(dripping, bytes + i, 1), 1);
        exchange(&rig);
    }
    assert_int_equal(pmix_gate_count(rig.gate, GATE_LATE), 0); /* still connected */
    close(silent);
    close(dripping);
    rig_close(&rig);
}

static void test_deadline(void **state)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    struct rig rig;
    int n_sent = 0;

    (void)state;
    pmix_first_make(&good, bytes);
    rig_open(&rig, 0.2);
    int silent = connect_to(&rig), dripping = connect_to(&rig);
    while (pmix_gate_count(rig.gate, GATE_LATE) < 2 && n_sent < 60) {
        send(dripping, bytes + n_sent++, 1, MSG_NOSIGNAL);
        usleep(20000);
    }
    assert_int_equal(await_count(&rig, GATE_LATE, 2), 2);
    assert_true(pmix_first_is_refused(silent));
    assert_true(pmix_first_is_refused(dripping));
    close(silent);
    close(dripping);
    assert_true(was_reported(&rig, "without a complete first message in time (from port "));
    assert_backend_untouched(&rig);
    exchange(&rig);
    rig_close(&rig);
}

static void test_crowd(void **state)
{
    enum { N = GATE_WAITING_MAX + 10 };
    int fds[N];
    struct rig rig;

    (void)state;
    rig_open(&rig, deadline_seconds);
    for (int i = 0; i < N; i++)
        fds[i] = connect_to(&rig);
    assert_int_equal(await_count(&rig, GATE_CROWDED, 10), 10);
    assert_true(pmix_first_is_refused(fds[0]));
    exchange(&rig); /* it takes a place, too */
    assert_int_equal(pmix_gate_count(rig.gate, GATE_CROWDED), 11);
    send_first(fds[N - 1], &good);
    close(accept_backend(&rig));
    for (int i = 0; i < N; i++)
        close(fds[i]);
    rig_close(&rig);
}

/* ---- another user ---- */

static int is_root(const char *what)
{
    if (!getuid())
        return 1;
    print_message("%s: skipped, it needs root to become another user\n", what);
    return 0;
}

/*
 * As nobody, with all that is public and even the secret name, and uid 0 in the credential. Every
 * third connection is closed at once: its socket has no owner any more when the gate asks. Returns
 * how many got a byte, or could not connect.
 */
static int guess_as_nobody(int port, int n)
{
    unsigned char bytes[PMIX_FIRST_MAX];
    size_t n_bytes = pmix_first_make(&good, bytes);
    int n_let_in = 0;

    if (setgid(NOBODY) || setuid(NOBODY))
        return 1;
    for (int i = 0; i < n; i++) {
        int fd = pmix_first_connect(port);

        /* The gate may have closed it before connect() returns: it is refused and counted. */
        if (fd < 0 && errno == ECONNRESET)
            continue;
        if (fd < 0)
            return 1;
        send(fd, bytes, n_bytes, MSG_NOSIGNAL);
        if (i % 3 != 1)
            n_let_in += !pmix_first_is_refused(fd);
        close(fd);
    }
    return n_let_in;
}

static void test_other_user(void **state)
{
    struct rig rig;
    int status;

    (void)state;
    if (!is_root("another user's guesses"))
        return;
    rig_open(&rig, deadline_seconds);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(guess_as_nobody(rig.port, N_GUESSES) != 0);
    for (int i = 0; i < 20; i++)
        exchange(&rig); /* ranks are served meanwhile */
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(await_count(&rig, GATE_OTHER_USER, N_GUESSES), N_GUESSES);
    assert_int_equal(pmix_gate_count(rig.gate, GATE_ADMITTED), 20);
    assert_backend_untouched(&rig);
    assert_true(was_reported(&rig, "not owned by this user"));
    assert_true(was_reported(&rig, "uid 65534; the job's is 0"));
    assert_true(was_reported(&rig, "closed 10000 connections"));
    assert_int_equal(rig.n_reports, 5);
    rig_close(&rig);
}

/* ---- what the kernel says ---- */

static void ask_both(int listener, int query_fd, enum peer_owner expected, uid_t uid)
{
    uid_t found[2] = { 1, 2 };
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(peer_uid(query_fd, fd, &found[0]), expected);
    assert_int_equal(peer_uid_from_table("/proc/self/net/tcp", fd, &found[1]), expected);
    for (int i = 0; i < 2 && expected == PEER_OWNED; i++)
        assert_int_equal(found[i], uid);
    close(fd);
}

static void test_peer_uid(void **state)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), query_fd = peer_uid_open();
    uid_t uid;

    (void)state;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    int port = ntohs(address.sin_port), mine = pmix_first_connect(port);
    ask_both(listener, query_fd, PEER_OWNED, getuid());
    close(mine);
    close(pmix_first_connect(port)); /* closed before it is asked for: owned by no process */
    ask_both(listener, query_fd, PEER_UNOWNED, 0);
    assert_int_equal(peer_uid(query_fd, listener, &uid), PEER_UNOWNED);
    if (is_root("another user's socket")) {
        pid_t child = fork();

        if (!child) {
            int theirs = setuid(NOBODY) ? -1 : pmix_first_connect(port);

            _exit(theirs < 0 || !pmix_first_is_refused(theirs));
        }
        ask_both(listener, query_fd, PEER_OWNED, NOBODY);
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
    uid = 7;
    mine = pmix_first_connect(port);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(peer_uid_from_table("/proc/self/net/no-such-table", fd, &uid), PEER_UNKNOWN);
    assert_int_equal(peer_uid(-1, fd, &uid), PEER_OWNED); /* no NETLINK_SOCK_DIAG: /proc */
    assert_int_equal(uid, getuid());
    close(fd);
    close(mine);
    close(query_fd);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judge),      cmocka_unit_test(test_judge_anything),
        cmocka_unit_test(test_rank),       cmocka_unit_test(test_wrong_message),
        cmocka_unit_test(test_silence),    cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_crowd),      cmocka_unit_test(test_peer_uid),
        cmocka_unit_test(test_other_user),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
