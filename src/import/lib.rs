//! Runs of other programs: their profilers' traces become timelines.
//!
//! Traces are read one file at a time (`trace`) into the few events that tell about the pipeline (`event`). Ops follow from
//! labels (`labelled`) or from autograd's sequence numbers (`unlabelled`), and on GPUs from the work that they launched
//! (`gpu`). Messages (`message`) align the ranks' clocks (`clock`).
//!
//! In: files, folders or patterns, one file per rank, from PyTorch's profiler, Nsight Systems or tables. Out: a [`Run`], with a timeline
//! per step and what was odd.
//!
//! ```
//! use pipesim_import::{ImportOptions, import};
//!
//! let unnamed = |_: &_| None; // whose order it is
//! let error = import(&["missing.json".into()], &ImportOptions::default(), &|_, _| (), &unnamed).unwrap_err();
//! assert!(error.to_string().contains("missing.json"));
//! ```

mod assemble;
mod clock;
mod counted;
mod doubts;
mod error;
mod event;
mod exchange;
mod files;
mod follow;
mod gpu;
mod label;
mod labelled;
mod message;
mod pipeline;
mod rank;
mod record;
mod recover;
mod run;
mod scalar;
mod spans;
#[cfg_attr(target_family = "wasm", path = "no_sqlite.rs")]
mod sqlite;
mod table;
mod timers;
mod trace;
mod unlabelled;

pub use error::ImportError;
pub use follow::Follower;
pub use label::LabelRule;
pub use run::{Count, RankClock, Run, grouped};

use files::{Content, Progress};
use label::LabelRules;
use pipesim_schedule::timeline::Timeline;
use rank::RankRun;
use std::path::PathBuf;
use trace::Trace;

/// How traces are read.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Names of ranges that are ops, in addition to PyTorch's names.
    pub labels: Vec<LabelRule>,
    /// Which pipeline, if the traces have several; the first one by default.
    pub pipeline: Option<u32>,
}

/// Reads traces of one run, one file per rank: files, folders and patterns such as `traces/rank*.json.gz`.
///
/// `progress` is called with the number of bytes read and of all bytes; `built_in_of` names the built-in schedule whose order a timeline
/// has.
///
/// # Errors
/// A file cannot be read, has no ops, or contradicts another. What is merely incomplete is in [`Run::warnings`].
pub fn import(
    paths: &[PathBuf],
    options: &ImportOptions,
    progress: &dyn Fn(u64, u64),
    built_in_of: &dyn Fn(&Timeline) -> Option<String>,
) -> Result<Run, ImportError> {
    let files = files::expanded(paths)?;
    let progress = Progress::new(&files, progress);
    let rules = |short| LabelRules { own: options.labels.clone(), short };
    let (mut runs, mut warnings, mut tables) = (Vec::new(), Vec::new(), 0);
    let mut format = "PyTorch profiler";
    for file in &files {
        let shown = pipesim_schedule::sanitize::sanitize(&file.display().to_string()).to_string();
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
            Content::Log(text) => {
                tables += 1;
                format = timers::FORMAT;
                runs.extend(timers::read(&shown, &text, &mut warnings)?);
            }
            Content::Record(text) => {
                format = record::FORMAT;
                runs.push(record::read(&shown, &text)?);
            }
            Content::Trace(reader) => {
                let trace = Trace::read(reader, &rules(false));
                runs.extend(recovered(shown, trace, &mut warnings)?);
            }
            Content::Nsight(reader) => {
                format = "Nsight Systems";
                add_processes(Trace::read(reader, &rules(true)), &shown, &mut runs, &mut warnings)?;
            }
            Content::Database(path) => {
                format = "Nsight Systems";
                add_processes(sqlite::read(&path, &rules(true))?, &shown, &mut runs, &mut warnings)?;
            }
        }
    }
    if tables > 0 && tables < files.len() {
        return Err(ImportError::new(format!(
            "expected files of one format, found {tables} tables among {} files; import the traces alone",
            files.len()
        )));
    }
    counted::number(&mut runs, &mut warnings)?;
    counted::divide(&mut runs, &mut warnings);
    // The processes of one report share a clock.
    let clocked = tables == 0 && !(files.len() == 1 && runs.len() > 1);
    let mut run = assemble::assemble(runs, format, clocked, options.pipeline, warnings)?;
    run.name_order(built_in_of);
    Ok(run)
}

/// Adds the ranks that one report of Nsight Systems has.
fn add_processes(
    trace: Trace,
    file: &str,
    runs: &mut Vec<RankRun>,
    warnings: &mut Vec<String>,
) -> Result<(), ImportError> {
    let processes = trace.by_process();
    let are_several = processes.len() > 1;
    for trace in processes {
        if let Some(mut run) = recovered(file.to_string(), trace, warnings)? {
            run.rank = run.rank.or(are_several.then_some(runs.len() as u32));
            runs.push(run);
        }
    }
    Ok(())
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
