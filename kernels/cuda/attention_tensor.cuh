#include "common.cuh"
// The same attention on tensor cores, for bfloat16 and heads whose size is a multiple of 16.
//
// The tile that comes next is copied while this one is worked on. Scores and sums stay in registers: the layout of a
// product is that of the left operand of the next (see multiply_tile), so that weights never pass through shared memory.
// The order of every sum is the same for one band per warp and for two (see attention_tile.cuh), and so are the bits.
#pragma once
#include "attention_tile.cuh"

#ifdef PIPESIM_BF16

// Of a tile of keys and the warp's queries, in a block whose queries begin at `first`: whether any query sees any key, and
// whether some query does not see all keys. With one band a warp sees all of each tile but the block's last.
template <int BANDS> __device__ inline bool sees_keys(int first, int tile) {
    return BANDS == 1 || tile * TILE <= first + band_start<BANDS>(BANDS - 1) + 15;
}
template <int BANDS> __device__ inline bool is_cut_off(int first, int tile) {
    return tile * TILE + TILE - 1 > first + band_start<BANDS>(0);
}

// The last tile of keys that a block's queries see.
template <int BANDS> __device__ inline int last_keys(const Head& head) {
    const int last = head.tile * BANDS + BANDS - 1;
    return BANDS == 1 || last < tiles_of(head) ? last : tiles_of(head) - 1;
}

// One tile of keys of the forward: scores become weights, and what was summed so far is scaled to the largest score.
template <int SIZE, int BANDS>
__device__ inline void softmax_rows(float (&scores)[BANDS][TILE_COLUMNS][4],
                                    float (&sums)[BANDS][TensorTile<SIZE>::COLUMNS][4], float (&largest)[BANDS][2],
                                    float (&totals)[BANDS][2], float scale) {
#pragma unroll
    for (int row = 0; row < 2 * BANDS; row++) {
        const int band = row / 2, half = row % 2;
        float most = -INFINITE;
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS; n++) {
            most = fmaxf(most, fmaxf(scores[band][n][2 * half], scores[band][n][2 * half + 1]));
        }
        most = fmaxf(largest[band][half], warp_max<4>(most) * scale);
        const float shrink = power_of_two(largest[band][half] - most);
        largest[band][half] = most;
        totals[band][half] *= shrink;
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS; n++) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                scores[band][n][i] = power_of_two(scores[band][n][i] * scale - most);
                totals[band][half] += scores[band][n][i];
            }
        }
#pragma unroll
        for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n++) {
            sums[band][n][2 * half] *= shrink, sums[band][n][2 * half + 1] *= shrink;
        }
    }
}

template <int SIZE, int BANDS>
__device__ inline void tensor_forward(bf16* out, float* log_sums, const bf16* qkv, const Head& head,
                                      unsigned char* shared) {
    constexpr int ALL = TensorTile<SIZE>::AREA;
    bf16* const queries = (bf16*)shared;
    bf16* const pairs = queries + BANDS * ALL; // two times keys and values
    const bf16* source = qkv + head.projection;
    const size_t stride = 3 * head.C;
    const int first = head.tile * TILE * BANDS, last = last_keys<BANDS>(head);
    const float scale = head.scale * LOG2_E;
    copy_tile<SIZE, BANDS>(queries, source, stride, first, head.T, head.size);
    copy_tile<SIZE>(pairs, source + head.C, stride, 0, head.T, head.size);
    copy_tile<SIZE>(pairs + ALL, source + 2 * head.C, stride, 0, head.T, head.size);
    copy_commit();
    unsigned kept[TensorTile<SIZE>::STEPS][BANDS][4]; // the warp's queries, unless they are read again for every tile
    float sums[BANDS][TensorTile<SIZE>::COLUMNS][4], largest[BANDS][2], totals[BANDS][2];
    clear(sums);
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
        largest[band][0] = largest[band][1] = -INFINITE;
        totals[band][0] = totals[band][1] = 0.0f;
    }
    for (int tile = 0; tile <= last; tile++) {
        const bf16* const keys = pairs + tile % 2 * 2 * ALL;
        const bf16* const values = keys + ALL;
        if (tile < last) {
            bf16* const next = pairs + (tile + 1) % 2 * 2 * ALL;
            copy_tile<SIZE>(next, source + head.C, stride, (tile + 1) * TILE, head.T, head.size);
            copy_tile<SIZE>(next + ALL, source + 2 * head.C, stride, (tile + 1) * TILE, head.T, head.size);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (sees_keys<BANDS>(first, tile)) {
            float scores[BANDS][TILE_COLUMNS][4];
            if (BANDS == 1) {
                multiply_rows<SIZE>(scores, queries, keys, 0);
            } else {
                if (tile == 0) {
                    load_rows<SIZE>(kept, queries);
                }
                multiply_kept_rows<SIZE>(scores, kept, keys);
            }
            if (BANDS == 1 ? tile == last : is_cut_off<BANDS>(first, tile)) {
                const int ahead = BANDS == 1 ? 0 : first - tile * TILE; // of the block's rows to the tile's keys
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int n = 0; n < TILE_COLUMNS; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const bool seen = product_column(n, i) <= ahead + product_row<BANDS>(band, i);
                            scores[band][n][i] = seen ? scores[band][n][i] : -INFINITE;
                        }
                    }
                }
            }
            softmax_rows<SIZE>(scores, sums, largest, totals, scale);
            accumulate_rows<SIZE>(sums, scores, values, 0);
        }
        __syncthreads(); // before these keys and values are overwritten
    }
    float factors[BANDS][2];
