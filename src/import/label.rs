//! Names of ranges: PyTorch's actions, GPipe's names, names in Megatron forks, and the user's rules.

use super::error::ImportError;
use pipesim_schedule::csv::{Action, What, parse_cell};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::sharding::CollectiveKind;
use regex::Regex;

/// What a labelled range is. Stages and micro-batches count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// An op whose label names its stage.
    Op(Op),
    /// An overlapped pair, in the order in which its ops run.
    Pair(Op, Op),
    /// The send of the output of this forward, or of the gradient of this backward.
    Send(Boundary),
    /// The receive for this forward or backward.
    Receive(Boundary),
    /// An op whose label has no stage; the stage follows from the rank. `chunk` counts the stages of the rank.
    Plain { kind: Kind, chunk: u32, microbatch: u32 },
    /// GPipe's range, which also has the wait and the sends.
    Whole { kind: Kind, microbatch: u32 },
    /// A range without a number: it is counted.
    Counted(Kind),
    /// The reduction of gradients.
    Reduce,
    /// A range of the schedule that says nothing about ops.
    Other,
}

/// One side of a message: which op sends or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boundary {
    pub gradient: bool,
    pub stage: u32,
    pub microbatch: u32,
}

impl Boundary {
    /// Returns the boundary at which `op` sends or waits; `None` for a W.
    pub fn of(op: Op) -> Option<Boundary> {
        let gradient = op.kind().is_backward();
        (gradient || op.kind() == Kind::F).then_some(Boundary {
            gradient,
            stage: op.stage(),
            microbatch: op.microbatch(),
        })
    }
}

/// A rule of the user: names that match are ops of this kind.
#[derive(Clone, Debug)]
pub struct LabelRule {
    pattern: Regex,
    kind: Kind,
}

impl std::str::FromStr for LabelRule {
    type Err = ImportError;

    /// Reads `REGEX=F`. The group `mb`, else the first group, is the micro-batch; the group `stage` is the stage.
    fn from_str(text: &str) -> Result<LabelRule, ImportError> {
        let wrong = |what: &str| {
            let form = "expected REGEX=KIND with a group for the micro-batch, as in 'fwd_(\\d+)=F'";
            ImportError::new(format!("{form}{what}"))
        };
        let (pattern, kind) = text.rsplit_once('=').ok_or_else(|| wrong(", found no ="))?;
        let mut letters = kind.chars();
        let kind = letters.next().and_then(Kind::from_letter).filter(|_| letters.next().is_none());
        let kind = kind.ok_or_else(|| wrong("; the kind is one of F I W B; correct what follows the ="))?;
        let pattern = Regex::new(pattern).map_err(|error| wrong(&format!("; {error}")))?;
        if pattern.captures_len() < 2 {
            return Err(wrong(", found no group; add one"));
        }
        Ok(LabelRule { pattern, kind })
    }
}

impl LabelRule {
    fn label(&self, name: &str) -> Option<Label> {
        let found = self.pattern.captures(name)?;
        let number = |text: &str| text.parse::<u32>().ok();
        let group = found.name("mb").or_else(|| {
            let stage = found.name("stage").map(|group| group.range());
            found.iter().skip(1).flatten().find(|group| Some(group.range()) != stage)
        });
        let microbatch = number(group?.as_str())?;
        match found.name("stage").map(|group| number(group.as_str())) {
            None => Some(Label::Plain { kind: self.kind, chunk: 0, microbatch }),
            Some(stage) => {
                Some(Label::Op(Op::new(self.kind, stage.filter(|&stage| stage <= Op::MAX_STAGE)?, microbatch)))
            }
        }
    }
}

/// All rules for names.
#[derive(Clone, Debug, Default)]
pub struct LabelRules {
    /// Rules of the user, which win.
    pub own: Vec<LabelRule>,
    /// Whether short names such as `F3` are ops: they are ranges of NVTX, and could be anything elsewhere.
    pub short: bool,
}

impl LabelRules {
    /// Returns the meaning of a range's name; `None` for a name that is no label.
    pub fn label(&self, name: &str) -> Option<Label> {
        if let Some(label) = self.own.iter().find_map(|rule| rule.label(name)) {
            return Some(label);
        }
        if let Some(action) = name.strip_prefix("PP:") {
            return Some(pytorch(action).unwrap_or(Label::Other));
        }
        match name.rsplit('.').next() {
            Some("forward_step") => return Some(Label::Counted(Kind::F)),
            Some("backward_step") => return Some(Label::Counted(Kind::B)),
            _ => {}
        }
        let whole = |prefix: &str, kind| {
            let microbatch = name.strip_prefix(prefix)?.parse().ok()?;
            Some(Label::Whole { kind, microbatch })
        };
        let whole = whole("Forward ", Kind::F).or_else(|| whole("Backward ", Kind::B));
        whole.or_else(|| if self.short { short(name) } else { None })
    }
}

/// Reads PyTorch's text of an action, as in its schedule files.
fn pytorch(text: &str) -> Option<Label> {
    let mut actions: Vec<Action> = Vec::new();
    parse_cell(text.trim(), 1, &mut actions).ok()?;
    let op = |action: &Action| match action.what {
        What::Op(kind) => Some(Op::new(kind, action.stage, action.microbatch)),
        What::WholeBackward => Some(Op::new(Kind::B, action.stage, action.microbatch)),
        _ => None,
    };
    let [action] = actions[..] else {
        let [first, second] = actions[..] else { return None };
        return Some(Label::Pair(op(&first)?, op(&second)?));
    };
    let boundary = |gradient| Boundary { gradient, stage: action.stage, microbatch: action.microbatch };
    Some(match action.what {
        What::Send(gradient) => Label::Send(boundary(gradient)),
        What::Receive(gradient) => Label::Receive(boundary(gradient)),
        What::Collective(CollectiveKind::ReduceGrad) => Label::Reduce,
        _ => op(&action).map_or(Label::Other, Label::Op),
    })
}

/// Reads `F3`, `B3.1` (chunk 1) or `W3`, as the zero-bubble fork of Megatron-LM names its NVTX ranges.
fn short(name: &str) -> Option<Label> {
    let mut letters = name.chars();
    let kind = letters.next().and_then(Kind::from_letter)?;
    let mut numbers = letters.as_str().split('.');
    let microbatch = numbers.next()?.parse().ok()?;
    let chunk = numbers.next().map_or(Some(0), |chunk| chunk.parse().ok())?;
    Some(Label::Plain { kind, chunk, microbatch })
}
