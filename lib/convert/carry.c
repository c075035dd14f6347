/*
 * carry.c - what lies beside the weights
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "convert/convert_impl.h"

#define CARRIED_MAX_BYTES ((size_t)256 << 20)
#define TEMPLATES "additional_chat_templates"

/* Tokenizers, chat templates, what generation begins with, licences, and the code of families that
 * transformers lacks, which is only copied. No weights, and no config.json, which is made. */
static int is_carried(const char *name, int with_config)
{
    static const char *const names[] = {
        "generation_config.json",   "special_tokens_map.json", "added_tokens.json", "merges.txt",
        "preprocessor_config.json", "processor_config.json",
    };
    static const char *const beginnings[] = {
        "tokenizer", "tokenization", "vocab.", "chat_template",
        "README",    "LICEN",        "NOTICE", "USE_POLICY",
    };
    static const char *const endings[] = { ".model", ".tiktoken", ".jinja", ".py", ".vocab" };

    if (!strcmp(name, "config.json"))
        return with_config;
    if (*name == '.' || str_ends_with(name, ".safetensors"))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return 1;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (str_starts_with(name, beginnings[i]))
            return 1;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (str_ends_with(name, endings[i]))
            return 1;
    return 0;
}

static int carry_file(const char *from, const char *to, const char *name, struct err *err)
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
static int carry_listed(const char *from, const char *to, int with_config, struct err *err)
{
    DIR *dir = opendir(from);
    struct arena arena = { 0 };
    struct dirent *entry;
    int status = 0;

    if (!dir)
        return err_set_errno(err, ERR_DATA, "%s", from);
    while (!status && (entry = readdir(dir)))
        if (is_carried(entry->d_name, with_config) &&
            !file_is_folder(arena_printf(&arena, "%s/%s", from, entry->d_name)))
            status = carry_file(from, to, entry->d_name, err);
    closedir(dir);
    arena_release(&arena);
    return status;
}

/* transformers keeps a model's further templates in a folder. */
int carry_files(const char *from, const char *to, int with_config, struct err *err)
{
    struct arena arena = { 0 };
    const char *inner = arena_printf(&arena, "%s/" TEMPLATES, from);
    const char *outer = arena_printf(&arena, "%s/" TEMPLATES, to);
    int status = carry_listed(from, to, with_config, err);

    if (!status && file_is_folder(inner))
        status = file_make_folder(outer, err) < 0 || carry_listed(inner, outer, 0, err) < 0 ||
                         file_sync_folder(outer, err) < 0
                     ? -1
                     : 0;
    arena_release(&arena);
    return status;
}

int carry_config(const char *from, const char *to, const struct hf_config_changes *changes,
                 struct err *err)
{
    struct str path = { 0 }, text = { 0 };
    char *data = NULL;
    size_t n_bytes = 0;

    str_printf(&path, "%s/config.json", from);
    int status = file_read(str_text(&path), HF_CONFIG_MAX_BYTES, ERR_DATA, &data, &n_bytes, err);
    if (!status && changes->dtype < 0 && !changes->vocab_size && !changes->is_plain &&
        !changes->is_untied)
        str_add_bytes(&text, data, n_bytes);
    else if (!status)
        status = hf_config_print_changed(data, n_bytes, changes, &text, err);
    str_clear(&path);
    str_printf(&path, "%s/config.json", to);
    if (!status)
        status = file_write(str_text(&path), str_text(&text), text.length, err);
    free(data);
    str_release(&path);
    str_release(&text);
    return status;
}
