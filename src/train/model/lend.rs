//! Modules on CPUs that lend their parameters, so that modules of several sessions can use the same memory in turn.

use super::catalog::Origin;
use super::module::StageModule;
use super::parameters::TensorPart;
use crate::compute::cpu::{Cpu, Group};

impl StageModule<Cpu> {
    /// The first tensor of each group that is here, in order, with the elements whose moments are here.
    pub fn group_keys(&self) -> Vec<(TensorPart, [usize; 2])> {
        let first = |origin: &Origin| {
            let (tensor, layer) = origin.tensors.first().copied().unwrap_or_default();
            let slice = self.optimizer.slice(origin.length);
            (TensorPart { tensor, layer }, [slice.start, slice.end])
        };
        self.origins.iter().map(first).collect()
    }

    /// Bytes of parameters, gradients and moments.
    pub fn state_bytes(&self) -> usize {
        self.groups.iter().map(Group::bytes).sum()
    }

    /// Gives all groups away. Until groups are back, the module computes nothing.
    pub fn lend_groups(&mut self) -> Vec<(TensorPart, [usize; 2], Group)> {
        let groups = std::mem::take(&mut self.groups);
        self.group_keys().into_iter().zip(groups).map(|((part, slice), group)| (part, slice, group)).collect()
    }

    /// Uses these groups, in the order of [`StageModule::group_keys`].
    pub fn take_groups(&mut self, groups: Vec<Group>) {
        debug_assert_eq!(groups.len(), self.origins.len());
        self.groups = groups;
    }
}
