/*
 * harness_judge.c - whether a text that a model wrote is right
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/num.h"
#include "data/value.h"
#include "eval/harness_impl.h"

#define INVALID "[invalid]" /* what the references call an answer that isn't there */

static int filter(const struct task_filter *f, const char *text, const char *record,
                  struct str *out, struct err *err)
{
    struct str variables = { 0 }, rendered = { 0 };
    int status = 0, found = 0;

    if (f->render) {
        str_add(&variables, "{\"text\":");
        value_print_text(text, strlen(text), &variables);
        str_add(&variables, "}");
        const char *objects[] = { record, str_text(&variables) };
        status = text_template_render(f->render, objects, 2, &rendered, err);
        text = str_text(&rendered);
    }
    str_clear(out);
    for (int i = 0; i < f->n_find && !found && !status; i++)
        found = answer_pattern_find(f->find[i], text, strlen(text), f->which, out);
    if (found)
        answer_strip(out);
    else if (!status)
        str_add(out, f->n_find ? INVALID : text);
    str_release(&variables);
    str_release(&rendered);
    return status;
}

static void normalize(const struct task_way *way, struct str *text)
{
    for (int i = 0; i < way->n_ignore; i++)
        answer_pattern_remove(way->ignore[i], text);
}

static int is_right(const struct task_way *way, const char *answer, const char *target)
{
    struct str a = { 0 }, b = { 0 };
    int same;

    if (way->math_equal)
        return answer_math_equal(answer, target);
    str_add(&a, answer);
    str_add(&b, target);
    normalize(way, &a);
    normalize(way, &b);
    same = way->ignore_case ? !strcasecmp(str_text(&a), str_text(&b))
                            : !strcmp(str_text(&a), str_text(&b));
    str_release(&a);
    str_release(&b);
    return same;
}

/* The first filter's answer is the one that is shown. */
static int judge_text(struct harness_run *run, const struct item *item, struct item_result *r,
                      struct err *err)
{
    const struct task_way *way = &run->task->parts[item->part].way;
    static const struct task_filter none = { 0 };
    int n = max_int(1, way->n_filters), status = 0;

    for (int i = 0; i < n && !status; i++) {
        struct str answer = { 0 };

        status =
            filter(way->n_filters ? &way->filters[i] : &none, r->text, item->record, &answer, err);
        if (!status)
            r->values[i] = is_right(way, str_text(&answer), item->target);
        if (!status && i == 0)
            r->answer = strdup(str_text(&answer));
        str_release(&answer);
    }
    return status;
}

/* The program that a text makes, run. */
static int judge_code(struct harness_run *run, const struct item *item, struct item_result *r,
                      struct err *err)
{
    const struct task_way *way = &run->task->parts[item->part].way;
    static const struct task_filter none = { 0 };
    struct str text = { 0 }, variables = { 0 }, program = { 0 };
    enum sandbox_outcome outcome = SANDBOX_FAILED;

    int status =
        filter(way->n_filters ? &way->filters[0] : &none, r->text, item->record, &text, err);
    if (!status) {
        str_add(&variables, "{\"text\":");
        value_print_text(str_text(&text), text.length, &variables);
        str_add(&variables, "}");
        const char *objects[] = { item->record, str_text(&variables) };
        status = text_template_render(way->program, objects, 2, &program, err);
    }
    if (!status)
        status = sandbox_run(run->h->sandbox, str_text(&program), way->deadline, &outcome, err);
    r->values[0] = outcome == SANDBOX_PASSED;
    r->answer = strdup(sandbox_outcome_name(outcome));
    str_release(&text);
    str_release(&variables);
    str_release(&program);
    return status;
}

int harness_judge(struct harness_run *run, int64_t index, const struct str *text, struct err *err)
{
    const struct item *item = &run->items->items[index];
    struct item_result *r = &run->results[index];
    struct str printable = { 0 };

    /* As the libraries decode tokens: what is no character is U+FFFD. */
    str_add_utf8(&printable, str_text(text), text->length);
    r->choice = -1;
    r->text = strdup(str_text(&printable));
    str_release(&printable);
    if (!r->text)
        return err_set(err, ERR_DEVICE, "out of host memory");
    int status = run->task->parts[item->part].way.kind == TASK_CODE ? judge_code(run, item, r, err)
                                                                    : judge_text(run, item, r, err);
    return status < 0 ? -1 : harness_note(run, index, err);
}
