// A stand-in for cuDNN (libcudnn.so.9): causal attention as one operation, forward and backward, queued on the stream of the handle.
// It takes the descriptors that pipesim sets and refuses all else. Where the real 9.28.1 refuses, the status is the real one's, as
// measured without a GPU; layouts, types and numbers of tensors that the real one does not look at are refused as well.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int {
    SUCCESS = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NULL_POINTER = 2002, MISALIGNED = 2003, NOT_FINALIZED = 2004, STREAM_MISMATCH = 2007,
    DUPLICATED = 2009, ATTRIBUTE_TYPE = 2010, NOT_SUPPORTED = 3000, DATA_TYPE = 3003, LAYOUT = 3004, SHARED_MEMORY = 3010, HOST_ALLOCATION_FAILED = 4003,
};
enum Kind : int { ENGINE = 2, CONFIGURATION = 3, HEURISTIC = 4, PLAN = 5, GRAPH = 15, PACK = 16, TENSOR = 17, FORWARD = 41, BACKWARD = 43, MASK = 44 };
enum Type : int {
    HANDLE = 0, DATA = 1, BOOLEAN = 2, INT64 = 3, POINTER = 6, MODE = 8, NOTE = 11, COMPARISON = 14, DESCRIPTOR = 15,
};
enum Name : int {
    HEURISTIC_MODE = 200, HEURISTIC_GRAPH = 201, RESULTS = 202, CONFIGURED_ENGINE = 300, PLAN_HANDLE = 400,
    PLAN_CONFIGURATION = 401, WORKSPACE_SIZE = 402, GRAPH_HANDLE = 800, OPERATIONS = 801, ALIGNMENT = 900, DATA_OF = 901, DIMENSIONS = 902, STRIDES = 903,
    NUMBER = 906, IS_VIRTUAL = 907, IS_VALUE = 908, NUMBERS = 1000, POINTERS = 1001, WORKSPACE = 1003, ENGINE_NUMBER = 1301, NOTES = 1303,
    // of the forward; those of the backward are 51 more up to the scale
    Q = 2800, K = 2801, V = 2802, O = 2803, STATISTICS = 2804, SCALE = 2805, FORWARD_GRAPH = 2811, FORWARD_FROM = 2812, FORWARD_TO = 2813,
    DQ = 2859, DK = 2860, DV = 2861, DO = 2862, BACKWARD_GRAPH = 2867, BACKWARD_FROM = 2868, BACKWARD_TO = 2869, MASK_IN = 3000, MASK_VALUE = 3005,
    MASK_OUT = 3006, MASK_COMPARISON = 3007,
};
constexpr int SHIFT = 51, FLOAT = 0, BFLOAT16 = 9, GREATER_EQUAL = 303, NONDETERMINISTIC = 4;

// An attribute that may be set: its type, how many values, and whether finalizing needs it.
struct Rule { int name, type, least, most; bool is_needed; };

std::vector<Rule> rules(int kind) {
    auto tensors = [](std::vector<int> names) {
        std::vector<Rule> all;
        for (int name : names) all.push_back({name, DESCRIPTOR, 1, 1, true});
        return all;
    };
    switch (kind) {
        case TENSOR: return {{NUMBER, INT64, 1, 1, true}, {DATA_OF, DATA, 1, 1, true}, {DIMENSIONS, INT64, 4, 4, true}, {STRIDES, INT64, 4, 4, true},
                             {ALIGNMENT, INT64, 1, 1, true}, {IS_VIRTUAL, BOOLEAN, 1, 1, false}, {IS_VALUE, BOOLEAN, 1, 1, false}};
        case MASK: {
            auto all = tensors({MASK_IN, MASK_VALUE, MASK_OUT});
            all.push_back({MASK_COMPARISON, COMPARISON, 1, 1, true});
            return all;
        }
        case FORWARD: {
            auto all = tensors({Q, K, V, O, STATISTICS, SCALE, FORWARD_GRAPH});
            for (int name : {FORWARD_FROM, FORWARD_TO}) all.push_back({name, INT64, 1, 1, true});
            return all;
        }
        case BACKWARD: {
            auto all = tensors({Q + SHIFT, K + SHIFT, V + SHIFT, O + SHIFT, STATISTICS + SHIFT, SCALE + SHIFT, DQ, DK, DV, DO, BACKWARD_GRAPH});
            for (int name : {BACKWARD_FROM, BACKWARD_TO}) all.push_back({name, INT64, 1, 1, true});
            return all;
        }
        case GRAPH: return {{OPERATIONS, DESCRIPTOR, 1, 1, true}, {GRAPH_HANDLE, HANDLE, 1, 1, false}};
        case HEURISTIC: return {{HEURISTIC_GRAPH, DESCRIPTOR, 1, 1, true}, {HEURISTIC_MODE, MODE, 1, 1, true}};
        case PLAN: return {{PLAN_CONFIGURATION, DESCRIPTOR, 1, 1, true}, {PLAN_HANDLE, HANDLE, 1, 1, true}};
        case PACK: return {{NUMBERS, INT64, 1, 64, true}, {POINTERS, POINTER, 1, 64, true}, {WORKSPACE, POINTER, 1, 1, true}};
        default: return {};
    }
}

