//! How long the elementary things take on a machine: products by shape, operations bound by memory, attention, collectives.
//! All times are in seconds.

use crate::hardware::{Hardware, Stack};
use crate::layout::Precision;

/// A machine and the software on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The GPU and what is around it.
    pub hardware: Hardware,
    /// The software.
    pub stack: Stack,
}

/// The shape of a product: `count` times (rows, inner) times (inner, columns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// How many such products run at a time.
    pub count: f64,
    /// M.
    pub rows: f64,
    /// N.
    pub columns: f64,
    /// K.
    pub inner: f64,
}

impl Shape {
    /// One product.
    pub fn new(rows: f64, columns: f64, inner: f64) -> Shape {
        Shape { count: 1.0, rows, columns, inner }
    }

    /// FLOPs, two for each multiplication and addition.
    pub fn flops(&self) -> f64 {
        2.0 * self.count * self.rows * self.columns * self.inner
    }
}

/// GPUs that exchange something, as they stand in nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// How many.
    pub ranks: f64,
    /// How many of them share a node.
    pub in_node: f64,
}

impl Group {
    /// `ranks` GPUs, `stride` apart, in nodes of `node` GPUs.
    pub fn new(ranks: u32, stride: u32, node: f64) -> Group {
        let in_node = (node / f64::from(stride)).floor().clamp(1.0, f64::from(ranks));
        Group { ranks: f64::from(ranks), in_node }
    }

    fn crosses(&self) -> bool {
        self.ranks > self.in_node
    }
}

impl Machine {
    /// A product in `precision`. Its speed falls where outputs do not fill all multiprocessors (tiles of a fixed size), where
    /// the inner length is short against starting and ending a tile, and where widths are not aligned; it is never faster than
    /// its operands are read and written.
    pub fn product(&self, shape: Shape, precision: Precision) -> f64 {
        let h = &self.hardware;
        let Shape { count, rows, columns, inner } = shape;
        let outputs = (count * rows * columns).max(1.0);
        let depth = h.product_depth * if precision.is_narrow() { h.narrow_depth } else { 1.0 };
        let waves = h.product_wave_loss * h.multiprocessors * h.product_tile / outputs;
        let aligned = |size: f64| size % 64.0 == 0.0;
        let fit = if aligned(columns) && aligned(inner) { 1.0 } else { h.unaligned_efficiency };
        let speed = h.product_speed(precision) * fit / (1.0 + waves + depth / inner.max(1.0));
        let bytes = f64::from(precision.bytes()) * count * (rows * columns + rows * inner + inner * columns);
        (shape.flops() / speed).max(bytes / (h.memory_gbytes_per_s * 1e9)) + h.kernel_us * 1e-6
    }

    /// An operation that is bound by memory.
    pub fn traffic(&self, bytes: f64) -> f64 {
        bytes / (self.hardware.memory_gbytes_per_s * 1e9 * self.hardware.memory_efficiency)
    }

    /// One kernel of such a kind.
    pub fn operation(&self, bytes: f64) -> f64 {
        self.traffic(bytes) + self.hardware.kernel_us * 1e-6
    }

    /// Bytes a second of a ring over the group, each rank in one direction. The ring passes each node's network as often as the
    /// group has GPUs there.
    fn bandwidth(&self, group: Group) -> f64 {
        let h = &self.hardware;
        let links = h.link_gbytes_per_s * 1e9 * h.link_efficiency;
        if !group.crosses() {
            return links;
        }
        let congestion = 1.0 + h.network_congestion * (group.ranks / group.in_node).log2();
        links.min(h.network_gbps_per_gpu * 1e9 / 8.0 * h.network_efficiency * group.in_node / congestion)
    }

    /// Of a ring, which passes all nodes, or of a tree, which goes up and down.
    fn latency(&self, group: Group, tree: bool) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        let h = &self.hardware;
        let nodes = group.ranks / group.in_node;
        let hops = if tree { 2.0 * nodes.log2() } else { nodes - 1.0 };
        (h.link_latency_us * group.in_node.max(1.0).log2() + h.network_latency_us * hops) * 1e-6
    }

    /// Each rank ends with all of `bytes`, of which it had its share; or has its share of their sum.
    pub fn gather(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        self.latency(group, false) + (group.ranks - 1.0) / group.ranks * bytes / self.bandwidth(group)
    }

    /// A gather or a sum of which each rank gets its share, in so many pieces.
    pub fn gather_in(&self, group: Group, bytes: f64, pieces: f64) -> f64 {
        self.gather(group, bytes) + (pieces.ceil() - 1.0).max(0.0) * self.latency(group, false)
    }

    /// Each rank ends with the sum of all ranks' `bytes`.
    pub fn reduce(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        self.latency(group, true) + 2.0 * (group.ranks - 1.0) / group.ranks * bytes / self.bandwidth(group)
    }

    /// The same, in so many pieces.
    pub fn reduce_in(&self, group: Group, bytes: f64, pieces: f64) -> f64 {
        self.reduce(group, bytes) + (pieces.ceil() - 1.0).max(0.0) * self.latency(group, true)
    }

    /// From one device of a pipeline to the next, within a node or not.
    pub fn transfer(&self, bytes: f64, crosses: bool) -> f64 {
        let h = &self.hardware;
        if crosses {
            return h.network_latency_us * 1e-6 + bytes / (h.network_gbps_per_gpu * 1e9 / 8.0 * h.network_efficiency);
        }
        h.link_latency_us * 1e-6 + bytes / (h.link_gbytes_per_s * 1e9 * h.link_efficiency)
    }
}
