//! The launcher's side of the sockets: gathers the parts of each exchange, and tells everybody when somebody is gone.

use super::socket::Frame;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// What the hub knows of a rank.
#[derive(Default)]
struct Member {
    stream: Option<UnixStream>,
    part: Option<Vec<u8>>,
    left: Option<(Option<String>, u8)>,
    gone: bool,
}

/// The hub.
pub struct Hub {
    members: Vec<Member>,
    frames: Receiver<(u32, io::Result<Frame>, Option<UnixStream>)>,
    lost: Option<String>,
}

impl Hub {
    /// A hub for `size` ranks that connect to `listener`.
    pub fn new(size: u32, listener: UnixListener) -> io::Result<Hub> {
        let (sender, frames) = channel();
        std::thread::Builder::new().name("hub".to_string()).spawn(move || accept(size, &listener, &sender))?;
        Ok(Hub { members: (0..size).map(|_| Member::default()).collect(), frames, lost: None })
    }

    /// Waits at most `wait` for something to happen and deals with it.
    pub fn turn(&mut self, wait: Duration) {
        let Ok((rank, frame, stream)) = self.frames.recv_timeout(wait) else { return };
        let Some(member) = self.members.get_mut(rank as usize) else { return };
        match frame {
            Ok(Frame::Hello(_)) => member.stream = stream,
            Ok(Frame::Part(part)) => member.part = Some(part),
            Ok(Frame::Leave(text, code)) => {
                let why = text.as_ref().map(|text| format!("rank {rank} ended: {text}"));
                member.left = Some((text, code));
                // Others may be waiting for its devices inside a step.
                why.into_iter().for_each(|why| self.lose(why));
            }
            Ok(_) => {}
            Err(_) => member.gone = true,
        }
        self.share();
    }

    /// Ends an exchange to which every rank has contributed; calls off one to which a rank that has left never will.
    fn share(&mut self) {
        if self.members.iter().all(|member| member.part.is_some()) {
            let parts = self.members.iter_mut().filter_map(|member| member.part.take()).collect();
            self.tell(&Frame::All(parts));
        }
        let waits = self.members.iter().any(|member| member.part.is_some());
        if let Some(rank) = self.members.iter().position(|member| member.left.is_some()).filter(|_| waits) {
            self.lose(format!("rank {rank} ended early"));
        }
    }

    /// Tells all others, once, that somebody is gone.
    pub fn lose(&mut self, text: String) {
        if self.lost.is_none() {
            self.tell(&Frame::Lost(text.clone()));
            self.lost = Some(text);
        }
    }

    fn tell(&mut self, frame: &Frame) {
        for member in &mut self.members {
            // A rank that cannot be reached is gone, which its end of the socket says too.
            let _ = member.stream.as_mut().map(|stream| frame.write(stream));
        }
    }

    /// Ranks whose socket closed although they had not said that they leave.
    pub fn vanished(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(|(_, m)| m.gone && m.left.is_none()).map(|(rank, _)| rank)
    }

    /// What a rank said when it left.
    pub fn farewell(&self, rank: usize) -> Option<&(Option<String>, u8)> {
        self.members[rank].left.as_ref()
    }

    /// Whether, and why, the run was called off.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }
}

type Events = Sender<(u32, io::Result<Frame>, Option<UnixStream>)>;

/// Takes in `size` ranks, each with a thread that reads what it says.
fn accept(size: u32, listener: &UnixListener, events: &Events) {
    let mut readers = BTreeMap::new();
    while readers.len() < size as usize {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let Ok(Frame::Hello(rank)) = Frame::read(&mut stream) else { continue };
        if rank >= size || readers.contains_key(&rank) {
            continue;
        }
        let hello = events.send((rank, Ok(Frame::Hello(rank)), stream.try_clone().ok()));
        let events = events.clone();
        let read = move || {
            loop {
                let frame = Frame::read(&mut stream);
                let end = frame.is_err();
                if events.send((rank, frame, None)).is_err() || end {
                    return;
                }
            }
        };
        let Ok(reader) = std::thread::Builder::new().name(format!("rank {rank}")).spawn(read) else { return };
        if hello.is_err() {
            return;
        }
        readers.insert(rank, reader);
    }
}
