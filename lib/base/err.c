/*
 * err.c - errors in a fixed buffer; CHECK
 */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"

static int checked_rank = -1;

int err_set(struct err *err, enum err_code code, const char *format, ...)
{
    va_list args;

    err->code = code;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    str_make_printable(err->text);
    return -1;
}

int err_set_errno(struct err *err, enum err_code code, const char *format, ...)
{
    int saved = errno;
    va_list args;

    err->code = code;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);

    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(saved));
    str_make_printable(err->text);
    return -1;
}

int err_add(struct err *err, const char *format, ...)
{
    char tail[sizeof err->text];
    va_list args;

    memcpy(tail, err->text, sizeof tail);
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);

    size_t used = strlen(err->text);
    size_t room = sizeof err->text - used;
    if (room > 2) {
        memcpy(err->text + used, ": ", 3);
        size_t n = strnlen(tail, room - 3);
        memcpy(err->text + used + 2, tail, n);
        err->text[used + 2 + n] = '\0';
    }
    str_make_printable(err->text);
    return -1;
}

void check_set_rank(int rank)
{
    checked_rank = rank;
}

void check_failed(const char *condition, const char *file, int line_number)
{
    char line[1024], rank[32] = "";

    if (checked_rank >= 0)
        snprintf(rank, sizeof rank, "rank %d: ", checked_rank);
    snprintf(line, sizeof line, "lmtrain: bug: %s%s:%d: %s does not hold", rank, file, line_number,
             condition);
    fprintf(stderr, "%s\n", line);
    log_to_screen(line);
    fflush(stderr);
    abort();
}
