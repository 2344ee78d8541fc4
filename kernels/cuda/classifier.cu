#include "common.cuh"
// Softmax cross-entropy: loss and the gradient of the logits in one go.

// The largest of some values and the sum of exp(value - largest).
struct SoftmaxSum {
    float largest;
    float sum;
};

__device__ inline SoftmaxSum combine(SoftmaxSum a, SoftmaxSum b) {
    const float largest = fmaxf(a.largest, b.largest);
    if (largest == -INFINITE) {
        return SoftmaxSum{largest, 0.0f};
    }
    return SoftmaxSum{largest, a.sum * power_of_two((a.largest - largest) * LOG2_E) +
                                   b.sum * power_of_two((b.largest - largest) * LOG2_E)};
}

__device__ inline SoftmaxSum warp_combine(SoftmaxSum value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        value = combine(value, SoftmaxSum{__shfl_xor_sync(ALL_LANES, value.largest, distance),
                                          __shfl_xor_sync(ALL_LANES, value.sum, distance)});
    }
    return value;
}

constexpr int CLASSIFIER_AT_ONCE = 2; // groups that a thread reads together

// Calls body(start, x) with the row's elements start..start+8.
template <typename Body> __device__ inline void for_each_of_row(const act* row, int count, Body body) {
    const size_t step = size_t(blockDim.x) * ELEMENTS;
    for (size_t start = size_t(threadIdx.x) * ELEMENTS; start < count; start += CLASSIFIER_AT_ONCE * step) {
        const act* sources[CLASSIFIER_AT_ONCE];
        size_t counts[CLASSIFIER_AT_ONCE];
#pragma unroll
        for (int r = 0; r < CLASSIFIER_AT_ONCE; r++) {
            sources[r] = row + r * step;
            counts[r] = r * step < count ? count - r * step : 0;
        }
        float x[CLASSIFIER_AT_ONCE][ELEMENTS];
        load_together(x, sources, start, counts);
#pragma unroll
        for (int r = 0; r < CLASSIFIER_AT_ONCE; r++) {
            if (start + r * step < count) {
                body(start + r * step, x[r]);
            }
        }
    }
}

// The sum over one row, read once: each thread keeps its largest value so far and rescales its sum when that grows.
__device__ inline SoftmaxSum row_sum(const act* row, int V) {
    SoftmaxSum total = {-INFINITE, 0.0f};
    for_each_of_row(row, V, [&](size_t start, float(&x)[ELEMENTS]) {
        SoftmaxSum part = {-INFINITE, 0.0f};
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] = start + i < V ? x[i] : -INFINITE;
            part.largest = fmaxf(part.largest, x[i]);
        }
        const float shift = part.largest == -INFINITE ? 0.0f : part.largest * LOG2_E;
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            part.sum += power_of_two(x[i] * LOG2_E - shift);
        }
        total = combine(total, part);
    });
    return total;
}

// Returns the sum over one row to every thread of the block. Call it once per kernel: it may overwrite shared memory that
// was read before.
__device__ inline SoftmaxSum whole_row_sum(const act* row, int V) {
    SHARED(float, largest, WARP);
    SHARED(float, sums, WARP);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const SoftmaxSum total = warp_combine(row_sum(row, V));
    if (lane == 0) {
        largest[warp] = total.largest;
        sums[warp] = total.sum;
    }
    __syncthreads();
    return warp_combine(lane < warps ? SoftmaxSum{largest[lane], sums[lane]} : SoftmaxSum{-INFINITE, 0.0f});
}

