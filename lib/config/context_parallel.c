/*
 * context_parallel.c - how a job divides sequences over ranks (parallel.cp, cp_kind)
 */
#include <stdio.h>

#include "config/job_layout.h"
#include "config/read_impl.h"

/* Heads are exchanged without copies of kv heads while every rank gets one of them at least. */
static bool heads_suffice(const struct job *job)
{
    const struct model_spec *s = &job->model;
    int64_t parts = (int64_t)job->parallel.tp * job->parallel.cp;

    return s->n_kv_heads % parts == 0 && s->n_heads % parts == 0;
}

static enum cp_kind kind_of(const struct job *job)
{
    if (job->parallel.cp_kind != CP_AUTO)
        return job->parallel.cp_kind;
    return heads_suffice(job) ? CP_ULYSSES : CP_GATHER;
}

struct context_cut job_context_cut(const struct job *job)
{
    enum cp_kind kind = kind_of(job);
    int cp = job->parallel.cp;

    if (cp > 1 && job->parallel.cp_sizes.ulysses)
        return (struct context_cut){ job->parallel.cp_sizes.ulysses, job->parallel.cp_sizes.keys };
    if (kind == CP_ULYSSES || kind == CP_FASTSEQ)
        return (struct context_cut){ cp, 1 };
    return (struct context_cut){ 1, cp };
}

static bool is_multiple(int a, int b)
{
    return a % b == 0 || b % a == 0;
}

/* The heads, and kv heads, of a tensor-parallel rank. */
static int heads_of(const struct job *job)
{
    return max_int(1, job->model.n_heads / job->parallel.tp);
}

static int kv_heads_of(const struct job *job)
{
    return max_int(1, job->model.n_kv_heads / job->parallel.tp);
}

/* Whether ranks can divide the matrices of heads, of which nothing is copied. */
static bool divides_matrices(const struct job *job)
{
    return kind_of(job) != CP_FASTSEQ || job->parallel.cp == 1 || heads_suffice(job);
}

bool layout_divides_sequences(const struct job *job)
{
    struct context_cut cut = job_context_cut(job);

    return divides_matrices(job) && heads_of(job) % cut.ulysses == 0 &&
           is_multiple(kv_heads_of(job), cut.ulysses) && context_divides(cut, job->data.seq_len);
}

int64_t job_length_unit(const struct job *job)
{
    return context_unit(job_context_cut(job)) * job->parallel.tp;
}

void context_resolve(struct job *job, struct arena *arena)
{
    int kv = job->model.n_kv_heads;

    if (job->parallel.cp == 1 || job->parallel.cp_kind != CP_AUTO)
        return;
    job->parallel.cp_kind = kind_of(job);
    job_note(job, arena, "parallel.cp_kind = %s (auto: tp %d * cp %d %s %d kv head%s)",
             choice_word(cp_kind_choices, (int)job->parallel.cp_kind), job->parallel.tp,
             job->parallel.cp, job->parallel.cp_kind == CP_ULYSSES ? "divides" : "does not divide",
             kv, str_s(kv));
}

static int check_sizes(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct cp_sizes *sizes = &job->parallel.cp_sizes;

    int64_t product = (int64_t)sizes->ulysses * sizes->keys;

    if (!product || product == job->parallel.cp)
        return 0;
    return diagnostics_add(&r->mistakes, reader_given(r, "parallel.cp_kind"),
                           "parallel.cp_kind is %d * %d ranks, but parallel.cp is %d (hint: cp: "
                           "%lld)",
                           sizes->ulysses, sizes->keys, job->parallel.cp, (long long)product);
}

