/*
 * streams_impl.h - streams and captures, as streams.cc and capture.cc share them
 *
 * All of it is guarded by emulate_lock.
 */
#ifndef EMULATE_STREAMS_IMPL_H
#define EMULATE_STREAMS_IMPL_H

#include "emulate_impl.h"

#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

typedef std::unique_lock<std::mutex> hold;

struct emulate_graph {
    std::vector<emulate_item> work;
};

/* A graph while it is made, and for the events that were recorded into it. */
struct capture {
    std::unique_ptr<emulate_graph> graph;  /* NULL: it has ended */
    std::vector<emulate_stream *> streams; /* where it began first, then those that joined */
    std::thread::id owner;
    bool is_invalid;
};
typedef std::shared_ptr<capture> capture_ref;

/* The streams of the items that have not started, in the order in which they were enqueued. */
typedef std::deque<emulate_stream *> hardware_queue;

struct emulate_stream {
    std::deque<emulate_item> items;
    bool busy; /* an OS thread runs the first of them */
    capture_ref capturing;
    std::shared_ptr<hardware_queue> queue;
};

/* The capture is invalid from here on; returns the error. Lock held. */
cudaError_t emulate_invalidate(const capture_ref &capture, cudaError_t error);

/* A stream that waits for what is being captured is captured from then on, too. Lock held. */
cudaError_t emulate_join_capture(cudaStream_t stream, const capture_ref &capture);

#endif
