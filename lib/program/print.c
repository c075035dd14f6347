/*
 * print.c - a program as text
 *
 *     F  %8, %9 = rmsnorm %3, layers.0.attention_norm.weight      [256 x 768] bf16 @scratch+0x1200
 *
 * A line has the phase; the outputs ("+=" where an op accumulates); the kind; the inputs ("-" for
 * an absent one); the first output's shape and dtype; its spread on axes of more than one rank; the
 * axis and stream of a collective; how an accumulator starts; and, after place, the address of the
 * first output. The address of a local shard depends on the rank, the address of a stash value on
 * the micro-batch m; where chunks share slots, a table maps m to the slot, which is printed after
 * the functions. Golden files of passes keep the segment alone (PRINT_SEGMENTS), since a change of
 * placement would otherwise rewrite all of them; addresses have golden files of their own, which
 * print_memory_map writes.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/axes.h"
#include "program/passes.h"

/* Rows and columns of what it is a view of. */
static bool is_rectangle(const struct program *p, const struct value *v)
{
    return v->base && v->stride == p->values[v->base].stride;
}

/* "%12[0:16]" are rows, "%12[:,32:48]" columns. */
static void print_rectangle(const struct program *p, const struct value *v, struct str *out)
{
    const struct value *base = &p->values[v->base];
    int64_t row = v->offset / v->stride, col = v->offset % v->stride;

    if (base->name)
        str_add(out, base->name);
    else
        str_printf(out, "%%%d", v->base);
    if (v->rows != base->rows)
        str_printf(out, "[%lld:%lld", (long long)row, (long long)(row + v->rows));
    else
        str_add(out, "[:");
    if (v->cols != base->cols)
        str_printf(out, ",%lld:%lld", (long long)col, (long long)(col + v->cols));
    str_add_char(out, ']');
}

/* Whether each row of a view is some whole rows of its base: a slice of each rank's rows. */
static bool is_slice(const struct program *p, const struct value *v)
{
    const struct value *base = &p->values[v->base];

    return v->base && base->part_rows && v->cols % base->cols == 0 && v->offset % base->cols == 0 &&
           (v->rows == 1 || v->stride % base->cols == 0);
}

/* "%12[0:16 64:80]" are rows 0 to 15, and 64 to 79. */
static void print_slice(const struct program *p, const struct value *v, struct str *out)
{
    const struct value *base = &p->values[v->base];
    int64_t row = v->offset / base->cols, n = v->cols / base->cols;

    str_printf(out, "%%%d", v->base);
    for (int64_t i = 0; i < v->rows; i++) {
        int64_t first = row + i * (v->stride / base->cols);

        str_printf(out, "%s%lld:%lld", i ? " " : "[", (long long)first, (long long)(first + n));
    }
    str_add_char(out, ']');
}

/* "%12[group 0]", "%12[groups 0:2]". */
static void print_groups(const struct value *v, struct str *out)
{
    str_printf(out, "%%%d[group%s %d", v->base, v->n_groups > 1 ? "s" : "", v->group - 1);
    if (v->n_groups > 1)
        str_printf(out, ":%d", v->group - 1 + v->n_groups);
    str_add_char(out, ']');
}

static void print_value(const struct program *p, int id, struct str *out)
{
    const struct value *v = &p->values[id];

    if (!id)
        str_add(out, "-");
    else if (v->name)
        str_add(out, v->name);
    else if (v->group)
        print_groups(v, out);
    else if (is_rectangle(p, v))
        print_rectangle(p, v, out);
    else if (is_slice(p, v))
        print_slice(p, v, out);
    else
        str_printf(out, "%%%d", id);
}

static int count_present(const int *ids, int n)
{
    while (n > 0 && !ids[n - 1])
        n--;
    return n;
}

