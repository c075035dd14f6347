/*
 * conversation_formats.c - from the columns of a row to messages, one function for each format
 *
 * alpaca     instruction, input, output; system; history: pairs of prompt and answer before. The
 *            prompt is instruction, line break, input.
 * sharegpt   conversations: from (human, gpt, system, function_call, observation) and value;
 * system. messages   messages: role (user, assistant, system, developer, tool) and content, a text
 * or a list
 *            of {type: text, text}; what else a message has goes to the template. tools.
 * belle      instruction with "Human:" and "Assistant:" in it, ending with the latter; output.
 * moss       chat: turn_1, ...: Human "<|Human|>: ...<eoh>", MOSS "<|MOSS|>: ...<eom>"; the first
 *            of MOSS's own words, meta_instruction, becomes the system message.
 * leetcode   code_with_problem (the problem is what stands before the code), code_only and
 *            explanation_only (the answer, in this order).
 * text       text; all of it has loss.
 */
#include <string.h>

#include "data/instruct/conversation_impl.h"

static int read_pair(struct conversation_reader *r, const struct json_value *pair)
{
    if (pair->kind != JSON_ARRAY || pair->n != 2)
        return conversation_refuse(r, "%s is not a list of pairs of prompt and answer",
                                   conversation_column(r->options, "history"));
    const char *prompt = conversation_text(r, pair->first, "a prompt of the history");
    const char *answer =
        prompt ? conversation_text(r, pair->first->next, "an answer of the history") : NULL;
    if (!answer)
        return -1;
    conversation_add(r, "user", prompt);
    conversation_add(r, "assistant", answer);
    return 0;
}

static int read_history(struct conversation_reader *r, const struct json_value *row)
{
    const struct json_value *history = conversation_find(r->options, row, "history");

    if (!history)
        return 0;
    if (history->kind != JSON_ARRAY)
        return conversation_refuse(r, "%s is %s, not a list",
                                   conversation_column(r->options, "history"),
                                   json_value_kind_name(history));
    for (const struct json_value *pair = history->first; pair; pair = pair->next)
        if (read_pair(r, pair) < 0)
            return -1;
    return 0;
}

int conversation_read_alpaca(struct conversation_reader *r, const struct json_value *row)
{
    const char *instruction = conversation_need_text(r, row, "instruction");
    const char *input = instruction ? conversation_optional_text(r, row, "input") : NULL;
    const char *output = input ? conversation_need_text(r, row, "output") : NULL;
    const char *system = output ? conversation_optional_text(r, row, "system") : NULL;

    if (!system)
        return -1;
    conversation_add_system(r, system);
    if (read_history(r, row) < 0)
        return -1;
    if (conversation_is_blank(input))
        conversation_add(r, "user", instruction);
    else if (conversation_is_blank(instruction))
        conversation_add(r, "user", input);
    else
        conversation_add(r, "user", arena_printf(r->arena, "%s\n%s", instruction, input));
    conversation_add(r, "assistant", output);
    return 0;
}

/* What a role is called here, by the names that are about or the job's own; NULL if unknown. */
static const char *role_of(const struct conversation_reader *r, const char *name)
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
        if (!strcmp(conversation_column(r->options, tags[i][0]), name))
            return tags[i][1];
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i][0], name))
            return roles[i][1];
    return NULL;
}

/* An answer that calls a function: {"name": ..., "arguments": ...} as text. */
static int add_call(struct conversation_reader *r, const char *text)
{
    struct json_value *call;
    struct err err;

    if (json_value_parse(&call, text, strlen(text), r->arena, &err) < 0 ||
        !json_value_get(call, "name"))
        return conversation_refuse(r, "a function_call is not a JSON object with a name");
    conversation_add(r, "assistant", NULL);
    r->out->messages[r->out->n - 1].fields =
        arena_printf(r->arena, "{\"tool_calls\":[{\"type\":\"function\",\"function\":%s}]}", text);
    return 0;
}

static int add_tools(struct conversation_reader *r, const struct json_value *row)
{
    const struct json_value *tools = conversation_find(r->options, row, "tools");
    struct str text = { 0 };

    if (!tools || (tools->kind == JSON_STRING && conversation_is_blank(tools->text)) ||
        (tools->kind == JSON_ARRAY && tools->n == 0))
        return 0;
    if (tools->kind == JSON_STRING) {
        struct json_value *list;
        struct err err;

        if (json_value_parse(&list, tools->text, tools->n_bytes, r->arena, &err) < 0)
            return conversation_refuse(r, "%s is not valid JSON: %.200s",
                                       conversation_column(r->options, "tools"), err.text);
        tools = list;
    }
    if (tools->kind != JSON_ARRAY)
        return conversation_refuse(r, "%s is %s, not a list",
                                   conversation_column(r->options, "tools"),
                                   json_value_kind_name(tools));
    if (tools->n > 0) {
        json_value_print(tools, &text);
        r->out->tools = arena_strdup(r->arena, str_text(&text));
        str_release(&text);
    }
    return 0;
}

