//! `pipesim doctor`: which devices and libraries work here, and how to fix the others.

use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::output::json;
use crate::cli::options::values::whole;
use crate::cli::terminal::{print, print_folded};
use clap::{Args, ValueEnum};
use pipesim_exec::doctor::{self, Diagnosis, Need, Probe};
use std::time::Duration;

const HELP: &str = "Each probe that opens a library runs in a child process, which is killed at the time limit. Libraries are \
searched for in PIPESIM_CUDA_PATH (folders), LD_LIBRARY_PATH and ldconfig, CUDA_HOME, CUDA_PATH, /usr/local/cuda, and in the \
site-packages of VIRTUAL_ENV, CONDA_PREFIX and python3.\n\n\
With --need, exit code 5 means that something needed does not work; without it, the exit code is 0 whatever is missing.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Doctor {
    /// What must work: cuda, nvshmem, nccl or mpi; repeatable
    #[arg(long, value_name = "WHAT")]
    need: Vec<Need>,
    /// Format of what is printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Time limit of each probe in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = whole::<u64>(1..=3600))]
    time_limit: u64,
    /// Runs one probe in this process and prints the result as a line of JSON, for the child processes
    #[arg(long, value_name = "NAME", hide = true, exclusive = true, value_parser = Probe::named)]
    probe: Option<&'static Probe>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people
    Table,
    /// One object
    Json,
}

/// Returns a diagnosis whose advice names settings as flags.
fn as_written(mut diagnosis: Diagnosis) -> Diagnosis {
    let fixes = diagnosis.probes.iter_mut().filter_map(|row| row.finding.fix.as_mut());
    let texts = fixes.chain(diagnosis.needs.iter_mut().map(|need| &mut need.because));
    texts.for_each(|text| *text = as_flags(&*text));
    diagnosis
}

impl Doctor {
    pub fn run(&self) -> Result<(), Failure> {
        if let Some(probe) = self.probe {
            let line = serde_json::to_string(&probe.finding()).map_err(anyhow::Error::from)?;
            // A library may have printed half a line.
            return print(&format!("\n{line}\n"));
        }
        let diagnosis = as_written(doctor::examine(Duration::from_secs(self.time_limit)));
        match self.format {
            Format::Json => print(&json(&diagnosis)?)?,
            Format::Table => print_folded(&diagnosis.text())?,
        }
        self.check(&diagnosis)
    }

    fn check(&self, diagnosis: &Diagnosis) -> Result<(), Failure> {
        let unusable = self.need.iter().filter_map(|need| diagnosis.verdict(*need)).find(|verdict| !verdict.usable);
        match unusable {
            Some(verdict) => Err(Failure::Environment(format!(
                "expected {} to be usable, found that {}",
                verdict.need.name(),
                verdict.because
            ))),
            None => Ok(()),
        }
    }
}
