//! Option that corrects predictions by measured steps.

use super::costs::read_text;
use super::output;
use crate::cli::Failure;
use crate::cli::sandbox::Sandbox;
use clap::Args;
use pipesim_answer::question::Question;
use pipesim_verdict::calibration::{Corrected, StepCalibration, is_log, logged_run, measured_runs};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Largest file of runs, in bytes.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Args, Clone, Debug)]
pub struct CalibrateOptions {
    /// Correct predictions by measured steps: CSV with a row per layout, a column per option and a column "measured", in seconds; or a job's log; repeatable
    #[arg(long, value_name = "FILE", requires = "hardware", help_heading = "A model on hardware")]
    pub calibrate: Vec<PathBuf>,
}

impl CalibrateOptions {
    /// Returns the calibration by the runs of the files, if there are any; settings without a column are as `asked`.
    pub fn calibration(&self, asked: &Question) -> Result<Option<StepCalibration>, Failure> {
        let mut runs = Vec::new();
        for path in &self.calibrate {
            let name = path.to_string_lossy();
            if is_log(&name) {
                runs.push(logged_run(&name, asked, &Sandbox)?);
                continue;
            }
            let found = measured_runs(&read_text(path, MOST_BYTES)?, asked, &Sandbox);
            runs.extend(found.map_err(|error| Failure::Usage(format!("{name}: {error}")))?);
        }
        Ok((!runs.is_empty()).then(|| StepCalibration::fit(&runs)))
    }
}

/// Returns JSON whose entries of `list` have their corrections, if there are any.
pub fn with_corrections(json: String, list: &str, corrected: &[Corrected]) -> Result<String, Failure> {
    if corrected.is_empty() {
        return Ok(json);
    }
    let mut value: Value = serde_json::from_str(&json).map_err(anyhow::Error::from)?;
    let entries = value[list].as_array_mut().into_iter().flatten().zip(corrected);
    entries.for_each(|(entry, one)| entry["calibration"] = json!(one));
    output::json(&value)
}
