//! Models on hardware under schedules beyond whole micro-batches: slices, recomputes, copies to the host. Facts are the papers' and those of
//! whole micro-batches.

use pipesim::costs::{Analytic, Estimate, Platform};
use pipesim::models::{TransformerConfig, hardware, stack, transformer_named};
use pipesim::{Costs, Kind, Op, ParallelConfig, Recompute, Selection, Slices, StepEstimate};

/// GPT with 32 heads of 128.
fn gpt(layers: usize) -> TransformerConfig {
    TransformerConfig::gpt(51_200, 0, layers, 32, 4096)
}

fn long(pp: u32, micro: u32) -> ParallelConfig {
    ParallelConfig { pp, micro, sequence: 65_536, ..ParallelConfig::default() }
}

/// Costs on H100s whose kernels take no time to start.
fn costs(model: TransformerConfig, layout: ParallelConfig) -> Analytic {
    let hardware = pipesim::Hardware { kernel_us: 0.0, ..hardware("h100-sxm").unwrap() };
    Analytic::new(model, Platform { hardware, stack: stack("megatron-core").unwrap() }, layout).unwrap()
}

fn estimate(costs: &Analytic, schedule: &str) -> StepEstimate {
    costs.estimate(schedule).unwrap()
}

fn refused(costs: &Analytic, schedule: &str) -> String {
    costs.estimate(schedule).unwrap_err().to_string()
}

/// Durations of F of each slice of stage 1, in ns.
fn forwards(costs: &Analytic, schedule: &str, slices: Option<Slices>) -> Vec<f64> {
    let selection = Selection { slices, ..Selection::new(costs.layout.pp, costs.layout.micro) };
    let resolved = selection.resolve(schedule, &Costs::Analytic(Box::new(costs.clone()))).unwrap();
    let count = resolved.graph.schedule().slices().count();
    let of = |slice| Op::of_unit(Kind::F, 1, slice, count);
    (0..count).map(|slice| resolved.costs.of(of(slice)).duration as f64).collect()
}

#[test]
fn one_slice_is_the_whole_micro_batch_on_hardware() {
    let json = |schedule: &str| {
        let layout = ParallelConfig { tp: 2, dp: 2, sequence_parallel: true, sequence: 4096, ..long(4, 8) };
        let model = transformer_named("llama-3-8b").unwrap();
        serde_json::to_string(&estimate(&costs(model, layout), schedule)).unwrap()
    };
    assert_eq!(json("seq1f1b:slices=1"), json("1f1b"));
}

/// FLOPs of attention are 4 s^2 b h per layer (Narayanan et al., arXiv 2104.04473), of which a causal mask leaves half; slice q of n has
/// (2q + 1) / n^2 of them (TeraPipe, arXiv 2102.07988).
#[test]
fn slices_share_attention() {
    let (layers, s, h) = (8.0, 65_536.0, 4096.0);
    let costs = costs(gpt(16), long(2, 2));
    let h100 = &costs.machine.hardware;
    let seconds = layers * 4.0 * s * s * h / 2.0 / h100.flash_speed(costs.layout.precision, h100.flash_share);
    let whole = forwards(&costs, "1f1b", None)[0];
    for n in [2.0, 4.0, 16.0] {
        let slices = forwards(&costs, &format!("terapipe:slices={n}"), None);
        let step = (slices[1] - slices[0]) / 2.0;
        assert!((step * n * n / (seconds * 1e9) - 1.0).abs() < 1e-6, "{n} slices: {step} ns");
        assert!(slices.windows(2).all(|pair| (pair[1] - pair[0] - 2.0 * step).abs() < 4.0), "{slices:?}");
        // all else shrinks with the tokens or less
        let sum: f64 = slices.iter().sum();
        assert!(sum > whole && sum < 1.1 * whole, "{n} slices take {sum} ns, whole micro-batches {whole} ns");
    }
    // lengths for slices that take equally long, for n = 4 and the share a of attention (Seq1F1B, arXiv 2406.03488)
    let a = seconds * 1e9 / whole;
    let bound = |j: f64| (-(1.0 - a) + ((1.0 - a).powi(2) + a * j).sqrt()) / (2.0 * a) * s;
    let lengths: Vec<u32> =
        (0..4).map(|j| (bound(f64::from(j) + 1.0).round() - bound(f64::from(j)).round()) as u32).collect();
    let even = forwards(&costs, "terapipe:slices=4", Some(Slices::of_lengths(&lengths).unwrap()));
    let [least, most] =
        [f64::min, f64::max].map(|pick: fn(f64, f64) -> f64| even.iter().copied().reduce(pick).unwrap());
    assert!(most < 1.02 * least && lengths[0] > 2 * lengths[3], "{lengths:?} tokens take {even:?} ns");
}

