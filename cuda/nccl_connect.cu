/*
 * nccl_connect.cu - the NCCL communicators of groups, and the first call over each
 *
 * A group gets one communicator of all its ranks, and for neighbours one of two ranks each way,
 * since NCCL does the calls over a communicator one after the other, whatever their streams: a send
 * that waits for its receive would hold up the receive that its peer waits for.
 *
 * All are split (ncclCommSplit) from one root communicator of all the ranks that connect together,
 * so the ranks find each other once, and not again for each axis, stream and pair. The root moves
 * nothing: from 2.22 on NCCL then makes no connections for it, and before that those of one block.
 * Parts share no resources with it (splitShare 0, NCCL's default): parts that share have one stream
 * for launches, one proxy and one abort flag, and NCCL forbids calls over two of them at a time.
 * Ours are on streams that run at the same time, where one waits for a peer that is behind in
 * another.
 *
 * Communicators are blocking: calls that don't block hand each launch to a thread of its own, which
 * costs more than the launch, and must be polled before a mark may be set behind it. What blocks
 * without end is the making and the first use, which sets up the connections; comm_connect does
 * both, on the comm thread, where a watcher sees a rank wait in it and ends the run when a peer
 * is gone.
 */
#include "cuda/nccl.cuh"

#include <stdlib.h>
#include <string.h>

static ncclConfig_t config_of(int max_blocks)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 1;
    config.maxCTAs = max_blocks; /* $NCCL_MAX_CTAS goes first */
    config.splitShare = 0;
    return config;
}

/* The root of an earlier group of the same ranks, NULL if there is none: on all ranks alike. */
static ncclComm_t find_root(const struct comm_group *all)
{
    for (struct comm_group *g = all->comm->groups; g; g = g->next)
        if (nccl_group_of(g)->root && g->size == all->size &&
            !memcmp(g->ranks, all->ranks, sizeof *g->ranks * (size_t)g->size))
            return nccl_group_of(g)->root;
    return NULL;
}

/* Where the first rank cannot make an id all fail. */
static int open_root(struct nccl_comm *comm, const struct comm_group *all, ncclComm_t *root,
                     struct err *err)
{
    ncclConfig_t config = config_of(1);
    struct {
        int is_made;
        ncclUniqueId id;
    } first;
    struct err why;

    memset(&first, 0, sizeof first);
    if (all->rank == 0)
        first.is_made =
            !nccl_result(comm, NULL, comm->api.get_unique_id(&first.id), "ncclGetUniqueId", &why);
    else
        err_set(&why, ERR_PEER, "rank %d has no NCCL", all->ranks[0]);
    if (comm_broadcast(nccl_group_of(all)->host, &first, sizeof first, 0, err))
        return -1;
    if (!first.is_made) {
        *err = why;
        return -1;
    }
    return nccl_result(comm, NULL,
                       comm->api.init_rank(root, all->size, first.id, all->rank, &config),
                       "ncclCommInitRankConfig", err);
}

/* What ranks say of their groups before they connect them: their uses, and whether the number of
 * ranks is odd, which takes one split more (phase_of). */
enum { IS_ODD = 1 << 16 };

/* *together: what any rank of `all` says. */
static int gather_uses(const struct comm_group *all, unsigned own, unsigned *together,
                       struct err *err)
{
    unsigned *uses = (unsigned *)calloc((size_t)all->size, sizeof *uses);

    CHECK(uses);
    int status = comm_all_gather(nccl_group_of(all)->host, &own, uses, sizeof own, err);
    *together = 0;
    for (int r = 0; r < all->size; r++)
        *together |= uses[r];
    free(uses);
    return status;
}

/* One rank's part in the splits of a root. */
struct splitting {
    struct nccl_comm *comm;
    ncclComm_t root;
    const struct comm_group *group; /* NULL: it only takes part */
    unsigned uses;                  /* of the group */
};

/* A rank's place in one split: ranks of a color get a communicator, in the order of their keys. */
struct split_place {
    ncclComm_t *link;
    int color, key, max_blocks;
};

static int split(const struct splitting *s, struct split_place part, struct err *err)
{
    ncclConfig_t config = config_of(part.max_blocks);
    ncclComm_t none = NULL;

    return nccl_result(s->comm, s->root,
                       s->comm->api.split(s->root, part.link ? part.color : NCCL_SPLIT_NOCOLOR,
                                          part.key, part.link ? part.link : &none, &config),
                       "ncclCommSplit", err);
}

/* The color is the world rank of the group's first: groups that are connected together are
 * apart. */
static struct split_place part_together(const struct splitting *s)
{
    const struct comm_group *group = s->group;

    if (!(s->uses & COMM_TOGETHER))
        return {};
    return { &nccl_group_of(group)->links[TOGETHER], group->ranks[0], group->rank,
             COMM_BLOCKS_TOGETHER };
}

/* The pairs of a direction are made in two splits, and of an odd number of ranks in three, so
 * that a rank is in one pair of each at most: which one has the pair of this source. */
static int phase_of(int from, int size)
{
    return size % 2 && from == size - 1 ? 2 : from % 2;
}

/* The color is the world rank of the pair's source. */
static struct split_place part_of_pair(const struct splitting *s, int step, int phase)
{
    const struct comm_group *group = s->group;

    if (!(s->uses & (unsigned)(step > 0 ? COMM_TO_NEXT : COMM_TO_PREVIOUS)))
        return {};
    ncclComm_t *links = nccl_group_of(group)->links;
    int n = group->size, before = (group->rank - step + n) % n;

