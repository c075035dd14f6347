/*
 * plan_time.c - the time of a step, as text and as JSON
 */
#include "plan_time.h"

#include <stdio.h>

#include "base/num.h"
#include "plan/fit.h"
#include "plan/islands.h"
#include "plan/sensitivity.h"
#include "plan/step_time.h"
#include "plan/suggest.h"
#include "plan/whole_run.h"
#include "plan_hidden.h"
#include "program/passes.h"
#include "report/table.h"
#include "report/waterfall.h"

#define TIME_BAR 32 /* characters */

struct answer {
    struct step_time time;
    struct sensitivity sensitivity;
    struct plan_fit fit;
    struct whole_run run;
    int rank; /* in the world: the busiest stage's first */
    struct arena arena;
};

static int find_answer(struct answer *answer, const struct plan *plan,
                       const struct cluster *cluster, struct err *err)
{
    const struct mesh mesh = job_mesh(plan->job);

    *answer = (struct answer){ .fit = plan_judge(plan, cluster, 0) };
    if (step_time_predict(&answer->time, plan, cluster, &answer->arena, err) ||
        sensitivity_find(&answer->sensitivity, plan, cluster, &answer->time, &answer->arena, err))
        return -1;
    answer->rank = mesh_stage_ranks(&mesh, answer->time.simulated.busiest).first;
    whole_run_find(&answer->run, plan, cluster, &answer->time);
    return 0;
}

/* ---- text ---- */

static void add_row(struct report_table *table, struct waterfall *waterfall, const char *what,
                    int64_t ns)
{
    struct str bar = { 0 };

    waterfall_next(waterfall, (double)ns, &bar);
    if (ns)
        report_table_row(table, "%s\t%.1f ms\t%.1f %%\t%s", what, (double)ns / 1e6,
                         100 * (double)ns / waterfall->whole, str_text(&bar));
    str_release(&bar);
}

