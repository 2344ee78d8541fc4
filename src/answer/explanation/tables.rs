//! Explanations as tables, one of each kind for all schedules, with definitions in the captions.

use super::{RunDiagnosis, StepExplanation};
use pipesim_diagnosis::{DeliveryFit, StageTime};
use pipesim_report::{self as report, Table, number, percent, quantity};
use pipesim_sim::{Cause, CriticalSpan, IdleTime, MemoryCurve};

/// Most sensitivities per schedule.
const SHOWN_PARTS: usize = 6;
/// Most stretches of the critical path at either end.
const SHOWN_STRETCHES: usize = 8;
/// Devices per schedule that a table shows if there are more than [`MOST_DEVICES`].
const SHOWN_DEVICES: usize = 4;
const MOST_DEVICES: usize = 32;

fn units(all: &[StepExplanation]) -> &str {
    let unit = all.first().map_or("unit", |e| e.time_unit.as_str());
    if unit == "unit" { "units" } else { unit }
}

impl StepExplanation {
    /// Returns the tables of explanations, each below its definitions.
    pub fn tables(all: &[StepExplanation]) -> Vec<Table> {
        let mut tables = vec![idle(all), bounds(all), sensitivities(all), path(all), memory(all)];
        let measured: Vec<_> = all.iter().filter_map(|e| Some((e, e.measured.as_ref()?))).collect();
        if !measured.is_empty() {
            tables.splice(1..1, [stages(&measured), fits(&measured)]);
            tables.extend(
                measured
                    .iter()
                    .filter_map(|(e, m)| Some(report::steps_table(&e.schedule, &e.time_unit, m.trend.as_ref()?))),
            );
        }
        tables
    }

    /// Returns a CSV row per idle interval.
    pub fn csv(explanations: &[StepExplanation]) -> String {
        let mut text = String::from("schedule,device,start,end,cause,next,op,on\n");
        for e in explanations {
            for idle in &e.idle.idle {
                let cause = serde_json::to_value(idle.cause).ok().and_then(|cause| cause.as_str().map(str::to_string));
                let on = idle.on.map_or_else(String::new, |on| on.to_string());
                let [next, op] = [&idle.next, &idle.op].map(|op| op.clone().unwrap_or_default());
                text += &format!(
                    "{},{},{},{},{},{next},{op},{on}\n",
                    report::csv_cell(&e.schedule),
                    idle.device,
                    idle.start,
                    idle.end,
                    cause.unwrap_or_default()
                );
            }
        }
        text
    }
}

/// Times of stages of measured steps.
fn stages(all: &[(&StepExplanation, &RunDiagnosis)]) -> Table {
    let row = |e: &StepExplanation, t: &StageTime| {
        let kinds = [t.forward, t.input, t.weights, t.backward];
        let kinds = kinds.map(|time| if time > 0.0 { number(time) } else { "–".to_string() });
        let names = [e.schedule.clone(), t.stage.to_string(), t.device.to_string()];
        let rest = [number(t.work), format!("{:+.1} %", 100.0 * t.slower)];
        names.into_iter().chain(kinds).chain(rest).collect::<Vec<_>>()
    };
    let rows = all.iter().flat_map(|(e, measured)| measured.stages.iter().map(|time| row(e, time))).collect();
    let unit = all.first().map_or("", |(e, _)| e.time_unit.as_str());
    let caption = format!(
        "Mean times of each stage's ops, in {unit}. work: all its ops for one micro-batch; slower: that against the median of the other stages."
    );
    Table::new(caption, &["schedule", "stage", "device", "F", "I", "W", "B", "work", "slower"], rows)
}

