/*
 * layer_cost.c - compiling and simulating programs of few layers, and their differences
 */
#include "plan/layer_cost.h"

#include <string.h>

#include "base/num.h"
#include "config/parameters.h"
#include "plan/islands.h"
#include "plan/programs.h"
#include "plan/step_time.h"

/* Times are of the second micro-batch's forward and of the first's backward: the first gathers
 * weights, and the last sums gradients, beside. */
enum { N_MICRO_BATCHES = 2 };

struct layer_cost_entry {
    struct layer_key key;
    struct layer_costs costs;
};

/* ---- kinds of layers ---- */

/* Whether two layers of the model have the same parameters and attend to as many keys. */
static bool is_same_kind(const struct job *job, int a, int b)
{
    struct parameter_spec of[2][LAYER_MAX_PARAMETERS];
    int n = parameters_of_layer(&job->model, a, of[0]);

    if (parameters_of_layer(&job->model, b, of[1]) != n ||
        model_spec_keys(&job->model, a, job->data.seq_len) !=
            model_spec_keys(&job->model, b, job->data.seq_len))
        return false;
    for (int i = 0; i < n; i++)
        if (of[0][i].id.module != of[1][i].id.module || of[0][i].id.part != of[1][i].id.part ||
            of[0][i].rows != of[1][i].rows || of[0][i].cols != of[1][i].cols)
            return false;
    return true;
}

int layer_cost_representative(const struct job *job, int layer)
{
    for (int i = 1; i < job->model.n_layers; i++)
        if (is_same_kind(job, i, layer))
            return i;
    return min_int(1, job->model.n_layers - 1);
}

/* ---- one program ---- */

/* What a program of one stage takes. */
struct measure {
    struct layer_cost cost; /* once: all of the step */
    int64_t fixed_bytes, scratch_bytes;
    int n_compiled;
};

enum layer_pass { PASS_FORWARD, PASS_BACKWARD, PASS_WEIGHT, N_PASSES };

struct function_watch {
    const struct program *program; /* of rank 0 */
    struct {
        int64_t begin, end, of_weights;
    } of[N_PASSES][N_MICRO_BATCHES];
};

static int pass_of(const struct function *f)
{
    static const char *const names[N_PASSES] = { "forward", "backward", "weight" };

    for (int i = 0; i < N_PASSES; i++)
        if (str_starts_with(f->name, names[i]))
            return i;
    return -1;
}

static void on_span(void *context, const struct simulated_span *span)
{
    struct function_watch *watch = context;

    if (span->rank || span->stream != STREAM_COMPUTE || span->op < 0)
        return;
    const struct action *a = &watch->program->entries[ENTRY_STEP].actions[span->action];
    const struct function *f = &watch->program->functions[a->function];
    int pass = pass_of(f), m = a->micro_batch;
    if (pass < 0 || m < 0)
        return;
    if (!watch->of[pass][m].end)
        watch->of[pass][m].begin = span->begin;
    watch->of[pass][m].end = span->end;
    if (f->ops[span->op].phase == PHASE_W)
        watch->of[pass][m].of_weights += span->end - span->begin;
}

static void take_bytes(const struct program *p, struct measure *m)
{
    for (int s = 0; s < N_SEGMENTS; s++) {
        int64_t n = (int64_t)p->segment_bytes[s];

        if (s != SEGMENT_STASH && segment_space((enum segment)s) != SPACE_FILE)
            *(s == SEGMENT_WEIGHTS     ? &m->cost.weight_bytes
              : s == SEGMENT_GRADIENTS ? &m->cost.gradient_bytes
              : s == SEGMENT_STATES    ? &m->cost.state_bytes
                                       : &m->fixed_bytes) += n;
    }
    m->scratch_bytes = (int64_t)p->segment_bytes[SEGMENT_SCRATCH];
    for (int i = 0; i < p->n_stashes; i++)
        m->cost.slot_bytes +=
            p->stashes[i].segment == SEGMENT_STASH ? (int64_t)p->stashes[i].slot_bytes : 0;
}

static int64_t duration(const struct function_watch *watch, enum layer_pass pass, int micro_batch)
{
    return watch->of[pass][micro_batch].end - watch->of[pass][micro_batch].begin;
}

static void take_times(const struct function_watch *watch, bool is_split, int64_t step_ns,
                       struct measure *m)
{
    int64_t b = duration(watch, PASS_BACKWARD, 0);

    m->cost.f = duration(watch, PASS_FORWARD, 1);
    m->cost.w = is_split ? duration(watch, PASS_WEIGHT, 0) : watch->of[PASS_BACKWARD][0].of_weights;
    m->cost.i = is_split ? b : b - m->cost.w;
    m->cost.once = max_i64(0, step_ns - N_MICRO_BATCHES * (m->cost.f + m->cost.i + m->cost.w));
}

