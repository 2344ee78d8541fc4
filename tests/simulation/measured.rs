//! Measured steps: what is known to be true of PyTorch's runs in `tests/golden/kineto` is found from the times of their ops.

use crate::support::*;
use pipesim::costs::CostFile;
use pipesim::measured::{Finding, Fit, MeasuredStep, Replay, costs, findings, stage_times, trend};
use pipesim::simulation::Cause;
use pipesim::simulation::{Source, explain};
use pipesim::{Costs, Kind, Queue, Selection, Span, Timeline};
use serde_json::Value;
use std::collections::BTreeMap;

const CASES: [&str; 15] = [
    "1f1b_p4_m8_paced",
    "clock_1f1b_p4_m8",
    "delay_f3_interleaved_p2_m8",
    "dp2_interleaved_p2_m4",
    "dualpipev_p2_m4_paced",
    "gpipe_p2_m4_cpu",
    "interleaved1f1b_p4_m8_paced",
    "interleavedzb_p2_m8_cpu",
    "loopedbfs_p2_m4_paced",
    "missing_rank2_interleaved_p4_m8",
    "onestep_shapes_interleavedzb_p2_m4",
    "plain_gpipe_p2_m4",
    "slow_stage1_1f1b_p4_m8",
    "truncated_rank1_interleavedzb_p2_m4",
    "zbv_p2_m4_cpu",
];

fn expected(case: &str) -> Value {
    golden_json(format!("kineto/{case}/expected.json"))
}

/// The true times of each step of each pipeline.
fn timelines(case: &str) -> Vec<Timeline> {
    let truth = expected(case);
    let list = |value: &Value| value.as_array().unwrap().clone();
    let (devices, microbatches) = (truth["devices"].as_u64().unwrap() as u32, truth["microbatches"].as_u64().unwrap());
    let mut found = Vec::new();
    for (number, step) in list(&truth["steps"]).iter().enumerate() {
        for ranks in list(&truth["pipelines"]) {
            let mut spans = Vec::new();
            for (device, rank) in list(&ranks).iter().enumerate() {
                for op in list(&step["ops"][rank.as_u64().unwrap() as usize]) {
                    let ns = |at: usize| (op[at].as_f64().unwrap() * 1000.0).round() as u64;
                    let (start_ns, end_ns) = (ns(1), ns(2));
                    spans.push(span(device as u32, op[0].as_str().unwrap(), start_ns, end_ns));
                }
            }
            found.push(timeline("measured", devices, microbatches as u32, number as u64, spans));
        }
    }
    found
}

fn span(device: u32, op: &str, start_ns: u64, end_ns: u64) -> Span {
    Span { device, queue: Queue::Compute, op: op.to_string(), partner: None, peer: None, phase: None, start_ns, end_ns }
}

fn timeline(name: &str, devices: u32, microbatches: u32, step: u64, spans: Vec<Span>) -> Timeline {
    let stages = 1 + spans.iter().filter_map(|span| Some(span.pipeline_op()?.stage())).max().unwrap();
    let mut made = Timeline {
        schema_version: 1,
        source: Source::Measured,
        schedule: name.to_string(),
        devices,
        chunks: stages / devices,
        microbatches,
        time_unit: "ms".to_string(),
        unit_ns: 1_000_000,
        keep: 1.0,
        slices: Vec::new(),
        stub: 0.0,
        kv: 0.0,
        clock_uncertainty_ns: 0,
        lower_bound_ns: None,
        lower_bound_if_split_ns: None,
        typical_makespan_ns: None,
        incomplete_devices: Vec::new(),
        workers: None,
        steps: Vec::new(),
        step: None,
        provenance: BTreeMap::from([("step".to_string(), step.to_string())]),
        spans,
    };
    made.sort();
    Timeline::from_json(&serde_json::to_string(&made).unwrap()).unwrap()
}

