/*
 * plan_sweep.c - one prediction a number of ranks
 */
#include "plan_sweep.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "kernels/gpu_sizes.h"
#include "plan/fit.h"
#include "plan/step_time.h"
#include "plan_layout.h"
#include "report/table.h"

enum { N_SWEPT_MAX = 64 };

struct swept {
    int n_ranks, global_batch;
    const char *layout;  /* NULL: none fits, or none is possible */
    const char *problem; /* then: why */
    struct step_time time;
    struct plan_fit fit;
};

struct plan_sweep {
    const struct plan_reading *reading;
    const char *path;
    bool is_weak;
    int ranks[N_SWEPT_MAX], n;
    struct swept rows[N_SWEPT_MAX];
    struct arena *arena;
};

static int read_ranks(struct plan_sweep *sweep, const char *text, struct err *err)
{
    const char *at = text + strlen("ranks=");

    if (!str_starts_with(text, "ranks="))
        at = "";
    do {
        char *end;
        long n = strtol(at, &end, 10);

        if (end == at || (*end && *end != ',') || n < 1 || n > 1000000 || sweep->n == N_SWEPT_MAX)
            return err_set(err, ERR_CONFIG,
                           "--sweep is %s, not up to %d numbers of ranks (hint: ranks=8,16,32)",
                           text, N_SWEPT_MAX);
        sweep->ranks[sweep->n++] = (int)n;
        at = end + (*end == ',');
    } while (*at);
    return 0;
}

/* The overrides, with the global batch of these ranks if it grows with them. */
static int set_batch(struct plan_reading *reading, const struct plan_sweep *sweep, int n_ranks,
                     struct err *err)
{
    struct job job;
    const char **sets = arena_array(sweep->arena, const char *, reading->sets.n + 1);

    if (!sweep->is_weak)
        return 0;
    if (job_read(&job, sweep->path, reading->sets.items, reading->sets.n, sweep->arena, err))
        return -1;
    if (reading->sets.n)
        memcpy(sets, reading->sets.items, sizeof *sets * (size_t)reading->sets.n);
    sets[reading->sets.n++] =
        arena_printf(sweep->arena, "train.global_batch=%lld",
                     (long long)job.train.global_batch * n_ranks / sweep->ranks[0]);
    reading->sets.items = sets;
    return 0;
}

static int predict(struct plan_sweep *sweep, struct swept *row, struct err *err)
{
    struct plan_reading reading = *sweep->reading;
    struct plan_subject subject;
    struct kernels *kernels = NULL;
    struct plan plan = { 0 };
    struct str layout = { 0 };

    if (set_batch(&reading, sweep, row->n_ranks, err) ||
        plan_read_subject(&subject, &reading, sweep->path, row->n_ranks, sweep->arena, err))
        return -1;
    if (!subject.has_cluster)
        return err_set(err, ERR_CONFIG,
                       "--sweep predicts times (hint: --device NAME or --cluster NAME)");
    plan.job = &subject.job;
    int status = kernels_gpu_sizes_create(&kernels, err);
    if (!status)
        status = plan_open_with(&plan, &subject.job, kernels, err);
    if (!status)
        status = step_time_predict(&row->time, &plan, &subject.cluster, sweep->arena, err);
    if (!status) {
        row->fit = plan_judge(&plan, &subject.cluster, 0);
        row->global_batch = subject.job.train.global_batch;
        plan_print_layout(&subject.job, &layout);
        str_add(&layout, ", recompute ");
        plan_print_recompute(&subject.job, &layout);
        row->layout = arena_printf(sweep->arena, "%s", str_text(&layout));
    }
    str_release(&layout);
    plan_close(&plan);
    kernels_destroy(kernels);
    return status;
}

/* ---- results ---- */

/* Of the first row that has a time. */
static const struct swept *first_of(const struct plan_sweep *sweep)
{
    for (int i = 0; i < sweep->n; i++)
        if (sweep->rows[i].layout)
            return &sweep->rows[i];
    return NULL;
}

/* Tokens a second of a rank, against the first row's. */
static double efficiency_of(const struct plan_sweep *sweep, const struct swept *row)
{
    const struct swept *first = first_of(sweep);

    return row->time.tokens_per_second / row->n_ranks /
           (first->time.tokens_per_second / first->n_ranks);
}

static void print_table(const struct plan_sweep *sweep, struct str *out)
{
    struct report_table table;
    char bytes[32];

    report_table_init(&table, "rrrrrrrl");
    report_table_heading(&table, "ranks\tglobal batch\tstep\ttokens/s\tMFU\t%s\tmemory\tlayout",
                         sweep->is_weak ? "weak scaling" : "strong scaling");
    for (int i = 0; i < sweep->n; i++) {
        const struct swept *row = &sweep->rows[i];

        if (row->layout)
            report_table_row(&table, "%d\t%d\t%.1f ms\t%.0f\t%.1f %%\t%.1f %%\t%s\t%s%s",
                             row->n_ranks, row->global_batch, (double)row->time.ns / 1e6,
                             row->time.tokens_per_second, 100 * row->time.mfu,
                             100 * efficiency_of(sweep, row),
                             str_bytes(bytes, sizeof bytes, row->fit.needed), row->layout,
                             row->fit.fits ? "" : " (does not fit)");
        else
            report_table_row(&table, "%d\t-\t-\t-\t-\t-\t-\t%s", row->n_ranks, row->problem);
    }
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

static void print_json(const struct plan_sweep *sweep, struct str *out)
{
    cJSON *json = cJSON_CreateArray();

    for (int i = 0; i < sweep->n; i++) {
        const struct swept *row = &sweep->rows[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "ranks", row->n_ranks);
        if (row->layout) {
            cJSON_AddNumberToObject(item, "global_batch", row->global_batch);
            cJSON_AddNumberToObject(item, "step_ns", (double)row->time.ns);
            cJSON_AddNumberToObject(item, "tokens_per_second", row->time.tokens_per_second);
            cJSON_AddNumberToObject(item, "mfu", row->time.mfu);
            cJSON_AddNumberToObject(item, "efficiency", efficiency_of(sweep, row));
            cJSON_AddNumberToObject(item, "needed_bytes", (double)row->fit.needed);
            cJSON_AddBoolToObject(item, "fits", row->fit.fits);
            cJSON_AddStringToObject(item, "layout", row->layout);
        } else {
            cJSON_AddStringToObject(item, "problem", row->problem);
        }
        cJSON_AddItemToArray(json, item);
    }
    char *text = cJSON_Print(json);
    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

int plan_sweep(const struct plan_reading *reading, const char *path, const char *sweep_text,
               bool is_weak, bool is_json, struct arena *arena, struct str *out)
{
    struct plan_sweep *sweep = arena_array(arena, struct plan_sweep, 1);
    struct err err = { 0 };

    sweep->reading = reading;
    sweep->path = path;
    sweep->is_weak = is_weak;
    sweep->arena = arena;
    if (read_ranks(sweep, sweep_text, &err))
        return cmd_fail(&err);
    for (int i = 0; i < sweep->n; i++) {
        struct swept *row = &sweep->rows[i];

        row->n_ranks = sweep->ranks[i];
        if (predict(sweep, row, &err))
            row->problem = arena_printf(arena, "%s", err.text);
    }
    /* What is wrong with all is wrong with the job. */
    if (!first_of(sweep))
        return cmd_fail(&err);
    if (is_json)
        print_json(sweep, out);
    else
        print_table(sweep, out);
    return 0;
}
