//! NCCL's point-to-point messages and collective calls.
//!
//! Messages between two ranks are matched in the order in which they were enqueued: a send with a receive of the same number of
//! bytes. NCCL rejects two ranks on one GPU. Types and signatures are cudarc's; its `Comm` is not used, because cudarc loads
//! NCCL by itself, as `libnccl.so`, from the loader's paths only.

use super::super::kernel::Precision;
use super::super::library::{self, Found, Missing};
use super::{Address, Context, Fault, Handle, Stream, symbol};
use anyhow::Result;
use cudarc::nccl::sys;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

super::functions! {
    /// The NCCL functions in use.
    #[derive(Clone)]
    Functions from sys {
        ncclGetVersion(*mut c_int);
        ncclGetUniqueId(*mut sys::ncclUniqueId);
        ncclCommInitRank(*mut sys::ncclComm_t, c_int, sys::ncclUniqueId, c_int);
        ncclSend(*const c_void, usize, sys::ncclDataType_t, c_int, sys::ncclComm_t, sys::cudaStream_t);
        ncclRecv(*mut c_void, usize, sys::ncclDataType_t, c_int, sys::ncclComm_t, sys::cudaStream_t);
        ncclAllReduce(
            *const c_void, *mut c_void, usize, sys::ncclDataType_t, sys::ncclRedOp_t, sys::ncclComm_t, sys::cudaStream_t,
        );
        ncclReduceScatter(
            *const c_void, *mut c_void, usize, sys::ncclDataType_t, sys::ncclRedOp_t, sys::ncclComm_t, sys::cudaStream_t,
        );
        ncclAllGather(
            *const c_void, *mut c_void, usize, sys::ncclDataType_t, sys::ncclComm_t, sys::cudaStream_t,
        );
        ncclGroupStart();
        ncclGroupEnd();
        ncclCommAbort(sys::ncclComm_t);
        ncclCommGetAsyncError(sys::ncclComm_t, *mut sys::ncclResult_t);
    } -> sys::ncclResult_t
}

/// Id of a communicator. One rank creates it and hands it to all others; it contains an address to meet at.
pub type UniqueId = [u8; 128];

/// `ncclInProgress`.
const IN_PROGRESS: u32 = 7;

/// Messages are counted in bytes.
const BYTE: sys::ncclDataType_t = sys::ncclDataType_t::ncclUint8;

/// Element type of a collective call.
fn number_type(precision: Precision) -> sys::ncclDataType_t {
    match precision {
        Precision::F32 => sys::ncclDataType_t::ncclFloat32,
        Precision::Bf16 => sys::ncclDataType_t::ncclBfloat16,
    }
}

/// Reduction of a collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Sum. The order of addition depends on an element's place, but all members receive the same bits.
    Sum,
    /// Maximum.
    Largest,
}

impl Join {
    fn operation(self) -> sys::ncclRedOp_t {
        match self {
            Join::Sum => sys::ncclRedOp_t::ncclSum,
            Join::Largest => sys::ncclRedOp_t::ncclMax,
        }
    }
}

/// An array in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub address: Address,
    pub count: usize,
    pub precision: Precision,
}

impl Numbers {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.precision.bytes()
    }
}

/// Why NCCL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// NCCL is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// NCCL is installed but unusable.
    #[error("expected NCCL 2 at {path}, found one that {problem}; pip install nvidia-nccl-cu13")]
    Broken {
        /// Path of the library.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Work before a call failed.
    #[error(transparent)]
    Driver(#[from] Fault),
    /// A call failed.
    #[error("expected {call} to succeed, found {reason}; run again with NCCL_DEBUG=INFO to see more")]
    Call {
        /// NCCL's function.
        call: &'static str,
        /// NCCL's description.
        reason: String,
    },
}

/// The library, loaded.
#[derive(Clone)]
pub struct Nccl {
    functions: Functions,
    error_string: unsafe extern "C" fn(u32) -> *const c_char,
    last_error: unsafe extern "C" fn(sys::ncclComm_t) -> *const c_char,
    found: Found,
}

/// Calls a function of NCCL on behalf of a communicator, or of null, and turns its status into a result.
macro_rules! call {
    ($nccl:expr, $communicator:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: result pointers point at locals of the right type; the communicator is alive and used by one thread at a
        // time; a wrong device address is a fault of the device, and freeing memory waits for the device.
        let code = unsafe { ($nccl.functions.$name)($($argument),*) };
        $nccl.check(stringify!($name), code, $communicator)
    }};
}

