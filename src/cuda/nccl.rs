//! NCCL's point-to-point messages, by our own opening of `libnccl.so.2`: eleven functions, and channels that check them.
//!
//! Messages between two ranks are matched in the order in which they were enqueued, a send with a receive of the same
//! number of bytes: delivery `channel`. NCCL refuses two ranks on one GPU.

use super::api::handle::Address;
use super::api::stream::Stream;
use super::gpu::Gpu;
use super::library::{self, Found, Missing};
use anyhow::Result;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What one rank makes and all others are given: 128 bytes that hold an address to meet at.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; 128],
}

impl UniqueId {
    /// The bytes to hand on.
    pub fn to_bytes(self) -> [u8; 128] {
        self.bytes
    }

    /// The id that another rank handed on.
    pub fn from_bytes(bytes: [u8; 128]) -> UniqueId {
        UniqueId { bytes }
    }
}

/// `ncclUint8`: messages are counted in bytes.
const BYTE: c_int = 1;
/// `ncclSuccess`.
const SUCCESS: c_int = 0;
/// `ncclInProgress`.
const IN_PROGRESS: c_int = 7;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No library.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A library that is not what its name says.
    #[error("expected NCCL 2 at {path}, found no {absent} in it; pip install nvidia-nccl-cu13")]
    Symbol {
        /// Its file.
        path: PathBuf,
        /// What it lacks.
        absent: &'static str,
    },
    /// NCCL refused a call.
    #[error("expected {call} to succeed, found {reason}; run again with NCCL_DEBUG=INFO to see more")]
    Call {
        /// NCCL's function.
        call: &'static str,
        /// NCCL's own words.
        reason: String,
        /// Its `ncclResult_t`.
        code: i32,
    },
    /// A rank that is not there.
    #[error("expected a rank of 0 to {}, found {rank}; number the ranks from 0", ranks.saturating_sub(1))]
    Rank {
        /// The rank named.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
}

type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case, reason = "NCCL's own names")]
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) -> $result,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    // SAFETY: these are the functions' types in nccl.h, the same in every 2.x since 2.13.
                    $($name: unsafe { library.get(stringify!($name)) }.map(|symbol| *symbol).map_err(|_| stringify!($name))?,)*
                })
            }
        }
    };
}

functions! {
    ncclGetVersion(*mut c_int) -> c_int;
    ncclGetUniqueId(*mut UniqueId) -> c_int;
    ncclCommInitRank(*mut Handle, c_int, UniqueId, c_int) -> c_int;
    ncclSend(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    ncclRecv(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    ncclGroupStart() -> c_int;
    ncclGroupEnd() -> c_int;
    ncclCommAbort(Handle) -> c_int;
    ncclCommGetAsyncError(Handle, *mut c_int) -> c_int;
    ncclGetErrorString(c_int) -> *const c_char;
    ncclGetLastError(Handle) -> *const c_char;
}

/// The library, open.
#[derive(Clone, Debug)]
pub struct Nccl {
    functions: Functions,
    found: Found,
}

impl Nccl {
    /// Opens it, wherever [`library::open`] finds it. Needs no GPU.
    pub fn open() -> Result<Nccl, Error> {
        let found = library::open(&library::NCCL)?;
        let symbol = |absent| Error::Symbol { path: found.path.clone(), absent };
        let opened = found.reopen().map_err(|_| symbol("library"))?;
        let functions = Functions::find(&opened).map_err(symbol)?;
        Ok(Nccl { functions, found })
    }

    /// Its file.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Major, minor, patch. Needs no GPU.
    pub fn version(&self) -> Result<(i32, i32, i32), Error> {
        let mut code = 0;
        // SAFETY: a valid pointer to a C int.
        self.checked("ncclGetVersion", unsafe { (self.functions.ncclGetVersion)(&mut code) })?;
        // nccl.h's NCCL_VERSION: four digits up to 2.8, five from 2.9 on.
        let major = if code < 10_000 { 1_000 } else { 10_000 };
        Ok((code / major, code % major / 100, code % 100))
    }

    /// Makes an id; called by one rank, whose process the others meet at.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let mut id = UniqueId { bytes: [0; 128] };
        // SAFETY: a valid pointer to 128 bytes.
        self.checked("ncclGetUniqueId", unsafe { (self.functions.ncclGetUniqueId)(&mut id) })?;
        Ok(id)
    }

    /// Enqueues what `work` sends and receives as one: its messages progress together, so their order among themselves
    /// cannot deadlock. Groups are of the calling thread.
    pub fn group<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        // SAFETY: no arguments; allowed at any time.
        self.checked("ncclGroupStart", unsafe { (self.functions.ncclGroupStart)() })?;
        let end = GroupEnd(self);
        let outcome = work();
        let ended = end.now();
        outcome.and_then(|value| ended.map(|()| value))
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        if code == SUCCESS { Ok(()) } else { Err(self.failure(call, code, ptr::null_mut())) }
    }

    fn failure(&self, call: &'static str, code: c_int, communicator: Handle) -> Error {
        // SAFETY: any code and a null communicator are allowed; both texts are NCCL's own and end with a zero byte.
        let (name, detail) = unsafe {
            (text((self.functions.ncclGetErrorString)(code)), text((self.functions.ncclGetLastError)(communicator)))
        };
        let detail = detail.trim();
        let reason = if detail.is_empty() { name } else { format!("{name} ({detail})") };
        Error::Call { call, reason, code }
    }
}

