/*
 * sweep_space.c - sweep.parameters: its value from YAML and back
 */
#include "config/sweep_space.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "config/fields_impl.h"

#define WHOLE_MAX 9007199254740992.0 /* 2^53: doubles below it have all whole numbers */

/* ---- values as YAML that is JSON as well ---- */

static void add_scalar(struct str *out, const struct yaml_node *node)
{
    const char *text = node->text;
    int64_t whole;
    double number;

    if (node->plain && !str_to_i64(text, &whole))
        str_printf(out, "%lld", (long long)whole);
    else if (node->plain && !str_to_f64(text, &number))
        field_print_float(out, number);
    else if (node->plain && (!strcmp(text, "true") || !strcmp(text, "false")))
        str_add(out, text);
    else if (yaml_is_null(node))
        str_add(out, "null");
    else
        field_print_json_text(out, text);
}

static void open_bracket(struct str *out, const struct yaml_node *node)
{
    str_add_char(out, node->kind == YAML_LIST ? '[' : '{');
}

static void close_bracket(struct str *out, const struct yaml_node *node)
{
    str_add_char(out, node->kind == YAML_LIST ? ']' : '}');
}

/* A whole value; the tree is at most YAML_MAX_DEPTH deep. */
static const char *flow_text(const struct yaml_node *value, struct arena *arena)
{
    const struct yaml_node *parents[YAML_MAX_DEPTH], *at = value;
    struct str out = { 0 };
    int depth = 0;

    for (;;) {
        if (depth && parents[depth - 1]->kind == YAML_MAP) {
            field_print_json_text(&out, at->key);
            str_add(&out, ": ");
        }
        if (at->kind != YAML_SCALAR)
            open_bracket(&out, at);
        if (at->kind != YAML_SCALAR && at->first) {
            CHECK(depth < YAML_MAX_DEPTH);
            parents[depth++] = at;
            at = at->first;
            continue;
        }
        if (at->kind == YAML_SCALAR)
            add_scalar(&out, at);
        else
            close_bracket(&out, at);
        for (; depth && !at->next; at = parents[--depth])
            close_bracket(&out, parents[depth - 1]);
        if (!depth)
            break;
        str_add(&out, ", ");
        at = at->next;
    }
    const char *text = arena_strdup(arena, str_text(&out));
    str_release(&out);
    return text;
}

/* ---- from YAML ---- */

/* The field of a key, for values of which `node` is; NULL: none, and with "model" that is right. */
static int find_field(const struct field *f, const struct yaml_node *node,
                      const struct field **field, struct diagnostics *m)
{
    static const char *const others[] = { "output", "output_mode", "kind" };
    const char *key = node->key;

    *field = field_find(key);
    if (!*field && !strcmp(key, "model"))
        return 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(key, others[i]) || str_starts_with(key, "sweep."))
            return diagnostics_add_at_key(m, node, "%s has %s, which is alike for all trials",
                                          f->key, key);
    if (*field)
        return 0;
    const char *near = field_suggest(key);
    return diagnostics_add_at_key(m, node, "%s: unknown key %.64s (hint: %s)", f->key, key,
                                  near                  ? near
                                  : field_is_group(key) ? "a whole key, such as optimizer.lr"
                                                        : "lmtrain config --explain lists all");
}

/* Whether a field may have this value. */
static int check_value(const struct field *field, const struct job *job,
                       const struct yaml_node *value, struct diagnostics *m)
{
    struct job scratch = *job;

    return field ? field_set(field, &scratch, value, m) : 0;
}

/* The two numbers of {log: [LOW, HIGH]}, each of which the field may have. */
static int set_bounds(struct sweep_parameter *p, const struct field *field, const struct job *job,
                      const struct yaml_node *node, struct diagnostics *m)
{
    const struct yaml_node *low = node->kind == YAML_LIST ? node->first : NULL;
    const struct yaml_node *high = low ? low->next : NULL;

    if (!high || high->next || low->kind != YAML_SCALAR || high->kind != YAML_SCALAR ||
        str_to_f64(low->text, &p->low) || str_to_f64(high->text, &p->high))
        return diagnostics_add(
            m, node, "%s: %s is not [LOW, HIGH], two numbers (hint: %s)", p->key, node->key,
            p->range == SWEEP_LOG ? "{log: [1.0e-5, 1.0e-3]}" : "{uniform: [0.0, 0.2]}");
    if (check_value(field, job, low, m) || check_value(field, job, high, m))
        return -1;
    if (!(p->low < p->high))
        return diagnostics_add(m, node,
                               "%s: %s is [%.64s, %.64s], an empty range (hint: the lower "
                               "number stands first)",
                               p->key, node->key, low->text, high->text);
    if (p->range == SWEEP_LOG && !(p->low > 0))
        return diagnostics_add(m, node,
                               "%s: log begins at %.64s, which has no logarithm (hint: a "
                               "number above 0, or uniform)",
                               p->key, low->text);
    if (p->is_whole && (fabs(p->low) > WHOLE_MAX || fabs(p->high) > WHOLE_MAX))
        return diagnostics_add(m, node, "%s: %s has a number above 2^53", p->key, node->key);
    return 0;
}

