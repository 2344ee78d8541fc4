#include "common.cuh"
// LayerNorm over the channels of each row: out = (x - mean) / sqrt(variance + 1e-5) * weight + bias, the variance with
// 1/C. statistics[n, 2] holds each row's mean and reciprocal standard deviation.

constexpr int LAYERNORM_WARPS = 4;     // of a block; each takes a row
constexpr int LAYERNORM_COLUMNS = 128; // of a block of layernorm_backward_sums, one a thread
constexpr int LAYERNORM_AT_ONCE = 2;   // rows of layernorm_backward whose reads are under way together


// A row of which a lane keeps its first groups in registers, so that passes over it read up to 1024 channels of bfloat16
// once.
struct KeptRow {
    const act* source;
    int C;
    float kept[AT_ONCE][ELEMENTS];

    __device__ inline KeptRow(const act* row, int channels) : source(row), C(channels) {
        const act* sources[AT_ONCE];
        size_t counts[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            sources[k] = source + k * WARP * ELEMENTS;
            counts[k] = k * WARP * ELEMENTS < C ? C - k * WARP * ELEMENTS : 0;
        }
        load_together(kept, sources, threadIdx.x % WARP * ELEMENTS, counts);
    }

    // Calls body(start, x) for this lane's groups of eight channels.
    template <typename Body> __device__ inline void for_each(Body body) const {
        size_t start = threadIdx.x % WARP * ELEMENTS;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (start < C) {
                body(start, kept[k]);
            }
            start += WARP * ELEMENTS;
        }
        for (; start < C; start += WARP * ELEMENTS) {
            float x[ELEMENTS];
            load_elements(x, source, start, C);
            body(start, x);
        }
    }
};

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
    const KeptRow source(input + row * C, C);
    act* target = out + row * C;
    float sum = 0.0f;
    source.for_each([&](size_t, const float(&x)[ELEMENTS]) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            sum += x[i];
        }
    });
    const float mean = warp_sum(sum) / C;
    float squares = 0.0f;
    source.for_each([&](size_t start, const float(&x)[ELEMENTS]) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const float difference = start + i < C ? x[i] - mean : 0.0f;
            squares += difference * difference;
        }
    });
    const float scale = 1.0f / sqrtf(warp_sum(squares) / C + 1e-5f);
    source.for_each([&](size_t start, const float(&x)[ELEMENTS]) {
        float of_norm[2][ELEMENTS], result[ELEMENTS];
        load_together(of_norm, {weight, bias}, start, C);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            result[i] = (x[i] - mean) * scale * of_norm[0][i] + of_norm[1][i];
        }
        store_elements(target, result, start, C);
    });
    if (threadIdx.x % WARP == 0) {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = scale;
    }
}

// layernorm_backward_sums and layernorm_backward_input in one pass, which reads gradient and input once, for C up to 4096.
// A block takes ceil(n / G) rows in their order, a thread eight channels of them; out may be gradient, residual or input.
// launch: grid (G), block (C / 8 rounded up to a multiple of 32, 32 to 512)
KERNEL(layernorm_backward, 512, 1)
(act* out, float* partial, const act* gradient, const act* input, const float* statistics, const act* weight,
 const act* residual, int n, int C, int G) {
    constexpr int WARPS = 512 / WARP, ROWS = LAYERNORM_AT_ONCE;
    SHARED(float, totals, 2 * 2 * ROWS * WARPS); // of warps: for two rounds in turn, so that one barrier a round is enough
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const size_t start = size_t(threadIdx.x) * ELEMENTS, rows = (size_t(n) + G - 1) / G;
    const size_t begin = blockIdx.x * rows, end = begin + rows < size_t(n) ? begin + rows : size_t(n);
    float w[ELEMENTS], weight_sums[ELEMENTS], bias_sums[ELEMENTS];
    load_elements(w, weight, start, C);
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) {
        weight_sums[i] = bias_sums[i] = 0.0f;
    }
    float* own = totals;
    for (size_t row = begin; row < end; row += ROWS) {
        const act* sources[3 * ROWS];
        size_t counts[3 * ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sources[r] = gradient + (row + r) * C;
            sources[ROWS + r] = input + (row + r) * C;
            sources[2 * ROWS + r] = residual != nullptr ? residual + (row + r) * C : sources[r];
            counts[r] = counts[ROWS + r] = row + r < end ? C : 0; // zeros beyond the last row, as beyond the last channel
            counts[2 * ROWS + r] = residual != nullptr ? counts[r] : 0;
        }
        float loaded[3 * ROWS][ELEMENTS], scale[ROWS];
        load_together(loaded, sources, start, counts);
        float(*const g)[ELEMENTS] = loaded, (*const normal)[ELEMENTS] = loaded + ROWS;
        float(*const result)[ELEMENTS] = loaded + 2 * ROWS;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool here = row + r < end;
            const float mean = here ? statistics[2 * (row + r)] : 0.0f;
            scale[r] = here ? statistics[2 * (row + r) + 1] : 0.0f;
            float sum = 0.0f, normal_sum = 0.0f;
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                normal[r][i] = (normal[r][i] - mean) * scale[r];
                weight_sums[i] += g[r][i] * normal[r][i];
                bias_sums[i] += g[r][i];
                g[r][i] *= w[i];
                sum += g[r][i];
                normal_sum += g[r][i] * normal[r][i];
            }
            sum = warp_sum(sum), normal_sum = warp_sum(normal_sum);
            if (lane == 0) {
                own[2 * r * WARPS + warp] = sum;
                own[(2 * r + 1) * WARPS + warp] = normal_sum;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float first = 0.0f, second = 0.0f;
            for (int other = 0; other < warps; other++) {
                first += own[2 * r * WARPS + other];
                second += own[(2 * r + 1) * WARPS + other];
            }
            first /= C, second /= C;
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                result[r][i] += (g[r][i] - first - normal[r][i] * second) * scale[r];
            }
            store_elements(out + (row + r) * C, result[r], start, counts[r]);
        }
        own = totals + (own == totals ? 2 * ROWS * WARPS : 0);
    }
    store_elements(partial + size_t(blockIdx.x) * 2 * C, weight_sums, start, C);
    store_elements(partial + size_t(blockIdx.x) * 2 * C + C, bias_sums, start, C);
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
        float loaded[3][ELEMENTS];
        load_together(loaded, {gradient + row * C, input + row * C, weight}, start, C);
        const float(&g)[ELEMENTS] = loaded[0], (&x)[ELEMENTS] = loaded[1], (&w)[ELEMENTS] = loaded[2];
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

// dweight[C] and dbias[C] += the sums over G.
// launch: grid (ceil(C / 32)), block (256)
KERNEL(layernorm_backward_weight, GROUP_WARPS * WARP, 4)
(float* dweight, float* dbias, const float* partial, int G, int C) {
    float* const targets[2] = {dweight, dbias};
    add_group_sums(targets, partial, G, C);
}
