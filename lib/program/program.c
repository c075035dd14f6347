/*
 * program.c - the tables of a program, and the functions that add to them
 */
#include "program/program.h"

#include <stdio.h>
#include <string.h>

#include "layout/axes.h"

void program_init(struct program *program, const struct mesh *mesh)
{
    *program = (struct program){ .mesh = *mesh };
    /* Id 0 is no value. */
    program->values =
        arena_grow(&program->arena, NULL, sizeof(struct value), &program->values_capacity, 256);
    program->n_values = 1;
}

void program_release(struct program *program)
{
    struct arena arena = program->arena;

    arena_release(&arena);
    *program = (struct program){ 0 };
}

static int add_value(struct program *p, const struct value *value)
{
    p->values =
        arena_grow(&p->arena, p->values, sizeof *value, &p->values_capacity, p->n_values + 1);
    p->values[p->n_values] = *value;
    return p->n_values++;
}

int program_value(struct program *program, int64_t rows, int64_t cols, enum dtype dtype)
{
    CHECK(rows > 0);
    CHECK(cols > 0);
    struct value value = { .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };

    return add_value(program, &value);
}

int program_host_value(struct program *program, int64_t rows, int64_t cols, enum dtype dtype)
{
    int id = program_value(program, rows, cols, dtype);

    program->values[id].space = SPACE_HOST;
    return id;
}

int program_cell(struct program *program, enum cell_role role, const char *name, int64_t rows,
                 int64_t cols, enum dtype dtype)
{
    int id = program_value(program, rows, cols, dtype);

    CHECK(role != ROLE_NONE);
    program->values[id].role = role;
    program->values[id].name = arena_strdup(&program->arena, name);
    program->values[id].scope = SCOPE_JOB;
    return id;
}

void program_lie_like(struct program *program, int id, int like, enum mesh_axis except)
{
    for (int axis = 0; axis < N_AXES; axis++)
        if (!axis_covers(except, (enum mesh_axis)axis))
            program->values[id].spread[axis] = spread_flat(program->values[like].spread[axis]);
}

void program_spread_over(struct program *program, int id, enum mesh_axis axis, enum spread spread)
{
    for (int part = 0; part < N_AXES; part++)
        if (axis_covers(axis, (enum mesh_axis)part))
            program->values[id].spread[part] = spread;
}

int program_base(const struct program *program, int id)
{
    const struct value *values = program->values;

    id = program_whole(program, id);
    while (values[id].over)
        id = program_whole(program, values[id].over);
    return id;
}

static int view_of(struct program *program, int base, int64_t offset, int64_t rows, int64_t cols,
                   int64_t stride)
{
    struct value view = program->values[base];
    int owner = view.base ? view.base : base;

    view.offset += offset;
    view.base = owner;
    view.home = 0;
    view.rows = rows;
    view.cols = cols;
    view.stride = stride;
    view.content = NULL; /* it belongs to the base, which is filled once */
    view.runs = NULL;
    const struct value *whole = &program->values[owner];
    CHECK(view.offset >= 0);
    CHECK(view.offset + (rows - 1) * stride + cols <= whole->rows * whole->stride);
    return add_value(program, &view);
}

int program_view(struct program *program, int base, int64_t offset, int64_t rows, int64_t cols,
                 int64_t stride)
{
    CHECK(!program->values[base].shard_axis);
    return view_of(program, base, offset, rows, cols, stride);
}

/* Groups first .. first + n - 1, as rows from `row` on. */
static int view_of_groups(struct program *program, int base, int of, int first, int n, int64_t row,
                          int64_t rows)
{
    struct value *whole = &program->values[base];

    CHECK(!whole->base && !whole->part_rows && whole->stride == whole->cols);
    CHECK(of <= PROGRAM_MAX_PARTS && (!whole->n_groups || whole->n_groups == of));
    CHECK(first >= 0 && n > 0 && first + n <= of);
    whole->n_groups = of;
    int made = program_view(program, base, row * whole->stride, rows, whole->cols, whole->stride);
    program->values[made].group = 1 + first;
    program->values[made].n_groups = n;
    return made;
}

