//! The kernels against the CPU's arithmetic. The very text that a GPU compiles is compiled as C++ with
//! `tests/emulator/device.h` in front, where threads are coroutines and barriers and shuffles are real, and every
//! kernel is launched on the grid that `pipesim_gpu::kernel` states. It needs `g++`, and no GPU.
//!
//! Every launch runs twice, in the natural order of blocks, warps and lanes and in a random one, and both must give the
//! same bits. Outputs are NaN before a launch, and the memory around every buffer must stay as it was.
//!
//! With `PIPESIM_TEST_GPU=1` the same launches go to GPU 0, by the driver and the code that training uses, buffers with
//! their guards; twice as well, and again with the same bits. Shapes and tolerances are the same but for [`EXPONENTIALS`].

mod choices;

use crate::reference;
use crate::support::{Dice, on_gpu, root, skipped_on_gpu};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use cpu_kernels::attention::Shape;
use libloading::Library;
use pipesim::internals::model::AdamW;
use pipesim_gpu::kernel::{self, Launch, Precision};
use pipesim_gpu::{self, Driver, Gpu, Kernels, Pinned};

const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];
/// Most error of a float32 result, relative to the largest magnitude of the tensor.
const TOLERANCE: f32 = 1e-5;
/// The same of a bfloat16 result: half a unit in the last place is 2^-9, and attention rounds its weights too.
const TOLERANCE_BF16: f32 = 1e-2;
/// On a GPU, by how much more a float32 result may differ that went through an exponential: `ex2.approx` is right to 2
/// units in the last place and `expf` to 1, where the CPU's are to half of one, and exponents of magnitude 16 pass such
/// errors on up to 16 times as large.
const EXPONENTIALS: f32 = 4.0;

// ---- the emulator ---------------------------------------------------------------------------------------------------

type LaunchFunction =
    unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, c_uint, c_uint, *mut *mut c_void) -> c_int;

/// The kernels of one precision, compiled for the CPU or loaded on a GPU.
struct Emulator {
    place: Place,
    precision: Precision,
}

/// Where kernels run.
enum Place {
    Cpu(Library),
    Gpu(Box<(Gpu, Arc<Kernels>)>),
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
enum Argument<'a> {
    Buffer(&'a Buffer),
    /// An address on the emulator.
    Address(u64),
    Null,
    Int(usize),
    Count(usize),
    Float(f32),
}

use Argument::{Count, Float, Int, Null};

fn source() -> PathBuf {
    root().join("tests/emulator/kernels.cpp")
}

fn compile(arguments: &[&str], output: &Path) {
    let run = Command::new("g++").args(["-std=c++17", "-O2"]).args(arguments).arg("-o").arg(output).output();
    let run = run.expect("expected a C++ compiler; install g++");
    assert!(run.status.success(), "g++ failed:\n{}", String::from_utf8_lossy(&run.stderr));
}

fn emulator(precision: Precision) -> &'static Emulator {
    static EMULATORS: OnceLock<[Emulator; 2]> = OnceLock::new();
    let [f32, bf16] = EMULATORS.get_or_init(|| {
        PRECISIONS.map(|precision| {
            if on_gpu() {
                let gpu = Gpu::whole(Driver::open().unwrap(), 0).unwrap();
                let kernels = Kernels::load(gpu.context(), gpu.facts(), precision, None).unwrap();
                return Emulator { place: Place::Gpu(Box::new((gpu, kernels))), precision };
            }
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
            // of this process alone: other processes of the same test may build at the same time
            let built = folder.join(format!("libkernels{}-{}.so", precision.suffix(), std::process::id()));
            let define = if precision == Precision::Bf16 { "-DPIPESIM_BF16" } else { "-DPIPESIM_F32" };
            compile(&["-fPIC", "-shared", define, source().to_str().unwrap()], &built);
            // SAFETY: the library is our own; loading it runs no code but the C++ runtime's.
            let library = unsafe { Library::new(&built) }.unwrap();
            std::fs::remove_file(&built).unwrap();
            Emulator { place: Place::Cpu(library), precision }
        })
    });
    if precision == Precision::Bf16 { bf16 } else { f32 }
}

impl Emulator {
    /// Names of the kernels, a line each, in the library that was compiled for the CPU.
    fn kernels(&self) -> String {
        let Place::Cpu(library) = &self.place else { panic!("expected the kernels on the CPU") };
        // SAFETY: the function takes nothing and returns a string that lives as long as the library.
        unsafe {
            let kernels = library.get::<unsafe extern "C" fn() -> *const c_char>(b"emulator_kernels").unwrap();
            std::ffi::CStr::from_ptr(kernels()).to_str().unwrap().to_owned()
        }
    }

    /// Launches a kernel that takes these buffers and then the rest.
    fn launch(&self, name: &str, launch: Launch, buffers: &[&Buffer], rest: &[Argument]) {
        let buffers = buffers.iter().map(|buffer| Argument::Buffer(buffer));
        let arguments: Vec<Argument> = buffers.chain(rest.iter().copied()).collect();
        match &self.place {
            Place::Cpu(library) => self.launch_here(library, name, launch, &arguments),
            Place::Gpu(there) => launch_there(there, name, launch, &arguments),
        }
        for argument in arguments {
            if let Argument::Buffer(buffer) = argument {
                buffer.check(&label(name, self.precision));
            }
        }
    }

