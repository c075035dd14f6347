/*
 * resolve.c - what depends on the number of ranks, and what cannot be run yet
 */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "config/read_impl.h"
#include "layout/stage.h"

/* The place of the first of these keys that is given. */
#define PLACE(job, ...) job_place(job, (const char *const[]){ __VA_ARGS__, NULL })

/* Fill dp from the ranks, or hold it against them. */
static int derive_dp(struct job *job, int world_size, struct arena *arena, struct err *err)
{
    int tp = job->parallel.tp, pp = job->parallel.pp, cp = job->parallel.cp;
    int64_t others = (int64_t)tp * pp * cp;

    if (!job->parallel.dp_given) {
        if (world_size % others != 0)
            return err_set(err, ERR_CONFIG,
                           "%s: %d rank%s not a multiple of parallel tp %d * pp %d * cp %d "
                           "(hint: %lld ranks)",
                           PLACE(job, "parallel.tp", "parallel.pp", "parallel.cp"), world_size,
                           world_size == 1 ? " is" : "s are", tp, pp, cp,
                           (long long)((world_size / others + 1) * others));
        job->parallel.dp = (int)(world_size / others);
        job_note(job, arena, "parallel.dp = %d (auto: %d rank%s / (tp %d * pp %d * cp %d))",
                 job->parallel.dp, world_size, str_s(world_size), tp, pp, cp);
        return 0;
    }
    if (others * job->parallel.dp != world_size)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel tp %d * pp %d * cp %d * dp %d is %lld, but there %s %d rank%s "
                       "(hint: ranks: %lld, or dp: auto)",
                       PLACE(job, "parallel.dp"), tp, pp, cp, job->parallel.dp,
                       (long long)others * job->parallel.dp, world_size == 1 ? "is" : "are",
                       world_size, world_size == 1 ? "" : "s",
                       (long long)others * job->parallel.dp);
    return 0;
}

static int64_t sum_of(const struct job_counts *counts)
{
    int64_t sum = 0;

    for (int i = 0; i < counts->n; i++)
        sum += counts->values[i];
    return sum;
}

/* Given one by one. */
static int take_micro_batches(struct job *job, struct arena *arena, struct err *err)
{
    int64_t sum = sum_of(&job->parallel.micro_batches);
    int global = job->train.global_batch, dp = job->parallel.dp;

    if (sum * dp != global) {
        char hint[40] = "";

        if (global % dp == 0)
            snprintf(hint, sizeof hint, ", or a list that adds up to %d", global / dp);
        return err_set(
            err, ERR_CONFIG,
            "%s: parallel.micro_batches add up to %lld sequence%s, times dp %d is %lld, but "
            "train.global_batch is %d (hint: global_batch: %lld%s)",
            PLACE(job, "parallel.micro_batches"), (long long)sum, str_s(sum), dp,
            (long long)sum * dp, global, (long long)sum * dp, hint);
    }
    job->n_micro_batches = job->parallel.micro_batches.n;
    job_note(job, arena, "n_micro_batches = %d (parallel.micro_batches)", job->n_micro_batches);
    return 0;
}

/* Of each data-parallel rank. */
static int take_replica_counts(struct job *job, struct arena *arena, struct err *err)
{
    const struct job_counts *counts = &job->parallel.replica_micro_batches;
    int64_t sum = sum_of(counts), all = job->train.global_batch / job->train.micro_batch;

    if (counts->n != job->parallel.dp)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.replica_micro_batches has %d number%s, but dp is %d",
                       PLACE(job, "parallel.replica_micro_batches"), counts->n, str_s(counts->n),
                       job->parallel.dp);
    if (sum * job->train.micro_batch != job->train.global_batch)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.replica_micro_batches add up to %lld, times micro_batch %d is "
                       "%lld, but train.global_batch is %d (hint: numbers that add up to %lld)",
                       PLACE(job, "parallel.replica_micro_batches"), (long long)sum,
                       job->train.micro_batch, (long long)sum * job->train.micro_batch,
                       job->train.global_batch, (long long)all);
    job->n_micro_batches = largest_count(counts);
    job_note(job, arena, "n_micro_batches = %d (the most of parallel.replica_micro_batches)",
             job->n_micro_batches);
    return 0;
}

