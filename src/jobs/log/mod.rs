//! Logs of training runs: what a run was told, and how fast it was.
//!
//! A log is read in one pass and in bounded memory. Lines are searched for the names that frameworks print, so that whatever a launcher
//! writes before them does not matter. Of several runs in one file the last one with steps counts.

mod content;
mod facts;
mod lines;
mod memory;
mod number;
mod run;
mod step;
mod steps;
mod timers;

use crate::error::JobError;
use lines::Lines;
use run::Run;
use std::io::BufRead;

pub use content::Log;

/// Texts that only logs have, besides lines of steps.
const MARKS: [&str; 8] = [
    "--- arguments ---",
    "using world size:",
    " NCCL INFO ",
    "initializing torch distributed",
    "initialized tensor model parallel",
    "OMP_NUM_THREADS environment variable for each process",
    " - root - INFO - ",
    "[INFO] [",
];

/// Whether a text is the start of a log.
pub fn is_log(head: &str) -> bool {
    let script = head.trim_start().starts_with("#!");
    !script
        && head
            .split(['\n', '\r'])
            .map(lines::clean)
            .any(|line| step::of(&line).is_some() || MARKS.iter().any(|mark| line.contains(mark)))
}

/// Reads a log.
///
/// # Errors
/// It cannot be read, or has neither steps nor arguments.
pub fn read(name: &str, reader: &mut dyn BufRead) -> Result<Log, JobError> {
    let mut lines = Lines::new(reader);
    let mut run = Run::default();
    let mut finished: Option<Run> = None;
    let mut runs = 0;
    loop {
        let line = lines.next().map_err(|error| JobError::File {
            place: format!("{name}:{}", lines.number()),
            why: format!("expected a readable log, found: {error}; copy the file anew"),
        })?;
        let Some(line) = line else { break };
        if let Some(next) = run.read(name, lines.number(), &line) {
            finished = Some(std::mem::replace(&mut run, next));
            runs += 1;
            run.again(&line, name, lines.number());
        }
    }
    if run.has_steps() {
        runs += 1;
    } else if let Some(last) = finished {
        run = last;
    }
    let log = run.finish(runs);
    if log.settings.0.is_empty() && log.measurement.steps == 0 {
        return Err(JobError::File {
            place: format!("{name}:{}", lines.number()),
            why: "expected lines of training steps, such as `elapsed time per iteration (ms): 512.3 |`, found none; \
                  give the output of the rank that prints them (Megatron: the last)"
                .to_string(),
        });
    }
    Ok(log)
}
