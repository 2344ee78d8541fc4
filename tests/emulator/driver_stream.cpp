// Streams: a thread and an in-order queue each, the implicit order of the default stream, waiting, and the aid against
// deadlocks ($EMULATOR_TIMEOUT) and for missing dependences ($EMULATOR_JITTER).
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

namespace emulator {

Registry<Stream>& streams = *new Registry<Stream>(0x20000000);
thread_local bool inside_host_function = false;
static thread_local Stream* own_stream = nullptr;
static thread_local const char* own_operation = "the host";
static std::atomic<Clock::rep> last_progress{0};

const char* running_operation() { return own_operation; }
bool is_stream_thread() { return own_stream != nullptr; }

static double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
static void note_progress() { last_progress = Clock::now().time_since_epoch().count(); }

static uint64_t next_random(uint64_t& state) {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Half of the operations start up to 0.2 ms late, one in 32 up to 3 ms: enough to overtake what only seemed to be ordered.
static void delay(Stream& stream) {
    static const char* seed = getenv("EMULATOR_JITTER");
    if (!seed || !*seed) return;
    if (!stream.random) stream.random = strtoull(seed, nullptr, 10) * 1000003 + stream.handle;
    uint64_t random = next_random(stream.random);
    if (random & 1) usleep((random & 0x3e) == 0 ? (random >> 8) % 3000 : (random >> 8) % 200);
}

static void trace(const Stream& stream, const std::string& operation) {
    static const bool wanted = getenv("EMULATOR_TRACE") != nullptr;
    if (!wanted) return;
    std::string line = std::to_string(Clock::now().time_since_epoch().count() / 1000) + " us device " +
                       std::to_string(stream.context->device) + " stream " + hexadecimal(stream.handle) + " " + operation + "\n";
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

void begin_node(const std::string& name) {
    own_operation = name.c_str();
    trace(*own_stream, "node " + name);
}

// The queues of a device, each once; $EMULATOR_HARDWARE_QUEUES=0 gives every stream one of its own.
static std::shared_ptr<HardwareQueue> hardware_queue(Context& context) {
    static const char* wanted = getenv("EMULATOR_HARDWARE_QUEUES");
    if (!wanted || *wanted == '0') return nullptr;
    static auto& mutex = *new std::mutex;
    static auto& devices = *new std::unordered_map<int, std::pair<unsigned, std::vector<std::shared_ptr<HardwareQueue>>>>;
    std::lock_guard<std::mutex> guard(mutex);
    if (!context.own_queues.empty()) return context.own_queues[context.next_queue++ % context.own_queues.size()];
    auto& [next, queues] = devices[context.device];
    while (queues.size() < connections()) {
        queues.push_back(std::make_shared<HardwareQueue>());
        queues.back()->number = (int)queues.size() - 1;
    }
    return queues[next++ % queues.size()];
}

static void await_turn(Stream& stream, const Operation& operation) {
    HardwareQueue& queue = *stream.hardware;
    auto start = Clock::now();
    for (bool told = false;; told = true) {
        {
            std::unique_lock<std::mutex> lock(queue.mutex);
            if (queue.changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return queue.started + 1 >= operation.position; })) break;
        }
        if (!told) set_blocked("what stands before it in hardware queue " + std::to_string(queue.number));
        check_progress(start);
    }
    set_blocked("");
}

static void start_next(Stream& stream, const Operation& operation) {
    std::lock_guard<std::mutex> guard(stream.hardware->mutex);
    stream.hardware->started = operation.position;
    stream.hardware->changed.notify_all();
}

static void work(std::shared_ptr<Stream> stream) {
    own_stream = stream.get();
    stack_t alternative{};  // so that a fault is reported even where a kernel's small stack is used up
    alternative.ss_size = 1 << 16;
    alternative.ss_sp = malloc(alternative.ss_size);
    sigaltstack(&alternative, nullptr);
    for (;;) {
        Operation operation;
        {
            std::unique_lock<std::mutex> lock(stream->mutex);
            stream->changed.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
            if (stream->queue.empty()) return;
            operation = std::move(stream->queue.front());
            stream->queue.pop_front();
            stream->running = operation.name;
            stream->since = Clock::now();
        }
        own_operation = operation.name.c_str();
        if (stream->hardware) await_turn(*stream, operation);
        if (stream->hardware && !operation.waits) start_next(*stream, operation);
        delay(*stream);
        trace(*stream, own_operation);
        operation.run();
        operation.run = nullptr;
        if (stream->hardware && operation.waits) start_next(*stream, operation);
        own_operation = "a stream";
        note_progress();
        std::lock_guard<std::mutex> guard(stream->mutex);
        stream->completed++;
        stream->running.clear();
        stream->blocked.clear();
        stream->changed.notify_all();
    }
}

std::shared_ptr<Stream> create_stream(const std::shared_ptr<Context>& context, unsigned flags, int priority) {
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->flags = flags;
    stream->blocking = !(flags & 1);
    stream->priority = priority;
    stream->hardware = hardware_queue(*context);
    stream->handle = streams.add(stream);
    std::thread(work, stream).detach();
    return stream;
}

void close_stream(const std::shared_ptr<Stream>& stream) {
    streams.remove(stream->handle);
    std::lock_guard<std::mutex> guard(stream->mutex);
    stream->closed = true;
    stream->changed.notify_all();
}

// 0 and 1 mean the default stream of the current context, 2 this thread's own (here: one that obeys the same implicit order).
std::shared_ptr<Stream> find_stream(Handle handle, int* result) {
    auto context = current_context(result);
    if (!context) return nullptr;
    if (handle > 2) {
        auto stream = streams.find(handle);
        if (!stream) *result = INVALID_HANDLE;
        if (!stream || capture_state(*stream) < 2) return stream;
        *result = STREAM_CAPTURE_INVALIDATED;
        return nullptr;
    }
    if (handle == 2) {
        static thread_local std::unordered_map<Handle, std::shared_ptr<Stream>> own;
        auto& stream = own[context->handle];
        if (!stream) stream = create_stream(context, 0, 0);
        return stream;
    }
    *result = refuse_captured([&](Stream& stream) { return stream.blocking && stream.context == context; }, STREAM_CAPTURE_IMPLICIT);
    if (*result) return nullptr;
    std::lock_guard<std::mutex> guard(context->order);
    if (!context->default_stream) context->default_stream = create_stream(context, 0, 0);
    return context->default_stream;
}

// As with the real driver, who enqueues on a stream that holds as much as it can is held up until there is room, and with it
// whoever else enqueues on the device.
static void await_room(Stream& stream) {
    auto start = Clock::now();
    std::unique_lock<std::mutex> lock(stream.mutex);
    static const bool never = getenv("EMULATOR_NEVER_FULL") != nullptr;
    if (never && stream.queue.size() >= queue_depth()) fatal("EMULATOR_NEVER_FULL", "the host would be held up: the stream holds " + std::to_string(stream.queue.size()) + " operations");
    while (!stream.changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return stream.queue.size() < queue_depth(); })) {
        lock.unlock();
        check_progress(start);
        lock.lock();
    }
}

