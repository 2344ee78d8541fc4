//! Memory that the devices of one machine share: threads of one process, or processes that map the same file.
//!
//! An arena holds slots and signals at offsets that follow from the plan alone, so they are the same in every process: a
//! symmetric heap. Who may touch a slot's data when is settled by its signals, which only grow.

use super::signal::Signal;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// Bytes at which everything in an arena is aligned: a cache line, so that two signals never share one.
const ALIGNMENT: usize = 64;

/// Zeroed memory.
#[derive(Debug)]
pub struct Arena {
    map: MmapRaw,
    /// By which others can open it.
    _file: Option<File>,
}

/// A run of bytes in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    offset: usize,
    bytes: usize,
}

/// Deals out places in an arena that is yet to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dealer {
    bytes: usize,
}

impl Dealer {
    /// Room for `bytes` bytes.
    pub fn region(&mut self, bytes: usize) -> Region {
        let region = Region { offset: self.bytes, bytes };
        self.bytes = (self.bytes + bytes).next_multiple_of(ALIGNMENT);
        region
    }

    /// Room for a word.
    pub fn word(&mut self) -> Region {
        self.region(size_of::<AtomicU64>())
    }

    /// Room for a signal.
    pub fn signal(&mut self) -> Region {
        self.region(size_of::<Signal>())
    }

    /// Bytes of everything dealt out.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Arena {
    /// Memory for the threads of this process.
    pub fn private(bytes: usize) -> io::Result<Arena> {
        Ok(Arena { map: MmapOptions::new().len(bytes.max(ALIGNMENT)).map_anon()?.into(), _file: None })
    }

    /// Memory of `bytes` bytes that other processes of this machine can [`Arena::open`] under the name returned, while this
    /// process lives. It is in no folder: nothing is left behind, however they end.
    pub fn create(bytes: usize) -> io::Result<(Arena, PathBuf)> {
        let bytes = bytes.max(ALIGNMENT);
        let file = File::from(rustix::fs::memfd_create("pipesim", rustix::fs::MemfdFlags::CLOEXEC)?);
        // Reserved now: a write to memory that is not there would end the process later.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64).map_err(|error| {
            let error = io::Error::from(error);
            let text = format!(
                "expected {} MiB of memory that processes share, found: {error}; choose a smaller model, or run without -n",
                bytes.div_ceil(1 << 20)
            );
            io::Error::new(error.kind(), text)
        })?;
        let name = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok((Arena { map: MmapOptions::new().map_raw(&file)?, _file: Some(file) }, name))
    }

    /// The memory that another process has created.
    pub fn open(path: &Path) -> io::Result<Arena> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arena { map: MmapOptions::new().map_raw(&file)?, _file: None })
    }

    fn at(&self, region: Region) -> *mut u8 {
        assert!(region.offset + region.bytes <= self.map.len(), "a region of another arena");
        self.map.as_mut_ptr().wrapping_add(region.offset)
    }

    /// The signal at `region`.
    pub fn signal(&self, region: Region) -> &Signal {
        let place = self.at(region);
        assert!(region.bytes == size_of::<Signal>() && place.addr().is_multiple_of(align_of::<Signal>()));
        // SAFETY: the bytes are inside the map, aligned, and live as long as `self`; a signal is made of atomics, for
        // which every bit pattern is a value and which threads and processes may share.
        unsafe { &*place.cast::<Signal>() }
    }

    /// The word at `region`.
    pub fn word(&self, region: Region) -> &AtomicU64 {
        let place = self.at(region);
        assert!(region.bytes == size_of::<AtomicU64>() && place.addr().is_multiple_of(align_of::<AtomicU64>()));
        // SAFETY: as for a signal.
        unsafe { &*place.cast::<AtomicU64>() }
    }

    /// The data at `region`, to be read.
    ///
    /// # Safety
    /// Nobody writes it while the result lives: its message has arrived and is not yet released.
    pub unsafe fn data(&self, region: Region) -> &[f32] {
        // SAFETY: inside the map and aligned; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.at(region).cast(), region.bytes / size_of::<f32>()) }
    }

    /// The data at `region`, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes it while the result lives: its last message was released and the next has not arrived.
    #[expect(clippy::mut_from_ref, reason = "signals, not the borrow checker, say who may write")]
    pub unsafe fn data_mut(&self, region: Region) -> &mut [f32] {
        // SAFETY: inside the map and aligned; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.at(region).cast(), region.bytes / size_of::<f32>()) }
    }
}

impl Region {
    /// The `bytes` bytes from `offset`.
    pub fn new(offset: usize, bytes: usize) -> Region {
        Region { offset, bytes }
    }

    /// Bytes from the arena's beginning, a multiple of 64.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// Its length.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// The word number `index` of those that it holds.
    pub fn word(self, index: usize) -> Region {
        let bytes = size_of::<AtomicU64>();
        assert!((index + 1) * bytes <= self.bytes, "a table is shorter than what is looked up in it");
        Region { offset: self.offset + index * bytes, bytes }
    }

    /// Its first `bytes` bytes.
    pub fn first(self, bytes: usize) -> Region {
        assert!(bytes <= self.bytes, "a region is shorter than what it is to hold");
        Region { bytes, ..self }
    }
}
