//! Names of things that the driver owns: numbers, so that they may be sent between threads, as the driver allows.

use std::fmt;
use std::marker::PhantomData;

/// A pointer to something of type `T` that only the driver looks into.
pub struct Handle<T> {
    address: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    /// The handle that the driver wrote.
    pub(in crate::cuda) fn new(pointer: *mut T) -> Handle<T> {
        Handle { address: pointer.expose_provenance(), of: PhantomData }
    }

    /// What the driver expects.
    pub(in crate::cuda) fn raw(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Handle<T>) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for Handle<T> {}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

/// A place in device memory. Device addresses of one process are all different, on however many GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// No place: what kernels take for a missing operand.
    pub const NULL: Address = Address(0);

    /// The place so many bytes behind.
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}
