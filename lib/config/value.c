/*
 * value.c - one value of a field, from YAML (value_print.c writes it)
 *
 * The scalars are those of YAML 1.2's core schema, chosen by the field's type and not by their
 * look: only true and false are booleans, 3e-4 is a number, and a text field takes 007 or no as
 * text.
 */
#include "config/fields_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int wrong(struct diagnostics *m, const struct field *f, const struct yaml_node *node,
                 const char *hint)
{
    struct str range = { 0 };
    char shown[96];

    field_print_range(f, &range);
    if (node->kind != YAML_SCALAR)
        snprintf(shown, sizeof shown, "a %s", node->kind == YAML_MAP ? "map" : "list");
    else if (yaml_is_null(node))
        snprintf(shown, sizeof shown, "empty");
    else
        snprintf(shown, sizeof shown, node->plain ? "%.80s" : "\"%.80s\"", node->text);
    if (hint)
        diagnostics_add(m, node, "%s is %s, not %s (hint: %s)", f->key, shown, str_text(&range),
                        hint);
    else
        diagnostics_add(m, node, "%s is %s, not %s", f->key, shown, str_text(&range));
    str_release(&range);
    return -1;
}

static int in_range(const struct field *f, double value)
{
    return value >= f->min && value <= f->max && !(f->above_min && value <= f->min);
}

static void store_number(const struct field *f, struct job *job, double value, int64_t whole,
                         int given)
{
    char *at = (char *)job + f->offset;

    if (f->given_offset)
        *(int *)((char *)job + f->given_offset) = given;
    if (f->type == FIELD_FLOAT || f->type == FIELD_RATE)
        *(double *)at = value;
    else if (f->type == FIELD_INT)
        *(int *)at = (int)whole;
    else if (f->type == FIELD_I64 || f->type == FIELD_BYTES)
        *(int64_t *)at = whole;
    else
        *(uint64_t *)at = (uint64_t)whole;
}

/* What was probably meant by text that is not a number, or NULL. */
static const char *number_hint(const struct field *f, const struct yaml_node *node, char *buffer,
                               size_t size)
{
    int64_t whole;
    double value;

    if (node->kind != YAML_SCALAR)
        return NULL;
    if (str_to_f64(node->text, &value) || (f->type == FIELD_FLOAT && node->plain))
        return NULL;
    if (f->type == FIELD_FLOAT || (!node->plain && !str_to_i64(node->text, &whole)))
        snprintf(buffer, size, "%.32s without quotes", node->text);
    else if (fabs(value) < 1e15 && value == floor(value))
        snprintf(buffer, size, "%.0f", value);
    else
        return NULL;
    return buffer;
}

static int set_number(const struct field *f, struct job *job, const struct yaml_node *node,
                      struct diagnostics *m)
{
    int64_t whole = 0;
    double value = 0;
    char hint[64];

    if (node->kind == YAML_SCALAR && f->word && !strcmp(node->text, f->word)) {
        store_number(f, job, f->word_value, f->word_value, 0);
        return 0;
    }
    int bad = node->kind != YAML_SCALAR || !node->plain;
    if (!bad && f->type == FIELD_FLOAT) {
        bad = str_to_f64(node->text, &value);
    } else if (!bad) {
        bad = str_to_i64(node->text, &whole);
        value = (double)whole;
    }
    if (bad)
        return wrong(m, f, node, number_hint(f, node, hint, sizeof hint));
    if (!in_range(f, value))
        return wrong(m, f, node, NULL);
    store_number(f, job, value, whole, 1);
    return 0;
}

enum quantity field_quantity(const struct field *f)
{
    return f->type == FIELD_RATE ? RATE : BYTES;
}

/* What was probably meant by text that is no quantity in the field's range, or NULL. */
static const char *quantity_hint(const struct field *f, const struct yaml_node *node,
                                 struct str *out)
{
    char plain[64];
    int64_t whole;

