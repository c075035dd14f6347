/*
 * step_trace.c - a line and records
 */
#include "train/step_trace.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

#define FILE_BYTES_MAX ((size_t)1 << 31)

/* Not to disk: a step is not to wait for that, and a file that is cut off is found out. */
static int write_file(const char *path, const struct str *data, struct err *err)
{
    int fd = file_open_write(path, O_WRONLY | O_TRUNC, err);

    if (fd < 0)
        return -1;
    bool failed = file_write_all(fd, str_text(data), data->length) != 0;
    failed |= close(fd) < 0;
    return failed ? err_set_errno(err, ERR_FAILED, "%s", path) : 0;
}

int step_trace_write(const struct step_trace *t, const char *output, struct err *err)
{
    struct str path = { 0 }, data = { 0 };

    str_printf(&path, "%s/trace", output);
    int status = file_make_folders(str_text(&path), err);
    if (!status) {
        str_printf(&path, "/step-%08" PRId64 ".rank-%d", t->step, t->rank);
        str_printf(&data,
                   "lmtrain trace 2 step %" PRId64 " rank %d of %d, %d records, clock %" PRId64
                   " %" PRId64 " %" PRId64 ", %" PRId64 " %" PRId64 " %" PRId64 "\n",
                   t->step, t->rank, t->world_size, t->n, t->begin.at, t->begin.ns, t->begin.error,
                   t->end.at, t->end.ns, t->end.error);
        str_add_bytes(&data, (const char *)t->records, (size_t)t->n * sizeof *t->records);
        status = write_file(str_text(&path), &data, err);
    }
    str_release(&path);
    str_release(&data);
    return status;
}

int step_trace_read(struct step_trace *t, const char *path, struct arena *arena, struct err *err)
{
    size_t n_bytes;
    char *text;
    int length = 0;

    if (file_read(path, FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, err))
        return -1;
    int n = sscanf(text,
                   "lmtrain trace 2 step %" SCNd64 " rank %d of %d, %d records, clock %" SCNd64
                   " %" SCNd64 " %" SCNd64 ", %" SCNd64 " %" SCNd64 " %" SCNd64 "%n",
                   &t->step, &t->rank, &t->world_size, &t->n, &t->begin.at, &t->begin.ns,
                   &t->begin.error, &t->end.at, &t->end.ns, &t->end.error, &length);
    int is_whole = n == 10 && t->n >= 0 && text[length] == '\n' &&
                   n_bytes == (size_t)length + 1 + (size_t)t->n * sizeof *t->records;
    if (is_whole) {
        t->records = arena_alloc_array(arena, sizeof *t->records, (size_t)t->n);
        memcpy(t->records, text + length + 1, (size_t)t->n * sizeof *t->records);
    }
    free(text);
    return is_whole ? 0 : err_set(err, ERR_DATA, "%s: not a trace of a step, or cut off", path);
}
