/*
 * choices.c - see the header
 */
#include "train/choices.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)

static void path_of(const struct job *job, struct str *path)
{
    str_printf(path, "%s/kernels.txt", job->output);
}

void choices_recall(const struct job *job, struct kernels *kernels)
{
    struct str path = { 0 };
    struct err err;
    size_t n_bytes;
    char *text;

    path_of(job, &path);
    if (file_exists(str_text(&path)) &&
        file_read(str_text(&path), FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, &err) == 0) {
        if (kernels_choices_load(kernels, text, &err) < 0)
            log_warn("%s: %s: the kernels are chosen anew, and bits may differ", str_text(&path),
                     err.text);
        free(text);
    }
    str_release(&path);
}

int choices_keep(const struct job *job, struct kernels *kernels, struct err *err)
{
    struct str path = { 0 }, text = { 0 };
    int status = 0;

    kernels_choices_print(kernels, &text);
    path_of(job, &path);
    if (text.length)
        status = file_write(str_text(&path), str_text(&text), text.length, err);
    str_release(&path);
    str_release(&text);
    return status;
}
