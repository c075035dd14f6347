/*
 * parquet.c - columns back to rows
 *
 * This is the record assembly of Dremel (Melnik et al., VLDB 2010). Only leaves are stored, each
 * value with two levels:
 *
 *     definition   how many of the optional and repeated nodes on the path from the root to the leaf
 *                  are present. max_def: there is a value. Less: the first absent node on the path
 *                  is a null, or an empty list; the leaf then stores levels but no value.
 *     repetition   which repeated node on the path has another element here; 0: a new row begins.
 *
 * A null or an empty list is stored as one entry of levels in every leaf below it, and all of them
 * must be skipped together. A node is present if its first leaf's definition level is at least the
 * node's max_def, so only the first leaf of a group is looked at. A stack of open structs, lists
 * and maps takes the place of recursion; schemas are at most 16 deep, so it has a fixed size.
 */
#include "data/parquet/parquet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/parquet/parquet_impl.h"
#include "data/rows/json_value.h"

struct parquet {
    const char *name;
    const unsigned char *bytes;
    struct arena arena;
    struct parquet_meta meta;
    struct parquet_column *columns; /* [n_leaves] heap */
    int64_t group, row;             /* at hand: row counts within the group */
    bool is_started;                /* the columns are those of the group */
    int selected;                   /* leaf, or -1 */
};

int parquet_open(struct parquet **out, const void *bytes, size_t n_bytes, const char *name,
                 struct err *err)
{
    struct parquet *p = calloc(1, sizeof *p);

