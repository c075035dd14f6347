/*
 * known.c - by when run knows an op to be done
 *
 * The walk of one function as run does it, with a vector clock: of each stream, the last op that is
 * known to be done. What it rests on (run/executor.c, comm/worker.c):
 *
 *  - ops of a stream are done in the order of the list, so one that is done vouches for all before;
 *  - run keeps for each base value (of a micro-batch's slot, but one run of a function has one slot
 *    of each) the collective given last that touches it, itself or by a view. A collective that is
 *    given later and touches the same value, on whatever stream, begins after that one is done. So
 *    nothing is lost when it takes its place: it vouches for its predecessor;
 *  - before a compute op runs, run waits for those that are kept for what it touches. It then knows
 *    all that they vouch for, and only then goes on to the next op of the list: whatever is given
 *    from there on, on any stream, finds it done;
 *  - done means on this rank's side: comm neither reads nor writes this rank's memory any more for
 *    a call that is done, so neighbours that lag behind do not matter;
 *  - what is known to nobody at the end of the function, and touches values that die with it, run
 *    waits for there, before another function may use their memory.
 */
#include <string.h>

#include "base/num.h"
#include "program/program.h"

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

int program_is_given(const struct op *op)
{
    return op->stream != STREAM_COMPUTE || op_is_collective(op->kind);
}

static void learn(struct vouched *to, const struct vouched *from)
{
    for (int s = 0; s < N_STREAMS; s++)
        to->until[s] = max_int(to->until[s], from->until[s]);
}

static int operand_base(const struct knowing *k, const struct op *op, int i)
{
    return program_base(k->program, i < OPS_MAX_INPUTS ? op->in[i] : op->out[i - OPS_MAX_INPUTS]);
}

static void give(struct knowing *k, int index)
{
    const struct op *op = &k->function->ops[index];
    struct vouched *v = &k->of[index];

    if (k->last[op->stream])
        learn(v, &k->of[k->last[op->stream] - 1]);
    for (int i = 0; i < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; i++) {
        int base = operand_base(k, op, i);

        if (base && k->users[base])
            learn(v, &k->of[k->users[base] - 1]);
    }
    v->until[op->stream] = index + 1;
    k->last[op->stream] = index + 1;
    for (int i = 0; i < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; i++)
        k->users[operand_base(k, op, i)] = index + 1;
    k->users[0] = 0;
}

static void wait_for_users(struct knowing *k, int index)
{
    const struct op *op = &k->function->ops[index];

    for (int i = 0; i < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; i++) {
        int base = operand_base(k, op, i);

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

            if (program_is_given(op) && (int)op->stream == s)
                known_at[k->listed[s]] = index;
        }
}

void program_known_at(const struct program *program, int function, int *known_at)
{
    const struct function *f = &program->functions[function];
    struct arena arena = { 0 };
    struct knowing k = { .program = program, .function = f };

    k.of = arena_array(&arena, struct vouched, f->n_ops);
    k.users = arena_array(&arena, int, program->n_values);
    for (int i = 0; i < f->n_ops; i++) {
        known_at[i] = f->n_ops;
        if (program_is_given(&f->ops[i])) {
            give(&k, i);
            continue;
        }
        known_at[i] = i;
        wait_for_users(&k, i);
        list_known(&k, i, known_at);
    }
    arena_release(&arena);
}
