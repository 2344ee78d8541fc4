// Settings, cuInit, devices and their attributes, error names, cuGetProcAddress.
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

namespace emulator {

static double number_of(const char* variable, double fallback) {
    const char* text = getenv(variable);
    if (!text || !*text) return fallback;
    char* end = nullptr;
    double value = strtod(text, &end);
    if (end == text || *end || value < 0) fatal("cuInit", std::string("expected a number >= 0 in $") + variable + ", found \"" + text + "\"");
    return value;
}

// The physical devices this process sees, as $CUDA_VISIBLE_DEVICES restricts them (whole numbers; the list ends at the first
// one that does not exist, as in CUDA).
static const std::vector<int>& visible_devices() {
    static const std::vector<int>* devices = [] {
        auto* list = new std::vector<int>;
        int count = (int)number_of("EMULATOR_DEVICES", 2);
        const char* text = getenv("CUDA_VISIBLE_DEVICES");
        if (!text) {
            for (int device = 0; device < count; ++device) list->push_back(device);
            return list;
        }
        while (*text) {
            char* end = nullptr;
            long device = strtol(text, &end, 10);
            if (end == text || device < 0 || device >= count) break;
            list->push_back((int)device);
            text = *end == ',' ? end + 1 : end;
            if (*end && *end != ',') break;
        }
        return list;
    }();
    return *devices;
}

int device_count() { return (int)visible_devices().size(); }
bool has_peer_access() {
    const char* text = getenv("EMULATOR_PEERS");
    return !text || strcmp(text, "0");
}

int physical_device(int device) { return visible_devices().at(device); }
unsigned multiprocessor_count() {
    static unsigned count = (unsigned)number_of("EMULATOR_MULTIPROCESSORS", 16);
    return count;
}
size_t memory_total_bytes() {
    static size_t bytes = (size_t)number_of("EMULATOR_MEMORY_BYTES", 8.0 * (1ull << 30));
    return bytes;
}
double timeout_seconds() {
    static double seconds = number_of("EMULATOR_TIMEOUT", 0);
    return seconds;
}
// $CUDA_DEVICE_MAX_CONNECTIONS, as the driver reads it when it starts: 1 to 32, 8 where it is not set.
unsigned connections() {
    static unsigned count = [] {
        double asked = number_of("CUDA_DEVICE_MAX_CONNECTIONS", 8);
        unsigned found = asked < 1 || asked > 32 ? 8u : (unsigned)asked;
        double wanted = number_of("EMULATOR_CONNECTIONS_WANTED", found);
        if (wanted != found) fatal("cuInit", "expected CUDA_DEVICE_MAX_CONNECTIONS to be " + std::to_string((int)wanted) + ", found " + std::to_string(found));
        return found;
    }();
    return count;
}
int driver_version() {
    static int version = (int)number_of("EMULATOR_DRIVER_VERSION", 13000);
    return version;
}
size_t queue_depth() {
    static size_t depth = (size_t)number_of("EMULATOR_QUEUE_DEPTH", 1024);
    return depth;
}
bool pinned_only() {
    static bool value = number_of("EMULATOR_PINNED_ONLY", 0) != 0;
    return value;
}

std::string hexadecimal(uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "0x%llx", (unsigned long long)value);
    return text;
}

void fatal(const char* call, const std::string& message) {
    std::string line = std::string("emulator: ") + call + ": " + message + "\n";
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) abort();
    abort();
}

static std::atomic<bool> initialized{false}, exiting{false};
bool is_initialized() {
    refuse_after_exit();
    return initialized;
}

void refuse_after_exit() {
    if (exiting && !is_stream_thread()) fatal("exit", "a thread calls the driver or its libraries while the process ends, when they are no more");
}

// Lingers a little, as the real driver does, so that a thread that is still at work shows.
static void begin_exit() {
    exiting = true;
    usleep(100000);
}

static bool valid(int device) { return device >= 0 && device < device_count(); }

#define REQUIRE_DEVICE(device)                                 \
    if (!is_initialized()) return NOT_INITIALIZED;             \
    if (!valid(device)) return INVALID_DEVICE;