#[test]
fn causes_sum_to_the_bubble() {
    for case in CASES {
        for timeline in timelines(case) {
            let step = MeasuredStep::new(&timeline).unwrap();
            let explained = explain(&step.graph, &step.means, &step.times, None);
            assert_eq!(explained.total().iter().sum::<u64>(), step.idle(), "{case}: whole nanoseconds");
            let metrics = timeline.metrics();
            let whole = metrics.makespan * f64::from(timeline.devices) * 1e6;
            let bubble = explained.total().iter().sum::<u64>() as f64 / whole;
            assert!((bubble - metrics.bubble).abs() < 1e-9, "{case}: {bubble} {}", metrics.bubble);
            // Intervals are where no op runs, and do not overlap.
            for device in 0..timeline.devices {
                let mut at = 0;
                for idle in explained.idle.iter().filter(|idle| idle.device == device) {
                    assert!(idle.start >= at && idle.end > idle.start, "{case}");
                    at = idle.end;
                }
            }
        }
    }
}

#[test]
fn a_step_predicts_itself() {
    let (mut errors, mut worst) = (Vec::new(), 0.0_f64);
    for case in CASES {
        for timeline in timelines(case) {
            let step = MeasuredStep::new(&timeline).unwrap();
            let replay = Replay::new(&step).makespan() as f64 / step.makespan() as f64 - 1.0;
            assert!(replay.abs() <= 0.005, "{case}: replayed {replay}");
            let fit = Fit::new(&step, &costs(&[&timeline]).unwrap()).unwrap();
            errors.push(fit.makespan_error);
            worst = worst.max(fit.makespan_error.abs());
            assert!(fit.deliveries.windows(2).all(|pair| pair[0].start_error <= pair[1].start_error));
        }
    }
    let count = errors.len() as f64;
    let (mean, signed) = (errors.iter().map(|e| e.abs()).sum::<f64>() / count, errors.iter().sum::<f64>() / count);
    println!(
        "{count} steps: mean {:.2} %, signed {:+.2} %, worst {:.2} %",
        100.0 * mean,
        100.0 * signed,
        100.0 * worst
    );
    assert!(mean <= 0.015 && signed.abs() <= 0.01 && worst <= 0.04, "{mean} {signed} {worst}");
}

#[test]
fn the_slow_stage_is_named() {
    for timeline in timelines("slow_stage1_1f1b_p4_m8") {
        let step = MeasuredStep::new(&timeline).unwrap();
        let Finding::SlowStage { stage, device, slower, saves } = findings(&step)[0] else {
            panic!("{:?}", findings(&step))
        };
        assert_eq!((stage, device), (1, 1));
        assert!((slower - 1.0).abs() < 0.15, "twice the work: {slower}");
        assert!((0.2..0.4).contains(&saves), "{saves}");
        let explained = explain(&step.graph, &step.means, &step.times, None);
        let total = explained.total();
        let most = Cause::ALL.into_iter().skip(2).max_by_key(|&cause| total[cause as usize]).unwrap();
        assert_eq!(most, Cause::Imbalance, "{total:?}");
    }
    for case in ["1f1b_p4_m8_paced", "interleaved1f1b_p4_m8_paced"] {
        for timeline in timelines(case) {
            let times = stage_times(&MeasuredStep::new(&timeline).unwrap());
            assert!(times.iter().all(|time| time.slower.abs() < 0.25), "{case}: all have the same work {times:?}");
        }
    }
}

#[test]
fn the_delayed_send_is_named() {
    for timeline in timelines("delay_f3_interleaved_p2_m8") {
        let step = MeasuredStep::new(&timeline).unwrap();
        let found = findings(&step);
        let pause = found.iter().find_map(|finding| match finding {
            Finding::Pause { device, after, delay, before_send, .. } => {
                Some((*device, after.as_deref(), *delay, *before_send))
            }
            _ => None,
        });
        let (device, after, delay, before_send) = pause.unwrap();
        assert_eq!((device, after), (0, Some("0F3")), "rank 0 sleeps 20 ms before it sends the output of 0F3");
        assert!((delay - 20.0).abs() < 1.0, "{delay}");
        assert!(before_send, "its receiver waits, too");
    }
}

