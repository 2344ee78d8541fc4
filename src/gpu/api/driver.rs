//! The driver (libcuda): its functions, and calls about devices, contexts and code.

use super::super::library::{self, Missing};
use super::Handle;
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

pub type ContextHandle = Handle<sys::CUctx_st>;
pub type GreenHandle = Handle<sys::CUgreenCtx_st>;
pub type StreamHandle = Handle<sys::CUstream_st>;
pub type EventHandle = Handle<sys::CUevent_st>;
pub type ModuleHandle = Handle<sys::CUmod_st>;
pub type FunctionHandle = Handle<sys::CUfunc_st>;
/// A set of multiprocessors.
pub type Multiprocessors = sys::CUdevResource;

super::functions! {
    /// The driver functions in use. All exist since CUDA 12.8 (driver 570).
    Functions from sys {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut sys::CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
        cuDeviceTotalMem_v2(*mut usize, sys::CUdevice);
        cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, sys::CUdevice);
        cuDeviceCanAccessPeer(*mut c_int, sys::CUdevice, sys::CUdevice);
        cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
        cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
        cuCtxSetCurrent(sys::CUcontext);
        cuCtxEnablePeerAccess(sys::CUcontext, c_uint);
        cuDeviceGetDevResource(sys::CUdevice, *mut sys::CUdevResource, sys::CUdevResourceType);
        cuDevSmResourceSplitByCount(
            *mut sys::CUdevResource, *mut c_uint, *const sys::CUdevResource, *mut sys::CUdevResource, c_uint, c_uint,
        );
        cuDevResourceGenerateDesc(*mut sys::CUdevResourceDesc, *mut sys::CUdevResource, c_uint);
        cuGreenCtxCreate(*mut sys::CUgreenCtx, sys::CUdevResourceDesc, sys::CUdevice, c_uint);
        cuGreenCtxDestroy(sys::CUgreenCtx);
        cuCtxFromGreenCtx(*mut sys::CUcontext, sys::CUgreenCtx);
        cuGreenCtxStreamCreate(*mut sys::CUstream, sys::CUgreenCtx, c_uint, c_int);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
        cuMemFree_v2(sys::CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuIpcGetMemHandle(*mut sys::CUipcMemHandle, sys::CUdeviceptr);
        cuIpcOpenMemHandle_v2(*mut sys::CUdeviceptr, sys::CUipcMemHandle, c_uint);
        cuIpcCloseMemHandle(sys::CUdeviceptr);
        cuIpcGetEventHandle(*mut sys::CUipcEventHandle, sys::CUevent);
        cuIpcOpenEventHandle(*mut sys::CUevent, sys::CUipcEventHandle);
        cuModuleLoadData(*mut sys::CUmodule, *const c_void);
        cuModuleUnload(sys::CUmodule);
        cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
        cuFuncSetAttribute(sys::CUfunction, sys::CUfunction_attribute, c_int);
        cuStreamCreate(*mut sys::CUstream, c_uint);
        cuStreamCreateWithPriority(*mut sys::CUstream, c_uint, c_int);
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuStreamDestroy_v2(sys::CUstream);
        cuStreamSynchronize(sys::CUstream);
        cuStreamQuery(sys::CUstream);
        cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
        cuStreamWaitValue64_v2(sys::CUstream, sys::CUdeviceptr, sys::cuuint64_t, c_uint);
        cuStreamWriteValue64_v2(sys::CUstream, sys::CUdeviceptr, sys::cuuint64_t, c_uint);
        cuStreamBeginCapture_v2(sys::CUstream, sys::CUstreamCaptureMode);
        cuStreamEndCapture(sys::CUstream, *mut sys::CUgraph);
        cuGraphInstantiateWithFlags(*mut sys::CUgraphExec, sys::CUgraph, c_ulonglong);
        cuGraphUpload(sys::CUgraphExec, sys::CUstream);
        cuGraphLaunch(sys::CUgraphExec, sys::CUstream);
        cuGraphDestroy(sys::CUgraph);
        cuGraphExecDestroy(sys::CUgraphExec);
        cuEventCreate(*mut sys::CUevent, c_uint);
        cuEventDestroy_v2(sys::CUevent);
        cuEventRecord(sys::CUevent, sys::CUstream);
        cuEventQuery(sys::CUevent);
        cuEventSynchronize(sys::CUevent);
        cuEventElapsedTime_v2(*mut f32, sys::CUevent, sys::CUevent);
        cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
        cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
        cuMemcpyPeerAsync(
            sys::CUdeviceptr, sys::CUcontext, sys::CUdeviceptr, sys::CUcontext, usize, sys::CUstream,
        );
        cuMemsetD8Async(sys::CUdeviceptr, c_uchar, usize, sys::CUstream);
        cuMemsetD32Async(sys::CUdeviceptr, c_uint, usize, sys::CUstream);
        cuLaunchKernel(
            sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, sys::CUstream, *mut *mut c_void,
            *mut *mut c_void,
        );
    } -> sys::CUresult
}

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: the driver returned {name} ({text}){}", self.fix().map_or(String::new(), |fix| format!("; {fix}")))]
pub struct Fault {
    /// Function that was called.
    pub call: &'static str,
    /// The driver's error code.
    pub code: u32,
    /// Name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's description of the code.
    pub text: String,
}

