//! Measuring: several schedules in one process, warmed, their steps interleaved round-robin, so that all see the same machine.

use super::{Error, Event, Observer, Training};
use crate::delivery::Delivery;
use crate::exec::{Session, StepRecord};
use crate::graph::TaskGraph;
use crate::statistics::{median, most_typical};
use std::sync::Arc;

/// What the name of the run that is calibrated on ends with.
pub(super) const CALIBRATING: &str = " (calibrating)";

/// A schedule with the steps measured so far.
pub struct Measured {
    /// What is executed.
    pub graph: Arc<TaskGraph>,
    /// Where.
    pub session: Session,
    /// The steps, in order.
    pub records: Vec<StepRecord>,
}

impl Measured {
    /// A session of `training` for `graph`, nothing measured yet; all ranks must call this together.
    pub fn new(training: &Training, graph: TaskGraph, delivery: Delivery) -> Result<Measured, Error> {
        let graph = Arc::new(graph);
        Ok(Measured { session: training.session_delivering(&graph, delivery)?, graph, records: Vec::new() })
    }

    /// Whether it is measured for its costs alone.
    fn calibrates(&self) -> bool {
        self.graph.schedule().name.ends_with(CALIBRATING)
    }

    /// How much slower the second half of the steps was than the first: the machine's drift.
    pub fn drift(&self) -> f64 {
        let makespans: Vec<f64> = self.records.iter().map(|record| record.makespan_ns() as f64).collect();
        let (first, second) = makespans.split_at(makespans.len() / 2);
        if first.is_empty() { 0.0 } else { median(second) / median(first) - 1.0 }
    }

    /// The recorded step with the most typical makespan and busy time: the one that is drawn.
    pub fn typical_step(&self) -> &StepRecord {
        let busy = |record: &StepRecord| -> u64 {
            record.devices.iter().flat_map(|device| &device.ops).map(|op| op.end - op.start).sum()
        };
        let figures = |record: &StepRecord| (record.makespan_ns() as f64, busy(record) as f64);
        &self.records[most_typical(&self.records.iter().map(figures).collect::<Vec<_>>())]
    }
}

/// Where training first left the numbers; of several runs in the first of them, rather not in what is measured for its costs.
fn diverged(runs: &[Measured]) -> Option<Error> {
    let first = |run: &Measured| {
        let losses = run.records.iter().map(|record| record.loss.unwrap_or_default());
        let (step, loss) = losses.enumerate().find(|(_, loss)| !loss.is_finite())?;
        Some((step, run.calibrates(), loss, run.graph.schedule().name.clone()))
    };
    let found = runs.iter().filter_map(first).min_by_key(|&(step, calibrates, ..)| (step, calibrates));
    found.map(|(step, _, loss, schedule)| Error::Diverged { schedule, step, loss })
}

/// Warms all runs up, then measures `steps` training steps of each, one step of each in turn. What ended that early, where the
/// first run was measured all the same, or what spoils it; runs of which nothing was measured are then left out.
pub fn measure(
    training: &Training,
    runs: &mut Vec<Measured>,
    (warmup, steps): (u32, u32),
    observer: Observer<'_>,
) -> Result<Option<Error>, Error> {
    if steps == 0 {
        return Err(Error::Usage("expected at least 1 step to measure, found 0; ask for one or more".to_string()));
    }
    observer(Event::Begin(u64::from(steps) * runs.len() as u64));
    let warmed = runs.iter_mut().try_for_each(|run| {
        let schedule = run.graph.schedule();
        observer(Event::WarmUp(&schedule.name));
        let batch = training.batch(0, schedule.microbatches)?;
        Ok(training.warm_up(&mut run.session, &batch, warmup as usize)?)
    });
    warmed.inspect_err(|_: &Error| observer(Event::End))?;
    in_turn(runs, steps, training.micro_batch.rows(), observer, |run, number| {
        let schedule = run.graph.schedule();
        observer(Event::Turn(&schedule.name));
        let batch = training.batch(number as usize, schedule.microbatches)?;
        Ok(run.session.step(&batch, Some(training.update(number as usize)))?)
    })
}

/// `steps` steps of each run, of micro-batches of `tokens` tokens, one step of each in turn. As [`measure`] where it ends early.
pub(super) fn in_turn(
    runs: &mut Vec<Measured>,
    steps: u32,
    tokens: usize,
    observer: Observer<'_>,
    step: impl Fn(&mut Measured, u32) -> Result<StepRecord, Error>,
) -> Result<Option<Error>, Error> {
    let ended = rounds(runs, steps, tokens, observer, step);
    observer(Event::End);
    let Err(error) = ended else { return Ok(diverged(runs)) };
    if runs.first().is_none_or(|run| run.records.is_empty()) {
        return Err(error);
    }
    let (measured, all) = (runs.iter().map(|run| run.records.len()).sum(), steps as usize * runs.len());
    let (kept, without): (Vec<_>, Vec<_>) = runs.drain(..).partition(|run| !run.records.is_empty());
    runs.extend(kept);
    let names: Vec<&str> = without.iter().map(|run| run.graph.schedule().name.as_str()).collect();
    if !names.is_empty() {
        observer(Event::Remark(&format!("left out, for nothing was measured of it: {}", names.join(", "))));
    }
    Ok(Some(error.after(measured, all)))
}

fn rounds(
    runs: &mut [Measured],
    steps: u32,
    tokens: usize,
    observer: Observer<'_>,
    step: impl Fn(&mut Measured, u32) -> Result<StepRecord, Error>,
) -> Result<(), Error> {
    for number in 0..steps {
        for run in runs.iter_mut() {
            let record = step(run, number)?;
            let (schedule, iteration_ms) = (run.graph.schedule(), record.iteration_ns() as f64 / 1e6);
            observer(Event::Step {
                schedule: &schedule.name,
                number,
                // what is measured for its costs is no run
                loss: record.loss.filter(|_| !run.calibrates()),
                iteration_ms,
                tokens_per_second: f64::from(schedule.microbatches) * tokens as f64
                    / (record.wall_ns as f64 / 1e9).max(1e-9),
            });
            run.records.push(record);
            run.session.ranks().note_measured();
        }
    }
    Ok(())
}
