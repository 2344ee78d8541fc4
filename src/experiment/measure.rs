//! Measuring: several schedules in one process, warmed, their steps interleaved round-robin, so that all see the same machine.

use super::interval::{SEED, ratios};
use super::{Error, Event, Observer, Role, Steps, Training};
use crate::delivery::Delivery;
use crate::exec::{Counters, Session, StepRecord};
use crate::graph::TaskGraph;
use std::sync::Arc;
use std::time::Instant;

/// What the name of the run that is calibrated on ends with.
pub(super) const CALIBRATING: &str = " (calibrating)";

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Steps of each schedule before those measured, that leave no trace.
    pub warmup: u32,
    /// Measured steps of each, at most.
    pub steps: u32,
    /// Measure no more once the 95 % interval of a predicted time is as narrow as this on either side, as a share.
    pub until: Option<f64>,
    /// Training steps that follow each other at once, without a barrier, whenever it is the turn of a run that is held against its
    /// prediction; at least 1.
    pub in_a_row: u32,
}

/// A schedule held ready, with the steps measured so far.
pub struct Measured<'a> {
    /// What was measured.
    pub steps: Steps,
    /// What is trained; none on timed devices, and where only messages are sent.
    pub training: Option<&'a Training>,
    /// Where.
    pub session: Session,
}

impl<'a> Measured<'a> {
    /// A session of `training` for `graph`, nothing measured yet; all ranks must call this together.
    pub fn new(
        training: &'a Training,
        graph: TaskGraph,
        delivery: Delivery,
        role: Role,
    ) -> Result<Measured<'a>, Error> {
        let graph = Arc::new(graph);
        let (session, training) = match role {
            Role::CalibratesLinks => (training.session_of_messages(&graph)?, None),
            _ => (training.session_delivering(&graph, delivery)?, Some(training)),
        };
        Ok(Measured { session, training, steps: Steps::new(graph, role) })
    }

    /// Whether it is what was asked for, not only measured for the costs of that.
    fn is_asked_for(&self) -> bool {
        !self.graph().schedule().name.ends_with(CALIBRATING)
    }

    /// What is executed.
    pub fn graph(&self) -> &Arc<TaskGraph> {
        &self.steps.graph
    }
}

/// Where training first left the numbers; of several runs in the first of them, rather not in what is measured for its costs.
fn diverged(runs: &[Measured<'_>]) -> Option<Error> {
    let first = |run: &Measured<'_>| {
        let losses = run.steps.records.iter().flat_map(StepRecord::losses);
        let (step, loss) = losses.enumerate().find(|(_, loss)| !loss.is_finite())?;
        Some((step, !run.is_asked_for(), loss, run.graph().schedule().name.clone()))
    };
    let found = runs.iter().filter_map(first).min_by_key(|&(step, calibrates, ..)| (step, calibrates));
    found.map(|(step, _, loss, schedule)| Error::Diverged { schedule, step, loss })
}

/// Warms all runs up, then measures `steps` training steps of each, one step of each in turn. What ended that early, where the
/// first run was measured all the same, or what spoils it; runs of which nothing was measured are then left out.
pub fn measure(runs: &mut Vec<Measured<'_>>, extent: Extent, observer: Observer<'_>) -> Result<Option<Error>, Error> {
    if extent.steps == 0 {
        return Err(Error::Usage("expected at least 1 step to measure, found 0; ask for one or more".to_string()));
    }
    observer(Event::Begin(Turns::of(runs, extent).count() as u64));
    let warmed = runs.iter_mut().try_for_each(|run| {
        let Some(training) = run.training else { return Ok(run.session.step(&Arc::default(), None).map(drop)?) };
        let schedule = run.steps.graph.schedule();
        observer(Event::WarmUp(&schedule.name));
        let batch = training.batch(0, schedule.microbatches)?;
        Ok(training.warm_up(&mut run.session, &batch, extent.warmup as usize)?)
    });
    warmed.inspect_err(|_: &Error| observer(Event::End))?;
    in_turn(runs, extent, observer, |run, number| {
        let Some(training) = run.training else { return Ok(run.session.step(&Arc::default(), None)?) };
        let schedule = run.steps.graph.schedule();
        observer(Event::Turn(&schedule.name));
        let in_a_row = if run.steps.calibrates() { 1 } else { extent.in_a_row as usize };
        let step = |number: usize| {
            Ok::<_, Error>((training.batch(number, schedule.microbatches)?, Some(training.update(number))))
        };
        let first = number as usize * in_a_row;
        let steps = (first..first + in_a_row).map(step).collect::<Result<Vec<_>, Error>>()?;
        Ok(run.session.row(&steps)?)
    })
}

