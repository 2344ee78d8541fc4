// A stand-in for NVSHMEM's host library (libnvshmem_host.so.3, version 3.4.5): processes that share a symmetric heap in memory.
//
// As with the real library the bootstrap works without a driver (status 1). Two PEs on one device give the limited mode without
// MPS (status 3): there the calls that the real library ends the process for do so here too, and barriers block the caller.
#include "rendezvous.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

using namespace rendezvous;

namespace {

constexpr int MOST = 64;
constexpr char MARK[] = "emushmem", HEAP[] = "emusheap";
enum Status { NOT_STARTED = 0, BOOTSTRAPPED = 1, INITIALIZED = 2, LIMITED = 3 };

struct Member {
    std::atomic<int> joined, placed, device;
    Name heap;
    // Barriers: how often this PE has arrived; of the host's and of the streams' separately.
    std::atomic<uint64_t> host_arrivals, stream_arrivals;
    std::atomic<uint64_t> size;  // what the collective allocation under way asked for
};
struct Control {
    std::atomic<int> members;
    Member member[MOST];
};

struct UniqueId {  // nvshmemx_uniqueid_t
    int version;
    Name name;
    char rest[124 - 4 - sizeof(Name)];
};
static_assert(sizeof(UniqueId) == 128, "nvshmemx_uniqueid_t");

struct InitAttributes {  // nvshmemx_init_attr_t, version 1
    int version;
    void* communicator;
    struct {
        int version;
        struct { int version; const UniqueId* id; int rank, ranks; } unique;
        char content[96];
    } arguments;
};
static_assert(sizeof(InitAttributes) == 144, "nvshmemx_init_attr_t");

Control* control = nullptr;
int status = NOT_STARTED, rank = -1, ranks = 0, device = -1;
char* heaps[MOST];
size_t heap_bytes = 0;
auto& heap_mutex = *new std::mutex;
auto& pieces = *new std::map<size_t, size_t>;  // offset -> bytes of what is allocated; the same in all PEs
auto& registered = *new std::map<uintptr_t, size_t>;  // address -> bytes of nvshmemx_buffer_register

size_t symmetric_size() {
    const char* text = getenv("NVSHMEM_SYMMETRIC_SIZE");
    if (!text || !*text) return 1ull << 30;
    char* end = nullptr;
    double value = strtod(text, &end);
    switch (*end | 32) {
        case 'k': value *= 1ull << 10; break;
        case 'm': value *= 1ull << 20; break;
        case 'g': value *= 1ull << 30; break;
    }
    return ((size_t)value + 4095) / 4096 * 4096;
}

void arrive(std::atomic<uint64_t> Member::*arrivals, const char* call) {
    uint64_t mine = ++(control->member[rank].*arrivals);
    wait_until([=] {
        for (int other = 0; other < ranks; ++other)
            if ((control->member[other].*arrivals) < mine) return false;
        return true;
    }, std::string(call) + ": the other PEs");
}

// The second half of initialisation: needs a device, and all PEs. Called at the start or, as in the real library, by the first
// call that needs it.
void place(const char* call) {
    driver().refuse_after_exit();
    if (status >= INITIALIZED) return;
    if (status == NOT_STARTED) fatal(call, "expected an initialised library; call nvshmemx_hostlib_init_attr first");
    device = driver().device();
    if (device < 0) fatal(call, "expected a device (a current context of the stand-in driver), found none");
    Member& own = control->member[rank];
    heap_bytes = symmetric_size();
    heaps[rank] = (char*)create(HEAP, heap_bytes, &own.heap);
    if (!heaps[rank]) fatal(call, "the symmetric heap of " + std::to_string(heap_bytes) + " bytes could not be made");
    own.device = driver().physical_device(device);
    own.placed = 1;
    bool shared = false;
    for (int other = 0; other < ranks; ++other) {
        Member& member = control->member[other];
        wait_until([&] { return member.placed.load() != 0; }, std::string(call) + ": PE " + std::to_string(other) + " to place its heap");
        if (other == rank) continue;
        if (member.heap.bytes != heap_bytes) fatal(call, "NVSHMEM_SYMMETRIC_SIZE differs between PEs");
        heaps[other] = (char*)open_name(HEAP, member.heap);
        if (!heaps[other]) fatal(call, "the heap of PE " + std::to_string(other) + " could not be opened");
        shared |= member.device == own.device;
    }
    for (int one = 0; one < ranks; ++one)  // all PEs agree on the mode
        for (int other = 0; other < one; ++other) shared |= control->member[one].device == control->member[other].device;
    status = shared ? LIMITED : INITIALIZED;
}

void refuse_when_limited(const char* call) {
    if (status != LIMITED) return;
    fprintf(stderr, "emulator: %s: several PEs on one device without MPS: not supported\n", call);
    exit(-1);
}

// Where `address` of the own heap lies in another PE's; the range must lie in one allocation.
char* remote(const char* call, const void* address, size_t bytes, int pe) {
    place(call);
    if (pe < 0 || pe >= ranks) fatal(call, "expected a PE below " + std::to_string(ranks) + ", found " + std::to_string(pe));
    std::lock_guard<std::mutex> guard(heap_mutex);
    size_t offset = (size_t)((const char*)address - heaps[rank]);
    auto after = pieces.upper_bound(offset);
    if ((const char*)address < heaps[rank] || offset >= heap_bytes || after == pieces.begin()) fatal(call, "expected symmetric memory, found an address outside");
    auto piece = std::prev(after);
    if (offset + bytes > piece->first + piece->second)
        fatal(call, "the range ends " + std::to_string(offset + bytes - piece->first - piece->second) + " bytes past the end of symmetric memory of " + std::to_string(piece->second) + " bytes");
    return heaps[pe] + offset;
}

// Puts that need not be complete until a quiet are done by a thread of their own: the stream goes on at once, so that a source
// overwritten too early shows.
struct Proxy {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    std::atomic<uint64_t> taken{0}, done{0};
    Proxy() {
        std::thread([this] {
            for (;;) {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [this] { return !queue.empty(); });
                auto run = std::move(queue.front());
                queue.pop_front();
                lock.unlock();
                if (getenv("EMULATOR_JITTER")) usleep((unsigned)(done * 7919 % 1500));
                run();
                ++done;
            }
        }).detach();
    }
    void add(std::function<void()> run) {
        std::lock_guard<std::mutex> guard(mutex);
        queue.push_back(std::move(run));
        ++taken;
        changed.notify_one();
    }
    void quiet(const char* call) {
        uint64_t until = taken;
        wait_until([this, until] { return done >= until; }, std::string(call) + ": puts under way");
    }
};
Proxy& proxy() {
    static auto& only = *new Proxy;
    return only;
}

