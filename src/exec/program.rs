//! A device's program: its ops in order, op by op, then what ends a step. Written once, for threads that compute and for
//! threads that enqueue.

use super::device::{Batch, State, Update};
use super::link::Link;
use super::mailbox::Message;
use super::plan::Port;
use super::record::{DeviceRecord, OpRecord};
use super::shared::Shared;
use super::watch::Fault;
use crate::ending::{StepOp, Twofold};
use crate::op::Op;
use crate::schedule::Overlap;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One device of a session with the thread that it runs on: runs its program, waits for its end, says what happened when.
pub trait Runner: Send {
    /// Runs a step. Without `update`, forward and backward only.
    fn step(&mut self, turn: Turn, batch: &Arc<Batch>, update: Option<&Update>) -> Result<DeviceRecord>;

    /// Does something with what it keeps, between steps.
    fn call(&mut self, call: DeviceCall) -> Result<()>;

    /// Gives back what it holds; where its device failed, here or in another session, only what can be given back without waiting
    /// for that.
    fn end(self: Box<Self>, failed: bool);
}

/// Which step of a session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its number, from 0.
    pub step: u64,
    /// How many before it ended with an update.
    pub updates: u64,
    /// Whether it follows the one before at once: no device waits until the others are ready.
    pub follows: bool,
}

/// What is done with a device's state.
pub type DeviceCall = Box<dyn FnOnce(&mut dyn State) -> Result<()> + Send>;

/// A rank's devices with their numbers.
pub type Runners = Vec<(u32, Box<dyn Runner>)>;

/// What a program needs of what it runs on: [`super::Host`], which computes at once, or a GPU, which enqueues.
///
/// Below it the model is there twice, by [`crate::model::Shard`] and by [`crate::cuda::Shard`] with their steps and blocks. The
/// seam at which they can become one lies lower: a trait of at most eighteen calls of the model (embedding, LayerNorm, linear
/// with and without GELU, attention, classifier, each forward and backward; sums, norms, AdamW), of which `cuda/operation.rs` is
/// one side already.
pub trait Machine: Send {
    /// Whether calls only enqueue: then whatever holds its thread up counts as a wait, be it a call of a driver.
    const ENQUEUES: bool = false;

    /// Where data lies.
    type Place: Copy;
    /// A moment, to be read when the step is over.
    type Moment: Send;

    /// Begins a step with these tokens.
    fn begin(&mut self, batch: &Arc<Batch>) -> Result<()>;

    /// The moment at which what was asked for so far is done.
    fn mark(&mut self) -> Result<Self::Moment>;

    /// When a moment was, in nanoseconds on the clock of all devices; once the step is over.
    fn ns(&self, moment: &Self::Moment) -> Result<u64>;

    /// Where a message between two ops of this device lies.
    fn local(&self, port: &Port) -> Option<Self::Place>;

    /// Computes `op`, number `number` of the program. `input` is what the stage before (F) or after (I, B) made, absent at the
    /// ends; `output` is filled for the next stage, absent at the ends and for W.
    fn compute(&mut self, number: usize, op: Op, input: Option<Self::Place>, output: Option<Self::Place>)
    -> Result<()>;

    /// Writes this device's part of a gradient to `place`.
    fn give(&mut self, gradient: Twofold, place: Self::Place) -> Result<()>;

    /// Adds the other device's part, which lies at `place`.
    fn add(&mut self, gradient: Twofold, place: Self::Place) -> Result<()>;

    /// Squares the gradients; [`Machine::squares`] has the result once all is done.
    fn square(&mut self) -> Result<()>;

    /// Partial squares of the gradient norm, by order number.
    fn squares(&mut self) -> Result<Vec<(usize, f64)>>;

    /// Updates the parameters with gradients times `scale`, then clears the gradients.
    fn update(&mut self, update: &Update, scale: f32) -> Result<()>;

    /// Waits until all that was asked for is done, on the link too, as `is_done` says.
    fn drain(&mut self, _is_done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        Ok(())
    }

    /// Loss of each micro-batch that ended here, 0 for the others, in the host's memory; none where the head is not. All is done.
    fn losses(&mut self) -> Result<Option<Vec<f32>>>;

    /// The step is over: completes its record, in which hosts have noted when they did what. `sent` is the link's.
    fn finish(&mut self, sent: &BTreeMap<usize, [Self::Moment; 2]>, record: &mut DeviceRecord) -> Result<()>;

    /// What it keeps from step to step.
    fn state(&mut self) -> &mut dyn State;

    /// Whether what it holds is to be left to the end of the process, since giving it back would wait for what `failed`.
    fn is_stuck(&self, _failed: bool) -> bool {
        false
    }
}

