// Green contexts: multiprocessors of a device split into groups, a context and streams for each group.
// The split follows the rules of compute capability 9.0: groups of at least 8 multiprocessors, in multiples of 8.
#include "driver.h"

#include <algorithm>
#include <cstring>

namespace emulator {

// CUdevResource of CUDA 13.0: 144 bytes, the multiprocessor part at 96. The padding in between belongs to the driver: here it
// says which multiprocessors are meant, so that a made-up resource is refused.
struct Resource {
    int type;
    unsigned mark, device, first;
    unsigned char padding[92 - 3 * sizeof(unsigned)];
    unsigned multiprocessors, smallest_partition, alignment;  // of queues: device, most streams at work at once, how they are shared
    unsigned char rest[48 - 3 * sizeof(unsigned)];
};
static_assert(sizeof(Resource) == 144, "CUdevResource of CUDA 13.0");

struct Description {
    int device;
    unsigned first, multiprocessors, queues;  // queues: of its own, 0 for the device's
};
struct Green {
    int device;
    std::shared_ptr<Context> context;
    unsigned first, multiprocessors;
};

static constexpr unsigned MARK = 0x6d756c65;
static constexpr int MULTIPROCESSORS = 1, QUEUES = 1000;
static Registry<Description>& descriptions = *new Registry<Description>(0x50000000);
static Registry<Green>& greens = *new Registry<Green>(0x60000000);

static Resource resource_of(int device, unsigned first, unsigned count) {
    Resource resource;
    memset(&resource, 0, sizeof resource);
    resource.type = MULTIPROCESSORS;
    resource.mark = MARK;
    resource.device = (unsigned)device;
    resource.first = first;
    resource.multiprocessors = count;
    resource.smallest_partition = 8;
    resource.alignment = 8;
    return resource;
}

static bool genuine(const Resource* resource) { return resource && resource->type == MULTIPROCESSORS && resource->mark == MARK; }

}  // namespace emulator
using namespace emulator;

API int cuDeviceGetDevResource(int device, Resource* resource, int type) {
    if (!is_initialized()) return NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    if (type == QUEUES && driver_version() >= 13010) {
        memset(resource, 0, sizeof *resource);
        resource->type = QUEUES;
        resource->multiprocessors = (unsigned)device;
        resource->smallest_partition = connections();
        return SUCCESS;
    }
    if (type != MULTIPROCESSORS) return INVALID_RESOURCE_TYPE;
    *resource = resource_of(device, 0, multiprocessor_count());
    return SUCCESS;
}

API int cuCtxGetDevResource(Handle handle, Resource* resource, int type) {
    auto context = contexts.find(handle);
    if (!context) return INVALID_CONTEXT;
    if (type != MULTIPROCESSORS) return INVALID_RESOURCE_TYPE;
    *resource = resource_of(context->device, context->first_multiprocessor, context->multiprocessors);
    return SUCCESS;
}

API int cuGreenCtxGetDevResource(Handle handle, Resource* resource, int type) {
    auto green = greens.find(handle);
    if (!green) return INVALID_CONTEXT;
    if (type != MULTIPROCESSORS) return INVALID_RESOURCE_TYPE;
    *resource = resource_of(green->device, green->first, green->multiprocessors);
    return SUCCESS;
}

// `groups` in: how many are wanted; out: how many were made. Without `result` only the possible number is told.
API int cuDevSmResourceSplitByCount(Resource* result, unsigned* groups, const Resource* input, Resource* remaining, unsigned flags,
                                    unsigned at_least) {
    if (!groups || !genuine(input)) return input && groups ? INVALID_RESOURCE_TYPE : INVALID_VALUE;
    if (flags > 3) return INVALID_VALUE;
    unsigned step = flags & 1 ? 2 : 8;  // flag 1: without regard to co-scheduling (clusters)
    unsigned size = std::max(step, (at_least + step - 1) / step * step);
    unsigned possible = input->multiprocessors / size;
    if (!result) return *groups = possible, SUCCESS;
    if (possible == 0 || *groups == 0) return INVALID_RESOURCE_CONFIGURATION;
    *groups = std::min(*groups, possible);
    Resource whole = *input;
    for (unsigned group = 0; group < *groups; ++group)
        result[group] = resource_of((int)whole.device, whole.first + group * size, size);
    unsigned used = *groups * size;
    if (remaining) {
        *remaining = resource_of((int)whole.device, whole.first + used, whole.multiprocessors - used);
        if (used == whole.multiprocessors) memset(remaining, 0, sizeof *remaining);
    }
    return SUCCESS;
}

