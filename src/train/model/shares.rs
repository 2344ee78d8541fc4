//! What a tensor-parallel rank holds of each of the model's tensors, and where that is in the whole tensor.

use crate::compute::TensorShare;
use pipesim_models::model_spec::{ModelSpec, Tensor};
use std::borrow::Cow;
use std::ops::Range;

/// The shares of the model's tensors on one rank.
pub struct Shares {
    is_whole: bool,
    /// By tensor of the description.
    tensors: Vec<TensorPiece>,
}

/// What is held of one layer of a tensor.
struct TensorPiece {
    /// Its elements in the whole tensor, in order.
    runs: Vec<Range<usize>>,
    /// Of the elements here those that count in the gradient's norm: another rank counts its copies of the others.
    counted: Vec<Range<usize>>,
    length: usize,
}

impl Shares {
    /// Returns what `share` holds of each tensor.
    pub fn new(spec: &ModelSpec, share: TensorShare) -> Shares {
        let tensors = spec.tensors().map(|(_, tensor)| TensorPiece::new(tensor, share)).collect();
        Shares { is_whole: share.size == 1, tensors }
    }

    /// Returns the elements here of a layer of a tensor, `whole`.
    pub fn read<'a>(&self, tensor: usize, whole: &'a [f32]) -> Cow<'a, [f32]> {
        if self.is_whole {
            return Cow::Borrowed(whole);
        }
        let share = &self.tensors[tensor];
        let mut held = Vec::with_capacity(share.length);
        share.runs.iter().for_each(|run| held.extend_from_slice(&whole[run.clone()]));
        Cow::Owned(held)
    }

    /// Calls `fill` with the elements here, and puts them back into a layer of a tensor, `whole`. `fill` may leave elements as they
    /// are, which another worker fills.
    pub fn write<E>(
        &self,
        tensor: usize,
        whole: &mut [f32],
        fill: impl FnOnce(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.is_whole {
            return fill(whole);
        }
        let share = &self.tensors[tensor];
        let mut held = self.read(tensor, whole).into_owned();
        fill(&mut held)?;
        let mut rest = &held[..];
        for run in &share.runs {
            let (now, after) = rest.split_at(run.len());
            whole[run.clone()].copy_from_slice(now);
            rest = after;
        }
        Ok(())
    }

    /// Returns the elements that count in the gradient's norm, of these tensors one after the other; `None`: all.
    pub fn counted(&self, tensors: &[usize]) -> Option<Vec<Range<usize>>> {
        if self.is_whole {
            return None;
        }
        let mut start = 0;
        let mut all = Vec::new();
        for share in tensors.iter().map(|&tensor| &self.tensors[tensor]) {
            all.extend(share.counted.iter().map(|run| start + run.start..start + run.end));
            start += share.length;
        }
        Some(all)
    }
}

impl TensorPiece {
    fn new(tensor: &Tensor, TensorShare { rank, size, .. }: TensorShare) -> TensorPiece {
        let whole = tensor.elements() as usize;
        let Some(split) = &tensor.split else {
            // every rank has the same bits: the first one counts them
            let run = |end: usize| std::iter::once(0..end).collect();
            return TensorPiece { runs: run(whole), counted: run(if rank == 0 { whole } else { 0 }), length: whole };
        };
        let inner: usize = tensor.shape[split.axis + 1..].iter().product();
        let outer: usize = tensor.shape[..split.axis].iter().product();
        let stride = tensor.shape[split.axis] * inner;
        let (mut runs, mut counted, mut length) = (Vec::new(), Vec::new(), 0);
        for row in 0..outer {
            for (run, block) in split.runs(rank, size).zip(&split.blocks) {
                let run = row * stride + run.start * inner..row * stride + run.end * inner;
                if block.is_first(rank, size) {
                    counted.push(length..length + run.len());
                }
                length += run.len();
                runs.push(run);
            }
        }
        if outer > 1 {
            counted = std::iter::once(0..length).collect(); // columns are not copied
        }
        TensorPiece { runs, counted, length }
    }
}
