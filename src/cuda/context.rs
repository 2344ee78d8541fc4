//! What memory, streams, events and code belong to: a device's primary context, or a green context with some of its
//! multiprocessors.

use super::api::driver::{Api, ContextHandle, Fault, GreenHandle};
use std::ffi::c_int;
use std::sync::Arc;

/// A context of the driver, released when the last thing in it is gone.
pub struct Context {
    pub(super) api: &'static Api,
    pub(super) handle: ContextHandle,
    device: c_int,
    /// The green context that this one stands for, and the primary one beside it, which libraries use.
    green: Option<(GreenHandle, Arc<Context>)>,
}

impl Context {
    /// The primary context of a device, the one that the CUDA runtime and its libraries use.
    pub(super) fn primary(api: &'static Api, device: c_int) -> Result<Context, Fault> {
        Ok(Context { api, handle: api.retain_primary(device)?, device, green: None })
    }

    /// A context that stands for a green one.
    pub(super) fn green(primary: Arc<Context>, green: GreenHandle, handle: ContextHandle) -> Context {
        Context { api: primary.api, handle, device: primary.device, green: Some((green, primary)) }
    }

    /// The green context that it stands for, if it does.
    pub(super) fn green_handle(&self) -> Option<GreenHandle> {
        self.green.as_ref().map(|&(green, _)| green)
    }

    /// Makes this the context of the calling thread: what it creates from now on belongs here.
    pub fn make_current(&self) -> Result<(), Fault> {
        self.api.set_current(self.handle)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // what cannot be released ends with the process
        let _ = match self.green_handle() {
            Some(green) => self.api.destroy_green(green),
            None => self.api.release_primary(self.device),
        };
    }
}