    fn launch_here(&self, library: &Library, name: &str, launch: Launch, arguments: &[Argument]) {
        let name = CString::new(label(name, self.precision)).unwrap();
        let mut values: Vec<u64> = arguments
            .iter()
            .map(|argument| match *argument {
                Argument::Buffer(buffer) => buffer.address(),
                Argument::Address(address) => address,
                Null => 0,
                Int(value) => u64::from(i32::try_from(value).unwrap().cast_unsigned()),
                Count(value) => value as u64,
                Float(value) => u64::from(value.to_bits()),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let Launch { grid: [x, y, z], block, shared_bytes } = launch;
        // SAFETY: the arguments are those of the kernel, and its buffers are as large as the kernel states.
        let status = unsafe {
            let function = library.get::<LaunchFunction>(b"emulator_launch").unwrap();
            function(name.as_ptr(), x, y, z, block, shared_bytes, pointers.as_mut_ptr())
        };
        assert_eq!(status, 0, "{name:?}");
    }

    /// Sets the order of threads. A GPU has its own, another every time.
    fn seed(&self, seed: u64) {
        let Place::Cpu(library) = &self.place else { return };
        // SAFETY: the function takes an integer and sets it for this thread.
        unsafe {
            let function = library.get::<unsafe extern "C" fn(c_ulonglong)>(b"emulator_seed").unwrap();
            function(seed);
        }
    }

    /// Of launches on the emulator, only `count` blocks from number `first` on run from now on; all if `count` is 0.
    fn blocks(&self, first: usize, count: usize) {
        let Place::Cpu(library) = &self.place else { panic!("expected the kernels on the CPU") };
        // SAFETY: the function takes integers and sets them for this thread.
        unsafe {
            let function = library.get::<unsafe extern "C" fn(c_ulonglong, c_ulonglong)>(b"emulator_blocks").unwrap();
            function(first as c_ulonglong, count as c_ulonglong);
        }
    }

    /// How often warps on the emulator have read four matrices, 512 bytes, from shared memory since the last call.
    fn matrix_reads(&self) -> u64 {
        let Place::Cpu(library) = &self.place else { panic!("expected the kernels on the CPU") };
        // SAFETY: the function takes nothing and returns a count of this thread.
        unsafe { library.get::<unsafe extern "C" fn() -> c_ulonglong>(b"emulator_matrix_reads").unwrap()() }
    }

    /// What `work` leaves in the buffers that it returns; the same bits in two orders of the threads.
    fn twice<const N: usize>(&self, work: impl Fn() -> [Buffer; N]) -> [Buffer; N] {
        self.seed(0);
        let natural = work();
        self.seed(rand_seed());
        let shuffled = work();
        for (first, second) in natural.iter().zip(&shuffled) {
            assert!(first.content() == second.content(), "the result depends on the order of the threads");
        }
        natural
    }

    /// Activations for a kernel of this precision.
    fn acts(&self, values: &[f32]) -> Buffer {
        self.acts_at(values, 0)
    }

    /// The same, `offset` elements behind an address that is a multiple of 16.
    fn acts_at(&self, values: &[f32], offset: usize) -> Buffer {
        match self.precision {
            Precision::F32 => Buffer::new(bytemuck::cast_slice(values), offset * 4),
            Precision::Bf16 => {
                let halves: Vec<u16> = values.iter().map(|&value| bf16_bits(value)).collect();
                Buffer::new(bytemuck::cast_slice(&halves), offset * 2)
            }
        }
    }

    /// Values that this precision can represent.
    fn rounded(&self, values: Vec<f32>) -> Vec<f32> {
        match self.precision {
            Precision::F32 => values,
            Precision::Bf16 => values.into_iter().map(round_to_bf16).collect(),
        }
    }

    fn tolerance(&self) -> f32 {
        if self.precision == Precision::Bf16 { TOLERANCE_BF16 } else { TOLERANCE }
    }

    /// [`Emulator::tolerance`] of what went through an exponential.
    fn tolerance_of_exponentials(&self) -> f32 {
        self.tolerance().max(self.float32_of_exponentials())
    }

    /// The same of a float32 output, whatever the activations are.
    fn float32_of_exponentials(&self) -> f32 {
        if on_gpu() { EXPONENTIALS * TOLERANCE } else { TOLERANCE }
    }

    fn read(&self, buffer: &Buffer) -> Vec<f32> {
        match self.precision {
            Precision::F32 => buffer.floats(),
            Precision::Bf16 => {
                let halves = buffer.content().as_chunks().0.iter().map(|&bytes| u16::from_ne_bytes(bytes));
                halves.map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()
            }
        }
    }

    fn outputs(&self, elements: usize) -> Buffer {
        Buffer::new(&vec![0xff; elements * self.precision.bytes()], 0)
    }
}

/// The same on a GPU: every buffer goes there with its guards, and comes back with them. A buffer that is given twice is one
/// place there too.
fn launch_there((gpu, kernels): &(Gpu, Arc<Kernels>), name: &str, launch: Launch, arguments: &[Argument]) {
    gpu.make_current().unwrap();
    let upload = |content: &[u8]| {
        let place = pipesim_gpu::Buffer::new(gpu.context(), content.len()).unwrap();
        let mut pinned = Pinned::new(gpu.context(), content.len()).unwrap();
        pinned.write(0, content);
        gpu.compute.upload(place.address(), &pinned, 0..content.len()).unwrap();
        gpu.compute.synchronize().unwrap();
        place
    };
    let download = |place: &pipesim_gpu::Buffer| {
        let (mut content, pinned) = (vec![0; place.bytes()], Pinned::new(gpu.context(), place.bytes()).unwrap());
        gpu.compute.download(&pinned, 0..content.len(), place.address()).unwrap();
        gpu.compute.synchronize().unwrap();
        pinned.read(0, &mut content);
        content
    };
    let mut places: BTreeMap<u64, (&Buffer, pipesim_gpu::Buffer)> = BTreeMap::new();
    let arguments: Vec<pipesim_gpu::Argument> = arguments
        .iter()
        .map(|argument| match *argument {
            Argument::Buffer(buffer) => {
                let (_, place) = places.entry(buffer.address()).or_insert_with(|| (buffer, upload(buffer.all())));
                pipesim_gpu::Argument::Address(place.address().offset(buffer.start))
            }
            Argument::Address(_) => unreachable!("a test with addresses on the emulator is skipped on a GPU"),
            Null => pipesim_gpu::Argument::Address(pipesim_gpu::Address::NULL),
            Int(value) => pipesim_gpu::Argument::Int(i32::try_from(value).unwrap()),
            Count(value) => pipesim_gpu::Argument::Size(value),
            Float(value) => pipesim_gpu::Argument::Float(value),
        })
        .collect();
    kernels.allow(name, launch).unwrap();
    kernels.launch(&gpu.compute, name, launch, &arguments).unwrap();
    gpu.compute.synchronize().unwrap();
    for (buffer, place) in places.values() {
        buffer.replace(&download(place));
    }
}

/// bfloat16, rounded to nearest even, of a number that is no NaN; a NaN stays one.
fn bf16_bits(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn round_to_bf16(value: f32) -> f32 {
    f32::from_bits(u32::from(bf16_bits(value)) << 16)
}

// ---- memory of the device -------------------------------------------------------------------------------------------

const GUARD: usize = 512;
const GUARD_BYTE: u8 = 0xc7;

/// Memory with a guarded zone on both sides. Kernels write through the address, so nothing here is ever borrowed
/// mutably while one runs.
struct Buffer {
    storage: Vec<std::cell::UnsafeCell<u128>>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// A buffer with this content, `offset` bytes behind an address that is a multiple of 16.
    fn new(content: &[u8], offset: usize) -> Buffer {
        let mut bytes = vec![GUARD_BYTE; (2 * GUARD + offset + content.len()).next_multiple_of(16)];
        let start = GUARD + offset;
        bytes[start..][..content.len()].copy_from_slice(content);
        let storage =
            bytes.chunks_exact(16).map(|chunk| u128::from_ne_bytes(chunk.try_into().unwrap()).into()).collect();
        Buffer { storage, start, bytes: content.len() }
    }

    fn from_floats(values: &[f32]) -> Buffer {
        Buffer::new(bytemuck::cast_slice(values), 0)
    }

    fn from_words(values: &[u32]) -> Buffer {
        Buffer::new(bytemuck::cast_slice(values), 0)
    }

    /// Room for float32, NaN so far.
    fn output_floats(elements: usize) -> Buffer {
        Buffer::new(&vec![0xff; elements * 4], 0)
    }

    fn address(&self) -> u64 {
        self.storage.as_ptr() as u64 + self.start as u64
    }

    fn all(&self) -> &[u8] {
        // SAFETY: the storage is that long, any byte is valid, and no kernel runs while the slice is in use.
        unsafe { std::slice::from_raw_parts(self.storage.as_ptr().cast(), self.storage.len() * 16) }
    }

    /// Sets all bytes, guards included.
    fn replace(&self, all: &[u8]) {
        assert_eq!(all.len(), self.storage.len() * 16);
        for (cell, chunk) in self.storage.iter().zip(all.chunks_exact(16)) {
            // SAFETY: a buffer belongs to one thread, and none of its bytes is borrowed while a launch writes them.
            unsafe { *cell.get() = u128::from_ne_bytes(chunk.try_into().unwrap()) };
        }
    }

    fn content(&self) -> &[u8] {
        &self.all()[self.start..][..self.bytes]
    }

    fn floats(&self) -> Vec<f32> {
        self.content().as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
    }

    fn doubles(&self) -> Vec<f64> {
        self.content().as_chunks().0.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect()
    }

    fn check(&self, name: &str) {
        let (before, after) = (&self.all()[..self.start], &self.all()[self.start + self.bytes..]);
        assert!(before.iter().chain(after).all(|&byte| byte == GUARD_BYTE), "{name} wrote outside of a buffer");
    }
}

// ---- numbers --------------------------------------------------------------------------------------------------------

/// Values and words by chance.
struct Random(Dice);

impl Random {
    fn new(seed: u64) -> Random {
        Random(Dice(seed))
    }

    /// Numbers in -range..range.
    fn values(&mut self, count: usize, range: f32) -> Vec<f32> {
        (0..count).map(|_| ((self.0.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * range).collect()
    }

    fn words(&mut self, count: usize, bound: usize) -> Vec<u32> {
        (0..count).map(|_| self.0.below(bound) as u32).collect()
    }
}

/// Another order of the threads in every call.
fn rand_seed() -> u64 {
    static SEEDS: Mutex<Dice> = Mutex::new(Dice(1));
    SEEDS.lock().unwrap().next() | 1
}

/// Errors seen so far: shapes and largest error of each output.
static ERRORS: Mutex<BTreeMap<String, (usize, f32)>> = Mutex::new(BTreeMap::new());

/// Asserts that two tensors agree up to `tolerance` times the largest magnitude in `expected`.
fn compare(what: &str, shape: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what} {shape}");
    let scale = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs())).max(1e-30);
    let mut largest = 0.0_f32;
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / scale;
        assert!(error <= tolerance, "{what} {shape}: element {i} is {found}, expected {expected}, scale {scale}");
        largest = largest.max(error);
    }
    let mut errors = ERRORS.lock().unwrap();
    let entry = errors.entry(what.to_owned()).or_default();
    *entry = (entry.0 + 1, entry.1.max(largest));
}

fn report(prefix: &str) {
    for (what, (shapes, error)) in ERRORS.lock().unwrap().iter().filter(|(what, _)| what.starts_with(prefix)) {
        println!("{what}: {shapes} shapes, largest error {error:.1e}");
    }
}

fn label(name: &str, precision: Precision) -> String {
    format!("{name}{}", precision.suffix())
}

// ---- the tests ------------------------------------------------------------------------------------------------------

#[test]
fn the_emulator_has_every_kernel() {
    if skipped_on_gpu("loading the code looks every kernel up") {
        return;
    }
    for precision in PRECISIONS {
        let names: Vec<String> = kernel::NAMES.iter().map(|name| label(name, precision)).collect();
        assert_eq!(emulator(precision).kernels(), names.join("\n"));
    }
}

#[test]
fn embedding() {
    let mut random = Random::new(11);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (sequences, t, c, v) in
            [(1, 1, 8, 13), (3, 7, 20, 13), (2, 33, 48, 257), (2, 65, 96, 1000), (1, 130, 768, 257)]
        {
            let (n, shape) = (sequences * t, format!("B {sequences} T {t} C {c} V {v}"));
            let tokens = random.words(n, v);
            let wte = emulator.rounded(random.values(v * c, 1.0));
            let wpe = emulator.rounded(random.values((t + 3) * c, 1.0));
            let gradient = emulator.rounded(random.values(n * c, 1.0));
            let [out] = emulator.twice(|| {
                let out = emulator.outputs(n * c);
                let (ids, wte, wpe) = (Buffer::from_words(&tokens), emulator.acts(&wte), emulator.acts(&wpe));
                let launch = kernel::embedding_forward(precision, n, t, c, 0, v);
                let rest = [Int(n), Int(t), Int(c), Int(0), Int(v)];
                emulator.launch("embedding_forward", launch, &[&out, &ids, &wte, &wpe], &rest);
                [out]
            });
            let mut expected = vec![0.0; n * c];
            reference::embedding_forward(&mut expected, &tokens, &wte, Some(&wpe), t, c);
            let (name, found) = (label("embedding_forward", precision), emulator.read(&out));
            compare(&name, &shape, &found, &expected, emulator.tolerance());

            let (mut dwte, mut dwpe) = (random.values(v * c, 1.0), random.values((t + 3) * c, 1.0));
            let (ids, starts, order) = index(&tokens);
            let u = ids.len();
            let [found_wte, found_wpe] = emulator.twice(|| {
                let (wte, wpe, gradient) =
                    (Buffer::from_floats(&dwte), Buffer::from_floats(&dwpe), emulator.acts(&gradient));
                let [ids, starts, order] = [&ids, &starts, &order].map(|words| Buffer::from_words(words));
                let launch = kernel::embedding_backward_token(precision, u, c, 0, v);
                let buffers = [&wte, &gradient, &ids, &starts, &order];
                emulator.launch("embedding_backward_token", launch, &buffers, &[Int(u), Int(c), Int(0), Int(v)]);
                let (launch, b) = (kernel::embedding_backward_position(precision, sequences, t, c), Int(sequences));
                emulator.launch("embedding_backward_position", launch, &[&wpe, &gradient], &[b, Int(t), Int(c)]);
                [wte, wpe]
            });
            reference::embedding_backward(&mut dwte, Some(&mut dwpe), &tokens, &gradient, t, c);
            compare(&label("embedding_backward_token", precision), &shape, &found_wte.floats(), &dwte, TOLERANCE);
            compare(&label("embedding_backward_position", precision), &shape, &found_wpe.floats(), &dwpe, TOLERANCE);
        }
    }
    report("embedding");
}

