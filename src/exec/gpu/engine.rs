//! One GPU's thread: it enqueues its program, op by op, then the step ops, and waits for their end.

use super::super::device::{Batch, Engine, State, Update};
use super::super::record::{DeviceRecord, OpRecord, StepOp};
use super::super::shared::Shared;
use super::super::watch::{Aborted, Fault};
use super::super::worker::clip_scale;
use super::carrier::Carrier;
use super::mailbox::{Mailboxes, Message};
use super::timer::{Mark, Timer};
use crate::cuda::{Address, Buffer, Clock, Gpu, Marks, Range, Run, Shard};
use crate::model::Parameters;
use crate::op::Kind;
use crate::schedule::Overlap;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A GPU with what it needs besides itself.
pub struct Enqueuer {
    number: u32,
    gpu: Arc<Gpu>,
    shard: Shard,
    carrier: Box<dyn Carrier>,
    shared: Arc<Shared>,
    mailboxes: Arc<Mailboxes>,
    /// By channel and slot: messages between two ops of this device.
    local: BTreeMap<(usize, usize), Buffer>,
    marks: Marks,
    timer: Timer,
    /// This step's step ops.
    steps: Vec<(StepOp, Mark, Mark)>,
    fault: Option<Fault>,
}

impl Enqueuer {
    /// Device number `number` of a session, with `shard` on its GPU.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn new(
        number: u32,
        mut shard: Shard,
        carrier: Box<dyn Carrier>,
        (shared, mailboxes): (&Arc<Shared>, &Arc<Mailboxes>),
        fault: Option<Fault>,
    ) -> Result<Enqueuer> {
        let gpu = shard.gpu().clone();
        let (plan, range) = (&shared.plan, shared.plan.graph.schedule().range(number));
        shard.reserve(range.clone().map(|index| plan.graph.op(index)))?;
        let mut local = BTreeMap::new();
        for port in range.clone().filter_map(|index| plan.outputs[index]).filter(|port| !port.crosses()) {
            if let std::collections::btree_map::Entry::Vacant(place) = local.entry((port.channel, port.slot)) {
                place.insert(Buffer::new(gpu.context(), shard.hidden_bytes())?);
            }
        }
        let mut marks = Marks::new(&gpu);
        marks.reserve(range.len(), 4)?;
        let timer = Timer::new(&gpu);
        let (shared, mailboxes) = (shared.clone(), mailboxes.clone());
        Ok(Enqueuer { number, gpu, shard, carrier, shared, mailboxes, local, marks, timer, steps: Vec::new(), fault })
    }

    /// Enqueues the pipeline ops of a step.
    fn pipeline(&mut self, step: u64) -> Result<()> {
        let shared = self.shared.clone();
        let graph = &shared.plan.graph;
        let range = graph.schedule().range(self.number);
        let mut index = range.start;
        while index < range.end {
            let last = if graph.op(index).opens_pair() { index + 1 } else { index };
            // Of an overlapped pair both inputs are awaited first, unless the graph says otherwise, and both outputs put last.
            let mut inputs = [None; 2];
            for (input, op) in inputs.iter_mut().zip(index..=last) {
                if op == index || graph.overlap() != Overlap::Runtime {
                    *input = self.wait(op, step)?;
                }
            }
            for (input, op) in inputs.into_iter().zip(index..=last) {
                let input =
                    if op > index && graph.overlap() == Overlap::Runtime { self.wait(op, step)? } else { input };
                self.inject(op - range.start)?;
                self.compute(op, op - range.start, step, input)?;
            }
            for op in index..=last {
                if let Some(message) = self.crossing(op, step) {
                    self.carrier.put(message)?;
                }
            }
            index = last + 1;
        }
        Ok(())
    }

    /// The message that op number `index` sends to another device.
    fn crossing(&self, index: usize, step: u64) -> Option<Message> {
        self.shared.plan.outputs[index].and_then(|port| self.mailboxes.message(&port, step))
    }

    /// Makes the compute stream wait for the input of op number `index`; where it lies.
    fn wait(&mut self, index: usize, step: u64) -> Result<Option<Address>> {
        let Some(port) = self.shared.plan.inputs[index] else { return Ok(None) };
        let Some(message) = self.mailboxes.message(&port, step) else {
            return Ok(self.local.get(&(port.channel, port.slot)).map(Buffer::address));
        };
        self.shared.watch.note_wait(self.number, true);
        let address = self.carrier.wait(message)?;
        self.shared.watch.note_wait(self.number, false);
        Ok(Some(address))
    }

    fn compute(&mut self, index: usize, number: usize, step: u64, input: Option<Address>) -> Result<()> {
        let shared = self.shared.clone();
        let op = shared.plan.graph.op(index);
        let output = match (self.crossing(index, step), shared.plan.outputs[index]) {
            (Some(message), _) => Some(self.carrier.outbox(message)?),
            (None, port) => port.and_then(|port| self.local.get(&(port.channel, port.slot))).map(Buffer::address),
        };
        let _range = Range::op(op);
        self.marks.op(number as u32);
        let (stage, microbatch, marks) = (op.stage(), op.microbatch(), &mut self.marks);
        match op.kind() {
            Kind::F => self.shard.forward(stage, microbatch, input, output, marks)?,
            Kind::I => self.shard.backward_input(stage, microbatch, input, output, marks)?,
            Kind::W => self.shard.backward_weight(stage, microbatch, marks)?,
            Kind::B => {
                self.shard.backward_input(stage, microbatch, input, output, marks)?;
                self.shard.backward_weight(stage, microbatch, marks)?;
            }
        }
        let received = shared.plan.inputs[index].and_then(|port| self.mailboxes.message(&port, step));
        received.map_or(Ok(()), |message| self.carrier.release(message))
    }

    /// Enqueues what follows the pipeline.
    fn finish(&mut self, updates: u64, update: &Update) -> Result<()> {
        if self.shared.reductions.has_replicas() {
            self.add_up_replicas(updates)?;
        }
        if let (Some((side, own)), Some(inbox)) = (self.shard.tied_gradient(), self.shard.tied_inbox())
            && let Some(messages) = self.mailboxes.tied(side, updates)
        {
            self.exchange(messages, &[own], &[inbox])?;
            self.shard.take_tied();
        }
        let mut scale = 1.0;
        if let Some(clip) = update.clip {
            // A norm over all devices is a barrier by nature: the hosts add it up.
            let start = self.timer.mark(&self.gpu.compute)?;
            self.shard.squared_norms()?;
            let end = self.timer.mark(&self.gpu.compute)?;
            self.steps.push((StepOp::Norm, start, end));
            self.drain()?;
            let Shared { heap, reductions, watch, .. } = &*self.shared;
            reductions.put_norms(heap, self.number, updates, &self.shard.read_squared_norms()?);
            scale = clip_scale(reductions.sum_norms(heap, updates, watch)?.sqrt(), clip);
        }
        let start = self.timer.mark(&self.gpu.compute)?;
        self.shard.update(&update.adamw, update.number, scale)?;
        self.shard.zero_gradients()?;
        let end = self.timer.mark(&self.gpu.compute)?;
        self.steps.push((StepOp::Optimizer, start, end));
        Ok(())
    }

    fn add_up_replicas(&mut self, updates: u64) -> Result<()> {
        let shared = self.shared.clone();
        // In the order of stages on every device: then no two wait for each other at different ones.
        let mut held = shared.plan.graph.schedule().placement.held_by(self.number).to_vec();
        held.sort_by_key(|chunk| chunk.stage);
        for chunk in held {
            let Some(messages) = self.mailboxes.replica(chunk, updates) else { continue };
            let (own, inbox) = (self.shard.stage_gradient(chunk.stage), self.shard.stage_inbox(chunk.stage)?);
            self.exchange(messages, &own, &inbox)?;
            let start = self.timer.mark(&self.gpu.compute)?;
            self.shard.add_stage_inbox(chunk.stage)?;
            let end = self.timer.mark(&self.gpu.compute)?;
            self.steps.push((StepOp::Reduce, start, end));
        }
        Ok(())
    }

    /// Sends the runs `own`, and writes what comes in to the runs `inbox`.
    fn exchange(&mut self, [out, into]: [Message; 2], own: &[Run], inbox: &[Run]) -> Result<()> {
        let start = self.timer.mark(&self.gpu.compute)?;
        let mut place = self.carrier.outbox(out)?;
        for run in own {
            self.gpu.compute.copy(place, run.address, run.bytes())?;
            place = place.offset(run.bytes());
        }
        let end = self.timer.mark(&self.gpu.compute)?;
        self.steps.push((StepOp::Put, start, end));
        let mut arrived = self.carrier.swap([out, into])?;
        let start = self.timer.mark(&self.gpu.compute)?;
        for run in inbox {
            self.gpu.compute.copy(run.address, arrived, run.bytes())?;
            arrived = arrived.offset(run.bytes());
        }
        let end = self.timer.mark(&self.gpu.compute)?;
        self.steps.push((StepOp::Reduce, start, end));
        self.carrier.release(into)
    }

    /// Waits for the end of all that is enqueued, noting how far the GPU is, so that a hang can be named and ended.
    fn drain(&mut self) -> Result<()> {
        let mut done = 0;
        let watch = &self.shared.watch;
        watch.note_wait(self.number, true);
        let mut spins = 0_u32;
        let streams = [&self.gpu.compute, &self.gpu.send, &self.gpu.receive];
        let carrier = &mut self.carrier;
        let mut all_done = || -> Result<bool> {
            for stream in streams {
                if !stream.is_done()? {
                    return Ok(false);
                }
            }
            carrier.is_done()
        };
        while !all_done()? {
            if watch.is_aborted() {
                return Err(Aborted.into());
            }
            let before = done;
            while self.marks.span(done).map_or(Ok(false), |(_, end)| end.is_done())? {
                done += 1;
            }
            if done > before {
                watch.note_done(self.number, done as usize);
                watch.note_wait(self.number, true);
            }
            spins += 1;
            if spins < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
        watch.note_wait(self.number, false);
        Ok(())
    }

    /// What the step's marks say.
    fn read(&self, clock: &Clock, record: &mut DeviceRecord) -> Result<()> {
        let range = self.shared.plan.graph.schedule().range(self.number);
        let sent = self.carrier.sent(clock)?;
        let mut turn = record.ready;
        for (number, index) in range.enumerate() {
            let (start, end) = self.marks.span(number as u32).context("every op has its marks")?;
            let (start, end) = (clock.ns(start)?, clock.ns(end)?);
            let (put_start, put_end) = sent.get(&index).copied().unwrap_or((end, end));
            // Between two ops of which the second waits for nobody, the stream was without work: a gap, not a wait.
            let waits = self.shared.plan.inputs[index].is_some_and(|port| port.crosses());
            let turn_to = if waits { turn.min(start) } else { start };
            record.ops.push(OpRecord { index, turn: turn_to, start, end, put_start, put_end });
            turn = end;
        }
        record.laps = self.marks.laps()?;
        for &(op, start, end) in &self.steps {
            record.steps.push((op, self.timer.ns(start, clock)?, self.timer.ns(end, clock)?));
        }
        record.clock_uncertainty_ns = clock.uncertainty_ns;
        record.puts_beside_compute = true;
        Ok(())
    }

    fn inject(&self, number: usize) -> Result<()> {
        self.fault.map_or(Ok(()), |fault| fault.strike(self.number, number, &self.shared.watch))
    }
}

