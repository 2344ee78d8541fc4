// Copies and fills. Every device side is checked against the table of allocations when the call is made and again when it runs.
#include "driver.h"

#include <cstring>

namespace emulator {

enum class Side { HOST, DEVICE, ANY };

static bool known(uintptr_t address) {
    Allocation allocation;
    return find_allocation(address, &allocation);
}
static bool pageable(Side side, uintptr_t address) { return side != Side::DEVICE && !known(address); }

static void check(const char* call, const char* role, Side side, uintptr_t address, size_t bytes) {
    if (side == Side::DEVICE || known(address)) check_memory(call, role, address, bytes);
}

// Host memory that is not pinned is staged by the driver: a source is read before the call returns, and a call that writes to
// such memory returns when the bytes are there.
static int copy(const char* call, uintptr_t destination, Side destination_side, uintptr_t source, Side source_side, size_t bytes, Handle handle, bool wait) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    if (bytes == 0) return INVALID_VALUE;  // some drivers refuse it
    check(call, "destination", destination_side, destination, bytes);
    check(call, "source", source_side, source, bytes);
    bool from_pageable = pageable(source_side, source), to_pageable = pageable(destination_side, destination);
    if (pinned_only() && !wait && (from_pageable || to_pageable))
        fatal(call, "host memory " + hexadecimal(from_pageable ? source : destination) + " is not pinned: the driver would copy or wait on the host ($EMULATOR_PINNED_ONLY forbids it)");
    if ((wait || from_pageable || to_pageable) && invalidate(*stream, STREAM_CAPTURE_UNSUPPORTED)) return STREAM_CAPTURE_UNSUPPORTED;
    std::shared_ptr<std::vector<char>> staged;
    if (from_pageable && !wait) staged = std::make_shared<std::vector<char>>((const char*)source, (const char*)source + bytes);
    uint64_t ticket = submit(stream, call, [=] {
        check(call, "destination", destination_side, destination, bytes);
        if (!staged) check(call, "source", source_side, source, bytes);
        memmove((void*)destination, staged ? (const void*)staged->data() : (const void*)source, bytes);
    }, false, true);
    if (wait || to_pageable) wait_for(stream, ticket, call);
    return SUCCESS;
}

template <class Word> static int fill(const char* call, uintptr_t address, Word value, size_t count, Handle handle) {
    int result;
    auto stream = find_stream(handle, &result);
    if (!stream) return result;
    if (count == 0) return SUCCESS;
    if (address % sizeof(Word)) return INVALID_VALUE;
    check_memory(call, "destination", address, count * sizeof(Word));
    submit(stream, call, [=] {
        check_memory(call, "destination", address, count * sizeof(Word));
        if (sizeof(Word) == 1) { memset((void*)address, (int)value, count); return; }
        for (size_t each = 0; each < count; ++each) ((Word*)address)[each] = value;
    }, false, true);
    return SUCCESS;
}

static int check_device(const char* call, const char* role, uintptr_t address, Handle handle) {
    auto context = contexts.find(handle);
    if (!context) return INVALID_CONTEXT;
    Allocation allocation = check_memory(call, role, address, 1);
    if (allocation.device != context->device && (allocation.kind == Kind::DEVICE || allocation.kind == Kind::DEVICE_ASYNC))
        fatal(call, std::string(role) + ": expected memory of device " + std::to_string(context->device) + ", found " + describe_address(address));
    return SUCCESS;
}

}  // namespace emulator
using namespace emulator;

API int cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, Handle stream) { return copy("cuMemcpyHtoDAsync", to, Side::DEVICE, (uintptr_t)from, Side::HOST, bytes, stream, false); }
API int cuMemcpyHtoD_v2(uintptr_t to, const void* from, size_t bytes) { return copy("cuMemcpyHtoD", to, Side::DEVICE, (uintptr_t)from, Side::HOST, bytes, 0, true); }
API int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, Handle stream) { return copy("cuMemcpyDtoHAsync", (uintptr_t)to, Side::HOST, from, Side::DEVICE, bytes, stream, false); }
API int cuMemcpyDtoH_v2(void* to, uintptr_t from, size_t bytes) { return copy("cuMemcpyDtoH", (uintptr_t)to, Side::HOST, from, Side::DEVICE, bytes, 0, true); }
API int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, Handle stream) { return copy("cuMemcpyDtoDAsync", to, Side::DEVICE, from, Side::DEVICE, bytes, stream, false); }
// Between two places of device memory even this call does not wait for the copy.
API int cuMemcpyDtoD_v2(uintptr_t to, uintptr_t from, size_t bytes) { return copy("cuMemcpyDtoD", to, Side::DEVICE, from, Side::DEVICE, bytes, 0, false); }
API int cuMemcpyAsync(uintptr_t to, uintptr_t from, size_t bytes, Handle stream) { return copy("cuMemcpyAsync", to, Side::ANY, from, Side::ANY, bytes, stream, false); }
API int cuMemcpy(uintptr_t to, uintptr_t from, size_t bytes) { return copy("cuMemcpy", to, Side::ANY, from, Side::ANY, bytes, 0, true); }

API int cuMemcpyPeerAsync(uintptr_t to, Handle to_context, uintptr_t from, Handle from_context, size_t bytes, Handle stream) {
    if (int result = check_device("cuMemcpyPeerAsync", "destination", to, to_context)) return result;
    if (int result = check_device("cuMemcpyPeerAsync", "source", from, from_context)) return result;
    return copy("cuMemcpyPeerAsync", to, Side::DEVICE, from, Side::DEVICE, bytes, stream, false);
}
API int cuMemcpyPeer(uintptr_t to, Handle to_context, uintptr_t from, Handle from_context, size_t bytes) {
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, 0);
}

API int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t count, Handle stream) { return fill<uint8_t>("cuMemsetD8Async", to, value, count, stream); }
API int cuMemsetD16Async(uintptr_t to, unsigned short value, size_t count, Handle stream) { return fill<uint16_t>("cuMemsetD16Async", to, value, count, stream); }
API int cuMemsetD32Async(uintptr_t to, unsigned value, size_t count, Handle stream) { return fill<uint32_t>("cuMemsetD32Async", to, value, count, stream); }
API int cuMemsetD8_v2(uintptr_t to, unsigned char value, size_t count) { return fill<uint8_t>("cuMemsetD8", to, value, count, 0); }
API int cuMemsetD16_v2(uintptr_t to, unsigned short value, size_t count) { return fill<uint16_t>("cuMemsetD16", to, value, count, 0); }
API int cuMemsetD32_v2(uintptr_t to, unsigned value, size_t count) { return fill<uint32_t>("cuMemsetD32", to, value, count, 0); }