/// Distinct tokens, where the rows of each start, and the rows sorted by token.
fn index(tokens: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (row, &token) in tokens.iter().enumerate() {
        rows.entry(token).or_default().push(row as u32);
    }
    let mut starts = vec![0];
    rows.values().for_each(|rows| starts.push(starts[starts.len() - 1] + rows.len() as u32));
    (rows.keys().copied().collect(), starts, rows.into_values().flatten().collect())
}

#[test]
fn layernorm() {
    let mut random = Random::new(12);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (n, c) in [(1, 8), (7, 20), (33, 48), (65, 96), (130, 768), (5, 1), (3, 257), (1030, 33)] {
            let shape = format!("n {n} C {c}");
            let [input, gradient, residual] =
                [2.0, 1.0, 1.0].map(|range| emulator.rounded(random.values(n * c, range)));
            let [weight, bias] = [1.5, 1.0].map(|range| emulator.rounded(random.values(c, range)));
            let (mut out, mut statistics) = (vec![0.0; n * c], vec![0.0; 2 * n]);
            reference::layernorm_forward(&mut out, &mut statistics, &input, [&weight, &bias], 1e-5);
            let [found, numbers] = emulator.twice(|| {
                let (found, numbers) = (emulator.outputs(n * c), Buffer::output_floats(2 * n));
                let [input, weight, bias] = [&input, &weight, &bias].map(|values| emulator.acts(values));
                let buffers = [&found, &numbers, &input, &weight, &bias];
                let launch = kernel::layernorm_forward(precision, n, c);
                emulator.launch("layernorm_forward", launch, &buffers, &[Int(n), Int(c)]);
                [found, numbers]
            });
            let name = label("layernorm_forward", precision);
            compare(&name, &shape, &emulator.read(&found), &out, emulator.tolerance());
            compare(&format!("{name} statistics"), &shape, &numbers.floats(), &statistics, TOLERANCE);

            let operands =
                reference::LayerNorm { gradient: &gradient, input: &input, statistics: &statistics, weight: &weight };
            for residual in [None, Some(&residual[..])] {
                let mut sums = vec![0.0; 2 * c];
                reference::layernorm_backward(&mut out, &mut sums, residual, operands);
                layernorm_backward(emulator, &shape, operands, residual, &out, &sums);
            }
        }
    }
    report("layernorm");
}

