/*
 * chat_open.c - a template from a model's folder, a file, or ours
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "template/chat_impl.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)

struct files {
    struct arena *arena;
    const char *folder;
    struct jinja_value config, map; /* tokenizer_config.json, special_tokens_map.json; NONE */
};

/* A file that may be missing: data is then NULL. */
static int read_text(struct arena *arena, const char *path, struct text *out, struct err *err)
{
    char *data;
    size_t n_bytes;

    *out = (struct text){ NULL, 0 };
    if (!file_exists(path))
        return 0;
    if (file_read(path, FILE_BYTES_MAX, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    *out = (struct text){ arena_strndup(arena, data, n_bytes), n_bytes };
    free(data);
    return 0;
}

static int read_json(struct files *f, const char *name, struct jinja_value *out, struct err *err)
{
    const char *path = arena_printf(f->arena, "%s/%s", f->folder, name), *problem;
    struct text text;

    *out = jinja_none();
    if (read_text(f->arena, path, &text, err) < 0)
        return -1;
    if (text.data &&
        (jinja_read_json(out, text, f->arena, &problem) < 0 || out->kind != JINJA_DICT))
        return err_set(err, ERR_DATA, "%s: %s", path,
                       out->kind == JINJA_NONE ? problem : "not a JSON object");
    return 0;
}

static const struct jinja_value *field(const struct jinja_value *of, const char *name)
{
    return of->kind == JINJA_DICT ? jinja_dict_find_text(of->dict, text_of(name)) : NULL;
}

/* A text, or several with names of which the default counts. */
static int find_template(struct files *f, struct text *out, struct err *err)
{
    const struct jinja_value *found = field(&f->config, "chat_template"), *name, *text;
    struct jinja_value old;

    if (read_text(f->arena, arena_printf(f->arena, "%s/chat_template.jinja", f->folder), out, err) <
        0)
        return -1;
    if (out->data)
        return 0;
    if (!found) {
        if (read_json(f, "chat_template.json", &old, err) < 0)
            return -1;
        found = field(&old, "chat_template");
    }
    if (found && found->kind == JINJA_LIST) {
        const struct jinja_value *several = found;

        found = NULL;
        for (int i = 0; i < several->list->n; i++) {
            name = field(&several->list->items[i], "name");
            text = field(&several->list->items[i], "template");
            if (text && name && name->kind == JINJA_STRING &&
                (!found || text_is(name->s, "default")))
                found = text;
        }
    }
    if (found && found->kind == JINJA_STRING)
        *out = found->s;
    return 0;
}

/* "token", or {"content": "token", ...} */
static void set_token(struct chat_template *t, const char *name, const struct jinja_value *v)
{
    const struct jinja_value *content = v ? field(v, "content") : NULL;

    if (content)
        v = content;
    if (!v || v->kind != JINJA_STRING || jinja_dict_find_text(&t->variables, text_of(name)))
        return;
    struct text s = { arena_strndup(&t->arena, v->s.data, v->s.n), v->s.n };
    jinja_dict_set(&t->arena, &t->variables, jinja_literal(name), jinja_string(s));
}

static void set_tokens(struct chat_template *t, const struct files *f)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "pad_token",
                                         "sep_token", "cls_token", "mask_token" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        set_token(t, names[i], field(&f->config, names[i]));
        set_token(t, names[i], field(&f->map, names[i]));
    }
}

static void set_missing_tokens(struct chat_template *t)
{
    static const struct jinja_value empty = { JINJA_STRING, { .s = { "", 0 } } };

    set_token(t, "bos_token", &empty);
    set_token(t, "eos_token", &empty);
}

static int parse(struct chat_template **out, const char *name, struct text text, struct err *err)
{
    struct chat_template *t = calloc(1, sizeof *t);

    if (!t)
        return err_set(err, ERR_DEVICE, "out of host memory");
    char *copy = arena_strndup(&t->arena, text.data, text.n);
    if (jinja_parse(&t->jinja, name, (struct text){ copy, text.n }, err) < 0) {
        arena_release(&t->arena);
        free(t);
        return -1;
    }
    t->end_of_turn = "";
    *out = t;
    return 0;
}