    if (phase_of(group->rank, n) == phase)
        return { &links[step > 0 ? TO_NEXT : TO_PREVIOUS], group->ranks[group->rank], 0,
                 COMM_BLOCKS_PAIR };
    if (phase_of(before, n) == phase)
        return { &links[step > 0 ? FROM_PREVIOUS : FROM_NEXT], group->ranks[before], 1,
                 COMM_BLOCKS_PAIR };
    return {};
}

/* together: gather_uses', from which all ranks of the root know which splits there are. */
static int split_all(const struct splitting *s, unsigned together, struct err *err)
{
    int n_phases = together & IS_ODD ? 3 : 2;

    if ((together & COMM_TOGETHER) && split(s, part_together(s), err) < 0)
        return -1;
    for (int step = 1; step >= -1; step -= 2)
        for (int phase = 0; phase < n_phases; phase++)
            if ((together & (unsigned)(step > 0 ? COMM_TO_NEXT : COMM_TO_PREVIOUS)) &&
                split(s, part_of_pair(s, step, phase), err) < 0)
                return -1;
    return 0;
}

/* The queues of a group's first calls: one, and for each pair another, as a send may wait for its
 * receive. */
static int open_queues(struct nccl_comm *comm, const struct nccl_group *group, struct err *err)
{
    struct device *device = &comm->device->base;

    for (int i = 0; i < N_LINKS; i++)
        if ((i == TOGETHER || group->links[i]) &&
            device->ops->open_queue(device, DEVICE_TRAFFIC + i, err) < 0)
            return -1;
    return 0;
}

static int first_of_pairs(struct nccl_comm *comm, const struct nccl_group *group,
                          unsigned char *byte, struct err *err)
{
    for (int i = TO_NEXT; i < N_LINKS; i++) {
        int sends = i == TO_NEXT || i == TO_PREVIOUS;
        ncclComm_t link = group->links[i];

        if (!link)
            continue;
        cudaStream_t stream = nccl_stream(comm, DEVICE_TRAFFIC + i);
        ncclResult_t result = sends ? comm->api.send(byte, 1, ncclUint8, 1, link, stream)
                                    : comm->api.receive(byte + i, 1, ncclUint8, 0, link, stream);
        if (nccl_result(comm, link, result, "a first call", err))
            return -1;
    }
    for (int i = TO_NEXT; i < N_LINKS; i++)
        if (comm->device->base.ops->wait(&comm->device->base, DEVICE_TRAFFIC + i, err) < 0)
            return -1;
    return 0;
}

/* room: size + 1 of the device. */
static int first_sums(struct comm_group *group, float *room, struct err *err)
{
    for (int k = 0; k < 2; k++) {
        struct comm_sum sum = { k == 1, DTYPE_F32, room, room + group->size, 1 };

        if (nccl_enqueue_sum(group, &sum, DEVICE_TRAFFIC, err) < 0)
            return -1;
    }
    return 0;
}

/* Of what calls at first want on the device. */
static size_t available_memory(const struct comm_group *group)
{
    return (2 * (size_t)group->size + N_LINKS) * sizeof(float);
}

/* Each call once, so that NCCL's connections stand. */
static int first_calls(struct comm_group *group, unsigned uses, unsigned char *room,
                       struct err *err)
{
    static const enum comm_kind kinds[] = { COMM_ALL_GATHER, COMM_ALL_TO_ALL, COMM_BROADCAST };
    struct nccl_comm *comm = nccl_comm_of(group->comm);

    for (enum comm_kind kind : kinds) {
        struct comm_call call = { kind, room, room + group->size, 1, 0 };

        if ((uses & COMM_TOGETHER) && nccl_enqueue(group, &call, DEVICE_TRAFFIC, err) < 0)
            return -1;
    }
    if ((uses & COMM_SUMS) && first_sums(group, (float *)room, err) < 0)
        return -1;
    if (comm->device->base.ops->wait(&comm->device->base, DEVICE_TRAFFIC, err) < 0)
        return -1;
    return first_of_pairs(comm, nccl_group_of(group), room + 2 * (size_t)group->size, err);
}

static int open_links(struct comm_group *all, struct comm_group *group, unsigned uses,
                      struct err *err)
{
    struct splitting s = { nccl_comm_of(all->comm), find_root(all), group, uses };
    unsigned together, own = uses | (uses && group->size % 2 ? IS_ODD : 0);

    if (gather_uses(all, own, &together, err) < 0)
        return -1;
    if (!together)
        return 0;
    if (!s.root && open_root(s.comm, all, &nccl_group_of(all)->root, err) < 0)
        return -1;
    if (!s.root)
        s.root = nccl_group_of(all)->root;
    return split_all(&s, together, err);
}

static int call_first(struct comm_group *group, unsigned uses, struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(group->comm);
    struct device *device = &comm->device->base;
    void *room;

    if (device->ops->allocate(device, available_memory(group), &room, err) < 0)
        return -1;
    int status = open_queues(comm, nccl_group_of(group), err);
    if (!status)
        status = first_calls(group, uses, (unsigned char *)room, err);
    device->ops->release(device, room);
    return status;
}

int nccl_connect(struct comm_group *all, struct comm_group *group, unsigned uses, struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(all->comm);

    if (all->size == 1)
        return 0;
    if (!group || group->size == 1)
        uses = 0;
    /* Next and previous are one rank of two. */
    else if (group->size == 2 && (uses & COMM_TO_PREVIOUS))
        uses = (uses & ~(unsigned)COMM_TO_PREVIOUS) | COMM_TO_NEXT;
    cuda_check(comm->device, "cudaSetDevice", cudaSetDevice(comm->device->index));
    if (open_links(all, group, uses, err) < 0)
        return -1;
    return uses ? call_first(group, uses, err) : 0;
}
