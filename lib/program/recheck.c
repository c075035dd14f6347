/*
 * recheck.c - the entry that computes the step's first micro-batch once more; pieces of the update
 *
 * Its actions are those of the step, in their order, without those of other micro-batches and
 * without the update: functions, addresses and collectives are the step's, and so are the bits. The
 * step that follows starts all accumulators from zero, so nothing is left of it. On the pipeline's
 * ranks they meet as they do in a step of one micro-batch: of each channel and group some
 * collectives are left out, the same on all ranks. Where rows of experts are kept in pages, both
 * are of ENTRY_RERUN, which keeps none.
 *
 *     load 0   forward 0 (m 0)   send forward 0 (m 0)   ...   backward 0 (m 0)
 */
#include "program/recheck_piece.h"

#include "base/num.h"
#include "layout/axes.h"
#include "program/passes.h"

void recheck_step(struct program *program)
{
    bool has_rerun = program->entries[ENTRY_RERUN].n_actions;
    const struct entry *step = &program->entries[has_rerun ? ENTRY_RERUN : ENTRY_STEP];
    struct entry *entry = &program->entries[ENTRY_RECHECK];

    entry->actions = arena_array(&program->arena, struct action, step->n_actions);
    entry->n_actions = 0;
    for (int i = 0; i < step->n_actions && step->actions[i].kind != ACTION_GATE; i++)
        if (step->actions[i].micro_batch <= 0)
            entry->actions[entry->n_actions++] = step->actions[i];
}

int recheck_bucket(const struct program *p, int64_t turn)
{
    for (int i = 0; i < p->n_buckets; i++) {
        int b = (int)((turn + i) % p->n_buckets);

        if (p->buckets[b].n_uses && p->buckets[b].shards[0] && program_n_shards(p, b) > 1)
            return b;
    }
    return -1;
}

static int64_t blocks_of_shard(const struct program *p, int bucket)
{
    return p->buckets[bucket].n_elements / program_n_shards(p, bucket) / OPS_NORM_BLOCK;
}

struct recheck_piece recheck_piece_at(const struct program *p, int64_t turn)
{
    int bucket = recheck_bucket(p, turn);

    if (bucket < 0)
        return (struct recheck_piece){ .bucket = -1 };
    int64_t all = blocks_of_shard(p, bucket), n = min_i64(all, RECHECK_PIECE_BLOCKS);
    int64_t piece = turn / p->n_buckets % ceil_div(all, n);
    return (struct recheck_piece){ bucket, min_i64(piece * n, all - n), n };
}

static bool updates(const struct program *p, const struct op *op, int value)
{
    const struct op_info *info = op_info(op->kind);
    int home = p->values[value].home;

    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        int v = program_base(p, op->in[k]);

        if (v && (v == value || v == home) && (info->inputs[k].flags & OPERAND_UPDATED))
            return true;
    }
    return false;
}

enum op_kind recheck_update_kind(const struct program *p, int bucket)
{
    int moment = p->buckets[bucket].moment1;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            if (updates(p, &p->functions[f].ops[i], moment))
                return p->functions[f].ops[i].kind;
    CHECK(false);
    return N_OP_KINDS;
}

static size_t operand_bytes(const struct program *p, int id, int64_t n_blocks)
{
    size_t n = (size_t)(n_blocks * OPS_NORM_BLOCK) * dtype_bytes(p->values[id].dtype);

    return id ? (n + RECHECK_ALIGNMENT - 1) / RECHECK_ALIGNMENT * RECHECK_ALIGNMENT : 0;
}

/* Of the scales of a state. */
static size_t scale_bytes(int id, int64_t n_blocks)
{
    size_t n = (size_t)(n_blocks * OPS_NORM_BLOCK / OPS_STATE_BLOCK) * sizeof(float);

    return id ? (n + RECHECK_ALIGNMENT - 1) / RECHECK_ALIGNMENT * RECHECK_ALIGNMENT : 0;
}

size_t recheck_piece_bytes(const struct program *p)
{
    size_t most = 0;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct bucket *b = &p->buckets[i];

        if (!b->n_uses || !b->shards[0] || program_n_shards(p, i) == 1)
            continue;
        int64_t n = min_i64(blocks_of_shard(p, i), RECHECK_PIECE_BLOCKS);
        size_t table = ((size_t)n * sizeof(double) + RECHECK_ALIGNMENT - 1) / RECHECK_ALIGNMENT *
                       RECHECK_ALIGNMENT;
        int weight = b->master == b->weight_shard ? 0 : b->weight_shard;
        size_t n_bytes = operand_bytes(p, b->shards[0], n) + operand_bytes(p, b->master, n) +
                         operand_bytes(p, b->moment1, n) + operand_bytes(p, b->moment2, n) +
                         operand_bytes(p, weight, n) + operand_bytes(p, b->low, n) +
                         scale_bytes(b->m_scale, n) + scale_bytes(b->v_scale, n) + 2 * table;
        most = n_bytes > most ? n_bytes : most;
    }
    return most;
}
