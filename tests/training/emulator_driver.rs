//! The stand-ins for NVIDIA's libraries (tests/emulator) must themselves be right: order and asynchrony of streams, events,
//! memory operations, sharing between processes, green contexts, matrix products with every epilogue, and the checks that end
//! a process. Expectations are closed forms and plain loops. Needs a C++ compiler; without one the tests say so and pass.

#![allow(non_snake_case)]

use crate::support::{again, try_emulator};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const NOT_FOUND: c_int = 500;
const NOT_READY: c_int = 600;
const INVALID_HANDLE: c_int = 400;

/// Asserts that a call succeeded.
#[track_caller]
fn ok(code: c_int) {
    assert_eq!(code, SUCCESS);
}

/// What a call that succeeds writes.
#[track_caller]
fn made<T: Default>(call: impl FnOnce(&mut T) -> c_int) -> T {
    let mut value = T::default();
    ok(call(&mut value));
    value
}

/// The folder of the stand-ins, built once; nothing where there is no C++ compiler.
fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = FOLDER.get_or_init(|| try_emulator().inspect_err(|why| eprintln!("skipped: {why}")).ok());
    built.as_deref()
}

type Handle = usize;
type HostFunction = extern "C" fn(*mut c_void);

/// Declares a library's functions and loads them by name; each method calls one.
macro_rules! library {
    ($type:ident, $file:literal, { $($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)* }) => {
        pub struct $type { $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)* }
        impl $type {
            fn get() -> Option<&'static $type> {
                static LOADED: OnceLock<Option<$type>> = OnceLock::new();
                // SAFETY: the stand-ins run no code on loading.
                let load = |path: PathBuf| $type::of(unsafe { libloading::Library::new(path) }.expect($file));
                LOADED.get_or_init(|| folder().map(|folder| load(folder.join($file)))).as_ref()
            }
            /// The functions of a library, which stays loaded, so that they stay valid.
            pub fn of(library: libloading::Library) -> $type {
                let library = Box::leak(Box::new(library));
                // SAFETY: the signatures are those of NVIDIA's headers, which the stand-in has, too.
                $type { $($name: *unsafe { library.get(stringify!($name)) }.expect(stringify!($name)),)* }
            }
            $(#[allow(clippy::too_many_arguments)]
            fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                // SAFETY: the tests pass pointers to living variables and handles that this library gave.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

library!(Driver, "libcuda.so.1", {
    cuInit(flags: c_uint) -> c_int;
    cuDriverGetVersion(version: *mut c_int) -> c_int;
    cuDeviceGetCount(count: *mut c_int) -> c_int;
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int;
    cuCtxSetCurrent(context: Handle) -> c_int;
    cuCtxSynchronize() -> c_int;
    cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int;
    cuMemFree_v2(address: u64) -> c_int;
    cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle) -> c_int;
    cuMemFreeAsync(address: u64, stream: Handle) -> c_int;
    cuMemAllocHost_v2(memory: *mut *mut c_void, bytes: usize) -> c_int;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int;
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int;
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int;
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> c_int;
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> c_int;
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> c_int;
    cuMemcpyPeerAsync(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) -> c_int;
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> c_int;
    cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) -> c_int;
    cuStreamCreate(stream: *mut Handle, flags: c_uint) -> c_int;
    cuStreamDestroy_v2(stream: Handle) -> c_int;
    cuStreamSynchronize(stream: Handle) -> c_int;
    cuStreamQuery(stream: Handle) -> c_int;
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> c_int;
    cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint) -> c_int;
    cuStreamWaitValue64_v2(stream: Handle, address: u64, value: u64, flags: c_uint) -> c_int;
    cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint) -> c_int;
    cuStreamWriteValue64_v2(stream: Handle, address: u64, value: u64, flags: c_uint) -> c_int;
    cuLaunchHostFunc(stream: Handle, function: HostFunction, argument: *mut c_void) -> c_int;
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> c_int;
    cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int;
    cuStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int;
    cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64) -> c_int;
    cuGraphLaunch(executable: Handle, stream: Handle) -> c_int;
    cuGraphDestroy(graph: Handle) -> c_int;
    cuGraphExecDestroy(executable: Handle) -> c_int;
    cuEventCreate(event: *mut Handle, flags: c_uint) -> c_int;
    cuEventRecord(event: Handle, stream: Handle) -> c_int;
    cuEventQuery(event: Handle) -> c_int;
    cuEventSynchronize(event: Handle) -> c_int;
    cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> c_int;
    cuEventDestroy_v2(event: Handle) -> c_int;
    cuIpcGetMemHandle(name: *mut Name, address: u64) -> c_int;
    cuIpcOpenMemHandle_v2(address: *mut u64, name: Name, flags: c_uint) -> c_int;
    cuIpcCloseMemHandle(address: u64) -> c_int;
    cuIpcGetEventHandle(name: *mut Name, event: Handle) -> c_int;
    cuIpcOpenEventHandle(event: *mut Handle, name: Name) -> c_int;
    cuModuleLoadData(module: *mut Handle, image: *const c_void) -> c_int;
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> c_int;
    cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void) -> c_int;
    cuDeviceGetDevResource(device: c_int, resource: *mut Resource, kind: c_int) -> c_int;
    cuDevSmResourceSplitByCount(result: *mut Resource, groups: *mut c_uint, input: *const Resource,
        remaining: *mut Resource, flags: c_uint, at_least: c_uint) -> c_int;
    cuDevResourceGenerateDesc(description: *mut Handle, resources: *mut Resource, count: c_uint) -> c_int;
    cuGreenCtxCreate(green: *mut Handle, description: Handle, device: c_int, flags: c_uint) -> c_int;
    cuGreenCtxStreamCreate(stream: *mut Handle, green: Handle, flags: c_uint, priority: c_int) -> c_int;
    cuCtxFromGreenCtx(context: *mut Handle, green: Handle) -> c_int;
});

library!(Blas, "libcublasLt.so.13", {
    cublasLtCreate(handle: *mut Handle) -> c_int;
    cublasLtMatmulDescCreate(description: *mut Handle, compute: c_int, scale: c_int) -> c_int;
    cublasLtMatmulDescSetAttribute(description: Handle, attribute: c_int, value: *const c_void, bytes: usize) -> c_int;
    cublasLtMatrixLayoutCreate(layout: *mut Handle, kind: c_int, rows: u64, columns: u64, stride: i64) -> c_int;
    cublasLtMatrixLayoutSetAttribute(layout: Handle, attribute: c_int, value: *const c_void, bytes: usize) -> c_int;
    cublasLtMatmulPreferenceCreate(preference: *mut Handle) -> c_int;
    cublasLtMatmulPreferenceSetAttribute(preference: Handle, attribute: c_int, value: *const c_void, bytes: usize) -> c_int;
    cublasLtMatmulAlgoGetHeuristic(handle: Handle, description: Handle, a: Handle, b: Handle, c: Handle, d: Handle,
        preference: Handle, wanted: c_int, results: *mut [u64; 16], count: *mut c_int) -> c_int;
    cublasLtMatmul(handle: Handle, description: Handle, alpha: *const f32, a: u64, a_layout: Handle, b: u64, b_layout: Handle,
        beta: *const f32, c: u64, c_layout: Handle, d: u64, d_layout: Handle, algorithm: *const [u64; 16],
        workspace: *mut c_void, bytes: usize, stream: Handle) -> c_int;
});

library!(Nvshmem, "libnvshmem_host.so.3", {
    nvshmemx_get_uniqueid(id: *mut UniqueId) -> c_int;
    nvshmemx_set_attr_uniqueid_args(rank: c_int, ranks: c_int, id: *const UniqueId, attributes: *mut [u64; 18]) -> c_int;
    nvshmemx_hostlib_init_attr(flags: c_uint, attributes: *mut [u64; 18]) -> c_int;
    nvshmemx_hostlib_finalize();
    nvshmemx_init_status() -> c_int;
    nvshmem_my_pe() -> c_int;
    nvshmem_n_pes() -> c_int;
    nvshmem_malloc(bytes: usize) -> u64;
    nvshmem_calloc(count: usize, bytes: usize) -> u64;
    nvshmem_free(memory: u64);
    nvshmem_ptr(memory: u64, pe: c_int) -> u64;
    nvshmemx_buffer_register(memory: u64, bytes: usize) -> c_int;
    nvshmemx_putmem_signal_on_stream(to: u64, from: u64, bytes: usize, signal: u64, value: u64, operation: c_int, pe: c_int,
        stream: Handle);
    nvshmemx_putmem_nbi_on_stream(to: u64, from: u64, bytes: usize, pe: c_int, stream: Handle);
    nvshmemx_signal_op_on_stream(signal: u64, value: u64, operation: c_int, pe: c_int, stream: Handle);
    nvshmemx_signal_wait_until_on_stream(signal: u64, comparison: c_int, value: u64, stream: Handle);
    nvshmemx_quiet_on_stream(stream: Handle);
    nvshmemx_barrier_all_on_stream(stream: Handle);
    nvshmem_barrier_all();
});

