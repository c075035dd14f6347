/*
 * numerics_lines.c - the lines of a job's numerics, from the table of fields
 */
#include "config/numerics_lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/fields_impl.h"
#include "ops/ops.h"

/* ---- which lines there are ---- */

static int sizes_differ(const struct job_counts *sizes)
{
    int differ = 0;

    for (int i = 1; i < sizes->n; i++)
        differ |= sizes->values[i] != sizes->values[0];
    return differ;
}

static int model_is(enum numerics_when when, const struct model_spec *s)
{
    int is_rope = s->position == POSITION_ROPE;
    enum rope_scaling scaling = is_rope ? s->rope_scaling.type : ROPE_PLAIN;
    int has_window = s->window && s->window_first_layer < s->n_layers;

    switch (when) {
    case WHEN_LEARNED:
        return s->position == POSITION_LEARNED;
    case WHEN_ROPE:
        return is_rope;
    case WHEN_SCALED:
        return scaling != ROPE_PLAIN;
    case WHEN_SCALED_NOT_LINEAR:
        return scaling != ROPE_PLAIN && scaling != ROPE_LINEAR;
    case WHEN_LLAMA3:
        return scaling == ROPE_LLAMA3;
    case WHEN_YARN:
        return scaling == ROPE_YARN;
    case WHEN_EXPERTS:
        return s->n_experts > 0;
    case WHEN_ROUTER_SCALED:
        return s->n_experts > 0 && s->router_scaling != 1;
    case WHEN_ROUTER_GROUPS:
        return s->n_experts > 0 && s->router_groups > 1;
    case WHEN_ROUTER_BIAS:
        return s->n_experts > 0 && s->router_bias;
    case WHEN_WINDOW:
        return has_window;
    case WHEN_WINDOW_PERIOD:
        return has_window && s->window_period;
    case WHEN_ATTENTION_BIAS:
        return !s->bias && s->attention_bias;
    case WHEN_DROPOUT_IN_LAYERS:
        return s->dropout > 0 && !s->embedding_dropout;
    default:
        CHECK(!"a condition on the model");
        return 0;
    }
}

static int is_set(const struct field *f, const struct job *job)
{
    const void *at = (const char *)job + f->offset;

    if (f->type == FIELD_TEXT)
        return *(const char *const *)at != NULL;
    if (f->type == FIELD_TEXTS)
        return ((const struct job_texts *)at)->n > 0;
    if (f->type == FIELD_GROUPS)
        return ((const struct update_groups *)at)->n > 0;
    if (f->type == FIELD_FLOAT)
        return *(const double *)at != 0;
    return *(const int *)at != 0;
}

static int job_is(enum numerics_when when, const struct field *f, const struct job *job)
{
    const char *at = (const char *)job + f->offset;

    switch (when) {
    case WHEN_ALWAYS:
        return 1;
    case WHEN_SET:
        return is_set(f, job);
    case WHEN_EXPERTS_AND_SET:
        return job->model.n_experts > 0 && is_set(f, job);
    case WHEN_ADAPTERS:
        return job->lora.rank > 0 &&
               (f->type != FIELD_TEXTS || ((const struct job_texts *)(const void *)at)->n > 0);
    case WHEN_FP16:
        return job->train.dtype == DTYPE_F16;
    case WHEN_TP:
        return job->parallel.tp > 1;
    case WHEN_TP_AND_SET:
        return job->parallel.tp > 1 && is_set(f, job);
    case WHEN_CP:
        return job->parallel.cp > 1;
    case WHEN_DECAY:
        return job->optimizer.schedule != LR_CONSTANT;
    case WHEN_WSD:
        return job->optimizer.schedule == LR_WSD;
    case WHEN_MUON:
        return job->optimizer.name == RULE_MUON;
    case WHEN_BETA1:
        return optimizer_row(job->optimizer.name)->beta1 > 0;
    case WHEN_BETA2:
        return optimizer_row(job->optimizer.name)->beta2 > 0;
    case WHEN_MOMENTUM:
        return optimizer_row(job->optimizer.name)->momentum > 0;
    case WHEN_EPS:
        return optimizer_row(job->optimizer.name)->eps > 0;
    case WHEN_INVERSE_SQRT:
        return job->optimizer.schedule == LR_INVERSE_SQRT;
    case WHEN_SEVERAL:
        return *(const int *)(const void *)at > 1;
    case WHEN_SIZES_DIFFER:
        /* Micro-batches of one size are the same numerics however they are given. */
        return sizes_differ(&job->parallel.micro_batches);
    case WHEN_COUNTS_DIFFER:
        return sizes_differ(&job->parallel.replica_micro_batches);
    default:
        return model_is(when, &job->model);
    }
}

static const char *line_key(const struct field *f)
{
    return f->type == FIELD_DATASETS ? "data" : f->key;
}

