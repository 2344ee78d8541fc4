//! The driver (libcuda): its functions, and those calls that concern devices, contexts, memory and code.

use super::super::library::{self, Missing};
use super::handle::Handle;
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};

/// A driver context: what memory, streams and code belong to.
pub(in crate::cuda) type ContextHandle = Handle<sys::CUctx_st>;
/// A share of a device's multiprocessors.
pub(in crate::cuda) type GreenHandle = Handle<sys::CUgreenCtx_st>;
/// A queue of work.
pub(in crate::cuda) type StreamHandle = Handle<sys::CUstream_st>;
/// A position in a queue.
pub(in crate::cuda) type EventHandle = Handle<sys::CUevent_st>;
/// Loaded code.
pub(in crate::cuda) type ModuleHandle = Handle<sys::CUmod_st>;
/// A kernel in loaded code.
pub(in crate::cuda) type FunctionHandle = Handle<sys::CUfunc_st>;
/// A set of multiprocessors.
pub(in crate::cuda) type Multiprocessors = sys::CUdevResource;

super::functions! {
    /// What this layer calls of the driver. All of it is there since CUDA 12.8 (driver 570).
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
        cuStreamDestroy_v2(sys::CUstream);
        cuStreamSynchronize(sys::CUstream);
        cuStreamQuery(sys::CUstream);
        cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
        cuStreamWaitValue64_v2(sys::CUstream, sys::CUdeviceptr, sys::cuuint64_t, c_uint);
        #[cfg(feature = "internals")]
        cuStreamWriteValue64_v2(sys::CUstream, sys::CUdeviceptr, sys::cuuint64_t, c_uint);
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

/// The driver said no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: the driver answered {name} ({text}){}", advice(*.code))]
pub struct Fault {
    /// The function that was called.
    pub call: &'static str,
    /// The driver's number.
    pub code: u32,
    /// The driver's name of it.
    pub name: String,
    /// The driver's words.
    pub text: String,
}

impl Fault {
    /// Whether a device's multiprocessors cannot be parted so.
    pub(in crate::cuda) fn is_misfit(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION as u32
    }

    /// Whether there is no device.
    pub fn is_no_device(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_NO_DEVICE as u32
    }

    /// Whether device or pinned memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }
}

/// What to do about the commoner faults.
fn advice(code: u32) -> &'static str {
    use sys::CUresult::*;
    let advice: [(&[sys::CUresult], &str); 7] = [
        (&[CUDA_ERROR_OUT_OF_MEMORY], ": choose smaller or fewer micro-batches, bfloat16, or more stages"),
        (
            &[CUDA_ERROR_DEVICE_UNAVAILABLE],
            ": another process has the GPU in exclusive mode, end it or choose another GPU",
        ),
        (&[CUDA_ERROR_NO_DEVICE], ": no GPU is visible to this process, check CUDA_VISIBLE_DEVICES and nvidia-smi"),
        (
            &[CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU],
            ": the code is for another architecture, delete the kernel cache or unset PIPESIM_KERNELS",
        ),
        (
            &[CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION],
            ": the driver is older than the compiler, install NVRTC of the driver's CUDA version",
        ),
        (
            &[
                CUDA_ERROR_ILLEGAL_ADDRESS,
                CUDA_ERROR_MISALIGNED_ADDRESS,
                CUDA_ERROR_INVALID_ADDRESS_SPACE,
                CUDA_ERROR_INVALID_PC,
                CUDA_ERROR_LAUNCH_FAILED,
            ],
            ": a kernel went wrong and the GPU's state is lost, run again under compute-sanitizer and report it",
        ),
        (
            &[
                CUDA_ERROR_SYSTEM_NOT_READY,
                CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
            ],
            ": driver and device do not match, see nvidia-smi",
        ),
    ];
    let found = advice.iter().find(|(codes, _)| codes.iter().any(|known| *known as u32 == code));
    found.map_or("", |(_, words)| words)
}

/// The driver's functions.
pub(in crate::cuda) struct Api {
    pub(super) functions: Functions,
    name: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
    text: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
    /// `cuFuncLoad`, which a driver that loads all code at once need not have.
    load: Option<unsafe extern "C" fn(sys::CUfunction) -> u32>,
}

