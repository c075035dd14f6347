/*
 * tokenizer_extend.c - tokens put into the files' own text, so that all else stays byte for byte
 */
#include "tokenizer/hf/tokenizer_extend.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/str.h"
#include "tokenizer/hf/tokenizer_reader.h"

#define TOKEN_BYTES_MAX 1024

struct extending {
    struct arena arena;
    const char *folder;
    const char **news; /* those that are not there yet */
    int n, first;      /* id of the first */
    struct err *err;
};

static const char *beside(struct extending *e, const char *name)
{
    return arena_printf(&e->arena, "%s/%s", e->folder, name);
}

/* ---- where in a file's text ---- */

/* Behind the string that begins at text[at] with a quote. */
static size_t behind_string(const char *text, size_t at)
{
    for (at++; text[at] && text[at] != '"'; at++)
        at += text[at] == '\\' && text[at + 1];
    return text[at] ? at + 1 : at;
}

/* Behind the value at text[at], of JSON that is known to parse. */
static size_t behind_value(const char *text, size_t at)
{
    int depth = 0;

    do {
        at += strspn(text + at, " \t\r\n");
        if (text[at] == '"') {
            at = behind_string(text, at);
        } else if (text[at] == '{' || text[at] == '[') {
            depth++;
            at++;
        } else if (text[at] == '}' || text[at] == ']') {
            depth--;
            at++;
        } else if (text[at] == ',' || text[at] == ':') {
            at++;
        } else {
            at += strcspn(text + at, " \t\r\n,:{}[]\"");
        }
    } while (depth > 0 && text[at]);
    return at;
}

/* Where the value of a key of the outermost object begins; 0: it has none of that name. */
static size_t find_value(const char *text, const char *key)
{
    size_t at = strspn(text, " \t\r\n"), length = strlen(key);

    for (at++; text[at] && text[at] != '}';) {
        at += strspn(text + at, " \t\r\n,");
        if (text[at] != '"')
            return 0;
        size_t end = behind_string(text, at);
        bool is_it = end - at == length + 2 && !memcmp(text + at + 1, key, length);
        at = end + strspn(text + end, " \t\r\n:");
        if (is_it)
            return at;
        at = behind_value(text, at);
        at += strspn(text + at, " \t\r\n");
    }
    return 0;
}

/* A JSON string of UTF-8. */
static void print_string(struct str *out, const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    char *printed = cJSON_PrintUnformatted(item);

    CHECK(printed);
    str_add(out, printed);
    free(printed);
    cJSON_Delete(item);
}

/* The file's text, which is known to be an object; a 0 byte in it would end it before its end. */
static char *read_text(struct extending *e, const char *path)
{
    char *text;
    size_t n_bytes;

    if (file_read(path, TOKENIZER_JSON_BYTES_MAX, ERR_DATA, &text, &n_bytes, e->err) < 0)
        return NULL;
    cJSON *root = tokenizer_parse_object(path, text, n_bytes, e->err);
    cJSON_Delete(root);
    if (root && strlen(text) == n_bytes)
        return text;
    if (root)
        err_set(e->err, ERR_DATA, "%s has a 0 byte", path);
    free(text);
    return NULL;
}

/* The text with `more` at `at`. */
static int insert(struct extending *e, const char *path, const char *text, size_t at,
                  const char *more)
{
    struct str out = { 0 };

    str_add_bytes(&out, text, at);
    str_add(&out, more);
    str_add(&out, text + at);
    int status = file_write(path, str_text(&out), out.length, e->err);
    str_release(&out);
    return status;
}

/* ---- both kinds ---- */

static int extend_json(struct extending *e)
{
    const char *path = beside(e, "tokenizer.json");
    struct str more = { 0 };
    char *text = read_text(e, path);

    if (!text)
        return -1;
    size_t begin = find_value(text, "added_tokens"), at;
    bool is_list = begin && text[begin] == '[';
    if (is_list)
        at = behind_value(text, begin) - 1;
    else if (begin) /* null */
        at = begin;
    else
        at = strspn(text, " \t\r\n") + 1;
    bool is_first = !is_list || begin + 1 + strspn(text + begin + 1, " \t\r\n") == at;
    if (!begin)
        str_add(&more, "\n  \"added_tokens\": ");
    if (!is_list)
        str_add(&more, "[");
    for (int i = 0; i < e->n; i++) {
        str_printf(&more, "%s\n    {\"id\": %d, \"content\": ", i || !is_first ? "," : "",
                   e->first + i);
        print_string(&more, e->news[i]);
        str_add(&more, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                       "\"normalized\": false, \"special\": false}");
    }
    if (!is_list)
        str_add(&more, begin ? "]" : "],");
    if (begin && !is_list)
        memmove(text + begin, text + begin + 4, strlen(text + begin + 4) + 1);
    int status = insert(e, path, text, at, str_text(&more));
    str_release(&more);
    free(text);
    return status;
}