int program_groups(struct program *program, int base, int of, int first, int n, int64_t rows)
{
    return view_of_groups(program, base, of, first, n, 0, rows);
}

int program_rows_of_group(struct program *program, int base, int of, int group, int64_t row,
                          int64_t rows)
{
    return view_of_groups(program, base, of, group, 1, row, rows);
}

int program_n_parts(const struct program *program, int base)
{
    const struct value *v = &program->values[base];

    if (v->n_groups)
        return v->n_groups;
    return v->part_rows ? (int)((v->part_period + v->part_rows - 1) / v->part_rows) : 1;
}

/* Rows of a view that are whole periods apart are in the same parts as its first. */
struct value_parts program_parts(const struct program *program, int id)
{
    int base_id = program_base(program, id);
    const struct value *v = &program->values[id], *base = &program->values[base_id];
    struct value_parts all = { 0, program_n_parts(program, base_id) };

    if (v->group && program_whole(program, id) == base_id)
        return (struct value_parts){ v->group - 1, v->n_groups };
    if (!base->part_rows || program_whole(program, id) != base_id)
        return all;
    int64_t period = base->part_period * base->stride;
    int64_t first = v->offset % period, last = first + v->cols - 1;
    if (v->rows > 1 && v->stride % period != 0)
        last += (v->rows - 1) * v->stride;
    if (last >= period)
        return all;
    int from = (int)(first / base->stride / base->part_rows);
    return (struct value_parts){ from, (int)(last / base->stride / base->part_rows) - from + 1 };
}

int program_overlap(const struct program *program, int a, int b)
{
    const struct value *x = &program->values[a], *y = &program->values[b];
    int64_t x_end = x->offset + x->cols, y_end = y->offset + y->cols;

    if (program_whole(program, a) != program_whole(program, b))
        return 0;
    if (x->group && y->group)
        return x->group < y->group + y->n_groups && y->group < x->group + x->n_groups;
    if (x->group || y->group)
        return 1;
    if (x->rows != y->rows || x->stride != y->stride ||
        x->offset / x->stride != y->offset / y->stride) {
        x_end += (x->rows - 1) * x->stride;
        y_end += (y->rows - 1) * y->stride;
    }
    return x->offset < y_end && y->offset < x_end;
}

void program_split_rows(struct program *program, int id)
{
    struct axis_list tokens = axes_of(&program->mesh, SPLITS_TOKENS, PARAMETER_DENSE);

    for (int i = 0; i < tokens.n; i++)
        program->values[id].spread[tokens.axes[i]] = SPREAD_ROWS;
}

void program_split_sequences(struct program *program, int id)
{
    struct axis_list tokens = axes_of(&program->mesh, SPLITS_TOKENS, PARAMETER_DENSE);

    for (int i = 0; i < tokens.n; i++)
        if (!axis_cuts_sequences(tokens.axes[i]))
            program->values[id].spread[tokens.axes[i]] = SPREAD_ROWS;
}

int program_local_shard(struct program *program, const char *name, int value, enum mesh_axis axis)
{
    const struct value *whole = &program->values[value];
    int size = mesh_size(&program->mesh, axis), by_rows = whole->rows > 1;
    int64_t rows = by_rows ? whole->rows / size : 1;
    int64_t cols = by_rows ? whole->cols : whole->cols / size;

    CHECK(whole->rows == 1 || whole->stride == whole->cols);
    CHECK(rows * cols * size == whole->rows * whole->cols);
    CHECK(!whole->outer_shard_axis);
    int outer = whole->shard_axis, own = view_of(program, value, 0, rows, cols, cols);

    program->values[own].name = name ? arena_strdup(&program->arena, name) : NULL;
    program->values[own].shard_axis = 1 + (int)axis;
    program->values[own].outer_shard_axis = outer;
    program_spread_over(program, own, axis, by_rows ? SPREAD_ROWS : SPREAD_COLS);
    return own;
}