/// Calls a function of the driver and turns its status into a result.
macro_rules! call {
    ($api:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: a pointer for a result points at a local of its type, which outlives the call; handles and addresses
        // come from the driver and are alive, since their owner is borrowed; host memory that a copy touches later is
        // pinned and its owner keeps it until the copy is done. A wrong device address is a fault on the device, which the
        // driver reports: it cannot reach memory of this process.
        let code = unsafe { ($api.functions.$name)($($argument),*) };
        $api.check(stringify!($name), code)
    }};
    ($context:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let api = $context.api;
        call!(api.$name($($argument),*))
    }};
}
pub(super) use call;

/// Why the driver's functions cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unloadable {
    /// No driver.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// It is there but cannot be opened.
    #[error("expected NVIDIA's driver (libcuda.so.1), found one that cannot be opened: {0}; install the driver again")]
    Broken(String),
    /// It lacks functions.
    #[error("expected NVIDIA's driver 570 or newer, found one without {}: install a newer driver", .0.join(", "))]
    TooOld(Vec<&'static str>),
}

impl Api {
    /// Finds the driver and all functions.
    pub(in crate::cuda) fn load() -> Result<Api, Unloadable> {
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
            // SAFETY: the driver writes null or a pointer to words that it never frees.
            unsafe {
                function(code, &mut words);
                (!words.is_null()).then(|| CStr::from_ptr(words).to_string_lossy().into_owned())
            }
        };
        let name = words(self.name).unwrap_or_else(|| format!("error {code}"));
        Err(Fault { call, code, name, text: words(self.text).unwrap_or_else(|| "no description".into()) })
    }

    pub(in crate::cuda) fn initialise(&self) -> Result<(), Fault> {
        call!(self.cuInit(0))
    }

    /// CUDA version of the driver, 1000 major + 10 minor.
    pub(in crate::cuda) fn version(&self) -> Result<u32, Fault> {
        let mut version = 0;
        call!(self.cuDriverGetVersion(&mut version))?;
        Ok(version as u32)
    }

    pub(in crate::cuda) fn device_count(&self) -> Result<u32, Fault> {
        let mut count = 0;
        call!(self.cuDeviceGetCount(&mut count))?;
        Ok(count as u32)
    }

    pub(in crate::cuda) fn device(&self, ordinal: u32) -> Result<c_int, Fault> {
        let mut device = 0;
        call!(self.cuDeviceGet(&mut device, ordinal as c_int))?;
        Ok(device)
    }

    pub(in crate::cuda) fn device_name(&self, device: c_int) -> Result<String, Fault> {
        let mut name = [0; 256];
        call!(self.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        Ok(words(&name))
    }

    /// Such as `0000:18:00.0`.
    pub(in crate::cuda) fn device_pci(&self, device: c_int) -> Result<String, Fault> {
        let mut name = [0; 64];
        call!(self.cuDeviceGetPCIBusId(name.as_mut_ptr(), name.len() as c_int, device))?;
        Ok(words(&name))
    }

    pub(in crate::cuda) fn device_bytes(&self, device: c_int) -> Result<usize, Fault> {
        let mut bytes = 0;
        call!(self.cuDeviceTotalMem_v2(&mut bytes, device))?;
        Ok(bytes)
    }

    pub(in crate::cuda) fn attribute(&self, device: c_int, which: sys::CUdevice_attribute) -> Result<u32, Fault> {
        let mut value = 0;
        call!(self.cuDeviceGetAttribute(&mut value, which, device))?;
        Ok(value as u32)
    }

    pub(in crate::cuda) fn can_access(&self, device: c_int, peer: c_int) -> Result<bool, Fault> {
        let mut can = 0;
        call!(self.cuDeviceCanAccessPeer(&mut can, device, peer))?;
        Ok(can != 0)
    }

    /// Lets the current context read and write memory of `peer`.
    pub(in crate::cuda) fn enable_peer(&self, peer: ContextHandle) -> Result<(), Fault> {
        match call!(self.cuCtxEnablePeerAccess(peer.raw(), 0)) {
            Err(fault) if fault.code == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32 => Ok(()),
            outcome => outcome,
        }
    }

    /// All multiprocessors of a device, and how many they are.
    pub(in crate::cuda) fn multiprocessors(&self, device: c_int) -> Result<(Multiprocessors, u32), Fault> {
        let mut all = empty();
        let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        call!(self.cuDeviceGetDevResource(device, &mut all, kind))?;
        Ok((all, count(&all)))
    }

    /// Disjoint sets of at least `least` multiprocessors each, at most `most` sets; the driver rounds sizes up.
    pub(in crate::cuda) fn split(
        &self,
        all: &Multiprocessors,
        most: u32,
        least: u32,
    ) -> Result<Vec<(Multiprocessors, u32)>, Fault> {
        let mut sets = vec![empty(); most as usize];
        let (mut groups, mut rest) = (most, empty());
        call!(self.cuDevSmResourceSplitByCount(sets.as_mut_ptr(), &mut groups, all, &mut rest, 0, least))?;
        sets.truncate(groups as usize);
        Ok(sets.into_iter().map(|set| (set, count(&set))).collect())
    }

    /// A green context of these multiprocessors, with hardware queues of its own where the driver deals them, and the context that
    /// stands for it.
    pub(in crate::cuda) fn green(
        &self,
        device: c_int,
        share: Multiprocessors,
    ) -> Result<(GreenHandle, ContextHandle), Fault> {
        let (mut description, mut green, mut context) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let mut resources = [Resource::from(share), Resource::queues(device)];
        let resources = resources.as_mut_ptr().cast();
        let describe =
            |description: &mut _, count| call!(self.cuDevResourceGenerateDesc(description, resources, count));
        // a driver that knows of queues may still deal none, as where there are too many contexts
        if self.version()? < QUEUES_VERSION || describe(&mut description, 2).is_err() {
            describe(&mut description, 1)?;
        }
        let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as c_uint;
        call!(self.cuGreenCtxCreate(&mut green, description, device, flags))?;
        if let Err(fault) = call!(self.cuCtxFromGreenCtx(&mut context, green)) {
            self.destroy_green(Handle::new(green))?;
            return Err(fault);
        }
        Ok((Handle::new(green), Handle::new(context)))
    }

    pub(in crate::cuda) fn destroy_green(&self, green: GreenHandle) -> Result<(), Fault> {
        call!(self.cuGreenCtxDestroy(green.raw()))
    }

    /// Bytes of the current context's device: free, and in all.
    pub(in crate::cuda) fn memory(&self) -> Result<(usize, usize), Fault> {
        let (mut free, mut total) = (0, 0);
        call!(self.cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }

    /// Loads a CUBIN, or PTX that ends with a zero.
    pub(in crate::cuda) fn load_module(&self, image: &[u8]) -> Result<ModuleHandle, Fault> {
        let mut module = std::ptr::null_mut();
        call!(self.cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(Handle::new(module))
    }

    pub(in crate::cuda) fn unload_module(&self, module: ModuleHandle) -> Result<(), Fault> {
        call!(self.cuModuleUnload(module.raw()))
    }

    /// A kernel, loaded now: loading it at its first launch could wait for work that waits for that launch.
    pub(in crate::cuda) fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle, Fault> {
        let mut function = std::ptr::null_mut();
        call!(self.cuModuleGetFunction(&mut function, module.raw(), name.as_ptr()))?;
        if let Some(load) = self.load {
            // SAFETY: the function was just looked up.
            self.check("cuFuncLoad", unsafe { load(function) })?;
        }
        Ok(Handle::new(function))
    }

    pub(in crate::cuda) fn allow_shared_bytes(&self, function: FunctionHandle, bytes: u32) -> Result<(), Fault> {
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(self.cuFuncSetAttribute(function.raw(), which, bytes as c_int))
    }
}

/// The first driver that deals hardware queues to green contexts: CUDA 13.1.
const QUEUES_VERSION: u32 = 13010;

/// Streams of a slice: compute, send, receive.
const STREAMS: u32 = 3;

/// `CUdevResource` as numbers, of kinds that the bindings do not know, too.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource([u32; 36]);

const _: () = assert!(size_of::<Resource>() == size_of::<sys::CUdevResource>());
const _: () = assert!(align_of::<Resource>() >= align_of::<sys::CUdevResource>());

impl From<Multiprocessors> for Resource {
    fn from(share: Multiprocessors) -> Resource {
        // SAFETY: of the same size; what the driver wrote, and what it did not, is numbers that were initialised.
        unsafe { std::mem::transmute::<Multiprocessors, Resource>(share) }
    }
}

impl Resource {
    /// Hardware queues for the streams of a slice, which it shares with no other slice where there are enough:
    /// `CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG` with device, most streams at work at once, `CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED`.
    fn queues(device: c_int) -> Resource {
        let mut words = [0; 36];
        words[0] = 1000;
        words[24..27].copy_from_slice(&[device as u32, STREAMS, 1]);
        Resource(words)
    }
}

/// Whether it is done, where the driver answers "not ready" if it is not.
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
    // SAFETY: both members of the union are plain numbers, for which any bits will do.
    unsafe { set.__bindgen_anon_1.sm.smCount }
}
