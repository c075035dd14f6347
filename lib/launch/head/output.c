/*
 * output.c - lines to logs, errors to the screen
 */
#include "launch/head/output_impl.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log_file.h"

enum { LINE_BYTES = 4096, TAIL_BYTES = 1024 };

struct line_buffer {
    int length;
    char line[LINE_BYTES]; /* what came of a line that is not whole yet */
};

struct rank_output {
    struct line_buffer streams[2]; /* stdout, stderr */
    struct log_file *log;
    int n_tail;
    char tail[TAIL_BYTES];
};

struct output {
    struct screen *screen;
    int n_ranks;
    bool quiet;
    struct rank_output ranks[];
};

static int open_log(struct output *output, int rank, const char *log_folder, struct err *err)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/rank-%d.log", log_folder, rank);

    if (length < 0 || (size_t)length >= sizeof path)
        return err_set(err, ERR_FAILED, "the path of the log folder is too long");
    output->ranks[rank].log = log_file_open(path, err);
    return output->ranks[rank].log ? 0 : -1;
}

int output_create(struct output **output, int n_ranks, const char *log_folder,
                  struct screen *screen, struct err *err)
{
    struct output *made;

    if (log_folder && file_make_folder(log_folder, err))
        return -1;
    made = calloc(1, sizeof *made + sizeof made->ranks[0] * (size_t)n_ranks);
    CHECK(made);
    made->screen = screen;
    made->n_ranks = n_ranks;
    for (int rank = 1; rank < n_ranks && log_folder; rank++)
        if (open_log(made, rank, log_folder, err)) {
            output_destroy(made);
            return -1;
        }
    *output = made;
    return 0;
}

void output_destroy(struct output *output)
{
    if (!output)
        return;
    for (int rank = 0; rank < output->n_ranks; rank++)
        log_file_close(output->ranks[rank].log);
    free(output);
}

static void keep_tail(struct rank_output *mine, const char *line, int length)
{
    if (length > TAIL_BYTES) {
        line += length - TAIL_BYTES;
        length = TAIL_BYTES;
    }
    if (mine->n_tail + length > TAIL_BYTES) {
        int excess = mine->n_tail + length - TAIL_BYTES;

        memmove(mine->tail, mine->tail + excess, (size_t)(mine->n_tail - excess));
        mine->n_tail -= excess;
    }
    memcpy(mine->tail + mine->n_tail, line, (size_t)length);
    mine->n_tail += length;
}

static int is_trouble(const char *line, int length)
{
    static const char *const prefixes[] = { "lmtrain: error: ", "lmtrain: warn: ",
                                            "lmtrain: bug: " };

    for (int i = 0; i < 3; i++) {
        int n = (int)strlen(prefixes[i]);

        if (length >= n && !memcmp(line, prefixes[i], (size_t)n))
            return 1;
    }
    return 0;
}

/* A whole line with its newline, or as much of a long one as there is room for. */
static void pass_line(struct output *output, int rank, enum output_stream stream, const char *line,
                      int length)
{
    struct rank_output *mine = &output->ranks[rank];

    if (mine->log)
        log_file_write(mine->log, line, (size_t)length);
    if (stream != OUTPUT_STDERR)
        return;
    keep_tail(mine, line, length);
    if (!output->quiet && is_trouble(line, length)) {
        char shown[LINE_BYTES + 32];
        int n = snprintf(shown, sizeof shown, "rank %d: %.*s", rank, length, line);

        /* One write, so that lines of several writers don't mix. */
        screen_put(output->screen, STDERR_FILENO, shown, (size_t)n);
    }
}

static void pass_whole_lines(struct output *output, int rank, enum output_stream stream)
{
    struct line_buffer *buffer = &output->ranks[rank].streams[stream];
    int start = 0;

    for (;;) {
        char *end = memchr(buffer->line + start, '\n', (size_t)(buffer->length - start));

        if (!end)
            break;
        int length = (int)(end - buffer->line) + 1 - start;
        pass_line(output, rank, stream, buffer->line + start, length);
        start += length;
    }
    if (!start && buffer->length == LINE_BYTES) {
        pass_line(output, rank, stream, buffer->line, buffer->length);
        start = buffer->length;
    }
    memmove(buffer->line, buffer->line + start, (size_t)(buffer->length - start));
    buffer->length -= start;
}

void output_take(struct output *output, int rank, enum output_stream stream, const char *bytes,
                 size_t n_bytes)
{
    struct line_buffer *mine = &output->ranks[rank].streams[stream];

    if (!rank) {
        screen_put(output->screen, stream == OUTPUT_STDERR ? STDERR_FILENO : STDOUT_FILENO, bytes,
                   n_bytes);
        return;
    }
    while (n_bytes) {
        size_t room = (size_t)(LINE_BYTES - mine->length), n = n_bytes < room ? n_bytes : room;

        memcpy(mine->line + mine->length, bytes, n);
        mine->length += (int)n;
        bytes += n;
        n_bytes -= n;
        pass_whole_lines(output, rank, stream);
    }
}

void output_end(struct output *output, int rank)
{
    for (enum output_stream stream = OUTPUT_STDOUT; stream <= OUTPUT_STDERR; stream++)
        if (output->ranks[rank].streams[stream].length)
            output_take(output, rank, stream, "\n", 1);
}

void output_quiet(struct output *output)
{
    output->quiet = true;
}

void output_tail(const struct output *output, int rank, struct str *text)
{
    const struct rank_output *mine = &output->ranks[rank];

    str_add_bytes(text, mine->tail, (size_t)mine->n_tail);
}
