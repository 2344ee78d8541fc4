#include "common.cuh"
// The same attention on tensor cores, for bfloat16 and heads whose size is a multiple of 16.
//
// A block takes a tile of 64 rows, each of its four warps 16 of them. Tiles lie in shared memory as bfloat16, in rows
// of the head's size rounded up to 32 (SIZE, filled with zeros), plus 8 so that the rows of a matrix lie in different
// banks. The tile that comes next is copied while this one is worked on. Scores and sums stay in registers: the layout
// of a product is that of the left operand of the next (see multiply_tile), so that weights never pass through shared
// memory.
#pragma once
#include "attention_scalar.cuh"

#ifdef PIPESIM_BF16

constexpr int TILE_COLUMNS = TILE / 8; // products of a row of tiles

template <int SIZE> struct TensorTile {
    static constexpr int STRIDE = SIZE + 8;
    static constexpr int AREA = TILE * STRIDE;
    static constexpr int STEPS = SIZE / 16;    // of the sum over the head's size
    static constexpr int COLUMNS = SIZE / 8;   // products of a row of results
};

// Copies a tile as load_tile does; the copy is under way until copy_wait().
template <int SIZE>
__device__ inline void copy_tile(bf16* tile, const bf16* source, size_t source_stride, int first, int rows, int size) {
    constexpr int GROUPS = SIZE == 96 ? 16 : SIZE / ELEMENTS; // of a row, rounded up to a power of two
    constexpr int ROWS = TILE_THREADS / GROUPS;               // that the block copies at a time
    if (is_aligned(source)) {
        const int start = threadIdx.x / GROUPS, column = threadIdx.x % GROUPS * ELEMENTS;
        const int end = column < size ? rows - first : 0; // of the rows that are copied
        bf16* target = tile + start * TensorTile<SIZE>::STRIDE + column;
        const bf16* from = source + size_t(first + start) * source_stride + column;
#pragma unroll 1
        for (int row = start; row < TILE; row += ROWS) {
            if (SIZE != 96 || column < SIZE) {
                copy_async(target, row < end ? from : source, row < end);
            }
            target += ROWS * TensorTile<SIZE>::STRIDE;
            from += ROWS * source_stride;
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < TILE * SIZE; i += TILE_THREADS) {
            const int row = i / SIZE, column = i % SIZE;
            const bool inside = first + row < rows && column < size;
            tile[row * TensorTile<SIZE>::STRIDE + column] =
                inside ? source[size_t(first + row) * source_stride + column] : bf16{0};
        }
    }
}

// The left operand of a product: rows first.. (16) and columns 16 step.. of a tile.
template <int SIZE> __device__ inline void load_left(unsigned (&a)[4], const bf16* tile, int first, int step) {
    const int lane = threadIdx.x % WARP;
    load_matrices<false>(a, tile + (first + lane % 16) * TensorTile<SIZE>::STRIDE + 16 * step + lane / 16 * 8);
}

// The right operands of two products whose columns are rows first.. and first + 8.. of a tile: b[0..2] and b[2..4].
template <int SIZE> __device__ inline void load_right(unsigned (&b)[4], const bf16* tile, int first, int step) {
    const int lane = threadIdx.x % WARP;
    const int row = first + lane / 16 * 8 + lane % 8, column = 16 * step + lane / 8 % 2 * 8;
    load_matrices<false>(b, tile + row * TensorTile<SIZE>::STRIDE + column);
}

// The right operands of two products whose columns are columns first.. and first + 8.. of a tile, summed over rows 16
// step...
template <int SIZE> __device__ inline void load_right_columns(unsigned (&b)[4], const bf16* tile, int first, int step) {
    const int lane = threadIdx.x % WARP;
    load_matrices<true>(b, tile + (16 * step + lane % 16) * TensorTile<SIZE>::STRIDE + first + lane / 16 * 8);
}

template <int COUNT> __device__ inline void clear(float (&sums)[COUNT][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
    }
}

// products = the warp's 16 rows of the left tile times rows first.. of the right one, eight a product.
template <int SIZE, int COUNT>
__device__ inline void multiply_rows(float (&products)[COUNT][4], const bf16* left, const bf16* right, int first) {
    clear(products);
#pragma unroll
    for (int step = 0; step < TensorTile<SIZE>::STEPS; step++) {
        unsigned a[4];
        load_left<SIZE>(a, left, threadIdx.x / WARP * 16, step);
#pragma unroll
        for (int n = 0; n < COUNT; n += 2) {
            unsigned b[4];
            load_right<SIZE>(b, right, first + 8 * n, step);
            multiply_tile(products[n], a, b[0], b[1]);
            multiply_tile(products[n + 1], a, b[2], b[3]);
        }
    }
}

