//! The walk over the layers of one part of the model: forward, backward for the input, backward for the weights.

use super::layers::{Call, Layer};
use crate::compute::{Attended, Classified, Compute, Earlier, Embedded, Embedding, Multiplied, Normalized, Rows};
use anyhow::{Context as _, Result};

/// What a layer leaves behind for its next pass.
pub struct Left<B> {
    /// Input of the layer.
    input: Option<B>,
    /// What the forward kept; after the backward for the input, the gradient of the output, or sums for a norm's weights.
    other: Option<B>,
    /// Of an attention whose forward is to be recomputed: the keys and values of its slice, for later slices.
    keys: Option<B>,
    /// What later slices added to the gradients of the keys and values.
    added: Option<B>,
}

impl<B> Left<B> {
    const NOTHING: Left<B> = Left { input: None, other: None, keys: None, added: None };

    fn new(input: Option<B>, other: Option<B>) -> Left<B> {
        Left { input, other, ..Left::NOTHING }
    }

    /// The buffers.
    pub fn buffers(self) -> impl Iterator<Item = B> {
        [self.input, self.other, self.keys, self.added].into_iter().flatten()
    }

    /// References to the buffers.
    pub fn each(&self) -> impl Iterator<Item = &B> {
        [&self.input, &self.other, &self.keys, &self.added].into_iter().flatten()
    }

    /// Takes the layer's input out.
    pub fn take_input(&mut self) -> Option<B> {
        self.input.take()
    }

    /// Keeps what belongs to it of what the first run of its forward left. Returns the rest.
    pub fn replace_stub(&mut self, stub: Left<B>) -> impl Iterator<Item = B> + use<B> {
        self.added = stub.added;
        [stub.input, stub.other, stub.keys].into_iter().flatten()
    }

    /// Replaces each buffer by what `to` makes of it.
    pub fn map(self, mut to: impl FnMut(B) -> B) -> Left<B> {
        let [input, other, keys, added] = [self.input, self.other, self.keys, self.added].map(|one| one.map(&mut to));
        Left { input, other, keys, added }
    }

    /// The same, until one fails.
    pub fn try_map(self, mut to: impl FnMut(B) -> Result<B>) -> Result<Left<B>> {
        let mut of = |one: Option<B>| one.map(&mut to).transpose();
        Ok(Left { input: of(self.input)?, other: of(self.other)?, keys: of(self.keys)?, added: of(self.added)? })
    }

    /// Keys and values that are kept apart from the input.
    pub fn only_keys(&self) -> Option<&B> {
        self.keys.as_ref()
    }

    /// Where later slices find the keys and values.
    fn keys(&self) -> Result<&B> {
        some(self.keys.as_ref().or(self.input.as_ref()))
    }

    /// The same for a later slice's backward, with what it adds to.
    fn earlier(&mut self) -> Result<Earlier<'_, B>> {
        let keys = some(self.keys.as_ref().or(self.input.as_ref()))?;
        Ok(Earlier { keys, gradient: &mut self.added })
    }
}

impl Left<Vec<f32>> {
    /// Adds the keys and values of the tokens after its own.
    pub fn append_keys(&mut self, later: &Left<Vec<f32>>) {
        if let (Some(keys), Some(later)) = (&mut self.keys, &later.keys) {
            keys.extend_from_slice(later);
        }
    }
}

/// A buffer that must be there.
fn some<B>(buffer: Option<B>) -> Result<B> {
    buffer.context("expected an activation that an earlier layer made, found none")
}

/// One repetition of a part, on its machine.
pub struct Walk<'a, C: Compute> {
    pub compute: &'a mut C,
    pub layers: &'a [Layer],
    /// The numbers of the part's groups among the device's groups.
    pub groups: &'a [usize],
    pub microbatch: usize,
}

/// What the layers leave behind, and what the walk passes on.
type Walked<B> = (Vec<Left<B>>, Option<B>);

