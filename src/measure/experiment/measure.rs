//! Measuring: several schedules in one process, warmed up, their steps interleaved round-robin so that all see the same machine.

use super::weights::Borrower;
use super::{Error, Role, Steps, Training};
use pipesim_answer::resolve::Warning;
use pipesim_exec::{Batch, Session, StepRecord, Update};
use pipesim_report::plus_minus;
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::statistics::{LEAST_FOR_CI95, median, median_ci95};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Progress of an experiment.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A remark for people.
    Remark(&'a str),
    /// A schedule differs from what was asked for.
    Warning(&'a Warning),
    /// Measuring begins: the number of steps to measure, of all schedules together.
    Begin(u64),
    /// The schedule of this name is being warmed up.
    WarmUp(&'a str),
    /// The next step is one of the schedule of this name.
    Turn(&'a str),
    /// A step was measured.
    Step {
        /// Name of the schedule.
        schedule: &'a str,
        /// Number of the step, from 0.
        number: u32,
        /// Loss before the update; `None` if nothing is trained, or if the step only calibrates.
        loss: Option<f64>,
        /// Duration of the step.
        iteration_ms: f64,
        /// From the tokens in the host's memory to the loss back there, by the host's clock.
        tokens_per_second: f64,
    },
    /// All steps were measured.
    End,
}

/// Receives the events of an experiment.
pub type Observer<'a> = &'a dyn Fn(Event<'_>);

/// An observer that ignores all events.
pub fn silent(_: Event<'_>) {}

/// Time after which no more steps are taken than the least number that was asked for.
const LONGEST: Duration = Duration::from_secs(10);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Unmeasured steps of each schedule before the measured ones; they change neither model nor data.
    pub warmup: u32,
    /// Measured steps of each schedule, at most.
    pub steps: u32,
    /// Stop once half the 95 % interval of every schedule's median makespan is at most this share of the median.
    pub until: Option<f64>,
    /// Measured steps of each schedule before that counts; above 1, more are taken for 10 s at most.
    pub least: u32,
    /// Training steps that a judged schedule runs without a barrier between them whenever its turn comes; at least 1.
    pub back_to_back: u32,
}

/// A schedule with an open session, and its steps measured so far.
pub struct ScheduleRun<'a> {
    /// What was measured.
    pub steps: Steps,
    /// What is trained; `None` on timed devices.
    pub training: Option<&'a Training>,
    /// The executor's session.
    pub session: Session,
    /// Where the session's weights are between its turns; `None` if it keeps them.
    pub(super) weights: Option<Borrower>,
}

impl<'a> ScheduleRun<'a> {
    /// Opens a session of `training` for `graph`; all ranks must call this together.
    pub fn new(training: &'a Training, graph: TaskGraph, role: Role) -> Result<ScheduleRun<'a>, Error> {
        let graph = Arc::new(graph);
        // Costs do not depend on the delivery.
        let delivery = if role.calibrates() { Delivery::OneSided } else { training.backend.transport.delivery };
        let session = training.session_delivering(&graph, delivery)?;
        Ok(ScheduleRun { session, training: Some(training), steps: Steps::new(graph, role), weights: None })
    }

    /// Runs the steps before the measured ones, which change neither parameters nor optimizer.
    fn warm_up(&mut self, training: &Training, steps: usize) -> Result<(), Error> {
        let batch = training.batch(0, self.microbatches())?;
        let Some(weights) = &self.weights else { return Ok(training.warm_up(&mut self.session, &batch, steps)?) };
        weights.borrow(&mut self.session)?;
        for step in 0..steps {
            self.session.step(&batch, Some(training.update(step)))?;
        }
        weights.give_back(&mut self.session, false)
    }

    /// Runs training steps without a barrier between them.
    fn train(&mut self, steps: &[(Arc<Batch>, Option<Update>)]) -> Result<StepRecord, Error> {
        self.weights.iter().try_for_each(|weights| weights.borrow(&mut self.session))?;
        let record = self.session.row(steps)?;
        self.weights.iter().try_for_each(|weights| weights.give_back(&mut self.session, true))?;
        Ok(record)
    }

    fn name(&self) -> &str {
        &self.steps.graph.schedule().name
    }

    fn microbatches(&self) -> u32 {
        self.steps.graph.schedule().microbatches
    }

    /// The name for progress messages: it tells runs of one schedule with different roles apart.
    fn label(&self) -> String {
        let name = self.name();
        match self.steps.role {
            Role::Judged | Role::Transferred(_) => name.to_string(),
            Role::Baseline => "one device".to_string(),
            Role::Calibrates => format!("{name} (calibrating)"),
            Role::CalibratesCopies => format!("{name}, offloaded (calibrating)"),
            Role::CalibratesAlone => format!("{name}, one micro-batch (calibrating)"),
            Role::CalibratesSlices => {
                format!("{name}, {} slices (calibrating)", self.steps.graph.schedule().slices().count())
            }
            Role::CalibratesSize(_) => {
                let sequences = self.training.map_or(0, |training| training.micro_batch.sequences);
                format!("{name}, batch={sequences} (calibrating)")
            }
        }
    }
}

/// Whether a run was asked for: all but those that calibrate; if all do, the first one.
fn is_asked_for(runs: &[ScheduleRun<'_>], number: usize) -> bool {
    Role::asked_for(&runs.iter().map(|run| run.steps.role).collect::<Vec<_>>())[number]
}

/// The first loss that is not finite, as an error. If several runs have one in the same step, a run that was asked for is named.
fn diverged(runs: &[ScheduleRun<'_>]) -> Option<Error> {
    let first = |number: usize| {
        let losses = runs[number].steps.records.iter().flat_map(StepRecord::losses);
        let (step, loss) = losses.enumerate().find(|(_, loss)| !loss.is_finite())?;
        Some((step, !is_asked_for(runs, number), loss, runs[number].name().to_string()))
    };
    // Runs that only measure times start from another run's state.
    let trains = |&number: &usize| runs[number].weights.as_ref().is_none_or(|weights| weights.trains);
    let found =
        (0..runs.len()).filter(trains).filter_map(first).min_by_key(|&(step, calibrates, ..)| (step, calibrates));
    found.map(|(step, _, value, schedule)| Error::Diverged { schedule, what: "loss", step, value })
}

/// Warms all runs up, then measures training steps of each, one step of each in turn.
///
/// Returns what ended the measurement early, or what spoils it. Runs without any measured step are removed.
///
/// # Errors
/// Nothing was measured of the first run.
pub fn measure(
    runs: &mut Vec<ScheduleRun<'_>>,
    extent: Extent,
    observer: Observer<'_>,
) -> Result<Option<Error>, Error> {
    if extent.steps == 0 {
        return Err(Error::Usage("expected at least 1 step to measure, found 0; ask for one or more".to_string()));
    }
    observer(Event::Begin(Turns::of(runs, extent).count() as u64));
    let warmed = runs.iter_mut().try_for_each(|run| {
        let Some(training) = run.training else { return Ok(()) };
        observer(Event::WarmUp(&run.label()));
        run.warm_up(training, extent.warmup as usize)
    });
    warmed.inspect_err(|_: &Error| observer(Event::End))?;
    in_turn(runs, extent, observer, |run, number| {
        let Some(training) = run.training else { return Ok(run.session.step(&Arc::default(), None)?) };
        observer(Event::Turn(&run.label()));
        let back_to_back = if run.steps.role.calibrates() { 1 } else { extent.back_to_back as usize };
        let step = |number: usize| {
            Ok::<_, Error>((training.batch(number, run.microbatches())?, Some(training.update(number))))
        };
        let first = number as usize * back_to_back;
        let steps = (first..first + back_to_back).map(step).collect::<Result<Vec<_>, Error>>()?;
        run.train(&steps)
    })
}

/// Measures steps of each run, one step of each in turn. Returns and fails as [`measure`].
pub(super) fn in_turn(
    runs: &mut Vec<ScheduleRun<'_>>,
    extent: Extent,
    observer: Observer<'_>,
    step: impl Fn(&mut ScheduleRun<'_>, u32) -> Result<StepRecord, Error>,
) -> Result<Option<Error>, Error> {
    let turns = Turns::of(runs, extent);
    let training = runs.iter().find_map(|run| run.training);
    training.into_iter().for_each(Training::begin_sampling);
    let ended = take(&turns, runs, observer, step);
    observer(Event::End);
    for remark in training.into_iter().flat_map(Training::end_sampling) {
        observer(Event::Remark(&remark));
    }
    let Err(error) = ended else { return Ok(diverged(runs)) };
    if runs.first().is_none_or(|run| run.steps.records.is_empty()) {
        return Err(error);
    }
    let (kept, without): (Vec<_>, Vec<_>) = runs.drain(..).partition(|run| !run.steps.records.is_empty());
    runs.extend(kept);
    let names: Vec<String> = without.iter().map(ScheduleRun::label).collect();
    if !names.is_empty() {
        observer(Event::Remark(&format!("left out, as no step of it was measured: {}", names.join(", "))));
    }
    let asked_for = (0..runs.len()).filter(|&number| is_asked_for(runs, number));
    let measured = asked_for.map(|number| runs[number].steps.records.len()).min();
    let measured = measured.unwrap_or_else(|| runs[0].steps.records.len());
    Ok(Some(error.after(measured, extent.steps as usize)))
}

/// Takes one step of the run whose turn it is after the other.
fn take(
    turns: &Turns,
    runs: &mut [ScheduleRun<'_>],
    observer: Observer<'_>,
    step: impl Fn(&mut ScheduleRun<'_>, u32) -> Result<StepRecord, Error>,
) -> Result<(), Error> {
    let begun = Instant::now();
    let turn = |runs: &mut [ScheduleRun<'_>], which: usize| -> Result<(), Error> {
        let is_asked_for = is_asked_for(runs, which);
        let run = &mut runs[which];
        let (number, at_ns) = (run.steps.records.len() as u32, begun.elapsed().as_nanos() as u64);
        let record = StepRecord { at_ns, ..step(run, number)? };
        let tokens = run.training.map_or(0, Training::microbatch_tokens);
        observer(Event::Step {
            schedule: run.name(),
            number,
            loss: record.loss.filter(|_| is_asked_for),
            iteration_ms: record.iteration_ns() as f64 / 1e6,
            tokens_per_second: f64::from(run.microbatches()) * tokens as f64 / (record.wall_ns as f64 / 1e9).max(1e-9),
        });
        run.steps.records.push(record);
        run.session.ranks().note_measured();
        Ok(())
    };
    for number in 1..=turns.extent.steps {
        turns.round(number).into_iter().try_for_each(|which| turn(runs, which))?;
        // Look again after a tenth more steps: a look takes longer the more steps there are.
        let Extent { steps, least, .. } = turns.extent;
        let is_last = number == steps || least > 1 && number >= least && begun.elapsed() > LONGEST;
        let is_time = number >= least && number.is_multiple_of(1 + number / 10) || number == least || is_last;
        if let Some(until) = turns.extent.until.filter(|_| is_time) {
            let half = widest_half_interval(runs);
            let is_narrow = half.is_some_and(|half| half <= until);
            if is_narrow || is_last {
                observer(Event::Remark(&told(number, half, until)));
            } else if let Some(half) = half.filter(|_| number == least) {
                let noise = plus_minus(half);
                observer(Event::Remark(&format!(
                    "{number} steps are too few to judge: a median makespan is known to {noise}; taking up to {steps} within {} s",
                    LONGEST.as_secs()
                )));
            }
            if is_narrow || is_last {
                break;
            }
        }
    }
    turns.last().iter().try_for_each(|&which| turn(runs, which))
}

/// Half the 95 % interval of a median makespan, as a share of the median: the widest over the runs that were asked for. `None`
/// if a run has too few steps for an interval.
fn widest_half_interval(runs: &[ScheduleRun<'_>]) -> Option<f64> {
    let half = |number: usize| {
        let makespans = runs[number].steps.makespans_ms();
        let [low, high] = median_ci95(&makespans);
        (makespans.len() >= LEAST_FOR_CI95).then(|| (high - low) / 2.0 / median(&makespans).max(f64::MIN_POSITIVE))
    };
    let asked_for = (0..runs.len()).filter(|&number| is_asked_for(runs, number));
    asked_for.map(half).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
}

/// Says how narrow the widest interval is after `steps` steps, and how many steps `until` would take.
fn told(steps: u32, half: Option<f64>, until: f64) -> String {
    let percent = |share: f64| format!("± {:.2} %", 100.0 * share);
    match half {
        None => format!("{steps} steps are too few for a 95 % interval; ask for more `steps`"),
        Some(half) if half <= until => {
            format!("after {steps} steps every median makespan is known to {} (95 % interval)", percent(half))
        }
        Some(half) => format!(
            "this machine does not reach {} in {steps} steps: a median makespan is known to {} (95 % interval); at its present \
             noise it would take about {:.0} steps",
            percent(until),
            percent(half),
            f64::from(steps) * (half / until).powi(2)
        ),
    }
}

/// The order in which runs take steps.
///
/// Machines change their speed within a second, so the runs that calibrate take a step before every few others: before as many
/// micro-batches of others as they have themselves, or before a single larger run. The others take turns forwards and backwards,
/// so that none always follows the same one.
struct Turns {
    extent: Extent,
    calibrating: Vec<usize>,
    /// Runs that calibrate micro-batches of other sizes, slices or copies, once per round.
    sizes: Vec<usize>,
    /// All other runs, each with its number of micro-batches.
    others: Vec<(usize, u32)>,
    /// Micro-batches of the schedule that calibrates.
    microbatches: u32,
}

impl Turns {
    fn of(runs: &[ScheduleRun<'_>], extent: Extent) -> Turns {
        let numbers = |of: fn(Role) -> bool| (0..runs.len()).filter(move |&number| of(runs[number].steps.role));
        let calibrating: Vec<usize> =
            numbers(|role| matches!(role, Role::Calibrates | Role::CalibratesAlone)).collect();
        Turns {
            extent,
            sizes: numbers(|role| {
                matches!(role, Role::CalibratesSize(_) | Role::CalibratesSlices | Role::CalibratesCopies)
            })
            .collect(),
            others: numbers(|role| !role.calibrates()).map(|number| (number, runs[number].microbatches())).collect(),
            microbatches: calibrating.first().map_or(0, |&main| runs[main].microbatches()),
            calibrating,
        }
    }

    /// The runs of one round, in turn; rounds count from 1.
    fn round(&self, number: u32) -> Vec<usize> {
        let mut turns: Vec<usize> = Vec::new();
        if self.others.is_empty() || !self.sizes.is_empty() {
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
            self.others.iter().rev().for_each(&mut turn);
        } else {
            self.others.iter().for_each(&mut turn);
        }
        turns
    }

    /// The runs that calibrate once more after the last round.
    fn last(&self) -> &[usize] {
        if self.others.is_empty() && self.sizes.is_empty() { &[] } else { &self.calibrating }
    }

    /// Number of steps, at most, or as many as are taken in any case.
    fn count(&self) -> usize {
        let [odd, even] = [1, 2].map(|number| self.round(number).len());
        let Extent { steps, least, .. } = self.extent;
        let rounds = if least > 1 { least.min(steps) } else { steps } as usize;
        rounds.div_ceil(2) * odd + rounds / 2 * even + self.last().len()
    }
}