int chat_template_open_text(struct chat_template **out, const char *name, const char *text,
                            struct err *err)
{
    if (parse(out, name, text_of(text), err) < 0)
        return -1;
    chat_find_end_of_turn(*out);
    chat_find_prompt(*out);
    return 0;
}

static int refuse_name(const char *name, struct arena *arena, struct err *err)
{
    const char *const *names = chat_template_names();
    const char *all = "";
    int n = 0;

    for (; names[n]; n++)
        all = arena_printf(arena, "%s%s%s", all, n ? ", " : "", names[n]);
    const char *nearest = str_nearest(name, names, n);
    if (nearest)
        return err_set(err, ERR_CONFIG, "there is no chat template '%s' (hint: %s)", name, nearest);
    return err_set(
        err, ERR_CONFIG,
        "there is no chat template '%s' (hint: a file that ends in .jinja, or one of %s)", name,
        all);
}

/* *what is what errors call it. */
static int find_text(struct files *f, const char *name, struct text *text, const char **what,
                     struct err *err)
{
    if (!name) {
        *what = arena_printf(f->arena, "%s: its chat template", f->folder);
        if (find_template(f, text, err) < 0)
            return -1;
        return text->data
                   ? 0
                   : err_set(err, ERR_CONFIG,
                             "%s has no chat template (hint: name one, such as chatml)", f->folder);
    }
    *what = arena_printf(f->arena, "chat template %s", name);
    if (strchr(name, '/') || str_ends_with(name, ".jinja")) {
        *what = name;
        if (read_text(f->arena, name, text, err) < 0)
            return -1;
        return text->data ? 0 : err_set(err, ERR_CONFIG, "%s: there is no such file", name);
    }
    const char *ours = chat_builtin(name);
    if (!ours)
        return refuse_name(name, f->arena, err);
    *text = text_of(ours);
    return 0;
}

int chat_template_open(struct chat_template **out, const char *name, const char *folder,
                       struct err *err)
{
    struct arena arena = { 0 };
    struct files f = { .arena = &arena, .folder = folder };
    struct text text;
    const char *what;
    int status = 0;

    CHECK(name || folder);
    if (folder && (read_json(&f, "tokenizer_config.json", &f.config, err) < 0 ||
                   read_json(&f, "special_tokens_map.json", &f.map, err) < 0))
        status = -1;
    if (!status)
        status = find_text(&f, name, &text, &what, err);
    if (!status)
        status = parse(out, what, text, err);
    if (!status) {
        set_tokens(*out, &f);
        if (name)
            set_missing_tokens(*out);
        chat_find_end_of_turn(*out);
        chat_find_prompt(*out);
    }
    arena_release(&arena);
    return status;
}

int chat_template_text(const char *name, struct str *out, struct err *err)
{
    struct arena arena = { 0 };
    struct files f = { .arena = &arena };
    struct text text;
    const char *what;
    int status = find_text(&f, name, &text, &what, err);

    if (!status)
        str_add_bytes(out, text.data, text.n);
    arena_release(&arena);
    return status;
}

bool chat_template_is_in(const char *folder)
{
    struct arena arena = { 0 };
    struct files f = { .arena = &arena, .folder = folder };
    struct text text = { NULL, 0 };
    struct err ignored;
    int is = read_json(&f, "tokenizer_config.json", &f.config, &ignored) == 0 &&
             find_template(&f, &text, &ignored) == 0 && text.data;

    arena_release(&arena);
    return is;
}

void chat_template_close(struct chat_template *t)
{
    if (!t)
        return;
    jinja_release(&t->jinja);
    arena_release(&t->arena);
    free(t);
}

int chat_template_set(struct chat_template *t, const char *name, const char *json, struct err *err)
{
    const char *problem;
    struct jinja_value v;
    struct text copy = { arena_strdup(&t->arena, json), strlen(json) };

    if (jinja_read_json(&v, copy, &t->arena, &problem) < 0)
        return err_set(err, ERR_CONFIG, "%s is not valid JSON: %s", name, problem);
    jinja_dict_set(&t->arena, &t->variables, jinja_literal(arena_strdup(&t->arena, name)), v);
    chat_find_end_of_turn(t);
    return 0;
}
