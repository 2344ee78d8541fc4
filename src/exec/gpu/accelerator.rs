//! A GPU for a program to run on: its thread only enqueues, on streams, and waits for their end.
//!
//! The order of enqueuing follows the graph: where an op waits for another device's, its thread waits until that one has
//! *enqueued* what makes the message (host signals of the session's heap), and its stream waits until it has *happened* (events,
//! or words that the sender's stream writes). So every event is recorded before anything waits for it, hosts run as far ahead as
//! the graph lets them, and no host waits for a GPU inside a step.

use super::super::device::{Batch, State, Update};
use super::super::plan::Port;
use super::super::program::{Machine, Program, Runner, Twofold};
use super::super::record::{DeviceRecord, OpRecord};
use super::super::shared::Shared;
use super::super::signal::{Aborted, Patience as _};
use super::super::watch::Fault;
use super::post::GpuLink;
use crate::cuda::{Address, Buffer, Clock, Event, Gpu, Marks, Range, Run, Shard};
use crate::model::Parameters;
use crate::op::{Kind, Op};
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A GPU with what its thread needs.
pub struct Accelerator {
    number: u32,
    gpu: Arc<Gpu>,
    shard: Shard,
    shared: Arc<Shared>,
    /// By channel and slot: messages between two ops of this device.
    local: BTreeMap<(usize, usize), Buffer>,
    marks: Marks,
    /// This step's.
    clock: Option<Clock>,
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
        let marks = Marks::new(&gpu);
        let accelerator = Accelerator { number, gpu, shard, shared: shared.clone(), local, marks, clock: None };
        Ok((number, Box::new(Program::new(number, accelerator, link, shared.clone(), fault))))
    }

    fn clock(&self) -> Result<&Clock> {
        self.clock.as_ref().context("a step has begun")
    }
}

impl Machine for Accelerator {
    type Place = Address;
    type Moment = Event;

    fn begin(&mut self, batch: &Arc<Batch>) -> Result<()> {
        self.gpu.make_current()?;
        self.marks.clear();
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
        self.marks.op(number as u32);
        let (stage, microbatch, marks) = (op.stage(), op.microbatch(), &mut self.marks);
        match op.kind() {
            Kind::F => self.shard.forward(stage, microbatch, input, output, marks),
            Kind::I => self.shard.backward_input(stage, microbatch, input, output, marks),
            Kind::W => self.shard.backward_weight(stage, microbatch, marks),
            Kind::B => {
                self.shard.backward_input(stage, microbatch, input, output, marks)?;
                self.shard.backward_weight(stage, microbatch, marks)
            }
        }
    }

    fn give(&mut self, gradient: Twofold, mut place: Address) -> Result<()> {
        let own = match gradient {
            Twofold::Tied => self.shard.tied_gradient().map(|(_, own)| own).into_iter().collect(),
            Twofold::Stage(stage) => self.shard.stage_gradient(stage),
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
            Twofold::Stage(stage) => self.shard.stage_inbox(stage)?,
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
            Twofold::Stage(stage) => self.shard.add_stage_inbox(stage),
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

    /// Notes meanwhile how far the GPU is, so that a hang can be named and ended.
    fn drain(&mut self, is_done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        let mut done = 0;
        let watch = &self.shared.watch;
        watch.note_wait(self.number, true);
        let mut spins = 0_u32;
        let streams = [&self.gpu.compute, &self.gpu.send, &self.gpu.receive];
        let mut all_done = || -> Result<bool> {
            for stream in streams {
                if !stream.is_done()? {
                    return Ok(false);
                }
            }
            is_done()
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
