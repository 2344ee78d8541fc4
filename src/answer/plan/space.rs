//! All layouts that a question allows, each with a lower bound of its iteration time.

use super::journal::LayoutOutcome;
use super::question::{Fixed, Question, divisors};
use super::reason::{PlanError, Reason};
use super::shapes::{PlanShape, shapes};
use super::stacks::Abilities;
use crate::resolve::results;
use pipesim_cost::analytic::Analytic;
use pipesim_models::layout::{ParallelConfig, Recompute, StepOptions, Zero};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of layouts of a question.
const MOST: usize = 20_000_000;
/// Maximum number of micro-batches per pipeline.
const MOST_MICRO: u32 = 1 << 14;

/// What the costs of a model's parts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanGroup {
    pub gpus: u32,
    pub tp: u32,
    pub cp: u32,
    /// Ranks that share the experts of a layer.
    pub ep: u32,
    /// Ranks that share each expert.
    pub etp: u32,
    pub micro_batch_size: u32,
    pub sequence_parallel: bool,
    pub recompute: Recompute,
    /// Whether forwards hide the experts' communication of backwards.
    pub overlaps: bool,
    /// The data-parallel degree if weights are sharded: they are gathered in every pass.
    pub gathered_by: Option<u32>,
    /// How many of the replicas share weights then, if not all.
    pub shard: Option<u32>,
}

/// One layout, in brief.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Lower bound of the iteration time times the price of a second.
    pub bound: f64,
    pub group: u32,
    pub shape: u32,
    pub dp: u32,
    pub micro: u32,
    pub zero: Zero,
    /// How many replicas share what ZeRO shards, if not all.
    pub shard: Option<u32>,
}

/// What tells candidates apart: group, shape, replicas, ZeRO stage and the replicas that share states.
pub(super) type Key = (u32, u32, u32, Zero, Option<u32>);

/// A split that simulation found.
#[derive(Clone, Debug)]
pub(super) struct RefinedSplit {
    pub layers: Vec<usize>,
    pub recompute: Recompute,
    pub options: StepOptions,
    pub outcome: LayoutOutcome,
}

/// Returns the key of a candidate.
pub(super) fn key(candidate: &Candidate) -> Key {
    (candidate.group, candidate.shape, candidate.dp, candidate.zero, candidate.shard)
}

/// What the states of a layout depend on: group, replicas, ZeRO stage and the replicas that share states.
pub(super) type StatesKey = (u32, u32, Zero, Option<u32>);

pub(super) fn states_key(candidate: &Candidate) -> StatesKey {
    (candidate.group, candidate.dp, candidate.zero, candidate.shard)
}

/// The layouts of a question, those with the lowest bounds first.
#[derive(Debug)]
pub struct Space {
    pub groups: Vec<PlanGroup>,
    /// By group, the options that make its layers fastest.
    pub options: Vec<StepOptions>,
    pub shapes: Vec<PlanShape>,
    pub candidates: Vec<Candidate>,
    /// Layouts that cannot exist.
    pub ruled_out: BTreeMap<Reason, u64>,
}

/// The groups with the pipelines (devices, replicas) of each.
type Groups = BTreeMap<PlanGroup, Vec<(u32, u32)>>;

struct Listing<'a> {
    question: &'a Question,
    able: &'a Abilities,
    groups: Groups,
    ruled_out: BTreeMap<Reason, u64>,
}

