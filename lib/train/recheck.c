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
#include "train/recheck_optimizer.h"
#include "train/recheck_sum.h"
#include "train/replicas.h"
#include "train/trainer_impl.h"
#include "weights/inputs.h"

enum { N_ROUNDS = 4 };

struct recheck {
    struct trainer *trainer;
    enum mesh_axis ring;  /* of data-parallel ranks */
    enum mesh_axis alike; /* along which updates are compared */
    int64_t step;         /* at hand; 0: it has no recheck */
    struct op_hashes rounds[N_ROUNDS], update;
    uint64_t (*words)[3]; /* [world_size] */
    struct recheck_sum *sum;
    struct recheck_optimizer *optimizer;
    struct loader *loader; /* of the rank whose micro-batch is computed here */
};

int recheck_create(struct recheck **out, struct trainer *t, struct err *err)
{
    const struct mesh *mesh = &trainer_program(t)->mesh;
    struct axis_list others = axes_of_replicas(mesh, PARAMETER_EXPERT);
    enum mesh_axis ring = axes_shard(mesh, PARAMETER_EXPERT);

    /* A micro-batch is computed by ranks that have the same part of its sequences. */
    for (int i = others.n - 1; i >= 0 && mesh->size[axes_shard(mesh, PARAMETER_EXPERT)] == 1; i--)
        if (!axis_cuts_sequences(others.axes[i]))
            ring = others.axes[i];

    *out = NULL;
    if (!t->job->train.recheck_every)
        return 0;
    struct recheck *r = calloc(1, sizeof *r);
    CHECK(r);
    r->trainer = t;
    r->ring = ring;
    r->alike = replicas_axis(t);
    r->words = calloc((size_t)t->world_size, sizeof *r->words);
    CHECK(r->words);
    r->sum = recheck_sum_create(t);
    t->recheck = r;
    int status = recheck_optimizer_create(&r->optimizer, t, err);
    if (trainer_settle(t, status, err) < 0) {
        recheck_destroy(r);
        return -1;
    }
    *out = r;
    return 0;
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
    recheck_optimizer_destroy(r->optimizer);
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
    int size = mesh_size(mesh, axis), at = mesh_place_on(mesh, &place, axis) + shift;

    place = mesh_place_at(mesh, &place, axis, (at % size + size) % size);
    return mesh_rank_at(mesh, &place);
}

static int size_of(const struct recheck *r, enum mesh_axis axis)
{
    return mesh_size(&trainer_program(r->trainer)->mesh, axis);
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
    recheck_optimizer_begin(r->optimizer, step);
    run_hash_ops(r->trainer->run, &r->rounds[0], &r->update, r->alike);
    return 0;
}

bool recheck_is_due(const struct recheck *r)
{
    return r && r->step;
}

void recheck_end(struct recheck *r)
{
    if (!r || !r->step)
        return;
    run_hash_ops(r->trainer->run, NULL, NULL, r->alike);
    recheck_optimizer_end(r->optimizer);
}

/* ---- what ranks tell each other once something differs ---- */

struct hearing {
    const struct recheck *recheck;
    enum mesh_axis axis;
    const struct op_hashes *own; /* by round */
    int n_rounds;                /* 0: of what all ranks of the axis compute, one vote a rank */
    const char *what;            /* "the same micro-batch" */
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
    const char *op = d->op < h->own->n ? h->own->list[d->op].text : "an op";
    const char *verb = d->is_computed ? "computed" : "received other operands for";

