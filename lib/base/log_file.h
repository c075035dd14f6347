/*
 * log_file.h - a log of bounded size: PATH and at most LOG_FILE_N_OLD older files
 *
 * Lines are appended to PATH. Before it would get larger than the limit it becomes PATH.1, what was
 * that becomes PATH.2, and so on; the oldest is replaced, and a new file is begun. A file that was
 * deleted is made again within a second or so, if its folder is there. What a disk does not take is
 * lost; a log is no reason to end a run.
 */
#ifndef BASE_LOG_FILE_H
#define BASE_LOG_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { LOG_FILE_N_OLD = 3, LOG_FILE_MB = 64 };

struct log_file;

/*
 * The size in bytes at which the logs of this process, and of those that it forks, are rotated: a
 * job's metrics.log_mb; LOG_FILE_MB MiB before the first call. Process-wide, like file_share.
 */
void log_file_set_limit(size_t n_bytes);

/* NULL and ERR_FAILED if it cannot be opened for appending (file_open_write). */
struct log_file *log_file_open(const char *path, struct err *err);
void log_file_close(struct log_file *file);

/* Whole lines, so that none is cut by the change of files. */
void log_file_write(struct log_file *file, const char *lines, size_t n_bytes);

/*
 * The same bound for a log that other processes append to through descriptors of their own
 * (O_APPEND): a file larger than the limit is copied to PATH.1 and emptied. Lines written in
 * between are lost. Returns whether it was emptied.
 */
int log_file_bound(const char *path);

/*
 * The last lines of the log, at most size - 1 bytes and a 0 byte, without the last newline; "" if
 * there are none. Bytes of PATH before `begin` do not count, unless the log was rotated since:
 * then lines may come from PATH.1 as well. Follows no links.
 */
void log_file_tail(const char *path, int64_t begin, char *text, size_t size);

#endif
