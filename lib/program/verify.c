/*
 * verify.c - the static checks of a program before it runs
 *
 * Each op is checked alone (shapes, dtypes, spreads, whole sequences), memory in verify_memory.c,
 * the contents of the stash's slots in verify_stash.c, and each entry by walking its actions as run
 * will. On that walk
 *
 *  - a value is written once, and before it is read; of one with parts, each part is;
 *  - an accumulator starts from zero, sees the micro-batches in increasing order, and is not added
 *    to after its sum over ranks was begun;
 *  - a value with a home is brought before it is read, and sent home once it is written
 *    (verify_home.c);
 *  - memory that is partial over ranks, or of which each rank has updated its local shard alone, is
 *    not read as if it were whole.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/passes.h"
#include "program/verify_walk_impl.h"

const char *verify_value_text(const struct program *p, int id, char *buffer, size_t size)
{
    if (p->values[id].name)
        return p->values[id].name;
    snprintf(buffer, size, "%%%d", id);
    return buffer;
}

int verify_complain(const struct program *p, const struct function *f, const struct op *op,
                    int value, const char *what, struct err *err)
{
    char text[32];

    return err_set(err, ERR_FAILED, "program: %s: %s (layer %d): %s %s", f->name,
                   op_info(op->kind)->name, op->layer,
                   verify_value_text(p, value, text, sizeof text), what);
}

/* Attention over a rank's own keys alone has no wrong shape: along an axis that cuts sequences its
 * rows look like other sequences. */
static int check_sequences(const struct program *p, const struct function *f, const struct op *op,
                           enum mesh_axis axis, struct err *err)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 0; k < info->n_inputs && axis_cuts_sequences(axis); k++)
        if ((info->inputs[k].flags & OPERAND_SEQUENCES) && op->in[k] &&
            p->values[op->in[k]].spread[axis] == SPREAD_ROWS) {
            verify_complain(p, f, op, op->in[k],
                            "is a part of each sequence where all of it is read", err);
            return err_add(err, "over %s", axis_name(axis));
        }
    return 0;
}

static int check_spreads(const struct program *p, const struct function *f, const struct op *op,
                         const struct op_shape *shape, struct err *err)
{
    for (int axis = 0; axis < N_AXES; axis++) {
        enum spread in[OPS_MAX_INPUTS], out[OPS_MAX_OUTPUTS] = { SPREAD_SAME };

        if (!program_has_spread(p, op, axis))
            continue;
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            in[k] = p->values[op->in[k]].spread[axis];
        if (op_spread(shape, program_is_over(op, axis), in, out, err) < 0)
            return err_add(err, "program: %s: over %s", f->name, axis_name((enum mesh_axis)axis));
        if (check_sequences(p, f, op, (enum mesh_axis)axis, err) < 0)
            return -1;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (op->out[k] && p->values[op->out[k]].spread[axis] != out[k])
                return verify_complain(p, f, op, op->out[k],
                                       "does not have the spread its op gives", err);
    }
    return 0;
}

/* Kernels can access the device's memory alone; the host's, of a host op, the host's. */
static int check_space(const struct program *p, const struct function *f, const struct op *op,
                       const struct op_operand *operand, int id, struct err *err)
{
    bool is_host = (op_info(op->kind)->traits & TRAIT_ON_HOST) && program_is_host_op(p, op);
    enum space space = p->values[id].space;
    char what[64];

    if (!id || (is_host ? space == SPACE_HOST : operand_takes(operand->flags, space)))
        return 0;
    snprintf(what, sizeof what, "lies in memory of the %s, wanted of the %s", space_name(space),
             space_name(is_host || operand->flags & OPERAND_AWAY ? SPACE_HOST : SPACE_DEVICE));
    return verify_complain(p, f, op, id, what, err);
}

static int check_spaces(const struct program *p, const struct function *f, const struct op *op,
                        struct err *err)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 0; k < info->n_inputs; k++)
        if (check_space(p, f, op, &info->inputs[k], op->in[k], err) < 0)
            return -1;
    for (int k = 0; k < info->n_outputs; k++)
        if (check_space(p, f, op, &info->outputs[k], op->out[k], err) < 0)
            return -1;
    return 0;
}

static int check_ops(const struct program *p, const struct function *f, struct err *err)
{
    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(p, &f->ops[i]);

        if (op_check(&shape, err) < 0)
            return err_add(err, "program: %s", f->name);
        if (check_spreads(p, f, &f->ops[i], &shape, err) < 0 ||
            check_spaces(p, f, &f->ops[i], err) < 0)
            return -1;
    }
    return 0;
}

