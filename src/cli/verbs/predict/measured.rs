//! `--measured`: a measured step next to its prediction.

use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::terminal::{table, wrap};
use clap::Args;
use pipesim_answer::question::Question;
use pipesim_jobs::{GivenJob, Measurement, Reading, log};
use pipesim_report::{Report, Table};
use pipesim_verdict::judgement::{Measured, Verdict};
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

#[derive(Args)]
pub struct MeasuredOptions {
    /// Judge a measured step: a time (9.6s), a speed ('12.3k tokens/s', '430 TFLOP/s/gpu model', '43% MFU bf16'), several of them with commas, or a log
    #[arg(long, value_name = "TIME|LOG", requires = "hardware", allow_hyphen_values = true)]
    pub measured: Option<String>,
}

/// A measured step with what else its log says.
pub struct Given {
    pub measured: Measured,
    pub log: Option<Measurement>,
    /// What the arguments in the log say.
    pub reading: Reading,
}

impl MeasuredOptions {
    /// Asks for one schedule if none is named: what frameworks run by default.
    pub fn choose_schedule(&self, question: &mut Question) {
        if self.measured.is_some() {
            question.name_schedule();
        }
    }

    /// Reads the value: the path of a log, or a text.
    pub fn given(&self) -> Result<Option<Given>, Failure> {
        let Some(text) = &self.measured else { return Ok(None) };
        let wrong = |why: String| Failure::Usage(format!("--measured: {why}"));
        if !Path::new(text).is_file() {
            let measured = Measured::parse(text).map_err(|error| wrong(error.to_string()))?;
            return Ok(Some(Given { measured, log: None, reading: Reading::default() }));
        }
        let job = GivenJob { file: Some(text.clone()), ..GivenJob::default() }.read().ok();
        let (found, reading) = match job.and_then(|job| Some((job.measured?, job.reading))) {
            Some(found) => found,
            None => {
                let file = File::open(text).map_err(|error| wrong(format!("{text}: {error}")))?;
                let log = log::read(text, &mut BufReader::new(file)).map_err(|error| wrong(error.to_string()))?;
                (log.measurement, Reading::default())
            }
        };
        let measured = Measured::of_log(text, &found).map_err(|error| wrong(format!("{text}: {error}")))?;
        Ok(Some(Given { measured, log: Some(found), reading }))
    }
}

/// The verdict and its candidates, printed above the prediction.
pub struct Head {
    sentence: String,
    tables: Vec<Table>,
}

impl Head {
    pub fn new(verdict: &Verdict) -> Head {
        Head { sentence: verdict.to_string(), tables: verdict.tables(|text| as_flags(text)) }
    }

    /// Returns a report without what is printed above it.
    pub fn rest(&self, report: &Report) -> Report {
        let mut rest = Report { verdict: String::new(), ..report.clone() };
        rest.extra_tables.retain(|table| !self.tables.contains(table));
        rest
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrapped = wrap(std::slice::from_ref(&self.sentence), 0);
        if self.tables.is_empty() {
            return write!(f, "{wrapped}");
        }
        write!(f, "{wrapped}\n{}", table(&Report { extra_tables: self.tables.clone(), ..Report::default() }))
    }
}