static const struct { int code; const char* name; const char* text; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {MAPPING_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_LIMIT, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {INVALID_RESOURCE_TYPE, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "invalid resource type"},
    {INVALID_RESOURCE_CONFIGURATION, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "invalid resource configuration"},
};

// The attributes that are not zero, after an H100; the multiprocessor count is the setting's.
static const struct { int attribute; int value; } attributes[] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},                      // threads of a block, its dimensions
    {5, 2147483647}, {6, 65535}, {7, 65535},                       // grid
    {8, 49152}, {9, 65536}, {10, 32}, {11, 2147483647},            // shared memory, constant memory, warp, pitch
    {12, 65536}, {13, 1980000}, {14, 512}, {15, 1},                // registers of a block, clock in kHz, alignment, overlap
    {19, 1}, {31, 1}, {36, 2619000}, {37, 5120}, {38, 52428800},   // mapped host memory, concurrent kernels, memory clock, bus, L2
    {39, 2048}, {40, 3}, {41, 1}, {75, 9}, {76, 0},                // threads of a multiprocessor, copy engines, one address space, 9.0
    {78, 1}, {79, 1}, {80, 1}, {81, 233472}, {82, 65536},          // stream priorities, caches, shared memory and registers
    {83, 1}, {90, 1}, {91, 1}, {92, 1}, {93, 1}, {94, 1},          // managed memory, preemption, memory operations of streams
    {97, 232448}, {98, 1}, {99, 1}, {102, 0}, {106, 32},           // shared memory after opting in, host registration
    {111, 1024}, {115, 1}, {122, 1}, {123, 1}, {125, 1},           // reserved shared memory, memory pools, 64-bit memory operations, IPC events
    {134, 0}, {130, 0},
};

}  // namespace emulator
using namespace emulator;

API int cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (device_count() == 0) return NO_DEVICE;
    connections();
    if (!initialized.exchange(true)) atexit(begin_exit);
    return SUCCESS;
}

API int cuDriverGetVersion(int* version) {
    if (!version) return INVALID_VALUE;
    *version = driver_version();
    return SUCCESS;
}

API int cuDeviceGetCount(int* count) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (!count) return INVALID_VALUE;
    *count = device_count();
    return SUCCESS;
}

API int cuDeviceGet(int* device, int ordinal) {
    REQUIRE_DEVICE(ordinal);
    *device = ordinal;
    return SUCCESS;
}

API int cuDeviceGetName(char* name, int length, int device) {
    REQUIRE_DEVICE(device);
    if (!name || length <= 0) return INVALID_VALUE;
    snprintf(name, (size_t)length, "Emulated GPU");
    return SUCCESS;
}

API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    REQUIRE_DEVICE(device);
    memcpy(uuid, "emulated device", 15);
    uuid[15] = (unsigned char)physical_device(device);
    return SUCCESS;
}
API int cuDeviceGetUuid(unsigned char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    REQUIRE_DEVICE(device);
    *bytes = memory_total_bytes();
    return SUCCESS;
}

API int cuDeviceGetPCIBusId(char* text, int length, int device) {
    REQUIRE_DEVICE(device);
    if (!text || length < 13) return INVALID_VALUE;
    snprintf(text, (size_t)length, "0000:%02X:00.0", physical_device(device) + 1);
    return SUCCESS;
}

API int cuDeviceGetByPCIBusId(int* device, const char* text) {
    if (!is_initialized()) return NOT_INITIALIZED;
    char own[16];
    for (int other = 0; other < device_count(); ++other) {
        cuDeviceGetPCIBusId(own, sizeof own, other);
        if (!strcasecmp(own, text)) return *device = other, SUCCESS;
    }
    return INVALID_DEVICE;
}

API int cuDeviceComputeCapability(int* major, int* minor, int device) {
    REQUIRE_DEVICE(device);
    *major = 9, *minor = 0;
    return SUCCESS;
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
    REQUIRE_DEVICE(device);
    if (!value || attribute <= 0 || attribute >= 148) return INVALID_VALUE;
    *value = 0;
    if (attribute == 16) *value = (int)multiprocessor_count();
    if (attribute == 33) *value = physical_device(device) + 1;  // PCI bus
    for (auto& entry : attributes)
        if (entry.attribute == attribute) *value = entry.value;
    return SUCCESS;
}

API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    REQUIRE_DEVICE(device);
    REQUIRE_DEVICE(peer);
    *can = device != peer && has_peer_access();
    return SUCCESS;
}

API int cuDeviceGetP2PAttribute(int* value, int attribute, int source, int destination) {
    REQUIRE_DEVICE(source);
    REQUIRE_DEVICE(destination);
    if (attribute < 1 || attribute > 5 || source == destination) return INVALID_VALUE;
    *value = attribute == 1 ? 0 : 1;  // 1 is the rank of performance, the best being 0
    return SUCCESS;
}

API int cuGetErrorName(int code, const char** name) {
    for (auto& error : errors)
        if (error.code == code) return *name = error.name, SUCCESS;
    *name = nullptr;
    return INVALID_VALUE;
}

API int cuGetErrorString(int code, const char** text) {
    for (auto& error : errors)
        if (error.code == code) return *text = error.text, SUCCESS;
    *text = nullptr;
    return INVALID_VALUE;
}

// The newest variant of a name is what a caller of this version asks for.
API int cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
    Dl_info own;
    dladdr((void*)&cuInit, &own);
    static void* library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = nullptr;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""})
        if (!*function) *function = dlsym(library, (std::string(symbol) + suffix).c_str());
    if (status) *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}

API int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

API void emulator_refuse_after_exit() { refuse_after_exit(); }
API int cuProfilerStart() { return SUCCESS; }
API int cuProfilerStop() { return SUCCESS; }
API int emulator_physical_device(int device) { return device >= 0 && device < device_count() ? physical_device(device) : -1; }
