//! Why layouts are not among the best.

/// Why a layout is not among the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The model's heads or MLP cannot be divided by tp.
    Heads,
    /// The sequence cannot be divided by cp, or a micro-batch's tokens by tp with sequence parallelism.
    Sequence,
    /// The batch cannot be divided by dp.
    Batch,
    /// There are too many micro-batches per pipeline to simulate.
    Micro,
    /// The layers cannot be split into the stages.
    Layers,
    /// The schedule does not exist for these numbers of devices, stages and micro-batches.
    Schedule,
    /// Some device runs out of memory.
    Memory,
    /// A lower bound of its time shows that others are better.
    Slower,
    /// Predicted in full; a better plan differs only in virtual stages, in cp and the size of micro-batches, or in recomputed
    /// parts.
    Alike,
    /// Predicted in full, and slower than the plans.
    Predicted,
    /// Its order would have to be searched, and the budget for searches was spent on layouts with lower bounds.
    Unsearched,
}

impl Reason {
    /// Returns the name in files.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Heads => "tp_does_not_divide_the_model",
            Reason::Sequence => "cp_or_tp_does_not_divide_the_sequence",
            Reason::Batch => "dp_does_not_divide_the_batch",
            Reason::Micro => "more_than_16384_micro_batches",
            Reason::Layers => "layers_do_not_split",
            Reason::Schedule => "no_such_schedule",
            Reason::Memory => "out_of_memory",
            Reason::Slower => "slower_by_a_bound",
            Reason::Alike => "like_a_better_plan",
            Reason::Predicted => "slower_as_predicted",
            Reason::Unsearched => "order_not_searched",
        }
    }

    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Heads => "tp does not divide the model",
            Reason::Sequence => "cp or tp does not divide the sequence",
            Reason::Batch => "dp does not divide the batch",
            Reason::Micro => "more than 16,384 micro-batches per pipeline",
            Reason::Layers => "the layers do not split into the stages",
            Reason::Schedule => "the schedule does not exist for the numbers",
            Reason::Memory => "out of memory",
            Reason::Slower => "slower by a lower bound",
            Reason::Alike => "like a better plan, but for chunks, cp and micro-batch size, or recomputed parts",
            Reason::Predicted => "slower as predicted",
            Reason::Unsearched => "order not searched",
        }
    }
}
