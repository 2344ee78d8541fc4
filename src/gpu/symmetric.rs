//! NVSHMEM's symmetric memory: an allocation on every rank, into which any rank can put data with a signal on a stream.

use super::api::{Address, Stream};
use super::library::Found;
use anyhow::{Context as _, Result, ensure};
use nvshmem_sys::{Library, NVSHMEM_CMP_GE, NVSHMEM_SIGNAL_SET, Status, UniqueId};
use std::ptr::NonNull;
use std::sync::Arc;

/// NVSHMEM in this process.
pub struct World {
    library: Library,
    ranks: u32,
}

impl World {
    /// Loads the library.
    pub fn open(found: &Found) -> Result<World> {
        Ok(World { library: Library::open(&found.path)?, ranks: 0 })
    }

    /// Returns an id by which ranks find each other. One rank creates it.
    pub fn unique_id(&self) -> Result<Vec<u8>> {
        Ok(self.library.unique_id()?.to_bytes().to_vec())
    }

    /// Initialises rank `rank` of `ranks` on the device whose context is current. All ranks must call this together.
    pub fn join(&mut self, rank: u32, ranks: u32, id: &[u8]) -> Result<()> {
        let id: &[u8; UniqueId::BYTES] = id.try_into().context("an NVSHMEM id has another length")?;
        let id = UniqueId::from_bytes(id)?;
        let status = self.library.init_with_unique_id(rank as i32, ranks as i32, &id)?;
        ensure!(
            status >= Status::Initialized,
            "expected NVSHMEM to initialise with a device, found it only {status:?}: see NVSHMEM_DEBUG=INFO"
        );
        self.ranks = ranks;
        Ok(())
    }
}

/// Symmetric memory, kept until the process ends: freeing it requires all ranks, and a rank may have ended.
pub struct Symmetric {
    world: Arc<World>,
    base: NonNull<std::ffi::c_void>,
    bytes: usize,
}

/// A word of symmetric memory.
pub struct Word<'a> {
    pub of: &'a Symmetric,
    /// Offset in bytes.
    pub offset: usize,
}

// SAFETY: the address of device memory that is never freed and never accessed by the host.
unsafe impl Send for Symmetric {}
// SAFETY: as above; any thread may call the library.
unsafe impl Sync for Symmetric {}

impl Symmetric {
    /// Allocates `bytes` bytes, the same number on all ranks, which must call this together.
    pub fn new(world: &Arc<World>, bytes: usize) -> Result<Symmetric> {
        let base = world.library.malloc(bytes.max(1))?.with_context(|| {
            format!(
                "expected {} MiB of NVSHMEM's symmetric memory, found too little: raise NVSHMEM_SYMMETRIC_SIZE",
                bytes.div_ceil(1 << 20)
            )
        })?;
        Ok(Symmetric { world: world.clone(), base, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the byte at `offset` on this rank.
    pub fn address(&self, offset: usize) -> Address {
        Address(self.base.as_ptr().expose_provenance() as u64 + offset as u64)
    }

    /// Enqueues a put of `bytes` bytes from offset `from` of this rank to offset `data` of rank `to`, and then sets `word` there to
    /// `value`.
    pub fn put(
        &self,
        [from, data]: [usize; 2],
        bytes: usize,
        word: Word<'_>,
        value: u64,
        to: u32,
        stream: &Stream,
    ) -> Result<()> {
        let (source, data) = (self.at(from, bytes)?, self.at(data, bytes)?);
        let word = word.of.at(word.offset, size_of::<u64>())?;
        ensure!(to < self.world.ranks, "expected a rank below {}, found {to}", self.world.ranks);
        // SAFETY: initialised with a device; all addresses are inside symmetric memory that is never freed; the rank exists; the
        // stream is alive.
        unsafe {
            self.world.library.putmem_signal_on_stream(
                data,
                source,
                bytes,
                word.cast(),
                value,
                NVSHMEM_SIGNAL_SET,
                to as i32,
                stream.raw()?.cast(),
            );
        }
        Ok(())
    }

    /// Enqueues setting the word at `place` of rank `to` to `value`.
    pub fn signal(&self, place: usize, value: u64, to: u32, stream: &Stream) -> Result<()> {
        let word = self.at(place, size_of::<u64>())?;
        ensure!(to < self.world.ranks, "expected a rank below {}, found {to}", self.world.ranks);
        let signal = self.world.library.functions().nvshmemx_signal_op_on_stream;
        // SAFETY: as for `put`.
        unsafe { signal(word.cast().as_ptr(), value, NVSHMEM_SIGNAL_SET, to as i32, stream.raw()?.cast()) };
        Ok(())
    }

    /// Makes later work wait until the word at `place` is at least `value`, by the library's own wait, which does not support ranks that
    /// share a GPU.
    pub fn wait(&self, place: usize, value: u64, stream: &Stream) -> Result<()> {
        let word = self.at(place, size_of::<u64>())?;
        let wait = self.world.library.functions().nvshmemx_signal_wait_until_on_stream;
        // SAFETY: as for `put`.
        unsafe { wait(word.cast().as_ptr(), NVSHMEM_CMP_GE, value, stream.raw()?.cast()) };
        Ok(())
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<NonNull<std::ffi::c_void>> {
        ensure!(
            offset + bytes <= self.bytes && offset.is_multiple_of(size_of::<u64>()),
            "expected an aligned offset of {bytes} bytes within {}, found {offset}",
            self.bytes
        );
        // SAFETY: inside the allocation, as just checked.
        Ok(unsafe { self.base.byte_add(offset) })
    }
}