size_t width(int type) { return type == BOOLEAN ? 1 : type == INT64 || type == POINTER || type == DESCRIPTOR || type == HANDLE ? 8 : 4; }

struct Descriptor;
using Shared = std::shared_ptr<Descriptor>;
struct Value {
    int type = 0;
    std::vector<char> bytes;
    Shared held;
};

struct Descriptor {
    int kind = 0, engine = -1;
    bool is_finalized = false;
    std::map<int, Value> values;
    Shared operation;  // of graphs, engines, configurations and plans
    template <class T> T get(int name, int index = 0) const {
        T value{};
        auto found = values.find(name);
        if (found != values.end()) memcpy(&value, found->second.bytes.data() + index * sizeof(T), sizeof(T));
        return value;
    }
    Shared held(int name) const {
        auto found = values.find(name);
        return found == values.end() ? nullptr : found->second.held;
    }
    int64_t dimension(int index) const { return get<int64_t>(DIMENSIONS, index); }
    int64_t stride(int index) const { return get<int64_t>(STRIDES, index); }
};

struct Handle { int device; void* stream; };

thread_local std::string last_message;
int refuse(int status, const std::string& message) { return last_message = message, status; }

// The stand-in for the driver: attention is an operation of a stream there.
struct Driver {
    int (*enqueue)(void*, void (*)(void*), void*, const char*);
    void (*check_memory)(const char*, const char*, const void*, size_t);
    void (*refuse_after_exit)();
    int (*current_device)(int*);
    int (*stream_device)(void*);
    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW);
        auto find = [&](auto& function, const char* name) { function = library ? (std::decay_t<decltype(function)>)dlsym(library, name) : nullptr; };
        find(enqueue, "emulator_enqueue"), find(check_memory, "emulator_check_memory"), find(refuse_after_exit, "emulator_refuse_after_exit");
        find(current_device, "cuCtxGetDevice"), find(stream_device, "emulator_stream_device");
        if (!enqueue || !check_memory || !refuse_after_exit || !current_device || !stream_device) {
            fprintf(stderr, "emulator: cudnn: expected the stand-in libcuda.so.1, found %s\n", library ? "another" : "none");
            abort();
        }
    }
};
Driver& driver() {
    static auto& loaded = *new Driver;
    return loaded;
}

// Descriptors and handles that live: a use of another is found.
std::mutex& living_mutex = *new std::mutex;
std::map<void*, Shared>& living = *new std::map<void*, Shared>;
std::set<void*>& handles = *new std::set<void*>;

Shared find(void* descriptor) {
    driver().refuse_after_exit();
    std::lock_guard<std::mutex> guard(living_mutex);
    auto found = living.find(descriptor);
    return found == living.end() ? nullptr : found->second;
}
Handle* find_handle(void* handle) {
    driver().refuse_after_exit();
    std::lock_guard<std::mutex> guard(living_mutex);
    return handles.count(handle) ? (Handle*)handle : nullptr;
}

// ---- finalizing ----------------------------------------------------------------------------------------------------

bool has_shape(const Descriptor& tensor, std::vector<int64_t> sizes) {
    for (int i = 0; i < 4; ++i)
        if (tensor.dimension(i) != sizes[i]) return false;
    return true;
}

