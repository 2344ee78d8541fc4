//! NVIDIA's driver and the GPUs that it finds.

use super::api::{Api, AttentionError, CompileError, Context, Fault, ProductError, Unloadable};
use super::library::Missing;
use cudarc::driver::sys::{CUcomputemode as Mode, CUdevice_attribute as Attribute};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The driver, loaded and initialised, with at least one GPU.
pub struct Driver {
    pub api: Api,
    version: u32,
    devices: u32,
}

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The driver is missing or too old.
    #[error("{0}, or run with `device` cpu")]
    Driver(Unloadable),
    /// The driver fails to initialise.
    #[error("expected a GPU, found a driver that does not start: {0}; or run with `device` cpu")]
    Start(Fault),
    /// No GPU is visible.
    #[error(
        "expected a GPU, found none: make one visible to this process (CUDA_VISIBLE_DEVICES), or run with `device` cpu"
    )]
    NoDevice,
    /// There is no such GPU, or it is too old, or it cannot be split this way.
    #[error("{0}")]
    Device(String),
}

impl From<Fault> for Unusable {
    fn from(fault: Fault) -> Unusable {
        if fault.is_no_device() { Unusable::NoDevice } else { Unusable::Start(fault) }
    }
}

impl Unusable {
    /// Whether `error` means that this machine lacks a driver, a GPU, the compiler, cuBLASLt or cuDNN.
    pub fn is_behind(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| {
            let compiler = cause.downcast_ref::<CompileError>();
            let products = cause.downcast_ref::<ProductError>();
            let attention = cause.downcast_ref::<AttentionError>();
            cause.is::<Unusable>()
                || cause.is::<Unloadable>()
                || cause.is::<Missing>()
                || matches!(compiler, Some(CompileError::Missing(_) | CompileError::Broken(_)))
                || matches!(products, Some(ProductError::Missing(_) | ProductError::Broken(_)))
                || attention.is_some_and(AttentionError::is_about_library)
        })
    }
}

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Index among the GPUs visible to this process.
    pub ordinal: u32,
    /// Name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Memory in bytes.
    pub memory_bytes: usize,
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// PCI address, unique on a machine.
    pub pci: String,
    /// Largest dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Whether a stream's wait for a word can also flush what arrived over a network before the word.
    pub flushes_remote_writes: bool,
}

/// Which processes may use a GPU, as set by `nvidia-smi -c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number.
    Shared,
    /// One at a time.
    Exclusive,
    /// None.
    Prohibited,
}

/// Lowest compute capability that the kernels support.
pub const LOWEST_CAPABILITY: (u32, u32) = (8, 0);

impl Facts {
    /// Checks that the kernels support this GPU.
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
             ({}) of {major}.{minor}: choose another GPU, or run with `device` cpu",
            self.ordinal, self.name
        )))
    }
}

impl Driver {
    /// Loads and initialises the driver. Success is remembered; after a failure the next call tries again.
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
        super::library::note_driver(version);
        Ok(DRIVER.get_or_init(|| Driver { api, version, devices }))
    }

    /// Returns the newest CUDA version that the driver supports: major, minor.
    pub fn version(&self) -> (u32, u32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// Number of GPUs visible to this process, at least 1.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns the properties of a GPU.
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

    /// Returns whether other processes may use a GPU.
    pub fn compute_mode(&self, ordinal: u32) -> Result<ComputeMode, Fault> {
        let mode = self.api.attribute(self.api.device(ordinal)?, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?;
        Ok(match mode {
            mode if mode == Mode::CU_COMPUTEMODE_PROHIBITED as u32 => ComputeMode::Prohibited,
            mode if mode == Mode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as u32 => ComputeMode::Exclusive,
            _ => ComputeMode::Shared,
        })
    }

    /// Returns the primary context of a GPU, current in this thread from now on.
    pub fn context(&'static self, ordinal: u32) -> Result<Arc<Context>, Fault> {
        let context = Context::primary(&self.api, self.api.device(ordinal)?)?;
        context.make_current()?;
        Ok(context)
    }

    /// Whether kernels and copies of GPU `from` can access the memory of GPU `to` directly.
    pub fn peer_access(&self, from: u32, to: u32) -> Result<bool, Fault> {
        self.api.can_access(self.api.device(from)?, self.api.device(to)?)
    }
}