static struct job job_of(const struct job *job, const struct layer_key *key, int n_layers)
{
    struct job small = *job;

    small.model.n_layers = n_layers;
    small.train.fp8_edge_layers = 0; /* as most layers are */
    small.train.micro_batch = key->micro_batch;
    small.train.global_batch = N_MICRO_BATCHES * key->micro_batch * key->dp;
    small.n_micro_batches = N_MICRO_BATCHES;
    small.parallel.tp = key->tp;
    small.parallel.dp = key->dp;
    small.parallel.ep = key->ep;
    small.parallel.pp = key->is_split ? 2 : 1;
    small.parallel.chunks = 1;
    small.parallel.schedule = key->is_split ? PIPELINE_ZB_H1 : PIPELINE_1F1B;
    small.parallel.stages = (struct job_counts){ NULL, 0 };
    small.parallel.micro_batches = (struct job_counts){ NULL, 0 };
    small.parallel.zero = key->zero;
    small.parallel.zero_group = key->zero_group;
    small.parallel.bucket_mb = key->bucket_mb;
    small.parallel.hold = key->hold;
    small.parallel.prefetch = 0; /* it is no layer's */
    small.parallel.gradient_sum = job_gradient_sum(job, key->zero);
    small.recompute = key->recompute;
    small.world_size = key->tp * key->dp * small.parallel.pp * small.parallel.cp;
    return small;
}

static int simulate_on(const struct layer_cost_cache *cache, const struct layer_key *key,
                       struct simulated_step *step, const struct job *job,
                       const struct program *programs, const struct simulate_watch *watch,
                       struct arena *arena, struct err *err)
{
    struct cluster view = islands_view(cache->cluster, key->island, job->world_size, arena);

    const struct step_replica all = { ALL_DATA_RANKS, programs };

    return step_time_simulate(step, job, &all, 1, &view, watch, NULL, arena, err);
}

/* Where backwards are split there is a second rank, with a layer and the head: one has no
 * pipeline. */
static int measure(const struct layer_cost_cache *cache, const struct layer_key *key, int n_layers,
                   struct measure *m)
{
    struct job job = job_of(cache->job, key, n_layers + key->is_split);
    const int stages[] = { n_layers, 1 };
    struct program programs[2] = { 0 };
    struct function_watch watch = { .program = programs };
    struct simulate_watch on = { &watch, on_span };
    struct arena arena = { 0 };
    struct programs_request request = { .job = &job,
                                        .kernels = cache->kernels,
                                        .unverified = true };
    struct simulated_step step;
    struct err err;
    int status = 0;

    if (key->is_split)
        job.parallel.stages = (struct job_counts){ stages, 2 };
    for (; request.pp_rank < job.parallel.pp && !status; request.pp_rank++)
        status = programs_compile(&programs[request.pp_rank], &request, &err);
    *m = (struct measure){ .n_compiled = request.pp_rank };
    if (!status)
        status = simulate_on(cache, key, &step, &job, programs, &on, &arena, &err);
    if (!status) {
        take_bytes(programs, m);
        take_times(&watch, key->is_split, step.ns, m);
    }
    for (int i = 0; i < request.pp_rank; i++)
        program_release(&programs[i]);
    arena_release(&arena);
    return status;
}

/* ---- differences ---- */

static struct layer_cost subtract(struct layer_cost a, struct layer_cost b)
{
    return (struct layer_cost){ .f = max_i64(0, a.f - b.f),
                                .i = max_i64(0, a.i - b.i),
                                .w = max_i64(0, a.w - b.w),
                                .once = max_i64(0, a.once - b.once),
                                .weight_bytes = max_i64(0, a.weight_bytes - b.weight_bytes),
                                .gradient_bytes = max_i64(0, a.gradient_bytes - b.gradient_bytes),
                                .state_bytes = max_i64(0, a.state_bytes - b.state_bytes),
                                .slot_bytes = max_i64(0, a.slot_bytes - b.slot_bytes),
                                .handed_bytes = 0 };
}

/* ---- several programs at the same time ---- */

/* A program of so many layers, and what it took. */
struct layer_measure {
    struct layer_key key;
    int n_layers;
    bool is_possible;
    struct measure of;
};

static struct layer_measure *find_measure(const struct layer_cost_cache *cache,
                                          const struct layer_key *key, int n_layers)
{
    for (int i = 0; i < cache->n_measures; i++)
        if (cache->measures[i].n_layers == n_layers &&
            !memcmp(&cache->measures[i].key, key, sizeof *key))
            return &cache->measures[i];
    return NULL;
}

