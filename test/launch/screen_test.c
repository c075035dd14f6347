/*
 * screen_test.c - a screen that takes nothing holds nobody up, and loses nothing
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "launch/head/screen_impl.h"

enum { PIECE = 1000, N_PIECES = 1000 };

static void put_pieces(struct screen *screen, int fd)
{
    char piece[PIECE];

    for (int i = 0; i < N_PIECES; i++) {
        memset(piece, 'a' + i % 26, sizeof piece);
        screen_put(screen, fd, piece, sizeof piece);
    }
}

/* Read n bytes and check that they are those of put_pieces. */
static void check_pieces(int fd, int64_t n)
{
    char bytes[8192];

    for (int64_t at = 0; at < n;) {
        ssize_t got = read(fd, bytes, sizeof bytes);

        assert_true(got > 0);
        for (ssize_t i = 0; i < got; i++)
            assert_int_equal(bytes[i], 'a' + (at + i) / PIECE % 26);
        at += got;
    }
}

static void test_paused(void **state)
{
    struct screen *screen;
    struct err err;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(screen_open(&screen, &err), 0);
    assert_false(screen_is_full(screen));
    put_pieces(screen, fds[1]); /* far more than a pipe holds: would wait for ever */
    assert_true(screen_is_full(screen));
    screen_rest(screen);
    check_pieces(fds[0], (int64_t)PIECE * N_PIECES);
    struct pollfd ready = { .fd = screen_fd(screen), .events = POLLIN };
    assert_int_equal(poll(&ready, 1, 60000), 1);
    assert_false(screen_is_full(screen));
    screen_close(screen, -1);
    close(fds[0]);
    close(fds[1]);
}

/* Log lines go there, as stderr has them, and all is shown before it closes. */
static void test_log(void **state)
{
    struct screen *screen;
    char text[256];
    struct err err;
    int fds[2], saved = dup(STDERR_FILENO);

    (void)state;
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    assert_int_equal(screen_open(&screen, &err), 0);
    log_info("step %d", 3);
    log_error("rank %d", 1);
    screen_close(screen, -1);
    log_warn("after");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fds[1]);
    ssize_t n = read(fds[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_string_equal(text, "step 3\nlmtrain: error: rank 1\nlmtrain: warn: after\n");
    close(fds[0]);
}

/* Who asks for the end need not wait for the screen. */
static void test_given_up(void **state)
{
    struct screen *screen;
    sigset_t mask, before;
    struct err err;
    int fds[2];

    (void)state;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, &before);
    int signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(screen_open(&screen, &err), 0);
    put_pieces(screen, fds[1]);
    kill(getpid(), SIGTERM);
    screen_close(screen, signal_fd);
    /* Its thread is still there; let it come to its end. */
    check_pieces(fds[0], (int64_t)PIECE * N_PIECES);
    close(signal_fd);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paused),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_given_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