    if (node->kind != YAML_SCALAR)
        return NULL;
    if (quantity_suggest(node->text, field_quantity(f), out))
        return in_range(f, quantity_parse(str_text(out), field_quantity(f))) ? str_text(out) : NULL;
    if (f->type == FIELD_RATE)
        return NULL;
    if (node->plain && !str_to_i64(node->text, &whole)) {
        if (whole > 0 && (double)whole < f->min)
            str_printf(out, "%s GiB", node->text);
    } else if (number_hint(f, node, plain, sizeof plain)) {
        str_add(out, plain);
    }
    return out->length ? str_text(out) : NULL;
}

/* Bytes without a unit are a whole number. */
static int set_quantity(const struct field *f, struct job *job, const struct yaml_node *node,
                        struct diagnostics *m)
{
    struct str hint = { 0 };
    int64_t whole;
    double value = -1;

    if (node->kind == YAML_SCALAR && f->word && !strcmp(node->text, f->word)) {
        store_number(f, job, f->word_value, f->word_value, 0);
        return 0;
    }
    if (node->kind == YAML_SCALAR)
        value = f->type == FIELD_BYTES && node->plain && !str_to_i64(node->text, &whole)
                    ? (double)whole
                    : quantity_parse(node->text, field_quantity(f));
    if (in_range(f, value)) {
        store_number(f, job, value, llround(value), 1);
        return 0;
    }
    wrong(m, f, node, quantity_hint(f, node, &hint));
    str_release(&hint);
    return -1;
}

static int set_bool(const struct field *f, struct job *job, const struct yaml_node *node,
                    struct diagnostics *m)
{
    static const char *const words[][2] = {
        { "yes", "true" },
        { "on", "true" },
        { "y", "true" },
        { "1", "true" },
        { "no", "false" },
        { "off", "false" },
        { "n", "false" },
        { "0", "false" },
        { "true", "true without quotes" },
        { "false", "false without quotes" },
    };
    static const char *const literals[][3] = { { "false", "False", "FALSE" },
                                               { "true", "True", "TRUE" } };

    if (node->kind != YAML_SCALAR)
        return wrong(m, f, node, NULL);
    for (int value = 0; node->plain && value < 2; value++)
        for (int i = 0; i < 3; i++)
            if (!strcmp(node->text, literals[value][i])) {
                *(int *)((char *)job + f->offset) = value;
                return 0;
            }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(node->text, words[i][0]))
            return wrong(m, f, node, words[i][1]);
    return wrong(m, f, node, NULL);
}

static const char *nearest_choice(const struct choice *choices, const char *text)
{
    const char *words[FIELD_ITEMS_MAX];
    int n = 0;

    for (; choices[n].word; n++) {
        CHECK(n < FIELD_ITEMS_MAX);
        words[n] = choices[n].word;
    }
    return str_nearest(text, words, n);
}

const char *field_word(const struct field *f, const char *text)
{
    for (const struct choice *s = f->synonyms; s && s->word; s++)
        for (const struct choice *c = f->choices; c->word; c++)
            if (!strcmp(text, s->word) && s->value == c->value)
                return c->word;
    return text;
}

static int set_choice(const struct field *f, struct job *job, const struct yaml_node *node,
                      struct diagnostics *m)
{
    char *at = (char *)job + f->offset;

    if (node->kind != YAML_SCALAR)
        return wrong(m, f, node, NULL);
    const char *text = field_word(f, node->text);
    for (const struct choice *c = f->choices; c->word; c++) {
        if (strcmp(text, c->word) != 0)
            continue;
        *(int *)at = c->value;
        if (f->given_offset)
            *(int *)((char *)job + f->given_offset) = strcmp(c->word, "auto") != 0;
        return 0;
    }
    return wrong(m, f, node, nearest_choice(f->choices, node->text));
}

static int set_item(const struct field *f, struct bitset *set, const struct yaml_node *node,
                    struct diagnostics *m)
{
    struct choice items[FIELD_ITEMS_MAX + 1];

