/*
 * metrics.c - metrics.jsonl, and the same scalars for TensorBoard
 */
#include "report/metrics.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "report/append.h"
#include "report/events.h"
#include "report/json_values.h"

/* Of lines that wait for a disk: some ten thousand steps. */
#define WAITING_BYTES ((size_t)4 << 20)

/* What a step has for TensorBoard. */
struct scalars {
    int n;
    struct events_scalar scalars[32];
};

struct metrics {
    int fd;
    const char *path;
    struct arena arena;
    struct events *events;
    struct str line;    /* kept for its memory */
    struct str waiting; /* lines that a full disk did not take */
    struct metrics_history history;
    struct scalars scalars; /* of the last line */
    struct str tags[2];     /* of an evaluation's */
};

/* A double by a printf format, with a point whatever the locale says. */
static void add_formatted(struct str *out, const char *format, int digits, double value)
{
    char text[64], *comma;

    snprintf(text, sizeof text, format, digits, value);
    comma = strpbrk(text, ",");
    if (comma)
        *comma = '.';
    str_add(out, text);
}

/* The shortest of 15, 16 or 17 digits that reads back as value; null for what JSON cannot say. */
static void add_number(struct str *out, double value)
{
    int digits = 15;

    if (!isfinite(value)) {
        str_add(out, "null");
        return;
    }
    for (; digits < 17; digits++) {
        char text[64];

        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    add_formatted(out, "%.*g", digits, value);
}

static void add_double(struct str *out, const char *key, double value)
{
    str_printf(out, ",\"%s\":", key);
    add_number(out, value);
}

/* C's %a in a string; "nan", "inf" and "-inf" for what has no digits. */
static void add_hex(struct str *out, const char *key, double value)
{
    str_printf(out, ",\"%s\":\"", key);
    if (isnan(value))
        str_add(out, "nan");
    else
        add_formatted(out, "%.*a", -1, value); /* a negative precision is none: as many as needed */
    str_add_char(out, '"');
}

static void add_int(struct str *out, const char *key, int64_t value)
{
    str_printf(out, ",\"%s\":%lld", key, (long long)value);
}

/* Of a line: now, and since the first start of the run. */
static void add_times(struct str *out, double elapsed_s)
{
    add_int(out, "time", (int64_t)time(NULL));
    str_add(out, ",\"elapsed_s\":");
    add_formatted(out, "%.*f", 3, elapsed_s);
}

/* Text as a JSON string; bytes that are no UTF-8 become U+FFFD. */
static void add_text(struct str *out, const char *key, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t left = strlen(text);

    str_printf(out, ",\"%s\":\"", key);
    while (left) {
        size_t n = (size_t)str_utf8_length(at, left);

        if (n == 0)
            str_add(out, "\xef\xbf\xbd");
        else if (*at < 0x20)
            str_printf(out, "\\u%04x", (unsigned)*at);
        else if (*at == '"' || *at == '\\')
            str_printf(out, "\\%c", *at);
        else
            str_add_bytes(out, at, n);
        n = n ? n : 1;
        at += n;
        left -= n;
    }
    str_add_char(out, '"');
}

static struct str *begin_line(struct metrics *metrics, int64_t step)
{
    str_clear(&metrics->line);
    str_printf(&metrics->line, "{\"step\":%lld", (long long)step);
    return &metrics->line;
}

/* What an earlier call could not write goes ahead of the line. */
static int end_line(struct metrics *metrics, struct err *err)
{
    struct str *waiting = &metrics->waiting;

    str_add(&metrics->line, "}\n");
    if (waiting->length + metrics->line.length <= WAITING_BYTES)
        str_add(waiting, str_text(&metrics->line));
    if (append_whole(metrics->fd, metrics->path, waiting->data, waiting->length, err) < 0)
        return -1;
    str_clear(waiting);
    return 0;
}

/* What is said of the machines stays true when the steps are taken again. */
static bool is_of_machines(const cJSON *object)
{
    static const char *const events[] = { "diverged",       "save failed", "preflight", "straggler",
                                          "straggler over", "started",     "paused",    "resumed",
                                          "died",           "hung" };
    const cJSON *event = cJSON_GetObjectItemCaseSensitive(object, "event");

    for (size_t i = 0; cJSON_IsString(event) && i < sizeof events / sizeof *events; i++)
        if (!strcmp(event->valuestring, events[i]))
            return true;
    return false;
}

/* What becomes of a line that was there before. */
enum fate { LINE_STAYS, LINE_IS_LATER, LINE_IS_TORN };

/* A process of the run began, or ended as it was planned. */
static void note_process(struct metrics_history *history, const char *event, double step,
                         double time)
{
    if (!strcmp(event, "paused")) {
        history->paused_at = time;
        history->pause_step = (int64_t)step;
        return;
    }
    history->n_starts++;
    if (!strcmp(event, "resumed") && history->paused_at > 0) {
        history->n_pauses++;
        history->paused_s += time > history->paused_at ? time - history->paused_at : 0;
    }
    history->paused_at = 0;
    if (time > 0 && (history->begun_at <= 0 || time < history->begun_at))
        history->begun_at = time;
}

/* Steps between the last one that was logged and the first to come took about as long as that. */
static void note_history(struct metrics_history *history, const cJSON *object, int64_t first_step)
{
    const cJSON *event = cJSON_GetObjectItemCaseSensitive(object, "event");
    double useful_s = json_number(object, "useful_s", 0), time = json_number(object, "time", 0);

    if (useful_s > 0)
        history->useful_s =
            useful_s + json_number(object, "step_s", 0) *
                           ((double)first_step - 1 - json_number(object, "step", 0));
    if (cJSON_IsString(event) &&
        (!strcmp(event->valuestring, "started") || !strcmp(event->valuestring, "paused") ||
         !strcmp(event->valuestring, "resumed")))
        note_process(history, event->valuestring, json_number(object, "step", 0), time);
}

/* Torn: no whole object with a step, as a kill leaves one. Lines of machines are never too late. */
static enum fate fate_of(const char *line, size_t length, int64_t first_step,
                         struct metrics_history *history)
{
    cJSON *object = cJSON_ParseWithLength(line, length);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(object, "step");
    enum fate fate = LINE_IS_TORN;

    if (cJSON_IsNumber(step))
        fate = step->valuedouble < (double)first_step || is_of_machines(object) ? LINE_STAYS
                                                                                : LINE_IS_LATER;
    if (fate == LINE_STAYS)
        note_history(history, object, first_step);
    cJSON_Delete(object);
    return fate;
}

/* Whether a line is of the evaluation at that step. */
static bool is_evaluation(const char *line, size_t length, int64_t step)
{
    cJSON *object = cJSON_ParseWithLength(line, length);
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(object, "step");
    int is = cJSON_HasObjectItem(object, "eval_loss") && cJSON_IsNumber(number) &&
             (int64_t)number->valuedouble == step;

    cJSON_Delete(object);
    return is;
}

/* Leave only the lines that stay, in one exchange of the file. */
static int drop_lines(const char *path, int64_t first_step, int64_t eval_step,
                      struct metrics_history *history, struct err *err)
{
    struct file_map map;
    struct str kept = { 0 };
    size_t n_bytes;
    int n_torn = 0;

    if (file_map_open(&map, path, err) < 0)
        return -1;
    n_bytes = map.n_bytes;
    for (size_t at = 0; at < n_bytes;) {
        const char *line = (const char *)map.data + at;
        const char *end = memchr(line, '\n', n_bytes - at);
        size_t length = end ? (size_t)(end - line) : n_bytes - at;
        enum fate fate = end ? fate_of(line, length, first_step, history) : LINE_IS_TORN;

        if (fate == LINE_STAYS && (eval_step < 0 || !is_evaluation(line, length, eval_step)))
            str_add_bytes(&kept, line, length + 1);
        n_torn += fate == LINE_IS_TORN;
        at += length + 1;
    }
    file_map_close(&map);
    int failed = kept.length != n_bytes && file_write(path, str_text(&kept), kept.length, err) < 0;
    str_release(&kept);
    if (failed)
        return -1;
    if (n_torn)
        log_warn("%s: %d line%s that cannot be read dropped", path, n_torn, n_torn == 1 ? "" : "s");
    return 0;
}

int metrics_drop_eval(const char *folder, int64_t step, struct err *err)
{
    struct arena arena = { 0 };
    const char *path = arena_printf(&arena, "%s/metrics.jsonl", folder);
    struct metrics_history ignored = { 0 };
    int status = file_exists(path) ? drop_lines(path, INT64_MAX, step, &ignored, err) : 0;

    arena_release(&arena);
    return status;
}

int metrics_open(struct metrics **metrics, const char *folder, int64_t first_step, struct err *err)
{
    struct metrics *made = calloc(1, sizeof *made);

    if (!made)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", folder);
    made->fd = -1;
    made->path = arena_printf(&made->arena, "%s/metrics.jsonl", folder);
    if (file_make_folders(folder, err) < 0)
        goto fail;
    /* Opened before it is looked at, so that a link of that name is refused; and again, as the file
     * may have been exchanged. */
    for (int i = 0; i < 2; i++) {
        if (made->fd >= 0)
            close(made->fd);
        made->fd = file_open_write(made->path, O_WRONLY | O_APPEND, err);
        if (made->fd < 0 ||
            (i == 0 && drop_lines(made->path, first_step, -1, &made->history, err) < 0))
            goto fail;
    }
    if (events_open(&made->events, folder, first_step, err) < 0)
        goto fail;
    *metrics = made;
    return 0;
fail:
    metrics_close(made);
    return -1;
}

struct metrics_history metrics_history(const struct metrics *metrics)
{
    return metrics->history;
}

static void add_scalar(struct scalars *to, const char *tag, double value)
{
    assert(to->n < (int)(sizeof to->scalars / sizeof *to->scalars));
    to->scalars[to->n++] = (struct events_scalar){ tag, value };
}

/* Of the GPU, as far as it says. */
static void add_gpu(struct str *line, const struct metrics_gpu *gpu, struct scalars *scalars)
{
    const struct {
        const char *key, *scalar;
        int64_t value;
    } figures[] = {
        { "gpu_memory_bytes", "gpu/memory_bytes", gpu->memory_bytes },
        { "gpu_sm_mhz", "gpu/sm_mhz", gpu->sm_mhz },
        { "gpu_power_w", "gpu/power_w", gpu->power_watts },
        { "gpu_temperature_c", "gpu/temperature_c", gpu->temperature_celsius },
    };

    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (figures[i].value < 0)
            continue;
        add_int(line, figures[i].key, figures[i].value);
        add_scalar(scalars, figures[i].scalar, (double)figures[i].value);
    }
    add_text(line, "gpu_throttle", gpu->throttle);
}