impl Engine for Enqueuer {
    fn step(&mut self, step: u64, updates: u64, batch: &Arc<Batch>, update: Option<&Update>) -> Result<DeviceRecord> {
        let shared = self.shared.clone();
        self.gpu.make_current()?;
        self.marks.clear();
        self.timer.clear();
        self.steps.clear();
        self.carrier.begin()?;
        self.shard.begin(&batch.inputs, &batch.targets)?;
        let now = || shared.watch.now_ns();
        let clock = Clock::calibrate(&self.gpu.compute, &now)?;
        shared.watch.note_done(self.number, 0);
        let mut record = DeviceRecord { ready: now(), ..DeviceRecord::default() };
        shared.reductions.meet(&shared.heap, self.number, step, &shared.watch)?;
        self.pipeline(step)?;
        if let Some(update) = update {
            self.finish(updates, update)?;
        }
        self.drain()?;
        record.losses = self.shard.has_head().then(|| self.shard.losses()).transpose()?;
        self.read(&clock, &mut record)?;
        Ok(record)
    }

    fn state(&mut self) -> &mut dyn State {
        self
    }
}

impl State for Enqueuer {
    fn clear(&mut self) -> Result<()> {
        self.gpu.make_current()?;
        self.shard.zero_gradients()
    }

    fn save(&mut self) -> Result<()> {
        self.gpu.make_current()?;
        self.shard.save()
    }

    fn restore(&mut self) -> Result<()> {
        self.gpu.make_current()?;
        self.shard.restore()
    }

    fn export(&mut self, into: &mut Parameters, gradients: bool) -> Result<()> {
        self.gpu.make_current()?;
        self.shard.export(into, gradients)
    }

    fn peak_held_bytes(&self) -> usize {
        self.shard.peak_held_bytes()
    }
}