// sums += weights, rounded to bfloat16, times rows first.. of a tile.
template <int SIZE, int COUNT>
__device__ inline void accumulate_rows(float (&sums)[TensorTile<SIZE>::COLUMNS][4], const float (&weights)[COUNT][4],
                                       const bf16* tile, int first) {
#pragma unroll
    for (int step = 0; step < COUNT / 2; step++) {
        const float(&low)[4] = weights[2 * step];
        const float(&high)[4] = weights[2 * step + 1];
        const unsigned a[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
                               pack(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n += 2) {
            unsigned b[4];
            load_right_columns<SIZE>(b, tile, 8 * n, first / 16 + step);
            multiply_tile(sums[n], a, b[0], b[1]);
            multiply_tile(sums[n + 1], a, b[2], b[3]);
        }
    }
}

// Row and column within a tile of element i of product n.
__device__ inline int product_row(int i) { return threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + i / 2 * 8; }
__device__ inline int product_column(int n, int i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }

// Writes a result's rows first.., which lie `stride` apart: those of the upper half of the warp's rows times `upper`.
template <int SIZE>
__device__ inline void store_rows(bf16* target, size_t stride, const float (&sums)[TensorTile<SIZE>::COLUMNS][4],
                                  float upper, float lower, int first, const Head& head) {
#pragma unroll
    for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int row = first + product_row(i), column = product_column(n, i);
            if (row < head.T && column < head.size) {
                const float factor = i == 0 ? upper : lower;
                *(uint1*)(target + row * stride + column) = uint1{pack(sums[n][i] * factor, sums[n][i + 1] * factor)};
            }
        }
    }
}

template <int SIZE>
__device__ inline void tensor_forward(bf16* out, float* log_sums, const bf16* qkv, const Head& head,
                                      unsigned char* shared) {
    constexpr int ALL = TensorTile<SIZE>::AREA;
    bf16* const queries = (bf16*)shared;
    bf16* const pairs = queries + ALL; // two times keys and values
    const bf16* source = qkv + head.projection;
    const size_t stride = 3 * head.C;
    const int first = head.tile * TILE;
    const float scale = head.scale * LOG2_E;
    copy_tile<SIZE>(queries, source, stride, first, head.T, head.size);
    copy_tile<SIZE>(pairs, source + head.C, stride, 0, head.T, head.size);
    copy_tile<SIZE>(pairs + ALL, source + 2 * head.C, stride, 0, head.T, head.size);
    copy_commit();
    float sums[TensorTile<SIZE>::COLUMNS][4];
    clear(sums);
    float largest[2] = {-INFINITE, -INFINITE}, totals[2] = {0.0f, 0.0f};
    for (int tile = 0; tile <= head.tile; tile++) {
        const bf16* const keys = pairs + tile % 2 * 2 * ALL;
        const bf16* const values = keys + ALL;
        if (tile < head.tile) {
            bf16* const next = pairs + (tile + 1) % 2 * 2 * ALL;
            copy_tile<SIZE>(next, source + head.C, stride, (tile + 1) * TILE, head.T, head.size);
            copy_tile<SIZE>(next + ALL, source + 2 * head.C, stride, (tile + 1) * TILE, head.T, head.size);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float scores[TILE_COLUMNS][4];
        multiply_rows<SIZE>(scores, queries, keys, 0);
        if (tile == head.tile) {
#pragma unroll
            for (int n = 0; n < TILE_COLUMNS; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[n][i] = product_column(n, i) <= product_row(i) ? scores[n][i] : -INFINITE;
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITE;
#pragma unroll
            for (int n = 0; n < TILE_COLUMNS; n++) {
                most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            }
            most = fmaxf(largest[half], warp_max<4>(most) * scale);
            const float shrink = power_of_two(largest[half] - most);
            largest[half] = most;
            totals[half] *= shrink;
#pragma unroll
            for (int n = 0; n < TILE_COLUMNS; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    scores[n][i] = power_of_two(scores[n][i] * scale - most);
                    totals[half] += scores[n][i];
                }
            }
#pragma unroll
            for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n++) {
                sums[n][2 * half] *= shrink, sums[n][2 * half + 1] *= shrink;
            }
        }
        accumulate_rows<SIZE>(sums, scores, values, 0);
        __syncthreads(); // before these keys and values are overwritten
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        totals[half] = warp_sum<4>(totals[half]);
        const int query = first + product_row(2 * half);
        if (threadIdx.x % 4 == 0 && query < head.T) {
            log_sums[head.row + query] = (largest[half] + log2f(totals[half])) * LN_2;
        }
    }
    store_rows<SIZE>(out + head.output, head.C, sums, 1.0f / totals[0], 1.0f / totals[1], first, head);
}

