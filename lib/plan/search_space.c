/*
 * search_space.c - all layouts of a job that are possible
 */
#include <string.h>

#include "base/num.h"
#include "plan/search_impl.h"

enum { N_VALUES_MAX = 512 };

struct values {
    int items[N_VALUES_MAX];
    int n;
};

struct listing {
    struct search *search;
    const struct job *job;
    struct candidates *out;
    struct layout layout;
    int n_micro_batches;
};

static void add(struct values *values, int value)
{
    if (values->n < N_VALUES_MAX)
        values->items[values->n++] = value;
}

static struct values one(int value)
{
    return (struct values){ .items = { value }, .n = 1 };
}

static bool is_free(const struct search *search, enum layout_key key)
{
    return (search->request->keys >> key & 1) != 0;
}

static struct values divisors(int n, int most)
{
    struct values values = { .n = 0 };

    for (int i = 1; i <= min_int(n, most); i++)
        if (n % i == 0)
            add(&values, i);
    return values;
}

static struct values up_to(int most)
{
    struct values values = { .n = 0 };

    for (int i = 1; i <= most; i++)
        add(&values, i);
    return values;
}

static int most_tp(const struct search *search)
{
    const struct search_request *r = search->request;

    return r->max_tp ? r->max_tp : max_int(1, r->cluster->islands[0].fast_domain);
}

/* How many parts of sequences the ranks compute at a time; 0: ranks would be left over. */
static int count_parts(const struct search_request *r)
{
    int cp = r->job->parallel.cp;

    return r->may_idle || r->n_ranks % cp == 0 ? r->n_ranks / cp : 0;
}

static struct values list_tp(const struct search *search)
{
    const struct search_request *r = search->request;
    int n_ranks = count_parts(r), n = min_int(n_ranks, most_tp(search));
    struct values all = r->may_idle ? up_to(n) : divisors(n_ranks, n), possible = { .n = 0 };
    struct err err;

    if (!is_free(search, LAYOUT_TP))
        return one(r->job->parallel.tp);
    for (int i = 0; i < all.n; i++)
        if (!job_check_tp(&r->job->model, all.items[i], "tp", &err))
            add(&possible, all.items[i]);
    return possible;
}

static struct values list_micro_batches(const struct search *search)
{
    const struct job *job = search->request->job;

    if (!is_free(search, LAYOUT_MICRO_BATCH))
        return one(job->train.micro_batch);
    struct values values = { .n = 0 };
    for (int size = 1; size <= min_int(64, job->train.global_batch); size *= 2)
        add(&values, size);
    return values;
}

/* ---- a pipeline's schedule ---- */

static void append(struct listing *l)
{
    struct candidates *c = l->out;

    c->items = arena_grow(l->search->arena, c->items, sizeof *c->items, &c->capacity, c->n + 1);
    c->items[c->n] = (struct layout_candidate){
        .layout = l->layout,
        .n_micro_batches = l->n_micro_batches,
        .weight =
            l->search->request->objective == OBJECTIVE_DEVICE_TIME ? layout_n_ranks(&l->layout) : 1,
    };
    c->n++;
}

/* Whether all data-parallel ranks have schedules for their numbers of micro-batches. */
static bool has_schedules(const struct layout *layout, const int *counts)
{
    struct pipeline_spec spec = { .kind = layout->schedule,
                                  .n_ranks = layout->pp,
                                  .n_chunks = layout->chunks };
    struct err err;

    for (int i = 0; i < layout->dp; i++) {
        spec.n_micro_batches = counts[i];
        if (pipeline_check(&spec, &err))
            return false;
    }
    return true;
}

/* Where data-parallel ranks lie on devices of several kinds, also with as many micro-batches for
 * each as it has time for: sums at the end of the step do not mind. */
