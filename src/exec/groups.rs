//! Groups of workers on GPUs that make collective calls: the tensor-parallel ranks of a device, and the workers that hold copies of a
//! stage.

use super::arena::{ArenaLayout, Region};
use super::plan::Plan;
use pipesim_schedule::epilogue::{GradientSync, group_member, stage_group};
use pipesim_schedule::mesh::{Coordinate, Mesh};
use pipesim_schedule::placement::Placement;
use pipesim_train::compute::OptimizerShare;
use std::collections::{BTreeMap, BTreeSet};

/// A group, with a signal for each member.
#[derive(Debug)]
pub struct WorkerGroup {
    /// Its workers, in order.
    pub members: Vec<u32>,
    /// By member: signal that counts the pieces of data it has enqueued.
    pub enqueued: Vec<Region>,
}

/// All groups of a session, with the same numbers in every process.
#[derive(Debug, Default)]
pub struct WorkerGroups {
    all: Vec<WorkerGroup>,
    /// By worker: its group of tensor-parallel ranks.
    tensor: BTreeMap<u32, usize>,
    /// By worker and gradient: the group that sums it.
    gradients: BTreeMap<(u32, GradientSync), usize>,
}

impl WorkerGroups {
    /// Reserves signals for the groups of a session on `mesh`.
    pub fn new(layout: &mut ArenaLayout, plan: &Plan, mesh: Mesh) -> WorkerGroups {
        let mut groups = WorkerGroups::default();
        let world = mesh.world(plan.graph.schedule().devices());
        if mesh.tensor > 1 {
            for worker in 0..world {
                let number = groups.number(layout, mesh.tensor_group(worker).collect());
                groups.tensor.insert(worker, number);
            }
        }
        if stage_group(&plan.graph.schedule().placement, mesh.data) > 1 {
            for (_, holders) in stage_holders(plan, mesh) {
                let number = groups.number(layout, holders.iter().map(|&(worker, _)| worker).collect());
                groups.gradients.extend(holders.into_iter().map(|holder| (holder, number)));
            }
        }
        groups
    }

    /// Returns the number of the group of `members`, which it adds if it is new. The groups of tensor-parallel ranks come first,
    /// because signals of tensor-parallel ranks and of replicas count different calls.
    fn number(&mut self, layout: &mut ArenaLayout, members: Vec<u32>) -> usize {
        if let Some(number) = self.all.iter().position(|group| group.members == members) {
            return number;
        }
        let enqueued = members.iter().map(|_| layout.signal()).collect();
        self.all.push(WorkerGroup { members, enqueued });
        self.all.len() - 1
    }

    pub fn all(&self) -> &[WorkerGroup] {
        &self.all
    }

    /// Returns the number of the group of tensor-parallel ranks of `worker`; `None` if it has whole layers.
    pub fn of_tensor(&self, worker: u32) -> Option<usize> {
        self.tensor.get(&worker).copied()
    }

    /// Returns the number of the group in which `worker` sums `gradient`.
    pub fn of_gradient(&self, worker: u32, gradient: GradientSync) -> Option<usize> {
        self.gradients.get(&(worker, gradient)).copied()
    }

    /// Returns the numbers of the groups in which `worker` sums gradients. Several stages may have the same holders.
    pub fn of_gradients(&self, worker: u32) -> BTreeSet<usize> {
        let own = self.gradients.iter().filter(|((member, _), _)| *member == worker);
        own.map(|(_, &number)| number).collect()
    }
}

/// Returns the share of the optimizer's work of `worker`.
pub fn optimizer_share(placement: &Placement, mesh: Mesh, worker: u32) -> OptimizerShare {
    if !mesh.zero {
        return OptimizerShare::WHOLE;
    }
    let (member, members) = group_member(placement, mesh, worker);
    OptimizerShare { member: member as usize, members: members as usize }
}

/// Returns for each stage and tensor rank the workers that hold the stage, in order, each with its name of the gradient.
pub fn stage_holders(plan: &Plan, mesh: Mesh) -> Vec<(u32, Vec<(u32, GradientSync)>)> {
    let placement = &plan.graph.schedule().placement;
    let mut all = Vec::new();
    for stage in 0..placement.stages() {
        for tensor in 0..mesh.tensor {
            let chunks =
                (0..placement.devices()).flat_map(|device| placement.held_by(device).iter().map(move |c| (device, *c)));
            let holders = chunks.filter(|(_, chunk)| chunk.stage == stage).flat_map(|(device, chunk)| {
                let worker = move |data| mesh.worker(Coordinate { device, data, tensor });
                (0..mesh.data).map(move |data| (worker(data), GradientSync::Stage(chunk)))
            });
            let mut holders: Vec<_> = holders.collect();
            holders.sort_unstable();
            all.push((stage, holders));
        }
    }
    all
}