/* ---- order: walk an entry's actions as run does ---- */

static bool is_pass(const struct value *v)
{
    return v->home || (v->role == ROLE_NONE && v->scope == SCOPE_PASS);
}

/* What is known of a value that is away is known of its home. */
static unsigned char *spread_of(const struct verify_walk *w, int base)
{
    return &w->spread[(size_t)(w->owners[base] ? w->owners[base] : base) * N_AXES];
}

static bool must_be_written(const struct verify_walk *w, int base)
{
    const struct value *v = &w->program->values[base];

    if (v->role == ROLE_HOME)
        return !w->owners[base] || w->program->values[w->owners[base]].role == ROLE_GRADIENT;
    return v->home || v->role == ROLE_NONE || v->role == ROLE_GRADIENT || v->role == ROLE_INPUT;
}

int verify_reads_output(const struct program *p, const struct op *op, int k)
{
    if (op_info(op->kind)->outputs[k].flags & OPERAND_UPDATED)
        return 1;
    /* An op may add to a sum that is complete (and possibly has a view of its own). */
    return op->kind == OP_ACCUMULATE && program_first_mode(p, op, k) == FIRST_NEVER;
}

static int check_read(const struct verify_walk *w, const struct function *f, const struct op *op,
                      int id)
{
    const struct program *p = w->program;
    int base = program_base(p, id), when = w->written[base];
    const struct value *v = &p->values[base];

    if (w->owners[base] && verify_at_home(w, f, op, id, "is read") < 0)
        return -1;
    if (must_be_written(w, base) && v->scope != SCOPE_STASH &&
        (when == NEVER || (is_pass(v) && when != w->run)))
        return verify_complain(
            p, f, op, id, v->home ? "is read while it is away" : "is read before it is written",
            w->err);
    if (verify_parts(w, f, op, id) < 0)
        return -1;
    if (p->values[id].bucket && p->values[id].base && w->gathered[base] != p->values[id].bucket)
        return verify_complain(p, f, op, id,
                               w->gathered[base]
                                   ? "is read where another bucket was gathered since"
                                   : "is read as whole before its shards were gathered",
                               w->err);
    for (int axis = 0; axis < N_AXES; axis++) {
        int is = spread_of(w, base)[axis];

        if (p->mesh.size[axis] == 1)
            continue;
        if (is == SPREAD_PARTIAL && p->values[id].spread[axis] != SPREAD_PARTIAL)
            return verify_complain(p, f, op, id, "is read as whole while sums over ranks are owed",
                                   w->err);
        if (is != SPREAD_SAME && p->values[id].spread[axis] == SPREAD_SAME)
            return verify_complain(p, f, op, id, "is read as whole before its shards were gathered",
                                   w->err);
    }
    return 0;
}

/* Whether views of one base have an element in common. Both are flat or whole. */
static int overlap(const struct value *a, const struct value *b)
{
    return a->offset < b->offset + (b->rows - 1) * b->stride + b->cols &&
           b->offset < a->offset + (a->rows - 1) * a->stride + a->cols;
}

static bool is_partial(const struct program *p, int id)
{
    for (int axis = 0; axis < N_AXES; axis++)
        if (p->mesh.size[axis] > 1 && p->values[id].spread[axis] == SPREAD_PARTIAL)
            return true;
    return false;
}

/*
 * An accumulator of one micro-batch starts from zero: previous sums in its memory, its own
 * included, must have been reduced.
 */
static int check_restart(const struct verify_walk *w, const struct function *f, const struct op *op,
                         int id)
{
    const struct program *p = w->program;
    int base = program_base(p, id);

    for (int other = w->last_started[base]; other; other = w->started_before[other])
        if (overlap(&p->values[id], &p->values[other]))
            return verify_complain(p, f, op, other,
                                   "is overwritten before its sum over ranks is started", w->err);
    if (is_partial(p, id)) {
        w->started_before[id] = w->last_started[base];
        w->last_started[base] = id;
    }
    return 0;
}

/* The sum over ranks of the accumulators in this view begins. */
static void forget_started(struct verify_walk *w, int id)
{
    const struct value *values = w->program->values;

    for (int *at = &w->last_started[program_base(w->program, id)]; *at;)
        if (overlap(&values[id], &values[*at]))
            *at = w->started_before[*at];
        else
            at = &w->started_before[*at];
}

/* Check an op that accumulates into `id`. In entries other than the step the caller decides when
 * accumulators start from zero. */
