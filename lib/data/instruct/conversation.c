/*
 * conversation.c - the formats, from columns to messages
 *
 * alpaca     instruction, input, output; system; history: pairs of prompt and answer before. The
 *            prompt is instruction, line break, input.
 * sharegpt   conversations: from (human, gpt, system, function_call, observation) and value; system.
 * messages   messages: role (user, assistant, system, developer, tool) and content, a text or a list
 *            of {type: text, text}; what else a message has goes to the template. tools.
 * belle      instruction with "Human:" and "Assistant:" in it, ending with the latter; output.
 * moss       chat: turn_1, ...: Human "<|Human|>: ...<eoh>", MOSS "<|MOSS|>: ...<eom>"; the first
 *            of MOSS's own words, meta_instruction, becomes the system message.
 * leetcode   code_with_problem (the problem is what stands before the code), code_only and
 *            explanation_only (the answer, in this order).
 * text       text, all of which is learned.
 */
#include "data/instruct/conversation.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct reading {
    const struct conversation_options *options;
    struct arena *arena;
    struct conversation *out;
    int capacity;
    struct err *err;
};

const char *const conversation_fields[] = {
    "instruction",   "input",      "output",   "system",   "history",
    "conversations", "from",       "value",    "messages", "role",
    "content",       "tools",      "text",     "chat",     "user_tag",
    "assistant_tag", "system_tag", "tool_tag", "call_tag", NULL,
};

int conversation_is_field(const char *field)
{
    for (int i = 0; conversation_fields[i]; i++)
        if (!strcmp(conversation_fields[i], field))
            return 1;
    return 0;
}

