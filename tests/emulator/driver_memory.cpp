// Device and pinned memory: the table of allocations, and the device's memory file.
//
// Each device of each process has one sparse memory file, mapped once without access. An allocation opens some pages of it,
// never used before, with a closed page after them and the allocation's end against it: a kernel that writes past the end (by
// more than the 256 bytes of alignment) or into freed memory faults, and the fault is reported with the kernel's name. Fresh
// memory holds 0xff bytes, a NaN in float32 and bfloat16. Another process maps the same file through /proc.
#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emulator {

static constexpr size_t PAGE = 4096, ALIGNMENT = 256, ADDRESSES = 1ull << 38;
static constexpr unsigned char FRESH = 0xff, FENCE = 0xa5;

struct Device {
    std::mutex mutex;
    int file = -1;
    uintptr_t base = 0;
    size_t next = 0, used = 0;
};

static auto& table_mutex = *new std::mutex;
static auto& table = *new std::map<uintptr_t, Allocation>;  // by address; freed device memory stays, to be named in a message

static size_t up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

static auto* devices = new Device[64];

static Device& device_of(int ordinal) {
    Device& device = devices[ordinal];
    std::lock_guard<std::mutex> guard(device.mutex);
    if (device.file < 0) {
        device.file = memfd_create("emulated device memory", MFD_CLOEXEC);
        if (device.file < 0 || ftruncate(device.file, (off_t)ADDRESSES)) fatal("cuMemAlloc", "no memory file could be made");
        void* mapped = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, device.file, 0);
        if (mapped == MAP_FAILED) fatal("cuMemAlloc", "256 GiB of addresses could not be reserved; is `ulimit -v` set?");
        device.base = (uintptr_t)mapped;
    }
    return device;
}
int device_memory_file(int device) { return device_of(device).file; }

static std::string describe(const Allocation& allocation, uintptr_t address) {
    static const char* kinds[] = {"device memory", "device memory (async)", "pinned host memory", "registered host memory", "memory of another process", "symmetric memory"};
    std::string text = std::string(kinds[(int)allocation.kind]) + " of " + std::to_string(allocation.bytes) + " bytes at " + hexadecimal(allocation.address);
    if (allocation.kind != Kind::HOST && allocation.kind != Kind::REGISTERED) text += " on device " + std::to_string(allocation.device);
    if (!allocation.origin.empty()) text += " (" + allocation.origin + ")";
    if (allocation.freed) text += ", which was freed";
    if (address >= allocation.address + allocation.bytes)
        text = std::to_string(address - allocation.address - allocation.bytes) + " bytes past the end of " + text;
    else if (address != allocation.address) text = "offset " + std::to_string(address - allocation.address) + " of " + text;
    return text;
}

// The allocation that holds the address; failing that, with `near`, the one that ends shortly before it.
static const Allocation* lookup(uintptr_t address, bool near) {
    auto after = table.upper_bound(address);
    if (after == table.begin()) return nullptr;
    const Allocation& candidate = std::prev(after)->second;
    if (address < candidate.address + candidate.bytes || (near && address < candidate.address + candidate.bytes + 2 * PAGE)) return &candidate;
    return nullptr;
}

bool find_allocation(uintptr_t address, Allocation* found) {
    std::lock_guard<std::mutex> guard(table_mutex);
    const Allocation* allocation = lookup(address, false);
    if (allocation) *found = *allocation;
    return allocation != nullptr;
}

std::string describe_address(uintptr_t address) {
    std::lock_guard<std::mutex> guard(table_mutex);
    const Allocation* allocation = lookup(address, true);
    return allocation ? describe(*allocation, address) : "no memory that a device knows";
}

Allocation check_memory(const char* call, const char* role, uintptr_t address, size_t bytes) {
    std::unique_lock<std::mutex> lock(table_mutex);
    const Allocation* allocation = lookup(address, true);
    std::string what = std::string(role) + " " + hexadecimal(address) + ", " + std::to_string(bytes) + " bytes: ";
    if (!allocation) fatal(call, what + "expected device memory of this process, found an address that belongs to none");
    if (allocation->freed) fatal(call, what + "expected living memory, found " + describe(*allocation, address));
    if (address + bytes > allocation->address + allocation->bytes || address + bytes < address)
        fatal(call, what + "ends " + std::to_string(address + bytes - allocation->address - allocation->bytes) + " bytes past the end of " + describe(*allocation, allocation->address));
    return *allocation;
}

void add_allocation(const Allocation& allocation) {
    std::lock_guard<std::mutex> guard(table_mutex);
    table[allocation.address] = allocation;
}

