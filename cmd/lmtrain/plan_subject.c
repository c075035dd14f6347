/*
 * plan_subject.c - reading a job for `lmtrain plan`
 */
#include "plan_subject.h"

#include <string.h>

#include "base/log.h"
#include "base/num.h"
#include "cmd.h"
#include "kernels/gpu_sizes.h"
#include "launch/cores.h"
#include "plan/price_table.h"
#include "plan/suggest_search.h"
#include "plan_time.h"
#include "train/prepare_data.h"
#include "tuned.h"

/* ---- --layout ---- */

/* Which field a key of --layout is. */
static const char *field_of(const char *key, struct arena *arena)
{
    if (!strcmp(key, "recompute"))
        return key;
    return arena_printf(arena, strcmp(key, "micro_batch") ? "parallel.%s" : "train.%s", key);
}

/* "tp=8"; a map has commas of its own: "cp_kind={ulysses: 2, gather: 4}". */
static size_t item_length(const char *at)
{
    size_t length = strcspn(at, ",{");

    return at[length] == '{' ? length + strcspn(at + length, "}") + (strchr(at, '}') != NULL)
                             : length;
}

/* The overrides, and those that "tp=8,pp=4" is: a layout is given, not searched. */
static int add_layout(const struct plan_reading *q, struct option_list *sets, struct arena *arena,
                      struct err *err)
{
    const char *at = q->layout ? q->layout : "";
    int capacity = 0;

    *sets = (struct option_list){ .n = 0 };
    for (int i = 0; i < q->sets.n; i++) {
        sets->items = arena_grow(arena, sets->items, sizeof *sets->items, &capacity, sets->n + 2);
        sets->items[sets->n++] = q->sets.items[i];
    }
    while (*at) {
        size_t length = item_length(at), key = strcspn(at, "=");

        if (key == 0 || key >= length)
            return err_set(err, ERR_CONFIG,
                           "--layout is %s, not KEY=VALUE,... (hint: tp=8,pp=4,zero=1)", q->layout);
        sets->items = arena_grow(arena, sets->items, sizeof *sets->items, &capacity, sets->n + 2);
        sets->items[sets->n++] =
            arena_printf(arena, "%s=%.*s", field_of(arena_strndup(arena, at, key), arena),
                         (int)(length - key - 1), at + key + 1);
        sets->items[sets->n] = "parallel.mode=manual";
        at += length + (at[length] == ',');
    }
    sets->n += q->layout && *q->layout;
    return 0;
}

/* ---- the cluster and the layout ---- */

/* What determines the speed of this machine's CPUs' kernels, in the arena; NULL: it cannot be
 * found. */
static const char *find_machine(struct arena *arena)
{
    struct kernels *kernels = NULL;
    const char *machine = NULL;
    struct pool *pool = NULL;
    struct err ignored;

    if (!pool_create(&pool, 1, NULL, &ignored) &&
        !kernels_cpu_create(&kernels, pool, NULL, &ignored))
        machine = arena_strdup(arena, kernels_identity(kernels));
    kernels_destroy(kernels);
    pool_destroy(pool);
    return machine;
}

/* Prices of another build, or of other kernels and libraries than here, may be others today. */
static void warn_if_stale(const struct cluster *cluster, struct arena *arena)
{
    const struct price_table *table = cluster->table;
    const char *machine = cluster_is_cpu(cluster) ? find_machine(arena) : NULL;

    if (!table->build || strcmp(table->build, cmd_build()) != 0)
        log_warn(
            "%s was measured by %s%s, this is lmtrain %s (hint: lmtrain bench cluster measures "
            "again)",
            cluster->tables, table->build ? "lmtrain " : "an earlier lmtrain",
            table->build ? table->build : "", cmd_build());
    if (machine && table->machine && strcmp(table->machine, machine) != 0)
        log_warn("%s is of a machine \"%s\", this one is \"%s\" (hint: lmtrain bench cluster "
                 "measures this one)",
                 cluster->tables, table->machine, machine);
}

static int read_tables(struct cluster *cluster, struct arena *arena, struct err *err)
{
    struct price_table *table = arena_array(arena, struct price_table, 1);

    cluster->table = table;
    if (price_table_read(table, cluster->tables, arena, err))
        return -1;
    warn_if_stale(cluster, arena);
    return 0;
}

