//! Times of elementary operations on a platform, in seconds: products by shape, memory-bound operations, collectives.

use crate::gcd;
use pipesim_models::hardware::{Hardware, Stack};
use pipesim_models::layout::{ParallelConfig, Precision, Replicas};

/// GPUs, and the software that trains on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    /// Peaks, bandwidths and efficiencies of the GPUs.
    pub hardware: Hardware,
    /// What the software adds, saves and overlaps.
    pub stack: Stack,
}

/// Shape of a batched product: `count` times (rows, inner) times (inner, columns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductShape {
    /// Batch size.
    pub count: f64,
    /// M.
    pub rows: f64,
    /// N.
    pub columns: f64,
    /// K.
    pub inner: f64,
}

impl ProductShape {
    /// Returns the shape of a single product (rows, inner) times (inner, columns).
    pub fn new(rows: f64, columns: f64, inner: f64) -> ProductShape {
        ProductShape { count: 1.0, rows, columns, inner }
    }

    /// Returns the FLOPs, two per multiply-add.
    pub fn flops(&self) -> f64 {
        2.0 * self.count * self.rows * self.columns * self.inner
    }
}

/// A group of GPUs that communicate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuGroup {
    /// Number of GPUs.
    pub ranks: f64,
    /// Number of them per node.
    pub in_node: f64,
}

impl GpuGroup {
    /// Returns `ranks` GPUs with a distance of `stride`, in nodes of `node` GPUs. Of the groups that do not divide a node, some have
    /// only the common divisor in one of their nodes: their ring is as slow as its network.
    pub fn new(ranks: u32, stride: u32, node: f64) -> GpuGroup {
        let in_node = gcd(ranks.into(), (node / f64::from(stride)).max(1.0) as u64);
        GpuGroup { ranks: f64::from(ranks), in_node: in_node as f64 }
    }

    /// Returns the tensor-parallel ranks of a run on `gpus` GPUs, in nodes of at most `node`. All nodes have equally many GPUs of it.
    pub fn tensor_parallel(ranks: u32, gpus: u64, node: f64) -> GpuGroup {
        GpuGroup::new(ranks, 1, used_per_node(gpus, node))
    }

    /// Returns whether some of its GPUs are in different nodes.
    pub fn crosses(&self) -> bool {
        self.ranks > self.in_node
    }
}

/// Returns the GPUs of a run per node of at most `node`: the most that divide `gpus`.
fn used_per_node(gpus: u64, node: f64) -> f64 {
    (1..=(node as u64).min(gpus)).rev().find(|used| gpus.is_multiple_of(*used)).unwrap_or(1) as f64
}

/// Returns how many times a member of an all-reduce sends its data.
fn ring_share(group: GpuGroup) -> f64 {
    2.0 * (group.ranks - 1.0) / group.ranks
}

impl Platform {
    /// Returns the GPUs of `replicas` in a run of this layout.
    pub(super) fn group(&self, layout: &ParallelConfig, replicas: Replicas) -> GpuGroup {
        GpuGroup::new(replicas.ranks, replicas.stride, used_per_node(layout.gpus(), self.hardware.gpus_per_node))
    }

    /// Returns the tensor-parallel ranks of a layout.
    pub(super) fn tensor_group(&self, layout: &ParallelConfig) -> GpuGroup {
        GpuGroup::tensor_parallel(layout.tp, layout.gpus(), self.hardware.gpus_per_node)
    }

    /// Returns the time of a product. It is slower if the outputs do not fill all multiprocessors (with tiles of a fixed size),
    /// if the inner length is short compared with start and epilogue of a tile, if few rows use the other operand, and if widths
    /// are not aligned. It never takes less time than its memory traffic.
    pub fn product(&self, shape: ProductShape, precision: Precision) -> f64 {
        let h = &self.hardware;
        let ProductShape { count, rows, columns, inner } = shape;
        let outputs = (count * rows * columns).max(1.0);
        let depth = h.product_depth * if precision.is_narrow() { h.narrow_depth } else { 1.0 };
        let waves = h.product_wave_loss * h.multiprocessors * h.product_tile / outputs;
        let aligned = |size: f64| size % 64.0 == 0.0;
        let fit = if aligned(columns) && aligned(inner) { 1.0 } else { h.unaligned_efficiency };
        let speed =
            h.product_speed(precision) * fit / (1.0 + waves + depth / inner.max(1.0) + h.product_rows / rows.max(1.0));
        let bytes = f64::from(precision.bytes()) * count * (rows * columns + rows * inner + inner * columns);
        (shape.flops() / speed).max(bytes / (h.memory_gbytes_per_s * 1e9)) + h.kernel_us * 1e-6
    }