library!(Nccl, "libnccl.so.2", {
    ncclGetUniqueId(id: *mut UniqueId) -> c_int;
    ncclCommInitRank(communicator: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int) -> c_int;
    ncclGetLastError(communicator: Handle) -> *const c_char;
    ncclGroupStart() -> c_int;
    ncclGroupEnd() -> c_int;
    ncclSend(data: u64, count: usize, kind: c_int, peer: c_int, communicator: Handle, stream: Handle) -> c_int;
    ncclRecv(data: u64, count: usize, kind: c_int, peer: c_int, communicator: Handle, stream: Handle) -> c_int;
    ncclCommAbort(communicator: Handle) -> c_int;
    ncclCommDestroy(communicator: Handle) -> c_int;
});

library!(Compiler, "libnvrtc.so.13", {
    nvrtcCreateProgram(program: *mut Handle, text: *const c_char, name: *const c_char, headers: c_int,
        header_texts: *const *const c_char, names: *const *const c_char) -> c_int;
    nvrtcCompileProgram(program: Handle, count: c_int, options: *const *const c_char) -> c_int;
    nvrtcGetCUBINSize(program: Handle, bytes: *mut usize) -> c_int;
    nvrtcGetCUBIN(program: Handle, image: *mut c_char) -> c_int;
    nvrtcGetProgramLogSize(program: Handle, bytes: *mut usize) -> c_int;
    nvrtcGetProgramLog(program: Handle, text: *mut c_char) -> c_int;
});

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Name([u8; 64]);

/// `nvshmemx_uniqueid_t` and `ncclUniqueId`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// `CUdevResource` of CUDA 13.0: its multiprocessor count stands at byte 96.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource([u32; 36]);

const MULTIPROCESSORS: usize = 24;

impl Driver {
    /// The library with the primary context of a device current.
    fn on(device: c_int) -> Option<(&'static Driver, Handle)> {
        let driver = Driver::get()?;
        ok(driver.cuInit(0));
        let context = made(|context| driver.cuDevicePrimaryCtxRetain(context, device));
        ok(driver.cuCtxSetCurrent(context));
        Some((driver, context))
    }

    fn stream(&self) -> Handle {
        made(|stream| self.cuStreamCreate(stream, 1))
    }

    fn event(&self, flags: c_uint) -> Handle {
        made(|event| self.cuEventCreate(event, flags))
    }

    fn memory(&self, bytes: usize) -> u64 {
        made(|address| self.cuMemAlloc_v2(address, bytes))
    }

    fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let address = self.memory(size_of_val(values));
        ok(self.cuMemcpyHtoD_v2(address, values.as_ptr().cast(), size_of_val(values)));
        address
    }

    fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        ok(self.cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, size_of_val(&values[..])));
        values
    }

    /// Pinned host memory, zeroed.
    fn pinned<T: Copy + Default>(&self, count: usize) -> &'static mut [T] {
        let mut memory = null_mut();
        ok(self.cuMemAllocHost_v2(&mut memory, count * size_of::<T>()));
        // SAFETY: the memory is of this size, is never freed, and nobody else has it.
        let values = unsafe { std::slice::from_raw_parts_mut(memory.cast::<T>(), count) };
        values.fill(T::default());
        values
    }

    /// A host function that sleeps, on a stream.
    fn sleep(&self, stream: Handle, milliseconds: usize) {
        ok(self.cuLaunchHostFunc(stream, sleep, milliseconds as *mut c_void));
    }
}

extern "C" fn sleep(milliseconds: *mut c_void) {
    std::thread::sleep(Duration::from_millis(milliseconds as usize as u64));
}

#[test]
fn devices_are_as_the_variables_say() {
    let Some((driver, _)) = Driver::on(0) else { return };
    assert_eq!(made(|version| driver.cuDriverGetVersion(version)), 13000);
    assert_eq!(made(|count| driver.cuDeviceGetCount(count)), 2);
    for (attribute, expected) in [(16, 16), (75, 9), (76, 0), (10, 32)] {
        assert_eq!(made(|value| driver.cuDeviceGetAttribute(value, attribute, 1)), expected);
    }
    let (mut free, mut total) = (0, 0);
    ok(driver.cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(total, 8 << 30);
    let mut address = 0;
    assert_eq!(driver.cuMemAlloc_v2(&mut address, total + 1), 2, "more than the device has is out of memory");
    assert_eq!(driver.cuMemAlloc_v2(&mut address, 0), INVALID_VALUE);
}

#[test]
fn operations_of_a_stream_run_in_order() {
    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    extern "C" fn note(number: *mut c_void) {
        SEEN.lock().unwrap().push(number as usize);
    }
    let Some((driver, _)) = Driver::on(0) else { return };
    let stream = driver.stream();
    for number in 0..200 {
        ok(driver.cuLaunchHostFunc(stream, note, number as *mut c_void));
    }
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!(*SEEN.lock().unwrap(), (0..200).collect::<Vec<_>>());
}

#[test]
fn copies_are_asynchronous_and_fresh_memory_is_not_a_number() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let stream = driver.stream();
    let (from, to) = (driver.pinned::<f32>(100), driver.pinned::<f32>(100));
    let memory = driver.memory(400);
    assert!(driver.download::<f32>(memory, 100).iter().all(|value| value.is_nan()));
    from.fill(2.5);
    let start = Instant::now();
    driver.sleep(stream, 1500);
    ok(driver.cuMemcpyHtoDAsync_v2(memory, from.as_ptr().cast(), 400, stream));
    ok(driver.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), memory, 400, stream));
    assert!(start.elapsed() < Duration::from_millis(1300), "the calls must not wait for the stream");
    assert_eq!(driver.cuStreamQuery(stream), NOT_READY);
    from.fill(7.0); // pinned memory is read when the copy runs, not when it is issued
    ok(driver.cuStreamSynchronize(stream));
    ok(driver.cuStreamQuery(stream));
    assert!(to.iter().all(|&value| value == 7.0));
    let pageable = [3.0f32; 100]; // but memory that is not pinned is staged by the call
    driver.sleep(stream, 20);
    let mut moved = pageable;
    ok(driver.cuMemcpyHtoDAsync_v2(memory, moved.as_ptr().cast(), 400, stream));
    moved.fill(0.0);
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!(driver.download::<f32>(memory, 100), pageable);
    ok(driver.cuStreamDestroy_v2(stream));
    assert_eq!(driver.cuStreamSynchronize(stream), INVALID_HANDLE);
}

#[test]
fn the_default_stream_is_ordered_with_blocking_streams_only() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let (blocking, free) = (made(|stream| driver.cuStreamCreate(stream, 0)), driver.stream());
    let (a, b) = (driver.memory(4), driver.memory(4));
    driver.sleep(blocking, 50);
    ok(driver.cuMemsetD32Async(a, 5, 1, blocking));
    driver.sleep(free, 500);
    ok(driver.cuMemsetD32Async(b, 6, 1, free));
    assert_eq!(driver.download::<u32>(b, 1), [u32::MAX], "a non-blocking stream is not waited for");
    assert_eq!(driver.download::<u32>(a, 1), [5], "a blocking stream is");
    ok(driver.cuCtxSynchronize());
    assert_eq!(driver.download::<u32>(b, 1), [6]);
    driver.sleep(0, 50);
    ok(driver.cuMemsetD32Async(a, 7, 1, 0));
    ok(driver.cuMemcpyDtoDAsync_v2(b, a, 4, blocking)); // waits for the default stream, in turn
    ok(driver.cuStreamSynchronize(blocking));
    assert_eq!(driver.download::<u32>(b, 1), [7]);
}