/* Loads to four digits: there may be thousands. */
static void add_expert_layers(struct str *line, const struct metrics_experts *experts)
{
    const double *at = experts->stats;

    str_add(line, ",\"expert_layers\":[");
    for (int i = 0; i < experts->n_layers; i++) {
        str_printf(line, "%s{\"layer\":%d", i ? "," : "", experts->layers[i]);
        add_double(line, "balance", *at++);
        str_add(line, ",\"load\":[");
        for (int e = 0; e < experts->n_experts; e++, at++) {
            str_add(line, e ? "," : "");
            add_formatted(line, "%.*g", 4, *at);
        }
        str_add(line, "]}");
    }
    str_add(line, "]");
}

/* Of each layer with experts; returns the sum. */
static double add_dropped(struct str *line, const struct metrics_step *step)
{
    double sum = 0;

    str_add(line, ",\"dropped\":[");
    for (int i = 0; i < step->experts.n_layers; i++) {
        str_printf(line, i ? ",%.0f" : "%.0f", step->dropped[i]);
        sum += step->dropped[i];
    }
    str_add(line, "]");
    return sum;
}

static void add_exposed(struct str *line, const struct metrics_exposed *exposed,
                        struct scalars *scalars)
{
    double sum = 0;

    str_add(line, ",\"exposed_s\":{");
    for (int i = 0; i < exposed->n; i++) {
        str_printf(line, "%s\"%s\":", i ? "," : "", exposed->kinds[i].name);
        add_formatted(line, "%.*g", 6, exposed->kinds[i].seconds);
        sum += exposed->kinds[i].seconds;
    }
    str_add(line, "}");
    if (exposed->most_rank >= 0) {
        str_add(line, ",\"exposed_max\":{\"seconds\":");
        add_formatted(line, "%.*g", 6, exposed->most_seconds);
        str_printf(line, ",\"rank\":%d}", exposed->most_rank);
    }
    add_scalar(scalars, "speed/exposed_s", sum);
}

