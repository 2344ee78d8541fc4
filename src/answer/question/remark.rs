//! What there is to say about a question besides its answer.

use crate::framework::FrameworkVerdict;
use crate::resolve::{Error, Warning};
use crate::step_estimate::OutOfMemory;
use pipesim_cost::analytic::Analytic;
use pipesim_frameworks::{Objection, ObjectionKind};
use pipesim_language as dsl;
use pipesim_models::layout::ParallelConfig;
use pipesim_report::LeftOut;
use pipesim_schedule::schedule::Schedule;
use std::collections::BTreeSet;
use std::fmt;

/// Returns why a schedule has no graph.
pub(super) fn left_out(error: &Error) -> LeftOut {
    let what = match error {
        Error::Deadlock { .. } => "deadlock",
        Error::Cost(_) | Error::Split(_) => "no costs",
        Error::Ordering { .. } => "no order",
        _ => "none",
    };
    LeftOut { what, why: error.to_string() }
}

/// A remark about a question or its answer. What is displayed begins with `warning:` if the answer may mislead without it.
#[derive(Clone, Debug, PartialEq)]
pub enum Remark {
    /// A model's file has keys that are not known.
    UnknownKeys { file: String, keys: Vec<String> },
    /// A layout does not exist, or no schedule has one.
    LayoutLeftOut { layout: String, why: String },
    /// A schedule does not exist for these numbers.
    CaseLeftOut { name: String, left_out: LeftOut },
    /// A setting is ignored by schedules that do not have it.
    Ignored { setting: String, schedules: Vec<String>, is_option: bool },
    /// A deviation of a schedule from the request.
    Warning(Warning),
    /// Times of other micro-batch sizes than the measured ones, from the least to the most.
    Scaled { sequences: u32, measured: [u32; 2] },
    /// Costs were not given.
    UnitCosts,
    /// With costs per device the model grows with the devices.
    ModelGrows { stages: Vec<u32> },
    /// With costs per device, each number of stages per device has the same model.
    SameModel,
    /// Tensor parallelism crosses nodes.
    BeyondNode { tp: u32, gpus_per_node: f64 },
    /// The training software does not have these schedules, but others.
    NotImplemented { stack: String, known: Vec<String>, missing: Vec<String> },
    /// The framework refuses a layout, cannot express it, runs something else, or needs an option.
    Framework {
        /// Its title and version.
        framework: String,
        objection: Objection,
        /// The schedules that it is about; empty: all.
        schedules: Vec<String>,
    },
    /// A memory limit on hardware is in activations.
    UnitsOnHardware { cap: f64 },
    /// A step does not fit into memory.
    Misfit(Box<OutOfMemory>),
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::UnknownKeys { file, keys } => {
                let keys = keys.join(", ");
                write!(f, "warning: {file}: unknown keys, assumed not to change the model: {keys}")
            }
            Remark::LayoutLeftOut { layout, why } => write!(f, "note: {layout} is left out: {why}"),
            Remark::CaseLeftOut { name, left_out } => {
                let why = left_out.why.lines().next().unwrap_or_default().trim_end_matches(':');
                write!(f, "note: {name} is left out: {why}")
            }
            Remark::Ignored { setting, schedules, is_option } => {
                write!(f, "{}; it is ignored there", without(setting, schedules, *is_option))
            }
            Remark::Warning(warning) => write!(f, "warning: {warning}"),
            Remark::Scaled { sequences, measured: [least, most] } => write!(
                f,
                "note: micro-batches of {least} to {most} sequences were measured, not of {sequences}: times are scaled in \
                 proportion; pipesim profile `calibrate-batch` {least},{sequences} measures both"
            ),
            Remark::UnitCosts => f.write_str(
                "costs: units (F = I = W = 1, B = 2, no communication); give your own with `costs` or `profile`",
            ),
            Remark::ModelGrows { stages } => {
                let stages = stages.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                write!(
                    f,
                    "note: costs are per device, so over p = {stages} the model grows with p; for one model give `costs-per` model, or layer \
                     with `layers`"
                )
            }
            Remark::SameModel => f.write_str(
                "note: costs are per device, and a chunk costs 1/v of them: at each p, every v has the same model",
            ),
            Remark::BeyondNode { tp, gpus_per_node } => write!(
                f,
                "warning: `tp` {tp} is more than the {gpus_per_node} GPUs of a node: the collectives of every layer cross the network"
            ),
            Remark::NotImplemented { stack, known, missing } => {
                let known = if known.is_empty() { "no pipeline schedule".to_string() } else { known.join(", ") };
                let are = if missing.len() == 1 { "is" } else { "are" };
                write!(f, "note: {stack} implements {known}; {} {are} predicted as if it did", missing.join(", "))
            }
            Remark::Framework { framework, objection: Objection { kind, error, remedy, source, .. }, schedules } => {
                let (what, sign) = match kind {
                    ObjectionKind::Refused => ("refuses", "warning"),
                    ObjectionKind::Missing => ("cannot express", "warning"),
                    ObjectionKind::Silent => ("runs something other than", "warning"),
                    ObjectionKind::Needs => ("needs an option for", "note"),
                };
                let these = if schedules.is_empty() { "this layout".to_string() } else { schedules.join(", ") };
                write!(f, "{sign}: {framework} {what} {these}: {}", error.trim_end_matches('.'))?;
                if !source.is_empty() {
                    write!(f, " ({source})")?;
                }
                if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
            }
            Remark::UnitsOnHardware { cap } => {
                write!(f, "note: `memory-cap` {cap} is in activations; write {cap}GiB to limit bytes")
            }
            Remark::Misfit(misfit) => write!(f, "warning: {misfit}"),
        }
    }
}

