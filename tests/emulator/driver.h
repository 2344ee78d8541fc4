// What the files of the stand-in for the CUDA driver (libcuda.so.1) share: result codes, handles, contexts, streams and the
// table of allocations. The API itself is declared in driver_*.cpp, from the published signatures; no NVIDIA header is used.
//
// All state is leaked on purpose: stream threads may outlive main, as a real driver's work does, and must never meet a
// destroyed mutex.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace emulator {

enum Result : int {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, MAPPING_FAILED = 205, NO_BINARY_FOR_GPU = 209, UNSUPPORTED_LIMIT = 215, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500,
    PEER_ACCESS_UNSUPPORTED = 217, NOT_READY = 600, PEER_ACCESS_ALREADY_ENABLED = 704, PEER_ACCESS_NOT_ENABLED = 705, PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709, HOST_MEMORY_ALREADY_REGISTERED = 712, HOST_MEMORY_NOT_REGISTERED = 713, LAUNCH_FAILED = 719, NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801, STREAM_CAPTURE_UNSUPPORTED = 900, STREAM_CAPTURE_INVALIDATED = 901, STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906, STREAM_CAPTURE_WRONG_THREAD = 908, INVALID_RESOURCE_TYPE = 914, INVALID_RESOURCE_CONFIGURATION = 915,
};

using Handle = uintptr_t;
using Clock = std::chrono::steady_clock;

void refuse_after_exit();

// Handles are increasing numbers, never addresses: a handle that was destroyed is never given out again, so its use is found.
template <class T> class Registry {
public:
    explicit Registry(Handle first) : next_(first) {}
    Handle add(const std::shared_ptr<T>& item) {
        std::lock_guard<std::mutex> guard(mutex_);
        Handle handle = next_ += 16;
        items_[handle] = item;
        return handle;
    }
    std::shared_ptr<T> find(Handle handle) {
        refuse_after_exit();
        std::lock_guard<std::mutex> guard(mutex_);
        auto found = items_.find(handle);
        return found == items_.end() ? nullptr : found->second;
    }
    std::shared_ptr<T> remove(Handle handle) {
        refuse_after_exit();
        std::lock_guard<std::mutex> guard(mutex_);
        auto found = items_.find(handle);
        if (found == items_.end()) return nullptr;
        auto item = found->second;
        items_.erase(found);
        return item;
    }
    std::vector<std::shared_ptr<T>> all() {
        std::lock_guard<std::mutex> guard(mutex_);
        std::vector<std::shared_ptr<T>> items;
        for (auto& entry : items_) items.push_back(entry.second);
        return items;
    }

private:
    std::mutex mutex_;
    std::unordered_map<Handle, std::shared_ptr<T>> items_;
    Handle next_;
};

struct Stream;
struct Capture;

// One of the hardware's queues of a device. What streams enqueue goes into one of a few of them and starts in the order in which
// it was enqueued there: a wait that is not over holds up what other streams put behind it.
struct HardwareQueue {
    int number = 0;
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t submitted = 0, started = 0;
};

// A context: a device's primary one, one of cuCtxCreate, or the view of the primary that a green context gives (`base` set).
struct Context {
    int device = 0;
    bool primary = false;
    std::atomic<int> references{0};
    std::atomic<bool> active{true};
    std::atomic<unsigned> flags{0};
    std::shared_ptr<Context> base;
    Handle handle = 0, green = 0;
    unsigned first_multiprocessor = 0, multiprocessors = 0;
    // Guards the implicit ordering between the default stream and the blocking streams.
    std::mutex order;
    std::shared_ptr<Stream> default_stream;
    std::mutex peers_mutex;
    std::vector<int> peers;
    // Of a green context that asked for queues that it shares with no other; else those of the device are used.
    std::vector<std::shared_ptr<HardwareQueue>> own_queues;
    unsigned next_queue = 0;
    Context* root() { return base ? base.get() : this; }
};

struct Operation {
    std::string name;
    std::function<void()> run;
    bool waits = false;     // for an event or a word: what stands behind it in the hardware's queue does not start before it is over
    uint64_t position = 0;  // in the hardware's queue
};

// A stream is a thread with an in-order queue. `submitted` and `completed` count operations: waiting for the stream is waiting
// until `completed` reaches the `submitted` of the moment.
struct Stream {
    Handle handle = 0;
    std::shared_ptr<Context> context;
    std::shared_ptr<HardwareQueue> hardware;
    bool blocking = true;
    int priority = 0;
    unsigned flags = 0;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Operation> queue;
    uint64_t submitted = 0, completed = 0;
    bool closed = false;
    std::shared_ptr<Capture> capture;  // while what is enqueued becomes a graph
    // For the report of a deadlock: what runs, and what it is blocked on.
    std::string running, blocked;
    Clock::time_point since;
    uint64_t random = 0;
};

