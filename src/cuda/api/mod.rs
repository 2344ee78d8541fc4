//! NVIDIA's C interfaces as plain functions. Nearly all `unsafe` code of this layer is below this module.
//!
//! Functions are looked up once, all together, in the library that [`super::library`] found: what is missing is an error at
//! that moment, never a surprise later. Types are those of cudarc's bindings, and the compiler compares each signature
//! written here with theirs. Status codes are read as numbers, since a newer library may return codes that the bindings do
//! not know.

pub(super) mod compiler;
pub(super) mod context;
pub(super) mod driver;
pub(super) mod event;
pub(super) mod handle;
pub(super) mod memory;
pub(super) mod pinned;
pub(super) mod products;
pub(super) mod ranges;
pub(super) mod stream;

use libloading::os::unix::Library;

/// A table of functions of one library. Each line states a function's arguments; the last block names the type of status
/// that the bindings give it.
macro_rules! functions {
    ($(#[$meta:meta])* $table:ident from $sys:ident { $($(#[$when:meta])* $name:ident($($argument:ty),* $(,)?);)* } -> $status:ty) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        pub(super) struct $table {
            $($(#[$when])* pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        // the compiler compares each signature with the bindings'
        $($(#[$when])* const _: unsafe fn($($argument),*) -> $status = $sys::$name;)*

        impl $table {
            /// Looks all functions up; an error lists those that are missing.
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

/// A function of a library, by its name with a zero behind it. `F` is the type of a pointer to it.
fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: `F` is the signature that the compiler compared with the bindings' for this name, or one read off the
    // library's header; libraries are never closed, so that the pointer stays good.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}
