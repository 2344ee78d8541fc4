//! Timing of what a GPU executes: events around the parts of ops.

use crate::compute::{Part, PartTimer, PartTiming};
use anyhow::Result;
use pipesim_gpu::{Event, Gpu};
use pipesim_schedule::op::Kind;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Records events between the parts of ops on a compute stream. Their times are read after the step.
pub struct EventTimer {
    gpu: Arc<Gpu>,
    events: Vec<Event>,
    calls: Vec<PartCall>,
    /// By op number: indices of its first and last event.
    spans: BTreeMap<u32, [usize; 2]>,
    number: u32,
}

/// The events of one call: the first, then one behind each part.
#[derive(Clone, Debug)]
struct PartCall {
    /// Number of the op.
    number: u32,
    kind: Kind,
    first: usize,
    parts: Vec<Part>,
    last: usize,
}

impl EventTimer {
    /// Creates a timer without events.
    pub fn new(gpu: &Arc<Gpu>) -> EventTimer {
        let (events, calls, spans) = (Vec::new(), Vec::new(), BTreeMap::new());
        EventTimer { gpu: gpu.clone(), events, calls, spans, number: 0 }
    }

    /// Drops all events, at the beginning of a step.
    pub fn clear(&mut self) {
        self.events.clear();
        self.calls.clear();
        self.spans.clear();
        self.number = 0;
    }

    /// Attributes later calls to the op with this number. A full backward is two calls of one op.
    pub fn op(&mut self, number: u32) {
        self.number = number;
    }

    /// Returns the events at the beginning and end of an op, to be read once the stream has passed them.
    pub fn span(&self, number: u32) -> Option<(&Event, &Event)> {
        let &[first, last] = self.spans.get(&number)?;
        Some((self.events.get(first)?, self.events.get(last)?))
    }

    /// Returns the duration of each part with the number of its op.
    pub fn timings(&self) -> Result<Vec<(u32, PartTiming)>> {
        let mut timings = Vec::new();
        for call in &self.calls {
            for (index, &part) in call.parts.iter().enumerate() {
                let (from, to) = (&self.events[call.first + index], &self.events[call.first + index + 1]);
                let duration_ns = to.elapsed_ns(from)?.max(0.0).round() as u64;
                timings.push((call.number, PartTiming { part, kind: call.kind, duration_ns }));
            }
        }
        Ok(timings)
    }

    fn mark(&mut self) -> Result<usize> {
        self.events.push(self.gpu.mark(&self.gpu.compute)?);
        self.gpu.make_room()?;
        Ok(self.events.len() - 1)
    }
}

/// Measures kernels and products one by one, by events around each.
#[derive(Default)]
pub struct KernelTimer(RefCell<Option<Vec<TimedCall>>>);

/// Name of a kernel, and the events before and behind it.
type TimedCall = (&'static str, [Event; 2]);

impl KernelTimer {
    /// Enqueues `work`, and if kernels are timed, an event before and after it.
    pub fn around<T>(&self, name: &'static str, gpu: &Gpu, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(spans) = &mut *self.0.borrow_mut() else { return work() };
        let before = gpu.mark(&gpu.compute)?;
        let done = work()?;
        spans.push((name, [before, gpu.mark(&gpu.compute)?]));
        Ok(done)
    }

    pub fn start(&self) {
        *self.0.borrow_mut() = Some(Vec::new());
    }

    /// Returns the durations in nanoseconds by name. All events must have passed.
    pub fn end(&self) -> Result<BTreeMap<&'static str, Vec<u64>>> {
        let mut times: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
        for (name, [before, after]) in self.0.borrow_mut().take().unwrap_or_default() {
            times.entry(name).or_default().push(after.elapsed_ns(&before)?.max(0.0).round() as u64);
        }
        Ok(times)
    }
}

impl PartTimer for EventTimer {
    fn start(&mut self, kind: Kind) -> Result<()> {
        let first = self.mark()?;
        self.calls.push(PartCall { number: self.number, kind, first, parts: Vec::new(), last: first });
        Ok(())
    }

    fn end(&mut self, part: Part) -> Result<()> {
        let mark = self.mark()?;
        if let Some(op) = self.calls.last_mut() {
            op.parts.push(part);
            op.last = mark;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.calls.last().is_some_and(|call| call.parts.is_empty()) {
            let mark = self.mark()?;
            self.calls.iter_mut().next_back().into_iter().for_each(|call| call.last = mark);
        }
        if let Some(call) = self.calls.last() {
            self.spans.entry(call.number).or_insert([call.first, call.last])[1] = call.last;
        }
        Ok(())
    }
}
