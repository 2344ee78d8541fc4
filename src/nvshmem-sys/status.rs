//! State of initialisation.

use crate::layout::*;
use std::ffi::c_int;
use std::fmt;

/// State of initialisation. States are ordered: each includes the abilities of earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Not initialised, or finalised.
    NotInitialized,
    /// The PEs are connected, but no device is set up: the final state on a machine without a GPU.
    Bootstrapped,
    /// One PE per GPU: everything works.
    Initialized,
    /// PEs share a GPU without MPS: waits on signals, teams and collectives other than barriers **end the process**.
    LimitedMpg,
    /// PEs share a GPU through MPS: everything works.
    FullMpg,
    /// A state of a newer version of NVSHMEM.
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
