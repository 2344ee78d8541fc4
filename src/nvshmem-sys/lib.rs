#![doc = include_str!("README.md")]
#![warn(missing_docs)]
#![allow(non_camel_case_types, reason = "C's own names")]

mod error;
mod functions;
mod layout;
mod library;
mod status;

pub use error::Error;
pub use functions::{Functions, SYMBOLS};
pub use layout::*;
pub use library::{Library, UniqueId};
pub use status::Status;
