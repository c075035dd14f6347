/*
 * sweep_table.c - the trials of a sweep for people: a live table, a table, JSON
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/json_reader.h"
#include "base/num.h"
#include "report/table.h"
#include "sweep/metric.h"
#include "sweep_run.h"

#define ROWS_MAX 100 /* of the table at the end */

const char *sweep_rung_name(const struct history_header *h, int rung, struct arena *arena)
{
    if (!h->rungs[rung])
        return "its end";
    return arena_printf(arena, "step %" PRId64, h->rungs[rung]);
}

static const char *state_name(enum judge_state state)
{
    static const char *const names[] = {
        [JUDGE_WAITING] = "waits",   [JUDGE_RUNNING] = "runs",      [JUDGE_PAUSED] = "paused",
        [JUDGE_STOPPED] = "stopped", [JUDGE_FINISHED] = "finished", [JUDGE_FAILED] = "failed"
    };

    return names[state];
}

/* The newest value of a trial and its step, as the run's own file has it. */
static struct metric_value look(const struct sweep_session *s, int trial, struct arena *arena)
{
    struct metric_value value = { .step = -1, .newest = -1 };
    struct err ignored;

    if (metric_read(history_trial_folder(s->output, trial, arena), s->history.header.metric,
                    INT64_MAX, &value, &ignored) < 0)
        value = (struct metric_value){ .step = -1, .newest = -1 };
    return value;
}

static void add_value(struct str *out, const struct metric_value *value)
{
    if (value->step < 0)
        str_add(out, "-");
    else if (isfinite(value->value))
        str_printf(out, "%.5g", value->value);
    else
        str_add(out, "nan");
}

/* {"optimizer.lr": 0.001} as "optimizer.lr 0.001, ...", or, for a column each, parted by tabs with
 * the names or the values alone. */
enum settings_part { SETTINGS_ALL, SETTINGS_NAMES, SETTINGS_VALUES };

static void add_settings(struct str *out, const char *json, enum settings_part part)
{
    cJSON *object = cJSON_Parse(json);
    int n = 0;

    for (const cJSON *item = object ? object->child : NULL; item; item = item->next, n++) {
        char *text = cJSON_PrintUnformatted(item);
        const char *shown = cJSON_IsString(item) ? item->valuestring : text ? text : "";

        if (part == SETTINGS_ALL)
            str_printf(out, n ? ", %s %s" : "%s %s", item->string, shown);
        else
            str_printf(out, n ? "\t%s" : "%s", part == SETTINGS_NAMES ? item->string : shown);
        free(text);
    }
    cJSON_Delete(object);
}

/* Whether each parameter can have a column: all trials have the same few. */
static int n_setting_columns(const struct sweep_session *s)
{
    cJSON *object = cJSON_Parse(s->history.settings[0]);
    int n = object ? cJSON_GetArraySize(object) : 0;

    cJSON_Delete(object);
    return s->history.header.search == SWEEP_LIST || n > REPORT_TABLE_COLUMNS_MAX - 4 ? 0 : n;
}

static void add_heading(const struct sweep_session *s, int n_columns, struct report_table *table)
{
    struct str names = { 0 };

    if (n_columns)
        add_settings(&names, s->history.settings[0], SETTINGS_NAMES);
    else
        str_add(&names, "settings");
    report_table_heading(table, "trial\tstate\tstep\t%s\t%s", s->history.header.metric,
                         str_text(&names));
    str_release(&names);
}

static void add_trial(const struct sweep_session *s, int trial, int n_columns,
                      struct report_table *table)
{
    struct arena arena = { 0 };
    struct metric_value value = look(s, trial, &arena);
    struct str text = { 0 };