/// Predictions of measured steps from their own costs.
fn fits(all: &[(&StepExplanation, &RunDiagnosis)]) -> Table {
    let signed = |error: f64| format!("{:+.2} %", 100.0 * error);
    let row = |e: &StepExplanation, fit: &DeliveryFit| {
        vec![
            e.schedule.clone(),
            fit.delivery.clone(),
            signed(fit.makespan_error),
            format!("{:.2} %", 100.0 * fit.start_error),
        ]
    };
    let rows = all.iter().flat_map(|(e, measured)| measured.fit.deliveries.iter().map(|fit| row(e, fit))).collect();
    let caption = "The step predicted from its own mean costs, by delivery, the best fit first. makespan: predicted over measured; starts: how \
                   far off ops start on average, as a share of the step.";
    Table::new(caption, &["schedule", "delivery", "makespan", "starts"], rows)
}

/// Returns the devices to show, those with the largest `of` if all are too many, and the number left out.
fn shown(all: &[StepExplanation], count: usize, of: impl Fn(usize) -> f64) -> (Vec<usize>, usize) {
    let mut devices: Vec<usize> = (0..count).collect();
    if all.iter().map(|e| e.devices as usize).sum::<usize>() <= MOST_DEVICES {
        return (devices, 0);
    }
    devices.sort_by(|&one, &other| of(other).total_cmp(&of(one)).then(one.cmp(&other)));
    devices.truncate(SHOWN_DEVICES);
    devices.sort_unstable();
    let left = count - devices.len();
    (devices, left)
}

fn more(schedule: &str, left: usize) -> Option<Vec<String>> {
    (left > 0).then(|| vec![schedule.to_string(), format!("... {left} more")])
}

fn idle(all: &[StepExplanation]) -> Table {
    let is_measured = all.iter().any(|e| e.measured.is_some());
    let causes: Vec<Cause> = Cause::ALL.into_iter().filter(|cause| is_measured || cause.is_predicted()).collect();
    let cells =
        |t: &IdleTime| [t.idle].into_iter().chain(causes.iter().map(|&cause| t.of(cause))).collect::<Vec<f64>>();
    let mut rows = Vec::new();
    for e in all {
        let row = |name: String, cells: Vec<f64>, text: &dyn Fn(f64) -> String| {
            let cells = cells.into_iter().map(text);
            [e.schedule.clone(), name].into_iter().chain(cells).collect::<Vec<_>>()
        };
        let whole = f64::from(e.devices) * e.metrics.makespan;
        let share = |time: f64| percent(if whole > 0.0 { time / whole } else { 0.0 });
        let (devices, left) = shown(all, e.idle.per_device.len(), |device| e.idle.per_device[device].idle);
        rows.extend(devices.iter().map(|&d| row(format!("device {d}"), cells(&e.idle.per_device[d]), &number)));
        rows.extend(more(&e.schedule, left));
        rows.push(row("all".to_string(), cells(&e.idle.total), &number));
        rows.push(row("share".to_string(), cells(&e.idle.total), &share));
    }
    let capped = all.iter().any(|e| e.memory.iter().any(|m| m.cap.is_some()));
    let (memory, held) = match capped {
        true => ("memory cap", "than `memory-cap` allows"),
        false => ("own peak", "than the device ever does in this schedule"),
    };
    let caption = format!(
        "Why devices idle, in {}; the causes add up to idle, in the last row to the bubble. fill: before a device's first op; drain: \
         after its last; dependence: waiting for an op elsewhere, even with equal stages and free links; exposed comm.: messages \
         on the path to that op; imbalance: ops on that path that last longer than the average of their kind (free links and equal \
         stages would also shorten fill and drain); {memory}: a forward was ready, but would have held more activations {held}; \
         order: an op later in the device's order would have fitted{}.",
        units(all),
        if is_measured {
            "; host delay: all that an op needed was there, but the host was late; stragglers: ops on the path to what it waits for took \
             longer than they do on average"
        } else {
            ""
        }
    );
    let name = |cause: &Cause| match cause {
        Cause::Communication => "exposed comm.",
        Cause::Memory => memory,
        other => other.name(capped),
    };
    let names: Vec<&str> = ["schedule", "", "idle"].into_iter().chain(causes.iter().map(name)).collect();
    Table::new(caption, &names, rows)
}

