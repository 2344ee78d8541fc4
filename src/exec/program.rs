//! The program of a device: its ops in order, then the ops that end a step. It is the same for backends that compute and for
//! backends that enqueue.

use super::device::{Batch, State, Update};
use super::link::Link;
use super::message::{GradientParts, Message, Use};
use super::plan::BufferUse;
use super::record::{DeviceRecord, OpRecord};
use super::shared::Shared;
use super::watch::Fault;
use anyhow::{Result, bail};
use pipesim_schedule::epilogue::{GradientSync, StepNode, StepOp};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::schedule::Overlap;
use pipesim_train::compute::OptimizerShare;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One device of a session: runs its program, and records what happened when.
pub trait Runner: Send {
    /// Runs a step. Without `update`, forward and backward only, or forwards only if its turn says so.
    fn step(&mut self, turn: Turn, batch: &Arc<Batch>, update: Option<&Update>) -> Result<DeviceRecord>;

    /// Calls a function with the device's state, between steps.
    fn call(&mut self, call: DeviceCall) -> Result<()>;

    /// Frees its resources. After a failure, in this or another session, it frees only what needs no wait for the device.
    fn end(self: Box<Self>, failed: bool);
}

/// Position of a step in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number of the step, from 0.
    pub step: u64,
    /// Number of earlier steps with backwards.
    pub backwards: u64,
    /// Number of earlier steps with an update.
    pub updates: u64,
    /// Whether it follows the previous step without a barrier.
    pub follows: bool,
    /// Whether it runs forwards only, all others being skipped.
    pub forwards_only: bool,
}

/// A function of a device's state.
pub type DeviceCall = Box<dyn FnOnce(&mut dyn State) -> Result<()> + Send>;

/// A rank's devices, with their numbers.
pub type Runners = Vec<(u32, Box<dyn Runner>)>;

/// What executes the ops of a program: [`super::Host`], which computes, or a GPU, which enqueues.
pub trait Backend: Send {
    /// Whether calls only enqueue. If so, any blocking of the thread counts as a wait, including calls of a driver.
    const ENQUEUES: bool = false;

    /// Location of data.
    type Location: Copy;
    /// A point in time, readable after the step.
    type Timestamp: Send;

    /// Begins a step with these tokens. With `forwards_only`, nothing follows a forward.
    fn begin(&mut self, batch: &Arc<Batch>, forwards_only: bool) -> Result<()>;

    /// Returns the time at which everything requested so far is done.
    fn timestamp(&mut self) -> Result<Self::Timestamp>;

    /// Converts a time to nanoseconds on the clock of all devices, after the step.
    fn ns(&self, timestamp: &Self::Timestamp) -> Result<u64>;

    /// Returns the location of a message between two ops of this device.
    fn local(&self, port: &BufferUse) -> Option<Self::Location>;

    /// Computes `op`, number `number` of the program. `input` comes from the previous stage (F) or the next (I, B) and is absent at
    /// the ends; `output` is filled for the following stage and is absent at the ends and for W.
    fn compute(
        &mut self,
        number: usize,
        op: Op,
        input: Option<Self::Location>,
        output: Option<Self::Location>,
    ) -> Result<()>;

    /// Begins the copy `op` to or from the host, number `index` of the graph, behind `number` computed ops. It runs next to them, after
    /// the copies `after`.
    fn copy(&mut self, _number: usize, _index: usize, op: Op, _after: &[usize]) -> Result<()> {
        bail!("expected devices that copy to the host, found others ({op}): run another schedule")
    }