int check_tensor(const Descriptor& tensor) {
    bool is_value = tensor.get<bool>(IS_VALUE), is_virtual = tensor.get<bool>(IS_VIRTUAL);
    for (int i = 0; i < 4; ++i)
        if (tensor.dimension(i) < 1 || tensor.stride(i) < 1) return refuse(BAD_PARAM, "dimensions and strides must be positive");
    if (is_value && (is_virtual || !has_shape(tensor, {1, 1, 1, 1}))) return refuse(BAD_PARAM, "a value has one element and is not virtual");
    int64_t alignment = tensor.get<int64_t>(ALIGNMENT);
    if (alignment < 1 || alignment & (alignment - 1)) return refuse(BAD_PARAM, "the alignment must be a power of two");
    return SUCCESS;
}

// The name of a forward's attribute in either operation.
int named(const Descriptor& operation, int name) { return operation.kind == FORWARD ? name : name + SHIFT; }

std::vector<int> tensor_names(const Descriptor& operation) {
    std::vector<int> names;
    for (int name : {Q, K, V, O, STATISTICS, SCALE}) names.push_back(named(operation, name));
    if (operation.kind == BACKWARD) names.insert(names.end(), {DQ, DK, DV, DO});
    return names;
}

Shared mask_of(const Descriptor& operation) { return operation.held(operation.kind == FORWARD ? FORWARD_GRAPH : BACKWARD_GRAPH)->operation; }

int check_mask(const Descriptor& operation, int64_t b, int64_t h, int64_t t) {
    bool forward = operation.kind == FORWARD;
    auto graph = operation.held(forward ? FORWARD_GRAPH : BACKWARD_GRAPH);
    if (graph->kind != GRAPH || graph->operation->kind != MASK) return refuse(NOT_SUPPORTED, "the subgraph must be one mask");
    auto from = graph->operation->held(MASK_IN), to = graph->operation->held(MASK_OUT);
    for (auto& each : {from, to}) {
        if (!each->get<bool>(IS_VIRTUAL) || each->get<int>(DATA_OF) != FLOAT) return refuse(DATA_TYPE, "scores must be virtual and float32");
        if (!has_shape(*each, {b, h, t, t})) return refuse(BAD_PARAM, "scores must be (b, h_q, s_q, s_kv)");
    }
    if (from->get<int64_t>(NUMBER) != operation.get<int64_t>(forward ? FORWARD_FROM : BACKWARD_FROM) ||
        to->get<int64_t>(NUMBER) != operation.get<int64_t>(forward ? FORWARD_TO : BACKWARD_TO))
        return refuse(BAD_PARAM, "the subgraph's input and output must be tensors of it");
    return SUCCESS;
}

int check_operation(const Descriptor& operation) {
    auto of = [&](int name) { return operation.held(named(operation, name)); };
    auto q = of(Q), k = of(K), v = of(V), o = of(O), statistics = of(STATISTICS), scale = of(SCALE);
    int64_t b = q->dimension(0), h = q->dimension(1), t = q->dimension(2), size = q->dimension(3), g = k->dimension(1);
    if (k->dimension(3) != size) return refuse(BAD_PARAM, "K tensor d_qk dimension must match Q");
    if (h % g || h % v->dimension(1)) return refuse(BAD_PARAM, "h_q must be divisible by both h_k and h_v for GQA");
    if (!has_shape(*k, {b, g, t, size}) || !has_shape(*v, {b, g, t, size})) return refuse(BAD_PARAM, "V tensor batch and s_kv dimensions must match Q and K");
    if (!has_shape(*o, {b, h, t, size})) return refuse(BAD_PARAM, "O tensor dimensions must be (b, h_q, s_q, d_v)");
    if (!has_shape(*statistics, {b, h, t, 1})) return refuse(BAD_PARAM, "Stats tensor dimensions must be (b, h_q, s_q, 1)");
    if (statistics->stride(0) != h * t || statistics->stride(1) != t || statistics->stride(2) != 1) return refuse(LAYOUT, "statistics must have no gaps");
    if (statistics->get<int>(DATA_OF) != FLOAT || scale->get<int>(DATA_OF) != FLOAT) return refuse(DATA_TYPE, "statistics and scale must be float32");
    if (!scale->get<bool>(IS_VALUE)) return refuse(BAD_PARAM, "the scale must be a value");
    if (operation.kind == BACKWARD) {
        auto same = [&](int name, const Shared& other) { return has_shape(*operation.held(name), {b, other->dimension(1), t, size}); };
        if (!same(DQ, q) || !same(DK, k) || !same(DV, v) || !same(DO, o)) return refuse(BAD_PARAM, "gradients must have the dimensions of what they are of");
    }
    std::set<int64_t> numbers;
    for (int name : tensor_names(operation)) {
        auto tensor = operation.held(name);
        if (tensor->kind != TENSOR) return refuse(BAD_PARAM, "expected a tensor");
        if (!numbers.insert(tensor->get<int64_t>(NUMBER)).second) return refuse(DUPLICATED, "two tensors have one number");
        if (name == named(operation, STATISTICS) || name == named(operation, SCALE)) continue;
        if (tensor->get<bool>(IS_VALUE) || tensor->get<bool>(IS_VIRTUAL)) return refuse(BAD_PARAM, "operands must be in device memory");
        // rows of 16 bytes, one head or token behind the other
        if (tensor->stride(3) != 1 || tensor->stride(1) % 8 || tensor->stride(2) % 8 || tensor->stride(1) < size || tensor->get<int64_t>(ALIGNMENT) < 16)
            return refuse(LAYOUT, "channels must be next to each other, and rows at multiples of 16 bytes");
    }
    return check_mask(operation, b, h, t);
}

