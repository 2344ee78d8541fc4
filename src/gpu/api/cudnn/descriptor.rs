//! Descriptors of cuDNN.

use super::numbers::*;
use super::{Cudnn, Handle, Result};
use std::ffi::{CStr, c_int, c_void};

/// A number or address that cuDNN copies from an attribute's array.
pub(super) trait Attribute: Copy {
    /// The library's code of the type.
    const KIND: c_int;
}

impl Attribute for i64 {
    const KIND: c_int = CUDNN_TYPE_INT64;
}
impl Attribute for bool {
    const KIND: c_int = CUDNN_TYPE_BOOLEAN;
}
impl Attribute for *mut c_void {
    const KIND: c_int = CUDNN_TYPE_BACKEND_DESCRIPTOR;
}

/// A descriptor of the library, freed with this.
pub struct Descriptor {
    api: &'static Cudnn,
    pub(super) raw: Handle<c_void>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing uses it any more. At worst it leaks.
        unsafe { (self.api.functions.cudnnBackendDestroyDescriptor)(self.raw.raw()) };
    }
}

impl Descriptor {
    pub(super) fn new(api: &'static Cudnn, kind: c_int) -> Result<Descriptor> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the result pointer points at a local.
        let code = unsafe { (api.functions.cudnnBackendCreateDescriptor)(kind, &mut raw) };
        api.checked(code, || format!("cudnnBackendCreateDescriptor of {kind}"))?;
        Ok(Descriptor { api, raw: Handle::new(raw) })
    }

    /// Sets an attribute whose type differs from the type of its values in Rust.
    pub(super) fn typed<T: Copy>(self, name: c_int, kind: c_int, values: &[T]) -> Result<Descriptor> {
        let from = values.as_ptr().cast();
        // SAFETY: the library copies `values.len()` values of the given type.
        let code = unsafe {
            (self.api.functions.cudnnBackendSetAttribute)(self.raw.raw(), name, kind, values.len() as i64, from)
        };
        self.api.checked(code, || format!("cudnnBackendSetAttribute of {name}"))?;
        Ok(self)
    }

    pub(super) fn with<T: Attribute>(self, name: c_int, values: &[T]) -> Result<Descriptor> {
        self.typed(name, T::KIND, values)
    }

    pub(super) fn holding(self, name: c_int, descriptor: &Descriptor) -> Result<Descriptor> {
        self.with(name, &[descriptor.raw.raw()])
    }

    pub(super) fn finalized(self) -> Result<Descriptor> {
        // SAFETY: the descriptor is alive.
        let code = unsafe { (self.api.functions.cudnnBackendFinalize)(self.raw.raw()) };
        self.api.checked(code, || "cudnnBackendFinalize".to_string())?;
        Ok(self)
    }

    /// Reads at most as many values as there is room for. Returns how many there are.
    pub(super) fn get<T: Copy>(&self, name: c_int, kind: c_int, values: &mut [T]) -> Result<usize> {
        let (mut count, into) = (0, values.as_mut_ptr().cast());
        // SAFETY: the library writes at most the requested number of values, and their count into a local.
        let code = unsafe {
            (self.api.functions.cudnnBackendGetAttribute)(
                self.raw.raw(),
                name,
                kind,
                values.len() as i64,
                &mut count,
                into,
            )
        };
        self.api.checked(code, || format!("cudnnBackendGetAttribute of {name}"))?;
        Ok(count.max(0) as usize)
    }
}

impl Cudnn {
    /// Describes a device by the library's JSON.
    pub fn properties(&'static self, json: &CStr) -> Result<Descriptor> {
        let device = Descriptor::new(self, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        let text = json.to_bytes_with_nul();
        device.typed(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, text)?.finalized()
    }
}
