//! Settling.
pub mod problem; pub mod trial; pub mod dispatch; pub mod polish; pub mod search;
pub use search::*;
/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Time 0 to the end of the last op.
    Makespan,
    /// Longest time from first start to last end over devices.
    Span,
}