static void add_counted(struct listing *l)
{
    struct layout alike = l->layout;
    const struct layout_candidate candidate = { .layout = alike,
                                                .n_micro_batches = l->n_micro_batches };
    const struct job *job = l->job;
    bool is_late =
        !job->parallel.gradient_sum_given || job->parallel.gradient_sum == GRADIENT_SUM_LATE;

    if (l->search->are_alike || alike.dp < 2 || alike.ep > 1 || alike.zero > 1 || !is_late ||
        job->kind != JOB_PRETRAIN)
        return;
    const int *counts = search_share(l->search, &candidate);
    if (!counts || !has_schedules(&alike, counts))
        return;
    l->layout.counts = (struct job_counts){ counts, alike.dp };
    append(l);
    l->layout = alike;
}

/* Whether another place for stages is on other devices. */
static bool order_matters(const struct listing *l)
{
    const struct cluster_island *first = &l->search->request->cluster->islands[0];

    return l->layout.pp > 1 && !l->search->are_alike &&
           layout_n_ranks(&l->layout) > first->n_nodes * first->per_node;
}

/* Stages on the devices in their order, the last stage first, or a pipeline of each replica on
 * devices of its own. */
static void add_layout(struct listing *l)
{
    enum rank_order given = l->layout.order;

    for (int order = 0; order < N_RANK_ORDERS; order++) {
        bool is_tried = order_matters(l) && (order != ORDER_PIPELINES || l->layout.dp > 1);

        if (is_free(l->search, LAYOUT_ORDER) ? order > 0 && !is_tried : order != (int)given)
            continue;
        l->layout.order = (enum rank_order)order;
        append(l);
        add_counted(l);
    }
    l->layout.order = given;
}

static void add_schedule(struct listing *l, enum pipeline_kind kind, int chunks)
{
    struct pipeline_spec spec = { .kind = kind,
                                  .n_ranks = l->layout.pp,
                                  .n_chunks = chunks,
                                  .n_micro_batches = l->n_micro_batches };
    struct err err;

    if (l->layout.pp * chunks > l->job->model.n_layers || pipeline_check(&spec, &err))
        return;
    l->layout.schedule = kind;
    l->layout.chunks = chunks;
    add_layout(l);
}

/* A schedule with all numbers of chunks that it may have, or with those of the job. */
static void add_kind(struct listing *l, enum pipeline_kind kind)
{
    static const int several[] = { 2, 3, 4, 5, 6, 8 };
    bool has_several = kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST;

    if (!is_free(l->search, LAYOUT_CHUNKS) && l->job->parallel.chunks_given)
        add_schedule(l, kind, l->job->parallel.chunks);
    else if (!has_several)
        add_schedule(l, kind, kind == PIPELINE_ZB_V ? 2 : 1);
    else
        for (size_t i = 0; i < sizeof several / sizeof *several; i++)
            add_schedule(l, kind, several[i]);
}

static void list_schedules(struct listing *l)
{
    if (l->layout.pp == 1) {
        add_schedule(l, PIPELINE_1F1B, 1);
        return;
    }
    if (!is_free(l->search, LAYOUT_SCHEDULE)) {
        add_kind(l, l->job->parallel.schedule);
        return;
    }
    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        if (l->search->request->schedules >> kind & 1)
            add_kind(l, (enum pipeline_kind)kind);
}

/* ---- ZeRO ---- */

/* Experts are divided among the ranks of a group. */
static bool divides_group(const struct listing *l, int group)
{
    return group % l->layout.ep == 0;
}

/* The data-parallel ranks of a node, if they are a part of all. */
static struct values list_groups(const struct listing *l)
{
    const struct search *s = l->search;
    int of_node = s->request->cluster->islands[0].fast_domain / l->layout.tp / l->layout.cp;
    struct values values = one(0);

    if (!is_free(s, LAYOUT_ZERO_GROUP))
        return one(l->layout.zero ? l->job->parallel.zero_group : 0);
    if (l->layout.zero && of_node > 1 && of_node < l->layout.dp && l->layout.dp % of_node == 0 &&
        divides_group(l, of_node))
        add(&values, of_node);
    return values;
}

static struct values list_buckets(const struct listing *l)
{
    struct values values = one(l->job->parallel.bucket_mb);

    if (is_free(l->search, LAYOUT_BUCKET) && l->layout.dp > 1)
        add(&values, 8 * l->job->parallel.bucket_mb);
    return values;
}

