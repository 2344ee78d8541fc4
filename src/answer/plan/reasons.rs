//! Two sentences: why the best plan is the best, and which changes would beat it.

use super::answer::{Plan, RESOLUTION};
use super::nearby::{NearbyPlan, Variation, on_gpus};
use super::search::Search;
use super::space::{Candidate, Space};
use pipesim_cost::analytic::StepTime;
use pipesim_report::changed;

/// Minimum gain that is mentioned.
const WORTH: f64 = 0.005;
/// Multiple of the memory up to which a gain is mentioned.
const MORE_MEMORY: u64 = 2;

/// Returns the parts of an iteration that are not computation, by cause.
fn losses(time: &StepTime) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    time.parts().into_iter().skip(1).map(|part| (part.cause, part.seconds))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Returns the differences between two layouts.
fn difference(plan: &Plan, other: &Plan) -> String {
    let (a, b) = (&plan.layout, &other.layout);
    let mut words = Vec::new();
    let mut add = |differs: bool, text: String| words.extend(differs.then_some(text));
    add(a.tp != b.tp, format!("tp {}", b.tp));
    add(a.pp != b.pp, format!("pp {}", b.pp));
    add(a.dp != b.dp, format!("dp {}", b.dp));
    add(a.cp != b.cp, format!("cp {}", b.cp));
    add(a.ep != b.ep, format!("ep {}", b.ep));
    add(plan.schedule != other.schedule && b.pp > 1, other.schedule.clone());
    add(a.chunks != b.chunks && b.pp > 1, format!("{} chunk{}", b.chunks, if b.chunks == 1 { "" } else { "s" }));
    add(a.micro_batch_size != b.micro_batch_size, format!("micro-batch {}", b.micro_batch_size));
    add(a.recompute != b.recompute, format!("recompute {}", b.recompute));
    add(a.zero != b.zero, format!("ZeRO {}", b.zero));
    add(a.shard != b.shard, b.shard.map_or("shared by all".to_string(), |shard| format!("shard {shard}")));
    add(
        a.sequence_parallel != b.sequence_parallel,
        format!("sequence parallelism {}", if b.sequence_parallel { "on" } else { "off" }),
    );
    let options = if b.options().words().is_empty() { "default options".to_string() } else { b.options().words() };
    add(a.options() != b.options(), options);
    if words.is_empty() { "the same layout".to_string() } else { words.join(", ") }
}

/// Returns two sentences: why `best` is the best, and what would beat it.
pub fn why(search: &Search<'_>, best: &Plan, nearby: &[NearbyPlan]) -> [String; 2] {
    let time = best.estimate.iteration_s;
    let parts = best.estimate.time_s;
    let most = losses(&parts).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("", 0.0));
    let computes = percent(parts.compute / time);
    let gpus = best.layout.gpus();
    let faster = search.one(search.question.bytes(), &on_gpus(gpus)).filter(|plan| plan.estimate.iteration_s < time);
    let fastest = faster.as_ref().map_or(time, |plan| plan.estimate.iteration_s);
    let less_known = |plan: &Plan| plan.estimate.outside.len() > best.estimate.outside.len();
    let chosen = match &faster {
        Some(plan) if less_known(plan) => {
            let why = plan.estimate.outside.iter().filter(|why| !best.estimate.outside.contains(*why));
            let why = why.cloned().collect::<Vec<_>>().join(" and ");
            let (what, change) = (difference(best, plan), changed(fastest / time - 1.0));
            format!("the fastest ({what}) is predicted {change} in time, but {why}, so that its interval ends later; ")
        }
        Some(_) => format!(
            "it is the simplest layout within {:.0} % of the fastest, which predictions cannot tell from it; ",
            100.0 * RESOLUTION
        ),
        None => String::new(),
    };
    let unlike = match best.estimate.outside.as_slice() {
        [] => String::new(),
        why => format!(" It is less certain than usual: {}.", why.join("; ")),
    };
    let start = format!(
        "{chosen}{computes} of its step is computation, and the largest loss is {}, {}",
        most.0,
        percent(most.1 / time)
    );
    let degrees = (best.layout.tp, best.layout.pp);
    let other = search.one(search.question.bytes(), &|space: &Space, candidate: &Candidate| {
        let group = space.group(candidate);
        u64::from(group.gpus) == gpus && (group.tp, space.shape(candidate).pp) != degrees
    });
    let first = match other {
        None => {
            let allows = |space: &Space, candidate: &Candidate| {
                (space.group(candidate).tp, space.shape(candidate).pp) != degrees
            };
            let is_listed = search.space.candidates.iter().any(|candidate| allows(&search.space, candidate));
            let why = if is_listed { "fits" } else { "was asked for" };
            format!("{start}; no layout with other degrees {why}.")
        }
        Some(other) => {
            let theirs = other.estimate.time_s;
            let rest = losses(&theirs).zip(losses(&parts)).map(|((name, theirs), (_, own))| (name, theirs - own));
            let compute = ("computation", theirs.compute - parts.compute);
            let more = rest.chain([compute]).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("", 0.0));
            let (what, change) = (difference(best, &other), other.estimate.iteration_s / time - 1.0);
            if (-RESOLUTION..=RESOLUTION).contains(&change) {
                format!(
                    "{start}; the best with another tp or pp ({what}) is predicted {} in time, too little to tell them apart.",
                    changed(change)
                )
            } else {
                format!(
                    "{start}; the best with another tp or pp ({what}) takes {} in time, most of it for {}.",
                    changed(change),
                    more.0
                )
            }
        }
    };
    [first + &unlike, beats(search, best, fastest, nearby)]
}

/// Returns the changes that would beat the best plan.
fn beats(search: &Search<'_>, best: &Plan, fastest: f64, nearby: &[NearbyPlan]) -> String {
    let speed = best.estimate.tokens_per_second_per_gpu * best.estimate.iteration_s / fastest;
    let gpus = best.layout.gpus();
    let mut ways = Vec::new();
    if let Some(plan) = search.one(search.question.bytes().saturating_mul(MORE_MEMORY), &on_gpus(gpus)) {
        let gain = plan.estimate.tokens_per_second_per_gpu / speed - 1.0;
        if gain > WORTH {
            let what = difference(best, &plan);
            ways.push(format!("{} per GPU ({what}, {} tokens/s)", gib(plan.memory_bytes()), changed(gain)));
        }
    }
    for NearbyPlan { change, plan } in nearby {
        let Some(plan) = plan else { continue };
        let gain = plan.estimate.tokens_per_second_per_gpu / speed - 1.0;
        let what = match change {
            Variation::Memory(_) => continue,
            Variation::Link(times) => format!("links within nodes {times} times as fast"),
            Variation::Network(times) => format!("a network {times} times as fast"),
            Variation::Batch(times) => format!("a batch of {}", search.question.batch.saturating_mul(*times)),
        };
        if gain > WORTH {
            ways.push(format!("{what} ({}, {} tokens/s)", difference(best, plan), changed(gain)));
        }
    }
    match ways.len() {
        0 => "More memory, faster links or a larger batch would gain less than 0.5 %.".to_string(),
        _ => format!("What would beat it: {}.", ways.join("; ")),
    }
}
