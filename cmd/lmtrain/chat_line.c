/*
 * chat_line.c - lines by libedit on a terminal, by getline otherwise
 *
 * libedit sets the terminal to single characters while a line is typed, and back before it is
 * returned: what is printed meanwhile is printed as ever, and Ctrl-C is a signal at any time.
 */
#include "chat_line.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

enum { HISTORY_LINES = 1000 };

struct chat_line {
    EditLine *edit; /* NULL: no terminal */
    History *history;
    struct str path;  /* of the history; empty: none */
    sigset_t signals; /* blocked before a line is read */
    bool is_interrupted;
    char *text; /* of getline, or a copy of libedit's */
    size_t capacity;
};

/* ---- the history ---- */

/* Its folder is made. */
static void find_history(struct str *path)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct err err;

    if (state && *state == '/')
        str_printf(path, "%s/lmtrain", state);
    else if (home && *home == '/')
        str_printf(path, "%s/.local/state/lmtrain", home);
    else
        return;
    if (file_make_folders(str_text(path), &err) < 0)
        str_clear(path);
    else
        str_printf(path, "/chat_history");
}

static void save_history(const struct chat_line *line)
{
    HistEvent event;

    if (!line->path.length)
        return;
    /* libedit would make it readable by all. */
    int fd = open(str_text(&line->path), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || history(line->history, &event, H_SAVE, str_text(&line->path)) < 0)
        log_warn("%s: the conversation's lines are not kept: %s", str_text(&line->path),
                 strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* ---- a terminal ---- */

static const char *prompt(EditLine *edit)
{
    (void)edit;
    return "> ";
}

/*
 * One character of UTF-8, or none once a signal comes: libedit would go on after it. SIGINT is
 * blocked but while this waits, so that Ctrl-C between two characters interrupts the next wait.
 */
static int read_character(EditLine *edit, wchar_t *character)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    struct chat_line *line = NULL;
    mbstate_t state = { 0 };
    char byte;

    el_get(edit, EL_CLIENTDATA, &line);
    for (;;) {
        ssize_t n = ppoll(&input, 1, NULL, &line->signals);

        if (n > 0)
            n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0) {
            line->is_interrupted = n < 0 && errno == EINTR;
            return n < 0 ? -1 : 0;
        }
        size_t length = mbrtowc(character, &byte, 1, &state);
        if (length == (size_t)-1)
            state = (mbstate_t){ 0 }; /* not UTF-8: dropped */
        else if (length != (size_t)-2)
            return 1;
    }
}

static int open_terminal(struct chat_line *line, struct err *err)
{
    HistEvent event;

    /* libedit takes characters apart by the locale; where that is C, a terminal is UTF-8 today. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    line->edit = el_init("lmtrain", stdin, stdout, stderr);
    line->history = history_init();
    if (!line->edit || !line->history)
        return err_set(err, ERR_DEVICE, "out of host memory");
    history(line->history, &event, H_SETSIZE, HISTORY_LINES);
    history(line->history, &event, H_SETUNIQUE, 1);
    find_history(&line->path);
    if (line->path.length && access(str_text(&line->path), R_OK) == 0)
        history(line->history, &event, H_LOAD, str_text(&line->path));
    el_set(line->edit, EL_CLIENTDATA, line);
    el_set(line->edit, EL_PROMPT, prompt);
    el_set(line->edit, EL_EDITOR, "emacs");
    el_set(line->edit, EL_HIST, history, line->history);
    el_set(line->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(line->edit, EL_GETCFN, read_character);
    el_source(line->edit, NULL);
    return 0;
}

int chat_line_open(struct chat_line **out, bool is_terminal, struct err *err)
{
    struct chat_line *line = calloc(1, sizeof *line);

    if (!line)
        return err_set(err, ERR_DEVICE, "out of host memory");
    if (is_terminal && open_terminal(line, err)) {
        chat_line_close(line);
        return -1;
    }
    *out = line;
    return 0;
}

/* Without the end of the line. */
static enum chat_line_state whole(char *text, size_t n, const char **out)
{
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        text[--n] = '\0';
    *out = text;
    return CHAT_LINE;
}

static enum chat_line_state edit_line(struct chat_line *line, const char **text)
{
    HistEvent event;
    sigset_t interrupt;
    int n = 0;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &line->signals);
    line->is_interrupted = false;
    const char *typed = el_gets(line->edit, &n);
    pthread_sigmask(SIG_SETMASK, &line->signals, NULL);
    if (!typed || n <= 0) {
        printf("\n");
        if (!line->is_interrupted)
            return CHAT_LINE_END;
        el_reset(line->edit);
        return CHAT_LINE_INTERRUPTED;
    }
    free(line->text);
    line->text = strdup(typed);
    if (!line->text)
        return CHAT_LINE_END;
    enum chat_line_state state = whole(line->text, strlen(line->text), text);
    if (**text)
        history(line->history, &event, H_ENTER, *text);
    return state;
}

enum chat_line_state chat_line_read(struct chat_line *line, const char **text)
{
    if (line->edit)
        return edit_line(line, text);
    ssize_t n = getline(&line->text, &line->capacity, stdin);
    return n < 0 ? CHAT_LINE_END : whole(line->text, (size_t)n, text);
}

void chat_line_close(struct chat_line *line)
{
    if (!line)
        return;
    if (line->edit && line->history)
        save_history(line);
    if (line->history)
        history_end(line->history);
    if (line->edit)
        el_end(line->edit);
    str_release(&line->path);
    free(line->text);
    free(line);
}
