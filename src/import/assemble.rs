//! From the ranks' ops and messages to timelines on one clock.

use super::clock::{Bound, Clock, Clocks, align};
use super::error::ImportError;
use super::message::{Message, Step};
use super::pipeline::{Pipeline, list};
use super::rank::{RankRun, RankStep};
use super::run::{Count, RankClock, Run, median};
use super::{doubts, record, spans};
use pipesim_schedule::metrics::{Activity, makespan};
use pipesim_schedule::op::Op;
use pipesim_schedule::timeline::{SCHEMA_VERSION, Source, StepFigures, Timeline};
use std::collections::{BTreeMap, BTreeSet};

/// Makes timelines of the pipeline `wanted` of `runs`. `clocked` says that ranks have clocks of their own.
///
/// # Errors
/// No op was recovered, or files contradict each other.
pub fn assemble(
    runs: Vec<RankRun>,
    format: &'static str,
    clocked: bool,
    wanted: Option<u32>,
    mut warnings: Vec<String>,
) -> Result<Run, ImportError> {
    let files: Vec<String> = runs.iter().map(|run| run.file.clone()).collect();
    let version = runs.iter().find_map(|run| run.version.clone());
    warnings.extend(runs.iter().flat_map(|run| run.warnings.iter().cloned()));
    warnings.extend(doubts::of_ranks(&runs));
    let mut pipeline = Pipeline::choose(runs, wanted, &mut warnings)?;
    let owned: Vec<Option<RankRun>> = std::mem::take(&mut pipeline.runs);
    let steps = steps(&owned);
    pipeline.runs = owned.iter().map(|run| run.as_ref().map(RankRun::without_steps)).collect();
    if steps.is_empty() {
        let odd = if warnings.is_empty() { String::new() } else { format!(" ({})", warnings.join("; ")) };
        return Err(ImportError::new(format!(
            "expected ops of a pipeline, found none in {}{odd}; record ranges such as PP:0F3 with PyTorch's profiler, or name yours with `label` 'REGEX=F'",
            files.first().map_or("the files", String::as_str)
        )));
    }
    warnings.extend(doubts::of_placement(&pipeline));
    warnings.extend(doubts::of_step_ops(&pipeline, &steps));
    let missing = pipeline.missing();
    if !missing.is_empty() {
        let ranks: Vec<u32> = missing.iter().map(|&device| pipeline.ranks[device as usize]).collect();
        warnings.push(format!("no file of rank {}: its device is marked as incomplete", list(&ranks)));
    }
    let (messages, expected): (Vec<Vec<Message>>, Vec<usize>) =
        steps.iter().map(|step| step.messages(&pipeline)).unzip();
    let messages_count = Count { found: messages.iter().map(Vec::len).sum(), expected: expected.iter().sum() };
    let clocks = clocks(&pipeline, &steps, &messages, clocked, &mut warnings)?;
    let mut ops = Count::default();
    let mut timelines = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let mut incomplete = missing.clone();
        for (device, rank) in (0..).zip(&step.ranks) {
            if pipeline.runs[device as usize].is_none() {
                continue;
            }
            let has: BTreeSet<Op> = rank.iter().flat_map(|rank| &rank.ops).map(|op| op.op).collect();
            let (found, expected) = pipeline.expected(device, &has);
            (ops.found, ops.expected) = (ops.found + found, ops.expected + expected);
            if found < expected || found == 0 {
                incomplete.push(device);
            }
        }
        incomplete.sort_unstable();
        let mut timeline = empty(&pipeline, incomplete);
        timeline.step = Some(step.number);
        timeline.clock_uncertainty_ns = clocks.residual_ns.get(at).copied().unwrap_or_default();
        let zero = spans::fill(&mut timeline, &pipeline, step, &messages[at], &clocks.clocks)?;
        timelines.push((zero, timeline));
    }
    note_counts(ops, messages_count, clocked, &mut warnings);
    let figures = figures(&timelines, &steps, &clocks.clocks);
    let mut timelines: Vec<Timeline> = timelines.into_iter().map(|(_, timeline)| timeline).collect();
    let median = median(&timelines);
    let mut run = Run {
        format,
        median,
        ops,
        messages: messages_count,
        clocks: rank_clocks(&pipeline, &clocks.clocks, clocked),
        order: None,
        warnings,
        timelines: Vec::new(),
    };
    let provenance = provenance(&run, &pipeline, &files, version);
    for timeline in &mut timelines {
        timeline.steps = figures.clone();
        timeline.provenance = provenance.clone();
    }
    for timeline in &timelines {
        timeline.check().map_err(|error| ImportError::new(format!("the traces contradict themselves: {error}")))?;
    }
    run.timelines = timelines;
    Ok(run)
}

