//! What `report accuracy` says, as tables.

use super::{Outcome, Seen, Steps};
use crate::cost::{Contention, CostFile};
use crate::report::Table;
use crate::sim::Interval;
use crate::statistics::{median_ci95, quantile};
use std::collections::BTreeMap;

/// What was measured of a schedule, and that held against its prediction.
pub(super) type Judged<'a> = (&'a Steps, &'a Outcome);

/// Each row; the errors in short, by m and by transfer; what neighbours cost. `calibrating` is what was calibrated on, under its name.
pub(super) fn tables(judged: &[Judged<'_>], calibrating: (&str, &Steps), costs: &CostFile, seen: &Seen) -> Vec<Table> {
    let (same, other): (Vec<_>, Vec<_>) = judged.iter().copied().partition(|(_, outcome)| outcome.transfer.is_none());
    let mut tables = vec![rows(&same), summary(&same, judged, calibrating, seen), by_m(&same, calibrating.0)];
    if !other.is_empty() {
        tables.push(transfers(&other));
        tables.push(Table { caption: "The same by schedule".to_string(), ..rows(&other) });
    }
    tables.extend(costs.contention.as_ref().map(neighbours));
    if !costs.link.per_mille.is_empty() {
        tables.push(puts(&costs.link.per_mille));
    }
    tables
}

fn table(caption: &str, header: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { caption: caption.to_string(), header: header.iter().map(|&name| name.to_string()).collect(), rows }
}

/// The absolute values' mean, the largest, and the mean with its sign, in percent of a share.
struct Errors {
    mean: f64,
    largest: f64,
    signed: f64,
}

impl Errors {
    fn of(shares: impl Iterator<Item = f64>) -> Errors {
        let all: Vec<f64> = shares.map(|share| 100.0 * share).collect();
        Errors {
            mean: mean(all.iter().map(|error| error.abs())),
            largest: all.iter().map(|error| error.abs()).fold(0.0, f64::max),
            signed: mean(all.iter().copied()),
        }
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// The errors of all but what was calibrated on, summed up.
fn summary(
    judged: &[Judged<'_>],
    all: &[Judged<'_>],
    (calibrated_on, calibrating): (&str, &Steps),
    seen: &Seen,
) -> Table {
    let unseen: Vec<&Outcome> = judged.iter().map(|(_, o)| *o).filter(|o| o.schedule != calibrated_on).collect();
    let errors = Errors::of(unseen.iter().map(|o| o.error.typical_makespan));
    let iterations = Errors::of(unseen.iter().map(|o| o.error.typical_iteration));
    let bubbles = Errors::of(unseen.iter().map(|o| o.error.typical_bubble / 100.0));
    let replays = Errors::of(judged.iter().map(|(_, o)| o.error.self_replay));
    let absolute: Vec<f64> = unseen.iter().map(|o| 100.0 * o.error.typical_makespan.abs()).collect();
    let order = Order::of(judged);
    let row = |what: &str, value: String| vec![what.to_string(), value];
    // Of no schedules there are no errors.
    let of_unseen = |value: String| if unseen.is_empty() { "none was judged".to_string() } else { value };
    let quartiles = [0.25, 0.75].map(|share| quantile(&absolute, share));
    let mut rows = vec![
        row("mean absolute makespan error", of_unseen(format!("{:.2} %", errors.mean))),
        row("its middle half (quartiles)", of_unseen(format!("{:.2} to {:.2} %", quartiles[0], quartiles[1]))),
        row("largest makespan error", of_unseen(format!("{:.2} %", errors.largest))),
        row("mean signed makespan error", of_unseen(format!("{:+.2} %", errors.signed))),
        row("mean absolute iteration error", of_unseen(format!("{:.2} %", iterations.mean))),
        row("mean absolute bubble error", of_unseen(format!("{:.2} points", bubbles.mean))),
        row("mean self-replay error, all", format!("{:.2} %", replays.mean)),
        row(
            "pairs of schedules ordered right, of those that the steps can tell apart",
            format!("{} of {}; ties: {}", order.right, order.pairs, order.ties),
        ),
    ];
    let periods: Vec<f64> = unseen.iter().filter_map(|o| o.error.typical_period).collect();
    if !periods.is_empty() {
        let value = format!("{:.2} %", Errors::of(periods.into_iter()).mean);
        rows.push(row("mean absolute error of the period, steps without a barrier between", value));
    }
    rows.extend(coverage(all).map(|[of_80, of_95]| {
        let (count, share) = (all.len(), |held: usize| 100.0 * held as f64 / all.len() as f64);
        row(
            "measured within the 80 % and the 95 % interval, all",
            format!("{of_80} and {of_95} of {count} ({:.0} and {:.0} %)", share(of_80), share(of_95)),
        )
    }));
    let uncontended: Vec<f64> = unseen.iter().filter_map(|o| o.error.uncontended_makespan).collect();
    if uncontended.len() == unseen.len() && !unseen.is_empty() {
        let value = format!("{:.2} %", Errors::of(uncontended.into_iter()).mean);
        rows.push(row("mean absolute makespan error without contention", value));
    }
    rows.push(row("drift of the machine over the run", format!("{:+.2} %", 100.0 * calibrating.drift())));
    let jumps: Vec<String> = calibrating.jumps().iter().map(ToString::to_string).collect();
    rows.push(row(
        "jumps of the machine's speed",
        if jumps.is_empty() { "none".to_string() } else { jumps.join(", ") },
    ));
    let known = |value: String| if seen.is_known() { value } else { "not known".to_string() };
    rows.push(row("cores kept busy by other programs", known(format!("{:.2}", seen.other_cores))));
    rows.push(row("cores taken by a hypervisor", known(format!("{:.2}", seen.stolen_cores))));
    rows.push(row("threads that had to make room, a step", known(format!("{:.1}", seen.preempted))));
    let queued = if seen.queued_ms > 0.0 { format!("{:.1} ms", seen.queued_ms) } else { "not known".to_string() };
    rows.push(row("time that threads waited for a core, a step", queued));
    rows.push(row("steps of all schedules that other loads hit", known(format!("{} of {}", seen.hit, seen.steps))));
    let undisturbed: Option<Vec<f64>> = unseen.iter().map(|o| o.error.undisturbed_makespan).collect();
    rows.push(row(
        "mean absolute makespan error without them",
        match undisturbed {
            Some(errors) => format!("{:.2} %", Errors::of(errors.into_iter()).mean),
            None => "some schedules have no others".to_string(),
        },
    ));
    let m = calibrating.graph.schedule().microbatches;
    let caption = format!("Summary: schedules other than {calibrated_on}, which was calibrated on at m = {m}");
    table(&caption, &["what", "value"], rows)
}

/// Of how many the measured makespan lay within the intervals; none where there are none.
fn coverage(judged: &[Judged<'_>]) -> Option<[usize; 2]> {
    let interval = |(_, o): &Judged<'_>| Some((paired_ms(o), o.predicted.interval?));
    let intervals: Vec<(f64, Interval)> = judged.iter().map(interval).collect::<Option<_>>()?;
    let held =
        |of: fn(&Interval) -> [f64; 2]| intervals.iter().filter(|(time, interval)| is_in(of(interval), *time)).count();
    Some([held(|interval| interval.within_80), held(|interval| interval.within_95)])
}

fn is_in([low, high]: [f64; 2], time: f64) -> bool {
    (low..=high).contains(&time)
}

/// Of all pairs of schedules at one m, how many the prediction orders as measured; ties are those that the measurement does not order:
/// the 95 % interval of the ratio of their steps, which ran in turn, holds 1.
struct Order {
    right: usize,
    pairs: usize,
    ties: usize,
}

impl Order {
    fn of(judged: &[Judged<'_>]) -> Order {
        let mut order = Order { right: 0, pairs: 0, ties: 0 };
        for (i, (a_steps, a)) in judged.iter().enumerate() {
            for (b_steps, b) in judged[i + 1..].iter().filter(|(_, b)| b.microbatches == a.microbatches) {
                let ratio = |(a, b): (&crate::exec::StepRecord, &crate::exec::StepRecord)| {
                    (a.makespan_ns() as f64 / b.makespan_ns().max(1) as f64).ln()
                };
                let ratios: Vec<f64> = a_steps.records.iter().zip(&b_steps.records).map(ratio).collect();
                let [low, high] = median_ci95(&ratios);
                if low <= 0.0 && high >= 0.0 {
                    order.ties += 1;
                    continue;
                }
                order.pairs += 1;
                order.right += usize::from((a.expected_makespan_ms < b.expected_makespan_ms) == (high < 0.0));
            }
        }
        order
    }
}

/// What was measured, step by step against its prediction: where that counts, not the two typical times, that may be of other steps.
fn paired_ms(o: &Outcome) -> f64 {
    o.expected_makespan_ms / (1.0 + o.error.typical_makespan)
}

/// Errors as they are where neighbours are taken to cost nothing.
const UNCONTENDED: &str = "error without contention";

fn rows(judged: &[Judged<'_>]) -> Table {
    let is_contended = judged.iter().any(|(_, o)| o.error.uncontended_makespan.is_some());
    let is_in_a_row = judged.iter().any(|(_, o)| o.error.typical_period.is_some());
    let mut header = vec![
        "schedule",
        "m",
        "measured ms",
        "predicted ms",
        "error",
        "80 % interval ms",
        "95 % interval ms",
        "held by",
        "iteration error",
        "bubble error",
        "op start p95",
        "steps hit",
    ];
    header.extend(is_in_a_row.then_some("period error"));
    header.extend(is_contended.then_some(UNCONTENDED));
    let range = |[low, high]: [f64; 2]| format!("{low:.1} to {high:.1}");
    let row = |&(steps, o): &Judged<'_>| {
        let (paired, interval) = (paired_ms(o), o.predicted.interval);
        let held = |i: Interval| match (is_in(i.within_80, paired), is_in(i.within_95, paired)) {
            (true, _) => "80 %",
            (_, true) => "95 %",
            _ => "none",
        };
        let hit = steps.records.iter().filter(|record| record.load.is_noticed()).count();
        let uncontended = o.error.uncontended_makespan.map_or_else(String::new, |e| format!("{:+.2} %", 100.0 * e));
        let mut row = vec![
            o.transfer.as_ref().map_or_else(|| o.schedule.clone(), |name| format!("{} {name}", o.schedule)),
            o.microbatches.to_string(),
            format!("{:.1}", o.typical_makespan_ms),
            format!("{:.1}", o.expected_makespan_ms),
            format!("{:+.2} %", 100.0 * o.error.typical_makespan),
            interval.map_or_else(String::new, |i| range(i.within_80)),
            interval.map_or_else(String::new, |i| range(i.within_95)),
            interval.map_or("", held).to_string(),
            format!("{:+.2} %", 100.0 * o.error.typical_iteration),
            format!("{:+.2} points", o.error.typical_bubble),
            format!("{:.2} %", 100.0 * o.error.op_start_p95),
            format!("{hit} of {}", steps.records.len()),
        ];
        let period = || o.error.typical_period.map_or_else(String::new, |error| format!("{:+.2} %", 100.0 * error));
        row.extend(is_in_a_row.then(period));
        row.extend(is_contended.then_some(uncontended));
        row
    };
    table("Makespan, predicted and measured over all steps", &header, judged.iter().map(row).collect())
}

/// Errors with their sign against m.
fn by_m(judged: &[Judged<'_>], calibrated_on: &str) -> Table {
    let mut all: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (_, o) in judged.iter().filter(|(_, o)| o.schedule != calibrated_on) {
        all.entry(o.microbatches).or_default().push(o.error.typical_makespan);
    }
    let row = |(m, errors): (u32, Vec<f64>)| {
        let Errors { mean, largest, signed } = Errors::of(errors.into_iter());
        vec![m.to_string(), format!("{signed:+.2} %"), format!("{mean:.2} %"), format!("{largest:.2} %")]
    };
    let rows = all.into_iter().map(row).collect();
    table("Error against m", &["m", "mean signed error", "mean absolute error", "largest"], rows)
}

/// Errors of what is trained otherwise than where costs were measured.
fn transfers(judged: &[Judged<'_>]) -> Table {
    let mut all: Vec<(&str, Vec<f64>)> = Vec::new();
    for (_, o) in judged {
        let name = o.transfer.as_deref().unwrap_or_default();
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, errors)) => errors.push(o.error.typical_makespan),
            None => all.push((name, vec![o.error.typical_makespan])),
        }
    }
    let row = |(name, errors): (&str, Vec<f64>)| {
        let (count, Errors { mean, largest, signed }) = (errors.len(), Errors::of(errors.into_iter()));
        let [mean, largest] = [mean, largest].map(|error| format!("{error:.2} %"));
        vec![name.to_string(), count.to_string(), format!("{signed:+.2} %"), mean, largest]
    };
    let header = ["transfer to", "schedules", "mean signed error", "mean absolute error", "largest"];
    table("Transfer: predicted from the same costs, trained otherwise", &header, all.into_iter().map(row).collect())
}

/// What devices that compute beside each other cost each other.
fn neighbours(contention: &Contention) -> Table {
    let caption = format!("Contention on {} cores: how long an op lasts, against alone", contention.cores);
    table(&caption, &["devices that compute", "an op lasts"], factors(&contention.per_mille))
}

/// What puts that are under way at the same time cost each other.
fn puts(per_mille: &[u32]) -> Table {
    let caption = "Contention of links: how long a put lasts, against alone";
    table(caption, &["puts under way", "a put lasts"], factors(per_mille))
}

/// By number, from 1, how many times as long something lasts.
fn factors(per_mille: &[u32]) -> Vec<Vec<String>> {
    let row = |(n, &per_mille): (usize, &u32)| vec![(n + 1).to_string(), format!("{:.3}", f64::from(per_mille) / 1e3)];
    per_mille.iter().enumerate().map(row).collect()
}
