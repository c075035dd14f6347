/*
 * tokenizer_open.c - which files of a folder are the tokenizer, and what kind each is
 */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hub.h"
#include "tokenizer/hf/tokenizer_reader.h"

/* Vocabulary and merges, as Hugging Face, OpenAI and Megatron call them. */
static const char *const pairs[][2] = { { "vocab.json", "merges.txt" },
                                        { "encoder.json", "vocab.bpe" },
                                        { "gpt2-vocab.json", "gpt2-merges.txt" } };
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

struct opener {
    struct str folder; /* with its "/", or "" */
    struct str file;   /* the tokenizer's, or of a pair the vocabulary */
    int pair;          /* -1: one file */
    cJSON *config;     /* tokenizer_config.json, or NULL */
    struct err *err;
};

static const char *beside(const struct opener *o, struct str *path, const char *name)
{
    str_clear(path);
    str_printf(path, "%s%s", str_text(&o->folder), name);
    return str_text(path);
}

static bool is_beside(const struct opener *o, const char *name)
{
    struct str path = { 0 };
    /* What cannot be looked at is there: reading it says what is wrong. */
    int is = faccessat(AT_FDCWD, beside(o, &path, name), F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
             (errno != ENOENT && errno != ENOTDIR);

    str_release(&path);
    return is;
}

/* ---- finding ---- */

/* The one file in the folder that ends in .tiktoken: 1, 0 if there is none, or -1. */
static int find_tiktoken(struct opener *o)
{
    DIR *dir = opendir(str_text(&o->folder));
    int n = 0;

    if (!dir)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (str_ends_with(entry->d_name, ".tiktoken") && n++ == 0)
            beside(o, &o->file, entry->d_name);
    closedir(dir);
    return n < 2 ? n
                 : err_set(o->err, ERR_DATA, "%s has %d files *.tiktoken: give one of them",
                           str_text(&o->folder), n);
}

static int find_in_folder(struct opener *o)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.model" };
    static const char *const others[] = { "spiece.model", "sentencepiece.bpe.model" };

    for (int i = 0; i < 2; i++)
        if (is_beside(o, names[i])) {
            beside(o, &o->file, names[i]);
            return 0;
        }
    int n = find_tiktoken(o);
    if (n != 0)
        return n < 0 ? -1 : 0;
    for (int i = 0; i < 2; i++)
        if (is_beside(o, others[i])) {
            beside(o, &o->file, others[i]);
            return 0;
        }
    for (int i = 0; i < N_PAIRS; i++)
        if (is_beside(o, pairs[i][0]) && is_beside(o, pairs[i][1])) {
            o->pair = i;
            beside(o, &o->file, pairs[i][0]);
            return 0;
        }
    if (is_beside(o, "vocab.txt"))
        return err_set(o->err, ERR_DATA, "%svocab.txt: a WordPiece tokenizer is not supported",
                       str_text(&o->folder));
    return err_set(o->err, ERR_DATA,
                   "%stokenizer.json is not there, nor tokenizer.model, *.tiktoken, or vocab.json "
                   "and merges.txt",
                   str_text(&o->folder));
}

static int find(struct opener *o, const char *path)
{
    const char *slash = strrchr(path, '/');
    char hint[HUB_HINT_MAX];

    o->pair = -1;
    if (file_is_folder(path)) {
        str_printf(&o->folder, "%s%s", path, str_ends_with(path, "/") ? "" : "/");
        return find_in_folder(o);
    }
    if (hub_is_name(path))
        return err_set(o->err, ERR_DATA, "%s is not a file or folder here%s", path,
                       hub_hint(hint, sizeof hint, path, HUB_MODEL));
    str_add_bytes(&o->folder, path, slash ? (size_t)(slash - path) + 1 : 0);
    str_add(&o->file, path);
    const char *name = slash ? slash + 1 : path;
    for (int i = 0; i < N_PAIRS; i++)
        if (strcmp(name, pairs[i][0]) == 0 || strcmp(name, pairs[i][1]) == 0) {
            o->pair = i;
            beside(o, &o->file, pairs[i][0]);
        }
    return 0;
}