    /// Waits for copies to and from the host, by their numbers in the graph.
    fn wait_for_copies(&mut self, _copies: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Copies this worker's part of a gradient to `place`.
    fn copy_gradient(&mut self, gradient: GradientSync, place: Self::Location) -> Result<()>;

    /// Adds another worker's part of a gradient, from `place`.
    fn add_gradient(&mut self, gradient: GradientSync, place: Self::Location) -> Result<()>;

    /// Replaces this worker's part of a gradient with the one at `place`: the first summand, unless it is this worker's own.
    fn set_gradient(&mut self, gradient: GradientSync, place: Self::Location) -> Result<()>;

    /// Gathers the parameters of a gradient's group by a collective call, after each member has updated its slice; for
    /// gradients without message buffers.
    fn gather_values(&mut self, _gradient: GradientSync) -> Result<()> {
        Ok(())
    }

    /// Copies the parameters that this worker has updated to their places in `place`.
    fn copy_values(&mut self, _gradient: GradientSync, _place: Self::Location) -> Result<()> {
        bail!("expected devices that exchange parameters by messages, found others with collective calls")
    }

    /// Replaces parameters by the ones at `place`, which the worker with the share `of` has updated.
    fn replace_values(&mut self, _gradient: GradientSync, _of: OptimizerShare, _place: Self::Location) -> Result<()> {
        bail!("expected devices that exchange parameters by messages, found others with collective calls")
    }

    /// Sums a gradient over its group by a collective call; for gradients without message buffers.
    fn sum_gradient(&mut self, _gradient: GradientSync) -> Result<()> {
        Ok(())
    }

    /// Squares the gradients. [`Backend::squares`] returns the result once everything is done.
    fn square(&mut self) -> Result<()>;

    /// Returns the partial sums of squares of the gradient norm, by order number.
    fn squares(&mut self) -> Result<Vec<(usize, f64)>>;

    /// Updates the parameters with gradients times `scale`, then clears the gradients.
    fn update(&mut self, update: &Update, scale: f32) -> Result<()>;

    /// Waits until everything requested is done, including the link's transfers, which `is_done` reports.
    fn drain(&mut self, _is_done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        Ok(())
    }

    /// Returns the loss of each micro-batch that ended here, 0 for the others; `None` without the head. Everything is done.
    fn losses(&mut self) -> Result<Option<Vec<f32>>>;

    /// Completes the record of the step, which has the host's times. `sent` holds the link's times.
    fn finish(&mut self, sent: &BTreeMap<usize, [Self::Timestamp; 2]>, record: &mut DeviceRecord) -> Result<()>;

    fn state(&mut self) -> &mut dyn State;

    /// Whether its resources must be left to the end of the process, because freeing them would wait for a failed device.
    fn is_stuck(&self, _failed: bool) -> bool {
        false
    }

    /// Aborts collective calls without waiting, after a device failed here or elsewhere.
    fn abort(&mut self) {}
}

/// The program of a pipeline device, run by one worker on its backend.
pub struct Program<M: Backend> {
    /// Number of the worker.
    number: u32,
    /// The pipeline device.
    device: u32,
    pub(super) backend: M,
    pub(super) link: Box<dyn Link<Location = M::Location, Timestamp = M::Timestamp>>,
    shared: Arc<Shared>,
    /// Step ops of this step, with start and end.
    steps: Vec<(StepOp, M::Timestamp, M::Timestamp)>,
    fault: Option<Fault>,
}

impl<M: Backend> Runner for Program<M> {
    fn step(&mut self, turn: Turn, batch: &Arc<Batch>, update: Option<&Update>) -> Result<DeviceRecord> {
        let Turn { step, updates, follows, forwards_only, .. } = turn;
        let shared = self.shared.clone();
        let begun = shared.watch.now_ns();
        self.steps.clear();
        self.note_progress();
        self.link.begin(forwards_only)?;
        self.backend.begin(batch, forwards_only)?;
        shared.watch.note_done(self.number, 0);
        // All devices wait for the last one; the step's time 0 is when that is ready.
        let mut record = DeviceRecord { begun, ready: shared.watch.now_ns(), ..DeviceRecord::default() };
        if !follows {
            self.waiting(|program| Ok(shared.reductions.meet(&shared.heap, program.number, step, &shared.watch)?))?;
        }
        match forwards_only {
            true => self.forwards(turn, &mut record)?,
            false => self.pipeline(turn, update.map(|_| updates), &mut record)?,
        }
        if let Some(update) = update {
            record.norm = self.end(updates, update)?;
        }
        self.backend.drain(&mut || self.link.is_done())?;
        record.losses = self.backend.losses()?;
        record.finished = shared.watch.now_ns();
        for (op, start, end) in &self.steps {
            record.steps.push((*op, self.backend.ns(start)?, self.backend.ns(end)?));
        }
        self.backend.finish(&self.link.sent(), &mut record)?;
        shared.watch.note_wait(self.number, false);
        Ok(record)
    }

    fn call(&mut self, call: DeviceCall) -> Result<()> {
        self.note_progress();
        call(self.backend.state())?;
        self.shared.watch.note_wait(self.number, false);
        Ok(())
    }

