/*
 * chat.c - conversations rendered, whole and in parts
 */
#include "template/chat.h"

#include <stdlib.h>
#include <string.h>

#include "template/chat_impl.h"

#define ROLE_ASSISTANT "assistant"

static int add_fields(struct arena *arena, struct jinja_dict *dict, const char *fields, int message,
                      struct err *err)
{
    struct jinja_value v;
    const char *problem;

    if (jinja_read_json(&v, text_of(fields), arena, &problem) < 0 || v.kind != JINJA_DICT)
        return err_set(err, ERR_DATA, "message %d: its fields are no JSON object", message);
    for (int i = 0; i < v.dict->n; i++)
        jinja_dict_set(arena, dict, v.dict->items[i].key, v.dict->items[i].value);
    return 0;
}

/* The templates' own word for thinking is reasoning_content; transformers takes all three. */
static void name_reasoning(struct arena *arena, struct jinja_dict *dict)
{
    static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
    const struct jinja_value *found = NULL;

    for (int i = 0; i < 3 && (!found || found->kind == JINJA_NONE); i++)
        found = jinja_dict_find_text(dict, text_of(names[i]));
    if (!found || found->kind == JINJA_NONE)
        return;
    struct jinja_value v = *found;
    if (!jinja_dict_find_text(dict, text_of("thinking")))
        jinja_dict_set(arena, dict, jinja_literal("thinking"), v);
    jinja_dict_set(arena, dict, jinja_literal("reasoning_content"), v);
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
    name_reasoning(arena, v.dict);
    jinja_list_add(arena, list, v);
    return 0;
}

int chat_template_render(const struct chat_template *t, const struct chat_message *messages, int n,
                         int add_generation_prompt, struct str *out, struct err *err)
{
    struct arena arena = { 0 };
    struct jinja_dict variables = { 0 };
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
        status = jinja_render(&t->jinja, &jinja_limits, &variables, &arena, out, err);
    arena_release(&arena);
    return status;
}

void chat_parts_release(struct chat_parts *parts)
{
    str_release(&parts->text);
    free(parts->items);
    memset(parts, 0, sizeof *parts);
}

static int add_part(struct chat_parts *parts, size_t begin, size_t end, int message,
                    struct err *err)
{
    if (begin == end)
        return 0;
    if (parts->n == parts->capacity) {
        int capacity = parts->capacity ? 2 * parts->capacity : 8;
        struct chat_part *items = realloc(parts->items, sizeof *items * (size_t)capacity);

        if (!items)
            return err_set(err, ERR_DEVICE, "out of host memory");
        parts->items = items;
        parts->capacity = capacity;
    }
    parts->items[parts->n++] = (struct chat_part){ begin, end, message >= 0, message };
    return 0;
}

static size_t common_length(const struct str *a, const struct str *b)
{
    size_t n = 0, least = a->length < b->length ? a->length : b->length;

    while (n < least && a->data[n] == b->data[n])
        n++;
    /* Not within a character. */
    while (n && n < a->length && ((unsigned char)a->data[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static int refuse_rewriting(int message, struct err *err)
{
    return err_set(err, ERR_DATA,
                   "the template writes the answer of message %d in another way once more turns "
                   "follow, so that only the last answer can be marked",
                   message);
}

/*
 * Where message i begins to be the model's. A generation prompt may go on differently from what
 * stands there in the end (thinking that begins); it counts as far as it is the same.
 */
static int find_begin(const struct chat_template *t, const struct chat_message *messages, int i,
                      const struct str *text, size_t *begin, struct err *err)
{
    struct str before = { 0 }, without = { 0 };
    int status = chat_template_render(t, messages, i, 1, &before, err);

    if (!status) {
        *begin = common_length(text, &before);
        if (*begin < before.length) {
            status = chat_template_render(t, messages, i, 0, &without, err);
            if (!status &&
                (*begin < without.length || common_length(text, &without) < without.length))
                status = refuse_rewriting(i, err);
        }
    }
    str_release(&before);
    str_release(&without);
    return status;
}

static int find_end(const struct chat_template *t, const struct chat_message *messages, int i,
                    int n, const struct str *text, size_t *end, struct err *err)
{
    struct str until = { 0 };
    int status = 0;

    *end = text->length;
    if (i + 1 < n) {
        status = chat_template_render(t, messages, i + 1, 0, &until, err);
        *end = until.length;
        if (!status && common_length(text, &until) < until.length)
            status = refuse_rewriting(i, err);
    }
    str_release(&until);
    return status;
}

static int mark(const struct chat_template *t, const struct chat_message *messages, int i, int n,
                struct chat_parts *parts, size_t *done, struct err *err)
{
    size_t begin = 0, end = 0;

    if (find_begin(t, messages, i, &parts->text, &begin, err) < 0 ||
        find_end(t, messages, i, n, &parts->text, &end, err) < 0)
        return -1;
    if (begin < *done || end < begin)
        return refuse_rewriting(i, err);
    struct text answer =
        text_strip((struct text){ str_text(&parts->text) + begin, end - begin }, NULL, STRIP_RIGHT);
    end = begin + answer.n;
    if (add_part(parts, *done, begin, -1, err) < 0 || add_part(parts, begin, end, i, err) < 0)
        return -1;
    *done = end;
    return 0;
}

int chat_template_parts(const struct chat_template *t, const struct chat_message *messages, int n,
                        enum chat_marks marks, struct chat_parts *parts, struct err *err)
{
    size_t done = 0;
    int first = 0;

    parts->n = 0;
    str_clear(&parts->text);
    if (chat_template_render(t, messages, n, 0, &parts->text, err) < 0)
        return -1;
    if (marks == CHAT_MARK_LAST) {
        first = n;
        while (first > 0 && strcmp(messages[first - 1].role, ROLE_ASSISTANT))
            first--;
        first = first > 0 ? first - 1 : n;
    }
    for (int i = first; i < n; i++)
        if (!strcmp(messages[i].role, ROLE_ASSISTANT) &&
            mark(t, messages, i, n, parts, &done, err) < 0)
            return -1;
    return add_part(parts, done, parts->text.length, -1, err);
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

const char *chat_template_end_of_turn(const struct chat_template *t)
{
    return t->end_of_turn;
}
