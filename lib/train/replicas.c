/*
 * replicas.c - hashes of what is replicated, and who is in the minority
 *
 * Each cell is hashed in blocks on the pool, its hash is that of its blocks' hashes, and a rank's
 * that of its cells'. Blocks are of fixed size, so threads do not matter.
 */
#include "train/replicas.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/num.h"
#include "layout/axes.h"
#include "train/trainer_impl.h"

#define BLOCK_BYTES ((size_t)1 << 20)
#define HOST_BYTES 64
#define NAMED_MAX 8 /* ranks that an error names */

struct block {
    const unsigned char *data;
    size_t n_bytes;
};

struct replicated {
    const char *name;
    int64_t first_block, n_blocks;
};

struct replicas {
    struct arena arena;
    struct trainer *trainer;
    int64_t step; /* of the comparison */
    struct replicated *cells;
    int n_cells, capacity;
    struct block *blocks;
    int64_t n_blocks;
    int blocks_capacity;
    uint64_t *block_hashes, *cell_hashes;
    uint64_t *words;     /* [world_size]: hash of each rank */
    enum mesh_axis axis; /* along which ranks have the same */
    int *first; /* [world_size]: the rank with coordinate 0 there among a rank's replicas */
};

/* ---- what is compared ---- */

static void add_cell(struct replicas *r, int id)
{
    const struct program *program = trainer_program(r->trainer);
    const struct value *v = &program->values[id];

    /* Under zero 3 a weight is the name of what is gathered now and then. */
    if (!id || v->role == ROLE_NONE || v->spread[r->axis] != SPREAD_SAME)
        return;
    const unsigned char *data = run_data(trainer_run(r->trainer), id, 0);
    size_t left = program_value_bytes(program, id);
    r->cells = arena_grow(&r->arena, r->cells, sizeof *r->cells, &r->capacity, r->n_cells + 1);
    struct replicated *cell = &r->cells[r->n_cells++];
    *cell = (struct replicated){ v->name, r->n_blocks, ceil_div((int64_t)left, BLOCK_BYTES) };
    r->blocks = arena_grow(&r->arena, r->blocks, sizeof *r->blocks, &r->blocks_capacity,
                           (int)(r->n_blocks + cell->n_blocks));
    while (left) {
        size_t n = left < BLOCK_BYTES ? left : BLOCK_BYTES;

        r->blocks[r->n_blocks++] = (struct block){ data, n };
        data += n;
        left -= n;
    }
}

/* Within a step, what it has gathered: a sharded weight, or its codes (program/fp8_weights.c). */
static int gathered_cell(const struct program *program, const struct parameter *p)
{
    bool has_codes = p->bucket >= 0 && program->buckets[p->bucket].codes;

    return has_codes ? p->codes : p->weight;
}

static void list_cells(struct replicas *r)
{
    const struct program *program = trainer_program(r->trainer);

    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];

        add_cell(r, gathered_cell(program, p));
        if (p->master != p->weight)
            add_cell(r, p->master);
        add_cell(r, p->low);
        add_cell(r, p->moment1);
        add_cell(r, p->moment2);
        add_cell(r, p->m_scale);
        add_cell(r, p->v_scale);
    }
    for (int i = 0; i < program->n_buckets; i++) {
        const struct bucket *b = &program->buckets[i];

        add_cell(r, b->weight_shard);
        if (b->master != b->weight_shard)
            add_cell(r, b->master);
        add_cell(r, b->low);
        add_cell(r, b->moment1);
        add_cell(r, b->moment2);
        add_cell(r, b->m_scale);
        add_cell(r, b->v_scale);
    }
}

/* Whether ranks along the axis have parts of some parameters. */
static bool divides_parameters(const struct job *job, enum mesh_axis axis)
{
    return job->parallel.cp_kind == CP_FASTSEQ && axis == axes_heads();
}

enum mesh_axis replicas_axis(const struct trainer *trainer)
{
    const struct mesh *mesh = &trainer->program.mesh;
    const struct job *job = trainer->job;
    struct axis_list others = axes_of_replicas(mesh, PARAMETER_EXPERT);
    enum mesh_axis shards = axes_shard(mesh, PARAMETER_EXPERT);

    for (int i = 0; i < others.n; i++)
        if (!divides_parameters(job, others.axes[i]))
            return others.axes[i];
    /* What remains has a part of what is compared at least, where dp has none. */
    bool has_replicas = mesh->size[shards] > 1 && !job->parallel.zero;
    return others.n && !has_replicas ? others.axes[0] : shards;
}

struct replicas *replicas_create(struct trainer *trainer)
{
    const struct mesh *mesh = &trainer_program(trainer)->mesh;
    enum mesh_axis axis = replicas_axis(trainer);
    int world_size = trainer->world_size, n_copies = mesh->size[axis];

