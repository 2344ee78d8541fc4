//! What is concluded from measured times: statistics, noise and verdicts, contention, and the speed of products.

use pipesim::internals::cost::{CostTable, OpTime, Summary, TickUnits};
use pipesim::internals::exec::{DeviceRecord, OpRecord, StepRecord};
use pipesim::internals::experiment::{Finding, Judged, MOST_NOISE, Neighbours, Verdict, judge, noise};
use pipesim::internals::graph::TaskGraph;
use pipesim::internals::model::{PRODUCT_TOKENS, PRODUCT_WIDTH, fit_product};
use pipesim::internals::op::{Kind, Op};
use pipesim::internals::resolve::{self, Selection, unknown_costs};
use pipesim::internals::sim::event::{Config, Processor, Record, simulate};
use pipesim::internals::statistics::{median, median_ci95, midmean, nearest_median, typical};

#[test]
fn statistics_are_those_by_hand() {
    assert_eq!(typical(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1000]), 5);
    assert_eq!((typical(&[]), typical(&[7])), (0, 7));
    assert_eq!((midmean(&[1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 1e9]), midmean(&[2.0]), midmean(&[])), (5.0, 2.0, 0.0));
    assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[1.0, 2.0]), median(&[])), (2.0, 1.5, 0.0));
    assert_eq!(nearest_median(&[(9.0, 1.0), (10.0, 5.0), (11.0, 5.0), (10.0, 9.0)]), 1);
    // the first figure alone decides, however far the second is off; the second between equals
    assert_eq!(nearest_median(&[(1.0, 5.0), (2.0, 9.0), (9.0, 5.0), (3.0, 5.0), (0.0, 5.0)]), 1);
    assert_eq!((nearest_median(&[(2.0, 1.0), (4.0, 3.0), (5.0, 4.0), (0.0, 9.0)]), nearest_median(&[])), (1, 0));
    assert_eq!(median_ci95(&[5.0, 1.0, 3.0]), [1.0, 5.0]);
    let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
    assert_eq!(median_ci95(&hundred), [40.0, 61.0]); // the tabulated ranks for n = 100
}

/// A schedule predicted to take `predicted_ms`, whose steps took `measured` each.
fn one(name: &str, predicted_ms: f64, measured: &[f64]) -> Judged {
    let steps: Vec<[f64; 2]> = measured.iter().map(|&measured| [predicted_ms, measured]).collect();
    let error = predicted_ms / median(measured) - 1.0;
    Judged { name: name.to_string(), error, predicted_ms, steps }
}

#[test]
fn noise_is_half_the_range_of_few_steps_and_half_the_interval_of_more() {
    assert_eq!(noise(&[[2.0, 2.0], [2.0, 1.0], [2.0, 4.0]]), Some(0.75)); // 1, 2 and 0.5 of what was measured
    assert_eq!(noise(&[[1.0, 1.0], [1.0, 2.0]]), None);
    // A machine that slows down, and predictions that know: no noise.
    assert_eq!(noise(&[[1.0, 2.0], [2.0, 4.0], [4.0, 8.0]]), Some(0.0));
    // the tabulated ranks 40 and 61 of 100: 1.40 and 1.61 around 1.505
    let hundred: Vec<[f64; 2]> = (1..=100).map(|step| [100.0 + f64::from(step), 100.0]).collect();
    assert!((noise(&hundred).unwrap() - 0.105 / 1.505).abs() < 1e-12);
}

#[test]
fn a_steady_machine_is_judged() {
    let all = [
        one("naive", 198.0, &[200.0, 201.2, 198.8]),
        one("gpipe", 100.0, &[100.4, 100.0, 99.6]),
        one("1f1b", 100.5, &[100.9, 100.5, 100.1]),
        one("zb-v", 87.3, &[90.0, 90.9, 89.1]),
    ];
    let Verdict { steady, text, noise, predicted_order, measured_order, .. } = judge(&all);
    assert!(steady && noise.unwrap() < 0.01, "{noise:?}");
    assert_eq!(predicted_order.as_deref(), Some("zb-v < gpipe ≈ 1f1b < naive"));
    assert_eq!(predicted_order, measured_order);
    assert_eq!(
        text,
        "Predictions agree with the measurement: mean error 1.0 %, largest zb-v 3.0 % too short, noise ± 0.5 %. Predicted order: \
         zb-v < gpipe ≈ 1f1b < naive; measured: the same."
    );
}

