//! The log of a run: a line of JSON for each step.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

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

/// A log that is being written. Its file is made with the first line.
pub struct Log {
    path: PathBuf,
    file: Option<File>,
}

impl Log {
    /// Opens the log in `folder` after `steps` steps, and returns the losses that are in it. Later lines, which a run wrote that
    /// ended before its next checkpoint, are removed.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(folder: &Path, steps: u32) -> Result<(Log, Vec<f64>)> {
        let path = folder.join(LOG);
        let open = || -> Result<Vec<f64>> {
            if !path.exists() {
                return Ok(Vec::new());
            }
            let text = std::fs::read_to_string(&path)?;
            let lines = text.split_inclusive('\n').map(|line| (line, read(line, steps)));
            let (kept, losses): (String, Vec<f64>) = lines.filter_map(|(line, read)| Some((line, read?.loss))).unzip();
            if kept != text {
                pipesim_report::write_atomic(&path, kept.as_bytes())?;
            }
            Ok(losses)
        };
        let losses = open().with_context(|| format!("opening {}", path.display()))?;
        Ok((Log { path, file: None }, losses))
    }

    /// Adds a line.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn add(&mut self, line: &LogLine) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        let mut write = || -> Result<()> {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(OpenOptions::new().create(true).append(true).open(&self.path)?),
            };
            Ok(file.write_all(text.as_bytes())?)
        };
        write().with_context(|| format!("writing {LOG}"))
    }

    /// Waits until all lines are on the disk.
    ///
    /// # Errors
    /// As [`Log::add`].
    pub fn sync(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data).with_context(|| format!("writing {LOG}"))
    }
}

/// Reads a line that is complete and of one of the first `steps` steps.
fn read(line: &str, steps: u32) -> Option<LogLine> {
    let line: LogLine = serde_json::from_str(line.strip_suffix('\n')?).ok()?;
    (line.step <= steps).then_some(line)
}
