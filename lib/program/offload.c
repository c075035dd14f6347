/*
 * offload.c - values that leave the device's memory while they are not needed
 *
 * The pass gives values a home in other memory (program.h) and inserts the copies; no op's operands
 * change, but for the optimizer's that run on the host (offload_update.c). Which values go is
 * decided by the options: cells by kind (optimizer states, gradients, weights) and bytes, and of
 * the values that a forward keeps for its backward those of the op kinds that a layer's keep-set
 * sends away.
 *
 *     F  %38 = linear %31, up.weight
 *     F  %38.home = to_host %38                          behind its last write
 *     ...                                                %38 is still read here
 *     F  await %38                                       its memory is free from here on
 *     ------------------------------------------------------------------------------
 *     B  %38 = to_device %38.home                        ahead of its first use
 *     ...
 *     W  up.weight.grad += linear_dw %90, %38
 *
 * The uses of a value in one function are parted into stays where they lie far apart. A stay that
 * reads what was there before, or writes only a part of it, begins with to_device; one that writes
 * is followed by to_host. Copies of one direction run one after the other (stream copy_in,
 * copy_out), beside compute and beside the other direction. A host op works on the home itself
 * (offload_update.c): a stay ends before it, and the next begins behind it.
 *
 * A copy to the device is posted where the op begins that needs the one before it, so that one
 * travels while the other is used (double buffering); what left is awaited two copies later. With
 * prices of ops the points are computed (gaps.h).
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "program/offload_impl.h"

/* Uses that are more ops apart than that are two stays: the value leaves in between. In an update
 * ops touch one parameter after the other, so there it is away for long soon. */
enum { FAR_APART = 24, FAR_APART_IN_UPDATE = 4 };

/* Of a category's bytes, a smaller part than this is no help: vectors stay. */
#define SMALLEST_PART 16384

/* ---- which values go ---- */

enum away_kind offload_kind_of(const struct value *v)
{
    switch (v->role) {
    case ROLE_MASTER:
    case ROLE_MOMENT1:
    case ROLE_MOMENT2:
    case ROLE_EMA:
    case ROLE_ERROR:
        return AWAY_STATES;
    case ROLE_GRADIENT:
        return AWAY_GRADIENTS;
    case ROLE_WEIGHT:
        return AWAY_WEIGHTS;
    default:
        return N_AWAY_KINDS;
    }
}

static int operand(const struct op *op, int k)
{
    return k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
}

/* Whether the output starts from zero whenever its function runs: it holds nothing in between. */
static bool starts_always(const struct program *p, const struct op *op, int output)
{
    return program_accumulates(p, op, output) && program_first_mode(p, op, output) == FIRST_ALWAYS;
}

/* Weights that are gathered again in each entry, into a cell that is no bucket's own, are none of
 * what leaves. */
static void leave_gathered(const struct program *p, bool *holds)
{
    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id];

        if (v->bucket && v->base && v->role == ROLE_WEIGHT && !p->buckets[v->bucket - 1].weights)
            holds[v->base] = false;
    }
}

/* By base value: whether some op writes it as more than a sum of one micro-batch, or only reads
 * it. Staging buffers of gradients hold nothing between functions. */
static bool *find_holding(const struct program *p, struct arena *arena)
{
    bool *is_staging = arena_array(arena, bool, p->n_values);
    bool *holds = arena_array(arena, bool, p->n_values);

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
                int v = program_base(p, op->out[k]);

                if (starts_always(p, op, k))
                    is_staging[v] = true;
                else
                    holds[v] |= op->out[k] != 0;
            }
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                holds[program_base(p, op->in[k])] |= !is_staging[program_base(p, op->in[k])];
        }
    leave_gathered(p, holds);
    return holds;
}

void offload_send(const struct offload *o, int id, enum space space)
{
    struct program *p = o->program;
    struct value v = p->values[id];
    int home;

    CHECK(!v.base && !v.over && v.stride == v.cols);
    if (v.role == ROLE_NONE)
        home = program_host_value(p, v.rows, v.cols, v.dtype);
    else
        home = program_cell(p, ROLE_HOME, arena_printf(&p->arena, "%s.home", v.name), v.rows,
                            v.cols, v.dtype);
    p->values[home].space = space;
    memcpy(p->values[home].spread, v.spread, sizeof v.spread);
    p->values[id].home = home;
}

/* Smaller ones than a part of all are no help. */
static int leave_small(const struct program *p, int *list, int n)
{
    size_t all = 0;
    int kept = 0;

    for (int i = 0; i < n; i++)
        all += program_value_bytes(p, list[i]);
    for (int i = 0; i < n; i++)
        if (program_value_bytes(p, list[i]) >= all / SMALLEST_PART)
            list[kept++] = list[i];
    return kept;
}

