/*
 * prometheus.c - metrics as text, and the exchange of the file
 */
#include "report/prometheus.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"

/* Of a label's value. */
static void add_escaped(struct str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            str_add(out, "\\n");
        else if (*text == '\\' || *text == '"')
            str_printf(out, "\\%c", *text);
        else
            str_add_char(out, *text);
    }
}

/* With a point whatever the locale says. */
static void add_number(struct str *out, double value)
{
    char text[64], *comma;

    snprintf(text, sizeof text, "%.15g", value);
    comma = strchr(text, ',');
    if (comma)
        *comma = '.';
    str_add(out, isnan(value) ? "NaN" : isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : text);
}

struct metric {
    const char *name, *type, *help;
    double value;
};

static void begin_sample(struct str *out, const struct metric *m, const char *run)
{
    str_printf(out, "# HELP lmtrain_%s %s\n# TYPE lmtrain_%s %s\nlmtrain_%s{run=\"", m->name,
               m->help, m->name, m->type, m->name);
    add_escaped(out, run);
    str_add_char(out, '"');
}

static void add_metric(struct str *out, const struct metric *m, const char *run)
{
    begin_sample(out, m, run);
    str_add(out, "} ");
    add_number(out, m->value);
    str_add_char(out, '\n');
}

static void add_slowest(struct str *out, const struct prometheus_run *r)
{
    const struct metric metric = {
        "slowest_rank_ratio", "gauge",
        "Own time of a step of the slowest rank, relative to the median of its peers.",
        r->slowest_ratio
    };

    begin_sample(out, &metric, r->run);
    str_printf(out, ",rank=\"%d\",host=\"", r->slowest_rank);
    add_escaped(out, r->slowest_host);
    str_add(out, "\"} ");
    add_number(out, r->slowest_ratio);
    str_add_char(out, '\n');
}

double prometheus_goodput(const struct prometheus_run *r)
{
    return r->run_seconds > 0 ? fmin(r->useful_seconds / r->run_seconds, 1) : 0;
}

void prometheus_print(const struct prometheus_run *r, struct str *out)
{
    const struct metric metrics[] = {
        { "running", "gauge", "1 while the run has processes that train, 0 after its end.",
          r->is_running },
        { "step", "gauge", "Training steps done.", (double)r->step },
        { "steps", "gauge", "Training steps of the whole run.", (double)r->steps },
        { "loss", "gauge", "Training loss of the last step in nats per token.", r->loss },
        { "grad_norm", "gauge", "Norm of the gradients of the last step before clipping.",
          r->grad_norm },
        { "learning_rate", "gauge", "Learning rate of the last step.", r->lr },
        { "tokens", "gauge", "Tokens with loss since the run began.", (double)r->tokens },
        { "tokens_per_second", "gauge", "Tokens per second of the last step.", r->tokens_per_s },
        { "step_seconds", "gauge", "Duration of the last step.", r->step_s },
        { "mfu_ratio", "gauge", "Model FLOPs utilization of the last step, 1 is the peak.",
          r->mfu },
        { "skipped_steps", "gauge", "Steps skipped because of gradients that were not finite.",
          (double)r->skipped },
        { "restarts_total", "counter",
          "Starts of the run after the first one, without those after a pause.",
          (double)r->restarts },
        { "pauses_total", "counter",
          "Pauses of the run, as at the rungs of a sweep, that were followed by a start.",
          (double)r->pauses },
        { "run_seconds", "gauge", "Wall time since the first start of the run, without pauses.",
          r->run_seconds },
        { "useful_seconds", "gauge",
          "Wall time in steps that were neither lost by a restart nor skipped.",
          r->useful_seconds },
        { "goodput_ratio", "gauge", "useful_seconds divided by run_seconds.",
          prometheus_goodput(r) },
        { "save_blocked_seconds_total", "counter",
          "Time in which checkpoints kept training waiting, since the last start.",
          r->save_blocked_seconds },
        { "stragglers", "gauge", "Ranks that are slower than their peers.", r->n_stragglers },
    };
    const struct metric save = { "save_seconds", "gauge",
                                 "Duration of the last checkpoint, which training overlaps.",
                                 r->save_seconds };

    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        add_metric(out, &metrics[i], r->run);
    if (r->save_seconds >= 0)
        add_metric(out, &save, r->run);
    if (r->slowest_rank >= 0)
        add_slowest(out, r);
}

static int write_part(const char *path, const struct str *text, struct err *err)
{
    int fd = file_open_write(path, O_WRONLY | O_TRUNC, err);

    if (fd < 0)
        return -1;
    fchmod(fd, 0644);
    int failed = file_write_all(fd, str_text(text), text->length) != 0;
    failed |= close(fd) != 0;
    return failed ? err_set_errno(err, ERR_FAILED, "%s: cannot write", path) : 0;
}

int prometheus_write(const char *path, const struct prometheus_run *run, struct err *err)
{
    struct arena arena = { 0 };
    struct str text = { 0 };
    const char *part = arena_printf(&arena, "%s.part", path);

    prometheus_print(run, &text);
    int status = write_part(part, &text, err);
    if (!status && rename(part, path) < 0) {
        status = err_set_errno(err, ERR_FAILED, "%s: cannot replace", path);
        unlink(part);
    }
    str_release(&text);
    arena_release(&arena);
    return status;
}
