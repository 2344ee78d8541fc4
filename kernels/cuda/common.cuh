// What all kernels share: the type of the activations, conversions, 16-byte access, reductions and the tensor core's
// tile. No header of CUDA or of the C library is included, so that the text compiles anywhere without an include path:
// with nvcc and NVRTC, and as C++ where tests/emulator/device.h stands in for the language (it defines
// PIPESIM_EMULATOR).
//
// All results are deterministic: no floating-point atomics, and the order of every sum follows from the shapes alone.
#pragma once

#ifdef PIPESIM_BF16
#define PRECISION_NAME(name) name##_bf16
#else
#define PRECISION_NAME(name) name##_f32
#endif
// Declares a kernel that is launched with at most `threads` threads a block and fits `blocks` blocks on a
// multiprocessor.
#define KERNEL(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) PRECISION_NAME(name)

#ifndef PIPESIM_EMULATOR
#define SHARED(type, name, count) __shared__ type name[count]                          // an array in shared memory
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]      // what the launch asked for
#define CHECK_ALIGNED(pointer)                                                         // the device checks this itself
#endif

// ---- numbers --------------------------------------------------------------------------------------------------------

// bfloat16: the upper half of a float32.
struct bf16 {
    unsigned short bits;
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) { return __uint_as_float(unsigned(value.bits) << 16); }

// Two floats as bfloat16, rounded to nearest even, the first in the lower half.
__device__ inline unsigned pack(float low, float high) {
#ifndef PIPESIM_EMULATOR
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    unsigned both = 0;
    for (int half = 0; half < 2; half++) {
        const float value = half == 0 ? low : high;
        const unsigned bits = __float_as_uint(value);
        const unsigned rounded = value != value ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        both |= rounded << (16 * half);
    }
    return both;
#endif
}

template <typename T> struct From;
template <> struct From<float> {
    __device__ static float convert(float value) { return value; }
};
template <> struct From<bf16> {
    __device__ static bf16 convert(float value) { return bf16{(unsigned short)pack(value, 0.0f)}; }
};

#ifdef PIPESIM_BF16
typedef bf16 act;
constexpr bool TENSOR_CORES = true;
#else
typedef float act;
constexpr bool TENSOR_CORES = false;
#endif

__device__ inline act to_act(float value) { return From<act>::convert(value); }

#define INFINITE __uint_as_float(0x7f800000u)
constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.69314718055994530942f;

// 2^value, good to two units in the last place; results below the smallest normal number are 0.
__device__ inline float power_of_two(float value) {
#ifndef PIPESIM_EMULATOR
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
#else
    return exp2f(value);
#endif
}

// ---- access to memory, eight elements at a time ---------------------------------------------------------------------

constexpr int ELEMENTS = 8;
constexpr int AT_ONCE = 64 / (ELEMENTS * sizeof(act)); // groups of eight that a thread reads together: 64 bytes

__device__ inline bool is_aligned(const void* pointer) { return (size_t(pointer) & 15) == 0; }

// Eight elements as they are in memory. They are converted after the branch that read them: a conversion inside would make
// the thread wait there, and its next read would begin after this one has ended.
template <typename T> struct Raw;
template <> struct Raw<float> {
    float4 low, high;
};
template <> struct Raw<bf16> {
    uint4 all;
};

// Reads eight elements from an address that is a multiple of 16.
__device__ inline Raw<float> fetch_vector(const float* source) {
    CHECK_ALIGNED(source);
    return Raw<float>{((const float4*)source)[0], ((const float4*)source)[1]};
}

__device__ inline Raw<bf16> fetch_vector(const bf16* source) {
    CHECK_ALIGNED(source);
    return Raw<bf16>{*(const uint4*)source};
}

// Eight elements of any address, of which `read(i)` returns element i.
template <typename Read> __device__ inline Raw<float> gather(const float*, Read read) {
    return Raw<float>{float4{read(0), read(1), read(2), read(3)}, float4{read(4), read(5), read(6), read(7)}};
}

template <typename Read> __device__ inline Raw<bf16> gather(const bf16*, Read read) {
    const auto pair = [&](int i) { return unsigned(read(i).bits) | unsigned(read(i + 1).bits) << 16; };
    return Raw<bf16>{uint4{pair(0), pair(2), pair(4), pair(6)}};
}

__device__ inline void expand(float* values, const Raw<float>& raw) {
    values[0] = raw.low.x, values[1] = raw.low.y, values[2] = raw.low.z, values[3] = raw.low.w;
    values[4] = raw.high.x, values[5] = raw.high.y, values[6] = raw.high.z, values[7] = raw.high.w;
}

