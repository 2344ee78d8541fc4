//! The log of a run: a line of JSON for each step.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// Name of the log in the folder of a run.
pub const LOG: &str = "log.jsonl";

/// What is logged of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// Number of the step, from 1.
    pub step: u32,
    /// Mean loss before the update.
    pub loss: f64,
    /// Norm of the gradients before clipping.
    pub norm: Option<f64>,
    pub learning_rate: f32,
    /// From the tokens in the host's memory to the loss back there.
    pub tokens_per_second: f64,
    /// Share of the devices' time between the step's start and its last pipeline op in which they did not compute.
    pub bubble: f64,
    /// Mean loss on held-out tokens after the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Text sampled after the update; token ids if no tokenizer is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
}

/// A log that is being written.
pub struct Log {
    file: File,
}

impl Log {
    /// Opens the log in `folder` after `steps` steps. Later lines, which a run wrote that ended before its next checkpoint, are
    /// removed.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(folder: &Path, steps: u32) -> Result<Log> {
        let path = folder.join(LOG);
        let open = || -> Result<Log> {
            if path.exists() {
                let text = std::fs::read_to_string(&path)?;
                let kept: String = text.split_inclusive('\n').filter(|line| is_until(line, steps)).collect();
                if kept != text {
                    crate::report::write_atomic(&path, kept.as_bytes())?;
                }
            }
            Ok(Log { file: OpenOptions::new().create(true).append(true).open(&path)? })
        };
        open().with_context(|| format!("opening {}", path.display()))
    }

    /// Adds a line.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn add(&mut self, line: &LogLine) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        self.file.write_all(text.as_bytes()).with_context(|| format!("writing {LOG}"))
    }

    /// Waits until all lines are on the disk.
    ///
    /// # Errors
    /// As [`Log::add`].
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().with_context(|| format!("writing {LOG}"))
    }
}

/// Whether a line is complete and of one of the first `steps` steps.
fn is_until(line: &str, steps: u32) -> bool {
    line.ends_with('\n') && serde_json::from_str::<LogLine>(line).is_ok_and(|line| line.step <= steps)
}
