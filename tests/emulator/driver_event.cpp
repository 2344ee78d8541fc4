// Events: recording, waiting, times, and events shared between processes.
#include "driver.h"

#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emulator {

// One recording. A wait keeps the recording that was the latest when it was issued, as CUDA does; recording again is no matter.
struct Record {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Clock::time_point time;
    std::string where;
};

// The state of an event that another process may open: counters in shared memory.
struct Shared {
    std::atomic<uint64_t> recorded, completed;
};

struct Event {
    unsigned flags = 0;
    std::shared_ptr<Context> context;
    std::mutex mutex;
    std::shared_ptr<Record> latest;
    Shared* shared = nullptr;
    int file = -1;
    bool opened = false;
    bool timed() const { return !(flags & 2); }
};

struct EventName {  // CUipcEventHandle: 64 bytes
    char mark[8];
    int process, file;
    char rest[48];
};
static_assert(sizeof(EventName) == 64, "CUipcEventHandle");

static Registry<Event>& events = *new Registry<Event>(0x30000000);

static bool share(Event& event) {
    if (event.file < 0) event.file = memfd_create("emulated event", MFD_CLOEXEC);
    if (event.file < 0 || ftruncate(event.file, sizeof(Shared))) return false;
    void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, event.file, 0);
    if (mapped == MAP_FAILED) return false;
    event.shared = (Shared*)mapped;
    return true;
}

static void complete(Shared* shared, uint64_t ticket) {
    uint64_t now = shared->completed;
    while (now < ticket && !shared->completed.compare_exchange_weak(now, ticket)) {}
}

int record_event(Handle handle, const std::shared_ptr<Stream>& stream, const char* call) {
    auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (event->context->root() != stream->context->root()) return INVALID_HANDLE;
    if (event->shared) {
        uint64_t ticket = ++event->shared->recorded;
        submit(stream, call, [event, ticket] { complete(event->shared, ticket); });
        return SUCCESS;
    }
    auto record = std::make_shared<Record>();
    std::lock_guard<std::mutex> guard(event->mutex);  // the latest record is the one submitted last
    uint64_t ticket = submit(stream, call, [record] {
        std::lock_guard<std::mutex> inner(record->mutex);
        record->time = Clock::now();
        record->done = true;
        record->changed.notify_all();
    });
    {
        std::lock_guard<std::mutex> inner(record->mutex);
        record->where = "operation " + std::to_string(ticket) + " of stream " + hexadecimal(stream->handle);
    }
    event->latest = record;
    return SUCCESS;
}

static void wait_record(Record& record, Handle handle) {
    auto start = Clock::now();
    for (bool told = false;; told = true) {
        std::string where;
        {
            std::unique_lock<std::mutex> lock(record.mutex);
            if (record.changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return record.done; })) return;
            where = record.where;
        }
        if (!told) set_blocked("event " + hexadecimal(handle) + " recorded as " + where);
        check_progress(start);
    }
}

static void wait_shared(const std::shared_ptr<Event>& event, Handle handle, uint64_t ticket) {
    block_until([&] { return event->shared->completed >= ticket; },
                [&] { return "event " + hexadecimal(handle) + " shared between processes, recording " + std::to_string(ticket); });
}

int wait_event(Handle handle, const std::shared_ptr<Stream>& stream, const char* call) {
    auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (int isolated = invalidate(*stream, STREAM_CAPTURE_ISOLATION)) return isolated;  // the event is of no capture
    if (event->shared) {
        uint64_t ticket = event->shared->recorded;
        if (ticket) submit(stream, call, [=] { wait_shared(event, handle, ticket); }, true);
        return SUCCESS;
    }
    std::lock_guard<std::mutex> guard(event->mutex);
    auto record = event->latest;
    if (record) submit(stream, call, [=] { wait_record(*record, handle); }, true);  // never recorded: nothing to wait for
    return SUCCESS;
}

