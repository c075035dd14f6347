/*
 * text_template.c - Jinja templates over records of JSON
 */
#include "template/text_template.h"

#include <stdlib.h>
#include <string.h>

#include "template/jinja_impl.h"

/* Jinja drops one line break at the end of a template: something must stand behind it. */
#define END_MARK "{{ '' }}"

struct text_template {
    struct jinja jinja;
    char *text;
};

int text_template_open(struct text_template **out, const char *name, const char *text,
                       struct err *err)
{
    struct text_template *t = calloc(1, sizeof *t);
    size_t n = strlen(text), n_all = n + strlen(END_MARK);

    if (!t || !(t->text = malloc(n_all + 1))) {
        free(t);
        return err_set(err, ERR_DEVICE, "out of host memory");
    }
    memcpy(t->text, text, n);
    memcpy(t->text + n, END_MARK, strlen(END_MARK) + 1);
    if (jinja_parse(&t->jinja, name, (struct text){ t->text, n_all }, err) < 0) {
        text_template_close(t);
        return -1;
    }
    *out = t;
    return 0;
}

void text_template_close(struct text_template *t)
{
    if (!t)
        return;
    jinja_release(&t->jinja);
    free(t->text);
    free(t);
}

/* A later pair of a key has the last word: dictionaries are searched from the front. */
static void merge(struct jinja_dict *into, const struct jinja_dict *from, struct arena *arena)
{
    struct jinja_pair *items =
        arena_array(arena, struct jinja_pair, (size_t)into->n + (size_t)from->n);
    int n = from->n;

    for (int i = 0; i < from->n; i++)
        items[i] = from->items[i];
    for (int i = 0; i < into->n; i++) {
        int hidden = 0;

        for (int k = 0; k < from->n; k++)
            hidden |= jinja_equal(NULL, &into->items[i].key, &from->items[k].key);
        if (!hidden)
            items[n++] = into->items[i];
    }
    *into = (struct jinja_dict){ items, n, n };
}

int text_template_render(const struct text_template *t, const char *const *objects, int n,
                         struct str *out, struct err *err)
{
    struct arena arena = { 0 };
    struct jinja_dict variables = { 0 };
    int status = 0;

    for (int i = 0; i < n && !status; i++) {
        struct jinja_value value;
        const char *problem;

        if (jinja_read_json(&value, (struct text){ objects[i], strlen(objects[i]) }, &arena,
                            &problem) < 0)
            status = err_set(err, ERR_DATA, "%s: not JSON: %s", t->jinja.name, problem);
        else if (value.kind != JINJA_DICT)
            status = err_set(err, ERR_DATA, "%s: not a JSON object", t->jinja.name);
        else
            merge(&variables, value.dict, &arena);
    }
    if (!status)
        status = jinja_render(&t->jinja, &jinja_limits, &variables, &arena, out, err);
    arena_release(&arena);
    return status;
}
