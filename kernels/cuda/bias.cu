#include "common.cuh"
// The gradient of a linear layer's bias: the sum of the rows of gradient[n, OC], first of groups of rows, then of the groups.

constexpr int BIAS_LANES = 16; // of a block along a row, eight columns each
constexpr int BIAS_ROWS = 16;  // of a block at a time
constexpr int BIAS_AT_ONCE = 4; // reads of a thread that are under way together

// partial[G, OC]: the sums of G groups of ceil(n / G) rows. A thread sums every 16th row of its group, then a column's
// threads are added in their order.
// launch: grid (ceil(OC / 128), G), block (256)
KERNEL(bias_backward_sums, BIAS_LANES * BIAS_ROWS, 4)(float* partial, const act* gradient, int n, int OC, int G) {
    SHARED(float, sums, BIAS_ROWS * BIAS_LANES * ELEMENTS);
    const int lane = threadIdx.x % BIAS_LANES, line = threadIdx.x / BIAS_LANES;
    const size_t start = (size_t(blockIdx.x) * BIAS_LANES + lane) * ELEMENTS, rows = (size_t(n) + G - 1) / G;
    const size_t first = blockIdx.y * rows, end = first + rows < size_t(n) ? first + rows : size_t(n);
    float sum[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        sum[i] = 0.0f;
    }
    for (size_t row = first + line; row < end; row += BIAS_AT_ONCE * BIAS_ROWS) {
        float g[BIAS_AT_ONCE][ELEMENTS];
#pragma unroll
        for (int r = 0; r < BIAS_AT_ONCE; r++) {
            const size_t at = row + r * BIAS_ROWS;
            load_elements(g[r], gradient + at * OC, start, at < end ? OC : 0);
        }
#pragma unroll
        for (int r = 0; r < BIAS_AT_ONCE; r++) {
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                sum[i] += g[r][i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        sums[(line * BIAS_LANES + lane) * ELEMENTS + i] = sum[i];
    }
    __syncthreads();
    const size_t column = size_t(blockIdx.x) * BIAS_LANES * ELEMENTS + threadIdx.x;
    if (threadIdx.x < BIAS_LANES * ELEMENTS && column < OC) {
        float total = 0.0f;
#pragma unroll
        for (int other = 0; other < BIAS_ROWS; other++) {
            total += sums[other * BIAS_LANES * ELEMENTS + threadIdx.x];
        }
        partial[size_t(blockIdx.y) * OC + column] = total;
    }
}

// dbias[OC] += the sums over G.
// launch: grid (ceil(OC / 32)), block (256)
KERNEL(bias_backward_weight, GROUP_WARPS * WARP, 4)(float* dbias, const float* partial, int G, int OC) {
    float* const targets[1] = {dbias};
    add_group_sums(targets, partial, G, OC);
}

// What the two kernels above replaced, to compare times: dbias[OC] += the sum of the rows of gradient[n, OC] in one
// launch. A thread sums every 64th row, four at a time; then the sums of a column's threads are added pairwise.
// launch: grid (ceil(OC / 16)), block (1024)
constexpr int NARROW_COLUMNS = 16; // of a block
constexpr int NARROW_GROUPS = 64;  // of rows, one a thread of a column
KERNEL(bias_backward_columns, NARROW_COLUMNS * NARROW_GROUPS, 1)(float* dbias, const act* gradient, int n, int OC) {
    SHARED(float, sums, NARROW_GROUPS * NARROW_COLUMNS);
    const int group = threadIdx.x / NARROW_COLUMNS, column = blockIdx.x * NARROW_COLUMNS + threadIdx.x % NARROW_COLUMNS;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < OC) {
        const act* source = gradient + column;
        long long row = group;
        for (; row + 3 * NARROW_GROUPS < n; row += 4 * NARROW_GROUPS) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] += to_float(source[size_t(row + i * NARROW_GROUPS) * OC]);
            }
        }
        for (; row < n; row += NARROW_GROUPS) {
            sum[0] += to_float(source[size_t(row) * OC]);
        }
    }
    sums[threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int half = NARROW_GROUPS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (group < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half * NARROW_COLUMNS];
        }
    }
    if (group == 0 && column < OC) {
        dbias[column] += sums[threadIdx.x];
    }
}
