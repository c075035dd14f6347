/*
 * replica.c - ranks that hold a model together
 */
#include "serve/replica.h"

#include <stdlib.h>

#include "base/arena.h"
#include "layout/axes.h"
#include "program/passes.h"

/* Behind those of programs (axis by stream) and of training. */
enum { CHANNEL_WORLD = N_GROUP_AXES * N_STREAMS + 1, CHANNEL_REPLICA };

struct replica_request {
    struct replica *r;
    const char *what;
    uint64_t value;
    struct err differs;
    struct comm_group *group;
    void *buffer;
    size_t n_bytes;
    int root;
};

static int make_group(struct replica *r, struct comm_group **group, int first, int n, int channel,
                      struct err *err)
{
    struct arena arena = { 0 };
    int *ranks = arena_array(&arena, int, n);

    for (int i = 0; i < n; i++)
        ranks[i] = first + i;
    int status = comm_group_create(group, r->comm, ranks, n, channel, err);
    arena_release(&arena);
    return status;
}

static int make_groups(void *argument, struct err *err)
{
    struct replica *r = ((struct replica_request *)argument)->r;

    if (make_group(r, &r->world, 0, comm_world_size(r->comm), CHANNEL_WORLD, err) < 0)
        return -1;
    return make_group(r, &r->own, r->first_rank, r->size, CHANNEL_REPLICA, err);
}

static int call(const struct replica *r, worker_fn fn, struct replica_request *request,
                const char *what, struct err *err)
{
    progress_meet(r->progress, what);
    int status = r->worker ? worker_call(r->worker, fn, request, err) : fn(request, err);
    progress_phase(r->progress, "between texts");
    return status;
}

int replica_open(struct replica *out, struct comm *comm, struct worker *worker,
                 struct progress_slot *progress, int tp, int pp, struct err *err)
{
    int world_rank = comm_world_rank(comm), world_size = comm_world_size(comm), size = tp * pp;
    struct replica r = { .mesh = mesh_pipeline(pp),
                         .size = size,
                         .comm = comm,
                         .worker = worker,
                         .progress = progress };

    if (world_size % size)
        return err_set(err, ERR_CONFIG,
                       "%d rank%s not a multiple of the %d of one model replica: tp %d * pp %d",
                       world_size, world_size == 1 ? " is" : "s are", size, tp, pp);
    r.mesh.size[axes_tensor()] = tp;
    r.n = world_size / size;
    r.number = world_rank / size;
    r.first_rank = r.number * size;
    r.rank = world_rank - r.first_rank;
    r.place = mesh_place(&r.mesh, r.rank);
    r.pp_rank = r.place.of[axes_stages()];
    struct replica_request request = { .r = &r };
    if (call(&r, make_groups, &request, "the start of all replicas", err) < 0)
        return -1;
    *out = r;
    return 0;
}

/* The last stage's first rank, in the replica. */
static int teller(const struct replica *r)
{
    return r->size - r->mesh.size[axes_tensor()];
}

int replica_tells(const struct replica *r)
{
    return !r || r->rank == teller(r);
}

bool replica_is_first(const struct replica *r)
{
    return !r || (r->number == 0 && r->rank == 0);
}

int replica_number(const struct replica *r)
{
    return r ? r->number : 0;
}

int replica_count(const struct replica *r)
{
    return r ? r->n : 1;
}

/* ---- telling ---- */

static int broadcast(void *argument, struct err *err)
{
    struct replica_request *q = argument;

    return comm_broadcast(q->group, q->buffer, q->n_bytes, q->root, err);
}

int replica_tell(const struct replica *r, void *buffer, size_t n_bytes, struct err *err)
{
    if (!r || r->size == 1 || !n_bytes)
        return 0;
    struct replica_request q = {
        .group = r->own, .buffer = buffer, .n_bytes = n_bytes, .root = teller(r)
    };
    return call(r, broadcast, &q, "data from the last stage", err);
}

