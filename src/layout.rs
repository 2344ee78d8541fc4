//! Parallel layout of a training step: degrees, precision, recomputation, ZeRO.

use crate::model_spec::transformer::Config;
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
    /// Precision of matrix products.
    pub precision: Precision,
    /// Activation recomputation.
    pub recompute: Recompute,
    /// ZeRO stage of data parallelism.
    pub zero: Zero,
    /// Whether sequence parallelism is on (Korthikanti et al., arXiv 2205.05198).
    pub sequence_parallel: bool,
    /// Attention kernels; `None`: the stack's default.
    pub attention: Option<Attention>,
    /// Training software: a table of hardware/stacks, or the path of a file.
    pub stack: String,
    /// Layers per stage in model order; `None`: split by the cost of parts.
    pub layers: Option<Vec<usize>>,
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
            precision: Precision::Bf16,
            recompute: Recompute::None,
            zero: Zero::None,
            sequence_parallel: false,
            attention: None,
            stack: STACKS[0].to_string(),
            layers: None,
        }
    }
}

/// Embedded training software; the first is the default.
pub const STACKS: [&str; 16] = [
    "megatron-core",
    "megatron-lm",
    "megatron-zb",
    "megatron-deepspeed",
    "megatron-deepspeed-blocking",
    "fsdp",
    "torchtitan",
    "nanotron",
    "jax",
    "llm.c",
    "pipesim",
    "scaling",
    "scaling-flash-2",
    "scaling-flash-1",
    "scaling-fused",
    "scaling-torch",
];

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
                let names = || $type::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
                known.ok_or_else(|| ParallelConfigError(format!("expected {} to be one of {}, found '{text}'", $what, names())))
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
    /// What the backward recomputes instead of saving it.
    Recompute: "what is recomputed";
    /// Nothing.
    None = "none",
    /// The attention between its products.
    Selective = "selective",
    /// Every block, from its input.
    Full = "full",
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

/// Why a layout is invalid; the message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParallelConfigError(pub(crate) String);

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
    let whole = |by: u32, what: &str| {
        let (batch, each) = (u64::from(batch), u64::from(data.max(1)) * u64::from(by.max(1)));
        match u32::try_from(batch / each) {
            Ok(count) if batch.is_multiple_of(each) && count > 0 => Ok(count),
            _ => {
                let near = (batch / each).max(1) * each;
                let near = if near <= 1 << 27 { format!("{near} or ") } else { String::new() };
                Err(ParallelConfigError(format!(
                    "expected --batch to be a multiple of {data} pipelines times {what} {by}, found {batch}; choose {near}another {what}"
                )))
            }
        }
    };
    match (size, micro) {
        (size, None) => {
            let size = size.unwrap_or(1);
            Ok((size, whole(size, "micro-batch size")?))
        }
        (None, Some(micro)) => Ok((whole(micro, "micro-batches")?, micro)),
        (Some(size), Some(micro)) => {
            let needed = [data, size, micro].into_iter().map(u128::from).product::<u128>();
            if needed != u128::from(batch) {
                return Err(ParallelConfigError(format!(
                    "expected --batch to be {data} pipelines times {micro} micro-batches of {size} = {needed}, found {batch}; leave --micro out"
                )));
            }
            Ok((size, micro))
        }
    }
}

impl ParallelConfig {
    /// Returns the number of GPUs of all pipelines.
    pub fn gpus(&self) -> u64 {
        [self.pp, self.tp, self.cp, self.dp].into_iter().map(u64::from).product()
    }

    /// Returns the number of stages, S.
    pub fn stages(&self) -> u32 {
        self.pp.saturating_mul(self.chunks)
    }

    /// Returns the sequences per step, of all pipelines.
    pub fn batch(&self) -> u64 {
        [self.dp, self.micro_batch_size, self.micro].into_iter().map(u64::from).fold(1, u64::saturating_mul)
    }

    /// Returns the tokens per step, of all pipelines.
    pub fn tokens(&self) -> u64 {
        self.batch().saturating_mul(u64::from(self.sequence))
    }

    /// Returns the tokens per micro-batch on one context-parallel rank.
    pub fn micro_tokens(&self) -> u64 {
        u64::from(self.micro_batch_size) * u64::from(self.sequence) / u64::from(self.cp.max(1))
    }

    /// Checks that `model` supports this layout.
    ///
    /// # Errors
    /// The first number that is out of range or does not divide, with advice.
    pub fn validate(&self, model: &Config) -> Result<(), ParallelConfigError> {
        let refuse = |text: String| Err(ParallelConfigError(text));
        let sizes = [
            ("--stages", self.pp, 1 << 16),
            ("--chunks", self.chunks, 1 << 16),
            ("--tp", self.tp, 1 << 12),
            ("--cp", self.cp, 1 << 12),
            ("--dp", self.dp, 1 << 20),
            ("--micro-batch-size", self.micro_batch_size, 1 << 20),
            ("--micro", self.micro, 1 << 24),
            ("--seq", self.sequence, 1 << 27),
        ];
        if let Some((name, found, most)) = sizes.into_iter().find(|&(_, size, most)| size == 0 || size > most) {
            return refuse(format!("expected {name} between 1 and {most}, found {found}; correct it"));
        }
        if self.gpus() > 1 << 24 {
            return refuse(format!(
                "expected at most {} GPUs, found {}; choose a smaller layout",
                1 << 24,
                self.gpus()
            ));
        }
        let t = self.tp as usize;
        model.check_tensor_ranks(t).map_err(ParallelConfigError)?;
        if !self.sequence.is_multiple_of(self.cp) {
            return refuse(format!(
                "expected --seq to be a multiple of --cp {}, found {}; choose another --cp",
                self.cp, self.sequence
            ));
        }
        if self.sequence_parallel && !self.micro_tokens().is_multiple_of(u64::from(self.tp)) {
            let rest = self.micro_tokens();
            return refuse(format!(
                "expected a rank's {rest} tokens to be a multiple of --tp {t} under --sequence-parallel; choose another --seq"
            ));
        }
        let sequence = self.sequence as usize;
        if model.positions > 0 && sequence > model.positions {
            return refuse(format!(
                "expected --seq to be at most {}, the positions that the model has learned, found {sequence}; choose a shorter one",
                model.positions
            ));
        }
        if let Some(window) = model.window.filter(|&window| sequence > window) {
            return refuse(format!(
                "expected --seq to be at most {window}, the model's attention window, found {sequence}: windows are not supported; choose a shorter one"
            ));
        }
        if !STACKS.contains(&self.stack.as_str()) && !self.stack.ends_with(".toml") {
            return refuse(format!(
                "expected --stack to be a .toml file or one of {}, found '{}'",
                STACKS.join(", "),
                self.stack
            ));
        }
        let stages = self.stages() as usize;
        if stages > model.layers + 2 {
            return refuse(format!(
                "expected at most {} stages for {} layers, embedding and head, found {stages}; choose fewer stages or chunks",
                model.layers + 2,
                model.layers
            ));
        }
        Ok(())
    }
}

impl fmt::Display for ParallelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParallelConfig { tp: tensor, pp: devices, cp: context, dp: data, chunks, micro_batch_size, micro, .. } =
            self;
        write!(f, "tp {tensor} · pp {devices} · cp {context} · dp {data}")?;
        if *chunks > 1 {
            write!(f, " · {chunks} chunks")?;
        }
        write!(f, " · {micro} micro-batches of {micro_batch_size} × {} tokens", self.sequence)
    }
}