#[test]
fn events_order_streams_of_two_devices() {
    let Some((driver, first)) = Driver::on(0) else { return };
    let (stream, event, never) = (driver.stream(), driver.event(0), driver.event(2));
    let source = driver.memory(64);
    let (_, second) = Driver::on(1).unwrap();
    let (other, destination) = (driver.stream(), driver.memory(64));
    assert_eq!(driver.cuEventRecord(event, other), INVALID_HANDLE, "an event is recorded in its own context");
    ok(driver.cuCtxSetCurrent(first));
    driver.sleep(stream, 50);
    ok(driver.cuMemsetD8Async(source, 9, 64, stream));
    ok(driver.cuEventRecord(event, stream));
    assert_eq!(driver.cuEventQuery(event), NOT_READY);
    ok(driver.cuStreamWaitEvent(other, event, 0));
    ok(driver.cuMemcpyPeerAsync(destination, second, source, first, 64, other));
    ok(driver.cuEventQuery(never));
    ok(driver.cuStreamWaitEvent(other, never, 0));
    ok(driver.cuStreamSynchronize(other));
    ok(driver.cuEventQuery(event));
    assert_eq!(driver.download::<u8>(destination, 64), [9; 64]);
}

#[test]
fn a_wait_keeps_the_recording_it_was_issued_for() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let (fast, slow, waiting, event) = (driver.stream(), driver.stream(), driver.stream(), driver.event(0));
    ok(driver.cuEventRecord(event, fast));
    ok(driver.cuStreamWaitEvent(waiting, event, 0));
    driver.sleep(slow, 3000);
    ok(driver.cuEventRecord(event, slow));
    let start = Instant::now();
    ok(driver.cuStreamSynchronize(waiting));
    assert!(start.elapsed() < Duration::from_millis(2500));
    ok(driver.cuEventSynchronize(event));
    assert!(start.elapsed() > Duration::from_millis(2500));
}

#[test]
fn elapsed_time_of_a_known_sleep() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let (stream, start, end, untimed) = (driver.stream(), driver.event(0), driver.event(0), driver.event(2));
    let mut milliseconds = 0.0;
    assert_eq!(driver.cuEventElapsedTime_v2(&mut milliseconds, start, end), INVALID_HANDLE, "never recorded");
    ok(driver.cuEventRecord(start, stream));
    driver.sleep(stream, 60);
    ok(driver.cuEventRecord(end, stream));
    ok(driver.cuEventRecord(untimed, stream));
    assert_eq!(driver.cuEventElapsedTime_v2(&mut milliseconds, start, end), NOT_READY);
    ok(driver.cuEventSynchronize(end));
    ok(driver.cuEventElapsedTime_v2(&mut milliseconds, start, end));
    assert!((60.0..2000.0).contains(&milliseconds), "{milliseconds} ms");
    assert_eq!(driver.cuEventElapsedTime_v2(&mut milliseconds, start, untimed), INVALID_HANDLE);
    ok(driver.cuEventDestroy_v2(end));
    assert_eq!(driver.cuEventQuery(end), INVALID_HANDLE);
}

#[test]
fn values_in_memory_order_streams_of_two_devices() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let (ping, first) = (driver.upload(&[0u64]), driver.stream());
    Driver::on(1).unwrap();
    let (pong, second) = (driver.upload(&[0u64]), driver.stream());
    for round in 1..=50 {
        ok(driver.cuStreamWaitValue64_v2(first, pong, round, 1 << 30));
        ok(driver.cuStreamWriteValue64_v2(first, ping, round, 0));
        ok(driver.cuStreamWriteValue64_v2(second, pong, round, 0));
        ok(driver.cuStreamWaitValue64_v2(second, ping, round, 0));
    }
    ok(driver.cuStreamSynchronize(second));
    ok(driver.cuStreamSynchronize(first));
    assert_eq!((driver.download::<u64>(ping, 1)[0], driver.download::<u64>(pong, 1)[0]), (50, 50));
    // GEQ is a comparison of the difference as a signed number, so that counters may wrap; EQ, AND and NOR are plain.
    let word = driver.upload(&[0u32]);
    for (stands, value, flags) in [(2, u32::MAX, 0), (7, 7, 1), (6, 2, 2), (!4, 0, 3)] {
        ok(driver.cuStreamWriteValue32_v2(second, word, stands, 0));
        ok(driver.cuStreamWaitValue32_v2(second, word, value, flags));
    }
    ok(driver.cuStreamSynchronize(second));
    assert_eq!(driver.cuStreamWaitValue32_v2(second, word + 2, 0, 0), INVALID_VALUE, "not aligned");
}

#[test]
fn memory_freed_on_a_stream_lives_until_the_stream_is_there() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let (stream, mut address) = (driver.stream(), 0);
    let copy = driver.memory(256);
    ok(driver.cuMemAllocAsync(&mut address, 256, stream));
    ok(driver.cuMemsetD8Async(address, 3, 256, stream));
    driver.sleep(stream, 20);
    ok(driver.cuMemcpyDtoDAsync_v2(copy, address, 256, stream));
    ok(driver.cuMemFreeAsync(address, stream));
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!(driver.download::<u8>(copy, 256), [3; 256]);
    ok(driver.cuMemFree_v2(copy));
}

#[test]
fn a_device_splits_into_groups_of_eight_multiprocessors() {
    let Some((driver, primary)) = Driver::on(0) else { return };
    let empty = Resource([0; 36]);
    let (mut whole, mut rest, mut groups) = (empty, empty, [empty; 4]);
    ok(driver.cuDeviceGetDevResource(0, &mut whole, 1));
    assert_eq!(whole.0[MULTIPROCESSORS], 16);
    for (at_least, possible, size) in [(1, 2, 8), (5, 2, 8), (8, 2, 8), (9, 1, 16), (16, 1, 16), (17, 0, 0)] {
        let mut count = 0;
        ok(driver.cuDevSmResourceSplitByCount(null_mut(), &mut count, &whole, null_mut(), 0, at_least));
        assert_eq!(count, possible, "groups of at least {at_least}");
        count = 1;
        let result = driver.cuDevSmResourceSplitByCount(&mut groups[0], &mut count, &whole, &mut rest, 0, at_least);
        assert_eq!(result, if possible == 0 { 915 } else { SUCCESS });
        if possible > 0 {
            assert_eq!((groups[0].0[MULTIPROCESSORS], rest.0[MULTIPROCESSORS]), (size, 16 - size));
        }
    }
    let (mut count, mut description, mut green, mut context, mut stream) = (2, 0, 0, 0, 0);
    ok(driver.cuDevSmResourceSplitByCount(groups.as_mut_ptr(), &mut count, &whole, &mut rest, 0, 8));
    ok(driver.cuDevResourceGenerateDesc(&mut description, &mut groups[1], 1));
    let refused = driver.cuGreenCtxCreate(&mut green, description, 0, 0);
    assert_eq!(refused, INVALID_VALUE, "the flag for a default stream is needed");
    ok(driver.cuGreenCtxCreate(&mut green, description, 0, 1));
    assert_eq!(driver.cuGreenCtxStreamCreate(&mut stream, green, 0, 0), INVALID_VALUE, "only non-blocking streams");
    ok(driver.cuGreenCtxStreamCreate(&mut stream, green, 1, 0));
    ok(driver.cuCtxFromGreenCtx(&mut context, green));
    assert_ne!(context, primary);
    let (memory, event) = (driver.memory(16), driver.event(0)); // of the primary context: the same device, the same memory
    ok(driver.cuMemsetD32Async(memory, 11, 4, stream));
    ok(driver.cuEventRecord(event, stream));
    ok(driver.cuCtxSetCurrent(context));
    ok(driver.cuEventSynchronize(event));
    assert_eq!(driver.download::<u32>(memory, 4), [11; 4]);
    let mut invented = empty;
    invented.0[0] = 1;
    invented.0[MULTIPROCESSORS] = 8;
    assert_eq!(driver.cuDevResourceGenerateDesc(&mut description, &mut invented, 1), 914, "made up, not split off");
}

// ---- matrix products ---------------------------------------------------------------------------------------------------------

const F32: c_int = 0;
const BF16: c_int = 14;

/// bfloat16 by rounding to the nearest, ties to even, written independently of the stand-in: through the two neighbours.
fn to_bf16(value: f32) -> u16 {
    let below = (value.to_bits() >> 16) as u16;
    let (low, high) = (from_bf16(below), from_bf16(below + 1));
    let (down, up) = ((value - low).abs(), (high - value).abs());
    if down < up || (down == up && below.is_multiple_of(2)) { below } else { below + 1 }
}

fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// The slope of gelu by a central difference.
fn gelu_slope(x: f64) -> f64 {
    (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5
}

/// Numbers as a device holds them, column-major with a stride; `values` are exactly those that the type can hold.
struct Matrix {
    kind: c_int,
    stride: usize,
    values: Vec<f32>,
    address: u64,
}

impl Matrix {
    fn new(driver: &Driver, kind: c_int, stride: usize, columns: usize, seed: &mut u64) -> Matrix {
        let mut next = || {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 1.5
        };
        let values: Vec<f32> = (0..stride * columns)
            .map(|_| next())
            .map(|v| if kind == BF16 { from_bf16(to_bf16(v)) } else { v })
            .collect();
        let address = match kind {
            BF16 => driver.upload(&values.iter().map(|&v| to_bf16(v)).collect::<Vec<_>>()),
            _ => driver.upload(&values),
        };
        Matrix { kind, stride, values, address }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        f64::from(self.values[row + column * self.stride])
    }

    fn read(&self, driver: &Driver) -> Vec<f32> {
        match self.kind {
            BF16 => driver.download::<u16>(self.address, self.values.len()).into_iter().map(from_bf16).collect(),
            _ => driver.download(self.address, self.values.len()),
        }
    }

    fn layout(&self, blas: &Blas, rows: usize, columns: usize) -> Handle {
        let (rows, columns, stride) = (rows as u64, columns as u64, self.stride as i64);
        made(|layout| blas.cublasLtMatrixLayoutCreate(layout, self.kind, rows, columns, stride))
    }

    /// Asserts what the device holds, with the tolerance of the type.
    fn assert_holds(
        &self,
        driver: &Driver,
        [rows, columns]: [usize; 2],
        expected: impl Fn(usize, usize) -> f64,
        what: &str,
    ) {
        let found = self.read(driver);
        for (row, column) in (0..columns).flat_map(|column| (0..rows).map(move |row| (row, column))) {
            let (found, expected) = (f64::from(found[row + column * self.stride]), expected(row, column));
            let tolerance = if self.kind == BF16 { 0.005 } else { 3e-5 } * expected.abs().max(1.0);
            assert!((found - expected).abs() <= tolerance, "{what}: ({row}, {column}) is {found}, expected {expected}");
        }
        for (index, (&now, &before)) in found.iter().zip(&self.values).enumerate() {
            assert!(index % self.stride < rows || now == before, "{what}: wrote between the columns");
        }
    }
}

impl Blas {
    /// Status, how many algorithms there are for these layouts of A, B, C, D, and the first.
    fn heuristic(&self, handle: Handle, description: Handle, [a, b, c, d]: [Handle; 4]) -> (c_int, c_int, [u64; 16]) {
        let (mut count, mut found) = (0, [0; 16]);
        let preference = made(|preference| self.cublasLtMatmulPreferenceCreate(preference));
        let reductions = 2_u32; // partial sums in the type of the computation
        ok(self.cublasLtMatmulPreferenceSetAttribute(preference, 3, (&raw const reductions).cast(), 4));
        let into = &mut found;
        let status =
            self.cublasLtMatmulAlgoGetHeuristic(handle, description, a, b, c, d, preference, 1, into, &mut count);
        (status, count, found)
    }

    /// D = alpha A B + beta C, each at its address with its layout, without workspace.
    fn product(
        &self,
        [handle, description, stream]: [Handle; 3],
        [alpha, beta]: [f32; 2],
        [a, b, c, d]: [u64; 4],
        [la, lb, lc, ld]: [Handle; 4],
        algorithm: *const [u64; 16],
    ) {
        let (alpha, beta, none) = (&raw const alpha, &raw const beta, null_mut());
        ok(self.cublasLtMatmul(
            handle,
            description,
            alpha,
            a,
            la,
            b,
            lb,
            beta,
            c,
            lc,
            d,
            ld,
            algorithm,
            none,
            0,
            stream,
        ));
    }
}

fn set<T>(blas: &Blas, description: Handle, attribute: c_int, value: T) {
    ok(blas.cublasLtMatmulDescSetAttribute(description, attribute, (&raw const value).cast(), size_of::<T>()));
}

/// What a product is asked for: types of the inputs and the output, which operands are transposed, the epilogue's number, beta.
#[derive(Clone, Copy, Debug)]
struct Case {
    inputs: c_int,
    output: c_int,
    transposed: [bool; 2],
    epilogue: u32,
    beta: f32,
}

/// The matrices of a product of (m, k) and (k, n), each with rows to spare.
struct Product {
    case: Case,
    size: [usize; 3],
    a: Matrix,
    b: Matrix,
    c: Matrix,
    d: Matrix,
    bias: Matrix,
    aux: Matrix,
}

const ALPHA: f32 = 0.125;

impl Product {
    fn new(driver: &Driver, case: Case, seed: &mut u64) -> Product {
        let [m, n, k] = [37 + (*seed % 29) as usize, 11, 300];
        let Case { inputs, output, transposed: [a, b], .. } = case;
        let mut matrix = |kind, rows, columns| Matrix::new(driver, kind, rows, columns, seed);
        Product {
            case,
            size: [m, n, k],
            a: if a { matrix(inputs, k + 3, m) } else { matrix(inputs, m + 3, k) },
            b: if b { matrix(inputs, n + 1, k) } else { matrix(inputs, k + 1, n) },
            c: matrix(output, m + 2, n),
            d: matrix(output, m + 5, n),
            bias: matrix(output, m.max(n), 1),
            aux: matrix(output, m.next_multiple_of(8), n),
        }
    }

    /// The layouts of A, B, C, D.
    fn layouts(&self, blas: &Blas) -> [Handle; 4] {
        let ([m, n, k], [a, b]) = (self.size, self.case.transposed);
        let (a, b) = (if a { [k, m] } else { [m, k] }, if b { [n, k] } else { [k, n] });
        [(&self.a, a), (&self.b, b), (&self.c, [m, n]), (&self.d, [m, n])]
            .map(|(matrix, [r, c])| matrix.layout(blas, r, c))
    }

    fn description(&self, blas: &Blas) -> Handle {
        let description = made(|description| blas.cublasLtMatmulDescCreate(description, 68, F32));
        set(blas, description, 3, i32::from(self.case.transposed[0]));
        set(blas, description, 4, i32::from(self.case.transposed[1]));
        set(blas, description, 7, self.case.epilogue);
        set(blas, description, 8, self.bias.address);
        set(blas, description, 11, self.aux.address);
        set(blas, description, 12, self.aux.stride as i64);
        set(blas, description, 15, 8i32); // multiprocessors
        description
    }

    fn run(&self, blas: &Blas, driver: &Driver) {
        let (handle, layouts, description) =
            (made(|handle| blas.cublasLtCreate(handle)), self.layouts(blas), self.description(blas));
        let (status, count, algorithm) = blas.heuristic(handle, description, layouts);
        assert_eq!((status, count, algorithm[8]), (SUCCESS, 1, 0), "{:?}: an algorithm without workspace", self.case);
        let addresses = [&self.a, &self.b, &self.c, &self.d].map(|matrix| matrix.address);
        let stream = driver.stream();
        blas.product([handle, description, stream], [ALPHA, self.case.beta], addresses, layouts, &algorithm);
        ok(driver.cuStreamSynchronize(stream));
    }

    /// The results by a plain loop in double precision.
    fn check(&self, driver: &Driver) {
        let (what, [m, n, k], epilogue) = (format!("{:?}", self.case), self.size, self.case.epilogue);
        let a = |i, l| if self.case.transposed[0] { self.a.at(l, i) } else { self.a.at(i, l) };
        let b = |l, j| if self.case.transposed[1] { self.b.at(j, l) } else { self.b.at(l, j) };
        let sum = |i, j| (0..k).map(|l| a(i, l) * b(l, j)).sum::<f64>();
        let plain = |i, j| f64::from(ALPHA) * sum(i, j) + f64::from(self.case.beta) * self.c.at(i, j);
        let before = |i, j| plain(i, j) + if epilogue & 4 != 0 { self.bias.at(i, 0) } else { 0.0 };
        let slope = |i, j| plain(i, j) * gelu_slope(self.aux.at(i, j));
        match epilogue {
            1 | 4 | 256 | 512 => self.d.assert_holds(driver, [m, n], before, &what),
            32 | 36 | 160 | 164 => self.d.assert_holds(driver, [m, n], |i, j| gelu(before(i, j)), &what),
            _ => self.d.assert_holds(driver, [m, n], slope, &what),
        }
        match epilogue {
            160 | 164 => self.aux.assert_holds(driver, [m, n], before, &format!("{what}: what gelu was applied to")),
            208 => self.bias.assert_holds(driver, [m, 1], |i, _| (0..n).map(|j| slope(i, j)).sum(), &what),
            256 => self.bias.assert_holds(driver, [m, 1], |i, _| (0..k).map(|l| a(i, l)).sum(), &what),
            512 => self.bias.assert_holds(driver, [n, 1], |j, _| (0..k).map(|l| b(l, j)).sum(), &what),
            _ => {}
        }
    }
}

#[test]
fn products_equal_a_plain_loop() {
    let (Some(blas), Some((driver, _))) = (Blas::get(), Driver::on(0)) else { return };
    let mut seed = 1;
    for (inputs, output) in [(F32, F32), (BF16, BF16), (BF16, F32)] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            for epilogue in [1, 4, 32, 36, 160, 164, 192, 208, 256, 512] {
                for beta in [0.0, 0.5] {
                    let case = Case { inputs, output, transposed, epilogue, beta };
                    let product = Product::new(driver, case, &mut seed);
                    product.run(blas, driver);
                    product.check(driver);
                }
            }
        }
    }
}

