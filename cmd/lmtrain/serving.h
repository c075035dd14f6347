/*
 * serving.h - the ranks of a command that uses a trained model: generate and eval
 *
 * Such a command is one process, unless --tp, --pp, --ranks or --hosts ask for more or a launcher
 * has made it a rank. Then it goes as with training (ranks.h): the process that a user has started
 * checks the options, so that a mistake is reported once, and starts the same command once a rank.
 */
#ifndef SERVING_H
#define SERVING_H

#include <stdbool.h>

#include "base/options.h"
#include "ranks.h"
#include "serve/served.h"
#include "train/engine.h"

struct serving {
    /* Options. */
    int tp, pp, n_ranks; /* 0: not given */
    const char *hosts, *device;

    const char *stop_words; /* set by the command: what a signal means for its work */

    struct ranks ranks;
    struct job job; /* what ranks.h wants to know */
    struct launch_rank rank;
    struct engine engine;
    struct replica replica;
    bool is_alone, has_joined, has_engine;
    bool is_told; /* another rank says why all of them end */
};

/* The options --tp, --pp, --ranks, --hosts and --device, to be put into a table. */
enum { SERVING_N_OPTIONS = 5 };
void serving_options(struct serving *serving, struct option *out);

/*
 * command: "lmtrain eval". Where this process is, and how many ranks there are to be; alone: the
 * work needs no ranks, whatever options were given. Returns 0, or -1 and ERR_CONFIG.
 */
int serving_find(struct serving *serving, const char *command, int alone, struct arena *arena,
                 struct err *err);

/* Whether other processes are to do the work, and whether several do. */
int serving_starts(const struct serving *serving);
bool serving_is_shared(const struct serving *serving);

/* In a process that is not a rank: from here on a signal ends the command at once. */
void serving_catch_signals(const struct serving *serving);

/* Start them, with this command line (argv[0] is the command's name), and wait for their end. */
int serving_start(const struct serving *serving, const struct options *options, int argc,
                  char **argv, struct arena *arena);

/* Be a rank. Collective. Returns 0, or an exit status after a message. */
int serving_join(struct serving *serving);

/* ERR_CONFIG where the model cannot be cut like this. */
int serving_check(const struct serving *serving, const struct model_spec *spec, struct err *err);

/*
 * Open the model that --model or --ensemble names (the other one is NULL): its adapter and weights
 * as served_open_adapted takes them. ensemble: models parted by commas, or a sweep's folder, whose
 * best trials it is. Returns 0, or -1: ERR_CONFIG, ERR_DATA.
 */
int serving_open_model(struct served *served, const char *model, const char *ensemble,
                       const char *adapter, const char *weights, struct err *err);

/* What is to be said of the model: by the process that prints, once. */
void serving_tell(const struct serving *serving, const struct served *served);

/* Set up cores, kernels and neighbours, and store them in the served model. Collective. */
int serving_open(struct serving *serving, struct served *served, int n_threads, struct err *err);

/* Say it, and end the others if there are any. Returns the exit status. */
int serving_fail(const struct serving *serving, const struct err *err);

/* After what uses the engine is gone. Collective. */
void serving_close(struct serving *serving);

#endif
