//! Samples of a model: each token is computed once, with the keys and values of those before it.

use crate::checkpoints::llama;
use crate::modules::{OnCpu as _, Passes as _};
use crate::support::{Dice, checkpoint, debug_state};
use pipesim::internals::model::{Parameters, StageModule, Stopwatch, WholeModel};
use pipesim::internals::training_loop::Sampling;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The logits after each of `ids`, from one forward of the whole sequence.
fn whole(parameters: &Parameters, ids: &[u32]) -> Vec<Vec<f32>> {
    let stages = parameters.config.spec().split(1, None).unwrap();
    let mut module = StageModule::on_cpu(parameters, &[(0, stages[0].clone())], [1, ids.len(), 1]).unwrap();
    module.compute().keep_logits(true);
    module.begin(ids, ids).unwrap();
    module.forward(0, 0, None, None, &mut Stopwatch::default()).unwrap();
    module.compute().logits(0).unwrap().chunks(parameters.config.vocabulary).map(<[f32]>::to_vec).collect()
}

/// The largest difference of logits, relative to the largest of them.
fn distance(one: &[f32], other: &[f32]) -> f32 {
    let largest = other.iter().map(|x| x.abs()).fold(0.0, f32::max);
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max) / largest
}

/// GPT-2 with learned positions, and Llamas with rotary ones, one with fewer heads of keys and values.
fn models() -> [Parameters; 4] {
    let models = [checkpoint(), llama("A").0, llama("B").0, llama("C").0];
    assert!(models[0].config.positions > 0 && models[1..].iter().all(|model| model.config.rotary.is_some()));
    assert!(models.iter().any(|model| model.config.groups < model.config.heads));
    models
}

fn random_ids(dice: &mut Dice, parameters: &Parameters, count: usize) -> Vec<u32> {
    (0..count).map(|_| dice.below(parameters.config.vocabulary) as u32).collect()
}

#[test]
fn a_sampled_token_costs_one_tokens_forward_and_is_that_of_the_whole_sequence() {
    let (mut dice, models) = (Dice(8), models());
    for case in 0..200 {
        let parameters = &models[case % 3]; // the last one's vocabulary is large to choose from
        let first = 1 + dice.below(9);
        let (prompt, count) = (random_ids(&mut dice, parameters, first), 1 + dice.below(9));
        let temperature = (dice.below(3) > 0).then_some(0.5 + dice.below(4) as f32 / 4.0);
        let sampling = Sampling { temperature, top_k: (dice.below(2) == 0).then_some(20), seed: dice.next() };
        let stream = dice.next();
        let mut model = WholeModel::new(parameters, first + count).unwrap();
        let tokens = sampling.sample_by(&mut model, &prompt, count, stream).unwrap();
        assert_eq!(model.forwarded(), first + count - 1, "case {case}");
        let mut generator = ChaCha8Rng::seed_from_u64(sampling.seed);
        generator.set_stream(stream);
        let rows = whole(parameters, &[&prompt[..], &tokens].concat());
        for (number, &token) in tokens.iter().enumerate() {
            let uniform = (generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            assert_eq!(sampling.choose(&rows[first + number - 1], uniform), Some(token), "case {case}, token {number}");
        }
    }
}

#[test]
fn logits_with_kept_keys_and_values_are_those_of_the_whole_sequence() {
    let (mut dice, models) = (Dice(9), models());
    let mut worst = 0.0_f32;
    for case in 0..200 {
        let parameters = &models[case % models.len()];
        let count = 2 + dice.below(30);
        let ids = random_ids(&mut dice, parameters, count);
        let rows = whole(parameters, &ids);
        let mut growing = WholeModel::new(parameters, count).unwrap();
        let mut length = 1 + dice.below(count - 1);
        while length <= count {
            worst = worst.max(distance(&growing.logits(&ids[..length]).unwrap(), &rows[length - 1]));
            assert_eq!(growing.forwarded(), length, "each token once");
            length += 1 + dice.below(3);
        }
    }
    assert!(worst < 1e-5, "{worst:e}");
}

#[test]
fn a_sequence_that_does_not_go_on_is_computed_anew() {
    let parameters = checkpoint();
    let ids = &debug_state().inputs[..9];
    let mut model = WholeModel::new(&parameters, 9).unwrap();
    for other in [&ids[..5], &ids[..3], &ids[..3], &[ids[0] ^ 1, ids[1]], ids] {
        let (before, expected) = (model.forwarded(), whole(&parameters, other).pop().unwrap());
        assert!(distance(&model.logits(other).unwrap(), &expected) < 1e-5);
        assert_eq!(model.forwarded() - before, other.len());
    }
    assert!(model.logits(&[0; 10]).is_err() && WholeModel::new(&parameters, 65).is_err());
}

#[test]
fn samples_are_as_long_as_the_model_has_positions() {
    let parameters = checkpoint();
    let (prompt, longest) = ([7, 8], parameters.config.positions);
    let mut model = WholeModel::new(&parameters, longest).unwrap();
    let tokens = Sampling::default().sample_by(&mut model, &prompt, longest - 2, 0).unwrap();
    assert_eq!(model.forwarded(), longest - 1);
    let rows = whole(&parameters, &[&prompt[..], &tokens].concat());
    for (row, token) in rows[1..].iter().zip(tokens) {
        assert_eq!(Sampling::default().choose(row, 0.0), Some(token));
    }
    for longest in [1, 2] {
        let one = Sampling::default().sample(&parameters, &prompt[..longest], 1, 0).unwrap();
        assert_eq!(Some(one[0]), Sampling::default().choose(&whole(&parameters, &prompt[..longest])[longest - 1], 0.0));
        let all = WholeModel::new(&parameters, longest).unwrap().logits(&prompt[..longest]).unwrap();
        assert!(distance(&all, &whole(&parameters, &prompt[..longest])[longest - 1]) < 1e-5);
    }
    assert!(Sampling::default().sample(&parameters, &prompt, longest - 1, 0).is_err(), "no positions beyond");
}

#[test]
fn logits_token_by_token_are_pytorchs() {
    let (parameters, state) = (checkpoint(), debug_state());
    let mut model = WholeModel::new(&parameters, state.tokens).unwrap();
    for (length, expected) in (1..=state.tokens).zip(state.logits.chunks(parameters.config.vocabulary)) {
        assert!(distance(&model.logits(&state.inputs[..length]).unwrap(), expected) < 1e-4, "{length} tokens");
    }
    assert_eq!(model.forwarded(), state.tokens);
}
