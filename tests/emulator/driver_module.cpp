// Modules and functions, launches. A module holds the text that the stand-in for NVRTC wraps up; the code that runs is the same
// kernel file compiled by the C++ compiler, in libkernels_f32.so and libkernels_bf16.so next to this library.
#include "driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace emulator {

// One of the two kernel libraries.
struct Kernels {
    int (*launch)(const char*, unsigned, unsigned, unsigned, unsigned, unsigned, void**) = nullptr;
    int (*argument_sizes)(const char*, unsigned*, unsigned*) = nullptr;
    int (*limits)(const char*, unsigned*, unsigned*, unsigned*) = nullptr;
};

struct Module {
    std::shared_ptr<Context> context;
    std::string text;
    bool brain_float = false;
};

struct Function {
    Handle module = 0;
    std::shared_ptr<Context> context;
    std::string name;
    const Kernels* kernels = nullptr;
    std::vector<unsigned> sizes;
    unsigned static_shared_bytes = 0, registers = 32, threads = 1024;
    std::atomic<unsigned> shared_limit{0};
};

static constexpr unsigned SHARED_DEFAULT = 49152, SHARED_MOST = 232448;
static constexpr const char MARK[] = "EMULATED CUBIN ";
static Registry<Module>& modules = *new Registry<Module>(0x40000000);
static Registry<Function>& functions = *new Registry<Function>(0x48000000);

static const Kernels* kernels_of(bool brain_float) {
    static auto& mutex = *new std::mutex;
    static Kernels* loaded[2] = {nullptr, nullptr};
    std::lock_guard<std::mutex> guard(mutex);
    Kernels*& kernels = loaded[brain_float];
    if (kernels) return kernels;
    Dl_info own;
    dladdr((void*)&kernels_of, &own);
    std::string path = own.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + (brain_float ? "libkernels_bf16.so" : "libkernels_f32.so");
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) fatal("cuModuleGetFunction", std::string(dlerror()) + "; make it with tests/emulator/build");
    auto* fresh = new Kernels;
    fresh->launch = (decltype(fresh->launch))dlsym(library, "emulator_launch");
    fresh->argument_sizes = (decltype(fresh->argument_sizes))dlsym(library, "emulator_argument_sizes");
    fresh->limits = (decltype(fresh->limits))dlsym(library, "emulator_kernel_limits");
    if (!fresh->launch || !fresh->argument_sizes) fatal("cuModuleGetFunction", path + ": expected emulator_launch and emulator_argument_sizes in it");
    return kernels = fresh;
}

static bool ends_with(const std::string& text, const char* end) {
    size_t length = strlen(end);
    return text.size() > length && text.compare(text.size() - length, length, end) == 0;
}

// "EMULATED CUBIN sm_90 bf16\n" and the program's text. A real architecture must be the device's (9.x); a virtual one may be lower.
static int load(const void* image, Handle* out) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (int forbidden = refuse_unsafe()) return forbidden;
    const char* text = (const char*)image;
    if (!text || strncmp(text, MARK, sizeof MARK - 1)) return INVALID_IMAGE;
    const char* architecture = text + sizeof MARK - 1;
    bool real = !strncmp(architecture, "sm_", 3);
    const char* digits = strchr(architecture, '_');
    int number = digits ? atoi(digits + 1) : 0;
    if (!number) return INVALID_IMAGE;
    if (real ? number / 10 != 9 : number > 90) return NO_BINARY_FOR_GPU;
    auto module = std::make_shared<Module>();
    module->context = context;
    module->text = text;
    module->brain_float = module->text.substr(0, module->text.find('\n')).find("bf16") != std::string::npos;
    *out = modules.add(module);
    if (const char* told = getenv("EMULATOR_MODULES"); told && *told)
        fprintf(stderr, "emulator: context %llx of device %d loads a module\n", (unsigned long long)context->handle, context->device);
    return SUCCESS;
}

static bool mentions(const std::string& text, const std::string& word) {
    auto is_part = [](char c) { return isalnum((unsigned char)c) || c == '_'; };
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        bool starts = at == 0 || !is_part(text[at - 1]), ends = at + word.size() >= text.size() || !is_part(text[at + word.size()]);
        if (starts && ends) return true;
    }
    return false;
}

