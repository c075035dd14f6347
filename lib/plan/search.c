/*
 * search.c - bounds, estimates in their order, and predictions of the best
 */
#include "plan/search.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "plan/fit.h"
#include "plan/islands.h"
#include "plan/search_impl.h"
#include "plan/step_time.h"
#include "program/passes.h"

/* Predicted beyond the rows that are wanted, as predictions may change their order. */
enum { N_SPARE = 2 };

/* Bytes by the costs of layers may be above what programs need by so much. */
#define BYTES_SLACK 1.25

/* ---- which of two equal layouts is simpler ---- */

static int count_axes(const struct layout *l)
{
    return (l->tp > 1) + (l->pp > 1) + (l->dp > 1) + (l->cp > 1) + (l->ep > 1);
}

static int compare_simple(const struct cluster *cluster, const struct layout *a,
                          const struct layout *b)
{
    int domain = cluster->islands[0].fast_domain;
    const int of_a[] = { layout_n_ranks(a), count_axes(a), a->tp > domain, a->pp, a->zero > 2 };
    const int of_b[] = { layout_n_ranks(b), count_axes(b), b->tp > domain, b->pp, b->zero > 2 };

    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
        if (of_a[i] != of_b[i])
            return of_a[i] < of_b[i] ? -1 : 1;
    return layout_compare(a, b);
}

/* ---- order ---- */

static int compare_times(int64_t a_ns, int a_weight, int64_t b_ns, int b_weight)
{
    int64_t a = a_ns * a_weight, b = b_ns * b_weight;

    return (a > b) - (a < b);
}

static int by_bound(const void *pa, const void *pb)
{
    const struct layout_candidate *a = pa, *b = pb;
    int times = compare_times(a->bound_ns, a->weight, b->bound_ns, b->weight);

    if (times)
        return times;
    int axes = count_axes(&a->layout) - count_axes(&b->layout);
    return axes ? axes : layout_compare(&a->layout, &b->layout);
}

static int by_estimate(const void *pa, const void *pb)
{
    const struct layout_candidate *a = pa, *b = pb;
    int times = compare_times(a->estimate_ns, a->weight, b->estimate_ns, b->weight);

    return times ? times : by_bound(pa, pb);
}

static int by_time(const void *pa, const void *pb)
{
    const struct search_row *a = pa, *b = pb;
    int times = compare_times(a->ns, a->weight, b->ns, b->weight);

    return times ? times : layout_compare(&a->layout, &b->layout);
}

/* ---- estimates ---- */

/* The best so far, in order; of layouts that differ in the bucket alone, the better one. */
struct best {
    struct layout_candidate **items;
    int n, most;
};

static bool is_but_bucket(const struct layout *a, const struct layout *b)
{
    struct layout same = *b;

    same.bucket_mb = a->bucket_mb;
    return !layout_compare(a, &same);
}

static void keep(struct best *best, struct layout_candidate *c)
{
    int at = best->n, from;

    for (from = 0; from < best->n; from++)
        if (is_but_bucket(&c->layout, &best->items[from]->layout))
            break;
    while (at > 0 && by_estimate(c, best->items[at - 1]) < 0)
        at--;
    /* Its other bucket is there, and before it; or there are better ones enough. */
    if (from < at || at == best->most)
        return;
    if (from == best->n && best->n < best->most)
        best->n++;
    from = min_int(from, best->n - 1);
    memmove(&best->items[at + 1], &best->items[at], sizeof *best->items * (size_t)(from - at));
    best->items[at] = c;
}

/* Whether the layout can still be among the best. */
static bool may_be_kept(const struct best *best, const struct layout_candidate *c)
{
    const struct layout_candidate *last = best->n ? best->items[best->n - 1] : NULL;

    return best->n < best->most ||
           compare_times(c->bound_ns, c->weight, last->estimate_ns, last->weight) < 0;
}

static void note_smallest(struct search_result *result, const struct layout_candidate *c,
                          size_t n_bytes)
{
    if (result->smallest_bytes && n_bytes >= result->smallest_bytes)
        return;
    result->smallest = c->layout;
    result->smallest_bytes = n_bytes;
}

/* Bounds of all; those that are possible first, in order. */
static int bound_all(struct search *search, struct candidates *all, struct search_result *result)
{
    int n = 0;

    search_prepare(search, all->items, all->n, true);
    for (int i = 0; i < all->n; i++) {
        struct layout_candidate c = all->items[i];

        if (!search_bound(search, &c))
            continue;
        result->n_layouts++;
        all->items[n++] = c;
    }
    all->n = n;
    if (n)
        qsort(all->items, (size_t)n, sizeof *all->items, by_bound);
    return n;
}

static size_t largest_bytes(const struct layout_candidate *c)
{
    return c->bound_bytes > c->estimate_bytes ? c->bound_bytes : c->estimate_bytes;
}

