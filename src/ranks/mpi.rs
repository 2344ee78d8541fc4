//! Ranks under `mpirun`. One thread owns MPI and does everything: exchanges, sending and receiving packets.

use super::{Audience, Inbox, Lost, Packet, Patience, RanksError, Wire, lock, take_in};
use mpi::Threading;
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use signal_hook::consts::SIGTERM;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tag of the parts of an exchange.
const PART: i32 = 1;
const PACKET: i32 = 2;
/// Tags of the question whether a rank is alive, and of the answer.
const PING: i32 = 3;
const PONG: i32 = 4;

/// How long the thread sleeps if messages are expected, and if not.
const SOON: Duration = Duration::from_micros(20);
const IDLE: Duration = Duration::from_millis(1);

/// How long a rank that ends with an error waits for rank 0 to do so first.
const LEAVE: Duration = Duration::from_secs(1);

enum Order {
    Exchange(Vec<u8>, Audience, Patience, Reply),
    Send(u32, Packet),
    Leave(bool, u8, Sender<()>),
}

type Reply = Sender<Result<Vec<Vec<u8>>, Lost>>;

struct Exchange {
    reply: Reply,
    patience: Patience,
    begin: Instant,
    /// When the others were last pinged.
    asked: Instant,
}

/// The handle of the thread that owns MPI.
pub struct Mpi {
    orders: Mutex<Sender<Order>>,
    /// Set by SIGTERM, which `mpirun` sends to the others when a rank dies.
    stopped: Arc<AtomicBool>,
    rank: u32,
    patience: Patience,
}

impl Mpi {
    /// Initialises MPI. Returns the connection, this process's rank, and the number of ranks.
    pub fn join(inbox: Arc<Mutex<Inbox>>, patience: Patience) -> Result<(Mpi, u32, u32), RanksError> {
        let stopped = Arc::new(AtomicBool::new(false));
        let unable = |error: std::io::Error| RanksError::Unable(error.to_string());
        signal_hook::flag::register(SIGTERM, stopped.clone()).map_err(unable)?;
        let (orders, inbox_of_orders) = channel();
        let (ready, started) = channel();
        let body = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
                let _ = ready.send(Err("expected to initialise MPI, found it initialised already".to_string()));
                return;
            };
            let world = universe.world();
            let _ = ready.send(Ok((world.rank() as u32, world.size() as u32)));
            let heard = vec![Instant::now(); world.size() as usize];
            let (sends, parts) = (Vec::new(), Vec::new());
            let thread = Thread { world, orders: inbox_of_orders, inbox, sends, parts, heard, exchange: None };
            let done = thread.serve();
            drop(universe); // ends MPI, together with the other ranks
            let _ = done.map(|done| done.send(()));
        };
        std::thread::Builder::new().name("mpi".to_string()).spawn(body).map_err(unable)?;
        let (rank, size) = match started.recv_timeout(patience.joining) {
            Ok(started) => started.map_err(RanksError::Unable)?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Lost::silent("a rank that is to join", patience.joining).into());
            }
            Err(RecvTimeoutError::Disconnected) => return Err(RanksError::Unable("MPI did not start".to_string())),
        };
        Ok((Mpi { orders: Mutex::new(orders), stopped, rank, patience }, rank, size))
    }

    fn order(&self, order: Order) -> bool {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order).is_ok()
    }

    fn why(&self) -> Lost {
        self.lost().unwrap_or_else(|| Lost("MPI is gone".to_string()))
    }
}

impl Wire for Mpi {
    fn exchange(&self, bytes: Vec<u8>, audience: Audience, patience: Patience) -> Result<Vec<Vec<u8>>, Lost> {
        let (reply, answer) = channel();
        if !self.order(Order::Exchange(bytes, audience, patience, reply)) {
            return Err(self.why());
        }
        loop {
            match answer.recv_timeout(Duration::from_millis(50)) {
                Ok(parts) => return parts,
                Err(RecvTimeoutError::Timeout) if self.lost().is_none() => {}
                Err(_) => return Err(self.why()),
            }
        }
    }

    fn send(&self, rank: u32, packet: Packet) {
        self.order(Order::Send(rank, packet));
    }

    fn lost(&self) -> Option<Lost> {
        let text = "this rank was told to stop (SIGTERM): another rank is gone, as the launcher's own message says, or the launcher was interrupted";
        self.stopped.load(Ordering::SeqCst).then(|| Lost(text.to_string()))
    }

    fn is_mpi(&self) -> bool {
        true
    }

    fn leave(&self, error: Option<&str>, code: u8) {
        if let Some(error) = error.filter(|_| self.rank > 0) {
            // What all ranks find wrong rank 0 tells, and ends the others: this one speaks only where nobody ends it. Either way
            // rank 0 is given time to write what was measured.
            let stopped = self.lost().is_some();
            let patience = Instant::now() + if stopped { 2 * LEAVE } else { LEAVE };
            while (stopped || self.lost().is_none()) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(10));
            }
            if self.lost().is_none() {
                eprintln!("error: rank {}: {error}", self.rank);
            }
        }
        let (done, gone) = channel();
        if self.order(Order::Leave(error.is_none(), code, done)) {
            // MPI ends with all ranks together, and one may be stopped.
            let _ = gone.recv_timeout(self.patience.joining);
        }
    }
}