// Whether there are engines: 16-bit operands, heads of a multiple of 8 up to 128 channels.
bool is_supported(const Descriptor& operation) {
    for (int name : tensor_names(operation))
        if (name != named(operation, STATISTICS) && name != named(operation, SCALE) && operation.held(name)->get<int>(DATA_OF) != BFLOAT16) return false;
    int64_t size = operation.held(named(operation, Q))->dimension(3);
    return size % 8 == 0 && size <= 128;
}

int finalize(Descriptor& descriptor) {
    for (const Rule& rule : rules(descriptor.kind)) {
        auto found = descriptor.values.find(rule.name);
        if (found == descriptor.values.end() && rule.is_needed)
            return refuse(rule.type == DESCRIPTOR ? NOT_FINALIZED : BAD_PARAM, "attribute " + std::to_string(rule.name) + " is not set");
        if (found != descriptor.values.end() && found->second.held && !found->second.held->is_finalized)
            return refuse(NOT_FINALIZED, "the descriptor of attribute " + std::to_string(rule.name) + " is not finalized");
    }
    switch (descriptor.kind) {
        case TENSOR: return check_tensor(descriptor);
        case FORWARD: case BACKWARD: return check_operation(descriptor);
        case MASK:
            if (descriptor.get<int>(MASK_COMPARISON) != GREATER_EQUAL) return refuse(NOT_SUPPORTED, "expected the comparison GE");
            if (!descriptor.held(MASK_VALUE)->get<bool>(IS_VALUE)) return refuse(BAD_PARAM, "what replaces scores must be a value");
            return SUCCESS;
        case GRAPH:
            descriptor.operation = descriptor.held(OPERATIONS);
            return descriptor.operation->kind == MASK || descriptor.values.count(GRAPH_HANDLE) ? SUCCESS : refuse(BAD_PARAM, "a graph needs a handle");
        case HEURISTIC:
            if (descriptor.get<int>(HEURISTIC_MODE) < 0 || descriptor.get<int>(HEURISTIC_MODE) > 3) return refuse(BAD_PARAM, "unknown mode");
            descriptor.operation = descriptor.held(HEURISTIC_GRAPH)->operation;
            return descriptor.operation->kind == MASK ? refuse(NOT_SUPPORTED, "no engine computes a mask alone") : SUCCESS;
        case PLAN: {
            auto configuration = descriptor.held(PLAN_CONFIGURATION);
            descriptor.operation = configuration->operation, descriptor.engine = configuration->engine;
            return descriptor.engine == 0 ? refuse(SHARED_MEMORY, "engine 0 needs more shared memory than there is") : SUCCESS;
        }
        case PACK:
            if (descriptor.values[NUMBERS].bytes.size() != descriptor.values[POINTERS].bytes.size()) return refuse(BAD_PARAM, "ptrs_count != uids_count");
            return SUCCESS;
        default: return refuse(NOT_SUPPORTED, "this descriptor is not finalized by its user");
    }
}