static void print_classes(const struct answer *answer, struct str *out)
{
    const struct step_time *time = &answer->time;
    const struct simulated_rank *rank = &time->simulated.ranks[time->simulated.busiest];
    struct waterfall waterfall = { .whole = (double)time->ns, .width = TIME_BAR };
    struct report_table table;

    report_table_init(&table, "lrrl");
    if (time->simulated.n_ranks > 1)
        report_table_heading(&table, "time of a step of rank %d, the busiest\ttime\tshare",
                             answer->rank);
    else
        report_table_heading(&table, "time of a step\ttime\tshare");
    for (int i = 0; i < N_TIME_CLASSES; i++)
        add_row(&table, &waterfall, time_class_name((enum time_class)i), rank->of[i]);
    add_row(&table, &waterfall, "host: data, scalars, logging", time->constant_ns);
    add_row(&table, &waterfall, "waiting for the slowest of all ranks", time->jitter_ns);
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

static double percent_more(const struct answer *answer, int64_t ns)
{
    return 100 * ((double)ns / (double)answer->time.ns - 1);
}

static void print_halved(const struct answer *answer, struct str *out)
{
    const struct other_layout *halved = &answer->sensitivity.halved;
    char lacks[32];

    if (!halved->change)
        return;
    str_printf(out, "half as many micro-batches (%s): %+.1f %%", halved->change,
               percent_more(answer, halved->ns));
    if (!halved->fit.fits)
        str_printf(out, ", which lacks %s",
                   str_bytes(lacks, sizeof lacks, halved->fit.needed - halved->fit.available));
    str_add(out, "\n");
}

static void print_sensitivity(const struct answer *answer, struct str *out)
{
    const struct sensitivity *s = &answer->sensitivity;

    str_add(out, "\n10 % faster, one at a time, change the step by:");
    for (int i = 0; i < N_DEVICE_PARTS; i++)
        str_printf(out, "%s %s %+.1f %%", i ? "," : "", device_part_name((enum device_part)i),
                   percent_more(answer, s->faster_ns[i]));
    str_printf(out, "\none slow rank, %g times as long: %+.1f %%\n", SENSITIVITY_SLOWER,
               percent_more(answer, s->slow_ns));
    print_halved(answer, out);
    if (s->roomier.change)
        str_printf(out, "16 GiB more memory: %+.1f %% (%s)\n", percent_more(answer, s->roomier.ns),
                   s->roomier.change);
    else if (answer->fit.fits)
        str_add(out, "16 GiB more memory: no faster layout by one change\n");
}

static void print_checkpoints(const struct whole_run *run, struct str *out)
{
    char bytes[32];

    if (!(run->checkpoints.save_seconds > 0) && !(run->checkpoints.load_seconds > 0))
        return;
    str_printf(out, "checkpoints: %lld of %s", (long long)run->checkpoints.n,
               str_bytes(bytes, sizeof bytes, (size_t)run->checkpoints.bytes));
    if (run->checkpoints.save_seconds > 0)
        str_printf(out, ", one is written in %.3g s, for which a step waits %.3g s",
                   run->checkpoints.save_seconds, run->checkpoints.stall_seconds);
    if (run->checkpoints.load_seconds > 0)
        str_printf(out, ", a resume reads it in %.3g s", run->checkpoints.load_seconds);
    str_add(out, "\n");
}

static void print_run(const struct whole_run *run, struct str *out)
{
    if (run->n_steps < 2)
        return;
    str_printf(out,
               "all %lld steps: %.4g G tokens, %.1f days, %.0f GPU-days, %.4g ZFLOP of the model",
               (long long)run->n_steps, run->tokens / 1e9, run->seconds / 86400, run->device_days,
               run->model_flops / 1e21);
    if (run->kilowatt_hours > 0)
        str_printf(out, ", %.4g MWh", run->kilowatt_hours / 1000);
    if (run->price > 0)
        str_printf(out, ", a price of %.4g", run->price);
    str_add(out, "\n");
    str_printf(out,
               "at the peak of the data sheets: %.0f GPU-days for %.4g ZFLOP by Megatron-LM's "
               "formula\n",
               run->device_days_at_peak, run->megatron_flops / 1e21);
    print_checkpoints(run, out);
}

/* ", 89.7 GiB states": the largest part. */
static void print_largest(const struct program *p, struct str *out)
{
    struct memory_row rows[N_SEGMENTS + 1];
    int n = program_memory_table(p, rows, N_SEGMENTS + 1), most = 0;
    char size[32];

    for (int i = 1; i < n; i++)
        if (rows[i].space != SPACE_FILE && rows[i].n_bytes > rows[most].n_bytes)
            most = i;
    str_printf(out, ", %s %s", str_bytes(size, sizeof size, rows[most].n_bytes), rows[most].name);
}

void plan_print_fit(const struct plan *plan, const struct plan_fit *fit, const char *device,
                    int n_ranks_max, struct str *out)
{
    char needed[32], available[32];
    struct suggestions suggestions;
    struct arena arena = { 0 };

    str_bytes(needed, sizeof needed, fit->needed);
    str_bytes(available, sizeof available, fit->available);
    str_printf(out, "%s: a rank needs %s of the %s that a job may use of %s",
               fit->fits ? "fits" : "does not fit", needed, available, device);
    if (!fit->fits)
        print_largest(&plan->programs[fit->pp_rank], out);
    str_add(out, "\n");
    if (fit->fits)
        return;
    str_add(out, "(hint: ");
    suggest_find(&suggestions, plan->job, plan->kernels, fit->needed, fit->available, n_ranks_max,
                 &arena);
    suggest_print(&suggestions, out);
    str_add(out, ")\n");
    arena_release(&arena);
}

/* Of a device that is named there are as many as one likes; a cluster has as many as it has. */
static int most_ranks(const struct cluster *cluster)
{
    return cluster->name == cluster->islands[0].device->name ? N_RANKS_MAX
                                                             : cluster_n_devices(cluster);
}

static void print_sources(const struct step_time *time, struct str *out)
{
    const double *shares = time->shares;

    if (shares[PRICE_MEASURED] + shares[PRICE_INTERPOLATED] <= 0)
        str_add(out, "by formulas from data sheets, nothing measured");
    else
        str_printf(
            out,
            "%.0f %% of the time from measured tables, %.0f %% interpolated in them, %.0f %% "
            "by formulas",
            100 * shares[PRICE_MEASURED], 100 * shares[PRICE_INTERPOLATED],
            100 * shares[PRICE_FORMULA]);
}

int plan_print_time(const struct plan *plan, const struct cluster *cluster, struct str *out,
                    struct err *err)
{
    struct answer answer;
    int status = find_answer(&answer, plan, cluster, err);

    if (!status) {
        const struct step_time *time = &answer.time;
        struct str devices = { 0 };
        char count[32] = "";

        islands_name(cluster, plan->job->world_size, &devices);
        if (islands_are_alike(cluster))
            snprintf(count, sizeof count, "%d ", plan->job->world_size);
        str_printf(out,
                   "\npredicted on %s%s: %.3f s a step, %.0f tokens/s, MFU %.1f %%, HFU %.1f %% (",
                   count, str_text(&devices), (double)time->ns / 1e9, time->tokens_per_second,
                   100 * time->mfu, 100 * time->hfu);
        str_release(&devices);
        print_sources(time, out);
        str_add(out, ")\n\n");
        print_classes(&answer, out);
        status = plan_print_hidden(plan, cluster, out, err);
        print_sensitivity(&answer, out);
        print_run(&answer.run, out);
        plan_print_fit(plan, &answer.fit, answer.fit.device, most_ranks(cluster), out);
        status = status ? status : answer.fit.fits ? 0 : 2;
    }
    arena_release(&answer.arena);
    return status;
}

/* ---- JSON ---- */

static void add_other(const char *name, const struct other_layout *other, cJSON *json)
{
    if (!other->change)
        return;
    cJSON *item = cJSON_AddObjectToObject(json, name);

    cJSON_AddStringToObject(item, "change", other->change);
    cJSON_AddNumberToObject(item, "step_ns", (double)other->ns);
    cJSON_AddNumberToObject(item, "needed_bytes", (double)other->fit.needed);
    cJSON_AddNumberToObject(item, "available_bytes", (double)other->fit.available);
    cJSON_AddBoolToObject(item, "fits", other->fit.fits);
}

static void add_sensitivity(const struct sensitivity *s, cJSON *json)
{
    cJSON *faster = cJSON_AddObjectToObject(json, "step_ns_if_10_percent_faster");

    for (int i = 0; i < N_DEVICE_PARTS; i++)
        cJSON_AddNumberToObject(faster, device_part_name((enum device_part)i),
                                (double)s->faster_ns[i]);
    cJSON_AddNumberToObject(json, "step_ns_if_a_rank_is_10_percent_slower", (double)s->slow_ns);
    add_other("if_half_the_micro_batches", &s->halved, json);
    add_other("if_16_gib_more_memory", &s->roomier, json);
}

/* What would fit, if the plan does not. */
static void add_suggestions(const struct plan *plan, const struct cluster *cluster,
                            const struct plan_fit *fit, cJSON *json)
{
    struct suggestions suggestions;
    struct arena arena = { 0 };

    if (fit->fits)
        return;
    cJSON *list = cJSON_AddArrayToObject(json, "would_fit");
    suggest_find(&suggestions, plan->job, plan->kernels, fit->needed, fit->available,
                 most_ranks(cluster), &arena);
    for (int i = 0; i < suggestions.n; i++) {
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "change", suggestions.found[i].change);
        cJSON_AddNumberToObject(item, "needed_bytes", (double)suggestions.found[i].bytes);
        if (suggestions.found[i].host_bytes)
            cJSON_AddNumberToObject(item, "host_bytes", (double)suggestions.found[i].host_bytes);
        cJSON_AddItemToArray(list, item);
    }
    arena_release(&arena);
}