/// Steps of each run, one step of each in turn. As [`measure`] where it ends early.
pub(super) fn in_turn(
    runs: &mut Vec<Measured<'_>>,
    extent: Extent,
    observer: Observer<'_>,
    step: impl Fn(&mut Measured<'_>, u32) -> Result<StepRecord, Error>,
) -> Result<Option<Error>, Error> {
    let turns = Turns::of(runs, extent);
    let ended = take(&turns, runs, observer, step);
    observer(Event::End);
    let Err(error) = ended else { return Ok(diverged(runs)) };
    if runs.first().is_none_or(|run| run.steps.records.is_empty()) {
        return Err(error);
    }
    let (kept, without): (Vec<_>, Vec<_>) = runs.drain(..).partition(|run| !run.steps.records.is_empty());
    runs.extend(kept);
    let names: Vec<&str> = without.iter().map(|run| run.graph().schedule().name.as_str()).collect();
    if !names.is_empty() {
        observer(Event::Remark(&format!("left out, for nothing was measured of it: {}", names.join(", "))));
    }
    // What was asked for is so many steps per schedule; what calibrates takes others in between.
    let asked = || runs.iter().filter(|run| run.is_asked_for());
    let all = || runs.iter().filter(|_| asked().next().is_none());
    let measured = asked().chain(all()).map(|run| run.steps.records.len()).min().unwrap_or(0);
    Ok(Some(error.after(measured, extent.steps as usize)))
}

/// One step of the run whose turn it is, after the other.
fn take(
    turns: &Turns,
    runs: &mut [Measured<'_>],
    observer: Observer<'_>,
    step: impl Fn(&mut Measured<'_>, u32) -> Result<StepRecord, Error>,
) -> Result<(), Error> {
    let begun = Instant::now();
    let record = |run: &mut Measured<'_>| -> Result<StepRecord, Error> {
        let (number, at_ns) = (run.steps.records.len() as u32, begun.elapsed().as_nanos() as u64);
        let before = Counters::now();
        let record = step(run, number)?;
        Ok(StepRecord { at_ns, load: Counters::now().since(before), ..record })
    };
    let turn = |run: &mut Measured<'_>| -> Result<(), Error> {
        let (number, record) = (run.steps.records.len() as u32, record(run)?);
        let (schedule, iteration_ms) = (run.graph().schedule(), record.iteration_ns() as f64 / 1e6);
        let tokens = run.training.map_or(0, |training| training.micro_batch.rows());
        observer(Event::Step {
            schedule: &schedule.name,
            number,
            // what is measured for its costs is no run
            loss: record.loss.filter(|_| run.is_asked_for()),
            iteration_ms,
            tokens_per_second: f64::from(schedule.microbatches) * tokens as f64
                / (record.wall_ns as f64 / 1e9).max(1e-9),
        });
        run.steps.records.push(record);
        run.session.ranks().note_measured();
        Ok(())
    };
    for number in 1..=turns.extent.steps {
        // A moment each: nobody is told.
        for &links in &turns.links {
            let record = record(&mut runs[links])?;
            runs[links].steps.records.push(record);
        }
        turns.round(number).into_iter().try_for_each(|number| turn(&mut runs[number]))?;
        // A tenth more steps than at the last look: looking takes the longer the more there are.
        let is_time = number.is_multiple_of(1 + number / 10) || number == turns.extent.steps;
        if let Some(until) = turns.extent.until.filter(|_| is_time) {
            let half = width(runs, number as usize);
            let is_narrow = half.is_some_and(|half| half <= until);
            if is_narrow || number == turns.extent.steps {
                observer(Event::Remark(&told(number, half, until)));
            }
            if is_narrow {
                break;
            }
        }
    }
    turns.last().iter().try_for_each(|&number| turn(&mut runs[number]))
}

/// Half of the 95 % interval in which a schedule of `steps` steps lies, as a share of its prediction, as far as what calibrates shows it.
fn width(runs: &[Measured<'_>], steps: usize) -> Option<f64> {
    let main = runs.iter().find(|run| run.steps.role == Role::Calibrates)?;
    let makespans: Vec<u64> = main.steps.records.iter().map(StepRecord::makespan_ns).collect();
    let beside: Vec<usize> = (0..2 * steps).map(|number| number % makespans.len().max(1)).collect();
    let [_, [low, high]] = ratios(&makespans, &beside, SEED)?;
    Some((high - low) / 2.0)
}

/// How narrow the interval is after so many steps, and how many it would take.
fn told(steps: u32, half: Option<f64>, until: f64) -> String {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    match half {
        None => format!("{steps} steps are too few to tell an interval from; ask for more --steps"),
        Some(half) if half <= until => {
            format!("after {steps} steps a predicted time holds to {} (95 % interval)", percent(half))
        }
        Some(half) => format!(
            "this machine does not give {} in {steps} steps: a predicted time holds to {} (95 % interval); it would take about {:.0} \
             steps as the machine is now",
            percent(until),
            percent(half),
            f64::from(steps) * (half / until).powi(2)
        ),
    }
}

/// Which run takes a step when.
///
/// What calibrates takes one before every few others, that have as many micro-batches as itself or, singly, more: machines change
/// their speed within a second. The others take turns there and back, so that none always follows the same.
struct Turns {
    extent: Extent,
    calibrating: Vec<usize>,
    /// What calibrates micro-batches of other sizes, once a round.
    sizes: Vec<usize>,
    /// What sends messages alone, once before each round.
    links: Vec<usize>,
    /// Runs that are held against predictions, each with its number of micro-batches.
    judged: Vec<(usize, u32)>,
    /// Micro-batches of what calibrates.
    microbatches: u32,
}

impl Turns {
    fn of(runs: &[Measured<'_>], extent: Extent) -> Turns {
        let microbatches = |number: usize| runs[number].graph().schedule().microbatches;
        let numbers = |of: fn(Role) -> bool| (0..runs.len()).filter(move |&number| of(runs[number].steps.role));
        let calibrating: Vec<usize> = numbers(|role| role == Role::Calibrates).collect();
        let judged = numbers(|role| matches!(role, Role::Judged | Role::Transferred(_)));
        Turns {
            extent,
            sizes: numbers(|role| matches!(role, Role::CalibratesSize(_))).collect(),
            links: numbers(|role| role == Role::CalibratesLinks).collect(),
            judged: judged.map(|number| (number, microbatches(number))).collect(),
            microbatches: calibrating.first().map_or(0, |&main| microbatches(main)),
            calibrating,
        }
    }

    /// The runs of one round, in turn; rounds count from 1.
    fn round(&self, number: u32) -> Vec<usize> {
        let mut turns: Vec<usize> = Vec::new();
        if self.judged.is_empty() || !self.sizes.is_empty() {
            turns.extend(self.calibrating.iter().chain(&self.sizes));
        }
        let mut since = self.microbatches;
        let mut turn = |&(run, microbatches): &(usize, u32)| {
            if since >= self.microbatches {
                turns.extend(&self.calibrating);
                since = 0;
            }
            turns.push(run);
            since += microbatches;
        };
        if number.is_multiple_of(2) {
            self.judged.iter().rev().for_each(&mut turn);
        } else {
            self.judged.iter().for_each(&mut turn);
        }
        turns
    }

    /// After the last round: those that calibrate.
    fn last(&self) -> &[usize] {
        if self.judged.is_empty() && self.sizes.is_empty() { &[] } else { &self.calibrating }
    }

    /// How many steps these are at most.
    fn count(&self) -> usize {
        let [odd, even] = [1, 2].map(|number| self.round(number).len());
        let rounds = self.extent.steps as usize;
        rounds.div_ceil(2) * odd + rounds / 2 * even + self.last().len()
    }
}
