//! The model against PyTorch's numbers, against itself under every partition, and its readers against bad files.

use crate::modules::{OnCpu as _, Passes as _};
use crate::pipeline::{Batch, Order, Steps, on_one_device};
use crate::support::{checkpoint, debug_state, golden, golden_settings, relative_distance};
use std::path::Path;

use pipesim::internals::compute::{Alone, Collective};
use pipesim::internals::epilogue::GradientSync;
use pipesim::internals::model::*;
use pipesim::internals::model_spec::gpt2::{self, TENSOR_NAMES};
use pipesim::internals::model_spec::transformer::{Activation, ActivationFunction, Biases, Rotary, Style};
use pipesim::internals::model_spec::{BLOCK, MicroBatch, Stage};
use pipesim::internals::op::Kind;

/// Devices that run a pipeline's ops one after the other.
pub struct Pipeline {
    pub shards: Vec<StageModule<Cpu>>,
    device_of_stage: Vec<usize>,
    pub microbatches: usize,
    tied_elements: usize,
    rows: usize,
}

impl Pipeline {
    /// Stage s lives on device `devices[s]`.
    fn new(parameters: &Parameters, devices: &[usize], batch: usize, tokens: usize, microbatches: usize) -> Pipeline {
        Pipeline::of_rank(parameters, devices, [batch, tokens, microbatches], |_| {
            (Box::new(Alone) as Box<dyn Collective>).into()
        })
    }

    /// One tensor-parallel rank of every device; `ranks` joins that of a device to the others.
    pub fn of_rank(
        parameters: &Parameters,
        devices: &[usize],
        [batch, tokens, microbatches]: [usize; 3],
        mut ranks: impl FnMut(usize) -> WorkerShare<dyn Collective>,
    ) -> Pipeline {
        let layers = parameters.config.spec().split(devices.len(), None).unwrap();
        let sequences = batch / microbatches;
        let shard = |device: usize| {
            let stages = layers.iter().enumerate().filter(|(stage, _)| devices[*stage] == device);
            let stages: Vec<_> = stages.map(|(stage, layers)| (stage as u32, layers.clone())).collect();
            StageModule::on_cpu_rank(parameters, &stages, [sequences, tokens, microbatches], ranks(device)).unwrap()
        };
        let shards: Vec<_> = (0..=*devices.iter().max().unwrap()).map(shard).collect();
        Pipeline {
            rows: shards[0].rows_between(),
            shards,
            device_of_stage: devices.to_vec(),
            microbatches,
            tied_elements: parameters.config.spec().tied_elements(|elements| elements) as usize,
        }
    }

    fn shard(&mut self, stage: usize) -> &mut StageModule<Cpu> {
        &mut self.shards[self.device_of_stage[stage]]
    }
}

impl Steps for Pipeline {
    fn sizes(&self) -> (usize, usize) {
        (self.device_of_stage.len(), self.microbatches)
    }

    fn begin(&mut self, (inputs, targets): Batch) {
        for shard in &mut self.shards {
            shard.zero_gradients().unwrap();
            shard.begin(inputs, targets).unwrap();
        }
    }

    fn forward(&mut self, microbatch: usize, _: Batch) {
        let stages = self.device_of_stage.len();
        let mut hidden = vec![0.0; self.rows * self.shards[0].width()];
        for stage in 0..stages {
            let before = hidden.clone();
            let (input, output) = ((stage > 0).then_some(&before[..]), (stage < stages - 1).then_some(&mut hidden[..]));
            let (stage_id, microbatch) = (stage as u32, microbatch as u32);
            self.shard(stage).forward(stage_id, microbatch, input, output, &mut Stopwatch::default()).unwrap();
        }
    }

