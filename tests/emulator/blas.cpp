// A stand-in for cuBLASLt (libcublasLt.so.13): column-major matrix products with epilogues, queued on the stream of the call.
// Sums run over k in blocks of a fixed size: the result depends on the shapes, the values and the algorithm only.
#include "gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type : int { F32 = 0, BF16 = 14 };
enum Epilogue : unsigned { BIAS = 4, GELU = 32, AUX = 128, DGELU = 192, BGRAD = 16, BGRADA = 256, BGRADB = 512 };

struct Layout {
    int type = F32, order = 0;
    uint64_t rows = 0, columns = 0;
    int64_t stride = 0;
    int batches = 1;
    int64_t batch_stride = 0;
};

struct Description {
    int compute = 68, scale = F32, pointer_mode = 0, transpose_a = 0, transpose_b = 0, transpose_c = 0, fill = 2;
    unsigned epilogue = 1;
    void* bias = nullptr;
    int64_t bias_batch_stride = 0;
    void* aux = nullptr;
    int64_t aux_stride = 0, aux_batch_stride = 0;
    int multiprocessors = 0, aux_type = -1, bias_type = -1;
};

struct Handle { int device; };
struct Preference {
    uint64_t workspace_bytes = 0;
    uint32_t reductions = 7;  // 1 in place, in the type of the output; 2 in that of the computation; 4 in that of the output
};

struct Algorithm { uint64_t data[8]; };
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
    Algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
constexpr uint64_t MARK = 0x656d756c61746564;
constexpr int ALGORITHMS = 3;  // algorithm i sums k in i + 1 parts
constexpr useconds_t SLOWER = 4000;  // microseconds that an algorithm takes longer than $EMULATOR_FASTEST

// The number of the fastest algorithm on a device, from a list like 0,2 by device; negative: all take the same.
int fastest(int device) {
    const char* text = getenv("EMULATOR_FASTEST");
    if (!text || !*text) return -1;
    for (; device > 0 && strchr(text, ','); --device) text = strchr(text, ',') + 1;
    return atoi(text);
}

// The stand-in for the driver: a product is an operation of a stream there.
struct Driver {
    int (*enqueue)(void*, void (*)(void*), void*, void (*)(void*), const char*);
    void (*check_memory)(const char*, const char*, const void*, size_t);
    void (*refuse_after_exit)();
    int (*current_device)(int*);
    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW);
        enqueue = library ? (decltype(enqueue))dlsym(library, "emulator_enqueue_again") : nullptr;
        check_memory = library ? (decltype(check_memory))dlsym(library, "emulator_check_memory") : nullptr;
        refuse_after_exit = library ? (decltype(refuse_after_exit))dlsym(library, "emulator_refuse_after_exit") : nullptr;
        current_device = library ? (decltype(current_device))dlsym(library, "cuCtxGetDevice") : nullptr;
        if (!enqueue || !check_memory || !refuse_after_exit || !current_device) {
            fprintf(stderr, "emulator: cublasLt: expected the stand-in libcuda.so.1, found %s\n", library ? "another" : "none");
            abort();
        }
    }
};
Driver& driver() {
    static auto& loaded = *new Driver;
    return loaded;
}

size_t width(int type) { return type == BF16 ? 2 : 4; }
int bias_type(const Description& d, const Layout& out) { return d.bias_type < 0 ? out.type : d.bias_type; }
int aux_type(const Description& d, const Layout& out) { return d.aux_type < 0 ? out.type : d.aux_type; }
bool uses_bias(unsigned epilogue) { return epilogue & (BIAS | BGRADA | BGRADB) || epilogue == (DGELU | BGRAD); }
bool uses_aux(unsigned epilogue) { return epilogue & AUX; }

bool known_epilogue(unsigned epilogue) {
    for (unsigned each : {1u, 4u, 32u, 36u, 160u, 164u, 192u, 208u, 256u, 512u})
        if (each == epilogue) return true;
    return false;
}

