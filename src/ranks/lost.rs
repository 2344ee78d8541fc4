//! Errors of ranks, and how long ranks wait for each other.

use std::time::Duration;

/// End of the message about a rank that died.
const DEATH: &str = "; all others were ended";

/// A rank died or hangs, so the run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

impl Lost {
    /// `rank` ended without saying why; `how` describes its end.
    pub(super) fn dead(rank: usize, how: &str) -> Lost {
        Lost(format!("rank {rank} {how}{DEATH}"))
    }

    pub(super) fn is_death_of(&self, rank: usize) -> bool {
        self.0.starts_with(&format!("rank {rank} ")) && self.0.ends_with(DEATH)
    }

    /// `who` did not answer within `limit`.
    pub(super) fn silent(who: &str, limit: Duration) -> Lost {
        Lost(format!(
            "{who} has not answered for {} s: it is stopped or hangs; all others were ended: start again, or give a longer \
             --timeout",
            limit.as_secs()
        ))
    }
}

/// Why this process cannot become a rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// The options contradict the launcher of this process.
    #[error("{0}")]
    Contradiction(String),
    /// This build or machine does not support it.
    #[error("{0}")]
    Unable(String),
    /// A rank died before the run began.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// How long ranks wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a rank to start.
    pub joining: Duration,
    /// For a rank that does not answer.
    pub silence: Duration,
    /// For a rank that answers, but may be reading a large model or compiling.
    pub most: Duration,
}

impl Patience {
    /// Derives the limits from `--timeout`. A process always has at least 1 s to answer and 10 s to start.
    pub fn of(timeout: Option<Duration>) -> Patience {
        let seconds = Duration::from_secs;
        let silence = timeout.unwrap_or(seconds(30)).max(seconds(1));
        let joining = timeout.map_or(seconds(120), |timeout| timeout.max(seconds(10)));
        Patience { joining, silence, most: seconds(600).max(silence.saturating_mul(20)) }
    }

    /// Time between questions to a rank that others wait for.
    pub fn between_pings(self) -> Duration {
        (self.silence / 4).min(Duration::from_secs(1))
    }
}