fn layernorm_backward(
    emulator: &Emulator,
    shape: &str,
    operands: reference::LayerNorm,
    residual: Option<&[f32]>,
    out: &[f32],
    sums: &[f32],
) {
    let precision = emulator.precision;
    let (c, n) = (operands.weight.len(), operands.statistics.len() / 2);
    let groups = kernel::norm_groups(n);
    let before: Vec<f32> = Random::new(5).values(2 * c, 1.0);
    let run = |one_pass: bool| {
        let (found, partial) = (emulator.outputs(n * c), Buffer::output_floats(groups * 2 * c));
        let [gradient, input, weight] =
            [operands.gradient, operands.input, operands.weight].map(|values| emulator.acts(values));
        let statistics = Buffer::from_floats(operands.statistics);
        let residual = residual.map(|values| emulator.acts(values));
        let residual = residual.as_ref().map_or(Null, Argument::Buffer);
        let sizes = [Int(n), Int(c), Int(groups)];
        if one_pass {
            let launch = kernel::layernorm_backward(precision, n, c, groups);
            let rest = [&[residual], &sizes[..]].concat();
            let buffers = [&found, &partial, &gradient, &input, &statistics, &weight];
            emulator.launch("layernorm_backward", launch, &buffers, &rest);
        } else {
            let buffers = [&found, &gradient, &input, &statistics, &weight];
            let launch = kernel::layernorm_backward_input(precision, n, c);
            emulator.launch("layernorm_backward_input", launch, &buffers, &[&[residual], &sizes[..2]].concat());
            let buffers = [&partial, &gradient, &input, &statistics];
            let launch = kernel::layernorm_backward_sums(precision, n, c, groups);
            emulator.launch("layernorm_backward_sums", launch, &buffers, &sizes);
        }
        let (dw, db) = (Buffer::from_floats(&before[..c]), Buffer::from_floats(&before[c..]));
        let launch = kernel::layernorm_backward_weight(precision, groups, c);
        emulator.launch("layernorm_backward_weight", launch, &[&dw, &db, &partial], &[Int(groups), Int(c)]);
        [found, dw, db]
    };
    let mut weights = Vec::new();
    for (one_pass, name) in [(false, "layernorm_backward_input"), (true, "layernorm_backward")] {
        let [found, weight_gradient, bias_gradient] = emulator.twice(|| run(one_pass));
        compare(&label(name, precision), shape, &emulator.read(&found), out, emulator.tolerance());
        weights.push([weight_gradient.floats(), bias_gradient.floats()]);
    }
    assert_eq!(weights[0], weights[1], "{shape}: both sum the same rows in the same order");
    let expected: Vec<f32> = before.iter().zip(sums).map(|(a, b)| a + b).collect();
    let name = label("layernorm_backward_weight", precision);
    compare(&name, shape, &weights[1][0], &expected[..c], TOLERANCE);
    compare(&name, shape, &weights[1][1], &expected[c..], TOLERANCE);
}

const ATTENTION_TOKENS: [usize; 8] = [1, 7, 33, 64, 65, 96, 128, 130];

fn attention(precision: Precision, sizes: &[usize], path: &str) {
    let mut random = Random::new(13);
    let emulator = emulator(precision);
    for &size in sizes {
        for (i, tokens) in ATTENTION_TOKENS.into_iter().enumerate() {
            let heads = 1 + (i + size) % 3;
            let shape = Shape { sequences: 1 + i % 2, tokens, heads, groups: heads, size };
            assert_eq!(kernel::on_tensor_cores(precision, size), path == "tensor cores");
            attention_on(emulator, shape, path, (1.5, 1.0, i % 4 / 3), &mut random);
        }
    }
    report("attention");
}

/// Projections are drawn from -range..range; all tolerances are multiplied by `slack`. What the kernels read lies
/// `offset` elements behind an address that is a multiple of 16.
fn attention_on(
    emulator: &Emulator,
    dimensions: Shape,
    path: &str,
    (range, slack, offset): (f32, f32, usize),
    random: &mut Random,
) {
    let Shape { sequences: b, tokens: t, heads, size, .. } = dimensions;
    let (precision, c, shape) = (emulator.precision, heads * size, format!("{dimensions:?}"));
    let name = |name: &str| format!("{} on {path}", label(name, precision));
    let tolerance = emulator.tolerance_of_exponentials() * slack;
    let qkv = emulator.rounded(random.values(b * t * 3 * c, range));
    let gradient = emulator.rounded(random.values(b * t * c, 1.0));
    let (mut out, mut log_sums) = (vec![0.0; b * t * c], vec![0.0; b * heads * t]);
    reference::attention_forward(&mut out, &mut log_sums, &qkv, dimensions);
    let ints = [Int(b), Int(t), Int(0), Int(heads), Int(size)];
    let [found, sums] = emulator.twice(|| {
        let (found, sums) = (emulator.outputs(b * t * c), Buffer::output_floats(b * heads * t));
        let qkv = emulator.acts_at(&qkv, offset);
        let launch = kernel::attention_forward(precision, b, t, 0, heads, size);
        emulator.launch("attention_forward", launch, &[&found, &sums, &qkv], &ints);
        [found, sums]
    });
    compare(&name("attention_forward"), &shape, &emulator.read(&found), &out, tolerance);
    let log_sums_tolerance = emulator.float32_of_exponentials();
    compare(&name("attention_forward log sums"), &shape, &sums.floats(), &log_sums, log_sums_tolerance);

    let out = emulator.rounded(out);
    let mut expected = vec![0.0; b * t * 3 * c];
    let operands = reference::Attention { gradient: &gradient, qkv: &qkv, output: &out, log_sums: &log_sums };
    reference::attention_backward(&mut expected, operands, dimensions);
    let [found, means] = emulator.twice(|| {
        let (found, means) = (emulator.outputs(b * t * 3 * c), Buffer::output_floats(b * heads * t));
        let [gradient, qkv, out] = [&gradient, &qkv, &out].map(|values| emulator.acts_at(values, offset));
        let log_sums = Buffer::from_floats(&log_sums);
        let launch = kernel::attention_backward_mean(precision, b, t, heads, size);
        let whole = [Int(b), Int(t), Int(heads), Int(size)];
        emulator.launch("attention_backward_mean", launch, &[&means, &gradient, &out], &whole);
        for (name, launch) in [
            ("attention_backward_keys", kernel::attention_backward_keys(precision, b, t, 0, heads, size)),
            ("attention_backward_queries", kernel::attention_backward_queries(precision, b, t, 0, heads, size)),
        ] {
            emulator.launch(name, launch, &[&found, &gradient, &qkv, &log_sums, &means], &ints);
        }
        [found, means]
    });
    let mut expected_means = vec![0.0; b * heads * t];
    for (row, (out, gradient)) in out.chunks(size).zip(gradient.chunks(size)).enumerate() {
        let (sequence, token, head) = (row / heads / t, row / heads % t, row % heads);
        expected_means[(sequence * heads + head) * t + token] = out.iter().zip(gradient).map(|(a, b)| a * b).sum();
    }
    compare(&name("attention_backward_mean"), &shape, &means.floats(), &expected_means, TOLERANCE);
    let found = emulator.read(&found);
    for (third, kernel) in [(0, "queries"), (1, "keys"), (2, "keys (values)")] {
        let part = |all: &[f32]| all.chunks(c).skip(third).step_by(3).flatten().copied().collect::<Vec<f32>>();
        let name = name(&format!("attention_backward_{kernel}"));
        let (found, expected) = (part(&found), part(&expected));
        if t == 1 && third < 2 {
            // one key: the weight is 1 whatever the score, so that its gradient is the rounding error of a difference
            assert!(found.iter().all(|value| value.abs() < tolerance), "{name} {shape}");
        } else {
            compare(&name, &shape, &found, &expected, tolerance);
        }
    }
}

#[test]
fn attention_in_float32() {
    attention(Precision::F32, &[1, 5, 12, 16, 20, 32, 64, 100, 128], "CUDA cores");
}

