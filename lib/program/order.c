/*
 * order.c - the tables of users, and from where on an async op is known to be complete
 */
#include "program/order.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"

int order_is_async(const struct op *op)
{
    return op->stream != STREAM_COMPUTE || !op_has_kernel(op->kind);
}

int order_has_async(const struct program *program)
{
    for (int f = 0; f < program->n_functions; f++)
        for (int i = 0; i < program->functions[f].n_ops; i++)
            if (order_is_async(&program->functions[f].ops[i]))
                return 1;
    return 0;
}

enum stream order_group_of(enum stream stream)
{
    if (stream >= STREAM_F_TO_NEXT && stream <= STREAM_F_FROM_PREVIOUS)
        return STREAM_F_TO_NEXT;
    if (stream >= STREAM_B_TO_NEXT && stream <= STREAM_B_FROM_PREVIOUS)
        return STREAM_B_TO_NEXT;
    return stream;
}

static int operand(const struct op *op, int i)
{
    return i < OPS_MAX_INPUTS ? op->in[i] : op->out[i - OPS_MAX_INPUTS];
}

static int operand_base(const struct program *p, const struct op *op, int i)
{
    return program_base(p, operand(op, i));
}

/* ---- users ---- */

int order_n_slots(const struct program *program, int id)
{
    const struct value *v = &program->values[id];

    return v->scope == SCOPE_STASH && program->n_stashes ? program->stashes[v->stash].n_slots : 1;
}

static bool is_shared(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return v->scope == SCOPE_STASH && program_base(p, id) == id && p->n_stashes &&
           p->stashes[v->stash].shared;
}

/* A value in slots that are shared. */
struct shared_place {
    int shared, id;
    size_t place_bytes;
};

static int by_place(const void *a, const void *b)
{
    const struct shared_place *x = a, *y = b;

    if (x->shared != y->shared)
        return x->shared - y->shared;
    if (x->place_bytes != y->place_bytes)
        return x->place_bytes < y->place_bytes ? -1 : 1;
    return x->id - y->id;
}

/* Where slots are shared, values with one offset share the users of the first of them. */
static void find_like(const struct order *o, int *like)
{
    const struct program *p = o->program;
    struct shared_place *list = arena_array(o->arena, struct shared_place, p->n_values);
    int n = 0;

    for (int id = 0; id < p->n_values; id++) {
        const struct value *v = &p->values[id];

        like[id] = id;
        if (id && is_shared(p, id))
            list[n++] = (struct shared_place){ p->stashes[v->stash].shared, id, v->place_bytes };
    }
    qsort(list, (size_t)n, sizeof *list, by_place);
    for (int i = 1; i < n; i++)
        if (list[i].shared == list[i - 1].shared && list[i].place_bytes == list[i - 1].place_bytes)
            like[list[i].id] = like[list[i - 1].id];
}

/* What is at an offset of a shared slot differs from time to time, and with it its parts. */
static struct value_parts parts_of(const struct program *p, int id)
{
    return is_shared(p, program_base(p, id)) ? (struct value_parts){ 0, 1 } : program_parts(p, id);
}

static void list_users(struct order *o)
{
    const struct program *p = o->program;
    int *like = arena_array(o->arena, int, p->n_values);

    find_like(o, like);
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            for (int k = 0; k < ORDER_N_OPERANDS && order_is_async(&p->functions[f].ops[i]); k++) {
                int base = like[operand_base(p, &p->functions[f].ops[i], k)];

                if (!base || o->users_at[base] != ORDER_NO_USER)
                    continue;
                o->users_at[base] = o->n_users;
                o->n_users += order_n_slots(p, base) * parts_of(p, base).n;
            }
    for (int id = 1; id < p->n_values; id++)
        o->users_at[id] = o->users_at[like[id]];
}

static void list_parts(struct order *o)
{
    for (int e = 0; e < N_ENTRIES; e++) {
        const struct entry *entry = &o->program->entries[e];

        o->parts[e] = order_list_rounds(entry, &o->n_parts[e], o->arena);
        o->n_micro_batches = max_int(o->n_micro_batches,
                                     order_count_micro_batches(entry, o->parts[e], o->n_parts[e]));
    }
}

void order_open(struct order *order, const struct program *program, struct arena *arena)
{
    int *inputs = arena_array(arena, int, program->n_values);

    *order = (struct order){ .program = program,
                             .users_at = arena_array(arena, int, program->n_values),
                             .inputs = inputs,
                             .arena = arena };
    list_parts(order);
    for (int id = 0; id < program->n_values; id++)
        order->users_at[id] = ORDER_NO_USER;
    list_users(order);
    for (int id = 1; id < program->n_values; id++)
        if (order->users_at[id] != ORDER_NO_USER && program->values[id].role == ROLE_INPUT)
            inputs[order->n_inputs++] = id;
}

