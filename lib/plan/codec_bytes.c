/*
 * codec_bytes.c - the reductions of a step's last micro-batch
 */
#include "plan/codec_bytes.h"

#include "run/collective.h"

/* Sent by a rank: as if it were alone on its node. */
static int64_t sent_by(const struct program *p, const struct op *op)
{
    struct op_shape shape = program_op_shape(p, op);

    return collective_bytes_between_nodes(&shape, mesh_size(&p->mesh, op->attributes.axis), 1,
                                          false, false);
}

static bool is_of_codec(const struct program *p, const struct op *op)
{
    bool is_gradient = p->values[program_base(p, op->out[OPS_FIRST])].role == ROLE_GRADIENT;

    if (op->phase != PHASE_W || !op_is_collective(op->kind))
        return false;
    if (op->kind != OP_EXCHANGE_CODES && op->kind != OP_GATHER_CODES && op->kind != OP_ALL_REDUCE &&
        !(op->kind == OP_ALL_GATHER && is_gradient))
        return false;
    for (int i = 0; i < p->n_buckets; i++)
        if (p->buckets[i].errors[0] && p->buckets[i].axis == op->attributes.axis)
            return true;
    return false;
}

static int64_t sent_in_step(const struct program *p)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    int64_t sent = 0;

    for (int a = 0; a < step->n_actions; a++) {
        const struct function *f = &p->functions[step->actions[a].function];

        for (int i = 0; step->actions[a].kind == ACTION_RUN && i < f->n_ops; i++)
            if (is_of_codec(p, &f->ops[i]))
                sent += sent_by(p, &f->ops[i]);
    }
    return sent;
}

struct codec_bytes codec_bytes_of(const struct program *p)
{
    struct codec_bytes bytes = { .sent = p->codec.codec ? sent_in_step(p) : 0 };

    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++) {
            const struct bucket *b = &p->buckets[i];
            int64_t n_ranks = mesh_size(&p->mesh, b->axis);

            if (!b->errors[use])
                continue;
            int64_t n_bytes = (int64_t)program_value_bytes(p, b->left[use]);
            bool comes_back = b->gradients[use] != b->left[use];
            bytes.whole += (comes_back ? 2 : 1) * (n_ranks - 1) * (n_bytes / n_ranks);
            bytes.sums += n_bytes;
            bytes.errors += (int64_t)program_value_bytes(p, b->errors[use]);
            if (b->factors[use].kept)
                bytes.errors += (int64_t)program_value_bytes(p, b->factors[use].kept);
        }
    return bytes;
}
