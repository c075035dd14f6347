/*
 * check.c - which fields must fit together
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "config/job_layout.h"
#include "config/read_impl.h"

static void list_divisors(int n, char *out, size_t size)
{
    size_t used = 0;

    out[0] = '\0';
    for (int d = 1; d <= n && used + 24 < size; d++)
        if (n % d == 0)
            used += (size_t)snprintf(out + used, size - used, used ? ", %d" : "%d", d);
}

/* Where a field was given, or else what makes it matter. */
static const struct yaml_node *given_or(const struct job_reader *r, const char *field,
                                        const char *other)
{
    const struct yaml_node *node = reader_given(r, field);

    return node ? node : reader_given(r, other);
}

static void check_lengths(struct job_reader *r)
{
    const struct job_counts *lengths = &r->job->data.lengths;
    int64_t unit = job_length_unit(r->job);
    int tp = r->job->parallel.tp;

    for (int i = 0; i < lengths->n; i++) {
        int length = lengths->values[i];

        if (length >= r->job->data.seq_len || (i > 0 && length <= lengths->values[i - 1]))
            diagnostics_add(&r->mistakes, reader_given(r, "data.lengths"),
                            "data.lengths has %d, not ascending and below data.seq_len %d", length,
                            r->job->data.seq_len);
        else if (length % tp)
            diagnostics_add(&r->mistakes, reader_given(r, "data.lengths"),
                            "data.lengths has %d, not a multiple of parallel.tp %d", length, tp);
        else if (length % unit)
            diagnostics_add(
                &r->mistakes, reader_given(r, "data.lengths"),
                "data.lengths has %d, not a multiple of %lld, as parallel.cp %d with tp "
                "%d needs",
                length, (long long)unit, r->job->parallel.cp, tp);
        else
            continue;
        return;
    }
}

/* Powers of two alone leave the bits of what they scale. */
static void check_loss_scale(struct job_reader *r)
{
    int initial = r->job->train.loss_scale.initial, min = r->job->train.loss_scale.min;
    int max = r->job->train.loss_scale.max;
    const struct {
        const char *field;
        int value;
    } scales[] = { { "train.loss_scale.initial", initial },
                   { "train.loss_scale.min", min },
                   { "train.loss_scale.max", max } };
    int n_wrong = 0;

    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        int power = 1;

        while (power <= scales[i].value / 2)
            power *= 2;
        if (power == scales[i].value)
            continue;
        diagnostics_add(&r->mistakes, reader_given(r, scales[i].field),
                        "%s is %d, not a power of two (hint: %d)", scales[i].field, scales[i].value,
                        power);
        n_wrong++;
    }
    if (!n_wrong && (min > initial || initial > max))
        diagnostics_add(
            &r->mistakes, given_or(r, "train.loss_scale.initial", "train.loss_scale.min"),
            "train.loss_scale.initial is %d, not from min %d to max %d", initial, min, max);
}

static void check_straggler_ratio(struct job_reader *r)
{
    double ratio = r->job->train.straggler_ratio;

    if (ratio != 0 && ratio <= 1)
        diagnostics_add(&r->mistakes, reader_given(r, "train.straggler_ratio"),
                        "train.straggler_ratio is %g, not 0 or above 1 (hint: 1.1)", ratio);
}

static void check_window(struct job_reader *r)
{
    const struct model_spec *s = &r->job->model;
    const struct yaml_node *node = reader_given(r, "model.window_first_layer");

    if (s->window_first_layer > 0 && !s->window)
        diagnostics_add(&r->mistakes, node,
                        "model.window_first_layer is %d, but there is no window (hint: give "
                        "model.window)",
                        s->window_first_layer);
    else if (s->window_first_layer > 0 && s->window_first_layer >= s->n_layers)
        diagnostics_add(
            &r->mistakes, node,
            "model.window_first_layer is %d, but layers are 0 to %d (hint: at most %d, or "
            "window: none)",
            s->window_first_layer, s->n_layers - 1, s->n_layers - 1);
    if (s->window_period > 0 && !s->window)
        diagnostics_add(
            &r->mistakes, reader_given(r, "model.window_period"),
            "model.window_period is %d, but there is no window (hint: give model.window)",
            s->window_period);
}

