//! Time of one part on one GPU for one micro-batch: its forward and both halves of its backward. Times are in seconds.

use super::machine::{Platform, ProductShape};
use super::pass::{ExpertSums, Pass, Passes};
use pipesim_models::layout::{Attention, ParallelConfig, Precision, Recompute, RecomputePart, Replicas, Zero};
use pipesim_models::model_spec::{Experts, Operation, Part, Tensor, Window};

/// Cost model of parts under a layout on a platform.
pub struct PartCosts<'a> {
    pub machine: &'a Platform,
    pub layout: &'a ParallelConfig,
    pub attention: Attention,
    /// Experts of the model's mixtures.
    pub experts: Option<Experts>,
    /// Hidden size, in elements per token.
    pub hidden: f64,
    /// Relative speed of products with the output of an activation, or its gradient: above 1 if most of it is zeros.
    pub zeros_speedup: f64,
    /// Number of tokens of each sequence that precede the layout's tokens; 0 except for later slices.
    pub before: u32,
    /// Whether only adapters are trained.
    pub is_frozen: bool,
}

/// Relative speeds of a product's three passes.
#[derive(Clone, Copy)]
struct Speedups {
    forward: f64,
    input: f64,
    weights: f64,
}

impl Speedups {
    const NONE: Speedups = Speedups { forward: 1.0, input: 1.0, weights: 1.0 };
}

/// Running sums over the operations of a part.
#[derive(Default)]
pub(super) struct Sums {
    pub forward: f64,
    pub input: f64,
    pub weights: f64,
    /// The same for the weights of adapters.
    adapters: f64,
    /// Attention between its products, part of `forward`.
    pub attention: f64,
    /// Last product, part of `forward`.
    pub last: f64,
    /// Experts, not part of the sums above.
    pub experts: ExpertSums,
    /// By [`RecomputePart`]: its share of `forward`.
    parts: [f64; RecomputePart::ALL.len()],
    /// Number of additions to the residual stream so far.
    additions: usize,
    /// Number of all-reduces of the hidden state in forward and backward; with sequence parallelism, pairs of gather and
    /// reduce-scatter.
    collectives: f64,
    backward_collectives: f64,
    /// Exposed context-parallel exchange of the forward.
    pub ring: f64,
}

impl Sums {
    /// Returns the share of the forward that a part of a layer takes, without experts.
    pub fn of(&self, part: RecomputePart) -> f64 {
        self.parts[part as usize]
    }
}

/// Returns the part of a layer that an operation belongs to, by the number of additions to the residual stream before it.
fn part_of(operation: &Operation, hidden: f64, additions: usize, has_experts: bool) -> Option<RecomputePart> {
    match *operation {
        Operation::Norm { width, .. } => (width as f64 == hidden).then_some(RecomputePart::Norms),
        Operation::Product { inputs, outputs, .. } if additions == 0 => {
            let is_up = inputs as f64 != hidden && outputs as f64 != hidden;
            is_up.then_some(RecomputePart::LatentUp)
        }
        Operation::Activate { .. } if additions == 0 => None,
        Operation::Product { .. } | Operation::Activate { .. } => {
            Some(if has_experts { RecomputePart::SharedExperts } else { RecomputePart::Mlp })
        }
        Operation::Route { .. } => Some(RecomputePart::Mixture),
        _ => None,
    }
}