// What cuBLASLt's documentation lists as supported, as far as this project uses it; the rest is refused as the library would.
int check(const Description& d, const Layout& a, const Layout& b, const Layout& c, const Layout& out) {
    uint64_t m = d.transpose_a ? a.columns : a.rows, k = d.transpose_a ? a.rows : a.columns;
    uint64_t n = d.transpose_b ? b.rows : b.columns, inner = d.transpose_b ? b.columns : b.rows;
    if (k != inner || out.rows != m || out.columns != n || c.rows != m || c.columns != n) return INVALID_VALUE;
    if (!m || !n || !k) return INVALID_VALUE;
    for (const Layout* each : {&a, &b, &c, &out}) {
        if (each->stride < (int64_t)each->rows || each->batches != a.batches || each->batches < 1) return INVALID_VALUE;
        if (each->order != 0 || (each->type != F32 && each->type != BF16)) return NOT_SUPPORTED;
    }
    if (d.pointer_mode != 0 || d.transpose_c || d.scale != F32 || d.fill != 2) return NOT_SUPPORTED;
    if (a.type != b.type || c.type != out.type || (a.type == F32 && out.type != F32)) return NOT_SUPPORTED;
    bool fast = d.compute == 77 || d.compute == 75 || d.compute == 74;
    if (d.compute != 68 && d.compute != 69 && !(fast && a.type == F32)) return NOT_SUPPORTED;
    if (!known_epilogue(d.epilogue)) return NOT_SUPPORTED;
    if (const char* refused = getenv("EMULATOR_REFUSES"); refused && (unsigned)atoi(refused) == d.epilogue) return NOT_SUPPORTED;
    if (uses_bias(d.epilogue) && bias_type(d, out) != out.type) return NOT_SUPPORTED;
    if (uses_aux(d.epilogue) && aux_type(d, out) != out.type) return NOT_SUPPORTED;
    if (uses_aux(d.epilogue) && d.aux && (d.aux_stride % 8 || d.aux_stride < (int64_t)m || (uintptr_t)d.aux % 16)) return INVALID_VALUE;
    return SUCCESS;
}

struct Product {
    Description d;
    Layout a, b, c, out;
    float alpha, beta;
    const void *a_data, *b_data, *c_data;
    void* out_data;
    int algorithm, device;
    void* workspace;
    size_t workspace_bytes;
};

const void* element(const void* data, int type, int64_t index) { return (const char*)data + index * (int64_t)width(type); }
float get(const void* data, int type, int64_t index) { return type == BF16 ? from_bf16(((const uint16_t*)data)[index]) : ((const float*)data)[index]; }
void put(void* data, int type, int64_t index, float value) {
    if (type == BF16) ((uint16_t*)data)[index] = to_bf16(value);
    else ((float*)data)[index] = value;
}

// By the logistic function, where the kernels use tanh: close, but not the same bits, as with the real library.
constexpr float ROOT = 0.7978845608028654f, CUBE = 0.044715f;
float logistic(float x) { return 1.0f / (1.0f + expf(-2.0f * ROOT * (x + CUBE * x * x * x))); }
float gelu(float x) { return x * logistic(x); }
float gelu_slope(float x) {
    float s = logistic(x);
    return s + 2.0f * x * s * (1.0f - s) * ROOT * (1.0f + 3.0f * CUBE * x * x);
}

