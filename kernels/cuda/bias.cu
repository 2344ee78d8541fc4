#include "common.cuh"
// The gradient of a linear layer's bias: the sum of the rows of gradient[n, OC], first of groups of rows, then of the groups.

constexpr int BIAS_LANES = 16; // of a block along a row, eight columns each
constexpr int BIAS_ROWS = 16;  // of a block at a time

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
    for (size_t row = first + line; row < end; row += AT_ONCE * BIAS_ROWS) {
        const act* sources[AT_ONCE];
        size_t counts[AT_ONCE];
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            const size_t at = row + r * BIAS_ROWS;
            sources[r] = gradient + at * OC;
            counts[r] = at < end ? OC : 0;
        }
        float g[AT_ONCE][ELEMENTS];
        load_together(g, sources, start, counts);
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
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
