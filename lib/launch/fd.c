/*
 * fd.c - the limit of open files, and closing
 */
#include "launch/fd_impl.h"

#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int fd_allow(int n_files)
{
    rlim_t wanted = (rlim_t)n_files + 256;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return INT32_MAX;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur < INT32_MAX ? (int)limit.rlim_cur : INT32_MAX;
}
