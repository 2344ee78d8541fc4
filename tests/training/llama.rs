//! Llama against PyTorch's numbers (`tests/golden/llama`), against itself under every schedule, and against finite differences.

use crate::modules::{OnCpu as _, Passes as _};
use crate::pipeline::on_one_device;
use crate::run::{losses, schedules, train, values};
use crate::support::{golden, golden_json, number, numbers, relative_distance};
use pipesim::internals::experiment::{Backend, Training, TrainingConfig};
use pipesim::internals::model::*;
use pipesim::internals::model_spec::transformer::{Rotary, RotaryScaling};
use pipesim::internals::model_spec::{MicroBatch, huggingface};
use pipesim::internals::ranks::Ranks;
use safetensors::SafeTensors;
use serde_json::Value;
use std::time::Duration;

/// A model that PyTorch trained.
pub struct Case {
    pub name: &'static str,
    pub config: Config,
    pub expected: Value,
}

impl Case {
    /// All of them.
    pub fn all() -> [Case; 3] {
        ["A", "B", "C"].map(|name| {
            let text = std::fs::read_to_string(golden(format!("llama/{name}/config.json"))).unwrap();
            let config = huggingface::read(&text).unwrap().config;
            Case { name, config, expected: golden_json(format!("llama/{name}/expected.json")) }
        })
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(golden(format!("llama/{}/{name}", self.name))).unwrap()
    }

    /// Sequences per step, micro-batches per step, tokens per sequence.
    pub fn sizes(&self) -> [usize; 3] {
        ["batch", "micro", "seq"].map(|key| number(&self.expected, key) as usize)
    }

    pub fn tokens(&self) -> Tokens {
        Tokens::read(&golden(format!("llama/{}/tokens.bin", self.name)), Tokenizer::Bytes).unwrap()
    }

