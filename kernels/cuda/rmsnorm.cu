#include "common.cuh"
// RMSNorm over the channels of each row: out = x / sqrt(mean of squares + epsilon) * weight. statistics[n] holds the
// reciprocal of each row's root. Constants and for_each_group are layernorm.cu's.

// One row a warp.
// launch: grid (ceil(n / 4)), block (128)
KERNEL(rmsnorm_forward, LAYERNORM_WARPS * WARP, 8)
(act* out, float* statistics, const act* input, const act* weight, int n, int C, float epsilon) {
    const size_t row = size_t(blockIdx.x) * LAYERNORM_WARPS + threadIdx.x / WARP;
    if (row >= size_t(n)) {
        return;
    }
    const KeptRow source(input + row * C, C);
    float squares = 0.0f;
    source.for_each([&](size_t, const float(&x)[ELEMENTS]) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            squares += x[i] * x[i]; // 0 beyond the last channel
        }
    });
    const float scale = 1.0f / sqrtf(warp_sum(squares) / C + epsilon);
    source.for_each([&](size_t start, const float(&x)[ELEMENTS]) {
        float result[ELEMENTS];
        load_elements(result, weight, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            result[i] = x[i] * scale * result[i];
        }
        store_elements(out + row * C, result, start, C);
    });
    if (threadIdx.x % WARP == 0) {
        statistics[row] = scale;
    }
}

// out = residual + the gradient of the input; residual may be null, out may be gradient, residual or input.
// One row a warp.
// launch: grid (ceil(n / 4)), block (128)
KERNEL(rmsnorm_backward_input, LAYERNORM_WARPS * WARP, 8)
(act* out, const act* gradient, const act* input, const float* statistics, const act* weight, const act* residual,
 int n, int C) {
    const size_t row = size_t(blockIdx.x) * LAYERNORM_WARPS + threadIdx.x / WARP;
    if (row >= size_t(n)) {
        return;
    }
    const float scale = statistics[row];
    float sum = 0.0f;
    for_each_group(C, [&](size_t start) {
        float loaded[3][ELEMENTS];
        load_together(loaded, {gradient + row * C, input + row * C, weight}, start, C);
        const float(&g)[ELEMENTS] = loaded[0], (&x)[ELEMENTS] = loaded[1], (&w)[ELEMENTS] = loaded[2];
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            sum += g[i] * w[i] * (x[i] * scale);
        }
    });
    const float mean = warp_sum(sum) / C;
    for_each_group(C, [&](size_t start) {
        float g[ELEMENTS], x[ELEMENTS], w[ELEMENTS], r[ELEMENTS];
        load_elements(g, gradient + row * C, start, C);
        load_elements(x, input + row * C, start, C);
        load_elements(w, weight, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            r[i] = 0.0f;
        }
        if (residual != nullptr) {
            load_elements(r, residual + row * C, start, C);
        }
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            r[i] += (g[i] * w[i] - x[i] * scale * mean) * scale;
        }
        store_elements(out + row * C, r, start, C);
    });
}

// partial[G, C]: the gradient of the weight from each of G blocks of ceil(n / G) rows, in the order of the rows.
// launch: grid (ceil(C / 128), G), block (128)
KERNEL(rmsnorm_backward_sums, LAYERNORM_COLUMNS, 8)
(float* partial, const act* gradient, const act* input, const float* statistics, int n, int C, int G) {
    const int column = blockIdx.x * LAYERNORM_COLUMNS + threadIdx.x;
    if (column >= C) {
        return;
    }
    const size_t rows = (size_t(n) + G - 1) / G;
    for (size_t group = blockIdx.y; group < size_t(G); group += gridDim.y) {
        const size_t first = group * rows, end = first + rows < size_t(n) ? first + rows : size_t(n);
        float sum = 0.0f;
#pragma unroll 4
        for (size_t row = first; row < end; row++) {
            sum += to_float(gradient[row * C + column]) * (to_float(input[row * C + column]) * statistics[row]);
        }
        partial[group * C + column] = sum;
    }
}

// dweight[C] += the sums over G.
// launch: grid (ceil(C / 32)), block (256)
KERNEL(rmsnorm_backward_weight, GROUP_WARPS * WARP, 4)(float* dweight, const float* partial, int G, int C) {
    float* const targets[1] = {dweight};
    add_group_sums(targets, partial, G, C);
}
