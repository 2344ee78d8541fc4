//! Modules on CPUs that lend their parameters, so that modules of several sessions can use the same memory in turn.

use super::module::StageModule;
use super::parameters::TensorPart;
use crate::compute::cpu::{Cpu, Group};

impl StageModule<Cpu> {
    /// The first tensor of each group that is here, in order.
    pub fn group_keys(&self) -> impl Iterator<Item = TensorPart> + use<> {
        let first = |tensors: &Vec<(usize, Option<usize>)>| {
            let (tensor, layer) = tensors.first().copied().unwrap_or_default();
            TensorPart { tensor, layer }
        };
        self.origins.iter().map(|origin| first(&origin.tensors)).collect::<Vec<_>>().into_iter()
    }

    /// Gives all groups away. Until groups are back, the module computes nothing.
    pub fn lend_groups(&mut self) -> Vec<(TensorPart, Group)> {
        let groups = std::mem::take(&mut self.groups);
        self.group_keys().zip(groups).collect()
    }

    /// Uses these groups, in the order of [`StageModule::group_keys`].
    pub fn take_groups(&mut self, groups: Vec<Group>) {
        debug_assert_eq!(groups.len(), self.origins.len());
        self.groups = groups;
    }
}
