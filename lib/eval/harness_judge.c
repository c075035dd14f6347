/*
 * harness_judge.c - whether a text that a model wrote is right
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/num.h"
#include "data/rows/json_value.h"
#include "eval/harness_impl.h"

#define INVALID "[invalid]" /* what the references call an answer that isn't there */

/* A heap copy for reports, in which U+FFFD stands for each NUL byte. */
static char *copy_shown(const struct str *text)
{
    struct str out = { 0 };

    str_add(&out, "");
    for (size_t i = 0; i < text->length; i++) {
        if (text->data[i])
            str_add_char(&out, text->data[i]);
        else
            str_add(&out, "\xef\xbf\xbd");
    }
    return out.data;
}

static int filter(const struct task_filter *f, const struct str *text, const char *record,
                  struct str *out, struct err *err)
{
    struct str variables = { 0 }, rendered = { 0 };
    int status = 0, found = 0;

    if (f->render) {
        str_add(&variables, "{\"text\":");
        json_value_print_text(str_text(text), text->length, &variables);
        str_add(&variables, "}");
        const char *objects[] = { record, str_text(&variables) };
        status = text_template_render(f->render, objects, 2, &rendered, err);
        text = &rendered;
    }
    str_clear(out);
    for (int i = 0; i < f->n_find && !found && !status; i++)
        found = answer_pattern_find(f->find[i], str_text(text), text->length, f->which, out);
    if (found)
        answer_strip(out);
    else if (!status && f->n_find)
        str_add(out, INVALID);
    else if (!status)
        str_add_bytes(out, str_text(text), text->length);
    str_release(&variables);
    str_release(&rendered);
    return status;
}

static void normalize(const struct task_way *way, struct str *text)
{
    for (int i = 0; i < way->n_ignore; i++)
        answer_pattern_remove(way->ignore[i], text);
}

static bool has_nul(const struct str *text)
{
    return strlen(str_text(text)) != text->length;
}

/* Targets have no NUL bytes (items_load), so that an answer with one is not right. */
static bool is_right(const struct task_way *way, const struct str *answer, const char *target)
{
    struct str a = { 0 }, b = { 0 };
    int same;

    if (way->math_equal)
        return !has_nul(answer) && answer_math_equal(str_text(answer), target);
    str_add_bytes(&a, str_text(answer), answer->length);
    str_add(&b, target);
    normalize(way, &a);
    normalize(way, &b);
    same = way->ignore_case ? !strcasecmp(str_text(&a), str_text(&b))
                            : !strcmp(str_text(&a), str_text(&b));
    same = same && !has_nul(&a);
    str_release(&a);
    str_release(&b);
    return same;
}

/* The first filter's answer is the one that is shown. */
static int judge_text(struct harness_run *run, const struct item *item, const struct str *text,
                      struct item_result *r, struct err *err)
{
    const struct task_way *way = &run->task->parts[item->part].way;
    static const struct task_filter none = { 0 };
    int n = max_int(1, way->n_filters), status = 0;

    for (int i = 0; i < n && !status; i++) {
        struct str answer = { 0 };

        status =
            filter(way->n_filters ? &way->filters[i] : &none, text, item->record, &answer, err);
        if (!status)
            r->values[i] = is_right(way, &answer, item->target);
        if (!status && i == 0)
            r->answer = copy_shown(&answer);
        str_release(&answer);
    }
    return status;
}

/* What sandbox_run takes, rendered. */
struct rendered_program {
    struct str program, given, test, entry;
};

static int render_program(const struct task_way *way, const struct item *item,
                          const struct str *text, struct rendered_program *out, struct err *err)
{
    struct str variables = { 0 };
    const struct {
        const struct text_template *template;
        struct str *text;
    } parts[] = { { way->program, &out->program },
                  { way->given, &out->given },
                  { way->test, &out->test },
                  { way->entry, &out->entry } };
    int status = 0;

    str_add(&variables, "{\"text\":");
    json_value_print_text(str_text(text), text->length, &variables);
    str_add(&variables, "}");
    const char *objects[] = { item->record, str_text(&variables) };
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++)
        if (parts[i].template)
            status = text_template_render(parts[i].template, objects, 2, parts[i].text, err);
    str_release(&variables);
    return status;
}

/*
 * CPython refuses a source with NUL bytes; a copy that ends at the first of them could be another
 * program that passes.
 */
static int refuse_nul(const struct rendered_program *p, const struct task_part *part,
                      const struct item *item, struct item_result *r)
{
    const char *which = has_nul(&p->program) ? "program"
                        : has_nul(&p->given) ? "prompt"
                        : has_nul(&p->test)  ? "test"
                        : has_nul(&p->entry) ? "entry point"
                                             : NULL;
    struct str answer = { 0 };

    if (!which)
        return 0;
    log_warn("%s, item %" PRId64
             ": its %s holds a NUL byte, which is not valid Python: counted as failed",
             part->name, item->number, which);
    str_printf(&answer, "failed: its %s holds a NUL byte", which);
    r->answer = copy_shown(&answer);
    str_release(&answer);
    return 1;
}

/* The program that a text makes, run. */
static int judge_code(struct harness_run *run, const struct item *item, const struct str *text,
                      struct item_result *r, struct err *err)
{
    const struct task_part *part = &run->task->parts[item->part];
    const struct task_way *way = &part->way;
    static const struct task_filter none = { 0 };
    struct str found = { 0 };
    struct rendered_program p = { 0 };
    enum sandbox_outcome outcome = SANDBOX_FAILED;

    int status = filter(way->n_filters ? &way->filters[0] : &none, text, item->record, &found, err);
    if (!status)
        status = render_program(way, item, &found, &p, err);
    if (!status && !refuse_nul(&p, part, item, r)) {
        const struct sandbox_program program = { str_text(&p.program), str_text(&p.given),
                                                 str_text(&p.test), str_text(&p.entry) };

        status = sandbox_run(run->h->sandbox, &program, way->deadline, &outcome, err);
        r->answer = strdup(sandbox_outcome_name(outcome));
    }
    r->values[0] = outcome == SANDBOX_PASSED;
    str_release(&found);
    str_release(&p.program);
    str_release(&p.given);
    str_release(&p.test);
    str_release(&p.entry);
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
    r->text = copy_shown(&printable);
    int status = run->task->parts[item->part].way.kind == TASK_CODE
                     ? judge_code(run, item, &printable, r, err)
                     : judge_text(run, item, &printable, r, err);
    str_release(&printable);
    return status < 0 ? -1 : harness_note(run, index, err);
}
