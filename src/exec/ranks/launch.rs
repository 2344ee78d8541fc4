//! Starts ranks on this machine: the same program once per rank, joined through a socket.

use super::hub::Hub;
use super::socket::Frame;
use super::stop::{Stop, signal_name};
use super::{Lost, Patience};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Environment variable with the number of a rank.
pub const RANK: &str = "PIPESIM_RANK";
/// Environment variable with the number of ranks.
pub const RANKS: &str = "PIPESIM_RANKS";
/// Environment variable with the name of the launcher's socket.
pub const SOCKET: &str = "PIPESIM_RANK_SOCKET";

/// Default variables for NVSHMEM: a heap with room for the messages and gradients of several schedules at once, and no multicast,
/// which only its collectives use and which fails if ranks share a GPU.
const DEFAULTS: [(&str, &str); 2] = [("NVSHMEM_SYMMETRIC_SIZE", "4G"), ("NVSHMEM_DISABLE_NVLS", "1")];

/// Time between looks at the ranks.
const LOOK: Duration = Duration::from_millis(50);
/// Exit code of a rank that was killed, or that lost another.
const LOST: u8 = 6;
/// Exit code of a system without threads or sockets for the ranks.
const REFUSED: u8 = 5;
/// How long ranks have to end by themselves after one has died.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the launcher waits for the frames of a rank that has ended: they may arrive after the process has ended.
const JOINING: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code of the first rank that failed for a reason of its own; 6 if a rank was killed or hangs.
    pub code: u8,
    /// An error that rank 0 has not printed itself.
    pub problem: Option<String>,
}

/// Starts `size` ranks with this process's arguments and waits for them. Rank 0 inherits the standard streams. A rank that hangs for
/// longer than `patience` allows ends the others; so does `stop`: after the current step if one was measured, otherwise at once.
pub fn launch(size: u32, patience: Patience, stop: &Stop) -> io::Result<Ended> {
    // An abstract name leaves no file behind, however this process ends.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let socket = format!("pipesim-{}-{since}", std::process::id());
    let mut hub = Hub::new(size, UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?, patience)?;
    let mut children = Children::start(size, &socket)?;
    let (mut last, mut end, mut told) = (Instant::now(), None, false);
    loop {
        hub.turn(LOOK);
        // Time during which this process itself was stopped, as by Ctrl-Z, does not count.
        let passed = last.elapsed().min(4 * LOOK);
        last = Instant::now();
        children.look(passed)?;
        let silent = hub.pass(passed);
        let trouble = children.death(&hub, JOINING).or_else(|| children.stopped(patience.silence));
        if let Some(lost) = trouble.or_else(|| silent.map(|rank| children.silent(rank, patience))) {
            hub.lose(lost);
        }
        if children.0.iter().all(|child| child.status.is_some()) {
            hub.drain(FAREWELL, JOINING);
            children.death(&hub, Duration::ZERO).into_iter().for_each(|lost| hub.lose(lost));
            return Ok(judge(&hub, &children));
        }
        if hub.lost().is_some() {
            children.resume();
            if *end.get_or_insert_with(|| Instant::now() + FAREWELL) < Instant::now() {
                children.kill();
            }
        }
        if let Some(signal) = stop.asked() {
            if stop.is_urgent() || !hub.has_measured() {
                let what = if hub.has_measured() { "at once" } else { "before a step was measured" };
                let name = signal_name(i32::from(signal));
                let problem = format!("stopped {what} by {name}; nothing is written");
                return Ok(Ended { code: 128 + signal, problem: Some(problem) });
            }
            if !std::mem::replace(&mut told, true) {
                hub.tell(&Frame::Stop(signal));
            }
        }
    }
}

/// Combines the ends of all ranks.
fn judge(hub: &Hub, children: &Children) -> Ended {
    let code = |status: &Option<ExitStatus>| status.and_then(|s| s.code()).map_or(LOST, |code| code as u8);
    let codes: Vec<u8> = children.0.iter().map(|child| code(&child.status)).collect();
    let first = hub.farewell(0).map(|(text, _)| text.clone());
    let told = first.clone().flatten();
    let alone = (1..codes.len()).find_map(|rank| {
        let text = hub.farewell(rank)?.0.as_ref()?;
        let known = told.as_ref().is_some_and(|told| told.contains(text.as_str()) || text.contains(told.as_str()));
        (!known && hub.lost().is_none_or(|lost| lost.contains(text.as_str()))).then(|| format!("rank {rank}: {text}"))
    });
    // A rank that waited for a stopped one may have reported it first, without knowing why.
    let stood = children.0.iter().find_map(|child| child.stood.clone());
    let said = told.as_deref().or(hub.lost()).unwrap_or_default();
    let stood = stood.filter(|text| !said.contains(text.as_str()));
    let problem = match (first, hub.lost()) {
        _ if stood.is_some() => stood,
        (None, lost) => Some(lost.unwrap_or("rank 0 is gone").to_string()),
        (Some(None), Some(lost)) => Some(lost.to_string()),
        _ => alone,
    };
    // Ranks that lost another end with 6; the one that ended for a reason of its own, such as missing memory, is the cause.
    let code = codes.iter().find(|&&code| code != 0 && code != LOST).or(codes.iter().find(|&&code| code != 0));
    let code = if hub.was_refused() { REFUSED } else { code.copied().unwrap_or(0) };
    Ended { code, problem }
}

