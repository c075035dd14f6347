/*
 * simulate.c - the clocks of a replay
 *
 * The replay makes events happen in some order that the program allows, not in that of time; an
 * event's time is the largest of those of the events that it comes after, plus what it takes
 * (max-plus algebra). A transfer that has happened may therefore end later than its rank's clock
 * shows: it is *pending*.
 */
#include "plan/simulate.h"

#include <limits.h>
#include <string.h>

#include "base/num.h"
#include "program/replay.h"
#include "program/slowdown.h"

enum { NO_TRANSFER = -1 };
#define NOT_YET INT64_MAX

/* Of a transfer, by its number in the replay. */
struct times {
    int64_t ready; /* posted, and what it comes after is complete as far as that is known */
    int64_t begin, end;
    int64_t all_begin; /* of a collective's first: when the last of the ranks begins it */
    int first;         /* of a collective: the transfer that began it */
    int rank, function, op, micro_batch, action;
};

struct clock {
    int64_t now, issue;
    int64_t stream_end[N_STREAMS];
    int stream_last[N_STREAMS];
    int64_t gate_at[2];     /* of the last two gates, by their number */
    int *last;              /* by user (order.h): the transfer posted last */
    struct slow_time *busy; /* of async ops */
    int n_busy, busy_capacity;
    int64_t of[N_TIME_CLASSES];
};

struct clocks {
    const struct simulate_request *request;
    struct replay *replay;
    struct clock *list;
    struct times *times; /* by number, from n_dropped on: those before are past */
    int n_times, n_dropped, capacity;
    struct arena *arena, *results;
    struct err *err;
};

/* What a snapshot keeps, for the rounds that are skipped. */
struct kept {
    int64_t base;
    int64_t (*of)[N_TIME_CLASSES]; /* by rank */
};

static const struct simulated_op *price_of(const struct clocks *c, int rank, int function, int op)
{
    return &c->request->ops[rank][function][op];
}

static int number_of(const struct clocks *c, const struct replay_transfer *t)
{
    return replay_number(c->replay, t);
}

static struct times *times_of(const struct clocks *c, int number)
{
    return &c->times[number - c->n_dropped];
}

static const struct simulated_op *transfer_price(const struct clocks *c, int number)
{
    const struct times *t = times_of(c, number);

    return price_of(c, t->rank, t->function, t->op);
}

/* ---- spans ---- */

static void show(const struct clocks *c, const struct simulated_span *span)
{
    const struct simulate_watch *watch = c->request->watch;

    if (watch && span->end > span->begin)
        watch->on_span(watch->context, span);
}

static void show_transfer(const struct clocks *c, int number)
{
    const struct times *t = times_of(c, number);
    const struct function *f = &c->request->programs[t->rank]->functions[t->function];

    show(c, &(struct simulated_span){ t->rank, t->action, t->op, f->ops[t->op].stream,
                                      transfer_price(c, number)->class, t->begin, t->end, 0,
                                      transfer_price(c, number) });
}

/* ---- a rank's clock ---- */

/* What the rank's time goes into, next: tables and slices are this alone. */
static void spend(struct clocks *c, const struct simulated_span *span)
{
    struct clock *k = &c->list[span->rank];

    k->of[span->class] += span->end - span->begin - span->slowed;
    k->of[TIME_OVERLAP] += span->slowed;
    k->now = span->end;
    show(c, span);
}

/* The rank does nothing until then, which counts as this. */
static void wait_until(struct clocks *c, int rank, int64_t time, enum time_class class)
{
    int64_t now = c->list[rank].now;

    if (time > now)
        spend(c, &(struct simulated_span){ rank, c->replay->list[rank].action, -1, STREAM_COMPUTE,
                                           class, now, time, 0, NULL });
}

/* Until a transfer's end. What exceeds the time of a transfer between stages is waiting for the
 * other stage. */
