//! What pictures, pages and the terminal share: rows of boxes, the visible part of the time axis, and colours.

pub mod axis;
pub mod look;
pub mod palette;
pub mod repeat;
pub mod rows;
