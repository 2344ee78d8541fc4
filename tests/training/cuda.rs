//! The GPU shard against the CPU's and PyTorch's numbers, on stand-ins for NVIDIA's libraries that run the very kernels on
//! the CPU. Every test runs itself in a child process that finds the stand-ins (`tests/emulator`) by `LD_LIBRARY_PATH`.
//!
//! With `PIPESIM_TEST_GPU=1` the children use the machine's own driver, libraries and GPUs instead; one GPU is enough, and
//! `--test-threads=1` keeps tests from each other's memory. What concerns the stand-ins alone is skipped there, with the
//! reason. `PIPESIM_ROOT` names the folder that holds `tests/golden` where that is not where this was compiled.

use crate::modules::{OnGpu as _, Passes as _};
use crate::pipeline::{Batch, Order, Steps, on_one_device};
use crate::support::*;
use pipesim::internals::compute::cuda::*;
use pipesim::internals::epilogue::GradientSync;
use pipesim::internals::model::{self, AdamW, Parameters, Quantity, StageModule};
use pipesim::internals::model_spec::gpt2::{self, TENSOR_NAMES};
use pipesim::internals::model_spec::{ModelSpec, Stage};
use pipesim::internals::op::{Kind, Op};
use pipesim::internals::placement::Chunk;
use pipesim_gpu::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

#[path = "cuda_attention.rs"]
mod attention;
#[path = "cuda_ceilings.rs"]
mod ceilings;
#[path = "cuda_choices.rs"]
mod choices;
#[path = "cuda_graphs.rs"]
mod graphs;
#[path = "cuda_mesh.rs"]
mod mesh;
#[path = "cuda_slices.rs"]
mod slices;
#[path = "cuda_times.rs"]
mod times;

const CHILD: &str = "PIPESIM_TEST_CHILD";

/// Runs `body` in a child process with these variables; `name` is the test's.
fn child(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok() {
        return body();
    }
    let mut command = again(&format!("cuda::{name}"));
    command.env(CHILD, "1");
    if !on_gpu() {
        with_stand_ins(&mut command);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let words = [&output.stdout[..], &output.stderr[..]].concat();
    let words = String::from_utf8_lossy(&words);
    assert!(output.status.success(), "the child failed: {}\n{words}", output.status);
    assert!(words.contains("1 passed"), "the child ran no test:\n{words}");
    let prefixes = ["skipped on a GPU", "epilogue ", "kernel ", "group ", "choice ", "ceiling "];
    let told = words.lines().filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix)));
    told.for_each(|line| println!("{line}"));
}

fn driver() -> &'static Driver {
    Driver::open().unwrap()
}

/// What devices are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hardware {
    /// Each a GPU of its own, or one in turn where there are not so many.
    Gpus,
    /// Slices of one GPU.
    Slices,
}

fn gpus(hardware: Hardware, count: usize) -> Vec<Arc<Gpu>> {
    let gpus = match hardware {
        Hardware::Gpus => (0..count as u32).map(|i| Gpu::whole(driver(), i % driver().devices()).unwrap()).collect(),
        Hardware::Slices => Gpu::slices(driver(), 0, count as u32).unwrap(),
    };
    let gpus: Vec<Arc<Gpu>> = gpus.into_iter().map(Arc::new).collect();
    let all: Vec<&Gpu> = gpus.iter().map(Arc::as_ref).collect();
    assert_eq!(enable_peers(driver(), &all).unwrap(), [], "all devices reach each other");
    gpus
}

/// A hidden state on its way: where it is made, where it is read, and when either is over.
struct Message {
    made: Buffer,
    read: Buffer,
    done: Event,
    arrived: Event,
}

/// Devices that run a pipeline's ops, all enqueued without a wait of the host.
struct Pipeline {
    spec: ModelSpec,
    gpus: Vec<Arc<Gpu>>,
    shards: Vec<StageModule<Cuda>>,
    marks: Vec<EventTimer>,
    device_of_stage: Vec<usize>,
    microbatches: usize,
    /// By direction, stage that it goes into, and micro-batch.
    messages: Vec<Message>,
}

impl Pipeline {
    /// Stage s lives on device `devices[s]`.
    fn new(
        parameters: &Parameters,
        hardware: Hardware,
        devices: &[usize],
        [batch, tokens, microbatches]: [usize; 3],
        precision: Precision,
    ) -> Pipeline {
        let layers = parameters.config.spec().split(devices.len(), None).unwrap();
        let gpus = gpus(hardware, devices.iter().max().unwrap() + 1);
        let sizes = [batch / microbatches, tokens, microbatches];
        let shard = |(device, gpu): (usize, &Arc<Gpu>)| {
            let stages = layers.iter().enumerate().filter(|(stage, _)| devices[*stage] == device);
            let stages: Vec<_> = stages.map(|(stage, layers)| (stage as u32, layers.clone())).collect();
            StageModule::on_gpu(gpu, parameters, &stages, sizes, precision).unwrap()
        };
        let shards: Vec<StageModule<Cuda>> = gpus.iter().enumerate().map(shard).collect();
        let bytes = shards[0].hidden_bytes();
        let stages = devices.len();
        let mut messages = Vec::new();
        for index in 0..2 * stages * microbatches {
            let (backward, stage) = (index / (stages * microbatches) == 1, index / microbatches % stages);
            let from = if backward { (stage + 1).min(stages - 1) } else { stage.saturating_sub(1) };
            let (from, to) = (&gpus[devices[from]], &gpus[devices[stage]]);
            messages.push(Message {
                made: Buffer::new(from.context(), bytes).unwrap(),
                read: Buffer::new(to.context(), bytes).unwrap(),
                done: from.events().untimed().unwrap(),
                arrived: to.events().untimed().unwrap(),
            });
        }
        let marks = gpus.iter().map(EventTimer::new).collect();
        let spec = parameters.config.spec();
        Pipeline { spec, gpus, shards, marks, device_of_stage: devices.to_vec(), microbatches, messages }
    }

    fn message(&self, backward: bool, stage: usize, microbatch: usize) -> &Message {
        let stages = self.device_of_stage.len();
        &self.messages[(usize::from(backward) * stages + stage) * self.microbatches + microbatch]
    }