/// Tiny slices are less efficient: products of few rows do not fill the GPU, and the host launches every layer once per slice.
#[test]
fn small_slices_cost_more() {
    let costs = costs(gpt(16), ParallelConfig { sequence: 4096, ..long(4, 8) });
    let busy = |schedule: &str| {
        let time = estimate(&costs, schedule).time_s;
        time.compute + time.other
    };
    let times = ["1f1b", "seq1f1b:slices=2", "seq1f1b:slices=8", "seq1f1b:slices=32"].map(busy);
    assert!(times.windows(2).all(|pair| pair[1] > pair[0]), "{times:?}");
    assert!(times[3] > 2.0 * times[0], "{times:?}");
}

/// Seq1F1B holds 1 + (p - 1 - r) / n activations, SlimPipe 1 + 2 (p - 1 - r) / n, 1F1B p - r; in
/// addition gradients of keys and values, at most (n - 1) / n of them.
#[test]
fn slices_hold_what_the_papers_say() {
    let (p, n) = (4, 8_u32);
    let costs = costs(gpt(16), long(p, 8));
    let held = |schedule: &str, device: usize| estimate(&costs, schedule).memory.per_device[device].activations as f64;
    let whole = held("1f1b", 1) / 3.0;
    let (tokens, layers) = (65_536.0, 4.0);
    let gradients = layers * tokens * 2.0 * 4096.0 * 2.0 * f64::from(n - 1) / f64::from(n);
    for (schedule, more) in [("seq1f1b:slices=8", 1.0), ("slimpipe:slices=8", 2.0)] {
        let expected = (1.0 + more * f64::from(p - 2) / f64::from(n)) * whole;
        let found = held(schedule, 1) - expected;
        assert!((found / gradients - 1.0).abs() < 1e-3, "{schedule}: {found} beyond {expected}, of {gradients}");
    }
    // m (F + B) + (p - 1) (F + B) / n for SlimPipe also under unequal slices, which Seq1F1B is slower with; 1F1B has n = 1
    let [whole, seq, slim] =
        ["1f1b", "seq1f1b:slices=8", "slimpipe:slices=8"].map(|name| estimate(&costs, name).iteration_s);
    let closed = whole * (8.0 + 3.0 / f64::from(n)) / (8.0 + 3.0);
    assert!(slim > closed && slim < 1.1 * closed && seq > 1.1 * slim && seq < whole, "{slim} {seq} {whole} {closed}");
}