static int wrong(struct reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(struct reading *r, const char *format, ...)
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
static const char *name_of(const struct conversation_options *o, const char *field)
{
    for (int i = 0; i < o->n_columns; i++)
        if (!strcmp(o->columns[i].field, field))
            return o->columns[i].column;
    return field;
}

static const struct value *find(const struct conversation_options *o, const struct value *row,
                                const char *field)
{
    return value_get(row, name_of(o, field));
}

/* Whether a column's list of objects has a field in its first: tells apart what names don't. */
static int list_has(const struct conversation_options *o, const struct value *list,
                    const char *field)
{
    return list && list->kind == VALUE_LIST && list->first && find(o, list->first, field);
}

static int looks_like_belle(const struct value *instruction)
{
    return instruction && instruction->kind == VALUE_TEXT &&
           !strncmp(instruction->text, "Human:", 6) && strstr(instruction->text, "Assistant:");
}

/* The format that a row's columns say, INSTRUCT_AUTO if none. */
static enum instruct_format conversation_format(const struct conversation_options *o,
                                                const struct value *row)
{
    const struct value *conversations = find(o, row, "conversations");

    if (find(o, row, "messages") || list_has(o, conversations, "role"))
        return INSTRUCT_MESSAGES;
    if (conversations)
        return INSTRUCT_SHAREGPT;
    if (value_get(row, "code_with_problem"))
        return INSTRUCT_LEETCODE;
    if (find(o, row, "chat"))
        return INSTRUCT_MOSS;
    if (find(o, row, "instruction") && find(o, row, "output"))
        return looks_like_belle(find(o, row, "instruction")) ? INSTRUCT_BELLE : INSTRUCT_ALPACA;
    if (find(o, row, "text"))
        return INSTRUCT_TEXT;
    return INSTRUCT_AUTO;
}

/* A text as a C string; NULL and the error if it is something else. `what` names it. */
static const char *text_of(struct reading *r, const struct value *value, const char *what)
{
    if (!value || value->kind != VALUE_TEXT) {
        wrong(r, "%s is %s%s", what, value_kind_name(value), value ? ", not a string" : "");
        return NULL;
    }
    if (strlen(value->text) != value->n_bytes) {
        wrong(r, "%s has a zero byte", what);
        return NULL;
    }
    return value->text;
}

/* The text of a column, which must be there. */
static const char *need_text(struct reading *r, const struct value *row, const char *field)
{
    return text_of(r, find(r->options, row, field), name_of(r->options, field));
}

/* The text of a column, "" if it is not there; NULL if it is not a string. */
static const char *want_text(struct reading *r, const struct value *row, const char *field)
{
    return find(r->options, row, field) ? need_text(r, row, field) : "";
}

static int is_blank(const char *text)
{
    return !text || text[strspn(text, " \t\r\n\v\f")] == '\0';
}

/* A copy without white space at both ends. */
static const char *trim(struct reading *r, const char *text, size_t n)
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

static void add(struct reading *r, const char *role, const char *content)
{
    struct conversation *c = r->out;

    c->messages = arena_grow(r->arena, c->messages, sizeof *c->messages, &r->capacity, c->n + 1);
    c->messages[c->n++] = (struct chat_message){ .role = role, .content = content };
}

static void add_system(struct reading *r, const char *text)
{
    if (!is_blank(text))
        add(r, "system", text);
}

/* ---- formats ---- */

static int read_pair(struct reading *r, const struct value *pair)
{
    if (pair->kind != VALUE_LIST || pair->n != 2)
        return wrong(r, "%s is not a list of pairs of prompt and answer",
                     name_of(r->options, "history"));
    const char *prompt = text_of(r, pair->first, "a prompt of the history");
    const char *answer = prompt ? text_of(r, pair->first->next, "an answer of the history") : NULL;
    if (!answer)
        return -1;
    add(r, "user", prompt);
    add(r, "assistant", answer);
    return 0;
}

static int read_history(struct reading *r, const struct value *row)
{
    const struct value *history = find(r->options, row, "history");

    if (!history)
        return 0;
    if (history->kind != VALUE_LIST)
        return wrong(r, "%s is %s, not a list", name_of(r->options, "history"),
                     value_kind_name(history));
    for (const struct value *pair = history->first; pair; pair = pair->next)
        if (read_pair(r, pair) < 0)
            return -1;
    return 0;
}

static int read_alpaca(struct reading *r, const struct value *row)
{
    const char *instruction = need_text(r, row, "instruction");
    const char *input = instruction ? want_text(r, row, "input") : NULL;
    const char *output = input ? need_text(r, row, "output") : NULL;
    const char *system = output ? want_text(r, row, "system") : NULL;

    if (!system)
        return -1;
    add_system(r, system);
    if (read_history(r, row) < 0)
        return -1;
    if (is_blank(input))
        add(r, "user", instruction);
    else if (is_blank(instruction))
        add(r, "user", input);
    else
        add(r, "user", arena_printf(r->arena, "%s\n%s", instruction, input));
    add(r, "assistant", output);
    return 0;
}

/* What a role is called here, by the names that are about or the job's own; NULL if unknown. */
static const char *role_of(const struct reading *r, const char *name)
{
    static const char *const roles[][2] = {
        { "user", "user" },           { "human", "user" },    { "prompter", "user" },
        { "assistant", "assistant" }, { "gpt", "assistant" }, { "chatgpt", "assistant" },
        { "model", "assistant" },     { "bot", "assistant" }, { "system", "system" },
        { "developer", "system" },    { "tool", "tool" },     { "observation", "tool" },
        { "function", "tool" },       { "ipython", "tool" },  { "function_call", "call" },
    };
    static const char *const tags[][2] = { { "user_tag", "user" },
                                           { "assistant_tag", "assistant" },
                                           { "system_tag", "system" },
                                           { "tool_tag", "tool" },
                                           { "call_tag", "call" } };

    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (!strcmp(name_of(r->options, tags[i][0]), name))
            return tags[i][1];
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i][0], name))
            return roles[i][1];
    return NULL;
}

/* An answer that calls a function: {"name": ..., "arguments": ...} as text. */
static int add_call(struct reading *r, const char *text)
{
    struct value *call;
    struct err err;

    if (value_parse(&call, text, strlen(text), r->arena, &err) < 0 || !value_get(call, "name"))
        return wrong(r, "a function_call is not a JSON object with a name");
    add(r, "assistant", NULL);
    r->out->messages[r->out->n - 1].fields =
        arena_printf(r->arena, "{\"tool_calls\":[{\"type\":\"function\",\"function\":%s}]}", text);
    return 0;
}