    /// What a stage receives: copied on the receive stream once made, awaited by the compute stream.
    fn receive(&self, backward: bool, stage: usize, microbatch: usize) -> Address {
        let device = self.device_of_stage[stage];
        let from = self.device_of_stage[if backward { stage + 1 } else { stage - 1 }];
        let (gpu, message) = (&self.gpus[device], self.message(backward, stage, microbatch));
        gpu.make_current().unwrap();
        gpu.receive.wait(&message.done).unwrap();
        let to = (message.read.address(), gpu.context().as_ref());
        let made = (message.made.address(), self.gpus[from].context().as_ref());
        gpu.receive.copy_peer(to, made, message.read.bytes()).unwrap();
        gpu.receive.record(&message.arrived).unwrap();
        gpu.compute.wait(&message.arrived).unwrap();
        message.read.address()
    }
}

impl Steps for Pipeline {
    fn sizes(&self) -> (usize, usize) {
        (self.device_of_stage.len(), self.microbatches)
    }

    fn begin(&mut self, (inputs, targets): Batch) {
        self.marks.iter_mut().for_each(EventTimer::clear);
        for shard in &mut self.shards {
            shard.zero_gradients().unwrap();
            shard.begin(inputs, targets).unwrap();
        }
    }

    fn forward(&mut self, microbatch: usize, _: Batch) {
        let stages = self.device_of_stage.len();
        for stage in 0..stages {
            let input = (stage > 0).then(|| self.receive(false, stage, microbatch));
            let last = stage == stages - 1;
            let output = (!last).then(|| self.message(false, stage + 1, microbatch).made.address());
            let device = self.device_of_stage[stage];
            let marks = &mut self.marks[device];
            self.shards[device].forward(stage as u32, microbatch as u32, input, output, marks).unwrap();
            if !last {
                self.gpus[device].compute.record(&self.message(false, stage + 1, microbatch).done).unwrap();
            }
        }
    }

    fn backward_input(&mut self, microbatch: usize) {
        let stages = self.device_of_stage.len();
        for stage in (0..stages).rev() {
            let input = (stage < stages - 1).then(|| self.receive(true, stage, microbatch));
            let output = (stage > 0).then(|| self.message(true, stage - 1, microbatch).made.address());
            let device = self.device_of_stage[stage];
            let marks = &mut self.marks[device];
            self.shards[device].backward_input(stage as u32, microbatch as u32, input, output, marks).unwrap();
            if stage > 0 {
                self.gpus[device].compute.record(&self.message(true, stage - 1, microbatch).done).unwrap();
            }
        }
    }

    fn backward_weight(&mut self, stage: usize, microbatch: usize) {
        let device = self.device_of_stage[stage];
        let marks = &mut self.marks[device];
        self.shards[device].backward_weight(stage as u32, microbatch as u32, marks).unwrap();
    }

    fn held_bytes(&self) -> usize {
        self.shards.iter().map(StageModule::held_bytes).sum()
    }

    fn exchange(&mut self) {
        let [first, last] = [self.device_of_stage[0], *self.device_of_stage.last().unwrap()];
        if first != last && self.spec.tied_elements(|elements| elements) > 0 {
            let bytes = tied_gradient_bytes(&self.spec, Sharing::NONE);
            // both parts leave before either is replaced
            let sent = [first, last].map(|from| {
                let gpu = self.gpus[from].clone();
                let (part, ready) = (Buffer::new(gpu.context(), bytes).unwrap(), gpu.events().untimed().unwrap());
                self.shards[from].copy_gradient(GradientSync::Tied, part.address()).unwrap();
                gpu.compute.record(&ready).unwrap();
                (part, ready)
            });
            for ((part, ready), [from, to]) in sent.iter().zip([[first, last], [last, first]]) {
                let gpu = self.gpus[to].clone();
                gpu.make_current().unwrap();
                let inbox = Buffer::new(gpu.context(), bytes).unwrap();
                gpu.compute.wait(ready).unwrap();
                let (to_context, from_context) = (gpu.context().as_ref(), self.gpus[from].context().as_ref());
                gpu.compute.copy_peer((inbox.address(), to_context), (part.address(), from_context), bytes).unwrap();
                self.shards[to].merge_gradient(GradientSync::Tied, inbox.address()).unwrap();
                gpu.compute.synchronize().unwrap();
            }
        }
    }

    fn export(&mut self, all: &mut Parameters, what: Quantity) {
        self.shards.iter_mut().for_each(|shard| shard.export(all, what).unwrap());
    }

    fn losses(&mut self) -> Vec<f32> {
        self.shards[*self.device_of_stage.last().unwrap()].losses().unwrap().to_vec()
    }

    fn squares(&self) -> usize {
        self.spec.squares()
    }

    fn squared_norms(&mut self) -> Vec<(usize, f64)> {
        self.shards.iter_mut().for_each(|shard| shard.square().unwrap());
        self.shards.iter_mut().flat_map(|shard| shard.squared_norms().unwrap()).collect()
    }

    fn update(&mut self, step: u32, hyper: &AdamW, scale: f32) {
        self.shards.iter_mut().for_each(|shard| shard.update(step, hyper, scale).unwrap());
    }
}

const PARTITIONS: [(Hardware, &[usize]); 5] = [
    (Hardware::Gpus, &[0]),
    (Hardware::Gpus, &[0, 1]),
    (Hardware::Slices, &[0, 1]),
    (Hardware::Gpus, &[0, 1, 1, 0]),
    (Hardware::Slices, &[0, 1, 0, 1]),
];

#[test]
fn float32_gradients_are_the_cpus_and_pytorchs_under_every_partition() {
    // asynchronous copies from memory that is not pinned are refused there
    let variables = [("EMULATOR_PINNED_ONLY", "1")];
    child("float32_gradients_are_the_cpus_and_pytorchs_under_every_partition", &variables, || {
        let state = debug_state();
        for (hardware, devices) in PARTITIONS {
            for (microbatches, order) in [(2, Order::Reversed), (4, Order::FullBackward)] {
                let sizes = [state.batch, state.tokens, microbatches];
                let mut pipeline = Pipeline::new(&checkpoint(), hardware, devices, sizes, Precision::F32);
                let loss = pipeline.gradients((&state.inputs, &state.targets), order);
                let (cpu_loss, cpu) = on_one_device(&checkpoint(), (&state.inputs, &state.targets), sizes);
                assert!((loss - cpu_loss).abs() < 1e-5, "loss {loss}, the CPU's {cpu_loss}");
                assert!((loss - state.loss).abs() < 1e-5, "loss {loss}, PyTorch's {}", state.loss);
                let found = pipeline.all(Quantity::Gradients);
                let both = cpu.tensors.iter().zip(&state.gradients);
                for ((name, found), (cpu, pytorch)) in TENSOR_NAMES.iter().zip(&found.tensors).zip(both) {
                    for (whose, expected) in [("the CPU", cpu), ("PyTorch", pytorch)] {
                        let distance = relative_distance(found, expected);
                        assert!(
                            distance < 1e-5,
                            "{hardware:?} {devices:?}, {microbatches} micro-batches: {name} differs from {whose}'s by \
                             {distance:e}"
                        );
                    }
                }
            }
        }
    });
}

