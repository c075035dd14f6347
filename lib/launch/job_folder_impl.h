/*
 * job_folder_impl.h - the folder in /dev/shm that a supervised job lives in
 *
 * It holds what PMIx and Open MPI keep in files, and the progress page. Its name,
 * lmtrain-UID-PID-STARTTIME-NAMESPACE, tells whether its owner still lives: a supervisor that was
 * killed leaves it, and the next one of the same user removes it. Under srun and mpirun each rank
 * has such a folder. Containers may share /dev/shm and not see each other's processes, hence the
 * namespace (that of process numbers), and a lock that the owner holds.
 */
#ifndef LAUNCH_JOB_FOLDER_IMPL_H
#define LAUNCH_JOB_FOLDER_IMPL_H

#include <stddef.h>

#include "base/err.h"

/* Where job folders are made: /dev/shm, or $TMPDIR or /tmp where that cannot be written. */
const char *job_folder_parent(void);

/*
 * Make this process's own folder in parent, 0700, and write its path. It must not exist. A
 * descriptor stays open in this process, for the lock.
 */
int job_folder_create(const char *parent, char *path, size_t size, struct err *err);

/* Remove the folders of this user whose owners no longer run. Errors are passed over. */
void job_folder_sweep(const char *parent);

#endif
