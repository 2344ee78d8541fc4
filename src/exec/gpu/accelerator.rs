//! The backend of a GPU: its thread only enqueues work on streams, and waits for the end of a step.
//!
//! Enqueuing follows the graph. If an op waits for another device, its thread waits until that device has *enqueued* the work that
//! produces the message (host signals in the session's heap), and its stream waits until that work is *done* (events, or words
//! written by the sender's stream). Thus every event is recorded before anything waits for it, hosts run as far ahead as the graph
//! allows, and no host waits for a GPU inside a step.

use super::super::device::{Batch, State, Update};
use super::super::plan::BufferUse;
use super::super::program::{Backend, Program, Runner};
use super::super::record::{DeviceRecord, OpRecord};
use super::super::shared::Shared;
use super::super::signal::{Aborted, WaitPolicy as _};
use super::super::watch::{Fault, called_off_since};
use super::endpoint::GpuLink;
use super::sums::SumsGuard;
use anyhow::{Context as _, Result};
use pipesim_gpu::{Address, Buffer, Clock, Event, Gpu, Range};
use pipesim_schedule::epilogue::GradientSync;
use pipesim_schedule::op::{Kind, Op};
use pipesim_train::compute::cuda::{Cuda, DeviceCollective, EventTimer};
use pipesim_train::model::StageModule;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Limit of pending work on a stream, beyond the part of an op enqueued last.
const MOST_ENQUEUED: u64 = 512;

/// Limit of pending copies to and from the host, each of all buffers of an op.
const MOST_COPIES: usize = 4;

/// How long the thread sleeps between two looks at the GPU.
const PAUSE: Duration = Duration::from_micros(50);

/// How long before a step its clock may have been calibrated.
const CLOCK_LIFE_NS: u64 = 2_000_000_000;

/// By number of group: the workers that hold the same stages.
type DataGroups = BTreeMap<usize, Box<dyn DeviceCollective>>;

/// A GPU as the backend of a program.
pub struct Accelerator {
    number: u32,
    gpu: Arc<Gpu>,
    module: StageModule<Cuda>,
    data: DataGroups,
    guard: SumsGuard,
    shared: Arc<Shared>,
    /// By channel and slot: messages between two ops of this device.
    local: BTreeMap<(usize, usize), Buffer>,
    marks: EventTimer,
    /// Clock of this step.
    clock: Option<Clock>,
    /// Clock of the next step, calibrated while this one runs.
    next_clock: Option<Clock>,
    /// Number of ops done.
    done: usize,
    /// Start and end of this step's copies to and from the host, by their numbers in the graph.
    copies: BTreeMap<usize, [Arc<Event>; 2]>,
    /// By number of computed ops done, of all and of the forwards alone: the position in the program.
    positions: [Vec<usize>; 2],
}

impl Accelerator {
    /// Creates worker `number` of a session, with its part of the model, its groups, and its program.
    pub fn runner(
        number: u32,
        mut module: StageModule<Cuda>,
        link: GpuLink,
        data: DataGroups,
        guard: SumsGuard,
        shared: &Arc<Shared>,
        fault: Option<Fault>,
    ) -> Result<(u32, Box<dyn Runner>)> {
        let gpu = module.gpu().clone();
        let (plan, range) = (&shared.plan, shared.plan.graph.schedule().range(shared.mesh.device(number)));
        module.reserve(range.clone().map(|index| plan.graph.op(index)))?;
        let mut local = BTreeMap::new();
        for port in range.clone().filter_map(|index| plan.outputs[index]).filter(|port| !port.crosses()) {
            if let std::collections::btree_map::Entry::Vacant(place) = local.entry((port.channel, port.slot)) {
                place.insert(Buffer::new(gpu.context(), module.hidden_bytes())?);
            }
        }
        let positions_of = |is: fn(Kind) -> bool| {
            let computed = range.clone().filter(|&index| is(plan.graph.op(index).kind()));
            computed.map(|index| index - range.start).chain([range.len()]).collect()
        };
        let positions = [positions_of(Kind::is_compute), positions_of(|kind| kind == Kind::F)];
        // Created now, so that few are created in a step.
        gpu.events().reserve(5 * range.len())?;
        let marks = EventTimer::new(&gpu);
        limit(&gpu, shared);
        let (clock, next_clock, done) = (None, None, 0);
        let shared = shared.clone();
        let accelerator = Accelerator {
            number,
            gpu,
            module,
            data,
            guard,
            shared: shared.clone(),
            local,
            marks,
            clock,
            next_clock,
            done,
            copies: BTreeMap::new(),
            positions,
        };
        Ok((number, Box::new(Program::new(number, accelerator, link, shared, fault))))
    }

