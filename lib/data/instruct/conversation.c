/*
 * conversation.c - rows of instruction data: the columns, the format that they imply, and the order
 * of roles in the messages
 */
#include "data/instruct/conversation_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const conversation_fields[] = {
    "instruction",   "input",      "output",   "system",   "history",
    "conversations", "from",       "value",    "messages", "role",
    "content",       "tools",      "text",     "chat",     "user_tag",
    "assistant_tag", "system_tag", "tool_tag", "call_tag", NULL,
};

bool conversation_is_field(const char *field)
{
    for (int i = 0; conversation_fields[i]; i++)
        if (!strcmp(conversation_fields[i], field))
            return true;
    return false;
}

int conversation_refuse(struct conversation_reader *r, const char *format, ...)
{
    char what[512];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return err_set(r->err, ERR_DATA, "%s", what);
}

/* ---- columns ---- */

/* What a field's column is called. */
const char *conversation_column(const struct conversation_options *o, const char *field)
{
    for (int i = 0; i < o->n_columns; i++)
        if (!strcmp(o->columns[i].field, field))
            return o->columns[i].column;
    return field;
}

const struct json_value *conversation_find(const struct conversation_options *o,
                                           const struct json_value *row, const char *field)
{
    return json_value_get(row, conversation_column(o, field));
}

/*
 * Whether the first object of a column's list has a field: formats that share the column's name
 * differ in it.
 */
static int list_has(const struct conversation_options *o, const struct json_value *list,
                    const char *field)
{
    return list && list->kind == JSON_ARRAY && list->first &&
           conversation_find(o, list->first, field);
}

static int looks_like_belle(const struct json_value *instruction)
{
    return instruction && instruction->kind == JSON_STRING &&
           !strncmp(instruction->text, "Human:", 6) && strstr(instruction->text, "Assistant:");
}

/* The format that a row's columns say, INSTRUCT_AUTO if none. */
static enum instruct_format conversation_format(const struct conversation_options *o,
                                                const struct json_value *row)
{
    const struct json_value *conversations = conversation_find(o, row, "conversations");

    if (conversation_find(o, row, "messages") || list_has(o, conversations, "role"))
        return INSTRUCT_MESSAGES;
    if (conversations)
        return INSTRUCT_SHAREGPT;
    if (json_value_get(row, "code_with_problem"))
        return INSTRUCT_LEETCODE;
    if (conversation_find(o, row, "chat"))
        return INSTRUCT_MOSS;
    if (conversation_find(o, row, "instruction") && conversation_find(o, row, "output"))
        return looks_like_belle(conversation_find(o, row, "instruction")) ? INSTRUCT_BELLE
                                                                          : INSTRUCT_ALPACA;
    if (conversation_find(o, row, "text"))
        return INSTRUCT_TEXT;
    return INSTRUCT_AUTO;
}

/* A text as a C string; NULL and the error if it is something else. `what` names it. */
const char *conversation_text(struct conversation_reader *r, const struct json_value *value,
                              const char *what)
{
    if (!value || value->kind != JSON_STRING) {
        conversation_refuse(r, "%s is %s%s", what, json_value_kind_name(value),
                            value ? ", not a string" : "");
        return NULL;
    }
    if (strlen(value->text) != value->n_bytes) {
        conversation_refuse(r, "%s has a zero byte", what);
        return NULL;
    }
    return value->text;
}

/* The text of a column, which must be there. */
const char *conversation_need_text(struct conversation_reader *r, const struct json_value *row,
                                   const char *field)
{
    return conversation_text(r, conversation_find(r->options, row, field),
                             conversation_column(r->options, field));
}

/* The text of a column, "" if it is not there; NULL if it is not a string. */
const char *conversation_optional_text(struct conversation_reader *r, const struct json_value *row,
                                       const char *field)
{
    return conversation_find(r->options, row, field) ? conversation_need_text(r, row, field) : "";
}

bool conversation_is_blank(const char *text)
{
    return !text || text[strspn(text, " \t\r\n\v\f")] == '\0';
}

/* A copy without white space at both ends. */
const char *conversation_trim(struct conversation_reader *r, const char *text, size_t n)
{
    while (n > 0 && strchr(" \t\r\n\v\f", text[n - 1]))
        n--;
    while (n > 0 && strchr(" \t\r\n\v\f", *text)) {
        text++;
        n--;
    }
    return arena_strndup(r->arena, text, n);
}

/* ---- messages ---- */

void conversation_add(struct conversation_reader *r, const char *role, const char *content)
{
    struct conversation *c = r->out;

    c->messages = arena_grow(r->arena, c->messages, sizeof *c->messages, &r->capacity, c->n + 1);
    c->messages[c->n++] = (struct chat_message){ .role = role, .content = content };
}