static struct values list_holds(const struct listing *l)
{
    struct values values = one((int)l->job->parallel.hold);

    if (!is_free(l->search, LAYOUT_HOLD) || l->layout.zero < 3)
        return values;
    values = one(HOLD_PASS);
    add(&values, HOLD_RUN);
    return values;
}

static struct values list_zero(const struct listing *l)
{
    struct values values = { .n = 0 };

    if (!is_free(l->search, LAYOUT_ZERO))
        return one(l->job->parallel.zero);
    for (int zero = 0; zero <= (l->layout.dp > 1 ? 3 : 0); zero++)
        add(&values, zero);
    return values;
}

static void list_shards(struct listing *l)
{
    struct values zeros = list_zero(l);

    for (int z = 0; z < zeros.n; z++) {
        l->layout.zero = zeros.items[z];
        struct values groups = list_groups(l), holds = list_holds(l), buckets = list_buckets(l);

        for (int g = 0; g < groups.n; g++)
            for (int h = 0; h < holds.n; h++)
                for (int b = 0; b < buckets.n; b++) {
                    if (!divides_group(l, groups.items[g]))
                        continue;
                    l->layout.zero_group = groups.items[g];
                    l->layout.hold = (enum parameter_hold)holds.items[h];
                    l->layout.bucket_mb = buckets.items[b];
                    list_schedules(l);
                }
    }
}

/* ---- the whole ---- */

/* Whether ranks of context parallel get equally many rows and heads. */
static bool divides_sequences(const struct listing *l)
{
    struct job job = *l->job;

    layout_apply(&job, &l->layout);
    return layout_divides_sequences(&job);
}

/* What reading a job refuses of degrees that it gives. */
static bool is_refused(const struct listing *l)
{
    const struct model_spec *m = &l->job->model;
    int64_t rows = (int64_t)l->layout.micro_batch * l->job->data.seq_len / l->layout.cp;

    return (l->layout.cp > 1 && !divides_sequences(l)) ||
           (l->layout.pp > 1 && m->n_experts > 0 && m->router_balance > 0 &&
            m->router_balance_kind == ROUTER_BALANCE_POOLED) ||
           (l->job->parallel.sequence_parallel && rows % l->layout.tp);
}

/* The micro-batches of a data-parallel rank; 0: the global batch is not divisible so. */
static int count_micro_batches(const struct listing *l)
{
    int64_t unit = (int64_t)l->layout.micro_batch * l->layout.dp;

    return l->job->train.global_batch % unit ? 0 : (int)(l->job->train.global_batch / unit);
}

/* Up to so many ranks all numbers are tried that leave devices idle; beyond, the largest of each
 * tp and pp on all devices, and on those of the first islands, if a quarter of them are idle at
 * most. */
enum { N_RANKS_IN_FULL = 64 };

/* Whether no more ranks would do with this tp and pp on all devices, or the first islands'. */
static bool is_largest(const struct listing *l, int dp)
{
    const struct search_request *r = l->search->request;
    int64_t n_devices = 0, unit = (int64_t)l->layout.tp * l->layout.pp * l->layout.cp;
    int n_batches = l->job->train.global_batch / l->layout.micro_batch;

    for (int i = 0; i < r->cluster->n_islands; i++) {
        n_devices += (int64_t)r->cluster->islands[i].n_nodes * r->cluster->islands[i].per_node;
        int64_t n = min_i64(n_devices, r->n_ranks);
        int most = (int)(n / unit), next = dp + 1;

        while (next <= most && n_batches % next)
            next++;
        if (dp <= most && next > most && 4 * dp * unit >= 3 * n)
            return true;
    }
    return false;
}

static struct values list_dp(const struct listing *l)
{
    int n = l->search->request->n_ranks, unit = l->layout.tp * l->layout.pp * l->layout.cp;
    int n_batches = l->job->train.global_batch / l->layout.micro_batch;
    struct values values = { .n = 0 };

