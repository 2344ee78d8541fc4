//! Descriptors of cuDNN's attention: which the stand-in refuses, as the real library does, and whether the real library plans them.
//!
//! The real one (cuDNN 9.28.1, 520 MB) plans for a device that is not here, but runs nothing without a GPU. `PIPESIM_CUDNN` names a
//! folder with it, as `pip install --target FOLDER nvidia-cudnn-cu13==9.28.1.4 nvidia-cuda-nvrtc` makes it; `PIPESIM_CUDA_WHEELS` has the
//! driver's library, which it opens. Without either, what is not run is said.

use crate::support::*;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use pipesim_gpu::api::{AttentionError, AttentionShape, Cudnn, Pass, PlanTarget, version_name};
use pipesim_gpu::attention::workspace_bytes;
use std::ffi::{CString, c_int, c_void};
use std::process::Command;

const CHILD: &str = "PIPESIM_TEST_CHILD";

/// A command that runs a test again where the real library is found; `None`, and why, without it.
fn with_real(test: &str) -> Option<Command> {
    let (folder, wheels) = (cudnn()?, wheels()?);
    let mut command = again(&format!("cudnn::{test}"));
    command.env(CHILD, "real").env("PIPESIM_CUDA_PATH", folder).env("LD_LIBRARY_PATH", wheels.join("driver"));
    Some(command)
}

fn with_emulator(test: &str) -> Command {
    let mut command = again(&format!("cudnn::{test}"));
    with_stand_ins(&mut command).env(CHILD, "emulator");
    command
}

fn finish(mut command: Command) {
    let output = command.output().unwrap();
    let words = [&output.stdout[..], &output.stderr[..]].concat();
    let words = String::from_utf8_lossy(&words);
    assert!(output.status.success() && words.contains("1 passed"), "the child failed: {}\n{words}", output.status);
    words.lines().filter(|line| line.starts_with("cuDNN ")).for_each(|line| println!("{line}"));
}

/// Of a device that is not here, in the library's words: an H100, an A100, a B200, and a T4, which it does not support.
fn device(capability: u32, multiprocessors: u32) -> CString {
    let limits = match capability {
        750 => "65536,\"maxThreadsPerSM\":1024",
        800 => "166912,\"maxThreadsPerSM\":2048",
        _ => "232448,\"maxThreadsPerSM\":2048",
    };
    CString::new(format!(
        "{{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":\
         {multiprocessors},\"smCountOrigin\":0,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":{limits},\
         \"oversizedSharedMemoryPerBlock\":0,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\
         \"maxThreadsPerBlock\":1024,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":85017624576,\
         \"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"memoryBusWidth\":5120,\"l2CacheSize\":52428800,\"cudaDeviceId\":0,\
         \"deviceVer\":{capability},\"driverVer\":13000,\"deviceName\":\"a GPU\"}}"
    ))
    .unwrap()
}

/// The real library accepts every descriptor and builds a plan of each pass: graph, heuristic, engine, and the kernel that NVRTC compiles.
/// GPT-2 124M and Llama 3 8B on an H100, one of half the size, an A100 and a B200; head sizes 8 to 128, tokens that are no multiple of 64.
#[test]
fn the_real_cudnn_plans_both_passes_without_a_gpu() {
    if std::env::var(CHILD).is_err() {
        return with_real("the_real_cudnn_plans_both_passes_without_a_gpu").into_iter().for_each(finish);
    }
    let api = Cudnn::open().unwrap();
    let shape = |[sequences, tokens, heads, groups, size]: [usize; 5]| AttentionShape {
        sequences,
        tokens,
        heads,
        groups,
        size,
    };
    let small = [[2, 64, 2, 2, 64], [1, 100, 3, 3, 64], [2, 33, 4, 2, 128], [1, 1, 2, 2, 64], [1, 65, 2, 1, 8]];
    let (gpt2, llama) = ([32, 1024, 12, 12, 64], [1, 8192, 32, 8, 128]);
    let mut plans = 0;
    for (capability, multiprocessors, shapes) in [
        (900, 132, [&small[..], &[gpt2, llama]].concat()),
        (900, 66, vec![gpt2]),
        (800, 108, vec![gpt2, llama]),
        (1000, 148, vec![gpt2, llama]),
    ] {
        let device = api.properties(&device(capability, multiprocessors)).unwrap();
        for shape in shapes.into_iter().map(shape) {
            for pass in [Pass::Forward, Pass::Backward] {
                let plan = api.plan(pass, &shape, &PlanTarget::Properties(&device)).unwrap();
                let most = workspace_bytes(&shape);
                assert!(plan.workspace_bytes <= most, "{pass:?} {shape:?}: {} bytes of {most}", plan.workspace_bytes);
                assert!(!plan.may_differ, "{pass:?} {shape:?}");
                plans += 1;
            }
        }
    }
    // what the library does not support has no engine
    for (capability, refused) in [(900, [1, 64, 2, 2, 20]), (750, gpt2)] {
        let device = api.properties(&device(capability, 40)).unwrap();
        let plan = api.plan(Pass::Forward, &shape(refused), &PlanTarget::Properties(&device));
        assert!(matches!(plan, Err(AttentionError::NoEngine { proposed: 0, .. })), "{refused:?}");
    }
    // without a GPU there is no handle, and nothing runs
    let refused = api.handle().map(drop).unwrap_err();
    assert!(refused.to_string().contains("CUDNN_STATUS_NOT_INITIALIZED"), "{refused}");
    println!("cuDNN {}: {plans} plans", version_name(api.version));
}

