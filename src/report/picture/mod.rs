//! Still pictures of timelines. `layout` turns a report into a list of shapes (`canvas`); `svg`, `png` and `pdf` write them.

pub mod band;
pub mod blend;
pub mod canvas;
#[cfg(feature = "pictures")]
pub mod font;
pub mod frame;
pub mod heading;
pub mod layout;
#[cfg(feature = "pictures")]
pub mod pdf;
#[cfg(feature = "pictures")]
pub mod png;
pub mod ruler;
pub mod svg;