/// Grouped queries, rotary positions, SwiGLU and RMSNorm: PyTorch's losses and gradients in float32, near them in bfloat16.
#[test]
fn llama_is_pytorchs_and_the_cpus() {
    child("llama_is_pytorchs_and_the_cpus", &[("EMULATOR_PINNED_ONLY", "1")], || {
        for case in crate::llama::Case::all() {
            let [batch, micro, seq] = case.sizes();
            let parameters = case.parameters();
            let (inputs, targets) = case.tokens().batch(0, batch, seq).unwrap();
            let (cpu_loss, cpu) = on_one_device(&parameters, (&inputs, &targets), [batch, seq, micro]);
            let devices: &[usize] = if case.config.layers > 1 { &[0, 1] } else { &[0] };
            for (precision, tolerance) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
                let sizes = [batch, seq, micro];
                let mut pipeline = Pipeline::new(&parameters, Hardware::Gpus, devices, sizes, precision);
                let loss = pipeline.gradients((&inputs, &targets), Order::Reversed);
                assert!((loss - cpu_loss).abs() < tolerance as f32, "{}: {loss}, the CPU's {cpu_loss}", case.name);
                let mut found = Parameters::zeros(&case.config).unwrap();
                pipeline.export(&mut found, Quantity::Gradients);
                for (((_, tensor), found), cpu) in case.config.spec().tensors().zip(&found.tensors).zip(&cpu.tensors) {
                    let distance = relative_distance(found, cpu);
                    assert!(
                        distance < tolerance,
                        "{} {precision:?}: {} differs by {distance:e}",
                        case.name,
                        tensor.name
                    );
                }
            }
        }
    });
}

/// Ten steps of Llama under PyTorch's settings; one of the models has a vocabulary that makes a step too slow for more than one.
#[test]
fn ten_steps_of_llama_give_pytorchs_losses() {
    child("ten_steps_of_llama_give_pytorchs_losses", &[], || {
        for case in crate::llama::Case::all() {
            let sizes @ [batch, _, seq] = case.sizes();
            let (parameters, data) = (case.parameters(), case.tokens());
            let settings = case.settings();
            let count = if case.config.vocabulary > 1 << 16 { 1 } else { settings.len() };
            for (number, name) in settings[..count].iter().enumerate() {
                let devices: &[usize] = if case.config.layers > 1 && number % 2 == 0 { &[0, 1] } else { &[0] };
                let sizes = [batch, seq, sizes[1]];
                let mut pipeline = Pipeline::new(&parameters, Hardware::Gpus, devices, sizes, Precision::F32);
                let (hyper, clip, is_same) = case.setting(name);
                for (step, expected) in case.losses(name).into_iter().enumerate() {
                    let (inputs, targets) = data.batch(if is_same { 0 } else { step }, batch, seq).unwrap();
                    let loss = pipeline.step(step as u32 + 1, (&inputs, &targets), Order::FullBackward, &hyper, clip);
                    let distance = (f64::from(loss) - expected).abs();
                    assert!(distance < 1e-4, "{} {name} {step}: {loss}, PyTorch's {expected}", case.name);
                }
            }
        }
    });
}

/// Ten losses for settings of the golden file (A, B, C), on one device and on several.
fn ten_losses(precision: Precision, wanted: &[char], tolerance: f64) {
    let state = debug_state();
    let partitions: [(Hardware, &[usize]); 2] = [(Hardware::Gpus, &[0]), (Hardware::Slices, &[0, 1])];
    for setting in golden_settings().into_iter().filter(|setting| setting.0.starts_with(wanted)) {
        for (hardware, devices) in partitions {
            let sizes = [state.batch, state.tokens, 4];
            Pipeline::new(&checkpoint(), hardware, devices, sizes, precision).give_losses(setting, tolerance);
        }
    }
}

#[test]
fn ten_steps_of_adamw_give_pytorchs_losses_in_float32() {
    child("ten_steps_of_adamw_give_pytorchs_losses_in_float32", &[], || {
        ten_losses(Precision::F32, &['A', 'B', 'C'], 1e-4)
    });
}

/// bfloat16 has 8 bits of mantissa: an activation is off by up to 0.4 %, a mean over 256 losses of 5 by far less.
#[test]
fn ten_steps_of_adamw_give_pytorchs_losses_in_bfloat16() {
    child("ten_steps_of_adamw_give_pytorchs_losses_in_bfloat16", &[], || ten_losses(Precision::Bf16, &['B'], 2e-2));
}

/// Each epilogue in each precision, on the whole GPU and on a slice: whether the library does it is printed, that it was asked for
/// is tested. The stand-in does all.
#[test]
fn every_epilogue_is_asked_of_the_library_and_what_it_refuses_is_said() {
    child("every_epilogue_is_asked_of_the_library_and_what_it_refuses_is_said", &[], || {
        let state = debug_state();
        for precision in [Precision::F32, Precision::Bf16] {
            for (hardware, devices) in [(Hardware::Gpus, &[0][..]), (Hardware::Slices, &[0, 1])] {
                let sizes = [state.batch, state.tokens, 2];
                let mut pipeline = Pipeline::new(&checkpoint(), hardware, devices, sizes, precision);
                pipeline.gradients((&state.inputs, &state.targets), Order::FullBackward);
                let asked: BTreeMap<String, bool> = pipeline.shards.iter().flat_map(StageModule::products).collect();
                // GELU is part of a product in bfloat16 only
                let epilogues =
                    ["None", "None added", "Bias", "Bias added", "BiasGradient added", "BiasGelu", "GeluBackward"];
                let count = if precision == Precision::F32 { 5 } else { 7 };
                for epilogue in &epilogues[..count] {
                    let of_it = asked.iter().filter(|(name, _)| name.starts_with(&format!("{epilogue},")));
                    let of_it: Vec<_> = of_it.collect();
                    let refused: Vec<&str> =
                        of_it.iter().filter(|(_, done)| !**done).map(|(name, _)| &name[..]).collect();
                    let told = if refused.is_empty() { "done".to_string() } else { format!("refused: {refused:?}") };
                    println!("epilogue {epilogue} in {precision:?} on {hardware:?}: {told}");
                    assert!(!of_it.is_empty(), "{epilogue} is not among {asked:?}");
                    assert!(on_gpu() || refused.is_empty(), "{refused:?}");
                }
            }
        }
    });
}

