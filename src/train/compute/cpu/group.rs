//! Parameters in the memory of the host.

use super::machine::Cpu;
use crate::compute::{AdamW, Merge, OptimizerShare, Quantity, Side, Squared, Store};
use anyhow::{Result, bail, ensure};
use cpu_kernels::optimizer::{ParameterGroup, overlap};
use cpu_kernels::vector;
use std::ops::Range;

/// Some tensors with what belongs to them.
pub struct Group {
    pub(super) own: ParameterGroup,
    /// The side of the gradient that belongs to the part that shares the tensors; empty without one.
    pub(super) shared_gradients: Vec<f32>,
    saved: Option<GroupState>,
}

/// Values of a group, and the first and second moments of its slice.
#[derive(Clone, Debug, Default)]
pub struct GroupState([Vec<f32>; 3]);

impl Group {
    /// Returns a copy of its state.
    pub fn state(&self) -> GroupState {
        let ParameterGroup { values, first_moments, second_moments, .. } = &self.own;
        GroupState([values.clone(), first_moments.clone(), second_moments.clone()])
    }

    /// Copies `state`, of a group of the same tensors.
    pub fn load(&mut self, GroupState([values, first_moments, second_moments]): &GroupState) {
        self.own.values.copy_from_slice(values);
        self.own.first_moments.copy_from_slice(first_moments);
        self.own.second_moments.copy_from_slice(second_moments);
    }

    /// Exchanges its state with `state`, without a copy.
    pub fn swap(&mut self, GroupState([values, first_moments, second_moments]): &mut GroupState) {
        std::mem::swap(&mut self.own.values, values);
        std::mem::swap(&mut self.own.first_moments, first_moments);
        std::mem::swap(&mut self.own.second_moments, second_moments);
    }

    /// Range of the elements that have moments.
    pub fn slice(&self) -> Range<usize> {
        self.own.slice()
    }

    /// Bytes of its values, gradients and moments.
    pub fn bytes(&self) -> usize {
        let ParameterGroup { values, gradients, first_moments, second_moments, .. } = &self.own;
        [values, gradients, first_moments, second_moments, &self.shared_gradients]
            .map(|all| size_of_val(&all[..]))
            .iter()
            .sum()
    }

    /// Returns the moments of a tensor that are here: which of the tensor's elements, and which of the moments.
    fn moments(&self, tensor: usize) -> (Range<usize>, Range<usize>) {
        let (range, slice) = (self.own.range(tensor), self.own.slice());
        let held = overlap(&range, &slice);
        let from = |start: usize| held.start.saturating_sub(start)..held.end.saturating_sub(start);
        if held.is_empty() { (0..0, 0..0) } else { (from(range.start), from(slice.start)) }
    }

    fn side(&self, side: Side) -> &[f32] {
        match side {
            Side::Own => &self.own.gradients,
            Side::Shared => &self.shared_gradients,
        }
    }

    fn shared(&self) -> Option<&[f32]> {
        (!self.shared_gradients.is_empty()).then_some(&self.shared_gradients[..])
    }
}

impl Store for Cpu {
    type Group = Group;
    type Input<'a> = &'a [f32];
    type Output<'a> = &'a mut [f32];

    fn group(&mut self, tensors: &[&[f32]], is_shared: bool) -> Result<Group> {
        let mut own = ParameterGroup::new(tensors);
        if self.workload.optimizer.members > 1 {
            own.keep_slice(self.workload.optimizer.slice(own.values.len()));
        }
        let shared_gradients = vec![0.0; if is_shared { own.values.len() } else { 0 }];
        Ok(Group { own, shared_gradients, saved: None })
    }

    fn zero(&mut self, group: &mut Group) -> Result<()> {
        group.own.gradients.fill(0.0);
        group.shared_gradients.fill(0.0);
        Ok(())
    }

    fn square(&mut self, groups: &[Squared<Group>]) -> Result<()> {
        let square = |&Squared { group, only }: &Squared<Group>| match only {
            None => group.own.squared_norm(group.shared()),
            Some(ranges) => ranges.iter().map(|range| group.own.squared_norm_of(range.clone(), group.shared())).sum(),
        };
        self.squares = groups.iter().map(square).collect();
        Ok(())
    }

