// Stands in for the language of the kernels: with this header in front, the very text under kernels/cuda/ compiles as C++
// and runs on the CPU. Each thread of a block is a coroutine with a stack of its own. It runs until it comes to a
// barrier or a shuffle, and goes on when all others that take part are there: barriers and shuffles are real, and
// checked. A block whose threads disagree (one has ended while others wait at a barrier, a lane of a shuffle's mask
// never comes), an access to a vector at a misaligned address, and a write beyond the shared memory asked for end the
// process with a message that names kernel, block and thread. Shared memory starts out as NaN in every block, and an
// asynchronous copy arrives only when it is waited for, so that a read that comes too early shows in the result.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#pragma GCC visibility push(hidden) // two libraries, one a precision, may lie in one process

#define PIPESIM_EMULATOR
#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

// Vectors may stand for arrays of their elements, as in CUDA.
#define VECTOR_TYPE(bytes) __attribute__((may_alias, aligned(bytes)))
struct VECTOR_TYPE(4) uint1 { unsigned x; };
struct VECTOR_TYPE(8) float2 { float x, y; };
struct VECTOR_TYPE(16) uint4 { unsigned x, y, z, w; };
struct VECTOR_TYPE(16) float4 { float x, y, z, w; };

namespace emulator {

struct Index {
    unsigned x, y, z;
};

// ---- switching between stacks ---------------------------------------------------------------------------------------

#if defined(__x86_64__)
struct Context {
    void* stack_pointer = nullptr;
};

// Saves what a callee must keep on the stack, leaves the stack pointer in *from, and returns on the stack `to`.
extern "C" void pipesim_emulator_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.hidden pipesim_emulator_switch
.globl pipesim_emulator_switch
.type pipesim_emulator_switch, @function
pipesim_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size pipesim_emulator_switch, .-pipesim_emulator_switch
)");

inline void switch_context(Context& from, Context& to) {
    pipesim_emulator_switch(&from.stack_pointer, to.stack_pointer);
}

