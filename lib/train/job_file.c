/*
 * job_file.c - the first line of job.yaml, and who wrote a file, by its content
 */
#include "train/job_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"

#define MARK "# written by lmtrain at each start of this run (edit a copy), XXH3 "
#define JOB_BYTES_MAX ((size_t)16 << 20)

enum { PATH_BYTES = 4096 };

enum writer {
    WRITER_NONE,   /* no file, or nothing in it */
    WRITER_US,     /* as it was written */
    WRITER_EDITED, /* written by lmtrain, then changed */
    WRITER_OTHER,
};

static int make_path(char path[PATH_BYTES], const struct job *job, const char *suffix,
                     struct err *err)
{
    if (snprintf(path, PATH_BYTES, "%s/job.yaml%s", job->output, suffix) >= PATH_BYTES)
        return err_set(err, ERR_CONFIG, "output: path too long");
    return 0;
}

static uint64_t hash_of(const char *text, size_t n_bytes)
{
    return XXH3_64bits(text, n_bytes);
}

/* Before there was a mark: every field, no comment, in the order of the table. */
static bool has_old_form(const char *text)
{
    return str_starts_with(text, "model:\n  name: ") && !strchr(text, '#') &&
           strstr(text, "\noutput: ") && strstr(text, "\ndebug:\n");
}

static enum writer writer_of_text(const char *text, size_t n_bytes)
{
    const char *end = memchr(text, '\n', n_bytes);
    uint64_t hash;

    if (n_bytes == 0)
        return WRITER_NONE;
    if (!str_starts_with(text, MARK) || !end)
        return has_old_form(text) ? WRITER_US : WRITER_OTHER;
    if (sscanf(text + strlen(MARK), "%16" SCNx64, &hash) != 1)
        return WRITER_EDITED;
    end++;
    return hash == hash_of(end, n_bytes - (size_t)(end - text)) ? WRITER_US : WRITER_EDITED;
}

/* A file that cannot be read was not written by lmtrain. */
static enum writer writer_of(const char *path)
{
    char *text;
    size_t n_bytes;
    struct err ignored;

    if (!file_exists(path))
        return WRITER_NONE;
    if (file_read(path, JOB_BYTES_MAX, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return WRITER_OTHER;
    enum writer writer = writer_of_text(text, n_bytes);
    free(text);
    return writer;
}

int job_file_check(const struct job *job, struct err *err)
{
    char path[PATH_BYTES];

    if (make_path(path, job, "", err) < 0)
        return -1;
    if (writer_of(path) != WRITER_OTHER)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "output is %s, whose job.yaml was not written by lmtrain and would be "
                   "overwritten (hint: use a different output folder, such as output: runs/NAME)",
                   job->output);
}

/* Where there are no hard links. */
static int copy_edited(const char *path, const char *kept, struct err *err)
{
    size_t n_bytes;
    char *text;

    if (file_read(path, JOB_BYTES_MAX, ERR_DATA, &text, &n_bytes, err) < 0)
        return -1;
    int status = file_write(kept, text, n_bytes, err);
    free(text);
    if (!status)
        log_info("%s was edited since lmtrain wrote it: kept as %s", path, kept);
    return status;
}

/* Under the first free name: job.yaml.edited, job.yaml.edited2, ... */
static int keep_edited(const struct job *job, const char *path, struct err *err)
{
    char kept[PATH_BYTES], suffix[32] = ".edited";

    for (int i = 2; i < 100; i++) {
        if (make_path(kept, job, suffix, err) < 0)
            return -1;
        if (link(path, kept) == 0) {
            log_info("%s was edited since lmtrain wrote it: kept as %s", path, kept);
            return 0;
        }
        if (errno != EEXIST)
            break;
        snprintf(suffix, sizeof suffix, ".edited%d", i);
    }
    if (errno != EEXIST && !file_exists(kept))
        return copy_edited(path, kept, err);
    return err_set_errno(err, ERR_FAILED, "cannot keep the edited %s as %s", path, kept);
}

int job_file_write(const struct job *job, struct err *err)
{
    struct str body = { 0 }, text = { 0 };
    char path[PATH_BYTES];

    int status = job_file_check(job, err);
    if (!status)
        status = make_path(path, job, "", err);
    if (!status && writer_of(path) == WRITER_EDITED)
        status = keep_edited(job, path, err);
    if (!status) {
        job_print_absolute(job, &body);
        str_printf(&text, MARK "%016" PRIx64 "\n", hash_of(body.data, body.length));
        str_add_bytes(&text, body.data, body.length);
        status = file_write(path, text.data, text.length, err);
    }
    str_release(&body);
    str_release(&text);
    return status;
}