impl Listing<'_> {
    fn rule_out(&mut self, reason: Reason) {
        *self.ruled_out.entry(reason).or_default() += 1;
    }

    fn add_gpus(&mut self, gpus: u32) {
        let (question, able) = (self.question, self.able);
        let fixed = &question.fixed;
        for tp in divisors(gpus).into_iter().filter(|&tp| Fixed::allows(&fixed.tp, tp)) {
            if tp > 1 && !able.tensor_parallel {
                continue;
            }
            if question.model.check_tensor_ranks(tp as usize).is_err() {
                self.rule_out(Reason::Heads);
                continue;
            }
            for cp in divisors(gpus / tp).into_iter().filter(|&cp| Fixed::allows(&fixed.cp, cp)) {
                if cp > 1 && !able.context_parallel {
                    continue;
                }
                if !question.sequence.is_multiple_of(cp) {
                    self.rule_out(Reason::Sequence);
                    continue;
                }
                for pp in divisors(gpus / tp / cp).into_iter().filter(|&pp| Fixed::allows(&fixed.pp, pp)) {
                    self.add_pipelines(gpus, [tp, cp], pp);
                }
            }
        }
    }

    fn add_pipelines(&mut self, gpus: u32, [tp, cp]: [u32; 2], pp: u32) {
        let (question, able) = (self.question, self.able);
        let dp = gpus / tp / cp / pp;
        if !Fixed::allows(&question.fixed.dp, dp) {
            return;
        }
        if !question.batch.is_multiple_of(dp) {
            return self.rule_out(Reason::Batch);
        }
        if pp as usize > question.model.layers + 2 {
            return self.rule_out(Reason::Layers);
        }
        let sizes = divisors(question.batch / dp);
        for size in sizes.into_iter().filter(|&size| Fixed::allows(&question.fixed.micro_batch_size, size)) {
            if question.batch / dp / size > MOST_MICRO {
                self.rule_out(Reason::Micro);
                continue;
            }
            let tokens = u64::from(size) * u64::from(question.sequence) / u64::from(cp);
            let only_off = [false];
            let choices: &[bool] = if tp == 1 { &only_off } else { &able.sequence_parallel };
            for &sequence_parallel in choices {
                // each token is routed once
                if question.model.experts.is_some() && tp > 1 && !sequence_parallel {
                    continue;
                }
                if sequence_parallel && !tokens.is_multiple_of(u64::from(tp)) {
                    self.rule_out(Reason::Sequence);
                    continue;
                }
                for ep in question.expert_degrees(tp * cp * dp) {
                    let group = PlanGroup {
                        gpus,
                        tp,
                        cp,
                        ep,
                        etp: if question.model.experts.is_some() { able.etp(tp, ep) } else { 1 },
                        micro_batch_size: size,
                        sequence_parallel,
                        recompute: Recompute::None,
                        overlaps: false,
                        gathered_by: None,
                        shard: None,
                    };
                    let stages = able.zero(pp, group.has_replicas(question, dp)).iter();
                    let stages: BTreeSet<bool> = stages.map(|&zero| zero == Zero::Weights).collect();
                    for (&recompute, whole) in
                        able.recompute.iter().flat_map(|one| stages.iter().map(move |&w| (one, w)))
                    {
                        let group = PlanGroup { recompute, gathered_by: whole.then_some(dp), ..group };
                        let shards = if whole { able.shards(&group.layout(question), question) } else { vec![None] };
                        for (overlaps, shard) in
                            [false, true].into_iter().flat_map(|overlaps| shards.iter().map(move |s| (overlaps, *s)))
                        {
                            let group = PlanGroup { overlaps, shard, ..group };
                            if !able.options(group.recompute, group.ep > 1, group.overlaps).is_empty() {
                                self.groups.entry(group).or_default().push((pp, dp));
                            }
                        }
                    }
                }
            }
        }
    }
}

impl PlanGroup {
    /// Returns whether several GPUs of a stage hold the same tensors with `dp` replicas.
    fn has_replicas(&self, question: &Question, dp: u32) -> bool {
        let edp = self.tp * self.cp * dp / (self.ep * self.etp);
        dp * self.cp > 1 || question.model.experts.is_some() && edp > 1
    }

    /// Returns the layout of the group with one device and as few replicas as its experts need.
    pub fn layout(&self, question: &Question) -> ParallelConfig {
        ParallelConfig {
            tp: self.tp,
            cp: self.cp,
            ep: self.ep,
            etp: self.etp,
            dp: self.gathered_by.unwrap_or(self.ep),
            zero: if self.gathered_by.is_some() { Zero::Weights } else { Zero::None },
            shard: self.shard,
            micro_batch_size: self.micro_batch_size,
            micro: 1,
            sequence_parallel: self.sequence_parallel,
            recompute: self.recompute,
            ..question.base()
        }
    }

