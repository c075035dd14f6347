/*
 * bench_report.c - lines, sums and shares
 *
 * A collective runs beside the compute ops, on the comm thread: its line has a time, but it is in
 * no sum and has no share. What the compute ops wait for it is a figure of the step.
 */
#include "bench_report.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/table.h"

/* Ops taken together: of one line, or all. */
struct line {
    const struct bench_op *first;
    int n_ops, n_runs;
    double seconds, flops, bytes, light_seconds;
};

static void line_add(struct line *line, const struct bench_op *op)
{
    if (!line->n_ops++)
        line->first = op;
    line->n_runs += op->n_runs;
    line->seconds += op->seconds;
    line->flops += op->flops;
    line->bytes += op->bytes;
    line->light_seconds += op->light_seconds;
}

static struct line compute_total(const struct bench *bench)
{
    struct line total = { 0 };

    for (int i = 0; i < bench->n_ops; i++)
        if (op_has_kernel(bench->ops[i].shape.kind))
            line_add(&total, &bench->ops[i]);
    return total;
}

static const struct op *program_op(const struct bench *bench, const struct bench_op *op)
{
    return &bench->program.functions[op->function].ops[op->op];
}

static int same_tensors(const struct tensor *a, const struct tensor *b, int n)
{
    for (int i = 0; i < n; i++)
        if (a[i].rows != b[i].rows || a[i].cols != b[i].cols || a[i].dtype != b[i].dtype)
            return 0;
    return 1;
}

static int same_line(const struct bench *bench, const struct bench_op *a, const struct bench_op *b)
{
    return a->shape.kind == b->shape.kind && a->n_runs == b->n_runs &&
           program_op(bench, a)->phase == program_op(bench, b)->phase &&
           same_tensors(a->shape.in, b->shape.in, OPS_MAX_INPUTS) &&
           same_tensors(a->shape.out, b->shape.out, OPS_MAX_OUTPUTS);
}

