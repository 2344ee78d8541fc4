//! Starting ranks on this machine: the program again, once a rank, joined through a socket.

use super::hub::Hub;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Environment variables that tell a rank who it is.
pub const RANK: &str = "PIPESIM_RANK";
/// How many there are.
pub const RANKS: &str = "PIPESIM_RANKS";
/// Where the launcher listens.
pub const SOCKET: &str = "PIPESIM_RANK_SOCKET";

/// What ranks that use NVSHMEM are given, unless it is set: a heap with room for the messages and gradients of several schedules
/// at once, and no multicast, which only its collectives use and which cannot be set up where ranks share a GPU.
const DEFAULTS: [(&str, &str); 2] = [("NVSHMEM_SYMMETRIC_SIZE", "4G"), ("NVSHMEM_DISABLE_NVLS", "1")];

/// How often the launcher looks after its ranks.
const LOOK: Duration = Duration::from_millis(50);
/// How long ranks have to end by themselves once one is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a launched run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit code: rank 0's, or that of the rank that failed alone; 6 where one was killed.
    pub code: u8,
    /// What rank 0 could not say itself.
    pub problem: Option<String>,
}

/// Starts `size` ranks with this process's arguments and waits for them. Rank 0 has its standard streams.
pub fn launch(size: u32) -> io::Result<Ended> {
    // An abstract name: nothing is left in any folder, however this ends.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let socket = format!("pipesim-{}-{since}", std::process::id());
    let mut hub = Hub::new(size, UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?)?;
    let mut children = Children(Vec::new());
    for rank in 0..size {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        command.env(RANK, rank.to_string()).env(RANKS, size.to_string()).env(SOCKET, &socket);
        for (variable, value) in DEFAULTS.iter().filter(|(variable, _)| std::env::var_os(variable).is_none()) {
            command.env(variable, value);
        }
        if rank > 0 {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        children.0.push((command.spawn()?, None));
    }
    let mut end = None;
    loop {
        hub.turn(LOOK);
        children.look()?;
        if let Some(text) = children.death(&hub) {
            hub.lose(text);
        }
        if children.0.iter().all(|(_, status)| status.is_some()) {
            return Ok(judge(&hub, &children));
        }
        if hub.lost().is_some() && *end.get_or_insert_with(|| Instant::now() + PATIENCE) < Instant::now() {
            children.kill();
        }
    }
}

/// What the ranks' ends amount to.
fn judge(hub: &Hub, children: &Children) -> Ended {
    let code = |status: &Option<ExitStatus>| status.and_then(|s| s.code()).map_or(6, |code| code as u8);
    let codes: Vec<u8> = children.0.iter().map(|(_, status)| code(status)).collect();
    let first = hub.farewell(0).map(|(text, _)| text.clone());
    let told = first.clone().flatten();
    let alone = (1..codes.len()).find_map(|rank| {
        let text = hub.farewell(rank)?.0.as_ref()?;
        let known = told.as_ref().is_some_and(|told| told.contains(text.as_str()) || text.contains(told.as_str()));
        (!known && hub.lost().is_none_or(|lost| lost.contains(text.as_str()))).then(|| format!("rank {rank}: {text}"))
    });
    let problem = match (first, hub.lost()) {
        (None, lost) => Some(lost.unwrap_or("rank 0 is gone").to_string()),
        (Some(None), Some(lost)) => Some(lost.to_string()),
        _ => alone,
    };
    Ended { code: codes.iter().copied().find(|&code| code != 0).unwrap_or(0), problem }
}

/// The started processes with how they ended; what is left of them is killed in the end.
struct Children(Vec<(Child, Option<ExitStatus>)>);

impl Children {
    fn look(&mut self) -> io::Result<()> {
        for (child, status) in self.0.iter_mut().filter(|(_, status)| status.is_none()) {
            *status = child.try_wait()?;
        }
        Ok(())
    }

    /// A rank that is gone without a word.
    fn death(&self, hub: &Hub) -> Option<String> {
        let ended = self.0.iter().enumerate().find_map(|(rank, (_, status))| {
            (*status)?;
            // Its last words may still be under way: its socket closes after them.
            hub.vanished().any(|vanished| vanished == rank).then_some(rank)
        });
        let never = || {
            let silent = |(rank, (_, status)): (usize, &(Child, Option<ExitStatus>))| {
                let status = (*status)?;
                (hub.farewell(rank).is_none() && !status.success()).then_some(rank)
            };
            self.0.iter().enumerate().find_map(silent)
        };
        let rank = ended.or_else(never)?;
        let status = self.0[rank].1?;
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal}{}", signal_name(signal)),
            (None, code) => format!("ended with exit code {} and without a word", code.unwrap_or(-1)),
        };
        Some(format!("rank {rank} {how}; all others were ended"))
    }

    fn kill(&mut self) {
        for (child, _) in self.0.iter_mut().filter(|(_, status)| status.is_none()) {
            let _ = child.kill();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
        for (child, _) in self.0.iter_mut().filter(|(_, status)| status.is_none()) {
            let _ = child.wait();
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    let names = [(6, " (SIGABRT)"), (7, " (SIGBUS)"), (9, " (SIGKILL)"), (11, " (SIGSEGV)"), (15, " (SIGTERM)")];
    names.iter().find(|(number, _)| *number == signal).map_or("", |(_, name)| name)
}