inline void prepare_context(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
    auto top = (void**)((uintptr_t)(stack + bytes) & ~uintptr_t(15));
    *--top = nullptr;            // the return address of entry, which never returns
    *--top = (void*)entry;       // where the first switch returns to; the stack is then as after a call
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    context.stack_pointer = top;
}
#else
struct Context {
    ucontext_t state;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

inline void prepare_context(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = bytes;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}
#endif

// ---- a block of threads ---------------------------------------------------------------------------------------------

constexpr unsigned LANES = 32;
constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 64 * 1024;
constexpr size_t STACK_STRIDE = STACK_BYTES + 832; // so that the tops of the stacks lie in different sets of the caches
constexpr uint64_t CANARY = 0x5aa5c33c96696996u;
constexpr size_t DEPOSIT_BYTES = 64;
constexpr size_t STATIC_BYTES = 48 * 1024;
constexpr size_t MOST_ARRAYS = 4096;

enum class State { Running, AtBarrier, InExchange, Ended };
enum class Exchange : unsigned { Shuffle, Vote, Synchronize, Tile };

struct Copy {
    void* target;
    const void* source;
    bool whole;
    unsigned group;
};

struct Warp;

struct Thread {
    Context context;
    Index index = {0, 0, 0};
    Warp* warp = nullptr;
    State state = State::Ended;    // what it gave way for
    unsigned position = 0;         // within the order in which the lanes of its warp run
    int line = 0;                  // of the barrier at which it waits
    std::vector<Copy> copies;      // asked for and not yet arrived
    unsigned committed = 0;        // groups of copies
};

// Lanes that wait for the others of an exchange.
struct Meeting {
    unsigned mask, arrived, kind, bytes;
};

struct Warp {
    unsigned runnable = 0;         // by position
    unsigned positions[LANES];     // of the lanes
    Thread* threads[LANES];        // by position
    std::vector<Meeting> meetings;
    unsigned char parity[LANES];   // which deposit a lane's next exchange writes
    unsigned char released[LANES]; // which deposit its last finished exchange left
    alignas(64) unsigned char deposits[LANES][2][DEPOSIT_BYTES];
};

struct Machine {
    Context scheduler;
    Thread* current = nullptr;
    Index block = {0, 0, 0}, block_dimensions = {1, 1, 1}, grid_dimensions = {1, 1, 1};
    const char* kernel = "";
    void (*call)(void**) = nullptr;
    void** arguments = nullptr;
    std::vector<Thread> threads = std::vector<Thread>(MOST_THREADS);
    std::vector<Warp> warps = std::vector<Warp>(MOST_THREADS / LANES);
    std::vector<unsigned> warp_order;
    std::unique_ptr<unsigned char[]> stacks{new unsigned char[STACK_STRIDE * MOST_THREADS]}; // pages come when touched
    std::vector<unsigned char> dynamic_storage;
    unsigned char* dynamic = nullptr;
    size_t dynamic_bytes = 0;
    std::vector<unsigned char> fixed_storage = std::vector<unsigned char>(STATIC_BYTES + 16);
    unsigned char* fixed = nullptr;
    size_t fixed_bytes = 0;
    int array_offsets[MOST_ARRAYS];
};

// The block that this thread of the host runs.
static thread_local Machine* machine __attribute__((tls_model("initial-exec"))) = nullptr;

[[noreturn]] inline void fail(const Thread* thread, const char* what) {
    const Machine& m = *machine;
    std::fprintf(stderr, "emulator: kernel %s, block (%u, %u, %u), thread %u: %s\n", m.kernel, m.block.x, m.block.y,
                 m.block.z, thread->index.x, what);
    std::abort();
}

// Gives way to the next lane of the warp that can run, or to the scheduler. All switches from a thread happen here, at
// one place, so that the processor foresees where they return to.
__attribute__((noinline)) inline void give_way(Thread& from) {
    Machine& m = *machine;
    Warp& warp = *from.warp;
    Context* to = &m.scheduler;
    if (warp.runnable != 0) {
        m.current = warp.threads[__builtin_ctz(warp.runnable)];
        to = &m.current->context;
    }
    switch_context(from.context, *to);
}

inline void barrier(int line) {
    Thread& self = *machine->current;
    self.state = State::AtBarrier;
    self.line = line;
    self.warp->runnable &= ~(1u << self.position);
    give_way(self);
}

// Where the calling lane's arrival is to be noted.
inline Meeting& meeting_of(Warp& warp, unsigned mask, Exchange kind, unsigned bytes, unsigned own) {
    for (Meeting& other : warp.meetings) {
        if (other.mask == mask && other.kind == unsigned(kind) && other.bytes == bytes && (other.arrived & own) == 0) {
            return other;
        }
    }
    warp.meetings.push_back({mask, 0, unsigned(kind), bytes});
    return warp.meetings.back();
}

// Leaves a value for the other lanes of `mask` and returns when all of them have done so.
template <typename T> inline Warp& meet(unsigned mask, Exchange kind, const T& value) {
    static_assert(sizeof(T) <= DEPOSIT_BYTES, "more than an exchange carries");
    Thread& self = *machine->current;
    Warp& warp = *self.warp;
    const unsigned lane = self.index.x % LANES, own = 1u << lane;
    if ((mask & own) == 0) {
        fail(&self, "takes part in an exchange whose mask leaves it out");
    }
    std::memcpy(warp.deposits[lane][warp.parity[lane]], &value, sizeof value);
    Meeting& meeting = meeting_of(warp, mask, kind, sizeof value, own);
    meeting.arrived |= own;
    if (meeting.arrived != mask) {
        self.state = State::InExchange;
        warp.runnable &= ~(1u << self.position);
        give_way(self);
        return warp;
    }
    meeting = warp.meetings.back();
    warp.meetings.pop_back();
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const unsigned other = __builtin_ctz(rest);
        warp.released[other] = warp.parity[other];
        warp.parity[other] ^= 1;
        warp.runnable |= 1u << warp.positions[other];
    }
    return warp;
}

// What a lane left in the exchange that has just ended.
inline const unsigned char* deposit_of(const Warp& warp, unsigned lane) {
    return warp.deposits[lane][warp.released[lane]];
}

template <typename T> inline T shuffle(unsigned mask, T value, unsigned source) {
    const Warp& warp = meet(mask, Exchange::Shuffle, value);
    if ((mask >> source & 1) == 0) {
        fail(machine->current, "reads from a lane that takes no part in the shuffle");
    }
    T result;
    std::memcpy(&result, deposit_of(warp, source), sizeof result);
    return result;
}

inline unsigned lane() { return machine->current->index.x % LANES; }

