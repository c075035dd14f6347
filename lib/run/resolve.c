/*
 * resolve.c - from value ids to addresses, once for each function and set of slots
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "run/run_impl.h"

/* From where the value, or its base, is in a segment: a rank's shard begins further. */
static size_t shard_offset(const struct run *run, const struct program *p, int id)
{
    const struct value *v = &p->values[id];
    size_t offset = 0;

    if (v->shard_axis)
        offset += (size_t)run->coordinate[v->shard_axis - 1] * program_value_bytes(p, id);
    if (v->outer_shard_axis)
        offset += (size_t)run->coordinate[v->outer_shard_axis - 1] *
                  (size_t)mesh_size(&p->mesh, (enum mesh_axis)(v->shard_axis - 1)) *
                  program_value_bytes(p, id);
    return offset;
}

static void *value_data(const struct run *run, const struct program *p, int id, int micro_batch)
{
    return run->memory.segment[p->values[id].segment] + program_place(p, id, micro_batch) +
           shard_offset(run, p, id);
}

void *run_data(const struct run *run, int value, int micro_batch)
{
    CHECK(value > 0);
    const struct program *p = run->program;
    const struct value *v = &p->values[value];
    CHECK(value < p->n_values);
    int home = p->values[program_whole(p, value)].home;
    /* Between functions all of it is at home. */
    if (home)
        return (unsigned char *)value_data(run, p, home, micro_batch) +
               (size_t)v->offset * dtype_bytes(v->dtype) + shard_offset(run, p, value);
    return value_data(run, p, value, micro_batch);
}

static struct tensor operand(const struct run *run, int id, int micro_batch)
{
    const struct program *p = run->resolving;
    const struct value *v = &p->values[id];

    if (!id)
        return (struct tensor){ 0 };
    return (struct tensor){ value_data(run, p, id, micro_batch), v->rows, v->cols, v->stride,
                            v->dtype };
}

static void list_users(struct run *run, const struct op *op, int micro_batch,
                       struct resolved_op *out)
{
    int users[ORDER_MAX_USERS], n = order_users(&run->order, op, micro_batch, users);
    int *list = arena_array(&run->arena, int, n);

    memcpy(list, users, sizeof *list * (size_t)n);
    out->users = list;
    out->n_users = n;
}

static int op_touches_base(const struct program *p, const struct op *op, int base)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (program_base(p, op->in[k]) == base)
            return 1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (program_base(p, op->out[k]) == base)
            return 1;
    return 0;
}

static int touches_base(const struct program *p, int function, int base)
{
    const struct function *f = &p->functions[function];

    for (int i = 0; i < f->n_ops; i++)
        if (op_touches_base(p, &f->ops[i], base))
            return 1;
    return 0;
}

/* Does a later function of the same micro-batch touch this stash value? */
static bool is_used_later(const struct program *p, const struct function *f, int base)
{
    int function = (int)(f - p->functions);

    for (int e = 0; e < N_ENTRIES; e++) {
        const struct entry *entry = &p->entries[e];
        int micro_batch = -1;

        for (int i = 0; i < entry->n_actions; i++) {
            const struct action *a = &entry->actions[i];

            if (a->kind != ACTION_RUN)
                continue;
            if (micro_batch < 0 && a->function == function)
                micro_batch = a->micro_batch;
            else if (micro_batch >= 0 && a->micro_batch == micro_batch &&
                     touches_base(p, a->function, base))
                return true;
        }
    }
    return false;
}

static int dies_in(const struct program *p, const struct function *f, int id)
{
    const struct value *v = &p->values[id];

    return !program_is_lasting(v) && !v->base &&
           !(v->scope == SCOPE_STASH && is_used_later(p, f, id));
}

/* last[v]: 1 + the op with which all that this function does with v is known to be done. */
static void find_last(const struct program *p, const struct function *f, const int *completed_at,
                      int *last)
{
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
            int id = k < OPS_MAX_INPUTS ? f->ops[i].in[k] : f->ops[i].out[k - OPS_MAX_INPUTS];
            int base = program_base(p, id);

            last[base] = max_int(last[base], 1 + completed_at[i]);
        }
    last[0] = 0;
}

/*
 * Values die after their last use in a function, or when the collectives that use them are known to
 * be done, and never for what is known to be done only at the function's end; stash values in the
 * last of their functions.
 */
static void list_dead(struct run *run, const struct function *f, int micro_batch,
                      const int *completed_at, struct resolved_op *ops)
{
    const struct program *p = run->resolving;
    struct arena arena = { 0 };
    int *last = arena_array(&arena, int, p->n_values);
    struct dead_range **lists = arena_array(&arena, struct dead_range *, f->n_ops);

    find_last(p, f, completed_at, last);
    for (int id = 1; id < p->n_values; id++) {
        if (last[id] &&
            (last[id] > f->n_ops || !dies_in(p, f, id) || p->values[id].space == SPACE_FILE))
            last[id] = 0;
        if (last[id])
            ops[last[id] - 1].n_dead++;
    }
    for (int i = 0; i < f->n_ops; i++) {
        lists[i] = arena_array(&run->arena, struct dead_range, ops[i].n_dead);
        ops[i].dead = lists[i];
    }
    for (int id = 1; id < p->n_values; id++)
        if (last[id])
            *lists[last[id] - 1]++ = (struct dead_range){ value_data(run, p, id, micro_batch),
                                                          program_value_bytes(p, id) };
    arena_release(&arena);
}

