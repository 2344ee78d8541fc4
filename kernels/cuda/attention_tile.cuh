#include "common.cuh"
// Tiles of bfloat16 in shared memory and their products on tensor cores, for attention_tensor.cuh.
//
// A block takes 64 BANDS rows, each of its four warps BANDS bands of 16 neighbouring rows, and passes over tiles of 64
// rows of the other kind. Tiles lie in rows of the head's size rounded up to 32 (SIZE, filled with zeros), plus 8 so
// that the rows of a matrix lie in different banks. What a warp reads of shared memory as a right operand serves all its
// bands: with two bands it reads half as much per product, and with more registers fewer warps are at work.
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

// Copies 64 BANDS rows as load_tile does; the copy is under way until copy_wait().
template <int SIZE, int BANDS = 1>
__device__ inline void copy_tile(bf16* tile, const bf16* source, size_t source_stride, int first, int rows, int size) {
    constexpr int GROUPS = SIZE == 96 ? 16 : SIZE / ELEMENTS; // of a row, rounded up to a power of two
    constexpr int ROWS = TILE_THREADS / GROUPS;               // that the block copies at a time
    if (is_aligned(source)) {
        const int start = threadIdx.x / GROUPS, column = threadIdx.x % GROUPS * ELEMENTS;
        const int end = column < size ? rows - first : 0; // of the rows that are copied
        bf16* target = tile + start * TensorTile<SIZE>::STRIDE + column;
        const bf16* from = source + size_t(first + start) * source_stride + column;
#pragma unroll 1
        for (int row = start; row < TILE * BANDS; row += ROWS) {
            if (SIZE != 96 || column < SIZE) {
                copy_async(target, row < end ? from : source, row < end);
            }
            target += ROWS * TensorTile<SIZE>::STRIDE;
            from += ROWS * source_stride;
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < TILE * BANDS * SIZE; i += TILE_THREADS) {
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

template <int BANDS, int COUNT> __device__ inline void clear(float (&sums)[BANDS][COUNT][4]) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            sums[band][n][0] = sums[band][n][1] = sums[band][n][2] = sums[band][n][3] = 0.0f;
        }
    }
}

// The first row of one of the warp's bands, within the block's rows.
template <int BANDS> __device__ inline int band_start(int band) { return (threadIdx.x / WARP * BANDS + band) * 16; }

// products = the warp's rows of the left tile times rows first.. of the right one, eight a product.
template <int SIZE, int BANDS, int COUNT>
__device__ inline void multiply_rows(float (&products)[BANDS][COUNT][4], const bf16* left, const bf16* right,
                                     int first) {
    clear(products);
#pragma unroll
    for (int step = 0; step < TensorTile<SIZE>::STEPS; step++) {
        unsigned a[BANDS][4];
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
            load_left<SIZE>(a[band], left, band_start<BANDS>(band), step);
        }
#pragma unroll
        for (int n = 0; n < COUNT; n += 2) {
            unsigned b[4];
            load_right<SIZE>(b, right, first + 8 * n, step);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                multiply_tile(products[band][n], a[band], b[0], b[1]);
                multiply_tile(products[band][n + 1], a[band], b[2], b[3]);
            }
        }
    }
}

// The warp's rows of a tile, to be kept in registers, and their products with all rows of the right tile.
template <int SIZE, int BANDS>
__device__ inline void load_rows(unsigned (&kept)[TensorTile<SIZE>::STEPS][BANDS][4], const bf16* left) {
#pragma unroll
    for (int step = 0; step < TensorTile<SIZE>::STEPS; step++) {
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
            load_left<SIZE>(kept[step][band], left, band_start<BANDS>(band), step);
        }
    }
}

template <int SIZE, int BANDS>
__device__ inline void multiply_kept_rows(float (&products)[BANDS][TILE_COLUMNS][4],
                                          const unsigned (&kept)[TensorTile<SIZE>::STEPS][BANDS][4],
                                          const bf16* right) {
    clear(products);
#pragma unroll
    for (int step = 0; step < TensorTile<SIZE>::STEPS; step++) {
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS; n += 2) {
            unsigned b[4];
            load_right<SIZE>(b, right, 8 * n, step);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                multiply_tile(products[band][n], kept[step][band], b[0], b[1]);
                multiply_tile(products[band][n + 1], kept[step][band], b[2], b[3]);
            }
        }
    }
}

// sums += weights, rounded to bfloat16, times rows first.. of a tile.
template <int SIZE, int BANDS, int COUNT>
__device__ inline void accumulate_rows(float (&sums)[BANDS][TensorTile<SIZE>::COLUMNS][4],
                                       const float (&weights)[BANDS][COUNT][4], const bf16* tile, int first) {
#pragma unroll
    for (int step = 0; step < COUNT / 2; step++) {
        unsigned a[BANDS][4];
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
            const float(&low)[4] = weights[band][2 * step];
            const float(&high)[4] = weights[band][2 * step + 1];
            a[band][0] = pack(low[0], low[1]), a[band][1] = pack(low[2], low[3]);
            a[band][2] = pack(high[0], high[1]), a[band][3] = pack(high[2], high[3]);
        }
#pragma unroll
        for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n += 2) {
            unsigned b[4];
            load_right_columns<SIZE>(b, tile, 8 * n, first / 16 + step);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                multiply_tile(sums[band][n], a[band], b[0], b[1]);
                multiply_tile(sums[band][n + 1], a[band], b[2], b[3]);
            }
        }
    }
}

// Row within the block's rows, and column within a tile, of element i of product n of a band.
template <int BANDS> __device__ inline int product_row(int band, int i) {
    return band_start<BANDS>(band) + threadIdx.x % WARP / 4 + i / 2 * 8;
}
__device__ inline int product_column(int n, int i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }

// Writes a result's rows first.., which lie `stride` apart, each half of a band times its factor.
template <int SIZE, int BANDS>
__device__ inline void store_rows(bf16* target, size_t stride,
                                  const float (&sums)[BANDS][TensorTile<SIZE>::COLUMNS][4],
                                  const float (&factors)[BANDS][2], int first, const Head& head) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n++) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int row = first + product_row<BANDS>(band, i), column = product_column(n, i);
                if (row < head.T && column < head.size) {
                    const float factor = factors[band][i / 2];
                    *(uint1*)(target + row * stride + column) =
                        uint1{pack(sums[band][n][i] * factor, sums[band][n][i + 1] * factor)};
                }
            }
        }
    }
}

template <int SIZE, int BANDS>
__device__ inline void store_scaled(bf16* target, size_t stride,
                                    const float (&sums)[BANDS][TensorTile<SIZE>::COLUMNS][4], float factor, int first,
                                    const Head& head) {
    float factors[BANDS][2];
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
        factors[band][0] = factors[band][1] = factor;
    }
    store_rows<SIZE>(target, stride, sums, factors, first, head);
}
#endif
