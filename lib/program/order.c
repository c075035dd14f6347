/*
 * order.c - the tables of users, and by when an op is known to be done
 */
#include "program/order.h"

#include <string.h>

#include "base/num.h"

int order_is_given(const struct op *op)
{
    return op->stream != STREAM_COMPUTE || !op_has_kernel(op->kind);
}

int order_gives_any(const struct program *program)
{
    for (int f = 0; f < program->n_functions; f++)
        for (int i = 0; i < program->functions[f].n_ops; i++)
            if (order_is_given(&program->functions[f].ops[i]))
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

static void list_users(struct order *o)
{
    const struct program *p = o->program;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            for (int k = 0; k < ORDER_MAX_USERS && order_is_given(&p->functions[f].ops[i]); k++) {
                int base = operand_base(p, &p->functions[f].ops[i], k);

                if (!base || o->users_at[base] != ORDER_NOBODY)
                    continue;
                o->users_at[base] = o->n_users;
                o->n_users += order_n_slots(p, base);
            }
}

static int count_micro_batches(const struct program *p)
{
    int n = 0;

    for (int e = 0; e < N_ENTRIES; e++)
        for (int i = 0; i < p->entries[e].n_actions; i++)
            n = max_int(n, p->entries[e].actions[i].micro_batch + 1);
    return n;
}

void order_open(struct order *order, const struct program *program, struct arena *arena)
{
    int *inputs = arena_array(arena, int, program->n_values);

    *order = (struct order){ .program = program,
                             .n_micro_batches = count_micro_batches(program),
                             .users_at = arena_array(arena, int, program->n_values),
                             .inputs = inputs };
    for (int id = 0; id < program->n_values; id++)
        order->users_at[id] = ORDER_NOBODY;
    list_users(order);
    for (int id = 1; id < program->n_values; id++)
        if (order->users_at[id] != ORDER_NOBODY && program->values[id].role == ROLE_INPUT)
            inputs[order->n_inputs++] = id;
}

int order_user(const struct order *order, int id, int micro_batch)
{
    int base = program_base(order->program, id), at = order->users_at[base];

    return at == ORDER_NOBODY ? at : at + program_slot(order->program, base, micro_batch);
}

int order_users(const struct order *order, const struct op *op, int micro_batch,
                int users[ORDER_MAX_USERS])
{
    int n = 0;

    for (int k = 0; k < ORDER_MAX_USERS; k++) {
        int user = order_user(order, operand(op, k), micro_batch), i = 0;

        while (i < n && users[i] != user)
            i++;
        if (user != ORDER_NOBODY && i == n)
            users[n++] = user;
    }
    return n;
}

int order_n_variants(const struct order *order, int function)
{
    const struct program *p = order->program;
    const struct function *f = &p->functions[function];
    int64_t n = 1;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < ORDER_MAX_USERS && n < order->n_micro_batches; k++)
            n = least_common_multiple(n, order_n_slots(p, operand(&f->ops[i], k)));
    return (int)min_i64(n, max_int(order->n_micro_batches, 1));
}

/* ---- rounds ---- */

/* What is of no micro-batch comes again as it is. */
static int is_later(const struct action *now, const struct action *before, int shift)
{
    struct action moved = *before;

    if (moved.micro_batch >= 0)
        moved.micro_batch += shift;
    return !memcmp(&moved, now, sizeof moved);
}

int order_count_rounds(const struct entry *entry, int i, int n, int shift, int most)
{
    int n_same = 0;

    if (n < 1 || i < n)
        return 0;
    while (i + n_same < entry->n_actions && n_same / n < most &&
           is_later(&entry->actions[i + n_same], &entry->actions[i + n_same - n], shift))
        n_same++;
    return n_same / n;
}

/* ---- what is known: the walk of one function, with a vector clock ----
 *
 * Of each stream, the last op that is known to be done. An op that is done vouches for all before it
 * on its stream, and for those that it began after. Before an op that is run at once, the rank waits
 * for the users of what it touches; it then knows all that they vouch for, and whatever is given or
 * run from there on finds that done. Done means on this rank's side: for a call that is done nobody
 * reads or writes this rank's memory any more, so neighbours that lag behind do not matter. One run
 * of a function has one slot of each value.
 */

struct vouched {
    int until[N_STREAMS]; /* ops of the stream before this one are done */
};

struct knowing {
    const struct program *program;
    const struct function *function;
    struct vouched *of;    /* by op: what it vouches for when it is done */
    int *users;            /* by base value: 1 + the op last given that touches it, 0 none */
    int last[N_STREAMS];   /* 1 + the op last given to the stream */
    int listed[N_STREAMS]; /* ops before this one have their answer */
    struct vouched known;
};

static void learn(struct vouched *to, const struct vouched *from)
{
    for (int s = 0; s < N_STREAMS; s++)
        to->until[s] = max_int(to->until[s], from->until[s]);
}

static void give(struct knowing *k, int index)
{
    const struct op *op = &k->function->ops[index];
    struct vouched *v = &k->of[index];

    if (k->last[op->stream])
        learn(v, &k->of[k->last[op->stream] - 1]);
    for (int i = 0; i < ORDER_MAX_USERS; i++) {
        int base = operand_base(k->program, op, i);

        if (base && k->users[base])
            learn(v, &k->of[k->users[base] - 1]);
    }
    v->until[op->stream] = index + 1;
    k->last[op->stream] = index + 1;
    for (int i = 0; i < ORDER_MAX_USERS; i++)
        k->users[operand_base(k->program, op, i)] = index + 1;
    k->users[0] = 0;
}

static void wait_for_users(struct knowing *k, int index)
{
    const struct op *op = &k->function->ops[index];

    for (int i = 0; i < ORDER_MAX_USERS; i++) {
        int base = operand_base(k->program, op, i);

        if (base && k->users[base])
            learn(&k->known, &k->of[k->users[base] - 1]);
    }
}

/* What has come to be known ahead of ops[index] gets its answer. */
static void list_known(struct knowing *k, int index, int *known_at)
{
    for (int s = 0; s < N_STREAMS; s++)
        for (; k->listed[s] < k->known.until[s]; k->listed[s]++) {
            const struct op *op = &k->function->ops[k->listed[s]];

            if (order_is_given(op) && (int)op->stream == s)
                known_at[k->listed[s]] = index;
        }
}

void order_known_at(const struct program *program, int function, int *known_at)
{
    const struct function *f = &program->functions[function];
    struct arena arena = { 0 };
    struct knowing k = { .program = program, .function = f };

    k.of = arena_array(&arena, struct vouched, f->n_ops);
    k.users = arena_array(&arena, int, program->n_values);
    for (int i = 0; i < f->n_ops; i++) {
        known_at[i] = f->n_ops;
        if (order_is_given(&f->ops[i])) {
            give(&k, i);
            continue;
        }
        known_at[i] = i;
        wait_for_users(&k, i);
        list_known(&k, i, known_at);
    }
    arena_release(&arena);
}

unsigned order_drains(const struct program *program, int function, const int *known_at)
{
    const struct function *f = &program->functions[function];
    unsigned streams = 0;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < ORDER_MAX_USERS && order_is_given(&f->ops[i]); k++) {
            int id = operand(&f->ops[i], k);

            if (id && known_at[i] == f->n_ops && program->values[id].scope == SCOPE_PASS)
                streams |= 1u << f->ops[i].stream;
        }
    return streams;
}
