//! The library, opened: its functions, checked, and a small part that is safe to call.

use crate::error::Error;
use crate::functions::Functions;
use crate::layout::*;
use libloading::os::unix;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How far initialisation came. They are ordered: a later one can do what an earlier can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Nothing was initialised, or it was ended.
    NotInitialized,
    /// The PEs know each other; no device is set up. What a machine without a GPU comes to.
    Bootstrapped,
    /// One PE a GPU: everything works.
    Initialized,
    /// PEs share a GPU without MPS: waits on signals, teams and collectives other than barriers **end the process**.
    LimitedMpg,
    /// PEs share a GPU through MPS: everything works.
    FullMpg,
    /// A state of a version newer than this package.
    Unknown(i32),
}

impl From<c_int> for Status {
    fn from(status: c_int) -> Status {
        match status {
            NVSHMEM_STATUS_NOT_INITIALIZED => Status::NotInitialized,
            NVSHMEM_STATUS_IS_BOOTSTRAPPED => Status::Bootstrapped,
            NVSHMEM_STATUS_IS_INITIALIZED => Status::Initialized,
            NVSHMEM_STATUS_LIMITED_MPG => Status::LimitedMpg,
            NVSHMEM_STATUS_FULL_MPG => Status::FullMpg,
            other => Status::Unknown(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::NotInitialized => "not initialised",
            Status::Bootstrapped => "bootstrapped, without a device",
            Status::Initialized => "initialised",
            Status::LimitedMpg => "initialised, sharing a GPU without MPS",
            Status::FullMpg => "initialised, sharing a GPU through MPS",
            Status::Unknown(status) => return write!(f, "in the unknown state {status}"),
        })
    }
}

/// What one PE makes and hands to all others, over whatever joins them: 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(nvshmemx_uniqueid_t);

impl UniqueId {
    /// How many bytes it has.
    pub const BYTES: usize = size_of::<nvshmemx_uniqueid_t>();

    /// Its bytes. They mean the same on every machine of one byte order.
    pub fn to_bytes(&self) -> [u8; UniqueId::BYTES] {
        let mut bytes = [0; UniqueId::BYTES];
        let (version, internal) = bytes.split_at_mut(size_of::<c_int>());
        version.copy_from_slice(&self.0.version.to_ne_bytes());
        internal.iter_mut().zip(self.0.internal).for_each(|(byte, value)| *byte = value as u8);
        bytes
    }

    /// The one with these bytes.
    ///
    /// # Errors
    /// Bytes that do not begin as a unique id does.
    pub fn from_bytes(bytes: &[u8; UniqueId::BYTES]) -> Result<UniqueId, Error> {
        let mut id = nvshmemx_uniqueid_t::default();
        let (version, internal) = bytes.split_at(size_of::<c_int>());
        if version != id.version.to_ne_bytes() {
            let expected = id.version;
            return Err(Error::Argument(format!(
                "expected the bytes of a unique id, which begin with {expected}, found {version:?}; \
                 hand on all {} bytes that to_bytes gave",
                UniqueId::BYTES
            )));
        }
        id.internal.iter_mut().zip(internal).for_each(|(value, byte)| *value = *byte as c_char);
        Ok(UniqueId(id))
    }
}

/// An open NVSHMEM host library.
///
/// The state is the process's, not this value's: two of them speak of the same PE. The safe functions call the library one
/// at a time, as its thread level asks for; calls through [`Library::functions`] are the caller's to order.
#[derive(Clone, Debug)]
pub struct Library {
    functions: Functions,
    version: (i32, i32, i32),
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    /// Opens the library for good, with `RTLD_NOW | RTLD_GLOBAL`: its bootstraps look its symbols up by name. A bare
    /// `libnvshmem_host.so.3` is looked for by the loader. Needs no GPU and no driver.
    ///
    /// # Errors
    /// No such file, one that lacks a function of [`crate::SYMBOLS`], one of another major version than 3.
    pub fn open(path: impl AsRef<Path>) -> Result<Library, Error> {
        let path = path.as_ref().to_path_buf();
        // SAFETY: the initialisers of this library register options and nothing else. It is never closed: threads of its
        // own may run until the process ends.
        let library = unsafe { unix::Library::open(Some(path.as_os_str()), unix::RTLD_NOW | unix::RTLD_GLOBAL) };
        let library = library.map_err(|error| {
            let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Error::Open { path: path.clone(), reason }
        })?;
        let library = std::mem::ManuallyDrop::new(library);
        let functions = Functions::find(&library).map_err(|absent| Error::Symbols { path: path.clone(), absent })?;
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: three valid pointers to C ints, written before the call returns.
        unsafe { (functions.nvshmemx_vendor_get_version_info)(&mut major, &mut minor, &mut patch) };
        let version = (major, minor, patch);
        if major != 3 {
            return Err(Error::Version { path, found: version });
        }
        Ok(Library { functions, version })
    }