// ---- execution -----------------------------------------------------------------------------------------------------

float to_float(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    return memcpy(&result, &bits, 4), result;
}
uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (std::isnan(value)) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float rounded(float value) { return to_float(to_bfloat16(value)); }

// A tensor in device memory.
struct Operand {
    char* data = nullptr;
    int64_t strides[4] = {}, sizes[4] = {};
    size_t bytes(size_t element) const {
        int64_t last = 0;
        for (int i = 0; i < 4; ++i) last += (sizes[i] - 1) * strides[i];
        return (size_t)(last + 1) * element;
    }
    int64_t at(int64_t b, int64_t h, int64_t t) const { return b * strides[0] + h * strides[1] + t * strides[2]; }
    uint16_t* row(int64_t b, int64_t h, int64_t t) const { return (uint16_t*)data + at(b, h, t); }
};

struct Attention {
    bool forward = true, in_reverse = false;
    int64_t b = 0, h = 0, g = 0, t = 0, size = 0;
    float scale = 1.0f, masked = 0.0f;
    Operand q, k, v, o, statistics, dq, dk, dv, dout;
    char* workspace = nullptr;
    size_t workspace_bytes = 0;
};

// Forward: a tile's counter. Backward: float32 gradients of queries, and one number a row.
size_t workspace_bytes(const Descriptor& operation) {
    auto q = operation.held(named(operation, Q));
    if (operation.kind == FORWARD) return 256;
    return (size_t)(q->dimension(0) * q->dimension(1) * q->dimension(2) * (q->dimension(3) + 1)) * 4;
}

float dot(const uint16_t* x, const uint16_t* y, int64_t size) {
    float sum = 0.0f;
    for (int64_t i = 0; i < size; ++i) sum += to_float(x[i]) * to_float(y[i]);
    return sum;
}

// Weights are rounded to bfloat16 before the second product, as on tensor cores.
void run_forward(const Attention& a) {
    std::vector<float> scores(a.t), sums(a.size);
    for (int64_t b = 0; b < a.b; ++b)
        for (int64_t h = 0; h < a.h; ++h)
            for (int64_t i = 0; i < a.t; ++i) {
                int64_t group = h / (a.h / a.g);
                float most = -INFINITY, total = 0.0f;
                for (int64_t j = 0; j < a.t; ++j) {
                    scores[j] = i >= j ? a.scale * dot(a.q.row(b, h, i), a.k.row(b, group, j), a.size) : a.masked;
                    most = std::max(most, scores[j]);
                }
                std::fill(sums.begin(), sums.end(), 0.0f);
                for (int64_t j = 0; j < a.t; ++j) {
                    float weight = std::exp(scores[j] - most);
                    total += weight;
                    if (weight == 0.0f) continue;
                    for (int64_t c = 0; c < a.size; ++c) sums[c] += rounded(weight) * to_float(a.v.row(b, group, j)[c]);
                }
                for (int64_t c = 0; c < a.size; ++c) a.o.row(b, h, i)[c] = to_bfloat16(sums[c] / total);
                ((float*)a.statistics.data)[a.statistics.at(b, h, i)] = most + std::log(total);
            }
}

