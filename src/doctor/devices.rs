//! The driver, the GPUs, and shares of their multiprocessors.

use super::driver::{Driver, EXCLUSIVE, Fault, NO_DEVICE, PROHIBITED, attribute};
use super::finding::Finding;
use crate::cuda::{self, Gpu};

/// The oldest driver that has all that this program calls: CUDA 12.8, driver 570.
const OLDEST_VERSION: i32 = 12_080;

/// The kernels are written for this compute capability and newer.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

const NO_DRIVER: &str = "not asked: there is no driver";
const DRIVER_FIRST: &str = "install the NVIDIA driver first";

/// What to say where there is no driver, or one that does not initialise; else the driver and how many devices it has.
pub(super) fn initialized() -> Result<(Driver, i32), Finding> {
    let Ok(driver) = Driver::open() else { return Err(Finding::unknown(NO_DRIVER, DRIVER_FIRST)) };
    match driver.initialize() {
        Ok(count) if count > 0 => Ok((driver, count)),
        Err(fault) if fault.code != Some(NO_DEVICE) => {
            Err(Finding::unknown(format!("not asked: {fault}"), "mend the driver first"))
        }
        _ => Err(Finding::unknown("not asked: no GPU is visible", "see devices")),
    }
}

pub(super) fn driver() -> Finding {
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(missing) => return missing.into(),
    };
    let version = match driver.version() {
        Ok(version) => version,
        Err(fault) => return fault.finding(),
    };
    let module = module_version().map(|module| format!(", module {module}")).unwrap_or_default();
    let path = driver.path.display();
    let found = format!("CUDA {}.{}{module}, {path}", version / 1000, version % 1000 / 10);
    if version < OLDEST_VERSION {
        let found = format!("{found}; expected CUDA 12.8 or newer");
        return Finding::broken(found, "install a newer NVIDIA driver, 570 or newer");
    }
    match driver.initialize() {
        Ok(_) => Finding::ok(found),
        // A driver without a GPU is well; the row of devices says what is not.
        Err(Fault { code: Some(NO_DEVICE), .. }) => Finding::ok(found),
        Err(fault) => {
            let finding = fault.finding();
            Finding { found: format!("{found}; {}", finding.found), ..finding }
        }
    }
}

/// The version of the kernel's module, which must fit the library.
fn module_version() -> Option<String> {
    std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_string())
}

pub(super) fn devices() -> Finding {
    let Ok(driver) = Driver::open() else { return Finding::unknown(NO_DRIVER, DRIVER_FIRST) };
    let count = match driver.initialize() {
        Ok(count) if count > 0 => count,
        Err(fault) if fault.code != Some(NO_DEVICE) => return fault.finding(),
        _ => {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").map(|v| format!(" (CUDA_VISIBLE_DEVICES='{v}')"));
            return Finding::missing(
                format!("no GPU is visible{}", visible.unwrap_or_default()),
                "check that a GPU is there and CUDA_VISIBLE_DEVICES shows it (nvidia-smi lists them)",
            );
        }
    };
    let devices: Result<Vec<Device>, Fault> = (0..count).map(|number| Device::ask(&driver, number)).collect();
    let devices = match devices {
        Ok(devices) => devices,
        Err(fault) => return fault.finding(),
    };
    let found: Vec<String> = devices.iter().map(Device::describe).collect();
    let found = found.join("; ");
    if devices.iter().all(|device| device.capability < OLDEST_CAPABILITY) {
        return Finding::broken(found, "use a GPU of compute capability 8.0 (Ampere) or newer");
    }
    match devices.iter().find(|device| device.mode == PROHIBITED) {
        Some(device) => Finding::broken(
            format!("{found}; device {} is closed to programs", device.number),
            format!("open it: nvidia-smi -i {} -c 0", device.number),
        ),
        None => Finding::ok(found),
    }
}

struct Device {
    number: i32,
    name: String,
    bytes: usize,
    free_bytes: Option<usize>,
    multiprocessors: i32,
    capability: (i32, i32),
    /// [`PROHIBITED`], [`EXCLUSIVE`] or another.
    mode: i32,
}

impl Device {
    fn ask(driver: &Driver, number: i32) -> Result<Device, Fault> {
        let device = driver.device(number)?;
        let attribute = |which| driver.attribute(device, which);
        let mode = attribute(attribute::COMPUTE_MODE)?;
        // A context is what every run begins with: a GPU that refuses it is not usable.
        let free_bytes = match mode {
            PROHIBITED => None,
            _ => {
                driver.context(device)?;
                Some(driver.free_memory()?)
            }
        };
        Ok(Device {
            number,
            name: driver.device_name(device)?,
            bytes: driver.memory(device)?,
            free_bytes,
            multiprocessors: attribute(attribute::MULTIPROCESSOR_COUNT)?,
            capability: (
                attribute(attribute::COMPUTE_CAPABILITY_MAJOR)?,
                attribute(attribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            mode,
        })
    }

    fn describe(&self) -> String {
        let gibibytes = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let Device { number, name, bytes, free_bytes, multiprocessors, capability: (major, minor), mode } = self;
        let free = free_bytes.map(|free| format!(" ({:.1} free)", gibibytes(free))).unwrap_or_default();
        let mode = if *mode == EXCLUSIVE { ", one process only" } else { "" };
        let memory = gibibytes(*bytes);
        format!(
            "{number}: {name}, {memory:.1} GiB{free}, {multiprocessors} multiprocessors, compute {major}.{minor}{mode}"
        )
    }
}

/// What slices of a GPU need of the driver.
const GREEN_FUNCTIONS: [&str; 5] = [
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
    "cuCtxFromGreenCtx",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
];

pub(super) fn green_contexts() -> Finding {
    let Ok(driver) = Driver::open() else { return Finding::unknown(NO_DRIVER, DRIVER_FIRST) };
    if let Some(name) = GREEN_FUNCTIONS.iter().find(|name| !driver.has(name)) {
        return Finding::missing(
            format!("the driver has no {name}"),
            "install a newer NVIDIA driver, 570 or newer, or do without --slices",
        );
    }
    if !matches!(driver.initialize(), Ok(1..)) {
        return Finding::ok("the driver has them; no GPU is visible that could be parted");
    }
    match cuda::Driver::open().map_err(Into::into).and_then(|driver| Gpu::slices(driver, 0, 2)) {
        Ok(slices) => {
            let each = slices.first().map_or(0, Gpu::multiprocessors);
            Finding::ok(format!("GPU 0 parts into 2 slices of {each} multiprocessors"))
        }
        Err(error) => {
            Finding::broken(format!("{error:#}"), "do without --slices; a MIG instance may be too small for two")
        }
    }
}