    /// The tensors of a file in the order of the description: what has the same input is one tensor, row by row.
    fn tensors(&self, file: &str) -> Vec<Vec<f32>> {
        let bytes = self.file(file);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let read = |name: String| floats(file.tensor(&name).unwrap().data());
        let layers = |names: &[&str]| {
            let name = |layer: usize, name: &str| format!("model.layers.{layer}.{name}.weight");
            let all = (0..self.config.layers).flat_map(|layer| names.iter().map(move |own| name(layer, own)));
            all.flat_map(read).collect::<Vec<f32>>()
        };
        let of = |(_, tensor): (usize, &pipesim::internals::model_spec::Tensor)| match tensor.name {
            "tok_embeddings" => read("model.embed_tokens.weight".to_string()),
            "attention_norm" => layers(&["input_layernorm"]),
            "wqkv" => layers(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            "wo" => layers(&["self_attn.o_proj"]),
            "ffn_norm" => layers(&["post_attention_layernorm"]),
            "w13" => layers(&["mlp.gate_proj", "mlp.up_proj"]),
            "w2" => layers(&["mlp.down_proj"]),
            "norm" => read("model.norm.weight".to_string()),
            "output" => read("lm_head.weight".to_string()),
            other => panic!("{other}"),
        };
        self.config.spec().tensors().map(of).collect()
    }

    pub fn parameters(&self) -> Parameters {
        let tensors = self.tensors("model.safetensors");
        assert_eq!(tensors.iter().map(Vec::len).collect::<Vec<_>>(), self.config.tensor_lengths());
        Parameters { config: self.config, tensors }
    }

    /// Checks the loss and the gradients of the first batch against PyTorch's.
    #[track_caller]
    pub fn check_gradients(&self, loss: f32, found: &Parameters) {
        let theirs = number(&self.expected, "loss");
        assert!((f64::from(loss) - theirs).abs() < 1e-4, "{}: loss {loss}, PyTorch's {theirs}", self.name);
        let squares = found.tensors.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
        let norm = number(&self.expected, "gradient_norm");
        assert!((squares.sqrt() / norm - 1.0).abs() < 1e-4, "{}: length {}", self.name, squares.sqrt());
        let (expected, file) = (self.tensors("gradients.safetensors"), self.file("gradients.safetensors"));
        let file = SafeTensors::deserialize(&file).unwrap();
        let spec = self.config.spec();
        for (((_, tensor), found), expected) in spec.tensors().zip(&found.tensors).zip(&expected) {
            let rows: Vec<f32> = match file.tensor("rows") {
                Ok(rows) if tensor.name == "tok_embeddings" => {
                    let rows = ids(rows.data(), rows.shape()[0]);
                    let row = |row: usize| &found[row * self.config.channels..][..self.config.channels];
                    rows.into_iter().flat_map(row).copied().collect()
                }
                _ => found.clone(),
            };
            assert_eq!(rows.len(), expected.len(), "{}", tensor.name);
            let distance = relative_distance(&rows, expected);
            assert!(distance < 1e-4, "{}: {} differs by {distance:e}", self.name, tensor.name);
        }
    }

    /// Names of PyTorch's settings.
    pub fn settings(&self) -> Vec<String> {
        self.expected["settings"].as_object().unwrap().keys().cloned().collect()
    }

    /// One of the settings: the optimizer, the norm at which gradients are clipped, and whether all steps have the same batch.
    pub fn setting(&self, name: &str) -> (AdamW, Option<f64>, bool) {
        let values = &self.expected["settings"][name];
        let [learning_rate, beta1, beta2, epsilon, weight_decay] =
            ["lr", "beta1", "beta2", "eps", "weight_decay"].map(|key| number(values, key) as f32);
        let adamw = AdamW { learning_rate, beta1, beta2, epsilon, weight_decay };
        (adamw, values["clip"].as_f64(), values["repeat_batch"].as_bool().unwrap())
    }

    /// PyTorch's losses of ten steps under a setting.
    pub fn losses(&self, setting: &str) -> Vec<f64> {
        numbers(&self.expected[setting])
    }

    /// A training under one of PyTorch's settings, in `m` micro-batches.
    pub fn training(&self, setting: &str, m: usize) -> Training {
        let (adamw, clip, repeat_batch) = self.setting(setting);
        let clip = clip.map(|clip| clip as f32);
        let [batch, _, seq] = self.sizes();
        Training {
            parameters: self.parameters(),
            tokens: self.tokens(),
            training_config: TrainingConfig { adamw, clip, repeat_batch, ..TrainingConfig::default() },
            micro_batch: MicroBatch { sequences: batch / m, tokens: seq },
            timeout: Duration::from_secs(30),
            ranks: Ranks::alone(),
            backend: Backend::default(),
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Whole numbers of 32 or 64 bits.
fn ids(bytes: &[u8], count: usize) -> Vec<usize> {
    let width = bytes.len() / count;
    bytes.chunks(width).map(|id| u32::from_le_bytes(*id.first_chunk().unwrap()) as usize).collect()
}

#[test]
fn loss_and_gradients_are_pytorchs() {
    for case in Case::all() {
        let [batch, micro, seq] = case.sizes();
        let (inputs, targets) = case.tokens().batch(0, batch, seq).unwrap();
        for microbatches in [1, micro] {
            let (loss, found) = on_one_device(&case.parameters(), (&inputs, &targets), [batch, seq, microbatches]);
            case.check_gradients(loss, &found);
        }
    }
}

#[test]
fn logits_are_pytorchs() {
    for case in Case::all() {
        let file = case.file("logits.safetensors");
        let file = SafeTensors::deserialize(&file).unwrap();
        let [_, _, seq] = case.sizes();
        let tokens = file.tensor("tokens").unwrap();
        let tokens: Vec<u32> = ids(tokens.data(), seq).into_iter().map(|id| id as u32).collect();
        let layers = case.config.spec().split(1, None).unwrap();
        let mut module = StageModule::on_cpu(&case.parameters(), &[(0, layers[0].clone())], [1, seq, 1]).unwrap();
        module.compute().keep_logits(true);
        module.begin(&tokens, &tokens).unwrap();
        module.forward(0, 0, None, None, &mut Stopwatch::default()).unwrap();
        let found = module.compute().logits(0).unwrap();
        let all: Vec<usize> = (0..case.config.vocabulary).collect();
        let columns = file.tensor("columns").map_or(all, |columns| ids(columns.data(), columns.shape()[0]));
        let found = found.chunks(case.config.vocabulary).flat_map(|row| columns.iter().map(|&column| row[column]));
        for (found, expected) in found.zip(floats(file.tensor("logits").unwrap().data())) {
            assert!((found - expected).abs() < 1e-4, "{}: {found}, PyTorch's {expected}", case.name);
        }
    }
}

#[test]
fn ten_steps_give_pytorchs_losses_under_every_schedule() {
    for case in Case::all() {
        let [_, micro, _] = case.sizes();
        let settings = case.settings();
        assert_eq!(settings.len(), 4);
        for (number, setting) in settings.iter().enumerate() {
            let (training, theirs) = (case.training(setting, micro), case.losses(setting));
            let mut count = 0;
            for p in 1..=case.config.layers as u32 {
                // one setting under every schedule, the others on every number of devices
                let mut graphs = schedules(p, micro as u32);
                graphs.retain(|graph| training.stages(graph).is_ok());
                graphs.truncate(if number == 3 { usize::MAX } else { 2 });
                for graph in &graphs {
                    let ours = losses(&train(&training, &mut training.session(graph).unwrap(), micro as u32, 10));
                    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                        let name = (case.name, &graph.schedule().name);
                        assert!(
                            (ours - theirs).abs() < 1e-4,
                            "{name:?} p={p} {setting} {step}: {ours}, PyTorch {theirs}"
                        );
                    }
                    count += 1;
                }
            }
            assert!(count > 0 && (number < 3 || case.config.layers == 1 || count >= 10), "{count} runs");
        }
    }
}

#[test]
fn every_schedule_gives_the_same_bits() {
    let [_, case, _] = Case::all();
    let mut training = case.training("stream_b0.9_0.95_wd0.1_clip1", 3);
    training.micro_batch.sequences = 1;
    let bits = |graph: &_| {
        let mut session = training.session(graph).unwrap();
        let losses = losses(&train(&training, &mut session, 4, 3));
        (losses.into_iter().map(f64::to_bits).collect::<Vec<_>>(), values(&training, &mut session))
    };
    let reference = bits(&schedules(1, 4)[0]);
    for p in 1..=4 {
        for graph in schedules(p, 4) {
            // looped BFS accumulates micro-batches in reverse, two directions accumulate each their own: other sums
            let schedule = graph.schedule();
            if schedule.name != "looped-bfs" && schedule.placement.directions() == 1 {
                assert!(bits(&graph) == reference, "{} on {p} devices", schedule.name);
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let scaling = RotaryScaling::Llama3 { factor: 4.0, low: 1.0, high: 4.0, original_positions: 64.0 };
    let rotary = Some(Rotary { theta: 10_000.0, scaling });
    let config = Config { rotary, ..crate::model::llama(37, false) };
    let mut parameters = Parameters::random(&config, 3).unwrap();
    parameters.tensors.iter_mut().flatten().for_each(|value| *value *= 5.0);
    let tokens: Vec<u32> = (0..2 * 100 + 1).map(|i| i * i * 7 % 37).collect();
    let evaluate = |parameters: &Parameters| {
        let (loss, gradients) = on_one_device(parameters, (&tokens[..200], &tokens[1..]), [2, 100, 1]);
        (f64::from(loss), gradients)
    };
    let (_, gradients) = evaluate(&parameters);
    for (number, (_, tensor)) in config.spec().tensors().enumerate() {
        // along the gradient itself, where the loss changes most
        let length = gradients.tensors[number].iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        let shifted = |sign: f64| {
            let mut parameters = parameters.clone();
            for (value, &g) in parameters.tensors[number].iter_mut().zip(&gradients.tensors[number]) {
                *value += (sign * 1e-3 * f64::from(g) / length) as f32;
            }
            evaluate(&parameters).0
        };
        let slope = (shifted(1.0) - shifted(-1.0)) / 2e-3;
        let error = (slope - length).abs() / (length + 1e-2);
        assert!(error < 2e-2, "{}: slope {slope}, gradient {length}", tensor.name);
    }
}

/// Llama 3.1's published `rope_scaling`: short waves stay, those longer than the first training's sequences become 8 times as long.
#[test]
fn scaled_frequencies_keep_short_waves_and_stretch_long_ones() {
    let plain = Rotary::new(500_000.0).frequencies(128);
    let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_positions: 8192.0 };
    let scaled = Rotary { theta: 500_000.0, scaling }.frequencies(128);
    assert_eq!((plain.len(), plain[0], scaled[0]), (64, 1.0, 1.0));
    for (plain, scaled) in plain.iter().zip(&scaled) {
        let turns = 8192.0 * plain / std::f64::consts::TAU;
        match turns {
            _ if turns >= 4.0 => assert_eq!(plain, scaled),
            _ if turns <= 1.0 => assert_eq!(plain / 8.0, *scaled),
            _ => assert!((plain / 8.0..*plain).contains(scaled)),
        }
    }
    assert!(scaled.is_sorted_by(|a, b| a > b));
}