#[test]
fn attention_in_bfloat16_on_tensor_cores() {
    attention(Precision::Bf16, &[16, 48, 64, 128], "tensor cores");
}

#[test]
fn attention_in_bfloat16_on_cuda_cores() {
    attention(Precision::Bf16, &[5, 100], "CUDA cores");
}

/// Scores of some hundreds: weights are 0 or 1, and the exponential of a score above the diagonal overflows. The
/// scores' rounding errors are as much larger, in both computations.
/// Queries from row 70 of 130 on: the same rows of a whole attention, and the gradients that they alone give.
#[test]
fn attention_of_the_queries_of_a_slice() {
    let (b, t, first, heads) = (2, 130, 70, 2);
    let mut random = Random::new(14);
    for (precision, size) in [(Precision::F32, 16), (Precision::F32, 64), (Precision::Bf16, 32), (Precision::Bf16, 20)]
    {
        let emulator = emulator(precision);
        let (shape, c) = (Shape { sequences: b, tokens: t, heads, groups: heads, size }, heads * size);
        let (ints, what) = ([Int(b), Int(t), Int(first), Int(heads), Int(size)], format!("{shape:?} from {first} on"));
        let name = |name: &str| format!("{} of a slice", label(name, precision));
        let tolerance = emulator.tolerance_of_exponentials();
        let before = |row: usize, width: usize| row / width % t < first;
        let mut qkv = emulator.rounded(random.values(b * t * 3 * c, 1.5));
        let mut gradient = emulator.rounded(random.values(b * t * c, 1.0));
        // what belongs to rows before the slice is 0: queries, gradients, log-sums, means
        let is_query = |i: usize| i % (3 * c) < c;
        qkv.iter_mut()
            .enumerate()
            .filter(|&(i, _)| before(i, 3 * c) && is_query(i))
            .for_each(|(_, value)| *value = 0.0);
        gradient.iter_mut().enumerate().filter(|&(i, _)| before(i, c)).for_each(|(_, value)| *value = 0.0);
        let (mut out, mut log_sums) = (vec![0.0; b * t * c], vec![0.0; b * heads * t]);
        reference::attention_forward(&mut out, &mut log_sums, &qkv, shape);
        let found = emulator.acts(&vec![0.0; b * t * c]);
        let sums = Buffer::from_floats(&vec![0.0; b * heads * t]);
        let input = emulator.acts(&qkv);
        let launch = kernel::attention_forward(precision, b, t, first, heads, size);
        emulator.launch("attention_forward", launch, &[&found, &sums, &input], &ints);
        let rows = |all: &[f32], width: usize| -> Vec<f32> {
            let own = all.iter().enumerate().filter(|&(i, _)| !before(i, width));
            own.map(|(_, &value)| value).collect()
        };
        let found = emulator.read(&found);
        compare(&name("attention_forward"), &what, &rows(&found, c), &rows(&out, c), tolerance);
        assert!(found[..c * 64].iter().all(|&value| value == 0.0), "tiles before the slice are not written");
        compare(
            &name("log sums"),
            &what,
            &rows(&sums.floats(), 1),
            &rows(&log_sums, 1),
            emulator.float32_of_exponentials(),
        );

        let out = emulator.rounded(out);
        let mut expected = vec![0.0; b * t * 3 * c];
        let operands = reference::Attention { gradient: &gradient, qkv: &qkv, output: &out, log_sums: &log_sums };
        reference::attention_backward(&mut expected, operands, shape);
        log_sums.iter_mut().enumerate().filter(|&(i, _)| before(i, 1)).for_each(|(_, value)| *value = 0.0);
        let (found, means) = (emulator.acts(&vec![0.0; b * t * 3 * c]), Buffer::output_floats(b * heads * t));
        let [gradient, qkv, out] = [&gradient, &qkv, &out].map(|values| emulator.acts(values));
        let log_sums = Buffer::from_floats(&log_sums);
        let launch = kernel::attention_backward_mean(precision, b, t, heads, size);
        let whole = [Int(b), Int(t), Int(heads), Int(size)];
        emulator.launch("attention_backward_mean", launch, &[&means, &gradient, &out], &whole);
        for (name, launch) in [
            ("attention_backward_keys", kernel::attention_backward_keys(precision, b, t, first, heads, size)),
            ("attention_backward_queries", kernel::attention_backward_queries(precision, b, t, first, heads, size)),
        ] {
            emulator.launch(name, launch, &[&found, &gradient, &qkv, &log_sums, &means], &ints);
        }
        let found = emulator.read(&found);
        for third in 0..3 {
            let part = |all: &[f32]| -> Vec<f32> { all.chunks(c).skip(third).step_by(3).flatten().copied().collect() };
            let (mut found, mut expected) = (part(&found), part(&expected));
            if third == 0 {
                (found, expected) = (rows(&found, c), rows(&expected, c));
            }
            compare(&name(&format!("attention_backward, third {third}")), &what, &found, &expected, tolerance);
        }
    }
    report("attention");
}

#[test]
fn attention_to_a_single_key() {
    for (precision, size, path) in [
        (Precision::F32, 64, "CUDA cores, large scores"),
        (Precision::Bf16, 64, "tensor cores, large scores"),
        (Precision::Bf16, 100, "CUDA cores, large scores"),
    ] {
        let shape = Shape { sequences: 1, tokens: 130, heads: 2, groups: 2, size };
        attention_on(emulator(precision), shape, path, (12.0, 3.0, 0), &mut Random::new(18));
    }
    report("attention");
}

/// Counts of elements, and offsets from an address that is a multiple of 16.
const COUNTS: [(usize, usize); 8] = [(1, 0), (3, 0), (8, 0), (1023, 0), (1023, 1), (2048, 0), (4101, 3), (20_000, 0)];

#[test]
fn elementwise() {
    let mut random = Random::new(14);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (count, offset) in COUNTS {
            let shape = format!("count {count}, offset {offset}");
            let a = emulator.rounded(random.values(count, 4.0));
            let b = emulator.rounded(random.values(count, 1.0));
            let (mut gelu, mut derivative) = (vec![0.0; count], a.clone());
            reference::gelu_forward(&mut gelu, &mut derivative);
            reference::gelu_backward_input(&mut derivative, &b);
            let mut sum = a.clone();
            reference::add(&mut sum, &b);
            let run = |name: &str, launch: Launch, inputs: &[&[f32]], expected: &[f32]| {
                let in_place = emulator.twice(|| {
                    let inputs: Vec<Buffer> = inputs.iter().map(|values| emulator.acts_at(values, offset)).collect();
                    let out = emulator.outputs(count);
                    let with = |out: &Buffer| {
                        let buffers: Vec<&Buffer> = [out].into_iter().chain(&inputs).collect();
                        emulator.launch(name, launch, &buffers, &[Count(count)]);
                    };
                    with(&out);
                    with(&inputs[0]);
                    [out, inputs.into_iter().next().unwrap()]
                });
                for found in &in_place {
                    let exponential = name.starts_with("gelu");
                    let tolerance =
                        if exponential { emulator.tolerance_of_exponentials() } else { emulator.tolerance() };
                    compare(&label(name, precision), &shape, &emulator.read(found), expected, tolerance);
                }
            };
            run("gelu_forward", kernel::gelu_forward(precision, count), &[&a], &gelu);
            run("gelu_backward_input", kernel::gelu_backward_input(precision, count), &[&b, &a], &derivative);
            run("residual_forward", kernel::residual_forward(precision, count), &[&a, &b], &sum);

            let [found, cast] = emulator.twice(|| {
                let [out, other] = [&a, &b].map(|values| Buffer::new(bytemuck::cast_slice(values), 4 * offset));
                let cast = emulator.outputs(count);
                emulator.launch("cast", kernel::cast(precision, count), &[&cast, &out], &[Count(count)]);
                emulator.launch("add", kernel::add(precision, count), &[&out, &other], &[Count(count)]);
                [out, cast]
            });
            assert_eq!(found.floats(), sum, "add {shape}");
            assert_eq!(emulator.read(&cast), a, "cast {shape}");
        }
        let ties: Vec<f32> =
            (0..4096).map(|i| f32::from_bits(0x3f80_0000 + i * 0x1000)).chain([f32::INFINITY]).collect();
        let [cast] = emulator.twice(|| {
            let (out, values) = (emulator.outputs(ties.len()), Buffer::from_floats(&ties));
            emulator.launch("cast", kernel::cast(precision, ties.len()), &[&out, &values], &[Count(ties.len())]);
            [out]
        });
        assert_eq!(emulator.read(&cast), emulator.rounded(ties), "cast rounds to nearest even");
    }
    report("gelu");
    report("residual");
}