impl Fault {
    /// Whether the GPU's multiprocessors cannot be split this way.
    pub fn is_invalid_split(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION as u32
    }

    /// Returns one thing to do about this code, if it is a common one.
    pub fn fix(&self) -> Option<&'static str> {
        use sys::CUresult::*;
        let fixes: [(&[sys::CUresult], &str); 9] = [
            (
                &[CUDA_ERROR_OUT_OF_MEMORY],
                "choose smaller or fewer micro-batches, bfloat16 or more stages; nvidia-smi lists other processes on the GPU",
            ),
            (
                &[CUDA_ERROR_DEVICE_UNAVAILABLE],
                "another process has the GPU in exclusive mode: end it, choose another GPU, or nvidia-smi -c 0",
            ),
            (
                &[CUDA_ERROR_NO_DEVICE],
                "check that a GPU is present and CUDA_VISIBLE_DEVICES shows it (nvidia-smi lists them)",
            ),
            (&[CUDA_ERROR_STUB_LIBRARY], "this libcuda is the toolkit's stub: remove its folder from LD_LIBRARY_PATH"),
            (
                &[CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU],
                "the code is for another architecture: delete the kernel cache or unset PIPESIM_KERNELS",
            ),
            (
                &[CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION],
                "the driver is older than the compiler: install NVRTC of the driver's CUDA version",
            ),
            (
                &[
                    CUDA_ERROR_ILLEGAL_ADDRESS,
                    CUDA_ERROR_MISALIGNED_ADDRESS,
                    CUDA_ERROR_INVALID_ADDRESS_SPACE,
                    CUDA_ERROR_INVALID_PC,
                    CUDA_ERROR_LAUNCH_FAILED,
                ],
                "a kernel failed and the GPU's state is lost: run again under compute-sanitizer and report it",
            ),
            (
                &[
                    CUDA_ERROR_SYSTEM_NOT_READY,
                    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                ],
                "driver and GPU do not match: reinstall the driver, or restart the machine",
            ),
            (&[CUDA_ERROR_UNKNOWN], "load the driver's modules (nvidia-modprobe -u), or restart the machine"),
        ];
        let found = fixes.iter().find(|(codes, _)| codes.iter().any(|known| *known as u32 == self.code));
        found.map(|(_, fix)| *fix)
    }

    /// Whether no GPU is visible.
    pub fn is_no_device(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32
    }

    /// Whether device memory or pinned memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }
}

/// The driver, loaded.
pub struct Api {
    pub(super) functions: Functions,
    name: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
    text: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
    /// `cuFuncLoad`, which a driver without lazy loading may lack.
    load: Option<unsafe extern "C" fn(sys::CUfunction) -> u32>,
}

/// Calls a function of the driver and turns its status into a result.
macro_rules! call {
    ($api:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: result pointers point at locals of the right type that outlive the call; handles and addresses come from
        // the driver and are alive, because their owner is borrowed; host memory that an asynchronous copy touches is pinned
        // and kept by its owner until the copy is done. A wrong device address cannot reach this process's memory: the
        // driver reports it as a fault of the device.
        let code = unsafe { ($api.functions.$name)($($argument),*) };
        $api.check(stringify!($name), code)
    }};
    ($context:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let api = $context.api;
        call!(api.$name($($argument),*))
    }};
}
pub(super) use call;

/// Why the driver cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unloadable {
    /// Not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// Installed, but cannot be opened.
    #[error("expected NVIDIA's driver (libcuda.so.1), found one that cannot be opened: {0}; reinstall the driver")]
    Broken(String),
    /// Too old: lacks these functions.
    #[error("expected NVIDIA's driver 570 or newer, found one without {}: install a newer driver", .0.join(", "))]
    TooOld(Vec<&'static str>),
}