#pragma unroll
    for (int row = 0; row < 2 * BANDS; row++) {
        const int band = row / 2, half = row % 2, query = first + product_row<BANDS>(band, 2 * half);
        const float total = warp_sum<4>(totals[band][half]);
        if (threadIdx.x % 4 == 0 && query < head.T) {
            log_sums[head.row + query] = (largest[band][half] + log2f(total)) * LN_2;
        }
        factors[band][half] = 1.0f / total;
    }
    store_rows<SIZE>(out + head.output, head.C, sums, factors, first, head);
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

// Where the slopes of a head's pairs of tiles begin: for each tile of queries, those of the tiles of keys up to it, each
// (64 keys, 64 queries).
template <typename Slopes> __device__ inline Slopes* slopes_of(Slopes* slopes, const Head& head, int queries, int keys) {
    const size_t tiles = tiles_of(head), of_head = head.row / head.T * (tiles * (tiles + 1) / 2);
    return slopes + (of_head + size_t(queries) * (queries + 1) / 2 + keys) * (TILE * TILE);
}

// Rows are keys, columns queries, as in scalar_backward_keys. Unless `stored` is null, it receives the slopes of each pair
// of tiles that sees any.
template <int SIZE, int BANDS, bool STORED = false>
__device__ inline void tensor_backward_keys(bf16* qkv_gradient, const AttentionOperands& operands, const Head& head,
                                            unsigned char* shared, float2* numbers, bf16* stored = nullptr) {
    constexpr int ALL = TensorTile<SIZE>::AREA;
    constexpr int COUNT = SIZE > 64 || BANDS > 1 ? TILE_COLUMNS / 2 : TILE_COLUMNS; // what leaves all sums in registers
    bf16* const keys = (bf16*)shared;
    bf16* const values = keys + BANDS * ALL;
    bf16* const pairs = values + BANDS * ALL; // two times queries and gradients
    const bf16* source = operands.qkv + head.projection;
    const int first = head.tile * TILE * BANDS, begin = first_queries(head) * BANDS;
    const float scale = head.scale * LOG2_E;
    copy_tile<SIZE, BANDS>(keys, source + head.C, 3 * head.C, first, head.T, head.size);
    copy_tile<SIZE, BANDS>(values, source + 2 * head.C, 3 * head.C, first, head.T, head.size);
    copy_queries<SIZE>(pairs + begin % 2 * 2 * ALL, numbers + begin % 2 * TILE, operands, begin, head);
    copy_commit();
    if (STORED) {
        stored = slopes_of(stored, head, begin, first / TILE + band_start<BANDS>(0) / TILE) +
                 product_row<BANDS>(0, 0) % TILE * TILE + product_column(0, 0);
    }
    float key_sums[BANDS][TensorTile<SIZE>::COLUMNS][4], value_sums[BANDS][TensorTile<SIZE>::COLUMNS][4];
    clear(key_sums);
    clear(value_sums);
    for (int tile = begin; tile < tiles_of(head); tile++) {
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
        const int ahead = tile * TILE - first; // of the tile's queries to the block's keys
        const bool is_seen = BANDS == 1 || ahead + TILE > band_start<BANDS>(0);
        const bool is_cut = ahead < band_start<BANDS>(BANDS - 1) + 15;
#pragma unroll 1
        for (int part = is_seen ? 0 : TILE; part < TILE; part += 8 * COUNT) {
            float weights[BANDS][COUNT][4], slopes[BANDS][COUNT][4];
            multiply_rows<SIZE>(weights, keys, queries, part);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
#pragma unroll
                for (int n = 0; n < COUNT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float& weight = weights[band][n][i];
                        weight = power_of_two(weight * scale - of_column(log_sums, part, n, i) * LOG2_E);
                    }
                }
            }
            if (is_cut) {
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int n = 0; n < COUNT; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const bool seen = product_row<BANDS>(band, i) <= ahead + part + product_column(n, i);
                            weights[band][n][i] = seen ? weights[band][n][i] : 0.0f;
                        }
                    }
                }
            }
            accumulate_rows<SIZE>(value_sums, weights, gradients, part);
            multiply_rows<SIZE>(slopes, values, gradients, part);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
