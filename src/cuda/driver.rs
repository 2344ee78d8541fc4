//! NVIDIA's driver and the devices it knows. Everything else of this layer begins here.

use super::api::compiler::CompileError;
use super::api::driver::{Api, Fault, Unloadable};
use super::api::products::ProductError;
use super::library::Missing;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The driver, with at least one device.
pub struct Driver {
    pub(super) api: Api,
    version: u32,
    devices: u32,
}

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The driver is absent or too old.
    #[error("{0}, or run with --device cpu")]
    Driver(Unloadable),
    /// The driver does not start.
    #[error("expected a GPU, found a driver that does not start: {0}; correct that, or run with --device cpu")]
    Start(Fault),
    /// There is no GPU.
    #[error(
        "expected a GPU, found none: make one visible to this process (CUDA_VISIBLE_DEVICES), or run with --device cpu"
    )]
    NoDevice,
    /// There is no such GPU, or it is too old, or cannot be parted so.
    #[error("{0}")]
    Device(String),
}

impl From<Fault> for Unusable {
    fn from(fault: Fault) -> Unusable {
        if fault.is_no_device() { Unusable::NoDevice } else { Unusable::Start(fault) }
    }
}

impl Unusable {
    /// Whether an error says that this machine lacks what was asked for: a driver, a device, the compiler, cuBLASLt.
    pub fn is_behind(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| {
            let compiler = cause.downcast_ref::<CompileError>();
            let products = cause.downcast_ref::<ProductError>();
            cause.is::<Unusable>()
                || cause.is::<Unloadable>()
                || cause.is::<Missing>()
                || matches!(compiler, Some(CompileError::Missing(_) | CompileError::Broken(_)))
                || matches!(products, Some(ProductError::Missing(_) | ProductError::Broken(_)))
        })
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Number among those that this process sees.
    pub ordinal: u32,
    /// Such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// PCI address, which tells devices of one machine apart.
    pub pci: String,
    /// Most dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether a wait for a word can make sure that what came over a network before the word is seen behind it.
    pub flushes_remote_writes: bool,
}

/// Lowest compute capability whose tensor cores and instructions the kernels use.
pub const LOWEST_CAPABILITY: (u32, u32) = (8, 0);

impl Facts {
    /// Whether the kernels run on it; an error says why not.
    ///
    /// # Errors
    /// Its compute capability is below [`LOWEST_CAPABILITY`].
    pub fn usable(&self) -> Result<(), Unusable> {
        let ((major, minor), (least, least_minor)) = (self.capability, LOWEST_CAPABILITY);
        if self.capability >= LOWEST_CAPABILITY {
            return Ok(());
        }
        Err(Unusable::Device(format!(
            "expected a GPU of compute capability {least}.{least_minor} or higher (bfloat16 on tensor cores), found GPU {} \
             ({}) of {major}.{minor}: choose another GPU, or run with --device cpu",
            self.ordinal, self.name
        )))
    }
}

impl Driver {
    /// Opens the driver. Never panics: what is missing is named by the error. An answer of "yes" is remembered, one of "no"
    /// is found out again at the next call.
    pub fn open() -> Result<&'static Driver, Unusable> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        static OPENING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let api = Api::load().map_err(Unusable::Driver)?;
        api.initialise()?;
        let devices = api.device_count()?;
        if devices == 0 {
            return Err(Unusable::NoDevice);
        }
        let version = api.version()?;
        Ok(DRIVER.get_or_init(|| Driver { api, version, devices }))
    }

    /// The newest CUDA that the driver serves: major and minor.
    pub fn version(&self) -> (u32, u32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// Number of devices that this process sees, at least 1.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// What the driver says of a device.
    pub fn facts(&self, ordinal: u32) -> anyhow::Result<Facts> {
        if ordinal >= self.devices {
            let words = "choose one of those that nvidia-smi lists";
            let words = format!("expected a GPU below {}, found GPU {ordinal}: {words}", self.devices);
            return Err(Unusable::Device(words).into());
        }
        let device = self.api.device(ordinal)?;
        let attribute = |which| self.api.attribute(device, which);
        Ok(Facts {
            ordinal,
            name: self.api.device_name(device)?,
            memory_bytes: self.api.device_bytes(device)?,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            pci: self.api.device_pci(device)?,
            shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            flushes_remote_writes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)? != 0,
        })
    }

    /// Whether kernels and copies of one device can reach another's memory directly.
    pub fn peer_access(&self, from: u32, to: u32) -> Result<bool, Fault> {
        self.api.can_access(self.api.device(from)?, self.api.device(to)?)
    }
}