    if (n_copies < 2)
        return NULL;
    struct replicas *r = calloc(1, sizeof *r);
    CHECK(r);
    r->trainer = trainer;
    r->axis = axis;
    list_cells(r);
    r->block_hashes = arena_array(&r->arena, uint64_t, r->n_blocks);
    r->cell_hashes = arena_array(&r->arena, uint64_t, r->n_cells);
    r->words = arena_array(&r->arena, uint64_t, world_size);
    r->first = arena_array(&r->arena, int, world_size);
    int *ranks = arena_array(&r->arena, int, n_copies);
    for (int rank = 0; rank < world_size; rank++) {
        if (mesh_coordinate(mesh, rank, axis) != 0)
            continue;
        mesh_group(mesh, rank, axis, ranks);
        for (int i = 0; i < n_copies; i++)
            r->first[ranks[i]] = rank;
    }
    return r;
}

void replicas_destroy(struct replicas *r)
{
    if (!r)
        return;
    arena_release(&r->arena);
    free(r);
}

/* ---- hashing ---- */

static void hash_block(void *context, int64_t tile, int thread)
{
    struct replicas *r = context;

    (void)thread;
    r->block_hashes[tile] = XXH3_64bits(r->blocks[tile].data, r->blocks[tile].n_bytes);
}

/* A GPU's or the file's, one after the other. */
static int hash_fetched(struct replicas *r, struct err *err)
{
    unsigned char *fetched = malloc(BLOCK_BYTES);
    int status = 0;

    CHECK(fetched);
    for (int64_t i = 0; i < r->n_blocks && !status; i++) {
        status = run_get_at(trainer_run(r->trainer), fetched, r->blocks[i].data,
                            r->blocks[i].n_bytes, err);
        if (!status)
            r->block_hashes[i] = XXH3_64bits(fetched, r->blocks[i].n_bytes);
    }
    free(fetched);
    return status;
}

static int hash_all(struct replicas *r, uint64_t *hash, struct err *err)
{
    static const char hashing[PROGRESS_TEXT_BYTES] = "comparing replicas";

    progress_publish(r->trainer->options.progress, hashing, 0);
    if (device_is_host(run_device(trainer_run(r->trainer))) &&
        !run_has_file(trainer_run(r->trainer)))
        pool_run(r->trainer->options.pool, r->n_blocks, hash_block, r);
    else if (hash_fetched(r, err) < 0)
        return -1;
    for (int i = 0; i < r->n_cells; i++)
        r->cell_hashes[i] = XXH3_64bits(&r->block_hashes[r->cells[i].first_block],
                                        sizeof(uint64_t) * (size_t)r->cells[i].n_blocks);
    *hash = XXH3_64bits(r->cell_hashes, sizeof(uint64_t) * (size_t)r->n_cells);
    return 0;
}

/* The lowest rank whose replica differs from its group's first, -1 if all are equal. */
static int find_difference(const struct replicas *r)
{
    for (int rank = 0; rank < r->trainer->world_size; rank++)
        if (r->words[rank] != r->words[r->first[rank]])
            return rank;
    return -1;
}

/* ---- naming the culprit ---- */

/* What each rank sends to all others once a difference is found. */
struct testimony {
    char host[HOST_BYTES];
    uint64_t hashes[]; /* of the cells */
};

struct trial {
    const struct replicas *replicas;
    const unsigned char *testimonies;
    size_t testimony_bytes;
    const int *ranks; /* of the group */
    int n_ranks;
};

static const struct testimony *testimony(const struct trial *t, int i)
{
    return (const void *)(t->testimonies + t->testimony_bytes * (size_t)t->ranks[i]);
}

static int cell_differs(const struct trial *t, int cell)
{
    for (int i = 1; i < t->n_ranks; i++)
        if (testimony(t, i)->hashes[cell] != testimony(t, 0)->hashes[cell])
            return 1;
    return 0;
}

/* The hash that more than half of the group has for the cell; 0 if there is none. */
static int majority(const struct trial *t, int cell, uint64_t *hash)
{
    for (int i = 0; i < t->n_ranks; i++) {
        int n = 0;

        *hash = testimony(t, i)->hashes[cell];
        for (int k = 0; k < t->n_ranks; k++)
            n += testimony(t, k)->hashes[cell] == *hash;
        if (2 * n > t->n_ranks)
            return 1;
    }
    return 0;
}

/* "rank 1 (node3), rank 7 (node4)": those whose hash is another, all if `hash` is NULL. */
static int list_ranks(const struct trial *t, int cell, const uint64_t *hash, struct str *out)
{
    int n = 0;

    for (int i = 0; i < t->n_ranks; i++) {
        if (hash && testimony(t, i)->hashes[cell] == *hash)
            continue;
        if (n < NAMED_MAX)
            str_printf(out, "%srank %d (%s)", n ? ", " : "", t->ranks[i], testimony(t, i)->host);
        n++;
    }
    if (n > NAMED_MAX)
        str_printf(out, " and %d more", n - NAMED_MAX);
    return n;
}