// The number of column (n, i) of a part of a tile, of numbers that lie in pairs.
__device__ inline float of_column(const float2* numbers, int part, int n, int i) {
    const float2 pair = numbers[(part + product_column(n, 0)) / 2];
    return i % 2 == 0 ? pair.x : pair.y;
}

// Queries' tile, gradients' tile, and of each query its log-sum and its mean: all 0 beyond the last query, whose gradient
// is 0, too. The copies are under way until copy_wait(), if whole groups of four numbers lie at multiples of 16 bytes.
template <int SIZE>
__device__ inline void copy_queries(bf16* target, float2* pairs, const AttentionOperands& operands, int tile,
                                    const Head& head) {
    copy_tile<SIZE>(target, operands.qkv + head.projection, 3 * head.C, tile * TILE, head.T, head.size);
    copy_tile<SIZE>(target + TensorTile<SIZE>::AREA, operands.gradient + head.output, head.C, tile * TILE, head.T,
                    head.size);
    constexpr int GROUPS = TILE / 4; // of four numbers: of the log-sums, then of the means
    float* const numbers = (float*)pairs;
    const float* const sources[2] = {operands.log_sums + head.row, operands.means + head.row};
    if (head.T % 4 == 0 && is_aligned(sources[0]) && is_aligned(sources[1])) {
        const int query = tile * TILE + threadIdx.x % GROUPS * 4;
        const float* const source = threadIdx.x < GROUPS ? sources[0] : sources[1];
        if (threadIdx.x < 2 * GROUPS) {
            copy_async(numbers + threadIdx.x * 4, query < head.T ? source + query : source, query < head.T);
        }
    } else if (threadIdx.x < TILE) {
        const int query = tile * TILE + threadIdx.x;
        numbers[threadIdx.x] = query < head.T ? sources[0][query] : 0.0f;
        numbers[TILE + threadIdx.x] = query < head.T ? sources[1][query] : 0.0f;
    }
}

// Rows are keys, columns queries, as in scalar_backward_keys; large heads take half a tile of queries at a time, so
// that all sums fit into registers.
template <int SIZE>
__device__ inline void tensor_backward_keys(bf16* qkv_gradient, const AttentionOperands& operands, const Head& head,
                                            unsigned char* shared, float2* numbers) {
    constexpr int ALL = TensorTile<SIZE>::AREA;
    constexpr int COUNT = SIZE > 64 ? TILE_COLUMNS / 2 : TILE_COLUMNS;
    bf16* const keys = (bf16*)shared;
    bf16* const values = keys + ALL;
    bf16* const pairs = values + ALL; // two times queries and gradients
    const bf16* source = operands.qkv + head.projection;
    const int first = head.tile * TILE;
    const float scale = head.scale * LOG2_E;
    copy_tile<SIZE>(keys, source + head.C, 3 * head.C, first, head.T, head.size);
    copy_tile<SIZE>(values, source + 2 * head.C, 3 * head.C, first, head.T, head.size);
    const int start = first_queries(head);
    copy_queries<SIZE>(pairs + start % 2 * 2 * ALL, numbers + start % 2 * TILE, operands, start, head);
    copy_commit();
    float key_sums[TensorTile<SIZE>::COLUMNS][4], value_sums[TensorTile<SIZE>::COLUMNS][4];
    clear(key_sums);
    clear(value_sums);
    for (int tile = start; tile < tiles_of(head); tile++) {
        const bf16* const queries = pairs + tile % 2 * 2 * ALL;
        const bf16* const gradients = queries + ALL;
        const float2* const log_sums = numbers + tile % 2 * TILE;
        const float2* const means = log_sums + TILE / 2;
        if (tile + 1 < tiles_of(head)) {
            const int next = (tile + 1) % 2;
            copy_queries<SIZE>(pairs + next * 2 * ALL, numbers + next * TILE, operands, tile + 1, head);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int part = 0; part < TILE; part += 8 * COUNT) {
            float weights[COUNT][4], slopes[COUNT][4];
            multiply_rows<SIZE>(weights, keys, queries, part);
#pragma unroll
            for (int n = 0; n < COUNT; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    weights[n][i] = power_of_two(weights[n][i] * scale - of_column(log_sums, part, n, i) * LOG2_E);
                }
            }
            if (tile == head.tile) {
#pragma unroll
                for (int n = 0; n < COUNT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        weights[n][i] = product_row(i) <= part + product_column(n, i) ? weights[n][i] : 0.0f;
                    }
                }
            }
            accumulate_rows<SIZE>(value_sums, weights, gradients, part);
            multiply_rows<SIZE>(slopes, values, gradients, part);
#pragma unroll
            for (int n = 0; n < COUNT; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    slopes[n][i] = weights[n][i] * (slopes[n][i] - of_column(means, part, n, i));
                }
            }
            accumulate_rows<SIZE>(key_sums, slopes, queries, part);
        }
        __syncthreads(); // before these queries are overwritten
    }
    bf16* target = qkv_gradient + head.projection;
    store_rows<SIZE>(target + head.C, 3 * head.C, key_sums, head.scale, head.scale, first, head);
    store_rows<SIZE>(target + 2 * head.C, 3 * head.C, value_sums, 1.0f, 1.0f, first, head);
}