/// A pending send and its bytes.
type Send = (Request<'static, [u8], StaticScope>, *mut [u8]);

struct Thread {
    world: SimpleCommunicator,
    orders: Receiver<Order>,
    inbox: Arc<Mutex<Inbox>>,
    sends: Vec<Send>,
    /// Received parts of exchanges, by rank; a rank can be one exchange ahead.
    parts: Vec<VecDeque<Vec<u8>>>,
    /// When the last message of each rank arrived.
    heard: Vec<Instant>,
    exchange: Option<Exchange>,
}

impl Thread {
    /// Serves until this rank leaves. Returns the channel to notify once MPI has ended.
    fn serve(mut self) -> Option<Sender<()>> {
        self.parts = (0..self.world.size()).map(|_| VecDeque::new()).collect();
        loop {
            let busy = self.exchange.is_some() || !self.sends.is_empty() || !lock(&self.inbox).receivers.is_empty();
            match self.orders.recv_timeout(if busy { SOON } else { IDLE }) {
                Ok(Order::Exchange(bytes, audience, patience, reply)) => self.begin(bytes, audience, patience, reply),
                Ok(Order::Send(rank, packet)) => self.post(rank as i32, PACKET, packet.to_bytes()),
                Ok(Order::Leave(well, code, done)) => {
                    self.end(well, code);
                    return Some(done);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.end(true, 0);
                    return None;
                }
            }
            self.progress();
        }
    }

    fn begin(&mut self, bytes: Vec<u8>, audience: Audience, patience: Patience, reply: Reply) {
        let own = self.world.rank();
        let part = |rank: i32| if audience == Audience::All || rank == 0 { bytes.clone() } else { Vec::new() };
        for rank in (0..self.world.size()).filter(|&rank| rank != own) {
            self.post(rank, PART, part(rank));
        }
        self.parts[own as usize].push_back(part(own));
        let now = Instant::now();
        self.exchange = Some(Exchange { reply, patience, begin: now, asked: now });
    }

    /// Pings the ranks that the exchange waits for; cancels the exchange if one does not answer.
    fn look(&mut self) {
        let Some(exchange) = &mut self.exchange else { return };
        let (now, begin, patience) = (Instant::now(), exchange.begin, exchange.patience);
        let late: Vec<usize> = (0..self.parts.len()).filter(|&rank| self.parts[rank].is_empty()).collect();
        let silent = |&&rank: &&usize| now - self.heard[rank].max(begin) > patience.silence;
        let gone = late.iter().find(silent).map(|rank| (*rank, patience.silence));
        let gone =
            gone.or_else(|| late.first().filter(|_| now - begin > patience.most).map(|rank| (*rank, patience.most)));
        if let Some((rank, limit)) = gone {
            let _ = exchange.reply.send(Err(Lost::silent(&format!("rank {rank}"), limit)));
            self.exchange = None;
        } else if now - exchange.asked > patience.between_pings() {
            exchange.asked = now;
            late.into_iter().for_each(|rank| self.post(rank as i32, PING, Vec::new()));
        }
    }

    fn post(&mut self, rank: i32, tag: i32, bytes: Vec<u8>) {
        let memory = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: just made from a box; it is freed in `progress`, once MPI is done with it, and only there.
        let bytes: &'static [u8] = unsafe { &*memory };
        let request = self.world.process_at_rank(rank).immediate_send_with_tag(StaticScope, bytes, tag);
        self.sends.push((request, memory));
    }

    /// Receives what has arrived, and frees what was sent.
    fn progress(&mut self) {
        while let Some(arrival) = self.world.any_process().immediate_matched_probe() {
            let (bytes, status) = arrival.matched_receive_vec::<u8>();
            self.heard[status.source_rank() as usize] = Instant::now();
            match status.tag() {
                PING => self.post(status.source_rank(), PONG, Vec::new()),
                PONG => {}
                PART => self.parts[status.source_rank() as usize].push_back(bytes),
                _ => {
                    if let Some(packet) = Packet::from_bytes(&bytes) {
                        take_in(&self.inbox, packet);
                    }
                }
            }
        }
        for (request, memory) in std::mem::take(&mut self.sends) {
            match request.test() {
                // SAFETY: from `Box::into_raw` in `post`; the request, and with it the only reference, is gone.
                Ok(_) => drop(unsafe { Box::from_raw(memory) }),
                Err(request) => self.sends.push((request, memory)),
            }
        }
        if self.exchange.is_some() && self.parts.iter().all(|parts| !parts.is_empty()) {
            let all = self.parts.iter_mut().filter_map(VecDeque::pop_front).collect();
            let _ = self.exchange.take().map(|exchange| exchange.reply.send(Ok(all)));
        }
        self.look();
    }

    /// Ends MPI; after an error, for all ranks.
    fn end(mut self, well: bool, code: u8) {
        if !well {
            self.world.abort(i32::from(code));
        }
        while !self.sends.is_empty() {
            self.progress();
        }
    }
}
