// Contexts: primary ones and others, the stack of current contexts of each thread, limits, peer access.
#include "driver.h"

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace emulator {

Registry<Context>& contexts = *new Registry<Context>(0x10000000);
static thread_local std::vector<Handle> stack;

std::shared_ptr<Context> primary_context(int device) {
    static auto& mutex = *new std::mutex;
    static auto& primary = *new std::vector<std::shared_ptr<Context>>(64);
    std::lock_guard<std::mutex> guard(mutex);
    if (!primary[device]) {
        auto context = std::make_shared<Context>();
        context->device = device;
        context->primary = true;
        context->active = false;
        context->multiprocessors = multiprocessor_count();
        context->handle = contexts.add(context);
        primary[device] = context;
    }
    return primary[device];
}

std::shared_ptr<Context> current_context(int* result) {
    *result = SUCCESS;
    if (!is_initialized()) return *result = NOT_INITIALIZED, nullptr;
    if (inside_host_function) return *result = NOT_PERMITTED, nullptr;
    if (stack.empty() || !stack.back()) return *result = INVALID_CONTEXT, nullptr;
    auto context = contexts.find(stack.back());
    if (!context || !context->root()->active) return *result = CONTEXT_IS_DESTROYED, nullptr;
    return context;
}

static int create(Handle* out, unsigned flags, int device) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    auto context = std::make_shared<Context>();
    context->device = device;
    context->flags = flags;
    context->multiprocessors = multiprocessor_count();
    *out = context->handle = contexts.add(context);
    stack.push_back(*out);
    return SUCCESS;
}

}  // namespace emulator
using namespace emulator;

#define CURRENT(context)                            \
    int context##_result;                           \
    auto context = current_context(&context##_result); \
    if (!context) return context##_result;

API int cuDevicePrimaryCtxRetain(Handle* out, int device) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    // a device in exclusive-process mode admits one process, which locks a file
    if (const char* folder = getenv("EMULATOR_EXCLUSIVE")) {
        static std::atomic<int> locks[64];
        std::string path = std::string(folder) + "/device" + std::to_string(physical_device(device));
        int file = locks[device % 64].load() ? -1 : open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (file >= 0 && flock(file, LOCK_EX | LOCK_NB)) return close(file), DEVICE_UNAVAILABLE;
        if (file >= 0) locks[device % 64] = file;
    }
    auto context = primary_context(device);
    context->references++;
    context->active = true;
    *out = context->handle;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    auto context = primary_context(device);
    if (context->references == 0) return INVALID_CONTEXT;
    if (--context->references == 0) context->active = false;
    return SUCCESS;
}

API int cuDevicePrimaryCtxReset_v2(int device) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    primary_context(device)->active = false;
    return SUCCESS;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    auto context = primary_context(device);
    *flags = context->flags, *active = context->active;
    return SUCCESS;
}

API int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    primary_context(device)->flags = flags;
    return SUCCESS;
}

API int cuCtxCreate_v2(Handle* out, unsigned flags, int device) { return create(out, flags, device); }
API int cuCtxCreate_v3(Handle* out, void*, int, unsigned flags, int device) { return create(out, flags, device); }
API int cuCtxCreate_v4(Handle* out, void*, unsigned flags, int device) { return create(out, flags, device); }

API int cuCtxDestroy_v2(Handle handle) {
    auto context = contexts.find(handle);
    if (!context || context->primary || context->base) return INVALID_CONTEXT;
    synchronize_context(context.get(), "cuCtxDestroy");
    context->active = false;
    contexts.remove(handle);
    if (!stack.empty() && stack.back() == handle) stack.pop_back();
    return SUCCESS;
}

API int cuCtxSetCurrent(Handle handle) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (handle && !contexts.find(handle)) return INVALID_CONTEXT;
    if (stack.empty()) stack.push_back(handle);
    else stack.back() = handle;
    if (!handle) stack.pop_back();
    return SUCCESS;
}

API int cuCtxGetCurrent(Handle* handle) {
    if (!is_initialized()) return NOT_INITIALIZED;
    *handle = stack.empty() ? 0 : stack.back();
    return SUCCESS;
}