static int add_tools(struct reading *r, const struct value *row)
{
    const struct value *tools = find(r->options, row, "tools");
    struct str text = { 0 };

    if (!tools || (tools->kind == VALUE_TEXT && is_blank(tools->text)) ||
        (tools->kind == VALUE_LIST && tools->n == 0))
        return 0;
    if (tools->kind == VALUE_TEXT) {
        struct value *list;
        struct err err;

        if (value_parse(&list, tools->text, tools->n_bytes, r->arena, &err) < 0)
            return wrong(r, "%s is not valid JSON: %.200s", name_of(r->options, "tools"), err.text);
        tools = list;
    }
    if (tools->kind != VALUE_LIST)
        return wrong(r, "%s is %s, not a list", name_of(r->options, "tools"),
                     value_kind_name(tools));
    if (tools->n > 0) {
        value_print(tools, &text);
        r->out->tools = arena_strdup(r->arena, str_text(&text));
        str_release(&text);
    }
    return 0;
}

/* The list of turns under a column: CSV and some others have it as JSON text. NULL: the error. */
static const struct value *turns_of(struct reading *r, const struct value *row, const char *field)
{
    const char *name = name_of(r->options, field);
    const struct value *turns = value_get(row, name);

    if (turns && turns->kind == VALUE_TEXT && *turns->text == '[') {
        struct value *list;

        if (value_parse(&list, turns->text, turns->n_bytes, r->arena, r->err) < 0) {
            err_add(r->err, "%s", name);
            return NULL;
        }
        turns = list;
    }
    if (!turns || turns->kind != VALUE_LIST) {
        wrong(r, "%s is %s%s", name, value_kind_name(turns), turns ? ", not a list" : "");
        return NULL;
    }
    if (turns->n == 0) {
        wrong(r, "%s is empty", name);
        return NULL;
    }
    return turns;
}

static int read_sharegpt(struct reading *r, const struct value *row)
{
    const struct value *turns = turns_of(r, row, "conversations");
    const char *system = turns ? want_text(r, row, "system") : NULL;

    if (!system || add_tools(r, row) < 0)
        return -1;
    add_system(r, system);
    for (const struct value *turn = turns->first; turn; turn = turn->next) {
        const char *from = need_text(r, turn, "from");
        const char *value = from ? need_text(r, turn, "value") : NULL;
        const char *role = value ? role_of(r, from) : NULL;

        if (!value)
            return -1;
        if (!role)
            return wrong(r, "%s is '%s', not human, gpt, system, function_call or observation",
                         name_of(r->options, "from"), from);
        if (!strcmp(role, "call")) {
            if (add_call(r, value) < 0)
                return -1;
        } else if (strcmp(role, "system") || !is_blank(value)) {
            add(r, role, value);
        }
    }
    return 0;
}

/* A content that is a list of parts: their texts, one behind the other. */
static int read_content(struct reading *r, const struct value *content, const char **out)
{
    struct str text = { 0 };

    *out = NULL;
    if (!content)
        return 0;
    if (content->kind != VALUE_LIST)
        return (*out = text_of(r, content, name_of(r->options, "content"))) ? 0 : -1;
    for (const struct value *part = content->first; part; part = part->next) {
        const struct value *type = value_get(part, "type");
        const char *piece;

        if (!type || type->kind != VALUE_TEXT || strcmp(type->text, "text")) {
            str_release(&text);
            return wrong(r, "%s has a part that is not {type: text}",
                         name_of(r->options, "content"));
        }
        if (!(piece = text_of(r, value_get(part, "text"), "a part's text"))) {
            str_release(&text);
            return -1;
        }
        str_add(&text, piece);
    }
    *out = arena_strdup(r->arena, str_text(&text));
    str_release(&text);
    return 0;
}

/* What a message has besides role and content, as JSON; NULL if nothing. */
static const char *other_fields(struct reading *r, const struct value *message)
{
    struct str out = { 0 };
    const char *fields = NULL;

    for (const struct value *v = message->first; v; v = v->next) {
        if (v->kind == VALUE_NULL || !strcmp(v->key, name_of(r->options, "role")) ||
            !strcmp(v->key, name_of(r->options, "content")))
            continue;
        str_add(&out, out.length ? "," : "{");
        value_print_text(v->key, v->n_key, &out);
        str_add_char(&out, ':');
        value_print(v, &out);
    }
    if (out.length) {
        str_add_char(&out, '}');
        fields = arena_strdup(r->arena, str_text(&out));
    }
    str_release(&out);
    return fields;
}