    fn squares(&mut self) -> Result<Vec<f64>> {
        Ok(std::mem::take(&mut self.squares))
    }

    fn update(&mut self, groups: &mut [Group], step: u32, hyper: &AdamW, scale: f32) -> Result<()> {
        for Group { own, shared_gradients, .. } in groups {
            let shared = (!shared_gradients.is_empty()).then_some(&shared_gradients[..]);
            own.adamw(shared, step, hyper, scale);
        }
        Ok(())
    }

    fn save(&mut self, group: &mut Group) -> Result<()> {
        group.saved = Some(group.state());
        Ok(())
    }

    /// Forgets what was saved: it takes as much memory as the parameters.
    fn restore(&mut self, group: &mut Group) -> Result<bool> {
        let Some(saved) = group.saved.take() else { return Ok(false) };
        group.load(&saved);
        Ok(true)
    }

    fn export(&mut self, group: &Group, tensor: usize, what: Quantity, into: &mut [f32]) -> Result<()> {
        let (range, (held, moments)) = (group.own.range(tensor), group.moments(tensor));
        match what {
            Quantity::Values => into.copy_from_slice(&group.own.values[range]),
            Quantity::Gradients => {
                into.copy_from_slice(&group.own.gradients[range.clone()]);
                group.shared().into_iter().for_each(|shared| vector::add(into, &shared[range.clone()]));
            }
            Quantity::FirstMoments => into[held].copy_from_slice(&group.own.first_moments[moments]),
            Quantity::SecondMoments => into[held].copy_from_slice(&group.own.second_moments[moments]),
        }
        Ok(())
    }

    fn import(&mut self, group: &mut Group, tensor: usize, what: Quantity, from: &[f32]) -> Result<()> {
        let (range, (held, moments)) = (group.own.range(tensor), group.moments(tensor));
        match what {
            Quantity::Values => group.own.values[range].copy_from_slice(from),
            Quantity::FirstMoments => group.own.first_moments[moments].copy_from_slice(&from[held]),
            Quantity::SecondMoments => group.own.second_moments[moments].copy_from_slice(&from[held]),
            Quantity::Gradients => bail!("expected values or moments to import, found gradients: steps compute those"),
        }
        Ok(())
    }

    fn copy_gradients(&mut self, group: &Group, side: Side, to: &mut &mut [f32]) -> Result<()> {
        let from = group.side(side);
        ensure!(to.len() >= from.len(), "expected room for {} numbers of a gradient, found {}", from.len(), to.len());
        let (now, rest) = std::mem::take(to).split_at_mut(from.len());
        now.copy_from_slice(from);
        *to = rest;
        Ok(())
    }

    fn merge_gradients(&mut self, group: &mut Group, side: Side, from: &mut &[f32], merge: Merge) -> Result<()> {
        let slice = group.slice();
        let into = match side {
            Side::Own => &mut group.own.gradients,
            Side::Shared => &mut group.shared_gradients,
        };
        ensure!(from.len() >= into.len(), "expected {} numbers of a gradient, found {}", into.len(), from.len());
        let (now, rest) = from.split_at(into.len());
        match merge {
            Merge::Replace => into[slice.clone()].copy_from_slice(&now[slice]),
            Merge::Add => vector::add(&mut into[slice.clone()], &now[slice]),
        }
        *from = rest;
        Ok(())
    }

    fn copy_values(&mut self, group: &Group, to: &mut &mut [f32]) -> Result<()> {
        let (values, slice) = (&group.own.values, group.slice());
        ensure!(to.len() >= values.len(), "expected room for {} parameters, found {}", values.len(), to.len());
        let (now, rest) = std::mem::take(to).split_at_mut(values.len());
        now[slice.clone()].copy_from_slice(&values[slice]);
        *to = rest;
        Ok(())
    }

    fn replace_values(&mut self, group: &mut Group, of: OptimizerShare, from: &mut &[f32]) -> Result<()> {
        let values = &mut group.own.values;
        ensure!(from.len() >= values.len(), "expected {} parameters, found {}", values.len(), from.len());
        let (now, rest) = from.split_at(values.len());
        let slice = of.slice(values.len());
        values[slice.clone()].copy_from_slice(&now[slice]);
        *from = rest;
        Ok(())
    }
}
