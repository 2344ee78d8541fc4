//! One kernel at a time, by its name, on memory that the host fills and reads: how a test compares every kernel on a device
//! with its twin on the CPU. Training goes another way: see [`super::Shard`].

use super::api::memory::Buffer;
use super::api::pinned::Pinned;
pub use super::api::stream::Argument;
use super::code::Kernels;
use super::driver::Driver;
use super::gpu::Gpu;
use super::kernel::{self, Launch, Precision};
use anyhow::{Context as _, Result, ensure};
use std::sync::{Mutex, PoisonError};

/// All kernels of one precision on one GPU. Every method returns when its work is done.
pub struct Launcher {
    gpu: Gpu,
    kernels: Kernels,
    /// What copies pass through; held during a copy.
    staging: Mutex<Pinned>,
}

impl Launcher {
    /// Opens GPU `ordinal` and loads the kernels there.
    pub fn open(driver: &'static Driver, ordinal: u32, precision: Precision) -> Result<Launcher> {
        let gpu = Gpu::whole(driver, ordinal)?;
        let kernels = Kernels::load(gpu.context(), gpu.facts(), precision)?;
        let staging = Mutex::new(Pinned::new(gpu.context(), 0)?);
        Ok(Launcher { gpu, kernels, staging })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Device memory with this content; it begins at a multiple of 256 bytes.
    pub fn upload(&self, content: &[u8]) -> Result<Buffer> {
        let buffer = Buffer::new(self.gpu.context(), content.len())?;
        self.staged(content.len(), |staging| {
            staging.write(0, content);
            self.gpu.compute.upload(buffer.address(), staging, 0..content.len())?;
            Ok(self.gpu.compute.synchronize()?)
        })?;
        Ok(buffer)
    }

    /// All bytes of `buffer`.
    pub fn download(&self, buffer: &Buffer) -> Result<Vec<u8>> {
        let mut content = vec![0; buffer.bytes()];
        self.staged(content.len(), |staging| {
            self.gpu.compute.download(staging, 0..content.len(), buffer.address())?;
            self.gpu.compute.synchronize()?;
            staging.read(0, &mut content);
            Ok(())
        })?;
        Ok(content)
    }

    /// Launches the kernel of this name, written as in [`kernel::NAMES`], and waits for its end. The arguments must be the
    /// kernel's, in its order, and memory behind pointers as large as the kernel states.
    ///
    /// # Errors
    /// There is no such kernel, the launch is beyond the device's limits, or the kernel failed.
    pub fn launch(&self, name: &str, launch: Launch, arguments: &[Argument]) -> Result<()> {
        ensure!(
            kernel::NAMES.contains(&name),
            "expected the name of a kernel, found {name}: choose one of {}",
            kernel::NAMES.join(", ")
        );
        self.kernels.allow(name, launch)?;
        self.gpu.make_current()?;
        self.gpu
            .compute
            .launch(self.kernels.get(name), launch, arguments)
            .and_then(|()| self.gpu.compute.synchronize())
            .with_context(|| format!("launching {name} as {launch:?}"))
    }

    /// Copies by pinned memory of at least so many bytes.
    fn staged(&self, bytes: usize, copy: impl FnOnce(&mut Pinned) -> Result<()>) -> Result<()> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if staging.bytes() < bytes {
            *staging = Pinned::new(self.gpu.context(), bytes.next_power_of_two())?;
        }
        self.gpu.make_current()?;
        if bytes == 0 { Ok(()) } else { copy(&mut staging) }
    }
}
