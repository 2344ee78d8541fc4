//! The search: layouts are predicted in the order of their bounds until no other can be among the best.

use super::group_costs::GroupCosts;
use super::journal::LayoutOutcome;
use super::orders::{NoOrder, Ordered, Orders};
use super::question::Question;
use super::reason::{PlanError, Reason};
use super::shapes::{PlanShape, alike};
use super::space::{Candidate, Key, PlanGroup, RefinedSplit, Space, StatesKey, key};
use super::stacks::FEWEST;
use crate::framework::{facts, framework};
use crate::resolve::results;
use pipesim_cost::analytic::Analytic;
use pipesim_frameworks::{Facts, Framework, ObjectionKind};
use pipesim_models::layout::{ParallelConfig, Recompute, Zero};
use pipesim_models::memory::LeastMemory;
use pipesim_models::model_spec::{ModelSpec, SplitItems};
use pipesim_sim::sweep;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of layouts that are predicted before the best known time is checked again, on any number of cores: few at first, and more of many.
const BATCH: [usize; 2] = [64, 256];
/// Largest number of layouts whose outcomes are foreseen until then, per layout that is predicted.
const FORESEEN: usize = 16;
/// Layouts whose times are this much above the best one's may become the best when their layers move.
pub(super) const NEAR: f64 = 0.1;
/// Largest number of splits of a layout that are all tried.
pub(super) const FEW_SPLITS: f64 = 500.0;
/// Maximum number of searched orders per question.
const MOST_SEARCHES: usize = 48;

/// Follows a search. The defaults do nothing.
pub trait Observer: Sync {
    /// `decided` of `all` layouts are decided; the best so far takes `best` seconds.
    fn progress(&self, decided: usize, all: usize, best: Option<(f64, &ParallelConfig)>) {
        let _ = (decided, all, best);
    }

    /// A layout was predicted.
    fn outcome(&self, number: u32, outcome: LayoutOutcome) {
        let _ = (number, outcome);
    }

    /// Whether the search should end with what it has.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// An [`Observer`] that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Which layouts a search may return.
pub struct Limits<'a> {
    /// Number of layouts to find.
    pub keep: usize,
    /// Maximum bytes per device.
    pub bytes: u64,
    /// Which layouts are allowed.
    pub allows: &'a (dyn Fn(&Space, &Candidate) -> bool + Sync),
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct FoundLayouts {
    /// The best layouts by number, best first, with their iteration times times the price of a second.
    pub best: Vec<(f64, u32)>,
    /// Layouts that were ruled out, by reason.
    pub ruled_out: BTreeMap<Reason, u64>,
    /// Layouts that were predicted in full.
    pub predicted: u64,
    /// Layouts of these that are left out because a better one is alike.
    pub alike: u64,
    /// Whether the observer stopped it.
    pub is_stopped: bool,
}

/// Layouts of a question with their known results.
pub struct Search<'a> {
    pub question: &'a Question,
    pub space: Space,
    framework: Option<&'static Framework>,
    pub(super) spec: ModelSpec,
    pub(super) items: SplitItems,
    pub(super) groups: GroupCosts,
    orders: Orders,
    known: Mutex<BTreeMap<u32, LayoutOutcome>>,
    /// Splits that simulation improved, and the layouts for which it tried.
    refined: Mutex<BTreeMap<Key, RefinedSplit>>,
    climbed: Mutex<BTreeSet<u32>>,
    /// What bounds memory from below.
    pub(super) least: Mutex<BTreeMap<StatesKey, LeastMemory>>,
    /// Lower bounds of costs with the default split, of layouts whose listed bounds are those of every split.
    bounds: Mutex<BTreeMap<Key, f64>>,
    /// In how many ways published steps are unlike a layout, by the properties that they are compared in.
    unlike: Mutex<BTreeMap<(bool, [u32; 7]), usize>>,
}

impl<'a> Search<'a> {
    /// Lists the layouts of `question`.
    ///
    /// # Errors
    /// As [`Space::new`], or the stack's framework has no such version.
    pub fn new(question: &'a Question) -> Result<Search<'a>, PlanError> {
        let framework = framework(&question.machine.stack).map_err(PlanError::refused)?;
        if let Some(framework) = framework {
            question.refused_by(framework)?;
        }
        let (space, spec) = (Space::new(question)?, question.model.spec());
        let (groups, items) = (GroupCosts::new(question, space.groups.len()), spec.items().unwrap_or_default());
        let (orders, known, refined, climbed, least, bounds, unlike) = Default::default();
        Ok(Search {
            question,
            space,
            framework,
            spec,
            items,
            groups,
            orders,
            known,
            refined,
            climbed,
            least,
            bounds,
            unlike,
        })
    }

    /// Returns the framework that the stack runs, if its rules are known.
    pub fn framework(&self) -> Option<&'static Framework> {
        self.framework
    }

