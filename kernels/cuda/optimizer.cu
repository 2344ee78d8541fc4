#include "common.cuh"
// AdamW, and the copy of the parameters that the forward pass reads.

// out[i] = in[i], rounded to the type of the activations.
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(cast, 256, 4)(act* out, const float* in, size_t count) {
    for (size_t start = first_element(); start < count; start += element_step()) {
        float x[ELEMENTS];
        load_elements(x, in, start, count);
        store_elements(out, x, start, count);
    }
}

// One step of AdamW: master -= lr (m^ / (sqrt(v^) + eps) + wd master), with gradient + other, scaled by scale[0]. other
// and scale may be null: 0 and 1. correction1 and correction2 are 1 / (1 - beta^step). Where copy is not null it
// receives the new parameters. Every rounding is the one of the same step on the CPU, so no product is merged into a
// sum by the compiler.
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(adamw_update, 256, 2)
(float* master, act* copy, const float* gradient, const float* other, float* m, float* v, size_t count,
 const float* scale, float lr, float beta1, float beta2, float eps, float wd, float correction1, float correction2) {
    const float gradient_scale = scale != nullptr ? scale[0] : 1.0f;
    for (size_t start = first_element(); start < count; start += element_step()) {
        float value[ELEMENTS], first[ELEMENTS], second[ELEMENTS], g[ELEMENTS];
        load_elements(value, master, start, count);
        load_elements(first, m, start, count);
        load_elements(second, v, start, count);
        load_elements(g, gradient, start, count);
        if (other != nullptr) {
            float tied[ELEMENTS];
            load_elements(tied, other, start, count);
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++) {
                g[i] = __fadd_rn(g[i], tied[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            const float scaled = __fmul_rn(g[i], gradient_scale);
            first[i] = fmaf(beta1, first[i], __fmul_rn(__fsub_rn(1.0f, beta1), scaled));
            second[i] = fmaf(beta2, second[i], __fmul_rn(__fmul_rn(__fsub_rn(1.0f, beta2), scaled), scaled));
            const float denominator = __fadd_rn(__fsqrt_rn(__fmul_rn(second[i], correction2)), eps);
            const float direction = __fdiv_rn(__fmul_rn(first[i], correction1), denominator);
            value[i] = __fsub_rn(value[i], __fmul_rn(lr, fmaf(wd, value[i], direction)));
        }
        store_elements(master, value, start, count);
        store_elements(m, first, start, count);
        store_elements(v, second, start, count);
        if (copy != nullptr) {
            store_elements(copy, value, start, count);
        }
    }
}
