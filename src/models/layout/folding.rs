//! Experts on the GPUs of a pipeline stage: Megatron's parallel folding (Liu et al., arXiv 2504.14960). A stage's GPUs are
//! tp · cp · dp for attention and dense layers, and ep · etp · edp for experts.

use super::{Dispatcher, ParallelConfig, ParallelConfigError, Recompute, RecomputePart, Routing, Zero};
use crate::model_spec::Degrees;
use crate::model_spec::transformer::Config;
use std::ops::Add;

/// GPUs of a stage that hold the same tensors: they add up their gradients, and ZeRO shards over groups of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Number of GPUs.
    pub ranks: u32,
    /// Distance between two of them.
    pub stride: u32,
    /// Number of neighbours among them that share what ZeRO shards: all, unless it is replicated.
    pub shard: u32,
}

impl Replicas {
    /// Returns the neighbours that share what ZeRO shards.
    pub fn sharing(self) -> Replicas {
        Replicas { ranks: self.shard, ..self }
    }

    /// Returns the GPUs that hold the same shard, one of each group.
    pub fn copies(self) -> Replicas {
        Replicas { ranks: self.ranks / self.shard, stride: self.stride.saturating_mul(self.shard), shard: 1 }
    }
}

impl ParallelConfig {
    /// Returns the replicas of tensors without experts, dp · cp GPUs, and of experts, edp GPUs.
    pub fn replicas(&self) -> [Replicas; 2] {
        let edp = u32::try_from(self.edp()).unwrap_or(u32::MAX).max(1);
        let of = |ranks: u32, stride| Replicas { ranks, stride, shard: (ranks / self.shard_groups()).max(1) };
        [of(self.dp.saturating_mul(self.cp), self.tp), of(edp, self.ep.saturating_mul(self.etp))]
    }

    /// Returns the number of groups of replicas that each shard the same states: dp · cp / shard. Experts have as many, as in
    /// Megatron (`--num-distributed-optimizer-instances`) and torchtitan (`data_parallel_replicate_degree`).
    pub fn shard_groups(&self) -> u32 {
        self.shard.map_or(1, |shard| self.dp.saturating_mul(self.cp) / shard.max(1)).max(1)
    }

    /// Checks that groups of `shard` replicas share states.
    ///
    /// # Errors
    /// Nothing is shared, or their number does not divide the replicas, of experts or of all others.
    pub fn check_shard(&self, shard: Option<u32>, has_experts: bool) -> Result<(), ParallelConfigError> {
        let Some(shard) = shard else { return Ok(()) };
        let (all, edp) = (u64::from(self.dp) * u64::from(self.cp), self.edp());
        let groups = (all / u64::from(shard.max(1))).max(1);
        if self.zero == Zero::None {
            return Err(ParallelConfigError::ShardWithoutZero);
        }
        if shard == 0 || !all.is_multiple_of(u64::from(shard)) {
            return Err(ParallelConfigError::Shard { all, found: shard });
        }
        if has_experts && !edp.is_multiple_of(groups) {
            return Err(ParallelConfigError::ShardOfExperts { edp, groups, found: shard });
        }
        Ok(())
    }

    /// Returns numbers without and of experts, added up if both have the same replicas, which exchange them together.
    pub fn together<T: Add<Output = T> + Default>(&self, [dense, experts]: [T; 2]) -> [T; 2] {
        let [of_dense, of_experts] = self.replicas();
        if of_dense == of_experts { [dense + experts, T::default()] } else { [dense, experts] }
    }

    /// Returns whether several GPUs hold the same tensors of a model, so that ZeRO shards something.
    pub fn has_replicas(&self, has_experts: bool) -> bool {
        let [dense, experts] = self.replicas();
        dense.ranks > 1 || has_experts && experts.ranks > 1
    }

    /// Returns the GPUs of one pipeline stage: tp · cp · dp.
    pub fn stage_gpus(&self) -> u64 {
        [self.tp, self.cp, self.dp].into_iter().map(u64::from).product()
    }

    /// Returns the expert-data-parallel degree: replicas of each expert.
    pub fn edp(&self) -> u64 {
        self.stage_gpus() / (u64::from(self.ep) * u64::from(self.etp)).max(1)
    }

