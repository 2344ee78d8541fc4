//! What a search for layouts looks for.

use serde::{Deserialize, Serialize};

/// Objective of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Shortest iteration.
    #[default]
    Time,
    /// Most tokens per second and GPU.
    TokensPerGpu,
    /// Lowest price per token, by the hardware's price.
    Cost,
}

impl Objective {
    /// All objectives.
    pub const ALL: [Objective; 3] = [Objective::Time, Objective::TokensPerGpu, Objective::Cost];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Objective::Time => "time",
            Objective::TokensPerGpu => "tokens-per-gpu",
            Objective::Cost => "cost",
        }
    }
}
