//! Parallel layout of a training step: degrees, precision, recomputation, ZeRO.

mod error;
mod fixed;
mod folding;
mod options;
mod preference;
mod recompute;
mod routing;

pub use error::ParallelConfigError;
pub use fixed::Fixed;
pub use folding::Replicas;
pub use options::StepOptions;
pub use preference::Preference;
pub use recompute::{Recompute, RecomputePart, RecomputeParts};
pub use routing::Routing;

use crate::model_spec::StageLayout;
use crate::model_spec::transformer::{Config, check_rows};
use pipesim_schedule::fsdp::Fsdp;
use std::fmt;
use std::str::FromStr;

/// ParallelConfig of a step on `devices * tensor * context * data` GPUs; each pipeline runs `micro` micro-batches per step.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelConfig {
    /// Pipeline-parallel degree, p: devices per pipeline. There are `devices * chunks` stages.
    pub pp: u32,
    /// Virtual stages per device, v.
    pub chunks: u32,
    /// Tensor-parallel degree, t.
    pub tp: u32,
    /// Context-parallel degree, c.
    pub cp: u32,
    /// Data-parallel degree, d: number of pipelines.
    pub dp: u32,
    /// Sequences per micro-batch, b.
    pub micro_batch_size: u32,
    /// Micro-batches per pipeline, m.
    pub micro: u32,
    /// Tokens per sequence, s.
    pub sequence: u32,
    /// Lengths of the texts that are packed to a sequence, in proportion to how many there are; empty: one text per sequence. Tokens attend
    /// to those of their own text only.
    pub packed: Vec<u32>,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Activation recomputation.
    pub recompute: Recompute,
    /// ZeRO stage of data parallelism.
    pub zero: Zero,
    /// Number of data- and context-parallel replicas, neighbours, that share what `zero` shards; every further group of them holds the same.
    /// `None`: all.
    pub shard: Option<u32>,
    /// Share of the optimizer's states that is in the host's memory, and updated there; 0 to 1.
    pub optimizer_offload: f64,
    /// Whether the host updates while gradients and weights are copied.
    pub overlap_optimizer_offload: bool,
    /// Whether sequence parallelism is on (Korthikanti et al., arXiv 2205.05198).
    pub sequence_parallel: bool,
    /// Attention kernels; `None`: the stack's default.
    pub attention: Option<Attention>,
    /// Training software: a table of hardware/stacks, or the path of a file.
    pub stack: String,
    /// Layers per stage in model order; `None`: split by the cost of parts.
    pub layers: Option<Vec<usize>>,
    /// What each stage holds, with `chunks` stages per device; replaces `layers`.
    pub layout: Option<StageLayout>,
    /// Expert-parallel degree: ranks of a stage that share the experts.
    pub ep: u32,
    /// Expert-tensor-parallel degree: ranks that share each expert.
    pub etp: u32,
    /// How tokens get to their experts.
    pub dispatcher: Dispatcher,
    /// How tokens are spread over experts.
    pub routing: Routing,
    /// What is launched as CUDA graphs.
    pub cuda_graph: CudaGraph,
    /// Whether the forward of a micro-batch hides the experts' communication of another one's backward.
    pub moe_overlap: bool,
    /// Whether weight gradients are computed apart from input gradients for that overlap.
    pub delay_wgrad: bool,
    /// How FSDP gathers whole stages between ops; needs [`Zero::Weights`]. `None`: in every pass, layer by layer.
    pub fsdp: Option<Fsdp>,
    /// Number of separate passes through the pipeline per step, each of `micro` micro-batches.
    pub rounds: u32,
}

/// One GPU, one sequence of 1024 tokens.
impl Default for ParallelConfig {
    fn default() -> ParallelConfig {
        ParallelConfig {
            pp: 1,
            chunks: 1,
            tp: 1,
            cp: 1,
            dp: 1,
            micro_batch_size: 1,
            micro: 1,
            sequence: 1024,
            packed: Vec::new(),
            precision: Precision::Bf16,
            recompute: Recompute::None,
            zero: Zero::None,
            shard: None,
            optimizer_offload: 0.0,
            overlap_optimizer_offload: false,
            sequence_parallel: false,
            attention: None,
            stack: "megatron-core".to_string(),
            layers: None,
            layout: None,
            ep: 1,
            etp: 1,
            dispatcher: Dispatcher::AllToAll,
            routing: Routing::Balanced,
            cuda_graph: CudaGraph::None,
            moe_overlap: false,
            delay_wgrad: false,
            fsdp: None,
            rounds: 1,
        }
    }
}

