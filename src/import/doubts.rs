//! Signs that traces are cut off, edited, or of other ranks than they say.
//!
//! Not everything shows. Traces without the profiler's own marks whose ranks all end after the same step look like traces of a shorter
//! run, and ranks with the same stages in several pipelines differ only by what their files say of them.

use super::event::Class;
use super::message::Step;
use super::pipeline::{PATTERNS, Pattern, Pipeline, list, rank_of_name};
use super::rank::{RankRun, RankStep};
use super::trace::{END, Trace};
use std::collections::BTreeSet;

/// Share of the recorded time after which silence at its end is odd.
const SILENCE: i64 = 10;

/// Says what a file lacks at its end.
pub fn of_end(file: &str, trace: &Trace) -> Vec<String> {
    let mut doubts = Vec::new();
    if !trace.is_kineto {
        return doubts;
    }
    if !trace.has_end && trace.cut.is_none() {
        doubts.push(format!(
            "{file} lacks '{END}', which the profiler writes last: it is cut off, and its last ops and step ops may be missing"
        ));
    }
    let events = trace.events.iter().filter(|event| !matches!(event.class, Class::Step(_)));
    if let (Some((start, end)), Some(last)) = (trace.recorded, events.map(|event| event.end).max()) {
        let (whole, silent) = (end.saturating_sub(start), end.saturating_sub(last));
        if silent > whole / SILENCE {
            doubts.push(format!(
                "{file} has no events in the last {:.3} ms of the {:.3} ms that were recorded: ops and step ops may be missing",
                silent as f64 / 1e6,
                whole as f64 / 1e6
            ));
        }
    }
    doubts
}

/// Says where the rank of a file contradicts its name or its groups.
pub fn of_ranks(runs: &[RankRun]) -> Vec<String> {
    let mut doubts = Vec::new();
    let claimed: BTreeSet<u32> = runs.iter().filter_map(|run| run.rank).collect();
    for run in runs {
        let Some(rank) = run.rank else { continue };
        let file = &run.file;
        if runs.iter().filter(|other| other.file == *file).count() > 1 {
            continue; // a table of several ranks
        }
        // a number that no other file claims may count the ranks of one machine
        if let Some(named) = rank_of_name(file).filter(|named| *named != rank && claimed.contains(named)) {
            doubts.push(format!(
                "{file} is of rank {named} by its name, and of rank {rank} by its distributedInfo, which counts; check which is right"
            ));
        }
        let others = run.groups.iter().find(|group| !group.ranks.is_empty() && !group.ranks.contains(&rank));
        if let Some(group) = others {
            doubts.push(format!(
                "{file} is of rank {rank} by its distributedInfo, but in the group {} of ranks {}; check its rank",
                pipesim_schedule::sanitize::sanitize(&group.name),
                list(&group.ranks)
            ));
        }
    }
    doubts
}

/// Says that stages are placed as no program places them, as they are if ranks are exchanged.
pub fn of_placement(pipeline: &Pipeline) -> Option<String> {
    let p = pipeline.ranks.len() as u32;
    let placed = |pattern: &Pattern, exchanged: &dyn Fn(u32) -> Option<u32>| {
        pipeline.device_of.iter().all(|(&stage, &device)| exchanged(pattern(stage, p)) == Some(device))
    };
    if PATTERNS.iter().any(|pattern| placed(pattern, &Some)) {
        return None;
    }
    // the first p stages say where each device's stages would be
    let first = |device: u32| pipeline.device_of.get(&device).copied();
    let other: Vec<u32> = (0..p).filter(|&stage| first(stage).is_some_and(|device| device != stage)).collect();
    let shown: Vec<String> = other
        .iter()
        .take(4)
        .filter_map(|&stage| Some(format!("stage {stage} on rank {}", pipeline.ranks[first(stage)? as usize])))
        .collect();
    let ranks: Vec<u32> = other.iter().map(|&stage| pipeline.ranks[stage as usize]).collect();
    let advice = if PATTERNS.iter().any(|pattern| placed(pattern, &first)) {
        format!("it would be one of them if the files of ranks {} were exchanged", list(&ranks))
    } else {
        "check the ranks of the files".to_string()
    };
    Some(format!("stages are placed neither round-robin nor in a V: {}; {advice}", shown.join(", ")))
}

/// Names and numbers of the step ops of a rank's step.
const STEP_OPS: [(&str, &str); 2] = [("optimizer", "the optimizer's step"), ("reduce", "a collective after the ops")];

/// Says which ranks and steps lack step ops that others have.
pub fn of_step_ops(pipeline: &Pipeline, steps: &[Step<'_>]) -> Vec<String> {
    let count = |step: &RankStep, name: &str| step.others.iter().filter(|other| other.0 == name).count();
    let of_device = |device: usize| steps.iter().filter_map(move |step| Some((step.number, step.ranks[device]?)));
    let recorded = |device: &usize| pipeline.runs[*device].as_ref().is_some_and(|run| run.has_step_ops);
    let devices: Vec<usize> = (0..pipeline.ranks.len()).filter(recorded).collect();
    let mut doubts = Vec::new();
    for (name, what) in STEP_OPS {
        let most = |device: usize| of_device(device).map(|(_, step)| count(step, name)).max().unwrap_or_default();
        let anywhere = devices.iter().map(|&device| most(device)).max().unwrap_or_default();
        if anywhere == 0 && name == "optimizer" && !devices.is_empty() {
            doubts.push(
                "no rank has the optimizer's step after its ops: if the run had one, the traces are cut off; timelines lack it"
                    .to_string(),
            );
        }
        for &device in &devices {
            // A trace that is cut off has them before. Not all ranks take part in all collectives, as that of tied embeddings.
            if name == "reduce" && most(device) == 0 && of_device(device).count() > 1 {
                continue;
            }
            let usual = most(device).max(usize::from(anywhere > 0));
            let lacking = of_device(device).filter(|(_, step)| count(step, name) < usual);
            let lacking: Vec<String> = lacking.map(|(number, _)| number.to_string()).take(8).collect();
            if !lacking.is_empty() {
                doubts.push(format!(
                    "rank {} lacks {what} in step {}, which other steps or ranks have: its trace may be cut off there",
                    pipeline.ranks[device],
                    lacking.join(", ")
                ));
            }
        }
    }
    doubts
}
