//! Launchers that start several processes, recognised by the variables that they set.

use super::RanksError;

/// A launcher, by the variables that number its processes and count them.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
}

/// MPI's launchers, whose processes can join: mpirun of Open MPI, MPICH and Intel MPI.
const MPI: [Launcher; 2] = [
    Launcher { name: "mpirun", rank: "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE" },
    Launcher { name: "mpirun", rank: "PMI_RANK", size: "PMI_SIZE" },
];
/// A step of Slurm, whose processes can join if it sets up PMIx.
const SLURM: Launcher = Launcher { name: "srun", rank: "SLURM_PROCID", size: "SLURM_STEP_NUM_TASKS" };
const PMIX_RANK: &str = "PMIX_RANK";
/// torchrun, and scripts for PyTorch that set its variables. Without MPI, their processes cannot join.
const TORCH: Launcher = Launcher { name: "torchrun", rank: "RANK", size: "WORLD_SIZE" };
/// Set by torchrun itself, not by scripts that set its other variables.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// One of several processes, as a launcher describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Number of processes, at least 2.
    pub size: u32,
    /// The variable with this number.
    pub variable: &'static str,
}

/// Name and value of a variable.
type Found = (&'static str, u32);

/// Returns what a launcher says about this process; `None` without a launcher. `variable` looks up an environment variable.
///
/// # Errors
/// Variables contradict each other, or the processes cannot join.
pub fn started(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Started>, RanksError> {
    let look = |launcher: &Launcher| found(launcher, &variable);
    let mut known: Vec<(Option<Found>, Found)> = Vec::new();
    for launcher in &MPI {
        known.extend(look(launcher)?);
    }
    let is_mpi = !known.is_empty();
    let slurm = look(&SLURM)?;
    let pmix = number(PMIX_RANK, &variable)?.map(|rank| (PMIX_RANK, rank));
    if let (false, Some((rank, size))) = (is_mpi, slurm) {
        // Under mpirun, Slurm's numbers describe mpirun's daemons.
        agree(rank, pmix)?;
        known.extend(pmix.map(|_| (rank, size)));
    }
    let torch = if variable(TORCH.rank).is_some() { look(&TORCH)? } else { None };
    for (rank, size) in known.iter().skip(1).copied().chain(torch.filter(|_| !known.is_empty())) {
        agree(Some(known[0].1), Some(size))?;
        agree(known[0].0, rank)?;
    }
    if let Some(&(_, (variable, size))) = known.first() {
        return Ok((size > 1).then_some(Started { size, variable }));
    }
    if let Some((_, (_, tasks))) = torch.is_none().then_some(slurm).flatten().filter(|(_, (_, tasks))| *tasks > 1) {
        return Err(RanksError::Contradiction(format!(
            "srun started {tasks} tasks that are not connected; use srun --mpi=pmix, or mpirun"
        )));
    }
    match torch {
        Some((_, (_, size))) if size > 1 => Err(unconnected(size, &variable)),
        _ => Ok(None),
    }
}

/// Rejects processes of torchrun, and of scripts that set its variables.
fn unconnected(size: u32, variable: &impl Fn(&str) -> Option<String>) -> RanksError {
    let at = variable("MASTER_ADDR").map_or(String::new(), |address| format!(", MASTER_ADDR={address}"));
    let rank = variable(TORCH.rank).unwrap_or_default();
    let says = format!("{}={rank}, {}={size}{at}", TORCH.rank, TORCH.size);
    let instead = format!("start pipesim by itself with -n {size}, or by mpirun");
    RanksError::Contradiction(if variable(TORCHRUN).is_some() {
        format!("{} started {size} processes ({says}) that are not connected; {instead}", TORCH.name)
    } else {
        format!(
            "{says} describe one of {size} processes of PyTorch, which pipesim cannot join; unset them, and {instead}"
        )
    })
}

/// Reads a launcher's variables: the rank, if set, and the number of processes.
fn found(
    launcher: &Launcher,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Option<(Option<Found>, Found)>, RanksError> {
    let Some(size) = number(launcher.size, variable)? else { return Ok(None) };
    let rank = number(launcher.rank, variable)?;
    if let Some(rank) = rank.filter(|&rank| rank >= size) {
        return Err(RanksError::Contradiction(format!(
            "expected a rank below the number of processes, found {}={rank} and {}={size}; start pipesim with {}, or unset both",
            launcher.rank, launcher.size, launcher.name
        )));
    }
    Ok(Some((rank.map(|rank| (launcher.rank, rank)), (launcher.size, size))))
}

fn number(name: &'static str, variable: &impl Fn(&str) -> Option<String>) -> Result<Option<u32>, RanksError> {
    let Some(text) = variable(name).filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| {
        RanksError::Contradiction(format!(
            "expected a number in the variable {name}, which launchers set, found '{}'; unset it",
            pipesim_schedule::sanitize::visible(&text, 40)
        ))
    })
}

/// Checks that two variables have the same number.
fn agree(one: Option<Found>, other: Option<Found>) -> Result<(), RanksError> {
    match (one, other) {
        (Some((one, a)), Some((other, b))) if a != b => Err(RanksError::Contradiction(format!(
            "expected launchers that agree, found {one}={a} and {other}={b}; start pipesim by one launcher only, or unset one of them"
        ))),
        _ => Ok(()),
    }
}