static bool is_too_large(const struct search *search, const struct layout_candidate *c)
{
    if (c->is_measured)
        return c->is_misfit || c->estimate_bytes > search->available;
    return c->is_misfit || c->bound_bytes > search->available ||
           (double)c->estimate_bytes > (double)search->available * BYTES_SLACK;
}

/* Before the estimates of so many candidates, what those need that may be kept then is compiled. */
enum { N_PREPARED = 64 };

static void prepare_estimates(struct search *search, const struct candidates *all, int first,
                              const struct best *best)
{
    struct layout_candidate needed[N_PREPARED];
    int n = 0;

    for (int i = first; i < min_int(all->n, first + N_PREPARED); i++) {
        const struct layout_candidate *c = &all->items[i];

        if (!is_too_large(search, c) && !c->is_estimated &&
            (search->request->in_full || may_be_kept(best, c)))
            needed[n++] = *c;
    }
    search_prepare(search, needed, n, false);
}

/* Called again when one of the best does not fit. */
static void estimate_best(struct search *search, struct candidates *all, struct best *best,
                          struct search_result *result)
{
    result->n_bounded = result->n_misfits = result->n_estimated = best->n = 0;
    for (int i = 0; i < all->n; i++) {
        struct layout_candidate *c = &all->items[i];

        if (i % N_PREPARED == 0)
            prepare_estimates(search, all, i, best);
        if (!search->request->in_full && !may_be_kept(best, c)) {
            result->n_bounded++;
            continue;
        }
        if (!is_too_large(search, c) && !c->is_estimated)
            c->is_estimated = search_estimate(search, c);
        note_smallest(result, c, largest_bytes(c));
        if (is_too_large(search, c)) {
            result->n_misfits++;
        } else if (c->is_estimated) {
            result->n_estimated++;
            keep(best, c);
        }
    }
}

/* ---- predictions ---- */

static int predict_time(const struct search_request *r, const struct plan *plan,
                        struct search_row *row, struct arena *arena, struct err *err)
{
    struct step_time time;

    if (step_time_predict(&time, plan, r->cluster, arena, err))
        return -1;
    const struct simulated_step *s = &time.simulated;
    row->ns = time.ns;
    row->mfu = time.mfu;
    row->tokens_per_second = time.tokens_per_second;
    row->bubble = (double)s->ranks[s->busiest].of[TIME_STAGES] / (double)time.ns;
    return 0;
}

/* Whether each rank's devices have room, and as much of it as the job allows. */
static bool fits(const struct search *search, const struct plan *plan,
                 const struct plan_fit *judged)
{
    const struct mesh mesh = job_mesh(plan->job);
    bool is_within = judged->fits;

    for (int rank = 0; rank < plan->job->parallel.pp; rank++)
        is_within &= program_space_bytes(&plan->programs[rank], SPACE_DEVICE) <=
                     search_available(search, &mesh, rank);
    return is_within;
}

/* The whole job with this layout, as `lmtrain plan` compiles it, and simulates it if it fits. */
static int predict(const struct search *search, const struct layout_candidate *c,
                   struct search_row *row, struct err *err)
{
    const struct search_request *r = search->request;
    struct job job = *r->job;
    struct arena arena = { 0 };
    struct plan plan = { .job = &job };

    *row = (struct search_row){ .layout = c->layout,
                                .weight = c->weight,
                                .bound_ns = c->bound_ns,
                                .estimate_ns = c->estimate_ns,
                                .estimate_bytes = c->estimate_bytes };
    layout_apply(&job, &c->layout);
    search_give_choice(c, &job);
    job.rates = r->cluster;
    int status = job_resolve(&job, layout_n_ranks(&c->layout), &arena, err);
    if (!status)
        status = plan_open_with(&plan, &job, r->kernels, err);
    if (!status) {
        struct plan_fit judged = plan_judge(&plan, r->cluster, r->memory_share);

        row->bytes = judged.needed;
        row->fits = fits(search, &plan, &judged);
        if (row->fits)
            status = predict_time(r, &plan, row, &arena, err);
    }
    if (c->choice) {
        row->recompute_ns = c->choice->recompute_ns;
        row->moved_bytes = c->choice->moved_bytes;
    }
    plan_close(&plan);
    arena_release(&arena);
    return status;
}

double search_cost(const struct search_row *row)
{
    return (double)row->ns * row->weight;
}

/* The simplest of those that are as fast as the fastest comes first. */
static void choose_first(const struct search_request *r, struct search_result *result)
{
    int first = 0;

    for (int i = 1; i < result->n_rows; i++)
        if (search_cost(&result->rows[i]) <= search_cost(&result->rows[0]) * (1 + r->within) &&
            compare_simple(r->cluster, &result->rows[i].layout, &result->rows[first].layout) < 0)
            first = i;
    struct search_row row = result->rows[first];
    memmove(&result->rows[1], result->rows, sizeof row * (size_t)first);
    result->rows[0] = row;
}

