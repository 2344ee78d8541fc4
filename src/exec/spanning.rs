//! Groups of workers that make collective calls. Some span ranks that do not share memory.
//!
//! Members on one rank exchange data through its memory. Between ranks, a call is an MPI all-gather on the group's own communicator.
//! A rank begins it when all its members have put their parts. All members make the calls of their group in the same order, so ranks
//! begin the calls of a communicator in the same order. Calls of different groups never wait for each other.

use super::arena::Region;
use super::atomic::{AtomicU32, Ordering};
use crate::ranks::{Lost, Ranks};
use std::collections::BTreeMap;

/// What a member passes to the others in a call.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its data, of the same length for all members.
    pub data: Region,
    /// Signal: number of parts that it has passed.
    pub arrived: Region,
}

/// The members of all groups of a session, by group, with the same numbers in every process.
#[derive(Debug, Default)]
pub struct GroupList(Vec<Vec<u32>>);

impl GroupList {
    /// Adds a group of workers, and returns its number. A worker may be several members.
    pub fn add(&mut self, members: Vec<u32>) -> usize {
        self.0.push(members);
        self.0.len() - 1
    }

    /// Returns for each group how it spans ranks; `None` if its members share memory. All ranks must call this together.
    ///
    /// # Errors
    /// A rank is gone.
    pub fn connect(self, ranks: &Ranks, workers: u32) -> Result<Vec<Option<Spanning>>, Lost> {
        let mut spanning: Vec<Option<Spanning>> = Vec::with_capacity(self.0.len());
        let mut of_ranks = Vec::new();
        for members in self.0 {
            let mut by_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
            for (member, worker) in members.into_iter().enumerate() {
                by_rank.entry(ranks.rank_of(worker, workers)).or_default().push(member);
            }
            let spans = by_rank.len() > 1 && !by_rank.keys().all(|&rank| ranks.shares_memory_with(rank));
            spanning.push(spans.then(|| {
                let rank = by_rank.keys().position(|&rank| rank == ranks.rank());
                of_ranks.push(by_rank.keys().copied().collect());
                Spanning { communicator: 0, members: by_rank.into_values().collect(), rank, put: AtomicU32::default() }
            }));
        }
        for (group, number) in spanning.iter_mut().flatten().zip(ranks.communicators(&of_ranks)?) {
            group.communicator = number;
        }
        Ok(spanning)
    }
}

/// A group whose members run on ranks with memory of their own.
#[derive(Debug)]
pub struct Spanning {
    pub communicator: usize,
    /// By rank of the communicator: its members.
    members: Vec<Vec<usize>>,
    /// This process's rank in the communicator; `None` if it runs no member.
    rank: Option<usize>,
    /// Number of members of this rank that have put their part of the next call.
    put: AtomicU32,
}

impl Spanning {
    /// Number of parts that each rank passes: as many as the rank with most members has.
    pub fn parts(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Members of this rank.
    pub fn own(&self) -> &[usize] {
        self.rank.map_or(&[], |rank| &self.members[rank])
    }

    /// Members on other ranks, each with the index of its part among the parts of all ranks: (index, member).
    pub fn others(&self) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.parts();
        let others = self.members.iter().enumerate().filter(|&(rank, _)| Some(rank) != self.rank);
        others.flat_map(move |(rank, members)| {
            members.iter().enumerate().map(move |(number, &member)| (rank * parts + number, member))
        })
    }

    /// Notes that a member of this rank has put its part. Returns whether all have.
    pub fn note_put(&self) -> bool {
        let count = self.own().len() as u32;
        // No member puts its next part before the call is complete, so nobody counts between the two.
        let is_last = self.put.fetch_add(1, Ordering::SeqCst) + 1 == count;
        if is_last {
            self.put.fetch_sub(count, Ordering::SeqCst);
        }
        is_last
    }
}