/* marks: the inputs in the catalogue, to put "~" in front of those that are updated in place. */
static void print_list(const struct program *p, const int *ids, const struct op_operand *marks,
                       int n, struct str *out)
{
    for (int k = 0; k < n; k++) {
        if (k)
            str_add(out, ", ");
        if (marks && marks[k].flags & OPERAND_UPDATED)
            str_add_char(out, '~');
        print_value(p, ids[k], out);
    }
}

/* Whether some output grows by what the op gives instead of being replaced. */
static bool accumulates(const struct program *p, const struct op *op)
{
    const struct op_info *info = op_info(op->kind);

    for (int k = 0; k < info->n_outputs; k++)
        if (program_accumulates(p, op, k) ||
            (op->out[k] && info->outputs[k].flags & OPERAND_UPDATED))
            return true;
    return false;
}

static void pad_to(struct str *out, size_t line_start, size_t column)
{
    while (out->length - line_start < column)
        str_add_char(out, ' ');
}

/* n: rows that each row is, of a product of runs of rows; else 1. */
static void print_shape(const struct program *p, int id, int64_t n, struct str *out)
{
    const struct value *v = &p->values[id];

    str_printf(out, "[%lld x %lld] %s", (long long)(v->rows * n), (long long)(v->cols / n),
               dtype_name(v->dtype));
    /* Along the pipeline nearly all is each rank's own. */
    for (int axis = 0; axis < N_AXES; axis++)
        if (p->mesh.size[axis] > 1 &&
            (axis_role((enum mesh_axis)axis, PARAMETER_DENSE) != SPLITS_LAYERS ||
             v->spread[axis] != SPREAD_SAME))
            str_printf(out, "  %s %s", spread_name(v->spread[axis]),
                       axis_name((enum mesh_axis)axis));
}

/* The first stash that goes by this one's table of slots. */
static int first_by_table(const struct program *p, int stash)
{
    int first = 0;

    while (p->stashes[first].slots != p->stashes[stash].slots)
        first++;
    return first;
}

static void print_slot(const struct program *p, int stash, struct str *out)
{
    const struct stash *s = &p->stashes[stash];

    if (s->slots)
        str_printf(out, " + slots %d[m] * 0x%zx", first_by_table(p, stash), s->slot_bytes);
    else
        str_printf(out, " + m %% %d * 0x%zx", s->n_slots, s->slot_bytes);
}

static bool is_placed(const struct program *p)
{
    size_t total = 0;

    for (int s = 0; s < N_SEGMENTS; s++)
        total += p->segment_bytes[s];
    return total > 0;
}

/* In slot 0, and on the first rank of a local shard's axis. */
static size_t first_address(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return v->scope == SCOPE_STASH ? p->stashes[v->stash].begin_bytes + v->place_bytes
                                   : program_place(p, id, 0);
}

static void print_place(const struct program *p, int id, enum print_places places, struct str *out)
{
    const struct value *v = &p->values[id];

    if (!is_placed(p))
        return;
    str_printf(out, "  @%s", segment_name(v->segment));
    if (places == PRINT_SEGMENTS)
        return;
    str_printf(out, "+0x%zx", first_address(p, id));
    if (v->scope == SCOPE_STASH && p->stashes[v->stash].n_slots > 1)
        print_slot(p, v->stash, out);
    if (v->shard_axis)
        str_printf(out, " + %s_rank * 0x%zx", axis_name((enum mesh_axis)(v->shard_axis - 1)),
                   program_value_bytes(p, id));
    if (v->outer_shard_axis)
        str_printf(out, " + %s_rank * 0x%zx", axis_name((enum mesh_axis)(v->outer_shard_axis - 1)),
                   (size_t)mesh_size(&p->mesh, (enum mesh_axis)(v->shard_axis - 1)) *
                       program_value_bytes(p, id));
}

/* Of its first input and output one lies over the other. */
static bool is_in_place(const struct program *p, const struct op *op)
{
    int in = op->in[OPS_FIRST], out = op->out[OPS_FIRST];

    return in && out && (p->values[out].over == in || p->values[in].over == out);
}

