//! NVML: clocks, power, and what slows a GPU down. Names and values follow nvml.h.

use super::{Handle, symbol as function};
use crate::library;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

type Device = *mut c_void;
type OfClock = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int;
type OfPower = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;
type OfReasons = unsafe extern "C" fn(Device, *mut c_ulonglong) -> c_int;

/// `NVML_CLOCK_SM`.
const SM_CLOCK: c_uint = 1;

/// Reasons for a clock below the highest that are no setting of the user and no idleness.
pub const REASONS: [(u64, &str); 5] = [
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
];

/// One look at a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuState {
    pub clock_mhz: u32,
    /// Power in milliwatts, if the GPU reports it.
    pub power_mw: Option<u32>,
    /// Bits of [`REASONS`].
    pub reasons: u64,
}

/// A GPU, as the driver's management library sees it.
pub struct Managed {
    device: Handle<c_void>,
    clock: OfClock,
    power: OfPower,
    reasons: OfReasons,
    /// The highest clock of its multiprocessors in MHz.
    pub most_mhz: u32,
}

impl Managed {
    /// Finds the GPU with this PCI address; `None` if the library is missing or does not know it.
    pub fn find(pci: &str) -> Option<Managed> {
        type Find = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
        let library = library::open(&library::MANAGEMENT).ok()?.reopen().ok()?;
        let init: unsafe extern "C" fn() -> c_int = function(&library, "nvmlInit_v2\0")?;
        let find: Find = function(&library, "nvmlDeviceGetHandleByPciBusId_v2\0")?;
        let most: OfClock = function(&library, "nvmlDeviceGetMaxClockInfo\0")?;
        let clock: OfClock = function(&library, "nvmlDeviceGetClockInfo\0")?;
        let power: OfPower = function(&library, "nvmlDeviceGetPowerUsage\0")?;
        let reasons: OfReasons = function(&library, "nvmlDeviceGetCurrentClocksThrottleReasons\0")?;
        let (name, mut device, mut most_mhz) = (CString::new(pci).ok()?, ptr::null_mut(), 0);
        // SAFETY: the types in nvml.h; the text ends with a zero, and result pointers point at locals.
        let found = unsafe {
            init() == 0 && find(name.as_ptr(), &mut device) == 0 && most(device, SM_CLOCK, &mut most_mhz) == 0
        };
        found.then(|| Managed { device: Handle::new(device), clock, power, reasons, most_mhz })
    }

    /// Returns its state; `None` if it reports none.
    pub fn state(&self) -> Option<GpuState> {
        let (mut clock_mhz, mut power, mut reasons) = (0, 0, 0);
        // SAFETY: the types in nvml.h; the device is the library's, and result pointers point at locals.
        unsafe {
            let device = self.device.raw();
            let power_mw = ((self.power)(device, &mut power) == 0).then_some(power);
            ((self.clock)(device, SM_CLOCK, &mut clock_mhz) == 0 && (self.reasons)(device, &mut reasons) == 0)
                .then_some(GpuState { clock_mhz, power_mw, reasons })
        }
    }
}
