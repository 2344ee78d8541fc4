//! A rank's socket to the launcher, and the protocol's frames.

use super::stop::Stop;
use super::{Audience, Lost, Patience, Wire};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest valid frame, in bytes.
const LONGEST: u64 = 1 << 34;

/// How often a waiting rank checks that the launcher is alive.
const LOOK: Duration = Duration::from_millis(50);

/// A message between a rank and the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a rank: its number.
    Hello(u32),
    /// A rank's part of an exchange.
    Part(Vec<u8>),
    /// A rank's part of an exchange whose parts only rank 0 receives.
    PartForFirst(Vec<u8>),
    /// All parts of an exchange, by rank.
    All(Vec<Vec<u8>>),
    /// A rank died or hangs.
    Lost(Lost),
    /// A rank ends, with the text of its error and its exit code.
    Leave(Option<String>, u8),
    /// The launcher asks whether the rank is alive.
    Ping,
    Pong,
    /// A rank has measured its first step.
    Measured,
    /// All ranks end after the current step because of the signal of this number.
    Stop(u8),
}

impl Frame {
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, body) = match self {
            Frame::Hello(rank) => (0, rank.to_le_bytes().to_vec()),
            Frame::Part(bytes) => (1, bytes.clone()),
            Frame::All(parts) => {
                let part = |part: &Vec<u8>| [&(part.len() as u64).to_le_bytes(), part.as_slice()].concat();
                (2, parts.iter().flat_map(part).collect())
            }
            Frame::Lost(Lost { text, dead: None }) => (3, text.clone().into_bytes()),
            Frame::Lost(Lost { text, dead: Some(rank) }) => (11, [&rank.to_le_bytes(), text.as_bytes()].concat()),
            Frame::Leave(None, code) => (4, vec![*code]),
            Frame::Leave(Some(text), code) => (5, [&[*code], text.as_bytes()].concat()),
            Frame::Ping => (6, Vec::new()),
            Frame::Pong => (7, Vec::new()),
            Frame::Measured => (8, Vec::new()),
            Frame::Stop(signal) => (9, vec![*signal]),
            Frame::PartForFirst(bytes) => (10, bytes.clone()),
        };
        to.write_all(&[kind])?;
        to.write_all(&(body.len() as u64).to_le_bytes())?;
        to.write_all(&body)?;
        to.flush()
    }

    /// Reads a frame.
    pub fn read(from: &mut impl Read) -> io::Result<Frame> {
        let bad = || io::Error::other("expected a frame of the launcher's protocol, found something else");
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let len = u64::from_le_bytes(head[1..].try_into().unwrap_or_default());
        if len > LONGEST {
            return Err(bad());
        }
        let mut body = vec![0; len as usize];
        from.read_exact(&mut body)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(match head[0] {
            0 => Frame::Hello(u32::from_le_bytes(body.as_slice().try_into().map_err(|_| bad())?)),
            1 => Frame::Part(body),
            2 => Frame::All(parts(&body).ok_or_else(bad)?),
            3 => Frame::Lost(Lost::new(text(&body))),
            4 => Frame::Leave(None, *body.first().ok_or_else(bad)?),
            5 => {
                let (code, said) = body.split_first().ok_or_else(bad)?;
                Frame::Leave(Some(text(said)), *code)
            }
            6 => Frame::Ping,
            7 => Frame::Pong,
            8 => Frame::Measured,
            9 => Frame::Stop(*body.first().ok_or_else(bad)?),
            10 => Frame::PartForFirst(body),
            11 => {
                let (rank, words) = body.split_first_chunk().ok_or_else(bad)?;
                Frame::Lost(Lost { text: text(words), dead: Some(u32::from_le_bytes(*rank)) })
            }
            _ => return Err(bad()),
        })
    }
}

