/*
 * chat.c - conversations rendered
 */
#include "template/chat.h"

#include <stdlib.h>
#include <string.h>

#include "template/chat_impl.h"

static int add_fields(struct arena *arena, struct jinja_dict *dict, const char *fields, int message,
                      struct err *err)
{
    struct jinja_value v;
    const char *problem;

    if (jinja_read_json(&v, text_of(fields), arena, &problem) < 0 || v.kind != JINJA_DICT)
        return err_set(err, ERR_DATA, "message %d: its fields are not a JSON object", message);
    for (int i = 0; i < v.dict->n; i++)
        jinja_dict_set(arena, dict, v.dict->items[i].key, v.dict->items[i].value);
    return 0;
}

/* The templates' words for thinking are reasoning_content and thinking; transformers takes all
 * three, and puts what was missing first. */
static struct jinja_dict *name_reasoning(struct arena *arena, struct jinja_dict *dict)
{
    static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
    const struct jinja_value *found = NULL;
    struct jinja_dict *out = arena_new(arena, struct jinja_dict);

    for (int i = 0; i < 3 && (!found || found->kind == JINJA_NONE); i++)
        found = jinja_dict_find_text(dict, text_of(names[i]));
    if (!found || found->kind == JINJA_NONE)
        return dict;
    jinja_dict_set(arena, out, jinja_literal("thinking"), *found);
    for (int i = 0; i < dict->n; i++)
        jinja_dict_set(arena, out, dict->items[i].key, dict->items[i].value);
    jinja_dict_set(arena, out, jinja_literal("reasoning_content"), *found);
    return out;
}

static int add_message(struct arena *arena, struct jinja_list *list,
                       const struct chat_message *message, int i, struct err *err)
{
    struct jinja_value v = { JINJA_DICT, { .dict = arena_new(arena, struct jinja_dict) } };

    jinja_dict_set(arena, v.dict, jinja_literal("role"), jinja_literal(message->role));
    jinja_dict_set(arena, v.dict, jinja_literal("content"),
                   message->content ? jinja_literal(message->content) : jinja_none());
    if (message->fields && add_fields(arena, v.dict, message->fields, i, err) < 0)
        return -1;
    v.dict = name_reasoning(arena, v.dict);
    jinja_list_add(arena, list, v);
    return 0;
}

/* The spans of a text, in bytes: they are in an arena that goes. As transformers has it, a block
 * is so many characters from where it begins, whether they are its own or, in a macro, others. */
static int copy_spans(const struct jinja_spans *spans, struct text text, struct chat_parts *out,
                      struct err *err)
{
    for (int i = 0; i < spans->n; i++) {
        size_t end = spans->items[i].begin;
        uint32_t code;

        for (size_t k = 0; k < spans->items[i].n_codes && end < text.n; k++)
            end += text_step(text, end, &code);
        if (chat_parts_add(out, spans->items[i].begin, end, true, -1, err) < 0)
            return -1;
    }
    return 0;
}

int chat_render(const struct chat_template *t, const struct chat_message *messages, int n,
                int add_generation_prompt, struct str *out, struct chat_parts *blocks,
                struct err *err)
{
    struct arena arena = { 0 };
    struct jinja_spans spans = { 0 };
    struct jinja_dict variables = { 0 };
    size_t start = out->length;
    struct jinja_value list = { JINJA_LIST, { .list = arena_new(&arena, struct jinja_list) } };
    int status = 0;

    jinja_dict_set(&arena, &variables, jinja_literal("tools"), jinja_none());
    jinja_dict_set(&arena, &variables, jinja_literal("documents"), jinja_none());
    for (int i = 0; i < t->variables.n; i++)
        jinja_dict_set(&arena, &variables, t->variables.items[i].key, t->variables.items[i].value);
    for (int i = 0; i < n && !status; i++)
        status = add_message(&arena, list.list, &messages[i], i, err);
    jinja_dict_set(&arena, &variables, jinja_literal("messages"), list);
    jinja_dict_set(&arena, &variables, jinja_literal("add_generation_prompt"),
                   jinja_bool(add_generation_prompt));
    if (!status)
        status = jinja_render_spans(&t->jinja, &jinja_limits, &variables, &arena, out, &spans, err);
    if (!status && blocks)
        status = copy_spans(&spans, (struct text){ str_text(out) + start, out->length - start },
                            blocks, err);
    arena_release(&arena);
    return status;
}

int chat_template_render(const struct chat_template *t, const struct chat_message *messages, int n,
                         int add_generation_prompt, struct str *out, struct err *err)
{
    return chat_render(t, messages, n, add_generation_prompt, out, NULL, err);
}

void chat_find_end_of_turn(struct chat_template *t)
{
    static const char probe[] = "Answer0probe";
    const struct chat_message messages[] = { { "user", "Question", NULL },
                                             { ROLE_ASSISTANT, probe, NULL } };
    struct str out = { 0 };
    struct err ignored;

    t->end_of_turn = "";
    if (chat_template_render(t, messages, 2, 0, &out, &ignored) == 0) {
        struct text s = { str_text(&out), out.length };
        int64_t at = text_find(s, text_of(probe), 0);

        if (at >= 0) {
            s.data += (size_t)at + strlen(probe);
            s.n -= (size_t)at + strlen(probe);
            s = text_strip(s, NULL, STRIP_LEFT | STRIP_RIGHT);
            t->end_of_turn = arena_strndup(&t->arena, s.data, s.n);
        }
    }
    str_release(&out);
}

void chat_find_prompt(struct chat_template *t)
{
    const struct chat_message question = { "user", "Question", NULL };
    struct str with = { 0 }, without = { 0 };
    struct err ignored;

    t->has_prompt = chat_template_render(t, &question, 1, 1, &with, &ignored) == 0 &&
                    chat_template_render(t, &question, 1, 0, &without, &ignored) == 0 &&
                    with.length > without.length;
    str_release(&with);
    str_release(&without);
}

const char *chat_template_end_of_turn(const struct chat_template *t)
{
    return t->end_of_turn;
}