int replica_tell_all(const struct replica *r, void *buffer, size_t n_bytes, struct err *err)
{
    if (!r || !n_bytes)
        return 0;
    struct replica_request q = { .group = r->world, .buffer = buffer, .n_bytes = n_bytes };
    return call(r, broadcast, &q, "data from the first rank", err);
}

/* What one replica's first rank has, everywhere added to `all`. */
static int collect_from(const struct replica *r, int number, const struct str *own, struct str *all,
                        struct err *err)
{
    static const char what[] = "results of the texts";
    bool is_own = number == r->number && r->rank == 0;
    uint64_t n_bytes = own->length;
    struct replica_request q = {
        .group = r->world, .buffer = &n_bytes, .n_bytes = sizeof n_bytes, .root = number * r->size
    };

    if (call(r, broadcast, &q, what, err) < 0)
        return -1;
    if (!n_bytes)
        return 0;
    void *copy = is_own ? NULL : malloc(n_bytes);
    CHECK(is_own || copy);
    q.buffer = is_own ? own->data : copy;
    q.n_bytes = n_bytes;
    int status = call(r, broadcast, &q, what, err);
    if (!status)
        str_add_bytes(all, q.buffer, n_bytes);
    free(copy);
    return status;
}

int replica_collect(const struct replica *r, const struct str *own, struct str *all,
                    struct err *err)
{
    if (!r)
        str_add_bytes(all, str_text(own), own->length);
    for (int i = 0; i < replica_count(r) && r; i++)
        if (collect_from(r, i, own, all, err) < 0)
            return -1;
    return 0;
}

static int agree(void *argument, struct err *err)
{
    struct replica_request *q = argument;
    struct err differs = { 0 };

    /* That they differ does not stop the worker: ranks still say goodbye to each other. */
    if (comm_agree_equal(q->group, q->what, q->value, &differs) < 0)
        q->differs = differs;
    if (differs.code != ERR_PEER)
        return 0;
    *err = differs;
    return -1;
}

int replica_agree(const struct replica *r, const char *what, uint64_t value, struct err *err)
{
    if (!r)
        return 0;
    struct replica_request q = { .group = r->world, .what = what, .value = value };
    if (call(r, agree, &q, "agreement of all ranks", err) < 0)
        return -1;
    if (q.differs.code)
        *err = q.differs;
    return q.differs.code ? -1 : 0;
}

void replica_beat(const struct replica *r, const char *what)
{
    if (r)
        progress_phase(r->progress, what);
}

/* ---- programs ---- */

/* The other stages', and whether all of them fit. */
static int verify_stages(const struct replica *r, const struct program *own,
                         replica_compile_fn compile, void *options, struct err *err)
{
    int n = r->mesh.size[axes_stages()], status = 0;
    struct mesh stages = mesh_pipeline(n);
    struct arena arena = { 0 };
    struct program *programs = arena_array(&arena, struct program, n);
    const struct program **list = arena_array(&arena, const struct program *, n);

    for (int i = 0; i < n && !status; i++) {
        list[i] = i == r->pp_rank ? own : &programs[i];
        if (i != r->pp_rank)
            status = compile(&programs[i], options, &r->mesh, i, err);
    }
    if (!status)
        status = verify_ranks(list, &stages, err);
    for (int i = 0; i < n; i++)
        program_release(&programs[i]);
    arena_release(&arena);
    return status;
}

int replica_compile(const struct replica *r, struct program *program, replica_compile_fn compile,
                    void *options, struct err *err)
{
    struct mesh alone = mesh_data_parallel(1);

    if (!r)
        return compile(program, options, &alone, 0, err);
    progress_phase(r->progress, "compiling the program");
    if (compile(program, options, &r->mesh, r->pp_rank, err) < 0)
        return -1;
    if (r->mesh.size[axes_stages()] == 1 || !replica_is_first(r))
        return 0;
    return verify_stages(r, program, compile, options, err);
}
