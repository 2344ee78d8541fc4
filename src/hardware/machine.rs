//! One kind of GPU in one kind of machine.

use super::field::{Field, numbers};
use crate::layout::Precision;

numbers! {
    /// A GPU and the machine around it. Peaks are nominal and dense; what of them is reached is an efficiency.
    Hardware {
        positive bf16_tflops: "peak of products in bf16 and fp16, TFLOP/s, without sparsity",
        any fp32_tflops: "peak of products in fp32 (TF32 where the chip has it), TFLOP/s; 0: none",
        any fp8_tflops: "peak of products in fp8 and mxfp8, TFLOP/s; 0: the chip has none",
        any fp4_tflops: "peak of products in nvfp4, TFLOP/s; 0: the chip has none",
        count multiprocessors: "multiprocessors (AMD: compute units)",
        positive memory_gib: "memory, GiB",
        positive memory_gbytes_per_s: "bandwidth of the memory, GB/s",
        positive link_gbytes_per_s: "bandwidth to the other GPUs of a node (NVLink, xGMI), GB/s a GPU and direction",
        count gpus_per_node: "GPUs that such links connect",
        positive network_gbps_per_gpu: "bandwidth between nodes, Gbit/s a GPU and direction",
        positive power_watts: "power limit of the GPU, W",
        positive product_gflops_per_watt: "speed of a large product in 16 bits for each watt of that limit, GFLOP/s; fewer bits are as much faster as peaks are",
        any product_tile: "outputs of a product that one multiprocessor computes at a time; what does not fill all of them is lost",
        any product_wave_loss: "share of that loss which remains where the next product fills the gap",
        any product_depth: "inner length of a product at which starting and ending a tile takes as long as computing it",
        any narrow_depth: "how many times that length below 16 bits",
        positive unaligned_efficiency: "what remains where a width is no multiple of 64",
        any kernel_us: "what a kernel takes at least, to start and to end, µs",
        positive flash_share: "speed of attention in tiles by the best kernels of the chip, forward, as a share of that of a large product",
        positive flash2_share: "the same of FlashAttention 2",
        positive flash1_share: "the same of the first kernels of the kind, in Triton",
        positive flash_backward_share: "speed of its backward, as a share of its forward's",
        positive memory_efficiency: "share of the memory's bandwidth that operations between products reach",
        positive link_efficiency: "share of the links' bandwidth that large collectives reach",
        positive network_efficiency: "share of the network's bandwidth that large collectives reach",
        any network_congestion: "what a collective over nodes is longer by for each doubling of nodes, as a share",
        any link_latency_us: "latency of a collective within a node, µs",
        any network_latency_us: "latency from a node to the next, µs; a ring over nodes has one for each",
    }
}

impl Hardware {
    /// Its peak in FLOP/s for linear layers in `precision`; none where the chip cannot.
    pub fn peak(&self, precision: Precision) -> Option<f64> {
        let tflops = match precision {
            Precision::Bf16 | Precision::Fp16 => self.bf16_tflops,
            Precision::Fp32 => self.fp32_tflops,
            Precision::Fp8 | Precision::Mxfp8 => self.fp8_tflops,
            Precision::Nvfp4 => self.fp4_tflops,
        };
        (tflops > 0.0).then_some(tflops * 1e12)
    }

    /// FLOP/s of a large product in 16 bits.
    pub fn product_speed(&self) -> f64 {
        self.product_gflops_per_watt * self.power_watts * 1e9
    }

    /// Its memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gib * f64::from(1 << 30)) as u64
    }
}