static int check_accumulation(struct verify_walk *w, const struct function *f, const struct op *op,
                              int output)
{
    const struct program *p = w->program;
    int id = op->out[output], base = program_base(p, id);
    enum first_mode mode = program_first_mode(p, op, output);
    int first = mode == FIRST_MICRO_BATCH ? w->first : mode == FIRST_ALWAYS;

    if (mode == FIRST_NEVER && op->kind == OP_ACCUMULATE)
        return 0;
    if (mode == FIRST_ALWAYS && p->values[base].role != ROLE_NONE &&
        check_restart(w, f, op, id) < 0)
        return -1;
    if (first || !entry_is_step(w->entry))
        w->started[id] = 1 + w->reduced[base];
    else if (w->started[id] == NEVER)
        return verify_complain(p, f, op, id, "is added to what was never started", w->err);
    else if (w->started[id] != 1 + w->reduced[base])
        return verify_complain(p, f, op, id, "is added to after its sum over ranks was begun",
                               w->err);
    if (mode != FIRST_MICRO_BATCH)
        return 0;
    if (w->micro_batch + 2 < w->accumulated[id])
        return verify_complain(p, f, op, id, "takes micro-batches out of order", w->err);
    w->accumulated[id] = w->micro_batch + 2;
    return 0;
}

static int check_write(struct verify_walk *w, const struct function *f, const struct op *op, int k)
{
    const struct program *p = w->program;
    int id = op->out[k], base = program_base(p, id);
    const struct value *v = &p->values[base];

    bool stays = op_info(op->kind)->outputs[k].flags & OPERAND_STAYS;
    if (stays && is_pass(v) && w->written[base] != w->run)
        return verify_complain(p, f, op, id, "may stay as it is, and nothing was there", w->err);
    if (verify_note_write(w, f, op, id) < 0)
        return -1;
    enum first_mode mode = program_first_mode(p, op, k);
    int adds = program_accumulates(p, op, k) && mode == FIRST_NEVER;
    int starts = mode == FIRST_MICRO_BATCH ? w->first : mode == FIRST_ALWAYS;
    if (v->home && program_accumulates(p, op, k) && !starts && w->written[base] != w->run)
        return verify_complain(p, f, op, id, "is added to while it is away", w->err);
    if (v->role == ROLE_NONE && w->once[id] == w->run && !adds && !stays)
        return verify_complain(p, f, op, id, "is written twice", w->err);
    w->once[id] = w->run;
    if (verify_reads_output(p, op, k) && check_read(w, f, op, id) < 0)
        return -1;
    if (program_accumulates(p, op, k) && check_accumulation(w, f, op, k) < 0)
        return -1;
    if (op->kind == OP_ALL_GATHER && p->values[id].bucket) {
        if (p->values[op->in[ALL_GATHER_SHARD]].bucket != p->values[id].bucket)
            return verify_complain(p, f, op, id, "is gathered from another bucket's shards",
                                   w->err);
        w->gathered[base] = p->values[id].bucket;
    }
    w->written[base] = is_pass(v) ? w->run : WRITTEN;
    verify_note_parts(w, id);
    for (int axis = 0; axis < N_AXES; axis++)
        spread_of(w, base)[axis] = (unsigned char)p->values[id].spread[axis];
    return 0;
}

/* A total is a sum over one axis after the other, of what the head adds to, on all ranks but where
 * it stays zero; one left out shows as a sum of nothing. */
static int check_total(const struct verify_walk *w, const struct function *f, const struct op *op)
{
    const struct ports *ports = &w->program->ports;
    int id = op->in[OPS_FIRST];

    if (!ports->loss && !ports->eval_loss)
        return 0;
    if (op->kind != OP_ALL_REDUCE_SCALAR || id == ports->loss || id == ports->eval_loss ||
        id == ports->squares || id == ports->router_stats || id == ports->dropped ||
        w->written[program_base(w->program, id)] != NEVER)
        return 0;
    return verify_complain(w->program, f, op, id, "is summed over ranks before it is written",
                           w->err);
}

static int check_inputs(struct verify_walk *w, const struct function *f, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        if (!op->in[k])
            continue;
        if (check_read(w, f, op, op->in[k]) < 0)
            return -1;
        if ((op_info(op->kind)->inputs[k].flags & OPERAND_UPDATED) &&
            verify_note_write(w, f, op, op->in[k]) < 0)
            return -1;
    }
    return 0;
}

