//! Collective calls among ranks that do not share memory, inside steps.

use std::sync::{Mutex, PoisonError};

/// Writes a rank's numbers.
pub(crate) type Fill = Box<dyn FnOnce(&mut [f32]) + Send>;

/// Reads the numbers of all ranks.
pub(crate) type Take = Box<dyn FnOnce(&[f32]) + Send>;

/// A collective call of some ranks: every rank passes the same amount of numbers, and gets the numbers of all ranks.
///
/// Calls of one communicator begin in the order in which `Ranks::all_gather` gets them, which must be the same on all its ranks.
/// Calls of different communicators do not wait for each other, so they may begin in any order.
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "only MPI makes the calls"))]
pub(crate) struct AllGather {
    /// Number of the communicator, from `Ranks::communicators`.
    pub communicator: usize,
    /// Amount of numbers of each rank; with none, the call is a barrier.
    pub length: usize,
    /// Writes this rank's numbers. Called once when the call begins, on another thread.
    pub fill: Fill,
    /// Reads the numbers of all ranks, in the order of ranks. Called once when they have arrived, on another thread.
    pub take: Take,
}

/// All communicators of the run, with the same numbers in every rank.
#[derive(Debug, Default)]
pub struct Communicators(Mutex<Vec<Vec<u32>>>);

impl Communicators {
    /// Returns a communicator for each of `groups`, no two the same, and the ranks of those that do not exist yet.
    pub fn number(&self, groups: &[Vec<u32>]) -> (Vec<usize>, Vec<Vec<u32>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (had, mut numbers) = (known.len(), Vec::with_capacity(groups.len()));
        for group in groups {
            let free = (0..had).find(|number| known[*number] == *group && !numbers.contains(number));
            numbers.push(free.unwrap_or_else(|| {
                known.push(group.clone());
                known.len() - 1
            }));
        }
        (numbers, known[had..].to_vec())
    }
}
