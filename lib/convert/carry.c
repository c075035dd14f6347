/*
 * carry.c - what lies beside the weights
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "config/hf_config.h"
#include "convert/convert_impl.h"

#define CARRIED_MAX_BYTES ((size_t)256 << 20)

static int is_carried(const char *name, int with_config)
{
    static const char *const names[] = {
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        "preprocessor_config.json",
        "README.md",
        "LICENSE",
        "LICENSE.txt",
    };

    if (!strcmp(name, "config.json"))
        return with_config;
    /* Families that transformers lacks bring their code; here it is only copied. */
    if (str_ends_with(name, ".py") || str_ends_with(name, ".tiktoken"))
        return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
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

int carry_files(const char *from, const char *to, int with_config, struct err *err)
{
    DIR *dir = opendir(from);
    struct dirent *entry;
    int status = 0;

    if (!dir)
        return err_set_errno(err, ERR_DATA, "%s", from);
    while (!status && (entry = readdir(dir)))
        if (is_carried(entry->d_name, with_config))
            status = carry_file(from, to, entry->d_name, err);
    closedir(dir);
    return status;
}

int carry_config(const char *from, const char *to, enum dtype dtype, struct err *err)
{
    struct str path = { 0 }, text = { 0 };
    char *data = NULL;
    size_t n_bytes = 0;

    str_printf(&path, "%s/config.json", from);
    int status = file_read(str_text(&path), HF_CONFIG_MAX_BYTES, ERR_DATA, &data, &n_bytes, err);
    if (!status)
        status = hf_config_print_dtype(data, n_bytes, dtype, &text, err);
    str_clear(&path);
    str_printf(&path, "%s/config.json", to);
    if (!status)
        status = file_write(str_text(&path), str_text(&text), text.length, err);
    free(data);
    str_release(&path);
    str_release(&text);
    return status;
}
