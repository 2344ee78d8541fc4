//! Safe functions over NVIDIA's C interfaces. Nearly all `unsafe` code of the GPU layer is in this module.
//!
//! Types and signatures come from cudarc's `sys` bindings. Its loaders are not used: they look for a library by name only (and
//! never for `libnccl.so.2`), cannot open one in a Python wheel, and panic if a function is missing. Instead [`crate::library`]
//! finds the library, and each table here looks up all its functions at once, so a missing function is an error at that
//! moment. Status codes are plain numbers, because a newer library may return codes that the bindings do not know.

mod compiler;
mod context;
mod cudnn;
mod driver;
mod event;
mod graph;
mod management;
mod memory;
pub mod nccl;
mod nvtx;
mod pool;
mod products;
mod stream;
mod work;

pub use compiler::{CompileError, Image, Nvrtc};
pub use context::Context;
pub use cudnn::{
    AttentionError, AttentionOperands, AttentionShape, Cudnn, CudnnHandle, Descriptor, OLDEST_CUDNN, Pass, Plan,
    PlanTarget, version_name,
};
pub use driver::{Api, Fault, FunctionHandle, ModuleHandle, StreamHandle, Unloadable, driver_version};
pub use event::{Event, Events, ProcessHandle};
pub use graph::{GraphCounts, GraphUse, Graphs};
pub use management::{GpuState, Managed, REASONS};
pub use memory::{Buffer, Imported, Pinned, Unsupported, mib};
pub use nvtx::Range;
pub use pool::{Move, Pool, most_taken};
pub use products::{Element, Epilogue, Layout, Lt, NOT_SUPPORTED, Operands, Product, ProductError, Shape, Workspace};
pub use stream::{Argument, Stream};

use libloading::os::unix::Library;
use std::cmp::Ordering;
use std::marker::PhantomData;

/// Defines a table of functions of one library. Each line lists a function's arguments; `->` names the bindings' status type.
macro_rules! functions {
    ($(#[$meta:meta])* $table:ident from $sys:ident { $($(#[$when:meta])* $name:ident($($argument:ty),* $(,)?);)* } -> $status:ty) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        pub(super) struct $table {
            $($(#[$when])* pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        // the compiler compares each signature with cudarc's
        $($(#[$when])* const _: unsafe fn($($argument),*) -> $status = $sys::$name;)*

        impl $table {
            /// Looks up all functions. The error lists the missing ones.
            #[allow(non_snake_case)]
            fn load(library: &libloading::os::unix::Library) -> Result<$table, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    $(#[$when])*
                    let $name = super::symbol(library, concat!(stringify!($name), "\0")).or_else(|| {
                        missing.push(stringify!($name));
                        None
                    });
                )*
                let table = || Some($table { $($(#[$when])* $name: $name?,)* });
                table().ok_or(missing)
            }
        }
    };
}
pub(super) use functions;

/// Looks up a function by its zero-terminated name. `F` is the type of a pointer to it.
fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the compiler has compared `F` with cudarc's signature of this name, or it is copied from the library's header;
    // libraries are never closed, so the pointer stays valid.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// A pointer owned by one of NVIDIA's libraries, stored as a number so that it can be sent between threads.
pub struct Handle<T> {
    address: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    /// Wraps a pointer that the library returned.
    pub fn new(pointer: *mut T) -> Handle<T> {
        Handle { address: pointer.expose_provenance(), of: PhantomData }
    }

    /// Returns the pointer for a call into the library.
    pub fn raw(self) -> *mut T {
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

impl<T> PartialOrd for Handle<T> {
    fn partial_cmp(&self, other: &Handle<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Handle<T> {
    fn cmp(&self, other: &Handle<T>) -> Ordering {
        self.address.cmp(&other.address)
    }
}

/// A device address. Addresses of one process are unique across all its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The null pointer, which kernels accept for a missing operand.
    pub const NULL: Address = Address(0);

    /// Returns the address `bytes` further on.
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}
