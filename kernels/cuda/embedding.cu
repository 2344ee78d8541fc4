#include "common.cuh"
// Token and position embedding: a row of wte[Vp, C] plus, unless wpe is null, a row of wpe[maxT, C].

constexpr int EMBEDDING_COLUMNS = 128; // of a block of the backward kernels, one a thread

// out[n, C] = wte[tokens[row] - first] + wpe[row mod T], one row per block. wte[rows, C] begins with the row of token
// `first`; tokens that another tensor-parallel rank has count as rows of 0.
// launch: grid (n), block (128)
KERNEL(embedding_forward, 128, 8)
(act* out, const unsigned* tokens, const act* wte, const act* wpe, int n, int T, int C, int first, int rows) {
    for (size_t row = blockIdx.x; row < size_t(n); row += gridDim.x) {
        act* target = out + row * C;
        const unsigned id = tokens[row] - unsigned(first);
        const bool here = id < unsigned(rows);
        const act* token = wte + size_t(here ? id : 0) * C;
        const act* position = wpe != nullptr ? wpe + row % T * C : token;
        for (size_t start = size_t(threadIdx.x) * ELEMENTS; start < C; start += 128 * ELEMENTS) {
            float x[2][ELEMENTS];
            load_together(x, {token, position}, start, {size_t(here ? C : 0), size_t(wpe != nullptr ? C : 0)});
            if (wpe != nullptr) {
#pragma unroll
                for (int i = 0; i < ELEMENTS; i++) {
                    x[0][i] += x[1][i];
                }
            }
            store_elements(target, x[0], start, C);
        }
    }
}

// dwte[rows, C] += gradient[n, C], row by row. ids[u] are the distinct tokens, order[starts[i]..starts[i + 1]] the rows
// of token i in ascending order, which is the order of addition. dwte begins with the row of token `first`; tokens of
// other tensor-parallel ranks are skipped.
// launch: grid (u, ceil(C / 128)), block (128)
KERNEL(embedding_backward_token, EMBEDDING_COLUMNS, 8)
(float* dwte, const act* gradient, const unsigned* ids, const unsigned* starts, const unsigned* order, int u, int C,
 int first, int rows) {
    const int column = blockIdx.y * EMBEDDING_COLUMNS + threadIdx.x;
    if (column >= C) {
        return;
    }
    for (int token = blockIdx.x; token < u; token += gridDim.x) {
        const unsigned id = ids[token] - unsigned(first);
        if (id >= unsigned(rows)) {
            continue;
        }
        const unsigned end = starts[token + 1];
        float sum = 0.0f;
#pragma unroll 8
        for (unsigned i = starts[token]; i < end; i++) {
            sum += to_float(gradient[size_t(order[i]) * C + column]);
        }
        dwte[size_t(id) * C + column] += sum;
    }
}

// dwpe[maxT, C] += gradient[B, T, C], summed over the sequences in their order.
// launch: grid (T, ceil(C / 128)), block (128)
KERNEL(embedding_backward_position, EMBEDDING_COLUMNS, 8)
(float* dwpe, const act* gradient, int B, int T, int C) {
    const int column = blockIdx.y * EMBEDDING_COLUMNS + threadIdx.x;
    if (column >= C) {
        return;
    }
    for (int position = blockIdx.x; position < T; position += gridDim.x) {
        float sum = 0.0f;
#pragma unroll 8
        for (int sequence = 0; sequence < B; sequence++) {
            sum += to_float(gradient[(size_t(sequence) * T + position) * C + column]);
        }
        dwpe[size_t(position) * C + column] += sum;
    }
}
