/*
 * items.c - prompts with their shots, as lm-evaluation-harness 0.4.13 puts them together
 */
#include "eval/items_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/rows/json_value.h"

#define MISSING_SHOWN 3 /* names of parts without files */

/* ---- one text ---- */

/*
 * Prompts and answers are C strings from here on. A program with a NUL byte counts as failed later.
 */
static int refuse_nul(const struct item_maker *m, const char *text, size_t n_bytes, struct err *err)
{
    if (m->part->way.kind == TASK_CODE || !memchr(text, 0, n_bytes))
        return 0;
    return err_set(err, ERR_DATA, "its text holds a NUL byte");
}

int item_maker_render(struct item_maker *m, const struct text_template *template,
                      const char *record, bool is_shot, struct str *out, struct err *err)
{
    const char *objects[] = { record, is_shot ? m->shot_variables : m->variables };

    if (!template)
        return 0;
    if (text_template_render(template, objects, 2, out, err) < 0)
        return -1;
    return refuse_nul(m, str_text(out), out->length, err);
}

char *item_maker_keep(struct item_maker *m, const struct str *text)
{
    return arena_strndup(&m->l->items->arena, str_text(text), text->length);
}

/* The choices of a record, as texts of the arena. */
int item_maker_choices(struct item_maker *m, const char *record, bool is_shot,
                       const char ***choices, int *n, struct err *err)
{
    const struct task_way *way = &m->part->way;
    struct arena *arena = &m->l->items->arena, scratch = { 0 };
    struct str text = { 0 };
    struct json_value *list;
    int k = 0;

    *choices = way->choice_texts.items;
    *n = way->choice_texts.n;
    if (!way->choices)
        return 0;
    int status = item_maker_render(m, way->choices, record, is_shot, &text, err);
    if (!status)
        status = json_value_parse(&list, str_text(&text), text.length, &scratch, err);
    if (!status && (list->kind != JSON_ARRAY || list->n < 1))
        status =
            err_set(err, ERR_DATA, "the choices are %s, not a list", json_value_kind_name(list));
    if (!status) {
        *choices = arena_array(arena, const char *, list->n);
        *n = list->n;
        for (const struct json_value *v = list->first; v && !status; v = v->next) {
            if (v->kind != JSON_STRING)
                status =
                    err_set(err, ERR_DATA, "a choice is %s, not a string", json_value_kind_name(v));
            else
                status = refuse_nul(m, v->text, v->n_bytes, err);
            if (!status)
                (*choices)[k++] = arena_strndup(arena, v->text, v->n_bytes);
        }
    }
    str_release(&text);
    arena_release(&scratch);
    return status;
}

/* "2", "[0, 2]", or a text that is one of the choices. */
int item_golds(const char *target, const char *const *choices, int n_choices, int *golds, int *n,
               struct err *err)
{
    const char *p = target + strspn(target, "[ ");
    char *end;

    *n = 0;
    for (long long k = strtoll(p, &end, 10); end != p; k = strtoll(p, &end, 10)) {
        if (k < 0 || k >= n_choices || *n == ITEM_GOLDS_MAX)
            return err_set(err, ERR_DATA, "target %s of %d choices", target, n_choices);
        golds[(*n)++] = (int)k;
        p = end + strspn(end, ", ");
    }
    if (*n > 0 && !p[strspn(p, "] ")])
        return 0;
    *n = 0;
    for (int i = 0; i < n_choices; i++)
        if (!strcmp(choices[i], target) && *n < ITEM_GOLDS_MAX)
            golds[(*n)++] = i;
    return *n > 0 ? 0 : err_set(err, ERR_DATA, "target '%.80s' is none of the choices", target);
}

/* ---- an item ---- */

static int set_choices(struct item_maker *m, struct item *item, struct err *err)
{
    const char *delimiter = m->part->way.target_delimiter, **choices;

    if (item_maker_choices(m, item->record, false, &choices, &item->n_choices, err) < 0 ||
        item_golds(item->target, choices, item->n_choices, item->golds, &item->n_golds, err) < 0)
        return -1;
    item->n_skip = (int)strlen(delimiter);
    item->choices = arena_array(&m->l->items->arena, const char *, item->n_choices);
    for (int i = 0; i < item->n_choices; i++)
        item->choices[i] = arena_printf(&m->l->items->arena, "%s%s", delimiter, choices[i]);
    return 0;
}

static int make_item(struct item_maker *m, struct item *item, struct err *err)
{
    struct str text = { 0 };

    str_add_bytes(&text, str_text(&m->description), m->description.length);
    int status = item_maker_add_shots(m, item->record, &text, err);
    if (!status)
        status = item_maker_render(m, m->part->way.prompt, item->record, false, &text, err);
    if (!status) {
        item->context = item_maker_keep(m, &text);
        item->hash = XXH3_64bits(str_text(&text), text.length);
        str_clear(&text);
        status = item_maker_render(m, m->part->way.target, item->record, false, &text, err);
    }
    if (!status) {
        item->target = item_maker_keep(m, &text);
        if (m->part->way.kind == TASK_CHOICE)
            status = set_choices(m, item, err);
    }
    str_release(&text);
    if (status < 0)
        err_add(err, "%s, item %lld of %s", m->part->name, (long long)item->number + 1,
                m->test.path);
    return status;
}

