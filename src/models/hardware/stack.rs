//! Training software: the efficiency of its kernels, what it overlaps, and its host overheads.

use super::machine::{Field, numbers};
use crate::layout::{Attention, ParallelConfig, Precision};

numbers! {
    /// Training software: facts about its kernels, its communication and what it allocates.
    Stack [
        schedules: Option<Vec<String>> = "pipeline schedules that it implements; `None`: unknown"
        framework: Option<String> = "name of the framework whose rules and options hold; `None`: not known"
        framework_version: Option<String> = "its version; `None`: the newest"
    ] {
        // attention
        positive flash_from_tokens <= 1e12: "sequence length from which FlashAttention is the default; 1e9: never",
        word flash_kernels <= 3.0: "FlashAttention kernels: flash-1 in Triton, flash-2, or the chip's best"
            ["flash-1" = 1.0, "flash-2" = 2.0, "best" = 3.0],
        any score_bytes <= 1e3: "memory traffic of unfused attention, in bytes per score, forward",
        any score_backward_bytes <= 1e3: "the same backward",
        any score_saved_bytes <= 1e3: "bytes per score that unfused attention saves; 0: the softmax, and with dropout its mask and output",
        // operations between products
        any norm_traffic <= 1e3: "memory traffic of a norm, as a multiple of reading and writing its rows once; 9: unfused, in fp32",
        any norm_saved_bytes <= 1e3: "bytes per element that an unfused norm saves besides its input",
        any rotary_traffic <= 1e3: "memory traffic of the rotary embedding, as a multiple of reading and writing its rows once",
        flag saves_narrow <= 1.0: "below 16 bits, products save their inputs in 8 bits",
        flag keeps_gate <= 1.0: "gated activations are not fused, and save their parts",
        flag dropout <= 1.0: "models with LayerNorm are trained with dropout, whose masks are saved",
        any backward_traffic <= 1e3: "memory traffic of the operations between products in the backward, as a multiple of the forward's",
        any cast_bytes <= 1e3: "memory traffic of a cast to 8 bits, in bytes per element of a product's input",
        any block_cast_bytes <= 1e3: "the same to 8 or 4 bits with a scale per block",
        // logits and loss
        word logits <= 1.0: "what a tensor-parallel rank has of the logits: its share of the vocabulary, or all of them, gathered"
            ["vocabulary-parallel" = 0.0, "whole" = 1.0],
        any logit_bytes <= 1e3: "bytes per logit that the loss saves for the backward: 2 per copy in 16 bits, 4 in fp32",
        any logit_working_bytes <= 1e3: "additional bytes per logit while the loss runs",
        any loss_bytes <= 1e3: "memory traffic of softmax and loss, in bytes per logit and direction",
        // tensor parallelism
        any tensor_exposed <= 1.0: "share of the time of tensor-parallel collectives that products do not hide; 1: not overlapped",
        any mixture_tensor_exposed <= 1.0: "the same of models with experts",
        any collective_us <= 1e6: "overhead of a tensor-parallel collective on the host and for the slowest rank, µs",
        flag gathers_narrow <= 1.0: "below 16 bits, ranks cast before they gather: the inputs of products with sequence parallelism, and ZeRO-3's weights, are gathered in 8 bits",
        flag keeps_gathered <= 1.0: "with sequence parallelism, the gathered input of a product is saved instead of gathered again",
        // data parallelism
        any gradient_bytes <= 1e3: "bytes of a gradient as accumulated, in bf16 and below; 2 in fp16, 4 in fp32",
        any reduced_bytes <= 1e3: "bytes of a gradient as reduced; 0: as accumulated",
        any gradient_copy_bytes <= 1e3: "bytes of an additional bf16 gradient next to the reduced one",
        any accumulation_bytes <= 1e3: "memory traffic to accumulate gradients, in bytes per parameter and micro-batch",
        any data_exposed <= 1.0: "minimum share of the data-parallel reduction that the backward does not hide; 1: reduced after it",
        flag overlaps_chunks <= 1.0: "gradients of a chunk are exchanged during the backwards of the chunks after it",
        positive bucket_mbytes <= 1e9: "bucket size of the gradient exchange, MB",
        any bucket_rank_mbytes <= 1e9: "bucket size per data-parallel rank, if that is more, MB",
        any bucket_elements <= 1e15: "maximum number of gradients that are copied into separate buckets for the reduction",
        any gather_exposed <= 1.0: "how much longer computation lasts next to ZeRO-3's collectives, as a share of the time in which a GPU's own links would move the same data; 1: not overlapped",
        any gather_bytes <= 1e3: "bytes of a parameter as ZeRO-3 gathers it, in 16 bits and below",
        any gather_rank_us <= 1e6: "host time per rank and tensor that ZeRO-3 gathers, if it lists each rank's share, µs; 0: layers are gathered whole",
        flag keeps_unsharded <= 1.0: "with ZeRO-3, weights are gathered in a step's first forward and gradients reduced in its last backward; a rank holds both whole in between",
        // parameters and optimizer
        positive weight_bytes <= 1e3: "bytes of a weight as products read it, in 16 bits and below",
        any master_bytes <= 1e3: "bytes of the additional fp32 copy of a weight, in 16 bits and below",
        any moment_bytes <= 1e3: "bytes of AdamW's two moments of a parameter, in 16 bits and below",
        any optimizer_bytes <= 1e3: "memory traffic of the optimizer, in bytes per parameter",
        any host_update_ns <= 1e6: "time in which the host of a GPU updates a parameter whose optimizer states are in its memory, ns",
        flag keeps_offloaded_master <= 1.0: "the fp32 copy of a weight stays on the GPU if the optimizer's other states are in the host's memory",
        flag step_overlaps <= 1.0: "the optimizer step is validated afterwards, so that successive steps overlap",
        // recomputation
        flag recompute_stops_early <= 1.0: "the recomputation of a block stops at the last tensor needed",
        flag splits_graph <= 1.0: "a split backward is autograd's: from I until W all that F saved stays, and W recomputes a layer once for each of its modules with weights",
        flag selective_products <= 1.0: "selective recomputation saves the attention's and every second product's output, and recomputes the rest",
        // host and pipeline
        any host_layer_ms <= 1e6: "host time to launch the forward of a layer, ms; its backward takes the same",
        flag host_blocks <= 1.0: "each launch waits for its end, so that host and GPU never work at the same time",
        any host_step_ms <= 1e6: "host overhead per step, ms",
        any exchange_us <= 1e6: "time a device loses to synchronization after an op whose output another device needs, µs",
        flag overlaps_exchanges <= 1.0: "with several stages per device, it loses none",
        count hardware_queues <= 1e4: "hardware queues that the streams of a GPU share (CUDA_DEVICE_MAX_CONNECTIONS); 1: kernels start in the order of their launches, so that less exchange of experts is hidden",
        any straggler_share <= 1.0: "relative slowdown of a step per doubling of GPUs beyond a node",
        // mixtures of experts
        word expert_shares <= 1.0: "default of `etp`: experts are whole on their rank, or tensor-parallel ranks share them as they share other layers"
            ["whole" = 0.0, "tensor-parallel" = 1.0],
        any mixture_layer_ms <= 1e6: "host time to launch the forward of a layer with experts, ms; its backward takes the same",
        any dispatch_wait_ms <= 1e6: "host time that all-to-all and DeepEP add to a forward, which waits for the number of rows per expert, ms; another micro-batch next to it hides this",
        any narrow_host <= 1e3: "multiple of that time below 16 bits, where casts are launched, too",
        any graphed_host <= 1.0: "share of that time that is left if attention and router are CUDA graphs",
        any recompute_launch_ms <= 1e6: "host time to launch an operation of a recomputed part of a layer again, ms",
        any mixture_step_ms <= 1e6: "additional host overhead per step of a model with experts, ms",
        any router_bytes <= 1e6: "memory traffic of a router, in bytes per token, expert and direction",
        any permute_traffic <= 1e3: "memory traffic of permuting copies of rows for their experts, as a multiple of their bytes",
        positive natural_load <= 1e3: "rows of the busiest GPU with natural routing, as a multiple of the mean",
        // memory
        flag keeps_outputs <= 1.0: "a stage keeps its output until the backward",
        flag outputs_kept <= 1.0: "every operation's output has its own memory that is never freed, as in llm.c",
        any fragmentation <= 1.0: "memory that the framework's allocator reserves but cannot use, as a share of what it allocates",
        any replica_fragmentation <= 1.0: "the same, in addition, if replicas exchange gradients",
        any activation_fragmentation <= 1.0: "the same, in addition, as a share of the activations of other micro-batches than the running op's",
        any working_fragmentation <= 1.0: "the same, in addition, as a share of the running op's working memory",
        any context_gib <= 1e3: "memory of driver, libraries and collectives outside of the framework's allocator, GiB",
    }
}

