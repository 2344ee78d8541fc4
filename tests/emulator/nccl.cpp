// A stand-in for NCCL (libnccl.so.2, version 2.28.9): communicators, send and receive with strict rendezvous, groups.
//
// A send holds its stream until the matching receive runs and has taken all bytes. (The real library may let a small message go
// earlier; a program must not rely on it.) The units of a communicator, single calls or groups, run in the order of issue
// whatever their streams, as in NCCL. Two ranks on one device are refused with ncclInvalidUsage (5).
//
// Connections are made lazily, as by the real library: the first send to a rank, and the first receive from one, hold the calling
// host up until that rank's host has come to the other side of it.
#include "rendezvous.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

using namespace rendezvous;

namespace {

enum Result : int { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
constexpr int MOST = 16;
constexpr size_t RING = 1 << 18;
constexpr char MARK[] = "emulnccl";

// What goes from one rank to another. The n-th send meets the n-th receive; both post themselves, then bytes flow through the
// ring. `written` and `read` count all bytes ever moved.
struct Channel {
    std::atomic<uint64_t> sends, receives, send_bytes, receive_bytes, written, read;
    std::atomic<int> connects[2];  // the receiver, the sender
    char ring[RING];
};
struct Control {
    std::atomic<int> members, left;
    struct { std::atomic<int> joined, process, device; } member[MOST];
    Channel channel[MOST][MOST];  // [from][to]; sparse
};

struct UniqueId {
    Name name;
    char rest[128 - sizeof(Name)];
};
static_assert(sizeof(UniqueId) == 128, "ncclUniqueId");

struct Communicator {
    Control* control = nullptr;
    int rank = 0, ranks = 0, device = 0;
    std::atomic<bool> aborted{false}, destroyed{false};
    std::mutex mutex;
    uint64_t issued = 0;
    std::atomic<uint64_t> finished{0};
    bool connected[2][MOST] = {};
    uint64_t numbers[2][MOST] = {};  // of the last send to and receive from each rank, at issue
};

struct Transfer {
    bool send;
    char* data;
    size_t bytes;
    int peer;
    uintptr_t stream;
    uint64_t number = 0;
    size_t moved = 0;
    uint64_t start = 0;
    bool posted = false, matched = false, done = false;
    char token = 0;  // an empty message moves this one byte, so that both sides have met before either goes on
    size_t total() const { return bytes ? bytes : 1; }
    char* from(size_t offset) { return bytes ? data + offset : &token; }
};

thread_local std::string last_error = "";
auto& communicators_mutex = *new std::mutex;
auto& communicators = *new std::vector<Communicator*>;

int refuse(int code, const std::string& text) {
    last_error = text;
    if (const char* level = getenv("NCCL_DEBUG"); level && *level) fprintf(stderr, "emulator: NCCL: %s\n", text.c_str());
    return code;
}

Communicator* find(Communicator* handle) {
    std::lock_guard<std::mutex> guard(communicators_mutex);
    return std::count(communicators.begin(), communicators.end(), handle) && !handle->destroyed ? handle : nullptr;
}

// Moves what can be moved now; true when the transfer is over. Transfers of one channel pass one after the other.
bool advance(Communicator& c, Transfer& t, bool first_of_channel) {
    if (t.done) return true;
    if (!first_of_channel) return false;
    Channel& channel = t.send ? c.control->channel[c.rank][t.peer] : c.control->channel[t.peer][c.rank];
    if (!t.posted) {
        (t.send ? channel.send_bytes : channel.receive_bytes) = t.bytes;
        t.start = t.send ? channel.written.load() : channel.read.load();
        (t.send ? channel.sends : channel.receives) = t.number;
        t.posted = true;
    }
    if (!t.matched) {
        if ((t.send ? channel.receives : channel.sends) < t.number) return false;
        size_t other = t.send ? channel.receive_bytes : channel.send_bytes;
        if (other != t.bytes)
            fatal(t.send ? "ncclSend" : "ncclRecv", "message " + std::to_string(t.number) + (t.send ? " to" : " from") + " rank " + std::to_string(t.peer) +
                  " has " + std::to_string(t.bytes) + " bytes here and " + std::to_string(other) + " there");
        t.matched = true;
    }
    while (t.moved < t.total()) {
        uint64_t written = channel.written, read = channel.read;
        size_t available = t.send ? RING - (size_t)(written - read) : (size_t)(written - read);
        uint64_t at = t.send ? written : read;
        size_t part = std::min({available, t.total() - t.moved, RING - (size_t)(at % RING)});
        if (part == 0) return false;
        if (t.send) memcpy(channel.ring + at % RING, t.from(t.moved), part);
        else memcpy(t.from(t.moved), channel.ring + at % RING, part);
        t.moved += part;
        (t.send ? channel.written : channel.read) += part;
    }
    // A send is over when the receiver has everything: the next message's sizes may then be posted.
    t.done = !t.send || channel.read >= t.start + t.total();
    return t.done;
}

// A single call or a group on one communicator.
struct Unit {
    Communicator* communicator;
    std::vector<Transfer> transfers;
    uint64_t ticket;
    size_t streams;
    std::atomic<size_t> arrived{0};
    std::atomic<bool> over{false};
};

std::string describe(const Unit& unit) {
    std::string text = "rank " + std::to_string(unit.communicator->rank) + ":";
    for (auto& t : unit.transfers)
        if (!t.done) text += std::string(t.send ? " send " : " receive ") + std::to_string(t.number) + (t.send ? " to " : " from ") + std::to_string(t.peer) + " (" + std::to_string(t.bytes) + " bytes)";
    return text;
}

void run(Unit& unit) {
    Communicator& c = *unit.communicator;
    wait_until([&] { return c.aborted || (c.finished == unit.ticket - 1 && unit.arrived == unit.streams - 1); }, describe(unit) + ", after earlier calls of the communicator");
    wait_until([&] {
        if (c.aborted) return true;
        bool all = true;
        std::map<std::pair<bool, int>, bool> busy;  // an earlier transfer of the same channel is not over
        for (auto& t : unit.transfers) {
            bool& earlier = busy[{t.send, t.peer}];
            bool done = advance(c, t, !earlier);
            earlier |= !done;
            all &= done;
        }
        return all;
    }, describe(unit));
    if (!c.aborted) c.finished = unit.ticket;
    unit.over = true;
}

// Holds the calling host up until the other side of each connection that is new has come to make it, too.
int connect(Communicator* c, const std::vector<Transfer>& transfers) {
    std::vector<std::atomic<int>*> other_sides;
    std::string what = "the host of rank " + std::to_string(c->rank) + " connects:";
    for (auto& t : transfers) {
        if (c->connected[t.send][t.peer]) continue;
        c->connected[t.send][t.peer] = true;
        Channel& channel = t.send ? c->control->channel[c->rank][t.peer] : c->control->channel[t.peer][c->rank];
        channel.connects[t.send] = 1;
        other_sides.push_back(&channel.connects[!t.send]);
        what += std::string(t.send ? " to " : " from ") + std::to_string(t.peer);
    }
    if (other_sides.empty()) return SUCCESS;
    if (const char* told = getenv("EMULATOR_NCCL_CONNECTS"); told && *told) fprintf(stderr, "emulator: NCCL: %s\n", what.c_str());
    wait_until([&] { return c->aborted || std::all_of(other_sides.begin(), other_sides.end(), [](auto* side) { return side->load() != 0; }); }, what);
    return c->aborted ? refuse(SYSTEM_ERROR, "aborted while connecting") : (int)SUCCESS;
}

int issue(Communicator* c, std::vector<Transfer> transfers) {
    if (int result = connect(c, transfers)) return result;
    auto unit = std::make_shared<Unit>();
    std::vector<uintptr_t> streams;
    for (auto& t : transfers)
        if (!std::count(streams.begin(), streams.end(), t.stream)) streams.push_back(t.stream);
    unit->communicator = c;
    unit->streams = streams.size();
    std::lock_guard<std::mutex> guard(c->mutex);
    for (auto& t : transfers) t.number = ++c->numbers[t.send][t.peer];
    unit->transfers = std::move(transfers);
    unit->ticket = ++c->issued;
    for (size_t each = 1; each < streams.size(); ++each) {
        int result = enqueue(streams[each], "NCCL group", [unit] {
            ++unit->arrived;
            wait_until([&] { return unit->over.load(); }, "the rest of its NCCL group");
        });
        if (result) return refuse(CUDA_ERROR, "the stream does not exist");
    }
    const char* name = unit->transfers.size() > 1 ? "NCCL group" : unit->transfers[0].send ? "ncclSend" : "ncclRecv";
    return enqueue(streams[0], name, [unit] { run(*unit); }) ? refuse(CUDA_ERROR, "the stream does not exist") : (int)SUCCESS;
}

int join(Communicator** out, int ranks, const UniqueId& id, int rank, int device) {
    if (device < 0) return refuse(CUDA_ERROR, "no device is current");
    if (ranks < 1 || ranks > MOST || rank < 0 || rank >= ranks) return refuse(INVALID_ARGUMENT, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    auto* control = (Control*)open_name(MARK, id.name);
    if (!control) return refuse(SYSTEM_ERROR, "the maker of the unique id cannot be reached");
    auto& own = control->member[rank];
    if (own.joined.exchange(1)) return refuse(INVALID_USAGE, "rank " + std::to_string(rank) + " joined twice");
    own.process = getpid();
    own.device = driver().physical_device(device);
    ++control->members;
    wait_until([=] { return control->members >= ranks; }, "ncclCommInitRank: the other ranks");
    for (int one = 0; one < ranks; ++one)
        for (int other = 0; other < one; ++other)
            if (control->member[one].device == control->member[other].device)
                return refuse(INVALID_USAGE, "Duplicate GPU detected : rank " + std::to_string(other) + " and rank " + std::to_string(one) +
                              " both on CUDA device " + std::to_string(control->member[one].device));
    auto* c = new Communicator;
    c->control = control, c->rank = rank, c->ranks = ranks, c->device = device;
    std::lock_guard<std::mutex> guard(communicators_mutex);
    communicators.push_back(c);
    *out = c;
    return SUCCESS;
}

struct Joining {
    Communicator** out;
    int ranks;
    UniqueId id;
    int rank, device;
};
thread_local int depth = 0;
thread_local int group_error = SUCCESS;
thread_local std::vector<Joining> joinings;
thread_local std::vector<std::pair<Communicator*, std::vector<Transfer>>> grouped;

size_t width(int type) {
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? widths[type] : 0;
}

int transfer(bool send, void* data, size_t count, int type, int peer, Communicator* handle, uintptr_t stream) {
    const char* call = send ? "ncclSend" : "ncclRecv";
    driver().refuse_after_exit();
    Communicator* c = find(handle);
    if (!c || !width(type) || peer < 0 || peer >= c->ranks) {
        int result = refuse(INVALID_ARGUMENT, std::string(call) + ": communicator, type or peer " + std::to_string(peer) + " does not exist");
        if (depth) group_error = result;
        return result;
    }
    if (driver().stream_device(stream) != c->device) return refuse(INVALID_USAGE, std::string(call) + ": the stream is of another device than the communicator");
    if (count) driver().check_memory(call, "buffer", data, count * width(type));
    Transfer t{send, (char*)data, count * width(type), peer, stream};
    if (!depth) return issue(c, {t});
    for (auto& entry : grouped)
        if (entry.first == c) return entry.second.push_back(t), SUCCESS;
    grouped.push_back({c, {t}});
    return SUCCESS;
}

}  // namespace

API int ncclGetVersion(int* version) { return *version = 22809, SUCCESS; }

API const char* ncclGetErrorString(int result) {
    static const char* texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
    return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}
API const char* ncclGetLastError(Communicator*) { return last_error.c_str(); }

API int ncclGetUniqueId(UniqueId* id) {
    memset(id, 0, sizeof *id);
    return create(MARK, sizeof(Control), &id->name) ? SUCCESS : SYSTEM_ERROR;
}

API int ncclCommInitRank(Communicator** out, int ranks, UniqueId id, int rank) {
    if (!driver().present) return refuse(CUDA_ERROR, "no driver");
    int device = driver().device();
    if (!depth) return join(out, ranks, id, rank, device);
    joinings.push_back({out, ranks, id, rank, device});
    return SUCCESS;
}

API int ncclGroupStart() { return ++depth, SUCCESS; }

API int ncclGroupEnd() {
    if (depth == 0) return refuse(INVALID_USAGE, "ncclGroupEnd: not in a group");
    if (--depth) return SUCCESS;
    int result = group_error;
    group_error = SUCCESS;
    std::vector<std::thread> threads;
    std::vector<std::pair<int, std::string>> results(joinings.size());
    for (size_t each = 0; each < joinings.size(); ++each)
        threads.emplace_back([&results, each, j = joinings[each]] {
            results[each].first = join(j.out, j.ranks, j.id, j.rank, j.device);
            results[each].second = last_error;
        });
    for (auto& thread : threads) thread.join();
    for (auto& entry : results)
        if (entry.first) result = refuse(entry.first, entry.second);
    joinings.clear();
    auto units = std::move(grouped);
    grouped.clear();
    if (result) return result;
    for (auto& entry : units)
        if (int failed = issue(entry.first, std::move(entry.second))) result = failed;
    return result;
}

API int ncclSend(const void* data, size_t count, int type, int peer, Communicator* c, uintptr_t stream) { return transfer(true, (void*)data, count, type, peer, c, stream); }
API int ncclRecv(void* data, size_t count, int type, int peer, Communicator* c, uintptr_t stream) { return transfer(false, data, count, type, peer, c, stream); }

// Ends what the communicator has under way, without completing it.
API int ncclCommAbort(Communicator* handle) {
    driver().refuse_after_exit();
    Communicator* c = find(handle);
    if (!c) return refuse(INVALID_ARGUMENT, "ncclCommAbort: the communicator does not exist");
    c->aborted = true;
    c->destroyed = true;
    return SUCCESS;
}

API int ncclCommFinalize(Communicator* handle) {
    driver().refuse_after_exit();
    Communicator* c = find(handle);
    if (!c) return refuse(INVALID_ARGUMENT, "ncclCommFinalize: the communicator does not exist");
    wait_until([=] { return c->finished >= c->issued; }, "ncclCommFinalize: calls under way");
    return SUCCESS;
}

API int ncclCommDestroy(Communicator* handle) {
    if (int result = ncclCommFinalize(handle)) return result;
    handle->destroyed = true;
    return SUCCESS;
}

API int ncclCommGetAsyncError(Communicator* handle, int* error) { return find(handle) ? (*error = SUCCESS, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
API int ncclCommCount(Communicator* handle, int* count) { return find(handle) ? (*count = handle->ranks, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
API int ncclCommUserRank(Communicator* handle, int* rank) { return find(handle) ? (*rank = handle->rank, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
API int ncclCommCuDevice(Communicator* handle, int* device) { return find(handle) ? (*device = handle->device, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
