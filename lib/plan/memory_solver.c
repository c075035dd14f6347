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

/* Of more ways of a kind not all are tried, but parts leave by size. */
enum { N_WAYS_MAX = 4096 };

/* Sums over the first n groups of a class. */
struct group_sums {
    int64_t n_bytes, host_ns;
    struct memory_traffic traffic[N_MEMORY_PASSES];
};

struct memory_solving {
    const struct memory_problem *problem;
    struct memory_choice *choice;
    struct arena *arena;
    struct memory_sums *options;                                         /* by kind */
    const struct group_sums *prefixes[N_MEMORY_CLASSES], *host_prefixes; /* [n + 1] */
    int64_t forward_ns, backward_ns; /* of all layers and micro-batches */
};

/* The lists of one cap. */
struct way_lists {
    int64_t cap;
    struct memory_sums **of_layers; /* [chunk][layers so far] */
    struct memory_sums *of_chunks;  /* [chunks so far] */
};

/* ---- the ways of a kind ---- */

static int by_size(const void *a, const void *b, void *context)
{
    const struct memory_point *p = context;
    int64_t x = p->parts[*(const int *)a], y = p->parts[*(const int *)b];

    return x > y ? -1 : x < y;
}

static struct memory_sum way_of(const struct memory_problem *problem, const struct memory_point *p,
                                int point, uint32_t away)
{
    int64_t moved = 0;

    for (int i = 0; i < p->n_parts; i++)
        moved += away >> i & 1 ? p->parts[i] : 0;
    return (struct memory_sum){ .bytes = p->slot_bytes - moved,
                                .ns = p->added_ns,
                                .moved = moved,
                                .scratch = max_i64(problem->scratch_bytes,
                                                   p->scratch_bytes + problem->stay_copies * moved),
                                .before = point,
                                .last = (int)away };
}

/* The largest parts, one more each time; then the smallest. */
static int list_by_size(const struct memory_problem *problem, const struct memory_point *p,
                        int point, struct memory_sum *ways)
{
    int order[MEMORY_PARTS_MAX], n = 0;
    uint32_t largest = 0, smallest = 0;

    for (int i = 0; i < p->n_parts; i++)
        order[i] = i;
    qsort_r(order, (size_t)p->n_parts, sizeof *order, by_size, (void *)(uintptr_t)p);
    ways[n++] = way_of(problem, p, point, 0);
    for (int i = 0; i < p->n_parts; i++) {
        largest |= (uint32_t)1 << order[i];
        smallest |= (uint32_t)1 << order[p->n_parts - 1 - i];
        ways[n++] = way_of(problem, p, point, largest);
        ways[n++] = way_of(problem, p, point, smallest);
    }
    return n;
}

static int list_all(const struct memory_problem *problem, const struct memory_point *p, int point,
                    struct memory_sum *ways)
{
    uint32_t n = problem->may_move_parts ? (uint32_t)1 << p->n_parts : 1;

    for (uint32_t away = 0; away < n; away++)
        ways[away] = way_of(problem, p, point, away);
    return (int)n;
}

static struct memory_sums list_options(const struct memory_solving *s,
                                       const struct memory_layer_kind *kind)
{
    struct arena scratch = { 0 };
    int64_t n_all = 0, n_by_size = 0;
    int n = 0;

    for (int i = 0; i < kind->n_points; i++) {
        CHECK(kind->points[i].n_parts <= MEMORY_PARTS_MAX);
        n_all += s->problem->may_move_parts ? (int64_t)1 << kind->points[i].n_parts : 1;
        n_by_size += 2 * kind->points[i].n_parts + 1;
    }
    bool is_partial = n_all > N_WAYS_MAX;
    struct memory_sum *ways =
        arena_array(&scratch, struct memory_sum, is_partial ? n_by_size : n_all);
    for (int i = 0; i < kind->n_points; i++)
        n += (is_partial ? list_by_size : list_all)(s->problem, &kind->points[i], i, ways + n);
    struct memory_sums options = memory_sums_best(ways, n, true, MEMORY_OPTIONS_MAX, s->arena);
    options.is_thinned |= is_partial;
    arena_release(&scratch);
    return options;
}

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

