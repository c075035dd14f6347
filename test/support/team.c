/*
 * team.c - a thread a rank, each with its own end of a hub
 */
#include "support/team.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct member {
    const struct team *team;
    struct comm_hub *hub;
    struct team_rank rank;
    team_fn work;
    struct comm *comm;
};

static int join_hub(void *argument, struct err *err)
{
    struct member *m = argument;

    return comm_thread_create(&m->comm, m->hub, m->rank.rank, err);
}

static int leave_hub(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(argument);
    return 0;
}

/* With pool, kernels and, where there are several, worker and comm. */
static int work(struct member *m, struct worker *worker, struct err *err)
{
    const struct team *team = m->team;
    struct replica replica;
    struct served served;

    if (worker && (worker_call(worker, join_hub, m, err) < 0 ||
                   replica_open(&replica, m->comm, worker, NULL, team->tp, team->pp, err) < 0))
        return -1;
    if (served_open(&served, team->model, err) < 0)
        return -1;
    served.replica = worker ? &replica : NULL;
    m->rank.served = &served;
    int status = m->work(&m->rank, err);
    served_close(&served);
    return status;
}

static void *live(void *argument)
{
    struct member *m = argument;
    struct pool *pool = NULL;
    struct worker *worker = NULL;
    struct err ignored, *err = &m->rank.err;
    int status = pool_create(&pool, m->team->n_threads ? m->team->n_threads : 1, NULL, err);

    if (!status)
        status = kernels_cpu_create(&m->rank.kernels, pool, NULL, err);
    if (!status && m->hub)
        status = worker_create(&worker, -1, err);
    if (!status)
        status = work(m, worker, err);
    if (m->comm)
        worker_call(worker, leave_hub, m->comm, &ignored);
    worker_destroy(worker);
    kernels_destroy(m->rank.kernels);
    pool_destroy(pool);
    m->rank.status = status;
    return NULL;
}

void team_run(const struct team *team, team_fn fn, void *const *contexts)
{
    int n = team->tp * team->pp * team->replicas;
    struct member members[TEAM_MAX] = { { 0 } };
    pthread_t threads[TEAM_MAX];
    struct comm_hub *hub = NULL;
    struct err err;

    assert_in_range(n, 1, TEAM_MAX);
    if (n > 1 && comm_hub_create(&hub, n, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++) {
        members[i] = (struct member){
            .team = team, .hub = hub, .rank = { .rank = i, .context = contexts[i] }, .work = fn
        };
        assert_int_equal(pthread_create(&threads[i], NULL, live, &members[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    comm_hub_destroy(hub);
    for (int i = 0; i < n; i++)
        if (members[i].rank.status < 0)
            fail_msg("tp %d, pp %d, %d replicas: rank %d: %s", team->tp, team->pp, team->replicas,
                     i, members[i].rank.err.text);
}
