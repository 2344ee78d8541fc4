//! What memory, streams, events and code belong to: a device's primary context, or a green context with some of its
//! multiprocessors.

use super::driver::{Api, ContextHandle, Fault, GreenHandle, call};
use super::handle::Handle;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

/// A context of the driver, released when the last thing in it is gone.
pub struct Context {
    pub(in crate::cuda) api: &'static Api,
    pub(in crate::cuda) handle: ContextHandle,
    device: c_int,
    /// The green context that this one stands for, and the primary one beside it, which libraries use.
    green: Option<(GreenHandle, Arc<Context>)>,
}

impl Context {
    /// The primary context of a device, the one that the CUDA runtime and its libraries use. It is made once and kept until the
    /// process ends: making one takes a good part of a second.
    pub(in crate::cuda) fn primary(api: &'static Api, device: c_int) -> Result<Arc<Context>, Fault> {
        static KEPT: Mutex<BTreeMap<c_int, Arc<Context>>> = Mutex::new(BTreeMap::new());
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = kept.get(&device) {
            return Ok(context.clone());
        }
        let mut context = std::ptr::null_mut();
        call!(api.cuDevicePrimaryCtxRetain(&mut context, device))?;
        let context = Arc::new(Context { api, handle: Handle::new(context), device, green: None });
        kept.insert(device, context.clone());
        Ok(context)
    }

    /// A context that stands for a green one.
    pub(in crate::cuda) fn green(primary: Arc<Context>, green: GreenHandle, handle: ContextHandle) -> Context {
        Context { api: primary.api, handle, device: primary.device, green: Some((green, primary)) }
    }

    /// The green context that it stands for, if it does.
    pub(in crate::cuda) fn green_handle(&self) -> Option<GreenHandle> {
        self.green.as_ref().map(|&(green, _)| green)
    }

    /// Makes this the context of the calling thread: what it creates from now on belongs here.
    pub fn make_current(&self) -> Result<(), Fault> {
        let api = self.api;
        call!(api.cuCtxSetCurrent(self.handle.raw()))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // what cannot be released ends with the process
        let api = self.api;
        let _ = match self.green_handle() {
            Some(green) => api.destroy_green(green),
            None => call!(api.cuDevicePrimaryCtxRelease_v2(self.device)),
        };
    }
}