/// R does the work of full recomputation (Chen et al., arXiv 1604.06174): on one device in the same time, on more while devices wait for the
/// gradient, so that p - 1 forwards less are on the critical path; with one layer per stage it keeps the same.
#[test]
fn recomputes_are_full_recomputation() {
    let of = |p: u32, layers: usize, recompute: Recompute, schedule: &str| {
        let layout = ParallelConfig { recompute, sequence: 8192, ..long(p, 8) };
        let costs = costs(gpt(layers), layout);
        (estimate(&costs, schedule), costs)
    };
    let (full, own) = (of(1, 8, Recompute::Full, "1f1b").0, of(1, 8, Recompute::None, "1f1b-recompute").0);
    assert!((own.iteration_s / full.iteration_s - 1.0).abs() < 1e-6, "{} {}", own.iteration_s, full.iteration_s);
    let (full, own) = (of(4, 4, Recompute::Full, "1f1b").0, of(4, 4, Recompute::None, "1f1b-recompute"));
    let (own, forward) = (own.0, forwards(&own.1, "1f1b", None)[0] * 1e-9);
    let less = (full.iteration_s - own.iteration_s) / (3.0 * forward);
    assert!((less - 1.0).abs() < 0.01, "{less} of 3 forwards");
    for (full, own) in full.memory.per_device.iter().zip(&own.memory.per_device).take(3) {
        let ratio = own.total as f64 / full.total as f64;
        assert!((ratio - 1.0).abs() < 0.01, "device {}: {} and {} bytes", full.device, own.total, full.total);
    }
    // slices and R together hold less than either
    let sliced = "def device(r, p, m, slices = 8):\n    w = min(p - 1 - r + slices - 1, m * slices)\n    \
                  return recompute(w * F + (m * slices - w) * (F + B) + w * B)\n";
    let costs = costs(gpt(16), long(4, 8));
    let both = costs.selection().resolve_text("both", sliced, &Costs::Analytic(Box::new(costs.clone()))).unwrap();
    let both = both.estimate(&costs).unwrap().memory.per_device[0].activations;
    let [slices, again] =
        ["seq1f1b:slices=8", "1f1b-recompute"].map(|name| estimate(&costs, name).memory.per_device[0].activations);
    assert!(2 * both < slices && 2 * both < again, "{both} {slices} {again}");
}

/// A copy moves what F saves over the link; two GPUs of a stage that share it take turns, and so do two neighbouring devices.
#[test]
fn copies_use_the_hosts_link() {
    let ticks = |layout: ParallelConfig| {
        let costs = costs(gpt(16), layout);
        let resolved = costs.resolve("1f1b-offload").unwrap();
        let copy = resolved.costs.of(Op::new(Kind::O, 1, 0)).duration as f64;
        let shares = resolved.setup.machine.as_ref().map_or(1, |machine| machine.devices_per_host_link);
        let saved = estimate(&costs, "1f1b").memory.per_device[1].activations as f64 / 3.0;
        (copy * 1e-9 / (saved / (64e9 * 0.8)), shares)
    };
    for (layout, turns, shares) in [(long(4, 8), 1.0, 2), (ParallelConfig { tp: 2, ..long(4, 8) }, 2.0, 1)] {
        let (found, neighbours) = ticks(layout);
        assert!((found / turns - 1.0).abs() < 1e-3 && neighbours == shares, "{found} {neighbours}");
    }
    let costs = costs(gpt(16), ParallelConfig { sequence: 4096, ..long(4, 16) });
    let [whole, copied] = ["interleaved-1f1b", "pipeoffload"].map(|name| estimate(&costs, name));
    assert!(copied.memory.per_device[0].activations < whole.memory.per_device[0].activations);
}

#[test]
fn what_has_no_costs_on_hardware_is_refused_by_name() {
    let at = |layout: ParallelConfig| costs(gpt(8), layout);
    let text = "def device(r, p, m, slices = 2):\n    return offload(m * slices * F + m * slices * B, least = 0)\n";
    let costs = at(long(2, 4));
    let copied = costs.selection().resolve_text("copied", text, &Costs::Analytic(Box::new(costs.clone())));
    let narrow = ParallelConfig { tp: 4, sequence_parallel: true, sequence: 4104, ..long(2, 4) };
    let found = [
        (refused(&costs, "1f1b-vocab"), "no passes of a shared vocabulary, found 0IF0"),
        (refused(&costs, "seq1f1b:slices=3"), "65536 tokens of `seq` to divide into 3 equal slices; choose"),
        (refused(&at(narrow), "seq1f1b:slices=4"), "4 equal slices of a multiple of 4 tokens"),
        (copied.unwrap_err().to_string(), "no copies of slices"),
        (
            refused(&at(ParallelConfig { recompute: Recompute::Full, ..long(2, 4) }), "1f1b-recompute"),
            "and so does `recompute` full; leave",
        ),
    ];
    for (found, expected) in found {
        assert!(found.contains(expected), "{found}: {expected}");
    }
}