static bool has_row(const struct search_result *result, const struct layout *l)
{
    for (int i = 0; i < result->n_rows; i++)
        if (!layout_compare(&result->rows[i].layout, l))
            return true;
    return false;
}

/* ---- several layouts at the same time ---- */

void search_run_each(const struct search *search, int n, void (*tile)(void *, int64_t, int),
                     void *context)
{
    if (search->request->pool)
        pool_run(search->request->pool, n, tile, context);
    for (int i = 0; i < n && !search->request->pool; i++)
        tile(context, i, 0);
}

struct measuring_bytes {
    struct search *search;
    struct layout_candidate **candidates;
    int **counts; /* of each, room for the layers of its stages; NULL: one stage */
    struct err *errs;
};

static void measure_one(void *context, int64_t tile, int thread)
{
    struct measuring_bytes *m = context;
    struct layout_candidate *c = m->candidates[tile];

    (void)thread;
    if (m->counts[tile])
        search_move_layers(m->search, c, m->counts[tile]);
    c->is_misfit = (c->choice ? search_fit(m->search, c, true, &m->errs[tile])
                              : search_measure_bytes(m->search, c, &m->errs[tile])) < 0;
}

/* The bytes of the best, from programs of their ranks. Returns how many do not fit, or have other
 * stages now. */
static int measure_new(struct search *search, const struct best *best, struct err *failure)
{
    struct arena scratch = { 0 };
    struct measuring_bytes m = {
        .search = search,
        .candidates = arena_array(&scratch, struct layout_candidate *, best->n),
        .counts = arena_array(&scratch, int *, best->n),
        .errs = arena_array(&scratch, struct err, best->n),
    };
    int n = 0, n_misfits = 0;

    for (int i = 0; i < best->n; i++)
        if (!best->items[i]->is_measured) {
            const struct layout *l = &best->items[i]->layout;

            m.counts[n] = search->request->may_move && l->pp > 1
                              ? arena_array(search->arena, int, l->pp * l->chunks)
                              : NULL;
            if (search_is_fitted(search, l))
                search_open_choice(search, best->items[i]);
            m.candidates[n++] = best->items[i];
        }
    search_run_each(search, n, measure_one, &m);
    for (int i = 0; i < n; i++) {
        if (m.candidates[i]->is_misfit)
            *failure = m.errs[i];
        n_misfits += is_too_large(search, m.candidates[i]) || m.counts[i];
    }
    arena_release(&scratch);
    return n_misfits;
}

struct predicting {
    struct search *search;
    struct layout_candidate **candidates;
    struct search_row *rows;
    struct err *errs;
    char *are_possible;
    int n;
};

static void predict_one(void *context, int64_t tile, int thread)
{
    struct predicting *p = context;

    (void)thread;
    struct layout_candidate *c = p->candidates[tile];
    struct search_row *row = &p->rows[tile];
    struct err *err = &p->errs[tile];

    int status = predict(p->search, c, row, err);
    /* Of all that is kept not every rank was compiled. */
    if (!status && !row->fits && c->choice && c->choice->is_kept) {
        status = search_fit(p->search, c, false, err);
        if (!status)
            status = predict(p->search, c, row, err);
    }
    p->are_possible[tile] = !status;
}

static void take_prediction(struct predicting *p, int i, struct search_result *result,
                            struct err *err)
{
    struct layout_candidate *c = p->candidates[i];

    c->is_misfit = !p->are_possible[i] || !p->rows[i].fits;
    result->n_predicted += p->are_possible[i];
    if (p->are_possible[i])
        note_smallest(result, c, p->rows[i].bytes);
    else
        *err = p->errs[i];
    if (!c->is_misfit)
        result->rows[result->n_rows++] = p->rows[i];
}

/* Those that are not rows yet. Returns how many of the best do not fit. */
static int predict_new(struct search *search, const struct best *best, struct search_result *result,
                       struct err *err)
{
    struct arena scratch = { 0 };
    struct predicting p = {
        .search = search,
        .candidates = arena_array(&scratch, struct layout_candidate *, best->n),
        .rows = arena_array(&scratch, struct search_row, best->n),
        .errs = arena_array(&scratch, struct err, best->n),
        .are_possible = arena_array(&scratch, char, best->n),
    };
    int n_misfits = 0;

    for (int i = 0; i < best->n && result->n_rows + p.n < best->most; i++)
        if (!has_row(result, &best->items[i]->layout))
            p.candidates[p.n++] = best->items[i];
    search_run_each(search, p.n, predict_one, &p);
    for (int i = 0; i < p.n; i++) {
        take_prediction(&p, i, result, err);
        n_misfits += p.candidates[i]->is_misfit;
    }
    arena_release(&scratch);
    return n_misfits;
}