struct StartedRank {
    process: Child,
    /// Its exit status, once it has ended.
    status: Option<ExitStatus>,
    /// Time since it has ended.
    ended: Duration,
    /// Time since it was stopped.
    stopped: Duration,
    /// The message that it was stopped, if it was when the run was cancelled.
    stood: Option<String>,
}

/// The processes by rank. Dropping kills those that still run.
struct Children(Vec<StartedRank>);

impl Children {
    fn start(size: u32, socket: &str) -> io::Result<Children> {
        let mut children = Children(Vec::new());
        for rank in 0..size {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1));
            command.env(RANK, rank.to_string()).env(RANKS, size.to_string()).env(SOCKET, socket);
            for (variable, value) in DEFAULTS.iter().filter(|(variable, _)| std::env::var_os(variable).is_none()) {
                command.env(variable, value);
            }
            if rank > 0 {
                command.stdin(Stdio::null()).stdout(Stdio::null());
            }
            let process = command.spawn().map_err(|error| {
                let text = format!(
                    "expected {size} processes, the system gave {rank}: {error}; start fewer ranks, or raise ulimit -u"
                );
                io::Error::new(error.kind(), text)
            })?;
            children.0.push(StartedRank {
                process,
                status: None,
                ended: Duration::ZERO,
                stopped: Duration::ZERO,
                stood: None,
            });
        }
        Ok(children)
    }

    /// Updates the state of all processes, `passed` after the last look.
    fn look(&mut self, passed: Duration) -> io::Result<()> {
        for child in &mut self.0 {
            if child.status.is_some() {
                child.ended += passed;
                continue;
            }
            child.status = child.process.try_wait()?;
            child.stopped = if child.is_stopped() { child.stopped + passed } else { Duration::ZERO };
        }
        Ok(())
    }

    /// Returns the message about a rank that has been stopped for longer than `limit`.
    fn stopped(&self, limit: Duration) -> Option<Lost> {
        let (rank, child) = self.0.iter().enumerate().find(|(_, child)| child.stopped > limit)?;
        let (stands, seconds) = (child.stands(rank), limit.as_secs());
        Some(Lost::new(format!(
            "{stands} for more than {seconds} s; all others were ended: start again, and continue it in time (kill -CONT {}) or give \
             a longer `timeout`",
            child.process.id()
        )))
    }

    /// Returns the message that `rank` does not answer.
    fn silent(&self, rank: usize, patience: Patience) -> Lost {
        let who = format!("rank {rank} (process {})", self.0[rank].process.id());
        Lost::silent(&who, patience.silence)
    }

    /// Continues stopped ranks, so that they learn that the run is over and write what was measured.
    fn resume(&mut self) {
        for (rank, child) in self.0.iter_mut().enumerate().filter(|(_, child)| child.is_stopped()) {
            child.stood = Some(child.stands(rank));
            // `kill` is built into the shell. Without a shell the rank is killed later.
            let go_on = format!("kill -CONT {}", child.process.id());
            let _ = Command::new("sh").args(["-c", &go_on]).stdin(Stdio::null()).status();
        }
    }

    /// Returns the message about a rank that died without a farewell; one that never joined counts once it has ended for `unjoined`.
    fn death(&self, hub: &Hub, unjoined: Duration) -> Option<Lost> {
        let ended = self.0.iter().enumerate().find_map(|(rank, child)| {
            child.status?;
            // Its last frames may still be on the way: its socket closes after them.
            hub.vanished().any(|vanished| vanished == rank).then_some(rank)
        });
        let never = || {
            let silent = |(rank, child): (usize, &StartedRank)| {
                let status = child.status?;
                (!hub.has_joined(rank) && child.ended >= unjoined && !status.success()).then_some(rank)
            };
            self.0.iter().enumerate().find_map(silent)
        };
        let rank = ended.or_else(never)?;
        let status = self.0[rank].status?;
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal} ({})", signal_name(signal)),
            (None, code) => format!("ended with exit code {} and without a word", code.unwrap_or(-1)),
        };
        Some(Lost::dead(rank as u32, &how))
    }

    fn kill(&mut self) {
        for child in self.0.iter_mut().filter(|child| child.status.is_none()) {
            let _ = child.process.kill();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
        for child in self.0.iter_mut().filter(|child| child.status.is_none()) {
            let _ = child.process.wait();
        }
    }
}

impl StartedRank {
    /// Whether the process is stopped, by its state in `/proc`.
    fn is_stopped(&self) -> bool {
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        self.status.is_none() && stat().rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
    }

    fn stands(&self, rank: usize) -> String {
        format!("rank {rank} (process {}) was stopped (SIGSTOP)", self.process.id())
    }
}