uint64_t submit(const std::shared_ptr<Stream>& stream, std::string name, std::function<void()> run, bool waits, bool can_repeat) {
    if (add_node(*stream, name, run, can_repeat)) return 0;
    Context& context = *stream->context;
    std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> before;
    std::unique_lock<std::mutex> order(context.order, std::defer_lock);
    auto wait_first = [&](const std::shared_ptr<Stream>& other) {
        std::lock_guard<std::mutex> guard(other->mutex);
        if (other->submitted > other->completed) before.emplace_back(other, other->submitted);
    };
    if (stream->blocking) {
        order.lock();
        if (stream == context.default_stream) {
            for (auto& other : streams.all())
                if (other->context.get() == &context && other->blocking && other != stream) wait_first(other);
        } else if (context.default_stream) {
            wait_first(context.default_stream);
        }
    }
    if (!before.empty())
        run = [before, inner = std::move(run)] {
            for (auto& entry : before) wait_for(entry.first, entry.second, "the implicit order of the default stream");
            inner();
        };
    waits |= !before.empty();
    static auto* enqueuing = new std::mutex[64];
    std::unique_lock<std::mutex> alone(enqueuing[context.device], std::defer_lock);
    if (!own_stream) {
        alone.lock();
        await_room(*stream);
    }
    std::unique_lock<std::mutex> hardware;
    if (stream->hardware) hardware = std::unique_lock<std::mutex>(stream->hardware->mutex);
    std::lock_guard<std::mutex> guard(stream->mutex);
    stream->queue.push_back({std::move(name), std::move(run), waits, stream->hardware ? ++stream->hardware->submitted : 0});
    stream->changed.notify_all();
    return ++stream->submitted;
}

