//! Ranks under `mpirun`. One thread owns MPI and does everything: exchanges, sending and receiving packets, and collective calls.

use super::gathers::Gathers;
use super::{AllGather, Audience, Inbox, Lost, Packet, Patience, RanksError, Wire, lock, take_in};
use mpi::Threading;
use mpi::point_to_point::{Message, Status};
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use signal_hook::consts::SIGTERM;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Tag of the parts of an exchange.
const PART: i32 = 1;
const PACKET: i32 = 2;
/// Tags of the question whether a rank is alive, and of the answer.
const PING: i32 = 3;
const PONG: i32 = 4;
/// Tag of rank 0's message to rank 1 that it is alive, sent when ranks have to end because one of them died.
const ALIVE: i32 = 5;

/// How long the thread sleeps if messages are expected, and if not.
const SOON: Duration = Duration::from_micros(20);
const IDLE: Duration = Duration::from_millis(1);

/// How long a rank that ends with an error waits for rank 0 to do so first.
const LEAVE: Duration = Duration::from_secs(3);
/// How long rank 1 waits for the message that rank 0 is alive; `mpirun` kills both a second after it has told them to end.
const WORD: Duration = Duration::from_millis(300);

enum MpiOrder {
    Exchange(Vec<u8>, Audience, Patience, Reply),
    Send(u32, Packet),
    Connect(Vec<Vec<u32>>),
    Gather(AllGather),
    Leave(bool, u8, Sender<()>),
}

type Reply = Sender<Result<Vec<Vec<u8>>, Lost>>;

struct PendingExchange {
    reply: Reply,
    /// Maximum duration.
    most: Duration,
    begin: Instant,
}

/// State that the thread that owns MPI shares.
#[derive(Default)]
struct News {
    /// Set by SIGTERM, which `mpirun` sends to the others when a rank dies.
    stopped: Arc<AtomicBool>,
    /// A rank that does not answer.
    lost: Mutex<Option<Lost>>,
    /// When this was noticed.
    told: OnceLock<Instant>,
    /// Whether rank 0 has said after SIGTERM that it is alive.
    first_lives: AtomicBool,
    /// Whether this process itself was stopped shortly before.
    stood: AtomicBool,
    /// When the thread last ran; MPI may block it while it connects to a rank that is gone.
    ran: Mutex<Option<Instant>>,
    /// The others of the communicator that MPI is creating; empty if there is none.
    created: Mutex<Vec<i32>>,
}

impl News {
    fn is_stopped(&self) -> bool {
        let is_stopped = self.stopped.load(Ordering::SeqCst);
        if is_stopped {
            self.told.get_or_init(Instant::now);
        }
        is_stopped
    }

    /// Names whom MPI waits for.
    fn blocked_for(&self, limit: Duration) -> Lost {
        let created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        let who = match &created[..] {
            [] => "MPI, which connects to another rank,".to_string(),
            [rank] => format!("rank {rank}"),
            ranks => format!("one of the ranks {ranks:?}"),
        };
        Lost {
            dead: created.first().filter(|_| created.len() == 1).map(|&rank| rank as u32),
            ..Lost::silent(&who, limit)
        }
    }
}

/// The handle of the thread that owns MPI.
pub struct Mpi {
    orders: Mutex<Sender<MpiOrder>>,
    news: Arc<News>,
    rank: u32,
    patience: Patience,
}

