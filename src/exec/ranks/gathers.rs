//! Collective calls of MPI among some ranks, each on a communicator of its own.
//!
//! The calls are MPI's immediate ones: they only begin, and are tested until they are complete, so the thread that owns MPI goes on
//! serving everything else, and notices a rank that never takes part. MPI moves the data; the workers sum it, in their own order.

use super::collective::{AllGather, Take};
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of calls of a communicator under way: while one passes data, the next one is filled.
const UNDER_WAY: usize = 2;

/// A call under way, with this rank's numbers and the numbers of all ranks.
struct RunningGather {
    request: Request<'static, [f32], StaticScope>,
    own: *mut [f32],
    all: *mut [f32],
    take: Take,
}

/// A communicator, and its calls in order.
struct Channel {
    communicator: SimpleCommunicator,
    running: VecDeque<RunningGather>,
    waiting: VecDeque<AllGather>,
}

/// The communicators of this rank, by number.
pub struct Gathers {
    /// All ranks: the parent of the others. Open MPI creates a communicator with messages of tag 0 on its parent. A probe of the world
    /// for any message would take them.
    parent: SimpleCommunicator,
    channels: BTreeMap<usize, Channel>,
    /// Number of communicators of all ranks.
    count: usize,
}

impl Gathers {
    /// All ranks must call this together, before they do anything else.
    pub fn new(world: &SimpleCommunicator) -> Gathers {
        Gathers { parent: world.duplicate(), channels: BTreeMap::new(), count: 0 }
    }

    /// Creates communicators of these ranks. MPI blocks until all their ranks have called this; as all do so in the same order, no
    /// two wait for each other. `note` gets the others of each communicator before it is created, and nobody at the end.
    pub fn connect(&mut self, groups: Vec<Vec<u32>>, note: impl Fn(Vec<i32>)) {
        let (all, own) = (self.parent.group(), self.parent.rank());
        for ranks in groups {
            let ranks: Vec<i32> = ranks.into_iter().map(|rank| rank as i32).collect();
            if ranks.contains(&own) {
                note(ranks.iter().copied().filter(|&rank| rank != own).collect());
                let communicator = self.parent.split_by_subgroup(&all.include(&ranks));
                let channel =
                    |communicator| Channel { communicator, running: VecDeque::new(), waiting: VecDeque::new() };
                self.channels.extend(communicator.map(|communicator| (self.count, channel(communicator))));
            }
            self.count += 1;
        }
        note(Vec::new());
    }

    pub fn add(&mut self, call: AllGather) {
        if let Some(channel) = self.channels.get_mut(&call.communicator) {
            channel.waiting.push_back(call);
        }
    }

    /// Whether a call is not yet complete.
    pub fn is_busy(&self) -> bool {
        self.channels.values().any(|channel| !channel.running.is_empty() || !channel.waiting.is_empty())
    }

    /// Begins calls, and delivers those that are complete.
    pub fn progress(&mut self) {
        self.channels.values_mut().for_each(Channel::progress);
    }
}

impl Channel {
    fn progress(&mut self) {
        loop {
            while self.running.len() < UNDER_WAY
                && let Some(call) = self.waiting.pop_front()
            {
                self.begin(call);
            }
            let Some(mut first) = self.running.pop_front() else { return };
            match first.request.test() {
                Ok(_) => deliver(first.own, first.all, first.take),
                Err(request) => {
                    first.request = request;
                    return self.running.push_front(first);
                }
            }
        }
    }

    fn begin(&mut self, call: AllGather) {
        let AllGather { length, fill, take, .. } = call;
        // A rank that passes nothing would not wait for the others.
        let numbers = length.max(1);
        let mut own = vec![0.0; numbers].into_boxed_slice();
        fill(&mut own[..length]);
        let own = Box::into_raw(own);
        let all = Box::into_raw(vec![0.0; numbers * self.communicator.size() as usize].into_boxed_slice());
        // SAFETY: both just made from boxes; they are used again in `deliver`, once MPI is done with them, and only there.
        let (send, receive): (&'static [f32], &'static mut [f32]) = unsafe { (&*own, &mut *all) };
        let request = self.communicator.immediate_all_gather_into(StaticScope, send, receive);
        self.running.push_back(RunningGather { request, own, all, take });
    }
}

/// Delivers a complete call.
fn deliver(own: *mut [f32], all: *mut [f32], take: Take) {
    // SAFETY: from `Box::into_raw` in `begin`; the request, and with it the only references, is gone.
    let (own, all) = unsafe { (Box::from_raw(own), Box::from_raw(all)) };
    drop(own);
    take(&all);
}