static void wait_for(struct clocks *c, int rank, int number)
{
    const struct simulated_op *price = transfer_price(c, number);

    if (price->class == TIME_TRANSFERS)
        wait_until(c, rank, times_of(c, number)->end - price->ns, TIME_STAGES);
    wait_until(c, rank, times_of(c, number)->end, price->class);
}

/* The host is ready to issue the next op, which takes it so long. */
static void issue(struct clock *k, int64_t ns)
{
    k->issue = max_i64(k->issue, k->now - SIMULATE_AHEAD_NS) + ns;
}

static void forget_past(struct clock *k)
{
    int n = 0;

    for (int i = 0; i < k->n_busy; i++)
        if (k->busy[i].end > k->now)
            k->busy[n++] = k->busy[i];
    k->n_busy = n;
}

static void run_ops(void *context, int rank, const struct action *a, int begin, int end)
{
    struct clocks *c = context;
    struct clock *k = &c->list[rank];
    const struct function *f = &c->request->programs[rank]->functions[a->function];

    forget_past(k);
    for (int i = begin; i < end; i++) {
        const struct simulated_op *price = price_of(c, rank, a->function, i);

        if (order_is_async(&f->ops[i]))
            continue;
        issue(k, price->issue_ns);
        wait_until(c, rank, k->issue, TIME_ISSUE);
        int64_t ends = slowdown_end(k->busy, k->n_busy, k->now, price->ns);
        spend(c, &(struct simulated_span){ rank, c->replay->list[rank].action, i, STREAM_COMPUTE,
                                           price->class, k->now, ends, ends - k->now - price->ns,
                                           price });
    }
}

static void wait_for_user(void *context, int rank, int user)
{
    struct clocks *c = context;
    int number = c->list[rank].last[user];

    if (number != NO_TRANSFER && number >= c->n_dropped)
        wait_for(c, rank, number);
}

static void drain(void *context, int rank, unsigned streams)
{
    struct clocks *c = context;
    const struct clock *k = &c->list[rank];
    int latest = NO_TRANSFER;

    for (int s = 0; s < N_STREAMS; s++)
        if ((streams >> s & 1) && k->stream_last[s] != NO_TRANSFER && k->stream_end[s] > k->now &&
            (latest == NO_TRANSFER || k->stream_end[s] > times_of(c, latest)->end))
            latest = k->stream_last[s];
    if (latest != NO_TRANSFER)
        wait_for(c, rank, latest);
}

static void reach_gate(void *context, int rank, int n)
{
    struct clocks *c = context;

    drain(c, rank, UINT_MAX);
    c->list[rank].gate_at[n & 1] = c->list[rank].now;
}

static void pass_gate(void *context, int rank, int n)
{
    struct clocks *c = context;
    struct clock *k = &c->list[rank];
    int64_t time = 0;

    for (int i = 0; i < c->replay->n; i++)
        time = max_i64(time, c->list[i].gate_at[n & 1]);
    wait_until(c, rank, time, TIME_STAGES);
    k->issue = max_i64(k->issue, k->now); /* the host waits for the device here */
}

/* ---- transfers ---- */

/* The first that a transfer in flight is, or comes after, or that its collective began with: that
 * one may have ended on its rank. */
static int oldest_needed(const struct clocks *c)
{
    int oldest = c->n_times;

    for (int i = 0; i < c->replay->n; i++)
        for (int s = 0; s < N_STREAMS; s++) {
            const struct replay_queue *q = &c->replay->list[i].streams[s];

            for (int k = q->n_done; k < q->n; k++) {
                const struct replay_transfer *t = replay_at(c->replay, q->transfers[k]);

                oldest = min_int(oldest, q->transfers[k]);
                if (t->has_begun)
                    oldest = min_int(oldest, times_of(c, q->transfers[k])->first);
                for (int a = 0; a < min_int(t->n_after, ORDER_MAX_AFTER); a++)
                    oldest = min_int(oldest, t->after[a]);
            }
        }
    return oldest;
}

