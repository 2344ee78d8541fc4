//! The launcher's side of the sockets: gathers the parts of each exchange, and tells all ranks when one died.

use super::socket::Frame;
use super::{Lost, Patience};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Member {
    /// Frames for the rank. A thread per rank writes them, so that a stopped rank does not block the others.
    outbox: Option<Sender<Arc<Vec<u8>>>>,
    part: Option<Vec<u8>>,
    /// Whether only rank 0 receives the parts of the exchange.
    is_for_first: bool,
    left: Option<(Option<String>, u8)>,
    gone: bool,
    /// For how long it has not answered although others wait for it.
    silent: Duration,
}

/// The launcher's connections to all ranks.
pub struct Hub {
    members: Vec<Member>,
    events: Receiver<HubEvent>,
    patience: Patience,
    since_ping: Duration,
    measured: bool,
    lost: Option<Lost>,
    refused: bool,
}

/// Messages of the reading threads to the hub.
enum HubEvent {
    Joined(u32, Sender<Arc<Vec<u8>>>),
    Frame(u32, io::Result<Frame>),
    /// The system has no more threads or sockets.
    Refused(io::Error),
}

impl Hub {
    /// Returns a hub for `size` ranks that connect to `listener`.
    pub fn new(size: u32, listener: UnixListener, patience: Patience) -> io::Result<Hub> {
        let (sender, events) = channel();
        std::thread::Builder::new().name("hub".to_string()).spawn(move || accept(size, &listener, &sender))?;
        let members = (0..size).map(|_| Member::default()).collect();
        Ok(Hub { members, events, patience, since_ping: Duration::ZERO, measured: false, lost: None, refused: false })
    }

    /// Waits at most `wait` for an event and handles it, and all others that have arrived.
    pub fn turn(&mut self, wait: Duration) {
        let mut next = self.events.recv_timeout(wait).ok();
        while let Some(event) = next {
            self.take(event);
            next = self.events.try_recv().ok();
        }
    }

    fn take(&mut self, event: HubEvent) {
        let (rank, frame) = match event {
            HubEvent::Joined(rank, outbox) => {
                if let Some(member) = self.members.get_mut(rank as usize) {
                    (member.outbox, member.silent) = (Some(outbox), Duration::ZERO);
                }
                return;
            }
            HubEvent::Refused(error) => {
                self.refused = true;
                return self.lose(Lost::new(format!("expected a thread for each rank, the system gave none: {error}")));
            }
            HubEvent::Frame(rank, frame) => (rank, frame),
        };
        let Some(member) = self.members.get_mut(rank as usize) else { return };
        member.silent = Duration::ZERO;
        match frame {
            Ok(Frame::Part(part)) => (member.part, member.is_for_first) = (Some(part), false),
            Ok(Frame::PartForFirst(part)) => (member.part, member.is_for_first) = (Some(part), true),
            Ok(Frame::Measured) => self.measured = true,
            Ok(Frame::Leave(text, code)) => {
                let why = text.as_ref().map(|text| Lost::new(format!("rank {rank} ended: {text}")));
                member.left = Some((text, code));
                // Others may wait for its devices inside a step.
                why.into_iter().for_each(|why| self.lose(why));
            }
            Ok(_) => return,
            Err(_) => member.gone = true,
        }
        self.share();
    }

    /// Completes an exchange that has the parts of all ranks; cancels one that a rank has left without its part.
    fn share(&mut self) {
        if self.members.iter().all(|member| member.part.is_some()) {
            let parts: Vec<Vec<u8>> = self.members.iter_mut().filter_map(|member| member.part.take()).collect();
            if self.members.iter().all(|member| member.is_for_first) {
                let empty = vec![Vec::new(); parts.len()];
                post(&self.members[..1], &Frame::All(parts));
                post(&self.members[1..], &Frame::All(empty));
            } else {
                self.tell(&Frame::All(parts));
            }
        }
        let waits = self.is_awaited();
        if let Some(rank) = self.members.iter().position(|member| member.left.is_some()).filter(|_| waits) {
            self.lose(Lost::new(format!("rank {rank} ended early")));
        }
    }

    /// Whether a rank waits for others in an exchange.
    fn is_awaited(&self) -> bool {
        self.members.iter().any(|member| member.part.is_some())
    }