#[test]
fn bfloat16_gradients_are_near_pytorchs() {
    child("bfloat16_gradients_are_near_pytorchs", &[], || {
        let state = debug_state();
        let sizes = [state.batch, state.tokens, 2];
        let mut pipeline = Pipeline::new(&checkpoint(), Hardware::Gpus, &[0, 1], sizes, Precision::Bf16);
        let loss = pipeline.gradients((&state.inputs, &state.targets), Order::Reversed);
        assert!((loss - state.loss).abs() < 1e-2, "loss {loss}, PyTorch's {}", state.loss);
        let found = pipeline.all(Quantity::Gradients);
        for ((name, found), expected) in TENSOR_NAMES.iter().zip(&found.tensors).zip(&state.gradients) {
            let distance = relative_distance(found, expected);
            assert!(distance < 3e-2, "{name} differs by {distance:e}");
            assert!(distance > 1e-5, "{name} is not bfloat16's");
        }
    });
}

#[test]
fn no_partition_and_no_order_changes_a_bit() {
    child("no_partition_and_no_order_changes_a_bit", &[("EMULATOR_JITTER", "7")], || {
        skipped_on_gpu("operations that start late by random times; a GPU has its own times");
        let state = debug_state();
        for precision in [Precision::F32, Precision::Bf16] {
            let run = |hardware: Hardware, devices: &[usize], order: Order| {
                let sizes = [state.batch, state.tokens, 4];
                let mut pipeline = Pipeline::new(&checkpoint(), hardware, devices, sizes, precision);
                pipeline.outcome(2, order)
            };
            let whole = run(Hardware::Gpus, &[0], Order::FullBackward);
            // cuBLASLt may sum in another order where it has other numbers of multiprocessors
            let sliced = on_gpu().then(|| run(Hardware::Slices, &[0, 1], Order::FullBackward));
            for (index, (hardware, devices)) in PARTITIONS.into_iter().enumerate() {
                let reference = sliced.as_ref().filter(|_| hardware == Hardware::Slices).unwrap_or(&whole);
                // bfloat16 takes longer here: every partition, one order each
                let orders = [Order::Reversed, Order::FullBackward];
                let orders = if precision == Precision::F32 { &orders[..] } else { &orders[index % 2..][..1] };
                for &order in orders {
                    assert!(run(hardware, devices, order) == *reference, "{hardware:?} {devices:?} {order:?} differs");
                }
            }
        }
    });
}

/// Odd sizes in every place, and first and last stages that hold no block.
#[test]
fn ragged_sizes_and_stages_without_blocks_agree_with_the_cpu() {
    child("ragged_sizes_and_stages_without_blocks_agree_with_the_cpu", &[], || {
        for (heads, channels) in [(3, 36), (5, 35), (1, 72)] {
            let config = gpt2::Config { max_sequence: 11, vocabulary: 131, layers: 3, heads, channels }.transformer();
            let parameters = Parameters::random(&config, 5).unwrap();
            let (sequences, tokens) = (3, 7);
            let token = |i: usize| (i * i * 29 + 7 * i) as u32 % 131;
            let inputs: Vec<u32> = (0..sequences * tokens).map(token).collect();
            let targets: Vec<u32> = (1..=sequences * tokens).map(token).collect();

            let (cpu_loss, expected) = on_one_device(&parameters, (&inputs, &targets), [sequences, tokens, 1]);

            let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
            let layers = config.spec().split(3, Some(&[0, 3, 0])).unwrap();
            let stages: Vec<(u32, Stage)> = (0..).zip(layers).collect();
            for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 4e-2)] {
                let mut shard =
                    StageModule::on_gpu(&gpu, &parameters, &stages, [sequences, tokens, 1], precision).unwrap();
                let mut marks = EventTimer::new(&gpu);
                let hidden = |_| Buffer::new(gpu.context(), shard.hidden_bytes()).unwrap();
                let [first, second] = [0, 1].map(hidden);
                let (first, second) = (Some(first.address()), Some(second.address()));
                shard.begin(&inputs, &targets).unwrap();
                shard.forward(0, 0, None, first, &mut marks).unwrap();
                shard.forward(1, 0, first, second, &mut marks).unwrap();
                shard.forward(2, 0, second, None, &mut marks).unwrap();
                shard.backward_input(2, 0, None, first, &mut marks).unwrap();
                shard.backward_input(1, 0, first, second, &mut marks).unwrap();
                shard.backward_input(0, 0, second, None, &mut marks).unwrap();
                (0..3).for_each(|stage| shard.backward_weight(stage, 0, &mut marks).unwrap());
                let loss = shard.losses().unwrap()[0];
                assert!((loss - cpu_loss).abs() < tolerance as f32, "{loss} and {cpu_loss}");
                let mut found = Parameters::zeros(&config).unwrap();
                shard.export(&mut found, Quantity::Gradients).unwrap();
                for ((name, found), expected) in TENSOR_NAMES.iter().zip(&found.tensors).zip(&expected.tensors) {
                    let distance = relative_distance(found, expected);
                    assert!(distance < tolerance, "{heads} heads, {precision:?}: {name} differs by {distance:e}");
                }
            }
        }
    });
}

/// A shard of the whole model on GPU 0, and its marks.
fn whole_model(precision: Precision) -> (StageModule<Cuda>, EventTimer) {
    let (state, parameters) = (debug_state(), checkpoint());
    let layers = parameters.config.spec().split(1, None).unwrap();
    let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
    let sizes = [state.batch / 2, state.tokens, 2];
    let shard = StageModule::on_gpu(&gpu, &parameters, &[(0, layers[0].clone())], sizes, precision).unwrap();
    (shard, EventTimer::new(&gpu))
}

/// The ops of both its micro-batches.
fn one_by_one(shard: &mut StageModule<Cuda>, marks: &mut EventTimer) {
    for k in 0..2 {
        shard.forward(0, k, None, None, marks).unwrap();
        shard.backward_input(0, k, None, None, marks).unwrap();
        shard.backward_weight(0, k, marks).unwrap();
    }
}

