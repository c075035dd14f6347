/*
 * memory_solver.c - the best of all ways to keep, recompute and move a rank's values
 *
 * The layer with the most scratch counts, and not a sum, so scratch is no member of the lists: they
 * are made once for each amount that a layer may have (cap), of the ways that have no more. The
 * first list is of all ways; with less scratch left to it, it is a bound for a smaller cap, which
 * is nearly always worse than what is known.
 */
#include "plan/memory_solver.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/num.h"
#include "plan/memory_sums_impl.h"

/* Of thinned lists: rounds of exchanges; smaller caps that gave nothing, though they might have. */
enum { N_ROUNDS_MAX = 64, N_IN_VAIN_MAX = 2 };

/* Sums over the first n groups of a class. */
struct group_sums {
    int64_t n_bytes, host_ns;
    struct memory_traffic traffic[N_MEMORY_PASSES];
};

struct memory_solving {
    const struct memory_problem *problem;
    struct memory_choice *choice;
    struct arena *arena;
    const struct memory_sums *options;                                   /* all, by kind */
    const struct group_sums *prefixes[N_MEMORY_CLASSES], *host_prefixes; /* [n + 1] */
    int64_t forward_ns, backward_ns; /* of all layers and micro-batches */
};

/* ---- sums over groups ---- */

static void add_traffic(struct memory_traffic *sum, const struct memory_traffic *more)
{
    for (int i = 0; i < N_MEMORY_PASSES; i++) {
        sum[i].out += more[i].out;
        sum[i].in += more[i].in;
    }
}

static const struct group_sums *sum_groups(const struct memory_groups *groups, bool on_host,
                                           struct arena *arena)
{
    struct group_sums *prefixes = arena_array(arena, struct group_sums, groups->n + 1);

    for (int i = 0; i < groups->n; i++) {
        const struct memory_group *g = &groups->items[i];

        prefixes[i + 1] = prefixes[i];
        prefixes[i + 1].n_bytes += g->n_bytes;
        prefixes[i + 1].host_ns += on_host ? g->host_ns : 0;
        add_traffic(prefixes[i + 1].traffic, on_host ? g->host_traffic : g->traffic);
    }
    return prefixes;
}

static int64_t saved_bytes(const struct memory_solving *s, enum memory_class class, int n)
{
    return n ? s->prefixes[class][n].n_bytes - s->problem->groups[class].buffer_bytes : 0;
}

