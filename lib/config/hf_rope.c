/*
 * hf_rope.c - rotary positions from a config.json
 */
#include <math.h>
#include <string.h>

#include "config/hf_reader_impl.h"

void hf_take_rope_number(struct hf_reader *h, const cJSON *from, const char *theirs,
                         const char *ours, const char *initial)
{
    const cJSON *item = hf_member(from, theirs);
    const char *text = cJSON_IsNumber(item) ? hf_scalar_text(h, item) : initial;

    if (item && !cJSON_IsNumber(item))
        hf_refuse(h, "rope scaling: %s is not a number", theirs);
    else if (!text)
        hf_refuse(h, "rope scaling: %s is missing", theirs);
    else
        hf_set(h, arena_printf(h->job->arena, "model.rope_scaling.%s", ours), text, 1);
}

/* Without mscale's ratio (DeepSeek) the factor is ours by default too. */
static void take_yarn_attention(struct hf_reader *h, const cJSON *from)
{
    double factor = cJSON_GetNumberValue(hf_member(from, "factor"));
    double mscale = cJSON_GetNumberValue(hf_member(from, "mscale"));
    double all_dim = cJSON_GetNumberValue(hf_member(from, "mscale_all_dim"));
    struct str text = { 0 };

    if (hf_member(from, "attention_factor") || !(mscale > 0) || !(all_dim > 0) || !(factor > 1)) {
        hf_take_rope_number(h, from, "attention_factor", "attention_factor", "auto");
        return;
    }
    field_print_float(&text, (0.1 * mscale * log(factor) + 1) / (0.1 * all_dim * log(factor) + 1));
    hf_set(h, "model.rope_scaling.attention_factor", arena_strdup(h->job->arena, str_text(&text)),
           1);
    str_release(&text);
}

static void take_scaling(struct hf_reader *h, const cJSON *from, const char *type)
{
    int yarn = !strcmp(type, "yarn"), llama3 = !strcmp(type, "llama3");

    if (!yarn && !llama3 && strcmp(type, "linear") != 0 && strcmp(type, "dynamic") != 0) {
        hf_refuse(h, "rope scaling %.64s is not built yet (hint: linear, dynamic, llama3, yarn)",
                  type);
        return;
    }
    hf_set(h, "model.rope_scaling.type", arena_strdup(h->job->arena, type), 0);
    hf_take_rope_number(h, from, "factor", "factor", NULL);
    if (llama3 || yarn)
        hf_take_rope_number(h, from, "original_max_position_embeddings", "original_max_seq_len",
                            "auto");
    if (llama3) {
        hf_take_rope_number(h, from, "low_freq_factor", "low_freq_factor", NULL);
        hf_take_rope_number(h, from, "high_freq_factor", "high_freq_factor", NULL);
    }
    if (yarn) {
        hf_take_rope_number(h, from, "beta_fast", "beta_fast", "32.0");
        hf_take_rope_number(h, from, "beta_slow", "beta_slow", "1.0");
        take_yarn_attention(h, from);
        if (cJSON_IsFalse(hf_member(from, "truncate")))
            hf_set(h, "model.rope_scaling.truncate", "false", 1);
    }
}

/* Of a head rope turns all elements. */
static void check_rotary_share(struct hf_reader *h, const cJSON *share)
{
    if (share && cJSON_GetNumberValue(share) != 1)
        hf_refuse(h, "partial_rotary_factor is not built yet (hint: 1.0)");
}

static void check_rope_keys(struct hf_reader *h, const cJSON *from)
{
    const cJSON *item;

    if (!from)
        return;
    check_rotary_share(h, hf_member(from, "partial_rotary_factor"));
    cJSON_ArrayForEach(item, from)
    {
        if (!item->string || !hf_rope_key_is_read(item->string))
            hf_refuse_key(h, "rope parameters: ", item);
    }
}

void hf_take_rope(struct hf_reader *h)
{
    const cJSON *parameters = hf_key(h, "rope_parameters");
    const cJSON *scaling = hf_key(h, "rope_scaling");
    const cJSON *theta = hf_key(h, "rope_theta");
    const cJSON *both[] = { parameters, scaling };
    int n_taken = 0;

    for (int i = 0; i < 2; i++) {
        const cJSON *type = both[i] ? hf_member(both[i], "rope_type") : NULL;

        if (both[i] && !type)
            type = hf_member(both[i], "type");
        if (type && !cJSON_IsString(type))
            hf_refuse(h, "rope scaling of an unknown kind is not built yet");
        else if (type && strcmp(type->valuestring, "default") != 0 && n_taken++ == 0)
            take_scaling(h, both[i], type->valuestring);
        else if (both[i] && i == 1 && !type)
            hf_refuse(h, "rope_scaling has no type");
    }
    if (parameters && hf_member(parameters, "rope_theta"))
        theta = hf_member(parameters, "rope_theta");
    check_rotary_share(h, hf_key(h, "partial_rotary_factor"));
    for (int i = 0; i < 2; i++)
        check_rope_keys(h, both[i]);
    const char *text = theta ? hf_scalar_text(h, theta) : "10000.0";
    if (text)
        hf_set(h, "model.rope_theta", text, 1);
    else
        hf_refuse(h, "rope_theta is not a number");
}