/* Returns 0, or -1 and what is wrong where none could be compiled. */
static int find_best(struct search *search, struct candidates *all, struct search_result *result,
                     struct err *err)
{
    struct best best = { .most = search->request->n_rows + N_SPARE };

    best.items = arena_array(search->arena, struct layout_candidate *, best.most + 1);
    result->rows = arena_array(search->arena, struct search_row, best.most + 1);
    struct err failure = { 0 };
    do {
        do
            estimate_best(search, all, &best, result);
        while (measure_new(search, &best, &failure));
    } while (predict_new(search, &best, result, &failure));
    if (!result->n_rows && !result->n_predicted && failure.code) {
        *err = failure;
        return -1;
    }
    if (!result->n_rows)
        return 0;
    qsort(result->rows, (size_t)result->n_rows, sizeof *result->rows, by_time);
    choose_first(search->request, result);
    result->n_rows = min_int(result->n_rows, search->request->n_rows);
    return 0;
}

/* ---- what is not among the rows ---- */

static bool is_among_rows(const struct search_result *result, enum layout_key key, int value)
{
    for (int i = 0; i < result->n_rows; i++)
        if (layout_value(&result->rows[i].layout, key) == value)
            return true;
    return false;
}

static struct search_other *find_other(struct search *search, struct search_result *result,
                                       int *capacity, enum layout_key key, int value)
{
    for (int i = 0; i < result->n_others; i++)
        if (result->others[i].key == key && result->others[i].value == value)
            return &result->others[i];
    result->others = arena_grow(search->arena, result->others, sizeof *result->others, capacity,
                                result->n_others + 1);
    struct search_other *other = &result->others[result->n_others++];
    *other = (struct search_other){ .key = key, .value = value };
    return other;
}

static void add_other(struct search_other *other, const struct layout_candidate *c,
                      size_t available)
{
    size_t n_bytes = c->is_measured ? c->estimate_bytes : largest_bytes(c);
    int64_t ns = max_i64(c->bound_ns, c->estimate_ns) * c->weight;

    if (n_bytes <= available && (!other->fits || ns < other->bound_ns)) {
        other->fits = true;
        other->bound_ns = ns;
    }
    if (!other->bytes || n_bytes < other->bytes)
        other->bytes = n_bytes;
}

static void list_others(struct search *search, const struct candidates *all,
                        struct search_result *result)
{
    static const enum layout_key keys[] = { LAYOUT_TP,       LAYOUT_PP,   LAYOUT_EP,
                                            LAYOUT_SCHEDULE, LAYOUT_ZERO, LAYOUT_MICRO_BATCH };
    int capacity = 0;

    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (int i = 0; i < all->n; i++) {
            int value = layout_value(&all->items[i].layout, keys[k]);

            if (!is_among_rows(result, keys[k], value))
                add_other(find_other(search, result, &capacity, keys[k], value), &all->items[i],
                          search->available);
        }
}

static int find_layouts(struct search *search, struct candidates *all, struct search_result *result,
                        struct err *err)
{
    const struct search_request *r = search->request;

    search_list(search, all);
    if (bound_all(search, all, result))
        return find_best(search, all, result, err);
    return err_set(err, ERR_CONFIG,
                   "%s: no layout of %d ranks is possible: they are to be tp * pp * dp%s, "
                   "train.global_batch %d a multiple of train.micro_batch %d * dp%s",
                   r->job->source, r->n_ranks, r->job->parallel.cp > 1 ? " * cp" : "",
                   r->job->train.global_batch, r->job->train.micro_batch,
                   r->may_idle ? "" : " (hint: search.allow_idle: true leaves devices idle)");
}

int search_layouts(struct search_result *result, const struct search_request *request,
                   struct arena *arena, struct err *err)
{
    struct search search = {
        .request = request,
        .arena = arena,
        .costs = { .job = request->job,
                   .kernels = request->kernels,
                   .cluster = request->cluster,
                   .arena = arena,
                   .pool = request->pool },
        .cuts = arena_array(arena, const int *, request->job->model.n_layers + 1),
        .are_alike = islands_are_alike(request->cluster),
        .available = plan_limit_bytes(request->job, request->cluster->islands[0].device,
                                      request->memory_share),
    };
    struct candidates all = { 0 };

    *result = (struct search_result){ .objective = request->objective,
                                      .n_ranks = request->n_ranks,
                                      .available = search.available };
    int status = find_layouts(&search, &all, result, err);
    if (!status)
        list_others(&search, &all, result);
    result->n_compiled = search.costs.n_compiled;
    search_release_fronts(&search);
    search_release_choices(&search);
    return status;
}
