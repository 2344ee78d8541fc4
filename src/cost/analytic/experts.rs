//! Times of layers with experts: router, permutation, grouped products, exchange, and the host's launches. Times are in seconds.

use super::dispatch::ExpertTraffic;
use super::machine::{GpuGroup, ProductShape};
use super::part::{PartCosts, Sums};
use super::pass::{ExpertSums, Pass, Passes, SubOpTimes};
use pipesim_models::layout::{CudaGraph, Dispatcher, Recompute, RecomputePart};
use pipesim_models::model_spec::Operation;

/// Rows to which the rows of an expert are padded: a tile of a product.
const PADDED_ROWS: f64 = 128.0;

/// What a forward's dispatch with DeepEP adds, in seconds: a kernel that computes the layout, 39 µs, and a wait for the host, which
/// needs the number of rows, 35 µs (benchmark of NeMo Automodel). The backward knows both.
const DEEPEP_LAYOUT: f64 = 74e-6;

/// Share of the hidden time that is lost if the backward repeats an exchange: a checkpointed layer runs as one op, whose parts do not
/// wait for the other micro-batch.
const CHECKPOINTED: f64 = 0.5;

impl PartCosts<'_> {
    /// Returns the rows of the busiest GPU as a multiple of the mean.
    fn load(&self) -> f64 {
        self.layout.routing.load(self.machine.stack.natural_load)
    }

    /// Returns the rows of experts on this GPU with balanced routing.
    fn copies(&self, top_k: usize) -> f64 {
        self.layout.expert_rows(top_k) as f64
    }

    /// Adds an operation of a layer's experts.
    pub(super) fn add_expert_operation(&self, sums: &mut Sums, operation: &Operation) {
        match *operation {
            Operation::Route { width, experts, .. } => self.add_router(sums, width as f64, experts as f64),
            Operation::Dispatch { width, top_k } => {
                self.add_exchange(&mut sums.experts, width as f64, top_k);
                if self.layout.dispatcher == Dispatcher::DeepEp && self.layout.ep > 1 {
                    sums.experts.forward += DEEPEP_LAYOUT;
                }
            }
            Operation::Combine { width, top_k } => self.add_exchange(&mut sums.experts, width as f64, top_k),
            Operation::ActivateCopies { top_k, inputs, outputs } => {
                let rows = self.copies(top_k) * self.load() / f64::from(self.layout.etp);
                let bytes = self.width() * rows * (inputs + outputs) as f64;
                sums.experts.activation = self.machine.operation(bytes);
                sums.experts.forward += sums.experts.activation;
                sums.experts.input += self.machine.operation(bytes * self.machine.stack.backward_traffic);
            }
            Operation::Grouped { experts, top_k, inputs, outputs, axis } => {
                let etp = f64::from(self.layout.etp);
                let (inputs, outputs) = (inputs as f64, outputs as f64);
                let (inputs, outputs) = if axis == 0 { (inputs, outputs / etp) } else { (inputs / etp, outputs) };
                let count = (experts as f64 / f64::from(self.layout.ep)).max(1.0);
                self.add_grouped(&mut sums.experts, count, self.copies(top_k) / count, [inputs, outputs]);
            }
            _ => {}
        }
    }

    fn add_router(&self, sums: &mut Sums, width: f64, experts: f64) {
        let (machine, rows) = (self.machine, self.layout.routed_tokens() as f64);
        let precision = self.layout.precision.between_layers();
        let product = |rows, columns, inner| machine.product(ProductShape::new(rows, columns, inner), precision);
        let choice = machine.operation(machine.stack.router_bytes * rows * experts);
        sums.forward += product(rows, experts, width) + choice;
        sums.input += product(rows, width, experts) + choice;
        sums.weights += product(experts, width, rows);
    }

    /// Adds a dispatch or combine: permutation of the copies, exchange, and gather or reduction among ranks that share an expert.
    fn add_exchange(&self, sums: &mut ExpertSums, width: f64, top_k: usize) {
        let (machine, layout) = (self.machine, self.layout);
        let row = self.width() * width;
        let rows = layout.routed_tokens() as f64 * top_k as f64;
        // number of copies that are read or written: all-to-all sorts by rank, then by expert; DeepEP by expert only; HybridEP
        // permutes while it sends
        let times = match layout.dispatcher {
            Dispatcher::AllToAll => 4.0,
            Dispatcher::DeepEp => 3.0,
            Dispatcher::HybridEp => 1.0,
        };
        let permutation = machine.operation(times * machine.stack.permute_traffic * rows * row * self.load());
        sums.forward += permutation;
        sums.input += permutation;
        if layout.etp > 1 {
            let group = GpuGroup::new(layout.etp, 1, machine.hardware.gpus_per_node);
            let bytes = rows * f64::from(layout.etp) * row;
            sums.gathers += machine.gather(group, bytes) + machine.stack.collective_us * 1e-6;
        }
        if let Some(experts) = &self.experts {
            let traffic = ExpertTraffic::new(layout, experts, machine.hardware.gpus_per_node);
            sums.exchange = traffic.time(machine, layout.dispatcher, row * self.load());
        }
    }

    /// Adds the products of `count` experts with `rows` rows each.
    fn add_grouped(&self, sums: &mut ExpertSums, count: f64, rows: f64, [inputs, outputs]: [f64; 2]) {
        let (machine, precision) = (self.machine, self.layout.precision);
        let rows = (rows * self.load() / PADDED_ROWS).ceil() * PADDED_ROWS;
        let product = |rows, columns, inner| {
            machine.product(ProductShape { count, rows, columns, inner }, precision)
                / machine.hardware.grouped_efficiency
        };
        let cast = |width: f64| machine.traffic(self.cast_bytes(precision) * count * rows * width);
        sums.last = product(rows, outputs, inputs) + cast(inputs);
        sums.forward += sums.last;
        sums.input += product(rows, inputs, outputs) + cast(outputs);
        sums.weights += product(outputs, inputs, rows);
        sums.weights += machine.traffic(machine.stack.accumulation_bytes * count * inputs * outputs);
    }

    /// Returns the part of the forward `whole` that a layer's backward recomputes.
    pub(super) fn again(&self, sums: &Sums, whole: Pass) -> Pass {
        let stops_early = self.machine.stack.recompute_stops_early > 0.0;
        let compute = |compute| Pass { compute, ..Pass::default() };
        match self.layout.recompute {
            Recompute::None => Pass::default(),
            Recompute::Selective => compute(sums.attention),
            Recompute::Parts(parts) => RecomputePart::ALL
                .iter()
                .filter(|(_, part)| parts.has(*part))
                .fold(Pass::default(), |sum, &(_, part)| sum + self.again_of(sums, whole, part)),
            _ if !stops_early => whole,
            _ => {
                // the last product, or the experts' last product and the combine after it
                let last = if sums.experts.last > 0.0 { sums.experts.last } else { sums.last };
                Pass { compute: whole.compute - last, experts: whole.experts / 2.0, ..whole }
            }
        }
    }

    fn again_of(&self, sums: &Sums, whole: Pass, part: RecomputePart) -> Pass {
        let compute = |compute| Pass { compute, ..Pass::default() };
        match part {
            RecomputePart::CoreAttention => compute(sums.attention),
            RecomputePart::ExpertActivation => compute(sums.experts.activation),
            RecomputePart::Mixture if sums.experts.forward > 0.0 => Pass {
                compute: sums.experts.forward + sums.of(RecomputePart::Mixture) + sums.of(RecomputePart::SharedExperts),
                tensor: sums.experts.gathers,
                experts: whole.experts,
                ..Pass::default()
            },
            part => compute(sums.of(part)),
        }
    }

    /// Returns the operations that the host launches again for recomputed parts of a layer with experts.
    fn launches_again(&self) -> f64 {
        let launches = |part: RecomputePart| match part {
            RecomputePart::ExpertActivation => 1.0,
            RecomputePart::CoreAttention => 2.0,
            RecomputePart::LatentUp | RecomputePart::SharedExperts => 3.0,
            RecomputePart::Norms => 4.0,
            RecomputePart::Mixture => 12.0,
            RecomputePart::Mlp => 0.0,
        };
        RecomputePart::ALL
            .iter()
            .filter(|(_, part)| self.layout.recompute.repeats(*part))
            .map(|&(_, part)| launches(part))
            .sum()
    }

    /// Returns the share of the host's launches that CUDA graphs leave.
    pub(super) fn launched(&self) -> f64 {
        match self.layout.cuda_graph {
            CudaGraph::None => 1.0,
            CudaGraph::Partial => self.machine.stack.graphed_host,
            CudaGraph::Full => 0.0,
        }
    }

    /// Adds the time that the GPU waits for the host's launches in a layer with experts, and hides the exchange of a forward and a
    /// backward next to each other. Only some parts of a layer wait for the host, so the times of host and GPU are combined as the
    /// root of the sum of squares.
    pub(super) fn add_mixture_host(&self, passes: &mut Passes, sums: &Sums, again: Pass) {
        let (stack, layout) = (&self.machine.stack, self.layout);
        let unit = 1e-3 * self.launched();
        let narrow = if layout.precision.is_narrow() { stack.narrow_host } else { 1.0 };
        let host = unit * stack.mixture_layer_ms * narrow;
        // with HybridEP, kernels read the number of rows per expert on the GPU; in pairs, the GPU has the other micro-batch meanwhile
        let waits_for_rows = layout.ep > 1 && layout.dispatcher != Dispatcher::HybridEp && !layout.moe_overlap;
        let rows = if waits_for_rows && unit > 0.0 { 1e-3 * stack.dispatch_wait_ms } else { 0.0 };
        // parts are launched one by one, but take no longer than the whole layer
        let host_again = host.min(match self.layout.recompute {
            Recompute::Full => host,
            _ => unit * stack.recompute_launch_ms * self.launches_again(),
        });
        let waits = |host: f64, gpu: f64| libm::hypot(gpu, host) - gpu;
        let host_again = host_again + if again.experts > 0.0 { rows } else { 0.0 };
        // recomputation that repeats an exchange runs alone
        let alone = if again.experts > 0.0 { again } else { Pass::default() };
        let ops = self.sub_ops(passes, sums, alone);
        let kernels = self.pair(passes, &ops, alone.total());
        let pair = kernels + waits(2.0 * host + rows + host_again, kernels);
        passes.ops = Some(ops.scaled(pair / ops.pair().max(1e-12)));
        passes.forward.other += waits(host + rows, passes.forward.total());
        passes.input.other += waits(host_again + host / 2.0, passes.input.total());
        passes.weights.other += waits(host / 2.0, passes.weights.total());
        passes.backward.other += waits(host_again + host, passes.backward.total());
        if self.layout.moe_overlap {
            let exchange = passes.forward.experts + passes.backward.experts;
            let hidden = (passes.forward.total() + passes.backward.total() - pair).clamp(0.0, exchange);
            let left = if exchange > 0.0 { 1.0 - hidden / exchange } else { 1.0 };
            for pass in [&mut passes.forward, &mut passes.input, &mut passes.backward] {
                pass.experts *= left;
            }
            passes.hidden = hidden;
        }
    }

    /// Returns the time of the kernels per layer of a forward and a backward next to each other in steady state. Hidden exchange
    /// takes multiprocessors and memory bandwidth from the products.
    fn pair(&self, passes: &Passes, ops: &SubOpTimes, alone: f64) -> f64 {
        let hidden = passes.forward.total() + passes.backward.total() - alone - ops.pair();
        let interference = self.machine.hardware.dispatch_interference;
        let lost = if alone > 0.0 { interference.max(CHECKPOINTED) } else { interference };
        ops.pair() + lost * hidden.max(0.0) + alone
    }

    /// Returns the sub-ops of a layer, without the part of the backward that runs `alone`.
    fn sub_ops(&self, passes: &Passes, sums: &Sums, alone: Pass) -> SubOpTimes {
        let experts = &sums.experts;
        let mlp = [experts.forward + experts.gathers, experts.input + experts.gathers, experts.weights];
        let rest = |pass: Pass, mlp: f64| pass.total() - pass.experts - mlp;
        let input = rest(passes.input, mlp[1]) - rest(alone, 0.0);
        let attn = [rest(passes.forward, mlp[0]), input, rest(passes.weights, mlp[2])];
        SubOpTimes {
            attn,
            mlp,
            exchange: experts.exchange,
            delays_weights: self.layout.delay_wgrad,
            has_one_queue: self.machine.stack.has_one_queue(),
        }
    }
}