static struct item *append_item(struct items_loader *l)
{
    struct items *items = l->items;

    if (items->n == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 1024;
        struct item *grown = arena_array(&items->arena, struct item, l->capacity);

        if (items->n)
            memcpy(grown, items->items, sizeof *grown * (size_t)items->n);
        items->items = grown;
    }
    return &items->items[items->n++];
}

/* ---- a part ---- */

static void set_variables(struct item_maker *m, const char *file)
{
    const struct task_part *part = m->part;
    struct str out = { 0 };

    str_add(&out, "{\"part\":{\"name\":");
    json_value_print_text(part->name, strlen(part->name), &out);
    str_add(&out, ",\"title\":");
    json_value_print_text(part->title, strlen(part->title), &out);
    str_add(&out, ",\"file\":");
    json_value_print_text(file, strlen(file), &out);
    if (m->file_shots)
        str_printf(&out, ",\"shots\":%s", m->file_shots);
    str_printf(&out, "},\"n_shots\":%d,\"is_shot\":", m->n_shots);
    size_t length = out.length;
    str_add(&out, "false}");
    m->variables = item_maker_keep(m, &out);
    out.length = length;
    str_add(&out, "true}");
    m->shot_variables = item_maker_keep(m, &out);
    str_release(&out);
}

/* 1, 0: no file, or -1. */
static int read_part_file(struct item_maker *m, struct err *err)
{
    struct items_loader *l = m->l;
    char *text = NULL;
    int found =
        !l->task->part_file.n
            ? 1
            : records_find_text(&l->task->part_file, l->o->data, l->task->name, m->part->name,
                                &l->items->arena, &text, NULL, &l->looked, err);

    if (found > 0 && item_maker_read_shots(m, err) < 0)
        return -1;
    if (found > 0)
        set_variables(m, text ? text : "");
    return found;
}

static int make_items(struct item_maker *m, struct err *err)
{
    struct items_loader *l = m->l;
    int64_t n = l->o->limit > 0 && l->o->limit < m->test.n ? l->o->limit : m->test.n;

    if (item_maker_render(m, m->part->way.description, "{}", false, &m->description, err) < 0 ||
        item_maker_prepare_shots(m, err) < 0)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        struct item *item = append_item(l);

        *item = (struct item){ .part = m->part_index, .number = i, .record = m->test.items[i] };
        if (make_item(m, item, err) < 0)
            return -1;
    }
    char files[32] = "";
    if (m->test.n_files > 1)
        snprintf(files, sizeof files, " and %d more", m->test.n_files - 1);
    str_printf(&l->items->found, "%s: %lld item%s in %s%s", m->part->name, (long long)n, str_s(n),
               m->test.path, files);
    if (m->file_shots)
        str_printf(&l->items->found, ", shots of %s", m->file_shots_path);
    else if (m->part->way.shots_file.n && m->part->way.shots_instead && l->o->n_shots < 0)
        str_printf(&l->items->found, ", no %s: %s", m->part->way.shots_file.items[0],
                   m->part->way.shots_instead);
    if (m->shots.n && m->part->way.shots_from == TASK_FROM_SHOTS)
        str_printf(&l->items->found, ", shots from %lld in %s", (long long)m->shots.n,
                   m->shots.path);
    str_add(&l->items->found, "\n");
    return 0;
}

/* 1, 0: the part has no files, or -1. */
static int load_part(struct items_loader *l, int index, struct err *err)
{
    const struct task_part *part = &l->task->parts[index];
    struct item_maker m = { .l = l,
                            .part = part,
                            .part_index = index,
                            .n_shots = l->o->n_shots >= 0 ? l->o->n_shots : part->way.n_shots };
    /* Whoever draws shots from the items needs all of them. */
    bool from_items =
        part->way.shots_from == TASK_FROM_TEST || part->way.shots_from == TASK_FROM_ITEMS;
    int all = from_items && m.n_shots > 0;

    if (item_maker_check_shots(&m, err) < 0)
        return -1;
    if (!l->items->n) {
        l->items->n_shots = m.n_shots;
        l->first_part = index;
    }
    int found = read_part_file(&m, err);
    if (found > 0)
        found = records_read(&m.test, &l->task->test, l->o->data, l->task->name, part->name,
                             m.variables, all ? 0 : l->o->limit, &l->items->arena, &l->looked, err);
    if (found > 0 && m.test.n == 0)
        found = err_set(err, ERR_DATA, "%s: %s has no items", part->name, m.test.path);
    if (found > 0 && make_items(&m, err) < 0)
        found = -1;
    str_release(&m.description);
    return found;
}

/* ---- which parts ---- */

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, word, n) && (!p[n] || p[n] == ','))
            return true;
    return false;
}

