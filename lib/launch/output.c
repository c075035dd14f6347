/*
 * output.c - pipes to logs, errors to the screen
 */
#include "launch/output_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { LINE_BYTES = 4096, TAIL_BYTES = 1024, N_READS_MAX = 64 };

struct stream {
    int read_fd, write_fd; /* -1: none */
    int length;
    char line[LINE_BYTES]; /* what came of a line that is not whole yet */
};

struct rank_output {
    struct stream streams[2]; /* stdout, stderr */
    int log_fd;
    int n_tail;
    char tail[TAIL_BYTES];
};

struct output {
    int n_ranks;
    int quiet;
    char *log_folder; /* or NULL */
    struct rank_output ranks[];
};

int output_create(struct output **output, int n_ranks, const char *log_folder, struct err *err)
{
    struct output *made;

    if (log_folder && file_make_folder(log_folder, err))
        return -1;
    made = calloc(1, sizeof *made + sizeof made->ranks[0] * (size_t)n_ranks);
    CHECK(made);
    made->n_ranks = n_ranks;
    made->log_folder = log_folder ? strdup(log_folder) : NULL;
    for (int rank = 0; rank < n_ranks; rank++) {
        made->ranks[rank].log_fd = -1;
        for (int i = 0; i < 2; i++)
            made->ranks[rank].streams[i].read_fd = made->ranks[rank].streams[i].write_fd = -1;
    }
    *output = made;
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void output_destroy(struct output *output)
{
    if (!output)
        return;
    for (int rank = 0; rank < output->n_ranks; rank++) {
        close_fd(&output->ranks[rank].log_fd);
        for (int i = 0; i < 2; i++) {
            close_fd(&output->ranks[rank].streams[i].read_fd);
            close_fd(&output->ranks[rank].streams[i].write_fd);
        }
    }
    free(output->log_folder);
    free(output);
}

static int open_log(struct output *output, int rank, struct err *err)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/rank-%d.log", output->log_folder, rank);

    if (length < 0 || (size_t)length >= sizeof path)
        return err_set(err, ERR_FAILED, "the path of the log folder is too long");
    output->ranks[rank].log_fd = file_open_write(path, O_WRONLY | O_APPEND, err);
    return output->ranks[rank].log_fd < 0 ? -1 : 0;
}

int output_prepare(struct output *output, int rank, int fds[2], struct err *err)
{
    struct rank_output *mine = &output->ranks[rank];

    fds[0] = STDOUT_FILENO;
    fds[1] = STDERR_FILENO;
    if (!rank)
        return 0;
    if (output->log_folder && open_log(output, rank, err))
        return -1;
    for (int i = 0; i < 2; i++) {
        int ends[2];

        if (pipe2(ends, O_CLOEXEC))
            return err_set_errno(err, ERR_FAILED, "cannot make a pipe for rank %d", rank);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        mine->streams[i].read_fd = ends[0];
        mine->streams[i].write_fd = fds[i] = ends[1];
    }
    return 0;
}

void output_started(struct output *output, int rank)
{
    for (int i = 0; i < 2; i++)
        close_fd(&output->ranks[rank].streams[i].write_fd);
}

int output_poll(const struct output *output, struct pollfd *polls)
{
    int n = 0;

    for (int rank = 1; rank < output->n_ranks; rank++)
        for (int i = 0; i < 2; i++)
            if (output->ranks[rank].streams[i].read_fd >= 0)
                polls[n++] = (struct pollfd){ .fd = output->ranks[rank].streams[i].read_fd,
                                              .events = POLLIN };
    return n;
}

/* All of it; a reader that is gone or a full disk loses output, not the job. */
static void write_all(int fd, const char *bytes, size_t n_bytes)
{
    while (n_bytes) {
        ssize_t n = write(fd, bytes, n_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        bytes += n;
        n_bytes -= (size_t)n;
    }
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
static void pass_line(struct output *output, int rank, int is_stderr, const char *line, int length)
{
    struct rank_output *mine = &output->ranks[rank];

    if (mine->log_fd >= 0)
        write_all(mine->log_fd, line, (size_t)length);
    if (!is_stderr)
        return;
    keep_tail(mine, line, length);
    if (!output->quiet && is_trouble(line, length)) {
        char shown[LINE_BYTES + 32];
        int n = snprintf(shown, sizeof shown, "rank %d: %.*s", rank, length, line);

        /* One write, so that lines of several writers don't mix. */
        write_all(STDERR_FILENO, shown, (size_t)n);
    }
}

static void pass_whole_lines(struct output *output, int rank, int i)
{
    struct stream *stream = &output->ranks[rank].streams[i];
    int start = 0;

    for (;;) {
        char *end = memchr(stream->line + start, '\n', (size_t)(stream->length - start));

        if (!end)
            break;
        int length = (int)(end - stream->line) + 1 - start;
        pass_line(output, rank, i, stream->line + start, length);
        start += length;
    }
    if (!start && stream->length == LINE_BYTES) {
        pass_line(output, rank, i, stream->line, stream->length);
        start = stream->length;
    }
    memmove(stream->line, stream->line + start, (size_t)(stream->length - start));
    stream->length -= start;
}

static void pass_rest(struct output *output, int rank, int i)
{
    struct stream *stream = &output->ranks[rank].streams[i];

    if (stream->length && stream->length < LINE_BYTES)
        stream->line[stream->length++] = '\n';
    if (stream->length)
        pass_whole_lines(output, rank, i);
    close_fd(&stream->read_fd);
}

/* Bounded, so that a rank that prints without end cannot keep us from the others. */
static void read_stream(struct output *output, int rank, int i)
{
    struct stream *stream = &output->ranks[rank].streams[i];

    for (int n_reads = 0; stream->read_fd >= 0 && n_reads < N_READS_MAX; n_reads++) {
        ssize_t n = read(stream->read_fd, stream->line + stream->length,
                         (size_t)(LINE_BYTES - stream->length));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            pass_rest(output, rank, i);
            return;
        }
        stream->length += (int)n;
        pass_whole_lines(output, rank, i);
    }
}

void output_read(struct output *output, int rank)
{
    int first = rank < 0 ? 1 : rank, last = rank < 0 ? output->n_ranks - 1 : rank;

    for (int r = first; r <= last; r++)
        for (int i = 0; i < 2; i++)
            read_stream(output, r, i);
}

void output_quiet(struct output *output)
{
    output->quiet = 1;
}

void output_tail(const struct output *output, int rank, struct str *text)
{
    const struct rank_output *mine = &output->ranks[rank];

    str_add_bytes(text, mine->tail, (size_t)mine->n_tail);
}