/* The field whose line follows that place; NULL: none. */
static const struct field *next_line(int place)
{
    const struct field *next = NULL;

    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];

        if (f->numerics.place > place && (!next || f->numerics.place < next->numerics.place))
            next = f;
    }
    return next;
}

/* ---- their values ---- */

/* A double with as few digits as read back to it. */
static void print_number(double value, struct str *out)
{
    char text[40];

    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    str_add(out, text);
}

static void print_texts(const struct job_texts *texts, struct str *out)
{
    for (int i = 0; i < texts->n; i++)
        str_printf(out, i ? " %s" : "%s", texts->values[i]);
}

static void print_counts(const struct job_counts *counts, struct str *out)
{
    for (int i = 0; i < counts->n; i++)
        str_printf(out, i ? " %d" : "%d", counts->values[i]);
}

static void print_value(const struct field *f, const struct job *job, uint64_t data,
                        struct str *out)
{
    const void *at = (const char *)job + f->offset;

    switch (f->type) {
    case FIELD_INT:
    case FIELD_BOOL:
        str_printf(out, "%d", *(const int *)at);
        return;
    case FIELD_I64:
        str_printf(out, "%" PRId64, *(const int64_t *)at);
        return;
    case FIELD_U64:
        str_printf(out, "%" PRIu64, *(const uint64_t *)at);
        return;
    case FIELD_FLOAT:
        print_number(*(const double *)at, out);
        return;
    case FIELD_CHOICE:
        str_add(out, choice_word(f->choices, *(const int *)at));
        return;
    case FIELD_TEXT:
        str_add(out, *(const char *const *)at);
        return;
    case FIELD_TEXTS:
        print_texts(at, out);
        return;
    case FIELD_COUNTS:
        print_counts(at, out);
        return;
    case FIELD_DATASETS:
        str_printf(out, "%016" PRIx64, data);
        return;
    case FIELD_NAME:
    case FIELD_BYTES:
    case FIELD_RATE:
    case FIELD_SIZES:
    case FIELD_KINDS:
    case FIELD_PAIRS:
    case FIELD_GROUPS:
    case FIELD_SPACE:
        CHECK(!"a field of a type that numerics have");
    }
}

/* Older than the names that jobs have for them. */
void numerics_print_norm(const struct job *job, struct str *out)
{
    str_add(out, job->model.norm == NORM_RMS ? "rms" : "layer");
}

/* One line for both keys, so that a run that has the one kind is not resumed with the other. */
void numerics_print_router_balance(const struct job *job, struct str *out)
{
    const struct model_spec *s = &job->model;

    print_number(s->router_balance, out);
    if (s->router_balance > 0 && s->router_balance_kind != ROUTER_BALANCE_PER_LAYER)
        str_printf(out, " %s", choice_word(router_balance_choices, (int)s->router_balance_kind));
}

/* One line for both keys. */
void numerics_print_capacity(const struct job *job, struct str *out)
{
    print_number(job->moe.capacity_factor, out);
    str_printf(out, " %s", choice_word(moe_drop_choices, (int)job->moe.drop));
}

void numerics_print_original_seq_len(const struct job *job, struct str *out)
{
    int given = job->model.rope_scaling.original_max_seq_len;

    str_printf(out, "%d", given ? given : job->model.max_seq_len);
}

void numerics_print_alpha(const struct job *job, struct str *out)
{
    print_number(job->lora.alpha > 0 ? job->lora.alpha : 2.0 * job->lora.rank, out);
}

/* One rank or one micro-batch has one order of sums. */
void numerics_print_gradient_sum(const struct job *job, struct str *out)
{
    int one_order =
        job->parallel.dp == 1 || job_all_micro_batches(job) == (int64_t)job->parallel.dp;

    str_add(out,
            one_order ? "any" : choice_word(gradient_sum_choices, (int)job->parallel.gradient_sum));
}

/* With one rank there is nothing to sum. */
void numerics_print_reductions(const struct job *job, struct str *out)
{
    int is_fast = job->parallel.reductions == REDUCTIONS_FAST &&
                  (job->parallel.dp > 1 || job->parallel.tp > 1 || job->parallel.cp > 1);

    str_add(out, choice_word(reduction_choices, is_fast ? REDUCTIONS_FAST : REDUCTIONS_FIXED));
}

/* With the sizes: both change the order of sums over the parts of sequences. */
void numerics_print_cp_kind(const struct job *job, struct str *out)
{
    struct context_cut cut = job_context_cut(job);

    str_printf(out, "%s", choice_word(cp_kind_choices, (int)job->parallel.cp_kind));
    if (cut.ulysses > 1 && cut.keys > 1)
        str_printf(out, " ulysses %d", cut.ulysses);
}

