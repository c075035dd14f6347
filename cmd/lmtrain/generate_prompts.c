/*
 * generate_prompts.c - prompts to tokens, and what the model makes of them to stdout
 *
 * FILE is read as lines; if it is called .jsonl, each is JSON: a text, {"prompt": ...}, a list of
 * messages or {"messages": [...]}.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "base/str.h"
#include "generation.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define MESSAGES_MAX 4096

/* A prompt of a file. */
struct file_prompt {
    char *text;  /* as it is shown; heap */
    cJSON *json; /* that messages point into, or NULL */
    struct generate_text out;
};

/* An empty prompt begins where documents do. */
static int begin_document(struct generation *g, struct token_list *out, struct err *err)
{
    int end = tokenizer_end_of_text(g->tokenizer);

    return out->n ? 0 : token_list_add(out, end < 0 ? 0 : end, err);
}

int generate_encode_messages(struct generation *g, const struct chat_message *messages, int n,
                             struct token_list *out, struct str *rendered, struct err *err)
{
    struct str text = { 0 };
    int status = chat_template_render(g->template, messages, n, 1, &text, err);

    if (!status)
        status = tokenizer_encode(g->tokenizer, str_text(&text), text.length, out, err);
    if (!status)
        status = begin_document(g, out, err);
    if (!status && rendered)
        str_add_bytes(rendered, str_text(&text), text.length);
    str_release(&text);
    return status;
}

int generate_encode(struct generation *g, const char *prompt, struct token_list *out,
                    struct str *rendered, struct err *err)
{
    const int32_t *before, *after;
    int n_before, n_after;

    if (g->template) {
        struct chat_message messages[2] = { { "system", g->q->system, NULL },
                                            { "user", prompt, NULL } };
        int first = g->q->system ? 0 : 1;

        return generate_encode_messages(g, messages + first, 2 - first, out, rendered, err);
    }
    tokenizer_frame(g->tokenizer, &before, &n_before, &after, &n_after);
    for (int i = 0; i < n_before; i++)
        if (token_list_add(out, before[i], err) < 0)
            return -1;
    if (rendered)
        str_add(rendered, prompt);
    if (tokenizer_encode(g->tokenizer, prompt, strlen(prompt), out, err) < 0)
        return -1;
    return begin_document(g, out, err);
}

/* ---- what is printed ---- */

/* Text as a JSON string: what is not valid UTF-8 is U+FFFD, and zero bytes, where cJSON would
 * end it, are there. */
static void quote(const struct str *text, struct str *out)
{
    struct str valid = { 0 };
    size_t n;

    str_add_utf8(&valid, str_text(text), text->length);
    str_add_char(out, '"');
    for (size_t at = 0; at < valid.length; at += n + 1) {
        cJSON *piece = cJSON_CreateString(valid.data + at);
        char *printed = cJSON_PrintUnformatted(piece);

        n = strlen(valid.data + at);
        if (printed)
            str_add_bytes(out, printed + 1, strlen(printed) - 2);
        str_add(out, at + n < valid.length ? "\\u0000" : "");
        free(printed);
        cJSON_Delete(piece);
    }
    str_add_char(out, '"');
    str_release(&valid);
}

static void add_json(const char *prompt, const struct generate_text *t, bool with_score,
                     struct str *out)
{
    static const char *const finishes[] = { "length", "end", "stop", "left" };
    cJSON *json = cJSON_CreateObject(), *ids = cJSON_CreateArray();

    struct str quoted = { 0 };

    cJSON_AddStringToObject(json, "prompt", prompt);
    quote(&t->text, &quoted);
    cJSON_AddRawToObject(json, "text", str_text(&quoted));
    str_release(&quoted);
    cJSON_AddStringToObject(json, "finish", finishes[t->finish]);
    cJSON_AddNumberToObject(json, "prompt_tokens", (double)t->n_prompt);
    for (int64_t i = t->n_prompt; i < t->tokens.n; i++)
        cJSON_AddItemToArray(ids, cJSON_CreateNumber((double)t->tokens.ids[i]));
    cJSON_AddItemToObject(json, "ids", ids);
    if (with_score)
        cJSON_AddNumberToObject(json, "score", t->score);
    char *text = cJSON_PrintUnformatted(json);
    str_printf(out, "%s\n", text ? text : "{}");
    free(text);
    cJSON_Delete(json);
}