/* Whether the job leaves something open that depends on the devices. */
static bool needs_cluster(const struct job *job)
{
    return search_is_wanted(job) || job->parallel.micro_batches_auto;
}

/* NULL: there is --device, or nothing. */
static const char *cluster_name(const struct plan_reading *q, const struct job *job,
                                struct arena *arena)
{
    if (q->cluster || q->device)
        return q->cluster;
    if (job->cluster || !needs_cluster(job))
        return job->cluster;
    return cmd_machine_cluster(false, arena);
}

/* Of a node, where all have as many; else 0. */
static int node_ranks_of(const struct cluster *cluster)
{
    int n = cluster->islands[0].per_node;

    for (int i = 1; i < cluster->n_islands; i++)
        n = cluster->islands[i].per_node == n ? n : 0;
    return n;
}

/* That of --cluster or of the job, or of n_ranks devices. */
static int find_cluster(struct plan_subject *subject, const struct plan_reading *q,
                        const struct job *job, int n_ranks, struct arena *arena, struct err *err)
{
    struct cluster *cluster = &subject->cluster;
    struct device_spec *device = arena_array(arena, struct device_spec, 1);
    const char *name = cluster_name(q, job, arena);

    if (q->device && q->cluster)
        return err_set(err, ERR_CONFIG,
                       "--device and --cluster exclude each other (hint: a "
                       "cluster's file names its devices)");
    subject->has_cluster = q->device || name;
    if (q->device && device_read(device, q->device, arena, err))
        return -1;
    if (q->device)
        cluster_of_device(cluster, device, n_ranks, arena);
    if (!name)
        return 0;
    if (cluster_read(cluster, name, arena, err))
        return -1;
    if (n_ranks > cluster_n_devices(cluster))
        return err_set(err, ERR_CONFIG, "%d ranks, but cluster %s has %d devices", n_ranks, name,
                       cluster_n_devices(cluster));
    if (cluster->tables && read_tables(cluster, arena, err))
        return -1;
    return 0;
}

/* After the message that none of the layouts fits: what would. */
static void add_suggestions(const struct plan_subject *subject, const struct plan_reading *q,
                            int n_ranks, struct kernels *kernels, struct pool *pool,
                            struct err *err)
{
    const struct err told = *err;
    struct str text = { 0 };
    int n_max = q->device ? N_RANKS_MAX : cluster_n_devices(&subject->cluster);

    suggest_search(&subject->job, n_ranks, n_max, &subject->cluster, kernels, pool, &text);
    if (text.length)
        err_set(err, told.code, "%s; what fits: %s", told.text, str_text(&text));
    str_release(&text);
}

/* Kernels like those of the cluster's devices, for sizes. */
struct size_kernels {
    struct kernels *kernels;
    struct pool *pool;
};

/* size_kernels_close also on failure. */
static int size_kernels_open(struct size_kernels *k, const struct cluster *cluster, struct err *err)
{
    struct rank_cores cores;

    *k = (struct size_kernels){ NULL, NULL };
    if (launch_cores_of(0, 1, &cores, err) || pool_create(&k->pool, cores.n_cores, NULL, err))
        return -1;
    return cluster_is_cpu(cluster) ? kernels_cpu_create(&k->kernels, k->pool, NULL, err)
                                   : kernels_gpu_sizes_create(&k->kernels, err);
}

static void size_kernels_close(struct size_kernels *k)
{
    kernels_destroy(k->kernels);
    pool_destroy(k->pool);
}

static int refuse_without_cluster(const struct job *job, struct err *err)
{
    static const char hint[] = "(hint: --cluster NAME, --device NAME, the key cluster; or lmtrain "
                               "bench cluster, which measures this machine)";

    if (search_is_wanted(job))
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.mode is %s, which needs the devices that the layout is for %s",
                       job->source, choice_word(parallel_mode_choices, (int)job->parallel.mode),
                       hint);
    return err_set(err, ERR_CONFIG,
                   "%s: parallel.micro_batches is auto, which needs the devices that they are for "
                   "%s",
                   job->source, hint);
}