void apply_signal(uint64_t* signal, uint64_t value, int operation) {
    if (operation == 10) __atomic_fetch_add(signal, value, __ATOMIC_RELEASE);
    else __atomic_store_n(signal, value, __ATOMIC_RELEASE);
}

void check_enqueued(const char* call, int result) {
    if (result) fatal(call, "the stream does not exist");
}

// What a PE reaches over a network must lie in the symmetric heap or be registered; only between GPUs that reach each other directly
// does the real library let other memory pass.
void check_local(const char* call, const char* role, const void* address, size_t bytes) {
    driver().check_memory(call, role, address, bytes);
    std::lock_guard<std::mutex> guard(heap_mutex);
    auto begin = (uintptr_t)address;
    if (begin >= (uintptr_t)heaps[rank] && begin + bytes <= (uintptr_t)heaps[rank] + heap_bytes) return;
    auto after = registered.upper_bound(begin);
    if (after != registered.begin() && begin + bytes <= std::prev(after)->first + std::prev(after)->second) return;
    fatal(call, std::string(role) + ": expected memory of the symmetric heap or of nvshmemx_buffer_register, found other memory: no network reaches it");
}

void put(const char* call, void* destination, const void* source, size_t bytes, uint64_t* signal, uint64_t value, int operation, int pe, uintptr_t stream, bool later) {
    if (signal && operation != 9 && operation != 10) fatal(call, "expected the signal operation 9 (set) or 10 (add), found " + std::to_string(operation));
    char* there = bytes ? remote(call, destination, bytes, pe) : nullptr;
    auto* flag = signal ? (uint64_t*)remote(call, signal, 8, pe) : nullptr;
    if (bytes) check_local(call, "source", source, bytes);
    auto move = [=] {
        if (bytes) memmove(there, source, bytes);
        if (flag) apply_signal(flag, value, operation);
    };
    check_enqueued(call, enqueue(stream, call, [=] {
        if (later) proxy().add(move);
        else move();
    }));
    // the signal may be a copy from the host's stack, which the call waits for
    if (getenv("EMULATOR_PUT_HOLDS") && signal) driver().synchronize(stream);
}