    if (node->kind != YAML_SCALAR)
        return diagnostics_add(m, node, "%s has an item that is not a string", f->key);
    f->list_items(items);
    for (const struct choice *c = items; c->word; c++)
        if (!strcmp(node->text, c->word)) {
            bitset_add(set, c->value);
            return 0;
        }
    /* "add_rmsnorm" is an add and an rmsnorm. */
    const char *text = str_starts_with(node->text, "add_") ? node->text + 4 : node->text;
    const char *near = nearest_choice(items, text);
    struct str all = { 0 };
    for (const struct choice *c = items; !near && c->word; c++)
        str_printf(&all, c == items ? "%s" : ", %s", c->word);
    diagnostics_add(m, node, "%s has %.80s, which is not %s (hint: %s)", f->key, node->text,
                    f->item, near ? near : str_text(&all));
    str_release(&all);
    return -1;
}

/* The item that the text is, without the brackets of a list; or NULL. */
static const char *item_word(const struct field *f, const struct yaml_node *node)
{
    struct choice items[FIELD_ITEMS_MAX + 1];

    if (node->kind != YAML_SCALAR)
        return NULL;
    f->list_items(items);
    const struct choice *item = choice_find(items, node->text);
    return item && !choice_find(f->choices, node->text) ? item->word : NULL;
}

static int set_kinds(const struct field *f, struct job *job, const struct yaml_node *node,
                     struct diagnostics *m)
{
    struct bitset *at = (struct bitset *)(void *)((char *)job + f->items_offset), set = { 0 };
    int failed = 0;

    if (node->kind != YAML_LIST) {
        const char *word = item_word(f, node);

        if (word)
            return wrong(m, f, node, arena_printf(m->arena, "[%s]", word));
        if (set_choice(f, job, node, m))
            return -1;
        *at = set;
        return 0;
    }
    if (!node->first)
        return diagnostics_add(m, node, "%s is an empty list (hint: %s)", f->key, f->choices->word);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        failed |= set_item(f, &set, item, m);
    if (failed)
        return -1;
    *(int *)((char *)job + f->offset) = f->word_value;
    *at = set;
    return 0;
}

/* {ulysses: 2, gather: 4} */
static int set_sizes(const struct field *f, struct job *job, const struct yaml_node *node,
                     struct diagnostics *m)
{
    struct cp_sizes *at = (struct cp_sizes *)(void *)((char *)job + f->items_offset), sizes = { 0 };
    int kind = 0, n = 0;

    if (node->kind != YAML_MAP) {
        if (set_choice(f, job, node, m))
            return -1;
        *at = sizes;
        return 0;
    }
    for (const struct yaml_node *item = node->first; item; item = item->next, n++) {
        bool is_first = !strcmp(item->key, f->word);
        const struct choice *c = f->choices;
        int64_t value;

        while (c->word && strcmp(c->word, item->key) != 0)
            c++;
        if (!c->word || (!is_first && c->value <= f->word_value))
            return diagnostics_add_at_key(m, item, "unknown key %s.%.64s (hint: {%s: 2, %s: 2})",
                                          f->key, item->key, f->word,
                                          f->choices[f->word_value + 1].word);
        if (item->kind != YAML_SCALAR || !item->plain || str_to_i64(item->text, &value) ||
            value < 1 || value > 65536)
            return diagnostics_add(m, item, "%s.%s is not a whole number from 1 to 65536", f->key,
                                   item->key);
        *(is_first ? &sizes.ulysses : &sizes.keys) = (int)value;
        kind = is_first ? kind : c->value;
    }
    if (n != 2 || !sizes.ulysses || !sizes.keys)
        return diagnostics_add(m, node,
                               "%s is a map without %s and one other (hint: {%s: 2, %s: 2})",
                               f->key, f->word, f->word, f->choices[f->word_value + 1].word);
    *(int *)(void *)((char *)job + f->offset) = kind;
    *at = sizes;
    return 0;
}

static int set_text(const struct field *f, struct job *job, const struct yaml_node *node,
                    struct diagnostics *m)
{
    char *at = (char *)job + f->offset;