static void add_text(const struct generation *g, const char *prompt, struct generate_text *t,
                     struct str *out)
{
    if (g->q->json) {
        add_json(prompt, t, g->q->options.n_beams > 1, out);
        return;
    }
    str_add(out, g->template ? "" : prompt);
    str_add_utf8(out, str_text(&t->text), t->text.length);
    str_add(out, "\n\n");
}

/* What the replicas have written, in their order; the first rank prints it. */
static int print_all(const struct generation *g, const struct str *own, struct err *err)
{
    struct str all = { 0 };
    int status = replica_collect(g->served.replica, own, &all, err);

    if (!status && replica_is_first(g->served.replica)) {
        fwrite(str_text(&all), 1, all.length, stdout);
        fflush(stdout);
    }
    str_release(&all);
    return status;
}

/* --print-prompt: what the model would be given. */
static void print_prompt(const struct generation *g, const struct str *rendered,
                         const struct token_list *tokens)
{
    if (!g->q->json) {
        printf("%s\n", str_text(rendered));
        return;
    }
    struct generate_text t = { .tokens = *tokens };
    cJSON *json = cJSON_CreateObject(), *ids = cJSON_CreateArray();
    cJSON_AddStringToObject(json, "prompt", str_text(rendered));
    for (int64_t i = 0; i < t.tokens.n; i++)
        cJSON_AddItemToArray(ids, cJSON_CreateNumber((double)t.tokens.ids[i]));
    cJSON_AddItemToObject(json, "ids", ids);
    char *text = cJSON_PrintUnformatted(json);
    printf("%s\n", text ? text : "{}");
    free(text);
    cJSON_Delete(json);
}

/* ---- one ---- */

/* What ends within a character is held back until it goes on; what never does is U+FFFD. */
void generate_write(const char *bytes, size_t n_bytes)
{
    struct str text = { 0 };

    str_add_utf8(&text, bytes, n_bytes);
    fwrite(str_text(&text), 1, text.length, stdout);
    fflush(stdout);
    str_release(&text);
}

/* context: the prompt, once the first of what follows it is there, so that an error stands
 * alone. */
static int show(void *context, const char *bytes, size_t n_bytes)
{
    const char **prompt = context;

    printf("%s", *prompt);
    *prompt = "";
    generate_write(bytes, n_bytes);
    return ferror(stdout) != 0;
}

/* One prompt is no work for several replicas. */
static int run_one(struct generation *g, struct generate_text *t, struct err *err)
{
    const char *prompt = g->template ? "" : g->q->prompt;
    struct str own = { 0 };
    int status = 0;

    if (replica_number(g->served.replica) == 0)
        status = generator_run(g->generator, t, 1, g->q->json ? NULL : show, &prompt, err);
    if (status < 0 || replica_number(g->served.replica) != 0)
        return status;
    if (!g->q->json) {
        if (replica_is_first(g->served.replica))
            printf("%s\n", prompt);
        return 0;
    }
    add_text(g, g->q->prompt, t, &own);
    if (replica_is_first(g->served.replica))
        fwrite(str_text(&own), 1, own.length, stdout);
    str_release(&own);
    return 0;
}

int generate_one(struct generation *g, struct err *err)
{
    struct generate_text t = { 0 };
    struct str rendered = { 0 };
    int status = generate_encode(g, g->q->prompt, &t.tokens, &rendered, err);

    if (!status && g->q->print_prompt)
        print_prompt(g, &rendered, &t.tokens);
    else if (!status && g->generator)
        status = run_one(g, &t, err);
    str_release(&rendered);
    generate_text_release(&t);
    return status;
}

/* ---- many ---- */

