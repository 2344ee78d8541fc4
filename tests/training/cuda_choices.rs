//! Kernels and what they replace, in a whole micro-batch: their gradients agree, and their times are printed side by side. With
//! `PIPESIM_TEST_LARGE`, as `tests/gpu choices` sets it, of GPT-2 124M in bfloat16, 32 sequences of 1024 tokens; without, of a small
//! model, whose times mean nothing.

use super::attention::has_cudnn;
use super::{child, driver, on_gpu, skipped_on_gpu};
use crate::modules::OnGpu as _;
use pipesim::internals::compute::cuda::{Choices, Cuda, EventTimer};
use pipesim::internals::model::{Config, Parameters, Quantity, StageModule};
use pipesim::internals::op::{Kind, Op};
use pipesim_gpu::{Gpu, GraphUse, Graphs, Precision};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One choice, everything else as by default.
#[derive(Clone, Copy, Debug)]
struct Alternative {
    name: &'static str,
    /// Beginnings of the names of the kernels, and products, that differ.
    kernels: &'static [&'static str],
    before: Choices,
    after: Choices,
}

/// Each choice with its predecessor. Wide attention is taken whatever the number of blocks, without wide attention nowhere else.
fn alternatives() -> [Alternative; 5] {
    let all = Choices::default();
    let narrow = Choices { wide_attention: None, ..all };
    let wide = Choices { wide_attention: Some(0), ..all };
    let alternative = |name, kernels, before, after| Alternative { name, kernels, before, after };
    let attention: &[&str] = &["attention_forward", "attention_backward_keys", "attention_backward_queries"];
    let biases: &[&str] = &["bias", "add", "product backward for the weights"];
    [
        alternative("attention with wide tiles", attention, narrow, Choices { stored_slopes: false, ..wide }),
        alternative("attention with stored slopes", attention, Choices { stored_slopes: false, ..wide }, wide),
        alternative("biases in products", biases, Choices { bias_in_products: false, ..all }, all),
        alternative("products timed", &["product"], all, Choices { timed_products: true, ..all }),
        alternative(
            "attention by cuDNN",
            &["attention", "cudnn attention"],
            all,
            Choices { cudnn_attention: true, ..all },
        ),
    ]
}

/// Timed micro-batches in a row, and changes between the two sides: each is timed before and after the other.
const TIMES: usize = 3;
const ROUNDS: usize = 2;

/// Alternatives that compute the same in the same order.
const SAME_BITS: [&str; 2] = ["attention with wide tiles", "attention with stored slopes"];

/// A model on one GPU, and its tokens.
struct Trial {
    module: StageModule<Cuda>,
    config: Config,
    tokens: Vec<u32>,
    marks: EventTimer,
}

/// Durations in nanoseconds of the calls of each kernel.
type Times = BTreeMap<&'static str, Vec<u64>>;

impl Trial {
    fn new(config: Config, [sequences, tokens]: [usize; 2]) -> Trial {
        let parameters = Parameters::random(&config, 7).unwrap();
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        let stage = config.spec().split(1, None).unwrap().remove(0);
        let sizes = [sequences, tokens, 1];
        let module = StageModule::on_gpu(&gpu, &parameters, &[(0, stage)], sizes, Precision::Bf16).unwrap();
        let token = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % config.vocabulary as u32;
        let tokens = (0..sequences * tokens).map(token).collect();
        Trial { module, tokens, marks: EventTimer::new(&gpu), config }
    }

    fn micro_batch(&mut self) {
        let Trial { module, tokens, marks, .. } = self;
        marks.clear();
        module.begin(tokens, tokens).unwrap();
        for kind in [Kind::F, Kind::I, Kind::W] {
            module.enqueue(Op::new(kind, 0, 0), None, None, marks).unwrap();
        }
    }

    /// The gradients of one micro-batch.
    fn gradients(&mut self) -> Parameters {
        self.micro_batch();
        let mut gradients = Parameters::zeros(&self.config).unwrap();
        self.module.export(&mut gradients, Quantity::Gradients).unwrap();
        gradients
    }

    /// Times some micro-batches with these kernels, after one that is not timed, and adds the result to `times`.
    fn time(&mut self, choices: Choices, times: &mut Times) {
        self.module.compute().choose(choices).unwrap();
        self.micro_batch();
        self.module.compute().time_kernels();
        (0..TIMES).for_each(|_| self.micro_batch());
        for (name, more) in self.module.compute().kernel_times().unwrap() {
            times.entry(name).or_default().extend(more);
        }
    }
}