int metrics_step(struct metrics *metrics, const struct metrics_step *step, struct err *err)
{
    struct str *line = begin_line(metrics, step->step);
    struct scalars *scalars = &metrics->scalars;
    bool has_experts = step->balance != 0;

    scalars->n = 0;
    add_scalar(scalars, "train/loss", step->loss);
    if (isfinite(step->loss_mean))
        add_scalar(scalars, "train/loss_mean", step->loss_mean);
    add_scalar(scalars, "train/grad_norm", step->grad_norm);
    add_scalar(scalars, "train/lr", step->lr);
    add_scalar(scalars, "train/tokens", (double)step->tokens);
    add_scalar(scalars, "train/skipped", (double)step->skipped);
    add_scalar(scalars, "speed/tokens_per_s", step->tokens_per_s);
    add_scalar(scalars, "speed/step_s", step->step_s);
    add_scalar(scalars, "speed/mfu", step->mfu);
    add_scalar(scalars, "speed/elapsed_s", step->elapsed_s);
    add_scalar(scalars, "memory/bytes", (double)step->memory_bytes);
    add_double(line, "loss", step->loss);
    add_hex(line, "loss_hex", step->loss);
    add_double(line, "loss_mean", step->loss_mean);
    add_double(line, "grad_norm", step->grad_norm);
    add_hex(line, "grad_norm_hex", step->grad_norm);
    add_double(line, "lr", step->lr);
    add_int(line, "tokens", step->tokens);
    add_double(line, "tokens_per_s", step->tokens_per_s);
    if (step->learned_per_s > 0)
        add_double(line, "learned_per_s", step->learned_per_s);
    add_double(line, "step_s", step->step_s);
    add_double(line, "mfu", step->mfu);
    str_printf(line, ",\"memory_bytes\":%llu", (unsigned long long)step->memory_bytes);
    add_int(line, "skipped", step->skipped);
    add_double(line, "useful_s", step->useful_s);
    add_times(line, step->elapsed_s);
    str_printf(line, ",\"numerics\":\"%016llx\"", (unsigned long long)step->numerics);
    if (step->loss_scale > 0) {
        add_double(line, "loss_scale", step->loss_scale);
        add_scalar(scalars, "train/loss_scale", step->loss_scale);
    }
    if (step->z_loss != 0) {
        add_double(line, "z_loss", step->z_loss);
        add_scalar(scalars, "train/z_loss", step->z_loss);
    }
    if (step->is_compressed) {
        add_double(line, "compress_error", step->compress_error);
        add_scalar(scalars, "train/compress_error", step->compress_error);
    }
    if (has_experts) {
        add_double(line, "balance", step->balance);
        add_double(line, "most_used", step->most_used);
        add_double(line, "least_used", step->least_used);
        add_int(line, "reruns", step->reruns);
        add_scalar(scalars, "experts/reruns", (double)step->reruns);
        add_expert_layers(line, &step->experts);
        add_scalar(scalars, "experts/balance", step->balance);
        add_scalar(scalars, "experts/most_used", step->most_used);
        add_scalar(scalars, "experts/least_used", step->least_used);
    }
    if (step->dropped)
        add_scalar(scalars, "experts/dropped", add_dropped(line, step));
    if (step->exposed)
        add_exposed(line, step->exposed, scalars);
    if (step->gpu)
        add_gpu(line, step->gpu, scalars);
    if (end_line(metrics, err) < 0)
        return -1;
    return events_scalars(metrics->events, step->step, scalars->scalars, scalars->n, err);
}

