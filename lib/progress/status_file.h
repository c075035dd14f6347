/*
 * status_file.h - a file that says twice a second how a run is, for `lmtrain watch`
 *
 * A run folder has the folder status/, made by rank 0. In it run.json is rank 0's, and ranks*.json
 * are of what sees the ranks: the head, under srun and mpirun the watcher of each node, else rank 0
 * (run.json alone). Each is one JSON object, replaced whole:
 *
 *     {"written_at":1700000000.123,"said_at":1700000000.002,...}
 *
 * written_at is Unix time by the clock of the writer, which is renewed as long as its
 * process lives; said_at is when the rest was put. A thread writes, so that a file system that
 * hangs delays no one, and nothing is fsynced. The folder is not made here: a run folder that was
 * removed stays removed.
 */
#ifndef PROGRESS_STATUS_FILE_H
#define PROGRESS_STATUS_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/str.h"
#include "progress/progress.h"

#define STATUS_FOLDER "status"
#define STATUS_SECONDS 0.5

struct status_file;

/* Called in the thread, at each write: what is true now, each member with a comma in front. */
typedef void (*status_add_fn)(void *context, struct str *out);

/* Start the thread. add: NULL, or as above. NULL: not possible. */
struct status_file *status_file_open(const char *path, status_add_fn add, void *context);

/* The members of the object, each with a comma in front: ",\"step\":3". Replaces what was put
 * before. Does not wait for the disk. NULL is fine. */
void status_file_put(struct status_file *file, const char *members);

/*
 * Write what was put last and end the thread, which is waited for at most `seconds`; one that a
 * file system holds keeps its memory. NULL is fine.
 */
void status_file_close(struct status_file *file, double seconds);

/* A rank as an object of "ranks". */
struct status_rank {
    int rank;
    const char *host;  /* NULL: that of the file */
    const char *state; /* "running", "left", "ended" */
    double heard_s;    /* since its last beat */
    const char *gpu;   /* in words; "" or NULL: none, or not known */
    const struct progress_slot *slot;
};

/* {"rank":…,"host":…,"pid":…,"state":…,"step":…,"micro_batch":…,"doing":…,"waits":…,
 * "resident_bytes":…,"peak_bytes":…,"heard_s":…,"gpu":…}; what is not known is left out. */
void status_add_rank(struct str *out, const struct status_rank *rank);

/* Memory of a process that lies in RAM, in bytes; 0: not known. */
int64_t status_resident_bytes(pid_t pid);

/* The most that it has been (VmHWM of /proc/PID/status); 0: not known. */
int64_t status_peak_bytes(pid_t pid);

/* Put the peak of a rank's process into its slot. */
void status_look_at_peak(struct progress_slot *slot, pid_t pid);

/* And what lies in RAM now; pid 0: it has ended, which leaves its peak. */
void status_look_at_memory(struct progress_slot *slot, pid_t pid);

/* Seconds of Unix time. */
double status_now(void);

#endif
