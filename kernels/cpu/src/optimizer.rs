//! Parameters with their gradients and AdamW's moments.

use crate::vector::{self, LANES};
use std::ops::Range;

/// The settings of AdamW. The update is p -= lr (m̂ / (√v̂ + eps) + wd p), on all parameters alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// lr
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// eps, added to the root of the second moment.
    pub epsilon: f32,
    /// wd, decoupled from the gradient.
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { learning_rate: 3e-4, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// Tensors that are stored together, in one row.
pub struct ParameterGroup {
    pub values: Vec<f32>,
    pub gradients: Vec<f32>,
    /// First moments of the slice.
    pub first_moments: Vec<f32>,
    /// Second moments of the slice.
    pub second_moments: Vec<f32>,
    /// Range of the elements that this worker updates: all, unless workers share the optimizer's work.
    slice: Range<usize>,
    /// First element of each tensor, and the end of the last.
    bounds: Vec<usize>,
}

impl ParameterGroup {
    /// A group of these tensors.
    pub fn new(tensors: &[&[f32]]) -> ParameterGroup {
        let values = tensors.concat();
        let mut end = 0;
        let ends = tensors.iter().map(|tensor| {
            end += tensor.len();
            end
        });
        let zeros = vec![0.0; values.len()];
        ParameterGroup {
            // copies, so that the first step finds their memory allocated
            gradients: zeros.clone(),
            first_moments: zeros.clone(),
            second_moments: zeros.clone(),
            slice: 0..values.len(),
            bounds: [0].into_iter().chain(ends).collect(),
            values,
        }
    }

    /// Returns the range of the elements that have moments.
    pub fn slice(&self) -> Range<usize> {
        self.slice.clone()
    }

    /// Restricts the group to `slice`: its moments start at zero, and the other elements have none.
    pub fn keep_slice(&mut self, slice: Range<usize>) {
        self.first_moments = vec![0.0; slice.len()];
        self.second_moments = self.first_moments.clone();
        self.slice = slice;
    }

    /// Range of a tensor's elements.
    pub fn range(&self, tensor: usize) -> Range<usize> {
        self.bounds[tensor]..self.bounds[tensor + 1]
    }

    /// Values of a tensor.
    pub fn tensor(&self, tensor: usize) -> &[f32] {
        &self.values[self.range(tensor)]
    }

    /// Gradient of a tensor.
    pub fn gradient(&mut self, tensor: usize) -> &mut [f32] {
        let range = self.range(tensor);
        &mut self.gradients[range]
    }

    /// Gradients of a weight and of the bias behind it; the second is empty without a bias.
    pub fn gradients(&mut self, weight: usize, has_bias: bool) -> (&mut [f32], &mut [f32]) {
        let (range, end) = (self.range(weight), self.bounds[weight + 1 + usize::from(has_bias)]);
        self.gradients[range.start..end].split_at_mut(range.len())
    }

    /// Adds to the gradients of the tensors from `tensor` on, given one after the other.
    pub fn add_gradients(&mut self, tensor: usize, sums: &[f32]) {
        let start = self.range(tensor).start;
        vector::add(&mut self.gradients[start..][..sums.len()], sums);
    }

    /// Applies one step of AdamW to the slice. `tied` is a second part of the gradient, added to the first.
    pub fn adamw(&mut self, tied: Option<&[f32]>, step: u32, hyper: &AdamW, gradient_scale: f32) {
        let correction = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(f64::from(step)))) as f32;
        let update = ParameterUpdate {
            hyper: *hyper,
            gradient_scale,
            first_correction: correction(hyper.beta1),
            second_correction: correction(hyper.beta2),
        };
        let moments = self.first_moments.iter_mut().zip(&mut self.second_moments);
        let slice = self.slice.clone();
        let all = self.values[slice.clone()].iter_mut().zip(moments).zip(&self.gradients[slice.clone()]);
        vector::widest(
            #[inline(always)]
            || match tied {
                None => {
                    for ((value, (first, second)), &gradient) in all {
                        update.apply(value, first, second, gradient);
                    }
                }
                Some(tied) => {
                    for (((value, (first, second)), &gradient), &other) in all.zip(&tied[slice]) {
                        update.apply(value, first, second, gradient + other);
                    }
                }
            },
        );
    }

    /// Returns the sum of squared gradients of the slice, in double precision and in a fixed order.
    pub fn squared_norm(&self, tied: Option<&[f32]>) -> f64 {
        self.squared_norm_of(self.slice(), tied)
    }

    /// Like [`ParameterGroup::squared_norm`], for the part of the slice that is in `range`.
    pub fn squared_norm_of(&self, range: Range<usize>, tied: Option<&[f32]>) -> f64 {
        let range = overlap(&range, &self.slice);
        match tied {
            None => squared_norm(&self.gradients[range], &[]),
            Some(tied) => squared_norm(&self.gradients[range.clone()], &tied[range]),
        }
    }
}

/// Returns the intersection of both ranges; if they do not overlap, an empty range at the start of `range`.
pub fn overlap(range: &Range<usize>, slice: &Range<usize>) -> Range<usize> {
    let start = range.start.max(slice.start);
    let end = range.end.min(slice.end);
    if start < end { start..end } else { range.start..range.start }
}

/// One step's update of one parameter.
#[derive(Clone, Copy)]
struct ParameterUpdate {
    hyper: AdamW,
    gradient_scale: f32,
    /// 1 / (1 - beta1^step)
    first_correction: f32,
    /// 1 / (1 - beta2^step)
    second_correction: f32,
}

impl ParameterUpdate {
    #[inline(always)]
    fn apply(self, value: &mut f32, first: &mut f32, second: &mut f32, gradient: f32) {
        let AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } = self.hyper;
        let gradient = gradient * self.gradient_scale;
        *first = beta1.mul_add(*first, (1.0 - beta1) * gradient);
        *second = beta2.mul_add(*second, (1.0 - beta2) * gradient * gradient);
        let denominator = (*second * self.second_correction).sqrt() + epsilon;
        let direction = *first * self.first_correction / denominator;
        *value -= learning_rate * weight_decay.mul_add(*value, direction);
    }
}

/// The sum of (a + b)² in double precision; an empty `b` is all zeros.
fn squared_norm(a: &[f32], b: &[f32]) -> f64 {
    vector::widest(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; LANES];
            let mut start = 0;
            for chunk in a.chunks(LANES) {
                let mut values = [0.0f32; LANES];
                values[..chunk.len()].copy_from_slice(chunk);
                if let Some(other) = b.get(start..start + chunk.len()) {
                    values.iter_mut().zip(other).for_each(|(value, &other)| *value += other);
                }
                for (lane, &value) in lanes.iter_mut().zip(&values) {
                    *lane = f64::from(value).mul_add(f64::from(value), *lane);
                }
                start += chunk.len();
            }
            lanes.iter().sum()
        },
    )
}