/* "attention layers.9", "reduce_scatter dp bucket.3": what the hang report calls it. */
static void describe_op(const struct program *p, const struct op *op,
                        char text[PROGRESS_TEXT_BYTES])
{
    const char *kind = op_info(op->kind)->name;
    const char *own = p->values[op->in[0]].name;
    const char *name = own ? own : p->values[program_base(p, op->in[0])].name;
    const char *axis = op_is_collective(op->kind) ? axis_name(op->attributes.axis) : "";
    const char *space = axis[0] ? " " : "";

    /* A collective's cell says more than its layer, and has the layer in its name. */
    if (op->layer >= 0 && !(axis[0] && name))
        snprintf(text, PROGRESS_TEXT_BYTES, "%s%s%s layers.%d", kind, space, axis, op->layer);
    else
        snprintf(text, PROGRESS_TEXT_BYTES, "%s%s%s%s%s", kind, space, axis, name ? " " : "",
                 name ? name : "");
}

/* Whether a given op can move it as it lies. */
static bool is_movable(const struct op_shape *shape, const struct tensor *t)
{
    return collective_takes_strides(shape->kind) || t->rows <= 1 || t->stride == t->cols;
}

/* Sums that comm does not add need more than those it does: plan and run must say the same. */
static bool has_room(const struct run *run, const struct op *op, const struct op_shape *shape)
{
    struct run_scratch scratch = { run->options.kernels, run->resolving->mesh, run->options.fast,
                                   run->options.node_ranks };

    return run_scratch_bytes(&scratch, shape) <= op->scratch_bytes;
}

/* NULL where no collective of the stream needs any. */
static unsigned char *comm_scratch(const struct run *run, enum stream stream)
{
    unsigned char *segment = run->memory.segment[SEGMENT_COMM];

    return segment ? segment + run->resolving->stream_scratch[stream] : NULL;
}

static void resolve_collective(struct run *run, const struct op *op, struct resolved_op *out)
{
    enum mesh_axis axis = op->attributes.axis;

    CHECK(has_room(run, op, &out->call.op));
    out->collective = collective_of(&out->call.op, run->groups[axis][order_group_of(op->stream)],
                                    comm_scratch(run, op->stream));
    out->collective.nodes = run->nodes[axis][order_group_of(op->stream)];
    if (op->attributes.peer) {
        int size = mesh_size(&run->resolving->mesh, axis);

        out->collective.peer = (run->coordinate[axis] + op->attributes.peer + size) % size;
    }
}

static void resolve_given(struct run *run, const struct op *op, struct resolved_op *out)
{
    const struct tensor *x = &out->call.op.in[0], *y = &out->call.op.out[0];

    CHECK(!op_has_kernel(op->kind));
    CHECK(is_movable(&out->call.op, x) && is_movable(&out->call.op, y));
    CHECK(is_movable(&out->call.op, &out->call.op.in[1]));
    if (op_is_collective(op->kind))
        resolve_collective(run, op, out);
    else
        copies_resolve(run, op, out);
    out->is_posted = op_is_collective(op->kind) ? !run->enqueues : copies_are_posted(run);
    out->stream_op.worker = run->worker;
}

static void resolve_op(struct run *run, const struct op *op, int micro_batch,
                       struct resolved_op *out)
{
    struct op_shape shape = { .kind = op->kind, .attributes = op->attributes };

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        shape.in[k] = operand(run, op->in[k], micro_batch);
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        shape.out[k] = operand(run, op->out[k], micro_batch);
    out->call.op = shape;
    out->call.scratch = run->memory.segment[SEGMENT_LIBRARY];
    out->first = op->first;
    out->is_async = order_is_async(op);
    /* Kernels get the flag for accumulated outputs alone, collectives of whatever they replace. */
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && program_first_mode(run->resolving, op, k) == FIRST_ALWAYS &&
            (out->is_async || program_accumulates(run->resolving, op, k)))
            out->always |= 1 << k;
    out->layer = op->layer;
    out->stream = op->stream;
    out->is_on_host = run->host_kernels && program_is_host_op(run->resolving, op);
    if (out->is_on_host) {
        CHECK(!kernels_scratch_bytes(run->host_kernels, &shape));
        out->call.scratch = NULL;
    }
    if (out->is_async)
        resolve_given(run, op, out);
    describe_op(run->resolving, op, out->text);
}

static struct variants *own_functions(struct run *run)
{
    const struct program *p = run->resolving;
    int set = p == run->program ? 0 : 1 + (int)(p - run->options.shorter);

    return run->functions + set * p->n_functions;
}

/* On the device's compute queue. */
static bool is_enqueued(const struct resolved_op *op)
{
    return !op->is_async && !op->is_on_host;
}

