/*
 * micro_batch_choice.c - a job of all sizes up to some largest is compiled, which says what each
 * costs and whether the largest fits
 */
#include "plan/micro_batch_choice.h"

#include "base/num.h"
#include "plan/fit.h"
#include "plan/plan.h"
#include "plan/step_time.h"

struct choosing {
    const struct job *job;
    int n_ranks, dp, n_sequences; /* the last two: data-parallel ranks, and what each sums up to */
    const struct cluster *cluster;
    struct kernels *kernels;
    bool is_left_out[MICRO_BATCH_SIZES_MAX];
    struct arena *arena;
};

/* A plan of such a job. */
struct size_trial {
    struct job job;
    struct plan plan;
    int largest;
};

/* ---- the job ---- */

/* Sequence parallelism divides the tokens of a micro-batch. */
static void leave_out_sizes(struct choosing *c)
{
    const struct job *job = c->job;
    int tp = job->parallel.sequence_parallel ? job->parallel.tp : 1;

    for (int k = 0; k < MICRO_BATCH_SIZES_MAX; k++)
        c->is_left_out[k] = (int64_t)(k + 1) * job->data.seq_len / job->parallel.cp % tp != 0;
}

static int find_sums(struct choosing *c, struct err *err)
{
    const struct job *job = c->job;
    int others = job->parallel.tp * job->parallel.pp * job->parallel.cp;

    c->dp = job->parallel.dp_given ? job->parallel.dp : max_int(1, c->n_ranks / others);
    if (job->train.global_batch % c->dp)
        return err_set(err, ERR_CONFIG,
                       "%s: train.global_batch is %d, not a multiple of dp %d (hint: %d)",
                       job->source, job->train.global_batch, c->dp,
                       (int)ceil_div(job->train.global_batch, c->dp) * c->dp);
    c->n_sequences = job->train.global_batch / c->dp;
    return 0;
}

static int largest_below(const struct choosing *c, int size)
{
    while (size > 1 && c->is_left_out[size - 1])
        size--;
    return size;
}

/* As many as would leave a micro-batch for each stage, at most. */
static int largest_size(const struct choosing *c)
{
    int n = min_int(c->n_sequences, MICRO_BATCH_SIZES_MAX);

    if (c->job->train.micro_batch)
        n = min_int(n, c->job->train.micro_batch);
    else
        n = min_int(n, max_int(1, c->n_sequences / c->job->parallel.pp));
    return largest_below(c, n);
}

/* All sizes up to the largest, and of that as many as fill a step. */
static void make_job(struct job *job, const struct choosing *c, int largest)
{
    int *sizes = arena_array(c->arena, int, c->n_sequences + MICRO_BATCH_SIZES_MAX), n = 0, sum = 0;

    for (int size = 1; size < largest; size++)
        if (!c->is_left_out[size - 1])
            sum += sizes[n++] = size;
    do
        sum += sizes[n++] = largest;
    while (sum < c->n_sequences);
    *job = *c->job;
    job->parallel.micro_batches = (struct job_counts){ sizes, n };
    job->parallel.micro_batches_auto = 0;
    job->train.micro_batch = largest;
    job->train.global_batch = sum * c->dp;
    job->rates = c->cluster;
}

/* plan_close also on failure. */
static int open_trial(struct size_trial *t, const struct choosing *c, int largest, struct err *err)
{
    *t = (struct size_trial){ .largest = largest };
    make_job(&t->job, c, largest);
    if (job_resolve(&t->job, c->n_ranks, c->arena, err))
        return -1;
    return plan_open_with(&t->plan, &t->job, c->kernels, err);
}

static bool trial_fits(const struct choosing *c, const struct size_trial *t)
{
    return plan_judge(&t->plan, c->cluster, c->job->search.memory_share).fits;
}

static int least_size(const struct choosing *c)
{
    int size = 1;

    while (size < MICRO_BATCH_SIZES_MAX && c->is_left_out[size - 1])
        size++;
    return size;
}

/* The trial of the largest size that fits; of the least, if none does. */
static int find_trial(struct size_trial *t, const struct choosing *c, struct err *err)
{
    int fits = least_size(c), most = max_int(fits, largest_size(c));

    for (int at = most; at > fits; at = largest_below(c, fits + (most - fits + 1) / 2)) {
        struct err ignored;
        bool is_good = !open_trial(t, c, at, &ignored) && trial_fits(c, t);

        if (is_good && at == most)
            return 0;
        plan_close(&t->plan);
        if (is_good)
            fits = at;
        else
            most = at - 1;
    }
    return open_trial(t, c, fits, err);
}

/* ---- costs ---- */

/* As struct micro_batch_sizes_request has them: of F, I and W. */
struct cost_tables {
    int64_t *of[3];
    int n_ranks, n_chunks;
};

/* Of a size from 1 on. */
static int place_of(const struct cost_tables *t, int size, int chunk, int rank)
{
    return ((size - 1) * t->n_chunks + chunk) * t->n_ranks + rank;
}

/* An op of the streams within a layer; sums of gradients, gathers of weights, transfers and copies
 * have streams of their own, beside all micro-batches. */
static bool is_of_layer(const struct op *op)
{
    return op->stream == STREAM_COMPUTE || op->stream == STREAM_TP || op->stream == STREAM_CP ||
           op->stream == STREAM_EP;
}

static void add_function(struct cost_tables *t, int at, const struct function *f,
                         const struct simulated_op *prices)
{
    for (int i = 0; i < f->n_ops; i++) {
        enum phase phase = f->ops[i].phase;

        if (is_of_layer(&f->ops[i]))
            t->of[phase == PHASE_F ? 0 : phase == PHASE_W ? 2 : 1][at] += prices[i].ns;
    }
}