void get(const char* call, void* destination, const void* source, size_t bytes, int pe, uintptr_t stream) {
    if (!bytes) return;
    char* there = remote(call, source, bytes, pe);
    check_local(call, "destination", destination, bytes);
    check_enqueued(call, enqueue(stream, call, [=] { memmove(destination, there, bytes); }));
}

bool compare(uint64_t now, int comparison, uint64_t value) {
    switch (comparison) {
        case 0: return now == value;
        case 1: return now != value;
        case 2: return now > value;
        case 3: return now <= value;
        case 4: return now < value;
        default: return now >= value;
    }
}

// All PEs must ask for the same, in the same order: checked, since the real library would go on with diverging heaps.
void agree(const char* call, uint64_t size) {
    control->member[rank].size = size;
    arrive(&Member::host_arrivals, call);
    for (int other = 0; other < ranks; ++other)
        if (control->member[other].size != size)
            fatal(call, "PE " + std::to_string(rank) + " asks for " + std::to_string(size) + ", PE " + std::to_string(other) + " for " + std::to_string(control->member[other].size));
    arrive(&Member::host_arrivals, call);
}

void* allocate(const char* call, size_t alignment, size_t bytes, int fill) {
    place(call);
    if (bytes == 0) return nullptr;
    agree(call, bytes);
    size_t offset = 0;
    {
        std::lock_guard<std::mutex> guard(heap_mutex);
        alignment = alignment < 512 ? 512 : alignment;
        for (auto& piece : pieces) {  // the first gap that is wide enough
            if (offset + bytes <= piece.first) break;
            offset = (piece.first + piece.second + alignment - 1) / alignment * alignment;
        }
        if (offset + bytes > heap_bytes) return nullptr;
        pieces[offset] = bytes;
    }
    memset(heaps[rank] + offset, fill, bytes);
    for (int pe = 0; pe < ranks; ++pe) {
        std::string origin = "the heap of PE " + std::to_string(pe);
        driver().register_memory(heaps[pe] + offset, bytes, device, origin.c_str());
    }
    arrive(&Member::host_arrivals, call);
    return heaps[rank] + offset;
}

void barrier_on_stream(const char* call, uintptr_t stream, bool with_quiet) {
    place(call);
    if (status == LIMITED) {  // the real library spins on the host here
        driver().synchronize(stream);
        if (with_quiet) proxy().quiet(call);
        return arrive(&Member::host_arrivals, call);
    }
    check_enqueued(call, enqueue(stream, call, [=] {
        if (with_quiet) proxy().quiet(call);
        arrive(&Member::stream_arrivals, call);
    }));
}

[[noreturn]] void absent(const char* call) { fatal(call, "not emulated"); }

}  // namespace

API void nvshmemx_vendor_get_version_info(int* major, int* minor, int* patch) { *major = 3, *minor = 4, *patch = 5; }
API int nvshmemx_init_status() { return status; }

API int nvshmemx_get_uniqueid(UniqueId* id) {
    memset(id, 0, sizeof *id);
    id->version = (1 << 16) + 128;
    return create(MARK, sizeof(Control), &id->name) ? 0 : 7;
}

API int nvshmemx_set_attr_uniqueid_args(int own, int all, const UniqueId* id, InitAttributes* attributes) {
    attributes->version = (1 << 16) + 144;
    attributes->arguments.version = (1 << 16) + 128;
    attributes->arguments.unique = {(1 << 16) + 24, id, own, all};
    return 0;
}
API int nvshmemx_set_attr_mpi_comm_args(void* communicator, InitAttributes* attributes) {
    attributes->communicator = communicator;
    return 0;
}

