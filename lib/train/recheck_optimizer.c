/*
 * recheck_optimizer.c - a piece of a shard's update, computed once more by other ranks
 *
 * What is sent begins with a header, and then has the operands that the piece reads, one after the
 * other; in the memory that it is computed in they lie in the same way, and the weight behind them.
 */
#include "train/recheck_optimizer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/fault.h"
#include "layout/axes.h"
#include "program/recheck_piece.h"
#include "train/trainer_impl.h"

enum { HEADER_BYTES = RECHECK_ALIGNMENT }; /* its first byte: whether there is an update */

struct recheck_optimizer {
    struct trainer *trainer;
    int *line; /* ranks along the axis */
    int n_line;
    int64_t step;
    struct recheck_piece piece;
    struct run_probe probe;
    struct op_shape op; /* the piece's, where it lies */
    struct op_hash hashes[RECHECK_OPTIMIZER_ROUNDS];
    struct op_hashes rounds[RECHECK_OPTIMIZER_ROUNDS]; /* of one op each, in hashes */
    size_t n_bytes;                                    /* of the following, without headers */
    unsigned char *own, *received;                     /* the host's, with headers */
    void *memory;                                      /* the device's */
};

enum mesh_axis recheck_optimizer_axis(const struct mesh *mesh)
{
    enum mesh_axis axis = axes_shard(mesh, PARAMETER_EXPERT);

    return mesh_size(mesh, axis) > 1 ? axis : axes_shard(mesh, PARAMETER_DENSE);
}

int recheck_optimizer_create(struct recheck_optimizer **out, struct trainer *t, struct err *err)
{
    const struct mesh *mesh = &t->program.mesh;
    enum mesh_axis axis = recheck_optimizer_axis(mesh);
    struct device *device = run_device(t->run);

    *out = NULL;
    if (mesh_size(mesh, axis) < 2 || !t->job->parallel.zero)
        return 0;
    struct recheck_optimizer *o = calloc(1, sizeof *o);
    CHECK(o);
    o->trainer = t;
    o->n_line = mesh_size(mesh, axis);
    o->line = calloc((size_t)o->n_line, sizeof *o->line);
    CHECK(o->line);
    mesh_group(mesh, t->world_rank, axis, o->line);
    o->n_bytes = recheck_piece_bytes(&t->program);
    o->own = calloc(1, HEADER_BYTES + o->n_bytes);
    o->received = calloc(1, HEADER_BYTES + o->n_bytes);
    CHECK(o->own && o->received);
    for (int i = 0; i < RECHECK_OPTIMIZER_ROUNDS; i++)
        o->rounds[i].list = &o->hashes[i];
    if (o->n_bytes && device->ops->allocate(device, o->n_bytes, &o->memory, err) < 0) {
        recheck_optimizer_destroy(o);
        return -1;
    }
    *out = o;
    return 0;
}

void recheck_optimizer_destroy(struct recheck_optimizer *o)
{
    if (!o)
        return;
    struct device *device = run_device(o->trainer->run);

    if (o->memory)
        device->ops->release(device, o->memory);
    free(o->own);
    free(o->received);
    free(o->line);
    free(o);
}

/* ---- the piece, within a shard's update ---- */

static size_t bytes_of(const struct tensor *t)
{
    return (size_t)tensor_elements(t) * dtype_bytes(t->dtype);
}

/* Bytes to the operand behind it. */
static size_t span_of(const struct tensor *t)
{
    return (bytes_of(t) + RECHECK_ALIGNMENT - 1) / RECHECK_ALIGNMENT * RECHECK_ALIGNMENT;
}

/* each: elements of a block. */
static void narrow(const struct recheck_piece *piece, struct tensor *t, int64_t each)
{
    if (!tensor_given(t))
        return;
    CHECK(t->rows == 1 && (piece->first_block + piece->n_blocks) * each <= t->cols);
    t->data =
        (unsigned char *)t->data + (size_t)(piece->first_block * each) * dtype_bytes(t->dtype);
    t->cols = t->stride = piece->n_blocks * each;
}

/* Elements of an operand that are a norm block's; 0: it is the same for all. */
static int64_t elements_of_block(const struct op_operand *operand)
{
    int64_t n = operand_stands_for(operand);

    return n ? OPS_NORM_BLOCK / n : 0;
}

/* An input of which the piece has a part; else NULL. */
static struct tensor *kept_input(struct op_shape *op, int k)
{
    return elements_of_block(&op_info(op->kind)->inputs[k]) && tensor_given(&op->in[k]) ? &op->in[k]
                                                                                        : NULL;
}

static struct op_shape piece_of(const struct recheck_optimizer *o, const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_shape piece = *op;

    CHECK(info->traits & TRAIT_BY_BLOCKS);
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (kept_input(&piece, k))
            narrow(&o->piece, &piece.in[k], elements_of_block(&info->inputs[k]));
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        narrow(&o->piece, &piece.out[k], OPS_NORM_BLOCK);
    return piece;
}

static int hash_tensor(struct recheck_optimizer *o, const struct tensor *t, uint64_t *hash,
                       struct err *err)
{
    if (!tensor_given(t))
        return 0;
    if (run_get_at(o->trainer->run, o->received, t->data, bytes_of(t), err) < 0)
        return -1;
    *hash = XXH3_64bits_withSeed(o->received, bytes_of(t), *hash);
    return 0;
}