// One matrix of the batch. `sums` holds the product, column-major without gaps; the epilogue writes the output from it.
void finish(const Product& p, int batch, std::vector<float>& sums, int64_t m, int64_t n) {
    unsigned epilogue = p.d.epilogue;
    const void* c = p.c_data ? element(p.c_data, p.c.type, batch * p.c.batch_stride) : nullptr;
    void* out = (void*)element(p.out_data, p.out.type, batch * p.out.batch_stride);
    int bias_kind = bias_type(p.d, p.out), aux_kind = aux_type(p.d, p.out);
    void* bias = p.d.bias ? (void*)element(p.d.bias, bias_kind, batch * p.d.bias_batch_stride) : nullptr;
    void* aux = p.d.aux ? (void*)element(p.d.aux, aux_kind, batch * p.d.aux_batch_stride) : nullptr;
    bool bend = epilogue == GELU || epilogue == (GELU | BIAS) || epilogue == (GELU | AUX) || epilogue == (GELU | AUX | BIAS);
    bool slope = epilogue == DGELU || epilogue == (DGELU | BGRAD), add_bias = epilogue & BIAS, reduce = epilogue == (DGELU | BGRAD);
    std::vector<float> row_sums(reduce ? m : 0, 0.0f);
    for (int64_t j = 0; j < n; ++j)
        for (int64_t i = 0; i < m; ++i) {
            float value = p.alpha * sums[i + j * m];
            if (p.beta != 0.0f) value += p.beta * get(c, p.c.type, i + j * p.c.stride);
            if (add_bias) value += get(bias, bias_kind, i);
            if (slope) value *= gelu_slope(get(aux, aux_kind, i + j * p.d.aux_stride));
            if (bend && (epilogue & AUX)) put(aux, aux_kind, i + j * p.d.aux_stride, value);
            if (bend) value = gelu(value);
            if (reduce) row_sums[i] += value;
            put(out, p.out.type, i + j * p.out.stride, value);
        }
    for (int64_t i = 0; i < (int64_t)row_sums.size(); ++i) put(bias, bias_kind, i, row_sums[i]);
}

// BGRADA and BGRADB: the sums over k of op(A)'s rows (m values) or of op(B)'s columns (n values).
void reduce_operand(const Product& p, int batch, int64_t m, int64_t n, int64_t k) {
    bool first = p.d.epilogue == BGRADA;
    const Layout& layout = first ? p.a : p.b;
    const void* data = element(first ? p.a_data : p.b_data, layout.type, batch * layout.batch_stride);
    bool along_rows = first ? p.d.transpose_a : !p.d.transpose_b;  // k runs along the stored rows
    void* bias = (void*)element(p.d.bias, bias_type(p.d, p.out), batch * p.d.bias_batch_stride);
    for (int64_t each = 0; each < (first ? m : n); ++each) {
        float sum = 0.0f;
        for (int64_t at = 0; at < k; ++at) sum += get(data, layout.type, along_rows ? at + each * layout.stride : each + at * layout.stride);
        put(bias, bias_type(p.d, p.out), each, sum);
    }
}

size_t extent_bytes(const Layout& layout) {
    int64_t last = (layout.batches - 1) * layout.batch_stride + ((int64_t)layout.columns - 1) * layout.stride + (int64_t)layout.rows;
    return (size_t)last * width(layout.type);
}

void check_operands(const Product& p) {
    const char* call = "cublasLtMatmul";
    driver().check_memory(call, "A", p.a_data, extent_bytes(p.a));
    driver().check_memory(call, "B", p.b_data, extent_bytes(p.b));
    if (p.workspace_bytes) driver().check_memory(call, "workspace", p.workspace, p.workspace_bytes);
    if (p.beta != 0.0f) driver().check_memory(call, "C", p.c_data, extent_bytes(p.c));
    driver().check_memory(call, "D", p.out_data, extent_bytes(p.out));
    size_t bias_length = p.d.epilogue == BGRADB ? p.out.columns : p.out.rows;
    if (uses_bias(p.d.epilogue)) driver().check_memory(call, "bias", p.d.bias, bias_length * width(bias_type(p.d, p.out)));
    if (!uses_aux(p.d.epilogue)) return;
    int64_t last = (p.out.batches - 1) * p.d.aux_batch_stride + ((int64_t)p.out.columns - 1) * p.d.aux_stride + (int64_t)p.out.rows;
    driver().check_memory(call, "epilogue's auxiliary matrix", p.d.aux, (size_t)last * width(aux_type(p.d, p.out)));
}