// settings (driver_device.cpp): each read once from the environment
int device_count();
int physical_device(int device);
bool has_peer_access();  // whether devices reach each other's memory
unsigned multiprocessor_count();
size_t memory_total_bytes();
double timeout_seconds();
bool pinned_only();
unsigned connections();
int driver_version();
size_t queue_depth();

// Ends the process with a message that names the call. The message goes straight to the terminal: a test harness captures it.
[[noreturn]] void fatal(const char* call, const std::string& message);
std::string hexadecimal(uint64_t value);
// Ends the process where its exit has begun: the real libraries take themselves down then, and a call meets what is no more.
void refuse_after_exit();
bool is_stream_thread();

// contexts (driver_context.cpp)
extern Registry<Context>& contexts;
// The current context of this thread; `result` says why there is none.
std::shared_ptr<Context> current_context(int* result);
bool is_initialized();
std::shared_ptr<Context> primary_context(int device);

// streams (driver_stream.cpp)
extern Registry<Stream>& streams;
std::shared_ptr<Stream> find_stream(Handle handle, int* result);
std::shared_ptr<Stream> create_stream(const std::shared_ptr<Context>& context, unsigned flags, int priority);
// The thread finishes what is queued, then ends; the handle is gone at once.
void close_stream(const std::shared_ptr<Stream>& stream);
// Into a graph, if the stream is being captured, which only operations may enter that can run several times.
uint64_t submit(const std::shared_ptr<Stream>& stream, std::string name, std::function<void()> run, bool waits = false, bool can_repeat = false);
void wait_for(const std::shared_ptr<Stream>& stream, uint64_t ticket, const char* call);
void synchronize_context(Context* context, const char* call);
void synchronize_device(int device, const char* call);
// Blocks the calling thread until `ready` (polled); the text is for the report of a deadlock.
void block_until(const std::function<bool()>& ready, const std::function<std::string()>& what);
// For waits on a condition variable: called now and then, ends the process when nothing has moved for $EMULATOR_TIMEOUT.
void check_progress(Clock::time_point since);
void set_blocked(const std::string& what);
const char* running_operation();
void begin_node(const std::string& name);
extern thread_local bool inside_host_function;

// captures (driver_graph.cpp)
bool add_node(Stream& stream, const std::string& name, const std::function<void()>& run, bool can_repeat);
int capture_state(Stream& stream);  // 0 none, 1 active, 2 invalid
// Ends what a stream captures with an error: `result`, or success if it captures nothing.
int invalidate(Stream& stream, int result);
// Whether a call that is not ordered with streams is forbidden, since something is captured; and what it does to captures.
int refuse_unsafe();
// The same of a call that conflicts with the captures of some streams.
int refuse_captured(const std::function<bool(Stream&)>& concerned, int code);

// events (driver_event.cpp)
int record_event(Handle event, const std::shared_ptr<Stream>& stream, const char* call);
int wait_event(Handle event, const std::shared_ptr<Stream>& stream, const char* call);

// memory (driver_memory.cpp)
enum class Kind { DEVICE, DEVICE_ASYNC, HOST, REGISTERED, IPC, SYMMETRIC };
struct Allocation {
    uintptr_t address = 0;
    size_t bytes = 0;
    int device = 0;
    Kind kind = Kind::DEVICE;
    bool freed = false;
    Handle context = 0;
    // DEVICE: where it lies in the device's memory file; IPC: the whole mapping
    uintptr_t mapping = 0;
    size_t mapping_bytes = 0, file_offset = 0;
    std::string origin;
    int references = 1;
};
bool find_allocation(uintptr_t address, Allocation* found);
// Ends the process if [address, address + bytes) does not lie inside one living allocation that a device can reach.
Allocation check_memory(const char* call, const char* role, uintptr_t address, size_t bytes);
std::string describe_address(uintptr_t address);
void add_allocation(const Allocation& allocation);
bool remove_allocation(uintptr_t address, Kind kind, Allocation* removed);
int device_memory_file(int device);
int allocate_device(const char* call, int device, Handle context, size_t bytes, Kind kind, uintptr_t* address);
// Returns the memory to the system and leaves its addresses inaccessible: a later use of them faults, and is reported.
void release_device(const char* call, const Allocation& allocation);

}  // namespace emulator

// Exported for the other stand-ins, which find them with dlsym in libcuda.so.1.
API int emulator_enqueue(emulator::Handle stream, void (*run)(void*), void* argument, const char* what);
API int emulator_enqueue_again(emulator::Handle stream, void (*run)(void*), void* argument, void (*drop)(void*), const char* what);
API void emulator_block(int (*ready)(void*), void* argument, const char* what);
API void emulator_register_memory(void* address, size_t bytes, int device, const char* origin);
API void emulator_unregister_memory(void* address);
API void emulator_check_memory(const char* call, const char* role, const void* address, size_t bytes);
API int emulator_current_device(void);
API int emulator_stream_device(emulator::Handle stream);
API int emulator_physical_device(int device);
API void emulator_refuse_after_exit(void);
