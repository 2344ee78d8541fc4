//! A shard's memory for what is done once a step: norms, the factor of the update, gradients of other copies.

use super::api::event::Event;
use super::api::memory::Buffer;
use super::api::pinned::Pinned;
use super::gpu::Gpu;
use super::operation::MOST_NORM_GROUPS;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The memory.
pub(super) struct Step {
    /// Partial sums of one squared norm, doubles.
    pub(super) partial: Buffer,
    /// Squared norms of the parts here, doubles, and where the host reads them once the event is reached.
    pub(super) norms: Buffer,
    pub(super) host_norms: Pinned,
    pub(super) norms_done: Event,
    /// Order numbers of the norms, as they lie in memory.
    pub(super) orders: Vec<usize>,
    /// What gradients are multiplied by, one float32.
    pub(super) scale: Buffer,
    /// By stage: where another device puts its gradient.
    pub(super) inboxes: BTreeMap<u32, Buffer>,
}

/// Bytes of a double.
pub(super) const DOUBLE: usize = size_of::<f64>();

impl Step {
    pub(super) fn new(gpu: &Arc<Gpu>, parts: usize) -> Result<Step> {
        let context = gpu.context();
        Ok(Step {
            partial: Buffer::new(context, MOST_NORM_GROUPS * DOUBLE)?,
            norms: Buffer::new(context, parts * DOUBLE)?,
            host_norms: Pinned::new(context, parts * DOUBLE)?,
            norms_done: gpu.events().untimed()?,
            orders: Vec::new(),
            scale: Buffer::new(context, size_of::<f32>())?,
            inboxes: BTreeMap::new(),
        })
    }
}
