/*
 * check_experts.c - which fields of a mixture of experts must fit together
 */
#include <stdio.h>

#include "base/num.h"
#include "config/read_impl.h"

/* Where a field was given, or else what makes it matter. */
static const struct yaml_node *given_or(const struct job_reader *r, const char *field,
                                        const char *other)
{
    const struct yaml_node *node = reader_given(r, field);

    return node ? node : reader_given(r, other);
}

static void check_sizes(struct job_reader *r)
{
    const struct model_spec *s = &r->job->model;

    if (!s->n_experts)
        return;
    if (s->n_active_experts > s->n_experts)
        diagnostics_add(&r->mistakes, given_or(r, "model.n_active_experts", "model.n_experts"),
                        "model.n_active_experts is %d, more than the %d expert%s (hint: %d)",
                        s->n_active_experts, s->n_experts, str_s(s->n_experts), s->n_experts);
    if (s->expert_every > s->n_layers)
        diagnostics_add(
            &r->mistakes, reader_given(r, "model.expert_every"),
            "model.expert_every is %d, more than the %d layer%s: none would have experts "
            "(hint: %d, or n_experts: 0)",
            s->expert_every, s->n_layers, str_s(s->n_layers), s->n_layers);
    if (s->activation != ACTIVATION_SWIGLU)
        diagnostics_add(
            &r->mistakes, reader_given(r, "model.activation"),
            "model.activation is gelu, but experts are built with swiglu only (hint: swiglu)");
    if (s->bias)
        diagnostics_add(
            &r->mistakes, reader_given(r, "model.bias"),
            "model.bias is true, but experts have no biases (hint: attention_bias: all)");
    if ((int64_t)s->n_experts * max_int(2 * s->expert_ffn_size, s->hidden_size) > INT32_MAX)
        diagnostics_add(
            &r->mistakes, reader_given(r, "model.n_experts"),
            "model.n_experts %d * expert_ffn_size %d is more than %d rows of one matrix",
            s->n_experts, s->expert_ffn_size, INT32_MAX / 2);
}

static void check_layers(struct job_reader *r)
{
    const struct model_spec *s = &r->job->model;

    if (s->first_dense_layers > 0 && s->expert_every <= s->n_layers &&
        !model_spec_n_expert_layers(s, s->n_layers))
        diagnostics_add(&r->mistakes, reader_given(r, "model.first_dense_layers"),
                        "model.first_dense_layers is %d of %d layer%s: none would have experts "
                        "(hint: less, or n_experts: 0)",
                        s->first_dense_layers, s->n_layers, str_s(s->n_layers));
    if (s->shared_ffn_size && !s->n_shared_experts)
        diagnostics_add(&r->mistakes, reader_given(r, "model.shared_ffn_size"),
                        "model.shared_ffn_size is %d, but there are no shared experts (hint: give "
                        "model.n_shared_experts)",
                        s->shared_ffn_size);
    if (s->shared_gate && !s->n_shared_experts)
        diagnostics_add(&r->mistakes, reader_given(r, "model.shared_gate"),
                        "model.shared_gate is true, but there are no shared experts (hint: give "
                        "model.n_shared_experts)");
}

static void check_groups(struct job_reader *r)
{
    const struct model_spec *s = &r->job->model;
    int size = s->n_experts / s->router_groups;

    if (s->router_groups == 1)
        return;
    if (s->n_experts % s->router_groups != 0)
        diagnostics_add(&r->mistakes, reader_given(r, "model.router_groups"),
                        "model.router_groups is %d, does not divide n_experts %d", s->router_groups,
                        s->n_experts);
    else if (s->router_groups_kept > s->router_groups)
        diagnostics_add(&r->mistakes,
                        given_or(r, "model.router_groups_kept", "model.router_groups"),
                        "model.router_groups_kept is %d, more than the %d groups (hint: %d)",
                        s->router_groups_kept, s->router_groups, s->router_groups);
    else if (s->n_active_experts > s->router_groups_kept * size)
        diagnostics_add(&r->mistakes,
                        given_or(r, "model.router_groups_kept", "model.router_groups"),
                        "model.router_groups_kept is %d groups of %d experts, fewer than "
                        "n_active_experts %d (hint: %d)",
                        s->router_groups_kept, size, s->n_active_experts,
                        (s->n_active_experts + size - 1) / size);
}

static void check_capacity(struct job_reader *r)
{
    if (!r->job->model.n_experts && r->job->moe.capacity_factor > 0)
        diagnostics_add(&r->mistakes, reader_given(r, "moe.capacity_factor"),
                        "moe.capacity_factor is %g, but the model has no experts",
                        r->job->moe.capacity_factor);
    if (!(r->job->moe.capacity_factor > 0) && r->job->moe.drop != MOE_DROP_POSITION)
        diagnostics_add(&r->mistakes, reader_given(r, "moe.drop"),
                        "moe.drop is probability, but no choice is dropped without a capacity "
                        "(hint: moe.capacity_factor: 1.25)");
}

void reader_check_experts(struct job_reader *r)
{
    const struct model_spec *s = &r->job->model;

    check_capacity(r);
    if (!s->n_experts)
        return;
    check_sizes(r);
    check_layers(r);
    check_groups(r);
    if (s->router_bias && s->router_score != ROUTER_SIGMOID)
        diagnostics_add(&r->mistakes, reader_given(r, "model.router_bias"),
                        "model.router_bias is true, but router_score is softmax (hint: "
                        "router_score: sigmoid)");
}

void reader_check_expert_ranks(struct job_reader *r)
{
    const struct job *job = r->job;
    const struct model_spec *s = &job->model;

    if (!s->n_experts || !(s->router_balance > 0))
        return;
    if (job->parallel.pp > 1 && s->router_balance_kind == ROUTER_BALANCE_POOLED)
        diagnostics_add(
            &r->mistakes, reader_given(r, "parallel.pp"),
            "parallel.pp is %d, but model.router_balance_kind pooled needs the choices of "
            "all layers on each rank (hint: parallel.pp: 1, or model.router_balance_kind: "
            "per_layer)",
            job->parallel.pp);
    if (job->parallel.replica_micro_batches.n && s->router_balance_kind == ROUTER_BALANCE_GLOBAL)
        diagnostics_add(
            &r->mistakes, reader_given(r, "parallel.replica_micro_batches"),
            "parallel.replica_micro_batches gives data-parallel ranks unlike numbers of "
            "micro-batches, but model.router_balance_kind global_batch adds up what they count in "
            "each (hint: model.router_balance_kind: per_layer)");
}