static void add_run(const struct whole_run *run, cJSON *json)
{
    cJSON *total = cJSON_AddObjectToObject(json, "run");

    cJSON_AddNumberToObject(total, "steps", (double)run->n_steps);
    cJSON_AddNumberToObject(total, "tokens", run->tokens);
    cJSON_AddNumberToObject(total, "seconds", run->seconds);
    cJSON_AddNumberToObject(total, "device_days", run->device_days);
    cJSON_AddNumberToObject(total, "model_flops", run->model_flops);
    cJSON_AddNumberToObject(total, "megatron_flops", run->megatron_flops);
    cJSON_AddNumberToObject(total, "device_days_at_peak", run->device_days_at_peak);
    if (run->kilowatt_hours > 0)
        cJSON_AddNumberToObject(total, "kilowatt_hours", run->kilowatt_hours);
    if (run->price > 0)
        cJSON_AddNumberToObject(total, "price", run->price);
    cJSON_AddNumberToObject(total, "checkpoints", (double)run->checkpoints.n);
    cJSON_AddNumberToObject(total, "checkpoint_bytes", run->checkpoints.bytes);
    if (run->checkpoints.save_seconds > 0) {
        cJSON_AddNumberToObject(total, "checkpoint_save_seconds", run->checkpoints.save_seconds);
        cJSON_AddNumberToObject(total, "checkpoint_stall_seconds", run->checkpoints.stall_seconds);
    }
    if (run->checkpoints.load_seconds > 0)
        cJSON_AddNumberToObject(total, "checkpoint_load_seconds", run->checkpoints.load_seconds);
}

