//! Types and constants of NVSHMEM's C interface, with sizes and offsets held to at compile time.
//!
//! The structures are version 1 of each, which every library of major version 3 accepts. Each begins with a version number
//! that holds its size too: `(1 << 16) + size`; `default` sets them, nested ones included.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{align_of, offset_of, size_of};
use std::ptr;

/// `cudaStream_t`, which is the driver's `CUstream`.
pub type cudaStream_t = *mut c_void;

/// Signal operation: the signal becomes the value.
pub const NVSHMEM_SIGNAL_SET: c_int = 9;

/// Comparison of a wait: greater than or equal.
pub const NVSHMEM_CMP_GE: c_int = 5;

/// Flag of `nvshmemx_hostlib_init_attr`: bootstrap by a unique id.
pub const NVSHMEMX_INIT_WITH_UNIQUEID: c_uint = 1 << 3;

/// `nvshmemx_init_status`: nothing was initialised.
pub const NVSHMEM_STATUS_NOT_INITIALIZED: c_int = 0;
/// `nvshmemx_init_status`: the PEs know each other; no device is set up.
pub const NVSHMEM_STATUS_IS_BOOTSTRAPPED: c_int = 1;
/// `nvshmemx_init_status`: one PE a GPU.
pub const NVSHMEM_STATUS_IS_INITIALIZED: c_int = 2;
/// `nvshmemx_init_status`: several PEs share a GPU, without MPS or with more than 100 % of it promised.
pub const NVSHMEM_STATUS_LIMITED_MPG: c_int = 3;
/// `nvshmemx_init_status`: several PEs share a GPU through MPS.
pub const NVSHMEM_STATUS_FULL_MPG: c_int = 4;

const fn version_1(size: usize) -> c_int {
    (1 << 16) + size as c_int
}

/// What one PE makes and all others are given, to find each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct nvshmemx_uniqueid_t {
    /// `(1 << 16) + 128`.
    pub version: c_int,
    /// Where the first PE listens, and a random number.
    pub internal: [c_char; 124],
}

/// Who of how many, and the unique id.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvshmemx_uniqueid_args_t {
    /// `(1 << 16) + 24`.
    pub version: c_int,
    /// The unique id; read during initialisation only.
    pub id: *mut nvshmemx_uniqueid_t,
    /// This PE, 0 to `nranks - 1`.
    pub myrank: c_int,
    /// How many PEs.
    pub nranks: c_int,
}

/// Arguments of the bootstraps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvshmemx_init_args_t {
    /// `(1 << 16) + 128`.
    pub version: c_int,
    /// For [`NVSHMEMX_INIT_WITH_UNIQUEID`].
    pub uid_args: nvshmemx_uniqueid_args_t,
    /// Room for later versions.
    pub content: [c_char; 96],
}

/// What `nvshmemx_hostlib_init_attr` takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvshmemx_init_attr_t {
    /// `(1 << 16) + 144`.
    pub version: c_int,
    /// Pointer to an `MPI_Comm`, for the bootstrap by MPI.
    pub mpi_comm: *mut c_void,
    /// For the bootstrap by a unique id.
    pub args: nvshmemx_init_args_t,
}

const _: () = {
    assert!(size_of::<nvshmemx_uniqueid_t>() == 128 && align_of::<nvshmemx_uniqueid_t>() == 4);
    assert!(offset_of!(nvshmemx_uniqueid_t, internal) == 4);
    assert!(size_of::<nvshmemx_uniqueid_args_t>() == 24);
    assert!(offset_of!(nvshmemx_uniqueid_args_t, id) == 8);
    assert!(offset_of!(nvshmemx_uniqueid_args_t, myrank) == 16);
    assert!(offset_of!(nvshmemx_uniqueid_args_t, nranks) == 20);
    assert!(size_of::<nvshmemx_init_args_t>() == 128);
    assert!(offset_of!(nvshmemx_init_args_t, uid_args) == 8);
    assert!(offset_of!(nvshmemx_init_args_t, content) == 32);
    assert!(size_of::<nvshmemx_init_attr_t>() == 144);
    assert!(offset_of!(nvshmemx_init_attr_t, mpi_comm) == 8);
    assert!(offset_of!(nvshmemx_init_attr_t, args) == 16);
};

impl Default for nvshmemx_uniqueid_t {
    /// An empty one, for `nvshmemx_get_uniqueid` to fill.
    fn default() -> nvshmemx_uniqueid_t {
        nvshmemx_uniqueid_t { version: version_1(size_of::<nvshmemx_uniqueid_t>()), internal: [0; 124] }
    }
}

impl Default for nvshmemx_init_attr_t {
    /// One with all versions set and nothing else.
    fn default() -> nvshmemx_init_attr_t {
        let uid_args = nvshmemx_uniqueid_args_t {
            version: version_1(size_of::<nvshmemx_uniqueid_args_t>()),
            id: ptr::null_mut(),
            myrank: 0,
            nranks: 0,
        };
        let version = version_1(size_of::<nvshmemx_init_args_t>());
        let args = nvshmemx_init_args_t { version, uid_args, content: [0; 96] };
        let version = version_1(size_of::<nvshmemx_init_attr_t>());
        nvshmemx_init_attr_t { version, mpi_comm: ptr::null_mut(), args }
    }
}