/* Give the job the best layout, or list of micro-batches, if it leaves that open. */
static int find_layout(struct plan_subject *subject, const struct plan_reading *q, struct job *job,
                       int n_ranks, struct arena *arena, struct err *err)
{
    struct size_kernels k;

    if (!needs_cluster(job))
        return 0;
    if (!subject->has_cluster)
        return refuse_without_cluster(job, err);
    subject->within = job->search.within;
    int status = size_kernels_open(&k, &subject->cluster, err);
    if (!status && job->parallel.micro_batches_auto)
        status = micro_batch_choice(&subject->sizes, job, n_ranks, &subject->cluster, k.kernels,
                                    arena, err);
    else if (!status)
        status = search_job(&subject->search, job, n_ranks, q->n_top, &subject->cluster, k.kernels,
                            k.pool, arena, err);
    if (status && q->to_suggest && k.kernels && subject->search.n_layouts)
        add_suggestions(subject, q, n_ranks, k.kernels, k.pool, err);
    size_kernels_close(&k);
    return status;
}

/* As many ranks as the layout has; a number of the job's was what there is. */
static void take_ranks(struct plan_subject *subject, int *n_ranks, struct arena *arena)
{
    int n = layout_n_ranks(&subject->search.rows[0].layout);

    if (n == *n_ranks)
        return;
    subject->ranks_note = arena_printf(arena,
                                       "ranks: %d of %d devices, the others are idle "
                                       "(search.allow_idle)",
                                       n, *n_ranks);
    if (subject->job.ranks)
        subject->job.ranks = n;
    *n_ranks = n;
}

int plan_find_layout(struct plan_subject *subject, const struct plan_reading *reading, int *n_ranks,
                     struct arena *arena, struct err *err)
{
    struct job *job = &subject->job;

    if (find_cluster(subject, reading, job, *n_ranks, arena, err))
        return -1;
    if (subject->has_cluster) {
        job->device = cluster_is_cpu(&subject->cluster) ? JOB_DEVICE_CPU : JOB_DEVICE_CUDA;
        job->node_ranks = node_ranks_of(&subject->cluster);
    }
    if (find_layout(subject, reading, job, *n_ranks, arena, err))
        return -1;
    if (subject->search.n_rows)
        take_ranks(subject, n_ranks, arena);
    return 0;
}

/*
 * Where neither an option nor the job says how many: all devices of the cluster; for --device one
 * copy of the model, whatever GPUs are here. -1 on failure.
 */
static int count_ranks(struct plan_subject *subject, const struct plan_reading *q,
                       struct arena *arena, struct err *err)
{
    const struct job *job = &subject->job;
    const char *name = cluster_name(q, job, arena);
    bool are_counted = job->ranks || (job->parallel.dp && !search_is_wanted(job));
    struct cluster cluster;

    if (are_counted || (!name && !q->device))
        return cmd_n_ranks(job);
    if (!name)
        return job->parallel.tp * job->parallel.pp * job->parallel.cp *
               max_int(1, job->parallel.dp);
    if (cluster_read(&cluster, name, arena, err))
        return -1;
    int n = cluster_n_devices(&cluster);
    subject->ranks_note =
        arena_printf(arena, "ranks: %d, all devices of the cluster (--ranks N: less)", n);
    return n;
}

int plan_read_subject(struct plan_subject *subject, const struct plan_reading *reading,
                      const char *path, int n_ranks, struct arena *arena, struct err *err)
{
    struct job *job = &subject->job;
    struct option_list sets;

    *subject = (struct plan_subject){ .has_cluster = false };
    if (add_layout(reading, &sets, arena, err) ||
        job_read(job, path, sets.items, sets.n, arena, err) < 0)
        return -1;
    job_log_warnings(job);
    if (!n_ranks && (n_ranks = count_ranks(subject, reading, arena, err)) < 0)
        return -1;
    tuned_foresee_vocabulary(job, arena);
    prepare_data_foresee(job, arena);
    if (plan_find_layout(subject, reading, &n_ranks, arena, err))
        return -1;
    if (subject->has_cluster)
        job->rates = &subject->cluster;
    return job_resolve(job, n_ranks, arena, err) < 0 ? -1 : 0;
}
