//! Pools of buffers.

use super::memory::Buffer;
use super::{Context, Event, Fault, Stream};
use anyhow::Result;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Reusable buffers by size, most recently returned first. All buffers of a pool are used on one stream: a buffer returned while
/// work on it is still enqueued is only given to work enqueued later. Work of another stream waits for what this one has enqueued.
pub struct Pool {
    context: Arc<Context>,
    free: BTreeMap<usize, Vec<Buffer>>,
    /// Those in use on another stream until an event, oldest first.
    leaving: BTreeMap<usize, VecDeque<(Buffer, Arc<Event>)>>,
    /// Moves since [`Pool::watch`], in order.
    seen: Option<Vec<Move>>,
}

/// A buffer of this many bytes was taken or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Take(usize),
    Give(usize),
}

impl Move {
    /// The same move of where the bytes are copied to.
    pub fn reversed(&self) -> Move {
        match *self {
            Move::Take(bytes) => Move::Give(bytes),
            Move::Give(bytes) => Move::Take(bytes),
        }
    }
}

/// Returns by size how many buffers these moves take at most at once.
pub fn most_taken(moves: impl Iterator<Item = Move>) -> BTreeMap<usize, usize> {
    let mut held: BTreeMap<usize, (usize, usize)> = BTreeMap::new(); // by size: now, most
    for step in moves {
        match step {
            Move::Take(bytes) => {
                let (now, most) = held.entry(bytes).or_default();
                *now += 1;
                *most = (*most).max(*now);
            }
            Move::Give(bytes) => {
                let (now, _) = held.entry(bytes).or_default();
                *now = now.saturating_sub(1);
            }
        }
    }
    held.into_iter().map(|(bytes, (_, most))| (bytes, most)).collect()
}

impl Pool {
    pub fn new(context: &Arc<Context>) -> Pool {
        Pool { context: context.clone(), free: BTreeMap::new(), leaving: BTreeMap::new(), seen: None }
    }

    /// Takes an uninitialised buffer for work on `stream`, which waits for another stream if only buffers are left that are in use
    /// there.
    pub fn take(&mut self, bytes: usize, stream: &Stream) -> Result<Buffer> {
        self.seen.iter_mut().for_each(|seen| seen.push(Move::Take(bytes)));
        if let Some(buffer) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(buffer);
        }
        match self.leaving.get_mut(&bytes).and_then(VecDeque::pop_front) {
            Some((buffer, event)) => {
                stream.wait(&event)?;
                Ok(buffer)
            }
            None => Buffer::new(&self.context, bytes),
        }
    }

    /// Returns buffers that are in use on another stream until `event`.
    pub fn give_after(&mut self, buffers: impl IntoIterator<Item = Buffer>, event: &Arc<Event>) {
        for buffer in buffers {
            self.seen.iter_mut().for_each(|seen| seen.push(Move::Give(buffer.bytes)));
            self.leaving.entry(buffer.bytes).or_default().push_back((buffer, event.clone()));
        }
    }

    /// Returns buffers.
    pub fn give(&mut self, buffers: impl IntoIterator<Item = Buffer>) {
        for buffer in buffers {
            self.seen.iter_mut().for_each(|seen| seen.push(Move::Give(buffer.bytes)));
            self.free.entry(buffer.bytes).or_default().push(buffer);
        }
    }

    /// Orders free buffers by address, so that steps with the same moves take the same buffers. `stream` waits for those that are in
    /// use on another one.
    pub fn sort(&mut self, stream: &Stream) -> Result<(), Fault> {
        for (bytes, leaving) in std::mem::take(&mut self.leaving) {
            for (buffer, event) in leaving {
                stream.wait(&event)?;
                self.free.entry(bytes).or_default().push(buffer);
            }
        }
        self.free.values_mut().for_each(|buffers| buffers.sort_by_key(Buffer::address));
        Ok(())
    }

    /// Starts recording moves.
    pub fn watch(&mut self) {
        self.seen = Some(Vec::new());
    }

    /// Stops recording, and returns the moves since [`Pool::watch`].
    pub fn seen(&mut self) -> Vec<Move> {
        self.seen.take().unwrap_or_default()
    }

    /// Returns how many more buffers of each size the pool needs so that these moves allocate nothing.
    pub fn lacking(&self, moves: impl Iterator<Item = Move>) -> BTreeMap<usize, usize> {
        let free =
            |bytes| self.free.get(&bytes).map_or(0, Vec::len) + self.leaving.get(&bytes).map_or(0, VecDeque::len);
        most_taken(moves).into_iter().map(|(bytes, most)| (bytes, most.saturating_sub(free(bytes)))).collect()
    }

    /// Allocates this many free buffers of each size.
    pub fn reserve(&mut self, counts: &BTreeMap<usize, usize>) -> Result<()> {
        for (&bytes, &count) in counts {
            for _ in 0..count {
                let buffer = Buffer::new(&self.context, bytes)?;
                self.free.entry(bytes).or_default().push(buffer);
            }
        }
        Ok(())
    }
}