static void check_model(struct job_reader *r)
{
    const struct model_spec *s = &r->job->model;
    char divisors[128];

    if (s->n_heads % s->n_kv_heads != 0) {
        list_divisors(s->n_heads, divisors, sizeof divisors);
        diagnostics_add(&r->mistakes, reader_given(r, "model.n_kv_heads"),
                        "model.n_kv_heads is %d, does not divide n_heads %d (hint: %s)",
                        s->n_kv_heads, s->n_heads, divisors);
    }
    if (s->position == POSITION_ROPE && s->head_dim % 2 != 0) {
        const struct yaml_node *node = reader_given(r, "model.head_dim");

        diagnostics_add(
            &r->mistakes, node ? node : reader_given(r, "model.n_heads"),
            "model.head_dim is %d, but rope needs an even number (hint: an even head_dim)",
            s->head_dim);
    }
    if (s->head_dim > OPS_HEAD_DIM_MAX) {
        const struct yaml_node *node = reader_given(r, "model.head_dim");

        diagnostics_add(&r->mistakes, node ? node : reader_given(r, "model.n_heads"),
                        "model.head_dim is %d, more than %d (hint: more heads)", s->head_dim,
                        OPS_HEAD_DIM_MAX);
    }
    reader_check_experts(r);
    check_loss_scale(r);
    check_straggler_ratio(r);
    if ((int64_t)s->n_heads * s->head_dim > 1048576)
        diagnostics_add(&r->mistakes, reader_given(r, "model.n_heads"),
                        "model.n_heads * head_dim is %lld, more than 1048576",
                        (long long)s->n_heads * s->head_dim);
    check_window(r);
    check_lengths(r);
    if (s->position == POSITION_LEARNED && r->job->data.seq_len > s->max_seq_len)
        diagnostics_add(&r->mistakes, reader_given(r, "data.seq_len"),
                        "data.seq_len is %d, more than the model's %d learned positions (hint: %d)",
                        r->job->data.seq_len, s->max_seq_len, s->max_seq_len);
}

/* Why so many tensor-parallel ranks cannot have the model in equal parts; 0 if they can. */
static int tp_misfit(const struct model_spec *s, int tp, char *why, size_t size)
{
    int kv = s->n_kv_heads;

    if (s->n_heads % tp != 0)
        return snprintf(why, size, "does not divide n_heads %d", s->n_heads);
    if (s->n_experts && s->expert_ffn_size % tp != 0)
        return snprintf(why, size, "does not divide expert_ffn_size %d", s->expert_ffn_size);
    if (s->n_experts && s->shared_ffn_size % tp != 0)
        return snprintf(why, size, "does not divide shared_ffn_size %d", s->shared_ffn_size);
    if (s->ffn_size % tp != 0 && model_spec_n_expert_layers(s, s->n_layers) < s->n_layers)
        return snprintf(why, size, "does not divide ffn_size %d", s->ffn_size);
    if (kv % tp != 0 && tp % kv != 0)
        return snprintf(why, size, "neither divides n_kv_heads %d nor is a multiple of it", kv);
    if (tp > kv && s->head_dim % (tp / kv) != 0)
        return snprintf(why, size,
                        "shares a kv head (n_kv_heads %d) among %d ranks, which do not divide its "
                        "head_dim %d",
                        kv, tp / kv, s->head_dim);
    return 0;
}

int job_check_tp(const struct model_spec *s, int tp, const char *what, struct err *err)
{
    char why[160], others[64], hint[128] = "";
    size_t used = 0;

    if (!tp_misfit(s, tp, why, sizeof why))
        return 0;
    for (int other = 1; other <= s->n_heads && used + 16 < sizeof hint; other++)
        if (!tp_misfit(s, other, others, sizeof others))
            used += (size_t)snprintf(hint + used, sizeof hint - used, used ? ", %d" : "%d", other);
    return err_set(err, ERR_CONFIG, "%s is %d, %s (hint: %s)", what, tp, why, hint);
}

static int check_tp(struct job_reader *r)
{
    struct err err;

    if (job_check_tp(&r->job->model, r->job->parallel.tp, "parallel.tp", &err) == 0)
        return 0;
    return diagnostics_add(&r->mistakes, reader_given(r, "parallel.tp"), "%s", err.text);
}