fn bounds(all: &[StepExplanation]) -> Table {
    let any = |has: &dyn Fn(&StepExplanation) -> bool| all.iter().any(has);
    let typical = any(&|e| e.metrics.typical_speed.is_some());
    let mut header = vec!["schedule", "makespan", "work", "critical path", "head + work + tail"];
    let mut caption = format!(
        "Lower bounds of the makespan, in {}{}: no order of a schedule's ops on its devices is shorter. work: the busiest device's ops; \
         critical path: one micro-batch forward and back; head + work + tail: what must come before a device's ops, the ops, and what \
         must come after them",
        units(all),
        if any(&|e| e.measured.is_some()) {
            " (of a measured step: with its mean costs, so it may itself be shorter)"
        } else if typical {
            " (all at median speed)"
        } else {
            ""
        }
    );
    let mut columns: Vec<fn(&StepExplanation) -> Option<f64>> = Vec::new();
    let mut add = |name: &'static str, meaning: &str, bound: fn(&StepExplanation) -> Option<f64>| {
        if all.iter().any(|e| bound(e).is_some()) {
            header.push(name);
            caption += &format!("; {name}: {meaning}");
            columns.push(bound);
        }
    };
    add("memory cap", "no device above `memory-cap`", |e| e.bounds.memory);
    add("own peaks", "no device holding more than it does in this schedule", |e| e.bounds_at_own_peaks.memory);
    add("proven", "no order within them takes less, by search", |e| e.exact.as_ref().map(|exact| exact.lower_bound));
    add("if split", "backwards may be split into I and W", |e| {
        e.bounds.if_split.filter(|&bound| bound != e.bounds.best)
    });
    header.extend(["saves at most", "saves at most (own peaks)"]);
    caption += "; saves at most: from the makespan down to the largest bound, for any order and for orders in which no device holds \
                more than in this schedule.";
    let row = |e: &StepExplanation| {
        let makespan = e.bounded();
        let saves = |bound: f64| percent(if makespan > 0.0 { (1.0 - bound / makespan).max(0.0) } else { 0.0 });
        let saves = [e.bounds.best, e.bound_here()].map(saves);
        let always = [makespan, e.bounds.work, e.bounds.critical_path, e.bounds.head_work_tail].map(number);
        let others = columns.iter().map(|bound| bound(e).map_or_else(String::new, number));
        [e.schedule.clone()].into_iter().chain(always).chain(others).chain(saves).collect()
    };
    for e in all {
        if let Some(exact) = &e.exact {
            let what = if exact.optimal { "the best order" } else { "a bound; no order of that length was found" };
            caption += &format!(" {}{}: the proven makespan is {what}.", e.schedule, exact.of);
        }
    }
    Table::new(caption, &header, all.iter().map(row).collect())
}

fn sensitivities(all: &[StepExplanation]) -> Table {
    let row = |e: &StepExplanation| {
        let saving = e.sensitivities.list.iter().filter(|s| s.percent != 0.0).take(SHOWN_PARTS);
        let cells = saving.map(|s| format!("{}: {:.3} %", s.part, s.percent));
        [e.schedule.clone()].into_iter().chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    let names = ["schedule", "most", "second", "third", "fourth", "fifth", "sixth"];
    let held = all.iter().filter(|e| e.sensitivities.order_held_fixed).map(|e| e.schedule.as_str());
    let held = held.collect::<Vec<_>>().join(", ");
    let held = if held.is_empty() {
        String::new()
    } else {
        format!(" The order of {held} is held fixed; with other costs `predict` may find another.")
    };
    let caption = format!(
        "How much of the makespan 1 % less of a part's time saves. A part: a device's or a stage's ops, all ops of a kind (F forward, I \
         backward for the input, W for the weights, B both), communication, a link. Negative: with those costs the schedule's rule \
         finds a slower order.{held}"
    );
    Table::new(caption, &names[..columns.min(names.len())], rows)
}

/// Consecutive pieces of a critical path on one device.
struct Stretch<'a> {
    device: u32,
    pieces: Vec<&'a CriticalSpan>,
}

