/*
 * plan_context.c - the lines about context parallelism
 */
#include "plan_context.h"

#include "plan/context_cost.h"

/* "gather", or "ulysses 2 x gather 4" */
static void print_kind(const struct job *job, struct context_cut cut, struct str *out)
{
    const struct cp_sizes *sizes = &job->parallel.cp_sizes;
    const char *word = choice_word(cp_kind_choices, (int)job->parallel.cp_kind);

    if (sizes->ulysses)
        str_printf(out, "ulysses %d x %s %d", cut.ulysses, word, cut.keys);
    else
        str_add(out, word);
}

static void print_balance(const struct context_cost *cost, struct str *out)
{
    if (cost->cut.keys == 1)
        str_add(out, "all rows of a part of the heads, equal work");
    else
        str_printf(out,
                   "two chunks of each sequence%s, the most work of a rank is %.3f of the mean "
                   "(sequences of one document)",
                   cost->cut.ulysses > 1 ? " and a part of the heads" : "", cost->balance);
}

void plan_print_context(const struct plan *plan, struct str *out)
{
    const struct job *job = plan->job;
    char forward[32], backward[32], again[32], saved[32];

    if (job->parallel.cp == 1)
        return;
    struct context_cost cost = context_cost_of(plan);
    str_add(out, "context parallel: ");
    print_kind(job, cost.cut, out);
    str_printf(out,
               ", %d ranks with %lld rows of each sequence of %d\n  attention: ", job->parallel.cp,
               (long long)cost.rows, job->data.seq_len);
    print_balance(&cost, out);
    str_printf(out, "\n  sent by a rank: %s forward and %s backward, per layer and micro-batch\n",
               str_bytes(forward, sizeof forward, (size_t)cost.bytes.forward),
               str_bytes(backward, sizeof backward, (size_t)cost.bytes.backward));
    if (cost.bytes.gathered_again > 0)
        str_printf(out,
                   "  %s are gathered again in the backward: %s per layer and "
                   "micro-batch, kept they would take %s more (%d micro-batch%s under way)\n",
                   cost.cut.keys > 1 ? "keys and values" : "inputs of qkv",
                   str_bytes(again, sizeof again, (size_t)cost.bytes.gathered_again),
                   str_bytes(saved, sizeof saved, (size_t)cost.saved_bytes), cost.n_under_way,
                   str_es(cost.n_under_way));
    str_add(out, "\n");
}

void plan_add_context(const struct plan *plan, cJSON *json)
{
    const struct job *job = plan->job;

    if (job->parallel.cp == 1)
        return;
    struct context_cost cost = context_cost_of(plan);
    cJSON *object = cJSON_AddObjectToObject(json, "context_parallel");
    cJSON_AddStringToObject(object, "kind",
                            choice_word(cp_kind_choices, (int)job->parallel.cp_kind));
    cJSON_AddNumberToObject(object, "ulysses", cost.cut.ulysses);
    cJSON_AddNumberToObject(object, "keys", cost.cut.keys);
    cJSON_AddNumberToObject(object, "rows", (double)cost.rows);
    cJSON_AddNumberToObject(object, "balance", cost.balance);
    cJSON_AddNumberToObject(object, "forward_bytes", cost.bytes.forward);
    cJSON_AddNumberToObject(object, "backward_bytes", cost.bytes.backward);
    cJSON_AddNumberToObject(object, "gathered_again_bytes", cost.bytes.gathered_again);
    cJSON_AddNumberToObject(object, "saved_bytes", cost.saved_bytes);
}