API int nvshmemx_hostlib_init_attr(unsigned flags, InitAttributes* attributes) {
    const char* call = "nvshmemx_hostlib_init_attr";
    if (status != NOT_STARTED) return 0;
    if (flags != 8) fatal(call, "only the bootstrap by unique id (flag 8) is emulated, found flags " + std::to_string(flags));
    auto& unique = attributes->arguments.unique;
    if (attributes->version != (1 << 16) + 144 || attributes->arguments.version != (1 << 16) + 128 || unique.version != (1 << 16) + 24) return 7;
    if (!unique.id || unique.ranks < 1 || unique.ranks > MOST || unique.rank < 0 || unique.rank >= unique.ranks) return 7;
    control = (Control*)open_name(MARK, unique.id->name);
    if (!control) return 7;
    rank = unique.rank, ranks = unique.ranks;
    if (control->member[rank].joined.exchange(1)) fatal(call, "PE " + std::to_string(rank) + " joined twice");
    ++control->members;
    wait_until([] { return control->members.load() >= ranks; }, std::string(call) + ": the other PEs");
    status = BOOTSTRAPPED;
    if (driver().device() >= 0) place(call);
    return 0;
}

API void nvshmemx_hostlib_finalize() {
    const char* call = "nvshmemx_hostlib_finalize";
    if (status < INITIALIZED) fatal(call, "the library is only bootstrapped: the real one ends the process here");
    proxy().quiet(call);
    arrive(&Member::host_arrivals, call);
    status = NOT_STARTED;
}
API void nvshmem_global_exit(int code) { exit(code); }

API int nvshmem_my_pe() { return rank; }
API int nvshmem_n_pes() { return ranks; }
API void* nvshmem_malloc(size_t bytes) { return allocate("nvshmem_malloc", 512, bytes, 0xff); }
API void* nvshmem_calloc(size_t count, size_t bytes) { return allocate("nvshmem_calloc", 512, count * bytes, 0); }
API void* nvshmem_align(size_t alignment, size_t bytes) { return allocate("nvshmem_align", alignment, bytes, 0xff); }

API void nvshmem_free(void* memory) {
    if (!memory) return;
    place("nvshmem_free");
    size_t offset = (size_t)((char*)memory - heaps[rank]);
    agree("nvshmem_free", offset);
    std::lock_guard<std::mutex> guard(heap_mutex);
    if (!pieces.erase(offset)) fatal("nvshmem_free", "expected what nvshmem_malloc gave, found another address (freed twice?)");
    for (int pe = 0; pe < ranks; ++pe) driver().unregister_memory(heaps[pe] + offset);
}

API void* nvshmem_ptr(const void* memory, int pe) {
    if (status < INITIALIZED || pe < 0 || pe >= ranks) return nullptr;
    size_t offset = (size_t)((const char*)memory - heaps[rank]);
    return (const char*)memory < heaps[rank] || offset >= heap_bytes ? nullptr : heaps[pe] + offset;
}
API void* nvshmemx_mc_ptr(int, const void*) { return nullptr; }
API int nvshmemx_buffer_register(void* address, size_t bytes) {
    place("nvshmemx_buffer_register");
    driver().check_memory("nvshmemx_buffer_register", "buffer", address, bytes);
    std::lock_guard<std::mutex> guard(heap_mutex);
    registered[(uintptr_t)address] = bytes;
    return 0;
}
API int nvshmemx_buffer_unregister(void* address) {
    std::lock_guard<std::mutex> guard(heap_mutex);
    return registered.erase((uintptr_t)address) ? 0 : 7;
}