    /// All functions, to be called at the caller's own risk.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Major, minor, patch.
    pub fn version(&self) -> (i32, i32, i32) {
        self.version
    }

    /// How far initialisation came. Needs no GPU.
    pub fn status(&self) -> Status {
        // SAFETY: reads a number of the library's; allowed in every state.
        Status::from(unsafe { (self.functions.nvshmemx_init_status)() })
    }

    /// Makes a unique id and begins to listen for the other PEs. Called by one PE; the process must live until all are
    /// initialised. Needs no GPU; needs a network interface that is up (`NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo` asks for
    /// the loopback one).
    ///
    /// # Errors
    /// The library's, where no interface can be listened on.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let _guard = one_at_a_time();
        let mut id = nvshmemx_uniqueid_t::default();
        // SAFETY: a valid pointer to a structure of version 1, filled before the call returns.
        match unsafe { (self.functions.nvshmemx_get_uniqueid)(&mut id) } {
            0 => Ok(UniqueId(id)),
            code => Err(Error::Call { call: "nvshmemx_get_uniqueid", code, status: self.status() }),
        }
    }

    /// Initialises this process as PE `rank` of `ranks`; collective: returns when all have come. Every PE is a process of
    /// its own. Needs no GPU to end [`Status::Bootstrapped`]; with one, its primary context must be current, and the
    /// status is a later one. Pass on [`Library::status`]'s answer, not the code that C returns: versions differ in what
    /// they return without a GPU.
    ///
    /// # Errors
    /// A rank outside the ranks, a library that is initialised already, the library's own failure. Some failures inside
    /// the library end the process.
    pub fn init_with_unique_id(&self, rank: i32, ranks: i32, id: &UniqueId) -> Result<Status, Error> {
        if rank < 0 || rank >= ranks {
            return Err(Error::Argument(format!(
                "expected a rank of 0 to ranks - 1, found rank {rank} of {ranks}; number the processes from 0"
            )));
        }
        let _guard = one_at_a_time();
        self.need_none("nvshmemx_set_attr_uniqueid_args")?;
        let (mut attr, id) = (nvshmemx_init_attr_t::default(), id.0);
        // SAFETY: both structures are of version 1 and outlive the two calls; the library keeps no pointer to them.
        let code = unsafe { (self.functions.nvshmemx_set_attr_uniqueid_args)(rank, ranks, &id, &mut attr) };
        if code != 0 {
            return Err(Error::Call { call: "nvshmemx_set_attr_uniqueid_args", code, status: self.status() });
        }
        // SAFETY: `attr` was filled above for this bootstrap, and the id that it points to lives until the end.
        unsafe { self.init(NVSHMEMX_INIT_WITH_UNIQUEID, &mut attr) }
    }

    /// Initialises by an MPI communicator: rank and size are the communicator's; collective over it. Needs
    /// `nvshmem_bootstrap_mpi.so.3` beside the library, which was built for Open MPI (`libmpi.so.40`); as
    /// [`Library::init_with_unique_id`] otherwise.
    ///
    /// # Safety
    /// `communicator` points to a valid `MPI_Comm` of an MPI that is initialised, whose library was opened with
    /// `RTLD_GLOBAL` (or linked) and which is not finalised before NVSHMEM is.
    ///
    /// # Errors
    /// A library that is initialised already, the library's own failure.
    pub unsafe fn init_with_mpi(&self, communicator: NonNull<c_void>) -> Result<Status, Error> {
        let _guard = one_at_a_time();
        self.need_none("nvshmemx_set_attr_mpi_comm_args")?;
        let mut attr = nvshmemx_init_attr_t::default();
        // SAFETY: a structure of version 1 that outlives the call; the communicator is the caller's promise.
        let code = unsafe { (self.functions.nvshmemx_set_attr_mpi_comm_args)(communicator.as_ptr(), &mut attr) };
        if code != 0 {
            return Err(Error::Call { call: "nvshmemx_set_attr_mpi_comm_args", code, status: self.status() });
        }
        // SAFETY: `attr` was filled above for this bootstrap.
        unsafe { self.init(NVSHMEMX_INIT_WITH_MPI_COMM, &mut attr) }
    }

    /// # Safety
    /// `attr` is filled for the bootstrap that `flags` names.
    unsafe fn init(&self, flags: c_uint, attr: &mut nvshmemx_init_attr_t) -> Result<Status, Error> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.nvshmemx_hostlib_init_attr)(flags, ptr::from_mut(attr)) };
        match self.status() {
            Status::NotInitialized => {
                Err(Error::Call { call: "nvshmemx_hostlib_init_attr", code, status: Status::NotInitialized })
            }
            status => Ok(status),
        }
    }

    /// This PE. Needs a bootstrap, no GPU.
    ///
    /// # Errors
    /// The library is not initialised.
    pub fn my_pe(&self) -> Result<i32, Error> {
        self.need("nvshmem_my_pe", Status::Bootstrapped)?;
        // SAFETY: allowed from the bootstrap on.
        Ok(unsafe { (self.functions.nvshmem_my_pe)() })
    }

    /// How many PEs. Needs a bootstrap, no GPU.
    ///
    /// # Errors
    /// The library is not initialised.
    pub fn n_pes(&self) -> Result<i32, Error> {
        self.need("nvshmem_n_pes", Status::Bootstrapped)?;
        // SAFETY: allowed from the bootstrap on.
        Ok(unsafe { (self.functions.nvshmem_n_pes)() })
    }

    /// Ends; collective. All symmetric memory is gone. Does nothing where no device was set up: a library that is only
    /// bootstrapped cannot be ended (C's function **ends the process** there with code 255), nor initialised again; it
    /// ends with the process.
    pub fn finalize(&self) {
        let _guard = one_at_a_time();
        if self.status() >= Status::Initialized {
            // SAFETY: initialised, and no other thread is inside a safe function. Symmetric memory is reached through
            // unsafe functions only, whose callers promise that the library is initialised.
            unsafe { (self.functions.nvshmemx_hostlib_finalize)() };
        }
    }

    /// Symmetric device memory, the same number of bytes on all PEs; collective. `None` where the heap
    /// (`NVSHMEM_SYMMETRIC_SIZE` bytes) is full, or for no bytes. Needs a GPU.
    ///
    /// # Errors
    /// The library has no device.
    pub fn malloc(&self, bytes: usize) -> Result<Option<NonNull<c_void>>, Error> {
        let _guard = one_at_a_time();
        self.need("nvshmem_malloc", Status::Initialized)?;
        // SAFETY: initialised with a device.
        Ok(NonNull::new(unsafe { (self.functions.nvshmem_malloc)(bytes) }))
    }

    /// Gives symmetric memory back; collective, in the same order on all PEs. Needs a GPU.
    ///
    /// # Safety
    /// `memory` came from [`Library::malloc`], was not freed, and nothing enqueued on any PE uses it any more.
    ///
    /// # Errors
    /// The library has no device.
    pub unsafe fn free(&self, memory: NonNull<c_void>) -> Result<(), Error> {
        let _guard = one_at_a_time();
        self.need("nvshmem_free", Status::Initialized)?;
        // SAFETY: the caller's promise.
        unsafe { (self.functions.nvshmem_free)(memory.as_ptr()) };
        Ok(())
    }

    /// Enqueues: `bytes` of `source` are written to `destination` on PE `pe`, and then `signal` there is changed by
    /// `operation` ([`NVSHMEM_SIGNAL_SET`] or [`NVSHMEM_SIGNAL_ADD`]) with `value`. Whoever sees the signal sees the
    /// data. The other side waits with `cuStreamWaitValue64` on its own address of `signal`.
    ///
    /// # Safety
    /// The library is initialised with a device. `destination` and `signal` are this PE's addresses of symmetric memory
    /// of that many bytes; `source` is device memory (symmetric, registered, or any where the PE is reached directly) that
    /// stays as it is until the stream has passed this; `pe` is there; `stream` is a stream of the device.
    #[expect(clippy::too_many_arguments, reason = "those of the C function, in its order")]
    pub unsafe fn putmem_signal_on_stream(
        &self,
        destination: NonNull<c_void>,
        source: NonNull<c_void>,
        bytes: usize,
        signal: NonNull<u64>,
        value: u64,
        operation: c_int,
        pe: c_int,
        stream: cudaStream_t,
    ) {
        let (destination, source, signal) = (destination.as_ptr(), source.as_ptr(), signal.as_ptr());
        let put = self.functions.nvshmemx_putmem_signal_on_stream;
        // SAFETY: the caller's promise.
        unsafe { put(destination, source, bytes, signal, value, operation, pe, stream) };
    }

    /// Waits, in the calling thread, for all PEs and all their puts; collective. Needs a GPU.
    ///
    /// # Errors
    /// The library has no device.
    pub fn barrier_all(&self) -> Result<(), Error> {
        let _guard = one_at_a_time();
        self.need("nvshmem_barrier_all", Status::Initialized)?;
        // SAFETY: initialised with a device.
        unsafe { (self.functions.nvshmem_barrier_all)() };
        Ok(())
    }

    fn need(&self, call: &'static str, expected: Status) -> Result<(), Error> {
        let found = self.status();
        if found >= expected { Ok(()) } else { Err(Error::State { call, expected, found }) }
    }

    fn need_none(&self, call: &'static str) -> Result<(), Error> {
        match self.status() {
            Status::NotInitialized => Ok(()),
            found => Err(Error::State { call, expected: Status::NotInitialized, found }),
        }
    }
}
