/*
 * append.c - write, or take back
 */
#include "report/append.h"

#include <errno.h>
#include <unistd.h>

int append_whole(int fd, const char *path, const void *data, size_t n_bytes, struct err *err)
{
    const unsigned char *bytes = data;
    off_t before = lseek(fd, 0, SEEK_END);

    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = write(fd, bytes + done, n_bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err_set_errno(err, ERR_FAILED, "%s: cannot write", path);
            /* If this fails too, whoever reads meets a torn record, as after a kill. */
            if (done && before >= 0 && ftruncate(fd, before) == 0)
                lseek(fd, before, SEEK_SET);
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}
