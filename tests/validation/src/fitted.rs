//! The numbers of `hardware/` that were fitted to published steps. All others come from data sheets and documentation.

use crate::row::Row;

/// A fitted number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// Hardware file or software stack that contains it.
    pub scope: &'static str,
    /// Its key.
    pub field: &'static str,
    /// Start of the fit, from documents and measurements of single operations.
    pub start: f64,
    /// Relative uncertainty of the start.
    pub known: f64,
    /// Minimum and maximum.
    pub range: [f64; 2],
}

const fn fitted(scope: &'static str, field: &'static str, start: f64, range: [f64; 2]) -> Fitted {
    Fitted { scope, field, start, known: 0.1, range }
}

/// A number about which measurements of single operations say more (products on a B200), or documents little.
const fn uncertain(scope: &'static str, field: &'static str, start: f64, known: f64, range: [f64; 2]) -> Fitted {
    Fitted { scope, field, start, known, range }
}

/// Every fitted number.
pub const FITTED: &[Fitted] = &[
    fitted("gpu", "product_wave_loss", 0.2, [0.02, 1.0]),
    fitted("gpu", "product_depth", 100.0, [10.0, 1000.0]),
    fitted("gpu", "memory_efficiency", 0.7, [0.4, 1.0]),
    fitted("gpu", "network_congestion", 0.06, [0.0, 3.0]),
    fitted("a100-sxm-80gb", "product_gflops_per_watt", 600.0, [300.0, 780.0]),
    fitted("a100-sxm-80gb", "flash1_share", 0.5, [0.2, 1.0]),
    fitted("h100-sxm", "product_gflops_per_watt", 930.0, [400.0, 1400.0]),
    fitted("h100-sxm", "flash1_share", 0.3, [0.1, 1.0]),
    uncertain("b200", "product_gflops_per_watt", 1140.0, 0.03, [400.0, 2000.0]),
    uncertain("b200", "product_fp8_ratio", 2.0, 0.2, [1.0, 4.0]),
    uncertain("b200", "product_fp4_ratio", 4.0, 0.2, [2.0, 8.0]),
    uncertain("gpu", "zeros_speedup", 1.1, 0.03, [1.0, 1.5]),
    fitted("common", "data_exposed", 0.5, [0.0, 1.0]),
    fitted("common", "gather_exposed", 0.6, [0.0, 1.0]),
    fitted("common", "backward_traffic", 2.0, [1.0, 3.0]),
    fitted("common", "score_bytes", 9.0, [4.0, 20.0]),
    fitted("common", "cast_bytes", 4.0, [1.0, 12.0]),
    fitted("common", "block_cast_bytes", 6.0, [1.0, 12.0]),
    fitted("common", "exchange_us", 200.0, [0.0, 1000.0]),
    uncertain("megatron-core", "data_exposed", 0.3, 0.5, [0.0, 1.0]),
    fitted("megatron-core", "tensor_exposed", 0.135, [0.05, 1.0]),
    fitted("megatron-deepspeed", "host_layer_ms", 1.0, [0.2, 3.0]),
    fitted("megatron-deepspeed-blocking", "host_layer_ms", 4.5, [1.0, 8.0]),
];

/// Every number that is fitted to steps of mixtures of experts. Numbers of dense models stay as they are.
pub const MIXTURE_FITTED: &[Fitted] = &[
    uncertain("gpu", "dispatch_interference", 0.3, 0.3, [0.0, 1.0]),
    uncertain("common", "permute_traffic", 1.0, 0.3, [0.2, 4.0]),
    uncertain("common", "mixture_layer_ms", 2.0, 0.4, [0.1, 20.0]),
    uncertain("automodel", "mixture_layer_ms", 1.5, 0.4, [0.1, 20.0]),
    uncertain("common", "dispatch_wait_ms", 1.5, 0.5, [0.01, 20.0]),
    uncertain("common", "narrow_host", 1.2, 0.15, [1.0, 4.0]),
    uncertain("common", "graphed_host", 0.6, 0.3, [0.1, 1.0]),
    uncertain("common", "recompute_launch_ms", 0.4, 0.5, [0.01, 4.0]),
    uncertain("common", "mixture_step_ms", 100.0, 0.5, [1.0, 1000.0]),
    uncertain("common", "natural_load", 1.3, 0.08, [1.0, 4.0]),
];

/// Returns what is fitted to these rows.
pub fn fitted_to<'a>(mut rows: impl Iterator<Item = &'a Row>) -> &'static [Fitted] {
    if rows.any(|row| row.experts.is_some()) { MIXTURE_FITTED } else { FITTED }
}
