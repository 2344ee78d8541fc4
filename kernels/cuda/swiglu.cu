#include "common.cuh"
// SwiGLU: silu(gate) up, where silu(x) = x / (1 + exp(-x)); a row of values[n, 2 F] holds the gate, then up.

constexpr int SWIGLU_THREADS = 128;

// out[n, F]. One row a block.
// launch: grid (n), block (128)
KERNEL(swiglu_forward, SWIGLU_THREADS, 8)(act* out, const act* values, int n, int F) {
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const act* const gate = values + row * 2 * F;
        for (size_t start = size_t(threadIdx.x) * ELEMENTS; start < F; start += SWIGLU_THREADS * ELEMENTS) {
            float loaded[2][ELEMENTS];
            load_together(loaded, {gate, gate + F}, start, F);
            float(&g)[ELEMENTS] = loaded[0], (&u)[ELEMENTS] = loaded[1];
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                g[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
            }
            store_elements(out + row * F, g, start, F);
        }
    }
}

// Replaces values by their gradient, from gradient[n, F] of the output. One row a block.
// launch: grid (n), block (128)
KERNEL(swiglu_backward, SWIGLU_THREADS, 8)(act* values, const act* gradient, int n, int F) {
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        act* const gate = values + row * 2 * F;
        for (size_t start = size_t(threadIdx.x) * ELEMENTS; start < F; start += SWIGLU_THREADS * ELEMENTS) {
            float loaded[3][ELEMENTS];
            load_together(loaded, {gate, gate + F, gradient + row * F}, start, F);
            float(&g)[ELEMENTS] = loaded[0], (&u)[ELEMENTS] = loaded[1], (&d)[ELEMENTS] = loaded[2];
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                const float sigmoid = 1.0f / (1.0f + expf(-g[i])), silu = g[i] * sigmoid;
                g[i] = d[i] * u[i] * (sigmoid + silu * (1.0f - sigmoid));
                u[i] = d[i] * silu;
            }
            store_elements(gate, g, start, F);
            store_elements(gate + F, u, start, F);
        }
    }
}
