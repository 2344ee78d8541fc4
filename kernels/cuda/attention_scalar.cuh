#include "common.cuh"
// Causal flash attention (Dao et al., arXiv 2205.14135) on CUDA cores, in float32: for any size of the heads up to 128.
//
// A block of four warps takes a tile of 64 rows of one head (queries, or keys in the backward for keys and values) and
// passes over the tiles of the other kind that causality leaves. A warp has 16 of the rows; of a tile of products (64,
// 64) a thread holds rows row_of(i) and columns column_of(j), four by eight. Tiles lie in shared memory, in rows of the
// head's size rounded up to 4, plus 4 so that neighbouring rows lie in other banks.
#pragma once

constexpr int TILE = 64;
constexpr int TILE_THREADS = 128;

// Where the rows of one head of one sequence lie, and how large all is. C = NH HS.
struct Head {
    int T, size, tile;  // tokens, size of the head, this block's tile of rows
    int start;          // the first tile of queries; those before it are left out
    size_t C;
    size_t projection;  // of the first query in qkv[B, T, 3C]; its key comes C later, its value 2C
    size_t output;      // of the first row in the output[B, T, C]
    size_t row;         // in log_sums[B, NH, T] and means[B, NH, T]
    float scale;        // 1 / sqrt(HS)
};

// The head and the tile of `rows` of block blockIdx.x. Tiles are those of all keys, or, if `of_queries`, those of the
// queries from the tile of row `first` on, in descending order: blocks with most work come first.
__device__ inline Head head_of_block(int T, int first, int NH, int HS, bool of_queries, int rows = TILE) {
    const unsigned all = (unsigned(T) + rows - 1) / rows, start = unsigned(first) / rows;
    const unsigned tiles = of_queries ? all - start : all;
    const unsigned tile = blockIdx.x % tiles, index = blockIdx.x / tiles;
    const size_t sequence = index / NH, head = index % NH, C = size_t(NH) * HS;
    return Head{T, HS, int(of_queries ? all - 1 - tile : tile), int(start), C, sequence * T * 3 * C + head * HS,
                sequence * T * C + head * HS, size_t(index) * T, 1.0f / sqrtf(float(HS))};
}

__device__ inline int tiles_of(const Head& head) { return (head.T + TILE - 1) / TILE; }

// The first tile of queries that see a tile of keys.
__device__ inline int first_queries(const Head& head) { return head.tile > head.start ? head.tile : head.start; }

// Elements from one row of a tile in shared memory to the next.
__device__ inline int tile_stride(int size) { return (size + 3) / 4 * 4 + 4; }
constexpr int WEIGHTS_STRIDE = TILE + 4;

__device__ inline int row_of(int i) { return threadIdx.x / WARP * 16 + threadIdx.x % WARP / 8 + 4 * i; }
__device__ inline int column_of(int j) { return threadIdx.x % 8 + 8 * j; }

// Copies rows first.. of a matrix whose rows lie `source_stride` apart into a tile; zeros fill it beyond row `rows` of
// the matrix and up to a multiple of four columns.
__device__ inline void load_tile(float* tile, const act* source, size_t source_stride, int first, int rows, int size) {
    const int stride = tile_stride(size);
    if (size % ELEMENTS == 0 && source_stride % ELEMENTS == 0 && is_aligned(source)) {
        const int groups = size / ELEMENTS;
        for (int i = threadIdx.x; i < TILE * groups; i += TILE_THREADS) {
            const int row = i / groups, column = i % groups * ELEMENTS;
            float values[ELEMENTS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            if (first + row < rows) {
                load_vector(values, source + size_t(first + row) * source_stride + column);
            }
            store_vector(tile + row * stride + column, values);
        }
    } else {
        const int columns = stride - 4;
        for (int i = threadIdx.x; i < TILE * columns; i += TILE_THREADS) {
            const int row = i / columns, column = i % columns;
            const bool inside = first + row < rows && column < size;
            tile[row * stride + column] =
                inside ? to_float(source[size_t(first + row) * source_stride + column]) : 0.0f;
        }
    }
}

// products[i][j] = left row row_of(i) times right row column_of(j). SIZE is the head's size, or 0 where it is not
// known.
template <int SIZE>
__device__ inline void multiply_rows(float (&products)[4][8], const float* left, const float* right, int size) {
    const int stride = tile_stride(SIZE ? SIZE : size), columns = stride - 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            products[i][j] = 0.0f;
        }
    }
#pragma unroll 1
    for (int k = 0; k < columns; k += 4) {
        float4 a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] = *(const float4*)(left + row_of(i) * stride + k);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float4 b = *(const float4*)(right + column_of(j) * stride + k);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                products[i][j] += a[i].x * b.x;
                products[i][j] += a[i].y * b.y;
                products[i][j] += a[i].z * b.z;
                products[i][j] += a[i].w * b.w;
            }
        }
    }
}