    /// Returns the bounded layouts of the group.
    fn candidates(
        &self,
        number: u32,
        pipelines: &[(u32, u32)],
        question: &Question,
        able: &Abilities,
        shapes: &[PlanShape],
        base: &Analytic,
    ) -> (StepOptions, Vec<Candidate>) {
        let options = able.options(self.recompute, self.ep > 1, self.overlaps);
        let Ok(mut costs) = base.with_best(self.layout(question), options) else { return Default::default() };
        let options = costs.layout.options();
        let mut found = Vec::new();
        let price = question.price(self.gpus);
        // the times of layers are the same for all pipelines of a group
        let times = [false, true].map(|splits| {
            let is_used = shapes.iter().any(|shape| shape.bounds_splits && shape.splits == splits);
            is_used.then(|| costs.split_times(splits))
        });
        for &(pp, dp) in pipelines {
            let micro = question.batch / dp / self.micro_batch_size;
            let mut known: BTreeMap<(u32, Zero, Option<u32>), f64> = BTreeMap::new();
            let mut pipelines: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
            let mut exchanges: BTreeMap<(Zero, Option<u32>, [u32; 2]), [f64; 2]> = BTreeMap::new();
            let is_own = |(shape, _): &(&PlanShape, u32)| shape.pp == pp && shape.overlaps == self.overlaps;
            for (shape, which) in shapes.iter().zip(0..).filter(is_own) {
                // a single micro-batch has no other one to run next to
                if shape.needs_rounds && !micro.is_multiple_of(pp) || shape.overlaps && micro == 1 {
                    continue;
                }
                (costs.layout.pp, costs.layout.dp, costs.layout.micro) = (pp, dp, micro);
                costs.layout.chunks = shape.chunks;
                let gathers = self.gathered_by.is_some();
                let stages = able
                    .zero(pp, self.has_replicas(question, dp))
                    .iter()
                    .filter(|&&zero| (zero == Zero::Weights) == gathers);
                for &zero in stages {
                    (costs.layout.zero, costs.layout.shard) = (zero, None);
                    let mut whole = f64::INFINITY;
                    let shards = if gathers { vec![self.shard] } else { able.shards(&costs.layout, question) };
                    for shard in shards {
                        costs.layout.shard = shard;
                        let mut least = || match &times[usize::from(shape.splits)] {
                            Some(times) if shape.bounds_splits => {
                                let pipeline =
                                    || costs.least_pipeline(times, &shapes[shape.piped_as as usize].placement);
                                let pipeline = *pipelines.entry(shape.piped_as).or_insert_with(pipeline);
                                let [copies, devices] = [shape.placement.directions(), shape.placement.devices()];
                                let exchange = || costs.least_exchange(times, copies, devices);
                                let exchange =
                                    *exchanges.entry((zero, shard, [copies, devices])).or_insert_with(exchange);
                                costs.least_of_splits(pipeline, exchange, times, &shape.placement, &shape.stages)
                            }
                            _ => costs.least_iteration(&shape.placement, &shape.stages, shape.splits, &shape.alike),
                        };
                        let bound = *known.entry((shape.bounded_as, zero, shard)).or_insert_with(&mut least) * price;
                        // smaller groups take more memory
                        if bound < whole {
                            found.push(Candidate { bound, group: number, shape: which, dp, micro, zero, shard });
                            whole = if shard.is_none() { bound } else { whole };
                        }
                    }
                }
            }
        }
        (options, found)
    }
}

impl Space {
    /// Lists the layouts of `question` and bounds them.
    ///
    /// # Errors
    /// A question that contradicts itself, or that allows no layout.
    pub fn new(question: &Question) -> Result<Space, PlanError> {
        let able = Abilities::asked(question);
        let mut listing = Listing { question, able: &able, groups: BTreeMap::new(), ruled_out: BTreeMap::new() };
        question.gpus.iter().for_each(|&gpus| listing.add_gpus(gpus));
        let Listing { groups, mut ruled_out, .. } = listing;
        let depths: BTreeSet<u32> = groups.values().flatten().map(|&(pp, _)| pp).collect();
        let shapes = shapes(question, &able, &depths, &mut ruled_out)?;
        let pipelines: usize = groups.values().map(Vec::len).sum();
        if pipelines.saturating_mul(shapes.len().max(1)) > MOST * 10 {
            let remedy = "fix some of them, as in `fix` tp=8";
            return Err(PlanError::new(format!("at most {MOST} layouts"), "many more", remedy));
        }
        let works: Vec<(PlanGroup, Vec<(u32, u32)>)> = groups.into_iter().collect();
        let layout = ParallelConfig { micro: 1, ..question.base() };
        let base = Analytic::new(question.model, question.machine.clone(), layout).map_err(PlanError::refused)?;
        let found = results(question.host, works.len(), |number| {
            let (group, pipelines) = &works[number];
            group.candidates(number as u32, pipelines, question, &able, &shapes, &base)
        });
        let (options, found): (Vec<StepOptions>, Vec<Vec<Candidate>>) = found.into_iter().unzip();
        // sorting bounds moves fewer bytes
        let mut order: Vec<(f64, usize, usize)> = Vec::new();
        for (group, own) in found.iter().enumerate() {
            order.extend(own.iter().enumerate().map(|(at, one)| (one.bound, group, at)));
        }
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let candidates = order.into_iter().map(|(_, group, at)| found[group][at]).collect();
        let groups = works.into_iter().map(|(group, _)| group).collect();
        Ok(Space { groups, options, shapes, candidates, ruled_out })
    }

    /// Returns the group of a candidate.
    pub fn group(&self, candidate: &Candidate) -> &PlanGroup {
        &self.groups[candidate.group as usize]
    }

    /// Returns the pipeline of a candidate.
    pub fn shape(&self, candidate: &Candidate) -> &PlanShape {
        &self.shapes[candidate.shape as usize]
    }

    /// Returns the layout of a candidate.
    pub fn layout(&self, question: &Question, candidate: &Candidate) -> ParallelConfig {
        let (Candidate { dp, micro, zero, shard, .. }, shape) = (*candidate, self.shape(candidate));
        ParallelConfig {
            pp: shape.pp,
            chunks: shape.chunks,
            dp,
            micro,
            zero,
            shard,
            layers: shape.layers.clone(),
            ..self.group(candidate).layout(question)
        }
        .with_options(self.options[candidate.group as usize])
    }
}
