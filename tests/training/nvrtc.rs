//! The kernels through the real NVRTC, for the architectures that pipesim runs on: their text compiles without any
//! include path, and the binary holds every kernel. No GPU and no driver is needed, only the library: `pip install
//! --target DIR nvidia-cuda-nvrtc==13.0.88`, with DIR in the environment variable PIPESIM_CUDA_WHEELS.

use crate::support::{again, wheels};
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};
use pipesim::internals::cuda::kernel::{self, Precision};

type Program = *mut std::ffi::c_void;

/// The file in `folder` whose name starts with `name`, but for the second copy of the library that the wheel carries.
fn file(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().find(|file| file.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name)))
}

/// The library, or nothing where tests may do without.
fn nvrtc() -> Option<Library> {
    let wheels = wheels()?;
    let folders = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "."].map(|folder| wheels.join(folder));
    let folder = folders.into_iter().find(|folder| file(folder, "libnvrtc.so").is_some());
    let folder = folder.expect("libnvrtc in nvidia/cu13/lib or nvidia/cuda_nvrtc/lib of $PIPESIM_CUDA_WHEELS");
    // libnvrtc opens its builtins by name and does not look beside itself, so they are opened first, and stay open
    let builtins = file(&folder, "libnvrtc-builtins.so").expect("libnvrtc-builtins.so lies beside libnvrtc.so");
    // SAFETY: NVIDIA's libraries; loading them runs only their own initialisation.
    unsafe {
        std::mem::forget(UnixLibrary::open(Some(builtins), RTLD_NOW | RTLD_GLOBAL).unwrap());
        Some(Library::new(file(&folder, "libnvrtc.so")?).unwrap())
    }
}

/// Runs `body` with the library in a process of its own: the other tests of this one load the kernels for the CPU, and
/// stand-ins of the library's name.
fn alone(test: &str, body: impl FnOnce(&Library)) {
    if std::env::var_os("PIPESIM_TEST_ALONE").is_none() {
        let ended = again(test).env("PIPESIM_TEST_ALONE", "1").output().unwrap();
        assert!(
            ended.status.success(),
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    } else if let Some(library) = nvrtc() {
        body(&library);
    }
}

/// The binary for `architecture`, or what the compiler said.
fn compile(library: &Library, text: &str, architecture: &str) -> Result<Vec<u8>, String> {
    type Create = unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
    type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
    type Content = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
    let text = CString::new(text).unwrap();
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    let options = options.map(|option| CString::new(option).unwrap());
    let options = [options[0].as_ptr(), options[1].as_ptr()];
    // SAFETY: the functions have these signatures in nvrtc.h, the strings outlive the calls, and what is read back has
    // the size that the library stated.
    unsafe {
        let content = |size: &[u8], content: &[u8], program: Program| {
            let mut bytes = 0;
            assert_eq!(library.get::<Size>(size).unwrap()(program, &raw mut bytes), 0);
            let mut buffer = vec![0_u8; bytes];
            assert_eq!(library.get::<Content>(content).unwrap()(program, buffer.as_mut_ptr().cast()), 0);
            buffer
        };
        let mut program: Program = null_mut();
        let create = library.get::<Create>(b"nvrtcCreateProgram").unwrap();
        assert_eq!(create(&raw mut program, text.as_ptr(), c"kernels.cu".as_ptr(), 0, null(), null()), 0);
        let status = library.get::<Compile>(b"nvrtcCompileProgram").unwrap()(program, 2, options.as_ptr());
        let result = if status == 0 {
            Ok(content(b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN", program))
        } else {
            let log = content(b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog", program);
            Err(String::from_utf8_lossy(&log).into_owned())
        };
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        assert_eq!(library.get::<Destroy>(b"nvrtcDestroyProgram").unwrap()(&raw mut program), 0);
        result
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    alone("nvrtc::every_kernel_compiles_for_every_architecture", |library| {
        for (precision, architecture) in
            [Precision::F32, Precision::Bf16].into_iter().flat_map(|p| ["sm_80", "sm_90"].map(|a| (p, a)))
        {
            let binary = compile(library, &kernel::text(precision), architecture);
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
    alone("nvrtc::messages_name_file_and_line_of_the_source", |library| {
        let (name, source) = kernel::SOURCES[kernel::SOURCES.len() - 1];
        let text = format!("{}not_a_type mistake;\n", kernel::text(Precision::F32));
        let log = compile(library, &text, "sm_90").unwrap_err();
        let expected = format!("{name}({})", source.lines().count() + 1);
        assert!(log.contains(&expected), "expected {expected} in:\n{log}");
    });
}
