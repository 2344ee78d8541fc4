// All kernels as a library of the CPU, compiled twice:
//   g++ -std=c++17 -O2 -fPIC -shared [-DPIPESIM_BF16] kernels.cpp -o libkernels_{f32,bf16}.so
// emulator_launch() runs one launch to its end on the calling thread of the host; any number of threads may do so at
// once.
#include "device.h"

#include "../../kernels/cuda/attention.cu"
#include "../../kernels/cuda/bias.cu"
#include "../../kernels/cuda/classifier.cu"
#include "../../kernels/cuda/embedding.cu"
#include "../../kernels/cuda/gelu.cu"
#include "../../kernels/cuda/gradient.cu"
#include "../../kernels/cuda/heads.cu"
#include "../../kernels/cuda/layernorm.cu"
#include "../../kernels/cuda/optimizer.cu"
#include "../../kernels/cuda/residual.cu"
#include "../../kernels/cuda/rmsnorm.cu"
#include "../../kernels/cuda/slices.cu"
#include "../../kernels/cuda/swiglu.cu"
#ifdef EXTRA_KERNELS // a file with more kernels, listed by its macro EXTRA_ENTRIES, to try the emulator itself
#include EXTRA_KERNELS
#endif

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace emulator {

// Calls a kernel with pointers to its arguments, as cuLaunchKernel is given them.
template <auto kernel> struct Call;
template <typename... A, void (*kernel)(A...)> struct Call<kernel> {
    template <size_t... i> static void spread(void** arguments, std::index_sequence<i...>) {
        kernel(*(A*)arguments[i]...);
    }
    static void run(void** arguments) { spread(arguments, std::index_sequence_for<A...>{}); }
    // Writes the size of each argument, as many as there is room for; how many there are.
    static unsigned describe(unsigned* sizes, unsigned room) {
        const unsigned all[] = {unsigned(sizeof(A))...};
        for (unsigned i = 0; i < sizeof...(A) && i < room; i++) {
            sizes[i] = all[i];
        }
        return sizeof...(A);
    }
};

struct Kernel {
    const char* name;
    void (*call)(void**);
    unsigned (*describe)(unsigned*, unsigned);
};

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define ENTRY(name) {TEXT(PRECISION_NAME(name)), Call<PRECISION_NAME(name)>::run, Call<PRECISION_NAME(name)>::describe}

const Kernel KERNELS[] = {
    ENTRY(adamw_update),
    ENTRY(add),
    ENTRY(attention_backward_keys),
    ENTRY(attention_backward_keys_stored),
    ENTRY(attention_backward_keys_wide),
    ENTRY(attention_backward_mean),
    ENTRY(attention_backward_queries),
    ENTRY(attention_backward_queries_stored),
    ENTRY(attention_backward_queries_wide),
    ENTRY(attention_forward),
    ENTRY(attention_forward_wide),
    ENTRY(bias_backward_sums),
    ENTRY(bias_backward_weight),
    ENTRY(cast),
    ENTRY(classifier_forward),
    ENTRY(classifier_gradient),
    ENTRY(classifier_rescale),
    ENTRY(classifier_share),
    ENTRY(embedding_backward_position),
    ENTRY(embedding_backward_token),
    ENTRY(embedding_forward),
    ENTRY(gelu_backward_input),
    ENTRY(gelu_forward),
    ENTRY(heads_collect),
    ENTRY(heads_expand),
    ENTRY(heads_reduce),
    ENTRY(heads_rotate),
    ENTRY(heads_spread),
    ENTRY(layernorm_backward),
    ENTRY(layernorm_backward_input),
    ENTRY(layernorm_backward_sums),
    ENTRY(layernorm_backward_weight),
    ENTRY(layernorm_forward),
    ENTRY(loss_mean),
    ENTRY(maximum),
    ENTRY(norm_partial),
    ENTRY(norm_sum),
    ENTRY(residual_forward),
    ENTRY(rmsnorm_backward_input),
    ENTRY(rmsnorm_backward_sums),
    ENTRY(rmsnorm_backward_weight),
    ENTRY(rmsnorm_forward),
    ENTRY(slice_gather),
    ENTRY(slice_reduce),
    ENTRY(strided_copy),
    ENTRY(swiglu_backward),
    ENTRY(swiglu_forward),
#ifdef EXTRA_ENTRIES
    EXTRA_ENTRIES
#endif
};

// ---- the order of blocks, warps and lanes ---------------------------------------------------------------------------

static thread_local bool seed_given = false;
static thread_local uint64_t seed_of_thread = 0;
static thread_local uint64_t only_first = 0, only_count = 0; // the blocks that run; 0: all

// 0 is the natural order.
static uint64_t seed() {
    const char* text = std::getenv("PIPESIM_EMULATOR_SEED");
    return seed_given ? seed_of_thread : text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

// Splitmix64 (Steele, Lea and Flood 2014).
static uint64_t next(uint64_t& state) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void shuffle_order(unsigned* order, size_t count, uint64_t& random) {
    for (size_t i = count; i > 1; i--) {
        std::swap(order[i - 1], order[next(random) % i]);
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        a %= b;
        std::swap(a, b);
    }
    return a;
}

// ---- running --------------------------------------------------------------------------------------------------------

static void thread_main() {
    Machine& m = *machine;
    m.call(m.arguments);
    Thread& self = *m.current;
    self.state = State::Ended;
    self.warp->runnable &= ~(1u << self.position);
    give_way(self);
    std::abort(); // nobody resumes a thread that has ended
}

static unsigned char* stack_of(Machine& m, unsigned thread) {
    return (unsigned char*)(((uintptr_t)m.stacks.get() + 63) & ~uintptr_t(63)) + thread * STACK_STRIDE;
}

static void start_block(Machine& m) {
    for (unsigned i = 0; i < m.block_dimensions.x; i++) {
        Thread& thread = m.threads[i];
        thread.index = {i, 0, 0};
        thread.state = State::Running;
        thread.committed = 0;
        thread.copies.clear();
        unsigned char* const stack = stack_of(m, i);
        std::memcpy(stack, &CANARY, sizeof CANARY);
        prepare_context(thread.context, stack, STACK_BYTES, thread_main);
        m.warps[i / LANES].runnable |= 1u << thread.position;
    }
    m.fixed_bytes = 0;
    std::memset(m.array_offsets, 0xff, (__COUNTER__) * sizeof(int));
    std::memset(m.dynamic, 0xff, m.dynamic_bytes);
    std::memcpy(m.dynamic + m.dynamic_bytes, &CANARY, sizeof CANARY);
}

// All threads have gone as far as they could: either all have ended, or all wait at the same barrier.
static bool pass_barrier(Machine& m) {
    const Thread* ended = nullptr;
    const Thread* waiting = nullptr;
    for (unsigned i = 0; i < m.block_dimensions.x; i++) {
        const Thread& thread = m.threads[i];
        if (thread.state == State::InExchange) {
            fail(&thread, "waits in a shuffle, vote or warp barrier for a lane that never comes");
        }
        if (thread.state == State::Ended) {
            ended = &thread;
        } else if (waiting == nullptr) {
            waiting = &thread;
        } else if (waiting->line != thread.line) {
            fail(&thread, "waits at another barrier than the rest of the block");
        }
    }
    if (waiting == nullptr) {
        return false;
    }
    if (ended != nullptr) {
        fail(ended, "has ended while others of its block wait at a barrier");
    }
    for (unsigned i = 0; i < m.block_dimensions.x; i++) {
        m.threads[i].state = State::Running;
        m.warps[i / LANES].runnable |= 1u << m.threads[i].position;
    }
    return true;
}

static void check_canaries(Machine& m) {
    for (unsigned i = 0; i < m.block_dimensions.x; i++) {
        if (std::memcmp(stack_of(m, i), &CANARY, sizeof CANARY) != 0) {
            fail(&m.threads[i], "its stack has overflowed");
        }
    }
    if (std::memcmp(m.dynamic + m.dynamic_bytes, &CANARY, sizeof CANARY) != 0) {
        fail(&m.threads[0], "its block has written beyond its dynamic shared memory");
    }
}

static void run_block(Machine& m) {
    start_block(m);
    do {
        for (const unsigned index : m.warp_order) {
            Warp& warp = m.warps[index];
            while (warp.runnable != 0) {
                m.current = warp.threads[__builtin_ctz(warp.runnable)];
                switch_context(m.scheduler, m.current->context);
            }
        }
    } while (pass_barrier(m));
    check_canaries(m);
}

static void set_order(Machine& m, uint64_t& random, bool natural) {
    const unsigned threads = m.block_dimensions.x, warps = (threads + LANES - 1) / LANES;
    m.warp_order.resize(warps);
    for (unsigned w = 0; w < warps; w++) {
        m.warp_order[w] = w;
        Warp& warp = m.warps[w];
        warp.runnable = 0;
        warp.meetings.clear();
        const unsigned lanes = threads - w * LANES < LANES ? threads - w * LANES : LANES;
        unsigned order[LANES];
        for (unsigned lane = 0; lane < lanes; lane++) {
            order[lane] = lane;
        }
        if (!natural) {
            shuffle_order(order, lanes, random);
        }
        std::memset(warp.parity, 0, sizeof warp.parity);
        for (unsigned position = 0; position < lanes; position++) {
            Thread& thread = m.threads[w * LANES + order[position]];
            thread.warp = &warp;
            thread.position = warp.positions[order[position]] = position;
            warp.threads[position] = &thread;
        }
    }
    if (!natural) {
        shuffle_order(m.warp_order.data(), warps, random);
    }
}

static void run_grid(Machine& m) {
    uint64_t random = seed();
    const bool natural = random == 0;
    set_order(m, random, natural);
    const Index grid = m.grid_dimensions;
    const uint64_t all = uint64_t(grid.x) * grid.y * grid.z, blocks = only_count != 0 ? only_count : all;
    if (only_first + blocks > all) {
        fail(&m.threads[0], "blocks beyond the grid are to run");
    }
    // a permutation of the blocks: i times a number prime to their count, plus another
    uint64_t factor = 1;
    const uint64_t offset = natural ? 0 : next(random) % blocks;
    if (!natural) {
        do {
            factor = next(random) % blocks + 1;
        } while (common_divisor(factor, blocks) != 1);
    }
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t index = only_first + uint64_t(((unsigned __int128)i * factor + offset) % blocks);
        m.block = {unsigned(index % grid.x), unsigned(index / grid.x % grid.y), unsigned(index / grid.x / grid.y)};
        run_block(m);
    }
}

static Machine& machine_of_thread() {
    static thread_local std::unique_ptr<Machine> own;
    if (own == nullptr) {
        own.reset(new Machine);
        machine = own.get();
        machine->fixed = (unsigned char*)(((uintptr_t)machine->fixed_storage.data() + 15) & ~uintptr_t(15));
    }
    return *own;
}

} // namespace emulator