    if (!p)
        return err_set(err, ERR_DEVICE, "out of host memory");
    p->name = name;
    p->bytes = bytes;
    p->selected = -1;
    if (parquet_read_meta(&p->meta, bytes, n_bytes, &p->arena, err) < 0) {
        err_add(err, "%s", name);
        parquet_close(p);
        return -1;
    }
    if (!(p->columns = calloc((size_t)p->meta.n_leaves, sizeof *p->columns))) {
        parquet_close(p);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    *out = p;
    return 0;
}

void parquet_close(struct parquet *p)
{
    if (!p)
        return;
    for (int i = 0; p->columns && i < p->meta.n_leaves; i++)
        parquet_column_release(&p->columns[i]);
    free(p->columns);
    arena_release(&p->arena);
    free(p);
}

int64_t parquet_n_rows(const struct parquet *p)
{
    return p->meta.n_rows;
}

int parquet_n_columns(const struct parquet *p)
{
    return p->meta.nodes[0].n_children;
}

static const struct parquet_node *top_node(const struct parquet *p, int column)
{
    int i = p->meta.nodes[0].first_child;

    while (column-- > 0)
        i = p->meta.nodes[i].next;
    return &p->meta.nodes[i];
}

const char *parquet_column_name(const struct parquet *p, int column)
{
    return top_node(p, column)->name;
}

static int fail(const struct parquet *p, const char *column, struct err *err)
{
    err_add(err, "column '%s', row group %lld", column, (long long)p->group);
    return err_add(err, "%s", p->name);
}

/* ---- row groups ---- */

static void start_group(struct parquet *p)
{
    const struct parquet_group *group = &p->meta.groups[p->group];

    for (int i = 0; i < p->meta.n_leaves; i++)
        if (p->selected < 0 || p->selected == i)
            parquet_column_start(&p->columns[i], &p->meta.nodes[p->meta.leaves[i]], p->bytes,
                                 &group->chunks[i]);
    p->is_started = true;
}

static int end_group(struct parquet *p, struct err *err)
{
    for (int i = 0; i < p->meta.n_leaves; i++) {
        struct parquet_column *c = &p->columns[i];

        if (p->selected >= 0 && p->selected != i)
            continue;
        int rc = parquet_column_load(c, err);
        if (rc > 0)
            rc = err_set(err, ERR_DATA, "more values than its rows have");
        if (rc < 0)
            return fail(p, c->node->name, err);
    }
    p->group++;
    p->row = 0;
    p->is_started = false;
    return 0;
}

/* Be at a row: 1, or 0 behind the last, or -1. */
static int find_row(struct parquet *p, struct err *err)
{
    while (p->group < p->meta.n_groups) {
        if (!p->is_started)
            start_group(p);
        if (p->row < p->meta.groups[p->group].n_rows)
            return 1;
        if (end_group(p, err) < 0)
            return -1;
    }
    return 0;
}

int64_t parquet_skip_groups(struct parquet *p, int64_t row)
{
    int64_t before = 0;

    CHECK(!p->is_started);
    while (p->group < p->meta.n_groups && before + p->meta.groups[p->group].n_rows <= row)
        before += p->meta.groups[p->group++].n_rows;
    return before;
}

/* ---- one column of texts ---- */

int parquet_select_text(struct parquet *p, const char *column, struct err *err)
{
    struct str names = { 0 };
    int rc = 0;

    for (int i = 0; i < parquet_n_columns(p); i++) {
        const struct parquet_node *node = top_node(p, i);

        str_printf(&names, "%s%.60s", i > 0 ? ", " : "", node->name);
        if (strcmp(node->name, column) != 0)
            continue;
        if (node->type != PARQUET_BYTES || node->repetition == PARQUET_REPEATED)
            rc = err_set(err, ERR_DATA, "%s: column '%s' is not a column of strings", p->name,
                         column);
        p->selected = node->first_leaf;
    }
    if (p->selected < 0)
        rc = err_set(err, ERR_DATA, "%s: there is no column '%s' (hint: it has %.500s)", p->name,
                     column, str_text(&names));
    str_release(&names);
    return rc;
}

int parquet_next_text(struct parquet *p, const char **text, size_t *n_bytes, struct err *err)
{
    int rc = find_row(p, err);

    CHECK(p->selected >= 0);
    if (rc <= 0)
        return rc;
    struct parquet_column *c = &p->columns[p->selected];
    rc = parquet_column_load(c, err);
    if (rc == 0)
        rc = err_set(err, ERR_DATA, "fewer values than rows");
    if (rc < 0)
        return fail(p, c->node->name, err);
    *text = NULL;
    *n_bytes = 0;
    if (parquet_column_def(c) == c->node->max_def) {
        *text = (const char *)c->values.slices[c->i_value].at;
        *n_bytes = c->values.slices[c->i_value].n;
    }
    parquet_column_next(c);
    p->row++;
    return 1;
}

/* ---- whole rows ---- */

enum open_kind { OPEN_STRUCT, OPEN_LIST, OPEN_MAP };

struct open {
    enum open_kind kind;
    const struct parquet_node *node; /* struct: itself; list and map: the repeated node */
    int child;                       /* struct: the one at hand; list: of the elements, or 0 */
};

struct assembly {
    struct parquet *p;
    struct str *out;
    struct open stack[2 * PARQUET_DEPTH_MAX + 2];
    int depth;
    struct err *err;
};

static const struct parquet_node *node_at(const struct assembly *a, int i)
{
    return &a->p->meta.nodes[i];
}

static struct parquet_column *first_column(const struct assembly *a,
                                           const struct parquet_node *node)
{
    return &a->p->columns[node->first_leaf];
}

/* The value at hand in a leaf, which must be there and be of this row. */
static int need_value(struct assembly *a, int leaf)
{
    struct parquet_column *c = &a->p->columns[leaf];
    int rc = parquet_column_load(c, a->err);

    if (rc == 0)
        rc = err_set(a->err, ERR_DATA, "fewer values than its rows have");
    return rc < 0 ? fail(a->p, c->node->name, a->err) : 0;
}

/* Skip the one entry of levels that each leaf below has for a null or an empty list. */
static int pass_over(struct assembly *a, const struct parquet_node *node)
{
    for (int leaf = node->first_leaf; leaf < node->first_leaf + node->n_leaves; leaf++) {
        if (need_value(a, leaf) < 0)
            return -1;
        parquet_column_next(&a->p->columns[leaf]);
    }
    return 0;
}

static bool is_text_key(const struct parquet_node *node)
{
    return node->type == PARQUET_BYTES && node->repetition == PARQUET_REQUIRED;
}

/* The repeated node of a list or map that is written as the format says; NULL if it is none. */
static const struct parquet_node *repeated_of(const struct assembly *a,
                                              const struct parquet_node *node)
{
    const struct parquet_node *child;

    if (node->type != PARQUET_GROUP || node->n_children != 1 ||
        (node->meaning != MEANING_LIST && node->meaning != MEANING_MAP))
        return NULL;
    child = node_at(a, node->first_child);
    return child->repetition == PARQUET_REPEATED ? child : NULL;
}

/* Old files have lists whose repeated node is the element itself: the rules are those of
 * LogicalTypes.md, "backward-compatibility". */
static bool is_element(const struct parquet_node *list, const struct parquet_node *repeated)
{
    char tuple[256];

    snprintf(tuple, sizeof tuple, "%s_tuple", list->name);
    return repeated->type != PARQUET_GROUP || repeated->n_children > 1 ||
           !strcmp(repeated->name, "array") || !strcmp(repeated->name, tuple);
}

static void open_container(struct assembly *a, enum open_kind kind, const struct parquet_node *node,
                           int child)
{
    a->stack[a->depth++] = (struct open){ kind, node, child };
    str_add_char(a->out, kind == OPEN_LIST ? '[' : '{');
}

/*
 * Print a node's value, or open it: 1 if it is done, 0 if it was opened, -1. is_inside: its
 * repetition was dealt with, as of a list's element.
 */
static int begin_value(struct assembly *a, const struct parquet_node *node, bool is_inside)
{
    const struct parquet_node *repeated = repeated_of(a, node);
    bool is_map = node->meaning == MEANING_MAP;

    if (need_value(a, node->first_leaf) < 0)
        return -1;
    int def = parquet_column_def(first_column(a, node));
    if (!is_inside && node->repetition == PARQUET_OPTIONAL && def < node->max_def) {
        str_add(a->out, "null");
        return pass_over(a, node) < 0 ? -1 : 1;
    }
    if (!is_inside && node->repetition == PARQUET_REPEATED)
        repeated = node;
    if (repeated) {
        const struct parquet_node *key =
            repeated->type == PARQUET_GROUP ? node_at(a, repeated->first_child) : NULL;

        is_map = repeated != node && is_map && repeated->n_children == 2 && is_text_key(key);
        if (def < repeated->max_def) {
            str_add(a->out, is_map ? "{}" : "[]");
            return pass_over(a, node) < 0 ? -1 : 1;
        }
        bool is_itself =
            repeated == node || (node->meaning == MEANING_LIST ? is_element(node, repeated)
                                                               : repeated->type == PARQUET_GROUP);
        open_container(a, is_map ? OPEN_MAP : OPEN_LIST, repeated,
                       is_itself ? 0 : repeated->first_child);
        return 0;
    }
    if (node->type == PARQUET_GROUP) {
        open_container(a, OPEN_STRUCT, node, node->first_child);
        return 0;
    }
    struct parquet_column *c = first_column(a, node);
    if (def < node->max_def) { /* present by the first leaf of its group, absent by its own */
        err_set(a->err, ERR_DATA, "a null in a required column");
        return fail(a->p, node->name, a->err);
    }
    parquet_print_value(node, &c->values, c->i_value, a->out);
    parquet_column_next(c);
    return 1;
}

static void print_name(struct assembly *a, const struct parquet_node *node)
{
    json_value_print_text(node->name, strlen(node->name), a->out);
    str_add_char(a->out, ':');
}

/* A map's key, and what its value is; a key that is null or missing is broken. */
static int begin_entry(struct assembly *a, const struct parquet_node *repeated)
{
    const struct parquet_node *key = node_at(a, repeated->first_child);

    if (begin_value(a, key, false) < 0)
        return -1;
    str_add_char(a->out, ':');
    return begin_value(a, node_at(a, key->next), false);
}

/* Begin the first value of what was opened. */
static int begin_first(struct assembly *a)
{
    const struct open *top = &a->stack[a->depth - 1];

    if (top->kind == OPEN_STRUCT) {
        print_name(a, node_at(a, top->child));
        return begin_value(a, node_at(a, top->child), false);
    }
    if (top->kind == OPEN_MAP)
        return begin_entry(a, top->node);
    return top->child ? begin_value(a, node_at(a, top->child), false)
                      : begin_value(a, top->node, true);
}

/* Whether a list goes on: every leaf below says so, or none does. -1: they disagree. */
static int goes_on(struct assembly *a, const struct parquet_node *repeated)
{
    int answer = -1;

    for (int leaf = repeated->first_leaf; leaf < repeated->first_leaf + repeated->n_leaves;
         leaf++) {
        struct parquet_column *c = &a->p->columns[leaf];
        int rc = parquet_column_load(c, a->err);

        if (rc < 0)
            return fail(a->p, c->node->name, a->err);
        int goes = rc > 0 && parquet_column_rep(c) == repeated->max_rep;
        if (rc > 0 && parquet_column_rep(c) > repeated->max_rep)
            answer = !goes; /* a value too many, further in */
        if (answer >= 0 && goes != answer) {
            err_set(a->err, ERR_DATA, "its lists are of another length than those beside it");
            return fail(a->p, c->node->name, a->err);
        }
        answer = goes;
    }
    return answer;
}

/* What was opened last has a value more: begin that, or close it. As begin_value. */
static int go_on(struct assembly *a)
{
    struct open *top = &a->stack[a->depth - 1];
    int more = top->kind == OPEN_STRUCT ? node_at(a, top->child)->next != 0 : goes_on(a, top->node);

    if (more < 0)
        return -1;
    if (!more) {
        str_add_char(a->out, top->kind == OPEN_LIST ? ']' : '}');
        a->depth--;
        return 1;
    }
    if (top->kind == OPEN_STRUCT)
        top->child = node_at(a, top->child)->next;
    str_add_char(a->out, ',');
    return begin_first(a);
}

static int assemble(struct assembly *a)
{
    int done;

    open_container(a, OPEN_STRUCT, node_at(a, 0), node_at(a, 0)->first_child);
    done = 0;
    do {
        done = done ? go_on(a) : begin_first(a);
        if (done < 0)
            return -1;
        CHECK(a->depth < 2 * PARQUET_DEPTH_MAX + 1);
    } while (a->depth > 0);
    return 0;
}

/* All leaves are at the start of a row now. */
static int check_ends(struct assembly *a)
{
    for (int i = 0; i < a->p->meta.n_leaves; i++) {
        struct parquet_column *c = &a->p->columns[i];
        int rc = c->node->max_rep ? parquet_column_load(c, a->err) : 0;

        if (rc > 0 && parquet_column_rep(c) != 0)
            rc = err_set(a->err, ERR_DATA, "values that do not belong to a row");
        if (rc < 0)
            return fail(a->p, c->node->name, a->err);
    }
    return 0;
}

int parquet_next_row(struct parquet *p, struct str *json, struct err *err)
{
    struct assembly a = { .p = p, .out = json, .err = err };
    int rc = find_row(p, err);

    CHECK(p->selected < 0);
    if (rc <= 0)
        return rc;
    if (assemble(&a) < 0 || check_ends(&a) < 0)
        return -1;
    p->row++;
    return 1;
}