void conversation_add_system(struct conversation_reader *r, const char *text)
{
    if (!conversation_is_blank(text))
        conversation_add(r, "system", text);
}

/* ---- the order of roles ---- */

static bool is_role(const struct chat_message *message, const char *role)
{
    return !strcmp(message->role, role);
}

/* What may follow what, or NULL. */
static const char *expected_after(const struct chat_message *before, const struct chat_message *m)
{
    if (is_role(m, "system"))
        return before ? "the system message first" : NULL;
    if (!before || is_role(before, "system"))
        return is_role(m, "user") ? NULL : "a prompt (user) first";
    if (is_role(before, "user"))
        return is_role(m, "assistant") ? NULL : "an answer (assistant) to the prompt before";
    if (is_role(before, "assistant"))
        return is_role(m, "assistant") ? "no second answer in a row" : NULL;
    return is_role(m, "user") ? "an answer (assistant) to the tool before" : NULL;
}

static int check_messages(struct conversation_reader *r)
{
    const struct conversation *c = r->out;

    for (int i = 0; i < c->n; i++) {
        const struct chat_message *m = &c->messages[i];
        const char *expected = expected_after(i > 0 ? m - 1 : NULL, m);

        if (expected)
            return conversation_refuse(r, "message %d is of role %s: expected %s", i + 1, m->role,
                                       expected);
        int calls = m->fields && strstr(m->fields, "\"tool_calls\":[{");
        if (conversation_is_blank(m->content) && !is_role(m, "tool") && !calls)
            return conversation_refuse(r, "message %d (%s) is empty", i + 1, m->role);
    }
    if (c->n == 0 || !is_role(&c->messages[c->n - 1], "assistant"))
        return conversation_refuse(r, "the conversation ends without an answer");
    return 0;
}

static void add_default_system(struct conversation_reader *r)
{
    struct conversation *c = r->out;

    if (conversation_is_blank(r->options->system) || c->text ||
        (c->n > 0 && is_role(c->messages, "system")))
        return;
    conversation_add(r, "system", r->options->system);
    struct chat_message system = c->messages[c->n - 1];
    memmove(c->messages + 1, c->messages, sizeof system * (size_t)(c->n - 1));
    c->messages[0] = system;
}

static int refuse_columns(struct conversation_reader *r, const struct json_value *row)
{
    static const char *const pair[2] = { "instruction", "output" };
    struct str names = { 0 };

    /* One half of what most rows have: it is the other that is wrong. */
    for (int i = 0; i < 2; i++) {
        const struct json_value *there = conversation_find(r->options, row, pair[i]);
        const struct json_value *other = conversation_find(r->options, row, pair[!i]);

        if (there && there->kind == JSON_STRING && (!other || other->kind == JSON_NULL))
            return conversation_refuse(
                r, "%s is %s, beside %s", conversation_column(r->options, pair[!i]),
                json_value_kind_name(other), conversation_column(r->options, pair[i]));
    }
    for (const struct json_value *v = row->first; v && names.length < 300; v = v->next)
        str_printf(&names, "%s%.60s", names.length ? ", " : "", v->key);
    conversation_refuse(
        r,
        "its columns (%.320s) match no known format (hint: data.format, or data.columns: "
        "{instruction: NAME, output: NAME})",
        str_text(&names));
    str_release(&names);
    return -1;
}

int conversation_read(const struct conversation_options *options, const struct json_value *row,
                      struct arena *arena, struct conversation *out, struct err *err)
{
    static int (*const readers[])(struct conversation_reader * r, const struct json_value *row) = {
        [INSTRUCT_AUTO] = refuse_columns,
        [INSTRUCT_ALPACA] = conversation_read_alpaca,
        [INSTRUCT_SHAREGPT] = conversation_read_sharegpt,
        [INSTRUCT_MESSAGES] = conversation_read_messages,
        [INSTRUCT_BELLE] = conversation_read_belle,
        [INSTRUCT_MOSS] = conversation_read_moss,
        [INSTRUCT_LEETCODE] = conversation_read_leetcode,
        [INSTRUCT_TEXT] = conversation_read_text,
    };
    struct conversation c = { 0 };
    struct conversation_reader r = { .options = options, .arena = arena, .out = &c, .err = err };
    enum instruct_format format = options->format;

    if (row->kind != JSON_OBJECT)
        return conversation_refuse(&r, "the row is %s, not an object", json_value_kind_name(row));
    if (format == INSTRUCT_AUTO)
        format = conversation_format(options, row);
    if (readers[format](&r, row) < 0)
        return -1;
    add_default_system(&r);
    if (!c.text && check_messages(&r) < 0)
        return -1;
    *out = c;
    return 0;
}