/// A device's program on its machine.
pub struct Program<M: Machine> {
    number: u32,
    machine: M,
    link: Box<dyn Link<Place = M::Place, Moment = M::Moment>>,
    shared: Arc<Shared>,
    /// This step's step ops.
    steps: Vec<(StepOp, M::Moment, M::Moment)>,
    fault: Option<Fault>,
}

impl<M: Machine> Runner for Program<M> {
    fn step(&mut self, turn: Turn, batch: &Arc<Batch>, update: Option<&Update>) -> Result<DeviceRecord> {
        let Turn { step, updates, follows } = turn;
        let shared = self.shared.clone();
        let begun = shared.watch.now_ns();
        self.steps.clear();
        self.note_progress();
        self.link.begin()?;
        self.machine.begin(batch)?;
        shared.watch.note_done(self.number, 0);
        // Nobody passes before the last one has come: the step's time 0 is when that was.
        let mut record = DeviceRecord { begun, ready: shared.watch.now_ns(), ..DeviceRecord::default() };
        if !follows {
            self.waiting(|program| Ok(shared.reductions.meet(&shared.heap, program.number, step, &shared.watch)?))?;
        }
        self.pipeline(step, &mut record)?;
        if let Some(update) = update {
            self.end(updates, update)?;
        }
        self.machine.drain(&mut || self.link.is_done())?;
        record.losses = self.machine.losses()?;
        record.told = shared.watch.now_ns();
        for (op, start, end) in &self.steps {
            record.steps.push((*op, self.machine.ns(start)?, self.machine.ns(end)?));
        }
        self.machine.finish(&self.link.sent(), &mut record)?;
        shared.watch.note_wait(self.number, false);
        Ok(record)
    }

    fn call(&mut self, call: DeviceCall) -> Result<()> {
        self.note_progress();
        call(self.machine.state())?;
        self.shared.watch.note_wait(self.number, false);
        Ok(())
    }

    fn end(mut self: Box<Self>, failed: bool) {
        if self.machine.is_stuck(failed) {
            self.link.abort();
            std::mem::forget(self);
        }
    }
}

impl<M: Machine> Program<M> {
    /// Device number `number` of a session.
    pub fn new(
        number: u32,
        machine: M,
        link: Box<dyn Link<Place = M::Place, Moment = M::Moment>>,
        shared: Arc<Shared>,
        fault: Option<Fault>,
    ) -> Program<M> {
        Program { number, machine, link, shared, steps: Vec::new(), fault }
    }

    /// The pipeline ops of a step. Of an overlapped pair both inputs are awaited first, unless the graph says otherwise, and both
    /// outputs put last.
    fn pipeline(&mut self, step: u64, record: &mut DeviceRecord) -> Result<()> {
        let shared = self.shared.clone();
        let graph = &shared.plan.graph;
        let range = graph.schedule().range(self.number);
        let at_once = graph.overlap() != Overlap::Runtime;
        let mut index = range.start;
        while index < range.end {
            let last = if graph.op(index).opens_pair() { index + 1 } else { index };
            let mut turn = shared.watch.now_ns();
            let mut inputs = [None; 2];
            for (input, op) in inputs.iter_mut().zip(index..=last) {
                if op == index || at_once {
                    *input = self.wait(op, step)?;
                }
            }
            for (input, op) in inputs.into_iter().zip(index..=last) {
                let input = if op == index || at_once { input } else { self.wait(op, step)? };
                self.compute(op, step, input, OpRecord { index: op, turn, ..OpRecord::default() }, record)?;
                turn = shared.watch.now_ns();
            }
            for op in index..=last {
                self.put(op, step, record)?;
            }
            index = last + 1;
        }
        Ok(())
    }

    /// The message at `port` if it goes from one device to another.
    fn crossing(&self, port: &Option<Port>, step: u64) -> Option<Message> {
        port.as_ref().and_then(|port| self.shared.mailboxes.message(port, step))
    }

    /// Waits for the input of op number `index`; where it lies.
    fn wait(&mut self, index: usize, step: u64) -> Result<Option<M::Place>> {
        let port = &self.shared.plan.inputs[index];
        let Some(message) = self.crossing(port, step) else {
            return Ok(port.as_ref().and_then(|port| self.machine.local(port)));
        };
        self.waiting(|program| program.link.wait(message)).map(Some)
    }

    /// What may have to wait for other devices: the watch knows of it.
    fn waiting<T>(&mut self, work: impl FnOnce(&mut Program<M>) -> Result<T>) -> Result<T> {
        self.shared.watch.note_wait(self.number, true);
        let done = work(self)?;
        self.shared.watch.note_wait(self.number, M::ENQUEUES);
        Ok(done)
    }

    /// A thread that only enqueues waits from now on, for whatever call.
    fn note_progress(&self) {
        if M::ENQUEUES {
            self.shared.watch.note_wait(self.number, true);
        }
    }