#[test]
fn products_of_a_batch_and_what_is_refused() {
    let (Some(blas), Some((driver, _))) = (Blas::get(), Driver::on(0)) else { return };
    let handle = made(|handle| blas.cublasLtCreate(handle));
    let layout = |kind, rows, columns| {
        let layout = made(|layout| blas.cublasLtMatrixLayoutCreate(layout, kind, rows, columns, rows as i64));
        for (attribute, bytes, value) in [(5, 4, 2i64), (6, 8, (rows * columns) as i64)] {
            ok(blas.cublasLtMatrixLayoutSetAttribute(layout, attribute, (&raw const value).cast(), bytes));
        }
        layout
    };
    let describe = |compute| made(|description| blas.cublasLtMatmulDescCreate(description, compute, F32));
    // Two matrices each, 2 x 2: [1 3; 2 4] [5 7; 6 8] and the identity times [1 0; 1 0].
    let a = driver.upload(&[1.0f32, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0, 1.0]);
    let b = driver.upload(&[5.0f32, 6.0, 7.0, 8.0, 1.0, 1.0, 0.0, 0.0]);
    let (square, d, plain) = (layout(F32, 2, 2), driver.memory(32), describe(68));
    blas.product([handle, plain, 0], [1.0, 0.0], [a, b, 0, d], [square; 4], null());
    assert_eq!(driver.download::<f32>(d, 8), [23.0, 34.0, 31.0, 46.0, 1.0, 1.0, 0.0, 0.0]);

    let (brain, wide) = (layout(BF16, 2, 2), layout(F32, 2, 3));
    let relu = describe(68);
    set(blas, relu, 7, 2u32);
    for (description, layouts, expected, why) in [
        (plain, [square, brain, square, square], 15, "operands of two types"),
        (plain, [square, square, brain, brain], 15, "float32 into bfloat16"),
        (describe(64), [square; 4], 15, "computed in float16"),
        (relu, [square; 4], 15, "an epilogue that is not emulated"),
        (plain, [square, wide, square, square], 7, "shapes that do not fit"),
    ] {
        let (status, count, _) = blas.heuristic(handle, description, layouts);
        assert_eq!((status, count), (expected, 0), "{why}");
    }
}

// ---- kernels -----------------------------------------------------------------------------------------------------------------

/// Compiles; on an error gives its code and the log.
pub fn compile(
    compiler: &Compiler,
    text: &str,
    headers: &[(&CStr, &CStr)],
    options: &[&CStr],
) -> Result<Vec<u8>, (c_int, String)> {
    let (mut program, mut bytes, text) = (0, 0, CString::new(text).unwrap());
    let (texts, names): (Vec<_>, Vec<_>) = headers.iter().map(|(name, text)| (text.as_ptr(), name.as_ptr())).unzip();
    let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let created = compiler.nvrtcCreateProgram(
        &mut program,
        text.as_ptr(),
        c"trial.cu".as_ptr(),
        headers.len() as c_int,
        texts.as_ptr(),
        names.as_ptr(),
    );
    ok(created);
    let status = compiler.nvrtcCompileProgram(program, options.len() as c_int, options.as_ptr());
    if status != SUCCESS {
        ok(compiler.nvrtcGetProgramLogSize(program, &mut bytes));
        let mut log = vec![0u8; bytes];
        ok(compiler.nvrtcGetProgramLog(program, log.as_mut_ptr().cast()));
        return Err((status, CStr::from_bytes_with_nul(&log).unwrap().to_str().unwrap().to_owned()));
    }
    ok(compiler.nvrtcGetCUBINSize(program, &mut bytes));
    let mut image = vec![0u8; bytes];
    ok(compiler.nvrtcGetCUBIN(program, image.as_mut_ptr().cast()));
    Ok(image)
}

#[test]
fn the_compiler_finds_missing_headers_and_open_brackets() {
    let Some(compiler) = Compiler::get() else { return };
    let target = c"--gpu-architecture=sm_90";
    let text = "#include \"common.cuh\"\n// a comment (\nKERNEL(add)(float* out) { out[0] = '(' + 1'000; }\n";
    assert!(compile(compiler, text, &[(c"common.cuh", c"// nothing")], &[target]).is_ok());
    let (status, log) = compile(compiler, text, &[], &[target]).unwrap_err();
    assert!(status == 6 && log.contains("trial.cu(1)") && log.contains("common.cuh"), "{log}");
    let (status, log) = compile(compiler, "void f() {\n  g(;\n}\n", &[], &[target]).unwrap_err();
    assert!(status == 6 && log.contains("trial.cu(3)"), "{log}");
    assert_eq!(compile(compiler, "", &[], &[c"--gpu-architecture=h100"]).unwrap_err().0, 5);
}

#[test]
fn a_kernel_runs_by_name_with_arguments_copied_at_the_call() {
    let (Some(compiler), Some((driver, _))) = (Compiler::get(), Driver::on(0)) else { return };
    let (mut module, mut function, stream) = (0, 0, driver.stream());
    let image = |text: &str, target| compile(compiler, text, &[], &[target]).unwrap();
    let text = "KERNEL(residual_forward, 256, 4)(act* out) {}";
    assert_eq!(driver.cuModuleLoadData(&mut module, c"no image".as_ptr().cast()), 200);
    let older = image(text, c"-arch=sm_80");
    assert_eq!(driver.cuModuleLoadData(&mut module, older.as_ptr().cast()), 209, "for another device");
    ok(driver.cuModuleLoadData(&mut module, image(text, c"-arch=sm_90").as_ptr().cast()));
    for absent in [c"residual_forward_bf16", c"gelu_forward_f32", c"residual_forward"] {
        assert_eq!(driver.cuModuleGetFunction(&mut function, module, absent.as_ptr()), NOT_FOUND, "{absent:?}");
    }
    ok(driver.cuModuleGetFunction(&mut function, module, c"residual_forward_f32".as_ptr()));

    const COUNT: usize = 5000;
    let (a, b): (Vec<f32>, Vec<f32>) = (0..COUNT).map(|i| (i as f32, 0.5)).unzip();
    let (mut out, mut a, mut b, mut count) = (driver.memory(4 * COUNT), driver.upload(&a), driver.upload(&b), COUNT);
    let result = out;
    let launch = |block, shared, arguments: *mut *mut c_void| {
        driver.cuLaunchKernel(function, 3, 1, 1, block, 1, 1, shared, stream, arguments, null_mut())
    };
    let mut arguments: [*mut c_void; 4] =
        [(&raw mut out).cast(), (&raw mut a).cast(), (&raw mut b).cast(), (&raw mut count).cast()];
    driver.sleep(stream, 50);
    ok(launch(256, 0, arguments.as_mut_ptr()));
    (out, a, b, count) = (0, 0, 0, 0); // the launch has its own copies
    assert_eq!((out, a, b, count), (0, 0, 0, 0));
    assert_eq!(launch(2048, 0, arguments.as_mut_ptr()), INVALID_VALUE, "too many threads");
    assert_eq!(launch(256, 60_000, arguments.as_mut_ptr()), INVALID_VALUE, "more shared memory than was asked for");
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!(driver.download::<f32>(result, COUNT), (0..COUNT).map(|i| i as f32 + 0.5).collect::<Vec<_>>());
}

// ---- other processes ---------------------------------------------------------------------------------------------------------

const ROLE: &str = "EMULATOR_TEST_ROLE";

