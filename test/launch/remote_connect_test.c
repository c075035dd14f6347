/*
 * remote_connect_test.c - daemons through a stand-in for ssh, honest and otherwise
 *
 * The stand-in is a shell script that is given the host's name, and plays what that says; where a
 * daemon is to run it is this binary again, called with the words `daemon`.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "launch/remote/hosts_impl.h"
#include "support/temporary.h"

static char folder[256];

/* ---- the daemon, in this binary ---- */

static int read_handshake(char text[REMOTE_HANDSHAKE_MAX])
{
    size_t n = 0;

    while (!remote_handshake_is_whole(text, n)) {
        ssize_t got = read(0, text + n, REMOTE_HANDSHAKE_MAX - 1 - n);

        if (got <= 0)
            return -1;
        n += (size_t)got;
        text[n] = '\0';
    }
    return 0;
}

static int dial(const struct remote_address *address)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((in_port_t)address->port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (inet_pton(AF_INET, address->ip, &to.sin_addr) != 1 ||
        connect(fd, (const struct sockaddr *)&to, sizeof to))
        return -1;
    return fd;
}

/* Strangers who say nothing, and some who say the wrong thing, and stay. */
static int send_strangers(char *text)
{
    struct remote_handshake handshake;
    char copy[REMOTE_HANDSHAKE_MAX], junk[1000];
    struct err err;

    memcpy(copy, text, sizeof copy);
    if (remote_handshake_read(&handshake, copy, "1 x", &err))
        return -1;
    memset(junk, 'x', sizeof junk);
    for (int i = 0; i < 200; i++) {
        int fd = dial(&handshake.addresses[0]);

        if (fd < 0 || (i % 4 == 0 && send(fd, junk, i % 8 ? 20 : sizeof junk, MSG_NOSIGNAL) < 0))
            return -1;
    }
    return 0;
}

/* What this host is to do to the handshake before it answers. */
static int tamper(char *text, const char *scenario)
{
    char *cookie = strstr(text, "\ncookie ") + 8;

    if (!strcmp(scenario, "cookie"))
        *cookie = *cookie == '0' ? '1' : '0';
    if (!strcmp(scenario, "thief"))
        strstr(text, "\nhost ")[6] = '0';
    if (!strcmp(scenario, "build"))
        strstr(text, "\nbuild ")[7] = '9';
    return !strcmp(scenario, "strangers") ? send_strangers(text) : 0;
}

/* Echo what comes, in capitals of a sort, until the connection ends. */
static int serve(int fd)
{
    unsigned char byte;

    while (recv(fd, &byte, 1, 0) == 1) {
        byte ^= 32;
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1)
            break;
    }
    fputs("lmtrain: the daemon ends\n", stderr);
    return 7;
}

static int play_daemon(void)
{
    const char *scenario = getenv("SCENARIO");
    char text[REMOTE_HANDSHAKE_MAX] = "";
    double link_seconds;
    struct err err;
    int fds[2] = { 0, -1 };

    /* What was tampered with comes through a pipe. */
    if (scenario && strcmp(scenario, "good") != 0 &&
        (read_handshake(text) || tamper(text, scenario) || pipe(fds) ||
         write(fds[1], text, strlen(text)) < 0))
        return 99;
    int fd = hosts_answer(fds[0], "1 x", &link_seconds, &err);
    if (fd >= 0)
        return serve(fd);
    fprintf(stderr, "lmtrain: %s\n", err.text);
    return (int)err.code;
}

/* ---- the stand-in ---- */

static const char script[] =
    "#!/bin/sh\n"
    "echo \"$*\" >>\"$1/arguments\"\n"
    "[ \"$2\" = extra ] || exit 90\n"
    "shift 2\n"
    "while [ \"$1\" = -o ]; do shift 2; done\n"
    "host=$1; shift\n"
    "SCENARIO=${host%%[0-9]*}; export SCENARIO\n"
    "case $SCENARIO in\n"
    "refuse) echo \"ssh: connect to host $host port 22: Connection refused\" >&2; exit 255 ;;\n"
    "key) printf 'Host key verification failed.\\r\\n' >&2; exit 255 ;;\n"
    "missing) echo \"sh: 1: $1: not found\" >&2; exit 127 ;;\n"
    "silent) exit 3 ;;\n"
    "killed) kill -KILL $$ ;;\n"
    "hang) echo 'still thinking' >&2; exec sleep 60 ;;\n"
    "junk) echo junk; echo junk >&2; printf '\\033[31m\\001\\n' >&2; SCENARIO=good; exec \"$@\" "
    ";;\n"
    "*) exec \"$@\" ;;\n"
    "esac\n";

