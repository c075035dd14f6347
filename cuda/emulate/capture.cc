/*
 * capture.cc - capture of streams into graphs, and graphs
 *
 * Capture follows the rules of cudaStreamCaptureModeThreadLocal: what the thread that captures may
 * not call meanwhile gives the error that it gives on a GPU, and the capture is invalid from there
 * on. A GPU is laxer with some of it (cudaMemGetInfo, a query of another stream's event).
 */
#include "streams_impl.h"

#include <algorithm>

/* ---- capture
 * ----------------------------------------------------------------------------------- */

static thread_local std::vector<capture_ref> own_captures;

cudaError_t emulate_invalidate(const capture_ref &capture, cudaError_t error)
{
    capture->is_invalid = true;
    return emulate_error(error);
}

cudaError_t emulate_refuse_in_capture(void)
{
    hold held(emulate_lock());
    cudaError_t refused = cudaSuccess;

    for (const capture_ref &c : own_captures)
        refused = emulate_invalidate(c, cudaErrorStreamCaptureUnsupported);
    return refused;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    hold held(emulate_lock());

    if (stream->capturing)
        return emulate_error(cudaErrorIllegalState);
    stream->capturing = std::make_shared<capture>();
    stream->capturing->graph.reset(new emulate_graph());
    stream->capturing->streams.push_back(stream);
    stream->capturing->owner = std::this_thread::get_id();
    own_captures.push_back(stream->capturing);
    return cudaSuccess;
}

cudaError_t emulate_join_capture(cudaStream_t stream, const capture_ref &capture)
{
    if (!capture->graph)
        return emulate_error(cudaErrorCapturedEvent);
    if (stream->capturing && stream->capturing != capture) {
        emulate_invalidate(stream->capturing, cudaErrorStreamCaptureMerge);
        return emulate_invalidate(capture, cudaErrorStreamCaptureMerge);
    }
    if (stream->capturing != capture) {
        stream->capturing = capture;
        capture->streams.push_back(stream);
    }
    return cudaSuccess;
}

static cudaError_t end_error(const cudaStream_t stream)
{
    const capture_ref &c = stream->capturing;

    if (!c)
        return emulate_error(cudaErrorIllegalState);
    if (c->owner != std::this_thread::get_id())
        return emulate_invalidate(c, cudaErrorStreamCaptureWrongThread);
    if (c->streams.front() != stream)
        return emulate_invalidate(c, cudaErrorStreamCaptureUnmatched);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    hold held(emulate_lock());
    cudaError_t error = end_error(stream);
    capture_ref ended = stream->capturing;

    *graph = NULL;
    if (error != cudaSuccess)
        return error;
    for (emulate_stream *s : ended->streams)
        s->capturing = nullptr;
    own_captures.erase(std::find(own_captures.begin(), own_captures.end(), ended));
    if (ended->is_invalid) {
        ended->graph.reset();
        return emulate_error(cudaErrorStreamCaptureInvalidated);
    }
    *graph = ended->graph.release();
    return cudaSuccess;
}

/* ---- graphs
 * ------------------------------------------------------------------------------------ */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new emulate_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;

    for (const emulate_item &item : exec->work)
        if (error == cudaSuccess)
            error = emulate_enqueue_item(stream, item);
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
