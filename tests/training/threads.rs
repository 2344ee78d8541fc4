//! Collective calls among the threads of one process, over a lock.

use anyhow::{Result, ensure};
use pipesim::internals::compute::Collective;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A member of a group of threads. A call fails once a member that it waits for is dropped.
pub struct Threads {
    rank: usize,
    shared: Arc<Shared>,
}

struct Shared {
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// What members bring to a call. They meet twice per call: when all data is here, and when all of them have read it.
struct Meeting {
    data: Vec<Vec<f32>>,
    arrived: usize,
    /// Meetings so far.
    number: u64,
    is_broken: bool,
}

impl Threads {
    /// Returns the members of a group of `size`, in order.
    pub fn group(size: usize) -> Vec<Threads> {
        let meeting = Meeting { data: vec![Vec::new(); size], arrived: 0, number: 0, is_broken: false };
        let shared = Arc::new(Shared { meeting: Mutex::new(meeting), changed: Condvar::new() });
        (0..size).map(|rank| Threads { rank, shared: shared.clone() }).collect()
    }

    /// Brings `data`, waits for the other members', and calls `read` with all of it.
    fn call(&mut self, data: &[f32], read: impl FnOnce(&[Vec<f32>]) -> Result<()>) -> Result<()> {
        let mut meeting = self.shared.lock();
        let own = &mut meeting.data[self.rank];
        own.clear();
        own.extend_from_slice(data);
        let meeting = self.shared.meet(meeting)?;
        let lengths = || meeting.data.iter().map(Vec::len);
        ensure!(
            lengths().all(|length| length == data.len()),
            "expected numbers of one length from every member, found {:?}: make the same calls on each",
            lengths().collect::<Vec<_>>()
        );
        read(&meeting.data)?;
        drop(self.shared.meet(meeting)?);
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once all members have called this.
    fn meet<'a>(&self, mut meeting: MutexGuard<'a, Meeting>) -> Result<MutexGuard<'a, Meeting>> {
        let number = meeting.number;
        meeting.arrived += 1;
        if meeting.arrived == meeting.data.len() {
            (meeting.arrived, meeting.number) = (0, number + 1);
            self.changed.notify_all();
        }
        while meeting.number == number {
            ensure!(!meeting.is_broken, "expected all members of the group, found one gone: see its error");
            meeting = self.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(meeting)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().is_broken = true;
        self.shared.changed.notify_all();
    }
}

/// Folds the members' data into `into`, in their order.
fn fold<'a>(into: &mut [f32], mut parts: impl Iterator<Item = &'a [f32]>, join: impl Fn(f32, f32) -> f32) {
    if let Some(first) = parts.next() {
        into.copy_from_slice(first);
    }
    for part in parts {
        into.iter_mut().zip(part).for_each(|(into, &value)| *into = join(*into, value));
    }
}

impl Collective for Threads {
    fn size(&self) -> usize {
        self.shared.lock().data.len()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn all_reduce(&mut self, data: &mut [f32]) -> Result<()> {
        let own = data.to_vec();
        self.call(&own, |parts| {
            fold(data, parts.iter().map(Vec::as_slice), |a, b| a + b);
            Ok(())
        })
    }

    fn all_reduce_max(&mut self, data: &mut [f32]) -> Result<()> {
        let own = data.to_vec();
        self.call(&own, |parts| {
            fold(data, parts.iter().map(Vec::as_slice), f32::max);
            Ok(())
        })
    }

    fn reduce_scatter(&mut self, data: &[f32], share: &mut [f32]) -> Result<()> {
        ensure!(data.len() == self.size() * share.len(), "pass all members' pieces");
        let range = self.rank * share.len()..(self.rank + 1) * share.len();
        self.call(data, |parts| {
            fold(share, parts.iter().map(|part| &part[range.clone()]), |a, b| a + b);
            Ok(())
        })
    }

    fn all_gather(&mut self, share: &[f32], data: &mut [f32]) -> Result<()> {
        ensure!(data.len() == self.size() * share.len(), "pass all members' pieces");
        self.call(share, |parts| {
            data.chunks_exact_mut(share.len().max(1)).zip(parts).for_each(|(into, part)| into.copy_from_slice(part));
            Ok(())
        })
    }
}
