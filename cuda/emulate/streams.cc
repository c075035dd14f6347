/*
 * streams.cc - the emulated GPU's queues: who runs what is enqueued, and when
 *
 * A stream is a list of items that are run in order, by whichever OS thread waits for something or,
 * in between, enqueues. So ranks that are threads of one process, each with streams of its own, see
 * each other's streams go on while they wait, as those of real GPUs do.
 *
 * Between streams nothing but events orders anything, and LMTRAIN_EMULATE_STREAMS chooses an order
 * that tells where one is missing:
 *   eager  (default) what can run does so when it is enqueued;
 *   lazy   nothing runs before somebody waits for it, and then only what that needs;
 *   N      a seed: what runs next, and how much of it when something is enqueued, is drawn.
 *
 * But a GPU has few hardware queues, CUDA_DEVICE_MAX_CONNECTIONS of them, 8 where it is not set:
 * streams are dealt out over them in the order in which they are made. A hardware queue starts its
 * items in the order in which they were enqueued, whatever stream they are of; one that cannot
 * start, because its stream is not so far or an event is not reached, keeps back all behind it. So
 * streams 0 and 8 may wait for each other without an event. An OS thread is a rank here, as a
 * process is with real GPUs: each has its own hardware queues on each device.
 */
#include "streams_impl.h"

#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <map>

enum {
    N_ITEMS_MAX = 4096, /* a stream that is given more waits until some of it has run */
    N_CONNECTIONS = 8,
    N_CONNECTIONS_MAX = 32
};

/* Where an event was recorded. Who waits for it keeps it, whatever the event is used for next. */
struct position {
    emulate_stream *stream;
    capture_ref captured; /* NULL: in the stream */
    bool done;
    double at;
};

struct emulate_event {
    std::shared_ptr<position> last;
};

static std::mutex *the_lock = new std::mutex();
static std::condition_variable *changed = new std::condition_variable();
static std::vector<emulate_stream *> *streams = new std::vector<emulate_stream *>();
static uint64_t drawn;

std::mutex &emulate_lock(void)
{
    return *the_lock;
}

/* ---- what runs next
 * ---------------------------------------------------------------------------- */

enum policy { EAGER, LAZY, DRAWN };

static policy policy_of(uint64_t *seed)
{
    const char *text = getenv("LMTRAIN_EMULATE_STREAMS");

    *seed = 0;
    if (!text || !*text || !strcmp(text, "eager"))
        return EAGER;
    if (!strcmp(text, "lazy"))
        return LAZY;
    *seed = strtoull(text, NULL, 10);
    return DRAWN;
}

static uint64_t draw(uint64_t seed, uint64_t n)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + drawn++ * 0xd1342543de82ef95u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
}

/* What has begun is no more in the hardware's queue. */
static bool is_first_in_hardware(const emulate_stream *s)
{
    return s->items.front().continues || s->queue->front() == s;
}

static bool can_run(const emulate_stream *s)
{
    return !s->busy && !s->items.empty() && is_first_in_hardware(s) &&
           (!s->items.front().ready || s->items.front().ready());
}

static emulate_stream *any_that_can(uint64_t begin)
{
    for (size_t i = 0; i < streams->size(); i++) {
        emulate_stream *s = (*streams)[(begin + i) % streams->size()];

        if (can_run(s))
            return s;
    }
    return NULL;
}

/* A stream that brings `wanted` further by running its first item. */
static emulate_stream *needed_by(emulate_stream *wanted)
{
    std::vector<emulate_stream *> seen = { wanted };

    for (size_t i = 0; i < seen.size(); i++) {
        emulate_stream *s = seen[i];
        std::vector<emulate_stream *> needs;

        if (can_run(s))
            return s;
        if (s->busy || s->items.empty())
            continue;
        if (!is_first_in_hardware(s))
            needs.push_back(s->queue->front());
        else if (s->items.front().needs)
            s->items.front().needs(needs);
        for (emulate_stream *n : needs) {
            bool is_new = true;

            for (emulate_stream *old : seen)
                is_new &= old != n;
            if (is_new)
                seen.push_back(n);
        }
    }
    return NULL;
}