// Four columns of a result, of which a thread holds CHUNKS for each of its rows: columns chunk_of(n) * 4...
template <int SIZE> struct Chunks {
    static constexpr int COUNT = (SIZE ? SIZE : 128) / 32;
};
__device__ inline int chunk_of(int n) { return threadIdx.x % 8 + 8 * n; }

// sums[i][n] += weights row row_of(i) times the columns of chunk n of the values. Only rows of the own warp are read.
template <int SIZE>
__device__ inline void accumulate_rows(float4 (&sums)[4][Chunks<SIZE>::COUNT], const float* weights,
                                       const float* values, int size) {
    const int stride = tile_stride(SIZE ? SIZE : size);
#pragma unroll 1
    for (int k = 0; k < TILE; k += 4) {
        float4 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = *(const float4*)(weights + row_of(i) * WEIGHTS_STRIDE + k);
        }
#pragma unroll
        for (int n = 0; n < Chunks<SIZE>::COUNT; n++) {
            if (SIZE || chunk_of(n) * 4 < size) {
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    const float4 v = *(const float4*)(values + (k + step) * stride + chunk_of(n) * 4);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float factor = step == 0 ? w[i].x : step == 1 ? w[i].y : step == 2 ? w[i].z : w[i].w;
                        sums[i][n].x += factor * v.x;
                        sums[i][n].y += factor * v.y;
                        sums[i][n].z += factor * v.z;
                        sums[i][n].w += factor * v.w;
                    }
                }
            }
        }
    }
}

template <int COUNT> __device__ inline void clear(float4 (&sums)[4][COUNT]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            sums[i][n] = float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
}

// Writes the rows first.. of a result whose rows lie `stride` apart, times factors[i], up to row `rows`.
template <int COUNT>
__device__ inline void store_rows(act* target, size_t stride, const float4 (&sums)[4][COUNT], const float (&factors)[4],
                                  int first, const Head& head) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + row_of(i);
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const float values[4] = {sums[i][n].x, sums[i][n].y, sums[i][n].z, sums[i][n].w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int column = chunk_of(n) * 4 + k;
                if (row < head.T && column < head.size) {
                    target[row * stride + column] = to_act(values[k] * factors[i]);
                }
            }
        }
    }
}

__device__ inline void store_weights(float* weights, const float (&values)[4][8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            weights[row_of(i) * WEIGHTS_STRIDE + column_of(j)] = values[i][j];
        }
    }
}

// Each query keeps the largest score so far, in powers of two, and the sum of 2^(score - largest).
template <int SIZE>
__device__ inline void scalar_forward(act* out, float* log_sums, const act* qkv, const Head& head,
                                      unsigned char* shared) {
    const int tile_elements = TILE * tile_stride(SIZE ? SIZE : head.size);
    float* const queries = (float*)shared;
    float* const keys = queries + tile_elements;
    float* const values = keys + tile_elements;
    float* const weights = values + tile_elements;
    const act* source = qkv + head.projection;
    const int first = head.tile * TILE;
    const float scale = head.scale * LOG2_E;
    load_tile(queries, source, 3 * head.C, first, head.T, head.size);
    float4 sums[4][Chunks<SIZE>::COUNT];
    clear(sums);
    float largest[4] = {-INFINITE, -INFINITE, -INFINITE, -INFINITE}, totals[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int tile = 0; tile <= head.tile; tile++) {
        __syncthreads();
        load_tile(keys, source + head.C, 3 * head.C, tile * TILE, head.T, head.size);
        load_tile(values, source + 2 * head.C, 3 * head.C, tile * TILE, head.T, head.size);
        __syncthreads();
        float scores[4][8];
        multiply_rows<SIZE>(scores, queries, keys, head.size);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float most = largest[i];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const bool seen = tile < head.tile || column_of(j) <= row_of(i);
                scores[i][j] = seen ? scores[i][j] * scale : -INFINITE;
                most = fmaxf(most, scores[i][j]);
            }
            most = warp_max<8>(most);
            const float shrink = power_of_two(largest[i] - most);
            largest[i] = most;
            float total = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                scores[i][j] = power_of_two(scores[i][j] - most);
                total += scores[i][j];
            }
            totals[i] = totals[i] * shrink + warp_sum<8>(total);
#pragma unroll
            for (int n = 0; n < Chunks<SIZE>::COUNT; n++) {
                sums[i][n].x *= shrink, sums[i][n].y *= shrink, sums[i][n].z *= shrink, sums[i][n].w *= shrink;
            }
        }
        store_weights(weights, scores);
        __syncwarp();
        accumulate_rows<SIZE>(sums, weights, values, head.size);
    }
    float factors[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        factors[i] = 1.0f / totals[i];
        if (threadIdx.x % 8 == 0 && first + row_of(i) < head.T) {
            log_sums[head.row + first + row_of(i)] = (largest[i] + log2f(totals[i])) * LN_2;
        }
    }
    store_rows(out + head.output, head.C, sums, factors, first, head);
}

// What the backward kernels read: gradient[B, T, C] of the output, qkv[B, T, 3C], log_sums and means [B, NH, T].
struct AttentionOperands {
    const act* gradient;
    const act* qkv;
    const float* log_sums;
    const float* means;
};