    /// Advances the clocks by `passed` and pings the ranks that others wait for. Returns the first that has not answered for too long.
    pub fn pass(&mut self, passed: Duration) -> Option<usize> {
        let awaited = self.is_awaited();
        let (silence, joining) = (self.patience.silence, self.patience.joining);
        self.since_ping += passed;
        if awaited && self.since_ping >= self.patience.between_pings() {
            self.since_ping = Duration::ZERO;
            self.tell(&Frame::Ping);
        }
        let late = |member: &mut Member| {
            let (owes, limit) = match &member.outbox {
                None => (true, joining),
                Some(_) => (awaited && member.part.is_none(), silence),
            };
            let is_here = member.left.is_none() && !member.gone;
            member.silent = if owes && is_here { member.silent + passed } else { Duration::ZERO };
            member.silent > limit
        };
        self.members.iter_mut().map(late).collect::<Vec<_>>().into_iter().position(|late| late)
    }

    /// Tells all ranks, once, that a rank died or hangs.
    pub fn lose(&mut self, lost: Lost) {
        if self.lost.is_none() {
            self.tell(&Frame::Lost(lost.clone()));
            self.lost = Some(lost);
        }
    }

    /// Sends a frame to every rank.
    pub fn tell(&self, frame: &Frame) {
        post(&self.members, frame);
    }

    /// Reads the last frames of ranks that have all ended; they may arrive after the processes have ended. Waits at most `joined`, or
    /// `unjoined` if a rank never joined.
    pub fn drain(&mut self, joined: Duration, unjoined: Duration) {
        let begun = Instant::now();
        while self.members.iter().any(|member| !member.gone) {
            let limit = if self.members.iter().all(|member| member.outbox.is_some()) { joined } else { unjoined };
            let Some(left) = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else { return };
            self.turn(left);
        }
    }

    pub fn has_joined(&self, rank: usize) -> bool {
        self.members[rank].outbox.is_some()
    }

    /// Ranks whose socket closed without a farewell.
    pub fn vanished(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(|(_, m)| m.gone && m.left.is_none()).map(|(rank, _)| rank)
    }

    /// Returns the error and exit code with which a rank left.
    pub fn farewell(&self, rank: usize) -> Option<&(Option<String>, u8)> {
        self.members[rank].left.as_ref()
    }

    /// Returns why the run was cancelled, if it was.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_ref().map(|lost| lost.text.as_str())
    }

    /// Whether the system had no thread or socket for a rank.
    pub fn was_refused(&self) -> bool {
        self.refused
    }

    pub fn has_measured(&self) -> bool {
        self.measured
    }
}

/// Sends a frame to these ranks.
fn post(members: &[Member], frame: &Frame) {
    let mut bytes = Vec::new();
    let _ = frame.write(&mut bytes); // writing to memory cannot fail
    let bytes = Arc::new(bytes);
    for outbox in members.iter().filter_map(|member| member.outbox.as_ref()) {
        // A rank that cannot be reached has died, which the end of its stream reports, too.
        let _ = outbox.send(bytes.clone());
    }
}

/// Accepts ranks; each has a thread that reads from it and one that writes to it.
fn accept(size: u32, listener: &UnixListener, events: &Sender<HubEvent>) {
    // Other processes may connect, too; their number is limited.
    let claimed: Arc<Mutex<BTreeSet<u32>>> = Arc::default();
    for stream in listener.incoming().take(2 * size as usize + 16) {
        let (sender, claimed) = (events.clone(), claimed.clone());
        let threads = stream.and_then(|stream| {
            let writer = stream.try_clone()?;
            let (outbox, frames) = channel::<Arc<Vec<u8>>>();
            let write = move || write(writer, &frames);
            std::thread::Builder::new().name("to a rank".to_string()).spawn(write)?;
            let is_free =
                move |rank| rank < size && claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
            let read = move || read(stream, is_free, outbox, &sender);
            std::thread::Builder::new().name("from a rank".to_string()).spawn(read)
        });
        if let Err(error) = threads {
            let _ = events.send(HubEvent::Refused(error));
            return;
        }
    }
}

fn write(mut stream: UnixStream, frames: &Receiver<Arc<Vec<u8>>>) {
    use io::Write;
    while let Ok(bytes) = frames.recv() {
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn read(
    mut stream: UnixStream,
    is_free: impl Fn(u32) -> bool,
    outbox: Sender<Arc<Vec<u8>>>,
    events: &Sender<HubEvent>,
) {
    let Ok(Frame::Hello(rank)) = Frame::read(&mut stream) else { return };
    if !is_free(rank) || events.send(HubEvent::Joined(rank, outbox)).is_err() {
        return;
    }
    loop {
        let frame = Frame::read(&mut stream);
        let end = frame.is_err();
        if events.send(HubEvent::Frame(rank, frame)).is_err() || end {
            return;
        }
    }
}