impl Mpi {
    /// Initialises MPI. Returns the connection, this process's rank, and the number of ranks.
    pub fn join(inbox: Arc<Mutex<Inbox>>, patience: Patience) -> Result<(Mpi, u32, u32), RanksError> {
        let news = Arc::new(News::default());
        let unable = |error: std::io::Error| RanksError::Unable(error.to_string());
        signal_hook::flag::register(SIGTERM, news.stopped.clone()).map_err(unable)?;
        let (orders, inbox_of_orders) = channel();
        let (ready, started) = channel();
        let thread_news = news.clone();
        let body = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
                let _ = ready.send(Err("expected to initialise MPI, found it initialised already".to_string()));
                return;
            };
            let world = universe.world();
            let gathers = Gathers::new(&world);
            let _ = ready.send(Ok((world.rank() as u32, world.size() as u32)));
            let thread = Thread::new(world, gathers, inbox_of_orders, inbox, patience, thread_news);
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
        Ok((Mpi { orders: Mutex::new(orders), news, rank, patience }, rank, size))
    }

    fn order(&self, order: MpiOrder) -> bool {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order).is_ok()
    }

    fn why(&self) -> Lost {
        self.lost().unwrap_or_else(|| Lost::new("MPI is gone"))
    }

    /// Returns the limit if MPI has blocked its thread for longer than ranks may be silent.
    fn blocked(&self) -> Option<Duration> {
        let ran = *self.news.ran.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = self.patience.silence;
        // A process that was itself stopped for a while runs at once when it is continued.
        let is_late = || ran.is_some_and(|ran| ran.elapsed() > limit);
        let is_blocked = is_late() && {
            std::thread::sleep(2 * IDLE);
            is_late()
        };
        is_blocked.then_some(limit)
    }

    /// Whether the launcher has told this rank to end.
    fn is_stopped(&self) -> bool {
        self.news.is_stopped()
    }
}