/* The fewest groups that save so much; more than there are: they cannot. */
static int groups_for(const struct memory_solving *s, enum memory_class class, int64_t n_bytes)
{
    int low = 1, high = s->problem->groups[class].n + 1;

    if (n_bytes <= 0)
        return 0;
    while (low < high) {
        int middle = (low + high) / 2;

        if (saved_bytes(s, class, middle) >= n_bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- what a way takes ---- */

/* Of a whole rank. */
struct rank_way {
    const struct memory_sum *layers;
    int n_away[N_MEMORY_CLASSES];
    bool is_host_update;
    int64_t scratch; /* of the layer that has most, at most */
};

static int64_t bytes_of(const struct memory_solving *s, const struct rank_way *way)
{
    const struct memory_problem *p = s->problem;
    int64_t bytes = p->resident_bytes + p->n_slots * way->layers->bytes +
                    max_i64(p->scratch_bytes, way->scratch);

    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        bytes -= saved_bytes(s, (enum memory_class) class, way->n_away[class]);
    return bytes;
}

static const struct group_sums *prefix_of(const struct memory_solving *s,
                                          const struct rank_way *way, int class)
{
    const struct group_sums *of =
        class == MEMORY_STATES && way->is_host_update ? s->host_prefixes : s->prefixes[class];

    return &of[way->n_away[class]];
}

/* Fills what of the choice is time. */
static void time_way(const struct memory_solving *s, const struct rank_way *way,
                     struct memory_choice *c)
{
    const struct memory_problem *p = s->problem;
    struct memory_traffic traffic[N_MEMORY_PASSES] = { 0 };
    int64_t moved = p->n_micro_batches * way->layers->moved;
    int64_t recompute = p->n_micro_batches * way->layers->ns;
    int64_t hides[] = { s->forward_ns, s->backward_ns + recompute, p->update_ns };

    c->recompute_ns = recompute;
    c->host_ns = 0;
    traffic[MEMORY_FORWARD].out = traffic[MEMORY_BACKWARD].in = moved;
    for (int class = 0; class < N_MEMORY_CLASSES; class ++) {
        const struct group_sums *of = prefix_of(s, way, class);

        add_traffic(traffic, of->traffic);
        c->host_ns += of->host_ns;
    }
    hides[MEMORY_UPDATE] += c->host_ns;
    c->ns = c->recompute_ns + c->host_ns;
    for (int i = 0; i < N_MEMORY_PASSES; i++) {
        double out = (double)traffic[i].out * p->out_ns, in = (double)traffic[i].in * p->in_ns;

        c->stall_ns[i] = max_i64(0, (int64_t)(out > in ? out : in) - hides[i]);
        c->ns += c->stall_ns[i];
        c->moved_bytes += traffic[i].out + traffic[i].in;
    }
}

/* ---- the best of a list ---- */

struct best_way {
    struct rank_way way;
    struct memory_choice of; /* its times and bytes */
    bool is_any;
};

/* What fits is better, then what is faster and moves less; where nothing fits, what is smaller,
 * then faster. */
static bool is_better(const struct memory_choice *a, const struct best_way *b)
{
    if (!b->is_any || a->fits != b->of.fits)
        return !b->is_any || a->fits;
    if (a->fits && a->ns != b->of.ns)
        return a->ns < b->of.ns;
    if (a->fits && a->moved_bytes != b->of.moved_bytes)
        return a->moved_bytes < b->of.moved_bytes;
    if (a->bytes != b->of.bytes)
        return a->bytes < b->of.bytes;
    return a->ns < b->of.ns;
}

static bool host_has_room(const struct memory_solving *s, const struct rank_way *way)
{
    int64_t limit = s->problem->host_budget_bytes, n_bytes = 0;

    for (int class = 0; limit && class < N_MEMORY_CLASSES; class ++)
        n_bytes += prefix_of(s, way, class)->n_bytes;
    return n_bytes <= limit;
}

static void try_way(const struct memory_solving *s, const struct rank_way *way,
                    struct best_way *best)
{
    struct memory_choice tried = { .bytes = bytes_of(s, way) };

    tried.fits = tried.bytes <= s->problem->budget_bytes && host_has_room(s, way);
    time_way(s, way, &tried);
    if (!is_better(&tried, best))
        return;
    *best = (struct best_way){ *way, tried, true };
}

/* With as many groups of states away as are necessary. Returns whether that fits. */
static bool try_states(const struct memory_solving *s, struct rank_way way, struct best_way *best)
{
    const struct memory_problem *p = s->problem;
    int n = p->groups[MEMORY_STATES].n;

    way.n_away[MEMORY_STATES] = 0;
    int needed = groups_for(s, MEMORY_STATES, bytes_of(s, &way) - p->budget_bytes);
    if (needed > n)
        needed = saved_bytes(s, MEMORY_STATES, n) > 0 ? n : 0;
    way.n_away[MEMORY_STATES] = needed;
    for (int on_host = 0; on_host < 2; on_host++) {
        way.is_host_update = on_host;
        if (needed ? on_host ? p->may_update_on_host : p->may_update_on_device : !on_host)
            try_way(s, &way, best);
    }
    return bytes_of(s, &way) <= p->budget_bytes;
}

/* Each sum of layers with these groups of gradients and weights. More of anything that travels, or
 * is recomputed, takes no less time. */
static void try_counts(const struct memory_solving *s, const struct memory_sums *sums,
                       struct rank_way way, struct best_way *best)
{
    const struct memory_sum nothing = { .bytes = 0 };
    struct memory_choice least = { .ns = 0 };

    way.layers = &nothing;
    time_way(s, &way, &least);
    for (int i = 0; i < sums->n; i++) {
        int64_t ns = s->problem->n_micro_batches * sums->items[i].ns +
                     least.stall_ns[MEMORY_FORWARD] + least.stall_ns[MEMORY_UPDATE];

        if (best->is_any && best->of.fits && max_i64(ns, least.ns) > best->of.ns)
            continue;
        way.layers = &sums->items[i];
        /* The sums after it have more bytes. */
        if (!try_states(s, way, best))
            break;
    }
}

/* Numbers of groups: first, first + step, ..., last. */
struct count_range {
    int first, last, step;
};

static int count_after(const struct count_range *range, int n)
{
    return n < range->last ? min_int(n + range->step, range->last) : n + 1;
}

static void try_ranges(const struct memory_solving *s, const struct memory_sums *sums,
                       int64_t scratch, const struct count_range ranges[N_MEMORY_CLASSES],
                       struct best_way *best)
{
    const struct count_range *g = &ranges[MEMORY_GRADIENTS], *w = &ranges[MEMORY_WEIGHTS];
    struct rank_way way = { .scratch = scratch };

    for (int i = g->first; i <= g->last; i = count_after(g, i))
        for (int k = w->first; k <= w->last; k = count_after(w, k)) {
            way.n_away[MEMORY_GRADIENTS] = i;
            way.n_away[MEMORY_WEIGHTS] = k;
            try_counts(s, sums, way, best);
        }
}

static int count_step(const struct memory_solving *s, enum memory_class class)
{
    return 1 + s->problem->groups[class].n / MEMORY_COUNTS_MAX;
}

/* Of many groups some numbers, and then all about the best of those. */
static struct best_way best_of(const struct memory_solving *s, const struct memory_sums *sums,
                               int64_t scratch)
{
    struct best_way best = { .is_any = false };
    struct count_range ranges[N_MEMORY_CLASSES];
    bool is_coarse = false;

    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        ranges[class] = (struct count_range){ 0, s->problem->groups[class].n,
                                              count_step(s, (enum memory_class) class) };
    try_ranges(s, sums, scratch, ranges, &best);
    for (int class = MEMORY_GRADIENTS; class < N_MEMORY_CLASSES; class ++) {
        struct count_range *r = &ranges[class];

        is_coarse |= r->step > 1;
        *r = (struct count_range){ max_int(0, best.way.n_away[class] - r->step),
                                   min_int(r->last, best.way.n_away[class] + r->step), 1 };
    }
    if (is_coarse)
        try_ranges(s, sums, scratch, ranges, &best);
    return best;
}

/* ---- the answer ---- */

/* Those of one kind that recompute more come first. */
static void order_layers(const struct memory_solving *s, const struct memory_chunk *chunk,
                         struct memory_layer_choice *layers)
{
    for (int i = 1; i < chunk->n_layers; i++)
        for (int j = i, k = i - 1; k >= 0; k--) {
            const struct memory_layer_kind *kind = &s->problem->kinds[chunk->kind_of_layer[i]];

            if (chunk->kind_of_layer[k] != chunk->kind_of_layer[i])
                continue;
            if (kind->points[layers[k].point].added_ns >= kind->points[layers[j].point].added_ns)
                break;
            struct memory_layer_choice later = layers[k];
            layers[k] = layers[j];
            layers[j] = later;
            j = k;
        }
}

static void take_layers(const struct memory_solving *s, const struct way_lists *lists, int at)
{
    const struct memory_problem *p = s->problem;
    struct memory_layer_choice **layers =
        arena_array(s->arena, struct memory_layer_choice *, p->n_chunks);

    for (int c = p->n_chunks - 1; c >= 0; c--) {
        const struct memory_chunk *chunk = &p->chunks[c];
        const struct memory_sum *of_chunks = &lists->of_chunks[c + 1].items[at];
        int in_chunk = of_chunks->last;

        layers[c] = arena_array(s->arena, struct memory_layer_choice, chunk->n_layers);
        for (int i = chunk->n_layers - 1; i >= 0; i--) {
            const struct memory_sum *sum = &lists->of_layers[c][i + 1].items[in_chunk];
            const struct memory_sum *option =
                &lists->options[chunk->kind_of_layer[i]].items[sum->last];

            layers[c][i] = (struct memory_layer_choice){ option->before, (uint32_t)option->last };
            in_chunk = sum->before;
        }
        at = of_chunks->before;
    }
    s->choice->layers = layers;
}

/* ---- where lists were thinned: exchanges ---- */

/* A choice as it is changed: the slot of each chunk, and the sum of all. */
struct exchanging {
    const struct memory_solving *s;
    struct best_way best;
    int64_t *slots; /* by chunk */
    struct memory_sum sum;
};

static struct memory_sum sum_with(const struct exchanging *e, int chunk,
                                  const struct memory_sum *from, const struct memory_sum *to)
{
    struct memory_sum sum = { .bytes = 0,
                              .ns = e->sum.ns + to->ns - from->ns,
                              .moved = e->sum.moved + to->moved - from->moved };

    for (int c = 0; c < e->s->problem->n_chunks; c++)
        sum.bytes = max_i64(sum.bytes, e->slots[c] + (c == chunk ? to->bytes - from->bytes : 0));
    return sum;
}

static struct memory_sum way_of_layer(const struct memory_solving *s, int chunk, int i)
{
    const struct memory_layer_choice *l = &s->choice->layers[chunk][i];
    int kind = s->problem->chunks[chunk].kind_of_layer[i];

    return memory_sum_of(s->problem, &s->problem->kinds[kind], l->point, l->away);
}

/* Give the layer the way with which the rank is best. Returns whether it is better than before. */
static bool exchange_layer(struct exchanging *e, int chunk, int i)
{
    const struct memory_solving *s = e->s;
    const struct memory_sums *options = &s->options[s->problem->chunks[chunk].kind_of_layer[i]];
    const struct memory_sum from = way_of_layer(s, chunk, i), *to = NULL;

    for (int o = 0; o < options->n; o++) {
        if (options->items[o].scratch > e->best.way.scratch)
            continue;
        struct memory_sum sum = sum_with(e, chunk, &from, &options->items[o]);
        struct rank_way way = e->best.way;
        struct best_way tried = { .is_any = false };

        way.layers = &sum;
        try_way(s, &way, &tried);
        if (!is_better(&tried.of, &e->best))
            continue;
        e->best.of = tried.of;
        to = &options->items[o];
    }
    if (!to)
        return false;
    e->sum = sum_with(e, chunk, &from, to);
    e->slots[chunk] += to->bytes - from.bytes;
    s->choice->layers[chunk][i] = (struct memory_layer_choice){ to->before, (uint32_t)to->last };
    return true;
}

/* Layer by layer, until none is better with another way. Groups stay as they are. */
static void exchange(const struct memory_solving *s, struct best_way *best)
{
    const struct memory_problem *p = s->problem;
    struct exchanging e = { .s = s,
                            .best = *best,
                            .slots = arena_array(s->arena, int64_t, p->n_chunks),
                            .sum = *best->way.layers };
    bool is_better_now = true;

    for (int c = 0; c < p->n_chunks; c++) {
        e.slots[c] = p->chunks[c].slot_bytes;
        for (int i = 0; i < p->chunks[c].n_layers; i++)
            e.slots[c] += way_of_layer(s, c, i).bytes;
    }
    for (int round = 0; round < N_ROUNDS_MAX && is_better_now; round++) {
        is_better_now = false;
        for (int c = 0; c < p->n_chunks; c++)
            for (int i = 0; i < p->chunks[c].n_layers; i++)
                is_better_now |= exchange_layer(&e, c, i);
    }
    *best = e.best;
}

static void take_best(const struct memory_solving *s, const struct way_lists *lists,
                      struct best_way *best)
{
    const struct memory_sums *sums = &lists->of_chunks[s->problem->n_chunks];

    take_layers(s, lists, (int)(best->way.layers - sums->items));
    if (sums->is_thinned)
        exchange(s, best);
    for (int c = 0; c < s->problem->n_chunks; c++)
        order_layers(s, &s->problem->chunks[c], s->choice->layers[c]);
    best->of.layers = s->choice->layers;
    best->of.is_thinned = sums->is_thinned || count_step(s, MEMORY_GRADIENTS) > 1 ||
                          count_step(s, MEMORY_WEIGHTS) > 1;
    *s->choice = best->of;
    memcpy(s->choice->n_away, best->way.n_away, sizeof best->way.n_away);
    s->choice->is_host_update = best->way.is_host_update;
}

static void prepare(struct memory_solving *s)
{
    const struct memory_problem *p = s->problem;

    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        s->prefixes[class] = sum_groups(&p->groups[class], false, s->arena);
    s->host_prefixes = sum_groups(&p->groups[MEMORY_STATES], true, s->arena);
    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++) {
            const struct memory_layer_kind *kind = &p->kinds[p->chunks[c].kind_of_layer[i]];

            int64_t n = p->n_micro_batches * (int64_t)max_int(1, kind->n_alike);

            s->forward_ns += n * kind->forward_ns;
            s->backward_ns += n * kind->backward_ns;
        }
}

/* Whether a smaller cap, of which this is a bound, may give more than less to move. */
static bool may_be_better(const struct memory_choice *bound, const struct memory_choice *best)
{
    if (!best->fits || !bound->fits)
        return bound->fits || (!best->fits && bound->bytes < best->bytes);
    return bound->ns < best->ns;
}

void memory_solve(struct memory_choice *choice, const struct memory_problem *problem,
                  struct arena *arena)
{
    struct arena once = { 0 };
    struct memory_lists *all = problem->lists ? problem->lists : memory_lists_open(problem, &once);
    struct memory_solving s = {
        .problem = problem, .choice = choice, .arena = arena, .options = all->options
    };
    const struct way_lists *lists = memory_lists_of(all, 0);
    const struct memory_sums *sums = &lists->of_chunks[problem->n_chunks];

    prepare(&s);
    struct best_way best = best_of(&s, sums, all->caps[0]);
    take_best(&s, lists, &best);
    for (int i = 1, n_in_vain = 0; i < all->n_caps && n_in_vain < N_IN_VAIN_MAX; i++) {
        struct best_way bound = best_of(&s, sums, all->caps[i]);

        if (!may_be_better(&bound.of, &best.of))
            continue;
        lists = memory_lists_of(all, i);
        struct best_way found = best_of(&s, &lists->of_chunks[problem->n_chunks], all->caps[i]);
        bool is_thinned = choice->is_thinned || lists->of_chunks[problem->n_chunks].is_thinned;
        if (is_better(&found.of, &best)) {
            best = found;
            take_best(&s, lists, &best);
        } else if (is_thinned) {
            n_in_vain++;
        }
        choice->is_thinned = is_thinned;
    }
    arena_release(&once);
}