int program_function(struct program *program, const char *name, int chunk)
{
    struct function function = { .name = arena_strdup(&program->arena, name), .chunk = chunk };

    program->functions = arena_grow(&program->arena, program->functions, sizeof function,
                                    &program->functions_capacity, program->n_functions + 1);
    program->functions[program->n_functions] = function;
    return program->n_functions++;
}

static struct tensor value_tensor(const struct program *program, int id)
{
    const struct value *v = &program->values[id];

    if (!id)
        return (struct tensor){ 0 };
    return (
        struct tensor){ .rows = v->rows, .cols = v->cols, .stride = v->stride, .dtype = v->dtype };
}

struct op_shape program_op_shape(const struct program *program, const struct op *op)
{
    struct op_shape shape = { .kind = op->kind, .attributes = op->attributes };

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        shape.in[i] = value_tensor(program, op->in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        shape.out[i] = value_tensor(program, op->out[i]);
    return shape;
}

bool program_is_host_op(const struct program *program, const struct op *op)
{
    return op_has_kernel(op->kind) && op->in[OPS_FIRST] &&
           program->values[op->in[OPS_FIRST]].space == SPACE_HOST;
}

bool program_has_host_ops(const struct program *program)
{
    for (int f = 0; f < program->n_functions; f++)
        for (int i = 0; i < program->functions[f].n_ops; i++)
            if (program_is_host_op(program, &program->functions[f].ops[i]))
                return true;
    return false;
}

int *program_list_owners(const struct program *program, struct arena *arena)
{
    int *owner = arena_array(arena, int, program->n_values);

    for (int id = 1; id < program->n_values; id++)
        if (program->values[id].home)
            owner[program->values[id].home] = id;
    return owner;
}

int program_is_over(const struct op *op, int axis)
{
    return op_is_collective(op->kind) && axis_covers(op->attributes.axis, (enum mesh_axis)axis);
}

int program_has_spread(const struct program *program, const struct op *op, int axis)
{
    if (program->mesh.size[axis] == 1 || (op_info(op->kind)->traits & TRAIT_TRANSFER))
        return 0;
    return axis_role((enum mesh_axis)axis, PARAMETER_DENSE) != SPLITS_LAYERS ||
           program_is_over(op, axis);
}

/* Spreads of the outputs on every axis that has more than one rank. */
static void set_spreads(struct program *program, const struct op *op)
{
    struct op_shape shape = program_op_shape(program, op);
    struct err err;

    for (int axis = 0; axis < N_AXES; axis++) {
        enum spread in[OPS_MAX_INPUTS] = { SPREAD_SAME }, out[OPS_MAX_OUTPUTS] = { SPREAD_SAME };

        if (!program_has_spread(program, op, axis))
            continue;
        for (int i = 0; i < OPS_MAX_INPUTS; i++)
            in[i] = program->values[op->in[i]].spread[axis];
        if (op_spread(&shape, program_is_over(op, axis), in, out, &err) < 0) {
            fprintf(stderr, "lmtrain: %s\n", err.text);
            CHECK(!"spreads of an emitted op");
        }
        for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
            if (op->out[i])
                program->values[op->out[i]].spread[axis] = out[i];
    }
}

enum stream stream_of_axis(enum mesh_axis axis)
{
    static const enum stream streams[] = {
        [SPLITS_TOKENS] = STREAM_DP_REDUCE, [SPLITS_MODEL] = STREAM_TP, [SPLITS_LAYERS] = STREAM_PP
    };