static int read_messages(struct reading *r, const struct value *row)
{
    int is_named = find(r->options, row, "messages") != NULL;
    const struct value *turns = turns_of(r, row, is_named ? "messages" : "conversations");

    if (!turns || add_tools(r, row) < 0)
        return -1;
    for (const struct value *turn = turns->first; turn; turn = turn->next) {
        const char *name = need_text(r, turn, "role"), *content;
        const char *role = name ? role_of(r, name) : NULL;

        if (!name || read_content(r, find(r->options, turn, "content"), &content) < 0)
            return -1;
        if (!role || !strcmp(role, "call"))
            return wrong(r, "%s is '%s', not user, assistant, system or tool",
                         name_of(r->options, "role"), name);
        if (!strcmp(role, "system") && is_blank(content))
            continue;
        add(r, role, content);
        r->out->messages[r->out->n - 1].fields = other_fields(r, turn);
    }
    return 0;
}

/* One "Human: ... Assistant: ..." after the other; the last answer is the output. */
static int read_belle(struct reading *r, const struct value *row)
{
    static const char human[] = "Human:", assistant[] = "Assistant:";
    const char *at = need_text(r, row, "instruction");
    const char *output = at ? need_text(r, row, "output") : NULL;

    if (!output)
        return -1;
    if (strncmp(at, human, sizeof human - 1))
        return wrong(r, "%s does not begin with 'Human:'", name_of(r->options, "instruction"));
    while (at) {
        at += sizeof human - 1;
        const char *turn = strstr(at, assistant);
        if (!turn)
            return wrong(r, "a 'Human:' of %s has no 'Assistant:'",
                         name_of(r->options, "instruction"));
        add(r, "user", trim(r, at, (size_t)(turn - at)));
        turn += sizeof assistant - 1;
        at = strstr(turn, human);
        if (at)
            add(r, "assistant", trim(r, turn, (size_t)(at - turn)));
        else if (!is_blank(turn))
            return wrong(r, "%s does not end with 'Assistant:'",
                         name_of(r->options, "instruction"));
    }
    add(r, "assistant", trim(r, output, strlen(output)));
    return 0;
}

/* Without the marks around it. */
static const char *moss_text(struct reading *r, const struct value *turn, const char *key,
                             const char *start, const char *end)
{
    const char *text = text_of(r, value_get(turn, key), key);

    if (!text)
        return NULL;
    text += strspn(text, " \t\r\n");
    if (!strncmp(text, start, strlen(start)))
        text += strlen(start);
    const char *mark = strstr(text, end);
    return trim(r, text, mark ? (size_t)(mark - text) : strlen(text));
}

static int read_moss(struct reading *r, const struct value *row)
{
    const struct value *chat = find(r->options, row, "chat");
    const struct value *meta = value_get(row, "meta_instruction");
    const char *system = meta ? text_of(r, meta, "meta_instruction") : "";

    if (!system)
        return -1;
    if (!chat || chat->kind != VALUE_OBJECT)
        return wrong(r, "%s is %s%s", name_of(r->options, "chat"), value_kind_name(chat),
                     chat ? ", not an object of turns" : "");
    add_system(r, system);
    for (const struct value *turn = chat->first; turn; turn = turn->next) {
        if (turn->kind == VALUE_NULL || (turn->kind == VALUE_OBJECT && turn->n == 0))
            continue;
        const char *prompt = moss_text(r, turn, "Human", "<|Human|>:", "<eoh>");
        const char *answer = prompt ? moss_text(r, turn, "MOSS", "<|MOSS|>:", "<eom>") : NULL;
        if (!answer)
            return err_add(r->err, "%s", turn->key);
        add(r, "user", prompt);
        add(r, "assistant", answer);
    }
    return r->out->n > 0 ? 0 : wrong(r, "%s has no turn", name_of(r->options, "chat"));
}