// ---- statuses, with the library's own functions -----------------------------------------------------------------------------

type Create = unsafe extern "C" fn(c_int, *mut *mut c_void) -> c_int;
type Set = unsafe extern "C" fn(*mut c_void, c_int, c_int, i64, *const c_void) -> c_int;
type Finalize = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Types of attributes.
const DATA: c_int = 1;
const BOOLEAN: c_int = 2;
const INT64: c_int = 3;
const COMPARISON: c_int = 14;
const DESCRIPTOR: c_int = 15;
const INT32: c_int = 23;

/// Kinds of descriptors.
const GRAPH: c_int = 15;
const TENSOR: c_int = 17;
const FORWARD: c_int = 41;
const BACKWARD: c_int = 43;
const MASK: c_int = 44;

struct Raw {
    create: Create,
    set: Set,
    finalize: Finalize,
}

/// A tensor: number, type, dimensions, strides.
#[derive(Clone, Copy)]
struct Tensor(i64, c_int, [i64; 4], [i64; 4]);

impl Raw {
    fn open() -> Raw {
        let found = pipesim_gpu::library::open(&pipesim_gpu::library::CUDNN).unwrap();
        // SAFETY: the library is open already; the names and types are cudnn_graph.h's.
        unsafe {
            let library = Library::open(Some(found.path), RTLD_NOW | RTLD_GLOBAL).unwrap();
            let raw = Raw {
                create: *library.get(b"cudnnBackendCreateDescriptor").unwrap(),
                set: *library.get(b"cudnnBackendSetAttribute").unwrap(),
                finalize: *library.get(b"cudnnBackendFinalize").unwrap(),
            };
            std::mem::forget(library);
            raw
        }
    }

    fn make(&self, kind: c_int) -> *mut c_void {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: the result pointer points at a local.
        assert_eq!(unsafe { (self.create)(kind, &mut descriptor) }, 0, "{kind}");
        descriptor
    }

    fn set<T>(&self, descriptor: *mut c_void, name: c_int, kind: c_int, values: &[T]) -> c_int {
        // SAFETY: the array has as many values as are told.
        unsafe { (self.set)(descriptor, name, kind, values.len() as i64, values.as_ptr().cast()) }
    }

    fn finalize(&self, descriptor: *mut c_void) -> c_int {
        // SAFETY: the descriptor is alive.
        unsafe { (self.finalize)(descriptor) }
    }

    /// In memory, or one value, or of `scores`, which are nowhere.
    fn tensor(&self, Tensor(number, kind, dimensions, strides): Tensor, scores: bool) -> *mut c_void {
        let tensor = self.make(TENSOR);
        let (is_value, alignment) = (dimensions == [1; 4], [if kind == 0 { 4_i64 } else { 16 }]);
        assert_eq!(self.set(tensor, 906, INT64, &[number]), 0);
        assert_eq!(self.set(tensor, 901, DATA, &[kind]), 0);
        assert_eq!(self.set(tensor, 902, INT64, &dimensions), 0);
        assert_eq!(self.set(tensor, 903, INT64, &strides), 0);
        assert_eq!(self.set(tensor, 900, INT64, &alignment), 0);
        if is_value || scores {
            assert_eq!(self.set(tensor, if scores { 907 } else { 908 }, BOOLEAN, &[true]), 0);
        }
        assert_eq!(self.finalize(tensor), 0);
        tensor
    }

    /// The graph of a causal mask of scores with these dimensions.
    fn mask(&self, [b, h, t]: [i64; 3]) -> *mut c_void {
        let scores = |number| self.tensor(Tensor(number, 0, [b, h, t, t], [h * t * t, t * t, t, 1]), true);
        let (mask, graph) = (self.make(MASK), self.make(GRAPH));
        assert_eq!(self.set(mask, 3000, DESCRIPTOR, &[scores(11)]), 0);
        assert_eq!(self.set(mask, 3005, DESCRIPTOR, &[self.tensor(Tensor(13, 0, [1; 4], [1; 4]), false)]), 0);
        assert_eq!(self.set(mask, 3006, DESCRIPTOR, &[scores(12)]), 0);
        assert_eq!(self.set(mask, 3007, COMPARISON, &[303]), 0);
        assert_eq!(self.finalize(mask), 0);
        assert_eq!(self.set(graph, 801, DESCRIPTOR, &[mask]), 0);
        assert_eq!(self.finalize(graph), 0);
        graph
    }