/* Ranks that exchange heads get equally many, as tensor-parallel ranks do. */
static void check_heads(struct job_reader *r)
{
    const struct job *job = r->job;
    int ulysses = job_context_cut(job).ulysses, heads = heads_of(job), kv = kv_heads_of(job);

    if (ulysses == 1)
        return;
    if (!divides_matrices(job))
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.cp_kind"),
                        "parallel.cp_kind fastseq divides the heads, and their matrices, among tp "
                        "%d * cp %d ranks, which do not divide %d kv heads (hint: cp_kind: gather)",
                        job->parallel.tp, ulysses, job->model.n_kv_heads);
    else if (heads % ulysses)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.cp"),
                        "parallel.cp: %d ranks exchange heads, but do not divide the %d heads of a "
                        "tensor-parallel rank (hint: cp_kind: gather, or a divisor of %d)",
                        ulysses, heads, heads);
    else if (!is_multiple(kv, ulysses))
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.cp"),
                        "parallel.cp: %d ranks exchange heads, but neither divide the %d kv heads "
                        "of a tensor-parallel rank nor are a multiple of them (hint: cp_kind: "
                        "gather)",
                        ulysses, kv);
}

static void check_length(struct job_reader *r)
{
    const struct job *job = r->job;
    struct context_cut cut = job_context_cut(job);
    int length = job->data.seq_len;
    char below[40] = "";

    if (context_divides(cut, length))
        return;
    if (context_length_below(cut, length))
        snprintf(below, sizeof below, "%lld or ", (long long)context_length_below(cut, length));
    diagnostics_add(
        &r->mistakes, reader_given(r, "data.seq_len"),
        "data.seq_len is %d, not a multiple of %lld, as parallel.cp %d with cp_kind %s needs "
        "(hint: %s%lld)",
        length, (long long)context_unit(cut), job->parallel.cp,
        choice_word(cp_kind_choices, (int)kind_of(job)), below,
        (long long)context_length_above(cut, length));
}

/* A query and its keys lie in several ranks' parts, whose distances the kernels of a step do not
 * know. */
static void check_ring(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct model_spec *s = &job->model;
    const struct yaml_node *node = reader_given(r, "parallel.cp_kind");

    if (kind_of(job) != CP_RING)
        return;
    if (s->position == POSITION_ALIBI)
        diagnostics_add(&r->mistakes, node,
                        "parallel.cp_kind ring does not have ALiBi (hint: cp_kind: gather)");
    for (int i = 1; i < s->n_layers; i++)
        if (model_spec_window(s, i) != model_spec_window(s, 0)) {
            diagnostics_add(&r->mistakes, node,
                            "parallel.cp_kind ring does not have layers of several windows (hint: "
                            "cp_kind: gather)");
            break;
        }
    if (s->attention_dropout > 0)
        diagnostics_add(&r->mistakes, node,
                        "parallel.cp_kind ring does not have dropout of attention (hint: cp_kind: "
                        "gather, or model.attention_dropout: 0)");
}

static void check_slices(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct model_spec *s = &job->model;
    int kv = max_int(1, s->n_kv_heads / job->parallel.tp / job_context_cut(job).ulysses);

    if (job->parallel.cp_slices > 1 && kv % job->parallel.cp_slices)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.cp_slices"),
                        "parallel.cp_slices is %d, does not divide the %d kv head%s of a rank",
                        job->parallel.cp_slices, kv, str_s(kv));
    if (job->parallel.cp_slices > 1 && (s->attention_dropout > 0 || s->position == POSITION_ALIBI))
        job_note(r->job, r->arena,
                 "parallel.cp_slices has no effect with ALiBi or dropout of attention");
    if (job->parallel.cp_slices > 1 && kind_of(job) != CP_GATHER)
        diagnostics_add(&r->mistakes, reader_given(r, "parallel.cp_slices"),
                        "parallel.cp_slices is %d, but keys are not gathered with cp_kind %s "
                        "(hint: cp_kind: gather)",
                        job->parallel.cp_slices, choice_word(cp_kind_choices, (int)kind_of(job)));
}

void reader_check_context(struct job_reader *r)
{
    const struct job *job = r->job;

    if (job->parallel.cp == 1) {
        if (job->parallel.cp_kind != CP_AUTO)
            job_note(r->job, r->arena, "parallel.cp_kind has no effect: cp is 1");
        return;
    }
    if (check_sizes(r))
        return;
    check_heads(r);
    check_length(r);
    check_ring(r);
    check_slices(r);
}
