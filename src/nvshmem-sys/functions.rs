//! The functions of `libnvshmem_host.so.3`, as pointers found by name.
//!
//! In the names, "stream" means that the call only enqueues on a CUDA stream and returns; all others act before they
//! return. A **collective** must be called by all PEs, in the same order.

use crate::layout::*;
use libloading::os::unix::Library;
use std::ffi::{c_int, c_uint, c_void};

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        /// The host functions that this package knows. All of them are there in every library of major version 3 from
        /// 3.4 on; calling one is unsafe as calling any C function is, and each says what it needs.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?,)*
        }

        /// The names of all of them.
        pub const SYMBOLS: &[&str] = &[$(stringify!($name)),*];

        impl Functions {
            /// Finds all of them, or says which are not there.
            pub(crate) fn find(library: &Library) -> Result<Functions, Vec<&'static str>> {
                let mut absent = Vec::new();
                $(let $name = address(library, stringify!($name), &mut absent);)*
                let ($(Some($name),)*) = ($($name,)*) else { return Err(absent) };
                Ok(Functions {
                    $(
                        // SAFETY: the library exports this name as the C function declared above: its version
                        // is asked before any other is called, and within a major one the interface is stable.
                        $name: unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?,
                            >($name)
                        },
                    )*
                })
            }
        }
    };
}

fn address(library: &Library, name: &'static str, absent: &mut Vec<&'static str>) -> Option<*mut c_void> {
    // SAFETY: only the address is taken here; the caller states the type.
    let address = unsafe { library.get::<*mut c_void>(name) }.ok().map(|symbol| symbol.as_raw_ptr());
    let address = address.filter(|address| !address.is_null());
    if address.is_none() {
        absent.push(name);
    }
    address
}

functions! {
    /// The library's version. Needs nothing.
    nvshmemx_vendor_get_version_info: fn(major: *mut c_int, minor: *mut c_int, patch: *mut c_int);
    /// How far initialisation came: `NVSHMEM_STATUS_*`. Needs nothing.
    nvshmemx_init_status: fn() -> c_int;
    /// Makes a unique id and listens for the others; called by one PE. Needs no GPU.
    nvshmemx_get_uniqueid: fn(id: *mut nvshmemx_uniqueid_t) -> c_int;
    /// Writes rank, ranks and unique id into `attr`. Needs nothing.
    nvshmemx_set_attr_uniqueid_args: fn(
        rank: c_int, ranks: c_int, id: *const nvshmemx_uniqueid_t, attr: *mut nvshmemx_init_attr_t
    ) -> c_int;
    /// Initialises; collective. Without a GPU it ends bootstrapped, and what it returns differs between versions: read
    /// `nvshmemx_init_status`. With one, the device's primary context must be current.
    nvshmemx_hostlib_init_attr: fn(flags: c_uint, attr: *mut nvshmemx_init_attr_t) -> c_int;
    /// Ends; collective. **Ends the process** where the library is only bootstrapped. Needs a GPU.
    nvshmemx_hostlib_finalize: fn();
    /// This PE. Needs a bootstrap.
    nvshmem_my_pe: fn() -> c_int;
    /// How many PEs. Needs a bootstrap.
    nvshmem_n_pes: fn() -> c_int;
    /// Symmetric memory: device memory at the same offset on all PEs; collective, with the same size everywhere. Null
    /// where the heap is full. Needs a GPU.
    nvshmem_malloc: fn(bytes: usize) -> *mut c_void;
    /// Writes into a PE's symmetric memory and then changes its signal, never the other way round. Needs a GPU.
    nvshmemx_putmem_signal_on_stream: fn(
        destination: *mut c_void, source: *const c_void, bytes: usize, signal: *mut u64, value: u64, operation: c_int,
        pe: c_int, stream: cudaStream_t
    );
    /// Changes a PE's signal. Needs a GPU.
    nvshmemx_signal_op_on_stream: fn(signal: *mut u64, value: u64, operation: c_int, pe: c_int, stream: cudaStream_t);
    /// Waits for a signal of this PE. **Ends the process** where PEs share a GPU without MPS; `cuStreamWaitValue64` on the
    /// same address does the same and does not. Needs a GPU.
    nvshmemx_signal_wait_until_on_stream: fn(signal: *mut u64, comparison: c_int, value: u64, stream: cudaStream_t);
}