/* What the update wrote. What was received is overwritten. */
static int hash_written(struct recheck_optimizer *o, const struct op_shape *op, int round,
                        struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    uint64_t hash = 0;

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if ((info->inputs[k].flags & OPERAND_UPDATED) && hash_tensor(o, &op->in[k], &hash, err) < 0)
            return -1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (hash_tensor(o, &op->out[k], &hash, err) < 0)
            return -1;
    o->hashes[round] = (struct op_hash){ .out = hash, .text = o->hashes[0].text };
    o->rounds[round].n = 1;
    return 0;
}

/* ---- in the step ---- */

static int keep(void *context, const struct op_shape *op, const char *text, struct err *err)
{
    struct recheck_optimizer *o = context;
    struct run *run = o->trainer->run;
    unsigned char *to = o->own + HEADER_BYTES;
    int32_t skips = 0;

    if (run_get(run, o->trainer->program.ports.skip_update, 0, 0, &skips, sizeof skips, err) < 0)
        return -1;
    if (skips)
        return 0;
    o->op = piece_of(o, op);
    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        const struct tensor *t = kept_input(&o->op, k);

        if (!t)
            continue;
        CHECK(to + span_of(t) <= o->own + HEADER_BYTES + o->n_bytes);
        if (run_get_at(run, to, t->data, bytes_of(t), err) < 0)
            return -1;
        to += span_of(t);
    }
    o->hashes[0].text = text;
    o->own[0] = 1;
    return 0;
}

static int hash_own(void *context, struct err *err)
{
    struct recheck_optimizer *o = context;

    return o->own[0] ? hash_written(o, &o->op, 0, err) : 0;
}

void recheck_optimizer_begin(struct recheck_optimizer *o, int64_t step)
{
    if (!o)
        return;
    const struct program *p = &o->trainer->program;

    o->step = step;
    o->own[0] = 0;
    for (int i = 0; i < RECHECK_OPTIMIZER_ROUNDS; i++)
        o->rounds[i].n = 0;
    o->piece = recheck_piece_at(p, step / o->trainer->job->train.recheck_every);
    if (o->piece.bucket < 0)
        return;
    o->probe = (struct run_probe){
        .kind = recheck_update_kind(p, o->piece.bucket),
        .value = p->buckets[o->piece.bucket].moment1,
        .context = o,
        .before = keep,
        .after = hash_own,
    };
    run_probe_op(o->trainer->run, &o->probe);
}

void recheck_optimizer_end(struct recheck_optimizer *o)
{
    if (o)
        run_probe_op(o->trainer->run, NULL);
}

/* ---- once more ---- */

/* What lasts is wrong each time, in the first operand that is updated: LMTRAIN_FAULT. */
static int flip_lasting(const struct recheck_optimizer *o, const struct op_shape *op,
                        struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    struct run *run = o->trainer->run;
    int k = 0;

    if (fault_at_op(o->hashes[0].text, o->step, 1) != FAULT_FLIP)
        return 0;
    while (!(info->inputs[k].flags & OPERAND_UPDATED))
        k++;
    unsigned char bits, *at = (unsigned char *)op->in[k].data + bytes_of(&op->in[k]) / 2;
    if (run_get_at(run, &bits, at, 1, err) < 0)
        return -1;
    bits ^= 1;
    run_put_at(run, at, &bits, 1);
    return 0;
}

/* Let the operands of the piece lie in own memory, with what was kept of them. */
static void fill_operands(struct recheck_optimizer *o, struct op_shape *op,
                          const unsigned char *from)
{
    unsigned char *to = o->memory;

    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        struct tensor *t = kept_input(op, k);

        if (!t)
            continue;
        run_put_at(o->trainer->run, to, from, bytes_of(t));
        t->data = to;
        to += span_of(t);
        from += span_of(t);
    }
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
        struct tensor *t = &op->out[k];

        if (!tensor_given(t))
            continue;
        t->data = to;
        to += span_of(t);
    }
}

static int compute(struct recheck_optimizer *o, const unsigned char *message, int round,
                   struct err *err)
{
    struct kernels *kernels = o->trainer->options.kernels;
    struct kernel_call call = { .op = o->op };

    fill_operands(o, &call.op, message + HEADER_BYTES);
    if (kernels_prepare(kernels, &call, err) < 0)
        return -1;
    kernels_run(kernels, &call, 0);
    int status = flip_lasting(o, &call.op, err);
    if (!status)
        status = hash_written(o, &call.op, round, err);
    kernels_release(kernels, &call);
    return status;
}

int recheck_optimizer_round(struct recheck_optimizer *o, int round, struct err *err)
{
    if (!o)
        return 0;
    const struct mesh *mesh = &o->trainer->program.mesh;
    int me = mesh_place_on(mesh, &o->trainer->place, recheck_optimizer_axis(mesh)), n = o->n_line;
    const unsigned char *message = round % n ? o->received : o->own;

    if (round % n &&
        trainer_shift(o->trainer, o->own, o->line[(me - round % n + n) % n], o->received,
                      o->line[(me + round) % n], HEADER_BYTES + o->n_bytes, err) < 0)
        return -1;
    return o->own[0] && message[0] ? compute(o, message, round, err) : 0;
}

const struct op_hashes *recheck_optimizer_rounds(const struct recheck_optimizer *o)
{
    return o->rounds;
}

uint64_t recheck_optimizer_hash(const struct recheck_optimizer *o, int round)
{
    return o && o->rounds[round].n ? o->hashes[round].out : 0;
}
