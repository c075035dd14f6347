/*
 * nccl.cc - see nccl.h
 *
 * What is called together (a group, or one call) becomes three items of its stream: arrive, and let
 * the others see one's buffers; take what is theirs, once they have arrived; leave, once they have
 * taken. All that is shared is guarded by emulate_lock.
 */
#include "nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <string>

#include "nccl_sum.h"

enum kind { SEND, RECEIVE, ALL_GATHER, BROADCAST, REDUCE_SCATTER, ALL_REDUCE };
static const char *const kind_names[] = { "send",      "receive",        "all_gather",
                                          "broadcast", "reduce_scatter", "all_reduce" };

/* One rank's part in a meeting. */
struct meeting_part {
    bool enqueued, arrived, taken;
    const void *send;
    cudaStream_t stream;
};

/* A collective call of all ranks, or a send (part 0) and its receive (part 1). */
struct meeting {
    kind what;
    size_t n_bytes;
    int root;
    std::vector<meeting_part> parts;
};

typedef std::shared_ptr<meeting> meeting_ref;

struct clique;

/* One ncclCommSplit of all ranks, by their number: what they ask for, and the cliques by color. */
struct split_round {
    int n_here;
    std::vector<int> colors, keys;
    std::map<int, std::shared_ptr<clique>> made;
};

/* All ranks of a communicator. */
struct clique {
    int n_ranks, n_joined;
    std::string error;
    std::vector<bool> is_here;
    std::vector<std::shared_ptr<split_round>> splits;              /* by number */
    std::vector<meeting_ref> collectives;                          /* by number */
    std::map<std::pair<int, int>, std::vector<meeting_ref>> pairs; /* by from and to, by number */
};

/* One rank's end. Items of its streams keep it. */
struct end {
    std::shared_ptr<clique> all;
    int rank;
    bool aborted;
    size_t n_collectives, n_splits;
    std::map<int, size_t> n_sends, n_receives; /* by peer */
    std::shared_ptr<bool> last_left;           /* of the calls before */
    cudaStream_t last_stream;
    std::string error;
};

struct emulate_nccl {
    std::shared_ptr<struct end> end;
};

struct call {
    std::shared_ptr<struct end> end;
    cudaStream_t stream;
    kind what;
    const void *send;
    void *receive;
    size_t n_bytes;
    int peer; /* or root; of a sum its type */
    meeting_ref met;
    int place; /* in met's parts */
};

typedef std::vector<call> calls;

static std::map<std::string, std::shared_ptr<clique>> *cliques =
    new std::map<std::string, std::shared_ptr<clique>>();
static std::condition_variable *joined = new std::condition_variable();
static uint64_t n_ids;
static thread_local int depth;
static thread_local calls *grouped;

typedef std::unique_lock<std::mutex> hold;

/* ---- communicators ---- */

static void log_line(const char *format, ...)
{
    const char *path = getenv("LMTRAIN_EMULATE_NCCL_LOG");
    FILE *file = path && *path ? fopen(path, "ae") : NULL;
    va_list arguments;

    if (!file)
        return;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fclose(file);
}

static ncclComm_t new_end(const std::shared_ptr<clique> &all, int rank)
{
    ncclComm_t comm = new emulate_nccl();

    comm->end = std::make_shared<struct end>();
    comm->end->all = all;
    comm->end->rank = rank;
    return comm;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    hold held(emulate_lock());

    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "emulated %llu", (unsigned long long)++n_ids);
    log_line("id\n");
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *)
{
    hold held(emulate_lock());
    std::shared_ptr<clique> &slot = (*cliques)[std::string(id.internal)];

    if (!slot) {
        slot = std::make_shared<clique>();
        slot->n_ranks = n_ranks;
        slot->is_here.resize((size_t)n_ranks);
    }
    std::shared_ptr<clique> all = slot;
    if (all->n_ranks != n_ranks || rank < 0 || rank >= n_ranks || all->is_here[(size_t)rank])
        return ncclInvalidArgument;
    all->is_here[(size_t)rank] = true;
    all->n_joined++;
    joined->notify_all();
    joined->wait(held, [&] { return all->n_joined == n_ranks; });
    *comm = new_end(all, rank);
    log_line("init %d of %d\n", rank, n_ranks);
    return ncclSuccess;
}

