//! Device memory: buffers, and a pool of those that are used again.

use super::super::check::Unfit;
use super::context::Context;
use super::driver::{Fault, call};
use super::event::ProcessHandle;
use super::handle::Address;
use anyhow::{Context as _, Result, bail};
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint};
use std::sync::Arc;

/// Memory of one device, freed on drop. Its contents are anything at first.
pub struct Buffer {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

/// The driver cuts smaller allocations out of pieces of so many bytes, and shares whole pieces.
const SHARED_BYTES: usize = 2 << 20;

impl Buffer {
    /// Allocates; 0 bytes are one place that nothing is read from.
    ///
    /// # Errors
    /// The device has not so much memory left: the error says how much there is.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Buffer> {
        context.make_current()?;
        let mut address = 0;
        match call!(context, cuMemAlloc_v2(&mut address, bytes.max(1))) {
            Ok(()) => Ok(Buffer { context: context.clone(), address: Address(address), bytes }),
            Err(fault) if fault.is_out_of_memory() => {
                let (free, total) = context.api.memory()?;
                bail!(Unfit(format!(
                    "expected {} MiB more of device memory, found {} of {} MiB free: choose smaller or fewer micro-batches, \
                     bfloat16, or more stages",
                    mib(bytes),
                    free >> 20,
                    total >> 20
                )))
            }
            Err(fault) => Err(fault).with_context(|| format!("allocating {bytes} bytes")),
        }
    }

    /// Memory that can be shared with another process: rounded up to whole pieces of the driver's, so that nothing else lies
    /// in what is shared.
    pub fn shareable(context: &Arc<Context>, bytes: usize) -> Result<Buffer> {
        let mut buffer = Buffer::new(context, bytes.next_multiple_of(SHARED_BYTES))?;
        buffer.bytes = bytes;
        Ok(buffer)
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A name by which another process of this machine can open it; it was made by [`Buffer::shareable`].
    ///
    /// # Errors
    /// The driver refuses: memory is not shared on this system.
    pub fn share(&self) -> Result<ProcessHandle, Fault> {
        self.context.make_current()?;
        let mut name = sys::CUipcMemHandle { reserved: [0; 64] };
        call!(self.context, cuIpcGetMemHandle(&mut name, self.address.0))?;
        Ok(name.reserved.map(|byte| byte as u8))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // a fault here was reported by an earlier call already
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuMemFree_v2(self.address.0)));
    }
}

/// Whole mebibytes, rounded up.
pub(in crate::cuda) fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// Another process's memory, open here until dropped.
pub struct Imported {
    context: Arc<Context>,
    address: Address,
}

impl Imported {
    /// Opens what [`Buffer::share`] named in another process.
    ///
    /// # Errors
    /// The driver refuses: the process is gone, or this one, or its GPU cannot be reached from this context's.
    pub fn open(context: &Arc<Context>, name: ProcessHandle) -> Result<Imported, Fault> {
        context.make_current()?;
        let mut address = 0;
        let name = sys::CUipcMemHandle { reserved: name.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        call!(context, cuIpcOpenMemHandle_v2(&mut address, name, flags))?;
        Ok(Imported { context: context.clone(), address: Address(address) })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuIpcCloseMemHandle(self.address.0)));
    }
}

/// Buffers that are used again, by size, last returned first. All of a pool's buffers are used on one stream: a buffer that
/// was returned while work on it is still enqueued is handed out to work enqueued behind that.
pub(in crate::cuda) struct Pool {
    context: Arc<Context>,
    free: BTreeMap<usize, Vec<Buffer>>,
    /// Since [`Pool::watch`]: sizes taken and given, in order.
    seen: Option<Vec<Move>>,
}

/// A buffer of this many bytes was taken, or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Move {
    Take(usize),
    Give(usize),
}

impl Pool {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Pool {
        Pool { context: context.clone(), free: BTreeMap::new(), seen: None }
    }

    /// A buffer of this many bytes that hold anything.
    pub(in crate::cuda) fn take(&mut self, bytes: usize) -> Result<Buffer> {
        self.seen.iter_mut().for_each(|seen| seen.push(Move::Take(bytes)));
        match self.free.get_mut(&bytes).and_then(Vec::pop) {
            Some(buffer) => Ok(buffer),
            None => self.allocate(bytes),
        }
    }

    /// Takes buffers back.
    pub(in crate::cuda) fn give(&mut self, buffers: impl IntoIterator<Item = Buffer>) {
        for buffer in buffers {
            self.seen.iter_mut().for_each(|seen| seen.push(Move::Give(buffer.bytes)));
            self.free.entry(buffer.bytes).or_default().push(buffer);
        }
    }

    /// Begins to note what is taken and given.
    pub(in crate::cuda) fn watch(&mut self) {
        self.seen = Some(Vec::new());
    }

    /// What was taken and given since [`Pool::watch`].
    pub(in crate::cuda) fn seen(&mut self) -> Vec<Move> {
        self.seen.take().unwrap_or_default()
    }

    /// Bytes that it would have to allocate to go through these moves without allocating.
    pub(in crate::cuda) fn lacking(&self, moves: impl Iterator<Item = Move>) -> BTreeMap<usize, usize> {
        let mut held: BTreeMap<usize, (usize, usize)> = BTreeMap::new(); // by size: now, most
        for step in moves {
            match step {
                Move::Take(bytes) => {
                    let (now, most) = held.entry(bytes).or_default();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                Move::Give(bytes) => {
                    let (now, _) = held.entry(bytes).or_default();
                    *now = now.saturating_sub(1);
                }
            }
        }
        let free = |bytes| self.free.get(&bytes).map_or(0, Vec::len);
        held.into_iter().map(|(bytes, (_, most))| (bytes, most.saturating_sub(free(bytes)))).collect()
    }

    /// Allocates so many free buffers of each size.
    pub(in crate::cuda) fn reserve(&mut self, counts: &BTreeMap<usize, usize>) -> Result<()> {
        for (&bytes, &count) in counts {
            for _ in 0..count {
                let buffer = self.allocate(bytes)?;
                self.free.entry(bytes).or_default().push(buffer);
            }
        }
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer> {
        Buffer::new(&self.context, bytes)
    }
}
