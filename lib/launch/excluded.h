/*
 * excluded.h - hosts that the attempts of a run leave out
 *
 * OUTPUT/excluded_hosts has a line a host, "HOST\tTIME\tREASON". Whoever finds a host unfit
 * (preflight, a recheck of gradients, a broken GPU) adds it, and before each attempt the launcher
 * (supervise.h, slurm.h) reads the file. People edit it: a line may be a host alone, `#` begins a
 * comment, and removing a line readmits the host at the next attempt.
 */
#ifndef LAUNCH_EXCLUDED_H
#define LAUNCH_EXCLUDED_H

#include "base/arena.h"
#include "base/err.h"

struct excluded_host {
    const char *host;   /* as the launcher calls it (launch_host) */
    const char *time;   /* UTC, ISO 8601; "" if the line has none */
    const char *reason; /* "" if the line has none */
};

struct excluded_hosts {
    int n;
    const struct excluded_host *hosts;
};

/* The file's path, in the arena. */
const char *excluded_path(const char *output, struct arena *arena);

/*
 * Add a host, now, for this reason (control characters in it become blanks); a host that is listed
 * already keeps its line. The line is appended by one write, so that other runs may share the file
 * through a link. Returns 0, or -1 and ERR_CONFIG for a name
 * that is empty or has a blank or control character, or ERR_FAILED if the file cannot be written.
 */
int excluded_add(const char *output, const char *host, const char *why, struct err *err);

/*
 * Read the file into the arena. A file that is not there is an empty list. Returns 0, or -1 and
 * ERR_CONFIG if it cannot be read.
 */
int excluded_read(struct excluded_hosts *list, const char *output, struct arena *arena,
                  struct err *err);

/* The host's entry, or NULL. */
const struct excluded_host *excluded_find(const struct excluded_hosts *list, const char *host);

/*
 * This rank's host as the launcher calls it: $LMTRAIN_HOST (from lmtrain's daemons: the name in
 * --hosts), else $SLURMD_NODENAME, else the host name. Static.
 */
const char *launch_host(void);

/* Room for any name that a launcher has for a host, as ranks send it to each other. */
#define LAUNCH_HOST_BYTES 320

#endif