/* The clique of a color, of which *rank is the rank of `of`: by key, of equal ones by rank. */
static std::shared_ptr<clique> clique_of(split_round *round, int of, int *rank)
{
    int color = round->colors[(size_t)of], key = round->keys[(size_t)of], n = 0;
    std::shared_ptr<clique> &slot = round->made[color];

    *rank = 0;
    for (int i = 0; i < (int)round->colors.size(); i++) {
        int other = round->keys[(size_t)i];

        if (round->colors[(size_t)i] != color)
            continue;
        n++;
        *rank += other < key || (other == key && i < of);
    }
    if (!slot) {
        slot = std::make_shared<clique>();
        slot->n_ranks = n;
    }
    return slot;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *new_comm,
                           ncclConfig_t *)
{
    hold held(emulate_lock());
    struct end *e = comm->end.get();
    clique *all = e->all.get();
    size_t number = e->n_splits++, n = (size_t)all->n_ranks;
    int rank;

    *new_comm = NULL;
    if (color < NCCL_SPLIT_NOCOLOR || (e->last_left && !*e->last_left))
        return ncclInvalidUsage;
    if (all->splits.size() <= number)
        all->splits.push_back(std::make_shared<split_round>());
    std::shared_ptr<split_round> round = all->splits[number];
    round->colors.resize(n);
    round->keys.resize(n);
    round->colors[(size_t)e->rank] = color;
    round->keys[(size_t)e->rank] = key;
    round->n_here++;
    joined->notify_all();
    joined->wait(held, [&] { return round->n_here == all->n_ranks; });
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    std::shared_ptr<clique> made = clique_of(round.get(), e->rank, &rank);
    *new_comm = new_end(made, rank);
    log_line("split %d: %d of %d\n", color, rank, (*new_comm)->end->all->n_ranks);
    return ncclSuccess;
}

/* What is under way ends at once, without its results. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    {
        hold held(emulate_lock());

        comm->end->aborted = true;
    }
    emulate_settle();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    hold held(emulate_lock());

    comm->end->error = comm->end->all->error;
    *error = comm->end->error.empty() ? ncclSuccess : ncclInvalidUsage;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    default:
        return "error";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->end->error.c_str() : "";
}

ncclResult_t ncclGetVersion(int *version)
{
    const char *wanted = getenv("LMTRAIN_EMULATE_NCCL");

    *version = wanted && *wanted ? (int)strtol(wanted, NULL, 10) : 22800;
    return ncclSuccess;
}

/* ---- calls find those of the other ranks ---- */

static meeting_ref meeting_at(std::vector<meeting_ref> *list, size_t number, const call &c,
                              size_t n_parts)
{
    if (list->size() <= number)
        list->resize(number + 1);
    if (!(*list)[number]) {
        meeting_ref made = std::make_shared<meeting>();

        made->what = c.what == RECEIVE ? SEND : c.what;
        made->n_bytes = c.n_bytes;
        made->root = c.what >= BROADCAST ? c.peer : 0;
        made->parts.resize(n_parts);
        (*list)[number] = made;
    }
    return (*list)[number];
}

static void find_meeting(call *c)
{
    struct end *e = c->end.get();
    clique *all = e->all.get();

    switch (c->what) {
    case SEND:
        c->met = meeting_at(&all->pairs[{ e->rank, c->peer }], e->n_sends[c->peer]++, *c, 2);
        c->place = 0;
        break;
    case RECEIVE:
        c->met = meeting_at(&all->pairs[{ c->peer, e->rank }], e->n_receives[c->peer]++, *c, 2);
        c->place = 1;
        break;
    default:
        c->met = meeting_at(&all->collectives, e->n_collectives++, *c, (size_t)all->n_ranks);
        c->place = e->rank;
    }
}