/// Two devices, GPipe, one micro-batch: F 10 and B 20 on either, 3 for a message, device 1 starts 2 late, and device 0's backward starts
/// 5 late.
fn by_hand() -> Timeline {
    let ms = |ms: u64| ms * 1_000_000;
    let spans = [(0, "0F0", 0, 10), (1, "1F0", 15, 25), (1, "1B0", 25, 45), (0, "0B0", 50, 70)];
    let mut spans: Vec<Span> = spans.map(|(device, op, start, end)| span(device, op, ms(start), ms(end))).to_vec();
    for (device, op, partner, peer, start, end) in [(0, "0F0", "1F0", 1, 10, 13), (1, "1B0", "0B0", 0, 45, 50)] {
        spans.push(Span {
            queue: Queue::Send,
            partner: Some(partner.to_string()),
            peer: Some(peer),
            ..span(device, op, ms(start), ms(end))
        });
    }
    timeline("gpipe", 2, 1, 0, spans)
}

#[test]
fn sends_tell_messages_from_hosts() {
    let step = MeasuredStep::new(&by_hand()).unwrap();
    let explained = explain(&step.graph, &step.means, &step.times, None);
    let of = |device: usize, cause: Cause| explained.devices[device][cause as usize] / 1_000_000;
    // Device 1: 15 before its first op, 25 after its last. Device 0 waits 40 from 10 to 50: 10 + 20 for ops of device 1, 3 + 5 for messages,
    // 2 for the late host of device 1.
    assert_eq!([of(1, Cause::Fill), of(1, Cause::Drain)], [15, 25]);
    assert_eq!([of(0, Cause::Dependence), of(0, Cause::Communication), of(0, Cause::Host)], [30, 8, 2]);
    let saves = |change: fn(&mut Replay<'_>)| {
        let mut replay = Replay::new(&step);
        change(&mut replay);
        replay.makespan() / 1_000_000
    };
    assert_eq!(saves(|_| ()), 70);
    assert_eq!(saves(|replay| replay.messages.fill(0)), 62);
    assert_eq!(saves(|replay| replay.held.fill(0)), 68);
}

#[test]
fn a_busy_receiver_makes_a_message_late_not_the_other_way_round() {
    let ms = |ms: u64| ms * 1_000_000;
    let ops = [
        (0, "0F0", 0, 10),
        (0, "0F1", 10, 20),
        (0, "0B0", 70, 80),
        (0, "0B1", 85, 95),
        (1, "1F0", 15, 35),
        (1, "1F1", 36, 56),
        (1, "1B0", 56, 66),
        (1, "1B1", 66, 76),
    ];
    let mut spans: Vec<Span> =
        ops.into_iter().map(|(device, op, start, end)| span(device, op, ms(start), ms(end))).collect();
    // The output of 0F1 is sent at 20, but device 1 receives it from 35 on.
    let sends =
        [(0, "0F0", "1F0", 10, 15), (0, "0F1", "1F1", 20, 36), (1, "1B0", "0B0", 66, 70), (1, "1B1", "0B1", 76, 80)];
    for (device, op, partner, start, end) in sends {
        let (partner, peer) = (Some(partner.to_string()), Some(1 - device));
        spans.push(Span { queue: Queue::Send, partner, peer, ..span(device, op, ms(start), ms(end)) });
    }
    let step = MeasuredStep::new(&timeline("gpipe", 2, 2, 0, spans)).unwrap();
    let explained = explain(&step.graph, &step.means, &step.times, None);
    let of = |device: usize, cause: Cause| explained.devices[device][cause as usize] / 1_000_000;
    assert_eq!([of(1, Cause::Fill), of(1, Cause::Communication), of(1, Cause::Drain)], [15, 1, 19]);
    // Device 0 waits 50 for 1B0. On the way there: messages of 5, 1 and 4. Forwards take 15 on average: those on the way exceed that by
    // -5 + 5 + 5, those before the wait by -10. The host is 5 late with 0B1.
    let waits = [Cause::Communication, Cause::Imbalance, Cause::Dependence, Cause::Host];
    assert_eq!(waits.map(|cause| of(0, cause)), [10, 15, 25, 5]);
    assert_eq!(Replay::new(&step).makespan(), ms(95));
}

