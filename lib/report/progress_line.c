/*
 * progress_line.c - a line that is rewritten, or printed now and then
 */
#include "report/progress_line.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define LIVE_S 0.2
#define PLAIN_S 15.0

void progress_line_begin(struct progress_line *line, int fd)
{
    bool is_terminal = isatty(fd);

    *line = (struct progress_line){ .fd = fd,
                                    .is_terminal = is_terminal,
                                    .begin = clock_seconds(),
                                    .pace = is_terminal ? LIVE_S : PLAIN_S };
    line->shown = line->begin;
}

bool progress_line_is_due(const struct progress_line *line)
{
    return clock_seconds() - line->shown >= line->pace;
}

/* One less than there are: a terminal wraps at the last. */
static size_t usable_width(const struct progress_line *line)
{
    struct winsize size;

    if (!line->is_terminal)
        return SIZE_MAX;
    return ioctl(line->fd, TIOCGWINSZ, &size) < 0 || size.ws_col < 2 ? 79 : size.ws_col - 1u;
}

/* What the other side does not take is lost: progress is not worth a failure. */
static void put(const struct progress_line *line, const struct str *text)
{
    if (write(line->fd, str_text(text), text->length) < 0)
        return;
}

void progress_line_show(struct progress_line *line, const char *const *texts, int n)
{
    size_t width = usable_width(line), used = 0;
    struct str out = { 0 };

    str_add(&out, line->is_terminal ? "\r" : "");
    for (int i = 0; i < n; i++) {
        size_t wanted = strlen(texts[i]) + (used ? 2 : 0);

        if (!*texts[i])
            continue;
        if (used + wanted > width)
            break;
        str_add(&out, used ? "  " : "");
        str_add(&out, texts[i]);
        used += wanted;
    }
    str_add(&out, line->is_terminal ? "\033[K" : "\n");
    put(line, &out);
    str_release(&out);
    line->shown = clock_seconds();
    line->is_drawn = line->is_terminal;
}

const char *progress_line_left(const struct progress_line *line, double done, double total,
                               char text[PROGRESS_LEFT_BYTES])
{
    char duration[32];
    double seconds = clock_seconds() - line->begin;

    *text = '\0';
    if (done > 0 && total >= done)
        snprintf(text, PROGRESS_LEFT_BYTES, "left %s",
                 str_duration(duration, sizeof duration, seconds / done * (total - done)));
    return text;
}

void progress_line_end(struct progress_line *line)
{
    if (line->is_drawn && write(line->fd, "\r\033[K", 4) < 0)
        return;
    line->is_drawn = false;
}
