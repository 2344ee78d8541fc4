#include "common.cuh"
#include "attention_scalar.cuh"
#include "attention_tile.cuh"
#include "attention_tensor.cuh"
// Causal self-attention on the fused projection qkv[B, T, 3C], C = NH HS: softmax(q k^T / sqrt(HS)) v, of each head.
// The forward keeps one number a row, log_sums[B, NH, T] = log sum exp(scores), and the backward recomputes the
// weights. HS is at most 128. bfloat16 runs on tensor cores where HS is a multiple of 16. Results start at multiples of
// 16 bytes; whatever else may start anywhere, but is read faster from there.
//
// Queries may be those of a slice: the rows from `first` on. Tiles of queries that end before it are left out, and what
// belongs to their rows is neither read nor written. Rows before `first` in its own tile are: their queries, gradients,
// log-sums and means must be 0, so that they add nothing to the gradients of keys and values.

// A program that defines PIPESIM_HEAD_SIZE runs with heads of this size only: a kernel then contains one path, and takes
// the registers of that path instead of the largest.
#ifdef PIPESIM_HEAD_SIZE
#define HEAD_SIZE(HS) PIPESIM_HEAD_SIZE
constexpr bool NARROW = TENSOR_CORES && PIPESIM_HEAD_SIZE % 16 == 0 && PIPESIM_HEAD_SIZE <= 64;
#else
#define HEAD_SIZE(HS) HS
constexpr bool NARROW = false;
#endif
constexpr int FORWARD_BLOCKS = NARROW ? 4 : 3; // on a multiprocessor
constexpr int BACKWARD_BLOCKS = NARROW ? 3 : 2;

// Calls `run<SIZE>` of the path that the precision and the size of the heads choose.
#ifdef PIPESIM_BF16
#define CHOOSE_PATH(HS, scalar, tensor) \
    if (HEAD_SIZE(HS) % 16 != 0) { scalar(0); } else if (HEAD_SIZE(HS) <= 32) { tensor(32); } \
    else if (HEAD_SIZE(HS) <= 64) { tensor(64); } else if (HEAD_SIZE(HS) <= 96) { tensor(96); } else { tensor(128); }
#else
#define CHOOSE_PATH(HS, scalar, tensor) if (HEAD_SIZE(HS) == 64) { scalar(64); } else { scalar(0); }
#endif

// out[B, T, C] and log_sums. One block a tile of 64 queries, the last tile first.
// launch: grid ((ceil(T / 64) - first / 64) * NH * B), block (128), shared bytes: src/cuda/kernel.rs
KERNEL(attention_forward, TILE_THREADS, FORWARD_BLOCKS)
(act* out, float* log_sums, const act* qkv, int B, int T, int first, int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, first, NH, HS, true);
#define SCALAR(SIZE) scalar_forward<SIZE>(out, log_sums, qkv, head, shared)
#define TENSOR(SIZE) tensor_forward<SIZE, 1>(out, log_sums, qkv, head, shared)
    CHOOSE_PATH(HS, SCALAR, TENSOR)
#undef SCALAR
#undef TENSOR
}

// means[B, NH, T] = the inner product of each row of a head of the output with its gradient. Eight lanes a row.
// launch: grid (ceil(B * T * NH / 16)), block (128)
KERNEL(attention_backward_mean, 128, 8)
(float* means, const act* gradient, const act* output, int B, int T, int NH, int HS) {
    const size_t rows = size_t(B) * T * NH, index = size_t(blockIdx.x) * 16 + threadIdx.x / 8;
    const size_t token = index / NH, head = index % NH;
    float sum = 0.0f;
    if (index < rows) {
        const act* const left = gradient + index * HS;
        const act* const right = output + index * HS;
        for (size_t start = threadIdx.x % 8 * ELEMENTS; start < HS; start += 8 * ELEMENTS) {
            float x[2][ELEMENTS];
            load_together(x, {left, right}, start, HS);
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                sum += x[0][i] * x[1][i];
            }
        }
    }
    sum = warp_sum<8>(sum);
    if (index < rows && threadIdx.x % 8 == 0) {
        means[(token / T * NH + head) * T + token % T] = sum;
    }
}

// The thirds of keys and values of qkv_gradient[B, T, 3C], from gradient[B, T, C] of the output. One block a tile of 64
// keys, the first tile first.
// launch: grid (ceil(T / 64) * NH * B), block (128), shared bytes: src/cuda/kernel.rs
KERNEL(attention_backward_keys, TILE_THREADS, BACKWARD_BLOCKS)
(act* qkv_gradient, const act* gradient, const act* qkv, const float* log_sums, const float* means, int B, int T,
 int first, int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, first, NH, HS, false);
    const AttentionOperands operands = {gradient, qkv, log_sums, means};
#ifdef PIPESIM_BF16
    SHARED(float4, numbers, TILE); // as float4, so that copies of 16 bytes may start at its beginning
#endif
#define SCALAR(SIZE) scalar_backward_keys<SIZE>(qkv_gradient, operands, head, shared)
#define TENSOR(SIZE) tensor_backward_keys<SIZE, 1>(qkv_gradient, operands, head, shared, (float2*)numbers)
    CHOOSE_PATH(HS, SCALAR, TENSOR)
