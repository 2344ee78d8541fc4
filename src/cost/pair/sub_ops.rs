//! Times of the sub-ops of a chunk.

use pipesim_schedule::op::Kind;

/// Times of one part of a layer, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassTimes {
    /// Forward.
    pub forward: u64,
    /// Backward for the input, with what it recomputes.
    pub input: u64,
    /// Backward for the weights.
    pub weights: u64,
}

impl PassTimes {
    pub(super) fn backward(&self) -> u64 {
        self.input + self.weights
    }
}

/// Times of the sub-ops of one layer, in ns. Dispatch and combine are communication; a dense layer has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerOps {
    /// Attention, norms, router, and shared experts.
    pub attn: PassTimes,
    /// Sends tokens to their experts; backward: their gradients back. No time for weights.
    pub dispatch: PassTimes,
    /// Experts, or a dense layer's feed-forward.
    pub mlp: PassTimes,
    /// Sends tokens back from their experts; backward: gradients to the experts. No time for weights.
    pub combine: PassTimes,
    /// Kernels on a side stream next to `mlp.weights`.
    pub side: u64,
}

/// Sub-ops of a chunk: what a stage does for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubOps {
    /// In model order.
    pub layers: Vec<LayerOps>,
    /// The embedding, before the first layer. Compute only.
    pub first: PassTimes,
    /// The head and the loss, after the last layer. Compute only.
    pub last: PassTimes,
    /// Whether weight-gradient products are separate sub-ops, which later sub-ops do not wait for (Megatron's
    /// `--delay-wgrad-compute`). Otherwise the input's `attn` and `mlp` include them.
    pub delays_weights: bool,
    /// Whether all streams share one hardware queue, so that kernels start in the order of their launches
    /// (`CUDA_DEVICE_MAX_CONNECTIONS=1`).
    pub has_one_queue: bool,
}

impl SubOps {
    /// Returns `count` equal layers with delayed weights.
    pub fn equal(layer: LayerOps, count: usize) -> SubOps {
        SubOps { layers: vec![layer; count], delays_weights: true, ..SubOps::default() }
    }

    /// Returns the sum of all sub-ops of `kind` on the compute and the communication stream, in ns.
    pub fn in_a_row(&self, kind: Kind) -> u64 {
        let of = |pass: &PassTimes| match kind {
            Kind::F => pass.forward,
            Kind::I => pass.input,
            Kind::W => pass.weights,
            _ => pass.backward(),
        };
        let layer =
            |layer: &LayerOps| [layer.attn, layer.dispatch, layer.mlp, layer.combine].iter().map(of).sum::<u64>();
        of(&self.first) + self.layers.iter().map(layer).sum::<u64>() + of(&self.last)
    }
}