bool tokenizer_is_in(const char *path)
{
    struct err ignored;
    struct opener o = { .err = &ignored };
    int is = file_is_folder(path) && find(&o, path) == 0;

    str_release(&o.folder);
    str_release(&o.file);
    return is;
}

const char *tokenizer_file_name(const char *path, const char **other)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    *other = NULL;
    for (int i = 0; i < N_PAIRS; i++)
        for (int k = 0; k < 2; k++)
            if (strcmp(name, pairs[i][k]) == 0) {
                *other = pairs[i][!k];
                return pairs[i][k];
            }
    if (str_ends_with(name, ".tiktoken"))
        return name;
    return str_ends_with(name, ".json") ? "tokenizer.json" : "tokenizer.model";
}

/* ---- reading ---- */

static int read_file(const char *path, char **data, size_t *n_bytes, struct err *err)
{
    return file_read(path, TOKENIZER_JSON_BYTES_MAX, ERR_DATA, data, n_bytes, err);
}

/* A JSON file of the folder; *root is NULL if it is not there. */
static int read_side(struct opener *o, const char *name, cJSON **root)
{
    struct str path = { 0 };
    size_t n_bytes;
    char *json;
    int rc = 0;

    *root = NULL;
    if (file_exists(beside(o, &path, name)) &&
        (rc = read_file(str_text(&path), &json, &n_bytes, o->err)) == 0) {
        *root = tokenizer_parse_object(str_text(&path), json, n_bytes, o->err);
        rc = *root ? 0 : -1;
        free(json);
    }
    str_release(&path);
    return rc;
}

/* By what a file begins with: .model files have all kinds of endings, and Llama-3's is of ranks. */
static bool is_json(const char *path, const char *data)
{
    return str_ends_with(path, ".json") || data[strspn(data, " \t\r\n")] == '{';
}

static int read_one(struct opener *o, struct tokenizer **out)
{
    const char *path = str_text(&o->file);
    size_t n_bytes;
    char *data;

    if (read_file(path, &data, &n_bytes, o->err) < 0)
        return -1;
    int rc;
    if (is_json(path, data))
        rc = tokenizer_parse(out, path, data, n_bytes, o->err);
    else if (str_ends_with(path, ".tiktoken") || tokenizer_is_tiktoken(data, n_bytes))
        rc = tokenizer_parse_tiktoken(out, path, data, n_bytes, o->config, o->err);
    else
        rc = tokenizer_parse_spm(out, path, data, n_bytes, o->err);
    free(data);
    return rc;
}

static int read_pair(struct opener *o, struct tokenizer **out)
{
    struct str path = { 0 };
    char *vocab = NULL, *merges = NULL;
    size_t n_vocab = 0, n_merges = 0;
    cJSON *map = NULL, *added = NULL;
    int rc = read_file(str_text(&o->file), &vocab, &n_vocab, o->err);

    if (rc == 0)
        rc = read_file(beside(o, &path, pairs[o->pair][1]), &merges, &n_merges, o->err);
    if (rc == 0)
        rc = read_side(o, "special_tokens_map.json", &map);
    if (rc == 0)
        rc = read_side(o, "added_tokens.json", &added);
    struct tokenizer_side side = { o->config, map, added };
    if (rc == 0)
        rc = tokenizer_parse_merges(out, str_text(&o->file), vocab, n_vocab, merges, n_merges,
                                    &side, o->err);
    cJSON_Delete(map);
    cJSON_Delete(added);
    free(vocab);
    free(merges);
    str_release(&path);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct err *err)
{
    struct opener o = { .err = err };
    struct tokenizer *tokenizer = NULL;
    struct str config = { 0 };
    int rc = find(&o, path);

    if (rc == 0)
        rc = read_side(&o, "tokenizer_config.json", &o.config);
    if (rc == 0)
        rc = o.pair >= 0 ? read_pair(&o, &tokenizer) : read_one(&o, &tokenizer);
    if (rc == 0 && o.config)
        rc = tokenizer_read_config(tokenizer, beside(&o, &config, "tokenizer_config.json"),
                                   o.config, err);
    if (rc == 0)
        *out = tokenizer;
    else
        tokenizer_close(tokenizer);
    cJSON_Delete(o.config);
    str_release(&config);
    str_release(&o.folder);
    str_release(&o.file);
    return rc;
}
