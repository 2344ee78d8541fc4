//! Probes of NVIDIA's libraries: each is opened and called once.

use super::finding::{Asked, Finding};
use anyhow::Error;
use libloading::os::unix::Library;
use nvshmem_sys::{Library as Nvshmem, Status};
use pipesim_gpu::attention::cudnn_version;
use pipesim_gpu::library::{self, Wanted};
use pipesim_gpu::nccl::{self, Nccl};
use pipesim_gpu::{CompileError, Driver, Gpu, try_compiler, try_kernel, try_product};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

/// `NVRTC_ERROR_BUILTIN_OPERATION_FAILURE`.
const BUILTINS_FAILED: u32 = 7;

fn reopen(wanted: &Wanted) -> Result<(ManuallyDrop<Library>, PathBuf), Finding> {
    let found = library::open(wanted)?;
    let library = found.reopen().map_err(|reason| Finding::broken(reason, wanted.fix()))?;
    Ok((library, found.path))
}

/// Looks up a function of a library.
///
/// # Safety
/// `F` is the type of a pointer to this function.
unsafe fn function<F: Copy>(library: &Library, name: &'static str, wanted: &Wanted) -> Result<F, Finding> {
    // SAFETY: the caller guarantees it.
    let function = unsafe { library.get::<F>(name) };
    function.map(|function| *function).map_err(|_| Finding::broken(format!("the library has no {name}"), wanted.fix()))
}

/// Opens the libraries that every run on GPUs opens, without calling them.
pub(super) fn opening() -> Asked {
    if pipesim_gpu::driver_version().is_ok() {
        let _ = (library::open(&library::CUBLASLT), library::open(&library::NVRTC), library::open(&library::CUDNN));
    }
    Ok(Finding::ok("they open, or are missing"))
}

pub(super) fn nvrtc() -> Asked {
    let _ = pipesim_gpu::driver_version(); // decides which libraries are searched
    let path = library::open(&library::NVRTC)?.path;
    let found = match try_compiler() {
        Ok((major, minor)) => {
            let ran = tried(try_kernel, ", compiles a kernel", ", compiles a kernel that runs", &library::NVRTC)?;
            return Ok(Finding::ok(format!("{major}.{minor}{ran}, {}", path.display())));
        }
        Err(CompileError::Refused { call, code: BUILTINS_FAILED, .. }) => {
            format!("{call} finds no libnvrtc-builtins ({})", path.display())
        }
        Err(CompileError::Refused { call, code, .. }) => format!("{call} returned {code} ({})", path.display()),
        Err(error) => format!("{error} ({})", path.display()),
    };
    Err(Finding::broken(found, library::NVRTC.fix()))
}

pub(super) fn cublaslt() -> Asked {
    let _ = pipesim_gpu::driver_version(); // decides which libraries are searched
    let (library, path) = reopen(&library::CUBLASLT)?;
    // SAFETY: the name and type of cublasLt.h; no arguments.
    let version: unsafe extern "C" fn() -> usize =
        unsafe { function(&library, "cublasLtGetVersion", &library::CUBLASLT)? };
    // SAFETY: as above.
    let version = unsafe { version() };
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    let ran = tried(try_product, "", ", multiplies matrices", &library::CUBLASLT)?;
    Ok(Finding::ok(format!("{major}.{minor}.{patch}{ran}, {}", path.display())))
}

/// cuDNN's version. Only `--attention cudnn` needs it.
pub(super) fn cudnn() -> Asked {
    let _ = pipesim_gpu::driver_version(); // decides which libraries are searched
    let path = library::open(&library::CUDNN).map_err(|missing| {
        Finding::missing(missing.found(), format!("nothing without `attention` cudnn; otherwise {}", missing.fix))
    })?;
    match cudnn_version() {
        Ok(version) => Ok(Finding::ok(format!("{version}, {}", path.path.display()))),
        Err(error) => Err(Finding::broken(error.to_string(), library::CUDNN.fix())),
    }
}

/// Tries a library on the first GPU. Returns `without` if there is none, `with` if it works.
fn tried(
    work: fn(&Arc<Gpu>) -> Result<(), Error>,
    without: &'static str,
    with: &'static str,
    wanted: &Wanted,
) -> Result<&'static str, Finding> {
    let open = |driver: &'static Driver| Gpu::whole(driver, 0).ok().map(Arc::new);
    let Some(gpu) = Driver::open().ok().and_then(open) else { return Ok(without) };
    match work(&gpu) {
        Ok(()) => Ok(with),
        Err(error) => Err(Finding::broken(format!("on GPU 0: {error:#}"), wanted.fix())),
    }
}

