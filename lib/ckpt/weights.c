/*
 * weights.c - opening either
 */
#include "ckpt/weights.h"

#include <string.h>

#include "config/hf_config.h"

int weights_open(struct weights *weights, const char *path, const struct model_spec *spec,
                 struct arena *arena, struct err *err)
{
    *weights = (struct weights){ 0 };
    if (hf_folder_is(path)) {
        const char *family = hf_config_family(path, arena, err);

        return family ? hf_folder_open(&weights->folder, path, family, spec, err) : -1;
    }
    const char *newest = store_newest(path, arena, err);
    return newest ? store_open(&weights->store, newest, err) : -1;
}

void weights_close(struct weights *weights)
{
    if (weights->store)
        store_close(weights->store);
    hf_folder_close(weights->folder);
    *weights = (struct weights){ 0 };
}
