//! FSDP's collectives in a pipeline: PyTorch 2.15's rule for gathering, freeing and reducing the stages of a device.
//!
//! Two passes over a device's compute order (`distributed/pipelining/schedules.py`, `_add_unshard_reshard` and `_add_reduce_grad`):
//!
//! 1. Before each op or pair: free every active stage that is not among the next R stages in use, in the order of activation; then
//!    gather, of the next A stages in use, those that are not active. At the end, free all.
//! 2. After a stage's last B or W: reduce its gradients and wait. If waits are deferred, the wait moves before the next reduction, or to
//!    the end.

use crate::op::{Kind, Op};
use crate::schedule::{Schedule, unit_name, units};
use crate::sharding::{Collective, CollectiveKind, Placed, Sharding};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Settings of the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fsdp {
    /// R: the most stages of a device whose parameters are gathered at the same time, at least 1.
    pub max_active_stages: u32,
    /// A: how many stages are gathered ahead of an op.
    pub unshard_lookahead: Lookahead,
    /// Whether compute waits for a reduction only before the next one, or at the end.
    pub defer_reduce_grad_wait: bool,
}

/// PyTorch's defaults.
impl Default for Fsdp {
    fn default() -> Fsdp {
        Fsdp { max_active_stages: 3, unshard_lookahead: Lookahead::Full, defer_reduce_grad_wait: false }
    }
}

/// A: how many of the next stages in use a device gathers before an op.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lookahead {
    /// As many as may be active.
    #[default]
    Full,
    /// On device r as many, but at most r + 2: gathers of the first devices delay all others.
    Auto,
    /// One number per device.
    PerDevice(Vec<u32>),
}

/// Why the rule has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum FsdpError {
    #[error("expected full, auto or a number per device, as in 1,2,3,3, found '{0}'; write one of them")]
    Lookahead(String),
    #[error("`unshard-lookahead` has {found} numbers for {devices} devices; give one number per device")]
    Devices { found: usize, devices: u32 },
    #[error(
        "`unshard-lookahead` of device {device}: expected 1 to `max-active-stages` {most}, found {found}; change one of them"
    )]
    Range { device: u32, found: u32, most: u32 },
    #[error("FSDP: expected forwards and backwards, found {0}; leave it or the options of FSDP out")]
    Copies(String),
    #[error(
        "`max-active-stages` {most}: {action} on device {device} needs {needed} stages at the same time; raise it to {needed}"
    )]
    Action { device: u32, action: String, needed: usize, most: u32 },
}

impl FromStr for Lookahead {
    type Err = FsdpError;

    fn from_str(text: &str) -> Result<Lookahead, FsdpError> {
        match text.trim() {
            "full" => return Ok(Lookahead::Full),
            "auto" => return Ok(Lookahead::Auto),
            _ => {}
        }
        let numbers: Result<Vec<u32>, _> = text.split(',').map(|number| number.trim().parse::<u32>()).collect();
        let known = numbers.ok().filter(|numbers| numbers.iter().all(|&number| number > 0));
        known.map(Lookahead::PerDevice).ok_or_else(|| FsdpError::Lookahead(text.chars().take(60).collect()))
    }
}