/* A size of micro-batches whose tokens tp ranks cannot share evenly; 0: there is none. */
static int misfit_size(const struct job *job, int seq_len)
{
    const struct job_counts *sizes = &job->parallel.micro_batches;
    int tp = job->parallel.tp;

    for (int i = 0; i < sizes->n; i++)
        if ((int64_t)sizes->values[i] * seq_len % tp != 0)
            return sizes->values[i];
    return (int64_t)job->train.micro_batch * seq_len % tp ? job->train.micro_batch : 0;
}

/* Every rank has as many rows of a micro-batch between the norms. */
static void check_sequence_parallel(struct job_reader *r)
{
    struct job *job = r->job;
    const struct yaml_node *node = reader_given(r, "parallel.sequence_parallel");
    int tp = job->parallel.tp, cp = job->parallel.cp, unit = tp;
    int seq_len = job->data.seq_len % cp ? job->data.seq_len : job->data.seq_len / cp;

    if (tp == 1) {
        if (node && job->parallel.sequence_parallel)
            job_note(job, r->arena, "parallel.sequence_parallel is off: tp is 1");
        return;
    }
    if (!job->parallel.sequence_parallel)
        return;
    int micro = misfit_size(job, seq_len);
    if (!micro)
        return;
    if (!node) {
        job->parallel.sequence_parallel = 0;
        job_note(job, r->arena,
                 "parallel.sequence_parallel = false: micro_batch %d * seq_len %d is %lld tokens, "
                 "not a multiple of tp %d",
                 micro, seq_len, (long long)micro * seq_len, tp);
        return;
    }
    /* The smallest step of seq_len. */
    for (int factor = 2; factor <= tp; factor++)
        if (tp % factor == 0 && !misfit_size(job, tp / factor))
            unit = tp / factor;
    int near = max_int(1, seq_len / unit) * unit;
    diagnostics_add(&r->mistakes, node,
                    "parallel.sequence_parallel: micro_batch %d * seq_len %d is %lld tokens, not a "
                    "multiple of tp %d (hint: data.seq_len: %d, or sequence_parallel: false)",
                    micro, seq_len, (long long)micro * seq_len, tp, near);
}

static void check_zero(struct job_reader *r)
{
    struct job *job = r->job;
    int group = job->parallel.zero_group;

    if (group > 1 && job->train.gradient_dtype != DTYPE_F32)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.zero_group"),
                        "parallel.zero_group is %d and train.gradient_dtype bf16: the sums of each "
                        "group would be rounded once more (hint: train.gradient_dtype fp32)",
                        group);

    if (group > 0 && job->parallel.zero == 0)
        diagnostics_add(
            &r->mistakes, reader_given(r, "parallel.zero_group"),
            "parallel.zero_group is %d, but zero 0 shards nothing (hint: zero: 1, or no "
            "zero_group)",
            group);
    else if (group == 1)
        diagnostics_add(
            &r->mistakes, reader_given(r, "parallel.zero_group"),
            "parallel.zero_group is 1: a group of one shards nothing (hint: 2, or zero: "
            "0)");
    else if (group & (group - 1))
        diagnostics_add(
            &r->mistakes, reader_given(r, "parallel.zero_group"),
            "parallel.zero_group is %d, not a power of two: sums over groups would differ "
            "in bits from sums over all ranks (hint: %d or %d)",
            group, 1 << (31 - __builtin_clz((unsigned)group)),
            2 << (31 - __builtin_clz((unsigned)group)));
    if (job->parallel.hold != HOLD_PASS && job->parallel.zero < 3)
        job_note(job, r->arena,
                 "parallel.hold has no effect with zero %d: only zero 3 gathers parameters",
                 job->parallel.zero);
    if (job->parallel.prefetch > 0 &&
        (!job->parallel.zero || (job->parallel.zero == 3 && job->parallel.hold == HOLD_OP)))
        job_note(job, r->arena,
                 "parallel.prefetch has no effect with zero %d and hold %s: no weights are "
                 "gathered ahead",
                 job->parallel.zero, choice_word(hold_choices, (int)job->parallel.hold));
}

/* What a search chooses is not given, too. It cuts stages by cost, into micro-batches of one
 * size. */
