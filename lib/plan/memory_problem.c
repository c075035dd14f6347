/*
 * memory_problem.c - a pipeline rank's program as what memory_solver.h is asked
 *
 * Bytes are those of the compiled program where everything is on the device; what a pass moves is
 * counted from the functions that touch a cell, and their runs in a step.
 */
#include <string.h>

#include "base/num.h"
#include "plan/memory_fit_impl.h"
#include "plan/price.h"

static bool may_leave(const struct job *job, enum offload_kind kind)
{
    return job->memory.offload == OFFLOAD_AUTO ||
           (job->memory.offload == OFFLOAD_LIST &&
            bitset_has(&job->memory.offload_kinds, (int)kind));
}

/* ---- a rank's layers ---- */

/* Layers of a compiled rank, chunk by chunk: those of the ops of its forwards, each once, as slices
 * of neighbouring layers take turns. chunks [n_layers of the model]: of each. */
static void find_layers(struct fitting_rank *r, const struct program *p, int n_chunks, int *chunks)
{
    int *layers = arena_array(r->f->arena, int, r->f->job.model.n_layers), n = 0;
    bool *is_done = arena_array(r->f->arena, bool, n_chunks);
    bool *is_listed = arena_array(r->f->arena, bool, r->f->job.model.n_layers);

    for (int f = 0; f < p->n_functions; f++) {
        const struct function *function = &p->functions[f];

        if (strncmp(function->name, "forward", 7) || is_done[function->chunk])
            continue;
        is_done[function->chunk] = true;
        for (int i = 0; i < function->n_ops; i++) {
            int layer = function->ops[i].layer;

            if (layer < 0 || is_listed[layer])
                continue;
            is_listed[layer] = true;
            chunks[n] = function->chunk;
            layers[n++] = layer;
        }
    }
    r->layers = layers;
    r->n_layers = n;
}

static struct memory_layer_kind kind_of(const struct keep_front *front, int n_alike,
                                        struct arena *arena)
{
    struct memory_point *points = arena_array(arena, struct memory_point, front->n_points);

    for (int i = 0; i < front->n_points; i++) {
        const struct keep_point *from = &front->points[i];

        points[i] = (struct memory_point){ .added_ns = from->added_ns,
                                           .slot_bytes = from->slot_bytes,
                                           .scratch_bytes = from->scratch_bytes,
                                           .n_parts = from->n_parts };
        for (int k = 0; k < from->n_parts; k++)
            points[i].parts[k] = from->parts[k].n_bytes;
    }
    return (struct memory_layer_kind){ .points = points,
                                       .n_points = front->n_points,
                                       .forward_ns = front->forward_ns,
                                       .backward_ns = front->backward_ns,
                                       .n_alike = n_alike };
}

/*
 * Chunks share slots as far as they keep the same values (program/stash_share.c), so they are one
 * to the solver: the layers that are alike and have the same place among those in their chunks are
 * one layer, which keeps its bytes once and takes its time as often as there are such.
 */
static void join_chunks(struct fitting_rank *r, const int *chunks, int n_chunks)
{
    struct arena *arena = r->f->arena;
    const struct keep_sets *fronts = &r->f->fronts;
    int *kind_of_layer = arena_array(arena, int, r->n_layers), n_kinds = 0, n = 0;
    int *places = arena_array(arena, int, r->n_layers);
    struct memory_layer_kind *kinds =
        arena_array(arena, struct memory_layer_kind, fronts->n_fronts * n_chunks);
    int *counts = arena_array(arena, int, n_chunks);

    for (int front = 0; front < fronts->n_fronts; front++) {
        int first = n, most = 0, before = 0;

        memset(counts, 0, sizeof *counts * (size_t)n_chunks);
        for (int i = 0; i < r->n_layers; i++) {
            if (fronts->front_of_layer[r->layers[i]] == front)
                places[i] = first + counts[chunks[i]]++;
            most = max_int(most, counts[chunks[i]]);
        }
        for (int place = 0; place < most; place++) {
            int n_alike = 0;

            for (int c = 0; c < n_chunks; c++)
                n_alike += counts[c] > place;
            if (n_alike != before)
                kinds[n_kinds++] = kind_of(&fronts->fronts[front], n_alike, arena);
            before = n_alike;
            kind_of_layer[n++] = n_kinds - 1;
        }
    }
    struct memory_chunk *chunk = arena_array(arena, struct memory_chunk, 1);
    *chunk = (struct memory_chunk){ .kind_of_layer = kind_of_layer, .n_layers = n };
    r->places = places;
    r->problem.kinds = kinds;
    r->problem.n_kinds = n_kinds;
    r->problem.chunks = chunk;
    r->problem.n_chunks = 1;
}

