// Stream capture and graphs: what is enqueued on a capturing stream becomes a list of nodes, run in order by each launch. Captures
// have one stream: an event of a capture, which would take another stream into it, ends the process.
#include "driver.h"

#include <cstdlib>
#include <thread>

namespace emulator {

enum Mode : int { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

struct Node {
    std::string name;
    std::function<void()> run;
};

// Guarded by the mutex of its stream.
struct Capture {
    int mode = GLOBAL;
    std::thread::id thread = std::this_thread::get_id();
    bool invalid = false;
    std::vector<Node> nodes;
};

struct Graph {
    std::vector<Node> nodes;
};

struct Executable {
    std::vector<Node> nodes;
    std::mutex running;  // launches of one graph never overlap
};

// How many streams are being captured, so that calls without captures look no further.
static std::atomic<int> capturing{0};
static Registry<Graph>& graphs = *new Registry<Graph>(0x50000000);
static Registry<Executable>& executables = *new Registry<Executable>(0x58000000);

bool add_node(Stream& stream, const std::string& name, const std::function<void()>& run, bool can_repeat) {
    std::lock_guard<std::mutex> guard(stream.mutex);
    if (!stream.capture) return false;
    if (!can_repeat) fatal(name.c_str(), "the stream is being captured, and this is not emulated in a graph");
    stream.capture->nodes.push_back({name, run});
    return true;
}

int capture_state(Stream& stream) {
    std::lock_guard<std::mutex> guard(stream.mutex);
    return !stream.capture ? 0 : stream.capture->invalid ? 2 : 1;
}

int invalidate(Stream& stream, int result) {
    std::lock_guard<std::mutex> guard(stream.mutex);
    if (!stream.capture) return SUCCESS;
    stream.capture->invalid = true;
    return result;
}

// See cuThreadExchangeStreamCaptureMode, of which every thread here has the default.
int refuse_unsafe() {
    int result = SUCCESS;
    if (!capturing) return result;
    for (auto& stream : streams.all()) {
        std::lock_guard<std::mutex> guard(stream->mutex);
        if (!stream->capture) continue;
        bool own = stream->capture->thread == std::this_thread::get_id();
        if (stream->capture->mode == GLOBAL || (own && stream->capture->mode == THREAD_LOCAL)) {
            stream->capture->invalid = true;
            result = STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

int refuse_captured(const std::function<bool(Stream&)>& concerned, int code) {
    int result = SUCCESS;
    if (!capturing) return result;
    for (auto& stream : streams.all())
        if (concerned(*stream) && invalidate(*stream, code)) result = code;
    return result;
}

}  // namespace emulator
using namespace emulator;

API int cuStreamBeginCapture_v2(Handle handle, int mode) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    if (handle <= 1) return STREAM_CAPTURE_UNSUPPORTED;
    if (mode < GLOBAL || mode > RELAXED) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(stream->mutex);
    if (stream->capture) return ILLEGAL_STATE;
    stream->capture = std::make_shared<Capture>();
    stream->capture->mode = mode;
    ++capturing;
    return SUCCESS;
}

API int cuStreamEndCapture(Handle handle, Handle* out) {
    auto stream = streams.find(handle);
    if (!stream) return INVALID_HANDLE;
    if (!out) return INVALID_VALUE;
    *out = 0;
    std::lock_guard<std::mutex> guard(stream->mutex);
    if (!stream->capture) return ILLEGAL_STATE;
    if (stream->capture->mode != RELAXED && stream->capture->thread != std::this_thread::get_id()) return STREAM_CAPTURE_WRONG_THREAD;
    auto capture = std::move(stream->capture);
    stream->capture = nullptr;
    --capturing;
    if (capture->invalid) return STREAM_CAPTURE_INVALIDATED;
    auto graph = std::make_shared<Graph>();
    graph->nodes = std::move(capture->nodes);
    *out = graphs.add(graph);
    return SUCCESS;
}

API int cuStreamIsCapturing(Handle handle, int* status) {
    auto stream = streams.find(handle);
    if (handle > 2 && !stream) return INVALID_HANDLE;
    *status = stream ? capture_state(*stream) : 0;
    return SUCCESS;
}

API int cuGraphInstantiateWithFlags(Handle* out, Handle handle, unsigned long long flags) {
    auto graph = graphs.find(handle);
    if (!graph || !out || flags) return INVALID_VALUE;
    auto executable = std::make_shared<Executable>();
    executable->nodes = graph->nodes;
    *out = executables.add(executable);
    return SUCCESS;
}

API int cuGraphDestroy(Handle handle) { return graphs.remove(handle) ? SUCCESS : INVALID_VALUE; }

// One that still runs is freed at its end.
API int cuGraphExecDestroy(Handle handle) { return executables.remove(handle) ? SUCCESS : INVALID_VALUE; }

// Everything is where it is needed already.
API int cuGraphUpload(Handle handle, Handle stream_handle) {
    int result;
    if (!find_stream(stream_handle, &result)) return result;
    return executables.find(handle) ? SUCCESS : INVALID_VALUE;
}

API int cuGraphLaunch(Handle handle, Handle stream_handle) {
    int result;
    auto stream = find_stream(stream_handle, &result);
    if (!stream) return result;
    auto executable = executables.find(handle);
    if (!executable) return INVALID_VALUE;
    submit(stream, "cuGraphLaunch", [executable] {
        std::lock_guard<std::mutex> guard(executable->running);
        for (auto& node : executable->nodes) {
            begin_node(node.name);
            node.run();
        }
    });
    return SUCCESS;
}
