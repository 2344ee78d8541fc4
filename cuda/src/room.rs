//! A limit of the work that waits on a GPU's compute stream. A driver blocks the thread that enqueues more than about a thousand
//! pieces, in a call that nothing can abort, and with it all threads that enqueue on the GPU.

use super::api::Event;
use super::gpu::Gpu;
use anyhow::Result;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

/// Pieces of work between two marks.
const BETWEEN_MARKS: u64 = 32;

/// Waits a moment; fails if the run was aborted.
pub type Pause = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// How much work waits, by marks in the stream.
#[derive(Default)]
pub(super) struct Room {
    limit: Option<(u64, Pause)>,
    /// Events, each with the amount of work enqueued when it was recorded.
    marks: VecDeque<(Event, u64)>,
    marked: u64,
    /// Amount of work known to be done.
    done: u64,
}

impl Gpu {
    /// Limits the work on the compute stream: [`Gpu::make_room`] calls the pause until at most this many pieces wait. Without a limit
    /// it does nothing.
    pub fn limit(&self, limit: Option<(u64, Pause)>) {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).limit = limit;
    }

    /// Waits until at most the limit of work is left. To be called after every few pieces.
    ///
    /// # Errors
    /// The pause's.
    pub fn make_room(&self) -> Result<()> {
        while let Some(pause) = self.has_no_room()? {
            pause()?; // without the lock
        }
        Ok(())
    }

    /// Returns what waits a moment, if there is no room.
    fn has_no_room(&self) -> Result<Option<Pause>> {
        let room = &mut *self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((most, pause)) = &room.limit else { return Ok(None) };
        if self.compute.enqueued() - room.marked >= BETWEEN_MARKS {
            let event = self.events().untimed()?;
            self.compute.record(&event)?;
            room.marked = self.compute.enqueued();
            room.marks.push_back((event, room.marked));
        }
        while self.compute.enqueued() - room.done > *most
            && let Some((event, enqueued)) = room.marks.front()
        {
            if !event.is_done()? {
                return Ok(Some(pause.clone()));
            }
            room.done = *enqueued;
            room.marks.pop_front();
        }
        Ok(None)
    }
}
