/*
 * chat_line.h - the lines of a conversation: with editing and a history on a terminal
 */
#ifndef CMD_CHAT_LINE_H
#define CMD_CHAT_LINE_H

#include <stdbool.h>

#include "base/err.h"

struct chat_line;

/*
 * Lines of standard input. Where it and standard output are terminals (is_terminal), the line can
 * be edited (libedit: arrow keys, Ctrl-R, ~/.editrc) and those of earlier conversations come back,
 * from $XDG_STATE_HOME/lmtrain/chat_history (~/.local/state without it), which only its owner can
 * read; without such a folder nothing is kept.
 */
int chat_line_open(struct chat_line **line, bool is_terminal, struct err *err);

enum chat_line_state {
    CHAT_LINE,             /* *text, without its end, until the next call */
    CHAT_LINE_INTERRUPTED, /* Ctrl-C: what was typed is dropped */
    CHAT_LINE_END,
};

enum chat_line_state chat_line_read(struct chat_line *line, const char **text);

/* Writes the history. NULL is fine. */
void chat_line_close(struct chat_line *line);

#endif
