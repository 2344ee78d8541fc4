//! Tensor-parallel ranks, as threads: their losses and gradients against PyTorch's, their copies and memory against each other.

use crate::llama::Case;
use crate::model::Pipeline;
use crate::modules::OnCpu as _;
use crate::pipeline::{Batch, Order, Steps};
use crate::support::{
    checkpoint, debug_state, golden, golden_losses, golden_settings, number, numbers, relative_distance,
};
use crate::threads::Threads;
use pipesim::internals::compute::Collective;
use pipesim::internals::model::*;
use pipesim::internals::model_spec::{MicroBatch, Split, Storage, Tensor};
use pipesim::internals::op::Kind;
use std::thread;

/// The ranks that share a model, each with a pipeline of its own.
struct RankGroup {
    config: Config,
    ranks: Vec<Pipeline>,
}

fn share(ranks: Box<dyn Collective>, shares_rows: bool) -> WorkerShare<dyn Collective> {
    WorkerShare { shares_rows, ..ranks.into() }
}

impl RankGroup {
    /// Stage s is on device `devices[s]` of every rank. `sizes` are sequences, tokens per sequence, micro-batches.
    fn new(
        parameters: &Parameters,
        devices: &[usize],
        sizes: [usize; 3],
        Layout { ranks, shares_rows }: Layout,
    ) -> RankGroup {
        let count = devices.iter().max().unwrap() + 1;
        let mut groups: Vec<_> = (0..count).map(|_| Threads::group(ranks).into_iter()).collect();
        let mut rank = || {
            let mut member = |device: usize| Box::new(groups[device].next().unwrap());
            Pipeline::of_rank(parameters, devices, sizes, |device| share(member(device), shares_rows))
        };
        RankGroup { config: parameters.config, ranks: (0..ranks).map(|_| rank()).collect() }
    }