static int make_stand_in(void **state)
{
    char path[300], variable[1024];
    struct err err;

    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(path, sizeof path, "%s/ssh", folder);
    if (file_write(path, script, strlen(script), &err) || chmod(path, 0700))
        return -1;
    snprintf(variable, sizeof variable, " %s  %s extra", path, folder);
    setenv("LMTRAIN_SSH", variable, 1);
    setenv("LMTRAIN_INTERFACE", "lo", 1);
    return 0;
}

static int remove_stand_in(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

/* ---- connecting ---- */

enum { N_MAX = 80 };

struct attempt {
    struct host_link links[N_MAX];
    char reasons[N_MAX][512];
    int n_hosts, n_connected;
    double seconds;
    struct err err;
};

static void connect_to(struct attempt *attempt, const char *hosts, double timeout_seconds)
{
    struct arena arena = { 0 };
    struct host_list list;
    int n_ranks_of[N_MAX];

    assert_int_equal(hosts_read(&list, hosts, &arena, &attempt->err), 0);
    assert_true(list.n_hosts <= N_MAX);
    list.build = "1 x";
    for (int i = 0; i < list.n_hosts; i++)
        n_ranks_of[i] = strcmp(list.hosts[i].name, "idle") != 0;
    double start = clock_seconds();
    attempt->n_hosts = list.n_hosts;
    attempt->n_connected = hosts_connect(&list, n_ranks_of, timeout_seconds, attempt->links,
                                         attempt->reasons, &attempt->err);
    attempt->seconds = clock_seconds() - start;
    /* Names are the list's. */
    for (int i = 0; i < list.n_hosts; i++)
        attempt->links[i].host = "?";
    arena_release(&arena);
}

static void close_all(struct attempt *attempt)
{
    hosts_close(attempt->links, attempt->n_hosts);
    for (int i = 0; i < attempt->n_hosts; i++) {
        assert_int_equal(attempt->links[i].fd, -1);
        assert_int_equal(attempt->links[i].ssh, -1);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void assert_serves(const struct host_link *link)
{
    struct pollfd ready = { .fd = link->fd, .events = POLLIN };
    char byte = 'a';

    assert_true(link->fd >= 0);
    assert_true(fcntl(link->fd, F_GETFD) & FD_CLOEXEC);
    assert_false(fcntl(link->fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(send(link->fd, &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(poll(&ready, 1, 10000), 1);
    assert_int_equal(recv(link->fd, &byte, 1, 0), 1);
    assert_int_equal(byte, 'A');
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void test_good(void **state)
{
    struct attempt attempt;
    char path[300], *text;
    size_t n_bytes;

    (void)state;
    connect_to(&attempt, "good0,junk,idle,good1", 20);
    assert_int_equal(attempt.n_connected, 3);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(attempt.reasons[i], "");
        if (i == 2)
            assert_int_equal(attempt.links[i].ssh, -1);
        else
            assert_serves(&attempt.links[i]);
    }
    close_all(&attempt);

    snprintf(path, sizeof path, "%s/arguments", folder);
    assert_int_equal(file_read(path, 1 << 20, ERR_FAILED, &text, &n_bytes, &attempt.err), 0);
    assert_says(text, "-o BatchMode=yes");
    assert_says(text, " daemon\n");
    assert_null(strstr(text, "cookie"));
    free(text);
}

static void test_many(void **state)
{
    struct attempt attempt;
    char hosts[2048];
    size_t n = 0;

    (void)state;
    for (int i = 0; i < N_MAX; i++)
        n += (size_t)snprintf(hosts + n, sizeof hosts - n, i ? ",good%d" : "good%d", i);
    connect_to(&attempt, hosts, 60);
    assert_int_equal(attempt.n_connected, N_MAX);
    for (int i = 0; i < N_MAX; i++)
        assert_serves(&attempt.links[i]);
    close_all(&attempt);
}

/* The connection ends when stdin does, and the other way round. */
static void test_lifelines(void **state)
{
    struct attempt attempt;
    char byte, words[256];

    (void)state;
    connect_to(&attempt, "good0,good1", 20);
    assert_int_equal(attempt.n_connected, 2);
    close(attempt.links[0].stdin_fd);
    attempt.links[0].stdin_fd = -1;
    struct pollfd ready = { .fd = attempt.links[0].fd, .events = POLLIN };
    assert_int_equal(poll(&ready, 1, 10000), 1);
    assert_true(recv(attempt.links[0].fd, &byte, 1, 0) <= 0);

    shutdown(attempt.links[1].fd, SHUT_RDWR);
    for (int i = 0; i < 2; i++) {
        siginfo_t info;

        assert_int_equal(waitid(P_PID, (id_t)attempt.links[i].ssh, &info, WEXITED | WNOWAIT), 0);
        assert_int_equal(info.si_status, 7);
        assert_non_null(hosts_link_words(&attempt.links[i], words));
        assert_string_equal(words, "lmtrain: the daemon ends");
    }
    close_all(&attempt);
}

static void test_refusals(void **state)
{
    static const char *const says[] = {
        "host refuse: ssh: connect to host refuse port 22: Connection refused",
        "host key: Host key verification failed. (hint: run `ssh HOST` once by hand",
        "not found (hint: lmtrain must be installed on all hosts under the same path)",
        "host silent: ssh exited with status 3 and no message",
        "host killed: ssh was killed by signal 9 (Killed)",
        "host build has lmtrain 1 x, but this host has 1 x (hint: install the same build on all",
    };
    struct attempt attempt;

    (void)state;
    connect_to(&attempt, "refuse,key,missing,silent,killed,build,good", 20);
    assert_int_equal(attempt.n_connected, 1);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(attempt.links[i].fd, -1);
        assert_says(attempt.reasons[i], says[i]);
    }
    assert_serves(&attempt.links[6]);
    close_all(&attempt);
    assert_true(attempt.seconds < 15); /* nobody waited for the timeout */
}

/* Who does not know the cookie, or knows only that of another host, is not let in. */
static void test_forgeries(void **state)
{
    struct attempt attempt;

    (void)state;
    connect_to(&attempt, "hang,cookie,thief", 2);
    assert_int_equal(attempt.n_connected, 0);
    assert_says(attempt.reasons[0], "host hang: no daemon in 2 s; ssh said: still thinking");
    for (int i = 1; i < 3; i++)
        assert_int_equal(attempt.links[i].fd, -1);
    assert_says(attempt.reasons[1], "host cookie: ");
    assert_says(attempt.reasons[2], "host thief: ");
    assert_true(attempt.seconds >= 1.9);
    assert_true(attempt.seconds < 12);
    close_all(&attempt);
}

static void test_strangers(void **state)
{
    struct attempt attempt;

    (void)state;
    connect_to(&attempt, "strangers,good", 60);
    assert_int_equal(attempt.n_connected, 2);
    assert_serves(&attempt.links[0]);
    assert_serves(&attempt.links[1]);
    assert_true(attempt.seconds < 20); /* they would have had 5 s each */
    close_all(&attempt);
}

static void test_no_ssh(void **state)
{
    char *before = strdup(getenv("LMTRAIN_SSH"));
    struct attempt attempt;

    (void)state;
    setenv("LMTRAIN_SSH", "/nowhere/ssh -v", 1);
    connect_to(&attempt, "good", 20);
    assert_int_equal(attempt.n_connected, 0);
    assert_says(attempt.reasons[0], "host good: cannot run /nowhere/ssh (hint: is ssh installed?");
    close_all(&attempt);
    setenv("LMTRAIN_SSH", before, 1);
    free(before);
}

static void test_no_interface(void **state)
{
    struct attempt attempt;

    (void)state;
    setenv("LMTRAIN_INTERFACE", "none7", 1);
    connect_to(&attempt, "good", 20);
    assert_int_equal(attempt.n_connected, -1);
    assert_int_equal(attempt.err.code, ERR_CONFIG);
    assert_says(attempt.err.text,
                "LMTRAIN_INTERFACE is 'none7': this machine has no such interface");
    close_all(&attempt);
    setenv("LMTRAIN_INTERFACE", "127.0.0.1", 1);
    connect_to(&attempt, "good", 20);
    assert_int_equal(attempt.n_connected, 1);
    close_all(&attempt);
    setenv("LMTRAIN_INTERFACE", "lo", 1);
}

/* A supervisor has its signals blocked; Ctrl-C must end the waiting all the same. */
static void test_interrupted(void **state)
{
    struct attempt attempt;
    sigset_t mask, before;
    int number;

    (void)state;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, &before);
    raise(SIGTERM);
    connect_to(&attempt, "hang", 60);
    assert_int_equal(attempt.n_connected, -1);
    assert_says(attempt.err.text, "stopped by signal 15 (Terminated) while connecting");
    close_all(&attempt);
    sigwait(&mask, &number);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* ---- the daemon's side ---- */

/* A head that listens, and what it says to who comes: nothing, or a hello and a wrong proof. */
static int false_head(struct remote_address *address, int says_something)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    unsigned char hello[HOSTS_HELLO_BYTES + HOSTS_PROOF_BYTES] = REMOTE_MAGIC;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    snprintf(address->ip, sizeof address->ip, "127.0.0.1");
    address->port = ntohs(at.sin_port);
    int child = fork();
    while (!child) {
        int peer = accept(fd, NULL, NULL);

        if (peer < 0 || (says_something && send(peer, hello, sizeof hello, MSG_NOSIGNAL) < 0))
            _exit(1);
    }
    close(fd);
    return child;
}

static int answer_text(const char *text, int keep_open, struct err *err)
{
    double link_seconds;
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    assert_true(write(fds[1], text, strlen(text)) >= 0);
    if (!keep_open)
        close(fds[1]);
    int fd = hosts_answer(fds[0], "1 x", &link_seconds, err);
    close(fds[0]);
    if (keep_open)
        close(fds[1]);
    return fd;
}

static void test_false_heads(void **state)
{
    (void)state;
    for (int says = 0; says < 2; says++) {
        struct remote_handshake handshake = { .seconds = 1, .link_seconds = 5, .n_addresses = 1 };
        char text[REMOTE_HANDSHAKE_MAX];
        struct err err;
        pid_t child = false_head(&handshake.addresses[0], says);

        remote_random(handshake.cookie, sizeof handshake.cookie);
        remote_handshake_write(&handshake, text);
        assert_int_equal(answer_text(text, 1, &err), -1);
        assert_int_equal(err.code, ERR_PEER);
        assert_says(err.text, "cannot reach the head at any of its 1 addresses");
        assert_says(err.text, says ? "the peer is not the head of this job" : "timed out");
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

/* The head's stdin ends while the daemon still calls. */
static void test_head_gone(void **state)
{
    struct remote_handshake handshake = { .seconds = 60, .link_seconds = 5, .n_addresses = 1 };
    char text[REMOTE_HANDSHAKE_MAX];
    struct err err;

    (void)state;
    /* Nobody listens on port 1 here. */
    handshake.addresses[0] = (struct remote_address){ "127.0.0.1", 1 };
    remote_handshake_write(&handshake, text);
    assert_int_equal(answer_text(text, 0, &err), -1);
    assert_int_equal(err.code, ERR_PEER);
    assert_says(err.text, "the head closed the connection");
}

static void test_bad_handshakes(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        { "", "stdin ended before a complete handshake" },
        { "hello\n", "stdin ended before a complete handshake" },
        { "hello\nend\n", "not a handshake of this lmtrain" },
        { "lmtrain-handshake 2\nnew thing\nend\n", "not a handshake of this lmtrain" },
        { "lmtrain-handshake 1\nend\n", "is damaged" },
        { "lmtrain-handshake 1\nbuild 0 x\nend\n", "the head has 0 x" },
        { "lmtrain-handshake 1\nnew thing\nbuild 0 x\nend\n", "the head has 0 x" },
    };
    char text[2 * REMOTE_HANDSHAKE_MAX];
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(answer_text(bad[i].text, 0, &err), -1);
        assert_says(err.text, bad[i].part);
    }
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(answer_text(text, 0, &err), -1);
    assert_says(err.text, "data on stdin is not a handshake");
}

/* Each line of a good one, damaged. */
static void test_damaged_lines(void **state)
{
    static const char *const lines[] = {
        "host -1",           "host 4096",       "host x",    "host 1\nhost 1",  "seconds 0",
        "seconds nan",       "link-seconds x",  "address",   "address 1.2.3 5", "address ::1 0",
        "address ::1 65536", "address fe80::1", "cookie 00", "cookie zz",       "unknown 1",
        "seconds",
    };
    struct remote_handshake handshake = { .seconds = 60, .link_seconds = 5, .n_addresses = 1 };
    char text[REMOTE_HANDSHAKE_MAX], damaged[REMOTE_HANDSHAKE_MAX + 64];
    struct err err;

    (void)state;
    handshake.addresses[0] = (struct remote_address){ "127.0.0.1", 1 };
    remote_handshake_write(&handshake, text);
    snprintf(damaged, sizeof damaged, "%s", text);
    assert_int_equal(remote_handshake_read(&handshake, damaged, "1 x", &err), 0);
    assert_int_equal(handshake.n_addresses, 1);
    for (size_t i = 0; i < sizeof damaged; i++)
        if (damaged[i] && i < strlen(text))
            fail_msg("byte %zu of the text was not wiped", i);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char *end = strstr(text, "cookie ");

        /* In front of the cookie; a key that is there already is damage too. */
        snprintf(damaged, sizeof damaged, "%.*s%s\n%s", (int)(end - text), text, lines[i], end);
        assert_int_equal(remote_handshake_read(&handshake, damaged, "1 x", &err), -1);
        assert_says(err.text, "damaged");
    }
}

static void test_proofs(void **state)
{
    struct remote_challenge challenge = { .index = 3 }, other;
    unsigned char cookie[HOSTS_COOKIE_BYTES], proof[HOSTS_PROOF_BYTES];

    (void)state;
    remote_random(cookie, sizeof cookie);
    remote_random(challenge.nonce_head, sizeof challenge.nonce_head);
    remote_random(challenge.nonce_daemon, sizeof challenge.nonce_daemon);
    remote_prove(proof, cookie, HOSTS_DAEMON, &challenge);
    assert_true(remote_check_proof(proof, cookie, HOSTS_DAEMON, &challenge));
    /* Sent back to its maker it proves nothing. */
    assert_false(remote_check_proof(proof, cookie, HOSTS_HEAD, &challenge));
    other = challenge;
    other.index = 2;
    assert_false(remote_check_proof(proof, cookie, HOSTS_DAEMON, &other));
    other = challenge;
    other.nonce_head[31] ^= 1;
    assert_false(remote_check_proof(proof, cookie, HOSTS_DAEMON, &other));
    other = challenge;
    other.nonce_daemon[0] ^= 1;
    assert_false(remote_check_proof(proof, cookie, HOSTS_DAEMON, &other));
    cookie[5] ^= 1;
    assert_false(remote_check_proof(proof, cookie, HOSTS_DAEMON, &challenge));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proofs),         cmocka_unit_test(test_damaged_lines),
        cmocka_unit_test(test_bad_handshakes), cmocka_unit_test(test_good),
        cmocka_unit_test(test_many),           cmocka_unit_test(test_lifelines),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_forgeries),
        cmocka_unit_test(test_strangers),      cmocka_unit_test(test_no_ssh),
        cmocka_unit_test(test_no_interface),   cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_false_heads),    cmocka_unit_test(test_head_gone),
    };

    if (argc == 2 && !strcmp(argv[1], "daemon"))
        return play_daemon();
    signal(SIGPIPE, SIG_IGN); /* ssh may have ended before it is invited */
    return cmocka_run_group_tests(tests, make_stand_in, remove_stand_in);
}