void job_take_replica(struct job *job, int world_rank)
{
    const struct mesh mesh = job_mesh(job);

    if (job->parallel.replica_micro_batches.n)
        job->n_micro_batches =
            job->parallel.replica_micro_batches.values[mesh_data_rank(&mesh, world_rank)];
}

int64_t job_all_micro_batches(const struct job *job)
{
    if (job->parallel.replica_micro_batches.n)
        return sum_of(&job->parallel.replica_micro_batches);
    return (int64_t)job->n_micro_batches * job->parallel.dp;
}

static int derive_micro_batches(struct job *job, struct arena *arena, struct err *err)
{
    if (job->parallel.replica_micro_batches.n)
        return take_replica_counts(job, arena, err);
    if (job->parallel.micro_batches.n)
        return take_micro_batches(job, arena, err);
    if (job->parallel.micro_batches_auto)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.micro_batches is auto: they are chosen for the devices of a "
                       "cluster, by lmtrain plan and pretrain (hint: a list of sizes)",
                       PLACE(job, "parallel.micro_batches"));
    int global = job->train.global_batch;
    int64_t unit = (int64_t)job->train.micro_batch * job->parallel.dp;

    if (global % unit != 0) {
        int64_t below = global / unit * unit;
        char hint[80];

        if (below > 0)
            snprintf(hint, sizeof hint, "%lld or %lld", (long long)below,
                     (long long)(below + unit));
        else
            snprintf(hint, sizeof hint, "%lld", (long long)unit);
        return err_set(
            err, ERR_CONFIG,
            "%s: train.global_batch is %d, not a multiple of micro_batch %d * dp %d = %lld "
            "(hint: %s)",
            PLACE(job, "train.global_batch", "train.micro_batch", "parallel.dp"), global,
            job->train.micro_batch, job->parallel.dp, (long long)unit, hint);
    }
    job->n_micro_batches = (int)(global / unit);
    job_note(job, arena, "n_micro_batches = %d (global_batch %d / (micro_batch %d * dp %d))",
             job->n_micro_batches, global, job->train.micro_batch, job->parallel.dp);
    return 0;
}

static void derive_chunks(struct job *job, struct arena *arena)
{
    enum pipeline_kind kind = job->parallel.schedule;
    int several =
        kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST || kind == PIPELINE_DYNAMIC;

    if (job->parallel.chunks_given)
        return;
    job->parallel.chunks = (several && job->parallel.pp > 1) || kind == PIPELINE_ZB_V ? 2 : 1;
    if (job->parallel.chunks > 1)
        job_note(job, arena, "parallel.chunks = %d (auto: %s)", job->parallel.chunks,
                 pipeline_name(kind));
}

/* Whether a stage has so many layers is known when the model is cut into stages. */
static int check_recompute_layers(const struct job *job, int n_stages, struct err *err)
{
    const struct {
        const char *field;
        int n;
    } lists[] = {
        { "recompute_layers.full", job->recompute_layers.full.n },
        { "recompute_layers.selective", job->recompute_layers.selective.n },
    };

    if (job->recompute == RECOMPUTE_AUTO && (lists[0].n || lists[1].n))
        return err_set(err, ERR_CONFIG,
                       "%s: recompute auto chooses for each layer, and recompute_layers says it "
                       "(hint: one of them)",
                       PLACE(job, "recompute"));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].n && lists[i].n != n_stages)
            return err_set(err, ERR_CONFIG,
                           "%s: %s has %d number%s, but the pipeline has %d stage%s (hint: one for "
                           "each)",
                           PLACE(job, lists[i].field), lists[i].field, lists[i].n,
                           str_s(lists[i].n), n_stages, str_s(n_stages));
    return 0;
}

