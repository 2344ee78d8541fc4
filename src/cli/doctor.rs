//! `pipesim doctor`: what of this machine can be used, and what to do about the rest.

use super::Failure;
use super::numbers::whole;
use super::output::{json, print, print_folded};
use crate::doctor::{self, Diagnosis, Need, Probe};
use clap::{Args, ValueEnum};
use std::time::Duration;

const HELP: &str = "Each probe that opens a library runs in a child process, which is killed at the time limit. Libraries are \
looked for in PIPESIM_CUDA_PATH (folders), LD_LIBRARY_PATH and ldconfig, CUDA_HOME, CUDA_PATH, /usr/local/cuda, and in the \
site-packages of VIRTUAL_ENV, CONDA_PREFIX and python3.\n\n\
With --need, exit code 5 says that something needed cannot be used; without it, the exit code is 0 whatever is missing.";

/// Arguments of `doctor`.
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Doctor {
    /// What must be usable: cuda, nvshmem, nccl or mpi; repeatable
    #[arg(long, value_name = "WHAT")]
    need: Vec<Need>,
    /// Shape of what is printed
    #[arg(long, value_enum, default_value_t = Shape::Table)]
    format: Shape,
    /// Seconds that a probe may take
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = whole::<u64>(1..=3600))]
    time_limit: u64,
    /// Asks one thing in this process and prints the answer as a line of JSON: what the child processes run
    #[arg(long, value_name = "NAME", hide = true, exclusive = true, value_parser = Probe::named)]
    probe: Option<&'static Probe>,
}

/// Shape of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// Lines for people.
    Table,
    /// One object.
    Json,
}

impl Doctor {
    /// Asks, prints.
    pub fn run(&self) -> Result<(), Failure> {
        if let Some(probe) = self.probe {
            let line = serde_json::to_string(&(probe.ask)()).map_err(anyhow::Error::from)?;
            // A library may have left half a line behind.
            return print(&format!("\n{line}\n"));
        }
        let diagnosis = doctor::examine(Duration::from_secs(self.time_limit));
        match self.format {
            Shape::Json => print(&json(&diagnosis)?)?,
            Shape::Table => print_folded(&diagnosis.text())?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Finding, Row, Status, Verdict};

    #[test]
    fn only_what_is_needed_and_not_usable_fails() {
        let verdict = |need, usable: bool| {
            let blocked_by = (!usable).then_some(("driver", Status::Missing));
            Verdict { need, usable, because: "this; do that".to_string(), blocked_by }
        };
        let needs = vec![verdict(Need::Cuda, false), verdict(Need::Mpi, true)];
        let finding = Finding { status: Status::Ok, found: String::new(), fix: None };
        let probes = vec![Row { name: "driver", finding, duration_ms: 1.0 }];
        let diagnosis = Diagnosis { schema_version: doctor::SCHEMA_VERSION, probes, needs };
        let doctor = |need| Doctor { need, format: Shape::Table, time_limit: 10, probe: None };
        assert!(doctor(vec![]).check(&diagnosis).is_ok());
        assert!(doctor(vec![Need::Mpi]).check(&diagnosis).is_ok());
        let failure = doctor(vec![Need::Mpi, Need::Cuda]).check(&diagnosis).expect_err("cuda is not usable");
        assert!(matches!(failure, Failure::Environment(_)));
        assert_eq!(failure.to_string(), "expected cuda to be usable, found that this; do that");
    }
}
