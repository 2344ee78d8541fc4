//! Experiments made by a program, without a command line.

use crate::support::{golden, golden_losses};
use pipesim::internals::delivery::{ChannelOptions, Delivery};
use pipesim::internals::exec::{Following, StepRecord};
use pipesim::internals::experiment::{
    Accuracy, Backend, Error, Event, Experiment, Extent, Role, Steps, TrainingConfig, Transfer, silent,
};
use pipesim::internals::model::AdamW;
use pipesim::internals::ranks::Ranks;
use pipesim::internals::resolve::{self, Selection, unknown_costs};
use std::cell::Cell;
use std::sync::Arc;

/// The golden model of setting C under two schedules on two devices.
fn experiment() -> Experiment {
    let mut experiment = Experiment::new(["1f1b", "zb-v"], 2, 4);
    experiment.training_config = TrainingConfig {
        checkpoint: Some(golden("gpt2/model.bin")),
        data: Some(golden("gpt2/tokens.bin")),
        batch: Some(8),
        sequence_tokens: Some(32),
        adamw: AdamW { learning_rate: 1e-3, ..AdamW::default() },
        ..TrainingConfig::default()
    };
    experiment
}

#[test]
fn schedules_are_trained_predicted_and_compared() {
    let steps = Cell::new(0);
    let count = |event: Event<'_>| steps.set(steps.get() + u32::from(matches!(event, Event::Step { .. })));
    let results = experiment().train(Backend::default(), &count).unwrap();
    let calibrating = 2 * (2 * 5 + 1); // with all micro-batches and with one, before each schedule in each round and at the end
    assert_eq!(steps.get(), 2 * 5 + calibrating, "the steps that calibrate are measured, too");
    assert_eq!(results.calibration.unwrap().schedule, "1f1b");
    let expected = golden_losses("C_stream_b0.9_0.999_wd0");
    for (name, outcome) in ["1f1b", "zb-v"].iter().zip(&results.outcomes) {
        assert_eq!(outcome.schedule, *name);
        for (ours, theirs) in outcome.losses.iter().zip(&expected) {
            assert!((ours - theirs).abs() < 1e-4, "{name}: {ours}, PyTorch {theirs}");
        }
        assert!(outcome.predicted.metrics.makespan > 0.0 && outcome.iteration_ms.median > 0.0);
    }
    assert_eq!(results.report.entries.len(), 2);
    assert!(results.costs.is_some() && results.failure.is_none());
}

#[test]
fn errors_say_what_kind_they_are() {
    let mut broken = experiment();
    broken.training_config.batch = Some(3);
    assert!(matches!(broken.run(), Err(Error::Usage(text)) if text.contains("multiple of `micro` 4")));
    let mut unknown = experiment();
    unknown.schedules = vec!["1f1c".to_string()];
    assert!(matches!(unknown.run(), Err(Error::Resolve(_))));
    let nothing = Experiment { schedules: Vec::new(), ..experiment() };
    assert!(matches!(nothing.run(), Err(Error::Usage(_))));
    let no_steps = Experiment { steps: 0, ..experiment() };
    assert!(matches!(no_steps.run(), Err(Error::Usage(_))));
    assert!(matches!(Experiment::new(["1f1b"], 2, 0).run(), Err(Error::Usage(_) | Error::Resolve(_))));
    let stuck = experiment().refuse_early(Delivery::Channel(ChannelOptions::default()));
    assert!(matches!(stuck, Err(Error::Schedule(text)) if text.contains("take another `link`")));
    let mut hanging = experiment();
    hanging.training_config.fault = "die@1:2".parse().ok();
    assert!(matches!(hanging.run(), Err(error @ Error::Step(_)) if error.is_hang()));
}

/// Two schedules, a transfer to twice the sequence, calibrated on 1F1B with micro-batches of one sequence and of two.
fn accuracy(training_config: &TrainingConfig) -> Accuracy {
    let longer = TrainingConfig { sequence_tokens: Some(8), ..training_config.clone() };
    Accuracy {
        schedules: vec!["gpipe".to_string(), "zb-v".to_string()],
        microbatches: vec![2, 4],
        calibrate_on: "1f1b".to_string(),
        selection: Selection::new(2, 4),
        transfers: vec![Transfer {
            name: "seq=8".to_string(),
            training: longer.training(1, &Ranks::alone()).unwrap(),
            selection: Selection::new(2, 4),
        }],
        sizes: vec![TrainingConfig { batch: Some(2), ..training_config.clone() }.training(1, &Ranks::alone()).unwrap()],
        extent: Extent { warmup: 1, steps: 9, until: None, least: 1, back_to_back: 2 },
    }
}