static void judge(const struct trial *t, struct err *err)
{
    const struct replicas *r = t->replicas;
    struct str ranks = { 0 };
    int cell = -1, n_differing = 0;
    uint64_t hash;

    for (int i = 0; i < r->n_cells; i++)
        if (cell_differs(t, i)) {
            cell = cell < 0 ? i : cell;
            n_differing++;
        }
    /* A hash of hashes that differs though they are equal: what hashed them erred. */
    const char *name = cell < 0 ? "everything" : r->cells[cell].name;
    cell = max_int(cell, 0);
    int can_tell = majority(t, cell, &hash);
    int n = list_ranks(t, cell, can_tell ? &hash : NULL, &ranks);
    if (can_tell)
        err_set(err, ERR_PEER,
                "step %" PRId64
                ": the replica of %s on %s differs from that of the %d other rank%s (%d tensor%s): "
                "memory or CPU/GPU of that host may be faulty (hint: the last checkpoint is good; "
                "exclude the host if this happens again)",
                r->step, name, str_text(&ranks), t->n_ranks - n, str_s(t->n_ranks - n), n_differing,
                str_s(n_differing));
    else
        err_set(
            err, ERR_PEER,
            "step %" PRId64 ": the replicas of %s on %s differ (%d tensor%s): memory or CPU/GPU of "
            "one of them may be faulty; %d copies are too few to identify it (hint: "
            "the last checkpoint is good; test these hosts' memory)",
            r->step, name, str_text(&ranks), n_differing, n_differing == 1 ? "" : "s", t->n_ranks);
    str_release(&ranks);
}

/* The first rank of the group that `rank` is in finds the words, all get them. Always -1. */
static int explain(struct replicas *r, int rank, int *differs, struct err *err)
{
    struct trainer *t = r->trainer;
    const struct mesh *mesh = &trainer_program(t)->mesh;
    int root = r->first[rank];
    int64_t n_cells = r->n_cells;
    struct err agreed = { 0 };

    if (trainer_agree(t, &n_cells, err) < 0)
        return -1;
    size_t n_bytes = sizeof(struct testimony) + sizeof(uint64_t) * (size_t)n_cells;
    struct testimony *own = calloc(1, n_bytes);
    unsigned char *all = calloc((size_t)t->world_size, n_bytes);
    int *ranks = calloc((size_t)t->world_size, sizeof *ranks);
    CHECK(own && all && ranks);
    gethostname(own->host, sizeof own->host - 1);
    memcpy(own->hashes, r->cell_hashes, sizeof(uint64_t) * (size_t)r->n_cells);
    int status = trainer_gather(t, own, all, n_bytes, err);
    if (!status && t->world_rank == root) {
        struct trial trial = { r, all, n_bytes, ranks, mesh->size[r->axis] };

        mesh_group(mesh, root, r->axis, ranks);
        judge(&trial, &agreed);
    }
    free(own);
    free(all);
    free(ranks);
    if (status < 0 || trainer_broadcast(t, &agreed, sizeof agreed, root, err) < 0)
        return -1;
    *differs = 1;
    *err = agreed;
    return -1;
}

int replicas_compare(struct replicas *r, int64_t step, int *differs, struct err *err)
{
    *differs = 0;
    if (!r)
        return 0;
    r->step = step;
    uint64_t own;
    if (hash_all(r, &own, err) < 0 ||
        trainer_gather(r->trainer, &own, r->words, sizeof own, err) < 0)
        return -1;
    int rank = find_difference(r);
    return rank < 0 ? 0 : explain(r, rank, differs, err);
}

void replicas_flip(struct trainer *trainer)
{
    const struct program *program = trainer_program(trainer);
    const struct parameter *p = program->parameters;

    for (int i = 1; i < program->n_parameters; i++)
        if (program->parameters[i].rows * program->parameters[i].cols > p->rows * p->cols)
            p = &program->parameters[i];
    int cell = p->master ? p->master : p->weight;
    if (program->values[cell].role == ROLE_NONE)
        cell = program->buckets[p->bucket].weight_shard;
    enum dtype dtype = program->values[cell].dtype;
    size_t n = program_value_bytes(program, cell) / dtype_bytes(dtype);
    size_t at = n / 2 * dtype_bytes(dtype);
    uint32_t bits = 0;
    struct err err;

    /* A relative change of 1/2048 or 1/128, which the loss does not show. */
    CHECK(run_get(trainer_run(trainer), cell, 0, at, &bits, dtype_bytes(dtype), &err) == 0);
    bits ^= dtype == DTYPE_F32 ? UINT32_C(1) << 12 : 1;
    run_put(trainer_run(trainer), cell, 0, at, &bits, dtype_bytes(dtype));
}
