//! A limit of the work that waits on a GPU's compute stream. A driver blocks the thread that enqueues more than about a thousand
//! pieces, in a call that nothing can abort, and with it all threads that enqueue on the GPU.

use super::api::{Event, Events, Stream};
use anyhow::Result;
use std::collections::VecDeque;
use std::sync::Arc;

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

impl Room {
    /// Sets the limit, and what waits a moment.
    pub(super) fn limit(&mut self, limit: Option<(u64, Pause)>) {
        self.limit = limit;
    }

    /// Returns what waits a moment, if there is no room on `stream`, whose events are `events`.
    pub(super) fn pause(&mut self, stream: &Stream, events: &Arc<Events>) -> Result<Option<Pause>> {
        let Some((most, pause)) = &self.limit else { return Ok(None) };
        if stream.enqueued() - self.marked >= BETWEEN_MARKS {
            let event = events.untimed()?;
            stream.record(&event)?;
            self.marked = stream.enqueued();
            self.marks.push_back((event, self.marked));
        }
        while stream.enqueued() - self.done > *most
            && let Some((event, enqueued)) = self.marks.front()
        {
            if !event.is_done()? {
                return Ok(Some(pause.clone()));
            }
            self.done = *enqueued;
            self.marks.pop_front();
        }
        Ok(None)
    }
}
