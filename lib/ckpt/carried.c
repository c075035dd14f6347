/*
 * carried.c - which files belong to a model, and taking them along
 */
#include "ckpt/carried.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "ckpt/file_hash.h"

#define CARRIED_MAX_BYTES ((size_t)256 << 20)
#define TEMPLATES "additional_chat_templates"

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(name, *names))
            return true;
    return false;
}

static int begins_with(const char *name, const char *const *beginnings)
{
    for (; *beginnings; beginnings++)
        if (str_starts_with(name, *beginnings))
            return 1;
    return 0;
}

static int ends_with(const char *name, const char *const *endings)
{
    for (; *endings; endings++)
        if (str_ends_with(name, *endings))
            return 1;
    return 0;
}

static bool is_of_tokenizer(const char *name)
{
    static const char *const names[] = { "generation_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "merges.txt",
                                         "vocab.bpe",
                                         "encoder.json",
                                         "gpt2-vocab.json",
                                         "gpt2-merges.txt",
                                         NULL };
    static const char *const beginnings[] = { "tokenizer", "vocab.", "chat_template", NULL };
    static const char *const endings[] = { ".model", ".tiktoken", ".jinja", ".vocab", NULL };

    return !str_ends_with(name, ".py") &&
           (is_one_of(name, names) || begins_with(name, beginnings) || ends_with(name, endings));
}

static bool is_of_model(const char *name)
{
    static const char *const names[] = { "preprocessor_config.json", "processor_config.json",
                                         NULL };
    static const char *const beginnings[] = { "README", "LICEN", "NOTICE", "USE_POLICY", NULL };

    return is_one_of(name, names) || begins_with(name, beginnings) || str_ends_with(name, ".py");
}

static bool is_carried(const char *name, enum carried_kind kind)
{
    if (!strcmp(name, "config.json"))
        return kind == CARRIED_CONFIG;
    if (*name == '.' || str_ends_with(name, ".safetensors"))
        return false;
    return is_of_tokenizer(name) || (kind != CARRIED_TOKENIZER && is_of_model(name));
}

static int copy_file(const char *from, const char *to, const char *name, struct err *err)
{
    struct str source = { 0 }, target = { 0 };
    char *data;
    size_t n_bytes;

    str_printf(&source, "%s/%s", from, name);
    str_printf(&target, "%s/%s", to, name);
    int status = file_read(str_text(&source), CARRIED_MAX_BYTES, ERR_DATA, &data, &n_bytes, err);
    if (!status) {
        status = file_write(str_text(&target), data, n_bytes, err);
        free(data);
    }
    str_release(&source);
    str_release(&target);
    return status;
}

/* Files of a folder that are carried; a folder of that name is none. */
static int copy_listed(const char *from, const char *to, enum carried_kind kind, struct err *err)
{
    DIR *dir = opendir(from);
    struct arena arena = { 0 };
    struct dirent *entry;
    int status = 0;

    if (!dir)
        return err_set_errno(err, ERR_DATA, "%s", from);
    while (!status && (entry = readdir(dir)))
        if (is_carried(entry->d_name, kind) &&
            !file_is_folder(arena_printf(&arena, "%s/%s", from, entry->d_name)))
            status = copy_file(from, to, entry->d_name, err);
    closedir(dir);
    arena_release(&arena);
    return status;
}

/* transformers keeps a model's further templates in a folder. */
int carried_copy(const char *from, const char *to, enum carried_kind kind, struct err *err)
{
    struct arena arena = { 0 };
    const char *inner = arena_printf(&arena, "%s/" TEMPLATES, from);
    const char *outer = arena_printf(&arena, "%s/" TEMPLATES, to);
    int status = copy_listed(from, to, kind, err);

    if (!status && file_is_folder(inner))
        status = file_make_folder(outer, err) < 0 ||
                         copy_listed(inner, outer, CARRIED_TOKENIZER, err) < 0 ||
                         file_sync_folder(outer, err) < 0
                     ? -1
                     : 0;
    arena_release(&arena);
    return status;
}

int carried_remove_templates(const char *folder, struct err *err)
{
    static const char *const names[] = { "chat_template.jinja", "chat_template.json", TEMPLATES };
    struct arena arena = { 0 };
    int status = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++)
        status = file_remove_tree(arena_printf(&arena, "%s/%s", folder, names[i]), err);
    arena_release(&arena);
    return status;
}

