//! cuDNN, whose operations are described by descriptors: attributes are set one by one, then a descriptor is finalized.
//!
//! Signatures and numbers follow cudnn_graph.h of cuDNN 9.28. cudarc binds an older cuDNN without fused attention, so its types are
//! not used.

mod descriptor;
mod numbers;
mod plan;

pub use descriptor::Descriptor;
pub use plan::{AttentionOperands, AttentionShape, Pass, Plan, PlanTarget};

use super::super::library::{self, Missing};
use super::Handle;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

type RawDescriptor = *mut c_void;

/// Defines the table of functions. Each line lists a function's arguments and result.
macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Looks up all functions. The error names the first missing one.
            fn load(library: &libloading::os::unix::Library) -> std::result::Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: super::symbol(library, concat!(stringify!($name), "\0")).ok_or(stringify!($name))?,)*
                })
            }
        }
    };
}

functions! {
    cudnnGetVersion() -> usize;
    cudnnGetErrorString(c_int) -> *const c_char;
    cudnnGetLastErrorString(*mut c_char, usize) -> ();
    cudnnCreate(*mut *mut c_void) -> c_int;
    cudnnDestroy(*mut c_void) -> c_int;
    cudnnSetStream(*mut c_void, *mut c_void) -> c_int;
    cudnnBackendCreateDescriptor(c_int, *mut RawDescriptor) -> c_int;
    cudnnBackendDestroyDescriptor(RawDescriptor) -> c_int;
    cudnnBackendFinalize(RawDescriptor) -> c_int;
    cudnnBackendSetAttribute(RawDescriptor, c_int, c_int, i64, *const c_void) -> c_int;
    cudnnBackendGetAttribute(RawDescriptor, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int;
    cudnnBackendExecute(*mut c_void, RawDescriptor, RawDescriptor) -> c_int;
}

/// The oldest version whose backward has engines for a mask, as 10000 major + 100 minor + patch.
pub const OLDEST_CUDNN: usize = 9_28_00;

/// A cuDNN call that failed, or a cuDNN that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// cuDNN is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// cuDNN is installed but unusable.
    #[error("expected a working cuDNN, found one that {0}: reinstall it")]
    Broken(String),
    /// cuDNN lacks the fused operations.
    #[error("expected cuDNN {} or newer, found {}: {}", version_name(OLDEST_CUDNN), version_name(*.0), library::CUDNN.fix())]
    TooOld(usize),
    /// A call failed.
    #[error("{call} failed: cuDNN returned {status} ({code}){message}")]
    Refused {
        /// Function that was called, and the attribute, if any.
        call: String,
        /// The library's name for the status.
        status: String,
        code: i32,
        /// What the library adds to it.
        message: String,
    },
    /// No engine supports the operation.
    #[error("expected an engine of cuDNN for {operation}, found none of {proposed}{last}: leave `attention` cudnn out")]
    NoEngine {
        operation: String,
        /// Number of engines that the library proposed.
        proposed: usize,
        /// How the last of them failed.
        last: String,
    },
}

type Result<T> = std::result::Result<T, AttentionError>;

impl AttentionError {
    /// Whether the library cannot be used at all.
    pub fn is_about_library(&self) -> bool {
        matches!(self, AttentionError::Missing(_) | AttentionError::Broken(_) | AttentionError::TooOld(_))
    }
}

/// Formats a version, as in 9.28.1.
pub fn version_name(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// An open cuDNN.
pub struct Cudnn {
    functions: Functions,
    /// As 10000 major + 100 minor + patch.
    pub version: usize,
}

/// cuDNN on the context that was current when it was made.
pub struct CudnnHandle {
    api: &'static Cudnn,
    raw: Handle<c_void>,
}

impl Drop for CudnnHandle {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing uses it any more. At worst it leaks.
        unsafe { (self.api.functions.cudnnDestroy)(self.raw.raw()) };
    }
}

impl Cudnn {
    /// Opens the library once.
    ///
    /// # Errors
    /// It is missing, or older than [`OLDEST_CUDNN`].
    pub fn open() -> Result<&'static Cudnn> {
        static OPENED: OnceLock<Cudnn> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(opened);
        }
        let library = library::open(&library::CUDNN)?.reopen().map_err(AttentionError::Broken)?;
        let lacking = |name| AttentionError::Broken(format!("lacks {name}"));
        let functions = Functions::load(&library).map_err(lacking)?;
        // SAFETY: the type in cudnn_version.h; no arguments.
        let version = unsafe { (functions.cudnnGetVersion)() };
        if version < OLDEST_CUDNN {
            return Err(AttentionError::TooOld(version));
        }
        Ok(OPENED.get_or_init(|| Cudnn { functions, version }))
    }

    fn checked(&self, code: c_int, call: impl FnOnce() -> String) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut message = [0_u8; 512];
        // SAFETY: the status is a text of the library that lives forever; the message is written into a local of this size.
        let status = unsafe {
            (self.functions.cudnnGetLastErrorString)(message.as_mut_ptr().cast(), message.len());
            let text = (self.functions.cudnnGetErrorString)(code);
            if text.is_null() { c"an unknown status" } else { CStr::from_ptr(text) }
        };
        let message = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        let message = if message.trim().is_empty() { String::new() } else { format!(": {}", message.trim()) };
        Err(AttentionError::Refused { call: call(), status: status.to_string_lossy().into_owned(), code, message })
    }

    /// Opens the library on the current context.
    pub fn handle(&'static self) -> Result<CudnnHandle> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the result pointer points at a local.
        let code = unsafe { (self.functions.cudnnCreate)(&mut raw) };
        self.checked(code, || "cudnnCreate".to_string())?;
        Ok(CudnnHandle { api: self, raw: Handle::new(raw) })
    }
}
