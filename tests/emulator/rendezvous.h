// What the stand-ins for NVSHMEM and NCCL share: memory that several processes map, found through a name that fits into their
// unique ids, and the stand-in for the driver.
//
// The memory is an anonymous file of the process that made it, opened by the others through /proc: nothing is left behind when
// a rank is killed, but the maker of a unique id must live until all ranks have joined, as with the real libraries.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#define API extern "C" __attribute__((visibility("default")))

namespace rendezvous {

struct Name {
    char mark[8];
    int process, file;
    uint64_t bytes;
};

[[noreturn]] inline void fatal(const char* call, const std::string& message) {
    fprintf(stderr, "emulator: %s: %s\n", call, message.c_str());
    abort();
}

inline void* map(int file, size_t bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return mapped == MAP_FAILED ? nullptr : mapped;
}

// Zeroed shared memory; `name` is what another process opens it by.
inline void* create(const char* mark, size_t bytes, Name* name) {
    int file = memfd_create(mark, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes)) return nullptr;
    memset(name, 0, sizeof *name);
    memcpy(name->mark, mark, 8);
    name->process = getpid(), name->file = file, name->bytes = bytes;
    return map(file, bytes);
}

inline void* open_name(const char* mark, const Name& name) {
    if (memcmp(name.mark, mark, 8)) return nullptr;
    std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    void* mapped = map(file, name.bytes);
    close(file);
    return mapped;
}

// The exported part of the stand-in libcuda.so.1; without it (or with a real driver) `present` is false.
struct Driver {
    int (*enqueue)(uintptr_t, void (*)(void*), void*, const char*) = nullptr;
    void (*block)(int (*)(void*), void*, const char*) = nullptr;
    void (*register_memory)(void*, size_t, int, const char*) = nullptr;
    void (*unregister_memory)(void*) = nullptr;
    void (*check_memory)(const char*, const char*, const void*, size_t) = nullptr;
    int (*current_device)() = nullptr;
    int (*stream_device)(uintptr_t) = nullptr;
    int (*physical_device)(int) = nullptr;
    int (*synchronize)(uintptr_t) = nullptr;
    void (*refuse_after_exit)() = [] {};
    bool present = false;
    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW);
        if (!library || !dlsym(library, "emulator_enqueue")) return;
        find(library, "emulator_enqueue", enqueue);
        find(library, "emulator_block", block);
        find(library, "emulator_register_memory", register_memory);
        find(library, "emulator_unregister_memory", unregister_memory);
        find(library, "emulator_check_memory", check_memory);
        find(library, "emulator_current_device", current_device);
        find(library, "emulator_stream_device", stream_device);
        find(library, "emulator_physical_device", physical_device);
        find(library, "cuStreamSynchronize", synchronize);
        find(library, "emulator_refuse_after_exit", refuse_after_exit);
        present = true;
    }
    template <class F> static void find(void* library, const char* name, F& function) { function = (F)dlsym(library, name); }
    int device() const { return present ? current_device() : -1; }
};
inline Driver& driver() {
    static auto& loaded = *new Driver;
    return loaded;
}

// Polls until `ready`. Where the driver's stand-in is there, its report of a deadlock includes this wait.
inline void wait_until(std::function<bool()> ready, const std::string& what) {
    if (driver().present) {
        driver().block([](void* ready) -> int { return (*(std::function<bool()>*)ready)(); }, &ready, what.c_str());
        return;
    }
    while (!ready()) usleep(50);
}

// An operation on a stream.
inline int enqueue(uintptr_t stream, const char* what, std::function<void()> run) {
    auto* held = new std::function<void()>(std::move(run));
    auto call = [](void* argument) {
        auto* function = (std::function<void()>*)argument;
        (*function)();
        delete function;
    };
    int result = driver().enqueue(stream, call, held, what);
    if (result) delete held;
    return result;
}

}  // namespace rendezvous
