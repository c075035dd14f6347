/*
 * special_tokens.c - bos, eos and pad, by id and by name
 */
#include "weights/special_tokens.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "template/chat.h"
#include "tokenizer/tokenizer.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)

enum { BOS, EOS, PAD, N_KINDS };

static const char *const id_keys[N_KINDS] = { "bos_token_id", "eos_token_id", "pad_token_id" };
static const char *const name_keys[N_KINDS] = { "bos_token", "eos_token", "pad_token" };

/* What tokenizers that do not say it call them. */
static const char *const usual[N_KINDS][6] = {
    { "<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", NULL },
    { NULL },
    { "<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>", "<|padding|>", NULL },
};

struct special_files {
    struct arena arena;
    const char *folder;
    struct tokenizer *tokenizer; /* NULL: none */
    int ids[N_KINDS];            /* -1: none */
    const char *names[N_KINDS];
    struct err *err;
};

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *path_of(struct special_files *s, const char *name)
{
    return arena_printf(&s->arena, "%s/%s", s->folder, name);
}

/* NULL: there is none, or not a JSON object. */
static cJSON *read_object(struct special_files *s, const char *name)
{
    const char *path = path_of(s, name);
    struct err ignored;
    size_t n_bytes;
    char *text;

    if (!file_exists(path) ||
        file_read(path, FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return NULL;
    cJSON *root = cJSON_ParseWithLength(text, n_bytes);
    free(text);
    if (cJSON_IsObject(root))
        return root;
    cJSON_Delete(root);
    return NULL;
}

static int write_object(struct special_files *s, const char *name, const cJSON *root)
{
    struct str text = { 0 };
    char *printed = cJSON_Print(root);

    CHECK(printed);
    str_printf(&text, "%s\n", printed);
    free(printed);
    int status = file_write(path_of(s, name), str_text(&text), text.length, s->err);
    str_release(&text);
    return status;
}

/* "token", or {"content": "token", ...} */
static const char *name_in(const cJSON *config, const char *key)
{
    const cJSON *token = get(config, key);

    if (cJSON_IsObject(token))
        token = get(token, "content");
    return cJSON_IsString(token) ? token->valuestring : NULL;
}

static void take(struct special_files *s, int kind, const char *name)
{
    int id = name && s->ids[kind] < 0 ? tokenizer_find(s->tokenizer, name) : -1;

    if (id < 0)
        return;
    s->ids[kind] = id;
    s->names[kind] = arena_strdup(&s->arena, name);
}

/* The text of a token that is known by its id. */
static void take_id(struct special_files *s, int kind, int id)
{
    struct str text = { 0 };
    int32_t token = id;

    if (id < 0 || s->ids[kind] >= 0)
        return;
    tokenizer_decode(s->tokenizer, &token, 1, &text);
    s->ids[kind] = id;
    s->names[kind] = tokenizer_find(s->tokenizer, str_text(&text)) == id
                         ? arena_strdup(&s->arena, str_text(&text))
                         : NULL;
    str_release(&text);
}

/* tokenizer_config.json, special_tokens_map.json, what stands before a text, the usual names. */
static int special_open(struct special_files *s, const char *folder, struct err *err)
{
    *s = (struct special_files){ .folder = folder, .ids = { -1, -1, -1 }, .err = err };
    if (!tokenizer_is_in(folder))
        return 0;
    if (tokenizer_open(&s->tokenizer, folder, err) < 0)
        return -1;
    cJSON *config = read_object(s, "tokenizer_config.json");
    cJSON *map = read_object(s, "special_tokens_map.json");
    const int32_t *before, *after;
    int n_before, n_after;

    tokenizer_frame(s->tokenizer, &before, &n_before, &after, &n_after);
    for (int kind = 0; kind < N_KINDS; kind++) {
        take(s, kind, name_in(config, name_keys[kind]));
        take(s, kind, name_in(map, name_keys[kind]));
        if (kind == BOS && n_before == 1)
            take_id(s, BOS, before[0]);
        /* A config that leaves one out means that there is none. */
        for (int i = 0; !get(config, name_keys[kind]) && usual[kind][i]; i++)
            take(s, kind, usual[kind][i]);
    }
    take_id(s, EOS, tokenizer_end_of_text(s->tokenizer));
    cJSON_Delete(config);
    cJSON_Delete(map);
    return 0;
}

static void special_close(struct special_files *s)
{
    tokenizer_close(s->tokenizer);
    arena_release(&s->arena);
}

/* ---- ids ---- */

/* null too: what is missing means another id to transformers. */
static int add_ids(struct special_files *s, cJSON *root)
{
    int n = 0;

    for (int kind = 0; kind < N_KINDS; kind++) {
        if (cJSON_HasObjectItem(root, id_keys[kind]))
            continue;
        n++;
        if (s->ids[kind] >= 0)
            cJSON_AddNumberToObject(root, id_keys[kind], s->ids[kind]);
        else
            cJSON_AddNullToObject(root, id_keys[kind]);
    }
    return n;
}

/* As the first keys, so that the rest stays as it is, byte for byte. */
static int complete_config(struct special_files *s)
{
    const char *path = path_of(s, "config.json");
    cJSON *root = read_object(s, "config.json");
    struct str more = { 0 };
    size_t n_bytes, at;
    char *text;

    for (int kind = 0; root && kind < N_KINDS; kind++) {
        if (cJSON_HasObjectItem(root, id_keys[kind]))
            continue;
        str_printf(&more, "%s\n\t\"%s\":\t", more.length ? "," : "", id_keys[kind]);
        if (s->ids[kind] >= 0)
            str_printf(&more, "%d", s->ids[kind]);
        else
            str_add(&more, "null");
    }
    if (more.length && root->child)
        str_add_char(&more, ',');
    cJSON_Delete(root);
    int status =
        more.length ? file_read(path, FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, s->err) : 0;
    if (!status && more.length) {
        struct str out = { 0 };

        at = strcspn(text, "{") + 1;
        CHECK(at <= n_bytes);
        str_add_bytes(&out, text, at);
        str_add(&out, str_text(&more));
        str_add_bytes(&out, text + at, n_bytes - at);
        status = file_write(path, str_text(&out), out.length, s->err);
        str_release(&out);
        free(text);
    }
    str_release(&more);
    return status;
}

static int complete_generation(struct special_files *s)
{
    cJSON *root = read_object(s, "generation_config.json");
    int status = 0;

    if (!root && file_exists(path_of(s, "generation_config.json")))
        return 0;
    if (!root)
        root = cJSON_CreateObject();
    if (add_ids(s, root))
        status = write_object(s, "generation_config.json", root);
    cJSON_Delete(root);
    return status;
}

/* ---- names ---- */

/* A new tokenizer_config.json. With vocab.json and merges.txt its class decides how text is split:
 * no file is written then, and transformers uses the model's class. */
static cJSON *new_tokenizer_config(struct special_files *s)
{
    cJSON *root = cJSON_CreateObject();
    int is_json = file_exists(path_of(s, "tokenizer.json"));

    for (int kind = 0; kind < N_KINDS; kind++)
        if (s->names[kind] && (is_json || !file_exists(path_of(s, "merges.txt"))))
            cJSON_AddStringToObject(root, name_keys[kind], s->names[kind]);
    if (is_json) {
        cJSON_AddBoolToObject(root, "clean_up_tokenization_spaces", 0);
        cJSON_AddStringToObject(root, "tokenizer_class", "PreTrainedTokenizerFast");
    }
    return root;
}

static int complete_names(struct special_files *s)
{
    if (file_exists(path_of(s, "tokenizer_config.json")))
        return 0;
    cJSON *root = new_tokenizer_config(s);
    int status = root->child ? write_object(s, "tokenizer_config.json", root) : 0;

    cJSON_Delete(root);
    return status;
}

int special_tokens_complete(const char *folder, struct err *err)
{
    struct special_files s;
    struct err ignored;
    int status = special_open(&s, folder, &ignored);

    s.err = err;
    if (status) /* one that is not read here */
        status = 0;
    else if (complete_config(&s) < 0)
        status = -1;
    else if (s.tokenizer)
        status = complete_names(&s) < 0 || complete_generation(&s) < 0 ? -1 : 0;
    special_close(&s);
    return status;
}

/* ---- a template ---- */

static bool has_id(const cJSON *list, int id)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_IsNumber(item) && item->valuedouble == id)
            return true;
    }
    return false;
}