/* What fits is better, then what is faster and moves less; where nothing fits, what is smaller. */
static bool is_better(const struct memory_choice *a, const struct best_way *b)
{
    if (!b->is_any || a->fits != b->of.fits)
        return !b->is_any || a->fits;
    if (a->fits && a->ns != b->of.ns)
        return a->ns < b->of.ns;
    if (a->fits && a->moved_bytes != b->of.moved_bytes)
        return a->moved_bytes < b->of.moved_bytes;
    return a->bytes < b->of.bytes;
}

static void try_way(const struct memory_solving *s, const struct rank_way *way,
                    struct best_way *best)
{
    struct memory_choice tried = { .bytes = bytes_of(s, way) };

    tried.fits = tried.bytes <= s->problem->budget_bytes;
    time_way(s, way, &tried);
    if (!is_better(&tried, best))
        return;
    *best = (struct best_way){ *way, tried, true };
}

/* With as many groups of states away as are necessary. */
static void try_states(const struct memory_solving *s, struct rank_way way, struct best_way *best)
{
    const struct memory_problem *p = s->problem;
    int n = p->groups[MEMORY_STATES].n;

    if (best->is_any && best->of.fits && p->n_micro_batches * way.layers->ns > best->of.ns)
        return;
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
}

static struct best_way best_of(const struct memory_solving *s, const struct memory_sums *sums,
                               int64_t scratch)
{
    const struct memory_groups *groups = s->problem->groups;
    struct best_way best = { .is_any = false };
    struct rank_way way = { .scratch = scratch };

    for (int g = 0; g <= groups[MEMORY_GRADIENTS].n; g++)
        for (int w = 0; w <= groups[MEMORY_WEIGHTS].n; w++) {
            way.n_away[MEMORY_GRADIENTS] = g;
            way.n_away[MEMORY_WEIGHTS] = w;
            for (int i = 0; i < sums->n; i++) {
                way.layers = &sums->items[i];
                try_states(s, way, &best);
            }
        }
    return best;
}

/* ---- lists by scratch ---- */

static void make_lists(const struct memory_solving *s, struct way_lists *lists, int64_t cap,
                       struct arena *arena)
{
    const struct memory_problem *p = s->problem;

    lists->cap = cap;
    lists->of_layers = arena_array(arena, struct memory_sums *, p->n_chunks);
    lists->of_chunks = arena_array(arena, struct memory_sums, p->n_chunks + 1);
    lists->of_chunks[0] = (struct memory_sums){ arena_new(arena, struct memory_sum), 1, false };
    for (int c = 0; c < p->n_chunks; c++) {
        const struct memory_chunk *chunk = &p->chunks[c];
        struct memory_sums *of = arena_array(arena, struct memory_sums, chunk->n_layers + 1);

        of[0] = (struct memory_sums){ arena_new(arena, struct memory_sum), 1, false };
        of[0].items[0].bytes = chunk->slot_bytes;
        for (int i = 0; i < chunk->n_layers; i++)
            of[i + 1] = memory_sums_add(&of[i], &s->options[chunk->kind_of_layer[i]], cap,
                                        MEMORY_SUMS_MAX, arena);
        lists->of_layers[c] = of;
        lists->of_chunks[c + 1] =
            memory_sums_join(&lists->of_chunks[c], &of[chunk->n_layers], MEMORY_SUMS_MAX, arena);
    }
}

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x > y ? -1 : x < y;
}

static bool is_used(const struct memory_problem *p, int kind)
{
    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++)
            if (p->chunks[c].kind_of_layer[i] == kind)
                return true;
    return false;
}

/* All amounts of scratch that the rank may have, from the largest on; none below the floor, or
 * below what a kind has at least. */