static void add_measure(struct layer_cost_cache *cache, const struct layer_key *key, int n_layers)
{
    if (find_measure(cache, key, n_layers))
        return;
    cache->measures = arena_grow(cache->arena, cache->measures, sizeof *cache->measures,
                                 &cache->measures_capacity, cache->n_measures + 1);
    cache->measures[cache->n_measures++] =
        (struct layer_measure){ .key = *key, .n_layers = n_layers };
}

/* One layer, and for each kind as many as there are before its representative, and that one. */
static void add_measures_of(struct layer_cost_cache *cache, const struct layer_key *key)
{
    add_measure(cache, key, 1);
    for (int i = 0; i < cache->job->model.n_layers; i++) {
        int like = cache->representatives[i];

        if (like > 1)
            add_measure(cache, key, like);
        if (like > 0)
            add_measure(cache, key, like + 1);
    }
}

static void list_representatives(struct layer_cost_cache *cache)
{
    if (cache->representatives)
        return;
    cache->representatives = arena_array(cache->arena, int, cache->job->model.n_layers);
    for (int i = 0; i < cache->job->model.n_layers; i++)
        cache->representatives[i] = layer_cost_representative(cache->job, i);
}

struct measuring_layers {
    const struct layer_cost_cache *cache;
    struct layer_measure *measures;
};

static void measure_one(void *context, int64_t tile, int thread)
{
    struct measuring_layers *m = context;
    struct layer_measure *measured = &m->measures[tile];

    (void)thread;
    measured->is_possible = !measure(m->cache, &measured->key, measured->n_layers, &measured->of);
}

static struct layer_cost_entry *find_entry(const struct layer_cost_cache *cache,
                                           const struct layer_key *key)
{
    for (int i = 0; i < cache->n; i++)
        if (!memcmp(&cache->entries[i]->key, key, sizeof *key))
            return cache->entries[i];
    return NULL;
}

void layer_costs_prepare(struct layer_cost_cache *cache, const struct layer_key *keys, int n)
{
    int first = cache->n_measures;
    struct measuring_layers m = { .cache = cache };

    list_representatives(cache);
    for (int i = 0; i < n; i++)
        if (!find_entry(cache, &keys[i]))
            add_measures_of(cache, &keys[i]);
    m.measures = cache->measures + first;
    if (cache->pool)
        pool_run(cache->pool, cache->n_measures - first, measure_one, &m);
    for (int i = first; i < cache->n_measures; i++) {
        if (!cache->pool)
            measure_one(&m, i - first, 0);
        cache->n_compiled += cache->measures[i].of.n_compiled;
    }
}

/* ---- costs of a key ---- */

static int find_costs(struct layer_cost_cache *cache, const struct layer_key *key,
                      struct layer_costs *costs)
{
    int n = cache->job->model.n_layers;
    const struct layer_cost **layers = arena_array(cache->arena, const struct layer_cost *, n);
    const struct layer_measure *first = find_measure(cache, key, 1);

    if (!first->is_possible)
        return -1;
    for (int i = 0; i < n; i++) {
        int like = cache->representatives[i];

        for (int j = 0; j < i && !layers[i]; j++)
            layers[i] = cache->representatives[j] == like ? layers[j] : NULL;
        if (layers[i])
            continue;
        struct layer_cost *cost = arena_array(cache->arena, struct layer_cost, 1);
        const struct layer_measure *before = like > 1 ? find_measure(cache, key, like) : first;
        const struct layer_measure *with = like > 0 ? find_measure(cache, key, like + 1) : first;

        if (!before->is_possible || !with->is_possible)
            return -1;
        if (like > 0)
            *cost = subtract(with->of.cost, before->of.cost);
        layers[i] = cost;
    }
    costs->layers = layers;
    costs->ends = subtract(first->of.cost, *layers[0]);
    costs->fixed_bytes = first->of.fixed_bytes;
    costs->scratch_bytes = first->of.scratch_bytes;
    costs->is_possible = true;
    return 0;
}

const struct layer_costs *layer_costs_find(struct layer_cost_cache *cache,
                                           const struct layer_key *key)
{
    struct layer_cost_entry *entry = find_entry(cache, key);

    if (entry)
        return &entry->costs;
    layer_costs_prepare(cache, key, 1);
    cache->entries = arena_grow(cache->arena, cache->entries, sizeof *cache->entries,
                                &cache->capacity, cache->n + 1);
    entry = arena_array(cache->arena, struct layer_cost_entry, 1);
    entry->key = *key;
    cache->entries[cache->n++] = entry;
    entry->costs.is_possible = !find_costs(cache, key, &entry->costs);
    return &entry->costs;
}