/// This very program as another process that plays `role` (see [`another_process`]); what it prints is read by the caller.
fn start(role: &str, argument: &str, variables: &[(&str, &str)]) -> Child {
    again("emulator_driver::another_process")
        .env(ROLE, role)
        .env("EMULATOR_TEST_ARGUMENT", argument)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program starts")
}

/// Ends the other process's role and gives whether it succeeded, and all that it printed.
fn finish(child: Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

fn to_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_text<const N: usize>(text: &str) -> [u8; N] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

#[test]
fn another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let argument = std::env::var("EMULATOR_TEST_ARGUMENT").unwrap();
    let (driver, _) = Driver::on(0).unwrap();
    match role.as_str() {
        "opens memory" => opens_memory(driver, &argument),
        "waits for ever" => waits_for_ever(driver),
        "puts" => puts(driver, &argument),
        "puts to a PE on the same device" => puts_on_one_device(driver, &argument),
        "sends" => sends(driver, &argument),
        "joins on the same device" => joins_on_one_device(&argument),
        "puts what no network reaches" => puts_other_memory(driver, &argument, true),
        "waits without a flush" => puts_other_memory(driver, &argument, false),
        "captures" => captures(driver),
        "calls while it exits" => calls_while_it_exits(driver),
        _ => misuses(driver, &role),
    }
}

/// In a process of its own: a capture forbids calls of other threads.
#[test]
fn captured_work_runs_when_its_graph_is_launched_and_captures_forbid_what_they_cannot_have() {
    if folder().is_none() {
        return;
    }
    let (succeeded, text) = finish(start("captures", "", &[]));
    assert!(succeeded, "{text}");
}

fn captures(driver: &Driver) {
    const GLOBAL: c_int = 0;
    const THREAD_LOCAL: c_int = 1;
    const RELAXED: c_int = 2;
    const ILLEGAL_STATE: c_int = 401;
    const UNSUPPORTED: c_int = 900;
    const INVALIDATED: c_int = 901;
    let (stream, from, to) = (driver.stream(), driver.upload(&[1_u32; 4]), driver.upload(&[0_u32; 4]));
    let begin = |mode| driver.cuStreamBeginCapture_v2(stream, mode);
    let mut graph = 0;
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), ILLEGAL_STATE, "nothing is captured");
    assert_eq!(driver.cuStreamBeginCapture_v2(0, RELAXED), UNSUPPORTED, "the default stream");
    ok(begin(RELAXED));
    assert_eq!(begin(RELAXED), ILLEGAL_STATE);
    ok(driver.cuMemsetD32Async(from, 7, 4, stream));
    ok(driver.cuMemcpyDtoDAsync_v2(to, from, 16, stream));
    assert_eq!(made(|status| driver.cuStreamIsCapturing(stream, status)), 1);
    driver.memory(4); // relaxed captures allow it
    let graph = made(|graph| driver.cuStreamEndCapture(stream, graph));
    let executable = made(|executable| driver.cuGraphInstantiateWithFlags(executable, graph, 0));
    ok(driver.cuGraphDestroy(graph));
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!([from, to].map(|memory| driver.download::<u32>(memory, 4)), [[1; 4], [0; 4]], "nothing ran");
    for _ in 0..2 {
        ok(driver.cuMemsetD32Async(from, 1, 4, stream));
        ok(driver.cuMemsetD32Async(to, 0, 4, stream));
        ok(driver.cuGraphLaunch(executable, stream));
        ok(driver.cuStreamSynchronize(stream));
        assert_eq!([from, to].map(|memory| driver.download::<u32>(memory, 4)), [[7; 4], [7; 4]]);
    }
    ok(driver.cuGraphExecDestroy(executable));
    assert_eq!(driver.cuGraphLaunch(executable, stream), INVALID_VALUE);

    let (event, pageable, mut place) = (driver.event(0), [0_u32; 4], 0);
    let other = driver.stream();
    ok(driver.cuEventRecord(event, other));
    let refused = |mode, call: &mut dyn FnMut() -> c_int, code| {
        ok(begin(mode));
        assert_eq!(call(), code);
        assert_eq!(driver.cuMemsetD32Async(to, 0, 4, stream), INVALIDATED);
        let mut graph = 1;
        assert_eq!((driver.cuStreamEndCapture(stream, &mut graph), graph), (INVALIDATED, 0));
        ok(driver.cuMemsetD32Async(to, 0, 4, stream));
    };
    for mode in [GLOBAL, THREAD_LOCAL] {
        refused(mode, &mut || driver.cuMemAlloc_v2(&mut place, 4), UNSUPPORTED);
        refused(mode, &mut || driver.cuMemFree_v2(from), UNSUPPORTED);
        refused(mode, &mut || driver.cuEventQuery(event), UNSUPPORTED);
        refused(mode, &mut || driver.cuStreamQuery(other), UNSUPPORTED);
    }
    for mode in [GLOBAL, RELAXED] {
        refused(mode, &mut || driver.cuStreamSynchronize(stream), UNSUPPORTED);
        refused(mode, &mut || driver.cuStreamQuery(stream), UNSUPPORTED);
        refused(mode, &mut || driver.cuCtxSynchronize(), UNSUPPORTED);
        refused(mode, &mut || driver.cuMemcpyHtoDAsync_v2(from, pageable.as_ptr().cast(), 16, stream), UNSUPPORTED);
        refused(mode, &mut || driver.cuStreamWaitEvent(stream, event, 0), 905);
    }
    // calls of other threads, and the end of a capture there
    let elsewhere = |call: &(dyn Fn() -> c_int + Sync)| {
        std::thread::scope(|scope| {
            let on = || {
                let (driver, _) = Driver::on(0).unwrap();
                let _ = driver;
                call()
            };
            scope.spawn(on).join().unwrap()
        })
    };
    let allocates = || driver.cuMemAlloc_v2(&mut 0, 4);
    refused(GLOBAL, &mut || elsewhere(&allocates), UNSUPPORTED);
    ok(begin(THREAD_LOCAL));
    ok(elsewhere(&allocates));
    assert_eq!(elsewhere(&|| driver.cuStreamEndCapture(stream, &mut 0)), 908, "begun in another thread");
    ok(driver.cuStreamEndCapture(stream, &mut 0));
    // the default stream would wait for a stream that runs nothing
    let blocking = made(|stream| driver.cuStreamCreate(stream, 0));
    ok(driver.cuStreamBeginCapture_v2(blocking, RELAXED));
    assert_eq!(driver.cuMemsetD32Async(to, 0, 4, 0), 906);
    assert_eq!(driver.cuStreamEndCapture(blocking, &mut 0), INVALIDATED);
}

#[test]
fn memory_and_events_are_shared_between_processes() {
    let Some((driver, _)) = Driver::on(1) else { return };
    let (mut name, mut event_name) = (Name([0; 64]), Name([0; 64]));
    driver.memory(100); // so that the shared one does not stand at the beginning
    let (memory, stream, event) = (driver.upload(&[0u64; 900]), driver.stream(), driver.event(6));
    let mut unshared = 0;
    assert_eq!(driver.cuEventCreate(&mut unshared, 4), INVALID_VALUE, "a shared event has no times");
    assert_eq!(driver.cuIpcGetMemHandle(&mut name, memory + 8), SUCCESS, "any place names the whole allocation");
    ok(driver.cuIpcGetEventHandle(&mut event_name, event));
    let mut address = 0;
    assert_eq!(driver.cuIpcOpenMemHandle_v2(&mut address, name, 1), 201, "only another process may open it");
    // We: wait for 1 in the last word, then fill the first half and record; the other waits for our event and adds.
    ok(driver.cuStreamWaitValue64_v2(stream, memory + 7192, 1, 0));
    driver.sleep(stream, 50);
    ok(driver.cuMemsetD8Async(memory, 1, 3600, stream));
    ok(driver.cuEventRecord(event, stream));
    let child = start("opens memory", &(to_text(&name.0) + &to_text(&event_name.0)), &[]);
    ok(driver.cuStreamWaitValue64_v2(stream, memory + 7192, 2, 0));
    let (succeeded, text) = finish(child);
    assert!(succeeded, "{text}");
    ok(driver.cuStreamSynchronize(stream));
    let words = driver.download::<u64>(memory, 900);
    assert_eq!([0, 449, 450].map(|at| words[at]), [0x0101_0101_0101_0101; 3]);
    assert_eq!(words[899], 2);
}

