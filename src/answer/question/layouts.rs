//! A model on hardware: the layouts of a question with their costs.

use super::memory_cap::MemoryCap;
use super::observer::Observer;
use super::remark::Remark;
use super::settings::Question;
use super::sources::{model, stack};
use crate::framework::framework;
use crate::resolve::{Error, Host, usage};
use pipesim_cost::analytic::{Analytic, Platform};
use pipesim_models::hardware::Stack;
use pipesim_models::layout::{ParallelConfig, micro_batches};
use pipesim_models::model_spec::Lora;
use pipesim_models::model_spec::transformer::Config;
use pipesim_schedule::fsdp::Fsdp;
use pipesim_schedule::schedule::Overlap;

/// Most combinations of degrees and micro-batches.
const MOST_LAYOUTS: usize = 1_000_000;

/// Degrees and micro-batches of one layout.
#[derive(Clone, Copy)]
struct LayoutDegrees {
    tp: u32,
    stages: u32,
    dp: u32,
    /// Sequences per micro-batch, if given.
    size: Option<u32>,
    /// Micro-batches, if given.
    micro: Option<u32>,
}

/// Returns each value of a list, or `None` if it is empty.
fn each(list: &[u32]) -> Vec<Option<u32>> {
    if list.is_empty() { vec![None] } else { list.iter().map(|&one| Some(one)).collect() }
}

impl Question {
    /// Returns FSDP's rule, if it is asked for.
    pub(super) fn fsdp(&self) -> Option<Fsdp> {
        Some(Fsdp {
            max_active_stages: self.max_active_stages?,
            unshard_lookahead: self.unshard_lookahead.clone().unwrap_or_default(),
            defer_reduce_grad_wait: self.defer_reduce_grad_wait,
        })
    }

    /// Returns the costs of every layout of the model on the hardware, if there is one; those that the model or the batch does not allow are
    /// left out, unless there is only one.
    ///
    /// # Errors
    /// No such model, hardware or software, too many layouts, or none that is allowed.
    pub fn layouts(&self, host: &dyn Host, observer: &dyn Observer) -> Result<Vec<Analytic>, Error> {
        let (Some(name), Some(hardware_name)) = (&self.model, &self.hardware) else { return Ok(Vec::new()) };
        let lora = self.lora.as_ref().map(|text| text.parse::<Lora>().map_err(|why| usage(format!("`lora`: {why}"))));
        let model = Config { lora: lora.transpose()?, ..model(name, self.seq, host, observer)? };
        let mut machine =
            Platform { hardware: self.gpus_of_devices(hardware_name, host)?, stack: stack(&self.stack, host)? };
        machine.stack.framework_version.clone_from(&self.framework_version);
        framework(&machine.stack)?;
        let [sizes, micros] = [&self.micro_batch_size, &self.micro].map(|list| each(list));
        let numbers = [sizes.len(), micros.len(), self.tp.len(), self.dp.len(), self.stages.len()];
        let count = numbers.into_iter().fold(1, usize::saturating_mul);
        if count > MOST_LAYOUTS {
            return Err(usage(format!("expected at most {MOST_LAYOUTS} layouts, found {count}; give fewer")));
        }
        let bytes = self.memory_cap.and_then(MemoryCap::bytes);
        let (mut found, mut refused) = (Vec::new(), None);
        for degrees in self.degrees(&sizes, &micros) {
            let costs = self
                .config(degrees, &model, &machine.stack)
                .and_then(|layout| Analytic::new(model, machine.clone(), layout).map_err(usage));
            match costs {
                Ok(analytic) => found.push(bytes.map_or(analytic.clone(), |bytes| analytic.with_memory(bytes))),
                Err(error) if count > 1 => {
                    let LayoutDegrees { tp, stages, dp, .. } = degrees;
                    let layout = format!("`tp` {tp} `stages` {stages} `dp` {dp}");
                    observer.remark(&Remark::LayoutLeftOut { layout, why: error.to_string() });
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match refused {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Returns the combinations of degrees and micro-batches.
    fn degrees(&self, sizes: &[Option<u32>], micros: &[Option<u32>]) -> Vec<LayoutDegrees> {
        let mut all = Vec::new();
        for &tp in &self.tp {
            for &stages in &self.stages {
                for &dp in &self.dp {
                    for &size in sizes {
                        all.extend(micros.iter().map(|&micro| LayoutDegrees { tp, stages, dp, size, micro }));
                    }
                }
            }
        }
        all
    }

    /// Returns the sequences of one round.
    fn batch_of_round(&self) -> Result<Option<u32>, Error> {
        match self.batch {
            Some(batch) if self.rounds > 0 && !batch.is_multiple_of(self.rounds) => Err(usage(format!(
                "expected `batch` to be a multiple of `rounds` {}, found {batch}; choose another number of rounds",
                self.rounds
            ))),
            batch => Ok(batch.map(|batch| batch / self.rounds.max(1))),
        }
    }

    /// Returns a layout of `model`.
    fn config(&self, degrees: LayoutDegrees, model: &Config, stack: &Stack) -> Result<ParallelConfig, Error> {
        let LayoutDegrees { tp, stages: pp, dp, size, micro } = degrees;
        let batch = self.batch_of_round()?;
        let (micro_batch_size, micro) = micro_batches(batch, dp, size, micro).map_err(usage)?;
        let layout = self.layout.as_ref().map(|layout| layout.stages(pp, self.chunks, model.layers)).transpose();
        let layout = layout.map_err(|error| usage(format!("`layout`: {error}")))?;
        let own_chunks = layout.as_ref().and_then(|layout| layout.chunks(pp).ok());
        let is_mixture = model.experts.is_some();
        Ok(ParallelConfig {
            pp,
            chunks: own_chunks.or(self.chunks).unwrap_or(1),
            tp,
            cp: self.cp,
            dp,
            micro_batch_size,
            micro,
            sequence: self.seq,
            packed: self.packed.clone(),
            precision: self.precision,
            recompute: self.recompute,
            zero: self.zero,
            shard: self.shard,
            optimizer_offload: self.optimizer_offload,
            overlap_optimizer_offload: self.overlap_optimizer_offload,
            sequence_parallel: self.sequence_parallel,
            attention: self.attention,
            stack: self.stack.clone(),
            layers: Some(self.layers.clone()).filter(|layers| !layers.is_empty()),
            layout,
            ep: self.ep,
            etp: self.etp.unwrap_or_else(|| if is_mixture { stack.default_etp(tp) } else { 1 }),
            dispatcher: self.dispatcher,
            routing: self.routing,
            cuda_graph: self.cuda_graph,
            moe_overlap: self.moe_overlap || is_mixture && self.overlap == Overlap::Streams,
            delay_wgrad: self.delay_wgrad,
            fsdp: self.fsdp(),
            rounds: self.rounds,
        })
    }
}
