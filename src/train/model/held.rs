//! The bytes that ops keep on a device for later ones, change by change.

use pipesim_schedule::op::Op;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a device holds; the threads that compute and copy share it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldBytes(Arc<Mutex<Changes>>);

#[derive(Debug, Default)]
struct Changes {
    /// Those of the step, in order: by which op, and how many bytes.
    of_step: Vec<(Op, i64)>,
    /// Whether the step is over: the next change is the first of another.
    is_over: bool,
    /// The most bytes that earlier steps held.
    most_before: i64,
}

impl Changes {
    /// The most that the step has held.
    fn most(&self) -> i64 {
        let held = self.of_step.iter().scan(0, |held, &(_, bytes)| {
            *held += bytes;
            Some(*held)
        });
        held.max().unwrap_or(0).max(0)
    }

    fn push(&mut self, op: Op, bytes: i64) -> usize {
        if std::mem::take(&mut self.is_over) {
            self.most_before = self.most_before.max(self.most());
            self.of_step.clear();
        }
        self.of_step.push((op.alone(), bytes));
        self.of_step.len() - 1
    }
}

impl HeldBytes {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `op` returns bytes, now that it ends, or takes some.
    pub fn change(&self, op: Op, bytes: i64) {
        self.changes().push(op, bytes);
    }

    /// Notes that `op` begins, which takes memory at its start. [`HeldBytes::took`] says how much.
    pub fn begin(&self, op: Op) -> usize {
        self.changes().push(op, 0)
    }

    /// Says by how many bytes the op changed what is held whose [`HeldBytes::begin`] returned `number`.
    pub fn took(&self, number: usize, bytes: i64) {
        if let Some(change) = self.changes().of_step.get_mut(number) {
            change.1 = bytes;
        }
    }

    /// Ends a step: nothing is held.
    pub fn end(&self) {
        self.changes().is_over = true;
    }

    /// Forgets what was held.
    pub fn forget(&self) {
        *self.changes() = Changes::default();
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        let changes = self.changes();
        let sum: i64 = changes.of_step.iter().map(|&(_, bytes)| bytes).sum();
        if changes.is_over { 0 } else { usize::try_from(sum).unwrap_or(0) }
    }

    /// The most bytes ever held.
    pub fn peak(&self) -> usize {
        let changes = self.changes();
        usize::try_from(changes.most_before.max(changes.most())).unwrap_or(0)
    }

    /// The changes of this step, or of the last one if it is over. What an op takes is noted where it starts, what it returns
    /// where it ends.
    pub fn of_step(&self) -> Vec<(Op, i64)> {
        self.changes().of_step.clone()
    }
}