// logits[n, Vp] become the gradient of the loss: (softmax over V - 1 at the target) * weight, and 0 in columns V..Vp.
// losses[n] = -log p(target). One row a block.
// launch: grid (n), block (Vp / 8 rounded up to a multiple of 32, 32 to 512)
KERNEL(classifier_forward, 512, 2)
(act* logits, float* losses, const unsigned* targets, float weight, int n, int V, int Vp) {
    act* row = logits + size_t(blockIdx.x) * Vp;
    const unsigned target = targets[blockIdx.x];
    const float target_logit = to_float(row[target]);
    const SoftmaxSum total = whole_row_sum(row, V);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = logf(total.sum) + total.largest - target_logit;
    }
    const float factor = weight / total.sum, shift = total.largest * LOG2_E;
    for_each_of_row(row, Vp, [&](size_t start, float(&x)[ELEMENTS]) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] = start + i < V ? power_of_two(x[i] * LOG2_E - shift) * factor : 0.0f;
            x[i] -= start + i == target ? weight : 0.0f;
        }
        store_elements(row, x, start, Vp);
    });
}

// For tensor-parallel ranks that share the vocabulary: logits[n, Vp] has V ids from `first`. Computes for each row the
// largest logit, twice; the sum of exp(logit - largest); and the target's logit, 0 if another rank has it. With V = 0 the
// largest is minus infinity and the sum 0. One row per block.
//   largest[n], local[3, n]: largest, sum, target's logit
// launch: grid (n), block (Vp / 8 rounded up to a multiple of 32, 32 to 512)
KERNEL(classifier_share, 512, 2)
(float* largest, float* local, const act* logits, const unsigned* targets, int first, int n, int V, int Vp) {
    const size_t at = blockIdx.x;
    const act* row = logits + at * Vp;
    const SoftmaxSum total = whole_row_sum(row, V);
    if (threadIdx.x == 0) {
        const unsigned target = targets[at] - unsigned(first);
        largest[at] = local[at] = total.largest;
        local[n + at] = total.sum;
        local[2 * size_t(n) + at] = target < unsigned(V) ? to_float(row[target]) : 0.0f;
    }
}

// sums[2, n]: for each row the sum of exp(logit - largest), where largest is that of all ranks, and the target's logit
// minus largest, 0 if another rank has the target. local[3, n] is from classifier_share.
// launch: grid (ceil(n / 256)), block (256)
KERNEL(classifier_rescale, 256, 4)
(float* sums, const float* local, const float* largest, const unsigned* targets, int first, int n, int V) {
    const size_t row = size_t(blockIdx.x) * 256 + threadIdx.x;
    if (row >= size_t(n)) {
        return;
    }
    const bool here = targets[row] - unsigned(first) < unsigned(V);
    sums[row] = V > 0 ? local[n + row] * power_of_two((local[row] - largest[row]) * LOG2_E) : 0.0f;
    sums[n + row] = here ? local[2 * size_t(n) + row] - largest[row] : 0.0f;
}

// Like classifier_forward, for one rank's logits, with the largest logit and sums[2, n] of all ranks. One row per block.
// launch: grid (n), block (Vp / 8 rounded up to a multiple of 32, 32 to 512)
KERNEL(classifier_gradient, 512, 2)
(act* logits, float* losses, const float* sums, const float* largest, const unsigned* targets, float weight, int first,
 int n, int V, int Vp) {
    const size_t at = blockIdx.x;
    act* row = logits + at * Vp;
    const unsigned target = targets[at] - unsigned(first);
    const float factor = weight / sums[at], shift = largest[at] * LOG2_E;
    if (threadIdx.x == 0) {
        losses[at] = logf(sums[at]) - sums[n + at];
    }
    for_each_of_row(row, Vp, [&](size_t start, float(&x)[ELEMENTS]) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            x[i] = start + i < V ? power_of_two(x[i] * LOG2_E - shift) * factor : 0.0f;
            x[i] -= start + i == target && target < unsigned(V) ? weight : 0.0f;
        }
        store_elements(row, x, start, Vp);
    });
}

// out[1] = the mean of losses[n], summed in double precision.
// launch: grid (1), block (256)
KERNEL(loss_mean, 256, 1)(float* out, const float* losses, int n) {
    double sum = 0.0;
    for (size_t row = threadIdx.x; row < size_t(n); row += blockDim.x) {
        sum += losses[row];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        out[0] = float(sum / n);
    }
}
