/*
 * context_cost.c - see the header
 */
#include "plan/context_cost.h"

#include "base/num.h"
#include "base/str.h"
#include "plan/price.h"

/* Each layer waits for its slowest rank. */
static double balance_of(const struct job *job, struct context_cut cut)
{
    double most = 0, mean = 0;

    for (int layer = 0; layer < job->model.n_layers; layer++) {
        double keys = model_spec_keys(&job->model, layer, job->data.seq_len);
        int window = model_spec_window(&job->model, layer);

        most += keys * context_balance(cut, job->data.seq_len, window);
        mean += keys;
    }
    return most / mean;
}

/* How many micro-batches' values that the function reads are kept at a time. */
static int count_slots(const struct program *p, const struct function *f)
{
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            const struct value *v = &p->values[f->ops[i].in[k]];

            if (f->ops[i].in[k] && v->scope == SCOPE_STASH && p->n_stashes)
                return p->stashes[v->stash].n_slots;
        }
    return 1;
}

static double bytes_of(const struct tensor *t)
{
    return (double)tensor_elements(t) * (double)dtype_bytes(t->dtype);
}

/* What a function sends around attention. is_shown: it is of the shown rank. */
static void add_function(struct context_cost *cost, const struct program *p,
                         const struct function *f, bool is_shown)
{
    bool is_forward = str_starts_with(f->name, "forward");
    double again = 0;

    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];

        if (!op_is_collective(op->kind) || op->stream != STREAM_CP)
            continue;
        struct op_shape shape = program_op_shape(p, op);
        double sent = (double)price_link_bytes(&shape, mesh_size(&p->mesh, op->attributes.axis));

        *(is_forward ? &cost->bytes.forward : &cost->bytes.backward) += sent;
        if (!is_forward && (op->kind == OP_GATHER_SEQUENCE || op->kind == OP_GATHER_WINDOW))
            again += bytes_of(&shape.out[OPS_FIRST]);
    }
    cost->bytes.gathered_again += again;
    if (!is_shown || again == 0)
        return;
    int n_slots = count_slots(p, f);
    cost->n_under_way = max_int(cost->n_under_way, n_slots);
    cost->saved_bytes += again * n_slots;
}

/* All that the step's first micro-batch runs. */
static void add_program(struct context_cost *cost, const struct program *p, bool is_shown)
{
    const struct entry *step = &p->entries[ENTRY_STEP];

    for (int i = 0; i < step->n_actions; i++) {
        const struct action *a = &step->actions[i];

        if (a->kind == ACTION_RUN && a->micro_batch == 0)
            add_function(cost, p, &p->functions[a->function], is_shown);
    }
}

struct context_cost context_cost_of(const struct plan *plan)
{
    const struct job *job = plan->job;
    struct context_cost cost = { .cut = job_context_cut(job) };
    double n_layers = job->model.n_layers;

    cost.rows = job->data.seq_len / context_size(cost.cut);
    cost.balance = balance_of(job, cost.cut);
    for (int i = 0; i < job->parallel.pp; i++)
        add_program(&cost, &plan->programs[i], i == plan->shown);
    cost.bytes.forward /= n_layers;
    cost.bytes.backward /= n_layers;
    cost.bytes.gathered_again /= n_layers;
    return cost;
}
