//! Pipeline devices that differ: slow GPUs, slow links and GPUs of two kinds, against costs of stages computed by hand.

use pipesim::costs::{Analytic, Pass, Platform};
use pipesim::models::{hardware, stack, transformer_named};
use pipesim::questions::{Predicted, Question, answer};
use pipesim::schedules::Files;
use pipesim::{ParallelConfig, Recompute, Zero};

fn asked() -> Question {
    Question {
        schedule: vec!["1f1b".to_string()],
        stages: vec![4],
        micro: vec![8],
        tp: vec![2],
        dp: vec![2],
        seq: 4096,
        sequence_parallel: true,
        zero: Zero::Optimizer,
        model: Some("llama-3-8b".to_string()),
        hardware: Some("h100-sxm".to_string()),
        ..Question::default()
    }
}

#[track_caller]
fn predicted(question: &Question) -> Predicted {
    answer(question, &Files).unwrap_or_else(|error| panic!("{question:?}: {error}")).predictions.remove(0)
}

#[track_caller]
fn iteration(question: &Question) -> f64 {
    predicted(question).estimate.unwrap().iteration_s
}

fn error(question: &Question) -> String {
    answer(question, &Files).unwrap_err().to_string()
}

fn with_straggler(text: &str) -> Question {
    Question { straggler: vec![text.to_string()], ..asked() }
}

fn with_slow_link(text: &str) -> Question {
    Question { slow_link: vec![text.to_string()], ..asked() }
}

fn on(hardware: &str) -> Question {
    Question { hardware: Some(hardware.to_string()), ..asked() }
}

fn json(question: &Question) -> String {
    serde_json::to_string(&predicted(question)).unwrap()
}

#[test]
fn factors_of_one_and_two_equal_kinds_change_nothing() {
    let plain = json(&asked());
    assert_eq!(json(&with_straggler("1=1")), plain);
    assert_eq!(json(&with_slow_link("1=1")), plain);
    assert_eq!(json(&with_slow_link("1-2=1")), plain);
    assert_eq!(json(&on("h100-sxm:1,h100-sxm:3")), plain);
    assert_eq!(json(&on("h100-sxm:4")), plain);
}

/// The makespan of given stage times, in ns, with `slow` on device 2.
fn by_hand(costs: &Analytic, factor: f64, comm: &str) -> f64 {
    let stages = costs.stages(4).unwrap();
    let slower = |pass: Pass| pass.total() + (factor - 1.0) * pass.compute;
    let times = |of: fn(&pipesim::costs::Passes) -> Pass| {
        let each = stages.iter().enumerate().map(|(device, stage)| {
            let pass = of(&costs.passes(stage));
            let seconds = if device == 2 { slower(pass) } else { pass.total() };
            format!("{}", (seconds * 1e9).round())
        });
        each.collect::<Vec<_>>().join(":")
    };
    let (forward, backward) = (times(|passes| passes.forward), times(|passes| passes.backward));
    let question = Question {
        schedule: vec!["1f1b".to_string()],
        stages: vec![4],
        micro: vec![8],
        costs: Some(format!("F={forward}ns,B={backward}ns,comm={comm}ns")),
        ..Question::default()
    };
    predicted(&question).figures.metrics.makespan
}

/// A slow GPU makes the kernels of its stage slower, and nothing else; the step is that of a pipeline with these stage times.
#[test]
fn a_slow_gpu_is_a_stage_with_longer_kernels() {
    // software that exchanges do not block
    let slow = |text: &str| Question { stack: "pipesim".to_string(), ..with_straggler(text) };
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack("pipesim").unwrap() };
    let layout = ParallelConfig {
        pp: 4,
        tp: 2,
        dp: 2,
        micro: 8,
        sequence: 4096,
        sequence_parallel: true,
        zero: Zero::Optimizer,
        ..ParallelConfig::default()
    };
    let costs = Analytic::new(transformer_named("llama-3-8b").unwrap(), machine, layout).unwrap();
    // devices 0 and 1 are in one node, 2 and 3 in the next; without messages the sums agree to the rounding of stage times
    for factor in [1.3, 2.0, 5.0] {
        let found = predicted(&slow(&format!("2={factor}"))).figures.metrics.makespan * 1e6;
        let (least, most) = (by_hand(&costs, factor, "0"), by_hand(&costs, factor, "1000000"));
        assert!(least <= found + 20.0 && found <= most, "{least} {found} {most}");
    }
    // and so over one link, whose message takes as long each way
    let two = Question { stages: vec![2], ..slow("1=3") };
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack("pipesim").unwrap() };
    let comm = machine.transfer(4096.0 * 4096.0 * 2.0 / 2.0, false);
    let layout = ParallelConfig { pp: 2, ..costs.layout.clone() };
    let costs = Analytic::new(costs.model, machine, layout).unwrap();
    let stages = costs.stages(2).unwrap();
    let time =
        |device: usize, pass: Pass| ((pass.total() + if device == 1 { 2.0 * pass.compute } else { 0.0 }) * 1e9).round();
    let [f0, f1] = [0, 1].map(|device| time(device, costs.passes(&stages[device]).forward));
    let [b0, b1] = [0, 1].map(|device| time(device, costs.passes(&stages[device]).backward));
    let question = Question {
        schedule: vec!["1f1b".to_string()],
        stages: vec![2],
        micro: vec![8],
        costs: Some(format!("F={f0}:{f1}ns,B={b0}:{b1}ns,comm={}ns", (comm * 1e9).round())),
        ..Question::default()
    };
    let (found, expected) =
        (predicted(&two).figures.metrics.makespan * 1e6, predicted(&question).figures.metrics.makespan);
    assert!((found - expected).abs() < 0.5 * 8.0, "{found} {expected}");
}

