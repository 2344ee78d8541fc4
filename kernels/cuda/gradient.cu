#include "common.cuh"
// Gradients of parameters, in float32 for every precision: sum and norm; also the maximum over ranks.

// out[i] += other[i]
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(add, 256, 4)(float* out, const float* other, size_t count) {
    for (size_t start = first_element(); start < count; start += element_step()) {
        float x[ELEMENTS], y[ELEMENTS];
        load_elements(x, out, start, count);
        load_elements(y, other, start, count);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] += y[i];
        }
        store_elements(out, x, start, count);
    }
}

// out[i] = max(out[i], other[i])
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(maximum, 256, 4)(float* out, const float* other, size_t count) {
    for (size_t start = first_element(); start < count; start += element_step()) {
        float x[ELEMENTS], y[ELEMENTS];
        load_elements(x, out, start, count);
        load_elements(y, other, start, count);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] = fmaxf(x[i], y[i]);
        }
        store_elements(out, x, start, count);
    }
}

// partial[G]: sums of (gradient[i] + other[i])^2 in double precision, those of every G-th group of 2048 elements; other
// may be null.
// launch: grid (G), block (256)
KERNEL(norm_partial, 256, 4)(double* partial, const float* gradient, const float* other, size_t count, int G) {
    double sum = 0.0;
    for (size_t start = first_element(); start < count; start += size_t(G) * 256 * ELEMENTS) {
        float x[ELEMENTS], y[ELEMENTS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        load_elements(x, gradient, start, count);
        if (other != nullptr) {
            load_elements(y, other, start, count);
        }
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const double value = x[i] + y[i];
            sum += value * value;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
    }
}

// out[1] = the sum of partial[G].
// launch: grid (1), block (256)
KERNEL(norm_sum, 256, 1)(double* out, const double* partial, int G) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < G; i += blockDim.x) {
        sum += partial[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        out[0] = sum;
    }
}