inline unsigned vote(unsigned mask, bool value) {
    const Warp& warp = meet(mask, Exchange::Vote, value);
    unsigned result = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        result |= unsigned(*deposit_of(warp, __builtin_ctz(rest))) << __builtin_ctz(rest);
    }
    return result;
}

// An array in shared memory, known by the place where it is declared.
template <typename T, int place> inline T* shared_array(size_t count) {
    static_assert(place < int(MOST_ARRAYS), "too many arrays in shared memory");
    Machine& m = *machine;
    int& offset = m.array_offsets[place];
    if (offset < 0) {
        offset = int(m.fixed_bytes);
        m.fixed_bytes += (count * sizeof(T) + 15) / 16 * 16;
        if (m.fixed_bytes > STATIC_BYTES) {
            fail(m.current, "more than 48 KiB of static shared memory");
        }
        std::memset(m.fixed + offset, 0xff, m.fixed_bytes - offset);
    }
    return (T*)(m.fixed + offset);
}

inline void check_aligned(const void* pointer) {
    if (((uintptr_t)pointer & 15) != 0) {
        fail(machine->current, "access to 16 bytes at an address that is no multiple of 16");
    }
}

inline void arrive(const Copy& copy) {
    if (copy.whole) {
        std::memcpy(copy.target, copy.source, 16);
    } else {
        std::memset(copy.target, 0, 16);
    }
}

} // namespace emulator

// ---- the names that kernels use -------------------------------------------------------------------------------------

#define threadIdx (emulator::machine->current->index)
#define blockIdx (emulator::machine->block)
#define blockDim (emulator::machine->block_dimensions)
#define gridDim (emulator::machine->grid_dimensions)
#define __syncthreads() emulator::barrier(__LINE__)
#define SHARED(type, name, count) type* const name = emulator::shared_array<type, __COUNTER__>(count)
#define DYNAMIC_SHARED(name) unsigned char* const name = emulator::machine->dynamic
#define CHECK_ALIGNED(pointer) emulator::check_aligned(pointer)

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator::meet(mask, emulator::Exchange::Synchronize, '\0');
}
template <typename T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return emulator::shuffle(mask, value, (emulator::lane() & ~(width - 1)) + (source & (width - 1)));
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const unsigned self = emulator::lane(), source = self ^ unsigned(bits);
    return emulator::shuffle(mask, value, source / width <= self / width ? source : self);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const unsigned self = emulator::lane(), source = self + distance;
    return emulator::shuffle(mask, value, source / width == self / width ? source : self);
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const unsigned self = emulator::lane();
    return emulator::shuffle(mask, value, self % width >= distance ? self - distance : self);
}
inline unsigned __ballot_sync(unsigned mask, int value) { return emulator::vote(mask, value != 0); }
inline int __any_sync(unsigned mask, int value) { return emulator::vote(mask, value != 0) != 0; }
inline int __all_sync(unsigned mask, int value) { return emulator::vote(mask, value != 0) == mask; }

// The registers that every lane brought to an operation of the whole warp.
template <int count> struct Registers {
    unsigned values[count];
};
template <int count> struct WarpRegisters {
    const emulator::Warp& warp;
    const unsigned* of(int lane) const { return (const unsigned*)emulator::deposit_of(warp, lane); }
};
template <int count> inline WarpRegisters<count> exchange_registers(unsigned mask, const Registers<count>& mine) {
    return {emulator::meet(mask, emulator::Exchange::Tile, mine)};
}

// Reads of four matrices (8, 8) from shared memory, 512 bytes a warp, by launches from this thread of the host.
static thread_local uint64_t matrix_reads = 0;
inline void count_matrix_read() { matrix_reads += emulator::lane() == 0; }

inline void emulate_copy_async(void* target, const void* source, bool whole) {
    emulator::Thread& self = *emulator::machine->current;
    std::memset(target, 0xff, 16); // until it is waited for
    self.copies.push_back({target, source, whole, self.committed});
}
inline void emulate_copy_commit() { emulator::machine->current->committed++; }
inline void emulate_copy_wait(unsigned groups) {
    emulator::Thread& self = *emulator::machine->current;
    size_t kept = 0;
    for (const emulator::Copy& copy : self.copies) {
        if (copy.group + groups < self.committed) {
            emulator::arrive(copy);
        } else {
            self.copies[kept++] = copy;
        }
    }
    self.copies.resize(kept);
}

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
template <typename T> inline T __ldg(const T* pointer) { return *pointer; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
inline float __fdividef(float a, float b) { return a / b; }