bool remove_allocation(uintptr_t address, Kind kind, Allocation* removed) {
    std::lock_guard<std::mutex> guard(table_mutex);
    auto found = table.find(address);
    if (found == table.end() || found->second.kind != kind || found->second.freed) return false;
    *removed = found->second;
    if (kind == Kind::DEVICE || kind == Kind::DEVICE_ASYNC) found->second.freed = true;
    else if (--found->second.references > 0) removed->references = found->second.references;
    else removed->references = 0, table.erase(found);
    return true;
}

// A fault inside the devices' addresses ends the process with the operation and the memory's story; any other goes to whoever
// handled faults before (Rust's runtime reports overflows of stacks that way).
static struct sigaction previous_action;
static void on_fault(int signal, siginfo_t* information, void*) {
    uintptr_t address = (uintptr_t)information->si_addr;
    bool ours = false;
    for (int ordinal = 0; ordinal < 64 && !ours; ++ordinal) {
        uintptr_t base = devices[ordinal].base;
        ours = base && address >= base && address < base + ADDRESSES;
    }
    if (ours) {
        std::string text = "touched " + hexadecimal(address);
        if (table_mutex.try_lock()) {
            const Allocation* allocation = lookup(address, true);
            auto next = table.lower_bound(address);
            if (allocation) text += ", " + describe(*allocation, address);
            else if (next != table.end() && next->second.address - address < 2 * PAGE)
                text += ", " + std::to_string(next->second.address - address) + " bytes before " + describe(next->second, next->second.address);
            else text += ", device memory that was never allocated";
        }
        fatal(running_operation(), text);
    }
    sigaction(signal, &previous_action, nullptr);  // returning runs the instruction again, now under the old handler
}

static void watch_faults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action{};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &previous_action);
    });
}

int allocate_device(const char* call, int ordinal, Handle context, size_t bytes, Kind kind, uintptr_t* address) {
    watch_faults();
    if (bytes == 0) return INVALID_VALUE;
    Device& device = device_of(ordinal);
    size_t aligned = up(bytes, ALIGNMENT), pages = up(aligned, PAGE), offset;
    {
        std::lock_guard<std::mutex> guard(device.mutex);
        if (device.used + aligned > memory_total_bytes() || device.next + pages + 2 * PAGE > ADDRESSES) return OUT_OF_MEMORY;
        device.used += aligned;
        offset = device.next + PAGE;
        device.next += PAGE + pages;
    }
    uintptr_t mapping = device.base + offset;
    if (mprotect((void*)mapping, pages, PROT_READ | PROT_WRITE)) fatal(call, "the system gave no more pages (many allocations? see vm.max_map_count)");
    Allocation allocation;
    allocation.address = mapping + pages - aligned;
    allocation.bytes = bytes;
    allocation.device = ordinal;
    allocation.kind = kind;
    allocation.context = context;
    allocation.mapping = mapping;
    allocation.mapping_bytes = pages;
    allocation.file_offset = offset;
    memset((void*)allocation.address, FRESH, bytes);
    memset((void*)(allocation.address + bytes), FENCE, aligned - bytes);
    add_allocation(allocation);
    *address = allocation.address;
    return SUCCESS;
}

void release_device(const char* call, const Allocation& allocation) {
    auto* end = (const unsigned char*)(allocation.address + allocation.bytes);
    size_t aligned = up(allocation.bytes, ALIGNMENT);
    for (size_t each = 0; each < aligned - allocation.bytes; ++each)
        if (end[each] != FENCE) fatal(call, "something wrote " + std::to_string(each) + " bytes past the end of " + describe(allocation, allocation.address));
    Device& device = device_of(allocation.device);
    mprotect((void*)allocation.mapping, allocation.mapping_bytes, PROT_NONE);
    fallocate(device.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)allocation.file_offset, (off_t)allocation.mapping_bytes);
    std::lock_guard<std::mutex> guard(device.mutex);
    device.used -= aligned;
}

static int allocate_host(void** out, size_t bytes) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (int forbidden = refuse_unsafe()) return forbidden;
    if (!out || bytes == 0) return INVALID_VALUE;
    void* memory = aligned_alloc(PAGE, up(bytes, PAGE));
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, FRESH, bytes);
    Allocation allocation;
    allocation.address = (uintptr_t)memory;
    allocation.bytes = bytes;
    allocation.device = context->device;
    allocation.kind = Kind::HOST;
    allocation.context = context->handle;
    add_allocation(allocation);
    *out = memory;
    return SUCCESS;
}

}  // namespace emulator
using namespace emulator;

API int cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (int forbidden = refuse_unsafe()) return forbidden;
    return allocate_device("cuMemAlloc", context->device, context->root()->handle, bytes, Kind::DEVICE, address);
}

