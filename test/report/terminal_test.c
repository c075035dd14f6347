/*
 * terminal_test.c - what a terminal and a pipe are sent
 *
 * The terminal is a pty whose other end is read here and replayed into lines of a screen, so that
 * the test sees what a person would.
 */
#include "report_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "base/log.h"
#include "report/terminal.h"

enum { SCREEN_LINES = 64, SCREEN_COLUMNS = 256 };

/* A screen that knows what we send: text, \r, \n, "clear to the end" and colours. */
struct screen {
    char lines[SCREEN_LINES][SCREEN_COLUMNS * 4];
    int n_lines; /* lines begun before the one of the cursor */
    int widest;  /* columns ever used in a line */
    int n_draws; /* how often a line was cleared to its end */
    int n_colours;
};

static struct {
    int ours, theirs; /* ends of the pty or pipe */
    struct str sent;
} device;

static void drain(void)
{
    char bytes[4096];
    ssize_t n;

    while ((n = read(device.ours, bytes, sizeof bytes)) > 0)
        str_add_bytes(&device.sent, bytes, (size_t)n);
}

/* Put the character at `at` (n bytes) into a line at this column; a column holds up to 4 bytes. */
static void place(char (*cells)[5], int column, const char *at, int n)
{
    assert_true(column < SCREEN_COLUMNS);
    memset(cells[column], 0, 5);
    memcpy(cells[column], at, (size_t)n);
}

static void flatten(char *line, char (*cells)[5])
{
    size_t used = 0;

    for (int column = 0; column < SCREEN_COLUMNS && *cells[column]; column++) {
        memcpy(line + used, cells[column], strlen(cells[column]));
        used += strlen(cells[column]);
    }
    line[used] = '\0';
}

/* Replay all that was sent. */
static struct screen *replay(void)
{
    struct screen *screen = arena_new(&fixture_arena, struct screen);
    static char cells[SCREEN_COLUMNS][5];
    int column = 0;

    drain();
    memset(cells, 0, sizeof cells);
    for (const char *at = str_text(&device.sent); *at;) {
        int n = str_utf8_length((const unsigned char *)at, strlen(at));

        assert_true(n > 0);
        if (*at == '\r') {
            column = 0;
        } else if (*at == '\n') {
            flatten(screen->lines[screen->n_lines++], cells);
            memset(cells, 0, sizeof cells);
            column = 0;
            assert_true(screen->n_lines < SCREEN_LINES);
        } else if (str_starts_with(at, "\033[K")) {
            memset(cells[column], 0, (size_t)(SCREEN_COLUMNS - column) * 5);
            screen->n_draws++;
            n = 3;
        } else if (*at == '\033') {
            n = (int)strcspn(at, "m") + 1;
            screen->n_colours++;
        } else {
            place(cells, column++, at, n);
        }
        screen->widest = column > screen->widest ? column : screen->widest;
        at += n;
    }
    flatten(screen->lines[screen->n_lines], cells);
    return screen;
}

static void set_width(int columns)
{
    struct winsize size = { .ws_row = 24, .ws_col = (unsigned short)columns };

    assert_int_equal(ioctl(device.theirs, TIOCSWINSZ, &size), 0);
}

static void use(int ours, int theirs)
{
    device.ours = ours;
    device.theirs = theirs;
    assert_int_equal(fcntl(ours, F_SETFL, O_NONBLOCK), 0);
}

static int setup_pty(void **state)
{
    struct termios raw;
    int ours, theirs;

    (void)state;
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    if (openpty(&ours, &theirs, NULL, NULL, NULL) < 0)
        return -1;
    tcgetattr(theirs, &raw);
    cfmakeraw(&raw);
    tcsetattr(theirs, TCSANOW, &raw);
    use(ours, theirs);
    set_width(120);
    return 0;
}

static int setup_pipe(void **state)
{
    int ends[2];

    (void)state;
    if (pipe(ends) < 0)
        return -1;
    use(ends[0], ends[1]);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close(device.ours);
    close(device.theirs);
    str_release(&device.sent);
    arena_release(&fixture_arena);
    return 0;
}

static struct metrics_step step(int64_t number)
{
    return (struct metrics_step){ .step = number,
                                  .loss = 5.2134,
                                  .tokens_per_s = 12400,
                                  .step_s = 0.5,
                                  .mfu = 0.41,
                                  .memory_bytes = 1288490189 };
}

static void tell(struct terminal *terminal, int64_t number, int logged)
{
    struct metrics_step one = step(number);

    terminal_step(terminal, &one, logged);
}

static const char facts[] = "step 40/300  loss 5.213  12.4k tok/s  MFU 41 %  1.2 GiB  left 2:10";

