//! The kernels through the real NVRTC, for the architectures that pipesim runs on: their text compiles without any
//! include path, and the binary holds every kernel, which takes no more registers, stack and shared memory than it did. No GPU and no driver is needed, only the library: `tests/wheels
//! DIR` fetches it, the environment variable PIPESIM_CUDA_WHEELS names DIR.

use crate::elf::{Elf, number};
use crate::emulator_driver::{Compiler, compile};
use crate::machine_code::MachineCode;
use crate::support::{again, wheels};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};
use pipesim_gpu::kernel::{self, Precision};

/// The file in `folder` whose name starts with `name`, but for the second copy of the library that the wheel carries.
fn file(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().find(|file| file.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name)))
}

/// The library, or nothing where tests may do without.
fn nvrtc() -> Option<Compiler> {
    let wheels = wheels()?;
    let folders = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "."].map(|folder| wheels.join(folder));
    let folder = folders.into_iter().find(|folder| file(folder, "libnvrtc.so").is_some());
    let folder = folder.expect("libnvrtc in nvidia/cu13/lib or nvidia/cuda_nvrtc/lib of $PIPESIM_CUDA_WHEELS");
    // libnvrtc opens its builtins by name and does not look beside itself, so they are opened first, and stay open
    let builtins = file(&folder, "libnvrtc-builtins.so").expect("libnvrtc-builtins.so lies beside libnvrtc.so");
    // SAFETY: NVIDIA's libraries; loading them runs only their own initialisation.
    unsafe {
        std::mem::forget(UnixLibrary::open(Some(builtins), RTLD_NOW | RTLD_GLOBAL).unwrap());
        Some(Compiler::of(Library::new(file(&folder, "libnvrtc.so")?).unwrap()))
    }
}

/// Runs `body` with the library in a process of its own: the other tests of this one load the kernels for the CPU, and
/// stand-ins of the library's name.
fn alone(test: &str, body: impl FnOnce(&Compiler)) {
    if std::env::var_os("PIPESIM_TEST_ALONE").is_none() {
        let ended = again(test).env("PIPESIM_TEST_ALONE", "1").output().unwrap();
        assert!(
            ended.status.success(),
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    } else if let Some(compiler) = nvrtc() {
        body(&compiler);
    }
}

/// The binary for `architecture`, or what the compiler said.
fn binary(compiler: &Compiler, text: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let option = CString::new(format!("--gpu-architecture={architecture}")).unwrap();
    compile(compiler, text, &[], &[&option, c"--std=c++17"]).map_err(|(_, log)| log)
}

/// What a kernel takes of a multiprocessor, by the binary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Resources {
    /// Of each thread.
    registers: usize,
    /// Bytes of local memory of each thread: what is spilled, and arrays that are no registers.
    stack_bytes: usize,
    /// Of each block, beside what the launch asks for.
    shared_bytes: usize,
}

/// Attributes in `.nv.info`, of which each is followed by a symbol's number and a value.
const FRAME_SIZE: usize = 0x11;
const REGISTER_COUNT: usize = 0x2f;

/// What every kernel of a binary takes. `.nv.info` is a list: a byte for the form, one for the attribute, then two that are its
/// value, or in form 4 the size of what follows.
fn resources(binary: &[u8]) -> BTreeMap<String, Resources> {
    let elf = Elf::of(binary);
    let symbols = elf.symbols(2);
    let mut all: BTreeMap<String, Resources> = BTreeMap::new();
    let info = elf.section(".nv.info").expect("a binary says what its kernels take").bytes;
    let mut at = 0;
    while at < info.len() {
        let (form, attribute, size) = (info[at], usize::from(info[at + 1]), number(info, at + 2, 2));
        at += 4;
        if form != 4 {
            continue;
        }
        if [FRAME_SIZE, REGISTER_COUNT].contains(&attribute) {
            let (symbol, value) = (symbols[&number(info, at, 4)].0.to_string(), number(info, at + 4, 4));
            let of_kernel = all.entry(symbol).or_default();
            *(if attribute == FRAME_SIZE { &mut of_kernel.stack_bytes } else { &mut of_kernel.registers }) = value;
        }
        at += size;
    }
    for (name, of_kernel) in &mut all {
        of_kernel.shared_bytes = elf.section(&format!(".nv.shared.{name}")).map_or(0, |section| section.size);
    }
    all
}

/// Elements of a large tensor: the output of GPT-2's wide product for 32 sequences.
const COUNT: usize = 32 * 1024 * 3072;