int offload_list_cells(const struct program *program, enum away_kind kind, int *list)
{
    const struct program *p = program;
    struct arena arena = { 0 };
    bool *holds = find_holding(p, &arena), *listed = arena_array(&arena, bool, p->n_values);
    int n = 0;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
                int v = program_base(p, operand(&p->functions[f].ops[i], k));

                if (!v || listed[v] || !holds[v] || p->values[v].home ||
                    p->values[v].space != SPACE_DEVICE || offload_kind_of(&p->values[v]) != kind)
                    continue;
                listed[v] = true;
                list[n++] = v;
            }
    arena_release(&arena);
    return leave_small(p, list, n);
}

/* So many bytes at least go, of them `filed` to the file: the last ones. */
static void send_cells(const struct offload *o, enum away_kind kind)
{
    const struct program *p = o->program;
    int *list = arena_array(o->arena, int, p->n_values);
    size_t wanted = o->options->rank.cells[kind].bytes;
    size_t filed = o->options->rank.cells[kind].filed_bytes, all = 0, away = 0;
    int n = wanted ? offload_list_cells(p, kind, list) : 0;

    for (int i = 0; i < n; i++)
        all += program_value_bytes(p, list[i]);
    size_t most = min_size(wanted, all);
    for (int i = 0; i < n && away < most; i++) {
        size_t n_bytes = program_value_bytes(p, list[i]);

        offload_send(o, list[i],
                     filed && away + n_bytes > most - min_size(filed, most) ? SPACE_FILE
                                                                            : SPACE_HOST);
        away += n_bytes;
    }
}

/* ---- stays ---- */

static struct visit *add_visit(const struct offload *o, struct visits *s, int value, int at)
{
    s->list = arena_grow(o->arena, s->list, sizeof *s->list, &s->capacity, s->n + 1);
    s->list[s->n] = (struct visit){
        .value = value, .first = at, .last = at, .last_write = -1, .before = s->of[value]
    };
    if (s->of[value])
        s->list[s->of[value] - 1].after = 1 + s->n;
    s->of[value] = ++s->n;
    return &s->list[s->n - 1];
}

static struct visit *visit_at(const struct offload *o, struct visits *s, const struct function *f,
                              int value, int at)
{
    struct visit *v = s->of[value] ? &s->list[s->of[value] - 1] : NULL;
    int far = f->ops[at].phase == PHASE_U ? FAR_APART_IN_UPDATE : FAR_APART;

    if (!v || v->is_home || at - v->last > far)
        return add_visit(o, s, value, at);
    v->last = at;
    return v;
}

static void visit_homes(const struct offload *o, struct visits *s, const struct op *op, int at)
{
    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int owner = s->owners[program_base(o->program, operand(op, k))];

        if (owner)
            add_visit(o, s, owner, at)->is_home = true;
    }
}

/* Whether the op adds to what was there, or changes it, in some micro-batch. */
static bool takes_old(const struct offload *o, const struct op *op, int output)
{
    const struct program *p = o->program;

    if (op_info(op->kind)->outputs[output].flags & (OPERAND_UPDATED | OPERAND_STAYS))
        return true;
    if (!program_accumulates(p, op, output))
        return false;
    enum first_mode mode = program_first_mode(p, op, output);
    return mode == FIRST_NEVER || (mode == FIRST_MICRO_BATCH && o->options->n_micro_batches != 1);
}

static void visit_output(const struct offload *o, struct visits *s, const struct function *f, int i,
                         int k)
{
    const struct program *p = o->program;
    int id = f->ops[i].out[k], value = program_base(p, id);

    if (!p->values[value].home)
        return;
    struct visit *v = visit_at(o, s, f, value, i);
    v->reads_first |= v->last_write < 0 && takes_old(o, &f->ops[i], k);
    v->last_write = i;
    v->n_written += p->values[id].rows * p->values[id].cols;
}

static void visit_input(const struct offload *o, struct visits *s, const struct function *f, int i,
                        int k)
{
    const struct program *p = o->program;
    int id = f->ops[i].in[k], value = program_base(p, id);

    if (!p->values[value].home)
        return;
    struct visit *v = visit_at(o, s, f, value, i);
    v->reads_first |= v->last_write < 0;
    if (op_info(f->ops[i].kind)->inputs[k].flags & OPERAND_UPDATED)
        v->last_write = i;
}

static void find_visits(const struct offload *o, struct visits *s, const struct function *f)
{
    memset(s->of, 0, sizeof *s->of * (size_t)o->program->n_values);
    s->n = 0;
    for (int i = 0; i < f->n_ops; i++) {
        if (program_is_host_op(o->program, &f->ops[i])) {
            visit_homes(o, s, &f->ops[i], i);
            continue;
        }
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            visit_input(o, s, f, i, k);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            visit_output(o, s, f, i, k);
    }
}