static void list_ranges(struct run *run, struct resolved_function *r)
{
    r->ranges = arena_array(&run->arena, struct op_range, r->n_ops);
    for (int i = 0; i < r->n_ops;) {
        int end = i + 1;

        if (!is_enqueued(&r->ops[i])) {
            i++;
            continue;
        }
        while (end < r->n_ops && is_enqueued(&r->ops[end]) && !r->ops[end].n_users)
            end++;
        if (end - i > 1)
            r->ranges[r->n_ranges++] = (struct op_range){ .begin = i, .end = end };
        i = end;
    }
}

/* Bound to the slots of the variant's micro-batches. */
static int resolve_variant(struct run *run, int function, int variant, const int *completed_at,
                           const int *beside, struct err *err)
{
    const struct function *f = &run->resolving->functions[function];
    struct variants *own = own_functions(run);
    struct resolved_function *r = &own[function].list[variant];
    int m = order_variant_first(&own[function].by, variant);

    r->ops = arena_array(&run->arena, struct resolved_op, f->n_ops);
    for (int i = 0; i < f->n_ops; i++) {
        struct resolved_op *op = &r->ops[i];

        resolve_op(run, &f->ops[i], m, op);
        op->call.beside = run->enqueues ? beside[i] : 0;
        list_users(run, &f->ops[i], m, op);
        r->n_ops = i + 1;
        if (!op->is_async && variant > 0)
            op->call.state = own[function].list[0].ops[i].call.state;
        else if (!op->is_async && kernels_prepare(run_kernels_of(run, op), &op->call, err) < 0)
            return err_add(err, "%s", f->name);
        progress_beat(run->progress);
    }
    r->drains = order_drains(run->resolving, function, completed_at);
    if (run->options.poison)
        list_dead(run, f, m, completed_at, r->ops);
    else if (run->device->ops->graph_begin && !run->is_one_by_one)
        list_ranges(run, r);
    return 0;
}

static int resolve_function(struct run *run, int function, struct err *err)
{
    const struct program *p = run->resolving;
    struct variants *variants = &own_functions(run)[function];
    int status = 0;
    struct arena arena = { 0 };
    int *completed_at = arena_array(&arena, int, p->functions[function].n_ops);
    int *beside = arena_array(&arena, int, p->functions[function].n_ops);

    order_completion(p, function, completed_at);
    run_find_beside(p, function, completed_at, beside);
    variants->by = order_variants(&run->order, function);
    variants->n = variants->by.n;
    variants->list = arena_array(&run->arena, struct resolved_function, variants->n);
    for (int i = 0; i < variants->n && !status; i++)
        status = resolve_variant(run, function, i, completed_at, beside, err);
    arena_release(&arena);
    return status;
}

/* What the program knows of its constants; the rest is the host's to fill. */
static int fill_contents(struct run *run, struct err *err)
{
    const struct program *p = run->resolving;

    for (int id = 1; id < p->n_values; id++) {
        if (!program_has_content(p, id))
            continue;
        void *content = malloc(program_value_bytes(p, id));
        if (!content)
            return err_set(err, ERR_DEVICE, "out of host memory");
        program_fill_content(p, id, content);
        run_put_at(run, value_data(run, p, id, 0), content, program_value_bytes(p, id));
        free(content);
    }
    return 0;
}

static int resolve_program(struct run *run, const struct program *p, struct err *err)
{
    run->resolving = p;
    if (fill_contents(run, err) < 0)
        return -1;
    for (int f = 0; f < p->n_functions; f++)
        if (resolve_function(run, f, err) < 0)
            return -1;
    return 0;
}

int resolve(struct run *run, struct err *err)
{
    const struct program *p = run->program;
    int n_programs = 1 + run->options.n_shorter;

    order_open(&run->order, p, &run->arena);
    run->users = arena_array(&run->arena, struct resolved_op *, run->order.n_users);
    run->functions = arena_array(&run->arena, struct variants, n_programs * p->n_functions);
    int status = resolve_program(run, p, err);
    for (int i = 0; i < run->options.n_shorter && !status; i++)
        status = resolve_program(run, &run->options.shorter[i], err);
    return status;
}

static void release_ranges(struct run *run, const struct variants *variants)
{
    for (int m = 0; m < variants->n; m++)
        for (int i = 0; i < variants->list[m].n_ranges; i++)
            for (int first = 0; first < 2; first++)
                if (variants->list[m].ranges[i].graphs[first])
                    run->device->ops->graph_destroy(run->device,
                                                    variants->list[m].ranges[i].graphs[first]);
}

void resolve_release(struct run *run)
{
    int n = run->program->n_functions * (1 + run->options.n_shorter);

    for (int f = 0; run->functions && f < n && run->functions[f].n; f++) {
        const struct resolved_function *r = &run->functions[f].list[0];

        release_ranges(run, &run->functions[f]);
        for (int i = 0; i < r->n_ops; i++)
            if (!r->ops[i].is_async)
                kernels_release(run_kernels_of(run, &r->ops[i]), &r->ops[i].call);
    }
}
