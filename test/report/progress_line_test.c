/*
 * progress_line_test.c - what a terminal and a pipe are sent of a command's progress
 */
#include "report_fixture.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "report/progress_line.h"

static int ours, theirs;
static char sent[1024];

static const char *take(void)
{
    ssize_t n = read(ours, sent, sizeof sent - 1);

    sent[n > 0 ? n : 0] = '\0';
    return sent;
}

static int open_pipe(void **state)
{
    int ends[2];

    (void)state;
    if (pipe(ends) < 0)
        return -1;
    ours = ends[0];
    theirs = ends[1];
    return fcntl(ours, F_SETFL, O_NONBLOCK);
}

static int open_terminal(void **state)
{
    struct winsize size = { .ws_row = 24, .ws_col = 30 };
    struct termios raw;

    (void)state;
    if (openpty(&ours, &theirs, NULL, NULL, NULL) < 0)
        return -1;
    tcgetattr(theirs, &raw);
    cfmakeraw(&raw);
    tcsetattr(theirs, TCSANOW, &raw);
    ioctl(theirs, TIOCSWINSZ, &size);
    return fcntl(ours, F_SETFL, O_NONBLOCK);
}

static int close_both(void **state)
{
    (void)state;
    close(ours);
    close(theirs);
    return 0;
}

static const char *const texts[] = { "evaluating 81/1887", "", "left 2:10", "12 MB/s" };

static void a_pipe_gets_lines(void **state)
{
    struct progress_line line;

    (void)state;
    progress_line_begin(&line, theirs);
    /* What is soon done says nothing, and what lasts a line each 15 seconds. */
    assert_false(progress_line_is_due(&line));
    line.shown -= 15;
    assert_true(progress_line_is_due(&line));
    progress_line_show(&line, texts, 4);
    assert_false(progress_line_is_due(&line));
    assert_string_equal(take(), "evaluating 81/1887  left 2:10  12 MB/s\n");
    progress_line_end(&line);
    assert_string_equal(take(), "");
}

/* The last column is not used, and what does not fit is left out with all that follows. */
static void a_terminal_gets_one_line(void **state)
{
    struct progress_line line;

    (void)state;
    progress_line_begin(&line, theirs);
    assert_false(progress_line_is_due(&line));
    line.shown -= 1;
    assert_true(progress_line_is_due(&line));
    progress_line_show(&line, texts, 4);
    assert_string_equal(take(), "\revaluating 81/1887  left 2:10\033[K");
    progress_line_show(&line, (const char *const[]){ "of a text of thirty characters", "x" }, 2);
    assert_string_equal(take(), "\r\033[K");
    progress_line_end(&line);
    assert_string_equal(take(), "\r\033[K");
    progress_line_end(&line);
    assert_string_equal(take(), "");
}

static void the_time_left(void **state)
{
    struct progress_line line;
    char text[PROGRESS_LEFT_BYTES];

    (void)state;
    progress_line_begin(&line, theirs);
    assert_string_equal(progress_line_left(&line, 0, 10, text), "");
    assert_string_equal(progress_line_left(&line, 1, 0, text), "");
    line.begin -= 100000;
    assert_string_equal(progress_line_left(&line, 1, 2, text), "left 1d 03:46");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_pipe_gets_lines, open_pipe, close_both),
        cmocka_unit_test_setup_teardown(a_terminal_gets_one_line, open_terminal, close_both),
        cmocka_unit_test_setup_teardown(the_time_left, open_pipe, close_both),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
