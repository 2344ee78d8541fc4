//! The libraries beside the driver: each opened, and asked for something that shows that it works.

use super::driver::Driver;
use super::finding::Finding;
use crate::cuda::library::{self, Wanted};
use crate::cuda::nccl::{self, Nccl};
use libloading::os::unix::Library;
use nvshmem_sys::{Library as Nvshmem, Status};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr;

/// `NVRTC_ERROR_BUILTIN_OPERATION_FAILURE`.
const BUILTINS_FAILED: c_int = 7;

/// Two lines that any NVRTC compiles.
const KERNEL: &CStr = c"extern \"C\" __global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2.0f; }";

/// A second handle to a library that is open.
fn reopen(wanted: &Wanted) -> Result<(ManuallyDrop<Library>, PathBuf), Finding> {
    let found = library::open(wanted)?;
    match found.reopen() {
        Ok(library) => Ok((library, found.path)),
        Err(reason) => Err(Finding::broken(reason, wanted.fix)),
    }
}

/// A function of a library; the type is the caller's to state.
///
/// # Safety
/// `F` is the type of a function pointer, that of this function.
unsafe fn function<F: Copy>(library: &Library, name: &'static str, wanted: &Wanted) -> Result<F, Finding> {
    // SAFETY: the caller's promise.
    match unsafe { library.get::<F>(name) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(Finding::broken(format!("the library has no {name}"), wanted.fix)),
    }
}

/// Opens what every run on GPUs opens, as far as it is there, and asks nothing of it.
pub(super) fn opening() -> Finding {
    if library::open(&library::DRIVER).is_ok() {
        let _ = (library::open(&library::CUBLASLT), library::open(&library::NVRTC));
    }
    Finding::ok("they open, or are not there")
}

pub(super) fn nvrtc() -> Finding {
    compiled().unwrap_or_else(|finding| finding)
}