static bool is_wanted(const struct items_loader *l, const struct task_part *part)
{
    const char *list = l->o->parts;

    for (int i = 0; i < part->way.leave_out.n; i++)
        if (!strcmp(part->way.leave_out.items[i], part->name))
            return false;
    return !list || !strcmp(list, "present") || has_word(list, part->name) ||
           (part->category && has_word(list, part->category));
}

static int check_word(const struct items_loader *l, const char *word, struct err *err)
{
    const struct task *t = l->task;
    struct arena arena = { 0 };
    const char **names = arena_array(&arena, const char *, 2 * (size_t)t->n_parts), *near;
    int n = 0, known = 0;

    for (int i = 0; i < t->n_parts; i++) {
        names[n++] = t->parts[i].name;
        if (t->parts[i].category)
            names[n++] = t->parts[i].category;
    }
    for (int i = 0; i < n; i++)
        known |= !strcmp(names[i], word);
    near = str_nearest(word, names, n);
    if (!known)
        err_set(err, ERR_CONFIG, "--subjects: task %s has no '%s' (hint: %s)", t->name, word,
                near ? near : names[0]);
    arena_release(&arena);
    return known ? 0 : -1;
}

static int check_words(const struct items_loader *l, struct err *err)
{
    struct str word = { 0 };
    int status = 0;

    if (!l->o->parts || !strcmp(l->o->parts, "present"))
        return 0;
    for (const char *p = l->o->parts; p && !status;) {
        size_t n = strcspn(p, ",");

        str_clear(&word);
        str_add_bytes(&word, p, n);
        status = check_word(l, str_text(&word), err);
        p = p[n] ? p + n + 1 : NULL;
    }
    str_release(&word);
    return status;
}

/* ---- whole ---- */

static int check_whole(struct items_loader *l, int n_left_out, struct err *err)
{
    const struct task *t = l->task;
    int present = l->o->parts && !strcmp(l->o->parts, "present");

    if (l->n_missing > 0 && (!present || l->items->n == 0))
        return err_set(err, ERR_DATA, "%s: no files of %s%s (searched %s, in %s/%s and in %s%s%s)",
                       t->name, str_text(&l->missing), l->n_missing > MISSING_SHOWN ? ", ..." : "",
                       str_text(&l->looked_first), l->o->data, t->name, l->o->data,
                       l->items->n ? "; hint: --subjects present uses the files that exist"
                       : t->get    ? "; hint: with DATA for --data: "
                                   : "",
                       l->items->n || !t->get ? "" : t->get);
    if (!l->items->n)
        return err_set(err, ERR_CONFIG, "%s: no subject is left: style %s excludes %s", t->name,
                       t->style, l->o->parts ? l->o->parts : "all");
    if (!l->o->parts && !l->o->limit && !n_left_out && l->items->n < t->n_items)
        return err_set(err, ERR_DATA,
                       "%s has %lld items, but %s has only %lld (hint: --limit N uses those)",
                       t->name, (long long)t->n_items, l->o->data, (long long)l->items->n);
    return 0;
}

static void note_missing(struct items_loader *l, const char *part)
{
    if (!l->n_missing)
        str_add(&l->looked_first, str_text(&l->looked));
    if (l->n_missing++ < MISSING_SHOWN)
        str_printf(&l->missing, "%s%s", l->missing.length ? ", " : "", part);
}

int items_load(struct items *items, const struct task *task, const struct items_options *options,
               struct err *err)
{
    struct items_loader l = { .task = task, .o = options, .items = items };
    int n_left_out = 0;

    *items = (struct items){ 0 };
    int status = check_words(&l, err);
    for (int i = 0; i < task->n_parts && !status; i++) {
        if (!is_wanted(&l, &task->parts[i])) {
            n_left_out++;
            continue;
        }
        str_clear(&l.looked);
        int found = load_part(&l, i, err);
        if (found < 0)
            status = -1;
        else if (!found)
            note_missing(&l, task->parts[i].name);
    }
    if (!status)
        status = check_whole(&l, n_left_out, err);
    str_release(&l.missing);
    str_release(&l.looked);
    str_release(&l.looked_first);
    if (status < 0)
        items_release(items);
    return status;
}

static void print_text(const char *key, const char *text, struct str *out)
{
    str_printf(out, ",\"%s\":", key);
    json_value_print_utf8(text, strlen(text), out);
}

void items_print(const struct items *items, const struct task *task, struct str *out)
{
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->items[i];

        str_add(out, "{\"task\":");
        json_value_print_text(task->name, strlen(task->name), out);
        print_text("part", task->parts[item->part].name, out);
        str_printf(out, ",\"item\":%lld", (long long)item->number);
        print_text("prompt", item->context, out);
        for (int k = 0; k < item->n_choices; k++) {
            str_add(out, k ? "," : ",\"choices\":[");
            json_value_print_utf8(item->choices[k], strlen(item->choices[k]), out);
        }
        str_add(out, item->n_choices ? "]" : "");
        print_text("target", item->target, out);
        str_add(out, "}\n");
    }
}

void items_release(struct items *items)
{
    str_release(&items->found);
    arena_release(&items->arena);
    *items = (struct items){ 0 };
}
