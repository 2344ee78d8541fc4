//! The loaded library: its functions, and safe wrappers of some of them.

use crate::error::Error;
use crate::functions::Functions;
use crate::layout::*;
use crate::status::Status;
use libloading::os::unix;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An id of 128 bytes that one PE creates and passes to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(nvshmemx_uniqueid_t);

impl UniqueId {
    /// Size in bytes.
    pub const BYTES: usize = size_of::<nvshmemx_uniqueid_t>();

    /// Returns its bytes, which are portable between machines of the same byte order.
    pub fn to_bytes(&self) -> [u8; UniqueId::BYTES] {
        let mut bytes = [0; UniqueId::BYTES];
        let (version, internal) = bytes.split_at_mut(size_of::<c_int>());
        version.copy_from_slice(&self.0.version.to_ne_bytes());
        internal.iter_mut().zip(self.0.internal).for_each(|(byte, value)| *byte = value as u8);
        bytes
    }

    /// Returns the id with these bytes.
    ///
    /// # Errors
    /// The bytes do not begin like a unique id.
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
/// The state belongs to the process: two values refer to the same PE. The safe functions call the library one at a time, as its
/// thread level requires; the caller must serialize calls through [`Library::functions`].
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
    /// Opens the library permanently, with `RTLD_NOW | RTLD_GLOBAL` because its bootstraps look up its symbols by name. The loader
    /// searches for a path without folder. Needs no GPU and no driver.
    ///
    /// # Errors
    /// The file does not exist, lacks a function of [`crate::SYMBOLS`], or has another major version than 3.
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

    /// Returns all functions, which are unsafe to call.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns the version: major, minor, patch.
    pub fn version(&self) -> (i32, i32, i32) {
        self.version
    }

    /// Returns the state of initialisation. Needs no GPU.
    pub fn status(&self) -> Status {
        // SAFETY: reads a number of the library's; allowed in every state.
        Status::from(unsafe { (self.functions.nvshmemx_init_status)() })
    }

    /// Creates a unique id and starts to listen for the other PEs. One PE calls it, and must live until all are initialised. Needs no
    /// GPU, but a network interface that is up (`NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo` selects the loopback interface).
    ///
    /// # Errors
    /// The library cannot listen on any interface.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let _guard = one_at_a_time();
        let mut id = nvshmemx_uniqueid_t::default();
        // SAFETY: a valid pointer to a structure of version 1, filled before the call returns.
        match unsafe { (self.functions.nvshmemx_get_uniqueid)(&mut id) } {
            0 => Ok(UniqueId(id)),
            code => Err(Error::Call { call: "nvshmemx_get_uniqueid", code, status: self.status() }),
        }
    }

    /// Initialises this process as PE `rank` of `ranks`. Collective: returns when all PEs, each in its own process, have called it.
    /// Without a GPU the status is [`Status::Bootstrapped`]; with one, its primary context must be current, and the status is a
    /// later one. Returns [`Library::status`] instead of the code of the C function, which without a GPU depends on the version.
    ///
    /// # Errors
    /// The rank is out of range, the library is already initialised, or it fails. Some failures inside the library end the process.
    pub fn init_with_unique_id(&self, rank: i32, ranks: i32, id: &UniqueId) -> Result<Status, Error> {
        if rank < 0 || rank >= ranks {
            return Err(Error::Argument(format!(
                "expected a rank of 0 to ranks - 1, found rank {rank} of {ranks}; number the processes from 0"
            )));
        }
        let _guard = one_at_a_time();
        let (call, found) = ("nvshmemx_set_attr_uniqueid_args", self.status());
        if found != Status::NotInitialized {
            return Err(Error::State { call, expected: Status::NotInitialized, found });
        }
        let (mut attr, id) = (nvshmemx_init_attr_t::default(), id.0);
        // SAFETY: both structures are of version 1 and outlive the two calls; the library keeps no pointer to them.
        let code = unsafe { (self.functions.nvshmemx_set_attr_uniqueid_args)(rank, ranks, &id, &mut attr) };
        if code != 0 {
            return Err(Error::Call { call, code, status: self.status() });
        }
        // SAFETY: `attr` was filled above for this bootstrap, and the id that it points to lives until the end.
        let code = unsafe { (self.functions.nvshmemx_hostlib_init_attr)(NVSHMEMX_INIT_WITH_UNIQUEID, &mut attr) };
        match self.status() {
            Status::NotInitialized => {
                Err(Error::Call { call: "nvshmemx_hostlib_init_attr", code, status: Status::NotInitialized })
            }
            status => Ok(status),
        }
    }

    /// Returns the number of this PE. Needs a bootstrap, no GPU.
    ///
    /// # Errors
    /// The library is not initialised.
    pub fn my_pe(&self) -> Result<i32, Error> {
        self.need("nvshmem_my_pe", Status::Bootstrapped)?;
        // SAFETY: allowed from the bootstrap on.
        Ok(unsafe { (self.functions.nvshmem_my_pe)() })
    }

    /// Returns the number of PEs. Needs a bootstrap, no GPU.
    ///
    /// # Errors
    /// The library is not initialised.
    pub fn n_pes(&self) -> Result<i32, Error> {
        self.need("nvshmem_n_pes", Status::Bootstrapped)?;
        // SAFETY: allowed from the bootstrap on.
        Ok(unsafe { (self.functions.nvshmem_n_pes)() })
    }

    /// Finalises the library and frees all symmetric memory. Collective. Does nothing without a device: a library that is only
    /// bootstrapped cannot be finalised (the C function **ends the process** with code 255) or initialised again.
    pub fn finalize(&self) {
        let _guard = one_at_a_time();
        if self.status() >= Status::Initialized {
            // SAFETY: initialised, and no other thread is inside a safe function. Symmetric memory is reached through
            // unsafe functions only, whose callers promise that the library is initialised.
            unsafe { (self.functions.nvshmemx_hostlib_finalize)() };
        }
    }

    /// Allocates symmetric device memory, the same number of bytes on all PEs. Collective. Returns `None` if the heap
    /// (`NVSHMEM_SYMMETRIC_SIZE` bytes) is full, or for 0 bytes. Needs a GPU.
    ///
    /// # Errors
    /// The library has no device.
    pub fn malloc(&self, bytes: usize) -> Result<Option<NonNull<c_void>>, Error> {
        let _guard = one_at_a_time();
        self.need("nvshmem_malloc", Status::Initialized)?;
        // SAFETY: initialised with a device.
        Ok(NonNull::new(unsafe { (self.functions.nvshmem_malloc)(bytes) }))
    }

    /// Enqueues a write of `bytes` bytes of `source` to `destination` on PE `pe`, and then an update of `signal` there by `operation`
    /// (such as [`NVSHMEM_SIGNAL_SET`]) with `value`. The data is visible once the signal is. The other side waits
    /// with `cuStreamWaitValue64` on its own address of `signal`.
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

    fn need(&self, call: &'static str, expected: Status) -> Result<(), Error> {
        let found = self.status();
        if found >= expected { Ok(()) } else { Err(Error::State { call, expected, found }) }
    }
}
