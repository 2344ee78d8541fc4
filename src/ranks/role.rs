//! The role of this process, from its environment: alone, launcher, or one of several ranks.

use super::launch::{RANK, RANKS, SOCKET};
use super::socket::Socket;
use super::stop::Stop;
use super::{Patience, Ranks, RanksError};
use std::env::var;
use std::sync::Arc;

pub enum Role {
    /// Runs everything itself, or is one of several ranks.
    Rank(Arc<Ranks>),
    /// Starts this many ranks and supervises them.
    Launch(u32),
}

/// Number of ranks that an MPI launcher started, if it started several.
fn started() -> Result<Option<u32>, RanksError> {
    let mut found: Option<(&str, u32)> = None;
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"] {
        let Some(size) = var(name).ok().and_then(|text| text.trim().parse().ok()) else { continue };
        match found {
            Some((other, known)) if known != size && name != "MPI_LOCALNRANKS" => {
                return Err(RanksError::Contradiction(format!(
                    "expected one number of ranks, found {other}={known} and {name}={size}; \
                     start pipesim by one launcher only"
                )));
            }
            Some(_) => {}
            None => found = Some((name, size)),
        }
    }
    let step: Option<u32> = var("SLURM_STEP_NUM_TASKS").ok().and_then(|text| text.parse().ok());
    if let (None, Some(tasks)) = (found, step.filter(|&tasks| tasks > 1)) {
        if var("PMIX_RANK").is_ok() {
            return Ok(Some(tasks));
        }
        return Err(RanksError::Contradiction(format!(
            "srun started {tasks} tasks that are not connected; use srun --mpi=pmix, or mpirun"
        )));
    }
    if let (None, Some(processes)) = (found, torchrun()) {
        return Err(RanksError::Contradiction(format!(
            "torchrun started {processes} processes that are not connected; start pipesim by itself with -n {processes}, or by mpirun"
        )));
    }
    Ok(found.map(|(_, size)| size).filter(|&size| size > 1))
}

/// Number of processes that torchrun started, if it started several. They cannot join: torchrun brings no MPI.
fn torchrun() -> Option<u32> {
    var("TORCHELASTIC_RUN_ID").ok()?;
    var("WORLD_SIZE").ok()?.trim().parse().ok().filter(|&size| size > 1)
}

/// Returns the role of this process; the user asked for `asked` ranks. With `apart`, ranks share no memory even on one machine.
/// `patience` limits how long they wait for each other.
pub fn role(asked: Option<u32>, apart: bool, patience: Patience) -> Result<Role, RanksError> {
    if let Ok(rank) = var(RANK) {
        return Ok(Role::Rank(Arc::new(member(&rank, asked, patience)?)));
    }
    match (started()?, asked) {
        (Some(size), Some(asked)) if asked != size => Err(RanksError::Contradiction(format!(
            "a launcher has started {size} ranks, and -n asks for {asked}; leave -n out"
        ))),
        (Some(size), _) => Ok(Role::Rank(Arc::new(under_mpi(size, apart, patience)?))),
        (None, Some(asked)) if asked > 1 => Ok(Role::Launch(asked)),
        (None, _) => Ok(Role::Rank(Ranks::alone())),
    }
}

/// Checks that no launcher started several processes, for commands that run in one.
pub fn refuse_ranks(command: &str) -> Result<(), RanksError> {
    match started()? {
        Some(size) => Err(RanksError::Contradiction(format!(
            "{command} is for one process, and a launcher has started {size}; start it without mpirun"
        ))),
        None => Ok(()),
    }
}

/// Joins as a rank that [`super::launch`] started.
fn member(rank: &str, asked: Option<u32>, patience: Patience) -> Result<Ranks, RanksError> {
    let bad = |what: &str| {
        RanksError::Contradiction(format!(
            "expected {RANK}, {RANKS} and {SOCKET} as pipesim run -n sets them, found {what}; unset them"
        ))
    };
    let rank: u32 = rank.parse().map_err(|_| bad("no number of a rank"))?;
    let size: u32 = var(RANKS).ok().and_then(|text| text.parse().ok()).ok_or_else(|| bad("no number of ranks"))?;
    if rank >= size || asked.is_some_and(|asked| asked != size) {
        return Err(bad(&format!("rank {rank} of {size}")));
    }
    let name = var(SOCKET).map_err(|_| bad("no socket"))?;
    let stop: Arc<Stop> = Arc::default();
    let socket = Socket::join(&name, rank, patience, stop.clone());
    let socket = socket.map_err(|error| bad(&format!("no launcher at {name} ({error})")))?;
    Ok(Ranks::new((rank, size), Box::new(socket), Arc::default(), false, patience, stop)?)
}

#[cfg(feature = "mpi")]
fn under_mpi(size: u32, apart: bool, patience: Patience) -> Result<Ranks, RanksError> {
    let inbox: Arc<std::sync::Mutex<super::Inbox>> = Arc::default();
    let (wire, rank, found) = super::mpi::Mpi::join(inbox.clone(), patience)?;
    if found != size {
        return Err(RanksError::Unable(format!(
            "expected {size} MPI ranks as the launcher says, found {found}; \
             start with the mpirun of the MPI library that pipesim was built with"
        )));
    }
    Ok(Ranks::new((rank, size), Box::new(wire), inbox, apart, patience, Arc::default())?)
}

#[cfg(not(feature = "mpi"))]
fn under_mpi(size: u32, _apart: bool, _patience: Patience) -> Result<Ranks, RanksError> {
    Err(RanksError::Unable(format!(
        "a launcher has started {size} ranks, but this build has no MPI; \
         build with cargo build --release --features mpi, or use pipesim run -n {size} on one machine"
    )))
}
