/*
 * recheck_sum.c - a few elements of a reduce-scatter, added once more by every rank
 */
#include "train/recheck_sum.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "comm/reduce.h"
#include "launch/excluded.h"
#include "layout/axes.h"
#include "program/recheck_piece.h"
#include "train/trainer_impl.h"

enum { PIECE_BYTES = 8192, NAME_BYTES = 64 };

/* What each rank tells the others. */
struct piece {
    char host[RECHECK_HOST_BYTES], name[NAME_BYTES];
    int32_t dtype, n; /* n elements; 0: none */
    int32_t axis;     /* of the sum */
    int32_t owner;    /* the coordinate on it of whose sum they are */
    int32_t is_done;
    unsigned char term[PIECE_BYTES], sum[PIECE_BYTES]; /* sum: the owner's counts */
};

struct recheck_sum {
    struct trainer *trainer;
    int64_t step, offset; /* offset: of the piece in the owner's shard */
    int bucket;
    struct run_capture capture;
    struct piece own, *all; /* all: [world_size] */
};

struct recheck_sum *recheck_sum_create(struct trainer *t)
{
    const struct mesh *mesh = &t->program.mesh;
    const struct job *job = t->job;

    if (mesh_size(mesh, axes_shard(mesh, PARAMETER_DENSE)) < 2 ||
        axes_of_replicas(mesh, PARAMETER_EXPERT).n ||
        job->parallel.gradient_sum != GRADIENT_SUM_LATE || job->parallel.compress ||
        job->parallel.reductions == REDUCTIONS_FAST)
        return NULL;
    struct recheck_sum *s = calloc(1, sizeof *s);
    CHECK(s);
    s->all = calloc((size_t)t->world_size, sizeof *s->all);
    CHECK(s->all);
    s->trainer = t;
    snprintf(s->own.host, sizeof s->own.host, "%s", launch_host());
    return s;
}

void recheck_sum_destroy(struct recheck_sum *s)
{
    if (!s)
        return;
    free(s->all);
    free(s);
}

void recheck_sum_begin(struct recheck_sum *s, int64_t step)
{
    if (!s)
        return;
    const struct program *p = &s->trainer->program;
    int64_t turn = step / s->trainer->job->train.recheck_every;
    int most = mesh_size(&p->mesh, axes_shard(&p->mesh, PARAMETER_DENSE));

    s->step = step;
    s->bucket = recheck_bucket(p, turn / most);
    s->own.n = 0;
    if (s->bucket < 0)
        return;
    const struct bucket *b = &p->buckets[s->bucket];
    enum dtype dtype = p->values[b->shards[0]].dtype;
    int size = program_n_shards(p, s->bucket);
    int64_t in_shard = b->n_elements / size;
    int64_t n = min_i64(in_shard, PIECE_BYTES / (int64_t)dtype_bytes(dtype));

    s->own.n = (int32_t)n;
    s->own.dtype = (int32_t)dtype;
    s->own.axis = (int32_t)b->axis;
    s->own.owner = (int32_t)(turn % size);
    s->own.is_done = 0;
    snprintf(s->own.name, sizeof s->own.name, "bucket.%d", s->bucket);
    s->offset = ((in_shard - n) / 2 + turn / most / p->n_buckets * n) % (in_shard - n + 1);
    s->capture = (struct run_capture){
        .value = b->gradients[0],
        .offset = (size_t)(s->own.owner * in_shard + s->offset) * dtype_bytes(dtype),
        .n_bytes = (size_t)n * dtype_bytes(dtype),
        .data = s->own.term,
    };
    run_capture_input(s->trainer->run, &s->capture);
}

/* Whether the owner's sum on world_rank's line of ranks is not the sum of the line's terms. */
static int is_wrong(const struct recheck_sum *s, int world_rank, int *owner)
{
    const struct mesh *mesh = &s->trainer->program.mesh;
    const struct piece *own = &s->all[world_rank];
    enum mesh_axis axis = (enum mesh_axis)own->axis;
    int size = own->n ? mesh_size(mesh, axis) : 1;
    size_t n_bytes = (size_t)own->n * dtype_bytes((enum dtype)own->dtype);
    int *ranks = calloc((size_t)size, sizeof *ranks);
    unsigned char *terms = calloc((size_t)size, PIECE_BYTES), *sum = calloc(1, PIECE_BYTES);
    int n_done = 0;

    CHECK(ranks && terms && sum);
    if (own->n)
        mesh_group(mesh, world_rank, axis, ranks);
    for (int i = 0; i < size; i++) {
        n_done += s->all[ranks[i]].is_done;
        memcpy(terms + n_bytes * (size_t)i, s->all[ranks[i]].term, n_bytes);
    }
    *owner = ranks[own->owner];
    if (own->n)
        reduce_tree((enum dtype)own->dtype, sum, terms, size, own->n, own->n);
    int wrong = own->n && n_done == size && memcmp(sum, s->all[*owner].sum, n_bytes) != 0;
    free(ranks);
    free(terms);
    free(sum);
    return wrong;
}

/* 1 + the first rank whose sum is wrong; 0: none. */
static int64_t find_wrong(const struct recheck_sum *s)
{
    for (int rank = 0; rank < s->trainer->world_size; rank++) {
        int owner;

        if (is_wrong(s, rank, &owner))
            return 1 + owner;
    }
    return 0;
}

static int gather(struct recheck_sum *s, struct err *err)
{
    struct trainer *t = s->trainer;

    run_capture_input(t->run, NULL);
    s->own.is_done = s->own.n && s->capture.is_done;
    if (s->own.is_done && run_get(t->run, t->program.buckets[s->bucket].shards[0], 0,
                                  (size_t)s->offset * dtype_bytes((enum dtype)s->own.dtype),
                                  s->own.sum, s->capture.n_bytes, err) < 0)
        return -1;
    return trainer_gather(t, &s->own, s->all, sizeof s->own, err);
}

int recheck_sum_compare(struct recheck_sum *s, struct recheck_finding *finding, struct err *err)
{
    if (!s)
        return 0;
    if (gather(s, err) < 0)
        return -1;
    int64_t wrong = find_wrong(s);
    if (trainer_agree(s->trainer, &wrong, err) < 0)
        return -1;
    if (!wrong)
        return 0;
    const struct piece *culprit = &s->all[wrong - 1];
    *finding = (struct recheck_finding){ .is_found = 1, .rank = (int)wrong - 1 };
    memcpy(finding->host, culprit->host, sizeof finding->host);
    for (int i = 0; i < s->trainer->world_size; i++)
        finding->has_others |= strcmp(s->all[i].host, culprit->host) != 0;
    return err_set(
        err, ERR_PEER,
        "step %" PRId64
        ": rank %d (%s) has another sum of the gradients in %s over ranks than what they "
        "had adds up to: memory, CPU/GPU or network of that host may be faulty (hint: "
        "the last checkpoint is good; exclude the host if this happens again)",
        s->step, finding->rank, finding->host, culprit->name);
}