    fn end(mut self: Box<Self>, failed: bool) {
        if self.backend.is_stuck(failed) {
            self.link.abort();
            self.backend.abort();
            std::mem::forget(self);
        }
    }
}

impl<M: Backend> Program<M> {
    /// Creates the program of worker `number`.
    pub fn new(
        number: u32,
        backend: M,
        link: Box<dyn Link<Location = M::Location, Timestamp = M::Timestamp>>,
        shared: Arc<Shared>,
        fault: Option<Fault>,
    ) -> Program<M> {
        let device = shared.mesh.device(number);
        Program { number, device, backend, link, shared, steps: Vec::new(), fault }
    }

    /// Runs the pipeline ops of a step (a program begins with one that computes), and in a step with an update the sums of gradients that may begin between them. An overlapped
    /// pair waits for both inputs first, unless the graph specifies otherwise, and puts both outputs last.
    fn pipeline(&mut self, turn: Turn, updates: Option<u64>, record: &mut DeviceRecord) -> Result<()> {
        let shared = self.shared.clone();
        let graph = &shared.plan.graph;
        let range = graph.schedule().range(self.device);
        let at_once = graph.overlap() != Overlap::Runtime;
        let mut index = range.start;
        while index < range.end {
            let last = if graph.op(index).opens_pair() { index + 1 } else { index };
            let mut ready = shared.watch.now_ns();
            let mut inputs = [None; 2];
            for (input, op) in inputs.iter_mut().zip(index..=last) {
                if op == index || at_once {
                    *input = self.wait(op, turn)?;
                }
            }
            for (input, op) in inputs.into_iter().zip(index..=last) {
                let input = if op == index || at_once { input } else { self.wait(op, turn)? };
                self.compute(op, turn, input, OpRecord { index: op, turn: ready, ..OpRecord::default() }, record)?;
                ready = shared.watch.now_ns();
            }
            let computed = index..=last;
            index = last + 1;
            // Copies begin before puts and sums of gradients, which may wait for other workers.
            while index < range.end && !graph.op(index).kind().is_compute() {
                self.copy(index, record)?;
                index += 1;
            }
            for op in computed {
                self.put(op, turn, record)?;
            }
            for node in updates.map_or(0..0, |_| shared.plan.epilogue.behind(last)) {
                self.sum(&shared.plan.epilogue.nodes()[node], updates.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Runs the forwards of a step, in the program's order. The backwards that let a put follow the read of the last message in its
    /// buffer are missing, so every put waits for that. No wait is for an op that the whole step runs later: its graph orders those
    /// reads before the puts, too.
    fn forwards(&mut self, turn: Turn, record: &mut DeviceRecord) -> Result<()> {
        let shared = self.shared.clone();
        let graph = &shared.plan.graph;
        let range = graph.schedule().range(self.device);
        for index in range.clone().filter(|&index| graph.op(index).kind() == Kind::F) {
            let ready = shared.watch.now_ns();
            let input = self.input(index, turn)?;
            self.compute(index, turn, input, OpRecord { index, turn: ready, ..OpRecord::default() }, record)?;
            if !M::ENQUEUES {
                shared.watch.note_done(self.number, index + 1 - range.start);
            }
            self.put(index, turn, record)?;
        }
        Ok(())
    }

    /// Returns the message of `port` if it goes to another device.
    fn crossing(&self, port: &Option<BufferUse>, turn: Turn) -> Option<Message> {
        let port = port.as_ref()?;
        let is_forward = self.shared.plan.graph.op(port.message).kind() == Kind::F;
        let step = if is_forward { turn.step } else { turn.backwards };
        let message = self.shared.buffers.message(self.number, port, step)?;
        Some(if turn.forwards_only { Message { credit: Some(message.value - 1), ..message } } else { message })
    }

    /// Returns the copies to and from the host that op `index` waits for.
    fn copies_before(&self, index: usize) -> Vec<usize> {
        let graph = &self.shared.plan.graph;
        let waits = graph.waits(index).iter().map(|wait| wait.op as usize);
        waits.filter(|&op| !graph.op(op).kind().is_compute()).collect()
    }

    /// Begins the copy `index`. What computes before it has ended, and the queue orders it after other copies.
    fn copy(&mut self, index: usize, record: &mut DeviceRecord) -> Result<()> {
        let (shared, after) = (self.shared.clone(), self.copies_before(index));
        if let Some(fault) = &self.fault {
            fault.strike(self.number, record.ops.len() + record.host_copies.len(), &shared.watch)?;
        }
        let turn = shared.watch.now_ns();
        self.backend.copy(record.ops.len(), index, shared.plan.graph.op(index), &after)?;
        // The backend knows its times once it has ended.
        record.host_copies.push(OpRecord { index, turn, start: turn, end: turn, put_start: turn, put_end: turn });
        Ok(())
    }

    /// Waits for what op `index` needs: copies from the host, and its input, whose location it returns.
    fn wait(&mut self, index: usize, turn: Turn) -> Result<Option<M::Location>> {
        let copies = self.copies_before(index);
        if !copies.is_empty() {
            self.waiting(|program| program.backend.wait_for_copies(&copies))?;
        }
        self.input(index, turn)
    }

    /// Waits for the input of op `index`, and returns its location.
    fn input(&mut self, index: usize, turn: Turn) -> Result<Option<M::Location>> {
        let port = &self.shared.plan.inputs[index];
        let Some(message) = self.crossing(port, turn) else {
            return Ok(port.as_ref().and_then(|port| self.backend.local(port)));
        };
        self.waiting(|program| program.link.wait(message)).map(Some)
    }

    /// Runs `work`, which may wait for other devices, recorded as a wait.
    pub(super) fn waiting<T>(&mut self, work: impl FnOnce(&mut Program<M>) -> Result<T>) -> Result<T> {
        self.shared.watch.note_wait(self.number, true);
        let done = work(self)?;
        self.shared.watch.note_wait(self.number, M::ENQUEUES);
        Ok(done)
    }

    /// Restarts the wait of a backend that only enqueues.
    fn note_progress(&self) {
        if M::ENQUEUES {
            self.shared.watch.note_wait(self.number, true);
        }
    }

    /// Computes op `index`, whose input has arrived.
    fn compute(
        &mut self,
        index: usize,
        turn: Turn,
        input: Option<M::Location>,
        times: OpRecord,
        record: &mut DeviceRecord,
    ) -> Result<()> {
        let shared = self.shared.clone();
        if let Some(fault) = &self.fault {
            fault.strike(self.number, record.ops.len() + record.host_copies.len(), &shared.watch)?;
        }
        let port = &shared.plan.outputs[index];
        let output = match self.crossing(port, turn) {
            Some(message) => Some(self.waiting(|program| program.link.send_buffer(message))?),
            None => port.as_ref().and_then(|port| self.backend.local(port)),
        };
        let start = shared.watch.now_ns();
        self.backend.compute(record.ops.len(), shared.plan.graph.op(index), input, output)?;
        let end = shared.watch.now_ns();
        self.note_progress();
        if let Some(message) = self.crossing(&shared.plan.inputs[index], turn) {
            self.waiting(|program| program.link.release(message))?;
        }
        record.ops.push(OpRecord { start, end, put_start: end, put_end: end, ..times });
        Ok(())
    }

    /// Puts the output of op `index`, one of the last two computed, if it goes to another device.
    fn put(&mut self, index: usize, turn: Turn, record: &mut DeviceRecord) -> Result<()> {
        let Some(message) = self.crossing(&self.shared.plan.outputs[index], turn) else { return Ok(()) };
        let computed = record.ops.last().map_or(0, |op| op.end);
        self.waiting(|program| program.link.put(message))?;
        if let Some(op) = record.ops.iter_mut().rev().find(|op| op.index == index) {
            (op.put_start, op.put_end) = (computed, self.shared.watch.now_ns());
        }
        Ok(())
    }

    /// Runs the step ops of this device, after the pipeline. Returns the gradient norm if gradients are to be clipped.
    fn end(&mut self, updates: u64, update: &Update) -> Result<Option<f64>> {
        let shared = self.shared.clone();
        let (mut scale, mut norm) = (1.0, None);
        for node in shared.plan.epilogue.of(self.device).filter(|node| node.behind.is_none()) {
            match (node.op, update.clip) {
                (StepOp::Put | StepOp::Reduce, _) => self.sum(node, updates)?,
                (StepOp::PutValues, _) => self.put_values(&node.gradients, updates)?,
                (StepOp::Gather, _) => self.gather(&node.gradients, updates)?,
                (StepOp::Norm, Some(clip)) => scale = clip_scale(*norm.insert(self.norm(updates)?), clip),
                (StepOp::Norm, None) => {}
                (StepOp::Optimizer, _) => {
                    self.timed(StepOp::Optimizer, |program| program.backend.update(update, scale))?;
                }
            }
        }
        Ok(norm)
    }

    /// Runs a node that sums gradients.
    fn sum(&mut self, node: &StepNode, updates: u64) -> Result<()> {
        match node.op {
            StepOp::Put => self.put_gradients(&node.gradients, updates),
            _ => self.reduce(&node.gradients, updates),
        }
    }

    /// Returns the parts of `gradient` in an update, or of its parameters.
    pub(super) fn parts(&self, gradient: GradientSync, updates: u64, what: Use) -> Option<GradientParts> {
        self.shared.buffers.parts(self.number, gradient, updates, what)
    }

    /// Computes the gradient norm over all workers, on the hosts. It is a barrier. Replicas hold the same gradients, so only the
    /// first one's count, unless each holds a slice.
    fn norm(&mut self, updates: u64) -> Result<f64> {
        let shared = self.shared.clone();
        self.timed(StepOp::Norm, |program| program.backend.square())?;
        self.backend.drain(&mut || self.link.is_done())?;
        let squares = self.backend.squares()?;
        let counts = shared.mesh.zero || shared.mesh.coordinate(self.number).data == 0;
        let counted = if counts { &squares[..] } else { &[] };
        shared.reductions.put_norms(&shared.heap, self.number, updates, counted);
        let sum = self.waiting(|_| Ok(shared.reductions.sum_norms(&shared.heap, updates, &shared.watch)?))?;
        Ok(sum.sqrt())
    }

    /// Puts this worker's part of gradients that other workers also hold.
    fn put_gradients(&mut self, gradients: &[GradientSync], updates: u64) -> Result<()> {
        self.timed(StepOp::Put, |program| {
            for &gradient in gradients {
                let Some(parts) = program.parts(gradient, updates, Use::Gradients) else { continue };
                let out = parts.messages[parts.own];
                let place = program.waiting(|program| program.link.send_buffer(out))?;
                program.backend.copy_gradient(gradient, place)?;
                program.waiting(|program| program.link.put(out))?;
            }
            Ok(())
        })
    }

    /// Adds the other workers' parts. All members of a group sum in the same order, so that they hold the same bits. The sum of two is
    /// the same in both orders, so the first two members add to their own part; others begin with the first part.
    fn reduce(&mut self, gradients: &[GradientSync], updates: u64) -> Result<()> {
        for &gradient in gradients {
            let Some(parts) = self.parts(gradient, updates, Use::Gradients) else {
                self.timed(StepOp::Reduce, |program| program.backend.sum_gradient(gradient))?;
                continue;
            };
            let mut places = Vec::with_capacity(parts.messages.len());
            for (number, &message) in parts.messages.iter().enumerate() {
                if number != parts.own {
                    places.push(self.waiting(|program| program.link.wait(message))?);
                } else if number > 1 {
                    places.push(self.link.send_buffer(message)?);
                }
            }
            self.timed(StepOp::Reduce, |program| {
                let mut places = places.into_iter();
                if parts.own > 1 {
                    places.next().map_or(Ok(()), |first| program.backend.set_gradient(gradient, first))?;
                }
                places.try_for_each(|place| program.backend.add_gradient(gradient, place))
            })?;
            let others = parts.messages.iter().enumerate().filter(|&(number, _)| number != parts.own);
            others.map(|(_, &message)| message).try_for_each(|message| self.link.release(message))?;
        }
        Ok(())
    }

    pub(super) fn timed(&mut self, op: StepOp, work: impl FnOnce(&mut Program<M>) -> Result<()>) -> Result<()> {
        let start = self.backend.timestamp()?;
        work(self)?;
        let end = self.backend.timestamp()?;
        self.steps.push((op, start, end));
        Ok(())
    }
}

/// Factor that scales a gradient of norm `norm` down to `clip`, as in `torch.nn.utils.clip_grad_norm_`.
fn clip_scale(norm: f64, clip: f32) -> f32 {
    (f64::from(clip) / (norm + 1e-6)).min(1.0) as f32
}
