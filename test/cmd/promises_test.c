/*
 * promises_test.c - what test/golden/promises lists is there: job keys and words, exit codes,
 * metrics
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/deprecated_impl.h"
#include "config/fields_impl.h"
#include "report/metrics.h"
#include "support/golden_text.h"
#include "support/temporary.h"

#define FOLDER "test/golden/promises/"

static char *read_list(const char *name)
{
    char path[128];
    char *text;
    size_t n;
    struct err err;

    snprintf(path, sizeof path, FOLDER "%s", name);
    if (file_read(path, 1 << 20, ERR_DATA, &text, &n, &err) < 0)
        fail_msg("%s", err.text);
    return text;
}

/* Call check with each line of a list; there are at least n_least. */
static void each_line(const char *name, int n_least, void (*check)(char *line, void *context),
                      void *context)
{
    char *text = read_list(name), *rest = text, *line;
    int n = 0;

    while ((line = strsep(&rest, "\n")))
        if (*line) {
            check(line, context);
            n++;
        }
    assert_true(n >= n_least);
    free(text);
}

static int updates(void)
{
    const char *update = getenv("LMTRAIN_UPDATE_GOLDEN");

    return update && *update;
}

/* ---- exit codes ---- */

static void check_code(char *line, void *context)
{
    static const struct {
        const char *name;
        enum err_code code;
    } codes[] = {
        { "ERR_NONE", ERR_NONE },       { "ERR_FAILED", ERR_FAILED }, { "ERR_CONFIG", ERR_CONFIG },
        { "ERR_DATA", ERR_DATA },       { "ERR_DEVICE", ERR_DEVICE }, { "ERR_PEER", ERR_PEER },
        { "ERR_REQUEUE", ERR_REQUEUE },
    };
    const char *number = strsep(&line, " "), *name = strsep(&line, " ");

    (void)context;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (!strcmp(codes[i].name, name)) {
            assert_int_equal(codes[i].code, strtol(number, NULL, 10));
            return;
        }
    fail_msg("%s is promised, and there is no such code", name);
}

static void exit_codes(void **state)
{
    (void)state;
    each_line("exit_codes.txt", 7, check_code, NULL);
}

/* ---- job keys ---- */

static int has_word(const struct field *f, const char *word)
{
    if (f->word && !strcmp(f->word, word))
        return 1;
    for (const struct choice *c = f->choices; c && c->word; c++)
        if (!strcmp(c->word, word))
            return 1;
    for (const struct choice *c = f->synonyms; c && c->word; c++)
        if (!strcmp(c->word, word))
            return 1;
    return 0;
}

static void check_key(char *line, void *context)
{
    const char *key = strsep(&line, " "), *word;
    const struct deprecated_key *old = deprecated_find(&job_deprecated_keys, key);
    const struct field *f = field_find(old ? old->successor : key);

    (void)context;
    if (!f)
        fail_msg("the job key %s is promised, and there is no such key (deprecated.c)", key);
    while ((word = strsep(&line, " ")))
        if (!has_word(f, word))
            fail_msg("%s: %s is promised, and it is not a value of that key", key, word);
}

static void print_words(const struct choice *choices, struct str *out)
{
    for (const struct choice *c = choices; c && c->word; c++)
        str_printf(out, " %s", c->word);
}

static void job_keys(void **state)
{
    struct str out = { 0 };

    (void)state;
    if (!updates()) {
        each_line("job_keys.txt", 100, check_key, NULL);
        return;
    }
    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];

        str_add(&out, f->key);
        if (f->word && *f->word)
            str_printf(&out, " %s", f->word);
        print_words(f->choices, &out);
        print_words(f->synonyms, &out);
        str_add_char(&out, '\n');
    }
    golden_text_check(FOLDER "job_keys.txt", str_text(&out));
    str_release(&out);
}

/* ---- metrics.jsonl ---- */

/* A line of each kind, with all that it may have. */
static void write_metrics(const char *folder)
{
    static const double stats[] = { 1, 0.5, 1.5 }, dropped[] = { 3 };
    static const int layer = 1;
    const struct metrics_gpu gpu = { 1, 1755, 412, 70, "power cap" };
    const struct metrics_exposed_kind kind = { "reduce_scatter dp", 0.5 };
    const struct metrics_exposed exposed = { 1, &kind, 1, 0.75 };
    const struct metrics_step step = { .step = 1,
                                       .loss = 1,
                                       .loss_mean = 1,
                                       .grad_norm = 1,
                                       .learned_per_s = 1,
                                       .loss_scale = 2,
                                       .z_loss = 1,
                                       .is_compressed = true,
                                       .compress_error = 0.01,
                                       .balance = 1,
                                       .most_used = 1,
                                       .least_used = 1,
                                       .experts = { 1, 2, &layer, stats },
                                       .dropped = dropped,
                                       .exposed = &exposed,
                                       .gpu = &gpu };
    const struct metrics_evaluation evaluation = {
        .step = 1, .set = "kjv", .loss = 1, .tokens = 2
    };
    struct metrics *metrics;
    struct err err;

    if (metrics_open(&metrics, folder, 1, &err) < 0 || metrics_step(metrics, &step, &err) < 0 ||
        metrics_eval(metrics, &evaluation, &err) < 0 ||
        metrics_event(metrics, 1, "changed", "text", &err) < 0)
        fail_msg("%s", err.text);
    metrics_close(metrics);
}

static const char *kind_of(const cJSON *line)
{
    return cJSON_HasObjectItem(line, "event")       ? "event"
           : cJSON_HasObjectItem(line, "eval_loss") ? "evaluation"
                                                    : "step";
}

static void check_field(char *line, void *context)
{
    if (!strstr(context, line))
        fail_msg("metrics.jsonl: '%s' is promised, and is not written", line);
}

static void metrics_fields(void **state)
{
    char folder[256], *text;
    struct str out = { 0 };
    struct err err;
    size_t n;

    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    write_metrics(folder);
    char *path = malloc(sizeof folder + 32);
    snprintf(path, sizeof folder + 32, "%s/metrics.jsonl", folder);
    if (file_read(path, 1 << 20, ERR_DATA, &text, &n, &err) < 0)
        fail_msg("%s", err.text);
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        cJSON *object = cJSON_Parse(line);

        for (const cJSON *item = object ? object->child : NULL; item; item = item->next)
            str_printf(&out, "%s %s\n", kind_of(object), item->string);
        cJSON_Delete(object);
    }
    if (updates())
        golden_text_check(FOLDER "metrics_fields.txt", str_text(&out));
    else
        each_line("metrics_fields.txt", 25, check_field, out.data);
    str_release(&out);
    free(text);
    free(path);
    assert_int_equal(file_remove_tree(folder, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes),
        cmocka_unit_test(job_keys),
        cmocka_unit_test(metrics_fields),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
