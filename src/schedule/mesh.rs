//! The mesh of workers: every device of the pipeline, times its data-parallel replicas, times the tensor-parallel ranks of each.
//!
//! Workers are numbered in the order of Megatron's ranks: tensor ranks are adjacent, then replicas, then pipeline devices. The
//! analytic cost model (`pipesim_cost::analytic`) places ranks on nodes in the same order: tensor groups have stride 1, data groups
//! stride T, and a pipeline's devices stride D·T.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum of each degree.
pub const MAX_DEGREE: u32 = 1 << 8;

/// Degrees of parallelism next to the pipeline's, and what workers share. The default is one worker per pipeline device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Tensor-parallel ranks, T.
    pub tensor: u32,
    /// Data-parallel replicas, D.
    pub data: u32,
    /// Whether tensor ranks also share the rows of activations between products (Korthikanti et al., arXiv 2205.05198).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequence_parallel: bool,
    /// Whether workers that hold the same parameters share the optimizer's work and state: ZeRO-1 (Rajbhandari et al., arXiv
    /// 1910.02054).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero: bool,
}

impl Default for Mesh {
    fn default() -> Mesh {
        Mesh::new(1, 1)
    }
}

/// Position of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinate {
    /// Device of the pipeline, from 0.
    pub device: u32,
    /// Replica, from 0.
    pub data: u32,
    /// Tensor rank, from 0.
    pub tensor: u32,
}

impl Mesh {
    /// Returns a mesh of `tensor` tensor ranks and `data` replicas that share neither rows nor the optimizer.
    pub const fn new(tensor: u32, data: u32) -> Mesh {
        Mesh { tensor, data, sequence_parallel: false, zero: false }
    }

    /// Whether it is the default, with the signature that serde needs.
    pub fn is_default(&self) -> bool {
        *self == Mesh::default()
    }

    /// Number of tensor ranks that share the rows of activations between products.
    pub fn row_ranks(self) -> u32 {
        if self.sequence_parallel { self.tensor } else { 1 }
    }

    /// Whether both degrees are from 1 to 256.
    pub fn is_sound(self) -> bool {
        [self.tensor, self.data].iter().all(|degree| (1..=MAX_DEGREE).contains(degree))
    }

    /// Whether every pipeline device is a single worker.
    pub fn is_single(self) -> bool {
        self.copies() == 1
    }

    /// Number of workers per pipeline device, D·T. Each runs a copy of the device's program.
    pub fn copies(self) -> u32 {
        self.data * self.tensor
    }

    /// Number of workers of a pipeline of `devices` devices.
    pub fn world(self, devices: u32) -> u32 {
        devices * self.copies()
    }

    /// Returns the number of the worker at `coordinate`.
    pub fn worker(self, coordinate: Coordinate) -> u32 {
        let Coordinate { device, data, tensor } = coordinate;
        (device * self.data + data) * self.tensor + tensor
    }

    /// Returns the position of `worker`.
    pub fn coordinate(self, worker: u32) -> Coordinate {
        let (tensor, rest) = (worker % self.tensor, worker / self.tensor);
        Coordinate { device: rest / self.data, data: rest % self.data, tensor }
    }

    /// Returns the pipeline device whose program `worker` runs.
    pub fn device(self, worker: u32) -> u32 {
        worker / self.copies()
    }

    /// Returns the number of the pipeline that `worker` belongs to, below [`Mesh::copies`]. Workers of one copy send each other
    /// activations.
    pub fn copy(self, worker: u32) -> u32 {
        worker % self.copies()
    }

    /// Returns the worker of pipeline device `device` in copy `copy`.
    pub fn worker_of(self, device: u32, copy: u32) -> u32 {
        device * self.copies() + copy
    }

    /// Returns the replica of copy `copy`.
    pub fn replica_of(self, copy: u32) -> u32 {
        copy / self.tensor
    }

    /// Returns the tensor rank of copy `copy`.
    pub fn tensor_of(self, copy: u32) -> u32 {
        copy % self.tensor
    }

    /// Returns the workers that split the layers of `worker` with it, itself included, in order.
    pub fn tensor_group(self, worker: u32) -> std::ops::Range<u32> {
        let first = worker - worker % self.tensor;
        first..first + self.tensor
    }

    /// Names a worker: `device 3`, `device 3, replica 0`, or `device 3, replica 0, tensor rank 1`.
    pub fn name(self, worker: u32) -> String {
        let (device, copy) = (self.device(worker), self.copy_name(self.copy(worker)));
        if copy.is_empty() { format!("device {device}") } else { format!("device {device}, {copy}") }
    }

    /// Names copy `copy` of the pipeline: `replica 0`, `tensor rank 1`, or both; empty if there is only one.
    pub fn copy_name(self, copy: u32) -> String {
        let replica = (self.data > 1).then(|| format!("replica {}", self.replica_of(copy)));
        let rank = (self.tensor > 1).then(|| format!("tensor rank {}", self.tensor_of(copy)));
        replica.into_iter().chain(rank).collect::<Vec<_>>().join(", ")
    }

    /// Describes the workers of a pipeline of `devices` devices: `2 stages x 2 replicas x 2 tensor ranks = 8 workers`.
    pub fn in_words(self, devices: u32) -> String {
        let replicas = if self.data > 1 { format!(" x {} replicas", self.data) } else { String::new() };
        let ranks = if self.tensor > 1 { format!(" x {} tensor ranks", self.tensor) } else { String::new() };
        let plural = |count: u32| if count == 1 { "" } else { "s" };
        let (stages, world) = (plural(devices), self.world(devices));
        let sequence = if self.sequence_parallel { ", sequence-parallel" } else { "" };
        let zero = if self.zero { ", ZeRO-1" } else { "" };
        format!("{devices} stage{stages}{replicas}{ranks} = {world} worker{}{sequence}{zero}", plural(world))
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence = if self.sequence_parallel { " --sequence-parallel" } else { "" };
        let zero = if self.zero { " --zero 1" } else { "" };
        write!(f, "--tp {} --dp {}{sequence}{zero}", self.tensor, self.data)
    }
}