    /// Computes op number `index`, whose input is there.
    fn compute(
        &mut self,
        index: usize,
        step: u64,
        input: Option<M::Place>,
        times: OpRecord,
        record: &mut DeviceRecord,
    ) -> Result<()> {
        let shared = self.shared.clone();
        if let Some(fault) = &self.fault {
            fault.strike(self.number, record.ops.len(), &shared.watch)?;
        }
        let port = &shared.plan.outputs[index];
        let output = match self.crossing(port, step) {
            Some(message) => Some(self.waiting(|program| program.link.outbox(message))?),
            None => port.as_ref().and_then(|port| self.machine.local(port)),
        };
        let start = shared.watch.now_ns();
        self.machine.compute(record.ops.len(), shared.plan.graph.op(index), input, output)?;
        let end = shared.watch.now_ns();
        self.note_progress();
        if let Some(message) = self.crossing(&shared.plan.inputs[index], step) {
            self.waiting(|program| program.link.release(message))?;
        }
        record.ops.push(OpRecord { start, end, put_start: end, put_end: end, ..times });
        Ok(())
    }

    /// Puts what op number `index`, one of the last two computed, made for another device.
    fn put(&mut self, index: usize, step: u64, record: &mut DeviceRecord) -> Result<()> {
        let Some(message) = self.crossing(&self.shared.plan.outputs[index], step) else { return Ok(()) };
        let computed = record.ops.last().map_or(0, |op| op.end);
        self.waiting(|program| program.link.put(message))?;
        if let Some(op) = record.ops.iter_mut().rev().find(|op| op.index == index) {
            (op.put_start, op.put_end) = (computed, self.shared.watch.now_ns());
        }
        Ok(())
    }

    /// What follows the pipeline: this device's nodes of the ending.
    fn end(&mut self, updates: u64, update: &Update) -> Result<()> {
        let shared = self.shared.clone();
        let mut scale = 1.0;
        for node in shared.plan.ending.of(self.number) {
            match (node.op, update.clip) {
                (StepOp::Put, _) => self.put_gradients(&node.gradients, updates)?,
                (StepOp::Reduce, _) => self.reduce(&node.gradients, updates)?,
                (StepOp::Norm, Some(clip)) => scale = clip_scale(self.norm(updates)?, clip),
                (StepOp::Norm, None) => {}
                (StepOp::Optimizer, _) => {
                    self.timed(StepOp::Optimizer, |program| program.machine.update(update, scale))?;
                }
            }
        }
        Ok(())
    }

    /// The gradient norm over all devices: a barrier by nature. The hosts add it up.
    fn norm(&mut self, updates: u64) -> Result<f64> {
        let shared = self.shared.clone();
        self.timed(StepOp::Norm, |program| program.machine.square())?;
        self.machine.drain(&mut || self.link.is_done())?;
        shared.reductions.put_norms(&shared.heap, self.number, updates, &self.machine.squares()?);
        let sum = self.waiting(|_| Ok(shared.reductions.sum_norms(&shared.heap, updates, &shared.watch)?))?;
        Ok(sum.sqrt())
    }

    /// What goes out of this device's side of a gradient, and what comes in.
    fn exchanged(&self, gradient: Twofold, updates: u64) -> Option<[Message; 2]> {
        match gradient {
            Twofold::Tied => self.shared.mailboxes.tied(self.number, updates),
            Twofold::Stage(chunk) => self.shared.mailboxes.replica(chunk, updates),
        }
    }

    /// Puts its part of gradients that other devices hold too.
    fn put_gradients(&mut self, gradients: &[Twofold], updates: u64) -> Result<()> {
        self.timed(StepOp::Put, |program| {
            for &gradient in gradients {
                let Some([out, _]) = program.exchanged(gradient, updates) else { continue };
                let place = program.waiting(|program| program.link.outbox(out))?;
                program.machine.give(gradient, place)?;
                program.waiting(|program| program.link.put(out))?;
            }
            Ok(())
        })
    }

    /// Adds the other device's part to each.
    fn reduce(&mut self, gradients: &[Twofold], updates: u64) -> Result<()> {
        for &gradient in gradients {
            let Some([_, into]) = self.exchanged(gradient, updates) else { continue };
            let place = self.waiting(|program| program.link.wait(into))?;
            self.timed(StepOp::Reduce, |program| program.machine.add(gradient, place))?;
            self.link.release(into)?;
        }
        Ok(())
    }

    fn timed(&mut self, op: StepOp, work: impl FnOnce(&mut Program<M>) -> Result<()>) -> Result<()> {
        let start = self.machine.mark()?;
        work(self)?;
        let end = self.machine.mark()?;
        self.steps.push((op, start, end));
        Ok(())
    }
}

/// Factor that brings a gradient of norm `norm` down to `clip`, as torch.nn.utils.clip_grad_norm_ does.
fn clip_scale(norm: f64, clip: f32) -> f32 {
    (f64::from(clip) / (norm + 1e-6)).min(1.0) as f32
}
