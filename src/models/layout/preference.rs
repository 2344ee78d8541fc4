//! Which of two layouts is simpler.

/// Preference among layouts that predictions cannot tell apart: tensor parallelism within a node, sequences per micro-batch,
/// recomputation, ranks that share a layer or a sequence, devices per pipeline. Smaller is simpler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    shares_layers_across_nodes: bool,
    micro_batch_size: u32,
    recomputes: bool,
    ranks: u32,
    pp: u32,
}

impl Preference {
    /// Returns the preference of a layout with `ranks` tensor- times context-parallel ranks.
    pub fn new(micro_batch_size: u32, recomputes: bool, ranks: u32, pp: u32) -> Preference {
        Preference { shares_layers_across_nodes: false, micro_batch_size, recomputes, ranks, pp }
    }

    /// Returns in what this layout is simpler than `other`; nothing if it is not.
    pub fn simpler_in(&self, other: &Preference) -> Option<&'static str> {
        let differs = [
            (self.shares_layers_across_nodes != other.shares_layers_across_nodes, "tensor parallelism within nodes"),
            (self.micro_batch_size != other.micro_batch_size, "smaller micro-batches"),
            (self.recomputes != other.recomputes, "no recomputation"),
            (self.ranks != other.ranks, "fewer ranks per layer"),
            (self.pp != other.pp, "fewer devices per pipeline"),
        ];
        let first = differs.iter().find(|(differs, _)| *differs).map(|(_, what)| *what);
        first.filter(|_| self < other)
    }

    /// Returns the same preference of a layout whose tensor-parallel ranks are in different nodes, if so.
    pub fn across_nodes(self, shares_layers_across_nodes: bool) -> Preference {
        Preference { shares_layers_across_nodes, ..self }
    }
}
