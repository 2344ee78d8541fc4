//! One kind of GPU in one kind of machine.

use super::field::{Field, numbers};
use crate::layout::Precision;

numbers! {
    /// A GPU and the machine around it. Peaks are nominal and dense; what of them is reached is an efficiency.
    Hardware {
        positive bf16_tflops <= 1e6: "peak of products in bf16 and fp16, TFLOP/s, without sparsity",
        any fp32_tflops <= 1e6: "peak of products in fp32 (TF32 where the chip has it), TFLOP/s; 0: none",
        any fp8_tflops <= 1e6: "peak of products in fp8 and mxfp8, TFLOP/s; 0: the chip has none",
        any fp4_tflops <= 1e6: "peak of products in nvfp4, TFLOP/s; 0: the chip has none",
        count multiprocessors <= 1e5: "multiprocessors (AMD: compute units)",
        positive memory_gib <= 1e6: "memory, GiB",
        positive memory_gbytes_per_s <= 1e6: "bandwidth of the memory, GB/s",
        positive link_gbytes_per_s <= 1e6: "bandwidth to the other GPUs of a node (NVLink, xGMI), GB/s a GPU and direction",
        count gpus_per_node <= 1e6: "GPUs that such links connect",
        positive network_gbps_per_gpu <= 1e6: "bandwidth between nodes, Gbit/s a GPU and direction",
        positive power_watts <= 1e5: "power limit of the GPU, W",
        positive product_gflops_per_watt <= 1e6: "speed of a large product in 16 bits for each watt of that limit, GFLOP/s",
        positive product_fp32_ratio <= 100.0: "that speed in fp32, as a multiple of the one in 16 bits",
        positive product_fp8_ratio <= 100.0: "the same in fp8 and mxfp8",
        positive product_fp4_ratio <= 100.0: "the same in nvfp4",
        positive product_peak_share <= 1.0: "share of a peak that a large product reaches at most, whatever the power",
        any product_tile <= 1e9: "outputs of a product that one multiprocessor computes at a time; what does not fill all of them is lost",
        any product_wave_loss <= 1.0: "share of that loss which remains where the next product fills the gap",
        any product_depth <= 1e6: "inner length of a product at which starting and ending a tile takes as long as computing it",
        any narrow_depth <= 1e3: "how many times that length below 16 bits",
        positive unaligned_efficiency <= 1.0: "what remains where a width is no multiple of 64",
        any kernel_us <= 1e6: "what a kernel takes at least, to start and to end, µs",
        positive flash_share <= 1.0: "speed of attention in tiles by the best kernels of the chip, forward, as a share of that of a large product",
        positive flash2_share <= 1.0: "the same of FlashAttention 2",
        positive flash1_share <= 1.0: "the same of the first kernels of the kind, in Triton",
        positive flash_peak_share <= 1.0: "share of a peak that its forward reaches at most, whatever the power",
        positive flash_backward_share <= 1.0: "speed of its backward, as a share of its forward's",
        positive memory_efficiency <= 1.0: "share of the memory's bandwidth that operations between products reach",
        positive link_efficiency <= 1.0: "share of the links' bandwidth that large collectives reach",
        positive network_efficiency <= 1.0: "share of the network's bandwidth that large collectives reach",
        any network_congestion <= 10.0: "what a collective over nodes is longer by for each doubling of nodes, as a share",
        any link_latency_us <= 1e6: "latency of a collective within a node, µs",
        any network_latency_us <= 1e6: "latency from a node to the next, µs; a ring over nodes has one for each",
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

    /// FLOP/s of a large product in `precision`, which the chip has: what the power limit allows, up to a share of the peak.
    pub fn product_speed(&self, precision: Precision) -> f64 {
        self.powered(precision).min(self.peak(precision).unwrap_or_default() * self.product_peak_share)
    }

    /// FLOP/s of attention in tiles, forward, by kernels that reach `share` of a large product's speed. Attention has 16 bits where
    /// linear layers have fewer.
    pub fn flash_speed(&self, precision: Precision, share: f64) -> f64 {
        let precision = precision.between_layers();
        (self.powered(precision) * share).min(self.peak(precision).unwrap_or_default() * self.flash_peak_share)
    }

    /// FLOP/s of a large product in `precision` that the power limit allows.
    fn powered(&self, precision: Precision) -> f64 {
        let ratio = match precision {
            Precision::Bf16 | Precision::Fp16 => 1.0,
            Precision::Fp32 => self.product_fp32_ratio,
            Precision::Fp8 | Precision::Mxfp8 => self.product_fp8_ratio,
            Precision::Nvfp4 => self.product_fp4_ratio,
        };
        self.product_gflops_per_watt * self.power_watts * ratio * 1e9
    }

    /// Its memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gib * f64::from(1 << 30)) as u64
    }
}
