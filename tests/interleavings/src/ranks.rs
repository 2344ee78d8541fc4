//! Ranks as threads of one process: on one machine they share an arena; apart, packets reach each of them in order, on a thread of
//! its own.

use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::sync::thread::{JoinHandle, spawn};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub struct Packet {
    pub heap: u64,
    pub offset: u64,
    pub signal: u64,
    pub value: u64,
    pub data: Vec<u8>,
}

type Deliver = Box<dyn Fn(&Packet) + Send>;

/// One rank's end.
pub struct Ranks {
    rank: u32,
    apart: bool,
    senders: Vec<Mutex<Sender<Option<Packet>>>>,
    inbox: Mutex<Option<Receiver<Option<Packet>>>>,
    delivery: Mutex<Option<JoinHandle<()>>>,
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
        let rank = |(rank, inbox): (usize, _)| {
            let senders = senders.iter().cloned().map(Mutex::new).collect();
            let (inbox, delivery) = (Mutex::new(Some(inbox)), Mutex::new(None));
            Arc::new(Ranks { rank: rank as u32, apart, senders, inbox, delivery })
        };
        inboxes.into_iter().enumerate().map(rank).collect()
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
            while let Ok(Some(packet)) = inbox.recv() {
                receiver(&packet);
            }
        };
        // Not while a lock is held: another thread may run.
        let thread = spawn(body);
        *self.delivery.lock().unwrap() = Some(thread);
    }

    pub(crate) fn forget(&self, _heap: u64) {}

    pub(crate) fn send(&self, rank: u32, packet: Packet) {
        self.post(rank, Some(packet));
    }

    fn post(&self, rank: u32, packet: Option<Packet>) {
        let sender = self.senders[rank as usize].lock().unwrap().clone();
        let _ = sender.send(packet);
    }

    /// Ends the delivery, after all packets of all ranks were sent.
    pub fn end(&self) {
        self.post(self.rank, None);
        let delivery = self.delivery.lock().unwrap().take();
        delivery.into_iter().for_each(|thread| drop(thread.join()));
    }
}
