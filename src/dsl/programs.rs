//! From what `device` returned for every device to their programs: words expanded, every op checked.

use super::draft::Draft;
use super::expansion::Expansion;
use super::request::{Asked, Error};
use super::word::Word;
use crate::op::Op;
use crate::open::{OpenSchedule, Program};
use crate::placement::Placement;
use crate::schedule::{Fault, Misplaced, Programs, Schedule, grid};

/// Room made for ops before they are known to come: address space, not yet memory.
const MAX_RESERVED_OPS: usize = 1 << 26;

/// What a schedule was expanded from.
#[derive(Debug)]
pub struct Written {
    pub(super) placement: Placement,
    pub(super) microbatches: u32,
    pub(super) words: Vec<Word>,
    pub(super) file: String,
}

impl Written {
    /// `file:line` where op number `index` of `device` was written.
    pub fn location(&self, device: u32, index: usize) -> String {
        let Some(word) = self.words.get(device as usize) else { return self.file.clone() };
        let mut ops = Vec::new();
        let mut expansion = Expansion::new(&self.placement, device, self.microbatches, &mut ops);
        let _ = word.visit(&mut |atoms, context| {
            atoms.iter().try_for_each(|atom| {
                let kept = expansion.take(atom, context.limit).map_err(drop)?;
                if kept && expansion.len() > index { Err(()) } else { Ok(()) }
            })
        });
        format!("{}:{}", self.file, expansion.line)
    }
}

impl Asked<'_> {
    /// The schedule of fixed words, one a device.
    pub fn expand(&self, placement: &Placement, words: &[Word]) -> Result<Schedule, Error> {
        let m = self.request.microbatches;
        let mut programs = Programs::default();
        let mut fault: Option<(u32, usize, u32, String)> = None; // the first one's device, op number, line, what
        for (device, word) in words.iter().enumerate() {
            let mut expansion = Expansion::new(placement, device as u32, m, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            let result = result.and_then(|()| expansion.check_complete());
            if let (Err(Misplaced(what)), None) = (result, &fault) {
                fault = Some((device as u32, expansion.len(), expansion.line, what));
            }
            let phases = expansion.phases;
            programs.finish(phases);
            if programs.ops.len() as u64 > self.request.budget.ops {
                return Err(Error::Invalid(format!(
                    "{} is beyond the budget of {} ops; take fewer micro-batches or raise --max-ops",
                    self.path.name, self.request.budget.ops
                )));
            }
            if device == 0 {
                // Most devices have as many ops as the first.
                programs.ops.reserve((programs.ops.len() * (words.len() - 1)).min(MAX_RESERVED_OPS));
            }
        }
        match fault {
            None => Ok(Schedule::new(&self.path.name, placement.clone(), m, programs)),
            Some(fault) => Err(self.fault(&programs, fault)),
        }
    }

    /// What costs are to settle. A search's goal is that of the first device that names one.
    pub fn open(&self, placement: &Placement, drafts: &[Draft]) -> Result<OpenSchedule, Error> {
        let programs = drafts.iter().enumerate().map(|(device, draft)| self.program(placement, device as u32, draft));
        Ok(OpenSchedule {
            name: self.path.name.clone(),
            placement: placement.clone(),
            microbatches: self.request.microbatches,
            programs: programs.collect::<Result<_, _>>()?,
            goal: drafts.iter().find_map(Draft::goal).unwrap_or_default(),
        })
    }

    fn program(&self, placement: &Placement, device: u32, draft: &Draft) -> Result<Program, Error> {
        let expand = |word: &Word, floating: bool| -> Result<Vec<Op>, Error> {
            let mut programs = Programs::default();
            (0..device).for_each(|_| programs.finish(Vec::new()));
            let mut expansion = Expansion::new(placement, device, self.request.microbatches, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            if floating {
                expansion.complete_weights();
            }
            match result.and_then(|()| expansion.check_complete()) {
                Ok(()) => Ok(programs.ops),
                Err(Misplaced(what)) => {
                    let (index, line) = (expansion.len(), expansion.line);
                    programs.finish(Vec::new());
                    Err(self.fault(&programs, (device, index, line, what)))
                }
            }
        };
        Ok(match draft {
            Draft::Word(word) => Program::Fixed(expand(word, false)?),
            Draft::Fill { word, cap } => Program::Fill { ops: expand(word, true)?, cap: *cap },
            Draft::Greedy { priority, cap } => Program::Greedy { priority: priority.clone(), cap: *cap },
            Draft::Search { split, cap, start, .. } => {
                let start = start.as_ref().map(|start| self.program(placement, device, start).map(Box::new));
                Program::Search { split: *split, cap: *cap, start: start.transpose()? }
            }
        })
    }

    /// The fault at op number `index` of `device`, written on `line`.
    fn fault(&self, programs: &Programs, (device, index, line, what): (u32, usize, u32, String)) -> Error {
        let fault = Fault { device, index: Some(index), what, grid: grid(&programs.rows(), device, index) };
        let place = if line > 0 { format!("{}:{line}", self.path.file) } else { self.path.file.clone() };
        Error::Invalid(format!("{place}: not a schedule for {}: {fault}", self.numbers()))
    }
}
