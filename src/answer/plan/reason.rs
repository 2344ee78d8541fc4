//! Why a question has no answer, and why layouts are not among the best.

use std::fmt;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The question contradicts itself, or no layout fits.
    #[error("expected {expected}, found {found}; {remedy}")]
    Expected {
        expected: String,
        found: String,
        /// The smallest change that helps.
        remedy: Remedy,
    },
    /// The model, its layout or a schedule is refused, with the reason.
    #[error("{0}")]
    Refused(String),
}

/// The smallest change that gives a question an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A setting with a value that helps.
    Ask { setting: &'static str, value: u32 },
    /// Leave out one of the [`Fixed`](super::Fixed) values, by its key.
    Unfix(&'static str),
    /// In words.
    Words(String),
}

impl PlanError {
    pub(super) fn new(expected: impl Into<String>, found: impl ToString, remedy: impl Into<Remedy>) -> PlanError {
        PlanError::Expected { expected: expected.into(), found: found.to_string(), remedy: remedy.into() }
    }

    pub(super) fn refused(error: impl ToString) -> PlanError {
        PlanError::Refused(error.to_string())
    }
}

impl<T: Into<String>> From<T> for Remedy {
    fn from(words: T) -> Remedy {
        Remedy::Words(words.into())
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Ask { setting, value } => write!(f, "ask for `{setting}` {value}"),
            Remedy::Unfix(key) => write!(f, "leave {key} out of `fix`"),
            Remedy::Words(words) => write!(f, "{words}"),
        }
    }
}

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
    /// The training framework refuses it.
    Framework,
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
    /// Returns the name in files, and the reason in words.
    fn both(self) -> (&'static str, &'static str) {
        match self {
            Reason::Heads => ("tp_does_not_divide_the_model", "tp does not divide the model"),
            Reason::Sequence => ("cp_or_tp_does_not_divide_the_sequence", "cp or tp does not divide the sequence"),
            Reason::Batch => ("dp_does_not_divide_the_batch", "dp does not divide the batch"),
            Reason::Micro => ("more_than_16384_micro_batches", "more than 16,384 micro-batches per pipeline"),
            Reason::Layers => ("layers_do_not_split", "the layers do not split into the stages"),
            Reason::Schedule => ("no_such_schedule", "the schedule does not exist for the numbers"),
            Reason::Framework => ("refused_by_the_framework", "refused by the training framework"),
            Reason::Memory => ("out_of_memory", "out of memory"),
            Reason::Slower => ("slower_by_a_bound", "slower by a lower bound"),
            Reason::Alike => (
                "like_a_better_plan",
                "like a better plan, but for chunks, cp and micro-batch size, or recomputed parts",
            ),
            Reason::Predicted => ("slower_as_predicted", "slower as predicted"),
            Reason::Unsearched => ("order_not_searched", "order not searched"),
        }
    }

    /// Returns the name in files.
    pub fn name(self) -> &'static str {
        self.both().0
    }

    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        self.both().1
    }
}