/* Before the first is continued. */
static int check_prompts(const char *path, const char *data, size_t n_bytes, struct err *err)
{
    const unsigned char *bytes = (const unsigned char *)data;
    long long line = 1;
    size_t begin = 0;

    for (size_t at = 0; at < n_bytes;) {
        int length = bytes[at] ? str_utf8_length(bytes + at, n_bytes - at) : 0;

        if (!length)
            return err_set(err, ERR_DATA, "%s:%lld: byte %zu (0x%02x) is not valid UTF-8", path,
                           line, at - begin, bytes[at]);
        if (bytes[at] == '\n') {
            line++;
            begin = at + 1;
        }
        at += (size_t)length;
    }
    return 0;
}

/* The fields of a message beside role and content, as JSON; NULL for none. Yours to free. */
static char *other_fields(const cJSON *message)
{
    cJSON *copy = cJSON_Duplicate(message, 1);
    char *text = NULL;

    cJSON_DeleteItemFromObjectCaseSensitive(copy, "role");
    cJSON_DeleteItemFromObjectCaseSensitive(copy, "content");
    if (copy && copy->child)
        text = cJSON_PrintUnformatted(copy);
    cJSON_Delete(copy);
    return text;
}

static int read_message(const cJSON *json, struct chat_message *out, struct err *err)
{
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(json, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(json, "content");

    if (!cJSON_IsString(role))
        return err_set(err, ERR_DATA, "a message without \"role\"");
    if (content && !cJSON_IsString(content) && !cJSON_IsNull(content))
        return err_set(err, ERR_DATA, "a message whose \"content\" is not a string");
    *out = (struct chat_message){ role->valuestring,
                                  cJSON_IsString(content) ? content->valuestring : NULL,
                                  other_fields(json) };
    return 0;
}

static int encode_messages(struct generation *g, const cJSON *list, struct file_prompt *prompt,
                           struct str *rendered, struct err *err)
{
    int n = cJSON_GetArraySize(list), first = g->q->system ? 1 : 0, at = first, status = 0;
    const cJSON *item;

    if (!g->template)
        return err_set(err, ERR_CONFIG, "messages need --chat");
    if (n < 1 || n > MESSAGES_MAX)
        return err_set(err, ERR_DATA, "%d messages, not 1 to %d", n, MESSAGES_MAX);
    struct chat_message *messages = calloc((size_t)n + 1, sizeof *messages);
    if (!messages)
        return err_set(err, ERR_DEVICE, "out of host memory");
    if (first)
        messages[0] = (struct chat_message){ "system", g->q->system, NULL };
    cJSON_ArrayForEach(item, list) if (!status) status = read_message(item, &messages[at++], err);
    if (!status)
        status =
            generate_encode_messages(g, messages, n + first, &prompt->out.tokens, rendered, err);
    for (int i = first; i < at; i++)
        free((void *)(uintptr_t)messages[i].fields);
    free(messages);
    return status;
}

static int read_json_prompt(struct generation *g, const char *line, struct file_prompt *prompt,
                            struct str *rendered, struct err *err)
{
    cJSON *json = cJSON_Parse(line);
    const cJSON *messages =
        cJSON_IsArray(json) ? json : cJSON_GetObjectItemCaseSensitive(json, "messages");
    const cJSON *text =
        cJSON_IsString(json) ? json : cJSON_GetObjectItemCaseSensitive(json, "prompt");
    int status;

    if (str_has_json_nul(line, strlen(line)))
        status = err_set(err, ERR_DATA, "a string with a NUL byte (\\u0000) is not supported");
    else if (cJSON_IsArray(messages))
        status = encode_messages(g, messages, prompt, rendered, err);
    else if (cJSON_IsString(text))
        status = generate_encode(g, text->valuestring, &prompt->out.tokens, rendered, err);
    else
        status = err_set(
            err, ERR_DATA,
            "not a JSON string, {\"prompt\": ...}, a list of messages or {\"messages\": [...]}");
    if (!status)
        prompt->text =
            strdup(cJSON_IsString(text) && !cJSON_IsArray(messages) ? text->valuestring
                                                                    : str_text(rendered));
    cJSON_Delete(json);
    return status;
}

static int read_prompt(struct generation *g, const char *line, int64_t number,
                       struct file_prompt *prompt, struct err *err)
{
    struct str rendered = { 0 };
    int status = 0;

    memset(prompt, 0, sizeof *prompt);
    if (str_ends_with(g->q->prompts, ".jsonl")) {
        status = read_json_prompt(g, line, prompt, &rendered, err);
    } else {
        status = generate_encode(g, line, &prompt->out.tokens, &rendered, err);
        prompt->text = strdup(line);
    }
    if (status < 0)
        status = err_add(err, "%s:%lld", g->q->prompts, (long long)number);
    else if (!prompt->text)
        status = err_set(err, ERR_DEVICE, "out of host memory");
    else if (g->q->print_prompt)
        print_prompt(g, &rendered, &prompt->out.tokens);
    str_release(&rendered);
    return status;
}

static void drop_prompts(struct file_prompt *prompts, int n)
{
    for (int i = 0; i < n; i++) {
        generate_text_release(&prompts[i].out);
        free(prompts[i].text);
    }
}

static int run_batch(struct generation *g, struct file_prompt *prompts, int n, int64_t first,
                     struct str *out, struct err *err)
{
    struct generate_text texts[GENERATE_BATCH_MAX];

    for (int i = 0; i < n; i++) {
        texts[i] = prompts[i].out;
        texts[i].name = (uint64_t)(first + i);
    }
    int status = generator_run(g->generator, texts, n, NULL, NULL, err);
    for (int i = 0; i < n; i++) {
        if (!status)
            add_text(g, prompts[i].text, &texts[i], out);
        prompts[i].out = texts[i];
    }
    return status;
}

/* A file of prompts that is being read. */
struct prompt_file {
    char *data, *rest;
    int64_t number; /* of the line read last */
    int64_t n;      /* prompts so far */
};

static int open_prompts(const struct generation *g, struct prompt_file *file, struct err *err)
{
    size_t n_bytes;

    *file = (struct prompt_file){ 0 };
    if (file_read(g->q->prompts, FILE_BYTES_MAX, ERR_DATA, &file->data, &n_bytes, err) < 0)
        return -1;
    file->rest = file->data;
    return check_prompts(g->q->prompts, file->data, n_bytes, err);
}

/* At most a batch. Returns how many; 0 at the end; -1 with nothing left to drop. */
static int read_batch(struct generation *g, struct prompt_file *file, struct file_prompt *prompts,
                      struct err *err)
{
    const char *line;
    int n = 0;

    while (n < g->q->batch && (line = strsep(&file->rest, "\n"))) {
        file->number++;
        if (!*line)
            continue;
        int status = read_prompt(g, line, file->number, &prompts[n++], err);
        if (status < 0) {
            drop_prompts(prompts, n);
            return -1;
        }
    }
    file->n += n;
    return n;
}

/* A batch for each replica, read by all. Returns 1 if there was any, 0 at the end, or -1. */
static int run_round(struct generation *g, struct prompt_file *file, struct err *err)
{
    const struct replica *replica = g->served.replica;
    struct file_prompt prompts[GENERATE_BATCH_MAX];
    struct str own = { 0 };
    int n = 1, status = 0, any = 0;

    for (int r = 0; r < replica_count(replica) && n > 0 && !status; r++) {
        n = read_batch(g, file, prompts, err);
        if (n < 0)
            status = -1;
        else if (n > 0 && r == replica_number(replica) && g->generator)
            status = run_batch(g, prompts, n, file->n - n, &own, err);
        drop_prompts(prompts, max_int(n, 0));
        any |= n > 0;
    }
    if (!status && g->generator)
        status = print_all(g, &own, err);
    str_release(&own);
    return status < 0 ? -1 : any;
}

int generate_file(struct generation *g, struct err *err)
{
    struct prompt_file file;
    int status = open_prompts(g, &file, err) < 0 ? -1 : 1;

    while (status > 0)
        status = run_round(g, &file, err);
    if (!status && file.n == 0)
        status = err_set(err, ERR_DATA,
                         "%s has no prompts (hint: one string or {\"prompt\": \"...\"} per line)",
                         g->q->prompts);
    free(file.data);
    return status;
}

int generate_try(struct generation *g, struct err *err)
{
    return g->q->prompt ? generate_one(g, err) : generate_file(g, err);
}
