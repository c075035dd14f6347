/*
 * host_pool.c - choosing hosts
 */
#include "launch/host_pool_impl.h"

#include <string.h>

#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "launch/excluded.h"

/* ---- the list ---- */

static int n_wanted(const struct host_pool *pool)
{
    int n = pool->list.n_hosts;

    return max_int(max_int(1, n - pool->options->n_spares), min_int(n, pool->n_first));
}

static int find(const struct host_list *list, const char *name)
{
    for (int i = 0; i < list->n_hosts; i++)
        if (!strcmp(list->hosts[i].name, name))
            return i;
    return -1;
}

int host_pool_find(const struct host_pool *pool, const char *name)
{
    return find(&pool->list, name);
}

void host_pool_list(struct host_pool *pool, const struct host_list *list)
{
    struct pool_host *hosts = arena_array(&pool->arena, struct pool_host, list->n_hosts);

    for (int i = 0; i < list->n_hosts; i++) {
        int known = find(&pool->list, list->hosts[i].name);

        hosts[i] = known >= 0 ? pool->hosts[known] : (struct pool_host){ .is_new = true };
    }
    for (int i = 0; i < pool->list.n_hosts; i++)
        if (find(list, pool->list.hosts[i].name) < 0)
            log_warn("host %s is not in %s any more", pool->list.hosts[i].name, pool->source);
    struct host *copies = arena_array(&pool->arena, struct host, list->n_hosts);
    memcpy(copies, list->hosts, sizeof *copies * (size_t)list->n_hosts);
    pool->list = *list;
    pool->list.hosts = copies;
    pool->hosts = hosts;
    pool->states = arena_array(&pool->arena, enum host_state, list->n_hosts);
}

/* What a host without a number gets at first. */
static int deal(struct host_pool *pool, struct err *err)
{
    struct host_list first = { .n_hosts = n_wanted(pool), .hosts = pool->list.hosts };
    int *dealt = arena_array(&pool->arena, int, first.n_hosts);

    if (hosts_deal(&first, pool->options->n_ranks, dealt, err))
        return -1;
    pool->n_ranks_open = 1;
    for (int i = 0; i < first.n_hosts; i++) {
        pool->hosts[i].was_used = true;
        if (!pool->list.hosts[i].n_slots)
            pool->n_ranks_open = max_int(pool->n_ranks_open, dealt[i]);
    }
    return 0;
}

int host_pool_open(struct host_pool *pool, const struct supervise_options *options,
                   const struct host_list *list, const char *source, struct err *err)
{
    int n = list->n_hosts;

    CHECK(n > 0);
    *pool = (struct host_pool){ .options = options, .source = source, .told_attempt = -1 };
    host_pool_list(pool, list);
    for (int i = 0; i < n; i++)
        pool->hosts[i].is_new = false;
    pool->n_first = n_wanted(pool);
    if (options->n_spares >= n && source)
        return err_set(err, ERR_CONFIG,
                       "launch.spares is %d, but %s has %d host%s (hint: at most %d, one host "
                       "at least has to be used)",
                       options->n_spares, source, n, str_s(n), n - 1);
    return deal(pool, err);
}

void host_pool_close(struct host_pool *pool)
{
    arena_release(&pool->arena);
}

/* ---- a choice ---- */

/* Which hosts can be used at all. */
static int find_usable(struct host_pool *pool, int attempt, struct err *err)
{
    const char *output = pool->options->output;
    struct excluded_hosts excluded = { 0 };

    pool->some_excluded = false;
    if (output && excluded_read(&excluded, output, &pool->arena, err))
        return -1;
    for (int i = 0; i < pool->list.n_hosts; i++) {
        const char *name = pool->list.hosts[i].name;
        const struct excluded_host *entry = excluded_find(&excluded, name);
        struct pool_host *host = &pool->hosts[i];

        if (entry) {
            if (pool->told_attempt != attempt)
                log_warn("%s is excluded: %s (%s)", name,
                         *entry->reason ? entry->reason : "no reason is given",
                         excluded_path(output, &pool->arena));
            host->left_out = "excluded";
        } else {
            host->left_out = host->is_unfit              ? "its GPU is broken"
                             : attempt < host->out_until ? "lost"
                                                         : NULL;
        }
        pool->some_excluded |= entry != NULL;
    }
    pool->told_attempt = attempt;
    return 0;
}

/* The first n that can be used: those that were never lost before the others. */
static void use_first(struct host_pool *pool, int n)
{
    pool->n_used = 0;
    for (int i = 0; i < pool->list.n_hosts; i++)
        pool->states[i] = HOST_OUT;
    for (int was_lost = 0; was_lost < 2; was_lost++)
        for (int i = 0; i < pool->list.n_hosts && pool->n_used < n; i++)
            if (!pool->hosts[i].left_out && (pool->hosts[i].n_losses > 0) == was_lost) {
                pool->states[i] = HOST_USED;
                pool->n_used++;
            }
}

