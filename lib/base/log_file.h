/*
 * log_file.h - a log that never takes more than twice LOG_FILE_BYTES of disk
 *
 * Lines are appended to PATH. Before it would get larger than LOG_FILE_BYTES it becomes PATH.1, in
 * place of an older one, and a new file is begun. A file that was deleted is made again within a
 * second or so, if its folder is there. What a disk does not take is lost; a log is no
 * reason to end a run.
 */
#ifndef BASE_LOG_FILE_H
#define BASE_LOG_FILE_H

#include <stddef.h>

#include "base/err.h"

enum { LOG_FILE_BYTES = 16 << 20 };

struct log_file;

/* NULL and ERR_FAILED if it cannot be opened for appending (file_open_write). */
struct log_file *log_file_open(const char *path, struct err *err);
void log_file_close(struct log_file *file);

/* Whole lines, so that none is cut by the change of files. */
void log_file_write(struct log_file *file, const char *lines, size_t n_bytes);

/*
 * The same bound for a log that other processes append to through descriptors of their own
 * (O_APPEND): a file larger than LOG_FILE_BYTES is copied to PATH.1 and emptied. Lines written in
 * between are lost. Returns whether it was emptied.
 */
int log_file_bound(const char *path);

#endif