static emulate_stream *choose(emulate_stream *wanted)
{
    uint64_t seed;

    switch (policy_of(&seed)) {
    case LAZY:
        return needed_by(wanted);
    case DRAWN:
        return any_that_can(draw(seed, streams->size()));
    default:
        return any_that_can(0);
    }
}

/* Lock held, but while it runs. */
static void run_first(hold &held, emulate_stream *s)
{
    std::function<void()> run = std::move(s->items.front().run);

    s->busy = true;
    if (!s->items.front().continues)
        s->queue->pop_front();
    held.unlock();
    if (run)
        run();
    run = nullptr;
    held.lock();
    s->items.pop_front();
    s->busy = false;
    changed->notify_all();
}

template <typename P> static void run_until(hold &held, emulate_stream *wanted, P is_reached)
{
    while (!is_reached()) {
        emulate_stream *next = choose(wanted);

        if (next)
            run_first(held, next);
        else
            changed->wait(held);
    }
}

/* All that can run, without waiting for what nobody has enqueued. */
static void settle(hold &held)
{
    for (;;) {
        emulate_stream *next = any_that_can(0);
        bool busy = false;

        if (next) {
            run_first(held, next);
            continue;
        }
        for (const emulate_stream *s : *streams)
            busy |= s->busy;
        if (!busy)
            return;
        changed->wait(held);
    }
}

void emulate_settle(void)
{
    hold held(*the_lock);

    settle(held);
}

static void go_on_a_little(hold &held)
{
    uint64_t seed;
    policy policy = policy_of(&seed);
    uint64_t n = policy == EAGER ? UINT64_MAX : policy == DRAWN ? draw(seed, 4) : 0;

    for (uint64_t i = 0; i < n; i++) {
        emulate_stream *next = any_that_can(policy == DRAWN ? draw(seed, streams->size()) : 0);

        if (!next)
            return;
        run_first(held, next);
    }
}

/* ---- streams
 * ----------------------------------------------------------------------------------- */

/* Of an OS thread, on each device. */
struct connections {
    std::vector<std::shared_ptr<hardware_queue>> queues;
    size_t n_streams; /* made so far */
};
static thread_local std::map<int, connections> own_connections;

static int n_connections(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int n = text ? (int)strtol(text, NULL, 10) : 0;

    return n < 1 ? N_CONNECTIONS : n < N_CONNECTIONS_MAX ? n : N_CONNECTIONS_MAX;
}

static std::shared_ptr<hardware_queue> next_connection(void)
{
    connections &c = own_connections[emulate_device()];

    if (c.queues.empty())
        c.queues.resize((size_t)n_connections());
    std::shared_ptr<hardware_queue> &queue = c.queues[c.n_streams++ % c.queues.size()];
    if (!queue)
        queue = std::make_shared<hardware_queue>();
    return queue;
}

static void push(hold &held, emulate_stream *stream, emulate_item item)
{
    run_until(held, stream, [=] { return stream->items.size() < N_ITEMS_MAX; });
    if (!item.continues)
        stream->queue->push_back(stream);
    stream->items.push_back(std::move(item));
}

cudaError_t emulate_enqueue_item(cudaStream_t stream, emulate_item item)
{
    hold held(*the_lock);

    if (!stream) {
        /* The default stream: nothing of ours uses it but tests, which want it done. */
        held.unlock();
        item.run();
        return cudaSuccess;
    }
    if (stream->capturing) {
        if (stream->capturing->is_invalid)
            return emulate_error(cudaErrorStreamCaptureInvalidated);
        stream->capturing->graph->work.push_back(std::move(item));
        return cudaSuccess;
    }
    push(held, stream, std::move(item));
    changed->notify_all();
    go_on_a_little(held);
    return cudaSuccess;
}

cudaError_t emulate_enqueue(cudaStream_t stream, std::function<void()> work)
{
    return emulate_enqueue_item(stream, { std::move(work), nullptr, nullptr, false });
}