int metrics_eval(struct metrics *metrics, const struct metrics_evaluation *e, struct err *err)
{
    struct str *line = begin_line(metrics, e->step);
    bool has_name = e->set && *e->set;

    add_double(line, "eval_loss", e->loss);
    add_hex(line, "eval_loss_hex", e->loss);
    add_int(line, "eval_tokens", e->tokens);
    add_double(line, "perplexity", exp(e->loss));
    if (has_name)
        add_text(line, "eval_set", e->set);
    add_times(line, e->elapsed_s);
    for (int i = 0; i < 2; i++) {
        str_clear(&metrics->tags[i]);
        str_printf(&metrics->tags[i], "eval/%s%s%s", has_name ? e->set : "", has_name ? "/" : "",
                   i ? "perplexity" : "loss");
    }
    metrics->scalars.n = 0;
    add_scalar(&metrics->scalars, str_text(&metrics->tags[0]), e->loss);
    add_scalar(&metrics->scalars, str_text(&metrics->tags[1]), exp(e->loss));
    if (end_line(metrics, err) < 0)
        return -1;
    return events_scalars(metrics->events, e->step, metrics->scalars.scalars, 2, err);
}

int metrics_op_times(struct metrics *metrics, int64_t step, int64_t n_rank_steps,
                     const struct metrics_op *ops, int n, struct err *err)
{
    struct str *line = begin_line(metrics, step);

    str_add(line, ",\"ops_s\":{");
    for (int i = 0; i < n; i++) {
        str_printf(line, "%s\"%s\":", i ? "," : "", ops[i].name);
        add_formatted(line, "%.*g", 6, ops[i].seconds);
    }
    str_add(line, "}");
    add_int(line, "rank_steps", n_rank_steps);
    add_int(line, "time", (int64_t)time(NULL));
    return end_line(metrics, err);
}

