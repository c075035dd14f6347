/*
 * file.h - files and folders, whole or not at all
 *
 * Files are made 0600 and folders 0700 (design.md §9), or as file_share says, whatever the umask;
 * and nothing is written through a symbolic link, into a pipe or a device.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Read all of path, at most limit_bytes, into *data (heap, yours to free, with a 0 byte behind the
 * end) and *n_bytes. Returns 0, or -1 and `code` with the path in the text. A pipe is read to its
 * end, unless nothing comes from it for ten seconds; /dev/stdin is waited for as long as it takes.
 */
int file_read(const char *path, size_t limit_bytes, enum err_code code, char **data,
              size_t *n_bytes, struct err *err);

/*
 * Set who may read the files that this process creates from now on (a job's output_mode): the
 * owner, the group, or all users; FILE_UMASK is for exports and applies the umask (files 0666,
 * folders 0777, minus the umask). In all other modes only the owner may write. Permissions are only
 * added: an existing file of this user that is opened for writing gets the missing ones and keeps
 * the others, and an existing folder stays unchanged (except by file_share_folder). Process-wide,
 * like the umask: called while there is no other thread that makes files. Returns what it was
 * before.
 */
enum file_sharing { FILE_PRIVATE, FILE_GROUP, FILE_ALL, FILE_UMASK };

enum file_sharing file_share(enum file_sharing sharing);

/*
 * Open a file for writing and make it if it is not there. flags are of open(2): O_WRONLY or O_RDWR,
 * with O_APPEND, O_EXCL, O_TRUNC. Returns the descriptor (close-on-exec), or -1 and ERR_FAILED with
 * errno as it was: a link, a folder, a pipe or a device of that name is refused by name and is not
 * touched.
 */
int file_open_write(const char *path, int flags, struct err *err);

/*
 * Write path whole: to a file beside it, fsync, rename, fsync of the folder. A link of that name is
 * replaced and not followed. ERR_FAILED on failure.
 */
int file_write(const char *path, const void *data, size_t n_bytes, struct err *err);

/*
 * Remove the temporary files that file_write left in a folder when its process was killed
 * (NAME.part-PID): those of processes that no longer exist on this machine. A folder that is not
 * there is fine, and what cannot be removed stays. The folder must be this job's alone.
 */
void file_sweep_parts(const char *folder);

/*
 * write(2) until all is written, whatever interrupts it. Returns how many bytes are left: 0, or
 * some with errno.
 */
size_t file_write_all(int fd, const void *data, size_t n_bytes);

/* Make the folder and its parents; one that exists is fine, and so are links on the way to it. */
int file_make_folders(const char *path, struct err *err);

/* The same, but that folder itself must be no link: for what lies in a run's folder. */
int file_make_folder(const char *path, struct err *err);

/*
 * Add the permissions of file_share to a folder of this user; it keeps those that it has. A folder
 * of another user stays unchanged.
 */
void file_share_folder(const char *path);

/* fsync of a folder, so that renames in it last. */
int file_sync_folder(const char *path, struct err *err);

/* Remove a file, or a folder with all that is in it; what is not there is fine. Follows no links.
 */
int file_remove_tree(const char *path, struct err *err);

int file_exists(const char *path);
bool file_is_folder(const char *path);
/* A folder that can be read and in which nothing is. */
bool file_is_empty_folder(const char *path);
/* -1 if it is unknown. */
int64_t file_size(const char *path);

/*
 * A read-only mapping of a whole file. data is NULL for an empty file. The file must not shrink
 * while it is mapped.
 */
struct file_map {
    const unsigned char *data;
    size_t n_bytes;
};

int file_map_open(struct file_map *map, const char *path, struct err *err);
void file_map_close(struct file_map *map);

#endif