    /// Returns the degrees by which ranks share the tensors of a stage.
    pub fn degrees(&self) -> Degrees {
        let [tp, ep, etp] = [self.tp, self.ep, self.etp].map(|degree| degree.max(1) as usize);
        Degrees { tp, ep, etp }
    }

    /// Returns the tokens of a micro-batch that one rank routes: with sequence parallelism its share of the rows.
    pub fn routed_tokens(&self) -> u64 {
        self.micro_tokens() / u64::from(if self.sequence_parallel { self.tp } else { 1 })
    }

    /// Returns the rows per micro-batch of all experts on one rank, if routing is balanced.
    pub fn expert_rows(&self, top_k: usize) -> u64 {
        self.routed_tokens().saturating_mul(top_k as u64).saturating_mul(u64::from(self.etp))
    }

    /// Checks what concerns experts, latent attention and the order of layers.
    pub(super) fn check_experts(&self, model: &Config) -> Result<(), ParallelConfigError> {
        let Some(experts) = model.experts else { return self.check_without_experts(model) };
        let (gpus, &ParallelConfig { ep, etp, tp, cp, dp, .. }) = (self.stage_gpus(), self);
        if !experts.count.is_multiple_of(ep as usize) {
            let what = format!("model's {} experts", experts.count);
            return Err(ParallelConfigError::ExpertRanks { what, setting: "ep", found: ep });
        }
        if !gpus.is_multiple_of(u64::from(ep) * u64::from(etp)) {
            return Err(ParallelConfigError::Folding { ep, etp, gpus, tp, cp, dp });
        }
        if !experts.width.is_multiple_of(etp as usize) {
            let what = format!("{} channels of an expert", experts.width);
            return Err(ParallelConfigError::ExpertRanks { what, setting: "etp", found: etp });
        }
        if tp > 1 && !self.sequence_parallel {
            return Err(ParallelConfigError::SequenceParallel { tp });
        }
        self.check_recomputed_parts(model)?;
        self.check_overlap(model)
    }

    fn check_without_experts(&self, model: &Config) -> Result<(), ParallelConfigError> {
        let given = [
            ("ep", self.ep > 1),
            ("etp", self.etp > 1),
            ("dispatcher", self.dispatcher != Dispatcher::AllToAll),
            ("routing", self.routing != Routing::Balanced),
            ("moe-overlap", self.moe_overlap),
            ("delay-wgrad", self.delay_wgrad),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((setting, _)) => Err(ParallelConfigError::Dense { setting }),
            None => self.check_recomputed_parts(model),
        }
    }

    /// Rejects parts to recompute that the model does not have.
    fn check_recomputed_parts(&self, model: &Config) -> Result<(), ParallelConfigError> {
        let Recompute::Parts(parts) = self.recompute else { return Ok(()) };
        let experts = model.experts;
        let has_dense = model.mixtures() < model.layers;
        let missing = RecomputePart::ALL.into_iter().find(|&(_, part)| {
            parts.has(part)
                && !match part {
                    RecomputePart::CoreAttention | RecomputePart::Norms => true,
                    RecomputePart::LatentUp => model.latent.is_some(),
                    RecomputePart::Mlp => has_dense,
                    RecomputePart::ExpertActivation | RecomputePart::Mixture => experts.is_some(),
                    RecomputePart::SharedExperts => experts.is_some_and(|experts| experts.shared_width > 0),
                }
        });
        missing.map_or(Ok(()), |(part, _)| Err(ParallelConfigError::NoSuchPart { part }))
    }

    /// Rejects what excludes the overlap of experts' communication, as Megatron does.
    fn check_overlap(&self, model: &Config) -> Result<(), ParallelConfigError> {
        let (expected, why) = match self {
            ParallelConfig { moe_overlap: false, delay_wgrad: true, .. } => {
                return Err(ParallelConfigError::DelayWgrad);
            }
            ParallelConfig { moe_overlap: false, .. } => return Ok(()),
            ParallelConfig { ep: 1, .. } => ("`ep` above 1", "found 1, where no token is sent"),
            _ if model.prediction_layers > 1 => ("at most one multi-token prediction layer", "as in Megatron"),
            _ => return Ok(()),
        };
        Err(ParallelConfigError::Overlap { expected, why })
    }
}