int order_users_of(const struct order *order, int id, int micro_batch, int users[PROGRAM_MAX_PARTS])
{
    const struct program *p = order->program;
    int base = program_base(p, id), at = order->users_at[base];

    if (at == ORDER_NO_USER)
        return 0;
    struct value_parts parts = parts_of(p, id);
    int n_slots = order_n_slots(p, base), slot = program_slot(p, base, micro_batch);
    for (int i = 0; i < parts.n; i++)
        users[i] = at + (parts.first + i) * n_slots + slot;
    return parts.n;
}

int order_user(const struct order *order, int id, int micro_batch)
{
    int users[PROGRAM_MAX_PARTS];

    return order_users_of(order, id, micro_batch, users) ? users[0] : ORDER_NO_USER;
}

int order_users(const struct order *order, const struct op *op, int micro_batch,
                int users[ORDER_MAX_USERS])
{
    int of[PROGRAM_MAX_PARTS], n = 0;

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        int n_of = order_users_of(order, operand(op, k), micro_batch, of);

        for (int j = 0; j < n_of; j++) {
            int i = 0;

            while (i < n && users[i] != of[j])
                i++;
            if (i == n)
                users[n++] = of[j];
        }
    }
    return n;
}

/* ---- variants ---- */

/* The table of a value's slots; NULL where slots are m % n. */
static const int *slots_of(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return v->scope == SCOPE_STASH && p->n_stashes ? p->stashes[v->stash].slots : NULL;
}

/* The period of all slots that are m % n. */
static int find_period(const struct order *o, const struct function *f)
{
    const struct program *p = o->program;
    int64_t n = 1;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < ORDER_N_OPERANDS && n < o->n_micro_batches; k++)
            if (!slots_of(p, operand(&f->ops[i], k)))
                n = least_common_multiple(n, order_n_slots(p, operand(&f->ops[i], k)));
    return (int)min_i64(n, max_int(o->n_micro_batches, 1));
}

/* Number the pairs of (variant so far, slot) in the order of their first micro-batch. */
static void split_variants(struct order_variants *v, int *of, const int *slots, int n_slots, int n,
                           struct arena *scratch)
{
    int *number = arena_array(scratch, int, (size_t)v->n *(size_t)n_slots), n_found = 0;

    for (int m = 0; m < n; m++) {
        int *pair = &number[(size_t)of[m] * (size_t)n_slots + (size_t)slots[m]];

        if (!*pair)
            *pair = ++n_found;
        of[m] = *pair - 1;
    }
    v->n = n_found;
}

static void split_by_tables(const struct order *o, const struct function *f,
                            struct order_variants *v, int *of)
{
    const struct program *p = o->program;
    const int **done = NULL;
    int n_done = 0, capacity = 0, k;
    struct arena scratch = { 0 };

    for (int i = 0; i < f->n_ops * ORDER_N_OPERANDS; i++) {
        int id = operand(&f->ops[i / ORDER_N_OPERANDS], i % ORDER_N_OPERANDS);
        const int *slots = slots_of(p, id);

        for (k = 0; k < n_done && done[k] != slots; k++)
            ;
        if (!slots || k < n_done)
            continue;
        done = arena_grow(&scratch, done, sizeof *done, &capacity, n_done + 1);
        done[n_done++] = slots;
        split_variants(v, of, slots, order_n_slots(p, id), o->n_micro_batches, &scratch);
    }
    arena_release(&scratch);
}

static bool has_table(const struct program *p, const struct function *f)
{
    for (int i = 0; i < f->n_ops * ORDER_N_OPERANDS; i++)
        if (slots_of(p, operand(&f->ops[i / ORDER_N_OPERANDS], i % ORDER_N_OPERANDS)))
            return true;
    return false;
}

struct order_variants order_variants(const struct order *order, int function)
{
    const struct function *f = &order->program->functions[function];
    struct order_variants v = { .n = find_period(order, f) };
    int n = order->n_micro_batches;

    if (!has_table(order->program, f))
        return v;
    int *of = arena_array(order->arena, int, n), *first = arena_array(order->arena, int, n);
    for (int m = 0; m < n; m++)
        of[m] = m % v.n;
    split_by_tables(order, f, &v, of);
    for (int m = n - 1; m >= 0; m--)
        first[of[m]] = m;
    v.of = of;
    v.first = first;
    return v;
}

