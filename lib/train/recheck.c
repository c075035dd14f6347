/*
 * recheck.c - a micro-batch computed by several ranks: who does what, and what is compared
 *
 * Data-parallel ranks are a ring. In round k the rank with coordinate c computes the micro-batch of
 * coordinate c + k. Round 0 is the step itself, and round 1 comes before it. Others follow only
 * where these differ, at the gate: the step's own gradients are not needed any more then.
 */
#include "train/recheck.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "launch/excluded.h"
#include "layout/axes.h"
#include "train/recheck_judge.h"
#include "train/recheck_sum.h"
#include "train/trainer_impl.h"
#include "weights/inputs.h"

enum { N_ROUNDS = 4 };

struct recheck {
    struct trainer *trainer;
    enum mesh_axis ring;  /* of data-parallel ranks */
    enum mesh_axis alike; /* along which updates are compared */
    int64_t step;         /* at hand; 0: it has no recheck */
    struct op_hashes rounds[N_ROUNDS], update;
    uint64_t (*words)[2]; /* [world_size] */
    struct recheck_sum *sum;
    struct loader *loader; /* of the rank whose micro-batch is computed here */
};

struct recheck *recheck_create(struct trainer *t)
{
    const struct mesh *mesh = &trainer_program(t)->mesh;
    struct axis_list others = axes_of_replicas(mesh, PARAMETER_EXPERT);
    enum mesh_axis other = others.n ? others.axes[0] : axes_shard();

    if (!t->job->train.recheck_every)
        return NULL;
    struct recheck *r = calloc(1, sizeof *r);
    CHECK(r);
    r->trainer = t;
    r->ring = mesh->size[axes_shard()] > 1 ? axes_shard() : other;
    r->alike = other;
    r->words = calloc((size_t)t->world_size, sizeof *r->words);
    CHECK(r->words);
    r->sum = recheck_sum_create(t);
    t->recheck = r;
    return r;
}

void recheck_destroy(struct recheck *r)
{
    if (!r)
        return;
    r->trainer->recheck = NULL;
    for (int i = 0; i < N_ROUNDS; i++)
        run_hashes_release(&r->rounds[i]);
    run_hashes_release(&r->update);
    recheck_sum_destroy(r->sum);
    loader_close(r->loader);
    free(r->words);
    free(r);
}

/* ---- who is where ---- */

/* The rank `shift` places further on the axis than world_rank. */
static int rank_at(const struct recheck *r, enum mesh_axis axis, int world_rank, int shift)
{
    const struct mesh *mesh = &trainer_program(r->trainer)->mesh;
    struct mesh_place place = mesh_place(mesh, world_rank);
    int size = mesh->size[axis];

    place.of[axis] = ((place.of[axis] + shift) % size + size) % size;
    return mesh_rank_at(mesh, &place);
}

static int size_of(const struct recheck *r, enum mesh_axis axis)
{
    return trainer_program(r->trainer)->mesh.size[axis];
}

/* ---- a round ---- */

static int load(void *context, int micro_batch, struct err *err)
{
    struct recheck *r = context;
    struct trainer *t = r->trainer;
    struct micro_batch batch;

    if (loader_next(r->loader, &batch, err) < 0)
        return -1;
    int chosen = trainer_choose(t, micro_batch);
    inputs_of_batch(t->run, chosen ? &t->shorter[chosen - 1] : &t->program, &batch, micro_batch);
    return 0;
}

static int choose(void *context, int micro_batch)
{
    return trainer_choose(((struct recheck *)context)->trainer, micro_batch);
}

static int run_round(struct recheck *r, int round, struct err *err)
{
    struct trainer *t = r->trainer;
    const struct mesh *mesh = &t->program.mesh;
    struct run_hooks hooks = { .context = r, .load = load, .choose = choose };
    int whose = rank_at(r, r->ring, t->world_rank, round);

    if (trainer_open_data_of(t, mesh_data_rank(mesh, whose), &r->loader, err) < 0)
        return -1;
    r->rounds[round].n = 0;
    run_hash_ops(t->run, &r->rounds[round], NULL, r->alike);
    int status = run_entry(t->run, ENTRY_RECHECK, 1, &hooks, err);
    loader_close(r->loader);
    r->loader = NULL;
    return status;
}