void multiply(void* argument) {
    auto* p = (Product*)argument;
    check_operands(*p);  // in a graph, memory may be freed meanwhile
    int64_t m = (int64_t)p->out.rows, n = (int64_t)p->out.columns, k = (int64_t)(p->d.transpose_a ? p->a.rows : p->a.columns);
    std::vector<float> sums((size_t)(m * n)), part(p->algorithm ? sums.size() : 0);
    if (int first = fastest(p->device); first >= 0 && p->algorithm != first) usleep(SLOWER);
    for (int batch = 0; batch < p->out.batches; ++batch) {
        Operand a{element(p->a_data, p->a.type, batch * p->a.batch_stride), p->a.type == BF16, p->d.transpose_a != 0, p->a.stride};
        Operand b{element(p->b_data, p->b.type, batch * p->b.batch_stride), p->b.type == BF16, p->d.transpose_b != 0, p->b.stride};
        if (!p->algorithm) product(a, b, m, n, k, sums.data());
        else std::fill(sums.begin(), sums.end(), 0.0f);
        int64_t step = (k + p->algorithm) / (p->algorithm + 1);
        for (int64_t from = 0; p->algorithm && from < k; from += step) {
            Operand left = a, right = b;
            left.data = element(a.data, p->a.type, a.transposed ? from : from * a.stride);
            right.data = element(b.data, p->b.type, b.transposed ? from * b.stride : from);
            product(left, right, m, n, std::min(step, k - from), part.data());
            for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
        }
        if (p->d.epilogue == BGRADA || p->d.epilogue == BGRADB) reduce_operand(*p, batch, m, n, k);
        finish(*p, batch, sums, m, n);
    }
}

template <class T> int set(T& field, const void* data, size_t bytes) {
    if (!data || bytes != sizeof(T)) return INVALID_VALUE;
    memcpy(&field, data, bytes);
    return SUCCESS;
}

// Opening the library takes as long as $EMULATOR_OPENING_MS says, as from a cold disk.
__attribute__((constructor)) void open_slowly() {
    if (const char* milliseconds = getenv("EMULATOR_OPENING_MS")) usleep((useconds_t)atoi(milliseconds) * 1000);
}

}  // namespace

API int cublasLtCreate(Handle** out) {
    if (!out) return INVALID_VALUE;
    int device = 0;
    if (driver().current_device(&device)) return NOT_INITIALIZED;
    *out = new Handle{device};
    return SUCCESS;
}
API int cublasLtDestroy(Handle* handle) { driver().refuse_after_exit(); return handle ? (delete handle, (int)SUCCESS) : (int)NOT_INITIALIZED; }
API size_t cublasLtGetVersion() { return 130000; }
API size_t cublasLtGetCudartVersion() { return 13000; }

API const char* cublasLtGetStatusName(int status) {
    switch (status) {
        case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}
API const char* cublasLtGetStatusString(int status) { return cublasLtGetStatusName(status); }

API int cublasLtMatmulDescCreate(Description** out, int compute, int scale) {
    if (!out) return INVALID_VALUE;
    *out = new Description;
    (*out)->compute = compute, (*out)->scale = scale;
    return SUCCESS;
}
API int cublasLtMatmulDescDestroy(Description* d) { driver().refuse_after_exit(); return delete d, SUCCESS; }

API int cublasLtMatmulDescSetAttribute(Description* d, int attribute, const void* data, size_t bytes) {
    driver().refuse_after_exit();
    if (!d) return INVALID_VALUE;
    switch (attribute) {
        case 0: return set(d->compute, data, bytes);
        case 1: return set(d->scale, data, bytes);
        case 2: return set(d->pointer_mode, data, bytes);
        case 3: return set(d->transpose_a, data, bytes);
        case 4: return set(d->transpose_b, data, bytes);
        case 5: return set(d->transpose_c, data, bytes);
        case 6: return set(d->fill, data, bytes);
        case 7: return set(d->epilogue, data, bytes);
        case 8: return set(d->bias, data, bytes);
        case 10: return set(d->bias_batch_stride, data, bytes);
        case 11: return set(d->aux, data, bytes);
        case 12: return set(d->aux_stride, data, bytes);
        case 13: return set(d->aux_batch_stride, data, bytes);
        case 15: return set(d->multiprocessors, data, bytes);
        case 22: return set(d->aux_type, data, bytes);
        case 26: return set(d->bias_type, data, bytes);
        default: return NOT_SUPPORTED;
    }
}

API int cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    if (!out) return INVALID_VALUE;
    *out = new Layout;
    (*out)->type = type, (*out)->rows = rows, (*out)->columns = columns, (*out)->stride = stride;
    return SUCCESS;
}
API int cublasLtMatrixLayoutDestroy(Layout* layout) { driver().refuse_after_exit(); return delete layout, SUCCESS; }

