//! Events between the parts of ops, from which the time that each took is read after the step.

use super::api::event::Event;
use super::gpu::Gpu;
use crate::model::{Lap, Part};
use crate::op::Kind;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The marks that a step leaves on a compute stream.
pub struct Marks {
    gpu: Arc<Gpu>,
    events: Vec<Event>,
    /// By call.
    calls: Vec<Marked>,
    /// By op: its first mark and the last behind its calls.
    spans: BTreeMap<u32, [usize; 2]>,
    number: u32,
}

/// The marks of one call: its first, and the last behind its parts.
#[derive(Clone, Debug)]
struct Marked {
    number: u32,
    kind: Kind,
    first: usize,
    parts: Vec<Part>,
    last: usize,
}

impl Marks {
    /// No marks yet.
    pub fn new(gpu: &Arc<Gpu>) -> Marks {
        Marks { gpu: gpu.clone(), events: Vec::new(), calls: Vec::new(), spans: BTreeMap::new(), number: 0 }
    }

    /// Forgets all marks: a step begins.
    pub fn clear(&mut self) {
        self.events.clear();
        self.calls.clear();
        self.spans.clear();
        self.number = 0;
    }

    /// What is marked from now on belongs to the op of this number. A full backward is two calls of one op.
    pub fn op(&mut self, number: u32) {
        self.number = number;
    }

    /// Begins a call.
    pub(super) fn start(&mut self, kind: Kind) -> Result<()> {
        let first = self.mark()?;
        self.calls.push(Marked { number: self.number, kind, first, parts: Vec::new(), last: first });
        Ok(())
    }

    /// What was enqueued since the last mark was `part`.
    pub(super) fn end(&mut self, part: Part) -> Result<()> {
        let mark = self.mark()?;
        if let Some(op) = self.calls.last_mut() {
            op.parts.push(part);
            op.last = mark;
        }
        Ok(())
    }

    /// Ends a call. What follows the last part counts to none.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.calls.last().is_some_and(|call| call.parts.is_empty()) {
            let mark = self.mark()?;
            self.calls.iter_mut().next_back().into_iter().for_each(|call| call.last = mark);
        }
        if let Some(call) = self.calls.last() {
            self.spans.entry(call.number).or_insert([call.first, call.last])[1] = call.last;
        }
        Ok(())
    }

    /// Where the op of this number begins and ends. To be read once the stream has passed it.
    pub fn span(&self, number: u32) -> Option<(&Event, &Event)> {
        let &[first, last] = self.spans.get(&number)?;
        Some((self.events.get(first)?, self.events.get(last)?))
    }

    /// How long each part of each op took, by the op's number.
    pub fn laps(&self) -> Result<Vec<(u32, Lap)>> {
        let mut laps = Vec::new();
        for call in &self.calls {
            for (index, &part) in call.parts.iter().enumerate() {
                let (from, to) = (&self.events[call.first + index], &self.events[call.first + index + 1]);
                let duration_ns = to.elapsed_ns(from)?.max(0.0).round() as u64;
                laps.push((call.number, Lap { part, kind: call.kind, duration_ns }));
            }
        }
        Ok(laps)
    }

    fn mark(&mut self) -> Result<usize> {
        self.events.push(self.gpu.mark(&self.gpu.compute)?);
        Ok(self.events.len() - 1)
    }
}