static int walk_function(struct verify_walk *w, int function)
{
    const struct program *p = w->program;
    const struct function *f = &p->functions[function];

    w->run++;
    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];

        if (verify_comes_or_goes(w, op)) {
            if (verify_move(w, f, op) < 0)
                return -1;
            continue;
        }
        if (op->kind != OP_AWAIT && check_inputs(w, f, op) < 0) /* it reads no contents */
            return -1;
        if (check_total(w, f, op) < 0)
            return -1;
        if (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE || op->kind == OP_ENCODE ||
            op->kind == OP_TOP_K) {
            w->reduced[program_base(p, op->in[OPS_FIRST])]++;
            forget_started(w, op->in[OPS_FIRST]);
        }
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (op->out[k] && check_write(w, f, op, k) < 0)
                return -1;
    }
    return verify_all_parts(w, f) < 0 ? -1 : verify_all_saved(w, f);
}

static int walk_action(struct verify_walk *w, const struct action *a)
{
    const struct program *p = w->program;

    w->micro_batch = a->micro_batch;
    w->first = a->first;
    if (a->kind == ACTION_LOAD)
        for (int id = 1; id < p->n_values; id++)
            if (p->values[id].role == ROLE_INPUT)
                w->written[program_base(p, id)] = WRITTEN;
    if (a->kind == ACTION_RUN && walk_function(w, a->function) < 0)
        return err_add(w->err, "%s, micro-batch %d", entry_name(w->entry), a->micro_batch);
    return 0;
}

/* Whether a step ends, and so begins, with all of this cell. */
static bool is_gathered_ahead(const struct program *p, int cell)
{
    for (int i = 0; i < p->n_buckets; i++)
        if (p->buckets[i].gathered_ahead && p->buckets[i].weights == cell)
            return true;
    return false;
}

/* At the start of an entry, cells of which ranks update local shards are as the update leaves them:
 * split, but for those that it gathers. */
static void begin_split(struct verify_walk *w)
{
    const struct program *p = w->program;

    for (int id = 1; id < p->n_values; id++)
        for (int axis = 0; axis < N_AXES && p->values[id].role == ROLE_WEIGHT; axis++)
            if (p->values[id].shard_axis &&
                axis_covers((enum mesh_axis)(p->values[id].shard_axis - 1), (enum mesh_axis)axis) &&
                !(entry_begins_whole(w->entry) && is_gathered_ahead(p, p->values[id].base)))
                spread_of(w, p->values[id].base)[axis] = SPREAD_COLS;
}

static void open_walk(struct verify_walk *w, struct arena *arena)
{
    const struct program *p = w->program;
    size_t n_values = (size_t)p->n_values;

    w->written = arena_array(arena, int, n_values);
    w->once = arena_array(arena, int, n_values);
    w->accumulated = arena_array(arena, int, n_values);
    w->started = arena_array(arena, int, n_values);
    w->reduced = arena_array(arena, int, n_values);
    w->last_started = arena_array(arena, int, n_values);
    w->started_before = arena_array(arena, int, n_values);
    w->spread = arena_array(arena, unsigned char, n_values *N_AXES);
    w->gathered = arena_array(arena, int, n_values);
    w->owners = program_list_owners(p, arena);
    verify_open_stays(w, arena);
    verify_open_parts(w, arena);
}

/* What the next step begins with is there. */
static int check_ahead(const struct verify_walk *w, struct err *err)
{
    const struct program *p = w->program;

    for (int i = 0; i < p->n_buckets && entry_is_step(w->entry); i++)
        for (int axis = 0; axis < N_AXES && p->buckets[i].gathered_ahead; axis++)
            if (p->mesh.size[axis] > 1 && axis_covers(p->buckets[i].axis, (enum mesh_axis)axis) &&
                spread_of(w, p->buckets[i].weights)[axis] != SPREAD_SAME)
                return err_set(err, ERR_FAILED,
                               "program: %s: %s is not gathered, though the next step reads it",
                               entry_name(w->entry), p->values[p->buckets[i].weights].name);
    return 0;
}

/* What the host reads after the entry is there. */
static int check_end(const struct verify_walk *w, struct err *err)
{
    const struct program *p = w->program;
    int total = entry_is_step(w->entry)          ? p->ports.loss_total
                : w->entry == ENTRY_EVALUATE_END ? p->ports.eval_total
                                                 : 0;

    /* One rank's is what its head added to. */
    if (!total || total == p->ports.eval_loss || w->written[program_base(p, total)] != NEVER)
        return 0;
    return err_set(err, ERR_FAILED, "program: %s: %s is never written, though the host reads it",
                   entry_name(w->entry), p->values[total].name);
}

static int walk_entry(const struct program *p, enum entry_kind kind, struct verify_way *way,
                      struct err *err)
{
    const struct entry *e = &p->entries[kind], *gather = &p->entries[ENTRY_GATHER];
    struct verify_walk w = { .program = p, .err = err, .entry = kind };
    struct arena arena = { 0 };
    struct rounds rounds = { .arena = &arena };
    int status = 0, n_parts;