/* Those that have ended, in the past of their rank, if they are half of what is kept. */
static void drop_past(struct clocks *c)
{
    int oldest = oldest_needed(c), n = c->n_dropped;

    while (n < oldest && times_of(c, n)->end <= c->list[times_of(c, n)->rank].now)
        n++;
    n -= c->n_dropped;
    int n_kept = c->n_times - c->n_dropped - n;
    if (!n || n < n_kept)
        return;
    memmove(c->times, c->times + n, sizeof *c->times * (size_t)n_kept);
    c->n_dropped += n;
}

static int on_post(void *context, const struct replay_transfer *t)
{
    struct clocks *c = context;
    struct clock *k = &c->list[t->rank];
    int users[ORDER_MAX_USERS], number = number_of(c, t);
    int n = order_users(&c->replay->list[t->rank].order, t->op, t->micro_batch, users);

    if (number - c->n_dropped == c->capacity)
        drop_past(c);
    c->times =
        arena_grow(c->arena, c->times, sizeof *c->times, &c->capacity, number - c->n_dropped + 1);
    c->n_times = number + 1;
    struct times *times = times_of(c, number);
    *times = (struct times){ .end = NOT_YET,
                             .rank = t->rank,
                             .function = t->function,
                             .op = t->posted->op,
                             .micro_batch = t->micro_batch,
                             .action = c->replay->list[t->rank].action };
    issue(k, transfer_price(c, number)->issue_ns);
    times->ready = max_i64(k->now, k->issue);
    for (int i = 0; i < n; i++) {
        int before = k->last[users[i]];

        if (before != NO_TRANSFER && before >= c->n_dropped && times_of(c, before)->end != NOT_YET)
            times->ready = max_i64(times->ready, times_of(c, before)->end);
        k->last[users[i]] = number;
    }
    return 0;
}

static int on_begin(void *context, const struct replay_transfer *t,
                    const struct replay_transfer *first)
{
    struct clocks *c = context;
    struct times *times = times_of(c, number_of(c, t));
    int64_t begin = max_i64(times->ready, c->list[t->rank].stream_end[t->op->stream]);

    for (int i = 0; i < min_int(t->n_after, ORDER_MAX_AFTER); i++)
        begin = max_i64(begin, times_of(c, t->after[i])->end);
    times->begin = begin;
    times->first = number_of(c, first);
    struct times *joint = times_of(c, times->first);
    joint->all_begin = max_i64(joint->all_begin, begin);
    return 0;
}

/* The transfer takes its time from `begin` on. */
static void complete(struct clocks *c, const struct replay_transfer *t, int64_t begin, int64_t ns)
{
    int number = number_of(c, t);
    struct clock *k = &c->list[t->rank];
    struct times *times = times_of(c, number);
    double slowdown = transfer_price(c, number)->slowdown;

    times->begin = begin;
    times->end = begin + ns;
    k->stream_end[t->op->stream] = times->end;
    k->stream_last[t->op->stream] = number;
    show_transfer(c, number);
    if (slowdown <= 0 || times->end <= k->now)
        return;
    k->busy = arena_grow(c->arena, k->busy, sizeof *k->busy, &k->busy_capacity, k->n_busy + 1);
    k->busy[k->n_busy++] = (struct slow_time){ begin, times->end, slowdown };
}

static int on_end(void *context, const struct replay_transfer *t,
                  const struct replay_transfer *other)
{
    struct clocks *c = context;
    int a = number_of(c, t), b = number_of(c, other);

    if (a == b) {
        int64_t begin = times_of(c, times_of(c, a)->first)->all_begin;

        complete(c, t, begin, transfer_price(c, a)->ns);
        return 0;
    }
    int64_t begin = max_i64(times_of(c, a)->begin, times_of(c, b)->begin);
    int64_t ns = max_i64(transfer_price(c, a)->ns, transfer_price(c, b)->ns);
    complete(c, t, begin, ns);
    complete(c, other, begin, ns);
    return 0;
}

static int on_deadlock(void *context)
{
    return err_set(((struct clocks *)context)->err, ERR_FAILED,
                   "the programs of the ranks wait for each other");
}

