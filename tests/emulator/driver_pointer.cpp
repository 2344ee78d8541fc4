// What is known of a pointer, and device memory shared between processes.
#include "driver.h"

#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace emulator {

struct MemoryName {  // CUipcMemHandle: 64 bytes
    char mark[8];
    int process, file, device, unused;
    uint64_t offset, bytes, lead;  // of the pages in the file; of the allocation; where in the pages it begins
    char rest[16];
};
static_assert(sizeof(MemoryName) == 64, "CUipcMemHandle");

static auto& opened_mutex = *new std::mutex;
static auto& opened = *new std::map<std::pair<std::pair<int, int>, uint64_t>, uintptr_t>;  // (process, device), offset -> address here

}  // namespace emulator
using namespace emulator;

API int cuPointerGetAttribute(void* out, int attribute, uintptr_t address) {
    Allocation allocation;
    if (!find_allocation(address, &allocation) || allocation.freed) return INVALID_VALUE;
    bool host = allocation.kind == Kind::HOST || allocation.kind == Kind::REGISTERED;
    switch (attribute) {
        case 1: *(Handle*)out = allocation.context; return SUCCESS;
        case 2: *(unsigned*)out = host ? 1 : 2; return SUCCESS;
        case 3: *(uintptr_t*)out = address; return SUCCESS;
        case 4:
            if (!host) return INVALID_VALUE;
            *(uintptr_t*)out = address;
            return SUCCESS;
        case 7: *(uint64_t*)out = allocation.address; return SUCCESS;
        case 8: *(unsigned*)out = 0; return SUCCESS;
        case 9: *(int*)out = allocation.device; return SUCCESS;
        case 10: *(bool*)out = allocation.kind == Kind::DEVICE; return SUCCESS;
        case 11: *(uintptr_t*)out = allocation.address; return SUCCESS;
        case 12: *(size_t*)out = allocation.bytes; return SUCCESS;
        case 13: *(bool*)out = true; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

API int cuMemGetAddressRange_v2(uintptr_t* base, size_t* bytes, uintptr_t address) {
    Allocation allocation;
    if (!find_allocation(address, &allocation) || allocation.freed) return NOT_FOUND;
    if (base) *base = allocation.address;
    if (bytes) *bytes = allocation.bytes;
    return SUCCESS;
}

// The handle names the whole allocation, whatever place in it is asked for, as in CUDA.
API int cuIpcGetMemHandle(MemoryName* name, uintptr_t address) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    Allocation allocation = check_memory("cuIpcGetMemHandle", "address", address, 1);
    if (allocation.kind != Kind::DEVICE) return INVALID_VALUE;
    memset(name, 0, sizeof *name);
    memcpy(name->mark, "emumemor", 8);
    name->process = getpid();
    name->file = device_memory_file(allocation.device);
    name->device = physical_device(allocation.device);
    name->offset = allocation.file_offset;
    name->bytes = allocation.bytes;
    name->lead = allocation.address - allocation.mapping;
    return SUCCESS;
}

API int cuIpcOpenMemHandle_v2(uintptr_t* out, MemoryName name, unsigned flags) {
    int result;
    auto context = current_context(&result);
    if (!context) return result;
    if (flags != 1 || memcmp(name.mark, "emumemor", 8)) return INVALID_VALUE;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS must be given
    if (name.process == getpid()) return INVALID_CONTEXT;                      // only another process may open it
    if (name.device != physical_device(context->device) && !has_peer_access()) return PEER_ACCESS_UNSUPPORTED;
    std::lock_guard<std::mutex> guard(opened_mutex);
    auto key = std::make_pair(std::make_pair(name.process, name.device), name.offset);
    auto found = opened.find(key);
    Allocation allocation;
    if (found != opened.end() && find_allocation(found->second, &allocation)) {
        allocation.references++;
        add_allocation(allocation);
        *out = found->second;
        return SUCCESS;
    }
    std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return MAPPING_FAILED;
    size_t bytes = (name.lead + name.bytes + 4095) / 4096 * 4096;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)name.offset);
    close(file);
    if (mapped == MAP_FAILED) return MAPPING_FAILED;
    allocation = Allocation{};
    allocation.address = (uintptr_t)mapped + name.lead;
    allocation.bytes = name.bytes;
    allocation.device = context->device;
    allocation.kind = Kind::IPC;
    allocation.context = context->handle;
    allocation.mapping = (uintptr_t)mapped;
    allocation.mapping_bytes = bytes;
    allocation.origin = "process " + std::to_string(name.process) + ", its device " + std::to_string(name.device);
    add_allocation(allocation);
    opened[key] = *out = allocation.address;
    return SUCCESS;
}

API int cuIpcCloseMemHandle(uintptr_t address) {
    std::lock_guard<std::mutex> guard(opened_mutex);
    Allocation allocation;
    if (!find_allocation(address, &allocation) || allocation.kind != Kind::IPC) return INVALID_VALUE;
    synchronize_device(allocation.device, "cuIpcCloseMemHandle");
    if (!remove_allocation(address, Kind::IPC, &allocation)) return INVALID_VALUE;
    if (allocation.references > 0) return SUCCESS;
    for (auto entry = opened.begin(); entry != opened.end();) entry = entry->second == address ? opened.erase(entry) : std::next(entry);
    munmap((void*)allocation.mapping, allocation.mapping_bytes);
    return SUCCESS;
}
