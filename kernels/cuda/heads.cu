#include "common.cuh"
// Queries, keys and values of heads, fused in rows of (NH + 2 G) HS: NH heads of queries, then G of keys, then G of
// values. Rotary positions turn the queries and keys; where G heads of keys are fewer than NH, each is repeated for its
// NH / G heads of queries, so that the attention kernels see rows of 3 NH HS.

constexpr int HEADS_THREADS = 128;

// Turns channels i and i + pairs of each of the first `heads` heads of a row by the angle of its position and pair, or
// backwards. cosines[T, pairs] and sines[T, pairs]; rows lie `stride` apart. One row a block.
// launch: grid (n), block (128)
KERNEL(heads_rotate, HEADS_THREADS, 8)
(act* rows, const float* cosines, const float* sines, int n, int T, int heads, int pairs, int stride, int backwards) {
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const size_t at = row % T * pairs;
        for (int i = threadIdx.x; i < heads * pairs; i += HEADS_THREADS) {
            const int pair = i % pairs;
            act* const first = rows + row * stride + i / pairs * 2 * pairs + pair;
            const float a = to_float(first[0]), b = to_float(first[pairs]);
            const float cosine = cosines[at + pair], sine = backwards ? -sines[at + pair] : sines[at + pair];
            first[0] = to_act(a * cosine - b * sine);
            first[pairs] = to_act(b * cosine + a * sine);
        }
    }
}

// out[n, 3 NH HS] = fused[n, (NH + 2 G) HS] with keys and values repeated. One row a block.
// launch: grid (n), block (128)
KERNEL(heads_expand, HEADS_THREADS, 8)(act* out, const act* fused, int n, int NH, int G, int HS) {
    const int third = NH * HS, members = NH / G;
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const act* const source = fused + row * (third + 2 * G * HS);
        for (int i = threadIdx.x; i < 3 * third; i += HEADS_THREADS) {
            const int part = i / third, head = i % third / HS, channel = i % HS;
            const int from = part == 0 ? head : NH + (part - 1) * G + head / members;
            out[row * 3 * third + i] = source[from * HS + channel];
        }
    }
}

// out[n, (NH + 2 G) HS] = the gradient of heads_expand's input, from that of its output: repeated heads are added up, in
// their order. One row a block.
// launch: grid (n), block (128)
KERNEL(heads_reduce, HEADS_THREADS, 8)(act* out, const act* gradient, int n, int NH, int G, int HS) {
    const int third = NH * HS, members = NH / G, width = third + 2 * G * HS;
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const act* const source = gradient + row * 3 * third;
        for (int i = threadIdx.x; i < width; i += HEADS_THREADS) {
            if (i < third) {
                out[row * width + i] = source[i];
                continue;
            }
            const int group = (i - third) / HS, channel = i % HS;
            const act* const first = source + (1 + group / G) * third + group % G * members * HS + channel;
            float sum = 0.0f;
            for (int member = 0; member < members; member++) {
                sum += to_float(first[member * HS]);
            }
            out[row * width + i] = to_act(sum);
        }
    }
}

// For key and value heads that several tensor-parallel ranks hold, whose gradients are summed. In a row of
// fused[n, stride], the outputs from `start` are `blocks` runs of `size`, each of them piece `piece` of `pieces`. Copies
// them to wide[n, blocks pieces size], where the other pieces are 0, so a sum over all ranks adds up copies of the same
// piece only. One row per block.
// launch: grid (n), block (128)
KERNEL(heads_spread, HEADS_THREADS, 8)
(act* wide, const act* fused, int n, int stride, int start, int blocks, int size, int pieces, int piece) {
    const int width = blocks * pieces * size;
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const act* const source = fused + row * stride + start;
        for (int i = threadIdx.x; i < width; i += HEADS_THREADS) {
            const bool own = i / size % pieces == piece;
            wide[row * width + i] = own ? source[i / size / pieces * size + i % size] : to_act(0.0f);
        }
    }
}

// Copies the piece's sums back from `wide`. One row per block.
// launch: grid (n), block (128)
KERNEL(heads_collect, HEADS_THREADS, 8)
(act* fused, const act* wide, int n, int stride, int start, int blocks, int size, int pieces, int piece) {
    const int width = blocks * pieces * size;
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        act* const target = fused + row * stride + start;
        for (int i = threadIdx.x; i < blocks * size; i += HEADS_THREADS) {
            target[i] = wide[row * width + (i / size * pieces + piece) * size + i % size];
        }
    }
}