void run_backward(const Attention& a) {
    int64_t members = a.h / a.g;
    for (int64_t b = 0; b < a.b; ++b)
        for (int64_t group = 0; group < a.g; ++group) {
            std::vector<float> keys(a.t * a.size), values(a.t * a.size), queries(a.size);
            for (int64_t member = 0; member < members; ++member) {
                int64_t h = group * members + (a.in_reverse ? members - 1 - member : member);
                for (int64_t n = 0; n < a.t; ++n) {
                    int64_t i = a.in_reverse ? a.t - 1 - n : n;
                    float sum = ((float*)a.statistics.data)[a.statistics.at(b, h, i)];
                    float mean = dot(a.dout.row(b, h, i), a.o.row(b, h, i), a.size);
                    std::fill(queries.begin(), queries.end(), 0.0f);
                    for (int64_t j = 0; j < a.t; ++j) {
                        float score = i >= j ? a.scale * dot(a.q.row(b, h, i), a.k.row(b, group, j), a.size) : a.masked;
                        float weight = std::exp(score - sum);
                        if (weight == 0.0f) continue;
                        float slope = rounded(weight * (dot(a.dout.row(b, h, i), a.v.row(b, group, j), a.size) - mean));
                        for (int64_t c = 0; c < a.size; ++c) {
                            values[j * a.size + c] += rounded(weight) * to_float(a.dout.row(b, h, i)[c]);
                            keys[j * a.size + c] += slope * to_float(a.q.row(b, h, i)[c]);
                            queries[c] += slope * to_float(a.k.row(b, group, j)[c]);
                        }
                    }
                    for (int64_t c = 0; c < a.size; ++c) a.dq.row(b, h, i)[c] = to_bfloat16(a.scale * queries[c]);
                }
            }
            for (int64_t j = 0; j < a.t; ++j)
                for (int64_t c = 0; c < a.size; ++c) {
                    a.dk.row(b, group, j)[c] = to_bfloat16(a.scale * keys[j * a.size + c]);
                    a.dv.row(b, group, j)[c] = to_bfloat16(values[j * a.size + c]);
                }
        }
}

void run(void* argument) {
    auto* attention = (Attention*)argument;
    memset(attention->workspace, 0xff, attention->workspace_bytes);
    if (attention->forward) run_forward(*attention);
    else run_backward(*attention);
    delete attention;
}

int execute(const Handle& handle, const Descriptor& plan, const Descriptor& pack) {
    const Descriptor& operation = *plan.operation;
    std::map<int64_t, char*> places;
    for (size_t i = 0; i < pack.values.at(NUMBERS).bytes.size() / 8; ++i) {
        int64_t number = pack.get<int64_t>(NUMBERS, (int)i);
        if (!places.emplace(number, pack.get<char*>(POINTERS, (int)i)).second) return refuse(DUPLICATED, "a number is in the pack twice");
    }
    auto attention = std::make_unique<Attention>();
    Attention& a = *attention;
    int status = SUCCESS;
    auto place = [&](const Shared& tensor) -> char* {
        auto found = places.find(tensor->get<int64_t>(NUMBER));
        if (found == places.end() || !found->second) return status = refuse(NULL_POINTER, "a tensor has no address in the pack"), nullptr;
        char* address = found->second;
        places.erase(found);
        if ((uintptr_t)address % (uintptr_t)tensor->get<int64_t>(ALIGNMENT)) status = refuse(MISALIGNED, "an address is not aligned as its tensor says");
        return address;
    };
    auto operand = [&](Operand& to, int name, const char* role) {
        auto tensor = operation.held(name);
        to.data = place(tensor);
        for (int i = 0; i < 4; ++i) to.strides[i] = tensor->stride(i), to.sizes[i] = tensor->dimension(i);
        if (to.data) driver().check_memory("cudnnBackendExecute", role, to.data, to.bytes(tensor->get<int>(DATA_OF) == FLOAT ? 4 : 2));
    };
    operand(a.q, named(operation, Q), "Q"), operand(a.k, named(operation, K), "K"), operand(a.v, named(operation, V), "V");
    operand(a.o, named(operation, O), "O"), operand(a.statistics, named(operation, STATISTICS), "statistics");
    a.forward = operation.kind == FORWARD;
    if (!a.forward) operand(a.dq, DQ, "dQ"), operand(a.dk, DK, "dK"), operand(a.dv, DV, "dV"), operand(a.dout, DO, "dO");
    // values are read here, not when the stream gets to it
    if (auto* scale = (float*)place(operation.held(named(operation, SCALE)))) a.scale = *scale;
    if (auto* masked = (float*)place(mask_of(operation)->held(MASK_VALUE))) a.masked = *masked;
    if (status) return status;
    if (!places.empty()) return refuse(BAD_PARAM, "the pack has numbers that the graph has not");
    a.b = a.q.sizes[0], a.h = a.q.sizes[1], a.t = a.q.sizes[2], a.size = a.q.sizes[3], a.g = a.k.sizes[1], a.in_reverse = plan.engine == 1;
    a.workspace = pack.get<char*>(WORKSPACE), a.workspace_bytes = workspace_bytes(operation);
    driver().check_memory("cudnnBackendExecute", "workspace", a.workspace, a.workspace_bytes);
    const char* name = a.forward ? "cudnn attention forward" : "cudnn attention backward";
    return driver().enqueue(handle.stream, run, attention.release(), name) ? refuse(BAD_PARAM, "the stream refuses it") : (int)SUCCESS;
}

}  // namespace