bool emulate_is_capturing(cudaStream_t stream)
{
    hold held(*the_lock);

    return stream && stream->capturing;
}

bool emulate_waits_for_peers(void)
{
    hold held(*the_lock);

    for (const emulate_stream *s : *streams)
        for (const emulate_item &item : s->items)
            if (item.continues)
                return true;
    return false;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* Priorities are for who shares multiprocessors, which nobody does here. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int)
{
    hold held(*the_lock);

    *stream = new emulate_stream();
    (*stream)->queue = next_connection();
    streams->push_back(*stream);
    return cudaSuccess;
}

/* What waits for peers that never came stays, with its stream: nobody can take it back. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    hold held(*the_lock);

    settle(held);
    if (!stream->items.empty())
        return cudaSuccess;
    for (size_t i = 0; i < streams->size(); i++)
        if ((*streams)[i] == stream)
            streams->erase(streams->begin() + (ptrdiff_t)i);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t refused = emulate_refuse_in_capture();
    hold held(*the_lock);

    if (refused != cudaSuccess || !stream)
        return refused;
    if (stream->capturing)
        return emulate_invalidate(stream->capturing, cudaErrorStreamCaptureUnsupported);
    run_until(held, stream, [=] { return stream->items.empty(); });
    return emulate_failure();
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t refused = emulate_refuse_in_capture();
    hold held(*the_lock);

    if (refused != cudaSuccess)
        return refused;
    for (size_t i = 0; i < streams->size(); i++) {
        emulate_stream *s = (*streams)[i];

        run_until(held, s, [=] { return s->items.empty(); });
    }
    return cudaSuccess;
}

/* ---- events
 * ------------------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new emulate_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

static void reach(const std::shared_ptr<position> &here)
{
    hold held(*the_lock);
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    here->at = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    here->done = true;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::shared_ptr<position> here = std::make_shared<position>();

    {
        hold held(*the_lock);

        *here = { stream, stream ? stream->capturing : nullptr, false, 0 };
        event->last = here;
    }
    return emulate_enqueue(stream, [here] { reach(here); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    hold held(*the_lock);
    std::shared_ptr<position> there = event->last;

    if (there && there->captured)
        return emulate_join_capture(stream, there->captured);
    if (stream->capturing)
        return emulate_invalidate(stream->capturing, cudaErrorStreamCaptureIsolation);
    if (!there)
        return cudaSuccess;
    emulate_item item = {};
    item.ready = [there] { return there->done; };
    item.needs = [there](std::vector<emulate_stream *> &needs) { needs.push_back(there->stream); };
    push(held, stream, std::move(item));
    go_on_a_little(held);
    return cudaSuccess;
}

/* A captured event has no time at which it is reached, also when its capture has ended. */
static cudaError_t refuse_captured(const std::shared_ptr<position> &there)
{
    if (!there || !there->captured)
        return cudaSuccess;
    return emulate_invalidate(there->captured, cudaErrorCapturedEvent);
}

/* Who asks brings it about, step by step: nothing else may come to run it. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t refused = emulate_refuse_in_capture();
    hold held(*the_lock);
    std::shared_ptr<position> there = event->last;

    if (refused == cudaSuccess)
        refused = refuse_captured(there);
    if (refused != cudaSuccess || !there || there->done)
        return refused;
    emulate_stream *next = choose(there->stream);
    if (next)
        run_first(held, next);
    return there->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t refused = emulate_refuse_in_capture();
    hold held(*the_lock);
    std::shared_ptr<position> there = event->last;

    if (refused == cudaSuccess)
        refused = refuse_captured(there);
    if (refused == cudaSuccess && there)
        run_until(held, there->stream, [=] { return there->done; });
    return refused;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    hold held(*the_lock);

    if (!from->last || !to->last)
        return emulate_error(cudaErrorInvalidValue);
    if (!from->last->done || !to->last->done)
        return cudaErrorNotReady;
    *ms = (float)((to->last->at - from->last->at) * 1e3);
    return cudaSuccess;
}