static int slower(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

/* One line an op, or one for all that are alike, the slowest first. Returns their number. */
static int make_lines(const struct bench *bench, bool each, struct line **lines,
                      struct arena *arena)
{
    int n = 0;

    *lines = arena_array(arena, struct line, bench->n_ops);
    for (int i = 0; i < bench->n_ops; i++) {
        int at = each ? n : 0;

        while (at < n && !same_line(bench, (*lines)[at].first, &bench->ops[i]))
            at++;
        line_add(&(*lines)[at], &bench->ops[i]);
        n += at == n;
    }
    if (!each)
        qsort(*lines, (size_t)n, sizeof **lines, slower);
    return n;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* "1024x768 2048x768 > 1024x2048 bf16": the first two inputs and the first output. */
static const char *shapes_text(char *buffer, size_t size, const struct op_shape *op)
{
    size_t at = 0;

    buffer[0] = '\0';
    for (int i = 0; i < 2; i++)
        if (op->in[i].rows && at < size)
            at += (size_t)snprintf(buffer + at, size - at, "%lldx%lld ", (long long)op->in[i].rows,
                                   (long long)op->in[i].cols);
    if (op->out[0].rows && at < size)
        snprintf(buffer + at, size - at, "> %lldx%lld %s", (long long)op->out[0].rows,
                 (long long)op->out[0].cols, dtype_name(op->out[0].dtype));
    return buffer;
}

/* ---- what both begin with ---- */

static void print_job(const struct bench_report *r, struct str *out)
{
    const struct job *job = r->job;
    char count[40];

    str_printf(
        out, "%s: %s parameters; %d rank%s x %d thread%s, %d micro-batch%s of %s%d x %d, %s\n",
        job->model.name[0] ? job->model.name : "custom",
        str_count(count, sizeof count, model_spec_n_parameters(&job->model)), job->world_size,
        job->world_size == 1 ? "" : "s", pool_n_threads(r->engine->pool),
        pool_n_threads(r->engine->pool) == 1 ? "" : "s", job->n_micro_batches,
        job->n_micro_batches == 1 ? "" : "es", job->parallel.micro_batches.n ? "at most " : "",
        job->train.micro_batch, job->data.seq_len, dtype_name(job->train.dtype));
    str_printf(out, "%s\n", kernels_identity(r->engine->kernels));
}

static void print_ceiling(const struct bench_report *r, struct str *out)
{
    const struct machine_peak *c = &r->bench->ceiling;

    str_printf(out, "speed of light of this machine: %.0f GFLOP/s %s", c->flops * 1e-9,
               dtype_name(r->job->train.dtype));
    if (r->job->train.dtype != DTYPE_F32)
        str_printf(out, ", %.0f fp32", c->f32_flops * 1e-9);
    str_printf(out, ", %.1f GB/s of memory bandwidth%s\n\n", c->bytes_per_second * 1e-9,
               r->job->world_size > 1 ? "; share of one rank" : "");
}

static cJSON *json_head(const struct bench_report *r)
{
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "parameters", (double)model_spec_n_parameters(&r->job->model));
    cJSON_AddNumberToObject(json, "ranks", r->job->world_size);
    cJSON_AddNumberToObject(json, "threads", pool_n_threads(r->engine->pool));
    cJSON_AddStringToObject(json, "dtype", dtype_name(r->job->train.dtype));
    cJSON_AddStringToObject(json, "kernels", kernels_identity(r->engine->kernels));
    return json;
}

static void add_ceiling(const struct bench_report *r, cJSON *json)
{
    const struct machine_peak *c = &r->bench->ceiling;

    cJSON_AddNumberToObject(json, "peak_flops_per_s", c->flops);
    cJSON_AddNumberToObject(json, "peak_fp32_flops_per_s", c->f32_flops);
    cJSON_AddNumberToObject(json, "memory_bytes_per_s", c->bytes_per_second);
}

static void print_json(cJSON *json, struct str *out)
{
    char *text = cJSON_Print(json);

    str_printf(out, "%s\n", text);
    free(text);
    cJSON_Delete(json);
}

/* The figures of a line that every table and list has. */
static void add_figures(const struct line *line, double total_seconds, cJSON *json)
{
    cJSON_AddNumberToObject(json, "seconds", line->seconds);
    if (!line->first || !op_is_collective(line->first->shape.kind))
        cJSON_AddNumberToObject(json, "share", share(line->seconds, total_seconds));
    cJSON_AddNumberToObject(json, "flops", line->flops);
    cJSON_AddNumberToObject(json, "bytes", line->bytes);
    cJSON_AddNumberToObject(json, "light_seconds", line->light_seconds);
    cJSON_AddNumberToObject(json, "reached", share(line->light_seconds, line->seconds));
}

/* "12.34\t5.6 %\t1.23\t45.6\t10.01\t81 %": ms, share, GFLOP, MB, ms at light, reached. */
static const char *figures_text(char *buffer, size_t size, const struct line *line,
                                double total_seconds)
{
    char part[16] = "beside";

    if (!line->first || !op_is_collective(line->first->shape.kind))
        snprintf(part, sizeof part, "%.1f %%", 100 * share(line->seconds, total_seconds));
    snprintf(buffer, size, "%.3f\t%s\t%.4g\t%.4g\t%.3f\t%.0f %%", line->seconds * 1e3, part,
             line->flops * 1e-9, line->bytes * 1e-6, line->light_seconds * 1e3,
             100 * share(line->light_seconds, line->seconds));
    return buffer;
}

/* ---- ops ---- */

void bench_print_ops(const struct bench_report *r, bool each, struct str *out)
{
    const struct bench *bench = r->bench;
    struct line total = compute_total(bench), *lines;
    struct report_table table;
    struct arena arena = { 0 };
    char shapes[120], figures[120], layer[16];
    int n = make_lines(bench, each, &lines, &arena);

    print_job(r, out);
    print_ceiling(r, out);
    report_table_init(&table, each ? "llrrlrrrrrr" : "llrlrrrrrr");
    report_table_heading(&table,
                         "op\tphase\t%sruns\tshapes\tms\tshare\tGFLOP\tMB\tlight ms\treached",
                         each ? "layer\t" : "");
    for (int i = 0; i < n; i++) {
        const struct op *op = program_op(bench, lines[i].first);

        snprintf(layer, sizeof layer, op->layer < 0 ? "-\t" : "%d\t", op->layer);
        report_table_row(&table, "%s\t%s\t%s%d\t%s\t%s", op_info(op->kind)->name,
                         phase_name(op->phase), each ? layer : "", lines[i].n_runs,
                         shapes_text(shapes, sizeof shapes, &lines[i].first->shape),
                         figures_text(figures, sizeof figures, &lines[i], total.seconds));
    }
    report_table_total(&table, "all compute ops\t\t%s%d\t\t%s", each ? "\t" : "", total.n_runs,
                       figures_text(figures, sizeof figures, &total, total.seconds));
    report_table_print(&table, 0, out);
    report_table_release(&table);
    arena_release(&arena);
}

static void add_shapes(cJSON *json, const char *name, const struct tensor *tensors, int n)
{
    cJSON *array = cJSON_AddArrayToObject(json, name);
    char text[64];

    for (int i = 0; i < n; i++) {
        if (!tensors[i].rows)
            continue;
        snprintf(text, sizeof text, "[%lld x %lld] %s", (long long)tensors[i].rows,
                 (long long)tensors[i].cols, dtype_name(tensors[i].dtype));
        cJSON_AddItemToArray(array, cJSON_CreateString(text));
    }
}

/* The median; *best: the least. */
static double median_of(const double *seconds, int n, double *best)
{
    double *sorted = malloc(sizeof *sorted * (size_t)n);

    CHECK(sorted);
    memcpy(sorted, seconds, sizeof *sorted * (size_t)n);
    double median = bench_median(sorted, n);
    *best = sorted[0];
    free(sorted);
    return median;
}

static void add_step(const struct bench_report *r, const struct line *total, cJSON *json)
{
    const struct bench *bench = r->bench;
    double best, best_timed, median = median_of(bench->step_seconds, bench->n_steps, &best);
    double timed = median_of(bench->timed_seconds, bench->n_steps, &best_timed);

    cJSON_AddNumberToObject(json, "steps", bench->n_steps);
    cJSON_AddItemToObject(json, "step_seconds",
                          cJSON_CreateDoubleArray(bench->step_seconds, bench->n_steps));
    cJSON_AddItemToObject(json, "step_cpu_seconds",
                          cJSON_CreateDoubleArray(bench->cpu_seconds, bench->n_steps));
    cJSON_AddNumberToObject(json, "tokens", (double)bench->tokens);
    cJSON_AddNumberToObject(json, "first_step_seconds", bench->first_seconds);
    cJSON_AddNumberToObject(json, "best_step_seconds", best);
    cJSON_AddNumberToObject(json, "median_step_seconds", median);
    cJSON_AddNumberToObject(json, "best_timed_step_seconds", best_timed);
    cJSON_AddNumberToObject(json, "timed_step_seconds", timed);
    cJSON_AddNumberToObject(json, "wait_seconds", bench->wait_seconds);
    bench_add_waiting(r, json);
    cJSON_AddNumberToObject(json, "ops_seconds", total->seconds);
    cJSON_AddNumberToObject(json, "light_seconds", total->light_seconds);
    cJSON_AddNumberToObject(json, "flops", total->flops);
    cJSON_AddNumberToObject(json, "bytes", total->bytes);
}

void bench_print_ops_json(const struct bench_report *r, bool each, struct str *out)
{
    struct line total = compute_total(r->bench), *lines;
    struct arena arena = { 0 };
    int n = make_lines(r->bench, each, &lines, &arena);
    cJSON *json = json_head(r);

    add_ceiling(r, json);
    add_step(r, &total, json);
    cJSON *ops = cJSON_AddArrayToObject(json, "ops");
    for (int i = 0; i < n; i++) {
        const struct bench_op *first = lines[i].first;
        const struct op *op = program_op(r->bench, first);
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "op", op_info(op->kind)->name);
        cJSON_AddStringToObject(item, "phase", phase_name(op->phase));
        if (each)
            cJSON_AddStringToObject(item, "function",
                                    r->bench->program.functions[first->function].name);
        if (each)
            cJSON_AddNumberToObject(item, "layer", op->layer);
        cJSON_AddNumberToObject(item, "runs", lines[i].n_runs);
        add_shapes(item, "in", first->shape.in, OPS_MAX_INPUTS);
        add_shapes(item, "out", first->shape.out, OPS_MAX_OUTPUTS);
        add_figures(&lines[i], total.seconds, item);
        cJSON_AddItemToArray(ops, item);
    }
    print_json(json, out);
    arena_release(&arena);
}