#[test]
fn errors_beyond_noise_and_limit_are_said_to_differ() {
    let off = [one("a", 120.0, &[100.0, 100.0, 101.0]), one("b", 110.0, &[110.0, 110.0, 110.0])];
    let verdict = judge(&off);
    assert!(verdict.steady);
    assert_eq!(
        verdict.text,
        "Predictions of b agree with the measurement: largest error b 0.0 %. a differs from the measurement: 20.0 % too \
         long, noise ± 0.5 %. Predicted order: b < a; measured: a < b."
    );
    // 6 % within a noise of 10 %: nothing can be said about it, though the others are quiet
    let noisy = one("c", 106.0, &[91.0, 100.0, 110.0]);
    let all = [noisy, one("d", 10.0, &[10.0; 3]), one("e", 30.0, &[30.0; 3])];
    let verdict = judge(&all);
    assert!(!verdict.steady, "{}", verdict.text);
    assert!(
        verdict.text.starts_with(
            "Predictions of d, e agree with the measurement: largest error e 0.0 %. It was too unsteady to judge c: 3 steps of c \
             took 91 ms to 110 ms (noise ± 9.5 %, error 6.0 %)."
        ),
        "{}",
        verdict.text
    );
}

/// A large error is one, however quiet the others are; a small one beyond the limit of noise is none.
#[test]
fn each_schedule_is_judged_by_its_own_noise() {
    let far = one("zb-v", 121.7, &[99.0, 100.0, 101.0]);
    let near = one("1f1b", 103.5, &[94.0, 100.0, 106.0]);
    let verdict = judge(&[far, near]);
    let found: Vec<Option<Finding>> = verdict.schedules.iter().map(|one| one.finding).collect();
    assert_eq!(found, [Some(Finding::Differs), Some(Finding::Agrees)], "{}", verdict.text);
    assert!(verdict.steady && verdict.noise.unwrap() < MOST_NOISE);
}

#[test]
fn an_unsteady_machine_is_not_judged() {
    let all = [one("1f1b", 2500.0, &[1900.0, 2500.0, 3100.0]), one("naive", 4000.0, &[3500.0, 4000.0, 4500.0])];
    let verdict = judge(&all);
    assert!(!verdict.steady && verdict.noise.unwrap() > MOST_NOISE);
    assert!(
        verdict.text.starts_with(
            "This machine was too unsteady to judge: 3 steps of 1f1b took 1,900 ms to 3,100 ms (noise ± 25 %, error 0.0 %). \
             Predicted order: 1f1b < naive; measured: "
        ),
        "{}",
        verdict.text
    );
    assert!(verdict.text.ends_with(" Try an idle machine or 12 steps."), "{}", verdict.text);
}

#[test]
fn one_schedule_has_no_order_and_few_steps_no_noise() {
    let verdict = judge(&[one("1f1b", 101.0, &[100.0; 6])]);
    assert_eq!(verdict.text, "The prediction agrees with the measurement: 1.0 % too long, noise ± 0.0 %.");
    let verdict = judge(&[one("a", 1.0, &[1.0]), one("b", 2.0, &[2.0])]);
    assert!(!verdict.steady && verdict.noise.is_none() && verdict.measured_order.is_none());
    assert_eq!(
        verdict.text,
        "Too few steps to judge: the noise shows from 3 steps of each schedule on. Predicted order: a < b. Ask for 6 steps or more."
    );
}