static void check_mode(struct job_reader *r)
{
    enum parallel_mode mode = r->job->parallel.mode;
    const char *word = choice_word(parallel_mode_choices, (int)mode);
    const struct layout layout = layout_of_job(r->job);

    for (int i = 0; i < N_LAYOUT_KEYS; i++) {
        enum layout_key key = (enum layout_key)i;
        const struct job_counts *list = layout_list(&layout, key);
        const char *field = layout_field(key);

        if (layout_is_refused(mode, key) && (list ? list->n > 0 : !!reader_given(r, field)))
            diagnostics_add(&r->mistakes, reader_given(r, field),
                            list ? "%s is given, but parallel.mode is %s: it is of one layout "
                                   "(hint: mode: manual)"
                                 : "%s is given, but parallel.mode is %s (hint: mode: semi)",
                            field, word);
    }
    if (mode != PARALLEL_MANUAL &&
        (r->job->parallel.micro_batches.n || r->job->parallel.micro_batches_auto))
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.micro_batches"),
                        "parallel.micro_batches is given, but parallel.mode is %s: it is of one "
                        "layout (hint: mode: manual)",
                        word);
}

/* Only sums at the end of a step do not mind how many micro-batches a rank has. */
static void check_replicas(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct yaml_node *node = reader_given(r, "parallel.replica_micro_batches");

    if (!job->parallel.replica_micro_batches.n)
        return;
    if (job->parallel.zero > 1)
        diagnostics_add(
            &r->mistakes, node,
            "parallel.replica_micro_batches is given, but zero %d sums the gradients of "
            "each micro-batch over the ranks (hint: zero: 0 or 1)",
            job->parallel.zero);
    else if (job->parallel.gradient_sum_given && job->parallel.gradient_sum == GRADIENT_SUM_EARLY)
        diagnostics_add(&r->mistakes, node,
                        "parallel.replica_micro_batches is given, but gradient_sum early sums the "
                        "gradients of each micro-batch over the ranks (hint: late)");
    if (job->parallel.micro_batches.n || job->parallel.micro_batches_auto)
        diagnostics_add(&r->mistakes, node,
                        "parallel.replica_micro_batches and parallel.micro_batches exclude each "
                        "other");
    if (job->kind != JOB_PRETRAIN)
        diagnostics_add(&r->mistakes, node, "parallel.replica_micro_batches is for pretrain");
}

static void check_parallel(struct job_reader *r)
{
    check_replicas(r);
    check_mode(r);
    const struct job *job = r->job;
    const struct model_spec *s = &job->model;

    if (!check_tp(r))
        check_sequence_parallel(r);
    reader_check_overlap(r);
    check_zero(r);
    if (job->parallel.pp > s->n_layers)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.pp"),
                        "parallel.pp is %d, more than the %d layer%s (hint: %d)", job->parallel.pp,
                        s->n_layers, str_s(s->n_layers), s->n_layers);
    if (!r->model_only)
        reader_check_context(r);
    if (!r->model_only)
        reader_check_expert_ranks(r);
}

/* The residual stream is as wide as activations at least. */
static void check_residual(struct job_reader *r)
{
    const struct job *job = r->job;

    if (job->train.residual != DTYPE_F32 && job->train.residual != job->train.dtype)
        diagnostics_add(
            &r->mistakes, reader_given(r, "train.residual"),
            "train.residual is bf16 and train.dtype %s: the stream would be narrower "
            "than what is added to it, or of another range (hint: train.residual: fp32, "
            "or train.dtype: bf16)",
            dtype_name(job->train.dtype));
}

/* Whether the list fits global_batch is known with dp. */
static void check_micro_batches(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct job_counts *sizes = &job->parallel.micro_batches;
    int is_dynamic = job->parallel.schedule == PIPELINE_DYNAMIC;

    if (job->parallel.micro_batches_auto && !is_dynamic)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.micro_batches"),
                        "parallel.micro_batches is auto, but schedule %s has micro-batches of one "
                        "size (hint: schedule: dynamic)",
                        pipeline_name(job->parallel.schedule));
    else if (job->parallel.micro_batches_auto)
        return;
    else if (is_dynamic && !sizes->n)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.schedule"),
                        "parallel.schedule dynamic needs parallel.micro_batches (hint: "
                        "micro_batches: auto or [1, 2, 4, 4, 2, 1], or schedule: interleaved)");
    else if (!is_dynamic && sizes->n)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.micro_batches"),
                        "parallel.micro_batches is given, but schedule %s has micro-batches of one "
                        "size (hint: schedule: dynamic, or train.micro_batch: %d)",
                        pipeline_name(job->parallel.schedule), largest_count(sizes));
    else if (sizes->n && job->train.micro_batch != largest_count(sizes))
        diagnostics_add(
            &r->mistakes, reader_given(r, "train.micro_batch"),
            "train.micro_batch is %d, the largest of parallel.micro_batches is %d (hint: "
            "%d, or leave it out)",
            job->train.micro_batch, largest_count(sizes), largest_count(sizes));
}

