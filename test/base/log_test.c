/*
 * log_test.c - a screen that is full misses lines, and only one that is gone is given up
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

struct screen {
    int in, out; /* of a pipe that does not block */
};

static void open_screen(struct screen *screen)
{
    int fds[2];

    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    *screen = (struct screen){ fds[0], fds[1] };
    log_set_screen(screen->out, "rank 3: ");
}

static void close_screen(struct screen *screen)
{
    log_set_screen(-1, "");
    close(screen->in);
    close(screen->out);
}

static void fill(const struct screen *screen)
{
    static const char block[4096];

    while (write(screen->out, block, sizeof block) > 0)
        continue;
    while (write(screen->out, block, 1) > 0)
        continue;
}

/* All that has come; its length. */
static size_t drain(const struct screen *screen, char *text, size_t size)
{
    ssize_t n, total = 0;

    text[0] = '\0';
    while ((n = read(screen->in, text, size - 1)) > 0) {
        text[n] = '\0';
        total += n;
    }
    return (size_t)total;
}

static void a_line_has_its_prefix(void **state)
{
    struct screen screen;
    char text[256];

    (void)state;
    open_screen(&screen);
    log_to_screen("hello");
    drain(&screen, text, sizeof text);
    assert_string_equal(text, "rank 3: hello\n");
    close_screen(&screen);
    log_to_screen("to nobody");
}

static void a_full_screen_misses_a_line_and_no_more(void **state)
{
    struct screen screen;
    char text[8192];

    (void)state;
    open_screen(&screen);
    fill(&screen);
    log_to_screen("lost");
    drain(&screen, text, sizeof text);
    assert_null(strstr(text, "lost"));
    log_to_screen("there again");
    drain(&screen, text, sizeof text);
    assert_string_equal(text, "rank 3: there again\n");
    close_screen(&screen);
}

/* Its number may soon be another file's. */
static void one_that_is_gone_is_given_up(void **state)
{
    struct screen screen, other;
    char text[256];
    int fds[2];

    (void)state;
    signal(SIGPIPE, SIG_IGN);
    open_screen(&screen);
    close(screen.in);
    log_to_screen("to nobody");
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    other = (struct screen){ fds[0], fds[1] };
    assert_int_equal(dup2(other.out, screen.out), screen.out);
    log_to_screen("to somebody else");
    assert_int_equal(drain(&other, text, sizeof text), 0);
    close(other.in);
    close(other.out);
    screen.in = -1;
    close_screen(&screen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_its_prefix),
        cmocka_unit_test(a_full_screen_misses_a_line_and_no_more),
        cmocka_unit_test(one_that_is_gone_is_given_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
