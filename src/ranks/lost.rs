//! A rank that is gone, and how long the others wait for one that may be.

use std::time::Duration;

/// What is said of all others where a rank has ended.
const DEATH: &str = "; all others were ended";

/// A rank is gone, so the run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

impl Lost {
    /// That `rank` ended without a word, and `how`.
    pub(super) fn dead(rank: usize, how: &str) -> Lost {
        Lost(format!("rank {rank} {how}{DEATH}"))
    }

    /// Whether it says that `rank` ended without a word.
    pub(super) fn is_death_of(&self, rank: usize) -> bool {
        self.0.starts_with(&format!("rank {rank} ")) && self.0.ends_with(DEATH)
    }

    /// `who` did not answer in time.
    pub(super) fn silent(who: &str, limit: Duration) -> Lost {
        Lost(format!(
            "{who} has not answered for {} s: it is stopped or hangs; all others were ended: start again, or give a longer \
             --timeout",
            limit.as_secs()
        ))
    }
}

/// Why there is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// What was asked for contradicts what started this process.
    #[error("{0}")]
    Contradiction(String),
    /// This build or machine cannot.
    #[error("{0}")]
    Unable(String),
    /// A rank was gone before the run began.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// How long ranks wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a rank to come up.
    pub joining: Duration,
    /// For a rank that gives no sign of life.
    pub silence: Duration,
    /// For one that does, and may still be reading a large model, or compiling.
    pub most: Duration,
}

impl Patience {
    /// What `--timeout` asks for. The least that a living process is given to answer is a second, and ten to come up.
    pub fn of(timeout: Option<Duration>) -> Patience {
        let seconds = Duration::from_secs;
        let silence = timeout.unwrap_or(seconds(30)).max(seconds(1));
        let joining = timeout.map_or(seconds(120), |timeout| timeout.max(seconds(10)));
        Patience { joining, silence, most: seconds(600).max(silence.saturating_mul(20)) }
    }

    /// How often a rank that is waited for is asked for a sign of life.
    pub fn between_pings(self) -> Duration {
        (self.silence / 4).min(Duration::from_secs(1))
    }
}