/// A kernel: a launch of it in a GPT-2 of 768 channels (the attention kernels: with their largest heads), the registers of a thread
/// that it may take in float32 for sm_80 and sm_90, then in bfloat16, and its own shared memory. Registers are dealt out in eights.
type Ceiling = (&'static str, fn(Precision) -> kernel::Launch, [usize; 4], usize);

/// What they took when this was written. A kernel that takes more has fewer warps at work at a time: raise a number only with a
/// measurement that says why, or with more reads of [`READS_AT_ONCE`].
const CEILINGS: [Ceiling; 47] = [
    ("adamw_update", |p| kernel::adamw_update(p, COUNT), [64, 80, 64, 80], 0),
    ("add", |p| kernel::add(p, COUNT), [40, 40, 40, 40], 0),
    (
        "attention_backward_keys",
        |p| kernel::attention_backward_keys(p, 32, 1024, 0, 16, 128),
        [256, 256, 256, 256],
        1024,
    ),
    (
        "attention_backward_keys_stored",
        |p| kernel::attention_backward_keys_stored(p, 32, 1024, 12, 64),
        [8, 8, 256, 256],
        1024,
    ),
    (
        "attention_backward_keys_wide",
        |p| kernel::attention_backward_keys_wide(p, 32, 1024, 12, 64),
        [8, 8, 256, 256],
        1024,
    ),
    ("attention_backward_mean", |p| kernel::attention_backward_mean(p, 32, 1024, 12, 64), [48, 64, 48, 56], 0),
    (
        "attention_backward_queries",
        |p| kernel::attention_backward_queries(p, 32, 1024, 0, 16, 128),
        [256, 256, 224, 256],
        0,
    ),
    (
        "attention_backward_queries_stored",
        |p| kernel::attention_backward_queries_stored(p, 32, 1024, 12, 64),
        [8, 8, 104, 104],
        0,
    ),
    (
        "attention_backward_queries_wide",
        |p| kernel::attention_backward_queries_wide(p, 32, 1024, 12, 64),
        [8, 8, 256, 256],
        0,
    ),
    ("attention_forward", |p| kernel::attention_forward(p, 32, 1024, 0, 16, 128), [168, 168, 168, 168], 0),
    ("attention_forward_wide", |p| kernel::attention_forward_wide(p, 32, 1024, 12, 64), [8, 8, 240, 248], 0),
    ("bias_backward_sums", |p| kernel::bias_backward_sums(p, 32768, 3072, 64), [64; 4], 8192),
    ("bias_backward_weight", |p| kernel::bias_backward_weight(p, 64, 3072), [24; 4], 1024),
    ("cast", |p| kernel::cast(p, COUNT), [32, 40, 24, 32], 0),
    ("classifier_forward", |p| kernel::classifier_forward(p, 32768, 50257, 50304), [56; 4], 256),
    ("classifier_gradient", |p| kernel::classifier_gradient(p, 0, 32768, 25128, 25152), [56, 64, 56, 64], 0),
    ("classifier_rescale", |p| kernel::classifier_rescale(p, 0, 32768, 25128), [32, 32, 32, 32], 0),
    ("classifier_share", |p| kernel::classifier_share(p, 0, 32768, 25128, 25152), [48; 4], 256),
    ("embedding_backward_position", |p| kernel::embedding_backward_position(p, 32, 1024, 768), [32, 32, 32, 32], 0),
    ("embedding_backward_token", |p| kernel::embedding_backward_token(p, 1024, 768, 0, 50304), [32, 32, 32, 32], 0),
    ("embedding_forward", |p| kernel::embedding_forward(p, 32768, 1024, 768, 0, 50304), [64, 64, 56, 56], 0),
    ("gelu_backward_input", |p| kernel::gelu_backward_input(p, COUNT), [40, 48, 40, 48], 0),
    ("gelu_forward", |p| kernel::gelu_forward(p, COUNT), [32, 40, 32, 32], 0),
    ("heads_collect", |p| kernel::heads_collect(p, 32768, 1536, 1024, 2, 128, 2, 1), [64, 64, 64, 64], 0),
    ("heads_expand", |p| kernel::heads_expand(p, 32768, 32, 8, 128), [48; 4], 0),
    ("heads_reduce", |p| kernel::heads_reduce(p, 32768, 32, 8, 128), [48; 4], 0),
    ("heads_rotate", |p| kernel::heads_rotate(p, 32768, 1024, 40, 64, 6144, 0), [48; 4], 0),
    ("heads_spread", |p| kernel::heads_spread(p, 32768, 1536, 1024, 2, 128, 2, 1), [64, 64, 64, 64], 0),
    ("layernorm_backward", |p| kernel::layernorm_backward(p, 32768, 768, 512), [128; 4], 512),
    ("layernorm_backward_input", |p| kernel::layernorm_backward_input(p, 32768, 768), [56, 64, 56, 64], 0),
    ("layernorm_backward_sums", |p| kernel::layernorm_backward_sums(p, 32768, 768, 512), [40, 40, 40, 40], 0),
    ("layernorm_backward_weight", |p| kernel::layernorm_backward_weight(p, 512, 768), [40; 4], 2048),
    ("layernorm_forward", |p| kernel::layernorm_forward(p, 32768, 768), [56, 64, 56, 56], 0),
    ("loss_mean", |p| kernel::loss_mean(p, 32768), [24, 24, 24, 24], 256),
    ("maximum", |p| kernel::maximum(p, COUNT), [40, 40, 40, 40], 0),
    ("norm_partial", |p| kernel::norm_partial(p, COUNT, 1024), [32, 40, 32, 40], 256),
    ("norm_sum", |p| kernel::norm_sum(p, 1024), [24, 24, 24, 24], 256),
    ("residual_forward", |p| kernel::residual_forward(p, COUNT), [48, 48, 40, 48], 0),
    ("rmsnorm_backward_input", |p| kernel::rmsnorm_backward_input(p, 32768, 768), [64; 4], 0),
    ("rmsnorm_backward_sums", |p| kernel::rmsnorm_backward_sums(p, 32768, 768, 512), [48; 4], 0),
    ("rmsnorm_backward_weight", |p| kernel::rmsnorm_backward_weight(p, 512, 768), [24; 4], 1024),
    ("rmsnorm_forward", |p| kernel::rmsnorm_forward(p, 32768, 768), [56; 4], 0),
    ("slice_gather", |p| kernel::slice_gather(p, 32768, 1024, 4096, 1024, 6144, 1, 32, 8, 128), [64; 4], 0),
    ("slice_reduce", |p| kernel::slice_reduce(p, 32768, 1024, 4096, 1024, 1, 32, 8, 128), [64; 4], 0),
    ("strided_copy", |p| kernel::strided_copy(p, COUNT, 1024, 1024, 3072), [64; 4], 0),
    ("swiglu_backward", |p| kernel::swiglu_backward(p, 32768, 2048), [64; 4], 0),
    ("swiglu_forward", |p| kernel::swiglu_forward(p, 32768, 2048), [56; 4], 0),
];

/// Reads of 16 bytes of a thread that are under way together, in bfloat16 for sm_90: fewer do not fill an H200's memory bandwidth.
const READS_AT_ONCE: [(&str, usize); 14] = [
    ("adamw_update", 10),
    ("attention_backward_mean", 2),
    ("bias_backward_sums", 4),
    ("classifier_forward", 2),
    ("classifier_gradient", 2),
    ("classifier_share", 2),
    ("embedding_forward", 2),
    ("gelu_backward_input", 2),
    ("layernorm_backward", 6),
    ("layernorm_forward", 4),
    ("residual_forward", 2),
    ("rmsnorm_forward", 4),
    ("swiglu_backward", 3),
    ("swiglu_forward", 2),
];

/// The inner loop of attention kernels for sm_90 and heads of 64 channels only: products of tensor cores, at most so many reads of
/// matrices, and at most so many instructions.
const LOOPS: [(&str, [usize; 3]); 8] = [
    ("attention_forward", [64, 36, 640]),
    ("attention_forward_wide", [128, 40, 960]),
    ("attention_backward_keys", [128, 72, 896]),
    ("attention_backward_keys_stored", [128, 48, 528]),
    ("attention_backward_keys_wide", [128, 48, 512]),
    ("attention_backward_queries", [96, 56, 672]),
    ("attention_backward_queries_stored", [32, 20, 248]),
    ("attention_backward_queries_wide", [192, 64, 1008]),
];

/// Bytes of local memory of a thread; all other kernels have none.
const STACKS: [(&str, &str, usize); 2] =
    [("attention_backward_keys_stored_bf16", "sm_80", 8), ("attention_backward_queries_wide_bf16", "sm_80", 16)];

/// Registers for sm_90 in bfloat16 of kernels for heads of 64 channels only: with 128 threads a block, four blocks of the first and
/// three of the others fit a multiprocessor, where of those for all sizes three and two do.
const NARROW: [(&str, usize); 3] =
    [("attention_forward", 128), ("attention_backward_keys", 168), ("attention_backward_queries", 168)];

/// Registers of a block, and bytes of shared memory that it can ask for (compute capability 8.0; 9.0 has 227 KiB).
const MOST_REGISTERS: usize = 65_536;
const MOST_SHARED_BYTES: [(&str, usize); 2] = [("sm_80", 163 << 10), ("sm_90", 227 << 10)];
/// What the system keeps of each block's shared memory on sm_90; the binary counts it, the limit does not.
const SYSTEMS_SHARED_BYTES: usize = 1024;

/// A kernel's resources within its ceilings, and a launch of it within the device's limits.
fn check_resources(binary: &[u8], precision: Precision, architecture: &str, head_size: Option<usize>) {
    let all = resources(binary);
    let (most, newer) =
        (MOST_SHARED_BYTES.iter().find(|(name, _)| *name == architecture).unwrap().1, architecture == "sm_90");
    let column = 2 * usize::from(precision == Precision::Bf16) + usize::from(newer);
    assert_eq!(CEILINGS.map(|(name, ..)| name)[..], *kernel::NAMES);
    let mut over = Vec::new();
    let is_narrow = precision == Precision::Bf16 && head_size == Some(64);
    for (name, launch, mut registers, shared_bytes) in CEILINGS {
        if let Some((_, fewer)) = NARROW.iter().find(|row| is_narrow && row.0 == name) {
            registers = [*fewer; 4];
        }
        let name = format!("{name}{}", precision.suffix());
        let mut found = all[&name];
        found.shared_bytes -= if newer { SYSTEMS_SHARED_BYTES } else { 0 };
        let stack_bytes =
            STACKS.iter().find(|(kernel, on, _)| *kernel == name && *on == architecture).map_or(0, |row| row.2);
        let ceiling = Resources { registers: registers[column], stack_bytes, shared_bytes };
        let within = |of: fn(&Resources) -> usize| of(&found) <= of(&ceiling);
        if !(within(|r| r.registers) && within(|r| r.stack_bytes) && within(|r| r.shared_bytes)) {
            over.push(format!("{name} for {architecture}: {found:?}, expected at most {ceiling:?}"));
        }
        let launch = launch(precision);
        let (threads, shared_bytes) = (launch.block.next_multiple_of(32) as usize, launch.shared_bytes as usize);
        if found.registers.next_multiple_of(8) * threads > MOST_REGISTERS || found.shared_bytes + shared_bytes > most {
            over.push(format!("{name} cannot be launched on {architecture}: {found:?} with {launch:?}"));
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn every_kernel_compiles_for_every_architecture_within_its_ceilings() {
    alone("nvrtc::every_kernel_compiles_for_every_architecture_within_its_ceilings", |compiler| {
        for (precision, architecture, head_size) in [
            (Precision::F32, "sm_80", Some(64)),
            (Precision::F32, "sm_90", None),
            (Precision::Bf16, "sm_80", None),
            (Precision::Bf16, "sm_90", Some(64)),
            (Precision::Bf16, "sm_90", Some(128)),
        ] {
            let binary = binary(compiler, &kernel::text(precision, head_size), architecture);
            let binary = binary.unwrap_or_else(|log| panic!("{precision:?} for {architecture}:\n{log}"));
            for name in kernel::NAMES {
                // each kernel's code is a section of the binary, which is an ELF file
                let section = format!("\0.text.{name}{}\0", precision.suffix());
                let there = contains(&binary, section.as_bytes());
                assert!(there, "{name} is missing from {precision:?} for {architecture}");
            }
            check_resources(&binary, precision, architecture, head_size);
        }
    });
}

#[test]
fn machine_code_reads_ahead_and_keeps_to_registers() {
    alone("nvrtc::machine_code_reads_ahead_and_keeps_to_registers", |compiler| {
        let binary = binary(compiler, &kernel::text(Precision::Bf16, Some(64)), "sm_90").unwrap();
        let elf = Elf::of(&binary);
        let code = |name: &str| MachineCode::of(elf.section(&format!(".text.{name}_bf16")).unwrap().bytes);
        for (name, reads) in READS_AT_ONCE {
            assert_eq!(code(name).reads_at_once(), reads, "{name}");
        }
        for (name, [products, matrix_reads, instructions]) in LOOPS {
            let found = code(name).product_loop();
            let is_within = found.matrix_reads <= matrix_reads && found.instructions <= instructions;
            assert!(found.products == products && is_within, "{name}: {found:?}");
        }
        for name in kernel::NAMES {
            assert_eq!(code(name).local(), 0, "{name}");
        }
    });
}

#[test]
fn messages_name_file_and_line_of_the_source() {
    alone("nvrtc::messages_name_file_and_line_of_the_source", |compiler| {
        let (name, source) = kernel::SOURCES[kernel::SOURCES.len() - 1];
        let text = format!("{}not_a_type mistake;\n", kernel::text(Precision::F32, None));
        let log = binary(compiler, &text, "sm_90").unwrap_err();
        let expected = format!("{name}({})", source.lines().count() + 1);
        assert!(log.contains(&expected), "expected {expected} in:\n{log}");
    });
}