// Rows are queries, columns keys, as in scalar_backward_queries.
template <int SIZE>
__device__ inline void tensor_backward_queries(bf16* qkv_gradient, const AttentionOperands& operands, const Head& head,
                                               unsigned char* shared) {
    constexpr int ALL = TensorTile<SIZE>::AREA;
    constexpr int COUNT = SIZE > 64 ? TILE_COLUMNS / 2 : TILE_COLUMNS;
    bf16* const queries = (bf16*)shared;
    bf16* const gradients = queries + ALL;
    bf16* const pairs = gradients + ALL; // two times keys and values
    const bf16* source = operands.qkv + head.projection;
    const size_t stride = 3 * head.C;
    const int first = head.tile * TILE;
    const float scale = head.scale * LOG2_E;
    copy_tile<SIZE>(queries, source, stride, first, head.T, head.size);
    copy_tile<SIZE>(gradients, operands.gradient + head.output, head.C, first, head.T, head.size);
    copy_tile<SIZE>(pairs, source + head.C, stride, 0, head.T, head.size);
    copy_tile<SIZE>(pairs + ALL, source + 2 * head.C, stride, 0, head.T, head.size);
    copy_commit();
    float sums[TensorTile<SIZE>::COLUMNS][4];
    clear(sums);
    float log_sums[2], means[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = first + product_row(2 * half);
        log_sums[half] = query < head.T ? operands.log_sums[head.row + query] * LOG2_E : INFINITE;
        means[half] = query < head.T ? operands.means[head.row + query] : 0.0f;
    }
    for (int tile = 0; tile <= head.tile; tile++) {
        const bf16* const keys = pairs + tile % 2 * 2 * ALL;
        const bf16* const values = keys + ALL;
        if (tile < head.tile) {
            bf16* const next = pairs + (tile + 1) % 2 * 2 * ALL;
            copy_tile<SIZE>(next, source + head.C, stride, (tile + 1) * TILE, head.T, head.size);
            copy_tile<SIZE>(next + ALL, source + 2 * head.C, stride, (tile + 1) * TILE, head.T, head.size);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int part = 0; part < TILE; part += 8 * COUNT) {
            float weights[COUNT][4], slopes[COUNT][4];
            multiply_rows<SIZE>(weights, queries, keys, part);
            multiply_rows<SIZE>(slopes, gradients, values, part);
#pragma unroll
            for (int n = 0; n < COUNT; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float weight = power_of_two(weights[n][i] * scale - log_sums[i / 2]);
                    slopes[n][i] = weight * (slopes[n][i] - means[i / 2]);
                }
            }
            if (tile == head.tile) {
#pragma unroll
                for (int n = 0; n < COUNT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        slopes[n][i] = part + product_column(n, i) <= product_row(i) ? slopes[n][i] : 0.0f;
                    }
                }
            }
            accumulate_rows<SIZE>(sums, slopes, keys, part);
        }
        __syncthreads(); // before these keys and values are overwritten
    }
    store_rows<SIZE>(qkv_gradient + head.projection, stride, sums, head.scale, head.scale, first, head);
}
#endif
