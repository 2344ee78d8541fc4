//! Memory of the program: its allocator. It counts while something may take so much and no more, and says so where the machine
//! grants none.

use super::output::tell;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::io::Write;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether memory is limited.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Bytes that may still be taken while it is.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// What is said where more is taken.
static REASON: Mutex<String> = Mutex::new(String::new());

/// The allocator of the program: the system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

// SAFETY: every call is handed on to the system's allocator as it came; what stands around it touches no memory of it.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps what is asked of it, which is what the system's asks.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above; the block is the system's, for all are.
        granted(unsafe { System.realloc(block, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// From here on until [`unlimited`] at most `bytes` more may be taken; what asks for more ends the program, saying `reason`.
pub fn limit(bytes: u64, reason: String) {
    *REASON.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    // What is given back counts, too: there is room above for that.
    const MOST: i64 = i64::MAX / 2;
    LEFT.store(i64::try_from(bytes).map_or(MOST, |bytes| bytes.min(MOST)), Ordering::SeqCst);
    LIMITED.store(true, Ordering::SeqCst);
}

/// Ends [`limit`]; whether it stood until now.
pub fn unlimited() -> bool {
    LIMITED.swap(false, Ordering::SeqCst)
}

/// Counts `bytes` more, or fewer. Where no limit stands this is one load.
#[inline]
fn count(bytes: i64) {
    if LIMITED.load(Ordering::Relaxed) && LEFT.fetch_sub(bytes, Ordering::Relaxed) < bytes {
        beyond();
    }
}

/// Ends the program for what is beyond the limit; the first thread that comes here says so.
#[cold]
fn beyond() {
    if unlimited() {
        tell(&REASON.lock().unwrap_or_else(PoisonError::into_inner));
        exit(3);
    }
}

/// `block`, where the system granted it.
#[inline]
fn granted(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        refused(bytes);
    }
    block
}

/// Ends the program for want of memory, without taking any.
#[cold]
fn refused(bytes: usize) -> ! {
    let line: fmt::Arguments<'_> = format_args!(
        "error: out of memory: this machine, or a limit set on this process (ulimit -v), grants no further {bytes} bytes; ask for \
         fewer devices, micro-batches or layers, or raise the limit\n"
    );
    let _ = std::io::stderr().write_fmt(line);
    exit(5)
}
