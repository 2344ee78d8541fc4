//! Ranks as threads of one process: on one machine they share an arena; apart, packets and the results of collective calls reach each
//! of them in order, on a thread of its own.

use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::sync::thread::{JoinHandle, spawn};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub struct Packet {
    pub heap: u64,
    pub offset: u64,
    pub signal: u64,
    pub value: u64,
    pub data: Vec<u8>,
}

/// A rank that is gone; here none is.
#[derive(Debug)]
pub struct Lost;

/// As the program's.
pub(crate) struct AllGather {
    pub communicator: usize,
    pub length: usize,
    pub fill: Box<dyn FnOnce(&mut [f32]) + Send>,
    pub take: Take,
}

type Take = Box<dyn FnOnce(&[f32]) + Send>;

/// What arrives at a rank.
enum Arrival {
    Packet(Packet),
    Gathered(Vec<f32>, Take),
}

/// A call that not all ranks have begun: by rank, its numbers, and who takes the result.
type Begun = BTreeMap<u32, (Vec<f32>, Take)>;

/// The calls of all ranks.
#[derive(Default)]
struct Calls {
    /// By communicator: its number of ranks.
    sizes: Vec<usize>,
    /// By communicator and rank: number of calls so far.
    counts: BTreeMap<(usize, u32), u64>,
    /// By communicator and number of the call.
    begun: BTreeMap<(usize, u64), Begun>,
}

impl Calls {
    /// Begins a call of `rank`. Returns what all ranks have begun if it is the last.
    fn begin(&mut self, rank: u32, communicator: usize, numbers: Vec<f32>, take: Take) -> Begun {
        let count = self.counts.entry((communicator, rank)).or_default();
        *count += 1;
        let call = self.begun.entry((communicator, *count)).or_default();
        call.insert(rank, (numbers, take));
        let is_last = call.len() == self.sizes[communicator];
        let whole = is_last.then(|| self.begun.remove(&(communicator, *count)));
        whole.flatten().unwrap_or_default()
    }
}

type Deliver = Box<dyn Fn(&Packet) + Send>;

/// One rank's end.
pub struct Ranks {
    rank: u32,
    apart: bool,
    senders: Vec<Mutex<Sender<Option<Arrival>>>>,
    inbox: Mutex<Option<Receiver<Option<Arrival>>>>,
    delivery: Mutex<Option<JoinHandle<()>>>,
    calls: Arc<Mutex<Calls>>,
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}", self.rank)
    }
}

impl Ranks {
    /// Returns `size` ranks with a worker each, `apart` from each other or sharing memory.
    pub fn all(size: u32, apart: bool) -> Vec<Arc<Ranks>> {
        let (senders, inboxes): (Vec<Sender<_>>, Vec<_>) = (0..size).map(|_| channel()).unzip();
        let calls = Arc::new(Mutex::new(Calls::default()));
        let rank = |(rank, inbox): (usize, _)| {
            let senders = senders.iter().cloned().map(Mutex::new).collect();
            let (inbox, delivery) = (Mutex::new(Some(inbox)), Mutex::new(None));
            let calls = calls.clone();
            Arc::new(Ranks { rank: rank as u32, apart, senders, inbox, delivery, calls })
        };
        inboxes.into_iter().enumerate().map(rank).collect()
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn rank_of(&self, worker: u32, _workers: u32) -> u32 {
        if self.apart { worker } else { self.rank }
    }

    pub fn shares_memory_with(&self, rank: u32) -> bool {
        rank == self.rank || !self.apart
    }

    pub(crate) fn deliver(&self, _heap: u64, receiver: impl Fn(&Packet) + Send + Sync + 'static) {
        if !self.apart {
            return;
        }
        let Some(inbox) = self.inbox.lock().unwrap().take() else { return };
        let receiver: Deliver = Box::new(receiver);
        let body = move || {
            while let Ok(Some(arrival)) = inbox.recv() {
                match arrival {
                    Arrival::Packet(packet) => receiver(&packet),
                    Arrival::Gathered(numbers, take) => take(&numbers),
                }
            }
        };
        // Not while a lock is held: another thread may run.
        let thread = spawn(body);
        *self.delivery.lock().unwrap() = Some(thread);
    }

    pub(crate) fn forget(&self, _heap: u64) {}

    pub(crate) fn send(&self, rank: u32, packet: Packet) {
        self.post(rank, Some(Arrival::Packet(packet)));
    }

    /// Every rank asks for the same groups, once.
    pub(crate) fn communicators(&self, groups: &[Vec<u32>]) -> Result<Vec<usize>, Lost> {
        self.calls.lock().unwrap().sizes = groups.iter().map(Vec::len).collect();
        Ok((0..groups.len()).collect())
    }

    pub(crate) fn all_gather(&self, call: AllGather) {
        let mut numbers = vec![0.0; call.length];
        (call.fill)(&mut numbers);
        let whole = self.calls.lock().unwrap().begin(self.rank, call.communicator, numbers, call.take);
        let all: Vec<f32> = whole.values().flat_map(|(numbers, _)| numbers).copied().collect();
        whole.into_iter().for_each(|(rank, (_, take))| self.post(rank, Some(Arrival::Gathered(all.clone(), take))));
    }

    fn post(&self, rank: u32, arrival: Option<Arrival>) {
        let sender = self.senders[rank as usize].lock().unwrap().clone();
        let _ = sender.send(arrival);
    }

    /// Ends the delivery, after all packets of all ranks were sent.
    pub fn end(&self) {
        self.post(self.rank, None);
        let delivery = self.delivery.lock().unwrap().take();
        delivery.into_iter().for_each(|thread| drop(thread.join()));
    }
}
