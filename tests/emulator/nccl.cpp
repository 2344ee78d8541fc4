// A stand-in for NCCL (libnccl.so.2, version 2.28.9): communicators, send and receive with strict rendezvous, groups,
// all-reduce, reduce-scatter and all-gather.
//
// A send holds its stream until the matching receive runs and has taken all bytes. (The real library may let a small message go
// earlier; a program must not rely on it.) The units of a communicator, single calls or groups, run in the order of issue
// whatever their streams, as in NCCL. Two ranks on one device are refused with ncclInvalidUsage (5).
//
// All ranks of a communicator make the same collective calls in the same order. The n-th of each rank meet; if they differ in
// kind, count, type or operation, the process ends with a message, where the real library would hang or mix data up. Sums are
// added as around a ring: their order depends on the place of a number, and all ranks receive the same bits. They may be in
// place. Numbers are float32 and bfloat16, operations sum and max.
//
// A rank whose process has ended is an asynchronous error (ncclRemoteError) of the communicator, which then waits for
// ncclCommAbort.
//
// Connections are made lazily, as by the real library: the first send to a rank, and the first receive from one, hold the calling
// host up until that rank's host has come to the other side of it.
#include "rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

using namespace rendezvous;

namespace {

enum Result : int { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
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
// What a rank brings to a collective call: the call, then its data, piece by piece, in two slots by turns. A rank that has
// written piece q has read all pieces before q from every other rank.
struct Collective {
    std::atomic<uint64_t> calls, kind, count, type, operation, written;
    char slot[2][RING];
};
struct Control {
    std::atomic<int> members, left, meeting;
    Collective collective[MOST];
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
    uint64_t collectives = 0, pieces = 0;  // so far, of those that ran
    bool met = false;  // the hosts of all ranks, for a collective call
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

enum Kind : uint64_t { ALL_REDUCE = 1, REDUCE_SCATTER = 2, ALL_GATHER = 3 };
const char* NAMES[] = {"", "ncclAllReduce", "ncclReduceScatter", "ncclAllGather"};
constexpr uint64_t FLOAT32 = 7, BFLOAT16 = 9, SUM = 0, MAX = 2;

// A collective call of a rank. `count` is the call's own: of the whole, of a rank's piece, of a rank's piece.
struct Call {
    Kind kind;
    const char* from;
    char* to;
    uint64_t count, type, operation;
    uintptr_t stream;
    size_t element() const { return type == BFLOAT16 ? 2 : 4; }
};

float read_number(const char* data, uint64_t type) {
    uint32_t bits = 0;
    if (type == FLOAT32) memcpy(&bits, data, 4);
    else memcpy((char*)&bits + 2, data, 2);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

void write_number(char* data, uint64_t type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == BFLOAT16) {  // to nearest even
        bits = value != value ? 0x7fff0000u : bits + 0x7fffu + (bits >> 16 & 1);
        memcpy(data, (char*)&bits + 2, 2);
    } else memcpy(data, &bits, 4);
}

bool alive(const Communicator& c) {
    for (int rank = 0; rank < c.ranks; ++rank)
        if (kill(c.control->member[rank].process, 0) && errno == ESRCH) return false;
    return true;
}

// Passes a piece of each rank: `own`, and then `take` reads all, from where its argument says.
template <class F> bool pass(Communicator& c, const char* own, size_t bytes, F take) {
    uint64_t piece = ++c.pieces;
    Collective& mine = c.control->collective[c.rank];
    memcpy(mine.slot[piece % 2], own, bytes);
    mine.written = piece;
    for (int rank = 0; rank < c.ranks; ++rank) {
        Collective& other = c.control->collective[rank];
        wait_until([&] { return c.aborted || other.written >= piece; }, "rank " + std::to_string(c.rank) + ": data of rank " + std::to_string(rank));
        if (c.aborted) return false;
    }
    take([&](int rank) -> const char* { return c.control->collective[rank].slot[piece % 2]; });
    return true;
}

// Joins `count` numbers of all ranks, which are numbers `start`.. of `whole`, from `at(rank)` into `to`.
template <class F> void join_numbers(const Communicator& c, const Call& call, F at, size_t start, size_t count, size_t whole, char* to) {
    size_t element = call.element(), chunk = (whole + c.ranks - 1) / c.ranks;
    for (size_t i = 0; i < count; ++i) {
        int first = int((start + i) / chunk + 1);
        float joined = 0;
        for (int step = 0; step < c.ranks; ++step) {
            float value = read_number(at((first + step) % c.ranks) + i * element, call.type);
            joined = step == 0 ? value : call.operation == MAX ? std::max(joined, value) : joined + value;
            if (call.type == BFLOAT16) {  // a ring passes on what it has rounded
                char rounded[4];
                write_number(rounded, BFLOAT16, joined);
                joined = read_number(rounded, BFLOAT16);
            }
        }
        write_number(to + i * element, call.type, joined);
    }
}

void run_call(Communicator& c, const Call& call) {
    uint64_t number = ++c.collectives;
    Collective& mine = c.control->collective[c.rank];
    mine.kind = call.kind, mine.count = call.count, mine.type = call.type, mine.operation = call.operation;
    mine.calls = number;
    std::string what = std::string(NAMES[call.kind]) + ", collective call " + std::to_string(number) + " of rank " + std::to_string(c.rank);
    for (int rank = 0; rank < c.ranks; ++rank) {
        Collective& other = c.control->collective[rank];
        wait_until([&] { return c.aborted || other.calls >= number; }, what + ": rank " + std::to_string(rank));
        if (c.aborted) return;
        if (other.kind != call.kind || other.count != call.count || other.type != call.type || other.operation != call.operation)
            fatal(NAMES[call.kind], "collective call " + std::to_string(number) + " of rank " + std::to_string(c.rank) + " has " + std::to_string(call.count) +
                  " numbers of type " + std::to_string(call.type) + ", operation " + std::to_string(call.operation) + ", and rank " + std::to_string(rank) +
                  " calls " + NAMES[other.kind] + " with " + std::to_string(other.count) + " of type " + std::to_string(other.type) + ", operation " +
                  std::to_string(other.operation));
    }
    size_t element = call.element(), whole = call.kind == REDUCE_SCATTER ? call.count * c.ranks : call.count;
    // Of a scattered sum a piece holds a part of every rank's share, so that all parts have one length.
    size_t most = RING / element / (call.kind == REDUCE_SCATTER ? c.ranks : 1);
    std::vector<char> packed;
    for (size_t start = 0; start < call.count; start += most) {
        size_t count = std::min<size_t>(most, call.count - start);
        bool going = true;
        switch (call.kind) {
            case ALL_REDUCE:
                going = pass(c, call.from + start * element, count * element, [&](auto at) { join_numbers(c, call, at, start, count, whole, call.to + start * element); });
                break;
            case REDUCE_SCATTER: {
                packed.resize(count * element * c.ranks);
                for (int rank = 0; rank < c.ranks; ++rank)
                    memcpy(packed.data() + rank * count * element, call.from + (rank * call.count + start) * element, count * element);
                going = pass(c, packed.data(), packed.size(), [&](auto at) {
                    auto own = [&](int rank) { return at(rank) + c.rank * count * element; };
                    join_numbers(c, call, own, c.rank * call.count + start, count, whole, call.to + start * element);
                });
                break;
            }
            case ALL_GATHER:
                going = pass(c, call.from + start * element, count * element, [&](auto at) {
                    for (int rank = 0; rank < c.ranks; ++rank) memcpy(call.to + (rank * call.count + start) * element, at(rank), count * element);
                });
        }
        if (!going) return;
    }
    // The next call's description replaces this one's when all have seen it: all have when all have written a piece, or here.
    pass(c, "", 0, [](auto) {});
}

// A single call or a group on one communicator.
struct Unit {
    Communicator* communicator;
    std::vector<Transfer> transfers;
    std::vector<Call> calls;
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
    for (auto& call : unit.calls)
        if (!c.aborted) run_call(c, call);
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

// Holds the calling host up until the hosts of all ranks have come to their first collective call.
int meet(Communicator* c) {
    if (c->met) return SUCCESS;
    c->met = true;
    ++c->control->meeting;
    wait_until([&] { return c->aborted || c->control->meeting >= c->ranks; }, "the host of rank " + std::to_string(c->rank) + " comes to its first collective call");
    return c->aborted ? refuse(SYSTEM_ERROR, "aborted while connecting") : (int)SUCCESS;
}

int issue(Communicator* c, std::vector<Transfer> transfers, std::vector<Call> calls) {
    if (int result = connect(c, transfers)) return result;
    if (int result = calls.empty() ? (int)SUCCESS : meet(c)) return result;
    auto unit = std::make_shared<Unit>();
    std::vector<uintptr_t> streams;
    auto add = [&](uintptr_t stream) { if (!std::count(streams.begin(), streams.end(), stream)) streams.push_back(stream); };
    for (auto& t : transfers) add(t.stream);
    for (auto& call : calls) add(call.stream);
    unit->communicator = c;
    unit->streams = streams.size();
    std::lock_guard<std::mutex> guard(c->mutex);
    for (auto& t : transfers) t.number = ++c->numbers[t.send][t.peer];
    unit->transfers = std::move(transfers);
    unit->calls = std::move(calls);
    unit->ticket = ++c->issued;
    for (size_t each = 1; each < streams.size(); ++each) {
        int result = enqueue(streams[each], "NCCL group", [unit] {
            ++unit->arrived;
            wait_until([&] { return unit->over.load(); }, "the rest of its NCCL group");
        });
        if (result) return refuse(CUDA_ERROR, "the stream does not exist");
    }
    size_t size = unit->transfers.size() + unit->calls.size();
    const char* name = size > 1 ? "NCCL group" : unit->transfers.empty() ? NAMES[unit->calls[0].kind] : unit->transfers[0].send ? "ncclSend" : "ncclRecv";
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
    if (const char* fault = getenv("EMULATOR_NCCL_JOIN")) {  // RANK:SIGNAL
        static std::atomic<bool> struck{false};
        int of = -1, signal = 0;
        if (sscanf(fault, "%d:%d", &of, &signal) == 2 && of == rank && !struck.exchange(true)) kill(getpid(), signal);
    }
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
struct Grouped {
    Communicator* communicator;
    std::vector<Transfer> transfers;
    std::vector<Call> calls;
};
thread_local std::vector<Grouped> grouped;

Grouped& group_of(Communicator* c) {
    for (auto& entry : grouped)
        if (entry.communicator == c) return entry;
    grouped.push_back({c, {}, {}});
    return grouped.back();
}

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
    if (!depth) return issue(c, {t}, {});
    group_of(c).transfers.push_back(t);
    return SUCCESS;
}

int collective(Kind kind, const void* from, void* to, size_t count, int type, int operation, Communicator* handle, uintptr_t stream) {
    const char* name = NAMES[kind];
    driver().refuse_after_exit();
    Communicator* c = find(handle);
    if (!c || (type != (int)FLOAT32 && type != (int)BFLOAT16) || (operation != (int)SUM && operation != (int)MAX)) {
        int result = refuse(INVALID_ARGUMENT, std::string(name) + ": the communicator does not exist, or a type or operation that this stand-in lacks");
        if (depth) group_error = result;
        return result;
    }
    if (driver().stream_device(stream) != c->device) return refuse(INVALID_USAGE, std::string(name) + ": the stream is of another device than the communicator");
    Call call{kind, (const char*)from, (char*)to, count, (uint64_t)type, (uint64_t)operation, stream};
    size_t each = count * call.element(), all = each * c->ranks;
    size_t sent = kind == REDUCE_SCATTER ? all : each, received = kind == ALL_GATHER ? all : each;
    if (count) {
        driver().check_memory(name, "send buffer", from, sent);
        driver().check_memory(name, "receive buffer", to, received);
    }
    // In place is the same buffer, or a rank's own piece of the larger one; any other overlap mixes data up.
    const char* place = kind == REDUCE_SCATTER ? call.from + c->rank * each : call.from;
    const char* target = kind == ALL_GATHER ? call.to + c->rank * each : call.to;
    if (place != target && call.from < call.to + received && call.to < call.from + sent) fatal(name, "send and receive buffer overlap, but not as a call in place");
    if (!depth) return issue(c, {}, {call});
    group_of(c).calls.push_back(call);
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
        if (int failed = issue(entry.communicator, std::move(entry.transfers), std::move(entry.calls))) result = failed;
    return result;
}

API int ncclSend(const void* data, size_t count, int type, int peer, Communicator* c, uintptr_t stream) { return transfer(true, (void*)data, count, type, peer, c, stream); }
API int ncclRecv(void* data, size_t count, int type, int peer, Communicator* c, uintptr_t stream) { return transfer(false, data, count, type, peer, c, stream); }

API int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, Communicator* c, uintptr_t stream) { return collective(ALL_REDUCE, from, to, count, type, operation, c, stream); }
API int ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, Communicator* c, uintptr_t stream) { return collective(REDUCE_SCATTER, from, to, count, type, operation, c, stream); }
API int ncclAllGather(const void* from, void* to, size_t count, int type, Communicator* c, uintptr_t stream) { return collective(ALL_GATHER, from, to, count, type, SUM, c, stream); }

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

API int ncclCommGetAsyncError(Communicator* handle, int* error) {
    Communicator* c = find(handle);
    if (!c) return INVALID_ARGUMENT;
    *error = alive(*c) ? SUCCESS : refuse(REMOTE_ERROR, "a rank's process has ended");
    return SUCCESS;
}
API int ncclCommCount(Communicator* handle, int* count) { return find(handle) ? (*count = handle->ranks, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
API int ncclCommUserRank(Communicator* handle, int* rank) { return find(handle) ? (*rank = handle->rank, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
API int ncclCommCuDevice(Communicator* handle, int* device) { return find(handle) ? (*device = handle->device, (int)SUCCESS) : (int)INVALID_ARGUMENT; }