    fn backward_input(&mut self, microbatch: usize) {
        let stages = self.device_of_stage.len();
        let mut gradient = vec![0.0; self.rows * self.shards[0].width()];
        for stage in (0..stages).rev() {
            let after = gradient.clone();
            let (input, output) =
                ((stage < stages - 1).then_some(&after[..]), (stage > 0).then_some(&mut gradient[..]));
            let (stage_id, microbatch) = (stage as u32, microbatch as u32);
            self.shard(stage).backward_input(stage_id, microbatch, input, output, &mut Stopwatch::default()).unwrap();
        }
    }

    fn backward_weight(&mut self, stage: usize, microbatch: usize) {
        self.shard(stage).backward_weight(stage as u32, microbatch as u32, &mut Stopwatch::default()).unwrap();
    }

    fn held_bytes(&self) -> usize {
        self.shards.iter().map(StageModule::held_bytes).sum()
    }

    fn exchange(&mut self) {
        let [first, last] = [self.device_of_stage[0], *self.device_of_stage.last().unwrap()];
        if first != last && self.tied_elements > 0 {
            let length = self.tied_elements;
            let sent = [first, last].map(|device| {
                let mut own = vec![0.0; length];
                self.shards[device].copy_gradient(GradientSync::Tied, &mut own).unwrap();
                own
            });
            self.shards[first].merge_gradient(GradientSync::Tied, &sent[1]).unwrap();
            self.shards[last].merge_gradient(GradientSync::Tied, &sent[0]).unwrap();
        }
    }

    fn export(&mut self, all: &mut Parameters, what: Quantity) {
        self.shards.iter_mut().for_each(|shard| shard.export(all, what).unwrap());
    }

    fn losses(&mut self) -> Vec<f32> {
        self.shards[*self.device_of_stage.last().unwrap()].losses().unwrap()
    }

    fn squared_norms(&mut self) -> Vec<(usize, f64)> {
        let squared = |shard: &mut StageModule<Cpu>| {
            shard.square().unwrap();
            shard.squared_norms().unwrap()
        };
        self.shards.iter_mut().flat_map(squared).collect()
    }

    fn update(&mut self, step: u32, hyper: &AdamW, scale: f32) {
        self.shards.iter_mut().for_each(|shard| shard.update(step, hyper, scale).unwrap());
    }
}

const PARTITIONS: &[&[usize]] = &[&[0], &[0, 1], &[0, 0], &[0, 1, 1, 0], &[0, 1, 0, 1], &[0, 1, 2, 3]];

#[test]
fn loss_logits_and_gradients_are_pytorchs_under_every_partition() {
    let state = debug_state();
    for devices in PARTITIONS {
        for (microbatches, order) in [(1, Order::FullBackward), (2, Order::DelayedWeights), (8, Order::Reversed)] {
            let mut pipeline = Pipeline::new(&checkpoint(), devices, state.batch, state.tokens, microbatches);
            pipeline.shards.iter_mut().for_each(|shard| shard.compute().keep_logits(true));
            let loss = pipeline.gradients((&state.inputs, &state.targets), order);
            assert!((loss - state.loss).abs() < 1e-5, "loss {loss}, PyTorch's {}", state.loss);
            let head = pipeline.shard(devices.len() - 1);
            let logits: Vec<f32> =
                (0..microbatches as u32).flat_map(|k| head.compute().logits(k).unwrap().to_vec()).collect();
            let distance = relative_distance(&logits, &state.logits);
            assert!(distance < 1e-5, "logits differ by {distance:e}");
            let found = pipeline.all(Quantity::Gradients);
            for ((name, found), expected) in TENSOR_NAMES.iter().zip(&found.tensors).zip(&state.gradients) {
                let distance = relative_distance(found, expected);
                assert!(distance < 1e-5, "{devices:?}, {microbatches} micro-batches: {name} differs by {distance:e}");
            }
        }
    }
}

#[test]
fn ten_steps_of_adamw_give_pytorchs_losses() {
    let state = debug_state();
    for setting in golden_settings() {
        for devices in [&[0][..], &[0, 1, 2, 3]] {
            Pipeline::new(&checkpoint(), devices, state.batch, state.tokens, 4).give_losses(setting, 1e-4);
        }
    }
}