int recheck_begin(struct recheck *r, int64_t step, struct err *err)
{
    if (!r)
        return 0;
    r->step = step % r->trainer->job->train.recheck_every == 0 ? step : 0;
    if (!r->step)
        return 0;
    if (run_round(r, 1, err) < 0)
        return -1;
    r->rounds[0].n = r->update.n = 0;
    recheck_sum_begin(r->sum, step);
    run_hash_ops(r->trainer->run, &r->rounds[0], &r->update, r->alike);
    return 0;
}

void recheck_end(struct recheck *r)
{
    if (r && r->step)
        run_hash_ops(r->trainer->run, NULL, NULL, r->alike);
}

/* ---- what ranks tell each other once something differs ---- */

struct hearing {
    const struct recheck *recheck;
    enum mesh_axis axis;
    int n_rounds; /* 0: of the update, one vote a rank */
    int64_t n_ops;
    size_t n_bytes;
    const unsigned char *all;
};

/* A rank's host, then its hashes, round by round. */
static const struct recheck_pair *pairs_of(const struct hearing *h, int rank, int round)
{
    return (const struct recheck_pair *)(h->all + h->n_bytes * (size_t)rank + RECHECK_HOST_BYTES) +
           h->n_ops * round;
}

static const char *host_of(const struct hearing *h, int rank)
{
    return (const char *)(h->all + h->n_bytes * (size_t)rank);
}

static void write_pairs(struct recheck_pair *out, const struct op_hashes *hashes)
{
    for (int i = 0; i < hashes->n; i++)
        out[i] = (struct recheck_pair){ hashes->list[i].in, hashes->list[i].out };
}

/* The votes on what `rank` computed in the step. */
static int list_votes(const struct hearing *h, int rank, struct recheck_vote *votes)
{
    const struct recheck *r = h->recheck;
    int n = h->n_rounds ? h->n_rounds : size_of(r, h->axis);

    for (int i = 0; i < n; i++) {
        int voter = rank_at(r, h->axis, rank, h->n_rounds ? -i : i);

        votes[i] = (struct recheck_vote){ voter, pairs_of(h, voter, h->n_rounds ? i : 0) };
    }
    return n;
}

/* The difference nearest to the origin, and the rank whose votes have it; -1: there is none. */
static int find_origin(const struct hearing *h, struct recheck_difference *nearest)
{
    int world_size = h->recheck->trainer->world_size, found = -1;
    struct recheck_vote *votes = calloc((size_t)max_int(world_size, N_ROUNDS), sizeof *votes);

    CHECK(votes);
    for (int rank = 0; rank < world_size; rank++) {
        struct recheck_difference d;
        int n = list_votes(h, rank, votes);

        if (recheck_difference(&d, votes, n, (int)h->n_ops) &&
            (found < 0 || recheck_is_nearer(&d, nearest))) {
            *nearest = d;
            found = rank;
        }
    }
    free(votes);
    return found;
}

#define HINT \
    "memory or CPU/GPU of %s may be faulty (hint: the last checkpoint is good; exclude the host " \
    "if " \
    "this happens again)"

/* What the ranks of the line all say: they have the same ops. */
static void describe(const struct hearing *h, int rank, const struct recheck_difference *d,
                     struct err *err)
{
    const struct recheck *r = h->recheck;
    const struct op_hashes *own = h->n_rounds ? &r->rounds[0] : &r->update;
    const char *op = d->op < own->n ? own->list[d->op].text : "an op";
    const char *verb = d->is_computed ? "computed" : "received other operands for";
    const char *what = h->n_rounds ? "the same micro-batch" : "the same update";

    if (d->is_decided)
        err_set(err, ERR_PEER,
                "step %" PRId64 ": rank %d (%s) %s %s%s than others that computed %s did: " HINT,
                r->step, d->wrong, host_of(h, d->wrong), verb, op,
                d->is_computed ? " otherwise" : "", what, "that host");
    else
        err_set(err, ERR_PEER,
                "step %" PRId64
                ": rank %d (%s) and rank %d (%s) %s %s differently, in %s; no third "
                "replica could decide: " HINT,
                r->step, rank, host_of(h, rank), d->wrong, host_of(h, d->wrong), verb, op, what,
                "one of them");
}