impl Nccl {
    /// Loads the library. Needs no GPU.
    pub fn open() -> Result<Nccl, Error> {
        let found = library::open(&library::NCCL)?;
        let broken = |problem| Error::Broken { path: found.path.clone(), problem };
        let opened = found.reopen().map_err(broken)?;
        let lacks = |names: Vec<&str>| broken(format!("lacks {}", names.join(", ")));
        let functions = Functions::load(&opened).map_err(lacks)?;
        let error_string = symbol(&opened, "ncclGetErrorString\0").ok_or_else(|| lacks(vec!["ncclGetErrorString"]))?;
        let last_error = symbol(&opened, "ncclGetLastError\0").ok_or_else(|| lacks(vec!["ncclGetLastError"]))?;
        Ok(Nccl { functions, error_string, last_error, found })
    }

    /// The library's file.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Returns the version: major, minor, patch. Needs no GPU.
    pub fn version(&self) -> Result<(i32, i32, i32), Error> {
        let mut code = 0;
        call!(self, ptr::null_mut(), ncclGetVersion(&mut code))?;
        // NCCL_VERSION in nccl.h: four digits up to 2.8, five from 2.9 on.
        let major = if code < 10_000 { 1_000 } else { 10_000 };
        Ok((code / major, code % major / 100, code % 100))
    }

    /// Creates an id, on the rank whose process the others connect to.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        call!(self, ptr::null_mut(), ncclGetUniqueId(&mut id))?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// Enqueues the sends and receives of `work` as one group: they progress together, so their order within the group cannot
    /// cause a deadlock. A group belongs to the calling thread.
    pub fn group<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        call!(self, ptr::null_mut(), ncclGroupStart())?;
        let end = GroupEnd(self);
        let outcome = work();
        let ended = ManuallyDrop::new(end).now();
        outcome.and_then(|value| ended.map(|()| value))
    }

    fn check(&self, call: &'static str, code: u32, communicator: sys::ncclComm_t) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        let text = |text: *const c_char| {
            // SAFETY: the text is null or ends with a zero, and is valid until this thread's next call of NCCL.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_string())
        };
        // SAFETY: every code and a null communicator are allowed.
        let (name, detail) = unsafe { (text((self.error_string)(code)), text((self.last_error)(communicator))) };
        let (name, detail) = (name.unwrap_or_default(), detail.filter(|detail| !detail.is_empty()));
        let reason = detail.map_or(name.clone(), |detail| format!("{name} ({detail})"));
        Err(Error::Call { call, reason })
    }
}

/// Ends a group even if `work` panics; otherwise later messages would wait forever in an unfinished group.
struct GroupEnd<'a>(&'a Nccl);

impl GroupEnd<'_> {
    fn now(&self) -> Result<(), Error> {
        call!(self.0, ptr::null_mut(), ncclGroupEnd())
    }
}

impl Drop for GroupEnd<'_> {
    fn drop(&mut self) {
        let _ = self.now();
    }
}

/// One rank of a communicator, with its own stream. Sends and receives complete in order.
///
/// It may move between threads, but only one may use it at a time.
pub struct Communicator {
    nccl: Nccl,
    handle: Handle<sys::ncclComm>,
    /// After an abort the handle is invalid. The cell also keeps the type from being `Sync`.
    is_aborted: Cell<bool>,
    stream: Stream,
    ranks: u32,
}

