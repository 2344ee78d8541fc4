//! Experiments made by a program, without a command line.

use crate::support::{golden, golden_losses};
use pipesim::internals::delivery::{ChannelOptions, Delivery};
use pipesim::internals::experiment::{Backend, Error, Event, Experiment, Recipe};
use pipesim::internals::model::AdamW;
use std::cell::Cell;

/// The golden model of setting C under two schedules on two devices.
fn experiment() -> Experiment {
    let mut experiment = Experiment::new(["1f1b", "zb-v"], 2, 4);
    experiment.recipe = Recipe {
        checkpoint: Some(golden("gpt2/model.bin")),
        data: Some(golden("gpt2/tokens.bin")),
        batch: Some(8),
        sequence_tokens: Some(32),
        adamw: AdamW { learning_rate: 1e-3, ..AdamW::default() },
        ..Recipe::default()
    };
    experiment
}

#[test]
fn schedules_are_trained_predicted_and_compared() {
    let steps = Cell::new(0);
    let count = |event: Event<'_>| steps.set(steps.get() + u32::from(matches!(event, Event::Step { .. })));
    let finding = experiment().train(Backend::Cpu, "local", &count).unwrap();
    assert_eq!(steps.get(), 3 * 5, "what is calibrated on is measured, too");
    assert_eq!(finding.calibration.unwrap().schedule, "1f1b");
    let expected = golden_losses("C_stream_b0.9_0.999_wd0");
    for (name, outcome) in ["1f1b", "zb-v"].iter().zip(&finding.outcomes) {
        assert_eq!(outcome.schedule, *name);
        for (ours, theirs) in outcome.losses.iter().zip(&expected) {
            assert!((ours - theirs).abs() < 1e-4, "{name}: {ours}, PyTorch {theirs}");
        }
        assert!(outcome.predicted.metrics.makespan > 0.0 && outcome.iteration_ms.median > 0.0);
    }
    assert_eq!(finding.report.entries.len(), 2);
    assert!(finding.costs.is_some() && finding.failure.is_none());
}

#[test]
fn errors_say_what_kind_they_are() {
    let mut broken = experiment();
    broken.recipe.batch = Some(3);
    assert!(matches!(broken.run(), Err(Error::Usage(text)) if text.contains("multiple of --micro 4")));
    let mut unknown = experiment();
    unknown.schedules = vec!["1f1c".to_string()];
    assert!(matches!(unknown.run(), Err(Error::Resolve(_))));
    let nothing = Experiment { schedules: Vec::new(), ..experiment() };
    assert!(matches!(nothing.run(), Err(Error::Usage(_))));
    let no_steps = Experiment { steps: 0, ..experiment() };
    assert!(matches!(no_steps.run(), Err(Error::Usage(_))));
    assert!(matches!(Experiment::new(["1f1b"], 2, 0).run(), Err(Error::Usage(_) | Error::Resolve(_))));
    let mut stuck = experiment();
    stuck.delivery = Delivery::Channel(ChannelOptions::default());
    assert!(matches!(stuck.refuse_early(), Err(Error::Schedule(text)) if text.contains("take another --link")));
    let mut hanging = experiment();
    hanging.recipe.fault = "die@1:2".parse().ok();
    assert!(matches!(hanging.run(), Err(error @ Error::Step(_)) if error.is_hang()));
}
