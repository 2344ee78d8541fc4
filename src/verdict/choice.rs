//! The plan to take in a few lines: its figures, why it is the one, what it leaves of the memory, and what else may be as good.

use crate::calibration::FirstTry;
use crate::prediction::{bands, uncertainty};
use pipesim_answer::plan::{Candidate, MEMORY_ERROR, Plan, PlanReport, RESOLUTION, Search, Space};
use pipesim_answer::question::Objective;
use pipesim_models::layout::{Recompute, Zero};
use pipesim_report::{changed, gibibytes, number, percent, quantity};
use serde::Serialize;
use std::collections::BTreeSet;

/// Plans of other degrees that are shown.
const OTHERS: usize = 3;

/// Least share by which another plan's time is mentioned as less than that of plan 1.
const LEAST_GAIN: f64 = 0.001;

/// What a plan leaves of the memory, and the fastest plan that leaves the mean error of predicted memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryMargin {
    /// Bytes of the device, or of the limit that was asked for, that the plan does not take.
    pub left_bytes: u64,
    /// Mean error of the plan's predicted memory, in bytes.
    pub error_bytes: u64,
    /// What is said of it; empty if more is left.
    pub sentence: String,
    /// The fastest plan that leaves more, if this one does not.
    #[serde(skip)]
    pub safe: Option<Plan>,
}

/// Returns what plan 1 leaves of the memory.
pub fn margin(search: &Search<'_>, best: &Plan) -> MemoryMargin {
    let question = search.question;
    let limit = question.memory_limit.unwrap_or(question.machine.hardware.memory_bytes());
    let used = best.memory_bytes();
    let left_bytes = limit.saturating_sub(used);
    let error_bytes = (used as f64 * MEMORY_ERROR) as u64;
    if left_bytes >= error_bytes {
        return MemoryMargin { left_bytes, error_bytes, sentence: String::new(), safe: None };
    }
    let gpus = best.layout.gpus();
    let is_as_large = |space: &Space, candidate: &Candidate| u64::from(space.group(candidate).gpus) == gpus;
    let safe = search.one(question.safe_bytes(), &is_as_large);
    let instead = match &safe {
        None => "no layout leaves more".to_string(),
        Some(plan) => format!(
            "`risk` low keeps that margin ({}, {} in time)",
            gibibytes(plan.memory_bytes()),
            changed(plan.estimate.iteration_s / best.estimate.iteration_s - 1.0)
        ),
    };
    let left = gibibytes(left_bytes);
    let sentence = format!(
        "It leaves {left}, less than the mean error of predicted memory ({}); {instead}.",
        percent(MEMORY_ERROR)
    );
    MemoryMargin { left_bytes, error_bytes, sentence, safe }
}

/// Returns the layout of a plan in words: `tp 4, pp 4, dp 4, interleaved-1f1b, 5 chunks, micro-batch 1 × 32`.
fn layout(plan: &Plan) -> String {
    let own = &plan.layout;
    let mut words = vec![degrees_of(plan)];
    let mut add = |is_said: bool, text: String| words.extend(is_said.then_some(text));
    add(own.pp > 1, plan.schedule.clone());
    add(own.pp > 1 && own.chunks > 1 && plan.names_chunks, format!("{} chunks", own.chunks));
    add(own.layers.is_some(), "layers moved".to_string());
    add(plan.estimate.is_split_by_cost, "layers split by cost".to_string());
    add(true, format!("micro-batch {} × {}", own.micro_batch_size, own.micro));
    add(own.recompute != Recompute::None, format!("recompute {}", own.recompute));
    add(own.zero != Zero::None, format!("ZeRO {}", own.zero));
    add(own.shard.is_some(), format!("shard {}", own.shard.unwrap_or_default()));
    add(!own.options().words().is_empty(), own.options().words());
    add(own.optimizer_offload > 0.0, format!("optimizer offload {}", own.optimizer_offload));
    words.join(", ")
}

/// Returns the answer in at most six lines: what was asked, plan 1, why, what it leaves of the memory, and what to measure.
pub fn lines(report: &PlanReport<'_>, margin: Option<&MemoryMargin>, tries: &[FirstTry]) -> Vec<String> {
    let question = report.search.question;
    let Some(best) = report.plans.plans.first() else { return Vec::new() };
    let estimate = &best.estimate;
    let mut lines = vec![
        format!(
            "{}: {} sequences of {} tokens per step, {}",
            report.title(),
            number(f64::from(question.batch)),
            number(f64::from(question.sequence)),
            question.machine.stack.name
        ),
        format!(
            "Plan 1{}: {}",
            if question.gpus.len() > 1 { format!(", on {} GPUs", best.layout.gpus()) } else { String::new() },
            layout(best)
        ),
        format!(
            "{} (90 % within {}), {} tokens/s/GPU, MFU {}, {} of {}",
            quantity(1e3 * estimate.iteration_s, "ms"),
            bands(estimate),
            number(estimate.tokens_per_second_per_gpu),
            percent(estimate.mfu),
            gibibytes(best.memory_bytes()),
            gibibytes(question.memory_limit.unwrap_or(question.machine.hardware.memory_bytes()))
        ),
    ];
    lines.push(why(report, best));
    lines.extend(margin.filter(|margin| !margin.sentence.is_empty()).map(|margin| margin.sentence.clone()));
    lines.extend(Some(measured_first(tries)).filter(|text| !text.is_empty()));
    lines
}

