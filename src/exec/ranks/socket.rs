//! A rank's socket to the launcher, and the protocol's frames.

use super::stop::Stop;
use super::{Audience, Lost, Patience, Wire};
use serde::{Deserialize, Serialize};
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        let body = postcard::to_stdvec(self).map_err(io::Error::other)?;
        to.write_all(&(body.len() as u64).to_le_bytes())?;
        to.write_all(&body)?;
        to.flush()
    }

    /// Reads a frame.
    pub fn read(from: &mut impl Read) -> io::Result<Frame> {
        let bad = || io::Error::other("expected a frame of the launcher's protocol, found something else");
        let mut length = [0; 8];
        from.read_exact(&mut length)?;
        let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= LONGEST).ok_or_else(bad)?;
        let mut body = vec![0; length as usize];
        from.read_exact(&mut body)?;
        match postcard::take_from_bytes(&body) {
            Ok((frame, [])) => Ok(frame),
            _ => Err(bad()),
        }
    }
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
