//! Lower bounds of the memory of layouts, which rule most of them out before anything else is calculated.

use super::question::Question;
use super::search::Search;
use super::space::{Candidate, StatesKey, states_key};
use super::stacks::FEWEST;
use crate::resolve::results;
use pipesim_models::layout::Recompute;
use pipesim_models::memory::{LeastMemory, MemoryModel};
use pipesim_models::model_spec::Stage;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

impl Search<'_> {
    /// Returns a lower bound of the memory of a layout.
    pub(super) fn least(&self, candidate: &Candidate) -> u64 {
        let shape = self.space.shape(candidate);
        match shape.bounds_splits {
            true => self.least_memory_of(candidate).of_any(&shape.placement),
            false => self.with_memory_model(candidate, |model| model.least(&shape.placement, &shape.stages)),
        }
    }

    /// Returns what bounds the memory of a layout of which layers may move.
    pub(super) fn least_memory_of(&self, candidate: &Candidate) -> LeastMemory {
        let known = self.bounds_of_memory().get(&states_key(candidate)).copied();
        known.unwrap_or_else(|| {
            let found = self.with_memory_model(candidate, |model| model.least_of_splits(&self.items));
            self.bounds_of_memory().insert(states_key(candidate), found);
            found
        })
    }

    /// Calculates what bounds the memory of layouts, in parallel.
    pub(super) fn bound_memory(&self, numbers: &[u32]) {
        let all = numbers.iter().map(|&number| &self.space.candidates[number as usize]);
        let moving = all.filter(|one| self.space.shape(one).bounds_splits).map(|one| (states_key(one), one));
        let is_missing = |(key, _): &(StatesKey, _)| !self.bounds_of_memory().contains_key(key);
        let missing = moving.filter(is_missing).collect::<BTreeMap<_, &Candidate>>();
        let missing: Vec<&Candidate> = missing.into_values().collect();
        results(self.question.host, missing.len(), |which| self.least_memory_of(missing[which]));
    }

    fn bounds_of_memory(&self) -> MutexGuard<'_, BTreeMap<StatesKey, LeastMemory>> {
        self.least.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what `of` makes of a layout's memory model with as little memory as the layout may take.
    fn with_memory_model<T>(&self, candidate: &Candidate, of: impl Fn(MemoryModel<'_>) -> T) -> T {
        let mut layout = self.space.layout(self.question, candidate);
        if layout.recompute == FEWEST {
            layout.recompute = Recompute::Full;
        }
        let Question { model, machine, .. } = self.question;
        of(MemoryModel::of_spec(model, &self.spec, &layout, &machine.stack))
    }

    /// Returns a lower bound of the bytes of a layout's fullest device if that is above `bytes`, in every split that [`Search::moved`] tries.
    pub(super) fn overflow(&self, candidate: &Candidate, bytes: u64) -> Option<u64> {
        let shape = self.space.shape(candidate);
        if !shape.bounds_splits || shape.is_open {
            return None;
        }
        let costs = self.priced(candidate.group, self.space.layout(self.question, candidate))?;
        let (ordered, least) = (self.order(candidate, &costs).ok()?, self.least_memory_of(candidate));
        // finding a split takes longer than bounding all of them
        let mut bound = least.of_any_split(&ordered.moments);
        if bound <= bytes {
            let times = self.groups.times(candidate.group, &costs, shape.splits)?;
            let lightest = || self.groups.lightest([candidate.group, candidate.shape], times, &shape.placement);
            let own = || shape.stages.iter().map(Stage::layers).collect();
            // what the devices cannot hold together in the lightest split is not tried in another
            bound =
                least.of(&ordered.moments, &if shape.moves { lightest()? } else { own() })[usize::from(shape.moves)];
        }
        (bound > bytes).then_some(bound)
    }

    /// Returns whether no split of a layout's layers fits, since its devices cannot hold what is in flight even together.
    pub(super) fn overflows(&self, candidate: &Candidate) -> bool {
        let shape = self.space.shape(candidate);
        let default = || self.priced(candidate.group, self.space.layout(self.question, candidate));
        let ordered = default().filter(|_| !shape.is_open).and_then(|costs| self.order(candidate, &costs).ok());
        let least = ordered.map(|ordered| self.least_memory_of(candidate).of_any_split(&ordered.moments));
        least > Some(self.question.bytes())
    }
}