impl Remark {
    /// Returns what the framework of the layout's stack has against a schedule, besides that it lacks it.
    ///
    /// # Errors
    /// A rule that cannot be evaluated.
    pub fn against(analytic: &Analytic, schedule: &Schedule) -> Result<Vec<Remark>, Error> {
        let base = schedule.name.split([':', ' ']).next().unwrap_or_default();
        let built_in = dsl::names().into_iter().find(|name| *name == base);
        let verdict = FrameworkVerdict::of(analytic, schedule, built_in)?;
        Ok(Remark::of_framework(
            &verdict.map(|verdict| (schedule.name.clone(), verdict)).into_iter().collect::<Vec<_>>(),
        ))
    }

    /// Returns a remark for each objection of a framework, by schedule; that it has no such schedule is another remark.
    pub(super) fn of_framework(verdicts: &[(String, FrameworkVerdict)]) -> Vec<Remark> {
        let mut remarks: Vec<(String, &Objection, Vec<String>)> = Vec::new();
        // that a built-in schedule is lacking is said once for all of them
        let is_told = |schedule: &str, verdict: &FrameworkVerdict| {
            let base = schedule.split(':').next().unwrap_or(schedule);
            dsl::names().contains(&base) && verdict.objections.iter().any(|objection| objection.rule == "schedule")
        };
        for (schedule, verdict) in verdicts.iter().filter(|(schedule, verdict)| !is_told(schedule, verdict)) {
            let framework = format!("{} {}", verdict.title, verdict.version);
            for objection in &verdict.objections {
                match remarks.iter_mut().find(|(_, known, _)| known.rule == objection.rule) {
                    Some((.., schedules)) if schedules.contains(schedule) => {}
                    Some((.., schedules)) => schedules.push(schedule.clone()),
                    None => remarks.push((framework.clone(), objection, vec![schedule.clone()])),
                }
            }
        }
        let all: BTreeSet<&String> = verdicts.iter().map(|(schedule, _)| schedule).collect();
        let remark = |(framework, objection, schedules): (String, &Objection, Vec<String>)| {
            let schedules = if schedules.len() == all.len() { Vec::new() } else { schedules };
            Remark::Framework { framework, objection: objection.clone(), schedules }
        };
        remarks.into_iter().map(remark).collect()
    }
}

/// Says which schedules do not have a setting: an option of their own, or the number of stages per device.
pub(super) fn without(setting: &str, schedules: &[String], is_option: bool) -> String {
    let what = if is_option { "has no such option" } else { "has a fixed number of stages per device" };
    format!("{setting}: {} {what}", schedules.join(", "))
}

/// Returns remarks about an unusual layout, and about `schedules` that the training software does not implement.
pub fn layout_remarks(analytic: &Analytic, schedules: &[&str]) -> Vec<Remark> {
    let Analytic { machine, layout: ParallelConfig { tp, pp, .. }, .. } = analytic;
    let node = machine.hardware.gpus_per_node;
    let mut remarks = Vec::new();
    if f64::from(*tp) > node {
        remarks.push(Remark::BeyondNode { tp: *tp, gpus_per_node: node });
    }
    if let (Some(known), true) = (machine.stack.schedules(), *pp > 1) {
        let missing =
            schedules.iter().filter(|name| !known.contains(name)).map(ToString::to_string).collect::<Vec<_>>();
        if !missing.is_empty() {
            let known = known.iter().map(ToString::to_string).collect();
            remarks.push(Remark::NotImplemented { stack: machine.stack.name.clone(), known, missing });
        }
    }
    remarks
}