/* ---- completion: the walk of one function, with vector clocks ----
 *
 * A vector clock (Fidge 1988, Mattern 1989) has, for each stream, the last op that is known to be
 * complete. The clock of an op covers the ops before it on its stream, and those that it began
 * after, with their clocks. Before an op that runs at once the rank waits for the users of the
 * operands; it then merges their clocks into its own, and everything posted or run from there on
 * comes after what the clock covers:
 *
 *     0  B  %5 = all_reduce %4  over tp        stream tp; its clock: tp 1
 *     1  W  w.grad += linear_dw %3, %2         waits for nothing
 *     2  B  %6 = rmsnorm_grad %5, ...          waits for op 0: completed_at[0] = 2
 *
 * Complete means on this rank: no reads and writes of this rank's memory are left, so ranks that
 * lag behind do not matter. One run of a function has one slot of each value.
 */

struct vclock {
    int done[N_STREAMS]; /* ops of the stream before this one are complete */
};

struct completion_walk {
    const struct program *program;
    const struct function *function;
    struct vclock *of;       /* by op: its clock, once it is complete */
    int *parts_at;           /* by base value: the number of its first part */
    int *users;              /* by part: 1 + the op posted last that touches it, 0 none */
    int last[N_STREAMS];     /* 1 + the op posted last to the stream */
    int recorded[N_STREAMS]; /* the completion of ops before this one is recorded */
    struct vclock clock;
};

static void vclock_merge(struct vclock *to, const struct vclock *from)
{
    for (int s = 0; s < N_STREAMS; s++)
        to->done[s] = max_int(to->done[s], from->done[s]);
}

/* Merge the clocks of the users of an op's operands. */
static void merge_users(const struct completion_walk *k, const struct op *op, struct vclock *to)
{
    for (int i = 0; i < ORDER_N_OPERANDS; i++) {
        int base = operand_base(k->program, op, i);
        struct value_parts parts = parts_of(k->program, operand(op, i));

        for (int j = 0; base && j < parts.n; j++) {
            int user = k->users[k->parts_at[base] + parts.first + j];

            if (user)
                vclock_merge(to, &k->of[user - 1]);
        }
    }
}

static void post_op(struct completion_walk *k, int index)
{
    const struct op *op = &k->function->ops[index];
    struct vclock *v = &k->of[index];

    if (k->last[op->stream])
        vclock_merge(v, &k->of[k->last[op->stream] - 1]);
    merge_users(k, op, v);
    v->done[op->stream] = index + 1;
    k->last[op->stream] = index + 1;
    for (int i = 0; i < ORDER_N_OPERANDS; i++) {
        int base = operand_base(k->program, op, i);
        struct value_parts parts = parts_of(k->program, operand(op, i));

        for (int j = 0; base && j < parts.n; j++)
            k->users[k->parts_at[base] + parts.first + j] = index + 1;
    }
}

static void wait_for_users(struct completion_walk *k, int index)
{
    merge_users(k, &k->function->ops[index], &k->clock);
}

/* Record the ops that the clock covers for the first time before ops[index]. */
static void record_completions(struct completion_walk *k, int index, int *completed_at)
{
    for (int s = 0; s < N_STREAMS; s++)
        for (; k->recorded[s] < k->clock.done[s]; k->recorded[s]++) {
            const struct op *op = &k->function->ops[k->recorded[s]];

            if (order_is_async(op) && (int)op->stream == s)
                completed_at[k->recorded[s]] = index;
        }
}

void order_completion(const struct program *program, int function, int *completed_at)
{
    const struct function *f = &program->functions[function];
    struct arena arena = { 0 };
    struct completion_walk k = { .program = program, .function = f };

    k.of = arena_array(&arena, struct vclock, f->n_ops);
    k.parts_at = arena_array(&arena, int, program->n_values);
    int n_parts = 0;
    for (int id = 1; id < program->n_values; id++) {
        k.parts_at[id] = n_parts;
        n_parts += program->values[id].base ? 0 : parts_of(program, id).n;
    }
    k.users = arena_array(&arena, int, n_parts);
    for (int i = 0; i < f->n_ops; i++) {
        completed_at[i] = f->n_ops;
        if (order_is_async(&f->ops[i])) {
            post_op(&k, i);
            continue;
        }
        completed_at[i] = i;
        wait_for_users(&k, i);
        record_completions(&k, i, completed_at);
    }
    arena_release(&arena);
}

unsigned order_drains(const struct program *program, int function, const int *completed_at)
{
    const struct function *f = &program->functions[function];
    unsigned streams = 0;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < ORDER_N_OPERANDS && order_is_async(&f->ops[i]); k++) {
            int id = operand(&f->ops[i], k);

            if (id && completed_at[i] == f->n_ops && program->values[id].scope == SCOPE_PASS)
                streams |= 1u << f->ops[i].stream;
        }
    return streams;
}
