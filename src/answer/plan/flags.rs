//! A plan as options of training software, and as a command of this program.

use super::answer::Plan;
use super::reason::PlanError;
use crate::framework::facts;
use crate::resolve::Variant;
use pipesim_cost::analytic::Analytic;
use pipesim_frameworks::{Framework, Objection, ObjectionKind, targets};
use pipesim_models::layout::{ParallelConfig, Precision, Recompute, Zero};
use pipesim_models::model_spec::transformer::Config;
use pipesim_schedule::sanitize::shell_quoted;

/// Most reasons why a program cannot train a plan that are given at once.
const MOST_REASONS: usize = 3;

/// A program that a plan can be written for.
#[derive(Clone, Copy)]
pub enum Target {
    /// Options of a framework.
    Framework(&'static Framework),
    /// The command of this program that opens the plan's timeline.
    Pipesim,
}

impl Target {
    /// Returns all targets: each framework in its newest version, then this program.
    ///
    /// # Errors
    /// A framework's file that cannot be read.
    pub fn all() -> Result<Vec<Target>, PlanError> {
        let names = Target::names().into_iter().map(Target::named);
        names.collect()
    }

    /// Returns the names of all targets.
    pub fn names() -> Vec<&'static str> {
        targets().unwrap_or_default().into_iter().map(|(name, _)| name).chain(["pipesim"]).collect()
    }

    /// Returns the target with this name.
    ///
    /// # Errors
    /// There is none, or its file cannot be read.
    pub fn named(name: &str) -> Result<Target, PlanError> {
        if name == "pipesim" {
            return Ok(Target::Pipesim);
        }
        let known = targets().map_err(PlanError::refused)?;
        let framework = known.iter().find(|(known, _)| *known == name).map_or(name, |(_, framework)| framework);
        Framework::find(framework, None).map(Target::Framework).map_err(PlanError::refused)
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Framework(framework) => framework.target().unwrap_or_default(),
            Target::Pipesim => "pipesim",
        }
    }

    /// Returns what texts call it, as in `Megatron-LM 2026-08`.
    pub fn title(self) -> String {
        match self {
            Target::Framework(framework) => format!("{} {}", framework.title(), framework.version()),
            Target::Pipesim => "pipesim".to_string(),
        }
    }

    /// Returns the target in the version of `own`, the framework that the plan's stack runs, if it is that framework's.
    #[must_use]
    pub fn of_version(self, own: Option<&'static Framework>) -> Target {
        match (self, own) {
            (Target::Framework(framework), Some(own)) if framework.name() == own.name() => Target::Framework(own),
            _ => self,
        }
    }
}

/// Names from the command line.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub model: String,
    pub hardware: String,
    pub stack: String,
    pub memory_cap: Option<String>,
    pub framework_version: Option<String>,
}

/// A plan as text to paste.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanFlags {
    pub text: String,
    /// What must be said next to it.
    pub notes: Vec<String>,
}

/// Returns the text to paste.
///
/// # Errors
/// The program refuses the plan, or lacks a feature of it.
pub fn flags(plan: &Plan, costs: &Analytic, target: Target, names: &Names) -> Result<PlanFlags, PlanError> {
    let flags = Flags { plan, layout: &plan.layout, model: &costs.model };
    let Target::Framework(framework) = target else {
        return Ok(PlanFlags { text: flags.pipesim(names), notes: Vec::new() });
    };
    let base = Variant::parse(&plan.schedule).map_err(PlanError::refused)?.base;
    let facts = facts(costs, Some(&base));
    let objections = framework.objections(&facts).map_err(PlanError::refused)?;
    let why = |Objection { error, remedy, .. }: &Objection| {
        if remedy.is_empty() { error.clone() } else { format!("{error}; {remedy}") }
    };
    let against = objections.iter().filter(|one| one.kind != ObjectionKind::Needs).map(why);
    let against = against.take(MOST_REASONS).collect::<Vec<_>>().join(". Also: ");
    if !against.is_empty() {
        let (title, version) = (framework.title(), framework.version());
        return Err(PlanError::Refused(format!("{title} {version} cannot train this plan: {against}")));
    }
    let text = framework.options(&facts).map_err(PlanError::refused)?;
    let notes = framework.notes(&facts).map_err(PlanError::refused)?;
    Ok(PlanFlags { text, notes })
}

struct Flags<'a> {
    plan: &'a Plan,
    layout: &'a ParallelConfig,
    model: &'a Config,
}

impl Flags<'_> {
    fn pipesim(&self, names: &Names) -> String {
        let l = self.layout;
        let mut words = vec![
            "pipesim predict".to_string(),
            format!("--model {} --hardware {}", shell_quoted(&names.model), shell_quoted(&names.hardware)),
            format!("--stages {} --tp {} --dp {}", l.pp, l.tp, l.dp),
        ];
        let mut add = |is_there: bool, text: String| words.extend(is_there.then_some(text));
        add(l.cp > 1, format!("--cp {}", l.cp));
        add(l.ep > 1, format!("--ep {}", l.ep));
        add(self.model.experts.is_some() && (l.ep > 1 || l.tp > 1), format!("--etp {}", l.etp));
        add(true, format!("--batch {} --micro-batch-size {} --seq {}", l.batch(), l.micro_batch_size, l.sequence));
        add(l.precision != Precision::Bf16, format!("--precision {}", l.precision));
        if let Some(attention) = l.attention {
            add(true, format!("--attention {attention}"));
        }
        add(l.recompute != Recompute::None, format!("--recompute {}", l.recompute));
        add(l.zero != Zero::None, format!("--zero {}", l.zero));
        add(l.shard.is_some(), format!("--shard {}", l.shard.unwrap_or_default()));
        add(l.sequence_parallel, "--sequence-parallel".to_string());
        for (name, value) in l.options().named() {
            add(true, format!("--{name} {value}").trim_end().to_string());
        }
        add(l.optimizer_offload > 0.0, format!("--optimizer-offload {}", l.optimizer_offload));
        add(names.stack != pipesim_models::hardware::STACKS[0], format!("--stack {}", shell_quoted(&names.stack)));
        if let Some(version) = &names.framework_version {
            add(true, format!("--framework-version {}", shell_quoted(version)));
        }
        if let Some(layers) = &l.layers {
            let list = layers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            add(true, format!("--layers {list}"));
        }
        if let Some(cap) = &names.memory_cap {
            add(true, format!("--memory-cap {cap}"));
        }
        add(true, format!("-s {}", shell_quoted(&self.plan.schedule)));
        add(self.plan.names_chunks, format!("--chunks {}", l.chunks));
        words.join(" ")
    }
}
