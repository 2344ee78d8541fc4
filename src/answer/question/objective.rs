//! What a search for layouts looks for, and what it risks.

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

/// How far a search trusts predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Risk {
    /// As `Usual`, and the memory left free is at least the mean error of predicted memory.
    Low,
    /// The simplest layout that predictions cannot tell from the best, and what was measured before what was not.
    #[default]
    Usual,
    /// The fastest prediction.
    Even,
}

impl Risk {
    /// All of them.
    pub const ALL: [Risk; 3] = [Risk::Low, Risk::Usual, Risk::Even];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Risk::Low => "low",
            Risk::Usual => "usual",
            Risk::Even => "even",
        }
    }
}