/* ---- a rank's cells ---- */

static enum travel_pass pass_of(const struct function *f)
{
    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].phase != PHASE_R)
            return f->ops[i].phase == PHASE_F   ? MEMORY_FORWARD
                   : f->ops[i].phase == PHASE_U ? MEMORY_UPDATE
                                                : MEMORY_BACKWARD;
    return MEMORY_UPDATE;
}

static int count_runs(const struct program *p, int function)
{
    const struct entry *e = &p->entries[ENTRY_STEP];
    int n = 0;

    for (int i = 0; i < e->n_actions; i++)
        n += e->actions[i].kind == ACTION_RUN && e->actions[i].function == function;
    return n;
}

enum { TOUCHES_READ = 1, TOUCHES_WRITE = 2 };

static void note_touches(const struct program *p, const struct op *op, unsigned char *touches)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        touches[program_base(p, op->in[k])] |= TOUCHES_READ;
        if (op->in[k] && (info->inputs[k].flags & OPERAND_UPDATED))
            touches[program_base(p, op->in[k])] |= TOUCHES_WRITE;
    }
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
        int v = program_base(p, op->out[k]);

        touches[v] |= TOUCHES_WRITE;
        /* Sums of several micro-batches come and go. */
        if (op->out[k] && program_accumulates(p, op, k) &&
            program_first_mode(p, op, k) != FIRST_ALWAYS)
            touches[v] |= TOUCHES_READ;
    }
}

/* What cells of each kind are to the solver, and to the job. */
static const enum memory_class class_of[] = { [AWAY_STATES] = MEMORY_STATES,
                                              [AWAY_GRADIENTS] = MEMORY_GRADIENTS,
                                              [AWAY_WEIGHTS] = MEMORY_WEIGHTS };
static const enum offload_kind category_of[] = { [AWAY_STATES] = OFFLOAD_OPTIMIZER,
                                                 [AWAY_GRADIENTS] = OFFLOAD_GRADIENTS,
                                                 [AWAY_WEIGHTS] = OFFLOAD_WEIGHTS };

enum memory_class memory_class_of(enum away_kind kind)
{
    return class_of[kind];
}

/* What the groups of each kind move in a step, if they are away. */
static void count_traffic(struct fitting_rank *r, const struct program *p,
                          struct memory_group *of_value)
{
    unsigned char *touches = arena_array(r->f->arena, unsigned char, p->n_values);

    for (int f = 0; f < p->n_functions; f++) {
        int n_runs = count_runs(p, f);
        enum travel_pass pass = pass_of(&p->functions[f]);

        if (!n_runs)
            continue;
        memset(touches, 0, (size_t)p->n_values);
        for (int i = 0; i < p->functions[f].n_ops; i++)
            note_touches(p, &p->functions[f].ops[i], touches);
        for (int v = 1; v < p->n_values; v++) {
            int64_t n_bytes = (int64_t)program_value_bytes(p, v) * n_runs;

            /* A step of one micro-batch starts its sums in it. */
            bool starts = pass == MEMORY_BACKWARD && p->values[v].role == ROLE_GRADIENT &&
                          r->f->job.n_micro_batches == 1;
            if ((touches[v] & TOUCHES_READ) && !starts)
                of_value[v].traffic[pass].in += n_bytes;
            if (touches[v] & TOUCHES_WRITE)
                of_value[v].traffic[pass].out += n_bytes;
        }
    }
}

/* The last state of an optimizer's op that may run on the host, where all must be; 0: none. */
static int last_state(const struct program *p, const struct op *op)
{
    int last = 0;

    for (int k = 0; k < OPS_MAX_INPUTS && (op_info(op->kind)->traits & TRAIT_ON_HOST); k++) {
        int v = program_base(p, op->in[k]);

        if (v && offload_kind_of(&p->values[v]) == AWAY_STATES)
            last = v;
    }
    return last;
}

/* What has elements and is no state travels: gradients, and weights, there and back. */
static void count_host_travel(const struct program *p, const struct op *op,
                              struct memory_traffic *update)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        bool is_input = k < OPS_MAX_INPUTS;
        int id = is_input ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
        const struct op_operand *operand =
            is_input ? &info->inputs[k] : &info->outputs[k - OPS_MAX_INPUTS];
        int64_t n_bytes = (int64_t)program_value_bytes(p, id);

        if (!id || operand->cols != DIM_D ||
            offload_kind_of(&p->values[program_base(p, id)]) == AWAY_STATES)
            continue;
        update->out += is_input || (operand->flags & OPERAND_STAYS) ? n_bytes : 0;
        update->in += !is_input || (operand->flags & OPERAND_UPDATED) ? n_bytes : 0;
    }
}