impl PartCosts<'_> {
    /// Returns the tokens per micro-batch on this GPU.
    pub(super) fn tokens(&self) -> f64 {
        self.layout.micro_tokens() as f64
    }

    /// Returns the tokens of earlier slices on this GPU.
    fn earlier_tokens(&self) -> f64 {
        f64::from(self.layout.micro_batch_size) * f64::from(self.before) / f64::from(self.layout.cp)
    }

    pub(super) fn tensor(&self) -> f64 {
        f64::from(self.layout.tp)
    }

    /// Returns the bytes of an activation.
    pub(super) fn width(&self) -> f64 {
        f64::from(self.layout.precision.bytes())
    }

    /// Returns the number of ranks that share the rows between products.
    fn between(&self) -> f64 {
        if self.layout.sequence_parallel { self.tensor() } else { 1.0 }
    }

    /// Returns the passes of one repetition of the part.
    pub fn passes(&self, part: &Part) -> Passes {
        // a layer of an MLP or experts alone has no attention before it
        let additions = usize::from(part.is_layer() && !part.operations.iter().any(Operation::mixes_tokens));
        let mut sums = Sums { additions, ..Sums::default() };
        let mut weights = part.matrices();
        let has_experts = part.chosen_experts().is_some();
        for (number, operation) in part.operations.iter().enumerate() {
            let (before, additions) = (sums.forward, sums.additions);
            let speedups = self.speedups(&part.operations, number);
            self.add(&mut sums, operation, speedups, || weights.next());
            if let Some(part) = part_of(operation, self.hidden, additions, has_experts) {
                sums.parts[part as usize] += sums.forward - before;
            }
            sums.additions += usize::from(matches!(operation, Operation::Add { .. }));
        }
        let experts = sums.experts;
        let forward = Pass {
            compute: sums.forward + experts.forward,
            tensor: self.exposed(sums.collectives) + experts.gathers,
            experts: 2.0 * experts.exchange,
            data: 0.0,
            other: sums.ring,
        };
        let again = if part.is_layer() { self.again(&sums, forward) } else { Pass::default() };
        let input = Pass {
            compute: sums.input + experts.input,
            tensor: self.exposed(sums.backward_collectives) + experts.gathers,
            experts: 2.0 * experts.exchange,
            data: 0.0,
            other: 2.0 * sums.ring,
        } + again;
        let trained = if self.is_frozen { sums.adapters } else { sums.weights };
        let weights = Pass { compute: trained + experts.weights, ..Pass::default() };
        let mut passes = Passes { forward, input, weights, backward: input + weights, ..Passes::default() };
        match part.chosen_experts() {
            Some(_) => self.add_mixture_host(&mut passes, &sums, again),
            None => self.add_host(&mut passes, part, again != Pass::default()),
        }
        self.add_gathers(&mut passes, part);
        if part.is_layer() && self.layout.recompute == Recompute::Full && self.machine.stack.splits_graph > 0.0 {
            passes.again = self.again_in_weights(part, again);
        }
        passes
    }

    /// Returns what W recomputes in PyTorch's pipelines: autograd runs once for each module with weights, and each run recomputes the layer.
    fn again_in_weights(&self, part: &Part, again: Pass) -> Pass {
        let stack = &self.machine.stack;
        let host = if part.chosen_experts().is_some() { stack.mixture_layer_ms } else { stack.host_layer_ms };
        let waits = (host * 1e-3 * self.launched() - again.total()).max(0.0);
        (again + Pass { other: waits, ..Pass::default() }) * part.modules() as f64
    }

    /// Returns the relative speeds of the product at `place`. The activation's output is the input of the next product, and the
    /// gradient of the activation's input is the gradient of the previous product's output.
    fn speedups(&self, operations: &[Operation], place: usize) -> Speedups {
        let is_activation = |place: Option<usize>| {
            matches!(place.and_then(|place| operations.get(place)), Some(Operation::Activate { .. }))
        };
        let (zeros, Speedups { forward, input, .. }) = (self.zeros_speedup, Speedups::NONE);
        match (is_activation(place.checked_sub(1)), is_activation(Some(place + 1))) {
            (true, _) => Speedups { forward: zeros, input, weights: zeros },
            (_, true) => Speedups { forward, input: zeros, weights: zeros },
            _ => Speedups::NONE,
        }
    }

    /// Returns the exposed time of `collectives` all-reduces of the hidden state.
    fn exposed(&self, collectives: f64) -> f64 {
        if self.layout.tp == 1 || collectives == 0.0 {
            return 0.0;
        }
        let stack = &self.machine.stack;
        let group = self.machine.tensor_group(self.layout);
        // software that hides them copies through the memory of GPUs in one node (TransformerEngine, userbuffers-host.cpp)
        let exposed = if group.crosses() { 1.0 } else { stack.exposed_of_tensor(self.experts.is_some()) };
        let hidden = self.hidden_bytes();
        let each = match self.layout.sequence_parallel {
            false => self.machine.reduce(group, hidden),
            true => {
                let gathered = stack.gathers_narrow > 0.0 && self.layout.precision.is_narrow();
                let gather = self.machine.gather(group, if gathered { hidden / self.width() } else { hidden });
                gather + self.machine.gather(group, hidden)
            }
        };
        collectives * (each + stack.collective_us * 1e-6) * exposed
    }

    /// Returns the bytes of a micro-batch's hidden state.
    fn hidden_bytes(&self) -> f64 {
        self.tokens() * self.width() * self.hidden
    }

    fn add<'t>(
        &self,
        sums: &mut Sums,
        operation: &Operation,
        speedups: Speedups,
        weight: impl FnOnce() -> Option<&'t Tensor>,
    ) {
        let (machine, stack) = (self.machine, &self.machine.stack);
        let (n, t, e) = (self.tokens(), self.tensor(), self.width());
        let bound = |sums: &mut Sums, bytes: f64| {
            sums.forward += machine.operation(bytes);
            sums.input += machine.operation(bytes * stack.backward_traffic);
        };
        match *operation {
            Operation::Lookup { width } => {
                let bytes = 2.0 * e * n * width as f64;
                sums.forward += machine.operation(bytes);
                sums.weights += machine.operation(bytes * stack.backward_traffic);
                sums.collectives += 1.0;
            }
            Operation::Norm { width, .. } => {
                bound(sums, stack.norm_traffic * 2.0 * e * n * width as f64 / self.between());
            }
            Operation::Add { width } => bound(sums, 3.0 * e * n * width as f64 / self.between()),
            Operation::Rotate { width } => bound(sums, stack.rotary_traffic * 2.0 * e * n * width as f64 / t),
            Operation::Activate { inputs, outputs } => {
                // two operations, one for the gate and one for its product, write and read the gate in between
                let gate = if stack.keeps_gate > 0.0 && inputs != outputs { 2 * outputs } else { 0 };
                bound(sums, e * n * (inputs + outputs + gate) as f64 / t);
            }
            Operation::Attention { heads, groups, size, value, window } => {
                bound(sums, e * n * ((heads + groups) * (size + value)) as f64 / t);
                self.add_attention(sums, [heads, groups, size, value].map(|size| size as f64), window);
            }
            Operation::Product { inputs, outputs, .. } => {
                let split = weight().and_then(|tensor| tensor.split.as_ref()).map(|split| split.axis);
                let (rows_split, columns_split) = (split == Some(1), split == Some(0));
                let inputs = inputs as f64 / if rows_split { t } else { 1.0 };
                let outputs = outputs as f64 / if columns_split { t } else { 1.0 };
                // a product that ranks do not share works on the rows between products
                let rows = if split.is_none() { n / self.between() } else { n };
                // all-reduce after products split by inputs (forward) or outputs (backward); in latent attention, of narrow rows
                sums.collectives += f64::from(u8::from(rows_split));
                sums.backward_collectives += if columns_split { (inputs / self.hidden).min(1.0) } else { 0.0 };
                self.add_product(sums, rows, [inputs, outputs], self.layout.precision, speedups);
            }
            Operation::Adapt { inputs, outputs, rank, has_split_inputs, .. } => {
                self.add_adapter(sums, [inputs, outputs, rank].map(|size| size as f64), has_split_inputs);
            }
            Operation::Classify { width, vocabulary } => {
                let _ = weight();
                let logits = vocabulary as f64 / t;
                let precision = self.layout.precision.between_layers();
                self.add_product(sums, n, [width as f64, logits], precision, Speedups::NONE);
                let seen = if stack.has_whole_logits() { vocabulary as f64 } else { logits };
                let bytes = stack.loss_bytes * n * seen;
                if stack.has_whole_logits() {
                    let group = machine.tensor_group(self.layout);
                    sums.forward += machine.gather(group, e * n * seen);
                }
                sums.forward += machine.operation(bytes);
                sums.input += machine.operation(bytes);
                sums.backward_collectives += 1.0;
            }
            Operation::Route { .. } => {
                let _ = weight();
                self.add_expert_operation(sums, operation);
            }
            Operation::Dispatch { .. }
            | Operation::Combine { .. }
            | Operation::ActivateCopies { .. }
            | Operation::Grouped { .. } => self.add_expert_operation(sums, operation),
            Operation::Index { .. } | Operation::Convolve { .. } | Operation::Scan(_) | Operation::Gate { .. } => {
                self.add_mixing(sums, operation);
            }
        }
    }

    /// Returns the memory traffic of a cast to `precision`, in bytes per element.
    pub(super) fn cast_bytes(&self, precision: Precision) -> f64 {
        match precision {
            Precision::Fp8 => self.machine.stack.cast_bytes,
            Precision::Mxfp8 | Precision::Nvfp4 => self.machine.stack.block_cast_bytes,
            _ => 0.0,
        }
    }

    /// Adds a product of `n` rows.
    fn add_product(
        &self,
        sums: &mut Sums,
        n: f64,
        [inputs, outputs]: [f64; 2],
        precision: Precision,
        speedups: Speedups,
    ) {
        let (machine, stack) = (self.machine, &self.machine.stack);
        let cast = self.cast_bytes(precision);
        sums.last = machine.product(ProductShape::new(n, outputs, inputs), precision) / speedups.forward;
        sums.forward += sums.last + machine.traffic(cast * n * inputs);
        sums.input += machine.product(ProductShape::new(n, inputs, outputs), precision) / speedups.input;
        sums.input += machine.traffic(cast * n * outputs);
        sums.weights += machine.product(ProductShape::new(outputs, inputs, n), precision) / speedups.weights;
        sums.weights += machine.traffic(stack.accumulation_bytes * inputs * outputs);
    }

    /// Adds an adapter: as in Megatron-Bridge, its output is scaled and added to the product's, and ranks that share its inputs gather its
    /// outputs; ranks that do not reduce the gradient of its input.
    fn add_adapter(&self, sums: &mut Sums, [inputs, outputs, rank]: [f64; 3], has_split_inputs: bool) {
        let (machine, n, t, e) = (self.machine, self.tokens(), self.tensor(), self.width());
        let precision = self.layout.precision.between_layers();
        let product = |rows, columns, inner| machine.product(ProductShape::new(rows, columns, inner), precision);
        let (held_in, held_rank) = if has_split_inputs { (inputs / t, rank) } else { (inputs, rank / t) };
        let (held_out, between) = (outputs / t, if has_split_inputs { outputs / self.between() } else { outputs / t });
        sums.forward += product(n, held_rank, held_in) + product(n, held_out, rank);
        sums.forward += machine.operation(2.0 * e * n * held_out) + machine.operation(3.0 * e * n * between);
        sums.input += product(n, rank, held_out) + product(n, held_in, held_rank);
        sums.input += machine.operation(2.0 * e * n * held_out) + machine.operation(3.0 * e * n * held_in);
        sums.adapters += product(held_out, rank, n) + product(held_rank, held_in, n);
        if has_split_inputs {
            sums.collectives += 0.5;
        } else if !self.layout.sequence_parallel {
            sums.backward_collectives += 1.0;
        }
    }

    fn add_attention(&self, sums: &mut Sums, [heads, groups, size, value]: [f64; 4], window: Option<Window>) {
        let (machine, stack, h) = (self.machine, &self.machine.stack, &self.machine.hardware);
        let (n, t, e) = (self.tokens(), self.tensor(), self.width());
        let (s, context) = (f64::from(self.layout.sequence), f64::from(self.layout.cp));
        let (before, keys) = (self.before as usize, s + f64::from(self.before));
        let earlier = self.earlier_tokens();
        let (forward, backward) = match self.attention {
            Attention::Flash => {
                // queries times keys and scores times values; a causal mask halves both
                let upto = |tokens: usize| Window::scores(window, tokens);
                let packed = self.layout.per_packed_token(|tokens| upto(tokens as usize) as f64);
                let whole = || (upto(before + self.layout.sequence as usize) - upto(before)) as f64 / s;
                let seen = packed.unwrap_or_else(whole);
                let flops = 2.0 * n * seen * heads * (size + value) / t / 2.0;
                let share = match stack.flash_kernels {
                    kernels if kernels < 2.0 => h.flash1_share,
                    kernels if kernels < 3.0 => h.flash2_share,
                    _ => h.flash_share,
                };
                let forward = flops / h.flash_speed(self.layout.precision, share);
                (forward, 2.5 * forward / h.flash_backward_share)
            }
            Attention::Plain => {
                let count = f64::from(self.layout.micro_batch_size) * heads / t;
                let precision = self.layout.precision.between_layers();
                let product = |columns, inner| {
                    machine.product(ProductShape { count, rows: s / context, columns, inner }, precision)
                };
                let products = product(keys, size) + product(value, keys);
                let scores = count * s * keys / context;
                let forward = products + machine.operation(stack.score_bytes * scores);
                (forward, 2.0 * products + machine.operation(stack.score_backward_bytes * scores))
            }
        };
        sums.forward += forward;
        sums.input += backward;
        sums.attention = forward;
        if earlier > 0.0 {
            // gradients of the keys and values of earlier slices: written, read again and added to what is there
            sums.input += machine.operation(3.0 * e * earlier * groups * (size + value) / t);
        }
        if context > 1.0 {
            // keys and values of other ranks arrive during the attention to the previous ones
            let group =
                machine.group(self.layout, Replicas { ranks: self.layout.cp, stride: self.layout.tp, shard: 1 });
            let ring = machine.gather(group, e * (n + earlier) * context * groups * (size + value) / t);
            sums.ring += (ring - forward).max(0.0);
        }
    }

    /// Adds the time for which the GPU waits for the host's launches.
    fn add_host(&self, passes: &mut Passes, part: &Part, again: bool) {
        let stack = &self.machine.stack;
        if !part.is_layer() {
            return;
        }
        let host = stack.host_layer_ms * 1e-3 * self.launched();
        let waits = |host: f64, gpu: f64| if stack.host_blocks > 0.0 { host } else { (host - gpu).max(0.0) };
        let again = if again { host } else { 0.0 };
        passes.forward.other += waits(host, passes.forward.total());
        passes.input.other += waits(again + host / 2.0, passes.input.total());
        passes.weights.other += waits(host / 2.0, passes.weights.total());
        passes.backward.other += waits(again + host, passes.backward.total());
    }

    /// Returns what the ranks that share a `part` exchange, and in how many pieces: experts among their replicas are second, all others
    /// among data- and context-parallel ranks first. `is_whole`: frozen tensors, too.
    fn exchanged(&self, part: &Part, is_whole: bool) -> [[f64; 2]; 2] {
        let (layout, stack) = (self.layout, &self.machine.stack);
        // software that lists every rank's share exchanges tensor by tensor
        let lists = stack.gather_rank_us > 0.0;
        let of_experts = part.tensors().filter(|tensor| tensor.is_of_experts && tensor.shape.len() == 3);
        let tensors = layout.together([part.matrices().count(), of_experts.count()]);
        let pieces = tensors.map(|tensors| if lists { tensors as f64 } else { 1.0 });
        let is_shared = |tensor: &Tensor| is_whole || !self.is_frozen || tensor.is_adapter;
        [part.elements_of(layout.degrees(), is_shared).map(|elements| elements as f64), pieces]
    }

    /// Adds ZeRO-3's gathers of weights before each pass, and the reduction of gradients after the backward, unless whole stages are
    /// gathered between ops.
    fn add_gathers(&self, passes: &mut Passes, part: &Part) {
        let (layout, stack) = (self.layout, &self.machine.stack);
        if layout.zero != Zero::Weights || layout.fsdp.is_some() {
            return;
        }
        let [[whole, pieces], [trained, _]] = [true, false].map(|is_whole| self.exchanged(part, is_whole));
        // the seconds of an exchange, and those by which it makes what is computed next to it longer
        let times = |elements: [f64; 2], bytes: f64| {
            let seconds = self.machine.gather_replicas(layout, elements, pieces, bytes);
            let disturbing = match stack.gather_exposed {
                1.0.. => seconds,
                share => share * self.machine.moved_by_replicas(layout, elements, bytes).min(seconds),
            };
            [seconds, disturbing]
        };
        let reduced = stack.reduced(layout.precision);
        let [gather, reduce] = [times(whole, stack.gathered(layout.precision)), times(trained, reduced)];
        let summed = |[within, disturbs]: [f64; 2]| {
            let all = self.machine.with_copies(layout, within, trained, pieces, reduced);
            [all, if stack.gather_exposed < 1.0 { disturbs } else { all }]
        };
        // such software also gathers again for recomputation
        let again = stack.gather_rank_us > 0.0 && part.is_layer() && layout.recompute == Recompute::Full;
        // one micro-batch of a step gathers and reduces for all of them
        let keeps = stack.keeps_unsharded > 0.0;
        let share = if keeps { 1.0 / (f64::from(layout.micro) * f64::from(layout.rounds)) } else { 1.0 };
        let repeats = if keeps { 0.0 } else { f64::from(u8::from(again)) + 1.0 };
        let gathers = gather.map(|seconds| seconds * repeats);
        let exposed = |computed: f64, [exchanged, disturbing]: [f64; 2]| {
            share * ((exchanged - computed).max(0.0) + disturbing * (computed / exchanged.max(1e-12)).min(1.0))
        };
        let both = [0, 1].map(|place| gathers[place] + reduce[place]);
        passes.forward.data += exposed(passes.forward.total(), gather);
        passes.input.data += exposed(passes.input.total(), gathers);
        passes.weights.data += exposed(passes.weights.total(), summed(reduce));
        passes.backward.data += exposed(passes.backward.total(), summed(both));
        passes.ops = passes.ops.map(|ops| ops.with_data(passes));
    }
}