impl Stack {
    /// Returns the pipeline schedules that it implements; `None` if unknown.
    pub fn schedules(&self) -> Option<Vec<&str>> {
        Some(self.schedules.as_ref()?.iter().map(String::as_str).collect())
    }

    /// Returns the bytes of a gradient as accumulated. In fp16 the loss is scaled, so gradients are accumulated in
    /// fp16 if weights have 16-bit copies.
    pub fn gradient(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp32 => 4.0,
            Precision::Fp16 if self.weight_bytes == 2.0 => 2.0,
            _ => self.gradient_bytes,
        }
    }

    /// Returns the bytes of a gradient as data-parallel ranks reduce it.
    pub fn reduced(&self, precision: Precision) -> f64 {
        if self.reduced_bytes > 0.0 { self.reduced_bytes } else { self.gradient(precision) }
    }

    /// Returns the share of the time of tensor-parallel collectives that is not hidden, in models with experts or without.
    pub fn exposed_of_tensor(&self, has_experts: bool) -> f64 {
        if has_experts { self.mixture_tensor_exposed } else { self.tensor_exposed }
    }

    /// Returns whether all streams of a GPU share one hardware queue.
    pub fn has_one_queue(&self) -> bool {
        self.hardware_queues <= 1.0
    }

    /// Returns the default expert-tensor-parallel degree with `tp` tensor-parallel ranks.
    pub fn default_etp(&self, tp: u32) -> u32 {
        if self.expert_shares > 0.0 { tp } else { 1 }
    }

    /// Returns whether every tensor-parallel rank has all logits.
    pub fn has_whole_logits(&self) -> bool {
        self.logits > 0.0
    }

    /// Returns the bytes of a parameter as ZeRO-3 gathers it.
    pub fn gathered(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp32 => 4.0,
            _ if precision.is_narrow() && self.gathers_narrow > 0.0 => 1.0,
            _ => self.gather_bytes,
        }
    }

    /// Returns the attention kernels of a layout: its own, or the default for its sequence length.
    pub fn attention(&self, layout: &ParallelConfig) -> Attention {
        let is_long = f64::from(layout.sequence) >= self.flash_from_tokens;
        layout.attention.unwrap_or(if is_long { Attention::Flash } else { Attention::Plain })
    }
}