void set_blocked(const std::string& what) {
    if (!own_stream) return;
    std::lock_guard<std::mutex> guard(own_stream->mutex);
    own_stream->blocked = what;
}

// Every stream's state in one message, then the end: a deadlock names its circle.
[[noreturn]] static void report_deadlock(double seconds) {
    static auto& once = *new std::mutex;
    once.lock();
    std::string text = "nothing moved for " + std::to_string(seconds) + " s. Streams of this process:\n";
    for (auto& stream : streams.all()) {
        std::unique_lock<std::mutex> lock(stream->mutex, std::try_to_lock);
        text += "    device " + std::to_string(stream->context->device) + " stream " + hexadecimal(stream->handle) + ": ";
        if (!lock) { text += "busy\n"; continue; }
        text += stream->running.empty() ? "idle" : stream->running;
        if (!stream->running.empty()) text += " for " + std::to_string(seconds_since(stream->since)) + " s";
        if (!stream->blocked.empty()) text += ", waits for " + stream->blocked;
        text += ", operation " + std::to_string(stream->completed + 1) + " of " + std::to_string(stream->submitted);
        if (!stream->queue.empty()) text += ", next " + stream->queue.front().name;
        text += "\n";
    }
    fatal("EMULATOR_TIMEOUT", text);
}

void check_progress(Clock::time_point since) {
    double limit = timeout_seconds();
    if (limit <= 0 || seconds_since(since) < limit) return;
    Clock::time_point last{Clock::duration(last_progress.load())};
    if (seconds_since(last) < limit) return;
    report_deadlock(seconds_since(since));
}

void wait_for(const std::shared_ptr<Stream>& stream, uint64_t ticket, const char* call) {
    auto start = Clock::now();
    for (bool told = false;; told = true) {
        {
            std::unique_lock<std::mutex> lock(stream->mutex);
            if (stream->changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return stream->completed >= ticket; })) return;
        }
        if (!told) set_blocked(std::string(call) + ": operation " + std::to_string(ticket) + " of stream " + hexadecimal(stream->handle));
        check_progress(start);
    }
}

void block_until(const std::function<bool()>& ready, const std::function<std::string()>& what) {
    for (int spin = 0; spin < 50; ++spin) {
        if (ready()) return;
        sched_yield();
    }
    auto start = Clock::now();
    for (unsigned round = 0; !ready(); ++round) {
        if (round % 1024 == 0) {
            set_blocked(what());
            check_progress(start);
        }
        usleep(30);
    }
    set_blocked("");
}

static void synchronize(const std::function<bool(Stream&)>& wanted, const char* call) {
    for (auto& stream : streams.all()) {
        if (!wanted(*stream)) continue;
        uint64_t ticket;
        { std::lock_guard<std::mutex> guard(stream->mutex); ticket = stream->submitted; }
        wait_for(stream, ticket, call);
    }
}