    if (yaml_is_null(node) && f->initial && !*f->initial) {
        *(const char **)at = NULL;
        return 0;
    }
    if (node->kind != YAML_SCALAR || yaml_is_null(node) || !*node->text)
        return wrong(m, f, node, NULL);
    if (f->type == FIELD_TEXT) {
        *(const char **)at = node->text;
        return 0;
    }
    if (strlen(node->text) >= sizeof job->model.name)
        return diagnostics_add(m, node, "%s is longer than %zu bytes", f->key,
                               sizeof job->model.name - 1);
    /* All of it: specs are compared as bytes. */
    memset(at, 0, sizeof job->model.name);
    memcpy(at, node->text, strlen(node->text));
    return 0;
}

/* One item of data.train: a prefix, or {path, weight}. */
static int set_dataset(const struct field *f, struct job_dataset *out, const struct yaml_node *node,
                       struct diagnostics *m)
{
    *out = (struct job_dataset){ .weight = 1 };
    if (node->kind == YAML_SCALAR && !yaml_is_null(node) && *node->text) {
        out->path = node->text;
        return 0;
    }
    if (node->kind != YAML_MAP)
        return wrong(m, f, node, NULL);
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        if (!strcmp(item->key, "path")) {
            if (item->kind != YAML_SCALAR || yaml_is_null(item) || !*item->text)
                return diagnostics_add(m, item, "%s.path is empty or not a string", f->key);
            out->path = item->text;
        } else if (!strcmp(item->key, "weight")) {
            if (item->kind != YAML_SCALAR || !item->plain || str_to_f64(item->text, &out->weight) ||
                !(out->weight > 0) || out->weight > 1e12)
                return diagnostics_add(m, item, "%s.weight is %.80s, not a number above 0", f->key,
                                       item->kind == YAML_SCALAR ? item->text : "a map or list");
        } else {
            return diagnostics_add_at_key(m, item, "unknown key %s.%.64s (hint: path or weight)",
                                          f->key, item->key);
        }
    }
    if (!out->path)
        return diagnostics_add(m, node, "%s: an item without path", f->key);
    return 0;
}

static int set_datasets(const struct field *f, struct job *job, const struct yaml_node *node,
                        struct diagnostics *m)
{
    const struct yaml_node *item = node->kind == YAML_LIST ? node->first : node;
    int n = 0, status = 0;

    for (const struct yaml_node *p = item; p; p = node->kind == YAML_LIST ? p->next : NULL)
        n++;
    if (n == 0)
        return diagnostics_add(m, node, "%s is an empty list, not %s", f->key,
                               "a prefix or a list of them");
    struct job_dataset *sets = arena_array(m->arena, struct job_dataset, n);
    for (int i = 0; i < n; i++, item = item->next)
        status |= set_dataset(f, &sets[i], item, m);
    if (status)
        return -1;
    job->data.train = sets;
    job->data.n_train = n;
    return 0;
}

static void set_auto(const struct field *f, struct job *job, int is_auto)
{
    if (f->auto_offset)
        memcpy((char *)job + f->auto_offset, &is_auto, sizeof is_auto);
}

static int set_counts(const struct field *f, struct job *job, const struct yaml_node *node,
                      struct diagnostics *m)
{
    struct job_counts *counts = (struct job_counts *)(void *)((char *)job + f->offset);
    int n = 0;

    int is_auto = f->auto_offset && node->kind == YAML_SCALAR && !strcmp(node->text, "auto");
    if (is_auto || (node->kind == YAML_SCALAR && !strcmp(node->text, f->word))) {
        *counts = (struct job_counts){ 0 };
        set_auto(f, job, is_auto);
        return 0;
    }
    if (node->kind != YAML_LIST || !node->first)
        return wrong(m, f, node, NULL);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    int *values = arena_array(m->arena, int, n);
    n = 0;
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        int64_t value;

        if (item->kind != YAML_SCALAR || !item->plain || str_to_i64(item->text, &value) ||
            !in_range(f, (double)value))
            return diagnostics_add(m, item,
                                   "%s has an item that is not a whole number from %.0f to %.0f",
                                   f->key, f->min, f->max);
        values[n++] = (int)value;
    }
    *counts = (struct job_counts){ values, n };
    set_auto(f, job, 0);
    return 0;
}