static void add_classes(const struct simulated_rank *rank, cJSON *json)
{
    for (int i = 0; i < N_TIME_CLASSES; i++)
        cJSON_AddNumberToObject(json, time_class_name((enum time_class)i), (double)rank->of[i]);
}

static void add_stages(const struct simulated_step *simulated, cJSON *json)
{
    cJSON_AddNumberToObject(json, "busiest_stage", simulated->busiest);
    add_classes(&simulated->ranks[simulated->busiest],
                cJSON_AddObjectToObject(json, "busiest_stage_ns"));
    cJSON *stages = cJSON_AddArrayToObject(json, "stages_ns");
    for (int i = 0; i < simulated->n_ranks; i++) {
        cJSON *stage = cJSON_CreateObject();

        add_classes(&simulated->ranks[i], stage);
        cJSON_AddItemToArray(stages, stage);
    }
}

int plan_add_time(const struct plan *plan, const struct cluster *cluster, cJSON *json,
                  struct err *err)
{
    struct answer answer;
    int status = find_answer(&answer, plan, cluster, err);

    if (!status) {
        const struct step_time *time = &answer.time;
        cJSON *made = cJSON_AddObjectToObject(json, "predicted");

        struct str devices = { 0 };

        islands_name(cluster, plan->job->world_size, &devices);
        cJSON_AddStringToObject(made, "device", str_text(&devices));
        str_release(&devices);
        cJSON_AddBoolToObject(made, "planning_only", cluster_planning_only(cluster) != NULL);
        cJSON_AddNumberToObject(made, "step_ns", (double)time->ns);
        if (time->cpu_ns)
            cJSON_AddNumberToObject(made, "step_cpu_ns", (double)time->cpu_ns);
        cJSON_AddNumberToObject(made, "tokens_per_second", time->tokens_per_second);
        cJSON_AddNumberToObject(made, "mfu", time->mfu);
        cJSON_AddNumberToObject(made, "hfu", time->hfu);
        cJSON_AddNumberToObject(made, "measured_share", time->shares[PRICE_MEASURED]);
        cJSON_AddNumberToObject(made, "interpolated_share", time->shares[PRICE_INTERPOLATED]);
        cJSON_AddNumberToObject(made, "formula_share", time->shares[PRICE_FORMULA]);
        cJSON_AddNumberToObject(made, "busiest_rank", answer.rank);
        add_stages(&time->simulated, made);
        status = plan_add_hidden(plan, cluster, made, err);
        add_sensitivity(&answer.sensitivity, made);
        cJSON_AddNumberToObject(made, "constant_ns", (double)time->constant_ns);
        cJSON_AddNumberToObject(made, "jitter_ns", (double)time->jitter_ns);
        add_run(&answer.run, made);
        cJSON_AddNumberToObject(made, "needed_bytes", (double)answer.fit.needed);
        cJSON_AddNumberToObject(made, "available_bytes", (double)answer.fit.available);
        cJSON_AddBoolToObject(made, "fits", answer.fit.fits);
        add_suggestions(plan, cluster, &answer.fit, made);
        status = status ? status : answer.fit.fits ? 0 : 2;
    }
    arena_release(&answer.arena);
    return status;
}