/* ---- the step ---- */

static const char *const family_names[N_FAMILIES] = {
    [FAMILY_LINEAR] = "linear",
    [FAMILY_HEAD] = "head and loss",
    [FAMILY_ATTENTION] = "attention",
    [FAMILY_NORM] = "norm",
    [FAMILY_ROPE] = "rope",
    [FAMILY_ACTIVATION] = "activation",
    [FAMILY_EMBEDDING] = "embedding",
    [FAMILY_OPTIMIZER] = "optimizer",
    [FAMILY_COLLECTIVE] = "collective",
    [FAMILY_OTHER] = "other",
};

/* In the order of the report, where `other` is last. */
static int nth_family(int i)
{
    return (i + 1) % N_FAMILIES;
}

static void make_families(const struct bench *bench, struct line families[N_FAMILIES])
{
    memset(families, 0, sizeof *families * N_FAMILIES);
    for (int i = 0; i < bench->n_ops; i++)
        line_add(&families[op_info(bench->ops[i].shape.kind)->family], &bench->ops[i]);
}

/* What a step is worth, from its JSON, which has all of it. */
static double number(const cJSON *json, const char *name)
{
    return cJSON_GetObjectItem(json, name)->valuedouble;
}

static cJSON *step_json(const struct bench_report *r)
{
    const struct job *job = r->job;
    struct line total = compute_total(r->bench), families[N_FAMILIES];
    cJSON *json = json_head(r);
    double tokens = (double)r->bench->tokens;
    double model = model_spec_flops_per_token(&job->model, job->data.seq_len) * tokens;

    make_families(r->bench, families);
    add_ceiling(r, json);
    add_step(r, &total, json);
    double best = number(json, "best_step_seconds"), median = number(json, "median_step_seconds");
    cJSON_AddNumberToObject(json, "tokens_per_s", tokens / best);
    cJSON_AddNumberToObject(json, "median_tokens_per_s", tokens / median);
    cJSON_AddNumberToObject(json, "light_tokens_per_s", tokens / total.light_seconds);
    cJSON_AddNumberToObject(json, "reached", total.light_seconds / best);
    cJSON_AddNumberToObject(json, "mfu", model / best / r->bench->peak_flops);
    cJSON *list = cJSON_AddArrayToObject(json, "families");
    for (int i = 0; i < N_FAMILIES; i++) {
        int f = nth_family(i);

        if (!families[f].n_ops)
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "family", family_names[f]);
        cJSON_AddNumberToObject(item, "runs", families[f].n_runs);
        add_figures(&families[f], total.seconds, item);
        cJSON_AddItemToArray(list, item);
    }
    return json;
}