int carried_remove_tokenizer(const char *folder, struct err *err)
{
    DIR *dir = opendir(folder);
    struct arena arena = { 0 };
    struct dirent *entry;
    int status = dir ? 0 : err_set_errno(err, ERR_FAILED, "%s", folder);

    while (dir && !status && (entry = readdir(dir)))
        if (*entry->d_name != '.' && is_of_tokenizer(entry->d_name) &&
            strcmp(entry->d_name, "generation_config.json") != 0)
            status = file_remove_tree(arena_printf(&arena, "%s/%s", folder, entry->d_name), err);
    if (dir)
        closedir(dir);
    arena_release(&arena);
    return status ? status : carried_remove_templates(folder, err);
}

bool carried_has_tokenizer(const char *folder)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer.model",         "spiece.model",
        "vocab.json",     "sentencepiece.bpe.model", "encoder.json",
        "vocab.txt",      "gpt2-vocab.json",         NULL
    };
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int has = 0;

    while (dir && !has && (entry = readdir(dir)))
        has = is_one_of(entry->d_name, names) || str_ends_with(entry->d_name, ".tiktoken");
    if (dir)
        closedir(dir);
    return has;
}

/* ---- hashes ---- */

static int hash_of(const char *path, char text[24])
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    uint64_t hash = 0;
    int status = fd < 0 ? -1 : file_hash(fd, &hash, NULL, NULL);

    if (fd >= 0)
        close(fd);
    snprintf(text, 24, "%016" PRIx64, hash);
    return status;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int carried_describe(const char *folder, struct str *out, struct err *err)
{
    struct arena arena = { 0 };
    DIR *dir = opendir(folder);
    struct dirent *entry;
    const char **names = NULL;
    int n = 0, capacity = 0, status = dir ? 0 : err_set_errno(err, ERR_FAILED, "%s", folder);
    char hash[24];

    while (dir && (entry = readdir(dir))) {
        if (*entry->d_name == '.' ||
            file_is_folder(arena_printf(&arena, "%s/%s", folder, entry->d_name)))
            continue;
        names = arena_grow(&arena, names, sizeof *names, &capacity, n + 1);
        names[n++] = arena_strdup(&arena, entry->d_name);
    }
    if (dir)
        closedir(dir);
    if (n)
        qsort(names, (size_t)n, sizeof *names, compare_names);
    str_add_char(out, '{');
    for (int i = 0; i < n && !status; i++) {
        const char *path = arena_printf(&arena, "%s/%s", folder, names[i]);

        if (hash_of(path, hash) < 0)
            status = err_set_errno(err, ERR_FAILED, "%s", path);
        str_add(out, i ? "," : "");
        json_add_string(out, names[i]);
        str_printf(out, ":\"%s\"", hash);
    }
    str_add_char(out, '}');
    arena_release(&arena);
    return status;
}

const char *carried_changed(const char *folder, const cJSON *hashes, struct arena *arena)
{
    const cJSON *item;
    char hash[24];

    cJSON_ArrayForEach(item, hashes)
    {
        /* A plain name: nothing outside the folder is looked at. */
        if (!cJSON_IsString(item) || !item->string || strchr(item->string, '/'))
            continue;
        const char *path = arena_printf(arena, "%s/%s", folder, item->string);
        if (hash_of(path, hash) < 0 || strcmp(hash, item->valuestring) != 0)
            return path;
    }
    return NULL;
}

/* ---- links ---- */

static int link_files(const char *from, const char *to, struct err *err)
{
    DIR *dir = file_make_folder(to, err) < 0 ? NULL : opendir(from);
    struct arena arena = { 0 };
    struct dirent *entry;
    int status = dir ? 0 : -1;

    while (dir && !status && (entry = readdir(dir))) {
        const char *source = arena_printf(&arena, "%s/%s", from, entry->d_name);

        if (*entry->d_name == '.' || file_is_folder(source))
            continue;
        if (link(source, arena_printf(&arena, "%s/%s", to, entry->d_name)) < 0)
            status = copy_file(from, to, entry->d_name, err);
    }
    if (dir)
        closedir(dir);
    arena_release(&arena);
    return status < 0 ? -1 : file_sync_folder(to, err);
}

int carried_link(const char *from, const char *to, struct err *err)
{
    struct arena arena = { 0 };
    const char *inner = arena_printf(&arena, "%s/" TEMPLATES, from);
    int status = 0;

    if (!file_is_folder(from))
        status = err_set(err, ERR_FAILED, "%s is missing (hint: restart the job, which creates it)",
                         from);
    else if (file_remove_tree(to, err) < 0 || link_files(from, to, err) < 0)
        status = -1;
    if (!status && file_is_folder(inner))
        status = link_files(inner, arena_printf(&arena, "%s/" TEMPLATES, to), err);
    arena_release(&arena);
    return status;
}