#define EXPORT extern "C" __attribute__((visibility("default")))

// 0, or 1 for an unknown kernel, or 2 for a launch that no device takes.
EXPORT int emulator_launch(const char* name, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block,
                           unsigned shared_bytes, void** args) {
    using namespace emulator;
    const Kernel* found = nullptr;
    for (const Kernel& kernel : KERNELS) {
        if (std::strcmp(kernel.name, name) == 0) {
            found = &kernel;
        }
    }
    if (found == nullptr) {
        return 1;
    }
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_x > 0x7fffffffu || grid_y > 65535 || grid_z > 65535 ||
        block == 0 || block > MOST_THREADS || shared_bytes > 227 * 1024) {
        return 2;
    }
    Machine& m = machine_of_thread();
    m.kernel = found->name;
    m.call = found->call;
    m.arguments = args;
    m.grid_dimensions = {grid_x, grid_y, grid_z};
    m.block_dimensions = {block, 1, 1};
    m.dynamic_bytes = shared_bytes;
    m.dynamic_storage.resize(shared_bytes + 16 + sizeof CANARY);
    m.dynamic = (unsigned char*)(((uintptr_t)m.dynamic_storage.data() + 15) & ~uintptr_t(15));
    run_grid(m);
    return 0;
}

// The sizes of a kernel's arguments, of which a driver makes copies. `count` is the room in `sizes`, then how many there are;
// 1 for an unknown kernel.
EXPORT int emulator_argument_sizes(const char* name, unsigned* sizes, unsigned* count) {
    for (const emulator::Kernel& kernel : emulator::KERNELS) {
        if (std::strcmp(kernel.name, name) == 0) {
            *count = kernel.describe(sizes, *count);
            return 0;
        }
    }
    return 1;
}

// The names of all kernels, one a line.
EXPORT const char* emulator_kernels() {
    using namespace emulator;
    static const std::string names = [] {
        std::string all;
        for (const Kernel& kernel : KERNELS) {
            all.append(all.empty() ? "" : "\n").append(kernel.name);
        }
        return all;
    }();
    return names.c_str();
}

// Sets the order of blocks, warps and lanes for launches from this thread of the host; 0 is the natural one. Without a
// call, the environment variable PIPESIM_EMULATOR_SEED sets it for all.
EXPORT void emulator_seed(unsigned long long seed) {
    emulator::seed_given = true;
    emulator::seed_of_thread = seed;
}

// Of launches from this thread of the host, only `count` blocks from number `first` on run, or all if `count` is 0: so a
// test sees the last blocks of a grid whose operands no machine has memory for.
EXPORT void emulator_blocks(unsigned long long first, unsigned long long count) {
    emulator::only_first = count != 0 ? first : 0;
    emulator::only_count = count;
}

// How often warps have read four matrices from shared memory since the last call, in launches from this thread of the host.
EXPORT unsigned long long emulator_matrix_reads() { return std::exchange(matrix_reads, 0); }