static void print_op(const struct program *p, const struct op *op, enum print_places places,
                     struct str *out)
{
    const struct op_info *info = op_info(op->kind);
    int n_in = count_present(op->in, info->n_inputs),
        n_out = count_present(op->out, info->n_outputs);
    size_t start = out->length;

    str_printf(out, "%s  ", phase_name(op->phase));
    print_list(p, op->out, NULL, n_out, out);
    if (n_out)
        str_add(out, accumulates(p, op) ? " += " : " = ");
    str_printf(out, "%s ", info->name);
    print_list(p, op->in, info->inputs, n_in, out);
    if (op_is_collective(op->kind))
        str_printf(out, "  over %s", axis_name(op->attributes.axis));
    if (is_in_place(p, op))
        str_add(out, "  in place");
    pad_to(out, start, 76);
    str_add(out, "  ");
    int shown = !n_out               ? op->in[OPS_FIRST]
                : op->out[OPS_FIRST] ? op->out[OPS_FIRST]
                                     : op->out[n_out - 1];
    print_shape(p, shown, op->attributes.run_rows ? op->attributes.run_rows : 1, out);
    if (accumulates(p, op) && op->first != FIRST_MICRO_BATCH)
        str_add(out, op->first == FIRST_ALWAYS ? "  from zero" : "  onto what is there");
    if (op->stream != STREAM_COMPUTE)
        str_printf(out, "  stream %s", stream_name(op->stream));
    print_place(p, shown, places, out);
    str_add(out, "\n");
}

void print_function(const struct program *program, int function, enum print_places places,
                    struct str *out)
{
    const struct function *f = &program->functions[function];
    int layer = -1; /* of the heading above */

    str_printf(out, "function %s: %d ops\n", f->name, f->n_ops);
    for (int i = 0; i < f->n_ops; i++) {
        if (f->ops[i].layer >= 0 && f->ops[i].layer != layer)
            str_printf(out, "   -- layer %d\n", layer = f->ops[i].layer);
        print_op(program, &f->ops[i], places, out);
    }
}

static void print_cells(const struct program *p, enum print_places places, struct str *out)
{
    str_add(out, "cells\n");
    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id];
        size_t start = out->length;

        int shown = !v->base || v->role == ROLE_GRADIENT || v->role == ROLE_WEIGHT || v->shard_axis;

        if (v->role == ROLE_NONE || !v->name || !shown)
            continue;
        str_printf(out, "   %s", v->name);
        pad_to(out, start, 48);
        str_printf(out, " %-9s ", role_name(v->role));
        print_shape(p, id, 1, out);
        print_place(p, id, places, out);
        str_add(out, "\n");
    }
}

/* By micro-batch. */
static void print_slots(const struct program *p, int stash, int n_micro_batches, struct str *out)
{
    str_printf(out, "slots %d:", stash);
    for (int m = 0; m < n_micro_batches; m++)
        str_printf(out, " %d", p->stashes[stash].slots[m]);
    str_add(out, "\n");
}

static void print_tables(const struct program *p, struct str *out)
{
    const struct entry *e = &p->entries[ENTRY_STEP];
    int n = 0;

    for (int i = 0; i < e->n_actions; i++)
        n = e->actions[i].micro_batch < n ? n : e->actions[i].micro_batch + 1;
    for (int i = 0; i < p->n_stashes; i++)
        if (p->stashes[i].slots && first_by_table(p, i) == i)
            print_slots(p, i, n, out);
}