API int cuDevResourceGenerateDesc(Handle* out, Resource* resources, unsigned count) {
    if (!out || !resources || count == 0) return INVALID_VALUE;
    auto description = std::make_shared<Description>(Description{(int)resources[0].device, resources[0].first, 0, 0});
    for (unsigned each = 0; each < count; ++each) {
        if (each > 0 && resources[each].type == QUEUES && driver_version() >= 13010) {
            if (resources[each].multiprocessors != resources[0].device || resources[each].alignment > 1) return INVALID_RESOURCE_CONFIGURATION;
            description->queues = resources[each].alignment == 1 ? resources[each].smallest_partition : 0;
            continue;
        }
        if (!genuine(&resources[each])) return INVALID_RESOURCE_TYPE;
        if (resources[each].device != resources[0].device) return INVALID_RESOURCE_CONFIGURATION;
        description->multiprocessors += resources[each].multiprocessors;
    }
    *out = descriptions.add(description);
    return SUCCESS;
}

API int cuGreenCtxCreate(Handle* out, Handle handle, int device, unsigned flags) {
    auto description = descriptions.find(handle);
    if (!out || !description || description->device != device || flags != 1) return INVALID_VALUE;
    if (description->queues && getenv("EMULATOR_NO_OWN_QUEUES")) return INVALID_RESOURCE_CONFIGURATION;
    auto base = primary_context(device);
    base->references++;
    base->active = true;
    auto green = std::make_shared<Green>();
    green->device = device;
    green->first = description->first;
    green->multiprocessors = description->multiprocessors;
    green->context = std::make_shared<Context>();
    green->context->device = device;
    green->context->base = base;
    green->context->first_multiprocessor = description->first;
    green->context->multiprocessors = description->multiprocessors;
    for (unsigned each = 0; each < description->queues; ++each) {
        green->context->own_queues.push_back(std::make_shared<HardwareQueue>());
        green->context->own_queues.back()->number = (int)(100 * (description->first + 1) + each);
    }
    green->context->handle = contexts.add(green->context);
    *out = green->context->green = greens.add(green);
    return SUCCESS;
}

API int cuGreenCtxDestroy(Handle handle) {
    auto green = greens.remove(handle);
    if (!green) return INVALID_CONTEXT;
    synchronize_context(green->context.get(), "cuGreenCtxDestroy");
    contexts.remove(green->context->handle);
    auto base = green->context->base;
    if (--base->references == 0) base->active = false;
    return SUCCESS;
}

API int cuCtxFromGreenCtx(Handle* out, Handle handle) {
    auto green = greens.find(handle);
    if (!green) return INVALID_CONTEXT;
    *out = green->context->handle;
    return SUCCESS;
}

API int cuGreenCtxStreamCreate(Handle* out, Handle handle, unsigned flags, int priority) {
    auto green = greens.find(handle);
    if (!green) return INVALID_CONTEXT;
    if (!out || flags != 1) return INVALID_VALUE;  // CU_STREAM_NON_BLOCKING must be given
    *out = create_stream(green->context, flags, priority)->handle;
    return SUCCESS;
}

// Records on all streams of the group: the event is complete when each has passed this point.
API int cuGreenCtxRecordEvent(Handle handle, Handle event) {
    auto green = greens.find(handle);
    if (!green) return INVALID_CONTEXT;
    auto meeting = create_stream(green->context, 1, 0);
    for (auto& stream : streams.all()) {
        if (stream->context != green->context || stream == meeting) continue;
        uint64_t ticket;
        { std::lock_guard<std::mutex> guard(stream->mutex); ticket = stream->submitted; }
        submit(meeting, "cuGreenCtxRecordEvent", [stream, ticket] { wait_for(stream, ticket, "cuGreenCtxRecordEvent"); });
    }
    int result = record_event(event, meeting, "cuGreenCtxRecordEvent");
    close_stream(meeting);
    return result;
}

API int cuGreenCtxWaitEvent(Handle handle, Handle event) {
    auto green = greens.find(handle);
    if (!green) return INVALID_CONTEXT;
    for (auto& stream : streams.all())
        if (stream->context == green->context)
            if (int result = wait_event(event, stream, "cuGreenCtxWaitEvent")) return result;
    return SUCCESS;
}

API int cuGreenCtxGetId(Handle handle, unsigned long long* id) {
    if (!greens.find(handle)) return INVALID_CONTEXT;
    *id = handle;
    return SUCCESS;
}