static bool is_equal(const call &c)
{
    kind what = c.what == RECEIVE ? SEND : c.what;

    return c.met->what == what && c.met->n_bytes == c.n_bytes &&
           (what < BROADCAST || c.met->root == c.peer);
}

static ncclResult_t meet(call *c)
{
    char text[256];

    find_meeting(c);
    if (!is_equal(*c)) {
        snprintf(
            text, sizeof text,
            "mismatch: rank %d calls %s of %zu bytes (peer or root %d), another %s of %zu (%d)",
            c->end->rank, kind_names[c->what], c->n_bytes, c->peer, kind_names[c->met->what],
            c->met->n_bytes, c->met->root);
        c->end->error = c->end->all->error = text;
        return ncclInvalidArgument;
    }
    c->met->parts[(size_t)c->place] = { true, false, false, c->send, c->stream };
    return ncclSuccess;
}

/* ---- and their stream does them ---- */

/* The parts that a call awaits: a send its receive's, a receive its send's, others all. */
template <typename F> static void each_awaited(const call &c, F f)
{
    for (size_t i = 0; i < c.met->parts.size(); i++)
        if ((int)i != c.place)
            f(c.met->parts[i]);
}

static ring_sum sum_of(const call &c)
{
    ring_sum sum = { {}, c.peer == ncclBfloat16 };

    for (const meeting_part &part : c.met->parts)
        sum.terms.push_back(part.send);
    return sum;
}

static void take(const call &c)
{
    char *to = (char *)c.receive;

    switch (c.what) {
    case SEND:
        break;
    case RECEIVE:
        memmove(to, c.met->parts[0].send, c.n_bytes);
        break;
    case ALL_GATHER:
        for (size_t i = 0; i < c.met->parts.size(); i++)
            memmove(to + i * c.n_bytes, c.met->parts[i].send, c.n_bytes);
        break;
    case BROADCAST:
        memmove(to, c.met->parts[(size_t)c.peer].send, c.n_bytes);
        break;
    case REDUCE_SCATTER: {
        size_t n = c.n_bytes / (c.peer == ncclBfloat16 ? 2 : 4);

        emulate_ring_sum(sum_of(c), to, (size_t)c.place * n, n, (size_t)c.place);
        break;
    }
    case ALL_REDUCE:
        emulate_ring_sum_all(sum_of(c), to, c.n_bytes);
    }
}

/* A sender waits for nobody before it is taken from. */
static bool have_arrived(const calls &all)
{
    bool yes = true;

    for (const call &c : all)
        if (c.what != SEND)
            each_awaited(c, [&](const meeting_part &p) { yes &= p.arrived; });
    return yes;
}

static bool have_taken(const calls &all)
{
    bool yes = true;

    for (const call &c : all)
        if (c.what != RECEIVE)
            each_awaited(c, [&](const meeting_part &p) { yes &= p.taken; });
    return yes;
}

static emulate_item arrive_item(const std::shared_ptr<calls> &all)
{
    std::shared_ptr<struct end> e = all->front().end;
    std::shared_ptr<bool> before = e->last_left;
    cudaStream_t stream = e->last_stream;
    emulate_item item = {};

    item.ready = [=] { return e->aborted || !before || *before; };
    item.needs = [=](std::vector<cudaStream_t> &needs) { needs.push_back(stream); };
    item.run = [=] {
        hold held(emulate_lock());

        for (call &c : *all)
            c.met->parts[(size_t)c.place].arrived = true;
    };
    return item;
}

static emulate_item take_item(const std::shared_ptr<calls> &all)
{
    std::shared_ptr<struct end> e = all->front().end;
    emulate_item item = {};

    item.continues = true;
    item.ready = [=] { return e->aborted || have_arrived(*all); };
    item.needs = [=](std::vector<cudaStream_t> &needs) {
        for (const call &c : *all)
            each_awaited(c, [&](const meeting_part &p) {
                if (p.enqueued && !p.arrived)
                    needs.push_back(p.stream);
            });
    };
    item.run = [=] {
        for (call &c : *all)
            if (!e->aborted)
                take(c);
        hold held(emulate_lock());
        for (call &c : *all)
            c.met->parts[(size_t)c.place].taken = true;
    };
    return item;
}