fn opens_memory(driver: &Driver, argument: &str) {
    let (name, event_name) = (Name(from_text(&argument[..128])), Name(from_text(&argument[128..])));
    let (mut memory, mut event, stream) = (0, 0, driver.stream());
    ok(driver.cuIpcOpenMemHandle_v2(&mut memory, name, 1));
    ok(driver.cuIpcOpenEventHandle(&mut event, event_name));
    ok(driver.cuStreamWriteValue64_v2(stream, memory + 7192, 1, 0));
    ok(driver.cuStreamWaitEvent(stream, event, 0));
    ok(driver.cuMemcpyDtoDAsync_v2(memory + 3600, memory, 8, stream));
    ok(driver.cuStreamWriteValue64_v2(stream, memory + 7192, 2, 0));
    ok(driver.cuStreamSynchronize(stream));
    ok(driver.cuIpcCloseMemHandle(memory));
}

/// Two streams that wait for each other, and one more.
fn waits_for_ever(driver: &Driver) {
    let (first, second, event) = (driver.stream(), driver.stream(), driver.event(0));
    let flag = driver.upload(&[0u32]);
    ok(driver.cuStreamWaitValue32_v2(first, flag, 1, 0));
    ok(driver.cuEventRecord(event, first));
    ok(driver.cuStreamWaitEvent(second, event, 0));
    ok(driver.cuStreamWriteValue32_v2(second, flag, 1, 0));
    ok(driver.cuStreamSynchronize(second));
}

/// A deadlock ends with what each stream waits for.
#[test]
fn a_deadlock_is_reported_after_the_time_limit() {
    if folder().is_none() {
        return;
    }
    let (succeeded, text) = finish(start("waits for ever", "", &[("EMULATOR_TIMEOUT", "1")]));
    assert!(!succeeded, "{text}");
    for part in [
        "nothing moved",
        "cuStreamWaitValue32",
        ">= 1, where 0 stands",
        "recorded as operation 2 of stream",
        "next cuStreamWriteValue32",
    ] {
        assert!(text.contains(part), "expected \"{part}\" in:\n{text}");
    }
}

/// The mistakes that must end the process, each with what its message says.
const MISUSES: [(&str, &[&str]); 8] = [
    ("a copy past the end", &["cuMemcpyDtoDAsync: source", "ends 4 bytes past the end of device memory of 100 bytes"]),
    ("a fill of freed memory", &["cuMemsetD8Async: destination", "which was freed"]),
    ("a copy to the host's memory as if it were the device's", &["cuMemcpyHtoD: destination", "belongs to none"]),
    ("memory freed twice", &["cuMemFree: address", "which was freed"]),
    (
        "a kernel that writes past the end",
        &["cuLaunchHostFunc: touched", "120 bytes past the end of device memory of 5000 bytes"],
    ),
    ("a kernel that writes a little past the end", &["cuMemFree: something wrote 2 bytes past the end"]),
    ("a kernel that uses freed memory", &["cuLaunchHostFunc: touched", "which was freed"]),
    ("a wait on memory no device knows", &["cuStreamWaitValue32: address", "belongs to none"]),
];

#[test]
fn misuse_of_memory_ends_the_process_and_names_the_call() {
    if folder().is_none() {
        return;
    }
    let children: Vec<_> = MISUSES.iter().map(|(role, _)| start(role, "", &[])).collect();
    for (child, (role, parts)) in children.into_iter().zip(MISUSES) {
        let (succeeded, text) = finish(child);
        assert!(!succeeded, "{role}: {text}");
        for part in parts {
            assert!(text.contains(part), "{role}: expected \"{part}\" in:\n{text}");
        }
    }
}

extern "C" fn write_byte(address: *mut c_void) {
    // SAFETY: this stands for a wrong kernel: the process must end here with a report.
    unsafe { address.cast::<u8>().write_volatile(1) }
}

fn misuses(driver: &Driver, role: &str) {
    let (stream, memory, page) = (driver.stream(), driver.memory(100), driver.memory(5000));
    let mut host = [0u32; 4];
    match role {
        "a copy past the end" => _ = driver.cuMemcpyDtoDAsync_v2(page, memory + 4, 100, stream),
        "a fill of freed memory" => {
            ok(driver.cuMemFree_v2(memory));
            driver.cuMemsetD8Async(memory, 0, 4, stream);
        }
        "a copy to the host's memory as if it were the device's" => {
            driver.cuMemcpyHtoD_v2((&raw mut host) as u64, (&raw const host).cast(), 16);
        }
        "memory freed twice" => (0..2).for_each(|_| _ = driver.cuMemFree_v2(memory)),
        "a kernel that writes past the end" => {
            _ = driver.cuLaunchHostFunc(stream, write_byte, (page + 5120) as *mut c_void)
        }
        "a kernel that writes a little past the end" => {
            driver.cuLaunchHostFunc(stream, write_byte, (memory + 102) as *mut c_void);
            driver.cuMemFree_v2(memory);
        }
        "a kernel that uses freed memory" => {
            ok(driver.cuMemFree_v2(page));
            driver.cuLaunchHostFunc(stream, write_byte, page as *mut c_void);
        }
        "a wait on memory no device knows" => _ = driver.cuStreamWaitValue32_v2(stream, (&raw mut host) as u64, 1, 0),
        other => panic!("no role {other}"),
    }
    driver.cuStreamSynchronize(stream);
    println!("the misuse \"{role}\" went unnoticed");
}

// ---- NVSHMEM and NCCL ----------------------------------------------------------------------------------------------------------

/// Two ranks of a role, on these devices: whether each succeeded, and what both printed.
fn two_ranks(role: &str, id: &UniqueId, devices: [&str; 2]) -> [(bool, String); 2] {
    let variables = |rank: usize| {
        [("CUDA_VISIBLE_DEVICES", devices[rank]), ("EMULATOR_TIMEOUT", "30"), ("EMULATOR_JITTER", ["1", "2"][rank])]
    };
    let ranks = [0, 1].map(|rank| start(role, &format!("{rank}{}", to_text(&id.0)), &variables(rank)));
    let [(first, above), (second, below)] = ranks.map(finish);
    let text = format!("rank 0:\n{above}\nrank 1:\n{below}");
    [(first, text.clone()), (second, text)]
}

/// The rank and the unique id in a role's argument.
fn rank_and_id(argument: &str) -> (c_int, UniqueId) {
    (argument[..1].parse().unwrap(), UniqueId(from_text(&argument[1..])))
}

#[test]
fn puts_with_signals_pass_between_processes() {
    let Some(nvshmem) = Driver::on(0).and_then(|_| Nvshmem::get()) else { return };
    for (role, devices) in [("puts", ["0", "1"]), ("puts to a PE on the same device", ["1", "1"])] {
        let mut id = UniqueId([0; 128]);
        ok(nvshmem.nvshmemx_get_uniqueid(&mut id));
        for (succeeded, text) in two_ranks(role, &id, devices) {
            if role == "puts" {
                assert!(succeeded, "{text}");
            } else {
                assert!(!succeeded && text.contains("several PEs on one device"), "{text}");
            }
        }
    }
}

/// A library of two PEs, this one's number, and the other's.
fn join_as_pe(argument: &str) -> (&'static Nvshmem, c_int, c_int) {
    let nvshmem = Nvshmem::get().unwrap();
    let (rank, id) = rank_and_id(argument);
    let mut attributes = [0; 18];
    assert_eq!(nvshmem.nvshmemx_init_status(), 0);
    ok(nvshmem.nvshmemx_set_attr_uniqueid_args(rank, 2, &id, &mut attributes));
    ok(nvshmem.nvshmemx_hostlib_init_attr(8, &mut attributes));
    assert_eq!((nvshmem.nvshmem_my_pe(), nvshmem.nvshmem_n_pes()), (rank, 2));
    (nvshmem, rank, 1 - rank)
}