static int check_pipeline(const struct job *job, struct err *err)
{
    struct pipeline_spec spec = { .kind = job->parallel.schedule,
                                  .n_ranks = job->parallel.pp,
                                  .n_chunks = job->parallel.chunks,
                                  .n_micro_batches = job->n_micro_batches,
                                  .sizes = job->parallel.micro_batches.values };
    int n_stages = job->parallel.pp * job->parallel.chunks;
    char hint[32] = "schedule: 1f1b";

    if (job->parallel.chunks <= job->model.n_layers)
        snprintf(hint, sizeof hint, "pp: %d", job->model.n_layers / job->parallel.chunks);
    if (pipeline_check(&spec, err))
        return err_add(err, "%s: parallel",
                       PLACE(job, "parallel.chunks", "parallel.schedule", "parallel.pp",
                             "train.global_batch"));
    if (n_stages > job->model.n_layers)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel pp %d * chunks %d is %d stages, the model has %d layer%s "
                       "(hint: parallel.%s)",
                       PLACE(job, "parallel.pp", "parallel.chunks", "parallel.schedule"),
                       job->parallel.pp, job->parallel.chunks, n_stages, job->model.n_layers,
                       str_s(job->model.n_layers), hint);
    if (job->parallel.stages.n && stage_check(job->parallel.stages.values, job->parallel.stages.n,
                                              n_stages, job->model.n_layers, err))
        return err_add(err, "%s: parallel.stages", PLACE(job, "parallel.stages"));
    return check_recompute_layers(job, n_stages, err);
}

/* n: data-parallel ranks that may divide experts. */
static int check_experts(const struct job *job, int n, struct err *err)
{
    int ep = job->parallel.ep, m = job->model.n_experts;
    const char *place = PLACE(job, "parallel.ep");

    if (ep == 1)
        return 0;
    if (!m)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.ep is %d, but the model has no experts (hint: ep: 1)", place,
                       ep);
    if (ep & (ep - 1))
        return err_set(err, ERR_CONFIG, "%s: parallel.ep is %d, wanted a power of two", place, ep);
    if (n % ep || m % ep)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.ep is %d, does not divide %s %d (hint: %d or less)", place, ep,
                       m % ep                     ? "model.n_experts"
                       : job->parallel.zero_group ? "zero_group"
                                                  : "dp",
                       m % ep ? m : n, m % ep ? m & -m : n & -n);
    if (job->parallel.replica_micro_batches.n)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.ep is %d, and parallel.replica_micro_batches has different "
                       "numbers: ranks that exchange rows must have as many micro-batches (hint: "
                       "one of the two)",
                       place, ep);
    return 0;
}

/* Whole experts on tp ranks, each of which has rows of its own. */
static int check_whole_experts(const struct job *job, struct err *err)
{
    const struct model_spec *s = &job->model;
    int n = job->parallel.tp * job->parallel.ep;
    const char *place = PLACE(job, "moe.expert_tp");

    if (job->moe.expert_tp != EXPERT_TP_ONE || job->parallel.tp == 1)
        return 0;
    if (!s->n_experts)
        return err_set(err, ERR_CONFIG,
                       "%s: moe.expert_tp is 1, but the model has no experts (hint: expert_tp: tp)",
                       place);
    if (s->n_experts % n)
        return err_set(err, ERR_CONFIG,
                       "%s: moe.expert_tp is 1, but tp * ep = %d ranks do not divide "
                       "model.n_experts %d (hint: expert_tp: tp)",
                       place, n, s->n_experts);
    if (!job->parallel.sequence_parallel)
        return err_set(err, ERR_CONFIG,
                       "%s: moe.expert_tp is 1, but without parallel.sequence_parallel tp ranks "
                       "have the same rows (hint: expert_tp: tp)",
                       place);
    if (s->router_balance > 0 && s->router_balance_kind == ROUTER_BALANCE_POOLED)
        return err_set(err, ERR_CONFIG,
                       "%s: moe.expert_tp is 1, but model.router_balance_kind is pooled (hint: "
                       "router_balance_kind: per_layer, or expert_tp: tp)",
                       place);
    return 0;
}

static int check_sharding(struct job *job, struct arena *arena, struct err *err)
{
    int dp = job->parallel.dp, group = job->parallel.zero_group;
    int largest = dp & -dp; /* power of two */

    if (group > 0 && dp % group != 0)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.zero_group is %d, does not divide dp %d (hint: %d%s)",
                       PLACE(job, "parallel.zero_group"), group, dp, largest > 1 ? largest : 0,
                       largest > 2 ? " or less, powers of two" : "");
    if (check_experts(job, group ? group : dp, err) || check_whole_experts(job, err))
        return -1;
    if (job->parallel.zero > 0 && dp == 1)
        job_note(job, arena, "parallel.zero = %d shards nothing: dp is 1", job->parallel.zero);
    return 0;
}