#[test]
fn bias() {
    let mut random = Random::new(15);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (n, channels) in [(1, 8), (7, 20), (65, 48), (130, 33), (1030, 136), (513, 1)] {
            let gradient = emulator.rounded(random.values(n * channels, 1.0));
            let mut expected = random.values(channels, 1.0);
            let groups = kernel::bias_groups(n);
            let [found] = emulator.twice(|| {
                let (found, gradient) = (Buffer::from_floats(&expected), emulator.acts(&gradient));
                let partial = Buffer::output_floats(groups * channels);
                let launch = kernel::bias_backward_sums(precision, n, channels, groups);
                let sizes = [Int(n), Int(channels), Int(groups)];
                emulator.launch("bias_backward_sums", launch, &[&partial, &gradient], &sizes);
                let launch = kernel::bias_backward_weight(precision, groups, channels);
                emulator.launch("bias_backward_weight", launch, &[&found, &partial], &[Int(groups), Int(channels)]);
                [found]
            });
            reference::bias_backward_weight(&mut expected, &gradient);
            let name = label("bias_backward_weight", precision);
            compare(&name, &format!("n {n} OC {channels}"), &found.floats(), &expected, TOLERANCE);
        }
    }
    report("bias");
}

#[test]
fn classifier() {
    let mut random = Random::new(16);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (n, v, padded) in
            [(1, 13, 16), (7, 257, 384), (3, 1000, 1003), (33, 1000, 1024), (2, 5000, 5120), (1, 1, 1)]
        {
            let shape = format!("n {n} V {v} Vp {padded}");
            let (logits, targets) = (emulator.rounded(random.values(n * v, 8.0)), random.words(n, v));
            let weight = 0.25;
            let mut filled = vec![f32::NAN; n * padded];
            filled.chunks_mut(padded).zip(logits.chunks(v)).for_each(|(row, logits)| row[..v].copy_from_slice(logits));
            let [gradient, losses, mean] = emulator.twice(|| {
                let (logits, losses, mean) =
                    (emulator.acts(&filled), Buffer::output_floats(n), Buffer::output_floats(1));
                let targets = Buffer::from_words(&targets);
                let launch = kernel::classifier_forward(precision, n, v, padded);
                let rest = [Float(weight), Int(n), Int(v), Int(padded)];
                emulator.launch("classifier_forward", launch, &[&logits, &losses, &targets], &rest);
                emulator.launch("loss_mean", kernel::loss_mean(precision, n), &[&mean, &losses], &[Int(n)]);
                [logits, losses, mean]
            });
            let mut expected = logits;
            let rows = expected.chunks_mut(v).zip(&targets);
            let expected_losses: Vec<f32> =
                rows.map(|(row, target)| reference::classifier_forward(row, v, v, &[*target], weight) as f32).collect();
            let gradient = emulator.read(&gradient);
            assert!(gradient.chunks(padded).all(|row| row[v..].iter().all(|&value| value == 0.0)), "{shape}");
            let gradient: Vec<f32> = gradient.chunks(padded).flat_map(|row| &row[..v]).copied().collect();
            let name = label("classifier_forward", precision);
            let found_losses = losses.floats();
            if v > 1 {
                compare(&name, &shape, &gradient, &expected, emulator.tolerance_of_exponentials());
                let tolerance = emulator.float32_of_exponentials();
                compare(&format!("{name} losses"), &shape, &found_losses, &expected_losses, tolerance);
            }
            let exact = found_losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / n as f64;
            assert_eq!(mean.floats(), [exact as f32]);
        }
    }
    report("classifier");
}

/// Ranks with shares of the ids, one of them with padding alone: together they have the losses and gradients of one.
#[test]
fn classifier_shares() {
    let mut random = Random::new(18);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (n, v, share, ranks) in [(7, 257, 192, 2), (3, 1000, 500, 2), (300, 40, 24, 3)] {
            let shape = format!("n {n} V {v} in shares of {share}");
            let (logits, targets) = (emulator.rounded(random.values(n * v, 8.0)), random.words(n, v));
            let (weight, ids) = (0.25, Buffer::from_words(&targets));
            let held = |rank: usize| v.saturating_sub(rank * share).min(share);
            let of_rank = |rank: usize| {
                let mut filled = vec![f32::NAN; n * share];
                for (row, logits) in filled.chunks_mut(share).zip(logits.chunks(v)) {
                    row[..held(rank)].copy_from_slice(&logits[(rank * share).min(v)..][..held(rank)]);
                }
                filled
            };
            let sizes = |rank: usize| [Int(rank * share), Int(n), Int(held(rank)), Int(share)];
            let launch = kernel::classifier_share(precision, 0, n, v, share);
            let locals: Vec<[Vec<f32>; 2]> = (0..ranks)
                .map(|rank| {
                    let found = emulator.twice(|| {
                        let [largest, local] = [n, 3 * n].map(Buffer::output_floats);
                        let places = [&largest, &local, &emulator.acts(&of_rank(rank)), &ids];
                        emulator.launch("classifier_share", launch, &places, &sizes(rank));
                        [largest, local]
                    });
                    found.map(|buffer| buffer.floats())
                })
                .collect();
            let most = |i: usize| locals.iter().map(|[largest, _]| largest[i]).fold(f32::NEG_INFINITY, f32::max);
            let largest = Buffer::from_floats(&(0..n).map(most).collect::<Vec<_>>());
            let mut sums = vec![0.0; 2 * n];
            for (rank, [_, local]) in locals.iter().enumerate() {
                let [found] = emulator.twice(|| {
                    let (out, local) = (Buffer::output_floats(2 * n), Buffer::from_floats(local));
                    let launch = kernel::classifier_rescale(precision, 0, n, v);
                    emulator.launch("classifier_rescale", launch, &[&out, &local, &largest, &ids], &sizes(rank)[..3]);
                    [out]
                });
                sums.iter_mut().zip(found.floats()).for_each(|(sum, part)| *sum += part);
            }
            let (sums, mut gradient) = (Buffer::from_floats(&sums), vec![0.0; n * v]);
            let mut losses = Vec::new();
            for rank in 0..ranks {
                let [logits, found] = emulator.twice(|| {
                    let (logits, losses) = (emulator.acts(&of_rank(rank)), Buffer::output_floats(n));
                    let [first, rows, ids_here, padded] = sizes(rank);
                    let launch = kernel::classifier_gradient(precision, 0, n, v, share);
                    let places = [&logits, &losses, &sums, &largest, &ids];
                    emulator.launch(
                        "classifier_gradient",
                        launch,
                        &places,
                        &[Float(weight), first, rows, ids_here, padded],
                    );
                    [logits, losses]
                });
                for (row, all) in emulator.read(&logits).chunks(share).zip(gradient.chunks_mut(v)) {
                    all[(rank * share).min(v)..][..held(rank)].copy_from_slice(&row[..held(rank)]);
                    assert!(row[held(rank)..].iter().all(|&value| value == 0.0), "{shape}");
                }
                losses.push(found.floats());
            }
            assert!(losses.windows(2).all(|pair| pair[0] == pair[1]), "{shape}: ranks have other losses");
            let mut expected = logits;
            let rows = expected.chunks_mut(v).zip(&targets);
            let expected_losses: Vec<f32> =
                rows.map(|(row, target)| reference::classifier_forward(row, v, v, &[*target], weight) as f32).collect();
            let name = label("classifier_gradient", precision);
            compare(&name, &shape, &gradient, &expected, emulator.tolerance_of_exponentials());
            let tolerance = emulator.float32_of_exponentials();
            compare(&format!("{name} losses"), &shape, &losses[0], &expected_losses, tolerance);
        }
    }
    report("classifier");
}

