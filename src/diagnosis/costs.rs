//! A cost file from measured steps: by stage and kind, how long ops last, how late hosts start the next one, and how long messages take.

use super::{Error, MeasuredStep};
use pipesim_cost::{CostFile, LinkCost, MEASURED_SCHEMA_VERSION, StageCost, StageKindCost, StepRates};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use pipesim_schedule::op::Kind;
use pipesim_schedule::statistics::quantile;
use pipesim_schedule::timeline::Timeline;
use std::collections::BTreeMap;

/// Samples in ns of one stage and kind.
#[derive(Default)]
struct Samples {
    durations: Vec<u64>,
    gaps: Vec<u64>,
    messages: Vec<u64>,
}

fn mean(samples: &[u64]) -> Option<u64> {
    (!samples.is_empty()).then(|| {
        let sum: u128 = samples.iter().map(|&sample| u128::from(sample)).sum();
        (sum / samples.len() as u128) as u64
    })
}

/// How many times the median a gap or a message may take to count: what takes longer is a pause of that run, which
/// [`super::findings`] names, and not a cost that other schedules would pay.
const USUAL: u64 = 5;

/// Returns the mean of the usual ones.
fn usual_mean(samples: &[u64]) -> Option<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let most = sorted.get(sorted.len() / 2).map_or(0, |median| median.saturating_mul(USUAL));
    mean(&sorted[..sorted.partition_point(|&sample| most == 0 || sample <= most)])
}

impl Samples {
    fn cost(&self) -> StageKindCost {
        let all: Vec<f64> = self.durations.iter().map(|&ns| ns as f64).collect();
        let at = |share: f64| quantile(&all, share).round() as u64;
        StageKindCost {
            duration_ns: mean(&self.durations).unwrap_or(0),
            median_ns: at(0.5),
            p10_ns: at(0.1),
            p90_ns: at(0.9),
            samples: self.durations.len() as u64,
            gap_ns: usual_mean(&self.gaps),
            message_ns: usual_mean(&self.messages),
        }
    }
}

/// Returns the costs of measured steps of one run, for `predict --profile`.
///
/// Durations, gaps and messages are means: a pipeline waits for its slow ops, which medians hide. Gaps and messages of more than five times
/// the median are left out: they are pauses. A gap is the time from the end of an op
/// to the start of the next one on its device where nothing else was awaited; a message, the time from the end of an op to the start of
/// the op on another device that waited for it.
///
/// # Errors
/// No timelines, timelines of different pipelines, in abstract units, or with incomplete devices.
pub fn costs(timelines: &[&Timeline]) -> Result<CostFile, Error> {
    let steps = timelines.iter().map(|timeline| MeasuredStep::new(timeline)).collect::<Result<Vec<_>, Error>>()?;
    let Some((first, timeline)) = steps.first().zip(timelines.first()) else {
        return Err(Error::NoTimeline);
    };
    if timeline.time_unit == "unit" {
        return Err(Error::NoUnit);
    }
    let placement = &first.graph.schedule().placement;
    if steps.iter().any(|step| step.graph.schedule().placement != *placement) {
        return Err(Error::SeveralRuns);
    }
    let mut samples: BTreeMap<(u32, Kind), Samples> = BTreeMap::new();
    steps.iter().for_each(|step| step.collect(&mut samples));
    let stage = |stage: u32| {
        let kinds = Kind::ALL.into_iter().filter_map(|kind| Some((kind, samples.get(&(stage, kind))?)));
        let kinds = kinds.map(|(kind, of)| (kind.letter().to_string(), of.cost())).collect();
        StageCost { kinds, ..StageCost::default() }
    };
    let all = |of: fn(&Samples) -> &Vec<u64>| {
        usual_mean(&samples.values().flat_map(of).copied().collect::<Vec<_>>()).unwrap_or(0)
    };
    Ok(CostFile {
        schema_version: MEASURED_SCHEMA_VERSION,
        provenance: provenance(timeline, &first.graph, steps.len()),
        mesh: Mesh::default(),
        layers: 0,
        tied: true,
        parts: Vec::new(),
        op_overhead_ns: ["F", "I", "W"].map(|kind| (kind.to_string(), 0)).into(),
        gap_ns: all(|of| &of.gaps),
        link: LinkCost { beside_compute: true, latency_ns: all(|of| &of.messages), ..LinkCost::default() },
        step: StepRates::default(),
        keep: timeline.keep,
        speeds: Vec::new(),
        contention: None,
        stages: (0..placement.stages()).map(stage).collect(),
    })
}

impl MeasuredStep {
    fn collect(&self, samples: &mut BTreeMap<(u32, Kind), Samples>) {
        let key = |index: usize| (self.graph.op(index).stage(), self.graph.op(index).kind());
        for index in 0..self.graph.len() {
            samples.entry(key(index)).or_default().durations.push(self.times.duration(index));
            let (needs, start) = (self.needs(index), self.times.start[index]);
            match (self.graph.before(index), needs.maker) {
                (_, Some(maker)) if needs.is_message && needs.made > needs.free => {
                    samples.entry(key(maker)).or_default().messages.push(start.saturating_sub(needs.made));
                }
                (Some(before), _) => {
                    samples.entry(key(before)).or_default().gaps.push(start.saturating_sub(needs.free.max(needs.made)));
                }
                _ => {}
            }
        }
    }
}

fn provenance(timeline: &Timeline, graph: &TaskGraph, steps: usize) -> BTreeMap<String, String> {
    let schedule = graph.schedule();
    let facts = [
        ("schedule", schedule.name.clone()),
        ("devices", schedule.devices().to_string()),
        ("microbatches", schedule.microbatches.to_string()),
        ("steps", steps.to_string()),
    ];
    let mut provenance = timeline.provenance.clone();
    provenance.extend(facts.map(|(key, value)| (key.to_string(), value)));
    provenance
}