#[test]
fn what_was_measured_of_a_schedule_never_enters_its_prediction() {
    let training_config = TrainingConfig {
        blocks: Some(4),
        heads: Some(1),
        channels: Some(8),
        vocabulary: Some(300),
        max_sequence: Some(16),
        sequence_tokens: Some(4),
        ..TrainingConfig::default()
    };
    let (training, accuracy) = (training_config.training(1, &Ranks::alone()).unwrap(), accuracy(&training_config));
    let (runs, ended) = accuracy.measure(&training, &silent).unwrap();
    assert!(ended.is_none());
    let found = accuracy.judge(&training, &runs).unwrap();
    assert_eq!(found.outcomes.len(), 6);
    assert_eq!(found.outcomes.iter().filter(|o| o.transfer.as_deref() == Some("seq=8")).count(), 2);
    assert!(found.outcomes.iter().all(|o| o.losses.len() == 18 && o.period_ms.is_some() && o.error.period.is_some()));
    let recorded = accuracy.recorded(&training, &Accuracy::record(&training, &runs).unwrap()).unwrap();
    let again = accuracy.judge(&training, &recorded).unwrap();
    assert_eq!(again.outcomes, found.outcomes, "recorded steps are judged like measured ones");
    assert!(accuracy.recorded(&training, b"no steps").is_err());
    for spoil in [
        |step: &mut StepRecord| step.devices[0].ops[0].end = u64::MAX,
        |step: &mut StepRecord| step.devices[0].ops.swap(0, 1),
        |step: &mut StepRecord| step.devices[1].steps[0].1 = u64::MAX,
        |step: &mut StepRecord| step.devices[1].timings[0].0 = 99,
        |step: &mut StepRecord| drop(step.devices.pop()),
        |step: &mut StepRecord| step.following = vec![Following { end_ns: u64::MAX, loss: None }],
    ] {
        let mut spoilt = runs.clone();
        spoil(&mut spoilt[0].records[0]);
        let bytes = Accuracy::record(&training, &spoilt).unwrap();
        assert!(accuracy.recorded(&training, &bytes).is_err(), "impossible times are rejected");
    }

    let sizes =
        |sequences| found.costs.iter().flat_map(move |c| &c.parts).filter(move |part| part.sequences == sequences);
    assert!(sizes(1).count() > 0 && sizes(1).count() == sizes(2).count(), "both sizes are measured");

    // One schedule's steps become twice and three times as long: its prediction is as before, and so are all others.
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| !run.role.calibrates()) {
        let mut slower: Vec<Steps> = runs.clone();
        for (step, record) in slower[number].records.iter_mut().enumerate() {
            for op in record.devices.iter_mut().flat_map(|device| &mut device.ops) {
                for time in [&mut op.turn, &mut op.start, &mut op.end, &mut op.put_start, &mut op.put_end] {
                    *time *= 2 + step as u64 % 2;
                }
            }
        }
        let judged = accuracy.judge(&training, &slower).unwrap();
        let name = &run.graph.schedule().name;
        for (which, (a, b)) in found.outcomes.iter().zip(&judged.outcomes).enumerate() {
            assert_eq!(a.predicted, b.predicted, "{name}");
            let is_it = which + runs.iter().filter(|run| run.role.calibrates()).count() == number;
            assert_eq!(is_it, a.error.makespan != b.error.makespan, "{name}");
        }
    }
    // Predictions are made of the calibrating steps.
    let mut slower = runs.clone();
    for timing in
        slower[0].records.iter_mut().flat_map(|record| &mut record.devices).flat_map(|device| &mut device.timings)
    {
        timing.1.duration_ns *= 2;
    }
    let judged = accuracy.judge(&training, &slower).unwrap();
    assert!(found.outcomes.iter().zip(&judged.outcomes).all(|(a, b)| a.predicted != b.predicted));
}

#[test]
fn a_step_is_between_its_neighbours_in_time() {
    let graph = Arc::new(Selection::new(2, 2).graph::<resolve::Error>("1f1b", &unknown_costs).unwrap().graph);
    let steps = |times: &[u64]| {
        let record = |&at_ns: &u64| StepRecord { at_ns, ..StepRecord::default() };
        Steps { records: times.iter().map(record).collect(), ..Steps::new(graph.clone(), Role::Calibrates) }
    };
    let calibrating = steps(&[0, 10, 20]);
    assert_eq!(calibrating.around_all(&steps(&[1, 11, 25])), [0, 1, 1, 2, 2, 2]);
    assert_eq!(steps(&[]).around_all(&calibrating), [] as [usize; 0]);
}

/// Steps that were recorded are of the schedule and of the model that they were measured with, whatever these are called.
#[test]
fn recorded_steps_are_of_one_order_and_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.star");
    let write = |body: &str| std::fs::write(&path, format!("def device(r, p, m):\n    return {body}\n")).unwrap();
    let training_config = TrainingConfig {
        blocks: Some(4),
        heads: Some(1),
        channels: Some(8),
        vocabulary: Some(300),
        max_sequence: Some(16),
        sequence_tokens: Some(4),
        ..TrainingConfig::default()
    };
    let accuracy = Accuracy {
        schedules: vec![path.display().to_string()],
        transfers: Vec::new(),
        sizes: Vec::new(),
        extent: Extent { warmup: 0, steps: 1, until: None, least: 1, back_to_back: 1 },
        ..accuracy(&training_config)
    };
    let training = |config: &TrainingConfig| config.training(1, &Ranks::alone()).unwrap();
    let own = training(&training_config);
    write("m * F + m * B");
    let (runs, _) = accuracy.measure(&own, &silent).unwrap();
    let bytes = Accuracy::record(&own, &runs).unwrap();
    assert!(accuracy.recorded(&own, &bytes).is_ok());
    write("F + (m - 1) * (F + B) + B");
    let error = accuracy.recorded(&own, &bytes).err().unwrap().to_string();
    assert!(error.contains("mine") && error.contains("another order"), "{error}");
    write("m * F + m * B # the same order");
    assert!(accuracy.recorded(&own, &bytes).is_ok());
    let split = training(&TrainingConfig { layers: Some(vec![3, 1]), ..training_config.clone() });
    let error = accuracy.recorded(&split, &bytes).err().unwrap().to_string();
    assert!(error.contains("layers"), "{error}");
}