/* By the first micro-batch of each size. */
static void add_rank(struct cost_tables *tables, const struct size_trial *t, int rank,
                     const struct simulated_op *const *prices)
{
    const struct program *p = &t->plan.programs[rank];
    const struct entry *step = &p->entries[ENTRY_STEP];
    const struct job_counts *sizes = &t->job.parallel.micro_batches;
    int first[MICRO_BATCH_SIZES_MAX + 1] = { 0 };

    for (int m = sizes->n - 1; m >= 0; m--)
        first[sizes->values[m]] = m;
    for (int i = 0; i < step->n_actions; i++) {
        const struct action *a = &step->actions[i];

        if (a->kind != ACTION_RUN || a->micro_batch < 0)
            continue;
        int size = sizes->values[a->micro_batch];
        const struct function *f = &p->functions[a->function];
        if (first[size] == a->micro_batch)
            add_function(tables, place_of(tables, size, f->chunk, rank), f, prices[a->function]);
    }
}

static void fill_costs(struct micro_batch_sizes_request *r, const struct choosing *c,
                       const struct size_trial *t)
{
    int n = r->n_sizes * r->n_ranks * r->n_chunks;
    int64_t *transfers = arena_array(c->arena, int64_t, r->n_sizes);
    struct job of_size = t->job;
    struct cost_tables tables = { .n_ranks = r->n_ranks, .n_chunks = r->n_chunks };
    const struct simulated_op *const *const *prices =
        step_time_prices(t->plan.job, t->plan.programs, c->cluster, c->arena);

    for (int k = 0; k < 3; k++)
        tables.of[k] = arena_array(c->arena, int64_t, n);
    for (int rank = 0; rank < r->n_ranks; rank++)
        add_rank(&tables, t, rank, prices[rank]);
    r->f = tables.of[0];
    r->i = tables.of[1];
    r->w = tables.of[2];
    for (int k = 0; k < r->n_sizes; k++) {
        of_size.train.micro_batch = k + 1;
        transfers[k] = step_time_boundary_ns(&of_size, c->cluster);
    }
    r->transfers = transfers;
}

/* Of the rank that takes longest for a micro-batch. */
static int64_t longest_work(const struct micro_batch_sizes_request *r, int k)
{
    int64_t longest = 0;

    for (int rank = 0; rank < r->n_ranks; rank++) {
        int64_t ns = 0;

        for (int chunk = 0; chunk < r->n_chunks; chunk++) {
            int at = (k * r->n_chunks + chunk) * r->n_ranks + rank;

            ns += r->f[at] + r->i[at] + r->w[at];
        }
        longest = max_i64(longest, ns);
    }
    return longest;
}

/* Sizes above that with the least time a sequence gain nothing. */
static int count_useful(const struct micro_batch_sizes_request *r)
{
    int best = 0;

    for (int k = 0; k < r->n_sizes; k++) {
        if (r->is_left_out[k])
            continue;
        double ns = (double)longest_work(r, k) / (k + 1);

        if (!best || ns <= (double)longest_work(r, best - 1) / best)
            best = k + 1;
    }
    return max_int(1, best);
}

/* ---- the choice ---- */

static int choose(struct micro_batch_sizes *found, const struct choosing *c,
                  const struct size_trial *t, struct err *err)
{
    struct micro_batch_sizes_request request = { .n_ranks = t->job.parallel.pp,
                                                 .n_chunks = t->job.parallel.chunks,
                                                 .n_sequences = c->n_sequences,
                                                 .n_sizes = t->largest,
                                                 .is_left_out = c->is_left_out };

    fill_costs(&request, c, t);
    request.n_sizes = count_useful(&request);
    if (micro_batch_sizes_find(found, &request, c->arena, err))
        return err_add(err, "%s: parallel.micro_batches auto", c->job->source);
    return 0;
}

static int largest_of(const struct micro_batch_sizes *found)
{
    int largest = 0;

    for (int m = 0; m < found->n; m++)
        largest = max_int(largest, found->sizes[m]);
    return largest;
}

/* What is recomputed or away was chosen for the trial's largest size: where the list has smaller
 * ones alone, it is chosen again for these. */
static int choose_again(struct micro_batch_sizes *found, const struct choosing *c, struct err *err)
{
    struct micro_batch_sizes other;
    struct size_trial t;
    int status = open_trial(&t, c, largest_of(found), err);

    if (!status)
        status = choose(&other, c, &t, err);
    plan_close(&t.plan);
    if (!status && other.ns < found->ns)
        *found = other;
    return status;
}

int micro_batch_choice(struct micro_batch_sizes *found, struct job *job, int n_ranks,
                       const struct cluster *cluster, struct kernels *kernels, struct arena *arena,
                       struct err *err)
{
    struct choosing c = {
        .job = job, .n_ranks = n_ranks, .cluster = cluster, .kernels = kernels, .arena = arena
    };
    struct size_trial trial = { .largest = 0 };

    leave_out_sizes(&c);
    if (find_sums(&c, err))
        return -1;
    int status = find_trial(&trial, &c, err);
    if (!status)
        status = choose(found, &c, &trial, err);
    if (!status && trial.plan.memory && largest_of(found) < trial.largest)
        status = choose_again(found, &c, err);
    plan_close(&trial.plan);
    if (status)
        return -1;
    job->parallel.micro_batches = (struct job_counts){ found->sizes, found->n };
    job->parallel.micro_batches_auto = 0;
    job->train.micro_batch = largest_of(found);
    return 0;
}
