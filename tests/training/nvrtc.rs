//! The kernels through the real NVRTC, for the architectures that pipesim runs on: their text compiles without any
//! include path, and the binary holds every kernel. No GPU and no driver is needed, only the library: `pip install
//! --target DIR nvidia-cuda-nvrtc==13.0.88`, with DIR in the environment variable PIPESIM_CUDA_WHEELS.

use crate::emulator_driver::{Compiler, compile};
use crate::support::{again, wheels};
use std::ffi::CString;
use std::path::{Path, PathBuf};

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};
use pipesim::internals::cuda::kernel::{self, Precision};

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

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    alone("nvrtc::every_kernel_compiles_for_every_architecture", |compiler| {
        for (precision, architecture) in
            [Precision::F32, Precision::Bf16].into_iter().flat_map(|p| ["sm_80", "sm_90"].map(|a| (p, a)))
        {
            let binary = binary(compiler, &kernel::text(precision), architecture);
            let binary = binary.unwrap_or_else(|log| panic!("{precision:?} for {architecture}:\n{log}"));
            for name in kernel::NAMES {
                // each kernel's code is a section of the binary, which is an ELF file
                let section = format!("\0.text.{name}{}\0", precision.suffix());
                let there = contains(&binary, section.as_bytes());
                assert!(there, "{name} is missing from {precision:?} for {architecture}");
            }
        }
    });
}

#[test]
fn messages_name_file_and_line_of_the_source() {
    alone("nvrtc::messages_name_file_and_line_of_the_source", |compiler| {
        let (name, source) = kernel::SOURCES[kernel::SOURCES.len() - 1];
        let text = format!("{}not_a_type mistake;\n", kernel::text(Precision::F32));
        let log = binary(compiler, &text, "sm_90").unwrap_err();
        let expected = format!("{name}({})", source.lines().count() + 1);
        assert!(log.contains(&expected), "expected {expected} in:\n{log}");
    });
}