#[test]
fn saved_parameters_give_the_same_step_again() {
    child("saved_parameters_give_the_same_step_again", &[], || {
        let state = debug_state();
        for precision in [Precision::F32, Precision::Bf16] {
            let (mut shard, mut marks) = whole_model(precision);
            let mut step = |shard: &mut StageModule<Cuda>, number: u32| {
                shard.zero_gradients().unwrap();
                shard.begin(&state.inputs, &state.targets).unwrap();
                marks.clear();
                one_by_one(shard, &mut marks);
                shard.update(number, &AdamW::default(), 1.0).unwrap();
                shard.losses().unwrap()
            };
            let first = step(&mut shard, 1);
            assert!(shard.restore().unwrap_err().to_string().contains("save them first"));
            shard.save().unwrap();
            let second = step(&mut shard, 2);
            step(&mut shard, 3);
            shard.restore().unwrap();
            assert_eq!(step(&mut shard, 2), second);
            assert_ne!(first, second);
        }
    });
}

#[test]
fn laps_cover_every_part_once_and_memory_is_counted() {
    child("laps_cover_every_part_once_and_memory_is_counted", &[], || {
        let state = debug_state();
        let (mut shard, mut marks) = whole_model(Precision::F32);
        shard.reserve([Op::new(Kind::F, 0, 0), Op::new(Kind::F, 0, 1), Op::new(Kind::B, 0, 0)]).unwrap();
        let (before, _) = shard.gpu().memory().unwrap();
        let driver_grows =
            skipped_on_gpu("what is free after the first step: a driver loads code and tables as they are used");
        shard.begin(&state.inputs, &state.targets).unwrap();
        for k in 0..2 {
            marks.op(k);
            shard.forward(0, k, None, None, &mut marks).unwrap();
        }
        // what a block keeps, from the list in the forward: 16C + 4 + NH float32 a token; the head 2C + 2 + Vp
        let (n, c, heads, vp, layers) = (state.batch / 2 * state.tokens, 64, 4, 384, 4);
        let kept = 2 * 4 * n * (layers * (16 * c + 4 + heads) + 2 * c + 2 + vp);
        assert_eq!(shard.held_bytes(), kept);
        marks.op(7);
        shard.backward_input(0, 0, None, None, &mut marks).unwrap();
        shard.backward_weight(0, 0, &mut marks).unwrap();
        // after I of the first: 16C float32 a token and block and the sums of two LayerNorms, the head C + Vp and the sums of
        // one, the embedding C; sums are over groups of 32 rows
        let sums = n.div_ceil(32) * 2 * c;
        let left = 4 * (layers * (n * 16 * c + 2 * sums) + n * (c + vp) + sums + n * c);
        assert_eq!(shard.peak_held_bytes(), kept.max(kept / 2 + left));
        assert!(driver_grows || shard.gpu().memory().unwrap().0 == before, "nothing is allocated after reserve");
        shard.gpu().compute.synchronize().unwrap();
        let timings = marks.timings().unwrap();
        let parts = |op: u32| -> Vec<(Kind, model::Part)> {
            timings.iter().filter(|(number, _)| *number == op).map(|(_, timing)| (timing.kind, timing.part)).collect()
        };
        use model::Part::{Block, Embedding, Head};
        let forward = [Embedding, Block, Block, Block, Block, Head].map(|part| (Kind::F, part));
        assert_eq!(parts(0), forward);
        assert_eq!(parts(1), forward);
        let backward = |kind| [Head, Block, Block, Block, Block, Embedding].map(|part| (kind, part));
        assert_eq!(parts(7), [backward(Kind::I), backward(Kind::W)].concat());
        let (start, end) = marks.span(7).unwrap();
        let span_ns = end.elapsed_ns(start).unwrap();
        let sum_ns: u64 = timings.iter().filter(|(number, _)| *number == 7).map(|(_, timing)| timing.duration_ns).sum();
        assert!((span_ns - sum_ns as f64).abs() < 0.05 * span_ns + 1e4, "parts {sum_ns}, the op {span_ns}");
    });
}

#[test]
fn the_estimate_is_near_what_is_allocated() {
    if skipped_on_gpu("a driver deals memory out in pieces of 2 MiB, more than this model's tensors") {
        return;
    }
    child("the_estimate_is_near_what_is_allocated", &[], || {
        let parameters = checkpoint();
        let layers = parameters.config.spec().split(2, None).unwrap();
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        for (layers, precision) in
            [(0, Precision::F32), (1, Precision::F32), (0, Precision::Bf16), (1, Precision::Bf16)]
                .map(|(stage, precision)| (layers[stage].clone(), precision))
        {
            let sharing = Sharing::NONE;
            let demand = Demand {
                sequences: 8,
                tokens: 64,
                microbatches: 1,
                in_flight: 1,
                precision,
                sharing,
                attention_workspace: 0,
            };
            let stages = [(0, layers)];
            let expected = bytes_needed(&parameters.config.spec(), &stages, &demand);
            let (before, _) = gpu.memory().unwrap();
            let shard = StageModule::on_gpu(&gpu, &parameters, &stages, [8, 64, 1], precision).unwrap();
            let found = before - gpu.memory().unwrap().0;
            drop(shard);
            assert_eq!(gpu.memory().unwrap().0, before, "all is given back");
            // the products' workspace is of one size, whatever the model
            let (found, expected) = (found as f64 - (32 << 20) as f64, expected.total() as f64 - (32 << 20) as f64);
            assert!((found / expected - 1.0).abs() < 0.1, "{precision:?} {stages:?}: {found}, estimated {expected}");
        }
    });
}

/// A method that waited on the host would wait for ever here.
#[test]
fn a_step_is_enqueued_while_its_stream_is_held_up() {
    child("a_step_is_enqueued_while_its_stream_is_held_up", &[("EMULATOR_TIMEOUT", "60")], || {
        let state = debug_state();
        let step = |shard: &mut StageModule<Cuda>, marks: &mut EventTimer, state: &DebugState| {
            shard.begin(&state.inputs, &state.targets).unwrap();
            (0..2).for_each(|k| shard.forward(0, k, None, None, marks).unwrap());
            for k in 0..2 {
                shard.backward_input(0, k, None, None, marks).unwrap();
                shard.backward_weight(0, k, marks).unwrap();
            }
            shard.square().unwrap();
            shard.update(1, &AdamW::default(), 0.5).unwrap();
        };
        let run = |held_up: bool| {
            let (mut shard, mut marks) = whole_model(Precision::F32);
            let gpu = shard.gpu().clone();
            let ops = [(Kind::F, 0), (Kind::F, 1), (Kind::B, 0), (Kind::B, 1)];
            shard.reserve(ops.map(|(kind, microbatch)| Op::new(kind, 0, microbatch))).unwrap();
            gpu.events().reserve(42).unwrap();
            let word = Buffer::new(gpu.context(), 8).unwrap();
            gpu.compute.clear(word.address(), 8).unwrap();
            gpu.compute.synchronize().unwrap();
            if on_gpu() {
                // a driver may wait for the device when it loads a kernel, which it does before the first launch
                step(&mut shard, &mut marks, &state);
                gpu.compute.synchronize().unwrap();
                marks.clear();
                shard.squared_norms().unwrap();
                shard.zero_gradients().unwrap();
            }
            let before = gpu.memory().unwrap();
            if held_up {
                gpu.compute.wait_value(word.address(), 1).unwrap();
            }
            step(&mut shard, &mut marks, &state);
            shard.zero_gradients().unwrap();
            shard.begin(&state.inputs, &state.targets).unwrap();
            // a GPU's driver may take memory for itself
            assert!(on_gpu() || gpu.memory().unwrap() == before, "a step allocates nothing");
            assert!(!held_up || !gpu.compute.is_done().unwrap(), "the stream is held up");
            gpu.send.write_value(word.address(), 1).unwrap();
            let norms = shard.squared_norms().unwrap();
            (shard.losses().unwrap(), norms)
        };
        assert_eq!(run(true), run(false));
    });
}

