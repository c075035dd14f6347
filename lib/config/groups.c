/*
 * groups.c - optimizer.groups: its value from YAML and back, and whether its patterns match
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "config/fields_impl.h"
#include "config/read_impl.h"
#include "config/tuning.h"

#define LR_SCALE_MAX 1e6
#define WEIGHT_DECAY_MAX 100.0

/* ---- from YAML ---- */

static int set_number(const struct field *f, const struct yaml_node *item, double max, double *out,
                      struct diagnostics *m)
{
    double value;

    if (item->kind == YAML_SCALAR && item->plain && !str_to_f64(item->text, &value) && value >= 0 &&
        value <= max) {
        *out = value;
        return 0;
    }
    return diagnostics_add(m, item, "%s.%s is %.80s, not a number from 0 to %g", f->key, item->key,
                           item->kind == YAML_SCALAR ? item->text : "a map or list", max);
}

static int set_group(const struct field *f, struct update_group *out, const struct yaml_node *node,
                     struct diagnostics *m)
{
    *out = (struct update_group){ .lr_scale = 1, .weight_decay = -1 };
    if (node->kind != YAML_MAP)
        return diagnostics_add(m, node,
                               "%s has an item that is not a map {match, lr_scale, "
                               "weight_decay}",
                               f->key);
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        if (!strcmp(item->key, "match")) {
            if (item->kind != YAML_SCALAR || yaml_is_null(item) || !*item->text)
                return diagnostics_add(m, item, "%s.match is empty or not a string", f->key);
            out->match = item->text;
        } else if (!strcmp(item->key, "lr_scale")) {
            if (set_number(f, item, LR_SCALE_MAX, &out->lr_scale, m))
                return -1;
        } else if (!strcmp(item->key, "weight_decay")) {
            if (set_number(f, item, WEIGHT_DECAY_MAX, &out->weight_decay, m))
                return -1;
        } else {
            return diagnostics_add_at_key(
                m, item, "unknown key %s.%.64s (hint: match, lr_scale or weight_decay)", f->key,
                item->key);
        }
    }
    if (!out->match)
        return diagnostics_add(m, node, "%s: an item without match", f->key);
    return 0;
}

int field_set_groups(const struct field *f, struct job *job, const struct yaml_node *node,
                     struct diagnostics *m)
{
    int n = 0, status = 0;

    if (node->kind == YAML_SCALAR && !strcmp(node->text, f->word)) {
        job->optimizer.groups = (struct update_groups){ 0 };
        return 0;
    }
    if (node->kind != YAML_LIST || !node->first)
        return diagnostics_add(
            m, node, "%s is not a list of {match, lr_scale, weight_decay}, or %s", f->key, f->word);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    if (n > UPDATE_GROUPS_MAX)
        return diagnostics_add(m, node, "%s has %d items, more than %d", f->key, n,
                               UPDATE_GROUPS_MAX);
    struct update_group *list = arena_array(m->arena, struct update_group, n);
    n = 0;
    for (const struct yaml_node *item = node->first; item; item = item->next)
        status |= set_group(f, &list[n++], item, m);
    if (status)
        return -1;
    job->optimizer.groups = (struct update_groups){ list, n };
    return 0;
}

/* ---- printed, in a way that is YAML and JSON ---- */

void field_print_groups(const struct field *f, const struct job *job, struct str *out)
{
    const struct update_groups *groups = &job->optimizer.groups;

    if (!groups->n) {
        str_add(out, f->word);
        return;
    }
    for (int i = 0; i < groups->n; i++) {
        str_add(out, i ? ", {\"match\": " : "[{\"match\": ");
        field_print_json_text(out, groups->list[i].match);
        str_add(out, ", \"lr_scale\": ");
        field_print_float(out, groups->list[i].lr_scale);
        if (groups->list[i].weight_decay >= 0) {
            str_add(out, ", \"weight_decay\": ");
            field_print_float(out, groups->list[i].weight_decay);
        }
        str_add_char(out, '}');
    }
    str_add_char(out, ']');
}

void numerics_print_groups(const struct job *job, struct str *out)
{
    const struct update_groups *groups = &job->optimizer.groups;

    for (int i = 0; i < groups->n; i++) {
        str_printf(out, "%s%s %.17g ", i ? ", " : "", groups->list[i].match,
                   groups->list[i].lr_scale);
        if (groups->list[i].weight_decay >= 0)
            str_printf(out, "%.17g", groups->list[i].weight_decay);
        else
            str_add_char(out, '-');
    }
}

/* ---- whether they match ---- */

/* How many parameters that are trained are in each group. */
struct group_count {
    const struct job *job;
    int n_of[UPDATE_GROUPS_MAX];
    const char **names; /* of all of them, layers' numbers as * */
    int n, capacity;
    struct arena *arena;
};

static void add_name(struct group_count *c, const char *name)
{
    const char *number = strchr(name, '.'), *rest = number ? strchr(number + 1, '.') : NULL;
    int group = update_groups_find(&c->job->optimizer.groups, name);

    if (group >= 0)
        c->n_of[group]++;
    c->names = arena_grow(c->arena, c->names, sizeof *c->names, &c->capacity, c->n + 1);
    c->names[c->n++] = number && rest && number[1] >= '0' && number[1] <= '9'
                           ? arena_printf(c->arena, "%.*s.*%s", (int)(number - name), name, rest)
                           : arena_strdup(c->arena, name);
}

static void add_adapters(struct group_count *c, int layer)
{
    const struct job *job = c->job;
    struct parameter_spec q;

    for (int m = 0; m < N_LORA_MODULES; m++)
        for (int k = 0; k < N_LORA_MATRICES; k++)
            if (tuning_adapter(job->tuning, &job->model, layer, (enum lora_module)m,
                               (enum lora_matrix)k, &q))
                add_name(c, q.name);
}

static void count_groups(struct group_count *c)
{
    const struct job *job = c->job;
    struct parameter_spec list[LAYER_MAX_PARAMETERS];

    for (int layer = LAYER_BEFORE; layer <= job->model.n_layers; layer++) {
        for (int i = 0, n = parameters_of_layer(&job->model, layer, list); i < n; i++)
            if (tuning_trains(job->tuning, &list[i]))
                add_name(c, list[i].name);
        if (layer >= 0 && layer < job->model.n_layers)
            add_adapters(c, layer);
    }
}

void reader_check_groups(struct job_reader *r)
{
    const struct update_groups *groups = &r->job->optimizer.groups;
    struct arena arena = { 0 };
    struct group_count c = { .job = r->job, .arena = &arena };

    if (!groups->n || r->model_failed)
        return;
    count_groups(&c);
    for (int i = 0; i < groups->n; i++) {
        const char *match = groups->list[i].match;
        const char *near = c.n_of[i] ? NULL : str_nearest(match, c.names, c.n);

        if (!c.n_of[i])
            diagnostics_add(&r->mistakes, reader_given(r, "optimizer.groups"),
                            "optimizer.groups has %.100s, which matches no trained parameter that "
                            "no group before it has (hint: %s)",
                            match,
                            near  ? near
                            : c.n ? c.names[0]
                                  : "embedding.weight");
    }
    arena_release(&arena);
}