static int set_range(const struct field *f, struct sweep_parameter *p, const struct field *field,
                     const struct job *job, const struct yaml_node *node, struct diagnostics *m)
{
    const struct yaml_node *bounds = NULL;
    int64_t points;

    bool is_whole =
        field && (field->type == FIELD_INT || field->type == FIELD_I64 || field->type == FIELD_U64);
    if (!is_whole && (!field || field->type != FIELD_FLOAT))
        return diagnostics_add(m, node,
                               "%s: %s is not a number, and has no range (hint: a list of "
                               "values)",
                               f->key, p->key);
    p->is_whole = is_whole;
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        if (!strcmp(item->key, "log") || !strcmp(item->key, "uniform")) {
            if (bounds)
                return diagnostics_add_at_key(m, item, "%s has both log and uniform", p->key);
            bounds = item;
        } else if (strcmp(item->key, "points") != 0) {
            return diagnostics_add_at_key(m, item,
                                          "%s: unknown range %.64s (hint: log, uniform or "
                                          "points, or a list of values)",
                                          p->key, item->key);
        } else if (item->kind != YAML_SCALAR || str_to_i64(item->text, &points) || points < 2 ||
                   points > SWEEP_TRIALS_MAX) {
            return diagnostics_add(m, item, "%s: points is not a whole number from 2 to %d", p->key,
                                   SWEEP_TRIALS_MAX);
        } else {
            p->points = (int)points;
        }
    }
    if (!bounds)
        return diagnostics_add(m, node,
                               "%s has no range (hint: {log: [1.0e-5, 1.0e-3]}, {uniform: "
                               "[0.0, 0.2]} or a list of values)",
                               p->key);
    p->range = !strcmp(bounds->key, "log") ? SWEEP_LOG : SWEEP_UNIFORM;
    return set_bounds(p, field, job, bounds, m);
}

static int set_values(struct sweep_parameter *p, const struct field *field, const struct job *job,
                      const struct yaml_node *node, struct diagnostics *m)
{
    int n = 0, status = 0;

    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    if (!n)
        return diagnostics_add(m, node, "%s has no values: the list is empty", p->key);
    const char **values = arena_array(m->arena, const char *, n);
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        status |= check_value(field, job, item, m);
        values[p->n_values++] = flow_text(item, m->arena);
    }
    p->values = values;
    return status;
}

static int set_parameters(const struct field *f, struct job *job, const struct yaml_node *node,
                          struct diagnostics *m)
{
    int n = 0, status = 0;

    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    struct sweep_parameter *list = arena_array(m->arena, struct sweep_parameter, n);
    struct sweep_parameter *p = list;
    for (const struct yaml_node *item = node->first; item; item = item->next, p++) {
        const struct field *field;

        p->key = item->key;
        if (find_field(f, item, &field, m))
            status = -1;
        else if (item->kind == YAML_MAP && item->first)
            status |= set_range(f, p, field, job, item, m);
        else if (item->kind == YAML_LIST)
            status |= set_values(p, field, job, item, m);
        else
            status = diagnostics_add(m, item,
                                     "%s: %s has one value, and nothing to vary (hint: a "
                                     "list of values, or {log: [LOW, HIGH]})",
                                     f->key, item->key);
    }
    if (!status)
        job->sweep.space = (struct sweep_space){ .parameters = list, .n_parameters = n };
    return status;
}