/// An enum of names for the command line and files.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident: $what:literal; $($(#[$variant_doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $type { $($(#[$variant_doc])* $variant),+ }

        impl $type {
            /// All variants.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// Returns the name.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = ParallelConfigError;

            fn from_str(text: &str) -> Result<$type, ParallelConfigError> {
                let known = $type::ALL.iter().find(|known| known.name() == text).copied();
                known.ok_or_else(|| {
                    let names = $type::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
                    let expected = format!("{} to be one of {names}", $what);
                    ParallelConfigError::Name { expected, found: format!("'{text}'") }
                })
            }
        }
    };
}

names! {
    /// Precision of the products of linear layers. The rest of a step is in bf16 if this is fp8 or below.
    Precision: "the precision";
    /// Brain floating point.
    Bf16 = "bf16",
    /// Half precision.
    Fp16 = "fp16",
    /// Single precision.
    Fp32 = "fp32",
    /// 8 bits with a scale per tensor.
    Fp8 = "fp8",
    /// 8 bits with a scale per 32 elements.
    Mxfp8 = "mxfp8",
    /// 4 bits with a scale per 16 elements.
    Nvfp4 = "nvfp4",
}

names! {
    /// What data-parallel ranks shard (Rajbhandari et al., arXiv 1910.02054).
    Zero: "the ZeRO stage";
    /// Nothing.
    None = "0",
    /// Optimizer states, as Megatron's distributed optimizer.
    Optimizer = "1",
    /// Also gradients.
    Gradients = "2",
    /// Also weights, as FSDP.
    Weights = "3",
}

names! {
    /// Attention kernels.
    Attention: "the attention";
    /// FlashAttention: scores are never stored.
    Flash = "flash",
    /// Unfused: scores and their softmax are tensors, and saved.
    Plain = "plain",
}

names! {
    /// How tokens get to the ranks of their experts.
    Dispatcher: "the dispatcher";
    /// With all-to-all: each token once per expert.
    AllToAll = "alltoall",
    /// With DeepEP: each token once per node, and on within it.
    DeepEp = "deepep",
    /// With HybridEP: as DeepEP, with fewer multiprocessors.
    HybridEp = "hybridep",
}

names! {
    /// What is launched as CUDA graphs, which cost the host almost nothing.
    CudaGraph: "the CUDA graphs";
    /// Nothing.
    None = "none",
    /// Parts of each layer: attention and router.
    Partial = "partial",
    /// Whole passes.
    Full = "full",
}

impl Precision {
    /// Returns the bytes of an activation outside of products, and of a weight that is not a master copy.
    pub fn bytes(self) -> u32 {
        if self == Precision::Fp32 { 4 } else { 2 }
    }

    /// Returns the precision outside of linear layers: bf16 if those have fewer than 16 bits.
    pub fn between_layers(self) -> Precision {
        if self.is_narrow() { Precision::Bf16 } else { self }
    }

    /// Returns whether linear layers have fewer than 16 bits.
    pub fn is_narrow(self) -> bool {
        matches!(self, Precision::Fp8 | Precision::Mxfp8 | Precision::Nvfp4)
    }
}

