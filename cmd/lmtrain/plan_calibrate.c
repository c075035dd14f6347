/*
 * plan_calibrate.c - a step is longer the longer its products are, so the factor is found by
 * halving
 */
#include "plan_calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "plan/price_impl.h"
#include "plan/step_time.h"

#define LEAST 0.1
#define MOST 10.0
#define FILE_BYTES_MAX ((size_t)1 << 20)

struct calibrating {
    const struct plan *plan;
    struct cluster cluster; /* with the factor that is tried */
    enum device_format format;
};

static int predict(struct calibrating *c, double factor, double *seconds, struct err *err)
{
    struct arena arena = { 0 };
    struct step_time time;

    c->cluster.calibration[c->format] = factor;
    int status = step_time_predict(&time, c->plan, &c->cluster, &arena, err);
    *seconds = (double)time.ns / 1e9;
    arena_release(&arena);
    return status;
}

static int find_factor(struct calibrating *c, double seconds, double *factor, struct err *err)
{
    double low = LEAST, high = MOST, shortest, longest, at;

    if (predict(c, low, &shortest, err) || predict(c, high, &longest, err))
        return -1;
    if (seconds < shortest || seconds > longest)
        return err_set(err, ERR_CONFIG,
                       "--calibrate is %g s, but with products %g to %g times as long a step takes "
                       "%.3g to %.3g s (hint: is this the job that was measured?)",
                       seconds, LEAST, MOST, shortest, longest);
    while (high / low > 1.0001) {
        *factor = sqrt(low * high);
        if (predict(c, *factor, &at, err))
            return -1;
        *(at < seconds ? &low : &high) = *factor;
    }
    *factor = sqrt(low * high);
    return 0;
}

/* "calibration: {bf16: 1.0831}" */
static const char *print_line(const struct calibrating *c, double factor, struct arena *arena)
{
    struct str text = { 0 };

    str_add(&text, "calibration: {");
    for (int f = 0, n = 0; f < N_DEVICE_FORMATS; f++) {
        double value = f == (int)c->format ? factor : c->cluster.calibration[f];

        if (f == (int)c->format || value != 1)
            str_printf(&text, "%s%s: %.4f", n++ ? ", " : "",
                       device_format_name((enum device_format)f), value);
    }
    str_add(&text, "}\n");
    const char *line = arena_printf(arena, "%s", str_text(&text));
    str_release(&text);
    return line;
}

/* Put the line in place of the file's key and what is indented below it, or at the end. */
static int write_line(const char *path, const char *line, struct err *err)
{
    struct str text = { 0 };
    char *old;
    size_t n;
    bool is_in_key = false;

    if (file_read(path, FILE_BYTES_MAX, ERR_CONFIG, &old, &n, err))
        return -1;
    for (const char *at = old; *at;) {
        size_t length = strcspn(at, "\n");

        is_in_key = str_starts_with(at, "calibration:") || (is_in_key && *at == ' ');
        if (!is_in_key)
            str_printf(&text, "%.*s\n", (int)length, at);
        at += length + (at[length] == '\n');
    }
    str_add(&text, line);
    int status = file_write(path, str_text(&text), text.length, err);
    str_release(&text);
    free(old);
    return status;
}

int plan_calibrate(const struct plan *plan, const struct cluster *cluster, double seconds,
                   struct str *out, struct err *err)
{
    struct calibrating c = { .plan = plan,
                             .cluster = *cluster,
                             .format = price_format(plan->job->train.dtype) };
    struct arena arena = { 0 };
    double before, factor = 1;

    if (!cluster->n_islands)
        return err_set(err, ERR_CONFIG,
                       "--calibrate is of a cluster (hint: --cluster NAME or --device NAME)");
    int status = predict(&c, cluster->calibration[c.format], &before, err);
    if (!status)
        status = find_factor(&c, seconds, &factor, err);
    if (!status) {
        const char *line = print_line(&c, factor, &arena);

        str_printf(out, "predicted %.3f s, measured %g s: %+.1f %%\n%s", before, seconds,
                   100 * (before / seconds - 1), line);
        if (strchr(cluster->name, '/')) {
            status = write_line(cluster->name, line, err);
            if (!status)
                str_printf(out, "written to %s\n", cluster->name);
        }
    }
    arena_release(&arena);
    return status;
}