    if (!l->search->request->may_idle)
        return n % unit ? values : one(n / unit);
    for (int dp = 1; dp <= min_int(n / unit, n_batches); dp++)
        if (n_batches % dp == 0 && (n <= N_RANKS_IN_FULL || is_largest(l, dp)))
            add(&values, dp);
    return values;
}

/* Whether ranks that have whole experts have equally many: ranks of tp may be such, with rows of
 * their own. */
static bool divides_experts(const struct listing *l, int ep)
{
    const struct job *job = l->job;
    int tp = job->moe.expert_tp == EXPERT_TP_ONE ? l->layout.tp : 1;

    if (tp > 1 && (!job->parallel.sequence_parallel ||
                   (job->model.router_balance > 0 &&
                    job->model.router_balance_kind == ROUTER_BALANCE_POOLED)))
        return false;
    return job->model.n_experts % (ep * tp) == 0;
}

/* Ranks among which the experts may be divided. */
static struct values list_ep(const struct listing *l)
{
    int dp = l->layout.dp, given = l->job->parallel.ep;
    bool is_open = is_free(l->search, LAYOUT_EP);
    struct values values = { .n = 0 };

    if (!l->job->model.n_experts)
        return one(1);
    for (int ep = is_open ? 1 : given; dp % ep == 0 && divides_experts(l, ep); ep *= 2) {
        add(&values, ep);
        if (!is_open)
            break;
    }
    return values;
}

/* Whether a job with these degrees, which gives tp ranks whole experts, would be refused. */
static bool refuses_whole_experts(const struct listing *l)
{
    const struct model_spec *m = &l->job->model;
    int n = l->layout.tp * l->layout.ep;

    return l->job->moe.expert_tp == EXPERT_TP_ONE && l->layout.tp > 1 &&
           (!m->n_experts || m->n_experts % n || !l->job->parallel.sequence_parallel ||
            (m->router_balance > 0 && m->router_balance_kind == ROUTER_BALANCE_POOLED));
}

static void list_data(struct listing *l)
{
    int given = l->job->parallel.dp_given ? l->job->parallel.dp : 0;

    l->n_micro_batches = count_micro_batches(l);
    if (!l->n_micro_batches || is_refused(l) || (given && given != l->layout.dp))
        return;
    struct values eps = list_ep(l);
    for (int i = 0; i < eps.n; i++) {
        l->layout.ep = eps.items[i];
        if (!refuses_whole_experts(l))
            list_shards(l);
    }
}

static struct values list_pp(const struct listing *l)
{
    const struct search_request *r = l->search->request;
    int n = count_parts(r) / l->layout.tp, n_layers = l->job->model.n_layers;

    if (!is_free(l->search, LAYOUT_PP))
        return one(l->job->parallel.pp);
    if (!r->may_idle)
        return divisors(n, n_layers);
    return up_to(min_int(n, n_layers));
}

static void list_ranks(struct listing *l)
{
    struct values dps = list_dp(l);

    for (int i = 0; i < dps.n; i++) {
        l->layout.dp = dps.items[i];
        list_data(l);
    }
}

void search_list(struct search *search, struct candidates *candidates)
{
    const struct job *job = search->request->job;
    struct listing l = { .search = search,
                         .job = job,
                         .out = candidates,
                         .layout.order = job->parallel.order,
                         .layout.recompute =
                             is_free(search, LAYOUT_RECOMPUTE) ? RECOMPUTE_AUTO : job->recompute,
                         .layout.cp = job->parallel.cp,
                         .layout.ep = job->parallel.ep,
                         .layout.cp_kind = job->parallel.cp_kind,
                         .layout.cp_sizes = job->parallel.cp_sizes };
    struct values tps = list_tp(search), sizes = list_micro_batches(search);
    int n = count_parts(search->request);

    for (int t = 0; t < tps.n; t++) {
        l.layout.tp = tps.items[t];
        if (n % l.layout.tp && !search->request->may_idle)
            continue;
        struct values pps = list_pp(&l);
        for (int p = 0; p < pps.n; p++)
            for (int m = 0; m < sizes.n; m++) {
                l.layout.pp = pps.items[p];
                l.layout.micro_batch = sizes.items[m];
                list_ranks(&l);
            }
    }
}
