//! A prediction on hardware in a few lines: what was asked, whether it fits, how long it takes, what the time goes to, and what to do next.

use pipesim_answer::step_estimate::StepEstimate;
use pipesim_cost::analytic::Analytic;
use pipesim_report::{changed, gibibytes, number, percent, quantity};

/// Returns at most six lines about a step of a layout under some schedules, each with its name. `next` is what to do next.
pub fn lines(analytic: &Analytic, steps: &[(&str, &StepEstimate)], next: &str) -> Vec<String> {
    // the fastest of those that fit, or of all
    let fits = |step: &StepEstimate| step.memory.fits;
    let any_fits = steps.iter().any(|(_, step)| fits(step));
    let possible = steps.iter().filter(|(_, step)| fits(step) || !any_fits);
    let Some(&best) = possible.min_by(|a, b| a.1.iteration_s.total_cmp(&b.1.iteration_s)) else { return Vec::new() };
    let mut lines = vec![asked(analytic)];
    let fastest = steps.iter().min_by(|a, b| a.1.iteration_s.total_cmp(&b.1.iteration_s));
    lines.extend(fastest.filter(|(_, step)| !fits(step)).map(misfit));
    lines.push(time(best, !any_fits));
    lines.push(losses(best.1));
    lines.extend(others(best, steps));
    lines.push(next.to_string());
    lines
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
    format!("{name} does not fit: {total} of {limit}, the largest part {} ({}){remedy}.", most.0, gibibytes(most.1))
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
    let [low, high] = step.iteration_interval_s.map(|seconds| number(1e3 * seconds));
    let would = if is_too_large { " would take " } else { ": " };
    let memory = match is_too_large {
        true => String::new(),
        false => format!(", {} of {}", gibibytes(step.memory.fullest().total), gibibytes(step.memory.capacity_bytes)),
    };
    format!(
        "{name}{would}{} (90 % within {low} to {high}), {} tokens/s/GPU, MFU {}{memory}",
        quantity(1e3 * step.iteration_s, "ms"),
        number(step.tokens_per_second_per_gpu),
        percent(step.mfu)
    )
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
    let outside = if step.outside.is_empty() {
        String::new()
    } else {
        format!("; less certain than usual: {}", step.outside.join("; "))
    };
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