/* ---- rounds that repeat ---- */

static void add_time(struct replay_snapshot *s, int64_t time)
{
    replay_snapshot_add(s, (int)(time & INT32_MAX));
    replay_snapshot_add(s, (int)(time >> 31));
}

static int64_t earliest(const struct clocks *c)
{
    int64_t time = c->list[0].now;

    for (int i = 1; i < c->replay->n; i++)
        time = min_i64(time, c->list[i].now);
    return time;
}

/* Whether a rank may still have to wait for it. */
static bool is_pending(const struct clocks *c, const struct clock *k, int number)
{
    return number != NO_TRANSFER && number >= c->n_dropped && times_of(c, number)->end > k->now;
}

/* Times that no event to come can be after are all alike. */
static void add_clock(const struct clocks *c, const struct clock *k, int64_t base,
                      struct replay_snapshot *s)
{
    int64_t first = earliest(c);

    add_time(s, k->now - base);
    add_time(s, max_i64(k->issue, k->now - SIMULATE_AHEAD_NS) - base);
    for (int i = 0; i < 2; i++)
        add_time(s, max_i64(k->gate_at[i], first) - base);
    for (int i = 0; i < N_STREAMS; i++)
        add_time(s, max_i64(k->stream_end[i], k->now) - base);
    for (int i = 0; i < k->n_busy; i++)
        if (k->busy[i].end > k->now) {
            add_time(s, max_i64(k->busy[i].begin, k->now) - base);
            add_time(s, k->busy[i].end - base);
        }
}

static void add_transfers(const struct clocks *c, int rank, int64_t base, struct replay_snapshot *s)
{
    const struct clock *k = &c->list[rank];
    const struct replay_rank *r = &c->replay->list[rank];
    int64_t first = earliest(c);

    for (int i = 0; i < N_STREAMS; i++)
        for (int j = r->streams[i].n_done; j < r->streams[i].n; j++) {
            const struct times *t = times_of(c, r->streams[i].transfers[j]);

            add_time(s, max_i64(t->ready, first) - base);
            add_time(s, max_i64(t->begin, first) - base);
        }
    for (int u = 0; u < r->order.n_users; u++)
        if (is_pending(c, k, k->last[u]) && times_of(c, k->last[u])->end != NOT_YET) {
            const struct times *t = times_of(c, k->last[u]);

            replay_snapshot_add(s, t->function);
            replay_snapshot_add(s, t->op);
            replay_snapshot_add_micro_batch(s, t->micro_batch);
            add_time(s, t->end - base);
        }
}

static void on_snapshot(void *context, int rank, struct replay_snapshot *s, void **kept)
{
    struct clocks *c = context;
    struct kept *mine = *kept;
    int64_t base = c->list[0].now;

    if (!mine) {
        mine = *kept = arena_array(c->arena, struct kept, 1);
        mine->of = arena_alloc_array(c->arena, sizeof *mine->of, (size_t)c->replay->n);
    }
    mine->base = base;
    for (int i = 0; i < N_TIME_CLASSES; i++)
        mine->of[rank][i] = c->list[rank].of[i];
    add_clock(c, &c->list[rank], base, s);
    add_transfers(c, rank, base, s);
}

/* Those that are pending, later: the users of their micro-batches' slots are others. */
static void move_transfers(struct clocks *c, int rank, int64_t later, int by)
{
    struct clock *k = &c->list[rank];
    const struct order *order = &c->replay->list[rank].order;
    const struct program *p = c->request->programs[rank];
    int *pending = arena_array(c->arena, int, order->n_users), n = 0, users[ORDER_MAX_USERS];

    for (int u = 0; u < order->n_users; u++) {
        int number = k->last[u], at = n;

        k->last[u] = NO_TRANSFER;
        if (!is_pending(c, k, number))
            continue;
        while (at > 0 && pending[at - 1] > number)
            at--;
        if (at > 0 && pending[at - 1] == number)
            continue;
        for (int i = n++; i > at; i--)
            pending[i] = pending[i - 1];
        pending[at] = number;
    }
    for (int i = 0; i < n; i++) {
        struct times *t = times_of(c, pending[i]);

        t->micro_batch += t->micro_batch >= 0 ? by : 0;
        t->ready += later;
        t->begin += later;
        t->all_begin += later;
        t->end += t->end == NOT_YET ? 0 : later;
        int n_users =
            order_users(order, &p->functions[t->function].ops[t->op], t->micro_batch, users);
        for (int u = 0; u < n_users; u++)
            k->last[users[u]] = pending[i];
    }
}