/* Who was first, found by all ranks alike; a rank that has the op at hand names it. Always -1. */
static int convict(const struct hearing *h, struct recheck_finding *finding, struct err *err)
{
    struct recheck_difference d;
    struct err agreed = { 0 };
    int rank = find_origin(h, &d);

    if (rank < 0)
        return err_set(err, ERR_PEER, "step %" PRId64 ": hashes of equal hashes differ",
                       h->recheck->step);
    struct recheck_finding found = { .is_found = 1, .rank = d.is_decided ? d.wrong : -1 };
    if (d.is_decided)
        memcpy(found.host, host_of(h, d.wrong), RECHECK_HOST_BYTES);
    for (int i = 0; i < h->recheck->trainer->world_size; i++)
        found.has_others |= strcmp(host_of(h, i), found.host) != 0;
    if (h->recheck->trainer->world_rank == rank)
        describe(h, rank, &d, &agreed);
    if (trainer_broadcast(h->recheck->trainer, &agreed, sizeof agreed, rank, err) < 0)
        return -1;
    *finding = found;
    *err = agreed;
    return -1;
}

/* All ranks hear all ranks. Always -1. */
static int hear(struct recheck *r, int n_rounds, struct recheck_finding *finding, struct err *err)
{
    struct trainer *t = r->trainer;
    struct hearing h = { .recheck = r,
                         .axis = n_rounds ? r->ring : r->alike,
                         .n_rounds = n_rounds,
                         .n_ops = n_rounds ? r->rounds[0].n : r->update.n };

    if (trainer_agree(t, &h.n_ops, err) < 0)
        return -1;
    h.n_bytes = RECHECK_HOST_BYTES +
                sizeof(struct recheck_pair) * (size_t)h.n_ops * (size_t)max_int(1, n_rounds);
    unsigned char *own = calloc(1, h.n_bytes), *all = calloc((size_t)t->world_size, h.n_bytes);
    CHECK(own && all);
    struct recheck_pair *pairs = (struct recheck_pair *)(own + RECHECK_HOST_BYTES);
    const char *host = launch_host();
    memcpy(own, host, strnlen(host, RECHECK_HOST_BYTES - 1));
    for (int i = 0; i < n_rounds; i++)
        write_pairs(pairs + h.n_ops * i, &r->rounds[i]);
    if (!n_rounds)
        write_pairs(pairs, &r->update);
    h.all = all;
    if (trainer_gather(t, own, all, h.n_bytes, err) == 0)
        convict(&h, finding, err);
    free(own);
    free(all);
    return -1;
}

/* ---- comparing ---- */

int recheck_gradients(struct recheck *r, struct recheck_finding *finding, struct err *err)
{
    *finding = (struct recheck_finding){ .rank = -1 };
    if (!r || !r->step)
        return 0;
    struct trainer *t = r->trainer;
    int n = size_of(r, r->ring), n_rounds = n == 2 ? 4 : 3, differs = 0;
    uint64_t own[2] = { run_hashes_digest(&r->rounds[0]), run_hashes_digest(&r->rounds[1]) };

    if (trainer_gather(t, own, r->words, sizeof own, err) < 0)
        return -1;
    for (int rank = 0; rank < t->world_size; rank++)
        differs |= r->words[rank][0] != r->words[rank_at(r, r->ring, rank, -1)][1];
    if (!differs)
        return recheck_sum_compare(r->sum, finding, err);
    for (int round = 2; round < n_rounds; round++)
        if (run_round(r, round, err) < 0)
            return -1;
    return hear(r, n_rounds, finding, err);
}

int recheck_update(struct recheck *r, struct recheck_finding *finding, struct err *err)
{
    *finding = (struct recheck_finding){ .rank = -1 };
    if (!r || !r->step)
        return 0;
    struct trainer *t = r->trainer;
    uint64_t own[2] = { run_hashes_digest(&r->update), 0 };
    int differs = 0;

    if (trainer_gather(t, own, r->words, sizeof own, err) < 0)
        return -1;
    for (int rank = 0; rank < t->world_size; rank++)
        differs |= r->words[rank][0] != r->words[rank_at(r, r->alike, rank, 1)][0];
    return differs ? hear(r, 0, finding, err) : 0;
}