    /// Returns the time of memory traffic.
    pub fn traffic(&self, bytes: f64) -> f64 {
        bytes / (self.hardware.memory_gbytes_per_s * 1e9 * self.hardware.memory_efficiency)
    }

    /// Returns the time of a memory-bound kernel.
    pub fn operation(&self, bytes: f64) -> f64 {
        self.traffic(bytes) / self.hardware.operation_share + self.hardware.kernel_us * 1e-6
    }

    /// Returns the bytes per second and direction of a ring over the group. Each node's network is used by as many rings as the
    /// group has GPUs there.
    fn bandwidth(&self, group: GpuGroup) -> f64 {
        let h = &self.hardware;
        let links = h.link_gbytes_per_s * 1e9 * h.link_efficiency;
        if !group.crosses() {
            return links;
        }
        let congestion = 1.0 + h.network_congestion * libm::log2(group.ranks / group.in_node);
        links.min(h.network_gbps_per_gpu * 1e9 / 8.0 * h.network_efficiency * group.in_node / congestion)
    }

    /// Returns the latency of a ring, which passes all nodes, or of a tree, which goes up and down. Doubling the GPUs by more nodes takes
    /// at least as long as by larger ones.
    fn latency(&self, group: GpuGroup, tree: bool) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        let h = &self.hardware;
        let nodes = group.ranks / group.in_node;
        let doublings = libm::log2(nodes);
        let hops = if tree { 2.0 * doublings } else { nodes - 1.0 };
        let across = (h.network_latency_us * hops).max(h.link_latency_us * doublings);
        (h.link_latency_us * libm::log2(group.in_node.max(1.0)) + across) * 1e-6
    }

    /// Returns the time of an all-gather or reduce-scatter of `bytes` in total.
    pub fn gather(&self, group: GpuGroup, bytes: f64) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        self.latency(group, false) + (group.ranks - 1.0) / group.ranks * bytes / self.bandwidth(group)
    }

    /// Returns the time of [`Platform::gather`] in `pieces`.
    pub fn gather_in(&self, group: GpuGroup, bytes: f64, pieces: f64) -> f64 {
        self.gather(group, bytes) + (pieces.ceil() - 1.0).max(0.0) * self.latency(group, false)
    }

    /// Returns the time in which replicas that hold the same shards of tensors of `bytes` sum them, in `pieces`.
    pub(super) fn reduce_copies(&self, layout: &ParallelConfig, replicas: Replicas, bytes: f64, pieces: f64) -> f64 {
        let group = self.group(layout, replicas.copies());
        self.reduce_in(group, bytes / f64::from(replicas.shard), pieces)
    }

    /// Returns the time in which the ranks that share tensors gather or scatter `bytes` per parameter, in `pieces`: first of tensors
    /// without experts, which data- and context-parallel ranks share, then of experts, which their replicas share.
    pub(super) fn gather_replicas(
        &self,
        layout: &ParallelConfig,
        parameters: [f64; 2],
        pieces: [f64; 2],
        bytes: f64,
    ) -> f64 {
        let shared = layout.together(parameters).into_iter().zip(layout.replicas()).zip(pieces);
        let seconds = |((parameters, replicas), pieces): ((f64, Replicas), f64)| {
            let group = self.group(layout, replicas.sharing());
            let listing = pieces * f64::from(replicas.shard) * self.stack.gather_rank_us * 1e-6;
            self.gather_in(group, parameters * bytes, pieces) + listing
        };
        shared.filter(|((parameters, replicas), _)| *parameters > 0.0 && replicas.shard > 1).map(seconds).sum()
    }

    /// Returns the time of collectives that take `within` among the ranks that share tensors, and of the sums of their gradients, `bytes` per
    /// parameter in `pieces`, with ranks that hold the same shards. These have a stream of their own (FSDP2's `_fsdp_collectives.py`): a node's
    /// links and the network work at the same time.
    pub(super) fn with_copies(
        &self,
        layout: &ParallelConfig,
        within: f64,
        parameters: [f64; 2],
        pieces: [f64; 2],
        bytes: f64,
    ) -> f64 {
        let groups = layout.replicas().map(|replicas| self.group(layout, replicas.sharing()));
        let each = layout.together(parameters).into_iter().zip(layout.replicas()).zip(pieces);
        let each = each.filter(|((parameters, _), _)| *parameters > 0.0);
        let across: f64 = each
            .map(|((parameters, replicas), pieces)| self.reduce_copies(layout, replicas, parameters * bytes, pieces))
            .sum();
        if groups[0].crosses() { within + across } else { within.max(across) }
    }

    /// Returns the time for which a GPU's own links would be busy with what [`Platform::gather_replicas`] moves. Its copies take
    /// multiprocessors and memory bandwidth from what is computed next to them; waiting for a slower network does not.
    pub(super) fn moved_by_replicas(&self, layout: &ParallelConfig, parameters: [f64; 2], bytes: f64) -> f64 {
        let links = self.hardware.link_gbytes_per_s * 1e9 * self.hardware.link_efficiency;
        let moved = |(parameters, replicas): (f64, Replicas)| {
            parameters * bytes * (1.0 - 1.0 / f64::from(replicas.shard.max(1))) / links
        };
        layout.together(parameters).into_iter().zip(layout.replicas()).map(moved).sum()
    }

    /// Returns the time of an all-reduce of `bytes`; within a node as measured, if the hardware file has that, and between nodes not less.
    pub fn reduce(&self, group: GpuGroup, bytes: f64) -> f64 {
        let h = &self.hardware;
        let is_measured = h.reduce_gbytes_per_s > 0.0 && group.ranks > 1.0;
        let within = || {
            let latency = h.reduce_latency_us * 1e-6 * libm::log2(group.ranks);
            latency + ring_share(group) * bytes / (h.reduce_gbytes_per_s * 1e9)
        };
        match (is_measured, group.crosses()) {
            (true, false) => within(),
            (true, true) => self.ring(group, bytes, self.bandwidth(group)).max(within()),
            (false, _) => self.ring(group, bytes, self.bandwidth(group)),
        }
    }

    /// Returns the time of an all-reduce of `bytes` of gradients in `pieces`.
    pub fn reduce_in(&self, group: GpuGroup, bytes: f64, pieces: f64) -> f64 {
        let measured = Some(self.hardware.exchange_gbytes_per_s * 1e9).filter(|&measured| measured > 0.0);
        let bandwidth = match (measured, group.crosses()) {
            (Some(measured), false) => measured,
            (Some(measured), true) => measured.min(self.bandwidth(group)),
            (None, _) => self.bandwidth(group),
        };
        self.ring(group, bytes, bandwidth) + (pieces.ceil() - 1.0).max(0.0) * self.latency(group, true)
    }

    /// Returns the time of an all-reduce of `bytes` as a ring with this bandwidth.
    fn ring(&self, group: GpuGroup, bytes: f64, bandwidth: f64) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        self.latency(group, true) + ring_share(group) * bytes / bandwidth
    }

    /// Returns the time of a message between two devices of a pipeline, in one node or not. The latency within a node is the latency of
    /// collectives; a single message never waits longer there than between nodes.
    pub fn transfer(&self, bytes: f64, crosses: bool) -> f64 {
        let h = &self.hardware;
        if crosses {
            return h.network_latency_us * 1e-6 + bytes / (h.network_gbps_per_gpu * 1e9 / 8.0 * h.network_efficiency);
        }
        let latency = h.link_latency_us.min(h.network_latency_us);
        latency * 1e-6 + bytes / (h.link_gbytes_per_s * 1e9 * h.link_efficiency)
    }
}
