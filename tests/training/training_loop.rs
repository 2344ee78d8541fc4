//! The training loop's learning rates, choices of tokens and warnings.

use pipesim::internals::training_loop::{Decay, LearningRate, Sampling, Trend};

#[test]
fn warms_up_and_falls() {
    let cosine = LearningRate { peak: 1.0, minimum: 0.1, decay: Decay::Cosine, warmup_steps: 4 };
    let rates: Vec<f32> = (0..14).map(|step| cosine.at(step, 14)).collect();
    assert_eq!(rates[..5], [0.25, 0.5, 0.75, 1.0, 1.0]);
    assert!((rates[9] - 0.55).abs() < 1e-6, "half way: {}", rates[9]);
    assert!(rates[4..].is_sorted_by(|a, b| a > b) && rates[13] > 0.1);
    let linear = LearningRate { decay: Decay::Linear, ..cosine };
    assert!((linear.at(9, 14) - 0.55).abs() < 1e-6);
    assert_eq!(LearningRate { decay: Decay::Constant, ..cosine }.at(13, 14), 1.0);
    assert!(cosine.check(3).is_err() && cosine.check(4).is_ok());
}

#[test]
fn chooses_by_weight_among_the_likeliest() {
    let logits = [0.0, 2.0_f32.ln(), f32::NAN, 2.0_f32.ln(), -9.0];
    assert_eq!(Sampling::default().choose(&logits, 0.99), Some(1));
    let warm = Sampling { temperature: Some(1.0), top_k: Some(3), seed: 0 };
    let chosen = [0.0, 0.39, 0.41, 0.79, 0.81, 0.999].map(|uniform| warm.choose(&logits, uniform).unwrap());
    assert_eq!(chosen, [1, 1, 3, 3, 0, 0]);
    assert_eq!(Sampling { top_k: Some(1), ..warm }.choose(&logits, 0.99), Some(1));
    assert_eq!(warm.choose(&[f32::NAN], 0.5), None);
}

fn warning(losses: &[f64]) -> Option<String> {
    let mut trend = Trend::default();
    losses.iter().for_each(|&loss| trend.add(loss));
    trend.warning(256) // ln 256 = 5.5452
}

#[test]
fn a_loss_that_ends_above_its_start_or_above_guessing_is_told() {
    assert_eq!(warning(&[5.5, 4.0, 3.0, 2.5]), None);
    assert_eq!(warning(&[2.0, 2.1, 2.0, 2.2]), None, "batches differ");
    assert_eq!(warning(&[9.0]), None, "one step tells nothing");
    assert!(warning(&[2.0, 2.0, 3.0, 3.0]).unwrap().starts_with("the loss rose from 2.0000 to 3.0000"));
    assert!(warning(&[9.0, 9.0, 8.0, 8.0]).unwrap().contains("above 5.5452"));
    // of long runs the means of ten
    let falling: Vec<f64> = (0..100).map(|step| 5.0 - f64::from(step) * 0.03).collect();
    assert_eq!(warning(&falling), None);
    let rising: Vec<f64> = falling.iter().rev().copied().collect();
    assert!(warning(&rising).unwrap().starts_with("the loss rose from 2.0300 to 4.8650"));
}