static void add_event(struct str *line, const char *event, const char *text, int64_t at)
{
    add_text(line, "event", event);
    add_text(line, "text", text);
    add_int(line, "time", at);
}

int metrics_event(struct metrics *metrics, int64_t step, const char *event, const char *text,
                  struct err *err)
{
    add_event(begin_line(metrics, step), event, text, (int64_t)time(NULL));
    return end_line(metrics, err);
}

int metrics_job(struct metrics *metrics, const struct events_hparam *fields, int n,
                const char *text, struct err *err)
{
    struct str markdown = { 0 };

    /* Lines of four blanks are code. */
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");

        str_add(&markdown, "    ");
        str_add_utf8(&markdown, line, length);
        str_add_char(&markdown, '\n');
        line += length + (line[length] == '\n');
    }
    int status = events_text(metrics->events, "job", str_text(&markdown), err);
    if (!status)
        status = events_hparams(metrics->events, fields, n, err);
    str_release(&markdown);
    return status;
}

int metrics_end(struct metrics *metrics, bool is_success, struct err *err)
{
    return events_end(metrics->events, is_success, err);
}

const struct events_scalar *metrics_scalars(const struct metrics *metrics, int *n)
{
    *n = metrics->scalars.n;
    return metrics->scalars.scalars;
}

const char *metrics_line(const struct metrics *metrics)
{
    return str_text(&metrics->line);
}

int metrics_note(const char *folder, int64_t step, const char *event, double at, const char *text,
                 struct err *err)
{
    struct metrics metrics = { .fd = -1 };
    int status = 0;

    metrics.path = arena_printf(&metrics.arena, "%s/metrics.jsonl", folder);
    if (file_exists(metrics.path)) {
        metrics.fd = file_open_write(metrics.path, O_WRONLY | O_APPEND, err);
        add_event(begin_line(&metrics, step < 0 ? 0 : step), event, text, (int64_t)at);
        status = metrics.fd < 0 ? -1 : end_line(&metrics, err);
    }
    if (metrics.fd >= 0)
        close(metrics.fd);
    str_release(&metrics.line);
    str_release(&metrics.waiting);
    arena_release(&metrics.arena);
    return status;
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    struct err ignored;
    events_close(metrics->events);
    if (metrics->waiting.length)
        append_whole(metrics->fd, metrics->path, metrics->waiting.data, metrics->waiting.length,
                     &ignored);
    if (metrics->fd >= 0)
        close(metrics->fd);
    str_release(&metrics->line);
    for (int i = 0; i < 2; i++)
        str_release(&metrics->tags[i]);
    str_release(&metrics->waiting);
    arena_release(&metrics->arena);
    free(metrics);
}
