//! The changes that are tried: what could make a step slower, or faster, than predicted.

use super::change::{Asked, Change, Numbers};
use pipesim_answer::question::Question;
use pipesim_models::layout::{Attention, CudaGraph, Dispatcher, Precision, Recompute, Routing};

/// A change with the name of its texts in `candidates.toml`.
pub type Named = (&'static str, Change);

/// A number that is changed as far as the measured time says, from its own value to a limit.
pub struct Solved {
    /// Name of the texts.
    pub name: &'static str,
    /// The change at a factor between 1 and `most`.
    pub at: fn(&Asked<'_>, f64) -> Change,
    /// Largest factor.
    pub most: f64,
    /// The factor that is half as likely as 1.
    pub usual: f64,
    /// Whether `usual` is a factor of the step's time rather than of the number.
    pub of_step: bool,
}

fn question(asked: &Asked<'_>, change: impl FnOnce(&mut Question)) -> Change {
    let mut question = asked.question.clone();
    change(&mut question);
    Change::Question(Box::new(question))
}

/// Returns the changes of settings that may make the step slower.
fn slower_settings(asked: &Asked<'_>) -> Vec<Named> {
    let (now, layout, attention) = (asked.question, &asked.analytic.layout, asked.analytic.attention());
    let has_experts = asked.analytic.model.experts.is_some();
    let recompute = |recompute| question(asked, |q| q.recompute = recompute);
    let is_split = now.layout.is_some() || !now.layers.is_empty();
    let all = [
        (now.recompute < Recompute::Full, "recompute-full", recompute(Recompute::Full)),
        (now.recompute == Recompute::None, "recompute-selective", recompute(Recompute::Selective)),
        (attention == Attention::Flash, "attention", question(asked, |q| q.attention = Some(Attention::Plain))),
        (now.precision.is_narrow(), "precision", question(asked, |q| q.precision = Precision::Bf16)),
        (layout.tp > 1 && now.sequence_parallel, "sequence-parallel", question(asked, |q| q.sequence_parallel = false)),
        (asked.name.starts_with("interleaved") && now.layout.is_none(), "schedule", question(asked, not_interleaved)),
        (is_split && layout.chunks == 1, "split", question(asked, |q| (q.layout, q.layers) = (None, Vec::new()))),
        (
            layout.micro_batch_size.is_multiple_of(2) && now.batch.is_some(),
            "micro-batch-halved",
            question(asked, |q| resize(q, layout.micro_batch_size / 2)),
        ),
        (
            has_experts && now.dispatcher != Dispatcher::AllToAll,
            "dispatcher",
            question(asked, |q| q.dispatcher = Dispatcher::AllToAll),
        ),
        (has_experts && now.routing != Routing::Natural, "routing", question(asked, |q| q.routing = Routing::Natural)),
        (now.moe_overlap, "expert-overlap", question(asked, |q| (q.moe_overlap, q.delay_wgrad) = (false, false))),
        (now.cuda_graph != CudaGraph::None, "cuda-graph", question(asked, |q| q.cuda_graph = CudaGraph::None)),
    ];
    all.into_iter().filter(|(applies, ..)| *applies).map(|(_, name, change)| (name, change)).collect()
}

fn not_interleaved(question: &mut Question) {
    question.schedule = vec!["1f1b".to_string()];
    (question.chunks, question.set, question.layers) = (None, Vec::new(), Vec::new());
}

fn resize(question: &mut Question, size: u32) {
    question.micro_batch_size = vec![size];
    question.micro.clear();
}

/// Returns the changes that may make the step slower.
pub fn slower(asked: &Asked<'_>) -> Vec<Named> {
    let (layout, machine) = (&asked.analytic.layout, &asked.analytic.machine);
    let mut all = slower_settings(asked);
    if layout.dp > 1 && (machine.stack.data_exposed < 1.0 || machine.stack.overlaps_chunks > 0.0) {
        all.push(("data-overlap", Change::Stack(vec![("data_exposed", 1.0), ("overlaps_chunks", 0.0)])));
    }
    let has_experts = asked.analytic.model.experts.is_some();
    let key = if has_experts { "mixture_tensor_exposed" } else { "tensor_exposed" };
    if layout.tp > 1 && machine.stack.exposed_of_tensor(has_experts) < 1.0 {
        all.push(("tensor-overlap", Change::Stack(vec![(key, 1.0)])));
    }
    let half = f64::from(layout.tp / 2).min(machine.hardware.gpus_per_node / 2.0).floor();
    if half >= 1.0 {
        all.push(("nodes", Change::Hardware(vec![("gpus_per_node", half)])));
    }
    let slow = machine.hardware.host_gbytes_per_s / 2.0;
    if slow > 0.0 && slow < machine.hardware.link_gbytes_per_s {
        all.push(("links", Change::Hardware(vec![("link_gbytes_per_s", slow)])));
    }
    all
}

/// Returns the changes that may make the step faster.
pub fn faster(asked: &Asked<'_>) -> Vec<Named> {
    let (now, layout, hardware) = (asked.question, &asked.analytic.layout, &asked.analytic.machine.hardware);
    let batch = now.batch.filter(|batch| batch.is_multiple_of(2));
    let all = [
        (now.recompute != Recompute::None, "recompute-none", question(asked, |q| q.recompute = Recompute::None)),
        (
            asked.analytic.attention() == Attention::Plain,
            "fused",
            question(asked, |q| q.attention = Some(Attention::Flash)),
        ),
        (
            !now.precision.is_narrow() && hardware.fp8_tflops > 0.0,
            "narrow",
            question(asked, |q| q.precision = Precision::Fp8),
        ),
        (now.seq.is_multiple_of(2), "half-sequence", question(asked, |q| q.seq /= 2)),
        (batch.is_some(), "half-batch", question(asked, |q| q.batch = batch.map(|batch| batch / 2))),
        (
            layout.micro.is_multiple_of(2) && batch.is_some(),
            "double-micro-batch",
            question(asked, |q| resize(q, 2 * layout.micro_batch_size)),
        ),
    ];
    all.into_iter().filter(|(applies, ..)| *applies).map(|(_, name, change)| (name, change)).collect()
}

/// Numbers that are changed as far as a slower step says.
pub const SOLVED: [Solved; 4] = [
    Solved { name: "power", at: power, most: 10.0, usual: 1.2, of_step: false },
    Solved { name: "network", at: network, most: 50.0, usual: 4.0, of_step: false },
    Solved { name: "host", at: launches, most: 100.0, usual: 4.0, of_step: false },
    Solved { name: "outside", at: outside, most: 1e4, usual: 1.2, of_step: true },
];

/// Rounds to four digits, so that the printed number is the predicted one.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Returns numbers of a table, each divided or multiplied.
fn scaled(numbers: &[(&'static str, f64)], factor: f64) -> Numbers {
    numbers.iter().filter(|(_, value)| *value > 0.0).map(|&(key, value)| (key, rounded(value * factor))).collect()
}

fn power(asked: &Asked<'_>, factor: f64) -> Change {
    let hardware = &asked.analytic.machine.hardware;
    let all = [
        ("bf16_tflops", hardware.bf16_tflops),
        ("fp8_tflops", hardware.fp8_tflops),
        ("fp4_tflops", hardware.fp4_tflops),
        ("power_watts", hardware.power_watts),
    ];
    Change::Hardware(scaled(&all, 1.0 / factor))
}

fn network(asked: &Asked<'_>, factor: f64) -> Change {
    let own = asked.analytic.machine.hardware.network_gbps_per_gpu;
    Change::Hardware(scaled(&[("network_gbps_per_gpu", own)], 1.0 / factor))
}

fn launches(asked: &Asked<'_>, factor: f64) -> Change {
    let stack = &asked.analytic.machine.stack;
    let all = [("host_layer_ms", stack.host_layer_ms), ("mixture_layer_ms", stack.mixture_layer_ms)];
    Change::Stack(scaled(&all, factor))
}

/// Adds a thousandth of a second for each unit of the factor above 1, times 10.
fn outside(asked: &Asked<'_>, factor: f64) -> Change {
    let own = asked.analytic.machine.stack.host_step_ms;
    Change::Stack(vec![("host_step_ms", rounded(own + 10.0 * (factor - 1.0)))])
}
