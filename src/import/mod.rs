//! Runs of other programs: their profilers' traces become timelines.
//!
//! Traces are read one file at a time ([`trace`]) into the few events that tell about the pipeline ([`event`]). Ops follow from
//! labels ([`labelled`]) or from autograd's sequence numbers ([`unlabelled`]), and on GPUs from the work that they launched
//! ([`gpu`]). Messages ([`message`]) align the ranks' clocks ([`clock`]).

mod assemble;
mod clock;
mod doubts;
mod error;
mod event;
mod exchange;
mod files;
mod gpu;
mod known;
mod label;
mod labelled;
mod message;
mod pipeline;
mod rank;
mod recover;
mod run;
mod scalar;
mod spans;
mod table;
mod trace;
mod unlabelled;

pub use error::ImportError;
pub use label::LabelRule;
pub use run::{Count, RankClock, Run, grouped};

use files::{Content, Progress};
use label::LabelRules;
use rank::RankRun;
use std::path::PathBuf;
use trace::Trace;

/// How traces are read.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Names of ranges that are ops, besides those of PyTorch.
    pub labels: Vec<LabelRule>,
    /// Which pipeline, if the traces have several; the first one by default.
    pub pipeline: Option<u32>,
}

/// Reads traces of one run, one file per rank: files, folders and patterns such as `traces/rank*.json.gz`.
///
/// `progress` is called with the number of bytes read and of all bytes.
///
/// # Errors
/// A file cannot be read, has no ops, or contradicts another. What is merely incomplete is in [`Run::warnings`].
pub fn import(paths: &[PathBuf], options: &ImportOptions, progress: &dyn Fn(u64, u64)) -> Result<Run, ImportError> {
    let files = files::expanded(paths)?;
    let progress = Progress::new(&files, progress);
    let rules = |short| LabelRules { own: options.labels.clone(), short };
    let (mut runs, mut warnings, mut tables) = (Vec::new(), Vec::new(), 0);
    let mut format = "PyTorch profiler";
    for file in &files {
        let shown = crate::sanitize::sanitize(&file.display().to_string()).to_string();
        match files::open(file, &progress)? {
            Content::Timelines(text) => {
                if files.len() > 1 {
                    return Err(ImportError::new(format!(
                        "expected traces of one format, found the timeline {shown} among {} files; import it alone",
                        files.len()
                    )));
                }
                return Run::of_timelines(&shown, &text);
            }
            Content::Table(text) => {
                tables += 1;
                format = "CSV";
                runs.extend(table::read(&shown, &text)?);
            }
            Content::Trace(reader) => {
                let trace = Trace::read(reader, &rules(false));
                runs.extend(recovered(shown, trace, &mut warnings)?);
            }
            Content::Nsight(reader) => {
                format = "Nsight Systems";
                let trace = Trace::read(reader, &rules(true));
                runs.extend(recovered(shown, trace, &mut warnings)?);
            }
        }
    }
    if tables > 0 && tables < files.len() {
        return Err(ImportError::new(format!(
            "expected files of one format, found {tables} tables among {} files; import the traces alone",
            files.len()
        )));
    }
    assemble::assemble(runs, format, tables == 0, options.pipeline, warnings)
}

/// Recovers the rank of one trace; a file without events is an error if nothing of it could be read.
fn recovered(file: String, trace: Trace, warnings: &mut Vec<String>) -> Result<Option<RankRun>, ImportError> {
    if !trace.has_events {
        let why = trace.cut.as_deref().unwrap_or("no traceEvents");
        warnings.push(format!("{file} left out: expected a profiler's trace, found {why}"));
        return Ok(None);
    }
    Ok(Some(RankRun::recover(file, trace)))
}