static void on_skip(void *context, int n_rounds, int shift, void *kept)
{
    struct clocks *c = context;
    const struct kept *since = kept;
    int64_t later = n_rounds * (c->list[0].now - since->base);

    for (int rank = 0; rank < c->replay->n; rank++) {
        struct clock *k = &c->list[rank];

        move_transfers(c, rank, later, n_rounds * shift);
        k->now += later;
        k->issue += later;
        for (int i = 0; i < 2; i++)
            k->gate_at[i] += later;
        for (int i = 0; i < N_STREAMS; i++)
            k->stream_end[i] += later;
        for (int i = 0; i < k->n_busy; i++) {
            k->busy[i].begin += later;
            k->busy[i].end += later;
        }
        for (int i = 0; i < N_TIME_CLASSES; i++)
            k->of[i] += n_rounds * (k->of[i] - since->of[rank][i]);
    }
}

/* ---- the whole ---- */

static void on_open(void *context)
{
    struct clocks *c = context;

    c->list = arena_array(c->arena, struct clock, c->replay->n);
    for (int rank = 0; rank < c->replay->n; rank++) {
        struct clock *k = &c->list[rank];
        int n_users = c->replay->list[rank].order.n_users;

        k->last = arena_array(c->arena, int, n_users);
        for (int u = 0; u < n_users; u++)
            k->last[u] = NO_TRANSFER;
        for (int s = 0; s < N_STREAMS; s++)
            k->stream_last[s] = NO_TRANSFER;
    }
}

/* The step ends when all ranks have ended. */
static void take_ranks(struct clocks *c, struct simulated_step *s)
{
    s->n_ranks = c->replay->n;
    s->n_walked = c->replay->n_walked;
    s->ranks = arena_array(c->results, struct simulated_rank, s->n_ranks);
    s->ns = 0;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        drain(c, rank, UINT_MAX);
        s->ranks[rank].end = c->list[rank].now;
        s->ns = max_i64(s->ns, c->list[rank].now);
    }
    s->busiest = 0;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        wait_until(c, rank, s->ns, TIME_STAGES);
        for (int i = 0; i < N_TIME_CLASSES; i++)
            s->ranks[rank].of[i] = c->list[rank].of[i];
        if (s->ranks[rank].of[TIME_STAGES] < s->ranks[s->busiest].of[TIME_STAGES])
            s->busiest = rank;
    }
}

int simulate(struct simulated_step *simulation, const struct simulate_request *request,
             struct arena *arena, struct err *err)
{
    struct arena scratch = { 0 };
    struct clocks clocks = { .request = request, .arena = &scratch, .results = arena, .err = err };
    const struct replay_watch watch = { &clocks, on_post, on_begin, on_end, on_deadlock };
    const struct replay_clock clock = { .context = &clocks,
                                        .on_open = on_open,
                                        .on_run = run_ops,
                                        .on_wait = wait_for_user,
                                        .on_drain = drain,
                                        .on_reach = reach_gate,
                                        .on_pass = pass_gate,
                                        .on_snapshot = on_snapshot,
                                        .on_skip = on_skip };
    struct replay replay = {
        .mesh = request->mesh, .entry = request->entry, .watch = &watch, .clock = &clock
    };

    clocks.replay = &replay;
    int status = replay_run(&replay, request->programs, request->in_full || request->watch);
    if (!status)
        take_ranks(&clocks, simulation);
    replay_release(&replay);
    arena_release(&scratch);
    return status;
}
