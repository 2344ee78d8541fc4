#include "common.cuh"
// The sum that skips a part of a block.

// out[i] = a[i] + b[i]; out may be a or b.
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(residual_forward, 256, 4)(act* out, const act* a, const act* b, size_t count) {
    for (size_t start = first_element(); start < count; start += element_step()) {
        float x[2][ELEMENTS];
        load_together(x, {a, b}, start, count);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[0][i] += x[1][i];
        }
        store_elements(out, x[0], start, count);
    }
}
