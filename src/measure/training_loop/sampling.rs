//! Text sampled from a model: greedy, or at random by temperature among the likeliest tokens.

use anyhow::{Context, Result, ensure};
use pipesim_train::model::{Parameters, WholeModel};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Logits are divided by this; `None` always takes the likeliest token.
    pub temperature: Option<f32>,
    /// Number of likeliest tokens among which to choose; `None` for all.
    pub top_k: Option<usize>,
    /// Seed of the choices.
    pub seed: u64,
}

impl Sampling {
    /// Continues `prompt` by `count` tokens. `stream` tells samples of one run apart, such as their step: the same seed and stream give
    /// the same tokens.
    ///
    /// # Errors
    /// The prompt is empty, or the sequence is longer than the model's.
    pub fn sample(&self, parameters: &Parameters, prompt: &[u32], count: usize, stream: u64) -> Result<Vec<u32>> {
        self.sample_by(&mut WholeModel::new(parameters, prompt.len() + count)?, prompt, count, stream)
    }

    /// The same by a model of sequences that are long enough.
    pub fn sample_by(&self, model: &mut WholeModel<'_>, prompt: &[u32], count: usize, stream: u64) -> Result<Vec<u32>> {
        ensure!(!prompt.is_empty(), "expected a prompt of at least 1 token, found none: give a longer one");
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        generator.set_stream(stream);
        let mut ids = prompt.to_vec();
        for _ in 0..count {
            let logits = model.logits(&ids)?;
            // 53 bits: a number from 0 to below 1
            let uniform = (generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            ids.push(self.choose(&logits, uniform).context("expected finite logits, found none: lower `lr`")?);
        }
        Ok(ids.split_off(prompt.len()))
    }

    /// Chooses a token by its logit and a uniformly distributed number; `None` if all logits are NaN.
    pub fn choose(&self, logits: &[f32], uniform: f64) -> Option<u32> {
        let mut order: Vec<usize> = (0..logits.len()).filter(|&id| !logits[id].is_nan()).collect();
        // of equal ones the first, as PyTorch's argmax
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let first = *order.first()?;
        let Some(temperature) = self.temperature else { return u32::try_from(first).ok() };
        order.truncate(self.top_k.unwrap_or(order.len()).max(1));
        let weight = |&id: &usize| (f64::from(logits[id] - logits[first]) / f64::from(temperature)).exp();
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let mut left = uniform * weights.iter().sum::<f64>();
        let chosen = order.iter().zip(&weights).find(|(_, weight)| {
            left -= **weight;
            left < 0.0
        });
        u32::try_from(chosen.map_or(first, |(&id, _)| id)).ok()
    }
}
