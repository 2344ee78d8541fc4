//! A prediction on hardware in a few lines: what was asked, whether it fits, how long it takes, what the time goes to, and what to do next.

use crate::figures::listed;
use pipesim_answer::question::Predicted;
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_cost::analytic::Analytic;
use pipesim_models::hardware::IntervalClass;
use pipesim_report::{changed, gibibytes, number, percent, quantity, trimmed};

/// Returns at most six lines about a step of a layout under some schedules. `next` is what to do next.
pub fn lines(analytic: &Analytic, predictions: &[Predicted], next: &str) -> Vec<String> {
    let named = predictions.iter().filter_map(|one| Some((named(one), one.estimate.as_ref()?, one)));
    let named: Vec<(String, &StepEstimate, &Predicted)> = named.collect();
    let steps: Vec<(&str, &StepEstimate)> = named.iter().map(|(name, step, _)| (name.as_str(), *step)).collect();
    // the fastest of those that fit, or of all
    let fits = |step: &StepEstimate| step.memory.fits;
    let any_fits = steps.iter().any(|(_, step)| fits(step));
    let possible = steps.iter().filter(|(_, step)| fits(step) || !any_fits);
    let Some(&best) = possible.min_by(|a, b| a.1.iteration_s.total_cmp(&b.1.iteration_s)) else { return Vec::new() };
    let mut lines = vec![asked(analytic)];
    let fastest = steps.iter().min_by(|a, b| a.1.iteration_s.total_cmp(&b.1.iteration_s));
    lines.extend(fastest.filter(|(_, step)| !fits(step)).map(misfit));
    lines.push(time(best, !any_fits));
    let noise = named.iter().find(|(name, ..)| name == best.0).and_then(|(.., one)| noise(one));
    lines.push(losses(best.1) + &noise.unwrap_or_default());
    lines.extend(others(best, &steps));
    lines.push(next.to_string());
    lines
}

/// Returns the name of a prediction's schedule, with the layers that balancing moved: `1f1b with layers 9,9,8,6, 9.6 % shorter than 8,8,8,8`.
fn named(one: &Predicted) -> String {
    let name = &one.figures.schedule;
    split(one).map_or_else(|| name.clone(), |split| format!("{name} with {split}"))
}

/// Returns the layers that balancing found, and what they gain: `layers 9,9,8,6, 9.6 % shorter than 8,8,8,8`.
fn split(one: &Predicted) -> Option<String> {
    let found = one.figures.balance.as_ref()?;
    let (layers, before, (now, then)) = (listed(&found.layers), listed(&found.layers_before), found.times());
    let proof = if found.is_optimal { "no split is" } else { "none tried is" };
    Some(match (layers == before, found.fits_before) {
        (true, _) => format!("layers {layers} ({proof} shorter)"),
        (false, true) => format!("layers {layers}, {} shorter than {before}", percent(1.0 - now / then)),
        (false, false) => format!("layers {layers} ({before} does not fit)"),
    })
}

/// Says which layers balancing found and what random durations add, as far as they were asked for.
pub(crate) fn asked_besides(one: &Predicted) -> String {
    let split = split(one).map(|split| format!(" It has {split}."));
    split.into_iter().chain(noise(one)).collect()
}

/// Says what random durations add to a pipeline, if they were asked for.
fn noise(one: &Predicted) -> Option<String> {
    let (spread, unit) = (one.figures.jitter?, &one.figures.time_unit);
    let change = changed(spread.mean / one.figures.metrics.makespan - 1.0);
    let [low, mean] = [spread.p5, spread.mean].map(number);
    Some(format!(
        " With jitter its pipeline takes {mean} on average ({change}), 90 % within {low} to {}.",
        quantity(spread.p95, unit)
    ))
}