fn compiled() -> Result<Finding, Finding> {
    type Texts = *const *const c_char;
    let wanted = &library::NVRTC;
    let (library, path) = reopen(wanted)?;
    // SAFETY: the names and types of nvrtc.h; pointers for results point at locals; texts end with a zero and outlive the
    // calls; the program is used between its making and its end.
    unsafe {
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
            function(&library, "nvrtcVersion", wanted)?;
        let create: unsafe extern "C" fn(*mut *mut c_void, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int =
            function(&library, "nvrtcCreateProgram", wanted)?;
        let compile: unsafe extern "C" fn(*mut c_void, c_int, Texts) -> c_int =
            function(&library, "nvrtcCompileProgram", wanted)?;
        let size: unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int =
            function(&library, "nvrtcGetPTXSize", wanted)?;
        let end: unsafe extern "C" fn(*mut *mut c_void) -> c_int = function(&library, "nvrtcDestroyProgram", wanted)?;
        let checked = |call: &str, code: c_int| match code {
            0 => Ok(()),
            // it says so where they are not beside it
            BUILTINS_FAILED => {
                Err(Finding::broken(format!("{call} finds no libnvrtc-builtins ({})", path.display()), wanted.fix))
            }
            _ => Err(Finding::broken(format!("{call} answered {code} ({})", path.display()), wanted.fix)),
        };
        let (mut major, mut minor) = (0, 0);
        checked("nvrtcVersion", version(&mut major, &mut minor))?;
        let mut program = ptr::null_mut();
        let name = c"probe.cu";
        let code = create(&mut program, KERNEL.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null());
        checked("nvrtcCreateProgram", code)?;
        let options = [c"--gpu-architecture=compute_80".as_ptr()];
        let outcome = checked("nvrtcCompileProgram", compile(program, 1, options.as_ptr()));
        let mut bytes = 0;
        let outcome = outcome.and_then(|()| checked("nvrtcGetPTXSize", size(program, &mut bytes)));
        end(&mut program);
        outcome?;
        if bytes < 2 {
            return Err(Finding::broken(
                format!("{major}.{minor} compiles to nothing ({})", path.display()),
                wanted.fix,
            ));
        }
        Ok(Finding::ok(format!("{major}.{minor}, compiles a kernel, {}", path.display())))
    }
}

pub(super) fn cublaslt() -> Finding {
    let asked = reopen(&library::CUBLASLT).and_then(|(library, path)| {
        // SAFETY: the name and type of cublasLt.h; no arguments.
        let version: unsafe extern "C" fn() -> usize =
            unsafe { function(&library, "cublasLtGetVersion", &library::CUBLASLT)? };
        // SAFETY: as above.
        Ok((unsafe { version() }, path))
    });
    match asked {
        Ok((version, path)) => {
            let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
            Finding::ok(format!("{major}.{minor}.{patch}, {}", path.display()))
        }
        Err(finding) => finding,
    }
}

pub(super) fn nccl() -> Finding {
    let nccl = match Nccl::open() {
        Ok(nccl) => nccl,
        Err(nccl::Error::Missing(missing)) => return missing.into(),
        Err(error) => return Finding::broken(error.to_string(), library::NCCL.fix),
    };
    match nccl.version() {
        Ok((major, minor, patch)) => Finding::ok(format!("{major}.{minor}.{patch}, {}", nccl.found().path.display())),
        Err(error) => Finding::broken(error.to_string(), library::NCCL.fix),
    }
}

/// Opens the library and lets this process, alone, find itself by a unique id; on the first GPU where there is one.
pub(super) fn nvshmem() -> Finding {
    let found = match library::open(&library::NVSHMEM) {
        Ok(found) => found,
        Err(missing) => return missing.into(),
    };
    let nvshmem = match Nvshmem::open(&found.path) {
        Ok(nvshmem) => nvshmem,
        Err(error) => return Finding::broken(error.to_string(), library::NVSHMEM.fix),
    };
    let (major, minor, patch) = nvshmem.version();
    let version = format!("{major}.{minor}.{patch}");
    let path = found.path.display();
    let on_device = has_context();
    let bootstrap = nvshmem.unique_id().and_then(|id| nvshmem.init_with_unique_id(0, 1, &id));
    let retry = "run again with NVSHMEM_DEBUG=INFO; without a network set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo";
    let status = match bootstrap {
        Ok(status) => status,
        Err(error) => return Finding::broken(format!("{version}: {error}, {path}"), retry),
    };
    let (pe, pes) = (nvshmem.my_pe().unwrap_or(-1), nvshmem.n_pes().unwrap_or(-1));
    nvshmem.finalize();
    match status {
        _ if (pe, pes) != (0, 1) => {
            Finding::broken(format!("{version}: alone, it calls itself {pe} of {pes}, {path}"), retry)
        }
        Status::Bootstrapped if on_device => {
            Finding::broken(format!("{version}: bootstraps, but sets up no device, {path}"), retry)
        }
        Status::Bootstrapped => Finding::ok(format!("{version}, bootstraps; no GPU to set up, {path}")),
        status => Finding::ok(format!("{version}, {status} on GPU 0, {path}")),
    }
}

/// Makes the first GPU's primary context current, which NVSHMEM wants; false where there is none.
fn has_context() -> bool {
    let Ok(driver) = Driver::open() else { return false };
    let context = driver.initialize().and_then(|_| driver.device(0)).and_then(|device| driver.context(device));
    context.is_ok()
}

/// Where the driver says what its NVLinks do.
static MANAGEMENT: Wanted = Wanted {
    name: "the driver's management library",
    sonames: &["libnvidia-ml.so.1"],
    before: &[],
    folders: library::DRIVER.folders,
    fix: "install the driver's management library (libnvidia-ml.so.1; it comes with the driver's utilities)",
};

/// `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: c_uint = 18;

pub(super) fn nvlink() -> Finding {
    if library::open(&library::DRIVER).is_err() {
        return Finding::unknown("not asked: there is no driver", "install the NVIDIA driver first");
    }
    let library = match reopen(&MANAGEMENT) {
        Ok((library, _)) => library,
        Err(finding) => return finding,
    };
    let devices = match links(&library) {
        Ok(devices) => devices,
        Err(finding) => return finding,
    };
    let told = |(number, (links, version)): (usize, &(u32, u32))| match links {
        0 => format!("GPU {number}: none"),
        1 => format!("GPU {number}: 1 link, version {version}"),
        _ => format!("GPU {number}: {links} links, version {version}"),
    };
    if devices.iter().all(|(links, _)| *links == 0) {
        return Finding::missing("no active link", "nothing to do on a machine without NVLink: copies go over PCIe");
    }
    Finding::ok(devices.iter().enumerate().map(told).collect::<Vec<_>>().join("; "))
}

/// Active links of each GPU of the machine, and their version.
fn links(library: &Library) -> Result<Vec<(u32, u32)>, Finding> {
    type Device = *mut c_void;
    type OfLink = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int;
    let wanted = &MANAGEMENT;
    // SAFETY: the names and types of nvml.h; pointers for results point at locals; devices came from the library.
    unsafe {
        let init: unsafe extern "C" fn() -> c_int = function(library, "nvmlInit_v2", wanted)?;
        let count: unsafe extern "C" fn(*mut c_uint) -> c_int = function(library, "nvmlDeviceGetCount_v2", wanted)?;
        let handle: unsafe extern "C" fn(c_uint, *mut Device) -> c_int =
            function(library, "nvmlDeviceGetHandleByIndex_v2", wanted)?;
        let state: OfLink = function(library, "nvmlDeviceGetNvLinkState", wanted)?;
        let version: OfLink = function(library, "nvmlDeviceGetNvLinkVersion", wanted)?;
        let fix = "see whether nvidia-smi runs; if not, install the driver again";
        let checked = |call: &str, code: c_int| match code {
            0 => Ok(()),
            _ => Err(Finding::broken(format!("{call} answered {code}"), fix)),
        };
        checked("nvmlInit_v2", init())?;
        let mut devices = 0;
        checked("nvmlDeviceGetCount_v2", count(&mut devices))?;
        let mut found = Vec::new();
        for number in 0..devices {
            let mut device = ptr::null_mut();
            checked("nvmlDeviceGetHandleByIndex_v2", handle(number, &mut device))?;
            let (mut active, mut newest) = (0, 0);
            for link in 0..MOST_LINKS {
                // A link that is not there is refused; it counts as none.
                let (mut is_active, mut of_link) = (0, 0);
                if state(device, link, &mut is_active) == 0 && is_active == 1 {
                    active += 1;
                    version(device, link, &mut of_link);
                }
                newest = of_link.max(newest);
            }
            found.push((active, newest));
        }
        Ok(found)
    }
}
