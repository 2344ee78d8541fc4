//! `--measured`: a measured step next to its prediction.

use super::{Collected, Predict};
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::output::Format;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::{table, wrap};
use clap::Args;
use pipesim_answer::question::{Predicted, Prepared, Question};
use pipesim_jobs::{Measurement, log};
use pipesim_report::{Report, Table};
use pipesim_verdict::judgement::{self, Measured, Verdict};
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

#[derive(Args)]
pub struct MeasuredOptions {
    /// Judge a measured step: a time (9.6s), a speed ('12.3k tokens/s', '430 TFLOP/s/gpu model', '43% MFU bf16'), several of them with commas, or a log
    #[arg(long, value_name = "TIME|LOG", requires = "hardware", allow_hyphen_values = true)]
    measured: Option<String>,
}

/// A measured step with what else its log says.
struct Given {
    measured: Measured,
    log: Option<Measurement>,
}

impl MeasuredOptions {
    /// Asks for one schedule if none is named: what frameworks run by default.
    pub fn choose_schedule(&self, question: &mut Question) {
        if self.measured.is_some() && question.schedule.is_empty() {
            let name = if question.chunks.is_some() { "interleaved-1f1b" } else { "1f1b" };
            question.schedule = vec![name.to_string()];
        }
    }

    /// Reads the value: the path of a log, or a text.
    fn given(&self) -> Result<Option<Given>, Failure> {
        let Some(text) = &self.measured else { return Ok(None) };
        let wrong = |why: String| Failure::Usage(format!("--measured: {why}"));
        if !Path::new(text).is_file() {
            let measured = Measured::parse(text).map_err(|error| wrong(error.to_string()))?;
            return Ok(Some(Given { measured, log: None }));
        }
        let file = File::open(text).map_err(|error| wrong(format!("{text}: {error}")))?;
        let found = log::read(text, &mut BufReader::new(file)).map_err(|error| wrong(error.to_string()))?.measurement;
        let measured = Measured::of_log(text, &found).map_err(|error| wrong(format!("{text}: {error}")))?;
        Ok(Some(Given { measured, log: Some(found) }))
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
        writeln!(f, "{}", wrap(std::slice::from_ref(&self.sentence), 0))?;
        if self.tables.is_empty() {
            return Ok(());
        }
        writeln!(f, "{}", table(&Report { extra_tables: self.tables.clone(), ..Report::default() }))
    }
}

impl Predict {
    /// Refuses `--measured` where no single step is predicted.
    pub(super) fn check_measured(&self, prepared: &Prepared) -> Result<(), Failure> {
        let is_single = prepared.layouts().len() == 1 && self.draw.print.format != Format::Csv;
        match self.measured.measured {
            Some(_) if !is_single => Err(Failure::Usage(
                "--measured judges one step of one layout, which CSV has no columns for; give one layout of a model on hardware, and \
                 another --format"
                    .to_string(),
            )),
            _ => Ok(()),
        }
    }

    /// Judges the measured step of the only prediction: that of `--measured`, or of the log that is the job.
    pub(super) fn verdict(&self, question: &Question, found: &Collected) -> Result<Option<Verdict>, Failure> {
        let job = self.draw.print.job.as_ref().filter(|_| self.draw.print.format != Format::Csv);
        let printed = || {
            let log = job?.measured.clone().filter(|log| log.steps > 0)?;
            let name = job?.files.first().cloned().unwrap_or_default();
            Some(Given { measured: Measured::of_log(&name, &log).ok()?, log: Some(log) })
        };
        let (given, is_asked) = (self.measured.given()?, self.measured.measured.is_some());
        let Some(Given { measured, log }) = given.or_else(printed) else { return Ok(None) };
        match (found.cases.as_slice(), found.predictions.as_slice()) {
            ([case], [Predicted { estimate: Some(estimate), .. }]) => {
                Ok(Some(judgement::judge(question, &case.name, estimate, &measured, log.as_ref(), &Sandbox)?))
            }
            _ if is_asked => {
                Err(Failure::Usage("--measured judges one step, found several schedules; give one with -s".to_string()))
            }
            _ => Ok(None),
        }
    }
}