#[test]
fn no_partition_and_no_order_changes_a_bit() {
    let state = debug_state();
    let run = |devices: &[usize], order: Order| {
        let mut pipeline = Pipeline::new(&checkpoint(), devices, state.batch, state.tokens, 4);
        pipeline.outcome(3, order)
    };
    let reference = run(&[0], Order::FullBackward);
    for devices in PARTITIONS {
        for order in [Order::FullBackward, Order::DelayedWeights, Order::Reversed] {
            assert!(run(devices, order) == reference, "{devices:?} differs");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let config = gpt2::Config { max_sequence: 100, vocabulary: 37, layers: 2, heads: 3, channels: 24 }.transformer();
    let mut parameters = Parameters::random(&config, 3).unwrap();
    parameters.tensors.iter_mut().flatten().for_each(|value| *value *= 5.0);
    let tokens: Vec<u32> = (0..2 * 100 + 1).map(|i| i * i * 7 % 37).collect();
    let evaluate = |parameters: &Parameters| {
        let (loss, gradients) = on_one_device(parameters, (&tokens[..200], &tokens[1..]), [2, 100, 1]);
        (f64::from(loss), gradients)
    };
    let (_, gradients) = evaluate(&parameters);
    for (tensor, name) in TENSOR_NAMES.iter().enumerate() {
        // along the gradient itself, where the loss changes most
        let length = gradients.tensors[tensor].iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        let shifted = |sign: f64| {
            let mut parameters = parameters.clone();
            for (value, &g) in parameters.tensors[tensor].iter_mut().zip(&gradients.tensors[tensor]) {
                *value += (sign * 1e-3 * f64::from(g) / length) as f32;
            }
            evaluate(&parameters).0
        };
        let slope = (shifted(1.0) - shifted(-1.0)) / 2e-3;
        let error = (slope - length).abs() / (length + 1e-2);
        assert!(error < 2e-2, "{name}: slope {slope}, gradient {length}");
    }
}

#[test]
fn saved_parameters_give_the_same_step_again() {
    let state = debug_state();
    let mut pipeline = Pipeline::new(&checkpoint(), &[0, 1], state.batch, state.tokens, 2);
    let batch = (&state.inputs[..], &state.targets[..]);
    pipeline.step(1, batch, Order::FullBackward, &AdamW::default(), None);
    pipeline.shards.iter_mut().for_each(|shard| shard.save().unwrap());
    let first = pipeline.step(2, batch, Order::FullBackward, &AdamW::default(), None);
    let after = pipeline.all(Quantity::Values);
    pipeline.shards.iter_mut().for_each(|shard| shard.restore().unwrap());
    assert!(pipeline.all(Quantity::Values) != after);
    assert_eq!(pipeline.step(2, batch, Order::FullBackward, &AdamW::default(), None), first);
    assert!(pipeline.all(Quantity::Values) == after);
}

#[test]
fn exported_state_that_is_imported_gives_the_same_step() {
    let state = debug_state();
    let batch = (&state.inputs[..], &state.targets[..]);
    let mut one = Pipeline::new(&checkpoint(), &[0, 1], state.batch, state.tokens, 2);
    one.step(1, batch, Order::FullBackward, &AdamW::default(), None);
    let kept = [Quantity::Values, Quantity::FirstMoments, Quantity::SecondMoments];
    let exported = kept.map(|what| (what, one.all(what)));
    let expected = one.step(2, batch, Order::FullBackward, &AdamW::default(), None);

    let mut other = Pipeline::new(&checkpoint(), &[0, 1, 1, 0], state.batch, state.tokens, 2);
    for (what, parameters) in &exported {
        other.shards.iter_mut().for_each(|shard| shard.import(parameters, *what).unwrap());
    }
    assert_eq!(other.step(2, batch, Order::FullBackward, &AdamW::default(), None), expected);
    assert!(kept.map(|what| other.all(what)) == kept.map(|what| one.all(what)));
    assert!(other.shards[0].import(&exported[0].1, Quantity::Gradients).is_err());
}

#[test]
fn laps_cover_every_part_once_and_memory_is_counted() {
    let state = debug_state();
    let parameters = checkpoint();
    let layers = parameters.config.spec().split(1, None).unwrap();
    let mut shard =
        StageModule::on_cpu(&parameters, &[(0, layers[0].clone())], [state.batch, state.tokens, 1]).unwrap();
    let mut timer = Stopwatch::default();
    shard.begin(&state.inputs, &state.targets).unwrap();
    shard.forward(0, 0, None, None, &mut timer).unwrap();
    let after_forward = shard.held_bytes();
    shard.backward_input(0, 0, None, None, &mut timer).unwrap();
    assert!(shard.held_bytes() > 0 && shard.peak_held_bytes() >= after_forward.max(shard.held_bytes()));
    shard.backward_weight(0, 0, &mut timer).unwrap();
    assert_eq!(shard.held_bytes(), 0);
    let count = |part| timer.timings.iter().filter(|timing| timing.part == part).count();
    assert_eq!((count(Part::Embedding), count(Part::Block), count(Part::Head)), (3, 12, 3));
}

#[test]
fn ops_leave_behind_what_the_description_says() {
    let odd = gpt2::Config { max_sequence: 16, vocabulary: 37, layers: 3, heads: 3, channels: 24 }.transformer();
    let tokens: Vec<u32> = (0..32).collect();
    for config in [odd, llama(37, false), llama(37, true)] {
        let parameters = Parameters::random(&config, 1).unwrap();
        let stages = [(0, config.spec().split(1, None).unwrap().remove(0))];
        let mut shard = StageModule::on_cpu(&parameters, &stages, [2, 16, 1]).unwrap();
        shard.begin(&tokens, &tokens).unwrap();
        let micro = MicroBatch { sequences: 2, tokens: 16 };
        let left = |kind| config.spec().left(&stages[0].1, kind, micro, &STORAGE) as usize;
        shard.forward(0, 0, None, None, &mut Stopwatch::default()).unwrap();
        assert_eq!(shard.held_bytes(), left(Kind::F));
        shard.backward_input(0, 0, None, None, &mut Stopwatch::default()).unwrap();
        assert_eq!(shard.held_bytes(), left(Kind::I));
    }
}

/// A Llama of odd sizes: three groups of two heads, heads of 6 channels.
pub fn llama(vocabulary: usize, tied: bool) -> Config {
    Config {
        style: Style::Llama,
        biases: Biases::NONE,
        vocabulary_multiple: 1,
        rotary: Some(Rotary::new(10_000.0)),
        groups: 3,
        head_size: 6,
        mlp: 52,
        activation: Activation::Gated,
        function: ActivationFunction::Silu,
        tied,
        ..Config::gpt(vocabulary, 0, 2, 6, 28)
    }
}

#[test]
fn wrong_calls_are_refused() {
    let state = debug_state();
    let parameters = checkpoint();
    let layers = parameters.config.spec().split(2, None).unwrap();
    let new = |stages: &[(u32, Stage)], tokens| StageModule::on_cpu(&parameters, stages, [1, tokens, 8]);
    assert!(new(&[(0, layers[0].clone())], 65).is_err_and(|error| error.to_string().contains("found 65")));
    assert!(new(&[(0, layers[0].clone()), (1, layers[0].clone())], 32).is_err());
    assert!(new(&[(0, Stage::transformer(false, 3..5, false))], 32).is_err());

    let mut shard = new(&[(0, layers[0].clone())], 32).unwrap();
    let timer = &mut Stopwatch::default();
    let (tokens, length) = (&state.inputs[..8 * 32], 32 * shard.width());
    let (mut output, hidden) = (vec![0.0; length], vec![0.0; length]);
    let mut outside = tokens.to_vec();
    outside[3] = 257;
    assert!(shard.forward(0, 0, None, Some(&mut output), timer).is_err(), "no tokens yet");
    assert!(shard.begin(&outside, &[]).is_err());
    assert!(shard.begin(&tokens[1..], &[]).is_err());
    shard.begin(tokens, &[]).unwrap();
    assert!(shard.forward(1, 0, None, Some(&mut output), timer).is_err());
    assert!(shard.forward(0, 8, None, Some(&mut output), timer).is_err());
    assert!(shard.forward(0, 0, Some(&hidden), Some(&mut output), timer).is_err());
    assert!(shard.forward(0, 0, None, Some(&mut output[1..]), timer).is_err());
    assert!(shard.forward(0, 0, None, None, timer).is_err());
    assert!(shard.backward_input(0, 0, Some(&hidden), None, timer).is_err());
    assert!(shard.backward_weight(0, 0, timer).is_err());
    // half of a tied pair waits for the other half
    assert!(shard.update(1, &AdamW::default(), 1.0).is_err() && shard.square().is_err());

    shard.forward(0, 0, None, Some(&mut output), timer).unwrap();
    assert!(shard.forward(0, 0, None, Some(&mut output), timer).is_err());
    assert!(shard.backward_weight(0, 0, timer).is_err());
    assert!(shard.backward_input(0, 0, None, None, timer).is_err());
    shard.backward_input(0, 0, Some(&hidden), None, timer).unwrap();
    assert!(shard.backward_input(0, 0, Some(&hidden), None, timer).is_err());

    // a step that is given up leaves nothing behind
    shard.zero_gradients().unwrap();
    assert_eq!(shard.held_bytes(), 0);
    shard.forward(0, 0, None, Some(&mut output), timer).unwrap();
}

#[test]
fn layers_are_split_evenly_or_as_told() {
    let spec = gpt2::Config::preset("tiny").unwrap().spec();
    let counts = |stages, explicit: Option<&[usize]>| -> Vec<usize> {
        spec.split(stages, explicit).unwrap().iter().map(|stage| stage.count(BLOCK)).collect()
    };
    assert_eq!(counts(3, None), [3, 3, 2]);
    assert_eq!(counts(8, None), [1; 8]);
    assert_eq!(counts(3, Some(&[0, 8, 0])), [0, 8, 0]);
    let ends = spec.split(2, Some(&[5, 3])).unwrap();
    assert_eq!(ends[0], Stage::transformer(true, 0..5, false));
    assert_eq!(ends[1], Stage::transformer(false, 5..8, true));
    for (stages, explicit) in [
        (0, None),
        (9, None),
        (2, Some(&[4, 5][..])),
        (3, Some(&[4, 4])),
        (3, Some(&[4, 0, 4])),
        (2, Some(&[usize::MAX, 9])),
    ] {
        assert!(spec.split(stages, explicit).is_err(), "{stages} {explicit:?}");
    }
    assert!(spec.split(9, None).unwrap_err().to_string().contains("8 layers"));
}

#[test]
fn presets_are_gpt2s_sizes() {
    for (name, config) in gpt2::Config::PRESETS {
        config.validate().unwrap();
        assert_eq!(gpt2::Config::preset(name), Some(*config));
    }
    let gpt2 = gpt2::Config::preset("gpt2").unwrap();
    assert_eq!((gpt2.padded_vocabulary(), gpt2.parameter_count()), (50304, 124_475_904));
    assert_eq!(gpt2::Config::preset("gpt3"), None);
    assert!(gpt2::Config { heads: 5, ..gpt2 }.validate().is_err());
    assert!(gpt2::Config { layers: 0, ..gpt2 }.validate().is_err());
    assert!(gpt2::Config { channels: usize::MAX, ..gpt2 }.validate().is_err());
    assert!(gpt2::Config { channels: 12 << 20, ..gpt2 }.validate().is_err());
}

#[test]
fn random_parameters_are_gpt2s_initialisation() {
    let config = gpt2::Config::preset("tiny").unwrap().transformer();
    let parameters = Parameters::random(&config, 1).unwrap();
    assert!(parameters == Parameters::random(&config, 1).unwrap());
    assert!(parameters != Parameters::random(&config, 2).unwrap());
    let deviation = |name: &str| {
        let tensor = &parameters.tensors[TENSOR_NAMES.iter().position(|tensor| *tensor == name).unwrap()];
        (tensor.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / tensor.len() as f64).sqrt()
    };
    assert!((deviation("qkvw") - 0.02).abs() < 1e-4);
    assert!((deviation("fcprojw") - 0.02 / 4.0).abs() < 1e-4);
    assert_eq!((deviation("ln1w"), deviation("fcb")), (1.0, 0.0));
    assert!(parameters.tensors[0][257 * 384..].iter().all(|&x| x == 0.0));
}

#[test]
fn random_parameters_have_the_same_bits_as_ever() {
    let odd = gpt2::Config { max_sequence: 7, vocabulary: 11, layers: 3, heads: 3, channels: 9 };
    let tiny = gpt2::Config::preset("tiny").unwrap();
    for (config, seed, expected) in [(odd, 7, 0xc1dc_d4ef_2c9b_71d8_u64), (tiny, 42, 0xff03_dbb6_bfd1_6fa1)] {
        let parameters = Parameters::random(&config.transformer(), seed).unwrap();
        let bits = parameters.tensors.iter().flatten().map(|value| u64::from(value.to_bits()));
        let hash = bits.fold(0xcbf2_9ce4_8422_2325, |hash, bits| (hash ^ bits).wrapping_mul(0x100_0000_01b3));
        assert_eq!(hash, expected, "{config:?}"); // FNV-1a, of 32 bits at a time
    }
}

#[test]
fn a_bfloat16_checkpoint_is_widened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bin");
    let parameters = checkpoint();
    let mut bytes = std::fs::read(golden("gpt2/model.bin")).unwrap()[..1024].to_vec();
    bytes[4] = 5;
    let values = parameters.tensors.iter().flatten();
    bytes.extend(values.clone().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    let read = Parameters::read(&path).unwrap();
    let cut = values.map(|value| f32::from_bits(value.to_bits() & 0xffff_0000));
    assert!(read.tensors.iter().flatten().copied().eq(cut));
}

/// Writes `bytes`, reads them with `read` and returns the message of the error that must come.
fn refusal<T>(bytes: &[u8], read: impl Fn(&Path) -> anyhow::Result<T>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.bin");
    std::fs::write(&path, bytes).unwrap();
    let error = read(&path).err().expect("a wrong file must be refused");
    format!("{error:#}")
}

#[test]
fn wrong_checkpoints_are_refused() {
    let good = std::fs::read(golden("gpt2/model.bin")).unwrap();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        refusal(&bytes, Parameters::read)
    };
    let word = |index: usize, value: i32| {
        move |bytes: &mut Vec<u8>| bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes())
    };
    assert!(refused(&word(0, 7)).contains("found 7"));
    assert!(refused(&word(1, 4)).contains("found 4"));
    assert!(refused(&word(4, 0)).contains("layers"));
    assert!(refused(&word(4, -3)).contains("-3"));
    assert!(refused(&word(5, 3)).contains("multiple of heads"));
    assert!(refused(&word(4, i32::MAX)).contains("2^31"));
    assert!(refused(&word(4, 1 << 30)).contains("at most 2^42"));
    assert!(refused(&word(2, 100_000_000)).contains("cut short"));
    assert!(refused(&word(7, 257)).contains("padded"));
    assert!(refused(&|bytes| bytes.truncate(5000)).contains("cut short"));
    assert!(refused(&|bytes| bytes.truncate(500)).contains("1024"));
    assert!(refused(&|bytes| bytes.push(0)).contains("bytes follow"));
    assert!(refused(&|bytes| bytes.clear()).contains("found a file of 0"));
    assert!(Parameters::read(Path::new("missing.bin")).is_err());
}

