//! The few driver calls that the probes make, each found by name, so that a driver too old for the rest of this program
//! can still be told from none at all. Codes are plain numbers here: a newer driver has more than any list.

use super::finding::Finding;
use crate::cuda::library::{self, Missing};
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::time::{Duration, Instant};

/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY_ENABLED: c_int = 704;

/// `CUDA_ERROR_STUB_LIBRARY`.
const STUB: c_int = 34;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
const UNAVAILABLE: c_int = 46;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const NOT_READY: c_int = 802;
/// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`.
const MISMATCH: c_int = 803;
/// `CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE`.
const INCOMPATIBLE: c_int = 804;
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: c_int = 999;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_COMPUTEMODE_PROHIBITED`.
pub(super) const PROHIBITED: i32 = 2;
/// `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
pub(super) const EXCLUSIVE: i32 = 3;

/// Attributes of a device.
pub(super) mod attribute {
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    pub const MULTIPROCESSOR_COUNT: i32 = 16;
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`.
    pub const COMPUTE_MODE: i32 = 20;
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
    pub const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
    pub const COMPUTE_CAPABILITY_MINOR: i32 = 76;
}

/// A call that the driver refused, or that it does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub call: &'static str,
    /// None where the driver has no such function.
    pub code: Option<i32>,
    pub text: String,
}

impl Fault {
    /// As a row, with the one thing to do about this code.
    pub fn finding(&self) -> Finding {
        let fix = match self.code {
            Some(NO_DEVICE) => "check that a GPU is there and CUDA_VISIBLE_DEVICES shows it (nvidia-smi lists them)",
            Some(STUB) => "this libcuda is the toolkit's stub: take its folder out of LD_LIBRARY_PATH",
            Some(UNAVAILABLE) => "another process has the GPU in exclusive mode: end it, or nvidia-smi -c 0",
            Some(OUT_OF_MEMORY) => "another process has filled the GPU's memory: nvidia-smi names it",
            Some(NOT_READY | MISMATCH | INCOMPATIBLE) => {
                "driver and GPU do not match: install the driver again, or restart the machine"
            }
            Some(UNKNOWN) => "load the driver's modules (nvidia-modprobe -u), or restart the machine",
            None => "install a newer NVIDIA driver, 570 or newer",
            _ => "look for NVRM lines in dmesg; restart the driver or the machine",
        };
        Finding::broken(self.to_string(), fix)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            Some(code) => write!(f, "{} answered {code} ({})", self.call, self.text),
            None => write!(f, "the driver has no {}", self.call),
        }
    }
}

/// The driver's library, open.
pub(super) struct Driver {
    library: ManuallyDrop<Library>,
    pub path: std::path::PathBuf,
}

/// A driver context, that of a device.
#[derive(Clone, Copy)]
pub(super) struct Context(*mut c_void);

/// Calls a function of the driver by its name and argument types.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr => $kind:ty),* $(,)?)) => {{
        let driver: &Driver = $driver;
        // SAFETY: the name is the driver's and these are its types in cuda.h; pointers for results point at locals of the
        // right type that outlive the call; handles came from the driver; addresses are of memory of that size.
        match unsafe { driver.library.get::<unsafe extern "C" fn($($kind),*) -> c_int>(stringify!($name)) } {
            Ok(function) => driver.checked(stringify!($name), unsafe { function($($argument),*) }),
            Err(_) => Err(Fault { call: stringify!($name), code: None, text: String::new() }),
        }
    }};
}

impl Driver {
    /// Opens the library; initialises nothing.
    pub fn open() -> Result<Driver, Missing> {
        let found = library::open(&library::DRIVER)?;
        match found.reopen() {
            Ok(library) => Ok(Driver { library, path: found.path }),
            Err(reason) => Err(Missing {
                name: found.name,
                files: library::DRIVER.sonames,
                places: Vec::new(),
                broken: vec![reason],
                fix: library::DRIVER.fix.to_string(),
            }),
        }
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), Fault> {
        if code == 0 { Ok(()) } else { Err(Fault { call, code: Some(code), text: self.text(code) }) }
    }

    fn text(&self, code: c_int) -> String {
        type Name = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut text: *const c_char = ptr::null();
        // SAFETY: the types in cuda.h; the driver writes a pointer to a text of its own that ends with a zero, or leaves
        // null for a code that it does not know.
        unsafe {
            match self.library.get::<Name>("cuGetErrorName") {
                Ok(name) if name(code, &mut text) == 0 && !text.is_null() => {
                    CStr::from_ptr(text).to_string_lossy().into()
                }
                _ => "a code without a name".to_string(),
            }
        }
    }

    /// Whether a function is there.
    pub fn has(&self, name: &str) -> bool {
        // SAFETY: only the address is looked at.
        unsafe { self.library.get::<*mut c_void>(name) }.is_ok()
    }

    /// The CUDA version that the driver speaks: 13000 is 13.0. Needs no device.
    pub fn version(&self) -> Result<i32, Fault> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&mut version => *mut c_int))?;
        Ok(version)
    }

    /// Initialises it and says how many devices there are.
    pub fn initialize(&self) -> Result<i32, Fault> {
        let mut count = 0;
        call!(self, cuInit(0 => c_uint))?;
        call!(self, cuDeviceGetCount(&mut count => *mut c_int))?;
        Ok(count)
    }

    /// A device's handle; its number mostly.
    pub fn device(&self, number: i32) -> Result<c_int, Fault> {
        let mut device = 0;
        call!(self, cuDeviceGet(&mut device => *mut c_int, number => c_int))?;
        Ok(device)
    }

    pub fn device_name(&self, device: c_int) -> Result<String, Fault> {
        let mut bytes = [0u8; 256];
        call!(self, cuDeviceGetName(bytes.as_mut_ptr().cast() => *mut c_char, 255 => c_int, device => c_int))?;
        Ok(CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
    }

    pub fn attribute(&self, device: c_int, attribute: i32) -> Result<i32, Fault> {
        let mut value = 0;
        call!(self, cuDeviceGetAttribute(&mut value => *mut c_int, attribute => c_int, device => c_int))?;
        Ok(value)
    }

    /// Bytes of a device's memory.
    pub fn memory(&self, device: c_int) -> Result<usize, Fault> {
        let mut bytes = 0;
        call!(self, cuDeviceTotalMem_v2(&mut bytes => *mut usize, device => c_int))?;
        Ok(bytes)
    }

    /// Whether `device` can address the memory of `peer`.
    pub fn can_access(&self, device: c_int, peer: c_int) -> Result<bool, Fault> {
        let mut value = 0;
        call!(self, cuDeviceCanAccessPeer(&mut value => *mut c_int, device => c_int, peer => c_int))?;
        Ok(value != 0)
    }

    /// The device's primary context, current from now on in this thread. It lives until the process ends.
    pub fn context(&self, device: c_int) -> Result<Context, Fault> {
        let mut context = ptr::null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, device => c_int))?;
        self.make_current(Context(context))?;
        Ok(Context(context))
    }

    pub fn make_current(&self, context: Context) -> Result<(), Fault> {
        call!(self, cuCtxSetCurrent(context.0 => *mut c_void))
    }

    /// Free bytes of the current context's device.
    pub fn free_memory(&self) -> Result<usize, Fault> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize))?;
        Ok(free)
    }

    /// Lets the current context address the memory of `peer`.
    pub fn enable_peer(&self, peer: Context) -> Result<(), Fault> {
        match call!(self, cuCtxEnablePeerAccess(peer.0 => *mut c_void, 0 => c_uint)) {
            Err(Fault { code: Some(ALREADY_ENABLED), .. }) => Ok(()),
            other => other,
        }
    }
}

/// Device memory of one context with a stream to fill, copy and read it.
pub(super) struct Memory<'a> {
    driver: &'a Driver,
    context: Context,
    address: u64,
    stream: *mut c_void,
    bytes: usize,
}

impl<'a> Memory<'a> {
    pub fn new(driver: &'a Driver, context: Context, bytes: usize) -> Result<Memory<'a>, Fault> {
        driver.make_current(context)?;
        let mut memory = Memory { driver, context, address: 0, stream: ptr::null_mut(), bytes };
        call!(driver, cuStreamCreate(&mut memory.stream => *mut *mut c_void, NON_BLOCKING => c_uint))?;
        call!(driver, cuMemAlloc_v2(&mut memory.address => *mut u64, bytes => usize))?;
        Ok(memory)
    }

    /// Writes as much of `bytes` as there is room for.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Fault> {
        self.driver.make_current(self.context)?;
        let count = bytes.len().min(self.bytes);
        call!(self.driver, cuMemcpyHtoDAsync_v2(
            self.address => u64, bytes.as_ptr().cast() => *const c_void, count => usize, self.stream => *mut c_void,
        ))?;
        self.finish()
    }

    pub fn read(&self) -> Result<Vec<u8>, Fault> {
        self.driver.make_current(self.context)?;
        let mut bytes = vec![0; self.bytes];
        call!(self.driver, cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr().cast() => *mut c_void, self.address => u64, self.bytes => usize, self.stream => *mut c_void,
        ))?;
        self.finish()?;
        Ok(bytes)
    }

    /// Copies all of it to `other` as often as asked, and says how long that took.
    pub fn copy_to(&self, other: &Memory, times: u32) -> Result<Duration, Fault> {
        self.driver.make_current(self.context)?;
        let bytes = self.bytes.min(other.bytes);
        let begin = Instant::now();
        for _ in 0..times {
            call!(self.driver, cuMemcpyPeerAsync(
                other.address => u64, other.context.0 => *mut c_void, self.address => u64, self.context.0 => *mut c_void,
                bytes => usize, self.stream => *mut c_void,
            ))?;
        }
        self.finish()?;
        Ok(begin.elapsed())
    }

    fn finish(&self) -> Result<(), Fault> {
        call!(self.driver, cuStreamSynchronize(self.stream => *mut c_void))
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // Nothing can be done about a refusal here; the process ends soon.
        let _ = self.driver.make_current(self.context);
        if self.address != 0 {
            let _ = call!(self.driver, cuMemFree_v2(self.address => u64));
        }
        if !self.stream.is_null() {
            let _ = call!(self.driver, cuStreamDestroy_v2(self.stream => *mut c_void));
        }
    }
}