/* One text stands for a list of one; an empty word is none. */
static int set_texts(const struct field *f, struct job *job, const struct yaml_node *node,
                     struct diagnostics *m)
{
    struct job_texts *texts = (struct job_texts *)(void *)((char *)job + f->offset);
    int is_one = node->kind == YAML_SCALAR;
    const struct yaml_node *item = is_one ? node : node->first;
    int n = 0;

    if (yaml_is_null(node) ||
        (node->kind == YAML_SCALAR && *f->word && !strcmp(node->text, f->word))) {
        *texts = (struct job_texts){ 0 };
        return 0;
    }
    if (node->kind == YAML_MAP || !item)
        return wrong(m, f, node, NULL);
    for (const struct yaml_node *p = item; p; p = is_one ? NULL : p->next)
        n++;
    const char **values = arena_array(m->arena, const char *, n);
    for (int i = 0; i < n; i++, item = item->next) {
        if (item->kind != YAML_SCALAR || yaml_is_null(item) || !*item->text)
            return diagnostics_add(m, item, "%s has an item that is empty or not a string", f->key);
        values[i] = item->text;
    }
    *texts = (struct job_texts){ values, n };
    return 0;
}

static int set_pairs(const struct field *f, struct job *job, const struct yaml_node *node,
                     struct diagnostics *m)
{
    struct job_texts *texts = (struct job_texts *)(void *)((char *)job + f->offset);
    int n = 0;

    if (node->kind == YAML_SCALAR && !strcmp(node->text, f->word)) {
        *texts = (struct job_texts){ 0 };
        return 0;
    }
    if (node->kind != YAML_MAP || !node->first)
        return wrong(m, f, node, NULL);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    const char **values = arena_array(m->arena, const char *, n);
    n = 0;
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        if (item->kind != YAML_SCALAR || yaml_is_null(item) || !*item->text)
            return diagnostics_add(m, item, "%s.%.64s is empty or not a string", f->key, item->key);
        if (strchr(item->key, '='))
            return diagnostics_add_at_key(m, item, "%s has a key with '='", f->key);
        values[n++] = arena_printf(m->arena, "%s=%s", item->key, item->text);
    }
    *texts = (struct job_texts){ values, n };
    return 0;
}

int field_set(const struct field *f, struct job *job, const struct yaml_node *node,
              struct diagnostics *m)
{
    switch (f->type) {
    case FIELD_INT:
    case FIELD_I64:
    case FIELD_U64:
    case FIELD_FLOAT:
        return set_number(f, job, node, m);
    case FIELD_BYTES:
    case FIELD_RATE:
        return set_quantity(f, job, node, m);
    case FIELD_BOOL:
        return set_bool(f, job, node, m);
    case FIELD_CHOICE:
        return set_choice(f, job, node, m);
    case FIELD_KINDS:
        return set_kinds(f, job, node, m);
    case FIELD_SIZES:
        return set_sizes(f, job, node, m);
    case FIELD_TEXT:
    case FIELD_NAME:
        return set_text(f, job, node, m);
    case FIELD_COUNTS:
        return set_counts(f, job, node, m);
    case FIELD_TEXTS:
        return set_texts(f, job, node, m);
    case FIELD_PAIRS:
        return set_pairs(f, job, node, m);
    case FIELD_GROUPS:
        return field_set_groups(f, job, node, m);
    case FIELD_SPACE:
        return field_set_space(f, job, node, m);
    case FIELD_DATASETS:
        return set_datasets(f, job, node, m);
    }
    CHECK(!"a field type");
    return -1;
}

void field_set_defaults(struct job *job, struct arena *arena)
{
    struct diagnostics none = { .arena = arena, .source = "fields.c" };

    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];
        struct yaml_node node = { .kind = YAML_SCALAR, .plain = 1, .source = none.source };

        if (!f->initial)
            continue;
        node.text = f->initial;
        CHECK(!field_set(f, job, &node, &none));
    }
}