    if (axis_has_experts(axis))
        return STREAM_EP;
    return axis_cuts_sequences(axis) ? STREAM_CP : streams[axis_role(axis, PARAMETER_DENSE)];
}

enum stream stream_of_sums(enum mesh_axis axis)
{
    return axis_role(axis, PARAMETER_DENSE) == SPLITS_TOKENS ? STREAM_DP_REDUCE
                                                             : stream_of_axis(axis);
}

static void check_shapes(const struct program *program, int function, const struct op *op)
{
    struct op_shape shape = program_op_shape(program, op);
    struct err err;

    if (op_check(&shape, &err) < 0) {
        fprintf(stderr, "lmtrain: %s: %s\n", program->functions[function].name, err.text);
        CHECK(!"shapes of an emitted op");
    }
}

void program_change(struct program *program, int function, int index, const struct op *op)
{
    CHECK(index >= 0);
    CHECK(index < program->functions[function].n_ops);
    check_shapes(program, function, op);
    set_spreads(program, op);
    program->functions[function].ops[index] = *op;
}

int program_insert(struct program *program, int function, int index, const struct op *op)
{
    struct function *f = &program->functions[function];

    check_shapes(program, function, op);
    set_spreads(program, op);
    CHECK(index >= 0);
    CHECK(index <= f->n_ops);
    f->ops = arena_grow(&program->arena, f->ops, sizeof *op, &f->capacity, f->n_ops + 1);
    memmove(f->ops + index + 1, f->ops + index, sizeof *op * (size_t)(f->n_ops - index));
    f->ops[index] = *op;
    f->n_ops++;
    return index;
}

int program_emit(struct program *program, int function, const struct op *op)
{
    return program_insert(program, function, program->functions[function].n_ops, op);
}

enum first_mode program_first_mode(const struct program *program, const struct op *op, int output)
{
    int base = program_base(program, op->out[output]);

