//! Time per kernel of one micro-batch, beside expected times: with `PIPESIM_TEST_LARGE`, as `tests/gpu` sets it, of GPT-2 124M in
//! bfloat16, 32 sequences of 1024 tokens; without, of a small model whose calls are counted.

use super::{child, driver};
use crate::modules::{OnGpu as _, Passes as _};
use pipesim::internals::compute::cuda::EventTimer;
use pipesim::internals::model::{Config, Parameters, StageModule};
use pipesim_gpu::{Gpu, Precision};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Groups of kernels by the beginnings of their names, each with the milliseconds per micro-batch that arithmetic expects of an H200
/// (GPT-2 124M, bfloat16, 32 sequences of 1024 tokens): bytes over 4.3 TB/s and FLOPs over the products' usual share of the peak.
const EXPECTED_MS: [(&str, &[&str], f64); 7] = [
    ("products", &["product"], 40.8),
    ("attention forward", &["attention_forward"], 2.0),
    ("attention backward", &["attention_backward"], 5.6),
    ("LayerNorm forward", &["layernorm_forward"], 0.8),
    ("LayerNorm backward", &["layernorm_backward"], 1.6),
    ("biases", &["bias", "add"], 0.2),
    ("classifier", &["classifier", "loss_mean"], 1.85),
];

/// Of all other kernels.
const REST_MS: f64 = 1.1;

/// Timed repetitions.
const TIMES: usize = 5;

/// Prints a line for each kernel and group; returns the groups' milliseconds.
fn print(times: &BTreeMap<&'static str, Vec<u64>>) -> BTreeMap<&'static str, f64> {
    println!("\nkernel times per micro-batch"); // a harness puts its own words in front of the first line
    let mut groups: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, times) in times {
        let ms = times.iter().sum::<u64>() as f64 / 1e6 / TIMES as f64;
        let calls = times.len() / TIMES;
        println!("kernel {name}: {calls} calls, {:.1} us each, {ms:.3} ms", 1e3 * ms / calls as f64);
        let of = |(_, names, _): &&(&str, &[&str], f64)| names.iter().any(|begin| name.starts_with(begin));
        *groups.entry(EXPECTED_MS.iter().find(of).map_or("rest", |(group, ..)| group)).or_default() += ms;
    }
    for (group, expected) in EXPECTED_MS.iter().map(|&(group, _, ms)| (group, ms)).chain([("rest", REST_MS)]) {
        let found = groups.get(group).copied().unwrap_or_default();
        println!("group {group}: {found:.2} ms, expected {expected:.1} ms on an H200, {:.2} times", found / expected);
    }
    groups
}

#[test]
fn every_kernel_is_timed() {
    child("times::every_kernel_is_timed", &[], || {
        let (config, sizes, precision) = match std::env::var_os("PIPESIM_TEST_LARGE").is_some() {
            true => (Config::gpt(50257, 1024, 12, 12, 768), [32, 1024, 1], Precision::Bf16),
            false => (Config::gpt(131, 32, 2, 2, 32), [2, 16, 1], Precision::F32),
        };
        let parameters = Parameters::random(&config, 7).unwrap();
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        let stage = config.spec().split(1, None).unwrap().remove(0);
        let mut module = StageModule::on_gpu(&gpu, &parameters, &[(0, stage)], sizes, precision).unwrap();
        let tokens: Vec<u32> = (0..sizes[0] * sizes[1])
            .map(|i| (i as u32).wrapping_mul(2_654_435_761) % config.vocabulary as u32)
            .collect();
        let mut marks = EventTimer::new(&gpu);
        let mut micro_batch = |module: &mut StageModule<_>| {
            marks.clear();
            module.begin(&tokens, &tokens).unwrap();
            module.forward(0, 0, None, None, &mut marks).unwrap();
            module.backward_input(0, 0, None, None, &mut marks).unwrap();
            module.backward_weight(0, 0, &mut marks).unwrap();
        };
        micro_batch(&mut module);
        module.compute().time_kernels();
        (0..TIMES).for_each(|_| micro_batch(&mut module));
        let times = module.compute().kernel_times().unwrap();
        let groups = print(&times);
        // GPT-2 has 2 norms and 4 products per block, one of each for the head
        let calls = |name: &str| times.get(name).map_or(0, Vec::len) / TIMES;
        let (blocks, norms) = (config.layers, 2 * config.layers + 1);
        let attention =
            |name: &str| times.keys().filter(|kernel| kernel.starts_with(name)).map(|name| calls(name)).sum::<usize>();
        assert_eq!((attention("attention_forward"), attention("attention_backward_keys")), (blocks, blocks));
        assert_eq!((calls("layernorm_forward"), calls("layernorm_backward_weight")), (norms, norms));
        assert_eq!((calls("layernorm_backward"), calls("layernorm_backward_input")), (norms, 0));
        // a bias whose sums cuBLASLt refuses takes a product that does nothing, and kernels of its own
        let refused = calls("bias_backward_weight");
        assert_eq!((calls("add") + refused, calls("classifier_forward")), (4 * blocks, 1));
        let products = ["product forward", "product backward for the input", "product backward for the weights"];
        // one that cuBLASLt refuses with its residual or GELU is asked for again without
        assert!(products.iter().all(|name| calls(name) > 4 * blocks), "{times:?}");
        assert_eq!(calls(products[2]), 4 * blocks + 1 + refused);
        assert!(groups.values().all(|&ms| ms > 0.0) && groups.len() == EXPECTED_MS.len() + 1, "{groups:?}");
    });
}
