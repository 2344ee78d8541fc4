//! Steps of a pipeline whose modules a test drives itself, whatever they run on.

use crate::modules::{OnCpu as _, Passes as _};
use crate::support::{checkpoint, debug_state, golden, golden_losses};
use pipesim::internals::model::{AdamW, Parameters, Quantity, StageModule, Stopwatch, Tokenizer, Tokens};

/// Order of the ops of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// One micro-batch after the other, W right after I.
    FullBackward,
    /// All forwards, all backwards for the input, then all backwards for the weights, the last stage's first.
    DelayedWeights,
    /// Like the one before, micro-batches of the backward for the input in reverse, and the first stage's weights first.
    Reversed,
}

/// What is read, and what is to be predicted.
pub type Batch<'a> = (&'a [u32], &'a [u32]);

/// Loss and gradients of the whole model on one CPU, of so many sequences of tokens in micro-batches.
pub fn on_one_device(
    parameters: &Parameters,
    (inputs, targets): Batch,
    [sequences, tokens, microbatches]: [usize; 3],
) -> (f32, Parameters) {
    let layers = parameters.config.spec().split(1, None).unwrap();
    let sizes = [sequences / microbatches, tokens, microbatches];
    let mut module = StageModule::on_cpu(parameters, &[(0, layers[0].clone())], sizes).unwrap();
    let timer = &mut Stopwatch::default();
    module.begin(inputs, targets).unwrap();
    for k in 0..microbatches as u32 {
        module.forward(0, k, None, None, timer).unwrap();
        module.backward_input(0, k, None, None, timer).unwrap();
        module.backward_weight(0, k, timer).unwrap();
    }
    let mut gradients = Parameters::zeros(&parameters.config).unwrap();
    module.export(&mut gradients, Quantity::Gradients).unwrap();
    (module.losses().unwrap().iter().sum::<f32>() / microbatches as f32, gradients)
}

/// What steps consist of. An op runs on all stages, in order, but for the backward for the weights.
pub trait Steps {
    /// Stages, micro-batches.
    fn sizes(&self) -> (usize, usize);
    /// Gradients are zero, and the batch is there.
    fn begin(&mut self, batch: Batch);
    fn forward(&mut self, microbatch: usize, batch: Batch);
    fn backward_input(&mut self, microbatch: usize);
    fn backward_weight(&mut self, stage: usize, microbatch: usize);
    /// What is kept for ops to come.
    fn held_bytes(&self) -> usize;
    /// The first and the last stage add each other's tied gradient.
    fn exchange(&mut self);
    fn losses(&mut self) -> Vec<f32>;
    fn squared_norms(&mut self) -> Vec<(usize, f64)>;
    fn update(&mut self, step: u32, hyper: &AdamW, scale: f32);

    /// Writes this pipeline's parameters, or what belongs to them, to `all`.
    fn export(&mut self, all: &mut Parameters, what: Quantity);

    fn all(&mut self, what: Quantity) -> Parameters {
        let mut all = Parameters::zeros(&checkpoint().config).unwrap();
        self.export(&mut all, what);
        all
    }

    /// So many steps on the batch of the debug state: losses, norm, gradients and parameters.
    fn outcome(&mut self, steps: u32, order: Order) -> (Vec<f32>, f64, Parameters, Parameters) {
        let state = debug_state();
        let batch = (&state.inputs[..], &state.targets[..]);
        let step = |step| self.step(step, batch, order, &AdamW::default(), Some(0.5));
        let losses = (1..=steps).map(step).collect();
        (losses, self.norm(), self.all(Quantity::Gradients), self.all(Quantity::Values))
    }

    /// Everything of a step but the update; returns the loss.
    fn gradients(&mut self, batch: Batch, order: Order) -> f32 {
        let (stages, microbatches) = self.sizes();
        self.begin(batch);
        if order == Order::FullBackward {
            for microbatch in 0..microbatches {
                self.forward(microbatch, batch);
                self.backward_input(microbatch);
                (0..stages).rev().for_each(|stage| self.backward_weight(stage, microbatch));
            }
        } else {
            let reversed = |reverse: bool, n: usize| (0..n).map(move |i| if reverse { n - 1 - i } else { i });
            (0..microbatches).for_each(|microbatch| self.forward(microbatch, batch));
            reversed(order == Order::Reversed, microbatches).for_each(|microbatch| self.backward_input(microbatch));
            for stage in reversed(order == Order::DelayedWeights, stages) {
                (0..microbatches).for_each(|microbatch| self.backward_weight(stage, microbatch));
            }
        }
        assert_eq!(self.held_bytes(), 0, "all that was kept has been used");
        self.exchange();
        self.losses().iter().sum::<f32>() / microbatches as f32
    }

    /// Number of parts of the gradient norm.
    fn squares(&self) -> usize {
        checkpoint().config.spec().squares()
    }

    fn norm(&mut self) -> f64 {
        let mut parts = self.squared_norms();
        parts.sort_by_key(|part| part.0);
        let orders: Vec<usize> = parts.iter().map(|part| part.0).collect();
        assert_eq!(orders, (0..self.squares()).collect::<Vec<_>>(), "every part once");
        parts.iter().map(|part| part.1).sum::<f64>().sqrt()
    }

    /// A whole training step; returns the loss before the update.
    fn step(&mut self, step: u32, batch: Batch, order: Order, hyper: &AdamW, clip: Option<f64>) -> f32 {
        let loss = self.gradients(batch, order);
        let scale = clip.map_or(1.0, |clip| (clip / (self.norm() + 1e-6)).min(1.0));
        self.update(step, hyper, scale as f32);
        loss
    }

    /// Ten steps under a setting of PyTorch's give its losses.
    fn give_losses(&mut self, (name, hyper, clip): (&str, AdamW, Option<f64>), tolerance: f64) {
        let state = debug_state();
        let data = Tokens::read(&golden("gpt2/tokens.bin"), Tokenizer::Bytes).unwrap();
        for (step, expected) in golden_losses(name).into_iter().enumerate() {
            let batch = if name.starts_with('C') { step } else { 0 };
            let (inputs, targets) = data.batch(batch, state.batch, state.tokens).unwrap();
            let loss = self.step(step as u32 + 1, (&inputs, &targets), Order::FullBackward, &hyper, clip);
            assert!((f64::from(loss) - expected).abs() < tolerance, "{name} step {step}: {loss}, PyTorch's {expected}");
        }
    }
}
