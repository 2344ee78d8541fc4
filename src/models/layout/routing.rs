//! How tokens are spread over experts.

use super::ParallelConfigError;
use std::fmt;
use std::str::FromStr;

/// How tokens are spread over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Routing {
    /// Equally.
    Balanced,
    /// As the router of a trained model chooses.
    Natural,
    /// Padded or dropped to the capacity of each expert, in percent of the mean rows per expert.
    Capacity(u32),
}

impl Routing {
    /// Capacity of the mean rows per expert.
    pub const CAPACITY: Routing = Routing::Capacity(100);

    /// Returns the name, without the capacity factor.
    pub fn name(self) -> &'static str {
        match self {
            Routing::Balanced => "balanced",
            Routing::Natural => "natural",
            Routing::Capacity(_) => "capacity",
        }
    }

    /// Returns the capacity as a multiple of the mean rows per expert; `None` without one.
    pub fn capacity_factor(self) -> Option<f64> {
        match self {
            Routing::Capacity(percent) => Some(f64::from(percent) / 100.0),
            _ => None,
        }
    }

    /// Returns the rows of the busiest GPU as a multiple of the mean. `natural`: this multiple with natural routing.
    pub fn load(self, natural: f64) -> f64 {
        match self {
            Routing::Natural => natural,
            _ => self.capacity_factor().unwrap_or(1.0),
        }
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.capacity_factor().filter(|&factor| factor != 1.0) {
            Some(factor) => write!(f, "{}:{factor}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

impl FromStr for Routing {
    type Err = ParallelConfigError;

    fn from_str(text: &str) -> Result<Routing, ParallelConfigError> {
        let factor = text.strip_prefix("capacity:").and_then(|factor| factor.parse::<f64>().ok());
        match (text, factor) {
            ("balanced", _) => Ok(Routing::Balanced),
            ("natural", _) => Ok(Routing::Natural),
            ("capacity", _) => Ok(Routing::CAPACITY),
            (_, Some(factor)) if (0.01..=1000.0).contains(&factor) => {
                Ok(Routing::Capacity((factor * 100.0).round() as u32))
            }
            _ => Err(ParallelConfigError::Name {
                expected: "the routing to be one of balanced, natural, capacity, or capacity:1.25 with a factor from 0.01 to 1000"
                    .to_string(),
                found: format!("'{text}'"),
            }),
        }
    }
}