// As in the driver, freeing waits for the device; memory of cuMemAllocAsync may be freed here too. A MiB or more takes as long as
// $EMULATOR_TEARDOWN_MS says.
API int cuMemFree_v2(uintptr_t address) {
    static const char* milliseconds = getenv("EMULATOR_TEARDOWN_MS");
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (!address) return SUCCESS;
    if (int forbidden = refuse_unsafe()) return forbidden;
    Allocation allocation = check_memory("cuMemFree", "address", address, 1);
    if (milliseconds && allocation.bytes >= 1 << 20) usleep((useconds_t)atoi(milliseconds) * 1000);
    if (allocation.address != address) fatal("cuMemFree", "expected the start of an allocation, found " + describe_address(address));
    if (allocation.kind != Kind::DEVICE && allocation.kind != Kind::DEVICE_ASYNC) return INVALID_VALUE;
    synchronize_device(allocation.device, "cuMemFree");
    if (!remove_allocation(address, allocation.kind, &allocation)) fatal("cuMemFree", "freed twice at the same time: " + describe_address(address));
    release_device("cuMemFree", allocation);
    return SUCCESS;
}

API int cuMemAllocAsync(uintptr_t* address, size_t bytes, Handle handle) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    if (capture_state(*stream)) fatal("cuMemAllocAsync", "the stream is being captured, and memory of graphs is not emulated");
    return allocate_device("cuMemAllocAsync", stream->context->device, stream->context->root()->handle, bytes, Kind::DEVICE_ASYNC, address);
}

API int cuMemFreeAsync(uintptr_t address, Handle handle) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    Allocation allocation = check_memory("cuMemFreeAsync", "address", address, 1);
    if (allocation.address != address || (allocation.kind != Kind::DEVICE && allocation.kind != Kind::DEVICE_ASYNC)) return INVALID_VALUE;
    submit(stream, "cuMemFreeAsync", [address, kind = allocation.kind] {
        Allocation gone;
        if (!remove_allocation(address, kind, &gone)) fatal("cuMemFreeAsync", "freed twice: " + describe_address(address));
        release_device("cuMemFreeAsync", gone);
    });
    return SUCCESS;
}

API int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    Device& device = device_of(context->device);
    std::lock_guard<std::mutex> guard(device.mutex);
    *total = memory_total_bytes();
    *free_bytes = *total - std::min(*total, device.used);
    return SUCCESS;
}

API int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) { return flags > 7 ? (int)INVALID_VALUE : allocate_host(out, bytes); }
API int cuMemAllocHost_v2(void** out, size_t bytes) { return allocate_host(out, bytes); }

API int cuMemFreeHost(void* memory) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    Allocation allocation;
    if (!find_allocation((uintptr_t)memory, &allocation) || allocation.kind != Kind::HOST) return INVALID_VALUE;
    if (int forbidden = refuse_unsafe()) return forbidden;
    synchronize_device(allocation.device, "cuMemFreeHost");
    if (!remove_allocation((uintptr_t)memory, Kind::HOST, &allocation)) return INVALID_VALUE;
    free(memory);
    return SUCCESS;
}

API int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (!memory || bytes == 0 || flags > 15) return INVALID_VALUE;
    Allocation allocation;
    if (find_allocation((uintptr_t)memory, &allocation) || find_allocation((uintptr_t)memory + bytes - 1, &allocation)) return HOST_MEMORY_ALREADY_REGISTERED;
    allocation = Allocation{};
    allocation.address = (uintptr_t)memory;
    allocation.bytes = bytes;
    allocation.device = context->device;
    allocation.kind = Kind::REGISTERED;
    allocation.context = context->handle;
    add_allocation(allocation);
    return SUCCESS;
}

API int cuMemHostUnregister(void* memory) {
    Allocation allocation;
    return remove_allocation((uintptr_t)memory, Kind::REGISTERED, &allocation) ? SUCCESS : HOST_MEMORY_NOT_REGISTERED;
}

API int cuMemHostGetDevicePointer_v2(uintptr_t* address, void* memory, unsigned flags) {
    Allocation allocation;
    if (flags || !find_allocation((uintptr_t)memory, &allocation) || (allocation.kind != Kind::HOST && allocation.kind != Kind::REGISTERED)) return INVALID_VALUE;
    *address = (uintptr_t)memory;
    return SUCCESS;
}

API void emulator_register_memory(void* address, size_t bytes, int device, const char* origin) {
    Allocation allocation;
    allocation.address = (uintptr_t)address;
    allocation.bytes = bytes;
    allocation.device = device;
    allocation.kind = Kind::SYMMETRIC;
    allocation.origin = origin;
    add_allocation(allocation);
}
API void emulator_unregister_memory(void* address) {
    Allocation allocation;
    remove_allocation((uintptr_t)address, Kind::SYMMETRIC, &allocation);
}
API void emulator_check_memory(const char* call, const char* role, const void* address, size_t bytes) {
    check_memory(call, role, (uintptr_t)address, bytes);
}