#[test]
fn wrong_calls_are_refused() {
    child("wrong_calls_are_refused", &[], || {
        let (state, parameters) = (debug_state(), checkpoint());
        let (mut shard, mut marks) = whole_model(Precision::F32);
        let place = Buffer::new(shard.gpu().context(), shard.hidden_bytes()).unwrap();
        shard.begin(&state.inputs, &state.targets).unwrap();
        let refused = |outcome: anyhow::Result<()>, words: &str| {
            let error = format!("{:#}", outcome.unwrap_err());
            assert!(error.contains(words), "{error}");
        };
        refused(shard.forward(1, 0, None, None, &mut marks), "expected one of this device's stages");
        refused(shard.forward(0, 2, None, None, &mut marks), "expected a micro-batch below 2");
        refused(shard.forward(0, 0, Some(place.address()), None, &mut marks), "expected no hidden state");
        refused(shard.forward(0, 0, None, Some(place.address()), &mut marks), "expected no output");
        refused(shard.backward_input(0, 0, None, None, &mut marks), "expected its forward before it");
        refused(shard.backward_weight(0, 0, &mut marks), "expected its backward for the input before it");
        shard.forward(0, 0, None, None, &mut marks).unwrap();
        refused(shard.forward(0, 0, None, None, &mut marks), "found a second before the backward");
        refused(shard.begin(&state.inputs[1..], &state.targets), "inputs per step");
        refused(shard.begin(&vec![257; state.inputs.len()], &state.targets), "below the vocabulary's 257");
        let gpu = shard.gpu().clone();
        let stage = Stage::transformer(false, 0..5, false);
        let new = |layers: Stage, sizes| StageModule::on_gpu(&gpu, &parameters, &[(0, layers)], sizes, Precision::F32);
        refused(new(stage.clone(), [1, 8, 1]).map(drop), "run of the model's 4 blocks");
        refused(new(stage.clone(), [1, 65, 1]).map(drop), "sequences of 1 to 64 tokens");
        refused(new(stage, [0, 8, 1]).map(drop), "at least 1 sequence");
        // the middle of the model: hidden states must be aligned
        let middle = Stage::transformer(false, 1..2, false);
        let mut shard = new(middle, [4, 32, 1]).unwrap();
        let (to, from) = (place.address().offset(16), place.address());
        refused(shard.forward(0, 0, Some(from), Some(to), &mut marks), "at a multiple of 256");
        refused(shard.copy_gradient(GradientSync::Tied, to), "its gradient is complete");
        // half of a tied pair waits for the other half
        let first = Stage::transformer(true, 0..1, false);
        let mut shard = new(first, [4, 32, 1]).unwrap();
        refused(shard.update(1, &AdamW::default(), 1.0), "exchange it first");
        refused(shard.square(), "exchange it first");
    });
}

#[test]
fn replicas_add_up_to_twice_the_gradient() {
    child("replicas_add_up_to_twice_the_gradient", &[], || {
        let state = debug_state();
        let (mut shard, mut marks) = whole_model(Precision::F32);
        shard.begin(&state.inputs, &state.targets).unwrap();
        one_by_one(&mut shard, &mut marks);
        let mut once = Parameters::zeros(&checkpoint().config).unwrap();
        shard.export(&mut once, Quantity::Gradients).unwrap();
        let stage = GradientSync::Stage(Chunk { stage: 0, direction: 0 });
        let whole = checkpoint().config.spec();
        let bytes = stage_gradient_bytes(&whole, &whole.split(1, None).unwrap()[0], Sharing::NONE);
        let sent = Buffer::new(shard.gpu().context(), bytes).unwrap();
        shard.copy_gradient(stage, sent.address()).unwrap();
        shard.merge_gradient(stage, sent.address()).unwrap();
        let mut twice = once.clone();
        shard.export(&mut twice, Quantity::Gradients).unwrap();
        for (once, twice) in once.tensors.iter().zip(&twice.tensors) {
            assert!(once.iter().zip(twice).all(|(once, twice)| 2.0 * once == *twice));
        }
    });
}

#[test]
fn events_lie_on_the_hosts_clock() {
    child("events_lie_on_the_hosts_clock", &[], || {
        let gpu = Gpu::whole(driver(), 0).unwrap();
        let start = std::time::Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        let clock = Clock::calibrate(&gpu, &now).unwrap();
        let event = gpu.events().timed().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let before = now();
        gpu.compute.record(&event).unwrap();
        event.synchronize().unwrap();
        let after = now();
        let ns = clock.ns(&event).unwrap();
        // a GPU stamps events at its own ticks, some microseconds at most
        let slack = clock.uncertainty_ns + if on_gpu() { 5000 } else { 1000 };
        assert!((before - slack..=after + slack).contains(&ns), "{before} {ns} {after} ± {slack}");
        // an untimed event has no time
        let untimed = gpu.events().untimed().unwrap();
        gpu.compute.record(&untimed).unwrap();
        assert!(clock.ns(&untimed).is_err());
        let _nothing_happens_without_nvtx = Range::new("0F3");
    });
}

