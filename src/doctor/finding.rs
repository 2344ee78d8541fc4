//! What a probe found.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There and usable.
    Ok,
    /// Not there.
    Missing,
    /// There and not usable.
    Broken,
    /// Cannot be said.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Broken => "broken",
            Status::Unknown => "unknown",
        })
    }
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How it ended.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// The one thing to do; none where all is well.
    pub fix: Option<String>,
}

impl Finding {
    pub(super) fn ok(found: impl Into<String>) -> Finding {
        Finding { status: Status::Ok, found: found.into(), fix: None }
    }

    pub(super) fn missing(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    pub(super) fn broken(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Broken, found: found.into(), fix: Some(fix.into()) }
    }

    pub(super) fn unknown(found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { status: Status::Unknown, found: found.into(), fix: Some(fix.into()) }
    }
}

/// A library that is nowhere, or there and not to be opened.
impl From<crate::cuda::library::Missing> for Finding {
    fn from(missing: crate::cuda::library::Missing) -> Finding {
        let found = match missing.broken.is_empty() {
            true => format!("no {} in {}", missing.files.join(" or "), missing.places.join(", ")),
            false => missing.found(),
        };
        let status = if missing.broken.is_empty() { Status::Missing } else { Status::Broken };
        Finding { status, found, fix: Some(missing.fix) }
    }
}

/// A text that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {known}, found '{found}'")]
pub struct NoSuchName {
    pub(super) known: String,
    pub(super) found: String,
}

/// A probe's row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The probe's name.
    pub name: &'static str,
    /// What it found.
    #[serde(flatten)]
    pub finding: Finding,
    /// How long it took, the child process included.
    pub duration_ms: f64,
}