static int read_leetcode(struct reading *r, const struct value *row)
{
    const char *problem = text_of(r, value_get(row, "code_with_problem"), "code_with_problem");
    const char *code = problem ? text_of(r, value_get(row, "code_only"), "code_only") : NULL;
    const char *explanation =
        code ? text_of(r, value_get(row, "explanation_only"), "explanation_only") : NULL;

    if (!explanation)
        return -1;
    const char *fence = strstr(problem, "```");
    add(r, "user", trim(r, problem, fence ? (size_t)(fence - problem) : strlen(problem)));
    add(r, "assistant",
        is_blank(code) ? explanation : arena_printf(r->arena, "%s\n%s", code, explanation));
    return 0;
}

static int read_text(struct reading *r, const struct value *row)
{
    const struct value *text = find(r->options, row, "text");

    if (!text || text->kind != VALUE_TEXT)
        return wrong(r, "%s is %s%s", name_of(r->options, "text"), value_kind_name(text),
                     text ? ", not a string" : "");
    r->out->text = text->text;
    r->out->n_text = text->n_bytes;
    return 0;
}

/* ---- the order of roles ---- */

static int is_role(const struct chat_message *message, const char *role)
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

static int check_messages(struct reading *r)
{
    const struct conversation *c = r->out;

    for (int i = 0; i < c->n; i++) {
        const struct chat_message *m = &c->messages[i];
        const char *expected = expected_after(i > 0 ? m - 1 : NULL, m);

        if (expected)
            return wrong(r, "message %d is of role %s: expected %s", i + 1, m->role, expected);
        int calls = m->fields && strstr(m->fields, "\"tool_calls\":[{");
        if (is_blank(m->content) && !is_role(m, "tool") && !calls)
            return wrong(r, "message %d (%s) is empty", i + 1, m->role);
    }
    if (c->n == 0 || !is_role(&c->messages[c->n - 1], "assistant"))
        return wrong(r, "the conversation ends without an answer");
    return 0;
}

static void add_default_system(struct reading *r)
{
    struct conversation *c = r->out;

    if (is_blank(r->options->system) || c->text || (c->n > 0 && is_role(c->messages, "system")))
        return;
    add(r, "system", r->options->system);
    struct chat_message system = c->messages[c->n - 1];
    memmove(c->messages + 1, c->messages, sizeof system * (size_t)(c->n - 1));
    c->messages[0] = system;
}

static int refuse_columns(struct reading *r, const struct value *row)
{
    static const char *const pair[2] = { "instruction", "output" };
    struct str names = { 0 };

    /* One half of what most rows have: it is the other that is wrong. */
    for (int i = 0; i < 2; i++) {
        const struct value *there = find(r->options, row, pair[i]);
        const struct value *other = find(r->options, row, pair[!i]);

        if (there && there->kind == VALUE_TEXT && (!other || other->kind == VALUE_NULL))
            return wrong(r, "%s is %s, beside %s", name_of(r->options, pair[!i]),
                         value_kind_name(other), name_of(r->options, pair[i]));
    }
    for (const struct value *v = row->first; v && names.length < 300; v = v->next)
        str_printf(&names, "%s%.60s", names.length ? ", " : "", v->key);
    wrong(r,
          "its columns (%.320s) match no known format (hint: data.format, or data.columns: "
          "{instruction: NAME, output: NAME})",
          str_text(&names));
    str_release(&names);
    return -1;
}

int conversation_read(const struct conversation_options *options, const struct value *row,
                      struct arena *arena, struct conversation *out, struct err *err)
{
    static int (*const readers[])(struct reading * r, const struct value *row) = {
        [INSTRUCT_AUTO] = refuse_columns,    [INSTRUCT_ALPACA] = read_alpaca,
        [INSTRUCT_SHAREGPT] = read_sharegpt, [INSTRUCT_MESSAGES] = read_messages,
        [INSTRUCT_BELLE] = read_belle,       [INSTRUCT_MOSS] = read_moss,
        [INSTRUCT_LEETCODE] = read_leetcode, [INSTRUCT_TEXT] = read_text,
    };
    struct conversation c = { 0 };
    struct reading r = { .options = options, .arena = arena, .out = &c, .err = err };
    enum instruct_format format = options->format;

    if (row->kind != VALUE_OBJECT)
        return wrong(&r, "the row is %s, not an object", value_kind_name(row));
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