/// Ends the group even where `work` panics, so that later messages do not wait for ever in a group without an end.
struct GroupEnd<'a>(&'a Nccl);

impl GroupEnd<'_> {
    fn now(self) -> Result<(), Error> {
        let this = ManuallyDrop::new(self);
        // SAFETY: ends the group that was started with this value.
        this.0.checked("ncclGroupEnd", unsafe { (this.0.functions.ncclGroupEnd)() })
    }
}

impl Drop for GroupEnd<'_> {
    fn drop(&mut self) {
        // SAFETY: ends the group that was started with this value.
        unsafe { (self.0.functions.ncclGroupEnd)() };
    }
}

/// # Safety
/// `text` is null or points to bytes that end with a zero and stay until the next call of NCCL by this thread.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A GPU among others, each with a rank of its own, on a stream of its own. What is sent and received completes in order.
///
/// May move to another thread; is used by one at a time.
pub struct Channel {
    nccl: Nccl,
    handle: NonNull<c_void>,
    /// It was aborted: what the handle names is no more.
    is_over: AtomicBool,
    ranks: u32,
    stream: Stream,
    /// Not shared between threads.
    unshared: PhantomData<*mut c_void>,
}

// SAFETY: NCCL lets any thread use a communicator, one at a time; it is not `Sync`.
unsafe impl Send for Channel {}

