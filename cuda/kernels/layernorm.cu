#include "common.cuh"
// LayerNorm over the channels of each row: out = (x - mean) / sqrt(variance + 1e-5) * weight + bias, the variance with
// 1/C. statistics[n, 2] holds each row's mean and reciprocal standard deviation.

constexpr int LAYERNORM_WARPS = 4;     // of a block; each takes a row
constexpr int LAYERNORM_COLUMNS = 128; // of a block of layernorm_backward_sums, one a thread

// Calls body(start) for the starts of this lane's groups of eight channels.
template <typename Body> __device__ inline void for_each_group(int C, Body body) {
    for (size_t start = size_t(threadIdx.x % WARP) * ELEMENTS; start < C; start += WARP * ELEMENTS) {
        body(start);
    }
}

// One row a warp.
// launch: grid (ceil(n / 4)), block (128)
KERNEL(layernorm_forward, LAYERNORM_WARPS * WARP, 8)
(act* out, float* statistics, const act* input, const act* weight, const act* bias, int n, int C) {
    const size_t row = size_t(blockIdx.x) * LAYERNORM_WARPS + threadIdx.x / WARP;
    if (row >= size_t(n)) {
        return;
    }
    const act* source = input + row * C;
    act* target = out + row * C;
    float sum = 0.0f;
    for_each_group(C, [&](size_t start) {
        float x[ELEMENTS];
        load_elements(x, source, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            sum += x[i];
        }
    });
    const float mean = warp_sum(sum) / C;
    float squares = 0.0f;
    for_each_group(C, [&](size_t start) {
        float x[ELEMENTS];
        load_elements(x, source, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const float difference = start + i < C ? x[i] - mean : 0.0f;
            squares += difference * difference;
        }
    });
    const float scale = 1.0f / sqrtf(warp_sum(squares) / C + 1e-5f);
    for_each_group(C, [&](size_t start) {
        float x[ELEMENTS], w[ELEMENTS], b[ELEMENTS];
        load_elements(x, source, start, C);
        load_elements(w, weight, start, C);
        load_elements(b, bias, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] = (x[i] - mean) * scale * w[i] + b[i];
        }
        store_elements(target, x, start, C);
    });
    if (threadIdx.x % WARP == 0) {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = scale;
    }
}

// out = residual + the gradient of the input; residual may be null, out may be gradient, residual or input.
// One row a warp.
// launch: grid (ceil(n / 4)), block (128)
KERNEL(layernorm_backward_input, LAYERNORM_WARPS * WARP, 8)
(act* out, const act* gradient, const act* input, const float* statistics, const act* weight, const act* residual,
 int n, int C) {
    const size_t row = size_t(blockIdx.x) * LAYERNORM_WARPS + threadIdx.x / WARP;
    if (row >= size_t(n)) {
        return;
    }
    const float mean = statistics[2 * row], scale = statistics[2 * row + 1];
    float sum = 0.0f, normal_sum = 0.0f;
    for_each_group(C, [&](size_t start) {
        float g[ELEMENTS], x[ELEMENTS], w[ELEMENTS];
        load_elements(g, gradient + row * C, start, C);
        load_elements(x, input + row * C, start, C);
        load_elements(w, weight, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const float product = g[i] * w[i]; // 0 beyond the last channel
            sum += product;
            normal_sum += product * ((x[i] - mean) * scale);
        }
    });
    const float first = warp_sum(sum) / C, second = warp_sum(normal_sum) / C;
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
            const float normal = (x[i] - mean) * scale;
            r[i] += (g[i] * w[i] - first - normal * second) * scale;
        }
        store_elements(out + row * C, r, start, C);
    });
}

// partial[G, 2, C]: the gradients of weight and bias from each of G blocks of ceil(n / G) rows, in the order of the
// rows.
// launch: grid (ceil(C / 128), G), block (128)
KERNEL(layernorm_backward_sums, LAYERNORM_COLUMNS, 8)
(float* partial, const act* gradient, const act* input, const float* statistics, int n, int C, int G) {
    const int column = blockIdx.x * LAYERNORM_COLUMNS + threadIdx.x;
    if (column >= C) {
        return;
    }
    const size_t rows = (size_t(n) + G - 1) / G;
    for (size_t group = blockIdx.y; group < size_t(G); group += gridDim.y) {
        const size_t first = group * rows, end = first + rows < size_t(n) ? first + rows : size_t(n);
        float weight_sum = 0.0f, bias_sum = 0.0f;
#pragma unroll 4
        for (size_t row = first; row < end; row++) {
            const float g = to_float(gradient[row * C + column]);
            const float normal = (to_float(input[row * C + column]) - statistics[2 * row]) * statistics[2 * row + 1];
            weight_sum += g * normal;
            bias_sum += g;
        }
        partial[group * 2 * C + column] = weight_sum;
        partial[group * 2 * C + C + column] = bias_sum;
    }
}

// dweight[C] and dbias[C] += the sums over G. A warp takes every fourth group, for 32 columns.
// launch: grid (ceil(C / 32)), block (128)
KERNEL(layernorm_backward_weight, LAYERNORM_WARPS * WARP, 8)
(float* dweight, float* dbias, const float* partial, int G, int C) {
    SHARED(float, sums, 2 * LAYERNORM_WARPS * WARP);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int column = blockIdx.x * WARP + lane;
    float weight_sum = 0.0f, bias_sum = 0.0f;
    if (column < C) {
#pragma unroll 4
        for (int group = warp; group < G; group += LAYERNORM_WARPS) {
            weight_sum += partial[size_t(group) * 2 * C + column];
            bias_sum += partial[size_t(group) * 2 * C + C + column];
        }
    }
    sums[threadIdx.x] = weight_sum;
    sums[LAYERNORM_WARPS * WARP + threadIdx.x] = bias_sum;
    __syncthreads();
    if (warp < 2 && column < C) {
        const float* own = sums + warp * LAYERNORM_WARPS * WARP + lane;
        float* target = warp == 0 ? dweight : dbias;
        target[column] += (own[0] + own[WARP]) + (own[2 * WARP] + own[3 * WARP]);
    }
}
