//! A GPU model and the node around it.

use super::slow_link::SlowLink;
use crate::layout::Precision;
use std::collections::BTreeMap;

/// Description of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Key in files.
    pub name: &'static str,
    /// Description, with unit.
    pub what: &'static str,
    /// Whether 0 is in range.
    pub may_be_zero: bool,
    /// Whether it is a whole number.
    pub is_count: bool,
    /// Maximum: 1 for shares, otherwise more than any machine has.
    pub most: f64,
    /// Words that files write instead of numbers, with their numbers; empty: any number in range.
    pub words: &'static [(&'static str, f64)],
}

/// Declares a struct of numbers that are read, written and listed by name. `positive` ones are above 0, `any` may be 0, a `count`
/// is whole, a `flag` is true or false, and a `word` is one of a list; each has a maximum.
macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident $([$($extra:ident: $extra_type:ty = $extra_what:literal)+])? {
        $($bound:ident $field:ident <= $most:literal: $what:literal $([$($word:literal = $number:literal),+])?,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $type {
            /// Name, as options take it.
            pub name: String,
            $($(#[doc = $extra_what] pub $extra: $extra_type,)+)?
            $(#[doc = $what] pub $field: f64,)+
        }

        impl $type {
            /// Descriptions of all numbers, in the order of files.
            pub const FIELDS: &[Field] = &[
                $(Field {
                    name: stringify!($field),
                    what: $what,
                    may_be_zero: numbers!(@zero $bound),
                    is_count: numbers!(@count $bound),
                    most: $most,
                    words: numbers!(@words $bound $([$($word = $number),+])?),
                },)+
            ];

            pub(super) fn from_fields<E>(name: &str, read: impl Fn(&'static str) -> Result<f64, E>) -> Result<$type, E> {
                Ok($type {
                    name: name.to_string(),
                    $($($extra: Default::default(),)+)?
                    $($field: read(stringify!($field))?,)+
                })
            }

            /// Returns the number with this name.
            pub fn field_mut(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)+
                    _ => None,
                }
            }
        }
    };
    (@zero any) => { true };
    (@zero flag) => { true };
    (@zero word) => { true };
    (@zero $bound:ident) => { false };
    (@count count) => { true };
    (@count $bound:ident) => { false };
    (@words flag) => { &[("false", 0.0), ("true", 1.0)] };
    (@words word [$($word:literal = $number:literal),+]) => { &[$(($word, $number)),+] };
    (@words $bound:ident) => { &[] };
}
pub(super) use numbers;

numbers! {
    /// A GPU and the node around it. Peaks are nominal and dense; the achieved part of a peak is an efficiency.
    Hardware [
        chip: String = "name of the first file among its bases that describes a GPU, and not only the node around it"
        devices: BTreeMap<u32, Hardware> = "GPUs of pipeline devices that differ"
        device_count: u32 = "number of pipeline devices whose GPUs are named; 0: all are alike, whatever their number"
        slow_links: Vec<SlowLink> = "links between two pipeline devices that have less bandwidth"
    ] {
        positive bf16_tflops <= 1e6: "peak of products in bf16 and fp16, TFLOP/s, without sparsity",
        any fp32_tflops <= 1e6: "peak of products in fp32 (TF32 where the chip has it), TFLOP/s; 0: none",
        any fp8_tflops <= 1e6: "peak of products in fp8 and mxfp8, TFLOP/s; 0: the chip has none",
        any fp4_tflops <= 1e6: "peak of products in nvfp4, TFLOP/s; 0: the chip has none",
        count multiprocessors <= 1e5: "multiprocessors (AMD: compute units)",
        positive memory_gib <= 1e6: "memory, GiB",
        positive memory_gbytes_per_s <= 1e6: "bandwidth of the memory, GB/s",
        positive link_gbytes_per_s <= 1e6: "bandwidth to the other GPUs of a node (NVLink, xGMI), GB/s per GPU and direction",
        count gpus_per_node <= 1e6: "GPUs per node, connected by such links",
        positive network_gbps_per_gpu <= 1e6: "bandwidth between nodes, Gbit/s per GPU and direction",
        any host_gbytes_per_s <= 1e6: "bandwidth of a link to the host's memory, GB/s per direction; 0: unknown",
        positive host_efficiency <= 1.0: "share of it that large copies reach",
        count gpus_per_host_link <= 1e6: "GPUs that share such a link",
        positive power_watts <= 1e5: "power limit of the GPU, W",
        positive product_gflops_per_watt <= 1e6: "speed of a large 16-bit product per watt of that limit, GFLOP/s",
        positive product_fp32_ratio <= 100.0: "speed in fp32, as a multiple of the 16-bit speed",
        positive product_fp8_ratio <= 100.0: "the same in fp8 and mxfp8",
        positive product_fp4_ratio <= 100.0: "the same in nvfp4",
        positive zeros_speedup <= 10.0: "speed of a product with an operand of mostly zeros (squared ReLU), which needs less power, as a multiple",
        positive product_peak_share <= 1.0: "maximum share of a peak that a large product reaches, at any power",
        any product_tile <= 1e9: "outputs of a product that one multiprocessor computes at a time; a partial wave wastes the rest",
        any product_wave_loss <= 1.0: "share of that waste that the next product does not fill",
        any product_depth <= 1e6: "inner length of a product at which starting and ending a tile takes as long as computing it",
        any product_rows <= 1e6: "rows of a product at which fetching the other operand takes as long as computing",
        any narrow_depth <= 1e3: "multiple of that length below 16 bits",
        positive unaligned_efficiency <= 1.0: "relative speed if a width is not a multiple of 64",
        any kernel_us <= 1e6: "minimum time of a kernel, µs",
        positive flash_share <= 1.0: "forward speed of the chip's best FlashAttention kernels, as a share of a large product's",
        positive flash2_share <= 1.0: "the same for FlashAttention 2",
        positive flash1_share <= 1.0: "the same for the first such kernels, in Triton",
        positive flash_peak_share <= 1.0: "maximum share of a peak that the FlashAttention forward reaches, at any power",
        positive flash_backward_share <= 1.0: "speed of the FlashAttention backward, as a share of its forward's",
        positive memory_efficiency <= 1.0: "share of the memory bandwidth that memory-bound operations reach",
        positive operation_share <= 10.0: "speed of operations with arithmetic between products, as a multiple of plain memory traffic's",
        positive link_efficiency <= 1.0: "share of the link bandwidth that large collectives reach",
        positive network_efficiency <= 1.0: "share of the network bandwidth that large collectives reach",
        any network_congestion <= 10.0: "relative slowdown of a collective per doubling of nodes",
        any link_latency_us <= 1e6: "latency of a collective within a node, µs",
        any reduce_latency_us <= 1e6: "latency of an all-reduce within a node, µs; 0, with reduce_gbytes_per_s: as of a ring over the links",
        any reduce_gbytes_per_s <= 1e6: "bandwidth of an all-reduce of activations within a node, GB/s, of a ring's traffic; 0: the links'",
        any exchange_gbytes_per_s <= 1e6: "the same of gradients, which are exchanged as a whole; 0: the links'",
        any network_latency_us <= 1e6: "latency between nodes, µs; a ring has one per node",
        positive dispatch_link_efficiency <= 1.0: "share of the link bandwidth that experts' dispatch and combine reach",
        positive dispatch_network_efficiency <= 1.0: "share of the network bandwidth that these reach with DeepEP and HybridEP",
        any dispatch_network_us <= 1e6: "latency of dispatch or combine with these over the network, µs",
        positive alltoall_network_efficiency <= 1.0: "the same with all-to-all",
        any dispatch_interference <= 1.0: "share of the time of hidden dispatch and combine that products are slowed down by",
        positive grouped_efficiency <= 1.0: "speed of experts' products, as a share of one product of the same size",
        any dollars_per_gpu_hour <= 1e6: "price of a GPU, $ per hour; 0: unknown",
    }
}

impl Hardware {
    /// Returns the peak in FLOP/s of linear layers in `precision`; `None` if the chip does not support it.
    pub fn peak(&self, precision: Precision) -> Option<f64> {
        let tflops = match precision {
            Precision::Bf16 | Precision::Fp16 => self.bf16_tflops,
            Precision::Fp32 => self.fp32_tflops,
            Precision::Fp8 | Precision::Mxfp8 => self.fp8_tflops,
            Precision::Nvfp4 => self.fp4_tflops,
        };
        (tflops > 0.0).then_some(tflops * 1e12)
    }

    /// Returns the FLOP/s of a large product in a supported `precision`: what the power limit allows, up to a share of the peak.
    pub fn product_speed(&self, precision: Precision) -> f64 {
        self.powered(precision).min(self.peak(precision).unwrap_or_default() * self.product_peak_share)
    }

    /// Returns the FLOP/s of FlashAttention's forward, by kernels that reach `share` of a large product's speed. Attention is in
    /// 16 bits if linear layers have fewer.
    pub fn flash_speed(&self, precision: Precision, share: f64) -> f64 {
        let precision = precision.between_layers();
        (self.powered(precision) * share).min(self.peak(precision).unwrap_or_default() * self.flash_peak_share)
    }

    /// Returns the FLOP/s of a large product in `precision` that the power limit allows.
    fn powered(&self, precision: Precision) -> f64 {
        let ratio = match precision {
            Precision::Bf16 | Precision::Fp16 => 1.0,
            Precision::Fp32 => self.product_fp32_ratio,
            Precision::Fp8 | Precision::Mxfp8 => self.product_fp8_ratio,
            Precision::Nvfp4 => self.product_fp4_ratio,
        };
        self.product_gflops_per_watt * self.power_watts * ratio * 1e9
    }

    /// Returns the memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gib * f64::from(1 << 30)) as u64
    }
}
