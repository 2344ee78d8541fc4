//! Timed events of one device, used again every step.

use crate::cuda::{Clock, Event, Gpu, Stream};
use anyhow::Result;
use std::sync::Arc;

/// A number for an event of this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

/// The events.
pub struct Timer {
    gpu: Arc<Gpu>,
    events: Vec<Event>,
    used: usize,
}

impl Timer {
    /// No events yet.
    pub fn new(gpu: &Arc<Gpu>) -> Timer {
        Timer { gpu: gpu.clone(), events: Vec::new(), used: 0 }
    }

    /// A step begins: all marks are forgotten.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Marks where `stream` is.
    pub fn mark(&mut self, stream: &Stream) -> Result<Mark> {
        if self.used == self.events.len() {
            self.events.push(Event::timed(self.gpu.context())?);
        }
        let mark = Mark(self.used);
        self.used += 1;
        stream.record(&self.events[mark.0])?;
        Ok(mark)
    }

    /// When the stream passed a mark, on the hosts' clock.
    pub fn ns(&self, mark: Mark, clock: &Clock) -> Result<u64> {
        Ok(clock.ns(&self.events[mark.0])?)
    }
}