static int elapsed(float* milliseconds, Handle start_handle, Handle end_handle) {
    auto start = events.find(start_handle), end = events.find(end_handle);
    if (!milliseconds) return INVALID_VALUE;
    if (!start || !end || !start->timed() || !end->timed() || start->context->root() != end->context->root()) return INVALID_HANDLE;
    std::shared_ptr<Record> from, to;
    { std::lock_guard<std::mutex> guard(start->mutex); from = start->latest; }
    { std::lock_guard<std::mutex> guard(end->mutex); to = end->latest; }
    if (!from || !to) return INVALID_HANDLE;
    Clock::time_point first, last;
    for (auto pair : {std::make_pair(from, &first), std::make_pair(to, &last)}) {
        std::lock_guard<std::mutex> guard(pair.first->mutex);
        if (!pair.first->done) return NOT_READY;
        *pair.second = pair.first->time;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(last - first).count();
    return SUCCESS;
}

}  // namespace emulator
using namespace emulator;

// A thread without a current context is refused.
#define CURRENT()                                                          \
    do {                                                                   \
        int current_result;                                                \
        if (!current_context(&current_result)) return current_result;      \
    } while (0)

API int cuEventCreate(Handle* out, unsigned flags) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (!out || flags > 7 || ((flags & 4) && !(flags & 2))) return INVALID_VALUE;  // shared events cannot have times
    auto event = std::make_shared<Event>();
    event->flags = flags;
    event->context = context;
    if ((flags & 4) && !share(*event)) return OUT_OF_MEMORY;
    *out = events.add(event);
    return SUCCESS;
}

API int cuEventDestroy_v2(Handle handle) { CURRENT(); return events.remove(handle) ? SUCCESS : INVALID_HANDLE; }

API int cuEventRecord(Handle event, Handle handle) {
    int result;
    auto stream = find_stream(handle, &result);
    return stream ? record_event(event, stream, "cuEventRecord") : result;
}
API int cuEventRecordWithFlags(Handle event, Handle stream, unsigned flags) { return flags > 1 ? (int)INVALID_VALUE : cuEventRecord(event, stream); }

API int cuStreamWaitEvent(Handle handle, Handle event, unsigned flags) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    return flags > 1 ? (int)INVALID_VALUE : wait_event(event, stream, "cuStreamWaitEvent");
}

API int cuEventQuery(Handle handle) {
    CURRENT();
    if (int forbidden = refuse_unsafe()) return forbidden;
    auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (event->shared) return event->shared->completed >= event->shared->recorded ? SUCCESS : NOT_READY;
    std::lock_guard<std::mutex> guard(event->mutex);
    if (!event->latest) return SUCCESS;
    std::lock_guard<std::mutex> inner(event->latest->mutex);
    return event->latest->done ? SUCCESS : NOT_READY;
}

API int cuEventSynchronize(Handle handle) {
    CURRENT();
    auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (inside_host_function) return NOT_PERMITTED;
    if (int forbidden = refuse_unsafe()) return forbidden;
    if (const char* thread = getenv("EMULATOR_FAIL_THREAD")) {
        char own[16] = "";
        pthread_getname_np(pthread_self(), own, sizeof own);
        if (!strncmp(own, thread, strlen(thread))) return LAUNCH_FAILED;
    }
    if (event->shared) return wait_shared(event, handle, event->shared->recorded), SUCCESS;
    std::shared_ptr<Record> record;
    { std::lock_guard<std::mutex> guard(event->mutex); record = event->latest; }
    if (record) wait_record(*record, handle);
    return SUCCESS;
}

API int cuEventElapsedTime(float* milliseconds, Handle start, Handle end) { CURRENT(); return elapsed(milliseconds, start, end); }
API int cuEventElapsedTime_v2(float* milliseconds, Handle start, Handle end) { CURRENT(); return elapsed(milliseconds, start, end); }

API int cuIpcGetEventHandle(EventName* name, Handle handle) {
    auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (!event->shared || event->opened) return INVALID_VALUE;
    memset(name, 0, sizeof *name);
    memcpy(name->mark, "emuevent", 8);
    name->process = getpid(), name->file = event->file;
    return SUCCESS;
}

API int cuIpcOpenEventHandle(Handle* out, EventName name) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (memcmp(name.mark, "emuevent", 8)) return INVALID_VALUE;
    if (name.process == getpid()) return INVALID_CONTEXT;  // only another process may open it
    auto event = std::make_shared<Event>();
    event->flags = 6;
    event->context = context;
    event->opened = true;
    std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
    event->file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (event->file < 0 || !share(*event)) return MAPPING_FAILED;
    *out = events.add(event);
    return SUCCESS;
}