__device__ inline void expand(float* values, const Raw<bf16>& raw) {
    const unsigned words[4] = {raw.all.x, raw.all.y, raw.all.z, raw.all.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

template <typename T> __device__ inline void load_vector(float* values, const T* source) {
    expand(values, fetch_vector(source));
}

// Writes eight elements to an address that is a multiple of 16.
__device__ inline void store_vector(float* target, const float* values) {
    CHECK_ALIGNED(target);
    ((float4*)target)[0] = float4{values[0], values[1], values[2], values[3]};
    ((float4*)target)[1] = float4{values[4], values[5], values[6], values[7]};
}

__device__ inline void store_vector(bf16* target, const float* values) {
    CHECK_ALIGNED(target);
    *(uint4*)target = uint4{pack(values[0], values[1]), pack(values[2], values[3]), pack(values[4], values[5]),
                            pack(values[6], values[7])};
}

// Reads elements start.. of arrays of counts[r] elements, up to eight each, zeros beyond their ends. `start` is a multiple
// of eight. All reads of a thread are under way together: they are in one branch, and converted after it.
template <int READS, typename T>
__device__ inline void load_together(float (&values)[READS][ELEMENTS], const T* const (&sources)[READS], size_t start,
                                     const size_t (&counts)[READS]) {
    Raw<T> raw[READS];
    bool is_plain = true; // each read is a whole vector, or nothing
#pragma unroll
    for (int r = 0; r < READS; r++) {
        is_plain = is_plain && (start >= counts[r] || (start + ELEMENTS <= counts[r] && is_aligned(sources[r])));
    }
    if (is_plain) {
#pragma unroll
        for (int r = 0; r < READS; r++) {
            raw[r] = Raw<T>{};
            if (start < counts[r]) {
                raw[r] = fetch_vector(sources[r] + start);
            }
        }
    } else {
#pragma unroll
        for (int r = 0; r < READS; r++) {
            raw[r] = gather(sources[r], [&](size_t i) { return start + i < counts[r] ? sources[r][start + i] : T{}; });
        }
    }
#pragma unroll
    for (int r = 0; r < READS; r++) {
        expand(values[r], raw[r]);
    }
}

// The same of arrays of `count` elements each.
template <int READS, typename T>
__device__ inline void load_together(float (&values)[READS][ELEMENTS], const T* const (&sources)[READS], size_t start,
                                     size_t count) {
    size_t counts[READS];
#pragma unroll
    for (int r = 0; r < READS; r++) {
        counts[r] = count;
    }
    load_together(values, sources, start, counts);
}

// The same of one array.
template <typename T>
__device__ inline void load_elements(float (&values)[ELEMENTS], const T* source, size_t start, size_t count) {
    float all[1][ELEMENTS];
    load_together(all, {source}, start, count);
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        values[i] = all[0][i];
    }
}

// Writes elements start.. of an array of `count`, up to eight. `start` is a multiple of eight.
template <typename T>
__device__ inline void store_elements(T* target, const float* values, size_t start, size_t count) {
    if (start + ELEMENTS <= count && is_aligned(target)) {
        store_vector(target + start, values);
    } else {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            if (start + i < count) {
                target[start + i] = From<T>::convert(values[i]);
            }
        }
    }
}