// Rows are keys, columns queries: the weights' transpose times the output's gradient is the gradient of the values, and
// that of the scores, transposed, times the queries the gradient of the keys.
template <int SIZE>
__device__ inline void scalar_backward_keys(act* qkv_gradient, const AttentionOperands& operands, const Head& head,
                                            unsigned char* shared) {
    const int tile_elements = TILE * tile_stride(SIZE ? SIZE : head.size);
    float* const keys = (float*)shared;
    float* const values = keys + tile_elements;
    float* const queries = values + tile_elements;
    float* const gradients = queries + tile_elements;
    float* const weights = gradients + tile_elements;
    const act* source = operands.qkv + head.projection;
    const int first = head.tile * TILE;
    load_tile(keys, source + head.C, 3 * head.C, first, head.T, head.size);
    load_tile(values, source + 2 * head.C, 3 * head.C, first, head.T, head.size);
    float4 key_sums[4][Chunks<SIZE>::COUNT], value_sums[4][Chunks<SIZE>::COUNT];
    clear(key_sums);
    clear(value_sums);
    for (int tile = first_queries(head); tile < tiles_of(head); tile++) {
        __syncthreads();
        load_tile(queries, source, 3 * head.C, tile * TILE, head.T, head.size);
        load_tile(gradients, operands.gradient + head.output, head.C, tile * TILE, head.T, head.size);
        __syncthreads();
        float products[4][8];
        multiply_rows<SIZE>(products, keys, queries, head.size);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int query = tile * TILE + column_of(j);
            const float log_sum = query < head.T ? operands.log_sums[head.row + query] : INFINITE;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool seen = tile > head.tile || row_of(i) <= column_of(j);
                products[i][j] = seen ? power_of_two((products[i][j] * head.scale - log_sum) * LOG2_E) : 0.0f;
            }
        }
        store_weights(weights, products);
        __syncwarp();
        accumulate_rows<SIZE>(value_sums, weights, gradients, head.size);
        multiply_rows<SIZE>(products, values, gradients, head.size);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int query = tile * TILE + column_of(j);
            const float mean = query < head.T ? operands.means[head.row + query] : 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float* const weight = weights + row_of(i) * WEIGHTS_STRIDE + column_of(j);
                *weight *= products[i][j] - mean;
            }
        }
        __syncwarp();
        accumulate_rows<SIZE>(key_sums, weights, queries, head.size);
    }
    act* target = qkv_gradient + head.projection;
    const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f}, scales[4] = {head.scale, head.scale, head.scale, head.scale};
    store_rows(target + head.C, 3 * head.C, key_sums, scales, first, head);
    store_rows(target + 2 * head.C, 3 * head.C, value_sums, ones, first, head);
}

// Rows are queries, columns keys: the gradient of the scores times the keys is the gradient of the queries.
template <int SIZE>
__device__ inline void scalar_backward_queries(act* qkv_gradient, const AttentionOperands& operands, const Head& head,
                                               unsigned char* shared) {
    const int tile_elements = TILE * tile_stride(SIZE ? SIZE : head.size);
    float* const queries = (float*)shared;
    float* const gradients = queries + tile_elements;
    float* const keys = gradients + tile_elements;
    float* const values = keys + tile_elements;
    float* const weights = values + tile_elements;
    const act* source = operands.qkv + head.projection;
    const int first = head.tile * TILE;
    load_tile(queries, source, 3 * head.C, first, head.T, head.size);
    load_tile(gradients, operands.gradient + head.output, head.C, first, head.T, head.size);
    float4 sums[4][Chunks<SIZE>::COUNT];
    clear(sums);
    float log_sums[4], means[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int query = first + row_of(i);
        log_sums[i] = query < head.T ? operands.log_sums[head.row + query] : INFINITE;
        means[i] = query < head.T ? operands.means[head.row + query] : 0.0f;
    }
    for (int tile = 0; tile <= head.tile; tile++) {
        __syncthreads();
        load_tile(keys, source + head.C, 3 * head.C, tile * TILE, head.T, head.size);
        load_tile(values, source + 2 * head.C, 3 * head.C, tile * TILE, head.T, head.size);
        __syncthreads();
        float products[4][8], slopes[4][8];
        multiply_rows<SIZE>(products, queries, keys, head.size);
        multiply_rows<SIZE>(slopes, gradients, values, head.size);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const bool seen = tile < head.tile || column_of(j) <= row_of(i);
                const float weight = seen ? power_of_two((products[i][j] * head.scale - log_sums[i]) * LOG2_E) : 0.0f;
                slopes[i][j] = weight * (slopes[i][j] - means[i]);
            }
        }
        store_weights(weights, slopes);
        __syncwarp();
        accumulate_rows<SIZE>(sums, weights, keys, head.size);
    }
    const float scales[4] = {head.scale, head.scale, head.scale, head.scale};
    store_rows(qkv_gradient + head.projection, 3 * head.C, sums, scales, first, head);
}