    /// The status of finalizing a forward of tensors at their attributes, from 2800 on, of queries with these dimensions.
    fn forward(&self, tensors: &[Option<Tensor>; 6], queries: [i64; 3]) -> c_int {
        let operation = self.make(FORWARD);
        assert_eq!(self.set(operation, 2811, DESCRIPTOR, &[self.mask(queries)]), 0);
        assert_eq!(self.set(operation, 2812, INT64, &[11_i64]), 0);
        assert_eq!(self.set(operation, 2813, INT64, &[12_i64]), 0);
        for (place, tensor) in tensors.iter().enumerate() {
            if let Some(tensor) = tensor {
                assert_eq!(self.set(operation, 2800 + place as c_int, DESCRIPTOR, &[self.tensor(*tensor, false)]), 0);
            }
        }
        self.finalize(operation)
    }
}

/// Each misuse has the status of the real library, which was run without a GPU.
fn statuses() {
    let raw = Raw::open();
    let (b, h, t, size) = (2, 4, 64, 32);
    let row = 3 * h * size;
    let fused = |number, dimensions| Tensor(number, 9, dimensions, [t * row, size, row, 1]);
    let whole = [b, h, t, size];
    let output = Tensor(4, 9, whole, [t * h * size, size, h * size, 1]);
    let sums = Tensor(5, 0, [b, h, t, 1], [h * t, t, 1, 1]);
    let all = [
        Some(fused(1, whole)),
        Some(fused(2, whole)),
        Some(fused(3, whole)),
        Some(output),
        Some(sums),
        Some(Tensor(6, 0, [1; 4], [1; 4])),
    ];
    let with = |changes: &[(usize, Option<Tensor>)]| {
        let mut tensors = all;
        changes.iter().for_each(|(place, tensor)| tensors[*place] = *tensor);
        raw.forward(&tensors, [b, h, t])
    };
    let (bad_parameter, not_finalized, wrong_type) = (2000, 2004, 2010);
    // attributes
    let tensor = raw.make(TENSOR);
    assert_eq!(raw.set(tensor, 2800, DESCRIPTOR, &[tensor]), bad_parameter, "an attribute of another descriptor");
    assert_eq!(raw.set(tensor, 99_999, INT64, &[1_i64]), bad_parameter, "an unknown attribute");
    assert_eq!(raw.set(tensor, 906, INT32, &[1]), wrong_type);
    assert_eq!(raw.set(tensor, 906, INT64, &[1_i64, 2]), bad_parameter, "two values for one");
    assert_eq!(raw.finalize(tensor), bad_parameter, "a tensor without dimensions");
    let tensor = raw.tensor(output, false);
    assert_eq!(raw.set(tensor, 906, INT64, &[1_i64]), bad_parameter, "an attribute after finalizing");
    assert_eq!(raw.finalize(tensor), bad_parameter, "finalized twice");
    // operations
    assert_eq!(with(&[(0, None)]), not_finalized, "no queries");
    assert_eq!(with(&[(3, None)]), not_finalized, "no output");
    let unfinished = raw.make(FORWARD);
    assert_eq!(raw.set(unfinished, 2800, DESCRIPTOR, &[raw.make(TENSOR)]), 0);
    assert_eq!(raw.finalize(unfinished), not_finalized, "a tensor that is not finalized");
    assert_eq!(raw.finalize(raw.make(BACKWARD)), not_finalized, "no tensors");
    let shorter = [b, h, t / 2, size];
    assert_eq!(with(&[]), 0);
    for (what, changes) in [
        ("5 heads of keys for 4", vec![(1, Some(fused(2, [b, 5, t, size]))), (2, Some(fused(3, [b, 5, t, size])))]),
        ("keys of another size", vec![(1, Some(fused(2, [b, h, t, size / 2])))]),
        ("an output of other tokens", vec![(3, Some(Tensor(4, 9, shorter, output.3)))]),
        ("statistics of two numbers", vec![(4, Some(Tensor(5, 0, [b, h, t, 2], sums.3)))]),
    ] {
        assert_eq!(with(&changes), bad_parameter, "{what}");
    }
    // graphs
    let graph = raw.make(GRAPH);
    assert_eq!(
        raw.set(graph, 801, DESCRIPTOR, &[raw.make(FORWARD)]),
        not_finalized,
        "an operation that is not finalized"
    );
    let mut unknown = std::ptr::null_mut();
    // SAFETY: the result pointer points at a local.
    assert_eq!(unsafe { (raw.create)(9999, &mut unknown) }, 4003);
}

#[test]
fn the_stand_in_refuses_what_the_real_cudnn_refuses() {
    let test = "the_stand_in_refuses_what_the_real_cudnn_refuses";
    if std::env::var(CHILD).is_ok() {
        return statuses();
    }
    finish(with_emulator(test));
    with_real(test).into_iter().for_each(finish);
}