#[test]
fn token_files_and_texts_become_tokens() {
    let tokens = Tokens::read(&golden("gpt2/tokens.bin"), Tokenizer::Gpt2).unwrap();
    assert_eq!((tokens.len(), tokens.vocabulary_needed), (10241, 257));
    let good = std::fs::read(golden("gpt2/tokens.bin")).unwrap();
    let read = |path: &Path| Tokens::read(path, Tokenizer::Bytes);
    assert!(refusal(&good[..good.len() - 2], read).contains("found 21504"));
    assert!(refusal(&[&good[..], &[0]].concat(), read).contains("found 21507"));
    assert!(refusal(&good[..20], read).contains("1024"));
    assert!(refusal(&[&good[..4], &[2], &good[5..]].concat(), read).contains("version"));
    assert!(refusal(&[], read).contains("empty"));
    assert!(refusal(&std::fs::read(golden("gpt2/model.bin")).unwrap(), read).contains("another of llm.c's files"));
    assert!(refusal(&[0xff, 0xfe, 0xfd, 0xfc], |path| Tokens::read(path, Tokenizer::Gpt2)).contains("UTF-8"));

    // ids of 32 bits: the same ids, and one that 16 bits do not hold
    let mut words: Vec<u32> = vec![0; 256];
    words[..3].copy_from_slice(&[20240801, 7, 10242]);
    words.extend(good[1024..].as_chunks::<2>().0.iter().map(|id| u32::from(u16::from_le_bytes(*id))));
    words.push(70_000);
    let wide: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(refusal(&wide[..wide.len() - 2], read).contains("expected 41992 bytes"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.bin");
    std::fs::write(&path, &wide).unwrap();
    assert!(Tokens::is_token_file(&path));
    let wide = read(&path).unwrap();
    assert_eq!((wide.len(), wide.vocabulary_needed), (10242, 70_001));
    assert_eq!(wide.batch(1, 2, 32).unwrap(), tokens.batch(1, 2, 32).unwrap());

    let path = folder.path().join("text.txt");
    std::fs::write(&path, "Hello world").unwrap();
    let bytes = Tokens::read(&path, Tokenizer::Bytes).unwrap();
    assert_eq!(bytes.batch(0, 1, 4).unwrap().0, [72, 101, 108, 108]);
    let gpt2 = Tokens::read(&path, Tokenizer::Gpt2).unwrap();
    assert_eq!((gpt2.len(), gpt2.batch(0, 1, 1).unwrap()), (2, (vec![15496], vec![995])));
}

#[test]
fn batches_are_consecutive_and_start_again() {
    let tokens = Tokens::embedded();
    assert!(tokens == Tokens::embedded());
    assert_eq!(tokens.vocabulary_needed, 257);
    assert!((290_000..320_000).contains(&tokens.len()));
    let (inputs, targets) = tokens.batch(3, 4, 32).unwrap();
    assert_eq!(inputs[1..], targets[..127]);
    assert_eq!(tokens.batch(2, 4, 32).unwrap().1[127], inputs[0]);
    let batches = (tokens.len() - 1) / 128;
    assert_eq!(tokens.batch(batches + 3, 4, 32).unwrap().0, inputs);
    assert!(tokens.batch(0, 1, tokens.len() - 1).is_ok());
    assert!(tokens.batch(0, 1, tokens.len()).unwrap_err().to_string().contains("longer data"));
    assert!(tokens.batch(0, 0, 1).is_err());
    assert!(tokens.batch(0, usize::MAX, 2).is_err());
}