static void check_batch(struct job_reader *r)
{
    int global = r->job->train.global_batch, micro = r->job->train.micro_batch;

    if (r->job->parallel.micro_batches.n || r->job->parallel.micro_batches_auto ||
        global % micro == 0)
        return;
    int below = global / micro * micro;
    const struct yaml_node *node = reader_given(r, "train.global_batch");
    char hint[64];

    if (below > 0)
        snprintf(hint, sizeof hint, "%d or %lld", below, (long long)below + micro);
    else
        snprintf(hint, sizeof hint, "%d", micro);
    diagnostics_add(&r->mistakes, node ? node : reader_given(r, "train.micro_batch"),
                    "train.global_batch is %d, not a multiple of micro_batch %d (hint: %s)", global,
                    micro, hint);
}

static void check_tracking(struct job_reader *r)
{
    const char *url = r->job->tracking.mlflow;

    if (url && strstr(url, "://") && !str_starts_with(url, "http://") &&
        !str_starts_with(url, "https://"))
        diagnostics_add(&r->mistakes, reader_given(r, "tracking.mlflow"),
                        "tracking.mlflow is %.100s, neither the URL of a tracking server nor a "
                        "folder (hint: http://localhost:5000, or /data/mlruns)",
                        url);
}

static void check_hang(struct job_reader *r)
{
    const struct job *job = r->job;

    if (job->train.hang_abort_seconds > 0 &&
        job->train.hang_abort_seconds < job->train.hang_seconds)
        diagnostics_add(&r->mistakes, reader_given(r, "train.hang_abort_seconds"),
                        "train.hang_abort_seconds is %g, less than hang_seconds %g",
                        job->train.hang_abort_seconds, job->train.hang_seconds);
}

/* Whether path is in folder, or is it; by their names, from the current folder. */
static int is_inside(const char *path, const char *folder, struct arena *arena)
{
    char here[4096];

    if (*folder != '/' && getcwd(here, sizeof here)) {
        while (!strncmp(folder, "./", 2))
            folder += 2 + strspn(folder + 2, "/");
        folder = arena_printf(arena, "%s/%s", here, folder);
    }
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}

static void check_checkpoint(struct job_reader *r)
{
    const struct job *job = r->job;
    const char *local = job->checkpoint.local;
    const struct yaml_node *node = reader_given(r, "checkpoint.local");

    if (!local && job->checkpoint.local_every_steps)
        diagnostics_add(&r->mistakes, reader_given(r, "checkpoint.local_every_steps"),
                        "checkpoint.local_every_steps is given, but checkpoint.local is not (hint: "
                        "a folder on a disk of each node, such as ${TMPDIR})");
    if (!local)
        return;
    if (!job->checkpoint.local_every_steps)
        diagnostics_add(&r->mistakes, node,
                        "checkpoint.local is given, but checkpoint.local_every_steps is not (hint: "
                        "local_every_steps: 10)");
    if (*local != '/')
        diagnostics_add(&r->mistakes, node,
                        "checkpoint.local is %s, not an absolute path (hint: a folder on a disk of "
                        "each node, such as ${TMPDIR})",
                        local);
    else if (job->output && is_inside(local, job->output, r->arena))
        diagnostics_add(&r->mistakes, node,
                        "checkpoint.local is %s, in the run folder %s (hint: a folder on a disk of "
                        "each node)",
                        local, job->output);
}

void reader_check(struct job_reader *r)
{
    check_model(r);
    check_parallel(r);
    check_micro_batches(r);
    check_batch(r);
    check_residual(r);
    reader_check_fp8(r);
    reader_check_optimizer(r);
    reader_check_groups(r);
    reader_check_eval(r);
    check_tracking(r);
    check_hang(r);
    check_checkpoint(r);
    reader_check_memory(r);
    reader_check_sweep(r);
}