static int set_row(const struct field *f, struct sweep_row *row, const struct job *job,
                   const struct yaml_node *node, struct diagnostics *m)
{
    int n = 0, status = 0;

    if (node->kind != YAML_MAP || !node->first)
        return diagnostics_add(m, node, "%s has an item that is not a map of keys to values",
                               f->key);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    struct sweep_setting *settings = arena_array(m->arena, struct sweep_setting, n);
    n = 0;
    for (const struct yaml_node *item = node->first; item; item = item->next) {
        const struct field *field;

        if (find_field(f, item, &field, m) || check_value(field, job, item, m))
            status = -1;
        settings[n++] = (struct sweep_setting){ item->key, flow_text(item, m->arena) };
    }
    *row = (struct sweep_row){ settings, n };
    return status;
}

int field_set_space(const struct field *f, struct job *job, const struct yaml_node *node,
                    struct diagnostics *m)
{
    int n = 0, status = 0;

    if (node->kind == YAML_SCALAR && !strcmp(node->text, f->word)) {
        job->sweep.space = (struct sweep_space){ 0 };
        return 0;
    }
    if (node->kind == YAML_SCALAR || !node->first)
        return diagnostics_add(m, node,
                               "%s is not a map of job keys to ranges or lists (hint: "
                               "{optimizer.lr: {log: [1.0e-5, 1.0e-3]}})",
                               f->key);
    if (node->kind == YAML_MAP)
        return set_parameters(f, job, node, m);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        n++;
    if (n > SWEEP_TRIALS_MAX)
        return diagnostics_add(m, node, "%s has %d items, more than %d", f->key, n,
                               SWEEP_TRIALS_MAX);
    struct sweep_row *rows = arena_array(m->arena, struct sweep_row, n);
    n = 0;
    for (const struct yaml_node *item = node->first; item; item = item->next)
        status |= set_row(f, &rows[n++], job, item, m);
    if (!status)
        job->sweep.space = (struct sweep_space){ .rows = rows, .n_rows = n };
    return status;
}

/* ---- back ---- */

static void print_bound(const struct sweep_parameter *p, double value, struct str *out)
{
    if (p->is_whole)
        str_printf(out, "%.0f", value);
    else
        field_print_float(out, value);
}

static void print_parameter(const struct sweep_parameter *p, struct str *out)
{
    field_print_json_text(out, p->key);
    str_add(out, ": ");
    if (p->range == SWEEP_VALUES) {
        for (int i = 0; i < p->n_values; i++)
            str_printf(out, i ? ", %s" : "[%s", p->values[i]);
        str_add_char(out, ']');
        return;
    }
    str_printf(out, "{\"%s\": [", p->range == SWEEP_LOG ? "log" : "uniform");
    print_bound(p, p->low, out);
    str_add(out, ", ");
    print_bound(p, p->high, out);
    str_add_char(out, ']');
    if (p->points)
        str_printf(out, ", \"points\": %d", p->points);
    str_add_char(out, '}');
}

static void print_row(const struct sweep_row *row, struct str *out)
{
    for (int i = 0; i < row->n; i++) {
        str_add(out, i ? ", " : "{");
        field_print_json_text(out, row->settings[i].key);
        str_printf(out, ": %s", row->settings[i].value);
    }
    str_add_char(out, '}');
}

void field_print_space(const struct field *f, const struct job *job, struct str *out)
{
    const struct sweep_space *space = &job->sweep.space;

    if (sweep_space_is_empty(space)) {
        str_add(out, f->word);
        return;
    }
    str_add_char(out, space->n_rows ? '[' : '{');
    for (int i = 0; i < space->n_parameters; i++) {
        str_add(out, i ? ", " : "");
        print_parameter(&space->parameters[i], out);
    }
    for (int i = 0; i < space->n_rows; i++) {
        str_add(out, i ? ", " : "");
        print_row(&space->rows[i], out);
    }
    str_add_char(out, space->n_rows ? ']' : '}');
}

/* ---- the grid ---- */

int sweep_parameter_points(const struct sweep_parameter *p)
{
    if (p->range == SWEEP_VALUES)
        return p->n_values;
    if (p->points || !p->is_whole || p->high - p->low >= SWEEP_TRIALS_MAX)
        return p->points;
    return (int)(p->high - p->low) + 1;
}

int sweep_space_grid(const struct sweep_space *space)
{
    int64_t n = 1;

    for (int i = 0; i < space->n_parameters && n <= SWEEP_TRIALS_MAX; i++)
        n *= max_int(1, sweep_parameter_points(&space->parameters[i]));
    return (int)min_i64(n, SWEEP_TRIALS_MAX + 1);
}