/// Launches bound a step of few tokens, so graphs are timed with one and two sequences: milliseconds of a micro-batch on the GPU,
/// gaps between kernels included.
#[test]
fn graphs_are_timed_where_launches_bound_a_step() {
    child("choices::graphs_are_timed_where_launches_bound_a_step", &[], || {
        println!("\nchoice with graphs and without, per micro-batch");
        for sequences in [1, 2] {
            let mut trial = match std::env::var_os("PIPESIM_TEST_LARGE").is_some() {
                true => Trial::new(Config::gpt(50257, 1024, 12, 12, 768), [sequences, 1024]),
                false => Trial::new(Config::gpt(131, 136, 1, 2, 32), [sequences, 136]),
            };
            let (gpu, told) = (trial.module.gpu().clone(), GraphUse::default());
            let mut unused = Some(Graphs::new((0, 0), &told));
            let mut sums_ms = [0.0; 2];
            for turn in 0..2 * ROUNDS {
                std::mem::swap(&mut trial.module.compute().graphs, &mut unused);
                (0..3).for_each(|_| trial.micro_batch()); // the third one captures
                let start = gpu.mark(&gpu.compute).unwrap();
                (0..TIMES).for_each(|_| trial.micro_batch());
                let end = gpu.mark(&gpu.compute).unwrap();
                end.synchronize().unwrap();
                sums_ms[turn % 2] += end.elapsed_ns(&start).unwrap() / 1e6;
            }
            let counts = told.lock().unwrap()[&(0, 0)];
            let [with, without] = sums_ms.map(|sum| sum / (TIMES * ROUNDS) as f64);
            println!(
                "choice CUDA graphs at B = {sequences}: {with:.3} ms in {} launches, before {without:.3} ms in {}, {:.2} times",
                counts.launches,
                counts.calls,
                with / without
            );
            assert!(counts.refused == 0 && 2 * counts.launches < counts.calls, "{counts:?}");
        }
    });
}

/// Milliseconds per micro-batch of the kernels of an alternative, and their launches.
fn of_alternative(alternative: &Alternative, times: &Times) -> (f64, usize) {
    let is_part = |name: &str| alternative.kernels.iter().any(|begin| name.starts_with(begin));
    let all: Vec<u64> =
        times.iter().filter(|(name, _)| is_part(name)).flat_map(|(_, times)| times.iter().copied()).collect();
    let count = TIMES * ROUNDS;
    (all.iter().sum::<u64>() as f64 / 1e6 / count as f64, all.len() / count)
}

#[test]
fn every_choice_is_timed_next_to_its_predecessor() {
    child("choices::every_choice_is_timed_next_to_its_predecessor", &[], || {
        let mut trial = match std::env::var_os("PIPESIM_TEST_LARGE").is_some() {
            true => Trial::new(Config::gpt(50257, 1024, 12, 12, 768), [32, 1024]),
            false => Trial::new(Config::gpt(131, 136, 1, 2, 32), [1, 136]),
        };
        println!("\nchoice and predecessor, per micro-batch"); // a harness puts its own words in front of the first line
        for alternative in alternatives() {
            if alternative.after.cudnn_attention && !has_cudnn() {
                continue;
            }
            let (mut before, mut after) = (Times::new(), Times::new());
            for _ in 0..ROUNDS {
                trial.time(alternative.before, &mut before);
                trial.time(alternative.after, &mut after);
            }
            let ((old, old_calls), (new, calls)) =
                (of_alternative(&alternative, &before), of_alternative(&alternative, &after));
            println!(
                "choice {}: {new:.3} ms in {calls} launches, before {old:.3} ms in {old_calls}, {:.2} times",
                alternative.name,
                new / old
            );
            let differ = before.keys().ne(after.keys()) || old_calls != calls;
            assert!(differ || alternative.name == "products timed", "{}: {after:?}", alternative.name);
        }
    });
}

#[test]
fn every_choice_gives_the_gradients_of_its_predecessor() {
    child("choices::every_choice_gives_the_gradients_of_its_predecessor", &[], || {
        let gradients = |choices| {
            let mut trial = Trial::new(Config::gpt(131, 136, 1, 2, 32), [1, 136]);
            trial.module.compute().choose(choices).unwrap();
            if choices.timed_products {
                trial.micro_batch(); // timed products add to gradients several times
                trial.module.zero_gradients().unwrap();
            }
            let found = trial.gradients();
            (found, trial.module.products())
        };
        for Alternative { name, before, after, .. } in alternatives() {
            if after.cudnn_attention && !has_cudnn() {
                continue;
            }
            let ((expected, _), (found, products)) = (gradients(before), gradients(after));
            let mut tensors = 0;
            for (expected, found) in expected.tensors.iter().zip(&found.tensors) {
                if SAME_BITS.contains(&name) && !on_gpu() {
                    assert_eq!(expected, found, "{name}");
                }
                let most = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-2 * most;
                assert!(expected.iter().zip(found).all(near), "{name}");
                tensors += usize::from(most > 0.0);
            }
            assert!(tensors > 10, "{name}: {tensors} tensors have gradients");
            let summed = products.iter().any(|(product, done)| product.starts_with("BiasGradient added,") && *done);
            assert!(on_gpu() || summed, "{name}: {products:?}");
        }
    });
}

/// `CUBLASLT_EPILOGUE_BGRADB`.
const BIAS_GRADIENT: &str = "512";

#[test]
fn kernels_sum_biases_where_the_library_does_not() {
    let variables = [("EMULATOR_REFUSES", BIAS_GRADIENT)];
    child("choices::kernels_sum_biases_where_the_library_does_not", &variables, || {
        if skipped_on_gpu("only the stand-in refuses what it is told to") {
            return;
        }
        let [asked, not_asked] = [true, false].map(|bias_in_products| {
            let mut trial = Trial::new(Config::gpt(131, 136, 1, 2, 32), [1, 136]);
            trial.module.compute().choose(Choices { bias_in_products, ..Choices::default() }).unwrap();
            (trial.gradients(), trial.module.products())
        });
        assert!(asked.0.tensors == not_asked.0.tensors);
        let is_refused = |(product, done): &(String, bool)| product.starts_with("BiasGradient added,") && !done;
        assert!(asked.1.iter().any(is_refused), "{:?}", asked.1);
    });
}