    str_printf(&text, "%d\t%s\t", trial, state_name(s->judge.trials[trial].state));
    if (value.newest >= 0)
        str_printf(&text, "%" PRId64, value.newest);
    str_add(&text, "\t");
    add_value(&text, &value);
    str_add(&text, "\t");
    add_settings(&text, s->history.settings[trial], n_columns ? SETTINGS_VALUES : SETTINGS_ALL);
    report_table_row(table, "%s", str_text(&text));
    str_release(&text);
    arena_release(&arena);
}

static void open_table(struct report_table *table, int n_columns)
{
    static char align[REPORT_TABLE_COLUMNS_MAX + 1];
    int n = 0;

    for (const char *c = "rlrr"; *c; c++)
        align[n++] = *c;
    for (int i = 0; i < max_int(1, n_columns); i++)
        align[n++] = n_columns ? 'r' : 'l';
    align[n] = 0;
    report_table_init(table, align);
}

static void print_rows(const struct sweep_session *s, const int *order, int n, struct str *out)
{
    struct report_table table;
    int n_columns = n_setting_columns(s);

    open_table(&table, n_columns);
    add_heading(s, n_columns, &table);
    for (int i = 0; i < n; i++)
        add_trial(s, order[i], n_columns, &table);
    report_table_print(&table, 0, out);
    report_table_release(&table);
}

static int count_of(const struct sweep_session *s, enum judge_state state)
{
    int n = 0;

    for (int i = 0; i < s->judge.rules.n_trials; i++)
        n += s->judge.trials[i].state == state;
    return n;
}

/* "20 trials: 3 finished, 2 running, ..." */
static void add_counts(const struct sweep_session *s, struct str *out)
{
    int n = s->judge.rules.n_trials, n_named = 0;

    str_printf(out, "%d trial%s:", n, str_s(n));
    for (int state = JUDGE_FAILED; state >= JUDGE_WAITING; state--) {
        int n_of = count_of(s, (enum judge_state)state);

        if (n_of)
            str_printf(out, "%s %d %s", n_named++ ? "," : "", n_of,
                       state == JUDGE_RUNNING   ? "running"
                       : state == JUDGE_WAITING ? "waiting"
                                                : state_name((enum judge_state)state));
    }
    str_add_char(out, '\n');
}

static void add_best(const struct sweep_session *s, int best, struct arena *arena, struct str *out)
{
    const char *folder = history_trial_folder(s->output, best, arena);
    const struct history_header *h = &s->history.header;
    struct metric_value value = look(s, best, arena);

    str_printf(out, "\nbest: trial %d, %s ", best, h->metric);
    add_value(out, &value);
    str_add(out, ": ");
    add_settings(out, s->history.settings[best], SETTINGS_ALL);
    str_printf(out, "\nits job: %s/job.yaml; its run: %s\n", folder, folder);
}

/* The K best that finished, as --ensemble takes them. */
static void add_ensemble(const struct sweep_session *s, const int *order, struct arena *arena,
                         struct str *out)
{
    int k = s->job.sweep.ensemble, n = 0;

    for (int i = 0; i < s->judge.rules.n_trials && n < k; i++)
        if (s->judge.trials[order[i]].state == JUDGE_FINISHED)
            str_printf(out, "%s%s", n++ ? "," : "ensemble: --ensemble ",
                       history_trial_folder(s->output, order[i], arena));
    if (n)
        str_add_char(out, '\n');
}

static void print_text(const struct sweep_session *s, const int *order, struct str *out)
{
    int n = s->judge.rules.n_trials;
    struct arena arena = { 0 };

    print_rows(s, order, min_int(n, ROWS_MAX), out);
    if (n > ROWS_MAX)
        str_printf(out, "... and %d more trials (hint: --json has all)\n", n - ROWS_MAX);
    add_counts(s, out);
    for (int i = 0; i < n; i++)
        if (s->reasons[i])
            str_printf(out, "trial %d failed: %s (%s)\n", i, s->reasons[i],
                       history_trial_log(s->output, i, &arena));
    if (s->judge.trials[order[0]].state == JUDGE_FINISHED) {
        add_best(s, order[0], &arena, out);
        add_ensemble(s, order, &arena, out);
    }
    arena_release(&arena);
}