/// A calibration that waited for the compute stream would wait for ever here.
#[test]
fn the_clock_is_read_while_the_compute_stream_is_held_up() {
    child("the_clock_is_read_while_the_compute_stream_is_held_up", &[("EMULATOR_TIMEOUT", "300")], || {
        let gpu = Gpu::whole(driver(), 0).unwrap();
        let start = std::time::Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        let word = Buffer::new(gpu.context(), 8).unwrap();
        gpu.compute.clear(word.address(), 8).unwrap();
        gpu.compute.synchronize().unwrap(); // or the word below could be written before it is cleared
        gpu.compute.wait_value(word.address(), 1).unwrap();
        let event = gpu.events().timed().unwrap();
        gpu.compute.record(&event).unwrap();
        let clock = Clock::calibrate(&gpu, &now).unwrap();
        // a host with other work may not see its event soon
        let soon = (0..20).find_map(|_| Clock::calibrate_soon(&gpu, &now).unwrap());
        assert!(!gpu.compute.is_done().unwrap(), "the stream is held up");
        let before = now();
        gpu.send.write_value(word.address(), 1).unwrap();
        event.synchronize().unwrap();
        for clock in soon.into_iter().chain([clock]) {
            let ns = clock.ns(&event).unwrap() + clock.uncertainty_ns + if on_gpu() { 5000 } else { 1000 };
            assert!(ns >= before, "{ns} before the word was written at {before}");
        }
    });
}

#[test]
fn words_in_memory_hold_streams_up() {
    child("words_in_memory_hold_streams_up", &[], || {
        let gpu = Gpu::whole(driver(), 0).unwrap();
        let word = Buffer::new(gpu.context(), 8).unwrap();
        gpu.compute.clear(word.address(), 8).unwrap();
        gpu.compute.synchronize().unwrap();
        let event = gpu.events().untimed().unwrap();
        gpu.receive.wait_value(word.address(), 3).unwrap();
        gpu.receive.record(&event).unwrap();
        gpu.send.write_value(word.address(), 2).unwrap();
        gpu.send.synchronize().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!event.is_done().unwrap(), "2 is less than 3");
        gpu.send.write_value(word.address(), 5).unwrap();
        event.synchronize().unwrap();
    });
}

/// Waits on one slice's streams do not hold up another slice's kernels: there is a hardware queue for every stream. With as few as the
/// driver has by itself there is not, unless it deals them to slices.
#[test]
fn a_slice_is_not_held_up_by_anothers_wait() {
    let hardware = |connections: &'static str, driver_version: &'static str| {
        [
            ("CUDA_DEVICE_MAX_CONNECTIONS", connections),
            ("EMULATOR_DRIVER_VERSION", driver_version),
            ("EMULATOR_MULTIPROCESSORS", "64"),
        ]
    };
    if let Some(connections) =
        std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().filter(|_| std::env::var(CHILD).is_ok())
    {
        let slices = Gpu::slices(driver(), 0, 4).unwrap();
        let (first, others) = slices.split_first().unwrap();
        let word = Buffer::new(first.context(), 8).unwrap();
        first.compute.clear(word.address(), 8).unwrap();
        first.compute.synchronize().unwrap();
        others.iter().for_each(|other| other.send.wait_value(word.address(), 1).unwrap());
        let (work, end) = (Buffer::new(first.context(), 64).unwrap(), first.events().untimed().unwrap());
        let begin = std::time::Instant::now();
        let mut held_up = false;
        for stream in [&first.compute, &first.send, &first.receive] {
            first.make_current().unwrap();
            stream.clear(work.address(), 64).unwrap();
            stream.record(&end).unwrap();
            let limit = std::time::Duration::from_millis(if connections == "32" { 10_000 } else { 300 });
            while !end.is_done().unwrap() && begin.elapsed() < limit {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            held_up |= !end.is_done().unwrap();
        }
        println!("with {connections} connections and a driver of {:?}: held up {held_up}", driver().version());
        let expected = connections != "32" && driver().version() < (13, 1);
        assert!(
            held_up == expected || (on_gpu() && connections != "32"),
            "held up: {held_up}, with {connections} connections"
        );
        let waker = &slices[3];
        waker.make_current().unwrap();
        waker.receive.write_value(word.address(), 1).unwrap();
        return slices.iter().for_each(|slice| slice.send.synchronize().unwrap());
    }
    for (connections, version) in [("32", "13000"), ("8", "13000"), ("8", "13010")] {
        child("a_slice_is_not_held_up_by_anothers_wait", &hardware(connections, version), || unreachable!());
    }
}

#[test]
fn devices_say_what_they_are_and_slices_are_dealt() {
    child("devices_say_what_they_are_and_slices_are_dealt", &[("EMULATOR_MULTIPROCESSORS", "16")], || {
        let devices = driver().devices();
        assert!(devices == 2 || on_gpu(), "{devices} devices");
        assert!(driver().version() >= (12, 8));
        let facts = driver().facts(devices - 1).unwrap();
        assert!(facts.capability >= LOWEST_CAPABILITY && !facts.name.is_empty() && !facts.pci.is_empty());
        assert!(facts.multiprocessors == 16 || on_gpu(), "{} multiprocessors", facts.multiprocessors);
        let below = format!("expected a GPU below {devices}");
        assert!(driver().facts(devices).unwrap_err().to_string().contains(&below));
        if devices > 1 {
            let reached = driver().peer_access(0, 1).unwrap();
            assert!(reached || on_gpu());
        } else {
            skipped_on_gpu("peer access, with one GPU");
        }
        let slices = Gpu::slices(driver(), 0, 2).unwrap();
        let each = slices[0].multiprocessors();
        let again = Gpu::slices(driver(), 0, 2).unwrap();
        let same = slices.iter().zip(&again).all(|(one, other)| Arc::ptr_eq(one.context(), other.context()));
        assert!(same, "green contexts are created once");
        assert!(slices.len() == 2 && 8 <= each && 2 * each <= facts.multiprocessors && (each == 8 || on_gpu()));
        assert!(slices.iter().all(|slice| slice.multiprocessors() == each && slice.slice().unwrap().1 == 2));
        let error = Gpu::slices(driver(), 0, facts.multiprocessors + 1).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("expected at most"), "{error}");
        let error = Gpu::whole(driver(), devices).map(drop).unwrap_err().context("opening the devices");
        assert!(Unusable::is_behind(&error) && !Unusable::is_behind(&anyhow::anyhow!("another matter")));
        assert!(Gpu::slices(driver(), 0, 0).is_err());
    });
}

#[test]
fn too_little_memory_is_refused_with_numbers() {
    child("too_little_memory_is_refused_with_numbers", &[("EMULATOR_MEMORY_BYTES", "41943040")], || {
        let parameters = checkpoint();
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        let whole = Stage::transformer(true, 0..4, true);
        let stages = [(0, whole)];
        if !skipped_on_gpu("a model that does not fit in a small memory") {
            let error =
                StageModule::on_gpu(&gpu, &parameters, &stages, [64, 64, 1], Precision::F32).map(drop).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains("MiB of free memory on GPU 0") && error.contains("of 40 MiB"), "{error}");
        }
        let mib = if on_gpu() { 1 << 26 } else { 1024 };
        let error = format!("{:#}", Buffer::new(gpu.context(), mib << 20).map(drop).unwrap_err());
        assert!(error.contains(&format!("expected {mib} MiB more of device memory, found")), "{error}");
    });
}