impl Channel {
    /// Rank `rank` of `ranks` with this GPU; returns when all have come, each on its own thread or in its own process.
    ///
    /// # Errors
    /// A rank outside the ranks; NCCL's own: two ranks on one GPU, no way from one to another.
    pub fn join(nccl: &Nccl, gpu: &Arc<Gpu>, rank: u32, ranks: u32, id: UniqueId) -> Result<Channel> {
        if rank >= ranks {
            return Err(Error::Rank { rank, ranks }.into());
        }
        gpu.make_current()?;
        let stream = Stream::new(gpu.context())?;
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: a valid place for the communicator; numbers are checked above, an id of any bytes is allowed.
        let code = unsafe { (nccl.functions.ncclCommInitRank)(&mut handle, ranks as c_int, id, rank as c_int) };
        match NonNull::new(handle) {
            Some(handle) if code == SUCCESS => Ok(Channel {
                nccl: nccl.clone(),
                handle,
                is_over: AtomicBool::new(false),
                ranks,
                stream,
                unshared: PhantomData,
            }),
            _ => Err(nccl.failure("ncclCommInitRank", code, ptr::null_mut()).into()),
        }
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Enqueues: these bytes go to rank `to`, whose receive of as many they meet.
    pub fn send(&self, (from, bytes): (Address, usize), to: u32) -> Result<(), Error> {
        let (to, source) = (self.peer(to)?, ptr::with_exposed_provenance(from.0 as usize));
        let (send, communicator, stream) = (self.nccl.functions.ncclSend, self.handle.as_ptr(), self.stream.raw());
        // SAFETY: the communicator is alive, and the stream beside it lives as long; a wrong device address is a fault on the
        // device, and freeing memory waits for the device.
        self.checked("ncclSend", unsafe { send(source, bytes, BYTE, to, communicator, stream) })
    }

    /// Enqueues: these bytes are filled by rank `from`.
    pub fn receive(&self, (into, bytes): (Address, usize), from: u32) -> Result<(), Error> {
        let (from, into) = (self.peer(from)?, ptr::with_exposed_provenance_mut(into.0 as usize));
        let (receive, communicator, stream) = (self.nccl.functions.ncclRecv, self.handle.as_ptr(), self.stream.raw());
        // SAFETY: as for `send`.
        self.checked("ncclRecv", unsafe { receive(into, bytes, BYTE, from, communicator, stream) })
    }

    /// Enqueues both at once, so that neither waits for the other.
    pub fn swap(&self, out: (Address, usize), into: (Address, usize), peer: u32) -> Result<(), Error> {
        self.nccl.group(|| {
            self.send(out, peer)?;
            self.receive(into, peer)
        })
    }

    /// Whether what was enqueued went wrong since; for a watchdog, or after waiting for a stream.
    ///
    /// # Errors
    /// NCCL's own: a rank that died, a connection that broke.
    pub fn check(&self) -> Result<(), Error> {
        self.alive()?;
        let mut code = SUCCESS;
        // SAFETY: the communicator is alive; a valid pointer to an `ncclResult_t`.
        let asked = unsafe { (self.nccl.functions.ncclCommGetAsyncError)(self.handle.as_ptr(), &mut code) };
        self.checked("ncclCommGetAsyncError", asked)?;
        if code == IN_PROGRESS { Ok(()) } else { self.checked("a message enqueued before", code) }
    }

    /// Ends it whatever is enqueued: the way after an error, when other ranks may never come.
    pub fn abort(&self) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            // SAFETY: the communicator is alive, and this is its last use.
            unsafe { (self.nccl.functions.ncclCommAbort)(self.handle.as_ptr()) };
        }
    }

    fn alive(&self) -> Result<(), Error> {
        let (call, reason) = ("a communicator's call", "that it was aborted".to_string());
        if self.is_over.load(Ordering::SeqCst) { Err(Error::Call { call, reason, code: 4 }) } else { Ok(()) }
    }

    fn peer(&self, peer: u32) -> Result<c_int, Error> {
        self.alive()?;
        if peer < self.ranks { Ok(peer as c_int) } else { Err(Error::Rank { rank: peer, ranks: self.ranks }) }
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        if code == SUCCESS { Ok(()) } else { Err(self.nccl.failure(call, code, self.handle.as_ptr())) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the wheel's library, without a GPU: `PIPESIM_CUDA_PATH` names its folder. Where it is nowhere, the error says so.
    #[test]
    fn the_library_opens_and_says_its_version_or_where_it_was_looked_for() {
        match Nccl::open() {
            Ok(nccl) => {
                let (major, minor, _) = nccl.version().expect("it needs no GPU");
                assert!(major == 2 && minor >= 13, "{major}.{minor}");
            }
            Err(Error::Missing(missing)) => assert!(missing.to_string().contains("libnccl.so.2"), "{missing}"),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_rank_that_is_not_there_is_refused() {
        let text = Error::Rank { rank: 2, ranks: 2 }.to_string();
        assert_eq!(text, "expected a rank of 0 to 1, found 2; number the ranks from 0");
    }
}
