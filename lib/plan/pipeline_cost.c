/*
 * pipeline_cost.c - layers by the parameters that a program has; the bubble by simulating the
 * programs with their FLOPs as times
 */
#include "plan/pipeline_cost.h"

#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "config/parameters.h"
#include "plan/simulate.h"
#include "program/order.h"
#include "program/passes.h"

/* Whether the stage has the parameter, and not a copy of another's. */
static bool has_weight(const struct program *p, enum module_id module, int layer)
{
    char name[PARAMETER_NAME_MAX];

    parameters_name(name, (struct parameter_id){ module, PART_WEIGHT, layer });
    for (int i = 0; i < p->n_parameters; i++)
        if (!strcmp(p->parameters[i].name, name))
            return !p->parameters[i].is_copy;
    return false;
}

void plan_list_layers(const struct plan *plan, int pp_rank, struct str *out)
{
    const struct program *p = &plan->programs[pp_rank];
    int n_layers = plan->job->model.n_layers;
    struct arena arena = { 0 };
    char *has = arena_array(&arena, char, n_layers + 1);

    for (int i = 0; i < n_layers; i++)
        has[i] = (char)has_weight(p, MODULE_ATTENTION_NORM, i);
    if (has_weight(p, MODULE_EMBEDDING, LAYER_BEFORE))
        str_add(out, "embedding");
    for (int i = 0; i < n_layers; i++) {
        int end = i;

        while (has[i] && has[end + 1])
            end++;
        if (has[i])
            str_printf(out, end > i ? "%s%d-%d" : "%s%d", out->length ? ", " : "", i, end);
        i = end;
    }
    if (has_weight(p, MODULE_FINAL_NORM, n_layers))
        str_add(out, out->length ? ", head" : "head");
    arena_release(&arena);
}

/* ---- the bubble ---- */

/* FLOPs count as nanoseconds, divided where a step's exceed the range of times. */
static double flops_of_ns(const struct plan *plan)
{
    const double most = (double)(INT64_MAX / 4);
    double total = 0;

    for (int rank = 0; rank < plan->job->parallel.pp; rank++)
        total += program_entry_flops(&plan->programs[rank], ENTRY_STEP);
    return total > most ? total / most : 1;
}

static const struct simulated_op *price_function(const struct program *p, const struct function *f,
                                                 double flops_of_ns, struct arena *arena)
{
    struct simulated_op *ops = arena_array(arena, struct simulated_op, f->n_ops);

    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(p, &f->ops[i]);

        ops[i].ns = (int64_t)((double)op_flops(&shape) / flops_of_ns);
        /* What waits for an async op waits for who meets it. */
        ops[i].class = order_is_async(&f->ops[i]) ? TIME_STAGES : TIME_PRODUCTS;
    }
    return ops;
}

static const struct simulated_op *const *price_program(const struct program *p, double flops_of_ns,
                                                       struct arena *arena)
{
    const struct simulated_op **functions =
        arena_array(arena, const struct simulated_op *, p->n_functions);

    for (int i = 0; i < p->n_functions; i++)
        functions[i] = price_function(p, &p->functions[i], flops_of_ns, arena);
    return functions;
}

int plan_bubble(const struct plan *plan, double *bubble, struct err *err)
{
    int n = plan->job->parallel.pp;
    double scale = flops_of_ns(plan);
    struct mesh mesh = mesh_pipeline(n);
    struct arena arena = { 0 };
    const struct program **programs = arena_array(&arena, const struct program *, n);
    const struct simulated_op *const **ops =
        arena_array(&arena, const struct simulated_op *const *, n);
    struct simulated_step step;

    for (int rank = 0; rank < n; rank++) {
        programs[rank] = &plan->programs[rank];
        ops[rank] = price_program(programs[rank], scale, &arena);
    }
    struct simulate_request request = {
        .programs = programs, .mesh = &mesh, .entry = ENTRY_STEP, .ops = ops
    };
    int status = simulate(&step, &request, &arena, err);
    if (!status)
        *bubble = (double)step.ranks[step.busiest].of[TIME_STAGES] / (double)max_i64(1, step.ns);
    arena_release(&arena);
    return status;
}