impl RankRun {
    /// Returns the run without its ops.
    fn without_steps(&self) -> RankRun {
        RankRun { steps: Vec::new(), ..self.clone() }
    }
}

/// Collects the ranks' steps by number.
fn steps(runs: &[Option<RankRun>]) -> Vec<Step<'_>> {
    let mut by_number: BTreeMap<u64, Vec<Option<&RankStep>>> = BTreeMap::new();
    for (device, run) in runs.iter().enumerate() {
        for step in run.iter().flat_map(|run| &run.steps) {
            let ranks = by_number.entry(step.number).or_insert_with(|| vec![None; runs.len()]);
            ranks[device].get_or_insert(step);
        }
    }
    by_number.into_iter().map(|(number, ranks)| Step { number, ranks }).collect()
}

/// Aligns the clocks of all devices that have a file.
fn clocks(
    pipeline: &Pipeline,
    steps: &[Step<'_>],
    messages: &[Vec<Message>],
    clocked: bool,
    warnings: &mut Vec<String>,
) -> Result<Clocks, ImportError> {
    let count = pipeline.ranks.len();
    if !clocked {
        return Ok(Clocks { clocks: vec![Clock::default(); count], residual_ns: vec![0; steps.len()] });
    }
    let begins = |device: usize| {
        let first = steps.iter().find_map(|step| step.ranks[device])?;
        first.ops.iter().map(|op| op.start).min()
    };
    let origins: Vec<i64> = (0..count).map(|device| begins(device).unwrap_or_default()).collect();
    let reference = (0..count).find(|&device| pipeline.runs[device].is_some()).unwrap_or_default();
    let mut bounds: Vec<Bound> = Vec::new();
    for (at, messages) in messages.iter().enumerate() {
        bounds.extend(messages.iter().flat_map(|message| message.bounds(at)));
    }
    bounds.extend(pings(pipeline, steps));
    let refuse = |contradiction: super::clock::Contradiction| {
        let (one, two) = contradiction.ranks;
        ImportError::new(format!(
            "expected messages that some clocks explain, found that those between ranks {} and {} contradict each other by {:.3} ms; \
             give the traces of one run",
            pipeline.ranks[one],
            pipeline.ranks[two],
            contradiction.ns as f64 / 1e6
        ))
    };
    let aligned = align(&origins, reference, &bounds, steps.len()).map_err(refuse)?;
    let is_loose = |device: &usize| pipeline.runs[*device].is_some() && !aligned.clocks[*device].is_tied;
    let loose: Vec<usize> = (0..count).filter(is_loose).collect();
    if loose.is_empty() || count == 1 {
        return Ok(aligned);
    }
    // What passes through missing devices bounds clocks, too, but loosely.
    for (at, step) in steps.iter().enumerate() {
        let through = step.through_missing(pipeline).into_iter();
        bounds.extend(through.map(|(from, to, before, after)| Bound {
            from: from as usize,
            to: to as usize,
            before,
            after,
            step: at,
        }));
    }
    let wide = align(&origins, reference, &bounds, steps.len()).map_err(refuse)?;
    let ranks: Vec<u32> = loose.iter().map(|&device| pipeline.ranks[device]).collect();
    let still: Vec<u32> =
        loose.iter().filter(|&&device| !wide.clocks[device].is_tied).map(|&device| pipeline.ranks[device]).collect();
    warnings.push(if still.is_empty() {
        format!(
            "the chain of messages is cut: rank {} exchanges none with rank {}; its clock is known only through the ranks between, to {:.3} ms",
            list(&ranks),
            pipeline.ranks[reference],
            wide.residual_ns.iter().max().copied().unwrap_or_default() as f64 / 1e6
        )
    } else {
        format!(
            "the chain of messages is cut: nothing ties the clock of rank {} to that of rank {}; its times are as in its file",
            list(&still),
            pipeline.ranks[reference]
        )
    });
    Ok(wide)
}

/// Returns what exchanged times say of the clocks.
fn pings(pipeline: &Pipeline, steps: &[Step<'_>]) -> Vec<Bound> {
    let device_of = |rank: u32| pipeline.ranks.iter().position(|&found| found == rank);
    let mut bounds = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        for (first, rank) in step.ranks.iter().enumerate() {
            for &ping in rank.iter().flat_map(|rank| &rank.pings) {
                let other = device_of(ping.0);
                bounds.extend(other.into_iter().flat_map(|other| record::bounds(ping, first, other, at)));
            }
        }
    }
    bounds
}

fn rank_clocks(pipeline: &Pipeline, clocks: &[Clock], clocked: bool) -> Vec<RankClock> {
    let of = |device: u32| {
        let run = pipeline.runs[device as usize].as_ref()?;
        Some(RankClock::new(device, pipeline.ranks[device as usize], &clocks[device as usize], run.first))
    };
    if clocked { (0..pipeline.ranks.len() as u32).filter_map(of).collect() } else { Vec::new() }
}

fn note_counts(ops: Count, messages: Count, clocked: bool, warnings: &mut Vec<String>) {
    if ops.found < ops.expected {
        warnings.push(format!("{ops} ops recovered; steps that lack some are marked as incomplete"));
    }
    if messages.found < messages.expected && clocked {
        warnings.push(format!("{messages} messages recovered"));
    }
}

fn empty(pipeline: &Pipeline, incomplete_devices: Vec<u32>) -> Timeline {
    Timeline {
        schema_version: SCHEMA_VERSION,
        source: Source::Measured,
        schedule: String::new(),
        devices: pipeline.ranks.len() as u32,
        chunks: pipeline.stages.div_ceil(pipeline.ranks.len().max(1) as u32).max(1),
        microbatches: pipeline.microbatches,
        time_unit: "ms".to_string(),
        unit_ns: 1_000_000,
        keep: 1.0,
        slices: Vec::new(),
        stub: 0.0,
        kv: 0.0,
        clock_uncertainty_ns: 0,
        lower_bound_ns: None,
        lower_bound_if_split_ns: None,
        typical_makespan_ns: None,
        incomplete_devices,
        steps: Vec::new(),
        step: None,
        workers: None,
        provenance: BTreeMap::new(),
        spans: Vec::new(),
    }
}

/// Returns the figures of all steps; each timeline comes with the time of its first op.
fn figures(timelines: &[(i64, Timeline)], steps: &[Step<'_>], clocks: &[Clock]) -> Vec<StepFigures> {
    let marked = |step: &Step<'_>, end: bool| {
        let marks = step.ranks.iter().zip(clocks).filter_map(|(rank, clock)| {
            let (from, to) = (*rank)?.marked?;
            Some(clock.aligned(if end { to } else { from }))
        });
        if end { marks.max() } else { marks.min() }
    };
    let origin = timelines.first().map(|(zero, _)| *zero).unwrap_or_default();
    let figures = timelines.iter().zip(steps).enumerate().map(|(at, ((zero, timeline), step))| {
        let end = steps.get(at + 1).map_or_else(|| marked(step, true), |next| marked(next, false));
        let iteration =
            marked(step, false).zip(end).and_then(|(start, end)| u64::try_from(end.saturating_sub(start)).ok());
        let start = u64::try_from(zero.saturating_sub(origin)).unwrap_or_default();
        step_figures(timeline, step.number, start, iteration)
    });
    figures.collect()
}

/// Returns the figures of the step that `timeline` shows.
fn step_figures(timeline: &Timeline, number: u64, start_ns: u64, iteration_ns: Option<u64>) -> StepFigures {
    let activities = timeline.activities();
    let recorded: Vec<&Activity> = timeline.recorded().map(|device| &activities[device as usize]).collect();
    let makespan_ns = makespan(&activities);
    let busy: f64 = recorded.iter().map(|activity| activity.busy as f64).sum();
    let whole = recorded.len() as f64 * makespan_ns as f64;
    let bubble = if whole > 0.0 { 1.0 - busy / whole } else { 0.0 };
    let busy_ns = activities.iter().map(|activity| activity.busy).collect();
    let incomplete_devices = timeline.incomplete_devices.clone();
    StepFigures { number, makespan_ns, bubble, iteration_ns, busy_ns, start_ns, incomplete_devices }
}

fn provenance(run: &Run, pipeline: &Pipeline, files: &[String], version: Option<String>) -> BTreeMap<String, String> {
    let clocks = run.clocks.iter().map(|clock| {
        let state = if clock.is_tied { "" } else { " (not tied)" };
        format!("rank {}: {:+.6} s, {:+.1} ppm{state}", clock.rank, clock.offset_ns as f64 / 1e9, clock.drift_ppm)
    });
    let mut all = vec![
        ("format", run.format.to_string()),
        ("files", files.iter().map(|file| pipesim_schedule::sanitize::sanitize(file)).collect::<Vec<_>>().join(", ")),
        ("ranks", pipeline.ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
        ("ops", run.ops.to_string()),
        ("messages", run.messages.to_string()),
        ("clocks", clocks.collect::<Vec<_>>().join("; ")),
        ("warnings", run.warnings.join("; ")),
    ];
    all.extend(version.map(|version| ("pytorch", version)));
    all.into_iter().filter(|(_, text)| !text.is_empty()).map(|(key, text)| (key.to_string(), text)).collect()
}