    if (!e->n_actions)
        return 0;
    rounds.parts = order_list_rounds(e, &n_parts, &arena);
    open_walk(&w, &arena);
    begin_split(&w);
    /* Evaluations run ENTRY_GATHER first. */
    for (int i = 0; kind == ENTRY_EVALUATE && !status && i < gather->n_actions; i++)
        status = walk_action(&w, &gather->actions[i]);
    for (int i = 0; !status && i < e->n_actions; i++) {
        if (!way->in_full) {
            i += rounds_to_skip(&rounds, &w, i);
            if (i == e->n_actions)
                break;
        }
        way->n_walked++;
        status = walk_action(&w, &e->actions[i]);
    }
    if (!status)
        status = check_ahead(&w, err);
    if (!status)
        status = check_end(&w, err);
    arena_release(&arena);
    return status;
}

/* ---- values that the host reads ---- */

/* Sums that the host reads as totals must have been reduced over the ranks. */
static int check_ports(const struct program *p, struct err *err)
{
    const int ports[] = { p->ports.loss_total,         p->ports.norm,
                          p->ports.clip_factor,        p->ports.skip_update,
                          p->ports.eval_total,         p->ports.logits,
                          p->ports.router_stats_total, p->ports.dropped_total,
                          p->ports.squares_total };

    for (size_t i = 0; i < sizeof ports / sizeof *ports; i++)
        for (int axis = 0; ports[i] && axis < N_AXES; axis++)
            if (p->mesh.size[axis] > 1 && p->values[ports[i]].spread[axis] != SPREAD_SAME)
                return err_set(err, ERR_FAILED, "program: %s is %s over %s where the host reads it",
                               p->values[ports[i]].name,
                               spread_name(p->values[ports[i]].spread[axis]),
                               axis_name((enum mesh_axis)axis));
    return 0;
}

/* Whether it has the spread on each part of the axis. */
static bool lies_over(const struct program *p, const struct value *v, int axis, enum spread spread)
{
    for (int part = 0; part < N_AXES; part++)
        if (axis_covers((enum mesh_axis)axis, (enum mesh_axis)part) && p->mesh.size[part] > 1 &&
            v->spread[part] != spread)
            return false;
    return true;
}

/*
 * A local shard is one of as many equal parts as the axis has ranks, and its spread is split.
 * Together they are all of their base, or, of an input, possibly the first rows alone (a smaller
 * micro-batch).
 */
static int check_local_shards(const struct program *p, struct err *err)
{
    char text[32];

    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id], *whole = &p->values[v->base];
        int axis = v->shard_axis - 1;

        if (!v->shard_axis)
            continue;
        enum spread split = whole->rows > 1 ? SPREAD_ROWS : SPREAD_COLS;
        int outer = v->outer_shard_axis - 1;
        int64_t n = v->rows * v->cols * mesh_size(&p->mesh, (enum mesh_axis)axis);

        n *= outer < 0 ? 1 : mesh_size(&p->mesh, (enum mesh_axis)outer);
        int64_t all = whole->rows * whole->cols;
        if (!v->base || v->offset || v->stride != v->cols || n > all ||
            (n < all && v->role != ROLE_INPUT) || !lies_over(p, v, axis, split) ||
            (outer >= 0 && !lies_over(p, v, outer, split)))
            return err_set(err, ERR_FAILED, "program: %s is not a rank's own part over %s",
                           verify_value_text(p, id, text, sizeof text),
                           axis_name((enum mesh_axis)axis));
    }
    return 0;
}

static bool is_placed(const struct program *p)
{
    return program_memory_bytes(p) > 0;
}

int verify_in_way(const struct program *program, struct verify_way *way, struct err *err)
{
    if (check_local_shards(program, err) < 0)
        return -1;
    for (int f = 0; f < program->n_functions; f++)
        if (check_ops(program, &program->functions[f], err) < 0)
            return -1;
    if (verify_in_place(program, err) < 0)
        return -1;
    if (is_placed(program) && verify_memory(program, err) < 0)
        return -1;
    for (int e = 0; e < N_ENTRIES; e++)
        if (walk_entry(program, (enum entry_kind)e, way, err) < 0)
            return -1;
    if (verify_stash(program, way, err) < 0)
        return -1;
    return check_ports(program, err);
}

int verify(const struct program *program, struct err *err)
{
    return verify_in_way(program, &(struct verify_way){ 0 }, err);
}