/* The alternative of an optimizer that runs on the host. The time is what the host takes longer
 * than the device: on a CPU, none. */
static void count_host_update(const struct fitting_rank *r, const struct program *p,
                              struct memory_group *of_value)
{
    const struct prices prices = { .cluster = r->f->cluster };

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];
            struct op_shape shape = program_op_shape(p, op);

            int state = last_state(p, op);

            if (!state)
                continue;
            struct memory_group *group = &of_value[state];
            count_host_travel(p, op, &group->host_traffic[MEMORY_UPDATE]);
            group->host_ns +=
                max_i64(0, price_host_op(&prices, &shape).ns - price_op(&prices, &shape).ns);
        }
}

static void add_traffic(struct memory_group *to, const struct memory_group *from)
{
    for (int pass = 0; pass < N_MEMORY_PASSES; pass++) {
        to->traffic[pass].in += from->traffic[pass].in;
        to->traffic[pass].out += from->traffic[pass].out;
        to->host_traffic[pass].in += from->host_traffic[pass].in;
        to->host_traffic[pass].out += from->host_traffic[pass].out;
    }
    to->n_bytes += from->n_bytes;
    to->host_ns += from->host_ns;
}

/* Cells one after the other, until a group has its part of all bytes. */
static int group_cells(struct cell_list *cells, const int *ids, const struct memory_group *of_value,
                       struct memory_group *items)
{
    int64_t all = 0, so_far = 0;
    int n = 0;

    for (int i = 0; i < cells->n; i++)
        all += (int64_t)cells->bytes[i];
    for (int i = 0; i < cells->n; i++) {
        add_traffic(&items[n], &of_value[ids[i]]);
        so_far += (int64_t)cells->bytes[i];
        cells->ends[n] = i + 1;
        n += so_far * N_GROUPS_MAX >= all * (n + 1) || i + 1 == cells->n;
    }
    return n;
}

static void list_groups(struct fitting_rank *r, const struct program *p)
{
    struct arena *arena = r->f->arena;
    struct memory_group *of_value = arena_array(arena, struct memory_group, p->n_values);

    count_traffic(r, p, of_value);
    count_host_update(r, p, of_value);
    for (int kind = 0; kind < N_AWAY_KINDS; kind++) {
        struct cell_list *cells = &r->cells[kind];
        int *ids = arena_array(arena, int, p->n_values);
        struct memory_group *items = arena_array(arena, struct memory_group, N_GROUPS_MAX + 1);
        int64_t largest = 0;

        cells->n = offload_list_cells(p, (enum away_kind)kind, ids);
        cells->bytes = arena_array(arena, size_t, cells->n);
        for (int i = 0; i < cells->n; i++) {
            cells->bytes[i] = program_value_bytes(p, ids[i]);
            of_value[ids[i]].n_bytes = (int64_t)cells->bytes[i];
            largest = max_i64(largest, (int64_t)cells->bytes[i]);
        }
        int n = group_cells(cells, ids, of_value, items);
        int64_t buffers =
            kind == AWAY_STATES ? UPDATE_PIECES * min_i64(largest, r->f->piece_bytes) : 2 * largest;
        r->problem.groups[class_of[kind]] =
            (struct memory_groups){ items, may_leave(&r->f->job, category_of[kind]) ? n : 0,
                                    buffers };
    }
}

/* ---- the problem of a rank ---- */

static int64_t update_ns(const struct fitting *f, const struct program *p)
{
    const struct prices prices = { .cluster = f->cluster };
    int64_t ns = 0;

    for (int k = 0; k < p->n_functions; k++)
        for (int i = 0; i < p->functions[k].n_ops; i++) {
            const struct op *op = &p->functions[k].ops[i];
            struct op_shape shape = program_op_shape(p, op);

            if (op->phase == PHASE_U && !op_is_collective(op->kind))
                ns += price_op(&prices, &shape).ns;
        }
    return ns;
}

/* Of all runs of a step; collectives are priced by where ranks are (price.h), and not here. */
static int64_t step_ns(const struct fitting *f, const struct program *p)
{
    const struct prices prices = { .cluster = f->cluster };
    int64_t ns = 0;

    for (int k = 0; k < p->n_functions; k++) {
        int n_runs = count_runs(p, k);

        for (int i = 0; i < p->functions[k].n_ops && n_runs; i++) {
            struct op_shape shape = program_op_shape(p, &p->functions[k].ops[i]);

            if (!op_is_collective(shape.kind))
                ns += n_runs * price_op(&prices, &shape).ns;
        }
    }
    return ns;
}

