//! Which of two layouts is simpler.

/// Preference among layouts that predictions cannot tell apart: sequences per micro-batch, recomputation, ranks that share a layer
/// or a sequence, devices per pipeline. Smaller is simpler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    micro_batch_size: u32,
    recomputes: bool,
    ranks: u32,
    pp: u32,
}

impl Preference {
    /// Returns the preference of a layout with `ranks` tensor- times context-parallel ranks.
    pub fn new(micro_batch_size: u32, recomputes: bool, ranks: u32, pp: u32) -> Preference {
        Preference { micro_batch_size, recomputes, ranks, pp }
    }
}