API int cuCtxPushCurrent_v2(Handle handle) {
    if (!contexts.find(handle)) return INVALID_CONTEXT;
    stack.push_back(handle);
    return SUCCESS;
}

API int cuCtxPopCurrent_v2(Handle* handle) {
    if (stack.empty()) return INVALID_CONTEXT;
    if (handle) *handle = stack.back();
    stack.pop_back();
    return SUCCESS;
}

API int cuCtxGetDevice(int* device) {
    CURRENT(context);
    *device = context->device;
    return SUCCESS;
}

API int cuCtxGetDevice_v2(int* device, Handle handle) {
    auto context = contexts.find(handle);
    if (!context) return INVALID_CONTEXT;
    *device = context->device;
    return SUCCESS;
}

API int cuCtxGetId(Handle handle, unsigned long long* id) {
    CURRENT(current);
    *id = handle ? handle : current->handle;
    return SUCCESS;
}

API int cuCtxGetApiVersion(Handle, unsigned* version) {
    *version = 3020;
    return SUCCESS;
}

API int cuCtxGetFlags(unsigned* flags) {
    CURRENT(context);
    *flags = context->flags;
    return SUCCESS;
}

API int cuCtxSetFlags(unsigned flags) {
    CURRENT(context);
    context->flags = flags;
    return SUCCESS;
}

API int cuCtxGetLimit(size_t* value, int limit) {
    CURRENT(context);
    if (limit < 0 || limit > 6) return UNSUPPORTED_LIMIT;
    static const size_t values[] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0};
    *value = values[limit];
    return SUCCESS;
}

API int cuCtxSetLimit(int limit, size_t) {
    CURRENT(context);
    return limit < 0 || limit > 6 ? UNSUPPORTED_LIMIT : SUCCESS;
}

API int cuCtxGetCacheConfig(int* config) { return *config = 0, SUCCESS; }
API int cuCtxSetCacheConfig(int) { return SUCCESS; }

API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    CURRENT(context);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

static int refuse_synchronizing(Context* context) {
    return refuse_captured([&](Stream& stream) { return stream.context->root() == context->root(); }, STREAM_CAPTURE_UNSUPPORTED);
}

API int cuCtxSynchronize() {
    CURRENT(context);
    if (int forbidden = refuse_synchronizing(context.get())) return forbidden;
    synchronize_context(context.get(), "cuCtxSynchronize");
    return SUCCESS;
}

API int cuCtxSynchronize_v2(Handle handle) {
    if (!handle) return cuCtxSynchronize();
    auto context = contexts.find(handle);
    if (!context) return INVALID_CONTEXT;
    if (int forbidden = refuse_synchronizing(context.get())) return forbidden;
    synchronize_context(context.get(), "cuCtxSynchronize");
    return SUCCESS;
}

API int cuCtxEnablePeerAccess(Handle peer_handle, unsigned flags) {
    CURRENT(context);
    auto peer = contexts.find(peer_handle);
    if (flags) return INVALID_VALUE;
    if (!peer || !peer->root()->active || peer->device == context->device) return INVALID_CONTEXT;
    if (!has_peer_access()) return PEER_ACCESS_UNSUPPORTED;
    std::lock_guard<std::mutex> guard(context->root()->peers_mutex);
    auto& peers = context->root()->peers;
    if (std::count(peers.begin(), peers.end(), peer->device)) return PEER_ACCESS_ALREADY_ENABLED;
    peers.push_back(peer->device);
    return SUCCESS;
}

API int cuCtxDisablePeerAccess(Handle peer_handle) {
    CURRENT(context);
    auto peer = contexts.find(peer_handle);
    if (!peer) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> guard(context->root()->peers_mutex);
    auto& peers = context->root()->peers;
    auto found = std::find(peers.begin(), peers.end(), peer->device);
    if (found == peers.end()) return PEER_ACCESS_NOT_ENABLED;
    peers.erase(found);
    return SUCCESS;
}

API int emulator_current_device() {
    int result;
    auto context = current_context(&result);
    return context ? context->device : -1;
}
