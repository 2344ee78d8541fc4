//! Attention by cuDNN instead of the kernels: which of them a process takes, and the plans of one device.

use super::api::{
    AttentionError, AttentionOperands, AttentionShape, Cudnn, CudnnHandle, Pass, Plan, PlanTarget, version_name,
};
use super::gpu::Gpu;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// cuDNN supports heads whose size is a multiple of this.
pub const HEAD_SIZE_MULTIPLE: usize = 8;

static IS_FUSED: AtomicBool = AtomicBool::new(false);

/// Lets devices that are set up from now on compute attention by cuDNN.
///
/// # Errors
/// cuDNN is missing, unusable or too old.
pub fn take_cudnn() -> Result<(), AttentionError> {
    Cudnn::open()?;
    IS_FUSED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether devices compute attention by cuDNN.
pub fn takes_cudnn() -> bool {
    IS_FUSED.load(Ordering::Relaxed)
}

/// Returns the version of cuDNN, as in 9.28.1.
///
/// # Errors
/// cuDNN is missing, unusable or too old.
pub fn cudnn_version() -> Result<String, AttentionError> {
    Cudnn::open().map(|api| version_name(api.version))
}

/// Returns the most bytes that an operation may need for temporary data: float32 gradients of queries, gradients of keys and values by
/// head of queries in bfloat16, and two float32 numbers per query and head. cuDNN pads tokens, here to a multiple of 128.
pub fn workspace_bytes(shape: &AttentionShape) -> usize {
    let &AttentionShape { sequences, tokens, heads, groups, size } = shape;
    let rows = sequences * heads * tokens.next_multiple_of(128);
    let repeated = if groups < heads { 2 * 2 * size } else { 0 };
    rows * (4 * size + repeated + 2 * 4) + 4096
}

/// cuDNN's attention on one device.
pub struct FusedAttention {
    gpu: Arc<Gpu>,
    api: &'static Cudnn,
    /// Freed before the handle.
    plans: BTreeMap<(Pass, AttentionShape), Plan>,
    handle: CudnnHandle,
}

impl FusedAttention {
    /// Opens the library on a device.
    ///
    /// # Errors
    /// cuDNN is missing, too old, or does not start.
    pub fn new(gpu: &Arc<Gpu>) -> Result<FusedAttention> {
        gpu.make_current()?;
        let api = Cudnn::open()?;
        Ok(FusedAttention { gpu: gpu.clone(), api, plans: BTreeMap::new(), handle: api.handle()? })
    }

    /// Plans an operation, unless it is planned. Returns the bytes of its workspace.
    ///
    /// # Errors
    /// cuDNN has no engine for it.
    pub fn plan(&mut self, pass: Pass, shape: &AttentionShape) -> Result<usize> {
        let planned = match self.plans.entry((pass, *shape)) {
            std::collections::btree_map::Entry::Occupied(planned) => planned.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(self.api.plan(pass, shape, &PlanTarget::Handle(&self.handle))?)
            }
        };
        Ok(planned.workspace_bytes)
    }

    /// Enqueues an operation that is planned.
    ///
    /// # Errors
    /// It is not planned, or cuDNN fails.
    pub fn run(
        &self,
        pass: Pass,
        shape: &AttentionShape,
        operands: &AttentionOperands,
        stream: *mut c_void,
    ) -> Result<()> {
        let plan =
            self.plans.get(&(pass, *shape)).context("expected a planned attention, found none: plan it first")?;
        Ok(self.api.run(&self.handle, plan, operands, stream)?)
    }
}

impl Drop for FusedAttention {
    fn drop(&mut self) {
        // A fault here was already reported by an earlier call.
        let _ = self.gpu.make_current();
    }
}