bool offload_is_brought(const struct offload *o, const struct visit *v)
{
    const struct value *value = &o->program->values[v->value];

    if (v->is_home)
        return false;
    return v->reads_first || v->before ||
           (value->role != ROLE_NONE && v->n_written < value->rows * value->cols);
}

/* ---- copies ---- */

enum copy_kind { COPY_AWAIT, COPY_BRING, COPY_SEND };

/* An op to be inserted before ops[at]. */
struct inserted {
    int at;
    enum copy_kind kind;
    int value, number; /* number: of the order in which they were planned */
};

struct insertions {
    struct inserted *list;
    int n, capacity;
};

static void insert(const struct offload *o, struct insertions *s, int at, enum copy_kind kind,
                   int value)
{
    s->list = arena_grow(o->arena, s->list, sizeof *s->list, &s->capacity, s->n + 1);
    s->list[s->n] = (struct inserted){ at, kind, value, s->n };
    s->n++;
}

static int by_place(const void *a, const void *b)
{
    const struct inserted *x = a, *y = b;

    if (x->at != y->at)
        return x->at - y->at;
    /* What was written by the op before is sent first, then memory is freed, then used. */
    static const int rank[] = { [COPY_SEND] = 0, [COPY_AWAIT] = 1, [COPY_BRING] = 2 };
    if (x->kind != y->kind)
        return rank[x->kind] - rank[y->kind];
    return x->number - y->number;
}

static struct op copy_op(const struct program *p, const struct inserted *c, const struct op *near)
{
    struct op op = { .phase = near->phase, .layer = near->layer, .first = FIRST_ALWAYS };
    int home = p->values[c->value].home;

    switch (c->kind) {
    case COPY_AWAIT:
        op.kind = OP_AWAIT;
        op.in[AWAIT_X] = c->value;
        break;
    case COPY_BRING:
        op.kind = OP_TO_DEVICE;
        op.in[TO_DEVICE_X] = home;
        op.out[TO_DEVICE_Y] = c->value;
        op.stream = STREAM_COPY_IN;
        break;
    case COPY_SEND:
        op.kind = OP_TO_HOST;
        op.in[TO_HOST_X] = c->value;
        op.out[TO_HOST_Y] = home;
        op.stream = STREAM_COPY_OUT;
        break;
    }
    return op;
}

static void rebuild(const struct offload *o, int function, struct insertions *s)
{
    struct program *p = o->program;
    struct function *f = &p->functions[function];
    struct op *ops = arena_array(&p->arena, struct op, f->n_ops + s->n);
    int n = 0, next = 0;

    qsort(s->list, (size_t)s->n, sizeof *s->list, by_place);
    for (int i = 0; i <= f->n_ops; i++) {
        for (; next < s->n && s->list[next].at == i; next++)
            ops[n++] = copy_op(p, &s->list[next], &f->ops[min_int(i, f->n_ops - 1)]);
        if (i < f->n_ops)
            ops[n++] = f->ops[i];
    }
    f->ops = ops;
    f->n_ops = f->capacity = n;
}

/* ---- the copies of a function ---- */

static void insert_copies(const struct offload *o, int function, struct visits *s,
                          struct insertions *copies)
{
    const struct function *f = &o->program->functions[function];

    offload_find_points(o, s, f);
    copies->n = 0;
    for (int i = 0; i < s->n; i++) {
        const struct visit *v = &s->list[i];

        if (v->is_home)
            continue;
        if (v->bring_at >= 0)
            insert(o, copies, v->bring_at, COPY_BRING, v->value);
        if (v->last_write < 0)
            continue;
        insert(o, copies, v->last_write + 1, COPY_SEND, v->value);
        /* The function's end waits for what is not awaited before it. */
        if (v->await_at < f->n_ops)
            insert(o, copies, v->await_at, COPY_AWAIT, v->value);
    }
}

void offload(struct program *program, const struct offload_options *options)
{
    struct arena arena = { 0 };
    struct offload o = { program, options, &arena };
    struct visits visits = { 0 };
    struct insertions copies = { 0 };

    for (int kind = 0; kind < N_AWAY_KINDS; kind++)
        send_cells(&o, (enum away_kind)kind);
    offload_send_kept(&o);
    if (options->rank.updates_on_host)
        offload_update(&o);
    offload_cut_updates(&o);
    visits.of = arena_array(&arena, int, program->n_values);
    visits.owners = program_list_owners(program, &arena);
    for (int f = 0; f < program->n_functions; f++) {
        find_visits(&o, &visits, &program->functions[f]);
        if (!visits.n)
            continue;
        insert_copies(&o, f, &visits, &copies);
        if (copies.n)
            rebuild(&o, f, &copies);
    }
    arena_release(&arena);
}