static void print_entry(const struct program *p, enum entry_kind kind, struct str *out)
{
    const struct entry *entry = &p->entries[kind];

    if (!entry->n_actions)
        return;
    str_printf(out, "entry %s: %d actions\n", entry_name(kind), entry->n_actions);
    for (int i = 0; i < entry->n_actions; i++) {
        const struct action *a = &entry->actions[i];

        if (a->kind == ACTION_GATE)
            str_add(out, a->first ? "   gate    the host may set skip_update\n"
                                  : "   gate    wait for a save that still reads the cells\n");
        else if (a->kind == ACTION_LOAD)
            str_printf(out, "   load    micro-batch %d\n", a->micro_batch);
        else if (a->micro_batch < 0)
            str_printf(out, "   run     %s\n", p->functions[a->function].name);
        else
            str_printf(out, "   run     %s  micro-batch %d%s\n", p->functions[a->function].name,
                       a->micro_batch, a->first ? ", first" : "");
    }
}

void print_program(const struct program *program, enum print_places places, struct str *out)
{
    print_cells(program, places, out);
    for (int f = 0; f < program->n_functions; f++)
        print_function(program, f, places, out);
    if (places == PRINT_ADDRESSES)
        print_tables(program, out);
    for (int e = 0; e < N_ENTRIES; e++)
        print_entry(program, (enum entry_kind)e, out);
}

/* ---- the memory map ---- */

static void print_segments(const struct program *p, struct str *out)
{
    str_add(out, "segments\n");
    for (int s = 0; s < N_SEGMENTS; s++)
        if (p->segment_bytes[s])
            str_printf(out, "   %-12s 0x%zx\n", segment_name((enum segment)s), p->segment_bytes[s]);
}

static void print_stashes(const struct program *p, struct str *out)
{
    str_add(out, "stashes\n");
    for (int i = 0; i < p->n_stashes; i++) {
        const struct stash *s = &p->stashes[i];

        str_printf(out, "   %d: %d slot%s of 0x%zx @%s+0x%zx", i, s->n_slots,
                   s->n_slots == 1 ? "" : "s", s->slot_bytes, segment_name(s->segment),
                   s->begin_bytes);
        if (s->shared)
            str_printf(out, "  shared %d", s->shared);
        if (s->slots)
            str_printf(out, "  slots %d[m]", first_by_table(p, i));
        str_add(out, "\n");
    }
}

struct placed_value {
    const struct program *program;
    int id;
};

static int by_address(const void *a, const void *b)
{
    const struct placed_value *x = a, *y = b;
    const struct value *v = &x->program->values[x->id], *w = &y->program->values[y->id];
    size_t at = first_address(x->program, x->id), other = first_address(y->program, y->id);

    if (v->segment != w->segment)
        return v->segment < w->segment ? -1 : 1;
    if (at != other)
        return at < other ? -1 : 1;
    return x->id - y->id;
}

/* By value: whether it owns memory (it is neither a view nor over another) that an op uses, or is a
 * cell. */
static char *find_owners(const struct program *p, struct arena *arena)
{
    char *owners = arena_array(arena, char, p->n_values);

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                owners[program_base(p, op->in[k])] = 1;
            for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
                owners[program_base(p, op->out[k])] = 1;
        }
    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].role != ROLE_NONE)
            owners[program_base(p, id)] = 1;
    owners[0] = 0;
    return owners;
}

void print_memory_map(const struct program *program, struct str *out)
{
    struct arena arena = { 0 };
    struct placed_value *list = arena_array(&arena, struct placed_value, program->n_values);
    const char *owners = find_owners(program, &arena);
    int n = 0;

    for (int id = 1; id < program->n_values; id++)
        if (owners[id])
            list[n++] = (struct placed_value){ program, id };
    qsort(list, (size_t)n, sizeof *list, by_address);
    print_segments(program, out);
    print_stashes(program, out);
    print_tables(program, out);
    str_add(out, "values\n");
    for (int i = 0; i < n; i++) {
        size_t start = out->length;

        str_add(out, "   ");
        print_value(program, list[i].id, out);
        pad_to(out, start, 48);
        str_printf(out, " 0x%-6zx", program_value_bytes(program, list[i].id));
        print_place(program, list[i].id, PRINT_ADDRESSES, out);
        str_add(out, "\n");
    }
    arena_release(&arena);
}
