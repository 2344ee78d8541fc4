//! How much a search may do.

use crate::sim::event::Each;

/// How much a search may do, and with how many hands; the order that it finds depends on the first alone.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// How many times the usual work.
    pub times: u32,
    /// Does pieces of work, side by side where it can.
    pub each: Each<'a>,
}

impl Default for Effort<'_> {
    fn default() -> Self {
        Effort { times: 1, each: &|count, work| (0..count).for_each(work) }
    }
}