static void print_json(const struct sweep_session *s, const int *order, struct str *out)
{
    const struct history_header *h = &s->history.header;
    struct arena arena = { 0 };

    str_add(out, "{\"metric\": ");
    json_add_string(out, h->metric);
    str_printf(out,
               ", \"goal\": \"%s\", \"best\": ", choice_word(sweep_goal_choices, (int)h->goal));
    if (s->judge.trials[order[0]].state == JUDGE_FINISHED)
        str_printf(out, "%d", order[0]);
    else
        str_add(out, "null");
    str_add(out, ", \"trials\": [");
    for (int i = 0; i < s->judge.rules.n_trials; i++) {
        int trial = order[i];
        struct metric_value value = look(s, trial, &arena);

        str_printf(out, "%s\n  {\"trial\": %d, \"state\": \"%s\", \"step\": ", i ? "," : "", trial,
                   state_name(s->judge.trials[trial].state));
        str_printf(out, value.newest >= 0 ? "%" PRId64 : "null", value.newest);
        str_add(out, ", \"value\": ");
        if (value.step >= 0 && isfinite(value.value))
            str_printf(out, "%.9g", value.value);
        else
            str_add(out, "null");
        str_add(out, ", \"folder\": ");
        json_add_string(out, history_trial_folder(s->output, trial, &arena));
        str_printf(out, ", \"settings\": %s", s->history.settings[trial]);
        if (s->reasons[trial]) {
            str_add(out, ", \"failed\": ");
            json_add_string(out, s->reasons[trial]);
        }
        str_add_char(out, '}');
    }
    str_add(out, "\n]}\n");
    arena_release(&arena);
}

void sweep_print(const struct sweep_session *s, bool json, struct str *out)
{
    int *order = arena_array(s->arena, int, s->judge.rules.n_trials);

    judge_rank(&s->judge, order);
    if (json)
        print_json(s, order, out);
    else
        print_text(s, order, out);
}

/* ---- live ---- */

void sweep_erase(struct sweep_session *s)
{
    if (s->n_drawn)
        fprintf(stderr, "\033[%dA\033[J", s->n_drawn);
    s->n_drawn = 0;
}

/* Those that run first, then the best. */
static int choose_rows(const struct sweep_session *s, int *rows, int n_max)
{
    int n_trials = s->judge.rules.n_trials, n = 0;
    int *order = calloc((size_t)n_trials, sizeof *order);

    CHECK(order);
    judge_rank(&s->judge, order);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n_trials && n < n_max; i++) {
            enum judge_state state = s->judge.trials[order[i]].state;

            if (pass ? state != JUDGE_RUNNING && state != JUDGE_WAITING : state == JUDGE_RUNNING)
                rows[n++] = order[i];
        }
    free(order);
    return n;
}

/* Whole lines, each cut at the terminal's width. */
static int put_lines(const char *text, int width)
{
    int n = 0, column = 0;

    for (; *text; text++) {
        if (*text == '\n') {
            fputc('\n', stderr);
            n++;
            column = 0;
        } else if (((unsigned char)*text & 0xc0) == 0x80 ? column <= width : ++column < width) {
            fputc(*text, stderr);
        }
    }
    return n;
}

void sweep_draw(struct sweep_session *s)
{
    struct winsize size = { 0 };
    struct str text = { 0 };

    if (!s->is_live)
        return;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row < 6)
        size = (struct winsize){ .ws_row = 24, .ws_col = 80 };
    int rows[64], n = choose_rows(s, rows, min_int(64, size.ws_row - 5));
    if (n)
        print_rows(s, rows, n, &text);
    add_counts(s, &text);
    sweep_erase(s);
    s->n_drawn = put_lines(str_text(&text), size.ws_col);
    fflush(stderr);
    str_release(&text);
}