    if (!program_accumulates(program, op, output))
        return FIRST_ALWAYS;
    /* A plain value belongs to one micro-batch. */
    if (op->first == FIRST_MICRO_BATCH && program->values[base].role == ROLE_NONE)
        return FIRST_ALWAYS;
    if (op->first == FIRST_ALWAYS && program->values[base].role != ROLE_GRADIENT &&
        program->values[base].role != ROLE_NONE)
        return FIRST_MICRO_BATCH;
    return op->first;
}

int program_accumulates(const struct program *program, const struct op *op, int output)
{
    int base = program_base(program, op->out[output]);

    if (!base)
        return 0;
    if (op->kind == OP_REDUCE_SCATTER)
        return program->values[base].role == ROLE_GRADIENT;
    return (op_info(op->kind)->outputs[output].flags & OPERAND_ACCUMULATED) != 0;
}

int program_slot(const struct program *program, int id, int micro_batch)
{
    const struct value *v = &program->values[id];

    if (v->scope != SCOPE_STASH || micro_batch < 0 || !program->n_stashes)
        return 0;
    const struct stash *stash = &program->stashes[v->stash];
    return stash->slots ? stash->slots[micro_batch] : micro_batch % stash->n_slots;
}

size_t program_place(const struct program *program, int id, int micro_batch)
{
    const struct value *v = &program->values[id];
    const struct stash *stash = &program->stashes[v->stash];

    if (v->scope != SCOPE_STASH)
        return v->place_bytes;
    return stash->begin_bytes + (size_t)program_slot(program, id, micro_batch) * stash->slot_bytes +
           v->place_bytes;
}

size_t program_value_bytes(const struct program *program, int id)
{
    const struct value *v = &program->values[id];

    return (size_t)(v->rows * v->cols) * dtype_bytes(v->dtype);
}

int program_has_content(const struct program *program, int id)
{
    return program->values[id].content || program->values[id].runs;
}

static void fill_once(enum dtype dtype, void *elements, int64_t at, const struct content_run *run,
                      double first)
{
    CHECK(dtype == DTYPE_I32 || dtype == DTYPE_F64);
    if (dtype == DTYPE_I32)
        for (int64_t k = 0, next = (int64_t)first; k < run->n; k++, next += (int64_t)run->step)
            ((int32_t *)elements)[at + k] = (int32_t)next;
    else
        for (int64_t k = 0; k < run->n; k++)
            ((double *)elements)[at + k] = first + (double)k * run->step;
}

void program_fill_content(const struct program *program, int id, void *elements)
{
    const struct value *v = &program->values[id];
    size_t n_bytes = program_value_bytes(program, id);
    int64_t at = 0;

    if (v->content) {
        memcpy(elements, v->content, n_bytes);
        return;
    }
    memset(elements, 0, n_bytes);
    for (int64_t i = 0; i < v->runs->n; i++) {
        const struct content_run *run = &v->runs->runs[i];

        CHECK(run->n * run->n_times <= v->rows * v->cols - at);
        for (int64_t k = 0; k < run->n_times; k++, at += run->n)
            fill_once(v->dtype, elements, at, run, run->first + (double)k * run->apart);
    }
}

void program_size_scratch(struct program *program, program_scratch_fn scratch, void *context)
{
    for (int f = 0; f < program->n_functions; f++) {
        struct function *function = &program->functions[f];

        for (int i = 0; i < function->n_ops; i++) {
            struct op_shape shape = program_op_shape(program, &function->ops[i]);

            function->ops[i].scratch_bytes =
                program_is_host_op(program, &function->ops[i]) ? 0 : scratch(context, &shape);
        }
    }
}

const char *phase_name(enum phase phase)
{
    static const char *const names[N_PHASES] = { "F", "R", "B", "W", "U" };

    return names[phase];
}

const char *stream_name(enum stream stream)
{
    static const char *const names[N_STREAMS] = {
        [STREAM_COMPUTE] = "compute",
        [STREAM_TP] = "tp",
        [STREAM_CP] = "cp",
        [STREAM_EP] = "ep",
        [STREAM_DP_GATHER] = "dp_gather",
        [STREAM_DP_REDUCE] = "dp_reduce",
        [STREAM_PP] = "pp",
        [STREAM_F_TO_NEXT] = "f_to_next",
        [STREAM_F_TO_PREVIOUS] = "f_to_previous",
        [STREAM_F_FROM_NEXT] = "f_from_next",
        [STREAM_F_FROM_PREVIOUS] = "f_from_previous",
        [STREAM_B_TO_NEXT] = "b_to_next",
        [STREAM_B_TO_PREVIOUS] = "b_to_previous",
        [STREAM_B_FROM_NEXT] = "b_from_next",
        [STREAM_B_FROM_PREVIOUS] = "b_from_previous",
        [STREAM_COPY_OUT] = "copy_out",
        [STREAM_COPY_IN] = "copy_in",
    };

    return names[stream];
}

const char *segment_name(enum segment segment)
{
    static const char *const names[N_SEGMENTS] = { "weights", "gradients",  "states",
                                                   "stash",   "scratch",    "communication",
                                                   "library", "kv cache",   "inputs",
                                                   "host",    "host stash", "host scratch",
                                                   "file",    "file stash", "file scratch" };

    return names[segment];
}

enum space segment_space(enum segment segment)
{
    return segment >= SEGMENT_FILE_CELLS   ? SPACE_FILE
           : segment >= SEGMENT_HOST_CELLS ? SPACE_HOST
                                           : SPACE_DEVICE;
}

const char *role_name(enum cell_role role)
{
    static const char *const names[N_ROLES] = { "value",    "weight", "master",   "moment 1",
                                                "moment 2", "scale",  "average",  "gradient",
                                                "input",    "scalar", "constant", "cache",
                                                "home",     "error",  "codes",    "pages" };

    return names[role];
}

const char *entry_name(enum entry_kind entry)
{
    static const char *const names[N_ENTRIES] = { "step",         "gather",      "evaluate",
                                                  "evaluate_end", "prefill",     "decode",
                                                  "feed",         "score",       "recheck",
                                                  "rerun",        "uncompressed" };

    return names[entry];
}
