//! The program's global allocator: the system's, with a limit while a schedule file is evaluated and an error message when memory
//! runs out.
//!
//! A child process under `setrlimit` is no alternative: its limit would have to include a 4 GiB stack, and libraries panic on
//! allocations that fail (starlark) where this allocator ends the program with advice.

use super::terminal::eprint;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::io::Write;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

static LIMITED: AtomicBool = AtomicBool::new(false);

/// Bytes that may still be allocated under the limit.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// Error message for exceeding the limit.
static REASON: Mutex<String> = Mutex::new(String::new());

/// The system's allocator with a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: every call goes unchanged to the system's allocator; the code around it accesses none of the memory.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps this method's contract, which is the contract of the system's allocator.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above; all blocks come from the system's allocator.
        granted(unsafe { System.realloc(block, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Limits allocations to `bytes` more until [`unlimited`]; exceeding that ends the program with exit code 3 and prints `reason`.
pub fn limit(bytes: u64, reason: String) {
    *REASON.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    // Freed memory is added to what is left; leave room for it.
    const MOST: i64 = i64::MAX / 2;
    LEFT.store(i64::try_from(bytes).map_or(MOST, |bytes| bytes.min(MOST)), Ordering::SeqCst);
    LIMITED.store(true, Ordering::SeqCst);
}

/// Removes the limit; returns whether one was set.
pub fn unlimited() -> bool {
    LIMITED.swap(false, Ordering::SeqCst)
}

/// Counts allocated (positive) or freed bytes. Without a limit this is one load.
#[inline]
fn count(bytes: i64) {
    if LIMITED.load(Ordering::Relaxed) && LEFT.fetch_sub(bytes, Ordering::Relaxed) < bytes {
        beyond();
    }
}

/// Ends the program because the limit is exceeded; the first thread prints the reason.
#[cold]
fn beyond() {
    if unlimited() {
        eprint(&REASON.lock().unwrap_or_else(PoisonError::into_inner));
        exit(3);
    }
}

/// Returns `block` unless it is null.
#[inline]
fn granted(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        refused(bytes);
    }
    block
}

/// Ends the program because memory ran out, without allocating.
#[cold]
fn refused(bytes: usize) -> ! {
    let line: fmt::Arguments<'_> = format_args!(
        "error: out of memory: this machine, or a limit set on this process (ulimit -v), grants no further {bytes} bytes; ask for \
         fewer devices, micro-batches or layers, or raise the limit\n"
    );
    let _ = std::io::stderr().write_fmt(line);
    exit(5)
}