// The first element of a thread of an elementwise kernel, and the step to its next ones.
__device__ inline size_t first_element() { return (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * ELEMENTS; }
__device__ inline size_t element_step() { return size_t(gridDim.x) * blockDim.x * ELEMENTS; }

// ---- reductions: every lane, or every thread, receives the result ---------------------------------------------------

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// The sum over groups of `width` neighbouring lanes, a power of two.
template <int width = WARP, typename T> __device__ inline T warp_sum(T value) {
#pragma unroll
    for (int distance = width / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

// The largest over groups of `width` neighbouring lanes, a power of two.
template <int width = WARP> __device__ inline float warp_max(float value) {
#pragma unroll
    for (int distance = width / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    }
    return value;
}

// The sum over a block of at most 1024 threads, in double precision. To be called once in a kernel.
__device__ inline double block_sum(double value) {
    SHARED(double, sums, WARP);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    value = warp_sum(value);
    if (lane == 0) {
        sums[warp] = value;
    }
    __syncthreads();
    return warp_sum(lane < warps ? sums[lane] : 0.0);
}

constexpr int GROUP_WARPS = 8; // of a block of add_group_sums

// targets[v][C] += the sums over G of partial[G, vectors, C], for 32 columns a block of 256 threads. A warp takes every
// eighth group. To be called once in a kernel.
template <int vectors>
__device__ inline void add_group_sums(float* const (&targets)[vectors], const float* partial, int G, int C) {
    SHARED(float, sums, vectors * GROUP_WARPS * WARP);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, column = blockIdx.x * WARP + lane;
    float own[vectors];
#pragma unroll
    for (int v = 0; v < vectors; v++) {
        own[v] = 0.0f;
    }
    if (column < C) {
#pragma unroll 4
        for (int group = warp; group < G; group += GROUP_WARPS) {
#pragma unroll
            for (int v = 0; v < vectors; v++) {
                own[v] += partial[(size_t(group) * vectors + v) * C + column];
            }
        }
    }
#pragma unroll
    for (int v = 0; v < vectors; v++) {
        sums[(v * GROUP_WARPS + warp) * WARP + lane] = own[v];
    }
    __syncthreads();
    if (warp < vectors && column < C) {
        float sum = 0.0f;
#pragma unroll
        for (int other = 0; other < GROUP_WARPS; other++) {
            sum += sums[(warp * GROUP_WARPS + other) * WARP + lane];
        }
        float* target = targets[0]; // an index into the array would put it into local memory
#pragma unroll
        for (int v = 1; v < vectors; v++) {
            target = warp == v ? targets[v] : target;
        }
        target[column] += sum;
    }
}

// ---- tensor cores ---------------------------------------------------------------------------------------------------
//
// A warp multiplies tiles: c (16, 8) += a (16, 16) b (16, 8), a and b in bfloat16, c in float32. With row = lane / 4
// and pair = lane % 4 * 2, a lane holds
//   a[0]: (row, pair..pair+1)   a[1]: (row+8, pair..)   a[2]: (row, pair+8..)   a[3]: (row+8, pair+8..)
//   b[0]: (pair..pair+1, row)   b[1]: (pair+8.., row)
//   c[0], c[1]: (row, pair..pair+1)   c[2], c[3]: (row+8, pair..pair+1)

__device__ inline void multiply_tile(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifndef PIPESIM_EMULATOR
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const WarpRegisters<6> all = exchange_registers<6>(ALL_LANES, {{a[0], a[1], a[2], a[3], b0, b1}});
    const int row = threadIdx.x % WARP / 4, pair = threadIdx.x % 4 * 2;
    for (int source = 0; source < 4; source++) { // the lanes that hold the rows and columns, four elements each
        const unsigned* const left = all.of(row * 4 + source);
        for (int i = 0; i < 4; i++) {
            const unsigned* const right = all.of((pair + i % 2) * 4 + source) + 4;
            for (int k = 0; k < 2; k++) {
                const unsigned x = left[2 * k + i / 2], y = right[k];
                c[i] += __uint_as_float(x << 16) * __uint_as_float(y << 16);
                c[i] += __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
            }
        }
    }
#endif
}

// Loads four matrices (8, 8) of bfloat16 from shared memory. Lane l gives the address of row l % 8 of matrix l / 8;
// register m of a lane becomes elements (row, pair..pair+1) of matrix m, or (pair..pair+1, row) if transposed.
template <bool transposed> __device__ inline void load_matrices(unsigned (&registers)[4], const bf16* address) {
    CHECK_ALIGNED(address);
#ifndef PIPESIM_EMULATOR
    const unsigned shared = (unsigned)__cvta_generic_to_shared(address);
    if (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                     : "r"(shared) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                     : "r"(shared) : "memory");
    }
#else
    count_matrix_read();
    const WarpRegisters<2> all =
        exchange_registers<2>(ALL_LANES, {{unsigned(size_t(address)), unsigned(size_t(address) >> 32)}});
    const int row = threadIdx.x % WARP / 4, pair = threadIdx.x % 4 * 2;
    const auto element = [&](int matrix, int i, int j) {
        const unsigned* words = all.of(matrix * 8 + i);
        return unsigned(((const bf16*)(size_t(words[0]) | size_t(words[1]) << 32))[j].bits);
    };
    for (int m = 0; m < 4; m++) {
        registers[m] = transposed ? element(m, pair, row) | element(m, pair + 1, row) << 16
                                  : element(m, row, pair) | element(m, row, pair + 1) << 16;
    }
#endif
}

// Copies 16 bytes to shared memory while the thread goes on, or fills them with zeros. What was copied before a
// copy_commit() is there for the thread that asked for it after a copy_wait<groups>(), if at most `groups` commits came
// later.
__device__ inline void copy_async(void* target, const void* source, bool whole) {
    CHECK_ALIGNED(target);
    CHECK_ALIGNED(source);
#ifndef PIPESIM_EMULATOR
    const unsigned shared = (unsigned)__cvta_generic_to_shared(target);
    const int bytes = whole ? 16 : 0; // that are read; the rest is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(bytes) : "memory");
#else
    emulate_copy_async(target, source, whole);
#endif
}

__device__ inline void copy_commit() {
#ifndef PIPESIM_EMULATOR
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulate_copy_commit();
#endif
}

template <int groups> __device__ inline void copy_wait() {
#ifndef PIPESIM_EMULATOR
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#else
    emulate_copy_wait(groups);
#endif
}