#pragma unroll
                for (int n = 0; n < COUNT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float slope = slopes[band][n][i] - of_column(means, part, n, i);
                        slopes[band][n][i] = weights[band][n][i] * slope;
                    }
                }
            }
            if (STORED) {
                bf16* const target = stored + part;
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int n = 0; n < COUNT; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i += 2) {
                            *(uint1*)(target + (band * 16 + i / 2 * 8) * TILE + 8 * n) =
                                uint1{pack(slopes[band][n][i], slopes[band][n][i + 1])};
                        }
                    }
                }
            }
            accumulate_rows<SIZE>(key_sums, slopes, queries, part);
        }
        if (STORED) {
            stored += (tile + 1) * (TILE * TILE);
        }
        __syncthreads(); // before these queries are overwritten
    }
    bf16* target = qkv_gradient + head.projection;
    store_scaled<SIZE>(target + head.C, 3 * head.C, key_sums, head.scale, first, head);
    store_scaled<SIZE>(target + 2 * head.C, 3 * head.C, value_sums, 1.0f, first, head);
}

// Rows are queries, columns keys, as in scalar_backward_queries.
template <int SIZE, int BANDS>
__device__ inline void tensor_backward_queries(bf16* qkv_gradient, const AttentionOperands& operands, const Head& head,
                                               unsigned char* shared) {
    constexpr int ALL = TensorTile<SIZE>::AREA;
    constexpr int COUNT = SIZE > 64 ? TILE_COLUMNS / 2 : TILE_COLUMNS; // what leaves all sums in registers
    bf16* const queries = (bf16*)shared;
    bf16* const gradients = queries + BANDS * ALL;
    bf16* const pairs = gradients + BANDS * ALL; // two times keys and values
    const bf16* source = operands.qkv + head.projection;
    const size_t stride = 3 * head.C;
    const int first = head.tile * TILE * BANDS, last = last_keys<BANDS>(head);
    const float scale = head.scale * LOG2_E;
    copy_tile<SIZE, BANDS>(queries, source, stride, first, head.T, head.size);
    copy_tile<SIZE, BANDS>(gradients, operands.gradient + head.output, head.C, first, head.T, head.size);
    copy_tile<SIZE>(pairs, source + head.C, stride, 0, head.T, head.size);
    copy_tile<SIZE>(pairs + ALL, source + 2 * head.C, stride, 0, head.T, head.size);
    copy_commit();
    float sums[BANDS][TensorTile<SIZE>::COLUMNS][4], log_sums[BANDS][2], means[BANDS][2];
    clear(sums);
#pragma unroll
    for (int row = 0; row < 2 * BANDS; row++) {
        const int band = row / 2, half = row % 2, query = first + product_row<BANDS>(band, 2 * half);
        log_sums[band][half] = query < head.T ? operands.log_sums[head.row + query] * LOG2_E : INFINITE;
        means[band][half] = query < head.T ? operands.means[head.row + query] : 0.0f;
    }
    for (int tile = 0; tile <= last; tile++) {
        const bf16* const keys = pairs + tile % 2 * 2 * ALL;
        const bf16* const values = keys + ALL;
        if (tile < last) {
            bf16* const next = pairs + (tile + 1) % 2 * 2 * ALL;
            copy_tile<SIZE>(next, source + head.C, stride, (tile + 1) * TILE, head.T, head.size);
            copy_tile<SIZE>(next + ALL, source + 2 * head.C, stride, (tile + 1) * TILE, head.T, head.size);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        const int ahead = first - tile * TILE; // of the block's rows to the tile's keys
#pragma unroll 1
        for (int part = sees_keys<BANDS>(first, tile) ? 0 : TILE; part < TILE; part += 8 * COUNT) {
            float weights[BANDS][COUNT][4], slopes[BANDS][COUNT][4];
            multiply_rows<SIZE>(weights, queries, keys, part);
            multiply_rows<SIZE>(slopes, gradients, values, part);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
#pragma unroll
                for (int n = 0; n < COUNT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float weight = power_of_two(weights[band][n][i] * scale - log_sums[band][i / 2]);
                        slopes[band][n][i] = weight * (slopes[band][n][i] - means[band][i / 2]);
                    }
                }
            }
            if (is_cut_off<BANDS>(first, tile)) {
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int n = 0; n < COUNT; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const bool seen = part + product_column(n, i) <= ahead + product_row<BANDS>(band, i);
                            slopes[band][n][i] = seen ? slopes[band][n][i] : 0.0f;
                        }
                    }
                }
            }
            accumulate_rows<SIZE>(sums, slopes, keys, part);
        }
        __syncthreads(); // before these keys and values are overwritten
    }
    store_scaled<SIZE>(qkv_gradient + head.projection, stride, sums, head.scale, first, head);
}