static int find_function(Handle* out, Handle module_handle, const char* name) {
    auto module = modules.find(module_handle);
    if (!module) return INVALID_HANDLE;
    auto function = std::make_shared<Function>();
    function->module = module_handle;
    function->context = module->context;
    function->name = name;
    bool brain_float = ends_with(name, "_bf16");
    if ((!brain_float && !ends_with(name, "_f32")) || brain_float != module->brain_float) return NOT_FOUND;
    std::string stem = function->name.substr(0, function->name.rfind('_'));
    if (!mentions(module->text, stem) && !mentions(module->text, name)) return NOT_FOUND;
    function->kernels = kernels_of(brain_float);
    unsigned sizes[64], count = 64;
    if (function->kernels->argument_sizes(name, sizes, &count)) return NOT_FOUND;
    function->sizes.assign(sizes, sizes + std::min(count, 64u));
    if (function->kernels->limits) function->kernels->limits(name, &function->static_shared_bytes, &function->registers, &function->threads);
    function->shared_limit = SHARED_DEFAULT - function->static_shared_bytes;
    *out = functions.add(function);
    return SUCCESS;
}

// A pointer among the arguments that lies in a device's memory can be checked: it must live, and be reachable from the device.
static void check_argument(const Function& function, const Context& context, unsigned index, uint64_t value) {
    Allocation allocation;
    if (!find_allocation(value, &allocation)) return;
    std::string what = "argument " + std::to_string(index) + " = " + describe_address(value);
    if (allocation.freed) fatal(function.name.c_str(), what);
    bool own = allocation.kind != Kind::DEVICE && allocation.kind != Kind::DEVICE_ASYNC;
    if (own || allocation.device == context.device) return;
    Context* root = const_cast<Context&>(context).root();
    std::lock_guard<std::mutex> guard(root->peers_mutex);
    if (!std::count(root->peers.begin(), root->peers.end(), allocation.device))
        fatal(function.name.c_str(), what + ": launched on device " + std::to_string(context.device) + " without cuCtxEnablePeerAccess");
}

struct Launch {
    std::shared_ptr<Function> function;
    unsigned grid[3], block, shared_bytes;
    std::vector<uint64_t> values;  // one word for each argument; none is longer than 8 bytes
};

static void run(Launch& launch) {
    std::vector<void*> arguments;
    for (auto& value : launch.values) arguments.push_back(&value);
    const char* name = launch.function->name.c_str();
    int result = launch.function->kernels->launch(name, launch.grid[0], launch.grid[1], launch.grid[2], launch.block, launch.shared_bytes, arguments.data());
    if (result) fatal(name, "the kernel's launcher returned " + std::to_string(result));
}

static int blocks_of_multiprocessor(const Function& function, int block, size_t shared_bytes) {
    if (block <= 0 || block > (int)function.threads) return 0;
    int warps = (block + 31) / 32;
    size_t shared = function.static_shared_bytes + shared_bytes + 1024;
    int by_threads = 64 / warps, by_registers = (int)(65536 / (function.registers * 32u)) / warps, by_shared = (int)(233472 / shared);
    return std::max(0, std::min({32, by_threads, by_registers, by_shared}));
}

}  // namespace emulator
using namespace emulator;

API int cuModuleLoadData(Handle* out, const void* image) { return load(image, out); }
API int cuModuleLoadDataEx(Handle* out, const void* image, unsigned, void*, void*) { return load(image, out); }
API int cuModuleUnload(Handle handle) { return modules.remove(handle) ? SUCCESS : INVALID_HANDLE; }
API int cuModuleGetFunction(Handle* out, Handle module, const char* name) { return out && name ? find_function(out, module, name) : (int)INVALID_VALUE; }
API int cuLibraryLoadData(Handle* out, const void* image, void*, void*, unsigned, void*, void*, unsigned) { return load(image, out); }
API int cuLibraryUnload(Handle handle) { return cuModuleUnload(handle); }
API int cuLibraryGetModule(Handle* out, Handle library) { return *out = library, modules.find(library) ? SUCCESS : INVALID_HANDLE; }
API int cuLibraryGetKernel(Handle* out, Handle library, const char* name) { return cuModuleGetFunction(out, library, name); }
API int cuKernelGetFunction(Handle* out, Handle kernel) { return *out = kernel, functions.find(kernel) ? SUCCESS : INVALID_HANDLE; }