/* The list of turns under a column: CSV and some others have it as JSON text. NULL: the error. */
static const struct json_value *turns_of(struct conversation_reader *r,
                                         const struct json_value *row, const char *field)
{
    const char *name = conversation_column(r->options, field);
    const struct json_value *turns = json_value_get(row, name);

    if (turns && turns->kind == JSON_STRING && *turns->text == '[') {
        struct json_value *list;

        if (json_value_parse(&list, turns->text, turns->n_bytes, r->arena, r->err) < 0) {
            err_add(r->err, "%s", name);
            return NULL;
        }
        turns = list;
    }
    if (!turns || turns->kind != JSON_ARRAY) {
        conversation_refuse(r, "%s is %s%s", name, json_value_kind_name(turns),
                            turns ? ", not a list" : "");
        return NULL;
    }
    if (turns->n == 0) {
        conversation_refuse(r, "%s is empty", name);
        return NULL;
    }
    return turns;
}

int conversation_read_sharegpt(struct conversation_reader *r, const struct json_value *row)
{
    const struct json_value *turns = turns_of(r, row, "conversations");
    const char *system = turns ? conversation_optional_text(r, row, "system") : NULL;

    if (!system || add_tools(r, row) < 0)
        return -1;
    conversation_add_system(r, system);
    for (const struct json_value *turn = turns->first; turn; turn = turn->next) {
        const char *from = conversation_need_text(r, turn, "from");
        const char *value = from ? conversation_need_text(r, turn, "value") : NULL;
        const char *role = value ? role_of(r, from) : NULL;

        if (!value)
            return -1;
        if (!role)
            return conversation_refuse(
                r, "%s is '%s', not human, gpt, system, function_call or observation",
                conversation_column(r->options, "from"), from);
        if (!strcmp(role, "call")) {
            if (add_call(r, value) < 0)
                return -1;
        } else if (strcmp(role, "system") || !conversation_is_blank(value)) {
            conversation_add(r, role, value);
        }
    }
    return 0;
}

