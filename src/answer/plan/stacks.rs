//! Layouts that training software supports.

use super::question::Question;
use crate::framework::{facts, framework};
use pipesim_cost::analytic::Analytic;
use pipesim_frameworks::Facts;
use pipesim_models::hardware::Stack;
use pipesim_models::layout::{
    Attention, CudaGraph, Dispatcher, ParallelConfig, Recompute, RecomputePart, RecomputeParts, StepOptions, Zero,
};
use std::collections::{BTreeMap, BTreeSet};

/// The schedule of Megatron whose forwards hide the experts' communication of backwards.
pub(super) const OVERLAPPED: &str = "interleaved-overlap";

/// Stands for the fewest first layers of each stage that have to be recomputed.
pub(super) const FEWEST: Recompute = Recompute::Block(0);

/// Layouts that training software supports.
#[derive(Clone, Debug, PartialEq)]
pub struct Abilities {
    pub schedules: Vec<String>,
    pub tensor_parallel: bool,
    pub context_parallel: bool,
    /// Whether sequence parallelism may be on, and off, with tensor parallelism.
    pub sequence_parallel: Vec<bool>,
    pub recompute: Vec<Recompute>,
    /// Whether parts of layers can be recomputed.
    pub recompute_parts: bool,
    /// ZeRO stages of a pipeline, and of data parallelism alone.
    pub zero: [Vec<Zero>; 2],
    /// Whether groups of replicas may each share what ZeRO shards.
    pub shard_groups: bool,
    /// Whether stages may have different numbers of layers.
    pub uneven_layers: bool,
    /// Whether tensor-parallel ranks always share experts if there is no expert parallelism: torchtitan's `apply_moe_ep_tp`, which
    /// ignores `expert_tensor_parallel_degree` then.
    pub shares_lone_experts: bool,
    /// Options to try, the simplest first, by what is recomputed, whether tokens are sent to experts, and whether that is overlapped.
    options: BTreeMap<(Recompute, bool, bool), Vec<StepOptions>>,
}