#[test]
fn costs_of_a_run_are_its_means() {
    let file = costs(&[&by_hand()]).unwrap();
    let stage = &file.stages[0];
    assert_eq!(stage.of(Kind::F).unwrap().duration_ns, 10_000_000);
    assert_eq!(stage.of(Kind::F).unwrap().message_ns, Some(5_000_000), "until the receiver goes on");
    assert_eq!((stage.duration(Kind::B), stage.duration(Kind::I)), (20_000_000, 10_000_000));
    assert_eq!(CostFile::from_json(&serde_json::to_string(&file).unwrap()).unwrap(), file);
    let costs = Costs::measured(file, None);
    let own = Selection::new(2, 1).resolve("gpipe", &costs).unwrap();
    assert_eq!(own.predict().unwrap().metrics().makespan, 70.0);
    // Four stages of half the size each, a micro-batch there and back: 2 * 10 + 2 * 20 of ops and messages of 5 over six boundaries.
    let four = Selection::new(4, 1).resolve("gpipe", &costs).unwrap();
    assert_eq!(four.predict().unwrap().metrics().makespan, 60.0 + 30.0);
}

#[test]
fn costs_of_a_run_serve_other_schedules_and_splits() {
    let all = timelines("slow_stage1_1f1b_p4_m8");
    let file = costs(&all.iter().collect::<Vec<_>>()).unwrap();
    let makespan = |name: &str, selection: &Selection, costs: &Costs| {
        selection.resolve(name, costs).unwrap().predict().unwrap().metrics().makespan
    };
    let unknown = Costs::measured(file.clone(), None);
    let selection = Selection::new(4, 8);
    let measured = all[0].metrics().makespan;
    assert!((makespan("1f1b", &selection, &unknown) / measured - 1.0).abs() < 0.03);
    for name in ["zb-v", "zb-h1", "interleaved-1f1b", "gpipe"] {
        assert!(makespan(name, &selection, &unknown) > 100.0, "{name}");
    }
    assert!(makespan("1f1b", &Selection::new(4, 16), &unknown) > measured * 1.5);
    // With layers, they can be moved: stage 1 has two of the five blocks.
    let layers = file.with_stage_layers(&[2, 4, 2, 2]).unwrap();
    let known = Costs::measured(layers, None);
    let balanced = Selection { balance: true, ..selection.clone() }.resolve("1f1b", &known).unwrap();
    let balance = balanced.balance.unwrap();
    assert_eq!(balance.layers_before, [2, 4, 2, 2]);
    assert!(balance.layers[1] < 4 && balance.makespan < 0.85 * balance.makespan_before, "{balance:?}");
    let error = Selection { balance: true, ..selection }.resolve("1f1b", &unknown).unwrap_err().to_string();
    assert!(error.contains("number of layers"), "{error}");
}

#[test]
fn steps_without_a_device_are_refused() {
    let mut timeline = timelines("1f1b_p4_m8_paced").swap_remove(0);
    timeline.spans.retain(|span| span.device != 2);
    timeline.incomplete_devices = vec![2];
    let error = MeasuredStep::new(&timeline).unwrap_err().to_string();
    assert!(error.contains("device 2") && error.contains("all ranks"), "{error}");
    assert!(costs(&[]).is_err());
}

#[test]
fn steps_drift_and_have_outliers() {
    let mut timeline = timelines("1f1b_p4_m8_paced").swap_remove(0);
    let step = |number: u64, makespan_ms: u64| pipesim::simulation::StepFigures {
        number,
        makespan_ns: makespan_ms * 1_000_000,
        bubble: 0.3,
        iteration_ns: None,
        busy_ns: vec![10, 10, 12 + number, 10],
        start_ns: 0,
        incomplete_devices: Vec::new(),
    };
    timeline.steps = [100, 101, 102, 150, 104, 105].into_iter().zip(3..).map(|(ms, number)| step(number, ms)).collect();
    let found = trend(&timeline).unwrap();
    assert_eq!(found.median, 103.0);
    assert!((found.drift_per_step - 1.0 / 103.0).abs() < 1e-3, "{}", found.drift_per_step);
    let outliers: Vec<u64> = found.steps.iter().filter(|step| step.is_outlier).map(|step| step.number).collect();
    assert_eq!(outliers, [6]);
    assert!(found.steps.iter().all(|step| step.slowest == 2));
    timeline.steps.truncate(1);
    assert!(trend(&timeline).is_none());
}
