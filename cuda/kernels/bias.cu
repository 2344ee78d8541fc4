#include "common.cuh"
// The gradient of a linear layer's bias.

constexpr int BIAS_COLUMNS = 16; // of a block
constexpr int BIAS_GROUPS = 64;  // of rows, one a thread of a column

// dbias[OC] += the sum of the rows of gradient[n, OC]. A thread sums every 64th row, four at a time; then the sums of a
// column's threads are added pairwise.
// launch: grid (ceil(OC / 16)), block (1024)
KERNEL(bias_backward_weight, BIAS_COLUMNS * BIAS_GROUPS, 1)(float* dbias, const act* gradient, int n, int OC) {
    SHARED(float, sums, BIAS_GROUPS * BIAS_COLUMNS);
    const int group = threadIdx.x / BIAS_COLUMNS, column = blockIdx.x * BIAS_COLUMNS + threadIdx.x % BIAS_COLUMNS;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (column < OC) {
        const act* source = gradient + column;
        long long row = group;
        for (; row + 3 * BIAS_GROUPS < n; row += 4 * BIAS_GROUPS) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] += to_float(source[size_t(row + i * BIAS_GROUPS) * OC]);
            }
        }
        for (; row < n; row += BIAS_GROUPS) {
            sum[0] += to_float(source[size_t(row) * OC]);
        }
    }
    sums[threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int half = BIAS_GROUPS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (group < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half * BIAS_COLUMNS];
        }
    }
    if (group == 0 && column < OC) {
        dbias[column] += sums[threadIdx.x];
    }
}
