// A stand-in for NVIDIA's management library (libnvidia-ml.so.1): clock, power and reasons for a lower clock of each device, and no
// NVLink. EMULATOR_THROTTLE is the bit mask of the reasons.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define API extern "C" __attribute__((visibility("default")))

namespace {
enum Result : int { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
constexpr unsigned SM_CLOCK = 1;
int devices[16];

unsigned number(const char* variable, unsigned fallback) {
    const char* text = getenv(variable);
    return text && *text ? (unsigned)strtoul(text, nullptr, 0) : fallback;
}
}  // namespace

API int nvmlInit_v2() { return SUCCESS; }

API int nvmlDeviceGetCount_v2(unsigned* count) { return *count = number("EMULATOR_DEVICES", 2), SUCCESS; }

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    if (index >= number("EMULATOR_DEVICES", 2) || index >= 16) return INVALID_ARGUMENT;
    return *device = &devices[index], SUCCESS;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char* text, void** device) {
    unsigned bus = 0;
    if (sscanf(text, "0000:%x:00.0", &bus) != 1 || bus == 0) return NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}

API int nvmlDeviceGetMaxClockInfo(void*, unsigned type, unsigned* mhz) {
    return type == SM_CLOCK ? (*mhz = 1980, (int)SUCCESS) : (int)NOT_SUPPORTED;
}

API int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* mhz) {
    if (type != SM_CLOCK) return NOT_SUPPORTED;
    return *mhz = number("EMULATOR_THROTTLE", 0) ? 1410 : 1980, SUCCESS;
}

API int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return *milliwatts = 650000, SUCCESS; }

API int nvmlDeviceGetCurrentClocksThrottleReasons(void*, uint64_t* reasons) {
    return *reasons = number("EMULATOR_THROTTLE", 0), SUCCESS;
}

API int nvmlDeviceGetNvLinkState(void*, unsigned, unsigned*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned*) { return NOT_SUPPORTED; }