/// Derives sequences per micro-batch and micro-batches per pipeline. `batch` is the global batch.
///
/// # Errors
/// Numbers that contradict each other, or a batch that is not a multiple of the micro-batches.
pub fn micro_batches(
    batch: Option<u32>,
    data: u32,
    size: Option<u32>,
    micro: Option<u32>,
) -> Result<(u32, u32), ParallelConfigError> {
    let Some(batch) = batch else { return Ok((size.unwrap_or(1), micro.unwrap_or(1))) };
    let whole = |by: u32, what: &'static str| {
        let (found, each) = (u64::from(batch), u64::from(data.max(1)) * u64::from(by.max(1)));
        match u32::try_from(found / each) {
            Ok(count) if found.is_multiple_of(each) && count > 0 => Ok(count),
            _ => {
                let near = (found / each).max(1) * each;
                let near = if near <= 1 << 27 { format!("{near} or ") } else { String::new() };
                Err(ParallelConfigError::Batch { data, what, by, found, near })
            }
        }
    };
    match (size, micro) {
        (size, None) => {
            let size = size.unwrap_or(1);
            Ok((size, whole(size, "micro-batch size")?))
        }
        (None, Some(micro)) => Ok((whole(micro, "micro-batches")?, micro)),
        (Some(size), Some(micro)) => match [data, size, micro].into_iter().map(u128::from).product::<u128>() {
            needed if needed == u128::from(batch) => Ok((size, micro)),
            needed => Err(ParallelConfigError::BatchOfThree { data, micro, size, needed, found: batch }),
        },
    }
}

impl ParallelConfig {
    /// Returns the number of GPUs of all pipelines.
    pub fn gpus(&self) -> u64 {
        [self.pp, self.tp, self.cp, self.dp].into_iter().map(u64::from).product()
    }

    /// Returns whether every part of a model costs the same per micro-batch in both layouts.
    pub fn has_parts_of(&self, other: &ParallelConfig) -> bool {
        // ZeRO-3 gathers weights in every pass
        let gathered = |layout: &ParallelConfig| {
            (layout.zero == Zero::Weights).then_some((layout.dp, layout.shard, layout.micro, layout.rounds))
        };
        let degrees = |layout: &ParallelConfig| [layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch_size];
        // the GPUs of a group in a node depend on all GPUs
        let all =
            |layout: &ParallelConfig| (layout.gpus(), layout.sequence, layout.precision, layout.sequence_parallel);
        let repeated = |layout: &ParallelConfig| (layout.recompute.of_layer(true), layout.recompute.is_of_some());
        degrees(self) == degrees(other)
            && all(self) == all(other)
            && repeated(self) == repeated(other)
            && gathered(self) == gathered(other)
            && self.options() == other.options()
            && (self.attention, self.routing) == (other.attention, other.routing)
            && (&self.packed, &self.stack, &self.fsdp) == (&other.packed, &other.stack, &other.fsdp)
    }

    /// Returns the number of stages, S.
    pub fn stages(&self) -> u32 {
        self.pp.saturating_mul(self.chunks)
    }

    /// Returns the sequences per step, of all pipelines and rounds.
    pub fn batch(&self) -> u64 {
        [self.dp, self.micro_batch_size, self.micro, self.rounds]
            .into_iter()
            .map(u64::from)
            .fold(1, u64::saturating_mul)
    }

    /// Returns the tokens per step, of all pipelines.
    pub fn tokens(&self) -> u64 {
        self.batch().saturating_mul(u64::from(self.sequence))
    }

    /// Returns the tokens per micro-batch on one context-parallel rank.
    pub fn micro_tokens(&self) -> u64 {
        u64::from(self.micro_batch_size) * u64::from(self.sequence) / u64::from(self.cp.max(1))
    }

    /// Returns the sum of `of` over the packed texts, by their lengths, per token; `None` if each sequence is one text.
    pub fn per_packed_token(&self, of: impl Fn(u32) -> f64) -> Option<f64> {
        let tokens: f64 = self.packed.iter().map(|&tokens| f64::from(tokens)).sum();
        (tokens > 0.0).then(|| self.packed.iter().map(|&tokens| of(tokens)).sum::<f64>() / tokens)
    }

