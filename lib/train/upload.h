/*
 * upload.h - a command of the user's for each checkpoint, beside training
 *
 * A thread runs the command by sh -c, one at a time, in a process group of its own at low priority,
 * with LMTRAIN_CHECKPOINT (the checkpoint's folder) and LMTRAIN_STEP, and without the variables of
 * launchers. A try that fails or exceeds its time is repeated, at most UPLOAD_TRIES in all, with
 * longer and longer pauses. While one is uploaded the newest of those that follow waits and the
 * others are left out. A command is ended by SIGTERM to its group, and by SIGKILL grace_seconds
 * later; after another grace_seconds a process that is still there (in a system call of a dead
 * file system) is given up: the report names it, and until it has gone tries fail. The group ends
 * in the same way when this process dies, however it does. No call here waits for a process or a
 * file system without a bound. It knows no metrics: its caller takes reports of what has happened,
 * between steps.
 */
#ifndef TRAIN_UPLOAD_H
#define TRAIN_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define UPLOAD_TRIES 5

struct upload_options {
    const char *command;
    const char *log;      /* file to which its output is appended */
    double seconds;       /* of a try */
    double grace_seconds; /* see above */
};

struct upload;

/*
 * The texts of the options are copied. ERR_DEVICE if there can be no thread. Sets SIGCHLD to its
 * default: with one that was ignored by who started this process no exit status would be known.
 */
int upload_create(struct upload **upload, const struct upload_options *options, struct err *err);

/* Upload this folder; returns at once. One that still waits is left out. */
void upload_add(struct upload *upload, const char *folder, int64_t step);

/* The steps of the checkpoints that are uploaded or wait for it, which must not be removed; the
 * number of them, at most 2. NULL: 0. */
int upload_holds(struct upload *upload, int64_t steps[2]);

/*
 * Upload none of a step after this one, as they will be made again: those that wait are dropped,
 * one under way is ended, and waited for, at most twice grace_seconds and 5 seconds. NULL is fine.
 */
void upload_cancel_after(struct upload *upload, int64_t step);

/* What has happened to a checkpoint. */
struct upload_report {
    int64_t step;
    bool is_done;   /* else it is not uploaded */
    char text[512]; /* the whole sentence */
};

/* The next report that was not taken yet: 1, else 0. NULL: 0. */
int upload_take_report(struct upload *upload, struct upload_report *report);

/*
 * Wait for what is under way or waits, at most for `seconds` and while may_wait, called several
 * times a second, says so; then end the command, in at most twice grace_seconds and 5 seconds, in
 * which may_wait is still called. The reports tell which are not uploaded. NULL is fine.
 */
void upload_finish(struct upload *upload, double seconds, bool (*may_wait)(void *context),
                   void *context);
/* After upload_finish. NULL is fine. A thread that did not end keeps the memory. */
void upload_destroy(struct upload *upload);

#endif