impl fmt::Display for Lookahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lookahead::Full => write!(f, "full"),
            Lookahead::Auto => write!(f, "auto"),
            Lookahead::PerDevice(numbers) => {
                write!(f, "{}", numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Fsdp {
    /// Returns the collectives of `schedule`.
    ///
    /// # Errors
    /// Copies, a look-ahead that does not fit the devices, or a pair that needs more stages than may be active.
    pub fn sharding(&self, schedule: &Schedule) -> Result<Sharding, FsdpError> {
        if let Some(copy) = schedule.ops().iter().find(|op| op.kind().is_vocabulary() || !op.kind().is_compute()) {
            return Err(FsdpError::Copies(copy.to_string()));
        }
        if let Lookahead::PerDevice(numbers) = &self.unshard_lookahead
            && numbers.len() != schedule.devices() as usize
        {
            return Err(FsdpError::Devices { found: numbers.len(), devices: schedule.devices() });
        }
        let device = |device: u32| {
            let gathered = self.gathered(schedule, device)?;
            Ok(self.reduced(schedule.program(device), gathered))
        };
        Ok(Sharding::new((0..schedule.devices()).map(device).collect::<Result<_, _>>()?))
    }

    /// Returns A of a device.
    fn lookahead(&self, device: u32) -> Result<u32, FsdpError> {
        let most = self.max_active_stages;
        let found = match &self.unshard_lookahead {
            Lookahead::Full => most,
            Lookahead::Auto => most.min(device.saturating_add(2)),
            Lookahead::PerDevice(numbers) => numbers[device as usize],
        };
        if (1..=most).contains(&found) { Ok(found) } else { Err(FsdpError::Range { device, found, most }) }
    }

    /// The first pass: gathers and frees.
    fn gathered(&self, schedule: &Schedule, device: u32) -> Result<Vec<Placed>, FsdpError> {
        let program = schedule.program(device);
        let lookahead = self.lookahead(device)?;
        let mut uses = Uses::new(program);
        let (mut active, mut all): (Vec<u32>, Vec<Placed>) = (Vec::new(), Vec::new());
        let mut number = 0;
        for unit in units(program) {
            let needed = unit.iter().map(|op| op.stage()).collect::<BTreeSet<_>>().len();
            if needed > self.max_active_stages as usize {
                let most = self.max_active_stages;
                return Err(FsdpError::Action { device, action: unit_name(unit), needed, most });
            }
            let mut push = |kind, stage| all.push(Placed { before: number, collective: Collective { kind, stage } });
            let kept = uses.ahead(number, self.max_active_stages);
            active.retain(|stage| {
                let keeps = kept.contains(stage);
                if !keeps {
                    push(CollectiveKind::Reshard, *stage);
                }
                keeps
            });
            for stage in uses.ahead(number, lookahead) {
                if !active.contains(&stage) {
                    active.push(stage);
                    push(CollectiveKind::Unshard, stage);
                }
            }
            number += unit.len();
        }
        let reshard =
            |stage| Placed { before: number, collective: Collective { kind: CollectiveKind::Reshard, stage } };
        all.extend(active.into_iter().map(reshard));
        Ok(all)
    }

    /// The second pass: adds reductions, and waits for them.
    fn reduced(&self, program: &[Op], gathered: Vec<Placed>) -> Vec<Placed> {
        let finishes = |op: &Op| matches!(op.kind(), Kind::B | Kind::W);
        let mut left: BTreeMap<u32, usize> = BTreeMap::new();
        program.iter().filter(|op| finishes(op)).for_each(|op| *left.entry(op.stage()).or_default() += 1);
        let mut gathered = gathered.into_iter().peekable();
        let (mut all, mut waiting) = (Vec::new(), None);
        let mut number = 0;
        for unit in units(program) {
            while let Some(placed) = gathered.next_if(|placed| placed.before <= number) {
                all.push(placed);
            }
            number += unit.len();
            let mut push = |kind, stage| all.push(Placed { before: number, collective: Collective { kind, stage } });
            for op in unit.iter().filter(|op| finishes(op)) {
                let left = left.entry(op.stage()).or_default();
                *left -= 1;
                if *left > 0 {
                    continue;
                }
                if let Some(stage) = waiting.take() {
                    push(CollectiveKind::WaitReduceGrad, stage);
                }
                push(CollectiveKind::ReduceGrad, op.stage());
                match self.defer_reduce_grad_wait {
                    true => waiting = Some(op.stage()),
                    false => push(CollectiveKind::WaitReduceGrad, op.stage()),
                }
            }
        }
        all.extend(gathered);
        let wait =
            |stage| Placed { before: number, collective: Collective { kind: CollectiveKind::WaitReduceGrad, stage } };
        all.extend(waiting.map(wait));
        all
    }
}

/// When a device uses each of its stages.
struct Uses {
    /// By stage: the numbers of the ops or pairs that use it, each with its place in the pair, ascending; and how many of them are past.
    stages: BTreeMap<u32, (Vec<(usize, usize)>, usize)>,
}

impl Uses {
    fn new(program: &[Op]) -> Uses {
        let mut stages: BTreeMap<u32, (Vec<(usize, usize)>, usize)> = BTreeMap::new();
        let mut number = 0;
        for unit in units(program) {
            for (place, op) in unit.iter().enumerate() {
                stages.entry(op.stage()).or_default().0.push((number, place));
            }
            number += unit.len();
        }
        Uses { stages }
    }

    /// Returns the stages in use from op number `number` on, in order of their next use, until at least `least` are found. All stages of
    /// a pair count. `number` never decreases.
    fn ahead(&mut self, number: usize, least: u32) -> Vec<u32> {
        let mut next: Vec<((usize, usize), u32)> = Vec::with_capacity(self.stages.len());
        for (&stage, (uses, past)) in &mut self.stages {
            *past += uses[*past..].iter().take_while(|(at, _)| *at < number).count();
            next.extend(uses.get(*past).map(|&at| (at, stage)));
        }
        next.sort_unstable();
        let mut found: Vec<u32> = Vec::new();
        let mut last = None;
        for ((at, _), stage) in next {
            if found.len() >= least as usize && last != Some(at) {
                break;
            }
            last = Some(at);
            found.push(stage);
        }
        found
    }
}
