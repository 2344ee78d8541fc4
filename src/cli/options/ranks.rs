//! Options that say how many processes a command has, and how each of them begins and ends.

use super::values::whole;
use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::terminal::eprint;
use crate::cli::terminal::stopping::{Decides, install_signal_handler};
use clap::Args;
use pipesim_exec::ranks::{Ended, Patience, Ranks, RanksError, Role, launch, role};
use pipesim_schedule::mesh::Mesh;
use std::sync::Arc;
use std::time::Duration;

#[derive(Args, Clone, Debug)]
pub struct RankOptions {
    /// Number of processes to start on this machine for the devices; leave it out under mpirun [default: 1]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<u32>(1..4096))]
    pub ranks: Option<u32>,
    /// Share no memory between ranks under mpirun, even on one machine; for tests
    #[arg(long = "no-shared-memory", alias = "apart", hide = true)]
    pub no_shared_memory: bool,
}

impl RankOptions {
    /// Starts the ranks asked for, or runs `body` as one of them, or alone. `timeout` limits how long ranks wait for each other. Only
    /// rank 0 prints errors. `check` is called with the number of ranks before anything else.
    pub fn run(
        &self,
        timeout: Option<Duration>,
        is_quiet: bool,
        check: impl Fn(u32) -> Result<(), Failure>,
        body: impl FnOnce(&Arc<Ranks>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let patience = Patience::of(timeout);
        let role = match role(self.ranks, self.no_shared_memory, patience) {
            // The launcher reports which rank was lost.
            Err(misfit @ RanksError::Lost(_)) if std::env::var_os("PIPESIM_RANK").is_some() => {
                return Err(Failure::Reported(Failure::from(misfit).code()));
            }
            role => role?,
        };
        match role {
            Role::Launch(size) => {
                check(size)?;
                launch_ranks(size, patience, is_quiet)
            }
            Role::Rank(ranks) => {
                let decides = if ranks.size() == 1 { Decides::Itself } else { Decides::Others };
                install_signal_handler(ranks.stop(), decides, is_quiet);
                let result = check(ranks.size()).and_then(|()| body(&ranks));
                if ranks.size() == 1 { result } else { leave(&ranks, result) }
            }
        }
    }
}

/// Starts ranks and waits for their end.
fn launch_ranks(size: u32, patience: Patience, is_quiet: bool) -> Result<(), Failure> {
    let stop = Arc::default();
    install_signal_handler(&stop, Decides::Launcher, is_quiet);
    let Ended { code, problem } = launch(size, patience, &stop)
        .map_err(|error| Failure::Environment(format!("starting {size} ranks: {error}")))?;
    if let (Some(problem), true) = (&problem, code > 128) {
        return Err(Failure::Stopped(problem.clone(), code));
    }
    problem.iter().for_each(|problem| eprint(&as_flags(format!("error: {problem}"))));
    if code == 0 { Ok(()) } else { Err(Failure::Reported(code)) }
}

/// Takes leave of the other ranks; rank 0 says why.
fn leave(ranks: &Ranks, result: Result<(), Failure>) -> Result<(), Failure> {
    let Err(failure) = result else {
        ranks.leave(None, 0);
        return Ok(());
    };
    if let Failure::Stopped(text, code) = failure {
        if ranks.rank() == 0 {
            eprint(&text);
        }
        ranks.leave(None, code);
        return Err(Failure::Reported(code));
    }
    if ranks.rank() == 0 {
        eprint(&format!("error: {failure}"));
    }
    ranks.leave(Some(&failure.to_string()), failure.code());
    Err(Failure::Reported(failure.code()))
}

/// Checks that each rank has a device.
pub fn check_ranks(ranks: u32, mesh: Mesh, stages: u32) -> Result<(), Failure> {
    if ranks <= mesh.world(stages) {
        return Ok(());
    }
    let most = if mesh.is_single() {
        format!("devices, --stages {stages}")
    } else {
        format!("workers, {}", mesh.in_words(stages))
    };
    Err(Failure::Usage(format!(
        "expected at most as many ranks as {most}, found {ranks}; start fewer ranks or ask for more --stages"
    )))
}