    if (d->is_decided)
        err_set(err, ERR_PEER,
                "step %" PRId64 ": rank %d (%s) %s %s%s than others that computed %s did: " HINT,
                r->step, d->wrong, host_of(h, d->wrong), verb, op,
                d->is_computed ? " otherwise" : "", h->what, "that host");
    else
        err_set(err, ERR_PEER,
                "step %" PRId64
                ": rank %d (%s) and rank %d (%s) %s %s differently, in %s; no third "
                "replica could decide: " HINT,
                r->step, rank, host_of(h, rank), d->wrong, host_of(h, d->wrong), verb, op, h->what,
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

/* All ranks hear all ranks of what h says so far. Always -1. */
static int hear(struct hearing h, struct recheck_finding *finding, struct err *err)
{
    struct trainer *t = h.recheck->trainer;
    int n_lists = max_int(1, h.n_rounds);

    h.n_ops = h.own->n;
    if (trainer_agree(t, &h.n_ops, err) < 0)
        return -1;
    h.n_bytes =
        RECHECK_HOST_BYTES + sizeof(struct recheck_pair) * (size_t)h.n_ops * (size_t)n_lists;
    unsigned char *own = calloc(1, h.n_bytes), *all = calloc((size_t)t->world_size, h.n_bytes);
    CHECK(own && all);
    struct recheck_pair *pairs = (struct recheck_pair *)(own + RECHECK_HOST_BYTES);
    const char *host = launch_host();
    memcpy(own, host, strnlen(host, RECHECK_HOST_BYTES - 1));
    for (int i = 0; i < n_lists; i++)
        write_pairs(pairs + h.n_ops * i, &h.own[i]);
    h.all = all;
    if (trainer_gather(t, own, all, h.n_bytes, err) == 0)
        convict(&h, finding, err);
    free(own);
    free(all);
    return -1;
}

/* ---- comparing ---- */

/* Rounds of which most decide: with two ranks on the axis each computes twice. */
static int n_rounds_of(const struct recheck *r, enum mesh_axis axis)
{
    return size_of(r, axis) == 2 ? N_ROUNDS : 3;
}

/* Whether words[i] of a rank is not words[i + 1] of who has computed the same in round 1. */
static int differ(const struct recheck *r, enum mesh_axis axis, int i)
{
    int differs = 0;

    for (int rank = 0; rank < r->trainer->world_size; rank++)
        differs |= r->words[rank][i] != r->words[rank_at(r, axis, rank, -1)][i + 1];
    return differs;
}

int recheck_gradients(struct recheck *r, struct recheck_finding *finding, struct err *err)
{
    *finding = (struct recheck_finding){ .rank = -1 };
    if (!r || !r->step)
        return 0;
    int n_rounds = n_rounds_of(r, r->ring);
    uint64_t own[3] = { run_hashes_digest(&r->rounds[0]), run_hashes_digest(&r->rounds[1]), 0 };

    if (trainer_gather(r->trainer, own, r->words, sizeof own, err) < 0)
        return -1;
    if (!differ(r, r->ring, 0))
        return recheck_sum_compare(r->sum, finding, err);
    for (int round = 2; round < n_rounds; round++)
        if (run_round(r, round, err) < 0)
            return -1;
    return hear((struct hearing){ .recheck = r,
                                  .axis = r->ring,
                                  .own = r->rounds,
                                  .n_rounds = n_rounds,
                                  .what = "the same micro-batch" },
                finding, err);
}

/* What ranks update alone; round 1 is done, and words has its hashes. */
static int compare_shards(struct recheck *r, struct recheck_finding *finding, struct err *err)
{
    enum mesh_axis axis = recheck_optimizer_axis(&trainer_program(r->trainer)->mesh);
    int n_rounds = n_rounds_of(r, axis);

    *finding = (struct recheck_finding){ .rank = -1 };
    if (!r->optimizer || !differ(r, axis, 1))
        return 0;
    for (int round = 2; round < n_rounds; round++)
        if (recheck_optimizer_round(r->optimizer, round, err) < 0)
            return -1;
    return hear((struct hearing){ .recheck = r,
                                  .axis = axis,
                                  .own = recheck_optimizer_rounds(r->optimizer),
                                  .n_rounds = n_rounds,
                                  .what = "the same update" },
                finding, err);
}

/* Of two replicas of a shard (zero_group) that differ, the ranks with other shards know better. */
static void decide_by_shards(struct recheck *r, struct recheck_finding *finding, struct err *err)
{
    struct recheck_finding by_shards;
    struct err why;

    if (!finding->is_found || finding->rank >= 0)
        return;
    if (compare_shards(r, &by_shards, &why) < 0 && by_shards.rank >= 0) {
        *finding = by_shards;
        *err = why;
    }
}

int recheck_update(struct recheck *r, struct recheck_finding *finding, struct err *err)
{
    *finding = (struct recheck_finding){ .rank = -1 };
    if (!r || !r->step)
        return 0;
    struct trainer *t = r->trainer;
    int differs = 0;

    if (recheck_optimizer_round(r->optimizer, 1, err) < 0)
        return -1;
    uint64_t own[3] = { run_hashes_digest(&r->update), recheck_optimizer_hash(r->optimizer, 0),
                        recheck_optimizer_hash(r->optimizer, 1) };
    if (trainer_gather(t, own, r->words, sizeof own, err) < 0)
        return -1;
    for (int rank = 0; rank < t->world_size; rank++)
        differs |= r->words[rank][0] != r->words[rank_at(r, r->alike, rank, 1)][0];
    if (!differs)
        return compare_shards(r, finding, err);
    hear(
        (struct hearing){
            .recheck = r, .axis = r->alike, .own = &r->update, .what = "the same update" },
        finding, err);
    decide_by_shards(r, finding, err);
    return -1;
}
