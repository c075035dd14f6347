/*
 * copy_aux.c - config.json of what was converted
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "convert/convert_impl.h"

/* Where it is a word of a config.json it is that key. */
static bool says_quantized(const char *data, size_t n_bytes)
{
    static const char key[] = "\"quantization_config\"";

    return memmem(data, n_bytes, key, sizeof key - 1) != NULL;
}

int carry_config(const char *from, const char *to, const struct hf_config_changes *changes,
                 struct err *err)
{
    struct str path = { 0 }, text = { 0 };
    char *data = NULL;
    size_t n_bytes = 0;

    str_printf(&path, "%s/config.json", from);
    int status = file_read(str_text(&path), HF_CONFIG_MAX_BYTES, ERR_DATA, &data, &n_bytes, err);
    bool loses_codes = !status && changes->is_plain && says_quantized(data, n_bytes);
    if (!status && changes->dtype < 0 && !changes->vocab_size && !loses_codes &&
        !changes->is_untied && !changes->scaled)
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
