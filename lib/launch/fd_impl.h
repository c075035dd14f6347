/*
 * fd_impl.h - this process's file descriptors
 */
#ifndef LAUNCH_FD_IMPL_H
#define LAUNCH_FD_IMPL_H

/* Close *fd, if there is one (not negative), and make it -1. */
void fd_close(int *fd);

/*
 * Let this process have so many open files more than usual, as far as the system allows. Returns
 * how many it may have in all.
 */
int fd_allow(int n_files);

#endif
