//! The verdict on the measured step of a prediction.

use super::measured::Given;
use super::{Collected, Predict};
use crate::cli::Failure;
use crate::cli::options::output::Format;
use crate::cli::sandbox::Sandbox;
use pipesim_answer::question::{Predicted, Prepared, Question};
use pipesim_jobs::Reading;
use pipesim_verdict::judgement::{self, Measured, Verdict};

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
            Some(Given { measured: Measured::of_log(&name, &log).ok()?, log: Some(log), reading: Reading::default() })
        };
        let (given, is_asked) = (self.measured.given()?, self.measured.measured.is_some());
        let Some(Given { measured, log, reading }) = given.or_else(printed) else { return Ok(None) };
        is_of(&reading, question)?;
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

/// Refuses a log whose arguments are those of another run than `question` asks about.
fn is_of(log: &Reading, question: &Question) -> Result<(), Failure> {
    let pairs = [
        ("tp", log.tp, question.tp[0]),
        ("stages", log.pp, question.stages[0]),
        ("cp", log.cp, question.cp),
        ("seq", log.seq, question.seq),
    ];
    match pairs.into_iter().find_map(|(name, own, asked)| Some((name, own.filter(|own| *own != asked)?, asked))) {
        Some((name, own, asked)) => Err(Failure::Usage(format!(
            "--measured: expected a log of the run that is asked about, with --{name} {asked}, found one with {own}; give its own job, or \
             the other log"
        ))),
        None => Ok(()),
    }
}