    /// Checks that `model` supports this layout.
    ///
    /// # Errors
    /// The first number that is out of range or does not divide, with advice.
    pub fn validate(&self, model: &Config) -> Result<(), ParallelConfigError> {
        let sizes = [
            ("pp", self.pp, 1 << 16),
            ("chunks", self.chunks, 1 << 16),
            ("tp", self.tp, 1 << 12),
            ("cp", self.cp, 1 << 12),
            ("dp", self.dp, 1 << 20),
            ("micro-batch-size", self.micro_batch_size, 1 << 20),
            ("micro", self.micro, 1 << 24),
            ("sequence", self.sequence, 1 << 27),
            ("ep", self.ep, 1 << 12),
            ("etp", self.etp, 1 << 12),
            ("rounds", self.rounds, 1 << 20),
        ];
        if let Some((setting, found, most)) = sizes.into_iter().find(|&(_, size, most)| size == 0 || size > most) {
            return Err(ParallelConfigError::Range { setting, most, found });
        }
        if self.gpus() > 1 << 24 {
            return Err(ParallelConfigError::Gpus { most: 1 << 24, found: self.gpus() });
        }
        model.check_tensor_ranks(self.tp as usize)?;
        if !self.sequence.is_multiple_of(self.cp) {
            return Err(ParallelConfigError::ContextRanks { cp: self.cp, found: self.sequence });
        }
        if self.sequence_parallel {
            check_rows("rank", self.micro_tokens() as usize, self.tp as usize)?;
        }
        if let Some(&found) = self.packed.iter().find(|&&tokens| tokens == 0 || tokens > self.sequence) {
            return Err(ParallelConfigError::Packed { most: self.sequence, found });
        }
        let longest = self.packed.iter().max().unwrap_or(&self.sequence);
        let (found, most) = (*longest as usize, model.positions);
        if most > 0 && found > most {
            return Err(ParallelConfigError::Positions { most, found });
        }
        if model.lora.is_some() && (model.experts.is_some() || model.latent.is_some()) {
            return Err(ParallelConfigError::Lora);
        }
        self.check_experts(model)?;
        self.check_shard(self.shard, model.experts.is_some())?;
        if !(0.0..=1.0).contains(&self.optimizer_offload) {
            return Err(ParallelConfigError::Offload { found: self.optimizer_offload.to_string() });
        }
        if self.overlap_optimizer_offload && self.optimizer_offload == 0.0 {
            return Err(ParallelConfigError::OffloadOverlap);
        }
        if self.fsdp.is_some() && self.zero != Zero::Weights {
            return Err(ParallelConfigError::Fsdp { found: self.zero.name() });
        }
        if let Some(layout) = &self.layout {
            return self.check_layout(layout, model);
        }
        let (found, layers, most) = (self.stages() as usize, model.layers, model.layers + 2);
        if found > most { Err(ParallelConfigError::Stages { most, layers, found }) } else { Ok(()) }
    }

    fn check_layout(&self, layout: &StageLayout, model: &Config) -> Result<(), ParallelConfigError> {
        let own = model.pattern.and_then(|pattern| pattern.letters(model.prediction_layers));
        layout.check_letters(own.as_deref())?;
        layout.check(self.pp, model.layers, model.prediction_layers)?;
        if self.layers.is_some() {
            return Err(ParallelConfigError::LayoutAndLayers);
        }
        match layout.chunks(self.pp)? {
            chunks if chunks == self.chunks => Ok(()),
            chunks => Err(ParallelConfigError::LayoutChunks { chunks, found: self.chunks }),
        }
    }
}

impl fmt::Display for ParallelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParallelConfig { tp: tensor, pp: devices, cp: context, dp: data, chunks, micro_batch_size, micro, .. } =
            self;
        write!(f, "tp {tensor} · pp {devices} · cp {context} · dp {data}")?;
        if self.ep > 1 || self.etp > 1 {
            write!(f, " · ep {} · etp {} · edp {}", self.ep, self.etp, self.edp())?;
        }
        if let Some(shard) = self.shard {
            write!(f, " · shard {shard}")?;
        }
        if *chunks > 1 {
            write!(f, " · {chunks} chunks")?;
        }
        write!(f, " · {micro} micro-batches of {micro_batch_size} × {} tokens", self.sequence)?;
        if self.rounds > 1 {
            write!(f, " · {} rounds", self.rounds)?;
        }
        Ok(())
    }
}