/// A step of `schedule` in the event engine: `unit` ticks per op alone, twice as many per B, slowed down by `contention`.
fn step(schedule: &str, shape: (u32, u32), contention: &[u32], unit: u64) -> (TaskGraph, StepRecord) {
    let graph = Selection::new(shape.0, shape.1).graph::<resolve::Error>(schedule, &unknown_costs).unwrap().graph;
    let cost = |op: Op| OpTime { duration: unit * if op.kind() == Kind::B { 2 } else { 1 }, ..OpTime::default() };
    let summary = Summary { F: 1.0, I: 1.0, W: 1.0, B: 2.0, comm: 0.0, keep: 1.0 };
    let costs = CostTable::new(&graph.schedule().placement, TickUnits::MILLISECONDS, summary, cost);
    let processor = Processor { devices: (0..shape.0).collect(), cores: shape.0, contention: contention.to_vec() };
    let config = Config { processors: vec![processor], ..Config::default() };
    let mut record = Record::new(&graph);
    simulate(&graph, &costs, &config, &mut record).unwrap();
    let mut devices = vec![DeviceRecord::default(); shape.0 as usize];
    for (index, &(start, end)) in record.ops.iter().enumerate() {
        let op = OpRecord { index, turn: start, start, end, put_start: end, put_end: end };
        devices[graph.device_of(index) as usize].ops.push(op);
    }
    devices.iter_mut().for_each(|device| device.ops.sort_by_key(|op| op.start));
    (graph, StepRecord { devices, ..StepRecord::default() })
}

#[test]
fn contention_is_recovered_from_steps_of_a_machine_that_drifts() {
    for (schedule, p) in [("1f1b", 2), ("gpipe", 2), ("zb-h1", 2), ("1f1b", 4), ("zb-h1", 3)] {
        for contention in [[1000; 4], [1000, 1250, 1400, 1400], [1000, 1100, 1650, 2200]] {
            let contention = &contention[..p as usize];
            let steps = [1000, 1050, 1100]
                .map(|unit| (step(schedule, (p, 8), contention, unit), step(schedule, (p, 1), contention, unit)));
            let pairs: Vec<_> =
                steps.iter().map(|(among, alone)| [(&among.0, &among.1), (&alone.0, &alone.1)]).collect();
            let found = Neighbours::of(p as usize, &pairs);
            for (expected, found) in contention.iter().zip(found.contention()) {
                assert!(expected.abs_diff(found) <= 3, "{schedule} {p}: {found}, expected {expected}");
            }
            let (graph, record) = &steps[0].0;
            for (device, shares) in record.devices.iter().zip(&found.alone(record)) {
                for (op, share) in device.ops.iter().zip(shares) {
                    let alone = (op.end - op.start) as f64 * share;
                    let units = if graph.op(op.index).kind() == Kind::B { 2.0 } else { 1.0 };
                    assert!((alone - 1000.0 * units).abs() < 8.0 * units, "{schedule}: {alone}");
                }
            }
        }
    }
}

/// A fit to times computed by the model returns its numbers.
#[test]
fn a_fit_finds_the_numbers_that_made_the_times() {
    let (speed, depth, rows, traffic) = (8e10, 40.0, 20.0, 2e10);
    let (narrow, wide) = (PRODUCT_WIDTH as f64, 4.0 * PRODUCT_WIDTH as f64);
    let one = |rows_of: f64, inner: f64| 1.0 + depth / inner + rows / rows_of;
    let measured = PRODUCT_TOKENS.map(|tokens| {
        let (n, each) = (tokens as f64, 2.0 * tokens as f64 * narrow * wide / speed);
        let forward = each * (one(n, narrow) + one(n, wide));
        let weight = each * (one(narrow, n) + one(wide, n)) + 16.0 * narrow * wide / traffic;
        (tokens, [forward, forward, weight])
    });
    let found = fit_product(&measured, traffic);
    for (found, expected) in [(found.speed, speed), (found.depth, depth), (found.rows, rows)] {
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
    }
}
