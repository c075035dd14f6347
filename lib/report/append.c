/*
 * append.c - write, or take back
 */
#include "report/append.h"

#include <unistd.h>

#include "base/file.h"

int append_whole(int fd, const char *path, const void *data, size_t n_bytes, struct err *err)
{
    off_t before = lseek(fd, 0, SEEK_END);
    size_t n_left = file_write_all(fd, data, n_bytes);

    if (!n_left)
        return 0;
    err_set_errno(err, ERR_FAILED, "%s: cannot write", path);
    /* If this fails too, readers find a torn record, as after a kill. */
    if (n_left < n_bytes && before >= 0 && ftruncate(fd, before) == 0)
        lseek(fd, before, SEEK_SET);
    return -1;
}
