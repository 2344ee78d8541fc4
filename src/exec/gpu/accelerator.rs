//! A GPU for a program to run on: its thread only enqueues, on streams, and waits for their end.
//!
//! The order of enqueuing follows the graph: where an op waits for another device's, its thread waits until that one has
//! *enqueued* what makes the message (host signals of the session's heap), and its stream waits until it has *happened* (events,
//! or words that the sender's stream writes). So every event is recorded before anything waits for it, hosts run as far ahead as
//! the graph lets them, and no host waits for a GPU inside a step.

use super::super::device::{Batch, State, Update};
use super::super::plan::Port;
use super::super::program::{Machine, Program, Runner};
use super::super::record::{DeviceRecord, OpRecord};
use super::super::shared::Shared;
use super::super::signal::{Aborted, Patience as _};
use super::super::watch::{Fault, called_off_since};
use super::post::GpuLink;
use crate::cuda::{Address, Buffer, Clock, Event, EventTimer, Gpu, Range, Run, Shard};
use crate::ending::Twofold;
use crate::model::Parameters;
use crate::op::{Kind, Op};
use crate::placement::Chunk;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Work that stands on a stream at most, beyond the op enqueued last. A driver takes about a thousand, then holds the thread up that
/// enqueues more, in a call that nothing ends.
const MOST_ENQUEUED: u64 = 512;

/// A GPU with what its thread needs.
pub struct Accelerator {
    number: u32,
    gpu: Arc<Gpu>,
    shard: Shard,
    shared: Arc<Shared>,
    /// By channel and slot: messages between two ops of this device.
    local: BTreeMap<(usize, usize), Buffer>,
    marks: EventTimer,
    /// This step's.
    clock: Option<Clock>,
    /// How much was enqueued on the compute stream behind each op of this step.
    enqueued: Vec<u64>,
    /// How many of them are done.
    done: usize,
}

impl Accelerator {
    /// Device number `number` of a session, with `shard` on its GPU, and its program.
    pub fn runner(
        number: u32,
        mut shard: Shard,
        link: GpuLink,
        shared: &Arc<Shared>,
        fault: Option<Fault>,
    ) -> Result<(u32, Box<dyn Runner>)> {
        let gpu = shard.gpu().clone();
        let (plan, range) = (&shared.plan, shared.plan.graph.schedule().range(number));
        shard.reserve(range.clone().map(|index| plan.graph.op(index)))?;
        let mut local = BTreeMap::new();
        for port in range.clone().filter_map(|index| plan.outputs[index]).filter(|port| !port.crosses()) {
            if let std::collections::btree_map::Entry::Vacant(place) = local.entry((port.channel, port.slot)) {
                place.insert(Buffer::new(gpu.context(), shard.hidden_bytes())?);
            }
        }
        // At hand, so that few are made in a step.
        gpu.events().reserve(5 * range.len())?;
        let marks = EventTimer::new(&gpu);
        let (clock, enqueued, done) = (None, Vec::new(), 0);
        let accelerator =
            Accelerator { number, gpu, shard, shared: shared.clone(), local, marks, clock, enqueued, done };
        Ok((number, Box::new(Program::new(number, accelerator, link, shared.clone(), fault))))
    }

    fn clock(&self) -> Result<&Clock> {
        self.clock.as_ref().context("a step has begun")
    }

    /// Notes how far the GPU is, so that a hang can be named and ended.
    fn note_done(&mut self) -> Result<()> {
        let before = self.done;
        while self.marks.span(self.done as u32).map_or(Ok(false), |(_, end)| end.is_done())? {
            self.done += 1;
        }
        if self.done > before {
            self.shared.watch.note_done(self.number, self.done);
            self.shared.watch.note_wait(self.number, true);
        }
        Ok(())
    }

    /// Looks again and again until `is_over`, or until all is called off.
    fn wait_until(&mut self, mut is_over: impl FnMut(&Accelerator) -> Result<bool>) -> Result<()> {
        let mut spins = 0_u32;
        while !is_over(self)? {
            if self.shared.watch.is_aborted() {
                return Err(Aborted.into());
            }
            self.note_done()?;
            spins += 1;
            if spins < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
        Ok(())
    }

    /// Waits until the compute stream has room for an op.
    fn make_room(&mut self) -> Result<()> {
        self.note_done()?;
        self.wait_until(|this| {
            let behind_done = this.done.checked_sub(1).and_then(|last| this.enqueued.get(last)).copied();
            let begin = this.enqueued.first().copied().unwrap_or_default();
            let standing = this.gpu.compute.enqueued() - behind_done.unwrap_or(begin);
            Ok(standing <= MOST_ENQUEUED || this.done >= this.enqueued.len())
        })
    }
}

impl Machine for Accelerator {
    const ENQUEUES: bool = true;

    type Place = Address;
    type Moment = Event;