enum gradient_sum job_gradient_sum(const struct job *job, int zero)
{
    if (job->parallel.gradient_sum_given)
        return job->parallel.gradient_sum;
    return zero >= 2 && !job->parallel.compress ? GRADIENT_SUM_EARLY : GRADIENT_SUM_LATE;
}

static void derive_gradient_sum(struct job *job, struct arena *arena)
{
    int zero = job->parallel.zero;

    if (job->parallel.gradient_sum_given)
        return;
    job->parallel.gradient_sum = job_gradient_sum(job, zero);
    if (zero >= 2 && job->parallel.gradient_sum == GRADIENT_SUM_LATE)
        job_note(job, arena,
                 "parallel.gradient_sum = late (auto: compress; zero %d, too, then keeps each "
                 "rank's whole sums, and as much again that the codec has lost)",
                 zero);
    else
        job_note(job, arena, "parallel.gradient_sum = %s (auto: zero %d)",
                 choice_word(gradient_sum_choices, (int)job->parallel.gradient_sum), zero);
}

int job_derive(struct job *job, int world_size, struct arena *arena, struct err *err)
{
    struct job result = *job;

    CHECK(world_size >= 1);
    result.notes = arena_array(arena, const char *, JOB_MAX_NOTES);
    memcpy(result.notes, job->notes, sizeof *job->notes * (size_t)job->n_read_notes);
    result.n_notes = job->n_read_notes;
    result.world_size = world_size;
    if (derive_dp(&result, world_size, arena, err) || derive_micro_batches(&result, arena, err))
        return -1;
    context_resolve(&result, arena);
    derive_chunks(&result, arena);
    if (check_pipeline(&result, err) || check_sharding(&result, arena, err))
        return -1;
    derive_gradient_sum(&result, arena);
    if (compress_resolve(&result, arena, err))
        return -1;
    fp8_note(&result, arena);
    if (result.parallel.reductions == REDUCTIONS_FAST && result.device == JOB_DEVICE_CPU) {
        result.parallel.reductions = REDUCTIONS_FIXED;
        job_note(&result, arena,
                 "parallel.reductions = fixed (fast needs NCCL, but device is cpu)");
    }
    *job = result;
    return 0;
}

int job_fit_ranks(const struct job *job, int n_possible)
{
    int others = job->parallel.tp * job->parallel.pp * job->parallel.cp;

    int64_t sum = sum_of(&job->parallel.micro_batches);
    int n_replicas = job->parallel.replica_micro_batches.n;

    if (n_replicas)
        return n_replicas * others <= n_possible ? n_replicas * others : 0;
    for (int dp = n_possible / others; dp > 0; dp--) {
        int groups_fit = job->parallel.zero_group == 0 || dp % job->parallel.zero_group == 0;
        int unit = job->parallel.micro_batches_auto ? dp : job->train.micro_batch * dp;
        int batches_fit =
            sum ? sum * dp == job->train.global_batch : job->train.global_batch % unit == 0;

        if (groups_fit && batches_fit)
            return dp * others;
    }
    return 0;
}

static int is_not_built(const struct field *f, const struct job *job)
{
    int value = *(const int *)(const void *)((const char *)job + f->offset);

    if (f->built_max)
        return value > f->built_max;
    for (const struct choice *c = f->choices; c && c->word; c++)
        if (f->not_built && c->value == value && !strcmp(c->word, f->not_built))
            return 1;
    return 0;
}

int job_check_built(const struct job *job, struct err *err)
{
    struct str text = { 0 };
    int n = 0;

    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];

        if (!is_not_built(f, job))
            continue;
        str_printf(&text, n++ ? ", %s " : "%s ", f->key);
        field_print_not_built(f, &text);
    }
    if (n)
        err_set(err, ERR_CONFIG, "%s: not built yet: %s (hint: leave %s out)", job->source,
                str_text(&text), n == 1 ? "it" : "them");
    str_release(&text);
    return n ? -1 : 0;
}

int job_resolve(struct job *job, int world_size, struct arena *arena, struct err *err)
{
    if (job_derive(job, world_size, arena, err))
        return -1;
    return job_check_built(job, err);
}
