// The sums behind the matrix products: column-major op(A) (m x k) times op(B) (k x n) in float32, in blocks that fit the caches.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

struct Operand {
    const void* data;
    bool brain_float, transposed;
    int64_t stride;
};

inline float from_bf16(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

// Rounds to nearest, ties to even; a NaN stays one.
inline uint16_t to_bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    if (value != value) return (uint16_t)(word >> 16 | 64);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// As many sums as the registers hold: 32 of 16 numbers, or 16 of 8.
#ifdef __AVX512F__
constexpr int64_t LANES = 16;
#else
constexpr int64_t LANES = 8;
#endif
constexpr int64_t TILE_ROWS = 2 * LANES, TILE_COLUMNS = 6, BLOCK_INNER = 256, BLOCK_ROWS = 192;

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

// Packs rows [first, first + count) x inner [from, from + inner) of op(X) as panels of `tile` rows, each stored inner by inner;
// rows that do not exist are zero. For B, op is that of its transpose.
template <class Number>
void pack(const Number* data, bool along_inner, int64_t stride, int64_t first, int64_t count, int64_t from, int64_t inner, int64_t tile, float* out) {
    auto load = [](Number value) { return sizeof(Number) == 2 ? from_bf16((uint16_t)value) : (float)value; };
    for (int64_t panel = 0; panel < count; panel += tile, out += tile * inner) {
        int64_t rows = std::min(tile, count - panel);
        if (rows < tile) std::fill(out, out + tile * inner, 0.0f);
        const Number* start = data + (along_inner ? (first + panel) * stride + from : from * stride + first + panel);
        if (along_inner)
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t at = 0; at < inner; ++at) out[at * tile + row] = load(start[row * stride + at]);
        else
            for (int64_t at = 0; at < inner; ++at)
                for (int64_t row = 0; row < rows; ++row) out[at * tile + row] = load(start[at * stride + row]);
    }
}

inline void pack(const Operand& x, bool along_inner, int64_t first, int64_t count, int64_t from, int64_t inner, int64_t tile, float* out) {
    if (x.brain_float) pack((const uint16_t*)x.data, along_inner, x.stride, first, count, from, inner, tile, out);
    else pack((const float*)x.data, along_inner, x.stride, first, count, from, inner, tile, out);
}

// One tile of the result: TILE_ROWS x TILE_COLUMNS sums kept in registers.
inline void tile_product(const float* a, const float* b, int64_t inner, float* out) {
    Lanes low[TILE_COLUMNS] = {}, high[TILE_COLUMNS] = {};
    for (int64_t at = 0; at < inner; ++at, a += TILE_ROWS, b += TILE_COLUMNS) {
        Lanes first = *(const Lanes*)a, second = *(const Lanes*)(a + LANES);
#pragma GCC unroll 6
        for (int64_t j = 0; j < TILE_COLUMNS; ++j) low[j] += first * b[j], high[j] += second * b[j];
    }
#pragma GCC unroll 6
    for (int64_t j = 0; j < TILE_COLUMNS; ++j) memcpy(out + j * TILE_ROWS, &low[j], 4 * LANES), memcpy(out + j * TILE_ROWS + LANES, &high[j], 4 * LANES);
}

// out: m x n, column-major without gaps, overwritten.
inline void product(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k, float* out) {
    std::fill(out, out + m * n, 0.0f);
    int64_t column_panels = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    std::vector<float> a_panels((size_t)(BLOCK_ROWS * BLOCK_INNER)), b_panels((size_t)(column_panels * TILE_COLUMNS * std::min(k, BLOCK_INNER)));
    float tile[TILE_ROWS * TILE_COLUMNS];
    for (int64_t from = 0; from < k; from += BLOCK_INNER) {
        int64_t inner = std::min(BLOCK_INNER, k - from);
        pack(b, !b.transposed, 0, n, from, inner, TILE_COLUMNS, b_panels.data());
        for (int64_t first = 0; first < m; first += BLOCK_ROWS) {
            int64_t rows = std::min(BLOCK_ROWS, m - first);
            pack(a, a.transposed, first, rows, from, inner, TILE_ROWS, a_panels.data());
            for (int64_t j = 0; j < n; j += TILE_COLUMNS)
                for (int64_t i = 0; i < rows; i += TILE_ROWS) {
                    tile_product(a_panels.data() + i * inner, b_panels.data() + j * inner, inner, tile);
                    for (int64_t column = 0; column < std::min(TILE_COLUMNS, n - j); ++column)
                        for (int64_t row = 0; row < std::min(TILE_ROWS, rows - i); ++row) out[first + i + row + (j + column) * m] += tile[column * TILE_ROWS + row];
                }
        }
    }
}
