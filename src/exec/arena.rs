//! Memory shared by the devices of one machine: threads of one process, or processes that map the same file.
//!
//! An arena holds buffers and signals at offsets that depend only on the plan, so they are the same in every process (a symmetric
//! heap). The signals, which only grow, decide who may access a buffer.

use super::atomic::AtomicU64;
use super::signal::Signal;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Alignment in an arena: a cache line, so that two signals never share one.
const ALIGNMENT: usize = 64;

/// Zeroed memory.
#[derive(Debug)]
pub struct Arena {
    map: MmapRaw,
    /// The file by which other processes open it.
    _file: Option<File>,
}

/// A range of bytes in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    offset: usize,
    bytes: usize,
}

/// Assigns regions of an arena before it is created.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaLayout {
    bytes: usize,
}

impl ArenaLayout {
    /// Reserves `bytes` bytes.
    pub fn region(&mut self, bytes: usize) -> Region {
        let region = Region { offset: self.bytes, bytes };
        self.bytes = (self.bytes + bytes).next_multiple_of(ALIGNMENT);
        region
    }

    /// Reserves a word.
    pub fn word(&mut self) -> Region {
        self.region(size_of::<AtomicU64>())
    }

    /// Reserves a signal.
    pub fn signal(&mut self) -> Region {
        self.region(size_of::<Signal>())
    }

    /// Size of the arena in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Arena {
    /// Allocates memory for the threads of this process.
    pub fn private(bytes: usize) -> io::Result<Arena> {
        Ok(Arena { map: MmapOptions::new().len(bytes.max(ALIGNMENT)).map_anon()?.into(), _file: None })
    }

    /// Allocates memory that other processes of this machine can [`Arena::open`] by the returned path while this process lives. It
    /// is in no folder, so nothing is left behind.
    pub fn create(bytes: usize) -> io::Result<(Arena, PathBuf)> {
        let bytes = bytes.max(ALIGNMENT);
        let file = File::from(rustix::fs::memfd_create("pipesim", rustix::fs::MemfdFlags::CLOEXEC)?);
        // Reserve it now: a later write to missing memory would end the process.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64).map_err(|error| {
            let error = io::Error::from(error);
            let text = format!(
                "expected {} MiB of memory shared between processes, found: {error}; choose a smaller model, or run without -n",
                bytes.div_ceil(1 << 20)
            );
            io::Error::new(error.kind(), text)
        })?;
        let name = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok((Arena { map: MmapOptions::new().map_raw(&file)?, _file: Some(file) }, name))
    }

    /// Opens memory that another process created.
    pub fn open(path: &Path) -> io::Result<Arena> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arena { map: MmapOptions::new().map_raw(&file)?, _file: None })
    }

    fn at(&self, region: Region) -> *mut u8 {
        assert!(region.offset + region.bytes <= self.map.len(), "a region of another arena");
        self.map.as_mut_ptr().wrapping_add(region.offset)
    }

    /// Returns the signal at `region`.
    pub fn signal(&self, region: Region) -> &Signal {
        let pointer = self.at(region);
        assert!(region.bytes == size_of::<Signal>() && pointer.addr().is_multiple_of(align_of::<Signal>()));
        // SAFETY: the bytes are inside the map, aligned, and live as long as `self`; a signal consists of atomics, which are
        // valid for every bit pattern and may be shared by threads and processes.
        unsafe { &*pointer.cast::<Signal>() }
    }

    /// Returns the word at `region`.
    pub fn word(&self, region: Region) -> &AtomicU64 {
        let pointer = self.at(region);
        assert!(region.bytes == size_of::<AtomicU64>() && pointer.addr().is_multiple_of(align_of::<AtomicU64>()));
        // SAFETY: as for a signal.
        unsafe { &*pointer.cast::<AtomicU64>() }
    }

    /// Returns the data at `region`.
    ///
    /// # Safety
    /// No one writes it while the result lives: its message has arrived and is not yet released.
    pub unsafe fn data(&self, region: Region) -> &[f32] {
        // SAFETY: inside the map and aligned; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.at(region).cast(), region.bytes / size_of::<f32>()) }
    }

    /// Returns the data at `region` for writing.
    ///
    /// # Safety
    /// No one else accesses it while the result lives: its last message was released and the next has not arrived.
    #[expect(clippy::mut_from_ref, reason = "signals, not the borrow checker, decide who may write")]
    pub unsafe fn data_mut(&self, region: Region) -> &mut [f32] {
        // SAFETY: inside the map and aligned; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.at(region).cast(), region.bytes / size_of::<f32>()) }
    }
}

impl Region {
    /// Returns the `bytes` bytes from `offset`.
    pub fn new(offset: usize, bytes: usize) -> Region {
        Region { offset, bytes }
    }

    /// Offset in the arena in bytes, a multiple of 64.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// Returns word `index` of a table of words.
    pub fn word(self, index: usize) -> Region {
        self.slice(index * size_of::<AtomicU64>(), size_of::<AtomicU64>())
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns its `bytes` bytes from `start`.
    pub fn slice(self, start: usize, bytes: usize) -> Region {
        assert!(start + bytes <= self.bytes, "{bytes} bytes from {start} are beyond the region's {}", self.bytes);
        Region { offset: self.offset + start, bytes }
    }

    /// Returns its first `bytes` bytes.
    pub fn first(self, bytes: usize) -> Region {
        self.slice(0, bytes)
    }
}