// ---- the interface -------------------------------------------------------------------------------------------------

API size_t cudnnGetVersion() {
    const char* version = getenv("EMULATOR_CUDNN_VERSION");
    return version ? strtoul(version, nullptr, 10) : 92801;
}

API const char* cudnnGetErrorString(int status) {
    static const std::map<int, const char*>& names = *new std::map<int, const char*>{
        {SUCCESS, "CUDNN_STATUS_SUCCESS"}, {NOT_INITIALIZED, "CUDNN_STATUS_NOT_INITIALIZED"}, {BAD_PARAM, "CUDNN_STATUS_BAD_PARAM"},
        {NULL_POINTER, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"}, {MISALIGNED, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
        {NOT_FINALIZED, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"}, {STREAM_MISMATCH, "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH"},
        {DUPLICATED, "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES"}, {ATTRIBUTE_TYPE, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
        {NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED"}, {DATA_TYPE, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"}, {LAYOUT, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
        {SHARED_MEMORY, "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"},
        {HOST_ALLOCATION_FAILED, "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"}};
    auto found = names.find(status);
    return found == names.end() ? "CUDNN_UNKNOWN_STATUS" : found->second;
}

API void cudnnGetLastErrorString(char* message, size_t size) {
    if (message && size) snprintf(message, size, "%s", last_message.c_str());
    last_message.clear();
}

API int cudnnCreate(Handle** out) {
    if (!out) return refuse(NULL_POINTER, "handle");
    int device = 0;
    if (driver().current_device(&device)) return refuse(NOT_INITIALIZED, "no current context");
    *out = new Handle{device, nullptr};
    std::lock_guard<std::mutex> guard(living_mutex);
    return handles.insert(*out), SUCCESS;
}
API int cudnnDestroy(Handle* handle) {
    if (!find_handle(handle)) return refuse(BAD_PARAM, "no such handle");
    std::lock_guard<std::mutex> guard(living_mutex);
    return handles.erase(handle), delete handle, SUCCESS;
}
API int cudnnSetStream(Handle* handle, void* stream) {
    if (!find_handle(handle)) return refuse(BAD_PARAM, "no such handle");
    if (driver().stream_device(stream) != handle->device) return refuse(STREAM_MISMATCH, "the stream is of another device");
    return handle->stream = stream, SUCCESS;
}

API int cudnnBackendCreateDescriptor(int kind, void** out) {
    driver().refuse_after_exit();
    if (!out) return refuse(NULL_POINTER, "descriptor");
    if (rules(kind).empty() && kind != ENGINE && kind != CONFIGURATION) return refuse(HOST_ALLOCATION_FAILED, "unknown kind of descriptor");
    auto descriptor = std::make_shared<Descriptor>();
    descriptor->kind = kind;
    std::lock_guard<std::mutex> guard(living_mutex);
    return living[*out = descriptor.get()] = descriptor, SUCCESS;
}
API int cudnnBackendDestroyDescriptor(void* raw) {
    if (!find(raw)) return refuse(BAD_PARAM, "no such descriptor");
    std::lock_guard<std::mutex> guard(living_mutex);
    return living.erase(raw), SUCCESS;
}

API int cudnnBackendSetAttribute(void* raw, int name, int type, int64_t count, const void* values) {
    auto descriptor = find(raw);
    if (!descriptor || descriptor->is_finalized) return refuse(BAD_PARAM, "expected a descriptor that is not finalized");
    for (const Rule& rule : rules(descriptor->kind)) {
        if (rule.name != name) continue;
        if (rule.type != type) return refuse(ATTRIBUTE_TYPE, "attribute " + std::to_string(name) + " is of another type");
        if (!values || count < rule.least || count > rule.most) return refuse(BAD_PARAM, "attribute " + std::to_string(name) + " has another number of values");
        Value value{type, std::vector<char>((const char*)values, (const char*)values + count * width(type)), nullptr};
        if (type == HANDLE && !find_handle(*(void* const*)values)) return refuse(BAD_PARAM, "no such handle");
        if (type == DESCRIPTOR) {
            value.held = find(*(void* const*)values);
            if (!value.held) return refuse(BAD_PARAM, "no such descriptor");
            if (descriptor->kind == GRAPH && !value.held->is_finalized) return refuse(NOT_FINALIZED, "desc->isFinalized() == false");
        }
        return descriptor->values[name] = value, SUCCESS;
    }
    return refuse(BAD_PARAM, "attribute " + std::to_string(name) + " is unknown here");
}

API int cudnnBackendFinalize(void* raw) {
    auto descriptor = find(raw);
    if (!descriptor || descriptor->is_finalized) return refuse(BAD_PARAM, "expected a descriptor that is not finalized");
    if (int status = finalize(*descriptor)) return status;
    return descriptor->is_finalized = true, SUCCESS;
}

// Proposed in mode A, in this order: engine 0, which cannot be built, engine 1, whose bits differ, and engine 2.
API int cudnnBackendGetAttribute(void* raw, int name, int type, int64_t most, int64_t* count, void* values) {
    auto descriptor = find(raw);
    if (!descriptor || !count) return refuse(BAD_PARAM, "expected a descriptor and a place for the count");
    if (!descriptor->is_finalized) return refuse(NOT_INITIALIZED, "the descriptor is not finalized");
    auto fill = [&](int64_t index, int engine) {
        auto into = index < most ? find(((void**)values)[index]) : nullptr;
        if (into) into->operation = descriptor->operation, into->engine = engine, into->is_finalized = true;
        return into != nullptr;
    };
    switch (descriptor->kind * 10000 + name) {
        case HEURISTIC * 10000 + RESULTS: {
            if (type != DESCRIPTOR) return refuse(ATTRIBUTE_TYPE, "results are descriptors");
            int64_t engines = descriptor->get<int>(HEURISTIC_MODE) == 3 && is_supported(*descriptor->operation) ? 3 : 0;
            for (*count = 0; *count < std::min(engines, most); ++*count)
                if (!fill(*count, (int)*count)) return refuse(BAD_PARAM, "no such descriptor");
            return SUCCESS;
        }
        case CONFIGURATION * 10000 + CONFIGURED_ENGINE:
            if (type != DESCRIPTOR) return refuse(ATTRIBUTE_TYPE, "an engine is a descriptor");
            return *count = 1, fill(0, descriptor->engine) ? (int)SUCCESS : refuse(BAD_PARAM, "no such descriptor");
        case ENGINE * 10000 + NOTES: {
            if (type != NOTE) return refuse(ATTRIBUTE_TYPE, "notes have their own type");
            int notes[] = {0, NONDETERMINISTIC}; // on tensor cores
            *count = descriptor->engine == 1 ? 2 : 1;
            return memcpy(values, notes, (size_t)std::min(*count, most) * 4), SUCCESS;
        }
        case PLAN * 10000 + WORKSPACE_SIZE: {
            if (type != INT64 || most < 1) return refuse(ATTRIBUTE_TYPE, "a size is one number of 64 bits");
            int64_t bytes = (int64_t)workspace_bytes(*descriptor->operation);
            return *count = 1, memcpy(values, &bytes, 8), SUCCESS;
        }
        default: return refuse(BAD_PARAM, "attribute " + std::to_string(name) + " is unknown here");
    }
}

API int cudnnBackendExecute(Handle* raw, void* plan_raw, void* pack_raw) {
    auto *handle = find_handle(raw);
    auto plan = find(plan_raw), pack = find(pack_raw);
    if (!handle || !plan || !pack || plan->kind != PLAN || pack->kind != PACK) return refuse(BAD_PARAM, "expected a handle, a plan and a pack");
    if (!plan->is_finalized || !pack->is_finalized) return refuse(NOT_FINALIZED, "plan or pack");
    if (plan->get<Handle*>(PLAN_HANDLE) != handle) return refuse(BAD_PARAM, "the plan was made with another handle");
    return execute(*handle, *plan, *pack);
}