pub(super) fn nccl() -> Asked {
    let broken = |error: nccl::Error| match error {
        nccl::Error::Missing(missing) => missing.into(),
        error => Finding::broken(error.to_string(), library::NCCL.fix()),
    };
    let nccl = Nccl::open().map_err(broken)?;
    let (major, minor, patch) = nccl.version().map_err(broken)?;
    Ok(Finding::ok(format!("{major}.{minor}.{patch}, {}", nccl.found().path.display())))
}

/// Opens the library and initialises it as the only process, on the first GPU if there is one.
pub(super) fn nvshmem() -> Asked {
    let found = library::open(&library::NVSHMEM)?;
    let nvshmem = Nvshmem::open(&found.path);
    let nvshmem = nvshmem.map_err(|error| Finding::broken(error.to_string(), library::NVSHMEM.fix()))?;
    let (major, minor, patch) = nvshmem.version();
    let version = format!("{major}.{minor}.{patch}");
    let path = found.path.display();
    // NVSHMEM needs a current context to set up the GPU.
    let on_device = Driver::open().is_ok_and(|driver| driver.context(0).is_ok());
    let bootstrap = nvshmem.unique_id().and_then(|id| nvshmem.init_with_unique_id(0, 1, &id));
    let retry = "run again with NVSHMEM_DEBUG=INFO; without a network set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo";
    let status = bootstrap.map_err(|error| Finding::broken(format!("{version}: {error}, {path}"), retry))?;
    let (pe, pes) = (nvshmem.my_pe().unwrap_or(-1), nvshmem.n_pes().unwrap_or(-1));
    nvshmem.finalize();
    Ok(match status {
        _ if (pe, pes) != (0, 1) => {
            Finding::broken(format!("{version}: alone, it calls itself {pe} of {pes}, {path}"), retry)
        }
        Status::Bootstrapped if on_device => {
            Finding::broken(format!("{version}: bootstraps, but sets up no device, {path}"), retry)
        }
        Status::Bootstrapped => Finding::ok(format!("{version}, bootstraps; no GPU to set up, {path}")),
        status => Finding::ok(format!("{version}, {status} on GPU 0, {path}")),
    })
}

/// `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: c_uint = 18;

pub(super) fn nvlink() -> Asked {
    if library::open(&library::DRIVER).is_err() {
        return Err(Finding::unknown("not probed: there is no driver", "install the NVIDIA driver first"));
    }
    let devices = links(&reopen(&library::MANAGEMENT)?.0)?;
    let told = |(number, (links, version)): (usize, &(u32, u32))| match links {
        0 => format!("GPU {number}: none"),
        1 => format!("GPU {number}: 1 link, version {version}"),
        _ => format!("GPU {number}: {links} links, version {version}"),
    };
    if devices.iter().all(|(links, _)| *links == 0) {
        let fix = "nothing to do on a machine without NVLink: copies go over PCIe";
        return Err(Finding::missing("no active link", fix));
    }
    Ok(Finding::ok(devices.iter().enumerate().map(told).collect::<Vec<_>>().join("; ")))
}

/// Returns the number of active links of each GPU, and their newest version.
fn links(library: &Library) -> Result<Vec<(u32, u32)>, Finding> {
    type Device = *mut c_void;
    type OfLink = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int;
    let wanted = &library::MANAGEMENT;
    // SAFETY: the names and types of nvml.h; result pointers point at locals; device handles come from the library.
    unsafe {
        let init: unsafe extern "C" fn() -> c_int = function(library, "nvmlInit_v2", wanted)?;
        let count: unsafe extern "C" fn(*mut c_uint) -> c_int = function(library, "nvmlDeviceGetCount_v2", wanted)?;
        let handle: unsafe extern "C" fn(c_uint, *mut Device) -> c_int =
            function(library, "nvmlDeviceGetHandleByIndex_v2", wanted)?;
        let state: OfLink = function(library, "nvmlDeviceGetNvLinkState", wanted)?;
        let version: OfLink = function(library, "nvmlDeviceGetNvLinkVersion", wanted)?;
        let fix = "check whether nvidia-smi runs; if not, reinstall the driver";
        let checked = |call: &str, code: c_int| match code {
            0 => Ok(()),
            _ => Err(Finding::broken(format!("{call} returned {code}"), fix)),
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
                // The call fails for a link that does not exist, which is not counted.
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
