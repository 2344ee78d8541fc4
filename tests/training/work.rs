//! The work of a training step, by which two programs check that they did the same.

use crate::checkpoints::llama;
use crate::support::Dice;
use pipesim::internals::experiment::Work;
use pipesim::internals::model::Config;
use pipesim::internals::model_spec::{MicroBatch, gpt2};

/// Numbers of elements of a model's matrices with a product per token, and of its other parameters.
fn elements(config: &Config) -> (usize, usize) {
    let (c, width) = (config.channels, config.heads * config.head_size);
    let fused = (config.heads + 2 * config.groups) * config.head_size;
    let mlp = config.mlp;
    let (in_block, beside) = match config.positions {
        0 => (c * fused + width * c + 3 * c * mlp, 2 * c),
        _ => (c * fused + width * c + 2 * c * mlp, 4 * c + fused + c + mlp + c),
    };
    let ends = match config.positions {
        0 => c,
        positions => positions * c + 2 * c,
    };
    let untied = if config.tied { 0 } else { config.vocabulary * c };
    (config.layers * in_block + config.vocabulary * c, config.layers * beside + ends + untied)
}

#[test]
fn the_work_of_a_step_is_counted() {
    let mut dice = Dice(11);
    let llamas = ["A", "B", "C"].map(|case| llama(case).0.config);
    for case in 0..300 {
        let heads = 1 + dice.below(4);
        let gpt = gpt2::Config {
            max_sequence: 1 + dice.below(99),
            vocabulary: 1 + dice.below(999),
            layers: 1 + dice.below(9),
            heads,
            channels: heads * (1 + dice.below(30)),
        };
        let config = if case % 4 == 0 { llamas[dice.below(3)] } else { gpt.transformer() };
        let step = MicroBatch { sequences: 1 + dice.below(20), tokens: 1 + dice.below(80) };
        let (multiplied, other) = elements(&config);
        let work = Work::new(&config, step);
        assert_eq!(work.parameters as usize, multiplied + other, "{config:?}");
        // A multiply-add per weight, and per element of queries times keys and scores times values, thrice: once forward, twice backward.
        let attention = 2 * config.layers * config.heads * step.tokens * config.head_size;
        assert_eq!(work.flops_per_token as usize, 2 * 3 * (multiplied + attention), "{config:?} {step:?}");
        assert_eq!((work.sequences, work.sequence_tokens), (step.sequences, step.tokens));
        let sizes = (work.blocks, work.heads, work.channels, work.vocabulary);
        assert_eq!(sizes, (config.layers, config.heads, config.channels, config.vocabulary));
    }
}