/// Returns at most six lines about steps of several layouts, each with its schedule and the settings that only it has: what was asked, whether
/// the fastest fits, the best that fits with what `besides` says of it, and the one after it. `next` says what to do with the settings of the
/// best.
pub fn layout_lines(
    asked: String,
    steps: &[(&str, &StepEstimate)],
    besides: impl Fn(&str) -> String,
    next: impl Fn(&str) -> String,
) -> Vec<String> {
    let mut sorted = steps.to_vec();
    let speed = |step: &StepEstimate| step.tokens_per_second_per_gpu;
    sorted.sort_by(|a, b| speed(b.1).total_cmp(&speed(a.1)));
    let fitting: Vec<_> = sorted.iter().filter(|(_, step)| step.memory.fits).collect();
    let Some(best) = fitting.first().copied().or(sorted.first()) else { return Vec::new() };
    let mut lines = vec![asked];
    lines.extend(sorted.first().filter(|(_, step)| !step.memory.fits).map(misfit));
    lines.extend([time(*best, fitting.is_empty()), losses(best.1) + &besides(best.0)]);
    let second = fitting.get(1).map(|(name, step)| {
        let change = changed(speed(step) / speed(best.1) - 1.0);
        format!("The next is {name}, {change} tokens/s/GPU")
    });
    let too_large = steps.len() - fitting.len();
    let too_large = (too_large > 0).then(|| format!("{too_large} of {} do not fit", steps.len()));
    let others: Vec<String> = second.into_iter().chain(too_large).collect();
    lines.extend((!others.is_empty()).then(|| format!("{}.", others.join("; "))));
    lines.push(next(best.0));
    lines
}

/// Says what is predicted of several layouts.
pub fn asked_of_layouts(analytic: &Analytic, layouts: usize) -> String {
    let Analytic { machine, layout, .. } = analytic;
    let (parameters, hardware) = (number(analytic.spec.parameters() as f64 / 1e9), &machine.hardware.name);
    format!("{parameters} G parameters on {hardware}, {layouts} layouts; {}, {}", layout.precision, machine.stack.name)
}

/// Says what was asked.
pub fn asked(analytic: &Analytic) -> String {
    let Analytic { machine, layout, .. } = analytic;
    let billions = |parameters: u128| number(parameters as f64 / 1e9);
    let active = analytic.model.experts.map(|_| format!(" ({} G active)", billions(analytic.spec.active_parameters())));
    format!(
        "{} G parameters{} on {} {}: {layout}; {}, {}",
        billions(analytic.spec.parameters()),
        active.unwrap_or_default(),
        layout.gpus(),
        machine.hardware.name,
        layout.precision,
        machine.stack.name
    )
}

/// Says by how much a step does not fit, and the smallest change that helps.
fn misfit(&(name, step): &(&str, &StepEstimate)) -> String {
    let fullest = step.memory.fullest();
    let parts = [
        ("weights", fullest.weights),
        ("gradients", fullest.gradients),
        ("the optimizer", fullest.optimizer),
        ("activations", fullest.activations),
        ("buffers", fullest.buffers),
    ];
    let most = parts.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or_default();
    let remedy = match step.misfit.as_ref().map(|misfit| &misfit.remedy) {
        Some(Some(remedy)) => {
            let is_larger = step.misfit.as_ref().is_some_and(|misfit| misfit.gpus != remedy.gpus);
            let gpus = if is_larger { format!(" on {} GPUs", remedy.gpus) } else { String::new() };
            format!("; {} fits{gpus}, in {}", remedy.described(), quantity(1e3 * remedy.iteration_s, "ms"))
        }
        Some(None) => "; no small change fits".to_string(),
        None => String::new(),
    };
    let [total, limit] = [fullest.total, step.memory.capacity_bytes].map(gibibytes);
    format!(
        "{name} does not fit: it needs {total} of {limit}, the largest part {} ({}){remedy}.",
        most.0,
        gibibytes(most.1)
    )
}

/// Adds to the sentences about a step's pipeline how long the whole iteration takes, and by how much it does not fit.
pub fn complete(sentences: &mut Vec<String>, name: &str, step: &StepEstimate) {
    if let Some(first) = sentences.first_mut() {
        *first = format!("{} an iteration, of which the pipeline {first}", quantity(1e3 * step.iteration_s, "ms"));
    }
    if !step.memory.fits {
        sentences.insert(1.min(sentences.len()), misfit(&(name, step)));
    }
}