impl Communicator {
    /// Joins as rank `rank` of `ranks` on the context's GPU. Returns when all ranks have joined, each on its own thread or in its
    /// own process.
    ///
    /// # Errors
    /// NCCL's: two ranks on one GPU, or no connection between two ranks.
    pub fn join(nccl: &Nccl, context: &Arc<Context>, rank: u32, ranks: u32, id: UniqueId) -> Result<Communicator> {
        let stream = Stream::urgent(context)?; // its receives spin on multiprocessors that compute needs
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut handle = ptr::null_mut();
        call!(nccl, ptr::null_mut(), ncclCommInitRank(&mut handle, ranks as c_int, id, rank as c_int))?;
        Ok(Communicator {
            nccl: nccl.clone(),
            handle: Handle::new(handle),
            is_aborted: Cell::new(false),
            stream,
            ranks,
        })
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Enqueues a send of these bytes to rank `to`, which must receive as many.
    pub fn send(&self, from: Address, bytes: usize, to: u32) -> Result<(), Error> {
        let (this, source) = (self.handle()?, pointer(from));
        let stream = self.stream.raw()?.cast();
        call!(self.nccl, this, ncclSend(source, bytes, BYTE, to as c_int, this, stream))
    }

    /// Enqueues a receive of these bytes from rank `from`.
    pub fn receive(&self, into: Address, bytes: usize, from: u32) -> Result<(), Error> {
        let (this, target) = (self.handle()?, pointer(into));
        let stream = self.stream.raw()?.cast();
        call!(self.nccl, this, ncclRecv(target, bytes, BYTE, from as c_int, this, stream))
    }

    /// Enqueues an all-reduce of `data`, in place, on `stream`. All ranks make the same calls in the same order.
    pub fn all_reduce(&self, data: Numbers, join: Join, stream: &Stream) -> Result<(), Error> {
        let (this, place, kind) = (self.handle()?, pointer(data.address), number_type(data.precision));
        let stream = stream.raw()?.cast();
        call!(self.nccl, this, ncclAllReduce(place, place, data.count, kind, join.operation(), this, stream))
    }

    /// Enqueues a reduce-scatter on `stream`: sums `data` over all ranks, and writes this rank's piece to `share`.
    pub fn reduce_scatter(&self, data: Numbers, share: Address, stream: &Stream) -> Result<(), Error> {
        let (this, kind, sum) = (self.handle()?, number_type(data.precision), Join::Sum.operation());
        let (count, stream) = (data.count / self.ranks as usize, stream.raw()?.cast());
        call!(self.nccl, this, ncclReduceScatter(pointer(data.address), pointer(share), count, kind, sum, this, stream))
    }

    /// Enqueues an all-gather on `stream`: writes the shares of all ranks to `data`, in order.
    pub fn all_gather(&self, share: Numbers, data: Address, stream: &Stream) -> Result<(), Error> {
        let (this, kind, stream) = (self.handle()?, number_type(share.precision), stream.raw()?.cast());
        call!(self.nccl, this, ncclAllGather(pointer(share.address), pointer(data), share.count, kind, this, stream))
    }

    /// Checks whether enqueued messages have failed.
    ///
    /// # Errors
    /// NCCL's: a rank died, or a connection broke.
    pub fn check(&self) -> Result<(), Error> {
        let (this, mut code) = (self.handle()?, 0_u32);
        call!(self.nccl, this, ncclCommGetAsyncError(this, ptr::from_mut(&mut code).cast()))?;
        if code == IN_PROGRESS { Ok(()) } else { self.nccl.check("a message enqueued before", code, this) }
    }

    /// Aborts everything enqueued, for use after an error, when other ranks may never answer.
    pub fn abort(&self) {
        if let Ok(handle) = self.handle() {
            self.is_aborted.set(true);
            let _ = call!(self.nccl, ptr::null_mut(), ncclCommAbort(handle));
        }
    }

    fn handle(&self) -> Result<sys::ncclComm_t, Error> {
        match self.is_aborted.get() {
            true => Err(Error::Call { call: "a communicator's call", reason: "that it was aborted".to_string() }),
            false => Ok(self.handle.raw()),
        }
    }
}

fn pointer(address: Address) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address.0 as usize)
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}