/* The next host from *at on that the last choice used and this one does not; NULL: none. */
static const char *next_replaced(struct host_pool *pool, int *at)
{
    while (*at < pool->list.n_hosts) {
        int i = (*at)++;
        const char *why = pool->hosts[i].left_out;

        if (pool->hosts[i].was_used && pool->states[i] == HOST_OUT)
            return arena_printf(&pool->arena, "%s (%s)", pool->list.hosts[i].name,
                                why ? why : "now a spare");
    }
    return NULL;
}

/* A line for a host that the last choice did not use, or that was lost since. */
static void tell_used(const struct host_pool *pool, int i, const char *replaced)
{
    const struct pool_host *host = &pool->hosts[i];
    const char *name = pool->list.hosts[i].name;

    if (host->is_new)
        log_warn("host %s is new in %s and is used", name, pool->source);
    else if (host->n_losses)
        log_warn("host %s was lost and is tried again", name);
    else if (replaced)
        log_warn("host %s, a spare, takes the place of %s", name, replaced);
    else
        log_warn("host %s is used again", name);
}

static void tell(struct host_pool *pool)
{
    int at = 0;

    for (int i = 0; i < pool->list.n_hosts; i++) {
        const struct pool_host *host = &pool->hosts[i];

        if (pool->states[i] == HOST_USED && (!host->was_used || host->was_lost))
            tell_used(pool, i, host->was_used ? NULL : next_replaced(pool, &at));
    }
    for (int i = 0; i < pool->list.n_hosts; i++) {
        pool->hosts[i].was_used = pool->states[i] == HOST_USED;
        pool->hosts[i].was_lost = pool->hosts[i].is_new = false;
    }
}

/* "no host is left: a (excluded), b (lost)". */
static void say_none_left(struct host_pool *pool, struct err *err)
{
    enum { N_NAMED = 4 };
    struct str names = { 0 };

    for (int i = 0; i < pool->list.n_hosts && i < N_NAMED; i++)
        str_printf(&names, "%s%s (%s)", i ? ", " : "", pool->list.hosts[i].name,
                   pool->hosts[i].left_out);
    if (pool->list.n_hosts > N_NAMED)
        str_printf(&names, " and %d more", pool->list.n_hosts - N_NAMED);
    if (pool->some_excluded)
        err_set(err, ERR_PEER, "no host is left: %s (hint: a line removed from %s readmits a host)",
                str_text(&names), excluded_path(pool->options->output, &pool->arena));
    else
        err_set(err, ERR_PEER, "no host is left: %s", str_text(&names));
    str_release(&names);
}

static int count_room(const struct host_pool *pool)
{
    int64_t n = 0;

    if (!pool->source)
        return pool->n_used ? pool->options->n_ranks : 0;
    for (int i = 0; i < pool->list.n_hosts; i++)
        if (pool->states[i] == HOST_USED)
            n += pool->list.hosts[i].n_slots ? pool->list.hosts[i].n_slots : pool->n_ranks_open;
    return (int)min_i64(n, INT32_MAX);
}

int host_pool_choose(struct host_pool *pool, int attempt, struct err *err)
{
    if (find_usable(pool, attempt, err))
        return 0;
    use_first(pool, n_wanted(pool));
    tell(pool);
    if (!pool->n_used)
        say_none_left(pool, err);
    return count_room(pool);
}

bool host_pool_is_whole(const struct host_pool *pool)
{
    return pool->n_used >= n_wanted(pool);
}

/* ---- afterwards ---- */

static void exclude(struct host_pool *pool, int i)
{
    const char *output = pool->options->output, *name = pool->list.hosts[i].name;
    struct err err;

    pool->hosts[i].is_unfit = !output;
    if (output && excluded_add(output, name, "a GPU of this host is broken", &err)) {
        log_warn("%s", err.text);
        pool->hosts[i].is_unfit = true;
    }
}

int host_pool_note(struct host_pool *pool, int out_until)
{
    int n = 0;

    for (int i = 0; i < pool->list.n_hosts; i++) {
        if (pool->states[i] == HOST_LOST) {
            pool->hosts[i].was_lost = true;
            pool->hosts[i].n_losses++;
            pool->hosts[i].out_until = out_until;
            n++;
        } else if (pool->states[i] == HOST_UNFIT) {
            exclude(pool, i);
            n++;
        }
    }
    return n;
}
