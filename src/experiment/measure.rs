//! Measuring: several schedules in one process, warmed, their steps interleaved round-robin, so that all see the same machine.

use super::{Error, Event, Observer, Role, Steps, Training};
use crate::delivery::Delivery;
use crate::exec::{Session, StepRecord};
use crate::graph::TaskGraph;
use std::sync::Arc;
use std::time::Instant;

/// What the name of the run that is calibrated on ends with.
pub(super) const CALIBRATING: &str = " (calibrating)";

/// How many schedules are measured between one calibrating step and the next: machines change their speed within seconds.
const BETWEEN: usize = 2;

/// A schedule held ready, with the steps measured so far.
pub struct Measured {
    /// What was measured.
    pub steps: Steps,
    /// Where.
    pub session: Session,
}

impl Measured {
    /// A session of `training` for `graph`, nothing measured yet; all ranks must call this together.
    pub fn new(training: &Training, graph: TaskGraph, delivery: Delivery, role: Role) -> Result<Measured, Error> {
        let graph = Arc::new(graph);
        Ok(Measured { session: training.session_delivering(&graph, delivery)?, steps: Steps::new(graph, role) })
    }

    /// What is executed.
    pub fn graph(&self) -> &Arc<TaskGraph> {
        &self.steps.graph
    }
}

/// Where training first left the numbers; of several runs in the first of them, rather not in what is measured for its costs.
fn diverged(runs: &[Measured]) -> Option<Error> {
    let first = |run: &Measured| {
        let losses = run.steps.records.iter().map(|record| record.loss.unwrap_or_default());
        let (step, loss) = losses.enumerate().find(|(_, loss)| !loss.is_finite())?;
        Some((step, run.steps.calibrates(), loss, run.graph().schedule().name.clone()))
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
    observer(Event::Begin(turns(runs, steps).len() as u64));
    let warmed = runs.iter_mut().try_for_each(|run| {
        let schedule = run.graph().schedule();
        observer(Event::WarmUp(&schedule.name));
        let batch = training.batch(0, schedule.microbatches)?;
        Ok(training.warm_up(&mut run.session, &batch, warmup as usize)?)
    });
    warmed.inspect_err(|_: &Error| observer(Event::End))?;
    in_turn(runs, steps, training.micro_batch.rows(), observer, |run, number| {
        let schedule = run.graph().schedule();
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
    let turns = turns(runs, steps);
    let ended = take(&turns, runs, tokens, observer, step);
    observer(Event::End);
    let Err(error) = ended else { return Ok(diverged(runs)) };
    if runs.first().is_none_or(|run| run.steps.records.is_empty()) {
        return Err(error);
    }
    let measured = runs.iter().map(|run| run.steps.records.len()).sum();
    let (kept, without): (Vec<_>, Vec<_>) = runs.drain(..).partition(|run| !run.steps.records.is_empty());
    runs.extend(kept);
    let names: Vec<&str> = without.iter().map(|run| run.graph().schedule().name.as_str()).collect();
    if !names.is_empty() {
        observer(Event::Remark(&format!("left out, for nothing was measured of it: {}", names.join(", "))));
    }
    Ok(Some(error.after(measured, turns.len())))
}

/// One step of the run whose turn it is, after the other.
fn take(
    turns: &[usize],
    runs: &mut [Measured],
    tokens: usize,
    observer: Observer<'_>,
    step: impl Fn(&mut Measured, u32) -> Result<StepRecord, Error>,
) -> Result<(), Error> {
    let begun = Instant::now();
    let turn = |run: &mut Measured| -> Result<(), Error> {
        let (number, at_ns) = (run.steps.records.len() as u32, begun.elapsed().as_nanos() as u64);
        let record = StepRecord { at_ns, ..step(run, number)? };
        let (schedule, iteration_ms) = (run.graph().schedule(), record.iteration_ns() as f64 / 1e6);
        observer(Event::Step {
            schedule: &schedule.name,
            number,
            // what is measured for its costs is no run
            loss: record.loss.filter(|_| !run.steps.calibrates()),
            iteration_ms,
            tokens_per_second: f64::from(schedule.microbatches) * tokens as f64
                / (record.wall_ns as f64 / 1e9).max(1e-9),
        });
        run.steps.records.push(record);
        run.session.ranks().note_measured();
        Ok(())
    };
    turns.iter().try_for_each(|&number| turn(&mut runs[number]))
}

/// Which run takes a step when, so that each that is judged takes `steps`: those that calibrate before every few others, and after the last.
fn turns(runs: &[Measured], steps: u32) -> Vec<usize> {
    let (calibrating, judged): (Vec<usize>, Vec<usize>) =
        (0..runs.len()).partition(|&number| runs[number].steps.calibrates());
    let few = |few: &[usize]| calibrating.iter().chain(few).copied().collect::<Vec<_>>();
    let round: Vec<usize> = match judged.len() {
        0 => calibrating.clone(),
        _ => judged.chunks(BETWEEN).flat_map(few).collect(),
    };
    let last = if judged.is_empty() { [].iter() } else { calibrating.iter() };
    (0..steps).flat_map(|_| &round).chain(last).copied().collect()
}