/* With what it takes, and from when. */
void numerics_print_compress(const struct job *job, struct str *out)
{
    struct codec_choice choice = job_codec(job);

    str_add(out, choice_word(codec_choices, (int)choice.codec));
    if (choice.codec == CODEC_TOP_K)
        str_printf(out, " %g", choice.ratio);
    if (choice.codec == CODEC_POWERSGD)
        str_printf(out, " rank %d", choice.rank);
    /* Each group of ranks has its factors. */
    if (choice.codec == CODEC_POWERSGD && job->parallel.zero_group &&
        job->parallel.zero_group < job->parallel.dp)
        str_printf(out, " group %d", job->parallel.zero_group);
    if (choice.start)
        str_printf(out, " start %lld", (long long)choice.start);
}

/* With the layers that it leaves out. */
void numerics_print_fp8(const struct job *job, struct str *out)
{
    str_printf(out, "%s edge %d", choice_word(fp8_choices, (int)job->train.fp8),
               job->train.fp8_edge_layers);
    if (job->train.fp8_dw != FP8_DW_FP8)
        str_printf(out, " dw %s", choice_word(fp8_dw_choices, (int)job->train.fp8_dw));
    if (job->train.fp8_gradients == FP8_GRADIENTS_E5M2)
        str_add(out, " gradients e5m2");
    if (job->train.fp8_experts == FP8_EXPERTS_FP8)
        str_add(out, " experts fp8");
}

void numerics_print_compress_activations(const struct job *job, struct str *out)
{
    str_printf(out, "%g in full, others %d bits", job->parallel.compress_activations,
               job->parallel.compress_bits);
}

/* With what decides where it happens. */
void numerics_print_spikes(const struct job *job, struct str *out)
{
    str_printf(out, "%s z %g window %d", choice_word(spike_choices, (int)job->train.on_spike),
               job->train.spike_z, job->train.spike_window);
    if (job->train.on_spike == SPIKE_REWOUND)
        str_printf(out, " margin %d", job->train.spike_margin);
}

/* The word, and, of what has scales, how many elements have one. */
static void print_scaled(const struct job *job, const char *word, bool is_named, struct str *out)
{
    const struct optimizer_row *row = optimizer_row(job->optimizer.name);

    str_add(out, word);
    if (is_named && optimizer_is_scaled(optimizer_state_dtype(row, job->optimizer.states)))
        str_printf(out, " blocks %d", OPS_STATE_BLOCK);
}

void numerics_print_optimizer(const struct job *job, struct str *out)
{
    print_scaled(job, choice_word(optimizer_choices, (int)job->optimizer.name),
                 job->optimizer.states == DTYPE_F32, out);
}

void numerics_print_states(const struct job *job, struct str *out)
{
    print_scaled(job, choice_word(optimizer_states_choices, (int)job->optimizer.states), true, out);
}

/* ---- the description ---- */

static void print_line(const struct field *f, const struct job *job, uint64_t data, struct str *out)
{
    const struct field_numerics *n = &f->numerics;
    int is_used = job_is(n->when, f, job);

    if (!is_used && !n->or_zero)
        return;
    str_printf(out, "%s ", line_key(f));
    if (!is_used)
        str_add_char(out, '0');
    else if (n->print)
        n->print(job, out);
    else
        print_value(f, job, data, out);
    str_add_char(out, '\n');
}

void numerics_lines(const struct job *job, uint64_t data, struct str *out)
{
    for (const struct field *f = next_line(0); f; f = next_line(f->numerics.place))
        print_line(f, job, data, out);
}

void numerics_model_lines(const struct model_spec *spec, struct str *out)
{
    struct job job = { .model = *spec };

    for (const struct field *f = next_line(0); f; f = next_line(f->numerics.place))
        if (str_starts_with(f->key, "model."))
            print_line(f, &job, 0, out);
}

/* ---- what a line is ---- */

static const struct field *find_line(const char *key)
{
    for (int i = 0; i < n_job_fields; i++)
        if (job_fields[i].numerics.place && !strcmp(line_key(&job_fields[i]), key))
            return &job_fields[i];
    return NULL;
}

enum numerics_change numerics_change_of(const char *key)
{
    const struct field *f = find_line(key);

    return f ? f->numerics.change : NUMERICS_NONE;
}

const char *numerics_meaning_of(const char *key, struct arena *arena)
{
    const struct field *f = find_line(key);

    return f ? arena_strndup(arena, f->help, strcspn(f->help, ";")) : NULL;
}

const char *numerics_change_text(enum numerics_change change)
{
    static const char *const texts[] = {
        [NUMERICS_NONE] = "",
        [NUMERICS_RUN] = "Part of the numerics: another value changes bits, and a resume with it "
                         "is refused.",
        [NUMERICS_ARITHMETIC] = "Part of the numerics: another value changes bits, and a resume "
                                "with it needs --accept-numerics.",
        [NUMERICS_LAYOUT] = "Part of the numerics: another value changes bits (the order of "
                            "sums); a resume logs it.",
        [NUMERICS_RECIPE] = "Part of the numerics: another value changes bits; a resume logs it.",
    };

    return texts[change];
}