API int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* data, size_t bytes) {
    if (!layout) return INVALID_VALUE;
    switch (attribute) {
        case 0: return set(layout->type, data, bytes);
        case 1: return set(layout->order, data, bytes);
        case 2: return set(layout->rows, data, bytes);
        case 3: return set(layout->columns, data, bytes);
        case 4: return set(layout->stride, data, bytes);
        case 5: return set(layout->batches, data, bytes);
        case 6: return set(layout->batch_stride, data, bytes);
        default: return NOT_SUPPORTED;
    }
}

API int cublasLtMatmulPreferenceCreate(Preference** out) { return out ? (*out = new Preference, (int)SUCCESS) : (int)INVALID_VALUE; }
API int cublasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, SUCCESS; }
API int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* data, size_t bytes) {
    if (!preference) return INVALID_VALUE;
    if (attribute == 3) return set(preference->reductions, data, bytes);
    return attribute == 1 ? set(preference->workspace_bytes, data, bytes) : (int)SUCCESS;
}

API int cublasLtMatmulAlgoGetHeuristic(Handle* handle, Description* d, Layout* a, Layout* b, Layout* c, Layout* out, Preference* preference, int wanted,
                                       Heuristic* results, int* count) {
    driver().refuse_after_exit();
    if (!handle) return NOT_INITIALIZED;
    if (!d || !a || !b || !c || !out || !preference || wanted < 1 || !results || !count) return INVALID_VALUE;
    *count = 0;
    if (int status = check(*d, *a, *b, *c, *out)) return status;
    // The library may part a long sum, and in these schemes keeps the parts in the type of the output.
    if (out->type == BF16 && (d->transpose_a ? a->rows : a->columns) >= 128 && preference->reductions & 5) {
        fprintf(stderr, "emulator: cublasLtMatmulAlgoGetHeuristic: expected partial sums in float32, found that the preference lets them be rounded to bfloat16\n");
        abort();
    }
    for (*count = 0; *count < std::min(wanted, ALGORITHMS); ++*count) {
        Heuristic& result = results[*count];
        memset(&result, 0, sizeof result);
        result.algorithm = Algorithm{{MARK, out->rows, out->columns, (uint64_t)a->type, (uint64_t)out->type, d->epilogue, (uint64_t)*count, 0}};
        result.waves = 1.0f;
    }
    return SUCCESS;
}

API int cublasLtMatmul(Handle* handle, Description* d, const void* alpha, const void* a, Layout* a_layout, const void* b, Layout* b_layout, const void* beta,
                       const void* c, Layout* c_layout, void* out, Layout* out_layout, const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
    if (!handle) return NOT_INITIALIZED;
    if (!d || !alpha || !beta || !a || !b || !out || !a_layout || !b_layout || !c_layout || !out_layout) return INVALID_VALUE;
    if (int status = check(*d, *a_layout, *b_layout, *c_layout, *out_layout)) return status;
    if (algorithm && (algorithm->data[0] != MARK || algorithm->data[3] != (uint64_t)a_layout->type || algorithm->data[5] != d->epilogue)) return INVALID_VALUE;
    if ((uses_bias(d->epilogue) && !d->bias) || (uses_aux(d->epilogue) && (!d->aux || d->aux_stride % 8 || !d->aux_stride))) return INVALID_VALUE;
    auto* p = new Product{*d, *a_layout, *b_layout, *c_layout, *out_layout, *(const float*)alpha, *(const float*)beta, a, b, c, out,
                          algorithm ? (int)algorithm->data[6] : 0, handle->device, workspace, workspace_bytes};
    check_operands(*p);
    char name[96];
    snprintf(name, sizeof name, "cublasLtMatmul %llu x %llu x %llu", (unsigned long long)p->out.rows, (unsigned long long)p->out.columns,
             (unsigned long long)(p->d.transpose_a ? p->a.rows : p->a.columns));
    auto drop = [](void* product) { delete (Product*)product; };
    return driver().enqueue(stream, multiply, p, drop, name) ? (int)INVALID_VALUE : (int)SUCCESS;
}
