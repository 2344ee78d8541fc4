//! The role of this process, from its environment: alone, launcher, or one of several ranks.

use super::launch::{RANK, RANKS, SOCKET};
use super::socket::Socket;
use super::started::{Started, started};
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

fn launched() -> Result<Option<Started>, RanksError> {
    started(|name| var(name).ok())
}

/// Returns the role of this process; the user asked for `asked` ranks. With `apart`, ranks share no memory even on one machine.
/// `patience` limits how long they wait for each other.
pub fn role(asked: Option<u32>, apart: bool, patience: Patience) -> Result<Role, RanksError> {
    if let Ok(rank) = var(RANK) {
        return Ok(Role::Rank(Arc::new(member(&rank, asked, patience)?)));
    }
    match (launched()?, asked) {
        (Some(Started { size, variable }), Some(asked)) if asked != size => Err(RanksError::Contradiction(format!(
            "a launcher has started {size} ranks ({variable}={size}), and -n asks for {asked}; leave -n out"
        ))),
        (Some(Started { size, .. }), _) => Ok(Role::Rank(Arc::new(under_mpi(size, apart, patience)?))),
        (None, Some(asked)) if asked > 1 => Ok(Role::Launch(asked)),
        (None, _) => Ok(Role::Rank(Ranks::alone())),
    }
}

/// Checks that no launcher started several processes, for commands that run in one.
pub fn refuse_ranks(command: &str) -> Result<(), RanksError> {
    match launched()? {
        Some(Started { size, .. }) => Err(RanksError::Contradiction(format!(
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
    Ok(Ranks::new(rank, size, Box::new(socket), Arc::default(), false, patience, stop)?)
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
    Ok(Ranks::new(rank, size, Box::new(wire), inbox, apart, patience, Arc::default())?)
}

#[cfg(not(feature = "mpi"))]
fn under_mpi(size: u32, _apart: bool, _patience: Patience) -> Result<Ranks, RanksError> {
    Err(RanksError::Unable(format!(
        "a launcher has started {size} ranks, but this build has no MPI; \
         build with cargo build --release --features mpi, or use pipesim run -n {size} on one machine"
    )))
}