    /// Adds the results of an earlier search of the same question.
    pub fn knowing(self, known: BTreeMap<u32, LayoutOutcome>) -> Search<'a> {
        Search { known: Mutex::new(known), ..self }
    }

    /// Returns the costs of a candidate.
    pub fn costs(&self, candidate: &Candidate) -> Option<Analytic> {
        Some(self.costs_and_bytes(candidate)?.0)
    }

    /// Returns the costs of a candidate, and the bytes of its fullest device if these are known then.
    fn costs_and_bytes(&self, candidate: &Candidate) -> Option<(Analytic, Option<u64>)> {
        if self.space.shape(candidate).moves {
            return self.moved(candidate);
        }
        let costs = self.priced(candidate.group, self.space.layout(self.question, candidate))?;
        Some((self.with_fewest(candidate, costs)?, None))
    }

    /// Returns the order of a candidate.
    pub(super) fn order(&self, candidate: &Candidate, costs: &Analytic) -> Result<Arc<Ordered>, NoOrder> {
        self.orders.of(self.question, self.space.shape(candidate), candidate, costs)
    }

    fn bounds(&self) -> MutexGuard<'_, BTreeMap<Key, f64>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outcome of a layout if it follows without the layout's costs.
    fn foreseen(&self, number: u32, bytes: u64, most: f64) -> Option<Result<LayoutOutcome, NoOrder>> {
        let candidate = &self.space.candidates[number as usize];
        if self.fits_without(number as usize) {
            return Some(Ok(LayoutOutcome::Missing));
        }
        let least = self.least(candidate);
        if least > bytes {
            return Some(Ok(LayoutOutcome::TooLarge(least)));
        }
        let is_slower = self.bounds().get(&key(candidate)).is_some_and(|bound| *bound > most);
        is_slower.then_some(Err(NoOrder::Slower))
    }

    /// Predicts a layout that is not [foreseen](Search::foreseen), as `predict` does. If its memory exceeds `bytes`, or its cost is above `most`
    /// by a bound, its time is not predicted.
    fn predict(&self, candidate: &Candidate, bytes: u64, most: f64) -> Result<LayoutOutcome, NoOrder> {
        let (shape, price) = (self.space.shape(candidate), self.question.price(self.space.group(candidate).gpus));
        if let Some(least) = self.overflow(candidate, bytes) {
            return Ok(LayoutOutcome::TooLarge(least));
        }
        let (costs, used) = self.costs_and_bytes(candidate).ok_or(NoOrder::Missing)?;
        if shape.bounds_splits && !shape.moves {
            let bound = costs.least_iteration(&shape.placement, &shape.stages, shape.splits, &shape.alike) * price;
            if bound > most {
                self.bounds().insert(key(candidate), bound);
                return Err(NoOrder::Slower);
            }
        }
        let (ordered, stages) = (self.order(candidate, &costs)?, self.stages(shape, &costs).ok_or(NoOrder::Missing)?);
        let totals = || costs.memory_model().totals(&stages, &ordered.moments).max().unwrap_or(0);
        let used = used.unwrap_or_else(totals);
        if used > bytes {
            return Ok(LayoutOutcome::TooLarge(used));
        }
        // another of few splits may be much faster
        if shape.moves && self.splits_of(candidate) > FEW_SPLITS {
            let alike = alike(&shape.placement, &stages);
            let bound = costs.least_iteration(&shape.placement, &stages, shape.splits, &alike) * price / (1.0 + NEAR);
            if bound > most {
                self.bounds().insert(key(candidate), bound);
                return Err(NoOrder::Slower);
            }
        }
        // rules take longer than memory
        if self.is_refused(shape, &costs) {
            return Ok(LayoutOutcome::Refused);
        }
        let step = || {
            let table = costs.bare_table(&shape.placement, &stages, shape.overlaps).ok()?;
            let devices = sweep(&ordered.graph, &table);
            costs.step(&shape.placement, &stages, &devices, shape.splits).ok()
        };
        let step = step().ok_or(NoOrder::Missing)?;
        Ok(LayoutOutcome::Predicted { bytes: used, iteration_s: step.iteration() })
    }

    /// Returns in how many ways published steps are unlike a layout, calculated once by `of`.
    pub(super) fn unlike(&self, candidate: &Candidate, of: impl FnOnce() -> usize) -> usize {
        let (PlanGroup { gpus, tp, cp, ep, micro_batch_size, .. }, shape) =
            (*self.space.group(candidate), self.space.shape(candidate));
        let numbers = [gpus, tp, cp, ep, micro_batch_size, shape.pp, shape.chunks];
        let mut known = self.unlike.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry((candidate.zero == Zero::Weights, numbers)).or_insert_with(of)
    }

    /// Returns what is known of a layout for the framework's rules.
    fn facts(&self, shape: &PlanShape, costs: &Analytic) -> Facts {
        let base = shape.schedule.split(':').next().unwrap_or_default();
        let is_known = pipesim_language::names().contains(&base);
        facts(costs, is_known.then_some(base))
    }

    /// Whether the framework refuses a layout, or does something else. What it cannot express is predicted if it was asked for.
    pub(super) fn is_refused(&self, shape: &PlanShape, costs: &Analytic) -> bool {
        let Some(framework) = self.framework else { return false };
        let fixed = &self.question.fixed;
        let asks = !self.question.schedules.is_empty() || !fixed.zero.is_empty() || !fixed.recompute.is_empty();
        // tests evaluate every rule on all facts
        framework.refuses(&self.facts(shape, costs), !asks).unwrap_or(false)
    }

    /// Returns why the framework refuses the best of the layouts that it refuses.
    pub(super) fn refusal(&self) -> Option<String> {
        let outcomes = self.outcomes().into_iter();
        let number =
            outcomes.filter(|(_, outcome)| *outcome == LayoutOutcome::Refused).map(|(number, _)| number).min()?;
        let candidate = &self.space.candidates[number as usize];
        let (framework, costs) = (self.framework?, self.costs(candidate)?);
        let objections = framework.objections(&self.facts(self.space.shape(candidate), &costs)).ok()?;
        let first = objections.into_iter().find(|one| one.kind != ObjectionKind::Needs)?;
        let remedy = if first.remedy.is_empty() { String::new() } else { format!(", {}", first.remedy) };
        Some(format!("{} {} refuses it ({}{remedy})", framework.title(), framework.version(), first.error))
    }

    /// Returns the bytes of a layout's fullest device.
    pub(super) fn bytes_of(&self, number: u32) -> Option<u64> {
        let candidate = &self.space.candidates[number as usize];
        let costs = self.costs(candidate)?;
        let ordered = self.order(candidate, &costs).ok()?;
        let stages = self.stages(self.space.shape(candidate), &costs)?;
        costs.memory_model().totals(&stages, &ordered.moments).max()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, LayoutOutcome>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn refined(&self) -> MutexGuard<'_, BTreeMap<Key, RefinedSplit>> {
        self.refined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn climbed(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.climbed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, number: u32) -> Option<LayoutOutcome> {
        let candidate = &self.space.candidates[number as usize];
        let refined = self.refined().get(&key(candidate)).map(|found| found.outcome);
        refined.or_else(|| self.lock().get(&number).copied())
    }

    /// Returns whether a layout asks for the fewest recomputed layers and is known to fit without; their bounds are equal.
    fn fits_without(&self, number: usize) -> bool {
        let (candidates, groups) = (&self.space.candidates, &self.space.groups);
        let own = candidates[number];
        if self.space.shape(&own).moves {
            // layers that move fit, or are recomputed, in other splits
            return false;
        }
        let group = groups[own.group as usize];
        let plain = groups.binary_search(&PlanGroup { recompute: Recompute::None, ..group });
        let Some(plain) = plain.ok().filter(|_| group.recompute == FEWEST) else { return false };
        let plain = Candidate { group: plain as u32, ..own };
        let same =
            candidates[..number].iter().rev().take_while(|one| one.bound == own.bound).position(|one| *one == plain);
        let known = same.and_then(|back| self.known((number - 1 - back) as u32));
        matches!(known, Some(LayoutOutcome::Predicted { bytes, .. }) if bytes <= self.question.bytes())
    }

    /// Returns the known outcome of a layout within `bytes`.
    fn known_within(&self, number: u32, bytes: u64) -> Option<LayoutOutcome> {
        self.known(number)?.within(bytes)
    }

    /// Keeps what was predicted of a layout within `bytes` and returns it; `None` if it is slower by a bound.
    fn keep(
        &self,
        number: u32,
        bytes: u64,
        predicted: Result<LayoutOutcome, NoOrder>,
        observer: &dyn Observer,
    ) -> Option<LayoutOutcome> {
        if predicted == Err(NoOrder::Slower) {
            return None;
        }
        let outcome = predicted.unwrap_or(LayoutOutcome::Missing);
        self.lock().insert(number, outcome);
        // another time this machine may have the memory
        if predicted != Err(NoOrder::Refused) {
            observer.outcome(number, outcome);
        }
        let refined = self.refined().get(&key(&self.space.candidates[number as usize])).map(|found| found.outcome);
        refined.unwrap_or(outcome).within(bytes)
    }

    /// Returns the outcomes of layouts within `bytes`, predicting those that are not known; `None` for those that cost more than `most` by a
    /// bound.
    fn outcomes_of(
        &self,
        numbers: &[u32],
        bytes: u64,
        most: f64,
        observer: &dyn Observer,
    ) -> Vec<Option<LayoutOutcome>> {
        // starting a thread takes longer than most of these
        let quick = |&number: &u32| match self.known_within(number, bytes) {
            None => self.foreseen(number, bytes, most).map(|found| self.keep(number, bytes, found, observer)),
            known => Some(known),
        };
        let mut outcomes: Vec<Option<Option<LayoutOutcome>>> = numbers.iter().map(quick).collect();
        let mut left: Vec<usize> = (0..numbers.len()).filter(|&which| outcomes[which].is_none()).collect();
        // different orders first, so that they are compiled side by side
        let mut seen = BTreeSet::new();
        left.sort_by_cached_key(|&which| {
            let candidate = &self.space.candidates[numbers[which] as usize];
            !seen.insert(Orders::key(self.space.shape(candidate), candidate.micro))
        });
        let found = results(self.question.host, left.len(), |which| {
            let number = numbers[left[which]];
            // the same layout without recomputation may be known by now
            let predicted = match self.fits_without(number as usize) {
                true => Ok(LayoutOutcome::Missing),
                false => self.predict(&self.space.candidates[number as usize], bytes, most),
            };
            self.keep(number, bytes, predicted, observer)
        });
        left.into_iter().zip(found).for_each(|(which, found)| outcomes[which] = Some(found));
        outcomes.into_iter().map(Option::flatten).collect()
    }

    /// Returns all known results.
    pub fn outcomes(&self) -> BTreeMap<u32, LayoutOutcome> {
        self.lock().clone()
    }

    /// Returns what distinguishes the plans of an answer. Two layouts of one kind differ only in virtual stages, in cp and micro-batch size,
    /// in the parts that are recomputed, or in the replicas that share states, and their predictions hardly differ.
    fn kind(&self, number: u32) -> impl Ord + '_ {
        let candidate = &self.space.candidates[number as usize];
        let PlanGroup { gpus, tp, ep, sequence_parallel, recompute, .. } = *self.space.group(candidate);
        let shape = self.space.shape(candidate);
        let numbers = [gpus, tp, ep, shape.pp, candidate.micro];
        let moves = shape.moves || shape.layers.is_some();
        (&shape.schedule, numbers, recompute.is_of_layers(), candidate.zero, sequence_parallel, moves)
    }

    /// Finds the best layouts within `limits`, one of each kind.
    pub fn best(&self, limits: &Limits<'_>, observer: &dyn Observer) -> FoundLayouts {
        let candidates = &self.space.candidates;
        let allowed = |number: &u32| (limits.allows)(&self.space, &candidates[*number as usize]);
        let all: Vec<u32> = (0..candidates.len() as u32).filter(allowed).collect();
        self.best_of(&all, limits, observer)
    }

    /// Finds the best of the layouts `all`, ordered by number, within `limits`, one of each kind.
    pub(super) fn best_of(&self, all: &[u32], limits: &Limits<'_>, observer: &dyn Observer) -> FoundLayouts {
        let mut found = FoundLayouts::default();
        let candidates = &self.space.candidates;
        let is_open = |number: u32| self.space.shape(&candidates[number as usize]).is_open;
        // searched orders come last, and only while they may be among the best
        let (open, fixed): (Vec<u32>, Vec<u32>) = all.iter().partition(|&&number| is_open(number));
        let spent = self.pass(&fixed, limits, &mut found, usize::MAX, observer, all.len());
        let searched = self.pass(&open, limits, &mut found, MOST_SEARCHES, observer, all.len());
        let left = (fixed.len() - spent) + (open.len() - searched);
        let may_beat = |number: &&u32| self.may_beat(candidates[**number as usize].bound, &found, limits.keep);
        let unsearched = open[searched..].iter().filter(may_beat).count();
        let slower = found.predicted.saturating_sub(found.best.len() as u64 + found.alike);
        let counts = [
            (Reason::Slower, (left - unsearched) as u64),
            (Reason::Unsearched, unsearched as u64),
            (Reason::Predicted, slower),
            (Reason::Alike, found.alike),
        ];
        for (reason, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            *found.ruled_out.entry(reason).or_default() += count;
        }
        found
    }

    /// Returns whether a layout is missing where another is the same: with the fewest recomputed layers, or layers moved.
    fn may_be_alike(&self, candidate: &Candidate) -> bool {
        self.space.group(candidate).recompute == FEWEST || self.space.shape(candidate).moves
    }

    fn may_beat(&self, bound: f64, found: &FoundLayouts, keep: usize) -> bool {
        found.best.len() < keep || found.best.last().is_none_or(|(worst, _)| bound <= *worst)
    }

    /// Predicts layouts in the order of their bounds. Returns how many were decided.
    fn pass(
        &self,
        numbers: &[u32],
        limits: &Limits<'_>,
        found: &mut FoundLayouts,
        most: usize,
        observer: &dyn Observer,
        all: usize,
    ) -> usize {
        let (mut done, mut bounded) = (0, 0);
        while done < numbers.len().min(most) {
            let candidates = &self.space.candidates;
            let mut left = (done / 16).clamp(BATCH[0], BATCH[1]);
            let end = numbers.len().min(most).min(done + FORESEEN * left);
            let may = |number: &&u32| self.may_beat(candidates[**number as usize].bound, found, limits.keep);
            // bounds grow, so those that may be among the best come first
            let mut batch: Vec<u32> = numbers[done..end].iter().take_while(may).copied().collect();
            let ahead = done + batch.len();
            self.bound_memory(&numbers[done.max(bounded).min(ahead)..ahead]);
            bounded = bounded.max(ahead);
            // known layouts count, too: a search that a journal continues returns the same counts
            let is_left = |number: &u32| {
                let candidate = &candidates[*number as usize];
                !self.space.shape(candidate).bounds_splits || self.least(candidate) <= limits.bytes
            };
            let last = batch.iter().position(|number| {
                left -= usize::from(is_left(number));
                left == 0
            });
            batch.truncate(last.map_or(batch.len(), |last| last + 1));
            if batch.is_empty() {
                break;
            }
            if observer.is_stopped() {
                found.is_stopped = true;
                break;
            }
            let worst = found.best.last().filter(|_| found.best.len() >= limits.keep);
            let most = worst.map_or(f64::INFINITY, |(worst, _)| *worst);
            let outcomes = self.outcomes_of(&batch, limits.bytes, most, observer);
            for (&number, outcome) in batch.iter().zip(outcomes) {
                let reason = match outcome {
                    None => Reason::Slower,
                    Some(outcome) => match outcome {
                        LayoutOutcome::Missing if self.may_be_alike(&candidates[number as usize]) => Reason::Alike,
                        LayoutOutcome::Missing => Reason::Schedule,
                        LayoutOutcome::Refused => Reason::Framework,
                        LayoutOutcome::TooLarge(_) => Reason::Memory,
                        LayoutOutcome::Predicted { iteration_s, .. } => {
                            found.predicted += 1;
                            let price = self.question.price(self.space.group(&candidates[number as usize]).gpus);
                            found.best.push((iteration_s * price, number));
                            continue;
                        }
                    },
                };
                *found.ruled_out.entry(reason).or_default() += 1;
            }
            found.best.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let (before, mut seen) = (found.best.len(), BTreeSet::new());
            found.best.retain(|&(_, number)| seen.insert(self.kind(number)));
            found.alike += (before - found.best.len()) as u64;
            found.best.truncate(limits.keep);
            done += batch.len();
            let best = found.best.first().map(|&(_, number)| &candidates[number as usize]);
            let layout = best.map(|candidate| self.space.layout(self.question, candidate));
            let seconds = found.best.first().and_then(|&(_, number)| match self.known(number) {
                Some(LayoutOutcome::Predicted { iteration_s, .. }) => Some(iteration_s),
                _ => None,
            });
            observer.progress(all - numbers.len() + done, all, seconds.zip(layout.as_ref()));
        }
        done
    }
}
