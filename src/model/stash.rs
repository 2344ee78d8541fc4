//! A stage on its device, and what its ops leave behind for those still to come; in whatever memory: a buffer is a `T`, what is
//! kept of token ids an `I`.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use crate::model_spec;

macro_rules! left_behind {
    ($($(#[$doc:meta])* $name:ident { $($(#[$shape:meta])* $field:ident,)* })*) => {$(
        $(#[$doc])*
        pub struct $name<T> {
            $($(#[$shape])* pub $field: T,)*
        }

        impl<T> $name<T> {
            /// All buffers, to be given back.
            pub fn buffers(self) -> impl Iterator<Item = T> {
                [$(self.$field),*].into_iter()
            }

            fn bytes(&self, of: impl Fn(&T) -> usize) -> usize {
                [$(of(&self.$field)),*].iter().sum()
            }
        }
    )*};
}

left_behind! {
    /// What a block's forward leaves behind for the backward for the input. (n, C) where nothing else is said.
    BlockForward {
        input,
        ln1,
        /// (n, 2)
        ln1_statistics,
        /// (n, 3C)
        qkv,
        attention,
        /// (B, NH, T)
        log_sums,
        /// The hidden state after the attention.
        middle,
        ln2,
        /// (n, 2)
        ln2_statistics,
        /// (n, 4C): what GELU is applied to, or its derivative there.
        fc,
        /// (n, 4C)
        gelu,
    }

    /// What a block's backward for the input leaves behind: exactly the operands of the backward for the weights. Inputs of the
    /// four products (7C a token), gradients of their outputs (9C a token), sums of the two LayerNorms.
    BlockWeight {
        ln1,
        attention,
        ln2,
        /// (n, 4C)
        gelu,
        /// (n, 3C)
        qkv_gradient,
        middle_gradient,
        /// (n, 4C)
        fc_gradient,
        output_gradient,
        /// (G, 2, C), in one group or several.
        ln1_sums,
        /// (G, 2, C)
        ln2_sums,
    }

    /// What the head's forward leaves behind for the backward for the input.
    HeadForward {
        /// (n, C)
        input,
        /// (n, C)
        lnf,
        /// (n, 2)
        statistics,
        /// (n, V), rows as far apart as the device stores logits.
        logits_gradient,
    }

    /// What the head's backward for the input leaves behind for the backward for the weights.
    HeadWeight {
        lnf,
        logits_gradient,
        /// (G, 2, C)
        sums,
    }
}

/// One stage's blocks, each with its parameters `G`, and what its ops left behind, by micro-batch.
pub struct Stage<G, T, I> {
    pub layers: model_spec::Stage,
    pub blocks: Vec<G>,
    pub stashes: Vec<Stash<T, I>>,
}

/// What the ops of one micro-batch left behind. Of the blocks, the backward's come last first.
pub enum Stash<T, I> {
    Empty,
    Forward(Forward<T, I>),
    Weight(Weight<T, I>),
}

/// Token ids where the embedding is, what the blocks left, and the head.
pub type Forward<T, I> = (Option<I>, Vec<BlockForward<T>>, Option<HeadForward<T>>);

/// Where the embedding is, token ids and the gradient of its output (n, C); what the blocks left, and the head.
pub type Weight<T, I> = (Option<(I, T)>, Vec<BlockWeight<T>>, Option<HeadWeight<T>>);

impl<G, T, I> Stage<G, T, I> {
    /// A stage before its first op.
    pub fn new(layers: model_spec::Stage, blocks: Vec<G>, microbatches: usize) -> Stage<G, T, I> {
        Stage { layers, blocks, stashes: (0..microbatches).map(|_| Stash::Empty).collect() }
    }
}

impl<T, I> Stash<T, I> {
    /// Takes out what the forward left, for the backward for the input; an error where it left nothing.
    pub fn take_forward(&mut self) -> Result<Forward<T, I>, &'static str> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Forward(left) => Ok(left),
            other => {
                *self = other;
                Err("expected its forward before it, found none: run that first")
            }
        }
    }

    /// Takes out what the backward for the input left, for that for the weights; an error where it left nothing.
    pub fn take_weight(&mut self) -> Result<Weight<T, I>, &'static str> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Weight(left) => Ok(left),
            other => {
                *self = other;
                Err("expected its backward for the input before it, found none: run that first")
            }
        }
    }

    /// Bytes of all buffers and ids.
    pub fn bytes(&self, of: impl Fn(&T) -> usize + Copy, of_ids: impl Fn(&I) -> usize) -> usize {
        match self {
            Stash::Empty => 0,
            Stash::Forward((ids, blocks, head)) => {
                let blocks: usize = blocks.iter().map(|block| block.bytes(of)).sum();
                ids.as_ref().map_or(0, of_ids) + blocks + head.as_ref().map_or(0, |head| head.bytes(of))
            }
            Stash::Weight((embedding, blocks, head)) => {
                let blocks: usize = blocks.iter().map(|block| block.bytes(of)).sum();
                let embedding = embedding.as_ref().map_or(0, |(ids, gradient)| of_ids(ids) + of(gradient));
                embedding + blocks + head.as_ref().map_or(0, |head| head.bytes(of))
            }
        }
    }

    /// Takes all buffers out, to be given back.
    pub fn clear(&mut self) -> Vec<T> {
        match std::mem::replace(self, Stash::Empty) {
            Stash::Empty => Vec::new(),
            Stash::Forward((_, blocks, head)) => {
                let blocks = blocks.into_iter().flat_map(BlockForward::buffers);
                blocks.chain(head.into_iter().flat_map(HeadForward::buffers)).collect()
            }
            Stash::Weight((embedding, blocks, head)) => {
                let gradient = embedding.into_iter().map(|(_, gradient)| gradient);
                let blocks = blocks.into_iter().flat_map(BlockWeight::buffers);
                gradient.chain(blocks).chain(head.into_iter().flat_map(HeadWeight::buffers)).collect()
            }
        }
    }
}

/// The stage with this number, if the micro-batch too is one of the step's.
pub fn find<G, T, I>(
    stages: &mut BTreeMap<u32, Stage<G, T, I>>,
    stage: u32,
    microbatch: u32,
) -> Result<&mut Stage<G, T, I>> {
    let known: Vec<u32> = stages.keys().copied().collect();
    let Some(entry) = stages.get_mut(&stage) else {
        bail!("expected one of this device's stages, {known:?}, found {stage}: send the op to the device that has it");
    };
    let count = entry.stashes.len();
    ensure!(
        (microbatch as usize) < count,
        "expected a micro-batch below {count}, found {microbatch}: use those of this step"
    );
    Ok(entry)
}
