/*
 * model_differences.c - see the header
 *
 * Both models lose what means nothing in them; then the table of fields compares them, so that a
 * field which comes later is compared without a line here.
 */
#include "config/model_differences.h"

#include <math.h>
#include <string.h>

#include "config/fields_impl.h"

/* The next layer from this one on that has experts; n_layers if there is none. */
static int next_with_experts(const struct model_spec *s, int layer)
{
    while (layer < s->n_layers && !model_spec_has_experts(s, layer))
        layer++;
    return layer;
}

/* Of settings that give the same layers experts, one. */
static void settle_expert_layers(struct model_spec *s)
{
    int first = next_with_experts(s, 0), second = next_with_experts(s, first + 1);

    if (first >= s->n_layers)
        return;
    s->expert_every = second < s->n_layers ? second - first : first + 1;
    s->first_dense_layers = first + 1 > s->expert_every ? first : 0;
}

static void drop_experts(struct model_spec *s)
{
    int has_dense = model_spec_n_expert_layers(s, s->n_layers) < s->n_layers;

    if (s->n_experts)
        settle_expert_layers(s);
    s->n_shared_experts = s->shared_ffn_size > 0; /* together they are one */
    if (s->n_experts && !has_dense)
        s->ffn_size = 0;
    if (!s->n_experts) {
        s->n_active_experts = s->expert_ffn_size = s->expert_every = s->router_normalize = 0;
        s->first_dense_layers = s->n_shared_experts = s->shared_ffn_size = s->router_bias = 0;
        s->router_balance = s->router_z = 0;
        s->router_scaling = 1;
        s->router_score = ROUTER_SOFTMAX;
    }
    if (!s->shared_ffn_size)
        s->shared_gate = 0;
    if (!s->n_experts || s->router_groups <= 1)
        s->router_groups = s->router_groups_kept = 0;
    if (!s->router_bias)
        s->router_bias_rate = 0;
    if (!(s->router_balance > 0))
        s->router_balance_kind = ROUTER_BALANCE_PER_LAYER;
}

/* What each kind of scaling looks at (weights/rope_tables.h). */
static struct rope_scaling_spec used_scaling(const struct model_spec *s)
{
    const struct rope_scaling_spec *r = &s->rope_scaling;
    struct rope_scaling_spec used = { .type = r->type, .factor = r->factor };

    if (r->type == ROPE_PLAIN)
        return (struct rope_scaling_spec){ 0 };
    if (r->type == ROPE_LINEAR)
        return used;
    used.original_max_seq_len = r->original_max_seq_len ? r->original_max_seq_len : s->max_seq_len;
    if (r->type == ROPE_LLAMA3) {
        used.low_freq_factor = r->low_freq_factor;
        used.high_freq_factor = r->high_freq_factor;
    }
    if (r->type == ROPE_YARN) {
        used.beta_fast = r->beta_fast;
        used.beta_slow = r->beta_slow;
        used.attention_factor = r->attention_factor;
        used.truncate = r->truncate;
    }
    return used;
}

static void drop_window(struct model_spec *s)
{
    if (!s->window || s->window_first_layer >= s->n_layers)
        s->window = s->window_first_layer = s->window_period = 0;
    if (s->window_period > s->n_layers - s->window_first_layer)
        s->window_period = 0;
}

static struct model_spec without_unused(const struct model_spec *spec)
{
    struct model_spec s = *spec;

    memset(s.name, 0, sizeof s.name);
    drop_experts(&s);
    s.rope_scaling = used_scaling(&s);
    if (s.position != POSITION_ROPE) {
        s.rope_theta = 0;
        s.rope_scaling = (struct rope_scaling_spec){ 0 };
    }
    drop_window(&s);
    if (s.bias)
        s.attention_bias = ATTENTION_BIAS_NONE;
    if (!(s.dropout > 0))
        s.embedding_dropout = 0;
    return s;
}

static enum model_use use_of(const struct field *f, const struct model_spec *s)
{
    static const char *const training[] = { "model.dropout",           "model.embedding_dropout",
                                            "model.attention_dropout", "model.init_std",
                                            "model.router_balance",    "model.router_balance_kind",
                                            "model.router_z",          "model.router_bias_rate" };

    for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        if (!strcmp(f->key, training[i]))
            return MODEL_TRAINS;
    return !strcmp(f->key, "model.max_seq_len") && s->position != POSITION_LEARNED ? MODEL_TRAINS
                                                                                   : MODEL_COMPUTES;
}

static int is_same(const struct field *f, const struct job *a, const struct job *b)
{
    const void *of_a = (const char *)a + f->offset, *of_b = (const char *)b + f->offset;

    if (f->type == FIELD_NAME)
        return !strcmp(of_a, of_b);
    if (f->type == FIELD_FLOAT) {
        double x = *(const double *)of_a, y = *(const double *)of_b;

        return fabs(x - y) <= 1e-12 * fabs(x);
    }
    return *(const int *)of_a == *(const int *)of_b;
}

int model_differences(const struct model_spec *a, const struct model_spec *b, enum model_use use,
                      struct str *out)
{
    const struct job ours = { .model = without_unused(a) }, theirs = { .model = without_unused(b) };
    const struct job said = { .model = *a };
    int n = 0;

    for (int i = 0; i < n_job_fields && str_starts_with(job_fields[i].key, "model."); i++) {
        const struct field *f = &job_fields[i];

        if (is_same(f, &ours, &theirs) || use_of(f, a) != use)
            continue;
        str_printf(out, n++ ? ", %s " : "%s ", f->key);
        field_print(f, &said, out);
    }
    return n;
}