static int list_caps(const struct memory_solving *s, int64_t **caps, struct arena *arena)
{
    const struct memory_problem *p = s->problem;
    int64_t least = p->scratch_bytes;
    int n = 0, n_left = 0;

    for (int k = 0; k < p->n_kinds; k++) {
        int64_t of_kind = INT64_MAX;

        if (!is_used(p, k))
            s->options[k].n = 0;
        n += s->options[k].n;
        for (int i = 0; i < s->options[k].n; i++)
            of_kind = min_i64(of_kind, s->options[k].items[i].scratch);
        least = max_i64(least, s->options[k].n ? of_kind : 0);
    }
    *caps = arena_array(arena, int64_t, n + 1);
    (*caps)[n_left++] = least;
    for (int k = 0; k < p->n_kinds; k++)
        for (int i = 0; i < s->options[k].n; i++)
            if (s->options[k].items[i].scratch > least)
                (*caps)[n_left++] = s->options[k].items[i].scratch;
    qsort(*caps, (size_t)n_left, sizeof **caps, descending);
    n = 0;
    for (int i = 0; i < n_left; i++)
        if (!i || (*caps)[i] != (*caps)[n - 1])
            (*caps)[n++] = (*caps)[i];
    return n;
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
            const struct memory_sum *option = &s->options[chunk->kind_of_layer[i]].items[sum->last];

            layers[c][i] = (struct memory_layer_choice){ option->before, (uint32_t)option->last };
            in_chunk = sum->before;
        }
        order_layers(s, chunk, layers[c]);
        at = of_chunks->before;
    }
    s->choice->layers = layers;
}

static void take_best(const struct memory_solving *s, const struct way_lists *lists,
                      const struct best_way *best)
{
    const struct memory_sums *sums = &lists->of_chunks[s->problem->n_chunks];

    *s->choice = best->of;
    memcpy(s->choice->n_away, best->way.n_away, sizeof best->way.n_away);
    s->choice->is_host_update = best->way.is_host_update;
    take_layers(s, lists, (int)(best->way.layers - sums->items));
}

static void prepare(struct memory_solving *s)
{
    const struct memory_problem *p = s->problem;

    s->options = arena_array(s->arena, struct memory_sums, p->n_kinds);
    for (int k = 0; k < p->n_kinds; k++)
        s->options[k] = list_options(s, &p->kinds[k]);
    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        s->prefixes[class] = sum_groups(&p->groups[class], false, s->arena);
    s->host_prefixes = sum_groups(&p->groups[MEMORY_STATES], true, s->arena);
    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++) {
            const struct memory_layer_kind *kind = &p->kinds[p->chunks[c].kind_of_layer[i]];

            s->forward_ns += p->n_micro_batches * kind->forward_ns;
            s->backward_ns += p->n_micro_batches * kind->backward_ns;
        }
}

void memory_solve(struct memory_choice *choice, const struct memory_problem *problem,
                  struct arena *arena)
{
    struct arena kept = { 0 };
    struct memory_solving s = { .problem = problem, .choice = choice, .arena = arena };
    struct way_lists all, lists;
    struct best_way best;
    int64_t *caps;

    prepare(&s);
    int n_caps = list_caps(&s, &caps, &kept);
    make_lists(&s, &all, caps[0], &kept);
    const struct memory_sums *sums = &all.of_chunks[problem->n_chunks];
    best = best_of(&s, sums, caps[0]);
    take_best(&s, &all, &best);
    choice->is_thinned = sums->is_thinned;
    for (int i = 1; i < n_caps; i++) {
        struct arena once = { 0 };
        struct best_way bound = best_of(&s, sums, caps[i]);

        if (!is_better(&bound.of, &best))
            continue;
        make_lists(&s, &lists, caps[i], &once);
        struct best_way found = best_of(&s, &lists.of_chunks[problem->n_chunks], caps[i]);
        bool is_thinned = choice->is_thinned | lists.of_chunks[problem->n_chunks].is_thinned;
        if (is_better(&found.of, &best)) {
            best = found;
            take_best(&s, &lists, &best);
        }
        choice->is_thinned = is_thinned;
        arena_release(&once);
    }
    arena_release(&kept);
}
