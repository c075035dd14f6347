/*
 * guarded_command_impl.h - a command of the user's beside training, and its guard
 *
 * The guard is a shell that leads the process group of the command and reads a pipe from this
 * process. When the pipe is closed, as it is by this process's death, the guard ends the group:
 * SIGTERM, and SIGKILL when the grace is over. So no part of a pipe or list of commands survives
 * this process, unless it has left the group (setsid). The group's number is the guard's process
 * id; it is in use for as long as the guard is not waited for.
 */
#ifndef TRAIN_GUARDED_COMMAND_IMPL_H
#define TRAIN_GUARDED_COMMAND_IMPL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct guarded_command {
    pid_t process, guard; /* 0: has ended, or never was */
    pid_t group;          /* the guard's number, kept */
    int status;           /* of the process, as waitpid gives it, once it has ended */
    bool is_lost;         /* its status is not known: another reaped it */
    int pipe;             /* its write end */
};

/* All borrowed. */
struct guarded_command_options {
    const char *command;          /* for sh -c */
    const char *log;              /* file to which its output is appended */
    const char *input;            /* its standard input; NULL: none */
    const char *const *variables; /* "NAME=VALUE" of its environment, ended by NULL */
    double grace_seconds;         /* of the guard, rounded up */
};

/* Start both. Returns 0, or -1 with errno. May block where the log's file system does. */
int guarded_command_start(struct guarded_command *command,
                          const struct guarded_command_options *options);

/* Whether the command's own process has ended. Blocks not, nor do the functions below. */
bool guarded_command_has_ended(struct guarded_command *command);

/* A signal to its process group, of which the guard ignores all but SIGKILL. */
void guarded_command_signal(const struct guarded_command *command, int signal_number);

/* After SIGKILL: whether both processes have ended. */
bool guarded_command_is_gone(struct guarded_command *command);

/* Close the pipe. */
void guarded_command_release(struct guarded_command *command);

#endif