/// Name, tensor parallelism, context parallelism, sequence parallelism (off, on), ZeRO stages with a pipeline and without, uneven
/// stages. Megatron-LM and Megatron-Core: `megatron/training/arguments.py`; only Megatron-Core recomputes parts of layers
/// (`--recompute-modules`). DeepSpeed: `runtime/pipe/engine.py` allows ZeRO-1 only. torchtitan: `config/job_config.py`,
/// `distributed/parallel_dims.py`; FSDP2 keeps gathered weights between the micro-batches of a pipeline, as ZeRO-2.
type Row = (&'static str, bool, bool, &'static [bool], [&'static [Zero]; 2], bool);

/// Parts to recompute that are tried together, without those that the model lacks: first those that cost little time for what they
/// save, as in Megatron-Bridge's recipes for mixtures.
const PARTS: [&[RecomputePart]; 4] = {
    use RecomputePart::{CoreAttention, ExpertActivation, LatentUp, Mixture, Mlp, Norms};
    [
        &[CoreAttention, LatentUp],
        &[CoreAttention, LatentUp, ExpertActivation],
        &[CoreAttention, LatentUp, ExpertActivation, Norms],
        &[CoreAttention, LatentUp, Norms, Mlp, Mixture],
    ]
};

const BOTH: &[bool] = &[false, true];
const OFF: &[bool] = &[false];
const ON: &[bool] = &[true];
const MEGATRON: &[Zero] = &[Zero::None, Zero::Optimizer];
const OPTIMIZER: &[Zero] = &[Zero::Optimizer];
const ALL: &[Zero] = &[Zero::None, Zero::Optimizer, Zero::Gradients, Zero::Weights];
const FSDP: &[Zero] = &[Zero::Gradients, Zero::Weights];
const TITAN: &[Zero] = &[Zero::None, Zero::Gradients];
const TITAN_ALONE: &[Zero] = &[Zero::None, Zero::Gradients, Zero::Weights];

const STACKS: [Row; 14] = [
    ("megatron-core", true, true, BOTH, [MEGATRON, MEGATRON], true),
    ("megatron-bridge", true, true, BOTH, [MEGATRON, MEGATRON], true),
    ("megatron-lm", true, false, BOTH, [MEGATRON, MEGATRON], false),
    ("megatron-zb", true, false, BOTH, [MEGATRON, MEGATRON], true),
    ("megatron-deepspeed", true, false, OFF, [MEGATRON, ALL], true),
    ("megatron-deepspeed-blocking", true, false, OFF, [MEGATRON, ALL], true),
    ("fsdp", false, false, OFF, [FSDP, FSDP], false),
    ("torchtitan", true, true, ON, [TITAN, TITAN_ALONE], true),
    ("automodel", true, true, ON, [TITAN, TITAN_ALONE], true),
    ("nanotron", true, false, BOTH, [MEGATRON, MEGATRON], true),
    ("jax", true, true, BOTH, [ALL, ALL], false),
    ("llm.c", false, false, OFF, [MEGATRON, MEGATRON], false),
    ("pipesim", true, false, BOTH, [MEGATRON, MEGATRON], true),
    ("scaling", true, false, BOTH, [OPTIMIZER, OPTIMIZER], true),
];

/// Stacks in which groups of replicas may each share states: Megatron's `--num-distributed-optimizer-instances`, and FSDP's hybrid sharding.
const SHARD_GROUPS: [&str; 6] = ["megatron-core", "megatron-bridge", "fsdp", "torchtitan", "automodel", "jax"];

/// Returns whether the framework accepts options as it accepts none; what it cannot express was asked for if it is tried.
fn is_accepted(question: &Question, recompute: Recompute, sends: bool, options: StepOptions) -> bool {
    let plain = StepOptions::default();
    let Ok(Some(framework)) = framework(&question.machine.stack) else { return true };
    let refuses = |options: StepOptions| {
        let ep = if sends { question.expert_degrees(1 << 12).into_iter().find(|&ep| ep > 1) } else { None };
        let ep = ep.unwrap_or(1);
        let recompute = if recompute == FEWEST { Recompute::Full } else { recompute };
        let layout = ParallelConfig { ep, dp: ep, recompute, micro: 1, ..question.base() }.with_options(options);
        let costs = Analytic::new(question.model, question.machine.clone(), layout);
        let schedule = if options.moe_overlap { OVERLAPPED } else { "1f1b" };
        costs.map_or(true, |costs| framework.refuses(&facts(&costs, Some(schedule)), false).unwrap_or(false))
    };
    options == plain || !refuses(options) || !options.moe_overlap && refuses(plain)
}

impl Abilities {
    /// Returns what `stack` supports; a stack of its own is assumed to support everything.
    pub fn of(stack: &Stack) -> Abilities {
        // variants of a stack are named after it
        let is_of =
            |name: &str| stack.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        let row = STACKS.iter().filter(|(name, ..)| is_of(name)).max_by_key(|(name, ..)| name.len());
        let unknown: Row = ("", true, true, BOTH, [ALL, ALL], true);
        let &(_, tensor_parallel, context_parallel, sequence_parallel, zero, uneven_layers) = row.unwrap_or(&unknown);
        let usual = || ["1f1b", "interleaved-1f1b"].map(str::to_string).to_vec();
        Abilities {
            schedules: stack.schedules.clone().unwrap_or_else(usual),
            tensor_parallel,
            context_parallel,
            sequence_parallel: sequence_parallel.to_vec(),
            recompute: Recompute::ALL.to_vec(),
            recompute_parts: row.is_none_or(|(name, ..)| ["megatron-core", "megatron-bridge"].contains(name)),
            zero: zero.map(<[Zero]>::to_vec),
            shard_groups: row.is_none_or(|(name, ..)| SHARD_GROUPS.contains(name)),
            uneven_layers,
            shares_lone_experts: row.is_some_and(|(name, ..)| ["torchtitan", "automodel"].contains(name)),
            options: BTreeMap::new(),
        }
    }

    /// Returns what `stack` supports of what the question allows.
    pub fn asked(question: &Question) -> Abilities {
        let mut able = Abilities::of(&question.machine.stack);
        let fixed = &question.fixed;
        if !question.schedules.is_empty() {
            able.schedules.clone_from(&question.schedules);
        }
        if fixed.recompute.is_empty() {
            able.choose_recompute(question);
        } else {
            able.recompute.clone_from(&fixed.recompute);
        }
        // a requested value is predicted as if the software had it
        if !fixed.zero.is_empty() {
            able.zero = [fixed.zero.clone(), fixed.zero.clone()];
        }
        if !fixed.sequence_parallel.is_empty() {
            able.sequence_parallel = fixed.sequence_parallel.iter().copied().collect();
        }
        able.tensor_parallel |= !fixed.tp.is_empty();
        able.context_parallel |= !fixed.cp.is_empty();
        if question.model.experts.is_none() && question.schedules.is_empty() {
            able.schedules.retain(|name| name != OVERLAPPED);
        }
        able.choose_options(question);
        able
    }

    /// Returns the options to try, the simplest first, by what is recomputed, whether tokens are sent to experts, and whether that is
    /// overlapped; none if the software cannot overlap them.
    pub fn options(&self, recompute: Recompute, sends: bool, overlaps: bool) -> &[StepOptions] {
        self.options.get(&(recompute, sends, overlaps)).map_or(&[], Vec::as_slice)
    }

    /// Lists the options of Megatron-Core that its rules and the question allow; other software runs with the defaults.
    fn choose_options(&mut self, question: &Question) {
        let (fixed, is_mixture) = (&question.fixed, question.model.experts.is_some());
        let has_options = self.recompute_parts && question.machine.stack.name.starts_with("megatron");
        let mut chip = Facts::default();
        let architecture = chip.add_hardware(&question.machine.hardware).text("architecture");
        let has_flex = has_options && is_mixture && ["ampere", "hopper", "blackwell"].contains(&architecture);
        let sends: &[bool] = if is_mixture { &[false, true] } else { &[false] };
        let can_overlap = is_mixture && self.schedules.iter().any(|name| name.split(':').next() == Some(OVERLAPPED));
        let allows = |set: &BTreeSet<bool>, value: bool| set.is_empty() || set.contains(&value);
        let choose = |given: &[Dispatcher], sends: bool| match given {
            [] if has_flex && sends => Dispatcher::ALL.to_vec(),
            [] => vec![Dispatcher::AllToAll],
            given => given.to_vec(),
        };
        // the host cannot launch a graph of a mixture's experts before it knows their rows
        let graphs = match fixed.cuda_graph.as_slice() {
            [] if !has_options => vec![CudaGraph::None],
            [] if is_mixture => vec![CudaGraph::None, CudaGraph::Partial],
            [] => vec![CudaGraph::None, CudaGraph::Full],
            given => given.to_vec(),
        };
        for (&recompute, &sends) in self.recompute.iter().flat_map(|one| sends.iter().map(move |s| (one, s))) {
            let overlap = if can_overlap && sends { vec![false, true] } else { vec![false] };
            for moe_overlap in overlap.into_iter().filter(|&value| allows(&fixed.moe_overlap, value)) {
                let delays: &[bool] = if moe_overlap { &[false, true] } else { &[false] };
                let mut all = Vec::new();
                for &delay_wgrad in delays.iter().filter(|&&value| allows(&fixed.delay_wgrad, value)) {
                    for dispatcher in choose(&fixed.dispatcher, sends) {
                        let of = |&cuda_graph| StepOptions { dispatcher, cuda_graph, moe_overlap, delay_wgrad };
                        all.extend(graphs.iter().map(of));
                    }
                }
                let mut accepted: Vec<StepOptions> =
                    all.into_iter().filter(|one| is_accepted(question, recompute, sends, *one)).collect();
                // DeepEP is never faster than HybridEP
                if fixed.dispatcher.is_empty() && accepted.iter().any(|one| one.dispatcher == Dispatcher::HybridEp) {
                    accepted.retain(|one| one.dispatcher != Dispatcher::DeepEp);
                }
                self.options.insert((recompute, sends, moe_overlap), accepted);
            }
        }
    }

    /// Lists what to recompute: nothing, parts, or whole layers. Flash attention has no scores to recompute.
    fn choose_recompute(&mut self, question: &Question) {
        let base = ParallelConfig { micro: 1, ..question.base() };
        let stack = &question.machine.stack;
        let has_scores = stack.attention(&base) == Attention::Plain;
        if !has_scores && stack.selective_products == 0.0 {
            self.recompute.retain(|what| *what != Recompute::Selective);
        }
        let parts = |set: &[RecomputePart]| Recompute::Parts(RecomputeParts::new(set.iter().copied()));
        let exists = |part: &RecomputePart| match part {
            RecomputePart::CoreAttention => has_scores,
            part => ParallelConfig { recompute: parts(&[*part]), ..base.clone() }.validate(&question.model).is_ok(),
        };
        for set in PARTS.iter().filter(|_| self.recompute_parts) {
            let own: Vec<RecomputePart> = set.iter().copied().filter(exists).collect();
            let is_new =
                !own.is_empty() && own != [RecomputePart::CoreAttention] && !self.recompute.contains(&parts(&own));
            self.recompute.extend(is_new.then(|| parts(&own)));
        }
        let is_megatron = stack.name.starts_with("megatron") && !stack.name.starts_with("megatron-deepspeed");
        self.recompute.extend(is_megatron.then_some(FEWEST));
    }

    /// Returns the ZeRO stages for `pp` devices per pipeline; all are the same unless several GPUs hold the same tensors.
    pub fn zero(&self, pp: u32, has_replicas: bool) -> &[Zero] {
        let all = &self.zero[usize::from(pp == 1)];
        if has_replicas { all } else { &all[..all.len().min(1)] }
    }

    /// Returns how many replicas may share states in `layout`, which has another number of them: all, and those of a node.
    pub fn shards(&self, layout: &ParallelConfig, question: &Question) -> Vec<Option<u32>> {
        let (all, fixed) = (layout.dp.saturating_mul(layout.cp), &question.fixed.shard);
        let node = question.machine.hardware.gpus_per_node as u32 / layout.tp;
        let is_new = self.shard_groups && (2..all).contains(&node) && node.is_multiple_of(layout.cp);
        let mut shards: Vec<Option<u32>> = fixed.iter().map(|&shard| (shard != all).then_some(shard)).collect();
        if fixed.is_empty() {
            shards.extend([None, Some(node)].into_iter().take(1 + usize::from(is_new)));
        }
        shards.retain(|shard| layout.check_shard(*shard, question.model.experts.is_some()).is_ok());
        shards
    }

    /// Returns the expert-tensor-parallel degree of plans.
    pub fn etp(&self, tp: u32, ep: u32) -> u32 {
        if self.shares_lone_experts && ep == 1 { tp } else { 1 }
    }
}
