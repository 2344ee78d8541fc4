#include "common.cuh"
// Slices of sequences. The attention kernels see the slice and everything before it as rows of 3 NH HS, as heads_expand
// makes them, of B sequences of T tokens; a slice's own rows (t of each sequence, from `position` on) are as other
// kernels leave them.

constexpr int SLICE_THREADS = 128;

// The row of wide[B, T, ..] of row `row` of a slice.
__device__ inline size_t wide_row(size_t row, int t, int T, int position) {
    return row / t * T + position + row % t;
}

// Copies the rows of a slice into wide[B, T, 3 NH HS]: keys and values, which end source[n, stride] in G heads each,
// repeated for the heads of queries; queries, which begin it, if has_queries, and otherwise zeros. One row per block.
// launch: grid (n), block (128)
KERNEL(slice_gather, SLICE_THREADS, 8)
(act* wide, const act* source, int n, int t, int T, int position, int stride, int has_queries, int NH, int G, int HS) {
    const int third = NH * HS, members = NH / G;
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const act* const queries = source + row * stride;
        const act* const keys = queries + stride - 2 * G * HS;
        act* const target = wide + wide_row(row, t, T, position) * 3 * third;
        for (int i = threadIdx.x; i < 3 * third; i += SLICE_THREADS) {
            const int part = i / third, head = i % third / HS, channel = i % HS;
            if (part == 0) {
                target[i] = has_queries ? queries[i] : to_act(0.0f);
            } else {
                target[i] = keys[((part - 1) * G + head / members) * HS + channel];
            }
        }
    }
}

// The gradient of slice_gather's source: out[n, (NH + 2 G) HS] if has_queries, otherwise out[n, 2 G HS], from that of
// wide. Repeated heads are added up in their order, and other[n, 2 G HS], unless it is null, is added to keys and
// values; it may be out without queries. One row per block.
// launch: grid (n), block (128)
KERNEL(slice_reduce, SLICE_THREADS, 8)
(act* out, const act* wide, const act* other, int n, int t, int T, int position, int has_queries, int NH, int G,
 int HS) {
    const int third = NH * HS, members = NH / G, cached = 2 * G * HS;
    const int queries = has_queries ? third : 0, width = queries + cached;
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        const act* const source = wide + wide_row(row, t, T, position) * 3 * third;
        for (int i = threadIdx.x; i < width; i += SLICE_THREADS) {
            if (i < queries) {
                out[row * width + i] = source[i];
                continue;
            }
            const int group = (i - queries) / HS, channel = (i - queries) % HS;
            const act* const first = source + (1 + group / G) * third + group % G * members * HS + channel;
            float sum = other ? to_float(other[row * cached + i - queries]) : 0.0f;
            for (int member = 0; member < members; member++) {
                sum += to_float(first[member * HS]);
            }
            out[row * width + i] = to_act(sum);
        }
    }
}

// Copies runs of `length` elements, `count` elements in all, from every in_stride elements to every out_stride.
// launch: grid (ceil(count / 2048)), block (256)
KERNEL(strided_copy, 256, 4)(act* out, const act* in, size_t count, int length, int out_stride, int in_stride) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const size_t run = i / length, at = i % length;
        out[run * out_stride + at] = in[run * in_stride + at];
    }
}