impl<C: Compute> Walk<'_, C> {
    /// Forward. Takes the part's input, absent for the first part; returns what the layers leave behind, and the output, absent for
    /// the last part. The last layer writes to `place`, where the machine can. `weight` is the weight of a token's loss. `earlier` is what
    /// the layers left for earlier slices.
    pub fn forward(
        self,
        all: &[C::Group],
        mut hidden: Option<C::Buffer>,
        place: Option<&C::Output<'_>>,
        weight: f32,
        earlier: &[&[Left<C::Buffer>]],
    ) -> Result<Walked<C::Buffer>> {
        let Walk { compute, layers, groups, microbatch } = self;
        let mut left: Vec<Left<C::Buffer>> = Vec::with_capacity(layers.len());
        for (number, layer) in layers.iter().enumerate() {
            let group = &all[groups[layer.group]];
            let place = place.filter(|_| number + 1 == layers.len());
            if let Call::Rotate(layer) = &layer.call {
                compute.rotate(some(hidden.as_mut())?, layer, false)?;
                left.push(Left::NOTHING);
                continue;
            }
            let input = hidden.take();
            let read = || some(input.as_ref());
            let (kept, output) = match &layer.call {
                &Call::Embed { width, first, has_positions } => {
                    let positions = has_positions.then(|| &all[groups[layer.group + 1]]);
                    let mut out = compute.take(Rows::Between, width, place)?;
                    let layer = Embedding { width, first, tokens: group, positions };
                    (Some(compute.embed(&mut out, layer, microbatch)?), Some(out))
                }
                Call::Norm(layer) => {
                    let mut out = compute.take(Rows::Between, layer.width, place)?;
                    (Some(compute.norm(&mut out, group, layer, read()?)?), Some(out))
                }
                Call::Linear(layer, residual) => {
                    let residual = residual.map(|number| some(left[number].input.as_ref())).transpose()?;
                    let mut out = compute.take(layer.output_rows(), layer.outputs, place)?;
                    compute.linear(&mut out, group, layer, read()?, residual)?;
                    (None, Some(out))
                }
                Call::Activated(layer) => {
                    let mut out = compute.take(Rows::All, layer.width, place)?;
                    (Some(compute.activated(&mut out, group, layer, read()?)?), Some(out))
                }
                Call::Attention(layer) => {
                    let mut out = compute.take(Rows::All, layer.heads * layer.size, place)?;
                    let kept = if earlier.is_empty() {
                        compute.attention(&mut out, layer, read()?)?
                    } else {
                        let keys = earlier.iter().map(|left| left[number].keys()).collect::<Result<Vec<_>>>()?;
                        compute.slice_attention(&mut out, layer, read()?, &keys)?
                    };
                    (Some(kept), Some(out))
                }
                Call::Classify(layer) => (Some(compute.classify(group, layer, read()?, microbatch, weight)?), None),
                Call::Rotate(_) => (None, None),
            };
            left.push(Left::new(input, kept));
            hidden = output;
        }
        Ok((left, hidden))
    }

    /// Backward for the input. Takes what the forward left and the gradient of the output, absent for the last part; returns what the
    /// layers leave behind, and the gradient of the input, absent for the first part. The first layer's goes to `place`. Adds to what
    /// the layers left for `earlier` slices.
    pub fn backward_input(
        self,
        all: &[C::Group],
        mut left: Vec<Left<C::Buffer>>,
        mut gradient: Option<C::Buffer>,
        place: Option<&C::Output<'_>>,
        earlier: &mut [&mut [Left<C::Buffer>]],
    ) -> Result<Walked<C::Buffer>> {
        let Walk { compute, layers, groups, .. } = self;
        // the layer whose output's gradient also is the gradient of the hidden state before the last norm
        let mut bypass = None;
        for (number, layer) in layers.iter().enumerate().rev() {
            let group = &all[groups[layer.group]];
            let place = place.filter(|_| number == 0);
            let Left { input, other, added, .. } = std::mem::replace(&mut left[number], Left::NOTHING);
            let mut last = gradient.take();
            let read = || some(last.as_ref());
            match &layer.call {
                Call::Embed { .. } => left[number] = Left::new(other, last),
                Call::Norm(layer) => {
                    let (input, statistics) = (some(input)?, some(other)?);
                    let mut out = compute.take(Rows::Between, layer.width, place)?;
                    let residual = bypass.take().map(|number: usize| some(left[number].other.as_ref())).transpose()?;
                    let operands = Normalized { gradient: read()?, input: &input, statistics: &statistics, residual };
                    let sums = compute.norm_input(&mut out, group, layer, operands)?;
                    [some(last)?, input, statistics].into_iter().for_each(|buffer| compute.give(buffer));
                    left[number].other = Some(sums);
                    gradient = Some(out);
                }
                Call::Linear(linear, residual) => {
                    let before = number.checked_sub(1).map(|number| (number, &layers[number].call));
                    gradient = Some(if let Some((number, Call::Activated(activated))) = before {
                        let kept = some(left[number].other.take())?;
                        compute.activation_input(group, activated, linear, read()?, kept)?
                    } else {
                        let mut out = compute.take(linear.input_rows(), linear.inputs, place)?;
                        compute.linear_input(&mut out, group, linear, read()?)?;
                        out
                    });
                    if linear.copies.is_some() {
                        compute.sum_copies(some(last.as_mut())?, linear)?;
                    }
                    bypass = residual.map(|_| number).or(bypass);
                    left[number] = Left::new(input, last);
                }
                Call::Activated(layer) => {
                    let mut out = compute.take(layer.linear.input_rows(), layer.linear.inputs, place)?;
                    compute.linear_input(&mut out, group, &layer.linear, read()?)?;
                    left[number] = Left::new(input, last);
                    gradient = Some(out);
                }
                Call::Rotate(layer) => {
                    let mut turned = some(last)?;
                    compute.rotate(&mut turned, layer, true)?;
                    gradient = Some(turned);
                }
                Call::Attention(layer) => {
                    let (fused, kept) = (some(input)?, some(other)?);
                    let output = some(left.get(number + 1).and_then(|after| after.input.as_ref()))?;
                    let mut out = compute.take(Rows::All, layer.fused(), place)?;
                    let operands = Attended { gradient: read()?, fused: &fused, output, kept: &kept };
                    if earlier.is_empty() && added.is_none() {
                        compute.attention_input(&mut out, layer, operands)?;
                    } else {
                        let earlier = earlier.iter_mut().map(|left| left[number].earlier());
                        let mut earlier = earlier.collect::<Result<Vec<_>>>()?;
                        compute.slice_attention_input(&mut out, layer, operands, added.as_ref(), &mut earlier)?;
                    }
                    let used = [last, Some(fused), Some(kept), added].into_iter().flatten();
                    used.for_each(|buffer| compute.give(buffer));
                    gradient = Some(out);
                }
                Call::Classify(layer) => {
                    let mut out = compute.take(Rows::Between, layer.width, place)?;
                    compute.classify_input(&mut out, group, layer, some(other.as_ref())?)?;
                    left[number] = Left::new(input, other);
                    gradient = Some(out);
                }
            }
        }
        Ok((left, gradient))
    }

    /// Reduces what a forward left to what recomputing it needs: the part's input if it `is_first` of its stage, and keys and values
    /// if `keeps_keys`.
    pub fn stub(self, left: Vec<Left<C::Buffer>>, is_first: bool, keeps_keys: bool) -> Result<Vec<Left<C::Buffer>>> {
        let Walk { compute, layers, .. } = self;
        let mut stubs = Vec::with_capacity(left.len());
        for (number, (layer, mut left)) in layers.iter().zip(left).enumerate() {
            let keys = match &layer.call {
                Call::Attention(layer) if keeps_keys => Some(compute.keys_values(some(left.input.as_ref())?, layer)?),
                _ => None,
            };
            let input = if is_first && number == 0 { left.input.take() } else { None };
            left.buffers().for_each(|buffer| compute.give(buffer));
            stubs.push(Left { input, keys, ..Left::NOTHING });
        }
        Ok(stubs)
    }

    /// Gives back what a forward left, with `keeps_keys` all but what later slices read: the keys and values in an attention's input.
    pub fn forget(self, left: &mut [Left<C::Buffer>], keeps_keys: bool) {
        for (layer, left) in self.layers.iter().zip(left) {
            let is_read = keeps_keys && matches!(layer.call, Call::Attention(_));
            let input = if is_read { left.input.take() } else { None };
            let rest = std::mem::replace(left, Left { input, ..Left::NOTHING });
            rest.buffers().for_each(|buffer| self.compute.give(buffer));
        }
    }

    /// Takes out of what a forward left what stays on the device while the rest is on the host: what later slices added, and with
    /// `keeps_keys` a copy of keys and values for them.
    pub fn stay(self, left: &mut [Left<C::Buffer>], keeps_keys: bool) -> Result<Vec<Left<C::Buffer>>> {
        let Walk { compute, layers, .. } = self;
        let mut stays = Vec::with_capacity(left.len());
        for (layer, left) in layers.iter().zip(left) {
            let keys = match &layer.call {
                Call::Attention(layer) if keeps_keys => Some(compute.keys_values(some(left.input.as_ref())?, layer)?),
                _ => None,
            };
            stays.push(Left { keys, added: left.added.take(), ..Left::NOTHING });
        }
        Ok(stays)
    }

    /// Backward for the weights: adds this micro-batch's share to the gradients, with what the backward for the input left.
    pub fn backward_weight(self, all: &mut [C::Group], left: Vec<Left<C::Buffer>>) -> Result<()> {
        let Walk { compute, layers, groups, microbatch } = self;
        for (layer, left) in layers.iter().zip(left).rev() {
            let number = groups[layer.group];
            let (input, gradient) = (|| some(left.input.as_ref()), || some(left.other.as_ref()));
            match &layer.call {
                &Call::Embed { width, first, has_positions } => {
                    let second = has_positions.then(|| groups[layer.group + 1]);
                    let (tokens, positions) = pair(all, number, second)?;
                    let operands = Embedded { ids: input()?, gradient: gradient()? };
                    compute.embed_weight(Embedding { width, first, tokens, positions }, microbatch, operands)?;
                }
                Call::Norm(layer) => compute.norm_weight(&mut all[number], layer, gradient()?)?,
                Call::Linear(linear, _) | Call::Activated(crate::compute::Activated { linear, .. }) => {
                    let operands = Multiplied { gradient: gradient()?, input: input()? };
                    compute.linear_weight(&mut all[number], linear, operands)?;
                }
                Call::Classify(layer) => {
                    let operands = Classified { logits_gradient: gradient()?, input: input()? };
                    compute.classify_weight(&mut all[number], layer, operands)?;
                }
                Call::Rotate(_) | Call::Attention(_) => {}
            }
            left.buffers().for_each(|buffer| compute.give(buffer));
        }
        Ok(())
    }
}

/// One or two of the groups.
fn pair<G>(all: &mut [G], first: usize, second: Option<usize>) -> Result<(&mut G, Option<&mut G>)> {
    Ok(match second {
        Some(second) => {
            let [first, second] = all.get_disjoint_mut([first, second])?;
            (first, Some(second))
        }
        None => (&mut all[first], None),
    })
}