// The primary context's synchronisation includes its green contexts; a green one's only its own streams.
void synchronize_context(Context* context, const char* call) {
    synchronize([&](Stream& stream) { return stream.context.get() == context || (!context->base && stream.context->root() == context); }, call);
}
void synchronize_device(int device, const char* call) {
    synchronize([&](Stream& stream) { return stream.context->device == device; }, call);
}

template <class Word> static bool satisfied(uintptr_t address, Word value, unsigned comparison) {
    Word now = __atomic_load_n((Word*)address, __ATOMIC_ACQUIRE);
    using Signed = std::make_signed_t<Word>;
    switch (comparison) {
        case 0: return (Signed)(now - value) >= 0;
        case 1: return now == value;
        case 2: return (now & value) != 0;
        default: return (Word)~(now | value) != 0;
    }
}

template <class Word> static int wait_value(const char* call, Handle handle, uintptr_t address, Word value, unsigned flags) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    if (flags & ~(3u | 1u << 30) || address % sizeof(Word)) return INVALID_VALUE;
    Allocation allocation = check_memory(call, "address", address, sizeof(Word));
    if (allocation.kind == Kind::SYMMETRIC && !(flags & 1u << 30))
        fatal(call, "a wait for what another PE puts, without CU_STREAM_WAIT_VALUE_FLUSH, which this device offers: what was put before the word need not be seen");
    submit(stream, call, [=] {
        check_memory(call, "address", address, sizeof(Word));
        static const char* signs[] = {">=", "==", "&", "nor"};
        block_until([=] { return satisfied<Word>(address, value, flags & 3); },
                    [=] { return hexadecimal(address) + " " + signs[flags & 3] + " " + std::to_string(value) + ", where " +
                                 std::to_string(__atomic_load_n((Word*)address, __ATOMIC_ACQUIRE)) + " stands (" + describe_address(address) + ")"; });
    }, true);
    return SUCCESS;
}

template <class Word> static int write_value(const char* call, Handle handle, uintptr_t address, Word value, unsigned flags) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    if (flags > 1 || address % sizeof(Word)) return INVALID_VALUE;
    check_memory(call, "address", address, sizeof(Word));
    submit(stream, call, [=] {
        check_memory(call, "address", address, sizeof(Word));
        __atomic_store_n((Word*)address, value, __ATOMIC_RELEASE);
    });
    return SUCCESS;
}

}  // namespace emulator
using namespace emulator;