#undef SCALAR
#undef TENSOR
}

// The third of queries of qkv_gradient. One block a tile of 64 queries, the last tile first.
// launch: grid as attention_forward, block (128), shared bytes: src/cuda/kernel.rs
KERNEL(attention_backward_queries, TILE_THREADS, BACKWARD_BLOCKS)
(act* qkv_gradient, const act* gradient, const act* qkv, const float* log_sums, const float* means, int B, int T,
 int first, int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, first, NH, HS, true);
    const AttentionOperands operands = {gradient, qkv, log_sums, means};
#define SCALAR(SIZE) scalar_backward_queries<SIZE>(qkv_gradient, operands, head, shared)
#define TENSOR(SIZE) tensor_backward_queries<SIZE, 1>(qkv_gradient, operands, head, shared)
    CHOOSE_PATH(HS, SCALAR, TENSOR)
#undef SCALAR
#undef TENSOR
}

// The same with two bands a warp, so with tiles of 128 queries, or keys, for bfloat16 and heads of at most 64 channels
// whose size is a multiple of 16, from the first query on: same operands, same bits. No other sizes may be launched.
// launch: grid (ceil(T / 128) * NH * B), block (128), shared bytes: src/cuda/kernel.rs
#ifdef PIPESIM_BF16
#define WIDE(HS, tensor) if (HEAD_SIZE(HS) <= 32) { tensor(32); } else if (HEAD_SIZE(HS) <= 64) { tensor(64); }
#else
#define WIDE(HS, tensor)
#endif
constexpr int WIDE_BANDS = 2;
constexpr int WIDE_BLOCKS = 2; // on a multiprocessor

KERNEL(attention_forward_wide, TILE_THREADS, WIDE_BLOCKS)
(act* out, float* log_sums, const act* qkv, int B, int T, int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, 0, NH, HS, true, WIDE_BANDS * TILE);
#define TENSOR(SIZE) tensor_forward<SIZE, WIDE_BANDS>(out, log_sums, qkv, head, shared)
    WIDE(HS, TENSOR)
#undef TENSOR
}

KERNEL(attention_backward_keys_wide, TILE_THREADS, WIDE_BLOCKS)
(act* qkv_gradient, const act* gradient, const act* qkv, const float* log_sums, const float* means, int B, int T,
 int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, 0, NH, HS, false, WIDE_BANDS * TILE);
    const AttentionOperands operands = {gradient, qkv, log_sums, means};
#ifdef PIPESIM_BF16
    SHARED(float4, numbers, TILE);
#endif
#define TENSOR(SIZE) \
    tensor_backward_keys<SIZE, WIDE_BANDS>(qkv_gradient, operands, head, shared, (float2*)numbers)
    WIDE(HS, TENSOR)
#undef TENSOR
}

KERNEL(attention_backward_queries_wide, TILE_THREADS, WIDE_BLOCKS)
(act* qkv_gradient, const act* gradient, const act* qkv, const float* log_sums, const float* means, int B, int T,
 int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, 0, NH, HS, true, WIDE_BANDS * TILE);
    const AttentionOperands operands = {gradient, qkv, log_sums, means};
#define TENSOR(SIZE) tensor_backward_queries<SIZE, WIDE_BANDS>(qkv_gradient, operands, head, shared)
    WIDE(HS, TENSOR)
#undef TENSOR
}

// The same bits by five products instead of seven: the first also stores slopes[B, NH, pairs, 64, 64], of which the second
// computes the gradients of queries by one product. There are tiles (tiles + 1) / 2 pairs, tiles = ceil(T / 64).
// launch: grid as attention_backward_keys_wide, block (128), shared bytes: src/cuda/kernel.rs
KERNEL(attention_backward_keys_stored, TILE_THREADS, WIDE_BLOCKS)
(act* qkv_gradient, act* slopes, const act* gradient, const act* qkv, const float* log_sums, const float* means, int B,
 int T, int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, 0, NH, HS, false, WIDE_BANDS * TILE);
    const AttentionOperands operands = {gradient, qkv, log_sums, means};
#ifdef PIPESIM_BF16
    SHARED(float4, numbers, TILE);
#endif
#define TENSOR(SIZE) \
    tensor_backward_keys<SIZE, WIDE_BANDS, true>(qkv_gradient, operands, head, shared, (float2*)numbers, slopes)
    WIDE(HS, TENSOR)
#undef TENSOR
}

// launch: grid (ceil(T / 64) * NH * B), block (128), shared bytes: src/cuda/kernel.rs
KERNEL(attention_backward_queries_stored, TILE_THREADS, 4)
(act* qkv_gradient, const act* slopes, const act* qkv, int B, int T, int NH, int HS) {
    DYNAMIC_SHARED(shared);
    const Head head = head_of_block(T, 0, NH, HS, true);
#define TENSOR(SIZE) tensor_backward_stored<SIZE>(qkv_gradient, slopes, qkv, head, shared)
    WIDE(HS, TENSOR)
#undef TENSOR
}
