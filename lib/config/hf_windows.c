/*
 * hf_windows.c - sliding windows of attention, from the keys of a config.json
 *
 * A job has one window, the first layer that uses it, and a period after which one layer has full
 * attention again. config.json spells this by sliding_window, use_sliding_window, max_window_layers
 * and, in transformers 5, a list of the kind of each layer (layer_types). A list that is not such a
 * pattern is refused.
 */
#include <string.h>

#include "config/hf_families_impl.h"

/* sliding_window; absent: 4096, null or 0: none. Whether there is one. */
int hf_take_window(struct hf_reader *h)
{
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(h->json, "sliding_window");
    const char *text = window ? hf_scalar_text(h, window) : "4096";

    hf_keys_add(&h->keys, "sliding_window");
    if (cJSON_IsNull(window) || (text && !strcmp(text, "0")))
        return 0;
    if (text)
        hf_set(h, "model.window", text, !cJSON_IsString(window));
    else
        hf_refuse(h, "sliding_window is a list or an object");
    return 1;
}

/* Whether a layer slides, by its kind in layer_types; -1 after a refusal. */
static int slides(struct hf_reader *h, const cJSON *type, int layer)
{
    const char *kind = cJSON_IsString(type) ? type->valuestring : "the kind";

    if (!strcmp(kind, "sliding_attention") || !strcmp(kind, "full_attention"))
        return *kind == 's';
    hf_refuse(h,
              "layer_types: %.64s of layer %d is not built yet (hint: full_attention, "
              "sliding_attention)",
              kind, layer);
    return -1;
}

/*
 * The first layer with a window, by transformers 5's list of every layer's kind, and of which
 * period those behind it are that have none (0: there are none). n_layers where none has one, -1
 * after a refusal.
 */
static int first_with_window(struct hf_reader *h, const cJSON *types, int *period)
{
    int n_layers = h->job->job->model.n_layers, n = 0, first = n_layers;
    const cJSON *type;

    *period = 0;
    cJSON_ArrayForEach(type, types)
    {
        int has_window = slides(h, type, n), place = n - first + 1;

        if (has_window < 0)
            return -1;
        if (has_window && first > n)
            first = n;
        else if (!has_window && first < n && !*period)
            *period = place;
        else if (first < n && has_window != (!*period || place % *period != 0)) {
            hf_refuse(
                h,
                "layer_types: %s of layer %d is not built yet (hint: from the first layer with "
                "sliding_attention on, every N-th layer may have full_attention, or none)",
                type->valuestring, n);
            return -1;
        }
        n++;
    }
    if (!h->failed && n != n_layers) {
        hf_refuse(h, "layer_types has %d kinds, num_hidden_layers is %d", n, n_layers);
        return -1;
    }
    return first;
}

/* Qwen's, of layers from max_window_layers on, or as layer_types says. */
void hf_take_layer_windows(struct hf_reader *h, int has_windows, int first)
{
    const cJSON *types = hf_key(h, "layer_types"), *max;
    int windows = hf_flag(h, "use_sliding_window", has_windows) && hf_take_window(h), period = 0;

    hf_keys_add(&h->keys, "sliding_window|max_window_layers");
    if (cJSON_IsArray(types)) {
        first = first_with_window(h, types, &period);
    } else {
        max = hf_member(h->json, "max_window_layers");
        double n = max ? cJSON_GetNumberValue(max) : first;
        first = n >= 0 && n < h->job->job->model.n_layers ? (int)n : h->job->job->model.n_layers;
    }
    if (first < 0)
        return;
    if (first == h->job->job->model.n_layers)
        hf_set(h, "model.window", "none", 1);
    else if (windows) {
        hf_set(h, "model.window_first_layer", arena_printf(h->job->arena, "%d", first), 1);
        if (period)
            hf_set(h, "model.window_period", arena_printf(h->job->arena, "%d", period), 1);
    } else if (types)
        hf_refuse(h, "layer_types has sliding_attention, but use_sliding_window is false or "
                     "sliding_window null");
}

/*
 * Windows by the words of families that lmtrain reads otherwise: a switch that turns them off, and
 * layer_types that say what sliding_window already did.
 */
void hf_take_uniform_windows(struct hf_reader *h)
{
    const cJSON *types = hf_member(h->json, "layer_types"), *type;
    int window = h->job->job->model.window;

    if (!window && cJSON_IsFalse(hf_member(h->json, "use_sliding_window")))
        hf_keys_add(&h->keys, "use_sliding_window|sliding_window|max_window_layers");
    cJSON_ArrayForEach(type, types)
    {
        if (!cJSON_IsString(type) ||
            strcmp(type->valuestring, window ? "sliding_attention" : "full_attention") != 0)
            return;
    }
    hf_keys_add(&h->keys, "layer_types");
}