// The left operand of a product whose rows are columns first.. (16) of a tile, summed over rows 16 step.. of it.
template <int SIZE> __device__ inline void load_left_columns(unsigned (&a)[4], const bf16* tile, int first, int step) {
    const int lane = threadIdx.x % WARP;
    const int row = 16 * step + lane / 16 * 8 + lane % 8, column = first + lane / 8 % 2 * 8;
    load_matrices<true>(a, tile + row * TensorTile<SIZE>::STRIDE + column);
}

// The same from the slopes that tensor_backward_keys has stored: one product instead of three.
template <int SIZE>
__device__ inline void tensor_backward_stored(bf16* qkv_gradient, const bf16* stored, const bf16* qkv, const Head& head,
                                              unsigned char* shared) {
    constexpr int SLOPES = TensorTile<TILE>::AREA, ALL = SLOPES + TensorTile<SIZE>::AREA;
    bf16* const pairs = (bf16*)shared; // two times slopes and keys
    const bf16* const source = qkv + head.projection + head.C;
    const size_t stride = 3 * head.C;
    const auto copy = [&](int tile) {
        bf16* const target = pairs + tile % 2 * ALL;
        copy_tile<TILE>(target, slopes_of(stored, head, head.tile, tile), TILE, 0, TILE, TILE);
        copy_tile<SIZE>(target + SLOPES, source, stride, tile * TILE, head.T, head.size);
    };
    float sums[1][TensorTile<SIZE>::COLUMNS][4];
    clear(sums);
    copy(0);
    copy_commit();
    for (int tile = 0; tile <= head.tile; tile++) {
        if (tile < head.tile) {
            copy(tile + 1);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        const bf16* const slopes = pairs + tile % 2 * ALL;
#pragma unroll
        for (int step = 0; step < TILE / 16; step++) {
            unsigned a[4];
            load_left_columns<TILE>(a, slopes, band_start<1>(0), step);
#pragma unroll
            for (int n = 0; n < TensorTile<SIZE>::COLUMNS; n += 2) {
                unsigned b[4];
                load_right_columns<SIZE>(b, slopes + SLOPES, 8 * n, step);
                multiply_tile(sums[0][n], a, b[0], b[1]);
                multiply_tile(sums[0][n + 1], a, b[2], b[3]);
            }
        }
        __syncthreads(); // before these slopes and keys are overwritten
    }
    store_scaled<SIZE>(qkv_gradient + head.projection, stride, sums, head.scale, head.tile * TILE, head);
}
#endif