    fn clock(&self) -> Result<&Clock> {
        self.clock.as_ref().context("a step has begun")
    }

    /// Records the progress of the GPU, so that a hang can be reported and ended.
    fn note_done(&mut self) -> Result<()> {
        let before = self.done;
        while self.marks.span(self.done as u32).map_or(Ok(false), |(_, end)| end.is_done())? {
            self.done += 1;
        }
        if self.done > before {
            let positions = &self.positions[usize::from(self.module.forwards_only)];
            self.shared.watch.note_done(self.number, positions[self.done]);
            self.shared.watch.note_wait(self.number, true);
        }
        Ok(())
    }

    /// Polls until `is_over`, or until the run is aborted.
    fn wait_until(&mut self, mut is_over: impl FnMut(&Accelerator) -> Result<bool>) -> Result<()> {
        let mut spins = 0_u32;
        while !is_over(self)? {
            if self.shared.watch.is_aborted() {
                return Err(Aborted.into());
            }
            self.note_done()?;
            spins += 1;
            if spins < 100 { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
        Ok(())
    }

    /// Returns the clock that was calibrated during the last step, unless that is long ago.
    fn current_clock(&mut self) -> Result<Clock> {
        let now = || self.shared.watch.now_ns();
        let recent = self.next_clock.take().filter(|clock| now().saturating_sub(clock.host_ns) < CLOCK_LIFE_NS);
        Ok(recent.map_or_else(|| Clock::calibrate(&self.gpu, &now), Ok)?)
    }
}

/// Limits the work that is enqueued on a GPU, for the session whose turn it is.
fn limit(gpu: &Gpu, shared: &Arc<Shared>) {
    let shared = Arc::downgrade(shared); // the GPU outlives the session
    let pause = move || {
        if shared.upgrade().is_none_or(|shared| shared.watch.is_aborted()) {
            return Err(Aborted.into());
        }
        std::thread::sleep(PAUSE);
        Ok(())
    };
    gpu.limit(Some((MOST_ENQUEUED, Arc::new(pause))));
}

/// Returns the group that sums a gradient.
fn group(data: &mut DataGroups, number: Option<usize>) -> Result<&mut dyn DeviceCollective> {
    let group = number.and_then(|number| data.get_mut(&number));
    Ok(&mut **group.context("expected a group that sums the gradient, found none")?)
}

impl Backend for Accelerator {
    const ENQUEUES: bool = true;

    type Location = Address;
    type Timestamp = Event;

    fn begin(&mut self, batch: &Arc<Batch>, forwards_only: bool) -> Result<()> {
        self.gpu.make_current()?;
        limit(&self.gpu, &self.shared);
        self.marks.clear();
        self.copies.clear();
        self.done = 0;
        self.module.forwards_only = forwards_only;
        self.module.begin(&batch.inputs, &batch.targets)?;
        // In the order of groups on every device, behind the tensor-parallel ranks.
        self.data.values_mut().try_for_each(|group| group.begin())?;
        self.clock = Some(self.current_clock()?);
        Ok(())
    }

    fn timestamp(&mut self) -> Result<Event> {
        Ok(self.gpu.mark(&self.gpu.compute)?)
    }

    fn ns(&self, timestamp: &Event) -> Result<u64> {
        Ok(self.clock()?.ns(timestamp)?)
    }

    fn local(&self, port: &BufferUse) -> Option<Address> {
        self.local.get(&(port.channel, port.slot)).map(Buffer::address)
    }

    fn compute(&mut self, number: usize, op: Op, input: Option<Address>, output: Option<Address>) -> Result<()> {
        let _range = Range::new(&op.to_string());
        self.note_done()?;
        self.marks.op(number as u32);
        self.module.enqueue(op, input, output, &mut self.marks)
    }

    fn copy(&mut self, _number: usize, index: usize, op: Op, after: &[usize]) -> Result<()> {
        let pending = |this: &Accelerator| -> Result<usize> {
            let recent = this.copies.values().rev().take(MOST_COPIES);
            recent.map(|[_, end]| Ok(usize::from(!end.is_done()?))).sum()
        };
        self.wait_until(|this| Ok(pending(this)? < MOST_COPIES))?;
        let end = |number: &usize| self.copies.get(number).map(|[_, end]| end.clone());
        let after: Vec<Arc<Event>> = after.iter().filter_map(end).collect();
        let times = self.module.enqueue_copy(op, &after)?;
        self.copies.insert(index, times);
        Ok(())
    }

    fn wait_for_copies(&mut self, copies: &[usize]) -> Result<()> {
        let mut ends = copies.iter().filter_map(|number| self.copies.get(number));
        Ok(ends.try_for_each(|[_, end]| self.gpu.compute.wait(end))?)
    }

    fn copy_gradient(&mut self, gradient: GradientSync, place: Address) -> Result<()> {
        self.module.copy_gradient(gradient, place)
    }

    fn set_gradient(&mut self, gradient: GradientSync, place: Address) -> Result<()> {
        self.module.replace_gradient(gradient, place)
    }

    fn add_gradient(&mut self, gradient: GradientSync, place: Address) -> Result<()> {
        self.module.merge_gradient(gradient, place)
    }

    fn sum_gradient(&mut self, gradient: GradientSync) -> Result<()> {
        let number = self.shared.groups.of_gradient(self.number, gradient);
        self.module.sum_gradient(gradient, group(&mut self.data, number)?)
    }

    fn gather_values(&mut self, gradient: GradientSync) -> Result<()> {
        let number = self.shared.groups.of_gradient(self.number, gradient);
        self.module.gather_values(gradient, group(&mut self.data, number)?)
    }

    fn square(&mut self) -> Result<()> {
        self.module.square()
    }

    fn squares(&mut self) -> Result<Vec<(usize, f64)>> {
        self.module.squared_norms()
    }

    fn update(&mut self, update: &Update, scale: f32) -> Result<()> {
        self.module.update(update.number, &update.adamw, scale)?;
        self.module.zero_gradients()
    }

    /// Records the progress of the GPU meanwhile, and reads its clock for the next step.
    fn drain(&mut self, is_done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        self.shared.watch.note_wait(self.number, true);
        if self.next_clock.is_none() {
            self.next_clock = Clock::calibrate_soon(&self.gpu, &|| self.shared.watch.now_ns())?;
        }
        self.wait_until(|this| {
            this.guard.check(&this.shared)?;
            for stream in [&this.gpu.compute, &this.gpu.send, &this.gpu.receive] {
                if !stream.is_done()? {
                    return Ok(false);
                }
            }
            Ok(this.module.has_copied()? && is_done()?)
        })
    }

    fn losses(&mut self) -> Result<Option<Vec<f32>>> {
        self.module.has_head().then(|| self.module.losses()).transpose()
    }

    /// Replaces the host's times of enqueuing by the times of events.
    fn finish(&mut self, sent: &BTreeMap<usize, [Event; 2]>, record: &mut DeviceRecord) -> Result<()> {
        let clock = self.clock()?;
        let mut before = record.ready;
        for (number, op) in record.ops.iter_mut().enumerate() {
            let (start, end) = self.marks.span(number as u32).context("every op has its events")?;
            let (start, end) = (clock.ns(start)?, clock.ns(end)?);
            let (put_start, put_end) = match sent.get(&op.index) {
                Some([start, end]) => (clock.ns(start)?, clock.ns(end)?),
                None => (end, end),
            };
            // If an op waits for no other device, time before it is a gap in the stream, not a wait.
            let waits = self.shared.plan.inputs[op.index].is_some_and(|port| port.crosses());
            let turn = if waits { before.min(start) } else { start };
            *op = OpRecord { index: op.index, turn, start, end, put_start, put_end };
            before = end;
        }
        for copy in &mut record.host_copies {
            let [start, end] = self.copies.get(&copy.index).context("every copy has its events")?;
            let (start, end) = (clock.ns(start)?, clock.ns(end)?);
            *copy = OpRecord { start, end, put_start: end, put_end: end, ..*copy };
        }
        record.timings = self.marks.timings()?;
        record.clock_uncertainty_ns = clock.uncertainty_ns;
        record.puts_beside_compute = true;
        Ok(())
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.module
    }

    /// After a failure enqueued work may never finish, and freeing memory would wait for it, on all GPUs of the process.
    fn is_stuck(&self, failed: bool) -> bool {
        failed || called_off_since().is_some()
    }

    fn abort(&mut self) {
        self.guard.abort();
    }
}
