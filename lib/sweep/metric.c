/*
 * metric.c - see the header
 */
#include "sweep/metric.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"

#define FILE_BYTES_MAX ((size_t)1 << 31)
#define KEY_BYTES 128

struct metric_line {
    int64_t step; /* -1: none */
    bool has_value, has_hex;
    double value;
    char set[KEY_BYTES]; /* "": of no held-out set with a name */
};

static double number_of(struct json_span span)
{
    char text[64];

    if (span.n_bytes >= sizeof text || !span.n_bytes || span.text[0] == 'n')
        return NAN;
    memcpy(text, span.text, span.n_bytes);
    text[span.n_bytes] = 0;
    return strtod(text, NULL);
}

/* A value that is no number or text is none of the metric's. */
static void read_value(struct json_reader *r, struct metric_line *out, bool is_hex)
{
    enum json_kind kind = json_peek(r);
    double value;

    if (kind == JSON_STRING)
        value = number_of(json_string_span(r));
    else if (kind == JSON_NUMBER || kind == JSON_NULL)
        value = number_of(json_scalar(r));
    else {
        json_skip(r);
        return;
    }
    if (out->has_hex && !is_hex)
        return;
    out->has_value = true;
    out->has_hex |= is_hex;
    out->value = value;
}

static void read_set(struct json_reader *r, struct metric_line *out)
{
    struct json_span name = json_string_span(r);

    if (name.n_bytes < sizeof out->set && !name.has_escapes)
        memcpy(out->set, name.text, name.n_bytes);
}

static void read_line(struct metric_line *out, const char *text, size_t n_bytes, const char *key)
{
    struct json_reader r;
    size_t length = strlen(key);

    *out = (struct metric_line){ .step = -1 };
    json_reader_init(&r, text, n_bytes, NULL);
    for (json_open(&r, '{'); json_next(&r, '}');) {
        struct json_span name = json_key_span(&r);
        bool is_key = name.n_bytes >= length && !memcmp(name.text, key, length);
        bool is_hex =
            is_key && name.n_bytes == length + 4 && !memcmp(name.text + length, "_hex", 4);

        if (json_span_is(name, "step", 4) && json_peek(&r) == JSON_NUMBER)
            out->step = json_count(&r, INT64_MAX);
        else if (json_span_is(name, "eval_set", 8) && json_peek(&r) == JSON_STRING)
            read_set(&r, out);
        else if (is_key && name.n_bytes == length)
            read_value(&r, out, false);
        else if (is_hex)
            read_value(&r, out, true);
        else
            json_skip(&r);
    }
    if (json_end(&r) < 0)
        *out = (struct metric_line){ .step = -1 };
}

/* Which lines count: of one set (""; those without a name), or, without such, of all sets. */
struct metric_choice {
    char key[KEY_BYTES], set[KEY_BYTES];
    double sum; /* of sets at `step` */
    int n_sets;
    int64_t step;
    bool has_unnamed;
};

static void choose(struct metric_choice *c, const char *metric)
{
    size_t n = strlen(metric);
    bool is_of_set =
        !strncmp(metric, "eval.", 5) && n > 10 && n < KEY_BYTES && !strcmp(metric + n - 5, ".loss");

    *c = (struct metric_choice){ .step = -1 };
    snprintf(c->key, sizeof c->key, "%s", is_of_set ? "eval_loss" : metric);
    if (is_of_set)
        memcpy(c->set, metric + 5, n - 10);
    for (char *p = c->key; *p; p++)
        *p = *p == '.' ? '_' : *p;
}

/* The metric's value by this line, if it has one: NAN is a value. */
static bool take_line(struct metric_choice *c, const struct metric_line *line, double *value)
{
    *value = line->value;
    c->has_unnamed |= !*line->set;
    if (!strcmp(line->set, c->set))
        return true;
    if (*c->set || c->has_unnamed)
        return false;
    if (line->step != c->step) {
        c->step = line->step;
        c->sum = c->n_sets = 0;
    }
    c->sum += line->value;
    *value = c->sum / ++c->n_sets;
    return true;
}

static void take_text(struct metric_value *out, struct metric_choice *c, const char *text,
                      size_t n_bytes, int64_t last_step)
{
    const char *last = text + n_bytes;

    for (const char *at = text, *end; (end = memchr(at, '\n', (size_t)(last - at))); at = end + 1) {
        struct metric_line line;
        double value;

        read_line(&line, at, (size_t)(end - at), c->key);
        if (line.step > out->newest)
            out->newest = line.step;
        if (line.has_value && line.step >= 0 && line.step <= last_step &&
            take_line(c, &line, &value))
            *out = (struct metric_value){ line.step, value, out->newest };
    }
}

int metric_read(const char *folder, const char *metric, int64_t last_step, struct metric_value *out,
                struct err *err)
{
    struct metric_choice choice;
    char path[4096], *text;
    size_t n_bytes;

    choose(&choice, metric);
    *out = (struct metric_value){ .step = -1, .newest = -1 };
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    if (!file_exists(path))
        return 0;
    if (file_read(path, FILE_BYTES_MAX, ERR_FAILED, &text, &n_bytes, err) < 0)
        return -1;
    take_text(out, &choice, text, n_bytes, last_step);
    free(text);
    return 0;
}
