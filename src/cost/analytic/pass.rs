//! Times of the passes of a part, and their components if it has experts. Times are in seconds.

use std::ops::{Add, Mul};

/// Time of one pass by cause, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    /// Kernels.
    pub compute: f64,
    /// Exposed tensor-parallel collectives.
    pub tensor: f64,
    /// Exposed dispatch and combine of experts.
    pub experts: f64,
    /// Exposed gathers and reductions of ZeRO-3.
    pub data: f64,
    /// Exposed host time and context-parallel exchange.
    pub other: f64,
}

impl Pass {
    /// Returns the sum of all causes.
    pub fn total(&self) -> f64 {
        self.compute + self.tensor + self.experts + self.data + self.other
    }
}

impl Pass {
    /// Combines the times of both passes with `of`, one by one.
    fn zip(self, other: Pass, of: impl Fn(f64, f64) -> f64) -> Pass {
        Pass {
            compute: of(self.compute, other.compute),
            tensor: of(self.tensor, other.tensor),
            experts: of(self.experts, other.experts),
            data: of(self.data, other.data),
            other: of(self.other, other.other),
        }
    }
}

impl Add for Pass {
    type Output = Pass;

    fn add(self, other: Pass) -> Pass {
        self.zip(other, |one, other| one + other)
    }
}

impl Mul<f64> for Pass {
    type Output = Pass;

    fn mul(self, n: f64) -> Pass {
        self.zip(self, |one, _| one * n)
    }
}

/// Times of the passes of a part, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Passes {
    /// F.
    pub forward: Pass,
    /// I, with recomputation.
    pub input: Pass,
    /// W.
    pub weights: Pass,
    /// What W adds if software recomputes layers in it, too.
    pub again: Pass,
    /// B, launched and awaited by the host as one op: at most I + W.
    pub backward: Pass,
    /// Time saved if F and B run next to each other, in seconds; the passes above do not include it.
    pub hidden: f64,
    /// Sub-ops of a layer with experts, with their times if F and B run next to each other.
    pub(super) ops: Option<SubOpTimes>,
}

impl Passes {
    /// Returns the time of W apart from I.
    pub fn split_weights(&self) -> Pass {
        self.weights + self.again
    }
}

/// Times of a layer's experts, per micro-batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpertSums {
    /// Permutation, products and activations.
    pub forward: f64,
    pub input: f64,
    pub weights: f64,
    /// Activation between the products, part of `forward`.
    pub activation: f64,
    /// Last product, part of `forward`.
    pub last: f64,
    /// Dispatch; combine takes as long.
    pub exchange: f64,
    /// Collectives of ranks that share an expert, per pass.
    pub gathers: f64,
}

/// Sub-ops of a layer, in seconds: forward, backward for the input, and for the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubOpTimes {
    pub attn: [f64; 3],
    pub mlp: [f64; 3],
    /// Dispatch; combine, and both in the backward, take as long.
    pub exchange: f64,
    pub delays_weights: bool,
    /// Whether all streams share one hardware queue.
    pub has_one_queue: bool,
}

impl SubOpTimes {
    pub(super) fn scaled(self, factor: f64) -> SubOpTimes {
        let [attn, mlp] = [self.attn, self.mlp].map(|times| times.map(|time| time * factor));
        SubOpTimes { attn, mlp, exchange: self.exchange * factor, ..self }
    }

    /// Returns the sub-ops with the exposed gathers and reductions of the passes.
    pub(super) fn with_data(self, passes: &Passes) -> SubOpTimes {
        let (weights, backward) = (passes.weights.data, passes.backward.data);
        let input = if self.delays_weights { passes.input.data } else { (backward - weights).max(0.0) };
        let data = [passes.forward.data, input, weights];
        SubOpTimes { attn: [0, 1, 2].map(|pass| self.attn[pass] + data[pass]), ..self }
    }

    /// Returns the time per layer of a forward and a backward next to each other, with many equal layers: from the start of the
    /// input's `mlp` to the start of its `attn`, and from there to the next `mlp`.
    pub(super) fn pair(&self) -> f64 {
        let SubOpTimes { attn, mlp, exchange, delays_weights, has_one_queue } = *self;
        let [attn, mlp] = [attn, mlp].map(|[forward, input, weights]| match delays_weights {
            true => [forward, input, weights],
            false => [forward, input + weights, 0.0],
        });
        let last = (attn[1] + attn[2]).max(exchange);
        if has_one_queue {
            return attn[0].max(exchange) + mlp[1] + mlp[2].max(exchange) + mlp[0].max(exchange) + last;
        }
        let m = ((mlp[1] + mlp[2]).max(exchange) + mlp[0]).max(mlp[1].max(exchange) + exchange);
        m + (attn[1].max(exchange) + exchange).max(last + attn[0])
    }
}