/// An embedding in two shares is the sum of both, and each share's gradient has its own rows.
#[test]
fn embedding_shares() {
    let mut random = Random::new(19);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        let (n, t, c, v, first) = (21, 7, 40, 30, 13);
        let (tokens, wte) = (random.words(n, v), emulator.rounded(random.values(v * c, 1.0)));
        let (ids, shares) = (Buffer::from_words(&tokens), [(0, first), (first, v - first)]);
        let mut sum = vec![0.0; n * c];
        for (start, rows) in shares {
            let [out] = emulator.twice(|| {
                let (out, table) = (emulator.outputs(n * c), emulator.acts(&wte[start * c..][..rows * c]));
                let arguments = [Argument::Buffer(&out), Argument::Buffer(&ids), Argument::Buffer(&table), Null];
                let rest = [Int(n), Int(t), Int(c), Int(start), Int(rows)];
                let launch = kernel::embedding_forward(precision, n, t, c, start, rows);
                emulator.launch("embedding_forward", launch, &[], &[&arguments[..], &rest].concat());
                [out]
            });
            sum.iter_mut().zip(emulator.read(&out)).for_each(|(sum, part)| *sum += part);
        }
        let expected: Vec<f32> = tokens.iter().flat_map(|&token| &wte[token as usize * c..][..c]).copied().collect();
        assert_eq!(sum, expected);
        let gradient = emulator.rounded(random.values(n * c, 1.0));
        let (distinct, starts, order) = index(&tokens);
        let mut found = Vec::new();
        for (start, rows) in shares {
            let [table] = emulator.twice(|| {
                let (table, from) = (Buffer::from_floats(&vec![0.0; rows * c]), emulator.acts(&gradient));
                let [ids, starts, order] = [&distinct, &starts, &order].map(|words| Buffer::from_words(words));
                let launch = kernel::embedding_backward_token(precision, distinct.len(), c, start, rows);
                let rest = [Int(distinct.len()), Int(c), Int(start), Int(rows)];
                emulator.launch("embedding_backward_token", launch, &[&table, &from, &ids, &starts, &order], &rest);
                [table]
            });
            found.extend(table.floats());
        }
        let mut expected = vec![0.0; v * c];
        reference::embedding_backward(&mut expected, None, &tokens, &gradient, t, c);
        compare("embedding shares", "", &found, &expected, TOLERANCE);
    }
}

/// Copies of two heads of keys and of values among four ranks add up to each head's gradient.
#[test]
fn heads_that_several_ranks_hold_are_added_up() {
    let mut random = Random::new(20);
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        let (n, size, pieces, blocks, start) = (5, 6, 2, 2, 12);
        let stride = start + blocks * size;
        let fused: Vec<Vec<f32>> = (0..4).map(|_| emulator.rounded(random.values(n * stride, 1.0))).collect();
        let rest = |rank: usize| [n, stride, start, blocks, size, pieces, rank / 2].map(Int);
        let mut sums = vec![0.0; n * blocks * pieces * size];
        for (rank, fused) in fused.iter().enumerate() {
            let [wide] = emulator.twice(|| {
                let (wide, fused) = (emulator.outputs(sums.len()), emulator.acts(fused));
                let launch = kernel::heads_spread(precision, n, stride, start, blocks, size, pieces, rank / 2);
                emulator.launch("heads_spread", launch, &[&wide, &fused], &rest(rank));
                [wide]
            });
            sums.iter_mut().zip(emulator.read(&wide)).for_each(|(sum, part)| *sum += part);
        }
        let sums = emulator.rounded(sums);
        for (rank, own) in fused.iter().enumerate() {
            let [found] = emulator.twice(|| {
                let (fused, wide) = (emulator.acts(own), emulator.acts(&sums));
                let launch = kernel::heads_collect(precision, n, stride, start, blocks, size, pieces, rank / 2);
                emulator.launch("heads_collect", launch, &[&fused, &wide], &rest(rank));
                [fused]
            });
            let twin = &fused[rank ^ 1];
            let expected = own.iter().zip(twin).enumerate();
            let expected =
                expected.map(|(i, (own, twin))| if i % stride < start { *own } else { own + twin }).collect();
            assert_eq!(emulator.read(&found), emulator.rounded(expected), "rank {rank}");
        }
    }
}

