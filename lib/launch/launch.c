/*
 * launch.c - one code path for ranks under PMIx and the one rank that is alone
 *
 * Alone, nothing of PMIx is called: what is put is kept here for get.
 */
#include "launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/environment_impl.h"
#include "launch/pmix_client_impl.h"
#include "launch/watch/watcher_impl.h"
#include "progress/progress.h"

/* What a lone rank has put. */
struct published_value {
    struct published_value *next;
    char *key;
    size_t n_bytes;
    unsigned char value[];
};

/* There is one job per process, like PMIx's own state. */
static int joined_pmix;
static struct published_value *published;

int launch_is_rank(void)
{
    const char *nspace = getenv("PMIX_NAMESPACE"), *rank = getenv("PMIX_RANK");

    return nspace && *nspace && rank && *rank;
}

int launch_attempt(void)
{
    return getenv(ATTEMPT_VARIABLE) ? environment_count(ATTEMPT_VARIABLE)
                                    : environment_count(SLURM_REQUEUES_VARIABLE);
}

/* As `ps -e`, `top` and `pgrep` name this process: "lmtrain:3". */
static void show_rank(int world_rank)
{
    char name[16];

    snprintf(name, sizeof name, "lmtrain:%d", world_rank);
    prctl(PR_SET_NAME, name);
}

int launch_join(struct launch_rank *rank, struct err *err)
{
    if (launch_is_rank()) {
        if (launch_client_join(rank, err))
            return -1;
        joined_pmix = 1;
    } else {
        *rank = (struct launch_rank){ .world_size = 1, .local_size = 1 };
    }
    check_set_rank(rank->world_size > 1 ? rank->world_rank : -1);
    if (rank->world_size > 1)
        show_rank(rank->world_rank);
    return 0;
}

void launch_leave(void)
{
    if (joined_pmix)
        launch_client_leave();
    joined_pmix = 0;
    progress_end(PROGRESS_LEFT);
    watcher_leave();
    while (published) {
        struct published_value *entry = published;

        published = entry->next;
        free(entry->key);
        free(entry);
    }
}

void launch_abort(int status, const char *text)
{
    char line[1200];

    fflush(NULL);
    snprintf(line, sizeof line, "lmtrain: error: %s", text);
    log_to_screen(line); /* where the launcher keeps the text to itself */
    progress_end(PROGRESS_FAILED);
    if (joined_pmix) {
        alarm(5); /* a server that does not answer must not keep us */
        launch_client_abort(status, text);
    }
    _exit(status);
}

static int put_alone(const char *key, const void *value, size_t n_bytes)
{
    struct published_value *entry = malloc(sizeof *entry + n_bytes);

    CHECK(entry);
    entry->key = strdup(key);
    CHECK(entry->key);
    entry->n_bytes = n_bytes;
    if (n_bytes)
        memcpy(entry->value, value, n_bytes);
    entry->next = published; /* in front of an older value of the same key */
    published = entry;
    return 0;
}

int launch_put(const char *key, const void *value, size_t n_bytes, struct err *err)
{
    return joined_pmix ? launch_client_put(key, value, n_bytes, err)
                       : put_alone(key, value, n_bytes);
}

int launch_fence(double timeout_seconds, struct err *err)
{
    return joined_pmix ? launch_client_fence(timeout_seconds, err) : 0;
}

int launch_local_peers(int *ranks, int local_size, struct err *err)
{
    if (joined_pmix)
        return launch_client_local_peers(ranks, local_size, err);
    CHECK(local_size == 1);
    ranks[0] = 0;
    return 0;
}

static int get_alone(const char *key, int rank, void *value, size_t *n_bytes, struct err *err)
{
    const struct published_value *entry = published;

    while (entry && strcmp(entry->key, key))
        entry = entry->next;
    if (!entry || rank)
        return err_set(err, ERR_PEER, "rank %d has not published %s", rank, key);
    if (entry->n_bytes > *n_bytes)
        return err_set(err, ERR_PEER, "rank %d's %s has %zu bytes, at most %zu are expected", rank,
                       key, entry->n_bytes, *n_bytes);
    *n_bytes = entry->n_bytes;
    if (*n_bytes)
        memcpy(value, entry->value, *n_bytes);
    return 0;
}

int launch_get(const char *key, int rank, void *value, size_t *n_bytes, double timeout_seconds,
               struct err *err)
{
    return joined_pmix ? launch_client_get(key, rank, value, n_bytes, timeout_seconds, err)
                       : get_alone(key, rank, value, n_bytes, err);
}