static void add_end(cJSON *list, int id)
{
    if (id >= 0 && !has_id(list, id))
        cJSON_AddItemToArray(list, cJSON_CreateNumber(id));
}

/* An id or a list of them. */
static void add_ends(cJSON *list, const cJSON *ends)
{
    const cJSON *item;

    if (cJSON_IsNumber(ends))
        add_end(list, ends->valueint);
    cJSON_ArrayForEach(item, ends)
    {
        if (cJSON_IsNumber(item))
            add_end(list, item->valueint);
    }
}

/* Answers end at one more token: of those that end a text the folder may know some. */
static int add_end_of_turn(struct special_files *s, int id)
{
    cJSON *root = read_object(s, "generation_config.json");
    cJSON *config = read_object(s, "config.json"), *ends = cJSON_CreateArray();

    if (!root)
        root = cJSON_CreateObject();
    add_ends(ends, get(config, "eos_token_id"));
    add_ends(ends, get(root, "eos_token_id"));
    add_end(ends, s->ids[EOS]);
    add_end(ends, id);
    for (int kind = 0; kind < N_KINDS; kind++)
        if (kind != EOS && !cJSON_HasObjectItem(root, id_keys[kind]) &&
            cJSON_IsNumber(get(config, id_keys[kind])))
            cJSON_AddNumberToObject(root, id_keys[kind], get(config, id_keys[kind])->valueint);
    cJSON_DeleteItemFromObjectCaseSensitive(root, "eos_token_id");
    cJSON_AddItemToObject(root, "eos_token_id", ends);
    int status = write_object(s, "generation_config.json", root);
    cJSON_Delete(root);
    cJSON_Delete(config);
    return status;
}

static int write_template(struct special_files *s, const char *text)
{
    cJSON *root = read_object(s, "tokenizer_config.json");

    if (!root)
        root = new_tokenizer_config(s);
    cJSON_DeleteItemFromObjectCaseSensitive(root, "chat_template");
    cJSON_AddStringToObject(root, "chat_template", text);
    int status = write_object(s, "tokenizer_config.json", root);
    cJSON_Delete(root);
    return status;
}

int special_tokens_set_template(const char *folder, const char *name, struct err *err)
{
    struct chat_template *template = NULL;
    struct str text = { 0 };
    struct special_files s;
    int status = special_open(&s, folder, err);

    if (!status)
        status = chat_template_open(&template, name, folder, err);
    if (!status)
        status = chat_template_text(name, &text, err);
    if (!status)
        status = write_template(&s, str_text(&text));
    if (!status && s.tokenizer && *chat_template_end_of_turn(template)) {
        int id = tokenizer_find(s.tokenizer, chat_template_end_of_turn(template));

        if (id >= 0 && id != s.ids[EOS])
            status = add_end_of_turn(&s, id);
    }
    chat_template_close(template);
    str_release(&text);
    special_close(&s);
    return status;
}