#[test]
fn without_a_driver_it_says_what_is_missing() {
    let name = "without_a_driver_it_says_what_is_missing";
    if std::env::var(CHILD).is_err() {
        // no stand-ins here, and none of NVIDIA's either
        let nowhere = [("LD_LIBRARY_PATH", ""), ("PATH", "/nonexistent")];
        return child(name, &nowhere, || {});
    }
    match Driver::open().map(|_| ()) {
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains("libcuda.so.1") && words.ends_with("or run with `device` cpu"), "{words}");
        }
        Ok(()) => println!("a driver is installed on this machine"),
    }
}

/// The driver is there, but neither the compiler nor the products.
#[test]
fn a_missing_library_is_named_once_with_its_fix() {
    let name = "a_missing_library_is_named_once_with_its_fix";
    if skipped_on_gpu("it needs a folder with a driver and no other library") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let only = folder.path().to_string_lossy().to_string();
    if std::env::var(CHILD).is_err() {
        std::os::unix::fs::symlink(emulator().join("libcuda.so.1"), folder.path().join("libcuda.so.1")).unwrap();
    }
    child(name, &[("LD_LIBRARY_PATH", &only), ("PATH", "/nonexistent")], || {
        if library::open(&library::NVRTC).is_ok() {
            return println!("NVRTC is installed on this machine");
        }
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        let stages = [(0, checkpoint().config.spec().split(1, None).unwrap()[0].clone())];
        let error = StageModule::on_gpu(&gpu, &checkpoint(), &stages, [1, 8, 1], Precision::F32).map(drop).unwrap_err();
        let words = format!("{error:#}");
        assert_eq!(words.matches("expected NVRTC").count(), 1, "{words}");
        assert!(Unusable::is_behind(&error) && words.contains("pip install nvidia-cuda-nvrtc"), "{words}");
    });
}

#[test]
fn no_visible_device_is_no_panic() {
    child("no_visible_device_is_no_panic", &[("CUDA_VISIBLE_DEVICES", "")], || {
        assert_eq!(Driver::open().map(|_| ()).unwrap_err(), Unusable::NoDevice);
    });
}

/// A session that needs less shared memory does not lower the limit of one that needs more.
#[test]
fn kernels_of_a_context_are_shared_and_keep_the_largest_limit() {
    child("kernels_of_a_context_are_shared_and_keep_the_largest_limit", &[], || {
        let gpu = Gpu::whole(driver(), 0).unwrap();
        let load = |head_size| Kernels::load(gpu.context(), gpu.facts(), Precision::F32, head_size).unwrap();
        let [one, other, any] = [load(Some(16)), load(Some(16)), load(None)];
        assert!(Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &any));
        let values = Buffer::new(gpu.context(), 4).unwrap();
        gpu.compute.clear(values.address(), 4).unwrap();
        let with = |shared_bytes| kernel::Launch { shared_bytes, ..kernel::maximum(Precision::F32, 1) };
        let arguments = [Argument::Address(values.address()), Argument::Address(values.address()), Argument::Size(1)];
        let launch = |kernels: &Kernels, bytes| kernels.launch(&gpu.compute, "maximum", with(bytes), &arguments);
        launch(&one, 100 << 10).expect_err("the limit is 48 KiB");
        one.allow("maximum", with(100 << 10)).unwrap();
        other.allow("maximum", with(60 << 10)).unwrap();
        launch(&one, 100 << 10).unwrap();
        gpu.compute.synchronize().unwrap();
    });
}

#[test]
fn compiled_kernels_come_from_the_cache_and_from_a_folder() {
    let name = "compiled_kernels_come_from_the_cache_and_from_a_folder";
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_string_lossy().to_string();
    child(name, &[("PIPESIM_CACHE", &cache)], || {
        if let Some(path) = std::env::var_os("PIPESIM_KERNELS") {
            let error = format!("{:#}", kernels(Precision::F32, (9, 0), None).unwrap_err());
            assert!(error.contains("sm_90_f32.cubin") && error.contains("unset PIPESIM_KERNELS"), "{error}");
            std::fs::write(Path::new(&path).join("sm_90_bf16.cubin"), b"ready").unwrap();
            assert_eq!(kernels(Precision::Bf16, (9, 0), None).unwrap().image, b"ready");
            return;
        }
        let files = || std::fs::read_dir(std::env::var("PIPESIM_CACHE").unwrap()).unwrap().count();
        let made = kernels(Precision::Bf16, (9, 0), None).unwrap();
        assert_eq!((made.origin.clone(), files()), (Origin::Compiled, 1));
        // the same process remembers; another finds it in the cache
        assert_eq!(kernels(Precision::Bf16, (9, 0), None).unwrap(), made);
        let again = again("cuda::the_cache_is_read").output().unwrap();
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
    });
    child(name, &[("PIPESIM_KERNELS", &cache)], || {});
}

/// Run by the test above, in a process of its own.
#[test]
#[ignore = "a part of compiled_kernels_come_from_the_cache_and_from_a_folder"]
fn the_cache_is_read() {
    assert!(matches!(kernels(Precision::Bf16, (9, 0), None).unwrap().origin, Origin::Cache(_)));
}

#[test]
fn gpt2s_parameters_take_18_bytes_each_in_bfloat16() {
    let spec = pipesim::internals::model_spec::gpt2::Config::preset("gpt2").unwrap().spec();
    let whole = Stage::transformer(true, 0..12, true);
    let (precision, sharing) = (Precision::Bf16, Sharing::NONE);
    let demand = Demand {
        sequences: 4,
        tokens: 1024,
        microbatches: 1,
        in_flight: 1,
        precision,
        sharing,
        attention_workspace: 0,
    };
    let bytes = bytes_needed(&spec, &[(0, whole)], &demand);
    // 124,475,904 parameters, all tensors multiples of 128 elements; the tied gradient's second part, 50304 * 768
    assert_eq!(bytes.parameters, 18 * 124_475_904 + 4 * 50304 * 768);
    // 32 bytes a channel and token a block
    assert!(bytes.activations > 12 * 32 * 768 * 4096 && bytes.activations < 13 * 36 * 768 * 4096 + 2 * 4096 * 50304);
}