#[test]
fn slower_is_never_faster() {
    let mut last = iteration(&asked());
    for factor in ["1.1", "1.5", "2", "8"] {
        let found = iteration(&with_straggler(&format!("1={factor}")));
        assert!(found > last, "{factor}: {found} {last}");
        last = found;
    }
    for link in ["1-2", "0-1", "3"] {
        let mut last = iteration(&asked());
        for factor in [2, 10, 100] {
            let found = iteration(&with_slow_link(&format!("{link}={factor}")));
            assert!(found > last, "{link}={factor}: {found} {last}");
            last = found;
        }
    }
    // a message of a link with a hundredth of its bandwidth: latency once, bytes a hundred times
    let machine = Platform { hardware: hardware("h100-sxm").unwrap(), stack: stack("megatron-core").unwrap() };
    let [one, hundred] = [1.0, 100.0].map(|times| machine.transfer(times * 4096.0 * 4096.0, false));
    let two = |link: Vec<String>| {
        let question = Question { stages: vec![2], micro: vec![1], slow_link: link, ..asked() };
        predicted(&question).figures.metrics.makespan * 1e6
    };
    let more = two(vec!["0-1=100".to_string()]) - two(Vec::new());
    assert!((more / (2e9 * (hundred - one)) - 1.0).abs() < 1e-3, "{more} {one} {hundred}");
}

#[test]
fn two_kinds_take_between_one_and_the_other() {
    let [fast, mixed, slow] = ["h100-sxm", "h100-sxm:2,a100-sxm-80gb:2", "a100-sxm-80gb"].map(on);
    let [fast, mixed, slow] = [fast, mixed, slow].map(|question| iteration(&question));
    assert!(fast < mixed && mixed <= slow, "{fast} {mixed} {slow}");
    // layers go where they are fast
    let balanced = predicted(&Question { balance: true, ..on("h100-sxm:2,a100-sxm-80gb:2") }).estimate.unwrap();
    assert!(balanced.iteration_s < mixed, "{} {mixed}", balanced.iteration_s);
    assert!(balanced.layers[1] > balanced.layers[2], "{:?}", balanced.layers);
    // a device has the same ops and bytes as on its own kind, and its own memory
    let kinds = ["h100-sxm", "a100-sxm-40gb", "h100-sxm:2,a100-sxm-40gb:2"];
    let [large, small, both] = kinds.map(|kinds| predicted(&on(kinds)).estimate.unwrap().memory);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    for device in 0..4 {
        let (of, capacity) = if device < 2 { (&large, 80.0) } else { (&small, 40.0) };
        assert_eq!(both.per_device[device].total, of.per_device[device].total);
        assert_eq!(both.per_device[device].capacity_bytes.map(gib), Some(capacity));
    }
    let full =
        Question { recompute: Recompute::None, micro: vec![8], seq: 8192, zero: Zero::None, tp: vec![1], ..asked() };
    let full = |hardware: &str| {
        predicted(&Question { hardware: Some(hardware.to_string()), sequence_parallel: false, ..full.clone() })
    };
    let [large, both] =
        ["h100-sxm", "h100-sxm:3,a100-sxm-40gb:1"].map(|hardware| full(hardware).estimate.unwrap().memory);
    assert!(large.fits, "{large:?}");
    let last = both.per_device[3];
    assert_eq!(both.fits, last.total <= 40 << 30, "{both:?}");
    assert_eq!(both.fullest().device, if both.fits { both.fullest().device } else { 3 });
}

#[test]
fn devices_that_do_not_exist_are_refused() {
    assert!(error(&with_straggler("4=2")).contains("device 4, but there are devices 0 to 3"));
    assert!(error(&with_slow_link("3-4=2")).contains("device 4, but there are devices 0 to 3"));
    assert!(error(&with_slow_link("1-1=2")).contains("expected two devices, found 1 twice"));
    assert!(error(&with_slow_link("1=0.5")).contains("expected a factor from 1"));
    assert!(error(&on("h100-sxm:2,a100-sxm-80gb:3")).contains("the 4 devices of `stages`, found 5"));
    assert!(error(&on("h100-sxm,a100-sxm-80gb:4")).contains("NAME:DEVICES"));
    assert!(error(&on("h100-sxm:2,a100x:2")).contains("a100x"));
    let narrow = Question { precision: pipesim::Precision::Fp8, ..on("h100-sxm:2,a100-sxm-80gb:2") };
    assert!(error(&narrow).contains("a100-sxm-80gb"), "{}", error(&narrow));
    let plain =
        Question { stages: vec![2], micro: vec![2], slow_link: vec!["0-1=2".to_string()], ..Question::default() };
    assert!(error(&plain).contains("need a model on hardware"));
}