static emulate_item leave_item(const std::shared_ptr<calls> &all)
{
    std::shared_ptr<struct end> e = all->front().end;
    std::shared_ptr<bool> left = e->last_left;
    emulate_item item = {};

    item.continues = true;
    item.ready = [=] { return e->aborted || have_taken(*all); };
    item.needs = [=](std::vector<cudaStream_t> &needs) {
        for (const call &c : *all)
            each_awaited(c, [&](const meeting_part &p) {
                if (p.enqueued && !p.taken)
                    needs.push_back(p.stream);
            });
    };
    item.run = [=] {
        hold held(emulate_lock());

        *left = true;
    };
    return item;
}

/* Calls over one communicator, on one stream. */
static ncclResult_t enqueue(calls list)
{
    std::shared_ptr<calls> all = std::make_shared<calls>(list);
    std::shared_ptr<struct end> e = all->front().end;
    cudaStream_t stream = all->front().stream;
    emulate_item items[3];

    if (emulate_is_capturing(stream))
        return ncclInvalidUsage;
    {
        hold held(emulate_lock());

        for (call &c : *all) {
            if (c.stream != stream)
                return ncclInvalidUsage;
            ncclResult_t result = meet(&c);
            if (result != ncclSuccess)
                return result;
        }
        items[0] = arrive_item(all);
        e->last_left = std::make_shared<bool>(false);
        e->last_stream = stream;
        items[1] = take_item(all);
        items[2] = leave_item(all);
    }
    for (emulate_item &item : items)
        emulate_enqueue_item(stream, std::move(item));
    return ncclSuccess;
}

static ncclResult_t add(ncclComm_t comm, call c)
{
    int is_sum = c.what == REDUCE_SCATTER || c.what == ALL_REDUCE;

    c.end = comm->end;
    if (!is_sum && (c.peer < 0 || c.peer >= c.end->all->n_ranks))
        return ncclInvalidArgument;
    if (!depth)
        return enqueue({ c });
    grouped->push_back(c);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    if (!grouped)
        grouped = new calls();
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;
    calls left;

    if (!depth || --depth)
        return depth ? ncclSuccess : ncclInvalidUsage;
    left.swap(*grouped);
    while (!left.empty() && result == ncclSuccess) {
        calls of_one, rest;

        for (const call &c : left)
            (c.end == left.front().end ? of_one : rest).push_back(c);
        result = enqueue(of_one);
        left.swap(rest);
    }
    return result;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add(comm, { nullptr, stream, SEND, send, NULL, count, peer, nullptr, 0 });
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add(comm, { nullptr, stream, RECEIVE, NULL, receive, count, peer, nullptr, 0 });
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, { nullptr, stream, ALL_GATHER, send, receive, count, 0, nullptr, 0 });
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, { nullptr, stream, BROADCAST, send, receive, count, root, nullptr, 0 });
}

/* The others read what is sent until all are done: sums into what they are of are not emulated. */
static ncclResult_t add_sum(kind what, const void *send, void *receive, size_t count,
                            ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    size_t n_bytes = count * (type == ncclBfloat16 ? 2 : 4);
    size_t all = what == ALL_REDUCE ? n_bytes : n_bytes * (size_t)comm->end->all->n_ranks;
    const char *from = (const char *)send, *to = (const char *)receive;

    if ((type != ncclBfloat16 && type != ncclFloat32) || (to < from + all && from < to + n_bytes))
        return ncclInvalidArgument;
    return add(comm, { nullptr, stream, what, send, receive, n_bytes, type, nullptr, 0 });
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream)
{
    return add_sum(REDUCE_SCATTER, send, receive, count, type, comm, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream)
{
    return add_sum(ALL_REDUCE, send, receive, count, type, comm, stream);
}