static void a_live_line_with_a_bar(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct screen *screen;

    (void)state;
    tell(terminal, 40, 0);
    screen = replay();
    assert_int_equal(screen->n_lines, 0);
    assert_true(str_starts_with(screen->lines[0], facts));
    /* 40 of 300 of 32 cells: 4 full ones, of U+2588, the rest U+2591. */
    assert_non_null(strstr(screen->lines[0], "  \xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88"
                                             "\xe2\x96\x91"));
    assert_true(screen->n_colours > 0);
    terminal_close(terminal);
    screen = replay();
    assert_int_equal(screen->n_lines, 1);
    assert_true(str_starts_with(screen->lines[0], facts));
}

static void what_is_learned_beside_what_is_read(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct metrics_step one = step(40);

    (void)state;
    one.learned_per_s = 1300;
    terminal_step(terminal, &one, 1);
    assert_true(str_starts_with(replay()->lines[0],
                                "step 40/300  loss 5.213  12.4k tok/s (1.3k with loss)  MFU 41 %"));
    terminal_close(terminal);
}

static const char *const parts[] = { "step 40/300", "loss 5.213", "12.4k tok/s",
                                     "MFU 41 %",    "1.2 GiB",    "left 2:10" };

enum { N_PARTS = sizeof parts / sizeof *parts };

/* Whether a line is made of some of the parts, whole and in their order. */
static int has_whole_parts(const char *line)
{
    for (int i = 0; i < N_PARTS; i++) {
        if (!str_starts_with(line, parts[i]))
            continue;
        line += strlen(parts[i]);
        if (*line)
            line += str_starts_with(line, "  ") ? 2 : 0;
    }
    return !*line || (unsigned char)*line >= 0x80; /* the bar */
}

/* At every width: never the last column, whole parts or nothing, the step and what is left
 * always. */
static void every_width_is_kept(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct screen *screen;

    (void)state;
    tell(terminal, 40, 0);
    for (int width = 2; width <= 200; width++) {
        drain();
        str_clear(&device.sent);
        set_width(width);
        terminal_status(terminal, NULL);
        screen = replay();
        assert_true(screen->widest < width);
        const char *line = screen->lines[0];
        if (width <= (int)strlen(parts[0])) {
            assert_memory_equal(line, parts[0], (size_t)width - 1);
            continue;
        }
        assert_true(str_starts_with(line, parts[0]));
        assert_true(has_whole_parts(line));
        if (width > (int)strlen("step 40/300  left 2:10"))
            assert_non_null(strstr(line, "left 2:10"));
        if (width > (int)strlen(facts))
            assert_true(str_starts_with(line, facts));
        if (width == 200)
            assert_int_equal(screen->widest, (int)strlen(facts) + 2 + 32);
    }
    /* A terminal that does not know its width. */
    set_width(0);
    drain();
    str_clear(&device.sent);
    terminal_status(terminal, NULL);
    assert_int_equal(replay()->widest, 79);
    terminal_close(terminal);
}

/* What changes stays on a narrow terminal, and what does not goes. */
static void an_evaluation_in_sixty_columns(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);

    (void)state;
    set_width(60);
    tell(terminal, 40, 0);
    terminal_evaluating(terminal, 0, 1887);
    terminal_evaluating(terminal, 81, 1887);
    terminal_status(terminal, "evaluating 81/1887"); /* drawn, however soon after the last time */
    const char *line = replay()->lines[0];
    assert_true(str_starts_with(line, "step 40/300  loss 5.213  evaluating 81/1887  left 2:"));
    set_width(46);
    terminal_status(terminal, "evaluating 82/1887");
    assert_true(str_starts_with(replay()->lines[0], "step 40/300  evaluating 82/1887  left"));
    terminal_evaluating(terminal, 0, 0);
    assert_null(strstr(replay()->lines[0], "evaluating"));
    terminal_close(terminal);
}

/* Steps of a second each, evaluations of ten steps until one was timed. */
static void time_left_counts_evaluations(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct metrics_step one = { .step = 100, .loss = 1, .step_s = 1 };

    (void)state;
    terminal_expect_evaluations(terminal, 100, 10);
    terminal_step(terminal, &one, 1); /* at 200 and at the end */
    terminal_expect_evaluations(terminal, 50, 10);
    terminal_step(terminal, &one, 1); /* at 150, 200, 250 and at the end */
    terminal_expect_evaluations(terminal, 0, 10);
    terminal_step(terminal, &one, 1); /* at the end alone */
    terminal_evaluating(terminal, 0, 4);
    terminal_evaluating(terminal, 2, 4);
    terminal_evaluating(terminal, 0, 0); /* left early: no measure */
    terminal_step(terminal, &one, 1);
    terminal_evaluating(terminal, 0, 4);
    terminal_evaluating(terminal, 4, 4);
    terminal_evaluating(terminal, 0, 0); /* it took no time */
    terminal_step(terminal, &one, 1);
    drain();
    assert_true(str_starts_with(device.sent.data, "step 100/300  loss 1.000  left 3:40\n"
                                                  "step 100/300  loss 1.000  left 4:00\n"
                                                  "step 100/300  loss 1.000  left 3:30\n"
                                                  "step 100/300  loss 1.000  left 3:30\n"
                                                  "step 100/300  loss 1.000  left 3:2"));
    terminal_close(terminal);
}

