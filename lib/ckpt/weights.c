/*
 * weights.c - opening either
 */
#include "ckpt/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/halves.h"
#include "base/hub.h"
#include "ckpt/convert_dtype.h"
#include "config/hf_config.h"

static int read_as_stored(const struct weights *w, const struct store_slice *slice, struct err *err)
{
    return w->store ? store_read(w->store, slice, err) : hf_folder_read(w->folder, slice, err);
}

static void round_row(const struct weights *w, enum dtype dtype, void *to, const float *from,
                      int64_t n)
{
    if (dtype == DTYPE_BF16 && w->half_away)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = halves_upper(from[i]);
    else
        convert(dtype, to, DTYPE_F32, from, n);
}

/* In fp32, then rounded. */
static int read_rounded(const struct weights *w, const struct store_slice *slice, bool is_sum,
                        struct err *err)
{
    int64_t rows = slice->row_end - slice->row_begin, cols = slice->col_end - slice->col_begin;
    int64_t stride = slice->stride ? slice->stride : cols;
    struct store_slice sum = *slice;

    sum.dtype = DTYPE_F32;
    sum.stride = 0;
    sum.data = malloc((size_t)(rows * cols) * sizeof(float) + 1);
    if (!sum.data)
        return err_set(err, ERR_DEVICE, "out of host memory");
    int status = read_as_stored(w, &sum, err);
    if (!status && is_sum)
        status = adapter_add(w->adapter, &sum, err);
    for (int64_t row = 0; row < rows && !status; row++)
        round_row(w, slice->dtype,
                  (unsigned char *)slice->data + row * stride * (int64_t)dtype_bytes(slice->dtype),
                  (const float *)sum.data + row * cols, cols);
    free(sum.data);
    return status;
}

const struct store_slice *weights_stored(const struct weights *w, const char *name)
{
    const struct store_slice *average = NULL;
    struct arena arena = { 0 };

    if (w->is_average)
        average = store_find(w->store, arena_printf(&arena, "%s" WEIGHTS_AVERAGE, name));
    arena_release(&arena);
    return average ? average : store_find(w->store, name);
}

int weights_use_average(struct weights *w, struct err *err)
{
    size_t n_suffix = strlen(WEIGHTS_AVERAGE);

    for (int i = 0; w->store && i < store_n_tensors(w->store); i++) {
        const char *name = store_tensor(w->store, i)->name;
        size_t length = strlen(name);

        if (length <= n_suffix || strcmp(name + length - n_suffix, WEIGHTS_AVERAGE) != 0)
            continue;
        w->is_average = true;
        return 0;
    }
    return err_set(err, ERR_DATA,
                   "there is no moving average of weights (hint: train.ema of a job, such as "
                   "0.999, makes one)");
}

static int read_base(const struct weights *w, const struct store_slice *slice, struct err *err)
{
    const struct store_slice *stored =
        w->half_away || w->is_average ? weights_stored(w, slice->name) : NULL;
    struct store_slice from = *slice;

    if (stored)
        from.name = stored->name;
    if (stored && w->half_away && stored->dtype == DTYPE_F32 && slice->dtype == DTYPE_BF16)
        return read_rounded(w, &from, false, err);
    return read_as_stored(w, &from, err);
}

int weights_read(const struct weights *w, const struct store_slice *slice, struct err *err)
{
    if (!w->adapter)
        return read_base(w, slice, err);
    if (tuning_is_adapter(slice->name))
        return adapter_overlay(w->adapter, slice, err);
    /* Tables that grew are larger there than the base's. */
    if (adapter_has_all(w->adapter, slice->name))
        return adapter_overlay(w->adapter, slice, err);
    if (w->is_merged && adapter_changes(w->adapter, slice->name))
        return read_rounded(w, slice, true, err);
    if (read_base(w, slice, err) < 0)
        return -1;
    return adapter_has(w->adapter, slice->name) ? adapter_overlay(w->adapter, slice, err) : 0;
}

int weights_adapt(struct weights *w, const char *path, const char *family,
                  const struct model_spec *spec, struct err *err)
{
    CHECK(!w->adapter);
    return adapter_open(&w->adapter, path, family, spec, err);
}

int weights_open(struct weights *weights, const char *path, const struct model_spec *spec,
                 struct arena *arena, struct err *err)
{
    *weights = (struct weights){ 0 };
    if (hf_folder_is(path)) {
        const char *family = hf_config_family(path, arena, err);

        return family ? hf_folder_open(&weights->folder, path, family, spec, err) : -1;
    }
    if (hub_is_name(path))
        return hf_folder_refuse(path, err);
    const char *newest = store_newest(path, arena, err);
    return newest ? store_open(&weights->store, newest, err) : -1;
}

void weights_close(struct weights *weights)
{
    if (weights->store)
        store_close(weights->store);
    hf_folder_close(weights->folder);
    adapter_close(weights->adapter);
    *weights = (struct weights){ 0 };
}