fn stretches(path: &[CriticalSpan]) -> Vec<Stretch<'_>> {
    let mut found: Vec<Stretch> = Vec::new();
    for piece in path {
        match found.last_mut() {
            Some(last) if last.device == piece.device => last.pieces.push(piece),
            _ => found.push(Stretch { device: piece.device, pieces: vec![piece] }),
        }
    }
    found
}

/// `0F3`, `0F3 to 1F3` of a transfer, `overhead after 0F3`.
fn piece(p: &CriticalSpan) -> String {
    match (&p.to, p.what) {
        (Some(to), _) => format!("{} to {to}", p.op),
        (None, "overhead") => format!("overhead after {}", p.op),
        (None, _) => p.op.clone(),
    }
}

fn path(all: &[StepExplanation]) -> Table {
    let mut rows = Vec::new();
    for e in all {
        let stretches = stretches(&e.critical_path);
        let row = |s: &Stretch| {
            let what = match s.pieces.as_slice() {
                [] => String::new(),
                [one] => piece(one),
                [one, other] => format!("{}, {}", piece(one), piece(other)),
                [first, .., last] => format!("{} ... {} ({})", piece(first), piece(last), s.pieces.len()),
            };
            let ends = s.pieces.first().zip(s.pieces.last());
            let [start, end] = ends.map_or([0.0; 2], |(first, last)| [first.start, last.end]);
            vec![e.schedule.clone(), s.device.to_string(), what, number(start), number(end)]
        };
        if stretches.len() <= 2 * SHOWN_STRETCHES {
            rows.extend(stretches.iter().map(row));
        } else {
            let (first, last) = (&stretches[..SHOWN_STRETCHES], &stretches[stretches.len() - SHOWN_STRETCHES..]);
            rows.extend(first.iter().map(row));
            rows.extend(more(&e.schedule, stretches.len() - 2 * SHOWN_STRETCHES));
            rows.extend(last.iter().map(row));
        }
    }
    let critical = |e: &StepExplanation| {
        let critical = e.slack.iter().filter(|slack| slack.slack == 0.0).count();
        format!("{}: {critical} of {} ops", e.schedule, e.slack.len())
    };
    let caption = format!(
        "A critical path of each schedule, in {}: consecutive ops and messages without a gap, each of which would lengthen the step; \
         a row is a stretch on one device, with its number of pieces. 0F3 is the forward of micro-batch 3 on stage 0. Critical ops \
         (no slack): {}.",
        units(all),
        all.iter().map(critical).collect::<Vec<_>>().join("; ")
    );
    Table::new(caption, &["schedule", "device", "pieces", "start", "end"], rows)
}

fn memory(all: &[StepExplanation]) -> Table {
    let mut rows = Vec::new();
    for e in all {
        let row = |m: &MemoryCurve| {
            let within = |cap| format!("{} of {}", if m.within_cap { "yes" } else { "no" }, number(cap));
            let [name, device, peak] = [e.schedule.clone(), m.device.to_string(), number(m.peak)];
            let (by, at) = (m.peak_op.clone().unwrap_or_default(), quantity(m.peak_time, &e.time_unit));
            [name, device, peak, by, at].into_iter().chain(m.cap.map(within)).collect::<Vec<_>>()
        };
        let (devices, left) = shown(all, e.memory.len(), |device| e.memory[device].peak);
        rows.extend(devices.iter().map(|&device| row(&e.memory[device])));
        rows.extend(more(&e.schedule, left));
    }
    let capped = all.iter().any(|e| e.memory.iter().any(|m| m.cap.is_some()));
    let caption = "Activations that devices hold: 1 is what a device's whole share of layers keeps for one micro-batch from its \
                   forward to its backward. peak: the most at once.";
    let header = ["schedule", "device", "peak", "reached by", "at", "within the cap"];
    Table::new(caption, &header[..5 + usize::from(capped)], rows)
}
