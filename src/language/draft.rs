//! Programs that `device` may return instead of a word: floating ops, or rules that order ops by costs.

use super::host::{KindValue, as_word, refuse};
use super::word::Word;
use allocative::Allocative;
use pipesim_schedule::op::Kind;
use pipesim_schedule::open::Goal;
use starlark::any::ProvidesStaticType;
use starlark::environment::GlobalsBuilder;
use starlark::values::float::UnpackFloat;
use starlark::values::list::UnpackList;
use starlark::values::none::NoneOr;
use starlark::values::{NoSerialize, StarlarkPagable, StarlarkValue, Value, ValueLike};
use starlark::{starlark_module, starlark_simple_value};
use starlark_derive::starlark_value;
use std::fmt;

/// One device's program in its schedule file.
#[derive(Clone, Debug)]
pub(super) enum Draft {
    /// Every op in its place.
    Word(Word),
    /// The word's ops in order, with W's or R's when the device would idle.
    Fill { word: Word, floating: Kind, cap: Option<f64> },
    /// The word's ops in order, with the copies of PipeOffload's plan.
    Offload { word: Word, chunks: u32 },
    /// List scheduling by priority of kinds.
    Greedy { priority: Vec<Kind>, cap: Option<f64> },
    /// The best order that a search finds.
    Search { split: bool, cap: Option<f64>, goal: Goal, start: Option<Box<Draft>> },
}

impl Draft {
    pub fn goal(&self) -> Option<Goal> {
        match self {
            Draft::Search { goal, .. } => Some(*goal),
            _ => None,
        }
    }
}

/// A draft as a Starlark value.
#[derive(Clone, Debug, Allocative, NoSerialize, ProvidesStaticType, StarlarkPagable)]
pub(super) struct DraftValue {
    #[allocative(skip)]
    #[starlark_pagable(skip = "Draft::Word(Word::empty())")]
    pub draft: Draft,
}
starlark_simple_value!(DraftValue);

impl fmt::Display for DraftValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.draft {
            Draft::Word(_) => "word",
            Draft::Fill { .. } => "fill",
            Draft::Offload { .. } => "offload_plan",
            Draft::Greedy { .. } => "greedy",
            Draft::Search { .. } => "search",
        };
        write!(f, "<{name}>")
    }
}

#[starlark_value(type = "program")]
impl<'v> StarlarkValue<'v> for DraftValue {}

/// Returns `value` as a program: a word, or the result of `fill`, `greedy` or `search`.
pub fn as_draft(value: Value) -> Option<Draft> {
    match value.downcast_ref::<DraftValue>() {
        Some(value) => Some(value.draft.clone()),
        None => as_word(value).map(Draft::Word),
    }
}

fn positive(cap: NoneOr<UnpackFloat>) -> starlark::Result<Option<f64>> {
    match cap {
        NoneOr::None => Ok(None),
        NoneOr::Other(UnpackFloat(cap)) if cap.is_finite() && cap > 0.0 => Ok(Some(cap)),
        NoneOr::Other(UnpackFloat(cap)) => refuse(format!("expected a cap of activations above 0, found {cap}")),
    }
}

fn kind_of(value: Value) -> starlark::Result<Kind> {
    match value.downcast_ref::<KindValue>() {
        Some(value) => Ok(value.kind),
        None => refuse(format!(
            "expected one of {}, found {value}",
            Kind::ALL.map(|kind| kind.letter().to_string()).join(", ")
        )),
    }
}

#[starlark_module]
pub fn functions(builder: &mut GlobalsBuilder) {
    /// The word's ops in order; W's or R's (`floating`) run when the device would idle, within `cap` activations; R's at the
    /// latest directly before their backwards.
    fn fill<'v>(
        #[starlark(require = pos)] word: Value<'v>,
        #[starlark(require = pos)] floating: Value<'v>,
        #[starlark(default = NoneOr::None)] cap: NoneOr<UnpackFloat>,
    ) -> starlark::Result<DraftValue> {
        let Some(word) = as_word(word) else { return refuse(format!("expected fill(word, W), found {word}")) };
        let floating = kind_of(floating)?;
        if ![Kind::W, Kind::R].contains(&floating) {
            return refuse("only W and R can float: fill(word, W) or fill(word, R)");
        }
        // Its latest place is directly before its backward.
        let word = if floating == Kind::R { word.recompute(None).or_else(refuse)? } else { word };
        Ok(DraftValue { draft: Draft::Fill { word, floating, cap: positive(cap)? } })
    }

    /// The word's ops in order, and copies of the activations of the first `chunks` chunks to the host and back, as PipeOffload's authors plan
    /// them with the cost `copy`.
    fn offload_plan<'v>(
        #[starlark(require = pos)] word: Value<'v>,
        #[starlark(default = 1)] chunks: u32,
    ) -> starlark::Result<DraftValue> {
        let Some(word) = as_word(word) else { return refuse(format!("expected offload_plan(word), found {word}")) };
        Ok(DraftValue { draft: Draft::Offload { word, chunks } })
    }

    /// Of the ops that are ready, runs one of the first kind in `priority`, of the oldest micro-batch.
    fn greedy<'v>(
        #[starlark(require = pos)] priority: UnpackList<Value<'v>>,
        #[starlark(default = NoneOr::None)] cap: NoneOr<UnpackFloat>,
    ) -> starlark::Result<DraftValue> {
        let priority: Vec<Kind> = priority.items.into_iter().map(kind_of).collect::<Result<_, _>>()?;
        let mut sorted = priority.clone();
        sorted.sort();
        if sorted != [Kind::F, Kind::B] && sorted != [Kind::F, Kind::I, Kind::W] {
            return refuse("expected a priority of F and B, or of F, I and W, each once");
        }
        Ok(DraftValue { draft: Draft::Greedy { priority, cap: positive(cap)? } })
    }

    /// The best order that a search finds under `cap` activations. `goal` is "makespan" or "span"; `split` splits backwards;
    /// `start` is a program to start from.
    fn search<'v>(
        #[starlark(default = NoneOr::None)] cap: NoneOr<UnpackFloat>,
        #[starlark(default = "makespan")] goal: &str,
        #[starlark(default = true)] split: bool,
        #[starlark(default = NoneOr::None)] start: NoneOr<Value<'v>>,
    ) -> starlark::Result<DraftValue> {
        let goal = match goal {
            "makespan" => Goal::Makespan,
            "span" => Goal::Span,
            other => return refuse(format!("expected goal = \"makespan\" or \"span\", found \"{other}\"")),
        };
        let start = match start {
            NoneOr::None => None,
            NoneOr::Other(value) => match as_draft(value) {
                Some(draft) if !matches!(draft, Draft::Search { .. } | Draft::Offload { .. }) => Some(Box::new(draft)),
                _ => return refuse(format!("expected start = a word, fill(...) or greedy(...), found {value}")),
            },
        };
        Ok(DraftValue { draft: Draft::Search { split, cap: positive(cap)?, goal, start } })
    }
}