    /// Everything of a step but the update; returns the loss, which all ranks must have.
    fn gradients(&mut self, batch: Batch, order: Order) -> f32 {
        let losses: Vec<f32> = thread::scope(|scope| {
            let threads = self.ranks.iter_mut().map(|rank| scope.spawn(move || rank.gradients(batch, order)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(losses.iter().all(|loss| loss.to_bits() == losses[0].to_bits()), "{losses:?}");
        losses[0]
    }

    /// Length of the gradient over all ranks.
    fn norm(&mut self) -> f64 {
        let mut parts: Vec<_> = self.ranks.iter_mut().flat_map(Steps::squared_norms).collect();
        parts.sort_by_key(|part| part.0);
        let orders: Vec<usize> = parts.iter().map(|part| part.0).collect();
        let count = self.config.spec().squares() * self.ranks.len();
        assert_eq!(orders, (0..count).collect::<Vec<_>>(), "every part once");
        parts.iter().map(|part| part.1).sum::<f64>().sqrt()
    }

    fn update(&mut self, step: u32, hyper: &AdamW, scale: f32) {
        self.ranks.iter_mut().for_each(|rank| rank.update(step, hyper, scale));
    }

    /// A whole step; returns the loss before the update.
    fn step(&mut self, step: u32, batch: Batch, hyper: &AdamW, clip: Option<f64>) -> f32 {
        let loss = self.gradients(batch, Order::FullBackward);
        let scale = clip.map_or(1.0, |clip| (clip / (self.norm() + 1e-6)).min(1.0));
        self.update(step, hyper, scale as f32);
        loss
    }

    /// Whole tensors. What several ranks hold must have the same bits on each: the last to write is the first, or the last.
    fn all(&mut self, what: Quantity) -> Parameters {
        let [mut forward, mut backward] = [(); 2].map(|()| Parameters::zeros(&self.config).unwrap());
        self.ranks.iter_mut().for_each(|rank| rank.export(&mut forward, what));
        self.ranks.iter_mut().rev().for_each(|rank| rank.export(&mut backward, what));
        assert!(forward == backward, "copies of {what:?} differ between ranks");
        forward
    }

    fn import(&mut self, parameters: &Parameters, what: Quantity) {
        self.ranks
            .iter_mut()
            .flat_map(|rank| &mut rank.shards)
            .for_each(|shard| shard.import(parameters, what).unwrap());
    }
}

/// How many ranks, and whether they share the rows between products: sequence parallelism.
#[derive(Clone, Copy, Debug)]
struct Layout {
    ranks: usize,
    shares_rows: bool,
}

impl Layout {
    /// One, two and four ranks, without and with sequence parallelism, as many as can share the model.
    fn of(config: &Config) -> impl Iterator<Item = Layout> {
        let layouts = [(1, false), (2, false), (2, true), (4, false), (4, true)];
        let layouts = layouts.map(|(ranks, shares_rows)| Layout { ranks, shares_rows });
        layouts.into_iter().filter(|layout| config.check_tensor_ranks(layout.ranks).is_ok())
    }
}

const PARTITIONS: [&[usize]; 3] = [&[0], &[0, 1], &[0, 1, 1, 0]];

#[test]
fn gpt2s_loss_and_gradients_are_pytorchs_on_every_number_of_ranks() {
    let state = debug_state();
    for layout in Layout::of(&checkpoint().config) {
        for devices in PARTITIONS {
            for (microbatches, order) in [(1, Order::FullBackward), (4, Order::Reversed)] {
                let sizes = [state.batch, state.tokens, microbatches];
                let mut group = RankGroup::new(&checkpoint(), devices, sizes, layout);
                let loss = group.gradients((&state.inputs, &state.targets), order);
                assert!((loss - state.loss).abs() < 1e-5, "{layout:?}: loss {loss}, PyTorch's {}", state.loss);
                let found = group.all(Quantity::Gradients);
                let spec = found.config.spec();
                for (((_, tensor), found), expected) in spec.tensors().zip(&found.tensors).zip(&state.gradients) {
                    let distance = relative_distance(found, expected);
                    assert!(distance < 1e-5, "{layout:?}, {devices:?}: {} differs by {distance:e}", tensor.name);
                }
                let squares = state.gradients.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
                let norm = group.norm();
                assert!((norm / squares.sqrt() - 1.0).abs() < 1e-5, "{layout:?}: length {norm}");
            }
        }
    }
}

#[test]
fn llamas_loss_and_gradients_are_pytorchs_on_every_number_of_ranks() {
    let mut shared = 0;
    for case in Case::all() {
        let [batch, micro, seq] = case.sizes();
        let (inputs, targets) = case.tokens().batch(0, batch, seq).unwrap();
        for layout in Layout::of(&case.config) {
            shared += usize::from(case.config.groups < layout.ranks && !layout.shares_rows);
            for devices in PARTITIONS.into_iter().filter(|devices| devices.len() <= case.config.layers) {
                let mut group = RankGroup::new(&case.parameters(), devices, [batch, seq, micro], layout);
                let loss = group.gradients((&inputs, &targets), Order::DelayedWeights);
                case.check_gradients(loss, &group.all(Quantity::Gradients));
                let (norm, theirs) = (group.norm(), number(&case.expected, "gradient_norm"));
                assert!((norm / theirs - 1.0).abs() < 1e-4, "{}, {layout:?}: length {norm}", case.name);
            }
        }
    }
    assert_eq!(shared, 4); // A on 4 ranks, B on 2 and 4, C on 2 have copies of heads of keys
}

#[test]
fn ten_steps_give_pytorchs_losses_on_every_number_of_ranks() {
    let state = debug_state();
    let data = Tokens::read(&golden("gpt2/tokens.bin"), Tokenizer::Bytes).unwrap();
    for (name, hyper, clip) in golden_settings() {
        for (ranks, shares_rows, devices) in [(2, false, &[0][..]), (4, false, &[0, 1]), (2, true, &[0, 1])] {
            let layout = Layout { ranks, shares_rows };
            let mut group = RankGroup::new(&checkpoint(), devices, [state.batch, state.tokens, 4], layout);
            for (step, expected) in golden_losses(name).into_iter().enumerate() {
                let batch = if name.starts_with('C') { step } else { 0 };
                let (inputs, targets) = data.batch(batch, state.batch, state.tokens).unwrap();
                let loss = group.step(step as u32 + 1, (&inputs, &targets), &hyper, clip);
                assert!((f64::from(loss) - expected).abs() < 1e-4, "{name}, {layout:?}, {step}: {loss}, {expected}");
            }
            group.all(Quantity::Values);
        }
    }
    for case in Case::all() {
        let [batch, micro, seq] = case.sizes();
        for name in ["stream_b0.9_0.95_wd0.1_clip1", "same_batch_b0.9_0.999_wd0.01"] {
            let training = case.training(name, micro).training_config;
            for layout in Layout::of(&case.config) {
                let mut group = RankGroup::new(&case.parameters(), &[0], [batch, seq, micro], layout);
                for (step, expected) in numbers(&case.expected[name]).into_iter().enumerate() {
                    let number = if training.repeat_batch { 0 } else { step };
                    let (inputs, targets) = case.tokens().batch(number, batch, seq).unwrap();
                    let clip = training.clip.map(f64::from);
                    let loss = group.step(step as u32 + 1, (&inputs, &targets), &training.adamw, clip);
                    let name = (case.name, name, layout, step);
                    assert!((f64::from(loss) - expected).abs() < 1e-4, "{name:?}: {loss}, {expected}");
                }
                group.all(Quantity::Values);
            }
        }
    }
}

#[test]
fn state_of_two_ranks_is_that_of_four() {
    let [_, case, _] = Case::all();
    let [batch, micro, seq] = case.sizes();
    let (inputs, targets) = case.tokens().batch(0, batch, seq).unwrap();
    let new = |ranks| {
        RankGroup::new(&case.parameters(), &[0], [batch, seq, micro], Layout { ranks, shares_rows: ranks == 4 })
    };
    let (mut two, mut four) = (new(2), new(4));
    two.step(1, (&inputs, &targets), &AdamW::default(), None);
    let kept = [Quantity::Values, Quantity::FirstMoments, Quantity::SecondMoments];
    for what in kept {
        four.import(&two.all(what), what);
    }
    assert!(kept.map(|what| four.all(what)) == kept.map(|what| two.all(what)));
    let [a, b] = [&mut two, &mut four].map(|group| group.step(2, (&inputs, &targets), &AdamW::default(), None));
    assert!((a - b).abs() < 1e-5, "{a} and {b}");
    for (number, (a, b)) in two.all(Quantity::Values).tensors.iter().zip(four.all(Quantity::Values).tensors).enumerate()
    {
        assert!(relative_distance(a, &b) < 1e-5, "tensor {number}");
    }
}

#[test]
fn ranks_hold_what_the_description_says() {
    let state = debug_state();
    let models = Case::all().map(|case| (case.parameters(), case.sizes(), case.tokens()));
    let data = Tokens::read(&golden("gpt2/tokens.bin"), Tokenizer::Bytes).unwrap();
    let gpt2 = (checkpoint(), [state.batch, 1, state.tokens], data);
    for (parameters, [batch, _, seq], data) in models.into_iter().chain([gpt2]) {
        let config = parameters.config;
        let (inputs, targets) = data.batch(0, batch, seq).unwrap();
        for layout in Layout::of(&config) {
            let mut group = RankGroup::new(&parameters, &[0], [batch, seq, 1], layout);
            let stage = config.spec().split(1, None).unwrap().remove(0);
            let (micro, storage) =
                (MicroBatch { sequences: batch, tokens: seq }, storage(config.vocabulary_multiple, layout.ranks));
            let storage = Storage { sp: if layout.shares_rows { layout.ranks } else { 1 }, ..storage };
            let left = |kind| config.spec().left(&stage, kind, micro, &storage) as usize;
            let run = |rank: &mut Pipeline| {
                rank.begin((&inputs, &targets));
                rank.forward(0, (&inputs, &targets));
                assert_eq!(rank.held_bytes(), left(Kind::F));
                rank.backward_input(0);
                assert_eq!(rank.held_bytes(), left(Kind::I));
                rank.backward_weight(0, 0);
                assert_eq!(rank.shards[0].peak_held_bytes(), left(Kind::F).max(left(Kind::I)));
            };
            thread::scope(|scope| group.ranks.iter_mut().for_each(|rank| drop(scope.spawn(|| run(rank)))));
        }
    }
}

#[test]
fn ranks_that_cannot_share_a_model_are_refused() {
    let [_, case, _] = Case::all();
    let refused = |config: Config, ranks: usize, what: &str| {
        let stages = [(0, config.spec().split(1, None).unwrap().remove(0))];
        let parameters = Parameters::random(&config, 1).unwrap();
        let ranks_of_it = share(Box::new(Threads::group(ranks).remove(0)), true);
        let error = StageModule::on_cpu_rank(&parameters, &stages, [1, 6, 1], ranks_of_it).err().expect(what);
        assert!(error.to_string().contains(what) && error.to_string().contains(&ranks.to_string()), "{error}");
    };
    refused(case.config, 3, "4 heads");
    refused(Config { mlp: 130, ..case.config }, 4, "130 channels of the MLP");
    refused(Config { heads: 12, groups: 3, ..case.config }, 2, "3 key and value heads");
    refused(Config { vocabulary: 3, ..case.config }, 4, "vocabulary of 3");
    refused(case.config, 4, "6 tokens");
}

#[test]
fn a_rank_holds_its_heads_of_each_fused_block() {
    let [case, ..] = Case::all(); // 4 heads of queries, 2 of keys and of values, 16 channels each
    let spec = case.config.spec();
    let split = |name: &str| -> Split {
        let tensor = |(_, tensor): (usize, &Tensor)| (tensor.name == name).then(|| tensor.split.clone().unwrap());
        spec.tensors().find_map(tensor).unwrap()
    };
    let runs = |name, rank, ranks| split(name).runs(rank, ranks).collect::<Vec<_>>();
    let one = |start: usize, end: usize| std::iter::once(start..end).collect::<Vec<_>>();
    assert_eq!(runs("wqkv", 1, 2), [32..64, 80..96, 112..128]);
    assert_eq!(runs("wqkv", 2, 4), [32..48, 80..96, 112..128]);
    assert_eq!(runs("wqkv", 3, 4), [48..64, 80..96, 112..128]);
    assert_eq!(runs("w13", 1, 2), [88..176, 264..352]);
    assert_eq!(runs("w2", 1, 2), one(88, 176));
    assert_eq!((runs("tok_embeddings", 0, 2), runs("tok_embeddings", 1, 2)), (one(0, 129), one(129, 257)));
}

#[test]
fn collective_calls_add_up_in_the_order_of_members() {
    let work = |mut member: Threads| {
        let rank = member.rank();
        let mut sum = [1e8, rank as f32, -1e8]; // the order decides the bits
        sum.rotate_left(rank % 3);
        let expected: [f32; 3] = [[1e8, 0.0, -1e8], [1.0, -1e8, 1e8], [-1e8, 1e8, 2.0]]
            .into_iter()
            .fold([0.0; 3], |sum, part| std::array::from_fn(|i| sum[i] + part[i]));
        member.all_reduce(&mut sum).unwrap();
        let mut most = [rank as f32, -(rank as f32)];
        member.all_reduce_max(&mut most).unwrap();
        let (mut share, mut all) = ([0.0; 2], [0.0; 6]);
        member.reduce_scatter(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &mut share).unwrap();
        member.all_gather(&share, &mut all).unwrap();
        assert!(member.all_gather(&share, &mut [0.0; 5]).is_err());
        assert_eq!((sum, most, all), (expected, [2.0, 0.0], [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]));
    };
    thread::scope(|scope| Threads::group(3).into_iter().for_each(|member| drop(scope.spawn(move || work(member)))));
    // a member that is gone is no reason to wait for ever
    let mut members = Threads::group(2);
    drop(members.pop());
    assert!(members[0].all_reduce(&mut [1.0]).unwrap_err().to_string().contains("one gone"));
}
