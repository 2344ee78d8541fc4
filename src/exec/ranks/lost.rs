//! Errors of ranks, and how long ranks wait for each other.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A rank died or hangs, so the run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Lost {
    pub text: String,
    /// The rank, if it can no longer write results.
    pub dead: Option<u32>,
}

impl Lost {
    pub fn new(text: impl Into<String>) -> Lost {
        Lost { text: text.into(), dead: None }
    }

    /// `rank` ended without saying why; `how` describes its end.
    pub(super) fn dead(rank: u32, how: &str) -> Lost {
        Lost { text: format!("rank {rank} {how}; all others were ended"), dead: Some(rank) }
    }

    /// `who` did not answer within `limit`.
    pub(super) fn silent(who: &str, limit: Duration) -> Lost {
        Lost::new(format!(
            "{who} has not answered for {} s: it is stopped or hangs; all others were ended: start again, or give a longer \
             `timeout`",
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
    /// Derives the limits from `--timeout`. A process always has at least 1 s to answer and 10 s to start. A separate thread
    /// answers, so a process that is silent for 4 s is stopped.
    pub fn of(timeout: Option<Duration>) -> Patience {
        let seconds = Duration::from_secs;
        let silence = timeout.unwrap_or(seconds(4)).max(seconds(1));
        let joining = timeout.map_or(seconds(120), |timeout| timeout.max(seconds(10)));
        Patience { joining, silence, most: seconds(600).max(silence.saturating_mul(20)) }
    }

    /// Time between questions to a rank that others wait for.
    pub fn between_pings(self) -> Duration {
        (self.silence / 4).min(Duration::from_secs(1))
    }
}