/// Returns the newest CUDA version that the driver supports, as 1000 major + 10 minor. Unlike `Api::load` it works with a
/// driver of any age.
pub fn driver_version() -> Result<u32, Unloadable> {
    type Get = unsafe extern "C" fn(*mut c_int) -> u32;
    let library = library::open(&library::DRIVER)?.reopen().map_err(Unloadable::Broken)?;
    let get: Get =
        super::symbol(&library, "cuDriverGetVersion\0").ok_or(Unloadable::TooOld(vec!["cuDriverGetVersion"]))?;
    let mut version = 0;
    // SAFETY: the type in cuda.h; the result points at a local, and the call needs no initialisation.
    match unsafe { get(&mut version) } {
        0 => {
            library::note_driver(version as u32);
            Ok(version as u32)
        }
        code => Err(Unloadable::Broken(format!("cuDriverGetVersion returned {code}"))),
    }
}

impl Api {
    /// Loads the driver and looks up all functions.
    pub fn load() -> Result<Api, Unloadable> {
        let library = library::open(&library::DRIVER)?.reopen().map_err(Unloadable::Broken)?;
        Functions::load(&library)
            .and_then(|functions| {
                let name = super::symbol(&library, "cuGetErrorName\0").ok_or(vec!["cuGetErrorName"])?;
                let text = super::symbol(&library, "cuGetErrorString\0").ok_or(vec!["cuGetErrorString"])?;
                Ok(Api { functions, name, text, load: super::symbol(&library, "cuFuncLoad\0") })
            })
            .map_err(Unloadable::TooOld)
    }

    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), Fault> {
        if code == 0 {
            return Ok(());
        }
        let words = |function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut words = std::ptr::null();
            // SAFETY: the driver writes null or a pointer to a zero-terminated string that it never frees.
            unsafe {
                function(code, &mut words);
                (!words.is_null()).then(|| CStr::from_ptr(words).to_string_lossy().into_owned())
            }
        };
        let name = words(self.name).unwrap_or_else(|| format!("error {code}"));
        Err(Fault { call, code, name, text: words(self.text).unwrap_or_else(|| "no description".into()) })
    }

    pub fn initialise(&self) -> Result<(), Fault> {
        call!(self.cuInit(0))
    }

    /// Returns the newest CUDA version that the driver supports, as 1000 major + 10 minor.
    pub fn version(&self) -> Result<u32, Fault> {
        let mut version = 0;
        call!(self.cuDriverGetVersion(&mut version))?;
        Ok(version as u32)
    }

    pub fn device_count(&self) -> Result<u32, Fault> {
        let mut count = 0;
        call!(self.cuDeviceGetCount(&mut count))?;
        Ok(count as u32)
    }

    pub fn device(&self, ordinal: u32) -> Result<c_int, Fault> {
        let mut device = 0;
        call!(self.cuDeviceGet(&mut device, ordinal as c_int))?;
        Ok(device)
    }

    pub fn device_name(&self, device: c_int) -> Result<String, Fault> {
        let mut name = [0; 256];
        call!(self.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        Ok(words(&name))
    }

    /// Returns the PCI address, such as `0000:18:00.0`.
    pub fn device_pci(&self, device: c_int) -> Result<String, Fault> {
        let mut name = [0; 64];
        call!(self.cuDeviceGetPCIBusId(name.as_mut_ptr(), name.len() as c_int, device))?;
        Ok(words(&name))
    }

    pub fn device_bytes(&self, device: c_int) -> Result<usize, Fault> {
        let mut bytes = 0;
        call!(self.cuDeviceTotalMem_v2(&mut bytes, device))?;
        Ok(bytes)
    }

    pub fn attribute(&self, device: c_int, which: sys::CUdevice_attribute) -> Result<u32, Fault> {
        let mut value = 0;
        call!(self.cuDeviceGetAttribute(&mut value, which, device))?;
        Ok(value as u32)
    }

    pub fn can_access(&self, device: c_int, peer: c_int) -> Result<bool, Fault> {
        let mut can = 0;
        call!(self.cuDeviceCanAccessPeer(&mut can, device, peer))?;
        Ok(can != 0)
    }

    /// Lets the current context access the memory of `peer`.
    pub fn enable_peer(&self, peer: ContextHandle) -> Result<(), Fault> {
        match call!(self.cuCtxEnablePeerAccess(peer.raw(), 0)) {
            Err(fault) if fault.code == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32 => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns all multiprocessors of a device and their number.
    pub fn multiprocessors(&self, device: c_int) -> Result<(Multiprocessors, u32), Fault> {
        let mut all = empty();
        let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        call!(self.cuDeviceGetDevResource(device, &mut all, kind))?;
        Ok((all, count(&all)))
    }

    /// Splits `all` into at most `most` disjoint sets of at least `least` multiprocessors. The driver rounds sizes up.
    pub fn split(&self, all: &Multiprocessors, most: u32, least: u32) -> Result<Vec<(Multiprocessors, u32)>, Fault> {
        let mut sets = vec![empty(); most as usize];
        let (mut groups, mut rest) = (most, empty());
        call!(self.cuDevSmResourceSplitByCount(sets.as_mut_ptr(), &mut groups, all, &mut rest, 0, least))?;
        sets.truncate(groups as usize);
        Ok(sets.into_iter().map(|set| (set, count(&set))).collect())
    }

    /// Creates a green context on these multiprocessors, with its own hardware queues if the driver provides them.
    pub fn green(&self, device: c_int, share: Multiprocessors) -> Result<(GreenHandle, ContextHandle), Fault> {
        let (mut description, mut green, mut context) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let mut resources = [Resource::from(share), Resource::queues(device)];
        let resources = resources.as_mut_ptr().cast();
        let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as c_uint;
        let mut create = |count| {
            call!(self.cuDevResourceGenerateDesc(&mut description, resources, count))?;
            call!(self.cuGreenCtxCreate(&mut green, description, device, flags))
        };
        // A driver that supports queues may still refuse them, for example with too many contexts, and only when it creates one.
        if self.version()? < QUEUES_VERSION || create(2).is_err() {
            create(1)?;
        }
        if let Err(fault) = call!(self.cuCtxFromGreenCtx(&mut context, green)) {
            self.destroy_green(Handle::new(green))?;
            return Err(fault);
        }
        Ok((Handle::new(green), Handle::new(context)))
    }

    pub fn destroy_green(&self, green: GreenHandle) -> Result<(), Fault> {
        call!(self.cuGreenCtxDestroy(green.raw()))
    }

    /// Loads a CUBIN, or zero-terminated PTX.
    pub fn load_module(&self, image: &[u8]) -> Result<ModuleHandle, Fault> {
        let mut module = std::ptr::null_mut();
        call!(self.cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(Handle::new(module))
    }

    pub fn unload_module(&self, module: ModuleHandle) -> Result<(), Fault> {
        call!(self.cuModuleUnload(module.raw()))
    }

    /// Returns a kernel, loaded eagerly: loading it at its first launch could wait for work that waits for that launch.
    pub fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle, Fault> {
        let mut function = std::ptr::null_mut();
        call!(self.cuModuleGetFunction(&mut function, module.raw(), name.as_ptr()))?;
        if let Some(load) = self.load {
            // SAFETY: the function was just looked up.
            self.check("cuFuncLoad", unsafe { load(function) })?;
        }
        Ok(Handle::new(function))
    }

    pub fn allow_shared_bytes(&self, function: FunctionHandle, bytes: u32) -> Result<(), Fault> {
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(self.cuFuncSetAttribute(function.raw(), which, bytes as c_int))
    }
}

/// First driver that assigns hardware queues to green contexts: CUDA 13.1.
const QUEUES_VERSION: u32 = 13010;

/// Number of streams of a slice: compute, send, receive, the idle one that reads the clock, and two that copy activations to the host and
/// back. With fewer queues the idle stream could be queued behind one that waits.
const STREAMS: u32 = 6;

/// `CUdevResource` as plain words, also for kinds that the bindings do not know.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource([u32; 36]);

const _: () = assert!(size_of::<Resource>() == size_of::<sys::CUdevResource>());
const _: () = assert!(align_of::<Resource>() >= align_of::<sys::CUdevResource>());

impl From<Multiprocessors> for Resource {
    fn from(share: Multiprocessors) -> Resource {
        // SAFETY: both have the same size and consist of initialised numbers.
        unsafe { std::mem::transmute::<Multiprocessors, Resource>(share) }
    }
}

impl Resource {
    /// Hardware queues for the streams of a slice, not shared with other slices if there are enough:
    /// `CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG` with device, number of concurrent streams, `CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED`.
    fn queues(device: c_int) -> Resource {
        let mut words = [0; 36];
        words[0] = 1000;
        words[24..27].copy_from_slice(&[device as u32, STREAMS, 1]);
        Resource(words)
    }
}

/// Turns the result of a query into whether the work is done.
pub(super) fn done(outcome: Result<(), Fault>) -> Result<bool, Fault> {
    match outcome {
        Ok(()) => Ok(true),
        Err(fault) if fault.code == sys::CUresult::CUDA_ERROR_NOT_READY as u32 => Ok(false),
        Err(fault) => Err(fault),
    }
}

fn words(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn empty() -> Multiprocessors {
    sys::CUdevResource {
        type_: sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID,
        _internal_padding: [0; 92],
        __bindgen_anon_1: sys::CUdevResource_st__bindgen_ty_1 { _oversize: [0; 48] },
    }
}

fn count(set: &Multiprocessors) -> u32 {
    // SAFETY: both members of the union are plain numbers, valid for any bits.
    unsafe { set.__bindgen_anon_1.sm.smCount }
}
