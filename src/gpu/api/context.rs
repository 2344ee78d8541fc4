//! Driver contexts, which own memory, streams, events and code: a GPU's primary context, or a green context with some of its
//! multiprocessors.

use super::driver::{ContextHandle, GreenHandle, call};
use super::{Api, Fault, Handle};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

/// A driver context, released when its last user is dropped.
pub struct Context {
    pub api: &'static Api,
    pub handle: ContextHandle,
    device: c_int,
    /// The green context behind this one, and the GPU's primary context, which libraries use.
    green: Option<(GreenHandle, Arc<Context>)>,
}

impl Context {
    /// Returns the primary context of a device, which the CUDA runtime and its libraries use. It is created once and kept until
    /// the process ends, because creating one takes most of a second.
    pub fn primary(api: &'static Api, device: c_int) -> Result<Arc<Context>, Fault> {
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

    /// Wraps a green context.
    pub fn green(primary: Arc<Context>, green: GreenHandle, handle: ContextHandle) -> Context {
        Context { api: primary.api, handle, device: primary.device, green: Some((green, primary)) }
    }

    /// Returns the green context behind this one, if any.
    pub fn green_handle(&self) -> Option<GreenHandle> {
        self.green.as_ref().map(|&(green, _)| green)
    }

    /// Makes this the calling thread's context.
    pub fn make_current(&self) -> Result<(), Fault> {
        let api = self.api;
        call!(api.cuCtxSetCurrent(self.handle.raw()))
    }

    /// Returns free and total bytes of the GPU's memory, and makes this the calling thread's context.
    pub fn memory(&self) -> Result<(usize, usize), Fault> {
        self.make_current()?;
        let (api, mut free, mut total) = (self.api, 0, 0);
        call!(api.cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The driver releases at exit what cannot be released here.
        let api = self.api;
        let _ = match self.green_handle() {
            Some(green) => api.destroy_green(green),
            None => call!(api.cuDevicePrimaryCtxRelease_v2(self.device)),
        };
    }
}
