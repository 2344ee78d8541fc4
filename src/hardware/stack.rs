//! The training software: what its kernels reach, what it hides, what its host costs.

use super::field::{Field, numbers};
use crate::layout::{Attention, Precision};

numbers! {
    /// Training software. What is a yes or no is 1 or 0.
    Stack {
        positive flash_from_tokens <= 1e12: "length from which attention is computed in tiles where nothing is said of it; 1e9: never",
        positive flash_kernels <= 3.0: "its attention in tiles: 1 the first kernels, in Triton; 2 FlashAttention 2; 3 the best of the chip",
        any tensor_exposed <= 1.0: "share of the time of tensor-parallel collectives that is not hidden behind products",
        any data_exposed <= 1.0: "share of the data-parallel reduction that is not hidden even where the backward would have room",
        any gather_exposed <= 1.0: "share of the shorter of computation and ZeRO-3's collectives that the longer does not hide",
        any host_layer_ms <= 1e6: "what the host takes to launch a layer's forward, ms; its backward takes as long",
        any host_blocks <= 1.0: "1 where each launch waits for its end, so that host and GPU never work at a time",
        any host_step_ms <= 1e6: "what a step costs on the host besides, ms",
        any recompute_stops_early <= 1.0: "1 where recomputing a block stops at the last tensor that is needed",
        any gradient_bytes <= 1e3: "bytes of a gradient as it is accumulated and reduced, in bf16 and below; 2 in fp16, 4 in fp32",
        any backward_traffic <= 1e3: "bytes that the operations between products move backward, times those forward",
        any accumulation_bytes <= 1e3: "bytes moved a parameter and micro-batch to add up gradients",
        any loss_bytes <= 1e3: "bytes moved a logit for softmax and loss, each way",
        any score_bytes <= 1e3: "bytes moved an attention score that is a tensor of its own, forward",
        any score_backward_bytes <= 1e3: "the same backward",
        any cast_bytes <= 1e3: "bytes moved an element of a product's input to bring it to 8 bits",
        any block_cast_bytes <= 1e3: "the same to 8 or 4 bits with a scale a block",
        positive bucket_mbytes <= 1e9: "size of the pieces in which gradients are exchanged, MB",
        any bucket_rank_mbytes <= 1e9: "the same for each rank that exchanges, where that is more, MB",
        any optimizer_bytes <= 1e3: "bytes moved a parameter by the optimizer",
        any collective_us <= 1e6: "what a tensor-parallel collective takes besides, on the host and for the slowest rank, µs",
        any exchange_us <= 1e6: "what a device loses after an op whose output another one waits for: it synchronises and launches anew, µs",
        any straggler_share <= 1.0: "what a step is longer by for each doubling of GPUs beyond a node",
        any gather_bytes <= 1e3: "bytes of a parameter as ZeRO-3 gathers it, in 16 bits and below",
        any gather_rank_us <= 1e6: "what the host takes for each rank's share of a tensor that ZeRO-3 gathers, where it lists them, µs; 0: a layer is gathered as one",
        positive weight_bytes <= 1e3: "bytes of a weight as products read it, or of the only copy where there is one, in 16 bits and below",
        any master_bytes <= 1e3: "bytes of a weight's copy in fp32, where it is one besides, in 16 bits and below",
        any gradient_copy_bytes <= 1e3: "bytes of a gradient in bf16 besides the one that is reduced",
        any logit_bytes <= 1e3: "bytes that the loss keeps of a logit until the backward",
        any logit_working_bytes <= 1e3: "bytes of a logit that the loss needs besides while it runs",
        any dropout <= 1.0: "1 where models with LayerNorm are trained with dropout, whose masks are kept",
        any keeps_gate <= 1.0: "1 where a gated activation is not one kernel and keeps its parts",
        any keeps_outputs <= 1.0: "1 where a stage keeps what it sent until the backward",
        any selective_products <= 1.0: "1 where selective recompute keeps the attention's and every second product's outputs, and computes all else again",
        any outputs_kept <= 1.0: "1 where every operation's output has memory of its own and nothing is freed, as in llm.c",
        any bucket_elements <= 1e15: "gradients that are flattened into buckets of their own to be reduced, at most so many at a time",
        any fragmentation <= 1.0: "memory that the framework's allocator has but cannot hand out, as a share of what it has",
        any context_gib <= 1e3: "memory that the driver, libraries and collectives take outside of the framework's allocator, GiB",
        any step_overlaps <= 1.0: "1 where the optimizer's step is validated afterwards, so that successive steps overlap",
    }
}

/// The pipeline schedules that training software implements, by stack; of a stack that is not listed nothing is known.
/// Megatron-LM: `megatron/core/pipeline_parallel/schedules.py`. The zero-bubble fork: sail-sg/zero-bubble-pipeline-parallelism.
/// DeepSpeed: `runtime/pipe/schedule.py`. torchtitan: `torch.distributed.pipelining.schedules`. nanotron:
/// `parallel/pipeline_parallel/engine.py`. FSDP alone and llm.c have no pipeline.
const SCHEDULES: [(&str, &[&str]); 9] = [
    ("megatron-core", &["1f1b", "interleaved-1f1b"]),
    ("megatron-lm", &["1f1b", "interleaved-1f1b"]),
    (
        "megatron-zb",
        &[
            "1f1b",
            "interleaved-1f1b",
            "zb-h1",
            "zb-h2",
            "zb-1p",
            "zb-2p",
            "zb-v",
            "zb-v-greedy",
            "v-half",
            "v-min",
            "v-zb",
            "1f1b-v",
            "group-interleaved",
        ],
    ),
    ("megatron-deepspeed", &["1f1b"]),
    ("megatron-deepspeed-blocking", &["1f1b"]),
    ("fsdp", &[]),
    ("torchtitan", &["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "dualpipe-v"]),
    ("nanotron", &["gpipe", "1f1b"]),
    ("llm.c", &[]),
];

impl Stack {
    /// The pipeline schedules that it implements; `None` where that is not known.
    pub fn schedules(&self) -> Option<&'static [&'static str]> {
        SCHEDULES.iter().find(|(name, _)| *name == self.name).map(|(_, schedules)| *schedules)
    }

    /// Bytes of a gradient as it is accumulated and reduced, in `precision`. In fp16 losses are scaled so that gradients may be added
    /// up there, where weights have copies in 16 bits at all.
    pub fn gradient(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp32 => 4.0,
            Precision::Fp16 if self.weight_bytes == 2.0 => 2.0,
            _ => self.gradient_bytes,
        }
    }

    /// Bytes of a parameter as ZeRO-3 gathers it, in `precision`.
    pub fn gathered(&self, precision: Precision) -> f64 {
        if precision == Precision::Fp32 { 4.0 } else { self.gather_bytes }
    }

    /// How it computes attention over `tokens` where nothing is said of it.
    pub fn attention(&self, tokens: u32) -> Attention {
        if f64::from(tokens) >= self.flash_from_tokens { Attention::Flash } else { Attention::Plain }
    }
}