/// Says what plan 1's time goes to, and of how many it was chosen.
fn why(report: &PlanReport<'_>, best: &Plan) -> String {
    let estimate = &best.estimate;
    let parts = estimate.time_s.parts();
    let most = parts.iter().skip(1).max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let loss = most.map_or_else(String::new, |part| {
        format!("; the largest loss is {}, {}", part.cause, percent(part.seconds / estimate.iteration_s))
    });
    let limit = estimate.iteration_s * (1.0 + RESOLUTION);
    let near = report.plans.plans.iter().skip(1).filter(|plan| plan.estimate.iteration_s <= limit).count();
    let near = match near {
        0 => String::new(),
        near => format!("; {near} more within {:.0} %, too close to rank", 100.0 * RESOLUTION),
    };
    let outside = Some(uncertainty(estimate)).filter(|why| !why.is_empty());
    let outside = outside.map_or_else(String::new, |why| format!("; {why}"));
    let preferred = preferred(report, best).unwrap_or_default();
    format!(
        "{} of it is computation{loss}{near}{outside}.{preferred}",
        percent(parts[0].seconds / estimate.iteration_s)
    )
}

/// Says why plan 1 is not the one with the least predicted time, if another has less.
fn preferred(report: &PlanReport<'_>, best: &Plan) -> Option<String> {
    let question = report.search.question;
    let cost = |plan: &Plan| match question.objective {
        Objective::Time => plan.estimate.iteration_s,
        Objective::TokensPerGpu | Objective::Cost => 1.0 / plan.estimate.tokens_per_second_per_gpu,
    };
    let others = (2..).zip(report.plans.plans.iter().skip(1));
    let (rank, fastest) = others.min_by(|a, b| cost(a.1).total_cmp(&cost(b.1)))?;
    let gain = 1.0 - cost(fastest) / cost(best);
    if gain < LEAST_GAIN {
        return None;
    }
    let is_safe = |plan: &Plan| plan.memory_bytes() <= question.safe_bytes();
    let simpler = || best.preference?.simpler_in(&fastest.preference?);
    let why = match () {
        () if best.estimate.outside.len() < fastest.estimate.outside.len() => {
            "plan 1 is more like what was measured".to_string()
        }
        () if is_safe(best) && !is_safe(fastest) => {
            "plan 1 leaves more memory free, as predictions of memory err".to_string()
        }
        () => match simpler() {
            Some(what) => format!("too little to tell; plan 1 is simpler: {what}"),
            None => "too little to tell them apart".to_string(),
        },
    };
    Some(format!(" Plan {rank} is predicted {} shorter: {why}.", percent(gain)))
}

/// Says which plans to measure first.
fn measured_first(tries: &[FirstTry]) -> String {
    let plans: Vec<String> = tries.iter().map(|one| one.plan.to_string()).collect();
    match plans.split_last() {
        None => String::new(),
        Some((last, [])) => format!("Measure plan {last} first (`calibrate`)."),
        Some((last, others)) => format!("Measure plans {} and {last} first (`calibrate`).", others.join(", ")),
    }
}

/// Returns the degrees of a plan in words.
fn degrees_of(plan: &Plan) -> String {
    let own = &plan.layout;
    let all = [("tp", own.tp), ("pp", own.pp), ("dp", own.dp), ("cp", own.cp), ("ep", own.ep)];
    let said = all.iter().enumerate().filter(|(which, (_, degree))| *which < 3 || *degree > 1);
    said.map(|(_, (name, degree))| format!("{name} {degree}")).collect::<Vec<_>>().join(", ")
}

/// Returns the best plans of other degrees, a line each: their times, and how much longer they take.
pub fn others(report: &PlanReport<'_>) -> Vec<String> {
    let Some(best) = report.plans.plans.first() else { return Vec::new() };
    let degrees =
        |plan: &Plan| [plan.layout.gpus(), plan.layout.tp.into(), plan.layout.pp.into(), plan.layout.dp.into()];
    let mut seen: BTreeSet<[u64; 4]> = [degrees(best)].into();
    let other =
        (2..).zip(report.plans.plans.iter().skip(1)).filter(|(_, plan)| seen.insert(degrees(plan))).take(OTHERS);
    let line = |(rank, plan): (usize, &Plan)| {
        let change = changed(plan.estimate.iteration_s / best.estimate.iteration_s - 1.0);
        let (time, memory) = (quantity(1e3 * plan.estimate.iteration_s, "ms"), gibibytes(plan.memory_bytes()));
        format!("Or plan {rank}: {}: {time}, {change}, {memory}", degrees_of(plan))
    };
    let lines: Vec<String> = other.map(line).collect();
    if lines.is_empty() { vec!["All plans shown have these degrees.".to_string()] } else { lines }
}