void bench_print_step_json(const struct bench_report *r, struct str *out)
{
    print_json(step_json(r), out);
}

static void print_families(const struct bench_report *r, struct str *out)
{
    struct line total = compute_total(r->bench), families[N_FAMILIES];
    struct report_table table;
    char figures[120];

    make_families(r->bench, families);
    report_table_init(&table, "lrrrrrrr");
    report_table_heading(&table, "family\truns\tms\tshare\tGFLOP\tMB\tlight ms\treached");
    for (int i = 0, f = nth_family(0); i < N_FAMILIES; f = nth_family(++i))
        if (families[f].n_ops)
            report_table_row(&table, "%s\t%d\t%s", family_names[f], families[f].n_runs,
                             figures_text(figures, sizeof figures, &families[f], total.seconds));
    report_table_total(&table, "all compute ops\t%d\t%s", total.n_runs,
                       figures_text(figures, sizeof figures, &total, total.seconds));
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

void bench_print_step(const struct bench_report *r, struct str *out)
{
    cJSON *json = step_json(r);
    double best = number(json, "best_step_seconds"), median = number(json, "median_step_seconds");

    print_job(r, out);
    print_ceiling(r, out);
    print_families(r, out);
    str_printf(out, "\nstep          %.2f ms best, %.2f median of %d; the first %.0f\n", best * 1e3,
               median * 1e3, r->bench->n_steps, r->bench->first_seconds * 1e3);
    str_printf(out,
               "timed step    %.2f ms median, with each op timed separately, as in the table\n",
               number(json, "timed_step_seconds") * 1e3);
    str_printf(out, "tokens_per_s  %.0f best, %.0f median\n", number(json, "tokens_per_s"),
               number(json, "median_tokens_per_s"));
    if (r->job->world_size > 1)
        bench_print_waiting(r, out);
    str_printf(
        out,
        "floor         %.2f ms, every op at the speed of light: %.0f tokens_per_s; the best step "
        "reaches %.0f %%\n",
        number(json, "light_seconds") * 1e3, number(json, "light_tokens_per_s"),
        100 * number(json, "reached"));
    str_printf(out, "MFU           %.1f %% of the matrix product peak of all ranks\n",
               100 * number(json, "mfu"));
    cJSON_Delete(json);
}

/* ---- collectives ---- */

void bench_print_collectives(const struct bench_report *r, const struct bench_collective *list,
                             int n, struct str *out)
{
    struct report_table table;
    char size[32];

    str_printf(out, "%d ranks x %d thread%s\n\n", r->job->world_size,
               pool_n_threads(r->engine->pool), pool_n_threads(r->engine->pool) == 1 ? "" : "s");
    report_table_init(&table, "lrrrrrr");
    report_table_heading(&table, "collective\tranks\tnodes\tsize\tbest ms\tmedian ms\tbus GB/s");
    for (int i = 0; i < n; i++)
        report_table_row(&table, "%s\t%d\t%d\t%s\t%.4f\t%.4f\t%.3f", op_info(list[i].kind)->name,
                         list[i].n_ranks, list[i].n_nodes,
                         str_bytes(size, sizeof size, list[i].n_bytes), list[i].best_seconds * 1e3,
                         list[i].seconds * 1e3, list[i].bus_bytes_per_second * 1e-9);
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

void bench_print_collectives_json(const struct bench_report *r, const struct bench_collective *list,
                                  int n, struct str *out)
{
    cJSON *json = json_head(r), *array = cJSON_AddArrayToObject(json, "collectives");

    for (int i = 0; i < n; i++) {
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "collective", op_info(list[i].kind)->name);
        cJSON_AddNumberToObject(item, "ranks", list[i].n_ranks);
        cJSON_AddNumberToObject(item, "nodes", list[i].n_nodes);
        cJSON_AddNumberToObject(item, "bytes", (double)list[i].n_bytes);
        cJSON_AddNumberToObject(item, "best_seconds", list[i].best_seconds);
        cJSON_AddNumberToObject(item, "median_seconds", list[i].seconds);
        cJSON_AddNumberToObject(item, "bus_bytes_per_s", list[i].bus_bytes_per_second);
        cJSON_AddItemToArray(array, item);
    }
    print_json(json, out);
}

/* ---- ceilings ---- */

void bench_print_ceilings(const struct bench_report *r, const struct engine_sustained *product,
                          double bytes_per_second, struct str *out)
{
    double stated = engine_stated_flops(r->engine, r->job->train.dtype);

    str_printf(out, "%s\n", r->engine->device->description);
    str_printf(out,
               "product %lld x %lld x %lld %s: %.1f GFLOP/s over %.1f s (best %.1f, last %.1f)",
               (long long)product->size, (long long)product->size, (long long)product->size,
               dtype_name(r->job->train.dtype), product->flops * 1e-9, product->seconds,
               product->best_flops * 1e-9, product->last_flops * 1e-9);
    if (stated > 0)
        str_printf(out, ", %.1f %% of the vendor's peak of %.1f", 100 * product->flops / stated,
                   stated * 1e-9);
    str_printf(out, "\nmemory %.1f GB/s%s\n", bytes_per_second * 1e-9,
               device_is_host(r->engine->device) ? "" : ", copies, read and written");
}

void bench_print_ceilings_json(const struct bench_report *r, const struct engine_sustained *product,
                               double bytes_per_second, struct str *out)
{
    cJSON *json = json_head(r);

    cJSON_AddStringToObject(json, "device", r->engine->device->description);
    cJSON_AddNumberToObject(json, "product_size", (double)product->size);
    cJSON_AddNumberToObject(json, "product_seconds", product->seconds);
    cJSON_AddNumberToObject(json, "product_flops_per_s", product->flops);
    cJSON_AddNumberToObject(json, "product_best_flops_per_s", product->best_flops);
    cJSON_AddNumberToObject(json, "product_last_flops_per_s", product->last_flops);
    cJSON_AddNumberToObject(json, "stated_flops_per_s",
                            engine_stated_flops(r->engine, r->job->train.dtype));
    cJSON_AddNumberToObject(json, "memory_bytes_per_s", bytes_per_second);
    print_json(json, out);
}
