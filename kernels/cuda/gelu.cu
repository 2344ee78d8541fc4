#include "common.cuh"
// GELU with the tanh approximation, 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which equals
// x sigmoid(2u).

constexpr float GELU_CUBE = 0.044715f;
constexpr float GELU_TWO_ROOTS = 2.0f * 0.7978845608028654f; // 2 sqrt(2/pi)

__device__ inline float gelu_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-GELU_TWO_ROOTS * x * (1.0f + GELU_CUBE * (x * x))));
}

// out[i] = gelu(input[i]); out may be input.
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(gelu_forward, 256, 4)(act* out, const act* input, size_t count) {
    for (size_t start = first_element(); start < count; start += element_step()) {
        float x[ELEMENTS];
        load_elements(x, input, start, count);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] *= gelu_sigmoid(x[i]);
        }
        store_elements(out, x, start, count);
    }
}

// out[i] = gradient[i] gelu'(input[i]); out may be input or gradient.
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(gelu_backward_input, 256, 4)(act* out, const act* gradient, const act* input, size_t count) {
    for (size_t start = first_element(); start < count; start += element_step()) {
        float loaded[2][ELEMENTS];
        load_together(loaded, {input, gradient}, start, count);
        float(&x)[ELEMENTS] = loaded[0], (&g)[ELEMENTS] = loaded[1];
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const float sigmoid = gelu_sigmoid(x[i]);
            const float slope = GELU_TWO_ROOTS * (1.0f + 3.0f * GELU_CUBE * (x[i] * x[i]));
            // far from 0 the sigmoid is 0 or 1 and the slope may overflow: 0 times infinity is no number
            const float bend = sigmoid * (1.0f - sigmoid);
            g[i] *= sigmoid + (bend == 0.0f ? 0.0f : x[i] * bend * slope);
        }
        store_elements(out, g, start, count);
    }
}