#[test]
fn the_larger_of_two() {
    let mut random = Random::new(21);
    for precision in PRECISIONS {
        for count in [1, 8, 5000] {
            let [mut one, other] = [(); 2].map(|()| random.values(count, 1.0));
            one[0] = f32::NEG_INFINITY;
            let [out] = emulator(precision).twice(|| {
                let (out, other) = (Buffer::from_floats(&one), Buffer::from_floats(&other));
                emulator(precision).launch(
                    "maximum",
                    kernel::maximum(precision, count),
                    &[&out, &other],
                    &[Count(count)],
                );
                [out]
            });
            assert_eq!(out.floats(), one.iter().zip(&other).map(|(a, b)| a.max(*b)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn optimizer() {
    let mut random = Random::new(17);
    let hyper = AdamW { learning_rate: 1e-3, weight_decay: 0.1, ..AdamW::default() };
    for precision in PRECISIONS {
        let emulator = emulator(precision);
        for (i, (count, offset)) in COUNTS.into_iter().enumerate() {
            let (tied, scale, step) = (random.values(count, 1.0), 0.3, 1 + 7 * i as u32);
            let [values, gradients, first_moments] = [1.0, 1.0, 0.1].map(|range| random.values(count, range));
            let second_moments = random.values(count, 0.1).into_iter().map(f32::abs).collect();
            let mut expected = reference::Parameters { values, gradients, first_moments, second_moments };
            for tied in [None, Some(&tied[..])] {
                norm(emulator, &expected, tied);
                let before = expected.clone();
                expected.adamw_update(tied, step, &hyper, if tied.is_some() { scale } else { 1.0 });
                let [value, copy, first, second] =
                    emulator.twice(|| adamw(emulator, &before, tied.map(|tied| (tied, scale)), step, &hyper, offset));
                // the same roundings in the same order: equal bits
                assert_eq!(value.floats(), expected.values, "count {count}");
                assert_eq!(first.floats(), expected.first_moments, "count {count}");
                assert_eq!(second.floats(), expected.second_moments, "count {count}");
                assert_eq!(emulator.read(&copy), emulator.rounded(expected.values.clone()), "count {count}");
            }
        }
    }
}

fn adamw(
    emulator: &Emulator,
    before: &reference::Parameters,
    tied: Option<(&[f32], f32)>,
    step: u32,
    hyper: &AdamW,
    offset: usize,
) -> [Buffer; 4] {
    let count = before.values.len();
    let floats = |values: &[f32]| Buffer::new(bytemuck::cast_slice(values), 4 * offset);
    let [value, gradient, first, second] =
        [&before.values, &before.gradients, &before.first_moments, &before.second_moments].map(|values| floats(values));
    let tied = tied.map(|(tied, scale)| (floats(tied), Buffer::from_floats(&[scale])));
    let copy = emulator.outputs(count);
    let correction = |beta: f32| Float((1.0 / (1.0 - f64::from(beta).powf(f64::from(step)))) as f32);
    let rest = [
        tied.as_ref().map_or(Null, |(tied, _)| Argument::Buffer(tied)),
        Argument::Buffer(&first),
        Argument::Buffer(&second),
        Count(count),
        tied.as_ref().map_or(Null, |(_, scale)| Argument::Buffer(scale)),
        Float(hyper.learning_rate),
        Float(hyper.beta1),
        Float(hyper.beta2),
        Float(hyper.epsilon),
        Float(hyper.weight_decay),
        correction(hyper.beta1),
        correction(hyper.beta2),
    ];
    let launch = kernel::adamw_update(emulator.precision, count);
    emulator.launch("adamw_update", launch, &[&value, &copy, &gradient], &rest);
    [value, copy, first, second]
}

fn norm(emulator: &Emulator, parameters: &reference::Parameters, tied: Option<&[f32]>) {
    let (precision, count) = (emulator.precision, parameters.gradients.len());
    let expected = parameters.squared_norm(tied);
    for groups in [1, 3, 64] {
        let [sum] = emulator.twice(|| {
            let (partial, sum) = (Buffer::new(&vec![0xff; 8 * groups], 0), Buffer::new(&[0xff; 8], 0));
            let gradient = Buffer::from_floats(&parameters.gradients);
            let tied = tied.map(Buffer::from_floats);
            let other = tied.as_ref().map_or(Null, Argument::Buffer);
            let (launch, rest) = (kernel::norm_partial(precision, count, groups), [other, Count(count), Int(groups)]);
            emulator.launch("norm_partial", launch, &[&partial, &gradient], &rest);
            emulator.launch("norm_sum", kernel::norm_sum(precision, groups), &[&sum, &partial], &[Int(groups)]);
            [sum]
        });
        let found = sum.doubles()[0];
        assert!((found - expected).abs() <= 1e-12 * expected, "count {count}, G {groups}: {found}, not {expected}");
    }
}

#[test]
fn threads_of_the_host_launch_at_once() {
    let emulator = emulator(Precision::F32);
    let dimensions = Shape { sequences: 2, tokens: 70, heads: 2, groups: 2, size: 16 };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                for _ in 0..3 {
                    attention_on(emulator, dimensions, "several threads", (1.5, 1.0, 0), &mut Random::new(seed));
                }
            });
        }
    });
}

/// Kernels that break the rules, each in one way.
const FAULTS: &str = r#"
KERNEL(end_before_barrier, 64, 1)(float* out) {
    if (threadIdx.x == 40) { return; }
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}
KERNEL(missing_lane, 64, 1)(float* out) {
    if (threadIdx.x != 33) { out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1); }
}
KERNEL(two_barriers, 64, 1)(float* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1.0f;
}
KERNEL(beyond_shared, 64, 1)(float* out) {
    DYNAMIC_SHARED(shared);
    ((float*)shared)[4] = out[0];
}
KERNEL(misaligned, 64, 1)(float* out) {
    float values[8];
    load_vector(values, out + 1);
}
KERNEL(missing_barrier, 64, 1)(float* out) {
    SHARED(float, values, 64);
    values[threadIdx.x] = 1.0f;
    out[threadIdx.x] = values[63 - threadIdx.x];
}
#define EXTRA_ENTRIES ENTRY(end_before_barrier), ENTRY(missing_lane), ENTRY(two_barriers), ENTRY(beyond_shared), \
    ENTRY(misaligned), ENTRY(missing_barrier),
extern "C" int emulator_launch(const char*, unsigned, unsigned, unsigned, unsigned, unsigned, void**);
int main(int, char** arguments) {
    alignas(16) static float out[64];
    float* pointer = out;
    void* all[] = {&pointer};
    const int status = emulator_launch(arguments[1], 1, 1, 1, 64, 16, all);
    for (float value : out) {
        if (value != 1.0f) { std::fprintf(stderr, "a thread read what was not yet written\n"); return 3; }
    }
    return status;
}
"#;

#[test]
fn the_emulator_finds_what_a_device_would_not_forgive() {
    if skipped_on_gpu("it concerns the emulator") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("faults.h"), folder.path().join("faults"));
    std::fs::write(&file, FAULTS).unwrap();
    let define = format!("-DEXTRA_KERNELS=\"{}\"", file.to_str().unwrap());
    compile(&[&define, source().to_str().unwrap()], &program);
    for (name, expected) in [
        ("end_before_barrier", "block (0, 0, 0), thread 40: has ended while others of its block wait at a barrier"),
        ("missing_lane", "thread 32: waits in a shuffle, vote or warp barrier for a lane that never comes"),
        ("two_barriers", "thread 32: waits at another barrier than the rest of the block"),
        ("beyond_shared", "written beyond its dynamic shared memory"),
        ("misaligned", "an address that is no multiple of 16"),
        ("missing_barrier", "a thread read what was not yet written"),
    ] {
        let run = Command::new(&program).arg(format!("{name}_f32")).output().unwrap();
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(!run.status.success() && message.contains(expected), "{name}: {message}");
    }
}

/// No launch needs more dynamic shared memory than this.
const MAX_SHARED_BYTES: u32 = 160 * 1024;

#[test]
fn grids_and_shared_memory_stay_within_limits() {
    for precision in PRECISIONS {
        for size in 1..=kernel::MAX_HEAD_SIZE {
            for launch in
                [kernel::attention_forward, kernel::attention_backward_keys, kernel::attention_backward_queries]
            {
                let launch = launch(precision, 3, 1000, 0, 5, size);
                assert_eq!(launch.grid, [3 * 16 * 5, 1, 1]);
                assert!(launch.shared_bytes <= MAX_SHARED_BYTES, "{precision:?} {size}: {}", launch.shared_bytes);
            }
        }
        for launch in [
            kernel::attention_forward_wide,
            kernel::attention_backward_keys_wide,
            kernel::attention_backward_queries_wide,
        ] {
            let launch = launch(precision, 3, 1000, 5, 64);
            assert!(launch.grid == [3 * 8 * 5, 1, 1] && launch.shared_bytes <= MAX_SHARED_BYTES, "{launch:?}");
        }
        for launch in [
            kernel::add(precision, usize::MAX),
            kernel::attention_forward(precision, usize::MAX, usize::MAX, 0, usize::MAX, 64),
            kernel::embedding_backward_token(precision, usize::MAX, usize::MAX, 0, 1),
            kernel::layernorm_backward_sums(precision, 0, usize::MAX, usize::MAX),
        ] {
            assert!(launch.grid[0] < 1 << 31 && launch.grid[1] < 1 << 16);
        }
        assert_eq!(kernel::add(precision, 0).grid, [1, 1, 1]);
    }
}

#[test]
fn the_text_includes_nothing_and_holds_every_kernel() {
    for precision in PRECISIONS {
        let text = kernel::text(precision, None);
        assert!(!text.contains("#include"));
        assert_eq!(text.contains("#define PIPESIM_BF16"), precision == Precision::Bf16);
        for name in kernel::NAMES {
            assert_eq!(text.matches(&format!("KERNEL({name}, ")).count(), 1, "{name}");
        }
        assert_eq!(text.matches("KERNEL(").count(), kernel::NAMES.len() + 1, "one definition of the macro");
    }
}