/* Where nothing is live: at the pace, and not at all for an evaluation that is soon over. */
static void a_pipe_gets_an_evaluations_progress(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 299, 300);
    struct metrics_step one = { .step = 300, .loss = 1, .step_s = 1 };

    (void)state;
    terminal_expect_evaluations(terminal, 0, 10);
    terminal_step(terminal, &one, 0);
    for (int i = 0; i <= 12; i++)
        terminal_evaluating(terminal, i, 12);
    terminal_evaluating(terminal, 0, 0);
    drain();
    assert_int_equal(device.sent.length, 0);
    terminal_set_pace(terminal, 0);
    terminal_evaluating(terminal, 0, 12);
    terminal_evaluating(terminal, 6, 12);
    drain();
    assert_true(str_starts_with(device.sent.data, "step 300/300  evaluating 0/12  left "));
    assert_non_null(strstr(device.sent.data, "\nstep 300/300  evaluating 6/12  left "));
    terminal_close(terminal);
}

static void log_lines_stand_above(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct screen *screen;

    (void)state;
    tell(terminal, 40, 0);
    log_info("saved step %d", 20);
    log_warn("slow");
    screen = replay();
    assert_int_equal(screen->n_lines, 2);
    assert_string_equal(screen->lines[0], "saved step 20");
    assert_string_equal(screen->lines[1], "lmtrain: warn: slow");
    assert_true(str_starts_with(screen->lines[2], facts));
    terminal_close(terminal);
    drain();
    size_t before = device.sent.length;
    log_debug("not shown, and no longer ours");
    drain();
    assert_int_equal(device.sent.length, before);
}

static void a_status_takes_the_bars_place(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 200, 300);
    struct screen *screen;

    (void)state;
    terminal_status(terminal, "loading \x1b[31m data");
    screen = replay();
    /* Before the first step: where the run goes on. No control character gets through. */
    assert_string_equal(screen->lines[0], "step 200/300  loading ?[31m data");
    tell(terminal, 300, 0);
    terminal_status(terminal, "evaluating 3/12");
    screen = replay();
    assert_string_equal(screen->lines[0],
                        "step 300/300  loss 5.213  12.4k tok/s  MFU 41 %  1.2 GiB  "
                        "evaluating 3/12");
    terminal_status(terminal, NULL);
    assert_null(strstr(replay()->lines[0], "evaluating"));
    terminal_close(terminal);
}

static void a_note_stays_until_it_is_taken_off(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);

    (void)state;
    terminal_note(terminal, "rank 3 (node2) x1.34");
    for (int i = 39; i < 41; i++) {
        tell(terminal, i, 0);
        terminal_status(terminal, NULL);
        assert_non_null(
            strstr(replay()->lines[0], "1.2 GiB  straggler rank 3 (node2) x1.34  left"));
    }
    terminal_note(terminal, "");
    assert_null(strstr(replay()->lines[0], "straggler"));
    terminal_close(terminal);
}

/* Many steps in a moment: few drawings, but the last step is always drawn. */
static void at_most_ten_drawings_a_second(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct screen *screen;

    (void)state;
    for (int i = 1; i <= 300; i++)
        tell(terminal, i, 1);
    screen = replay();
    assert_in_range(screen->n_draws, 2, 20);
    assert_true(str_starts_with(screen->lines[0], "step 300/300"));
    assert_null(strstr(screen->lines[0], "left"));
    terminal_close(terminal);
}

static void ascii_without_colour_where_asked(void **state)
{
    struct terminal *terminal;
    struct screen *screen;

    (void)state;
    setenv("LC_ALL", "C", 1);
    setenv("NO_COLOR", "1", 1);
    terminal = terminal_open(device.theirs, 0, 300);
    tell(terminal, 40, 0);
    log_error("bad");
    screen = replay();
    assert_int_equal(screen->n_colours, 0);
    assert_string_equal(screen->lines[0], "lmtrain: error: bad");
    assert_non_null(strstr(screen->lines[1], "  ####............................"));
    for (size_t i = 0; i < device.sent.length; i++)
        assert_true((unsigned char)device.sent.data[i] < 0x80);
    terminal_status(terminal, "caf\xc3\xa9");
    assert_non_null(strstr(replay()->lines[1], "caf??"));
    terminal_close(terminal);
}