/* A content that is a list of parts: their texts, one behind the other. */
static int read_content(struct conversation_reader *r, const struct json_value *content,
                        const char **out)
{
    struct str text = { 0 };

    *out = NULL;
    if (!content)
        return 0;
    if (content->kind != JSON_ARRAY)
        return (*out = conversation_text(r, content, conversation_column(r->options, "content")))
                   ? 0
                   : -1;
    for (const struct json_value *part = content->first; part; part = part->next) {
        const struct json_value *type = json_value_get(part, "type");
        const char *piece;

        if (!type || type->kind != JSON_STRING || strcmp(type->text, "text")) {
            str_release(&text);
            return conversation_refuse(r, "%s has a part that is not {type: text}",
                                       conversation_column(r->options, "content"));
        }
        if (!(piece = conversation_text(r, json_value_get(part, "text"), "a part's text"))) {
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
static const char *other_fields(struct conversation_reader *r, const struct json_value *message)
{
    struct str out = { 0 };
    const char *fields = NULL;

    for (const struct json_value *v = message->first; v; v = v->next) {
        if (v->kind == JSON_NULL || !strcmp(v->key, conversation_column(r->options, "role")) ||
            !strcmp(v->key, conversation_column(r->options, "content")))
            continue;
        str_add(&out, out.length ? "," : "{");
        json_value_print_text(v->key, v->n_key, &out);
        str_add_char(&out, ':');
        json_value_print(v, &out);
    }
    if (out.length) {
        str_add_char(&out, '}');
        fields = arena_strdup(r->arena, str_text(&out));
    }
    str_release(&out);
    return fields;
}

int conversation_read_messages(struct conversation_reader *r, const struct json_value *row)
{
    bool is_named = conversation_find(r->options, row, "messages") != NULL;
    const struct json_value *turns = turns_of(r, row, is_named ? "messages" : "conversations");

    if (!turns || add_tools(r, row) < 0)
        return -1;
    for (const struct json_value *turn = turns->first; turn; turn = turn->next) {
        const char *name = conversation_need_text(r, turn, "role"), *content;
        const char *role = name ? role_of(r, name) : NULL;

        if (!name || read_content(r, conversation_find(r->options, turn, "content"), &content) < 0)
            return -1;
        if (!role || !strcmp(role, "call"))
            return conversation_refuse(r, "%s is '%s', not user, assistant, system or tool",
                                       conversation_column(r->options, "role"), name);
        if (!strcmp(role, "system") && conversation_is_blank(content))
            continue;
        conversation_add(r, role, content);
        r->out->messages[r->out->n - 1].fields = other_fields(r, turn);
    }
    return 0;
}

/* One "Human: ... Assistant: ..." after the other; the last answer is the output. */
int conversation_read_belle(struct conversation_reader *r, const struct json_value *row)
{
    static const char human[] = "Human:", assistant[] = "Assistant:";
    const char *at = conversation_need_text(r, row, "instruction");
    const char *output = at ? conversation_need_text(r, row, "output") : NULL;

    if (!output)
        return -1;
    if (strncmp(at, human, sizeof human - 1))
        return conversation_refuse(r, "%s does not begin with 'Human:'",
                                   conversation_column(r->options, "instruction"));
    while (at) {
        at += sizeof human - 1;
        const char *turn = strstr(at, assistant);
        if (!turn)
            return conversation_refuse(r, "a 'Human:' of %s has no 'Assistant:'",
                                       conversation_column(r->options, "instruction"));
        conversation_add(r, "user", conversation_trim(r, at, (size_t)(turn - at)));
        turn += sizeof assistant - 1;
        at = strstr(turn, human);
        if (at)
            conversation_add(r, "assistant", conversation_trim(r, turn, (size_t)(at - turn)));
        else if (!conversation_is_blank(turn))
            return conversation_refuse(r, "%s does not end with 'Assistant:'",
                                       conversation_column(r->options, "instruction"));
    }
    conversation_add(r, "assistant", conversation_trim(r, output, strlen(output)));
    return 0;
}

/* Without the marks around it. */
static const char *moss_text(struct conversation_reader *r, const struct json_value *turn,
                             const char *key, const char *start, const char *end)
{
    const char *text = conversation_text(r, json_value_get(turn, key), key);

    if (!text)
        return NULL;
    text += strspn(text, " \t\r\n");
    if (!strncmp(text, start, strlen(start)))
        text += strlen(start);
    const char *mark = strstr(text, end);
    return conversation_trim(r, text, mark ? (size_t)(mark - text) : strlen(text));
}

int conversation_read_moss(struct conversation_reader *r, const struct json_value *row)
{
    const struct json_value *chat = conversation_find(r->options, row, "chat");
    const struct json_value *meta = json_value_get(row, "meta_instruction");
    const char *system = meta ? conversation_text(r, meta, "meta_instruction") : "";

    if (!system)
        return -1;
    if (!chat || chat->kind != JSON_OBJECT)
        return conversation_refuse(r, "%s is %s%s", conversation_column(r->options, "chat"),
                                   json_value_kind_name(chat),
                                   chat ? ", not an object of turns" : "");
    conversation_add_system(r, system);
    for (const struct json_value *turn = chat->first; turn; turn = turn->next) {
        if (turn->kind == JSON_NULL || (turn->kind == JSON_OBJECT && turn->n == 0))
            continue;
        const char *prompt = moss_text(r, turn, "Human", "<|Human|>:", "<eoh>");
        const char *answer = prompt ? moss_text(r, turn, "MOSS", "<|MOSS|>:", "<eom>") : NULL;
        if (!answer)
            return err_add(r->err, "%s", turn->key);
        conversation_add(r, "user", prompt);
        conversation_add(r, "assistant", answer);
    }
    return r->out->n > 0
               ? 0
               : conversation_refuse(r, "%s has no turn", conversation_column(r->options, "chat"));
}

int conversation_read_leetcode(struct conversation_reader *r, const struct json_value *row)
{
    const char *problem =
        conversation_text(r, json_value_get(row, "code_with_problem"), "code_with_problem");
    const char *code =
        problem ? conversation_text(r, json_value_get(row, "code_only"), "code_only") : NULL;
    const char *explanation =
        code ? conversation_text(r, json_value_get(row, "explanation_only"), "explanation_only")
             : NULL;

    if (!explanation)
        return -1;
    const char *fence = strstr(problem, "```");
    conversation_add(
        r, "user",
        conversation_trim(r, problem, fence ? (size_t)(fence - problem) : strlen(problem)));
    conversation_add(r, "assistant",
                     conversation_is_blank(code)
                         ? explanation
                         : arena_printf(r->arena, "%s\n%s", code, explanation));
    return 0;
}

int conversation_read_text(struct conversation_reader *r, const struct json_value *row)
{
    const struct json_value *text = conversation_find(r->options, row, "text");

    if (!text || text->kind != JSON_STRING)
        return conversation_refuse(r, "%s is %s%s", conversation_column(r->options, "text"),
                                   json_value_kind_name(text), text ? ", not a string" : "");
    r->out->text = text->text;
    r->out->n_text = text->n_bytes;
    return 0;
}