impl Wire for Mpi {
    fn exchange(&self, bytes: Vec<u8>, audience: Audience, patience: Patience) -> Result<Vec<Vec<u8>>, Lost> {
        let (reply, answer) = channel();
        if !self.order(MpiOrder::Exchange(bytes, audience, patience, reply)) {
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
        self.order(MpiOrder::Send(rank, packet));
    }

    fn connect(&self, groups: Vec<Vec<u32>>) {
        self.order(MpiOrder::Connect(groups));
    }

    fn all_gather(&self, call: AllGather) {
        self.order(MpiOrder::Gather(call));
    }

    fn lost(&self) -> Option<Lost> {
        let text = "this rank was told to stop (SIGTERM): another rank is gone, as the launcher's own message says, or the launcher was interrupted";
        let silent = || {
            let lost = self.news.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
            lost.or_else(|| self.blocked().map(|limit| self.news.blocked_for(limit)))
        };
        match (self.is_stopped(), self.news.stood.load(Ordering::SeqCst)) {
            (true, true) => Some(Lost {
                text: format!("rank {} was stopped, and the others ended without it", self.rank),
                dead: Some(self.rank),
            }),
            (true, false) => Some(Lost::new(text)),
            (false, _) => silent(),
        }
    }

    fn first_lives(&self) -> bool {
        let lives = || self.news.first_lives.load(Ordering::SeqCst);
        while !lives() && self.news.told.get().is_some_and(|told| told.elapsed() < WORD) {
            std::thread::sleep(Duration::from_millis(10));
        }
        lives()
    }

    fn is_mpi(&self) -> bool {
        true
    }

    fn leave(&self, error: Option<&str>, code: u8) {
        if let Some(error) = error.filter(|_| self.rank > 0) {
            // What all ranks find wrong rank 0 tells, and ends the others: this one speaks only where nobody ends it. Either way
            // rank 0 is given time to write what was measured, or rank 1 if rank 0 hangs.
            let is_first = self.rank == 1 && self.lost().is_some_and(|lost| lost.dead == Some(0));
            let (stopped, begin) = (self.is_stopped(), Instant::now());
            while !is_first && (stopped || !self.is_stopped()) && begin.elapsed() < LEAVE {
                std::thread::sleep(Duration::from_millis(10));
            }
            if !self.is_stopped() {
                eprintln!("error: rank {}: {error}", self.rank);
            }
        }
        let (done, gone) = channel();
        if self.order(MpiOrder::Leave(error.is_none(), code, done)) {
            // MPI ends with all ranks together, and one may be stopped; after an error it may be blocked itself.
            let _ = gone.recv_timeout(if error.is_some() { LEAVE } else { self.patience.joining });
        }
    }
}

/// A pending send and its bytes.
type Send = (Request<'static, [u8], StaticScope>, *mut [u8]);

/// A pending receive, its bytes, and its tag.
type Receive = (Request<'static, [u8], StaticScope>, *mut [u8], i32);

struct Thread {
    world: SimpleCommunicator,
    orders: Receiver<MpiOrder>,
    inbox: Arc<Mutex<Inbox>>,
    sends: Vec<Send>,
    /// Messages that have begun to arrive, by rank, in order.
    receives: Vec<VecDeque<Receive>>,
    /// Received parts of exchanges, by rank; a rank can be one exchange ahead.
    parts: Vec<VecDeque<Vec<u8>>>,
    /// When the last message of each rank arrived.
    heard: Vec<Instant>,
    exchange: Option<PendingExchange>,
    gathers: Gathers,
    patience: Patience,
    news: Arc<News>,
    /// Since when this thread has listened without a pause.
    listens: Instant,
    /// When it last ran.
    ran: Instant,
    /// When all others were last pinged.
    asked: Instant,
}

impl Thread {
    fn new(
        world: SimpleCommunicator,
        gathers: Gathers,
        orders: Receiver<MpiOrder>,
        inbox: Arc<Mutex<Inbox>>,
        patience: Patience,
        news: Arc<News>,
    ) -> Thread {
        let (now, size) = (Instant::now(), world.size() as usize);
        let (sends, parts, heard) = (Vec::new(), vec![VecDeque::new(); size], vec![now; size]);
        let receives = (0..size).map(|_| VecDeque::new()).collect();
        Thread {
            world,
            orders,
            inbox,
            sends,
            receives,
            parts,
            heard,
            exchange: None,
            gathers,
            patience,
            news,
            listens: now,
            ran: now,
            asked: now,
        }
    }

    /// Serves until this rank leaves. Returns the channel to notify once MPI has ended.
    fn serve(mut self) -> Option<Sender<()>> {
        let mut told = false;
        loop {
            let runs = !lock(&self.inbox).receivers.is_empty();
            let busy = self.exchange.is_some() || !self.sends.is_empty() || runs;
            self.watch(runs || self.exchange.is_some());
            *self.news.ran.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            if self.news.is_stopped() && !std::mem::replace(&mut told, true) && self.world.rank() == 0 {
                self.post(1, ALIVE, Vec::new());
            }
            match self.orders.recv_timeout(if busy { SOON } else { IDLE }) {
                Ok(MpiOrder::Exchange(bytes, audience, patience, reply)) => {
                    self.begin(bytes, audience, patience, reply)
                }
                Ok(MpiOrder::Send(rank, packet)) => self.post(rank as i32, PACKET, packet.to_bytes()),
                Ok(MpiOrder::Connect(groups)) => {
                    let note = |others| *self.news.created.lock().unwrap_or_else(PoisonError::into_inner) = others;
                    self.gathers.connect(groups, note);
                }
                Ok(MpiOrder::Gather(call)) => self.gathers.add(call),
                Ok(MpiOrder::Leave(well, code, done)) => {
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
        self.exchange = Some(PendingExchange { reply, most: patience.most, begin: Instant::now() });
    }

    /// Pings all others while this rank may wait for them, inside a step or in an exchange, and notes one that does not answer.
    fn watch(&mut self, is_needed: bool) {
        let now = Instant::now();
        // The time for which this process itself was stopped, or did not listen, does not count as silence.
        let stood = now - std::mem::replace(&mut self.ran, now) > self.patience.silence / 2;
        if !is_needed || stood {
            self.listens = now;
        }
        let is_recent = self.news.stood.load(Ordering::SeqCst) && now - self.listens < self.patience.silence;
        self.news.stood.store(stood || is_recent, Ordering::SeqCst);
        if !is_needed {
            return;
        }
        let own = self.world.rank();
        let silent = |&(rank, &heard): &(usize, &Instant)| {
            rank != own as usize && now - heard.max(self.listens) > self.patience.silence
        };
        if let Some((rank, _)) = self.heard.iter().enumerate().find(silent) {
            let lost = Lost::silent(&format!("rank {rank}"), self.patience.silence);
            let lost = Lost { dead: Some(rank as u32), ..lost };
            self.news.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(lost);
        }
        if now - self.asked >= self.patience.between_pings() {
            self.asked = now;
            (0..self.world.size()).filter(|&rank| rank != own).for_each(|rank| self.post(rank, PING, Vec::new()));
        }
    }

    /// Cancels an exchange that takes too long.
    fn look(&mut self) {
        let is_late = |exchange: &mut PendingExchange| exchange.begin.elapsed() > exchange.most;
        let Some(exchange) = self.exchange.take_if(is_late) else { return };
        let rank = self.parts.iter().position(VecDeque::is_empty).unwrap_or(0);
        let _ = exchange.reply.send(Err(Lost::silent(&format!("rank {rank}"), exchange.most)));
    }

    fn post(&mut self, rank: i32, tag: i32, bytes: Vec<u8>) {
        let memory = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: just made from a box; it is freed in `progress`, once MPI is done with it, and only there.
        let bytes: &'static [u8] = unsafe { &*memory };
        let request = self.world.process_at_rank(rank).immediate_send_with_tag(StaticScope, bytes, tag);
        self.sends.push((request, memory));
    }

    /// Begins to receive a message. It may have arrived only in part, since a rank may be stopped while it sends.
    fn begin_receive(&mut self, rank: usize, tag: i32, message: Message, status: Status) {
        let length = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0);
        let memory = Box::into_raw(vec![0_u8; length].into_boxed_slice());
        // SAFETY: just made from a box; it is used again in `receive`, once MPI is done with it, and only there.
        let bytes: &'static mut [u8] = unsafe { &mut *memory };
        let request = message.immediate_matched_receive_into(StaticScope, bytes);
        self.receives[rank].push_back((request, memory, tag));
    }

    /// Takes the messages of `rank` that have arrived completely, in order.
    fn receive(&mut self, rank: usize) {
        while let Some((request, memory, tag)) = self.receives[rank].pop_front() {
            if let Err(request) = request.test() {
                return self.receives[rank].push_front((request, memory, tag));
            }
            // SAFETY: from `Box::into_raw` in `begin_receive`; the request, and with it the only reference, is gone.
            let bytes = unsafe { Box::from_raw(memory) }.into_vec();
            self.heard[rank] = Instant::now();
            if tag == PART {
                self.parts[rank].push_back(bytes);
            } else if let Some(packet) = Packet::from_bytes(&bytes) {
                take_in(&self.inbox, packet);
            }
        }
    }

    /// Notes a message without data.
    fn note(&mut self, rank: i32, tag: i32) {
        self.heard[rank as usize] = Instant::now();
        match tag {
            PING => self.post(rank, PONG, Vec::new()),
            ALIVE => self.news.first_lives.store(true, Ordering::SeqCst),
            _ => {}
        }
    }

    /// Receives what has arrived, and frees what was sent.
    fn progress(&mut self) {
        while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
            let (rank, tag) = (status.source_rank(), status.tag());
            match tag {
                PART | PACKET => self.begin_receive(rank as usize, tag, message, status),
                _ => {
                    // Empty, so it has arrived completely.
                    let _ = (message, status).matched_receive_vec::<u8>();
                    self.note(rank, tag);
                }
            }
        }
        (0..self.receives.len()).for_each(|rank| self.receive(rank));
        self.gathers.progress();
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
        while !self.sends.is_empty() || self.gathers.is_busy() {
            self.progress();
        }
        // Requests must not be dropped before they are done; the process ends.
        std::mem::forget(std::mem::take(&mut self.receives));
    }
}
