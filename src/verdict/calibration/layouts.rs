//! A measured layout with its prediction: from a question, or from the log of a training job.

use super::process::MeasuredLayout;
use crate::asked;
use crate::judgement::{Asked, Change, Measured};
use pipesim_answer::question::{Question, Silent, model};
use pipesim_answer::resolve::{Error, Host, usage};
use pipesim_jobs::{GivenJob, log};
use std::fs::File;
use std::io::Read;

/// Relative difference of two counts of parameters up to which models are the same: vocabularies are padded.
const PADDING: f64 = 0.02;

/// Factor between a measured step and its prediction from which on one of them is of something else.
const FAR: f64 = 10.0;
/// Length of the start by which a log is known.
const HEAD: u64 = 1 << 16;

/// Whether a file is the log of a training job rather than CSV.
pub fn is_log(path: &str) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).map(|file| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && !path.to_lowercase().ends_with(".csv") && log::is_log(&String::from_utf8_lossy(&head))
}

/// Reads the log of a training job, and predicts its layout on the hardware of `asked`.
///
/// # Errors
/// A file that is no log or has no times of steps, a job that says too little, or one of another model.
pub fn logged_run(path: &str, asked: &Question, host: &'static dyn Host) -> Result<MeasuredLayout, Error> {
    let mut job = GivenJob { file: Some(path.to_string()), ..GivenJob::default() }.read().map_err(usage)?;
    let log = job.measured.clone().unwrap_or_default();
    let measured = Measured::of_log(path, &log).map_err(|error| usage(format!("{path}: {error}")))?;
    let question = asked::complete(&mut job, asked.hardware.as_deref(), host).map_err(usage)?;
    let question = Question { hardware: asked.hardware.clone(), ..question };
    measured_layout(&question, asked, &measured, host).map_err(|error| usage(format!("{path}: {error}")))
}

/// Predicts the layout that a question is about, which was measured.
///
/// # Errors
/// The question is not about one schedule on one layout, or about another model or other hardware than `asked`.
pub fn measured_layout(
    question: &Question,
    asked: &Question,
    measured: &Measured,
    host: &'static dyn Host,
) -> Result<MeasuredLayout, Error> {
    same_machine(question, asked, host)?;
    let names = question.names();
    let [name] = names.as_slice() else {
        let found = names.len();
        return Err(usage(format!(
            "expected one schedule, found {found}; add a column 'schedule', or give one with `schedule`"
        )));
    };
    let one = Asked::new(question, name, host)?;
    let estimate = one.predict(&Change::Question(Box::new(question.clone())))?;
    let predicted = estimate.time_s;
    let seconds = measured.seconds(&one.analytic).map_err(usage)?;
    let middle = |index: usize| seconds.get(index).copied().unwrap_or_default();
    let measured_s = (middle(seconds.len() / 2) + middle(seconds.len().saturating_sub(1) / 2)) / 2.0;
    let ratio = measured_s / predicted.iteration();
    if !(1.0 / FAR..FAR).contains(&ratio) {
        let expected =
            format!("expected a time within a factor of {FAR} of the prediction, {:.3} s", predicted.iteration());
        return Err(usage(format!("{expected}, found {measured_s} s; correct the time or its unit, or the layout")));
    }
    Ok(MeasuredLayout { predicted, measured_s, point: Some(estimate.point) })
}

/// Refuses runs of another model or of other hardware: published errors say nothing about these.
fn same_machine(question: &Question, asked: &Question, host: &'static dyn Host) -> Result<(), Error> {
    let differs = |what: &str, expected: &Option<String>, found: &str| {
        let expected = expected.as_deref().unwrap_or_default();
        Err(usage(format!("expected runs of the {what} '{expected}' as in the command, found '{found}'; leave it out")))
    };
    if question.hardware != asked.hardware {
        return differs("hardware", &asked.hardware, question.hardware.as_deref().unwrap_or_default());
    }
    if question.model == asked.model {
        return Ok(());
    }
    let count = |one: &Question| -> Result<f64, Error> {
        let name = one.model.as_deref().ok_or_else(|| usage("expected a model, found none; give `model`"))?;
        Ok(model(name, one.seq, host, &Silent)?.parameter_count() as f64)
    };
    let (found, expected) = (count(question)?, count(asked)?);
    if (found / expected - 1.0).abs() > PADDING {
        let name = question.model.as_deref().filter(|name| !name.starts_with('{'));
        let of = format!("a model of {:.1} G parameters", found / 1e9);
        return differs("model", &asked.model, name.unwrap_or(&of));
    }
    Ok(())
}