/// Passes a buffer to and fro twenty times, each PE adding to it, ordered by signals alone.
fn puts(driver: &Driver, argument: &str) {
    const COUNT: usize = 3000;
    let (nvshmem, rank, other) = join_as_pe(argument);
    assert_eq!(nvshmem.nvshmemx_init_status(), 2);
    let (first, signal) = (nvshmem.nvshmem_malloc(100), nvshmem.nvshmem_calloc(2, 8));
    let inbox = nvshmem.nvshmem_malloc(8 * COUNT);
    let (outbox, stream) = (driver.memory(8 * COUNT), driver.stream());
    ok(nvshmem.nvshmemx_buffer_register(outbox, 8 * COUNT));
    assert!(driver.download::<f32>(first, 10).iter().all(|value| value.is_nan()), "fresh memory");
    for round in 1..=20u64 {
        // PE 0 begins; a message is the round it was sent in, in every word.
        if round > 1 || rank == 1 {
            let expected = if rank == 0 { round - 1 } else { round };
            ok(driver.cuStreamWaitValue64_v2(stream, signal, expected, 1 << 30));
            ok(driver.cuStreamSynchronize(stream));
            let expected = vec![u64::from(expected as u8) * 0x0101_0101_0101_0101; COUNT];
            assert_eq!(driver.download::<u64>(inbox, COUNT), expected);
        }
        ok(driver.cuMemsetD8Async(outbox, round as u8, 8 * COUNT, stream));
        nvshmem.nvshmemx_putmem_signal_on_stream(inbox, outbox, 8 * COUNT, signal, round, 9, other, stream);
    }
    nvshmem.nvshmemx_barrier_all_on_stream(stream);
    nvshmem.nvshmemx_signal_op_on_stream(signal + 8, 5, 10, other, stream);
    nvshmem.nvshmemx_putmem_nbi_on_stream(first, outbox, 96, other, stream);
    nvshmem.nvshmemx_quiet_on_stream(stream);
    nvshmem.nvshmemx_signal_op_on_stream(signal + 8, 2, 10, other, stream);
    nvshmem.nvshmemx_signal_wait_until_on_stream(signal + 8, 5, 7, stream);
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!(driver.download::<u8>(first, 96), [20; 96]);
    let there = nvshmem.nvshmem_ptr(first, other); // loaded and stored like own memory
    assert_eq!(driver.download::<u8>(there, 96), [20; 96]);
    assert_eq!(nvshmem.nvshmem_ptr(outbox, other), 0);
    nvshmem.nvshmem_barrier_all();
    nvshmem.nvshmem_free(inbox);
    assert_eq!(nvshmem.nvshmem_malloc(2 << 30), 0, "more than the heap");
    nvshmem.nvshmemx_hostlib_finalize();
}

/// Neither of which a network, or the order of what came over one, would forgive.
#[test]
fn what_a_network_does_not_reach_or_order_ends_the_process() {
    let Some(nvshmem) = Driver::on(0).and_then(|_| Nvshmem::get()) else { return };
    for (role, words) in
        [("puts what no network reaches", "no network reaches it"), ("waits without a flush", "_FLUSH")]
    {
        let mut id = UniqueId([0; 128]);
        ok(nvshmem.nvshmemx_get_uniqueid(&mut id));
        for (succeeded, text) in two_ranks(role, &id, ["0", "1"]) {
            assert!(!succeeded && text.contains(words), "{text}");
        }
    }
}

fn puts_other_memory(driver: &Driver, argument: &str, puts: bool) {
    let (nvshmem, _, other) = join_as_pe(argument);
    let (inbox, outbox, stream) = (nvshmem.nvshmem_malloc(64), driver.memory(64), driver.stream());
    if puts {
        nvshmem.nvshmemx_putmem_nbi_on_stream(inbox, outbox, 64, other, stream);
    } else {
        driver.cuStreamWaitValue64_v2(stream, inbox, 0, 0);
    }
}

/// A thread that works on while the process ends meets a library that is no more.
#[test]
fn a_call_while_the_process_exits_ends_it_with_a_message() {
    if folder().is_none() {
        return;
    }
    let (succeeded, text) = finish(start("calls while it exits", "", &[]));
    assert!(!succeeded && text.contains("while the process ends"), "{text}");
}

fn calls_while_it_exits(driver: &'static Driver) {
    std::thread::spawn(move || {
        loop {
            driver.cuInit(0);
            _ = driver.cuStreamQuery(0);
        }
    });
    std::process::exit(0);
}

/// A thread that never made a context current has none.
#[test]
fn events_need_a_current_context() {
    let Some((driver, _)) = Driver::on(0) else { return };
    let event = driver.event(0);
    let calls = move || [driver.cuEventQuery(event), driver.cuEventSynchronize(event), driver.cuEventDestroy_v2(event)];
    assert_eq!(std::thread::spawn(calls).join().unwrap(), [201; 3]);
}

/// Without MPS the wait of the library itself ends the process; the driver's works.
fn puts_on_one_device(driver: &Driver, argument: &str) {
    let (nvshmem, _, other) = join_as_pe(argument);
    assert_eq!(nvshmem.nvshmemx_init_status(), 3);
    let (signal, stream) = (nvshmem.nvshmem_calloc(1, 8), driver.stream());
    nvshmem.nvshmemx_signal_op_on_stream(signal, 3, 9, other, stream);
    ok(driver.cuStreamWaitValue64_v2(stream, signal, 3, 1 << 30));
    nvshmem.nvshmemx_barrier_all_on_stream(stream);
    nvshmem.nvshmemx_signal_wait_until_on_stream(signal, 5, 3, stream);
}

#[test]
fn sends_meet_receives_of_another_process() {
    let Some(nccl) = Driver::on(0).and_then(|_| Nccl::get()) else { return };
    for (role, devices) in [("sends", ["0", "1"]), ("joins on the same device", ["1", "1"])] {
        let mut id = UniqueId([0; 128]);
        ok(nccl.ncclGetUniqueId(&mut id));
        for (succeeded, text) in two_ranks(role, &id, devices) {
            assert!(succeeded, "{text}");
        }
    }
}

fn joins_on_one_device(argument: &str) {
    let nccl = Nccl::get().unwrap();
    let ((rank, id), mut communicator) = (rank_and_id(argument), 0);
    assert_eq!(nccl.ncclCommInitRank(&mut communicator, 2, id, rank), 5, "ncclInvalidUsage");
    // SAFETY: the library gives a text that ends with zero and lives until its next error.
    let text = unsafe { CStr::from_ptr(nccl.ncclGetLastError(0)) };
    assert!(text.to_str().unwrap().contains("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1"));
}

fn sends(driver: &Driver, argument: &str) {
    const COUNT: usize = 200_000;
    const FLOAT32: c_int = 7;
    let nccl = Nccl::get().unwrap();
    let ((rank, id), mut communicator, stream) = (rank_and_id(argument), 0, driver.stream());
    ok(nccl.ncclCommInitRank(&mut communicator, 2, id, rank));
    let (own, theirs) = (driver.upload(&vec![1.5f32 + rank as f32; COUNT]), driver.memory(4 * COUNT));
    let send = |count| nccl.ncclSend(own, count, FLOAT32, 1 - rank, communicator, stream);
    let receive = |count| nccl.ncclRecv(theirs, count, FLOAT32, 1 - rank, communicator, stream);

    // A send waits for its receive, however small it is: the other comes 3 s after both have met in an empty message.
    ok(if rank == 0 { send(0) } else { receive(0) });
    ok(driver.cuStreamSynchronize(stream));
    let start = Instant::now();
    if rank == 0 {
        ok(send(1));
        assert!(start.elapsed() < Duration::from_millis(2500), "the call itself does not wait");
        assert_eq!(driver.cuStreamQuery(stream), NOT_READY);
    } else {
        driver.sleep(stream, 3000);
        ok(receive(1));
    }
    ok(driver.cuStreamSynchronize(stream));
    assert!(start.elapsed() > Duration::from_millis(500));

    // The first message in a direction holds the host up until the other side's host has come to it.
    let start = Instant::now();
    if rank == 0 {
        std::thread::sleep(Duration::from_millis(1300));
        ok(receive(1));
    } else {
        ok(send(1));
        assert!(start.elapsed() > Duration::from_millis(200), "the call itself waits");
    }
    ok(driver.cuStreamSynchronize(stream));

    // Both send and receive in one group; alone, two sends would wait for each other for ever.
    ok(nccl.ncclGroupStart());
    ok(send(COUNT));
    ok(receive(COUNT));
    ok(nccl.ncclGroupEnd());
    ok(driver.cuStreamSynchronize(stream));
    assert_eq!(driver.download::<f32>(theirs, COUNT), vec![2.5 - rank as f32; COUNT]);

    // An abort ends what waits: nobody receives this.
    let second = driver.stream();
    if rank == 0 {
        ok(nccl.ncclSend(own, 4, FLOAT32, 1, communicator, second));
        ok(nccl.ncclCommAbort(communicator));
        ok(driver.cuStreamSynchronize(second));
        assert_eq!(send(4), 4, "ncclInvalidArgument: the communicator is gone");
    } else {
        ok(nccl.ncclCommDestroy(communicator));
    }
}