/* added_tokens.json: {"TOKEN": id, ...} */
static int extend_pair(struct extending *e)
{
    const char *path = beside(e, "added_tokens.json");
    struct str more = { 0 };
    bool is_there = file_exists(path);
    char *text = is_there ? read_text(e, path) : strdup("{}");

    if (!text)
        return is_there ? -1 : err_set(e->err, ERR_DEVICE, "out of host memory");
    size_t at = behind_value(text, 0) - 1;
    size_t begin = strspn(text, " \t\r\n") + 1;
    bool is_empty = begin + strspn(text + begin, " \t\r\n") == at;
    for (int i = 0; i < e->n; i++) {
        str_add(&more, i || !is_empty ? ",\n  " : "\n  ");
        print_string(&more, e->news[i]);
        str_printf(&more, ": %d", e->first + i);
    }
    str_add(&more, "\n");
    int status = insert(e, path, text, at, str_text(&more));
    str_release(&more);
    free(text);
    return status;
}

/* Which tokens are new, and behind which id they come. */
static int list_news(struct extending *e, const char *const *tokens, int n)
{
    struct tokenizer *tokenizer;

    if (tokenizer_open(&tokenizer, e->folder, e->err) < 0)
        return -1;
    e->first = tokenizer_vocab_size(tokenizer);
    e->news = arena_array(&e->arena, const char *, n + 1);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(tokens[i]);
        bool is_there = tokenizer_find(tokenizer, tokens[i]) >= 0;

        for (int k = 0; k < e->n; k++)
            is_there |= !strcmp(e->news[k], tokens[i]);
        if (length == 0 || length > TOKEN_BYTES_MAX ||
            tokenizer_utf8_end(tokens[i], length) < length) {
            tokenizer_close(tokenizer);
            return err_set(e->err, ERR_CONFIG,
                           "token %d to be added is %s; expected UTF-8 of 1 to %d bytes", i + 1,
                           length == 0                ? "empty"
                           : length > TOKEN_BYTES_MAX ? "too long"
                                                      : "not valid UTF-8",
                           TOKEN_BYTES_MAX);
        }
        if (!is_there)
            e->news[e->n++] = tokens[i];
    }
    tokenizer_close(tokenizer);
    return 0;
}

/* The files are read again to check that the tokens are found. */
static int check(struct extending *e)
{
    struct tokenizer *tokenizer;
    int status = 0;

    if (tokenizer_open(&tokenizer, e->folder, e->err) < 0)
        return -1;
    for (int i = 0; i < e->n && !status; i++)
        if (tokenizer_find(tokenizer, e->news[i]) != e->first + i)
            status =
                err_set(e->err, ERR_DATA, "%s: '%s' cannot be added to it", e->folder, e->news[i]);
    tokenizer_close(tokenizer);
    return status;
}

static int extend(struct extending *e)
{
    if (file_exists(beside(e, "tokenizer.json")))
        return extend_json(e);
    if (file_exists(beside(e, "vocab.json")) && file_exists(beside(e, "merges.txt")))
        return extend_pair(e);
    return err_set(
        e->err, ERR_DATA,
        "%s: tokens can be added to tokenizer.json, or next to vocab.json and merges.txt "
        "(hint: transformers' save_pretrained makes a tokenizer.json of others)",
        e->folder);
}

int tokenizer_extend(const char *folder, const char *const *tokens, int n, int *n_added,
                     struct err *err)
{
    struct extending e = { .folder = folder, .err = err };
    int status = list_news(&e, tokens, n);

    if (!status && e.n > 0 && (extend(&e) < 0 || check(&e) < 0))
        status = -1;
    *n_added = e.n;
    arena_release(&e.arena);
    return status;
}