/* Of the largest stash: what is received, say, has a slot more. */
static int count_slots(const struct program *p)
{
    size_t most = 0;
    int n = 1;

    for (int i = 0; i < p->n_stashes; i++) {
        const struct stash *stash = &p->stashes[i];
        size_t n_bytes = (size_t)stash->n_slots * stash->slot_bytes;

        if (stash->segment != SEGMENT_STASH || n_bytes <= most)
            continue;
        most = n_bytes;
        n = stash->n_slots;
    }
    return n;
}

static double rate_ns(const struct cluster *cluster)
{
    double rate = cluster->links.host_bandwidth > 0 ? cluster->links.host_bandwidth
                                                    : cluster->islands[0].device->host_link;

    return 1e9 / rate;
}

/* p: the rank's program where each layer keeps what its first point says. */
void memory_problem_open(struct fitting_rank *r, const struct program *p)
{
    const struct job *job = &r->f->job;
    struct memory_problem *problem = &r->problem;
    int n_chunks = max_int(1, job->parallel.chunks);
    int64_t layers_bytes = 0, stash = (int64_t)p->segment_bytes[SEGMENT_STASH];
    int *chunks = arena_array(r->f->arena, int, job->model.n_layers);

    r->f->ranks[r->pp_rank].step_ns = step_ns(r->f, p);
    *problem = (struct memory_problem){
        .n_slots = count_slots(p),
        .n_micro_batches = job->n_micro_batches,
        .may_move_parts = may_leave(job, OFFLOAD_ACTIVATIONS) && !r->f->has_levels,
        .stay_copies = 3,
        .may_update_on_device = job->memory.update != UPDATE_HOST,
        .may_update_on_host = job->memory.update != UPDATE_DEVICE,
        .scratch_bytes = (int64_t)p->segment_bytes[SEGMENT_SCRATCH],
        .update_ns = update_ns(r->f, p),
        .out_ns = rate_ns(r->f->cluster),
        .in_ns = rate_ns(r->f->cluster),
    };
    find_layers(r, p, n_chunks, chunks);
    join_chunks(r, chunks, n_chunks);
    for (int i = 0; i < problem->chunks[0].n_layers; i++)
        layers_bytes += problem->kinds[problem->chunks[0].kind_of_layer[i]].points[0].slot_bytes;
    /* Of chunks that do not share slots, each has its own. */
    if (n_chunks > 1 && layers_bytes)
        problem->n_slots = max_int(1, (int)((stash + layers_bytes / 2) / layers_bytes));
    problem->resident_bytes = (int64_t)program_space_bytes(p, SPACE_DEVICE) -
                              (int64_t)p->segment_bytes[SEGMENT_SCRATCH] -
                              min_i64(stash, layers_bytes * problem->n_slots);
    list_groups(r, p);
}

/* ---- lists ---- */

/* Whether lists of one problem serve the other. */
static bool are_lists_alike(const struct memory_problem *a, const struct memory_problem *b)
{
    const struct memory_chunk *x = a->chunks, *y = b->chunks;
    bool are =
        a->n_kinds == b->n_kinds && a->scratch_bytes == b->scratch_bytes &&
        a->may_move_parts == b->may_move_parts && x->n_layers == y->n_layers &&
        !memcmp(x->kind_of_layer, y->kind_of_layer, sizeof *x->kind_of_layer * (size_t)x->n_layers);

    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        are = are && a->groups[class].n == b->groups[class].n;
    for (int k = 0; k < a->n_kinds && are; k++) {
        const struct memory_layer_kind *of_a = &a->kinds[k], *of_b = &b->kinds[k];

        are = of_a->n_points == of_b->n_points && of_a->n_alike == of_b->n_alike &&
              !memcmp(of_a->points, of_b->points, sizeof *of_a->points * (size_t)of_a->n_points);
    }
    return are;
}

void memory_problem_lists(struct fitting_rank *r)
{
    struct memory_reuse *reuse = r->f->request->reuse;
    struct fitting *f = r->f;

    if (reuse && !reuse->lists)
        reuse->lists = arena_array(f->arena, struct memory_lists *, f->job.parallel.pp);
    if (reuse && reuse->lists[r->pp_rank])
        r->problem.lists = reuse->lists[r->pp_rank];
    for (int i = 0; i < f->n_listed && !r->problem.lists; i++)
        if (are_lists_alike(&f->listed[i], &r->problem))
            r->problem.lists = f->listed[i].lists;
    if (!r->problem.lists) {
        r->problem.lists = memory_lists_open(&r->problem, f->arena);
        f->listed[f->n_listed++] = r->problem;
    }
    if (reuse)
        reuse->lists[r->pp_rank] = r->problem.lists;
}