API void nvshmemx_putmem_on_stream(void* to, const void* from, size_t bytes, int pe, uintptr_t stream) { put("nvshmemx_putmem_on_stream", to, from, bytes, nullptr, 0, 0, pe, stream, false); }
API void nvshmemx_putmem_nbi_on_stream(void* to, const void* from, size_t bytes, int pe, uintptr_t stream) { put("nvshmemx_putmem_nbi_on_stream", to, from, bytes, nullptr, 0, 0, pe, stream, true); }
API void nvshmemx_getmem_on_stream(void* to, const void* from, size_t bytes, int pe, uintptr_t stream) { get("nvshmemx_getmem_on_stream", to, from, bytes, pe, stream); }
API void nvshmemx_getmem_nbi_on_stream(void* to, const void* from, size_t bytes, int pe, uintptr_t stream) { get("nvshmemx_getmem_nbi_on_stream", to, from, bytes, pe, stream); }
API void nvshmemx_putmem_signal_on_stream(void* to, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int operation, int pe, uintptr_t stream) {
    put("nvshmemx_putmem_signal_on_stream", to, from, bytes, signal, value, operation, pe, stream, false);
}
API void nvshmemx_putmem_signal_nbi_on_stream(void* to, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int operation, int pe, uintptr_t stream) {
    put("nvshmemx_putmem_signal_nbi_on_stream", to, from, bytes, signal, value, operation, pe, stream, true);
}
API void nvshmemx_signal_op_on_stream(uint64_t* signal, uint64_t value, int operation, int pe, uintptr_t stream) {
    put("nvshmemx_signal_op_on_stream", nullptr, nullptr, 0, signal, value, operation, pe, stream, false);
}

API void nvshmemx_signal_wait_until_on_stream(uint64_t* signal, int comparison, uint64_t value, uintptr_t stream) {
    const char* call = "nvshmemx_signal_wait_until_on_stream";
    refuse_when_limited(call);
    auto* own = (uint64_t*)remote(call, signal, 8, rank);
    check_enqueued(call, enqueue(stream, call, [=] {
        wait_until([=] { return compare(__atomic_load_n(own, __ATOMIC_ACQUIRE), comparison, value); }, std::string(call) + ": value " + std::to_string(value));
    }));
}

API void nvshmemx_quiet_on_stream(uintptr_t stream) {
    place("nvshmemx_quiet_on_stream");
    check_enqueued("nvshmemx_quiet_on_stream", enqueue(stream, "nvshmemx_quiet_on_stream", [] { proxy().quiet("nvshmemx_quiet_on_stream"); }));
}
API void nvshmem_quiet() { proxy().quiet("nvshmem_quiet"); }

API void nvshmem_barrier_all() {
    place("nvshmem_barrier_all");
    proxy().quiet("nvshmem_barrier_all");
    arrive(&Member::host_arrivals, "nvshmem_barrier_all");
}
API void nvshmem_sync_all() {
    place("nvshmem_sync_all");
    arrive(&Member::host_arrivals, "nvshmem_sync_all");
}
API void nvshmemx_barrier_all_on_stream(uintptr_t stream) { barrier_on_stream("nvshmemx_barrier_all_on_stream", stream, true); }
API void nvshmemx_sync_all_on_stream(uintptr_t stream) { barrier_on_stream("nvshmemx_sync_all_on_stream", stream, false); }
API int nvshmemx_barrier_on_stream(int team, uintptr_t stream) {
    refuse_when_limited("nvshmemx_barrier_on_stream");
    if (team != 0) return -1;
    barrier_on_stream("nvshmemx_barrier_on_stream", stream, true);
    return 0;
}

// Teams: the world only.
API int nvshmem_team_my_pe(int team) { return team == 0 ? rank : -1; }
API int nvshmem_team_n_pes(int team) { return team == 0 ? ranks : -1; }
API int nvshmem_team_translate_pe(int team, int pe, int other) { return team == 0 && other == 0 && pe >= 0 && pe < ranks ? pe : -1; }
API int nvshmem_team_split_strided(int, int, int, int, const void*, long, int*) { absent("nvshmem_team_split_strided"); }
API void nvshmem_team_destroy(int) { absent("nvshmem_team_destroy"); }
API int nvshmemx_float_sum_reduce_on_stream(int, float*, const float*, size_t, uintptr_t) { absent("nvshmemx_float_sum_reduce_on_stream"); }
API int nvshmemx_cumodule_init(void*) { absent("nvshmemx_cumodule_init"); }
API int nvshmemx_cumodule_finalize(void*) { absent("nvshmemx_cumodule_finalize"); }
API int nvshmemx_culibrary_init(void*) { absent("nvshmemx_culibrary_init"); }
API int nvshmemx_culibrary_finalize(void*) { absent("nvshmemx_culibrary_finalize"); }