API int cuFuncGetAttribute(int* value, int attribute, Handle handle) {
    auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    switch (attribute) {
        case 0: *value = (int)function->threads; return SUCCESS;
        case 1: *value = (int)function->static_shared_bytes; return SUCCESS;
        case 4: *value = (int)function->registers; return SUCCESS;
        case 5: case 6: *value = 90; return SUCCESS;
        case 8: *value = (int)function->shared_limit; return SUCCESS;
        default: *value = 0; return attribute < 0 || attribute >= 16 ? INVALID_VALUE : SUCCESS;
    }
}

API int cuFuncSetAttribute(Handle handle, int attribute, int value) {
    auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    if (attribute == 9) return value < -1 || value > 100 ? INVALID_VALUE : SUCCESS;
    if (attribute != 8 || value < 0 || function->static_shared_bytes + (unsigned)value > SHARED_MOST) return INVALID_VALUE;
    function->shared_limit = (unsigned)value;
    return SUCCESS;
}
API int cuFuncLoad(Handle handle) { return functions.find(handle) ? SUCCESS : INVALID_HANDLE; }
API int cuFuncSetCacheConfig(Handle handle, int) { return functions.find(handle) ? SUCCESS : INVALID_HANDLE; }

API int cuFuncGetName(const char** name, Handle handle) {
    auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    *name = function->name.c_str();
    return SUCCESS;
}

API int cuFuncGetParamInfo(Handle handle, size_t index, size_t* offset, size_t* bytes) {
    auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    if (index >= function->sizes.size()) return INVALID_VALUE;
    size_t at = 0;
    for (size_t each = 0; each < index; ++each) at = (at + function->sizes[each] + function->sizes[each + 1] - 1) / function->sizes[each + 1] * function->sizes[each + 1];
    *offset = at;
    if (bytes) *bytes = function->sizes[index];
    return SUCCESS;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Handle handle, int block, size_t shared_bytes, unsigned) {
    auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    *blocks = blocks_of_multiprocessor(*function, block, shared_bytes);
    return SUCCESS;
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Handle function, int block, size_t shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block, shared_bytes, 0);
}

API int cuLaunchKernel(Handle handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                       unsigned shared_bytes, Handle stream_handle, void** arguments, void** extra) {
    int result;
    auto stream = find_stream(stream_handle, &result);
    if (!stream) return result;
    auto function = functions.find(handle);
    if (!function || !modules.find(function->module)) return INVALID_HANDLE;
    if (function->context->root() != stream->context->root()) return INVALID_HANDLE;
    if (extra) fatal(function->name.c_str(), "arguments given as one buffer (extra) are not emulated");
    if (block_y != 1 || block_z != 1) fatal(function->name.c_str(), "expected a block of one dimension; others are not emulated");
    if (!grid_x || !grid_y || !grid_z || grid_x > 2147483647u || grid_y > 65535 || grid_z > 65535) return INVALID_VALUE;
    if (!block_x || block_x > function->threads || shared_bytes > function->shared_limit) return INVALID_VALUE;
    if (!arguments && !function->sizes.empty()) return INVALID_VALUE;
    auto launch = std::make_shared<Launch>(Launch{function, {grid_x, grid_y, grid_z}, block_x, shared_bytes, {}});
    for (unsigned each = 0; each < function->sizes.size(); ++each) {
        uint64_t value = 0;
        if (function->sizes[each] > sizeof value) fatal(function->name.c_str(), "argument " + std::to_string(each) + " is longer than 8 bytes");
        memcpy(&value, arguments[each], function->sizes[each]);
        if (function->sizes[each] == sizeof value) check_argument(*function, *stream->context, each, value);
        launch->values.push_back(value);
    }
    submit(stream, function->name, [launch, context = stream->context] {
        for (unsigned each = 0; each < launch->values.size(); ++each)  // a graph keeps addresses for longer
            if (launch->function->sizes[each] == sizeof(uint64_t)) check_argument(*launch->function, *context, each, launch->values[each]);
        run(*launch);
    }, false, true);
    return SUCCESS;
}

struct LaunchConfiguration {  // CUlaunchConfig
    unsigned grid[3], block[3], shared_bytes;
    Handle stream;
    void* attributes;
    unsigned attribute_count;
};
API int cuLaunchKernelEx(const LaunchConfiguration* launch, Handle function, void** arguments, void** extra) {
    return cuLaunchKernel(function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0], launch->block[1], launch->block[2],
                          launch->shared_bytes, launch->stream, arguments, extra);
}