    fn begin(&mut self, batch: &Arc<Batch>) -> Result<()> {
        self.gpu.make_current()?;
        self.marks.clear();
        self.enqueued.clear();
        self.done = 0;
        self.shard.begin(&batch.inputs, &batch.targets)?;
        self.clock = Some(Clock::calibrate(&self.gpu, &|| self.shared.watch.now_ns())?);
        Ok(())
    }

    fn mark(&mut self) -> Result<Event> {
        Ok(self.gpu.mark(&self.gpu.compute)?)
    }

    fn ns(&self, moment: &Event) -> Result<u64> {
        Ok(self.clock()?.ns(moment)?)
    }

    fn local(&self, port: &Port) -> Option<Address> {
        self.local.get(&(port.channel, port.slot)).map(Buffer::address)
    }

    fn compute(&mut self, number: usize, op: Op, input: Option<Address>, output: Option<Address>) -> Result<()> {
        let _range = Range::op(op);
        self.make_room()?;
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
        self.enqueued.push(self.gpu.compute.enqueued());
        Ok(())
    }

    fn give(&mut self, gradient: Twofold, mut place: Address) -> Result<()> {
        let own = match gradient {
            Twofold::Tied => self.shard.tied_gradient().map(|(_, own)| own).into_iter().collect(),
            Twofold::Stage(Chunk { stage, .. }) => self.shard.stage_gradient(stage),
        };
        for run in own {
            self.gpu.compute.copy(place, run.address, run.bytes())?;
            place = place.offset(run.bytes());
        }
        Ok(())
    }

    fn add(&mut self, gradient: Twofold, mut place: Address) -> Result<()> {
        let inbox: Vec<Run> = match gradient {
            Twofold::Tied => self.shard.tied_inbox().into_iter().collect(),
            Twofold::Stage(Chunk { stage, .. }) => self.shard.stage_inbox(stage)?,
        };
        for run in inbox {
            self.gpu.compute.copy(run.address, place, run.bytes())?;
            place = place.offset(run.bytes());
        }
        match gradient {
            Twofold::Tied => {
                self.shard.take_tied();
                Ok(())
            }
            Twofold::Stage(Chunk { stage, .. }) => self.shard.add_stage_inbox(stage),
        }
    }

    fn square(&mut self) -> Result<()> {
        self.shard.squared_norms()
    }

    fn squares(&mut self) -> Result<Vec<(usize, f64)>> {
        self.shard.read_squared_norms()
    }

    fn update(&mut self, update: &Update, scale: f32) -> Result<()> {
        self.shard.update(&update.adamw, update.number, scale)?;
        self.shard.zero_gradients()
    }

    /// Notes meanwhile how far the GPU is.
    fn drain(&mut self, is_done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        self.shared.watch.note_wait(self.number, true);
        self.wait_until(|this| {
            for stream in [&this.gpu.compute, &this.gpu.send, &this.gpu.receive] {
                if !stream.is_done()? {
                    return Ok(false);
                }
            }
            is_done()
        })
    }

    fn losses(&mut self) -> Result<Option<Vec<f32>>> {
        self.shard.has_head().then(|| self.shard.losses()).transpose()
    }

    /// The host's times were those of enqueuing: the events know when it happened.
    fn finish(&mut self, sent: &BTreeMap<usize, [Event; 2]>, record: &mut DeviceRecord) -> Result<()> {
        let clock = self.clock()?;
        let mut before = record.ready;
        for (number, op) in record.ops.iter_mut().enumerate() {
            let (start, end) = self.marks.span(number as u32).context("every op has its marks")?;
            let (start, end) = (clock.ns(start)?, clock.ns(end)?);
            let (put_start, put_end) = match sent.get(&op.index) {
                Some([start, end]) => (clock.ns(start)?, clock.ns(end)?),
                None => (end, end),
            };
            // Between two ops of which the second waits for nobody, the stream was without work: a gap, not a wait.
            let waits = self.shared.plan.inputs[op.index].is_some_and(|port| port.crosses());
            let turn = if waits { before.min(start) } else { start };
            *op = OpRecord { index: op.index, turn, start, end, put_start, put_end };
            before = end;
        }
        record.laps = self.marks.laps()?;
        record.clock_uncertainty_ns = clock.uncertainty_ns;
        record.puts_beside_compute = true;
        Ok(())
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.shard
    }

    /// Once a device failed, what is enqueued may never be done, and giving memory back waits for that: on all GPUs of the process.
    fn is_stuck(&self, failed: bool) -> bool {
        failed || called_off_since().is_some()
    }
}

impl State for Shard {
    fn clear(&mut self) -> Result<()> {
        self.zero_gradients()
    }

    fn save(&mut self) -> Result<()> {
        Shard::save(self)
    }

    fn restore(&mut self) -> Result<()> {
        Shard::restore(self)
    }

    fn export(&mut self, into: &mut Parameters, gradients: bool) -> Result<()> {
        self.gpu().make_current()?;
        Shard::export(self, into, gradients)
    }

    fn peak_held_bytes(&self) -> usize {
        Shard::peak_held_bytes(self)
    }
}