#define STREAM(stream, handle)                        \
    int stream##_result;                              \
    auto stream = find_stream(handle, &stream##_result); \
    if (!stream) return stream##_result;

API int cuStreamCreateWithPriority(Handle* out, unsigned flags, int priority) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (!out || flags > 1) return INVALID_VALUE;
    *out = create_stream(context, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority)->handle;
    return SUCCESS;
}
API int cuStreamCreate(Handle* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

API int cuStreamDestroy_v2(Handle handle) {
    if (handle <= 2) return INVALID_HANDLE;
    auto stream = streams.find(handle);
    if (!stream) return INVALID_HANDLE;
    close_stream(stream);
    return SUCCESS;
}

API int cuStreamSynchronize(Handle handle) {
    STREAM(stream, handle);
    if (int forbidden = invalidate(*stream, STREAM_CAPTURE_UNSUPPORTED)) return forbidden;
    uint64_t ticket;
    if (handle <= 2) ticket = submit(stream, "cuStreamSynchronize", [] {});  // waits for the blocking streams too
    else { std::lock_guard<std::mutex> guard(stream->mutex); ticket = stream->submitted; }
    wait_for(stream, ticket, "cuStreamSynchronize");
    return SUCCESS;
}

API int cuStreamQuery(Handle handle) {
    STREAM(stream, handle);
    if (int forbidden = invalidate(*stream, STREAM_CAPTURE_UNSUPPORTED)) return forbidden;
    if (int forbidden = refuse_unsafe()) return forbidden;
    std::lock_guard<std::mutex> guard(stream->mutex);
    return stream->completed == stream->submitted ? SUCCESS : NOT_READY;
}

API int cuStreamWaitValue32_v2(Handle stream, uintptr_t address, uint32_t value, unsigned flags) { return wait_value<uint32_t>("cuStreamWaitValue32", stream, address, value, flags); }
API int cuStreamWaitValue64_v2(Handle stream, uintptr_t address, uint64_t value, unsigned flags) { return wait_value<uint64_t>("cuStreamWaitValue64", stream, address, value, flags); }
API int cuStreamWriteValue32_v2(Handle stream, uintptr_t address, uint32_t value, unsigned flags) { return write_value<uint32_t>("cuStreamWriteValue32", stream, address, value, flags); }
API int cuStreamWriteValue64_v2(Handle stream, uintptr_t address, uint64_t value, unsigned flags) { return write_value<uint64_t>("cuStreamWriteValue64", stream, address, value, flags); }

API int cuStreamGetCtx(Handle handle, Handle* context) {
    STREAM(stream, handle);
    *context = stream->context->handle;
    return SUCCESS;
}
API int cuStreamGetCtx_v2(Handle handle, Handle* context, Handle* green) {
    STREAM(stream, handle);
    *context = stream->context->handle;
    if (green) *green = stream->context->green;
    return SUCCESS;
}
API int cuStreamGetGreenCtx(Handle handle, Handle* green) {
    STREAM(stream, handle);
    *green = stream->context->green;
    return SUCCESS;
}
API int cuStreamGetPriority(Handle handle, int* priority) {
    STREAM(stream, handle);
    *priority = stream->priority;
    return SUCCESS;
}
API int cuStreamGetFlags(Handle handle, unsigned* flags) {
    STREAM(stream, handle);
    *flags = stream->flags;
    return SUCCESS;
}
API int cuStreamGetId(Handle handle, unsigned long long* id) {
    STREAM(stream, handle);
    *id = stream->handle;
    return SUCCESS;
}
API int cuStreamGetDevice(Handle handle, int* device) {
    STREAM(stream, handle);
    *device = stream->context->device;
    return SUCCESS;
}
API int cuLaunchHostFunc(Handle handle, void (*function)(void*), void* argument) {
    STREAM(stream, handle);
    if (!function) return INVALID_VALUE;
    submit(stream, "cuLaunchHostFunc", [=] {
        inside_host_function = true;
        function(argument);
        inside_host_function = false;
    });
    return SUCCESS;
}

API int emulator_enqueue(Handle handle, void (*run)(void*), void* argument, const char* what) {
    STREAM(stream, handle);
    submit(stream, what, [=] { run(argument); }, strstr(what, "wait_until") != nullptr);
    return SUCCESS;
}

// As emulator_enqueue; in a graph it runs once per launch. `drop` frees the argument behind the last.
API int emulator_enqueue_again(Handle handle, void (*run)(void*), void* argument, void (*drop)(void*), const char* what) {
    std::shared_ptr<void> kept(argument, drop);
    STREAM(stream, handle);
    static const bool fails = getenv("EMULATOR_CAPTURE_FAILS") != nullptr;
    if (fails && capture_state(*stream)) return invalidate(*stream, STREAM_CAPTURE_UNSUPPORTED);
    submit(stream, what, [=] { run(kept.get()); }, false, true);
    return SUCCESS;
}

API void emulator_block(int (*ready)(void*), void* argument, const char* what) {
    block_until([=] { return ready(argument) != 0; }, [=] { return std::string(what); });
}

API int emulator_stream_device(Handle handle) {
    int result;
    auto stream = find_stream(handle, &result);
    return stream ? stream->context->device : -1;
}
