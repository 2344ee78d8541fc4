//! Training software: the efficiency of its kernels, what it overlaps, and its host overheads.

use super::machine::{Field, numbers};
use crate::layout::{Attention, ParallelConfig, Precision};

numbers! {
    /// Training software. Flags are 1 or 0.
    Stack {
        positive flash_from_tokens <= 1e12: "sequence length from which FlashAttention is the default; 1e9: never",
        positive flash_kernels <= 3.0: "FlashAttention kernels: 1 the first, in Triton; 2 FlashAttention 2; 3 the best for the chip",
        any tensor_exposed <= 1.0: "share of the time of tensor-parallel collectives that products do not hide",
        any data_exposed <= 1.0: "minimum share of the data-parallel reduction that the backward does not hide",
        any gather_exposed <= 1.0: "share of the shorter of computation and ZeRO-3's collectives that the longer one does not hide",
        any host_layer_ms <= 1e6: "host time to launch the forward of a layer, ms; its backward takes the same",
        any host_blocks <= 1.0: "1 if each launch waits for its end, so that host and GPU never work at the same time",
        any host_step_ms <= 1e6: "host overhead per step, ms",
        any recompute_stops_early <= 1.0: "1 if the recomputation of a block stops at the last tensor needed",
        any gradient_bytes <= 1e3: "bytes of a gradient as accumulated and reduced, in bf16 and below; 2 in fp16, 4 in fp32",
        any backward_traffic <= 1e3: "memory traffic of the operations between products in the backward, as a multiple of the forward's",
        any accumulation_bytes <= 1e3: "memory traffic to accumulate gradients, in bytes per parameter and micro-batch",
        any loss_bytes <= 1e3: "memory traffic of softmax and loss, in bytes per logit and direction",
        any score_bytes <= 1e3: "memory traffic of unfused attention, in bytes per score, forward",
        any score_backward_bytes <= 1e3: "the same backward",
        any cast_bytes <= 1e3: "memory traffic of a cast to 8 bits, in bytes per element of a product's input",
        any block_cast_bytes <= 1e3: "the same to 8 or 4 bits with a scale per block",
        positive bucket_mbytes <= 1e9: "bucket size of the gradient exchange, MB",
        any bucket_rank_mbytes <= 1e9: "bucket size per data-parallel rank, if that is more, MB",
        any optimizer_bytes <= 1e3: "memory traffic of the optimizer, in bytes per parameter",
        any collective_us <= 1e6: "overhead of a tensor-parallel collective on the host and for the slowest rank, µs",
        any exchange_us <= 1e6: "time a device loses to synchronization after an op whose output another device needs, µs",
        any straggler_share <= 1.0: "relative slowdown of a step per doubling of GPUs beyond a node",
        any gather_bytes <= 1e3: "bytes of a parameter as ZeRO-3 gathers it, in 16 bits and below",
        any gather_rank_us <= 1e6: "host time per rank and tensor that ZeRO-3 gathers, if it lists each rank's share, µs; 0: layers are gathered whole",
        positive weight_bytes <= 1e3: "bytes of a weight as products read it, in 16 bits and below",
        any master_bytes <= 1e3: "bytes of the additional fp32 copy of a weight, in 16 bits and below",
        any gradient_copy_bytes <= 1e3: "bytes of an additional bf16 gradient next to the reduced one",
        any logit_bytes <= 1e3: "bytes per logit that the loss saves for the backward",
        any logit_working_bytes <= 1e3: "additional bytes per logit while the loss runs",
        any dropout <= 1.0: "1 if models with LayerNorm are trained with dropout, whose masks are saved",
        any keeps_gate <= 1.0: "1 if gated activations are not fused and save their parts",
        any keeps_outputs <= 1.0: "1 if a stage keeps its output until the backward",
        any selective_products <= 1.0: "1 if selective recomputation saves the attention's and every second product's output, and recomputes the rest",
        any outputs_kept <= 1.0: "1 if every operation's output has its own memory that is never freed, as in llm.c",
        any bucket_elements <= 1e15: "maximum number of gradients that are copied into separate buckets for the reduction",
        any fragmentation <= 1.0: "memory that the framework's allocator reserves but cannot use, as a share of what it allocates",
        any context_gib <= 1e3: "memory of driver, libraries and collectives outside of the framework's allocator, GiB",
        any step_overlaps <= 1.0: "1 if the optimizer step is validated afterwards, so that successive steps overlap",
    }
}

/// Pipeline schedules that each training software implements. Megatron-LM: `megatron/core/pipeline_parallel/schedules.py`. The
/// zero-bubble fork: sail-sg/zero-bubble-pipeline-parallelism. DeepSpeed: `runtime/pipe/schedule.py`. torchtitan:
/// `torch.distributed.pipelining.schedules`. nanotron: `parallel/pipeline_parallel/engine.py`. FSDP alone and llm.c have no
/// pipeline.
const SCHEDULES: [(&str, &str); 9] = [
    ("megatron-core", "1f1b interleaved-1f1b"),
    ("megatron-lm", "1f1b interleaved-1f1b"),
    (
        "megatron-zb",
        "1f1b interleaved-1f1b zb-h1 zb-h2 zb-1p zb-2p zb-v zb-v-greedy v-half v-min v-zb 1f1b-v group-interleaved",
    ),
    ("megatron-deepspeed", "1f1b"),
    ("megatron-deepspeed-blocking", "1f1b"),
    ("fsdp", ""),
    ("torchtitan", "gpipe 1f1b interleaved-1f1b looped-bfs interleaved-zb zb-v dualpipe-v"),
    ("nanotron", "gpipe 1f1b"),
    ("llm.c", ""),
];

impl Stack {
    /// Returns the pipeline schedules that it implements; `None` if unknown.
    pub fn schedules(&self) -> Option<Vec<&'static str>> {
        let (_, schedules) = SCHEDULES.iter().find(|(name, _)| *name == self.name)?;
        Some(schedules.split_whitespace().collect())
    }

    /// Returns the bytes of a gradient as accumulated and reduced. In fp16 the loss is scaled, so gradients are accumulated in
    /// fp16 if weights have 16-bit copies.
    pub fn gradient(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp32 => 4.0,
            Precision::Fp16 if self.weight_bytes == 2.0 => 2.0,
            _ => self.gradient_bytes,
        }
    }

    /// Returns the bytes of a parameter as ZeRO-3 gathers it.
    pub fn gathered(&self, precision: Precision) -> f64 {
        if precision == Precision::Fp32 { 4.0 } else { self.gather_bytes }
    }

    /// Returns the attention kernels of a layout: its own, or the default for its sequence length.
    pub fn attention(&self, layout: &ParallelConfig) -> Attention {
        let is_long = f64::from(layout.sequence) >= self.flash_from_tokens;
        layout.attention.unwrap_or(if is_long { Attention::Flash } else { Attention::Plain })
    }
}
