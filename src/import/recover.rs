//! From the events of one file to the ops of its rank.

use super::event::{Class, Event};
use super::label::Label;
use super::rank::{RankRun, RankStep, Stages, Window};
use super::trace::Trace;
use super::{doubts, gpu, labelled, unlabelled};

impl RankRun {
    /// Recovers ops and messages from a trace.
    pub fn recover(file: String, mut trace: Trace) -> RankRun {
        let mut warnings = Vec::new();
        if let Some(why) = &trace.cut {
            warnings.push(format!("{file} is cut off or damaged: read up to there ({why})"));
        }
        if trace.malformed > 0 {
            warnings.push(format!("{file}: {} events without a valid name or time left out", trace.malformed));
        }
        if trace.odd > 0 {
            warnings
                .push(format!("{file}: {} events with a field of a wrong type, read as far as possible", trace.odd));
        }
        let repeated = trace.remove_repeated();
        if repeated > 0 {
            warnings.push(format!("{file}: {repeated} events occur twice and count once"));
        }
        warnings.extend(doubts::of_end(&file, &trace));
        let windows = windows(&trace.events);
        let has_numbers = trace.events.iter().any(|event| is_op_label(event.class));
        let counted = |event: &Event| matches!(event.class, Class::Label(Label::Counted(_)));
        let is_counted = !has_numbers && trace.events.iter().any(counted);
        if has_numbers {
            trace.events.retain(|event| !counted(event));
        }
        let posts = |event: &Event| matches!(event.class, Class::Send | Class::Receive);
        let is_alone = !has_numbers && !is_counted && !trace.events.iter().any(posts);
        let (stages, mut steps) = if has_numbers || is_counted {
            labelled::steps(&trace.events, &windows, &file, &mut warnings)
        } else {
            (Stages::OfRank, unlabelled::steps(&trace.events, &windows, &file, &mut warnings))
        };
        add_others(&trace.events, &mut steps);
        gpu::measure(&trace.events, &mut steps, &file, &mut warnings);
        steps.iter_mut().for_each(RankStep::tidy);
        steps.retain(|step| !step.ops.is_empty());
        let first = trace.events.iter().map(|event| event.start).min().unwrap_or_default();
        let has_step_ops = trace.is_kineto || trace.events.iter().any(|event| event.class == Class::Optimizer);
        let Trace { rank, world_size, groups, version, .. } = trace;
        RankRun {
            file,
            rank,
            world_size,
            groups,
            version,
            has_step_ops,
            stages,
            is_counted,
            is_alone,
            steps,
            first,
            warnings,
        }
    }
}

fn is_op_label(class: Class) -> bool {
    matches!(class, Class::Label(Label::Op(_) | Label::Pair(..) | Label::Plain { .. } | Label::Whole { .. }))
}

/// Returns the steps that the profiler marked, in order.
fn windows(events: &[Event]) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for event in events {
        if let Class::Step(number) = event.class {
            // A later mark ends an earlier one whose end is wrong.
            if let Some(last) = windows.last_mut() {
                last.end = last.end.min(event.start);
            }
            windows.push(Window { number, start: event.start, end: event.end });
        }
    }
    windows
}

/// Adds the optimizer's steps and the collectives that follow a step's ops.
fn add_others(events: &[Event], steps: &mut [RankStep]) {
    for event in events {
        let name = match event.class {
            Class::Optimizer => "optimizer",
            Class::Collective => "reduce",
            _ => continue,
        };
        let Some(at) = steps.partition_point(|step| step.begin() <= event.start).checked_sub(1) else { continue };
        if steps[at].ops.last().is_some_and(|last| last.end <= event.start) {
            steps[at].others.push((name, event.start, event.end));
        }
    }
}