fn parts(mut body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while !body.is_empty() {
        let (len, rest) = body.split_at_checked(8)?;
        let len = usize::try_from(u64::from_le_bytes(len.try_into().ok()?)).ok()?;
        let (part, rest) = rest.split_at_checked(len)?;
        parts.push(part.to_vec());
        body = rest;
    }
    Some(parts)
}

pub struct Socket {
    writer: Arc<Mutex<UnixStream>>,
    exchanged: Mutex<Receiver<Vec<Vec<u8>>>>,
    heard: Arc<Heard>,
}

/// What a rank has received from the launcher.
struct Heard {
    lost: Mutex<Option<Lost>>,
    last: Mutex<Instant>,
    stop: Arc<Stop>,
}

impl Socket {
    /// Joins the launcher that listens at `name` as rank `rank`. `patience` limits the wait for a stopped launcher; the launcher's
    /// request to end the run goes to `stop`.
    pub fn join(name: &str, rank: u32, patience: Patience, stop: Arc<Stop>) -> io::Result<Socket> {
        let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        stream.set_write_timeout(Some(patience.joining))?;
        Frame::Hello(rank).write(&mut stream)?;
        let reader = stream.try_clone()?;
        let (sender, exchanged) = channel();
        let heard = Arc::new(Heard { lost: Mutex::new(None), last: Mutex::new(Instant::now()), stop });
        let writer = Arc::new(Mutex::new(stream));
        let (noted, answers) = (heard.clone(), writer.clone());
        let listen = move || listen(reader, &sender, &noted, &answers);
        std::thread::Builder::new().name("launcher".to_string()).spawn(listen)?;
        Ok(Socket { writer, exchanged: Mutex::new(exchanged), heard })
    }

    fn write(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *lock(&self.writer))
    }

    fn why(&self) -> Lost {
        self.lost().unwrap_or_else(|| Lost::new("the launcher is gone"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives frames until the launcher ends.
fn listen(mut stream: UnixStream, exchanged: &Sender<Vec<Vec<u8>>>, heard: &Heard, answers: &Mutex<UnixStream>) {
    let lost = loop {
        let frame = Frame::read(&mut stream);
        *lock(&heard.last) = Instant::now();
        match frame {
            Ok(Frame::All(parts)) => {
                if exchanged.send(parts).is_err() {
                    return;
                }
            }
            Ok(Frame::Lost(lost)) => break lost,
            Ok(Frame::Stop(signal)) => _ = heard.stop.ask(signal),
            Ok(Frame::Ping) => _ = Frame::Pong.write(&mut *lock(answers)),
            Ok(_) => {}
            Err(_) => break Lost::new("the launcher is gone"),
        }
    };
    *lock(&heard.lost) = Some(lost);
}

impl Wire for Socket {
    // The launcher finds out which rank does not answer.
    fn exchange(&self, bytes: Vec<u8>, audience: Audience, patience: Patience) -> Result<Vec<Vec<u8>>, Lost> {
        let begin = Instant::now();
        let frame = match audience {
            Audience::All => Frame::Part(bytes),
            Audience::First => Frame::PartForFirst(bytes),
        };
        self.write(&frame).map_err(|_| self.why())?;
        let all = lock(&self.exchanged);
        loop {
            match all.recv_timeout(LOOK) {
                Ok(all) => return Ok(all),
                Err(RecvTimeoutError::Disconnected) => return Err(self.why()),
                Err(RecvTimeoutError::Timeout) if begin.elapsed() > patience.most => {
                    return Err(Lost::silent("a rank", patience.most));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let silent = begin.max(*lock(&self.heard.last)).elapsed();
                    if silent > patience.joining {
                        return Err(Lost::silent("the launcher", silent));
                    }
                }
            }
        }
    }

    fn lost(&self) -> Option<Lost> {
        lock(&self.heard.lost).clone()
    }

    fn measured(&self) {
        let _ = self.write(&Frame::Measured);
    }

    fn leave(&self, error: Option<&str>, code: u8) {
        let _ = self.write(&Frame::Leave(error.map(str::to_string), code));
    }
}