/// Says how long a step takes.
fn time((name, step): (&str, &StepEstimate), is_too_large: bool) -> String {
    let would = if is_too_large { " would take " } else { ": " };
    let memory = match is_too_large {
        true => String::new(),
        false => format!(", {} of {}", gibibytes(step.memory.fullest().total), gibibytes(step.memory.capacity_bytes)),
    };
    format!(
        "{name}{would}{} (90 % within {}), {} tokens/s/GPU, MFU {}{memory}",
        quantity(1e3 * step.iteration_s, "ms"),
        bands(step),
        number(step.tokens_per_second_per_gpu),
        percent(step.mfu)
    )
}

/// From which quotient of its ends on a 90 % interval is wide.
const WIDE: f64 = 2.0;

/// Whether the 90 % interval of a step is so wide that its width is part of the answer.
fn is_wide(step: &StepEstimate) -> bool {
    let [low, high] = step.iteration_interval_s;
    high >= WIDE * low
}

/// Returns the ends of a step's 90 % interval in ms, and if that is wide, those of the 50 % interval: `1,668 to 2,213`.
pub(crate) fn bands(step: &StepEstimate) -> String {
    let ends = |interval: [f64; 2]| {
        let [low, high] = interval.map(|seconds| number(1e3 * seconds));
        format!("{low} to {high}")
    };
    let half = if is_wide(step) { format!("; 50 % {}", ends(step.iteration_interval_50_s)) } else { String::new() };
    ends(step.iteration_interval_s) + &half
}

/// Says that a step is less certain than usual and why, with a wide interval in words; empty if it is as certain as usual.
pub(crate) fn uncertainty(step: &StepEstimate) -> String {
    let mut why = step.outside.clone();
    if !is_wide(step) {
        let why = why.join("; ");
        return if why.is_empty() { why } else { format!("less certain than usual: {why}") };
    }
    let [low, high] = step.iteration_interval_s.map(|end| trimmed(end / step.iteration_s, 1));
    if step.class.is_early && step.class.is_mixture {
        why.push(format!("mixtures on software from before {} took that long", IntervalClass::early_before()));
    }
    if why.is_empty() {
        why.push("published steps like it differ that much from their predictions".to_string());
    }
    format!("it could take {low} to {high} times as long: {}", why.join("; "))
}

/// Says what the time goes to, and why it is less certain than usual.
fn losses(step: &StepEstimate) -> String {
    let parts = step.time_s.parts();
    let share = |seconds: f64| percent(seconds / step.iteration_s);
    let mut lost: Vec<_> = parts[1..].iter().filter(|part| part.seconds > 0.005 * step.iteration_s).collect();
    lost.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let lost: Vec<String> = lost
        .iter()
        .take(3)
        .map(|part| match part.column {
            "imbalance_s" => format!(
                "{} {} (the busiest device works {} longer than an average one)",
                part.cause,
                share(part.seconds),
                quantity(1e3 * part.seconds, "ms")
            ),
            _ => format!("{} {}", part.cause, share(part.seconds)),
        })
        .collect();
    let lost = if lost.is_empty() { String::new() } else { format!("; lost to {}", lost.join(", ")) };
    let outside = Some(uncertainty(step)).filter(|why| !why.is_empty());
    let outside = outside.map_or_else(String::new, |why| format!("; {why}"));
    let layers: Vec<String> = step.layers.iter().map(usize::to_string).collect();
    let split = match step.is_split_by_cost {
        true => format!(" Layers differ, and their costs split them: {} per stage.", layers.join(", ")),
        false => String::new(),
    };
    format!("{} of it is computation{lost}{outside}.{split}", share(parts[0].seconds))
}

/// Says how long the other schedules take.
fn others(best: (&str, &StepEstimate), steps: &[(&str, &StepEstimate)]) -> Option<String> {
    let other = steps.iter().filter(|step| step.0 != best.0).map(|(name, step)| {
        let change = changed(step.iteration_s / best.1.iteration_s - 1.0);
        let fits = if step.memory.fits { "" } else { " (does not fit)" };
        format!("{name} {change}{fits}")
    });
    let other: Vec<String> = other.collect();
    (!other.is_empty()).then(|| format!("Others: {}.", other.join(", ")))
}