static void a_dumb_terminal_gets_plain_lines(void **state)
{
    struct terminal *terminal;

    (void)state;
    setenv("TERM", "dumb", 1);
    terminal = terminal_open(device.theirs, 0, 300);
    tell(terminal, 40, 1);
    terminal_close(terminal);
    drain();
    assert_string_equal(device.sent.data,
                        "step 40/300  loss 5.213  12.4k tok/s  MFU 41 %  1.2 GiB  "
                        "left 2:10\n");
}

static void a_pipe_gets_plain_lines(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);

    (void)state;
    tell(terminal, 39, 0);
    terminal_status(terminal, "saving");
    tell(terminal, 40, 1);
    log_warn("slow");
    terminal_close(terminal);
    drain();
    assert_string_equal(device.sent.data,
                        "step 40/300  loss 5.213  12.4k tok/s  MFU 41 %  1.2 GiB  "
                        "left 2:10\nlmtrain: warn: slow\n");
}

/* One slow step must not throw the time that is left about; what is unknown is left out. */
static void time_left_is_smoothed_and_unknowns_are_omitted(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct metrics_step one = { .step = 100, .loss = 0.0 / 0.0, .step_s = 0.0 / 0.0, .skipped = 3 };

    (void)state;
    terminal_step(terminal, &one, 1);
    drain();
    assert_non_null(strstr(device.sent.data, "step 100/300  loss "));
    assert_non_null(strstr(device.sent.data, "nan"));
    assert_true(str_ends_with(device.sent.data, "  skipped 3\n"));
    one.loss_scale = 4096;
    terminal_step(terminal, &one, 1);
    drain();
    assert_true(str_ends_with(device.sent.data, "  skipped 3  scale 4096\n"));
    one.loss_scale = 0;
    one.step_s = 1;
    terminal_step(terminal, &one, 1);
    drain();
    assert_true(str_ends_with(device.sent.data, "left 3:20\n"));
    one.step_s = 11;
    terminal_step(terminal, &one, 1);
    drain();
    assert_true(str_ends_with(device.sent.data, "left 6:40\n"));
    terminal_close(terminal);
    terminal_close(NULL);
}

/* Nobody reads any more: steps and logs go on. */
static void a_closed_pipe_is_no_failure(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct sigaction before, ignore = { .sa_handler = SIG_IGN };

    (void)state;
    assert_int_equal(sigaction(SIGPIPE, &ignore, &before), 0);
    close(device.ours);
    tell(terminal, 40, 1);
    log_info("lost");
    terminal_close(terminal);
    assert_int_equal(sigaction(SIGPIPE, &before, NULL), 0);
    device.ours = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void *log_many(void *context)
{
    (void)context;
    for (int i = 0; i < 20; i++)
        log_info("line");
    return NULL;
}

/* Log lines come from any thread while steps are told; no line is torn. */
static void threads_may_log(void **state)
{
    struct terminal *terminal = terminal_open(device.theirs, 0, 300);
    struct screen *screen;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, log_many, NULL), 0);
    for (int i = 1; i <= 100; i++) {
        terminal_status(terminal, i % 2 ? "odd" : NULL);
        if (i % 10 == 0)
            drain();
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    screen = replay();
    assert_int_equal(screen->n_lines, 20);
    for (int i = 0; i < 20; i++)
        assert_string_equal(screen->lines[i], "line");
    terminal_close(terminal);
}

int main(void)
{
#define PTY(function) cmocka_unit_test_setup_teardown(function, setup_pty, teardown)
#define PIPE(function) cmocka_unit_test_setup_teardown(function, setup_pipe, teardown)
    const struct CMUnitTest tests[] = {
        PTY(a_live_line_with_a_bar),
        PTY(what_is_learned_beside_what_is_read),
        PTY(every_width_is_kept),
        PTY(an_evaluation_in_sixty_columns),
        PIPE(time_left_counts_evaluations),
        PIPE(a_pipe_gets_an_evaluations_progress),
        PTY(log_lines_stand_above),
        PTY(a_status_takes_the_bars_place),
        PTY(a_note_stays_until_it_is_taken_off),
        PTY(at_most_ten_drawings_a_second),
        PTY(ascii_without_colour_where_asked),
        PTY(a_dumb_terminal_gets_plain_lines),
        PIPE(a_pipe_gets_plain_lines),
        PIPE(time_left_is_smoothed_and_unknowns_are_omitted),
        PIPE(a_closed_pipe_is_no_failure),
        PTY(threads_may_log),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
